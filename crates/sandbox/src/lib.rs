//! The library people embed: boxes that hold, show what happens in them, and end truly.
//!
//! ```no_run
//! # async fn example() -> glasshouse_sandbox::Result<()> {
//! use glasshouse_sandbox::{ExecSpec, Program, SandboxSpec, Sandboxes, Settings};
//!
//! let house = Sandboxes::open(Settings { home: "/var/lib/glasshouse".into() })?;
//! let sandbox = house.create(SandboxSpec::default()).await?;
//! let program = Program::Argv(vec!["python3".into(), "-c".into(), "print(1)".into()]);
//! let output = sandbox.exec(ExecSpec { program, ..ExecSpec::default() }).await?.collect().await;
//! assert!(output.report.exit.success());
//! sandbox.destroy().await
//! # }
//! ```
//!
//! The walk of a command: [`Sandbox::exec`] → the box's `driver` (one owner task per box: it numbers and records) →
//! `client` (frames) → the guest inside → back the same way. A `runtime` is asked for life and death only.
//!
//! The library reads no environment, no home directory, and prints nothing: settings are values.

mod carry;
mod client;
mod code;
mod driver;
mod error;
mod exec;
mod files;
mod home;
mod image;
mod limits;
mod ports;
mod record;
mod replay;
mod runtime;
mod sandbox;
mod sandboxes;
mod shots;
mod snapshot;
mod spec;
mod state;
mod task;
mod threads;
pub mod tools;

pub use code::CodeSpec;
pub use error::{Error, ErrorKind, Result};
pub use exec::{Exec, ExecEvent, ExecInput, ExecOutput, Kept};
pub use glasshouse_protocol::limits::CODE_BYTES_MAX;
pub use glasshouse_protocol::{
    Chunk, Code, CodeError, CodeResult, ContextInfo, ContextSpec, ContextState, ExecInfo, ExecSpec,
    ExecState, Exit, ExitReport, FileKind, FileStat, Killer, Language, ListPage, MimeBundle, NotStarted,
    OutputStream, Port, Program, Rlimit, RlimitKind, Tongue, TtySize, Warm,
};
pub use image::{
    Credentials, ImageConfig, ImageInfo, PullOptions, PullPhase, PullProgress, Stop, registry_of,
};
pub use ports::Tunnel;
pub use replay::{Beginning, Ground, Jumped, Replay, ReplayOptions, Replayed, StepDone};
pub use runtime::docker::{EngineImage, EngineSettings, EngineTls};
pub use runtime::{Feature, RuntimeReport};
pub use sandbox::Sandbox;
pub use sandboxes::{Cleaned, Sandboxes, Settings};
pub use shots::{Shot, Shots, ShotsSpec};
pub use snapshot::records::{CopiedFor, Method, SnapshotInfo};
pub use spec::{
    Image, Level, LimitInForce, Limits, NetworkPolicy, Recording, RuntimeKind, SandboxInfo, SandboxSpec,
    SandboxState, Volume,
};
pub use state::{
    Content, Diff, DiffOptions, Difference, DigestInfo, ExportOptions, Exported, Imported, Packed,
    SnapshotOptions, Thing, Verified,
};
pub use task::{GitLogins, TaskInfo, TaskPhase, TaskSpec};
pub use tools::canonical as canonical_tool;
pub use tools::complete as complete_tool;
pub use tools::{CommandTool, RustTool, ToolInfo, ToolProgram, ToolResult, ToolsSpec};

/// The guest's program, as it is put into every box.
pub fn guest_program() -> &'static [u8] {
    include_bytes!(env!("GLASSHOUSE_GUEST"))
}

#[doc(hidden)]
pub use runtime::native::faults;
