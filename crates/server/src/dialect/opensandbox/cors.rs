//! Pages of other sites that have a key of this server: browsers let them call it, and read what it answers.
//!
//! A key is a header that a page has to set itself, so whoever has none gains nothing. Cookies are never meant: what is said
//! here (`*`) does not hold for requests that carry one. A server without a key answers no pages but its own, and says
//! nothing of this.

use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};

/// What a page may read of an answer beside its body.
const SHOWN: &str = "x-request-id, retry-after, location, content-range, content-disposition, execd-commands-tail-cursor, glasshouse-gap, \
     open-sandbox-origin";
/// What a page may do.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";
/// How long a browser need not ask again, in seconds.
const AGE_S: &str = "600";

/// The answer to a browser that asks whether a page may send a request, if this is one.
pub(super) fn asked(method: &Method, headers: &HeaderMap) -> Option<Response> {
    let asks = method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    headers.get(header::ORIGIN).filter(|_| asks)?;
    let none = HeaderValue::from_static("");
    let wanted = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or(&none);
    let mut response = StatusCode::NO_CONTENT.into_response();
    let said = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS)),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone()),
        (header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(AGE_S)),
    ];
    response.headers_mut().extend(said);
    Some(response)
}

/// Lets the page that a request came from read its answer.
pub(super) fn show(answer: &mut HeaderMap) {
    let say = |answer: &mut HeaderMap, name: HeaderName, value: &'static str| {
        answer.insert(name, HeaderValue::from_static(value));
    };
    say(answer, header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    say(answer, header::ACCESS_CONTROL_EXPOSE_HEADERS, SHOWN);
}
