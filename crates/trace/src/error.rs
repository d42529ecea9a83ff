//! What can go wrong with a trace. The messages fit after "cannot" and hold paths and numbers, never content.

use std::io;
use std::path::Path;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Something that we could not do.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What callers branch on.
    pub kind: ErrorKind,
    /// What was tried on what.
    pub message: String,
    /// What the system said.
    #[source]
    pub source: Option<io::Error>,
}

/// The kinds of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// There is no such trace or blob.
    NotFound,
    /// The trace was removed while it was being written.
    Gone,
    /// Another writer holds the trace for too long.
    Busy,
    /// The trace has reached its largest size.
    Full,
    /// A line or a payload is longer than any may be.
    TooLarge,
    /// What is on disk is not what a writer of ours leaves.
    Corrupt,
    /// A file of somebody else's is not what it must be.
    Invalid,
    /// It cannot be told what a file is.
    Unknown,
    /// The event cannot be written as it is.
    Unwritable,
    /// The system refused.
    Io,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), source: None }
    }

    /// An error of the system at `path`; `what` is a verb that fits before it.
    pub(crate) fn io(what: &str, path: &Path, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Io,
        };
        Error { kind, message: format!("{what} {}", path.display()), source: Some(source) }
    }

    /// The message and what the system said about it, in one sentence.
    pub fn with_source(&self) -> String {
        match &self.source {
            Some(source) => format!("{}: {source}", self.message),
            None => self.message.clone(),
        }
    }
}
