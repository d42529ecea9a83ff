//! Replay: the steps of a trajectory once more, in a box, and the first one that goes another way.
//!
//! ```text
//!  trajectory ─▶ a box like the one it began with ─▶ step by step: do it ─▶ read it off the box's own record
//!                                                                               │
//!                                   the recorded step ─▶ compare (trace) ◀──────┘
//! ```
//! What a step did this time is read from the record of this time, so that both sides went through the same bounds and
//! the same redaction. A replayed box records steps; only then are files and processes compared.
//!
//! A plain command of the trajectory is the tool `exec`, an operation of a caller on files is `file`; everything else is
//! a tool of the box, by whatever name its recorder had for it. What the record does not hold cannot be done again, and
//! is refused by name: what held a secret, and what was copied in from outside and was too large to be kept. That values of
//! variables are missing is told.

mod asked;
mod ending;
mod jump;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use glasshouse_protocol::limits::KEPT_OUTPUT_BYTES;
use glasshouse_protocol::{Code, ContextSpec, Program};
use glasshouse_trace::trajectory::{
    Comparer, Divergence, FromTrace, Ignored, Observed, REDACTED, RESTARTS, SIGNALS_BEFORE, Step, Strictness,
    Trajectory, UNREADABLE,
};
use glasshouse_trace::{Blobs, Position, Reader, SecretPattern};
use serde_json::{Map, Value};

use self::asked::{FileStep, exec_of};
use self::ending::{Ending, contexts, is_ended_by_others, signals};
pub use self::jump::Jumped;
use crate::error::{Error, ErrorKind, Result};
use crate::files::FILE_STEP;
use crate::limits::{MEMORY_BYTES, PIDS, REDACT_PATTERNS};
use crate::sandbox::Sandbox;
use crate::sandboxes::{Sandboxes, new_id};
use crate::spec::{Image, Recording, RuntimeKind, SandboxSpec};
use crate::task::TaskSpec;
use crate::tools;

/// How a trajectory is replayed.
#[derive(Debug, Clone, Default)]
pub struct ReplayOptions {
    /// Only the first so many steps.
    pub until: Option<usize>,
    /// How much counts.
    pub strictness: Strictness,
    /// Go on after a step that went another way. What follows may differ because of it.
    pub keep_going: bool,
}

impl ReplayOptions {
    /// How many steps of a trajectory are done.
    fn steps_of(&self, trajectory: &Trajectory) -> usize {
        self.until.unwrap_or(usize::MAX).min(trajectory.steps.len())
    }
}

/// What came of a replay.
#[derive(Debug, Clone, Default)]
pub struct Replayed {
    /// Steps of the trajectory.
    pub total: usize,
    /// Steps that were done.
    pub done: usize,
    /// Steps that went another way, the first one first.
    pub divergences: Vec<Divergence>,
    /// Noise that was overlooked, by the rule that says so.
    pub ignored: Vec<Ignored>,
    /// What was recorded and could not be compared, or the other way round, in words.
    pub notes: Vec<String>,
}

impl Replayed {
    /// Whether every step that was done went the same way.
    pub fn is_same(&self) -> bool {
        self.divergences.is_empty()
    }
}

/// One step that is done.
#[derive(Debug)]
pub struct StepDone<'a> {
    /// Its number, from 1.
    pub number: usize,
    /// How many there are.
    pub of: usize,
    /// What was to be done.
    pub step: &'a Step,
    /// How it went another way, if it did.
    pub divergence: Option<&'a Divergence>,
}

/// The box that a trajectory wants to begin in.
#[derive(Debug, Clone)]
pub enum Ground {
    /// A box of this kind.
    Box(Box<SandboxSpec>),
    /// A box for a task. Whoever makes it says where git finds its logins.
    Task(Box<SandboxSpec>, Box<TaskSpec>),
}

impl Ground {
    /// What a trajectory says about where it began. `like` is what it says nothing about.
    pub fn of(trajectory: &Trajectory, like: SandboxSpec) -> Result<Ground> {
        let recording = match like.recording {
            None | Some(Recording::Commands) if like.runtime != RuntimeKind::Process => {
                Some(Recording::Steps)
            }
            as_said => as_said,
        };
        let recorded = trajectory.profile.as_ref().map(|profile| profile.deterministic);
        let deterministic = like.deterministic.or(recorded);
        let mut spec = SandboxSpec { recording, deterministic, ..like };
        if let Some(base) = &trajectory.base {
            surround(&mut spec, &base.extra);
        }
        let task = trajectory.task.as_ref();
        // Steps after a restore stand on that snapshot, whatever the box was made for.
        let restored = trajectory
            .base
            .as_ref()
            .is_some_and(|base| base.digest.is_none() && base.image.starts_with("snapshot:"));
        if let Some(task) = task.filter(|_| !restored)
            && let (Some(repo), Some(commit)) = (&task.repo, &task.commit)
        {
            let dir = task.extra.get("dir").and_then(Value::as_str).map(str::to_owned);
            if let Some(image) = &task.image {
                spec.image = image.parse()?;
            }
            let task = TaskSpec {
                repo: repo.clone(),
                commit: commit.clone(),
                setup: task.setup.clone(),
                test: task.test.clone(),
                dir,
                ..TaskSpec::default()
            };
            return Ok(Ground::Task(Box::new(spec), Box::new(task)));
        }
        let image =
            trajectory.base.as_ref().map(|base| base.image.as_str()).filter(|image| !image.is_empty());
        if let Some(image) = image.or(task.and_then(|task| task.image.as_deref())) {
            spec.image = image.parse::<Image>()?;
        }
        Ok(Ground::Box(Box::new(spec)))
    }
}

/// Gives a box what is on record of the one that a trajectory began in, where nobody said otherwise. Limits are taken
/// if they are tighter than what every box has: a stranger's file cannot ask for more.
fn surround(spec: &mut SandboxSpec, on_record: &Map<String, Value>) {
    let limit = |name: &str| on_record.get("limits").and_then(|limits| limits.get(name)?.as_u64());
    let tighter = |name: &str, most: u64| limit(name).filter(|amount| *amount < most);
    let limits = &mut spec.limits;
    limits.timeout = limits.timeout.or(limit("timeout_ms").map(Duration::from_millis));
    limits.output_bytes = limits.output_bytes.or(tighter("output_bytes", KEPT_OUTPUT_BYTES));
    // What was not to be on record then is not to be on record now, and would differ if it were.
    for pattern in on_record.get("redact").and_then(Value::as_array).into_iter().flatten() {
        if let Some(pattern) = pattern.as_str().filter(|pattern| can_redact(&spec.redact, pattern)) {
            spec.redact.push(pattern.to_owned());
        }
    }
    if spec.runtime == RuntimeKind::Process {
        // Users, places and limits of a box are those of the host there.
        return;
    }
    let text = |name: &str| text_of(on_record, name).map(str::to_owned);
    spec.user = spec.user.take().or_else(|| text("user"));
    spec.cwd = spec.cwd.take().or_else(|| text("cwd"));
    spec.read_only |= on_record.get("read_only").and_then(Value::as_bool).unwrap_or_default();
    limits.pids = limits.pids.or(tighter("pids", PIDS));
    limits.disk_bytes = limits.disk_bytes.or(tighter("disk_bytes", MEMORY_BYTES));
    limits.memory_bytes = limits.memory_bytes.or(tighter("memory_bytes", MEMORY_BYTES));
    limits.cpus = limits.cpus.or(limit("cpu_milli").map(|milli| milli as f64 / 1000.0));
}

fn text_of<'a>(on_record: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    on_record.get(name).and_then(Value::as_str)
}

/// Whether a pattern on record can be taken over. One that matches itself was replaced, and means nothing any more.
fn can_redact(known: &[String], pattern: &str) -> bool {
    known.len() < REDACT_PATTERNS
        && !known.iter().any(|other| other == pattern)
        && !pattern.contains("[redacted]")
        && SecretPattern::parse(pattern).is_ok()
}

/// The state that a trajectory began with, where that was not its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beginning {
    /// The digest of its files, if it is on record.
    pub digest: Option<String>,
    /// The box or the snapshot that it was forked from.
    pub of: String,
}

impl Beginning {
    /// What a trajectory says of it.
    pub fn of(trajectory: &Trajectory) -> Option<Beginning> {
        let base = trajectory.base.as_ref()?;
        let of = text_of(&base.extra, "forked_from").or_else(|| base.image.strip_prefix("snapshot:"))?;
        Some(Beginning { digest: base.digest.clone(), of: of.to_owned() })
    }
}

/// A trajectory that is being replayed in a box.
pub struct Replay<'a> {
    house: Sandboxes,
    sandbox: Sandbox,
    /// The commands in the background, by their steps.
    background: BTreeMap<usize, u64>,
    trajectory: &'a Trajectory,
    options: ReplayOptions,
    comparer: Comparer,
    record: Record,
    replayed: Replayed,
}

impl Sandboxes {
    /// Begins to replay a trajectory in a box. A box whose files differ from those that the trajectory began with is
    /// an error that says so: nothing that follows would mean anything.
    pub async fn replay<'a>(
        &self,
        sandbox: &Sandbox,
        trajectory: &'a Trajectory,
        options: ReplayOptions,
    ) -> Result<Replay<'a>> {
        let comparer = Comparer::new(options.strictness, &trajectory.rules).map_err(wrong)?;
        let mut replayed = Replayed { total: trajectory.steps.len(), ..Replayed::default() };
        let recorded = trajectory.base.as_ref().and_then(|base| base.digest.as_ref());
        if sandbox.info().recording == Recording::Commands {
            replayed.notes.push(format!(
                "files and processes are not compared: box {} does not record steps (`--record steps`)",
                sandbox.id()
            ));
        } else if let Some(expected) = recorded.filter(|_| options.strictness != Strictness::OutputOnly) {
            let actual = self.digest(sandbox.id()).await?.digest;
            if actual != *expected {
                let message = format!(
                    "box {} does not begin as the trajectory does: its files have the digest {actual} and not \
                     {expected}; `--output-only` compares only what is written",
                    sandbox.id()
                );
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        }
        let files = |step: &Step| step.observed.state.is_some();
        if !trajectory.steps.is_empty() && !trajectory.steps.iter().any(files) {
            let note = "the trajectory does not say what files were like: only what it does say is compared";
            replayed.notes.push(note.to_owned());
        }
        let names = trajectory.base.as_ref().and_then(|base| base.extra.get("env_names"));
        if let Some(names) = names.and_then(Value::as_array) {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            replayed.notes.push(format!("values of variables are on no record: {}", names.join(" ")));
        }
        if let Some((index, why)) = impossible(sandbox, &trajectory.steps[..options.steps_of(trajectory)]) {
            let message = format!("step {} {why}; nothing was replayed", index + 1);
            return Err(Error::new(why.kind(), message));
        }
        // What the box did before is no part of this.
        let record = Record::open_at_end(self, sandbox.id())?;
        let (house, sandbox) = (self.clone(), sandbox.clone());
        let background = BTreeMap::new();
        Ok(Replay { house, sandbox, background, trajectory, options, comparer, record, replayed })
    }
}

/// The first step that cannot be done, and why; what is said of it follows its number.
fn impossible(sandbox: &Sandbox, steps: &[Step]) -> Option<(usize, Error)> {
    let known: Vec<String> = sandbox.tools().into_iter().map(|tool| tool.name).collect();
    let check = |step: &Step| {
        let name = tools::canonical(&step.tool, Value::Object(step.params.clone())).0;
        let possible = match step.tool.as_str() {
            _ if step.extra.contains_key(UNREADABLE) => Err(unreadable(&step.extra[UNREADABLE])),
            tool if step.extra.get(REDACTED) == Some(&Value::Bool(true)) && !sandbox.is_no_action(tool) => {
                Err(redacted())
            }
            "exec" => exec_of(&step.params).map(drop),
            FILE_STEP => FileStep::of(&step.params).map(drop),
            tool if sandbox.is_no_action(tool) || known.contains(&name) || known.contains(&step.tool) => {
                Ok(())
            }
            // It was not there then, either, and the answer said so.
            _ if step.observed.exit_code == Some(2) && step.observed.error.is_some() => Ok(()),
            tool => {
                let message = format!("wants the tool {tool:?}, which box {} does not have", sandbox.id());
                Err(Error::new(ErrorKind::Invalid, message))
            }
        };
        possible.and_then(|()| done_besides(step)).map_err(|e| match step.tool.as_str() {
            tool @ ("exec" | FILE_STEP) => Error::new(e.kind(), format!("({tool}): {e}")),
            _ => e,
        })
    };
    steps.iter().enumerate().find_map(|(index, step)| check(step).err().map(|why| (index, why)))
}

/// Refuses what was done beside a step, if nobody understands it.
fn done_besides(step: &Step) -> Result<()> {
    Ending::of(step, None)?;
    contexts(step)?;
    signals(step.extra.get(SIGNALS_BEFORE)).map(drop)
}

/// That nobody knows what a step was asked for.
fn unreadable(why: &Value) -> Error {
    let why = why.as_str().unwrap_or("nobody says why");
    Error::new(
        ErrorKind::Unsupported,
        format!("cannot be done again: what it was asked for cannot be read ({why})"),
    )
}

/// That what a step was asked for is on no record. With what stands for a secret in its place it would be another step.
fn redacted() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "cannot be done again: what it was asked for held a secret, and is on record as `[redacted]`",
    )
}

impl Replay<'_> {
    /// Does what is left, and tells of each step. Stops at the first one that goes another way, unless it is to go on.
    pub async fn run(mut self, mut tell: impl FnMut(StepDone<'_>)) -> Result<Replayed> {
        let until = self.options.steps_of(self.trajectory);
        for (index, step) in self.trajectory.steps.iter().take(until).enumerate() {
            let number = index + 1;
            let actual = self.step(number, step).await?;
            self.replayed.done = number;
            let expected = &step.observed;
            let divergence = match &actual {
                Some(actual) => self.comparer.observed(number as u64, expected, actual),
                None => None,
            };
            tell(StepDone { number, of: until, step, divergence: divergence.as_ref() });
            let stop = divergence.is_some() && !self.options.keep_going;
            self.replayed.divergences.extend(divergence);
            if stop {
                break;
            }
        }
        self.replayed.ignored = self.comparer.ignored().to_vec();
        Ok(self.replayed)
    }

    /// Does a step. What was seen of it; `None` if there is nothing to be done in a box.
    async fn step(&mut self, number: usize, step: &Step) -> Result<Option<Observed>> {
        let failed = |e: Error| Error::new(e.kind(), format!("step {number} ({}): {e}", step.tool));
        self.before(step).await.map_err(failed)?;
        let ending = Ending::of(step, self.trajectory.steps.get(number)).map_err(failed)?;
        match step.tool.as_str() {
            "exec" => self.exec(number, step, &ending).await.map_err(failed)?,
            FILE_STEP => self.file(&step.params).await.map_err(failed)?,
            tool => {
                if self.sandbox.is_no_action(tool) {
                    return Ok(None);
                }
                self.tool(tool, step, &ending).await.map_err(failed)?;
            }
        }
        if let Some(words) = ending.words() {
            let what = "what it had done by then is a matter of time";
            self.replayed.notes.push(format!("step {number} was ended as on record, {words}: {what}"));
        }
        match self.record.catch_up()? {
            Some(Step { mut observed, .. }) => {
                // Who ended it was somebody else then.
                let expected = step.observed.end.as_ref();
                if is_ended_by_others(expected) && is_ended_by_others(observed.end.as_ref()) {
                    observed.end = expected.cloned();
                }
                Ok(Some(observed))
            }
            None => {
                let message = format!("step {number} ({}) is not on the record of the box", step.tool);
                Err(Error::new(ErrorKind::Failed, message))
            }
        }
    }

    /// A call of a tool, and of what it runs what was done to that.
    async fn tool(&self, tool: &str, step: &Step, ending: &Ending) -> Result<()> {
        let call = self.sandbox.tool(tool, step.asked());
        if ending.is_none() {
            return call.await.map(drop);
        }
        let first = self.next_exec().await?;
        tokio::select! {
            done = call => done.map(drop),
            () = ending.execute(&self.sandbox, first) => Ok(()),
        }
    }

    /// The number that the next command will have, or a lower one that nobody has.
    async fn next_exec(&self) -> Result<u64> {
        Ok(self.sandbox.execs().await?.iter().map(|exec| exec.exec + 1).max().unwrap_or_default())
    }

    async fn exec(&mut self, number: usize, step: &Step, ending: &Ending) -> Result<()> {
        let (spec, stdin) = exec_of(&step.params)?;
        let background = spec.background;
        if let Program::Code(code) = &spec.program {
            self.context(code).await?;
        }
        let exec = self.sandbox.exec(spec).await?;
        let (input, id) = (exec.input(), exec.id());
        let feed = async {
            if let Some(bytes) = stdin {
                // One that does not read it ends as it did before.
                let _ = input.write(&bytes).await;
                let _ = input.close().await;
            }
        };
        if background {
            self.background.insert(number, id);
            feed.await;
            return Ok(());
        }
        // Who does not read what it is fed is ended all the same.
        let done = async { tokio::join!(feed, exec.collect()) };
        tokio::select! {
            _ = done => {}
            () = ending.execute(&self.sandbox, id) => {}
        }
        Ok(())
    }

    /// Does what was done to the box between a step and the one before it.
    async fn before(&mut self, step: &Step) -> Result<()> {
        let restarts = step.extra.get(RESTARTS).and_then(Value::as_u64).unwrap_or_default();
        // Once is as good as twice.
        if restarts > 0 {
            self.house.stop(self.sandbox.id()).await?;
            self.sandbox = self.house.start(self.sandbox.id()).await?;
        }
        for sent in signals(step.extra.get(SIGNALS_BEFORE))? {
            let Some(exec) = sent.step.and_then(|step| self.background.get(&step)) else { continue };
            // One that has ended by itself needs none.
            let _ = match sent.signal {
                9 => self.sandbox.kill_exec(*exec).await,
                signal => self.sandbox.signal(*exec, signal, false).await,
            };
        }
        self.contexts(step).await
    }

    /// Does to contexts what was done to them before a step.
    async fn contexts(&self, step: &Step) -> Result<()> {
        for change in contexts(step)? {
            match change.what.as_str() {
                "create" => {
                    let spec = ContextSpec {
                        language: change.language.unwrap_or_default(),
                        id: Some(change.context),
                        interpreter: change.interpreter,
                        cwd: change.cwd,
                        user: change.user,
                        ..ContextSpec::default()
                    };
                    self.sandbox.create_context(spec).await?;
                }
                "restart" => drop(self.sandbox.restart_context(&change.context).await?),
                "delete" => self.sandbox.delete_context(&change.context).await?,
                // An interrupt is done to the code that it hit, at its own time.
                _ => {}
            }
        }
        Ok(())
    }

    /// Sees to it that there is a context for code of a trajectory that does not say how it was made.
    async fn context(&self, code: &Code) -> Result<()> {
        if self.sandbox.contexts().await?.into_iter().any(|context| context.id == code.context) {
            return Ok(());
        }
        let (language, id) = (code.language, Some(code.context.clone()));
        self.sandbox.create_context(ContextSpec { language, id, ..ContextSpec::default() }).await.map(drop)
    }

    /// What a caller did to files. That it fails is a part of what is compared.
    async fn file(&self, params: &Map<String, Value>) -> Result<()> {
        let user = params.get("user").and_then(Value::as_str);
        let sandbox = &user.map_or_else(|| self.sandbox.clone(), |user| self.sandbox.as_user(user));
        let done = match FileStep::of(params)? {
            FileStep::Write { path, content, mode, parents } => {
                sandbox.replace_file(path, &content, mode, parents).await
            }
            FileStep::CopyIn { path, archive } => sandbox.copy_archive_in(archive, path).await,
            FileStep::Append { path, content } => sandbox.append_file(path, &content).await,
            FileStep::Mkdir { path, parents } => sandbox.make_dir(path, parents).await,
            FileStep::Move { from, to, overwrite } => sandbox.move_file(from, to, overwrite).await,
            FileStep::Remove { path, recursive } => sandbox.remove_file(path, recursive).await,
            FileStep::Chmod { path, mode } => sandbox.chmod(path, mode).await,
            FileStep::Chown { path, owner, group } => sandbox.chown(path, owner, group).await,
        };
        match done {
            Err(e) if matches!(e.kind(), ErrorKind::Gone) => Err(e),
            _ => Ok(()),
        }
    }
}

impl Sandboxes {
    /// The trajectory that the record of a box is, and what could not be said in it.
    pub fn trajectory(&self, id: &str) -> Result<(Trajectory, Vec<String>)> {
        let mut record = Record::open(self, id)?;
        record.catch_up()?;
        Ok(record.steps.finish())
    }

    /// The same, with the line of the record at which each of its steps began.
    pub fn trajectory_and_lines(&self, id: &str) -> Result<(Trajectory, Vec<u64>)> {
        let mut record = Record::open(self, id)?;
        record.catch_up()?;
        let lines = record.steps.lines();
        Ok((record.steps.finish().0, lines))
    }

    /// Takes a trajectory in as the record of a box that is gone. Its id.
    pub fn import_trajectory(&self, trajectory: &Trajectory) -> Result<String> {
        let id = new_id()?;
        let settings = glasshouse_trace::Settings {
            dir: self.traces_dir().join(&id),
            blobs: self.blobs_dir(),
            ..glasshouse_trace::Settings::default()
        };
        let mut recorder = glasshouse_trace::Recorder::new(settings);
        for event in trajectory.to_events(&id) {
            recorder.record(event);
        }
        match recorder.lost() {
            0 => Ok(id),
            lost => {
                let why = recorder.why_lost().unwrap_or("nobody knows why").to_owned();
                drop(recorder);
                let _ = std::fs::remove_dir_all(self.traces_dir().join(&id));
                let message = format!("{lost} events of the trajectory could not be written: {why}");
                Err(Error::new(ErrorKind::Failed, message))
            }
        }
    }
}

/// The record of a box, read as it grows.
struct Record {
    dir: PathBuf,
    blobs: PathBuf,
    position: Position,
    steps: FromTrace,
    seen: usize,
}

impl Record {
    fn open(house: &Sandboxes, id: &str) -> Result<Record> {
        let (dir, blobs) = (house.traces_dir().join(id), house.blobs_dir());
        let steps = FromTrace::new(Blobs::new(&blobs));
        Ok(Record { dir, blobs, position: Position::default(), steps, seen: 0 })
    }

    /// Without what is on it already.
    fn open_at_end(house: &Sandboxes, id: &str) -> Result<Record> {
        let record = Record::open(house, id)?;
        Ok(Record { position: Reader::end_of(&record.dir).map_err(wrong)?, ..record })
    }

    /// Reads what is new: the last step that came to be, if one did.
    fn catch_up(&mut self) -> Result<Option<Step>> {
        let mut reader = Reader::open_at(&self.dir, &self.blobs, self.position).map_err(wrong)?;
        for line in &mut reader {
            self.steps.feed(&line.map_err(wrong)?).map_err(wrong)?;
        }
        self.position = reader.position();
        let count = self.steps.count();
        let new = (count > self.seen).then(|| self.steps.last().cloned()).flatten();
        self.seen = count;
        Ok(new)
    }
}

fn wrong(error: glasshouse_trace::Error) -> Error {
    Error::new(ErrorKind::Failed, format!("cannot {}", error.with_source()))
}
