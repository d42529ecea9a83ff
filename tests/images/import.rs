//! Images from files.

use std::process::{Child, Stdio};

use glasshouse_linux::rustix::process::{Pid, Signal, kill_process};
use glasshouse_tests::House;

use crate::workshop::{Workshop, path, tool};
use crate::{assert_nothing_half, each_mode, names, ok, readable, refused, wait_until};

fn copy(workshop: &Workshop, tag: &str, to: &str) {
    tool("skopeo", &["--insecure-policy", "copy", "-q", &format!("oci:{}", workshop.image(tag)), to]);
}

#[test]
fn archives_by_other_tools_are_imported() {
    each_mode(|house| {
        let workshop = Workshop::new(house);
        workshop.debian("one");
        let (oci, docker) = (house.path().join("oci.tar"), house.path().join("docker.tar"));
        copy(&workshop, "one", &format!("oci-archive:{}", oci.display()));
        copy(&workshop, "one", &format!("docker-archive:{}:mine:2", docker.display()));
        for file in [&oci, &docker, &workshop.layout()] {
            readable(house, file);
        }
        let script = ["--", "/bin/sh", "-c", "id -u; pwd; cat /srv/data/second"];
        let said = "1234\n/srv/app\nof the second layer\n";
        let name = ok(house, &["image", "import", &path(&oci), "--name", "mine:1"]);
        assert_eq!(name.trim_end(), "docker.io/library/mine:1");
        assert_eq!(ok(house, &[&["run", "--image", "mine:1"][..], &script].concat()), said);
        let layers = names(house, "layers");
        // The same layers, and the name that the archive brings.
        assert_eq!(ok(house, &["image", "import", &path(&docker)]).trim_end(), "docker.io/library/mine:2");
        assert_eq!(ok(house, &[&["run", "--image", "mine:2"][..], &script].concat()), said);
        assert_eq!(names(house, "layers"), layers);
        // On the fly.
        for image in
            [format!("oci-archive:{}", oci.display()), format!("docker-archive:{}", docker.display())]
        {
            assert_eq!(ok(house, &[&["run", "--image", &image][..], &script].concat()), said, "{image}");
        }
        // A directory of the same layout, and an archive that is compressed as a whole.
        ok(house, &["image", "import", &path(&workshop.layout()), "--name", "mine:3"]);
        tool("gzip", &["-k", &path(&docker)]);
        readable(house, &house.path().join("docker.tar.gz"));
        ok(house, &["image", "import", &path(&house.path().join("docker.tar.gz")), "--name", "mine:4"]);
        assert_eq!(names(house, "images").len(), 6, "two of them by their digests");
        assert_eq!(names(house, "incoming"), ["blobs"]);
    });
}

#[test]
fn a_directory_with_a_root_is_imported() {
    each_mode(|house| {
        let root = house.path().join("root");
        for dir in ["bin", "tmp"] {
            std::fs::create_dir_all(root.join(dir)).expect("the house is ours");
        }
        std::fs::copy("/bin/busybox", root.join("bin/busybox")).expect("everybody may read it");
        std::os::unix::fs::symlink("busybox", root.join("bin/sh")).expect("it is ours");
        readable(house, &root);
        ok(house, &["image", "import", &path(&root), "--name", "busy"]);
        // The image is a copy: what becomes of the directory is nothing to it.
        std::fs::remove_dir_all(&root).expect("it is ours");
        assert_eq!(ok(house, &["run", "--image", "busy", "--", "sh", "-c", "echo here; pwd"]), "here\n/\n");
        let sentence = refused(house, &["run", "--image", "busy"]);
        assert!(sentence.contains("no command of its own"), "{sentence}");
    });
}

/// Starts an import that takes long: of a root with a file of many gigabytes, which cost nothing.
fn long_import(house: &House) -> Child {
    let root = house.path().join("root");
    std::fs::create_dir(&root).expect("the house is ours");
    let file = std::fs::File::create(root.join("huge")).expect("it is ours");
    file.set_len(4 << 30).expect("it is a hole");
    readable(house, &root);
    let mut command = house.glass(&["image", "import", &path(&root), "--name", "it"]);
    let import = command.stderr(Stdio::null()).spawn().expect("the program can be started");
    wait_until("the first bytes", || {
        let working = names(house, "incoming").into_iter().find(|name| name != "blobs");
        working.is_some_and(|name| house.home().join("incoming").join(name).join("next/tree/huge").exists())
    });
    import
}

#[test]
fn an_import_that_is_stopped_leaves_nothing_half() {
    each_mode(|house| {
        let import = long_import(house);
        kill_process(Pid::from_child(&import), Signal::INT).expect("it is ours");
        let output = import.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130));
        assert_nothing_half(house);
    });
}

#[test]
fn what_a_killed_import_left_is_found_and_what_is_in_work_stays() {
    each_mode(|house| {
        let mut import = long_import(house);
        ok(house, &["gc"]);
        assert_eq!(names(house, "incoming").len(), 2, "it is in work");
        import.kill().expect("it is ours");
        import.wait().expect("it is ours");
        assert_eq!(names(house, "incoming").len(), 2, "it had no time to clean up");
        ok(house, &["gc"]);
        assert_nothing_half(house);
    });
}

#[test]
fn what_is_no_image_is_refused() {
    each_mode(|house| {
        let file = house.path().join("file.tar");
        for content in [&b""[..], b"text", &[0; 4096], &[0x1f, 0x8b, 8, 0], &[0x28, 0xb5, 0x2f, 0xfd, 0]] {
            std::fs::write(&file, content).expect("the house is ours");
            refused(house, &["image", "import", &path(&file)]);
            assert_nothing_half(house);
        }
        refused(house, &["image", "import", "/nowhere"]);
        refused(house, &["image", "import", "/"]);
        let sentence = refused(house, &["run", "--image", "unheard:of", "--", "true"]);
        assert!(sentence.contains("`glass image pull unheard:of`"), "{sentence}");
    });
}
