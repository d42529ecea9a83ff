//! Where the Docker engine is, as Docker's own program is told: `DOCKER_HOST`, `DOCKER_TLS_VERIFY`, `DOCKER_CERT_PATH`.

use std::path::PathBuf;

use glasshouse_sandbox::{EngineSettings, EngineTls};

/// The runtime for containers that the engine is asked for.
const RUNTIME_VARIABLE: &str = "GLASSHOUSE_DOCKER_RUNTIME";

pub(crate) fn settings() -> EngineSettings {
    let word = |name: &str| std::env::var(name).ok().filter(|word| !word.is_empty());
    let certificates = word("DOCKER_CERT_PATH").map(PathBuf::from);
    let certificates = certificates.or_else(|| std::env::home_dir().map(|home| home.join(".docker")));
    let tls = word("DOCKER_TLS_VERIFY").and(certificates).map(|dir| EngineTls {
        ca: dir.join("ca.pem"),
        cert: dir.join("cert.pem"),
        key: dir.join("key.pem"),
    });
    EngineSettings { host: word("DOCKER_HOST"), tls, runtime: word(RUNTIME_VARIABLE) }
}
