//! Terminals of a box, from its own devpts and never through a path that the box could change.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::termios::Winsize;

/// A new terminal of the devpts that this directory is the root of: master and slave.
pub fn open(devpts: BorrowedFd<'_>, rows: u16, cols: u16) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = rustix::fs::openat(devpts, "ptmx", flags | OFlags::NONBLOCK, Mode::empty())?;
    rustix::pty::unlockpt(&master)?;
    let slave = slave(master.as_fd())?;
    resize(master.as_fd(), rows, cols)?;
    Ok((master, slave))
}

fn slave(master: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: TIOCGPTPEER takes the open flags as its argument and writes nothing.
    let fd = unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Tells the terminal its size; its foreground processes get SIGWINCH.
pub fn resize(terminal: BorrowedFd<'_>, rows: u16, cols: u16) -> io::Result<()> {
    let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}
