//! Facts of the machine that figures mean nothing without.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::floor::Floor;

/// What figures depend on.
#[derive(Debug)]
pub(crate) struct Machine {
    kernel: String,
    cpu: String,
    cores: usize,
    memory_mib: u64,
    /// Where the homes are: file system and device.
    disk: String,
    cgroups: String,
    floor: Floor,
    /// Versions of the contenders.
    programs: Vec<(&'static str, String)>,
}

impl Machine {
    pub(crate) fn look(home: &Path) -> Result<Machine> {
        let kernel =
            fs::read_to_string("/proc/sys/kernel/osrelease").context("cannot read the kernel's version")?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
        let field = |path: &str, name: &str| {
            let text = fs::read_to_string(path).ok()?;
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal").unwrap_or_default();
        let memory_kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
        Ok(Machine {
            kernel: kernel.trim().to_owned(),
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            memory_mib: memory_kib / 1024,
            disk: disk_of(&mounts, home).unwrap_or_else(|| "unknown".into()),
            cgroups: cgroups_in(&mounts).into(),
            floor: Floor::measure()?,
            programs: ["bwrap", "runc", "crun", "docker"]
                .into_iter()
                .map(|name| (name, version(name)))
                .collect(),
        })
    }

    /// A few lines that say it all.
    pub(crate) fn lines(&self) -> Vec<String> {
        let programs: Vec<String> =
            self.programs.iter().map(|(name, version)| format!("{name} {version}")).collect();
        let build = if cfg!(debug_assertions) { "DEBUG BUILD: figures mean little" } else { "release build" };
        vec![
            format!("kernel {}, {} cores ({}), {} MiB", self.kernel, self.cores, self.cpu, self.memory_mib),
            format!("home on {}, {}, {build}", self.disk, self.cgroups),
            self.floor.line(),
            programs.join(", "),
        ]
    }

    pub(crate) fn to_json(&self) -> Value {
        let programs: serde_json::Map<String, Value> =
            self.programs.iter().map(|(name, version)| ((*name).to_owned(), json!(version))).collect();
        json!({
            "kernel": self.kernel, "cpu": self.cpu, "cores": self.cores, "memory_mib": self.memory_mib,
            "disk": self.disk, "cgroups": self.cgroups, "programs": programs,
            "page_ns": self.floor.fault.as_nanos() as u64, "wake_ns": self.floor.wake.as_nanos() as u64,
            "release": !cfg!(debug_assertions),
        })
    }
}

/// The load averages.
pub(crate) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let averages: Vec<&str> = text.split_whitespace().take(3).collect();
    averages.join(" ")
}

pub(crate) fn is_root() -> Result<bool> {
    Ok(fs::metadata("/proc/self").context("cannot read /proc")?.uid() == 0)
}

/// The file system that a path lies on: the last of the longest mount points above it.
pub(crate) fn disk_of(mounts: &str, path: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let point = left.split(' ').nth(4)?.to_owned();
        let mut right = right.split(' ');
        let (kind, device) = (right.next()?, right.next()?);
        path.starts_with(&point).then(|| (point.len(), format!("{kind} ({device})")))
    };
    mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length).map(|(_, disk)| disk)
}

fn cgroups_in(mounts: &str) -> &'static str {
    let has = |kind: &str| mounts.lines().any(|line| line.contains(&format!(" - {kind} ")));
    match (has("cgroup"), has("cgroup2")) {
        (true, true) => "cgroups v1 and v2 (hybrid)",
        (true, false) => "cgroups v1",
        (false, true) => "cgroups v2",
        (false, false) => "no cgroups",
    }
}

fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output();
    let Ok(output) = output else { return "not installed".into() };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let digits = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
    text.split_whitespace().find(digits).unwrap_or("of unknown version").trim_end_matches(',').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
        30 22 0:25 / /var/tmp rw - tmpfs none rw\n\
        31 22 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    #[test]
    fn a_path_lies_on_the_nearest_mount_above_it() {
        assert_eq!(disk_of(MOUNTS, Path::new("/var/tmp/x")).unwrap(), "tmpfs (none)");
        assert_eq!(disk_of(MOUNTS, Path::new("/var/lib")).unwrap(), "ext4 (/dev/vda)");
    }

    #[test]
    fn kinds_of_cgroups_are_told_apart() {
        assert_eq!(cgroups_in(MOUNTS), "cgroups v1");
        assert_eq!(cgroups_in("1 2 0:1 / /c rw - cgroup2 none rw"), "cgroups v2");
    }
}
