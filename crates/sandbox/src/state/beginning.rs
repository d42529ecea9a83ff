//! Boxes that begin with a state that is known by its digest alone: what a trajectory says of where it began.
//!
//! It is looked for among the snapshots, and among the layers that boxes began on or stand on now; whatever holds the
//! same files is the same state. Layers have their indexes, so that looking costs little after the first time.

use super::Forked;
use super::look::shelf_state;
use crate::error::Result;
use crate::home::Home;
use crate::image::{self, Base};
use crate::sandbox::Sandbox;
use crate::sandboxes::{Sandboxes, check};
use crate::snapshot::shelf::Shelf;
use crate::snapshot::{layers, records};
use crate::spec::{Image, SandboxSpec};
use crate::task::TaskInfo;
use crate::threads::blocking;
use crate::tools;

/// Whatever holds a state.
struct Found {
    of: String,
    base: Base,
    task: Option<TaskInfo>,
}

impl Sandboxes {
    /// Makes a box on the state with this digest. `None` if nothing here holds it. The image that is asked for counts
    /// for nothing; `likely` names a box or a snapshot that may be the one.
    pub async fn create_like(
        &self,
        spec: SandboxSpec,
        digest: &str,
        likely: Option<&str>,
    ) -> Result<Option<Sandbox>> {
        check(&spec)?;
        tools::check(&spec, &self.rust_tools())?;
        let (house, digest, likely) = (self.clone(), digest.to_owned(), likely.map(str::to_owned));
        let found = blocking(move || {
            let home = house.home();
            let share = home.store_shared()?;
            let found = house.beginning(home, &digest, likely.as_deref())?;
            Ok(found.map(|Found { of, base, task }| (Forked { base, of, grown: None, _share: share }, task)))
        });
        let Some((forked, task)) = found.await? else { return Ok(None) };
        let spec = SandboxSpec { task: task.or(spec.task.clone()), ..spec };
        self.create_on(&spec, &forked, Some(forked.of.clone())).await.map(Some)
    }

    fn beginning(&self, home: &Home, digest: &str, likely: Option<&str>) -> Result<Option<Found>> {
        let mut shelf = Shelf::new(home);
        // One whose layers cannot be looked at is not the one.
        let mut is_it = |id: &str, chain: &[String]| {
            let state = self.know(chain).and_then(|()| shelf_state(&mut shelf, id.to_owned(), chain));
            state.and_then(|state| state.digest()).is_ok_and(|found| found.to_string() == digest)
        };
        let mut snapshots = records::all(home)?;
        snapshots.sort_by_key(|snapshot| likely != Some(&snapshot.id));
        for snapshot in snapshots {
            if snapshot.check_durable().is_ok() && is_it(&snapshot.id, &snapshot.chain) {
                let base = image::resolve(home, &Image::Snapshot(snapshot.id.clone()))?;
                return Ok(Some(Found { of: snapshot.id, base, task: snapshot.task }));
            }
        }
        for id in home.ids()? {
            let Ok(record) = self.on_record(&id) else { continue };
            for chain in [record.info.origin.clone(), record.info.chain.clone()] {
                if chain.is_empty() || !is_it(&id, &chain) {
                    continue;
                }
                let base = Base {
                    image: record.info.root_image.clone(),
                    layers: layers::sources(home, &chain)?,
                    chain,
                    trees: image::trees_of(&record.info.root_image)?,
                    user: record.given.user,
                    cwd: record.given.cwd,
                    env: record.given.env,
                };
                return Ok(Some(Found { of: id, base, task: record.info.task }));
            }
        }
        Ok(None)
    }
}
