//! A layer as the copy of a live top.
//!
//! The top is frozen while it is copied, and runs on afterwards. Everything in it comes over: contents with
//! their holes, hard links, whiteouts, overlayfs's own marks, owners, modes, times and attributes. A file
//! that did not change since the copy before is not copied again: the new layer gets a hard link to the older
//! layer's, which nobody changes.
//!
//! Whether a file changed is seen by its times, as the [`Record`] of the copy before has them. Times can lie
//! in two ways, and neither kind of file is recorded: one that changed in the very tick of the copy may
//! change again within it, and one that is mapped for writing is written without the kernel looking.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime};

use glasshouse_linux::layer::{self, Copier, Moved, Spot, Way};
use glasshouse_linux::reach::Reach;
use glasshouse_linux::rustix::fs::{FileType, Mode, Stat, fstat, mkdirat};
use glasshouse_linux::rustix::io::Errno;

use super::id_in_box;
use crate::error::{Context, Error, ErrorKind, Result};

/// Files, directories and everything else in one layer.
pub(crate) const ENTRIES_MAX: usize = 2_000_000;
/// Directories inside one another in a layer.
pub(crate) const DEPTH_MAX: usize = 2048;
/// What changed later than so long before the copy is not recorded. Longer than any kernel's tick.
const TICK_MAX: Duration = Duration::from_millis(100);

/// The copy before, of the same top.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared<'a> {
    /// The root of the layer it made.
    pub(crate) tree: BorrowedFd<'a>,
    /// What it wrote down.
    pub(crate) record: &'a Record,
}

/// How contents came over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// All of them by sharing blocks.
    Reflink,
    /// Byte by byte.
    Copy,
}

/// A finished copy.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) method: Method,
    /// Regular files, by name.
    pub(crate) files: u64,
    /// Bytes of content that were read and written, or cloned.
    pub(crate) bytes_copied: u64,
    /// Bytes of content that the copy before had already.
    pub(crate) bytes_shared: u64,
    /// For the next copy.
    pub(crate) record: Record,
}

/// What the files of a top were when they were copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Record(HashMap<Key, Seen>);

/// A hash of a file's way: as good as the way, and never long.
type Key = [u8; KEY_BYTES];
const KEY_BYTES: usize = 16;

/// All that changes when a file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    ino: u64,
    size: u64,
    ctime: (i64, u32),
    mtime: (i64, u32),
}

/// What is copied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Original<'a> {
    pub(crate) tree: BorrowedFd<'a>,
    pub(crate) reach: &'a Reach,
    /// The user and group that are 0 in the copy; see [`id_in_box`].
    pub(crate) first_id: u32,
    /// Its contents have no more bytes than this, or they grow under our eyes.
    pub(crate) bytes_max: u64,
}

/// Makes the empty directory `into` the copy of the frozen tree `from`. After an error the caller removes
/// `into`.
pub(crate) fn copy(from: Original<'_>, into: BorrowedFd<'_>, share: Option<Shared<'_>>) -> Result<Copied> {
    copy_at(SystemTime::now(), from, into, share)
}

/// The same, at a time that the caller names.
fn copy_at(
    now: SystemTime,
    from: Original<'_>,
    into: BorrowedFd<'_>,
    share: Option<Shared<'_>>,
) -> Result<Copied> {
    let shows = layer::mapped_writes_show(from.tree).context("look at the file system of a top")?;
    let until = (now - TICK_MAX).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut work = Work {
        from,
        into,
        share,
        record_until: shows.then_some((until.as_secs() as i64, until.subsec_nanos())),
        copier: Copier::bounded(from.bytes_max),
        links: HashMap::new(),
        entries: 0,
        done: Copied {
            method: Method::Copy,
            files: 0,
            bytes_copied: 0,
            bytes_shared: 0,
            record: Record::default(),
        },
    };
    let mut tasks = vec![Task::Enter(Way::default(), Key::default())];
    while let Some(task) = tasks.pop() {
        match task {
            Task::Enter(way, key) => {
                tasks.push(Task::Leave(way.clone()));
                work.enter(&way, &key, &mut tasks)?;
            }
            Task::Leave(way) => work.leave(&way)?,
        }
    }
    Ok(work.done)
}

/// A directory gets its attributes last: what is put into it changes its times.
enum Task {
    Enter(Way, Key),
    Leave(Way),
}

struct Work<'a> {
    from: Original<'a>,
    into: BorrowedFd<'a>,
    share: Option<Shared<'a>>,
    /// Files that changed before this may be recorded. `None`: times say nothing here.
    record_until: Option<(i64, u32)>,
    copier: Copier,
    /// Where files with several names came to lie first, by their inodes in the top.
    links: HashMap<u64, First>,
    entries: usize,
    done: Copied,
}

/// The first name of a file that has several.
struct First {
    way: Way,
    name: CString,
    recorded: bool,
}

/// One directory at work.
struct Place<'a> {
    way: &'a Way,
    from: OwnedFd,
    into: OwnedFd,
    /// The same directory in the copy before.
    before: Option<OwnedFd>,
}

impl Original<'_> {
    /// As the box sees it.
    fn owned(&self, mut stat: Stat) -> Stat {
        stat.st_uid = id_in_box(stat.st_uid, self.first_id);
        stat.st_gid = id_in_box(stat.st_gid, self.first_id);
        stat
    }
}

impl Work<'_> {
    fn enter(&mut self, way: &Way, key: &Key, tasks: &mut Vec<Task>) -> Result<()> {
        if way.depth() > DEPTH_MAX {
            return Err(too_deep(way));
        }
        let (from, into) = self.open_both(way)?;
        let reach = self.from.reach;
        let before = self.share.and_then(|share| layer::open_dir(reach, share.tree, way).ok());
        let place = Place { way, from, into, before };
        let names = layer::entries(reach, place.from.as_fd(), ENTRIES_MAX - self.entries)
            .map_err(|e| failed("read the directory", way, e))?;
        self.entries += names.len();
        if self.entries > ENTRIES_MAX {
            return Err(too_many());
        }
        for (name, kind) in names {
            if kind == FileType::Directory {
                mkdirat(&place.into, name.as_c_str(), Mode::RWXU)
                    .map_err(|e| failed("make the directory", &way.join(&name), e.into()))?;
                tasks.push(Task::Enter(way.join(&name), key_below(key, &name)));
            } else {
                self.one(&place, &name, key)?;
            }
        }
        Ok(())
    }

    fn leave(&mut self, way: &Way) -> Result<()> {
        let (from, into) = self.open_both(way)?;
        let stat = self.from.owned(fstat(&from).context("look at a directory")?);
        let (from, into) = (Spot::Open(from.as_fd()), Spot::Open(into.as_fd()));
        self.copier
            .attributes(self.from.reach, from, into, &stat, |_| true)
            .map_err(|e| failed("copy the attributes of", way, e))
    }

    fn open_both(&self, way: &Way) -> Result<(OwnedFd, OwnedFd)> {
        let Original { tree, reach, .. } = self.from;
        let from = layer::open_dir(reach, tree, way).map_err(|e| failed("read the directory", way, e))?;
        let into = layer::open_dir(reach, self.into, way).map_err(|e| failed("open the copy of", way, e))?;
        Ok((from, into))
    }

    /// Copies what is no directory.
    fn one(&mut self, place: &Place<'_>, name: &CStr, dir_key: &Key) -> Result<()> {
        let here = |e| failed("copy", &place.way.join(name), e);
        let stat = self.from.owned(layer::stat(self.from.reach, place.from.as_fd(), name).map_err(here)?);
        let regular = layer::kind(&stat) == FileType::RegularFile;
        let key = key_below(dir_key, name);
        self.done.files += u64::from(regular);
        if stat.st_nlink > 1 && self.linked(place, name, &stat, key)? {
            return Ok(());
        }
        if !regular {
            self.other(place, name, &stat).map_err(here)?;
        } else if self.shared(place, name, &stat, &key) {
            self.done.bytes_shared += stat.st_size as u64;
            self.done.record.0.insert(key, Seen::of(&stat));
        } else {
            self.content(place, name, &stat, key)?;
        }
        if stat.st_nlink > 1 {
            let recorded = self.done.record.0.contains_key(&key);
            let first = First { way: place.way.clone(), name: name.to_owned(), recorded };
            self.links.insert(stat.st_ino, first);
        }
        Ok(())
    }

    /// Gives the file that was copied under another name this one too.
    fn linked(&mut self, place: &Place<'_>, name: &CStr, stat: &Stat, key: Key) -> Result<bool> {
        let Some(first) = self.links.get(&stat.st_ino) else { return Ok(false) };
        let here = |e| failed("link", &place.way.join(name), e);
        let reach = self.from.reach;
        let dir = layer::open_dir(reach, self.into, &first.way).map_err(here)?;
        match reach.link(dir.as_fd(), &first.name, place.into.as_fd(), name) {
            Ok(()) => {
                // A further name is recorded when the first was.
                if first.recorded {
                    self.done.record.0.insert(key, Seen::of(stat));
                }
                Ok(true)
            }
            // This file system allows fewer names than the other; a fresh copy takes the next ones.
            Err(Errno::MLINK) => Ok(false),
            Err(e) => Err(here(e.into())),
        }
    }

    /// Links, pipes, sockets, whiteouts.
    fn other(&mut self, place: &Place<'_>, name: &CStr, stat: &Stat) -> std::io::Result<()> {
        let (from, into) = (place.from.as_fd(), place.into.as_fd());
        let reach = self.from.reach;
        layer::create_other(reach, from, into, name, stat)?;
        self.copier.attributes(reach, Spot::Named(from, name), Spot::Named(into, name), stat, |_| true)
    }

    /// Takes the file from the copy before, if it is still the same. Whatever speaks against it means a fresh
    /// copy.
    fn shared(&mut self, place: &Place<'_>, name: &CStr, stat: &Stat, key: &Key) -> bool {
        let (Some(share), Some(before)) = (self.share, &place.before) else { return false };
        if share.record.0.get(key) != Some(&Seen::of(stat)) {
            return false;
        }
        // A link shares all that hangs on the file, so all of it must be as it is to be.
        let same = |old: &Stat| {
            (old.st_mode, old.st_uid, old.st_gid, old.st_size)
                == (stat.st_mode, stat.st_uid, stat.st_gid, stat.st_size)
                && (old.st_mtime, old.st_mtime_nsec) == (stat.st_mtime, stat.st_mtime_nsec)
        };
        let reach = self.from.reach;
        layer::stat(reach, before.as_fd(), name).is_ok_and(|old| same(&old))
            && reach.link(before.as_fd(), name, place.into.as_fd(), name).is_ok()
    }

    fn content(&mut self, place: &Place<'_>, name: &CStr, stat: &Stat, key: Key) -> Result<()> {
        let here = |e| failed("copy", &place.way.join(name), e);
        let reach = self.from.reach;
        let from = layer::open_file(reach, place.from.as_fd(), name)
            .map_err(|e| failed("read the content of", &place.way.join(name), e))?;
        let into = layer::create_file(place.into.as_fd(), name).map_err(here)?;
        match self.copier.content(from.as_fd(), into.as_fd(), stat).map_err(here)? {
            Moved::Cloned => {
                self.done.method = Method::Reflink;
                self.done.bytes_copied += stat.st_size as u64;
            }
            Moved::Copied(bytes) => {
                self.done.bytes_copied += bytes;
                // Clones first, then never again: at the least this one was copied.
                if bytes > 0 {
                    self.done.method = Method::Copy;
                }
            }
        }
        self.copier
            .attributes(reach, Spot::Open(from.as_fd()), Spot::Open(into.as_fd()), stat, |_| true)
            .map_err(|e| failed("copy the attributes of", &place.way.join(name), e))?;
        let changed = (stat.st_ctime, stat.st_ctime_nsec as u32);
        if self.record_until.is_some_and(|until| changed < until) && layer::nobody_writes(from.as_fd()) {
            self.done.record.0.insert(key, Seen::of(stat));
        }
        Ok(())
    }
}

impl Seen {
    fn of(stat: &Stat) -> Seen {
        Seen {
            ino: stat.st_ino,
            size: stat.st_size as u64,
            ctime: (stat.st_ctime, stat.st_ctime_nsec as u32),
            mtime: (stat.st_mtime, stat.st_mtime_nsec as u32),
        }
    }
}

fn key_below(dir: &Key, name: &CStr) -> Key {
    let hash = blake3::Hasher::new().update(dir).update(name.to_bytes()).finalize();
    let mut key = Key::default();
    key.copy_from_slice(&hash.as_bytes()[..KEY_BYTES]);
    key
}

/// Says where in the tree something failed.
pub(crate) fn failed(what: &str, way: &Way, error: std::io::Error) -> Error {
    Error::io(format_args!("{what} {way} in a layer"), error)
}

pub(crate) fn too_deep(way: &Way) -> Error {
    Error::new(
        ErrorKind::Limit,
        format!("cannot go deeper than {DEPTH_MAX} directories in a layer, at {way}"),
    )
}

pub(crate) fn too_many() -> Error {
    Error::new(ErrorKind::Limit, format!("cannot take more than {ENTRIES_MAX} files into one layer"))
}

impl Record {
    const HEAD: &[u8] = b"glasshouse copy record 1\n";
    const ROW_BYTES: usize = KEY_BYTES + 8 + 8 + 12 + 12;
    const HASH_BYTES: usize = 32;
    /// The longest record's file.
    pub(crate) const BYTES_MAX: usize =
        Record::HEAD.len() + ENTRIES_MAX * Record::ROW_BYTES + Record::HASH_BYTES;

    /// As a file: a head, rows of one length, and a hash over both.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let size = Record::HEAD.len() + self.0.len() * Record::ROW_BYTES + Record::HASH_BYTES;
        let mut bytes = Vec::with_capacity(size);
        bytes.extend(Record::HEAD);
        for (key, seen) in &self.0 {
            bytes.extend(key);
            bytes.extend(seen.ino.to_le_bytes());
            bytes.extend(seen.size.to_le_bytes());
            for (seconds, nanos) in [seen.ctime, seen.mtime] {
                bytes.extend(seconds.to_le_bytes());
                bytes.extend(nanos.to_le_bytes());
            }
        }
        let hash = blake3::hash(&bytes);
        bytes.extend(hash.as_bytes());
        bytes
    }

    /// Reads a record's file. What is damaged, foreign or too long records nothing, so that nothing is
    /// shared.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Record {
        Record::parse(bytes).unwrap_or_default()
    }

    fn parse(bytes: &[u8]) -> Option<Record> {
        if bytes.len() > Record::BYTES_MAX {
            return None;
        }
        let (body, hash) = bytes.split_at_checked(bytes.len().checked_sub(Record::HASH_BYTES)?)?;
        if blake3::hash(body).as_bytes() != hash {
            return None;
        }
        let rows = body.strip_prefix(Record::HEAD)?;
        if rows.len() % Record::ROW_BYTES != 0 {
            return None;
        }
        let mut record = HashMap::with_capacity(rows.len() / Record::ROW_BYTES);
        for mut row in rows.chunks_exact(Record::ROW_BYTES) {
            let key = take(&mut row)?;
            let ino = u64::from_le_bytes(take(&mut row)?);
            let size = u64::from_le_bytes(take(&mut row)?);
            let ctime = (i64::from_le_bytes(take(&mut row)?), u32::from_le_bytes(take(&mut row)?));
            let mtime = (i64::from_le_bytes(take(&mut row)?), u32::from_le_bytes(take(&mut row)?));
            record.insert(key, Seen { ino, size, ctime, mtime });
        }
        Some(Record(record))
    }
}

fn take<const N: usize>(row: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = row.split_first_chunk()?;
    *row = rest;
    Some(*first)
}

#[cfg(test)]
pub(super) mod tests;
