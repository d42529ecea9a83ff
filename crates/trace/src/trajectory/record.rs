//! A trace as a trajectory: every recorded box is one.
//!
//! Lines are fed one after the other, so that a replay can ask for each step as soon as it is on record. A command of a
//! caller's and a call of a tool are steps; what a tool ran is a part of its call. Steps of a box that was put back
//! to an earlier state are not part of what led to its last one, unless it went forth to them again ([`Past`]); the notes
//! tell how many are not.

use std::collections::{BTreeMap, BTreeSet};

use glasshouse_protocol::{Exit, ExitReport, Program};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::imported;
use super::model::{Base, Change, FileChange, Observed, Profile, StateAfter, Step, Task, Trajectory};
use super::past::{OnRecord, Past, Root};
use super::text::Text;
use crate::blobs::Blobs;
use crate::changes::{ChangeKind, FileChange as Recorded, FileFacts};
use crate::event::{BoxCreated, ContextChange, Event, ExecStarted, StepState};
use crate::line::Line;
use crate::payload::Payload;
use crate::{Result, event};

/// Reads the lines of a trace as the steps of a trajectory.
pub struct FromTrace {
    blobs: Blobs,
    /// All but its steps, and what they stand on.
    trajectory: Trajectory,
    past: Past,
    /// Commands whose end or step is still to come: where they are among the steps, if they are.
    open: BTreeMap<u64, Open>,
    /// Those that ran when the box was put into another state: they belong to the one before.
    cut_off: BTreeSet<u64>,
    /// Where commands in the background are among the steps.
    background: BTreeMap<u64, usize>,
    /// Where steps are that were looked at, and when that was done, in that order.
    looked_at: Vec<(usize, u64)>,
    /// The last code that ran in each context.
    runs: BTreeMap<String, Run>,
    notes: Vec<String>,
    /// What was done since the last step: a part of the next one.
    before: Before,
    /// It is the record of a trajectory that was taken in, and of no box.
    is_imported: bool,
    /// That trajectory.
    imported: Option<Trajectory>,
}

/// What was done to a box between two steps, and has to be done again before the second one.
#[derive(Default)]
struct Before {
    contexts: Vec<ContextChange>,
    /// How often the box was stopped and started.
    restarts: u64,
    /// Signals to commands in the background.
    signals: Vec<Sent>,
}

/// A signal that a caller sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Its number.
    pub signal: i32,
    /// To a command in the background: the step that it was, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<usize>,
    /// To the command of the step itself: how long that had run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
}

/// What led to the state after a step.
#[derive(Debug, Clone)]
pub struct Way {
    /// The steps.
    pub trajectory: Trajectory,
    /// Their numbers on record, which are others than their places where steps were undone; 0 if one has none.
    pub numbers: Vec<u64>,
    /// The snapshot that the box was put on before the first of them. None: they stand on what the box began with.
    pub snapshot: Option<String>,
}

/// Code that runs or ran in a context.
struct Run {
    exec: u64,
    begun_ms: u64,
    /// When it had ended, and where it is among the steps.
    ended: Option<(u64, usize)>,
}

struct Open {
    started: ExecStarted,
    /// The line that says so.
    line: u64,
    time_ms: u64,
    stdin: Option<Text>,
    /// How much of it is not on record.
    stdin_bytes_cut: u64,
    /// Something in it was replaced.
    stdin_redacted: bool,
    results: Option<Text>,
    before: Before,
    /// What it was sent.
    signals: Vec<Sent>,
    at: Option<usize>,
}

impl FromTrace {
    /// With the store of the trace's payloads.
    pub fn new(blobs: Blobs) -> Self {
        FromTrace {
            blobs,
            trajectory: Trajectory::default(),
            past: Past::default(),
            open: BTreeMap::new(),
            cut_off: BTreeSet::new(),
            background: BTreeMap::new(),
            looked_at: Vec::new(),
            runs: BTreeMap::new(),
            notes: Vec::new(),
            before: Before::default(),
            is_imported: false,
            imported: None,
        }
    }

    /// How many steps there were so far.
    pub fn count(&self) -> usize {
        self.past.count()
    }

    /// The last step that led to where the box is.
    pub fn last(&self) -> Option<&Step> {
        self.past.last()
    }

    /// The lines of the record at which the steps began that led to where the box is. A step of a record is not found by its
    /// place among those: others may have been undone before it.
    pub fn lines(&self) -> Vec<u64> {
        self.past.lines()
    }

    /// All of it, and what could not be said in it.
    pub fn finish(mut self) -> (Trajectory, Vec<String>) {
        if let Some(whole) = self.imported {
            return (whole, self.notes);
        }
        let undone = match self.past.undone() {
            0 => None,
            1 => Some("1 step is".to_owned()),
            undone => Some(format!("{undone} steps are")),
        };
        let note = |undone| format!("{undone} not part of it: a reset or a restore undid them");
        self.notes.extend(undone.map(note));
        let (root, steps) = self.past.into_line();
        (Trajectory { base: root.base, steps, ..self.trajectory }, self.notes)
    }

    /// All that led to the state after a step, whatever came later; if there is such a step.
    pub fn finish_at(mut self, number: u64) -> Option<Way> {
        if number == 0 || !self.past.go_to(number) {
            return None;
        }
        let snapshot = self.past.root().snapshot.clone();
        let numbers = self.past.numbers();
        Some(Way { trajectory: self.finish().0, numbers, snapshot })
    }

    /// Takes the next line.
    pub fn feed(&mut self, line: &Line) -> Result<()> {
        match &line.event {
            Event::BoxCreated(created) => self.created(created),
            Event::Base(base) => self.base(base),
            Event::ExecStarted(started) => self.started(line, started),
            Event::Stdin { exec, payload } => {
                let text = self.text(payload)?;
                if let Some(open) = self.open.get_mut(exec) {
                    (open.stdin, open.stdin_bytes_cut) = (Some(text), payload.bytes_cut);
                    open.stdin_redacted = payload.redacted > 0;
                }
            }
            Event::ExecEnded { exec, report, stdout, stderr } => {
                self.ended(*exec, report, stdout, stderr)?;
                self.run_ended(line.time_ms, *exec);
            }
            Event::Step(step) => self.step(line, step)?,
            Event::State { what, snapshot, step, .. } => self.state(what, snapshot.as_deref(), *step),
            Event::Lost { events: 0, why, .. } => self.notes.push(why.clone()),
            Event::Lost { events, .. } => {
                self.notes.push(format!("{events} events are missing in the record"))
            }
            Event::Results { exec, payload } => {
                let text = self.text(payload)?;
                if let Some(open) = self.open.get_mut(exec) {
                    open.results = Some(text);
                }
            }
            Event::Context(change) if change.what == INTERRUPT => {
                self.interrupted(line.time_ms, &change.context)
            }
            Event::Context(change) => self.before.contexts.push(change.clone()),
            Event::Signal { exec, signal } => self.signalled(line.time_ms, *exec, *signal),
            Event::File(file) if self.is_imported => self.imported = imported::read(file, &self.blobs)?,
            Event::File(_) | Event::BoxEnded { .. } | Event::Repaired { .. } | Event::Unknown(_) => {}
        }
        Ok(())
    }

    fn created(&mut self, created: &BoxCreated) {
        self.trajectory.id = Some(created.id.clone());
        self.is_imported = created.runtime == imported::RUNTIME;
        let base = self.past.root().base.get_or_insert_default();
        base.image.clone_from(&created.image);
        let BoxCreated { env_names, user, cwd, read_only, limits, forked_from, redact, .. } = created;
        let limits: BTreeMap<&String, u64> = limits.iter().map(|(name, limit)| (name, limit.value)).collect();
        let facts = [
            ("env_names", json!(env_names)),
            ("user", json!(user)),
            ("cwd", json!(cwd)),
            ("read_only", json!(read_only)),
            ("limits", json!(limits)),
            ("forked_from", json!(forked_from)),
            ("redact", json!(redact)),
        ];
        base.extra
            .extend(facts.into_iter().filter(|(_, fact)| is_said(fact)).map(|(k, v)| (k.to_owned(), v)));
    }

    fn base(&mut self, base: &event::Base) {
        let into = self.past.root().base.get_or_insert_default();
        into.digest = Some(base.digest.clone()).filter(|digest| !digest.is_empty());
        let event::Base { deterministic, uncontrolled, task, .. } = base;
        self.trajectory.profile = Some(Profile {
            deterministic: *deterministic,
            uncontrolled: uncontrolled.clone(),
            ..Profile::default()
        });
        self.trajectory.task = task.as_ref().map(|task| Task {
            repo: Some(task.repo.clone()),
            commit: Some(task.commit.clone()),
            setup: task.setup.clone(),
            test: task.test.clone(),
            image: task.image.clone(),
            extra: Map::from_iter([("dir".to_owned(), json!(task.dir))]),
            ..Task::default()
        });
    }

    fn started(&mut self, line: &Line, started: &ExecStarted) {
        let time_ms = line.time_ms;
        let mut open = Open {
            started: started.clone(),
            line: line.seq,
            time_ms,
            stdin: None,
            stdin_bytes_cut: 0,
            stdin_redacted: false,
            results: None,
            before: std::mem::take(&mut self.before),
            signals: Vec::new(),
            at: None,
        };
        if let Program::Code(code) = &started.program {
            let run = Run { exec: started.exec, begun_ms: time_ms, ended: None };
            self.runs.insert(code.context.clone(), run);
        }
        if started.background {
            // It is a step as soon as it runs; how it ends is no part of it.
            let on_record = OnRecord { number: 0, line: open.line };
            let at = self.past.push(open.step(Observed::default()), on_record);
            self.background.insert(started.exec, at);
            open.at = Some(at);
        }
        self.open.insert(started.exec, open);
    }

    fn signalled(&mut self, time_ms: u64, exec: u64, signal: i32) {
        if let Some(at) = self.background.get(&exec) {
            let step = self.past.place(*at);
            self.before.signals.push(Sent { signal, step, after_ms: None });
        } else if let Some(open) = self.open.get_mut(&exec) {
            let after_ms = Some(time_ms.saturating_sub(open.time_ms));
            open.signals.push(Sent { signal, step: None, after_ms });
        }
    }

    /// An interrupt of a context is a signal to the code that it hit. It is on record after it was done, when that may have
    /// ended already. In a context where nothing runs it does nothing, and so there is nothing to be done again.
    fn interrupted(&mut self, time_ms: u64, context: &str) {
        let Some(run) = self.runs.get(context) else { return };
        let Some((ended_ms, at)) = run.ended else {
            return self.signalled(time_ms, run.exec, SIGINT);
        };
        if time_ms.saturating_sub(ended_ms) > INTERRUPT_LATE_MS {
            return;
        }
        let after_ms = Some(time_ms.saturating_sub(run.begun_ms));
        if let Some(step) = self.past.step(at) {
            let list = step.extra.entry(SIGNALS).or_insert_with(|| json!([]));
            if let Some(list) = list.as_array_mut() {
                list.push(json!(Sent { signal: SIGINT, step: None, after_ms }));
            }
        }
    }

    /// Code of a context has ended, if that is what it was.
    fn run_ended(&mut self, time_ms: u64, exec: u64) {
        let at = self.open.get(&exec).and_then(|open| open.at);
        if let (Some(at), Some(run)) = (at, self.runs.values_mut().find(|run| run.exec == exec)) {
            run.ended = Some((time_ms, at));
        }
    }

    fn ended(&mut self, exec: u64, report: &ExitReport, stdout: &Payload, stderr: &Payload) -> Result<()> {
        // What code told beside what it wrote is a part of what was seen of it.
        let results = self.open.get_mut(&exec).and_then(|open| open.results.take());
        let output = match results {
            Some(results) => Text::of([self.text(stdout)?.bytes(), results.bytes()].concat()),
            None => self.text(stdout)?,
        };
        let observed = Observed {
            output: Some(output),
            stderr: Some(self.text(stderr)?),
            exit_code: match report.exit {
                Exit::Code { code } => Some(code),
                _ => None,
            },
            end: Some(report.exit.clone()),
            ..Observed::default()
        };
        let Some(mut open) = self.open.remove(&exec) else { return Ok(()) };
        if open.at.is_none() {
            let mut step = open.step(observed);
            step.duration_us = Some(report.wall_us);
            open.at = Some(self.past.push(step, OnRecord { number: 0, line: open.line }));
            self.open.insert(exec, open);
        }
        Ok(())
    }

    fn step(&mut self, line: &Line, step: &event::Step) -> Result<()> {
        let time_ms = line.time_ms;
        if step.exec.is_some_and(|exec| self.cut_off.remove(&exec)) {
            return Ok(());
        }
        let state = step.state.as_ref().map(|state| self.after(step.step, state, step.snapshot.as_deref()));
        let open = step.exec.and_then(|exec| self.open.remove(&exec));
        let at = open.as_ref().and_then(|open| open.at);
        let begun = open.map(|open| open.time_ms);
        let Some(tool) = &step.tool else {
            if let Some(at) = at
                && let Some(seen) = self.past.number(at, step.step)
            {
                seen.observed.state = state;
                self.looked_at(at, begun.unwrap_or(time_ms), time_ms);
            }
            return Ok(());
        };
        let mut extra = std::mem::take(&mut self.before).extra();
        let params = match step.params.as_ref().map(|params| self.params(params)) {
            None | Some(Ok(Value::Null)) => Map::new(),
            Some(Ok(Value::Object(params))) => params,
            // It was asked wrongly, and answered so.
            Some(Ok(other)) => {
                extra.insert(NO_OBJECT.to_owned(), other);
                Map::new()
            }
            Some(Err(why)) => {
                let note = format!("what step {} was asked for cannot be read: {why}", step.step);
                self.notes.push(note);
                extra.insert(UNREADABLE.to_owned(), json!(why));
                Map::new()
            }
        };
        if step.params.as_ref().is_some_and(|params| params.redacted > 0) {
            extra.insert(REDACTED.to_owned(), json!(true));
        }
        let text = |payload: &Option<Payload>| payload.as_ref().map(|payload| self.text(payload)).transpose();
        // Older records leave out what is empty. Who had an answer on record had both parts of it.
        let no_stderr = || (step.output.is_some() && !self.is_imported).then(|| Text::from(""));
        let observed = Observed {
            output: text(&step.output)?,
            stderr: text(&step.stderr)?.or_else(no_stderr),
            exit_code: step.exit_code,
            error: step.error.clone(),
            end: step.end.clone(),
            state,
            ..Observed::default()
        };
        let begun = begun.unwrap_or(time_ms.saturating_sub(step.wall_us / 1000));
        let step_of = Step {
            tool: tool.clone(),
            params,
            observed,
            time_ms: Some(begun),
            duration_us: Some(step.wall_us),
            extra,
            ..Step::default()
        };
        let at = match at {
            None => self.past.push(step_of, OnRecord { number: step.step, line: line.seq }),
            // It was run by the tool.
            Some(at) => {
                self.past.become_part(at, |ran| step_of.having_run(ran), step.step);
                at
            }
        };
        self.looked_at(at, step.begun_ms.map_or(begun, |called| called.min(begun)), time_ms);
        Ok(())
    }

    /// A step was looked at. Those that were looked at while it was under way overlap with it, and it with them.
    fn looked_at(&mut self, at: usize, begun_ms: u64, now_ms: u64) {
        if self.is_imported {
            // When its lines were written says nothing of when its steps were done.
            return;
        }
        let meanwhile = self.looked_at.iter().rev().take_while(|(_, then_ms)| *then_ms > begun_ms);
        let mut overlapping: Vec<usize> = meanwhile.map(|(other, _)| *other).collect();
        if !overlapping.is_empty() {
            overlapping.push(at);
        }
        for at in overlapping {
            if let Some(state) = self.past.step(at).and_then(|step| step.observed.state.as_mut()) {
                state.overlapped = true;
            }
        }
        self.looked_at.push((at, now_ms));
    }

    /// The box is in the state after an earlier step, or in one that no step led to.
    fn state(&mut self, what: &str, snapshot: Option<&str>, step: Option<u64>) {
        if what == "start" {
            // Everybody who had run is gone.
            self.background.clear();
            self.runs.clear();
            self.before = Before { restarts: self.before.restarts + 1, ..Before::default() };
        }
        if !matches!(what, "reset" | "restore") {
            return;
        }
        self.cut_off.extend(std::mem::take(&mut self.open).into_keys());
        self.background.clear();
        self.looked_at.clear();
        self.runs.clear();
        self.before = Before::default();
        if step.is_some_and(|step| self.past.go_to(step)) {
            return;
        }
        if let Some(step) = step {
            self.notes.push(format!("the box was put back to step {step}, which is not on record"));
        }
        let mut base = Base {
            image: snapshot.map_or_else(String::new, |id| format!("snapshot:{id}")),
            ..self.past.root().base.clone().unwrap_or_default()
        };
        base.digest = None;
        base.extra.remove("forked_from");
        self.past.begin(Root { base: Some(base), snapshot: Some(snapshot.unwrap_or_default().to_owned()) });
    }

    /// What was kept of a payload, with a word where something is missing: it is the same word in another run.
    fn text(&self, payload: &Payload) -> Result<Text> {
        let mut bytes = match &payload.head {
            Some(head) => self.blobs.read(head)?,
            None => Vec::new(),
        };
        if payload.bytes_cut > 0 {
            bytes.extend(format!("\n[{}{GAP}\n", payload.bytes_cut).into_bytes());
        }
        if let Some(tail) = &payload.tail {
            bytes.extend(self.blobs.read(tail)?);
        }
        Ok(Text::of(bytes))
    }

    /// What a tool was asked for; or why that is not known any more.
    fn params(&self, payload: &Payload) -> std::result::Result<Value, String> {
        if payload.truncated() {
            return Err(format!("{}{GAP}", payload.bytes_cut).replace(']', ""));
        }
        let text = self.text(payload).map_err(|e| format!("cannot {}", e.with_source()))?;
        serde_json::from_slice(text.bytes())
            .map_err(|_| "the record has no list of parameters there".to_owned())
    }

    /// What a box was like after a step. A list that cannot be read is one that is not there: the digest still counts.
    fn after(&mut self, step: u64, state: &StepState, snapshot: Option<&str>) -> StateAfter {
        let listed = state.changes.as_ref().map(|changes| Recorded::read(changes, &self.blobs));
        let changes = match listed {
            None => Vec::new(),
            Some(Ok(changes)) => changes,
            Some(Err(e)) => {
                self.notes.push(format!("step {step}: cannot {}", e.with_source()));
                Vec::new()
            }
        };
        let changes_cut = state.changed.saturating_sub(changes.len() as u64);
        StateAfter {
            digest: state.digest.clone(),
            racy: state.racy,
            changes: changes.into_iter().map(change_of).collect(),
            changes_cut,
            unlisted: state.unlisted.clone(),
            processes: Some(state.processes.clone()),
            at_work: state.at_work,
            overlapped: false,
            snapshot: snapshot.map(str::to_owned),
        }
    }
}

impl Step {
    /// A call of a tool with what is known of the command that it ran.
    fn having_run(mut self, ran: Step) -> Step {
        self.observed.end = ran.observed.end;
        // The tool is called again, and not its command: what counts is what is on record of the call.
        self.extra.extend(ran.extra.into_iter().filter(|(name, _)| name != REDACTED));
        self
    }
}

impl Open {
    fn step(&self, observed: Observed) -> Step {
        let ExecStarted { program, cwd, user, tty, background, env_names, timeout_ms, .. } = &self.started;
        let ExecStarted { grace_ms, output_bytes_max, rlimits, .. } = &self.started;
        let mut params = Map::new();
        match program {
            Program::Argv(argv) => params.insert("argv".into(), json!(argv)),
            Program::Shell(line) => params.insert("shell".into(), json!(line)),
            Program::Code(code) => params.insert("code".into(), json!(code)),
        };
        let mut put = |name: &str, value: Value| {
            if is_said(&value) {
                params.insert(name.into(), value);
            }
        };
        put("cwd", json!(cwd));
        put("user", json!(user));
        put("tty", json!(tty));
        put("background", json!(background));
        put("env_names", json!(env_names));
        put("timeout_ms", json!(timeout_ms));
        put("grace_ms", json!(grace_ms));
        put("output_bytes_max", json!(output_bytes_max));
        put("rlimits", json!(rlimits));
        put("stdin", json!(self.stdin));
        put("stdin_bytes_cut", json!((self.stdin_bytes_cut > 0).then_some(self.stdin_bytes_cut)));
        let mut extra = self.before.extra();
        let signals = json!(self.signals);
        extra.extend(Some(signals).filter(is_said).map(|signals| (SIGNALS.to_owned(), signals)));
        if self.started.is_redacted() || self.stdin_redacted {
            extra.insert(REDACTED.to_owned(), json!(true));
        }
        Step { tool: "exec".into(), params, observed, time_ms: Some(self.time_ms), extra, ..Step::default() }
    }
}

impl Before {
    /// As a replay reads it.
    fn extra(&self) -> Map<String, Value> {
        let Before { contexts, restarts, signals } = self;
        let restarts = Some(restarts).filter(|restarts| **restarts > 0);
        let facts =
            [(RESTARTS, json!(restarts)), (SIGNALS_BEFORE, json!(signals)), ("contexts", json!(contexts))];
        facts.into_iter().filter(|(_, fact)| is_said(fact)).map(|(k, v)| (k.to_owned(), v)).collect()
    }
}

/// In what else is said of a step: how often the box was stopped and started before it.
pub const RESTARTS: &str = "restarts";
/// Which signals a caller sent to commands in the background before it.
pub const SIGNALS_BEFORE: &str = "signals_before";
/// Which signals a caller sent to its own command.
pub const SIGNALS: &str = "signals";
/// In what else is said of a step: why nobody knows what it was asked for.
pub const UNREADABLE: &str = "params_unreadable";
/// What it was asked for, where that is no object.
pub const NO_OBJECT: &str = "params_no_object";
/// That something in what it was asked for was replaced before it was written down.
pub const REDACTED: &str = "params_redacted";

/// What an interrupt of a context is called on record.
pub const INTERRUPT: &str = "interrupt";
/// The signal that an interrupt is.
const SIGINT: i32 = 2;
/// How long after the end of a run an interrupt may be on record that ended it.
const INTERRUPT_LATE_MS: u64 = 1000;

/// What stands in a text where something is not on record, behind how much it is.
const GAP: &str = " bytes are not on record]";

/// The same in what a tool answers, which it has cut itself.
const LEFT_OUT: &str = " bytes were left out here]";

/// Whether a line says that something is not on record there.
pub(super) fn is_gap(line: &str) -> bool {
    line.starts_with('[') && [GAP, LEFT_OUT].iter().any(|words| line.trim_end().ends_with(*words))
}

/// Bytes of a process's command line that are told at the most.
const PROCESS_BYTES_MAX: usize = 256;

/// Whether a line of a list of processes says that not all of them is told, or is one that is not all there.
pub(super) fn is_cut_process(line: &str) -> bool {
    let count = line.strip_prefix("and ").and_then(|rest| rest.strip_suffix(" more"));
    line.len() >= PROCESS_BYTES_MAX || count.is_some_and(|count| count.parse::<u64>().is_ok())
}

/// Whether a value says more than its absence.
fn is_said(value: &Value) -> bool {
    !value.is_null() && *value != json!(false) && *value != json!([]) && *value != json!({})
}

fn change_of(recorded: Recorded) -> FileChange {
    let Recorded { path, change, now } = recorded;
    let change = match change {
        ChangeKind::Added => Change::Added,
        ChangeKind::Changed => Change::Changed,
        ChangeKind::Removed => Change::Removed,
    };
    let facts = now.unwrap_or_default();
    let FileFacts { kind, mode, uid, gid, bytes, content, xattrs, text } = facts;
    let there = change != Change::Removed;
    FileChange {
        path,
        change,
        kind: there.then_some(kind),
        leaf: content,
        mode: there.then(|| u32::from_str_radix(&mode, 8).ok()).flatten(),
        uid: there.then_some(uid),
        gid: there.then_some(gid),
        bytes: there.then_some(bytes),
        xattrs,
        text: text.map(Text::Text),
    }
}
