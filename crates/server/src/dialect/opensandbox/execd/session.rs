//! Shell sessions: commands that find the variables and the directory that the one before them left.
//!
//! Each command has a shell of its own. What is to last is kept in files of the box, below `/tmp`: its shell reads them
//! first and writes them last. So a session holds no process, and outlives the server.

use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::Response;
use glasshouse_sandbox::{ErrorKind, ExecSpec, Program};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::command::{events, shell};
use super::{Empty, Here, bad, environment, fault};
use crate::dialect::opensandbox::Service;
use crate::dialect::opensandbox::fault::{Answer, Fault, NO_CONTEXT};
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::query::{Body, MaybeBody};
use crate::dialect::opensandbox::rooms::Room;
use crate::limits::{ASK_TIMEOUT_MS, SESSION_TIMEOUT_MS};
use crate::random;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(create)).routes(routes!(run)).routes(routes!(delete))
}

/// Where a session begins.
#[derive(Debug, Default, Deserialize, ToSchema)]
struct CreateSessionRequest {
    cwd: Option<String>,
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
struct CreateSessionResponse {
    session_id: String,
}

/// What to run in a session.
#[derive(Debug, Deserialize, ToSchema)]
struct RunInSessionRequest {
    command: String,
    /// Where, from here on.
    cwd: Option<String>,
    /// Milliseconds after which it is killed; a day without a word.
    timeout: Option<i64>,
}

/// Reads what the last command left, and keeps what the one that follows leaves. `$1` is where, `$2` where to. The variables come
/// before the directory: that of the last command is among them. A session whose directory is gone goes on where it is told to, and
/// nowhere else: a command is not run where it was not meant to be. What is run sees no words of ours.
///
/// All of it is one line, and what is run follows on it: a shell counts the lines of what `eval` is given from the line that it
/// stands on, and what it says of them is about the caller's lines then.
const RUN: &str = concat!(
    r#"exec 2>&1; [ ! -f "$1/env" ] || . "$1/env"; IFS= read -r OPENSANDBOX_CWD < "$1/cwd"; "#,
    r#"case $2 in /*) cd -- "$2" || exit ;; *) cd -- "$OPENSANDBOX_CWD" || "#,
    r#"{ echo "the directory of this session is gone: name another one as cwd"; exit 1; }; "#,
    r#"[ -z "$2" ] || cd -- "$2" || exit ;; esac; "#,
    r#"trap "code=\$?; trap - EXIT; export -p > '$1/env'; pwd > '$1/cwd'; exit \$code" EXIT; "#,
    r#"unset OPENSANDBOX_CWD; set --; eval "#,
);
/// What follows that: what it leaves is kept here, too, for it may have set another trap of this kind. In a command that ends the shell
/// in its middle, that one stands in ours' place.
fn keep(place: &str) -> String {
    let place = quoted(place, false);
    format!("; set -- $?; export -p > {place}/env; pwd > {place}/cwd; exit $1")
}
/// Makes a session, where the shell is.
const CREATE: &str = r#"umask 077; mkdir -p "$1" && pwd > "$1/cwd""#;

/// The files of a session; only what we have called one can be.
fn place(session: &str) -> Answer<String> {
    let ours = session.len() == 32 && session.bytes().all(|byte| byte.is_ascii_hexdigit());
    ours.then(|| format!("/tmp/.opensandbox-sessions/{session}")).ok_or_else(|| unknown(session))
}

fn unknown(session: &str) -> Fault {
    Fault::new(StatusCode::NOT_FOUND, NO_CONTEXT, format!("there is no session {session}"))
}

/// A text as one word of a shell. In Bash also on one line, since there a word with more of them stands on its last; other shells
/// cannot write it so, and count from the first.
fn quoted(text: &str, is_bash: bool) -> String {
    if is_bash {
        format!("$'{}'", text.replace('\\', r"\\").replace('\'', r"\'").replace('\n', r"\n"))
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Begin a session
#[utoipa::path(post, path = "/session", tag = "execution", request_body = Option<CreateSessionRequest>, responses(
    (status = 200, description = "Its id", body = CreateSessionResponse),
    (status = 500, description = "It cannot begin there", body = ErrorResponse),
))]
async fn create(
    Here(room): Here,
    MaybeBody(request): MaybeBody<CreateSessionRequest>,
) -> Answer<Json<CreateSessionResponse>> {
    let session = random::hex()?;
    let argv = [shell(&room).await?, "-c", CREATE, "session", &place(&session)?];
    let cwd = match request.cwd.filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => Some(environment::expand(&room.sandbox, &cwd).await?),
        None => None,
    };
    let spec = ExecSpec {
        program: Program::Argv(argv.map(str::to_owned).into()),
        cwd,
        timeout_ms: Some(ASK_TIMEOUT_MS),
        ..ExecSpec::default()
    };
    let made = room.sandbox.exec(spec).await.map_err(fault)?.collect().await;
    if !made.report.exit.success() {
        let message = format!("cannot begin a session there: {}", made.report.exit);
        return Err(Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "RUNTIME_ERROR", message));
    }
    Ok(Json(CreateSessionResponse { session_id: session }))
}

/// Run a command in a session
///
/// What it writes comes as the events of a command do, both streams as one. Variables that it exports and the directory that it
/// goes to are there for the next one.
#[utoipa::path(post, path = "/session/{session}/run", tag = "execution", params(("session" = String, Path)),
    request_body = RunInSessionRequest, responses(
    (status = 200, description = "Events", content_type = "text/event-stream", body = String),
    (status = 404, description = "There is no such session", body = ErrorResponse),
    (status = 409, description = "A command runs in it", body = ErrorResponse),
))]
async fn run(
    Here(room): Here,
    Path((_, session)): Path<(String, String)>,
    Body(request): Body<RunInSessionRequest>,
) -> Answer<Response> {
    let place = place(&session)?;
    match room.sandbox.stat(&place, false).await {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => return Err(unknown(&session)),
        Err(e) => return Err(fault(e)),
    }
    if request.command.trim().is_empty() {
        return Err(bad("INVALID_REQUEST_BODY", "there is no command"));
    }
    if running(&room, &session).await?.is_some() {
        return Err(Fault::conflict("SESSION_BUSY", format!("a command runs in session {session}")));
    }
    let timeout_ms = match request.timeout.map(u64::try_from) {
        None => SESSION_TIMEOUT_MS,
        Some(Ok(timeout @ 1..)) => timeout,
        Some(_) => return Err(bad("INVALID_REQUEST_BODY", "timeout has to be at least one millisecond")),
    };
    let cwd = match request.cwd.filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => environment::expand(&room.sandbox, &cwd).await?,
        None => String::new(),
    };
    let shell = shell(&room).await?;
    let line = format!("{RUN}{}{}", quoted(&request.command, shell.ends_with("bash")), keep(&place));
    let argv = [shell, "-c", &line, "session", &place, &cwd];
    let spec = ExecSpec {
        program: Program::Argv(argv.map(str::to_owned).into()),
        env: environment::of_commands(&room.sandbox).await?,
        timeout_ms: Some(timeout_ms),
        grace_ms: Some(0),
        label: Some(session.clone()),
        ..ExecSpec::default()
    };
    Ok(events(room.commands.stream(&room.sandbox, &session, spec).await.map_err(fault)?))
}

/// End a session
///
/// What runs in it is killed.
#[utoipa::path(delete, path = "/session/{session}", tag = "execution", params(("session" = String, Path)), responses(
    (status = 200, description = "It is gone"),
    (status = 404, description = "There is no such session", body = ErrorResponse),
))]
async fn delete(Here(room): Here, Path((_, session)): Path<(String, String)>) -> Answer<Empty> {
    let place = place(&session)?;
    if let Some(exec) = running(&room, &session).await? {
        // One that ends in this moment cannot be killed any more.
        let _ = room.sandbox.kill_exec(exec).await;
    }
    match room.sandbox.remove_file(&place, true).await {
        Ok(()) => Ok(Empty),
        Err(e) if e.kind() == ErrorKind::NotFound => Err(unknown(&session)),
        Err(e) => Err(fault(e)),
    }
}

/// The command that runs in a session, by its number in the box.
async fn running(room: &Room, session: &str) -> Answer<Option<u64>> {
    let command = room.commands.find(&room.sandbox, session).await.map_err(fault)?;
    Ok(command.filter(|command| command.end().is_none()).map(|command| command.exec))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_is_given_what_was_said_and_counts_its_lines() {
        let text = "printf %s '\\ $0 \u{1}\u{7f}\tgr\u{fc}n\r'\necho \"[\\n]'\"\nnonesuch";
        for shell in ["bash", "sh"] {
            let line = format!("exec 2>&1; eval {}", quoted(text, shell == "bash"));
            let ran = Command::new(shell).args(["-c", &line, "me"]).env("LC_ALL", "C").output().unwrap();
            let said = String::from_utf8(ran.stdout).unwrap();
            let (first, rest) = said.split_once('\n').unwrap();
            assert!(first.starts_with("\\ $0 \u{1}\u{7f}\tgr\u{fc}n\r["), "{shell}: {said:?}");
            assert!(rest.contains("3:") && rest.contains("nonesuch"), "{shell}: {said:?}");
        }
    }
}
