//! The runtime `native`: a box is a tree of processes in namespaces of this kernel, plus a directory.
//!
//! ```text
//!   claim directory ─▶ cgroups ─▶ builder runs the plan ─▶ box.json ─▶ commit ─▶ the box is on its own
//!        │                │              │                    │
//!        └────────────────┴──────────────┴────────────────────┴── any failure: killed, removed, nothing is left
//! ```
//! Whoever dies in the middle leaves at most a directory whose lock nobody holds and cgroups that nobody is in; the
//! next command removes them.

mod ahead;
pub mod faults;
mod held;
mod limit;
mod pinned;
mod places;
mod plan;
mod probe;
mod restack;
mod root;

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use glasshouse_linux::cgroup::{Controller, Group, Trees};
use glasshouse_linux::{landlock, process, rustix, seccomp};
use glasshouse_protocol::frame::{self, Decoder, FrameError, Kind};
use glasshouse_protocol::plan::{FdRole, GuestConfig, StepFailure, Top, Tracking};
use glasshouse_protocol::{Hello, Reply, Request, Rlimit, RlimitKind, VERSION};

pub(crate) use held::{Held, Running};
pub(crate) use limit::{bytes, guest_limits};
pub(crate) use plan::{MASKED, READ_ONLY, base_filter, sys_files};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{BoxRecord, Claim, Home, UIDS};
use crate::image::Base;
use crate::limits::{GOODBYE_TIMEOUT, REPLY_TIMEOUT};
use crate::runtime::builders::{Builder, Builders};
use crate::runtime::start::{self, Failed, Parcel};
use crate::runtime::{Created, Facts, Runtime, RuntimeReport, Still, Taken, connect_in, describe, too_weak};
use crate::snapshot::layers;
use crate::spec::{Level, RuntimeKind, SandboxInfo, SandboxSpec};
use ahead::{Ahead, Begun};
use plan::{Decisions, Users};

pub(crate) struct Native {
    home: Home,
    trees: Trees,
    root: bool,
    builders: Builders,
    ahead: Ahead,
    /// What was thrown away and is still on the disk: names in the home's trash.
    thrown: Mutex<Vec<String>>,
}

/// Looks where cgroups can be made, under a name that tells homes apart.
pub(crate) fn discover_trees(home: &Home) -> Result<Trees> {
    Trees::discover(&format!("{CGROUP_PREFIX}{}", home.tag()?)).context("look for cgroups")
}

/// What the directory of all boxes of a home begins with.
const CGROUP_PREFIX: &str = "glasshouse-";

/// The file in a box's directory that says where its cgroup is.
const CGROUP_FILE: &str = "cgroup";

/// Writes down where a box's cgroup is. An ordinary user's place depends on where he is himself, and whoever removes the
/// box may be elsewhere.
pub(crate) fn note_cgroup(claim: &Claim, group: &Group) -> Result<()> {
    let Some(dir) = group.tracked() else { return Ok(()) };
    let path = claim.path().join(CGROUP_FILE);
    std::fs::write(&path, dir.as_os_str().as_bytes()).context(format_args!("write {}", path.display()))
}

/// The cgroups of a box, wherever its maker was.
pub(crate) fn cgroups_of(home: &Home, trees: &Trees, id: &str) -> Result<Group> {
    let group = trees.group(id);
    let ours = Path::new(&format!("{CGROUP_PREFIX}{}", home.tag()?)).join(id);
    let noted = start::read_small(home.box_dir(id).join(CGROUP_FILE)).map(PathBuf::from);
    let noted = noted.filter(|dir| dir.is_absolute() && dir.ends_with(&ours) && dir.is_dir());
    Ok(match noted {
        Some(dir) => group.at(dir),
        None => group,
    })
}

/// The first process of a box, if it lives.
pub(crate) fn living(home: &Home, info: &SandboxInfo) -> Result<Option<OwnedFd>> {
    let Ok(pidfd) = process::open(info.pid) else { return Ok(None) };
    // The descriptor is of whoever has the number now; tick and lock together say that it is still the box.
    let same = process::start_ticks(info.pid).is_ok_and(|ticks| ticks == info.start_ticks);
    Ok((same && home.is_alive(&info.id)?).then_some(pidfd))
}

/// Whether a box that was known still has the same first process, and runs: neither ended nor paused. Its record is not read.
/// `None`: only its record can tell, because it is on another machine.
pub(crate) fn runs_on(home: &Home, info: &SandboxInfo) -> Result<Option<bool>> {
    if info.start_ticks == crate::runtime::ELSEWHERE {
        return Ok(None);
    }
    let same = process::start_ticks(info.pid).is_ok_and(|ticks| ticks == info.start_ticks);
    Ok(Some(same && home.is_running(&info.id)?))
}

/// Sends the request to end, without waiting for the answer.
pub(crate) fn ask_to_shut_down(mut stream: &UnixStream) {
    let mut bytes = Vec::new();
    if let Ok(body) = serde_json::to_vec(&Request::Shutdown) {
        frame::put(&mut bytes, 1, Kind::Request, &body);
        // A guest that does not listen is killed.
        let _ = stream.write_all(&bytes);
    }
}

/// Asks a guest one thing, and waits for the answer as long as the stream does.
pub(crate) fn ask_once(mut stream: UnixStream, request: &Request) -> Result<Reply> {
    let said = |e: serde_json::Error| Error::new(ErrorKind::Failed, format!("cannot ask the guest: {e}"));
    let hello = Request::Hello(Hello { version: VERSION, features: Vec::new() });
    let mut bytes = Vec::new();
    frame::put(&mut bytes, 0, Kind::Request, &serde_json::to_vec(&hello).map_err(said)?);
    frame::put(&mut bytes, 1, Kind::Request, &serde_json::to_vec(request).map_err(said)?);
    stream.write_all(&bytes).context("talk to the guest")?;
    let (mut decoder, mut buffer, asked) = (Decoder::default(), [0; 4096], Instant::now());
    loop {
        let broken =
            |e: FrameError| Error::new(ErrorKind::Failed, format!("the guest is not understood: {e}"));
        match decoder.next_frame().map_err(broken)? {
            Some(frame) if frame.stream == 1 => return crate::client::understand(&frame),
            Some(_) => continue,
            None if asked.elapsed() > REPLY_TIMEOUT => {
                return Err(Error::new(ErrorKind::Gone, "the box's guest does not finish what it says"));
            }
            None => {}
        }
        match stream.read(&mut buffer).context("talk to the guest")? {
            0 => return Err(Error::new(ErrorKind::Gone, "the box's guest has ended")),
            n => decoder.feed(&buffer[..n]),
        }
    }
}

/// Whether a `uid_map` has numbers for all of these ids.
fn covers(map: &str, ids: std::ops::Range<u64>) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
        matches!(numbers[..], [first, _, count] if first <= ids.start && first + count >= ids.end)
    })
}

/// What every guest is told, whatever its runtime.
pub(crate) fn guest_config(spec: &SandboxSpec) -> GuestConfig {
    GuestConfig {
        env: spec.env.clone(),
        ttl_ms: spec.limits.ttl.map(|ttl| ttl.as_millis() as u64),
        timeout_ms: spec.limits.timeout.map(|timeout| timeout.as_millis() as u64),
        kept_output_bytes: spec.limits.output_bytes,
        ..GuestConfig::default()
    }
}

impl Native {
    pub(crate) fn new(home: Home, trees: Trees) -> Native {
        let maps = start::read_small("/proc/self/uid_map").unwrap_or_default();
        let root = rustix::process::geteuid().is_root() && covers(&maps, UIDS);
        let (builders, ahead, thrown) = (Builders::default(), Ahead::default(), Mutex::default());
        Native { home, trees, root, builders, ahead, thrown }
    }

    /// Whether we are root over enough ids to give boxes ranges of their own. Root of a user namespace that has one id
    /// (a rootless container) is not, and is served like any other user.
    fn is_root(&self) -> bool {
        self.root
    }

    /// Which users the box has. `shift`: the kernel is believed to be able to shift layers.
    fn users(&self, id: &str, user: &str, shift: bool) -> Result<Users> {
        if self.is_root() {
            return Ok(if shift { Users::Range { base: self.home.take_uids(id)? } } else { Users::Same });
        }
        let name = user.split(':').next().unwrap_or(user);
        let inside = match name {
            "root" => 0,
            "user" => 1000,
            number => number.parse().ok().filter(|id| *id != u32::MAX).ok_or_else(|| {
                let message = format!(
                    "without root a box has one user, and {number:?} is no name that every image has; \
                     say `root`, `user` or a number"
                );
                Error::new(ErrorKind::Unsupported, message)
            })?,
        };
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Ok(Users::One { inside, uid, gid })
    }

    fn build(
        &self,
        id: &str,
        spec: &SandboxSpec,
        base: &Base,
        shift: bool,
    ) -> std::result::Result<Created, Failed> {
        let limits = limit::decide(&self.trees, spec)?;
        let level = self.level(spec, shift)?;
        let kind = self.kind(spec, base, &limits, shift);
        if let Some(begun) = kind.and_then(|kind| self.ahead.take(&kind)) {
            // One that was killed while it waited, or whatever else became of it: another one is made from the ground.
            if let Ok(created) = self.finish(begun, spec, base, &limits, &level) {
                return Ok(created);
            }
        }
        // It is executed while the rest is made.
        let builder = self.builders.take()?;
        let claim = self.home.claim(id)?;
        if let Some(name) = &spec.name {
            self.home.take_name(name, id)?;
        }
        let user = spec.user.as_ref().unwrap_or(&base.user);
        let users = self.users(id, user, shift)?;
        let top = match limits.memory_top {
            Some((bytes, inodes)) => Top::Memory { bytes, inodes },
            None => Top::Directory(restack::make_top(&self.home, id, 0, restack::uppermost(&base.layers)?)?),
        };
        let (generation, before) = (0, None);
        self.raise(Site { id, spec, base, claim, users, top, limits, level, generation, before, builder })
    }

    /// How strongly a box is isolated here, and what is missing; refused if that is less than is wanted.
    fn level(&self, spec: &SandboxSpec, shift: bool) -> Result<(Level, Vec<String>)> {
        let missing = self.missing(shift);
        let level = if missing.is_empty() { Level::Full } else { Level::Reduced };
        let wanted = spec.min_level.unwrap_or(Level::Full);
        if level < wanted {
            return Err(too_weak("host", level, wanted, &missing));
        }
        Ok((level, missing))
    }

    /// Raises the walls around a top, for the first time or again.
    fn raise(&self, site: Site<'_>) -> std::result::Result<Created, Failed> {
        let Site { id, spec, base, claim, users, top, limits, level, generation, before, builder } = site;
        let made = Made::cgroups(&self.trees, id, limits.cgroup)?;
        note_cgroup(&claim, &made.group)?;
        let mut parcel = self.parcel(&claim, users, &made.group)?;
        parcel.add_owner(spec.owner)?;
        let guest = self.guest(id, spec, base, &limits, users);
        let memory_bytes = limits.memory_beside_disk();
        let (read_only, volumes, ahead) = (spec.read_only, &spec.volumes[..], false);
        let mut plan = plan::plan(Decisions {
            base,
            store: Some(layers::store(&self.home)?),
            places: places::missing(&self.home, &base.layers, spec)?,
            top,
            generation,
            users,
            read_only,
            volumes,
            memory_bytes,
            guest,
            ahead,
        });
        plan.fds = parcel.roles.clone();
        plan.fault = faults::current();
        let ready = start::start(builder, &plan, &parcel.borrow())?;
        let (limits, level) = (&limits, &level);
        Ok(self.move_in(Raised {
            spec,
            base,
            claim,
            users,
            limits,
            level,
            generation,
            before,
            made,
            ready,
        })?)
    }

    /// Makes a box of one that was begun before anybody wanted it.
    fn finish(
        &self,
        begun: Begun,
        spec: &SandboxSpec,
        base: &Base,
        limits: &limit::Decided,
        level: &(Level, Vec<String>),
    ) -> std::result::Result<Created, Failed> {
        let Begun { id, claim, users, made, start, .. } = begun;
        if let Some(name) = &spec.name {
            self.home.take_name(name, &id)?;
        }
        let top = restack::dress_top(&self.home, &id, 0, restack::uppermost(&base.layers)?)?;
        let mut parcel = Parcel::default();
        parcel.add_owner(spec.owner)?;
        let mut rest = plan::rest(Decisions {
            base,
            store: Some(layers::store(&self.home)?),
            places: places::missing(&self.home, &base.layers, spec)?,
            top: Top::Directory(top),
            generation: 0,
            users,
            read_only: spec.read_only,
            volumes: &spec.volumes,
            memory_bytes: limits.memory_beside_disk(),
            guest: self.guest(&id, spec, base, limits, users),
            ahead: true,
        });
        rest.fds = parcel.roles.clone();
        let ready = start.finish(&rest, &parcel.borrow())?;
        let (generation, before) = (0, None);
        Ok(self.move_in(Raised {
            spec,
            base,
            claim,
            users,
            limits,
            level,
            generation,
            before,
            made,
            ready,
        })?)
    }

    /// What its guest needs to know.
    fn guest(
        &self,
        id: &str,
        spec: &SandboxSpec,
        base: &Base,
        limits: &limit::Decided,
        users: Users,
    ) -> GuestConfig {
        let (user, cwd) = abode(spec, base);
        GuestConfig {
            image_env: base.env.clone(),
            cwd,
            user,
            rlimits: [limits.rlimits.clone(), standard_rlimits()].concat(),
            tracking: self.tracking(),
            landlock: landlock::abi() >= LANDLOCK_ABI_MIN,
            command_filter: match spec.is_deterministic() {
                true => seccomp::without_random().to_words(),
                false => Vec::new(),
            },
            disk_reserve_bytes: limits.disk_reserve_bytes,
            switch_users: !matches!(users, Users::One { .. }),
            contained: true,
            pinned: spec.is_deterministic().then(|| pinned::pinned(id)),
            ..guest_config(spec)
        }
    }

    fn tracking(&self) -> Tracking {
        if self.trees.tracking().is_ok() { Tracking::Cgroup } else { Tracking::Tag }
    }

    /// The walls stand: puts the box on record and lets it go.
    fn move_in(&self, raised: Raised<'_>) -> Result<Created> {
        let Raised { spec, base, claim, users, limits, level, generation, before, made, ready } = raised;
        let id = claim.id().to_owned();
        self.trees.divide(&id, limits.cgroup).context("limit the box's cgroups")?;
        let (user, cwd) = abode(spec, base);
        let uid_base = match users {
            Users::Range { base } => Some(base),
            _ => None,
        };
        let (level, missing) = level.clone();
        let uncontrolled =
            if spec.is_deterministic() { pinned::uncontrolled(&ready.lacking) } else { Vec::new() };
        let facts = Facts {
            runtime: RuntimeKind::Native,
            level,
            missing,
            limits: limits.in_force.clone(),
            user,
            cwd,
            tracking: self.tracking(),
            uid_base,
            generation,
            uncontrolled,
            far: false,
        };
        let mut record = describe(&id, spec, base, ready.pid, facts)?;
        if let Some(before) = before {
            record.info.origin = before.info.origin.clone();
            record.info.created_ms = before.info.created_ms;
        }
        self.home.write_record(&record)?;
        let (stream, pidfd) = ready.commit()?;
        made.keep();
        claim.keep();
        Ok(Created { info: record.info, stream, pidfd: Some(pidfd) })
    }

    fn missing(&self, shift: bool) -> Vec<String> {
        let mut missing = Vec::new();
        if landlock::abi() < LANDLOCK_ABI_MIN {
            missing.push("landlock: this kernel has none, or an old one".to_owned());
        }
        if self.is_root() && !shift {
            missing.push(
                "own uid range: the file system cannot shift the owners of layers (idmapped mounts)".into(),
            );
        }
        missing
    }

    fn parcel(&self, claim: &Claim, users: Users, group: &Group) -> Result<Parcel> {
        let mut parcel = Parcel::for_box(claim)?;
        let owner = match users {
            Users::Range { base } => base,
            Users::Same => 0,
            Users::One { uid, .. } => uid,
        };
        if let Some(places) = group.track(owner).context("open the box's cgroup")? {
            parcel.add(FdRole::Birth, places.birth);
            parcel.add(FdRole::Track, places.commands);
            if let Some(procs) = places.first {
                parcel.add(FdRole::First, procs);
            }
        }
        for tasks in group.tasks().context("open the box's cgroups")? {
            if tasks.controller == Controller::Pids {
                parcel.add(FdRole::Tasks, tasks.own);
            } else {
                parcel.add(FdRole::Enter, tasks.own);
                parcel.add(FdRole::Leave, tasks.above);
            }
        }
        for (role, fd) in [
            (FdRole::OomEvents, group.events(Controller::Memory)),
            (FdRole::PidsEvents, group.events(Controller::Pids)),
            (FdRole::MemoryPeak, group.memory_peak()),
        ] {
            if let Some(fd) = fd.context("open the counters of the box's cgroups")? {
                parcel.add(role, fd);
            }
        }
        Ok(parcel)
    }
}

/// Landlock from this version on lets files be moved between directories.
pub(crate) const LANDLOCK_ABI_MIN: u32 = 2;

pub(crate) fn standard_rlimits() -> Vec<Rlimit> {
    use rustix::process::Resource;
    let at_most =
        |resource, value: u64| value.min(rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX));
    let files = at_most(Resource::Nofile, crate::limits::OPEN_FILES);
    let signals = at_most(Resource::Sigpending, crate::limits::PENDING_SIGNALS);
    vec![
        Rlimit { kind: RlimitKind::CoreBytes, value: 0 },
        Rlimit { kind: RlimitKind::QueueBytes, value: 0 },
        Rlimit { kind: RlimitKind::OpenFiles, value: files },
        Rlimit { kind: RlimitKind::PendingSignals, value: signals },
    ]
}

/// All that is decided before the walls are raised.
struct Site<'a> {
    id: &'a str,
    spec: &'a SandboxSpec,
    base: &'a Base,
    claim: Claim,
    users: Users,
    top: Top,
    limits: limit::Decided,
    level: (Level, Vec<String>),
    generation: u64,
    /// What was on record, if it was a box before.
    before: Option<&'a BoxRecord>,
    builder: Builder,
}

/// A box whose walls stand, and that is not on record yet.
struct Raised<'a> {
    spec: &'a SandboxSpec,
    base: &'a Base,
    users: Users,
    limits: &'a limit::Decided,
    level: &'a (Level, Vec<String>),
    generation: u64,
    /// What was on record, if it was a box before.
    before: Option<&'a BoxRecord>,
    // In the order in which they go if it comes to nothing: its first process, what that is in, its directory.
    ready: start::Ready,
    made: Made,
    claim: Claim,
}

/// Who its commands are, and where, unless they say otherwise.
fn abode(spec: &SandboxSpec, base: &Base) -> (String, String) {
    let user = spec.user.as_ref().unwrap_or(&base.user);
    let cwd = spec.cwd.as_ref().unwrap_or(&base.cwd);
    (user.clone(), cwd.clone())
}

/// Cgroups that are removed again unless they are kept.
#[derive(Debug)]
struct Made {
    group: Group,
    kept: bool,
}

impl Made {
    fn cgroups(trees: &Trees, id: &str, limits: glasshouse_linux::cgroup::Limits) -> Result<Made> {
        let group = trees.create(id, limits).context("make the box's cgroups")?;
        Ok(Made { group, kept: false })
    }

    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if !self.kept {
            // What cannot be removed now is found by the next `gc`.
            let _ = self.group.remove();
        }
    }
}

fn told(failure: StepFailure, home: &Home) -> Error {
    let why = std::io::Error::from_raw_os_error(failure.errno);
    let hint = probe::hint(&failure, home).map(|hint| format!("; {hint}")).unwrap_or_default();
    let message = format!("cannot build the box: step {} ({}): {why}{hint}", failure.step, failure.on);
    let kind = match failure.step.as_str() {
        // A file system that cannot shift owners.
        "volume" => ErrorKind::Unsupported,
        "namespaces" | "id maps" | "overlay root" | "mount /proc" | "system call filter" => {
            ErrorKind::Unsupported
        }
        _ => ErrorKind::Failed,
    };
    Error::new(kind, message)
}

/// Whether a failed step says that owners of layers cannot be shifted here.
fn cannot_shift(failure: &StepFailure) -> bool {
    let refusals = [
        rustix::io::Errno::INVAL,
        rustix::io::Errno::PERM,
        rustix::io::Errno::NOSYS,
        rustix::io::Errno::OPNOTSUPP,
    ];
    failure.step == "overlay root" && refusals.iter().any(|errno| errno.raw_os_error() == failure.errno)
}

impl Runtime for Native {
    fn probe(&self) -> RuntimeReport {
        probe::probe(self)
    }

    fn create(&self, id: &str, spec: &SandboxSpec, base: &Base) -> Result<Created> {
        let first = match self.build(id, spec, base, true) {
            Ok(created) => return Ok(created),
            Err(failed) => failed,
        };
        let failed = match first {
            Failed::Step(failure)
                if self.is_root() && cannot_shift(&failure) && faults::current().is_none() =>
            {
                // The same without shifted owners: weaker, so only if the caller accepts that.
                match self.build(id, spec, base, false) {
                    Ok(created) => return Ok(created),
                    Err(Failed::Step(_)) => Failed::Step(failure),
                    Err(other) => other,
                }
            }
            other => other,
        };
        Err(match failed {
            Failed::Step(failure) => told(failure, &self.home),
            Failed::Other(error) => error,
        })
    }

    fn connect(&self, info: &SandboxInfo) -> Result<UnixStream> {
        connect_in(&self.home, info)
    }

    fn snapshot(&self, id: &str, layer: &str) -> Result<Taken> {
        self.take_snapshot(id, layer)
    }

    fn hold_still(&self, id: &str, look: &mut dyn FnMut(Still<'_>) -> Result<()>) -> Result<()> {
        self.look_at(id, look)
    }

    fn restore(&self, id: &str, chain: Vec<String>) -> Result<SandboxInfo> {
        self.put_back(id, chain)
    }

    fn stop(&self, id: &str) -> Result<()> {
        self.end_but_keep(id)
    }

    fn start(&self, id: &str) -> Result<Created> {
        self.build_again(id)
    }

    fn destroy(&self, info: Option<&SandboxInfo>, id: &str) -> Result<()> {
        let group = cgroups_of(&self.home, &self.trees, id)?;
        // It may have been stopped and started since whoever asks has looked: its first process is the one on record.
        let written = self.home.read_written(id).ok().flatten().map(|record| record.info);
        if let Some(info) = written.as_ref().or(info) {
            match living(&self.home, info)? {
                Some(pidfd) => {
                    // A word first, so that whoever reads from the box learns why it ends; then for certain.
                    if let Ok(stream) = self.connect(info) {
                        ask_to_shut_down(&stream);
                        let _ = process::wait_end(pidfd.as_fd(), GOODBYE_TIMEOUT);
                    }
                    start::end(pidfd.as_fd());
                }
                None => {
                    // It may be a child of ours that nobody has collected yet.
                    let _ = process::reap_pid(info.pid);
                }
            }
        }
        group.kill().context("kill what is left of the box")?;
        group.remove().context("remove the box's cgroups")?;
        self.home.remove_box(info, id)
    }

    fn tidy(&self) -> Result<()> {
        let tidied = self.builders.tidy().and(self.begin_ahead()).and(self.builders.tidy());
        let thrown = std::mem::take(&mut *self.thrown.lock().unwrap_or_else(PoisonError::into_inner));
        thrown.iter().try_for_each(|name| self.home.empty_trash_of(name))?;
        tidied
    }

    fn traces_outside(&self) -> Result<Vec<String>> {
        self.trees.list().context("list cgroups")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_the_ids_can_give_them_to_boxes() {
        assert!(covers("         0          0 4294967295\n", UIDS));
        assert!(!covers("         0       1001          1\n", UIDS));
        assert!(!covers("         0     100000      65536\n", UIDS));
        assert!(!covers("", UIDS));
    }
}
