//! What a box's files are like: put back, forked, compared, one number for all.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use glasshouse_sandbox::{Content, DiffOptions, Difference, Limits, SandboxInfo, Thing};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dialect::opensandbox::entry::may_see_box;
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::dialect::opensandbox::lifecycle::{begin, take_in, view};
use crate::dialect::opensandbox::model::{ErrorResponse, Sandbox};
use crate::dialect::opensandbox::query::{Body, MaybeBody, Query};
use crate::dialect::opensandbox::records::Record;
use crate::dialect::opensandbox::{Service, Shared, snapshot};
use crate::door::Caller;
use crate::limits::FORKS;
use crate::tenants;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new()
        .routes(routes!(fork))
        .routes(routes!(reset))
        .routes(routes!(restore))
        .routes(routes!(diff))
        .routes(routes!(digest))
}

/// How often to fork.
#[derive(Debug, Default, Deserialize, ToSchema)]
struct ForkRequest {
    /// How many boxes; one without a word.
    count: Option<usize>,
}

/// Boxes that were made of another.
#[derive(Debug, Serialize, ToSchema)]
struct ForkResponse {
    items: Vec<Sandbox>,
}

/// What differs between two states.
#[derive(Debug, Serialize, ToSchema)]
struct DiffResponse {
    from: String,
    to: String,
    /// Something changed while it was read.
    racy: bool,
    /// By path: a directory comes before what is in it.
    changes: Vec<DiffChange>,
}

/// A path that differs.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct DiffChange {
    /// `added`, `removed` or `changed`.
    change: &'static str,
    /// What about it differs, if something was there and is: `kind`, `content`, `target`, `mode`, `owner`, `xattrs`.
    what: Vec<&'static str>,
    path: String,
    /// Its bytes, if they are no UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    /// What was there.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<DiffEntry>,
    /// What is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<DiffEntry>,
    /// What differs in what a file holds, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<DiffContent>,
}

/// Something in a tree.
#[derive(Debug, Serialize, ToSchema)]
struct DiffEntry {
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `char-device` or `block-device`.
    kind: &'static str,
    /// Octal.
    mode: String,
    uid: u32,
    gid: u32,
    bytes: u64,
}

/// What differs in what a file holds: one of these.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct DiffContent {
    /// The lines, as a unified diff.
    #[serde(skip_serializing_if = "Option::is_none")]
    diff: Option<String>,
    /// It is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    binary: Option<bool>,
    /// There is too much of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    too_large: Option<bool>,
}

/// One number for all files.
#[derive(Debug, Serialize, ToSchema)]
struct DigestResponse {
    id: String,
    digest: String,
    /// Something changed while it was read.
    racy: bool,
}

/// What to go back to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct RestoreRequest {
    snapshot_id: String,
}

/// Make boxes on the state of a box
///
/// They share all that is there by then, and nothing that they write. They have its limits, its metadata and the time that it
/// expires; what its entrypoint names is started anew in each. All are made, or none.
#[utoipa::path(post, path = "/sandboxes/{id}/fork", tag = "extensions", params(("id" = String, Path)),
    request_body = Option<ForkRequest>, responses(
    (status = 201, description = "The new boxes", body = ForkResponse),
    (status = 400, description = "That makes no sense", body = ErrorResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn fork(
    State(service): Shared,
    Path(id): Path<String>,
    MaybeBody(request): MaybeBody<ForkRequest>,
) -> Answer<(StatusCode, Json<ForkResponse>)> {
    let count = request.count.unwrap_or(1);
    if !(1..=FORKS).contains(&count) {
        return Err(Fault::invalid(format!("count has to be 1 to {FORKS}")));
    }
    let info = service.rooms.info(&id).await?;
    let tenant = info.labels.get(tenants::LABEL).map(String::as_str);
    let _place = service.tenants.place(&service.house, tenant, &asked(&info), count).await?;
    let record = Record { ended: None, since_ms: None, ..service.rooms.record(&info) };
    let forks = service.house.fork(&id, count).await.map_err(|e| Fault::of_box(&id, e))?;
    let rooms = take_in(&service, forks, &record).await?;
    let items = rooms.iter().map(|room| view(room.sandbox.info(), record.clone())).collect();
    Ok((StatusCode::CREATED, Json(ForkResponse { items })))
}

/// What a box was asked to be held to, as far as that is counted.
fn asked(info: &SandboxInfo) -> Limits {
    let amount = |name| info.limits.iter().find(|limit| limit.name == name).and_then(|limit| limit.amount);
    let cpus = amount("cpu").map(|milli| milli as f64 / 1000.0);
    Limits { memory_bytes: amount("memory"), disk_bytes: amount("disk"), cpus, ..Limits::default() }
}

/// Put a box back to what it began with
///
/// All that runs in it is killed; what its entrypoint names is started anew.
#[utoipa::path(post, path = "/sandboxes/{id}/reset", tag = "extensions", params(("id" = String, Path)), responses(
    (status = 200, description = "The box", body = Sandbox),
    (status = 404, description = "There is no such box", body = ErrorResponse),
    (status = 409, description = "It does not run", body = ErrorResponse),
))]
async fn reset(State(service): Shared, Path(id): Path<String>) -> Answer<Json<Sandbox>> {
    put_back(&service, &id, None).await
}

/// Put a box on the state of a snapshot
///
/// All that runs in it is killed; what its entrypoint names is started anew.
#[utoipa::path(post, path = "/sandboxes/{id}/restore", tag = "extensions", params(("id" = String, Path)),
    request_body = RestoreRequest, responses(
    (status = 200, description = "The box", body = Sandbox),
    (status = 400, description = "The snapshot is of another image", body = ErrorResponse),
    (status = 404, description = "There is no such box or snapshot", body = ErrorResponse),
    (status = 409, description = "It does not run", body = ErrorResponse),
))]
async fn restore(
    State(service): Shared,
    caller: Caller,
    Path(id): Path<String>,
    Body(request): Body<RestoreRequest>,
) -> Answer<Json<Sandbox>> {
    let snapshot = snapshot::find(&service, &caller, &request.snapshot_id).await?;
    put_back(&service, &id, Some(&snapshot.id)).await
}

async fn put_back(service: &Arc<Service>, id: &str, snapshot: Option<&str>) -> Answer<Json<Sandbox>> {
    // It has to run.
    service.rooms.room(id).await?;
    // Whoever watches the entrypoint is not to take this for its end.
    service.rooms.leave(id);
    let info = match snapshot {
        None => service.house.reset(id).await,
        Some(snapshot) => service.house.restore(id, snapshot).await,
    };
    let info = info.map_err(|e| Fault::of_box(id, e))?;
    let record = service.rooms.record(&info);
    let room = service.rooms.room(id).await?;
    begin(service, &room, &record.entrypoint).await?;
    Ok(Json(view(&info, record)))
}

/// Tell what a box has changed
///
/// Since it was made, or against a snapshot or another box.
#[utoipa::path(get, path = "/sandboxes/{id}/diff", tag = "extensions", params(
    ("id" = String, Path),
    ("against" = Option<String>, Query, description = "A snapshot or a box; what it began with without a word"),
    ("content" = Option<bool>, Query, description = "With the lines that differ"),
), responses(
    (status = 200, description = "`changes`, by path", body = DiffResponse),
    (status = 404, description = "There is no such box or snapshot", body = ErrorResponse),
))]
async fn diff(
    State(service): Shared,
    caller: Caller,
    Path(id): Path<String>,
    query: Query,
) -> Answer<Json<DiffResponse>> {
    service.rooms.info(&id).await?;
    let against = query.get("against").filter(|against| !against.is_empty());
    if let Some(against) = against
        && !(service.rooms.info(against).await.is_ok() && may_see_box(&service, &caller, against).await)
    {
        snapshot::find(&service, &caller, against).await?;
    }
    let options = DiffOptions { content: query.get("content").is_some_and(|word| word == "true") };
    let diff = service.house.diff(&id, against, options).await.map_err(|e| Fault::of_box(&id, e))?;
    let changes = diff.changes.into_iter().map(DiffChange::from).collect();
    Ok(Json(DiffResponse { from: diff.from, to: diff.to, racy: diff.racy, changes }))
}

impl From<Difference> for DiffChange {
    fn from(one: Difference) -> DiffChange {
        let change = match (&one.from, &one.to) {
            (None, _) => "added",
            (_, None) => "removed",
            _ => "changed",
        };
        let path = String::from_utf8_lossy(&one.path).into_owned();
        let path_base64 = std::str::from_utf8(&one.path).err().map(|_| STANDARD.encode(&one.path));
        let (from, to) = (one.from.map(DiffEntry::from), one.to.map(DiffEntry::from));
        DiffChange {
            change,
            what: one.what,
            path,
            path_base64,
            from,
            to,
            content: one.content.map(DiffContent::from),
        }
    }
}

impl From<Thing> for DiffEntry {
    fn from(Thing { kind, mode, uid, gid, bytes }: Thing) -> DiffEntry {
        DiffEntry { kind, mode: format!("{mode:o}"), uid, gid, bytes }
    }
}

impl From<Content> for DiffContent {
    fn from(content: Content) -> DiffContent {
        match content {
            Content::Text(text) => DiffContent { diff: Some(text), ..DiffContent::default() },
            Content::Binary => DiffContent { binary: Some(true), ..DiffContent::default() },
            Content::TooLarge => DiffContent { too_large: Some(true), ..DiffContent::default() },
        }
    }
}

/// One number for all files of a box
///
/// The same files give the same number, however they came to be there.
#[utoipa::path(get, path = "/sandboxes/{id}/digest", tag = "extensions", params(("id" = String, Path)), responses(
    (status = 200, description = "`digest`; `racy` if something changed while it was read", body = DigestResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn digest(State(service): Shared, Path(id): Path<String>) -> Answer<Json<DigestResponse>> {
    service.rooms.info(&id).await?;
    let digest = service.house.digest(&id).await.map_err(|e| Fault::of_box(&id, e))?;
    Ok(Json(DigestResponse { id: digest.id, digest: digest.digest, racy: digest.racy }))
}
