//! Metadata: Kubernetes's rules for labels, patches of it, and the search for it.

use std::collections::BTreeMap;

use axum::http::StatusCode;

use super::fault::{Answer, Fault};

/// What callers say of a box.
pub(crate) type Metadata = BTreeMap<String, String>;

/// Labels that only the server may give.
const RESERVED: &str = "opensandbox.io/";
const NAME_MAX: usize = 63;
const PREFIX_MAX: usize = 253;

/// Whether a label is the server's own, and no metadata.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.starts_with(RESERVED)
}

/// Refuses what cannot be metadata.
pub(crate) fn check(metadata: &Metadata) -> Answer<()> {
    metadata.iter().try_for_each(|(key, value)| check_pair(key, value))
}

fn check_pair(key: &str, value: &str) -> Answer<()> {
    let refuse = |why: &str| {
        let message = format!("metadata {key:?} cannot be {value:?}: {why}");
        Err(Fault::new(StatusCode::BAD_REQUEST, "SANDBOX::INVALID_METADATA_LABEL", message))
    };
    if is_reserved(key) {
        return refuse("names that begin with opensandbox.io/ are the server's own");
    }
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if !is_label(name) {
        return refuse(
            "a name has 1 to 63 letters, digits, `-`, `_` and `.`, a letter or digit at both ends",
        );
    }
    if prefix.is_some_and(|prefix| !is_domain(prefix)) {
        return refuse("what is before the `/` has to be a DNS name");
    }
    if !value.is_empty() && !is_label(value) {
        return refuse(
            "a value has up to 63 letters, digits, `-`, `_` and `.`, a letter or digit at both ends",
        );
    }
    Ok(())
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends = text.bytes().next().zip(text.bytes().last());
    text.len() <= NAME_MAX
        && text.bytes().all(inner)
        && ends.is_some_and(|(first, last)| first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric())
}

fn is_domain(text: &str) -> bool {
    let part = |part: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=63).contains(&part.len())
            && part.bytes().all(plain)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    text.len() <= PREFIX_MAX && text.split('.').all(part)
}

/// The metadata of a box: its labels, but for those that only the server may give.
pub(crate) fn of(labels: &BTreeMap<String, String>) -> Metadata {
    let labels = labels.iter().filter(|(name, _)| !is_reserved(name));
    labels.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Refuses a patch that cannot be.
pub(crate) fn check_patch(patch: &BTreeMap<String, Option<String>>) -> Answer<()> {
    patch.iter().try_for_each(|(key, value)| check_pair(key, value.as_deref().unwrap_or_default()))
}

/// Lays a patch over metadata: what is `null` goes.
pub(crate) fn patch(metadata: &mut Metadata, patch: BTreeMap<String, Option<String>>) {
    for (key, value) in patch {
        match value {
            Some(value) => drop(metadata.insert(key, value)),
            None => drop(metadata.remove(&key)),
        }
    }
}

/// Reads a filter, `k=v&k2=v2`, whose names and values are encoded once more inside.
pub(crate) fn filter(text: &str) -> Answer<Metadata> {
    let wrong = || {
        let message = format!("metadata={text:?} is no list of name=value, joined by `&`");
        Fault::new(StatusCode::BAD_REQUEST, "INVALID_METADATA_FORMAT", message)
    };
    let pair = |piece: &str| {
        let (key, value) = form_urlencoded::parse(piece.as_bytes()).into_owned().next()?;
        (piece.contains('=') && !key.is_empty()).then_some((key, value))
    };
    text.split('&').filter(|_| !text.is_empty()).map(|piece| pair(piece).ok_or_else(wrong)).collect()
}

/// Whether all that a filter asks for is there.
pub(crate) fn matches(metadata: &Metadata, filter: &Metadata) -> bool {
    filter.iter().all(|(key, value)| metadata.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::super::query::Query;
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Metadata {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn labels_follow_the_rules_of_kubernetes() {
        let long = "x".repeat(64);
        for (key, value, fine) in [
            ("a", "b", true),
            ("a", "", true),
            ("app.example.com/name-1_2.3", "V-1", true),
            ("", "b", false),
            ("a b", "c", false),
            ("-a", "c", false),
            ("a", "c-", false),
            ("a", "c&d", false),
            (long.as_str(), "c", false),
            ("a", long.as_str(), false),
            ("opensandbox.io/id", "x", false),
            ("Bad.Prefix/x", "x", false),
            ("a/b/c", "x", false),
        ] {
            assert_eq!(check(&map(&[(key, value)])).is_ok(), fine, "{key:?}: {value:?}");
        }
    }

    #[test]
    fn a_patch_changes_adds_and_removes_and_leaves_what_is_the_servers() {
        let change = |pairs: &[(&str, Option<&str>)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))).collect()
        };
        let mut labels = map(&[("a", "1"), ("b", "2"), ("opensandbox.io/tenant", "red")]);
        patch(&mut labels, change(&[("a", Some("9")), ("b", None), ("c", Some("3")), ("none", None)]));
        assert_eq!(labels, map(&[("a", "9"), ("c", "3"), ("opensandbox.io/tenant", "red")]));
        assert_eq!(of(&labels), map(&[("a", "9"), ("c", "3")]));
        for odd in [("bad key", Some("x")), ("opensandbox.io/tenant", None)] {
            assert!(check_patch(&change(&[("a", None), odd])).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn a_filter_is_encoded_once_or_twice() {
        // As the Python SDK sends it, and as the JavaScript one does.
        for sent in ["metadata=a%2520b%3Dc%2526d%26k%3Dv", "metadata=a%20b%3Dc%2526d%26k%3Dv"] {
            let query = Query::parse(sent);
            assert_eq!(
                filter(query.get("metadata").unwrap()).unwrap(),
                map(&[("a b", "c&d"), ("k", "v")]),
                "{sent}"
            );
        }
        assert_eq!(filter("").unwrap(), map(&[]));
        for bad in ["novalue", "a=b&", "=x", "a=b&&c=d"] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn all_of_a_filter_has_to_match() {
        let metadata = map(&[("a", "1"), ("b", "2")]);
        assert!(matches(&metadata, &map(&[])) && matches(&metadata, &map(&[("a", "1"), ("b", "2")])));
        assert!(
            !matches(&metadata, &map(&[("a", "1"), ("b", "3")])) && !matches(&metadata, &map(&[("c", "")]))
        );
    }
}
