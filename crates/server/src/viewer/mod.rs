//! The viewer: pages to watch boxes with, at `/`.
//!
//! ```text
//!  /                    the page; its parts below /viewer/page/ are files in this program
//!  /viewer/session      logging in with a key, and out
//!  /viewer/…            what the page is told: boxes and what they use, records item by item, snapshots as a tree
//! ```
//! What the page does to boxes it does by the API, as everybody. What is told here is for this page and may change with it.
//!
//! What boxes print, and all that they and their owners name, is hostile to whoever looks at it. So the page makes elements
//! and gives them text, and never turns text into elements; and its policy runs only scripts that carry this answer's nonce, which
//! not even a script of our own address does: what boxes serve on their ports comes from there, too.
//!
//! Pages of other sites get nothing: `door` looks at the names and origins of all requests, and what is told below `/viewer` is
//! told to our page alone.

mod boxes;
mod index;
mod item;
mod results;
mod session;
mod snapshots;
mod traces;

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use glasshouse_sandbox::Sandboxes;
use serde_json::json;

use self::index::Indexes;
use crate::dialect::opensandbox::Service;
use crate::door::Caller;
use crate::random;
use crate::tenants::{self, Kind, Tenants};
use crate::usage::Usage;

/// What the routes have at hand.
#[derive(Debug)]
struct Viewer {
    house: Sandboxes,
    service: Arc<Service>,
    tenants: Arc<Tenants>,
    usage: Usage,
    indexes: Mutex<Indexes>,
}

/// As routes are given it.
type Shared = axum::extract::State<Arc<Viewer>>;

/// The page and what it is told, behind the same door as all else.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(house: Sandboxes, service: Arc<Service>) -> Router<S> {
    let tenants = service.tenants();
    let viewer =
        Arc::new(Viewer { house, service, tenants, usage: Usage::default(), indexes: Mutex::default() });
    let told = Router::new()
        .route("/viewer/session", get(session::look).post(session::begin).delete(session::end))
        .route("/viewer/boxes", get(boxes::list))
        .route("/viewer/boxes/{id}", get(boxes::one))
        .route("/viewer/snapshots", get(snapshots::tree))
        .route("/viewer/traces", get(traces::list))
        .route("/viewer/search", get(traces::search))
        .route("/viewer/traces/{id}", get(item::page))
        .route("/viewer/traces/{id}/{number}", get(item::one))
        .layer(axum::middleware::from_fn(for_our_page));
    Router::new()
        .route("/", get(index))
        .route("/viewer/page/{name}", get(part))
        .merge(told)
        .with_state(viewer)
}

/// Whether a path is that of the page, which is the same for all.
pub(crate) fn is_page(path: &str) -> bool {
    path == "/"
}

/// Whether a path is open to those who have no key yet.
pub(crate) fn is_open(path: &str) -> bool {
    matches!(path, "/" | "/viewer/session") || path.starts_with("/viewer/page/")
}

const INDEX: &str = include_str!("page/index.html");

macro_rules! parts {
    ($($name:literal $kind:literal),* $(,)?) => {
        [$(($name, $kind, include_str!(concat!("page/", $name)))),*]
    };
}

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files of the page: name, type, content.
const PARTS: [(&str, &str, &str); 17] = parts![
    "style.css" "text/css; charset=utf-8",
    "icon.svg" "image/svg+xml",
    "app.js" "",
    "api.js" "",
    "box.js" "",
    "boxes.js" "",
    "dialogs.js" "",
    "dom.js" "",
    "keys.js" "",
    "login.js" "",
    "plot.js" "",
    "replay.js" "",
    "snapshots.js" "",
    "terminal.js" "",
    "timeline.js" "",
    "traces.js" "",
    "vt.js" "",
];

/// The page. Each answer has a nonce of its own.
async fn index() -> Response {
    let Ok(nonce) = random::hex() else {
        return Refusal::failed("there are no random numbers").into_response();
    };
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'"
    );
    let Ok(policy) = HeaderValue::from_str(&policy) else {
        return Refusal::failed("the page has no policy").into_response();
    };
    let mut response = INDEX.replace("{nonce}", &nonce).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A part of the page.
async fn part(Path(name): Path<String>) -> Response {
    let Some((_, kind, content)) = PARTS.iter().find(|(part, _, _)| *part == name) else {
        return Refusal::unknown("there is no such part of the page").into_response();
    };
    let kind = if kind.is_empty() { SCRIPT } else { kind };
    let headers = [
        (header::CONTENT_TYPE, kind),
        // Another release of this program has others under the same names.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    (headers, *content).into_response()
}

/// Answers pages of this server, and callers that are no pages.
async fn for_our_page(request: Request, next: Next) -> Response {
    let site = request.headers().get("sec-fetch-site").map(HeaderValue::as_bytes);
    if site.is_some_and(|site| !matches!(site, b"same-origin" | b"none")) {
        let why = "this is told to the pages of this server";
        return Refusal(StatusCode::FORBIDDEN, "FOREIGN_REQUEST", why.to_owned()).into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let own = HeaderValue::from_static("same-origin");
    headers.insert(header::HeaderName::from_static("cross-origin-resource-policy"), own);
    response
}

/// Why something is not told: a status, a word, a sentence.
#[derive(Debug)]
struct Refusal(StatusCode, &'static str, String);

/// What routes answer.
type Answer<T> = Result<T, Refusal>;

impl Refusal {
    fn unknown(message: impl Into<String>) -> Refusal {
        Refusal(StatusCode::NOT_FOUND, "NOT_FOUND", message.into())
    }

    fn failed(message: impl Into<String>) -> Refusal {
        Refusal(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_ERROR", message.into())
    }
}

impl From<glasshouse_sandbox::Error> for Refusal {
    fn from(error: glasshouse_sandbox::Error) -> Refusal {
        Refusal::failed(error.to_string())
    }
}

impl From<glasshouse_trace::Error> for Refusal {
    fn from(error: glasshouse_trace::Error) -> Refusal {
        Refusal::failed(format!("cannot {error}"))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Refusal(status, code, message) = self;
        (status, axum::Json(json!({ "code": code, "message": message }))).into_response()
    }
}

impl Viewer {
    /// Whether a box, living or gone, is the caller's.
    async fn may_see(&self, caller: &Caller, id: &str) -> bool {
        let Some(tenant) = &caller.tenant else { return true };
        let owner = match self.house.info(id).await {
            Ok(info) if info.id == id => info.labels.get(tenants::LABEL).cloned(),
            _ => self.tenants.marked(Kind::Box, id),
        };
        owner.as_ref() == Some(tenant)
    }

    /// The id of a record that is the caller's.
    async fn record(&self, caller: &Caller, id: &str) -> Answer<String> {
        let unknown = || Refusal::unknown(format!("there is no record of a box {id}"));
        // By its whole id: what is no id is no name of a directory, either.
        let found = self.house.resolve_trace(id).ok().filter(|found| found == id).ok_or_else(unknown)?;
        if self.may_see(caller, &found).await { Ok(found) } else { Err(unknown()) }
    }
}

/// Does what may wait for the disk where that keeps nobody up.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Answer<T> {
    tokio::task::spawn_blocking(work).await.map_err(|e| Refusal::failed(e.to_string()))
}

/// As much of bytes as there is room for, as text.
fn text(bytes: &[u8], room: usize) -> String {
    let mut end = bytes.len().min(room);
    // Not within a letter, if they are letters.
    while end < bytes.len() && end > 0 && bytes[end] & 0xc0 == 0x80 && room - end < 4 {
        end -= 1;
    }
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_parts_that_are_there_and_no_others_are() {
        let mut files: Vec<String> =
            std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/viewer/page"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| name != "index.html")
                .collect();
        files.sort();
        let mut parts: Vec<&str> = PARTS.iter().map(|(name, _, _)| *name).collect();
        parts.sort_unstable();
        assert_eq!(files, parts);
        for (name, _, content) in PARTS {
            for word in content.split('"').filter(|word| word.starts_with("./") && word.ends_with(".js")) {
                assert!(parts.contains(&&word[2..]), "{name} names {word}");
            }
        }
    }

    #[test]
    fn the_page_never_turns_text_into_elements() {
        for (name, _, content) in PARTS.iter().filter(|(name, _, _)| name.ends_with(".js")) {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "srcdoc",
                "javascript:",
                "localStorage.setItem(\"key",
            ] {
                assert!(!content.contains(word), "{name} has {word}");
            }
        }
        assert!(!INDEX.contains("onclick") && INDEX.matches("<script").count() == 1);
    }

    #[test]
    fn text_is_cut_between_letters() {
        assert_eq!(text("grün".as_bytes(), 3), "gr");
        assert_eq!(text("grün".as_bytes(), 4), "grü");
        assert_eq!(text(b"a\xff", 9), "a\u{fffd}");
        assert_eq!(text(b"", 9), "");
    }

    #[test]
    fn only_the_page_and_the_log_in_are_open_without_a_key() {
        for path in ["/", "/viewer/session", "/viewer/page/app.js"] {
            assert!(is_open(path), "{path}");
        }
        for path in ["", "/viewer", "/viewer/boxes", "/viewer/session/x", "/viewer/pages", "/v1/sandboxes"] {
            assert!(!is_open(path), "{path}");
        }
    }
}
