//! The agent inside the box.
//!
//! The walk: [`jail`] receives a plan, builds the walls step by step (`build`) and becomes PID 1 of the box. From then
//! on it is the `agent`: one thread, one loop over one closed enum of causes. `connection` holds the bytes to and from
//! each client, `exec` the commands, `context` the interpreters that remember, `output` what they wrote, `track` the means to kill exactly one of them, `files`
//! the file operations, `carry` the programs that come over the link, `bridge` how clients come from where no socket leads,
//! `user` who is who in the box, and `walk` what is told of its root where nobody else can look.
//!
//! The guest does not know which runtime it lives in: what differs is in its plan.

mod agent;
mod bridge;
mod build;
mod carry;
mod connection;
mod context;
mod exec;
mod files;
mod output;
mod ports;
mod scratch;
mod startup;
mod track;
mod tunnel;
mod user;
mod walk;
mod zygote;

pub use context::{CONNECTION_FILE, connection_dir};

use std::io;
use std::os::fd::AsFd;

use glasshouse_linux::{descriptor, process, reach, rustix};

/// Builds the box that the plan describes, becomes its first process, and serves until the box ends. Or, if that is what
/// the plan is for, gives a box that lives another root, and ends.
pub fn jail() -> io::Result<()> {
    carry_out(startup::Startup::receive()?)
}

/// The same, executed before there is a plan: what any plan needs is made ready meanwhile. A host that never sends one
/// closes, or is gone.
pub fn spare() -> io::Result<()> {
    match startup::Startup::await_plan()? {
        Some(start) => carry_out(start),
        None => Ok(()),
    }
}

fn carry_out(start: startup::Startup) -> io::Result<()> {
    if !start.plan.spawns() {
        return build::restack(start);
    }
    match build::build(start)? {
        Some(built) => agent::run(built),
        None => Ok(()),
    }
}

/// Serves where it was started.
pub fn serve() -> io::Result<()> {
    let start = startup::Startup::receive()?;
    agent::run(build::outside(start)?)
}

/// Serves as the first process of a container, whose walls somebody else has built; the plan's few steps are those that
/// only the first process itself can take.
pub fn contained() -> io::Result<()> {
    let start = startup::Startup::fetch()?;
    agent::run(build::within(start)?)
}

/// The same where no directory of the host's can be mounted: whoever brings the plan comes to us.
pub fn apart() -> io::Result<()> {
    let start = startup::Startup::await_visitor()?;
    agent::run(build::within(start)?)
}

/// Joins stdin and stdout with the socket of the guest that lives in this container, until either has ended. `tied`: it is
/// the end of the box when stdin ends.
pub fn bridge(tied: bool) -> io::Result<()> {
    bridge::run(tied)
}

/// Opens what its owner may not read, for whoever started it, until he is gone. It knows of no box.
pub fn read() -> io::Result<()> {
    descriptor::close_from(3)?;
    process::default_signals();
    let _ = rustix::thread::set_name(c"glass-guest");
    let socket = descriptor::take_stdin()?;
    reach::become_reader()?;
    reach::serve(socket.as_fd())
}
