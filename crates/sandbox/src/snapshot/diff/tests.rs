use std::collections::BTreeMap;
use std::fs;

use glasshouse_linux::rustix::fs::{XattrFlags, setxattr};
use proptest::prelude::*;
use tempfile::tempdir;

use super::super::Marks;
use super::super::digest::overlay::{Overlay, ops};
use super::super::index::tests::{index_of, is_root};
use super::*;

/// Path, what differs, old and new size.
type Told = (Vec<u8>, What, Option<u64>, Option<u64>);

/// Everything that a chain shows, by path.
fn all(chain: &[&Index]) -> BTreeMap<Vec<u8>, Entry> {
    let root = locate(chain, b"").unwrap().unwrap();
    let mut found = BTreeMap::from([(b".".to_vec(), root.entry)]);
    let mut todo = vec![Vec::new()];
    while let Some(dir) = todo.pop() {
        for node in entries(chain, &dir).unwrap().unwrap() {
            let mut path = dir.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(&node.entry.name);
            if node.entry.kind == Kind::Directory {
                todo.push(path.clone());
            }
            found.insert(path, node.entry);
        }
    }
    found
}

/// What differs, found the slow way.
fn expected(from: &[&Index], to: &[&Index]) -> Vec<Told> {
    let (a, b) = (all(from), all(to));
    let mut changes = Vec::new();
    let mut paths: Vec<&Vec<u8>> = a.keys().chain(b.keys()).collect();
    // By names, not by bytes: what is in a directory follows it.
    paths.sort_by_key(|path| path.split(|b| *b == b'/').collect::<Vec<_>>());
    paths.dedup();
    for path in paths {
        let (x, y) = (a.get(path), b.get(path));
        let what = match (x, y) {
            (Some(x), Some(y)) => What::between(x, y),
            _ => What::default(),
        };
        if x.is_none() || y.is_none() || !what.is_nothing() {
            changes.push((path.clone(), what, x.map(|x| x.size), y.map(|y| y.size)));
        }
    }
    // The root comes first, whatever the names are.
    changes.sort_by_key(|(path, ..)| path != b".");
    changes
}

fn found(from: &[&Index], to: &[&Index]) -> Vec<Told> {
    let mut changes = Vec::new();
    diff(from, to, |change| {
        let size = |node: Option<&Node>| node.map(|node| node.entry.size);
        changes.push((change.path.to_vec(), change.what, size(change.from), size(change.to)));
        Ok(())
    })
    .unwrap();
    changes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_diff_tells_all_that_differs_and_nothing_else(before in ops(), after in ops()) {
        if !is_root("overlay with redirects") {
            return Ok(());
        }
        let mut overlay = Overlay::new(Marks::Trusted);
        before.iter().for_each(|op| overlay.apply(op));
        overlay.rotate();
        let old = overlay.indexes();
        let old: Vec<&Index> = old.iter().skip(1).collect();
        after.iter().for_each(|op| overlay.apply(op));
        let new = overlay.indexes();
        // The layers that both have are one, as they are for the owner of snapshots.
        let new: Vec<&Index> = new.iter().take(new.len() - old.len()).chain(old.iter().copied()).collect();
        prop_assert_eq!(found(&old, &new), expected(&old, &new));
        prop_assert_eq!(found(&new, &old), expected(&new, &old));
        prop_assert_eq!(found(&new, &new), vec![]);
    }
}

#[test]
fn what_differs_is_named() {
    let (a, b) = (tempdir().unwrap(), tempdir().unwrap());
    for (dir, text) in [(&a, "old"), (&b, "newer")] {
        fs::create_dir(dir.path().join("same")).unwrap();
        fs::write(dir.path().join("same/file"), "x").unwrap();
        fs::write(dir.path().join("text"), text).unwrap();
        std::os::unix::fs::symlink(text, dir.path().join("link")).unwrap();
    }
    fs::create_dir(a.path().join("thing")).unwrap();
    fs::write(a.path().join("thing/inside"), "").unwrap();
    fs::write(b.path().join("thing"), "file now").unwrap();
    fs::write(b.path().join("thing.txt"), "").unwrap();
    let (a, b) = (index_of(a.path()), index_of(b.path()));
    let mut told = Vec::new();
    diff(&[&a], &[&b], |change| {
        let path = String::from_utf8(change.path.to_vec()).unwrap();
        told.push((path, change.from.is_some(), change.to.is_some(), change.what));
        Ok(())
    })
    .unwrap();
    let nothing = What::default();
    let expected = [
        ("link", true, true, What { target: true, ..nothing }),
        ("text", true, true, What { content: true, ..nothing }),
        ("thing", true, true, What { kind: true, mode: true, ..nothing }),
        ("thing/inside", true, false, nothing),
        ("thing.txt", false, true, nothing),
    ];
    assert_eq!(told, expected.map(|(path, from, to, what)| (path.to_owned(), from, to, what)));
}

#[test]
fn one_redirect_over_other_layers_shows_something_else() {
    if !is_root("marks of overlay") {
        return;
    }
    let dir = tempdir().unwrap();
    for path in ["top/new/moved", "middle/a", "base/a"] {
        fs::create_dir_all(dir.path().join(path)).unwrap();
    }
    fs::write(dir.path().join("middle/a/two"), "2").unwrap();
    fs::write(dir.path().join("base/a/one"), "1").unwrap();
    let moved = dir.path().join("top/new/moved");
    setxattr(moved, "trusted.overlay.redirect", b"/a", XattrFlags::empty()).unwrap();
    let [top, middle, base] = ["top", "middle", "base"].map(|name| index_of(&dir.path().join(name)));
    let told = found(&[&top, &base], &[&top, &middle, &base]);
    let paths: Vec<&[u8]> = told.iter().map(|(path, ..)| &path[..]).collect();
    assert_eq!(paths, [&b"a/two"[..], b"new/moved/two"]);
}

#[test]
fn a_directory_that_is_the_same_is_not_opened() {
    let dir = tempdir().unwrap();
    fs::create_dir(dir.path().join("same")).unwrap();
    fs::write(dir.path().join("same/file"), "x").unwrap();
    fs::write(dir.path().join("changes"), "1").unwrap();
    let a = index_of(dir.path());
    fs::write(dir.path().join("changes"), "2").unwrap();
    let b = index_of(dir.path());
    // The records of `same` come first. Damaged as they are now, whoever opens them fails.
    let broken = [&a, &b].map(|index| {
        let mut bytes = Vec::new();
        index.write(&mut bytes).unwrap();
        let same = index.list(&index.root().dir.as_ref().unwrap().record).unwrap().pop().unwrap();
        let mut record = Vec::new();
        super::super::index::tests::record_bytes(index, &same, &mut record);
        let at = bytes.windows(record.len()).position(|part| part == record).unwrap();
        bytes[at] ^= 1;
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        Index::open(file).unwrap()
    });
    let (a, b) = (&broken[0], &broken[1]);
    assert_eq!(found(&[a], &[b]).len(), 1);
    super::super::digest::digest(&[a, b]).unwrap_err();
    assert!(entries(&[a], b"same").is_err());
    super::super::digest::digest(&[a]).unwrap();
}
