//! What a box can leave behind, looked for where the kernel and the disk show it, and compared with what was there
//! before.
//!
//! Everything found has a name that is its own for ever (a process is its number and its start, a mount its line with
//! its id), so a comparison is a difference of sets, and what is left over reads as a list. What other programs of the
//! machine do is not looked at, except where a box could hide in it: a zombie may be anybody's.
//!
//! An ordinary user is shown less (not the namespaces and descriptors of a guest, but still every process). The tests
//! that run as one are looked at by root from outside afterwards.

mod processes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long what is on its way out may take: zombies that init has to collect, cgroups that the kernel lets go of.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);
/// How long to let others work between two looks.
const SETTLE_STEP: Duration = Duration::from_millis(2);
/// Directories of a home in which nothing may stay. Records and layers are kept by design.
const EMPTIED: [&str; 4] = ["boxes", "trash", "uids", "names"];
/// All that a home may hold at its top.
const TOP_LEVEL: [&str; 14] = [
    "lock",
    "store",
    "boxes",
    "names",
    "uids",
    "layers",
    "indexes",
    "snapshots",
    "images",
    "incoming",
    "traces",
    "blobs",
    "trash",
    "engine",
];
/// What the names of our cgroups begin with.
const CGROUP: &str = "glasshouse-";

/// All that could have been left behind, at one moment.
#[derive(Debug, Clone, Default)]
pub struct Leaks {
    /// What it is called, and what more is known of it.
    found: BTreeMap<String, String>,
}

impl Leaks {
    /// Looks, now, with this home.
    ///
    /// # Panics
    /// If /proc cannot be read.
    pub fn now(home: &Path) -> Leaks {
        let mut leaks = Leaks::default();
        processes::look(home, &mut leaks);
        leaks.mounts();
        leaks.cgroups();
        leaks.home(home);
        leaks.descriptors();
        leaks
    }

    /// What is there now and was not there then, a line each.
    pub fn since(&self, home: &Path) -> Vec<String> {
        let now = Leaks::now(home).found;
        let new = now.into_iter().filter(|(name, _)| !self.found.contains_key(name));
        new.map(|(name, detail)| if detail.is_empty() { name } else { format!("{name}: {detail}") }).collect()
    }

    /// Waits until nothing is there that was not there before.
    ///
    /// The kernel has no event for most of this, so it is looked at again and again, with a bound.
    pub fn settle(&self, home: &Path) -> Result<(), String> {
        self.settle_within(home, SETTLE_LIMIT)
    }

    /// The same with another bound.
    pub fn settle_within(&self, home: &Path, limit: Duration) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        loop {
            let left = self.since(home);
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("left behind:\n  {}", left.join("\n  ")));
            }
            std::thread::sleep(SETTLE_STEP);
        }
    }

    fn add(&mut self, name: String, detail: impl Into<String>) {
        self.found.entry(name).or_insert_with(|| detail.into());
    }

    fn mounts(&mut self) {
        for line in read("/proc/self/mountinfo").lines() {
            self.add(format!("mount {line}"), "");
        }
    }

    fn cgroups(&mut self) {
        let mountinfo = read("/proc/self/mountinfo");
        let points: BTreeSet<PathBuf> = mountinfo.lines().filter_map(cgroup_mount).collect();
        for point in points {
            self.cgroups_below(&point, false);
        }
    }

    /// `ours`: the directory is one of ours, or below one.
    fn cgroups_below(&mut self, dir: &Path, ours: bool) {
        // A cgroup may vanish while we look.
        let Ok(entries) = std::fs::read_dir(dir) else { return };
        for entry in entries.flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let ours = ours || entry.file_name().to_string_lossy().starts_with(CGROUP);
            if ours {
                let members = std::fs::read_to_string(entry.path().join("cgroup.procs")).unwrap_or_default();
                let members: Vec<&str> = members.split_ascii_whitespace().collect();
                self.add(format!("cgroup {}", entry.path().display()), format!("with processes {members:?}"));
            }
            self.cgroups_below(&entry.path(), ours);
        }
    }

    fn home(&mut self, home: &Path) {
        for path in list(home) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !TOP_LEVEL.contains(&name.as_str()) {
                self.add(format!("file {}", path.display()), "no part of a home");
            }
        }
        for dir in EMPTIED {
            for path in list(&home.join(dir)) {
                let what = match std::fs::read_link(&path) {
                    Ok(target) => format!("a link to {}", target.display()),
                    Err(_) => format!("holds {:?}", list(&path)),
                };
                self.add(format!("file {}", path.display()), what);
            }
        }
    }

    /// Of this very process.
    fn descriptors(&mut self) {
        for path in list(Path::new("/proc/self/fd")) {
            let Ok(target) = std::fs::read_link(&path) else { continue };
            // The one with which we list them.
            if target.starts_with("/proc") && target.ends_with("fd") {
                continue;
            }
            let number = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.add(format!("descriptor {number} of this process, {}", target.display()), "");
        }
    }
}

/// Where a control group hierarchy is mounted, if that is what the line says.
fn cgroup_mount(line: &str) -> Option<PathBuf> {
    let (before, after) = line.split_once(" - ")?;
    let kind = after.split(' ').next()?;
    let point = before.split(' ').nth(4)?;
    matches!(kind, "cgroup" | "cgroup2").then(|| point.into())
}

/// A file of /proc about ourselves, which is always there.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("cannot read {path}: {e}"))
}

/// What is in a directory; nothing if it is not there, or not for us.
fn list(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
