//! From what a caller asks for to what the library makes.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use glasshouse_sandbox::{Credentials, Image, Limits, Recording, RuntimeKind, SandboxSpec};

use super::fault::{Answer, Fault};
use super::metadata;
use super::model::{CreateSandboxRequest, ImageSpec, NetworkPolicy, PlatformSpec};
use super::records::Record;
use super::rooms::EXPIRES_LABEL;
use super::volumes;
use crate::clock::now_ms;
use crate::config::Config;
use crate::limits::{EGRESS_RULES, TIMEOUT_MIN_S};

/// The extension that says what is put on record of a box.
const RECORDING: &str = "glasshouse.recording";

/// The extension that says how long a box lives on from a request to one of its ports on, in seconds.
pub(crate) const RENEW: &str = "access.renew.extend.seconds";
/// What it may say.
const RENEW_S: std::ops::RangeInclusive<u64> = 300..=86_400;

/// The variable that names the file of variables.
const ENV_FILE: &str = "EXECD_ENVS";
/// The label of a box that says so, too: what a box's variables are is not told outside of it.
pub(crate) const ENV_FILE_LABEL: &str = "opensandbox.io/env-file";
/// A variable that the protocol keeps for itself.
const RESERVED_ENV: &str = "OPENSANDBOX_LIFECYCLE";
/// Variables for the program that stands between a box and the network. We have none, so they are looked at and go nowhere.
const EGRESS_ENV: &str = "OPENSANDBOX_EGRESS_";
/// Those that a caller may set.
const EGRESS_ENV_OPEN: [&str; 10] = [
    "CREDENTIAL_VAULT_REQUIRE_TLS",
    "CREDENTIAL_VAULT_TRUSTED_PROXY_CIDRS",
    "DENY_WEBHOOK",
    "DNS_UPSTREAM_TIMEOUT",
    "LOG_LEVEL",
    "METRICS_EXTRA_ATTRS",
    "MITMPROXY_EXTRA_PORTS",
    SSL_INSECURE,
    TRANSPARENT,
    "POLICY_FILE",
];
/// One that makes no sense where credentials are put into requests.
const SSL_INSECURE: &str = "MITMPROXY_SSL_INSECURE";
/// One that commands of the box see, too.
const TRANSPARENT: &str = "MITMPROXY_TRANSPARENT";

/// A box that can be made.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) spec: SandboxSpec,
    pub(crate) record: Record,
    /// How long it is to live, from its making on.
    pub(crate) life_ms: Option<u64>,
    /// Who we are to the image's registry.
    pub(crate) credentials: Option<Credentials>,
}

/// Looks at all that is asked for, and refuses what cannot be.
pub(crate) fn wanted(
    mut request: CreateSandboxRequest,
    config: &Config,
    tenant: Option<&str>,
) -> Answer<Wanted> {
    let mut env = request.env.take().unwrap_or_default();
    take_egress_variables(&mut env, has_credential_proxy(&request))?;
    refuse_what_is_not_here(&request)?;
    let metadata = request.metadata.unwrap_or_default();
    metadata::check(&metadata)?;
    let (image, source) = image(request.image.as_ref(), request.snapshot_id.as_deref(), config.runtime)?;
    let entrypoint = entrypoint(request.entrypoint)?;
    let life_ms = lifetime_ms(request.timeout, config)?;
    let expires_ms = life_ms.map(|life| now_ms() + life);
    let mut labels = metadata;
    if let Some(at) = expires_ms {
        labels.insert(EXPIRES_LABEL.to_owned(), at.to_string());
    }
    renewal_s(request.extensions.as_ref().unwrap_or(&BTreeMap::new()))?;
    if env.contains_key(RESERVED_ENV) {
        return Err(Fault::invalid(format!("the variable {RESERVED_ENV} is the server's own")));
    }
    if let Some(Some(file)) = env.get(ENV_FILE).filter(|file| file.as_deref().is_some_and(is_plain_path)) {
        labels.insert(ENV_FILE_LABEL.to_owned(), file.clone());
    }
    let spec = SandboxSpec {
        // As in the containers that callers know: the host's image has an ordinary user otherwise.
        user: matches!(image, Image::Host).then(|| "root".to_owned()),
        cwd: matches!(image, Image::Host).then(|| "/root".to_owned()),
        image,
        runtime: config.runtime,
        limits: limits(&request.resource_limits.unwrap_or_default())?,
        env: env.into_iter().map(|(name, value)| (name, value.unwrap_or_default())).collect(),
        labels,
        volumes: volumes::wanted(&request.volumes.unwrap_or_default(), &config.volumes, tenant)?,
        recording: recording(request.extensions.as_ref())?,
        ..SandboxSpec::default()
    };
    let record = Record {
        image: source,
        snapshot: request.snapshot_id,
        entrypoint,
        extensions: request.extensions.unwrap_or_default(),
        platform: request.platform.map(|platform| (platform.os, platform.arch)),
        egress: request.network_policy.and_then(|policy| policy.egress).unwrap_or_default(),
        expires_ms,
        ..Record::default()
    };
    Ok(Wanted { spec, record, life_ms, credentials: request.image.and_then(credentials) })
}

fn refuse_what_is_not_here(request: &CreateSandboxRequest) -> Answer<()> {
    let extension = |name: &str| request.extensions.as_ref().is_some_and(|known| known.contains_key(name));
    let proxied = has_credential_proxy(request);
    for (asked, what) in [
        (
            request.template_id.is_some(),
            "templates: make a snapshot and create sandboxes with its snapshotId",
        ),
        (extension("poolRef"), "pools"),
        (request.lifecycle.is_some(), "lifecycle hooks"),
        (proxied, "credential proxy: sandboxes have no network"),
        (
            request.secure_access == Some(true),
            "secureAccess: endpoints have tokens where the server has a key",
        ),
    ] {
        if asked {
            return Err(Fault::unsupported(format!("this server has no {what}")));
        }
    }
    let is_known = |platform: &PlatformSpec| ["linux", "windows"].contains(&platform.os.as_str());
    if let Some(platform) = request.platform.as_ref().filter(|platform| !is_known(platform)) {
        return Err(Fault::invalid(format!("{:?} is no operating system of sandboxes", platform.os)));
    }
    if let Some(platform) = &request.platform
        && *platform != this_platform()
    {
        let PlatformSpec { os, arch } = this_platform();
        return Err(Fault::unsupported(format!(
            "this server makes sandboxes of the platform {os}/{arch} only"
        )));
    }
    offline(request.network_policy.as_ref())
}

fn has_credential_proxy(request: &CreateSandboxRequest) -> bool {
    request.credential_proxy.as_ref().is_some_and(|proxy| proxy["enabled"] == true)
}

/// Takes out what is meant for the way to the network, and refuses what callers may not say there.
fn take_egress_variables(env: &mut BTreeMap<String, Option<String>>, proxied: bool) -> Answer<()> {
    for name in env.keys() {
        let Some(rest) = name.strip_prefix(EGRESS_ENV) else { continue };
        if !EGRESS_ENV_OPEN.contains(&rest) {
            return Err(Fault::invalid(format!("the variable {name} is the server's own")));
        }
        if proxied && rest == SSL_INSECURE {
            return Err(Fault::invalid(format!("{name} cannot be set beside credentialProxy")));
        }
    }
    env.retain(|name, _| name.strip_prefix(EGRESS_ENV).is_none_or(|rest| rest == TRANSPARENT));
    Ok(())
}

/// How long a box lives on from a request on, if its maker has said so.
pub(crate) fn renewal_s(extensions: &BTreeMap<String, String>) -> Answer<Option<u64>> {
    let Some(said) = extensions.get(RENEW) else { return Ok(None) };
    let seconds = said.parse().ok().filter(|seconds| RENEW_S.contains(seconds));
    let wrong = || {
        let (least, most) = (RENEW_S.start(), RENEW_S.end());
        Fault::invalid(format!("{RENEW} has to be from {least} to {most} seconds, and is {said:?}"))
    };
    seconds.map(Some).ok_or_else(wrong)
}

/// What is put on record, if the caller says so.
fn recording(extensions: Option<&BTreeMap<String, String>>) -> Answer<Option<Recording>> {
    let said = extensions.and_then(|extensions| extensions.get(RECORDING));
    said.map(|said| said.parse().map_err(|e| Fault::invalid(format!("{RECORDING}: {e}")))).transpose()
}

/// Boxes talk to nobody: a policy that asks for more is refused, and one that asks for that is in force.
pub(crate) fn offline(policy: Option<&NetworkPolicy>) -> Answer<()> {
    let Some(policy) = policy else { return Ok(()) };
    let rules = policy.egress.iter().flatten();
    if rules.clone().count() > EGRESS_RULES {
        return Err(Fault::invalid(format!("a policy has {EGRESS_RULES} rules at most")));
    }
    let actions = policy.default_action.iter().chain(rules.map(|rule| &rule.action));
    for action in actions {
        match action.as_str() {
            "deny" => {}
            "allow" => {
                let message = "this server's sandboxes have no network yet: nothing can be allowed";
                return Err(Fault::unsupported(message));
            }
            other => {
                return Err(Fault::invalid(format!("an action is `allow` or `deny`, and not {other:?}")));
            }
        }
    }
    Ok(())
}

/// The platform of this machine, in the protocol's words.
pub(crate) fn this_platform() -> PlatformSpec {
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    PlatformSpec { os: "linux".to_owned(), arch: arch.to_owned() }
}

/// The image, and what the caller called it. No path of this machine can be named.
pub(crate) fn image(
    image: Option<&ImageSpec>,
    snapshot: Option<&str>,
    runtime: RuntimeKind,
) -> Answer<(Image, Option<String>)> {
    let uri = match (image, snapshot) {
        (Some(image), None) => image.uri.trim(),
        (None, Some(id)) => return Ok((Image::Snapshot(id.to_owned()), None)),
        _ => {
            return Err(Fault::invalid(
                "give one of `image` and `snapshotId`: what is the sandbox to be made from?",
            ));
        }
    };
    if uri == "host" {
        return Ok((Image::Host, Some(uri.to_owned())));
    }
    let name = uri.strip_prefix("oci://").unwrap_or(uri);
    if runtime == RuntimeKind::Docker {
        // The engine has it, or pulls it.
        let parsed: Image =
            format!("docker-daemon:{name}").parse().map_err(|e| Fault::invalid(format!("{e}")))?;
        return Ok((parsed, Some(uri.to_owned())));
    }
    let parsed: Image = format!("oci://{name}").parse().map_err(|e| Fault::invalid(format!("{e}")))?;
    Ok((parsed, Some(uri.to_owned())))
}

pub(crate) fn credentials(image: ImageSpec) -> Option<Credentials> {
    let auth = image.auth?;
    Some(Credentials::Password { user: auth.username?, password: auth.password.unwrap_or_default() })
}

fn entrypoint(asked: Option<Vec<String>>) -> Answer<Vec<String>> {
    let entrypoint = asked.unwrap_or_else(|| ["tail", "-f", "/dev/null"].map(str::to_owned).into());
    if entrypoint.first().is_none_or(String::is_empty) {
        let message = "the entrypoint names no program";
        return Err(Fault::new(StatusCode::BAD_REQUEST, "DOCKER::INVALID_ENTRYPOINT", message));
    }
    Ok(entrypoint)
}

/// Whether this is a whole path, of a length that a file of ours can hold.
fn is_plain_path(path: &str) -> bool {
    path.starts_with('/') && path.len() <= 4096 && !path.contains('\0')
}

/// Whether an entrypoint does nothing but keep a container alive. A box lives without that; with a process in it, every
/// snapshot of it would have to copy.
pub(crate) fn only_waits(entrypoint: &[String]) -> bool {
    let words: Vec<&str> = entrypoint.iter().map(String::as_str).collect();
    matches!(words.as_slice(), ["tail", "-f", "/dev/null"] | ["sleep", "infinity"])
}

/// The program of an entrypoint, if it is one of those that only OpenSandbox's own images have: there they start what runs code,
/// and the examples name them. A box on any other image runs code without.
pub(crate) fn of_their_images(entrypoint: &[String]) -> Option<&str> {
    const PROGRAMS: [&str; 2] =
        ["/opt/opensandbox/code-interpreter.sh", "/opt/code-interpreter/code-interpreter.sh"];
    entrypoint.first().map(String::as_str).filter(|program| PROGRAMS.contains(program))
}

fn lifetime_ms(timeout_s: Option<i64>, config: &Config) -> Answer<Option<u64>> {
    let Some(seconds) = timeout_s else { return Ok(None) };
    let max = config.timeout_max.as_secs();
    match u64::try_from(seconds) {
        Ok(seconds) if (TIMEOUT_MIN_S..=max).contains(&seconds) => Ok(Some(seconds * 1000)),
        _ => Err(Fault::invalid(format!(
            "timeout has to be from {TIMEOUT_MIN_S} to {max} seconds, and is {seconds}"
        ))),
    }
}

pub(crate) fn limits(asked: &BTreeMap<String, String>) -> Answer<Limits> {
    let mut limits = Limits::default();
    for (name, amount) in asked {
        let wrong = |what: &str| Fault::invalid(format!("{name}={amount:?} is {what}"));
        match name.as_str() {
            "cpu" => {
                limits.cpus =
                    Some(cpus(amount).ok_or_else(|| wrong("no number of CPUs, like 2, 0.5 or 500m"))?)
            }
            "memory" => {
                let bytes = bytes(amount).ok_or_else(|| wrong("no amount of memory, like 512Mi or 2Gi"))?;
                limits.memory_bytes = Some(bytes);
            }
            "disk" | "ephemeral-storage" => {
                limits.disk_bytes =
                    Some(bytes(amount).ok_or_else(|| wrong("no amount of disk, like 512Mi or 2Gi"))?);
            }
            "gpu" => return Err(Fault::unsupported("this server has no GPUs for sandboxes")),
            _ => {
                return Err(Fault::unsupported(format!(
                    "{name} cannot be limited here; cpu, memory and disk can"
                )));
            }
        }
    }
    Ok(limits)
}

fn cpus(text: &str) -> Option<f64> {
    let cpus = match text.trim().strip_suffix('m') {
        Some(milli) => milli.parse::<u32>().ok().map(|milli| f64::from(milli) / 1000.0),
        None => text.trim().parse().ok(),
    };
    cpus.filter(|cpus| cpus.is_finite() && *cpus > 0.0)
}

fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let power =
        |letter: &str| ["K", "M", "G", "T"].iter().position(|known| *known == letter).map(|at| at as u32 + 1);
    let factor = match suffix.strip_suffix('i') {
        Some(letter) => 1024_u64.pow(power(letter)?),
        None if suffix.is_empty() => 1,
        None => 1000_u64.pow(power(suffix)?),
    };
    number.parse::<u64>().ok()?.checked_mul(factor).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Answer<Wanted> {
        wanted(serde_json::from_str(text).unwrap(), &Config::new("/x".into()), None)
    }

    #[test]
    fn amounts_are_read_as_kubernetes_does() {
        for (text, amount) in [
            ("1", Some(1.0)),
            ("0.5", Some(0.5)),
            ("500m", Some(0.5)),
            ("0", None),
            ("x", None),
            ("-1", None),
            ("inf", None),
            ("", None),
            ("m", None),
        ] {
            assert_eq!(cpus(text), amount, "{text}");
        }
        for (text, amount) in [
            ("7", Some(7)),
            ("2Gi", Some(2 << 30)),
            ("512Mi", Some(512 << 20)),
            ("1K", Some(1000)),
            ("3G", Some(3_000_000_000)),
            ("1Ti", Some(1 << 40)),
            ("0", None),
            ("1i", None),
            ("1KM", None),
            ("1.5Gi", None),
            ("Gi", None),
            ("99999999999Ti", None),
            ("1KiB", None),
        ] {
            assert_eq!(bytes(text), amount, "{text}");
        }
    }

    #[test]
    fn what_the_sdk_sends_is_understood() {
        let made = request(
            r#"{"image":{"uri":"host"},"timeout":600,"resourceLimits":{"cpu":"1","memory":"2Gi"},"env":{"A":"1"},
                "metadata":{"m":"v"},"entrypoint":["tail","-f","/dev/null"],"secureAccess":false,
                "networkPolicy":{"defaultAction":"deny","egress":[]},"new":{"field":1}}"#,
        )
        .unwrap();
        assert_eq!(made.spec.image, Image::Host);
        assert_eq!(made.spec.limits.memory_bytes, Some(2 << 30));
        assert_eq!(made.spec.limits.cpus, Some(1.0));
        assert_eq!(made.spec.env, [("A".to_owned(), "1".to_owned())]);
        assert!(made.record.expires_ms.is_some_and(|at| at > now_ms() + 590_000));
        assert_eq!(made.spec.labels.get("m").map(String::as_str), Some("v"));
        assert!(only_waits(&made.record.entrypoint));
    }

    #[test]
    fn programs_of_opensandboxs_images_are_known() {
        let named = |program: &str| of_their_images(&[program.to_owned(), "x".to_owned()]).is_some();
        assert!(
            named("/opt/opensandbox/code-interpreter.sh")
                && named("/opt/code-interpreter/code-interpreter.sh")
        );
        assert!(!named("/opt/code-interpreter.sh") && of_their_images(&[]).is_none());
    }

    #[test]
    fn without_a_timeout_a_box_stays() {
        for text in [r#"{"image":{"uri":"host"}}"#, r#"{"image":{"uri":"host"},"timeout":null}"#] {
            assert_eq!(request(text).unwrap().record.expires_ms, None);
        }
    }

    #[test]
    fn what_makes_no_sense_or_is_not_here_is_refused() {
        for (more, status) in [
            (r#""snapshotId":"x""#, 400),
            (r#""timeout":59"#, 400),
            (r#""timeout":-1"#, 400),
            (r#""timeout":86401"#, 400),
            (r#""resourceLimits":{"cpu":"many"}"#, 400),
            (r#""metadata":{"a b":"c"}"#, 400),
            (r#""entrypoint":[]"#, 400),
            (r#""networkPolicy":{"defaultAction":"maybe"}"#, 400),
            (r#""networkPolicy":{"defaultAction":"allow"}"#, 501),
            (r#""networkPolicy":{"egress":[{"action":"allow","target":"pypi.org"}]}"#, 501),
            (r#""resourceLimits":{"gpu":"1"}"#, 501),
            (r#""platform":{"os":"windows","arch":"amd64"}"#, 501),
            (r#""extensions":{"poolRef":"p"}"#, 501),
            (r#""env":{"OPENSANDBOX_LIFECYCLE":"x"}"#, 400),
            (r#""extensions":{"access.renew.extend.seconds":"299"}"#, 400),
            (r#""extensions":{"access.renew.extend.seconds":"soon"}"#, 400),
        ] {
            let fault = request(&format!(r#"{{"image":{{"uri":"host"}},{more}}}"#)).unwrap_err();
            assert_eq!(fault.status().as_u16(), status, "{more}");
        }
        assert_eq!(request("{}").unwrap_err().status(), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn no_path_of_this_machine_can_be_an_image() {
        for uri in
            ["dir:/", "docker-archive:/etc/shadow", "oci-archive:/x", "snapshot:abc", "", "/etc", "../x"]
        {
            match request(&format!(r#"{{"image":{{"uri":{uri:?}}}}}"#)) {
                Ok(made) => assert!(matches!(made.spec.image, Image::Remote(_)), "{uri}"),
                Err(fault) => assert_eq!(fault.status(), StatusCode::BAD_REQUEST, "{uri}"),
            }
        }
    }
}
