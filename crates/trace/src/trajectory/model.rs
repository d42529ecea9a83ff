//! The model: what every format is read into and written from.
//!
//! `None` means that it was not recorded, and is therefore not compared. A field is added as optional, nothing is
//! removed or used again. `extra` holds what this version does not know, at the place where it stood, and what
//! came from other formats, under the format's name; its keys are never names of fields.

use glasshouse_protocol::Exit;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::record::NO_OBJECT;
use super::text::Text;

/// The version of the native format that is written, and the newest that is read.
pub const VERSION: u64 = 1;

/// What an agent did, from the first step to the last.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// What its maker calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The agent's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The model that it asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What it was to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// What the first step stands on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    /// How far the run was made repeatable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Noise beside the built-in rules, and built-in rules switched on or off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// What was done.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Whatever else there is.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What an agent was to do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Its name in the set it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// In words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The repository: a URL, a path or a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    /// The commit at which it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Commands that make it ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub setup: Vec<String>,
    /// The command that tells whether it is solved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
    /// The image it is done in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Whatever else there is.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// What the first step stands on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Base {
    /// The image, as a box is asked for with it.
    pub image: String,
    /// The digest of the state before the first step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Whatever else there is.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// How far a run was made repeatable.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Whether the determinism profile was on.
    #[serde(default)]
    pub deterministic: bool,
    /// What was not controlled all the same, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncontrolled: Vec<String>,
    /// Whatever else there is.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Something that differs from run to run and means nothing; or a built-in rule switched on or off.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// What it is called in reports. With a `pattern`, no built-in rule may have this name.
    pub name: String,
    /// What is noise. If it has a group named `noise`, only that part is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// What stands in its place; `<NAME>` without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<String>,
    /// Switches the rule of this name off.
    #[serde(default, skip_serializing_if = "is_false")]
    pub off: bool,
}

/// One thing that was done, and what was seen of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What the agent thought before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<String>,
    /// The tool, by the name that the file gives it; `exec` for a plain command.
    pub tool: String,
    /// What it was asked. For `exec`: `argv` or `shell`, `cwd`, `user`, `timeout_ms`, `env_names`, `stdin`.
    #[serde(default)]
    pub params: Map<String, Value>,
    /// What was seen.
    #[serde(default)]
    pub observed: Observed,
    /// When it began, milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_ms: Option<u64>,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// How many tokens the model used for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// What it was worth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Whatever else there is.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Step {
    /// What it was asked: its parameters, or what was said in their place that is no object.
    pub fn asked(&self) -> Value {
        self.extra.get(NO_OBJECT).cloned().unwrap_or_else(|| Value::Object(self.params.clone()))
    }
}

/// What was seen of a step. Nothing that is `None` is compared.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// What the tool answered, or a command wrote to stdout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Text>,
    /// What a command wrote to stderr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<Text>,
    /// `output` holds what went to stderr too, in the order in which it came.
    #[serde(default, skip_serializing_if = "is_false")]
    pub mixed: bool,
    /// The code with which it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What the tool said went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How it ended, whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Exit>,
    /// The state of the box afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StateAfter>,
}

/// The state of a box after a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StateAfter {
    /// One number for all files.
    pub digest: String,
    /// Something changed while it was taken.
    #[serde(default, skip_serializing_if = "is_false")]
    pub racy: bool,
    /// What the step did to the files, by path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<FileChange>,
    /// How many further changes are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub changes_cut: u64,
    /// One number for those. Nothing whose content is noise by its path is among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlisted: Option<String>,
    /// The processes that were left running, by their command lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<String>>,
    /// Some of them were still at work: who is left, and what they have written by then, is a matter of chance.
    #[serde(default, skip_serializing_if = "is_false")]
    pub at_work: bool,
    /// Another step was under way while it was, so that what this one did cannot be told from what that one did.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overlapped: bool,
    /// The snapshot that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
}

/// What a step did to one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileChange {
    /// The path, as [`path_text`](super::path_text) writes it.
    pub path: String,
    /// What happened to it.
    pub change: Change,
    /// `file`, `directory`, `symlink` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The hash of what it holds now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaf: Option<String>,
    /// Its permission bits now; in JSON as octal digits in a string.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "octal")]
    pub mode: Option<u32>,
    /// Its owner now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Its group now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Its size now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The hash of its attributes that count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xattrs: Option<String>,
    /// What it holds now, where that was kept; of a link, where it points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<Text>,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It was not there before.
    Added,
    /// It was, and is another now.
    Changed,
    /// It is gone.
    Removed,
}

impl Change {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Change::Added => "added",
            Change::Changed => "changed",
            Change::Removed => "removed",
        }
    }
}

/// What came of a trajectory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Whether the task was solved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
    /// How well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// How many tests passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests_passed: Option<u64>,
    /// How many did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests_failed: Option<u64>,
    /// How many tokens the model used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// Whether the agent ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminated: Option<bool>,
    /// Whether it was ended before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated: Option<bool>,
    /// Why it ended, in the agent's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// What was handed in, like a patch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submission: Option<String>,
    /// Whatever else there is.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Permission bits as people write them.
mod octal {
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(mode: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
        match mode {
            Some(mode) => serializer.serialize_str(&format!("{mode:o}")),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        let parse = |text: String| match text.bytes().all(|b| b.is_ascii_digit()) {
            true => u32::from_str_radix(&text, 8).map_err(|_| de::Error::custom("a mode is octal digits")),
            false => Err(de::Error::custom("a mode is octal digits")),
        };
        text.map(parse).transpose()
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}
