//! The state of a box in a container: the engine keeps it, as images and as containers.
//!
//! ```text
//!  snapshot   hold the guest, the engine commits the container to an image      method `commit`
//!             where it may miss something: refused if it does (`missed`)
//!  restore    end the container, make one of the snapshot's image in its place
//!  stop       end the guest, keep the container
//!  start      the same container again
//! ```
//! Another root is another container here: its first process is a new one, and who was connected to the old one connects
//! again.

use std::rc::Rc;

use bollard::models::ContainerConfig;
use bollard::query_parameters::CommitContainerOptionsBuilder;

use super::hull::Way;
use super::unseen::Unseen;
use super::{Docker, Site, Unmade, door, hull, remove};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{BoxRecord, Claim, unfinished};
use crate::image::{self, Base};
use crate::limits::DEATH_TIMEOUT;
use crate::runtime::docker::hull::Hull;
use crate::runtime::docker::image::Rooted;
use crate::runtime::native::{self, Held, Running};
use crate::runtime::{Created, Runtime, Still, Taken};
use crate::snapshot::records::Method;
use crate::snapshot::{Tree, layers};
use crate::spec::{SandboxInfo, SandboxSpec, SandboxState};

/// What images are called that are snapshots of boxes.
const REPOSITORY: &str = "glasshouse/snapshot";

impl Docker {
    fn record_of(&self, id: &str) -> Result<BoxRecord> {
        self.home.read_record(id)?.ok_or_else(|| unfinished(id))
    }

    /// The record of a box that is not dead.
    fn whole(&self, id: &str) -> Result<BoxRecord> {
        let record = self.record_of(id)?;
        if record.info.state == SandboxState::Dead {
            let message = format!("box {id} has ended; `glass gc` removes what is left");
            return Err(Error::new(ErrorKind::Gone, message));
        }
        Ok(record)
    }

    fn running(&self, id: &str) -> Result<BoxRecord> {
        let record = self.whole(id)?;
        if record.info.state == SandboxState::Stopped {
            let message = format!("box {id} is stopped; `glass start {id}` starts it again");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(record)
    }

    /// Holds the guest still, if it runs.
    fn hold(&self, record: &BoxRecord, running: Running) -> Result<Option<Held>> {
        match record.info.state {
            SandboxState::Stopped => Ok(None),
            _ if self.home.is_far(&record.info.id) => {
                let connect = || self.connect(&record.info);
                Ok(Some(Held::take_by(&connect, true, running, || Ok(()))?.0))
            }
            _ => Ok(Some(Held::take(&self.home, record, running, || Ok(()))?.0)),
        }
    }

    /// Builds a container around a root, for the first time or again.
    #[expect(clippy::too_many_arguments, reason = "all of it is decided by the caller, in this order")]
    pub(super) fn build(
        &self,
        id: &str,
        spec: &SandboxSpec,
        rooted: &Rooted,
        claim: Claim,
        limits: hull::Decided,
        generation: u64,
        before: Option<&BoxRecord>,
    ) -> Result<Created> {
        let home = self.home_name()?;
        let (door, sys) = (door::door_of(&self.home, id), door::sys_of(&self.home, id));
        let Rooted { image, base } = rooted;
        let hull = Hull {
            id,
            home: &home,
            spec,
            image,
            cwd: &base.cwd,
            way: Way::Door { door: &door, sys: &sys },
            trees: &base.trees,
            runtime: spec.engine_runtime.as_deref(),
            limits: &limits,
            filter: self.filter(id)?,
            ulimits: self.ulimits()?,
        };
        let far = match before {
            Some(_) => self.home.is_far(id),
            None => self.engine.is_far() || self.has_own_kernel(spec.engine_runtime.as_deref())?,
        };
        if !far {
            if before.is_none() {
                door::make(&self.home, id)?;
            }
            let made = self.contain(&hull, generation).and_then(|container| {
                let met = self.start_near(id, &container.name)?;
                Ok((container, met))
            });
            match made {
                Ok((container, met)) => {
                    let limits = limits.clone();
                    let site = Site { id, spec, base, claim, container, limits, generation, before };
                    return self.raise(site, met);
                }
                Err(Unmade::Unseen) if before.is_none() => {
                    self.engine.note_far();
                    door::unmake(&self.home, id)?;
                }
                Err(unmade) => return Err(unmade.into_error()),
            }
        }
        self.check_far(spec, !base.trees.is_empty())?;
        let container = self.contain_far(hull, generation)?;
        let stream = self.start_far(&container.name)?;
        self.raise_far(Site { id, spec, base, claim, container, limits, generation, before }, stream)
    }

    pub(super) fn commit(&self, id: &str) -> Result<Taken> {
        let _turn = self.home.lock_box(id)?;
        self.must_keep(id, "a snapshot")?;
        let record = self.whole(id)?;
        let container = self.container_of(id, record.info.generation)?;
        let misses_nothing = self.engine.commits_all()?;
        let upper = self.upper_of(id);
        if !misses_nothing && upper.is_none() {
            self.know_chain(&record)?;
        }
        let mut held = self.hold(&record, Running::Stopped)?;
        let processes = held.as_ref().map_or(0, |held| held.processes);
        if !misses_nothing {
            held = self.must_miss_nothing(&record, upper, held)?;
        }
        let tag = crate::sandboxes::new_id()?;
        let options = CommitContainerOptionsBuilder::new().container(&container).repo(REPOSITORY).tag(&tag);
        let committed = self.engine.ask("have the engine commit the container", async |docker| {
            docker.commit_container(options.pause(true).build(), ContainerConfig::default()).await
        });
        if let Some(held) = held {
            held.release(false)?;
        }
        let is_far = self.home.is_far(id);
        let chain = self.chain_of_commit(&committed?.id, &record.info.chain, is_far)?;
        Ok(Taken { method: Method::Commit, copied_for: None, chain, processes })
    }

    /// Sees to it that what a box began with is here.
    fn know_chain(&self, record: &BoxRecord) -> Result<()> {
        let mut images = record.info.chain.iter().filter_map(|name| layers::tree_of(name));
        images.try_for_each(|image| self.know(image))
    }

    pub(super) fn look_at(&self, id: &str, look: &mut dyn FnMut(Still<'_>) -> Result<()>) -> Result<()> {
        let _turn = self.home.lock_box(id)?;
        let record = self.whole(id)?;
        let upper = self.upper_of(id);
        if upper.is_none() {
            self.know_chain(&record)?;
        }
        let mut held = self.hold(&record, Running::Settled)?;
        let processes = held.as_ref().map_or(0, |held| held.processes);
        let names = held.as_mut().map_or_else(Vec::new, |held| std::mem::take(&mut held.names));
        let at_work = held.as_ref().is_some_and(|held| held.at_work);
        let (record, names) = (&record, &names[..]);
        let mut still = |upper: &Tree| look(Still { record, upper, processes, names, at_work });
        match (upper, held) {
            (Some(upper), held) => {
                let done = still(&Tree::At(upper));
                held.map_or(Ok(()), |held| held.release(false))?;
                done
            }
            (None, Some(held)) => {
                let container = self.container_of(id, record.info.generation)?;
                let root = Rc::new(Unseen::new(&self.engine, container, &record.info.chain, held));
                let done = still(&Tree::Elsewhere(root.clone()));
                // One that broke off in the middle of a walk is let go by the end of its connection.
                match root.take_held() {
                    Some(held) if done.is_ok() => held.release(false)?,
                    _ => {}
                }
                done
            }
            (None, None) => {
                let message = format!(
                    "box {id} is stopped, and what it has written is in no directory that can be read from here: only its \
                     guest can tell; start it (`glass start {id}`), or take a snapshot and look at that"
                );
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }

    pub(super) fn put_back(&self, id: &str, chain: Vec<String>) -> Result<SandboxInfo> {
        let _turn = self.home.lock_box(id)?;
        let mut record = self.running(id)?;
        let base = Base { chain, ..self.base_of(&record)? };
        let rooted = self.root(&base)?;
        // Whoever finds it without a first process in between finds one that was stopped.
        record.info.state = SandboxState::Stopped;
        self.home.write_record(&record)?;
        self.end_guest(&record.info)?;
        remove(&self.engine, &self.container_of(id, record.info.generation)?)?;
        self.drop_cgroups(id)?;
        let limits = hull::decide(&record.spec.limits)?;
        let claim = self.home.reclaim(id)?;
        let generation = record.info.generation + 1;
        let created = self.build(id, &record.spec, &rooted, claim, limits, generation, Some(&record))?;
        // Whoever is connected learns of the new guest when he asks for the box again.
        Ok(created.info)
    }

    /// Removes the cgroups that commands were told from each other by.
    fn drop_cgroups(&self, id: &str) -> Result<()> {
        let group = native::cgroups_of(&self.home, &self.trees, id)?;
        group.kill().context("kill what is left of the box")?;
        group.remove().context("remove the box's cgroups")
    }

    pub(super) fn end_but_keep(&self, id: &str) -> Result<()> {
        let _turn = self.home.lock_box(id)?;
        let mut record = self.running(id)?;
        self.must_keep(id, "a box that is stopped")?;
        record.info.state = SandboxState::Stopped;
        self.home.write_record(&record)?;
        self.end_guest(&record.info)?;
        self.drop_cgroups(id)
    }

    pub(super) fn start_again(&self, id: &str) -> Result<Created> {
        let _turn = self.home.lock_box(id)?;
        let record = self.record_of(id)?;
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
        // Whoever it was to die with has not waited.
        let spec = SandboxSpec { owner: None, ..record.spec.clone() };
        let base = Base { chain: record.info.chain.clone(), ..self.base_of(&record)? };
        let limits = hull::decide(&spec.limits)?;
        let generation = record.info.generation;
        let name = self.container_of(id, generation)?;
        self.must_end(&name)?;
        // It is kept, whatever happens: what the box had written is in it.
        let container = super::Container { engine: &self.engine, name, kept: true };
        let claim = self.home.reclaim(id)?;
        let (spec, base, before) = (&spec, &base, Some(&record));
        let site = Site { id, spec, base, claim, container, limits, generation, before };
        if self.home.is_far(id) {
            let stream = self.start_far(&site.container.name)?;
            return self.raise_far(site, stream);
        }
        let met = self.start_near(id, &site.container.name).map_err(Unmade::into_error)?;
        self.raise(site, met)
    }

    /// Waits until the engine knows that a container has ended. We know it from the kernel, and sooner; an engine that takes
    /// it for running does nothing when it is asked to start it.
    fn must_end(&self, name: &str) -> Result<()> {
        if self.engine.wait_ended(name, DEATH_TIMEOUT)? {
            return Ok(());
        }
        let message = format!(
            "the engine says that the container {name} still runs, {DEATH_TIMEOUT:?} after its end; try again later"
        );
        Err(Error::new(ErrorKind::Failed, message))
    }

    /// The image's side of a box, without its chain.
    fn base_of(&self, record: &BoxRecord) -> Result<Base> {
        Ok(Base {
            image: record.info.root_image.clone(),
            chain: Vec::new(),
            layers: Vec::new(),
            trees: image::trees_of(&record.info.root_image)?,
            user: record.given.user.clone(),
            cwd: record.given.cwd.clone(),
            env: record.given.env.clone(),
        })
    }
}
