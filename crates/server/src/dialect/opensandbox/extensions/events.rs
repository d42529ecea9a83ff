//! What happens, as it happens: of one box, from its record; and of all boxes.
//!
//! Server-sent events, as browsers read them: `id`, `event`, `data` in JSON. Who comes back names the last id that he has heard
//! (`Last-Event-ID`, or `after` in the query). A listener that is too slow for what happens is cut off, and comes back.

use std::convert::Infallible;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use glasshouse_trace::{Event, Position, Reader};
use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::pieces_body;
use super::trace::places;
use crate::connections::Held;
use crate::dialect::opensandbox::execd::EVENTS;
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::query::Query;
use crate::dialect::opensandbox::watch::{self, Listener, News};
use crate::dialect::opensandbox::{Service, Shared};
use crate::door::Caller;
use crate::limits::{EVENTS_PING, LOOK, OUTPUT_PIECES};
use crate::tenants;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(of_all)).routes(routes!(of_one))
}

/// Nobody listens any more.
struct Deaf;

/// A listener's stream.
struct Ear(mpsc::Sender<Bytes>);

impl Ear {
    async fn tell(&self, id: &str, kind: &str, data: &str) -> Result<(), Deaf> {
        // JSON has no line ends of its own.
        self.send(format!("id: {id}\nevent: {kind}\ndata: {data}\n\n")).await
    }

    async fn ping(&self) -> Result<(), Deaf> {
        self.send(": still here\n\n".to_owned()).await
    }

    async fn send(&self, text: String) -> Result<(), Deaf> {
        self.0.send(text.into()).await.map_err(|_| Deaf)
    }
}

/// Answers with a stream that `talk` fills until it has enough, the listener has, or the server stops.
fn streamed<F>(mut held: Held, talk: impl FnOnce(Ear) -> F) -> Response
where
    F: Future<Output = Result<Infallible, Deaf>> + Send + 'static,
{
    let (pieces, receiver) = mpsc::channel(OUTPUT_PIECES);
    let gone = pieces.clone();
    let talking = talk(Ear(pieces));
    tokio::spawn(async move {
        tokio::select! {
            _ = talking => {}
            () = gone.closed() => {}
            _ = held.stopped() => {}
        }
    });
    (EVENTS, pieces_body(receiver)).into_response()
}

/// The last event that a listener has heard.
fn after(headers: &HeaderMap, query: &Query) -> Option<String> {
    let header = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    query.get("after").or(header).filter(|id| !id.is_empty()).map(str::to_owned)
}

/// Hear of all boxes
///
/// Server-sent events. The first is `boxes`: all that there are, as the list tells them, each with its `level`. Then `created` and
/// `changed` (a box), `exec`, `step` and `state` (`id` of the box and what is on record: a command that has ended, a step that was
/// done, a snapshot, a reset …) and `ended` (`id`). Who comes back with the id of the last event is told what he missed; if that is not known any more, `boxes`.
#[utoipa::path(get, path = "/events", tag = "extensions", params(
    ("after" = Option<String>, Query, description = "The id of the last event; the header Last-Event-ID says the same"),
), responses(
    (status = 200, description = "Events", content_type = "text/event-stream", body = String),
))]
async fn of_all(
    State(service): Shared,
    caller: Caller,
    Extension(held): Extension<Held>,
    query: Query,
    headers: HeaderMap,
) -> Answer<Response> {
    let listener = watch::listen(&service, after(&headers, &query).as_deref())?;
    Ok(streamed(held, |ear| hear(service, caller, listener, ear)))
}

async fn hear(
    service: Arc<Service>,
    caller: Caller,
    mut listener: Listener,
    ear: Ear,
) -> Result<Infallible, Deaf> {
    let mine = |tenant: Option<&String>| caller.tenant.is_none() || tenant == caller.tenant.as_ref();
    match listener.missed.take() {
        Some(missed) => {
            for news in missed.iter().filter(|news| mine(news.tenant.as_ref())) {
                pass(&ear, &listener, news).await?;
            }
        }
        None => {
            listener.ready(&service).await;
            let mut infos = service.house.list().await.map_err(|_| Deaf)?;
            infos.retain(|info| mine(info.labels.get(tenants::LABEL)));
            let boxes: Vec<Value> = infos.iter().map(|info| watch::told(&service, info)).collect();
            ear.tell(&listener.id(listener.last), "boxes", &json!({ "items": boxes }).to_string()).await?;
        }
    }
    loop {
        match tokio::time::timeout(EVENTS_PING, listener.news.recv()).await {
            Ok(Ok(news)) if mine(news.tenant.as_ref()) => pass(&ear, &listener, &news).await?,
            Ok(Ok(_)) => {}
            // Too slow, or nobody looks any more: he comes back.
            Ok(Err(broadcast::error::RecvError::Lagged(_) | broadcast::error::RecvError::Closed)) => {
                return Err(Deaf);
            }
            Err(_) => ear.ping().await?,
        }
    }
}

async fn pass(ear: &Ear, listener: &Listener, news: &News) -> Result<(), Deaf> {
    ear.tell(&listener.id(news.number()), news.kind, &news.data.to_string()).await
}

/// Hear of one box
///
/// Server-sent events: the lines of its record, from the first on or after the one that is named, and those that come. `event` is
/// the type of the line, `id` its number, `data` the line as `/trace` has it. The stream ends with the box; who comes back then
/// is answered 204, which tells a browser to stop.
#[utoipa::path(get, path = "/sandboxes/{id}/events", tag = "extensions", params(
    ("id" = String, Path),
    ("after" = Option<u64>, Query, description = "The number of the last line; the header Last-Event-ID says the same"),
), responses(
    (status = 200, description = "Events", content_type = "text/event-stream", body = String),
    (status = 204, description = "The box has ended, and there is nothing after that line"),
    (status = 404, description = "There is no record of such a box", body = ErrorResponse),
))]
async fn of_one(
    State(service): Shared,
    Extension(held): Extension<Held>,
    Path(id): Path<String>,
    query: Query,
    headers: HeaderMap,
) -> Answer<Response> {
    let place = places(&service, &id)?;
    let after = match after(&headers, &query) {
        Some(text) => text.parse().map_err(|_| Fault::invalid(format!("{text:?} is no number of a line")))?,
        None => 0,
    };
    let record = Record { place, position: Position::default(), after, ended: false };
    let gone = service.rooms.info(&id).await.is_err();
    let (record, first) = record.read().await?;
    if first.is_empty() && (record.ended || gone) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(streamed(held, |ear| follow(service, id, record, first, ear)))
}

/// Lines that are read at once, and about how many bytes of them.
const PAGE: usize = 256;
const PAGE_BYTES: usize = 1 << 20;

/// A record, and how far it was read.
struct Record {
    place: (PathBuf, PathBuf),
    position: Position,
    /// Lines up to this number are known.
    after: u64,
    /// The box's end was read.
    ended: bool,
}

/// A line that is told.
struct Line {
    seq: u64,
    kind: String,
    data: String,
}

impl Record {
    /// Reads the next lines. In a thread that may wait.
    async fn read(mut self) -> Answer<(Record, Vec<Line>)> {
        let reading = tokio::task::spawn_blocking(move || {
            let lines = self.lines();
            (self, lines)
        });
        let (record, lines) = reading.await.map_err(|e| Fault::internal(e.to_string()))?;
        Ok((record, lines))
    }

    fn lines(&mut self) -> Vec<Line> {
        let (dir, blobs): (&FilePath, &FilePath) = (&self.place.0, &self.place.1);
        let (mut lines, mut bytes) = (Vec::new(), 0);
        // A record that cannot be read now has nothing new.
        let Ok(mut reader) = Reader::open_at(dir, blobs, self.position) else { return lines };
        while lines.len() < PAGE && bytes < PAGE_BYTES {
            let Some(line) = reader.next() else { break };
            // One that is damaged is left out; its number is missing.
            let Ok(line) = line else { continue };
            self.ended |= matches!(line.event, Event::BoxEnded { .. });
            if line.seq > self.after {
                self.after = line.seq;
                let data = serde_json::to_value(&line).unwrap_or_default();
                let kind = data["event"]["type"].as_str().unwrap_or("unknown").to_owned();
                let data = data.to_string();
                bytes += data.len();
                lines.push(Line { seq: line.seq, kind, data });
            }
        }
        self.position = reader.position();
        lines
    }
}

async fn follow(
    service: Arc<Service>,
    id: String,
    mut record: Record,
    mut lines: Vec<Line>,
    ear: Ear,
) -> Result<Infallible, Deaf> {
    let mut quiet = std::time::Instant::now();
    loop {
        for Line { seq, kind, data } in &lines {
            ear.tell(&seq.to_string(), kind, data).await?;
            quiet = std::time::Instant::now();
        }
        if lines.is_empty() {
            // What is gone writes no more; what it wrote last was looked for before.
            let gone = record.ended || service.rooms.info(&id).await.is_err();
            if !gone {
                tokio::time::sleep(LOOK).await;
            }
            if quiet.elapsed() > EVENTS_PING {
                ear.ping().await?;
                quiet = std::time::Instant::now();
            }
            (record, lines) = record.read().await.map_err(|_| Deaf)?;
            if gone && lines.is_empty() {
                return Err(Deaf);
            }
            continue;
        }
        (record, lines) = record.read().await.map_err(|_| Deaf)?;
    }
}
