//! Connections to ports of the box: begun, carried on, ended.

use std::ops::ControlFlow;

use super::*;
use crate::tunnel::{self, Progress};

impl Agent {
    pub(super) fn dial(&mut self, n: usize, stream: u32, port: u16) -> Result<()> {
        if let Some(message) = tunnel::too_many(self.tunnels.len()) {
            self.fail(n, stream, FailureKind::Limit, message);
            return Ok(());
        }
        if port == 0 {
            self.fail(n, stream, FailureKind::Invalid, "0 is no port");
            return Ok(());
        }
        match Tunnel::dial(port, (n, stream)) {
            Ok((tunnel, progress)) => {
                let id = self.next_tunnel;
                self.next_tunnel += 1;
                self.tunnels.insert(id, tunnel);
                if let Some(connection) = self.connections[n].as_mut() {
                    connection.tunnels.insert(stream, id);
                    if progress == Progress::Connected {
                        connection.reply(stream, &Reply::Ready);
                    }
                }
            }
            Err(e) => {
                let (kind, message) = not_connected(port, &e);
                self.fail(n, stream, kind, message);
            }
        }
        Ok(())
    }

    /// Something happened to one, or can happen.
    pub(super) fn tunnel_moved(&mut self, id: u64) -> Result<()> {
        let Some(tunnel) = self.tunnels.get_mut(&id) else { return Ok(()) };
        let (n, stream) = tunnel.client;
        let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
        let was_dialling = tunnel.next_moment().is_some();
        let mut buffer = std::mem::take(&mut self.buffer);
        let progress = tunnel.go_on(connection, &mut buffer);
        self.buffer = buffer;
        match progress {
            Ok(Progress::Open) => {}
            Ok(Progress::Connected) => connection.reply(stream, &Reply::Ready),
            Ok(Progress::Over) => self.end_tunnel(id, &Reply::Ok),
            Err(e) => {
                let port = tunnel.port();
                let (kind, message) = match was_dialling {
                    true => not_connected(port, &e),
                    false => (FailureKind::Io, format!("the connection to port {port} broke off: {e}")),
                };
                self.end_tunnel(id, &Reply::Failed(Failure { kind, message }));
            }
        }
        Ok(())
    }

    /// Bytes for a port. A client that sends more than it was allowed to is cut off.
    pub(super) fn tunnel_data(&mut self, id: u64, bytes: &[u8]) -> Result<ControlFlow<()>> {
        let Some(tunnel) = self.tunnels.get_mut(&id) else { return Ok(ControlFlow::Continue(())) };
        if !tunnel.take(bytes) {
            return Ok(ControlFlow::Break(()));
        }
        if tunnel.next_moment().is_none() {
            self.tunnel_moved(id)?;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The client sends no more.
    pub(super) fn tunnel_ended(&mut self, id: u64) -> Result<()> {
        let Some(tunnel) = self.tunnels.get_mut(&id) else { return Ok(()) };
        tunnel.client_ended();
        match tunnel.next_moment() {
            None => self.tunnel_moved(id),
            Some(_) => Ok(()),
        }
    }

    /// Gives up those that were not accepted in time.
    pub(super) fn give_up_dialling(&mut self, now: Instant) -> Result<()> {
        let is_late = |tunnel: &Tunnel| tunnel.next_moment().is_some_and(|at| at <= now);
        let late: Vec<u64> = self.tunnels.iter().filter(|(_, t)| is_late(t)).map(|(id, _)| *id).collect();
        for id in late {
            let message =
                "the port does not accept the connection in time: too many wait there already".into();
            self.end_tunnel(id, &Reply::Failed(Failure { kind: FailureKind::Refused, message }));
        }
        Ok(())
    }

    /// Ends all of them, for this reason.
    pub(super) fn end_tunnels(&mut self, kind: FailureKind, why: &str) {
        let ids: Vec<u64> = self.tunnels.keys().copied().collect();
        for id in ids {
            self.end_tunnel(id, &Reply::Failed(Failure { kind, message: why.into() }));
        }
    }

    fn end_tunnel(&mut self, id: u64, last: &Reply) {
        // The kernel stops watching what is closed.
        let Some(tunnel) = self.tunnels.remove(&id) else { return };
        let (n, stream) = tunnel.client;
        if let Some(connection) = self.connections[n].as_mut() {
            connection.tunnels.remove(&stream);
            connection.reply(stream, last);
        }
    }

    /// Waits for what each of them can go on with: that changes with credit, and with room for what they bring.
    pub(super) fn watch_tunnels(&mut self) -> Result<()> {
        let ids: Vec<u64> = self.tunnels.keys().copied().collect();
        ids.into_iter().try_for_each(|id| self.watch_tunnel(id))
    }

    /// One that can go on with nothing is not watched at all: the kernel tells of a broken one again and again.
    fn watch_tunnel(&mut self, id: u64) -> Result<()> {
        let Some(tunnel) = self.tunnels.get_mut(&id) else { return Ok(()) };
        let Some(connection) = &self.connections[tunnel.client.0] else { return Ok(()) };
        let wanted = tunnel.interest(connection);
        let data = EventData::new_u64(Cause::Tunnel(id).token());
        match (tunnel.watched.is_empty(), wanted.is_empty()) {
            _ if wanted == tunnel.watched => {}
            (true, _) => epoll::add(&self.epoll, tunnel.fd(), data, wanted)?,
            (false, true) => epoll::delete(&self.epoll, tunnel.fd())?,
            (false, false) => epoll::modify(&self.epoll, tunnel.fd(), data, wanted)?,
        }
        tunnel.watched = wanted;
        Ok(())
    }
}

/// What to say of a connection that could not be made.
fn not_connected(port: u16, error: &io::Error) -> (FailureKind, String) {
    match tunnel::is_refusal(error) {
        true => {
            (FailureKind::Refused, format!("nothing listens on port {port} of the box's loopback device"))
        }
        false => (FailureKind::Io, format!("cannot connect to port {port} of the box: {error}")),
    }
}
