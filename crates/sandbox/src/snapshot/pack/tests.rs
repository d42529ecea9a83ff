use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use glasshouse_linux::unpack::{self, Bounds, Chain, Shape};
use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

use super::*;
use crate::snapshot::Marks;
use crate::snapshot::digest::digest;
use crate::snapshot::digest::overlay::{Op, Overlay, ops};
use crate::snapshot::index::Owners;
use crate::snapshot::index::tests::{index_of, is_root};

/// Unpacks a layer on top of others.
fn unpacked(tar: &[u8], packed: Packed, below: &Chain) -> (TempDir, Index) {
    let dir = tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::set_permissions(&tree, Permissions::from_mode(0o755)).unwrap();
    let bounds =
        Bounds { bytes: 1 << 30, entries: 100_000, except: &[], shape: Shape::STATE, deletions: true };
    let into = File::open(&tree).unwrap();
    let unpacked = unpack::unpack(tar, into.as_fd(), below, unpack::Owners::Kept, bounds).unwrap();
    assert_eq!((packed.entries, packed.bytes), (unpacked.entries, unpacked.bytes));
    assert_eq!((packed.left_out, unpacked.left_out), (0, 0));
    let index = index_of(&tree);
    (dir, index)
}

fn nothing() -> Chain {
    Chain::new(Vec::new(), c"trusted.overlay.opaque")
}

/// Packs what differs, and unpacks it into a tree.
fn through_a_tar(from: &[&Index], to: Stack<'_>, form: Form) -> (TempDir, Index) {
    let mut tar = Vec::new();
    let packed = pack(from, to, form, &mut tar).unwrap();
    unpacked(&tar, packed, &nothing())
}

/// Packs every layer by itself, and unpacks them on top of each other. What comes out, uppermost first.
fn layer_by_layer(indexes: &[&Index], trees: &[Tree]) -> Vec<(TempDir, Index)> {
    let (mut chain, mut layers) = (nothing(), Vec::new());
    let empty = Index::empty(Marks::Trusted, Owners::Kept);
    for n in (0..indexes.len()).rev() {
        let mut tar = Vec::new();
        let packed = match stands_alone(indexes[n]) {
            true => {
                let only = Stack { indexes: &indexes[n..=n], trees: &trees[n..=n], reach: &Reach::own() };
                pack_layer(only, &mut tar).unwrap()
            }
            false => {
                let below = if n + 1 == indexes.len() { vec![&empty] } else { indexes[n + 1..].to_vec() };
                let to = Stack { indexes: &indexes[n..], trees: &trees[n..], reach: &Reach::own() };
                pack(&below, to, Form::Own, &mut tar).unwrap()
            }
        };
        let (dir, index) = unpacked(&tar, packed, &chain);
        chain.push(File::open(dir.path().join("tree")).unwrap().into());
        layers.insert(0, (dir, index));
    }
    layers
}

fn check(ops: &[Op]) {
    let mut overlay = Overlay::new(Marks::Trusted);
    let (first, second) = ops.split_at(ops.len() / 2);
    first.iter().for_each(|op| overlay.apply(op));
    overlay.rotate();
    let older: Vec<Index> = overlay.chain()[1..].iter().map(|path| index_of(path)).collect();
    second.iter().for_each(|op| overlay.apply(op));
    let (indexes, trees) = (overlay.indexes(), overlay.chain());
    let (older, indexes): (Vec<&Index>, Vec<&Index>) = (older.iter().collect(), indexes.iter().collect());
    let trees: Vec<Tree> = trees.into_iter().map(Tree::At).collect();
    let (to, shown) =
        (Stack { indexes: &indexes, trees: &trees, reach: &Reach::own() }, digest(&indexes).unwrap());
    for form in [Form::Own, Form::Everybody] {
        let (_dir, whole) = through_a_tar(&[&Index::empty(Marks::Trusted, Owners::Kept)], to, form);
        assert_eq!(digest(&[&whole]).unwrap(), shown, "all of it");
    }
    let layers = layer_by_layer(&indexes, &trees);
    let layers: Vec<&Index> = layers.iter().map(|(_, index)| index).collect();
    assert_eq!(digest(&layers).unwrap(), shown, "layer by layer");
    let (_dir, layer) = through_a_tar(&older, to, Form::Own);
    let chain = [vec![&layer], older].concat();
    assert_eq!(digest(&chain).unwrap(), shown, "what was done since, on what was there");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn what_was_packed_and_unpacked_shows_the_same(ops in ops()) {
        if is_root("overlay with redirects") {
            check(&ops);
        }
    }
}

/// A tree, packed and unpacked.
fn copied(root: &Path, form: Form) -> TempDir {
    let (index, trees) = (index_of(root), [Tree::At(root.to_owned())]);
    let empty = Index::empty(Marks::Trusted, Owners::Kept);
    let (dir, copy) =
        through_a_tar(&[&empty], Stack { indexes: &[&index], trees: &trees, reach: &Reach::own() }, form);
    assert_eq!(digest(&[&copy]).unwrap(), digest(&[&index]).unwrap(), "{form:?}");
    dir
}

#[test]
fn names_of_one_file_stay_names_of_one_file() {
    if !is_root("owners") {
        return;
    }
    let dir = tempdir().unwrap();
    let deep = "d".repeat(150);
    fs::create_dir(dir.path().join(&deep)).unwrap();
    fs::write(dir.path().join("a"), "text").unwrap();
    for name in ["b".to_owned(), format!("{deep}/c")] {
        fs::hard_link(dir.path().join("a"), dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("alone"), "text").unwrap();
    for form in [Form::Own, Form::Everybody] {
        let copy = copied(dir.path(), form);
        let meta = |name: &str| copy.path().join("tree").join(name).metadata().unwrap();
        let first = meta("a");
        assert_eq!((first.nlink(), meta("alone").nlink()), (3, 1), "{form:?}");
        assert_eq!((meta("b").ino(), meta(&format!("{deep}/c")).ino()), (first.ino(), first.ino()));
    }
}

#[test]
fn holes_travel_as_holes() {
    if !is_root("owners") {
        return;
    }
    let dir = tempdir().unwrap();
    let file = File::create(dir.path().join("sparse")).unwrap();
    file.set_len(3 << 40).unwrap();
    for at in [0, 1 << 20, 1 << 40, (3 << 40) - 3] {
        file.write_at(b"abc", at).unwrap();
    }
    let (index, trees) = (index_of(dir.path()), [Tree::At(dir.path().to_owned())]);
    let empty = Index::empty(Marks::Trusted, Owners::Kept);
    let mut tar = Vec::new();
    let to = Stack { indexes: &[&index], trees: &trees, reach: &Reach::own() };
    let packed = pack(&[&empty], to, Form::Own, &mut tar).unwrap();
    assert!(tar.len() < 100 << 10, "{} bytes", tar.len());
    let (copy, copied) = unpacked(&tar, packed, &nothing());
    assert_eq!(digest(&[&copied]).unwrap(), digest(&[&index]).unwrap());
    let blocks = |path: &Path| path.metadata().unwrap().blocks();
    assert_eq!(blocks(&copy.path().join("tree/sparse")), blocks(&dir.path().join("sparse")));
}

#[test]
fn a_file_that_another_layer_shares_is_what_it_was() {
    let dir = tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("a"), "text").unwrap();
    let (index, trees) = (index_of(&root), [Tree::At(root.clone())]);
    let to = Stack { indexes: &[&index], trees: &trees, reach: &Reach::own() };
    let empty = Index::empty(Marks::Trusted, Owners::Kept);
    let packed = |text: &str| {
        let mut tar = Vec::new();
        let packed = pack(&[&empty], to, Form::Own, &mut tar);
        assert!(packed.is_err() || tar.windows(text.len()).any(|part| part == text.as_bytes()));
        packed.is_ok()
    };
    // As merging does it, and the removal of what was merged.
    fs::hard_link(root.join("a"), dir.path().join("merged")).unwrap();
    assert!(packed("text"));
    fs::remove_file(dir.path().join("merged")).unwrap();
    assert!(packed("text"));
    // As somebody does who wants to deceive.
    let before = root.join("a").metadata().unwrap().modified().unwrap();
    fs::write(root.join("a"), "TEXT").unwrap();
    File::options().write(true).open(root.join("a")).unwrap().set_modified(before).unwrap();
    assert!(!packed("TEXT"));
}
