//! The blob store: payloads that are too long for a line, or not text, named by their hash.
//!
//! All traces of one home share it, so that the same output is kept once. A blob is written under another
//! name and then renamed: it is there as a whole or not at all. It is always written before the line that
//! names it.
//!
//! Writers and `prune` take no lock against each other. A writer that finds its blob present renews the
//! blob's time and then looks again; `prune` first moves an old blob away and then looks at its time. Whoever
//! comes second sees what the first did, so no line names a blob that was just swept.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, ErrorKind, Result};
use crate::hash::Hash;
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::payload::{BlobName, Content};

/// What the names of unfinished and of doomed blobs begin with.
const TEMPORARY: &str = ".new-";

/// A blob store.
#[derive(Debug, Clone)]
pub struct Blobs {
    dir: PathBuf,
}

/// What was found of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlobState {
    Good,
    Missing,
    Changed,
}

/// What a sweep removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    pub(crate) blobs: u64,
    pub(crate) bytes: u64,
}

impl Blobs {
    /// The store in this directory, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Blobs { dir: dir.into() }
    }

    /// The bytes of a content, checked against their hash, at most `PAYLOAD_BYTES_MAX`.
    pub fn read(&self, content: &Content) -> Result<Vec<u8>> {
        match content {
            Content::Text(text) => Ok(text.clone().into_bytes()),
            Content::Bytes(bytes) => Ok(bytes.clone()),
            Content::Blob(name) => self.get(name),
        }
    }

    fn get(&self, name: &BlobName) -> Result<Vec<u8>> {
        if name.bytes > PAYLOAD_BYTES_MAX as u64 {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("load blob {}: {} bytes", name.hash, name.bytes),
            ));
        }
        let path = self.path(&name.hash);
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(name.bytes + 1).read_to_end(&mut bytes))
            .map_err(|e| Error::io("read blob", &path, e))?;
        if bytes.len() as u64 != name.bytes || Hash::of(&bytes) != name.hash {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("use blob {}: it was changed", path.display()),
            ));
        }
        Ok(bytes)
    }

    /// Makes sure that these bytes are in the store.
    pub(crate) fn put(&self, bytes: &[u8]) -> Result<BlobName> {
        let name = BlobName { hash: Hash::of(bytes), bytes: bytes.len() as u64 };
        let path = self.path(&name.hash);
        if renew(&path, name.bytes) {
            return Ok(name);
        }
        let folder = self.folder(&name.hash);
        let temporary = folder.join(temporary_name());
        create_file(&folder, &temporary)
            .and_then(|mut file| file.write_all(bytes))
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(|e| {
                let _ = fs::remove_file(&temporary);
                Error::io("write blob", &path, e)
            })?;
        Ok(name)
    }

    /// Whether a blob is there and is what its name says, without loading it.
    pub(crate) fn check(&self, name: &BlobName) -> Result<BlobState> {
        let path = self.path(&name.hash);
        let failed = |e| Error::io("read blob", &path, e);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BlobState::Missing),
            Err(e) => return Err(failed(e)),
        };
        if file.metadata().map_err(failed)?.len() != name.bytes {
            return Ok(BlobState::Changed);
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file.take(name.bytes)).map_err(failed)?;
        let same = Hash::from(hasher.finalize()) == name.hash;
        Ok(if same { BlobState::Good } else { BlobState::Changed })
    }

    /// Calls `visit` with each blob's hash and length.
    pub(crate) fn each(&self, visit: &mut dyn FnMut(Hash, u64)) -> Result<()> {
        self.each_file(&mut |hash, path| {
            if let (Some(hash), Ok(meta)) = (hash, path.metadata()) {
                visit(hash, meta.len());
            }
        })
    }

    /// Removes the blobs that `keep` does not want, and what dead writers left, unless younger than
    /// `age_min`.
    pub(crate) fn sweep(&self, age_min: Duration, keep: &dyn Fn(&Hash) -> bool) -> Result<Swept> {
        let mut swept = Swept::default();
        self.each_file(&mut |hash, path| {
            if hash.is_some_and(|hash| keep(&hash)) || !older_than(path, age_min) {
                return;
            }
            if let Some(bytes) = remove_unless_renewed(path, age_min)
                && hash.is_some()
            {
                swept.blobs += 1;
                swept.bytes += bytes;
            }
        })?;
        Ok(swept)
    }

    /// Calls `visit` with each file of the store; those that are not (or not yet) blobs have no hash.
    fn each_file(&self, visit: &mut dyn FnMut(Option<Hash>, &Path)) -> Result<()> {
        for folder in entries(&self.dir)? {
            let Some(start) = file_name(&folder).filter(|name| name.len() == 2) else { continue };
            for path in entries(&folder)? {
                let Some(rest) = file_name(&path) else { continue };
                let hash = Hash::parse(&format!("{start}{rest}"));
                if hash.is_some() || rest.starts_with(TEMPORARY) {
                    visit(hash, &path);
                }
            }
        }
        Ok(())
    }

    fn folder(&self, hash: &Hash) -> PathBuf {
        self.dir.join(&hash.to_string()[..2])
    }

    fn path(&self, hash: &Hash) -> PathBuf {
        self.folder(hash).join(&hash.to_string()[2..])
    }
}

/// Creates a directory, and those above it, for the owner alone.
pub(crate) fn create_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Makes a blob look new, so that `prune` leaves it. False if it is not there, or not as a whole.
fn renew(path: &Path, bytes: u64) -> bool {
    let renewed = File::open(path).and_then(|file| {
        file.set_modified(SystemTime::now())?;
        file.metadata()
    });
    // It is looked up again by name because `prune` may have moved it away before its time was renewed.
    renewed.is_ok_and(|meta| meta.len() == bytes) && path.exists()
}

fn create_file(folder: &Path, path: &Path) -> io::Result<File> {
    let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match create() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            create_dir(folder)?;
            create()
        }
        result => result,
    }
}

/// A name that no other writer uses, whatever pid namespace it lives in.
fn temporary_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{TEMPORARY}{}-{nanos}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn older_than(path: &Path, age_min: Duration) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|meta| meta.modified());
    modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age >= age_min))
}

/// Removes a file; its length if it is gone now. The order of the steps is what the module's doc argues with.
fn remove_unless_renewed(path: &Path, age_min: Duration) -> Option<u64> {
    let doomed = path.with_file_name(temporary_name());
    fs::rename(path, &doomed).ok()?;
    if !older_than(&doomed, age_min) {
        let _ = fs::rename(&doomed, path);
        return None;
    }
    let bytes = fs::symlink_metadata(&doomed).ok()?.len();
    fs::remove_file(&doomed).ok().map(|()| bytes)
}

/// What is in a directory; nothing if it does not exist.
fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries
            .map(|entry| entry.map(|entry| entry.path()).map_err(|e| Error::io("list", dir, e)))
            .collect(),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(e) => Err(Error::io("list", dir, e)),
    }
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn store() -> (tempfile::TempDir, Blobs) {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(dir.path().join("blobs"));
        (dir, blobs)
    }

    #[test]
    fn a_blob_reads_back_and_is_for_the_owner_alone() {
        let (_dir, blobs) = store();
        let name = blobs.put(b"\xff\x00glass").unwrap();
        assert_eq!(blobs.read(&Content::Blob(name)).unwrap(), b"\xff\x00glass");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&blobs.path(&name.hash)), 0o600);
        assert_eq!(mode(&blobs.folder(&name.hash)), 0o700);
        assert_eq!(mode(&blobs.dir), 0o700);
    }

    #[test]
    fn a_present_blob_is_renewed_and_not_rewritten() {
        use std::os::unix::fs::MetadataExt;
        let (_dir, blobs) = store();
        let path = blobs.path(&blobs.put(b"glass").unwrap().hash);
        File::open(&path).unwrap().set_modified(UNIX_EPOCH).unwrap();
        let before = path.metadata().unwrap();
        blobs.put(b"glass").unwrap();
        let after = path.metadata().unwrap();
        assert_eq!(before.ino(), after.ino());
        assert!(after.modified().unwrap() > UNIX_EPOCH);
    }

    #[test]
    fn a_blob_that_was_cut_short_is_written_again() {
        let (_dir, blobs) = store();
        let name = blobs.put(b"glass").unwrap();
        fs::write(blobs.path(&name.hash), b"gla").unwrap();
        assert_eq!(blobs.check(&name).unwrap(), BlobState::Changed);
        assert_eq!(blobs.read(&Content::Blob(name)).unwrap_err().kind, ErrorKind::Corrupt);
        blobs.put(b"glass").unwrap();
        assert_eq!(blobs.check(&name).unwrap(), BlobState::Good);
    }

    #[test]
    fn a_blob_renewed_after_the_sweep_looked_at_it_stays() {
        let (_dir, blobs) = store();
        let name = blobs.put(b"glass").unwrap();
        let path = blobs.path(&name.hash);
        assert_eq!(remove_unless_renewed(&path, Duration::from_secs(60)), None);
        assert_eq!(blobs.check(&name).unwrap(), BlobState::Good);
    }

    #[test]
    fn a_blob_larger_than_any_may_be_is_not_loaded() {
        let (_dir, blobs) = store();
        let name = BlobName { hash: Hash::ZERO, bytes: u64::MAX };
        assert_eq!(blobs.read(&Content::Blob(name)).unwrap_err().kind, ErrorKind::TooLarge);
    }
}
