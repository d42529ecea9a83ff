//! Boxes with a limited disk, which lies in memory, have a state like all others.

use glasshouse_tests::skip;

use crate::locked::VIEW;
use crate::rerun::PYTHON;
use crate::stage::Stage;

const MIB: u64 = 1 << 20;

/// A tree with something of every kind; the same each time, but for times.
const FILL: &str = "umask 022; mkdir -p d/e old; yes content | head -c 300000 > d/f; ln d/f hard; ln -s d/f link; \
    mkfifo pipe; truncate -s 64M sparse; printf x | dd of=sparse bs=1 seek=999999 conv=notrunc 2>/dev/null; \
    echo secret > d/e/s; chmod 640 d/e/s; chmod 1751 d/e; echo x > old/x; echo y > gone; printf 'a\\nb' > \"$(printf 'od\\nd')\"";

/// Takes away and replaces what the layer below has.
const CHANGE: &str =
    "umask 022; rm gone; rm -r old; mkdir old; echo new > old/new; echo more >> d/f; mkdir -p x/y; : > x/y/z";

/// Marks a file, where the kernel has attributes in memory.
const MARK: &str =
    "import os\ntry: os.setxattr('/workspace/d/f', 'user.mark', b'v\\0x')\nexcept OSError as e: print(e)";

impl Stage {
    /// Whether more than this can be written.
    fn takes(&self, id: &str, bytes: u64) -> bool {
        let line = format!(
            "head -c {bytes} /dev/zero > /workspace/much; code=$?; rm -f /workspace/much; exit $code"
        );
        self.house.run(&["exec", id, "--shell", "--", &line]).0 == 0
    }
}

/// Stages with a limited disk, if there is what the tests look with.
fn stages(disk: &str) -> Vec<Stage> {
    if !std::path::Path::new(PYTHON).exists() {
        skip("native-root", &format!("{PYTHON} is not there"));
        return Vec::new();
    }
    Stage::each(&["--disk", disk])
}

#[test]
fn what_lies_in_memory_is_kept_and_forked_to_the_last_byte() {
    for stage in stages("8m") {
        let mode = stage.house.mode;
        stage.sh(FILL);
        stage.python(&stage.id, MARK);
        let (view, digest) = (stage.python(&stage.id, VIEW), stage.ok(&["digest", &stage.id]));
        let taken = stage.json(&["snapshot", &stage.id]);
        assert_eq!(taken["method"], "copy", "{mode:?}");
        let why = (&taken["copied_for"], &taken["processes"]);
        assert_eq!(why, (&"memory".into(), &0.into()), "{mode:?}: nothing runs, and that is not why");
        let snapshot = taken["id"].as_str().expect("an id").to_owned();
        assert_eq!(stage.ok(&["digest", &snapshot]), digest, "{mode:?}: of the snapshot");
        for from in [&snapshot, &stage.id] {
            let fork = stage.ok(&["fork", from]);
            assert_eq!(stage.python(&fork, VIEW), view, "{mode:?}: a fork of {from}");
            assert_eq!(stage.ok(&["digest", &fork]), digest, "{mode:?}: a fork of {from}");
        }
        // The box goes on where it was.
        assert_eq!(stage.python(&stage.id, VIEW), view, "{mode:?}: the box itself");
        stage.sh(CHANGE);
        assert_ne!(stage.ok(&["digest", &stage.id]), digest);
        stage.ok(&["restore", &stage.id, &snapshot]);
        assert_eq!(stage.python(&stage.id, VIEW), view, "{mode:?}: restored");
    }
}

#[test]
fn where_a_box_keeps_what_it_writes_does_not_count() {
    for stage in stages("8m") {
        let mode = stage.house.mode;
        let plain = stage.ok(&["create"]);
        stage.sh(FILL);
        stage.sh_in(&plain, FILL);
        assert_eq!(stage.ok(&["digest", &stage.id]), stage.ok(&["digest", &plain]), "{mode:?}");
        // On a layer of its own making: with whiteouts, opaque directories, and what was copied up.
        let (fork, plain) = (stage.ok(&["fork", &stage.id]), stage.ok(&["fork", &plain]));
        stage.sh_in(&fork, CHANGE);
        stage.sh_in(&plain, CHANGE);
        let digest = stage.ok(&["digest", &plain]);
        assert_eq!(stage.ok(&["digest", &fork]), digest, "{mode:?}");
        let told = stage.ok(&["diff", &fork]);
        assert_eq!(told, stage.ok(&["diff", &plain]), "{mode:?}");
        assert!(told.contains("/workspace/old/new") && told.contains("/workspace/gone"), "{mode:?}: {told}");
        assert_eq!(stage.ok(&["diff", &fork, &plain]), "", "{mode:?}");
        let content = stage.ok(&["diff", &fork, "--content"]);
        assert!(content.contains("+new"), "{mode:?}: {content}");
        let again = stage.ok(&["fork", &stage.ok(&["snapshot", &fork])]);
        assert_eq!(stage.ok(&["digest", &again]), digest, "{mode:?}: kept, and forked");
    }
}

#[test]
fn a_stopped_box_starts_with_what_it_had_and_the_limit_stands() {
    for stage in stages("8m") {
        let mode = stage.house.mode;
        let empty = stage.ok(&["digest", &stage.id]);
        stage.sh(FILL);
        stage.python(&stage.id, MARK);
        let (view, digest) = (stage.python(&stage.id, VIEW), stage.ok(&["digest", &stage.id]));
        for round in 0..3 {
            stage.ok(&["stop", &stage.id]);
            assert_eq!(stage.ok(&["digest", &stage.id]), digest, "{mode:?}, {round}: stopped");
            stage.ok(&["start", &stage.id]);
            assert_eq!(stage.ok(&["digest", &stage.id]), digest, "{mode:?}, {round}: started");
            assert_eq!(stage.python(&stage.id, VIEW), view, "{mode:?}, {round}");
        }
        assert!(stage.takes(&stage.id, 7 * MIB), "{mode:?}: what it had before the start is not counted");
        assert!(!stage.takes(&stage.id, 9 * MIB), "{mode:?}: the limit is gone");
        stage.sh(CHANGE);
        stage.ok(&["stop", &stage.id]);
        let kept = stage.ok(&["snapshot", &stage.id]);
        stage.ok(&["start", &stage.id]);
        assert_eq!(stage.ok(&["digest", &stage.id]), stage.ok(&["digest", &kept]), "{mode:?}");
        stage.ok(&["reset", &stage.id, "--verify"]);
        assert_eq!(stage.ok(&["digest", &stage.id]), empty, "{mode:?}: reset");
        // The guest has the top of the root that it has now.
        stage.sh("echo after > a");
        let fork = stage.ok(&["fork", &stage.id]);
        assert_eq!(stage.sh_in(&fork, "cat a; ls"), "after\na", "{mode:?}");
        assert!(!stage.takes(&fork, 9 * MIB), "{mode:?}: a fork is limited, too");
    }
}

#[test]
fn a_full_disk_can_be_kept_and_put_back() {
    for stage in stages("4m") {
        let mode = stage.house.mode;
        stage.house.run(&["exec", &stage.id, "--shell", "--", "cat /dev/zero > full"]);
        let view = stage.python(&stage.id, VIEW);
        let snapshot = stage.snapshot();
        let fork = stage.ok(&["fork", &snapshot]);
        assert_eq!(stage.python(&fork, VIEW), view, "{mode:?}");
        stage.ok(&["stop", &stage.id]);
        stage.ok(&["start", &stage.id]);
        assert_eq!(stage.python(&stage.id, VIEW), view, "{mode:?}");
        stage.house.run(&["exec", &stage.id, "--shell", "--", "cat /dev/zero > again"]);
        stage.ok(&["restore", &stage.id, &snapshot]);
        assert_eq!(stage.python(&stage.id, VIEW), view, "{mode:?}");
        stage.ok(&["reset", &stage.id]);
        assert_eq!(stage.sh("ls"), "", "{mode:?}");
    }
}

#[test]
fn a_busy_box_is_kept_as_of_one_moment() {
    for stage in stages("16m") {
        let mode = stage.house.mode;
        // Each line goes to one file, and then to the other; all of them together have room.
        let writer = "n=0; while [ $n -lt 200000 ]; do n=$((n+1)); echo $n >> a; echo $n >> b; done";
        stage.ok(&["exec", &stage.id, "--background", "--shell", "--", writer]);
        stage.sh("until [ -s b ]; do :; done");
        for _ in 0..3 {
            let taken = stage.json(&["snapshot", &stage.id]);
            assert_eq!(taken["method"], "copy", "{mode:?}");
            let fork = stage.ok(&["fork", taken["id"].as_str().expect("an id")]);
            let lines = stage.sh_in(&fork, "wc -l < a; wc -l < b; seq $(wc -l < b) | cmp - b && echo whole");
            let lines: Vec<&str> = lines.lines().collect();
            let count = |n: usize| lines[n].trim().parse::<u64>().expect("a number");
            assert!(count(0) - count(1) <= 1 && lines[2] == "whole", "{mode:?}: {lines:?}");
        }
    }
}

#[test]
fn what_lay_in_memory_travels() {
    for stage in stages("8m") {
        let mode = stage.house.mode;
        stage.sh(FILL);
        let snapshot = stage.snapshot();
        let file = stage.house.home().join("exported").to_string_lossy().into_owned();
        stage.ok(&["export", &snapshot, "-o", &file]);
        let imported = stage.ok(&["import", &file]);
        assert_eq!(stage.ok(&["digest", &imported]), stage.ok(&["digest", &stage.id]), "{mode:?}");
        let fork = stage.ok(&["fork", &imported]);
        assert_eq!(stage.sh_in(&fork, "cat d/e/s; stat -c %a d/e/s"), "secret\n640", "{mode:?}");
    }
}

#[test]
fn whoever_has_his_files_copied_is_told_why() {
    for stage in stages("8m") {
        stage.sh("echo x > f");
        let (code, _, said) = stage.house.run(&["snapshot", &stage.id]);
        let wanted =
            "glass: what a box with a limit of disk writes lies in memory, so its files were copied (copy)";
        assert_eq!((code, said.trim()), (0, wanted), "{:?}", stage.house.mode);
    }
}
