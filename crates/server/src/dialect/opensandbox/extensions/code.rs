//! Code contexts: interpreters of a box that remember. What `/code` streams is one answer here, and a context can be given all
//! that it can be given.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use glasshouse_sandbox::{CodeSpec, ContextInfo, ContextSpec, Error, ErrorKind, Language, Tongue, Warm};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::exec::{ExecResponse, told};
use crate::dialect::opensandbox::Service;
use crate::dialect::opensandbox::execd::Here;
use crate::dialect::opensandbox::fault::{Answer, Fault, NO_CONTEXT};
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::query::{Body, MaybeBody};

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new()
        .routes(routes!(list_contexts, create_context))
        .routes(routes!(get_context, delete_context))
        .routes(routes!(run_code))
        .routes(routes!(interrupt_context))
        .routes(routes!(restart_context))
}

/// A context that is wanted.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ContextRequest {
    /// `python` without a word; `javascript`, `typescript`, `bash`; `jupyter:NAME` for a kernel of Jupyter's that the box has.
    language: Option<String>,
    /// What it is called; without a name it is given one.
    id: Option<String>,
    /// A name in `PATH`, or a path in the box; of `jupyter`, a kernel's name; without one, the usual of the language.
    interpreter: Option<String>,
    /// The directory that it begins in.
    cwd: Option<String>,
    /// Added to the box's environment.
    env: BTreeMap<String, String>,
    /// A name or a number, or `user:group`.
    user: Option<String>,
    /// Have it forked from an interpreter that is kept warm with these modules loaded (none: a few that are often wanted).
    imports: Option<Vec<String>>,
}

/// A context of a box.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ContextResponse {
    id: String,
    language: String,
    /// What was asked for, if not the usual one.
    #[serde(skip_serializing_if = "Option::is_none")]
    interpreter: Option<String>,
    /// Of its interpreter.
    version: Option<String>,
    /// Its interpreter in the box, while it lives.
    pid: Option<u32>,
    /// `{"kind": "idle"}`, `{"kind": "busy", "exec": 7}`, `{"kind": "lost", "why": …}`, `{"kind": "starting"}`
    #[schema(value_type = Object)]
    state: Value,
    /// How many runs were begun in it.
    runs: u64,
    /// Whether it was forked from an interpreter that is kept warm.
    warm: bool,
    /// Why it was not, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    cold: Option<String>,
}

/// The contexts of a box.
#[derive(Debug, Serialize, ToSchema)]
struct ContextsResponse {
    contexts: Vec<ContextResponse>,
}

/// What to run in a context.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RunRequest {
    code: String,
    /// What it reads from its stdin; without, that is empty.
    stdin: Option<String>,
    /// Milliseconds after which it is interrupted.
    timeout_ms: Option<u64>,
    /// Milliseconds between the interrupt and the end of the whole context.
    grace_ms: Option<u64>,
}

/// A run that has ended.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct RunResponse {
    #[serde(flatten)]
    ended: ExecResponse,
    /// In their order: `{"value": {"data": {"text/plain": "2"}}}` for the last expression, `{"display": …}`, and
    /// `{"error": {"name", "value", "traceback"}}` at the end of one that failed. Bytes are base64.
    #[schema(value_type = Vec<Object>)]
    results: Vec<Value>,
    /// Why the context did not outlive the run, with all that it remembered; without a word, it lives.
    #[serde(skip_serializing_if = "Option::is_none")]
    context_lost: Option<String>,
}

impl From<ContextInfo> for ContextResponse {
    fn from(info: ContextInfo) -> ContextResponse {
        ContextResponse {
            id: info.id,
            language: info.language.name().to_owned(),
            interpreter: info.interpreter,
            version: info.version,
            pid: info.pid,
            state: serde_json::to_value(info.state).unwrap_or_default(),
            runs: info.runs,
            warm: info.warm,
            cold: info.cold,
        }
    }
}

/// What the library says of a context that is named: what it does not find is the context.
fn of(context: &str) -> impl FnOnce(Error) -> Fault + '_ {
    move |error| match error.kind() {
        ErrorKind::NotFound => Fault::no_context(context),
        _ => error.into(),
    }
}

/// The same for who has found it: it was lost, which is told, or is gone by now.
fn unfit(error: Error) -> Fault {
    match error.kind() {
        ErrorKind::NotFound => Fault::from(error).coded(NO_CONTEXT),
        _ => error.into(),
    }
}

/// List the contexts of a box
#[utoipa::path(get, path = "/sandboxes/{id}/contexts", tag = "extensions", params(("id" = String, Path)), responses(
    (status = 200, description = "`contexts`, those that were lost included", body = ContextsResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn list_contexts(Here(room): Here) -> Answer<Json<ContextsResponse>> {
    let contexts = room.sandbox.contexts().await?.into_iter().map(ContextResponse::from).collect();
    Ok(Json(ContextsResponse { contexts }))
}

/// Make a context
///
/// An interpreter that remembers what is run in it. The answer comes when it is there.
#[utoipa::path(post, path = "/sandboxes/{id}/contexts", tag = "extensions", params(("id" = String, Path)),
    request_body = Option<ContextRequest>, responses(
    (status = 201, description = "It is there", body = ContextResponse),
    (status = 400, description = "That makes no sense", body = ErrorResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn create_context(
    Here(room): Here,
    MaybeBody(request): MaybeBody<ContextRequest>,
) -> Answer<(StatusCode, Json<ContextResponse>)> {
    let ContextRequest { language, id, interpreter, cwd, env, user, imports } = request;
    let tongue = language.as_deref().unwrap_or(Language::Python.name()).parse();
    let tongue: Tongue = tongue.map_err(|why: String| Fault::invalid(why))?;
    let interpreter = tongue.interpreter(interpreter).map_err(Fault::invalid)?;
    let env = env.into_iter().collect();
    let warm = imports.map(|imports| Warm { imports });
    let language = tongue.language;
    let spec = ContextSpec { language, id, interpreter, cwd, env, user, warm, carried: None };
    let made = room.sandbox.create_context(spec).await?;
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// Show a context
#[utoipa::path(get, path = "/sandboxes/{id}/contexts/{context}", tag = "extensions",
    params(("id" = String, Path), ("context" = String, Path)), responses(
    (status = 200, description = "Where it stands", body = ContextResponse),
    (status = 404, description = "There is no such box or context", body = ErrorResponse),
))]
async fn get_context(
    Here(room): Here,
    Path((_, context)): Path<(String, String)>,
) -> Answer<Json<ContextResponse>> {
    Ok(Json(room.sandbox.context(&context).await.map_err(of(&context))?.into()))
}

/// Delete a context
///
/// Its interpreter is killed, with all that it started.
#[utoipa::path(delete, path = "/sandboxes/{id}/contexts/{context}", tag = "extensions",
    params(("id" = String, Path), ("context" = String, Path)), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "There is no such box or context", body = ErrorResponse),
))]
async fn delete_context(Here(room): Here, Path((_, context)): Path<(String, String)>) -> Answer<StatusCode> {
    room.sandbox.delete_context(&context).await.map_err(of(&context))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Run code in a context, and tell its end
///
/// One answer, when it has ended. Whoever goes away before does not stop it. `/code` streams.
#[utoipa::path(post, path = "/sandboxes/{id}/contexts/{context}/run", tag = "extensions",
    params(("id" = String, Path), ("context" = String, Path)), request_body = RunRequest, responses(
    (status = 200, description = "It has ended, in whatever way", body = RunResponse),
    (status = 400, description = "That makes no sense", body = ErrorResponse),
    (status = 404, description = "There is no such box or context", body = ErrorResponse),
    (status = 409, description = "The context is busy", body = ErrorResponse),
))]
async fn run_code(
    Here(room): Here,
    Path((_, context)): Path<(String, String)>,
    Body(request): Body<RunRequest>,
) -> Answer<Json<RunResponse>> {
    let context = room.sandbox.context(&context).await.map_err(of(&context))?;
    let RunRequest { code, stdin, timeout_ms, grace_ms } = request;
    let spec = CodeSpec { code, stdin: stdin.is_some(), timeout_ms, grace_ms, ..CodeSpec::default() };
    let exec = room.sandbox.run_code(&context, spec).await.map_err(unfit)?;
    let input = exec.input();
    // In a task of its own: a caller who goes away takes this request with him, and not the code.
    let output = tokio::spawn(async move {
        let feeding = tokio::spawn(async move {
            if let Some(stdin) = stdin {
                // Code that does not read it has ended, or will.
                let _ = input.write(stdin.as_bytes()).await;
                let _ = input.close().await;
            }
        });
        let output = exec.collect().await;
        feeding.abort();
        output
    });
    let lost = |_| Fault::internal("the code was lost sight of");
    let output = output.await.map_err(lost)?;
    let results = output.results.iter().map(|result| serde_json::to_value(result).unwrap_or_default());
    // An interpreter may end with any code. A box that is gone has said so.
    let context_lost = room.sandbox.why_lost(&context.id).await.unwrap_or_default();
    Ok(Json(RunResponse { ended: told(&output), results: results.collect(), context_lost }))
}

/// Interrupt what runs in a context
///
/// As by Ctrl-C; the context lives on.
#[utoipa::path(post, path = "/sandboxes/{id}/contexts/{context}/interrupt", tag = "extensions",
    params(("id" = String, Path), ("context" = String, Path)), responses(
    (status = 204, description = "It was told; nothing happens to one that is idle"),
    (status = 404, description = "There is no such box or context", body = ErrorResponse),
))]
async fn interrupt_context(
    Here(room): Here,
    Path((_, context)): Path<(String, String)>,
) -> Answer<StatusCode> {
    room.sandbox.interrupt_context(&context).await.map_err(of(&context))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Restart a context
///
/// Its interpreter is killed, with all that it started, and begins anew.
#[utoipa::path(post, path = "/sandboxes/{id}/contexts/{context}/restart", tag = "extensions",
    params(("id" = String, Path), ("context" = String, Path)), responses(
    (status = 200, description = "It is there again, and remembers nothing", body = ContextResponse),
    (status = 404, description = "There is no such box or context", body = ErrorResponse),
))]
async fn restart_context(
    Here(room): Here,
    Path((_, context)): Path<(String, String)>,
) -> Answer<Json<ContextResponse>> {
    Ok(Json(room.sandbox.restart_context(&context).await.map_err(of(&context))?.into()))
}
