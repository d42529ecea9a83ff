//! What this server can do with a box and the protocol has no words for: below the same prefix, in the same style.
//!
//! `exec` runs a command and tells its end in one answer, `execute` runs a piece of code in a box that lives no longer than it;
//! `batch` does several of them at once, `stream` runs one that is talked to; `tools` calls what agents call; `code` runs it where it
//! is remembered; `state` goes back, forks and compares; `trace` and `replay` are about what happened, and `events` about what happens.

mod batch;
mod code;
mod events;
mod exec;
mod execute;
mod replay;
mod state;
mod stream;
mod tools;
mod trace;

use std::sync::Arc;

use axum::body::Body as HttpBody;
use bytes::Bytes;
use futures_util::stream::unfold;
use tokio::sync::mpsc;
use utoipa_axum::router::OpenApiRouter;

use super::Service;

pub(super) use trace::places;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    exec::routes()
        .merge(execute::routes())
        .merge(batch::routes())
        .merge(stream::routes())
        .merge(events::routes())
        .merge(tools::routes())
        .merge(code::routes())
        .merge(state::routes())
        .merge(trace::routes())
        .merge(replay::routes())
}

/// A body out of pieces, each sent as it comes.
fn pieces_body(pieces: mpsc::Receiver<Bytes>) -> HttpBody {
    let next = |mut pieces: mpsc::Receiver<Bytes>| async move {
        pieces.recv().await.map(|piece| (Ok::<_, std::convert::Infallible>(piece), pieces))
    };
    HttpBody::from_stream(unfold(pieces, next))
}
