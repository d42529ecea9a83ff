//! Walking a layer.
//!
//! The tree was made by a box and may be hostile: every name is opened below the descriptor of its directory,
//! no link is followed, no mount is entered, and only regular files and directories are opened. The walk
//! keeps its own stack, with at most [`OPEN_MAX`] descriptors, whatever the depth.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::iter::Peekable;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::vec::IntoIter;

use glasshouse_linux::content::{Contents, Kept, Room};
use glasshouse_linux::reach::Reach;
use glasshouse_linux::rustix::fs::{RawDir, Stat, fstat};
use glasshouse_linux::rustix::io::Errno;
use glasshouse_linux::rustix::time::{ClockId, clock_gettime};

use super::super::{Marks, digest, id_in_box};
use super::attributes::{Attributes, Found};
use super::opener::{Opener, Plain, Wanted};
use super::reading::{FileReader, Files, Read, Refused, Waiting};
use super::stat::{is_settled, kind, mode, size, stamp};
use super::{
    DEPTH_MAX, Dir, ENTRIES_MAX, Entry, Facts, Hash, Index, Kind, Record, Records, Time, format, is_name,
    is_redirect,
};
use crate::error::{Context, Error, ErrorKind, Result};

/// Directories that are held open at once. The parents of deeper ones are opened again on the way back.
const OPEN_MAX: usize = 64;
/// Bytes of names that are asked for at once.
const NAMES: usize = 32 * 1024;

/// Whose the files of a layer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owners {
    /// The owners on disk are those that the box sees.
    Kept,
    /// All belongs to whoever runs us, and to 0:0 in the box.
    One,
}

/// What is walked, and by which rules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walked<'a> {
    pub(crate) tree: BorrowedFd<'a>,
    pub(crate) reach: &'a Reach,
    pub(crate) marks: Marks,
    pub(crate) owners: Owners,
    /// The user and group that are 0 in the box, where owners are kept; see [`id_in_box`].
    pub(crate) first_id: u32,
}

/// Walks the layer. With an earlier index of the same layer, only what changed since is read.
///
/// The kernel shows `trusted.` marks to `CAP_SYS_ADMIN` only: without it, ask for no layers that have them.
pub(crate) fn scan(walked: Walked<'_>, before: Option<&Index>) -> Result<Index> {
    let mut contents = Contents::new();
    plain_walk_of(&Plain(walked.reach), walked, before, &mut contents).run_to_the_end(walked.tree)
}

/// The same, with what was read of small files on the way, so that nobody has to read it once more.
pub(crate) fn scan_keeping(walked: Walked<'_>, before: Option<&Index>, room: Room) -> Result<(Index, Kept)> {
    let mut contents = Contents::keeping(room);
    let index =
        plain_walk_of(&Plain(walked.reach), walked, before, &mut contents).run_to_the_end(walked.tree)?;
    Ok((index, contents.kept()))
}

/// How much may be looked at before it is too much for somebody who waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// That are read of files.
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// What came of a walk that was not to take long.
pub(crate) struct Brief {
    pub(crate) index: Index,
    /// Files were read: this index saves the next walk more than the earlier one does.
    pub(crate) is_news: bool,
}

/// The same, unless there is more to do than this. Then there is no index.
pub(crate) fn scan_within(
    walked: Walked<'_>,
    before: Option<&Index>,
    patience: Patience,
) -> Result<Option<Brief>> {
    let mut contents = Contents::new();
    let opener = Plain(walked.reach);
    let mut walk = plain_walk_of(&opener, walked, before, &mut contents);
    walk.patience = Some(patience);
    let index = walk.run(walked.tree)?;
    Ok(index.map(|index| Brief { index, is_news: contents.has_read() }))
}

/// The same, with somebody else to open files.
#[cfg(test)]
pub(crate) fn scan_with(opener: &dyn Opener, walked: Walked<'_>, before: Option<&Index>) -> Result<Index> {
    walk_of(opener, walked, before, &mut Contents::new()).run_to_the_end(walked.tree)
}

/// One with which other threads may take part.
fn plain_walk_of<'a>(
    opener: &'a Plain<'_>,
    walked: Walked<'a>,
    before: Option<&'a Index>,
    contents: &'a mut Contents,
) -> Walk<'a> {
    Walk { has_others: true, ..walk_of(opener, walked, before, contents) }
}

fn walk_of<'a>(
    opener: &'a dyn Opener,
    walked: Walked<'a>,
    before: Option<&'a Index>,
    contents: &'a mut Contents,
) -> Walk<'a> {
    let Walked { reach, marks, owners, first_id, .. } = walked;
    let now = clock_gettime(ClockId::Realtime);
    Walk {
        reader: FileReader { opener, reach, attributes: Attributes::new(marks) },
        has_others: false,
        owners,
        first_id,
        // Hashes under another rule are not ours.
        before: before.filter(|index| index.facts.marks == marks && index.facts.owners == owners),
        contents,
        linked: HashMap::new(),
        frames: Vec::new(),
        out: Vec::new(),
        facts: Facts {
            scanned_at: Time { seconds: now.tv_sec, nanoseconds: now.tv_nsec as u32 },
            entries: 0,
            racy: false,
            marks,
            owners,
        },
        patience: None,
        is_too_much: false,
    }
}

/// A directory that is being walked.
struct Frame {
    /// `None` while there are more than enough open below it.
    fd: Option<Arc<OwnedFd>>,
    /// Itself. The content and the record are filled in at the end.
    entry: Entry,
    /// Itself in the earlier index.
    old: Option<Entry>,
    /// Files in it may be whiteouts.
    marked: bool,
    names: IntoIter<CString>,
    /// What the earlier index has in it.
    old_entries: Peekable<IntoIter<Entry>>,
    /// So far, it looks like then.
    same: bool,
    entries: Vec<Entry>,
    /// Those of them that are still to be read.
    waiting: Vec<Waiting>,
    /// Where the records of what is below begin.
    start: u64,
}

impl Frame {
    /// What the earlier index has under this name. Names are asked for in their order.
    fn old_entry(&mut self, name: &[u8]) -> Option<Entry> {
        while self.old_entries.next_if(|old| *old.name < *name).is_some() {
            self.same = false;
        }
        self.old_entries.next_if(|old| *old.name == *name)
    }
}

struct Walk<'a> {
    reader: FileReader<'a>,
    /// Other threads may read, too.
    has_others: bool,
    owners: Owners,
    first_id: u32,
    before: Option<&'a Index>,
    contents: &'a mut Contents,
    /// What files with several names hold, by the number of the inode.
    linked: HashMap<u64, Entry>,
    frames: Vec<Frame>,
    out: Vec<u8>,
    facts: Facts,
    /// What is left of it.
    patience: Option<Patience>,
    /// There was more to do.
    is_too_much: bool,
}

impl Walk<'_> {
    fn run_to_the_end(self, tree: BorrowedFd<'_>) -> Result<Index> {
        let unbounded = || Error::new(ErrorKind::Failed, "a walk without bounds was too long");
        self.run(tree)?.ok_or_else(unbounded)
    }

    /// Nothing if it is too much.
    fn run(mut self, tree: BorrowedFd<'_>) -> Result<Option<Index>> {
        // A descriptor of our own: the place in a directory is shared by all copies of a descriptor.
        let fd = self.reader.opener.open(tree, c".", Wanted::Directory).map_err(|e| self.refused(c"", e))?;
        let stat = fstat(&fd).context("index a layer")?;
        let old = self.before.map(|index| index.root.clone());
        self.enter(fd, c"", &stat, old)?;
        loop {
            let Some(frame) = self.frames.last_mut() else {
                return Err(self.failed(c"", Errno::INVAL.into()));
            };
            let Some(name) = frame.names.next() else {
                if let Some(root) = self.leave()? {
                    let (facts, records) = (self.facts, Records::Memory(self.out));
                    return Ok(Some(Index { facts, root, records }));
                }
                continue;
            };
            self.facts.entries += 1;
            if self.facts.entries > ENTRIES_MAX {
                let text = format!("cannot index a layer: it has more than {ENTRIES_MAX} entries");
                return Err(Error::new(ErrorKind::Limit, text));
            }
            self.is_too_much |= self.patience.is_some_and(|patience| self.facts.entries > patience.entries);
            if !self.is_too_much {
                self.visit(&name)?;
            }
            if self.is_too_much {
                return Ok(None);
            }
        }
    }

    /// One name in the directory at hand.
    fn visit(&mut self, name: &CStr) -> Result<()> {
        let Some(frame) = self.frames.last_mut() else { return Ok(()) };
        let old = frame.old_entry(name.to_bytes());
        let Some(fd) = &frame.fd else { return Err(self.failed(name, Errno::BADF.into())) };
        let stat = match self.reader.reach.stat(fd.as_fd(), name) {
            Err(Errno::NOENT) => return self.changed(),
            Err(e) => return Err(self.refused(name, e.into())),
            Ok(stat) => stat,
        };
        if kind(&stat) == Kind::Directory {
            return match self.reader.opener.open(fd.as_fd(), name, Wanted::Directory) {
                Ok(below) => self.enter(below, name, &stat, old),
                Err(e) if is_gone(&e) => self.changed(),
                Err(e) => Err(self.refused(name, e)),
            };
        }
        let unsure = frame.marked && stat.st_size == 0;
        let kept = old.filter(|old| !unsure && is_settled(&self.facts_before(), old, &stat));
        let was_kept = kept.is_some();
        let entry = match kept {
            Some(old) => Some(old),
            None => self.leaf(name, &stat)?,
        };
        let Some(entry) = entry else { return self.changed() };
        if let Some(frame) = self.frames.last_mut() {
            frame.same &= was_kept;
            frame.entries.push(entry);
        }
        Ok(())
    }

    /// When the earlier walk began. Without one, nothing is older.
    fn facts_before(&self) -> Option<Time> {
        self.before.map(|index| index.facts.scanned_at)
    }

    /// Something moved under our eyes.
    fn changed(&mut self) -> Result<()> {
        self.facts.racy = true;
        if let Some(frame) = self.frames.last_mut() {
            frame.same = false;
        }
        Ok(())
    }

    /// Anything but a directory. `None`: it is gone.
    fn leaf(&mut self, name: &CStr, stat: &Stat) -> Result<Option<Entry>> {
        let mut entry = self.entry(name, stat)?;
        match entry.kind {
            Kind::File => return self.file(name, stat, entry),
            Kind::Symlink => {
                let Some(fd) = self.frames.last().and_then(|frame| frame.fd.as_ref()) else {
                    return Ok(None);
                };
                let target = match self.reader.reach.read_link(fd.as_fd(), name) {
                    Ok(target) => target,
                    Err(Errno::NOENT | Errno::INVAL) => return Ok(None),
                    Err(e) => return Err(self.refused(name, e.into())),
                };
                entry.size = target.as_bytes().len() as u64;
                entry.content = *blake3::hash(target.as_bytes()).as_bytes();
            }
            Kind::CharDevice | Kind::BlockDevice => {
                entry.content = *blake3::hash(&stat.st_rdev.to_le_bytes()).as_bytes();
            }
            Kind::Fifo | Kind::Socket | Kind::Whiteout | Kind::Directory => {}
        }
        Ok(Some(entry))
    }

    fn file(&mut self, name: &CStr, stat: &Stat, mut entry: Entry) -> Result<Option<Entry>> {
        let Some(frame) = self.frames.last_mut() else { return Ok(None) };
        let (marked, is_linked) = (frame.marked, stat.st_nlink > 1);
        let known = self.linked.get(&stat.st_ino).filter(|_| is_linked);
        if let Some(known) =
            known.filter(|known| (known.stamp, known.size) == (entry.stamp, entry.size) && !marked)
        {
            (entry.content, entry.xattrs) = (known.content, known.xattrs);
            return Ok(Some(entry));
        }
        if let Some(patience) = &mut self.patience {
            let Some(left) = patience.bytes.checked_sub(entry.size) else {
                self.is_too_much = true;
                return Ok(None);
            };
            patience.bytes = left;
        }
        if self.has_others && !marked && !is_linked {
            let (place, name) = (frame.entries.len(), name.to_owned());
            frame.waiting.push(Waiting { place, name, entry: entry.clone() });
            return Ok(Some(entry));
        }
        let Some(dir) = &frame.fd else { return Ok(None) };
        let read = self.reader.read(dir.as_fd(), name, entry, marked, self.contents);
        let entry = self.was_read(name, read)?;
        if let Some(entry) = entry.as_ref().filter(|entry| is_linked && entry.stamp.ino != 0) {
            self.linked.insert(stat.st_ino, entry.clone());
        }
        Ok(entry)
    }

    /// What a reader says of a file. `None`: it is gone.
    fn was_read(&mut self, name: &CStr, read: std::result::Result<Read, Refused>) -> Result<Option<Entry>> {
        match read {
            Ok(Read::Whole(entry)) => Ok(Some(entry)),
            Ok(Read::Torn(entry)) => {
                self.facts.racy = true;
                Ok(Some(entry))
            }
            Ok(Read::Gone) => Ok(None),
            Ok(Read::Elsewhere) => {
                let text = format!(
                    "cannot index {}: its content is in another layer; mount with metacopy=off",
                    self.show(name)
                );
                Err(Error::new(ErrorKind::Unsupported, text))
            }
            Err(Refused::Opening(e)) => Err(self.refused(name, e)),
            Err(Refused::Reading(e)) => Err(self.failed(name, e)),
        }
    }

    /// Reads the files of a directory that were left for later. While it is open: it may be closed after that.
    fn read_waiting(&mut self, frame: usize) -> Result<()> {
        let Some(Frame { fd: Some(dir), waiting, .. }) = self.frames.get_mut(frame) else { return Ok(()) };
        if waiting.is_empty() {
            return Ok(());
        }
        let files = Files { dir: dir.clone(), waiting: std::mem::take(waiting) };
        let mut gone = Vec::new();
        for (place, name, read) in files.read(&mut self.reader, self.contents, self.facts.marks) {
            match self.was_read(&name, read)? {
                Some(entry) => self.frames[frame].entries[place] = entry,
                None => gone.push(place),
            }
        }
        for place in gone.into_iter().rev() {
            self.frames[frame].entries.remove(place);
            self.facts.racy = true;
        }
        Ok(())
    }

    /// Begins with a directory.
    fn enter(&mut self, fd: OwnedFd, name: &CStr, stat: &Stat, old: Option<Entry>) -> Result<()> {
        if self.frames.len() >= DEPTH_MAX {
            let text = format!("cannot index a layer: it is deeper than {DEPTH_MAX} directories");
            return Err(Error::new(ErrorKind::Limit, text));
        }
        let mut entry = self.entry(name, stat)?;
        // The value of the mark `x` is not kept, so a directory that may bear it is looked at again.
        let read = self.reader.attributes.read(self.reader.reach, fd.as_fd());
        let found = read.map_err(|e| self.failed(name, e))?;
        entry.xattrs = found.xattrs;
        let marked = found.opaque == Some(b'x');
        entry.dir = Some(self.marks(name, found)?);
        let names = names(fd.as_fd()).map_err(|e| self.failed(name, e))?;
        // An earlier index that turns out to be damaged is as good as none.
        let listed = self.before.zip(old.as_ref().and_then(|old| old.dir.as_ref()));
        let listed = listed.and_then(|(index, dir)| index.list(&dir.record).ok());
        let old = old.filter(|_| listed.is_some());
        let old_entries = listed.unwrap_or_default();
        if let Some(far) = self.frames.len().checked_sub(OPEN_MAX) {
            self.read_waiting(far)?;
            self.frames[far].fd = None;
        }
        self.frames.push(Frame {
            fd: Some(Arc::new(fd)),
            entry,
            same: old.is_some(),
            old,
            marked,
            names: names.into_iter(),
            old_entries: old_entries.into_iter().peekable(),
            entries: Vec::new(),
            waiting: Vec::new(),
            start: self.out.len() as u64,
        });
        Ok(())
    }

    /// What the marks of a directory mean. On the root of a layer they mean nothing: it is where all layers
    /// meet.
    fn marks(&self, name: &CStr, found: Found) -> Result<Dir> {
        let opaque = !self.frames.is_empty() && found.opaque == Some(b'y');
        let redirect = found.redirect.filter(|_| !self.frames.is_empty() && !opaque);
        if redirect.as_ref().is_some_and(|path| !is_redirect(path)) {
            let text = format!("cannot index {}: its redirect is not a path", self.show(name));
            return Err(Error::new(ErrorKind::Failed, text));
        }
        Ok(Dir { opaque, redirect, redirects_below: false, record: Record::default() })
    }

    /// Is through with a directory. Returns it if it is the root.
    fn leave(&mut self) -> Result<Option<Entry>> {
        if let Some(last) = self.frames.len().checked_sub(1) {
            self.read_waiting(last)?;
        }
        let Some(mut frame) = self.frames.pop() else { return Ok(None) };
        let Some(fd) = frame.fd.take() else { return Err(self.failed(c"", Errno::BADF.into())) };
        let after = fstat(&fd).context("index a layer")?;
        if stamp(&after) != frame.entry.stamp {
            self.facts.racy = true;
            frame.entry.stamp.ino = 0;
        }
        let offset = self.out.len() as u64;
        for entry in &frame.entries {
            format::encode(&mut self.out, entry);
        }
        let written = &self.out[offset as usize..];
        let (bytes, check) = (written.len() as u64, format::check(written));
        let redirects = |dir: &Dir| -> bool { dir.redirect.is_some() || dir.redirects_below };
        if let Some(dir) = &mut frame.entry.dir {
            dir.redirects_below = frame.entries.iter().filter_map(|e| e.dir.as_ref()).any(redirects);
            dir.record = Record { start: frame.start, offset, bytes, check };
        }
        let same = frame.same && frame.old_entries.peek().is_none();
        frame.entry.content = match &frame.old {
            Some(old) if same => old.content,
            _ => digest::listing(&frame.entries),
        };
        let looks_same = frame.old.as_ref().is_some_and(|old| old.looks_like(&frame.entry));
        let Some(parent) = self.frames.last_mut() else { return Ok(Some(frame.entry)) };
        parent.same &= looks_same;
        let (is_closed, ino) = (parent.fd.is_none(), parent.entry.stamp.ino);
        parent.entries.push(frame.entry);
        if is_closed {
            let back = self.reader.opener.open(fd.as_fd(), c"..", Wanted::Directory);
            let back = back.map_err(|e| self.refused(c"", e))?;
            if fstat(&back).context("index a layer")?.st_ino != ino {
                return Err(self.failed(c"", io::Error::other("it was moved meanwhile")));
            }
            if let Some(parent) = self.frames.last_mut() {
                parent.fd = Some(Arc::new(back));
            }
        }
        Ok(None)
    }

    fn entry(&self, name: &CStr, stat: &Stat) -> Result<Entry> {
        if !name.is_empty() && !is_name(name.to_bytes()) {
            return Err(self.failed(name, Errno::NAMETOOLONG.into()));
        }
        let (uid, gid) = match self.owners {
            Owners::Kept => (id_in_box(stat.st_uid, self.first_id), id_in_box(stat.st_gid, self.first_id)),
            Owners::One => (0, 0),
        };
        let kind = kind(stat);
        Ok(Entry {
            name: name.to_bytes().into(),
            kind,
            mode: mode(stat),
            uid,
            gid,
            size: size(kind, stat),
            content: Hash::default(),
            xattrs: None,
            stamp: stamp(stat),
            dir: None,
        })
    }

    /// Where in the layer a name is, for a message.
    fn show(&self, name: &CStr) -> String {
        const SHOWN_MAX: usize = 300;
        let names = self.frames.iter().skip(1).map(|frame| &*frame.entry.name).chain([name.to_bytes()]);
        let path = names.filter(|name| !name.is_empty()).collect::<Vec<_>>().join(&b'/');
        let mut text = format!("{} in a layer", path.escape_ascii());
        if path.is_empty() {
            text = "a layer".into();
        }
        text.split_off(text.len().saturating_sub(SHOWN_MAX))
    }

    fn failed(&self, name: &CStr, error: io::Error) -> Error {
        Error::io(format!("index {}", self.show(name)), error)
    }

    /// Something could not be opened or looked at.
    fn refused(&self, name: &CStr, error: io::Error) -> Error {
        let text = |why: &str| format!("cannot index {}: {why}", self.show(name));
        match Errno::from_io_error(&error) {
            Some(Errno::ACCESS) => Error::new(
                ErrorKind::Denied,
                text(
                    "its mode, or that of its directory, locks its own owner out, and no process can be started that \
                      may read it all the same (it takes a user namespace)",
                ),
            ),
            Some(Errno::XDEV) => Error::new(
                ErrorKind::Unsupported,
                text("something is mounted on it; index a copy of the mount without what is mounted below"),
            ),
            _ => self.failed(name, error),
        }
    }
}

/// Every name in the directory, sorted.
fn names(dir: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    let mut buffer = Vec::with_capacity(NAMES);
    let mut list = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = list.next() {
        let entry = entry?;
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        names.push(entry.file_name().to_owned());
        if names.len() as u64 > ENTRIES_MAX {
            return Err(io::Error::other(format!("it has more than {ENTRIES_MAX} entries")));
        }
    }
    names.sort_unstable();
    // A name that is renamed while we read can come twice.
    names.dedup();
    Ok(names)
}

/// Whether a name does not lead any more to what it led to a moment ago.
pub(super) fn is_gone(error: &io::Error) -> bool {
    // The last three: a socket, a pipe, a directory where a file was.
    let gone = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::NXIO, Errno::SPIPE, Errno::ISDIR];
    Errno::from_io_error(error).is_some_and(|errno| gone.contains(&errno))
}
