//! Giving a box that lives another root, and all that is made of it.
//!
//! ```text
//!  hold the guest ─▶ intent on record ─▶ builder: mount the new chain, enter the box, swap ─▶ release ─▶ on record
//!        │                  │                              │
//!        └──────────────────┴── fails: as it was ──────────┘
//! ```
//! What can be done while the guest comes to rest, while the builder is at work, or while the guest sets out again, is done
//! then: a builder is taken and an empty top is made; the record is written that will count; what the box stood on is put
//! away.
//!
//! The swap itself is one call of the kernel's. Whoever dies around it leaves an intent on record; the next one who
//! holds the box asks it which root it has, and finishes or forgets the intent.

use std::fs::{self, File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use glasshouse_linux::rustix::io::Errno;
use glasshouse_linux::{layer, process, tree};
use glasshouse_protocol::plan::{FdRole, GuestConfig, Source, StepFailure, Top};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{BoxRecord, Home, Pending, unfinished};
use crate::image::{self, Base, source};
use crate::limits::GOODBYE_TIMEOUT;
use crate::runtime::builders::Builder;
use crate::runtime::native::held::{Held, NAMESPACES, Running};
use crate::runtime::native::plan::{self, Decisions, Swap, Users};
use crate::runtime::native::root::RootOf;
use crate::runtime::native::{
    Native, Site, ask_to_shut_down, cgroups_of, faults, limit, living, places, told,
};
use crate::runtime::start::{self, Failed, Parcel, Swapped, Unchanged};
use crate::runtime::{Created, Runtime, Still, Taken};
use crate::snapshot::records::{CopiedFor, Method};
use crate::snapshot::{self, MemoryTop, Tree, layers, shelf};
use crate::spec::{SandboxInfo, SandboxState};
use crate::threads;

fn top_dir(home: &Home, id: &str, generation: u64) -> PathBuf {
    home.box_dir(id).join(format!("top{generation}"))
}

/// Makes an empty top, with the root's own attributes as the layer below has them: overlay shows those of the top.
pub(super) fn make_top(home: &Home, id: &str, generation: u64, below: &Source) -> Result<Source> {
    make_bare_top(home, id, generation)?;
    dress_top(home, id, generation, below)
}

/// Makes the directories of a top.
pub(super) fn make_bare_top(home: &Home, id: &str, generation: u64) -> Result<PathBuf> {
    let top = top_dir(home, id, generation);
    for dir in [top.clone(), top.join("u"), top.join("w")] {
        fs::create_dir(&dir).context(format_args!("make {}", dir.display()))?;
        let open = Permissions::from_mode(0o755);
        fs::set_permissions(&dir, open).context(format_args!("open {}", dir.display()))?;
    }
    Ok(top)
}

/// Gives them the attributes of what is below.
pub(super) fn dress_top(home: &Home, id: &str, generation: u64, below: &Source) -> Result<Source> {
    let top = top_dir(home, id, generation);
    let root = RootOf::read(Path::new(&below.path))?;
    root.give(&top.join("u"))?;
    source(&top)
}

/// What a restack needs beside a guest that holds still.
struct Means {
    builder: Builder,
    limits: limit::Decided,
    base: Base,
    users: Users,
    /// The number of an empty top that is there already.
    top: Option<u64>,
}

/// Why a root was not replaced.
enum Refused {
    /// Something is open for writing.
    Busy,
    Other(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Other(error)
    }
}

impl Native {
    fn record_of(&self, id: &str) -> Result<BoxRecord> {
        self.home.read_record(id)?.ok_or_else(|| unfinished(id))
    }

    /// The record of a box that runs.
    fn running(&self, id: &str) -> Result<BoxRecord> {
        let record = self.record_of(id)?;
        check_running(&record)?;
        Ok(record)
    }

    fn users_of(&self, record: &BoxRecord) -> Result<Users> {
        match record.info.uid_base {
            Some(base) => Ok(Users::Range { base }),
            None if self.is_root() => Ok(Users::Same),
            None => self.users(&record.info.id, &record.info.user, false),
        }
    }

    /// Finishes or forgets what somebody began who was killed in the middle.
    fn settle(&self, record: &mut BoxRecord, generation: u64) -> Result<()> {
        let Some(pending) = record.pending.take() else { return Ok(()) };
        let id = record.info.id.clone();
        if pending.generation == generation {
            self.adopt(record, pending)?;
        } else {
            self.discard_top(&id, pending.generation)?;
        }
        self.home.write_record(record)
    }

    /// The same for a box that was being snapshotted while it was stopped.
    fn settle_stopped(&self, record: &mut BoxRecord) -> Result<()> {
        let Some(pending) = record.pending.take() else { return Ok(()) };
        self.adopt(record, pending)?;
        self.home.write_record(record)
    }

    /// The box stands on what was intended, and nothing of what it stood on stays.
    fn adopt(&self, record: &mut BoxRecord, pending: Pending) -> Result<()> {
        let (id, old) = (record.info.id.clone(), record.info.generation);
        self.seal(record, &pending)?;
        stand_on(record, &pending);
        self.discard_top(&id, old)
    }

    /// What the box stood on is a layer, if that was intended.
    fn seal(&self, record: &BoxRecord, pending: &Pending) -> Result<()> {
        match &pending.seals {
            Some(layer) if !layers::path(&self.home, layer).is_dir() => {
                let top = top_dir(&self.home, &record.info.id, record.info.generation);
                layers::seal(&self.home, &top.join("u"), layer)
            }
            _ => Ok(()),
        }
    }

    /// The same as [`Native::discard_top`], but for the work on the disk, which is left to who tidies.
    fn throw_away_top(&self, id: &str, generation: u64) -> Result<()> {
        let thrown = self.home.throw_away(id, &format!("top{generation}"))?;
        self.thrown.lock().unwrap_or_else(PoisonError::into_inner).extend(thrown);
        Ok(())
    }

    /// Removes a top that no box stands on.
    fn discard_top(&self, id: &str, generation: u64) -> Result<()> {
        let dir = File::open(self.home.box_dir(id)).context(format_args!("open box {id}"))?;
        tree::remove(dir.as_fd(), format!("top{generation}"))
            .context(format_args!("remove an old top of {id}"))
    }

    /// What a box is to stand on. What it has written is still where it wrote it.
    fn lowers(&self, record: &BoxRecord, pending: &Pending) -> Result<Vec<Source>> {
        let Some(below) = pending.seals.as_ref().and_then(|_| pending.chain.get(1..)) else {
            return layers::unseen_sources(&self.home, &pending.chain);
        };
        let top = top_dir(&self.home, &record.info.id, record.info.generation).join("u");
        let mut lowers = vec![source(&top)?];
        lowers.extend(layers::unseen_sources(&self.home, below)?);
        Ok(lowers)
    }

    /// Gives a box that holds still another chain with a fresh top.
    fn restack(
        &self,
        record: &mut BoxRecord,
        (means, held): (Means, &mut Held),
        pending: Pending,
        swap: Swap,
    ) -> std::result::Result<(), Refused> {
        let id = record.info.id.clone();
        let Means { builder, limits, base, users, top } = means;
        let generation = pending.generation;
        let lowers = self.lowers(record, &pending)?;
        let top = match limits.memory_top {
            Some((bytes, inodes)) => Top::Memory { bytes, inodes },
            None => {
                if top != Some(generation) {
                    self.make_next_top(&id, generation)?;
                }
                Top::Directory(dress_top(&self.home, &id, generation, uppermost(&lowers)?)?)
            }
        };
        record.pending = Some(pending);
        self.home.write_record(record)?;
        let base = Base { layers: lowers, ..base };
        let decisions = Decisions {
            base: &base,
            store: Some(layers::store(&self.home)?),
            places: places::missing(&self.home, &base.layers, &record.spec)?,
            top,
            generation,
            users,
            read_only: record.spec.read_only,
            volumes: &record.spec.volumes,
            memory_bytes: limits.memory_beside_disk(),
            guest: GuestConfig::default(),
            ahead: false,
        };
        let mut plan = plan::restack(&decisions, swap);
        let mut parcel = Parcel::default();
        for (role, fd) in NAMESPACES.iter().zip(&held.namespaces) {
            parcel.add(*role, fd.try_clone().context("copy a namespace")?);
        }
        // Should we be killed, the box is held until the builder is gone as well.
        parcel.add(FdRole::Hold, held.stream.try_clone().context("copy the hold")?.into());
        plan.fds = parcel.roles.clone();
        plan.fault = faults::current();
        let mut next = None;
        let meanwhile = || {
            let mut after = record.clone();
            if let Some(pending) = after.pending.take() {
                stand_on(&mut after, &pending);
            }
            next = Some(self.home.prepare_record(&after).map(|()| after));
        };
        let done = start::carry_out(builder, &plan, &parcel.borrow(), meanwhile);
        match (done, record.pending.take()) {
            (Ok(swapped), Some(pending)) => {
                // The intent is on record: the builder lets the box go on, whatever becomes of us.
                let settled = self.settle_on(record, &pending, next.and_then(Result::ok));
                Ok(self.await_release(record, held, swapped).and(settled)?)
            }
            (Ok(swapped), None) => {
                self.builders.let_go(swapped.builder());
                Ok(())
            }
            (Err(Unchanged::Between(why)), _) => Err(self.end_in_between(record, why)?.into()),
            (Err(Unchanged::Whole(failed)), _) => {
                self.discard_top(&id, generation)?;
                self.home.write_record(record)?;
                Err(match failed {
                    Failed::Step(failure) if is_busy(&failure) => Refused::Busy,
                    Failed::Step(failure) => Refused::Other(told(failure, &self.home)),
                    Failed::Other(error) => Refused::Other(error),
                })
            }
        }
    }

    /// Waits until a box that was given another root goes on.
    fn await_release(&self, record: &BoxRecord, held: &mut Held, swapped: Swapped) -> Result<()> {
        if !held.is_released_by(swapped.stream())? {
            return Err(self.end_in_between(record, swapped.why())?);
        }
        self.builders.let_go(swapped.builder());
        Ok(())
    }

    /// The box stands on what was intended. Its record was prepared, or has to be written.
    fn settle_on(
        &self,
        record: &mut BoxRecord,
        pending: &Pending,
        prepared: Option<BoxRecord>,
    ) -> Result<()> {
        let (id, old) = (record.info.id.clone(), record.info.generation);
        self.seal(record, pending)?;
        match prepared {
            Some(after) => {
                *record = after;
                self.home.put_record(&id)?;
            }
            None => {
                stand_on(record, pending);
                self.home.write_record(record)?;
            }
        }
        self.throw_away_top(&id, old)
    }

    /// Ends a box whose builder was killed while it moved the box's mounts, or could not move them back: some may be gone,
    /// and no other builder could tell. A box that is half of one thing and half of another is worse than none.
    fn end_in_between(&self, record: &BoxRecord, why: Option<StepFailure>) -> Result<Error> {
        if let Some(pidfd) = living(&self.home, &record.info)? {
            start::end(pidfd.as_fd());
        }
        let why = match why {
            Some(failure) => format!("to give it another root failed in the middle: {}", words(&failure)),
            None => "whoever gave it another root was killed in the middle of that (by the kernel, for want of memory?)"
                .into(),
        };
        let message = format!(
            "box {} was ended: {why}; its snapshots are whole, and `glass gc` removes what is left of it",
            record.info.id
        );
        Ok(Error::new(ErrorKind::Gone, message))
    }

    fn make_next_top(&self, id: &str, generation: u64) -> Result<()> {
        // What somebody left who was killed before he had said so.
        self.discard_top(id, generation)?;
        make_bare_top(&self.home, id, generation).map(drop)
    }

    /// Gets ready what does not depend on what the box does meanwhile.
    fn means(&self, record: &BoxRecord) -> Result<Means> {
        let builder = self.builders.take()?;
        let limits = limit::decide(&self.trees, &record.spec)?;
        let (base, users) = (self.base_of(record)?, self.users_of(record)?);
        // With an intent on record, the box may stand on the very top that would be made here.
        let top =
            (record.pending.is_none() && limits.memory_top.is_none()).then_some(record.info.generation + 1);
        if let Some(generation) = top {
            self.make_next_top(&record.info.id, generation)?;
        }
        Ok(Means { builder, limits, base, users, top })
    }

    /// They are not needed after all.
    fn give_back(&self, id: &str, means: Option<Means>) -> Result<()> {
        let Some(means) = means else { return Ok(()) };
        self.builders.give_back(means.builder);
        match means.top {
            Some(generation) => self.discard_top(id, generation),
            None => Ok(()),
        }
    }

    /// What a box has written since it was given its root, where it can be read. Of one that lives, it is held still.
    fn upper_of(&self, record: &BoxRecord, held: Option<&mut Held>) -> Result<Tree> {
        let (Some(bytes), Some(held)) = (record.spec.limits.disk_bytes, held) else {
            return Ok(Tree::At(top_dir(&self.home, &record.info.id, record.info.generation).join("u")));
        };
        let dir = held.top.take().ok_or_else(|| {
            let message = format!(
                "box {} keeps what it writes in memory, because its disk is limited (--disk), and was made by an older \
                 version, which shows it to nobody; it can only be reset",
                record.info.id
            );
            Error::new(ErrorKind::Unsupported, message)
        })?;
        let first_id = record.info.uid_base.unwrap_or(0);
        Ok(Tree::InMemory(MemoryTop::checked(dir, first_id, bytes)?.into()))
    }

    /// Whether nothing was ever written to a top: it is empty, and its own attributes are those that we gave it.
    fn is_untouched(&self, upper: &Tree, record: &BoxRecord) -> Result<bool> {
        let reach = snapshot::reach();
        let dir = upper.open(&reach)?;
        if !layer::entries(&reach, dir.as_fd(), 0).context(format_args!("look at {upper}"))?.is_empty() {
            return Ok(false);
        }
        let Some(below) = record.info.chain.first() else { return Ok(false) };
        let root = match upper {
            Tree::At(path) => RootOf::read(path)?,
            Tree::InMemory(top) => RootOf::of_memory(top)?,
            Tree::Elsewhere(_) => return Err(Error::new(ErrorKind::Failed, "a native box is not elsewhere")),
        };
        Ok(root == RootOf::read(&layers::path(&self.home, below))?)
    }

    /// Whether nothing was ever written to the top of a box, not even something that is gone: then the time of the last change
    /// is still that of its making.
    fn is_pristine(&self, record: &BoxRecord) -> Result<bool> {
        let upper = self.upper_of(record, None)?;
        let Tree::At(path) = &upper else { return Ok(false) };
        let meta = fs::symlink_metadata(path).context(format_args!("look at {upper}"))?;
        // Where a file system does not tell when something was made, nothing is known.
        let is_as_made = meta.created().is_ok_and(|made| meta.modified().is_ok_and(|last| last == made));
        Ok(is_as_made && self.is_untouched(&upper, record)?)
    }

    /// Copies what a box has in memory to where the tops of others are.
    fn bring_out(&self, record: &BoxRecord, top: &Tree) -> Result<()> {
        let (id, generation) = (&record.info.id, record.info.generation);
        // What somebody left who was killed while he did this.
        self.discard_top(id, generation)?;
        let upper = make_bare_top(&self.home, id, generation)?.join("u");
        let into = File::open(&upper).context(format_args!("open {}", upper.display()));
        let copied = into.and_then(|into| top.copy(into.as_fd(), None));
        if copied.is_err() {
            self.discard_top(id, generation)?;
        }
        copied.map(drop)
    }

    /// Looks at what a box has written while nothing in it moves.
    pub(super) fn look_at(&self, id: &str, look: &mut dyn FnMut(Still<'_>) -> Result<()>) -> Result<()> {
        let _turn = self.home.lock_box(id)?;
        let mut record = self.record_of(id)?;
        let stopped = record.info.state == SandboxState::Stopped;
        if !stopped {
            check_running(&record)?;
        }
        let mut held = match stopped {
            true => None,
            false => Some(Held::take(&self.home, &record, Running::Settled, || Ok(()))?.0),
        };
        match &held {
            Some(held) => self.settle(&mut record, held.generation)?,
            None => self.settle_stopped(&mut record)?,
        }
        let upper = self.upper_of(&record, held.as_mut())?;
        let processes = held.as_ref().map_or(0, |held| held.processes);
        let names = held.as_ref().map_or(&[][..], |held| &held.names);
        let at_work = held.as_ref().is_some_and(|held| held.at_work);
        let done = look(Still { record: &record, upper: &upper, processes, names, at_work });
        if let Some(mut held) = held {
            // Nothing has changed, so there is nothing to hear of it. Whoever asks the guest next asks after this.
            held.let_go(false)?;
            threads::drop_later(held);
        }
        done
    }

    /// The image's side of a box, without its layers.
    fn base_of(&self, record: &BoxRecord) -> Result<Base> {
        let trees = image::trees_of(&record.info.root_image)?;
        Ok(Base {
            image: record.info.root_image.clone(),
            chain: record.info.chain.clone(),
            layers: Vec::new(),
            trees,
            user: record.given.user.clone(),
            cwd: record.given.cwd.clone(),
            env: record.given.env.clone(),
        })
    }

    pub(super) fn take_snapshot(&self, id: &str, layer: &str) -> Result<Taken> {
        let _turn = self.home.lock_box(id)?;
        let mut record = self.record_of(id)?;
        if record.info.state == SandboxState::Stopped {
            return self.snapshot_stopped(&mut record, layer);
        }
        check_running(&record)?;
        // What is in memory is copied.
        let rotates = record.spec.limits.disk_bytes.is_none();
        let ready = || rotates.then(|| self.means(&record)).transpose();
        let (mut held, means) = Held::take(&self.home, &record, Running::Stopped, ready)?;
        self.settle(&mut record, held.generation)?;
        let processes = held.processes;
        let upper = self.upper_of(&record, Some(&mut held))?;
        if self.is_untouched(&upper, &record)? {
            self.give_back(id, means)?;
            held.release(false)?;
            let chain = record.info.chain;
            return Ok(Taken { method: Method::Unchanged, copied_for: None, chain, processes });
        }
        let chain = [vec![layer.to_owned()], record.info.chain.clone()].concat();
        match means {
            Some(means) if processes == 0 => {
                let generation = record.info.generation + 1;
                let pending = Pending { generation, chain: chain.clone(), seals: Some(layer.to_owned()) };
                let swap = Swap { quiet: true, clean: false, leave_top: false };
                match self.restack(&mut record, (means, &mut held), pending, swap) {
                    Ok(()) => {
                        held.release(true)?;
                        return Ok(Taken { method: Method::Rotate, copied_for: None, chain, processes });
                    }
                    Err(Refused::Busy) => {}
                    Err(Refused::Other(error)) => {
                        // Nobody can tell here how far it came: the guest looks at its root anew.
                        let _ = held.release(true);
                        return Err(error);
                    }
                }
            }
            means => self.give_back(id, means)?,
        }
        let copied = snapshot::copy_top(&self.home, id, &upper, layer);
        held.release(false)?;
        let copied_for = match (rotates, processes) {
            (false, _) => CopiedFor::Memory,
            (true, 0) => CopiedFor::OpenFiles,
            (true, _) => CopiedFor::Running,
        };
        Ok(Taken { method: copied?, copied_for: Some(copied_for), chain, processes })
    }

    /// Nobody is there to be held: what it had written becomes a layer, and it will start on an empty top.
    fn snapshot_stopped(&self, record: &mut BoxRecord, layer: &str) -> Result<Taken> {
        let id = record.info.id.clone();
        let upper = top_dir(&self.home, &id, record.info.generation).join("u");
        let untouched = !upper.is_dir() || self.is_untouched(&Tree::At(upper.clone()), record)?;
        if untouched {
            let chain = record.info.chain.clone();
            return Ok(Taken { method: Method::Unchanged, copied_for: None, chain, processes: 0 });
        }
        let chain = [vec![layer.to_owned()], record.info.chain.clone()].concat();
        let generation = record.info.generation + 1;
        self.make_next_top(&id, generation)?;
        dress_top(&self.home, &id, generation, &source(&upper)?)?;
        let pending = Pending { generation, chain: chain.clone(), seals: Some(layer.to_owned()) };
        record.pending = Some(pending.clone());
        self.home.write_record(record)?;
        record.pending = None;
        self.adopt(record, pending)?;
        self.home.write_record(record)?;
        Ok(Taken { method: Method::Rotate, copied_for: None, chain, processes: 0 })
    }

    pub(super) fn put_back(&self, id: &str, chain: Vec<String>) -> Result<SandboxInfo> {
        let _turn = self.home.lock_box(id)?;
        let mut record = self.running(id)?;
        let anew = begins_anew(&record, &chain);
        let running = if anew { Running::Renewed } else { Running::Killed };
        // What has written nothing by now has most often written nothing when it is dead.
        let pristine = anew && self.is_pristine(&record)?;
        let ready = || if pristine { Ok(None) } else { self.means(&record).map(Some) };
        let (mut held, means) = Held::take(&self.home, &record, running, ready)?;
        self.settle(&mut record, held.generation)?;
        if pristine && held.clean && self.is_pristine(&record)? {
            held.renew()?;
            return Ok(record.info);
        }
        let means = means.map_or_else(|| self.means(&record), Ok)?;
        let generation = record.info.generation + 1;
        let pending = Pending { generation, chain, seals: None };
        let swap = Swap { quiet: false, clean: true, leave_top: held.top.is_some() };
        let done = self.restack(&mut record, (means, &mut held), pending, swap);
        let released = held.release(true);
        match done {
            Ok(()) => released.map(|()| record.info),
            Err(Refused::Other(error)) => Err(error),
            Err(Refused::Busy) => {
                Err(Error::new(ErrorKind::Failed, "the old root is busy, and was not asked"))
            }
        }
    }

    pub(super) fn end_but_keep(&self, id: &str) -> Result<()> {
        let _turn = self.home.lock_box(id)?;
        let mut record = self.running(id)?;
        let (mut held, ()) = Held::take(&self.home, &record, Running::Killed, || Ok(()))?;
        self.settle(&mut record, held.generation)?;
        if let top @ Tree::InMemory(_) = self.upper_of(&record, Some(&mut held))? {
            self.bring_out(&record, &top)?;
        }
        record.info.state = SandboxState::Stopped;
        self.home.write_record(&record)?;
        drop(held);
        if let Some(pidfd) = living(&self.home, &record.info)? {
            if let Ok(stream) = self.connect(&record.info) {
                ask_to_shut_down(&stream);
                let _ = process::wait_end(pidfd.as_fd(), GOODBYE_TIMEOUT);
            }
            start::end(pidfd.as_fd());
        }
        let group = cgroups_of(&self.home, &self.trees, id)?;
        group.kill().context("kill what is left of the box")?;
        group.remove().context("remove the box's cgroups")?;
        // It may be started after the host was: what it wrote has to be on the disk by then.
        layers::sync(&self.home)
    }

    pub(super) fn build_again(&self, id: &str) -> Result<Created> {
        let _turn = self.home.lock_box(id)?;
        let mut record = self.record_of(id)?;
        match record.info.state {
            SandboxState::Stopped => {}
            SandboxState::Running | SandboxState::Paused => {
                return Err(Error::new(ErrorKind::Invalid, format!("box {id} runs already")));
            }
            SandboxState::Dead => {
                let message = format!("box {id} has ended by itself; `glass gc` removes what is left");
                return Err(Error::new(ErrorKind::Gone, message));
            }
        }
        self.settle_stopped(&mut record)?;
        let mut spec = record.spec.clone();
        // Whoever it was to die with has not waited.
        spec.owner = None;
        let users = self.users_of(&record)?;
        let shift = !matches!(users, Users::Same);
        let level = self.level(&spec, shift)?;
        let limits = limit::decide(&self.trees, &spec)?;
        if limits.memory_top.is_some() {
            // Copied back in, it would be our memory and not the box's. So it counts as what the box began with.
            self.snapshot_stopped(&mut record, &layers::new_name("top")?)?;
        }
        let generation = record.info.generation;
        let top = match limits.memory_top {
            Some((bytes, inodes)) => Top::Memory { bytes, inodes },
            None => {
                let top = top_dir(&self.home, id, generation);
                renew_work(&top)?;
                Top::Directory(source(&top)?)
            }
        };
        let in_memory = limits.memory_top.is_some();
        let base =
            Base { layers: layers::sources(&self.home, &record.info.chain)?, ..self.base_of(&record)? };
        let builder = self.builders.take()?;
        let claim = self.home.reclaim(id)?;
        let before = Some(&record);
        let (spec, base) = (&spec, &base);
        let site = Site { id, spec, base, claim, users, top, limits, level, generation, before, builder };
        let created = self.raise(site).map_err(|failed| match failed {
            Failed::Step(failure) => told(failure, &self.home),
            Failed::Other(error) => error,
        })?;
        if in_memory {
            // Empty: what was in it is a layer. What cannot be removed now is when the box is stopped again.
            let _ = self.discard_top(id, generation);
        }
        Ok(created)
    }
}

/// Whether a box that is given this chain is again what it was when it was last given one. What a volume holds that it could
/// write to is not; and a top in memory would be kept from being freed by whatever lives on.
fn begins_anew(record: &BoxRecord, chain: &[String]) -> bool {
    let stays = record.pending.is_none() && record.mounted == chain && record.info.chain == chain;
    // A directory of the host is its owner's to change, and a root that stays shows what it has seen of it.
    stays
        && !chain.iter().any(|name| shelf::is_outside(name))
        && record.spec.limits.disk_bytes.is_none()
        && record.spec.volumes.iter().all(|volume| volume.read_only)
}

/// The box stands on what was intended.
fn stand_on(record: &mut BoxRecord, pending: &Pending) {
    record.mounted.clone_from(&pending.chain);
    record.info.chain.clone_from(&pending.chain);
    record.info.generation = pending.generation;
}

/// Only a box that runs can be held.
fn check_running(record: &BoxRecord) -> Result<()> {
    let id = &record.info.id;
    match record.info.state {
        SandboxState::Running | SandboxState::Paused => Ok(()),
        SandboxState::Stopped => Err(Error::new(
            ErrorKind::Invalid,
            format!("box {id} is stopped; `glass start {id}` starts it again"),
        )),
        SandboxState::Dead => {
            Err(Error::new(ErrorKind::Gone, format!("box {id} has ended; `glass gc` removes what is left")))
        }
    }
}

/// Overlay refuses a work directory that an unsynced mount has left; there is nothing in it that anybody needs.
fn renew_work(top: &Path) -> Result<()> {
    let dir = File::open(top).context(format_args!("open {}", top.display()))?;
    tree::remove(dir.as_fd(), "w").context(format_args!("empty {}/w", top.display()))?;
    let work = top.join("w");
    fs::create_dir(&work).context(format_args!("make {}", work.display()))?;
    fs::set_permissions(&work, Permissions::from_mode(0o755)).context(format_args!("open {}", work.display()))
}

/// The layer whose root a fresh top takes after.
pub(super) fn uppermost(layers: &[Source]) -> Result<&Source> {
    layers.first().ok_or_else(|| Error::new(ErrorKind::Invalid, "a box needs at least one layer"))
}

fn words(failure: &StepFailure) -> String {
    let why = std::io::Error::from_raw_os_error(failure.errno);
    format!("step {} ({}): {why}", failure.step, failure.on)
}

fn is_busy(failure: &StepFailure) -> bool {
    failure.errno == Errno::BUSY.raw_os_error() && failure.on == "the old root"
}
