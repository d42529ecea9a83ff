//! The page that shows the API to people, at `/docs`: three small files of ours, and nothing from elsewhere.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

/// Nothing but our own files, and our own `/openapi.json`.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page, for whatever state the rest has.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let page = |kind: &'static str, text: &'static str| get(move || async move { file(kind, text) });
    Router::new()
        .route("/docs", page("text/html; charset=utf-8", include_str!("reading/index.html")))
        .route("/docs/page.css", page("text/css; charset=utf-8", include_str!("reading/page.css")))
        .route("/docs/page.js", page("text/javascript; charset=utf-8", include_str!("reading/page.js")))
}

fn file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text)
}
