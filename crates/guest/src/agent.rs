//! The loop: one thread, one closed enum of causes, every wait bounded by the nearest deadline.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use glasshouse_linux::landlock::Ruleset;
use glasshouse_linux::rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use glasshouse_linux::rustix::fs::{CWD, Mode, OFlags, openat};
use glasshouse_linux::rustix::net::SocketFlags;
use glasshouse_linux::seccomp::{Filter, Program};
use glasshouse_linux::{cgroup, descriptor, identity, process, rustix, terminal};
use glasshouse_protocol::frame::{Frame, Kind};
use glasshouse_protocol::limits::{
    CONNECTIONS_MAX, DATA_CHUNK_MAX, DRAIN_MS, EXECS_ENDED_MAX, EXECS_RUNNING_MAX, KEPT_TOTAL_BYTES, STREAM_CREDIT,
    STREAMS_MAX,
};
use glasshouse_protocol::message::stream_kind;
use glasshouse_protocol::plan::{FdRole, GuestConfig};
use glasshouse_protocol::{
    ExecSpec, Exit, ExitReport, FailureKind, FileResult, Hello, Killer, NotStarted, OutputStream, Reply, Request,
    VERSION,
};

use crate::build::Built;
use crate::connection::Connection;
use crate::exec::{Counters, Exec, Output, Reader, Surroundings, not_started};
use crate::files::{self, Outcome};
use crate::output::Found;
use crate::track::Tracker;
use crate::user::Account;

/// Pipes of ended commands that others still hold, read and thrown away so that nobody dies of a closed pipe.
const HELD_PIPES_MAX: usize = 256;
/// Read at once from one pipe before others have their turn.
const PIPE_BYTES: usize = 64 * 1024;
const PIPE_READS_MAX: usize = 4;

/// How often the free room of the disk is looked at while commands run.
const DISK_LOOK: Duration = Duration::from_millis(250);

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
}

impl Cause {
    fn token(self) -> u64 {
        let (tag, id) = match self {
            Cause::Listener => (0, 0),
            Cause::Signals => (1, 0),
            Cause::Owner => (2, 0),
            Cause::Connection(n) => (3, n as u64),
            Cause::Exit(id) => (4, id),
            Cause::Output(id, which) => (5 + which as u64, id),
            Cause::Stdin(id) => (7, id),
            Cause::Held(n) => (8, n as u64),
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
            _ => Cause::Held(id as usize),
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
    _alive: Option<OwnedFd>,
    connections: Vec<Option<Connection>>,
    execs: BTreeMap<u64, Exec>,
    next_exec: u64,
    tracker: Tracker,
    devpts: Option<OwnedFd>,
    oom_score: Option<OwnedFd>,
    null: OwnedFd,
    landlock: Option<Ruleset>,
    filter: Option<Program>,
    oom_events: Option<OwnedFd>,
    pids_events: Option<OwnedFd>,
    memory_peak: Option<OwnedFd>,
    held: Vec<Option<OwnedFd>>,
    ends_at: Option<Instant>,
    look_at_disk: Option<Instant>,
    own_uid: u32,
    buffer: Vec<u8>,
    shutdown: bool,
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

impl Agent {
    fn new(built: Built) -> Result<Agent> {
        let Built { start, proc, devpts, oom_score } = built;
        let mut fds = start.fds;
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
        let own_uid = rustix::process::getuid().as_raw();
        Ok(Agent {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            listener: fds.take(FdRole::Listener),
            signals: descriptor::signal_fd(&[
                rustix::process::Signal::CHILD.as_raw(),
                rustix::process::Signal::PIPE.as_raw(),
            ])?,
            owner: fds.take(FdRole::Owner),
            _alive: fds.take(FdRole::Alive),
            connections: vec![Some(Connection::new(start.host)?)],
            execs: BTreeMap::new(),
            next_exec: 1,
            tracker: Tracker::new(config.tracking, fds.take(FdRole::Track), proc),
            devpts,
            oom_score,
            null,
            landlock,
            filter,
            oom_events: fds.take(FdRole::OomEvents),
            pids_events: fds.take(FdRole::PidsEvents),
            memory_peak: fds.take(FdRole::MemoryPeak),
            held: Vec::new(),
            ends_at: config.ttl_ms.map(|ms| Instant::now() + Duration::from_millis(ms)),
            look_at_disk: None,
            config,
            own_uid,
            buffer: Vec::new(),
            shutdown: false,
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
        let moments = self.execs.values().filter_map(Exec::next_moment);
        let moment = moments.chain(self.ends_at).chain(self.look_at_disk).min();
        let wait = moment.map(|at| {
            let left = at.saturating_duration_since(now);
            rustix::time::Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ }
        });
        let mut events = [const {
            epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }
        }; 64];
        let n = match epoll::wait(&self.epoll, &mut events, wait.as_ref()) {
            Err(rustix::io::Errno::INTR) => 0,
            other => other?,
        };
        for event in &events[..n] {
            let data = event.data;
            self.handle(Cause::from_token(data.u64()))?;
        }
        self.moments(Instant::now())?;
        self.pump()?;
        self.flush();
        Ok(())
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
            Cause::Connection(n) => self.receive(n),
            Cause::Exit(id) => self.main_ended(id),
            Cause::Output(id, which) => self.read_output(id, which),
            Cause::Stdin(id) => self.write_stdin(id),
            Cause::Held(n) => {
                self.drain_held(n);
                Ok(())
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        let Some(listener) = &self.listener else { return Ok(()) };
        let fd = match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            // One that is gone already, or no descriptor left: the next one has better luck.
            Err(_) => return Ok(()),
            Ok(fd) => fd,
        };
        if self.connections.iter().flatten().count() >= CONNECTIONS_MAX {
            return Ok(());
        }
        let slot = self.connections.iter().position(Option::is_none).unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let connection = Connection::new(fd)?;
        watch(&self.epoll, connection.fd(), Cause::Connection(slot))?;
        self.connections[slot] = Some(connection);
        Ok(())
    }

    /// Children that are nobody's command: orphans of the box. A command's main process is left to its own
    /// descriptor, so that its status is never lost here.
    fn reap_strangers(&mut self) -> Result<()> {
        let mut buffer = [0; 1024];
        while rustix::io::read(&self.signals, &mut buffer[..]).is_ok_and(|n| n == buffer.len()) {}
        while let Some(pid) = process::peek_ended()? {
            match self.execs.values().find(|exec| exec.main.is_none() && exec.pid == pid) {
                Some(exec) => self.main_ended(exec.id)?,
                None => {
                    process::reap_pid(pid)?;
                }
            }
        }
        self.tracker.tidy();
        Ok(())
    }

    fn running(&self) -> impl Iterator<Item = u64> + '_ {
        self.execs.values().filter(|exec| exec.main.is_none()).map(|exec| exec.id)
    }

    fn receive(&mut self, n: usize) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let Some(connection) = self.connections.get_mut(n).and_then(Option::as_mut) else {
            self.buffer = buffer;
            return Ok(());
        };
        let open = connection.receive(&mut buffer).unwrap_or(false);
        self.buffer = buffer;
        loop {
            let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
            match connection.next_frame() {
                Ok(Some(frame)) => {
                    if self.frame(n, frame)?.is_break() {
                        return self.disconnect(n);
                    }
                }
                Ok(None) => break,
                // Not made of frames: there is no way back into step.
                Err(_) => return self.disconnect(n),
            }
        }
        if !open {
            return self.disconnect(n);
        }
        Ok(())
    }

    fn disconnect(&mut self, n: usize) -> Result<()> {
        let Some(connection) = self.connections[n].take() else { return Ok(()) };
        // An error here means that it is not watched, which is all we want.
        let _ = epoll::delete(&self.epoll, connection.fd());
        let ids: Vec<u64> = self.execs.keys().copied().collect();
        for id in ids {
            let Some(exec) = self.execs.get_mut(&id) else { continue };
            let was_waited_for = exec.readers.iter().any(|r| r.connection == n && r.waited_for);
            exec.readers.retain(|r| r.connection != n);
            if exec.stdin.as_ref().is_some_and(|stdin| stdin.client.0 == n) {
                exec.stdin = None;
            }
            if exec.main.is_none() && was_waited_for && !exec.background {
                self.kill(id, Exit::Killed { by: Killer::Disconnect })?;
            } else {
                self.watch_outputs(id)?;
            }
        }
        Ok(())
    }

    fn frame(&mut self, n: usize, frame: Frame) -> Result<std::ops::ControlFlow<()>> {
        use std::ops::ControlFlow::{Break, Continue};
        match frame.kind {
            Kind::Request => match serde_json::from_slice(&frame.body) {
                Ok(request) => self.request(n, frame.stream, request)?,
                Err(e) => {
                    let Some(connection) = self.connections[n].as_mut() else { return Ok(Break(())) };
                    connection.fail(frame.stream, FailureKind::Unsupported, format!("not understood: {e}"));
                }
            },
            Kind::Data => return self.data(n, frame.stream, &frame.body),
            Kind::End => self.data_ended(n, frame.stream)?,
            Kind::Credit => {
                let Ok(bytes) = frame.credit() else { return Ok(Break(())) };
                self.granted(n, frame.stream, bytes)?;
            }
            Kind::Reply | Kind::Stdout | Kind::Stderr => return Ok(Break(())),
        }
        Ok(Continue(()))
    }

    fn request(&mut self, n: usize, stream: u32, request: Request) -> Result<()> {
        let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
        if connection.streams() >= STREAMS_MAX {
            let message = format!("more than {STREAMS_MAX} streams on one connection");
            connection.fail(stream, FailureKind::Limit, message);
            return Ok(());
        }
        match request {
            Request::Hello(_) => {
                connection.reply(stream, &Reply::Hello(Hello { version: VERSION, features: Vec::new() }));
            }
            Request::Ping => connection.reply(stream, &Reply::Ok),
            Request::Exec(spec) => self.exec(n, stream, &spec)?,
            Request::Attach { exec, from, follow } => self.attach(n, stream, exec, from, follow),
            Request::Signal { exec, signal, tree } => self.signal(n, stream, exec, signal, tree),
            Request::Kill { exec } => match self.execs.get(&exec) {
                Some(_) => {
                    self.kill(exec, Exit::Killed { by: Killer::Caller })?;
                    self.reply(n, stream, &Reply::Ok);
                }
                None => self.no_such_exec(n, stream, exec),
            },
            Request::Resize(size) => {
                let exec = connection.execs.get(&stream).and_then(|id| self.execs.get(id));
                if let Some(master) = exec.and_then(|exec| exec.terminal.as_ref()) {
                    // A terminal that is gone has no size.
                    let _ = terminal::resize(master.as_fd(), size.rows, size.cols);
                }
            }
            Request::Execs => {
                let execs = self.execs.values().filter(|exec| !exec.hidden).map(Exec::info).collect();
                self.reply(n, stream, &Reply::Execs { execs });
            }
            Request::Unrecorded => {
                let mut execs = Vec::new();
                for exec in self.execs.values_mut() {
                    if exec.report.is_some() && !exec.recorded && !exec.hidden {
                        exec.recorded = true;
                        // Whoever asked will come for its output.
                        exec.background = true;
                        execs.push(exec.info());
                    }
                }
                self.reply(n, stream, &Reply::Unrecorded { execs });
            }
            Request::File { file, user } => self.file(n, stream, file, user.as_deref())?,
            Request::Shutdown => {
                self.end_all(Killer::Destroy);
                self.reply(n, stream, &Reply::Ok);
                self.shutdown = true;
            }
        }
        Ok(())
    }

    fn reply(&mut self, n: usize, stream: u32, reply: &Reply) {
        if let Some(connection) = self.connections[n].as_mut() {
            connection.reply(stream, reply);
        }
    }

    fn fail(&mut self, n: usize, stream: u32, kind: FailureKind, message: impl Into<String>) {
        if let Some(connection) = self.connections[n].as_mut() {
            connection.fail(stream, kind, message);
        }
    }

    fn no_such_exec(&mut self, n: usize, stream: u32, exec: u64) {
        let message = format!("the box has no command {exec}; `glass ps` lists those that it knows");
        self.fail(n, stream, FailureKind::NotFound, message);
    }

    /// Who a request is to be done as: the account, and the kernel's change of user if one is needed.
    fn account(&self, user: Option<&str>) -> std::result::Result<(Account, Option<(u32, u32)>), String> {
        let named = user.or(Some(self.config.user.as_str()).filter(|user| !user.is_empty()));
        let account = match named {
            Some(user) => Account::find(user)?,
            None => Account::own(),
        };
        if self.config.switch_users {
            let ids = (account.uid, account.gid);
            return Ok((account, Some(ids)));
        }
        if account.uid != self.own_uid {
            return Err(format!(
                "this box has only the user {}; create it with --user to choose another",
                self.own_uid
            ));
        }
        Ok((account, None))
    }

    fn exec(&mut self, n: usize, stream: u32, spec: &ExecSpec) -> Result<()> {
        let id = self.next_exec;
        self.next_exec += 1;
        match self.start(id, n, stream, spec) {
            Ok(mut exec) => {
                exec.readers.push(Reader {
                    connection: n,
                    stream,
                    place: 0,
                    credit: STREAM_CREDIT,
                    follow: true,
                    waited_for: !spec.background,
                    starter: true,
                });
                let pid = exec.pid as u32;
                watch(&self.epoll, exec.pidfd.as_fd(), Cause::Exit(id))?;
                self.execs.insert(id, exec);
                self.watch_outputs(id)?;
                if let Some(connection) = self.connections[n].as_mut() {
                    connection.execs.insert(stream, id);
                    connection.reply(stream, &Reply::Started { exec: id, pid });
                }
            }
            Err(exit) => {
                let report = ExitReport::never_ran(exit);
                self.reply(n, stream, &Reply::Ended { exec: id, report });
            }
        }
        Ok(())
    }

    fn start(&mut self, id: u64, n: usize, stream: u32, spec: &ExecSpec) -> std::result::Result<Exec, Exit> {
        if self.running().count() >= EXECS_RUNNING_MAX {
            let message = format!("{EXECS_RUNNING_MAX} commands run in this box already");
            return Err(not_started(NotStarted::TooMany, message));
        }
        let bad_user = |message| not_started(NotStarted::BadUser, message);
        let (account, ids) = self.account(spec.user.as_deref()).map_err(bad_user)?;
        let groups = Some(account.groups.clone());
        let user = ids.map(|(uid, gid)| glasshouse_linux::spawn::User { uid, gid, groups });
        let mark = self.tracker.prepare().map_err(|e| {
            not_started(NotStarted::Other, format!("cannot make its cgroup: {e}"))
        })?;
        let before = self.counters();
        let around = Surroundings {
            env: &self.config.env,
            cwd: &self.config.cwd,
            timeout_ms: self.config.timeout_ms,
            kept_output_bytes: self.config.kept_output_bytes,
            rlimits: &self.config.rlimits,
            account: &account,
            user,
            devpts: self.devpts.as_ref().map(AsFd::as_fd),
            null: self.null.as_fd(),
            landlock: self.landlock.as_ref().map(AsFd::as_fd),
            filter: self.filter.as_ref(),
            tag: self.tracker.wants_tag(),
            oom_score: self.oom_score.as_ref().map(AsFd::as_fd),
        };
        match Exec::start(id, spec, &around, mark, (n, stream)) {
            Ok(mut exec) => {
                exec.before = before;
                if let Some(mark) = exec.mark.as_mut() {
                    self.tracker.started(mark, exec.pid);
                }
                Ok(exec)
            }
            Err((exit, mark)) => {
                self.tracker.release(mark);
                Err(exit)
            }
        }
    }

    fn counters(&self) -> Counters {
        let read = |fd: &Option<OwnedFd>, key| {
            fd.as_ref().and_then(|fd| cgroup::counter(fd.as_fd(), key).ok()).unwrap_or(0)
        };
        Counters {
            oom_kills: read(&self.oom_events, "oom_kill "),
            pids_refused: read(&self.pids_events, "max "),
        }
    }

    fn attach(&mut self, n: usize, stream: u32, exec: u64, from: u64, follow: bool) {
        let Some(exec) = self.execs.get_mut(&exec).filter(|exec| !exec.hidden) else {
            return self.no_such_exec(n, stream, exec);
        };
        exec.readers.push(Reader {
            connection: n,
            stream,
            place: from,
            credit: STREAM_CREDIT,
            follow,
            waited_for: false,
            starter: false,
        });
        let (id, pid) = (exec.id, exec.pid as u32);
        if let Some(connection) = self.connections[n].as_mut() {
            connection.execs.insert(stream, id);
            connection.reply(stream, &Reply::Started { exec: id, pid });
        }
    }

    fn signal(&mut self, n: usize, stream: u32, exec: u64, signal: i32, tree: bool) {
        let Some(exec) = self.execs.get(&exec) else {
            return self.no_such_exec(n, stream, exec);
        };
        let result = match exec.main {
            Some(_) => Ok(()),
            None if tree => process::signal_group(exec.pid, signal),
            None => process::signal(exec.pidfd.as_fd(), signal),
        };
        match result {
            Ok(()) => self.reply(n, stream, &Reply::Ok),
            Err(e) => self.fail(n, stream, FailureKind::Invalid, format!("cannot send signal {signal}: {e}")),
        }
    }

    /// Kills the whole tree of a command, for a reason that becomes its end unless it has one already.
    fn kill(&mut self, id: u64, why: Exit) -> Result<()> {
        let Some(exec) = self.execs.get_mut(&id) else { return Ok(()) };
        if exec.main.is_none() && exec.cause.is_none() {
            exec.cause = Some(why);
        }
        exec.kill_at = None;
        if let Some(mark) = &exec.mark {
            self.tracker.kill(mark)?;
        }
        if exec.main.is_none() {
            process::signal(exec.pidfd.as_fd(), rustix::process::Signal::KILL.as_raw())?;
        }
        // Nothing is lost by a reader that was too slow: what is in the pipes is read at the end.
        self.watch_outputs(id)
    }

    /// What is over by now.
    fn moments(&mut self, now: Instant) -> Result<()> {
        if self.ends_at.is_some_and(|at| at <= now) {
            self.end_all(Killer::Ttl);
            self.shutdown = true;
            return Ok(());
        }
        self.guard_disk(now)?;
        let due = |exec: &&Exec| exec.next_moment().is_some_and(|at| at <= now);
        let ids: Vec<u64> = self.execs.values().filter(due).map(|exec| exec.id).collect();
        for id in ids {
            let Some(exec) = self.execs.get_mut(&id) else { continue };
            if exec.main.is_some() {
                self.try_finish(id)?;
                continue;
            }
            if exec.cause.is_none() && exec.deadline.is_some_and(|at| at <= now) {
                exec.time_out(now);
            }
            if exec.kill_at.is_some_and(|at| at <= now) {
                self.kill(id, Exit::TimedOut)?;
            }
        }
        Ok(())
    }

    /// While commands run, looks now and then whether they leave the host the room that it wants to keep.
    fn guard_disk(&mut self, now: Instant) -> Result<()> {
        let Some(reserve) = self.config.disk_reserve_bytes else { return Ok(()) };
        if self.running().next().is_none() {
            self.look_at_disk = None;
            return Ok(());
        }
        if self.look_at_disk.is_some_and(|at| at <= now) {
            let free = rustix::fs::statvfs("/").map_or(u64::MAX, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
            if free < reserve {
                let running: Vec<u64> = self.running().collect();
                for id in running {
                    self.kill(id, Exit::DiskFull { code: None })?;
                }
            }
            self.look_at_disk = None;
        }
        if self.look_at_disk.is_none() {
            self.look_at_disk = Some(now + DISK_LOOK);
        }
        Ok(())
    }

    fn main_ended(&mut self, id: u64) -> Result<()> {
        let Some(exec) = self.execs.get_mut(&id).filter(|exec| exec.main.is_none()) else {
            return Ok(());
        };
        let Some(ended) = process::reap(exec.pidfd.as_fd())? else { return Ok(()) };
        exec.main = Some(ended);
        exec.drain_until = Some(Instant::now() + Duration::from_millis(DRAIN_MS));
        exec.stdin = None;
        let _ = epoll::delete(&self.epoll, exec.pidfd.as_fd());
        if exec.cause.is_some()
            && let Some(mark) = &exec.mark
        {
            // It was being ended: what it left behind goes with it.
            self.tracker.kill(mark)?;
        }
        for which in 0..2 {
            self.read_output(id, which)?;
        }
        self.try_finish(id)
    }

    /// Ends a command whose main process is gone, once its pipes are at their end or have had their time.
    fn try_finish(&mut self, id: u64) -> Result<()> {
        let Some(exec) = self.execs.get_mut(&id) else { return Ok(()) };
        if exec.main.is_none() || exec.report.is_some() {
            return Ok(());
        }
        let open = exec.outputs.iter().flatten().count() > 0;
        let time_left = exec.drain_until.is_none_or(|until| Instant::now() < until);
        if open && (time_left || !exec.may_read()) {
            return Ok(());
        }
        for output in std::mem::take(&mut exec.outputs).into_iter().flatten() {
            if output.watched {
                epoll::delete(&self.epoll, &output.fd)?;
            }
            hold(&self.epoll, &mut self.held, output)?;
        }
        let mark = exec.mark.take();
        let cpu_us = mark.as_ref().and_then(|mark| self.tracker.cpu_us(mark));
        let after = self.counters();
        let peak = self.memory_peak.as_ref().and_then(|fd| cgroup::counter(fd.as_fd(), "").ok());
        if let Some(exec) = self.execs.get_mut(&id) {
            exec.finish(cpu_us, after, peak, disk_full());
        }
        if let Some(mark) = mark {
            self.tracker.release(mark);
        }
        self.forget();
        Ok(())
    }

    /// Lets the oldest ended commands go that are beyond what is kept, and those that nobody can ask for again.
    fn forget(&mut self) {
        let done = |exec: &Exec| exec.report.is_some() && exec.readers.is_empty();
        self.execs.retain(|_, exec| !(done(exec) && (exec.hidden || (exec.recorded && !exec.background))));
        let mut cost: usize = self.execs.values().map(|exec| exec.log.cost()).sum();
        let mut ended: Vec<(u64, usize)> =
            self.execs.values().filter(|exec| done(exec)).map(|exec| (exec.id, exec.log.cost())).collect();
        ended.reverse();
        let mut left = ended.len();
        while let Some((id, size)) = ended.pop() {
            if left <= EXECS_ENDED_MAX && cost as u64 <= KEPT_TOTAL_BYTES {
                break;
            }
            self.execs.remove(&id);
            left -= 1;
            cost -= size;
        }
    }

    fn watch_outputs(&mut self, id: u64) -> Result<()> {
        let Some(exec) = self.execs.get_mut(&id) else { return Ok(()) };
        let wanted = exec.may_read();
        for (which, output) in exec.outputs.iter_mut().enumerate() {
            let Some(output) = output else { continue };
            if wanted && !output.watched {
                watch(&self.epoll, output.fd.as_fd(), Cause::Output(id, which))?;
            } else if !wanted && output.watched {
                epoll::delete(&self.epoll, &output.fd)?;
            }
            output.watched = wanted;
        }
        Ok(())
    }

    fn read_output(&mut self, id: u64, which: usize) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(PIPE_BYTES, 0);
        let mut too_much = false;
        for _ in 0..PIPE_READS_MAX {
            let Some(exec) = self.execs.get_mut(&id).filter(|exec| exec.may_read()) else { break };
            let Some(output) = &exec.outputs[which] else { break };
            match rustix::io::read(&output.fd, &mut buffer[..]) {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => break,
                // A terminal whose other side is closed answers with EIO.
                Ok(0) | Err(_) => {
                    if output.watched {
                        epoll::delete(&self.epoll, &output.fd)?;
                    }
                    exec.outputs[which] = None;
                    break;
                }
                Ok(n) => {
                    let stream = if which == 0 { OutputStream::Stdout } else { OutputStream::Stderr };
                    too_much |= exec.wrote(stream, &buffer[..n]);
                    if n < PIPE_BYTES {
                        break;
                    }
                }
            }
        }
        self.buffer = buffer;
        if too_much {
            self.kill(id, Exit::OutputLimit)?;
        }
        self.watch_outputs(id)?;
        self.try_finish(id)
    }

    fn drain_held(&mut self, n: usize) {
        let mut buffer = [0; 16 * 1024];
        let Some(fd) = self.held.get(n).and_then(Option::as_ref) else { return };
        match rustix::io::read(fd, &mut buffer[..]) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Ok(n) if n > 0 => {}
            _ => self.held[n] = None,
        }
    }

    /// Bytes from a client: for a command's stdin, or for a file.
    fn data(&mut self, n: usize, stream: u32, bytes: &[u8]) -> Result<std::ops::ControlFlow<()>> {
        use std::ops::ControlFlow::{Break, Continue};
        let Some(connection) = self.connections[n].as_mut() else { return Ok(Break(())) };
        if let Some(upload) = connection.uploads.get_mut(&stream) {
            let Some(credit) = upload.credit.checked_sub(bytes.len() as u64) else { return Ok(Break(())) };
            upload.credit = credit + bytes.len() as u64;
            match upload.write(bytes) {
                Ok(()) => connection.grant(stream, bytes.len() as u64),
                Err(failure) => {
                    connection.uploads.remove(&stream);
                    connection.reply(stream, &Reply::Failed(failure));
                }
            }
            return Ok(Continue(()));
        }
        let Some(&id) = connection.execs.get(&stream) else { return Ok(Continue(())) };
        let Some(stdin) = self.execs.get_mut(&id).and_then(|exec| exec.stdin.as_mut()) else {
            // The command does not read any more: what comes is thrown away, and so is the wait for it.
            connection.grant(stream, bytes.len() as u64);
            return Ok(Continue(()));
        };
        let Some(credit) = stdin.credit.checked_sub(bytes.len() as u64) else { return Ok(Break(())) };
        stdin.credit = credit;
        stdin.waiting.extend(bytes);
        self.write_stdin(id)?;
        Ok(Continue(()))
    }

    fn data_ended(&mut self, n: usize, stream: u32) -> Result<()> {
        let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
        if let Some(upload) = connection.uploads.remove(&stream) {
            let reply = match upload.finish() {
                Ok(bytes) => Reply::File(FileResult::Done { bytes }),
                Err(failure) => Reply::Failed(failure),
            };
            connection.reply(stream, &reply);
            return Ok(());
        }
        let Some(&id) = connection.execs.get(&stream) else { return Ok(()) };
        if let Some(exec) = self.execs.get_mut(&id)
            && let Some(stdin) = exec.stdin.as_mut()
        {
            if exec.terminal.is_some() {
                // The end of a terminal's input is a character.
                stdin.waiting.push_back(4);
            } else {
                stdin.ended = true;
            }
        }
        self.write_stdin(id)
    }

    fn write_stdin(&mut self, id: u64) -> Result<()> {
        let Some(exec) = self.execs.get_mut(&id) else { return Ok(()) };
        let Some(stdin) = exec.stdin.as_mut() else { return Ok(()) };
        let (n, stream) = stdin.client;
        let mut written = 0;
        let mut gone = false;
        while !stdin.waiting.is_empty() {
            let (front, _) = stdin.waiting.as_slices();
            match rustix::io::write(&stdin.fd, front) {
                Ok(n) => {
                    stdin.waiting.drain(..n);
                    written += n as u64;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Err(_) => {
                    gone = true;
                    written += stdin.waiting.len() as u64;
                    break;
                }
            }
        }
        stdin.credit += written;
        let wants = !stdin.waiting.is_empty() && !gone;
        if wants && !stdin.watched {
            let data = EventData::new_u64(Cause::Stdin(id).token());
            epoll::add(&self.epoll, &stdin.fd, data, EventFlags::OUT)?;
        } else if !wants && stdin.watched {
            epoll::delete(&self.epoll, &stdin.fd)?;
        }
        stdin.watched = wants;
        if gone || (stdin.ended && stdin.waiting.is_empty()) {
            exec.stdin = None;
        }
        if written > 0
            && let Some(connection) = self.connections[n].as_mut()
        {
            connection.grant(stream, written);
        }
        Ok(())
    }

    fn granted(&mut self, n: usize, stream: u32, bytes: u64) -> Result<()> {
        let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
        if let Some(download) = connection.downloads.get_mut(&stream) {
            download.credit = download.credit.saturating_add(bytes).min(2 * STREAM_CREDIT);
        }
        let Some(&id) = connection.execs.get(&stream) else { return Ok(()) };
        let Some(exec) = self.execs.get_mut(&id) else { return Ok(()) };
        for reader in exec.readers.iter_mut().filter(|r| (r.connection, r.stream) == (n, stream)) {
            reader.credit = reader.credit.saturating_add(bytes).min(2 * STREAM_CREDIT);
        }
        Ok(())
    }

    fn file(&mut self, n: usize, stream: u32, op: glasshouse_protocol::FileOp, user: Option<&str>) -> Result<()> {
        let (account, ids) = match self.account(user) {
            Ok(found) => found,
            Err(message) => {
                self.fail(n, stream, FailureKind::NotFound, message);
                return Ok(());
            }
        };
        // Without the right to change users there is nobody else to be.
        let outcome = files::as_user(ids.filter(|&(uid, _)| uid != self.own_uid), || {
            files::perform(op, &self.config.cwd)
        })?;
        let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
        match outcome {
            Ok(Outcome::Done(result)) => connection.reply(stream, &Reply::File(result)),
            Ok(Outcome::Upload(upload)) => {
                connection.uploads.insert(stream, upload);
                connection.reply(stream, &Reply::Ready);
            }
            Ok(Outcome::Download(download)) => {
                connection.downloads.insert(stream, download);
            }
            Ok(Outcome::Work(op)) => self.work(n, stream, op, &account, ids)?,
            Err(failure) => connection.reply(stream, &Reply::Failed(failure)),
        }
        Ok(())
    }

    /// Hands a whole tree to a process of its own, which is told of as a command is.
    fn work(
        &mut self,
        n: usize,
        stream: u32,
        op: glasshouse_protocol::FileOp,
        account: &Account,
        ids: Option<(u32, u32)>,
    ) -> Result<()> {
        if self.running().count() >= EXECS_RUNNING_MAX {
            let message = format!("{EXECS_RUNNING_MAX} commands run in this box already");
            self.fail(n, stream, FailureKind::Limit, message);
            return Ok(());
        }
        let id = self.next_exec;
        self.next_exec += 1;
        let mark = self.tracker.prepare()?;
        let job = files::Job { op, groups: account.groups.clone(), ids };
        match job.start(mark.cgroup()) {
            Ok((pid, pidfd, stdio)) => {
                let mut exec = Exec::worker(id, pid, pidfd, stdio, (n, stream), self.null.as_fd(), mark);
                exec.readers.push(Reader {
                    connection: n,
                    stream,
                    place: 0,
                    credit: STREAM_CREDIT,
                    follow: true,
                    waited_for: true,
                    starter: true,
                });
                watch(&self.epoll, exec.pidfd.as_fd(), Cause::Exit(id))?;
                self.execs.insert(id, exec);
                self.watch_outputs(id)?;
                if let Some(connection) = self.connections[n].as_mut() {
                    connection.execs.insert(stream, id);
                    connection.reply(stream, &Reply::Started { exec: id, pid: pid as u32 });
                }
            }
            Err(e) => {
                self.tracker.release(mark);
                self.fail(n, stream, FailureKind::Io, format!("cannot start the work: {e}"));
            }
        }
        Ok(())
    }

    /// Sends what readers are waiting for, as far as their credit and room go.
    fn pump(&mut self) -> Result<()> {
        let ids: Vec<u64> =
            self.execs.values().filter(|exec| !exec.readers.is_empty()).map(|exec| exec.id).collect();
        for id in ids {
            let Some(exec) = self.execs.get_mut(&id) else { continue };
            let mut readers = std::mem::take(&mut exec.readers);
            readers.retain_mut(|reader| match self.connections[reader.connection].as_mut() {
                Some(connection) => feed(exec, reader, connection),
                None => false,
            });
            exec.readers = readers;
            self.watch_outputs(id)?;
            self.try_finish(id)?;
            // An end that has just been found is told in the same turn.
            if let Some(exec) = self.execs.get_mut(&id).filter(|exec| exec.report.is_some()) {
                let mut readers = std::mem::take(&mut exec.readers);
                readers.retain_mut(|reader| match self.connections[reader.connection].as_mut() {
                    Some(connection) => feed(exec, reader, connection),
                    None => false,
                });
                exec.readers = readers;
                self.forget();
            }
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        for connection in self.connections.iter_mut().flatten() {
            send_files(connection, &mut buffer);
        }
        self.buffer = buffer;
        Ok(())
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
            if wants != connection.watches_out {
                let mut flags = EventFlags::IN;
                flags.set(EventFlags::OUT, wants);
                let data = EventData::new_u64(Cause::Connection(n).token());
                if epoll::modify(&self.epoll, connection.fd(), data, flags).is_ok() {
                    connection.watches_out = wants;
                }
            }
        }
        // Output that was held back for want of room goes on in the next turn, when the socket takes more.
    }

    /// Tells every reader how its command ends, and why.
    fn end_all(&mut self, by: Killer) {
        for exec in self.execs.values_mut().filter(|exec| exec.report.is_none()) {
            let report = ExitReport {
                stdout_bytes: exec.log.stdout_bytes(),
                stderr_bytes: exec.log.stderr_bytes(),
                ..ExitReport::never_ran(Exit::Killed { by })
            };
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
            let ids: Vec<u64> = self.execs.keys().copied().collect();
            for id in ids {
                let _ = self.kill(id, Exit::Killed { by: Killer::Destroy });
            }
        }
    }
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, cause: Cause) -> Result<()> {
    Ok(epoll::add(epoll, fd, EventData::new_u64(cause.token()), EventFlags::IN)?)
}

fn hold(epoll: &OwnedFd, held: &mut Vec<Option<OwnedFd>>, output: Output) -> Result<()> {
    let slot = match held.iter().position(Option::is_none) {
        Some(slot) => slot,
        None if held.len() < HELD_PIPES_MAX => {
            held.push(None);
            held.len() - 1
        }
        // Too many: this one is closed, and its writers learn it.
        None => return Ok(()),
    };
    watch(epoll, output.fd.as_fd(), Cause::Held(slot))?;
    held[slot] = Some(output.fd);
    Ok(())
}

fn walls() -> Result<Ruleset> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = openat(CWD, "/", flags, Mode::empty())?;
    let dev = openat(CWD, "/dev", flags, Mode::empty())?;
    Ruleset::for_box(root.as_fd(), Some(dev.as_fd()))
}

/// Whether nothing more can be written to the root.
fn disk_full() -> bool {
    rustix::fs::statvfs("/").is_ok_and(|fs| fs.f_blocks > 0 && (fs.f_bavail == 0 || (fs.f_files > 0 && fs.f_favail == 0)))
}

/// Feeds one reader. Whether it stays.
fn feed(exec: &mut Exec, reader: &mut Reader, connection: &mut Connection) -> bool {
    while reader.credit > 0 && connection.has_room() {
        match exec.log.at(reader.place) {
            Found::Bytes(stream, bytes) => {
                let n = bytes.len().min(DATA_CHUNK_MAX).min(reader.credit as usize);
                connection.output(reader.stream, stream_kind(stream), reader.place, &bytes[..n]);
                reader.place += n as u64;
                reader.credit -= n as u64;
            }
            Found::Gap(to) => {
                connection.reply(reader.stream, &Reply::Gap { from: reader.place, to });
                reader.place = to;
            }
            Found::End => break,
        }
    }
    if exec.log.at(reader.place) != Found::End {
        return true;
    }
    let last = match &exec.report {
        Some(report) => Reply::Ended { exec: exec.id, report: report.clone() },
        None if reader.follow => return true,
        None => Reply::UpToDate { offset: reader.place },
    };
    exec.recorded |= reader.starter && exec.report.is_some();
    connection.reply(reader.stream, &last);
    connection.execs.remove(&reader.stream);
    false
}

fn send_files(connection: &mut Connection, buffer: &mut Vec<u8>) {
    let streams: Vec<u32> = connection.downloads.keys().copied().collect();
    for stream in streams {
        loop {
            if !connection.has_room() {
                return;
            }
            let Some(download) = connection.downloads.get_mut(&stream) else { break };
            let reply = match download.next(buffer) {
                Ok(Some(0)) => break,
                Ok(Some(n)) => {
                    connection.data(stream, &buffer[..n]);
                    continue;
                }
                Ok(None) => Reply::File(FileResult::Done { bytes: download.sent() }),
                Err(failure) => Reply::Failed(failure),
            };
            connection.downloads.remove(&stream);
            connection.reply(stream, &reply);
        }
    }
}
