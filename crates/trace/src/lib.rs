//! The record: a tamper-evident account of everything that happened in a box. It knows no sandboxes.
//!
//! The walk: somebody makes an [`Event`] and hands it to a [`Recorder`], which never fails its caller but
//! counts what it lost. Below it the [`Writer`] replaces secrets ([`Redaction`]), puts large payloads into
//! the store that all traces share ([`Blobs`]), and only then appends the one line that names them, under a
//! file lock, because several processes write to the same trace. Each line carries the hash of the line
//! before it. A [`Reader`] gives the lines back, [`verify()`] checks them, [`render`] shows them to a person,
//! [`prune`] removes what is old. The format is described in `docs/trace-format.md`.
//!
//! Beside it stands [`trajectory`]: what an agent did, in our format and those of others, checked and compared.
//!
//! There is no background thread and no fsync here: an append costs some tens of microseconds, survives the
//! death of the writer, and may be lost with the machine.

mod blobs;
mod changes;
mod error;
mod event;
mod hash;
mod head;
mod line;
mod lines;
mod payload;
mod reader;
mod recorder;
mod redaction;
mod retention;
mod tail;
mod verify;
mod view;
mod writer;

pub mod limits;
pub mod trajectory;

pub use blobs::Blobs;
pub use changes::{ChangeKind, FileChange, FileFacts};
pub use error::{Error, ErrorKind, Result};
pub use event::{
    Base, BaseTask, BoxCreated, ContextChange, Event, ExecStarted, FileOperation, LimitInForce, Step,
    StepState, UnknownEvent,
};
pub use hash::Hash;
pub use line::{Line, VERSION};
pub use lines::{unified, unified_within};
pub use payload::{BlobName, Content, Gap, Payload};
pub use reader::{Position, Reader};
pub use recorder::{Recorder, Turn};
pub use redaction::{PARAMETERS, Redaction, Redactor, SecretPattern};
pub use retention::{Pruned, Retention, prune};
pub use verify::{Bad, Report, Why, verify};
pub use view::{Style, page, render};
pub use writer::{Settings, Settled, Writer};
