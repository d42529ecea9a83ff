//! What `execd` does inside a sandbox of OpenSandbox's: commands, files, metrics. Here the guest is asked instead.
//!
//! `command` and `stream` tell of commands as they run, `commands` knows those that were started, `session` strings them
//! together; `code` runs code where it is remembered; `pty` and `terminal` are shells that are talked to; `files`, `upload`,
//! `download` and `directories` are about files; `environment` and `accounts` read what a box says of itself.

mod accounts;
mod code;
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

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use glasshouse_sandbox::{Error, ErrorKind, Sandbox};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::fault::{self as faults, Answer, Fault, Said};
use super::model::ErrorResponse;
use super::rooms::Room;
use super::{Service, proxy};

pub(super) use code::{Telling, have as have_context};
pub(super) use command::{EVENTS, RunCommandRequest, spec as spec_of};
pub(super) use commands::Commands;
pub(super) use environment::of_commands;
pub(super) use terminal::Terminals;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new()
        .routes(routes!(ping))
        .routes(routes!(ready))
        .merge(command::routes())
        .merge(code::routes())
        .merge(of_files())
        .nest("/v1/filesystem/{uid}/{gid}", of_files())
        .merge(metrics::routes())
        .merge(session::routes())
        .merge(pty::routes())
        .routes(routes!(capabilities))
        // The real execd is a proxy as well.
        .route("/proxy/{port}", any(proxy::pass_on))
        .route("/proxy/{port}/", any(proxy::pass_on))
        .route("/proxy/{port}/{*rest}", any(proxy::pass_on))
        .routes(routes!(isolate))
        .routes(routes!(isolated_sessions))
        .route("/v1/isolated/session/{*rest}", any(isolated))
        .layer(axum::middleware::map_response(in_our_words))
}

/// What is wrong with a request has another word here than in the lifecycle.
async fn in_our_words(response: Response) -> Response {
    match response.extensions().get::<Said>() {
        Some(said) if said.code == faults::INVALID => {
            Fault::new(response.status(), "INVALID_REQUEST_BODY", said.message.clone()).into_response()
        }
        _ => response,
    }
}

/// What is done to files: as the box's user, or as any other.
fn of_files() -> OpenApiRouter<Arc<Service>> {
    files::routes().merge(upload::routes()).merge(download::routes()).merge(directories::routes())
}

/// The box of an endpoint: it lives, and there is a way to it.
pub(super) struct Here(pub(super) Arc<Room>);

impl FromRequestParts<Arc<Service>> for Here {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Answer<Here> {
        let words = words(parts, service).await;
        let id = words.get("id").map_or("", String::as_str);
        service.rooms.room(id).await.map(Here)
    }
}

/// What the path of a request names.
async fn words(parts: &mut Parts, service: &Arc<Service>) -> BTreeMap<String, String> {
    let words = Path::<BTreeMap<String, String>>::from_request_parts(parts, service).await;
    words.map(|Path(words)| words).unwrap_or_default()
}

/// The box of an endpoint, for what is done to its files: as the user and the group that the path names, if it does.
pub(super) struct Files(pub(super) Sandbox);

impl FromRequestParts<Arc<Service>> for Files {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Answer<Files> {
        let Here(room) = Here::from_request_parts(parts, service).await?;
        let words = words(parts, service).await;
        let (Some(uid), Some(gid)) = (words.get("uid"), words.get("gid")) else {
            return Ok(Files(room.sandbox.clone()));
        };
        let (Ok(uid), Ok(gid)) = (uid.parse::<u32>(), gid.parse::<u32>()) else {
            return Err(bad("INVALID_REQUEST_BODY", "the uid and the gid of a path are numbers"));
        };
        Ok(Files(room.sandbox.as_user(&format!("{uid}:{gid}"))))
    }
}

/// The box takes commands
#[utoipa::path(get, path = "/ping", tag = "execution", responses((status = 200, description = "It does")))]
async fn ping(_: Here) -> Empty {
    Empty
}

/// The box takes commands, as newer clients ask
#[utoipa::path(get, path = "/ready", tag = "execution", responses((status = 200, description = "It does")))]
async fn ready(_: Here) -> Empty {
    Empty
}

/// What is said of sandboxes in a sandbox.
#[derive(Debug, Serialize, ToSchema)]
struct NestingResponse {
    available: bool,
    /// Why not.
    message: &'static str,
}

/// Whether there are sandboxes in this sandbox
#[utoipa::path(get, path = "/v1/isolated/capabilities", tag = "execution",
    responses((status = 200, description = "There are not", body = NestingResponse)))]
async fn capabilities(_: Here) -> Json<NestingResponse> {
    Json(NestingResponse { available: false, message: NOT_NESTED })
}

const NOT_NESTED: &str = "this server's sandboxes hold no others; make another sandbox";

/// Make a sandbox in this sandbox, which is not here
#[utoipa::path(post, path = "/v1/isolated/session", tag = "not here",
    responses((status = 503, description = "And why", body = ErrorResponse)))]
async fn isolate() -> Fault {
    isolated().await
}

/// Sandboxes in this sandbox, which are not here
#[utoipa::path(get, path = "/v1/isolated/sessions", tag = "not here",
    responses((status = 503, description = "And why", body = ErrorResponse)))]
async fn isolated_sessions() -> Fault {
    isolated().await
}

async fn isolated() -> Fault {
    Fault::new(StatusCode::SERVICE_UNAVAILABLE, "SERVICE_UNAVAILABLE", NOT_NESTED)
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
