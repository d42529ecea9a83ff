//! The runtime `docker`: a box is a container of a Docker engine, with our guest as its first process.
//!
//! ```text
//!   claim directory ─▶ image for the engine ─▶ container (hull) ─▶ door ─▶ engine starts it ─▶ guest comes to the door
//!        │                                          │                           │  plan + descriptors, as in a native box
//!        │                                          │                           ▼
//!        └──────────────────────────────────────────┴── any failure:     box.json ─▶ commit ─▶ the box is on its own
//!                                                       removed, nothing is left
//! ```
//! From there on it is a box like any other: its life is a lock that its first process holds, its guest is reached through
//! the socket in its directory, and no command goes through the engine. The engine is asked for life, death and state.
//!
//! | file | what it does |
//! |---|---|
//! | `engine` | the way to the engine |
//! | `hull` | the container, as data |
//! | `profile` | our system call filter in the engine's words |
//! | `door` | how the guest gets in, and its plan to it |
//! | `far`, `bridge` | the same where the engine sees nothing of our files |
//! | `image` | what a container is made from |
//! | `state` | snapshot, restore, stop, start |
//! | `kept` | whether the engine has what a box writes |
//! | `missed` | whether the engine notices what a box has changed |
//! | `unseen` | what boxes and images hold where no directory of the engine's can be read |
//!
//! The picture is of an engine that sees this host's files: one on the same machine, whatever way leads to it (a socket, TCP,
//! TLS). One that does not is known by that it cannot mount the door, or that the guest finds nobody behind it.

mod bridge;
mod door;
mod engine;
mod far;
mod hull;
mod image;
mod kept;
mod missed;
mod probe;
mod profile;
mod pull;
mod state;
mod unseen;

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Instant;

use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{
    CreateContainerOptions, ListContainersOptions, RemoveContainerOptionsBuilder,
};
use glasshouse_linux::cgroup::{self, Limits as CgroupLimits, Membership, Trees};
use glasshouse_linux::rustix::fs::{CWD, Mode, OFlags, openat};
use glasshouse_linux::rustix::process::{Resource, getrlimit};
use glasshouse_linux::{landlock, mount, process, rustix, seccomp};
use glasshouse_protocol::plan::{
    FdRole, GuestConfig, NOBODY_AT_THE_DOOR, Plan, PlannedStep, Side, Step, Tracking,
};
use glasshouse_protocol::{Rlimit, RlimitKind};

pub use engine::{EngineSettings, EngineTls};
pub use pull::EngineImage;

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{BoxRecord, Claim, Elsewhere, Home};
use crate::image::Base;
use crate::limits::{
    DEATH_TIMEOUT, DISK_RESERVE_BYTES, ENGINE_OPEN_FILES, ENGINE_PROCESSES, GOODBYE_TIMEOUT, LIST_AGAIN,
    REMOVE_TRIES,
};
use crate::runtime::start::{self, Failed, Parcel};
use crate::runtime::{
    Created, Facts, Runtime, RuntimeReport, Still, Taken, connect_in, describe, native, too_weak,
};
use crate::spec::{Image, Level, RuntimeKind, SandboxInfo, SandboxSpec, Volume};
use door::Porter;
use engine::Engine;
use hull::{Hull, KEPT, LABEL_BOX, LABEL_HOME, Way};

/// The name of the directory in a container's own cgroup in which its commands get theirs.
const COMMANDS: &str = "glass";

pub(crate) struct Docker {
    home: Home,
    trees: Trees,
    engine: Engine,
}

/// All that is decided before a container is started.
struct Site<'a> {
    id: &'a str,
    spec: &'a SandboxSpec,
    base: &'a Base,
    claim: Claim,
    container: Container<'a>,
    limits: hull::Decided,
    generation: u64,
    /// What was on record, if it was a box before.
    before: Option<&'a BoxRecord>,
}

impl Site<'_> {
    fn user(&self) -> String {
        self.spec.user.clone().unwrap_or_else(|| self.base.user.clone())
    }

    fn cwd(&self) -> String {
        self.spec.cwd.clone().unwrap_or_else(|| self.base.cwd.clone())
    }

    /// What its guest is told, whatever way leads to it.
    fn guest(&self, tracking: Tracking) -> GuestConfig {
        GuestConfig {
            image_env: self.base.env.clone(),
            cwd: self.cwd(),
            user: self.user(),
            tracking,
            // A container that was made before may hold an older guest, which makes up no word.
            command_filter: self.before.map_or_else(Vec::new, |_| seccomp::command().to_words()),
            disk_reserve_bytes: self.limits.disk_bytes.is_none().then_some(DISK_RESERVE_BYTES),
            switch_users: true,
            contained: true,
            ..native::guest_config(self.spec)
        }
    }

    /// What goes on record of it.
    fn record(&self, pid: i32, strength: Strength, tracking: Tracking, far: bool) -> Result<BoxRecord> {
        let facts = Facts {
            runtime: RuntimeKind::Docker,
            level: strength.level,
            missing: strength.missing,
            limits: self.limits.in_force.clone(),
            user: self.user(),
            cwd: self.cwd(),
            tracking,
            uid_base: None,
            generation: self.generation,
            uncontrolled: Vec::new(),
            far,
        };
        let mut record = describe(self.id, self.spec, self.base, pid, facts)?;
        if let Some(before) = self.before {
            record.info.origin = before.info.origin.clone();
            record.info.created_ms = before.info.created_ms;
        }
        Ok(record)
    }

    /// The box is one: container and directory stay.
    fn keep(mut self) {
        self.container.kept = true;
        self.claim.keep();
    }
}

/// A container that is removed again unless it is kept.
struct Container<'a> {
    engine: &'a Engine,
    name: String,
    kept: bool,
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        if !self.kept {
            // What cannot be removed now is found by the next `gc`.
            let _ = remove(self.engine, &self.name);
        }
    }
}

/// Removes a container, whatever it does. One that is not there is none.
fn remove(engine: &Engine, name: &str) -> Result<()> {
    let mut tries = 1..REMOVE_TRIES;
    loop {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let removed = engine.ask_known(&format!("remove the container {name}"), async |docker| {
            docker.remove_container(name, Some(options)).await
        });
        match removed {
            // Somebody else removes it at this moment.
            Err(e) if e.kind() == ErrorKind::Exists => return Ok(()),
            // It ended at this moment: an engine that takes it for running fails to kill it, and gives up. If it fails for
            // another reason, it will do so again.
            Err(e) if e.kind() == ErrorKind::Failed && tries.next().is_some() => {
                engine.wait_ended(name, DEATH_TIMEOUT)?;
            }
            removed => return removed.map(drop),
        }
    }
}

/// A guest that came to its door: the stream to it, who it is on this host, and what the engine says of its container.
struct Met {
    stream: UnixStream,
    pid: i32,
    state: ContainerInspectResponse,
}

/// Why there is no container with a guest in it.
#[derive(Debug)]
enum Unmade {
    /// The engine does not see the door, or leads nobody through it.
    Unseen,
    Other(Error),
}

impl From<Error> for Unmade {
    fn from(error: Error) -> Unmade {
        Unmade::Other(error)
    }
}

impl Unmade {
    /// For whoever knows of no other way.
    fn into_error(self) -> Error {
        let message = "the engine does not see this host's files any more, and the box was made when it did";
        match self {
            Unmade::Unseen => Error::new(ErrorKind::Unsupported, message),
            Unmade::Other(error) => error,
        }
    }
}

/// A plan that came to nothing, in words.
fn step_failed(failed: Failed) -> Error {
    match failed {
        Failed::Step(step) if step.errno == rustix::io::Errno::NOSYS.raw_os_error() => {
            let message = format!(
                "the kernel in the container does not have what the guest needs (step {}, {}): some runtimes of engines have \
                 kernels of their own that lack something; use the engine's default one, or one with Linux in it (Kata)",
                step.step, step.on
            );
            Error::new(ErrorKind::Unsupported, message)
        }
        Failed::Step(step) => {
            let why = std::io::Error::from_raw_os_error(step.errno);
            let message = format!("cannot build the box: step {} ({}): {why}", step.step, step.on);
            Error::new(ErrorKind::Failed, message)
        }
        Failed::Other(error) => error,
    }
}

/// Refuses a level that is less than is wanted. Whoever asks for this runtime by name takes what it has, unless he says how
/// much he wants.
fn check_level(spec: &SandboxSpec, level: Level, missing: &[String]) -> Result<()> {
    let Some(wanted) = spec.min_level.filter(|wanted| level < *wanted) else { return Ok(()) };
    Err(too_weak("engine", level, wanted, missing))
}

/// How strongly a box is isolated, and what is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Strength {
    level: Level,
    missing: Vec<String>,
}

impl Docker {
    pub(crate) fn new(home: Home, trees: Trees, settings: EngineSettings) -> Docker {
        let engine = Engine::new(settings);
        let ask = |question: fn(&Engine, &str) -> bool| -> Box<dyn Fn(&str) -> bool + Send + Sync> {
            let (asked, boxes) = (engine.clone(), home.path("boxes"));
            Box::new(move |id| {
                let container = start::read_small(boxes.join(id).join(crate::home::FAR));
                container.is_some_and(|container| question(&asked, &container))
            })
        };
        let (lives, is_paused) = (ask(Docker::lives_there), ask(Docker::is_paused_there));
        home.ask_elsewhere(Elsewhere { lives, is_paused });
        Docker { home, trees, engine }
    }

    /// The container of a box. Each root that a box is given is a container of its own.
    fn container_of(&self, id: &str, generation: u64) -> Result<String> {
        Ok(format!("glass-{}-{id}-{generation}", self.home_name()?))
    }

    fn check(&self, spec: &SandboxSpec) -> Result<()> {
        self.check_runtime(spec.engine_runtime.as_deref())?;
        self.check_disk(spec.limits.disk_bytes)?;
        if spec.is_deterministic() {
            let otherwise = match &spec.image {
                Image::Snapshot(_) => ", or --deterministic=false if this snapshot made it so",
                _ => "",
            };
            let message = format!(
                "the runtime `docker` cannot give a box a clock, random numbers and pids of its own \
                 (--deterministic): engines have no way to ask for that; use `native`{otherwise}"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(())
    }

    /// How strongly boxes are isolated; refused if that is less than is wanted.
    fn level(&self, spec: &SandboxSpec) -> Result<Strength> {
        let strength = self.strength(landlock::abi() >= native::LANDLOCK_ABI_MIN)?;
        check_level(spec, strength.level, &strength.missing)?;
        Ok(strength)
    }

    /// A word that tells homes apart, on this machine and on an engine that others use, too.
    fn home_name(&self) -> Result<String> {
        let dir = self.home.path("engine");
        let path = dir.join(door::NAME);
        if let Some(name) = start::read_small(&path) {
            return Ok(format!("{}-{name}", self.home.tag()?));
        }
        let made = (|| {
            std::fs::create_dir_all(&dir)?;
            let part = dir.join(format!("{}~", crate::sandboxes::new_id().map_err(std::io::Error::other)?));
            std::fs::write(&part, crate::sandboxes::new_id().map_err(std::io::Error::other)?)?;
            // Whoever is first names it.
            let linked = std::fs::hard_link(&part, &path);
            std::fs::remove_file(&part)?;
            match linked {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e),
                _ => Ok(()),
            }
        })();
        made.context(format_args!("write {}", path.display()))?;
        let name = start::read_small(&path);
        let lost = || Error::new(ErrorKind::Failed, format!("{} cannot be read", path.display()));
        Ok(format!("{}-{}", self.home.tag()?, name.ok_or_else(lost)?))
    }

    /// Our filter as the engine takes it: as it is, or as a file of this host.
    fn filter(&self, id: &str) -> Result<String> {
        if !self.engine.is_podman()? {
            return Ok(profile::profile());
        }
        let path = self.home.box_dir(id).join("seccomp.json");
        std::fs::write(&path, profile::profile()).context(format_args!("write {}", path.display()))?;
        Ok(path.to_string_lossy().into_owned())
    }

    /// What Podman has to be told of limits: it asks for a million of these by itself, which not every root may give. Docker
    /// gives what it has.
    fn ulimits(&self) -> Result<Vec<(&'static str, i64)>> {
        if !self.engine.is_podman()? {
            return Ok(Vec::new());
        }
        let most =
            |resource: Resource, most: u64| getrlimit(resource).maximum.map_or(most, |own| own.min(most));
        let limits =
            [("nofile", Resource::Nofile, ENGINE_OPEN_FILES), ("nproc", Resource::Nproc, ENGINE_PROCESSES)];
        Ok(limits.map(|(name, resource, bound)| (name, most(resource, bound) as i64)).to_vec())
    }

    /// Makes the container of a box.
    fn contain(&self, hull: &Hull<'_>, generation: u64) -> std::result::Result<Container<'_>, Unmade> {
        let name = self.container_of(hull.id, generation)?;
        let options =
            CreateContainerOptions { name: Some(name.clone()), ..CreateContainerOptions::default() };
        let body = hull::body(hull);
        let made = self
            .engine
            .ask("make the container", async |docker| docker.create_container(Some(options), body).await);
        match made {
            Ok(_) => Ok(Container { engine: &self.engine, name, kept: false }),
            // Of all that it is asked for, only what it is to mount has this path.
            Err(e)
                if e.kind() != ErrorKind::Unreachable
                    && matches!(hull.way, Way::Door { door, .. }
                        if e.to_string().contains(&*door.to_string_lossy())) =>
            {
                Err(Unmade::Unseen)
            }
            // Only asking tells whether the storage driver can, and it says so only here.
            Err(e) if hull.limits.disk_bytes.is_some() && e.kind() != ErrorKind::Unreachable => {
                let message = format!("cannot enforce a disk limit here: {e}; {}", probe::DISK_HINT);
                Err(Error::new(ErrorKind::Unsupported, message).into())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Starts a container whose guest comes to the door, and waits for it there.
    fn start_near(&self, id: &str, name: &str) -> std::result::Result<Met, Unmade> {
        let porter = Porter::new(&self.home, id)?;
        self.engine.ask("start the container", async |docker| docker.start_container(name, None).await)?;
        let (stream, pid) = porter.wait(&mut || self.sees_running(name))?;
        let state = self.inspect(name)?;
        // Whoever came to the door has to be the container's first process, as the engine knows it. Else it is in a pid
        // namespace of its own, and sees another world.
        match state.state.as_ref().and_then(|state| state.pid) {
            Some(known) if known == i64::from(pid) => Ok(Met { stream, pid, state }),
            _ => Err(Unmade::Unseen),
        }
    }

    /// Gives the guest of a container its plan.
    fn raise(&self, site: Site<'_>, met: Met) -> Result<Created> {
        let Met { stream, pid, state } = met;
        let (id, spec) = (site.id, site.spec);
        check_volumes(&spec.volumes, pid)?;
        let strength = self.level(spec)?;
        let mut parcel = Parcel::for_box(&site.claim)?;
        parcel.add_owner(spec.owner)?;
        let tracking = self.place(id, pid, &site.claim, &mut parcel)?;
        let guest = GuestConfig {
            rlimits: rlimits_of(pid)?,
            landlock: landlock::abi() >= native::LANDLOCK_ABI_MIN,
            ..site.guest(tracking)
        };
        let plan =
            Plan { fds: parcel.roles.clone(), steps: steps(), guest, fault: native::faults::current() };
        let ready = start::greet(stream, pid, &plan, &parcel.borrow()).map_err(step_failed)?;
        self.note_upper(id, &state)?;
        let record = site.record(ready.pid, strength, tracking, false)?;
        self.home.write_record(&record)?;
        let (stream, pidfd) = ready.commit()?;
        site.keep();
        Ok(Created { info: record.info, stream, pidfd: Some(pidfd) })
    }

    fn inspect(&self, name: &str) -> Result<ContainerInspectResponse> {
        self.engine.ask("look at the container", async |docker| docker.inspect_container(name, None).await)
    }

    /// Fails if the container has ended before its guest came.
    fn sees_running(&self, name: &str) -> std::result::Result<(), Unmade> {
        let state = self.inspect(name)?.state.unwrap_or_default();
        if state.running == Some(true) {
            return Ok(());
        }
        let (code, why) = (state.exit_code.unwrap_or(-1), state.error.unwrap_or_default());
        if code == i64::from(NOBODY_AT_THE_DOOR) {
            return Err(Unmade::Unseen);
        }
        let oom = if state.oom_killed == Some(true) { "; it ran out of memory" } else { "" };
        let message =
            format!("cannot start the box: its container ended at once, with code {code}{oom} {why}");
        Err(Error::new(ErrorKind::Failed, message.trim_end()).into())
    }

    /// Where commands are told from each other, and the counters of what limits them.
    fn place(&self, id: &str, pid: i32, claim: &Claim, parcel: &mut Parcel) -> Result<Tracking> {
        let Membership { v2, oom_events, pids_events, memory_peak, limited } =
            cgroup::of_process(pid).context("look at the container's cgroups")?;
        for limit in limited {
            // As in a native box: what commands use up must not be the end of who has to tell of it. Memory that belongs to
            // no process would cost the guest its life.
            limit.leave(pid).context("take the guest out of what limits commands")?;
            parcel.add(FdRole::Enter, limit.tasks);
        }
        for (role, fd) in [
            (FdRole::OomEvents, oom_events),
            (FdRole::PidsEvents, pids_events),
            (FdRole::MemoryPeak, memory_peak),
        ] {
            if let Some(fd) = fd {
                parcel.add(role, fd);
            }
        }
        let owner = process_owner(pid)?;
        let track = match v2 {
            // Inside of what the engine limits: a directory without controllers of its own.
            Some(dir) => {
                let commands = dir.join(COMMANDS);
                match std::fs::create_dir(&commands) {
                    Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => None,
                    made => {
                        made.context(format_args!("make {}", commands.display()))?;
                        Some(cgroup::lend(&commands, owner).context("open the commands' cgroup")?)
                    }
                }
            }
            // The engine limits by v1 alone: the v2 tree is free, and has no controllers.
            None if self.trees.tracking().is_ok() => self.track_beside(id, pid, owner, claim)?,
            None => None,
        };
        Ok(match track {
            Some(dir) => {
                parcel.add(FdRole::Track, dir);
                Tracking::Cgroup
            }
            None => Tracking::Group,
        })
    }

    fn track_beside(&self, id: &str, pid: i32, owner: u32, claim: &Claim) -> Result<Option<OwnedFd>> {
        let made = self.trees.create(id, CgroupLimits::default()).context("make the box's cgroups")?;
        native::note_cgroup(claim, &made)?;
        if let Some(dir) = made.tracked() {
            // The kernel lets a process be born elsewhere only by who may write to the place above both.
            let procs = dir.join("cgroup.procs");
            std::fs::write(&procs, pid.to_string()).context(format_args!("write {}", procs.display()))?;
        }
        Ok(made.track(owner).context("open the box's cgroup")?.map(|places| places.commands))
    }

    /// Writes down where the engine keeps what the box writes, if we can read it there.
    fn note_upper(&self, id: &str, state: &ContainerInspectResponse) -> Result<()> {
        let driver = state.graph_driver.as_ref().filter(|driver| driver.name == "overlay2");
        let upper = driver.and_then(|driver| driver.data.get("UpperDir"));
        // Files of users that are others on the host would be taken for those of others in the box.
        let upper = upper.filter(|dir| std::fs::read_dir(dir).is_ok());
        let upper = if self.engine.remaps()? { None } else { upper };
        let path = self.home.box_dir(id).join("upper");
        match upper {
            Some(dir) => std::fs::write(&path, dir).context(format_args!("write {}", path.display())),
            // What was noted of the container before is of no use any more.
            None => match std::fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(Error::io(format!("remove {}", path.display()), e))
                }
                _ => Ok(()),
            },
        }
    }

    /// Where the engine keeps what a box writes, if we can read it there.
    fn upper_of(&self, id: &str) -> Option<PathBuf> {
        let noted = start::read_small(self.home.box_dir(id).join("upper")).map(PathBuf::from);
        noted.filter(|dir| dir.is_absolute())
    }

    /// Ends the first process of a box, politely if it listens, and waits until it is gone.
    fn end_guest(&self, info: &SandboxInfo) -> Result<()> {
        if self.home.is_far(&info.id) {
            return self.end_far(info);
        }
        let Some(pidfd) = native::living(&self.home, info)? else { return Ok(()) };
        if let Ok(stream) = self.connect(info) {
            native::ask_to_shut_down(&stream);
            let _ = process::wait_end(pidfd.as_fd(), GOODBYE_TIMEOUT);
        }
        let name = self.container_of(&info.id, info.generation)?;
        if process::wait_end(pidfd.as_fd(), std::time::Duration::ZERO).unwrap_or(false) {
            return Ok(());
        }
        // One that has ended in this moment, or is gone, is what we want.
        let _ =
            self.engine.ask("kill the container", async |docker| docker.kill_container(&name, None).await);
        let _ = process::wait_end(pidfd.as_fd(), DEATH_TIMEOUT);
        Ok(())
    }

    /// The containers of this home, each with its box.
    fn containers(&self) -> Result<Vec<(String, String)>> {
        let label = format!("{LABEL_HOME}={}", self.home_name()?);
        let filters = HashMap::from([("label".to_owned(), vec![label])]);
        let options =
            ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
        let deadline = Instant::now() + DEATH_TIMEOUT;
        let found = loop {
            let options = options.clone();
            let listed = self
                .engine
                .ask("list containers", async |docker| docker.list_containers(Some(options)).await);
            match listed {
                // Podman calls one that has ended and is not cleaned up yet by a word that Docker does not have, and that
                // makes the whole list unreadable. It passes.
                Err(e) if Instant::now() < deadline && self.engine.is_podman()? && is_unreadable(&e) => {
                    std::thread::sleep(LIST_AGAIN);
                }
                listed => break listed?,
            }
        };
        let pair = |found: bollard::models::ContainerSummary| {
            let id = found.labels?.remove(LABEL_BOX)?;
            Some((found.id?, id))
        };
        Ok(found.into_iter().filter_map(pair).collect())
    }
}

/// Whether an answer was not understood.
fn is_unreadable(error: &Error) -> bool {
    error.kind() == ErrorKind::Failed && error.to_string().contains("unknown variant")
}

/// What the first process of a container does itself: it gives up what it was given to start with, and loads our filter.
fn steps() -> Vec<PlannedStep> {
    let keep = KEPT.iter().map(|(cap, _)| cap.bit().trailing_zeros()).collect();
    let filter = Step::Filter { words: native::base_filter().to_vec() };
    [Step::DropPrivileges { keep }, filter].map(|step| PlannedStep { side: Side::Box, step }).to_vec()
}

/// The limits of each process, none above what the engine gave the first one: it may not raise them.
fn rlimits_of(pid: i32) -> Result<Vec<Rlimit>> {
    let path = format!("/proc/{pid}/limits");
    let text = std::fs::read_to_string(&path).context(format_args!("read {path}"))?;
    let most = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let most = |kind: RlimitKind| match kind {
        RlimitKind::OpenFiles => most("Max open files"),
        RlimitKind::PendingSignals => most("Max pending signals"),
        _ => None,
    };
    let limits = native::standard_rlimits().into_iter();
    Ok(limits
        .map(|limit| Rlimit { value: limit.value.min(most(limit.kind).unwrap_or(u64::MAX)), ..limit })
        .collect())
}

/// The engine finds volumes by their names, and somebody else's box may have changed what these lead to. So what it has mounted
/// has to be what was looked at, before anything in the container runs but the guest.
fn check_volumes(volumes: &[Volume], pid: i32) -> Result<()> {
    if volumes.is_empty() {
        return Ok(());
    }
    let path = format!("/proc/{pid}/root");
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, &path, flags, Mode::empty()).context(
        "look at the volumes of the container, which takes the right to look at its first process (root's)",
    )?;
    for volume in volumes {
        let place = mount::find(root.as_fd(), volume.path.trim_start_matches('/'));
        let found = place.and_then(|place| mount::identity(place.as_fd()));
        if found.ok() != volume.seen || volume.seen.is_none() {
            let message = format!(
                "the engine has not put {} at {}: it was replaced meanwhile, a link is on the way in the image, or the engine \
                 is not one of this machine",
                volume.host.display(),
                volume.path
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
    }
    Ok(())
}

/// Who a container's root is on this host.
fn process_owner(pid: i32) -> Result<u32> {
    use std::os::unix::fs::MetadataExt;
    let path = format!("/proc/{pid}");
    Ok(std::fs::metadata(&path).context(format_args!("look at {path}"))?.uid())
}

impl Runtime for Docker {
    fn probe(&self) -> RuntimeReport {
        probe::probe(self)
    }

    fn create(&self, id: &str, spec: &SandboxSpec, base: &Base) -> Result<Created> {
        // It goes on record: whoever gives the box another root later gives it the same walls.
        let asked = spec.engine_runtime.clone().or_else(|| self.engine.runtime().map(str::to_owned));
        let spec = &SandboxSpec { engine_runtime: asked, ..spec.clone() };
        self.check(spec)?;
        let limits = hull::decide(&spec.limits)?;
        let rooted = self.root(base)?;
        let claim = self.home.claim(id)?;
        if let Some(name) = &spec.name {
            self.home.take_name(name, id)?;
        }
        self.build(id, spec, &rooted, claim, limits, 0, None)
    }

    fn connect(&self, info: &SandboxInfo) -> Result<UnixStream> {
        if self.home.is_far(&info.id) {
            let container = self.container_of(&info.id, info.generation)?;
            return bridge::connect(&self.engine, &container, bridge::End::Ours);
        }
        connect_in(&self.home, info)
    }

    fn snapshot(&self, id: &str, _: &str) -> Result<Taken> {
        self.commit(id)
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
        self.start_again(id)
    }

    fn destroy(&self, info: Option<&SandboxInfo>, id: &str) -> Result<()> {
        if let Some(info) = info {
            self.end_guest(info)?;
        }
        for (container, of) in self.containers()? {
            if of == id {
                remove(&self.engine, &container)?;
            }
        }
        let group = native::cgroups_of(&self.home, &self.trees, id)?;
        group.kill().context("kill what is left of the box")?;
        group.remove().context("remove the box's cgroups")?;
        self.home.remove_box(info, id)
    }

    fn traces_outside(&self) -> Result<Vec<String>> {
        // A home that never had a container need not ask for any.
        if !door::was_used(&self.home) {
            return Ok(Vec::new());
        }
        Ok(self.containers()?.into_iter().map(|(_, id)| id).collect())
    }

    fn sweep(&self, used: &BTreeSet<String>) -> Result<usize> {
        // A home that never had a container has no images of any.
        if door::was_used(&self.home) { self.drop_images(used) } else { Ok(0) }
    }
}
