//! The life of boxes: made, looked at, described, renewed, paused and ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use glasshouse_sandbox::{
    Credentials, ErrorKind, ExecSpec, Image, Program, PullOptions, SandboxInfo, SandboxSpec, SandboxState,
    SnapshotInfo,
};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::create::{self, Wanted};
use super::execd::of_commands;
use super::fault::{Answer, Fault};
use super::metadata;
use super::model::{
    CreateSandboxRequest, ErrorResponse, Expiration, ImageSpec, ListSandboxesResponse, PlatformSpec, Sandbox,
    SandboxStatus,
};
use super::page::Page;
use super::query::{Body, Query};
use super::records::{Ended, Record};
use super::rooms::{self, ENTRYPOINT, Room};
use super::{Service, Shared};
use crate::clock;
use crate::door::Caller;
use crate::limits::BACKGROUND_BYTES;
use crate::tenants::{self, Kind};

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new()
        .routes(routes!(create_sandbox, list_sandboxes))
        .routes(routes!(get_sandbox, delete_sandbox))
        .routes(routes!(patch_metadata))
        .routes(routes!(renew))
        .routes(routes!(pause))
        .routes(routes!(resume))
}

/// Make a box
///
/// It can be used when the answer comes.
#[utoipa::path(post, path = "/sandboxes", tag = "sandboxes", request_body = CreateSandboxRequest, responses(
    (status = 202, description = "It is made", body = Sandbox),
    (status = 400, description = "That makes no sense", body = ErrorResponse),
    (status = 501, description = "This server cannot do that, and says why", body = ErrorResponse),
))]
async fn create_sandbox(
    State(service): Shared,
    caller: Caller,
    Body(request): Body<CreateSandboxRequest>,
) -> Answer<impl IntoResponse> {
    let Wanted { mut spec, mut record, life_ms, credentials } =
        create::wanted(request, &service.config, caller.tenant.as_deref())?;
    have_image(&service, &spec.image, credentials).await?;
    let mut recording = service.config.recording;
    if let Image::Snapshot(id) = &spec.image {
        let snapshot = super::snapshot::find(&service, &caller, id).await?;
        as_its_box(&mut spec, &snapshot);
        // Not less than the settings say, and not less than was recorded of the box that it is of.
        recording = recording.max(snapshot.recording);
    }
    spec.recording.get_or_insert(recording);
    // Only a volume that is not to be made can be missing.
    let by_name = spec.volumes.iter().any(|volume| !volume.make);
    let failed = |e: glasshouse_sandbox::Error| match e.kind() {
        ErrorKind::NotFound if by_name => Fault::from(e).coded("VOLUME::PVC_NOT_FOUND"),
        _ => Fault::from(e).coded("DOCKER::SANDBOX_START_FAILED"),
    };
    spec.labels.extend(caller.tenant.iter().map(|tenant| (tenants::LABEL.to_owned(), tenant.clone())));
    let _place = service.tenants.place(&service.house, caller.tenant.as_deref(), &spec.limits, 1).await?;
    let sandbox = service.house.create(spec).await.map_err(failed)?;
    // Not from when it was asked for: an image may have had to be fetched.
    record.expires_ms = life_ms.map(|life| sandbox.info().created_ms + life);
    let rooms = take_in(&service, vec![sandbox], &record).await?;
    let room = rooms.first().ok_or_else(|| Fault::internal("a sandbox was lost sight of"))?;
    let location = format!("/v1/sandboxes/{}", room.sandbox.id());
    let told = view(room.sandbox.info(), record);
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(told)))
}

/// Takes in boxes that were just made: remembers them, and starts what they are to run. All of them, or none.
pub(super) async fn take_in(
    service: &Arc<Service>,
    made: Vec<glasshouse_sandbox::Sandbox>,
    record: &Record,
) -> Answer<Vec<Arc<Room>>> {
    let rooms: Vec<Arc<Room>> = made.into_iter().map(|sandbox| service.rooms.enter(sandbox)).collect();
    let begun = async {
        for room in &rooms {
            mark(service, room.sandbox.info())?;
            service.rooms.remember(room.sandbox.id(), record)?;
            begin(service, room, &record.entrypoint).await?;
        }
        Ok(())
    };
    if let Err(fault) = begun.await {
        for room in rooms {
            // Boxes that nobody hears of would only lie around.
            let _ = service.rooms.destroy(room.sandbox.id()).await;
        }
        return Err(fault);
    }
    Ok(rooms)
}

/// Remembers whose box it is, for when it is gone.
pub(super) fn mark(service: &Service, info: &SandboxInfo) -> Answer<()> {
    let tenant = info.labels.get(tenants::LABEL).map(String::as_str);
    Ok(service.tenants.mark(Kind::Box, &info.id, tenant)?)
}

/// Has an image here, fetched if need be.
pub(super) async fn have_image(
    service: &Service,
    image: &Image,
    credentials: Option<Credentials>,
) -> Answer<()> {
    let (name, is_here) = match image {
        Image::Remote(name) => (name, service.house.image(name).await.is_ok()),
        Image::Engine(name) => (name, service.house.engine_image(name).await?.is_some()),
        _ => return Ok(()),
    };
    if is_here {
        return Ok(());
    }
    let failed = |e: glasshouse_sandbox::Error| {
        let code = "DOCKER::SANDBOX_IMAGE_PULL_FAILED";
        Fault::new(StatusCode::INTERNAL_SERVER_ERROR, code, format!("cannot pull the image {name}: {e}"))
    };
    let options = PullOptions { credentials, ..PullOptions::default() };
    match image {
        Image::Engine(_) => service.house.pull_engine_image(name, options).await.map(drop),
        _ => service.house.pull_image(name, options).await.map(drop),
    }
    .map_err(failed)
}

/// A box from a snapshot has the user and the place of the box that it was taken of.
fn as_its_box(spec: &mut SandboxSpec, snapshot: &SnapshotInfo) {
    if snapshot.image == Image::Host {
        (spec.user, spec.cwd) = (Some("root".to_owned()), Some("/root".to_owned()));
    }
}

/// Starts what a box is to run, unless that only waits.
pub(super) async fn begin(service: &Arc<Service>, room: &Arc<Room>, entrypoint: &[String]) -> Answer<()> {
    if entrypoint.is_empty() || create::only_waits(entrypoint) {
        return Ok(());
    }
    if let Some(program) = create::of_their_images(entrypoint)
        && let Err(e) = room.sandbox.stat(program, true).await
        && e.kind() == ErrorKind::NotFound
    {
        return Ok(());
    }
    let spec = ExecSpec {
        program: Program::Argv(entrypoint.to_vec()),
        env: of_commands(&room.sandbox).await?,
        background: true,
        label: Some(ENTRYPOINT.to_owned()),
        kept_output_bytes: Some(BACKGROUND_BYTES),
        ..ExecSpec::default()
    };
    room.commands.start(&room.sandbox, ENTRYPOINT, spec).await?;
    rooms::watch_entrypoint(service.clone(), room.clone());
    Ok(())
}

/// List boxes
#[utoipa::path(get, path = "/sandboxes", tag = "sandboxes", params(
    ("state" = Option<Vec<String>>, Query, description = "Only boxes in one of these states"),
    ("metadata" = Option<String>, Query, description = "Only boxes with all of these, as `k=v&k2=v2`"),
    ("page" = Option<u64>, Query, description = "From 1"),
    ("pageSize" = Option<u64>, Query, description = "1 to 200, 20 without a word"),
), responses(
    (status = 200, description = "The newest first", body = ListSandboxesResponse),
    (status = 400, description = "That makes no sense", body = ErrorResponse),
))]
async fn list_sandboxes(
    State(service): Shared,
    caller: Caller,
    query: Query,
) -> Answer<Json<ListSandboxesResponse>> {
    let page = Page::of(&query)?;
    let wanted = query.get("metadata").map(metadata::filter).transpose()?.unwrap_or_default();
    let states: Vec<&str> = query.all("state").collect();
    let mut infos = service.house.list().await?;
    infos.retain(|info| caller.tenant.is_none() || info.labels.get(tenants::LABEL) == caller.tenant.as_ref());
    infos.reverse();
    let mut found = Vec::new();
    for info in infos {
        let record = service.rooms.record(&info);
        let matches = metadata::matches(&metadata::of(&info.labels), &wanted);
        let told = view(&info, record);
        let in_state =
            states.is_empty() || states.iter().any(|state| state.eq_ignore_ascii_case(told.status.state));
        if matches && in_state {
            found.push(told);
        }
    }
    let (items, pagination) = page.cut(found);
    Ok(Json(ListSandboxesResponse { items, pagination }))
}

/// Look at a box
#[utoipa::path(get, path = "/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)), responses(
    (status = 200, description = "What is known of it", body = Sandbox),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn get_sandbox(State(service): Shared, Path(id): Path<String>) -> Answer<Json<Sandbox>> {
    let info = service.rooms.info(&id).await?;
    let record = service.rooms.record(&info);
    Ok(Json(view(&info, record)))
}

/// End a box
///
/// Nothing is left of it but its record.
#[utoipa::path(delete, path = "/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn delete_sandbox(State(service): Shared, Path(id): Path<String>) -> Answer<StatusCode> {
    service.rooms.info(&id).await?;
    service.rooms.destroy(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Change what is said of a box
///
/// A JSON merge patch: what is `null` is removed.
#[utoipa::path(patch, path = "/sandboxes/{id}/metadata", tag = "sandboxes", params(("id" = String, Path)),
    request_body = BTreeMap<String, Option<String>>, responses(
    (status = 200, description = "The box", body = Sandbox),
    (status = 400, description = "That cannot be metadata", body = ErrorResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn patch_metadata(
    State(service): Shared,
    Path(id): Path<String>,
    Body(patch): Body<BTreeMap<String, Option<String>>>,
) -> Answer<Json<Sandbox>> {
    let info = service.rooms.info(&id).await?;
    metadata::check_patch(&patch)?;
    let changed = service.house.relabel(&id, |labels| metadata::patch(labels, patch)).await;
    let info = changed.map_err(|e| Fault::of_box(&info.id, e))?;
    let record = service.rooms.record(&info);
    Ok(Json(view(&info, record)))
}

/// Let a box live longer, or shorter
#[utoipa::path(post, path = "/sandboxes/{id}/renew-expiration", tag = "sandboxes", params(("id" = String, Path)),
    request_body = Expiration, responses(
    (status = 200, description = "Until when it lives", body = Expiration),
    (status = 400, description = "That is no time to come", body = ErrorResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
    (status = 409, description = "The box stays until it is deleted", body = ErrorResponse),
))]
async fn renew(
    State(service): Shared,
    Path(id): Path<String>,
    Body(wanted): Body<Expiration>,
) -> Answer<Json<Expiration>> {
    let info = service.rooms.info(&id).await?;
    if service.rooms.record(&info).expires_ms.is_none() {
        let message = format!("sandbox {id} was made without a timeout, and stays until it is deleted");
        return Err(Fault::conflict("DOCKER::INVALID_EXPIRATION", message));
    }
    let wrong = |why: &str| {
        let message = format!("expiresAt {:?} {why}", wanted.expires_at);
        Fault::new(StatusCode::BAD_REQUEST, "DOCKER::INVALID_EXPIRATION", message)
    };
    let at = clock::parse(&wanted.expires_at).ok_or_else(|| wrong("is no time of RFC 3339"))?;
    // What bounds the time that a box is made with does not bound what it is given later, as callers know it.
    let at = u64::try_from(at).ok().filter(|at| *at > clock::now_ms()).ok_or_else(|| wrong("is over"))?;
    service.rooms.amend(&info, |record| {
        record.expires_ms = Some(at);
        Ok(())
    })?;
    Ok(Json(Expiration { expires_at: clock::text(at as i64) }))
}

/// Pause a box
///
/// All that runs in it stands still and keeps its memory; its time goes on.
#[utoipa::path(post, path = "/sandboxes/{id}/pause", tag = "sandboxes", params(("id" = String, Path)), responses(
    (status = 202, description = "It is paused"),
    (status = 404, description = "There is no such box", body = ErrorResponse),
    (status = 409, description = "It does not run", body = ErrorResponse),
))]
async fn pause(State(service): Shared, Path(id): Path<String>) -> Answer<StatusCode> {
    let info = service.rooms.info(&id).await?;
    if info.state != SandboxState::Running {
        let message = format!("sandbox {id} does not run");
        return Err(Fault::conflict("DOCKER::SANDBOX_NOT_RUNNING", message));
    }
    let failed = |e| Fault::of_box_or(&id, "DOCKER::SANDBOX_PAUSE_FAILED", e);
    service.house.pause(&id).await.map_err(failed)?;
    since_now(&service, &info)?;
    Ok(StatusCode::ACCEPTED)
}

/// Let a paused box go on
///
/// One that was stopped (`glass stop`) is started on what it had written, with its entrypoint.
#[utoipa::path(post, path = "/sandboxes/{id}/resume", tag = "sandboxes", params(("id" = String, Path)), responses(
    (status = 202, description = "It runs"),
    (status = 404, description = "There is no such box", body = ErrorResponse),
    (status = 409, description = "It is not paused", body = ErrorResponse),
))]
async fn resume(State(service): Shared, Path(id): Path<String>) -> Answer<StatusCode> {
    let info = service.rooms.info(&id).await?;
    let record = service.rooms.record(&info);
    let failed = |e| Fault::of_box_or(&id, "DOCKER::SANDBOX_RESUME_FAILED", e);
    match info.state {
        SandboxState::Paused => {
            service.house.resume(&id).await.map_err(failed)?;
            since_now(&service, &info)?;
        }
        SandboxState::Stopped if record.ended.is_none() => {
            let room = service.rooms.enter(service.house.start(&id).await.map_err(failed)?);
            since_now(&service, &info)?;
            begin(&service, &room, &record.entrypoint).await?;
        }
        _ => {
            return Err(Fault::conflict("DOCKER::SANDBOX_NOT_PAUSED", format!("sandbox {id} is not paused")));
        }
    }
    Ok(StatusCode::ACCEPTED)
}

/// Remembers that a box is in its state from now on.
fn since_now(service: &Service, info: &SandboxInfo) -> Answer<()> {
    service.rooms.amend(info, |record| {
        record.since_ms = Some(clock::now_ms());
        Ok(())
    })?;
    Ok(())
}

/// A box in the protocol's words.
pub(super) fn view(info: &SandboxInfo, record: Record) -> Sandbox {
    let status = status(info, &record);
    let uri = record.image.unwrap_or_else(|| info.root_image.to_string());
    let image = record.snapshot.is_none().then_some(ImageSpec { uri, auth: None });
    Sandbox {
        id: info.id.clone(),
        status,
        image,
        snapshot_id: record.snapshot,
        platform: record.platform.map(|(os, arch)| PlatformSpec { os, arch }),
        metadata: Some(metadata::of(&info.labels)),
        extensions: Some(record.extensions).filter(|extensions| !extensions.is_empty()),
        expires_at: record.expires_ms.map(|at| clock::text(at as i64)),
        created_at: clock::text(info.created_ms as i64),
        entrypoint: record.entrypoint,
    }
}

/// How an entrypoint ended, in words that clients look for.
fn how_it_ended(ended: &Ended) -> String {
    match ended.how.strip_prefix("exit code ") {
        Some(code) => format!("the entrypoint exited with code {code}"),
        None => format!("the entrypoint has ended: {}", ended.how),
    }
}

fn status(info: &SandboxInfo, record: &Record) -> SandboxStatus {
    let (state, reason, message) = match (info.state, &record.ended) {
        (_, Some(ended)) if ended.success => ("Terminated", "CONTAINER_EXITED", how_it_ended(ended)),
        (_, Some(ended)) => ("Failed", "CONTAINER_EXITED_ERROR", how_it_ended(ended)),
        (SandboxState::Running, None) => {
            ("Running", "CONTAINER_RUNNING", format!("isolated at the level {}", info.level))
        }
        (SandboxState::Paused, None) => {
            ("Paused", "CONTAINER_PAUSED", "all that runs in it stands still".to_owned())
        }
        (SandboxState::Stopped, None) => {
            ("Paused", "CONTAINER_PAUSED", "its files are kept; its processes have ended".to_owned())
        }
        (SandboxState::Dead, None) => ("Failed", "CONTAINER_EXITED_ERROR", "it ended by itself".to_owned()),
    };
    let since_ms = record.since_ms.unwrap_or(info.created_ms);
    let last_transition_at = Some(clock::text(since_ms as i64));
    SandboxStatus { state, reason: Some(reason), message: Some(message), last_transition_at }
}
