//! Programs that are carried in: taken piece by piece, kept for as long as the guest lives, run like any other.

use std::ops::ControlFlow;

use glasshouse_protocol::limits::{CARRIED_BYTES_MAX, CARRIED_MAX, CARRIED_NAME_MAX};

use super::*;
use crate::carry::Carry;

impl Agent {
    /// Somebody wants the box to have a program.
    pub(super) fn carry(&mut self, n: usize, stream: u32, program: String, bytes: u64) {
        if self.programs.contains_key(&program) {
            return self.reply(n, stream, &Reply::Ok);
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
        if program.is_empty() || program.len() > CARRIED_NAME_MAX || !program.chars().all(plain) {
            let message =
                format!("a program's name has up to {CARRIED_NAME_MAX} letters, digits, `-`, `_` and `.`");
            return self.fail(n, stream, FailureKind::Invalid, message);
        }
        if bytes > CARRIED_BYTES_MAX || self.programs.len() >= CARRIED_MAX {
            let message = format!(
                "a guest keeps {CARRIED_MAX} programs of at most {CARRIED_BYTES_MAX} bytes, and no more"
            );
            return self.fail(n, stream, FailureKind::Limit, message);
        }
        match Carry::begin(program, bytes) {
            Ok(carry) => {
                if let Some(connection) = self.connections[n].as_mut() {
                    connection.carries.insert(stream, carry);
                    connection.reply(stream, &Reply::Ready);
                }
            }
            Err(e) => self.not_carried(n, stream, &e),
        }
    }

    /// A piece of it. A client that sends more than it was allowed to is cut off.
    pub(super) fn carry_piece(&mut self, n: usize, stream: u32, bytes: &[u8]) -> ControlFlow<()> {
        let Some(connection) = self.connections[n].as_mut() else { return ControlFlow::Break(()) };
        let Some(carry) = connection.carries.get_mut(&stream) else { return ControlFlow::Continue(()) };
        if bytes.len() as u64 > carry.credit {
            return ControlFlow::Break(());
        }
        match carry.write(bytes) {
            Ok(()) => connection.grant(stream, bytes.len() as u64),
            Err(e) => {
                connection.carries.remove(&stream);
                self.not_carried(n, stream, &e);
            }
        }
        ControlFlow::Continue(())
    }

    /// All of it has come. Who was faster with the same has brought the same; with others, there may be no room left.
    pub(super) fn carried(&mut self, n: usize, stream: u32, carry: Carry) {
        match carry.finish() {
            Ok((name, program)) => {
                if self.programs.len() < CARRIED_MAX {
                    self.programs.entry(name).or_insert(program);
                }
                self.reply(n, stream, &Reply::Ok);
            }
            Err(e) => self.not_carried(n, stream, &e),
        }
    }

    fn not_carried(&mut self, n: usize, stream: u32, error: &io::Error) {
        self.fail(n, stream, FailureKind::Io, format!("cannot take a program: {error}"));
    }
}
