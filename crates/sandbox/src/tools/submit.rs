//! `submit`: the agent's last word. It goes on record and ends nothing: whoever drives the agent decides.

use serde_json::json;

use super::info::ToolInfo;
use super::result::ToolResult;
use super::schema::Params;
use crate::error::Result;
use crate::sandbox::Sandbox;

pub(super) fn info() -> ToolInfo {
    ToolInfo::ours(
        "submit",
        "Say that the work is done, with the answer if there is one. The box lives on.",
        &[],
        json!({ "answer": { "type": "string", "default": "", "description": "The answer" } }),
    )
}

pub(super) async fn run(_: &Sandbox, params: &Params) -> Result<ToolResult> {
    Ok(ToolResult::done(params.text("answer")))
}
