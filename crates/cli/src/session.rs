//! Between the user and one command of a box: output to ours, our input and signals to it.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result};
use glasshouse_sandbox::{
    CodeResult, ErrorKind, Exec, ExecEvent, ExecInput, ExecOutput, Exit, ExitReport, OutputStream, TtySize,
};

use crate::outlet::Outlet;
use crate::output;
use crate::signals::{Signals, Told};
use crate::stdin::{self, Typed};
use crate::terminal::{self, RawMode};

/// The size of a terminal that nobody looks at.
pub(crate) const TTY_SIZE: TtySize = TtySize { rows: 24, cols: 80 };
/// The exit code of a program whose output nobody reads (SIGPIPE).
pub(crate) const CLOSED_CODE: i32 = 128 + 13;
/// How long we wait for a command to be killed before we leave anyway.
const KILL_WAIT: Duration = Duration::from_secs(2);

/// How the user takes part.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Part {
    /// Our stdin is the command's.
    pub(crate) stdin: bool,
    /// The command has a terminal.
    pub(crate) tty: bool,
    /// Escape sequences reach our terminal.
    pub(crate) raw: bool,
    /// We only look on: the command outlives us, and our signals are not for it.
    pub(crate) onlooker: bool,
    /// It is a program in a language, whose stdout has what the program writes there and nothing else.
    pub(crate) program: bool,
    /// Somebody talks with it at a terminal: what is typed while it runs are its lines, and a prompt follows it.
    pub(crate) talk: bool,
}

/// How a session ended.
pub(crate) enum End {
    /// The command ended.
    Ended(Box<Ended>),
    /// The command ended, and its output was gathered.
    Collected(Box<ExecOutput>),
    /// All that is kept was shown, and the command goes on.
    UpToDate,
    /// We were told to end, twice if the command is ours.
    Stopped(i32),
    /// Nobody reads our output any more.
    Closed,
}

/// A command that ended.
pub(crate) struct Ended {
    /// Its number.
    pub(crate) exec: u64,
    /// How.
    pub(crate) report: ExitReport,
    /// A signal that the user sent it through us.
    pub(crate) signal: Option<i32>,
}

/// The exit code of a shell for a program that ended by a signal.
pub(crate) fn signal_code(signal: i32) -> i32 {
    128 + signal
}

/// Shows the output of a command as it comes, until it ends.
pub(crate) async fn stream(exec: Exec, signals: &mut Signals, part: Part) -> Result<End> {
    let raw_mode = match part.tty && part.stdin {
        true => RawMode::enter().context("cannot switch the terminal to raw mode")?,
        false => None,
    };
    if part.stdin {
        stdin::feed(exec.input(), part.tty)?;
    }
    let typed = match part.talk {
        true => Some(Typed::feed(exec.input())?),
        false => None,
    };
    let raw = part.raw || part.tty;
    let mut show = Show {
        input: exec.input(),
        exec,
        part,
        raw_mode,
        typed,
        stdout: Outlet::stdout(raw),
        stderr: Outlet::stderr(raw),
        signal: None,
    };
    let end = show.run(signals).await;
    if let Some(typed) = &mut show.typed {
        typed.stop().await;
    }
    if matches!(end, Err(_) | Ok(End::Stopped(_))) && !part.onlooker {
        kill(&show.input).await;
    }
    show.leave(matches!(&end, Ok(End::Ended(ended)) if matches!(ended.report.exit, Exit::Code { .. })));
    match end {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(End::Closed),
        end => end.context("cannot write the output"),
    }
}

/// Gathers the output of a command until it ends.
pub(crate) async fn collect(exec: Exec, signals: &mut Signals, part: Part) -> Result<End> {
    let input = exec.input();
    if part.stdin {
        stdin::feed(input.clone(), part.tty)?;
    }
    let mut output = std::pin::pin!(exec.collect());
    loop {
        tokio::select! {
            biased;
            told = signals.next() => match told {
                Told::End(signal) if part.onlooker => return Ok(End::Stopped(signal)),
                Told::End(signal) if signals.insist() => {
                    kill(&input).await;
                    return Ok(End::Stopped(signal));
                }
                Told::End(signal) => forward(input.clone(), signal),
                Told::Resized | Told::Continued => {}
            },
            output = &mut output => return Ok(End::Collected(Box::new(output))),
        }
    }
}

/// A command whose output is shown as it comes.
struct Show {
    exec: Exec,
    input: ExecInput,
    part: Part,
    raw_mode: Option<RawMode>,
    typed: Option<Typed>,
    stdout: Outlet,
    stderr: Outlet,
    /// The signal that was passed on last.
    signal: Option<i32>,
}

impl Show {
    async fn run(&mut self, signals: &mut Signals) -> io::Result<End> {
        let mut end = None;
        loop {
            let idle = self.stdout.is_empty() && self.stderr.is_empty();
            if idle && let Some(end) = end {
                return Ok(end);
            }
            // Nothing new is taken from the box before what came is written: a slow reader stops the command.
            tokio::select! {
                biased;
                told = signals.next() => match told {
                    Told::End(signal) if self.part.onlooker || signals.insist() => {
                        return Ok(End::Stopped(signal));
                    }
                    told => self.told(told),
                },
                done = self.stdout.flush(), if !self.stdout.is_empty() => done?,
                done = self.stderr.flush(), if !self.stderr.is_empty() => done?,
                event = self.exec.next(), if idle => match event {
                    Some(event) => end = self.take(event),
                    None => return Err(io::Error::other("the command was lost before its end")),
                },
            }
        }
    }

    fn told(&mut self, told: Told) {
        match told {
            Told::End(signal) => {
                self.signal = Some(signal);
                forward(self.input.clone(), signal);
            }
            Told::Resized => resize(self.input.clone()),
            Told::Continued => {
                if let Some(raw_mode) = &self.raw_mode {
                    // A terminal that is gone says so when it is written to.
                    let _ = raw_mode.again();
                }
                resize(self.input.clone());
            }
        }
    }

    /// Puts output on its way; says if it was the last.
    fn take(&mut self, event: ExecEvent) -> Option<End> {
        self.notice_lines();
        let end = match event {
            ExecEvent::Output(chunk) => {
                match chunk.stream {
                    OutputStream::Stdout => self.stdout.push(chunk.bytes),
                    OutputStream::Stderr => self.stderr.push(chunk.bytes),
                    OutputStream::Results => {}
                }
                return None;
            }
            ExecEvent::Result(result) => {
                // What its last line comes to, no program tells anybody.
                if self.part.program && matches!(result, CodeResult::Value(_)) {
                    return None;
                }
                let (text, is_error) = crate::code::shown(&result);
                let is_aside = is_error || self.part.program && crate::code::is_picture(&result);
                // What is told begins a line of its own.
                let start = if self.is_mid_line() { "\n" } else { "" };
                let outlet = if is_aside { &mut self.stderr } else { &mut self.stdout };
                outlet.push(format!("{start}{text}").into_bytes());
                return None;
            }
            ExecEvent::Gap { from, to } => {
                let count = to.saturating_sub(from);
                let line = if self.is_mid_line() { "\n" } else { "" };
                let sentence = format!(
                    "{line}glass: {count} bytes of output were not kept here (from {from} to {to})\n"
                );
                self.stderr.push(sentence.into_bytes());
                return None;
            }
            ExecEvent::UpToDate { .. } => End::UpToDate,
            ExecEvent::Ended(report) => {
                End::Ended(Box::new(Ended { exec: self.exec.id(), report, signal: self.signal }))
            }
        };
        self.stdout.finish();
        self.stderr.finish();
        Some(end)
    }

    /// Gives the terminal back: at the start of a line if a prompt follows, which would be written over the line, or if the
    /// program ended otherwise than it wanted to.
    fn leave(mut self, as_it_wanted: bool) {
        self.notice_lines();
        let signalled = self.signal.is_some() && io::stderr().is_terminal();
        let is_mid_line = self.is_mid_line();
        if let Some(raw_mode) = self.raw_mode.take() {
            drop(raw_mode);
        } else if self.part.talk && is_mid_line || !as_it_wanted && (is_mid_line || signalled) {
            let _ = writeln!(io::stderr());
        }
    }

    /// Whoever answers a question ends its line.
    fn notice_lines(&mut self) {
        if self.typed.as_ref().is_some_and(Typed::has_entered) {
            self.stdout.begin_line();
            self.stderr.begin_line();
        }
    }

    fn is_mid_line(&self) -> bool {
        self.stdout.is_mid_line() || self.stderr.is_mid_line()
    }
}

/// In a task of its own: a box that does not answer must not keep us from hearing the next signal.
fn forward(input: ExecInput, signal: i32) {
    tokio::spawn(async move {
        match input.signal(signal).await {
            // It ended meanwhile.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Gone) => {}
            Err(e) => output::say(&format!("cannot pass on signal {signal}: {e}")),
            Ok(()) => {}
        }
    });
}

fn resize(input: ExecInput) {
    if let Some(size) = terminal::size() {
        tokio::spawn(async move {
            // A size that did not arrive is put right by the next one.
            let _ = input.resize(size).await;
        });
    }
}

async fn kill(input: &ExecInput) {
    // It dies in any case when we close the connection, a little later.
    let _ = tokio::time::timeout(KILL_WAIT, input.kill()).await;
}
