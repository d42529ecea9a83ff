//! Trees as tar streams, both ways, with nothing believed of a stream that somebody else made.
//!
//! Packing follows no link and leaves out what is no file, directory or link. Unpacking resolves every name below one
//! directory with `openat2`, so that neither `..`, nor an absolute name, nor a link unpacked a moment before leads
//! outside; devices are refused, set-id bits are dropped, and the number of entries is bounded.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use tar::{Builder, EntryType, Header};

use crate::metered::metered;

/// Entries of one archive.
pub const ENTRIES_MAX: u64 = 1_000_000;
/// Bytes of headers before one entry of an archive that is unpacked.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// A tree deeper than this is not packed.
pub const DEPTH_MAX: usize = 512;

/// Files with several names whose names are kept in memory. Beyond that, each name is a file of its own.
const LINKED_MAX: usize = 200_000;

/// Bytes of the names of directories whose times are kept in memory. Beyond that, directories have the time of their unpacking.
const DIR_NAMES_BYTES_MAX: usize = 64 << 20;

/// What was unpacked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
}

/// Which bits of a file's mode are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    /// Who may read, write and execute: for files that go somewhere else, whoever they are given to.
    Permissions,
    /// Sticky and set-id bits, too: for a root that is to be what it was.
    All,
}

/// Writes the tree (or the one file) as tar. Names in it are relative; a directory's own entry is `./`. The rules are for the way to
/// it, links included.
pub fn pack(path: &Path, rules: ResolveFlags, bits: Bits, out: impl Write) -> io::Result<()> {
    let mut packer = Packer { builder: Builder::new(out), bits, linked: HashMap::new() };
    packer.builder.mode(tar::HeaderMode::Complete);
    let open = |flags| crate::resolve::open(CWD, path, flags | OFlags::CLOEXEC, Mode::empty(), rules);
    let stat = rustix::fs::fstat(open(OFlags::PATH)?)?;
    match kind(&stat) {
        FileType::Directory => {
            let dir = open(OFlags::DIRECTORY)?;
            packer.append(Path::new("./"), EntryType::Directory, &stat, None, io::empty(), 0)?;
            packer.dir(dir.as_fd(), Path::new(""), 0)?;
        }
        FileType::RegularFile => {
            let file = File::from(open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?);
            let name = path.file_name().unwrap_or(OsStr::new("file"));
            packer.content(Path::new(name), &stat, file)?;
        }
        _ => {}
    }
    packer.builder.into_inner()?.flush()
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Says where in the tree something failed: once, where it did.
fn at(name: &Path, error: io::Error) -> io::Error {
    if error.raw_os_error().is_none() {
        return error;
    }
    io::Error::new(error.kind(), format!("{}: {error}", show(name)))
}

struct Packer<W: Write> {
    builder: Builder<W>,
    bits: Bits,
    /// Files that may come again under other names: the first name of each.
    linked: HashMap<(u64, u64), PathBuf>,
}

impl<W: Write> Packer<W> {
    fn dir(&mut self, dir: BorrowedFd<'_>, name: &Path, depth: usize) -> io::Result<()> {
        if depth > DEPTH_MAX {
            let message = format!("{}: the tree is deeper than {DEPTH_MAX}", name.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let mut names = Vec::new();
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                names.push(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
            }
        }
        names.sort();
        for entry in names {
            let stat = match rustix::fs::statat(dir, &entry, AtFlags::SYMLINK_NOFOLLOW) {
                // Gone while we looked.
                Err(rustix::io::Errno::NOENT) => continue,
                other => other?,
            };
            let name = name.join(&entry);
            self.one(dir, Path::new(&entry), &name, &stat, depth).map_err(|e| at(&name, e))?;
        }
        Ok(())
    }

    fn one(
        &mut self,
        dir: BorrowedFd<'_>,
        entry: &Path,
        name: &Path,
        stat: &Stat,
        depth: usize,
    ) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        match kind(stat) {
            FileType::RegularFile => {
                if let Some(first) = self.other_name(name, stat) {
                    return self.append(name, EntryType::Link, stat, Some(&first), io::empty(), 0);
                }
                self.content(name, stat, File::from(rustix::fs::openat(dir, entry, flags, Mode::empty())?))
            }
            FileType::Directory => {
                self.append(name, EntryType::Directory, stat, None, io::empty(), 0)?;
                let below = rustix::fs::openat(dir, entry, flags | OFlags::DIRECTORY, Mode::empty())?;
                self.dir(below.as_fd(), name, depth + 1)
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, entry, Vec::new())?;
                let target = PathBuf::from(OsStr::from_bytes(target.to_bytes()));
                self.append(name, EntryType::Symlink, stat, Some(&target), io::empty(), 0)
            }
            // Pipes, sockets and devices mean nothing elsewhere.
            _ => Ok(()),
        }
    }

    fn content(&mut self, name: &Path, stat: &Stat, file: File) -> io::Result<()> {
        let size = file.metadata()?.len();
        // Exactly as many bytes as the header says, whatever happens to the file meanwhile.
        let content = file.take(size).chain(io::repeat(0));
        self.append(name, EntryType::Regular, stat, None, content, size)
    }

    /// The name under which a root's file was packed before. Copies that go elsewhere are files of their own.
    fn other_name(&mut self, name: &Path, stat: &Stat) -> Option<PathBuf> {
        if self.bits != Bits::All || stat.st_nlink < 2 {
            return None;
        }
        let key = (stat.st_dev, stat.st_ino);
        let first = self.linked.get(&key).cloned();
        if first.is_none() && self.linked.len() < LINKED_MAX {
            self.linked.insert(key, name.to_owned());
        }
        first
    }

    fn append(
        &mut self,
        name: &Path,
        entry: EntryType,
        stat: &Stat,
        link: Option<&Path>,
        content: impl Read,
        size: u64,
    ) -> io::Result<()> {
        let bits = match self.bits {
            Bits::Permissions => 0o777,
            Bits::All => 0o7777,
        };
        let mut header = Header::new_gnu();
        header.set_entry_type(entry);
        header.set_mode(stat.st_mode & bits);
        header.set_uid(u64::from(stat.st_uid));
        header.set_gid(u64::from(stat.st_gid));
        header.set_mtime(stat.st_mtime.max(0) as u64);
        header.set_size(size);
        match link {
            // To the letter, where it has room: a call for paths would tidy it up.
            Some(target) if header.set_link_name_literal(target.as_os_str().as_bytes()).is_ok() => {
                self.builder.append_data(&mut header, name, io::empty())
            }
            Some(target) => self.builder.append_link(&mut header, name, target),
            None => self.builder.append_data(&mut header, name, content.take(size)),
        }
    }
}

/// Unpacks below the directory, however much it is.
pub fn unpack(stream: impl Read, into: BorrowedFd<'_>) -> io::Result<Unpacked> {
    unpack_at_most(stream, into, u64::MAX)
}

/// Unpacks below the directory, and stops with an error before it writes more than `bytes_max`.
pub fn unpack_at_most(stream: impl Read, into: BorrowedFd<'_>, bytes_max: u64) -> io::Result<Unpacked> {
    let (mut archive, allowance) = metered(stream, HEADER_BYTES_MAX);
    let mut done = Unpacked::default();
    let (mut dir_times, mut names_bytes) = (Vec::new(), 0);
    let mut entries = archive.entries()?;
    loop {
        allowance.for_headers();
        let Some(entry) = entries.next() else { break };
        let mut entry = entry?;
        allowance.for_content();
        done.entries += 1;
        if done.entries > ENTRIES_MAX {
            return Err(refuse("the archive", &format!("it has more than {ENTRIES_MAX} entries")));
        }
        let name = entry.path()?.into_owned();
        let parts = normal_parts(&name)?;
        let mode = entry.header().mode()? & 0o777;
        let mtime = entry.header().mtime().unwrap_or(0);
        match entry.header().entry_type() {
            EntryType::Directory => {
                let dir = make_dirs(into, &parts, &name)?;
                if !parts.is_empty() {
                    rustix::fs::chmodat(&dir, ".", Mode::from_raw_mode(mode | 0o700), AtFlags::empty())?;
                    names_bytes += name.as_os_str().len();
                    if names_bytes <= DIR_NAMES_BYTES_MAX {
                        dir_times.push((parts.iter().collect::<PathBuf>(), mtime));
                    }
                }
            }
            EntryType::Regular | EntryType::Continuous => {
                if done.bytes.saturating_add(entry.size()) > bytes_max {
                    return Err(refuse(&show(&name), &format!("the tree is larger than {bytes_max} bytes")));
                }
                let (parent, last) = parent_of(into, &parts, &name)?;
                replace(&parent, last)?;
                let flags =
                    OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let file = rustix::fs::openat(&parent, last, flags, Mode::from_raw_mode(mode))
                    .map_err(|e| refuse_at(&name, e.into()))?;
                let mut file = File::from(file);
                done.bytes += copy_with_holes(&mut entry, &mut file).map_err(|e| refuse_at(&name, e))?;
                rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
                let _ = rustix::fs::futimens(&file, &times(mtime));
            }
            EntryType::Symlink => {
                let (parent, last) = parent_of(into, &parts, &name)?;
                let target = entry.link_name()?.ok_or_else(|| refuse(&show(&name), "a link to nowhere"))?;
                replace(&parent, last)?;
                rustix::fs::symlinkat(&*target, &parent, last).map_err(|e| refuse_at(&name, e.into()))?;
            }
            EntryType::Link => {
                let (parent, last) = parent_of(into, &parts, &name)?;
                let target = entry.link_name()?.ok_or_else(|| refuse(&show(&name), "a link to nowhere"))?;
                let target_parts = normal_parts(&target)?;
                let (from, from_last) = parent_of(into, &target_parts, &target)?;
                replace(&parent, last)?;
                rustix::fs::linkat(&from, from_last, &parent, last, AtFlags::empty())
                    .map_err(|e| refuse_at(&name, e.into()))?;
            }
            EntryType::XGlobalHeader => {}
            _ => return Err(refuse(&show(&name), "only files, directories and links are taken")),
        }
        io::copy(&mut entry, &mut io::sink())?;
    }
    // Directories last: what is made in them changes their time.
    for (dir, mtime) in dir_times.iter().rev() {
        if let Ok(fd) = beneath(into, dir) {
            let _ = rustix::fs::utimensat(&fd, ".", &times(*mtime), AtFlags::empty());
        }
    }
    Ok(done)
}

/// Copies, and leaves out what is zeros: a file that cost its maker nothing costs us no disk either.
pub(crate) fn copy_with_holes(from: &mut impl Read, to: &mut File) -> io::Result<u64> {
    let mut buffer = vec![0; 64 * 1024];
    let mut total = 0;
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            to.set_len(total)?;
            return Ok(total);
        }
        write_or_skip(to, &buffer[..n])?;
        total += n as u64;
    }
}

/// Writes a piece, or moves on if it is nothing but zeros. The length has to be set at the end.
pub fn write_or_skip(file: &mut File, piece: &[u8]) -> io::Result<()> {
    if piece.iter().all(|&byte| byte == 0) {
        file.seek(SeekFrom::Current(piece.len() as i64)).map(|_| ())
    } else {
        file.write_all(piece)
    }
}

fn show(name: &Path) -> String {
    name.to_string_lossy().escape_debug().to_string()
}

fn refuse(name: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("cannot unpack {name}: {why}"))
}

fn refuse_at(name: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot unpack {}: {error}", show(name)))
}

/// The parts of a name that stays where it is unpacked.
fn normal_parts(name: &Path) -> io::Result<Vec<&OsStr>> {
    let mut parts = Vec::new();
    for component in name.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(part) => parts.push(part),
            _ => return Err(refuse(&show(name), "the name leads outside")),
        }
    }
    if parts.len() > DEPTH_MAX {
        return Err(refuse(&show(name), &format!("it is deeper than {DEPTH_MAX}")));
    }
    Ok(parts)
}

fn beneath(dir: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    if path.as_os_str().is_empty() {
        return rustix::fs::openat(dir, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    crate::resolve::open(dir, path, flags, Mode::empty(), resolve)
}

fn make_dirs(into: BorrowedFd<'_>, parts: &[&OsStr], name: &Path) -> io::Result<OwnedFd> {
    let mut path = PathBuf::new();
    let mut at = beneath(into, &path)?;
    for part in parts {
        match rustix::fs::mkdirat(&at, *part, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(refuse_at(name, e.into())),
        }
        path.push(part);
        // From the top each time: a link on the way is followed only as far as it stays below.
        at = beneath(into, &path).map_err(|e| refuse_at(name, e.into()))?;
    }
    Ok(at)
}

fn parent_of<'a>(into: BorrowedFd<'_>, parts: &[&'a OsStr], name: &Path) -> io::Result<(OwnedFd, &'a OsStr)> {
    let (last, parents) = parts.split_last().ok_or_else(|| refuse(&show(name), "the name is empty"))?;
    Ok((make_dirs(into, parents, name)?, last))
}

fn replace(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::ISDIR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

pub(crate) fn times(mtime: u64) -> rustix::fs::Timestamps {
    // Beyond the year 9999 it is a mistake or a joke.
    let time = rustix::fs::Timespec { tv_sec: mtime.min(253_402_300_799) as _, tv_nsec: 0 };
    rustix::fs::Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive with one entry after a header of so many bytes.
    fn with_long_name(bytes: usize) -> Vec<u8> {
        let mut made = Vec::new();
        let mut builder = Builder::new(&mut made);
        let mut long = Header::new_gnu();
        long.set_entry_type(EntryType::GNULongName);
        long.set_size(bytes as u64);
        long.set_cksum();
        builder.append(&long, io::repeat(b'a').take(bytes as u64)).unwrap();
        let mut file = Header::new_gnu();
        file.set_path("file").unwrap();
        file.set_mode(0o644);
        file.set_size(0);
        file.set_cksum();
        builder.append(&file, io::empty()).unwrap();
        builder.finish().unwrap();
        drop(builder);
        made
    }

    #[test]
    fn headers_without_end_are_refused_before_they_are_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let into = File::open(dir.path()).unwrap();
        let error = unpack(&with_long_name(2 << 20)[..], into.as_fd()).unwrap_err();
        assert!(error.to_string().contains("headers of an entry are larger"), "{error}");
        assert_eq!(unpack(&with_long_name(200)[..], into.as_fd()).unwrap().entries, 1);
    }
}
