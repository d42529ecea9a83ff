//! `glass log`: what happened in a box.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueHint};
use glasshouse_trace::{Bad, Reader, Report, Style, page, render, verify};
use serde_json::{Value, json};

use crate::args::{Global, unknown_box};
use crate::outfile::{OutFile, unwritable};
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
    #[arg(long, conflicts_with_all = ["verify", "html"])]
    diff: bool,
    /// Write one page that needs nothing else, to be opened in a browser; `-` is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "verify", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,
}

impl Log {
    pub(crate) fn run(self, global: &Global) -> Result<i32> {
        if global.json && self.diff {
            bail!("--json has the lines of the record, which hold what --diff would show");
        }
        if global.json && self.html.as_deref() == Some(Path::new("-")) {
            bail!("stdout cannot be a page and JSON at once; name a file");
        }
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
            return Ok(report_code(&report));
        }
        let mut reader =
            Reader::open(&trace, &blobs).with_context(|| format!("cannot read the record of {id}"))?;
        if let Some(file) = &self.html {
            html(&mut reader, file)?;
            if global.json {
                output::print_json(&json!({ "id": id, "page": file.to_string_lossy() }))?;
            }
            return Ok(0);
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
fn html(reader: &mut Reader, file: &Path) -> Result<()> {
    let store = reader.blobs();
    if file == Path::new("-") {
        let mut out = io::BufWriter::new(io::stdout());
        return page(reader, &store, &mut out).and_then(|()| out.flush()).context(output::WRITE);
    }
    let out = OutFile::create(file)?;
    let mut writer = io::BufWriter::new(out.writer()?);
    page(reader, &store, &mut writer).and_then(|()| writer.flush()).with_context(|| unwritable(file))?;
    out.finish()
}

/// The exit code if all that is there was written, and nobody knows whether it is all that was written.
const UNGUARDED_CODE: i32 = 4;

pub(super) fn report_code(report: &Report) -> i32 {
    match (report.ok, report.is_whole()) {
        (true, _) => 0,
        (false, true) => UNGUARDED_CODE,
        (false, false) => 1,
    }
}

pub(super) fn report_json(report: &Report) -> Value {
    json!({
        "ok": report.ok,
        "lines": report.lines,
        "first_bad": report.first_bad.as_ref().map(bad_json),
        "torn_tail": report.torn_tail,
        "unguarded": report.unguarded,
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
    lines.extend(report.unguarded.then(|| {
        "its end is not vouched for: `head` is missing, or not one of ours; lines may have been cut off"
            .to_owned()
    }));
    lines
        .extend((report.missing_blobs > 0).then(|| format!("{} payloads are missing", report.missing_blobs)));
    lines.extend(report.head.map(|hash| format!("head {hash}")));
    lines
}
