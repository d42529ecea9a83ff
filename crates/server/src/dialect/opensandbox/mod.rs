//! OpenSandbox's protocol: the lifecycle of boxes, and below each box's port 44772 what its `execd` does inside.
//!
//! The names and the odd corners are the protocol's (a mode of 0o644 is the number 644; a stream of events is bare JSON with
//! blank lines between); the SDKs depend on them. What cannot be done here answers 501 and says why.
//!
//! There is no `execd` in our boxes: the guest is asked instead, from outside. So an endpoint is a path of this server, and
//! works with and without `use_server_proxy`.

mod cors;
mod create;
mod diagnostics;
mod document;
mod egress;
mod endpoint;
mod entry;
mod execd;
mod extensions;
mod fault;
mod lifecycle;
mod metadata;
mod model;
mod page;
mod proxy;
mod query;
mod records;
mod rooms;
mod snapshot;
mod socket;
mod unsupported;
mod volumes;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::{Json, Router};
use glasshouse_sandbox::{SandboxState, Sandboxes};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::fault::Fault;
use self::rooms::Rooms;
use crate::audit::Audit;
use crate::clock;
use crate::config::{Config, Telemetry};
use crate::counters::{Counters, Told};
use crate::door::{self, Caller, OWN_KEY};
use crate::error::Result;
use crate::keys::{Keys, hash_of};
use crate::log::Log;
use crate::reading;
use crate::sessions::{self, Sessions};
use crate::telemetry::{self, Collector};
use crate::tenants::Tenants;

pub(crate) use self::rooms::{adopt, reap};

/// What every route has at hand.
#[derive(Debug)]
pub(crate) struct Service {
    house: Sandboxes,
    rooms: Rooms,
    config: Config,
    /// What the tokens of boxes are made of.
    secret: Secret,
    keys: Keys,
    /// A key was needed, when the server began or at any time since. It stays so, even if all of them are revoked.
    closed: AtomicBool,
    sessions: Sessions,
    tenants: Arc<Tenants>,
    audit: Audit,
    log: Log,
    counters: Counters,
    watch: watch::Watch,
    /// Times that a collector did not take what was sent.
    unsent: AtomicU64,
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
        let keys = Keys::of(&config.home);
        let closed = config.key.is_some() || !config.listen.ip().is_loopback() || !keys.is_empty()?;
        let audit = if config.audit { Audit::open(&dir)? } else { Audit::off() };
        Ok(Service {
            rooms: Rooms::new(house.clone(), records),
            house,
            secret: Secret(secret),
            keys,
            closed: AtomicBool::new(closed),
            sessions: Sessions::default(),
            tenants: Arc::new(Tenants::open(config.clone())?),
            audit,
            log: Log::new(config.log),
            counters: Counters::default(),
            watch: watch::Watch::new(),
            unsent: AtomicU64::new(0),
            config,
        })
    }

    /// What belongs to whom.
    pub(crate) fn tenants(&self) -> Arc<Tenants> {
        self.tenants.clone()
    }

    /// What is said while it runs.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// The sessions of browsers.
    pub(crate) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Whom a key is for, by its hash: comparing hashes takes a time that tells nothing of the keys.
    pub(crate) fn opened_by(&self, hash: &str) -> Result<Option<Caller>> {
        if self
            .config
            .key
            .as_ref()
            .is_some_and(|key| door::same(hash_of(key.as_bytes()).as_bytes(), hash.as_bytes()))
        {
            return Ok(Some(Caller { key: Some(OWN_KEY.to_owned()), tenant: None }));
        }
        let found = self.keys.find(hash)?;
        Ok(found.map(|key| Caller { key: Some(key.name), tenant: key.tenant }))
    }

    /// Whose session a browser shows, as long as its key is one.
    pub(crate) fn session(&self, headers: &HeaderMap) -> Result<Option<Caller>> {
        let key = sessions::shown(headers).and_then(|word| self.sessions.key(word));
        key.map_or(Ok(None), |key| self.opened_by(&key))
    }

    /// Whether callers have to show a key.
    pub(crate) fn needs_key(&self) -> Result<bool> {
        if self.closed.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let closed = !self.keys.is_empty()?;
        if closed {
            self.closed.store(true, Ordering::Relaxed);
        }
        Ok(closed)
    }

    /// What callers call this server by, where its settings say so.
    pub(crate) fn public_host(&self) -> Option<&str> {
        self.config.public_host.as_deref()
    }

    /// What shows that whoever has this key was told of this box's endpoints. It ends with the key.
    fn token(&self, id: &str, key: &str) -> Result<Option<String>> {
        let hash = match &self.config.key {
            Some(own) if key == OWN_KEY => Some(blake3::hash(own.as_bytes()).to_hex().to_string()),
            _ => self.keys.named(key)?.map(|info| info.hash().to_owned()),
        };
        let made = |hash: String| {
            let mac = blake3::keyed_hash(&self.secret.0, format!("{id}\0{key}\0{hash}").as_bytes());
            format!("{key}.{}", mac.to_hex())
        };
        Ok(hash.map(made))
    }

    /// Whether this is such a token.
    fn is_token(&self, id: &str, shown: &[u8]) -> Result<bool> {
        let key = shown.split(|byte| *byte == b'.').next().and_then(|name| std::str::from_utf8(name).ok());
        let token = match key {
            Some(key) => self.token(id, key)?,
            None => None,
        };
        Ok(token.is_some_and(|token| door::same(shown, token.as_bytes())))
    }
}

/// All routes, below `/v1` and without it; and those of others, behind the same door.
pub(crate) fn router(service: Arc<Service>, others: Router<Arc<Service>>) -> Router {
    let (routes, mut document) = OpenApiRouter::new().nest("/v1", api()).merge(about()).split_for_parts();
    document::describe(&mut document);
    let mut document = serde_json::to_value(&document).unwrap_or_default();
    document::add_open_ended(&mut document, service.config.mcp.is_some());
    document::complete(&mut document);
    let document = Arc::new(document);
    let (bare, _) = api().split_for_parts();
    let openapi = axum::routing::get(move || async move { Json(Value::clone(&document)) });
    routes
        .merge(bare)
        .merge(others)
        .merge(reading::routes())
        .route("/openapi.json", openapi)
        .fallback(nowhere)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(service.config.bounds.json_bytes))
        .layer(axum::middleware::from_fn_with_state(service.clone(), entry::enter))
        .with_state(service)
}

fn api() -> OpenApiRouter<Arc<Service>> {
    lifecycle::routes()
        .merge(snapshot::routes())
        .merge(endpoint::routes())
        .merge(egress::routes())
        .merge(diagnostics::routes())
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
    OpenApiRouter::new()
        .routes(routes!(health))
        .routes(routes!(ready))
        .routes(routes!(version))
        .routes(routes!(metrics))
}

/// How the server is.
#[derive(Debug, Serialize, ToSchema)]
struct StatusResponse {
    /// `healthy` or `ready`.
    status: &'static str,
}

/// Which versions there are.
#[derive(Debug, Serialize, ToSchema)]
struct VersionResponse {
    /// Of OpenSandbox's protocol.
    version: &'static str,
    /// Of this program.
    glasshouse: &'static str,
}

/// The server is there
#[utoipa::path(get, path = "/health", tag = "server", responses((status = 200, description = "It is", body = StatusResponse)))]
async fn health() -> Json<StatusResponse> {
    Json(StatusResponse { status: "healthy" })
}

/// The server can reach its boxes
#[utoipa::path(get, path = "/ready", tag = "server", responses(
    (status = 200, description = "It can", body = StatusResponse),
    (status = 503, description = "It cannot", body = model::ErrorResponse),
))]
async fn ready(State(service): Shared) -> std::result::Result<Json<StatusResponse>, Fault> {
    service
        .house
        .list()
        .await
        .map_err(|e| Fault::new(StatusCode::SERVICE_UNAVAILABLE, "SANDBOX::INTERNAL_ERROR", e.to_string()))?;
    // How many there are is nothing for those who have shown no key.
    Ok(Json(StatusResponse { status: "ready" }))
}

/// Which protocol is spoken, and by what
#[utoipa::path(get, path = "/version", tag = "server", responses((status = 200, description = "Versions", body = VersionResponse)))]
async fn version() -> Json<VersionResponse> {
    Json(VersionResponse { version: PROTOCOL, glasshouse: env!("CARGO_PKG_VERSION") })
}

/// What is counted, for Prometheus
///
/// Only for whoever runs the server: keys of tenants are refused.
#[utoipa::path(get, path = "/metrics", tag = "server", responses(
    (status = 200, description = "Counters and gauges", content_type = "text/plain", body = String),
    (status = 403, description = "That key belongs to a tenant", body = model::ErrorResponse),
))]
async fn metrics(State(service): Shared) -> std::result::Result<impl IntoResponse, Fault> {
    let text = measured(&service).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

/// All that is counted, as Prometheus reads it.
async fn measured(service: &Service) -> std::result::Result<String, Fault> {
    let boxes = service.house.list().await?;
    let states = [SandboxState::Running, SandboxState::Paused, SandboxState::Stopped, SandboxState::Dead];
    let states = states.map(|state| {
        let count = boxes.iter().filter(|info| info.state == state).count();
        (format!("{{state=\"{}\"}}", state.name()), count as u64)
    });
    let one = |count: u64| vec![(String::new(), count)];
    let unsent = service.unsent.load(Ordering::Relaxed);
    Ok(service.counters.told(&[
        Told { name: "boxes", about: "Boxes of the state directory, by state", values: states.to_vec() },
        Told {
            name: "audit_lost_total",
            about: "Calls that are not in the audit",
            values: one(service.audit.lost()),
        },
        Told {
            name: "log_lost_total",
            about: "Lines of the log that nobody read",
            values: one(service.log.lost()),
        },
        Told {
            name: "telemetry_failed_total",
            about: "Times that the collector did not take what was sent",
            values: one(unsent),
        },
    ]))
}

/// Sends what is counted to a collector, if there is one, for as long as the server lives.
pub(crate) async fn report(service: Arc<Service>) {
    let Telemetry { endpoint, interval_ms } = &service.config.telemetry;
    let Ok(collector) = Collector::at(endpoint) else { return };
    let nanos = |ms: u64| ms.saturating_mul(1_000_000);
    let since = nanos(clock::now_ms());
    loop {
        if let Ok(text) = measured(&service).await
            && !collector.send(&telemetry::otlp(&text, since, nanos(clock::now_ms()))).await
        {
            service.unsent.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(*interval_ms)).await;
    }
}

/// The release of OpenSandbox whose protocol this is.
const PROTOCOL: &str = "1.1.1";

async fn nowhere(request: Request) -> Fault {
    let message = format!("there is nothing at {}", request.uri().path());
    Fault::new(StatusCode::NOT_FOUND, "NOT_FOUND", message)
}

async fn no_such_method(request: Request) -> Fault {
    let message = format!("{} is not done to {}", request.method(), request.uri().path());
    Fault::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message)
}
