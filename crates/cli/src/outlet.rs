//! Where the output of a box goes: our stdout and stderr.
//!
//! Writing must never hold up the loop that forwards signals, however slow the reader is. The descriptors are
//! shared with other processes, so they cannot be made non-blocking; instead the kernel is asked first, and
//! what is written at once is no more than a pipe takes without waiting after it has said yes.

use std::io::{self, IsTerminal as _};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use rustix::fs::FileType;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::escape::Filter;

/// Bytes that a pipe takes without waiting once it is ready (PIPE_BUF).
const PIECE_BYTES: usize = 4096;

/// One of our two ways out.
#[derive(Debug)]
pub(crate) struct Outlet {
    fd: BorrowedFd<'static>,
    /// On a terminal, unless the user wants it raw.
    filter: Option<Filter>,
    terminal: bool,
    /// A file on disk: always ready, whatever the size.
    disk: bool,
    pending: Vec<u8>,
    written: usize,
    /// Made when the reader is slower than the box for the first time.
    readiness: Option<AsyncFd<BorrowedFd<'static>>>,
    at_line_start: bool,
}

impl Outlet {
    /// Our stdout; `raw` passes escape sequences to a terminal.
    pub(crate) fn stdout(raw: bool) -> Outlet {
        Outlet::new(rustix::stdio::stdout(), io::stdout().is_terminal(), raw)
    }

    /// Our stderr.
    pub(crate) fn stderr(raw: bool) -> Outlet {
        Outlet::new(rustix::stdio::stderr(), io::stderr().is_terminal(), raw)
    }

    fn new(fd: BorrowedFd<'static>, terminal: bool, raw: bool) -> Outlet {
        let disk = rustix::fs::fstat(fd)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        let filter = (terminal && !raw).then(Filter::default);
        let (pending, written, readiness) = (Vec::new(), 0, None);
        Outlet { fd, filter, terminal, disk, pending, written, readiness, at_line_start: true }
    }

    /// Takes bytes to be written. Call it only when nothing is left of those before.
    pub(crate) fn push(&mut self, bytes: Vec<u8>) {
        match &mut self.filter {
            Some(filter) => filter.push(&bytes, &mut self.pending),
            None => self.pending = bytes,
        }
        if let Some(last) = self.pending.last() {
            self.at_line_start = *last == b'\n';
        }
    }

    /// Takes what was held back, when no more will come.
    pub(crate) fn finish(&mut self) {
        if let Some(filter) = &mut self.filter {
            filter.finish(&mut self.pending);
        }
    }

    /// Whether there is something to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Whether a sentence of ours would continue a line of the box's.
    pub(crate) fn is_mid_line(&self) -> bool {
        self.terminal && !self.at_line_start
    }

    /// The terminal has begun a line by itself, because Enter was pressed.
    pub(crate) fn begin_line(&mut self) {
        self.at_line_start = true;
    }

    /// Writes everything. May be dropped at any point and called again.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        while self.written < self.pending.len() {
            let rest = &self.pending[self.written..];
            let piece = if self.disk { rest } else { &rest[..rest.len().min(PIECE_BYTES)] };
            if !self.disk && !is_ready(self.fd)? {
                self.ready().await?;
                continue;
            }
            match rustix::io::write(self.fd, piece) {
                Ok(count) => self.written += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => self.ready().await?,
                Err(e) => return Err(e.into()),
            }
        }
        self.pending.clear();
        self.written = 0;
        Ok(())
    }

    async fn ready(&mut self) -> io::Result<()> {
        #[expect(
            deprecated,
            reason = "its danger is a descriptor that closes meanwhile; ours live as long as we do"
        )]
        let readiness = match &mut self.readiness {
            Some(readiness) => readiness,
            none => none.insert(AsyncFd::with_interest(self.fd, Interest::WRITABLE)?),
        };
        let mut guard = readiness.writable().await?;
        // What the loop has seen may be old; only the kernel knows now.
        if !is_ready(self.fd)? {
            guard.clear_ready();
        }
        Ok(())
    }
}

fn is_ready(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::time::Duration;

    use rustix::fd::AsFd as _;

    use super::*;

    /// An outlet into a pipe. The way in is never closed, as with our own stdout.
    fn piped(terminal: bool) -> (std::fs::File, Outlet) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let writer: &'static _ = Box::leak(Box::new(writer));
        (reader.into(), Outlet::new(writer.as_fd(), terminal, false))
    }

    #[tokio::test]
    async fn a_slow_reader_holds_up_nobody_and_loses_nothing() {
        let (mut reader, mut outlet) = piped(false);
        let bytes: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
        outlet.push(bytes.clone());
        let wait = tokio::time::timeout(Duration::from_millis(20), outlet.flush()).await;
        assert!(wait.is_err(), "a pipe that nobody reads takes no megabytes");
        let read = std::thread::spawn(move || {
            let mut read = vec![0; 4_000_000];
            reader.read_exact(&mut read).map(|()| read)
        });
        outlet.flush().await.unwrap();
        assert!(outlet.is_empty());
        assert!(read.join().unwrap().unwrap() == bytes);
    }

    #[tokio::test]
    async fn a_closed_reader_is_an_error() {
        let (reader, mut outlet) = piped(false);
        drop(reader);
        outlet.push(b"x".to_vec());
        assert_eq!(outlet.flush().await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn only_a_terminal_is_spared_escapes() {
        for (terminal, expected) in [(false, "\x1b]0;t\x07"), (true, "\\x1b]0;t\\x07")] {
            let (mut reader, mut outlet) = piped(terminal);
            outlet.push(b"\x1b]0;t\x07".to_vec());
            outlet.finish();
            outlet.flush().await.unwrap();
            let mut read = vec![0; expected.len()];
            reader.read_exact(&mut read).unwrap();
            assert_eq!(String::from_utf8(read).unwrap(), expected);
            assert_eq!(outlet.is_mid_line(), terminal);
        }
    }
}
