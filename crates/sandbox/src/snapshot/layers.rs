//! The store: which layers there are, who refers to them, and what nobody refers to.
//!
//! Who refers to a layer is not counted but looked up, in the records of boxes, snapshots and images: no crash can leave
//! a count that is wrong. Whoever makes or uses a layer that no record names yet holds a share of the store's lock; the
//! sweep needs all of it.
//!
//! | name | what it is |
//! |---|---|
//! | `host-…` | the skeleton of the image `host`, by a fingerprint of what it was copied from |
//! | `sha256-…` | a layer of an image, by the digest of its content |
//! | `top-…` | what a box wrote, sealed or copied by a snapshot. Hashing it at that moment would cost its size, so its name is random and its digest is taken when somebody asks |
//! | `merge1-…` | several neighbours of a chain in one |
//! | `dir:PATH` | a directory of the host, not in the store |
//! | `tree:ID` | the layers of an engine's image, by its id, where the engine's own cannot be read: those of ours that a note in `engine/trees` names, when they were fetched |
//! | `engine:ID` | an image of a container engine, by its id. There is nothing to read in it: what can be read of it stands above it in the chain |

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use glasshouse_linux::{descriptor, rustix};
use glasshouse_protocol::plan::Source;

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{Home, names_in};
use crate::image;
use crate::snapshot::records::{self, Records};
use crate::snapshot::{merge, shelf};

/// Layers that the kernel can stack.
pub(crate) const CHAIN_MAX: usize = 500;

/// How often the place of a new layer is made again, if somebody takes it for waste.
const CLAIMS_MAX: usize = 10;

/// The name of a directory of the host as a layer.
pub(crate) fn of_directory(path: &str) -> String {
    format!("dir:{path}")
}

/// The name of an engine's image as a layer.
pub(crate) fn of_engine(image: &str) -> String {
    format!("{ENGINE}{image}")
}

/// The engine's image that a layer is, if it is one.
pub(crate) fn engine_of(name: &str) -> Option<&str> {
    name.strip_prefix(ENGINE)
}

/// The engine's image that a chain is.
pub(crate) fn engine_image(chain: &[String]) -> Option<&str> {
    chain.last().and_then(|name| engine_of(name))
}

/// The name of the layers of an engine's image that are not at hand.
pub(crate) fn of_tree(image: &str) -> String {
    format!("{TREE}{image}")
}

/// The engine's image whose layers a name stands for, if it does.
pub(crate) fn tree_of(name: &str) -> Option<&str> {
    name.strip_prefix(TREE)
}

/// The same chain, with the layers of engines' images that were fetched in the places of their names.
pub(crate) fn expand(home: &Home, chain: &[String]) -> Vec<String> {
    let own = |name: &String| match tree_of(name).and_then(|image| known_tree(home, image)) {
        Some(layers) => layers,
        None => vec![name.clone()],
    };
    chain.iter().flat_map(own).collect()
}

/// The layers of an engine's image, uppermost first, if they were fetched.
pub(crate) fn known_tree(home: &Home, image: &str) -> Option<Vec<String>> {
    let note = fs::read_to_string(tree_note(home, image)).ok()?;
    let layers: Vec<String> = note.lines().map(str::to_owned).collect();
    layers.iter().all(|name| path(home, name).is_dir()).then_some(layers)
}

/// Notes which layers an engine's image has. Whoever does so shares the store's lock until a record names the image.
pub(crate) fn note_tree(home: &Home, image: &str, layers: &[String]) -> Result<()> {
    let dir = home.path(TREES);
    fs::create_dir_all(&dir).context(format_args!("make {}", dir.display()))?;
    let part = dir.join(format!("{}~", crate::sandboxes::new_id()?));
    let placed = fs::write(&part, layers.join("\n")).and_then(|()| fs::rename(&part, tree_note(home, image)));
    placed.context(format_args!("write {}", part.display()))
}

fn tree_note(home: &Home, image: &str) -> PathBuf {
    home.path(TREES).join(shelf::file_name(image))
}

/// Where these notes are.
const TREES: &str = "engine/trees";

/// What the names of layers of engines' images begin with that are not at hand.
const TREE: &str = "tree:";

/// What the names of engines' images begin with.
const ENGINE: &str = "engine:";

/// Where a layer's tree is.
pub(crate) fn path(home: &Home, name: &str) -> PathBuf {
    match name.strip_prefix("dir:") {
        Some(path) => path.into(),
        None if is_in_store(name) => home.path("layers").join(name).join("tree"),
        // What stands for layers that were not fetched has none to be read.
        None => home.path("engine/empty"),
    }
}

/// The layers of a chain, ready to be mounted. They are looked at.
pub(crate) fn sources(home: &Home, chain: &[String]) -> Result<Vec<Source>> {
    sources_by(home, chain, |_, path| image::source(&path))
}

/// The same, but for those of the store, which whoever mounts them misses if they are not there: a chain may be long.
pub(crate) fn unseen_sources(home: &Home, chain: &[String]) -> Result<Vec<Source>> {
    sources_by(home, chain, |name, path| match path.to_str() {
        Some(path) if is_in_store(name) => Ok(Source { path: path.to_owned(), dev: 0, ino: 0 }),
        _ => image::source(&path),
    })
}

fn sources_by(
    home: &Home,
    chain: &[String],
    source: impl Fn(&str, PathBuf) -> Result<Source>,
) -> Result<Vec<Source>> {
    if chain.len() > CHAIN_MAX {
        let message =
            format!("a chain of {} layers is longer than the kernel takes ({CHAIN_MAX})", chain.len());
        return Err(Error::new(ErrorKind::Limit, message));
    }
    expand(home, chain).iter().map(|name| source(name, path(home, name))).collect()
}

/// The directory that all layers of the store are in.
pub(crate) fn store(home: &Home) -> Result<Source> {
    image::source(&home.path("layers"))
}

fn is_in_store(name: &str) -> bool {
    !name.starts_with("dir:") && engine_of(name).is_none() && tree_of(name).is_none()
}

/// A name for a new layer.
pub(crate) fn new_name(kind: &str) -> Result<String> {
    Ok(format!("{kind}-{}", crate::sandboxes::new_id()?))
}

/// Makes a layer of a directory that is on the store's file system, by moving it.
pub(crate) fn seal(home: &Home, tree: &Path, name: &str) -> Result<()> {
    let layer = home.path("layers").join(name);
    match fs::create_dir(&layer) {
        // Somebody was killed between this and the next.
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        made => made.context(format_args!("make {}", layer.display()))?,
    }
    let sealed = fs::rename(tree, layer.join("tree"));
    if sealed.is_err() {
        let _ = fs::remove_dir(&layer);
    }
    sealed.context(format_args!("seal {} into {}", tree.display(), layer.display()))
}

/// Whether a layer came to be by what boxes wrote, and not with an image.
pub(crate) fn is_of_boxes(name: &str) -> bool {
    level(name) != merge::LEVEL_FIXED
}

/// How many times a layer was merged; those of images never are.
pub(crate) fn level(name: &str) -> u32 {
    match name.split_once('-') {
        Some(("top", _)) => 0,
        Some((kind, _)) => {
            kind.strip_prefix("merge").and_then(|level| level.parse().ok()).unwrap_or(merge::LEVEL_FIXED)
        }
        None => merge::LEVEL_FIXED,
    }
}

/// Makes a layer: `fill` is given its empty tree. It appears when it is whole.
pub(crate) fn build<T>(home: &Home, name: &str, fill: impl FnOnce(BorrowedFd<'_>) -> Result<T>) -> Result<T> {
    let place = home.path("incoming").join(name);
    let made = fill_in(&place, fill).and_then(|done| {
        let layer = home.path("layers").join(name);
        fs::rename(&place, &layer).context(format_args!("make {}", layer.display()))?;
        Ok(done)
    });
    if made.is_err() {
        // What cannot be removed now is found by the next sweep.
        let _ = discard(home, "incoming", name);
    }
    made
}

fn fill_in<T>(place: &Path, fill: impl FnOnce(BorrowedFd<'_>) -> Result<T>) -> Result<T> {
    let mut tries = 0;
    let (_ours, tree) = loop {
        tries += 1;
        match claim(place) {
            // Somebody cleaned up in the moment between its making and its lock.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && tries < CLAIMS_MAX => {}
            claimed => break claimed.context(format_args!("make {}", place.display()))?,
        }
    };
    fill(tree.as_fd())
}

/// Makes the place of a layer in the making, with its tree. Locked, it is not taken for what somebody left who was killed.
fn claim(place: &Path) -> std::io::Result<(File, File)> {
    let tree = place.join("tree");
    fs::create_dir_all(&tree)?;
    let lock = descriptor::lock_directory(place)?;
    Ok((lock, File::open(&tree)?))
}

/// Every layer that a record names. `None` if a snapshot's record is damaged: it may name any of them.
pub(crate) fn referenced(home: &Home) -> Result<Option<BTreeSet<String>>> {
    let Records { whole, damaged } = records::look(home)?;
    if !damaged.is_empty() {
        return Ok(None);
    }
    let mut names = BTreeSet::from([image::host::current_layer()]);
    for id in home.ids()? {
        // A box whose record is damaged has lost its state; one that is being made holds a share of the lock.
        let Ok(Some(record)) = home.read_record(&id) else { continue };
        names.extend(record.info.chain);
        names.extend(record.info.origin);
        names.extend(record.mounted);
        if let Some(pending) = record.pending {
            names.extend(pending.chain);
            names.extend(pending.seals);
        }
    }
    names.extend(image::references(home)?);
    names.extend(whole.into_iter().flat_map(|snapshot| snapshot.chain));
    let fetched: Vec<String> = names.iter().filter(|name| tree_of(name).is_some()).cloned().collect();
    names.extend(expand(home, &fetched));
    Ok(Some(names))
}

/// Removes the layers that no record names. How many; none if somebody is at work with layers, or a snapshot's record is
/// damaged.
pub(crate) fn sweep(home: &Home) -> Result<usize> {
    let Some(alone) = home.store_exclusive()? else { return Ok(0) };
    let swept = match referenced(home)? {
        Some(referenced) => sweep_but(home, &referenced)?,
        None => Vec::new(),
    };
    // Nobody is at work, so what lies here was left by somebody who was killed.
    records::clean(home)?;
    image::clean_records(home)?;
    for name in names_in(&home.path("incoming"))? {
        if name.contains('-') {
            discard(home, "incoming", &name)?;
        }
    }
    // Others may go on: nobody can see these any more, however long it takes to remove them.
    drop(alone);
    swept.iter().try_for_each(|name| home.empty_trash_of(name))?;
    Ok(swept.len())
}

/// Throws away all layers but these, and removes what is known of them. Their names in the trash.
fn sweep_but(home: &Home, referenced: &BTreeSet<String>) -> Result<Vec<String>> {
    let mut swept = Vec::new();
    for name in names_in(&home.path("layers"))? {
        if !referenced.contains(&name) {
            swept.push(throw_away(home, "layers", &name)?);
        }
    }
    let of_name = |name: &String| [shelf::file_name(name), shelf::first_name(name)];
    let indexes: BTreeSet<String> = referenced.iter().flat_map(of_name).collect();
    let notes: BTreeSet<String> =
        referenced.iter().filter_map(|name| tree_of(name)).map(shelf::file_name).collect();
    for name in names_in(&home.path(TREES)).unwrap_or_default() {
        if !notes.contains(&name) {
            discard(home, TREES, &name)?;
        }
    }
    for name in names_in(&home.path("indexes"))? {
        if !indexes.contains(&name) {
            discard(home, "indexes", &name)?;
        }
    }
    Ok(swept)
}

/// Takes a layer away: at once for everybody who looks, and then from the disk.
fn discard(home: &Home, place: &str, name: &str) -> Result<()> {
    let waste = throw_away(home, place, name)?;
    home.empty_trash_of(&waste)
}

/// Its name in the trash, for whoever removes it. It is one of its own: one that was called the same may be there still,
/// left by somebody who was killed.
fn throw_away(home: &Home, place: &str, name: &str) -> Result<String> {
    let waste = new_name(name)?;
    let (from, to) = (home.path(place).join(name), home.path("trash").join(&waste));
    fs::rename(&from, &to).context(format_args!("take {} away", from.display()))?;
    Ok(waste)
}

/// Puts on disk all that was written to the store's file system.
pub(crate) fn sync(home: &Home) -> Result<()> {
    let dir = File::open(home.path("layers")).context("open the layers")?;
    rustix::fs::syncfs(&dir).map_err(std::io::Error::from).context("write the layers to the disk")
}
