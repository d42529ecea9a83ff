//! One client's bytes: frames in, frames out, both bounded.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use glasshouse_linux::rustix::net::SendFlags;
use glasshouse_linux::{descriptor, rustix};
use glasshouse_protocol::frame::{self, Decoder, Frame, Kind};
use glasshouse_protocol::{Failure, FailureKind, Reply};

use crate::carry::Carry;
use crate::files::{Download, Upload};

/// No more output is queued for a client that has this much waiting.
const OUT_BYTES_HIGH: usize = 512 * 1024;
/// A client that lets even small replies pile up beyond this is cut off.
const OUT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The version from which on hosts know that boxes can be paused.
const PAUSED_SINCE: u32 = 3;
/// Read at once.
const READ_BYTES: usize = 64 * 1024;

/// A client.
#[derive(Debug)]
pub(crate) struct Connection {
    fd: OwnedFd,
    decoder: Decoder,
    out: Vec<u8>,
    sent: usize,
    /// Commands started or attached to on this connection, by stream.
    pub(crate) execs: BTreeMap<u32, u64>,
    /// Files being written, by stream.
    pub(crate) uploads: BTreeMap<u32, Upload>,
    /// Programs being carried in, by stream.
    pub(crate) carries: BTreeMap<u32, Carry>,
    /// Files being read, by stream.
    pub(crate) downloads: BTreeMap<u32, Download>,
    /// Connections to ports of the box, by stream.
    pub(crate) tunnels: BTreeMap<u32, u64>,
    /// The loop waits for room to write.
    pub(crate) watches_out: bool,
    /// Somebody else holds the box: what this client says is read later.
    pub(crate) paused: bool,
    /// The descriptor that came last, until a request takes it.
    pub(crate) came: Option<OwnedFd>,
    /// The version that it speaks, if it has said so.
    pub(crate) version: u32,
}

impl Connection {
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Connection> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Connection {
            fd,
            decoder: Decoder::default(),
            out: Vec::new(),
            sent: 0,
            execs: BTreeMap::new(),
            uploads: BTreeMap::new(),
            carries: BTreeMap::new(),
            downloads: BTreeMap::new(),
            tunnels: BTreeMap::new(),
            watches_out: false,
            paused: false,
            came: None,
            version: 0,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Streams in use.
    pub(crate) fn streams(&self) -> usize {
        let files = self.uploads.len() + self.downloads.len();
        self.execs.len() + files + self.carries.len() + self.tunnels.len()
    }

    /// Takes what has come. `false`: the client is gone.
    pub(crate) fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<bool> {
        buffer.resize(READ_BYTES, 0);
        // The socket does not block.
        match descriptor::receive_with_fds(self.fd.as_fd(), buffer) {
            Ok((0, _)) => Ok(false),
            Ok((n, mut fds)) => {
                self.came = fds.pop().or(self.came.take());
                self.decoder.feed(&buffer[..n]);
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn next_frame(&mut self) -> io::Result<Option<Frame>> {
        self.decoder.next_frame().map_err(io::Error::other)
    }

    pub(crate) fn reply(&mut self, stream: u32, reply: &Reply) {
        let body = serde_json::to_vec(reply).unwrap_or_default();
        if body.len() <= glasshouse_protocol::limits::FRAME_BODY_MAX {
            frame::put(&mut self.out, stream, Kind::Reply, &body);
        } else {
            self.fail(
                stream,
                FailureKind::Limit,
                "the answer is longer than one frame; ask for less at once",
            );
        }
    }

    /// A reply with descriptors. It must be the only thing on its way: they travel with its first byte.
    pub(crate) fn reply_with(
        &mut self,
        stream: u32,
        reply: &Reply,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        if self.wants_out() {
            return Err(io::Error::other("something else is still on its way"));
        }
        let mut bytes = Vec::new();
        frame::put(&mut bytes, stream, Kind::Reply, &serde_json::to_vec(reply)?);
        descriptor::send_with_fds(self.fd.as_fd(), &bytes, fds)
    }

    pub(crate) fn fail(&mut self, stream: u32, kind: FailureKind, message: impl Into<String>) {
        // A word that an older host does not know would hide the sentence from it.
        let is_new = kind == FailureKind::Paused && self.version < PAUSED_SINCE;
        let kind = if is_new { FailureKind::Limit } else { kind };
        self.reply(stream, &Reply::Failed(Failure { kind, message: message.into() }));
    }

    pub(crate) fn output(&mut self, stream: u32, kind: Kind, offset: u64, bytes: &[u8]) {
        frame::put_output(&mut self.out, stream, kind, offset, bytes);
    }

    pub(crate) fn data(&mut self, stream: u32, bytes: &[u8]) {
        frame::put(&mut self.out, stream, Kind::Data, bytes);
    }

    /// No more data on this stream from our side.
    pub(crate) fn end(&mut self, stream: u32) {
        frame::put(&mut self.out, stream, Kind::End, &[]);
    }

    pub(crate) fn grant(&mut self, stream: u32, bytes: u64) {
        frame::put_credit(&mut self.out, stream, bytes);
    }

    /// Whether more output may be queued.
    pub(crate) fn has_room(&self) -> bool {
        self.out.len() - self.sent < OUT_BYTES_HIGH
    }

    /// Whether something waits to be sent.
    pub(crate) fn wants_out(&self) -> bool {
        self.out.len() > self.sent
    }

    /// Sends as much as goes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.out.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.fd, &self.out[self.sent..], flags) {
                Ok(n) => self.sent += n,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            // An idle connection holds no memory to speak of.
            self.out.shrink_to(READ_BYTES);
            self.sent = 0;
        } else if self.sent > OUT_BYTES_HIGH {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        if self.out.len() - self.sent > OUT_BYTES_MAX {
            return Err(io::Error::other("the client does not read its replies"));
        }
        Ok(())
    }
}
