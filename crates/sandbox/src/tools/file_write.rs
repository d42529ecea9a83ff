//! `file_write`: a file, whole.

use serde_json::json;

use super::info::ToolInfo;
use super::result::ToolResult;
use super::schema::Params;
use crate::error::Result;
use crate::sandbox::Sandbox;

pub(super) fn info() -> ToolInfo {
    ToolInfo::ours(
        "file_write",
        "Write a file of the box, in place of what was there. It keeps its permissions if it exists.",
        &["path", "content"],
        json!({
            "path": {
                "type": "string", "minLength": 1,
                "description": "Which file; relative to the working directory of the box",
            },
            "content": { "type": "string", "description": "The whole text of the file" },
            "create_dirs": {
                "type": "boolean", "default": true,
                "description": "Make directories above it that are missing",
            },
        }),
    )
}

pub(super) async fn run(sandbox: &Sandbox, params: &Params) -> Result<ToolResult> {
    let (path, content) = (params.text("path"), params.text("content"));
    sandbox.replace_file(path, content.as_bytes(), None, params.flag("create_dirs")).await?;
    Ok(ToolResult::done(format!("wrote {} bytes to {path}\n", content.len())))
}
