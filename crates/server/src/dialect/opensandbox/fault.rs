//! What a caller is told when something cannot be done.

use axum::Json;
use axum::extract::rejection::{BytesRejection, JsonRejection};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use glasshouse_sandbox::{Error, ErrorKind};

use super::model::ErrorResponse;
use crate::tenants::Exceeded;

/// The protocol's one shape of errors: a status, a word to branch on, a sentence.
#[derive(Debug)]
pub(crate) struct Fault {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// When to try again.
    after_s: Option<u64>,
}

/// That a request makes no sense, in the words of the lifecycle.
pub(super) const INVALID: &str = "SANDBOX::INVALID_PARAMETER";

/// That there is no such context, command or session, in the words of `execd`.
pub(super) const NO_CONTEXT: &str = "CONTEXT_NOT_FOUND";
/// That something is missing of which no route has said what it is.
const MISSING: &str = "NOT_FOUND";

/// What routes answer.
pub(crate) type Answer<T> = Result<T, Fault>;

impl Fault {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Fault {
        Fault { status, code, message: message.into(), after_s: None }
    }

    /// What was asked for makes no sense.
    pub(crate) fn invalid(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::BAD_REQUEST, INVALID, message)
    }

    /// It makes sense, and cannot be done here.
    pub(crate) fn unsupported(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::NOT_IMPLEMENTED, "SANDBOX::API_NOT_SUPPORTED", message)
    }

    /// There is no such box.
    pub(crate) fn no_box(id: &str) -> Fault {
        Fault::new(StatusCode::NOT_FOUND, "DOCKER::SANDBOX_NOT_FOUND", format!("there is no sandbox {id}"))
    }

    /// There is no such interpreter in the box.
    pub(crate) fn no_context(id: &str) -> Fault {
        Fault::new(StatusCode::NOT_FOUND, NO_CONTEXT, format!("there is no context {id}"))
    }

    /// There is no such command in the box; the protocol has the same word for it as for contexts.
    pub(crate) fn no_command(id: impl std::fmt::Display) -> Fault {
        Fault::new(StatusCode::NOT_FOUND, NO_CONTEXT, format!("there is no command {id}"))
    }

    /// The box is there, or was, and nothing is on record of it.
    pub(crate) fn no_trace(id: &str) -> Fault {
        let message = format!("there is no record of sandbox {id}");
        Fault::new(StatusCode::NOT_FOUND, "TRACE_NOT_FOUND", message)
    }

    /// What the library says of a box that was asked for by this id. What it does not find is the box: somebody was faster.
    pub(crate) fn of_box(id: &str, error: Error) -> Fault {
        match error.kind() {
            ErrorKind::NotFound => Fault::no_box(id),
            _ => error.into(),
        }
    }

    /// The same; what else went wrong has this word.
    pub(crate) fn of_box_or(id: &str, code: &'static str, error: Error) -> Fault {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::Gone => Fault::of_box(id, error),
            _ => Fault::from(error).coded(code),
        }
    }

    /// The box is in a state in which that cannot be done.
    pub(crate) fn conflict(code: &'static str, message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::CONFLICT, code, message)
    }

    /// Something went wrong on our side.
    pub(crate) fn internal(message: impl Into<String>) -> Fault {
        Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "SANDBOX::INTERNAL_ERROR", message)
    }

    /// The same, and when to try again.
    pub(crate) fn after_s(self, seconds: u64) -> Fault {
        Fault { after_s: Some(seconds), ..self }
    }

    /// The same with another word to branch on.
    pub(crate) fn coded(self, code: &'static str) -> Fault {
        Fault { code, ..self }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

/// The library's errors, in the words of the lifecycle.
impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        let (status, code) = match error.kind() {
            ErrorKind::Invalid | ErrorKind::Limit => (StatusCode::BAD_REQUEST, INVALID),
            // Which of the things that there are: the sentence says it, and routes that know it have a word of its own.
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, MISSING),
            ErrorKind::Gone => (StatusCode::NOT_FOUND, "DOCKER::SANDBOX_NOT_FOUND"),
            ErrorKind::Exists | ErrorKind::Busy => (StatusCode::CONFLICT, INVALID),
            ErrorKind::Unsupported => (StatusCode::NOT_IMPLEMENTED, "SANDBOX::API_NOT_SUPPORTED"),
            ErrorKind::Paused => (StatusCode::CONFLICT, "DOCKER::SANDBOX_NOT_RUNNING"),
            ErrorKind::Denied => (StatusCode::FORBIDDEN, "SANDBOX::INTERNAL_ERROR"),
            ErrorKind::DiskFull => (StatusCode::INSUFFICIENT_STORAGE, "SANDBOX::INTERNAL_ERROR"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "SANDBOX::INTERNAL_ERROR"),
        };
        Fault::new(status, code, error.to_string())
    }
}

impl From<Exceeded> for Fault {
    fn from(Exceeded(message): Exceeded) -> Fault {
        Fault::new(StatusCode::FORBIDDEN, "QUOTA_EXCEEDED", message)
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Fault {
        let message = format!("the server cannot use its own files: {error}");
        Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "SANDBOX::INTERNAL_ERROR", message)
    }
}

impl From<JsonRejection> for Fault {
    fn from(rejection: JsonRejection) -> Fault {
        let status = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => StatusCode::PAYLOAD_TOO_LARGE,
            _ => StatusCode::BAD_REQUEST,
        };
        Fault::new(status, INVALID, rejection.body_text())
    }
}

impl From<BytesRejection> for Fault {
    fn from(rejection: BytesRejection) -> Fault {
        Fault::new(rejection.status(), INVALID, rejection.body_text())
    }
}

/// What an answer says went wrong, for the log.
#[derive(Debug, Clone)]
pub(super) struct Said {
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let Fault { status, code, message, after_s } = self;
        let said = Said { code, message: message.clone() };
        let body = Json(ErrorResponse { code: code.to_owned(), message });
        let mut response = match after_s {
            Some(seconds) => (status, [(header::RETRY_AFTER, seconds.to_string())], body).into_response(),
            None => (status, body).into_response(),
        };
        response.extensions_mut().insert(said);
        response
    }
}
