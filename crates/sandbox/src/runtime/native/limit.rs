//! Limits: which of them this host can enforce, by what, and what is done about the rest.
//!
//! A limit that was asked for is enforced or refused. A default falls back to the next best means, and is told as what
//! it is.

use glasshouse_linux::cgroup::{Controller, Limits as CgroupLimits, Trees, Version};
use glasshouse_linux::rustix;
use glasshouse_linux::rustix::process::Resource;
use glasshouse_protocol::{Rlimit, RlimitKind};

use crate::error::{Error, ErrorKind, Result};
use crate::limits::{DISK_RESERVE_BYTES, MEMORY_BYTES, MEMORY_BYTES_MIN, PIDS, PIDS_MIN};
use crate::spec::{LimitInForce, Limits, SandboxSpec};

/// A file costs at least this much of a disk in memory, so so many fit.
const BYTES_PER_INODE: u64 = 4096;

/// What was decided.
#[derive(Debug, Default)]
pub(super) struct Decided {
    pub(super) cgroup: CgroupLimits,
    pub(super) rlimits: Vec<Rlimit>,
    /// The root's top lies in memory: bytes and files.
    pub(super) memory_top: Option<(u64, u64)>,
    pub(super) disk_reserve_bytes: Option<u64>,
    pub(super) in_force: Vec<LimitInForce>,
}

impl Decided {
    /// What is left of the box's memory when its disk is full, where the whole is limited.
    pub(super) fn memory_beside_disk(&self) -> Option<u64> {
        let disk = self.memory_top.map_or(0, |(bytes, _)| bytes);
        self.cgroup.memory_bytes.map(|bytes| bytes.saturating_sub(disk))
    }

    fn say(
        &mut self,
        name: &str,
        amount: Option<u64>,
        value: impl Into<String>,
        mechanism: impl Into<String>,
    ) {
        let (value, mechanism) = (value.into(), mechanism.into());
        self.in_force.push(LimitInForce { name: name.into(), value, amount, mechanism });
    }
}

/// Decides, or refuses with the reason.
pub(super) fn decide(trees: &Trees, spec: &SandboxSpec) -> Result<Decided> {
    let mut decided = Decided::default();
    memory(trees, &spec.limits, &mut decided)?;
    cpu(trees, &spec.limits, &mut decided)?;
    pids(trees, &spec.limits, &mut decided)?;
    disk(&spec.limits, &mut decided)?;
    decided.in_force.extend(guest_limits(&spec.limits));
    Ok(decided)
}

/// The limits that the guest itself sees to, on every runtime.
pub(crate) fn guest_limits(limits: &Limits) -> Vec<LimitInForce> {
    let say = |name: &str, amount: Option<u64>, value: Option<String>, mechanism: &str| LimitInForce {
        name: name.into(),
        amount,
        mechanism: if value.is_some() { mechanism.into() } else { "not asked for".into() },
        value: value.unwrap_or_else(|| "none".into()),
    };
    let ms = |time: Option<std::time::Duration>| time.map(|time| time.as_millis() as u64);
    let kept = limits.output_bytes.unwrap_or(glasshouse_protocol::limits::KEPT_OUTPUT_BYTES);
    vec![
        say(
            "output",
            Some(kept),
            Some(format!("{} kept", bytes(kept))),
            "guest: head and tail are kept, the rest is counted",
        ),
        say(
            "timeout",
            ms(limits.timeout),
            limits.timeout.map(|t| format!("{t:?}")),
            "guest: TERM, grace, then the command's whole tree",
        ),
        say(
            "ttl",
            ms(limits.ttl),
            limits.ttl.map(|t| format!("{t:?}")),
            "guest: the box's first process ends, and all with it",
        ),
    ]
}

/// What we may not exceed ourselves, and so cannot give.
fn hard(resource: Resource) -> u64 {
    rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX)
}

fn refused(what: &str, why: &str, help: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("cannot enforce {what} here: {why}; {help}"))
}

const CGROUP_HELP: &str =
    "run as root, or in a cgroup of your own (`systemd-run --user --scope`), or without this option";

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

fn version_words(controller: Controller, version: Version) -> String {
    format!("cgroup {} {}", if version == Version::V1 { "v1" } else { "v2" }, controller.name())
}

fn memory(trees: &Trees, limits: &Limits, decided: &mut Decided) -> Result<()> {
    let asked = limits.memory_bytes;
    if asked.is_some_and(|bytes| bytes < MEMORY_BYTES_MIN) {
        return Err(invalid(format!("a box needs at least {} of memory", bytes(MEMORY_BYTES_MIN))));
    }
    // A disk in memory counts as memory of the box.
    let default = MEMORY_BYTES.saturating_add(limits.disk_bytes.unwrap_or(0));
    let amount = asked.unwrap_or(default);
    match trees.controller(Controller::Memory) {
        Ok(version) => {
            decided.cgroup.memory_bytes = Some(amount);
            decided.say("memory", Some(amount), bytes(amount), version_words(Controller::Memory, version));
        }
        Err(why) if asked.is_some() => return Err(refused("a memory limit", why, CGROUP_HELP)),
        Err(why) => {
            let amount = MEMORY_BYTES.min(hard(Resource::Data));
            decided.rlimits.push(Rlimit { kind: RlimitKind::DataBytes, value: amount });
            let value = format!("{} per process", bytes(amount));
            decided.say("memory", Some(amount), value, format!("rlimit (no cgroup: {why})"));
        }
    }
    Ok(())
}

fn cpu(trees: &Trees, limits: &Limits, decided: &mut Decided) -> Result<()> {
    let Some(cpus) = limits.cpus else {
        decided.say("cpu", None, "none", "not asked for");
        return Ok(());
    };
    if !(0.01..=100_000.0).contains(&cpus) {
        return Err(invalid(format!("{cpus} is no number of CPUs; say something like 0.5 or 2")));
    }
    match trees.controller(Controller::Cpu) {
        Ok(version) => {
            decided.cgroup.cpus = Some(cpus);
            let milli = (cpus * 1000.0) as u64;
            decided.say("cpu", Some(milli), format!("{cpus} CPUs"), version_words(Controller::Cpu, version));
            Ok(())
        }
        Err(why) => Err(refused("a CPU limit", why, CGROUP_HELP)),
    }
}

fn pids(trees: &Trees, limits: &Limits, decided: &mut Decided) -> Result<()> {
    let amount = limits.pids.unwrap_or(PIDS);
    if amount < PIDS_MIN {
        return Err(invalid(format!("a box needs at least {PIDS_MIN} processes: its guest and a command")));
    }
    match trees.controller(Controller::Pids) {
        Ok(version) => {
            decided.cgroup.pids = Some(amount);
            decided.say("pids", Some(amount), amount.to_string(), version_words(Controller::Pids, version));
        }
        // Since 5.14 the kernel counts this per user namespace, and the box has its own with one user in it.
        Err(_) => {
            let most = hard(Resource::Nproc);
            if limits.pids.is_some_and(|asked| asked > most) {
                let why = format!("your own limit is {most} processes (ulimit -Hu)");
                return Err(refused("this limit of processes", &why, "ask for less, or run as root"));
            }
            let amount = amount.min(most);
            decided.rlimits.push(Rlimit { kind: RlimitKind::Processes, value: amount });
            decided.say("pids", Some(amount), amount.to_string(), "rlimit of the box's one user");
        }
    }
    Ok(())
}

fn disk(limits: &Limits, decided: &mut Decided) -> Result<()> {
    let Some(amount) = limits.disk_bytes else {
        decided.disk_reserve_bytes = Some(DISK_RESERVE_BYTES);
        let mechanism = format!(
            "guest: commands are ended when the disk has less than {} left",
            bytes(DISK_RESERVE_BYTES)
        );
        decided.say("disk", None, "none", mechanism);
        return Ok(());
    };
    if amount < 1 << 20 {
        return Err(invalid("a disk of less than 1 MiB is of no use"));
    }
    if limits.memory_bytes.is_some_and(|memory| memory <= amount) {
        let why = "the disk would lie in memory (tmpfs) and count as such, and be larger than --memory";
        return Err(refused("this disk limit", why, "raise --memory above --disk"));
    }
    let half = rustix::system::sysinfo();
    let half = half.totalram * u64::from(half.mem_unit) / 2;
    if amount > half {
        let why =
            format!("the disk would lie in memory (tmpfs), and this host has {} of it", bytes(half * 2));
        return Err(refused("this disk limit", &why, &format!("ask for at most {}", bytes(half))));
    }
    decided.memory_top = Some((amount, (amount / BYTES_PER_INODE).max(1024)));
    decided.say("disk", Some(amount), bytes(amount), "tmpfs: the box's changes lie in memory");
    Ok(())
}

/// A size as people write it.
pub(crate) fn bytes(amount: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| amount >= *unit) {
        Some((unit, name)) if amount.is_multiple_of(*unit) => format!("{} {name}", amount / unit),
        Some((unit, name)) => format!("{:.1} {name}", amount as f64 / *unit as f64),
        None => format!("{amount} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide_without_cgroups(limits: Limits) -> Result<Decided> {
        decide(&Trees::default(), &SandboxSpec { limits, ..SandboxSpec::default() })
    }

    #[test]
    fn defaults_fall_back_and_say_so() {
        let decided = decide_without_cgroups(Limits::default()).unwrap();
        let kinds: Vec<_> = decided.rlimits.iter().map(|limit| limit.kind).collect();
        assert_eq!(kinds, [RlimitKind::DataBytes, RlimitKind::Processes]);
        let memory = decided.in_force.iter().find(|limit| limit.name == "memory").unwrap();
        assert!(memory.mechanism.starts_with("rlimit"), "{}", memory.mechanism);
    }

    #[test]
    fn what_was_asked_for_and_cannot_be_enforced_is_refused() {
        for limits in [
            Limits { memory_bytes: Some(1 << 30), ..Limits::default() },
            Limits { cpus: Some(1.0), ..Limits::default() },
        ] {
            assert_eq!(decide_without_cgroups(limits).unwrap_err().kind(), ErrorKind::Unsupported);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for limits in [
            Limits { memory_bytes: Some(1), ..Limits::default() },
            Limits { cpus: Some(f64::NAN), ..Limits::default() },
            Limits { cpus: Some(-1.0), ..Limits::default() },
            Limits { pids: Some(0), ..Limits::default() },
            Limits { disk_bytes: Some(5), ..Limits::default() },
        ] {
            assert_eq!(
                decide_without_cgroups(limits.clone()).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{limits:?}"
            );
        }
    }

    #[test]
    fn a_disk_larger_than_the_memory_it_lies_in_is_refused() {
        let limits = Limits { memory_bytes: Some(64 << 20), disk_bytes: Some(64 << 20), ..Limits::default() };
        let error = decide(&Trees::default(), &SandboxSpec { limits, ..SandboxSpec::default() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn sizes_read_well() {
        let check = |amount, expected: &str| assert_eq!(bytes(amount), expected);
        check(512 << 20, "512 MiB");
        check(3 << 29, "1.5 GiB");
        check(17, "17 bytes");
    }
}
