//! Mounts, made as descriptors first and attached afterwards, so that no path into a root is ever trusted.
//!
//! Everything here works on the caller's own mount namespace. The strings in an overlay's options are short relative
//! names below a scratch directory: what a box reads in its mountinfo tells nothing of the host, and kernels before
//! 6.13, which cannot take layers as descriptors, understand them too.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

/// What a mount allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// No writing.
    pub read_only: bool,
    /// No programs.
    pub no_exec: bool,
    /// Device nodes work. They do nowhere but on the few that are taken from the host.
    pub devices: bool,
}

impl Attributes {
    fn bits(self) -> u64 {
        let mut bits = libc::MOUNT_ATTR_NOSUID;
        for (wanted, bit) in [
            (self.read_only, libc::MOUNT_ATTR_RDONLY),
            (self.no_exec, libc::MOUNT_ATTR_NOEXEC),
            (!self.devices, libc::MOUNT_ATTR_NODEV),
        ] {
            if wanted {
                bits |= bit;
            }
        }
        bits
    }
}

/// A detached copy of the mount at `path`, with what is mounted below it if `recursive`.
pub fn copy_tree(path: &str, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(open_tree(rustix::fs::CWD, path, flags)?)
}

/// Sets attributes of a mount, and of those below it if `recursive`.
pub fn set_attributes(mount: BorrowedFd<'_>, attributes: Attributes, recursive: bool) -> io::Result<()> {
    set_attr(mount, attributes.bits(), None, recursive)
}

/// Both at once: one call is less than two, for each layer of each root.
pub fn set_attributes_and_owners(
    mount: BorrowedFd<'_>,
    attributes: Attributes,
    user_namespace: BorrowedFd<'_>,
) -> io::Result<()> {
    set_attr(mount, attributes.bits() | libc::MOUNT_ATTR_IDMAP, Some(user_namespace), false)
}

/// Shows the owners of a detached mount as the user namespace maps them.
pub fn map_owners(mount: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    set_attr(mount, libc::MOUNT_ATTR_IDMAP, Some(user_namespace), recursive)
}

/// Makes a mount read-only if nothing in it is open for writing or mapped so; the kernel knows, and says EBUSY.
pub fn close_to_writers(mount: BorrowedFd<'_>) -> io::Result<()> {
    change_attr(mount, libc::MOUNT_ATTR_RDONLY, 0, None, false)
}

/// Takes that back.
pub fn open_to_writers(mount: BorrowedFd<'_>) -> io::Result<()> {
    change_attr(mount, 0, libc::MOUNT_ATTR_RDONLY, None, false)
}

fn set_attr(
    mount: BorrowedFd<'_>,
    set: u64,
    userns: Option<BorrowedFd<'_>>,
    recursive: bool,
) -> io::Result<()> {
    change_attr(mount, set, 0, userns, recursive)
}

fn change_attr(
    mount: BorrowedFd<'_>,
    set: u64,
    clear: u64,
    userns: Option<BorrowedFd<'_>>,
    recursive: bool,
) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: set,
        attr_clr: clear,
        propagation: 0,
        userns_fd: userns.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a C string with a static life, and `attr` is a live mount_attr of the size that is told.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &attr,
            size_of_val(&attr),
        )
    };
    if result != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Attaches a detached mount on top of what `target` refers to.
pub fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", target, "", flags)?)
}

/// Attaches a detached mount on top of what is at a path below `dir`, a file system that we made ourselves and that holds no
/// links to be afraid of.
pub fn attach_in(mount: BorrowedFd<'_>, dir: BorrowedFd<'_>, path: &str) -> io::Result<()> {
    Ok(move_mount(mount, "", dir, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// The mount at a path below `root`, by descriptor; `None` if nothing is mounted there.
pub fn mounted_at(root: BorrowedFd<'_>, path: &str) -> io::Result<Option<OwnedFd>> {
    let place = match find(root, path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    Ok(is_mount_root(place.as_fd())?.then_some(place))
}

fn is_mount_root(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let flags = AtFlags::EMPTY_PATH;
    let stat = rustix::fs::statx(fd, "", flags, rustix::fs::StatxFlags::empty())?;
    Ok(stat.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT))
}

/// Lets go of the mount at a path of our own, whoever still uses it.
pub fn detach(path: &str) -> io::Result<()> {
    Ok(rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
}

/// Attaches a detached mount at a path of our own.
pub fn attach_at(mount: BorrowedFd<'_>, path: &str) -> io::Result<()> {
    Ok(move_mount(mount, "", rustix::fs::CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// A new file system of this type with these options (`key`, or `key=value`), detached.
pub fn make(kind: &str, options: &[(&str, Option<&str>)], attributes: Attributes) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        match value {
            Some(value) => fsconfig_set_string(context.as_fd(), *key, *value)?,
            None => fsconfig_set_flag(context.as_fd(), *key)?,
        }
    }
    fsconfig_create(context.as_fd())?;
    let bits = MountAttrFlags::from_bits_retain(attributes.bits() as _);
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, bits)?)
}

/// What is at a path below `root`: the kernel refuses to leave the root, and to follow any link on the way.
pub fn find(root: BorrowedFd<'_>, path: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), BELOW)?)
}

/// How paths below a root are looked up.
const BELOW: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// The directory at a path below `root`, made with its parents if it is missing. Links are refused.
pub fn find_or_make_dir(root: BorrowedFd<'_>, path: &str) -> io::Result<OwnedFd> {
    let mut at: Option<OwnedFd> = None;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let dir = at.as_ref().map_or(root, AsFd::as_fd);
        at = Some(match find_dir(dir, part) {
            Err(rustix::io::Errno::NOENT) => {
                match rustix::fs::mkdirat(dir, part, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(e) => return Err(e.into()),
                }
                find_dir(dir, part)?
            }
            found => found?,
        });
    }
    at.map_or_else(|| root.try_clone_to_owned(), Ok)
}

fn find_dir(root: BorrowedFd<'_>, path: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(root, path, flags, Mode::empty(), BELOW)
}

/// The number of the mount that a path of our own is in, which no other mount ever gets. `None`: this kernel has none (before
/// 6.8).
pub fn unique_number(path: &str) -> Option<u64> {
    let wanted = rustix::fs::StatxFlags::from_bits_retain(libc::STATX_MNT_ID_UNIQUE);
    let stat = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), wanted).ok()?;
    (stat.stx_mask & libc::STATX_MNT_ID_UNIQUE != 0).then_some(stat.stx_mnt_id)
}

/// Device and inode of what a descriptor refers to.
pub fn identity(fd: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::statat(fd, c"", AtFlags::EMPTY_PATH)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Makes the directory (a mount) the root of this namespace, and lets go of the old one.
pub fn pivot(new_root: BorrowedFd<'_>) -> io::Result<()> {
    change_root(new_root)?;
    leave_old_root()
}

/// Makes the directory (a mount) the root of this namespace. The old one lies on top of it, at the same place.
pub fn change_root(new_root: BorrowedFd<'_>) -> io::Result<()> {
    rustix::process::fchdir(new_root)?;
    let here = CString::from(c".");
    Ok(rustix::process::pivot_root(&here, &here)?)
}

/// Lets go of the old one: detaching it uncovers the new one. The kernel waits for all who may be looking at it.
pub fn leave_old_root() -> io::Result<()> {
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}
