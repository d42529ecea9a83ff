//! Terminals over WebSockets, as execd has them: made first, and talked to by whoever connects.

use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::terminal::{Next, Seat, Started, Terminal};
use super::{Empty, Here, bad, fault};
use crate::dialect::opensandbox::Service;
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::query::{MaybeBody, Query};
use crate::dialect::opensandbox::rooms::Room;
use crate::dialect::opensandbox::socket::{Closing, Deaf, Inbox, Outbox, Upgrade, obey};
use crate::limits::TERMINALS;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(make)).routes(routes!(look, remove)).routes(routes!(connect))
}

/// What a terminal is to run.
#[derive(Debug, Default, Deserialize, ToSchema)]
struct CreatePtyRequest {
    /// Where; `~` and `$NAME` are replaced.
    cwd: Option<String>,
    /// A line for the shell; without, the shell itself.
    command: Option<String>,
}

/// A terminal that was made.
#[derive(Debug, Serialize, ToSchema)]
struct CreatePtyResponse {
    session_id: String,
}

/// Where a terminal stands.
#[derive(Debug, Serialize, ToSchema)]
struct PtyStatus {
    session_id: String,
    /// Its shell was started, and has not ended.
    running: bool,
    /// Bytes that it has written.
    output_offset: u64,
}

/// Make a terminal
///
/// Its shell starts when somebody connects to it.
#[utoipa::path(post, path = "/pty", tag = "execution", request_body = Option<CreatePtyRequest>, responses(
    (status = 201, description = "It is made", body = CreatePtyResponse),
    (status = 400, description = "That makes no sense", body = ErrorResponse),
    (status = 429, description = "The box has too many", body = ErrorResponse),
))]
async fn make(
    Here(room): Here,
    MaybeBody(request): MaybeBody<CreatePtyRequest>,
) -> Answer<(StatusCode, Json<CreatePtyResponse>)> {
    let said = |text: Option<String>| text.filter(|text| !text.is_empty());
    let (cwd, command) = (said(request.cwd), said(request.command));
    if [&cwd, &command].into_iter().flatten().any(|text| text.contains('\0')) {
        return Err(bad("INVALID_REQUEST_BODY", "neither cwd nor command can hold a zero byte"));
    }
    let made = room.terminals.make(cwd, command)?.ok_or_else(|| {
        let message = format!("a sandbox has {TERMINALS} terminals at most; delete one");
        Fault::new(StatusCode::TOO_MANY_REQUESTS, "SERVICE_UNAVAILABLE", message)
    })?;
    Ok((StatusCode::CREATED, Json(CreatePtyResponse { session_id: made.id.clone() })))
}

/// Look at a terminal
#[utoipa::path(get, path = "/pty/{session}", tag = "execution", params(("session" = String, Path)), responses(
    (status = 200, description = "Where it stands", body = PtyStatus),
    (status = 404, description = "There is no such terminal", body = ErrorResponse),
))]
async fn look(Here(room): Here, Path((_, session)): Path<(String, String)>) -> Answer<Json<PtyStatus>> {
    let (running, output_offset) = found(&room, &session)?.state();
    Ok(Json(PtyStatus { session_id: session, running, output_offset }))
}

/// End a terminal
#[utoipa::path(delete, path = "/pty/{session}", tag = "execution", params(("session" = String, Path)), responses(
    (status = 200, description = "It is gone, and what ran in it"),
    (status = 404, description = "There is no such terminal", body = ErrorResponse),
))]
async fn remove(Here(room): Here, Path((_, session)): Path<(String, String)>) -> Answer<Empty> {
    let terminal = room.terminals.remove(&session).ok_or_else(|| unknown(&session))?;
    terminal.kill().await.map_err(fault)?;
    Ok(Empty)
}

/// Talk to a terminal
///
/// A WebSocket. The server says `{"type": "connected", "session_id", "mode", "offset"}`, sends output in binary messages (the
/// first byte is 1 for the output, 2 for stderr without a terminal, 3 for what was kept, with its place in 8 bytes, the
/// largest first), and `{"type": "exit", "exit_code"}` at the end. The client sends its input in binary after a byte 0, and
/// `{"type": "resize", "cols", "rows"}`, `{"type": "signal", "signal": "SIGINT"}`, `{"type": "ping"}`.
#[utoipa::path(get, path = "/pty/{session}/ws", tag = "execution", params(
    ("session" = String, Path),
    ("pty" = Option<String>, Query, description = "`0`: pipes in place of a terminal"),
    ("since" = Option<u64>, Query, description = "What was written from this place on is sent again, as far as it is kept"),
    ("takeover" = Option<String>, Query, description = "`1`: whoever is connected is closed, with the code 4001"),
), responses(
    (status = 101, description = "A WebSocket"),
    (status = 400, description = "It was not asked for one", body = ErrorResponse),
    (status = 404, description = "There is no such terminal", body = ErrorResponse),
    (status = 409, description = "Somebody is connected already", body = ErrorResponse),
))]
async fn connect(
    Here(room): Here,
    Path((_, session)): Path<(String, String)>,
    query: Query,
    upgrade: Upgrade,
) -> Answer<Response> {
    let terminal = found(&room, &session)?;
    let flag = |name: &str| matches!(query.get(name), Some("1" | "true"));
    let tty = !matches!(query.get("pty"), Some("0" | "false"));
    let since = match query.get("since").filter(|since| !since.is_empty()) {
        Some(text) => {
            let wrong = |_| bad("INVALID_REQUEST_BODY", format!("{text:?} is no place in an output"));
            Some(text.parse().map_err(wrong)?)
        }
        None => None,
    };
    let seat = terminal.sit(since, flag("takeover")).ok_or_else(|| {
        let message = format!("somebody is connected to terminal {session}; takeover=1 takes it over");
        Fault::conflict("ALREADY_CONNECTED", message)
    })?;
    let started = terminal.started(&room, tty).await?;
    Ok(upgrade.talk(|outbox, inbox| show(terminal, seat, started, outbox, inbox)))
}

/// Shows a terminal to a client, and lets it type.
async fn show(
    terminal: Arc<Terminal>,
    mut seat: Seat,
    started: Started,
    outbox: Outbox,
    inbox: Inbox,
) -> Closing {
    let mode = if started.tty { "pty" } else { "pipe" };
    let hello = json!({ "type": "connected", "session_id": terminal.id, "mode": mode, "offset": seat.from });
    if outbox.say(hello).await.is_err() {
        return Closing::DONE;
    }
    let obeying = obey(inbox, started.input, started.tty, outbox.clone());
    tokio::select! {
        closing = shown(&mut seat, &outbox) => closing,
        () = obeying => Closing::DONE,
    }
}

async fn shown(seat: &mut Seat, outbox: &Outbox) -> Closing {
    const TAKEN_OVER: Closing = Closing { code: 4001, reason: "TAKEN_OVER" };
    let live_from = seat.live_from;
    loop {
        let next = seat.next().await;
        let sent = match next {
            Some(Next::Piece(piece)) if piece.offset < live_from => {
                outbox.replay(piece.offset, &piece.bytes).await
            }
            Some(Next::Piece(piece)) => outbox.output(piece.stream, &piece.bytes).await,
            Some(Next::Over(exit_code)) => {
                let exit_code = exit_code.unwrap_or(-1);
                let _ = outbox.say(json!({ "type": "exit", "exit_code": exit_code })).await;
                return Closing::DONE;
            }
            None => return TAKEN_OVER,
        };
        if let Err(Deaf) = sent {
            return Closing::DONE;
        }
    }
}

fn found(room: &Room, session: &str) -> Answer<Arc<Terminal>> {
    room.terminals.find(session).ok_or_else(|| unknown(session))
}

fn unknown(session: &str) -> Fault {
    let message = format!("there is no terminal {session}");
    Fault::new(StatusCode::NOT_FOUND, "SESSION_NOT_FOUND", message)
}
