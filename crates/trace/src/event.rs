//! What a line of a trace can tell.
//!
//! A field is added as optional, nothing is removed or used again. What this version does not understand is
//! still readable as [`Event::Unknown`], so that an old program shows, checks and prunes the traces of a
//! newer one. Environment values have no field here on purpose: only names are recorded.

use std::collections::BTreeMap;

use glasshouse_protocol::{Exit, ExitReport, Program, TtySize};
use serde::{Deserialize, Serialize};

use crate::payload::Payload;

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
    },
    /// The box is no more.
    BoxEnded {
        /// The reason, in words.
        why: String,
    },
    /// Events are missing here.
    Lost {
        /// How many.
        events: u64,
        /// How many bytes of payload they had.
        bytes: u64,
        /// Why the first of them could not be written.
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
    /// Of a deterministic box: what may differ from run to run all the same, each with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncontrolled: Vec<String>,
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
    /// Whether it may be fed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub stdin: bool,
    /// The names of the environment variables that were added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_names: Vec<String>,
    /// The time it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
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

impl Event {
    /// The payloads that it carries.
    pub fn payloads(&self) -> Vec<&Payload> {
        match self {
            Event::ExecEnded { stdout, stderr, .. } => vec![stdout, stderr],
            Event::Stdin { payload, .. } => vec![payload],
            Event::File(file) => file.payload.iter().collect(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn payloads_mut(&mut self) -> Vec<&mut Payload> {
        match self {
            Event::ExecEnded { stdout, stderr, .. } => vec![stdout, stderr],
            Event::Stdin { payload, .. } => vec![payload],
            Event::File(file) => file.payload.iter_mut().collect(),
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
            Event::State { what, snapshot, method } => {
                visit(what);
                snapshot.iter_mut().chain(method).for_each(visit);
            }
            Event::BoxEnded { why } | Event::Lost { events: _, bytes: _, why } => visit(why),
            Event::Stdin { exec: _, payload: _ }
            | Event::Signal { exec: _, signal: _ }
            | Event::Repaired { dropped_bytes: _ }
            | Event::Unknown(_) => {}
        }
    }
}

impl BoxCreated {
    fn each_text(&mut self, visit: &mut dyn FnMut(&mut String)) {
        let BoxCreated { id, name, runtime, level, image, limits, labels, env_names, uncontrolled } = self;
        [id, runtime, level, image].into_iter().chain(name).chain(uncontrolled).for_each(&mut *visit);
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

impl ExecStarted {
    fn each_text(&mut self, visit: &mut dyn FnMut(&mut String)) {
        let ExecStarted {
            exec: _,
            program,
            cwd,
            user,
            tty: _,
            background: _,
            stdin: _,
            env_names,
            timeout_ms: _,
        } = self;
        cwd.iter_mut().chain(user).for_each(&mut *visit);
        each_name(env_names, visit);
        match program {
            Program::Argv(argv) => argv.iter_mut().for_each(visit),
            Program::Shell(line) => visit(line),
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
    match &mut report.exit {
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
