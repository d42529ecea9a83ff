//! What `execd` does inside a sandbox of OpenSandbox's: commands, files, metrics. Here the guest is asked instead.
//!
//! `command` and `stream` tell of commands as they run, `commands` knows those that were started, `session` strings them
//! together; `pty` and `terminal` are shells that are talked to; `files`, `upload`,
//! `download` and `directories` are about files; `environment` and `accounts` read what a box says of itself.

mod accounts;
mod command;
mod commands;
mod directories;
mod download;
mod environment;
mod files;
mod metrics;
mod modes;
mod pty;
mod session;
mod stream;
mod terminal;
mod tree;
mod upload;

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use glasshouse_sandbox::{Error, ErrorKind};
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::fault::{Answer, Fault};
use super::rooms::Room;
use super::{Service, proxy};

pub(super) use command::{EVENTS, RunCommandRequest, spec as spec_of};
pub(super) use commands::Commands;
pub(super) use metrics::Usage;
pub(super) use terminal::Terminals;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new()
        .routes(routes!(ping))
        .merge(command::routes())
        .merge(files::routes())
        .merge(upload::routes())
        .merge(download::routes())
        .merge(directories::routes())
        .merge(metrics::routes())
        .merge(session::routes())
        .merge(pty::routes())
        .routes(routes!(capabilities))
        // The real execd is a proxy as well.
        .route("/proxy/{port}", any(proxy::pass_on))
        .route("/proxy/{port}/", any(proxy::pass_on))
        .route("/proxy/{port}/{*rest}", any(proxy::pass_on))
        .route("/code", any(code))
        .route("/code/{*rest}", any(code))
        .route("/v1/isolated/session", any(isolated))
        .route("/v1/isolated/sessions", any(isolated))
        .route("/v1/isolated/session/{*rest}", any(isolated))
        .route("/v1/filesystem/{uid}/{gid}/{*rest}", any(identities))
}

/// The box of an endpoint: it lives, and there is a way to it.
pub(super) struct Here(pub(super) Arc<Room>);

impl FromRequestParts<Arc<Service>> for Here {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Answer<Here> {
        let words =
            Path::<std::collections::BTreeMap<String, String>>::from_request_parts(parts, service).await;
        let id = words.ok().and_then(|Path(words)| words.get("id").cloned()).unwrap_or_default();
        service.rooms.room(&id).await.map(Here)
    }
}

/// The box takes commands
#[utoipa::path(get, path = "/ping", tag = "execution", responses((status = 200, description = "It does")))]
async fn ping(_: Here) -> Empty {
    Empty
}

/// Whether there are sandboxes in this sandbox
#[utoipa::path(get, path = "/v1/isolated/capabilities", tag = "execution",
    responses((status = 200, description = "There are not", body = Value)))]
async fn capabilities(_: Here) -> Json<Value> {
    Json(json!({ "available": false, "message": NOT_NESTED }))
}

const NOT_NESTED: &str = "this server's sandboxes hold no others; make another sandbox";

async fn isolated() -> Fault {
    Fault::new(StatusCode::SERVICE_UNAVAILABLE, "SERVICE_UNAVAILABLE", NOT_NESTED)
}

async fn code() -> Fault {
    Fault::unsupported("this server runs no code contexts yet; run the interpreter as a command")
        .coded("NOT_SUPPORTED")
}

async fn identities() -> Fault {
    let message = "this server does not touch files as another user yet; run a command with a uid";
    Fault::unsupported(message).coded("NOT_SUPPORTED")
}

/// An answer that says nothing, and that it says nothing: some clients try to read on otherwise.
struct Empty;

impl IntoResponse for Empty {
    fn into_response(self) -> Response {
        (StatusCode::OK, [(header::CONTENT_LENGTH, "0")]).into_response()
    }
}

/// The library's errors, in the words of this part of the protocol.
fn fault(error: Error) -> Fault {
    match error.kind() {
        ErrorKind::NotFound => Fault::new(StatusCode::NOT_FOUND, "FILE_NOT_FOUND", error.to_string()),
        ErrorKind::Invalid => Fault::new(StatusCode::BAD_REQUEST, "INVALID_REQUEST_BODY", error.to_string()),
        ErrorKind::Gone => Fault::from(error),
        _ => Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "RUNTIME_ERROR", error.to_string()),
    }
}

/// What was sent makes no sense.
fn bad(code: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(StatusCode::BAD_REQUEST, code, message)
}

/// A query lacks a word.
fn missing(name: &str) -> Fault {
    bad("MISSING_QUERY", format!("the query has no `{name}`"))
}
