//! Descriptors that cross processes: sealed memory, sockets that carry descriptors, locks that mean life.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{self, FlockOperation, MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// The most descriptors that one message may carry here.
pub const FDS_MAX: usize = 32;

/// How often an image is tried to be closed to writing. Each time the kernel waits a while by itself.
const SEAL_ATTEMPTS: usize = 10;

/// An executable image in memory that nobody can change any more.
pub fn sealed_program(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = program_file(name)?;
    file.write_all(bytes)?;
    seal_program(file)
}

/// An executable image in memory that is still to be written.
pub fn program_file(name: &str) -> io::Result<File> {
    let fd = match fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::EXEC)
    {
        // Kernels before 6.3 do not know EXEC, and do not need it.
        Err(rustix::io::Errno::INVAL) => {
            fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?
        }
        other => other?,
    };
    Ok(File::from(fd))
}

/// Closes an image to all further writing.
pub fn seal_program(file: File) -> io::Result<OwnedFd> {
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    for _ in 1..SEAL_ATTEMPTS {
        match fs::fcntl_add_seals(&file, seals) {
            // The kernel itself has a page of it in its hands, to move or to reclaim it, and has waited for that a while.
            Err(rustix::io::Errno::BUSY) => {}
            sealed => return Ok(sealed.map(|()| file.into())?),
        }
    }
    fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Which of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Either {
    /// The first, whatever the second does.
    First,
    /// The second alone.
    Second,
}

/// Waits until there is something to be read from one of two, or it is closed. `None`: not in this time.
pub fn await_either(
    first: BorrowedFd<'_>,
    second: BorrowedFd<'_>,
    at_most: Duration,
) -> io::Result<Option<Either>> {
    let until = Instant::now() + at_most;
    let mut fds = [PollFd::new(&first, PollFlags::IN), PollFd::new(&second, PollFlags::IN)];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        match poll(&mut fds, Some(&left)) {
            Ok(0) => return Ok(None),
            Ok(_) if !fds[0].revents().is_empty() => return Ok(Some(Either::First)),
            Ok(_) => return Ok(Some(Either::Second)),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// A connected pair of stream sockets.
pub fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// A connected pair of sockets that keep messages apart.
pub fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// A listening socket at `name` in the directory, whatever the length of the directory's own path.
pub fn listen_at(dir: BorrowedFd<'_>, name: &str, backlog: i32) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Connects to the socket at `name` in the directory, at once or not at all. The socket does not block.
pub fn connect_at(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

/// Sends bytes, with descriptors attached to the first of them.
pub fn send_with_fds(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if fds.len() > FDS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors in one message"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let mut sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    while sent < bytes.len() {
        sent += rustix::net::send(socket, &bytes[sent..], SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// Receives bytes, and the descriptors that came with them. None: the other side closed.
pub fn receive_with_fds(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok((got.bytes, fds))
}

/// From now on the kernel says with what comes from the other side which process it comes from, or no more.
pub fn ask_who(socket: BorrowedFd<'_>, ask: bool) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_passcred(socket, ask)?)
}

/// Receives bytes without waiting, and the number of the process that sent the first of them, in our namespace.
pub fn receive_from(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Option<i32>)> {
    // At the end of a stream the kernel names a sender all the same: number 0, which is no process and which rustix does not expect.
    let (_, there) = rustix::net::recv(socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    if there == 0 {
        return Ok((0, None));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1), ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)
    })?;
    let mut sender = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmCredentials(who) = message {
            sender = Some(who.pid.as_raw_nonzero().get());
        }
    }
    Ok((got.bytes, sender))
}

/// Opens the file and takes its lock, which lasts until the last copy of the descriptor is gone, in whatever process.
pub fn lock_for_life(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let fd = fs::openat(
        dir,
        name,
        fs::OFlags::CREATE | fs::OFlags::RDWR | fs::OFlags::CLOEXEC | fs::OFlags::NOFOLLOW,
        fs::Mode::RUSR | fs::Mode::WUSR,
    )?;
    fs::flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
    Ok(fd)
}

/// Whether somebody holds the lock of the file. A file that is not there is held by nobody.
pub fn is_locked(dir: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    open_if_there(dir, name)?.map_or(Ok(false), |fd| has_lock(fd.as_fd()))
}

/// Both at once: whether somebody holds the lock of the file, and whether somebody has set its mark.
pub fn is_locked_and_marked(dir: BorrowedFd<'_>, name: &str) -> io::Result<(bool, bool)> {
    let Some(fd) = open_if_there(dir, name)? else { return Ok((false, false)) };
    Ok((has_lock(fd.as_fd())?, has_mark(fd.as_fd())?))
}

fn open_if_there(dir: BorrowedFd<'_>, name: &str) -> io::Result<Option<OwnedFd>> {
    match fs::openat(dir, name, fs::OFlags::RDONLY | fs::OFlags::CLOEXEC, fs::Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => Ok(None),
        other => Ok(Some(other?)),
    }
}

fn has_lock(fd: BorrowedFd<'_>) -> io::Result<bool> {
    match fs::flock(fd, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

/// Sets or clears a mark on an open file that others can see, and that is gone when the last copy of the descriptor is: a
/// lock of the other kind, which stands beside [`lock_for_life`]'s and is in nobody's way.
pub fn mark(fd: BorrowedFd<'_>, set: bool) -> io::Result<()> {
    let mut lock = whole_file(if set { libc::F_WRLCK } else { libc::F_UNLCK });
    // SAFETY: the descriptor is open, and the pointer is to a live flock of ours.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether somebody has set the mark of the file. A file that is not there has none.
pub fn is_marked(dir: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    open_if_there(dir, name)?.map_or(Ok(false), |fd| has_mark(fd.as_fd()))
}

fn has_mark(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut lock = whole_file(libc::F_RDLCK);
    // SAFETY: the descriptor is open, and the pointer is to a live flock of ours.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(lock.l_type != libc::F_UNLCK as libc::c_short),
        _ => Err(io::Error::last_os_error()),
    }
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: flock is plain data, for which all zeros is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

/// Waits for the lock of a file and holds it until the value is dropped.
pub fn lock_path(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
    rustix::io::retry_on_intr(|| fs::flock(&file, FlockOperation::LockExclusive))?;
    Ok(file)
}

/// Waits for a share of the lock of a file and holds it until the value is dropped.
pub fn lock_shared(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
    rustix::io::retry_on_intr(|| fs::flock(&file, FlockOperation::LockShared))?;
    Ok(file)
}

/// Takes the lock of an open file or directory, if nobody else holds it or a share of it. Whether it did.
pub fn try_lock(fd: BorrowedFd<'_>) -> io::Result<bool> {
    match fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Waits for the lock of a directory and holds it until the value is dropped.
pub fn lock_directory(path: &Path) -> io::Result<File> {
    let dir = File::open(path)?;
    rustix::io::retry_on_intr(|| fs::flock(&dir, FlockOperation::LockExclusive))?;
    Ok(dir)
}

/// Takes a copy of descriptor 0, which a parent passed on. What stays at 0 is for [`fill_stdio`] to replace.
///
/// To be called once, first thing in a program whose stdin is a socket.
pub fn take_stdin() -> io::Result<OwnedFd> {
    let stdin = std::io::stdin();
    let fd = rustix::io::fcntl_dupfd_cloexec(stdin.as_fd(), 3)?;
    Ok(fd)
}

/// Takes a descriptor that a parent passed on under a number that both know, and keeps both names of it from children.
///
/// To be called once, first thing in a program, for a number above those of stdio: then nothing else owns it.
pub fn take_passed_on(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: nothing in a program that has just begun closes it, and what is not open is refused by the kernel.
    let passed_on = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(passed_on, rustix::io::FdFlags::CLOEXEC)?;
    Ok(rustix::io::fcntl_dupfd_cloexec(passed_on, number)?)
}

/// Makes 0, 1 and 2 the same as `fd`, so that no descriptor opened later can be taken for stdio.
pub fn fill_stdio(fd: BorrowedFd<'_>) -> io::Result<()> {
    rustix::stdio::dup2_stdin(fd)?;
    rustix::stdio::dup2_stdout(fd)?;
    rustix::stdio::dup2_stderr(fd)?;
    Ok(())
}

/// Closes every descriptor from this number on. Only for a process that owns none of them any more: a fresh fork.
pub fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: the call takes numbers. The caller is a fork that uses nothing but stdio from here on.
    if unsafe { libc::syscall(libc::SYS_close_range, first, FD_LAST, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The last number that a descriptor can have. gVisor takes what is above for negative.
pub(crate) const FD_LAST: u32 = i32::MAX as u32;

/// A descriptor for signals that are blocked for the whole process from now on.
pub fn signal_fd(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: sigset_t is plain data, for which all zeros is a value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a live sigset_t of ours.
    unsafe { libc::sigemptyset(&mut set) };
    for &signal in signals {
        // SAFETY: `set` is a live, initialised sigset_t of ours.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    // SAFETY: both pointers are valid or null, as the call allows.
    if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `set` is a live, initialised sigset_t.
    let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_seen_by_others_and_goes_with_its_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let fd = File::open(dir.path()).unwrap();
        assert!(!is_marked(fd.as_fd(), "alive").unwrap(), "there is no such file");
        let lock = lock_for_life(fd.as_fd(), "alive").unwrap();
        assert!(!is_marked(fd.as_fd(), "alive").unwrap(), "the lock that means life is no mark");
        for set in [true, false, true] {
            mark(lock.as_fd(), set).unwrap();
            assert_eq!(is_marked(fd.as_fd(), "alive").unwrap(), set);
            assert!(is_locked(fd.as_fd(), "alive").unwrap());
        }
        drop(lock);
        assert!(!is_marked(fd.as_fd(), "alive").unwrap());
    }

    #[test]
    fn the_end_of_a_stream_has_no_sender() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ask_who(ours.as_fd(), true).unwrap();
        rustix::io::write(&theirs, b"x").unwrap();
        drop(theirs);
        let mut buffer = [0; 8];
        let own = rustix::process::getpid().as_raw_nonzero().get();
        assert_eq!(receive_from(ours.as_fd(), &mut buffer).unwrap(), (1, Some(own)));
        assert_eq!(receive_from(ours.as_fd(), &mut buffer).unwrap(), (0, None));
    }

    #[test]
    fn a_lock_lasts_as_long_as_any_copy_of_its_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let fd = File::open(dir.path()).unwrap();
        let lock = lock_for_life(fd.as_fd(), "alive").unwrap();
        let copy = lock.try_clone().unwrap();
        drop(lock);
        assert!(is_locked(fd.as_fd(), "alive").unwrap());
        drop(copy);
        assert!(!is_locked(fd.as_fd(), "alive").unwrap());
    }

    #[test]
    fn descriptors_arrive_with_their_bytes() {
        let (a, b) = socket_pair().unwrap();
        let null = File::open("/dev/null").unwrap();
        send_with_fds(a.as_fd(), b"plan", &[null.as_fd(), null.as_fd()]).unwrap();
        let mut buffer = [0; 16];
        let (n, fds) = receive_with_fds(b.as_fd(), &mut buffer).unwrap();
        assert_eq!((&buffer[..n], fds.len()), (&b"plan"[..], 2));
    }

    #[test]
    fn the_sender_is_told_by_the_kernel_when_that_is_asked_for() {
        let (a, b) = socket_pair().unwrap();
        ask_who(b.as_fd(), true).unwrap();
        send_with_fds(a.as_fd(), b"born", &[]).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(receive_from(b.as_fd(), &mut buffer).unwrap(), (4, Some(std::process::id() as i32)));
        ask_who(b.as_fd(), false).unwrap();
        send_with_fds(a.as_fd(), b"again", &[]).unwrap();
        assert_eq!(receive_from(b.as_fd(), &mut buffer).unwrap(), (5, None));
    }

    #[test]
    fn a_sealed_program_cannot_be_written() {
        let fd = sealed_program("test", b"#!/bin/true\n").unwrap();
        assert_eq!(rustix::io::write(&fd, b"x"), Err(rustix::io::Errno::PERM));
    }
}
