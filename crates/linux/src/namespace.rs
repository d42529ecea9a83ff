//! Namespaces: starting a process in new ones, and what has to be set up in them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::thread::UnshareFlags;

use crate::mount;
use crate::process::Child;
use crate::seccomp::word;

/// Be born in the cgroup whose directory is named. (libc's constant of this name is cut to 32 bits.)
pub(crate) const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// A set of new namespaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flags(u64);

impl Flags {
    /// Users and groups.
    pub const USER: Flags = Flags(libc::CLONE_NEWUSER as u64);
    /// Mounts.
    pub const MOUNT: Flags = Flags(libc::CLONE_NEWNS as u64);
    /// Processes.
    pub const PID: Flags = Flags(libc::CLONE_NEWPID as u64);
    /// System V IPC.
    pub const IPC: Flags = Flags(libc::CLONE_NEWIPC as u64);
    /// Host name.
    pub const UTS: Flags = Flags(libc::CLONE_NEWUTS as u64);
    /// Network.
    pub const NET: Flags = Flags(libc::CLONE_NEWNET as u64);

    /// Both sets.
    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }
}

/// Which of the two processes we are after a [`fork_into`].
#[derive(Debug)]
pub enum Fork {
    /// The new one.
    Child,
    /// The old one, with the new one as it sees it.
    Parent(Child),
}

/// Forks this single-threaded process into new namespaces, and into a cgroup of the v2 tree.
///
/// The new process is a child of our *parent*, so that whoever started the builder waits for the box.
pub fn fork_into(namespaces: Flags, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    let mut pidfd: i32 = -1;
    // SAFETY: clone_args is plain data, for which all zeros is a value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = namespaces.bits() | (libc::CLONE_PIDFD | libc::CLONE_PARENT) as u64;
    args.pidfd = std::ptr::from_mut(&mut pidfd) as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM this is a fork: the child has its own copy of everything. The process has one thread
    // (its caller is the builder's main), so no lock of libc can be held by another one in the copy.
    let pid = unsafe { clone3(&mut args) };
    match pid {
        ..0 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        // SAFETY: the kernel wrote through this place; volatile, because the compiler cannot know.
        _ => Ok(Fork::Parent(Child::new(pid as i32, unsafe { std::ptr::read_volatile(&pidfd) }))),
    }
}

/// The call, with the word that our filter asks for.
///
/// # Safety
/// As of a fork: this process has one thread, and what `args` points at is there to be written to.
unsafe fn clone3(args: &mut libc::clone_args) -> libc::c_long {
    let [a, b, c, d] = word::ours();
    // SAFETY: the caller sees to it; what is behind the two arguments is not looked at by the kernel.
    unsafe { libc::syscall(libc::SYS_clone3, args, size_of::<libc::clone_args>(), a, b, c, d) }
}

/// Forks this single-threaded process, into a cgroup of the v2 tree: a worker that has a copy of all we know.
pub fn fork(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    let mut pidfd: i32 = -1;
    // SAFETY: clone_args is plain data, for which all zeros is a value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = libc::CLONE_PIDFD as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    args.pidfd = std::ptr::from_mut(&mut pidfd) as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: as in `fork_into`; the guest has one thread too.
    let mut pid = unsafe { clone3(&mut args) };
    if pid < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        // As where commands are started: it may be that the kernel has no descriptors of processes.
        args.flags &= !(libc::CLONE_PIDFD as u64);
        args.pidfd = 0;
        // SAFETY: as above.
        pid = unsafe { clone3(&mut args) };
    }
    if pid < 0 && cgroup.is_none() && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        // SAFETY: as above: a fork, which has no stack, no places to write to and no storage of threads.
        pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    }
    match pid {
        ..0 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        // SAFETY: the kernel wrote through this place; volatile, because the compiler cannot know.
        _ => Ok(Fork::Parent(Child::new(pid as i32, unsafe { std::ptr::read_volatile(&pidfd) }))),
    }
}

/// Moves this thread into new namespaces.
pub fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the caller's process has one thread; no descriptor table is shared or unshared by these flags.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// A mount namespace of our own from which nothing propagates.
pub fn private_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    stop_propagation()
}

fn stop_propagation() -> io::Result<()> {
    let flags = rustix::mount::MountPropagationFlags::REC | rustix::mount::MountPropagationFlags::PRIVATE;
    Ok(rustix::mount::mount_change("/", flags)?)
}

/// Makes a mount namespace that holds nothing but an empty directory in memory, and comes back. `None`: we may not.
///
/// It costs no more to enter later than any other, while one that is a copy of ours costs what all of our mounts do, and
/// would keep what is unmounted here meanwhile. `scratch` is a directory that is covered for a moment, seen by nobody.
pub fn empty_mounts(scratch: &str) -> io::Result<Option<OwnedFd>> {
    let open = |dir: BorrowedFd<'_>, name: &str, flags: OFlags| {
        rustix::fs::openat(dir, name, flags | OFlags::CLOEXEC, Mode::empty())
    };
    // What is opened below this later is of the namespace that we are in then, where there is no /proc.
    let spaces = open(rustix::fs::CWD, "/proc/self/ns", OFlags::PATH | OFlags::DIRECTORY)?;
    let home = open(spaces.as_fd(), "mnt", OFlags::RDONLY)?;
    let root = open(rustix::fs::CWD, "/", OFlags::PATH | OFlags::DIRECTORY)?;
    if unshare(UnshareFlags::NEWNS).is_err() {
        return Ok(None);
    }
    let options = [("size", Some("1m")), ("mode", Some("0755"))];
    let made = stop_propagation().and_then(|()| {
        let tmpfs = mount::make("tmpfs", &options, mount::Attributes::default())?;
        mount::attach_at(tmpfs.as_fd(), scratch)?;
        mount::pivot(tmpfs.as_fd())?;
        Ok(open(spaces.as_fd(), "mnt", OFlags::RDONLY)?)
    });
    enter(home.as_fd())?;
    // Entering leads to the top of the namespace, which need not be where we were.
    rustix::process::fchdir(&root)?;
    rustix::process::chroot(c".")?;
    Ok(made.ok())
}

/// Enters a namespace, whichever kind it is. Our process has one thread.
pub fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(namespace, None)?)
}

/// Hides where in the host's cgroup tree we are.
pub fn cgroup_namespace() -> io::Result<()> {
    unshare(UnshareFlags::NEWCGROUP)
}

/// The user namespace of a process.
pub fn user_namespace(pid: i32) -> io::Result<OwnedFd> {
    Ok(fs::File::open(format!("/proc/{pid}/ns/user"))?.into())
}

/// Lines of a map: (inside, outside, count).
pub type Map = [(u32, u32, u32)];

/// Writes the maps of a process's user namespace.
pub fn map_ids(pid: i32, uids: &Map, gids: &Map, deny_setgroups: bool) -> io::Result<()> {
    let lines = |map: &Map| map.iter().map(|(i, o, n)| format!("{i} {o} {n}\n")).collect::<String>();
    if deny_setgroups {
        fs::write(format!("/proc/{pid}/setgroups"), "deny")?;
    }
    fs::write(format!("/proc/{pid}/gid_map"), lines(gids))?;
    fs::write(format!("/proc/{pid}/uid_map"), lines(uids))
}

/// Sets the host name of our UTS namespace.
pub fn set_hostname(name: &str) -> io::Result<()> {
    Ok(rustix::system::sethostname(name.as_bytes())?)
}

/// Brings `lo` up in our network namespace.
pub fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: ifreq is plain data, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq, and `request` is one.
    if unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS, &request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
