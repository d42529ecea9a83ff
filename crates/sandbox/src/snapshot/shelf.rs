//! Indexes that are kept, and made when they are missing.
//!
//! | of what | where its index is kept | how long it is good |
//! |---|---|---|
//! | a layer of the store | beside its tree | for ever: a layer never changes |
//! | a directory of the host | in `indexes`, by a hash of its path | only to save reading what has not changed since |
//! | what a box has written | in the box's directory | the same |
//! | what a box has in memory | nowhere: times say nothing there | |
//!
//! An index that is damaged, or was made under other rules, is as good as none.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Seek as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use glasshouse_linux::reach::Reach;

use super::index::{Index, Kept, Owners, Room, Walked, scan, scan_keeping};
use super::{Marks, Tree, layers};
use crate::error::{Context, Result};
use crate::home::Home;

/// Indexes at hand. Two chains that share a layer are given the same one, which spares them comparing it.
pub(crate) struct Shelf<'a> {
    home: &'a Home,
    marks: Marks,
    owners: Owners,
    reach: Reach,
    layers: BTreeMap<String, Rc<Index>>,
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
        names.iter().map(|name| self.layer(name)).collect()
    }

    /// The trees of a chain.
    pub(crate) fn trees(&self, names: &[String]) -> Vec<Tree> {
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
        if let Tree::InMemory(_) = upper {
            return self.walk(upper, None);
        }
        let kept = self.home.box_dir(id).join("index");
        self.scan(upper, &kept, self.read(&kept).as_ref())
    }

    /// What a box has written, from what it had written before, with the content of small files that are new. Its kept
    /// index is left alone.
    pub(crate) fn top_since(
        &self,
        upper: &Tree,
        before: Option<&Index>,
        room: Room,
    ) -> Result<(Index, Kept)> {
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

/// Whether a layer is a directory of the host, which its owner may change.
fn is_outside(name: &str) -> bool {
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
