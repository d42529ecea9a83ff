//! A reset leaves nothing.

use crate::stage::Stage;

/// All that a box can see of itself, but for times and numbers that only count.
const LOOK: &str = "find / -xdev \\( -path /proc -o -path /sys -o -path /usr \\) -prune -o -printf '%p %y %m %U:%G %s %l\\n' \
    | grep -v '^/ d\\|^/tmp d\\|^/workspace d\\|^/home/user d\\|^/etc d\\|^/var' | sort; ls -A /dev/shm /tmp; ipcs -a | grep -c 0x; \
    set -- /proc/[0-9]*; echo $#; wc -l < /proc/net/unix";

#[test]
fn a_reset_box_is_like_a_new_one() {
    for stage in Stage::each(&[]) {
        let new = stage.sh(LOOK);
        stage.sh(
            "echo x > /workspace/a; echo x > /tmp/b; echo x > /home/user/c; echo x > /dev/shm/d; \
             ipcmk -M 4096 -Q -S 3 >/dev/null; (setsid sleep 1000 &) >/dev/null 2>&1; mkdir /workspace/deep; true",
        );
        stage.ok(&["exec", &stage.id, "--background", "--", "sleep", "1000"]);
        assert_ne!(stage.sh(LOOK), new, "{:?}: the test sees what it left", stage.house.mode);
        stage.ok(&["reset", &stage.id]);
        assert_eq!(stage.sh(LOOK), new, "{:?}", stage.house.mode);
        // Again, and from a state that was already reset.
        stage.sh("echo y > /workspace/z");
        stage.ok(&["reset", &stage.id]);
        stage.ok(&["reset", &stage.id]);
        assert_eq!(stage.sh(LOOK), new, "{:?}", stage.house.mode);
    }
}

#[test]
fn walls_and_limits_stand_after_it() {
    for stage in Stage::each(&["--pids", "30", "--timeout", "20s"]) {
        for _ in 0..2 {
            stage.ok(&["reset", &stage.id]);
        }
        let facts =
            "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; ls /dev | tr '\\n' ' '";
        let fresh = stage.ok(&["create"]);
        assert_eq!(stage.sh(facts), stage.sh_in(&fresh, facts), "{:?}", stage.house.mode);
        // Landlock stands on the new root: files work, and what it forbids stays forbidden.
        stage.sh("echo x > /workspace/a && cat /workspace/a && mkdir /tmp/t && mv /workspace/a /tmp/t/");
        let bomb = "for i in $(seq 60); do sleep 30 & done; wait";
        let ran = stage.house.run(&["exec", &stage.id, "--shell", "--timeout", "2s", "--", bomb]);
        assert_ne!(ran.0, 0, "{:?}: {ran:?}", stage.house.mode);
    }
}

#[test]
fn a_read_only_box_stays_read_only() {
    for stage in Stage::each(&["--read-only"]) {
        stage.sh("echo x > /tmp/a");
        stage.ok(&["reset", &stage.id]);
        assert_eq!(stage.sh("ls /tmp; touch /workspace/x 2>&1 | grep -o 'Read-only' "), "Read-only");
        let taken = stage.json(&["snapshot", &stage.id]);
        assert_eq!(taken["method"], "unchanged");
    }
}

#[test]
fn a_box_with_a_limited_disk_is_reset_and_stays_limited() {
    for stage in Stage::each(&["--disk", "8m"]) {
        stage.sh("head -c 4000000 /dev/zero > a");
        stage.ok(&["reset", &stage.id]);
        assert_eq!(stage.sh("ls"), "");
        stage.sh("head -c 6000000 /dev/zero > a");
        let (code, ..) =
            stage.house.run(&["exec", &stage.id, "--shell", "--", "head -c 6000000 /dev/zero > b"]);
        assert_ne!(code, 0, "{:?}: the limit is gone", stage.house.mode);
    }
}

#[test]
fn a_box_that_was_restored_is_reset_to_where_it_began() {
    for stage in Stage::each(&[]) {
        stage.sh("echo one > a");
        let snapshot = stage.snapshot();
        let fork = stage.ok(&["fork", &snapshot]);
        stage.sh_in(&fork, "echo two > a; echo three > b");
        stage.ok(&["reset", &fork]);
        assert_eq!(stage.sh_in(&fork, "cat a; ls"), "one\na", "a fork began with what it was forked from");
        stage.ok(&["restore", &stage.id, &snapshot]);
        stage.ok(&["reset", &stage.id]);
        assert_eq!(stage.sh("ls"), "");
    }
}

#[test]
fn a_reset_can_be_verified() {
    for stage in Stage::each(&[]) {
        stage.sh("echo x > /workspace/a; echo x > /tmp/b");
        stage.ok(&["exec", &stage.id, "--background", "--", "sleep", "1000"]);
        let (code, out, err) = stage.house.run(&["reset", &stage.id, "--verify"]);
        assert_eq!((code, out.trim()), (0, stage.id.as_str()), "{:?}: {err}", stage.house.mode);
        assert!(err.contains("clean") && !err.contains("not clean"), "{err}");
        let json = stage.json(&["reset", &stage.id, "--verify"]);
        assert_eq!(json["verified"]["clean"], true, "{json}");
        assert!(json["verified"]["difference"].is_null(), "{json}");
        // Somebody changes what the box stands on, behind everybody's back.
        let layers = std::fs::read_dir(stage.house.home().join("layers")).expect("a home has layers");
        let layer = layers.map(|entry| entry.expect("it can be read").path());
        let layer =
            layer.into_iter().find(|path| path.join("tree/etc/passwd").exists()).expect("a layer with /etc");
        let file = layer.join("tree/etc/passwd");
        let mut text = std::fs::read(&file).expect("it can be read");
        text.extend(b"intruder:x:0:0::/:/bin/sh\n");
        std::fs::write(&file, text).expect("it can be written");
        let (code, _, err) = stage.house.run(&["reset", &stage.id, "--verify"]);
        assert_eq!(code, 1, "{:?}: {err}", stage.house.mode);
        assert_eq!(err.trim(), "glass: not clean: /etc/passwd is not what it was");
        let (code, out, _) = stage.house.run(&["reset", &stage.id, "--verify", "--json"]);
        assert!(code == 1 && out.contains("\"clean\":false"), "{out}");
    }
}

#[test]
fn a_reset_of_what_lies_in_memory_can_be_verified() {
    for stage in Stage::each(&["--disk", "8m"]) {
        for _ in 0..2 {
            stage.sh("echo x > a");
            let json = stage.json(&["reset", &stage.id, "--verify"]);
            assert_eq!(json["verified"]["clean"], true, "{:?}: {json}", stage.house.mode);
            assert_eq!(stage.sh("ls"), "", "{:?}", stage.house.mode);
        }
    }
}

/// Which of its roots a box stands on.
fn root_of(stage: &Stage) -> String {
    let own = stage.house.home().join("boxes").join(&stage.id);
    let names = std::fs::read_dir(&own).expect("the box has a directory").flatten();
    let mut tops = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    tops.find(|name| name.starts_with("top")).expect("a box that lives has a top")
}

#[test]
fn a_box_that_wrote_nothing_needs_no_other_root() {
    for stage in Stage::each(&[]) {
        let (new, root) = (stage.sh(LOOK), root_of(&stage));
        for harmless in [
            "cat /etc/passwd; ls /tmp /dev/shm",
            "(setsid sleep 1000 &) >/dev/null 2>&1",
            "sleep 1000 & wait %2; true",
        ] {
            stage.sh(harmless);
            stage.ok(&["exec", &stage.id, "--background", "--", "sleep", "1000"]);
            stage.ok(&["reset", &stage.id]);
            assert_eq!(root_of(&stage), root, "{:?}: {harmless}", stage.house.mode);
            assert_eq!(stage.sh(LOOK), new, "{:?}: {harmless}", stage.house.mode);
        }
    }
}

/// Whatever is done to files, memory or objects is undone, also if nothing seems to be left of it.
#[test]
fn a_box_that_wrote_anything_is_given_another_root() {
    for stage in Stage::each(&["--user", "root"]) {
        let new = stage.sh(LOOK);
        for done in [
            "echo x > /workspace/a",
            "echo x > /a; rm /a",
            "mkdir /a; rmdir /a",
            "chmod 700 /",
            "touch -d 2001-01-01 /",
            "touch -a -d 2040-01-01 /",
            "python3 -c \"import os; os.setxattr('/', 'user.overlay.s', b'x')\"",
            "echo x > /tmp/a; rm /tmp/a",
            "echo x > /dev/shm/a",
            "echo x > /dev/shm/a; rm /dev/shm/a",
            "chmod 700 /dev/shm",
            "touch -d 2001-01-01 /dev/shm",
            "ipcmk -M 4096",
            "ipcmk -Q",
            "ipcmk -S 1",
            "rm /etc/passwd",
        ] {
            let before = root_of(&stage);
            stage.sh(done);
            stage.ok(&["reset", &stage.id]);
            assert_ne!(root_of(&stage), before, "{:?}: {done}", stage.house.mode);
            assert_eq!(stage.sh(LOOK), new, "{:?}: {done}", stage.house.mode);
        }
    }
}

/// A process whose first thread has ended, which the kernel calls dead, and that lives on.
const HALF_DEAD: &str = "import ctypes, os, threading, time\n\
    if os.fork() == 0:\n\
    \x20   os.setsid()\n\
    \x20   threading.Thread(target=time.sleep, args=(1000,)).start()\n\
    \x20   ctypes.CDLL(None).syscall(60, 0)\n";

#[test]
fn who_looks_dead_and_lives_is_killed() {
    for stage in Stage::each(&[]) {
        let new = stage.sh(LOOK);
        stage.python(&stage.id, HALF_DEAD);
        stage.ok(&["reset", &stage.id]);
        assert_eq!(stage.sh(LOOK), new, "{:?}: on the root that it had", stage.house.mode);
        stage.python(&stage.id, HALF_DEAD);
        stage.sh("echo x > /workspace/a");
        stage.ok(&["reset", &stage.id]);
        assert_eq!(stage.sh(LOOK), new, "{:?}: on another root", stage.house.mode);
    }
}

/// What a snapshot left in memory as it was is still known to be another than at first.
#[test]
fn memory_that_outlived_a_snapshot_is_put_back_with_it() {
    for stage in Stage::each(&["--user", "root"]) {
        let look = "stat -c %a /dev/shm";
        let new = stage.sh(look);
        stage.sh("echo x > /workspace/a; chmod 700 /dev/shm");
        let snapshot = stage.snapshot();
        assert_ne!(stage.sh(look), new, "{:?}: a snapshot leaves memory alone", stage.house.mode);
        stage.ok(&["restore", &stage.id, &snapshot]);
        assert_eq!(stage.sh(look), new, "{:?}", stage.house.mode);
    }
}

/// A box on an image that has a shell and nothing else, and where that image is; one for each mode.
fn bare(options: &[&str]) -> Vec<(Stage, std::path::PathBuf)> {
    let made = |house: glasshouse_tests::House| {
        let root = house.home().parent().expect("it has one").join("image");
        let made = std::process::Command::new("sh")
            .args([
                "-c",
                "mkdir -p \"$1/bin\" && cp /bin/busybox \"$1/bin/sh\" && chmod -R a+rX \"$1\"",
                "sh",
            ])
            .arg(&root)
            .status();
        assert!(made.expect("there is a shell").success());
        let image = format!("dir:{}", root.display());
        Some((Stage::in_house(house, &[&["--image", &image], options].concat())?, root))
    };
    glasshouse_tests::Mode::all().into_iter().map(glasshouse_tests::House::new).filter_map(made).collect()
}

/// A directory of the host is shown as it is when the box begins anew.
#[test]
fn a_directory_of_the_host_is_seen_anew() {
    for (stage, root) in bare(&[]) {
        assert_eq!(stage.sh("test -e /new && echo there; true"), "");
        std::fs::write(root.join("new"), "x").expect("it is ours");
        stage.ok(&["reset", &stage.id]);
        assert_eq!(stage.sh("test -e /new && echo there; true"), "there", "{:?}", stage.house.mode);
    }
}

/// An image need not have /dev, /proc and /sys. That they are there all the same is nothing that the box did.
#[test]
fn what_is_mounted_in_a_bare_image_is_nobodys_change() {
    for (stage, root) in bare(&["--deterministic"]) {
        let mode = stage.house.mode;
        let clean = |id: &str| {
            assert_eq!(stage.ok(&["diff", id]), "", "{mode:?}");
            assert_eq!(
                stage.sh_in(id, "echo x > /a; test -e /dev/null && test -e /proc/1 && test -d /sys"),
                ""
            );
            assert_eq!(stage.ok(&["diff", id]).lines().count(), 1, "{mode:?}");
            let json = stage.json(&["reset", id, "--verify"]);
            assert_eq!(json["verified"]["clean"], true, "{mode:?}: {json}");
            assert_eq!(stage.ok(&["diff", id]), "", "{mode:?}");
        };
        clean(&stage.id);
        clean(&stage.id);
        let fork = stage.ok(&["fork", &stage.id]);
        stage.ok(&["stop", &fork]);
        stage.ok(&["start", &fork]);
        clean(&fork);
        stage.sh("echo y > /b");
        assert!(stage.ok(&["replay", "--of", &stage.id]).starts_with("the same"), "{mode:?}");
        let names =
            std::fs::read_dir(&root).expect("it is ours").map(|entry| entry.expect("it is").file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["bin"], "{mode:?}: and the image is as it was");
    }
    for (stage, _) in bare(&["--read-only"]) {
        stage.sh("echo x > /tmp/a");
        assert_eq!(stage.ok(&["diff", &stage.id]), "", "{:?}", stage.house.mode);
        let json = stage.json(&["reset", &stage.id, "--verify"]);
        assert_eq!(json["verified"]["clean"], true, "{:?}: {json}", stage.house.mode);
    }
}

/// A process that is never there for long: each forks the next one and ends.
const CHAIN: &str = "import os\n\
    if os.fork() == 0:\n\
    \x20   os.setsid()\n\
    \x20   while True:\n\
    \x20       if os.fork(): os._exit(0)\n";

#[test]
fn a_chain_of_processes_that_fork_and_end_is_caught() {
    for stage in Stage::each(&[]) {
        let new = stage.sh(LOOK);
        for line in ["true", "echo x > /workspace/a"] {
            stage.python(&stage.id, CHAIN);
            stage.python(&stage.id, CHAIN);
            stage.sh(line);
            stage.ok(&["reset", &stage.id]);
            // One that had got away would be seen now and then.
            for _ in 0..5 {
                assert_eq!(stage.sh(LOOK), new, "{:?}: {line}", stage.house.mode);
            }
        }
    }
}

#[test]
fn what_it_threw_away_is_gone_when_it_is_done() {
    for stage in Stage::each(&[]) {
        let trash = stage.house.home().join("trash");
        let left = || std::fs::read_dir(&trash).map_or(0, Iterator::count);
        for args in [&["reset", &stage.id][..], &["reset", &stage.id, "--verify"]] {
            stage.sh("head -c 20000000 /dev/zero > big");
            stage.ok(args);
            assert_eq!(left(), 0, "{:?}: {args:?}", stage.house.mode);
        }
    }
}
