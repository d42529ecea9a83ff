//! Directories of the host for a box, as callers ask for them.
//!
//! Which may be asked for stands in the settings (`volumes`); by themselves none. A caller with a tenant may use those whose path
//! has `{tenant}` in it, with his name there, and no others: tenants share nothing by mistake. The library looks at the
//! directory itself, without following links.

use std::path::{Component, Path, PathBuf};

use axum::http::StatusCode;
use glasshouse_sandbox::Volume;
use serde::Deserialize;
use utoipa::ToSchema;

use super::fault::{Answer, Fault};
use crate::config::TENANT_IN_PATHS;

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
    /// Not here.
    #[schema(value_type = Option<Object>)]
    pvc: Option<serde_json::Value>,
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
        let host = host(volume, allowed, tenant)?;
        volumes.push(Volume::new(host, mount_path, volume.read_only.unwrap_or(false)));
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

/// The directory of the host that is asked for.
fn host(volume: &VolumeSpec, allowed: &[PathBuf], tenant: Option<&str>) -> Answer<PathBuf> {
    let VolumeSpec { name, sub_path, host, pvc, ossfs, .. } = volume;
    let host = match (host, pvc.is_some() || ossfs.is_some()) {
        (Some(host), false) => host,
        (None, true) => {
            let message = format!("volume {name:?}: this server has directories of the host only");
            return Err(Fault::unsupported(message).coded("VOLUME::UNSUPPORTED_BACKEND"));
        }
        _ => {
            let message = format!("volume {name:?} needs one of host, pvc and ossfs");
            return Err(wrong("VOLUME::INVALID_BACKEND", message));
        }
    };
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let path = Path::new(&host.path);
    if !path.is_absolute() || !path.components().all(plain) || host.path.contains('\0') {
        let message = format!("volume {name:?}: {:?} is no whole path without `..`", host.path);
        return Err(wrong("VOLUME::INVALID_HOST_PATH", message));
    }
    let below = sub_path.as_deref().unwrap_or_default();
    let inner = |part: Component<'_>| matches!(part, Component::Normal(_));
    if !Path::new(below).components().all(inner) || below.contains('\0') {
        let message = format!("volume {name:?}: subPath {below:?} has to stay below the directory");
        return Err(wrong("VOLUME::INVALID_SUB_PATH", message));
    }
    let may = |allowed: &PathBuf| match (allowed.to_str(), tenant) {
        (Some(text), Some(tenant)) if text.contains(TENANT_IN_PATHS) => {
            path.starts_with(text.replace(TENANT_IN_PATHS, tenant))
        }
        (Some(text), None) => !text.contains(TENANT_IN_PATHS) && path.starts_with(text),
        _ => false,
    };
    if !allowed.iter().any(may) {
        let message = format!(
            "volume {name:?}: {} is not among the directories that this server may give to sandboxes (its setting \
             `volumes`)",
            host.path
        );
        return Err(wrong("VOLUME::HOST_PATH_NOT_ALLOWED", message));
    }
    Ok(if below.is_empty() { path.to_owned() } else { path.join(below) })
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
    fn what_makes_no_sense_is_refused_with_its_word() {
        for (volume, code) in [
            (r#"{"name":"A","mountPath":"/m","host":{"path":"/srv/all"}}"#, "VOLUME::INVALID_NAME"),
            (r#"{"name":"a-","mountPath":"/m","host":{"path":"/srv/all"}}"#, "VOLUME::INVALID_NAME"),
            (r#"{"name":"a","mountPath":"m","host":{"path":"/srv/all"}}"#, "VOLUME::INVALID_MOUNT_PATH"),
            (r#"{"name":"a","mountPath":"/m"}"#, "VOLUME::INVALID_BACKEND"),
            (
                r#"{"name":"a","mountPath":"/m","host":{"path":"/srv/all"},"pvc":{}}"#,
                "VOLUME::INVALID_BACKEND",
            ),
            (r#"{"name":"a","mountPath":"/m","pvc":{"claimName":"x"}}"#, "VOLUME::UNSUPPORTED_BACKEND"),
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
