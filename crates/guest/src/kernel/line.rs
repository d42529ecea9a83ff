//! The line to the guest. The words are those of every driver; `context` says what they mean.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use glasshouse_linux::{descriptor, rustix};
use glasshouse_protocol::limits::CONTEXT_LINE_MAX;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Where a driver finds its line.
const LINE: i32 = 3;
/// stdin, stdout, stderr, results, code.
const PASSED: usize = 5;

/// What the guest says.
#[derive(Debug)]
pub(crate) enum Word {
    Run(Handed),
    Interrupt(u64),
}

/// A run, as it is handed over.
#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) exec: u64,
    pub(crate) stdin: OwnedFd,
    /// stdout, stderr, results.
    pub(crate) outputs: [OwnedFd; 3],
    pub(crate) code: OwnedFd,
}

/// Our end.
#[derive(Debug)]
pub(crate) struct Line {
    socket: UnixStream,
    /// What came and has no end yet, and the descriptors that came with it.
    inbox: Vec<u8>,
    passed: VecDeque<OwnedFd>,
}

impl Line {
    pub(crate) fn take() -> io::Result<Line> {
        let socket = std::os::unix::net::UnixStream::from(descriptor::take_passed_on(LINE)?);
        socket.set_nonblocking(true)?;
        Ok(Line { socket: UnixStream::from_std(socket)?, inbox: Vec::new(), passed: VecDeque::new() })
    }

    /// The next word, or none when the guest has closed the line. One that is not waited for to the end is not lost.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Word>> {
        loop {
            if let Some(end) = self.inbox.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.inbox.drain(..=end).collect();
                let text = String::from_utf8_lossy(&line[..end]).into_owned();
                return self.word(&text).map(Some);
            }
            let mut buffer = [0; CONTEXT_LINE_MAX];
            let socket = &self.socket;
            let receive = || descriptor::receive_with_fds(socket.as_fd(), &mut buffer);
            let (n, passed) = socket.async_io(Interest::READABLE, receive).await?;
            if n == 0 {
                return Ok(None);
            }
            self.inbox.extend_from_slice(&buffer[..n]);
            self.passed.extend(passed);
        }
    }

    fn word(&mut self, text: &str) -> io::Result<Word> {
        let strange = || io::Error::new(io::ErrorKind::InvalidData, format!("the guest said {text:?}"));
        let (word, number) = text.split_once(' ').ok_or_else(strange)?;
        let exec = number.parse().map_err(|_| strange())?;
        match word {
            "interrupt" => Ok(Word::Interrupt(exec)),
            "run" if self.passed.len() >= PASSED => {
                let mut passed = self.passed.drain(..PASSED);
                let mut next = || passed.next().ok_or_else(strange);
                let (stdin, outputs) = (next()?, [next()?, next()?, next()?]);
                Ok(Word::Run(Handed { exec, stdin, outputs, code: next()? }))
            }
            _ => Err(strange()),
        }
    }

    /// Says a word of a driver's. What has no place in a line is left out.
    pub(crate) async fn say(&self, text: &str) -> io::Result<()> {
        let plain = text.chars().filter(|c| !c.is_control());
        let mut line = String::new();
        for c in plain {
            if line.len() + c.len_utf8() >= CONTEXT_LINE_MAX - 1 {
                break;
            }
            line.push(c);
        }
        line.push('\n');
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            let send = || Ok(rustix::net::send(&self.socket, rest, rustix::net::SendFlags::NOSIGNAL)?);
            let sent = self.socket.async_io(Interest::WRITABLE, send).await?;
            rest = &rest[sent..];
        }
        Ok(())
    }
}
