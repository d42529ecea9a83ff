//! A bridge: a process that the engine executes in a guest's container, and that carries bytes both ways.
//!
//! ```text
//!  host ══ attached stream ══ engine ══ stdin, stdout │ bridge │ socket ══ guest
//! ```
//! It knows nothing of what it carries. What it cannot pass on it does not read, so whoever is slow at one end slows down the
//! other. An end of stdin is passed on as such, and what the guest still says comes back; the guest's end is the bridge's.
//! Descriptors that the guest sends along do not cross it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use glasshouse_linux::rustix::event::{PollFd, PollFlags, poll};
use glasshouse_linux::rustix::fs::{CWD, Mode, OFlags, openat};
use glasshouse_linux::rustix::io::Errno;
use glasshouse_linux::rustix::net::{Shutdown, shutdown};
use glasshouse_linux::rustix::stdio;
use glasshouse_linux::{descriptor, rustix};
use glasshouse_protocol::Request;
use glasshouse_protocol::frame::{self, Kind};
use glasshouse_protocol::plan::{BRIDGE_STANDS, LANDING, LANDING_SOCKET};

/// Bytes under way in each direction.
const BUFFER_BYTES: usize = 128 * 1024;
/// How long the guest may take to have its socket, from the moment that the engine has started it.
const GUEST_MAX: Duration = Duration::from_secs(30);
/// Between two looks whether it has.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// One direction.
struct Lane<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    bytes: Vec<u8>,
    sent: usize,
    /// Nothing more comes.
    ended: bool,
}

impl<'a> Lane<'a> {
    fn new(from: BorrowedFd<'a>, to: BorrowedFd<'a>) -> Lane<'a> {
        Lane { from, to, bytes: Vec::with_capacity(BUFFER_BYTES), sent: 0, ended: false }
    }

    fn has_bytes(&self) -> bool {
        self.sent < self.bytes.len()
    }

    /// What to wait for: bytes, or room for those that are here.
    fn wants(&self) -> Option<PollFd<'a>> {
        match (self.has_bytes(), self.ended) {
            (true, _) => Some(PollFd::from_borrowed_fd(self.to, PollFlags::OUT)),
            (false, false) => Some(PollFd::from_borrowed_fd(self.from, PollFlags::IN)),
            (false, true) => None,
        }
    }

    /// Takes and passes on what goes without waiting.
    fn go(&mut self) -> io::Result<()> {
        if !self.has_bytes() && !self.ended {
            self.bytes.resize(BUFFER_BYTES, 0);
            let read = rustix::io::read(self.from, &mut self.bytes[..]);
            self.sent = 0;
            self.bytes.truncate(*read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) | Err(Errno::CONNRESET) => self.ended = true,
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        while self.has_bytes() {
            match rustix::io::write(self.to, &self.bytes[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                // Nobody takes it any more; what comes the other way may still be of use.
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    self.ended = true;
                    self.sent = self.bytes.len();
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

/// Carries bytes until the guest has ended, or nobody is there any more to carry them to.
pub(crate) fn run(tied: bool) -> io::Result<()> {
    descriptor::close_from(3)?;
    let _ = rustix::thread::set_name(c"glass-bridge");
    let guest = reach()?;
    for fd in [stdio::stdin(), stdio::stdout()] {
        rustix::io::ioctl_fionbio(fd, true)?;
    }
    let mut to_guest = Lane::new(stdio::stdin(), guest.as_fd());
    let mut to_host = Lane::new(guest.as_fd(), stdio::stdout());
    to_host.bytes.push(BRIDGE_STANDS);
    let mut passed_on = false;
    loop {
        to_guest.go()?;
        to_host.go()?;
        if to_host.ended && !to_host.has_bytes() {
            return Ok(());
        }
        if to_guest.ended && !to_guest.has_bytes() && !passed_on {
            passed_on = true;
            if tied {
                to_guest.bytes = shut_down()?;
                to_guest.sent = 0;
                continue;
            }
            // One that has ended needs not be told.
            let _ = shutdown(&guest, Shutdown::Write);
        }
        let mut wanted: Vec<PollFd<'_>> = [to_guest.wants(), to_host.wants()].into_iter().flatten().collect();
        // Rust programs get no signal for what nobody reads: it is an error of the write.
        match poll(&mut wanted, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// The guest's socket, which may not be there yet.
fn reach() -> io::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let landing = openat(CWD, LANDING, flags, Mode::empty())?;
    let until = Instant::now() + GUEST_MAX;
    loop {
        match descriptor::connect_at(landing.as_fd(), LANDING_SOCKET) {
            // Not there, not listening, or not yet open to us: it is about to be.
            Err(e) if Instant::now() < until && is_early(&e) => std::thread::sleep(LOOK_AGAIN),
            reached => return reached,
        }
    }
}

fn is_early(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied, WouldBlock};
    // The last: more wait to be let in than there is room for.
    matches!(error.kind(), NotFound | ConnectionRefused | PermissionDenied | WouldBlock)
}

/// The request to end, as the host would say it.
fn shut_down() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    frame::put(&mut bytes, 1, Kind::Request, &serde_json::to_vec(&Request::Shutdown)?);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_lane_takes_no_more_than_it_can_pass_on_and_loses_nothing() {
        let (mut source, from) = UnixStream::pair().unwrap();
        let (to, mut sink) = UnixStream::pair().unwrap();
        for stream in [&source, &from, &to, &sink] {
            stream.set_nonblocking(true).unwrap();
        }
        let mut lane = Lane::new(from.as_fd(), to.as_fd());
        let piece: Vec<u8> = (0..=255).cycle().take(64 * 1024).collect();
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        // Nobody reads: after a while nothing more is taken.
        let mut refused = 0;
        while refused < 3 {
            match source.write(&piece) {
                Ok(n) => sent.extend_from_slice(&piece[..n]),
                Err(_) => refused += 1,
            }
            lane.go().unwrap();
        }
        assert!(lane.has_bytes() && !lane.ended);
        drop(source);
        let mut buffer = vec![0; 64 * 1024];
        while !lane.ended || lane.has_bytes() {
            lane.go().unwrap();
            while let Ok(n @ 1..) = sink.read(&mut buffer) {
                received.extend_from_slice(&buffer[..n]);
            }
        }
        assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
        assert!(lane.wants().is_none());
    }
}
