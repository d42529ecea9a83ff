//! Ports that answer and do nothing else. Some clients take a box for ready when something listens at a port that a server of
//! theirs would have; what that server would do is done over our own connection.

use std::net::{Ipv4Addr, SocketAddrV4};

use glasshouse_linux::rustix::io::Errno;
use glasshouse_linux::rustix::net::{self, AddressFamily, SocketType};
use glasshouse_protocol::limits::ANSWERED_PORTS_MAX;

use super::*;

/// Connections that may wait to be closed, and that are closed before others have their turn.
const WAITING_MAX: i32 = 16;

impl Agent {
    pub(super) fn answer(&mut self, n: usize, stream: u32, port: u16) -> Result<()> {
        if port == 0 || self.answered.len() >= ANSWERED_PORTS_MAX {
            let message = format!("at most {ANSWERED_PORTS_MAX} ports are answered at, and 0 is none");
            self.fail(n, stream, FailureKind::Limit, message);
            return Ok(());
        }
        match listen_on(port) {
            Ok(listener) => {
                watch(&self.epoll, listener.as_fd(), Cause::Answered(self.answered.len()))?;
                self.answered.push(listener);
                self.reply(n, stream, &Reply::Ok);
            }
            // Somebody does so already: it may be us.
            Err(Errno::ADDRINUSE) => self.reply(n, stream, &Reply::Ok),
            Err(e) => self.fail(n, stream, FailureKind::Io, format!("cannot answer at port {port}: {e}")),
        }
        Ok(())
    }

    /// Takes the connections that came, and closes them.
    pub(super) fn close_answered(&mut self, which: usize) {
        let Some(listener) = self.answered.get(which) else { return };
        for _ in 0..WAITING_MAX {
            if net::accept_with(listener, SocketFlags::CLOEXEC).is_err() {
                return;
            }
        }
    }
}

fn listen_on(port: u16) -> std::result::Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    net::bind(&listener, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    net::listen(&listener, WAITING_MAX)?;
    Ok(listener)
}
