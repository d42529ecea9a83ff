//! What an engine can do, found by asking it.

use std::path::Path;

use bollard::models::SystemInfo;
use glasshouse_linux::landlock;

use super::{Docker, Strength, engine, hull};
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::native;
use crate::runtime::{Feature, RuntimeReport};
use crate::spec::{Level, Limits, RuntimeKind};

/// Runtimes of engines that run containers on a kernel of their own, or behind one in user space, by how they are called.
const STRONGER: [&str; 4] = ["runsc", "kata", "io.containerd.runsc", "io.containerd.kata"];

/// Storage drivers that can bound what a container writes, whatever they stand on.
const BOUNDING: [&str; 3] = ["btrfs", "zfs", "devicemapper"];

impl Docker {
    /// How strongly the engine isolates.
    pub(super) fn strength(&self) -> Result<Strength> {
        Ok(strength(&self.engine.info()?))
    }

    /// Refuses a runtime of the engine's that it does not have, or that our guest cannot live in.
    pub(super) fn check_runtime(&self) -> Result<()> {
        let Some(name) = self.engine.runtime() else { return Ok(()) };
        let info = self.engine.info()?;
        let known = info.runtimes.iter().flatten().find(|(known, _)| *known == name);
        // Whatever it is called there: what is executed says what it is.
        let program =
            known.and_then(|(_, runtime)| Path::new(runtime.path.as_deref()?).file_name()?.to_str());
        let mut names = [Some(name), program].into_iter().flatten();
        if let Some(own) = names.find(|name| STRONGER.iter().any(|known| name.starts_with(known))) {
            let message = format!(
                "the engine's runtime {name} ({own}) has a kernel of its own, through which the guest cannot come to its \
                 door on this host; use the engine's default one (unset GLASSHOUSE_DOCKER_RUNTIME)"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        // Engines find those of containerd by such names, without a word in advance.
        if known.is_some() || name.starts_with("io.containerd.") {
            return Ok(());
        }
        let message = format!(
            "the engine at {} has no runtime {name} for containers; it has {}; `dockerd --add-runtime` adds one, \
             GLASSHOUSE_DOCKER_RUNTIME says which to use",
            self.engine.address(),
            runtimes(&info).join(", ")
        );
        Err(Error::new(ErrorKind::NotFound, message))
    }
}

/// The names of an engine's runtimes.
fn runtimes(info: &SystemInfo) -> Vec<String> {
    let mut names: Vec<String> = info.runtimes.iter().flatten().map(|(name, _)| name.clone()).collect();
    names.sort();
    names
}

fn strength(info: &SystemInfo) -> Strength {
    let mut missing = Vec::new();
    if !engine::remaps(info) {
        missing.push("own uid range: the engine does not remap users (userns-remap)".to_owned());
    }
    if !engine::has(info, "name=seccomp") {
        missing.push("engine's filter: it has no seccomp; the guest's own filter stands".to_owned());
    }
    if landlock::abi() < native::LANDLOCK_ABI_MIN {
        missing.push("landlock: this kernel has none, or an old one".to_owned());
    }
    let level = if missing.is_empty() { Level::Full } else { Level::Reduced };
    Strength { level, missing }
}

/// Whether an engine can keep a disk limit, as far as it says: driver, and what that stands on.
fn bounds_disks(info: &SystemInfo) -> (bool, String) {
    let driver = info.driver.as_deref().unwrap_or("unknown");
    let rows = info.driver_status.iter().flatten();
    let below = rows.filter(|row| row.first().is_some_and(|name| name == "Backing Filesystem"));
    let below = below.filter_map(|row| row.get(1)).next().map_or("unknown", String::as_str);
    if BOUNDING.contains(&driver) {
        return (true, format!("kept by the storage driver {driver}"));
    }
    match (driver, below) {
        ("overlay2", "xfs") => (true, "kept by project quotas, if xfs is mounted with them".into()),
        _ => (false, format!("the storage driver {driver} on {below} has no quotas")),
    }
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
    let info = match docker.engine.info() {
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
    let (ok, detail) = bounds_disks(&info);
    let hint = "`--disk` needs overlay2 on xfs with project quotas, btrfs or zfs; or the runtime `native`";
    features.push(feature("disk limit", ok, detail, (!ok).then_some(hint)));
    let names = runtimes(&info).join(", ");
    features.push(match docker.engine.runtime() {
        None => {
            let usual = word(&info.default_runtime);
            feature("runtimes", true, format!("{usual} is used, of {names}"), None)
        }
        Some(name) => match docker.check_runtime() {
            Ok(()) => feature("runtimes", true, format!("{name} is used, of {names}"), None),
            Err(e) => feature("runtimes", false, e.to_string(), Some("unset GLASSHOUSE_DOCKER_RUNTIME")),
        },
    });
    let Strength { level, missing } = strength(&info);
    for lack in missing {
        let (name, detail) = lack.split_once(": ").unwrap_or(("wall", &lack));
        features.push(feature(name, false, detail.into(), None));
    }
    report(level, features)
}
