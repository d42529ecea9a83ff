//! Tenants: what belongs to whom, how much of it there may be, and how often they may call.
//!
//! A box carries its tenant as a label from its first moment; that is the truth while it lives. What outlives boxes (their
//! records) and what has no labels (snapshots) is marked by a file each:
//!
//! ```text
//! <home>/server/tenants/
//!   boxes/<id>                the tenant of a box that is or was
//!   snapshots/<id>            the tenant of a snapshot
//! ```
//! What carries no mark belongs to nobody, and only whoever runs the server sees it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use glasshouse_sandbox::{Limits, SandboxInfo, Sandboxes};
use tokio::sync::OwnedMutexGuard;

use crate::config::{Allowance, Config};
use crate::error::{Error, Result};
use crate::keys::check_name;
use crate::limits::{BOX_CPUS, BOX_DISK_BYTES, BOX_MEMORY_BYTES, CALLERS_KEPT};

/// The label of a box that names its tenant. Callers cannot set it: the prefix is reserved.
pub(crate) const LABEL: &str = "opensandbox.io/tenant";

/// All of them.
#[derive(Debug)]
pub(crate) struct Tenants {
    dir: PathBuf,
    config: Config,
    /// One maker of boxes at a time for each tenant that has a quota: two together could exceed it.
    gates: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Calls that a tenant may make now, and when that was reckoned.
    calls: Mutex<HashMap<Option<String>, (f64, Instant)>>,
}

/// More than a tenant may have. What, in words.
#[derive(Debug)]
pub(crate) struct Exceeded(pub(crate) String);

/// Holds a place until the box that it is for is there.
#[derive(Debug, Default)]
pub(crate) struct Place {
    _gate: Option<OwnedMutexGuard<()>>,
}

/// What has a tenant.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Box,
    Snapshot,
}

impl Kind {
    fn dir(self) -> &'static str {
        match self {
            Kind::Box => "boxes",
            Kind::Snapshot => "snapshots",
        }
    }
}

impl Tenants {
    pub(crate) fn open(config: Config) -> Result<Tenants> {
        let dir = config.home.join("server/tenants");
        for kind in [Kind::Box, Kind::Snapshot] {
            let path = dir.join(kind.dir());
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
            made.map_err(|source| Error::Files { what: "make", path, source })?;
        }
        Ok(Tenants { dir, config, gates: Mutex::default(), calls: Mutex::default() })
    }

    /// Marks something as a tenant's. What belongs to nobody needs no mark.
    pub(crate) fn mark(&self, kind: Kind, id: &str, tenant: Option<&str>) -> io::Result<()> {
        let Some(tenant) = tenant else { return Ok(()) };
        fs::write(self.path(kind, id)?, tenant)
    }

    /// Whose it is, by its mark.
    pub(crate) fn marked(&self, kind: Kind, id: &str) -> Option<String> {
        fs::read_to_string(self.path(kind, id).ok()?).ok()
    }

    /// Takes a mark away.
    pub(crate) fn unmark(&self, kind: Kind, id: &str) {
        // A mark of something that is gone says nothing.
        let _ = self.path(kind, id).and_then(fs::remove_file);
    }

    fn path(&self, kind: Kind, id: &str) -> io::Result<PathBuf> {
        match check_name(id) {
            Ok(()) => Ok(self.dir.join(kind.dir()).join(id)),
            Err(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Forgets marks of records and snapshots that are gone.
    pub(crate) fn sweep(&self, traces: &Path, snapshots: &[String]) {
        for kind in [Kind::Box, Kind::Snapshot] {
            for entry in fs::read_dir(self.dir.join(kind.dir())).into_iter().flatten().flatten() {
                let id = entry.file_name().to_string_lossy().into_owned();
                let there = match kind {
                    Kind::Box => traces.join(&id).exists(),
                    Kind::Snapshot => snapshots.contains(&id),
                };
                if !there {
                    self.unmark(kind, &id);
                }
            }
        }
    }

    /// Whether a tenant may make boxes of this size. The place is held until it is dropped.
    pub(crate) async fn place(
        &self,
        house: &Sandboxes,
        tenant: Option<&str>,
        limits: &Limits,
        count: usize,
    ) -> std::result::Result<Place, Exceeded> {
        let Some(tenant) = tenant else { return Ok(Place::default()) };
        let allowed = self.config.allowance(tenant);
        if (allowed.boxes, allowed.memory_bytes, allowed.disk_bytes) == (0, 0, 0) && allowed.cpus == 0.0 {
            return Ok(Place::default());
        }
        let gate = {
            let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
            gates.entry(tenant.to_owned()).or_default().clone()
        };
        let gate = gate.lock_owned().await;
        let there =
            house.list().await.map_err(|e| Exceeded(format!("what is there cannot be counted: {e}")))?;
        let own = there.iter().filter(|info| info.labels.get(LABEL).is_some_and(|label| label == tenant));
        fits(&allowed, own, limits, count).map_err(Exceeded)?;
        Ok(Place { _gate: Some(gate) })
    }

    /// Gives a box limits whose maker has no way to say any: of what is counted for its tenant there has to be one. No more than he may
    /// have in all.
    pub(crate) fn bound(&self, tenant: Option<&str>, limits: &mut Limits) {
        let Some(tenant) = tenant else { return };
        let Allowance { memory_bytes, cpus, disk_bytes, .. } = self.config.allowance(tenant);
        if memory_bytes > 0 {
            limits.memory_bytes.get_or_insert(memory_bytes.min(BOX_MEMORY_BYTES));
        }
        if disk_bytes > 0 {
            // Where a disk lies in memory, what is on it has to fit in there beside all else.
            let room = limits.memory_bytes.map_or(u64::MAX, |memory| memory / 2);
            limits.disk_bytes.get_or_insert(disk_bytes.min(BOX_DISK_BYTES).min(room));
        }
        if cpus > 0.0 {
            limits.cpus.get_or_insert(cpus.min(BOX_CPUS));
        }
    }

    /// Whether repositories are fetched for a tenant.
    pub(crate) fn may_fetch(&self, tenant: &str) -> bool {
        self.config.allowance(tenant).repositories
    }

    /// Whether a caller may call now; if not, how long to wait. Whoever runs the server is held to nothing.
    pub(crate) fn call(&self, tenant: Option<&str>) -> std::result::Result<(), Duration> {
        let Some(name) = tenant else { return Ok(()) };
        let Allowance { requests_per_s, burst, .. } = self.config.allowance(name);
        if requests_per_s == 0.0 {
            return Ok(());
        }
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.len() > CALLERS_KEPT {
            calls.clear();
        }
        let most = f64::from(burst).max(1.0);
        let (left, since) = calls.entry(tenant.map(str::to_owned)).or_insert((most, Instant::now()));
        let now = Instant::now();
        *left = (*left + now.duration_since(*since).as_secs_f64() * requests_per_s).min(most);
        *since = now;
        if *left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - *left) / requests_per_s));
        }
        *left -= 1.0;
        Ok(())
    }
}

fn fits<'a>(
    allowed: &Allowance,
    own: impl Iterator<Item = &'a SandboxInfo>,
    limits: &Limits,
    count: usize,
) -> std::result::Result<(), String> {
    let (mut boxes, mut memory, mut disk, mut milli) = (count as u64, 0_u64, 0_u64, 0);
    let amount = |info: &SandboxInfo, name: &str| {
        info.limits.iter().find(|limit| limit.name == name).and_then(|limit| limit.amount).unwrap_or(0)
    };
    for info in own {
        (boxes, memory, milli) = (boxes + 1, memory + amount(info, "memory"), milli + amount(info, "cpu"));
        disk = disk.saturating_add(amount(info, "disk"));
    }
    if allowed.boxes > 0 && boxes > allowed.boxes {
        return Err(format!("a tenant may have {} sandboxes, and this would be {boxes}", allowed.boxes));
    }
    if allowed.memory_bytes > 0 {
        let each = limits.memory_bytes.ok_or("your memory is counted, so a sandbox needs a limit of it")?;
        memory = memory.saturating_add(each.saturating_mul(count as u64));
        if memory > allowed.memory_bytes {
            return Err(format!(
                "a tenant may have {} bytes of memory, and this would be {memory}",
                allowed.memory_bytes
            ));
        }
    }
    if allowed.disk_bytes > 0 {
        let each = limits.disk_bytes.ok_or("your disk is counted, so a sandbox needs a limit of it")?;
        disk = disk.saturating_add(each.saturating_mul(count as u64));
        if disk > allowed.disk_bytes {
            let most = allowed.disk_bytes;
            return Err(format!("a tenant may have {most} bytes of disk, and this would be {disk}"));
        }
    }
    if allowed.cpus > 0.0 {
        let each = limits.cpus.ok_or("your CPUs are counted, so a sandbox needs a limit of them")?;
        let cpus = milli as f64 / 1000.0 + each * count as f64;
        if cpus > allowed.cpus {
            return Err(format!("a tenant may have {} CPUs, and this would be {cpus}", allowed.cpus));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(more: &str) -> (tempfile::TempDir, Tenants) {
        let home = tempfile::tempdir().unwrap();
        let config = Config::read(home.path().to_owned(), more).unwrap();
        let tenants = Tenants::open(config).unwrap();
        (home, tenants)
    }

    #[test]
    fn marks_stay_until_what_they_are_of_is_gone() {
        let (home, tenants) = opened("");
        tenants.mark(Kind::Box, "abc", Some("red")).unwrap();
        tenants.mark(Kind::Box, "gone", Some("red")).unwrap();
        tenants.mark(Kind::Snapshot, "abc", Some("blue")).unwrap();
        tenants.mark(Kind::Snapshot, "nobodys", None).unwrap();
        assert!(tenants.mark(Kind::Box, "../abc", Some("red")).is_err());
        assert_eq!(tenants.marked(Kind::Box, "abc").as_deref(), Some("red"));
        assert_eq!(tenants.marked(Kind::Snapshot, "abc").as_deref(), Some("blue"));
        assert_eq!(tenants.marked(Kind::Snapshot, "nobodys"), None);
        fs::create_dir_all(home.path().join("traces/abc")).unwrap();
        tenants.sweep(&home.path().join("traces"), &[]);
        assert_eq!(tenants.marked(Kind::Box, "abc").as_deref(), Some("red"));
        assert_eq!((tenants.marked(Kind::Box, "gone"), tenants.marked(Kind::Snapshot, "abc")), (None, None));
    }

    #[test]
    fn calls_beyond_the_burst_have_to_wait() {
        let (_home, tenants) =
            opened("[allowance]\nrequests_per_s = 0.001\nburst = 3\n[tenants.free]\nrequests_per_s = 0");
        for _ in 0..3 {
            tenants.call(Some("red")).unwrap();
        }
        let wait = tenants.call(Some("red")).unwrap_err();
        assert!(wait > Duration::from_secs(900) && wait <= Duration::from_secs(1000), "{wait:?}");
        tenants.call(Some("blue")).unwrap();
        for _ in 0..100 {
            tenants.call(Some("free")).unwrap();
            tenants.call(None).unwrap();
        }
    }

    fn check(allowed: Allowance, limits: Limits, count: usize, fine: bool) {
        assert_eq!(
            fits(&allowed, std::iter::empty(), &limits, count).is_ok(),
            fine,
            "{allowed:?} {limits:?} {count}"
        );
    }

    #[test]
    fn quotas_count_all_that_is_asked_for_and_want_limits_for_what_they_count() {
        let boxes = Allowance { boxes: 2, ..Allowance::default() };
        check(boxes, Limits::default(), 2, true);
        check(boxes, Limits::default(), 3, false);
        let memory = Allowance { memory_bytes: 100, ..Allowance::default() };
        let of = |bytes| Limits { memory_bytes: Some(bytes), ..Limits::default() };
        check(memory, of(50), 2, true);
        check(memory, of(51), 2, false);
        check(memory, of(u64::MAX), 2, false);
        check(memory, Limits::default(), 1, false);
        let disk = Allowance { disk_bytes: 100, ..Allowance::default() };
        check(disk, Limits { disk_bytes: Some(50), ..Limits::default() }, 2, true);
        check(disk, Limits { disk_bytes: Some(51), ..Limits::default() }, 2, false);
        check(disk, Limits::default(), 1, false);
        let cpus = Allowance { cpus: 1.5, ..Allowance::default() };
        check(cpus, Limits { cpus: Some(0.5), ..Limits::default() }, 3, true);
        check(cpus, Limits { cpus: Some(0.5), ..Limits::default() }, 4, false);
        check(cpus, Limits::default(), 1, false);
    }
}
