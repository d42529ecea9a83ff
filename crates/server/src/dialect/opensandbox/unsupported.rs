//! What the protocol has and this server does not: each answers 501 and says why. And events that nobody waits for.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::routing::any;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Service;
use super::fault::Fault;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new()
        .routes(routes!(metrics_event))
        .route("/pools", any(pools))
        .route("/pools/{name}", any(pools))
        .route("/templates", any(templates))
        .route("/templates/{id}", any(templates))
}

/// Hear how long something took for a caller
#[utoipa::path(post, path = "/metrics/events", tag = "server", request_body = Object,
    responses((status = 204, description = "Heard")))]
async fn metrics_event() -> StatusCode {
    StatusCode::NO_CONTENT
}

async fn pools() -> Fault {
    let message = "this server has no pools: making a sandbox takes milliseconds without them";
    Fault::unsupported(message).coded("KUBERNETES::POOL_NOT_SUPPORTED")
}

async fn templates() -> Fault {
    Fault::unsupported(
        "this server has no templates: make a snapshot and create sandboxes with its snapshotId",
    )
}
