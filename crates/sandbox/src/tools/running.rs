//! Programs for tools: the one way from a program and its input to an answer.

use std::time::Duration;

use glasshouse_protocol::{ExecSpec, Exit, NotStarted, Program};

use super::result::ToolResult;
use crate::error::Result;
use crate::limits::TOOL_OUTPUT_BYTES;
use crate::sandbox::Sandbox;

/// What a tool wants run.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    /// The tool, for lists of commands.
    pub(super) label: String,
    /// Argument lists: the first whose program is there is run.
    pub(super) argvs: Vec<Vec<String>>,
    /// A program that was carried into the box runs instead of the named one.
    pub(super) carried: Option<String>,
    /// Where; without one, in the box's working directory.
    pub(super) cwd: Option<String>,
    /// After this time it is killed with all that it started.
    pub(super) timeout: Option<Duration>,
    /// What it reads.
    pub(super) stdin: Option<Vec<u8>>,
}

/// Runs it to its end.
pub(super) async fn run(sandbox: &Sandbox, call: Call) -> Result<ToolResult> {
    let stdin = call.stdin.as_deref();
    let mut argvs = call.argvs.into_iter().peekable();
    while let Some(argv) = argvs.next() {
        let spec = ExecSpec {
            program: Program::Argv(argv),
            carried: call.carried.clone(),
            cwd: call.cwd.clone(),
            stdin: stdin.is_some(),
            timeout_ms: call.timeout.map(|time| time.as_millis().max(1) as u64),
            kept_output_bytes: Some(kept_bytes(sandbox)),
            label: Some(call.label.clone()),
            ..ExecSpec::default()
        };
        let exec = sandbox.exec(spec).await?;
        let input = exec.input();
        let feed = async {
            if let Some(bytes) = stdin {
                // A program that ends without reading all of it does not want the rest.
                let _ = input.write(bytes).await;
                let _ = input.close().await;
            }
        };
        let ((), ran) = tokio::join!(feed, exec.collect());
        let missing = matches!(ran.report.exit, Exit::NotStarted { why: NotStarted::NotFound, .. });
        if missing && argvs.peek().is_some() {
            continue;
        }
        let timed_out = ran.report.exit == Exit::TimedOut;
        let mut result = ToolResult::of(ran);
        if timed_out {
            result.error = Some(timed_out_after(sandbox, call.timeout));
        }
        return Ok(result);
    }
    Ok(ToolResult::failed(1, format!("{}: there is no program to run", call.label)))
}

/// What is kept of each stream: what goes on record, or less if the box keeps less.
fn kept_bytes(sandbox: &Sandbox) -> u64 {
    limit(sandbox, "output").unwrap_or(TOOL_OUTPUT_BYTES).min(TOOL_OUTPUT_BYTES)
}

/// How much of something the box may have.
pub(crate) fn limit(sandbox: &Sandbox, name: &str) -> Option<u64> {
    sandbox.info().limits.iter().find(|limit| limit.name == name).and_then(|limit| limit.amount)
}

fn timed_out_after(sandbox: &Sandbox, asked: Option<Duration>) -> String {
    let boxes = limit(sandbox, "timeout").map(Duration::from_millis);
    let after = match asked.into_iter().chain(boxes).min() {
        Some(time) => format!(" after {} s", time.as_secs_f64()),
        None => String::new(),
    };
    format!("timed out{after}; the program and everything that it had started were killed")
}
