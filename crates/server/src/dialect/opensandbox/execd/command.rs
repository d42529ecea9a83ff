//! Commands: run, look at, read, interrupt.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Body as HttpBody;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use glasshouse_sandbox::{Error, ErrorKind, ExecEvent, ExecSpec, Image, Program, Sandbox};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::commands::Command;
use super::{Empty, Here, bad, environment, fault, missing};
use crate::clock;
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::query::{Body, Query};
use crate::dialect::opensandbox::rooms::Room;
use crate::dialect::opensandbox::{Service, Shared};
use crate::limits::{BACKGROUND_BYTES, INTERRUPT_GRACE};
use crate::random;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(run, interrupt)).routes(routes!(status)).routes(routes!(logs))
}

/// What to run.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct RunCommandRequest {
    /// A line for the shell: this or `argv`.
    command: Option<String>,
    /// A program and its arguments.
    argv: Option<Vec<String>>,
    /// Where; `~` and `$NAME` are replaced.
    cwd: Option<String>,
    /// It goes on by itself.
    background: Option<bool>,
    /// Milliseconds after which all of it is killed.
    timeout: Option<i64>,
    /// The user that it runs as.
    uid: Option<u32>,
    /// The group that it runs as.
    gid: Option<u32>,
    /// Variables, stronger than all others.
    envs: Option<BTreeMap<String, String>>,
}

impl RunCommandRequest {
    /// Whether it is to go on by itself.
    pub(crate) fn is_background(&self) -> bool {
        self.background.unwrap_or(false)
    }
}

/// Where a command stands.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CommandStatusResponse {
    id: String,
    /// What it runs.
    content: String,
    running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    started_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<String>,
}

/// Run a command
///
/// Its events come as a stream: JSON, a blank line after each. The last one is `execution_complete`, or `error` with the exit
/// code as its `evalue`. Whoever stops to listen does not stop the command.
#[utoipa::path(post, path = "/command", tag = "execution", request_body = RunCommandRequest, responses(
    (status = 200, description = "Events", content_type = "text/event-stream", body = String),
    (status = 400, description = "That makes no sense", body = ErrorResponse),
))]
async fn run(Here(room): Here, Body(request): Body<RunCommandRequest>) -> Answer<Response> {
    super::code::expect_look(&room, request.command.as_deref(), request.envs.as_ref()).await?;
    let background = request.is_background();
    let id = random::hex()?;
    let spec = spec(&room, request, &id).await?;
    if !background {
        let pieces = room.commands.stream(&room.sandbox, &id, spec).await.map_err(fault)?;
        return Ok(events(pieces));
    }
    let command = room.commands.start(&room.sandbox, &id, spec).await.map_err(fault)?;
    let mut piece = Vec::new();
    super::stream::put(
        &mut piece,
        super::stream::Event { kind: "init", text: Some(&id), ..Default::default() },
    );
    if command.is_stillborn {
        super::stream::put_failure(&mut piece, command.ended().await.how);
        return Ok((EVENTS, piece).into_response());
    }
    let done =
        super::stream::Event { kind: "execution_complete", execution_time: Some(0), ..Default::default() };
    super::stream::put(&mut piece, done);
    Ok((EVENTS, piece).into_response())
}

/// What a stream of events is sent with.
pub(crate) const EVENTS: [(header::HeaderName, &str); 3] = [
    (header::CONTENT_TYPE, "text/event-stream"),
    (header::CACHE_CONTROL, "no-cache"),
    (header::HeaderName::from_static("x-accel-buffering"), "no"),
];

pub(super) fn events(pieces: mpsc::Receiver<Bytes>) -> Response {
    let next = |mut pieces: mpsc::Receiver<Bytes>| async move {
        pieces.recv().await.map(|piece| (Ok::<_, std::convert::Infallible>(piece), pieces))
    };
    (EVENTS, HttpBody::from_stream(stream::unfold(pieces, next))).into_response()
}

/// From what a caller asks for to what the box is told. To be started by [`super::Commands::exec`].
pub(crate) async fn spec(room: &Room, request: RunCommandRequest, id: &str) -> Answer<ExecSpec> {
    let sandbox = &room.sandbox;
    let program = match (request.command, request.argv) {
        (Some(line), None) if !line.trim().is_empty() => {
            Program::Argv(vec![shell(room).await?.to_owned(), "-c".to_owned(), line])
        }
        (None, Some(argv)) if argv.first().is_some_and(|program| !program.is_empty()) => Program::Argv(argv),
        _ => {
            return Err(bad("INVALID_REQUEST_BODY", "give one of `command` (a line) and `argv` (a program)"));
        }
    };
    let timeout_ms = match request.timeout.map(u64::try_from) {
        None => None,
        Some(Ok(timeout @ 1..)) => Some(timeout),
        Some(_) => return Err(bad("INVALID_REQUEST_BODY", "timeout has to be at least one millisecond")),
    };
    let user = match (request.uid, request.gid) {
        (None, None) => None,
        (Some(uid), None) => Some(uid.to_string()),
        (Some(uid), Some(gid)) => Some(format!("{uid}:{gid}")),
        (None, Some(_)) => return Err(bad("INVALID_REQUEST_BODY", "a gid needs a uid")),
    };
    let (mut env, only_without) = match room.commands.have_variables() {
        true => (environment::of_commands(sandbox).await?, None),
        // Most boxes have no file of them, which is not asked for first: see `Commands::exec`.
        false => {
            let (env, file) = environment::without_file(sandbox);
            (env, Some(file))
        }
    };
    env.extend(request.envs.unwrap_or_default());
    let cwd = match request.cwd.filter(|cwd| !cwd.is_empty()) {
        // Where the host's image begins, only its user may be.
        None if user.is_some() && sandbox.info().root_image == Image::Host => Some("/".to_owned()),
        None => None,
        Some(cwd) => Some(environment::expand(sandbox, &cwd).await?),
    };
    let background = request.background.unwrap_or(false);
    Ok(ExecSpec {
        program,
        env,
        cwd,
        user,
        timeout_ms,
        // The whole tree is killed at once, as callers know it.
        grace_ms: Some(0),
        background,
        kept_output_bytes: background.then_some(BACKGROUND_BYTES),
        label: Some(id.to_owned()),
        only_without,
        ..ExecSpec::default()
    })
}

/// The shell of a box: bash, where there is one.
pub(super) async fn shell(room: &Room) -> Answer<&'static str> {
    let look = || async {
        for path in ["/bin/bash", "/usr/bin/bash"] {
            if is_there(&room.sandbox, path).await? {
                return Ok(path);
            }
        }
        Ok("/bin/sh")
    };
    room.shell.get_or_try_init(look).await.copied()
}

async fn is_there(sandbox: &Sandbox, path: &str) -> Answer<bool> {
    match sandbox.stat(path, true).await {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::Gone => Err(fault(e)),
        Err(_) => Ok(false),
    }
}

/// Interrupt a command
///
/// SIGTERM, and after three seconds SIGKILL, to all of it.
#[utoipa::path(delete, path = "/command", tag = "execution", params(("id" = String, Query, description = "Which")), responses(
    (status = 200, description = "It has ended"),
    (status = 400, description = "No id was given", body = ErrorResponse),
    (status = 500, description = "No such command runs", body = ErrorResponse),
))]
async fn interrupt(Here(room): Here, query: Query) -> Answer<Empty> {
    const SIGTERM: i32 = 15;
    let id = query.get("id").filter(|id| !id.is_empty()).ok_or_else(|| missing("id"))?;
    let idle =
        || Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "RUNTIME_ERROR", format!("no command {id} runs"));
    let command = room.commands.find(&room.sandbox, id).await.map_err(fault)?.ok_or_else(idle)?;
    if command.end().is_some() {
        return Err(idle());
    }
    // One that ends in this moment takes no signal any more; it has ended then.
    let _ = room.sandbox.signal(command.exec, SIGTERM, true).await;
    if tokio::time::timeout(INTERRUPT_GRACE, command.ended()).await.is_err() {
        room.sandbox.kill_exec(command.exec).await.map_err(fault)?;
        command.ended().await;
    }
    Ok(Empty)
}

/// Look at a command
#[utoipa::path(get, path = "/command/status/{command}", tag = "execution", params(("command" = String, Path)), responses(
    (status = 200, description = "Where it stands", body = CommandStatusResponse),
    (status = 404, description = "There is no such command", body = ErrorResponse),
))]
async fn status(
    Here(room): Here,
    Path((_, id)): Path<(String, String)>,
) -> Answer<Json<CommandStatusResponse>> {
    let command = known(&room, &id).await?;
    let end = command.end();
    Ok(Json(CommandStatusResponse {
        id,
        content: command.text.clone(),
        running: end.is_none(),
        exit_code: end.as_ref().and_then(|end| end.exit_code).or(command.is_stillborn.then_some(NOT_STARTED)),
        error: end.as_ref().filter(|end| !end.success).map(|end| end.how.clone()),
        started_at: clock::text(command.started_ms as i64),
        finished_at: end.map(|end| clock::text(end.finished_ms as i64)),
    }))
}

/// Read what a command in the background wrote
///
/// From a place on; the place of what comes next is in the header `EXECD-COMMANDS-TAIL-CURSOR`. Of more than 16 MiB, head and
/// tail are kept; `Glasshouse-Gap` names the places between which something is missing.
#[utoipa::path(get, path = "/command/{command}/logs", tag = "execution", params(
    ("command" = String, Path), ("cursor" = Option<u64>, Query, description = "0 without a word"),
), responses(
    (status = 200, description = "Both streams, as they came", content_type = "text/plain", body = String),
    (status = 400, description = "It does not run in the background", body = ErrorResponse),
    (status = 404, description = "There is no such command", body = ErrorResponse),
))]
async fn logs(
    State(_): Shared,
    Here(room): Here,
    Path((_, id)): Path<(String, String)>,
    query: Query,
) -> Answer<Response> {
    let from = match query.get("cursor").unwrap_or("0") {
        "" | "-1" => 0,
        text => {
            text.parse().map_err(|_| bad("INVALID_REQUEST_BODY", format!("{text:?} is no place in a log")))?
        }
    };
    let command = known(&room, &id).await?;
    if !command.background {
        let message = format!("command {id} does not run in the background: its output was streamed");
        return Err(bad("INVALID_REQUEST_BODY", message));
    }
    let (mut text, mut next, mut gap) = (Vec::new(), from, None);
    // The box keeps nothing of what it could not start.
    let mut reader = match command.is_stillborn {
        true => None,
        false => {
            let forgotten = |e: Error| match e.kind() {
                ErrorKind::NotFound => Fault::no_command(&id),
                _ => fault(e),
            };
            Some(room.sandbox.attach(command.exec, from, false).await.map_err(forgotten)?)
        }
    };
    while let Some(reader) = &mut reader
        && let Some(event) = reader.next().await
    {
        match event {
            ExecEvent::Output(chunk) => {
                next = chunk.offset + chunk.bytes.len() as u64;
                text.extend_from_slice(&chunk.bytes);
            }
            ExecEvent::Gap { from, to } => (next, gap) = (to, Some(format!("{from}-{to}"))),
            ExecEvent::UpToDate { offset } => next = next.max(offset),
            ExecEvent::Ended(_) | ExecEvent::Result(_) => {}
        }
    }
    let plain = (header::CONTENT_TYPE, "text/plain; charset=utf-8");
    let cursor = [("EXECD-COMMANDS-TAIL-CURSOR", next.to_string())];
    let gap = gap.map(|gap| [("Glasshouse-Gap", gap)]);
    Ok(match gap {
        Some(gap) => ([plain], cursor, gap, text).into_response(),
        None => ([plain], cursor, text).into_response(),
    })
}

/// The exit code that the protocol has for what never ran.
const NOT_STARTED: i32 = 255;

async fn known(room: &Room, id: &str) -> Answer<Arc<Command>> {
    room.commands.find(&room.sandbox, id).await.map_err(fault)?.ok_or_else(|| Fault::no_command(id))
}
