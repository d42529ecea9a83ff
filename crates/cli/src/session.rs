//! Between the user and one command of a box: output to ours, our input and signals to it.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, Result};
use glasshouse_sandbox::{Exec, ExecEvent, ExecInput, ExecOutput, ExitReport, OutputStream, TtySize};

use crate::outlet::Outlet;
use crate::output;
use crate::signals::{Signals, Told};
use crate::stdin;
use crate::terminal::{self, RawMode};

/// The size of a terminal that nobody looks at.
pub(crate) const TTY_SIZE: TtySize = TtySize { rows: 24, cols: 80 };
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
#[derive(Debug)]
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

/// The exit code of a program whose output nobody reads (SIGPIPE).
pub(crate) const CLOSED_CODE: i32 = 128 + 13;

/// Shows the output of a command as it comes, until it ends.
pub(crate) async fn stream(mut exec: Exec, signals: &mut Signals, part: Part) -> Result<End> {
    let raw_mode = match part.tty && part.stdin {
        true => RawMode::enter().context("cannot switch the terminal to raw mode")?,
        false => None,
    };
    if part.stdin {
        stdin::feed(exec.input(), part.tty)?;
    }
    let raw = part.raw || part.tty;
    let mut outlets = [Outlet::stdout(raw), Outlet::stderr(raw)];
    let end = pump(&mut exec, signals, &mut outlets, part, raw_mode.as_ref()).await;
    if matches!(end, Err(_) | Ok(End::Stopped(_) | End::Closed)) && !part.onlooker {
        kill(&exec.input()).await;
    }
    // Only now are lines ours again.
    drop(raw_mode);
    if outlets.iter().any(Outlet::is_mid_line)
        && !part.tty
        && !matches!(&end, Ok(End::Ended(e)) if is_plain(&e.report))
    {
        use io::Write as _;
        let _ = writeln!(io::stderr());
    }
    match end {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(End::Closed),
        end => end.context("cannot write the output"),
    }
}

fn is_plain(report: &ExitReport) -> bool {
    matches!(report.exit, glasshouse_sandbox::Exit::Code { .. })
}

async fn pump(
    exec: &mut Exec,
    signals: &mut Signals,
    outlets: &mut [Outlet; 2],
    part: Part,
    raw_mode: Option<&RawMode>,
) -> io::Result<End> {
    let input = exec.input();
    let mut end = None;
    let mut sent = None;
    loop {
        let [stdout, stderr] = &mut *outlets;
        let idle = stdout.is_empty() && stderr.is_empty();
        if idle && let Some(end) = end {
            return Ok(end);
        }
        tokio::select! {
            biased;
            told = signals.next() => match told {
                Told::End(signal) if part.onlooker || signals.insist() => return Ok(End::Stopped(signal)),
                Told::End(signal) => {
                    sent = Some(signal);
                    forward(input.clone(), signal);
                }
                Told::Resized => resize(input.clone()),
                Told::Continued => {
                    if let Some(raw_mode) = raw_mode {
                        let _ = raw_mode.again();
                    }
                    resize(input.clone());
                }
            },
            done = stdout.flush(), if !stdout.is_empty() => done?,
            done = stderr.flush(), if !stderr.is_empty() => done?,
            event = exec.next(), if idle => match event {
                Some(ExecEvent::Output(chunk)) => match chunk.stream {
                    OutputStream::Stdout => stdout.push(chunk.bytes),
                    OutputStream::Stderr => stderr.push(chunk.bytes),
                },
                Some(ExecEvent::Gap { from, to }) => stderr.push(gap(from, to).into_bytes()),
                Some(ExecEvent::UpToDate { .. }) => end = Some(End::UpToDate),
                Some(ExecEvent::Ended(report)) => end = Some(ended(exec.id(), report, sent)),
                None => return Err(io::Error::other("the command's stream ended before the command did")),
            },
        }
        if end.is_some() {
            outlets.iter_mut().for_each(Outlet::finish);
        }
    }
}

fn ended(exec: u64, report: ExitReport, signal: Option<i32>) -> End {
    End::Ended(Box::new(Ended { exec, report, signal }))
}

fn gap(from: u64, to: u64) -> String {
    format!("\nglass: {} bytes of output were not kept here (from {from} to {to})\n", to.saturating_sub(from))
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

/// In a task of its own: a box that does not answer must not keep us from hearing the next signal.
fn forward(input: ExecInput, signal: i32) {
    tokio::spawn(async move {
        if let Err(e) = input.signal(signal).await {
            output::say(&format!("cannot pass on signal {signal}: {e}"));
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
