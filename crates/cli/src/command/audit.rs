//! `glass audit`: whether records are what was written.

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use glasshouse_trace::verify;
use serde_json::json;

use super::log::{report_code, report_json, report_lines};
use crate::args::{Global, unknown_box};
use crate::escape::plain;
use crate::output;

/// Check records of boxes
#[derive(Debug, Args)]
pub(crate) struct Audit {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Verify(Verify),
}

/// Check the chain of hashes and the payloads of records, and name the first broken line
#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 1 if a record is not what was written, and 4 if all that is there was, but nothing
vouches for its end: `head` is missing, and lines may have been cut off. Keep the head that is
printed elsewhere: nobody can change or shorten what it covers without another one coming out.

Examples:
  glass audit verify web
  glass audit verify                     all records
  glass audit verify --json | jq '.[] | select(.ok | not)'")]
struct Verify {
    /// Boxes, living or gone [default: all that have a record]
    #[arg(value_name = "ID")]
    names: Vec<String>,
}

impl Audit {
    pub(crate) fn run(self, global: &Global) -> Result<i32> {
        let What::Verify(Verify { names }) = self.what;
        let sandboxes = global.open()?;
        let (traces, blobs) = (sandboxes.traces_dir(), sandboxes.blobs_dir());
        let mut ids = Vec::new();
        for name in &names {
            ids.push(sandboxes.resolve_trace(name).map_err(unknown_box)?);
        }
        if names.is_empty() {
            for entry in std::fs::read_dir(&traces).context("cannot list the records")? {
                ids.push(
                    entry.context("cannot list the records")?.file_name().to_string_lossy().into_owned(),
                );
            }
            ids.sort();
        }
        let (mut codes, mut reports) = (Vec::new(), Vec::new());
        for id in ids {
            // One that cannot be checked is no reason to leave out those behind it.
            let (code, mut value, lines) = match verify(&traces.join(&id), &blobs) {
                Ok(report) => (report_code(&report), report_json(&report), report_lines(&report)),
                Err(error) => {
                    let why = format!("it cannot be checked: {}", output::sentence(&error.into()));
                    (1, json!({ "ok": false, "error": why }), vec![format!("NOT ok: {why}")])
                }
            };
            codes.push(code);
            if global.json {
                value["id"] = json!(id);
                reports.push(value);
            } else {
                output::print(lines.into_iter().map(|line| format!("{}  {line}", plain(&id))))?;
            }
        }
        if global.json {
            output::print_json(&json!(reports))?;
        }
        // What is broken comes before what may be missing.
        Ok(codes.into_iter().filter(|code| *code != 0).min().unwrap_or(0))
    }
}
