//! Directories of the host for a box, as callers ask for them: by their paths (`host`), or by a name (`pvc`).
//!
//! Which may be asked for stands in the settings (`volumes`); by themselves none. A caller with a tenant may use those whose path
//! has `{tenant}` in it, with his name there, and no others: tenants share nothing by mistake. What has only a name is a directory of
//! that name below the first of those that the caller may use. The library looks at the directory itself, and makes it if it is
//! missing, without following links.

use std::path::{Component, Path, PathBuf};

use axum::http::StatusCode;
use glasshouse_sandbox::Volume;
use serde::Deserialize;
use utoipa::ToSchema;

use super::fault::{Answer, Fault};
use crate::config::TENANT_IN_PATHS;
use crate::limits::CLAIM_BYTES;

/// A directory for a box.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeSpec {
    /// What the caller calls it.
    name: String,
    /// Where it is in the box.
    mount_path: String,
    /// The box cannot write to it.
    read_only: Option<bool>,
    /// A directory below the one of the host.
    sub_path: Option<String>,
    /// A directory of the host.
    host: Option<HostVolume>,
    /// A directory by its name.
    pvc: Option<NamedVolume>,
    /// Not here.
    #[schema(value_type = Option<Object>)]
    ossfs: Option<serde_json::Value>,
}

/// A directory of the host.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct HostVolume {
    /// The whole path.
    path: String,
}

/// A directory by its name, below one that the settings allow.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NamedVolume {
    /// Letters, digits, `.`, `_` and `-`.
    claim_name: String,
    /// It is made if it is missing; true without a word.
    create_if_not_exists: Option<bool>,
    /// Has to be false: what boxes share outlives them.
    delete_on_sandbox_termination: Option<bool>,
}

/// What a box is to be given, if the caller may have it.
pub(super) fn wanted(asked: &[VolumeSpec], allowed: &[PathBuf], tenant: Option<&str>) -> Answer<Vec<Volume>> {
    let mut volumes = Vec::with_capacity(asked.len());
    for (at, volume) in asked.iter().enumerate() {
        let VolumeSpec { name, mount_path, .. } = volume;
        if !is_name(name) {
            return Err(wrong("VOLUME::INVALID_NAME", format!("{name:?} is no name for a volume")));
        }
        if asked[..at].iter().any(|other| other.name == *name) {
            return Err(wrong("VOLUME::DUPLICATE_NAME", format!("two volumes are called {name:?}")));
        }
        if !mount_path.starts_with('/') {
            let message = format!("mountPath {mount_path:?} has to begin with /");
            return Err(wrong("VOLUME::INVALID_MOUNT_PATH", message));
        }
        let (host, make) = source(volume, allowed, tenant)?;
        let mut wanted = Volume::new(host, mount_path, volume.read_only.unwrap_or(false));
        wanted.make = make;
        volumes.push(wanted);
    }
    Ok(volumes)
}

fn wrong(code: &'static str, message: String) -> Fault {
    Fault::new(StatusCode::BAD_REQUEST, code, message)
}

/// A label of DNS.
fn is_name(name: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = |byte: Option<u8>| byte.is_some_and(fine);
    (1..=63).contains(&name.len())
        && ends(name.bytes().next())
        && ends(name.bytes().last())
        && name.bytes().all(|byte| fine(byte) || byte == b'-')
}

/// The directory of the host that is asked for, and whether it is made if it is missing.
fn source(volume: &VolumeSpec, allowed: &[PathBuf], tenant: Option<&str>) -> Answer<(PathBuf, bool)> {
    let VolumeSpec { name, sub_path, host, pvc, ossfs, .. } = volume;
    let below = sub_path.as_deref().unwrap_or_default();
    let inner = |part: Component<'_>| matches!(part, Component::Normal(_));
    if !Path::new(below).components().all(inner) || below.contains('\0') {
        let message = format!("volume {name:?}: subPath {below:?} has to stay below the directory");
        return Err(wrong("VOLUME::INVALID_SUB_PATH", message));
    }
    let (path, make) = match (host, pvc, ossfs.is_some()) {
        (Some(host), None, false) => (by_path(name, host, allowed, tenant)?, true),
        (None, Some(named), false) => {
            (by_name(name, named, allowed, tenant)?, named.create_if_not_exists.unwrap_or(true))
        }
        (None, None, true) => {
            let message = format!("volume {name:?}: this server has directories of the host only");
            return Err(Fault::unsupported(message).coded("VOLUME::UNSUPPORTED_BACKEND"));
        }
        _ => {
            let message = format!("volume {name:?} needs one of host, pvc and ossfs");
            return Err(wrong("VOLUME::INVALID_BACKEND", message));
        }
    };
    Ok((if below.is_empty() { path } else { path.join(below) }, make))
}

/// What a caller may use, of a directory of the settings.
fn own(allowed: &Path, tenant: Option<&str>) -> Option<PathBuf> {
    let text = allowed.to_str()?;
    match tenant {
        Some(tenant) if text.contains(TENANT_IN_PATHS) => Some(text.replace(TENANT_IN_PATHS, tenant).into()),
        None if !text.contains(TENANT_IN_PATHS) => Some(text.into()),
        _ => None,
    }
}

fn by_path(name: &str, host: &HostVolume, allowed: &[PathBuf], tenant: Option<&str>) -> Answer<PathBuf> {
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let path = Path::new(&host.path);
    if !path.is_absolute() || !path.components().all(plain) || host.path.contains('\0') {
        let message = format!("volume {name:?}: {:?} is no whole path without `..`", host.path);
        return Err(wrong("VOLUME::INVALID_HOST_PATH", message));
    }
    if !allowed.iter().filter_map(|allowed| own(allowed, tenant)).any(|own| path.starts_with(own)) {
        let message = format!(
            "volume {name:?}: {} is not among the directories that this server may give to sandboxes (its setting \
             `volumes`)",
            host.path
        );
        return Err(wrong("VOLUME::HOST_PATH_NOT_ALLOWED", message));
    }
    Ok(path.to_owned())
}

fn by_name(name: &str, named: &NamedVolume, allowed: &[PathBuf], tenant: Option<&str>) -> Answer<PathBuf> {
    let claim = &named.claim_name;
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins = claim.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !begins || !claim.bytes().all(fine) || claim.len() > CLAIM_BYTES {
        let message = format!(
            "volume {name:?}: claimName {claim:?} has to be up to {CLAIM_BYTES} letters, digits, `.`, `_` and `-`, and to \
             begin with a letter or a digit"
        );
        return Err(wrong("VOLUME::INVALID_PVC_NAME", message));
    }
    if named.delete_on_sandbox_termination == Some(true) {
        let message = format!("volume {name:?}: this server does not delete volumes; others may use them");
        return Err(Fault::unsupported(message).coded("VOLUME::UNSUPPORTED_BACKEND"));
    }
    let root = allowed.iter().find_map(|allowed| own(allowed, tenant)).ok_or_else(|| {
        let message = format!(
            "volume {name:?}: this server has no directory to keep volumes in; its setting `volumes` names one"
        );
        Fault::unsupported(message).coded("VOLUME::UNSUPPORTED_BACKEND")
    })?;
    Ok(root.join(claim))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(volume: &str, tenant: Option<&str>) -> Result<PathBuf, &'static str> {
        let volume: VolumeSpec = serde_json::from_str(volume).unwrap();
        let allowed = [PathBuf::from("/srv/all"), PathBuf::from("/srv/of/{tenant}")];
        let found = wanted(&[volume], &allowed, tenant);
        found.map(|volumes| volumes[0].host.clone()).map_err(|fault| fault.code())
    }

    #[test]
    fn only_what_is_allowed_is_given_and_tenants_get_their_own() {
        let host = |path: &str| format!(r#"{{"name":"a","mountPath":"/m","host":{{"path":"{path}"}}}}"#);
        let denied = Err("VOLUME::HOST_PATH_NOT_ALLOWED");
        assert_eq!(check(&host("/srv/all/x"), None), Ok("/srv/all/x".into()));
        assert_eq!(check(&host("/srv/allx"), None), denied);
        assert_eq!(check(&host("/srv/of/red"), None), denied);
        assert_eq!(check(&host("/srv/of/red/x"), Some("red")), Ok("/srv/of/red/x".into()));
        assert_eq!(check(&host("/srv/of/blue"), Some("red")), denied);
        assert_eq!(check(&host("/srv/of/redder"), Some("red")), denied);
        assert_eq!(check(&host("/srv/all"), Some("red")), denied);
        assert_eq!(check(&host("/srv/of/{tenant}"), None), denied);
        for path in ["srv/all", "/srv/all/../of", "", "/srv/all\\u0000"] {
            assert_eq!(check(&host(path), None), Err("VOLUME::INVALID_HOST_PATH"), "{path}");
        }
    }

    #[test]
    fn a_name_is_a_directory_below_the_first_that_the_caller_may_use() {
        let named =
            |more: &str| format!(r#"{{"name":"a","mountPath":"/m","pvc":{{"claimName":"data.1"}}{more}}}"#);
        assert_eq!(check(&named(""), None), Ok("/srv/all/data.1".into()));
        assert_eq!(check(&named(r#","subPath":"x/y""#), Some("red")), Ok("/srv/of/red/data.1/x/y".into()));
        let volume: VolumeSpec = serde_json::from_str(&named("")).unwrap();
        assert_eq!(wanted(&[volume], &[], None).unwrap_err().code(), "VOLUME::UNSUPPORTED_BACKEND");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_word() {
        for (volume, code) in [
            (r#"{"name":"A","mountPath":"/m","host":{"path":"/srv/all"}}"#, "VOLUME::INVALID_NAME"),
            (r#"{"name":"a-","mountPath":"/m","host":{"path":"/srv/all"}}"#, "VOLUME::INVALID_NAME"),
            (r#"{"name":"a","mountPath":"m","host":{"path":"/srv/all"}}"#, "VOLUME::INVALID_MOUNT_PATH"),
            (r#"{"name":"a","mountPath":"/m"}"#, "VOLUME::INVALID_BACKEND"),
            (
                r#"{"name":"a","mountPath":"/m","host":{"path":"/srv/all"},"pvc":{"claimName":"x"}}"#,
                "VOLUME::INVALID_BACKEND",
            ),
            (r#"{"name":"a","mountPath":"/m","ossfs":{}}"#, "VOLUME::UNSUPPORTED_BACKEND"),
            (r#"{"name":"a","mountPath":"/m","pvc":{"claimName":"../x"}}"#, "VOLUME::INVALID_PVC_NAME"),
            (r#"{"name":"a","mountPath":"/m","pvc":{"claimName":""}}"#, "VOLUME::INVALID_PVC_NAME"),
            (
                r#"{"name":"a","mountPath":"/m","pvc":{"claimName":"x","deleteOnSandboxTermination":true}}"#,
                "VOLUME::UNSUPPORTED_BACKEND",
            ),
            (
                r#"{"name":"a","mountPath":"/m","subPath":"../x","host":{"path":"/srv/all"}}"#,
                "VOLUME::INVALID_SUB_PATH",
            ),
            (
                r#"{"name":"a","mountPath":"/m","subPath":"/x","host":{"path":"/srv/all"}}"#,
                "VOLUME::INVALID_SUB_PATH",
            ),
        ] {
            assert_eq!(check(volume, None), Err(code), "{volume}");
        }
    }
}
