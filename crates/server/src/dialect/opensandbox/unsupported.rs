//! What the protocol has and this server does not: each answers 501 and says why. And events that nobody waits for.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::fault::Fault;
use super::model::ErrorResponse;
use super::query::Body;
use super::{Service, Shared};

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new()
        .routes(routes!(metrics_event))
        .routes(routes!(pools))
        .routes(routes!(pool))
        .routes(routes!(templates))
        .routes(routes!(template))
}

/// How long something took for a caller.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "who says something has to say all of it, and it is not all used")]
struct MetricsEvent {
    /// `sandbox.create`.
    #[schema(value_type = String)]
    event_type: EventType,
    /// From the request until the box could be used.
    create_duration_ms: u64,
    success: bool,
    sandbox_id: Option<String>,
    image: Option<String>,
}

#[derive(Debug, Deserialize)]
enum EventType {
    #[serde(rename = "sandbox.create")]
    SandboxCreate,
}

/// Hear how long something took for a caller
#[utoipa::path(post, path = "/metrics/events", tag = "server", request_body = MetricsEvent, responses(
    (status = 204, description = "Heard; `/metrics` tells it"),
    (status = 400, description = "That makes no sense", body = ErrorResponse),
))]
async fn metrics_event(State(service): Shared, Body(event): Body<MetricsEvent>) -> StatusCode {
    let EventType::SandboxCreate = event.event_type;
    service.counters.created(event.success, Duration::from_millis(event.create_duration_ms));
    StatusCode::NO_CONTENT
}

/// Pools, which are not here
///
/// Making a box takes milliseconds without them.
#[utoipa::path(method(get, post), path = "/pools", tag = "not here",
    responses((status = 501, description = "And why", body = ErrorResponse)))]
async fn pools() -> Fault {
    let message = "this server has no pools: making a sandbox takes milliseconds without them";
    Fault::unsupported(message).coded("KUBERNETES::POOL_NOT_SUPPORTED")
}

/// A pool, which is not here
#[utoipa::path(method(get, put, delete), path = "/pools/{name}", tag = "not here", params(("name" = String, Path)),
    responses((status = 501, description = "And why", body = ErrorResponse)))]
async fn pool() -> Fault {
    pools().await
}

/// Templates, which are not here
///
/// A snapshot is one: boxes are made with its `snapshotId`.
#[utoipa::path(method(get, post), path = "/templates", tag = "not here",
    responses((status = 501, description = "And why", body = ErrorResponse)))]
async fn templates() -> Fault {
    Fault::unsupported(
        "this server has no templates: make a snapshot and create sandboxes with its snapshotId",
    )
}

/// A template, which is not here
#[utoipa::path(method(get, delete), path = "/templates/{id}", tag = "not here", params(("id" = String, Path)),
    responses((status = 501, description = "And why", body = ErrorResponse)))]
async fn template() -> Fault {
    templates().await
}
