//! Opening what a layer holds.

use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use glasshouse_linux::reach::Reach;
use glasshouse_linux::rustix::fs::{OFlags, ResolveFlags};

/// What an [`Opener`] is to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    File,
    Directory,
}

/// Opens what a layer holds, for reading.
pub(crate) trait Opener {
    /// Opens the name in the directory. Must follow no link and enter no mount. The name can be `.` and `..`.
    fn open(&self, dir: BorrowedFd<'_>, name: &CStr, wanted: Wanted) -> io::Result<OwnedFd>;
}

/// Opens what we reach.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain<'a>(pub(crate) &'a Reach);

impl Opener for Plain<'_> {
    fn open(&self, dir: BorrowedFd<'_>, name: &CStr, wanted: Wanted) -> io::Result<OwnedFd> {
        // Should the name have become a pipe or a terminal, then opening it neither waits nor takes
        // possession of it.
        let mut flags =
            OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        if wanted == Wanted::Directory {
            flags |= OFlags::DIRECTORY;
        }
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        Ok(self.0.open(dir, name.to_bytes(), flags, resolve)?)
    }
}
