//! Whom a box may talk to: nobody. What the protocol's sidecar at port 18080 and the server tell of it.
//!
//! Rules that deny are in force anyway; they are remembered, and told to whoever asks.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::routing::any;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::create::offline;
use super::fault::{Answer, Fault};
use super::model::{ErrorResponse, NetworkPolicy, NetworkRule, PolicyStatus};
use super::query::{Body, MaybeBody};
use super::{Service, Shared};

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(get_policy, put_policy, patch_policy, delete_policy))
}

/// What answers at a box's port 18080.
pub(super) fn sidecar() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new()
        .routes(routes!(sidecar_get, sidecar_post, sidecar_put, sidecar_patch, sidecar_delete))
        .routes(routes!(healthz))
        .routes(routes!(vault))
        .route("/credential-vault/{*rest}", any(vault))
}

/// The credential vault, which is not here
///
/// Nor is anything below it: boxes have no network to use credentials in.
#[utoipa::path(method(get, post, patch, delete), path = "/credential-vault", tag = "not here",
    responses((status = 501, description = "And why", body = ErrorResponse)))]
async fn vault() -> Fault {
    Fault::unsupported("this server has no credential vault: sandboxes have no network to use credentials in")
}

/// Whom a box may talk to
#[utoipa::path(get, path = "/sandboxes/{id}/networkpolicy", tag = "network", params(("id" = String, Path)),
    responses((status = 200, description = "Nobody", body = PolicyStatus)))]
async fn get_policy(State(service): Shared, Path(id): Path<String>) -> Answer<Json<PolicyStatus>> {
    let info = service.rooms.info(&id).await?;
    Ok(Json(nobody(service.rooms.record(&info).egress)))
}

/// Say whom a box may talk to
#[utoipa::path(put, path = "/sandboxes/{id}/networkpolicy", tag = "network", params(("id" = String, Path)),
    request_body = NetworkPolicy, responses(
    (status = 200, description = "Nobody", body = PolicyStatus),
    (status = 501, description = "Something was to be allowed", body = ErrorResponse),
))]
async fn put_policy(
    State(service): Shared,
    Path(id): Path<String>,
    MaybeBody(policy): MaybeBody<NetworkPolicy>,
) -> Answer<Json<PolicyStatus>> {
    offline(Some(&policy))?;
    amend(&service, &id, |_| policy.egress.unwrap_or_default()).await
}

/// Say more of whom a box may talk to
#[utoipa::path(patch, path = "/sandboxes/{id}/networkpolicy", tag = "network", params(("id" = String, Path)),
    request_body = Vec<NetworkRule>, responses(
    (status = 200, description = "Nobody", body = PolicyStatus),
    (status = 501, description = "Something was to be allowed", body = ErrorResponse),
))]
async fn patch_policy(
    State(service): Shared,
    Path(id): Path<String>,
    Body(rules): Body<Vec<NetworkRule>>,
) -> Answer<Json<PolicyStatus>> {
    offline(Some(&NetworkPolicy { egress: Some(rules.clone()), ..NetworkPolicy::default() }))?;
    amend(&service, &id, |mut known| {
        // Of a target counts what is said now; and of what is said at once, the first.
        known.retain(|old| !rules.iter().any(|rule| rule.target == old.target));
        for rule in rules {
            if !known.iter().any(|there| there.target == rule.target) {
                known.push(rule);
            }
        }
        known
    })
    .await
}

/// Take back what was said of some targets
#[utoipa::path(delete, path = "/sandboxes/{id}/networkpolicy", tag = "network", params(("id" = String, Path)),
    request_body = Vec<String>, responses((status = 200, description = "Nobody", body = PolicyStatus)))]
async fn delete_policy(
    State(service): Shared,
    Path(id): Path<String>,
    Body(targets): Body<Vec<String>>,
) -> Answer<Json<PolicyStatus>> {
    let mut is_any = false;
    let Json(mut status) = amend(&service, &id, |mut known| {
        let before = known.len();
        known.retain(|rule| !targets.contains(&rule.target));
        is_any = known.len() < before;
        known
    })
    .await?;
    if !is_any {
        status.reason = Some("no matching targets found".to_owned());
    }
    Ok(Json(status))
}

/// Changes the rules that are remembered of a box. What it may do then.
async fn amend(
    service: &Service,
    id: &str,
    change: impl FnOnce(Vec<NetworkRule>) -> Vec<NetworkRule>,
) -> Answer<Json<PolicyStatus>> {
    let info = service.rooms.info(id).await?;
    let record = service.rooms.amend(&info, |record| {
        record.egress = change(std::mem::take(&mut record.egress));
        // What came together may be too much.
        offline(Some(&NetworkPolicy { egress: Some(record.egress.clone()), ..NetworkPolicy::default() }))
    })?;
    Ok(Json(nobody(record.egress)))
}

/// Whom this box may talk to
#[utoipa::path(get, path = "/policy", tag = "network", responses((status = 200, description = "Nobody", body = PolicyStatus)))]
async fn sidecar_get(service: Shared, id: Path<String>) -> Answer<Json<PolicyStatus>> {
    get_policy(service, id).await
}

/// Say whom this box may talk to
#[utoipa::path(post, path = "/policy", tag = "network", request_body = NetworkPolicy,
    responses((status = 200, description = "Nobody", body = PolicyStatus)))]
async fn sidecar_post(
    service: Shared,
    id: Path<String>,
    policy: MaybeBody<NetworkPolicy>,
) -> Answer<Json<PolicyStatus>> {
    put_policy(service, id, policy).await
}

/// Say whom this box may talk to
#[utoipa::path(put, path = "/policy", tag = "network", request_body = NetworkPolicy,
    responses((status = 200, description = "Nobody", body = PolicyStatus)))]
async fn sidecar_put(
    service: Shared,
    id: Path<String>,
    policy: MaybeBody<NetworkPolicy>,
) -> Answer<Json<PolicyStatus>> {
    put_policy(service, id, policy).await
}

/// Say more of whom this box may talk to
#[utoipa::path(patch, path = "/policy", tag = "network", request_body = Vec<NetworkRule>,
    responses((status = 200, description = "Nobody", body = PolicyStatus)))]
async fn sidecar_patch(
    service: Shared,
    id: Path<String>,
    rules: Body<Vec<NetworkRule>>,
) -> Answer<Json<PolicyStatus>> {
    patch_policy(service, id, rules).await
}

/// Take back what was said of some targets
#[utoipa::path(delete, path = "/policy", tag = "network", request_body = Vec<String>,
    responses((status = 200, description = "Nobody", body = PolicyStatus)))]
async fn sidecar_delete(
    service: Shared,
    id: Path<String>,
    targets: Body<Vec<String>>,
) -> Answer<Json<PolicyStatus>> {
    delete_policy(service, id, targets).await
}

/// The rules of this box are in force
#[utoipa::path(get, path = "/healthz", tag = "network", responses((status = 200, description = "They are", body = String)))]
async fn healthz(State(service): Shared, Path(id): Path<String>) -> Answer<&'static str> {
    service.rooms.info(&id).await?;
    Ok("ok")
}

fn nobody(rules: Vec<NetworkRule>) -> PolicyStatus {
    PolicyStatus {
        status: "ok",
        mode: "deny_all",
        enforcement_mode: "none+namespace",
        reason: Some("the sandbox has no network but its own loopback device".to_owned()),
        policy: NetworkPolicy { default_action: Some("deny".to_owned()), egress: Some(rules) },
    }
}
