//! What one layer holds: every entry with the hash of its content, and every directory with the hash of all
//! below it.
//!
//! [`scan`] makes an [`Index`] by walking a layer. An earlier index of the same layer saves reading what has
//! not changed since. The index is one block of bytes, the same in memory and in a file: a *record* per
//! directory, children before parents, and each entry of a directory says where its own record lies. So a
//! reader takes only the directories that it needs, however large the layer is.
//!
//! ```text
//!  header │ root's entry │ record of /a/b │ record of /a │ record of /c │ record of /
//!             └───────────────────────────────────────────────────────────▲
//! ```
//!
//! Every reference to a record carries a checksum of it, and the header one of itself and of the root's
//! entry: no damage goes unseen. The records of a subtree lie side by side, and a reader insists on that: a
//! forged file cannot make a walk longer than the file is.
//!
//! [`hear`] makes one of a root that only its guest can look at.
//!
//! Not here: what several layers are together (`digest`, `diff`).

mod attributes;
mod format;
mod opener;
mod reading;
mod scan;
mod stat;
#[cfg(test)]
pub(super) mod tests;
mod told;

use std::borrow::Cow;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

pub(crate) use format::{Entries, Skimmed};
pub(crate) use glasshouse_linux::content::{Hash, Kept, Room, content_hash, counts, next_data};
#[cfg(test)]
use opener::{Opener, Plain, Wanted};
#[cfg(test)]
use scan::scan_with;
pub(crate) use scan::{Owners, Patience, Walked, scan, scan_keeping, scan_within};
pub(crate) use stat::stamp;
pub(crate) use told::{Heard, Rules, hear};

use super::Marks;
use crate::error::{Context, Error, ErrorKind, Result};

/// Entries of one layer.
pub(crate) const ENTRIES_MAX: u64 = 4_000_000;
/// Directories inside one another. A path that a system call takes has room for half of it.
pub(crate) const DEPTH_MAX: usize = 4096;
/// Bytes of the path in a redirect. The kernel writes up to 256.
pub(crate) const REDIRECT_MAX: usize = 4096;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
    /// Not a thing: what the layers below have under this name is not there any more.
    Whiteout,
}

impl Kind {
    /// The byte that stands for it in files and hashes.
    pub(super) fn byte(self) -> u8 {
        match self {
            Kind::File => b'f',
            Kind::Directory => b'd',
            Kind::Symlink => b'l',
            Kind::Fifo => b'p',
            Kind::Socket => b's',
            Kind::CharDevice => b'c',
            Kind::BlockDevice => b'b',
            Kind::Whiteout => b'w',
        }
    }

    fn of_byte(byte: u8) -> Option<Kind> {
        const ALL: [Kind; 8] = [
            Kind::File,
            Kind::Directory,
            Kind::Symlink,
            Kind::Fifo,
            Kind::Socket,
            Kind::CharDevice,
            Kind::BlockDevice,
            Kind::Whiteout,
        ];
        ALL.into_iter().find(|kind| kind.byte() == byte)
    }

    /// Whether there is something to hash besides the attributes.
    fn has_content(self) -> bool {
        !matches!(self, Kind::Fifo | Kind::Socket | Kind::Whiteout)
    }
}

/// A moment as the kernel stamps it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Time {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
}

impl Time {
    fn total_ns(self) -> i128 {
        i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanoseconds)
    }
}

/// What tells, without reading a thing, that it is still the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// 0 in an entry that changed while it was read: no inode has this number, so it will be read again.
    pub(crate) ino: u64,
    pub(crate) ctime: Time,
    pub(crate) mtime: Time,
}

/// One name in a directory of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Empty for the root of the layer.
    pub(crate) name: Box<[u8]>,
    pub(crate) kind: Kind,
    /// The lower twelve bits.
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Bytes of a file, or of a link's target. 0 for everything else.
    pub(crate) size: u64,
    /// Of a file's content, a link's target, a device's number, or a directory's listing, as if the layer
    /// stood alone.
    pub(crate) content: Hash,
    /// Of the attributes that count: `user.*` (but for overlay's own) and file capabilities. `None`: there
    /// are none.
    pub(crate) xattrs: Option<Hash>,
    pub(crate) stamp: Stamp,
    /// For directories, and only for them.
    pub(crate) dir: Option<Dir>,
}

/// What only a directory has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dir {
    /// Nothing of the layers below shows through.
    pub(crate) opaque: bool,
    /// Where the layers below have it: a path from the root (`/a/b`), or another name in the same directory.
    pub(crate) redirect: Option<Box<[u8]>>,
    /// Some directory inside, however deep, has a redirect: the listing's hash does not tell the whole.
    pub(crate) redirects_below: bool,
    pub(crate) record: Record,
}

/// Where the listing of a directory lies among the records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// Where the records of everything below begin.
    start: u64,
    offset: u64,
    bytes: u64,
    check: [u8; 16],
}

impl Record {
    fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.bytes)
    }

    /// The number by which two directories of one index can be told apart.
    pub(super) fn place(&self) -> (u64, u64) {
        (self.offset, self.bytes)
    }
}

impl Entry {
    /// Whether both look the same to somebody inside a box: everything but the times and the number of the
    /// inode.
    pub(super) fn looks_like(&self, other: &Entry) -> bool {
        let fields = |e: &Entry| (e.kind, e.mode, e.uid, e.gid, e.size, e.content, e.xattrs);
        fields(self) == fields(other)
    }
}

/// What was true of the whole layer when it was walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Facts {
    /// When the walk began.
    scanned_at: Time,
    entries: u64,
    /// Something changed under our eyes.
    racy: bool,
    marks: Marks,
    owners: Owners,
}

/// What one layer holds.
#[derive(Debug)]
pub(crate) struct Index {
    facts: Facts,
    root: Entry,
    records: Records,
}

#[derive(Debug)]
enum Records {
    Memory(Vec<u8>),
    File { file: File, start: u64, bytes: u64 },
}

impl Index {
    /// Reads the head of an index that was written. The rest is read when it is needed.
    pub(crate) fn open(file: File) -> Result<Index> {
        let length = file.metadata().context("read the index of a layer")?.len();
        let mut head = vec![0; usize::try_from(length.min(format::HEAD_MAX)).unwrap_or_default()];
        file.read_exact_at(&mut head, 0).context("read the index of a layer")?;
        let head = format::decode_head(&head)?;
        if head.start.checked_add(head.bytes) != Some(length) {
            return Err(damaged("its length is not what its head says"));
        }
        Ok(Index {
            facts: head.facts,
            root: head.root,
            records: Records::File { file, start: head.start, bytes: head.bytes },
        })
    }

    /// A layer with nothing in it, whose root everybody may read.
    pub(crate) fn empty(marks: Marks, owners: Owners) -> Index {
        let dir = Dir { opaque: false, redirect: None, redirects_below: false, record: Record::default() };
        let root = Entry {
            name: Box::default(),
            kind: Kind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            size: 0,
            content: super::digest::listing(&[]),
            xattrs: None,
            stamp: Stamp::default(),
            dir: Some(dir),
        };
        let facts = Facts { scanned_at: Time::default(), entries: 0, racy: false, marks, owners };
        Index { facts, root, records: Records::Memory(Vec::new()) }
    }

    /// Writes all of it. That it reaches the disk, and its place only when it is whole, is the caller's part.
    pub(crate) fn write(&self, mut file: impl Write) -> Result<()> {
        let what = "write the index of a layer";
        file.write_all(&format::encode_head(&self.facts, &self.root, self.records.bytes())).context(what)?;
        match &self.records {
            Records::Memory(bytes) => file.write_all(bytes).context(what)?,
            Records::File { bytes, .. } => {
                const PIECE: u64 = 1 << 20;
                for at in (0..*bytes).step_by(PIECE as usize) {
                    file.write_all(&self.records.read(at, PIECE.min(bytes - at))?).context(what)?;
                }
            }
        }
        file.flush().context(what)
    }

    /// Whether it was made under these rules.
    pub(crate) fn follows(&self, marks: Marks, owners: Owners) -> bool {
        (self.facts.marks, self.facts.owners) == (marks, owners)
    }

    /// The directory that the layer is.
    pub(crate) fn root(&self) -> &Entry {
        &self.root
    }

    /// Entries of the layer, whiteouts among them, without the root.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> u64 {
        self.facts.entries
    }

    /// Whether something changed while it was read, so that the index may show what never was.
    pub(crate) fn racy(&self) -> bool {
        self.facts.racy
    }

    /// What a directory holds in this layer, sorted by name, whiteouts among it.
    pub(crate) fn list(&self, record: &Record) -> Result<Vec<Entry>> {
        let entries = self.read(record)?;
        let mut list = Vec::with_capacity(entries.about());
        for entry in entries {
            list.push(entry?);
        }
        Ok(list)
    }

    /// The same, one after the other.
    pub(crate) fn read(&self, record: &Record) -> Result<Entries<'_>> {
        match &self.records {
            // We made it ourselves: there is nothing to check.
            Records::Memory(bytes) => {
                let end = record.end().unwrap_or(u64::MAX) as usize;
                let part = bytes.get(record.offset as usize..end);
                let part = part.ok_or_else(|| damaged("a record is missing"))?;
                Entries::new(Cow::Borrowed(part), *record)
            }
            records @ Records::File { .. } => {
                let bytes = records.read(record.offset, record.bytes)?;
                if format::check(&bytes) != record.check {
                    return Err(damaged("a record is not what it was when it was written"));
                }
                Entries::new(Cow::Owned(bytes), *record)
            }
        }
    }
}

impl Records {
    fn bytes(&self) -> u64 {
        match self {
            Records::Memory(bytes) => bytes.len() as u64,
            Records::File { bytes, .. } => *bytes,
        }
    }

    /// Reads from a file. What is asked for is bounded by the file's true length.
    fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        let Records::File { file, start, bytes } = self else { return Err(damaged("it is not in a file")) };
        if offset.checked_add(length).is_none_or(|end| end > *bytes) {
            return Err(damaged("a record lies outside of it"));
        }
        let mut buffer = vec![0; usize::try_from(length).map_err(|_| damaged("a record is too large"))?];
        file.read_exact_at(&mut buffer, start + offset).context("read the index of a layer")?;
        Ok(buffer)
    }
}

/// The error for an index that cannot be used.
fn damaged(what: &str) -> Error {
    let text = format!("cannot use the index of a layer: {what}; remove it, and it will be made anew");
    Error::new(ErrorKind::Failed, text)
}

/// Whether the kernel would take this for a redirect: names with something in them, none that leads upwards.
fn is_redirect(path: &[u8]) -> bool {
    let names = path.strip_prefix(b"/").unwrap_or(path);
    let one = path.first() != Some(&b'/');
    path.len() <= REDIRECT_MAX && !(one && names.contains(&b'/')) && names.split(|b| *b == b'/').all(is_name)
}

/// Whether this can be a name in a directory.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && name.len() <= 255 && !name.contains(&b'/') && !name.contains(&0)
}
