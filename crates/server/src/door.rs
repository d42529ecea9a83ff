//! The door: every request gets an id, is looked at for where it comes from, and shows its key.
//!
//! Without a key the service trusts this machine's users, not this machine's browsers: a page from elsewhere can make a
//! browser send requests to 127.0.0.1. So the name that was called has to be one of this machine (a page whose name was made
//! to point here has another), and a page that a request comes from has to be one of ours. Only the link that somebody follows to
//! a page of ours may be anywhere.

use axum::http::{HeaderMap, HeaderValue, Method, header};

use crate::limits::REQUEST_ID_BYTES;
use crate::random;

/// What every answer carries.
pub(crate) const REQUEST_ID: &str = "x-request-id";
/// What a caller shows.
pub(crate) const KEY: &str = "open-sandbox-api-key";

/// What the key of `--key-file` is called.
pub(crate) const OWN_KEY: &str = "key-file";

/// Who makes a request. Without a tenant it is whoever runs the server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// What the audit calls him.
    pub(crate) key: Option<String>,
    /// Whose boxes he may see; without one, all.
    pub(crate) tenant: Option<String>,
}

/// The id of a request: the caller's, if it is one that can be said again.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let theirs = headers.get(REQUEST_ID).filter(|id| !id.is_empty() && id.len() <= REQUEST_ID_BYTES);
    // Without random numbers an answer without an id of its own is better than none.
    let ours = || HeaderValue::from_str(&random::hex().unwrap_or_default()).ok();
    theirs.cloned().or_else(ours).unwrap_or(HeaderValue::from_static("unknown"))
}

/// What a request is about, as far as it counts where it comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// A page of ours that is the same for all, and that links may lead to.
    Page,
    /// All else, ports of boxes included.
    Other,
}

/// Whether a request may come from a page that is not ours. Why it is refused.
pub(crate) fn foreign(headers: &HeaderMap, method: &Method, target: Target) -> Option<&'static str> {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?"));
    let host = text(header::HOST).unwrap_or("localhost");
    if !is_this_machine(host) {
        return Some(
            "without a key, only names of this machine are answered (localhost, 127.0.0.1, [::1]); call one of those, \
             or give the server a key",
        );
    }
    let ours = |origin: &str| origin.strip_prefix("http://").is_some_and(|origin| origin == host);
    if text(header::ORIGIN).is_some_and(|origin| !ours(origin)) {
        return Some("without a key, pages of other sites are not answered; give the server a key");
    }
    // An image or a script of another site's page names no origin, and would reach a box all the same. Of this, browsers tell always.
    let site = text(header::HeaderName::from_static("sec-fetch-site"));
    let elsewhere = site.is_some_and(|site| !matches!(site, "same-origin" | "none"));
    if elsewhere && !(matches!(target, Target::Page) && is_link(headers, method)) {
        return Some(
            "without a key, pages of other sites are not answered, and their links lead to the viewer only; open this from the \
             viewer, type its address, or use `glass port` for a port of a box",
        );
    }
    None
}

/// Whether somebody follows a link: not a frame of another page, and nothing that its scripts could read.
fn is_link(headers: &HeaderMap, method: &Method) -> bool {
    let says = |name: &'static str, word: &str| headers.get(name).is_some_and(|value| value == word);
    method == Method::GET && says("sec-fetch-mode", "navigate") && says("sec-fetch-dest", "document")
}

/// Whether a request comes from a page of this server, or from no page at all. `public_host` is what others call it.
pub(crate) fn own_page(headers: &HeaderMap, method: &Method, public_host: Option<&str>) -> bool {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?"));
    let site = text(header::HeaderName::from_static("sec-fetch-site"));
    match site {
        Some(site) if !matches!(site, "same-origin" | "none") => false,
        // A browser that does not say is an old one, and says where it comes from when it changes something.
        None if !headers.contains_key(header::ORIGIN) => matches!(*method, Method::GET | Method::HEAD),
        _ => !cross_site(headers, public_host),
    }
}

/// Whether a browser opens a WebSocket for a page that is not ours: those are not held back by what holds back requests.
/// What is called has to be what the page came from, whether a proxy in front has added TLS or not.
pub(crate) fn cross_site(headers: &HeaderMap, public_host: Option<&str>) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let origin = origin.to_str().unwrap_or_default();
    let site = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    !site.is_some_and(|site| host == Some(site) || public_host == Some(site))
}

fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, _)) => name,
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_loopback = name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    is_loopback || name.eq_ignore_ascii_case("localhost")
}

/// Whether two secrets are the same, in a time that tells nothing of where they differ.
pub(crate) fn same(one: &[u8], other: &[u8]) -> bool {
    // The comparison of blake3's hashes takes the same time for all.
    blake3::hash(one) == blake3::hash(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_str(text).unwrap();
        pairs.iter().map(|(name, text)| (header::HeaderName::from_static(name), value(text))).collect()
    }

    #[test]
    fn names_of_this_machine_are_answered() {
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:80", "127.1.2.3", "[::1]:8080", "[::1]"] {
            assert_eq!(foreign(&headers(&[("host", host)]), &Method::POST, Target::Other), None, "{host}");
        }
        for host in
            ["evil.example", "localhost.evil.example:8080", "192.0.2.1", "[::2]:1", "127.0.0.1.nip.io", ""]
        {
            assert!(foreign(&headers(&[("host", host)]), &Method::GET, Target::Page).is_some(), "{host}");
        }
    }

    #[test]
    fn pages_of_others_are_not() {
        let host = ("host", "127.0.0.1:8080");
        for (name, text, fine) in [
            ("origin", "http://127.0.0.1:8080", true),
            ("origin", "http://127.0.0.1:9090", false),
            ("origin", "https://evil.example", false),
            ("origin", "null", false),
            ("sec-fetch-site", "same-origin", true),
            ("sec-fetch-site", "same-site", false),
            ("sec-fetch-site", "cross-site", false),
        ] {
            for method in [Method::POST, Method::GET] {
                let refused = foreign(&headers(&[host, (name, text)]), &method, Target::Other).is_some();
                assert_eq!(!refused, fine, "{method} {name}: {text}");
            }
        }
    }

    #[track_caller]
    fn check_led(method: &Method, target: Target, how: [(&'static str, &str); 2], fine: bool) {
        for site in ["same-site", "cross-site"] {
            let own = [("host", "127.0.0.1:8080"), ("sec-fetch-site", site)];
            let all = headers(&[own, how].concat());
            assert_eq!(foreign(&all, method, target).is_none(), fine, "{method} {site} {target:?} {how:?}");
        }
    }

    #[test]
    fn links_of_others_lead_to_pages_and_to_nothing_else() {
        let link = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        let frame = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
        let image = [("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")];
        check_led(&Method::GET, Target::Page, link, true);
        check_led(&Method::POST, Target::Page, link, false);
        for how in [frame, image] {
            check_led(&Method::GET, Target::Page, how, false);
        }
        for how in [link, frame, image] {
            check_led(&Method::GET, Target::Other, how, false);
        }
    }

    #[test]
    fn a_session_counts_on_pages_of_this_server() {
        for (method, given, fine) in [
            (Method::GET, vec![], true),
            (Method::POST, vec![], false),
            (Method::POST, vec![("sec-fetch-site", "same-origin")], true),
            (Method::GET, vec![("sec-fetch-site", "cross-site")], false),
            (Method::GET, vec![("sec-fetch-site", "same-site")], false),
            (Method::POST, vec![("origin", "https://box.example:1")], true),
            (Method::POST, vec![("origin", "http://public.example")], true),
            (Method::POST, vec![("origin", "http://box.example:2")], false),
            (Method::GET, vec![("origin", "null")], false),
            (Method::POST, vec![("origin", "http://box.example:1"), ("sec-fetch-site", "cross-site")], false),
        ] {
            let all = headers(&[given.as_slice(), &[("host", "box.example:1")]].concat());
            assert_eq!(own_page(&all, &method, Some("public.example")), fine, "{method} {given:?}");
        }
    }

    #[test]
    fn sockets_of_other_pages_are_told_apart() {
        let host = ("host", "box.example:8080");
        for (origin, foreign) in [
            ("http://box.example:8080", false),
            ("https://box.example:8080", false),
            ("https://boxes.example", false),
            ("http://box.example", true),
            ("http://box.example:8080.evil.example", true),
            ("https://evil.example", true),
            ("null", true),
            ("", true),
        ] {
            let headers = headers(&[host, ("origin", origin)]);
            assert_eq!(cross_site(&headers, Some("boxes.example")), foreign, "{origin}");
        }
        assert!(!cross_site(&headers(&[host]), None), "programs name no page");
    }

    #[test]
    fn a_request_id_is_said_again_unless_it_is_too_long() {
        assert_eq!(request_id(&headers(&[(REQUEST_ID, "abc")])), "abc");
        let long = "x".repeat(REQUEST_ID_BYTES + 1);
        for given in [vec![], vec![(REQUEST_ID, long.as_str())]] {
            let id = request_id(&headers(&given));
            assert!(id.len() == 32 && id.to_str().unwrap().bytes().all(|byte| byte.is_ascii_hexdigit()));
        }
    }
}
