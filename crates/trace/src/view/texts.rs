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
    /// The box's state was kept, or replaced by an earlier one: what files hold then is not known.
    pub(super) fn state(&mut self, what: &str) {
        if matches!(what, "reset" | "restore") {
            *self = Texts::default();
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::FileFacts;

    fn change(kind: ChangeKind, text: &str) -> FileChange {
        let now = FileFacts { text: Some(text.to_owned()), ..FileFacts::default() };
        FileChange { path: "/a".to_owned(), change: kind, now: Some(now) }
    }

    #[test]
    fn what_was_undone_is_not_what_was_there_before() {
        let mut texts = Texts::default();
        let turned = |before: &str, now: &str| Some((before.to_owned(), now.to_owned()));
        assert_eq!(texts.turn(&change(ChangeKind::Added, "one")), turned("", "one"));
        texts.state("snapshot");
        assert_eq!(texts.turn(&change(ChangeKind::Changed, "two")), turned("one", "two"));
        texts.state("reset");
        assert_eq!(texts.turn(&change(ChangeKind::Added, "two")), turned("", "two"));
        texts.state("restore");
        assert_eq!(texts.turn(&change(ChangeKind::Changed, "three")), None);
    }
}
