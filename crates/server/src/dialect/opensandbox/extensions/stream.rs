//! A command that is talked to while it runs: over a WebSocket, in a terminal or with pipes.

use std::sync::Arc;

use axum::extract::ws::Message;
use axum::response::Response;
use futures_util::StreamExt as _;
use glasshouse_sandbox::{Error, ErrorKind, Exec, ExecEvent, ExitReport, TtySize};
use serde::Deserialize;
use serde_json::json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dialect::opensandbox::Service;
use crate::dialect::opensandbox::execd::{Here, RunCommandRequest, spec_of};
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::rooms::Room;
use crate::dialect::opensandbox::socket::{Closing, Deaf, Inbox, Outbox, Upgrade, obey};
use crate::limits::FIRST_MESSAGE;
use crate::random;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(connect))
}

/// What the stream is about: the first message.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum First {
    /// A command that begins.
    Start {
        #[serde(flatten)]
        request: RunCommandRequest,
        /// It has a terminal of this size.
        tty: Option<Window>,
    },
    /// One that runs in the background, or has ended there, from a place of its output on.
    Attach {
        exec: u64,
        #[serde(default)]
        from: u64,
    },
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Window {
    cols: u16,
    rows: u16,
}

/// Run a command and talk to it
///
/// A WebSocket. The first message says what it is about: `{"type": "start", …}` with the fields of `/command` and, for a terminal,
/// `"tty": {"cols": 80, "rows": 24}`; or `{"type": "attach", "exec": 3, "from": 0}` for one of the background. The server says
/// `{"type": "started", "exec"}`, sends output in binary messages (the first byte is 1 for stdout, 2 for stderr), `{"type": "gap",
/// "from", "to"}` for what was not kept, and `{"type": "exit", "exit", "exitCode", …}` at the end. The client sends input in
/// binary after a byte 0, and `{"type": "end"}` (of the input), `resize`, `signal`, `kill` and `ping`, as to a terminal. A
/// command of the foreground ends with the connection. Whoever does not read is waited for, and cut off after thirty seconds.
#[utoipa::path(get, path = "/sandboxes/{id}/stream", tag = "extensions", params(("id" = String, Path)), responses(
    (status = 101, description = "A WebSocket"),
    (status = 400, description = "It was not asked for one", body = ErrorResponse),
    (status = 403, description = "A page of another site asks", body = ErrorResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn connect(Here(room): Here, upgrade: Upgrade) -> Response {
    upgrade.talk(|outbox, inbox| talk(room, outbox, inbox))
}

async fn talk(room: Arc<Room>, outbox: Outbox, mut inbox: Inbox) -> Closing {
    const NOT_SAID: Closing = Closing { code: 1008, reason: "nothing was started in time" };
    let first = match tokio::time::timeout(FIRST_MESSAGE, inbox.next()).await {
        Ok(Some(Ok(Message::Text(text)))) => serde_json::from_str(&text).map_err(|e| {
            Fault::invalid(format!("the first message says what to start, or to attach to: {e}"))
        }),
        Ok(Some(Ok(_))) => Err(Fault::invalid("the first message has to be JSON: start, or attach")),
        Ok(_) => return Closing::DONE,
        Err(_) => return NOT_SAID,
    };
    let begun = match first {
        Ok(first) => begin(&room, first).await,
        Err(fault) => Err(fault),
    };
    let (exec, tty) = match begun {
        Ok(begun) => begun,
        Err(fault) => {
            let _ = outbox.complain(fault.code(), fault.message()).await;
            return Closing { code: 1008, reason: "it could not be started" };
        }
    };
    let obeying = obey(inbox, exec.input(), tty, outbox.clone());
    tokio::select! {
        // Whoever goes away has heard enough.
        _ = tell(exec, &outbox) => {}
        () = obeying => {}
    }
    Closing::DONE
}

/// Begins what the first message asks for. Whether it has a terminal.
async fn begin(room: &Room, first: First) -> Answer<(Exec, bool)> {
    match first {
        First::Start { request, tty } => {
            let mut spec = spec_of(room, request, &random::hex()?).await?;
            let size = tty.map(|Window { cols, rows }| TtySize { rows: rows.max(1), cols: cols.max(1) });
            (spec.tty, spec.stdin) = (size, true);
            if spec.tty.is_some() && !spec.env.iter().any(|(name, _)| name == "TERM") {
                // Weaker than what the box's own file of variables says.
                spec.env.insert(0, ("TERM".to_owned(), "xterm-256color".to_owned()));
            }
            Ok((room.commands.exec(&room.sandbox, spec).await?, tty.is_some()))
        }
        First::Attach { exec, from } => {
            let unknown = |e: Error| match e.kind() {
                ErrorKind::NotFound => Fault::no_command(exec),
                _ => e.into(),
            };
            Ok((room.sandbox.attach(exec, from, true).await.map_err(unknown)?, false))
        }
    }
}

/// Tells all that a command does, to its end.
async fn tell(mut exec: Exec, outbox: &Outbox) -> Result<(), Deaf> {
    outbox.say(json!({ "type": "started", "exec": exec.id() })).await?;
    while let Some(event) = exec.next().await {
        match event {
            ExecEvent::Output(chunk) => outbox.output(chunk.stream, &chunk.bytes).await?,
            ExecEvent::Gap { from, to } => {
                outbox.say(json!({ "type": "gap", "from": from, "to": to })).await?;
            }
            ExecEvent::UpToDate { .. } | ExecEvent::Result(_) => {}
            ExecEvent::Ended(report) => return outbox.say(end(&report)).await,
        }
    }
    Ok(())
}

fn end(report: &ExitReport) -> serde_json::Value {
    json!({
        "type": "exit", "exit": report.exit, "exitCode": report.exit.shell_code(), "wallUs": report.wall_us,
        "cpuUs": report.cpu_us, "peakMemoryBytes": report.peak_memory_bytes,
    })
}
