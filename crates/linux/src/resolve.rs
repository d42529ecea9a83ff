//! Opening a path under rules (`openat2`), also on kernels that do not have that call: gVisor's has not.
//!
//! Where the kernel has it, it is asked and nobody else. Elsewhere the path is walked name by name, each opened below the one
//! before without following it. Links are read and followed as text, so a link of /proc that leads where its text does not
//! (a descriptor, another root) leads nowhere else. Somebody who changes the tree meanwhile changes which of its files are
//! found, as ever, and not which rules hold. One of them holds for directories alone: a file that is on another device may be
//! one of the same mount there (gVisor's overlay).

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlinkat};
use rustix::io::{Errno, Result};

/// Links that are followed on the way to one file, as in the kernel.
const LINKS_MAX: usize = 40;
/// Bytes of a path, with what its links say.
const PATH_BYTES_MAX: usize = 64 * 1024;

/// Opens a path below a directory, or from it, as the rules have it.
pub fn open(
    dir: BorrowedFd<'_>,
    path: impl AsRef<Path>,
    flags: OFlags,
    mode: Mode,
    rules: ResolveFlags,
) -> Result<OwnedFd> {
    let path = path.as_ref();
    match openat2(dir, path, flags, mode, rules) {
        Err(Errno::NOSYS) => walk(dir, path.as_os_str().as_bytes(), flags, mode, rules),
        opened => opened,
    }
}

const STEP: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The directories that a walk has come through, the last of them where it is.
struct Trail<'a> {
    start: BorrowedFd<'a>,
    dirs: Vec<OwnedFd>,
    rules: ResolveFlags,
    device: u64,
}

impl Trail<'_> {
    fn here(&self) -> BorrowedFd<'_> {
        self.dirs.last().map_or(self.start, AsFd::as_fd)
    }

    fn up(&mut self) -> Result<()> {
        if self.rules.contains(ResolveFlags::BENEATH) {
            // Not by the name `..`: who moves a directory meanwhile would move us out.
            return self.dirs.pop().map(drop).ok_or(Errno::XDEV);
        }
        let above = openat(self.here(), "..", STEP | OFlags::DIRECTORY, Mode::empty())?;
        self.enter(above)
    }

    /// Begins again at the root, if that is allowed.
    fn begin_at_root(&mut self) -> Result<()> {
        if self.rules.contains(ResolveFlags::BENEATH) {
            return Err(Errno::XDEV);
        }
        self.dirs.clear();
        let root = openat(CWD, "/", STEP | OFlags::DIRECTORY, Mode::empty())?;
        self.enter(root)
    }

    fn enter(&mut self, dir: OwnedFd) -> Result<()> {
        self.stays(&dir)?;
        if !self.rules.contains(ResolveFlags::BENEATH) {
            // The way back is asked of the kernel.
            self.dirs.clear();
        }
        self.dirs.push(dir);
        Ok(())
    }

    /// Refuses what is on another device, if that is a rule.
    fn stays(&self, fd: &OwnedFd) -> Result<()> {
        let crosses = self.rules.contains(ResolveFlags::NO_XDEV) && fstat(fd)?.st_dev != self.device;
        if crosses { Err(Errno::XDEV) } else { Ok(()) }
    }
}

/// The names of a path, before those that are still to be gone through.
fn put(path: &[u8], names: &mut VecDeque<Vec<u8>>) {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    for part in parts.rev() {
        names.push_front(part.to_vec());
    }
}

fn walk(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: Mode, rules: ResolveFlags) -> Result<OwnedFd> {
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    let is_checked = rules.contains(ResolveFlags::NO_XDEV);
    let device = if is_checked { fstat(dir)?.st_dev } else { 0 };
    let mut trail = Trail { start: dir, dirs: Vec::new(), rules, device };
    let (mut names, mut links, mut bytes) = (VecDeque::new(), 0, path.len());
    put(path, &mut names);
    if path[0] == b'/' {
        trail.begin_at_root()?;
    }
    while let Some(name) = names.pop_front() {
        if name == b".." {
            trail.up()?;
            continue;
        }
        let is_last = names.is_empty();
        let here = trail.here();
        let step = match openat(here, &name[..], STEP, Mode::empty()) {
            // What is not there can be made.
            Err(Errno::NOENT) if is_last && flags.contains(OFlags::CREATE) => {
                return last(here, &name, flags, mode);
            }
            step => step?,
        };
        let kind = FileType::from_raw_mode(fstat(&step)?.st_mode);
        if is_last && (kind != FileType::Symlink || flags.contains(OFlags::NOFOLLOW)) {
            if kind == FileType::Directory {
                trail.stays(&step)?;
            }
            return last(here, &name, flags, mode);
        }
        match kind {
            FileType::Symlink => {}
            FileType::Directory => {
                trail.enter(step)?;
                continue;
            }
            _ => return Err(Errno::NOTDIR),
        }
        links += 1;
        if links > LINKS_MAX || rules.contains(ResolveFlags::NO_SYMLINKS) {
            return Err(Errno::LOOP);
        }
        let target = readlinkat(here, &name[..], Vec::new())?.into_bytes();
        bytes += target.len();
        if bytes > PATH_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        put(&target, &mut names);
        if target.first() == Some(&b'/') {
            trail.begin_at_root()?;
        }
    }
    openat(trail.here(), ".", flags.difference(OFlags::CREATE | OFlags::EXCL), mode)
}

/// Opens the last name, which is not followed: should it have become a link since it was looked at, that is refused.
fn last(dir: BorrowedFd<'_>, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let opened = openat(dir, name, flags | OFlags::NOFOLLOW, mode)?;
    // A path descriptor is opened even of a link.
    let may_be_link = flags.contains(OFlags::PATH) && !flags.contains(OFlags::NOFOLLOW);
    if may_be_link && FileType::from_raw_mode(fstat(&opened)?.st_mode) == FileType::Symlink {
        return Err(Errno::LOOP);
    }
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{mkdirat, symlinkat};
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    const RULES: [ResolveFlags; 5] = [
        ResolveFlags::empty(),
        ResolveFlags::NO_MAGICLINKS,
        ResolveFlags::BENEATH,
        ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS),
        ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_XDEV).union(ResolveFlags::BENEATH),
    ];

    fn found(opened: Result<OwnedFd>) -> std::result::Result<(u64, u64), Errno> {
        opened.map(|fd| {
            let stat = fstat(&fd).unwrap();
            (stat.st_dev, stat.st_ino)
        })
    }

    #[test]
    fn the_walk_finds_and_refuses_what_the_kernel_does() {
        let dir = tempfile::tempdir().unwrap();
        let top = File::open(dir.path()).unwrap();
        mkdirat(&top, "a", Mode::RWXU).unwrap();
        mkdirat(&top, "a/b", Mode::RWXU).unwrap();
        std::fs::write(dir.path().join("a/b/file"), "x").unwrap();
        let own = dir.path().to_string_lossy().into_owned();
        for (target, name) in [
            ("b/file", "a/near"),
            ("../a/b", "a/around"),
            ("../../../../etc", "a/out"),
            ("/etc/passwd", "a/absolute"),
            ("loop", "a/loop"),
            ("nowhere", "a/dangling"),
            (own.as_str(), "a/home"),
        ] {
            symlinkat(target, &top, name).unwrap();
        }
        let paths = [
            ".",
            "a",
            "a/b/file",
            "a/near",
            "a/around/file",
            "a/out/passwd",
            "a/absolute",
            "a/loop",
            "a/dangling",
            "..",
            "a/..",
            "a/../..",
            "a/b/../near",
            "a/near/x",
            "/etc/passwd",
            "/",
            "a/home/a/near",
            "none",
            "none/x",
            "",
            "a//b/./file",
            "/proc/self/status",
            "/proc/1/../self/stat",
        ];
        for flags in [
            OFlags::RDONLY,
            OFlags::PATH,
            OFlags::PATH | OFlags::NOFOLLOW,
            OFlags::RDONLY | OFlags::NOFOLLOW,
            OFlags::RDONLY | OFlags::DIRECTORY,
        ] {
            for (path, rules) in paths.iter().flat_map(|path| RULES.map(|rules| (path, rules))) {
                let flags = flags | OFlags::CLOEXEC;
                let kernel = found(openat2(&top, *path, flags, Mode::empty(), rules));
                let ours = found(walk(top.as_fd(), path.as_bytes(), flags, Mode::empty(), rules));
                assert_eq!(ours, kernel, "{path} {flags:?} {rules:?}");
            }
        }
    }

    #[test]
    fn what_a_magic_link_leads_to_is_not_found_by_it() {
        let dir = tempfile::tempdir().unwrap();
        let top = File::open(dir.path()).unwrap();
        let (reader, _writer) = std::io::pipe().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
        let path = format!("/proc/self/fd/{fd}");
        symlinkat(&path, &top, "pipe").unwrap();
        for path in [path.as_str(), "pipe"] {
            let opened = walk(
                top.as_fd(),
                path.as_bytes(),
                OFlags::RDONLY,
                Mode::empty(),
                ResolveFlags::NO_MAGICLINKS,
            );
            assert_eq!(opened.unwrap_err(), Errno::NOENT, "{path}");
        }
    }

    #[test]
    fn what_is_made_is_made_where_the_links_lead() {
        let dir = tempfile::tempdir().unwrap();
        let top = File::open(dir.path()).unwrap();
        mkdirat(&top, "a", Mode::RWXU).unwrap();
        symlinkat("a/new", &top, "link").unwrap();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o640);
        let made = walk(top.as_fd(), b"link", flags, mode, ResolveFlags::NO_MAGICLINKS).unwrap();
        let meta = std::fs::metadata(dir.path().join("a/new")).unwrap();
        assert_eq!((fstat(&made).unwrap().st_ino, meta.mode() & 0o777), (meta.ino(), 0o640));
        let again = walk(top.as_fd(), b"link", flags | OFlags::EXCL, mode, ResolveFlags::BENEATH);
        assert_eq!(again.unwrap_err(), Errno::EXIST);
    }
}
