//! What an engine can do, found by asking it.

use std::path::Path;

use bollard::models::SystemInfo;
use glasshouse_linux::landlock;
use glasshouse_protocol::plan::UNLIMITED;

use super::{Docker, Strength, engine, hull};
use crate::error::{Error, ErrorKind, Result};
use crate::runtime::native;
use crate::runtime::{Feature, RuntimeReport};
use crate::spec::{Level, Limits, RuntimeKind};

/// Runtimes of engines that run containers on a kernel of their own, or behind one in user space, by how they are called, and
/// the level of what is behind it.
const STRONGER: [(&str, Level); 4] = [
    ("runsc", Level::Gvisor),
    ("io.containerd.runsc", Level::Gvisor),
    ("kata", Level::Vm),
    ("io.containerd.kata", Level::Vm),
];

/// The wall between users of the box and of the host's kernel.
const UIDS: &str = "own uid range";
/// The wall between commands and devices of the host's kernel.
const LANDLOCK: &str = "landlock";

/// How strong a box is whose kernel says that it is this release, on a runtime of this name. One that is not the engine's
/// machine's is a kernel of its own, whatever the runtime is called: then the walls within the machine's kernel are not those
/// that count. One that is the same may be any, and proves nothing.
pub(super) fn behind_kernel(
    release: Option<&str>,
    runtime: Option<&str>,
    info: &SystemInfo,
    mut missing: Vec<String>,
) -> Strength {
    let machines = info.kernel_version.as_deref().filter(|release| !release.is_empty());
    let is_own = matches!((release, machines), (Some(own), Some(machines)) if own != machines);
    if is_own {
        let counts = |lack: &String| ![UIDS, LANDLOCK, UNLIMITED].iter().any(|wall| lack.starts_with(wall));
        missing.retain(counts);
    }
    let level = match missing.is_empty() {
        true if is_own => runtime.and_then(|name| promised(info, name)).unwrap_or(Level::Full),
        true => Level::Full,
        false => Level::Reduced,
    };
    Strength { level, missing }
}

/// The level that a runtime of an engine's stands for, as far as its name or what is executed tells.
fn promised(info: &SystemInfo, name: &str) -> Option<Level> {
    let known = info.runtimes.iter().flatten().find(|(known, _)| *known == name);
    // Whatever it is called there: what is executed says what it is.
    let program = known.and_then(|(_, runtime)| Path::new(runtime.path.as_deref()?).file_name()?.to_str());
    let level =
        |name: &str| STRONGER.iter().find(|(known, _)| name.starts_with(known)).map(|(_, level)| *level);
    program.and_then(level).or_else(|| level(name))
}

/// What to do for want of a disk limit.
pub(super) const DISK_HINT: &str = "use an engine whose storage driver can (overlay2 on xfs with project quotas, btrfs, zfs), \
                                    or the runtime `native`, or go without";

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
        Ok(promised(&self.engine.info()?, name).is_some())
    }

    /// Refuses a disk limit where the engine would say yes to it and not keep it. Where it says no, it does so itself.
    pub(super) fn check_disk(&self, disk_bytes: Option<u64>) -> Result<()> {
        if disk_bytes.is_none() {
            return Ok(());
        }
        let info = self.engine.info()?;
        if !engine::has_snapshotter(&info) {
            return Ok(());
        }
        let message = format!("cannot enforce a disk limit here: {}; {DISK_HINT}", bounds_disks(&info).1);
        Err(Error::new(ErrorKind::Unsupported, message))
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
    if engine::has_snapshotter(info) {
        let detail =
            format!("containerd's store ({driver}) takes a limit (--storage-opt) and does not keep it");
        return (false, detail);
    }
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
        (driver != "overlay2").then_some(
            "digest, diff and recorded steps walk through the whole box; with the storage driver overlay2 they read what changed",
        ),
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
    use bollard::models::Runtime;

    #[test]
    fn only_a_kernel_that_is_another_one_is_a_wall() {
        let info = SystemInfo { kernel_version: Some("6.1.0-9".into()), ..SystemInfo::default() };
        let missing = || vec!["own uid range: x".to_owned(), "landlock: y".to_owned()];
        for (release, level) in
            [(None, Level::Reduced), (Some("6.1.0-9"), Level::Reduced), (Some("4.4.0"), Level::Full)]
        {
            assert_eq!(behind_kernel(release, None, &info, missing()).level, level, "{release:?}");
        }
        let more = vec!["own uid range: x".to_owned(), "engine's filter: z".to_owned()];
        let strength = behind_kernel(Some("4.4.0"), Some("runsc"), &info, more);
        assert_eq!((strength.level, strength.missing.len()), (Level::Reduced, 1));
        // An engine that does not say which kernel it has proves nothing.
        let silent = SystemInfo::default();
        assert_eq!(behind_kernel(Some("4.4.0"), Some("runsc"), &silent, missing()).level, Level::Reduced);
    }

    #[test]
    fn a_kernel_of_its_own_has_the_level_of_what_is_executed() {
        let program = |path: &str| Runtime { path: Some(path.into()), ..Runtime::default() };
        let runtimes = [
            ("walled", "/usr/bin/runsc"),
            ("runsc", "/usr/sbin/runc"),
            ("machine", "/opt/kata/bin/kata-runtime"),
            ("other", "/usr/bin/other"),
        ];
        let runtimes = runtimes.map(|(name, path)| (name.to_owned(), program(path))).into();
        let info = SystemInfo {
            kernel_version: Some("6.1.0-9".into()),
            runtimes: Some(runtimes),
            ..SystemInfo::default()
        };
        for (name, release, level) in [
            ("walled", "4.4.0", Level::Gvisor),
            ("walled", "6.1.0-9", Level::Full),
            ("machine", "6.12.0", Level::Vm),
            ("io.containerd.kata.v2", "6.12.0", Level::Vm),
            ("other", "6.12.0", Level::Full),
        ] {
            let strength = behind_kernel(Some(release), Some(name), &info, Vec::new());
            assert_eq!(strength.level, level, "{name} {release}");
        }
    }
}
