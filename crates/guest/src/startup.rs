//! How a guest learns what to do: one frame with the plan, the descriptors attached to it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use glasshouse_linux::cgroup::{self, Counters};
use glasshouse_linux::rustix::event::{PollFd, PollFlags, Timespec};
use glasshouse_linux::rustix::fs::{AtFlags, CWD, Mode, OFlags};
use glasshouse_linux::rustix::net::SocketFlags;
use glasshouse_linux::{descriptor, landlock, namespace, process, rustix};
use glasshouse_protocol::frame::{self, Kind};
use glasshouse_protocol::plan::{
    Apart, DOOR, DOOR_SOCKET, FdRole, LANDING, LANDING_SOCKET, Plan, Report, SPARE_WAITS, UNLIMITED,
};

use crate::build::{SCRATCH, receive_frame};

/// Clients that may wait to be let in, where the socket is ours.
const BACKLOG: i32 = 64;

/// Seconds that a host may take to have heard why there is no box.
const CLOSING_SECONDS_MAX: i64 = 10;

/// The plan, what came with it, and the socket to the host.
#[derive(Debug)]
pub(crate) struct Startup {
    pub(crate) plan: Plan,
    pub(crate) fds: Fds,
    pub(crate) host: OwnedFd,
    /// A mount namespace that was made while we waited for the plan, with nothing in it.
    pub(crate) workshop: Option<OwnedFd>,
}

/// Descriptors by what they are for.
#[derive(Debug, Default)]
pub(crate) struct Fds(Vec<(FdRole, OwnedFd)>);

impl Fds {
    pub(crate) fn get(&self, role: FdRole) -> Option<BorrowedFd<'_>> {
        self.all(role).next()
    }

    pub(crate) fn all(&self, role: FdRole) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().filter(move |(r, _)| *r == role).map(|(_, fd)| fd.as_fd())
    }

    /// A descriptor of our own for what this one is of.
    pub(crate) fn copy(&self, role: FdRole) -> io::Result<Option<OwnedFd>> {
        self.get(role).map(|fd| fd.try_clone_to_owned()).transpose()
    }

    pub(crate) fn extend(&mut self, more: impl Iterator<Item = (FdRole, OwnedFd)>) {
        self.0.extend(more);
    }

    pub(crate) fn take(&mut self, role: FdRole) -> Option<OwnedFd> {
        let at = self.0.iter().position(|(r, _)| *r == role)?;
        Some(self.0.swap_remove(at).1)
    }
}

impl Startup {
    pub(crate) fn receive() -> io::Result<Startup> {
        begin()?;
        Startup::receive_from(descriptor::take_stdin()?, None)?.ok_or_else(closed)
    }

    /// Makes ready what any plan needs, and waits for one for as long as the host may want it. `None`: it never will.
    pub(crate) fn await_plan() -> io::Result<Option<Startup>> {
        begin()?;
        let host = descriptor::take_stdin()?;
        let workshop = namespace::empty_mounts(SCRATCH)?;
        process::touch_memory();
        descriptor::send_with_fds(host.as_fd(), &[SPARE_WAITS], &[])?;
        Startup::receive_from(host, workshop)
    }

    /// In a container there is nobody to inherit from: the host waits behind a socket in a directory that was mounted for
    /// that. It hands the same plan and the same descriptors through it, and takes the socket away.
    pub(crate) fn fetch() -> io::Result<Startup> {
        begin()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // An engine that shows another directory in its place, or a copy of it, cannot lead us to the host.
        let nobody =
            |e| io::Error::new(io::ErrorKind::HostUnreachable, format!("nobody is at the door: {e}"));
        let door = rustix::fs::openat(CWD, DOOR, flags, Mode::empty()).map_err(|e| nobody(e.into()))?;
        let host = descriptor::connect_at(door.as_fd(), DOOR_SOCKET).map_err(nobody)?;
        // It was made to connect without waiting; what comes now is waited for.
        rustix::io::ioctl_fionbio(&host, false)?;
        Startup::receive_from(host, None)?.ok_or_else(closed)
    }

    /// In a container of an engine that sees nothing of the host, nothing of the host's can be shown to us: the host's side
    /// is executed beside us by the engine (`bridge`) and comes to our socket. No descriptor comes that way, so what the
    /// host would give us we open ourselves.
    pub(crate) fn await_visitor() -> io::Result<Startup> {
        begin()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let landing = rustix::fs::openat(CWD, LANDING, flags, Mode::empty())?;
        let listener = descriptor::listen_at(landing.as_fd(), LANDING_SOCKET, BACKLOG)?;
        // Who may come is decided by the directory.
        rustix::fs::chmodat(&landing, LANDING_SOCKET, Mode::from_raw_mode(0o666), AtFlags::empty())?;
        let mut start = loop {
            rustix::event::poll(&mut [PollFd::new(&listener, PollFlags::IN)], None)?;
            let Ok(host) = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC) else { continue };
            // Whoever goes without a word was none.
            if let Some(start) = Startup::receive_from(host, None)? {
                break start;
            }
        };
        let Counters { oom_events, pids_events, memory_peak } = cgroup::own_counters().unwrap_or_default();
        for (role, fd) in [
            (FdRole::Listener, Some(listener)),
            (FdRole::OomEvents, oom_events),
            (FdRole::PidsEvents, pids_events),
            (FdRole::MemoryPeak, memory_peak),
        ] {
            start.fds.0.extend(fd.map(|fd| (role, fd)));
        }
        Ok(start)
    }

    /// Finds out what the host could not, if it could not. What is missing, each with its reason.
    pub(crate) fn look_around(&mut self) -> Vec<String> {
        let guest = &mut self.plan.guest;
        let Some(Apart { landlock_abi_min }) = guest.apart else { return Vec::new() };
        // We may not raise them.
        for limit in &mut guest.rlimits {
            let most = rustix::process::getrlimit(crate::exec::resource(limit.kind)).maximum;
            limit.value = limit.value.min(most.unwrap_or(u64::MAX));
        }
        guest.landlock = landlock::abi() >= landlock_abi_min;
        let mut lacking = Vec::new();
        if !guest.landlock {
            lacking.push("landlock: the engine's kernel has none, or an old one".to_owned());
        }
        // Some kernels set only some of them, to whatever value (gVisor's).
        guest.rlimits.retain(|limit| {
            let resource = crate::exec::resource(limit.kind);
            let can = rustix::process::setrlimit(resource, rustix::process::getrlimit(resource));
            if can.is_err() {
                lacking.push(format!("{UNLIMITED}: the engine's kernel does not limit {:?}", limit.kind));
            }
            can.is_ok()
        });
        lacking
    }

    /// Waits until the host has closed, so that it has heard what we said last: when we end, whoever carries it ends with us.
    pub(crate) fn await_closing(&self) {
        let wait = Timespec { tv_sec: CLOSING_SECONDS_MAX, tv_nsec: 0 };
        let _ = rustix::event::poll(&mut [PollFd::new(&self.host, PollFlags::IN)], Some(&wait));
    }

    fn receive_from(host: OwnedFd, workshop: Option<OwnedFd>) -> io::Result<Option<Startup>> {
        let Some((body, fds)) = receive_frame(host.as_fd())? else { return Ok(None) };
        let plan: Plan = serde_json::from_slice(&body)?;
        if plan.fds.len() != fds.len() {
            let message = format!("the plan names {} descriptors, {} came", plan.fds.len(), fds.len());
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let fds = Fds(plan.fds.iter().copied().zip(fds).collect());
        Ok(Some(Startup { plan, fds, host, workshop }))
    }

    pub(crate) fn report(&self, report: &Report) -> io::Result<()> {
        send(self.host.as_fd(), report)
    }

    /// Waits for the host's word that the box is on record. Without it the box must not be.
    pub(crate) fn await_commit(&self) -> io::Result<()> {
        let mut word = [0];
        let (n, _) = descriptor::receive_with_fds(self.host.as_fd(), &mut word)?;
        if n == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the host went away before the box was ready",
            ));
        }
        Ok(())
    }
}

/// Leaves behind what came with the process.
fn begin() -> io::Result<()> {
    // What the maker's own maker left open is none of the box's business: nothing but stdio is ours yet.
    descriptor::close_from(3)?;
    process::default_signals();
    // Executed from memory, it would be called by the number of a descriptor.
    let _ = rustix::thread::set_name(c"glass-guest");
    Ok(())
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the host closed before it sent a plan")
}

fn send(host: BorrowedFd<'_>, report: &Report) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame::put(&mut bytes, 0, Kind::Reply, &serde_json::to_vec(report)?);
    descriptor::send_with_fds(host, &bytes, &[])
}
