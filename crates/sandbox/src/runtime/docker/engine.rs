//! The way to an engine: where it is, which version both sides speak, and what its errors mean to us.
//!
//! Runtimes are asked from threads that may wait, so each call has an event loop of its own, which ends with it. Whoever
//! asks from within another event loop asks through [`beside`].

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bollard::errors::Error as EngineError;
use bollard::models::SystemInfo;
use bollard::query_parameters::WaitContainerOptionsBuilder;
use bollard::{API_DEFAULT_VERSION, ClientVersion, Docker};
use futures_util::StreamExt;

use super::bridge::Standing;
use crate::error::{Context, Error, ErrorKind, Result};

/// Where an engine is unless somebody says otherwise.
const SOCKET: &str = "unix:///var/run/docker.sock";
/// Seconds that one answer of the engine may take. A large commit takes its time.
const ANSWER_SECONDS_MAX: u64 = 600;
/// Seconds that an engine may take to say who it is. One that takes longer is as good as none.
const HELLO_SECONDS_MAX: u64 = 20;

/// Which engine, and how to reach it. The default is the local one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineSettings {
    /// `unix://PATH` or `tcp://HOST:PORT`, as in `DOCKER_HOST`.
    pub host: Option<String>,
    /// Who we are to an engine behind TLS.
    pub tls: Option<EngineTls>,
    /// The engine's runtime for containers (`runsc`, `kata-runtime`), if not its default.
    pub runtime: Option<String>,
}

/// Files of a client of an engine behind TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineTls {
    /// Who signs engines.
    pub ca: PathBuf,
    /// Our certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// An engine, local or remote.
#[derive(Debug, Clone)]
pub(super) struct Engine {
    settings: EngineSettings,
    /// What both sides speak, once they have agreed.
    version: Arc<OnceLock<ClientVersion>>,
    podman: Arc<OnceLock<bool>>,
    remaps: Arc<OnceLock<bool>>,
    commits_all: Arc<OnceLock<bool>>,
    /// It was found to see nothing of our files.
    far: Arc<OnceLock<()>>,
    /// Streams through it to guests.
    pub(super) bridges: Arc<Standing>,
}

/// Does something that has an event loop of its own on a thread of its own: the caller's may have one already.
pub(super) fn beside<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("glass-engine".into()).spawn_scoped(scope, work);
        let ended = thread.context("talk to the engine")?.join();
        ended.unwrap_or_else(|_| Err(Error::new(ErrorKind::Failed, "talking to the engine came to nothing")))
    })
}

impl Engine {
    pub(super) fn new(settings: EngineSettings) -> Engine {
        Engine {
            settings,
            version: Arc::default(),
            podman: Arc::default(),
            remaps: Arc::default(),
            commits_all: Arc::default(),
            far: Arc::default(),
            bridges: Arc::default(),
        }
    }

    /// Whether it is known to see nothing of our files.
    pub(super) fn is_far(&self) -> bool {
        self.far.get().is_some()
    }

    pub(super) fn note_far(&self) {
        let _ = self.far.set(());
    }

    /// Where it is, in words.
    pub(super) fn address(&self) -> &str {
        self.settings.host.as_deref().unwrap_or(SOCKET)
    }

    /// The runtime for containers that was asked for.
    pub(super) fn runtime(&self) -> Option<&str> {
        self.settings.runtime.as_deref()
    }

    /// Whether it is reached by a socket of this host: then it can see our files, most likely.
    pub(super) fn is_local(&self) -> bool {
        self.address().starts_with("unix://")
    }

    /// Refuses ways to an engine that we do not know.
    fn check_address(&self) -> Result<()> {
        let address = self.address();
        if self.is_local() || address.starts_with("tcp://") {
            return Ok(());
        }
        let message = format!(
            "cannot reach an engine at {address}: engines are reached by unix://PATH or tcp://HOST:PORT; \
             `ssh -L PATH:/var/run/docker.sock HOST` makes one of the former out of an ssh:// one"
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Whether it is Podman, which speaks the same with a few words of its own.
    pub(super) fn is_podman(&self) -> Result<bool> {
        if let Some(podman) = self.podman.get() {
            return Ok(*podman);
        }
        let version = self.ask("ask the engine who it is", async |docker| docker.version().await)?;
        let podman = version.components.iter().flatten().any(|part| part.name.contains("Podman"));
        Ok(*self.podman.get_or_init(|| podman))
    }

    /// What it says of itself.
    pub(super) fn info(&self) -> Result<SystemInfo> {
        let info = self.ask("ask the engine what it can", async |docker| docker.info().await)?;
        // Whoever asks for the whole has asked for this, too.
        let _ = self.remaps.set(remaps(&info));
        Ok(info)
    }

    /// Whether users of containers are others on the host: then so are the owners of the files that it keeps.
    pub(super) fn remaps(&self) -> Result<bool> {
        if let Some(remaps) = self.remaps.get() {
            return Ok(*remaps);
        }
        let remaps = remaps(&self.info()?);
        Ok(*self.remaps.get_or_init(|| remaps))
    }

    /// Whether all that a box has changed is in a commit of its container.
    pub(super) fn commits_all(&self) -> Result<bool> {
        if let Some(all) = self.commits_all.get() {
            return Ok(*all);
        }
        let all = commits_all(&self.info()?);
        Ok(*self.commits_all.get_or_init(|| all))
    }

    /// Asks the engine. `what` fits after "cannot".
    pub(super) fn ask<T>(
        &self,
        what: &str,
        question: impl AsyncFnOnce(&Docker) -> std::result::Result<T, EngineError>,
    ) -> Result<T> {
        self.try_ask(question)?.map_err(|e| self.told(what, e))
    }

    /// The same, with `None` where the engine does not know what was asked about.
    pub(super) fn ask_known<T>(
        &self,
        what: &str,
        question: impl AsyncFnOnce(&Docker) -> std::result::Result<T, EngineError>,
    ) -> Result<Option<T>> {
        match self.try_ask(question)? {
            Ok(answer) => Ok(Some(answer)),
            Err(EngineError::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(e) => Err(self.told(what, e)),
        }
    }

    /// Waits until it knows that a container has ended, or knows none of that name. Whether it does.
    pub(super) fn wait_ended(&self, name: &str, longest: Duration) -> Result<bool> {
        let options = WaitContainerOptionsBuilder::new().condition("not-running").build();
        let ended = self.ask_known("wait for the container's end", async |docker| {
            let mut ends = docker.wait_container(name, Some(options));
            match tokio::time::timeout(longest, ends.next()).await {
                // With which code does not matter.
                Ok(Some(Err(EngineError::DockerContainerWaitError { .. })) | Some(Ok(_)) | None) => Ok(true),
                Ok(Some(Err(e))) => Err(e),
                Err(_) => Ok(false),
            }
        })?;
        Ok(ended.unwrap_or(true))
    }

    /// Comes back when it says that a container has ended, or that there is none of that name. As long as it says neither, and
    /// if it says nothing any more, it does not.
    pub(super) async fn ended(&self, name: &str) {
        while let Ok(docker) = self.reach().await {
            let options = WaitContainerOptionsBuilder::new().condition("not-running").build();
            match docker.wait_container(name, Some(options)).next().await {
                Some(
                    Ok(_)
                    | Err(EngineError::DockerContainerWaitError { .. })
                    | Err(EngineError::DockerResponseServerError { status_code: 404, .. }),
                ) => return,
                // It has run for as long as an answer may take.
                Some(Err(EngineError::RequestTimeoutError)) => {}
                Some(Err(_)) | None => break,
            }
        }
        std::future::pending().await
    }

    fn try_ask<T>(
        &self,
        question: impl AsyncFnOnce(&Docker) -> std::result::Result<T, EngineError>,
    ) -> Result<std::result::Result<T, EngineError>> {
        let loop_of_its_own = event_loop()?;
        loop_of_its_own.block_on(async { Ok(question(&self.reach().await?).await) })
    }

    /// A way to it, in the words of a version that both sides speak.
    pub(super) async fn reach(&self) -> Result<Docker> {
        self.check_address()?;
        if self.version.get().is_none() {
            let client = self.client(HELLO_SECONDS_MAX).map_err(|e| self.told("reach it", e))?;
            let agreed = client.negotiate_version().await.map_err(|e| self.told("agree on a version", e))?;
            let _ = self.version.set(agreed.client_version());
        }
        self.client(ANSWER_SECONDS_MAX).map_err(|e| self.told("reach it", e))
    }

    fn client(&self, seconds_max: u64) -> std::result::Result<Docker, EngineError> {
        let version = self.version.get().unwrap_or(API_DEFAULT_VERSION);
        let address = self.address();
        match &self.settings.tls {
            _ if self.is_local() => Docker::connect_with_unix(address, seconds_max, version),
            Some(EngineTls { ca, cert, key }) => {
                // The provider is chosen once for the whole process; somebody may have done so.
                let _ = rustls::crypto::ring::default_provider().install_default();
                Docker::connect_with_ssl(address, key, cert, ca, seconds_max, version)
            }
            None => Docker::connect_with_http(address, seconds_max, version),
        }
    }

    /// What an engine's error is to our caller.
    pub(super) fn told(&self, what: &str, error: EngineError) -> Error {
        let address = self.address();
        match error {
            EngineError::DockerResponseServerError { status_code, message } => {
                let message = message.trim();
                let kind = match status_code {
                    400 => ErrorKind::Invalid,
                    401 | 403 => ErrorKind::Denied,
                    404 => ErrorKind::NotFound,
                    409 => ErrorKind::Exists,
                    _ if message.contains("no space left") => ErrorKind::DiskFull,
                    _ => ErrorKind::Failed,
                };
                Error::new(kind, format!("cannot {what}: the engine at {address} says: {message}"))
            }
            EngineError::DockerStreamError { error } => {
                let kind =
                    if error.contains("no space left") { ErrorKind::DiskFull } else { ErrorKind::Failed };
                Error::new(kind, format!("cannot {what}: the engine at {address} says: {error}"))
            }
            EngineError::SocketNotFoundError(_)
            | EngineError::HyperLegacyError { .. }
            | EngineError::HyperResponseError { .. }
            | EngineError::IOError { .. }
            | EngineError::RequestTimeoutError => {
                let why = source_of(&error);
                let message = format!(
                    "cannot {what}: the Docker engine at {address} does not answer ({why}); is it running, and may \
                     this user talk to it? DOCKER_HOST says where it is"
                );
                Error::new(ErrorKind::Unreachable, message)
            }
            EngineError::CertPathError { .. }
            | EngineError::CertParseError { .. }
            | EngineError::CertMultipleKeys { .. } => {
                let message = format!(
                    "cannot {what}: the engine at {address} is to be reached by TLS, and that fails here: {error}; \
                     DOCKER_CERT_PATH says where ca.pem, cert.pem and key.pem are"
                );
                Error::new(ErrorKind::Invalid, message)
            }
            other => Error::new(ErrorKind::Failed, format!("cannot {what}: {other}")),
        }
    }
}

/// An event loop of one thread's own.
pub(super) fn event_loop() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("talk to the engine")
}

/// Whether an engine has this word among its security options.
pub(super) fn has(info: &SystemInfo, name: &str) -> bool {
    info.security_options.iter().flatten().any(|option| option.split(',').any(|word| word == name))
}

/// Whether an engine keeps images and containers in containerd's store, by its snapshotters: those of today do.
pub(super) fn has_snapshotter(info: &SystemInfo) -> bool {
    let rows = info.driver_status.iter().flatten();
    rows.flatten().any(|word| word.starts_with("io.containerd.snapshotter"))
}

/// Whether an engine that says this of itself commits what is in a container's own layer. Others compare two trees, and take a file
/// of the same size and the same time for the same, whatever is in it: both are the box's to set.
fn commits_all(info: &SystemInfo) -> bool {
    let has_own_layer = |row: &Vec<String>| row.iter().eq(["Native Overlay Diff", "true"]);
    let by_snapshotter = has_snapshotter(info) && info.driver.as_deref() == Some("overlayfs");
    by_snapshotter || info.driver_status.iter().flatten().any(has_own_layer)
}

/// Whether an engine that says this of itself gives containers other users.
pub(super) fn remaps(info: &SystemInfo) -> bool {
    has(info, "name=userns") || has(info, "name=rootless")
}

/// The deepest cause, which is the one that says something.
fn source_of(error: &EngineError) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_layer_of_its_own_is_committed_whole() {
        let says = |driver: &str, rows: &[[&str; 2]]| {
            let rows = rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect();
            let driver = Some(driver.to_owned());
            commits_all(&SystemInfo { driver, driver_status: Some(rows), ..SystemInfo::default() })
        };
        assert!(says("overlay2", &[["Supports d_type", "true"], ["Native Overlay Diff", "true"]]));
        assert!(says("overlayfs", &[["driver-type", "io.containerd.snapshotter.v1"]]));
        // So it is where the kernel follows renames of directories.
        assert!(!says("overlay2", &[["Native Overlay Diff", "false"]]));
        assert!(!says("native", &[["driver-type", "io.containerd.snapshotter.v1"]]));
        assert!(!says("vfs", &[]) && !says("btrfs", &[["Build Version", "Btrfs v6"]]));
    }
}
