//! The ports of a box, through the server: HTTP of any kind, streams and WebSockets included.
//!
//! ```text
//!  caller ── request ──▶ what is ours is taken off ──▶ a connection into the box (`Sandbox::dial`) ──▶ what listens there
//!         ◀─ answer, piece by piece as it comes ── what could reach further than the box is taken off ◀──
//! ```
//! Each request has a connection of its own. Nothing is kept back and nothing is waited for: whoever streams does so through
//! here. After `101 Switching Protocols` bytes go both ways as they are.
//!
//! What a box serves is not trusted, and it comes from the address of this server. So a page of it is told to be of no
//! origin (`Content-Security-Policy: sandbox`): its scripts run, and cannot speak to this server as one of its own pages.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::{OriginalUri, Path, Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use glasshouse_sandbox::{ErrorKind, Tunnel};
use hyper_util::rt::TokioIo;

use super::fault::{Answer, Fault};
use super::{Shared, endpoint};
use crate::connections::{Held, Peer};
use crate::door;

/// What holds for one connection only.
const OF_A_CONNECTION: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// What callers show to us, or others have said of where they come from.
const OURS: [&str; 13] = [
    "authorization",
    "cookie",
    door::KEY,
    endpoint::TOKEN,
    endpoint::EXECD_TOKEN,
    "opensandbox-access-renew",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-real-ip",
];
/// What would hold for all of this server, and not for the box.
const TOO_FAR: [&str; 9] = [
    "set-cookie",
    "clear-site-data",
    "strict-transport-security",
    "service-worker-allowed",
    "alt-svc",
    "nel",
    "report-to",
    "reporting-endpoints",
    "proxy-connection",
];
/// What a page of a box may do; that it is of this server is not among it.
const PAGES: &str = "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads";

/// An answer that is a box's own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Foreign;

/// Passes a request on to a port of a box.
pub(super) async fn pass_on(
    State(service): Shared,
    Path(words): Path<BTreeMap<String, String>>,
    OriginalUri(uri): OriginalUri,
    mut request: Request,
) -> Answer<Response> {
    let word = |name: &str| words.get(name).map_or("", String::as_str);
    let port: u16 = word("port").parse().ok().filter(|port| *port > 0).ok_or_else(|| {
        let message = format!("{:?} is no port from 1 to 65535", word("port"));
        Fault::new(StatusCode::BAD_REQUEST, "DOCKER::INVALID_PORT", message)
    })?;
    let room = service.rooms.room(word("id")).await?;
    if matches!(port, 44772 | 18080) {
        let message = format!("there is nothing at {}", uri.path());
        return Err(Fault::new(StatusCode::NOT_FOUND, "NOT_FOUND", message));
    }
    let tunnel = room.sandbox.dial(port).await.map_err(|e| match e.kind() {
        ErrorKind::Refused => failed(format!("nothing listens on port {port} of sandbox {}", word("id"))),
        _ => Fault::from(e),
    })?;
    let prefix = prefix(uri.path());
    let wanted = target(&prefix, &uri)?;
    let upgrade =
        is_upgrade(request.headers()).then(|| request.headers().get(header::UPGRADE).cloned()).flatten();
    let theirs = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    let peer = parts.extensions.get::<Peer>().map(|Peer(address)| address.ip().to_string());
    parts.headers = told(&parts.headers, &prefix, port, peer.as_deref(), upgrade)?;
    parts.uri = wanted;
    let mut held = parts.extensions.remove::<Held>();
    parts.extensions.clear();
    let mut response = sent(tunnel, Request::from_parts(parts, body)).await?;
    if let Some(theirs) = theirs.filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS) {
        let its = hyper::upgrade::on(&mut response);
        tokio::spawn(async move {
            if let (Ok(theirs), Ok(its)) = (theirs.await, its.await) {
                let (mut theirs, mut its) = (TokioIo::new(theirs), TokioIo::new(its));
                let over = async {
                    match &mut held {
                        Some(held) => drop(held.stopped().await),
                        None => std::future::pending().await,
                    }
                };
                // Whichever side ends or fails, the other is told by its end.
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut theirs, &mut its) => {}
                    () = over => {}
                }
            }
            drop(held);
        });
    }
    Ok(answered(response, &prefix, port))
}

fn failed(message: impl Into<String>) -> Fault {
    Fault::new(StatusCode::BAD_GATEWAY, "BACKEND_CONNECTION_FAILED", message)
}

/// Sends a request over a connection of its own. The answer's head.
async fn sent(tunnel: Tunnel, request: Request) -> Answer<hyper::Response<hyper::body::Incoming>> {
    let broken = |e: hyper::Error| {
        let message = format!("what listens there does not speak HTTP, or broke off: {e}");
        Fault::new(StatusCode::BAD_GATEWAY, "BACKEND_RESPONSE_FAILED", message)
    };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(tunnel)).await.map_err(broken)?;
    // It ends with the answer, or with whoever reads that.
    tokio::spawn(connection.with_upgrades());
    sender.send_request(request).await.map_err(broken)
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    words_of_connection(headers).any(|word| word.eq_ignore_ascii_case("upgrade"))
}

/// What else holds for one connection only, as the sender says.
fn words_of_connection(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let words = headers.get_all(header::CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
    words.flat_map(|value| value.split(',')).map(str::trim)
}

/// The path of this server that stands for `/` of the port. `execd` is a proxy as well, so there may be more than one.
fn prefix(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    let mut length = if parts.get(1) == Some(&"v1") { 6 } else { 5 };
    while parts.get(length - 1) == Some(&"44772") && parts.get(length) == Some(&"proxy") {
        length += 2;
    }
    parts[..length.min(parts.len())].join("/")
}

/// What is asked of the port: the path and the query as they were sent.
fn target(prefix: &str, uri: &Uri) -> Answer<Uri> {
    let path = uri.path().strip_prefix(prefix).unwrap_or_default();
    let path = if path.is_empty() { "/" } else { path };
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("{path}{query}").parse().map_err(|e| Fault::invalid(format!("the path cannot be passed on: {e}")))
}

/// The head that the box is sent.
fn told(
    headers: &HeaderMap,
    prefix: &str,
    port: u16,
    peer: Option<&str>,
    upgrade: Option<HeaderValue>,
) -> Answer<HeaderMap> {
    let mut told = headers.clone();
    let host = told.remove(header::HOST);
    words_of_connection(headers).for_each(|name| drop(told.remove(name)));
    OF_A_CONNECTION.iter().chain(&OURS).for_each(|name| drop(told.remove(*name)));
    let value =
        |text: &str| HeaderValue::from_str(text).map_err(|_| Fault::invalid("the path cannot be passed on"));
    told.insert(header::HOST, value(&format!("localhost:{port}"))?);
    told.insert("x-forwarded-proto", HeaderValue::from_static("http"));
    told.insert("x-forwarded-prefix", value(prefix)?);
    if let Some(host) = host {
        told.insert("x-forwarded-host", host);
    }
    if let Some(peer) = peer {
        told.insert("x-forwarded-for", value(peer)?);
    }
    if let Some(upgrade) = upgrade {
        told.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        told.insert(header::UPGRADE, upgrade);
    }
    Ok(told)
}

/// The path of a redirection that stays with the port: one from its root on, also with the address that the port was called by. To
/// callers that address would be one of their own machine's.
fn below(location: &str, port: u16) -> Option<&str> {
    let path = ["http", "https"].iter().find_map(|scheme| {
        let rest = location.strip_prefix(scheme)?.strip_prefix("://localhost")?;
        rest.strip_prefix(&format!(":{port}")).or((port == 80).then_some(rest))
    });
    let path = path.map(|path| if path.is_empty() { "/" } else { path }).unwrap_or(location);
    (path.starts_with('/') && !path.starts_with("//")).then_some(path)
}

/// The answer that the caller gets.
fn answered(response: hyper::Response<hyper::body::Incoming>, prefix: &str, port: u16) -> Response {
    let (mut parts, body) = response.into_parts();
    let upgrade = (parts.status == StatusCode::SWITCHING_PROTOCOLS)
        .then(|| parts.headers.get(header::UPGRADE).cloned());
    let of_connection: Vec<String> = words_of_connection(&parts.headers).map(str::to_owned).collect();
    of_connection.iter().for_each(|name| drop(parts.headers.remove(name)));
    OF_A_CONNECTION.iter().chain(&TOO_FAR).for_each(|name| drop(parts.headers.remove(*name)));
    if let Some(upgrade) = upgrade.flatten() {
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, upgrade);
    }
    parts.headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGES));
    let buffering = HeaderName::from_static("x-accel-buffering");
    parts.headers.insert(buffering, HeaderValue::from_static("no"));
    let location = parts.headers.get(header::LOCATION).and_then(|location| location.to_str().ok());
    if let Some(location) = location.and_then(|location| below(location, port))
        && let Ok(location) = HeaderValue::from_str(&format!("{prefix}{location}"))
    {
        parts.headers.insert(header::LOCATION, location);
    }
    parts.extensions.insert(Foreign);
    Response::from_parts(parts, Body::new(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sent: &str, before: &str, wanted: &str) {
        let uri: Uri = sent.parse().unwrap();
        assert_eq!(prefix(uri.path()), before, "{sent}");
        assert_eq!(target(before, &uri).unwrap().to_string(), wanted, "{sent}");
    }

    #[test]
    fn paths_and_queries_are_passed_on_as_they_were_sent() {
        check("/v1/sandboxes/a/proxy/80/x/y?q=1&r=%20", "/v1/sandboxes/a/proxy/80", "/x/y?q=1&r=%20");
        check("/v1/sandboxes/a/proxy/80/x%2Fy/", "/v1/sandboxes/a/proxy/80", "/x%2Fy/");
        check("/v1/sandboxes/a/proxy/80/", "/v1/sandboxes/a/proxy/80", "/");
        check("/sandboxes/a/proxy/80", "/sandboxes/a/proxy/80", "/");
        check("/sandboxes/a/proxy/80?x", "/sandboxes/a/proxy/80", "/?x");
        check("/sandboxes/a/proxy/80//x", "/sandboxes/a/proxy/80", "//x");
        let nested = "/v1/sandboxes/a/proxy/44772/proxy/44772/proxy/80";
        check(&format!("{nested}/proxy/80"), nested, "/proxy/80");
    }

    #[test]
    fn what_callers_show_to_us_is_not_shown_to_boxes() {
        let given = [
            ("host", "here:8080"),
            ("open-sandbox-api-key", "secret"),
            ("opensandbox-secure-access", "secret"),
            ("authorization", "Bearer secret"),
            ("cookie", "secret"),
            ("x-forwarded-for", "192.0.2.1"),
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("accept", "text/html"),
        ];
        let value = |text: &str| HeaderValue::from_str(text).unwrap();
        let headers: HeaderMap =
            given.iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect();
        assert!(is_upgrade(&headers));
        let plain = told(&headers, "/p", 80, Some("127.0.0.1"), None).unwrap();
        let mut left: Vec<String> =
            plain.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        left.sort();
        let expected = [
            "accept: text/html",
            "host: localhost:80",
            "x-forwarded-for: 127.0.0.1",
            "x-forwarded-host: here:8080",
            "x-forwarded-prefix: /p",
            "x-forwarded-proto: http",
        ];
        assert_eq!(left, expected);
        let upgraded = told(&headers, "/p", 80, None, Some(value("websocket"))).unwrap();
        assert_eq!((&upgraded["connection"], &upgraded["upgrade"]), (&value("upgrade"), &value("websocket")));
    }
}
