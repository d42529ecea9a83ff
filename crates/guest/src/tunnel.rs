//! One connection to a port of the box, carried over a stream of a client's.
//!
//! ```text
//!             connected                 both sides have ended
//!  dialling ────────────▶ open ───────────────────────────────▶ `ok`
//!     │ refused: the next address, then `failed`
//!     │                    └── broken off by the box: `failed`
//!     └ not in time: `failed`
//! ```
//! What the client sends waits here until the port takes it, at most as much as it was allowed to send. What the port sends
//! waits in the kernel until the client has room and credit for it.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use glasshouse_linux::rustix::event::epoll::EventFlags;
use glasshouse_linux::rustix::io::Errno;
use glasshouse_linux::rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, connect, recv, send, shutdown,
    socket_with, sockopt,
};
use glasshouse_protocol::limits::{
    DATA_CHUNK_MAX, DIAL_MS, FRAME_COST, STDIN_CREDIT, STREAM_CREDIT, TUNNELS_MAX,
};

use crate::connection::Connection;

/// Read at once from one port before others have their turn.
const READS_MAX: usize = 4;

/// A connection to a port.
#[derive(Debug)]
pub(crate) struct Tunnel {
    fd: OwnedFd,
    port: u16,
    /// The client's connection and stream.
    pub(crate) client: (usize, u32),
    /// Not connected yet: until when it may be, and whether this is the last address to be tried.
    dialling: Option<(Instant, bool)>,
    /// From the client, for the port.
    waiting: VecDeque<u8>,
    /// What the client may still send.
    allowed: u64,
    /// What we may still send to it.
    credit: u64,
    /// The client sends no more.
    client_ended: bool,
    /// And the port knows.
    told_port: bool,
    /// The port sends no more, and the client knows.
    port_ended: bool,
    /// What the loop waits for on its behalf.
    pub(crate) watched: EventFlags,
}

/// How far a tunnel came.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It goes on.
    Open,
    /// It has just been connected.
    Connected,
    /// Both sides have ended.
    Over,
}

impl Tunnel {
    /// Begins to connect to a port on the box's loopback device: by IPv4 first, then by IPv6.
    pub(crate) fn dial(port: u16, client: (usize, u32)) -> io::Result<(Tunnel, Progress)> {
        let until = Instant::now() + Duration::from_millis(DIAL_MS);
        match attempt((Ipv4Addr::LOCALHOST, port).into()) {
            Ok((fd, is_connected)) => {
                Ok(Tunnel::new(fd, port, client, (!is_connected).then_some((until, false))))
            }
            Err(e) if is_refusal(&e) => Tunnel::dial_last(port, client, until),
            Err(e) => Err(e),
        }
    }

    fn dial_last(port: u16, client: (usize, u32), until: Instant) -> io::Result<(Tunnel, Progress)> {
        let (fd, is_connected) = attempt((Ipv6Addr::LOCALHOST, port).into())?;
        Ok(Tunnel::new(fd, port, client, (!is_connected).then_some((until, true))))
    }

    fn new(
        fd: OwnedFd,
        port: u16,
        client: (usize, u32),
        dialling: Option<(Instant, bool)>,
    ) -> (Tunnel, Progress) {
        let progress = if dialling.is_none() { Progress::Connected } else { Progress::Open };
        let tunnel = Tunnel {
            fd,
            port,
            client,
            dialling,
            waiting: VecDeque::new(),
            allowed: STDIN_CREDIT,
            credit: STREAM_CREDIT,
            client_ended: false,
            told_port: false,
            port_ended: false,
            watched: EventFlags::empty(),
        };
        (tunnel, progress)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// When it is given up.
    pub(crate) fn next_moment(&self) -> Option<Instant> {
        self.dialling.map(|(until, _)| until)
    }

    /// What to wait for. Nothing, if what comes could not be dealt with.
    pub(crate) fn interest(&self, connection: &Connection) -> EventFlags {
        let mut flags = EventFlags::empty();
        let takes = !self.port_ended && self.credit > FRAME_COST && connection.has_room();
        flags.set(EventFlags::IN, self.dialling.is_none() && takes);
        flags.set(EventFlags::OUT, self.dialling.is_some() || !self.waiting.is_empty());
        flags
    }

    pub(crate) fn granted(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_add(bytes).min(2 * STREAM_CREDIT);
    }

    /// Takes bytes of the client's. Whether it was allowed to send them.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> bool {
        let Some(left) = self.allowed.checked_sub(bytes.len() as u64) else { return false };
        self.allowed = left;
        self.waiting.extend(bytes);
        true
    }

    pub(crate) fn client_ended(&mut self) {
        self.client_ended = true;
    }

    /// Goes on with whatever can be gone on with.
    pub(crate) fn go_on(
        &mut self,
        connection: &mut Connection,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Progress> {
        if let Some((until, is_last)) = self.dialling {
            return self.connected(until, is_last);
        }
        self.write(connection)?;
        self.read(connection, buffer)?;
        Ok(if self.told_port && self.port_ended { Progress::Over } else { Progress::Open })
    }

    /// Looks how the attempt to connect came out.
    fn connected(&mut self, until: Instant, is_last: bool) -> io::Result<Progress> {
        match sockopt::socket_error(&self.fd)? {
            Err(e) if !is_last && is_refusal(&e.into()) => {
                let (other, progress) = Tunnel::dial_last(self.port, self.client, until)?;
                let waiting = std::mem::take(&mut self.waiting);
                let (allowed, client_ended) = (self.allowed, self.client_ended);
                *self = Tunnel { waiting, allowed, client_ended, ..other };
                Ok(progress)
            }
            Err(e) => Err(e.into()),
            // Woken without a reason: who is connected has a peer.
            Ok(()) if glasshouse_linux::rustix::net::getpeername(&self.fd).is_err() => Ok(Progress::Open),
            Ok(()) => {
                self.dialling = None;
                Ok(Progress::Connected)
            }
        }
    }

    fn write(&mut self, connection: &mut Connection) -> io::Result<()> {
        let mut written = 0;
        while !self.waiting.is_empty() {
            let (front, _) = self.waiting.as_slices();
            match send(&self.fd, front, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => {
                    self.waiting.drain(..n);
                    written += n as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(e) => return Err(e.into()),
            }
        }
        if written > 0 {
            self.allowed += written;
            connection.grant(self.client.1, written);
        }
        if self.waiting.is_empty() {
            // An idle one holds no memory to speak of.
            self.waiting.shrink_to(DATA_CHUNK_MAX);
            if self.client_ended && !self.told_port {
                shutdown(&self.fd, Shutdown::Write)?;
                self.told_port = true;
            }
        }
        Ok(())
    }

    fn read(&mut self, connection: &mut Connection, buffer: &mut Vec<u8>) -> io::Result<()> {
        for _ in 0..READS_MAX {
            if self.port_ended || self.credit <= FRAME_COST || !connection.has_room() {
                break;
            }
            buffer.resize(DATA_CHUNK_MAX.min((self.credit - FRAME_COST) as usize), 0);
            match recv(&self.fd, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.port_ended = true;
                    connection.end(self.client.1);
                }
                Ok((n, _)) => {
                    connection.data(self.client.1, &buffer[..n]);
                    self.credit -= n as u64 + FRAME_COST;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

/// Begins to connect. Whether it is connected at once.
fn attempt(address: SocketAddr) -> io::Result<(OwnedFd, bool)> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    // Small answers are not held back. One that cannot be told so is only slower.
    let _ = sockopt::set_tcp_nodelay(&fd, true);
    match connect(&fd, &address) {
        Ok(()) => Ok((fd, true)),
        Err(Errno::INPROGRESS | Errno::INTR) => Ok((fd, false)),
        Err(e) => Err(e.into()),
    }
}

/// Whether nobody is there, at this address at least.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    let refusals = [Errno::CONNREFUSED, Errno::ADDRNOTAVAIL, Errno::AFNOSUPPORT, Errno::NETUNREACH];
    refusals.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Why no further one is begun, if these many are there.
pub(crate) fn too_many(tunnels: usize) -> Option<String> {
    (tunnels >= TUNNELS_MAX)
        .then(|| format!("{TUNNELS_MAX} connections to ports of this box are open already"))
}
