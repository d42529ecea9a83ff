//! What hangs on files beside their content: bits, other names, attributes, holes. The same from a directory as from a layer.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use glasshouse_linux::rustix;
use glasshouse_tests::{House, Mode};
use serde_json::json;
use tar::EntryType;

use crate::forgery::{Layer, Stored, layout};
use crate::workshop::{path, tool};
use crate::{each_mode, names, ok, readable};

/// Names, kinds and modes.
const BITS: [(&str, EntryType, u32); 5] = [
    ("sticky", EntryType::Directory, 0o1777),
    ("group", EntryType::Directory, 0o2775),
    ("both", EntryType::Directory, 0o3775),
    ("su", EntryType::Regular, 0o4755),
    ("plain", EntryType::Regular, 0o640),
];

/// The one layer that is here.
fn tree(house: &House) -> PathBuf {
    let layers = names(house, "layers");
    assert_eq!(layers.len(), 1);
    house.home().join("layers").join(&layers[0]).join("tree")
}

fn modes(tree: &Path) -> Vec<u32> {
    BITS.map(|(name, ..)| tree.join(name).metadata().expect("it is there").mode() & 0o7777).to_vec()
}

#[test]
fn bits_are_kept_from_a_directory_as_from_a_layer() {
    each_mode(|house| {
        let root = house.path().join("root");
        std::fs::create_dir(&root).expect("the house is ours");
        let mut layer = Layer::new();
        for (name, kind, mode) in BITS {
            match kind {
                EntryType::Directory => std::fs::create_dir(root.join(name)),
                _ => std::fs::write(root.join(name), "text"),
            }
            .expect("it is ours");
            let content: &[u8] = if kind == EntryType::Directory { b"" } else { b"text" };
            layer = layer.entry(kind, name, "", mode, content);
        }
        std::fs::hard_link(root.join("su"), root.join("other")).expect("it is ours");
        readable(house, &root);
        for (name, _, mode) in BITS {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(root.join(name), mode).expect("it is ours");
        }
        ok(house, &["image", "import", &path(&root), "--name", "root"]);
        let from_directory = modes(&tree(house));
        let other = tree(house).join("other").metadata().expect("it is there");
        assert_eq!(
            (other.nlink(), other.ino()),
            (2, tree(house).join("su").metadata().expect("there").ino())
        );
        ok(house, &["image", "remove", "root"]);
        let layer = layout(house, &[Stored::plain(layer.bytes())], json!({}));
        ok(house, &["image", "import", &path(&layer), "--name", "layer"]);
        assert_eq!(modes(&tree(house)), from_directory);
        let kept: Vec<u32> = match house.mode {
            Mode::Root => BITS.map(|(_, _, mode)| mode).to_vec(),
            // No file of an ordinary user's box is anybody else's, so none is set-id.
            Mode::Rootless => vec![0o1777, 0o2775, 0o3775, 0o755, 0o640],
        };
        assert_eq!(from_directory, kept, "{:?}", house.mode);
    });
}

#[test]
fn what_gnu_tar_writes_of_attributes_and_holes_is_read() {
    each_mode(|house| {
        let root = house.path().join("root");
        std::fs::create_dir(&root).expect("the house is ours");
        let value: &[u8] = b"\ntwo\n\nlines \0\xff\n";
        let long = format!("{}\n{}", "n".repeat(90), "m".repeat(90));
        let file = std::fs::File::create(root.join("holes")).expect("it is ours");
        file.set_len(1 << 40).expect("it is a hole");
        std::os::unix::fs::FileExt::write_at(&file, b"middle", 1 << 30).expect("it is ours");
        for name in ["plain", &long] {
            std::fs::write(root.join(name), name).expect("it is ours");
        }
        for name in ["holes", &long] {
            let flags = rustix::fs::XattrFlags::empty();
            if rustix::fs::setxattr(root.join(name), "user.key", value, flags).is_err() {
                return glasshouse_tests::skip("xattrs", "this file system has no attributes");
            }
        }
        let tar = path(&house.path().join("layer.tar"));
        tool("tar", &["--format=pax", "--xattrs", "--sparse", "-C", &path(&root), "-cf", &tar, "."]);
        let bytes = std::fs::read(&tar).expect("it was made");
        assert!(bytes.len() < 1 << 20, "without its holes");
        let image = layout(house, &[Stored::plain(bytes)], json!({}));
        ok(house, &["image", "import", &path(&image), "--name", "it"]);
        let tree = tree(house);
        assert_eq!(names_of(&tree), ["holes", &long, "plain"]);
        for name in ["holes", &long] {
            let mut found = [0; 100];
            let n = rustix::fs::getxattr(tree.join(name), "user.key", &mut found).expect("it has it");
            assert_eq!(&found[..n], value, "{name}");
        }
        assert_eq!(std::fs::read_to_string(tree.join(&long)).expect("it is there"), long);
        let holes = std::fs::File::open(tree.join("holes")).expect("it is there");
        let mut middle = [0; 6];
        std::os::unix::fs::FileExt::read_exact_at(&holes, &mut middle, 1 << 30).expect("it is as long");
        let meta = holes.metadata().expect("it is open");
        assert_eq!((&middle, meta.len()), (b"middle", 1 << 40));
        assert!(meta.blocks() < 1000, "{} blocks", meta.blocks());
    });
}

fn names_of(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("it is a directory");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_layer_that_comes_twice_is_here_once() {
    each_mode(|house| {
        let layer = |name: &str| Stored::plain(Layer(Vec::new()).file(name, name).bytes());
        let layers = [layer("a"), layer("b"), layer("a"), layer("c")];
        let image = layout(house, &layers, json!({}));
        ok(house, &["image", "import", &path(&image), "--name", "it"]);
        assert_eq!(names(house, "layers").len(), 3);
    });
}
