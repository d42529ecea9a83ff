//! What can go wrong with us, as opposed to with a program in a box.

/// The kinds of errors that a caller may branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// What was asked for makes no sense.
    Invalid,
    /// No such box, command, file or image.
    NotFound,
    /// The name is taken.
    Exists,
    /// This host or runtime cannot do it; the message says why and what would help.
    Unsupported,
    /// Not allowed.
    Denied,
    /// A bound of ours was reached; the message names it.
    Limit,
    /// Nothing listens on the port.
    Refused,
    /// The box is gone.
    Gone,
    /// Something else is being done there; it can be tried again.
    Busy,
    /// The box is paused; it has to be resumed first.
    Paused,
    /// A container engine does not answer.
    Unreachable,
    /// The box's or the host's disk is full.
    DiskFull,
    /// The kernel, the disk or the guest failed.
    Failed,
}

/// An error of ours: what was tried, on what, and why it failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
    #[source]
    source: Option<std::io::Error>,
}

/// The result of what may fail through our fault or the caller's.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error without a deeper cause.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), source: None }
    }

    /// An error of the kernel or the disk while doing `what`, which fits after "cannot".
    pub fn io(what: impl std::fmt::Display, source: std::io::Error) -> Error {
        let kind = match source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                ErrorKind::Denied
            }
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::DiskFull,
            _ => ErrorKind::Failed,
        };
        Error { kind, message: format!("cannot {what}: {source}"), source: Some(source) }
    }

    /// To branch on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

pub(crate) trait Context<T> {
    /// Says what was being done.
    fn context(self, what: impl std::fmt::Display) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl std::fmt::Display) -> Result<T> {
        self.map_err(|e| Error::io(what, e.into()))
    }
}
