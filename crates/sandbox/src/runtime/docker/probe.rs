//! What an engine can do, found by asking it.

use bollard::models::SystemInfo;
use glasshouse_linux::landlock;

use super::{Docker, Strength, hull};
use crate::error::Result;
use crate::runtime::native;
use crate::runtime::{Feature, RuntimeReport};
use crate::spec::{Level, Limits, RuntimeKind};

/// Runtimes of engines that run containers on a kernel of their own, or behind one in user space, by how they are called.
pub(super) const STRONGER: [&str; 4] = ["runsc", "kata", "io.containerd.runsc", "io.containerd.kata"];

impl Docker {
    /// How strongly the engine isolates.
    pub(super) fn strength(&self) -> Result<Strength> {
        let info = self.engine.ask("ask the engine what it can", async |docker| docker.info().await)?;
        Ok(strength(&info))
    }
}

fn strength(info: &SystemInfo) -> Strength {
    let options: Vec<&str> = info.security_options.iter().flatten().map(String::as_str).collect();
    let has = |name: &str| options.iter().any(|option| option.split(',').any(|word| word == name));
    let mut missing = Vec::new();
    if !has("name=userns") && !has("name=rootless") {
        missing.push("own uid range: the engine does not remap users (userns-remap)".to_owned());
    }
    if !has("name=seccomp") {
        missing.push("engine's filter: it has no seccomp; the guest's own filter stands".to_owned());
    }
    if landlock::abi() < native::LANDLOCK_ABI_MIN {
        missing.push("landlock: this kernel has none, or an old one".to_owned());
    }
    let level = if missing.is_empty() { Level::Full } else { Level::Reduced };
    Strength { level, missing }
}

pub(super) fn probe(docker: &Docker) -> RuntimeReport {
    let limits = hull::decide(&Limits::default()).map(|decided| decided.in_force).unwrap_or_default();
    let report = |level, features| RuntimeReport { runtime: RuntimeKind::Docker, level, features, limits };
    let feature = |name: &str, ok: bool, detail: String, hint: Option<&str>| Feature {
        name: name.into(),
        ok,
        detail,
        hint: hint.map(str::to_owned),
    };
    let info = match docker.engine.ask("ask the engine what it can", async |docker| docker.info().await) {
        Ok(info) => info,
        Err(e) => {
            let hint = "start Docker, or set DOCKER_HOST; the runtime `native` needs none";
            return report(Level::None, vec![feature("engine", false, e.to_string(), Some(hint))]);
        }
    };
    let word = |word: &Option<String>| word.clone().unwrap_or_else(|| "unknown".into());
    let address = docker.engine.address();
    let mut features = vec![feature(
        "engine",
        true,
        match docker.engine.is_local() {
            true => format!("{} at {address}", word(&info.server_version)),
            false => {
                format!(
                    "{} at {address}; boxes need one that sees this host's files",
                    word(&info.server_version)
                )
            }
        },
        None,
    )];
    let driver = word(&info.driver);
    features.push(feature(
        "storage",
        driver == "overlay2",
        driver.clone(),
        (driver != "overlay2").then_some("digest, diff and recorded steps need the storage driver overlay2"),
    ));
    let names = info.runtimes.iter().flatten().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    features.push(feature("runtimes", true, names.join(", "), None));
    let Strength { level, missing } = strength(&info);
    for lack in missing {
        let (name, detail) = lack.split_once(": ").unwrap_or(("wall", &lack));
        features.push(feature(name, false, detail.into(), None));
    }
    report(level, features)
}
