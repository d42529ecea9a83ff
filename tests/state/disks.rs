//! The same on other file systems: in memory, and on one that clones files.

use std::path::Path;
use std::process::Command;

use glasshouse_tests::{House, Mode, is_root, scratch, skip};

use crate::stage::Stage;

/// Sparse, and large enough for the reserve that commands leave the host.
const DISK_BYTES: u64 = 8 << 30;

/// All that can be done with a state, once. How a busy box was snapshotted.
fn walk(stage: &Stage) -> String {
    stage.sh("echo one > a; mkdir d; head -c 3000000 /dev/urandom > d/f; truncate -s 1G sparse; ln a b");
    let first = stage.json(&["snapshot", &stage.id]);
    assert_eq!(first["method"], "rotate", "{first}");
    let first = first["id"].as_str().expect("an id").to_owned();
    let digest = stage.ok(&["digest", &first]);
    let forks = stage.ok(&["fork", &first, "-n", "3"]);
    for fork in forks.lines() {
        assert_eq!(stage.ok(&["digest", fork]), digest);
        stage.sh_in(fork, &format!("echo {fork} > a; rm -r d"));
    }
    stage.sh("rm -r d; echo two > a; mv sparse other");
    stage.ok(&["restore", &stage.id, &first]);
    assert_eq!(stage.ok(&["digest", &stage.id]), digest);
    stage.ok(&["exec", &stage.id, "--background", "--shell", "--", "exec 9> open; touch ready; sleep 1000"]);
    stage.sh("until [ -e ready ]; do :; done; echo three > c");
    let busy = stage.json(&["snapshot", &stage.id]);
    let fork = stage.ok(&["fork", busy["id"].as_str().expect("an id")]);
    assert_eq!(
        stage.sh_in(&fork, "cat a b c; cmp d/f d/f; ls"),
        "one\none\nthree\na\nb\nc\nd\nopen\nready\nsparse"
    );
    stage.ok(&["stop", &stage.id]);
    stage.ok(&["start", &stage.id]);
    assert_eq!(stage.sh("cat c"), "three");
    stage.ok(&["reset", &stage.id, "--verify"]);
    stage.ok(&["kill", "--all"]);
    busy["method"].as_str().expect("a method").to_owned()
}

/// A file system of this kind for the time of `work`. Whether there is one.
fn with_disk(make: &[&str], kind: &str, work: impl FnOnce(&Path)) -> bool {
    let dir = scratch();
    let (file, place) = (dir.path().join("disk"), dir.path().join("place"));
    std::fs::create_dir(&place).expect("the scratch directory can be written");
    let run = |program: &str, args: &[&str]| {
        Command::new(program).args(args).output().is_ok_and(|o| o.status.success())
    };
    let (disk, at) = (file.to_string_lossy().into_owned(), place.to_string_lossy().into_owned());
    let mounted = match make {
        [] => run("mount", &["-t", kind, "-o", "mode=755", kind, &at]),
        [program, options @ ..] => {
            std::fs::File::create(&file)
                .and_then(|file| file.set_len(DISK_BYTES))
                .expect("the disk has room");
            run(program, &[options, &[&*disk]].concat())
                && run("mount", &["-t", kind, "-o", "loop", &disk, &at])
        }
    };
    if mounted {
        work(&place);
        assert!(run("umount", &[&at]), "something is left on {kind}");
    }
    mounted
}

#[test]
fn in_memory() {
    if !is_root() {
        skip("disks", "only root can mount a tmpfs");
        return;
    }
    let mounted = with_disk(&[], "tmpfs", |place| {
        for mode in Mode::all() {
            let stage = Stage::in_house(House::on(mode, Some(place)), &[]).expect("a box can be made");
            assert_eq!(walk(&stage), "copy");
        }
    });
    assert!(mounted, "a tmpfs can be mounted");
}

#[test]
fn where_files_are_cloned() {
    if !is_root() {
        skip("disks", "only root can mount a file system");
        return;
    }
    let mounted = with_disk(&["mkfs.btrfs", "-q"], "btrfs", |place| {
        for mode in Mode::all() {
            let stage = Stage::in_house(House::on(mode, Some(place)), &[]).expect("a box can be made");
            assert_eq!(walk(&stage), "reflink", "{mode:?}");
        }
    });
    if !mounted {
        skip("disks", "no btrfs: mkfs.btrfs, loop devices or the kernel's part of it are missing");
    }
}
