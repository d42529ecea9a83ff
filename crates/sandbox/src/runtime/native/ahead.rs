//! Boxes that are begun before anybody wants them.
//!
//! ```text
//!                    a box of this kind is wanted
//!  begun ────────────────────────────────────────────▶ told the rest ──▶ ready, as any other
//!    ▲                                                      └── fails: made from the ground
//!    └── tidy, if boxes of one kind were wanted again and again
//! ```
//! Most of what a box costs is the same for every box of its kind: cgroups, namespaces, numbers of users, /proc, /dev and
//! /sys. All of that is there when somebody wants one; what is left is its root, and what its guest needs to know.
//!
//! One that is begun is on no record: it is a directory without `box.json`, and two processes that wait for a word of ours. They
//! end with us, however we end, and whoever cleans up next removes the directory, as that of any maker who was killed.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use glasshouse_linux::cgroup::Limits as CgroupLimits;
use glasshouse_linux::rustix;
use glasshouse_protocol::plan::{GuestConfig, Source, Top};

use super::*;

/// How many wait.
const AHEAD: usize = 2;
/// A kind that was wanted so often, by a house that has tidied so often, is wanted again.
const REGULAR: usize = 2;

/// What has to be the same for a box to be begun without knowing more of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Kind {
    /// Who we are: whoever begins it is its owner outside.
    user: rustix::process::Uid,
    /// The user of its commands, where a box has only one.
    inside: Option<String>,
    shift: bool,
    read_only: bool,
    trees: Vec<(Source, String)>,
    cgroup: CgroupLimits,
    memory_bytes: Option<u64>,
}

/// A box that is begun.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) id: String,
    kind: Kind,
    // In the order in which they go: its processes, what they are in, its directory.
    pub(super) start: start::Begun,
    pub(super) made: Made,
    pub(super) claim: Claim,
    pub(super) users: Users,
}

#[derive(Debug, Default)]
pub(super) struct Ahead {
    begun: Mutex<VecDeque<Begun>>,
    wanted: Mutex<Wanted>,
    /// How often somebody tidied. Held meanwhile: one at a time, or there would be too many.
    tidied: Mutex<usize>,
}

/// What was wanted last, and how often in a row.
#[derive(Debug, Default)]
struct Wanted {
    kind: Option<Kind>,
    times: usize,
}

impl Ahead {
    /// One of this kind, if it is there. Remembers that it was wanted.
    pub(super) fn take(&self, kind: &Kind) -> Option<Begun> {
        {
            let mut wanted = locked(&self.wanted);
            if wanted.kind.as_ref() != Some(kind) {
                *wanted = Wanted { kind: Some(kind.clone()), times: 0 };
            }
            wanted.times = wanted.times.saturating_add(1);
        }
        let mut begun = locked(&self.begun);
        let at = begun.iter().position(|begun| begun.kind == *kind)?;
        begun.remove(at)
    }

    /// The kind that is to be begun now, if one is.
    fn next(&self) -> Option<Kind> {
        let wanted = locked(&self.wanted);
        let kind = wanted.kind.as_ref().filter(|_| wanted.times >= REGULAR)?;
        let waiting = locked(&self.begun).iter().filter(|begun| begun.kind == *kind).count();
        (waiting < AHEAD).then(|| kind.clone())
    }

    /// Keeps one. The one that has waited longest makes room for it, if need be.
    fn keep(&self, begun: Begun) -> Option<Begun> {
        let mut all = locked(&self.begun);
        all.push_back(begun);
        if all.len() > AHEAD { all.pop_front() } else { None }
    }
}

impl Native {
    /// The kind of a box, if such a one can be begun ahead. One that is to be the same in every run is not: who comes first
    /// there has the first number. Nor one whose disk or volumes are its own from the start.
    pub(super) fn kind(
        &self,
        spec: &SandboxSpec,
        base: &Base,
        limits: &limit::Decided,
        shift: bool,
    ) -> Option<Kind> {
        let own = spec.is_deterministic() || !spec.volumes.is_empty() || limits.memory_top.is_some();
        if own || faults::current().is_some() || faults::nothing_ahead() {
            return None;
        }
        Some(Kind {
            user: rustix::process::geteuid(),
            inside: (!self.is_root()).then(|| spec.user.as_ref().unwrap_or(&base.user).clone()),
            shift,
            read_only: spec.read_only,
            trees: base.trees.clone(),
            cgroup: limits.cgroup,
            memory_bytes: limits.memory_beside_disk(),
        })
    }

    /// Begins boxes of the kind that is wanted again and again.
    pub(super) fn begin_ahead(&self) -> Result<()> {
        let mut tidied = locked(&self.ahead.tidied);
        *tidied = tidied.saturating_add(1);
        while let Some(kind) = self.ahead.next().filter(|_| *tidied >= REGULAR) {
            let begun = self.begin(kind).map_err(|failed| match failed {
                Failed::Step(failure) => told(failure, &self.home),
                Failed::Other(error) => error,
            })?;
            drop(self.ahead.keep(begun));
        }
        Ok(())
    }

    fn begin(&self, kind: Kind) -> std::result::Result<Begun, Failed> {
        let id = crate::sandboxes::new_id()?;
        let builder = self.builders.take()?;
        let claim = self.home.claim(&id)?;
        let users = self.users(&id, kind.inside.as_deref().unwrap_or_default(), kind.shift)?;
        restack::make_bare_top(&self.home, &id, 0)?;
        let made = Made::cgroups(&self.trees, &id, kind.cgroup)?;
        note_cgroup(&claim, &made.group)?;
        let parcel = self.parcel(&claim, users, &made.group)?;
        let base = Base {
            image: crate::spec::Image::Host,
            chain: Vec::new(),
            layers: Vec::new(),
            trees: kind.trees.clone(),
            user: String::new(),
            cwd: String::new(),
            env: Vec::new(),
        };
        let nowhere = Source { path: String::new(), dev: 0, ino: 0 };
        let guest = GuestConfig { tracking: self.tracking(), ..GuestConfig::default() };
        let mut plan = plan::plan(Decisions {
            base: &base,
            store: None,
            places: Vec::new(),
            top: Top::Directory(nowhere),
            generation: 0,
            users,
            read_only: kind.read_only,
            volumes: &[],
            memory_bytes: kind.memory_bytes,
            guest,
            ahead: true,
        });
        plan.fds = parcel.roles.clone();
        let start = start::begin(builder, &plan, &parcel.borrow())?;
        Ok(Begun { id, kind, start, made, claim, users })
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
