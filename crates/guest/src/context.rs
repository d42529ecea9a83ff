//! A context: an interpreter of the box, and the line between it and us.
//!
//! ```text
//!              hello                  run (pipes and code go along)            done
//!  Starting ──────────▶ Idle ───────────────────────────────────▶ Busy ──────────────────▶ Idle
//!     │                  │                                          │ it ends, breaks the line, is killed
//!     └── no hello ──────┴──────────────────────────────────────────┴────────────────────▶ Lost
//! ```
//! The interpreter is started, or it is a fork of one that was (`zygote`), which says hello just the same.
//! It is a process like any command's: same user, walls, limits, and a tracking mark of its own. What it runs is
//! a *driver* of ours in its own language (below `context/`), which it is given over the line, its descriptor 3: nothing
//! is written to the box's files, and nothing is needed there but the language.
//!
//! A context of Jupyter runs no interpreter of ours but a program that the host has carried in, `glass-kernel`, which is its own
//! driver: it starts a kernel that the image has, and speaks with it (`kernel/main.rs`).
//!
//! The words on the line, a line each. From us: the driver's source, once, then `run N`; with `whole` behind it, it is done
//! when nothing is left that the code waits for. From the driver: `hello VERSION`,
//! `begun N`, `heard N`, `done N CODE`, and `broken WHY` if it is of no use any more. Whatever else it says, or more than a line's length
//! without an end, ends it: it is as hostile as the code that it runs.
//!
//! A run is interrupted by SIGINT to the interpreter's group, as a terminal does it, so that what the code waits for is
//! interrupted, too. It must hit this run and no other, so it is kept until the driver says that the run has begun, which a
//! driver does when it would listen; and a driver that is between two runs does not. Node.js may lose a signal, and may die
//! of one; its driver is told `interrupt N` as well, listens in a thread of its own, and stays deaf to the signal. `glass-kernel`
//! is told nothing else: its kernel is in a group of its own, and is told as its kernelspec says. A program that Bash or Node.js
//! starts in just that moment does not hear of it, and they wait for it: so it is said again until it has helped, to the interpreter
//! and to those of its children that were no programs yet when it was said before. The others have heard it, and may be clearing
//! up. Python may be just about to wait, and then does not look before that is over; it is told again until it says `heard N`.
//!
//! For a run, the driver is given pipes for stdin, stdout, stderr and results, and the code, and puts the first three where
//! its own are. So what C code and programs write that it starts comes as well, as it is written, and belongs to the run
//! that it came from. Python and `glass-kernel` take descriptors from the line. Others cannot: they are told a directory in `/dev/shm`,
//! which is no part of the box's files, with pipes that have names until the run has begun. Their code is in a file in memory that
//! is their stdin when they are started: names take no room there, but code does, and that may be full.

use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use glasshouse_linux::process::Child;
use glasshouse_linux::rustix::fs::{
    CWD, FileType, MemfdFlags, Mode, OFlags, memfd_create, mkdir, mknodat, open,
};
use glasshouse_linux::rustix::net::RecvFlags;
use glasshouse_linux::{descriptor, process, rustix};
use glasshouse_protocol::limits::CONTEXT_LINE_MAX;
use glasshouse_protocol::{Code, ContextInfo, ContextSpec, ContextState, ExecSpec, Language, Program};

use crate::exec::{Ends, input_pipe, output_pipe, peak_bytes};
use crate::files;
use crate::track::Mark;

/// Bytes of what an interpreter says before it is there, of which the last line is told if it never is.
const NOISE_BYTES: usize = 4096;
/// Characters of what a driver says of its own end.
const WHY_CHARS_MAX: usize = 500;
/// What a terminal says.
const INTERRUPT: i32 = rustix::process::Signal::INT.as_raw();
/// How long code is given to end before it is interrupted again, and how often it is.
const INTERRUPT_AGAIN: Duration = Duration::from_millis(300);
const INTERRUPTS_MAX: u32 = 50;
/// The same for Python, whose code may have put its own handler where the driver's was, which then cannot say that it has heard.
const INTERRUPTS_MAX_PYTHON: u32 = 3;
/// Where the pipes of a run have names, where they need them, and how many names are tried for them beside the usual one.
const NAMED_DIR: &str = "/dev/shm";
const NAMES_TRIED: u32 = 8;

/// The directory in which `glass-kernel`, being this process, tells its kernel where to listen, until that has answered.
pub fn connection_dir(pid: u32) -> PathBuf {
    PathBuf::from(NAMED_DIR).join(format!(".glasshouse-kernel-{pid}"))
}

/// The file in it.
pub const CONNECTION_FILE: &str = "connection.json";

/// An interpreter.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) spec: ContextSpec,
    pub(crate) id: String,
    pub(crate) version: Option<String>,
    pub(crate) started_ms: u64,
    pub(crate) state: State,
    pub(crate) runs: u64,
    /// As long as it lives.
    pub(crate) process: Option<Process>,
    /// Who waits for it to be there.
    pub(crate) client: Option<(usize, u32)>,
    pub(crate) warmth: Warmth,
}

/// Whether its interpreter is a fork of one that was warm.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Warmth {
    /// Nobody wanted that.
    #[default]
    None,
    /// It is to be one, as soon as there is one.
    Awaited,
    Forked,
    /// It could not be, for this reason.
    Cold(String),
}

/// Where it stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It has until then to say hello.
    Starting(Instant),
    Idle,
    Busy(u64),
    Lost(String),
}

/// The interpreter's process, and the line to it.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) child: Child,
    pub(crate) mark: Mark,
    pub(crate) line: OwnedFd,
    /// Whom we have to be to make files of its user's.
    ids: Option<(u32, u32)>,
    /// Where it reads the code of each run, if it cannot be passed a descriptor of it.
    pub(crate) code: Option<File>,
    /// It does not compute itself: its only child does.
    pub(crate) has_kernel: bool,
    /// It has closed the line: when it has to have ended, and what is said of it if it has not.
    pub(crate) ends_by: Option<(Instant, String)>,
    closed: bool,
    /// What came on the line and has no end yet.
    inbox: Vec<u8>,
    /// What it says before it is there.
    noise: Option<OwnedFd>,
    /// The pipes of a run that has not begun, where they have names.
    named: Option<Named>,
    /// Whether what it was handed has begun, and whether that is to be interrupted when it has.
    begun: bool,
    interrupt_due: bool,
    /// When that is interrupted again, and how often yet.
    again: Option<(Instant, u32)>,
    /// Those of its children that have been told.
    told: Vec<Fork>,
}

/// A child of an interpreter's, or of what it has forked for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fork {
    pid: i32,
    /// It is another program by now. Until then, a signal may be lost on it.
    is_program: bool,
}

/// A word of a driver's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Hello(String),
    Begun(u64),
    /// Its code was interrupted, and knows it.
    Heard(u64),
    Done {
        exec: u64,
        code: i32,
    },
    /// It is of no use any more, and why.
    Broken(String),
}

/// Pipes with names. Dropped, they have none any more.
#[derive(Debug)]
struct Named {
    dir: PathBuf,
    ids: Option<(u32, u32)>,
    /// The ends that are the driver's, until it has opened them: else we would take them for closed.
    _kept: Vec<OwnedFd>,
}

impl Drop for Named {
    fn drop(&mut self) {
        // What the box has put there itself stays with the box.
        let _ = files::as_user(self.ids, || {
            for name in NAMES {
                let _ = rustix::fs::unlink(self.dir.join(name));
            }
            let _ = rustix::fs::rmdir(&self.dir);
        });
    }
}

/// stdin, stdout, stderr, results.
const NAMES: [&str; 4] = ["0", "1", "2", "3"];

impl Context {
    pub(crate) fn info(&self) -> ContextInfo {
        ContextInfo {
            id: self.id.clone(),
            language: self.spec.language,
            interpreter: self.spec.interpreter.clone(),
            version: self.version.clone(),
            pid: self.process.as_ref().map(|process| process.pid as u32),
            started_ms: self.started_ms,
            state: match &self.state {
                State::Starting(_) => ContextState::Starting,
                State::Idle => ContextState::Idle,
                State::Busy(exec) => ContextState::Busy { exec: *exec },
                State::Lost(why) => ContextState::Lost { why: why.clone() },
            },
            runs: self.runs,
            warm: self.warmth == Warmth::Forked,
            cold: match &self.warmth {
                Warmth::Cold(why) => Some(why.clone()),
                _ => None,
            },
        }
    }

    /// Whether it waits to be forked from a warm interpreter.
    pub(crate) fn is_awaited(&self) -> bool {
        self.warmth == Warmth::Awaited && matches!(self.state, State::Starting(_))
    }

    /// Interrupts what runs in it.
    pub(crate) fn interrupt(&mut self) {
        let (State::Busy(exec), Some(process)) = (&self.state, self.process.as_mut()) else { return };
        let times = match self.spec.language {
            Language::Jupyter => None,
            Language::Python => Some(INTERRUPTS_MAX_PYTHON),
            Language::Javascript | Language::Typescript | Language::Bash => Some(INTERRUPTS_MAX),
        };
        process.again = times.map(|times| (Instant::now() + INTERRUPT_AGAIN, times));
        // One that cannot be told is about to end, or the kill that follows will find it.
        let _ = process.interrupt(*exec, self.spec.language);
    }

    /// Interrupts again what should have ended by now.
    pub(crate) fn interrupt_again(&mut self, now: Instant) {
        let (State::Busy(exec), Some(process)) = (&self.state, self.process.as_mut()) else { return };
        let Some((_, left)) = process.again.filter(|(at, _)| *at <= now) else { return };
        process.again = (left > 1).then_some((now + INTERRUPT_AGAIN, left - 1));
        let _ = process.interrupt_again(*exec, self.spec.language);
    }

    /// The next moment at which something has to be done about it.
    pub(crate) fn next_moment(&self) -> Option<Instant> {
        let again = self.process.as_ref().and_then(|process| process.again).map(|(at, _)| at);
        self.given_up_at().into_iter().chain(again).min()
    }

    /// The moment at which it is given up.
    pub(crate) fn given_up_at(&self) -> Option<Instant> {
        let ends_by = self.process.as_ref().and_then(|process| process.ends_by.as_ref());
        let starts_by = match self.state {
            State::Starting(until) => Some(until),
            _ => None,
        };
        ends_by.map(|(at, _)| *at).into_iter().chain(starts_by).min()
    }
}

/// What each interpreter is told first: to read its driver, all of which is on the line by then, and to run that.
const PYTHON: &[&str] = &["-c", "import os;exec(compile(os.read(3,1<<17),'<glasshouse>','exec'))"];
const NODE: &[&str] =
    &["-e", "{let b=Buffer.alloc(1<<17);eval(b.toString('utf8',0,require('fs').readSync(3,b)))}"];
const BASH: &[&str] = &["--noprofile", "--norc", "-c", "read -rd '' -u3 s;eval \"$s\""];

/// The command that starts the interpreter, and the driver that it is then told.
pub(crate) fn command(spec: &ContextSpec) -> (ExecSpec, String) {
    let (usual, start, driver): (_, &[&str], _) = match spec.language {
        Language::Jupyter => return (kernel_command(spec), String::new()),
        Language::Python => {
            ("python3", PYTHON, concat!(include_str!("context/driver.py"), "\n\ndrive()\n").to_owned())
        }
        Language::Javascript => ("node", NODE, include_str!("context/driver.js").to_owned()),
        Language::Typescript => {
            let driver = include_str!("context/driver.js");
            ("node", NODE, format!("globalThis.__glasshouse_typescript = true;\n{driver}"))
        }
        // It reads to a zero byte.
        Language::Bash => ("bash", BASH, concat!(include_str!("context/driver.bash"), "\0").to_owned()),
    };
    let interpreter = spec.interpreter.clone().unwrap_or_else(|| usual.to_owned());
    let argv = [interpreter].into_iter().chain(start.iter().map(|word| (*word).to_owned()));
    let spec = ExecSpec {
        program: Program::Argv(argv.collect()),
        env: spec.env.clone(),
        cwd: spec.cwd.clone(),
        user: spec.user.clone(),
        ..ExecSpec::default()
    };
    (spec, driver)
}

/// A file for the code of an interpreter that is to have it as its stdin.
pub(crate) fn code_file(language: Language) -> io::Result<Option<File>> {
    match language {
        Language::Python | Language::Jupyter => Ok(None),
        Language::Javascript | Language::Typescript | Language::Bash => in_memory().map(Some),
    }
}

fn in_memory() -> io::Result<File> {
    Ok(File::from(memfd_create("code", MemfdFlags::CLOEXEC)?))
}

/// What is said of code that is a whole program, to drivers that can wait for what it has begun.
fn whole(code: &Code) -> &'static str {
    if code.whole && code.language != Language::Jupyter { " whole" } else { "" }
}

/// The command that starts a kernel of Jupyter's, and what speaks with it.
fn kernel_command(spec: &ContextSpec) -> ExecSpec {
    let kernel = spec.interpreter.clone().unwrap_or_else(|| "python3".to_owned());
    ExecSpec {
        program: Program::Argv(vec!["glass-kernel".to_owned(), kernel]),
        carried: spec.carried.clone(),
        env: spec.env.clone(),
        cwd: spec.cwd.clone(),
        user: spec.user.clone(),
        ..ExecSpec::default()
    }
}

/// The command that starts a zygote for contexts like this, and what it is then told. It is nowhere while it waits: the root may
/// be replaced under it.
pub(crate) fn zygote_command(spec: &ContextSpec, directory: &str) -> serde_json::Result<(ExecSpec, String)> {
    let imports = spec.warm.as_ref().map_or(&[][..], |warm| &warm.imports);
    // JSON of texts is Python of the same texts.
    let (imports, directory) = (serde_json::to_string(imports)?, serde_json::to_string(directory)?);
    let driver = concat!(include_str!("context/driver.py"), include_str!("context/zygote.py"));
    let (command, _) = command(spec);
    let command = ExecSpec { cwd: Some("/".into()), ..command };
    Ok((command, format!("{driver}\n\ndrive(lambda: wait({imports}, {directory}))\n")))
}

/// Both ends of a new line, with the driver's source on it already, and of what the interpreter says meanwhile.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) ours: OwnedFd,
    pub(crate) theirs: OwnedFd,
    pub(crate) noise: OwnedFd,
    pub(crate) their_noise: OwnedFd,
}

impl Line {
    pub(crate) fn new(driver: &str) -> io::Result<Line> {
        let line = Line::silent()?;
        if !driver.is_empty() {
            descriptor::send_with_fds(line.ours.as_fd(), driver.as_bytes(), &[])?;
        }
        Ok(line)
    }

    /// One on which nothing was said yet.
    pub(crate) fn silent() -> io::Result<Line> {
        let (ours, theirs) = descriptor::socket_pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let (noise, their_noise) = output_pipe()?;
        Ok(Line { ours, theirs, noise, their_noise })
    }
}

impl Process {
    pub(crate) fn new(
        child: Child,
        mark: Mark,
        (line, noise): (OwnedFd, OwnedFd),
        ids: Option<(u32, u32)>,
    ) -> Process {
        let (pid, noise) = (child.pid, Some(noise));
        let (ends_by, closed, inbox, named) = (None, false, Vec::new(), None);
        let (begun, interrupt_due, again, told) = (false, false, None, Vec::new());
        let (code, has_kernel) = (None, false);
        Process {
            pid,
            child,
            mark,
            line,
            ids,
            code,
            has_kernel,
            ends_by,
            closed,
            inbox,
            noise,
            named,
            begun,
            interrupt_due,
            again,
            told,
        }
    }

    /// The next word, if a whole one has come. An error: it will never speak to us again, for this reason.
    pub(crate) fn next_word(&mut self) -> Result<Option<Word>, String> {
        let Some(text) = self.next_line()? else { return Ok(None) };
        Word::parse(&text).map(Some).ok_or_else(|| {
            let start: String = text.chars().take(40).collect();
            format!("its interpreter said {start:?} to the guest, which means nothing")
        })
    }

    /// The same for one that says other words.
    pub(crate) fn next_line(&mut self) -> Result<Option<String>, String> {
        loop {
            if let Some(end) = self.inbox.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.inbox.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if self.inbox.len() >= CONTEXT_LINE_MAX {
                return Err("its interpreter said more to the guest than makes sense".into());
            }
            let mut buffer = [0; CONTEXT_LINE_MAX];
            match rustix::net::recv(&self.line, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET) => {
                    self.closed = true;
                    return Err("its interpreter has closed the line to the guest".into());
                }
                Ok((_, n)) => self.inbox.extend_from_slice(&buffer[..n]),
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(format!("the line to its interpreter broke: {e}")),
            }
        }
    }

    /// Whether it has closed the line.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Hands a run over. What it writes can then be read from our ends.
    pub(crate) fn hand_over(
        &mut self,
        exec: u64,
        code: &Code,
        fed: bool,
        null: BorrowedFd<'_>,
    ) -> io::Result<Ends> {
        (self.begun, self.interrupt_due, self.again) = (false, false, None);
        match code.language {
            Language::Python | Language::Jupyter => self.pass(exec, code, fed, null),
            _ => files::as_user(self.ids, || self.name(exec, code, fed))?,
        }
    }

    /// By descriptors.
    fn pass(&mut self, exec: u64, code: &Code, fed: bool, null: BorrowedFd<'_>) -> io::Result<Ends> {
        let (stdin, their_stdin) = input_pipe(fed, null)?;
        let (stdout, their_stdout) = output_pipe()?;
        let (stderr, their_stderr) = output_pipe()?;
        let (results, their_results) = output_pipe()?;
        let file = in_memory()?;
        file.write_all_at(code.code.as_bytes(), 0)?;
        let fds = [&their_stdin, &their_stdout, &their_stderr, &their_results].map(AsFd::as_fd);
        let fds = [fds[0], fds[1], fds[2], fds[3], file.as_fd()];
        let word = format!("run {exec}{}\n", whole(code));
        descriptor::send_with_fds(self.line.as_fd(), word.as_bytes(), &fds)?;
        Ok(Ends { stdin, outputs: [Some(stdout), Some(stderr), Some(results)], terminal: None })
    }

    /// By names. Done as the interpreter's user, whose they are.
    fn name(&mut self, exec: u64, code: &Code, fed: bool) -> io::Result<Ends> {
        if let Some(file) = &self.code {
            file.set_len(0)?;
            file.write_all_at(code.code.as_bytes(), 0)?;
        }
        let dir = make_dir(exec)?;
        let mut named = Named { dir: dir.clone(), ids: self.ids, _kept: Vec::new() };
        let path = |n: usize| dir.join(NAMES[n]);
        let end = |n: usize, flags: OFlags| {
            open(path(n), flags | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
        };
        let mut outputs = [const { None }; 3];
        for (n, output) in outputs.iter_mut().enumerate() {
            mknodat(CWD, path(n + 1), FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
            *output = Some(end(n + 1, OFlags::RDONLY)?);
            named._kept.push(end(n + 1, OFlags::WRONLY)?);
        }
        let mut stdin = None;
        if fed {
            mknodat(CWD, path(0), FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
            named._kept.push(end(0, OFlags::RDONLY)?);
            stdin = Some(end(0, OFlags::WRONLY)?);
            // A second writer, so that the driver does not wait for one if we have ended stdin by then.
            named._kept.push(end(0, OFlags::WRONLY)?);
        }
        let word = format!("run {exec} {} {}{}\n", u8::from(fed), dir.display(), whole(code));
        descriptor::send_with_fds(self.line.as_fd(), word.as_bytes(), &[])?;
        self.named = Some(named);
        Ok(Ends { stdin, outputs, terminal: None })
    }

    /// It has what it was handed. Returns whether that is to be interrupted now.
    pub(crate) fn has_begun(&mut self) -> bool {
        self.named = None;
        self.begun = true;
        std::mem::take(&mut self.interrupt_due)
    }

    /// It need not be interrupted again.
    pub(crate) fn has_heard(&mut self) {
        self.again = None;
    }

    /// It has done what it was handed.
    pub(crate) fn is_done(&mut self) {
        self.named = None;
        self.again = None;
    }

    fn interrupt(&mut self, exec: u64, language: Language) -> io::Result<()> {
        if !self.begun {
            self.interrupt_due = true;
            return Ok(());
        }
        self.say_interrupt(exec, language)?;
        if language == Language::Jupyter {
            return Ok(());
        }
        // Before it is said: whoever becomes a program meanwhile may have lost it.
        self.told = self.forks().unwrap_or_default();
        self.told.retain(|fork| fork.is_program);
        process::signal_group(self.pid, INTERRUPT)
    }

    /// The same for those that cannot have heard it yet.
    fn interrupt_again(&mut self, exec: u64, language: Language) -> io::Result<()> {
        let Some(forks) = self.forks().filter(|_| self.begun) else { return self.interrupt(exec, language) };
        self.say_interrupt(exec, language)?;
        for fork in forks.into_iter().filter(|fork| !self.told.contains(fork)).collect::<Vec<_>>() {
            self.told.push(fork);
            // What has left the group is told nothing there either, and what is gone need not be.
            let pid = rustix::process::Pid::from_raw(fork.pid);
            if rustix::process::getpgid(pid).is_ok_and(|group| group.as_raw_pid() == self.pid) {
                process::signal_pid(fork.pid, INTERRUPT)?;
            }
        }
        self.child.signal(INTERRUPT)
    }

    /// Tells it on the line, if its driver listens there for that.
    fn say_interrupt(&self, exec: u64, language: Language) -> io::Result<()> {
        if matches!(language, Language::Python | Language::Bash) {
            return Ok(());
        }
        let word = format!("interrupt {exec}\n");
        descriptor::send_with_fds(self.line.as_fd(), word.as_bytes(), &[]).map(drop)
    }

    /// What it has started, and what it has forked for itself has started. What is no program yet has its own words.
    fn forks(&self) -> Option<Vec<Fork>> {
        let words = |pid: i32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let own = words(self.pid);
        let (mut found, mut looked_at) = (children(self.pid)?, 0);
        let mut forks = Vec::new();
        while let Some(&pid) = found.get(looked_at) {
            let is_program = words(pid) != own;
            forks.push(Fork { pid, is_program });
            if !is_program {
                found.extend(children(pid).unwrap_or_default());
            }
            looked_at += 1;
        }
        Some(forks)
    }

    /// It is there: what it says from now on belongs to runs, unless a kernel says that for it. Then it has only last words.
    pub(crate) fn is_there(&mut self) {
        self.noise.take_if(|_| !self.has_kernel);
    }

    /// It was killed, perhaps before it could clear up. What the box has put there itself stays with the box.
    pub(crate) fn clear_up(&self) {
        if self.has_kernel {
            let dir = connection_dir(self.pid as u32);
            let _ = files::as_user(self.ids, || {
                let _ = rustix::fs::unlink(dir.join(CONNECTION_FILE));
                let _ = rustix::fs::rmdir(&dir);
            });
        }
    }

    /// The last line of what it said before it was there, or last of all.
    pub(crate) fn last_noise(&self) -> Option<String> {
        let mut buffer = vec![0; NOISE_BYTES];
        let n = rustix::io::read(self.noise.as_ref()?, &mut buffer[..]).ok()?;
        let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
    }

    /// CPU time that it has used: of its whole tree where that is counted, else its own.
    pub(crate) fn cpu(&self, tree_us: Option<u64>) -> Duration {
        match tree_us {
            Some(us) => Duration::from_micros(us),
            None => self.computing().map(|pid| process::cpu_time(pid).unwrap_or_default()).sum(),
        }
    }

    /// The most memory that it had at once, and its kernel, if it has one.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.computing().map(peak_bytes).sum()
    }

    /// The processes that do its work.
    fn computing(&self) -> impl Iterator<Item = i32> {
        let kernel = self.has_kernel.then(|| children(self.pid)).flatten();
        [self.pid].into_iter().chain(kernel.and_then(|children| children.first().copied()))
    }
}

/// The children of a process's first thread, where the kernel tells them.
fn children(pid: i32) -> Option<Vec<i32>> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Some(children.split_whitespace().filter_map(|child| child.parse().ok()).collect())
}

/// Makes a directory for the pipes of a run. If the box has its name already, on purpose or not, the run has one that nobody
/// can know.
fn make_dir(exec: u64) -> io::Result<PathBuf> {
    let usual = std::iter::once(std::process::id().to_string());
    let unknown = (0..NAMES_TRIED).map(|_| format!("{:016x}", RandomState::new().build_hasher().finish()));
    for name in usual.chain(unknown) {
        let dir = PathBuf::from(NAMED_DIR).join(format!(".glasshouse-{name}-{exec}"));
        match mkdir(&dir, Mode::from_raw_mode(0o700)) {
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
            Ok(()) => return Ok(dir),
        }
    }
    Err(rustix::io::Errno::EXIST.into())
}

impl Word {
    fn parse(line: &str) -> Option<Word> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        Some(match word {
            "hello" => Word::Hello(rest.chars().filter(|c| !c.is_control()).take(100).collect()),
            "broken" if !rest.is_empty() => {
                Word::Broken(rest.chars().filter(|c| !c.is_control()).take(WHY_CHARS_MAX).collect())
            }
            "begun" => Word::Begun(rest.parse().ok()?),
            "heard" => Word::Heard(rest.parse().ok()?),
            "done" => {
                let (exec, code) = rest.split_once(' ')?;
                Word::Done {
                    exec: exec.parse().ok()?,
                    code: code.parse().ok().filter(|c| (0..256).contains(c))?,
                }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_that_mean_something_are_taken() {
        assert_eq!(Word::parse("hello 3.11.7"), Some(Word::Hello("3.11.7".into())));
        assert_eq!(Word::parse("begun 7"), Some(Word::Begun(7)));
        assert_eq!(Word::parse("heard 7"), Some(Word::Heard(7)));
        assert_eq!(Word::parse("done 7 3"), Some(Word::Done { exec: 7, code: 3 }));
        assert_eq!(Word::parse("broken it is"), Some(Word::Broken("it is".into())));
        for line in [
            "",
            "broken",
            "done",
            "done 7",
            "done 7 256",
            "done 7 -1",
            "done x 0",
            "done 7 0 0",
            "Done 7 0",
            "begun",
        ] {
            assert_eq!(Word::parse(line), None, "{line:?}");
        }
    }
}
