//! Runtimes: life, death and state of boxes, and never their work.
//!
//! Commands, files and terminals go over the connection to the guest, which does not know which runtime it lives in.

mod builders;
pub(crate) mod docker;
pub(crate) mod native;
mod process;
mod start;
pub(crate) mod volume;

pub(crate) use start::reader;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use glasshouse_linux::descriptor;
use glasshouse_protocol::plan::Tracking;

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{BoxRecord, Given, Home};
use crate::image::Base;
use crate::snapshot::Tree;
use crate::snapshot::records::{CopiedFor, Method};
use crate::spec::{Level, LimitInForce, RuntimeKind, SandboxInfo, SandboxSpec, SandboxState};

/// What a runtime can do on this host.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimeReport {
    /// Which.
    pub runtime: RuntimeKind,
    /// How strongly it isolates.
    pub level: Level,
    /// Each thing that it uses, whether it is there, and what to do about it if not.
    pub features: Vec<Feature>,
    /// Default limits, each with what enforces it.
    pub limits: Vec<LimitInForce>,
}

/// Something that a runtime uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// What.
    pub name: String,
    /// It is there.
    pub ok: bool,
    /// How it is there, or why not.
    pub detail: String,
    /// What would help.
    pub hint: Option<String>,
}

/// A box that has been made, and the first stream to its guest.
pub(crate) struct Created {
    pub(crate) info: SandboxInfo,
    pub(crate) stream: UnixStream,
    /// Its first process, which is a child of ours, or a container's. None if it is on another machine.
    pub(crate) pidfd: Option<OwnedFd>,
}

/// What became of what a box had written.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub(crate) method: Method,
    pub(crate) copied_for: Option<CopiedFor>,
    /// The layers of the snapshot, uppermost first.
    pub(crate) chain: Vec<String>,
    /// Processes that ran.
    pub(crate) processes: u64,
}

/// A box that does not move.
pub(crate) struct Still<'a> {
    pub(crate) record: &'a BoxRecord,
    /// What it has written since it was last given a root.
    pub(crate) upper: &'a Tree,
    /// Processes in it beside its first one.
    pub(crate) processes: u64,
    /// What the first of them are, by their command lines.
    pub(crate) names: &'a [String],
    /// Some of them were not at rest when they were stopped.
    pub(crate) at_work: bool,
}

impl Still<'_> {
    /// The layers that stand below what it has written; none where that is all that it shows.
    pub(crate) fn below(&self) -> Vec<String> {
        match self.upper {
            Tree::Elsewhere(_) => Vec::new(),
            Tree::At(_) | Tree::InMemory(_) => self.record.info.chain.clone(),
        }
    }
}

/// The first processes of the boxes that this process made: its children, to be collected when they end, however they
/// end and whoever removes the box.
#[derive(Debug, Default)]
pub(crate) struct Children(Mutex<Vec<OwnedFd>>);

impl Children {
    pub(crate) fn add(&self, pidfd: Option<OwnedFd>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(pidfd);
    }

    /// Collects those that have ended, and forgets those that somebody else has collected.
    pub(crate) fn reap(&self) {
        use std::os::fd::AsFd;
        let runs_on =
            |pidfd: &mut OwnedFd| matches!(glasshouse_linux::process::reap(pidfd.as_fd()), Ok(None));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain_mut(runs_on);
    }
}

/// What every runtime does. Making and removing take their time; callers see to that.
pub(crate) trait Runtime: Send + Sync {
    /// What it can do here.
    fn probe(&self) -> RuntimeReport;
    /// Makes a box. When this fails, nothing of it is left.
    fn create(&self, id: &str, spec: &SandboxSpec, base: &Base) -> Result<Created>;
    /// A new stream to the guest of a living box. Does not wait, unless that is on another machine.
    fn connect(&self, info: &SandboxInfo) -> Result<UnixStream>;
    /// Makes a layer with this name of what the box has written.
    fn snapshot(&self, id: &str, layer: &str) -> Result<Taken>;
    /// Has somebody look at a box while nothing in it moves.
    fn hold_still(&self, id: &str, look: &mut dyn FnMut(Still<'_>) -> Result<()>) -> Result<()>;
    /// Kills everything in a box but its first process, and puts it on this chain with an empty top. What it is then.
    fn restore(&self, id: &str, chain: Vec<String>) -> Result<SandboxInfo>;
    /// Ends a box and keeps what it has written.
    fn stop(&self, id: &str) -> Result<()>;
    /// Builds a box that was stopped again, around what it had written.
    fn start(&self, id: &str) -> Result<Created>;
    /// Ends a box and removes all of it. May be called again.
    fn destroy(&self, info: Option<&SandboxInfo>, id: &str) -> Result<()>;
    /// What no caller has to wait for: collects who has ended, and makes ready what the next one will want.
    fn tidy(&self) -> Result<()> {
        Ok(())
    }
    /// The ids of boxes that have something outside of the home, so that nothing is forgotten.
    fn traces_outside(&self) -> Result<Vec<String>>;
    /// Removes what it keeps of states outside of the home that none of these layers names. How many.
    fn sweep(&self, _used: &BTreeSet<String>) -> Result<usize> {
        Ok(0)
    }
}

/// What a runtime has decided and found about a box.
struct Facts {
    runtime: RuntimeKind,
    level: Level,
    missing: Vec<String>,
    limits: Vec<LimitInForce>,
    user: String,
    cwd: String,
    tracking: Tracking,
    uid_base: Option<u32>,
    generation: u64,
    uncontrolled: Vec<String>,
    /// Its first process is on another machine, and so is its number.
    far: bool,
}

/// When the first process of a box started that is on another machine. No process of this one ever did then.
pub(crate) const ELSEWHERE: u64 = u64::MAX;

/// All that goes on record of a box whose first process has this number.
fn describe(id: &str, spec: &SandboxSpec, base: &Base, pid: i32, facts: Facts) -> Result<BoxRecord> {
    let tracking = match facts.tracking {
        Tracking::Cgroup => "cgroup v2",
        Tracking::Tag => "namespace mark",
        Tracking::Group => "process group, best effort",
    };
    let info = SandboxInfo {
        id: id.into(),
        name: spec.name.clone(),
        state: SandboxState::Running,
        runtime: facts.runtime,
        level: facts.level,
        missing: facts.missing,
        image: spec.image.clone(),
        root_image: base.image.clone(),
        created_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
        pid,
        start_ticks: if facts.far { ELSEWHERE } else { process_start(pid)? },
        limits: facts.limits,
        labels: spec.labels.clone(),
        owner: spec.owner,
        ttl_ms: spec.limits.ttl.map(|ttl| ttl.as_millis() as u64),
        user: facts.user,
        cwd: facts.cwd,
        read_only: spec.read_only,
        deterministic: spec.is_deterministic(),
        uncontrolled: facts.uncontrolled,
        tracking: tracking.into(),
        uid_base: facts.uid_base,
        chain: base.chain.clone(),
        origin: base.chain.clone(),
        generation: facts.generation,
        recording: spec.recording(),
        task: spec.task.clone(),
        tools: spec.tools.clone(),
        redact: spec.redact.clone(),
        volumes: spec.volumes.clone(),
    };
    let given = Given { env: base.env.clone(), user: base.user.clone(), cwd: base.cwd.clone() };
    Ok(BoxRecord { info, spec: spec.clone(), given, mounted: base.chain.clone(), pending: None })
}

/// The refusal of a box that would be isolated less than is wanted.
fn too_weak(who: &str, level: Level, wanted: Level, missing: &[String]) -> Error {
    let why = match missing {
        [] => ", which it has no means for".to_owned(),
        missing => format!(": {}; `glass doctor` says what would help", missing.join("; ")),
    };
    let message = format!(
        "this {who} can isolate a box at level `{level}` only, and `{wanted}` is wanted{why}; \
         `--min-level {level}` accepts it"
    );
    Error::new(ErrorKind::Unsupported, message)
}

fn process_start(pid: i32) -> Result<u64> {
    glasshouse_linux::process::start_ticks(pid).context("look at the box's first process")
}

/// All runtimes of one home.
#[derive(Clone)]
pub(crate) struct Runtimes {
    native: Arc<native::Native>,
    process: Arc<process::Process>,
    docker: Arc<docker::Docker>,
}

impl Runtimes {
    pub(crate) fn new(home: &Home, engine: docker::EngineSettings) -> Result<Runtimes> {
        let trees = native::discover_trees(home)?;
        Ok(Runtimes {
            native: Arc::new(native::Native::new(home.clone(), trees.clone())),
            process: Arc::new(process::Process::new(home.clone(), trees.clone())),
            docker: Arc::new(docker::Docker::new(home.clone(), trees, engine)),
        })
    }

    /// What only containers have.
    pub(crate) fn docker(&self) -> &docker::Docker {
        &self.docker
    }

    pub(crate) fn get(&self, kind: RuntimeKind) -> &dyn Runtime {
        match kind {
            RuntimeKind::Native => &*self.native,
            RuntimeKind::Process => &*self.process,
            RuntimeKind::Docker => &*self.docker,
        }
    }
}

/// Connects to a guest's socket in its box's directory.
fn connect_in(home: &Home, info: &SandboxInfo) -> Result<UnixStream> {
    use std::os::fd::AsFd;
    let gone = |e: std::io::Error| {
        let message =
            format!("box {} does not answer ({e}); if it has ended, `glass gc` removes it", info.id);
        Error::new(ErrorKind::Gone, message)
    };
    let dir = std::fs::File::open(home.box_dir(&info.id)).map_err(gone)?;
    let socket = descriptor::connect_at(dir.as_fd(), "sock").map_err(gone)?;
    Ok(UnixStream::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_that_would_be_too_weak_is_refused_in_one_sentence() {
        let said = |missing: &[&str]| {
            let missing: Vec<String> = missing.iter().map(|what| (*what).to_owned()).collect();
            too_weak("host", Level::Full, Level::Vm, &missing).to_string()
        };
        let begins = "this host can isolate a box at level `full` only, and `vm` is wanted";
        assert_eq!(said(&[]), format!("{begins}, which it has no means for; `--min-level full` accepts it"));
        assert_eq!(
            said(&["no seccomp", "no cgroup"]),
            format!(
                "{begins}: no seccomp; no cgroup; `glass doctor` says what would help; `--min-level full` accepts it"
            )
        );
    }
}
