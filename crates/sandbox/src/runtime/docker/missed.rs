//! What an engine would miss of a box. A snapshot is the engine's image of what a container has changed, and how it finds that
//! out depends on its storage driver:
//!
//! | driver | by what | what it misses |
//! |---|---|---|
//! | overlay2 with native diff, overlayfs of containerd's | what is in the container's own layer | attributes of files (`user.*`), which engines never keep |
//! | any other: vfs, btrfs, zfs, overlay2 without native diff | comparing two trees | those; and another content of a file that has the size and the time that it had |
//!
//! Both size and time are the box's to set, and so it is without a will: where an image's files all have one time, say. So with
//! the others nothing is kept before it was looked at: the guest tells what has changed, by what is in it, and the engine what it
//! takes for changed (its list of changes, which is what it goes by when it commits). What is in the first and not in the second
//! would be lost, and that is said instead.
//!
//! The list alone is no diff. Asked in the same way on Docker 20.10 and 28.5, by overlay2, vfs and containerd's overlayfs: it is
//! without a rewritten file of the same size and time, and without attributes of files and directories, though both are in a
//! box's digest; and it has what was rewritten with the same bytes, or only touched. Owners, modes, deletions, renames, links and
//! devices are all in it. So no walk is spared by it: it would be believed for exactly what a box can forge.

use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

use bollard::models::{ChangeType, FilesystemChange};

use super::Docker;
use super::unseen::Unseen;
use crate::error::{Error, ErrorKind, Result};
use crate::home::BoxRecord;
use crate::runtime::native::Held;
use crate::snapshot::Tree;
use crate::snapshot::diff::{Change, diff};
use crate::snapshot::index::Index;
use crate::snapshot::shelf::Shelf;

const BY_TIMES: &str = "the engine takes it for what it was: its storage driver goes by sizes and times, and these are the same; \
                        `touch` it, or use an engine with overlay2";
const ATTRIBUTES: &str = "it has attributes, and engines keep none in their images; remove them";
const NO_TEXT: &str = "whether the engine has noticed cannot be told: its name is no UTF-8; rename it, or use an engine with overlay2";

impl Docker {
    /// Refuses a snapshot that would be without something. Gives back what holds the box.
    pub(super) fn must_miss_nothing(
        &self,
        record: &BoxRecord,
        upper: Option<PathBuf>,
        held: Option<Held>,
    ) -> Result<Option<Held>> {
        let id = &record.info.id;
        let container = self.container_of(id, record.info.generation)?;
        let mut shelf = Shelf::new(&self.home);
        let before = shelf.chain(&record.info.chain)?;
        let before: Vec<&Index> = before.iter().map(Rc::as_ref).collect();
        let told = |held| Rc::new(Unseen::new(&self.engine, container.clone(), &record.info.chain, held));
        let (top, now, held) = match (upper, held) {
            (Some(upper), held) => (shelf.top(id, &Tree::At(upper))?, &before[..], held),
            (None, Some(held)) => {
                let root = told(held);
                let top = shelf.top(id, &Tree::Elsewhere(root.clone()))?;
                (top, &[][..], root.take_held())
            }
            (None, None) => {
                let message = format!(
                    "box {id} is stopped, and only its guest can tell whether the engine's snapshot would have all that it \
                     has written: its storage driver goes by sizes and times; start it (`glass start {id}`)"
                );
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        };
        let now: Vec<&Index> = std::iter::once(&top).chain(now.iter().copied()).collect();
        let what = "ask the engine what has changed";
        let listed = self
            .engine
            .ask(what, async |docker| docker.container_changes(&container).await)?
            .unwrap_or_default();
        let mut listed = Listed::new(listed);
        diff(&before, &now, |change| match listed.misses(change) {
            None => Ok(()),
            Some(why) => {
                let path = String::from_utf8_lossy(change.path);
                let message =
                    format!("a snapshot of box {id} would be without what was done to /{path}: {why}");
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        })?;
        Ok(held)
    }
}

/// What an engine takes for changed.
struct Listed {
    paths: HashMap<String, ChangeType>,
    /// What was there is gone with all that was in it.
    gone: Vec<u8>,
}

impl Listed {
    fn new(changes: Vec<FilesystemChange>) -> Listed {
        let paths = changes.into_iter().map(|change| (change.path, change.kind)).collect();
        Listed { paths, gone: Vec::new() }
    }

    /// Why a commit would be without this, if it would. To be asked of what differs, a directory before what is in it.
    fn misses(&mut self, change: &Change<'_>) -> Option<&'static str> {
        let is_within =
            |path: &[u8], dir: &[u8]| path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/"));
        if change.to.is_none() && !self.gone.is_empty() && is_within(change.path, &self.gone) {
            return None;
        }
        let attributes = |node: Option<&crate::snapshot::diff::Node>| node.and_then(|node| node.entry.xattrs);
        if attributes(change.to).is_some() && attributes(change.to) != attributes(change.from) {
            return Some(ATTRIBUTES);
        }
        let Ok(path) = std::str::from_utf8(change.path) else { return Some(NO_TEXT) };
        let listed = self.paths.get(&if path == "." { "/".to_owned() } else { format!("/{path}") });
        let is_noticed = match change.to {
            None => listed == Some(&ChangeType::_2),
            Some(_) => listed.is_some_and(|kind| *kind != ChangeType::_2),
        };
        if !is_noticed {
            return Some(BY_TIMES);
        }
        if change.to.is_none() || change.what.kind {
            self.gone = change.path.to_vec();
        }
        None
    }
}
