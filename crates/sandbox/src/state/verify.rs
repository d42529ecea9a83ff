//! A reset that is looked at: whether the box is what it began with, and nothing runs in it.
//!
//! What it began with is known by the indexes that were made of its layers when somebody first asked; the layers
//! themselves are looked at anew, so that one that was changed on the disk since is found. A directory of the host
//! that a box stands on is its owner's to change, and taken as it is.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

use super::look::shelf_state;
use crate::error::{Error, ErrorKind, Result};
use crate::sandboxes::Sandboxes;
use crate::snapshot::index::{Index, Kind};
use crate::snapshot::shelf::Shelf;
use crate::snapshot::{Tree, diff, digest, layers};
use crate::spec::{SandboxInfo, Volume};
use crate::threads::blocking;

/// What was found after a reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// The first thing that is not as it was. `None`: all is, and nothing runs.
    pub difference: Option<String>,
}

impl Verified {
    /// Whether nothing was found.
    pub fn is_clean(&self) -> bool {
        self.difference.is_none()
    }
}

impl Sandboxes {
    /// Resets a box, and looks whether that left anything.
    pub async fn reset_verified(&self, name: &str) -> Result<(SandboxInfo, Verified)> {
        let info = self.info(name).await?;
        let (house, id) = (self.clone(), info.id.clone());
        // Who cannot be looked at is told so before anything is gone.
        blocking(move || {
            let _share = house.home().store_shared()?;
            let record = house.on_record(&id)?;
            house.runtime(record.info.runtime).hold_still(&id, &mut |_| Ok(()))?;
            house.know(&record.info.origin)?;
            Shelf::new(house.home()).chain(&record.info.origin).map(drop)
        })
        .await?;
        let after = self.reset(&info.id).await?;
        let house = self.clone();
        let verified = blocking(move || house.verify(&info.id)).await?;
        Ok((after, verified))
    }

    fn verify(&self, id: &str) -> Result<Verified> {
        let _share = self.home().store_shared()?;
        let record = self.on_record(id)?;
        let mut shelf = Shelf::new(self.home());
        let began = shelf_state(&mut shelf, id.to_owned(), &record.info.origin)?;
        let mut now = Vec::new();
        // What only its guest can look at is not looked at in any other way.
        for name in record.mounted.iter().filter(|name| layers::tree_of(name).is_none()) {
            now.push(Rc::new(shelf.layer_now(name)?));
        }
        let mut processes = 0;
        self.runtime(record.info.runtime).hold_still(id, &mut |still| {
            if still.record.mounted != record.mounted {
                let message = format!("somebody else changed box {id} while it was looked at; try again");
                return Err(Error::new(ErrorKind::Failed, message));
            }
            processes = still.processes;
            if let Tree::Elsewhere(_) = still.upper {
                now.clear();
            }
            now.insert(0, Rc::new(shelf.top(id, still.upper)?));
            Ok(())
        })?;
        let now: Vec<&Index> = now.iter().map(Rc::as_ref).collect();
        let mut difference = match processes {
            0 => None,
            1 => Some("a process runs in it".to_owned()),
            n => Some(format!("{n} processes run in it")),
        };
        if difference.is_none() && began.digest()? != digest::digest(&now)? {
            difference = first_difference(&began.chain(), &now, &record.spec.volumes)?;
        }
        Ok(Verified { difference })
    }
}

/// The first thing that differs, in a few words. The directories that lead to a volume are there again in every root, and
/// nobody in the box has made them.
fn first_difference(from: &[&Index], to: &[&Index], volumes: &[Volume]) -> Result<Option<String>> {
    let leads_to = |path: &[u8], volume: &Volume| {
        Path::new(volume.path.trim_start_matches('/')).starts_with(Path::new(OsStr::from_bytes(path)))
    };
    let (mut first, mut passed_over) = (None, false);
    let walked = diff::diff(from, to, |change| {
        let verb = match (change.from, change.to) {
            (None, Some(node))
                if node.entry.kind == Kind::Directory && volumes.iter().any(|v| leads_to(change.path, v)) =>
            {
                passed_over = true;
                return Ok(());
            }
            (None, _) => "was added",
            (_, None) => "is missing",
            _ => "is not what it was",
        };
        let path = if change.path == b"." { b"" } else { change.path };
        first = Some(format!("/{} {verb}", String::from_utf8_lossy(path)));
        // One is enough.
        Err(Error::new(ErrorKind::Limit, "the first difference was found"))
    });
    match (first, walked) {
        (None, Err(e)) => Err(e),
        (None, Ok(())) if !passed_over => Ok(Some("its digest is another one".to_owned())),
        (first, _) => Ok(first),
    }
}
