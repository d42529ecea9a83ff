//! `file_delete`: a file, or a tree.

use serde_json::json;

use super::info::ToolInfo;
use super::result::ToolResult;
use super::schema::Params;
use crate::error::Result;
use crate::sandbox::Sandbox;

pub(super) fn info() -> ToolInfo {
    ToolInfo::ours(
        "file_delete",
        "Remove a file, a link or an empty directory of the box; with recursive, a directory and all in it.",
        &["path"],
        json!({
            "path": {
                "type": "string", "minLength": 1,
                "description": "What to remove; relative to the working directory of the box",
            },
            "recursive": { "type": "boolean", "default": false, "description": "Remove a whole directory" },
        }),
    )
}

pub(super) async fn run(sandbox: &Sandbox, params: &Params) -> Result<ToolResult> {
    let path = params.text("path");
    sandbox.remove_file(path, params.flag("recursive")).await?;
    Ok(ToolResult::done(format!("removed {path}\n")))
}
