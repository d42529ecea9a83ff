//! `glass-search`: ripgrep's engine as a command of the box.
//!
//! The host carries it in when it is first needed, and runs it as it runs any command: its one argument is a JSON object
//! with what to look for. It writes `path:line:text` for each line, in order of the names, and remarks to stderr.
//! It ends with 0 whether something was found or not, and with 2 if it could not do what it was asked for.
//!
//! `walk` says which files are looked into, `found` how a line is shown. One thread, so that the same files give the same
//! answer. What could hold it up or fill its memory is left out: files that are none (pipes, devices), file systems that
//! are none (/proc, /sys), links, what holds zero bytes, and lines beyond a bound. A pattern takes linear time, or is
//! refused for its size.

mod found;
mod walk;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use serde_json::Value;

use found::Found;
use walk::Walk;

/// Files that cannot be read, and are named; the rest is counted.
const COMPLAINTS_MAX: usize = 10;
/// The code for what could not be done.
const REFUSED: u8 = 2;

/// What to look for, and where.
pub(crate) struct Ask {
    pattern: String,
    path: String,
    file_pattern: String,
    ignore_case: bool,
    literal: bool,
    no_ignore: bool,
    files_only: bool,
    context: usize,
    max_results: u64,
}

impl Ask {
    fn read(text: &str) -> Result<Ask, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|e| format!("the question is not understood: {e}"))?;
        let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let flag = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or(false);
        let whole = |name: &str| value.get(name).and_then(Value::as_f64).unwrap_or(0.0) as u64;
        Ok(Ask {
            pattern: text("pattern"),
            path: text("path"),
            file_pattern: text("file_pattern"),
            ignore_case: flag("ignore_case"),
            literal: flag("literal"),
            no_ignore: flag("no_ignore"),
            files_only: flag("files_only"),
            context: whole("context") as usize,
            max_results: whole("max_results"),
        })
    }
}

fn main() -> ExitCode {
    // Executed from memory, it would be called by the number of a descriptor.
    let _ = glasshouse_linux::rustix::thread::set_name(c"glass-search");
    let asked = std::env::args().nth(1).ok_or("glass-search is started by glass".to_owned());
    match asked.and_then(|text| Ask::read(&text)).and_then(|ask| search(&ask)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(REFUSED)
        }
    }
}

fn search(ask: &Ask) -> Result<(), String> {
    let walk = Walk::new(ask)?;
    let mut found = Found::new(ask, BufWriter::new(io::stdout().lock()))?;
    let mut complaints = Vec::new();
    for file in walk {
        let looked = match file {
            Ok(file) => found.look_into(&file),
            Err(why) => {
                complaints.push(why);
                continue;
            }
        };
        match looked {
            Ok(true) => {}
            Ok(false) => break,
            // Whoever reads has seen enough.
            Err(found::Failed::Output) => return Ok(()),
            Err(found::Failed::File(why)) => complaints.push(why),
        }
    }
    let more = found.finish();
    let mut remarks = String::new();
    if more {
        remarks.push_str(&format!("[there is more: only the first {} results are shown]\n", ask.max_results));
    }
    for why in complaints.iter().take(COMPLAINTS_MAX) {
        remarks.push_str(&format!("[{why}]\n"));
    }
    if let Some(rest @ 1..) = complaints.len().checked_sub(COMPLAINTS_MAX) {
        remarks.push_str(&format!("[and {rest} more could not be read]\n"));
    }
    let _ = io::stderr().write_all(remarks.as_bytes());
    Ok(())
}
