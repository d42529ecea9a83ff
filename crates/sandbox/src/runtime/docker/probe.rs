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

/// The wall between users of the box and of the host's kernel.
const UIDS: &str = "own uid range";
/// The wall between commands and devices of the host's kernel.
const LANDLOCK: &str = "landlock";

/// What is missing of a box whose kernel says that it is this release. One that is not the engine's machine's is a kernel of
/// its own, whatever the runtime is called: then the walls within the machine's kernel are not those that count. One that is
/// the same may be any, and proves nothing.
pub(super) fn behind_kernel(release: Option<&str>, info: &SystemInfo, mut missing: Vec<String>) -> Strength {
    let machines = info.kernel_version.as_deref().filter(|release| !release.is_empty());
    if let (Some(own), Some(machines)) = (release, machines)
        && own != machines
    {
        missing.retain(|lack| !lack.starts_with(UIDS) && !lack.starts_with(LANDLOCK));
    }
    let level = if missing.is_empty() { Level::Full } else { Level::Reduced };
    Strength { level, missing }
}

/// Storage drivers that can bound what a container writes, whatever they stand on.
const BOUNDING: [&str; 3] = ["btrfs", "zfs", "devicemapper"];

impl Docker {
    /// How strongly the engine isolates.
    pub(super) fn strength(&self, has_landlock: bool) -> Result<Strength> {
        Ok(strength(&self.engine.info()?, has_landlock))
    }

    /// Whether a runtime of the engine's has a kernel of its own, as far as its name or what is executed tells: then nothing
    /// that passes descriptors leads into a container, and boxes are made as on an engine that sees nothing of ours.
    pub(super) fn has_own_kernel(&self, name: Option<&str>) -> Result<bool> {
        let Some(name) = name else { return Ok(false) };
        let info = self.engine.info()?;
        let known = info.runtimes.iter().flatten().find(|(known, _)| *known == name);
        // Whatever it is called there: what is executed says what it is.
        let program =
            known.and_then(|(_, runtime)| Path::new(runtime.path.as_deref()?).file_name()?.to_str());
        let mut names = [Some(name), program].into_iter().flatten();
        Ok(names.any(|name| STRONGER.iter().any(|known| name.starts_with(known))))
    }

    /// Refuses a runtime of the engine's that it does not have.
    pub(super) fn check_runtime(&self, name: Option<&str>) -> Result<()> {
        let Some(name) = name else { return Ok(()) };
        let info = self.engine.info()?;
        let known = info.runtimes.iter().flatten().find(|(known, _)| *known == name);
        // Engines find those of containerd by such names, without a word in advance.
        if known.is_some() || name.starts_with("io.containerd.") {
            return Ok(());
        }
        let message = format!(
            "the engine at {} has no runtime {name} for containers; it has {}; `dockerd --add-runtime` adds one, \
             --engine-runtime or GLASSHOUSE_DOCKER_RUNTIME says which to use",
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

fn strength(info: &SystemInfo, has_landlock: bool) -> Strength {
    let mut missing = Vec::new();
    if !engine::remaps(info) {
        missing.push(format!("{UIDS}: the engine does not remap users (userns-remap)"));
    }
    if !engine::has(info, "name=seccomp") {
        missing.push("engine's filter: it has no seccomp; the guest's own filter stands".to_owned());
    }
    if !has_landlock {
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
                    "{} at {address}; if it does not see this host's files, boxes are reached through it",
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
        Some(name) => match docker.check_runtime(Some(name)) {
            Ok(()) => feature("runtimes", true, format!("{name} is used, of {names}"), None),
            Err(e) => feature("runtimes", false, e.to_string(), Some("unset GLASSHOUSE_DOCKER_RUNTIME")),
        },
    });
    let Strength { level, missing } = strength(&info, landlock::abi() >= native::LANDLOCK_ABI_MIN);
    for lack in missing {
        let (name, detail) = lack.split_once(": ").unwrap_or(("wall", &lack));
        features.push(feature(name, false, detail.into(), None));
    }
    report(level, features)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_kernel_that_is_another_one_is_a_wall() {
        let info = SystemInfo { kernel_version: Some("6.1.0-9".into()), ..SystemInfo::default() };
        let missing = || vec!["own uid range: x".to_owned(), "landlock: y".to_owned()];
        for (release, level) in
            [(None, Level::Reduced), (Some("6.1.0-9"), Level::Reduced), (Some("4.4.0"), Level::Full)]
        {
            assert_eq!(behind_kernel(release, &info, missing()).level, level, "{release:?}");
        }
        let more = vec!["own uid range: x".to_owned(), "engine's filter: z".to_owned()];
        let strength = behind_kernel(Some("4.4.0"), &info, more);
        assert_eq!((strength.level, strength.missing.len()), (Level::Reduced, 1));
        // An engine that does not say which kernel it has proves nothing.
        let silent = SystemInfo::default();
        assert_eq!(behind_kernel(Some("4.4.0"), &silent, missing()).level, Level::Reduced);
    }
}
