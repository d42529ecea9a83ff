//! What a line of a trace can tell.
//!
//! A field is added as optional, nothing is removed or used again. What this version does not understand is
//! still readable as [`Event::Unknown`], so that an old program shows, checks and prunes the traces of a
//! newer one. Environment values have no field here on purpose: only names are recorded.

use std::collections::BTreeMap;

use glasshouse_protocol::{Code, Exit, ExitReport, Language, Program, Rlimit, TtySize};
use serde::{Deserialize, Serialize};

use crate::payload::Payload;
use crate::redaction::MARK;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The box came to be.
    BoxCreated(BoxCreated),
    /// A command was accepted.
    ExecStarted(ExecStarted),
    /// A command ended.
    ExecEnded {
        /// Its number in the box.
        exec: u64,
        /// How it ended.
        report: ExitReport,
        /// What it wrote to stdout.
        #[serde(default)]
        stdout: Payload,
        /// What it wrote to stderr.
        #[serde(default)]
        stderr: Payload,
    },
    /// A command was fed.
    Stdin {
        /// Its number in the box.
        exec: u64,
        /// With what.
        payload: Payload,
    },
    /// Code told something beside what it wrote: values, pictures, its error.
    Results {
        /// The number of its run in the box.
        exec: u64,
        /// Lines of JSON.
        payload: Payload,
    },
    /// Something was done to a code context.
    Context(ContextChange),
    /// A command was sent a signal by a caller.
    Signal {
        /// Its number in the box.
        exec: u64,
        /// The signal's number.
        signal: i32,
    },
    /// A caller did something with a file of the box.
    File(FileOperation),
    /// The box's state was kept, or replaced by an earlier one.
    State {
        /// `snapshot`, `reset`, `restore`, `fork`, `stop` or `start`.
        what: String,
        /// The snapshot that it was about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshot: Option<String>,
        /// How it was done.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        method: Option<String>,
        /// The step whose state it is, if it is the state after one; 0 is what the box began with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<u64>,
    },
    /// What the first step stands on.
    Base(Base),
    /// A step was done: a command of a caller's, or a call of a tool.
    Step(Box<Step>),
    /// The box is no more.
    BoxEnded {
        /// The reason, in words.
        why: String,
    },
    /// Events are missing here, or what they hold from here on.
    Lost {
        /// How many. None: from here on what they hold is withheld.
        events: u64,
        /// How many bytes of payload they had.
        bytes: u64,
        /// Why the first of them could not be written, or what they hold is not.
        why: String,
    },
    /// A writer died within a line; what there was of it was dropped.
    Repaired {
        /// How much there was.
        dropped_bytes: u64,
    },
    /// An event that this version does not understand.
    #[serde(untagged)]
    Unknown(UnknownEvent),
}

/// The box came to be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BoxCreated {
    /// The box's id.
    pub id: String,
    /// What its owner calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it runs on.
    pub runtime: String,
    /// How strongly it is isolated.
    pub level: String,
    /// What its root was made of.
    pub image: String,
    /// The limits in force, by names that end in their unit (`memory_bytes`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, LimitInForce>,
    /// The owner's labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The names of the box's environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_names: Vec<String>,
    /// As whom commands run that name nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where commands run that name no place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Whether the root cannot be written.
    #[serde(default, skip_serializing_if = "is_false")]
    pub read_only: bool,
    /// Of a deterministic box: what may differ from run to run all the same, each with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncontrolled: Vec<String>,
    /// The box or the snapshot whose files it began with, and not those of its image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<String>,
    /// Patterns of what is on no record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redact: Vec<String>,
}

/// A limit, and what enforces it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitInForce {
    /// In the unit that the limit's name says.
    pub value: u64,
    /// What in the kernel enforces it.
    pub mechanism: String,
}

/// A command was accepted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecStarted {
    /// Its number in the box.
    pub exec: u64,
    /// What runs.
    pub program: Program,
    /// Where it runs, if the caller said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// As whom it runs, if the caller said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The terminal it runs in, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TtySize>,
    /// Whether it outlives its caller.
    #[serde(default, skip_serializing_if = "is_false")]
    pub background: bool,
    /// What its caller calls it, if it outlives him: by that it is found again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Whether it may be fed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stdin: bool,
    /// The names of the environment variables that were added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_names: Vec<String>,
    /// The time it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The time between SIGTERM and SIGKILL when that is up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// How much it may write before it is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes_max: Option<u64>,
    /// Kernel limits of each of its processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rlimits: Vec<Rlimit>,
    /// Whether something in what it was asked for was replaced. Said where what stands for that is in it, so that a
    /// command that spelled it out itself is told from one that held a secret. The writer fills it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redacted: Option<bool>,
}

/// Something was done to a code context.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextChange {
    /// What: `create`, `restart`, `interrupt` or `delete`.
    pub what: String,
    /// Its name.
    pub context: String,
    /// What it speaks, if it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
    /// Its interpreter, if the caller said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<String>,
    /// Where it begins, if the caller said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// As whom it runs, if the caller said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The names of the environment variables that were added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_names: Vec<String>,
}

/// A caller did something with a file of the box.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FileOperation {
    /// What: `read`, `write`, `remove` and so on.
    pub op: String,
    /// The path in the box.
    pub path: String,
    /// How many bytes went in or out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The bytes, if they are recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Payload>,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What a file operation is called that is none: a trajectory that was taken in, whole.
pub(crate) const DOCUMENT: &str = "import";

/// What the first step stands on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// The digest of the state that the box began with.
    pub digest: String,
    /// Whether the box was made to be the same again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub deterministic: bool,
    /// What could not be made the same, each with a word why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncontrolled: Vec<String>,
    /// The task that the box was set up for, if it was for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<BaseTask>,
}

/// The task that a box was set up for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseTask {
    /// Where the repository is.
    pub repo: String,
    /// The whole id of the commit.
    pub commit: String,
    /// The commands that set it up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<String>,
    /// The command that tests it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
    /// Where it is in the box.
    pub dir: String,
    /// The image that it was set up on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// A command of a caller's, or a call of a tool, that is done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its number, from 1.
    pub step: u64,
    /// The tool. None: a command of a caller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// What the tool was asked for, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Payload>,
    /// The command that it was, or that the tool ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<u64>,
    /// What the tool answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Payload>,
    /// What it answered beside that, as a program writes to stderr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<Payload>,
    /// The tool's exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// How it ended, where no command on record says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Exit>,
    /// What went wrong, in the tool's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long it took, the record not included.
    pub wall_us: u64,
    /// When it was called, milliseconds since 1970, where no command on record says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_ms: Option<u64>,
    /// What the box was like after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StepState>,
    /// Why that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_state: Option<String>,
    /// A snapshot of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
}

/// What a box was like after a step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepState {
    /// The digest of its files.
    pub digest: String,
    /// Something changed while it was read.
    #[serde(default, skip_serializing_if = "is_false")]
    pub racy: bool,
    /// The processes that were left, by their command lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<String>,
    /// Some of them were still at work.
    #[serde(default, skip_serializing_if = "is_false")]
    pub at_work: bool,
    /// How many paths differ from the state before.
    pub changed: u64,
    /// The first of them, a JSON array; see `docs/trace-format.md`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Payload>,
    /// One number for those that are not listed, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlisted: Option<String>,
    /// How long it took to find that out.
    pub took_us: u64,
}

/// An event that this version does not understand.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UnknownEvent {
    /// What it calls itself.
    #[serde(rename = "type")]
    pub kind: String,
    /// Everything else it says.
    #[serde(flatten)]
    pub fields: serde_json::Map<String, serde_json::Value>,
}

/// What a payload holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Whatever a program wrote.
    Bytes,
    /// What a tool was asked for, or a whole trajectory, as JSON.
    Params,
    /// What a step changed, as JSON.
    Changes,
}

impl Event {
    /// The version of the format that first had it.
    pub(crate) fn version(&self) -> u32 {
        match self {
            Event::Base(_) | Event::Step(_) => 2,
            Event::Results { .. } | Event::Context(_) => 3,
            Event::ExecStarted(ExecStarted { program: Program::Code(_), .. }) => 3,
            _ => 1,
        }
    }

    /// The payloads that it carries.
    pub fn payloads(&self) -> Vec<&Payload> {
        match self {
            Event::ExecEnded { stdout, stderr, .. } => vec![stdout, stderr],
            Event::Stdin { payload, .. } | Event::Results { payload, .. } => vec![payload],
            Event::File(file) => file.payload.iter().collect(),
            Event::Step(step) => {
                let Step { params, output, stderr, state, .. } = &**step;
                let changes = state.as_ref().and_then(|state| state.changes.as_ref());
                [params.as_ref(), output.as_ref(), stderr.as_ref(), changes].into_iter().flatten().collect()
            }
            _ => Vec::new(),
        }
    }

    /// The same, each with what it holds.
    pub(crate) fn payloads_mut(&mut self) -> Vec<(Holds, &mut Payload)> {
        let bytes = |payload| (Holds::Bytes, payload);
        match self {
            Event::ExecEnded { stdout, stderr, .. } => vec![bytes(stdout), bytes(stderr)],
            Event::Stdin { payload, .. } | Event::Results { payload, .. } => vec![bytes(payload)],
            Event::File(FileOperation { op, payload, .. }) => {
                let holds = if op == DOCUMENT { Holds::Params } else { Holds::Bytes };
                payload.iter_mut().map(|payload| (holds, payload)).collect()
            }
            Event::Step(step) => {
                let Step { params, output, stderr, state, .. } = &mut **step;
                let changes = state.as_mut().and_then(|state| state.changes.as_mut());
                let written = output.iter_mut().chain(stderr).map(bytes);
                let params = params.iter_mut().map(|params| (Holds::Params, params));
                written.chain(params).chain(changes.map(|changes| (Holds::Changes, changes))).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Visits every free text of the event, payloads aside. Types are taken apart without `..`, so that
    /// whoever adds a field has to decide here whether it can hold a secret.
    pub(crate) fn each_text(&mut self, visit: &mut dyn FnMut(&mut String)) {
        match self {
            Event::BoxCreated(created) => created.each_text(visit),
            Event::ExecStarted(started) => started.each_text(visit),
            Event::ExecEnded { exec: _, report, stdout: _, stderr: _ } => each_text_of_report(report, visit),
            Event::File(FileOperation { op, path, bytes: _, payload: _, error }) => {
                [op, path].into_iter().chain(error).for_each(visit);
            }
            Event::State { what, snapshot, method, step: _ } => {
                [what].into_iter().chain(snapshot).chain(method).for_each(&mut unless_ours(visit));
            }
            Event::Base(base) => base.each_text(visit),
            Event::Step(step) => step.each_text(visit),
            Event::BoxEnded { why } | Event::Lost { events: _, bytes: _, why } => visit(why),
            Event::Context(change) => change.each_text(visit),
            Event::Stdin { exec: _, payload: _ }
            | Event::Results { exec: _, payload: _ }
            | Event::Signal { exec: _, signal: _ }
            | Event::Repaired { dropped_bytes: _ }
            | Event::Unknown(_) => {}
        }
    }
}

impl Base {
    fn each_text(&mut self, visit: &mut dyn FnMut(&mut String)) {
        let Base { digest, deterministic: _, uncontrolled, task } = self;
        unless_ours(visit)(digest);
        uncontrolled.iter_mut().for_each(&mut *visit);
        if let Some(BaseTask { repo, commit, setup, test, dir, image }) = task {
            [repo].into_iter().chain(setup).chain(test).for_each(&mut *visit);
            [commit, dir].into_iter().chain(image).for_each(&mut unless_ours(visit));
        }
    }
}

impl Step {
    fn each_text(&mut self, visit: &mut dyn FnMut(&mut String)) {
        let Step {
            step: _,
            tool,
            params: _,
            exec: _,
            output: _,
            stderr: _,
            exit_code: _,
            end,
            error,
            wall_us: _,
            begun_ms: _,
            state,
            no_state,
            snapshot,
        } = self;
        tool.iter_mut().chain(snapshot).for_each(&mut unless_ours(visit));
        error.iter_mut().chain(no_state).for_each(&mut *visit);
        if let Some(end) = end {
            each_text_of_end(end, visit);
        }
        if let Some(StepState {
            digest,
            racy: _,
            processes,
            at_work: _,
            changed: _,
            changes: _,
            unlisted,
            took_us: _,
        }) = state
        {
            [digest].into_iter().chain(unlisted).for_each(&mut unless_ours(visit));
            processes.iter_mut().for_each(visit);
        }
    }
}

impl BoxCreated {
    fn each_text(&mut self, visit: &mut dyn FnMut(&mut String)) {
        let BoxCreated {
            id,
            name,
            runtime,
            level,
            image,
            limits,
            labels,
            env_names,
            user,
            cwd,
            read_only: _,
            uncontrolled,
            forked_from,
            redact,
        } = self;
        let words = [id, runtime, level, image].into_iter().chain(user).chain(cwd).chain(forked_from);
        words.for_each(&mut unless_ours(visit));
        name.iter_mut().chain(uncontrolled).chain(redact).for_each(&mut *visit);
        each_name(env_names, visit);
        *limits = std::mem::take(limits)
            .into_iter()
            .map(|(mut name, LimitInForce { value, mut mechanism })| {
                visit(&mut name);
                visit(&mut mechanism);
                (name, LimitInForce { value, mechanism })
            })
            .collect();
        *labels = std::mem::take(labels)
            .into_iter()
            .map(|(mut name, mut value)| {
                visit(&mut name);
                visit(&mut value);
                (name, value)
            })
            .collect();
    }
}

impl ContextChange {
    fn each_text(&mut self, visit: &mut dyn FnMut(&mut String)) {
        let ContextChange { what, context, language: _, interpreter, cwd, user, env_names } = self;
        [context].into_iter().chain(interpreter).for_each(&mut *visit);
        [what].into_iter().chain(cwd).chain(user).for_each(&mut unless_ours(visit));
        each_name(env_names, visit);
    }
}

impl ExecStarted {
    /// Whether what it was asked for is not on record as it was: it cannot be done again. Records of older versions do
    /// not say so; there, what stands for a secret is taken for one.
    pub fn is_redacted(&self) -> bool {
        self.redacted.unwrap_or_else(|| self.has_mark())
    }

    /// Whether what stands for a secret is in what it was asked for, whoever put it there.
    pub(crate) fn has_mark(&self) -> bool {
        let has = |text: &String| text.contains(MARK);
        let program = match &self.program {
            Program::Argv(argv) => argv.iter().any(has),
            Program::Shell(line) => has(line),
            Program::Code(code) => has(&code.context) || has(&code.code),
        };
        program || self.cwd.iter().chain(&self.user).any(has)
    }

    /// All that it takes to do it again, as far as it may hold a secret.
    pub(crate) fn asked(&self) -> (Program, Option<String>, Option<String>) {
        (self.program.clone(), self.cwd.clone(), self.user.clone())
    }

    fn each_text(&mut self, visit: &mut dyn FnMut(&mut String)) {
        let ExecStarted {
            exec: _,
            program,
            cwd,
            user,
            tty: _,
            background: _,
            label,
            stdin: _,
            env_names,
            timeout_ms: _,
            grace_ms: _,
            output_bytes_max: _,
            rlimits: _,
            redacted: _,
        } = self;
        cwd.iter_mut().chain(user).for_each(&mut unless_ours(visit));
        label.iter_mut().for_each(&mut *visit);
        each_name(env_names, visit);
        match program {
            Program::Argv(argv) => argv.iter_mut().for_each(visit),
            Program::Shell(line) => visit(line),
            Program::Code(Code { context, language: _, code, whole: _ }) => {
                visit(context);
                visit(code);
            }
        }
    }
}

/// What boxes have unless somebody says otherwise, what our tools are called, and what is done to boxes. A variable with such a
/// value is no secret of anybody's, and a record without them cannot be replayed.
const OURS: [&str; 27] = [
    "/",
    "/workspace",
    "docker",
    "file_delete",
    "file_edit",
    "file_list",
    "file_read",
    "file_write",
    "fork",
    "full",
    "git",
    "host",
    "native",
    "none",
    "process",
    "python",
    "reduced",
    "reset",
    "restore",
    "root",
    "search",
    "shell",
    "snapshot",
    "start",
    "stop",
    "submit",
    "user",
];
/// Before the digits of a digest, and how many there are.
const DIGEST: (&str, usize) = ("b3:", 64);

/// Visits a text unless all of it is a word of ours, or a digest: some four digits are in every one of those.
fn unless_ours<'a>(visit: &'a mut dyn FnMut(&mut String)) -> impl FnMut(&mut String) + 'a {
    |text| {
        let is_hex = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let digits = text.strip_prefix(DIGEST.0).filter(|digits| digits.len() == DIGEST.1);
        if !OURS.contains(&text.as_str()) && !digits.is_some_and(is_hex) {
            visit(text);
        }
    }
}

/// A caller that hands over `NAME=value` by mistake must not get the value on record.
fn each_name(env_names: &mut [String], visit: &mut dyn FnMut(&mut String)) {
    for name in env_names {
        if let Some(end) = name.find('=') {
            name.truncate(end);
        }
        visit(name);
    }
}

fn each_text_of_report(report: &mut ExitReport, visit: &mut dyn FnMut(&mut String)) {
    each_text_of_end(&mut report.exit, visit);
}

fn each_text_of_end(end: &mut Exit, visit: &mut dyn FnMut(&mut String)) {
    match end {
        Exit::Forbidden { what } => visit(what),
        Exit::BoxGone { why } => visit(why),
        Exit::NotStarted { why: _, message } => visit(message),
        Exit::Code { .. }
        | Exit::Signal { .. }
        | Exit::TimedOut
        | Exit::CpuLimit
        | Exit::OutOfMemory { .. }
        | Exit::OutputLimit
        | Exit::PidsLimit { .. }
        | Exit::DiskFull { .. }
        | Exit::Killed { .. } => {}
    }
}

fn is_false(value: &bool) -> bool {
    !*value
}
