//! Where the ports of a box are reached: at paths of this server.

use std::sync::Arc;

use axum::Json;
use axum::extract::{OriginalUri, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::any;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::fault::{Answer, Fault};
use super::model::{Endpoint, ErrorResponse};
use super::query::Query;
use super::{Service, Shared, proxy};
use crate::door::Caller;

/// The port that stands for what is done inside a box.
const EXECD: u16 = 44772;

/// What callers of an endpoint show in place of the key, which the SDKs keep away from endpoints.
pub(crate) const TOKEN: &str = "opensandbox-secure-access";
/// The same, as those have it who know nothing but execd.
pub(crate) const EXECD_TOKEN: &str = "x-execd-access-token";

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new()
        .routes(routes!(endpoint))
        .route("/sandboxes/{id}/proxy/{port}", any(proxy::pass_on))
        .route("/sandboxes/{id}/proxy/{port}/", any(proxy::pass_on))
        .route("/sandboxes/{id}/proxy/{port}/{*rest}", any(proxy::pass_on))
}

/// Where a port of a box is reached
///
/// 44772 is where commands and files are; 18080 tells whom the box may talk to; any other is what listens on it in the box.
#[utoipa::path(get, path = "/sandboxes/{id}/endpoints/{port}", tag = "sandboxes", params(
    ("id" = String, Path), ("port" = String, Path),
    ("use_server_proxy" = Option<bool>, Query, description = "Both ways are the same here"),
), responses(
    (status = 200, description = "Host, port and path, without a scheme", body = Endpoint),
    (status = 400, description = "That is no port", body = ErrorResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn endpoint(
    State(service): Shared,
    caller: Caller,
    Path((id, port)): Path<(String, String)>,
    query: Query,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Answer<Json<Endpoint>> {
    let wrong = || {
        let message = format!("{port:?} is no port from 1 to 65535");
        Fault::new(StatusCode::BAD_REQUEST, "DOCKER::INVALID_PORT", message)
    };
    let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
    if query.get("expires").is_some() {
        if matches!(query.get("use_server_proxy"), Some("true" | "1")) {
            return Err(Fault::invalid("ask for a signed route or for the server's proxy, not for both"));
        }
        return Err(Fault::unsupported("this server has no signed routes"));
    }
    service.rooms.info(&id).await?;
    let called = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = service.config.public_host.as_deref().or(called);
    let host = host.map_or_else(|| service.config.listen.to_string(), str::to_owned);
    let prefix = if uri.path().starts_with("/v1/") { "/v1" } else { "" };
    let endpoint = format!("{host}{prefix}/sandboxes/{id}/proxy/{port}");
    let unsure = |e: crate::Error| Fault::internal(e.to_string());
    let token = match &caller.key {
        Some(key) if service.needs_key().map_err(unsure)? => service.token(&id, key).map_err(unsure)?,
        _ => None,
    };
    let headers = token.map(|token| {
        let execd = (port == EXECD).then(|| ("X-EXECD-ACCESS-TOKEN".to_owned(), token.clone()));
        execd.into_iter().chain([("OpenSandbox-Secure-Access".to_owned(), token)]).collect()
    });
    Ok(Json(Endpoint { endpoint, headers }))
}

/// The box that an endpoint's path belongs to.
pub(super) fn box_of(path: &str) -> Option<&str> {
    let path = path.strip_prefix("/v1").unwrap_or(path);
    let (id, rest) = path.strip_prefix("/sandboxes/")?.split_once('/')?;
    (rest.starts_with("proxy/") && !path.split('/').any(|part| part == "..")).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_endpoints_belong_to_a_box() {
        for (path, id) in [
            ("/v1/sandboxes/abc/proxy/44772/command", Some("abc")),
            ("/sandboxes/abc/proxy/44772", Some("abc")),
            ("/v1/sandboxes/abc", None),
            ("/v1/sandboxes/abc/metadata", None),
            ("/v1/sandboxes/abc/proxy/44772/../../../def", None),
            ("/v1/sandboxes", None),
            ("/v1/snapshots/abc/proxy/1", None),
        ] {
            assert_eq!(box_of(path), id, "{path}");
        }
    }
}
