//! What a person wants to know of a box that does not do what it should: its output, and what happened to it.
//!
//! All of it is on record, so it is told of boxes that are gone, too; only what an entrypoint that still runs has written is asked
//! of the box.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use glasshouse_sandbox::{ExecEvent, Program};
use glasshouse_trace::{Blobs, Event, Line, Payload, Reader};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extensions::places;
use super::fault::{Answer, Fault};
use super::lifecycle;
use super::model::ErrorResponse;
use super::query::Query;
use super::rooms::ENTRYPOINT;
use super::{Service, Shared};
use crate::clock;
use crate::limits::DIAGNOSTIC_BYTES;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new()
        .routes(routes!(logs))
        .routes(routes!(events))
        .routes(routes!(inspect))
        .routes(routes!(summary))
}

/// A text about a box.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct DiagnosticContent {
    sandbox_id: String,
    /// `logs` or `events`.
    kind: &'static str,
    scope: String,
    /// `inline`: the text is here.
    delivery: &'static str,
    content_type: &'static str,
    /// There was more; the last of it is told.
    truncated: bool,
    content: String,
    content_length: usize,
}

/// Read what a box wrote
///
/// `container` is what its entrypoint wrote, `all` that of every command, in the order in which they ended; what still runs comes last.
/// Without a scope it is plain text, as older clients want it.
#[utoipa::path(get, path = "/sandboxes/{id}/diagnostics/logs", tag = "sandboxes", params(
    ("id" = String, Path),
    ("scope" = Option<String>, Query, description = "`container` or `all`"),
    ("tail" = Option<u64>, Query, description = "Without a scope: so many lines at most"),
    ("since" = Option<String>, Query, description = "Only of commands that ended later: `30s`, `10m`, `1h`, `2d` ago, or a time of RFC 3339"),
), responses(
    (status = 200, description = "The text", content((DiagnosticContent = "application/json"), (String = "text/plain"))),
    (status = 400, description = "There is no such scope", body = ErrorResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn logs(State(service): Shared, Path(id): Path<String>, query: Query) -> Answer<Response> {
    let scope = scope(&query, &["container", "all"])?;
    let since = since_ms(&query)?;
    let text = match scope.as_deref() {
        Some("container") => of_entrypoint(&service, &id, since).await?,
        _ => {
            let all = move |event: &Line, blobs: &Blobs| {
                if event.time_ms < since { None } else { output(event, blobs) }.unwrap_or_default()
            };
            read(&service, &id, all).await? + &so_far(&service, &id).await.unwrap_or_default()
        }
    };
    told(&id, "logs", scope, text, &query)
}

/// Read what happened to a box
///
/// `lifecycle` is its life and its states, `runtime` its commands, `all` both.
#[utoipa::path(get, path = "/sandboxes/{id}/diagnostics/events", tag = "sandboxes", params(
    ("id" = String, Path),
    ("scope" = Option<String>, Query, description = "`runtime`, `lifecycle` or `all`"),
    ("limit" = Option<u64>, Query, description = "Without a scope: so many lines at most"),
    ("since" = Option<String>, Query, description = "Only what was later: `30s`, `10m`, `1h`, `2d` ago, or a time of RFC 3339"),
), responses(
    (status = 200, description = "The text", content((DiagnosticContent = "application/json"), (String = "text/plain"))),
    (status = 400, description = "There is no such scope", body = ErrorResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn events(State(service): Shared, Path(id): Path<String>, query: Query) -> Answer<Response> {
    let scope = scope(&query, &["runtime", "lifecycle", "all"])?;
    let wanted = scope.clone().unwrap_or_else(|| "all".to_owned());
    let since = since_ms(&query)?;
    let tell = move |event: &Line, _: &Blobs| {
        if event.time_ms < since { None } else { line(event, &wanted) }.unwrap_or_default()
    };
    let text = read(&service, &id, tell).await?;
    told(&id, "events", scope, text, &query)
}

/// Look at a box as a person would
#[utoipa::path(get, path = "/sandboxes/{id}/diagnostics/inspect", tag = "sandboxes", params(("id" = String, Path)), responses(
    (status = 200, description = "What is known of it", content_type = "text/plain", body = String),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn inspect(State(service): Shared, Path(id): Path<String>) -> Answer<Response> {
    Ok(plain(inspected(&service, &id).await?))
}

/// Everything about a box
#[utoipa::path(get, path = "/sandboxes/{id}/diagnostics/summary", tag = "sandboxes", params(("id" = String, Path)), responses(
    (status = 200, description = "What is known of it, what happened, what it wrote", content_type = "text/plain", body = String),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn summary(State(service): Shared, Path(id): Path<String>) -> Answer<Response> {
    let about = inspected(&service, &id).await?;
    let happened = read(&service, &id, |event, _| line(event, "all").unwrap_or_default()).await?;
    let wrote = of_entrypoint(&service, &id, 0).await?;
    Ok(plain(format!("{about}\nEvents:\n{happened}\nOutput of the entrypoint:\n{wrote}")))
}

async fn inspected(service: &Service, id: &str) -> Answer<String> {
    let info = service.rooms.info(id).await?;
    let about = lifecycle::view(&info, service.rooms.record(&info));
    let mut text = serde_json::to_string_pretty(&about).map_err(|e| Fault::internal(e.to_string()))?;
    text.push_str(&format!("\nlevel: {}\n", info.level));
    for limit in &info.limits {
        text.push_str(&format!("limit of {}: {} ({})\n", limit.name, limit.value, limit.mechanism));
    }
    Ok(text)
}

fn plain(text: String) -> Response {
    let text = tail(text, DIAGNOSTIC_BYTES).0;
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (DEPRECATION, "true")];
    (headers, text).into_response()
}

const DEPRECATION: header::HeaderName = header::HeaderName::from_static("deprecation");

/// The scope that is asked for, if one is.
fn scope(query: &Query, known: &[&str]) -> Answer<Option<String>> {
    match query.get("scope").filter(|scope| !scope.is_empty()) {
        None => Ok(None),
        Some(scope) if known.contains(&scope) => Ok(Some(scope.to_owned())),
        Some(other) => {
            let message = format!("scope {other:?} is not known; there are {}", known.join(", "));
            Err(Fault::new(StatusCode::BAD_REQUEST, "DIAGNOSTICS_SCOPE_UNSUPPORTED", message))
        }
    }
}

/// The time before which nothing is wanted; all of it without a word.
fn since_ms(query: &Query) -> Answer<u64> {
    let Some(said) = query.get("since").filter(|said| !said.is_empty()) else { return Ok(0) };
    let wrong =
        || Fault::invalid(format!("since={said:?} is neither a time like 30s, 10m, 1h or 2d nor RFC 3339"));
    if let Some(at) = clock::parse(said) {
        return Ok(u64::try_from(at).unwrap_or(0));
    }
    let digits = said.bytes().take_while(u8::is_ascii_digit).count();
    let unit_s = match &said[digits..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    let ago_ms = said[..digits].parse::<u64>().map_err(|_| wrong())?.saturating_mul(unit_s * 1000);
    Ok(clock::now_ms().saturating_sub(ago_ms))
}

fn told(
    id: &str,
    kind: &'static str,
    scope: Option<String>,
    text: String,
    query: &Query,
) -> Answer<Response> {
    let Some(scope) = scope else {
        let lines = query.number("tail")?.or(query.number("limit")?).unwrap_or(u64::MAX);
        return Ok(plain(last_lines(text, usize::try_from(lines).unwrap_or(usize::MAX))));
    };
    let (content, truncated) = tail(text, DIAGNOSTIC_BYTES);
    Ok(Json(DiagnosticContent {
        sandbox_id: id.to_owned(),
        kind,
        scope,
        delivery: "inline",
        content_type: "text/plain; charset=utf-8",
        truncated,
        content_length: content.len(),
        content,
    })
    .into_response())
}

/// The last bytes of a text, cut between letters. Whether there were more.
fn tail(text: String, most: usize) -> (String, bool) {
    if text.len() <= most {
        return (text, false);
    }
    let from = (text.len() - most..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    (text[from..].to_owned(), true)
}

fn last_lines(text: String, most: usize) -> String {
    let count = text.lines().count();
    text.lines().skip(count.saturating_sub(most)).map(|line| format!("{line}\n")).collect()
}

/// Reads a record and makes a text of it, of which the last part is kept.
async fn read(
    service: &Service,
    id: &str,
    mut tell: impl FnMut(&Line, &Blobs) -> String + Send + 'static,
) -> Answer<String> {
    let (dir, blobs) = places(service, id)?;
    let reading = tokio::task::spawn_blocking(move || {
        let reader = Reader::open(&dir, &blobs)?;
        let (store, mut text) = (reader.blobs(), String::new());
        for line in reader.flatten() {
            text.push_str(&tell(&line, &store));
            if text.len() > 4 * DIAGNOSTIC_BYTES {
                // One byte more than is told, so that it is seen that there was more.
                text = tail(text, DIAGNOSTIC_BYTES + 1).0;
            }
        }
        Ok::<_, glasshouse_trace::Error>(text)
    });
    let read = reading.await.map_err(|e| Fault::internal(e.to_string()))?;
    read.map_err(|e| Fault::internal(format!("cannot read the record: {e}")))
}

/// What a command wrote that has ended.
fn output(line: &Line, blobs: &Blobs) -> Option<String> {
    let Event::ExecEnded { stdout, stderr, .. } = &line.event else { return None };
    let text = |payload: &Payload| {
        let bytes = [&payload.head, &payload.tail]
            .into_iter()
            .flatten()
            .filter_map(|part| blobs.read(part).ok())
            .flatten();
        String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
    };
    Some(text(stdout) + &text(stderr))
}

/// An event in a line, if it is of this scope.
fn line(line: &Line, scope: &str) -> Option<String> {
    let (kind, words) = match &line.event {
        Event::BoxCreated(made) => (
            "lifecycle",
            format!("created from {} at the level {} on {}", made.image, made.level, made.runtime),
        ),
        Event::BoxEnded { why } => ("lifecycle", format!("ended: {why}")),
        Event::State { what, snapshot, .. } => {
            let snapshot = snapshot.as_ref().map(|id| format!(" {id}")).unwrap_or_default();
            ("lifecycle", format!("{what}{snapshot}"))
        }
        Event::ExecStarted(started) => {
            let program = match &started.program {
                Program::Argv(words) => words.join(" "),
                Program::Shell(line) => line.clone(),
                Program::Code(code) => code.code.clone(),
            };
            ("runtime", format!("command {} started: {program}", started.exec))
        }
        Event::ExecEnded { exec, report, .. } => {
            ("runtime", format!("command {exec} ended: {} after {} ms", report.exit, report.wall_us / 1000))
        }
        Event::Signal { exec, signal } => ("runtime", format!("command {exec} was sent signal {signal}")),
        Event::Lost { events: 0, why, .. } => ("lifecycle", why.clone()),
        Event::Lost { events, why, .. } => ("lifecycle", format!("{events} events are not on record: {why}")),
        _ => return None,
    };
    let shown = words.replace(['\n', '\r'], " ");
    (scope == "all" || scope == kind).then(|| format!("{} {shown}\n", clock::text(line.time_ms as i64)))
}

/// What the entrypoint of a box wrote: each time that it ran, if the box was put back or started anew.
async fn of_entrypoint(service: &Service, id: &str, since_ms: u64) -> Answer<String> {
    let mut runs = BTreeSet::new();
    let ended = move |line: &Line, blobs: &Blobs| match &line.event {
        Event::ExecStarted(started) if started.label.as_deref() == Some(ENTRYPOINT) => {
            runs.insert(started.exec);
            String::new()
        }
        Event::ExecEnded { exec, .. } if line.time_ms >= since_ms && runs.remove(exec) => {
            output(line, blobs).unwrap_or_default()
        }
        _ => String::new(),
    };
    Ok(read(service, id, ended).await? + &so_far(service, id).await.unwrap_or_default())
}

/// What an entrypoint that still runs has written so far.
async fn so_far(service: &Service, id: &str) -> Option<String> {
    let room = service.rooms.room(id).await.ok()?;
    let command = room.commands.find(&room.sandbox, ENTRYPOINT).await.ok().flatten()?;
    // The record has it otherwise.
    if command.end().is_some() {
        return None;
    }
    let mut reader = room.sandbox.attach(command.exec(), 0, false).await.ok()?;
    let mut text = Vec::new();
    while let Some(event) = reader.next().await {
        if let ExecEvent::Output(chunk) = event {
            text.extend_from_slice(&chunk.bytes);
        }
    }
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_time_ago_or_a_time() {
        let since = |said: &str| since_ms(&Query::parse(&format!("since={said}")));
        assert_eq!((since("").unwrap(), since("1970-01-01T00:00:07Z").unwrap()), (0, 7000));
        for (said, ago_s) in [("30", 30), ("30s", 30), ("10m", 600), ("1h", 3600), ("2d", 172_800)] {
            let ago_ms = clock::now_ms() - since(said).unwrap();
            assert!(ago_ms.abs_diff(ago_s * 1000) < 10_000, "{said}: {ago_ms}");
        }
        for said in ["soon", "m", "1y", "-5m", "99999999999999999999s"] {
            assert_eq!(since(said).unwrap_err().status(), StatusCode::BAD_REQUEST, "{said}");
        }
    }

    #[test]
    fn the_last_of_a_text_is_told_and_no_letter_is_cut() {
        assert_eq!(tail("abc".to_owned(), 3), ("abc".to_owned(), false));
        assert_eq!(tail("aßc".to_owned(), 2), ("c".to_owned(), true));
        assert_eq!(tail("aßc".to_owned(), 3), ("ßc".to_owned(), true));
        assert_eq!(last_lines("a\nb\nc\n".to_owned(), 2), "b\nc\n");
        assert_eq!(last_lines("a\n".to_owned(), 0), "");
    }
}
