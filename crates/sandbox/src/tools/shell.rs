//! `shell`: a line for the box's shell.

use serde_json::json;

use super::info::ToolInfo;
use super::result::ToolResult;
use super::running::{self, Call};
use super::schema::Params;
use crate::error::Result;
use crate::sandbox::Sandbox;

/// Seconds, unless said otherwise.
pub(super) const TIMEOUT: u64 = 300;

pub(super) fn info() -> ToolInfo {
    ToolInfo::ours(
        "shell",
        "Run a line in the shell of the box (bash if it has one, else sh). Returns stdout followed by \
         stderr, and the exit code. The line and everything that it starts are killed when the time is up.",
        &["command"],
        json!({
            "command": { "type": "string", "minLength": 1, "description": "The line, as typed into a shell" },
            "timeout": {
                "type": "number", "exclusiveMinimum": 0, "default": TIMEOUT,
                "description": "Seconds after which it is killed",
            },
            "work_dir": {
                "type": "string", "default": "",
                "description": "Where it runs; relative to the working directory of the box, its default",
            },
        }),
    )
}

pub(super) async fn run(sandbox: &Sandbox, params: &Params) -> Result<ToolResult> {
    let argv = |shell: &str| vec![shell.to_owned(), "-c".to_owned(), params.text("command").to_owned()];
    let call = Call {
        label: "shell".into(),
        argvs: vec![argv("bash"), argv("/bin/sh")],
        cwd: Some(params.text("work_dir").to_owned()).filter(|dir| !dir.is_empty()),
        timeout: params.seconds("timeout"),
        ..Call::default()
    };
    running::run(sandbox, call).await
}
