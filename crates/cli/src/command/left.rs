//! The files that code left behind: told, and copied out of its box before that goes.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};
use glasshouse_sandbox::{DiffOptions, Difference, ErrorKind, Sandbox, Sandboxes};
use serde_json::{Value, json};

use crate::words::shortened;
use crate::{output, words};

/// Files that are told of one piece of code; more are counted.
const LEFT_TOLD_MAX: usize = 1000;
/// Bytes of their paths: code can make paths that are longer than any that can be opened.
const LEFT_TOLD_BYTES_MAX: usize = 1 << 20;
/// What is said of one piece of code that was not copied; more is counted.
const MISSED_SAID_MAX: usize = 10;
/// Characters of a path that is said; as JSON, it is told as long as the kernel takes it.
const PATH_SAID_CHARS: usize = 200;
const PATH_TOLD_CHARS: usize = 4096;

/// What one piece of code left behind.
pub(super) struct Left {
    files: Vec<Difference>,
    /// Links, pipes and sockets, which are no files.
    others: Vec<Difference>,
    /// What was not copied, if files were to be.
    missed: Option<Missed>,
}

/// What was left behind and not copied.
#[derive(Default)]
struct Missed {
    count: usize,
    /// The path of each, and why.
    named: Vec<(String, String)>,
}

impl Left {
    /// Looks for it and, with `into`, copies the files below that directory, which is made if there are any. What cannot be
    /// copied is skipped, for code can make it so. `None` where the runtime cannot compare states: that has nothing
    /// to tell, unless somebody wants the files. The context ends with that: what is left behind is what stays when all
    /// that it started is gone.
    pub(super) async fn find(
        house: &Sandboxes,
        sandbox: &Sandbox,
        context: &str,
        into: Option<&Path>,
    ) -> Result<Option<Left>> {
        if sandbox.why_lost(context).await?.is_none() {
            sandbox.delete_context(context).await?;
        }
        let changes = match house.diff(sandbox.id(), None, DiffOptions::default()).await {
            Err(e) if into.is_none() && e.kind() == ErrorKind::Unsupported => return Ok(None),
            diff => diff?.changes,
        };
        let (files, rest): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_file);
        let others = rest.into_iter().filter(is_other).collect();
        let mut left = Left { files, others, missed: None };
        if let Some(into) = into {
            left.missed = Some(left.copy_to(sandbox, into).await?);
        }
        Ok(Some(left))
    }

    async fn copy_to(&self, sandbox: &Sandbox, into: &Path) -> Result<Missed> {
        let mut missed = Missed::default();
        if !self.files.is_empty() {
            // No program is to blame for this one.
            std::fs::create_dir_all(into).with_context(|| format!("cannot make {}", into.display()))?;
        }
        for change in &self.files {
            if let Some(why) = copy(sandbox, change, into).await? {
                missed.add(change, why);
            }
        }
        for change in &self.others {
            let kind = change.to.as_ref().map_or("gone", |to| to.kind);
            missed.add(change, format!("it is no file but a {kind}"));
        }
        Ok(missed)
    }

    /// Tells it beside all else that is told of a run.
    pub(super) fn put_into(&self, told: &mut Value) {
        let mut bytes = 0;
        let some = self.files.iter().take(LEFT_TOLD_MAX).take_while(|change| {
            bytes += change.path.len();
            bytes <= LEFT_TOLD_BYTES_MAX
        });
        let left = some.map(|change| {
            let to = change.to.as_ref();
            let what = if change.from.is_some() { "changed" } else { "added" };
            json!({ "path": String::from_utf8_lossy(&change.path), "bytes": to.map(|to| to.bytes), "change": what })
        });
        told["left"] = left.collect();
        told["left_count"] = self.files.len().into();
        if let Some(missed) = &self.missed {
            let named = missed.named.iter().map(|(path, why)| json!({ "path": path, "why": why }));
            told["not_copied"] = named.collect();
            told["not_copied_count"] = missed.count.into();
        }
    }

    /// How many files, and how large; nothing if there are none.
    pub(super) fn in_words(&self) -> String {
        let bytes: u64 = self.files.iter().filter_map(|change| change.to.as_ref()).map(|to| to.bytes).sum();
        match self.files.len() {
            0 => String::new(),
            count => format!("{}, {}", words::count(count, "file", "files"), words::size(bytes)),
        }
    }

    /// A sentence for a person: what was copied; nothing if nothing was.
    pub(super) fn copied_in_words(&self, into: &Path) -> Option<String> {
        // What is no file is always missed.
        let missed = self.missed.as_ref()?.count - self.others.len();
        let (left, into) = (self.in_words(), into.display());
        match self.files.len() - missed {
            0 => None,
            _ if missed == 0 => Some(format!("{left} left behind, now in {into}")),
            copied => Some(format!("{left} left behind, {copied} of them now in {into}")),
        }
    }

    /// Sentences for a person: what was not copied, and why.
    pub(super) fn missed_in_words(&self) -> Vec<String> {
        let Some(missed) = &self.missed else { return Vec::new() };
        let said = missed.named.iter().take(MISSED_SAID_MAX);
        let mut sentences: Vec<String> = said
            .map(|(path, why)| {
                let (path, why) = (shortened(path, PATH_SAID_CHARS), shortened(why, 2 * PATH_SAID_CHARS));
                format!("{path} is not copied: {why}")
            })
            .collect();
        match missed.count - sentences.len() {
            0 => {}
            more => sentences.push(format!("{more} more are not copied")),
        }
        sentences
    }
}

impl Missed {
    fn add(&mut self, change: &Difference, why: String) {
        self.count += 1;
        if self.named.len() < LEFT_TOLD_MAX {
            let path = String::from_utf8_lossy(&change.path);
            self.named.push((shortened(&path, PATH_TOLD_CHARS).into_owned(), why));
        }
    }
}

/// Whether it is a file that was added or whose content is another.
fn is_file(change: &Difference) -> bool {
    let is_file = change.to.as_ref().is_some_and(|thing| thing.kind == "file");
    is_file && (change.from.is_none() || change.what.contains(&"content"))
}

/// Whether it was added, or is another one, and is neither a file nor a directory.
fn is_other(change: &Difference) -> bool {
    let is_other = change.to.as_ref().is_some_and(|thing| !matches!(thing.kind, "file" | "directory"));
    is_other && (change.from.is_none() || change.what.iter().any(|what| matches!(*what, "kind" | "target")))
}

/// Copies one file. Why it was not copied, if it was not; an error if no other can be, either.
async fn copy(sandbox: &Sandbox, change: &Difference, into: &Path) -> Result<Option<String>> {
    let Ok(path) = std::str::from_utf8(&change.path) else {
        return Ok(Some("its name is no UTF-8".to_owned()));
    };
    let inside: PathBuf =
        Path::new(path).components().filter(|part| matches!(part, Component::Normal(_))).collect();
    let to = into.join(inside);
    if let Some(Err(e)) = to.parent().map(std::fs::create_dir_all) {
        return Ok(Some(format!("cannot make its directory: {e}")));
    }
    match sandbox.copy_out(path, &to).await {
        Ok(()) => Ok(None),
        Err(e) if matches!(e.kind(), ErrorKind::Gone | ErrorKind::Unreachable) => Err(e.into()),
        Err(e) => Ok(Some(output::sentence(&e.into()))),
    }
}
