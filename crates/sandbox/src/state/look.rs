//! Looking at states: one number for all that is in one.
//!
//! A box that runs is held still while it is looked at, if there is little to be read. If there is much, it is let go
//! on and read meanwhile, and held once more, for no longer than it takes to see that the most of it is the same. What it
//! has in memory is read while it is held, however much that is: nothing tells there what is the same.
//!
//! Trees of the host that a box is shown (`/usr` in boxes of the image `host`) are no part of its state.

use std::rc::Rc;

use crate::error::{Error, ErrorKind, Result};
use crate::home::Home;
use crate::image::Base;
use crate::limits::{LOOK_BYTES_MAX, LOOK_ENTRIES_MAX};
use crate::sandboxes::Sandboxes;
use crate::snapshot::index::{Index, Patience};
use crate::snapshot::records::{self, SnapshotInfo};
use crate::snapshot::shelf::{Seen, Shelf};
use crate::snapshot::{Tree, digest, layers};
use crate::spec::RuntimeKind;
use crate::threads::{self, blocking, blocking_and_after};

/// What is looked at while a box waits: some milliseconds.
const PATIENCE: Patience = Patience { bytes: LOOK_BYTES_MAX, entries: LOOK_ENTRIES_MAX };

/// One number for a state: the same for the same tree, however it came to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DigestInfo {
    /// The box or the snapshot.
    pub id: String,
    /// `b3:` and 64 hexadecimal digits, of all names, kinds, contents, modes, owners and attributes (`user.*` and
    /// capabilities). Times and access control lists do not count.
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
        let (info, kept) = blocking_and_after(move || {
            threads::answer_first();
            let home = house.home();
            let share = home.store_shared()?;
            let mut shelf = Shelf::new(home);
            let (state, seen) = house.look(&mut shelf, find(home, &name)?)?;
            let (digest, racy) = (state.digest()?.to_string(), state.racy());
            let info = DigestInfo { id: state.id, digest, racy };
            drop(share);
            let (house, id) = (house.clone(), info.id.clone());
            Ok((info, move || Shelf::new(house.home()).keep_top(&id, seen.as_ref())))
        })
        .await?;
        self.chore(async move { drop(kept.await) });
        Ok(info)
    }

    /// The digest of what a box began with, and is reset to.
    pub(crate) async fn origin_digest(&self, id: &str) -> Result<String> {
        let (house, id) = (self.clone(), id.to_owned());
        blocking(move || {
            let _share = house.home().store_shared()?;
            let origin = house.written(&id)?.info.origin;
            house.know(&origin)?;
            Ok(shelf_state(&mut Shelf::new(house.home()), id, &origin)?.digest()?.to_string())
        })
        .await
    }

    /// What a box or a snapshot consists of.
    pub(super) fn state(&self, shelf: &mut Shelf<'_>, found: Found) -> Result<State> {
        let (state, seen) = self.look(shelf, found)?;
        shelf.keep_top(&state.id, seen.as_ref());
        Ok(state)
    }

    /// The same, with what is to be kept of a box for the next look.
    fn look(&self, shelf: &mut Shelf<'_>, found: Found) -> Result<(State, Option<Seen>)> {
        match found {
            Found::Snapshot(snapshot) => {
                snapshot.check_durable()?;
                self.know(&snapshot.chain)?;
                Ok((shelf_state(shelf, snapshot.id, &snapshot.chain)?, None))
            }
            Found::Box(id) => self.state_of_box(shelf, id),
        }
    }

    /// Fetches what can only be had of an engine of the layers of a chain. Done once for each of its images.
    pub(super) fn know(&self, chain: &[String]) -> Result<()> {
        let mut images = chain.iter().filter_map(|name| layers::tree_of(name));
        images.try_for_each(|image| self.containers().know(image))
    }

    /// What a box is made from, with its layers here if its runtime mounts them.
    pub(crate) fn at_hand(&self, runtime: RuntimeKind, base: Base) -> Result<Base> {
        if runtime == RuntimeKind::Docker || !base.chain.iter().any(|name| layers::tree_of(name).is_some()) {
            return Ok(base);
        }
        self.know(&base.chain)?;
        Ok(Base { layers: layers::sources(self.home(), &base.chain)?, ..base })
    }

    fn state_of_box(&self, shelf: &mut Shelf<'_>, id: String) -> Result<(State, Option<Seen>)> {
        let info = self.written(&id)?.info;
        let runtime = self.runtime(info.runtime);
        // Seldom read anew, and then not while the box waits.
        let _ = shelf.chain(&info.chain);
        let mut seen = None;
        let mut at = None;
        runtime.hold_still(&id, &mut |still| {
            let upper = still.upper;
            let patience = match upper {
                Tree::At(_) => PATIENCE,
                Tree::InMemory(_) | Tree::Elsewhere(_) => Patience { bytes: u64::MAX, entries: u64::MAX },
            };
            seen = shelf.top_within(&id, upper, patience)?;
            at = Some((upper.clone(), still.below()));
            Ok(())
        })?;
        let failed = || Error::new(ErrorKind::Failed, format!("nobody looked at box {id}"));
        let (upper, chain) = at.ok_or_else(failed)?;
        if let Some(seen) = seen {
            let state = top_state(shelf, id, (seen.index.clone(), upper), &chain)?;
            return Ok((state, Some(seen)));
        }
        // Reads what is new. It may be moved or changed meanwhile; the second look tells.
        let _ = shelf.top(&id, &upper);
        let _ = shelf.chain(&chain);
        let mut at = None;
        runtime.hold_still(&id, &mut |still| {
            let top = Rc::new(shelf.top(&id, still.upper)?);
            at = Some(((top, still.upper.clone()), still.below()));
            Ok(())
        })?;
        let failed = || Error::new(ErrorKind::Failed, format!("nobody looked at box {id}"));
        let (top, chain) = at.ok_or_else(failed)?;
        Ok((top_state(shelf, id, top, &chain)?, None))
    }
}

/// The state of a box that has written this onto a chain of layers.
pub(super) fn top_state(
    shelf: &mut Shelf<'_>,
    id: String,
    (top, upper): (Rc<Index>, Tree),
    chain: &[String],
) -> Result<State> {
    let below = shelf_state(shelf, id, chain)?;
    Ok(State {
        id: below.id,
        indexes: [vec![top], below.indexes].concat(),
        trees: [vec![upper], below.trees].concat(),
    })
}

/// The state that a chain of layers is.
pub(super) fn shelf_state(shelf: &mut Shelf<'_>, id: String, chain: &[String]) -> Result<State> {
    let indexes = shelf.chain(chain)?;
    Ok(State { id, indexes, trees: shelf.trees(chain) })
}

/// The box that a word stands for, unless a snapshot has it for a name, too: one that is taken for the other tells lies.
pub(super) fn check_means_box(home: &Home, name: &str, id: String) -> Result<String> {
    if id == name {
        return Ok(id);
    }
    match records::find(home, name) {
        Ok(snapshot) if snapshot.name.as_deref() == Some(name) => Err(Error::new(
            ErrorKind::Invalid,
            format!("{name:?} is the name of box {id} and of snapshot {}; say which by its id", snapshot.id),
        )),
        _ => Ok(id),
    }
}

/// The box or the snapshot of this name.
pub(super) fn find(home: &Home, name: &str) -> Result<Found> {
    match home.resolve(name) {
        Ok(id) => check_means_box(home, name, id).map(Found::Box),
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
