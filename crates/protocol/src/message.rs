//! The control messages. One [`Request`] opens a stream; [`Reply`]s come back on the same stream.

use serde::{Deserialize, Serialize};

use crate::code::{ContextInfo, ContextSpec};
use crate::exec::{ExecInfo, ExecSpec, OutputStream, TtySize};
use crate::exit::ExitReport;
use crate::file::{FileOp, FileResult};

/// The version that this build speaks. A new message counts it up.
pub const VERSION: u32 = 6;

/// The first thing that each side says on stream 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hello {
    /// The highest version spoken; both sides use the lower of the two.
    pub version: u32,
    /// What is spoken beyond the version, by name.
    #[serde(default)]
    pub features: Vec<String>,
}

/// From the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Request {
    /// Stream 0, first.
    Hello(Hello),
    /// Run a command. Replies: `started`, data, `ended`; or `failed`.
    Exec(Box<ExecSpec>),
    /// Read the kept and the coming output of a command. Replies like `exec`'s.
    Attach {
        /// Which.
        exec: u64,
        /// Skip what lies before this place.
        #[serde(default)]
        from: u64,
        /// Go on until the command ends; otherwise send what is kept and stop.
        #[serde(default)]
        follow: bool,
    },
    /// Send a signal to a command's main process, or to all of its tree.
    Signal {
        /// Which.
        exec: u64,
        /// The number.
        signal: i32,
        /// Every process of the command.
        #[serde(default)]
        tree: bool,
    },
    /// Kill the whole tree of a command.
    Kill {
        /// Which.
        exec: u64,
    },
    /// The terminal of the command on this stream has another size.
    Resize(TtySize),
    /// All commands, running and ended.
    Execs,
    /// Ended commands whose end nobody was there to see. Each is told of once, so that it is recorded once.
    Unrecorded,
    /// The end of this command is on record. Said by whoever started it.
    Recorded {
        /// Which.
        exec: u64,
    },
    /// A file operation.
    File {
        /// What.
        file: FileOp,
        /// As whom; without it, the box's user.
        #[serde(default)]
        user: Option<String>,
    },
    /// A program for the box that is in none of its files: the guest keeps it in memory, under a name that says its
    /// content, for as long as it lives. Replies: `ok` if it has it; else `ready`, then the host sends data and `end`,
    /// then `ok` or `failed`. Since version 2.
    Carry {
        /// Its name, which [`ExecSpec::carried`] uses.
        program: String,
        /// Its size.
        bytes: u64,
    },
    /// Hold still: until `release`, or until this connection ends, nobody else's requests are taken. Reply: `held`, with
    /// descriptors of the box's user, mount and IPC namespaces attached to it, so it has to be the only thing asked for
    /// on its connection.
    Hold {
        /// Kill everything first.
        #[serde(default)]
        kill: bool,
        /// Stop everything meanwhile.
        #[serde(default)]
        stop: bool,
        /// A fourth descriptor, if the guest has it: the directory in memory that the box's changes are in.
        #[serde(default)]
        top: bool,
        /// Wait a moment before that, until nothing in it is at work any more: what ends at once is then gone.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        settle: bool,
        /// With `kill`: the root that follows is the one that the box began with when it was last given one. What has
        /// run nobody's code since then may live on. Since version 6.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        same: bool,
    },
    /// The descriptor that comes with this is of the directory in memory that the changes to one of the box's roots go
    /// to. Said by whoever holds the box, before it has that root. No reply.
    Top {
        /// Which of its roots.
        generation: u64,
    },
    /// Tell all that there is in the root, to whoever holds the box. Replies: data both ways, as [`crate::walk`] says, or
    /// `failed`, also in the middle of it. Since version 4.
    Walk,
    /// Go on.
    Release {
        /// The root is another one now.
        #[serde(default)]
        restacked: bool,
        /// It is the same one and as good as new: the box was held with `same`, has said that it is `clean`, and has written
        /// nothing to it. Since version 6.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        renewed: bool,
        /// With `restacked`, from whoever gave the box that root: its number. Without it, the guest reads it off its mounts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<u64>,
    },
    /// Stop everything that runs in the box, until `resume`. Commands and file operations are refused meanwhile. Reply: `ok`,
    /// when nothing moves, also if it was so before. Since version 3.
    Pause,
    /// Let everything go on that `pause` has stopped. Reply: `ok`. Since version 3.
    Resume,
    /// Connect to a TCP port inside the box, on its loopback device. Replies: `ready`, then data and `end` both ways, then
    /// `ok` when both sides have ended; or `failed`. Since version 3.
    Dial {
        /// Which.
        port: u16,
    },
    /// The TCP ports that something in the box listens on. Since version 3.
    Ports,
    /// Take connections to a TCP port inside the box, on its loopback device, and close them at once: whoever waits for the
    /// port to be there finds it. Reply: `ok`, also if somebody listens there already. Since version 5.
    Answer {
        /// Which.
        port: u16,
    },
    /// Start an interpreter that remembers. Reply: `context` when it waits for code, or `failed`. Since version 5.
    CreateContext(Box<ContextSpec>),
    /// All contexts. Since version 5.
    Contexts,
    /// Interrupt what runs in a context, which lives on. Reply: `ok`, also if nothing runs. Since version 5.
    InterruptContext {
        /// Which.
        context: String,
    },
    /// Kill a context's interpreter and all that it started, and start it anew. Replies as of `create_context`. Since
    /// version 5.
    RestartContext {
        /// Which.
        context: String,
    },
    /// Kill a context's interpreter and all that it started, and forget it. Reply: `ok`. Since version 5.
    DeleteContext {
        /// Which.
        context: String,
    },
    /// Close the box: everything in it is killed.
    Shutdown,
    /// Are you there?
    Ping,
}

/// From the guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Reply {
    /// Stream 0, first.
    Hello(Hello),
    /// The command has a number; if it could be started, its main process has a pid.
    Started {
        /// Its number.
        exec: u64,
        /// Inside the box.
        pid: u32,
    },
    /// The output between these places was not kept.
    Gap {
        /// First byte that is missing.
        from: u64,
        /// First byte after the gap.
        to: u64,
    },
    /// The command ended. Last on its stream.
    Ended {
        /// Its number.
        exec: u64,
        /// How.
        report: ExitReport,
    },
    /// An attached reader that does not follow has all there is. Last on its stream.
    UpToDate {
        /// The place of the next byte.
        offset: u64,
    },
    /// All commands.
    Execs {
        /// In order of their numbers.
        execs: Vec<ExecInfo>,
    },
    /// Ends that nobody was there to see. Their output can be attached to.
    Unrecorded {
        /// Which.
        execs: Vec<ExecInfo>,
        /// Values of the box's environment, which must not get into a record.
        #[serde(default)]
        secrets: Vec<String>,
    },
    /// The box holds still.
    Held {
        /// Processes of the box beside its first one.
        processes: u64,
        /// Which of its roots it has.
        generation: u64,
        /// What the first of those processes are, by their command lines.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        names: Vec<String>,
        /// Some of them were still at work: who is there, and what they have written, is a matter of chance.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        at_work: bool,
        /// If it was asked for with `same`: nothing is left beside files of what was done since the box has its root. What it
        /// has in memory (`/dev/shm`) and its System V objects are as they were. Since version 6.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        clean: bool,
    },
    /// A file operation is done. Last on its stream.
    File(FileResult),
    /// What listens, in order of the ports. At most [`crate::limits::PORTS_MAX`].
    Ports {
        /// Which.
        ports: Vec<Port>,
    },
    /// A context waits for code. Last on its stream. Since version 5.
    Context(ContextInfo),
    /// All contexts. Since version 5.
    Contexts {
        /// In the order in which they were made.
        contexts: Vec<ContextInfo>,
    },
    /// The guest is ready for the bytes of a write or of a program, or has connected to a port.
    Ready,
    /// Done. Last on its stream.
    Ok,
    /// Refused or failed. Last on its stream.
    Failed(Failure),
}

/// A port that something in the box listens on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Port {
    /// Its number.
    pub port: u16,
    /// The address inside the box.
    pub address: String,
}

/// Why a request failed. A program's bad end is not among these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Failure {
    /// To branch on.
    pub kind: FailureKind,
    /// What was tried, on what, and why it failed.
    pub message: String,
}

/// The kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum FailureKind {
    /// No such file, command or user.
    NotFound,
    /// It is there already.
    Exists,
    /// Not allowed.
    Denied,
    /// It is not of the kind that the request needs (a directory for a file, a pipe for a file).
    WrongKind,
    /// The request makes no sense.
    Invalid,
    /// A bound was reached; the message names it.
    Limit,
    /// The box's disk is full.
    DiskFull,
    /// The box is paused. Since version 3; older hosts are told `limit`.
    Paused,
    /// Nobody listens on the port. Since version 3.
    Refused,
    /// Something else is being done there; it can be tried again. Since version 5.
    Busy,
    /// The guest does not know this request.
    Unsupported,
    /// Anything else.
    Io,
}

/// The tag in a data frame's header: which of the command's streams.
pub fn stream_kind(stream: OutputStream) -> crate::frame::Kind {
    match stream {
        OutputStream::Stdout => crate::frame::Kind::Stdout,
        OutputStream::Stderr => crate::frame::Kind::Stderr,
        OutputStream::Results => crate::frame::Kind::Results,
    }
}
