//! A command from its start to its end.
//!
//! ```text
//!            spawn ok                   main process ends              pipes at their end, or DRAIN_MS over
//!  (request) ────────▶ Running ───────────────────────▶ Draining ─────────────────────────────────▶ Ended
//!      │                 │ deadline: TERM, grace, kill tree             (pipes that others hold are read on and
//!      └▶ NotStarted     │ client gone, caller, output limit: kill tree  thrown away, so that nobody dies of them)
//! ```
//! The end of a command is the end of its main process, not of its pipes. Why it ended is decided once, by whoever
//! ended it first ([`Exec::cause`]); what nobody here ended is told from the kernel's status and counters.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use glasshouse_linux::process::{Child, Ended, How};
use glasshouse_linux::rustix::io::Errno;
use glasshouse_linux::rustix::pipe::{PipeFlags, pipe_with};
use glasshouse_linux::spawn::{self, Command, SpawnError, Stage};
use glasshouse_linux::{process, rustix, terminal};
use glasshouse_protocol::limits::{ARGV_BYTES_MAX, GRACE_MS, KEPT_OUTPUT_BYTES, KEPT_OUTPUT_BYTES_MAX};
use glasshouse_protocol::plan::Pinned;
use glasshouse_protocol::{
    Code, ExecInfo, ExecSpec, ExecState, Exit, ExitReport, NotStarted, OutputStream, Program, Rlimit,
    RlimitKind,
};

use crate::build::Knobs;
use crate::output::Log;
use crate::track::Mark;
use crate::user::Account;

/// A reader that the command waits for may be this far behind.
pub(crate) const WINDOW_BYTES: u64 = 256 * 1024;

/// More than the kernel writes about a process up to its memory.
const STATUS_BYTES: usize = 8 * 1024;

/// What is shown of code in lists.
const LISTED_CHARS: usize = 200;

/// A command.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) id: u64,
    command: Vec<String>,
    label: Option<String>,
    /// Values of its own environment. Whoever puts its end on record has to know what must not get there.
    pub(crate) secrets: Vec<String>,
    pub(crate) background: bool,
    /// Work of our own (a tree as tar): no command of the caller's.
    pub(crate) hidden: bool,
    started: Instant,
    started_ms: u64,
    pub(crate) pid: i32,
    /// The main process, until it is collected.
    pub(crate) process: Option<Child>,
    pub(crate) stdin: Option<Stdin>,
    /// stdout, stderr and results, as long as they are open.
    pub(crate) outputs: [Option<Output>; OUTPUTS],
    pub(crate) terminal: Option<OwnedFd>,
    pub(crate) log: Log,
    pub(crate) readers: Vec<Reader>,
    pub(crate) deadline: Option<Instant>,
    grace: Duration,
    output_bytes_max: Option<u64>,
    cpu_limit: Option<Duration>,
    /// Why we ended it, if we did.
    pub(crate) cause: Option<Exit>,
    pub(crate) kill_at: Option<Instant>,
    pub(crate) main: Option<Ended>,
    pub(crate) drain_until: Option<Instant>,
    pub(crate) report: Option<ExitReport>,
    pub(crate) recorded: bool,
    /// The connection that started it and will see to its record, as long as it is there.
    pub(crate) starter: Option<usize>,
    pub(crate) mark: Option<Mark>,
    pub(crate) before: Counters,
    /// The context that does its work, if it is a run of code.
    pub(crate) run: Option<Run>,
}

/// The context that a run of code is in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) context: u64,
    /// What the interpreter had used before.
    pub(crate) cpu_before: Duration,
}

/// The streams that a command may write to.
pub(crate) const OUTPUTS: usize = 3;

/// What the command reads.
#[derive(Debug)]
pub(crate) struct Stdin {
    pub(crate) fd: OwnedFd,
    pub(crate) waiting: VecDeque<u8>,
    pub(crate) ended: bool,
    pub(crate) watched: bool,
    /// Whom to tell that there is room again.
    pub(crate) client: (usize, u32),
    /// What the client may still send.
    pub(crate) credit: u64,
}

/// One end of what the command writes.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) fd: OwnedFd,
    pub(crate) watched: bool,
    /// Bytes that were there when the main process was found to be gone, and were not read yet. Unknown before that.
    owed: Option<u64>,
}

impl Output {
    fn new(fd: OwnedFd) -> Output {
        Output { fd, watched: false, owed: None }
    }

    /// Whether something may still be in there that the main process wrote itself. What others write after it does not count: they
    /// could go on for ever.
    pub(crate) fn is_owed(&mut self) -> bool {
        // Where the kernel cannot say, it is no pipe; one read more is all that it gets.
        *self.owed.get_or_insert_with(|| rustix::io::ioctl_fionread(&self.fd).unwrap_or(0)) > 0
    }

    /// So many bytes were read.
    pub(crate) fn was_read(&mut self, bytes: usize) {
        self.owed = self.owed.map(|owed| owed.saturating_sub(bytes as u64));
    }
}

/// Somebody who reads the command's output.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) connection: usize,
    pub(crate) stream: u32,
    pub(crate) place: u64,
    pub(crate) credit: u64,
    pub(crate) follow: bool,
    /// The command waits for this reader rather than lose a byte.
    pub(crate) waited_for: bool,
}

/// Limits that have struck, counted by the kernel for the whole box.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) oom_kills: u64,
    pub(crate) pids_refused: u64,
}

/// The box's part in a command.
pub(crate) struct Surroundings<'a> {
    pub(crate) image_env: &'a [(String, String)],
    pub(crate) env: &'a [(String, String)],
    pub(crate) cwd: &'a str,
    pub(crate) bounds: Bounds,
    pub(crate) rlimits: &'a [Rlimit],
    pub(crate) account: &'a Account,
    pub(crate) user: Option<spawn::User>,
    pub(crate) devpts: Option<rustix::fd::BorrowedFd<'a>>,
    pub(crate) null: rustix::fd::BorrowedFd<'a>,
    pub(crate) landlock: Option<rustix::fd::BorrowedFd<'a>>,
    pub(crate) filter: Option<&'a glasshouse_linux::seccomp::Program>,
    pub(crate) enter: &'a [OwnedFd],
    pub(crate) tag: bool,
    pub(crate) contained: bool,
    pub(crate) knobs: &'a Knobs,
    /// The program itself, if it was carried in.
    pub(crate) program: Option<rustix::fd::BorrowedFd<'a>>,
    pub(crate) pin: Option<Pin<'a>>,
}

/// What is the same in every run of a command in a deterministic box.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pin<'a> {
    pub(crate) pinned: &'a Pinned,
    /// Which command it is since the box began, or began again.
    pub(crate) command: u64,
    /// The number of its main process.
    pub(crate) pid: i32,
}

/// Processes of one command of a deterministic box are numbered from a multiple of this; `crates/linux/preload` knows it.
pub(crate) const PIDS_OF_COMMAND: i32 = 1000;

/// A start that came to nothing.
pub(crate) fn not_started(why: NotStarted, message: impl Into<String>) -> Exit {
    Exit::NotStarted { why, message: message.into() }
}

/// The ends of the command's stdio that we keep.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) outputs: [Option<OwnedFd>; OUTPUTS],
    pub(crate) terminal: Option<OwnedFd>,
}

/// The process that does a command's work.
struct Worker {
    pid: i32,
    /// Of one that is the command's own.
    own: Option<(Child, Mark)>,
}

/// What the box bounds every command by.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bounds {
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) kept_output_bytes: Option<u64>,
}

impl Exec {
    /// Starts a command. The mark is handed in and comes back with a failure.
    pub(crate) fn start(
        id: u64,
        spec: &ExecSpec,
        around: &Surroundings<'_>,
        mark: Mark,
        client: (usize, u32),
    ) -> Result<Exec, (Exit, Mark)> {
        let (ends, theirs) = match stdio(spec, around) {
            Ok(stdio) => stdio,
            Err(e) => {
                let why = format!("cannot make its pipes or terminal: {e}");
                return Err((not_started(NotStarted::Other, why), mark));
            }
        };
        let started = Instant::now();
        let stdio = [theirs[0].as_fd(), theirs[1].as_fd(), theirs[2].as_fd()];
        let child = match launch(spec, around, stdio, None, &mark) {
            Ok(child) => child,
            Err(exit) => return Err((exit, mark)),
        };
        let rlimits: Vec<Rlimit> = around.rlimits.iter().chain(&spec.rlimits).copied().collect();
        let worker = Worker { pid: child.pid, own: Some((child, mark)) };
        let mut exec = Exec::running(id, spec, around.bounds, &rlimits, worker, ends, client);
        exec.started = started;
        Ok(exec)
    }

    /// A run of code in a context, whose interpreter has this number.
    pub(crate) fn in_context(
        id: u64,
        spec: &ExecSpec,
        bounds: Bounds,
        (pid, run): (i32, Run),
        ends: Ends,
        client: (usize, u32),
    ) -> Exec {
        let mut exec = Exec::running(id, spec, bounds, &[], Worker { pid, own: None }, ends, client);
        exec.run = Some(run);
        exec
    }

    fn running(
        id: u64,
        spec: &ExecSpec,
        bounds: Bounds,
        rlimits: &[Rlimit],
        worker: Worker,
        ends: Ends,
        client: (usize, u32),
    ) -> Exec {
        let now = Instant::now();
        let kept = spec.kept_output_bytes.or(bounds.kept_output_bytes).unwrap_or(KEPT_OUTPUT_BYTES);
        let timeout = match (spec.timeout_ms, bounds.timeout_ms) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let cpu_limit = rlimits.iter().rev().find(|l| l.kind == RlimitKind::CpuSeconds);
        let stdin = ends.stdin.map(|fd| Stdin {
            fd,
            waiting: VecDeque::new(),
            ended: false,
            watched: false,
            client,
            credit: glasshouse_protocol::limits::STDIN_CREDIT,
        });
        let (process, mark) = worker.own.unzip();
        Exec {
            id,
            command: shown(&spec.program),
            label: spec.label.clone(),
            secrets: spec.env.iter().map(|(_, value)| value.clone()).collect(),
            background: spec.background,
            hidden: false,
            started: now,
            started_ms: now_ms(),
            pid: worker.pid,
            process,
            stdin,
            outputs: ends.outputs.map(|fd| fd.map(Output::new)),
            terminal: ends.terminal,
            log: Log::new(kept.min(KEPT_OUTPUT_BYTES_MAX), 2 * WINDOW_BYTES as usize),
            readers: Vec::new(),
            deadline: timeout.map(|ms| now + Duration::from_millis(ms)),
            grace: Duration::from_millis(spec.grace_ms.unwrap_or(GRACE_MS)),
            output_bytes_max: spec.output_bytes_max,
            cpu_limit: cpu_limit.map(|l| Duration::from_secs(l.value)),
            cause: None,
            kill_at: None,
            main: None,
            drain_until: None,
            report: None,
            recorded: false,
            starter: Some(client.0),
            mark,
            before: Counters::default(),
            run: None,
        }
    }

    /// A worker of our own, already forked.
    pub(crate) fn worker(
        id: u64,
        child: Child,
        stdio: [Option<OwnedFd>; 3],
        client: (usize, u32),
        mark: Mark,
    ) -> Exec {
        let bounds = Bounds { timeout_ms: None, kept_output_bytes: Some(0) };
        let [stdin, stdout, stderr] = stdio;
        let ends = Ends { stdin, outputs: [stdout, stderr, None], terminal: None };
        let worker = Worker { pid: child.pid, own: Some((child, mark)) };
        let mut exec = Exec::running(id, &ExecSpec::default(), bounds, &[], worker, ends, client);
        exec.hidden = true;
        exec
    }

    pub(crate) fn info(&self) -> ExecInfo {
        ExecInfo {
            exec: self.id,
            command: self.command.clone(),
            started_ms: self.started_ms,
            pid: self.report.is_none().then_some(self.pid as u32),
            background: self.background,
            state: match &self.report {
                Some(report) => ExecState::Ended(report.clone()),
                None => ExecState::Running,
            },
            output_bytes: self.log.end(),
            label: self.label.clone(),
        }
    }

    /// Whether its pipes are to be read now: not while a reader that it waits for is too far behind.
    pub(crate) fn may_read(&self) -> bool {
        let behind = |r: &Reader| {
            r.waited_for && (self.log.end() - r.place >= WINDOW_BYTES || self.log.would_lose(r.place))
        };
        !self.readers.iter().any(behind)
    }

    /// Takes output, up to the limit and not a byte more: how much comes until a command is dead is chance. Whether
    /// it is the first that is too much; that is then its end, also if its main process was faster than we are.
    pub(crate) fn wrote(&mut self, stream: OutputStream, bytes: &[u8]) -> bool {
        let room = self.output_bytes_max.map_or(u64::MAX, |max| max.saturating_sub(self.log.end()));
        let fits = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        self.log.push(stream, &bytes[..fits]);
        let too_much = fits < bytes.len() && self.cause.is_none();
        if too_much {
            self.cause = Some(Exit::OutputLimit);
        }
        too_much
    }

    /// The next moment at which something has to be done about it.
    pub(crate) fn next_moment(&self) -> Option<Instant> {
        if self.report.is_some() {
            return None;
        }
        let owes = |output: &Output| output.owed != Some(0);
        let waits = !self.may_read() && self.outputs.iter().flatten().any(owes);
        let drain = self.drain_until.filter(|_| !waits);
        [self.deadline.filter(|_| self.cause.is_none()), self.kill_at, drain].into_iter().flatten().min()
    }

    /// Asks it to end, for a reason that becomes its end unless it has one already, and sets the moment when it will be
    /// made to. Returns the run that has to be interrupted for that, if it is one: its context lives on.
    pub(crate) fn ask_to_end(&mut self, why: Exit, now: Instant) -> Option<Run> {
        self.cause.get_or_insert(why);
        self.kill_at = Some(now + self.grace);
        if self.grace.is_zero() {
            return None;
        }
        if self.run.is_none() {
            // Its group may be gone with only others of its tree alive; the kill will find those.
            let _ = process::signal_group(self.pid, rustix::process::Signal::TERM.as_raw());
        }
        self.run
    }

    /// Writes the report.
    pub(crate) fn finish(
        &mut self,
        cpu_us: Option<u64>,
        after: Counters,
        box_peak: Option<u64>,
        disk_full: bool,
    ) {
        let Some(main) = self.main else { return };
        let oom_kills = after.oom_kills.saturating_sub(self.before.oom_kills);
        let pids_refused = after.pids_refused > self.before.pids_refused;
        let exit = match self.cause.take() {
            Some(cause) => cause,
            None => self.told_by_kernel(main, oom_kills, pids_refused, box_peak, disk_full),
        };
        self.report = Some(ExitReport {
            exit,
            wall_us: self.started.elapsed().as_micros() as u64,
            cpu_us: cpu_us.unwrap_or(0).max(main.cpu.as_micros() as u64),
            peak_memory_bytes: main.peak_bytes,
            stdout_bytes: self.log.stdout_bytes(),
            stderr_bytes: self.log.stderr_bytes(),
            oom_kills,
        });
        self.outputs = [const { None }; OUTPUTS];
        self.stdin = None;
        self.terminal = None;
    }

    /// The report of a command that ends with its box, as far as it can be known while it still runs.
    pub(crate) fn ended_now(&self, exit: Exit, cpu_us: Option<u64>) -> ExitReport {
        ExitReport {
            wall_us: self.started.elapsed().as_micros() as u64,
            cpu_us: cpu_us.unwrap_or(0),
            peak_memory_bytes: peak_bytes(self.pid),
            stdout_bytes: self.log.stdout_bytes(),
            stderr_bytes: self.log.stderr_bytes(),
            ..ExitReport::never_ran(exit)
        }
    }

    fn told_by_kernel(
        &self,
        main: Ended,
        oom: u64,
        pids: bool,
        box_peak: Option<u64>,
        disk_full: bool,
    ) -> Exit {
        let out_of_memory = Exit::OutOfMemory { peak_bytes: box_peak.unwrap_or(main.peak_bytes) };
        match main.how {
            How::Code(0) => Exit::Code { code: 0 },
            // A shell passes the kill of its child on as this code.
            How::Code(137) if oom > 0 => out_of_memory,
            How::Code(code) if pids => Exit::PidsLimit { code: Some(code) },
            How::Code(code) if disk_full => Exit::DiskFull { code: Some(code) },
            How::Code(code) => Exit::Code { code },
            How::Signal(9) if oom > 0 => out_of_memory,
            How::Signal(24) => Exit::CpuLimit,
            How::Signal(9) if self.cpu_limit.is_some_and(|limit| main.cpu >= limit) => Exit::CpuLimit,
            How::Signal(31) => {
                Exit::Forbidden { what: "a system call of a foreign ABI (32-bit or x32), SIGSYS".into() }
            }
            How::Signal(signal) => Exit::Signal { signal },
        }
    }
}

/// The largest resident size of a process that runs, since it began or had it counted anew.
pub(crate) fn peak_bytes(pid: i32) -> u64 {
    let mut buffer = [0; STATUS_BYTES];
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(format!("/proc/{pid}/status"), flags, rustix::fs::Mode::empty());
    // All at once: read piece by piece, the kernel would write it anew for each.
    let length = file.and_then(|file| rustix::io::read(&file, &mut buffer[..])).unwrap_or(0);
    let status = String::from_utf8_lossy(&buffer[..length]);
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Starts the process of a command, or of a context that is described as one. It finds `line` as its descriptor 3.
pub(crate) fn launch(
    spec: &ExecSpec,
    around: &Surroundings<'_>,
    stdio: [rustix::fd::BorrowedFd<'_>; 3],
    line: Option<rustix::fd::BorrowedFd<'_>>,
    mark: &Mark,
) -> Result<Child, Exit> {
    let (argv, env) = words(spec, around)?;
    let cwd = cwd(spec, around)?;
    let path = env.iter().rev().find_map(|e| e.to_str().ok()?.strip_prefix("PATH=").map(str::to_owned));
    let rlimits: Vec<Rlimit> = around.rlimits.iter().chain(&spec.rlimits).copied().collect();
    let mut command = Command {
        candidates: spawn::candidates(&argv[0], path.as_deref().unwrap_or("/usr/local/bin:/usr/bin:/bin")),
        program: around.program,
        line,
        argv,
        env,
        cwd,
        stdio,
        terminal: spec.tty.is_some(),
        user: around.user.clone(),
        rlimits: kernel_limits(&rlimits),
        cgroup: mark.cgroup(),
        enter: around.enter.iter().map(AsFd::as_fd).collect(),
        tag: around.tag,
        // In a box the kernel sees to it; elsewhere nothing else would, were we killed.
        dies_with_starter: !around.contained,
        landlock: around.landlock,
        filter: around.filter,
        pid: around.pin.filter(|_| around.knobs.last_pid.is_some()).map(|pin| pin.pid),
        cpu: around.pin.map(|pin| pin.pinned.cpu),
    };
    // A process inherits these from whoever starts it, so they are turned for the moment of the start: that commands
    // go first when memory runs out, and that our own past peak is not taken for theirs. Without them it goes too.
    let turn =
        |knob: &Option<OwnedFd>, value: &[u8]| knob.as_ref().map(|file| rustix::io::write(file, value));
    turn(&around.knobs.oom_score, b"1000");
    turn(&around.knobs.memory_peak, b"5");
    let spawned = match command.pid {
        None => spawn::spawn(&command),
        Some(_) => spawn_numbered(&mut command, around.knobs),
    };
    turn(&around.knobs.oom_score, b"0");
    spawned.map_err(|error| told(error, spec, command.cwd.to_string_lossy().as_ref()))
}

/// Starts a command under a number of our choice, and has the processes that it starts follow that one. If a process of
/// an earlier command has the number, the next one that is free is as much the same in every run.
fn spawn_numbered(command: &mut Command<'_>, knobs: &Knobs) -> Result<Child, SpawnError> {
    let first = command.pid.unwrap_or(PIDS_OF_COMMAND);
    let mut tried = first..first + PIDS_OF_COMMAND;
    loop {
        command.pid = tried.next();
        if let (Some(file), Some(pid)) = (&knobs.last_pid, command.pid) {
            // It was seen to work when the box was built.
            let _ = rustix::io::pwrite(file, pid.to_string().as_bytes(), 0);
        }
        match spawn::spawn(command) {
            Err(e)
                if command.pid.is_some()
                    && e.stage == Stage::Clone
                    && e.source.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => {}
            done => return done,
        }
    }
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn shown(program: &Program) -> Vec<String> {
    match program {
        Program::Argv(argv) => argv.clone(),
        Program::Shell(line) => vec!["/bin/sh".into(), "-c".into(), line.clone()],
        Program::Code(Code { context, language, code, .. }) => {
            let start: String = code.chars().take(LISTED_CHARS).collect();
            vec![language.name().into(), context.clone(), start]
        }
    }
}

/// Arguments and environment as the kernel takes them.
fn words(spec: &ExecSpec, around: &Surroundings<'_>) -> Result<(Vec<CString>, Vec<CString>), Exit> {
    let invalid = |what: &str| not_started(NotStarted::Other, format!("{what} holds a zero byte"));
    let argv: Vec<CString> = shown(&spec.program)
        .into_iter()
        .map(|word| CString::new(word).map_err(|_| invalid("an argument")))
        .collect::<Result<_, _>>()?;
    if argv.first().is_none_or(|program| program.is_empty()) {
        return Err(not_started(NotStarted::NotFound, "no program was named"));
    }
    let mut env: Vec<(String, String)> = Vec::new();
    let mut set = |key: &str, value: &str| match env.iter_mut().find(|(k, _)| k == key) {
        Some(entry) => entry.1 = value.into(),
        None => env.push((key.into(), value.into())),
    };
    for (key, value) in around.pin.iter().flat_map(|pin| &pin.pinned.env) {
        // A terminal knows its own name and size.
        if spec.tty.is_none() || !["TERM", "COLUMNS", "LINES"].contains(&key.as_str()) {
            set(key, value);
        }
    }
    set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    for (key, value) in [
        ("HOME", around.account.home.as_deref()),
        ("USER", around.account.name.as_deref()),
        ("LOGNAME", around.account.name.as_deref()),
        ("SHELL", around.account.shell.as_deref()),
        ("TERM", spec.tty.map(|_| "xterm-256color")),
    ] {
        if let Some(value) = value {
            set(key, value);
        }
    }
    for (key, value) in around.image_env.iter().chain(around.env).chain(&spec.env) {
        if key.is_empty() || key.contains('=') {
            let message = format!("{key:?} cannot be the name of a variable");
            return Err(not_started(NotStarted::Other, message));
        }
        set(key, value);
    }
    if let Some(pin) = &around.pin {
        put_pin(&mut env, pin);
    }
    let env: Vec<CString> = env
        .into_iter()
        .map(|(key, value)| CString::new(format!("{key}={value}")).map_err(|_| invalid("a variable")))
        .collect::<Result<_, _>>()?;
    let bytes: usize = argv.iter().chain(&env).map(|word| word.as_bytes_with_nul().len() + 8).sum();
    if bytes > ARGV_BYTES_MAX {
        let message = format!("arguments and environment are {bytes} bytes, more than {ARGV_BYTES_MAX}");
        return Err(not_started(NotStarted::TooLarge, message));
    }
    Ok((argv, env))
}

/// What the preloaded library needs, before whatever else is to be preloaded.
fn put_pin(env: &mut Vec<(String, String)>, pin: &Pin<'_>) {
    env.retain(|(key, _)| key != COMMAND_VARIABLE);
    env.push((COMMAND_VARIABLE.into(), pin.command.to_string()));
    let library = &pin.pinned.library;
    match env.iter_mut().find(|(key, _)| key == "LD_PRELOAD") {
        Some((_, others)) => *others = format!("{library}:{others}"),
        None => env.push(("LD_PRELOAD".into(), library.clone())),
    }
}

/// The variable by which the preloaded library knows where the clock of a command begins.
const COMMAND_VARIABLE: &str = "GLASS_COMMAND";

fn cwd(spec: &ExecSpec, around: &Surroundings<'_>) -> Result<CString, Exit> {
    let cwd = match spec.cwd.as_deref() {
        None => around.cwd.to_owned(),
        Some(path) if path.starts_with('/') => path.to_owned(),
        Some(path) => format!("{}/{path}", around.cwd.trim_end_matches('/')),
    };
    CString::new(cwd).map_err(|_| not_started(NotStarted::BadCwd, "the directory's name holds a zero byte"))
}

/// Our ends, and the command's stdin, stdout and stderr.
fn stdio(spec: &ExecSpec, around: &Surroundings<'_>) -> io::Result<(Ends, [OwnedFd; 3])> {
    if let Some(size) = spec.tty {
        let host_devpts;
        let devpts = match around.devpts {
            Some(devpts) => devpts,
            None => {
                let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
                host_devpts = rustix::fs::openat(rustix::fs::CWD, "/dev", flags, rustix::fs::Mode::empty())?;
                host_devpts.as_fd()
            }
        };
        let (master, slave) = terminal::open(devpts, size.rows, size.cols)?;
        if let Some(user) = &around.user {
            // The terminal belongs to whom it is opened for.
            let (uid, gid) =
                (rustix::process::Uid::from_raw(user.uid), rustix::process::Gid::from_raw(user.gid));
            let _ = rustix::fs::fchown(&slave, Some(uid), Some(gid));
        }
        let ends = Ends {
            stdin: Some(master.try_clone()?),
            outputs: [Some(master.try_clone()?), None, None],
            terminal: Some(master),
        };
        return Ok((ends, [slave.try_clone()?, slave.try_clone()?, slave]));
    }
    let (stdin, their_stdin) = input_pipe(spec.stdin, around.null)?;
    let (stdout, their_stdout) = output_pipe()?;
    let (stderr, their_stderr) = output_pipe()?;
    let ends = Ends { stdin, outputs: [Some(stdout), Some(stderr), None], terminal: None };
    Ok((ends, [their_stdin, their_stdout, their_stderr]))
}

/// Our end of what is fed, and the end that is read. Nothing is fed from what is always empty.
pub(crate) fn input_pipe(
    fed: bool,
    null: rustix::fd::BorrowedFd<'_>,
) -> io::Result<(Option<OwnedFd>, OwnedFd)> {
    if !fed {
        return Ok((None, null.try_clone_to_owned()?));
    }
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&write, true)?;
    Ok((Some(write), read))
}

/// Our end of what is written, and the end that it is written to.
pub(crate) fn output_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    Ok((read, write))
}

/// The kernel's word for what is limited.
pub(crate) fn resource(kind: RlimitKind) -> rustix::process::Resource {
    use rustix::process::Resource;
    match kind {
        RlimitKind::CpuSeconds => Resource::Cpu,
        RlimitKind::FileBytes => Resource::Fsize,
        RlimitKind::OpenFiles => Resource::Nofile,
        RlimitKind::DataBytes => Resource::Data,
        RlimitKind::AddressBytes => Resource::As,
        RlimitKind::StackBytes => Resource::Stack,
        RlimitKind::Processes => Resource::Nproc,
        RlimitKind::CoreBytes => Resource::Core,
        RlimitKind::PendingSignals => Resource::Sigpending,
        RlimitKind::QueueBytes => Resource::Msgqueue,
    }
}

fn kernel_limits(limits: &[Rlimit]) -> Vec<(u32, u64, u64)> {
    limits
        .iter()
        .map(|limit| {
            let resource = resource(limit.kind);
            // At the soft limit of CPU time the kernel sends SIGXCPU, which says what happened; at the hard one SIGKILL.
            let hard = match limit.kind {
                RlimitKind::CpuSeconds => limit.value.saturating_add(1),
                _ => limit.value,
            };
            (resource as u32, limit.value, hard)
        })
        .collect()
}

/// A failed start as an end.
fn told(error: SpawnError, spec: &ExecSpec, cwd: &str) -> Exit {
    let program = match &spec.program {
        Program::Argv(argv) => argv.first().cloned().unwrap_or_default(),
        Program::Shell(_) => "/bin/sh".into(),
        Program::Code(code) => code.language.name().into(),
    };
    let errno = error.source.raw_os_error().map(Errno::from_raw_os_error);
    match (error.stage, errno) {
        (Stage::Clone | Stage::User | Stage::Exec, Some(Errno::AGAIN)) => Exit::PidsLimit { code: None },
        (Stage::Exec, Some(Errno::NOENT | Errno::NOTDIR)) => {
            let why = if program.contains('/') {
                "no such file, or its interpreter is missing"
            } else {
                "not found in PATH"
            };
            not_started(NotStarted::NotFound, format!("{program}: {why}"))
        }
        (Stage::Exec, Some(Errno::TOOBIG)) => {
            not_started(NotStarted::TooLarge, format!("{program}: arguments and environment are too large"))
        }
        (Stage::Exec, _) => not_started(NotStarted::NotExecutable, format!("{program}: {}", error.source)),
        (Stage::Cwd, _) => not_started(NotStarted::BadCwd, format!("directory {cwd}: {}", error.source)),
        (Stage::User, Some(Errno::INVAL)) => {
            let why = "its number is none of the box's; with root, these are 0 to 65535";
            not_started(NotStarted::BadUser, format!("cannot become the user: {why}"))
        }
        (Stage::User, _) => {
            not_started(NotStarted::BadUser, format!("cannot become the user: {}", error.source))
        }
        (stage, _) => {
            not_started(NotStarted::Other, format!("{program}: {stage:?} failed: {}", error.source))
        }
    }
}
