//! The first and the last station of every request: who calls, whether he may, and that it is counted and on record.
//!
//! What a tenant may see is looked at here, in one place, for all that a path names; what a query or a body names is looked
//! at where it is read (`may_see_box`, `may_see_snapshot`). What he may not see is not there for him.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{FromRequestParts, MatchedPath, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde_json::json;

use super::fault::{Answer, Fault, Said};
use super::proxy::Foreign;
use super::{Service, Shared, cors, endpoint, snapshot};
use crate::audit::Call;
use crate::connections::{Held, Peer};
use crate::door::{self, Caller, Target};
use crate::keys::hash_of;
use crate::limits::AUDIT_PATH_BYTES;
use crate::tenants::{self, Kind};
use crate::viewer;

/// Lets a request in, or not, and looks after its answer.
///
/// A caller who goes away takes his request with him, wherever it waits in that moment. What was begun to be changed is not to be
/// left half done then (a box without its record, say), so that goes on in a task of its own. Reading and commands do without:
/// commands see to themselves.
pub(super) async fn enter(State(service): Shared, request: Request, next: Next) -> Response {
    if !goes_on(&request) {
        return attend(service, request, next).await;
    }
    // The connection's place is taken for as long as its work is done: those who go away are counted, too.
    let held = request.extensions().get::<Held>().cloned();
    let work = tokio::spawn(async move {
        let response = attend(service, request, next).await;
        drop(held);
        response
    });
    work.await.unwrap_or_else(|_| Fault::internal("the request was lost sight of").into_response())
}

/// Whether a request is done to its end though nobody waits for the answer.
fn goes_on(request: &Request) -> bool {
    let matched = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let changes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    // What a box's own server is asked ends when nobody asks any more: that is for the box to know.
    let passed_on = matched.contains("/proxy/{port}");
    changes && !passed_on && !matched.ends_with("/exec") && !matched.ends_with("/command")
}

async fn attend(service: Arc<Service>, request: Request, next: Next) -> Response {
    let _under_way = service.counters.begin();
    let (mut parts, body) = request.into_parts();
    let mut call = Begun::of(&service, &parts);
    // Of a server whose keys cannot be read nothing is said to other pages.
    let from_page = parts.headers.contains_key(header::ORIGIN) && service.needs_key().unwrap_or(false);
    let asked = if from_page { cors::asked(&parts.method, &parts.headers) } else { None };
    let admitted = if asked.is_some() { Ok(Caller::default()) } else { admit(&service, &parts) };
    call.caller = admitted.as_ref().ok().cloned();
    let allowed = match admitted {
        Ok(caller) if asked.is_some() => Ok(caller),
        Ok(caller) => may(&service, &mut parts, &caller).await.map(|()| caller),
        Err(fault) => Err(fault),
    };
    let mut response = match (allowed, asked) {
        (Ok(_), Some(answer)) => answer,
        (Ok(caller), None) => {
            renew(&service, &parts, &call.path);
            parts.extensions.insert(caller);
            bind(&service, &mut parts);
            let response = next.run(Request::from_parts(parts, body)).await;
            // Other protocols have their own errors.
            if call.path.starts_with("/mcp") { response } else { in_our_shape(response).await }
        }
        (Err(fault), _) => fault.into_response(),
    };
    let foreign = response.extensions().get::<Foreign>().is_some();
    let id = call.ended(&response);
    let headers = response.headers_mut();
    headers.insert(door::REQUEST_ID, id);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // What a box says of who may read its answers is its own affair.
    if from_page && !foreign {
        cors::show(headers);
    }
    response
}

/// A call that is under way. It is counted and on record when it ends, and also when it is dropped before.
struct Begun<'a> {
    service: &'a Service,
    at: Instant,
    id: HeaderValue,
    method: Method,
    path: String,
    peer: Option<String>,
    caller: Option<Caller>,
    told: bool,
}

impl<'a> Begun<'a> {
    fn of(service: &'a Service, parts: &Parts) -> Begun<'a> {
        Begun {
            service,
            at: Instant::now(),
            id: door::request_id(&parts.headers),
            method: parts.method.clone(),
            path: parts.uri.path().to_owned(),
            peer: parts.extensions.get::<Peer>().map(|Peer(address)| address.to_string()),
            caller: None,
            told: false,
        }
    }

    /// It is answered. Its id.
    fn ended(mut self, response: &Response) -> HeaderValue {
        self.tell(response.status().as_u16(), response.extensions().get::<Said>());
        self.id.clone()
    }

    fn tell(&mut self, status: u16, said: Option<&Said>) {
        self.told = true;
        let took = self.at.elapsed();
        self.service.counters.answered(status, took);
        let cut = self.path.char_indices().nth(AUDIT_PATH_BYTES).map_or(self.path.len(), |(at, _)| at);
        let call = Call {
            request_id: self.id.to_str().unwrap_or_default(),
            key: self.caller.as_ref().and_then(|caller| caller.key.as_deref()),
            tenant: self.caller.as_ref().and_then(|caller| caller.tenant.as_deref()),
            peer: self.peer.as_deref(),
            method: self.method.as_str(),
            path: &self.path[..cut],
            status,
            took_us: took.as_micros() as u64,
        };
        self.service.audit.record(call);
        say(self.service, call, said);
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.told {
            let status = if std::thread::panicking() { 500 } else { NOBODY_WAITED };
            self.tell(status, None);
        }
    }
}

/// The status that is on record of a call whose caller went away before there was an answer. Nobody is told it.
const NOBODY_WAITED: u16 = 499;

/// Lets the box live longer whose port is used, unless that is not wanted.
fn renew(service: &Service, parts: &Parts, path: &str) {
    let skipped = parts.headers.get(RENEW_OR_NOT).is_some_and(|said| said == "skip");
    let id = endpoint::box_of(path).filter(|_| service.config.renew_on_access && !skipped);
    if let Some(Err(fault)) = id.map(|id| service.rooms.accessed(id)) {
        service
            .log
            .error("a sandbox cannot be renewed", || json!({ "path": path, "message": fault.message() }));
    }
}

/// What callers say who do not want a box to live longer for their request.
const RENEW_OR_NOT: &str = "opensandbox-access-renew";

/// execd's word, with 500, for what a box could not do.
const IN_THE_BOX: &str = "RUNTIME_ERROR";

/// Tells the log of a call. What cannot be done here (501) or failed in a box (502, 504) is no error of ours.
fn say(service: &Service, call: Call<'_>, said: Option<&Said>) {
    let Call { request_id, key, tenant, method, path, status, took_us, .. } = call;
    let (code, message) = (said.map(|said| said.code), said.map(|said| said.message.as_str()));
    let more = || {
        json!({
            "request_id": request_id, "key": key, "tenant": tenant, "method": method, "path": path,
            "status": status, "took_us": took_us, "code": code, "message": message,
        })
    };
    match status {
        500 if code == Some(IN_THE_BOX) => service.log.info("call", more),
        500 | 503 | 505.. => service.log.error("failed", more),
        _ => service.log.info("call", more),
    }
}

/// What axum says of a request that it cannot read, in the one shape of errors. What a box says is left as it is.
async fn in_our_shape(response: Response) -> Response {
    const MOST: usize = 4096;
    let plain = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
    let status = response.status();
    if !(plain && status.is_client_error()) || response.extensions().get::<Foreign>().is_some() {
        return response;
    }
    // More than it ever says.
    let said = axum::body::to_bytes(response.into_body(), MOST).await.unwrap_or_default();
    Fault::new(status, "SANDBOX::INVALID_PARAMETER", String::from_utf8_lossy(&said)).into_response()
}

/// Has what stays open end when whoever opened it may no longer: his key was revoked, or his session has ended.
fn bind(service: &Arc<Service>, parts: &mut Parts) {
    let matched = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    if !(parts.headers.contains_key(header::UPGRADE) || matched.ends_with("/events")) {
        return;
    }
    let Some(held) = parts.extensions.remove::<Held>() else { return };
    let mut asked = Request::new(());
    asked.method_mut().clone_from(&parts.method);
    asked.uri_mut().clone_from(&parts.uri);
    asked.headers_mut().clone_from(&parts.headers);
    let (asked, ()) = asked.into_parts();
    // Held by what is open, which holds nobody up: the server that ends does not wait for it.
    let service = Arc::downgrade(service);
    parts.extensions.insert(held.while_may(move || {
        let Some(service) = service.upgrade() else { return false };
        // Of keys that cannot be read right now nobody knows that one is missing.
        admit(&service, &asked)
            .map_or_else(|fault| fault.status() == StatusCode::SERVICE_UNAVAILABLE, |_| true)
    }));
}

/// Who calls.
fn admit(service: &Service, parts: &Parts) -> Answer<Caller> {
    let (headers, path) = (&parts.headers, parts.uri.path());
    let unsure = |e: crate::Error| {
        Fault::new(StatusCode::SERVICE_UNAVAILABLE, "TENANT_PROVIDER_UNAVAILABLE", e.to_string())
    };
    if !service.needs_key().map_err(unsure)? {
        let refuse = |why| Fault::new(StatusCode::FORBIDDEN, "FOREIGN_REQUEST", why);
        let is_page = viewer::is_page(path) || path == "/docs";
        let target = if is_page { Target::Page } else { Target::Other };
        let foreign = door::foreign(headers, &parts.method, target);
        return foreign.map_or(Ok(Caller::default()), |why| Err(refuse(why)));
    }
    if matches!(path, "/health" | "/ready" | "/version" | "/openapi.json" | "/docs")
        || path.starts_with("/docs/")
        || viewer::is_open(path)
    {
        return Ok(Caller::default());
    }
    // Callers of a box's endpoint show what they were told with it. It opens that path, and nothing else. It is asked for first:
    // what speaks there may want an Authorization of its own.
    let token = headers.get(endpoint::TOKEN).or_else(|| headers.get(endpoint::EXECD_TOKEN));
    if let (Some(id), Some(shown)) = (endpoint::box_of(path), token)
        && service.is_token(id, shown.as_bytes()).map_err(unsure)?
    {
        let tenant = service.tenants.marked(Kind::Box, id);
        return Ok(Caller { key: Some("endpoint".to_owned()), tenant });
    }
    if let Some(shown) = shown(headers) {
        let found = service.opened_by(&hash_of(shown)).map_err(unsure)?;
        let wrong =
            || Fault::new(StatusCode::UNAUTHORIZED, "INVALID_API_KEY", "the API key is not the right one");
        return found.ok_or_else(wrong);
    }
    // A browser sends its cookie along with what other pages make it ask for, so only our own page's count.
    if let Some(caller) = service.session(headers).map_err(unsure)? {
        let foreign = !door::own_page(headers, &parts.method, service.public_host());
        let refuse = || {
            let message = "a session is for the pages of this server; other callers show a key";
            Fault::new(StatusCode::FORBIDDEN, "FOREIGN_REQUEST", message)
        };
        return if foreign { Err(refuse()) } else { Ok(caller) };
    }
    let message = "this server wants an API key; send it as OPEN-SANDBOX-API-KEY";
    Err(Fault::new(StatusCode::UNAUTHORIZED, "MISSING_API_KEY", message))
}

/// The key that is shown: as the protocol has it, or as clients of other protocols send one.
fn shown(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = || headers.get(header::AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ");
    headers.get(door::KEY).map(HeaderValue::as_bytes).or_else(bearer)
}

/// Whether a caller may do this now, and to what the path names.
async fn may(service: &Service, parts: &mut Parts, caller: &Caller) -> Answer<()> {
    if let Err(wait) = service.tenants.call(caller.tenant.as_deref()) {
        let message = format!("too many requests; try again in {} ms", wait.as_millis() + 1);
        let fault = Fault::new(StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED", message);
        return Err(fault.after_s(wait.as_secs() + 1));
    }
    if caller.tenant.is_none() {
        return Ok(());
    }
    let Some(matched) = parts.extensions.get::<MatchedPath>().map(|path| path.as_str().to_owned()) else {
        return Ok(());
    };
    let params = RawPathParams::from_request_parts(parts, &()).await.ok();
    let id = params.iter().flatten().find(|(name, _)| *name == "id").map(|(_, id)| id);
    let path = matched.strip_prefix("/v1").unwrap_or(&matched);
    match (path.split('/').nth(1), id) {
        (Some("sandboxes"), Some(id)) if !may_see_box(service, caller, id).await => Err(Fault::no_box(id)),
        (Some("snapshots"), Some(id)) if !may_see_snapshot(service, caller, id) => Err(snapshot::unknown(id)),
        (Some("metrics"), _) if matched == "/metrics" => {
            let message = "only whoever runs the server may see that; his keys have no tenant";
            Err(Fault::new(StatusCode::FORBIDDEN, "OPERATORS_ONLY", message))
        }
        _ => Ok(()),
    }
}

/// Whether a box, living or gone, is the caller's.
pub(super) async fn may_see_box(service: &Service, caller: &Caller, id: &str) -> bool {
    let Some(tenant) = &caller.tenant else { return true };
    let owner = match service.rooms.info(id).await {
        Ok(info) => info.labels.get(tenants::LABEL).cloned(),
        Err(_) => service.tenants.marked(Kind::Box, id),
    };
    owner.as_ref() == Some(tenant)
}

/// Whether a snapshot is the caller's.
pub(super) fn may_see_snapshot(service: &Service, caller: &Caller, id: &str) -> bool {
    caller.tenant.is_none() || service.tenants.marked(Kind::Snapshot, id) == caller.tenant
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Caller> {
        let found = parts.extensions.get::<Caller>().cloned();
        found.ok_or_else(|| Fault::internal("this request did not come through the door"))
    }
}
