//! The files that code left behind: told, and copied out of its box before that goes.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};
use glasshouse_sandbox::{DiffOptions, Difference, Sandbox, Sandboxes};
use serde_json::{Value, json};

use crate::{output, words};

/// Files that are told of one piece of code; more are counted.
const LEFT_TOLD_MAX: usize = 1000;

/// Those of one piece of code.
pub(super) struct Left(Vec<Difference>);

impl Left {
    /// Looks for them. The context ends with that: what is left behind is what stays when all that it started is gone.
    pub(super) async fn find(house: &Sandboxes, sandbox: &Sandbox, context: &str) -> Result<Left> {
        if sandbox.why_lost(context).await?.is_none() {
            sandbox.delete_context(context).await?;
        }
        let changes = house.diff(sandbox.id(), None, DiffOptions::default()).await?.changes;
        Ok(Left(changes.into_iter().filter(is_left).collect()))
    }

    /// Copies them below a directory, which is made if there are any.
    pub(super) async fn copy_to(&self, sandbox: &Sandbox, into: &Path) -> Result<()> {
        for change in &self.0 {
            copy(sandbox, change, into).await?;
        }
        Ok(())
    }

    /// Tells them beside all else that is told of a run.
    pub(super) fn put_into(&self, told: &mut Value) {
        let left = self.0.iter().take(LEFT_TOLD_MAX).map(|change| {
            let to = change.to.as_ref();
            let what = if change.from.is_some() { "changed" } else { "added" };
            json!({ "path": String::from_utf8_lossy(&change.path), "bytes": to.map(|to| to.bytes), "change": what })
        });
        told["left"] = left.collect();
        told["left_count"] = self.0.len().into();
    }

    /// How many, and how large; nothing if there are none.
    pub(super) fn in_words(&self) -> String {
        let bytes: u64 = self.0.iter().filter_map(|change| change.to.as_ref()).map(|to| to.bytes).sum();
        match self.0.len() {
            0 => String::new(),
            count => format!("{}, {}", words::count(count, "file", "files"), words::size(bytes)),
        }
    }
}

/// Whether it is a file that was added or whose content is another.
fn is_left(change: &Difference) -> bool {
    let is_file = change.to.as_ref().is_some_and(|thing| thing.kind == "file");
    is_file && (change.from.is_none() || change.what.contains(&"content"))
}

async fn copy(sandbox: &Sandbox, change: &Difference, into: &Path) -> Result<()> {
    let Ok(path) = std::str::from_utf8(&change.path) else {
        output::say(&format!("{} is not copied: its name is no UTF-8", change.path.escape_ascii()));
        return Ok(());
    };
    let inside: PathBuf =
        Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))).collect();
    let to = into.join(inside);
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    sandbox.copy_out(path, &to).await.with_context(|| format!("cannot copy {path} to {}", to.display()))
}
