//! Directory trees as layers: every kind of file with all that hangs on it, read and written by descriptor.
//!
//! A layer was written by somebody who may be hostile. Nothing here follows a link, and nothing but regular
//! files and directories is opened. A place in a tree is a [`Way`] from its root, so that a walk holds no
//! descriptor for the levels above it and a tree may be deeper than a path may be long. The trees must not
//! change meanwhile. How far we may look into them is the [`Reach`]'s part.

use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, SeekFrom, Stat, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;

use crate::reach::{Reach, path_in};

/// Bytes of one path that is given to the kernel; longer ways are walked in parts. Below PATH_MAX.
const PATH_PART_MAX: usize = 4000;
/// Bytes of the list of attributes, and of one attribute: the kernel's own bounds.
const ATTRIBUTE_BYTES_MAX: usize = 65_536;
/// Bytes that are read and written at once.
const BUFFER_BYTES: usize = 256 * 1024;
/// Bytes of a place that are shown in a message.
const SHOWN_BYTES_MAX: usize = 300;

/// The way from a tree's root to a directory in it, or to a file.
#[derive(Debug, Clone, Default)]
pub struct Way(Option<Rc<Step>>);

#[derive(Debug)]
struct Step {
    above: Way,
    name: CString,
    depth: usize,
}

impl Way {
    /// One step further.
    pub fn join(&self, name: &CStr) -> Way {
        Way(Some(Rc::new(Step { above: self.clone(), name: name.to_owned(), depth: self.depth() + 1 })))
    }

    /// Steps from the root.
    pub fn depth(&self) -> usize {
        self.0.as_ref().map_or(0, |step| step.depth)
    }

    /// The names of the steps, from the root on.
    pub fn names(&self) -> Vec<&CStr> {
        let mut names = Vec::with_capacity(self.depth());
        let mut at = self;
        while let Some(step) = &at.0 {
            names.push(step.name.as_c_str());
            at = &step.above;
        }
        names.reverse();
        names
    }
}

impl std::fmt::Display for Way {
    /// With what is odd escaped, and the middle of what is long left out.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = String::new();
        for name in self.names() {
            write!(shown, "/{}", name.to_bytes().escape_ascii())?;
        }
        if shown.is_empty() {
            shown.push('/');
        }
        if shown.len() > SHOWN_BYTES_MAX {
            // Escaped: one byte is one letter.
            let half = SHOWN_BYTES_MAX / 2;
            return write!(f, "{}…{}", &shown[..half], &shown[shown.len() - half..]);
        }
        f.write_str(&shown)
    }
}

/// Opens a directory of the tree.
pub fn open_dir(reach: &Reach, root: BorrowedFd<'_>, way: &Way) -> io::Result<OwnedFd> {
    let mut at: Option<OwnedFd> = None;
    let mut part = Vec::new();
    for name in way.names() {
        if part.len() + name.to_bytes().len() + 1 > PATH_PART_MAX {
            at = Some(open_part(reach, at.as_ref().map_or(root, AsFd::as_fd), &part, OFlags::PATH)?);
            part.clear();
        }
        if !part.is_empty() {
            part.push(b'/');
        }
        part.extend(name.to_bytes());
    }
    if part.is_empty() {
        part.push(b'.');
    }
    open_part(reach, at.as_ref().map_or(root, AsFd::as_fd), &part, OFlags::RDONLY)
}

fn open_part(reach: &Reach, dir: BorrowedFd<'_>, path: &[u8], how: OFlags) -> io::Result<OwnedFd> {
    let flags = how | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    Ok(reach.open(dir, path, flags, resolve)?)
}

/// Opens one directory in a directory, only as a place to look from.
pub fn open_step(reach: &Reach, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    open_part(reach, dir, name.to_bytes(), OFlags::PATH)
}

/// Opens a regular file for reading. What is none is refused without waiting for anybody.
pub fn open_file(reach: &Reach, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let file = reach.open(dir, name.to_bytes(), flags, resolve)?;
    if kind(&rustix::fs::fstat(&file)?) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file any more"));
    }
    Ok(file)
}

/// Makes a new regular file for writing, which is its owner's alone until it gets its attributes.
pub fn create_file(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?)
}

/// The names in a directory with their kinds, in no order. One more than `max` at most: then there are too
/// many.
pub fn entries(reach: &Reach, dir: BorrowedFd<'_>, max: usize) -> io::Result<Vec<(CString, FileType)>> {
    let mut found = Vec::new();
    // A descriptor of its own: the place in a directory is shared by all copies of one.
    for entry in Dir::new(open_part(reach, dir, b".", OFlags::RDONLY)?)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => kind(&stat(reach, dir, name)?),
            known => known,
        };
        found.push((name.to_owned(), kind));
        if found.len() > max {
            break;
        }
    }
    Ok(found)
}

/// What an entry is. No link is followed.
pub fn stat(reach: &Reach, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Stat> {
    Ok(reach.stat(dir, name)?)
}

/// The kind of a file.
pub fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Whether this is overlayfs's mark for a name that is not there: the character device 0:0.
pub fn is_whiteout(stat: &Stat) -> bool {
    kind(stat) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// Makes what is neither a regular file nor a directory, as `stat` and, for a link, the original say.
pub fn create_other(
    reach: &Reach,
    from: BorrowedFd<'_>,
    into: BorrowedFd<'_>,
    name: &CStr,
    stat: &Stat,
) -> io::Result<()> {
    match kind(stat) {
        FileType::Symlink => {
            let target = reach.read_link(from, name)?;
            rustix::fs::symlinkat(target.as_c_str(), into, name)?;
        }
        kind => rustix::fs::mknodat(into, name, kind, Mode::RUSR | Mode::WUSR, stat.st_rdev)?,
    }
    Ok(())
}

/// A file whose attributes are meant.
#[derive(Debug, Clone, Copy)]
pub enum Spot<'a> {
    /// By its own descriptor: a regular file or a directory.
    Open(BorrowedFd<'a>),
    /// By its name in a directory: anything.
    Named(BorrowedFd<'a>, &'a CStr),
}

impl Spot<'_> {
    fn list(self, reach: &Reach, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Spot::Open(fd) => reach.list(fd, None, buffer),
            Spot::Named(dir, name) => reach.list(dir, Some(name), buffer),
        }
    }

    fn get(self, reach: &Reach, name: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Spot::Open(fd) => reach.attribute(fd, None, name, buffer),
            Spot::Named(dir, entry) => reach.attribute(dir, Some(entry), name, buffer),
        }
    }

    fn set(self, name: &CStr, value: &[u8]) -> Result<(), Errno> {
        let flags = XattrFlags::empty();
        match self {
            Spot::Open(fd) => rustix::fs::fsetxattr(fd, name, value, flags),
            Spot::Named(dir, entry) => rustix::fs::lsetxattr(path_in(dir, entry), name, value, flags),
        }
    }

    fn own(self, stat: &Stat) -> Result<(), Errno> {
        let (uid, gid) = (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)));
        match self {
            Spot::Open(fd) => rustix::fs::fchown(fd, uid, gid),
            Spot::Named(dir, name) => rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    fn stat(self) -> io::Result<Stat> {
        match self {
            Spot::Open(fd) => Ok(rustix::fs::fstat(fd)?),
            Spot::Named(dir, name) => Ok(rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?),
        }
    }
}

/// One attribute of an entry. `None`: it has none of this name, or its file system knows no attributes.
pub fn attribute(
    reach: &Reach,
    dir: BorrowedFd<'_>,
    name: &CStr,
    attribute: &CStr,
) -> io::Result<Option<Vec<u8>>> {
    // What is asked for here are short marks. A longer one takes a second try.
    let mut small = [0; 512];
    let spot = Spot::Named(dir, name);
    match spot.get(reach, attribute, &mut small) {
        Ok(got) => Ok(Some(small[..got].to_vec())),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(Errno::RANGE) => {
            let mut large = vec![0; ATTRIBUTE_BYTES_MAX];
            let got = spot.get(reach, attribute, &mut large)?;
            large.truncate(got);
            Ok(Some(large))
        }
        Err(e) => Err(e.into()),
    }
}

/// Sets one attribute of an open directory or file.
pub fn set_attribute(fd: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> io::Result<()> {
    Ok(Spot::Open(fd).set(name, value)?)
}

/// Copies trees' attributes and contents; holds the buffers, and what was learnt about the file system.
#[derive(Debug)]
pub struct Copier {
    names: Vec<u8>,
    value: Vec<u8>,
    content: Vec<u8>,
    clones: bool,
    ranges: bool,
    /// Bytes of content that may still be copied.
    left: u64,
}

impl Default for Copier {
    fn default() -> Copier {
        Copier::bounded(u64::MAX)
    }
}

/// How a content came over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// Both files share it until one of them is written.
    Cloned,
    /// So many bytes were copied; holes are none.
    Copied(u64),
}

impl Copier {
    /// One that copies no more bytes of content than this, all files together.
    pub fn bounded(bytes: u64) -> Copier {
        Copier {
            names: vec![0; ATTRIBUTE_BYTES_MAX],
            value: vec![0; ATTRIBUTE_BYTES_MAX],
            content: Vec::new(),
            clones: true,
            ranges: true,
            left: bytes,
        }
    }

    /// Gives `to` the owner, attributes, mode and times of `from`, in the order in which none of them undoes
    /// another: a new owner takes set-id bits and capabilities away, an attribute needs a file that may be
    /// written. `wanted` says which attributes come along.
    pub fn attributes(
        &mut self,
        reach: &Reach,
        from: Spot<'_>,
        to: Spot<'_>,
        stat: &Stat,
        mut wanted: impl FnMut(&[u8]) -> bool,
    ) -> io::Result<()> {
        let new = to.stat()?;
        if (new.st_uid, new.st_gid) != (stat.st_uid, stat.st_gid) {
            to.own(stat)?;
        }
        self.extended(reach, from, to, &mut wanted)?;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        match to {
            Spot::Open(fd) => rustix::fs::fchmod(fd, mode)?,
            // Links have no mode of their own, and would be followed.
            Spot::Named(..) if kind(stat) == FileType::Symlink => {}
            Spot::Named(dir, name) => rustix::fs::chmodat(dir, name, mode, AtFlags::empty())?,
        }
        let times = Timestamps {
            last_access: Timespec { tv_sec: stat.st_atime as _, tv_nsec: stat.st_atime_nsec as _ },
            last_modification: Timespec { tv_sec: stat.st_mtime as _, tv_nsec: stat.st_mtime_nsec as _ },
        };
        match to {
            Spot::Open(fd) => rustix::fs::futimens(fd, &times)?,
            Spot::Named(dir, name) => {
                rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
        }
        Ok(())
    }

    fn extended(
        &mut self,
        reach: &Reach,
        from: Spot<'_>,
        to: Spot<'_>,
        wanted: &mut impl FnMut(&[u8]) -> bool,
    ) -> io::Result<()> {
        let listed = match from.list(reach, &mut self.names) {
            Err(Errno::OPNOTSUPP) => 0,
            listed => listed?,
        };
        for name in self.names[..listed].split_inclusive(|&b| b == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
            if !wanted(name.to_bytes()) {
                continue;
            }
            let got = match from.get(reach, name, &mut self.value) {
                // Listed, yet not for us.
                Err(Errno::NODATA) => continue,
                got => got?,
            };
            match to.set(name, &self.value[..got]) {
                // Labels of the host's own security modules are theirs to set.
                Err(Errno::PERM | Errno::OPNOTSUPP)
                    if name.to_bytes().starts_with(b"security.") && name != c"security.capability" => {}
                set => set.map_err(|e| named(e, name))?,
            }
        }
        Ok(())
    }

    /// Copies the content of a regular file into a new, empty one. Holes stay holes.
    pub fn content(&mut self, from: BorrowedFd<'_>, into: BorrowedFd<'_>, stat: &Stat) -> io::Result<Moved> {
        let size = stat.st_size.max(0) as u64;
        if size == 0 {
            return Ok(Moved::Copied(0));
        }
        if self.clones {
            match rustix::fs::ioctl_ficlone(into, from) {
                Ok(()) => return Ok(Moved::Cloned),
                Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::NOTTY | Errno::NOSYS | Errno::INVAL) => {
                    self.clones = false;
                }
                Err(e) => return Err(e.into()),
            }
        }
        // As many blocks as bytes: there is no hole to look for.
        if (stat.st_blocks as u64).saturating_mul(512) >= size {
            return Ok(Moved::Copied(self.extent(from, into, 0, size)?));
        }
        rustix::fs::ftruncate(into, size)?;
        let (mut at, mut copied) = (0, 0);
        while at < size {
            let data = match rustix::fs::seek(from, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => break,
                // Such a file system knows no holes.
                Err(Errno::INVAL) => return Ok(Moved::Copied(copied + self.extent(from, into, at, size)?)),
                data => data?,
            };
            let end = rustix::fs::seek(from, SeekFrom::Hole(data))?.min(size);
            if end <= data {
                break;
            }
            copied += self.extent(from, into, data, end)?;
            at = end;
        }
        Ok(Moved::Copied(copied))
    }

    /// Copies the bytes from `start` to `end`.
    fn extent(
        &mut self,
        from: BorrowedFd<'_>,
        into: BorrowedFd<'_>,
        start: u64,
        end: u64,
    ) -> io::Result<u64> {
        self.left = self.left.checked_sub(end - start).ok_or(Errno::FBIG)?;
        let (mut read_at, mut write_at) = (start, start);
        // What fits the buffer is quicker through it.
        while self.ranges && end - read_at > BUFFER_BYTES as u64 {
            let want = usize::try_from(end - read_at).unwrap_or(usize::MAX);
            match rustix::fs::copy_file_range(from, Some(&mut read_at), into, Some(&mut write_at), want) {
                Ok(0) => break,
                Ok(_) => {}
                Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => self.ranges = false,
                Err(e) => return Err(e.into()),
            }
        }
        self.content.resize(BUFFER_BYTES, 0);
        while read_at < end {
            let want = (end - read_at).min(BUFFER_BYTES as u64) as usize;
            let got =
                rustix::io::retry_on_intr(|| rustix::io::pread(from, &mut self.content[..want], read_at))?;
            if got == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it became shorter while it was read",
                ));
            }
            let mut done = 0;
            while done < got {
                let at = read_at + done as u64;
                done += rustix::io::retry_on_intr(|| rustix::io::pwrite(into, &self.content[done..got], at))?;
            }
            read_at += got as u64;
        }
        Ok(end - start)
    }
}

fn named(error: Errno, name: &CStr) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(error.kind(), format!("attribute {}: {error}", name.to_bytes().escape_ascii()))
}

/// Whether at this moment nobody holds the open file for writing or has it mapped to write. `false` too when
/// the file system cannot tell.
///
/// A lease for reading is given only then, by the kernel's own count. It is given back at once.
pub fn nobody_writes(file: BorrowedFd<'_>) -> bool {
    // fcntl.h's number, which libc lacks.
    const F_SETSIG: libc::c_int = 10;
    let fd = file.as_raw_fd();
    // Who opens the file meanwhile makes the kernel send a signal: one that is ignored unless somebody asked
    // for it, not SIGIO, which ends a process. SAFETY: the call takes numbers, and the descriptor is open
    // while it is borrowed.
    if unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) } != 0 {
        return false;
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) } != 0 {
        return false;
    }
    // SAFETY: as above.
    unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) == 0 }
}

/// Whether this is a directory, open to be read, of a file system in memory that holds at most so much. An error: it is
/// not.
pub fn is_memory(dir: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let not = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what.to_owned()));
    if kind(&rustix::fs::fstat(dir)?) != FileType::Directory {
        return not("it is no directory");
    }
    if rustix::fs::fcntl_getfl(dir)?.contains(OFlags::PATH) {
        return not("it is not open");
    }
    let disk = rustix::fs::fstatfs(dir)?;
    let (block, blocks) = (disk.f_bsize.max(1) as u64, disk.f_blocks as u64);
    if disk.f_type as u64 != libc::TMPFS_MAGIC as u64 || blocks > bytes.div_ceil(block) {
        return not("it is not in memory, or larger than it may be");
    }
    Ok(())
}

/// Whether a write through a mapping shows in the times of the file. In memory-only file systems it does not.
pub fn mapped_writes_show(dir: BorrowedFd<'_>) -> io::Result<bool> {
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    const IN_MEMORY: [u64; 2] = [libc::TMPFS_MAGIC as u64, RAMFS_MAGIC];
    Ok(!IN_MEMORY.contains(&(rustix::fs::fstatfs(dir)?.f_type as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_way_leads_deeper_than_a_path_may_be_long() {
        let dir = tempfile::tempdir().unwrap();
        let root = File::open(dir.path()).unwrap();
        let name = CString::new([b'n'; 255]).unwrap();
        let mut way = Way::default();
        for _ in 0..40 {
            let at = open_dir(&Reach::own(), root.as_fd(), &way).unwrap();
            rustix::fs::mkdirat(&at, name.as_c_str(), Mode::RWXU).unwrap();
            way = way.join(&name);
        }
        let at = open_dir(&Reach::own(), root.as_fd(), &way).unwrap();
        assert_eq!(entries(&Reach::own(), at.as_fd(), 10).unwrap(), []);
        let shown = way.to_string();
        assert!(shown.starts_with("/nnn") && shown.len() < SHOWN_BYTES_MAX + 10, "{shown}");
        crate::tree::remove(root.as_fd(), name.to_str().unwrap()).unwrap();
    }

    #[test]
    fn a_way_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("real/below")).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
        let root = File::open(dir.path()).unwrap();
        let way = |first: &CStr| Way::default().join(first).join(c"below");
        open_dir(&Reach::own(), root.as_fd(), &way(c"real")).unwrap();
        open_dir(&Reach::own(), root.as_fd(), &way(c"link")).unwrap_err();
        open_step(&Reach::own(), root.as_fd(), c"link").unwrap_err();
        open_file(&Reach::own(), root.as_fd(), c"link").unwrap_err();
    }

    #[test]
    fn only_a_directory_in_memory_within_its_bound_is_taken_for_one() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let on_disk = File::open(dir.path()).unwrap();
        let file = File::create(dir.path().join("file")).unwrap();
        for fd in [on_disk.as_fd(), file.as_fd()] {
            is_memory(fd, u64::MAX).unwrap_err();
        }
        let memory = File::open("/dev/shm").unwrap();
        let disk = rustix::fs::fstatfs(&memory).unwrap();
        if disk.f_type as u64 != libc::TMPFS_MAGIC as u64 {
            return;
        }
        let bytes = disk.f_blocks as u64 * disk.f_bsize as u64;
        is_memory(memory.as_fd(), bytes).unwrap();
        is_memory(memory.as_fd(), bytes - disk.f_bsize as u64).unwrap_err();
        let place = rustix::fs::open("/dev/shm", OFlags::PATH, Mode::empty()).unwrap();
        is_memory(place.as_fd(), bytes).unwrap_err();
    }

    #[test]
    fn a_copy_ends_at_its_bound_all_files_together() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::write(dir.path().join("from"), vec![1; 10_000]).unwrap();
        let from = File::open(dir.path().join("from")).unwrap();
        let stat = rustix::fs::fstat(&from).unwrap();
        let mut copier = Copier { clones: false, ..Copier::bounded(25_000) };
        let mut copy = |name| {
            let into = File::create(dir.path().join(name)).unwrap();
            copier.content(from.as_fd(), into.as_fd(), &stat)
        };
        assert_eq!(copy("a").unwrap(), Moved::Copied(10_000));
        assert_eq!(copy("b").unwrap(), Moved::Copied(10_000));
        assert_eq!(copy("c").unwrap_err().raw_os_error(), Some(Errno::FBIG.raw_os_error()));
    }

    #[test]
    fn who_holds_a_file_for_writing_is_seen() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reader = File::open(file.path()).unwrap();
        assert!(!nobody_writes(reader.as_fd()));
        let path = file.into_temp_path();
        assert!(nobody_writes(reader.as_fd()));
        let writer = File::options().append(true).open(&path).unwrap();
        assert!(!nobody_writes(reader.as_fd()));
        drop(writer);
        assert!(nobody_writes(reader.as_fd()));
    }

    #[test]
    fn a_copy_of_a_sparse_file_has_its_holes_and_all_its_bytes() {
        use std::os::unix::fs::{FileExt, MetadataExt};
        let dir = tempfile::tempdir().unwrap();
        let from = File::create_new(dir.path().join("from")).unwrap();
        from.set_len(1 << 40).unwrap();
        for at in [0, 10 << 20, (1 << 40) - 1] {
            from.write_all_at(b"x", at).unwrap();
        }
        from.write_all_at(&vec![7; 3 << 20], 100 << 20).unwrap();
        let (root, from) = (File::open(dir.path()).unwrap(), File::open(dir.path().join("from")).unwrap());
        let into = create_file(root.as_fd(), c"into").unwrap();
        let stat = rustix::fs::fstat(&from).unwrap();
        let moved = Copier::default().content(from.as_fd(), into.as_fd(), &stat).unwrap();
        assert!(!matches!(moved, Moved::Copied(n) if n > 4 << 20), "{moved:?}");
        let into = File::open(dir.path().join("into")).unwrap();
        assert_eq!(into.metadata().unwrap().size(), 1 << 40);
        assert!(into.metadata().unwrap().blocks() * 512 < 4 << 20);
        for (at, byte) in [(0, b'x'), (1, 0), (10 << 20, b'x'), ((1 << 40) - 1, b'x'), (103 << 20, 0)] {
            let mut got = [9];
            into.read_exact_at(&mut got, at).unwrap();
            assert_eq!(got, [byte], "{at}");
        }
        let mut got = vec![0; 3 << 20];
        into.read_exact_at(&mut got, 100 << 20).unwrap();
        assert!(got.iter().all(|&b| b == 7));
    }
}
