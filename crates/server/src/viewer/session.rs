//! Logging in with a key, and out.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::{Answer, Refusal, Shared, Viewer};
use crate::door::{self, Caller};
use crate::keys::hash_of;
use crate::limits::LOGIN_BYTES;
use crate::sessions;

/// Tells whether a key is needed, and who is logged in.
pub(super) async fn look(State(viewer): Shared, headers: HeaderMap) -> Answer<Json<Value>> {
    let needed = viewer.service.needs_key().map_err(unsure)?;
    let caller = if needed { viewer.service.session(&headers).map_err(unsure)? } else { None };
    let in_ = !needed || caller.is_some();
    let Caller { key, tenant } = caller.unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    Ok(Json(json!({ "needsKey": needed, "in": in_, "key": key, "tenant": tenant, "version": version })))
}

/// Begins a session with a key.
pub(super) async fn begin(State(viewer): Shared, headers: HeaderMap, body: Bytes) -> Answer<Response> {
    our_page(&viewer, &headers, &Method::POST)?;
    let wrong = |why: &str| Refusal(StatusCode::BAD_REQUEST, "INVALID_REQUEST", why.to_owned());
    if body.len() > LOGIN_BYTES {
        return Err(wrong("that is too long for a key"));
    }
    let given: Value = serde_json::from_slice(&body).map_err(|_| wrong("the body has to be JSON"))?;
    let key = given["key"].as_str().ok_or_else(|| wrong("the body has to name a key"))?;
    let hash = hash_of(key.trim().as_bytes());
    if viewer.service.opened_by(&hash).map_err(unsure)?.is_none() {
        let why = "the API key is not the right one".to_owned();
        return Err(Refusal(StatusCode::UNAUTHORIZED, "INVALID_API_KEY", why));
    }
    let word = viewer.service.sessions().begin(hash).map_err(|e| Refusal::failed(e.to_string()))?;
    let cookie = sessions::cookie(Some(&word), over_tls(&headers));
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

/// Ends a session.
pub(super) async fn end(State(viewer): Shared, headers: HeaderMap) -> Answer<Response> {
    our_page(&viewer, &headers, &Method::DELETE)?;
    if let Some(word) = sessions::shown(&headers) {
        viewer.service.sessions().end(word);
    }
    let cookie = sessions::cookie(None, over_tls(&headers));
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response())
}

/// A page of another site must not log its visitor in as somebody else, or out.
fn our_page(viewer: &Viewer, headers: &HeaderMap, method: &Method) -> Answer<()> {
    if door::own_page(headers, method, viewer.service.public_host()) {
        return Ok(());
    }
    let why = "sessions are for the pages of this server; other callers show their key".to_owned();
    Err(Refusal(StatusCode::FORBIDDEN, "FOREIGN_REQUEST", why))
}

/// What the browser calls us by; a proxy in front may have taken TLS off.
fn over_tls(headers: &HeaderMap) -> bool {
    headers.get(header::ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"))
}

fn unsure(error: crate::Error) -> Refusal {
    Refusal(StatusCode::SERVICE_UNAVAILABLE, "TENANT_PROVIDER_UNAVAILABLE", error.to_string())
}
