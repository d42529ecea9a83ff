//! The driver: the one owner of a box in this process.
//!
//! Everything that changes a box arrives here as one [`Act`]; the driver passes it on to the guest and writes the
//! record, so that embedded use, the program and every dialect are recorded alike and in one order. Each command has
//! a *relay* beside the driver, which carries its bytes from the guest to the caller and says when it starts and ends.
//!
//! ```text
//!            Exec                    Started{exec}                 Ended{report}
//!  caller ──────────▶ driver ──────▶ relay ─────────▶ driver ─ … ─▶ driver ──▶ caller
//!                       │ opens a stream │ output, credit  (records)      (records)   Ended
//!                       ▼                ▼
//!                     guest            caller
//! ```
//! The way from the guest to the caller is short on purpose: each task that it leads through may be another thread's. Only an end
//! for which the caller has no room yet goes by the relay.

use std::sync::{Arc, Mutex, PoisonError};

use glasshouse_protocol::frame::Kind;
use glasshouse_protocol::{Chunk, ExecInfo, ExecSpec, Exit, ExitReport, OutputStream, Reply, Request};
use glasshouse_trace::ContextChange;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::client::{self, Line, Link, Stream};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::{Exec, ExecEvent, ExecInput, Fed, HeadTail};
use crate::limits::{ACTS, EVENTS, RECORDED_BYTES};
use crate::record::{Record, report_of};
use crate::state::steps::{Done, Steps};

/// What can be asked of a driver, or told to it.
pub(crate) enum Act {
    /// `step`: it is one by itself, and no part of a tool's.
    Exec {
        spec: Box<ExecSpec>,
        step: bool,
        answer: oneshot::Sender<Result<Exec>>,
    },
    Attach {
        exec: u64,
        from: u64,
        follow: bool,
        answer: oneshot::Sender<Result<Exec>>,
    },
    Call {
        request: Request,
        answer: oneshot::Sender<Result<Reply>>,
    },
    /// From a relay: the command runs. The answer comes when that is on record.
    Started {
        exec: u64,
        spec: Box<ExecSpec>,
        step: bool,
        recorded: oneshot::Sender<()>,
    },
    /// From a relay: the command has ended. That is told when it is on record.
    Ended {
        exec: u64,
        report: ExitReport,
        stdout: HeadTail,
        stderr: HeadTail,
        results: HeadTail,
        step: bool,
        told: Told,
    },
    /// A tool has done its work. The answer comes when that is on record.
    Step {
        done: Box<Done>,
        recorded: oneshot::Sender<()>,
    },
    /// A file operation is done.
    File {
        op: &'static str,
        path: String,
        bytes: Option<u64>,
        error: Option<String>,
    },
    /// Values that must not get into the record.
    Hide(Vec<String>),
    /// Something was done to a context. The answer comes when that is on record.
    Context {
        change: ContextChange,
        recorded: oneshot::Sender<()>,
    },
    /// Stdin that was sent to a command.
    Stdin {
        exec: u64,
        bytes: HeadTail,
    },
    /// The box is about to be removed: nothing after this.
    Close {
        why: &'static str,
        answer: oneshot::Sender<()>,
    },
}

/// Who is told that the end of a command is on record.
pub(crate) enum Told {
    /// The caller himself, in the place that he has for it.
    Caller(mpsc::OwnedPermit<ExecEvent>),
    /// The relay, which waits for a caller who is behind.
    Relay(oneshot::Sender<()>),
}

/// The way to a driver.
#[derive(Clone)]
pub(crate) struct Handle {
    acts: mpsc::Sender<Act>,
    pub(crate) line: Line,
}

impl Handle {
    pub(crate) async fn act<T>(&self, act: impl FnOnce(oneshot::Sender<T>) -> Act) -> Result<T> {
        let gone = || Error::new(ErrorKind::Gone, "the box has been closed");
        let (answer, wait) = oneshot::channel();
        self.acts.send(act(answer)).await.map_err(|_| gone())?;
        wait.await.map_err(|_| gone())
    }

    pub(crate) async fn tell(&self, act: Act) {
        // A driver that is gone has nothing to record any more.
        let _ = self.acts.send(act).await;
    }
}

/// Starts the driver of a box.
pub(crate) fn start(line: Line, record: Record, steps: Steps, kept_bytes: u64) -> Handle {
    let (acts, inbox) = mpsc::channel(ACTS);
    let handle = Handle { acts: acts.clone(), line: line.clone() };
    let driver = Driver { line, record, steps, acts: acts.downgrade(), kept_bytes };
    tokio::spawn(driver.run(inbox));
    handle
}

struct Driver {
    line: Line,
    record: Record,
    steps: Steps,
    /// Weak: a driver whose box nobody holds any more ends.
    acts: mpsc::WeakSender<Act>,
    kept_bytes: u64,
}

impl Driver {
    async fn run(mut self, mut inbox: mpsc::Receiver<Act>) {
        while let Some(act) = inbox.recv().await {
            match act {
                Act::Exec { spec, step, answer } => self.exec(spec, step, answer).await,
                Act::Attach { exec, from, follow, answer } => self.attach(exec, from, follow, answer).await,
                Act::Call { request, answer } => self.call(request, answer).await,
                Act::Started { exec, spec, step, recorded } => {
                    self.record.started(exec, &spec).await;
                    // What runs on is a step when it was started; its end is no part of it.
                    if step && spec.background {
                        self.step(Done { exec: Some(exec), ..Done::default() }).await;
                    }
                    let _ = recorded.send(());
                }
                Act::Ended { exec, report, stdout, stderr, results, step, told } => {
                    self.record.results(exec, results).await;
                    self.record.ended(exec, report.clone(), stdout, stderr).await;
                    if step {
                        let wall_us = report.wall_us;
                        self.step(Done { exec: Some(exec), wall_us, ..Done::default() }).await;
                    }
                    match told {
                        Told::Caller(place) => drop(place.send(ExecEvent::Ended(report))),
                        Told::Relay(recorded) => drop(recorded.send(())),
                    }
                    // In the same breath: a program may end with its command, and what the guest was not told would be put on record
                    // again. A guest that is gone need not know.
                    if let Ok(link) = self.line.link().await {
                        let _ = link.tell(&Request::Recorded { exec }).await;
                    }
                }
                Act::Step { done, recorded } => {
                    self.take_step(*done).await;
                    let _ = recorded.send(());
                }
                Act::File { op, path, bytes, error } => self.record.file(op, &path, bytes, error).await,
                Act::Hide(values) => self.record.hide(values.iter()),
                Act::Context { change, recorded } => {
                    self.record.context(change).await;
                    let _ = recorded.send(());
                }
                Act::Stdin { exec, bytes } => self.record.stdin(exec, bytes).await,
                Act::Close { why, answer } => {
                    self.record.box_ended(why).await;
                    let _ = answer.send(());
                    return tell_the_rest(inbox).await;
                }
            }
        }
    }

    /// A command of a caller's is done.
    async fn step(&mut self, done: Done) {
        if self.steps.of_commands() {
            self.take_step(done).await;
        }
    }

    /// Nothing else is begun before the box was looked at: what a later one does is no part of this step.
    async fn take_step(&mut self, done: Done) {
        let (tell, told) = oneshot::channel();
        let settled = async { told.await.ok().map(|changes| self.record.settle(changes)) };
        let (taken, settled) = tokio::join!(self.steps.take(done, tell), settled);
        self.record.step(taken, settled).await;
    }

    async fn exec(&mut self, spec: Box<ExecSpec>, step: bool, answer: oneshot::Sender<Result<Exec>>) {
        let Some(acts) = self.acts.upgrade() else { return };
        self.record.hide(spec.env.iter().map(|(_, value)| value));
        match self.open(&Request::Exec(spec.clone())).await {
            Ok((link, stream)) => {
                let kept_bytes = spec.kept_output_bytes.unwrap_or(self.kept_bytes);
                let relay = Relay::new(link, stream, Some(Starter { spec, step, acts }), kept_bytes);
                tokio::spawn(relay.run(answer));
            }
            Err(e) => {
                let _ = answer.send(Err(e));
            }
        }
    }

    async fn attach(&mut self, exec: u64, from: u64, follow: bool, answer: oneshot::Sender<Result<Exec>>) {
        match self.open(&Request::Attach { exec, from, follow }).await {
            Ok((link, stream)) => {
                let relay = Relay::new(link, stream, None, self.kept_bytes);
                tokio::spawn(relay.run(answer));
            }
            Err(e) => {
                let _ = answer.send(Err(e));
            }
        }
    }

    async fn open(&self, request: &Request) -> Result<(Link, Stream)> {
        let link = self.line.link().await?;
        let stream = link.open(request).await?;
        Ok((link, stream))
    }

    /// A short question, asked beside the loop: a silent guest holds up nobody else.
    async fn call(&mut self, request: Request, answer: oneshot::Sender<Result<Reply>>) {
        match &request {
            Request::Signal { exec, signal, .. } => self.record.signal(*exec, *signal).await,
            Request::Kill { exec } => self.record.signal(*exec, 9).await,
            _ => {}
        }
        let line = self.line.clone();
        tokio::spawn(async move {
            let asked = async { line.link().await?.call(&request).await };
            let _ = answer.send(asked.await);
        });
    }
}

/// Ends that came too late for the record are told to their callers all the same.
async fn tell_the_rest(mut inbox: mpsc::Receiver<Act>) {
    inbox.close();
    while let Some(act) = inbox.recv().await {
        if let Act::Ended { told: Told::Caller(place), report, .. } = act {
            drop(place.send(ExecEvent::Ended(report)));
        }
    }
}

/// Learns what must not get into the record, and puts on record how commands ended that nobody was there to see.
pub(crate) async fn collect_unrecorded(link: &Link, record: &mut Record) -> Result<()> {
    let execs: Vec<ExecInfo> = match link.call(&Request::Unrecorded).await? {
        Reply::Unrecorded { execs, secrets } => {
            record.hide(secrets.iter());
            execs
        }
        other => return Err(client::unexpected(&other)),
    };
    for info in execs {
        let Some(report) = report_of(&info) else { continue };
        let mut stream = link.open(&Request::Attach { exec: info.exec, from: 0, follow: false }).await?;
        let (mut stdout, mut stderr, mut results) = (recorded(), recorded(), recorded());
        while let Some(frame) = stream.next().await {
            match frame.kind {
                Kind::Stdout | Kind::Stderr | Kind::Results => {
                    let Ok((_, bytes)) = frame.output() else { break };
                    match frame.kind {
                        Kind::Stdout => stdout.push(bytes),
                        Kind::Stderr => stderr.push(bytes),
                        _ => results.push(bytes),
                    }
                    stream.grant(bytes.len() as u64).await?;
                }
                Kind::Reply => match client::understand(&frame) {
                    Ok(Reply::Started { .. } | Reply::Gap { .. }) => {}
                    _ => break,
                },
                _ => {}
            }
        }
        record.results(info.exec, results).await;
        record.ended(info.exec, report, stdout, stderr).await;
    }
    Ok(())
}

fn recorded() -> HeadTail {
    HeadTail::new(RECORDED_BYTES as u64)
}

/// What was started, and whom to tell of it.
struct Starter {
    spec: Box<ExecSpec>,
    step: bool,
    acts: mpsc::Sender<Act>,
}

/// Carries one command's bytes.
struct Relay {
    link: Link,
    stream: Stream,
    /// None for a reader that came later.
    starter: Option<Starter>,
    background: bool,
    kept_bytes: u64,
    room: Arc<Semaphore>,
    fed: Fed,
    exec: u64,
    stdout: HeadTail,
    stderr: HeadTail,
    results: HeadTail,
}

impl Relay {
    fn new(link: Link, stream: Stream, starter: Option<Starter>, kept_bytes: u64) -> Relay {
        let background = starter.as_ref().is_none_or(|starter| starter.spec.background);
        let room = ExecInput::first_room();
        let fed = Arc::new(Mutex::new(recorded()));
        let (stdout, stderr, results) = (recorded(), recorded(), recorded());
        Relay { link, stream, starter, background, kept_bytes, room, fed, exec: 0, stdout, stderr, results }
    }

    async fn run(mut self, answer: oneshot::Sender<Result<Exec>>) {
        let (events, receiver) = mpsc::channel(EVENTS);
        let first = match self.stream.reply().await {
            Err(e) => {
                let _ = answer.send(Err(e));
                return;
            }
            Ok(reply) => reply,
        };
        let exec = match &first {
            Reply::Started { exec, .. } | Reply::Ended { exec, .. } => *exec,
            other => {
                let _ = answer.send(Err(client::unexpected(other)));
                return;
            }
        };
        self.exec = exec;
        if let Some(Starter { spec, step, acts }) = &self.starter {
            let (recorded, wait) = oneshot::channel();
            let started = Act::Started { exec, spec: spec.clone(), step: *step, recorded };
            let told = acts.send(started).await.is_ok();
            if told && *step && spec.background {
                // It is a step as soon as it runs: whoever goes on after it finds it on record.
                let _ = wait.await;
            }
        }
        let input = ExecInput::new(
            exec,
            self.link.clone(),
            self.stream.sender(),
            self.room.clone(),
            self.fed.clone(),
        );
        let mut made = Exec::new(exec, receiver, input, self.kept_bytes);
        if matches!(first, Reply::Ended { .. }) {
            made = made.stillborn();
        }
        let unwanted = answer.send(Ok(made)).is_err();
        if let Reply::Ended { report, .. } = first {
            return self.end(report, &events).await;
        }
        let mut wanted = !unwanted;
        if !wanted {
            self.given_up().await;
        }
        let report = loop {
            tokio::select! {
                biased;
                frame = self.stream.next() => match frame {
                    None => break self.gone(),
                    Some(frame) => match self.frame(frame, &events, &mut wanted).await {
                        Some(report) => break report,
                        None => continue,
                    },
                },
                () = events.closed(), if wanted => {
                    wanted = false;
                    self.given_up().await;
                }
            }
        };
        if let Some(report) = report {
            self.end(report, &events).await;
        }
    }

    /// Handles a frame. `Some`: it was the last one, with a report if the command has ended.
    async fn frame(
        &mut self,
        frame: glasshouse_protocol::Frame,
        events: &mpsc::Sender<ExecEvent>,
        wanted: &mut bool,
    ) -> Option<Option<ExitReport>> {
        let event = match frame.kind {
            Kind::Stdout | Kind::Stderr | Kind::Results => {
                let (offset, bytes) = frame.output().ok()?;
                let (stream, recorded) = match frame.kind {
                    Kind::Stdout => (OutputStream::Stdout, &mut self.stdout),
                    Kind::Stderr => (OutputStream::Stderr, &mut self.stderr),
                    _ => (OutputStream::Results, &mut self.results),
                };
                recorded.push(bytes);
                ExecEvent::Output(Chunk { stream, offset, bytes: bytes.to_vec() })
            }
            Kind::Credit => {
                let room = frame.credit().unwrap_or(0).min(Semaphore::MAX_PERMITS as u64 / 2);
                let now = self.room.available_permits() as u64;
                // What a guest grants beyond any sense is not kept.
                self.room.add_permits(room.min((1 << 30_u64) - now.min(1 << 30)) as usize);
                return None;
            }
            Kind::Reply => match client::understand(&frame) {
                Ok(Reply::Gap { from, to }) => ExecEvent::Gap { from, to },
                Ok(Reply::UpToDate { offset }) => {
                    let _ = events.send(ExecEvent::UpToDate { offset }).await;
                    return Some(None);
                }
                Ok(Reply::Ended { report, .. }) => return Some(Some(report)),
                _ => return None,
            },
            _ => return None,
        };
        let bytes = match &event {
            ExecEvent::Output(chunk) => chunk.bytes.len() as u64,
            _ => 0,
        };
        if *wanted && events.send(event).await.is_err() {
            *wanted = false;
            self.given_up().await;
        }
        if bytes > 0 {
            let _ = self.stream.grant(bytes).await;
        }
        None
    }

    /// Nobody listens any more: a command of the foreground ends with its caller.
    async fn given_up(&self) {
        if !self.background {
            let _ = self.link.call(&Request::Kill { exec: self.exec }).await;
        }
    }

    fn gone(&self) -> Option<ExitReport> {
        let why = self.link.closed().unwrap_or_else(|| "the link was closed".into());
        let mut report = ExitReport::never_ran(Exit::BoxGone { why });
        (report.stdout_bytes, report.stderr_bytes) = (self.stdout.total(), self.stderr.total());
        Some(report)
    }

    async fn end(self, report: ExitReport, events: &mpsc::Sender<ExecEvent>) {
        self.room.close();
        if let Some(Starter { spec, step, acts }) = &self.starter {
            let fed =
                std::mem::replace(&mut *self.fed.lock().unwrap_or_else(PoisonError::into_inner), recorded());
            if fed.total() > 0 {
                let _ = acts.send(Act::Stdin { exec: self.exec, bytes: fed }).await;
            }
            let (told, wait) = match events.clone().try_reserve_owned() {
                Ok(place) => (Told::Caller(place), None),
                Err(_) => {
                    let (recorded, wait) = oneshot::channel();
                    (Told::Relay(recorded), Some(wait))
                }
            };
            let (stdout, stderr, results) = (self.stdout, self.stderr, self.results);
            let step = *step && !spec.background;
            let exec = self.exec;
            let act = Act::Ended { exec, report: report.clone(), stdout, stderr, results, step, told };
            match (acts.send(act).await, wait) {
                (Ok(()), None) => return,
                (Ok(()), Some(wait)) => drop(wait.await),
                // A driver that is gone records nothing, and tells nobody.
                (Err(_), _) => {}
            }
        }
        let _ = events.send(ExecEvent::Ended(report)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_that_comes_when_the_box_is_closed_is_told_as_it_was() {
        let (acts, inbox) = mpsc::channel(ACTS);
        let (events, mut receiver) = mpsc::channel(EVENTS);
        let report = ExitReport::never_ran(Exit::Code { code: 7 });
        let told = Told::Caller(events.try_reserve_owned().expect("there is room"));
        let (stdout, stderr, results) = (recorded(), recorded(), recorded());
        let act = Act::Ended { exec: 1, report: report.clone(), stdout, stderr, results, step: false, told };
        assert!(acts.send(act).await.is_ok());
        tell_the_rest(inbox).await;
        assert_eq!(receiver.recv().await, Some(ExecEvent::Ended(report)));
        assert!(acts.is_closed(), "and nothing comes after it");
    }
}
