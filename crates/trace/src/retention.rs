//! Retention: removes the oldest traces, and then the blobs that no trace names any more.
//!
//! What goes is decided from a list made beforehand (which traces there are, how long they are, which blobs
//! each of them names), so that removing a trace is charged with the blobs that only it named. Blobs that
//! were written or named again during the last hour stay, because their line may still be to come.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::blobs::Blobs;
use crate::error::{Error, ErrorKind, Result};
use crate::hash::Hash;
use crate::limits::BLOB_AGE_MIN;
use crate::line::blobs_named;
use crate::reader::{RawLine, RawLines};
use crate::writer::FILE;

/// What is kept. Traces of boxes that still live are kept in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// How many traces.
    pub traces_max: usize,
    /// How many bytes of traces and blobs together.
    pub bytes_max: u64,
}

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The ids of the traces.
    pub traces: Vec<String>,
    /// How many blobs.
    pub blobs: u64,
    /// How many bytes of both.
    pub bytes: u64,
}

/// A trace, as far as this module cares.
struct Entry {
    id: String,
    dir: PathBuf,
    modified: SystemTime,
    bytes: u64,
    blobs: HashSet<Hash>,
}

/// Removes the oldest traces for which `is_live` is false until what is left fits `keep`, and then unnamed
/// blobs.
///
/// Nothing is removed if a trace cannot be read, for then nobody knows which blobs it names.
pub fn prune(
    traces_dir: &Path,
    blobs_dir: &Path,
    keep: Retention,
    is_live: &dyn Fn(&str) -> bool,
) -> Result<Pruned> {
    prune_older(traces_dir, blobs_dir, keep, is_live, BLOB_AGE_MIN)
}

fn prune_older(
    traces_dir: &Path,
    blobs_dir: &Path,
    keep: Retention,
    is_live: &dyn Fn(&str) -> bool,
    blob_age_min: Duration,
) -> Result<Pruned> {
    let store = Blobs::new(blobs_dir);
    let mut sizes = HashMap::new();
    store.each(&mut |hash, bytes| {
        sizes.insert(hash, bytes);
    })?;
    let mut entries = list(traces_dir)?;
    entries.sort_by(|a, b| (a.modified, &a.id).cmp(&(b.modified, &b.id)));

    let mut pruned = Pruned::default();
    let mut uses: HashMap<Hash, u64> = HashMap::new();
    entries.iter().flat_map(|entry| &entry.blobs).for_each(|hash| *uses.entry(*hash).or_default() += 1);
    let named = |uses: &HashMap<Hash, u64>, hash: &Hash| uses.get(hash).is_some_and(|&count| count > 0);
    let mut count = entries.len();
    let blob_bytes = sizes.iter().filter(|(hash, _)| named(&uses, hash)).map(|(_, bytes)| bytes).sum::<u64>();
    let mut bytes = blob_bytes + entries.iter().map(|entry| entry.bytes).sum::<u64>();
    for entry in &entries {
        if count <= keep.traces_max && bytes <= keep.bytes_max {
            break;
        }
        if is_live(&entry.id) || !remove(entry)? {
            continue;
        }
        count -= 1;
        bytes -= entry.bytes;
        pruned.bytes += entry.bytes;
        pruned.traces.push(entry.id.clone());
        for hash in &entry.blobs {
            let Some(count) = uses.get_mut(hash) else { continue };
            *count -= 1;
            if *count == 0 {
                bytes -= sizes.get(hash).copied().unwrap_or(0);
            }
        }
    }

    let swept = store.sweep(blob_age_min, &|hash| named(&uses, hash))?;
    pruned.blobs = swept.blobs;
    pruned.bytes += swept.bytes;
    Ok(pruned)
}

fn list(traces_dir: &Path) -> Result<Vec<Entry>> {
    let failed = |e| Error::io("list", traces_dir, e);
    let dirs = match fs::read_dir(traces_dir) {
        Ok(dirs) => dirs,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(e)),
    };
    let mut entries = Vec::new();
    for dir in dirs {
        let dir = dir.map_err(failed)?;
        // A link is not ours, and what it leads to even less.
        if !dir.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let Ok(id) = dir.file_name().into_string() else { continue };
        entries.push(entry(id, dir.path())?);
    }
    Ok(entries)
}

fn entry(id: String, dir: PathBuf) -> Result<Entry> {
    let meta = fs::metadata(dir.join(FILE));
    let bytes = meta.as_ref().map_or(0, fs::Metadata::len);
    let modified =
        meta.or_else(|_| fs::metadata(&dir)).and_then(|meta| meta.modified()).unwrap_or(UNIX_EPOCH);
    let mut blobs = HashSet::new();
    match RawLines::open(&dir) {
        // A directory without a trace in it: a removal that was interrupted.
        Err(e) if e.kind == ErrorKind::NotFound => {}
        Err(e) => return Err(e),
        Ok(mut lines) => loop {
            match lines.next().map_err(|e| Error::io("read", &lines.path, e))? {
                RawLine::Whole(line) => blobs.extend(blobs_named(&line).iter().map(|blob| blob.hash)),
                RawLine::TooLong => {
                    let message = format!("prune {}: a line is longer than any may be", lines.path.display());
                    return Err(Error::new(ErrorKind::Corrupt, message));
                }
                RawLine::Torn | RawLine::End => break,
            }
        },
    }
    Ok(Entry { id, dir, modified, bytes, blobs })
}

/// Removes a trace; false if somebody is writing to it right now.
fn remove(entry: &Entry) -> Result<bool> {
    let path = entry.dir.join(FILE);
    // Held until the file is gone: a writer that waits for the lock then sees that it was removed.
    let lock = match File::open(&path) {
        Ok(file) => Some(file),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(Error::io("open", &path, e)),
    };
    if let Some(file) = &lock {
        if file.try_lock().is_err() {
            return Ok(false);
        }
        fs::remove_file(&path).map_err(|e| Error::io("remove", &path, e))?;
    }
    fs::remove_dir_all(&entry.dir).map_err(|e| Error::io("remove", &entry.dir, e))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::payload::Payload;
    use crate::verify::verify;
    use crate::writer::{Settings, Writer};

    struct Home(tempfile::TempDir);

    impl Home {
        fn new() -> Self {
            Home(tempfile::tempdir().unwrap())
        }

        fn traces(&self) -> PathBuf {
            self.0.path().join("traces")
        }

        fn blobs(&self) -> PathBuf {
            self.0.path().join("blobs")
        }

        /// A trace with these payloads, which are long enough to be blobs; `age` orders the traces.
        fn trace(&self, id: &str, age_seconds: u64, payloads: &[u8]) {
            let dir = self.traces().join(id);
            let settings = Settings { dir: dir.clone(), blobs: self.blobs(), ..Settings::default() };
            let mut writer = Writer::open(settings).unwrap();
            for &byte in payloads {
                writer.append(Event::Stdin { exec: 1, payload: Payload::whole(vec![byte; 5000]) }).unwrap();
            }
            let time = SystemTime::now() - Duration::from_secs(age_seconds);
            File::open(dir.join(FILE)).unwrap().set_modified(time).unwrap();
        }

        fn prune(&self, keep: Retention, live: &[&str], blob_age_min: Duration) -> Pruned {
            prune_older(&self.traces(), &self.blobs(), keep, &|id| live.contains(&id), blob_age_min).unwrap()
        }
    }

    fn traces_max(traces_max: usize) -> Retention {
        Retention { traces_max, bytes_max: u64::MAX }
    }

    #[test]
    fn the_oldest_traces_of_boxes_that_are_gone_are_removed() {
        let home = Home::new();
        for (id, age) in [("old", 30), ("live", 40), ("older", 35), ("new", 10)] {
            home.trace(id, age, b"");
        }
        let pruned = home.prune(traces_max(2), &["live"], Duration::ZERO);
        assert_eq!(pruned.traces, ["older", "old"]);
        assert!(home.traces().join("live").exists() && home.traces().join("new").exists());
    }

    #[test]
    fn only_blobs_that_no_trace_names_are_removed() {
        let home = Home::new();
        home.trace("old", 30, b"ab");
        home.trace("new", 10, b"bc");
        let pruned = home.prune(traces_max(1), &[], Duration::ZERO);
        assert_eq!((pruned.traces, pruned.blobs), (vec!["old".to_owned()], 1));
        assert!(verify(&home.traces().join("new"), &home.blobs()).unwrap().ok);
    }

    #[test]
    fn young_blobs_are_left() {
        let home = Home::new();
        home.trace("old", 30, b"ab");
        assert_eq!(home.prune(traces_max(0), &[], BLOB_AGE_MIN).blobs, 0);
        assert_eq!(home.prune(traces_max(0), &[], Duration::ZERO).blobs, 2);
    }

    #[test]
    fn the_bytes_of_blobs_count() {
        let home = Home::new();
        home.trace("old", 30, b"ab");
        home.trace("new", 10, b"bc");
        let keep = Retention { traces_max: 10, bytes_max: 14_000 };
        assert_eq!(home.prune(keep, &[], Duration::ZERO).traces, ["old"]);
        assert_eq!(home.prune(keep, &[], Duration::ZERO), Pruned::default());
    }

    #[test]
    fn a_trace_that_is_being_written_is_left() {
        let home = Home::new();
        home.trace("busy", 30, b"");
        let file = File::open(home.traces().join("busy").join(FILE)).unwrap();
        file.lock().unwrap();
        assert_eq!(home.prune(traces_max(0), &[], Duration::ZERO), Pruned::default());
    }

    #[test]
    fn what_an_interrupted_removal_left_is_removed() {
        let home = Home::new();
        fs::create_dir_all(home.traces().join("half")).unwrap();
        assert_eq!(home.prune(traces_max(0), &[], Duration::ZERO).traces, ["half"]);
        assert!(!home.traces().join("half").exists());
    }

    #[test]
    fn a_home_without_traces_has_nothing_to_prune() {
        let home = Home::new();
        assert_eq!(home.prune(traces_max(0), &[], Duration::ZERO), Pruned::default());
    }
}
