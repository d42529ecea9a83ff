//! What files held when they were last seen, for showing what changed in them.

use std::collections::BTreeMap;

use crate::changes::{ChangeKind, FileChange};
use crate::limits::VIEW_TEXTS_BYTES_MAX;

/// Texts of files, by path. Bounded: what does not fit is not remembered.
#[derive(Debug, Default)]
pub(super) struct Texts {
    texts: BTreeMap<String, String>,
    bytes: usize,
}

impl Texts {
    /// What the file held before, and what it holds now, if both are known. A new file held nothing.
    pub(super) fn turn(&mut self, change: &FileChange) -> Option<(String, String)> {
        let before = self.texts.remove(&change.path);
        self.bytes -= before.as_ref().map_or(0, String::len);
        let now = change.now.as_ref().and_then(|now| now.text.clone())?;
        if self.bytes + now.len() <= VIEW_TEXTS_BYTES_MAX {
            self.bytes += now.len();
            self.texts.insert(change.path.clone(), now.clone());
        }
        match (before, change.change) {
            (Some(before), _) => Some((before, now)),
            (None, ChangeKind::Added) => Some((String::new(), now)),
            (None, _) => None,
        }
    }
}
