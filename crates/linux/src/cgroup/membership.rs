//! The cgroups that a process is in which somebody else has put there: a container engine.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use super::place::Mount;
use super::{Controller, named};

/// Where a process is, and the counters of what limits it there.
#[derive(Debug, Default)]
pub struct Membership {
    /// Its directory in the v2 tree, unless that is the top.
    pub v2: Option<PathBuf>,
    /// A file with the counter `oom_kill`.
    pub oom_events: Option<OwnedFd>,
    /// A file with the counter `max` of refused processes.
    pub pids_events: Option<OwnedFd>,
    /// A file with the most memory ever held.
    pub memory_peak: Option<OwnedFd>,
    /// The v1 directories that limit its memory and its CPU time.
    pub limited: Vec<Limited>,
}

/// Files that count what became of limits.
#[derive(Debug, Default)]
pub struct Counters {
    /// A file with the counter `oom_kill`.
    pub oom_events: Option<OwnedFd>,
    /// A file with the counter `max` of refused processes.
    pub pids_events: Option<OwnedFd>,
    /// A file with the most memory ever held.
    pub memory_peak: Option<OwnedFd>,
}

/// A v1 directory that limits a process.
#[derive(Debug)]
pub struct Limited {
    /// Its `tasks` file, to enter it by.
    pub tasks: OwnedFd,
    above: PathBuf,
}

impl Limited {
    /// Moves a process out of it, to the directory above.
    pub fn leave(&self, pid: i32) -> io::Result<()> {
        let procs = self.above.join("cgroup.procs");
        named(&procs, fs::write(&procs, pid.to_string()))
    }
}

/// Looks where a process of this host is.
pub fn of_process(pid: i32) -> io::Result<Membership> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let own = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let mounts: Vec<Mount<'_>> = mounts.lines().filter_map(Mount::parse).collect();
    let v2 = mounts.iter().find(|mount| mount.kind == "cgroup2").and_then(|mount| {
        let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        below(mount, path).filter(|dir| *dir != mount.point)
    });
    let v1 = |controller: Controller| {
        let mount = mounts.iter().find(|mount| mount.has_v1(controller))?;
        below(mount, path_of(&own, controller)?)
    };
    let Counters { oom_events, pids_events, memory_peak } = counters(v1, v2.as_deref());
    let mut limited = Vec::new();
    for controller in [Controller::Memory, Controller::Cpu] {
        let top = mounts.iter().find(|mount| mount.has_v1(controller)).map(|mount| mount.point.as_path());
        let Some(dir) = v1(controller).filter(|dir| Some(dir.as_path()) != top) else { continue };
        // An ordinary user may not; then it stays where it is.
        if let (Ok(tasks), Some(above)) = (File::options().write(true).open(dir.join("tasks")), dir.parent())
        {
            limited.push(Limited { tasks: tasks.into(), above: above.to_owned() });
        }
    }
    Ok(Membership { limited, oom_events, pids_events, memory_peak, v2 })
}

/// The counters of what limits this process, as far as it sees its cgroups. In a cgroup namespace of its own, where it is
/// looks like the top.
pub fn own_counters() -> io::Result<Counters> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let mounts: Vec<Mount<'_>> = mounts.lines().filter_map(Mount::parse).collect();
    let v2 = mounts.iter().find(|mount| mount.kind == "cgroup2").and_then(|mount| {
        let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        below(mount, path)
    });
    let v1 = |controller: Controller| {
        let mount = mounts.iter().find(|mount| mount.has_v1(controller))?;
        below(mount, path_of(&own, controller)?)
    };
    Ok(counters(v1, v2.as_deref()))
}

/// Opens the counters, where each controller is. Older kernels lack some of them; what they would tell is then not told.
fn counters(v1: impl Fn(Controller) -> Option<PathBuf>, v2: Option<&Path>) -> Counters {
    let open = |controller: Controller, in_v1: &str, in_v2: &str| {
        let file = match (v1(controller), v2) {
            (Some(dir), _) => dir.join(in_v1),
            (None, Some(dir)) => dir.join(in_v2),
            (None, None) => return None,
        };
        File::open(file).ok().map(OwnedFd::from)
    };
    Counters {
        oom_events: open(Controller::Memory, "memory.oom_control", "memory.events"),
        pids_events: open(Controller::Pids, "pids.events", "pids.events"),
        memory_peak: open(Controller::Memory, "memory.max_usage_in_bytes", "memory.peak"),
    }
}

/// The path of a v1 controller in the text of /proc/PID/cgroup.
fn path_of(own: &str, controller: Controller) -> Option<&str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let controllers = parts.nth(1)?;
        controllers.split(',').any(|name| name == controller.name()).then(|| parts.next()).flatten()
    })
}

/// The directory of a tree that a path of /proc/PID/cgroup means, where it is mounted here.
fn below(mount: &Mount<'_>, path: &str) -> Option<PathBuf> {
    let rest = Path::new(path).strip_prefix(&mount.root).ok()?;
    rest.components().all(|part| matches!(part, Component::Normal(_))).then(|| match rest.as_os_str() {
        rest if rest.is_empty() => mount.point.clone(),
        rest => mount.point.join(rest),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "4:memory:/docker/ab\n3:cpu,cpuacct:/x\n1:name=systemd:/\n0::/y/z\n";

    #[test]
    fn each_controller_has_its_own_path() {
        assert_eq!(path_of(OWN, Controller::Memory), Some("/docker/ab"));
        assert_eq!(path_of(OWN, Controller::Cpu), Some("/x"));
        assert_eq!(path_of(OWN, Controller::Pids), None);
    }

    #[test]
    fn a_path_is_looked_for_where_its_tree_is_mounted() {
        let line = "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        let mount = Mount::parse(line).unwrap();
        assert_eq!(below(&mount, "/y/z"), Some("/sys/fs/cgroup/y/z".into()));
        assert_eq!(below(&mount, "/"), Some("/sys/fs/cgroup".into()));
        // Of a process that is outside of what our cgroup namespace shows.
        assert_eq!(below(&mount, "/../y"), None);
    }

    #[test]
    fn we_are_somewhere_ourselves() {
        of_process(std::process::id() as i32).unwrap();
    }
}
