//! Builders: the processes that carry out plans, executed before anybody needs one.
//!
//! ```text
//!             take                     plan                    ready
//!  spare ──────────────▶ somebody's ───────────▶ at work ───────────────▶ leaving ──▶ collected
//!    ▲                        ▲ executed now, if no spare is there          │
//!    └──────────────── tidy, which no caller waits for ◀────────────────────┘
//! ```
//! To execute one costs more than what it does, so one that gives a box that lives another root is replaced as soon as it
//! is used, and the next caller finds it waiting. Each serves once: a process that has been inside a box is not used again.
//!
//! A spare is one when it has said that it waits: until then it would make its caller wait for what was to be done ahead.
//! One that has served holds what the box stood on before until somebody tidies.
//!
//! A spare holds nothing but its end of a socket. It ends when ours is closed, however we end; and when it was killed
//! meanwhile, it is found out before it has done anything, and another one is executed.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use glasshouse_linux::{descriptor, rustix};

use crate::error::{Context, Result};
use crate::limits::BUILD_TIMEOUT;

/// How many wait: a fork wants one for the snapshot and one for the box.
const SPARES: usize = 2;
/// Whoever has tidied so often will want a builder again; a program that does one thing and ends does not.
const REGULAR: usize = 2;

/// What the guest is executed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// To build a box, or to give one that lives another root, at once.
    Jail,
    /// The same, sooner or later.
    Spare,
    /// To be the guest where it is.
    Serve,
    /// To read what we own and may not read.
    Read,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Jail => "jail",
            Mode::Spare => "spare",
            Mode::Serve => "serve",
            Mode::Read => "read",
        }
    }
}

/// A process that waits for its plan.
#[derive(Debug)]
pub(super) struct Builder {
    process: Process,
    pub(super) stream: UnixStream,
    /// Who we were when it was executed: it is nobody else.
    user: rustix::process::Uid,
    /// It was not executed for whoever has it now.
    pub(super) is_spare: bool,
}

impl Builder {
    /// Executes the guest, which reads its plan from the stream.
    pub(super) fn execute(mode: Mode) -> Result<Builder> {
        let (ours, theirs) = descriptor::socket_pair().context("make a socket pair")?;
        let process = execute_on(mode, theirs)?;
        let (user, is_spare) = (rustix::process::geteuid(), mode == Mode::Spare);
        Ok(Builder { process: Process(Some(process)), stream: UnixStream::from(ours), user, is_spare })
    }

    /// One that somebody else has executed, and watches.
    pub(super) fn met(stream: UnixStream) -> Builder {
        let (process, user, is_spare) = (Process(None), rustix::process::geteuid(), false);
        Builder { process, stream, user, is_spare }
    }

    /// Collects it: it has ended, or is about to. The stream is its box's from now on.
    pub(super) fn collect(self) -> UnixStream {
        self.process.collect();
        self.stream
    }

    /// Waits until one that was executed ahead of time has made ready what any plan needs.
    fn await_ready(&self) -> Result<()> {
        self.stream.set_read_timeout(Some(BUILD_TIMEOUT)).context("wait for a builder")?;
        let mut word = [0];
        (&self.stream).read_exact(&mut word).context("wait for a builder")?;
        self.stream.set_read_timeout(None).context("wait for a builder")
    }

    /// Nobody needs it any more: it clears away, and ends.
    fn dismiss(&self) {
        // One that has ended already cannot be told.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// It is the guest itself, and somebody else's to watch from now on.
    pub(super) fn keep(mut self) -> UnixStream {
        self.process.0 = None;
        self.stream
    }
}

/// A child of ours that is killed and collected unless that is done otherwise.
#[derive(Debug)]
struct Process(Option<Child>);

impl Process {
    /// Collects it: it has ended, or is about to.
    fn collect(mut self) {
        if let Some(mut process) = self.0.take() {
            let _ = process.wait();
        }
    }

    fn has_ended(&mut self) -> bool {
        self.0.as_mut().is_none_or(|process| !matches!(process.try_wait(), Ok(None)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut process) = self.0.take() {
            // One that has ended by itself cannot be killed.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Those that wait, and those that are on their way out.
#[derive(Debug, Default)]
pub(super) struct Builders {
    spares: Mutex<VecDeque<Builder>>,
    leaving: Mutex<Vec<Builder>>,
    /// How often somebody tidied. Held meanwhile: one at a time, or there would be too many spares.
    tidied: Mutex<usize>,
}

impl Builders {
    /// One that waits already, or one that is executed now.
    pub(super) fn take(&self) -> Result<Builder> {
        self.forget_ended();
        // The one that has waited longest.
        let spare = locked(&self.spares).pop_front();
        match spare.filter(|spare| spare.user == rustix::process::geteuid()) {
            Some(spare) => Ok(spare),
            None => Builder::execute(Mode::Jail),
        }
    }

    /// It was not needed, and waits for the next one.
    pub(super) fn give_back(&self, mut builder: Builder) {
        let mut spares = locked(&self.spares);
        if spares.len() < SPARES {
            builder.is_spare = true;
            spares.push_back(builder);
        }
    }

    /// It has done its work. It clears away what it has replaced when somebody tidies: on a busy machine it would do so in
    /// the way of whoever waits for the box.
    pub(super) fn let_go(&self, builder: Builder) {
        locked(&self.leaving).push(builder);
    }

    /// Collects those that are done, and makes spares ready.
    pub(super) fn tidy(&self) -> Result<()> {
        let mut tidied = locked(&self.tidied);
        *tidied = tidied.saturating_add(1);
        let leaving = std::mem::take(&mut *locked(&self.leaving));
        leaving.iter().for_each(Builder::dismiss);
        while *tidied >= REGULAR && locked(&self.spares).len() < SPARES {
            let spare = Builder::execute(Mode::Spare)?;
            spare.await_ready()?;
            locked(&self.spares).push_back(spare);
        }
        leaving.into_iter().for_each(|builder| builder.process.collect());
        Ok(())
    }

    /// Sends those away that are done and collects those that have ended, for callers who never tidy.
    fn forget_ended(&self) {
        locked(&self.leaving).retain_mut(|builder| {
            builder.dismiss();
            !builder.process.has_ended()
        });
    }
}

impl Drop for Builders {
    fn drop(&mut self) {
        // Spares end with their fields. The others are not to be killed while they clear away.
        let leaving = std::mem::take(&mut *locked(&self.leaving));
        leaving.iter().for_each(Builder::dismiss);
        leaving.into_iter().for_each(|builder| builder.process.collect());
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a stream broke because who was to read from it had ended before: nothing of what was sent was read.
pub(super) fn was_not_read(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Executes the guest with this socket as its descriptor 0.
pub(super) fn execute_on(mode: Mode, theirs: OwnedFd) -> Result<Child> {
    let program = program()?;
    Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
        .arg0("glass-guest")
        .arg(mode.name())
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("execute the guest")
}

/// The guest's program in sealed memory, made once for this process.
fn program() -> Result<BorrowedFd<'static>> {
    static PROGRAM: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(fd) = PROGRAM.get() {
        return Ok(fd.as_fd());
    }
    let fd = descriptor::sealed_program("glass-guest", crate::guest_program())
        .context("put the guest into memory")?;
    // Another thread may have been faster; then ours is dropped.
    Ok(PROGRAM.get_or_init(|| fd).as_fd())
}
