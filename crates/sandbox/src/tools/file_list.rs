//! `file_list`: what is in a directory, and in those below it.

use glasshouse_protocol::{FileKind, FileStat};
use serde_json::json;

use super::info::ToolInfo;
use super::result::ToolResult;
use super::schema::Params;
use crate::error::{Error, Result};
use crate::sandbox::Sandbox;

/// Entries that are shown at most.
const ENTRIES_MAX: usize = 2000;
/// Entries that are looked at at most, hidden ones included.
const VISITED_MAX: usize = 200_000;
/// Directories below directories at most.
const DEPTH_MAX: u64 = 64;

pub(super) fn info() -> ToolInfo {
    ToolInfo::ours(
        "file_list",
        "List a directory of the box: one path a line, directories with a slash at their end.",
        &[],
        json!({
            "path": {
                "type": "string", "minLength": 1, "default": ".",
                "description": "Which directory; relative to the working directory of the box",
            },
            "depth": {
                "type": "integer", "minimum": 1, "maximum": DEPTH_MAX, "default": 1,
                "description": "How far down: 1 is the directory alone",
            },
            "hidden": {
                "type": "boolean", "default": false, "description": "Show names that begin with a dot",
            },
        }),
    )
}

pub(super) async fn run(sandbox: &Sandbox, params: &Params) -> Result<ToolResult> {
    let (path, depth, hidden) = (params.text("path"), params.whole("depth"), params.flag("hidden"));
    let (mut lines, mut remarks, mut visited) = (Vec::new(), String::new(), 0);
    // Directories that are still to be listed, and how far down they are; the last one is the next.
    let mut waiting = vec![Waiting { shown: String::new(), below: 1, after: None }];
    while let Some(Waiting { shown, below, after }) = waiting.pop() {
        if lines.len() >= ENTRIES_MAX {
            remarks.push_str(&format!("[only the first {ENTRIES_MAX} entries are shown]\n"));
            break;
        }
        if visited >= VISITED_MAX {
            remarks.push_str(&format!("[only the first {VISITED_MAX} entries were looked at]\n"));
            break;
        }
        let dir = match shown.as_str() {
            "" => path.to_owned(),
            below => format!("{}/{below}", path.trim_end_matches('/')),
        };
        let page = match sandbox.list_dir(&dir, after.as_deref(), Some(PAGE)).await {
            // One below that cannot be read, or is gone, is no reason to say nothing of the others.
            Err(e) if !shown.is_empty() && super::is_answer(&e) => {
                remarks.push_str(&remark(&e));
                continue;
            }
            page => page?,
        };
        visited += page.entries.len().max(1);
        if let Some(next) = page.next {
            waiting.push(Waiting { shown: shown.clone(), below, after: Some(next) });
        }
        let mut dirs = Vec::new();
        for entry in page.entries.iter().filter(|entry| hidden || !entry.name.starts_with('.')) {
            let name = if shown.is_empty() { entry.name.clone() } else { format!("{shown}/{}", entry.name) };
            lines.push(line(&name, entry));
            // A link is not followed, so there is no way around in circles.
            if entry.kind == FileKind::Directory && below < depth && !entry.name_lossy {
                dirs.push(Waiting { shown: name, below: below + 1, after: None });
            }
        }
        waiting.extend(dirs.into_iter().rev());
    }
    // The last page may hold more than there is room for.
    let only = format!("[only the first {ENTRIES_MAX} entries are shown]\n");
    if lines.len() > ENTRIES_MAX && !remarks.contains(&only) {
        remarks.push_str(&only);
    }
    lines.truncate(ENTRIES_MAX);
    // What is in a directory comes right after it.
    lines.sort();
    Ok(ToolResult::remarked(lines.concat(), remarks))
}

/// Entries that are asked for at once.
const PAGE: usize = 500;

struct Waiting {
    shown: String,
    below: u64,
    after: Option<String>,
}

fn remark(error: &Error) -> String {
    format!("[{error}]\n")
}

/// One entry. A name cannot break the line.
fn line(name: &str, entry: &FileStat) -> String {
    let plain = |text: &str| -> String {
        text.chars()
            .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
            .collect()
    };
    match (entry.kind, &entry.target) {
        (FileKind::Directory, _) => format!("{}/\n", plain(name)),
        (FileKind::Link, Some(target)) => format!("{} -> {}\n", plain(name), plain(target)),
        _ => format!("{}\n", plain(name)),
    }
}
