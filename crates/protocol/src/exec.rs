//! A command: what to run, and what is told of it while it runs.

use serde::{Deserialize, Serialize};

use crate::code::Code;
use crate::exit::ExitReport;

/// What to run, and how.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExecSpec {
    /// The program.
    pub program: Program,
    /// Added to the box's environment, and stronger than it.
    pub env: Vec<(String, String)>,
    /// The working directory; without one, the box's.
    pub cwd: Option<String>,
    /// A name or a number, or `user:group`; without one, the box's user.
    pub user: Option<String>,
    /// Whether stdin is fed from the stream. Without, it is empty.
    pub stdin: bool,
    /// Run in a terminal of this size; stdout and stderr are one then.
    pub tty: Option<TtySize>,
    /// Wall time after which the whole tree of the command is killed.
    pub timeout_ms: Option<u64>,
    /// Time between SIGTERM and SIGKILL when the time is up.
    pub grace_ms: Option<u64>,
    /// Kernel limits of each process of the command.
    pub rlimits: Vec<Rlimit>,
    /// The command outlives the connection that started it.
    pub background: bool,
    /// Bytes of output that are kept for later readers, head and tail.
    pub kept_output_bytes: Option<u64>,
    /// The command is killed when it has written more than this; what is beyond it is thrown away.
    pub output_bytes_max: Option<u64>,
    /// Run this program that was carried in (see [`crate::Request::Carry`]) in place of the one that is named, which is
    /// then only what it is called. Since version 2; an older guest refuses what it does not know, so it is not said
    /// unless it is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carried: Option<String>,
    /// Start it only if nothing is at this path of the box; else the answer is `failed`, with `exists`. So whoever would have to
    /// look first need not. An older guest refuses it as it does `carried`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_without: Option<String>,
    /// Signals already sent to the command are its own affair; this is what the caller calls it.
    pub label: Option<String>,
}

/// The program of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Program {
    /// A program and its arguments; the program is looked for in `PATH` unless it has a slash.
    Argv(Vec<String>),
    /// A line for `/bin/sh -c`.
    Shell(String),
    /// Code for a context of the box. Since version 5.
    Code(Code),
}

impl Default for Program {
    fn default() -> Self {
        Program::Argv(Vec::new())
    }
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TtySize {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

/// A kernel limit of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rlimit {
    /// Which.
    pub kind: RlimitKind,
    /// Soft and hard.
    pub value: u64,
}

/// The kernel limits that a caller may lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum RlimitKind {
    /// CPU time in seconds.
    CpuSeconds,
    /// The size of a file.
    FileBytes,
    /// Open files.
    OpenFiles,
    /// Private writable memory.
    DataBytes,
    /// Address space.
    AddressBytes,
    /// The stack.
    StackBytes,
    /// Processes of the user in the box.
    Processes,
    /// Core files.
    CoreBytes,
    /// Signals that wait to be delivered, and timers.
    PendingSignals,
    /// POSIX message queues.
    QueueBytes,
}

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OutputStream {
    /// Standard output, or the terminal.
    Stdout,
    /// Standard error.
    Stderr,
    /// Of code in a context: lines of JSON, each a [`crate::CodeResult`]. Since version 5.
    Results,
}

/// A piece of output, numbered by its place among all bytes that the command wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Which stream.
    pub stream: OutputStream,
    /// How many bytes of all streams came before it.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// A command of the box, running or ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExecInfo {
    /// Its number in this box, from 1.
    pub exec: u64,
    /// Argv, or the shell line as one string.
    pub command: Vec<String>,
    /// When it started, milliseconds since 1970.
    pub started_ms: u64,
    /// The main process inside the box, while it runs.
    pub pid: Option<u32>,
    /// It outlives its client.
    pub background: bool,
    /// Running, or how it ended.
    pub state: ExecState,
    /// Bytes of output so far.
    pub output_bytes: u64,
    /// What the caller calls it.
    #[serde(default)]
    pub label: Option<String>,
}

/// Where a command stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ExecState {
    /// It runs.
    Running,
    /// It ended.
    Ended(ExitReport),
}
