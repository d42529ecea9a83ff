//! Landlock: a fence around files that stays with a process for good.
//!
//! A second wall behind the mount namespace. Should a command get hold of a directory outside the box's
//! root, by a leaked fd or a bug, it still cannot use a path from there. Inside the root all is allowed
//! but making device nodes, and ioctls on devices other than those in `/dev`.
//!
//! The order: [`Ruleset::for_box`] after the last mount (a fenced process can mount nothing), while
//! allocating is fine. [`Ruleset::restrict_self`] in each command after "no new privileges", and before the
//! command closes what it shall not inherit, as the ruleset is among that.
//!
//! A rule sticks to the inode of the directory and not to its path. When the box's root is replaced by
//! another mount, make a new ruleset; processes fenced by the old one lose all their paths.
//!
//! No scopes: commands of several execs must be able to signal each other and to use abstract sockets. No
//! rules for ports: the box has a net namespace of its own.

use std::ffi::{c_int, c_long, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

const MAKE_CHAR: u64 = 1 << 6;
const MAKE_BLOCK: u64 = 1 << 11;
const IOCTL_DEV: u64 = 1 << 15;

const RULE_PATH_BENEATH: c_int = 1;
const CREATE_RULESET_VERSION: u32 = 1;

/// The version of Landlock that the kernel speaks; 0 if it has none or has it switched off.
pub fn abi() -> u32 {
    let nothing: *const RulesetAttr = ptr::null();
    // SAFETY: with the version flag the kernel takes a null pointer of size 0 and reads no memory.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, CREATE_RULESET_VERSION) };
    u32::try_from(version).unwrap_or(0)
}

/// A fence, ready to be put around the calling process.
#[derive(Debug)]
pub struct Ruleset(OwnedFd);

impl Ruleset {
    /// The fence of a box: everything under `root` but making device nodes; device ioctls only under `dev`.
    ///
    /// `Unsupported` below version 2: version 1 makes each rename into another directory fail with EXDEV.
    pub fn for_box(root: BorrowedFd<'_>, dev: Option<BorrowedFd<'_>>) -> io::Result<Ruleset> {
        let handled = match abi() {
            0 | 1 => return Err(io::ErrorKind::Unsupported.into()),
            2 => bits(14),     // up to REFER
            3 | 4 => bits(15), // TRUNCATE; version 4 brought ports only
            _ => bits(16),     // IOCTL_DEV; rights of later versions we do not know and leave alone
        };
        let ruleset = Ruleset::create(handled)?;
        ruleset.allow_beneath(root, handled & !(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV))?;
        if let Some(dev) = dev.filter(|_| handled & IOCTL_DEV != 0) {
            ruleset.allow_beneath(dev, IOCTL_DEV)?;
        }
        Ok(ruleset)
    }

    /// Puts the fence around the calling thread and what it starts. One system call, and no way back.
    pub fn restrict_self(&self) -> io::Result<()> {
        // SAFETY: the call takes an fd, which `self` keeps open, and flags; it touches no memory of ours.
        let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, self.0.as_raw_fd(), 0_u32) };
        check(done).map(drop)
    }

    fn create(handled_access_fs: u64) -> io::Result<Ruleset> {
        let attr = RulesetAttr { handled_access_fs };
        // SAFETY: `attr` is live for the call, the size passed is its own, and the kernel only reads it.
        let fd = unsafe {
            libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attr, size_of::<RulesetAttr>(), 0_u32)
        };
        let fd = check(fd)?;
        // SAFETY: the kernel has just made this fd (close-on-exec) for us and nobody else knows its number.
        Ok(Ruleset(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn allow_beneath(&self, parent: BorrowedFd<'_>, allowed_access: u64) -> io::Result<()> {
        let attr = PathBeneathAttr { allowed_access, parent_fd: parent.as_raw_fd() };
        let attr: *const c_void = (&raw const attr).cast();
        // SAFETY: `attr` points at a live struct of the layout that this rule type calls for, which the
        // kernel only reads; both fds are kept open by their borrows.
        let done = unsafe {
            libc::syscall(libc::SYS_landlock_add_rule, self.0.as_raw_fd(), RULE_PATH_BENEATH, attr, 0_u32)
        };
        check(done).map(drop)
    }
}

impl AsFd for Ruleset {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The first member of `struct landlock_ruleset_attr`; the kernel takes the rest as zero.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
}

/// `struct landlock_path_beneath_attr`
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: c_int,
}

/// The lowest `count` access rights.
const fn bits(count: u32) -> u64 {
    (1 << count) - 1
}

fn check(result: c_long) -> io::Result<c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as c_int)
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, CString};
    use std::fs::{self, File};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, mknodat, open, renameat, unlinkat};
    use rustix::io::Errno;
    use tempfile::TempDir;

    use super::*;
    use crate::caps::{no_new_privs, tests::in_child};

    /// A directory that plays the root of a box, and one beside it.
    struct Place {
        dir: TempDir,
        ruleset: Ruleset,
    }

    impl Place {
        /// Nothing if the kernel has no Landlock that we can use.
        fn new() -> Option<Place> {
            let dir = TempDir::new().unwrap();
            for sub in ["root/a", "root/b", "outside"] {
                fs::create_dir_all(dir.path().join(sub)).unwrap();
            }
            fs::write(dir.path().join("root/a/file"), "text").unwrap();
            fs::write(dir.path().join("outside/file"), "secret").unwrap();
            let root = File::open(dir.path().join("root")).unwrap();
            Some(Place { ruleset: fence(root.as_fd(), None)?, dir })
        }

        fn path(&self, below: &str) -> CString {
            c_path(&self.dir.path().join(below))
        }
    }

    fn fence(root: BorrowedFd<'_>, dev: Option<BorrowedFd<'_>>) -> Option<Ruleset> {
        if abi() < 2 {
            eprintln!("skipped: Landlock version {}", abi());
            return None;
        }
        Some(Ruleset::for_box(root, dev).unwrap())
    }

    fn c_path(path: &Path) -> CString {
        CString::new(path.as_os_str().as_bytes()).unwrap()
    }

    /// Does `act` in a fenced child and expects this error, or success.
    fn check(ruleset: &Ruleset, act: impl FnOnce() -> rustix::io::Result<()>, expected: Result<(), Errno>) {
        const NOT_FENCED: u8 = 255;
        let status = in_child(|| {
            if no_new_privs().and_then(|()| ruleset.restrict_self()).is_err() {
                return NOT_FENCED;
            }
            act().err().map_or(0, |errno| errno.raw_os_error() as u8)
        });
        let expected = expected.err().map_or(0, Errno::raw_os_error);
        assert_eq!(status.code(), Some(expected));
    }

    fn open_to(path: &CStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o600))
    }

    #[test]
    fn inside_is_all_that_files_are_for() {
        let Some(place) = Place::new() else { return };
        let (file, moved) = (place.path("root/a/file"), place.path("root/b/moved"));
        let (new, fifo) = (place.path("root/b/new"), place.path("root/b/fifo"));
        let act = || {
            open_to(&file, OFlags::RDWR)?;
            truncate(&file)?;
            renameat(CWD, &*file, CWD, &*moved)?;
            unlinkat(CWD, &*moved, AtFlags::empty())?;
            open_to(&new, OFlags::CREATE | OFlags::WRONLY)?;
            mknodat(CWD, &*fifo, FileType::Fifo, Mode::RUSR, 0)
        };
        check(&place.ruleset, act, Ok(()));
    }

    fn truncate(path: &CStr) -> rustix::io::Result<()> {
        open_to(path, OFlags::WRONLY | OFlags::TRUNC).map(drop)
    }

    #[test]
    fn outside_cannot_be_read_or_written() {
        let Some(place) = Place::new() else { return };
        let (file, new) = (place.path("outside/file"), place.path("outside/new"));
        check(&place.ruleset, || open_to(&file, OFlags::RDONLY).map(drop), Err(Errno::ACCESS));
        check(&place.ruleset, || open_to(&file, OFlags::WRONLY).map(drop), Err(Errno::ACCESS));
        check(
            &place.ruleset,
            || open_to(&new, OFlags::CREATE | OFlags::WRONLY).map(drop),
            Err(Errno::ACCESS),
        );
    }

    #[test]
    fn outside_stays_closed_through_an_open_directory() {
        let Some(place) = Place::new() else { return };
        let leaked = File::open(place.dir.path().join("outside")).unwrap();
        let act = || rustix::fs::openat(&leaked, c"file", OFlags::CLOEXEC, Mode::empty()).map(drop);
        check(&place.ruleset, act, Err(Errno::ACCESS));
    }

    #[test]
    fn device_nodes_cannot_be_made() {
        let Some(place) = Place::new() else { return };
        let node = place.path("root/a/node");
        for kind in [FileType::CharacterDevice, FileType::BlockDevice] {
            check(&place.ruleset, || mknodat(CWD, &*node, kind, Mode::RUSR, 0), Err(Errno::ACCESS));
        }
    }

    #[test]
    fn device_ioctls_work_in_dev_only() {
        if abi() < 5 {
            eprintln!("skipped: Landlock version {}", abi());
            return;
        }
        let (root, dev) = (File::open("/").unwrap(), File::open("/dev").unwrap());
        // A null device is no terminal, so ENOTTY shows that the question came through to it.
        let ask = || rustix::termios::tcgetattr(open_to(c"/dev/null", OFlags::RDWR)?).map(drop);
        for (dev, expected) in [(Some(dev.as_fd()), Errno::NOTTY), (None, Errno::ACCESS)] {
            let Some(ruleset) = fence(root.as_fd(), dev) else { return };
            check(&ruleset, ask, Err(expected));
        }
    }

    #[test]
    fn fence_needs_no_new_privs_or_privilege() {
        let Some(place) = Place::new() else { return };
        let act = || crate::caps::set(&[]).and_then(|()| place.ruleset.restrict_self());
        let status = in_child(|| act().err().and_then(|error| error.raw_os_error()).unwrap_or(0) as u8);
        assert_eq!(status.code(), Some(libc::EPERM));
    }
}
