//! Looking at states: one number for all that is in one.
//!
//! A box that runs is looked at twice: first while it goes on, which takes as long as reading what it has written, and
//! then held still, which takes no longer than seeing that the most of it is the same. What it has in memory is read only
//! then: nothing tells there what is the same.
//!
//! Trees of the host that a box is shown (`/usr` in boxes of the image `host`) are no part of its state.

use std::rc::Rc;

use crate::error::{Error, ErrorKind, Result};
use crate::home::Home;
use crate::sandboxes::Sandboxes;
use crate::snapshot::index::Index;
use crate::snapshot::records::{self, SnapshotInfo};
use crate::snapshot::shelf::Shelf;
use crate::snapshot::{Tree, digest};
use crate::threads::blocking;

/// One number for a state: the same for the same tree, however it came to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DigestInfo {
    /// The box or the snapshot.
    pub id: String,
    /// `b3:` and 64 hexadecimal digits, of all names, kinds, contents, modes, owners and attributes. Times do not
    /// count.
    pub digest: String,
    /// Something changed while it was read: the number may be of a state that never was.
    pub racy: bool,
}

/// What a name stands for.
pub(super) enum Found {
    Box(String),
    Snapshot(Box<SnapshotInfo>),
}

/// What a state consists of, uppermost layer first.
pub(super) struct State {
    pub(super) id: String,
    pub(super) indexes: Vec<Rc<Index>>,
    /// The trees that these are of, in the same order.
    pub(super) trees: Vec<Tree>,
}

impl State {
    pub(super) fn chain(&self) -> Vec<&Index> {
        self.indexes.iter().map(Rc::as_ref).collect()
    }

    pub(super) fn racy(&self) -> bool {
        self.indexes.iter().any(|index| index.racy())
    }

    pub(super) fn digest(&self) -> Result<digest::Digest> {
        digest::digest(&self.chain())
    }
}

impl Sandboxes {
    /// The digest of a box, running or stopped, or of a snapshot.
    pub async fn digest(&self, name: &str) -> Result<DigestInfo> {
        let (house, name) = (self.clone(), name.to_owned());
        blocking(move || {
            let home = house.home();
            let _share = home.store_shared()?;
            let mut shelf = Shelf::new(home);
            let state = house.state(&mut shelf, find(home, &name)?)?;
            let (digest, racy) = (state.digest()?.to_string(), state.racy());
            Ok(DigestInfo { id: state.id, digest, racy })
        })
        .await
    }

    /// What a box or a snapshot consists of.
    pub(super) fn state(&self, shelf: &mut Shelf<'_>, found: Found) -> Result<State> {
        match found {
            Found::Snapshot(snapshot) => {
                snapshot.check_durable()?;
                shelf_state(shelf, snapshot.id, &snapshot.chain)
            }
            Found::Box(id) => self.state_of_box(shelf, id),
        }
    }

    fn state_of_box(&self, shelf: &mut Shelf<'_>, id: String) -> Result<State> {
        let runtime = self.on_record(&id)?.info.runtime;
        let runtime = self.runtime(runtime);
        let mut at = None;
        runtime.hold_still(&id, &mut |still| {
            at = Some((still.upper.clone(), still.record.info.chain.clone()));
            Ok(())
        })?;
        if let Some((upper, chain)) = at {
            // Reads what is new. It may be moved or changed meanwhile; the second look tells.
            if let Tree::At(_) = upper {
                let _ = shelf.top(&id, &upper);
            }
            let _ = shelf.chain(&chain);
        }
        let mut state = State { id: id.clone(), indexes: Vec::new(), trees: Vec::new() };
        runtime.hold_still(&id, &mut |still| {
            let below = shelf_state(shelf, id.clone(), &still.record.info.chain)?;
            state.indexes = [vec![Rc::new(shelf.top(&id, still.upper)?)], below.indexes].concat();
            state.trees = [vec![still.upper.clone()], below.trees].concat();
            Ok(())
        })?;
        Ok(state)
    }
}

/// The state that a chain of layers is.
pub(super) fn shelf_state(shelf: &mut Shelf<'_>, id: String, chain: &[String]) -> Result<State> {
    let indexes = shelf.chain(chain)?;
    Ok(State { id, indexes, trees: shelf.trees(chain) })
}

/// The box or the snapshot of this name.
pub(super) fn find(home: &Home, name: &str) -> Result<Found> {
    match home.resolve(name) {
        Ok(id) => Ok(Found::Box(id)),
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        Err(_) => records::find(home, name).map(|found| Found::Snapshot(Box::new(found))).map_err(
            |e| match e.kind() {
                ErrorKind::NotFound => Error::new(
                    ErrorKind::NotFound,
                    format!(
                        "there is no box and no snapshot {name:?}; `glass list` and `glass snapshots` show \
                         those that are"
                    ),
                ),
                _ => e,
            },
        ),
    }
}
