//! Indexes that are kept, and made when they are missing.
//!
//! | of what | where its index is kept | how long it is good |
//! |---|---|---|
//! | a layer of the store | beside its tree | for ever: a layer never changes |
//! | a directory of the host | in `indexes`, by a hash of its path | only to save reading what has not changed since |
//! | what a box has written | in the box's directory | the same |
//! | what a box has in memory | nowhere: times say nothing there | |
//! | all that a box elsewhere shows | in the box's directory; of the first one of an image in `indexes`, too | the same |
//!
//! An index that is damaged, or was made under other rules, is as good as none.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Seek as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use glasshouse_linux::reach::Reach;

use super::digest::merged::Merged;
use super::index::{
    Heard, Index, Kept, Owners, Patience, Room, Rules, Walked, hear, scan, scan_keeping, scan_within,
};
use super::{Elsewhere, Marks, Tree, layers};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::Home;

/// Indexes at hand. Two chains that share a layer are given the same one, which spares them comparing it.
pub(crate) struct Shelf<'a> {
    home: &'a Home,
    marks: Marks,
    owners: Owners,
    reach: Reach,
    layers: BTreeMap<String, Rc<Index>>,
}

/// What a box had written when it was looked at.
pub(crate) struct Seen {
    pub(crate) index: Rc<Index>,
    /// There is more in it than in the one that is kept.
    is_news: bool,
}

impl<'a> Shelf<'a> {
    pub(crate) fn new(home: &'a Home) -> Shelf<'a> {
        let marks = Marks::here();
        // Without privilege, everything is one user's, in the box and on the disk.
        let owners = if marks == Marks::Trusted { Owners::Kept } else { Owners::One };
        Shelf { home, marks, owners, reach: super::reach(), layers: BTreeMap::new() }
    }

    /// The indexes of a chain, uppermost first.
    pub(crate) fn chain(&mut self, names: &[String]) -> Result<Vec<Rc<Index>>> {
        layers::expand(self.home, names).iter().map(|name| self.layer(name)).collect()
    }

    /// The trees of a chain.
    pub(crate) fn trees(&self, names: &[String]) -> Vec<Tree> {
        let names = layers::expand(self.home, names);
        names.iter().map(|name| Tree::At(layers::path(self.home, name))).collect()
    }

    /// How far it looks into them.
    pub(crate) fn reach(&self) -> &Reach {
        &self.reach
    }

    /// What a layer holds.
    pub(crate) fn layer(&mut self, name: &str) -> Result<Rc<Index>> {
        if let Some(index) = self.layers.get(name) {
            return Ok(index.clone());
        }
        if let Some(image) = layers::tree_of(name) {
            let message = format!("the files of the engine's image {image} are not known here");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let kept = self.place(name);
        let before = self.read(&kept);
        let index = match before {
            // A file that was given another name meanwhile, as merging does, looked as if it changed.
            Some(index) if !is_outside(name) && !index.racy() => index,
            before => self.scan(&Tree::At(layers::path(self.home, name)), &kept, before.as_ref())?,
        };
        let index = Rc::new(index);
        self.layers.insert(name.to_owned(), index.clone());
        Ok(index)
    }

    /// A layer with nothing in it.
    pub(crate) fn empty(&self) -> Index {
        Index::empty(self.marks, self.owners)
    }

    /// What a layer holds now, whatever is known of it. The kept index is left alone.
    pub(crate) fn layer_now(&self, name: &str) -> Result<Index> {
        let before = self.read(&self.place(name));
        self.walk(&Tree::At(layers::path(self.home, name)), before.as_ref())
    }

    /// What a box has written.
    pub(crate) fn top(&self, id: &str, upper: &Tree) -> Result<Index> {
        let kept = self.home.box_dir(id).join("index");
        match upper {
            Tree::InMemory(_) => self.walk(upper, None),
            Tree::At(_) => self.scan(upper, &kept, self.read(&kept).as_ref()),
            Tree::Elsewhere(tree) => {
                let heard = self.hear(&**tree, self.read(&kept).as_ref(), Room::default())?;
                // Without it the next one reads more, and finds the same.
                let _ = keep(self.home, &heard.index, &kept);
                Ok(heard.index)
            }
        }
    }

    /// What a box elsewhere shows.
    fn hear(&self, tree: &dyn Elsewhere, before: Option<&Index>, room: Room) -> Result<Heard> {
        let mut shelf = Shelf::new(self.home);
        let below = shelf.chain(tree.below())?;
        let below: Vec<&Index> = below.iter().map(Rc::as_ref).collect();
        let base = Merged::new(&below)?;
        let first = tree.below().last().map(|name| self.home.path("indexes").join(first_name(name)));
        let of_first = match (before, &first) {
            (None, Some(path)) => self.read(path),
            _ => None,
        };
        let is_first = before.is_none() && of_first.is_none();
        let (before, marks, owners) = (before.or(of_first.as_ref()), self.marks, self.owners);
        let heard = hear(tree, &Rules { base: &base, before, marks, owners, room })?;
        if let (true, Some(path)) = (is_first, first) {
            let _ = keep(self.home, &heard.index, &path);
        }
        Ok(heard)
    }

    /// What a box has written, if it takes no longer than this to see it. Nothing is kept of it yet: somebody waits.
    pub(crate) fn top_within(&self, id: &str, upper: &Tree, patience: Patience) -> Result<Option<Seen>> {
        if let Tree::Elsewhere(tree) = upper {
            // Hashed where it is: nothing would be saved by letting it go on meanwhile.
            let heard = self.hear(&**tree, self.top_before(id).as_ref(), Room::default())?;
            return Ok(Some(Seen { index: Rc::new(heard.index), is_news: heard.has_read }));
        }
        let dir = upper.open(&self.reach)?;
        let before = match upper {
            Tree::At(_) => self.top_before(id),
            _ => None,
        };
        let seen = scan_within(self.walked(dir.as_fd(), upper), before.as_ref(), patience)?;
        Ok(seen.map(|seen| Seen {
            index: Rc::new(seen.index),
            is_news: seen.is_news && matches!(upper, Tree::At(_)),
        }))
    }

    /// Keeps what was seen of a box for the next look.
    pub(crate) fn keep_top(&self, id: &str, seen: Option<&Seen>) {
        if let Some(seen) = seen.filter(|seen| seen.is_news) {
            // Without it the next one reads more, and finds the same. One that two wrote at once is damaged, and seen to
            // be.
            let _ = overwrite(&seen.index, &self.home.box_dir(id).join("index"));
        }
    }

    /// What a box has written, from what it had written before, with the content of small files that are new. Its kept
    /// index is left alone.
    pub(crate) fn top_since(
        &self,
        upper: &Tree,
        before: Option<&Index>,
        room: Room,
    ) -> Result<(Index, Kept)> {
        if let Tree::Elsewhere(tree) = upper {
            let heard = self.hear(&**tree, before, room)?;
            return Ok((heard.index, heard.kept));
        }
        let dir = upper.open(&self.reach)?;
        let before = before.filter(|_| matches!(upper, Tree::At(_)));
        scan_keeping(self.walked(dir.as_fd(), upper), before, room)
    }

    /// The kept index of what a box has written, if there is one.
    pub(crate) fn top_before(&self, id: &str) -> Option<Index> {
        self.read(&self.home.box_dir(id).join("index"))
    }

    /// Where the index of a layer is kept.
    fn place(&self, name: &str) -> PathBuf {
        match is_outside(name) {
            true => self.home.path("indexes").join(file_name(name)),
            false => self.home.path("layers").join(name).join("index"),
        }
    }

    fn read(&self, path: &Path) -> Option<Index> {
        let index = Index::open(File::open(path).ok()?).ok()?;
        index.follows(self.marks, self.owners).then_some(index)
    }

    fn walk(&self, tree: &Tree, before: Option<&Index>) -> Result<Index> {
        let dir = tree.open(&self.reach)?;
        scan(self.walked(dir.as_fd(), tree), before)
    }

    fn walked<'b>(&'b self, dir: BorrowedFd<'b>, tree: &Tree) -> Walked<'b> {
        let Shelf { marks, owners, reach, .. } = self;
        Walked { tree: dir, reach, marks: *marks, owners: *owners, first_id: tree.first_id() }
    }

    fn scan(&self, tree: &Tree, kept: &Path, before: Option<&Index>) -> Result<Index> {
        let index = self.walk(tree, before)?;
        // Without it the next one reads more, and finds the same.
        let _ = keep(self.home, &index, kept);
        Ok(index)
    }
}

/// The file in `indexes` for a directory of the host.
pub(super) fn file_name(name: &str) -> String {
    blake3::hash(name.as_bytes()).to_hex().to_string()
}

/// The file in `indexes` for what the first box of an engine's image was heard to show.
pub(super) fn first_name(engine: &str) -> String {
    file_name(&format!("first:{engine}"))
}

/// Whether a layer is a directory of the host, which its owner may change.
pub(crate) fn is_outside(name: &str) -> bool {
    name.starts_with("dir:") || layers::engine_of(name).is_some()
}

/// Writes an index over whatever a file holds that nobody needs. To replace it by another file would cost more than all
/// the rest: that has to be made, and some file systems wait for its content.
pub(crate) fn overwrite(index: &Index, path: &Path) -> Result<()> {
    let what = || format!("write {}", path.display());
    let file = File::options().write(true).create(true).truncate(false).open(path).context(what())?;
    index.write(BufWriter::new(&file))?;
    let length = (&file).stream_position().context(what())?;
    file.set_len(length).context(what())
}

/// Puts an index in its place, whole or not at all. Others may do the same at the same time. Until it is whole it lies
/// where `gc` finds what killed ones left.
pub(crate) fn keep(home: &Home, index: &Index, path: &Path) -> Result<()> {
    let temporary = home.path("incoming").join(layers::new_name("index")?);
    let file = File::create_new(&temporary).context(format_args!("make {}", temporary.display()))?;
    let kept = index
        .write(BufWriter::new(file))
        .and_then(|()| fs::rename(&temporary, path).context(format_args!("rename {}", temporary.display())));
    if kept.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    kept
}
