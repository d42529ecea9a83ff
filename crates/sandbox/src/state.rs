//! What can be done with a box's state: kept, gone back to, copied, stopped.

mod beginning;
mod changes;
mod look;
mod pause;
pub(crate) mod steps;
mod travel;
mod verify;

pub use changes::{Content, Diff, DiffOptions, Difference, Packed, Thing};
pub use look::DigestInfo;
pub use travel::{ExportOptions, Exported, Imported};
pub use verify::Verified;

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::error::{Error, ErrorKind, Result};
use crate::home::{BoxRecord, unfinished};
use crate::image::{Base, Stop};
use crate::limits::CHAIN_LONG;
use crate::sandbox::Sandbox;
use crate::sandboxes::{Sandboxes, check_name, new_id};
use crate::snapshot::records::{self, Method, SnapshotInfo};
use crate::snapshot::{self, layers};
use crate::spec::{Image, RuntimeKind, SandboxInfo, SandboxSpec};
use crate::task::TaskInfo;
use crate::threads::blocking;

/// How a snapshot is to be taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// A name beside the id, which no other snapshot has.
    pub name: Option<String>,
    /// What whoever takes it calls it. Others may be called so, too.
    pub label: Option<String>,
    /// Wait until it is on the disk.
    pub durable: bool,
    /// It is the state after this step of the box, and goes with the box.
    pub step: Option<u64>,
}

impl Sandboxes {
    /// Keeps the state of a box. The answer says how; processes are not part of it.
    pub async fn snapshot(&self, name: &str, options: SnapshotOptions) -> Result<SnapshotInfo> {
        check_name(options.name.as_deref())?;
        let (house, id) = (self.clone(), self.home().resolve(name)?);
        let (info, taken) = blocking(move || {
            let _share = house.home().store_shared()?;
            let before = house.written(&id)?;
            house.shorten(&before.info);
            Ok((before.info.clone(), house.take_of(before, options, None)?))
        })
        .await?;
        self.record(&info, &[]).state("snapshot", Some(&taken.id), Some(taken.method.name()), None).await;
        self.tidy_later(info.runtime, (taken.method == Method::Rotate).then_some(info.id));
        Ok(taken)
    }

    /// Tidies beside all else, and merges layers of a box's chain. Who ends before it is done has only a longer chain.
    pub(crate) fn tidy_later(&self, runtime: RuntimeKind, compact: Option<String>) {
        let (house, later) = (self.clone(), self.clone());
        self.chore(async move {
            let _ = blocking(move || {
                // What could not be done now is done by the next one, or by `gc`.
                let _ = house.runtime(runtime).tidy();
                let Some(id) = compact else { return Ok(()) };
                let _share = house.home().store_shared()?;
                snapshot::compact(house.home(), &id)
            })
            .await;
            later.make_durable_later();
        });
    }

    /// With a key and a task, it is the state of that; one that is there already is taken instead.
    pub(crate) fn take(
        &self,
        id: &str,
        options: SnapshotOptions,
        task: Option<(String, TaskInfo)>,
    ) -> Result<SnapshotInfo> {
        let _share = self.home().store_shared()?;
        self.take_of(self.written(id)?, options, task)
    }

    /// The same for who has looked at its record already, and keeps layers from being swept away.
    fn take_of(
        &self,
        before: BoxRecord,
        options: SnapshotOptions,
        task: Option<(String, TaskInfo)>,
    ) -> Result<SnapshotInfo> {
        let home = self.home();
        let layer = layers::new_name("top")?;
        let start = Instant::now();
        let taken = self.runtime(before.info.runtime).snapshot(&before.info.id, &layer)?;
        let took_us = start.elapsed().as_micros() as u64;
        if options.durable {
            // What the record names first: one that is on the disk can be trusted.
            layers::sync(home)?;
        }
        let BoxRecord { info, given, .. } = before;
        // A snapshot of a task's box is of the task, but it is not how the task begins.
        let (key, task) = match task {
            Some((key, task)) => (Some(key), Some(task)),
            None => (None, info.task),
        };
        let snapshot = SnapshotInfo {
            id: new_id()?,
            name: options.name,
            label: options.label,
            from: info.id,
            image: info.root_image,
            created_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64),
            chain: taken.chain,
            method: taken.method,
            copied_for: taken.copied_for,
            took_us,
            processes: taken.processes,
            durable: options.durable,
            boot: records::boot(),
            user: given.user,
            cwd: given.cwd,
            env: given.env,
            deterministic: info.deterministic,
            recording: info.recording,
            task,
            key,
            step: options.step,
        };
        records::write(home, snapshot)
    }

    /// Merges layers of a chain that has become long, before one more is put on it.
    fn shorten(&self, info: &SandboxInfo) {
        if info.chain.len() >= CHAIN_LONG {
            // What cannot be merged is as good as it was, and what is too long for the kernel says so itself.
            let _ = snapshot::compact(self.home(), &info.id);
        }
    }

    fn on_record(&self, id: &str) -> Result<BoxRecord> {
        self.home().read_record(id)?.ok_or_else(|| unfinished(id))
    }

    /// What was written of a box, for who is about to hold it: its runtime sees then whether it lives.
    fn written(&self, id: &str) -> Result<BoxRecord> {
        self.home().read_written(id)?.ok_or_else(|| unfinished(id))
    }

    /// All snapshots, oldest first; without those whose records are damaged.
    pub async fn snapshots(&self) -> Result<Vec<SnapshotInfo>> {
        let house = self.clone();
        blocking(move || records::all(house.home())).await
    }

    /// Ids of the snapshots whose records are damaged. All that can be done with them is to remove them; while they are
    /// there, no layer is removed, since they may stand on any.
    pub async fn damaged_snapshots(&self) -> Result<Vec<String>> {
        let house = self.clone();
        blocking(move || Ok(records::look(house.home())?.damaged)).await
    }

    /// A snapshot, by its id, the beginning of it, or its name.
    pub async fn snapshot_info(&self, name: &str) -> Result<SnapshotInfo> {
        records::find(self.home(), name)
    }

    /// Removes a snapshot, and the layers that nobody else stands on. Its id.
    pub async fn remove_snapshot(&self, name: &str) -> Result<String> {
        let (house, name) = (self.clone(), name.to_owned());
        blocking(move || {
            let id = records::find_id(house.home(), &name)?;
            records::remove(house.home(), &id)?;
            house.sweep()?;
            Ok(id)
        })
        .await
    }

    /// Kills everything in a box and puts it back to what it began with. Its first process lives on.
    pub async fn reset(&self, name: &str) -> Result<SandboxInfo> {
        self.put_back(name, "reset", None).await
    }

    /// Kills everything in a box and puts it on the state of a snapshot.
    pub async fn restore(&self, name: &str, snapshot: &str) -> Result<SandboxInfo> {
        let id = self.home().resolve(name)?;
        let snapshot = records::find(self.home(), snapshot)?;
        snapshot.check_durable()?;
        self.put_back(&id, "restore", Some(snapshot)).await
    }

    async fn put_back(&self, name: &str, what: &str, to: Option<SnapshotInfo>) -> Result<SandboxInfo> {
        let (house, id) = (self.clone(), self.home().resolve(name)?);
        let snapshot = to.as_ref().map(|to| to.id.clone());
        let step = match &to {
            Some(to) => to.step.filter(|_| to.from == id),
            None => Some(0),
        };
        let (info, left) = blocking(move || {
            let _share = house.home().store_shared()?;
            let record = house.written(&id)?;
            if let Some(to) = &to {
                check_image(to, &record.info)?;
            }
            let chain = to.map_or_else(|| record.info.origin.clone(), |to| to.chain);
            let mut stood_on = record.mounted.iter().chain(&record.info.chain);
            let left = stood_on.any(|name| layers::is_of_boxes(name) && !chain.contains(name));
            if record.info.runtime != RuntimeKind::Docker {
                house.know(&chain)?;
            }
            let info = house.runtime(record.info.runtime).restore(&id, chain.clone())?;
            steps::moved(house.home(), &info, &chain)?;
            Ok((info, left))
        })
        .await?;
        self.record(&info, &[]).state(what, snapshot.as_deref(), None, step).await;
        self.tidy_later(info.runtime, None);
        if left {
            // Layers that it stood on may be nobody's now.
            self.sweep_later();
        }
        Ok(info)
    }

    /// Makes boxes on the state of a box, with what that one was asked to be, or on a snapshot. None of them shares
    /// anything that can be written.
    pub async fn fork(&self, name: &str, count: usize) -> Result<Vec<Sandbox>> {
        self.fork_until(&Stop::default(), name, count).await
    }

    /// The same, until it is stopped; then none is left.
    pub async fn fork_until(&self, stop: &Stop, name: &str, count: usize) -> Result<Vec<Sandbox>> {
        let (base, spec) = self.fork_of(name).await?;
        let mut made = Vec::new();
        for _ in 0..count {
            let next = match stop.is_said() {
                true => Err(Error::new(ErrorKind::Failed, "it was stopped before all forks were made")),
                false => self.create_on(&spec, &base, Some(base.of.clone())).await,
            };
            match next {
                Ok(sandbox) => made.push(sandbox),
                Err(e) => {
                    self.tidy_later(spec.runtime, base.grown);
                    // All or none.
                    for sandbox in made {
                        let _ = sandbox.destroy().await;
                    }
                    return Err(e);
                }
            }
        }
        self.tidy_later(spec.runtime, base.grown);
        Ok(made)
    }

    /// What the forks of a box or of a snapshot stand on, and what they are asked to be.
    async fn fork_of(&self, name: &str) -> Result<(Forked, SandboxSpec)> {
        let (house, name) = (self.clone(), name.to_owned());
        blocking(move || {
            let home = house.home();
            let share = home.store_shared()?;
            let id = match look::find(home, &name)? {
                look::Found::Box(id) => id,
                look::Found::Snapshot(snapshot) => {
                    let (of, image) = (snapshot.id.clone(), Image::Snapshot(snapshot.id.clone()));
                    let base = crate::image::resolve(home, &image)?;
                    let cwd = snapshot.task.as_ref().map(|task| task.dir.clone());
                    let task = snapshot.task.clone();
                    let mut spec = SandboxSpec { image, cwd, task, ..SandboxSpec::default() };
                    spec.inherit(&snapshot);
                    return Ok((Forked { base, of, grown: None, _share: share }, spec));
                }
            };
            let record = house.written(&id)?;
            house.shorten(&record.info);
            let layer = layers::new_name("top")?;
            let taken = house.runtime(record.info.runtime).snapshot(&id, &layer)?;
            house.record(&record.info, &[]).forked(taken.method.name());
            let base = Base {
                image: record.info.root_image.clone(),
                layers: layers::sources(home, &taken.chain)?,
                chain: taken.chain,
                trees: crate::image::trees_of(&record.info.root_image)?,
                user: record.given.user,
                cwd: record.given.cwd,
                env: record.given.env,
            };
            let spec = SandboxSpec { name: None, owner: None, ..record.spec };
            let grown = (taken.method == Method::Rotate).then(|| id.clone());
            Ok((Forked { base, of: id, grown, _share: share }, spec))
        })
        .await
    }

    async fn create_on(
        &self,
        spec: &SandboxSpec,
        forked: &Forked,
        forked_from: Option<String>,
    ) -> Result<Sandbox> {
        let (house, mut asked, base) = (self.clone(), spec.clone(), forked.base.clone());
        let created = blocking(move || {
            house.admit_volumes(&mut asked)?;
            let base = house.at_hand(asked.runtime, base)?;
            house.runtime(asked.runtime).create(&new_id()?, &asked, &base)
        })
        .await?;
        self.welcome(created, spec, forked_from).await
    }

    /// Ends a box and keeps what it has written; it can be started again. Its id.
    pub async fn stop(&self, name: &str) -> Result<String> {
        let info = self.info(name).await?;
        let (house, id) = (self.clone(), info.id.clone());
        blocking(move || house.runtime(info.runtime).stop(&id)).await?;
        let info = self.info(&info.id).await?;
        self.record(&info, &[]).state("stop", None, None, None).await;
        Ok(info.id)
    }

    /// Starts a box that was stopped, on what it had written.
    pub async fn start(&self, name: &str) -> Result<Sandbox> {
        let info = self.info(name).await?;
        let (house, id) = (self.clone(), info.id.clone());
        let (created, spec) = blocking(move || {
            let _share = house.home().store_shared()?;
            let record = house.on_record(&id)?;
            Ok((house.runtime(record.info.runtime).start(&id)?, record.spec))
        })
        .await?;
        if spec.limits.disk_bytes.is_some() {
            // What it had in memory has become one more layer.
            self.tidy_later(created.info.runtime, Some(created.info.id.clone()));
        }
        self.take_up_again(created, &spec.env).await
    }
}

/// Only a snapshot of its own image fits a box: what it was given at its making is the image's.
fn check_image(snapshot: &SnapshotInfo, info: &SandboxInfo) -> Result<()> {
    if snapshot.image == info.root_image {
        return Ok(());
    }
    let message = format!(
        "snapshot {} is of the image {} and box {} of {}; `glass fork {}` makes a box of it",
        snapshot.id, snapshot.image, info.id, info.root_image, snapshot.id
    );
    Err(Error::new(ErrorKind::Invalid, message))
}

/// What forks stand on; kept from being swept away until they are on record.
struct Forked {
    base: Base,
    /// The box or the snapshot that it is of.
    of: String,
    /// The box, if it stands on one more layer since.
    grown: Option<String>,
    _share: std::fs::File,
}

impl Sandbox {
    /// Keeps its state.
    pub async fn snapshot(&self, options: SnapshotOptions) -> Result<SnapshotInfo> {
        self.house().snapshot(self.id(), options).await
    }

    /// Kills everything in it and puts it back to what it began with.
    pub async fn reset(&self) -> Result<()> {
        self.house().reset(self.id()).await.map(drop)
    }

    /// Kills everything in it and puts it on the state of a snapshot.
    pub async fn restore(&self, snapshot: &str) -> Result<()> {
        self.house().restore(self.id(), snapshot).await.map(drop)
    }

    /// Makes boxes on its state.
    pub async fn fork(&self, count: usize) -> Result<Vec<Sandbox>> {
        self.house().fork(self.id(), count).await
    }
}
