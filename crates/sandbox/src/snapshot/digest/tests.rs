use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;

use glasshouse_linux::reach::Reach;
use glasshouse_linux::rustix::fs::{CWD, FileType, Mode, XattrFlags, lsetxattr, mknodat};
use proptest::prelude::*;
use tempfile::tempdir;

use super::super::Marks;
use super::super::diff::{entries, locate};
use super::super::index::tests::{index_of, is_root, walked};
use super::super::index::{Owners, scan};
use super::overlay::{CAPABILITY, Op, Overlay, ops};
use super::*;

fn refs(chain: &[Index]) -> Vec<&Index> {
    chain.iter().collect()
}

/// Every path that the chain shows must be found where `locate` says, and hold there what the kernel shows.
fn check_places(overlay: &Overlay, chain: &[&Index]) {
    let layers = overlay.chain();
    let mut todo = vec![Vec::new()];
    while let Some(dir) = todo.pop() {
        for listed in entries(chain, &dir).unwrap().unwrap() {
            let path = [&dir[..], b"/", &listed.entry.name].concat();
            let node = locate(chain, &path).unwrap().unwrap();
            assert_eq!((&node.entry, node.layer, &node.path), (&listed.entry, listed.layer, &listed.path));
            let shown = overlay.root().join(OsStr::from_bytes(&path[1..]));
            let held = layers[node.layer].join(OsStr::from_bytes(&node.path));
            let (a, b) = (shown.symlink_metadata().unwrap(), held.symlink_metadata().unwrap());
            assert_eq!((a.mode(), a.uid()), (b.mode(), b.uid()), "{}", path.escape_ascii());
            match node.entry.kind {
                Kind::File => assert!(fs::read(shown).unwrap() == fs::read(held).unwrap()),
                Kind::Directory => todo.push(path),
                _ => {}
            }
        }
    }
    assert!(locate(chain, b"no/such").unwrap().is_none());
}

fn check_against_the_kernel(ops: &[Op], marks: Marks) {
    let mut overlay = Overlay::new(marks);
    let mut halfway = None;
    for (n, op) in ops.iter().enumerate() {
        overlay.apply(op);
        if n == ops.len() / 2 {
            halfway = Some((overlay.layers, overlay.scan(&overlay.chain()[0], None)));
        }
    }
    let mut chain = overlay.indexes();
    let flat = overlay.flat();
    let shown = digest(&[&overlay.scan(&flat.path().join("flat"), None)]).unwrap();
    assert_eq!(digest(&[&overlay.scan(&overlay.root(), None)]).unwrap(), shown, "the mount and its copy");
    assert_eq!(digest(&refs(&chain)).unwrap(), shown, "the chain and what the kernel makes of it");
    check_places(&overlay, &refs(&chain));
    let Some((layers, before)) = halfway else { return };
    let top = overlay.layers - layers;
    chain[top] = overlay.scan(&overlay.chain()[top], Some(&before));
    assert_eq!(digest(&refs(&chain)).unwrap(), shown, "the chain, with an earlier index");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn the_digest_of_a_chain_is_that_of_what_the_kernel_shows(ops in ops()) {
        if !is_root("overlay with redirects") {
            return Ok(());
        }
        check_against_the_kernel(&ops, Marks::Trusted);
    }

    #[test]
    fn so_it_is_without_redirects(ops in ops()) {
        if !is_root("overlay") {
            return Ok(());
        }
        check_against_the_kernel(&ops, Marks::User);
    }

    /// Hard links are left out: where overlay parts them depends on the cut, and so does then what a write
    /// changes.
    #[test]
    fn where_a_chain_is_cut_does_not_matter(ops in ops(), cuts in prop::collection::vec(any::<bool>(), 60)) {
        if !is_root("overlay with redirects") {
            return Ok(());
        }
        let ops: Vec<Op> =
            ops.into_iter().filter(|op| !matches!(op, Op::Rotate | Op::Hardlink(..))).collect();
        let mut digests = Vec::new();
        for cut in [false, true] {
            let mut overlay = Overlay::new(Marks::Trusted);
            // A directory with a longer path is not redirected but refused, and only once it is in a layer
            // below.
            overlay.longest_name = 50;
            for (op, here) in ops.iter().zip(&cuts) {
                overlay.apply(op);
                if cut && *here {
                    overlay.rotate();
                }
            }
            digests.push(digest(&refs(&overlay.indexes())).unwrap());
        }
        prop_assert_eq!(digests[0], digests[1]);
    }
}

/// Moves directories that are, by then, only in the layers below. The old name becomes something new.
fn check_moves(moves: &[(&str, &str)]) -> (Overlay, Vec<Index>) {
    let mut overlay = Overlay::new(Marks::Trusted);
    let at = |overlay: &Overlay, path: &str| overlay.root().join(path);
    fs::create_dir_all(at(&overlay, "a/b/c")).unwrap();
    fs::write(at(&overlay, "a/b/c/one"), "1").unwrap();
    fs::create_dir(at(&overlay, "other")).unwrap();
    for (from, to) in moves {
        overlay.rotate();
        fs::create_dir_all(at(&overlay, to).parent().unwrap()).unwrap();
        fs::rename(at(&overlay, from), at(&overlay, to)).unwrap();
        fs::write(at(&overlay, to).join(format!("in {}", to.replace('/', " "))), to).unwrap();
        fs::create_dir(at(&overlay, from)).unwrap();
        fs::write(at(&overlay, from).join("new"), from).unwrap();
        let chain = overlay.indexes();
        let flat = overlay.flat();
        assert_eq!(
            digest(&refs(&chain)).unwrap(),
            digest(&[&overlay.scan(&flat.path().join("flat"), None)]).unwrap(),
            "after {from} became {to}"
        );
        check_places(&overlay, &refs(&chain));
    }
    let chain = overlay.indexes();
    (overlay, chain)
}

#[test]
fn redirects_stack_across_layers() {
    if !is_root("overlay with redirects") {
        return;
    }
    let (_overlay, chain) = check_moves(&[
        ("a/b", "a/x"),
        ("a/x/c", "other/c"),
        ("a", "z"),
        ("other/c", "z/x/back"),
        ("z/x", "x"),
        ("x/back", "q"),
    ]);
    let node = locate(&refs(&chain), b"q/one").unwrap().unwrap();
    assert_eq!((node.layer, &node.path[..]), (chain.len() - 2, &b"a/b/c/one"[..]));
}

#[test]
fn what_was_moved_into_a_new_directory_is_seen() {
    if !is_root("overlay with redirects") {
        return;
    }
    // `new` hides all below it, but for what leads past it.
    let (_overlay, chain) = check_moves(&[("a", "new/deep/a"), ("new/deep/a", "r"), ("r/b", "fresh/r")]);
    let node = locate(&refs(&chain), b"/fresh/r/c/one").unwrap().unwrap();
    assert_eq!((node.layer, &node.path[..]), (chain.len() - 2, &b"a/b/c/one"[..]));
}

/// A layer by hand, a word for each thing: `dir/`, `file`, `!whiteout`, `dir/:mark=value`.
fn make_layer(root: &Path, things: &str) {
    fs::create_dir(root).unwrap();
    for thing in things.split_whitespace() {
        let (path, mark) = thing.split_once(':').unwrap_or((thing, ""));
        let at = root.join(path.trim_start_matches('!'));
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        if path.starts_with('!') {
            mknodat(CWD, &at, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        } else if path.ends_with('/') {
            fs::create_dir_all(&at).unwrap();
        } else {
            fs::write(&at, if mark.is_empty() { thing } else { "" }).unwrap();
        }
        if let Some((name, value)) = mark.split_once('=') {
            let name = format!("trusted.overlay.{name}");
            lsetxattr(&at, name, value.as_bytes(), XattrFlags::empty()).unwrap();
        }
    }
}

/// Also what no kernel leaves behind, but somebody who merges layers may.
#[test]
fn layers_made_by_hand_are_seen_as_the_kernel_sees_them() {
    if !is_root("overlay with redirects") {
        return;
    }
    // The lowest layer first.
    let chains = [
        ["a/old", "a/:opaque=y a/mid", "b/:redirect=a !a"],
        ["a/old", "a/:opaque=y a/mid", "d/b/:redirect=/a !a"],
        ["p/q/old", "p/:opaque=y p/q/mid", "x/:redirect=/p/q"],
        ["a/old", "!a", "b/:redirect=a"],
        ["a/old", "a", "b/:redirect=a"],
        ["p/q/old", "!p", "x/:redirect=/p/q"],
        ["p/q/old", "p", "x/:redirect=/p/q"],
        ["p/q/old", "p/q", "x/:redirect=/p/q"],
        ["p/q/old", "!p/q p/r", "x/:redirect=/p/q"],
        ["r/q/old p/q/no", "p/:redirect=r p/q/mid", "x/:redirect=/p/q"],
        ["r/q/old p/q/no", "p/:redirect=r", "x/:redirect=/p/q"],
        ["z/q/old p/q/no", "p/:redirect=/z", "x/:redirect=/p/q"],
        ["a/one a/two", "a/:opaque=x a/one:whiteout=y", "a/three"],
        ["z/old", "p/:opaque=y p/q/:redirect=/z", "x/:redirect=/p/q"],
        ["z/old p/q/no", "p/:redirect=/z p/q/:redirect=/z", "x/:redirect=/p/q"],
        ["a/old", "a", "a/new"],
        ["a/old", "!a", "a/new"],
        ["a/old", "other", "b/:redirect=a"],
        ["d/a/old a/no", "d/b/:redirect=a", "d/c/:redirect=b"],
    ];
    for layers in chains {
        let dir = tempdir().unwrap();
        for (n, things) in layers.iter().enumerate() {
            make_layer(&dir.path().join(n.to_string()), things);
        }
        let overlay = Overlay::over(dir, layers.len());
        let chain = overlay.indexes();
        let flat = overlay.flat();
        let shown = digest(&[&overlay.scan(&flat.path().join("flat"), None)]).unwrap();
        assert_eq!(digest(&refs(&chain)).unwrap(), shown, "{layers:?}");
        check_places(&overlay, &refs(&chain));
    }
}

/// A tree with one of each, and one change to it.
fn tree_with(change: impl Fn(&Path)) -> Digest {
    let dir = tempdir().unwrap();
    let root = dir.path();
    fs::set_permissions(root, Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(root.join("dir/empty")).unwrap();
    fs::write(root.join("dir/file"), "content").unwrap();
    symlink("target", root.join("dir/link")).unwrap();
    mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    for path in ["dir/file", "dir"] {
        lsetxattr(root.join(path), "user.mark", b"1", XattrFlags::empty()).unwrap();
    }
    change(root);
    digest(&[&index_of(root)]).unwrap()
}

#[test]
fn any_change_that_a_box_can_see_changes_the_digest() {
    let mode = |path: &'static str, mode| {
        move |root: &Path| fs::set_permissions(root.join(path), Permissions::from_mode(mode)).unwrap()
    };
    let xattr = |path: &'static str, name: &'static str, value: &'static [u8]| {
        move |root: &Path| lsetxattr(root.join(path), name, value, XattrFlags::empty()).unwrap()
    };
    let rename = |from: &'static str, to: &'static str| {
        move |root: &Path| fs::rename(root.join(from), root.join(to)).unwrap()
    };
    type Made = Box<dyn Fn(&Path)>;
    let mut changes: Vec<(&str, Made)> = vec![
        ("nothing", Box::new(|_: &Path| {})),
        ("content", Box::new(|root: &Path| fs::write(root.join("dir/file"), "contenT").unwrap())),
        ("length", Box::new(|root: &Path| fs::write(root.join("dir/file"), "content\0").unwrap())),
        ("a new empty file", Box::new(|root: &Path| fs::write(root.join("new"), "").unwrap())),
        ("a new directory", Box::new(|root: &Path| fs::create_dir(root.join("new")).unwrap())),
        ("a name less", Box::new(|root: &Path| fs::remove_dir(root.join("dir/empty")).unwrap())),
        ("mode of a file", Box::new(mode("dir/file", 0o4755))),
        ("mode of a directory", Box::new(mode("dir", 0o1777))),
        ("mode of the root", Box::new(mode("", 0o700))),
        ("mode of a pipe", Box::new(mode("pipe", 0o666))),
        ("attribute of a file", Box::new(xattr("dir/file", "user.mark", b"2"))),
        ("attribute of a directory", Box::new(xattr("dir", "user.mark", b"2"))),
        ("attribute of the root", Box::new(xattr("", "user.mark", b"2"))),
        ("another attribute", Box::new(xattr("dir/file", "user.other", b""))),
        ("name of a file", Box::new(rename("dir/file", "dir/File"))),
        ("place of a file", Box::new(rename("dir/file", "file"))),
        ("name of a directory", Box::new(rename("dir", "Dir"))),
        (
            "target of a link",
            Box::new(|root: &Path| {
                fs::remove_file(root.join("dir/link")).unwrap();
                symlink("targeT", root.join("dir/link")).unwrap();
            }),
        ),
        (
            "kind",
            Box::new(|root: &Path| {
                fs::remove_file(root.join("pipe")).unwrap();
                mknodat(CWD, root.join("pipe"), FileType::Socket, Mode::RUSR, 0).unwrap();
            }),
        ),
    ];
    if is_root("owners and file capabilities") {
        let own =
            |path: &'static str, uid, gid| move |root: &Path| lchown(root.join(path), uid, gid).unwrap();
        changes.push(("owner", Box::new(own("dir/file", Some(7), None))));
        changes.push(("group", Box::new(own("dir/file", None, Some(7)))));
        changes.push(("owner of a link", Box::new(own("dir/link", Some(7), None))));
        changes.push(("capability", Box::new(xattr("dir/file", "security.capability", &CAPABILITY))));
        changes.push(("trusted", Box::new(xattr("dir/file", "trusted.other", b"1"))));
    }
    let digests: Vec<(&str, Digest)> = changes.iter().map(|(what, f)| (*what, tree_with(f))).collect();
    for (n, (what, digest)) in digests.iter().enumerate() {
        for (other, another) in &digests[..n] {
            // What only the host's root sees is no part of a box.
            let same = *other == "nothing" && *what == "trusted";
            assert_eq!(digest == another, same, "{what}, {other}");
        }
    }
}

#[test]
fn times_and_inodes_do_not_count() {
    let again = tree_with(|root| {
        fs::copy(root.join("dir/file"), root.join("copy")).unwrap();
        lsetxattr(root.join("copy"), "user.mark", b"1", XattrFlags::empty()).unwrap();
        fs::rename(root.join("copy"), root.join("dir/file")).unwrap();
        let file = File::options().write(true).open(root.join("dir/file")).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        lsetxattr(root.join("dir"), "user.overlay.mine", b"1", XattrFlags::empty()).unwrap();
    });
    assert_eq!(again, tree_with(|_| {}));
}

#[test]
fn an_ordinary_user_s_files_belong_to_root_inside() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    let one = |path: &Path| {
        let tree = File::open(path).unwrap();
        digest(&[&scan(walked(&tree, &Reach::own(), Marks::User, Owners::One), None).unwrap()]).unwrap()
    };
    let before = one(dir.path());
    if is_root("changing owners") {
        lchown(dir.path().join("file"), Some(61234), Some(61234)).unwrap();
        lchown(dir.path(), Some(61234), Some(61234)).unwrap();
    }
    assert_eq!(one(dir.path()), before);
}

#[test]
fn a_digest_has_one_spelling() {
    let digest = tree_with(|_| {});
    let text = digest.to_string();
    assert_eq!(text.len(), 67);
    assert_eq!(text.parse::<Digest>().unwrap(), digest);
    for wrong in [&text[3..], &text[..66], &text.to_uppercase(), &text.replace("b3:", "b2:")] {
        assert_eq!(wrong.parse::<Digest>().unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(super::digest(&[]).unwrap_err().kind(), ErrorKind::Invalid);
}
