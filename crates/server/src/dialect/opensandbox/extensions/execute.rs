//! A piece of code, in a box that is made for it and goes with it.
//!
//! The code becomes a file of a fresh box, and the language's own program runs it; what comes back is the stream that a
//! command has. The box ends with the code, with the caller who stops to listen, and with the server, whichever is first.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use glasshouse_sandbox::{ExecSpec, Program, Sandbox, SandboxSpec};
use serde::Deserialize;
use tokio::sync::mpsc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::pieces_body;
use crate::dialect::opensandbox::execd::{Commands, EVENTS};
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
    /// `python`, `javascript`, `bash` or `sh`.
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

/// A language: what it is called, what its files are called, and what runs them.
struct Language {
    names: &'static [&'static str],
    file: &'static str,
    program: &'static str,
}

const LANGUAGES: [Language; 4] = [
    Language { names: &["python", "python3", "py"], file: "main.py", program: "python3" },
    Language { names: &["javascript", "js", "node"], file: "main.js", program: "node" },
    Language { names: &["bash"], file: "main.sh", program: "bash" },
    Language { names: &["sh", "shell"], file: "main.sh", program: "sh" },
];

/// Run a piece of code in a box of its own
///
/// The box is made for it, and is gone afterwards. Events come as those of a command do: `init`, `stdout` and `stderr` by lines,
/// and `execution_complete` or `error` at the end. Whoever stops to listen ends it.
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
    let wanted = LANGUAGES.iter().find(|language| language.names.contains(&request.language.as_str()));
    let Some(language) = wanted else {
        let known: Vec<&str> = LANGUAGES.iter().map(|language| language.names[0]).collect();
        let message = format!("{:?} is no language here; there are {}", request.language, known.join(", "));
        return Err(Fault::invalid(message));
    };
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
    let env = request.envs.unwrap_or_default().into_iter().collect();
    let begun = match mark(&service, sandbox.info()) {
        Ok(()) => begin(&sandbox, language, &request.code, env, timeout_ms).await,
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

async fn begin(
    sandbox: &Sandbox,
    language: &Language,
    code: &str,
    env: Vec<(String, String)>,
    timeout_ms: u64,
) -> Answer<mpsc::Receiver<Bytes>> {
    let path = format!("/tmp/{}", language.file);
    sandbox.write_file(&path, code.as_bytes(), None).await?;
    let spec = ExecSpec {
        program: Program::Argv(vec![language.program.to_owned(), path]),
        env,
        timeout_ms: Some(timeout_ms),
        grace_ms: Some(0),
        ..ExecSpec::default()
    };
    Ok(Commands::default().stream(sandbox, &random::hex()?, spec).await?)
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
