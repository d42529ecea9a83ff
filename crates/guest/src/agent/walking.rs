//! A walk through our root, by a process of its own, on the connection of whoever holds the box.
//!
//! ```text
//!  walk ──▶ fork ──▶ the child speaks with the host, we do not listen ──▶ it ends ──▶ we listen again
//!                        └ the host is gone: so is the child, and the hold
//! ```

use glasshouse_linux::namespace::{self, Fork};
use glasshouse_linux::process::{Ended, How};

use super::*;

/// Who walks, and for whom.
#[derive(Debug)]
pub(super) struct Walk {
    pid: i32,
    connection: usize,
    stream: u32,
}

impl Walk {
    pub(super) fn is_for(&self, n: usize) -> bool {
        self.connection == n
    }
}

impl Agent {
    /// Whether a client speaks with somebody who walks for it.
    pub(super) fn is_walked_for(&self, n: usize) -> bool {
        self.walk.as_ref().is_some_and(|walk| walk.is_for(n))
    }

    pub(super) fn walk(&mut self, n: usize, stream: u32) -> Result<()> {
        let holds = self.hold.as_ref().is_some_and(|hold| hold.connection == n);
        if !holds || self.walk.is_some() {
            self.fail(
                n,
                stream,
                FailureKind::Invalid,
                "only who holds the box has its root told, once at a time",
            );
            return Ok(());
        }
        let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
        if connection.wants_out() {
            connection.fail(stream, FailureKind::Invalid, "something else is still on its way");
            return Ok(());
        }
        match namespace::fork(None) {
            Ok(Fork::Child) => {
                let done = crate::walk::serve(connection.fd(), stream);
                process::exit_now(i32::from(done.is_err()));
            }
            Ok(Fork::Parent(child)) => {
                connection.paused = true;
                listen(&self.epoll, connection, n, connection.watches_out)?;
                self.walk = Some(Walk { pid: child.pid, connection: n, stream });
            }
            Err(e) => {
                let message = format!("cannot start a process to walk through the box: {e}");
                connection.fail(stream, FailureKind::Limit, message);
            }
        }
        Ok(())
    }

    /// One that we did not start a command with has ended: perhaps who walks.
    pub(super) fn walk_ended(&mut self, pid: i32, ended: Option<Ended>) -> Result<()> {
        let Some(walk) = self.walk.take_if(|walk| walk.pid == pid) else { return Ok(()) };
        let Some(connection) = self.connections[walk.connection].as_mut() else { return Ok(()) };
        connection.paused = false;
        if !ended.is_some_and(|ended| ended.how == How::Code(0)) {
            let message = "the walk through the box came to no end: something in it cannot be read";
            connection.fail(walk.stream, FailureKind::Io, message);
        }
        listen(&self.epoll, connection, walk.connection, connection.watches_out)
    }
}
