//! The guest's program: `glass-guest jail` builds a box and becomes its first process, or gives a box that lives another
//! root; `glass-guest spare` does the same, and is executed ahead of time; `glass-guest serve` serves where it is. All read
//! their plan from the socket at descriptor 0. `glass-guest read` has no plan: it reads what its maker owns and may not
//! read, and is asked over that socket.
//! `glass-guest contained` is the first process of a container: it fetches its plan through a socket in a directory that was
//! mounted for it. `glass-guest apart` is the same where the host has no directory to mount: it waits in a directory of its
//! own for who brings the plan. `glass-guest bridge` is executed beside it, once for each connection: it joins its stdin and
//! stdout with the guest's socket. As `bridge tied` it ends the box when its stdin ends.

use std::process::ExitCode;

use glasshouse_protocol::plan::NOBODY_AT_THE_DOOR;

fn main() -> ExitCode {
    let mode = std::env::args().nth(1);
    let result = match mode.as_deref() {
        Some("jail") => glasshouse_guest::jail(),
        Some("spare") => glasshouse_guest::spare(),
        Some("read") => glasshouse_guest::read(),
        Some("serve") => glasshouse_guest::serve(),
        Some("contained") => glasshouse_guest::contained(),
        Some("apart") => glasshouse_guest::apart(),
        Some("bridge") => glasshouse_guest::bridge(std::env::args().nth(2).as_deref() == Some("tied")),
        _ => {
            eprintln!("glass-guest is started by glass, with its plan at descriptor 0");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("glass-guest: {error}");
            match error.kind() {
                std::io::ErrorKind::HostUnreachable => ExitCode::from(NOBODY_AT_THE_DOOR),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
