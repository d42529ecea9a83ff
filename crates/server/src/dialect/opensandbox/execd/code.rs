//! Code contexts: interpreters of a box that remember, in the words of `execd`.
//!
//! A context carries its id as its name in the box, so it is there for a server that was started anew. Without an id, code
//! is run in a context that each language has one of, made when it is first wanted. A language that we have no driver for is
//! one of a kernel of Jupyter's, if the box has such a kernel; so is TypeScript, where Node.js is too old for it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use glasshouse_sandbox::{
    CodeError, CodeResult, CodeSpec, ContextInfo, ContextSpec, ContextState, Error, ErrorKind, Exec,
    ExecEvent, Exit, ExitReport, Language, MimeBundle, OutputStream, Sandbox, Tongue, Warm,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::command::events;
use super::commands::{pass_on, put_line};
use super::stream::{self, Event, Failure, Lines};
use super::{Empty, Here, bad, environment, fault, missing};
use crate::clock::now_ms;
use crate::dialect::opensandbox::fault::{Answer, Fault, NO_CONTEXT};
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::query::{Body, MaybeBody, Query};
use crate::dialect::opensandbox::rooms::{ENTRYPOINT, Room};
use crate::dialect::opensandbox::{Service, Shared};
use crate::limits::{OUTPUT_PIECES, PING, READY_WAIT};
use crate::random;

/// The port at which the SDK looks whether a box runs code: there Jupyter would listen.
const READY_PORT: u16 = 44771;
/// The variable that may name another one.
const READY_PORT_NAME: &str = "JUPYTER_PORT";
/// Words in an entrypoint that listens at that port by itself, when it has got the box ready.
const OPENS_ITSELF: [&str; 2] = ["jupyter", "code-interpreter"];
/// The name of the error of a run that its context did not outlive.
const CONTEXT_LOST: &str = "ContextLost";

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new()
        .routes(routes!(run, interrupt))
        .routes(routes!(create))
        .routes(routes!(list, delete_all))
        .routes(routes!(get, delete))
}

/// A context, or the one that is wanted.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
struct CodeContext {
    /// Which; without one, the one that its language has.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// What it speaks: `python`, `javascript`, `typescript`, `bash`, or what a kernel of Jupyter's in the box speaks, like `go`;
    /// `jupyter:NAME` is the kernel of that name.
    #[serde(default)]
    language: String,
}

/// What language a context is to speak.
#[derive(Debug, Default, Deserialize, ToSchema)]
struct CodeContextRequest {
    /// `python` without a word.
    language: Option<String>,
    /// Where its code begins.
    cwd: Option<String>,
}

/// What to run.
#[derive(Debug, Deserialize, ToSchema)]
struct RunCodeRequest {
    code: String,
    /// Where; without one, in Python's.
    context: Option<CodeContext>,
}

impl From<ContextInfo> for CodeContext {
    fn from(info: ContextInfo) -> CodeContext {
        let language = tongue_of(&info).to_string();
        CodeContext { id: Some(info.id), language }
    }
}

/// What was said to make a context.
fn tongue_of(info: &ContextInfo) -> Tongue {
    Tongue { language: info.language, interpreter: info.interpreter.clone() }
}

/// Lets the port answer that is looked at, if a command does that: the one that its variables name.
///
/// An entrypoint that is about to open it, having chosen versions and installed kernels, is given time for that.
pub(super) async fn expect_look(
    room: &Room,
    line: Option<&str>,
    envs: Option<&BTreeMap<String, String>>,
) -> Answer<()> {
    if !line.is_some_and(|line| line.contains(READY_PORT_NAME)) || opens_it_itself(room).await {
        return Ok(());
    }
    let said = match envs.and_then(|envs| envs.get(READY_PORT_NAME)) {
        Some(said) => Some(said.clone()),
        // A box that cannot tell has no other than the usual one.
        None => environment::all(&room.sandbox).await.ok().and_then(|variables| {
            let found = variables.into_iter().rfind(|(name, _)| name == READY_PORT_NAME);
            found.map(|(_, value)| value)
        }),
    };
    let port = said.and_then(|said| said.parse().ok()).filter(|port| *port > 0);
    room.sandbox.answer(port.unwrap_or(READY_PORT)).await.map_err(fault)
}

/// Whether the box's entrypoint is of a kind that opens the port by itself, and has had no time for that yet.
async fn opens_it_itself(room: &Room) -> bool {
    let Ok(Some(entrypoint)) = room.commands.find(&room.sandbox, ENTRYPOINT).await else { return false };
    let is_new = now_ms().saturating_sub(entrypoint.started_ms) < READY_WAIT.as_millis() as u64;
    is_new && entrypoint.end().is_none() && OPENS_ITSELF.iter().any(|word| entrypoint.text.contains(word))
}

/// Run code
///
/// Its events come as a stream, as those of a command do; `result` has what it shows, by MIME type (`text` is `text/plain`). The
/// last one is `execution_complete`, or `error` with the exception; `ContextLost` is one of the context's, which remembers nothing
/// any more. Whoever stops to listen does not stop the code.
#[utoipa::path(post, path = "/code", tag = "execution", request_body = RunCodeRequest, responses(
    (status = 200, description = "Events", content_type = "text/event-stream", body = String),
    (status = 400, description = "That makes no sense", body = ErrorResponse),
    (status = 404, description = "There is no such context", body = ErrorResponse),
    (status = 500, description = "The context is busy", body = ErrorResponse),
))]
async fn run(
    State(service): Shared,
    Here(room): Here,
    Body(request): Body<RunCodeRequest>,
) -> Answer<Response> {
    if request.code.trim().is_empty() {
        return Err(bad("INVALID_REQUEST_BODY", "there is no code"));
    }
    let context = wanted(&service, &room.sandbox, request.context.unwrap_or_default()).await?;
    let count = context.runs + 1;
    let exec = room.sandbox.run_code(&context, CodeSpec::new(request.code)).await.map_err(unfit)?;
    let (pieces, receiver) = mpsc::channel(OUTPUT_PIECES);
    tokio::spawn(tell(room.sandbox.clone(), exec, context.id, count, pieces));
    Ok(events(receiver))
}

/// The context that a caller means.
async fn wanted(service: &Service, sandbox: &Sandbox, context: CodeContext) -> Answer<ContextInfo> {
    if let Some(id) = context.id.filter(|id| !id.is_empty()) {
        return known(sandbox, &id).await;
    }
    let tongue = tongue_named(&context.language)?;
    // A colon has no place in a name.
    let id = format!("default-{}", tongue.to_string().replace(':', "-"));
    have(sandbox, spec_of(service, sandbox, tongue, id).await).await.map_err(unstartable)
}

async fn spec_of(service: &Service, sandbox: &Sandbox, tongue: Tongue, id: String) -> ContextSpec {
    // A box without such a file has none of those variables.
    let env = environment::of_commands(sandbox).await.unwrap_or_default();
    let is_warm = service.config.warm_contexts && tongue.language == Language::Python;
    let Tongue { language, interpreter } = tongue;
    let warm = is_warm.then(Warm::default);
    ContextSpec { language, id: Some(id), interpreter, env, warm, ..ContextSpec::default() }
}

/// Has a context: the one of this name, or a new one. TypeScript that the box's Node.js cannot run is that of a kernel, if the
/// box has one that speaks it.
pub(in crate::dialect::opensandbox) async fn have(
    sandbox: &Sandbox,
    spec: ContextSpec,
) -> Result<ContextInfo, Error> {
    let has_other = spec.language == Language::Typescript && spec.interpreter.is_none();
    let refused = match sandbox.have_context(spec.clone()).await {
        Err(e) if has_other && e.kind() == ErrorKind::Unsupported => e,
        done => return done,
    };
    let Tongue { language, interpreter } = Tongue::kernel_of(spec.language.name());
    match sandbox.have_context(ContextSpec { language, interpreter, ..spec }).await {
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            Err(Error::new(ErrorKind::Unsupported, format!("{refused}; nor does a kernel: {e}")))
        }
        done => done,
    }
}

fn tongue_named(name: &str) -> Answer<Tongue> {
    let name = match name {
        "" => Language::Python.name(),
        // What callers know as lines of a shell that are remembered.
        "command" => Language::Bash.name(),
        name => name,
    };
    Tongue::or_kernel(&name.to_ascii_lowercase())
        .map_err(|why: String| Fault::new(StatusCode::BAD_REQUEST, "NOT_SUPPORTED", why))
}

async fn known(sandbox: &Sandbox, id: &str) -> Answer<ContextInfo> {
    sandbox.context(id).await.map_err(|e| of(id, e))
}

/// What the library says of a context that is named: what it does not find is the context.
fn of(id: &str, error: Error) -> Fault {
    match error.kind() {
        ErrorKind::NotFound => Fault::no_context(id),
        _ => fault(error),
    }
}

/// What the library says of a run in a context that was found.
fn unfit(error: Error) -> Fault {
    match error.kind() {
        // It was lost, which is told, or is gone by now.
        ErrorKind::NotFound => Fault::from(error).coded(NO_CONTEXT),
        ErrorKind::Busy => {
            let message = format!("session is busy: {error}");
            Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "RUNTIME_ERROR", message)
        }
        _ => fault(error),
    }
}

/// An interpreter that is not there, or does not come up.
fn unstartable(error: Error) -> Fault {
    match error.kind() {
        ErrorKind::Gone => fault(error),
        _ => Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "RUNTIME_ERROR", error.to_string()),
    }
}

/// Tells what code does, to its end, for as long as somebody listens.
async fn tell(sandbox: Sandbox, exec: Exec, context: String, count: u64, pieces: mpsc::Sender<Bytes>) {
    let mut telling = Telling::begun(&context, pieces);
    telling.put(Event { kind: "execution_count", execution_count: Some(count), ..Event::default() });
    let (report, error) = telling.follow(exec).await;
    // An interpreter may end with any code. A box that is gone has said so.
    let error = match sandbox.why_lost(&context).await.unwrap_or_default() {
        Some(why) => Some(context_lost(why, &report, error)),
        None => error,
    };
    telling.end(&report, error).await;
}

/// The error of a run that its context did not outlive: the protocol has one event for an end, and what is remembered no more is the
/// first thing to know.
fn context_lost(why: String, report: &ExitReport, error: Option<CodeError>) -> CodeError {
    let mut traceback = error.map(|error| error.traceback).unwrap_or_default();
    traceback.push(format!("the context was lost: {why} ({})", report.exit));
    CodeError { name: CONTEXT_LOST.to_owned(), value: why, traceback }
}

/// What is told of code, to somebody who may have stopped to listen.
pub(in crate::dialect::opensandbox) struct Telling {
    listener: Option<mpsc::Sender<Bytes>>,
    piece: Vec<u8>,
    stdout: Lines,
    stderr: Lines,
}

impl Telling {
    /// Begins with the name of what is told.
    pub(in crate::dialect::opensandbox) fn begun(id: &str, listener: mpsc::Sender<Bytes>) -> Telling {
        let (stdout, stderr) = (Lines::default(), Lines::default());
        let mut telling = Telling { listener: Some(listener), piece: Vec::new(), stdout, stderr };
        telling.put(Event { kind: "init", text: Some(id), ..Event::default() });
        telling
    }

    fn put(&mut self, event: Event<'_>) {
        stream::put(&mut self.piece, event);
    }

    async fn pass_on(&mut self) {
        pass_on(&mut self.listener, &mut self.piece).await;
    }

    /// What was written is a line, finished or not.
    fn finish_lines(&mut self) {
        self.stdout.finish(|text| put_line(&mut self.piece, "stdout", text));
        self.stderr.finish(|text| put_line(&mut self.piece, "stderr", text));
    }

    /// Tells all that a run says. How it ended, and its error.
    pub(in crate::dialect::opensandbox) async fn follow(
        &mut self,
        mut exec: Exec,
    ) -> (ExitReport, Option<CodeError>) {
        let mut error = None;
        self.pass_on().await;
        let mut ping = tokio::time::interval(PING);
        ping.reset();
        let report = loop {
            let event = tokio::select! {
                event = exec.next() => event,
                _ = ping.tick(), if self.listener.is_some() => {
                    self.put(Event { kind: "ping", text: Some("pong"), ..Event::default() });
                    self.pass_on().await;
                    continue;
                }
            };
            match event {
                Some(ExecEvent::Output(chunk)) => match chunk.stream {
                    OutputStream::Stdout => {
                        self.stdout.push(&chunk.bytes, |text| put_line(&mut self.piece, "stdout", text))
                    }
                    OutputStream::Stderr => {
                        self.stderr.push(&chunk.bytes, |text| put_line(&mut self.piece, "stderr", text))
                    }
                    OutputStream::Results => {}
                },
                Some(ExecEvent::Result(CodeResult::Error(told))) => error = Some(told),
                Some(ExecEvent::Result(CodeResult::Value(bundle) | CodeResult::Display(bundle))) => {
                    // What was written before it comes before it.
                    self.finish_lines();
                    let results = Some(shapes(bundle));
                    self.put(Event { kind: "result", results, ..Event::default() });
                }
                Some(ExecEvent::Gap { .. }) => {}
                Some(ExecEvent::Ended(report)) => break report,
                Some(ExecEvent::UpToDate { .. }) | None => {
                    break ExitReport::never_ran(Exit::BoxGone { why: "its end was not told".to_owned() });
                }
            }
            self.pass_on().await;
            ping.reset();
        };
        self.finish_lines();
        (report, error)
    }

    /// Tells how it ended: by its error, if there is one.
    pub(in crate::dialect::opensandbox) async fn end(
        mut self,
        report: &ExitReport,
        error: Option<CodeError>,
    ) {
        match error {
            Some(CodeError { name, value, traceback }) => {
                let error = Some(Failure { ename: Cow::Owned(name), evalue: value, traceback });
                self.put(Event { kind: "error", error, ..Event::default() });
            }
            None => stream::put_end(&mut self.piece, report),
        }
        self.pass_on().await;
    }
}

/// What code shows, by the names that the protocol has for the shapes.
fn shapes(bundle: MimeBundle) -> BTreeMap<String, Value> {
    let shape = |(mime, data): (String, String)| match mime.as_str() {
        "text/plain" => ("text".to_owned(), Value::String(data)),
        "application/json" => (mime, serde_json::from_str(&data).unwrap_or(Value::String(data))),
        _ => (mime, Value::String(data)),
    };
    bundle.data.into_iter().map(shape).collect()
}

/// Interrupt code
///
/// What runs in a context is interrupted, as by Ctrl-C; the context lives on.
#[utoipa::path(delete, path = "/code", tag = "execution", params(("id" = String, Query, description = "The context")), responses(
    (status = 200, description = "It was interrupted"),
    (status = 400, description = "No id was given", body = ErrorResponse),
    (status = 404, description = "There is no such context", body = ErrorResponse),
))]
async fn interrupt(Here(room): Here, query: Query) -> Answer<Empty> {
    let id = query.get("id").filter(|id| !id.is_empty()).ok_or_else(|| missing("id"))?;
    let context = known(&room.sandbox, id).await?;
    room.sandbox.interrupt_context(&context.id).await.map_err(|e| of(id, e))?;
    Ok(Empty)
}

/// Make a context
#[utoipa::path(post, path = "/code/context", tag = "execution", request_body = Option<CodeContextRequest>, responses(
    (status = 200, description = "It waits for code", body = CodeContext),
    (status = 400, description = "There is no such language", body = ErrorResponse),
    (status = 500, description = "Its interpreter does not start", body = ErrorResponse),
))]
async fn create(
    State(service): Shared,
    Here(room): Here,
    MaybeBody(request): MaybeBody<CodeContextRequest>,
) -> Answer<Json<CodeContext>> {
    let tongue = tongue_named(&request.language.unwrap_or_default())?;
    let cwd = match request.cwd.filter(|cwd| !cwd.is_empty()) {
        Some(cwd) => Some(environment::expand(&room.sandbox, &cwd).await?),
        None => None,
    };
    let spec = spec_of(&service, &room.sandbox, tongue, random::hex()?).await;
    let spec = ContextSpec { cwd, ..spec };
    let made = have(&room.sandbox, spec).await.map_err(unstartable)?;
    Ok(Json(made.into()))
}

/// List the contexts of a language
#[utoipa::path(get, path = "/code/contexts", tag = "execution",
    params(("language" = Option<String>, Query, description = "All of them without a word")), responses(
    (status = 200, description = "In the order in which they were made", body = Vec<CodeContext>),
    (status = 400, description = "There is no such language", body = ErrorResponse),
))]
async fn list(Here(room): Here, query: Query) -> Answer<Json<Vec<CodeContext>>> {
    Ok(Json(of_language(&room, &query).await?.into_iter().map(CodeContext::from).collect()))
}

/// Those that live.
async fn of_language(room: &Room, query: &Query) -> Answer<Vec<ContextInfo>> {
    let tongue = query.get("language").filter(|name| !name.is_empty()).map(tongue_named).transpose()?;
    let mut contexts = room.sandbox.contexts().await.map_err(fault)?;
    contexts.retain(|context| {
        tongue.as_ref().is_none_or(|tongue| tongue_of(context).to_string() == tongue.to_string())
            && !matches!(context.state, ContextState::Lost { .. })
    });
    Ok(contexts)
}

/// Remove the contexts of a language
#[utoipa::path(delete, path = "/code/contexts", tag = "execution", params(("language" = String, Query)), responses(
    (status = 200, description = "They are gone"),
    (status = 400, description = "No language was given", body = ErrorResponse),
))]
async fn delete_all(Here(room): Here, query: Query) -> Answer<Empty> {
    query.get("language").filter(|name| !name.is_empty()).ok_or_else(|| missing("language"))?;
    for context in of_language(&room, &query).await? {
        match room.sandbox.delete_context(&context.id).await {
            // Somebody else was faster.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            done => done.map_err(fault)?,
        }
    }
    Ok(Empty)
}

/// Look at a context
#[utoipa::path(get, path = "/code/contexts/{context}", tag = "execution", params(("context" = String, Path)), responses(
    (status = 200, description = "It is there", body = CodeContext),
    (status = 404, description = "There is no such context", body = ErrorResponse),
))]
async fn get(Here(room): Here, Path((_, id)): Path<(String, String)>) -> Answer<Json<CodeContext>> {
    Ok(Json(known(&room.sandbox, &id).await?.into()))
}

/// Remove a context
///
/// What runs in it is killed.
#[utoipa::path(delete, path = "/code/contexts/{context}", tag = "execution", params(("context" = String, Path)), responses(
    (status = 200, description = "It is gone"),
    (status = 404, description = "There is no such context", body = ErrorResponse),
))]
async fn delete(Here(room): Here, Path((_, id)): Path<(String, String)>) -> Answer<Empty> {
    room.sandbox.delete_context(&id).await.map(|()| Empty).map_err(|e| of(&id, e))
}
