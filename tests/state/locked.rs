//! What its own owner may not read is part of a state like everything else, without root, too.

use glasshouse_tests::skip;

use crate::rerun::{PYTHON, left_in};
use crate::stage::Stage;

/// All of a tree, but for the numbers of inodes and what directories occupy.
pub(crate) const VIEW: &str = r#"
import os, stat, hashlib
first = {}
def show(path):
    s = os.lstat(path)
    line = [path, oct(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns]
    if not stat.S_ISDIR(s.st_mode): line += [s.st_size, first.setdefault(s.st_ino, path)]
    if stat.S_ISLNK(s.st_mode): line.append(os.readlink(path))
    else: line.append(sorted((name, os.getxattr(path, name)) for name in os.listxattr(path)))
    if stat.S_ISREG(s.st_mode): line += [s.st_blocks < 100000, hashlib.sha256(open(path, 'rb').read(1 << 22)).hexdigest()]
    print(*line)
    if stat.S_ISDIR(s.st_mode):
        for name in sorted(os.listdir(path)): show(path + '/' + name)
show('/workspace')
"#;

/// Files and directories that lock their owner out, each in its own way, with something in each.
const LOCK: &str = "umask 022; echo none > none; echo write > write; mkdir -p in/a/b; echo inner > in/a/b/f; ln in/a/b/f in/a/g; \
    ln in/a/b/f out; ln -s f in/a/b/l; mkfifo in/a/b/p; truncate -s 16M in/a/b/sparse; mkdir closed; echo x > closed/x; \
    mkdir listed; echo y > listed/y; mkdir gone; echo z > gone/z";
const MARK: &str = "import os\nfor path in ('none', 'in/a/b', 'in/a/b/f'): os.setxattr('/workspace/' + path, 'user.mark', b'v')";
const SHUT: &str = "chmod 000 none; chmod 200 write; chmod 000 in/a/b; chmod 300 in/a; chmod 100 in; chmod 000 closed; \
    chmod 400 listed; chmod 300 gone";
/// Opens all again, for whoever wants to look.
const UNLOCK: &str =
    "chmod 700 in; chmod 700 in/a; chmod 700 in/a/b closed listed gone; chmod 600 none write";

/// A stage with such a tree, for each mode.
fn stages(options: &[&str]) -> Vec<Stage> {
    if !std::path::Path::new(PYTHON).exists() {
        skip("native-rootless", &format!("{PYTHON} is not there"));
        return Vec::new();
    }
    let stages = Stage::each(options);
    for stage in &stages {
        stage.sh(LOCK);
        stage.python(&stage.id, MARK);
        stage.sh(SHUT);
    }
    stages
}

/// All that is in a fork of this, once it is opened.
fn seen(stage: &Stage, of: &str) -> String {
    let fork = stage.ok(&["fork", of]);
    stage.sh_in(&fork, UNLOCK);
    let seen = stage.python(&fork, VIEW);
    assert!(seen.contains("user.mark") && seen.contains("/in/a/b/l"), "{:?}: {seen}", stage.house.mode);
    stage.ok(&["kill", &fork]);
    seen
}

#[test]
fn a_copy_under_a_writer_is_the_same_as_what_was_moved() {
    for stage in stages(&[]) {
        let mode = stage.house.mode;
        let moved = stage.json(&["snapshot", &stage.id]);
        assert_eq!(moved["method"], "rotate");
        let moved = moved["id"].as_str().expect("an id").to_owned();
        // The top has a part of it only: the rest is below.
        let fork = stage.ok(&["fork", &moved]);
        stage.sh_in(&fork, "chmod 700 in; chmod 755 in; chmod 100 in; chmod 200 none; chmod 000 none");
        stage.ok(&["exec", &fork, "--background", "--shell", "--", "exec 9> open; exec sleep 1000"]);
        stage.sh_in(&fork, "until [ -e open ]; do :; done; rm -f open");
        let digest = stage.ok(&["digest", &moved]);
        assert_eq!(stage.ok(&["digest", &fork]), digest, "{mode:?}");
        for _ in 0..2 {
            let copied = stage.json(&["snapshot", &fork]);
            assert_ne!(copied["method"], "rotate", "{mode:?}");
            let copied = copied["id"].as_str().expect("an id").to_owned();
            assert_eq!(stage.ok(&["digest", &copied]), digest, "{mode:?}");
            let strip = |text: String| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(strip(seen(&stage, &copied)), strip(seen(&stage, &moved)), "{mode:?}");
        }
    }
}

#[test]
fn all_of_it_is_copied_when_all_of_it_is_new() {
    for options in [&[][..], &["--disk", "8m"]] {
        for stage in stages(options) {
            let mode = stage.house.mode;
            stage.ok(&["exec", &stage.id, "--background", "--shell", "--", "exec 9> open; exec sleep 1000"]);
            stage.sh("until [ -e open ]; do :; done");
            let copied = stage.json(&["snapshot", &stage.id]);
            assert_ne!(copied["method"], "rotate", "{mode:?}");
            let copied = copied["id"].as_str().expect("an id").to_owned();
            assert_eq!(stage.ok(&["digest", &copied]), stage.ok(&["digest", &stage.id]), "{mode:?}");
            let there = seen(&stage, &copied);
            stage.sh(UNLOCK);
            assert_eq!(there, stage.python(&stage.id, VIEW), "{mode:?}, {options:?}");
        }
    }
}

#[test]
fn differences_are_told_and_travel() {
    for stage in stages(&[]) {
        let mode = stage.house.mode;
        let told = stage.ok(&["diff", &stage.id, "--content"]);
        for name in ["none", "write", "in/a/b/f", "in/a/b/l", "in/a/g", "closed/x", "listed/y", "gone/z"] {
            assert!(told.contains(&format!("/workspace/{name}")), "{mode:?}: {name} is not in {told}");
        }
        assert!(told.contains("+inner") && told.contains("+none"), "{mode:?}: {told}");
        let snapshot = stage.snapshot();
        let digest = stage.ok(&["digest", &snapshot]);
        let file = stage.house.home().join("exported").to_string_lossy().into_owned();
        stage.ok(&["export", &snapshot, "-o", &file]);
        let imported = stage.ok(&["import", &file]);
        assert_eq!(stage.ok(&["digest", &imported]), digest, "{mode:?}");
        let fork = stage.ok(&["fork", &imported]);
        let modes = "stat -c %a none write closed listed gone in";
        assert_eq!(stage.sh_in(&fork, modes), "0\n200\n0\n400\n300\n100", "{mode:?}");
        stage.sh_in(&fork, UNLOCK);
        assert_eq!(stage.sh_in(&fork, "cat none in/a/b/f closed/x"), "none\ninner\nx", "{mode:?}");
    }
}

#[test]
fn it_stays_when_layers_are_merged_and_goes_when_nobody_wants_it() {
    for stage in stages(&[]) {
        let mode = stage.house.mode;
        for n in 0..18 {
            let line = format!(
                "chmod 700 in in/a in/a/b; echo {n} > in/a/b/{n}; mkdir in/d{n}; : > in/d{n}/f; chmod 000 in/d{n}; {SHUT}"
            );
            stage.sh(&line);
            stage.snapshot();
        }
        let snapshot = stage.json(&["snapshot", &stage.id]);
        let chain = snapshot["layers"].as_array().expect("layers").len();
        assert!(chain < 18, "{mode:?}: nothing was merged: {chain} layers");
        let line = "chmod 700 in in/a in/a/b; cat in/a/b/f in/a/b/0 in/a/b/17; chmod 700 in/d3; ls in/d3";
        assert_eq!(stage.sh(line), "inner\n0\n17\nf", "{mode:?}");
        stage.sh(SHUT);
        stage.ok(&["stop", &stage.id]);
        stage.ok(&["digest", &stage.id]);
        stage.ok(&["kill", "--all"]);
        for line in stage.json(&["snapshots"]).as_array().expect("a list") {
            stage.ok(&["snapshots", "remove", line["id"].as_str().expect("an id")]);
        }
        stage.ok(&["gc"]);
        assert_eq!(left_in(&stage.house.home()), [""; 0], "{mode:?}");
    }
}
