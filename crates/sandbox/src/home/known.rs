//! Records of boxes that were read or written a moment ago: to take one apart takes longer than all else that is asked of it.
//!
//! A record is replaced by another file and never written over, so it is what it was as long as its file is the same one. Whether it
//! is, the file system says each time: nothing here is believed, and other processes write as they like.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use glasshouse_linux::handle::Handle;

use super::BoxRecord;

/// Boxes whose records are kept. With more, all are forgotten: whoever has so many does not look at one again and again.
const KEPT_MAX: usize = 256;

/// The file that a record is in. Somebody may have written over it by hand, so its length and time count, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    handle: Handle,
    length: u64,
    written: (i64, i64),
}

impl Seen {
    /// What the name leads to now. `None` where the file system cannot tell files apart.
    pub(super) fn at(path: &Path) -> Option<Seen> {
        let meta = fs::symlink_metadata(path).ok()?;
        let handle = Handle::of(path).ok()?;
        Some(Seen { handle, length: meta.len(), written: (meta.mtime(), meta.mtime_nsec()) })
    }
}

/// All that are kept, by the ids of their boxes.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<String, (Seen, BoxRecord)>>);

impl Known {
    fn all(&self) -> MutexGuard<'_, HashMap<String, (Seen, BoxRecord)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of a box that was last seen in this file.
    pub(super) fn get(&self, id: &str, seen: &Seen) -> Option<BoxRecord> {
        self.all().get(id).filter(|(last, _)| last == seen).map(|(_, record)| record.clone())
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.all().contains_key(id)
    }

    pub(super) fn keep(&self, id: &str, seen: Seen, record: BoxRecord) {
        let mut all = self.all();
        if all.len() >= KEPT_MAX && !all.contains_key(id) {
            all.clear();
        }
        all.insert(id.to_owned(), (seen, record));
    }

    pub(super) fn forget(&self, id: &str) {
        self.all().remove(id);
    }
}
