//! Processes of boxes, living or dead, the namespaces they are in, and who holds something of a home open.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{CGROUP, Leaks, list};

/// The guest's name, in its arguments and in the memory that it was executed from.
const GUEST: &str = "glass-guest";
/// The kinds of namespaces, as /proc/<pid>/ns calls them.
const NAMESPACES: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];

/// A process, as far as it can be seen.
struct Process {
    pid: u32,
    dir: PathBuf,
    comm: String,
    state: char,
    parent: u32,
    start: u64,
    command: Vec<String>,
}

/// Adds all processes that can be a box's, and all namespaces.
pub(super) fn look(home: &Path, leaks: &mut Leaks) {
    let own = std::process::id();
    let numbers =
        list(Path::new("/proc")).into_iter().filter_map(|path| path.file_name()?.to_str()?.parse().ok());
    for process in numbers.filter_map(Process::look) {
        if let Some(why) = process.suspicion() {
            leaks.add(process.name(), format!("{why}; {}", process.description()));
        }
        for link in NAMESPACES.iter().filter_map(|kind| read_link(&process.dir.join("ns").join(kind))) {
            leaks.add(format!("namespace {link}"), format!("of {}", process.description()));
        }
        if process.pid == own {
            // Its own descriptors are looked at one by one.
            continue;
        }
        for link in list(&process.dir.join("fd")).iter().filter_map(|path| read_link(path)) {
            if link.starts_with(&*home.to_string_lossy()) {
                leaks.add(format!("descriptor of {link} in {}", process.name()), process.description());
            } else if is_namespace(&link) {
                leaks.add(format!("namespace {link}"), format!("held open by {}", process.description()));
            }
        }
    }
}

impl Process {
    /// `None`: it is gone, or a thread of the kernel.
    fn look(pid: u32) -> Option<Process> {
        const KERNEL_THREADS: u32 = 2;
        let dir = Path::new("/proc").join(pid.to_string());
        let stat = std::fs::read(dir.join("stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat).into_owned();
        // The name may hold anything, also blanks and brackets.
        let (before, after) = stat.rsplit_once(')')?;
        let mut fields = after.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let start = fields.nth(17)?.parse().ok()?;
        let command = std::fs::read(dir.join("cmdline")).unwrap_or_default();
        let words = command.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let command: Vec<String> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let kernel = parent == KERNEL_THREADS && command.is_empty();
        let comm = before.split_once('(')?.1.to_owned();
        (!kernel).then_some(Process { pid, dir, comm, state, parent, start, command })
    }

    fn name(&self) -> String {
        format!("process {} (started at tick {})", self.pid, self.start)
    }

    fn description(&self) -> String {
        let Process { pid, comm, state, parent, command, .. } = self;
        format!("{comm:?} {command:?}, number {pid}, state {state}, child of {parent}")
    }

    /// Why it may be a box's.
    fn suspicion(&self) -> Option<&'static str> {
        let named = |text: &str| text.contains(GUEST);
        let first = self.command.first().map_or("", String::as_str);
        let file = |name: &str| std::fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        if self.state == 'Z' {
            return Some("nobody has collected it");
        }
        if named(first)
            || named(&self.comm)
            || read_link(&self.dir.join("exe")).is_some_and(|exe| named(&exe))
        {
            return Some("is a guest");
        }
        if Path::new(first).file_name() == Some(OsStr::from_bytes(b"glass")) {
            return Some("is the program");
        }
        if file("cgroup").contains(CGROUP) {
            return Some("is in a box's cgroup");
        }
        // One number for each level of process namespaces below ours.
        let inner = |line: &str| line.starts_with("NSpid:") && line.split_ascii_whitespace().count() > 2;
        file("status").lines().any(inner).then_some("is in a process namespace below ours")
    }
}

fn is_namespace(link: &str) -> bool {
    link.split_once(":[").is_some_and(|(kind, _)| NAMESPACES.contains(&kind))
}

fn read_link(path: &Path) -> Option<String> {
    Some(std::fs::read_link(path).ok()?.to_string_lossy().into_owned())
}
