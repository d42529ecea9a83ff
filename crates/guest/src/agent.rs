//! The loop: one thread, one closed enum of causes, every wait bounded by the nearest deadline.

mod answering;
mod carrying;
mod clients;
mod commands;
mod contexts;
mod feeding;
mod holding;
mod pausing;
mod tunnels;
mod walking;
mod zygotes;

use holding::After;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use glasshouse_linux::landlock::Ruleset;
use glasshouse_linux::process::Child;
use glasshouse_linux::rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use glasshouse_linux::rustix::fs::{CWD, Mode, OFlags, openat};
use glasshouse_linux::rustix::net::SocketFlags;
use glasshouse_linux::rustix::process::{Resource, Rlimit};
use glasshouse_linux::seccomp::{Filter, Program};
use glasshouse_linux::{cgroup, descriptor, identity, process, rustix, terminal};
use glasshouse_protocol::frame::{Frame, Kind};
use glasshouse_protocol::limits::{
    CONNECTIONS_MAX, DATA_CHUNK_MAX, DRAIN_MS, EXECS_ENDED_MAX, EXECS_RUNNING_MAX, FRAME_COST,
    KEPT_TOTAL_BYTES, STREAM_CREDIT, STREAMS_MAX,
};
use glasshouse_protocol::message::stream_kind;
use glasshouse_protocol::plan::{FdRole, GuestConfig, LANDING_USER};
use glasshouse_protocol::{
    ExecSpec, Exit, ExitReport, Failure, FailureKind, FileResult, Hello, Killer, NotStarted, OutputStream,
    Reply, Request, RlimitKind, VERSION,
};

use crate::build::{Built, Knobs};
use crate::connection::Connection;
use crate::context::Context;
use crate::exec::{
    Bounds, Counters, Exec, OUTPUTS, Output, PIDS_OF_COMMAND, Pin, Reader, Surroundings, not_started,
};
use crate::files::{self, Outcome};
use crate::output::Found;
use crate::scratch::Scratch;
use crate::track::Tracker;
use crate::tunnel::Tunnel;
use crate::user::Account;
use crate::zygote::Zygote;

/// Pipes of ended commands that others still hold, read and thrown away so that nobody dies of a closed pipe.
const HELD_PIPES_MAX: usize = 256;
/// Read at once from one pipe before others have their turn.
const PIPE_BYTES: usize = 64 * 1024;
const PIPE_READS_MAX: usize = 4;

/// The kernel's own default of how high numbers of processes go.
const PID_MAX: i32 = 32 * 1024;

/// How often the free room of the disk is looked at while commands run.
const DISK_LOOK: Duration = Duration::from_millis(50);

/// Why the loop woke up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Listener,
    Signals,
    Owner,
    Connection(usize),
    Exit(u64),
    Output(u64, usize),
    Stdin(u64),
    Held(usize),
    Tunnel(u64),
    ContextLine(u64),
    ContextEnd(u64),
    Answered(usize),
    Zygote(u64),
    ZygoteEnd(u64),
    Spare(u64),
    SpareEnd(u64),
}

impl Cause {
    fn token(self) -> u64 {
        let (tag, id) = match self {
            Cause::Listener => (0, 0),
            Cause::Signals => (1, 0),
            Cause::Owner => (2, 0),
            Cause::Connection(n) => (3, n as u64),
            Cause::Exit(id) => (4, id),
            Cause::Output(id, which @ 0..2) => (5 + which as u64, id),
            Cause::Output(id, _) => (10, id),
            Cause::Stdin(id) => (7, id),
            Cause::Held(n) => (8, n as u64),
            Cause::Tunnel(id) => (9, id),
            Cause::ContextLine(id) => (11, id),
            Cause::ContextEnd(id) => (12, id),
            Cause::Answered(n) => (13, n as u64),
            Cause::Zygote(id) => (14, id),
            Cause::ZygoteEnd(id) => (15, id),
            Cause::Spare(id) => (16, id),
            Cause::SpareEnd(id) => (17, id),
        };
        tag << 56 | id
    }

    fn from_token(token: u64) -> Cause {
        let id = token & ((1 << 56) - 1);
        match token >> 56 {
            0 => Cause::Listener,
            1 => Cause::Signals,
            2 => Cause::Owner,
            3 => Cause::Connection(id as usize),
            4 => Cause::Exit(id),
            5 => Cause::Output(id, 0),
            6 => Cause::Output(id, 1),
            7 => Cause::Stdin(id),
            8 => Cause::Held(id as usize),
            9 => Cause::Tunnel(id),
            10 => Cause::Output(id, 2),
            11 => Cause::ContextLine(id),
            12 => Cause::ContextEnd(id),
            13 => Cause::Answered(id as usize),
            14 => Cause::Zygote(id),
            15 => Cause::ZygoteEnd(id),
            16 => Cause::Spare(id),
            _ => Cause::SpareEnd(id),
        }
    }
}

/// What goes wrong here ends the box: there is nobody else to tell.
type Result<T> = io::Result<T>;

struct Agent {
    config: GuestConfig,
    epoll: OwnedFd,
    listener: Option<OwnedFd>,
    signals: OwnedFd,
    owner: Option<OwnedFd>,
    alive: Option<OwnedFd>,
    connections: Vec<Option<Connection>>,
    execs: BTreeMap<u64, Exec>,
    tunnels: BTreeMap<u64, Tunnel>,
    next_tunnel: u64,
    next_exec: u64,
    contexts: BTreeMap<u64, Context>,
    next_context: u64,
    zygotes: BTreeMap<u64, Zygote>,
    next_zygote: u64,
    /// Something of the caller's has run or was written since the box has its root.
    touched: bool,
    /// What it had in memory then.
    scratch: Scratch,
    /// Ports that answer, and no more.
    answered: Vec<OwnedFd>,
    /// Names that were given to contexts without one.
    context_names: u64,
    tracker: Tracker,
    enter: Vec<OwnedFd>,
    devpts: Option<OwnedFd>,
    knobs: Knobs,
    null: OwnedFd,
    landlock: Option<Ruleset>,
    filter: Option<Program>,
    oom_events: Option<OwnedFd>,
    /// How often the kernel had killed for memory when something was last started.
    oom_kills: u64,
    pids_events: Option<OwnedFd>,
    memory_peak: Option<OwnedFd>,
    held: Vec<Option<OwnedFd>>,
    ends_at: Option<Instant>,
    look_at_disk: Option<Instant>,
    own_uid: u32,
    buffer: Vec<u8>,
    namespaces: Vec<OwnedFd>,
    /// Programs that were carried in, by name.
    programs: BTreeMap<String, OwnedFd>,
    /// The directories in memory that changes go to, by the numbers of the roots: one, or two while somebody changes it.
    tops: Vec<(u64, OwnedFd)>,
    hold: Option<holding::Hold>,
    pause: Option<pausing::Pause>,
    walk: Option<walking::Walk>,
    /// Who was there when the box was last held and somebody was at work.
    at_work: Vec<i32>,
    /// Its root, if that has not been looked at yet.
    new_root: Option<holding::NewRoot>,
    shutdown: bool,
    /// Commands of a deterministic box since it began.
    turns: u64,
    pid_max: i32,
}

/// Serves until the box ends.
pub(crate) fn run(built: Built) -> Result<()> {
    let mut agent = Agent::new(built)?;
    agent.watch_all()?;
    loop {
        agent.turn()?;
        if agent.shutdown {
            agent.close();
            return Ok(());
        }
    }
}

/// The largest number of a process that there is here.
fn pid_max() -> Option<i32> {
    std::fs::read_to_string("/proc/sys/kernel/pid_max").ok()?.trim().parse().ok()
}

impl Agent {
    #[expect(clippy::too_many_lines, reason = "one straight list, a line a field")]
    fn new(built: Built) -> Result<Agent> {
        let Built { start, proc, devpts, knobs, namespaces, top } = built;
        let mut fds = start.fds;
        // An engine executes others in its containers, and without walls all the world is beside us.
        let is_own_building = start.plan.spawns() && std::process::id() == 1;
        let config = start.plan.guest;
        let null = openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        descriptor::fill_stdio(null.as_fd())?;
        // Whatever number /dev/null was given, commands must find 0, 1 and 2 taken.
        let null = rustix::io::fcntl_dupfd_cloexec(&null, 3)?;
        identity::set_umask(0o022);
        let landlock = if config.landlock { Some(walls()?) } else { None };
        let filter = match config.command_filter.as_slice() {
            [] => None,
            words => Some(Filter::from_words(words)?.program()),
        };
        if let Some(limit) = config.rlimits.iter().find(|limit| limit.kind == RlimitKind::Processes) {
            // The kernel asks the limit of whoever forks: without this, ours would be none for the commands that we start.
            let limit = Rlimit { current: Some(limit.value), maximum: Some(limit.value) };
            rustix::process::setrlimit(Resource::Nproc, limit)?;
        }
        let pid_max = config.pinned.as_ref().and_then(|_| pid_max()).unwrap_or(PID_MAX);
        let own_uid = rustix::process::getuid().as_raw();
        let track = fds.take(FdRole::Track);
        let tree = track.as_ref().filter(|_| fds.take(FdRole::First).is_some());
        // Older kernels lack some of the counters; what they would tell is then not told.
        let counter = |name: &str| openat(tree?, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        let oom_events = counter("memory.events");
        let pids_events = counter("pids.events");
        let memory_peak = counter("memory.peak");
        let mut tracker = Tracker::new(config.tracking, track, proc);
        if config.apart.is_some() {
            tracker = tracker.bridged();
        }
        if is_own_building {
            tracker = tracker.enclosed();
        }
        let tops = top.map(|top| (tracker.generation(), top)).into_iter().collect();
        Ok(Agent {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            listener: fds.take(FdRole::Listener),
            signals: descriptor::signal_fd(&[
                rustix::process::Signal::CHILD.as_raw(),
                rustix::process::Signal::PIPE.as_raw(),
            ])?,
            owner: fds.take(FdRole::Owner),
            alive: fds.take(FdRole::Alive),
            connections: vec![Some(Connection::new(start.host)?)],
            execs: BTreeMap::new(),
            tunnels: BTreeMap::new(),
            next_tunnel: 1,
            next_exec: 1,
            contexts: BTreeMap::new(),
            next_context: 1,
            zygotes: BTreeMap::new(),
            next_zygote: 1,
            touched: false,
            scratch: if is_own_building { Scratch::look() } else { Scratch::default() },
            answered: Vec::new(),
            context_names: 0,
            tracker,
            enter: std::iter::from_fn(|| fds.take(FdRole::Enter)).collect(),
            devpts,
            knobs,
            null,
            landlock,
            filter,
            oom_events: oom_events.or(fds.take(FdRole::OomEvents)),
            oom_kills: 0,
            pids_events: pids_events.or(fds.take(FdRole::PidsEvents)),
            memory_peak: memory_peak.or(fds.take(FdRole::MemoryPeak)),
            held: Vec::new(),
            ends_at: config.ttl_ms.map(|ms| Instant::now() + Duration::from_millis(ms)),
            look_at_disk: None,
            config,
            own_uid,
            buffer: Vec::new(),
            namespaces,
            programs: BTreeMap::new(),
            tops,
            hold: None,
            pause: None,
            walk: None,
            at_work: Vec::new(),
            new_root: None,
            shutdown: false,
            turns: 0,
            pid_max,
        })
    }

    fn watch_all(&mut self) -> Result<()> {
        let epoll = &self.epoll;
        let add = |fd: BorrowedFd<'_>, cause: Cause| watch(epoll, fd, cause);
        if let Some(listener) = &self.listener {
            add(listener.as_fd(), Cause::Listener)?;
        }
        if let Some(owner) = &self.owner {
            add(owner.as_fd(), Cause::Owner)?;
        }
        add(self.signals.as_fd(), Cause::Signals)?;
        for (n, connection) in self.connections.iter().enumerate() {
            if let Some(connection) = connection {
                add(connection.fd(), Cause::Connection(n))?;
            }
        }
        Ok(())
    }

    /// One turn: wait, handle what came, send what is due.
    fn turn(&mut self) -> Result<()> {
        let now = Instant::now();
        let moments = self.execs.values().filter(|exec| self.has_moments(exec));
        let moments = moments.filter_map(Exec::next_moment);
        let moment = moments.chain(self.ends_at).chain(self.look_at_disk).chain(self.hold_moment());
        let moment = moment.chain(self.tunnels.values().filter_map(Tunnel::next_moment));
        let moment = moment.chain(self.context_moment()).chain(self.zygote_moment()).min();
        let wait = moment.map(|at| {
            let left = at.saturating_duration_since(now);
            rustix::time::Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ }
        });
        let mut events =
            [const { epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) } }; 64];
        let n = match epoll::wait(&self.epoll, &mut events, wait.as_ref()) {
            Err(rustix::io::Errno::INTR) => 0,
            other => other?,
        };
        for event in &events[..n] {
            let data = event.data;
            self.handle(Cause::from_token(data.u64()))?;
        }
        self.moments(Instant::now())?;
        self.settle_hold()?;
        self.pump()?;
        self.flush();
        self.look_at_root()
    }

    fn handle(&mut self, cause: Cause) -> Result<()> {
        match cause {
            Cause::Listener => self.accept(),
            Cause::Signals => self.reap_strangers(),
            Cause::Owner => {
                self.end_all(Killer::Destroy);
                self.shutdown = true;
                Ok(())
            }
            Cause::Connection(n) if self.must_wait(n) => self.pause(n),
            // Not ours to listen to, so what woke us is that it is gone.
            Cause::Connection(n) if self.is_walked_for(n) => self.disconnect(n),
            Cause::Connection(n) => self.receive(n),
            Cause::Exit(id) => self.main_ended(id),
            Cause::Output(id, which) => self.read_output(id, which),
            Cause::Stdin(id) => self.write_stdin(id),
            Cause::Tunnel(id) => self.tunnel_moved(id),
            Cause::Answered(which) => {
                self.close_answered(which);
                Ok(())
            }
            Cause::ContextLine(number) => self.context_line(number),
            Cause::ContextEnd(number) => self.context_ended(number),
            Cause::Zygote(which) => self.zygote_spoke(which),
            Cause::ZygoteEnd(which) => self.zygote_ended(which),
            Cause::Spare(which) => self.spare_spoke(which),
            Cause::SpareEnd(which) => self.spare_ended(which),
            Cause::Held(n) => {
                self.drain_held(n);
                Ok(())
            }
        }
    }

    fn flush(&mut self) {
        for n in 0..self.connections.len() {
            let Some(connection) = self.connections[n].as_mut() else { continue };
            if connection.flush().is_err() {
                // Its commands go with it; what that stumbles over is their business, at their end.
                let _ = self.disconnect(n);
                continue;
            }
            let wants = connection.wants_out();
            if wants != connection.watches_out && listen(&self.epoll, connection, n, wants).is_ok() {
                connection.watches_out = wants;
            }
        }
        // Output that was held back for want of room goes on in the next turn, when the socket takes more.
    }

    /// Tells every reader how its command ends, and why.
    fn end_all(&mut self, by: Killer) {
        for exec in self.execs.values_mut().filter(|exec| exec.report.is_none()) {
            let cpu_us = exec.mark.as_ref().and_then(|mark| self.tracker.cpu_us(mark));
            let report = exec.ended_now(Exit::Killed { by }, cpu_us);
            for reader in std::mem::take(&mut exec.readers) {
                if let Some(connection) = self.connections[reader.connection].as_mut() {
                    connection.reply(reader.stream, &Reply::Ended { exec: exec.id, report: report.clone() });
                }
            }
        }
    }

    /// The end. In a box the kernel kills everything when its first process goes; elsewhere we do it.
    fn close(&mut self) {
        for connection in self.connections.iter_mut().flatten() {
            let _ = connection.flush();
        }
        if !self.config.contained {
            // All at once, and one search for what that misses: a search for each of many commands would outlast the
            // patience of whoever waits for us.
            for mark in
                self.execs.values().filter(|exec| exec.main.is_none()).filter_map(|exec| exec.mark.as_ref())
            {
                let _ = self.tracker.strike(mark);
            }
            let contexts = self.contexts.values().filter_map(|context| context.process.as_ref());
            let zygotes = self.zygotes.values().flat_map(|z| [Some(&z.process), z.spare.as_ref()]).flatten();
            for process in contexts.chain(zygotes) {
                let _ = self.tracker.strike(&process.mark);
            }
            let _ = crate::track::kill_family();
        }
    }
}

/// Waits for what the client says, unless it is paused, and for room to tell it something, if there is something.
fn listen(epoll: &OwnedFd, connection: &Connection, n: usize, wants_out: bool) -> Result<()> {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, !connection.paused);
    flags.set(EventFlags::OUT, wants_out);
    let data = EventData::new_u64(Cause::Connection(n).token());
    Ok(epoll::modify(epoll, connection.fd(), data, flags)?)
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, cause: Cause) -> Result<()> {
    Ok(epoll::add(epoll, fd, EventData::new_u64(cause.token()), EventFlags::IN)?)
}

fn walls() -> Result<Ruleset> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = openat(CWD, "/", flags, Mode::empty())?;
    let dev = openat(CWD, "/dev", flags, Mode::empty())?;
    Ruleset::for_box(root.as_fd(), Some(dev.as_fd()))
}
