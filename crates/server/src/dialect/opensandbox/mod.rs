//! OpenSandbox's protocol: the lifecycle of boxes, and below each box's port 44772 what its `execd` does inside.
//!
//! The names and the odd corners are the protocol's (a mode of 0o644 is the number 644; a stream of events is bare JSON with
//! blank lines between); the SDKs depend on them. What cannot be done here answers 501 and says why.
//!
//! There is no `execd` in our boxes: the guest is asked instead, from outside. So an endpoint is a path of this server, and
//! works with and without `use_server_proxy`.

mod create;
mod egress;
mod endpoint;
mod execd;
mod extensions;
mod fault;
mod lifecycle;
mod metadata;
mod model;
mod page;
mod query;
mod records;
mod rooms;
mod snapshot;
mod unsupported;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router};
use glasshouse_sandbox::Sandboxes;
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::fault::Fault;
use self::rooms::Rooms;
use crate::config::Config;
use crate::door::{self, Caller};
use crate::error::Result;
use crate::limits::JSON_BYTES;

pub(crate) use self::rooms::{adopt, reap};

/// What every route has at hand.
#[derive(Debug)]
pub(crate) struct Service {
    house: Sandboxes,
    rooms: Rooms,
    config: Config,
    /// What the tokens of boxes are made of.
    secret: Secret,
}

/// Something that is not shown.
struct Secret([u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// As routes are given it.
type Shared = State<Arc<Service>>;

impl Service {
    /// Opens the server's own files.
    pub(crate) fn open(house: Sandboxes, config: Config) -> Result<Service> {
        let dir = config.home.join("server");
        let (records, secret) = records::open(&dir)?;
        Ok(Service { rooms: Rooms::new(house.clone(), records), house, config, secret: Secret(secret) })
    }

    /// What shows that a caller was told of this box's endpoints.
    fn token(&self, id: &str) -> String {
        blake3::keyed_hash(&self.secret.0, id.as_bytes()).to_hex().to_string()
    }
}

/// All routes, below `/v1` and without it; and those of others, behind the same door.
pub(crate) fn router(service: Arc<Service>, others: Router<Arc<Service>>) -> Router {
    let (routes, mut document) = OpenApiRouter::new().nest("/v1", api()).merge(about()).split_for_parts();
    describe(&mut document);
    let document = Arc::new(serde_json::to_value(&document).unwrap_or_default());
    let (bare, _) = api().split_for_parts();
    let openapi = axum::routing::get(move || async move { Json(Value::clone(&document)) });
    routes
        .merge(bare)
        .merge(others)
        .route("/openapi.json", openapi)
        .fallback(nowhere)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(JSON_BYTES))
        .layer(axum::middleware::from_fn_with_state(service.clone(), enter))
        .with_state(service)
}

fn api() -> OpenApiRouter<Arc<Service>> {
    lifecycle::routes()
        .merge(snapshot::routes())
        .merge(endpoint::routes())
        .merge(egress::routes())
        .merge(unsupported::routes())
        .merge(extensions::routes())
        .nest("/sandboxes/{id}/proxy/44772", execd::routes())
        .nest("/sandboxes/{id}/proxy/18080", egress::sidecar())
        // The real execd is a proxy as well, and some callers go through it to itself.
        .merge(OpenApiRouter::from(
            Router::new().nest("/sandboxes/{id}/proxy/44772/proxy/44772", execd::routes().into()),
        ))
}

fn about() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(health)).routes(routes!(ready)).routes(routes!(version))
}

fn describe(document: &mut utoipa::openapi::OpenApi) {
    document.info.title = "Glasshouse".to_owned();
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    document.info.description = Some(
        "Boxes for code that is not trusted: OpenSandbox's protocol. All of it also answers without `/v1`."
            .to_owned(),
    );
}

/// The server is there
#[utoipa::path(get, path = "/health", tag = "server", responses((status = 200, description = "It is", body = Value)))]
async fn health() -> Json<Value> {
    Json(json!({ "status": "healthy" }))
}

/// The server can reach its boxes
#[utoipa::path(get, path = "/ready", tag = "server", responses(
    (status = 200, description = "It can", body = Value),
    (status = 503, description = "It cannot", body = model::ErrorResponse),
))]
async fn ready(State(service): Shared) -> std::result::Result<Json<Value>, Fault> {
    let boxes =
        service.house.list().await.map_err(|e| {
            Fault::new(StatusCode::SERVICE_UNAVAILABLE, "SANDBOX::INTERNAL_ERROR", e.to_string())
        })?;
    Ok(Json(json!({ "status": "ready", "boxes": boxes.len() })))
}

/// Which protocol is spoken, and by what
#[utoipa::path(get, path = "/version", tag = "server", responses((status = 200, description = "Versions", body = Value)))]
async fn version() -> Json<Value> {
    Json(json!({ "version": PROTOCOL, "glasshouse": env!("CARGO_PKG_VERSION") }))
}

/// The release of OpenSandbox whose protocol this is.
const PROTOCOL: &str = "1.1.1";

/// The first and the last station of every request.
async fn enter(State(service): Shared, mut request: Request, next: Next) -> Response {
    let id = door::request_id(request.headers());
    let mut response = match admit(&service, &request) {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(fault) => fault.into_response(),
    };
    response.headers_mut().insert(door::REQUEST_ID, id);
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
    response
}

fn admit(service: &Service, request: &Request) -> std::result::Result<Caller, Fault> {
    let (headers, path) = (request.headers(), request.uri().path());
    let Some(key) = &service.config.key else {
        let refuse = |why| Fault::new(StatusCode::FORBIDDEN, "FOREIGN_REQUEST", why);
        return door::foreign(headers, request.method())
            .map_or(Ok(Caller::default()), |why| Err(refuse(why)));
    };
    if matches!(path, "/health" | "/ready" | "/version" | "/openapi.json") {
        return Ok(Caller::default());
    }
    if let Some(shown) = headers.get(door::KEY) {
        let fine = door::same(shown.as_bytes(), key.as_bytes());
        let wrong =
            || Fault::new(StatusCode::UNAUTHORIZED, "INVALID_API_KEY", "the API key is not the right one");
        return if fine { Ok(Caller::default()) } else { Err(wrong()) };
    }
    // Callers of a box's endpoint show what they were told with it.
    let box_id = endpoint::box_of(path);
    if let (Some(id), Some(shown)) = (box_id, headers.get(endpoint::TOKEN))
        && door::same(shown.as_bytes(), service.token(id).as_bytes())
    {
        return Ok(Caller::default());
    }
    let message = "this server wants an API key; send it as OPEN-SANDBOX-API-KEY";
    Err(Fault::new(StatusCode::UNAUTHORIZED, "MISSING_API_KEY", message))
}

async fn nowhere(request: Request) -> Fault {
    let message = format!("there is nothing at {}", request.uri().path());
    Fault::new(StatusCode::NOT_FOUND, "NOT_FOUND", message)
}

async fn no_such_method(request: Request) -> Fault {
    let message = format!("{} is not done to {}", request.method(), request.uri().path());
    Fault::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message)
}
