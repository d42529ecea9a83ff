//! What crosses the wall between host and box: types and codec, no I/O.
//!
//! The walk: a byte stream carries [`frame`]s, each a fixed 12-byte header (length, stream id, kind) and a body.
//! Control frames hold JSON: the host sends [`Request`]s, the guest answers with [`Reply`]s; data frames hold raw
//! bytes. Every stream id is chosen by the host and names one request and everything that belongs to it. Credit
//! flows against the data, so a slow reader stops the writer and memory stays flat on both sides.
//!
//! [`plan`] is the other thing that crosses: the list of steps from which a fresh process builds a jail.
//!
//! Versions: [`VERSION`] counts messages. A field is added as optional; nothing is removed or used again. The newer
//! side bends, because the guest in a running box is frozen (`docs/protocol.md`).

pub mod code;
pub mod exec;
pub mod exit;
pub mod file;
pub mod frame;
pub mod limits;
pub mod message;
pub mod plan;
pub mod walk;

pub use code::{
    Code, CodeError, CodeResult, ContextInfo, ContextSpec, ContextState, KERNEL_OF, Language, MimeBundle,
    Tongue, Warm, is_kernel_name,
};
pub use exec::{Chunk, ExecInfo, ExecSpec, ExecState, OutputStream, Program, Rlimit, RlimitKind, TtySize};
pub use exit::{Exit, ExitReport, Killer, NotStarted};
pub use file::{FileKind, FileOp, FileResult, FileStat, ListPage};
pub use frame::{Decoder, Frame, FrameError, Kind};
pub use message::{Failure, FailureKind, Hello, Port, Reply, Request, VERSION};
