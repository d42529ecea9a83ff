//! Snapshots: states of boxes that others can begin with.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use glasshouse_sandbox::{ErrorKind, SnapshotInfo, SnapshotOptions};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::entry::may_see_snapshot;
use super::fault::{Answer, Fault};
use super::model::{CreateSnapshotRequest, ErrorResponse, ListSnapshotsResponse, SandboxStatus, Snapshot};
use super::page::Page;
use super::query::{MaybeBody, Query};
use super::{Service, Shared};
use crate::clock;
use crate::door::Caller;
use crate::limits::SNAPSHOT_NAME_BYTES;
use crate::tenants::{self, Kind};

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new()
        .routes(routes!(create_snapshot))
        .routes(routes!(list_snapshots))
        .routes(routes!(get_snapshot, delete_snapshot))
}

/// Keep the state of a box
///
/// Its files; processes are no part of it. It is ready when the answer comes.
#[utoipa::path(post, path = "/sandboxes/{id}/snapshots", tag = "snapshots", params(("id" = String, Path)),
    request_body = Option<CreateSnapshotRequest>, responses(
    (status = 202, description = "It is kept", body = Snapshot),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn create_snapshot(
    State(service): Shared,
    Path(id): Path<String>,
    MaybeBody(request): MaybeBody<CreateSnapshotRequest>,
) -> Answer<impl IntoResponse> {
    let info = service.rooms.info(&id).await?;
    // Callers' names are texts for people, and need not differ: a snapshot is found by its id.
    let options = SnapshotOptions { label: name_of(request.name)?, ..SnapshotOptions::default() };
    let failed = |e| Fault::of_box_or(&id, "SNAPSHOT::RUNTIME_CREATE_FAILED", e);
    let snapshot = service.house.snapshot(&id, options).await.map_err(failed)?;
    let tenant = info.labels.get(tenants::LABEL).map(String::as_str);
    service.tenants.mark(Kind::Snapshot, &snapshot.id, tenant)?;
    let location = format!("/v1/snapshots/{}", snapshot.id);
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(view(snapshot))))
}

/// List snapshots
#[utoipa::path(get, path = "/snapshots", tag = "snapshots", params(
    ("sandboxId" = Option<String>, Query, description = "Only those of this box"),
    ("name" = Option<String>, Query, description = "Only those with this name"),
    ("state" = Option<Vec<String>>, Query, description = "Only those in one of these states; all are Ready"),
    ("page" = Option<u64>, Query, description = "From 1"),
    ("pageSize" = Option<u64>, Query, description = "1 to 200, 20 without a word"),
), responses((status = 200, description = "The newest first", body = ListSnapshotsResponse)))]
async fn list_snapshots(
    State(service): Shared,
    caller: Caller,
    query: Query,
) -> Answer<Json<ListSnapshotsResponse>> {
    let page = Page::of(&query)?;
    let (of, named) = (query.get("sandboxId"), query.get("name"));
    let states: Vec<&str> = query.all("state").collect();
    let ready = states.is_empty() || states.iter().any(|state| state.eq_ignore_ascii_case(READY));
    let mut found = service.house.snapshots().await?;
    found.retain(|snapshot| {
        let fits =
            of.is_none_or(|of| of == snapshot.from) && (named.is_none() || named == snapshot.known_as());
        // States after steps belong to their boxes, and not to callers.
        ready && fits && snapshot.step.is_none() && may_see_snapshot(&service, &caller, &snapshot.id)
    });
    found.reverse();
    let (items, pagination) = page.cut(found);
    Ok(Json(ListSnapshotsResponse { items: items.into_iter().map(view).collect(), pagination }))
}

/// Look at a snapshot
#[utoipa::path(get, path = "/snapshots/{id}", tag = "snapshots", params(("id" = String, Path)), responses(
    (status = 200, description = "What is known of it", body = Snapshot),
    (status = 404, description = "There is no such snapshot", body = ErrorResponse),
))]
async fn get_snapshot(
    State(service): Shared,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<Json<Snapshot>> {
    find(&service, &caller, &id).await.map(|snapshot| Json(view(snapshot)))
}

/// Remove a snapshot
///
/// Boxes that were made from it live on.
#[utoipa::path(delete, path = "/snapshots/{id}", tag = "snapshots", params(("id" = String, Path)), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "There is no such snapshot", body = ErrorResponse),
))]
async fn delete_snapshot(
    State(service): Shared,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    find(&service, &caller, &id).await?;
    let failed = |e: glasshouse_sandbox::Error| match e.kind() {
        ErrorKind::NotFound => unknown(&id),
        _ => e.into(),
    };
    service.house.remove_snapshot(&id).await.map_err(failed)?;
    service.tenants.unmark(Kind::Snapshot, &id);
    Ok(StatusCode::NO_CONTENT)
}

const READY: &str = "Ready";

fn name_of(name: Option<String>) -> Answer<Option<String>> {
    match name.as_ref().map(String::len) {
        Some(0) => Err(Fault::invalid("the name of a snapshot is empty")),
        Some(length) if length > SNAPSHOT_NAME_BYTES => {
            Err(Fault::invalid(format!("the name of a snapshot is longer than {SNAPSHOT_NAME_BYTES} bytes")))
        }
        _ => Ok(name),
    }
}

/// There is no such snapshot.
pub(super) fn unknown(id: &str) -> Fault {
    Fault::new(StatusCode::NOT_FOUND, "SNAPSHOT::NOT_FOUND", format!("there is no snapshot {id}"))
}

/// A snapshot of the caller's, by its whole id.
pub(super) async fn find(service: &Service, caller: &Caller, id: &str) -> Answer<SnapshotInfo> {
    let unknown = || unknown(id);
    match service.house.snapshot_info(id).await {
        Ok(snapshot) if snapshot.id == id && may_see_snapshot(service, caller, id) => Ok(snapshot),
        Ok(_) => Err(unknown()),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => Err(unknown()),
        Err(e) => Err(e.into()),
    }
}

fn view(snapshot: SnapshotInfo) -> Snapshot {
    let created_at = clock::text(snapshot.created_ms as i64);
    let status = SandboxStatus {
        state: READY,
        reason: Some("snapshot_ready"),
        message: Some(format!("made in {} µs", snapshot.took_us)),
        last_transition_at: Some(created_at.clone()),
    };
    let name = snapshot.known_as().map(str::to_owned);
    Snapshot { id: snapshot.id, sandbox_id: snapshot.from, name, status, created_at }
}
