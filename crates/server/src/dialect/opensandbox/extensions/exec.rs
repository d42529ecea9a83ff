//! A command, and its end in one answer: for callers who do not want to read a stream.

use std::sync::Arc;

use axum::Json;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use glasshouse_sandbox::{Error, ExecOutput, Kept};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dialect::opensandbox::Service;
use crate::dialect::opensandbox::execd::{Here, RunCommandRequest, spec_of};
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::query::Body;
use crate::dialect::opensandbox::rooms::Room;
use crate::going_on::going_on;
use crate::random;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(exec))
}

/// A command that has ended.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExecResponse {
    /// Its number in the box.
    exec: u64,
    /// How it ended, truly: `{"kind": "code", "code": 3}`, `{"kind": "timed_out"}`, `{"kind": "out_of_memory"}` …
    #[schema(value_type = Object)]
    exit: Value,
    /// The same as a shell would tell it.
    pub(super) exit_code: i32,
    stdout: String,
    stderr: String,
    /// The bytes, where `stdout` is not all of them because they are no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    stdout_base64: Option<String>,
    /// The bytes, where `stderr` is not all of them because they are no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr_base64: Option<String>,
    /// Bytes that it wrote; of more than are kept, head and tail are told.
    stdout_bytes: u64,
    stderr_bytes: u64,
    /// Something was left out between head and tail; a line says so there.
    truncated: bool,
    wall_us: u64,
    cpu_us: u64,
    peak_memory_bytes: u64,
}

/// Run a command, and tell its end
///
/// One answer, when it has ended. Whoever goes away before does not stop it.
#[utoipa::path(post, path = "/sandboxes/{id}/exec", tag = "extensions", params(("id" = String, Path)),
    request_body = RunCommandRequest, responses(
    (status = 200, description = "It has ended, in whatever way", body = ExecResponse),
    (status = 400, description = "That makes no sense", body = ErrorResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn exec(Here(room): Here, Body(request): Body<RunCommandRequest>) -> Answer<Json<ExecResponse>> {
    run(&room, request).await.map(Json)
}

/// Runs a command to its end, whether its caller waits for it or not.
pub(super) async fn run(room: &Room, request: RunCommandRequest) -> Answer<ExecResponse> {
    if request.is_background() {
        return Err(Fault::invalid(
            "exec waits for the end; a command of the background is started by `/command`",
        ));
    }
    let spec = spec_of(room, request, &random::hex()?).await?;
    let (commands, sandbox) = (room.commands.clone(), room.sandbox.clone());
    // A caller who goes away takes this request with him, and not the command.
    let output = going_on(async move { Ok(commands.exec(&sandbox, spec).await?.collect().await) });
    output.await.map(|output| told(&output)).map_err(|e: Error| e.into())
}

pub(super) fn told(output: &ExecOutput) -> ExecResponse {
    let report = &output.report;
    let ((stdout, stdout_base64), (stderr, stderr_base64)) = (text(&output.stdout), text(&output.stderr));
    ExecResponse {
        exec: output.exec,
        exit: serde_json::to_value(&report.exit).unwrap_or_default(),
        exit_code: report.exit.shell_code(),
        stdout,
        stderr,
        stdout_base64,
        stderr_base64,
        stdout_bytes: report.stdout_bytes,
        stderr_bytes: report.stderr_bytes,
        truncated: output.stdout.gap_at.is_some() || output.stderr.gap_at.is_some(),
        wall_us: report.wall_us,
        cpu_us: report.cpu_us,
        peak_memory_bytes: report.peak_memory_bytes,
    }
}

/// Output as text; and as base64, if it is none.
fn text(kept: &Kept) -> (String, Option<String>) {
    let (head, tail) = kept.bytes.split_at(kept.gap_at.unwrap_or(0).min(kept.bytes.len()));
    let gap = match kept.gap_at {
        Some(_) => format!("\n[{} bytes were left out here]\n", kept.total - kept.bytes.len() as u64),
        None => String::new(),
    };
    let whole = kept.gap_at.is_some() || std::str::from_utf8(&kept.bytes).is_ok();
    let text =
        [String::from_utf8_lossy(head).as_ref(), &gap, String::from_utf8_lossy(tail).as_ref()].concat();
    (text, (!whole).then(|| STANDARD.encode(&kept.bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_told_as_text_and_what_is_none_as_base64_too() {
        let kept = |bytes: &[u8], gap_at, total| Kept { bytes: bytes.to_vec(), gap_at, total };
        assert_eq!(text(&kept("grün\n".as_bytes(), None, 6)), ("grün\n".to_owned(), None));
        assert_eq!(text(&kept(b"\xff", None, 1)), ("\u{fffd}".to_owned(), Some("/w==".to_owned())));
        assert_eq!(text(&kept(b"ab", Some(1), 9)), ("a\n[7 bytes were left out here]\nb".to_owned(), None));
    }
}
