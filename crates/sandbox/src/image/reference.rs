//! Names of images, as registries and people write them.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// The registry of names that name none.
pub(crate) const DOCKER_HUB: &str = "docker.io";
/// A name's length, of which a file's name is made.
const NAME_BYTES_MAX: usize = 240;
const TAG_BYTES_MAX: usize = 128;

/// The name of an image, complete: `docker.io/library/debian:12`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) registry: String,
    pub(crate) repository: String,
    tag: Option<String>,
    /// `sha256:…`
    pub(crate) digest: Option<String>,
}

impl Reference {
    /// What a registry is asked for: the digest, or else the tag.
    pub(crate) fn wanted(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or("latest")
    }

    /// The name of its record, one safe file name.
    pub(crate) fn file_name(&self) -> String {
        let mut name = String::new();
        for byte in self.to_string().bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => name.push(byte as char),
                _ => name.push_str(&format!("%{byte:02X}")),
            }
        }
        name + ".json"
    }

    /// Whether the registry is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        let host = match self.registry.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => self.registry.split(':').next().unwrap_or_default(),
        };
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl FromStr for Reference {
    type Err = Error;

    fn from_str(text: &str) -> Result<Reference> {
        let wrong = |why: &str| {
            let message = format!("{text:?} cannot be the name of an image: {why}");
            Err(Error::new(ErrorKind::Invalid, message))
        };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return wrong("a digest is written sha256: and 64 digits of 0-9 and a-f");
        }
        let (registry, rest) = match rest.split_once('/') {
            Some((first, rest)) if first == "localhost" || first.contains(['.', ':']) => (first, rest),
            _ => (DOCKER_HUB, rest),
        };
        let (repository, tag) = match rest.rsplit_once(':') {
            Some((repository, tag)) => (repository, Some(tag)),
            None => (rest, None),
        };
        let registry = if registry == "index.docker.io" { DOCKER_HUB } else { registry };
        if !is_registry(registry) {
            return wrong("the registry is no host name");
        }
        let repository = match registry == DOCKER_HUB && !repository.contains('/') {
            true => format!("library/{repository}"),
            false => repository.to_owned(),
        };
        if !repository.split('/').all(is_part) {
            return wrong("it has parts of small letters and digits, with `.`, `_` and `-` between them");
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return wrong("a tag has up to 128 letters, digits, `.`, `_` and `-`");
        }
        let tag = tag.or(digest.is_none().then_some("latest")).map(str::to_owned);
        let reference =
            Reference { registry: registry.into(), repository, tag, digest: digest.map(str::to_owned) };
        if reference.file_name().len() > NAME_BYTES_MAX {
            return wrong("it is too long");
        }
        Ok(reference)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// `sha256:` and its hexadecimal digits.
pub(crate) fn is_digest(text: &str) -> bool {
    let hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.strip_prefix("sha256:").is_some_and(|digits| digits.len() == 64 && digits.bytes().all(hex))
}

fn is_registry(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let plain = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let named = !host.is_empty() && host.chars().all(plain) && !host.starts_with(['-', '.']);
    let host = v6.map_or(named, |address| address.parse::<std::net::Ipv6Addr>().is_ok());
    host && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn is_part(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    let end = |c: char| "._-".contains(c);
    !text.is_empty() && text.chars().all(allowed) && !text.starts_with(end) && !text.ends_with(end)
}

fn is_tag(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let length = (1..=TAG_BYTES_MAX).contains(&text.len());
    length && text.chars().all(allowed) && !text.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, whole: &str) {
        let reference: Reference = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(reference.to_string(), whole);
        assert_eq!(whole.parse::<Reference>().unwrap(), reference);
    }

    #[test]
    fn short_names_stand_for_whole_ones() {
        let digest = format!("sha256:{}", "a1".repeat(32));
        check("debian", "docker.io/library/debian:latest");
        check("debian:12", "docker.io/library/debian:12");
        check("index.docker.io/library/debian:12", "docker.io/library/debian:12");
        check("me/it", "docker.io/me/it:latest");
        check("localhost:5000/x:y", "localhost:5000/x:y");
        check("localhost/x", "localhost/x:latest");
        check("[::1]:5000/a/b_c:y", "[::1]:5000/a/b_c:y");
        check("ghcr.io/a/b/c-d:1.2-x", "ghcr.io/a/b/c-d:1.2-x");
        check(&format!("debian@{digest}"), &format!("docker.io/library/debian@{digest}"));
        check(&format!("debian:12@{digest}"), &format!("docker.io/library/debian:12@{digest}"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = "a".repeat(300);
        for text in [
            "",
            "A",
            "a//b",
            "/a",
            "a/",
            "../a",
            "a/../b",
            "a:",
            "a:-x",
            "a@sha256:12",
            "a@md5:12",
            "a b",
            ".a",
            "a\0",
            "host.x:port/a",
            "x:99999/a",
            "-x.y/a",
            &long,
            "a:b:c",
            "a\n",
            "ü",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_record_has_one_safe_file_name() {
        let reference: Reference = "localhost:5000/x/y:z".parse().unwrap();
        assert_eq!(reference.file_name(), "localhost%3A5000%2Fx%2Fy%3Az.json");
    }

    #[test]
    fn only_this_machine_is_local() {
        let local = |text: &str| text.parse::<Reference>().unwrap().is_local();
        assert!(
            local("localhost:5000/x")
                && local("127.0.0.1:80/x")
                && local("[::1]:80/x")
                && local("127.9.0.1/x")
        );
        assert!(!local("debian") && !local("localhost.evil.com/x") && !local("10.0.0.1:5000/x"));
    }
}
