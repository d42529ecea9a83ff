//! States that become images, and states that go elsewhere.

use std::path::PathBuf;
use std::process::Command;

use glasshouse_tests::{Mode, ORDINARY, is_root, skip};

use crate::stage::Stage;

impl Stage {
    /// A directory that holds a root with a shell: this machine's own, with what it needs.
    fn root(&self) -> PathBuf {
        let root = self.house.path().join("root");
        let line = "set -e; umask 022; mkdir -p \"$1\"; cd \"$1\"; mkdir -p etc tmp proc sys dev work usr/bin; \
            for p in sh cat ls rm mv stat mkdir ln chmod truncate du; do f=$(readlink -f $(command -v $p)); cp \"$f\" usr/bin/$p; \
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

/// Something of every kind that a file can carry.
const TREE: &str = "set -e; umask 022; cd /work; mkdir -p a/b; echo one > a/f; ln a/f a/hard; ln -s .//f a/link; chmod 640 a/f; \
    mkdir 'odd \\ name'; echo x > 'odd \\ name/é'; rm old; mv /etc/passwd /etc/p; mv /usr/bin/stat /usr/bin/other";

#[test]
fn a_snapshot_goes_to_another_home() {
    for stage in Stage::each(&[]) {
        let id = stage.rooted();
        stage.sh_in(&id, TREE);
        let snapshot = stage.ok(&["snapshot", &id]);
        let digest = stage.ok(&["digest", &snapshot]);
        let file = stage.house.path().join("home/state").display().to_string();
        let told = stage.json(&["export", &snapshot, "-o", &file]);
        assert_eq!(told["digest"], digest);
        let whole = std::fs::read(&file).expect("it was written");
        for other in Stage::each(&[]) {
            let here = other.house.path().join("home/state").display().to_string();
            std::fs::write(&here, &whole).expect("it can be written");
            give(&other, &here);
            let imported = other.json(&["import", &here, "--name", "moved"]);
            let exact = imported["exact"] == true;
            let modes = (stage.house.mode, other.house.mode);
            assert!(exact || modes == (Mode::Root, Mode::Rootless), "{modes:?}: {imported}");
            assert_eq!(exact, other.ok(&["digest", "moved"]) == digest, "{modes:?}");
            let fork = other.ok(&["fork", "moved"]);
            let look = "cd /work; ls; cat a/f a/link 'odd \\ name/é'; ls -d /etc/passwd /usr/bin/stat 2>/dev/null; true";
            assert_eq!(other.sh_in(&fork, look), "a\nodd \\ name\none\none\nx", "{modes:?}");
            assert!(other.refused(&["import", &here, "--name", "moved"]).contains("there already"));
            // It goes without a trace.
            other.ok(&["kill", &fork]);
            other.ok(&["snapshots", "remove", "moved"]);
            assert_eq!(other.layers(), [""; 0], "{modes:?}");
        }
    }
}

/// What layers, links and holes a state has: two snapshots, and what was done before each.
const FIRST: &str = "set -e; umask 022; cd /work; echo one > a; ln a b; mkdir d; ln a d/c; echo hidden > secret; \
    truncate -s 1T sparse; printf end >> sparse; ln -s a link";
const SECOND: &str =
    "set -e; cd /work; rm secret d/c; echo two > new; ln new new2; chmod 600 a; mkdir e; mv e f";
const LOOK: &str = "cd /work; stat -c '%n %s %h %a' *; du -k sparse; cat a b new";

#[test]
fn layers_links_and_holes_go_along() {
    for stage in Stage::each(&[]) {
        let id = stage.rooted();
        stage.sh_in(&id, FIRST);
        let first = stage.ok(&["snapshot", &id]);
        stage.sh_in(&id, SECOND);
        let second = stage.ok(&["snapshot", &id]);
        let seen = stage.sh_in(&stage.ok(&["fork", &second]), LOOK);
        let digests = [&first, &second].map(|snapshot| stage.ok(&["digest", snapshot]));
        let mut files = Vec::new();
        for (snapshot, flat, layers) in
            [(&first, false, 2), (&second, false, 3), (&first, true, 1), (&second, true, 1)]
        {
            let file = stage.house.path().join("home/state").display().to_string();
            let args = ["export", snapshot, "-o", &file, "--flat"];
            let told = stage.json(&args[..if flat { 5 } else { 4 }]);
            assert_eq!(told["layers"], layers, "{told}");
            files.push(std::fs::read(&file).expect("it was written"));
            assert!(files[files.len() - 1].len() < 50 << 20, "holes are in it");
        }
        for other in Stage::each(&[]) {
            let modes = (stage.house.mode, other.house.mode);
            let here = other.house.path().join("home/state").display().to_string();
            let take = |bytes: &[u8]| {
                std::fs::write(&here, bytes).expect("it can be written");
                give(&other, &here);
                other.json(&["import", &here])
            };
            let imported = [take(&files[0]), take(&files[1])];
            assert_eq!(other.layers().len(), 3, "{modes:?}: what both stand on is here once");
            for (told, digest) in imported.iter().zip(&digests) {
                assert_eq!(
                    (&told["digest"], &told["exact"]),
                    (&digest.as_str().into(), &true.into()),
                    "{modes:?}"
                );
            }
            let fork = other.ok(&["fork", imported[1]["id"].as_str().expect("an id")]);
            assert_eq!(other.sh_in(&fork, LOOK), seen, "{modes:?}");
            other.ok(&["kill", &fork]);
            for told in &imported {
                other.ok(&["snapshots", "remove", told["id"].as_str().expect("an id")]);
            }
            assert_eq!(other.layers(), [""; 0], "{modes:?}");
            // Flat, what is hidden stays where it is.
            let told = take(&files[3]);
            let layers = other.layers();
            assert_eq!((told["digest"].as_str(), layers.len()), (Some(digests[1].as_str()), 1), "{modes:?}");
            let tree = other.house.home().join("layers").join(&layers[0]).join("tree/work");
            assert!(tree.join("new2").exists() && !tree.join("secret").exists(), "{modes:?}");
        }
    }
}

#[test]
fn a_file_of_an_older_version_is_read() {
    for stage in Stage::each(&[]) {
        let file = stage.house.path().join("home/state").display().to_string();
        std::fs::write(&file, include_bytes!("fixtures/snapshot-1.tar.zst")).expect("it can be written");
        give(&stage, &file);
        let told = stage.json(&["import", &file]);
        assert_eq!(told["exact"], true, "{told}");
        let fork = stage.ok(&["fork", told["id"].as_str().expect("an id")]);
        let out = stage.house.path().join("home/out");
        stage.ok(&["cp", &format!("{fork}:/work"), &out.display().to_string()]);
        let read = |name: &str| std::fs::read_to_string(out.join(name)).expect("it was copied");
        assert_eq!(
            (read("a/f").as_str(), read("a/link").as_str(), read("new").as_str()),
            ("one\n", "one\n", "new\n")
        );
    }
}

#[test]
fn a_snapshot_of_the_host_goes_where_that_host_is() {
    for stage in Stage::each(&[]) {
        stage.sh("echo one > a; mkdir d; rmdir d");
        let snapshot = stage.snapshot();
        let file = stage.house.path().join("home/state").display().to_string();
        stage.ok(&["export", &snapshot, "-o", &file]);
        let id = stage.ok(&["import", &file]);
        assert_eq!(stage.ok(&["digest", &id]), stage.ok(&["digest", &snapshot]), "{:?}", stage.house.mode);
        assert_eq!(stage.ok(&["diff", &id]), stage.ok(&["diff", &snapshot]));
        stage.sh("echo two > a");
        stage.ok(&["restore", &stage.id, &id]);
        assert_eq!(stage.sh("cat a"), "one");
        assert!(stage.refused(&["export", &snapshot, "--json"]).contains("at once"));
    }
}

#[test]
fn a_snapshot_of_a_deterministic_box_is_one_wherever_it_goes() {
    for stage in Stage::each(&["--deterministic"]) {
        let snapshot = stage.snapshot();
        let file = stage.house.path().join("home/state").display().to_string();
        stage.ok(&["export", &snapshot, "-o", &file]);
        let id = stage.ok(&["import", &file]);
        let kind = |id: &str| {
            let info = stage.json(&["info", id]);
            (info["deterministic"].clone(), info["recording"].clone())
        };
        for snapshot in [&snapshot, &id] {
            let (fork, image) = (stage.ok(&["fork", snapshot]), format!("snapshot:{snapshot}"));
            let made = stage.ok(&["create", "--image", &image]);
            // What is said is done, and nothing else changes.
            let ordinary = stage.ok(&["create", "--image", &image, "--deterministic=false"]);
            let commands = stage.ok(&["create", "--image", &image, "--record", "commands"]);
            let what = format!("{:?}", stage.house.mode);
            assert_eq!(kind(&fork), (true.into(), "steps".into()), "{what}");
            assert_eq!(kind(&made), (true.into(), "steps".into()), "{what}");
            assert_eq!(kind(&ordinary), (false.into(), "steps".into()), "{what}");
            assert_eq!(kind(&commands), (true.into(), "commands".into()), "{what}");
            let look = "date; echo $RANDOM";
            assert_eq!(stage.sh_in(&fork, look), stage.sh_in(&made, look), "{what}");
            for id in [&fork, &made] {
                assert_eq!(
                    stage.ok(&["replay", "--of", id, "--strict", "--quiet"]),
                    "the same, 1 step",
                    "{what}"
                );
            }
            stage.ok(&["kill", &fork, &made, &ordinary, &commands]);
        }
    }
}

#[test]
fn a_box_of_a_snapshot_is_recorded_as_the_one_that_it_was_taken_of() {
    for stage in Stage::each(&["--record", "snapshots"]) {
        let image = format!("snapshot:{}", stage.snapshot());
        for (more, expected) in [(None, "snapshots"), (Some(["--record", "steps"]), "steps")] {
            let made = stage.ok(&[
                &["create", "--image", &image],
                more.iter().flatten().copied().collect::<Vec<_>>().as_slice(),
            ]
            .concat());
            let info = stage.json(&["info", &made]);
            assert_eq!(
                (&info["recording"], &info["deterministic"]),
                (&expected.into(), &false.into()),
                "{:?}",
                stage.house.mode
            );
        }
    }
}

#[test]
fn a_file_that_was_changed_is_refused_and_leaves_nothing() {
    for stage in Stage::each(&[]) {
        stage.sh("echo one > a; head -c 300000 /dev/urandom > b");
        let snapshot = stage.snapshot();
        let file = stage.house.path().join("home/state").display().to_string();
        stage.ok(&["export", &snapshot, "-o", &file]);
        let whole = std::fs::read(&file).expect("it was written");
        let before = stage.layers();
        let mut changed = whole.clone();
        let middle = changed.len() / 2;
        changed[middle] ^= 1;
        let cut = whole[..whole.len() / 2].to_vec();
        for bytes in [changed, cut, b"no snapshot".to_vec(), Vec::new()] {
            std::fs::write(&file, bytes).expect("it can be written");
            let sentence = stage.refused(&["import", &file]);
            assert!(sentence.contains("import"), "{sentence}");
            assert_eq!(stage.layers(), before, "{:?}", stage.house.mode);
            assert_eq!(stage.json(&["snapshots"]).as_array().map(Vec::len), Some(1));
        }
    }
}

/// What root wrote for an ordinary user's program.
fn give(stage: &Stage, path: &str) {
    if stage.house.mode == Mode::Rootless && is_root() {
        std::os::unix::fs::chown(path, Some(ORDINARY), Some(ORDINARY)).expect("root may give a file away");
    }
}

/// A file with more attributes than images have, a tree that is deeper, and a path that is longer than the kernel takes at once.
const WIDE: &str = "import os
open('many', 'w').close()
for n in range(70): os.setxattr('many', f'user.{n:02}', b'x')
for n in range(600):
    os.mkdir(f'directory-{n}')
    os.chdir(f'directory-{n}')
open('deepest', 'w').write('here')
";

#[test]
fn all_that_a_box_can_write_travels() {
    for stage in Stage::each(&[]) {
        stage.python(&stage.id, WIDE);
        let snapshot = stage.snapshot();
        for flat in [false, true] {
            let file = stage.house.path().join("home/state").display().to_string();
            let args = ["export", &snapshot, "-o", &file, "--flat"];
            stage.ok(&args[..if flat { 5 } else { 4 }]);
            let told = stage.json(&["import", &file]);
            assert_eq!(told["exact"], true, "{:?}: {told}", stage.house.mode);
            assert_eq!(stage.ok(&["diff", &snapshot, told["id"].as_str().expect("an id")]), "");
        }
    }
}

/// Gives the box's own user a right to a file by a list, as `setfacl` does.
const LISTED: &str = "import os, struct
open('plain', 'w').close()
open('listed', 'w').close()
entries = [(1, 6, -1), (2, 4, os.getuid()), (4, 4, -1), (16, 4, -1), (32, 0, -1)]
value = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', t, p, i & 0xffffffff) for t, p, i in entries)
try: os.setxattr('listed', 'system.posix_acl_access', value); print('set')
except OSError as e: print(e)
";

#[test]
fn attributes_that_are_left_out_are_told_and_no_exact_copy_is_claimed() {
    for stage in Stage::each(&[]) {
        let said = stage.python(&stage.id, LISTED);
        if said != "set" {
            skip("acl", &format!("{:?}: {said}", stage.house.mode));
            continue;
        }
        let snapshot = stage.snapshot();
        let file = stage.house.path().join("home/state").display().to_string();
        let (code, _, err) = stage.house.run(&["export", &snapshot, "-o", &file]);
        assert!(
            code == 0 && err.contains("lists") && err.contains("1 file"),
            "{:?}: {err}",
            stage.house.mode
        );
        assert_eq!(stage.json(&["export", &snapshot, "-o", &file])["attributes_left_out"], 1);
        let told = stage.json(&["import", &file]);
        assert_eq!(told["exact"], false, "{:?}: {told}", stage.house.mode);
        let (_, _, err) = stage.house.run(&["import", &file]);
        assert!(err.contains("access control lists"), "{err}");
        // Without any, nothing is said.
        stage.sh("rm listed");
        let snapshot = stage.snapshot();
        let told = stage.json(&["export", &snapshot, "-o", &file, "--flat"]);
        assert_eq!(told["attributes_left_out"], 0, "{:?}: {told}", stage.house.mode);
        assert_eq!(stage.json(&["import", &file])["exact"], true);
    }
}

#[test]
fn an_image_of_a_snapshot_has_no_digest_of_a_registry() {
    for stage in Stage::each(&[]) {
        let snapshot = stage.snapshot();
        let name = format!("foo@sha256:{}", "0".repeat(64));
        let sentence = stage.refused(&["commit", &snapshot, "-t", &name]);
        assert!(sentence.contains("has no such digest"), "{sentence}");
    }
}
