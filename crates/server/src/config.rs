//! The settings of a server, as values, and the file that says them.
//!
//! What holds without a word stands in one place, `default-config.toml`, which is also what users read. A file of theirs is
//! laid over it, so that neither this code nor they repeat it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use glasshouse_sandbox::{Recording, RuntimeKind};
use serde::Deserialize;
use toml::{Table, Value};

use crate::dialect::mcp::McpConfig;
use crate::error::{Error, Result};
use crate::keys::{Keys, check_name};
use crate::log::LogLevel;
use crate::telemetry::Collector;

/// All settings, with what they mean and what holds without a word.
pub const DEFAULT_CONFIG: &str = include_str!("default-config.toml");

/// What stands for the name of a tenant in the path of a volume.
pub const TENANT_IN_PATHS: &str = "{tenant}";

/// How to serve. The defaults serve this machine alone, without a key.
#[derive(Debug, Clone)]
pub struct Config {
    /// The state directory of the house; the server keeps its own files in `server` below it.
    pub home: PathBuf,
    /// Where connections are taken.
    pub listen: SocketAddr,
    /// What callers have to show, beside the keys of the state directory ([`Keys`]).
    pub key: Option<String>,
    /// The host and port that callers are told to find boxes at; without a word, the one that they called.
    pub public_host: Option<String>,
    /// What boxes run on.
    pub runtime: RuntimeKind,
    /// What is put on record of boxes whose makers say nothing of it.
    pub recording: Recording,
    /// Directories of the host that boxes may be given, and what is below them; [`TENANT_IN_PATHS`] stands for a tenant's name.
    pub volumes: Vec<PathBuf>,
    /// The longest life that a caller may ask for a box.
    pub timeout_max: Duration,
    /// MCP at `/mcp`, and what agents may do there.
    pub mcp: Option<McpConfig>,
    /// Whether requests to a box's ports let it live longer, if its maker wants that.
    pub renew_on_access: bool,
    /// Whether Python contexts of `/code` are forked from an interpreter that is kept warm, where boxes can.
    pub warm_contexts: bool,
    /// What is told as it happens.
    pub log: LogLevel,
    /// Whether every call is written down.
    pub audit: bool,
    /// OpenTelemetry.
    pub telemetry: Telemetry,
    /// How much callers may send, and how slowly.
    pub bounds: Bounds,
    /// What each tenant may do.
    pub allowance: Allowance,
    /// What single tenants may do instead.
    pub tenants: BTreeMap<String, Allowance>,
}

/// Where what is counted is sent, beside being told at `/metrics`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Telemetry {
    /// A collector of OpenTelemetry; empty: none.
    pub endpoint: String,
    /// How often.
    pub interval_ms: u64,
}

/// How much callers may send, and how slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// Connections at once.
    pub connections: usize,
    /// A body of JSON.
    pub json_bytes: usize,
    /// All bytes of one upload.
    pub upload_bytes: u64,
    /// The time for the head of a request.
    pub header_timeout_ms: u64,
    /// The longest pause in a body.
    pub body_timeout_ms: u64,
    /// The longest pause in which a client takes nothing of its answer.
    pub answer_timeout_ms: u64,
    /// What requests have when the server is told to stop.
    pub stop_timeout_ms: u64,
}

/// What a tenant may do. Nothing is "no bound".
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allowance {
    /// Boxes at once.
    pub boxes: u64,
    /// The memory limits of all boxes together.
    pub memory_bytes: u64,
    /// The CPU limits of all boxes together.
    pub cpus: f64,
    /// The disk limits of all boxes together.
    pub disk_bytes: u64,
    /// Requests a second, in the long run.
    pub requests_per_s: f64,
    /// Requests at once before that counts.
    pub burst: u32,
    /// Whether repositories are fetched for him.
    pub repositories: bool,
}

/// The file, with nothing left out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    listen: SocketAddr,
    public_host: String,
    runtime: String,
    recording: String,
    volumes: Vec<PathBuf>,
    box_timeout_max_s: u64,
    mcp: bool,
    renew_on_access: bool,
    warm_contexts: bool,
    log: LogLevel,
    audit: bool,
    telemetry: Telemetry,
    bounds: Bounds,
    allowance: Allowance,
    tenants: BTreeMap<String, Allowance>,
}

impl Config {
    /// The defaults, for this state directory.
    pub fn new(home: PathBuf) -> Config {
        Config::read(home, "").expect("a test reads the defaults")
    }

    /// What a file says, over the defaults.
    pub fn read(home: PathBuf, text: &str) -> Result<Config> {
        let refused = |e: toml::de::Error| {
            // Its own words draw the place, in lines that no sentence has.
            let (at, what) = match e.span() {
                Some(span) => {
                    let before = text.bytes().take(span.start).filter(|byte| *byte == b'\n').count();
                    (format!("line {}: ", before + 1), e.message().to_owned())
                }
                None => (String::new(), e.to_string()),
            };
            let what: Vec<&str> = what.split_whitespace().collect();
            Error::Refused(format!("cannot use these settings: {at}{}", what.join(" ")))
        };
        let mut all: Table = DEFAULT_CONFIG.parse().map_err(refused)?;
        lay_over(&mut all, text.parse().map_err(refused)?);
        // What is said of one tenant is laid over what holds for all.
        let allowance = all.get("allowance").and_then(Value::as_table).cloned().unwrap_or_default();
        if let Some(tenants) = all.get_mut("tenants").and_then(Value::as_table_mut) {
            for own in tenants.iter_mut().filter_map(|(_, own)| own.as_table_mut()) {
                let said = std::mem::replace(own, allowance.clone());
                lay_over(own, said);
            }
        }
        let file: File = all.try_into().map_err(refused)?;
        for tenant in file.tenants.keys() {
            check_name(tenant)?;
        }
        let runtime = match file.runtime.as_str() {
            "native" => RuntimeKind::Native,
            "docker" => RuntimeKind::Docker,
            other => {
                let message =
                    format!("runtime {other:?} cannot be served; there are \"native\" and \"docker\"");
                return Err(Error::Refused(message));
            }
        };
        let recording = file.recording.parse();
        let recording =
            recording.map_err(|e| Error::Refused(format!("cannot use these settings: recording: {e}")))?;
        Ok(Config {
            home,
            listen: file.listen,
            key: None,
            public_host: Some(file.public_host).filter(|host| !host.is_empty()),
            runtime,
            recording,
            volumes: file.volumes,
            timeout_max: Duration::from_secs(file.box_timeout_max_s),
            mcp: file.mcp.then(McpConfig::default),
            renew_on_access: file.renew_on_access,
            warm_contexts: file.warm_contexts,
            log: file.log,
            audit: file.audit,
            telemetry: file.telemetry,
            bounds: file.bounds,
            allowance: file.allowance,
            tenants: file.tenants,
        })
    }

    /// The directories that the library is told of: where a tenant's name stands, what is before it.
    pub(crate) fn volume_roots(&self) -> Vec<PathBuf> {
        let of_tenants = |part: &std::path::Component<'_>| {
            part.as_os_str().to_str().is_some_and(|part| part.contains(TENANT_IN_PATHS))
        };
        let root = |path: &PathBuf| path.components().take_while(|part| !of_tenants(part)).collect();
        self.volumes.iter().map(root).collect()
    }

    /// What a tenant may do.
    pub fn allowance(&self, tenant: &str) -> Allowance {
        self.tenants.get(tenant).copied().unwrap_or(self.allowance)
    }

    /// Refuses what makes no sense or would let strangers in.
    pub fn check(&self) -> Result<()> {
        if self.key.is_none() && !self.listen.ip().is_loopback() && Keys::of(&self.home).is_empty()? {
            return Err(Error::Refused(format!(
                "will not serve {} without a key: whoever can connect could run programs here. Make one with \
                 `glass key add`, or listen on 127.0.0.1",
                self.listen
            )));
        }
        if let Some(key) = &self.key
            && (key.len() < KEY_LENGTH_MIN || !key.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(Error::Refused(format!(
                "cannot use this key: it has to be at least {KEY_LENGTH_MIN} letters, digits or signs, without spaces"
            )));
        }
        let Bounds { connections, json_bytes, header_timeout_ms, body_timeout_ms, answer_timeout_ms, .. } =
            self.bounds;
        if connections == 0
            || connections > CONNECTIONS_MAX
            || json_bytes == 0
            || header_timeout_ms == 0
            || body_timeout_ms == 0
            || answer_timeout_ms == 0
        {
            let message = "cannot use these settings: connections (at most 65536), json_bytes and the time-outs \
                           have to be at least 1";
            return Err(Error::Refused(message.to_owned()));
        }
        if !self.telemetry.endpoint.is_empty() {
            Collector::at(&self.telemetry.endpoint)?;
        }
        if self.telemetry.interval_ms < TELEMETRY_INTERVAL_MIN_MS {
            let message = format!(
                "cannot use these settings: interval_ms has to be at least {TELEMETRY_INTERVAL_MIN_MS}"
            );
            return Err(Error::Refused(message));
        }
        if let Some(path) = self.volumes.iter().find(|path| !path.is_absolute()) {
            let message = format!("cannot use these settings: volumes: {} is no whole path", path.display());
            return Err(Error::Refused(message));
        }
        let own = self.tenants.values().chain([&self.allowance]);
        let fine = |number: f64| number.is_finite() && number >= 0.0;
        if own.into_iter().any(|own| !(fine(own.cpus) && fine(own.requests_per_s))) {
            let message = "cannot use these settings: cpus and requests_per_s cannot be negative or infinite";
            return Err(Error::Refused(message.to_owned()));
        }
        Ok(())
    }
}

/// More would not fit into the descriptors of a process.
const CONNECTIONS_MAX: usize = 65_536;
/// More often would only be a load.
const TELEMETRY_INTERVAL_MIN_MS: u64 = 100;
/// A shorter key could be guessed.
const KEY_LENGTH_MIN: usize = 16;

/// Puts what is said over what is there, table by table. A whole number is also a fraction.
fn lay_over(below: &mut Table, above: Table) {
    for (name, said) in above {
        match (below.get_mut(&name), said) {
            (Some(Value::Table(below)), Value::Table(above)) => lay_over(below, above),
            (Some(Value::Float(below)), Value::Integer(said)) => *below = said as f64,
            (_, said) => drop(below.insert(name, said)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config> {
        let config = Config::read("/x".into(), text)?;
        config.check().map(|()| config)
    }

    fn check(listen: &str, key: Option<&str>, fine: bool) {
        let home = tempfile::tempdir().unwrap();
        let listen = listen.parse().unwrap();
        let config = Config { listen, key: key.map(str::to_owned), ..Config::new(home.path().to_owned()) };
        assert_eq!(config.check().is_ok(), fine, "{listen} {key:?}");
    }

    #[test]
    fn strangers_need_a_key() {
        check("127.0.0.1:8080", None, true);
        check("127.9.9.9:1", None, true);
        check("[::1]:8080", None, true);
        check("0.0.0.0:8080", None, false);
        check("[::]:8080", None, false);
        check("192.0.2.1:8080", None, false);
        check("0.0.0.0:8080", Some("0123456789abcdef"), true);
    }

    #[test]
    fn a_key_of_the_state_directory_is_one_too() {
        let home = tempfile::tempdir().unwrap();
        let listen = "0.0.0.0:8080".parse().unwrap();
        let config = Config { listen, ..Config::new(home.path().to_owned()) };
        assert!(config.check().is_err());
        Keys::of(home.path()).add("one", Some("red")).unwrap();
        config.check().unwrap();
    }

    #[test]
    fn a_key_is_no_word_that_can_be_guessed_or_cannot_be_sent() {
        check("127.0.0.1:8080", Some("secret"), false);
        check("127.0.0.1:8080", Some(""), false);
        check("127.0.0.1:8080", Some("0123456789 abcdef"), false);
        check("127.0.0.1:8080", Some("0123456789abcdeé"), false);
    }

    #[test]
    fn a_file_says_what_is_different_and_tenants_have_the_rest_of_all() {
        let defaults = read("").unwrap();
        assert_eq!((defaults.listen.to_string().as_str(), defaults.audit), ("127.0.0.1:8080", true));
        let config = read(
            "audit = false\n[bounds]\njson_bytes = 7\n[allowance]\nboxes = 5\ncpus = 2\n[tenants.red]\nboxes = 9",
        )
        .unwrap();
        assert_eq!((config.audit, config.bounds.json_bytes), (false, 7));
        assert_eq!(config.bounds.connections, defaults.bounds.connections);
        let (red, blue) = (config.allowance("red"), config.allowance("blue"));
        assert_eq!((red.boxes, red.cpus, blue.boxes, blue.cpus), (9, 2.0, 5, 2.0));
        let config = read("[allowance]\nrepositories = false\n[tenants.red]\nrepositories = true").unwrap();
        assert_eq!(
            ["red", "blue"].map(|tenant| config.allowance(tenant).repositories),
            [true, false],
            "what one tenant may do counts for him"
        );
    }

    #[test]
    fn what_nobody_knows_or_makes_no_sense_is_refused() {
        for (text, sentence) in [
            ("x = 1\n[bounds\n", "cannot use these settings: line 2: "),
            ("[tenants.red]\nnonsense = 1\n", "cannot use these settings: unknown field `nonsense`"),
        ] {
            let said = read(text).unwrap_err().to_string();
            assert!(said.starts_with(sentence) && !said.contains('\n'), "{said}");
        }
        for text in [
            "lisen = \"127.0.0.1:1\"",
            "[bounds]\nx = 1",
            "[tenants.red]\nx = 1",
            "[tenants.\"../x\"]\nboxes = 1",
            "listen = 7",
            "listen = \"here\"",
            "log = \"all\"",
            "[bounds]\nanswer_timeout_ms = 0",
            "runtime = \"process\"",
            "[bounds]\nconnections = 0",
            "[allowance]\nrequests_per_s = -1.0",
            "[allowance]\ncpus = nan",
            "x",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn settings_that_make_no_sense_are_refused_and_nothing_else_happens(
            name in "(listen|runtime|bounds|allowance|tenants|volumes|[a-z_.\\[\\]]{0,12})",
            value in "([0-9]{1,20}|-1|[a-z\"\\[\\]{}]{0,12}|\"[ -~]{0,12}\")",
        ) {
            let read = Config::read("/x".into(), &format!("{name} = {value}\n"));
            if let Ok(config) = read {
                // What can be read can be looked at.
                let _ = config.check();
            }
        }
    }
}
