//! `python`: a program for the box's Python.

use serde_json::json;

use super::info::ToolInfo;
use super::result::ToolResult;
use super::running::{self, Call};
use super::schema::Params;
use super::shell::TIMEOUT;
use crate::error::Result;
use crate::sandbox::Sandbox;

pub(super) fn info() -> ToolInfo {
    ToolInfo::ours(
        "python",
        "Run a Python program in a fresh interpreter of the box. Returns what it prints, and its exit code.",
        &["code"],
        json!({
            "code": { "type": "string", "minLength": 1, "description": "The program" },
            "timeout": {
                "type": "number", "exclusiveMinimum": 0, "default": TIMEOUT,
                "description": "Seconds after which it is killed with everything that it started",
            },
        }),
    )
}

pub(super) async fn run(sandbox: &Sandbox, params: &Params) -> Result<ToolResult> {
    // By stdin, because an argument has a size. Unbuffered, so that what was printed before a time-out is there.
    let argv = |name: &str| vec![name.to_owned(), "-u".to_owned(), "-".to_owned()];
    let call = Call {
        label: "python".into(),
        argvs: vec![argv("python3"), argv("python")],
        timeout: params.seconds("timeout"),
        stdin: Some(params.text("code").as_bytes().to_vec()),
        ..Call::default()
    };
    running::run(sandbox, call).await
}
