//! States that become images.

use std::path::PathBuf;
use std::process::Command;

use glasshouse_tests::{Mode, ORDINARY, is_root};

use crate::stage::Stage;

impl Stage {
    /// A directory that holds a root with a shell: this machine's own, with what it needs.
    fn root(&self) -> PathBuf {
        let root = self.house.path().join("root");
        let line = "set -e; umask 022; mkdir -p \"$1\"; cd \"$1\"; mkdir -p etc tmp proc sys dev work usr/bin; \
            for p in sh cat ls rm mv stat; do f=$(readlink -f $(command -v $p)); cp \"$f\" usr/bin/$p; \
            ldd \"$f\" | grep -o '/[^ ]*' | while read l; do mkdir -p \".$(dirname $l)\"; cp -L \"$l\" \".$l\"; done; \
            done; ln -s usr/bin bin; echo 'root:x:0:0::/:/bin/sh' > etc/passwd; echo old > work/old; chmod 1777 tmp work";
        let done = Command::new("sh").args(["-c", line, "sh"]).arg(&root).status();
        assert!(done.expect("a shell").success());
        if self.house.mode == Mode::Rootless && is_root() {
            let owner = format!("{ORDINARY}:{ORDINARY}");
            let done = Command::new("chown").args(["-R", &owner]).arg(&root).status();
            assert!(done.expect("chown").success());
        }
        root
    }

    /// A box of that root.
    fn rooted(&self) -> String {
        let image = format!("dir:{}", self.root().display());
        self.ok(&["create", "--image", &image, "--env", "KEY=value"])
    }
}

#[test]
fn a_snapshot_of_a_directory_becomes_an_image() {
    for stage in Stage::each(&[]) {
        let id = stage.rooted();
        stage.sh_in(&id, "echo new > /work/new; rm /work/old; mv /etc/passwd /etc/p; echo x > /etc/passwd");
        let snapshot = stage.ok(&["snapshot", &id]);
        let digest = stage.ok(&["digest", &snapshot]);
        let name = stage.ok(&["commit", &snapshot, "-t", "mine:1"]);
        stage.ok(&["kill", &id]);
        stage.ok(&["snapshots", "remove", &snapshot]);
        std::fs::remove_dir_all(stage.house.path().join("root")).expect("it is there");
        stage.ok(&["gc"]);
        let look = ["run", "--image", "mine:1", "--", "/bin/sh", "-c", "ls /work; cat /work/new /etc/passwd"];
        assert_eq!(stage.ok(&look), "new\nnew\nx", "{:?}", stage.house.mode);
        // And an image of a box of that image.
        let second = stage.ok(&["create", "--image", &name]);
        assert_eq!(stage.ok(&["digest", &second]), digest, "{:?}: it shows another tree", stage.house.mode);
        stage.sh_in(&second, "echo more > /work/more");
        let snapshot = stage.json(&["snapshot", &second]);
        let info = stage.json(&["commit", snapshot["id"].as_str().expect("an id"), "-t", "mine:2"]);
        assert_eq!(info["layers"], snapshot["layers"], "nothing is copied");
        assert_eq!(stage.ok(&["run", "--image", "mine:2", "--", "/bin/ls", "/work"]), "more\nnew");
        assert_eq!(stage.ok(&["diff", &second]), "A /work/more");
    }
}

#[test]
fn a_snapshot_of_the_host_does_not() {
    for stage in Stage::each(&[]) {
        let snapshot = stage.snapshot();
        assert!(stage.refused(&["commit", &snapshot, "-t", "x"]).contains("/usr is this machine's"));
        assert!(stage.refused(&["commit", "nosuch", "-t", "x"]).contains("no snapshot"));
        assert!(stage.refused(&["commit", &snapshot, "-t", "../x"]).contains("../x"));
    }
}
