//! `glass attach`: the output of a command that somebody else started.

use anyhow::Result;
use clap::Args;
use glasshouse_sandbox::{Exec, ExecEvent, ExecOutput, Exit, ExitReport, Kept, OutputStream};
use serde_json::Value;

use crate::args::Global;
use crate::output;
use crate::session::{self, CLOSED_CODE, End, Part, signal_code};
use crate::signals::Signals;
use crate::words::{self, Disk, Limited};

/// Show the output of a command, what is kept of it and what comes
#[derive(Debug, Args)]
#[command(after_help = "\
The command is not disturbed: Ctrl-C leaves it running. If it ends, the exit code is its own.

Examples:
  glass attach web 1
  glass attach web 1 --no-follow              what there is so far
  glass attach web 1 --from 4096              without its first 4096 bytes")]
pub(crate) struct Attach {
    /// The box: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: String,
    /// The number of the command, as `glass ps` shows it
    #[arg(value_name = "EXEC")]
    exec: u64,
    /// Skip this many bytes of its output
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    from: u64,
    /// Show what there is, and do not wait for more
    #[arg(long)]
    no_follow: bool,
    /// Let escape sequences of the box reach our terminal
    #[arg(long)]
    raw: bool,
}

impl Attach {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let part = Part { raw: self.raw, onlooker: true, ..Part::default() };
        let sandbox = global.connect(&self.name).await?;
        let exec = sandbox.attach(self.exec, self.from, !self.no_follow).await?;
        if global.json && self.no_follow {
            output::print_json(&so_far(exec).await)?;
            return Ok(0);
        }
        let mut signals = Signals::of(part)?;
        let end = match global.json {
            true => session::collect(exec, &mut signals, part).await?,
            false => session::stream(exec, &mut signals, part).await?,
        };
        match end {
            End::Collected(seen) => {
                output::print_json(&output::exec_json(&seen))?;
                Ok(seen.report.exit.shell_code())
            }
            End::Ended(ended) => {
                let disk = Disk::of(sandbox.info());
                if let Some(cause) = words::cause(&ended.report.exit, Limited::Earlier, disk) {
                    global.say(&cause);
                }
                Ok(ended.report.exit.shell_code())
            }
            End::UpToDate => Ok(0),
            End::Stopped(signal) => Ok(signal_code(signal)),
            End::Closed => Ok(CLOSED_CODE),
        }
    }
}

/// What is kept of a command that may go on; it has no end then. The guest bounds what it keeps.
async fn so_far(mut exec: Exec) -> Value {
    let (mut stdout, mut stderr) = (Kept::default(), Kept::default());
    let (mut report, mut results) = (None, Vec::new());
    while let Some(event) = exec.next().await {
        match event {
            ExecEvent::Output(chunk) => {
                let kept = match chunk.stream {
                    OutputStream::Stdout => &mut stdout,
                    OutputStream::Stderr => &mut stderr,
                    OutputStream::Results => continue,
                };
                kept.bytes.extend_from_slice(&chunk.bytes);
            }
            // Nobody knows whose bytes are missing.
            ExecEvent::Gap { .. } => {
                stdout.gap_at = Some(stdout.bytes.len());
                stderr.gap_at = Some(stderr.bytes.len());
            }
            ExecEvent::Ended(ended) => report = Some(ended),
            ExecEvent::Result(result) => results.push(result),
            ExecEvent::UpToDate { .. } => {}
        }
    }
    let running = report.is_none();
    let seen = [stdout.bytes.len(), stderr.bytes.len()];
    let report = report.unwrap_or_else(|| ExitReport::never_ran(Exit::Code { code: 0 }));
    let mut value = output::exec_json(&ExecOutput { exec: exec.id(), report, stdout, stderr, results });
    if running {
        for unknown in ["exit", "wall_ms", "wall_us", "cpu_ms", "cpu_us", "peak_memory_bytes", "oom_kills"] {
            value[unknown] = Value::Null;
        }
        (value["stdout_bytes"], value["stderr_bytes"]) = (seen[0].into(), seen[1].into());
    }
    value
}
