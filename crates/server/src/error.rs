//! Why there is no service. What goes wrong with one request is told to its caller, in the dialect's words.

use std::io;
use std::path::PathBuf;

/// An error of the service as a whole.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings make no sense, or would be unsafe.
    #[error("{0}")]
    Refused(String),
    /// The server's own directory cannot be used.
    #[error("cannot {what} {}: {source}", path.display())]
    Files {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Connections cannot be accepted.
    #[error("cannot serve: {0}")]
    Serve(io::Error),
    /// The library failed.
    #[error(transparent)]
    House(#[from] glasshouse_sandbox::Error),
}

/// The result of what may fail.
pub type Result<T> = std::result::Result<T, Error>;
