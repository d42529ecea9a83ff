//! Layers of images: tar streams that somebody else made, unpacked the way overlayfs wants them.
//!
//! A name is resolved below the layer's root, by descriptor: `..` is refused, an absolute name begins at the root, and a
//! link on the way is followed by hand, in this layer or in one below, and never leads outside. A deletion becomes a
//! whiteout (a character device 0:0), a directory that replaces another gets the opaque attribute. Devices and sockets are
//! left out and counted. Everything is bounded: entries, bytes, depth, headers, attributes.
//!
//! What the layers below show matters in three cases: a directory on the way that the layer does not bring itself, a
//! link on the way that is in a layer below, and a hard link to a file below. Then the result *leans* on them, and
//! the same layer on other ones could be another tree.

mod chain;
mod records;
mod sparse;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;
use tar::{Entry, EntryType};

use crate::archive::{copy_with_holes, times};
use crate::metered::metered;
use crate::tree;

pub use chain::{Chain, Found};
use chain::{Last, View, is_whiteout, open_dir, open_file, parts};
use records::Retold;
use sparse::Sparse;

/// Entries of one layer.
pub const ENTRIES_MAX: u64 = 2_000_000;
/// Bytes of the names of all directories of a layer, which are kept in memory until its end.
pub const NAMES_BYTES_MAX: usize = 256 << 20;
/// What a directory costs on the disk, at least.
const DIRECTORY_BYTES: u64 = 4096;
/// Bytes of one path that is given to the kernel; longer ones are walked in parts. Below PATH_MAX.
const PATH_PART_MAX: usize = 4000;
/// Letters of a name in a sentence.
const SHOWN_LETTERS_MAX: usize = 120;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Names that an old file system for layers kept its own things under.
const FOREIGN: &[u8] = b".wh..wh.";

/// Whose files these will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owners {
    /// As the layer says. Needs root.
    Kept,
    /// All are ours: then they are readable for us too, and no file is set-id. Directories stay sticky, and hand their
    /// group on.
    Ours,
    /// All are ours, and nothing in it is set-id; what locks its owner out locks us out.
    OursAsTheyAre,
}

/// What one layer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of content, and what directories take.
    pub bytes: u64,
    /// Files, directories, links and deletions. Never more than [`ENTRIES_MAX`].
    pub entries: u64,
    /// The names on the way to something that is passed over, with all below it. Empty: nothing is.
    pub except: &'static [&'static str],
    /// What one entry may be.
    pub shape: Shape,
    /// Names that begin with `.wh.` delete others. Elsewhere they are refused: there is nothing that they could delete.
    pub deletions: bool,
}

/// What one entry may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The tree is no deeper than this.
    pub depth: usize,
    /// Bytes of a path.
    pub path_bytes: usize,
    /// Bytes of headers before the entry: long names, long targets, attributes.
    pub header_bytes: u64,
    /// Attributes that are looked at.
    pub attributes: usize,
}

impl Shape {
    /// What layers of images need, and no more.
    pub const IMAGE: Shape = Shape { depth: 512, path_bytes: 4096, header_bytes: 1 << 20, attributes: 64 };
    /// What a box can write, so that all that was taken from one place comes to another: paths that are as deep as layers may
    /// be, with as many attributes as the kernel lists.
    pub const STATE: Shape =
        Shape { depth: 4096, path_bytes: 4096 * 256, header_bytes: 16 << 20, attributes: 10_000 };
}

/// What was unpacked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Files, directories, links and deletions.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Devices and sockets, which are not in the tree.
    pub left_out: u64,
    /// The tree could be another one on other layers.
    pub leaned: bool,
    /// Nothing of the layers below shows through.
    pub hides_all: bool,
}

/// Unpacks a layer into the empty directory, on top of what the chain shows, and reads the stream to its very end.
pub fn unpack(
    stream: impl Read,
    into: BorrowedFd<'_>,
    below: &Chain,
    owners: Owners,
    bounds: Bounds,
) -> io::Result<Unpacked> {
    let header_bytes = bounds.shape.header_bytes;
    let (mut archive, allowance) = metered(Retold::new(stream, header_bytes), header_bytes);
    let mut layer = Layer::new(into, below, owners, bounds);
    let mut entries = archive.entries()?;
    loop {
        allowance.for_headers();
        let Some(entry) = entries.next() else { break };
        let mut entry = entry?;
        allowance.for_content();
        layer.take(&mut entry)?;
        io::copy(&mut entry, &mut io::sink())?;
    }
    allowance.for_content();
    io::copy(&mut archive.into_inner(), &mut io::sink())?;
    layer.finish()
}

pub(crate) fn refuse(name: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("cannot unpack {}: {why}", shown(name)))
}

/// A name that somebody else wrote, safe and short enough for a sentence.
fn shown(name: &Path) -> String {
    let whole = name.to_string_lossy();
    let mut shown: String = whole.escape_debug().take(SHOWN_LETTERS_MAX).collect();
    if whole.chars().count() > SHOWN_LETTERS_MAX {
        shown.push('…');
    }
    shown
}

/// What an entry says of what it makes.
struct Attributes {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: u64,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A directory on the way to an entry.
struct Place {
    /// As it was written.
    wanted: Vec<OsString>,
    /// Where it really is.
    real: Vec<OsString>,
    dir: OwnedFd,
}

struct Layer<'a> {
    /// The layer itself, and what it lies on.
    view: View<'a>,
    owners: Owners,
    bounds: Bounds,
    done: Unpacked,
    /// The place of the last entry: most often the next one's too.
    place: Option<Place>,
    /// Directories that get their modes and times last: what is made in them changes these, or needs other ones.
    dirs: Vec<(PathBuf, u32, u64)>,
    /// Bytes of their names.
    names_bytes: usize,
    /// Bytes that are counted against the bound.
    bytes: u64,
}

impl<'a> Layer<'a> {
    fn new(into: BorrowedFd<'a>, below: &'a Chain, owners: Owners, bounds: Bounds) -> Layer<'a> {
        let mut view = below.view(Some(into));
        view.depth_max = bounds.shape.depth;
        Layer {
            view,
            owners,
            bounds,
            done: Unpacked::default(),
            place: None,
            dirs: Vec::new(),
            names_bytes: 0,
            bytes: 0,
        }
    }

    fn take(&mut self, entry: &mut Entry<'_, impl Read>) -> io::Result<()> {
        self.done.entries += 1;
        let most = self.bounds.entries.min(ENTRIES_MAX);
        if self.done.entries > most {
            return Err(refuse(Path::new("the layer"), &format!("it has more than {most} entries")));
        }
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader) {
            return Ok(());
        }
        let mut name = PathBuf::from(OsString::from_vec(entry.path_bytes().into_owned()));
        let holes = holes(entry)?;
        if let Some((_, Some(real))) = &holes {
            name.clone_from(real);
        }
        let wanted = self.checked(&name)?;
        let Some((last, parents)) = wanted.split_last() else {
            return self.take_root(entry, &name);
        };
        let except = self.bounds.except;
        if !except.is_empty()
            && wanted.len() >= except.len()
            && wanted.iter().zip(except).all(|(a, b)| a == b)
        {
            return Ok(());
        }
        if last.as_bytes().starts_with(WHITEOUT) {
            if !self.bounds.deletions {
                return Err(refuse(&name, "a name that begins with `.wh.` means a deletion in a layer"));
            }
            return self.delete(parents, last, &name);
        }
        let made = match holes {
            Some((size, _)) => self.make_sparse_file(entry, size, parents, last, &name),
            None => self.make(entry, kind, parents, last, &name),
        };
        made.map_err(|e| at(&name, e))
    }

    /// The layer's own root.
    fn take_root(&mut self, entry: &mut Entry<'_, impl Read>, name: &Path) -> io::Result<()> {
        if entry.header().entry_type() != EntryType::Directory {
            return Err(refuse(name, "the root can be nothing but a directory"));
        }
        let attributes = self.attributes(entry, name)?;
        let root = self.view.trees[0].try_clone_to_owned()?;
        self.own(root.as_fd(), &attributes)?;
        self.set_xattrs(root.as_fd(), &attributes)?;
        self.remember(PathBuf::from("."), attributes.mode, attributes.mtime)
    }

    fn make(
        &mut self,
        entry: &mut Entry<'_, impl Read>,
        kind: EntryType,
        parents: &[OsString],
        last: &OsStr,
        name: &Path,
    ) -> io::Result<()> {
        match kind {
            EntryType::Char | EntryType::Block => {
                self.done.left_out += 1;
                Ok(())
            }
            EntryType::Directory => self.make_dir(self.attributes(entry, name)?, parents, last),
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.make_file(entry, parents, last, name)
            }
            EntryType::Symlink => {
                let target = self.target(entry, name)?;
                let attributes = self.attributes(entry, name)?;
                self.enter(parents)?;
                self.clear(last)?;
                let dir = self.dir()?;
                rustix::fs::symlinkat(&target, dir, last)?;
                if self.owners == Owners::Kept {
                    let owner = (Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid)));
                    rustix::fs::chownat(dir, last, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)?;
                }
                let _ = rustix::fs::utimensat(dir, last, &times(attributes.mtime), AtFlags::SYMLINK_NOFOLLOW);
                Ok(())
            }
            EntryType::Link => self.make_link(&self.target(entry, name)?, parents, last, name),
            EntryType::Fifo => {
                let attributes = self.attributes(entry, name)?;
                self.enter(parents)?;
                self.clear(last)?;
                rustix::fs::mknodat(self.dir()?, last, FileType::Fifo, Mode::empty(), 0)?;
                if self.owners == Owners::Kept {
                    let owner = (Some(Uid::from_raw(attributes.uid)), Some(Gid::from_raw(attributes.gid)));
                    rustix::fs::chownat(self.dir()?, last, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)?;
                }
                // After the owner, who takes bits of it away.
                let mode = Mode::from_raw_mode(self.file_mode(attributes.mode));
                rustix::fs::chmodat(self.dir()?, last, mode, AtFlags::empty())?;
                Ok(())
            }
            other => {
                Err(refuse(name, &format!("entries of type {:?} mean nothing", other.as_byte() as char)))
            }
        }
    }

    fn make_dir(&mut self, attributes: Attributes, parents: &[OsString], last: &OsStr) -> io::Result<()> {
        self.enter(parents)?;
        let replaced = match self.stat(last)? {
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => None,
            Some(stat) => Some(is_whiteout(&stat)),
            None => Some(false),
        };
        if let Some(was_deleted) = replaced {
            self.clear(last)?;
            rustix::fs::mkdirat(self.dir()?, last, Mode::RWXU)?;
            if was_deleted {
                // Deleted below and made anew: nothing of the old one may show.
                self.set_opaque(last)?;
            }
        }
        let made = open_dir(self.dir()?, last)?;
        self.own(made.as_fd(), &attributes)?;
        self.set_xattrs(made.as_fd(), &attributes)?;
        let path = self.real().iter().map(OsString::as_os_str).chain([last]).collect();
        self.remember(path, attributes.mode, attributes.mtime)
    }

    /// A directory that gets its mode and time at the end.
    fn remember(&mut self, path: PathBuf, mode: u32, mtime: u64) -> io::Result<()> {
        self.spend(DIRECTORY_BYTES, &path)?;
        self.names_bytes += path.as_os_str().len() + size_of::<(PathBuf, u32, u64)>();
        if self.names_bytes > NAMES_BYTES_MAX {
            let why = format!("the names of its directories are longer than {NAMES_BYTES_MAX} bytes");
            return Err(refuse(Path::new("the layer"), &why));
        }
        self.dirs.push((path, mode, mtime));
        Ok(())
    }

    fn make_file(
        &mut self,
        entry: &mut Entry<'_, impl Read>,
        parents: &[OsString],
        last: &OsStr,
        name: &Path,
    ) -> io::Result<()> {
        let size = entry.size();
        self.count(size, name)?;
        let attributes = self.attributes(entry, name)?;
        self.enter(parents)?;
        self.clear(last)?;
        let mut file = self.new_file(last)?;
        if copy_with_holes(entry, &mut file)? != size {
            return Err(refuse(name, "the layer ends in the middle of it"));
        }
        self.dress(&file, &attributes)
    }

    /// A file that comes without its holes. Only what is no hole counts against the bound.
    fn make_sparse_file(
        &mut self,
        entry: &mut Entry<'_, impl Read>,
        size: u64,
        parents: &[OsString],
        last: &OsStr,
        name: &Path,
    ) -> io::Result<()> {
        self.done.bytes = self.done.bytes.saturating_add(size);
        self.spend(entry.size(), name)?;
        let attributes = self.attributes(entry, name)?;
        self.enter(parents)?;
        self.clear(last)?;
        let mut file = self.new_file(last)?;
        sparse::fill(entry, &mut file, size, name)?;
        self.dress(&file, &attributes)
    }

    /// Gives a file that has its content all else.
    fn dress(&self, file: &File, attributes: &Attributes) -> io::Result<()> {
        self.own(file.as_fd(), attributes)?;
        // After the owner and the content, which take such attributes away; before the mode, which may forbid them.
        self.set_xattrs(file.as_fd(), attributes)?;
        rustix::fs::fchmod(file, Mode::from_raw_mode(self.file_mode(attributes.mode)))?;
        let _ = rustix::fs::futimens(file, &times(attributes.mtime));
        Ok(())
    }

    fn new_file(&self, last: &OsStr) -> io::Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(File::from(rustix::fs::openat(self.dir()?, last, flags, mode)?))
    }

    /// A hard link. Its target is in this layer, or comes up from one below, as it would where layers are mounted.
    fn make_link(
        &mut self,
        target: &Path,
        parents: &[OsString],
        last: &OsStr,
        name: &Path,
    ) -> io::Result<()> {
        let wanted =
            self.checked(target).map_err(|_| refuse(name, "a hard link whose target leads outside"))?;
        let real = self.view.resolve(&wanted, Last::Kept)?;
        let Some((target_last, target_parents)) = real.split_last() else {
            return Err(refuse(name, "a hard link to the root"));
        };
        let found = self
            .view
            .lookup(0, target_parents, target_last)?
            .ok_or_else(|| refuse(name, &format!("a hard link to {}, which is not there", shown(target))))?;
        if found.kind() == FileType::Directory {
            return Err(refuse(name, "a hard link to a directory"));
        }
        let from = if found.layer == 0 {
            found.dir
        } else {
            self.done.leaned = true;
            self.copy_up(&found, target_parents, target_last, name)?
        };
        self.enter(parents)?;
        let place: Vec<&OsString> = self.real().iter().collect();
        if place.iter().copied().eq(target_parents) && last == target_last {
            // A link to itself is there already.
            return Ok(());
        }
        self.clear(last)?;
        Ok(rustix::fs::linkat(&from, target_last, self.dir()?, last, AtFlags::empty())?)
    }

    /// Brings a file of a layer below into this one, to its own place. The directory that it is in.
    fn copy_up(
        &mut self,
        found: &Found,
        parents: &[OsString],
        last: &OsStr,
        name: &Path,
    ) -> io::Result<OwnedFd> {
        self.enter(parents)?;
        let attributes = Attributes {
            mode: found.stat.st_mode & 0o7777,
            uid: found.stat.st_uid,
            gid: found.stat.st_gid,
            mtime: found.stat.st_mtime.max(0) as u64,
            xattrs: Vec::new(),
        };
        match found.kind() {
            FileType::RegularFile => {
                self.count(found.stat.st_size.max(0) as u64, name)?;
                let mut content = open_file(found)?;
                let mut file = self.new_file(last)?;
                copy_with_holes(&mut content, &mut file)?;
                self.own(file.as_fd(), &attributes)?;
                rustix::fs::fchmod(&file, Mode::from_raw_mode(attributes.mode))?;
                let _ = rustix::fs::futimens(&file, &times(attributes.mtime));
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&found.dir, last, Vec::new())?;
                rustix::fs::symlinkat(target.as_c_str(), self.dir()?, last)?;
            }
            _ => return Err(refuse(name, "a hard link to something that is neither file nor link")),
        }
        self.dir()?.try_clone_to_owned()
    }

    /// A name that says that another one is no more.
    fn delete(&mut self, parents: &[OsString], last: &OsStr, name: &Path) -> io::Result<()> {
        if last.as_bytes() == OPAQUE {
            self.enter(parents)?;
            if self.real().is_empty() {
                self.done.hides_all = true;
            }
            let dir = self.dir()?;
            return Ok(rustix::fs::fsetxattr(dir, self.view.opaque, b"y", XattrFlags::empty())?);
        }
        if last.as_bytes().starts_with(FOREIGN) {
            return Ok(());
        }
        let gone = OsStr::from_bytes(&last.as_bytes()[WHITEOUT.len()..]);
        if gone.is_empty() || gone == "." || gone == ".." {
            return Err(refuse(name, "it deletes nothing that could be there"));
        }
        self.enter(parents)?;
        match self.stat(gone)? {
            // What the same layer brings under that name stays, and stands alone.
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                self.set_opaque(gone)
            }
            Some(_) => Ok(()),
            None => {
                let mode = Mode::empty();
                rustix::fs::mknodat(self.dir()?, gone, FileType::CharacterDevice, mode, 0)
                    .map_err(|e| at(name, e.into()))
            }
        }
    }

    fn set_opaque(&self, name: &OsStr) -> io::Result<()> {
        let dir = open_dir(self.dir()?, name)?;
        Ok(rustix::fs::fsetxattr(&dir, self.view.opaque, b"y", XattrFlags::empty())?)
    }

    /// Goes to where an entry is to be made, and makes the way there.
    fn enter(&mut self, wanted: &[OsString]) -> io::Result<()> {
        if self.place.as_ref().is_some_and(|place| place.wanted == wanted) {
            return Ok(());
        }
        let (known, rest) = self.known_way(wanted);
        self.place = None;
        let real = self.view.resolve_from(known, rest, Last::Followed)?;
        // A link of this very layer would be the same everywhere; telling them apart is not worth it.
        self.done.leaned |= real != wanted;
        let mut dir = self.view.trees[0].try_clone_to_owned()?;
        for (n, part) in real.iter().enumerate() {
            match open_dir(dir.as_fd(), part) {
                Ok(below) => dir = below,
                Err(e) if e.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {
                    dir = self.make_way(dir.as_fd(), &real[..n], part)?;
                }
                Err(_) => dir = self.replace_on_way(dir.as_fd(), &real[..n], part)?,
            }
        }
        self.place = Some(Place { wanted: wanted.to_vec(), real, dir });
        Ok(())
    }

    /// As much of the way to a place as is known from the last one, and the rest of it. All that was made since was made in
    /// that one, so that the way to it is what it was; to look for it again at each step would make deep trees slow.
    fn known_way<'w>(&self, wanted: &'w [OsString]) -> (Vec<OsString>, &'w [OsString]) {
        let Some(place) = &self.place else { return (Vec::new(), wanted) };
        if place.real == place.wanted {
            let same = place.wanted.iter().zip(wanted).take_while(|(a, b)| a == b).count();
            return (wanted[..same].to_vec(), &wanted[same..]);
        }
        match wanted.strip_prefix(place.wanted.as_slice()) {
            Some(rest) => (place.real.clone(), rest),
            None => (Vec::new(), wanted),
        }
    }

    /// A whiteout is where a directory has to be: what is made below it starts from nothing.
    fn replace_on_way(
        &mut self,
        dir: BorrowedFd<'_>,
        path: &[OsString],
        part: &OsStr,
    ) -> io::Result<OwnedFd> {
        let stat = rustix::fs::statat(dir, part, AtFlags::SYMLINK_NOFOLLOW)?;
        if !is_whiteout(&stat) {
            return Err(Errno::NOTDIR.into());
        }
        rustix::fs::unlinkat(dir, part, AtFlags::empty())?;
        let made = self.make_way(dir, path, part)?;
        rustix::fs::fsetxattr(&made, self.view.opaque, b"y", XattrFlags::empty())?;
        Ok(made)
    }

    /// Makes a directory that no entry has brought, as the one below is, if there is one.
    fn make_way(&mut self, dir: BorrowedFd<'_>, path: &[OsString], part: &OsStr) -> io::Result<OwnedFd> {
        // On other layers the answer may be another one, even if there is none here.
        self.done.leaned = true;
        let below = self.view.lookup(1, path, part)?;
        rustix::fs::mkdirat(dir, part, Mode::RWXU)?;
        let made = open_dir(dir, part)?;
        let mut mode = 0o755;
        let mut mtime = 0;
        if let Some(found) = below.filter(|found| found.kind() == FileType::Directory) {
            (mode, mtime) = (found.stat.st_mode & 0o7777, found.stat.st_mtime.max(0) as u64);
            if self.owners == Owners::Kept {
                let owner = (Uid::from_raw(found.stat.st_uid), Gid::from_raw(found.stat.st_gid));
                rustix::fs::fchown(&made, Some(owner.0), Some(owner.1))?;
            }
        }
        let path = path.iter().map(OsString::as_os_str).chain([part]).collect();
        self.remember(path, mode, mtime)?;
        Ok(made)
    }

    fn dir(&self) -> io::Result<BorrowedFd<'_>> {
        let place = self.place.as_ref().ok_or_else(|| io::Error::other("no place to unpack to"))?;
        Ok(place.dir.as_fd())
    }

    fn real(&self) -> &[OsString] {
        self.place.as_ref().map_or(&[], |place| &place.real)
    }

    fn stat(&self, name: &OsStr) -> io::Result<Option<rustix::fs::Stat>> {
        match rustix::fs::statat(self.dir()?, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            stat => Ok(Some(stat?)),
        }
    }

    /// Takes away what this layer brought under the name before: the last word counts.
    fn clear(&mut self, name: &OsStr) -> io::Result<()> {
        let Some(stat) = self.stat(name)? else { return Ok(()) };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let dir = self.dir()?.try_clone_to_owned()?;
            tree::remove(dir.as_fd(), name)?;
            return Ok(());
        }
        Ok(rustix::fs::unlinkat(self.dir()?, name, AtFlags::empty())?)
    }

    /// Counts a file's content.
    fn count(&mut self, bytes: u64, name: &Path) -> io::Result<()> {
        self.done.bytes = self.done.bytes.saturating_add(bytes);
        self.spend(bytes, name)
    }

    fn spend(&mut self, bytes: u64, name: &Path) -> io::Result<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.bounds.bytes {
            return Err(refuse(name, &format!("the layer is larger than {} bytes", self.bounds.bytes)));
        }
        Ok(())
    }

    fn file_mode(&self, mode: u32) -> u32 {
        match self.owners {
            Owners::Kept => mode,
            Owners::Ours => mode & 0o777 | 0o400,
            Owners::OursAsTheyAre => mode & 0o777,
        }
    }

    fn own(&self, fd: BorrowedFd<'_>, attributes: &Attributes) -> io::Result<()> {
        if self.owners == Owners::Kept {
            let owner = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
            rustix::fs::fchown(fd, Some(owner.0), Some(owner.1))?;
        }
        Ok(())
    }

    fn set_xattrs(&self, fd: BorrowedFd<'_>, attributes: &Attributes) -> io::Result<()> {
        for (name, value) in &attributes.xattrs {
            let capability = name == b"security.capability";
            if capability && self.owners != Owners::Kept {
                continue;
            }
            match rustix::fs::fsetxattr(fd, name.as_slice(), value, XattrFlags::empty()) {
                // A file system without them is no reason to have no image.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSPC | Errno::PERM | Errno::INVAL) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<Unpacked> {
        self.place = None;
        // The deepest first, and each once: a mode may lock us out of what is below.
        let depth = |path: &Path| path.components().filter(|c| matches!(c, Component::Normal(_))).count();
        let mut dirs = std::mem::take(&mut self.dirs);
        dirs.sort_by(|(a, ..), (b, ..)| depth(b).cmp(&depth(a)).then_with(|| a.cmp(b)));
        // Of several, the last: the order of equals is that of the layer.
        dirs.reverse();
        dirs.dedup_by(|(a, ..), (b, ..)| a == b);
        for (path, mode, mtime) in dirs.into_iter().rev() {
            // It may have been replaced by a later entry.
            let Ok(dir) = open_below(self.view.trees[0], &path) else { continue };
            let mode = match self.owners {
                Owners::Kept => mode,
                Owners::Ours => mode & 0o3777 | 0o700,
                Owners::OursAsTheyAre => mode & 0o3777,
            };
            rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode))?;
            let _ = rustix::fs::futimens(&dir, &times(mtime));
        }
        Ok(self.done)
    }

    /// The parts of a name in a layer, which begins at the layer's root and does not go up.
    fn checked(&self, name: &Path) -> io::Result<Vec<OsString>> {
        let Shape { depth, path_bytes, .. } = self.bounds.shape;
        if name.as_os_str().len() > path_bytes {
            return Err(refuse(
                Path::new("an entry"),
                &format!("its name is longer than {path_bytes} bytes"),
            ));
        }
        if name.components().any(|component| component == Component::ParentDir) {
            return Err(refuse(name, "the name leads outside"));
        }
        let parts = parts(name);
        if parts.len() > depth {
            return Err(refuse(name, &format!("it is deeper than {depth}")));
        }
        Ok(parts)
    }

    fn target(&self, entry: &Entry<'_, impl Read>, name: &Path) -> io::Result<PathBuf> {
        let target = entry.link_name_bytes().filter(|target| !target.is_empty());
        let target = target.ok_or_else(|| refuse(name, "a link to nowhere"))?;
        let most = self.bounds.shape.path_bytes;
        if target.len() > most {
            return Err(refuse(name, &format!("a link to a name of more than {most} bytes")));
        }
        Ok(PathBuf::from(OsString::from_vec(target.into_owned())))
    }

    fn attributes(&self, entry: &mut Entry<'_, impl Read>, name: &Path) -> io::Result<Attributes> {
        let header = entry.header();
        let id = |id: u64| {
            let id = u32::try_from(id).ok().filter(|id| *id != u32::MAX);
            id.ok_or_else(|| refuse(name, "its owner is no number that an owner can have"))
        };
        let (mode, mtime) = (header.mode()? & 0o7777, header.mtime().unwrap_or(0));
        let (uid, gid) = (id(header.uid()?)?, id(header.gid()?)?);
        let (mut xattrs, mut known) = (Vec::new(), HashSet::new());
        if let Some(extensions) = entry.pax_extensions()? {
            for extension in extensions {
                let extension = extension?;
                let key = extension.key_bytes();
                let found = match key.strip_prefix(records::PLAIN) {
                    Some(name) => Some((name, extension.value_bytes().to_vec())),
                    None => records::encoded(key, extension.value_bytes()),
                };
                let Some((name, value)) = found else { continue };
                // Some tools write both.
                let room = xattrs.len() < self.bounds.shape.attributes;
                if is_kept(name) && room && known.insert(name.to_vec()) {
                    xattrs.push((name.to_vec(), value));
                }
            }
        }
        Ok(Attributes { mode, uid, gid, mtime, xattrs })
    }
}

/// Opens a directory of the layer, however long the way to it is.
fn open_below(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let open = |dir: BorrowedFd<'_>, part: &Path, how: OFlags| {
        let flags = how | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = rustix::fs::ResolveFlags::BENEATH | rustix::fs::ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(dir, part, flags, Mode::empty(), resolve)
    };
    let mut at: Option<OwnedFd> = None;
    let mut part = PathBuf::new();
    for name in path {
        if part.as_os_str().len() + name.len() + 1 > PATH_PART_MAX {
            at = Some(open(at.as_ref().map_or(root, AsFd::as_fd), &part, OFlags::PATH)?);
            part.clear();
        }
        part.push(name);
    }
    Ok(open(at.as_ref().map_or(root, AsFd::as_fd), &part, OFlags::RDONLY)?)
}

/// Says on what the kernel refused something: once, where it did.
fn at(name: &Path, error: io::Error) -> io::Error {
    if error.raw_os_error().is_none() {
        return error;
    }
    io::Error::new(error.kind(), format!("cannot unpack {}: {error}", shown(name)))
}

/// The true size of a file that comes without its holes, and its true name if the entry has another.
fn holes(entry: &mut Entry<'_, impl Read>) -> io::Result<Option<(u64, Option<PathBuf>)>> {
    if entry.header().entry_type() != EntryType::Regular {
        return Ok(None);
    }
    let Some(extensions) = entry.pax_extensions()? else { return Ok(None) };
    let mut sparse = Sparse::default();
    for extension in extensions {
        let extension = extension?;
        sparse.take(extension.key_bytes(), extension.value_bytes());
    }
    Ok(sparse.told())
}

/// Attributes that mean the same everywhere, and nothing to overlayfs.
fn is_kept(name: &[u8]) -> bool {
    let own = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
    own && !name.contains(&0) || name == b"security.capability"
}

#[cfg(test)]
mod tests;
