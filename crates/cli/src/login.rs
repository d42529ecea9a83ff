//! Logins for registries, from where Docker and its kin keep them: `~/.docker/config.json`, and the helpers it names.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use glasshouse_sandbox::Credentials;
use serde_json::Value;

/// Docker's config file, and what a helper says.
const TEXT_BYTES_MAX: u64 = 4 << 20;
/// What Docker calls its own registry there.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// Who we are to a registry, if anybody told Docker.
pub(crate) fn credentials(registry: &str) -> Result<Option<Credentials>> {
    let Some(path) = path(|name| std::env::var_os(name)) else { return Ok(None) };
    let mut text = Vec::new();
    match std::fs::File::open(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened.and_then(|file| file.take(TEXT_BYTES_MAX).read_to_end(&mut text)),
    }
    .with_context(|| format!("cannot read {}", path.display()))?;
    let config: Value = serde_json::from_slice(&text)
        .with_context(|| format!("cannot read {}: it is no JSON", path.display()))?;
    let server = if registry == "docker.io" { DOCKER_HUB } else { registry };
    match helper(&config, server) {
        Some(helper) => ask(&helper, server),
        None => {
            stored(&config, server).with_context(|| format!("cannot use the login in {}", path.display()))
        }
    }
}

fn path(var: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    let set = |name: &str| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = set("DOCKER_CONFIG").or_else(|| set("HOME").map(|home| home.join(".docker")))?;
    Some(dir.join("config.json"))
}

/// The program that keeps logins of this registry.
fn helper(config: &Value, server: &str) -> Option<String> {
    let own = config.get("credHelpers").and_then(|helpers| helpers.get(server)?.as_str());
    let all = config.get("credsStore").and_then(Value::as_str);
    own.or(all).filter(|name| !name.is_empty()).map(str::to_owned)
}

/// A login that is in the file itself.
fn stored(config: &Value, server: &str) -> Result<Option<Credentials>> {
    let Some(entries) = config.get("auths").and_then(Value::as_object) else { return Ok(None) };
    // Tools have written addresses here as well as names.
    let host = |key: &str| {
        let bare = key.trim_start_matches("https://").trim_start_matches("http://");
        bare.split('/').next().unwrap_or_default().to_owned()
    };
    let entry = entries.get(server).or_else(|| {
        let same = entries.iter().find(|(key, _)| host(key) == host(server));
        same.map(|(_, entry)| entry)
    });
    let Some(entry) = entry else { return Ok(None) };
    let text = |key: &str| entry.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(token) = text("identitytoken") {
        return Ok(Some(Credentials::IdentityToken(token.to_owned())));
    }
    if let (Some(user), Some(password)) = (text("username"), text("password")) {
        return Ok(Some(password_of(user, password)));
    }
    let Some(auth) = text("auth") else { return Ok(None) };
    let decoded = STANDARD.decode(auth.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    match decoded.as_deref().and_then(|text| text.split_once(':')) {
        Some((user, password)) => Ok(Some(password_of(user, password.trim_end_matches('\0')))),
        None => bail!("the entry of {server} is not base64 of a name and a password"),
    }
}

fn password_of(user: &str, password: &str) -> Credentials {
    Credentials::Password { user: user.to_owned(), password: password.to_owned() }
}

/// Asks a helper, as Docker does.
fn ask(helper: &str, server: &str) -> Result<Option<Credentials>> {
    if Path::new(helper).components().count() != 1 || helper.contains('/') {
        bail!("cannot ask the login helper {helper:?}: that is no name of one");
    }
    let program = format!("docker-credential-{helper}");
    let asking = || format!("cannot ask the login helper {program}");
    let mut command = Command::new(&program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().with_context(asking)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not listen says so by its answer.
        let _ = stdin.write_all(server.as_bytes());
    }
    let mut answer = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(TEXT_BYTES_MAX).read_to_end(&mut answer).with_context(asking)?;
    }
    let status = child.wait().with_context(asking)?;
    if !status.success() {
        let said = String::from_utf8_lossy(&answer);
        // That is how they say that they know none.
        if said.contains("credentials not found") {
            return Ok(None);
        }
        bail!("{}: it says {:?}", asking(), said.trim());
    }
    let value: Value = serde_json::from_slice(&answer).with_context(asking)?;
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    match (text("Username"), text("Secret")) {
        ("", _) | (_, "") => Ok(None),
        ("<token>", token) => Ok(Some(Credentials::IdentityToken(token.to_owned()))),
        (user, password) => Ok(Some(password_of(user, password))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn logins_are_found_under_every_name_that_tools_gave_them() {
        let auth = STANDARD.encode("me:pass:word");
        let expected = Some(password_of("me", "pass:word"));
        for key in ["localhost:5000", "https://localhost:5000", "http://localhost:5000/v2/"] {
            let config = json!({ "auths": { key: { "auth": auth } } });
            assert_eq!(stored(&config, "localhost:5000").unwrap(), expected, "{key}");
            assert_eq!(stored(&config, "localhost:5001").unwrap(), None, "{key}");
        }
        let hub = json!({ "auths": { DOCKER_HUB: { "identitytoken": "t" } } });
        assert_eq!(stored(&hub, DOCKER_HUB).unwrap(), Some(Credentials::IdentityToken("t".to_owned())));
        assert!(stored(&json!({ "auths": { "x": { "auth": "%" } } }), "x").is_err());
        assert_eq!(stored(&json!({}), "x").unwrap(), None);
    }

    #[test]
    fn the_registry_s_own_helper_comes_before_the_one_for_all() {
        let config = json!({ "credHelpers": { "a": "one" }, "credsStore": "all" });
        assert_eq!(helper(&config, "a").as_deref(), Some("one"));
        assert_eq!(helper(&config, "b").as_deref(), Some("all"));
        assert_eq!(helper(&json!({}), "b"), None);
        assert!(ask("../evil", "x").is_err());
    }

    #[test]
    fn the_config_file_is_where_docker_looks_for_it() {
        let var = |name: &str| (name == "HOME").then(|| "/h".into());
        assert_eq!(path(var), Some("/h/.docker/config.json".into()));
        let var = |name: &str| (name == "DOCKER_CONFIG").then(|| "/d".into());
        assert_eq!(path(var), Some("/d/config.json".into()));
        assert_eq!(path(|_| None), None);
    }
}
