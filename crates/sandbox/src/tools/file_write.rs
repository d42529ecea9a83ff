//! `file_write`: a file, whole.

use serde_json::json;

use super::info::ToolInfo;
use super::result::ToolResult;
use super::schema::Params;
use crate::error::Result;
use crate::sandbox::Sandbox;

/// Set-user-id and set-group-id. The kernel takes them away from a file that somebody without privileges writes to.
const SET_ID: u32 = 0o6000;

pub(super) fn info() -> ToolInfo {
    ToolInfo::ours(
        "file_write",
        "Write a file of the box, in place of what was there. It keeps its permissions if it exists, but for \
         set-user-id and set-group-id, which a write takes away.",
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
    let before = sandbox.stat(path, true).await.map_or(0, |stat| stat.mode);
    sandbox.replace_file(path, content.as_bytes(), None, params.flag("create_dirs")).await?;
    let remark = match before & SET_ID {
        0 => String::new(),
        _ => format!(
            "[{path} had the mode {before:o} and has {:o} now: a write takes set-id bits away]\n",
            before & !SET_ID
        ),
    };
    Ok(ToolResult::remarked(format!("wrote {} bytes to {path}\n", content.len()), remark))
}
