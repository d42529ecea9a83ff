//! Control groups, v1, v2 and both at once, chosen controller by controller.
//!
//! A box has one directory in the v2 tree if there is one (to start, freeze, kill and time commands exactly, which
//! works there even without controllers), and one in the tree of each controller that limits it: the v2 tree again
//! where it has that controller, else the controller's v1 tree.
//!
//! The trap: writing a pid to `cgroup.procs` waits for a grace period of the whole machine, 5 to 15 ms on a stock
//! host. So nobody does. A v2 cgroup is entered at birth (`CLONE_INTO_CGROUP`), a v1 cgroup by the process itself,
//! which writes `0` to `tasks`. The one exception is the first process of a box that the v2 tree limits, which has to
//! get out of the way once: see [`Trees::divide`].

mod membership;
mod place;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

pub use membership::{Counters, Limited, Membership, of_process, own_counters};
use place::{Mount, enable};

/// What a controller controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Memory.
    Memory,
    /// Processes.
    Pids,
    /// CPU time.
    Cpu,
}

impl Controller {
    const ALL: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Cpu => "cpu",
        }
    }
}

/// Which of the two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One tree a controller.
    V1,
    /// One tree.
    V2,
}

/// What a box is held to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limits {
    /// Memory, swap included.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// CPUs, as a fraction.
    pub cpus: Option<f64>,
}

/// Where boxes' cgroups can be made on this host.
#[derive(Debug, Clone, Default)]
pub struct Trees {
    v2: Option<PathBuf>,
    controllers: Vec<(Controller, Version, PathBuf)>,
    reasons: Vec<(Controller, String)>,
    v2_reason: String,
    /// Processes have to make room before the v2 tree hands controllers down.
    crowded: bool,
}

impl Trees {
    /// Looks where we may make cgroups, below a directory `name` of our own in each tree.
    pub fn discover(name: &str) -> io::Result<Trees> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let mut trees = Trees { v2_reason: "no cgroup v2 tree is mounted".into(), ..Trees::default() };
        if let Some(mount) = mounts.lines().filter_map(Mount::parse).find(|m| m.kind == "cgroup2") {
            let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
            match place::find(&mount, &own) {
                Ok(dir) => trees.take_v2(&dir, dir.join(name)),
                Err(e) => {
                    let tree = mount.point.display();
                    trees.v2_reason =
                        format!("no directory of {tree} on the way to our own is this user's ({e})");
                }
            }
        }
        for controller in Controller::ALL {
            if trees.controllers.iter().any(|(c, ..)| *c == controller) {
                continue;
            }
            let v1 = mounts.lines().filter_map(Mount::parse).find(|m| m.has_v1(controller));
            let reason = match v1.map(|mount| place::may_make(&mount.point).map(|()| mount.point.join(name)))
            {
                Some(Ok(dir)) => {
                    trees.controllers.push((controller, Version::V1, dir));
                    continue;
                }
                Some(Err(e)) => format!("this user may not make cgroups ({e})"),
                None if trees.v2.is_some() => "the controller is not enabled in the cgroup v2 tree".into(),
                None => trees.v2_reason.clone(),
            };
            trees.reasons.push((controller, reason));
        }
        Ok(trees)
    }

    fn take_v2(&mut self, root: &Path, dir: PathBuf) {
        let available = place::controllers(root, "cgroup.controllers");
        let given = place::controllers(root, "cgroup.subtree_control");
        let missing: Vec<_> = available.iter().copied().filter(|c| !given.contains(c)).collect();
        self.crowded = !missing.is_empty() && place::is_crowded(root);
        // Usually they are handed down already.
        let usable = if self.crowded || missing.is_empty() {
            available
        } else {
            // Where that is refused, the look that follows says so.
            let _ = enable(root, &missing);
            place::controllers(root, "cgroup.subtree_control")
        };
        self.controllers.extend(usable.into_iter().map(|controller| (controller, Version::V2, dir.clone())));
        self.v2 = Some(dir);
    }

    /// Whether a limit on this can be enforced: by which interface, or why not.
    pub fn controller(&self, controller: Controller) -> Result<Version, &str> {
        if let Some((_, version, _)) = self.controllers.iter().find(|(c, ..)| *c == controller) {
            return Ok(*version);
        }
        let reason = self.reasons.iter().find(|(c, _)| *c == controller);
        Err(reason.map_or("no such controller is mounted", |(_, reason)| reason))
    }

    /// Whether commands can be tracked by cgroup, or why not.
    pub fn tracking(&self) -> Result<(), &str> {
        if self.v2.is_some() { Ok(()) } else { Err(&self.v2_reason) }
    }

    fn dirs(&self) -> Vec<&Path> {
        let mut dirs: Vec<&Path> = self.v2.iter().map(PathBuf::as_path).collect();
        for (_, _, dir) in &self.controllers {
            if !dirs.contains(&dir.as_path()) {
                dirs.push(dir);
            }
        }
        dirs
    }

    /// The names of all boxes that have a cgroup.
    pub fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for dir in self.dirs() {
            let entries = match fs::read_dir(dir) {
                // No box has needed it yet.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_dir()
                    && let Ok(name) = entry.file_name().into_string()
                    && !names.contains(&name)
                {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    /// Makes a box's cgroups and sets its limits. What was made is removed again if a step fails.
    pub fn create(&self, name: &str, limits: Limits) -> io::Result<Group> {
        let group = self.group(name);
        match self.fill(name, limits) {
            Ok(()) => Ok(group),
            Err(e) => {
                let _ = group.remove();
                Err(e)
            }
        }
    }

    fn fill(&self, name: &str, limits: Limits) -> io::Result<()> {
        if let Some(parent) = &self.v2 {
            let limited = !self.limited_by_v2(limits).is_empty();
            if let (true, true, Some(place)) = (limited, self.crowded, parent.parent()) {
                place::clear(place)?;
                enable(place, &place::controllers(place, "cgroup.controllers"))?;
            }
            self.make(parent, name)?;
            for part in [COMMANDS, FIRST] {
                if limited {
                    let dir = parent.join(name).join(part);
                    named(&dir, fs::create_dir(&dir))?;
                }
            }
        }
        for (controller, version, parent) in &self.controllers {
            let files = limits.files(*controller, *version);
            // What is not limited needs no directory of its own.
            if *version == Version::V1 && !files.is_empty() {
                self.make(parent, name)?;
                write_all(&parent.join(name), files)?;
            }
        }
        Ok(())
    }

    fn limited_by_v2(&self, limits: Limits) -> Vec<Controller> {
        let limited = |(controller, version, _): &&(Controller, Version, PathBuf)| {
            *version == Version::V2 && !limits.files(*controller, *version).is_empty()
        };
        self.controllers.iter().filter(limited).map(|(controller, ..)| *controller).collect()
    }

    /// Sets the limits of a box in the v2 tree, once its first process has left the directory where it was born.
    ///
    /// Its commands have a directory of their own there, and the first process another: what the commands use up must
    /// not be the end of who has to tell of it. Both lie below the one that the box sees as the top of the tree. That
    /// can only be the one where its first process was when it got its cgroup namespace, and with `nsdelegate`, as
    /// systemd mounts the tree, nobody may be born outside of it; but what has processes hands no controllers down.
    /// Hence the order: born at the top, namespace, one down, and only then the limits.
    pub fn divide(&self, name: &str, limits: Limits) -> io::Result<()> {
        let controllers = self.limited_by_v2(limits);
        let Some(dir) = self.v2.as_ref().filter(|_| !controllers.is_empty()).map(|dir| dir.join(name)) else {
            return Ok(());
        };
        enable(&dir, &controllers)?;
        for controller in controllers {
            write_all(&dir.join(COMMANDS), limits.files(controller, Version::V2))?;
        }
        Ok(())
    }

    /// Makes a box's directory, and the one above it if this is the only box.
    fn make(&self, parent: &Path, name: &str) -> io::Result<()> {
        let dir = parent.join(name);
        for _ in 0..MAKE_ATTEMPTS {
            match fs::create_dir(parent) {
                Ok(()) if self.v2.as_deref() == Some(parent) => {
                    // What is refused here is refused again, and told, where a limit needs it.
                    let _ = enable(parent, &place::controllers(parent, "cgroup.controllers"));
                }
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return named(parent, Err(e)),
            }
            match fs::create_dir(&dir) {
                // Whoever removed the last box took the parent along in this moment.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                made => return named(&dir, made),
            }
        }
        named(&dir, Err(io::ErrorKind::NotFound.into()))
    }

    /// The cgroups of a box that may or may not exist.
    pub fn group(&self, name: &str) -> Group {
        Group {
            v2: self.v2.as_ref().map(|dir| dir.join(name)),
            controllers: self.controllers.iter().map(|(c, v, dir)| (*c, *v, dir.join(name))).collect(),
            dirs: self.dirs().into_iter().map(|dir| dir.join(name)).collect(),
        }
    }
}

fn named<T>(path: &Path, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}

/// The directory of a box's commands, where the v2 tree limits them.
const COMMANDS: &str = "commands";
/// The directory of a box's first process, beside it.
const FIRST: &str = "first";

/// How often a box's directory is tried again when somebody removes the one above it.
const MAKE_ATTEMPTS: usize = 100;

fn write_all(dir: &Path, files: Vec<(&'static str, String)>) -> io::Result<()> {
    for (file, value) in files {
        let path = dir.join(file);
        match fs::write(&path, &value) {
            // Swap accounting is a kernel option; without swap there is nothing to limit.
            Err(e) if file.contains("sw") && e.kind() == io::ErrorKind::NotFound => {}
            other => named(&path, other)?,
        }
    }
    Ok(())
}

impl Limits {
    fn files(&self, controller: Controller, version: Version) -> Vec<(&'static str, String)> {
        let mut files = Vec::new();
        match (controller, version) {
            (Controller::Memory, Version::V1) => {
                if let Some(bytes) = self.memory_bytes {
                    files.push(("memory.limit_in_bytes", bytes.to_string()));
                    files.push(("memory.memsw.limit_in_bytes", bytes.to_string()));
                }
            }
            (Controller::Memory, Version::V2) => {
                if let Some(bytes) = self.memory_bytes {
                    files.push(("memory.max", bytes.to_string()));
                    files.push(("memory.swap.max", "0".into()));
                }
            }
            (Controller::Pids, _) => {
                if let Some(pids) = self.pids {
                    files.push(("pids.max", pids.to_string()));
                }
            }
            (Controller::Cpu, version) => {
                if let Some(cpus) = self.cpus {
                    let quota = ((cpus * PERIOD_US as f64) as u64).max(1000);
                    match version {
                        Version::V1 => {
                            files.push(("cpu.cfs_period_us", PERIOD_US.to_string()));
                            files.push(("cpu.cfs_quota_us", quota.to_string()));
                        }
                        Version::V2 => files.push(("cpu.max", format!("{quota} {PERIOD_US}"))),
                    }
                }
            }
        }
        files
    }
}

const PERIOD_US: u64 = 100_000;

/// The way into a v1 cgroup, and out again.
#[derive(Debug)]
pub struct Tasks {
    /// Whose.
    pub controller: Controller,
    /// The box's own `tasks`.
    pub own: OwnedFd,
    /// That of the directory above, where nothing is limited.
    pub above: OwnedFd,
}

/// The places of a box in the v2 tree.
#[derive(Debug)]
pub struct Places {
    /// The directory where the first process is born.
    pub birth: OwnedFd,
    /// The directory where it may make directories for commands.
    pub commands: OwnedFd,
    /// The way into the directory where the first process lives, if the box is limited there.
    pub first: Option<OwnedFd>,
}

/// The cgroups of one box.
#[derive(Debug, Clone)]
pub struct Group {
    v2: Option<PathBuf>,
    controllers: Vec<(Controller, Version, PathBuf)>,
    dirs: Vec<PathBuf>,
}

impl Group {
    /// The box's places in the v2 tree, given to `owner`.
    pub fn track(&self, owner: u32) -> io::Result<Option<Places>> {
        let Some(dir) = &self.v2 else {
            return Ok(None);
        };
        let limited = dir.join(COMMANDS).is_dir();
        let commands = if limited { dir.join(COMMANDS) } else { dir.clone() };
        // Whoever moves from one place to the other needs the right to at the place above both.
        let mut given = vec![dir.clone(), dir.join("cgroup.procs"), commands.clone()];
        given.extend(
            ["cgroup.procs", "cgroup.threads", "cgroup.subtree_control"].map(|file| commands.join(file)),
        );
        for path in given {
            named(&path, give(&path, owner))?;
        }
        let first = dir.join(FIRST).join("cgroup.procs");
        let first = limited.then(|| named(&first, OpenOptions::new().write(true).open(&first)));
        Ok(Some(Places {
            birth: File::open(dir)?.into(),
            // Held for the life of the box; the others are closed before any command starts.
            commands: alone(&commands)?,
            first: first.transpose()?.map(OwnedFd::from),
        }))
    }

    /// The `tasks` files of the v1 controllers that limit the box, each with that of the place above.
    pub fn tasks(&self) -> io::Result<Vec<Tasks>> {
        let open = |path: &Path| named(path, OpenOptions::new().write(true).open(path)).map(OwnedFd::from);
        let mut files = Vec::new();
        for (controller, version, dir) in &self.controllers {
            // What is not limited has no directory.
            if *version == Version::V1 && dir.is_dir() {
                let above = dir.parent().unwrap_or(dir).join("tasks");
                files.push(Tasks {
                    controller: *controller,
                    own: open(&dir.join("tasks"))?,
                    above: open(&above)?,
                });
            }
        }
        Ok(files)
    }

    /// The file that counts how often a limit of a v1 tree struck. Those of the v2 tree are beside the commands.
    pub fn events(&self, controller: Controller) -> io::Result<Option<OwnedFd>> {
        self.open(
            controller,
            match controller {
                Controller::Memory => "memory.oom_control",
                Controller::Pids => "pids.events",
                Controller::Cpu => "cpu.stat",
            },
        )
    }

    /// The file of a v1 tree with the most memory ever held.
    pub fn memory_peak(&self) -> io::Result<Option<OwnedFd>> {
        self.open(Controller::Memory, "memory.max_usage_in_bytes")
    }

    fn open(&self, controller: Controller, file: &str) -> io::Result<Option<OwnedFd>> {
        let v1 = self.controllers.iter().find(|(c, version, _)| *c == controller && *version == Version::V1);
        let Some((_, _, dir)) = v1 else {
            return Ok(None);
        };
        match File::open(dir.join(file)) {
            // Older kernels lack some of the counters; what they would tell is then not told.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            other => Ok(Some(other?.into())),
        }
    }

    /// The directory in the v2 tree.
    pub fn tracked(&self) -> Option<&Path> {
        self.v2.as_deref()
    }

    /// The same with this directory in the v2 tree, where somebody made it who looked from elsewhere.
    #[must_use]
    pub fn at(mut self, dir: PathBuf) -> Group {
        if !self.dirs.contains(&dir) {
            self.dirs.push(dir.clone());
        }
        self.v2 = Some(dir);
        self
    }

    /// Kills every process in the v2 directory and below.
    pub fn kill(&self) -> io::Result<()> {
        match &self.v2 {
            Some(dir) => match fs::write(dir.join("cgroup.kill"), "1") {
                // Gone, or going: somebody else removes it.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => Ok(()),
                other => other,
            },
            None => Ok(()),
        }
    }

    /// Stops or lets go every process in the v2 directory and below.
    pub fn freeze(&self, frozen: bool) -> io::Result<()> {
        match &self.v2 {
            Some(dir) => fs::write(dir.join("cgroup.freeze"), if frozen { "1" } else { "0" }),
            None => Err(io::Error::from_raw_os_error(libc::ENOTSUP)),
        }
    }

    /// Whether any of the directories is there.
    pub fn exists(&self) -> bool {
        self.dirs.iter().any(|dir| dir.exists())
    }

    /// Removes the directories and those below, and the ones above if this was the last box. Missing is no error; a
    /// busy one is.
    pub fn remove(&self) -> io::Result<()> {
        for dir in &self.dirs {
            remove_below(dir)?;
            if let Some(parent) = dir.parent() {
                // Not while another box has its directory there.
                let _ = fs::remove_dir(parent);
            }
        }
        Ok(())
    }
}

/// Opens a directory of a cgroup tree so that `..` leads nowhere, for a box to make directories in, and gives it away.
/// Whoever has it is himself in the place above: to have a process born below takes the right to that one, too.
pub fn lend(dir: &Path, owner: u32) -> io::Result<OwnedFd> {
    let above = dir.parent().unwrap_or(dir).join("cgroup.procs");
    for path in [dir.to_owned(), dir.join("cgroup.procs"), dir.join("cgroup.threads"), above] {
        named(&path, give(&path, owner))?;
    }
    alone(dir)
}

/// A directory as a mount of its own that is attached nowhere: from it, `..` leads back to itself. That takes root;
/// others get it where it is, in sight of all that they can see anyway.
fn alone(dir: &Path) -> io::Result<OwnedFd> {
    let copy = dir.to_str().and_then(|path| crate::mount::copy_tree(path, false).ok());
    match copy {
        Some(copy) => Ok(copy),
        None => named(dir, File::open(dir)).map(OwnedFd::from),
    }
}

/// Gives a file away, if it is not his already: an ordinary user may not give himself what he has.
fn give(path: &Path, owner: u32) -> io::Result<()> {
    let now = fs::metadata(path)?;
    if std::os::unix::fs::MetadataExt::uid(&now) == owner {
        return Ok(());
    }
    std::os::unix::fs::chown(path, Some(owner), Some(owner))
}

fn remove_children(dir: &Path) -> io::Result<()> {
    for entry in named(dir, fs::read_dir(dir))? {
        let entry = named(dir, entry)?;
        if named(dir, entry.file_type())?.is_dir() {
            remove_below(&entry.path())?;
        }
    }
    Ok(())
}

fn remove_below(dir: &Path) -> io::Result<()> {
    if let Err(e) = fs::remove_dir(dir) {
        match e.kind() {
            io::ErrorKind::NotFound => return Ok(()),
            // EBUSY: it has children, or processes that are being reaped.
            io::ErrorKind::ResourceBusy => {}
            _ => return named(dir, Err(e)),
        }
    } else {
        return Ok(());
    }
    match remove_children(dir) {
        // Somebody else removes the same box, and was faster. What is left of it is found below.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        removed => removed?,
    }
    // The kernel lets go of a cgroup a moment after its last process was reaped, and tells nobody when. The bound is
    // far above what was ever seen.
    for _ in 0..1000 {
        match fs::remove_dir(dir) {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => return named(dir, other),
        }
    }
    named(dir, Err(io::Error::from_raw_os_error(libc::EBUSY)))
}

/// The value of a `key value` line in a small file of counters, read anew from its start.
pub fn counter(file: std::os::fd::BorrowedFd<'_>, key: &str) -> io::Result<u64> {
    let mut buffer = [0; 1024];
    let n = rustix::io::pread(file, &mut buffer, 0)?;
    let text = std::str::from_utf8(&buffer[..n]).unwrap_or_default();
    let value = if key.is_empty() {
        text.trim().parse().ok()
    } else {
        text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
    };
    value.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("no counter {key:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like one of the v2 tree.
    fn pretend(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(dir.path().join(name), content).unwrap();
        }
        dir
    }

    #[test]
    fn controllers_of_a_place_full_of_processes_are_taken_and_not_yet_handed_down() {
        let check = |files: &[(&str, &str)], crowded: bool, handed_down: &str| {
            let dir = pretend(files);
            let mut trees = Trees::default();
            trees.take_v2(dir.path(), dir.path().join("boxes"));
            assert_eq!(trees.crowded, crowded, "{files:?}");
            assert_eq!(trees.controller(Controller::Memory), Ok(Version::V2), "{files:?}");
            assert!(trees.controller(Controller::Cpu).is_err(), "{files:?}");
            assert_eq!(fs::read_to_string(dir.path().join("cgroup.subtree_control")).unwrap(), handed_down);
        };
        let kind = ("cgroup.type", "domain\n");
        let available = ("cgroup.controllers", "cpuset memory pids\n");
        let given = |text| ("cgroup.subtree_control", text);
        check(&[kind, available, given("memory pids"), ("cgroup.procs", "")], false, "memory pids");
        check(&[kind, available, given(""), ("cgroup.procs", "17\n")], true, "");
        // What was handed down before they came stays.
        check(&[kind, available, given("memory pids"), ("cgroup.procs", "17\n")], false, "memory pids");
    }

    #[test]
    fn a_box_is_limited_in_the_directory_of_its_commands() {
        let dir = pretend(&[]);
        let boxes = dir.path().join("boxes");
        let trees = Trees {
            controllers: vec![(Controller::Memory, Version::V2, boxes.clone())],
            v2: Some(boxes.clone()),
            ..Trees::default()
        };
        let limits = Limits { memory_bytes: Some(1 << 20), pids: Some(5), cpus: None };
        trees.create("a", limits).unwrap();
        assert!(boxes.join("a/commands").is_dir() && boxes.join("a/first").is_dir());
        // Not before its first process is out of the way.
        assert!(!boxes.join("a/cgroup.subtree_control").exists());
        trees.divide("a", limits).unwrap();
        assert_eq!(fs::read_to_string(boxes.join("a/cgroup.subtree_control")).unwrap(), "+memory");
        assert_eq!(fs::read_to_string(boxes.join("a/commands/memory.max")).unwrap(), "1048576");
        // What the tree has no controller for is limited by somebody else.
        assert!(!boxes.join("a/commands/pids.max").exists());
        trees.create("b", Limits::default()).unwrap();
        trees.divide("b", Limits::default()).unwrap();
        assert!(!boxes.join("b/commands").exists());
    }

    #[test]
    fn each_interface_has_its_own_words_for_a_limit() {
        let limits = Limits { memory_bytes: Some(1 << 20), pids: Some(5), cpus: Some(0.5) };
        let check = |controller, version, expected: &[(&str, &str)]| {
            let files = limits.files(controller, version);
            let files: Vec<_> = files.iter().map(|(f, v)| (*f, v.as_str())).collect();
            assert_eq!(files, expected);
        };
        check(Controller::Memory, Version::V2, &[("memory.max", "1048576"), ("memory.swap.max", "0")]);
        check(Controller::Cpu, Version::V2, &[("cpu.max", "50000 100000")]);
        check(
            Controller::Cpu,
            Version::V1,
            &[("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "50000")],
        );
        check(Controller::Pids, Version::V1, &[("pids.max", "5")]);
    }
}
