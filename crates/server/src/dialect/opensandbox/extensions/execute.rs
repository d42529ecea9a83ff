//! A piece of code, in a box that is made for it and goes with it.
//!
//! Code runs in a context of a fresh box, as that of `/code` does, and is told in the same events. JavaScript and shells are a file
//! that the language's own program runs, which starts sooner than a context of theirs. The box ends
//! with the code, with the caller who stops to listen, and with the server, whichever is first.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use glasshouse_sandbox::{
    CodeError, CodeSpec, ContextSpec, ErrorKind, Exec, ExecSpec, Exit, ExitReport, Language, Program,
    Sandbox, SandboxSpec, Tongue,
};
use serde::Deserialize;
use tokio::sync::mpsc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::pieces_body;
use crate::dialect::opensandbox::execd::{Commands, EVENTS, Telling, have_context};
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::dialect::opensandbox::lifecycle::{have_image, mark};
use crate::dialect::opensandbox::model::{ErrorResponse, ImageSpec};
use crate::dialect::opensandbox::query::Body;
use crate::dialect::opensandbox::{Service, Shared, create};
use crate::door::Caller;
use crate::limits::{EXECUTE_TIMEOUT_MAX_MS, EXECUTE_TIMEOUT_MS, OUTPUT_PIECES};
use crate::random;
use crate::tenants;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(execute))
}

/// A piece of code.
#[derive(Debug, Deserialize, ToSchema)]
struct ExecuteRequest {
    /// `python`, `javascript`, `typescript`, `bash`, `sh`, `jupyter:NAME` for a kernel of Jupyter's that the image has, or what such
    /// a kernel speaks.
    language: String,
    code: String,
    /// The image that has the language's program; `host` without a word.
    image: Option<ImageSpec>,
    /// Milliseconds after which it is killed; 60000 without a word, an hour at most.
    timeout: Option<u64>,
    /// `cpu` and `memory`, as for a box.
    #[serde(rename = "resourceLimits")]
    resource_limits: Option<BTreeMap<String, String>>,
    /// Variables.
    envs: Option<BTreeMap<String, String>>,
}

/// What runs code.
enum Way {
    /// A program, given a file.
    Program(File),
    Context(Tongue),
}

/// A language whose code is a file: what it is called, what its files are called, and what runs them.
#[derive(Clone, Copy)]
struct File {
    names: &'static [&'static str],
    file: &'static str,
    program: &'static str,
}

const FILES: [File; 3] = [
    File { names: &["javascript", "js", "node"], file: "main.js", program: "node" },
    File { names: &["bash"], file: "main.sh", program: "bash" },
    File { names: &["sh", "shell"], file: "main.sh", program: "sh" },
];
/// What code of Python becomes that is too long for a context.
const LONG_PYTHON: File = File { names: &[], file: "main.py", program: "python3" };

impl Way {
    fn of(language: &str) -> Answer<Way> {
        match FILES.iter().find(|file| file.names.contains(&language)) {
            Some(file) => Ok(Way::Program(*file)),
            None => {
                Tongue::or_kernel(&language.to_ascii_lowercase()).map(Way::Context).map_err(Fault::invalid)
            }
        }
    }
}

/// How to run it.
struct Manner {
    env: Vec<(String, String)>,
    timeout_ms: u64,
}

/// Run a piece of code in a box of its own
///
/// The box is made for it, and is gone afterwards. Events come as those of a command do: `init`, `stdout` and `stderr` by lines,
/// and `execution_complete` or `error` at the end; Python, TypeScript and kernels tell `result`, and their exceptions, as `/code` does.
/// Whoever stops to listen ends it.
#[utoipa::path(post, path = "/execute", tag = "extensions", request_body = ExecuteRequest, responses(
    (status = 200, description = "Events", content_type = "text/event-stream", body = String),
    (status = 400, description = "That makes no sense", body = ErrorResponse),
    (status = 501, description = "This server cannot do that, and says why", body = ErrorResponse),
))]
async fn execute(
    State(service): Shared,
    caller: Caller,
    Body(request): Body<ExecuteRequest>,
) -> Answer<Response> {
    let way = Way::of(&request.language)?;
    let timeout_ms = request.timeout.unwrap_or(EXECUTE_TIMEOUT_MS);
    if !(1..=EXECUTE_TIMEOUT_MAX_MS).contains(&timeout_ms) {
        return Err(Fault::invalid(format!("timeout has to be 1 to {EXECUTE_TIMEOUT_MAX_MS} milliseconds")));
    }
    let host = ImageSpec { uri: "host".to_owned(), auth: None };
    let (image, _) =
        create::image(Some(request.image.as_ref().unwrap_or(&host)), None, service.config.runtime)?;
    have_image(&service, &image, request.image.and_then(create::credentials)).await?;
    // A box that nobody is told of has to go even if this process is killed.
    let mut spec = SandboxSpec { image, owner: Some(std::process::id()), ..SandboxSpec::default() };
    (spec.runtime, spec.limits) =
        (service.config.runtime, create::limits(&request.resource_limits.unwrap_or_default())?);
    spec.labels.extend(caller.tenant.iter().map(|tenant| (tenants::LABEL.to_owned(), tenant.clone())));
    let _place = service.tenants.place(&service.house, caller.tenant.as_deref(), &spec.limits, 1).await?;
    let sandbox = service.house.create(spec).await?;
    let manner = Manner { env: request.envs.unwrap_or_default().into_iter().collect(), timeout_ms };
    let begun = match mark(&service, sandbox.info()) {
        Ok(()) => begin(&sandbox, way, request.code, manner).await,
        Err(fault) => Err(fault),
    };
    match begun {
        Ok(pieces) => {
            let (sender, receiver) = mpsc::channel(OUTPUT_PIECES);
            tokio::spawn(pass_on(pieces, sender, sandbox));
            Ok((EVENTS, pieces_body(receiver)).into_response())
        }
        Err(fault) => {
            // What is left of it goes with this process.
            let _ = sandbox.destroy().await;
            Err(fault)
        }
    }
}

async fn begin(sandbox: &Sandbox, way: Way, code: String, manner: Manner) -> Answer<mpsc::Receiver<Bytes>> {
    match way {
        Way::Program(file) => run_file(sandbox, file, &code, manner).await,
        Way::Context(tongue) => run_code(sandbox, tongue, code, manner).await,
    }
}

async fn run_file(
    sandbox: &Sandbox,
    file: File,
    code: &str,
    manner: Manner,
) -> Answer<mpsc::Receiver<Bytes>> {
    let path = format!("/tmp/{}", file.file);
    sandbox.write_file(&path, code.as_bytes(), None).await?;
    let spec = ExecSpec {
        program: Program::Argv(vec![file.program.to_owned(), path]),
        env: manner.env,
        timeout_ms: Some(manner.timeout_ms),
        grace_ms: Some(0),
        ..ExecSpec::default()
    };
    Ok(Commands::default().stream(sandbox, &random::hex()?, spec).await?)
}

async fn run_code(
    sandbox: &Sandbox,
    tongue: Tongue,
    code: String,
    manner: Manner,
) -> Answer<mpsc::Receiver<Bytes>> {
    let Tongue { language, interpreter } = tongue;
    let spec = ContextSpec { language, interpreter, env: manner.env.clone(), ..ContextSpec::default() };
    let context = have_context(sandbox, spec).await.map_err(|e| match e.kind() {
        // The image lacks it: that is the caller's affair.
        ErrorKind::Unsupported => Fault::invalid(e.to_string()),
        _ => e.into(),
    })?;
    let timeout_ms = Some(manner.timeout_ms);
    let spec = CodeSpec { whole: true, timeout_ms, grace_ms: Some(0), ..CodeSpec::new(code) };
    let exec = match sandbox.run_code(&context, spec.clone()).await {
        Err(e) if e.kind() == ErrorKind::Limit && language == Language::Python => {
            return run_file(sandbox, LONG_PYTHON, &spec.code, manner).await;
        }
        begun => begun?,
    };
    let (pieces, receiver) = mpsc::channel(OUTPUT_PIECES);
    let telling = Telling::begun(&random::hex()?, pieces);
    tokio::spawn(tell(exec, telling));
    Ok(receiver)
}

/// Tells what code does, to its end, as that of a program is told.
async fn tell(exec: Exec, mut telling: Telling) {
    let (report, error) = telling.follow(exec).await;
    let error = error.filter(|error| is_failure(&report, error));
    telling.end(&report, error).await;
}

/// Whether code has failed by this error. What ended by itself, or was ended, has not: its end says more.
fn is_failure(report: &ExitReport, error: &CodeError) -> bool {
    let has_left = matches!(error.name.as_str(), "SystemExit" | "ProcessExit");
    matches!(report.exit, Exit::Code { code: 1.. }) && !has_left
}

/// Passes on what comes for as long as somebody listens, and ends the box.
async fn pass_on(mut from: mpsc::Receiver<Bytes>, to: mpsc::Sender<Bytes>, sandbox: Sandbox) {
    loop {
        let piece = tokio::select! {
            piece = from.recv() => piece,
            () = to.closed() => None,
        };
        let Some(piece) = piece else { break };
        if to.send(piece).await.is_err() {
            break;
        }
    }
    // What cannot be removed goes with this process.
    let _ = sandbox.destroy().await;
}
