//! How far we reach into trees that somebody else filled.
//!
//! Who fills a tree can lock its owner out: a file of the mode 000, a directory of 0300. A [`Reach`] tries with our own
//! rights, and only where these end it asks a *helper*: a process in a user namespace of its own, where it may read all
//! that is ours, whatever the mode says. It opens, and hands out descriptors. The kernel asks for rights once more when
//! an attribute is read, so it reads these as well; everything else goes by the descriptors, without a right.
//!
//! ```text
//!  we ── directory; name, flags ──▶ helper ── descriptor, or why not ──▶ we
//!  we ── file; attribute ─────────▶ helper ── its value, or why not ───▶ we
//! ```
//! Nothing is asked of it but by descriptors that we hold, and it does what we would do. It ends with its socket.

use std::cell::OnceCell;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process::Child;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use rustix::thread::UnshareFlags;

use crate::caps::{self, Cap};
use crate::{descriptor, namespace};

/// Bytes of the value of an attribute: the kernel's own bound.
const VALUE_BYTES_MAX: usize = 65_536;
/// Bytes of a path or a name in a request. Longer than the kernel takes.
const NAME_BYTES_MAX: usize = 8192;
/// Bytes of a request before the name: its kind, and the flags of an opening.
const HEAD_BYTES: usize = 1 + 4 + 8;
/// Bytes of an answer before the value: the error, or 0.
const ERROR_BYTES: usize = 4;

const OPEN: u8 = b'o';
const ATTRIBUTE: u8 = b'a';

/// A process that may read all that is ours, and the socket to it.
#[derive(Debug)]
pub struct Helper {
    socket: OwnedFd,
    process: Child,
}

impl Helper {
    /// The process has to run [`serve`] at the other end of the socket.
    pub fn new(socket: OwnedFd, process: Child) -> Helper {
        Helper { socket, process }
    }

    /// One question, one answer.
    fn ask(&self, request: &Request<'_>) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        if request.name.len() > NAME_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        descriptor::send_with_fds(self.socket.as_fd(), &request.to_bytes(), &[request.at])?;
        let mut answer = vec![0; ERROR_BYTES + VALUE_BYTES_MAX];
        let (n, mut fds) = descriptor::receive_with_fds(self.socket.as_fd(), &mut answer)?;
        answer.truncate(n);
        let (error, value) = answer.split_first_chunk::<ERROR_BYTES>().ok_or(io::ErrorKind::UnexpectedEof)?;
        match i32::from_le_bytes(*error) {
            0 => Ok((value.to_vec(), fds.pop())),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It would end by itself, when it sees the socket closed; so nobody has to wait for that.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads trees with our own rights, and with a helper's where these end.
#[derive(Debug)]
pub struct Reach {
    start: Option<fn() -> io::Result<Helper>>,
    /// Started when it is first needed. `None`: it could not be.
    helper: OnceCell<Option<Helper>>,
}

impl Reach {
    /// No further than our own rights.
    pub fn own() -> Reach {
        Reach { start: None, helper: OnceCell::new() }
    }

    /// As far as a helper's, which is started when our own rights do not do.
    pub fn helped(start: fn() -> io::Result<Helper>) -> Reach {
        Reach { start: Some(start), helper: OnceCell::new() }
    }

    /// Asks the helper. Without one, our own right is what counts: there is none.
    fn ask(&self, request: &Request<'_>) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
        let helper = self.helper.get_or_init(|| self.start.and_then(|start| start().ok()));
        let helper = helper.as_ref().ok_or(Errno::ACCESS)?;
        helper.ask(request).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::ACCESS))
    }

    /// Opens what is at a path below the directory.
    pub fn open(
        &self,
        dir: BorrowedFd<'_>,
        path: &[u8],
        flags: OFlags,
        resolve: ResolveFlags,
    ) -> Result<OwnedFd, Errno> {
        match rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve) {
            Err(Errno::ACCESS) => {
                let (flags, resolve) = (flags.bits(), resolve.bits());
                let (_, fd) = self.ask(&Request { kind: OPEN, flags, resolve, name: path, at: dir })?;
                fd.ok_or(Errno::ACCESS)
            }
            opened => opened,
        }
    }

    /// A descriptor of an entry by which it can be looked at, whatever it is. No link is followed.
    fn point_at(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.open(dir, name.to_bytes(), flags, ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV)
    }

    /// What an entry is. No link is followed.
    pub fn stat(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<Stat, Errno> {
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::ACCESS) => rustix::fs::fstat(self.point_at(dir, name)?),
            stat => stat,
        }
    }

    /// Where a link leads.
    pub fn read_link(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<CString, Errno> {
        match rustix::fs::readlinkat(dir, name, Vec::new()) {
            Err(Errno::ACCESS) => rustix::fs::readlinkat(self.point_at(dir, name)?, c"", Vec::new()),
            target => target,
        }
    }

    /// Gives a file, whatever it is but a directory, a second name.
    pub fn link(
        &self,
        from: BorrowedFd<'_>,
        old: &CStr,
        into: BorrowedFd<'_>,
        new: &CStr,
    ) -> Result<(), Errno> {
        match rustix::fs::linkat(from, old, into, new, AtFlags::empty()) {
            Err(Errno::ACCESS) => {
                let file = self.point_at(from, old)?;
                // The way through /proc ends at what the descriptor is of, be it a link.
                rustix::fs::linkat(CWD, path_of(file.as_fd()), into, new, AtFlags::SYMLINK_FOLLOW)
            }
            linked => linked,
        }
    }

    /// The names of the attributes of an open file or directory, or of an entry of it. How many bytes they are.
    pub fn list(&self, at: BorrowedFd<'_>, entry: Option<&CStr>, buffer: &mut [u8]) -> Result<usize, Errno> {
        let Some(name) = entry else { return rustix::fs::flistxattr(at, buffer) };
        match rustix::fs::llistxattr(path_in(at, name), &mut *buffer) {
            // Followed: it is the way through /proc that is a link, and it ends there.
            Err(Errno::ACCESS) => {
                let file = self.point_at(at, name)?;
                rustix::fs::listxattr(path_of(file.as_fd()), buffer)
            }
            listed => listed,
        }
    }

    /// The value of an attribute of an open file or directory, or of an entry of it. How many bytes it has.
    pub fn attribute(
        &self,
        at: BorrowedFd<'_>,
        entry: Option<&CStr>,
        name: &CStr,
        buffer: &mut [u8],
    ) -> Result<usize, Errno> {
        let got = match entry {
            None => rustix::fs::fgetxattr(at, name, &mut *buffer),
            Some(entry) => rustix::fs::lgetxattr(path_in(at, entry), name, &mut *buffer),
        };
        let Err(Errno::ACCESS) = got else { return got };
        let file = entry.map(|entry| self.point_at(at, entry)).transpose()?;
        let at = file.as_ref().map_or(at, AsFd::as_fd);
        let request = Request { kind: ATTRIBUTE, flags: 0, resolve: 0, name: name.to_bytes(), at };
        let (value, _) = self.ask(&request)?;
        buffer.get_mut(..value.len()).ok_or(Errno::RANGE)?.copy_from_slice(&value);
        Ok(value.len())
    }
}

/// The path of what a descriptor is of.
fn path_of(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// A path of one step, short however deep the directory lies.
pub(crate) fn path_in(dir: BorrowedFd<'_>, name: &CStr) -> Vec<u8> {
    let mut path = path_of(dir).into_bytes();
    path.push(b'/');
    path.extend(name.to_bytes());
    path
}

/// What is asked of a helper.
struct Request<'a> {
    kind: u8,
    flags: u32,
    resolve: u64,
    name: &'a [u8],
    at: BorrowedFd<'a>,
}

impl<'a> Request<'a> {
    fn to_bytes(&self) -> Vec<u8> {
        [&[self.kind], &self.flags.to_le_bytes()[..], &self.resolve.to_le_bytes(), self.name].concat()
    }

    fn parse(bytes: &'a [u8], at: BorrowedFd<'a>) -> Option<Request<'a>> {
        let (&[kind], rest) = bytes.split_first_chunk()?;
        let (flags, rest) = rest.split_first_chunk()?;
        let (resolve, name) = rest.split_first_chunk()?;
        Some(Request {
            kind,
            flags: u32::from_le_bytes(*flags),
            resolve: u64::from_le_bytes(*resolve),
            name,
            at,
        })
    }

    fn carry_out(&self) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
        match self.kind {
            OPEN => {
                let flags = OFlags::from_bits_retain(self.flags);
                let resolve = ResolveFlags::from_bits_retain(self.resolve);
                let opened = rustix::fs::openat2(self.at, self.name, flags, Mode::empty(), resolve)?;
                Ok((Vec::new(), Some(opened)))
            }
            ATTRIBUTE => {
                let mut value = vec![0; VALUE_BYTES_MAX];
                let got = rustix::fs::getxattr(path_of(self.at), self.name, &mut value[..])?;
                value.truncate(got);
                Ok((value, None))
            }
            _ => Err(Errno::INVAL),
        }
    }
}

/// Enters a user namespace in which we may read all that is ours, and nothing more. Our process has one thread.
pub fn become_reader() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    namespace::unshare(UnshareFlags::NEWUSER)?;
    let own = std::process::id() as i32;
    namespace::map_ids(own, &[(uid, uid, 1)], &[(gid, gid, 1)], true)?;
    caps::set(&[Cap::DacReadSearch])
}

/// Answers until the other end is closed.
pub fn serve(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut buffer = vec![0; HEAD_BYTES + NAME_BYTES_MAX];
    loop {
        let (n, fds) = descriptor::receive_with_fds(socket, &mut buffer)?;
        if n == 0 {
            return Ok(());
        }
        let request = fds.first().and_then(|at| Request::parse(&buffer[..n], at.as_fd()));
        let (error, value, fd) = match request.ok_or(Errno::INVAL).and_then(|asked| asked.carry_out()) {
            Ok((value, fd)) => (0, value, fd),
            Err(e) => (e.raw_os_error(), Vec::new(), None),
        };
        let answer = [&i32::to_le_bytes(error)[..], &value].concat();
        let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
        descriptor::send_with_fds(socket, &answer, &fds)?;
    }
}
