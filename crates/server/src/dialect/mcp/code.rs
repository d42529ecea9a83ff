//! Code in a box: each language has a context there that remembers from call to call.

use glasshouse_sandbox::{
    CodeError, CodeResult, CodeSpec, ContextSpec, Error, ExecOutput, Language, Sandbox, Tongue,
};
use serde_json::{Value, json};

use super::session::{Arguments, Said, called_off, invalid, seconds, word};
use crate::limits::MCP_INTERRUPT_GRACE;

/// Shapes that an agent is shown as pictures, in the order of preference.
const PICTURES: [&str; 2] = ["image/png", "image/jpeg"];

/// Runs code, and tells what came of it.
pub(super) async fn run(
    sandbox: &Sandbox,
    arguments: &Arguments,
    cancelled: impl Future<Output = ()>,
) -> Result<Said, Error> {
    let code = word(arguments, "code")?;
    let language = arguments.get("language").and_then(Value::as_str).unwrap_or(Language::Python.name());
    let tongue: Tongue = language.parse().map_err(|why: String| invalid(why))?;
    let name = arguments.get("context").and_then(Value::as_str).filter(|name| !name.is_empty());
    let id = name.map_or_else(|| format!("mcp-{tongue}").replace(':', "-"), str::to_owned);
    let timeout_ms = seconds(arguments)?.map(|seconds| seconds.saturating_mul(1000));
    let Tongue { language, interpreter } = tongue;
    let spec = ContextSpec { language, interpreter, id: Some(id), ..ContextSpec::default() };
    let mut context = sandbox.have_context(spec).await?;
    if arguments.contains_key("language") && context.language != language {
        let (id, its) = (&context.id, context.language.name());
        return Err(invalid(format!("context {id:?} is of {its}, and the code of {}", language.name())));
    }
    if arguments.get("restart").and_then(Value::as_bool).unwrap_or(false) {
        context = sandbox.restart_context(&context.id).await?;
    }
    let exec = sandbox.run_code(&context, CodeSpec { timeout_ms, ..CodeSpec::new(code) }).await?;
    let mut output = std::pin::pin!(exec.collect());
    let output = tokio::select! {
        output = &mut output => output,
        () = cancelled => {
            // The context is wanted again. One that does not heed it is killed when nobody waits for its run any more.
            let _ = sandbox.interrupt_context(&context.id).await;
            let _ = tokio::time::timeout(MCP_INTERRUPT_GRACE, output).await;
            return Err(called_off());
        }
    };
    // An interpreter may end with any code. A box that is gone has said so.
    let lost = sandbox.why_lost(&context.id).await.unwrap_or_default();
    Ok(told(&context.id, output, lost))
}

fn told(context: &str, output: ExecOutput, lost: Option<String>) -> Said {
    let (mut results, mut error, mut pictures) = (Vec::new(), Value::Null, Vec::new());
    for result in output.results {
        let (kind, bundle) = match result {
            CodeResult::Value(bundle) => ("value", bundle),
            CodeResult::Display(bundle) => ("display", bundle),
            CodeResult::Error(CodeError { name, value, traceback }) => {
                error = json!({ "name": name, "value": value, "traceback": traceback.join("\n") });
                continue;
            }
        };
        let mut data = bundle.data;
        // It follows as a picture. Its text again would only cost the agent.
        if let Some((mime, picture)) = PICTURES.iter().find_map(|mime| Some((*mime, data.remove(*mime)?))) {
            pictures.push((mime, picture));
            data.insert(mime.to_owned(), format!("picture {} of this answer", pictures.len()));
        }
        results.push(json!({ "kind": kind, "data": data }));
    }
    let report = output.report;
    let value = json!({
        "context": context, "exit_code": report.exit.shell_code(), "end": report.exit.to_string(),
        "stdout": output.stdout.to_text(), "stderr": output.stderr.to_text(), "results": results, "error": error,
        "context_lost": lost,
    });
    Said { value, pictures }
}
