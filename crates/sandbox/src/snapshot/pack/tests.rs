use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;

use glasshouse_linux::unpack::{self, Bounds, Chain};
use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

use super::*;
use crate::snapshot::Marks;
use crate::snapshot::digest::digest;
use crate::snapshot::digest::overlay::{Op, Overlay, ops};
use crate::snapshot::index::Owners;
use crate::snapshot::index::tests::{index_of, is_root};

/// Packs what differs, and unpacks it into a tree.
fn through_a_tar(from: &[&Index], to: Stack<'_>) -> (TempDir, Index) {
    let mut tar = Vec::new();
    let packed = pack(from, to, &mut tar).unwrap();
    let dir = tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::set_permissions(&tree, Permissions::from_mode(0o755)).unwrap();
    let bounds = Bounds { bytes: 1 << 30, entries: 100_000 };
    let below = Chain::new(Vec::new(), c"trusted.overlay.opaque");
    let into = File::open(&tree).unwrap();
    let unpacked =
        unpack::unpack(tar.as_slice(), into.as_fd(), &below, unpack::Owners::Kept, bounds).unwrap();
    assert_eq!((packed.entries, packed.bytes), (unpacked.entries, unpacked.bytes));
    assert_eq!((packed.left_out, unpacked.left_out), (0, 0));
    let index = index_of(&tree);
    (dir, index)
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
    let to = Stack { indexes: &indexes, trees: &trees, reach: &Reach::own() };
    let shown = digest(&indexes).unwrap();
    let (_dir, whole) = through_a_tar(&[&Index::empty(Marks::Trusted, Owners::Kept)], to);
    assert_eq!(digest(&[&whole]).unwrap(), shown, "all of it");
    let (_dir, layer) = through_a_tar(&older, to);
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
