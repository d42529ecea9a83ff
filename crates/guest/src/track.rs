//! Which processes belong to which command, so that a kill hits all of one and none of another.
//!
//! | means | what marks a process | kill |
//! |---|---|---|
//! | cgroup | being in the command's directory of the v2 tree | `cgroup.kill`, one write |
//! | tag | its UTS namespace, which it inherits and cannot leave | stop all that are found, kill, look again until none is left |
//! | group | its process group or its ancestors | as above, best effort; only without isolation |
//!
//! Cgroup directories are used again when they are empty and nobody was killed in them: making and removing one costs
//! more than all the rest.

use std::cell::Cell;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use glasshouse_linux::rustix::fs::{AtFlags, Dir, Mode, OFlags, mkdirat, openat, readlinkat, unlinkat};
use glasshouse_linux::rustix::io::Errno;
use glasshouse_linux::{cgroup, mount, process, rustix};
use glasshouse_protocol::plan::Tracking;

use crate::build::TOP_NAME;

/// Empty directories that are kept for the next command.
const SPARE_MAX: usize = 8;
/// Bytes of a process's words that are told.
const NAME_BYTES_MAX: u64 = 256;
/// What the list of a box's mounts usually takes.
const MOUNTS_BYTES: usize = 16 * 1024;
/// Threads that are looked at to see whether a box is at rest; one with more is not.
const THREADS_MAX: usize = 1024;
/// What the kernel writes about one of them, at the most.
const STATUS_BYTES: usize = 8 * 1024;
/// How often the processes of a command are looked for until none is left.
const ROUNDS_MAX: usize = 1000;

/// More than the kernel writes of a process in one line.
const STAT_BYTES: usize = 1024;

/// How often a new process's tag is tried to be read, and the pause between: a second, where microseconds do.
const TAG_ATTEMPTS: usize = 10_000;
const TAG_PAUSE: std::time::Duration = std::time::Duration::from_micros(100);

/// The means that this box has.
#[derive(Debug)]
pub(crate) struct Tracker {
    tracking: Tracking,
    tree: Option<OwnedFd>,
    proc: Option<OwnedFd>,
    spare: Vec<Directory>,
    lingering: Vec<Directory>,
    made: u64,
    /// The number of the mount that was our root when we last looked, and which root that was.
    root_seen: Cell<Option<(u64, u64)>>,
    /// The engine executes bridges beside us, which are none of the box's: their parents are outside.
    bridged: bool,
    /// Whoever lives in the box descends from us: nobody comes in from outside.
    enclosed: bool,
    /// Processes that are ours and not the box's, none of them collected.
    exempt: Vec<i32>,
}

/// What a process of the same user can change of another, and what forks inherit from that one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// It was stopped, or is dead.
    is_stopped: bool,
    limits: Vec<u8>,
    first_to_go: Vec<u8>,
    /// Its niceness, its priority in real time, and its scheduler.
    turns: [String; 3],
    cpus: rustix::thread::CpuSet,
    disk: i32,
}

#[derive(Debug)]
struct Directory {
    name: String,
    dir: OwnedFd,
    cpu: Option<OwnedFd>,
    events: OwnedFd,
    cpu_before_us: u64,
    /// Since 6.14 the kernel kills what is born into a directory that was ever killed: it is not used again.
    killed: Cell<bool>,
}

/// The mark of one command.
#[derive(Debug)]
pub(crate) struct Mark {
    directory: Option<Directory>,
    tag: Option<Tag>,
    leader: i32,
}

/// A command's namespace. As long as it is held open, the kernel gives its number to no other.
#[derive(Debug)]
struct Tag {
    name: Vec<u8>,
    _held: OwnedFd,
}

impl Tracker {
    pub(crate) fn new(tracking: Tracking, tree: Option<OwnedFd>, proc: Option<OwnedFd>) -> Tracker {
        let (spare, lingering, root_seen) = (Vec::new(), Vec::new(), Cell::new(None));
        Tracker {
            tracking,
            tree,
            proc,
            spare,
            lingering,
            made: 0,
            root_seen,
            bridged: false,
            enclosed: false,
            exempt: Vec::new(),
        }
    }

    /// The same where clients come by bridges.
    pub(crate) fn bridged(self) -> Tracker {
        Tracker { bridged: true, ..self }
    }

    /// The same where nobody comes in from outside.
    pub(crate) fn enclosed(self) -> Tracker {
        Tracker { enclosed: true, ..self }
    }

    /// Makes a mark for a command that is about to start.
    pub(crate) fn prepare(&mut self) -> io::Result<Mark> {
        let directory = match (self.tracking, &self.tree) {
            (Tracking::Cgroup, Some(tree)) => Some(match self.spare.pop() {
                Some(directory) => directory,
                None => {
                    self.made += 1;
                    Directory::make(tree.as_fd(), format!("e{}", self.made))?
                }
            }),
            _ => None,
        };
        let mut mark = Mark { directory, tag: None, leader: 0 };
        if let Some(directory) = &mut mark.directory {
            directory.cpu_before_us = directory.cpu_us();
        }
        Ok(mark)
    }

    /// Learns the mark of the command's main process.
    pub(crate) fn started(&self, mark: &mut Mark, pid: i32) -> io::Result<()> {
        mark.leader = pid;
        if self.tracking == Tracking::Tag
            && let Some(proc) = &self.proc
        {
            mark.tag = read_tag(proc.as_fd(), pid)?;
        }
        Ok(())
    }

    /// From now on these are no processes of the box.
    pub(crate) fn exempt(&mut self, pids: Vec<i32>) {
        self.exempt = pids;
    }

    /// How a process stands, if all of that can be seen.
    pub(crate) fn standing(&self, pid: i32) -> Option<Standing> {
        let proc = self.proc.as_ref()?;
        let read = |file: &str| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let file = openat(proc, format!("{pid}/{file}"), flags, Mode::empty()).ok()?;
            let mut bytes = Vec::with_capacity(STATUS_BYTES);
            let limit = io::Read::take(std::fs::File::from(file), STATUS_BYTES as u64);
            io::Read::read_to_end(&mut { limit }, &mut bytes).ok()?;
            Some(bytes)
        };
        let stat = String::from_utf8_lossy(&read("stat")?).into_owned();
        let words: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let word = |at: usize| words.get(at).map(|word| (*word).to_owned());
        Some(Standing {
            is_stopped: !matches!(*words.first()?, "S" | "R" | "D"),
            limits: read("limits")?,
            first_to_go: read("oom_score_adj")?,
            turns: [word(16)?, word(37)?, word(38)?],
            cpus: rustix::thread::sched_getaffinity(rustix::process::Pid::from_raw(pid)).ok()?,
            disk: process::disk_priority(pid).ok()?,
        })
    }

    /// All processes that live in the box beside us, each with whether it stands still. Without walls, all that descend from
    /// us, as far as they are found.
    pub(crate) fn others(&self) -> Vec<(i32, bool)> {
        let Some(proc) = &self.proc else {
            let own = std::process::id() as i32;
            let still = |pid: i32| {
                let state = living_state(pid)?;
                Some((pid, matches!(state, b'T' | b't')))
            };
            let is_other = |pid: &i32| *pid != own && !self.exempt.contains(pid);
            return descendants(own).into_iter().filter(is_other).filter_map(still).collect();
        };
        // To list processes takes the kernel longer than all the rest of a hold.
        if self.enclosed && matches!(process::has_children(), Ok(false)) {
            return Vec::new();
        }
        let still = |pid: i32| {
            let (state, parent) = state_of(proc.as_fd(), pid)?;
            let is_bridge = self.bridged && parent == 0;
            (!is_bridge && !matches!(state, b'Z' | b'X')).then_some((pid, matches!(state, b'T' | b't')))
        };
        let is_other = |pid: &i32| *pid != 1 && !self.exempt.contains(pid);
        pids(proc.as_fd()).into_iter().filter(is_other).filter_map(still).collect()
    }

    /// Kills all that lives in the box beside us and the processes of these marks, which are ours. Whether nobody is left.
    ///
    /// Asked of the kernel, which knows all of them at one moment. A list does not: who forks and ends, again and again, may be
    /// on none. Where others come into the box from outside, a list is all there is.
    pub(crate) fn clear_out<'a>(&self, spared: impl Iterator<Item = &'a Mark>) -> io::Result<bool> {
        let spared: Vec<&str> =
            spared.filter_map(|mark| Some(mark.directory.as_ref()?.name.as_str())).collect();
        if self.enclosed && self.exempt.is_empty() {
            let left = process::has_children()?;
            if left {
                process::signal_all(libc_sigkill())?;
            }
            return Ok(!left);
        }
        let others = self.others();
        others.iter().try_for_each(|&(pid, _)| process::signal_pid(pid, libc_sigkill()))?;
        let inhabited = self.inhabited(&spared)?;
        inhabited.iter().try_for_each(Directory::kill)?;
        Ok(others.is_empty() && inhabited.is_empty())
    }

    /// The directories of commands in which somebody lives, but for some.
    fn inhabited(&self, spared: &[&str]) -> io::Result<Vec<Directory>> {
        let Some(tree) = self.tree.as_ref().filter(|_| self.tracking == Tracking::Cgroup && self.enclosed)
        else {
            return Ok(Vec::new());
        };
        let list = openat(tree, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut found = Vec::new();
        for entry in Dir::read_from(&list)? {
            let entry = entry?;
            let Some(name) = command_dir(entry.file_name()).filter(|name| !spared.contains(name)) else {
                continue;
            };
            let directory = Directory::open(tree.as_fd(), name.to_owned())?;
            if directory.populated() {
                found.push(directory);
            }
        }
        Ok(found)
    }

    /// Whether everybody in the box beside us waits for something, all at one moment. Each is looked at twice: who waited
    /// both times and was given no CPU in between waited all the while, so there is a moment between the looks at which
    /// all did.
    pub(crate) fn is_at_rest(&self) -> bool {
        let look = || {
            let proc = self.proc.as_ref()?;
            let mut threads = Vec::new();
            for (pid, _) in self.others() {
                waiting_threads(proc.as_fd(), pid, &mut threads)?;
            }
            Some(threads)
        };
        look().is_some_and(|first| look().is_some_and(|second| second == first))
    }

    /// What a process calls itself: its words, or its short name where it has none. Bounded.
    pub(crate) fn command_line(&self, pid: i32) -> String {
        let read = |file: &str| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let file = openat(self.proc.as_ref()?, format!("{pid}/{file}"), flags, Mode::empty()).ok()?;
            let mut bytes = Vec::new();
            let limit = io::Read::take(std::fs::File::from(file), NAME_BYTES_MAX);
            io::Read::read_to_end(&mut { limit }, &mut bytes).ok()?;
            Some(bytes).filter(|bytes| !bytes.is_empty())
        };
        let bytes = read("cmdline").or_else(|| read("comm")).unwrap_or_default();
        let words = String::from_utf8_lossy(&bytes).replace('\0', " ");
        words.trim_end().to_owned()
    }

    /// Whether the root is all there: our /proc is mounted in it, and the way up from there leads back to it and not to
    /// another one that was laid over it.
    pub(crate) fn root_is_whole(&self) -> bool {
        let Some(proc) = &self.proc else { return true };
        let look = |path: &str| rustix::fs::stat(path).map(|stat| (stat.st_dev, stat.st_ino));
        let own = rustix::fs::fstat(proc).map(|stat| (stat.st_dev, stat.st_ino));
        matches!((look("/proc"), own), (Ok(a), Ok(b)) if a == b)
            && matches!((look("/proc/.."), look("/")), (Ok(a), Ok(b)) if a == b)
    }

    /// Which of its roots the box has. The list of mounts is long to write for the kernel, so it is asked for only when the
    /// root is another mount than it was.
    pub(crate) fn generation(&self) -> u64 {
        let mount = mount::unique_number("/");
        if let (Some(mount), Some((seen, generation))) = (mount, self.root_seen.get())
            && mount == seen
        {
            return generation;
        }
        let generation = self.told_generation();
        self.root_seen.set(mount.map(|mount| (mount, generation)));
        generation
    }

    /// Whoever gave the box another root says which one that is. It has to be another mount than the one before.
    pub(crate) fn was_given(&self, generation: u64) {
        let Some(mount) = mount::unique_number("/") else { return };
        if self.root_seen.get().is_none_or(|(seen, _)| seen != mount) {
            self.root_seen.set(Some((mount, generation)));
        }
    }

    /// The same, as its mounts tell. The first one, where they tell nothing.
    fn told_generation(&self) -> u64 {
        let Some(proc) = &self.proc else { return 0 };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let Ok(file) = openat(proc, "self/mountinfo", flags, Mode::empty()) else { return 0 };
        // Without room, it would be read in pieces that grow from almost nothing.
        let mut text = String::with_capacity(MOUNTS_BYTES);
        let _ = io::Read::read_to_string(&mut std::fs::File::from(file), &mut text);
        let root = text.lines().rev().find(|line| line.split(' ').nth(4) == Some("/"));
        let upper = root.and_then(|line| line.split("upperdir=").nth(1));
        let number = upper.and_then(|name| name.strip_prefix(TOP_NAME)?.split('/').next()?.parse().ok());
        number.unwrap_or(0)
    }

    /// Stops every process of every command, or lets them go, without any of them knowing. Whether they stand still;
    /// `None` where only a signal can do it, which they would notice.
    pub(crate) fn freeze(&self, frozen: bool) -> Option<bool> {
        let tree = self.tree.as_ref().filter(|_| self.tracking == Tracking::Cgroup)?;
        let mut still = true;
        // What we hold is a place, which cannot be listed itself.
        let list = openat(tree, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        for entry in Dir::read_from(&list).ok()? {
            let entry = entry.ok()?;
            let Some(name) = command_dir(entry.file_name()) else { continue };
            let Ok(dir) = openat(tree, name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else {
                continue;
            };
            let file = openat(&dir, "cgroup.freeze", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
            rustix::io::write(&file, if frozen { b"1" } else { b"0" }).ok()?;
            let events =
                openat(&dir, "cgroup.events", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
            let count = |key| cgroup::counter(events.as_fd(), key).unwrap_or(0);
            still &= count("populated") == 0 || count("frozen") == 1;
        }
        Some(still)
    }

    pub(crate) fn wants_tag(&self) -> bool {
        self.tracking == Tracking::Tag
    }

    /// Kills every process of the command.
    pub(crate) fn kill(&self, mark: &Mark) -> io::Result<()> {
        match (&mark.directory, &mark.tag, &self.proc) {
            (Some(directory), _, _) => directory.kill(),
            (None, Some(tag), Some(proc)) => hunt(|| Ok(all_tagged(proc.as_fd(), &tag.name))),
            _ if mark.leader > 0 => {
                self.strike(mark)?;
                hunt(|| Ok(descendants(mark.leader)))
            }
            _ => Ok(()),
        }
    }

    /// Kills what one call reaches of a command whose main process has not been collected yet: all of its directory,
    /// or its group.
    pub(crate) fn strike(&self, mark: &Mark) -> io::Result<()> {
        match &mark.directory {
            Some(directory) => directory.kill(),
            None if mark.leader > 0 => process::signal_group(mark.leader, libc_sigkill()),
            None => Ok(()),
        }
    }

    /// CPU time of all processes of the command, dead ones too, where it is counted.
    pub(crate) fn cpu_us(&self, mark: &Mark) -> Option<u64> {
        let directory = mark.directory.as_ref()?;
        directory.cpu.as_ref()?;
        Some(directory.cpu_us().saturating_sub(directory.cpu_before_us))
    }

    /// Takes back the mark of a command whose main process is gone. Others of its processes may live on.
    pub(crate) fn release(&mut self, mark: Mark) {
        if let Some(directory) = mark.directory {
            self.put_back(directory);
        }
    }

    /// Looks again at directories that still had processes when their command ended.
    pub(crate) fn tidy(&mut self) {
        for directory in std::mem::take(&mut self.lingering) {
            self.put_back(directory);
        }
    }

    fn put_back(&mut self, directory: Directory) {
        if directory.populated() {
            self.lingering.push(directory);
        } else if self.spare.len() < SPARE_MAX && !directory.killed.get() {
            self.spare.push(directory);
        } else if let Some(tree) = &self.tree {
            // One that cannot be removed goes with the box.
            let _ = unlinkat(tree, directory.name.as_str(), AtFlags::REMOVEDIR);
        }
    }
}

/// Kills all that descends from us, where no wall does it: orphans have become our children by then.
pub(crate) fn kill_family() -> io::Result<()> {
    let own = std::process::id() as i32;
    hunt(|| Ok(descendants(own).into_iter().filter(|&pid| pid != own).collect()))
}

impl Mark {
    pub(crate) fn cgroup(&self) -> Option<BorrowedFd<'_>> {
        self.directory.as_ref().map(|directory| directory.dir.as_fd())
    }

    /// What a process that is there already writes `0` to, to enter.
    pub(crate) fn entrance(&self) -> io::Result<Option<OwnedFd>> {
        let Some(directory) = &self.directory else { return Ok(None) };
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(Some(openat(&directory.dir, "cgroup.procs", flags, Mode::empty())?))
    }

    /// Whether somebody is marked by it, where that can be seen.
    pub(crate) fn is_inhabited(&self) -> bool {
        self.directory.as_ref().is_none_or(Directory::populated)
    }
}

impl Directory {
    fn make(tree: BorrowedFd<'_>, name: String) -> io::Result<Directory> {
        mkdirat(tree, name.as_str(), Mode::from_raw_mode(0o755))?;
        Directory::open(tree, name)
    }

    fn open(tree: BorrowedFd<'_>, name: String) -> io::Result<Directory> {
        let dir = openat(tree, name.as_str(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let read = OFlags::RDONLY | OFlags::CLOEXEC;
        let cpu = openat(&dir, "cpu.stat", read, Mode::empty()).ok();
        let events = openat(&dir, "cgroup.events", read, Mode::empty())?;
        Ok(Directory { name, dir, cpu, events, cpu_before_us: 0, killed: Cell::new(false) })
    }

    fn cpu_us(&self) -> u64 {
        let read = |fd: &OwnedFd| cgroup::counter(fd.as_fd(), "usage_usec").ok();
        self.cpu.as_ref().and_then(read).unwrap_or(0)
    }

    fn populated(&self) -> bool {
        // In doubt it is: then it is not used again.
        cgroup::counter(self.events.as_fd(), "populated").map_or(true, |n| n > 0)
    }

    fn kill(&self) -> io::Result<()> {
        self.killed.set(true);
        let file = openat(&self.dir, "cgroup.kill", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, b"1")?;
        Ok(())
    }
}

/// Commands' own directories begin with an `e`, and files of the kernel's have a dot in their names.
fn command_dir(name: &CStr) -> Option<&str> {
    name.to_str().ok().filter(|name| name.starts_with('e') && !name.contains('.'))
}

fn libc_sigkill() -> i32 {
    rustix::process::Signal::KILL.as_raw()
}

/// Stops and kills what is found until nothing is. A process that is stopped cannot fork, so each round leaves fewer.
fn hunt(find: impl Fn() -> io::Result<Vec<i32>>) -> io::Result<()> {
    for _ in 0..ROUNDS_MAX {
        let found = find()?;
        if found.is_empty() {
            return Ok(());
        }
        for signal in [rustix::process::Signal::STOP.as_raw(), libc_sigkill()] {
            for &pid in &found {
                process::signal_pid(pid, signal)?;
            }
        }
        // The dying need a moment on a CPU, and nothing tells when all of them have had it.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Err(io::Error::other("processes of the command keep appearing"))
}

/// The tag of a process that has just been started; none if it has ended already.
///
/// We are woken when it lets go of our memory, a moment before the kernel has decided who may look at its new one, and
/// until then it lets nobody. It tells no one when that is over.
fn read_tag(proc: BorrowedFd<'_>, pid: i32) -> io::Result<Option<Tag>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut refused = Errno::ACCESS;
    for _ in 0..TAG_ATTEMPTS {
        let held = openat(proc, format!("{pid}/ns/uts"), flags, Mode::empty());
        match held.and_then(|held| Ok((held, readlinkat(proc, format!("{pid}/ns/uts"), Vec::new())?))) {
            Ok((held, name)) => return Ok(Some(Tag { name: name.into_bytes(), _held: held })),
            Err(Errno::NOENT | Errno::SRCH) => return Ok(None),
            Err(e) => refused = e,
        }
        std::thread::sleep(TAG_PAUSE);
    }
    Err(refused.into())
}

fn tag_of(proc: BorrowedFd<'_>, pid: i32) -> io::Result<Vec<u8>> {
    let link = readlinkat(proc, format!("{pid}/ns/uts"), Vec::new())?;
    Ok(link.into_bytes())
}

fn pids(proc: BorrowedFd<'_>) -> Vec<i32> {
    let Ok(dir) = openat(proc, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else {
        return Vec::new();
    };
    let Ok(entries) = Dir::read_from(&dir) else {
        return Vec::new();
    };
    let number = |name: &CStr| name.to_str().ok()?.parse().ok();
    entries.filter_map(|entry| number(entry.ok()?.file_name())).collect()
}

/// What a process does, and who its parent is: nobody (0) if that one is outside. One whose first thread has ended lives on in
/// the others, though the kernel calls it dead: it stands still if they do, and else is at work.
fn state_of(proc: BorrowedFd<'_>, pid: i32) -> Option<(u8, i32)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(proc, format!("{pid}/stat"), flags, Mode::empty()).ok()?;
    let mut buffer = [0; STAT_BYTES];
    let n = rustix::io::read(&file, &mut buffer[..]).ok()?;
    let (state, parent, threads) = facts(&buffer[..n])?;
    if !is_dead(state) || threads <= 1 {
        return Some((state, parent));
    }
    let tasks =
        openat(proc, format!("{pid}/task"), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let states = pids(tasks.as_fd()).into_iter().filter_map(|tid| {
        let file = openat(&tasks, format!("{tid}/stat"), flags, Mode::empty()).ok()?;
        let n = rustix::io::read(&file, &mut buffer[..]).ok()?;
        facts(&buffer[..n]).map(|(state, ..)| state)
    });
    let living: Vec<u8> = states.filter(|&state| !is_dead(state)).collect();
    let still = living.iter().all(|state| matches!(state, b'T' | b't'));
    Some((if still { b'T' } else { b'R' }, parent))
}

/// State, parent and number of threads, as `/proc/PID/stat` tells them.
fn facts(stat: &[u8]) -> Option<(u8, i32, u32)> {
    // The name may hold anything but is at most 64 bytes; the state stands after its last parenthesis.
    let at = stat.iter().rposition(|&byte| byte == b')')?;
    let mut words = std::str::from_utf8(stat.get(at + 2..)?).ok()?.split_ascii_whitespace();
    let (state, parent) = (*words.next()?.as_bytes().first()?, words.next()?.parse().ok()?);
    Some((state, parent, words.nth(15)?.parse().ok()?))
}

fn is_dead(state: u8) -> bool {
    matches!(state, b'Z' | b'X')
}

/// A thread, and how often it was given a CPU and gave it back.
type Turns = (i32, u64);

/// Adds the threads of a process, if each of them waits. `None`: one is at work, or it is all over.
fn waiting_threads(proc: BorrowedFd<'_>, pid: i32, threads: &mut Vec<Turns>) -> Option<()> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let tasks = openat(proc, format!("{pid}/task"), flags, Mode::empty()).ok()?;
    for tid in pids(tasks.as_fd()) {
        if threads.len() >= THREADS_MAX {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(&tasks, format!("{tid}/status"), flags, Mode::empty()).ok()?;
        let mut status = vec![0; STATUS_BYTES];
        let n = rustix::io::read(&file, &mut status[..]).ok()?;
        let status = String::from_utf8_lossy(&status[..n]);
        if status.lines().any(|line| line.starts_with("State:\tZ") || line.starts_with("State:\tX")) {
            // A thread that has ended, and the others go on.
            continue;
        }
        threads.push((tid, waiting_turns(&status)?));
    }
    Some(())
}

/// How often a thread with this status was given a CPU and gave it back, if it waits now.
fn waiting_turns(status: &str) -> Option<u64> {
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    // Asleep or stopped. One that waits for a disk is served without anybody's doing.
    if !value("State:")?.starts_with(['S', 'T', 't', 'I']) {
        return None;
    }
    let count = |key| value(key)?.parse::<u64>().ok();
    Some(count("voluntary_ctxt_switches:")? + count("nonvoluntary_ctxt_switches:")?)
}

/// A zombie has no namespaces any more, so only the living are found; one whose first thread alone has ended, by the others.
fn all_tagged(proc: BorrowedFd<'_>, tag: &[u8]) -> Vec<i32> {
    let is_tagged = |pid: i32| match tag_of(proc, pid) {
        Ok(found) => found == tag,
        Err(_) => {
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            let tasks = openat(proc, format!("{pid}/task"), flags, Mode::empty());
            tasks.is_ok_and(|tasks| {
                let mut threads = pids(tasks.as_fd()).into_iter();
                threads.any(|tid| tag_of(tasks.as_fd(), tid).is_ok_and(|found| found == tag))
            })
        }
    };
    pids(proc).into_iter().filter(|&pid| is_tagged(pid)).collect()
}

fn descendants(leader: i32) -> Vec<i32> {
    let Ok(proc) = openat(rustix::fs::CWD, "/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
        return Vec::new();
    };
    let parents: Vec<(i32, i32)> = pids(proc.as_fd()).into_iter().filter_map(living_parent).collect();
    let mut family = vec![leader];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        family.extend(parents.iter().filter(|(_, p)| *p == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    family.retain(|pid| parents.iter().any(|(p, _)| p == pid));
    family
}

/// The state of a process of the host's that lives.
fn living_state(pid: i32) -> Option<u8> {
    let proc = openat(rustix::fs::CWD, "/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    state_of(proc.as_fd(), pid).map(|(state, _)| state).filter(|state| !matches!(state, b'Z' | b'X'))
}

fn living_parent(pid: i32) -> Option<(i32, i32)> {
    let (state, parent, threads) = facts(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)?;
    (!is_dead(state) || threads > 1).then_some((pid, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told_with_its_turns() {
        let status = |state: &str| {
            format!(
                "Name:\tState:\nState:\t{state}\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t3\n"
            )
        };
        assert_eq!(waiting_turns(&status("S (sleeping)")), Some(10));
        assert_eq!(waiting_turns(&status("R (running)")), None);
        assert_eq!(waiting_turns(&status("D (disk sleep)")), None);
        assert_eq!(waiting_turns("State:\tS (sleeping)\n"), None, "what is not told is not known");
    }
}
