//! `glass log`: what happened in a box.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueHint};
use glasshouse_trace::{Bad, Reader, Report, Style, page, render, verify};
use serde_json::{Value, json};

use crate::args::{Global, unknown_box};
use crate::{output, terminal};

/// Show the record of a box, living or gone
#[derive(Debug, Args)]
#[command(after_help = "\
With --json, the lines of the trace. With --verify, whether they are what was written: the exit
code is 1 if not.

Examples:
  glass log web
  glass log web --json | jq -c .event
  glass log web --diff
  glass log web --html web.html
  glass log web --verify")]
pub(crate) struct Log {
    /// The box: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: String,
    /// Check the chain of hashes and the payloads instead
    #[arg(long)]
    verify: bool,
    /// Show the lines that each step changed in files (boxes with `--record steps`)
    #[arg(long)]
    diff: bool,
    /// Write one page that needs nothing else, to be opened in a browser; `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "verify", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,
}

impl Log {
    pub(crate) fn run(self, global: &Global) -> Result<i32> {
        let sandboxes = global.open()?;
        let id = sandboxes.resolve_trace(&self.name).map_err(unknown_box)?;
        let (trace, blobs) = (sandboxes.traces_dir().join(&id), sandboxes.blobs_dir());
        if self.verify {
            let report =
                verify(&trace, &blobs).with_context(|| format!("cannot check the record of {id}"))?;
            match global.json {
                true => output::print_json(&report_json(&report))?,
                false => output::print(report_lines(&report))?,
            }
            return Ok(i32::from(!report.ok));
        }
        let mut reader =
            Reader::open(&trace, &blobs).with_context(|| format!("cannot read the record of {id}"))?;
        if let Some(file) = &self.html {
            return html(&mut reader, file);
        }
        let style = Style { color: true, width: terminal::width(), diff: self.diff, raw: global.json };
        let store = reader.blobs();
        // Takes the colours off where nobody wants them.
        let out = anstream::AutoStream::auto(io::stdout());
        let mut out = io::BufWriter::new(out);
        render(&mut reader, &store, &mut out, &style).and_then(|()| out.flush()).context(output::WRITE)?;
        Ok(0)
    }
}

/// Writes the page, whole or not at all.
fn html(reader: &mut Reader, file: &Path) -> Result<i32> {
    let store = reader.blobs();
    if file == Path::new("-") {
        let mut out = io::BufWriter::new(io::stdout());
        page(reader, &store, &mut out).and_then(|()| out.flush()).context(output::WRITE)?;
        return Ok(0);
    }
    let what = || format!("cannot write {}", file.display());
    let mut temporary = file.as_os_str().to_owned();
    temporary.push(format!(".{}~", std::process::id()));
    let mut out = io::BufWriter::new(File::create_new(&temporary).with_context(what)?);
    let written = page(reader, &store, &mut out)
        .and_then(|()| out.flush())
        .and_then(|()| std::fs::rename(&temporary, file));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written.with_context(what)?;
    Ok(0)
}

pub(super) fn report_json(report: &Report) -> Value {
    json!({
        "ok": report.ok,
        "lines": report.lines,
        "first_bad": report.first_bad.as_ref().map(bad_json),
        "torn_tail": report.torn_tail,
        "missing_blobs": report.missing_blobs,
        "head": report.head.map(|hash| hash.to_string()),
    })
}

fn bad_json(bad: &Bad) -> Value {
    json!({ "line": bad.line, "why": bad.why.to_string() })
}

pub(super) fn report_lines(report: &Report) -> Vec<String> {
    let mut lines = vec![match report.ok {
        true => format!("ok: {} lines, unbroken", report.lines),
        false => format!("NOT ok: {} lines", report.lines),
    }];
    lines.extend(report.first_bad.as_ref().map(|bad| format!("line {}: {}", bad.line, bad.why)));
    lines.extend(
        report.torn_tail.then(|| "the last line is unfinished: its writer died, or is at it".to_owned()),
    );
    lines
        .extend((report.missing_blobs > 0).then(|| format!("{} payloads are missing", report.missing_blobs)));
    lines.extend(report.head.map(|hash| format!("head {hash}")));
    lines
}
