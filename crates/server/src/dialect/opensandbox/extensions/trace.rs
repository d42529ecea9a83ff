//! What happened in a box, living or gone.

use std::io::{self, Write};
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use glasshouse_trace::{Reader, Style, page, render, verify};
use serde::Serialize;
use tokio::sync::mpsc;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::pieces_body;
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::query::Query;
use crate::dialect::opensandbox::{Service, Shared};
use crate::limits::{OUTPUT_PIECES, TRACE_PIECE_BYTES};

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(trace)).routes(routes!(verify_trace))
}

/// Read the record of a box
///
/// A line of JSON for each event, each with the hash of the one before. It stays when the box is gone.
#[utoipa::path(get, path = "/sandboxes/{id}/trace", tag = "extensions", params(
    ("id" = String, Path),
    ("format" = Option<String>, Query, description = "`jsonl` without a word; `html` is one page to look at"),
), responses(
    (status = 200, description = "Lines", content_type = "application/x-ndjson", body = String),
    (status = 404, description = "There is no record of such a box", body = ErrorResponse),
))]
async fn trace(State(service): Shared, Path(id): Path<String>, query: Query) -> Answer<Response> {
    let html = match query.get("format").unwrap_or("jsonl") {
        "jsonl" => false,
        "html" => true,
        other => {
            return Err(Fault::invalid(format!("format {other:?} is not known; there are jsonl and html")));
        }
    };
    let (dir, blobs) = places(&service, &id)?;
    let (pieces, receiver) = mpsc::channel(OUTPUT_PIECES);
    let mut reader = opened(move || Reader::open(&dir, &blobs)).await?;
    tokio::task::spawn_blocking(move || {
        let store = reader.blobs();
        let mut out = io::BufWriter::with_capacity(TRACE_PIECE_BYTES, Pieces(pieces));
        let style = Style { color: false, width: None, diff: false, raw: true };
        let written = match html {
            true => page(&mut reader, &store, &mut out),
            false => render(&mut reader, &store, &mut out, &style),
        };
        // Whoever does not listen any more does not miss the rest.
        let _ = written.and_then(|()| out.flush());
    });
    let kind = if html { "text/html; charset=utf-8" } else { "application/x-ndjson" };
    // The page has no scripts; if somebody finds a way to put one there, it does not run.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox";
    let headers = [(header::CONTENT_TYPE, kind), (header::CONTENT_SECURITY_POLICY, policy)];
    Ok((headers, pieces_body(receiver)).into_response())
}

/// Whether a record is what was written.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct VerifyResponse {
    ok: bool,
    /// How many whole lines there are.
    lines: u64,
    /// A part of a line follows: its writer died, or is at it right now.
    torn_tail: bool,
    /// There is no head that would tell if lines were cut off at the end.
    unguarded: bool,
    /// How many of the payloads that lines name are not there.
    missing_blobs: u64,
    /// The hash of the last line. Kept elsewhere, it proves later that nothing was changed or cut off.
    head: Option<String>,
    first_bad: Option<BadLine>,
}

/// The first line that is not what was written.
#[derive(Debug, Serialize, ToSchema)]
struct BadLine {
    line: u64,
    why: String,
}

/// Check the record of a box
///
/// Whether it is what was written: the chain of hashes, and the payloads that it names.
#[utoipa::path(get, path = "/sandboxes/{id}/trace/verify", tag = "extensions", params(("id" = String, Path)), responses(
    (status = 200, description = "`ok`, and what is wrong if it is not", body = VerifyResponse),
    (status = 404, description = "There is no record of such a box", body = ErrorResponse),
))]
async fn verify_trace(State(service): Shared, Path(id): Path<String>) -> Answer<Json<VerifyResponse>> {
    let (dir, blobs) = places(&service, &id)?;
    let report = opened(move || verify(&dir, &blobs)).await?;
    Ok(Json(VerifyResponse {
        ok: report.ok,
        lines: report.lines,
        torn_tail: report.torn_tail,
        unguarded: report.unguarded,
        missing_blobs: report.missing_blobs,
        head: report.head.map(|hash| hash.to_string()),
        first_bad: report.first_bad.map(|bad| BadLine { line: bad.line, why: bad.why.to_string() }),
    }))
}

/// Where the record of a box lies, and where its payloads do.
pub(in crate::dialect::opensandbox) fn places(
    service: &Service,
    id: &str,
) -> Answer<(std::path::PathBuf, std::path::PathBuf)> {
    let unknown = || Fault::no_box(id);
    // By its whole id: names are not handed to callers here.
    service.house.resolve_trace(id).ok().filter(|found| found == id).ok_or_else(unknown)?;
    let dir = service.house.traces_dir().join(id);
    // Somebody may have removed the record of a box that is there.
    if dir.is_dir() { Ok((dir, service.house.blobs_dir())) } else { Err(Fault::no_trace(id)) }
}

async fn opened<T: Send + 'static>(
    open: impl FnOnce() -> glasshouse_trace::Result<T> + Send + 'static,
) -> Answer<T> {
    let opened = tokio::task::spawn_blocking(open).await.map_err(|e| Fault::internal(e.to_string()))?;
    opened.map_err(|e| Fault::internal(format!("cannot read the record: {e}")))
}

/// Pieces of a body, from a thread that may wait.
struct Pieces(mpsc::Sender<Bytes>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Bytes::copy_from_slice(bytes));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
