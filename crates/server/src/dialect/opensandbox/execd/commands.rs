//! The commands of a box that were started through the protocol: by their ids, while they run and for a while after.
//!
//! A command carries its id as its label in the box. So a server that was started anew finds those that run in the
//! background, and those that ended there meanwhile.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use glasshouse_sandbox::{
    Error, ErrorKind, Exec, ExecEvent, ExecInfo, ExecSpec, ExecState, Exit, ExitReport, OutputStream,
    Program, Sandbox,
};
use tokio::sync::{mpsc, oneshot, watch};

use super::environment;
use super::stream::{self, Event, Lines};
use crate::clock::now_ms;
use crate::limits::{COMMANDS_KEPT, OUTPUT_PIECES, PIECE_BYTES, PING};

/// The commands of one box. Copies are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Commands {
    known: Arc<Mutex<Known>>,
    /// The box has had a file of variables, which has to be read for each of them.
    variables: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Known {
    by_id: HashMap<String, Arc<Command>>,
    /// Those that have ended, the first to be forgotten first.
    ended: VecDeque<String>,
}

/// One command.
#[derive(Debug)]
pub(crate) struct Command {
    /// Its number in the box.
    pub(super) exec: u64,
    /// What it runs, in words.
    pub(super) text: String,
    pub(super) background: bool,
    pub(super) started_ms: u64,
    /// It could not be started.
    pub(super) is_stillborn: bool,
    end: watch::Sender<Option<End>>,
}

/// How a command ended.
#[derive(Debug, Clone)]
pub(crate) struct End {
    pub(crate) finished_ms: u64,
    pub(crate) exit_code: Option<i32>,
    /// In words.
    pub(crate) how: String,
    pub(crate) success: bool,
    /// It ended because its box did.
    pub(crate) box_gone: bool,
}

impl Command {
    fn new(exec: u64, text: String, background: bool, started_ms: u64, is_stillborn: bool) -> Arc<Command> {
        let end = watch::Sender::new(None);
        Arc::new(Command { exec, text, background, started_ms, is_stillborn, end })
    }

    /// Its number in the box.
    pub(crate) fn exec(&self) -> u64 {
        self.exec
    }

    /// How it ended, if it has.
    pub(crate) fn end(&self) -> Option<End> {
        self.end.borrow().clone()
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) -> End {
        let mut end = self.end.subscribe();
        let found = end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        // The sender is ours, and cannot be gone.
        found.unwrap_or_else(|| {
            End::of(&ExitReport::never_ran(Exit::BoxGone { why: String::new() }), now_ms())
        })
    }

    fn has_ended(&self, end: End) {
        self.end.send_replace(Some(end));
    }
}

impl End {
    fn of(report: &ExitReport, finished_ms: u64) -> End {
        End {
            finished_ms,
            exit_code: stream::exit_code(&report.exit),
            how: report.exit.to_string(),
            success: report.exit.success(),
            box_gone: matches!(report.exit, Exit::BoxGone { .. }),
        }
    }
}

impl Commands {
    /// Starts a command whose output is only kept, and read later.
    pub(crate) async fn start(
        &self,
        sandbox: &Sandbox,
        id: &str,
        spec: ExecSpec,
    ) -> Result<Arc<Command>, Error> {
        self.begin_and_follow(sandbox, id, spec, None).await
    }

    /// Starts a command. Pieces of the stream of its events come from what is given back; whether somebody takes them or not,
    /// the command goes on.
    pub(crate) async fn stream(
        &self,
        sandbox: &Sandbox,
        id: &str,
        spec: ExecSpec,
    ) -> Result<mpsc::Receiver<Bytes>, Error> {
        let (pieces, receiver) = mpsc::channel(OUTPUT_PIECES);
        self.begin_and_follow(sandbox, id, spec, Some(pieces)).await?;
        Ok(receiver)
    }

    /// Both in one task: a caller who goes away in this moment does not take the command with him.
    async fn begin_and_follow(
        &self,
        sandbox: &Sandbox,
        id: &str,
        spec: ExecSpec,
        pieces: Option<mpsc::Sender<Bytes>>,
    ) -> Result<Arc<Command>, Error> {
        let (commands, sandbox, id) = (self.clone(), sandbox.clone(), id.to_owned());
        let (begun, wait) = oneshot::channel();
        tokio::spawn(async move {
            match commands.begin(&sandbox, &id, spec).await {
                Ok((command, exec)) => {
                    let _ = begun.send(Ok(command.clone()));
                    follow(exec, command, commands.known, id, pieces).await;
                }
                Err(e) => drop(begun.send(Err(e))),
            }
        });
        wait.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Failed, "the command was lost sight of")))
    }

    /// Whether commands of this box have to be given variables that a file names.
    pub(super) fn have_variables(&self) -> bool {
        self.variables.load(Ordering::Relaxed)
    }

    /// Starts a command. If that may be done only where there is no file of variables, and there is one, the file is read.
    pub(crate) async fn exec(&self, sandbox: &Sandbox, spec: ExecSpec) -> Result<Exec, Error> {
        if spec.only_without.is_none() {
            return sandbox.exec(spec).await;
        }
        match sandbox.exec(spec.clone()).await {
            // An older guest does not know the condition.
            Err(e) if matches!(e.kind(), ErrorKind::Exists | ErrorKind::Invalid) => {
                self.variables.store(true, Ordering::Relaxed);
                sandbox.exec(environment::with_file(sandbox, spec).await?).await
            }
            started => started,
        }
    }

    async fn begin(
        &self,
        sandbox: &Sandbox,
        id: &str,
        spec: ExecSpec,
    ) -> Result<(Arc<Command>, Exec), Error> {
        let text = match &spec.program {
            Program::Shell(line) => line.clone(),
            Program::Code(code) => code.code.clone(),
            Program::Argv(words) => match words.as_slice() {
                [_, flag, line] if flag == "-c" => line.clone(),
                words => words.join(" "),
            },
        };
        let background = spec.background;
        let exec = self.exec(sandbox, spec).await?;
        let command = Command::new(exec.id(), text, background, now_ms(), exec.is_stillborn());
        locked(&self.known).by_id.insert(id.to_owned(), command.clone());
        Ok((command, exec))
    }

    /// A command, by its id.
    pub(crate) async fn find(&self, sandbox: &Sandbox, id: &str) -> Result<Option<Arc<Command>>, Error> {
        if let Some(command) = locked(&self.known).by_id.get(id) {
            return Ok(Some(command.clone()));
        }
        let labelled = |info: &ExecInfo| info.label.as_deref() == Some(id);
        // A box that was put back has run its entrypoint before.
        let Some(info) = sandbox.execs().await?.into_iter().rfind(labelled) else { return Ok(None) };
        self.adopt(sandbox, id, info).await.map(Some)
    }

    /// Takes up a command that was started before this server was.
    async fn adopt(&self, sandbox: &Sandbox, id: &str, info: ExecInfo) -> Result<Arc<Command>, Error> {
        let text = info.command.last().cloned().unwrap_or_default();
        let command = Command::new(info.exec, text, info.background, info.started_ms, false);
        let exec = match &info.state {
            ExecState::Ended(report) => {
                command.has_ended(End::of(report, info.started_ms + report.wall_us / 1000));
                None
            }
            ExecState::Running => Some(sandbox.attach(info.exec, info.output_bytes, true).await?),
        };
        {
            let mut known = locked(&self.known);
            // Somebody else may have found it in the same moment.
            if let Some(command) = known.by_id.get(id) {
                return Ok(command.clone());
            }
            known.by_id.insert(id.to_owned(), command.clone());
        }
        match exec {
            Some(exec) => {
                drop(tokio::spawn(follow(exec, command.clone(), self.known.clone(), id.to_owned(), None)))
            }
            None => retire(&self.known, id.to_owned()),
        }
        Ok(command)
    }
}

/// Reads all that a command says, to its end, and passes it on for as long as somebody listens.
async fn follow(
    mut exec: Exec,
    command: Arc<Command>,
    known: Arc<Mutex<Known>>,
    id: String,
    mut pieces: Option<mpsc::Sender<Bytes>>,
) {
    let (mut stdout, mut stderr) = (Lines::default(), Lines::default());
    let mut piece = Vec::new();
    stream::put(&mut piece, Event { kind: "init", text: Some(&id), ..Event::default() });
    pass_on(&mut pieces, &mut piece).await;
    let mut ping = tokio::time::interval(PING);
    ping.reset();
    loop {
        let event = tokio::select! {
            event = exec.next() => event,
            _ = ping.tick(), if pieces.is_some() => {
                stream::put(&mut piece, Event { kind: "ping", text: Some("pong"), ..Event::default() });
                pass_on(&mut pieces, &mut piece).await;
                continue;
            }
        };
        let report = match event {
            Some(ExecEvent::Output(chunk)) => {
                let (lines, kind) = match chunk.stream {
                    OutputStream::Stdout => (&mut stdout, "stdout"),
                    OutputStream::Stderr => (&mut stderr, "stderr"),
                    OutputStream::Results => continue,
                };
                if pieces.is_some() {
                    lines.push(&chunk.bytes, |text| put_line(&mut piece, kind, text));
                    pass_on(&mut pieces, &mut piece).await;
                    ping.reset();
                }
                continue;
            }
            Some(ExecEvent::Gap { .. } | ExecEvent::Result(_)) => continue,
            Some(ExecEvent::Ended(report)) => report,
            Some(ExecEvent::UpToDate { .. }) | None => {
                ExitReport::never_ran(Exit::BoxGone { why: "its end was not told".to_owned() })
            }
        };
        stdout.finish(|text| put_line(&mut piece, "stdout", text));
        stderr.finish(|text| put_line(&mut piece, "stderr", text));
        stream::put_end(&mut piece, &report);
        // Whoever asks after the last event has to find that it ended.
        command.has_ended(End::of(&report, now_ms()));
        retire(&known, id);
        pass_on(&mut pieces, &mut piece).await;
        return;
    }
}

pub(super) fn put_line(piece: &mut Vec<u8>, kind: &str, text: &str) {
    stream::put(piece, Event { kind, text: Some(text), ..Event::default() });
}

/// Sends what there is, or drops it if nobody listens any more.
pub(super) async fn pass_on(pieces: &mut Option<mpsc::Sender<Bytes>>, piece: &mut Vec<u8>) {
    let mut bytes = Bytes::from(std::mem::take(piece));
    while let Some(sender) = pieces
        && !bytes.is_empty()
    {
        let next = bytes.split_to(bytes.len().min(PIECE_BYTES));
        if sender.send(next).await.is_err() {
            *pieces = None;
        }
    }
}

/// A command has ended: those that ended long ago are forgotten.
fn retire(known: &Mutex<Known>, id: String) {
    let mut known = locked(known);
    known.ended.push_back(id);
    while known.ended.len() > COMMANDS_KEPT {
        if let Some(old) = known.ended.pop_front() {
            known.by_id.remove(&old);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
