//! What images are called: nobody's archive takes a name that stands for something else, and no name lies.

use std::path::{Path, PathBuf};

use glasshouse_tests::House;
use serde_json::{Value, json};

use crate::forgery::{Layer, Stored, layout};
use crate::workshop::{path, tool};
use crate::{assert_nothing_half, each_mode, names, ok, readable, refused};

const NAME: &str = "org.opencontainers.image.ref.name";
const LOOK: [&str; 4] = ["--", "/bin/sh", "-c", "busybox cat /who"];

/// An image that says who it is.
fn image(house: &House, who: &str) -> PathBuf {
    let layer = Stored::plain(Layer::new().file("who", who).bytes());
    layout(house, &[layer], json!({"Env": ["PATH=/bin"]}))
}

/// Changes the index of a layout.
fn reword(dir: &Path, change: impl Fn(&mut Value)) {
    let file = dir.join("index.json");
    let text = std::fs::read(&file).expect("it was written");
    let mut index = serde_json::from_slice(&text).expect("it is JSON");
    change(&mut index);
    std::fs::write(&file, index.to_string()).expect("it is ours");
}

/// An archive of a layout, with this name in the file and this name in it.
fn archive(house: &House, dir: &Path, file: &str, own: &str) -> String {
    reword(dir, |index| index["manifests"][0]["annotations"] = json!({NAME: own}));
    let file = house.path().join(file);
    tool("tar", &["-C", &path(dir), "-cf", &path(&file), "."]);
    readable(house, &file);
    path(&file)
}

fn who(house: &House, image: &str) -> String {
    ok(house, &[&["run", "--image", image][..], &LOOK].concat())
}

#[test]
fn an_archive_that_is_run_takes_no_name_from_others() {
    each_mode(|house| {
        ok(house, &["image", "import", &path(&image(house, "trusted")), "--name", "dk:1"]);
        let evil = archive(house, &image(house, "evil"), "evil.tar", "docker.io/library/dk:1");
        let run = format!("oci-archive:{evil}");
        for _ in 0..2 {
            assert_eq!(who(house, &run), "evil", "{:?}", house.mode);
            assert_eq!(who(house, "dk:1"), "trusted", "{:?}", house.mode);
        }
        // By its digest, once, and to be removed as others are.
        let list = ok(house, &["image", "list", "--json"]);
        let list: Vec<Value> = serde_json::from_str(&list).expect("it is JSON");
        let ours = list.iter().filter_map(|image| image["name"].as_str()).find(|name| name.contains('@'));
        let ours = ours.expect("it has a name by its digest");
        let whole = list.iter().find(|image| image["name"] == ours).expect("it is there");
        assert_eq!(ours, format!("localhost/archive@{}", whole["digest"].as_str().expect("a digest")));
        assert_eq!((list.len(), who(house, ours).as_str()), (2, "evil"));
        ok(house, &["image", "remove", ours]);
    });
}

#[test]
fn an_import_replaces_another_image_only_if_it_is_told_the_name() {
    each_mode(|house| {
        ok(house, &["image", "import", &path(&image(house, "one")), "--name", "dk:1"]);
        let other = archive(house, &image(house, "two"), "other.tar", "docker.io/library/dk:1");
        let sentence = refused(house, &["image", "import", &other]);
        assert!(sentence.contains("another image") && sentence.contains("`--name"), "{sentence}");
        assert_eq!(who(house, "dk:1"), "one", "{:?}", house.mode);
        ok(house, &["image", "import", &other, "--name", "dk:1"]);
        assert_eq!(who(house, "dk:1"), "two", "{:?}", house.mode);
        // The same once more is no other.
        assert_eq!(ok(house, &["image", "import", &other]).trim_end(), "docker.io/library/dk:1");
    });
}

#[test]
fn two_tags_of_one_image_are_one_and_two_images_are_told() {
    each_mode(|house| {
        let dir = image(house, "it");
        reword(&dir, |index| {
            let mut second = index["manifests"][0].clone();
            second["annotations"] = json!({NAME: "b:2"});
            index["manifests"][0]["annotations"] = json!({NAME: "latest"});
            index["manifests"].as_array_mut().expect("a list").push(second);
        });
        assert_eq!(ok(house, &["image", "import", &path(&dir)]).trim_end(), "docker.io/library/b:2");
        ok(house, &["image", "remove", "b:2"]);
        reword(&dir, |index| {
            index["manifests"][1]["digest"] = format!("sha256:{}", "0".repeat(64)).into();
        });
        let sentence = refused(house, &["image", "import", &path(&dir)]);
        assert!(sentence.contains("2 images") && sentence.contains("latest, b:2"), "{sentence}");
        assert_nothing_half(house);
    });
}

#[test]
fn an_archive_for_several_machines_has_the_name_of_what_was_chosen() {
    each_mode(|house| {
        let dir = image(house, "ours");
        let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        reword(&dir, |index| {
            let ours = &mut index["manifests"][0];
            ours["platform"] = json!({"os": "linux", "architecture": architecture});
            ours["annotations"] = json!({NAME: "ours:1"});
            let mut other = ours.clone();
            other["digest"] = format!("sha256:{}", "0".repeat(64)).into();
            other["platform"]["architecture"] = "s390x".into();
            other["annotations"] = json!({NAME: "other:1"});
            let both = json!([other, ours]);
            index["manifests"] = both;
        });
        assert_eq!(ok(house, &["image", "import", &path(&dir)]).trim_end(), "docker.io/library/ours:1");
    });
}

#[test]
fn a_digest_in_a_name_is_the_images_own() {
    each_mode(|house| {
        let dir = image(house, "it");
        let zeros = format!("bar@sha256:{}", "0".repeat(64));
        let sentence = refused(house, &["image", "import", &path(&dir), "--name", &zeros]);
        assert!(sentence.contains("its digest is sha256:"), "{sentence}");
        assert_nothing_half(house);
        let index = std::fs::read(dir.join("index.json")).expect("it was written");
        let index: Value = serde_json::from_slice(&index).expect("it is JSON");
        let digest = index["manifests"][0]["digest"].as_str().expect("it has one");
        ok(house, &["image", "import", &path(&dir), "--name", &format!("bar@{digest}")]);
        // An archive that lies is called as its file.
        let lies = archive(house, &dir, "my.target.tar", &format!("docker.io/library/{zeros}"));
        assert_eq!(ok(house, &["image", "import", &lies]).trim_end(), "docker.io/library/my.target:latest");
        assert_eq!(names(house, "images").len(), 2);
    });
}

#[test]
fn an_image_for_another_machine_is_refused() {
    each_mode(|house| {
        let dir = image(house, "it");
        let blob = |digest: &str| dir.join("blobs").join(digest.replace(':', "/"));
        let read = |file: PathBuf| -> Value {
            serde_json::from_slice(&std::fs::read(file).expect("it is there")).expect("it is JSON")
        };
        let put = |value: &Value| {
            let (text, digest) = (value.to_string(), crate::forgery::digest(value.to_string().as_bytes()));
            std::fs::write(blob(&digest), &text).expect("it is ours");
            json!({"digest": digest, "size": text.len()})
        };
        let index = read(dir.join("index.json"));
        let mut manifest = read(blob(index["manifests"][0]["digest"].as_str().expect("a digest")));
        let mut config = read(blob(manifest["config"]["digest"].as_str().expect("a digest")));
        config["architecture"] = "s390x".into();
        manifest["config"] = put(&config);
        let manifest = put(&manifest);
        reword(&dir, |index| index["manifests"] = json!([manifest.clone()]));
        readable(house, &dir);
        let sentence = refused(house, &["image", "import", &path(&dir), "--name", "it"]);
        assert!(sentence.contains("for linux/s390x alone"), "{sentence}");
        assert_nothing_half(house);
    });
}

#[test]
fn a_root_with_names_of_deletions_is_refused_with_the_path() {
    each_mode(|house| {
        let root = house.path().join("root");
        std::fs::create_dir_all(root.join("etc")).expect("the house is ours");
        std::fs::write(root.join("etc/.wh.x"), "a file").expect("it is ours");
        readable(house, &root);
        let sentence = refused(house, &["image", "import", &path(&root), "--name", "it"]);
        assert!(sentence.contains("etc/.wh.x"), "{sentence}");
        assert_nothing_half(house);
    });
}
