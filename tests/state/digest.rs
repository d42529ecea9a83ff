//! One number for a state: the same for the same, another for anything else.

use glasshouse_tests::Mode;

use crate::rerun::PYTHON;
use crate::stage::Stage;

/// A tree with something of every kind.
const TREE: &str = "umask 022; mkdir -p a/b; echo one > a/f; ln a/f a/hard; ln -s f a/link; mkfifo a/pipe; \
    head -c 70000 /dev/zero > a/b/zeros; chmod 640 a/b/zeros; rm -rf a/gone; mkdir moved; echo x > moved/x; \
    mkdir open; chmod 777 open";

impl Stage {
    #[track_caller]
    fn digest(&self, name: &str) -> String {
        let digest = self.ok(&["digest", name]);
        assert!(digest.len() == 67 && digest.starts_with("b3:"), "{digest}");
        digest
    }
}

#[test]
fn the_same_tree_has_the_same_digest_however_it_came_to_be() {
    for stage in Stage::each(&[]) {
        let empty = stage.digest(&stage.id);
        stage.sh(TREE);
        let digest = stage.digest(&stage.id);
        assert_ne!(digest, empty);
        let snapshot = stage.snapshot();
        assert_eq!(stage.digest(&snapshot), digest, "{:?}: of the snapshot", stage.house.mode);
        assert_eq!(stage.digest(&stage.id), digest, "of the box that stands on it");
        let fork = stage.ok(&["fork", &snapshot]);
        assert_eq!(stage.digest(&fork), digest, "of a fork");
        stage.sh_in(&fork, "echo more > more");
        assert_ne!(stage.digest(&fork), digest);
        stage.ok(&["restore", &fork, &snapshot]);
        assert_eq!(stage.digest(&fork), digest, "of what was restored");
        stage.ok(&["reset", &stage.id]);
        assert_eq!(stage.digest(&stage.id), empty, "of what was reset");
        let other = stage.ok(&["create"]);
        stage.sh_in(&other, TREE);
        assert_eq!(stage.digest(&other), digest, "written anew in another box");
        stage.ok(&["stop", &other]);
        assert_eq!(stage.digest(&other), digest, "of a stopped box");
        stage.ok(&["start", &other]);
        assert_eq!(stage.digest(&other), digest, "of a started box");
    }
}

#[test]
fn it_stays_the_same_when_layers_are_made_and_merged() {
    for stage in Stage::each(&[]) {
        stage.sh("mkdir d");
        for n in 0..40 {
            stage.sh(&format!("echo {n} > d/f{n}; rm -f d/f{}; mkdir d/{n}", n - 5));
            stage.snapshot();
        }
        let written = stage.digest(&stage.id);
        let chain = stage.json(&["snapshot", &stage.id])["layers"].clone();
        assert!(chain.as_array().is_some_and(|chain| chain.len() < 40), "nothing was merged: {chain}");
        let other = stage.ok(&["create"]);
        stage.sh_in(&other, "mkdir d; for n in $(seq 0 39); do mkdir d/$n; done; for n in $(seq 35 39); do echo $n > d/f$n; done");
        assert_eq!(stage.digest(&other), written, "{:?}", stage.house.mode);
    }
}

#[test]
fn every_change_counts_and_times_do_not() {
    for stage in Stage::each(&[]) {
        stage.sh(TREE);
        let snapshot = stage.snapshot();
        let digest = stage.digest(&snapshot);
        stage.sh("touch -d 2001-01-01 a/f a a/b/zeros; touch -h -d 2001-01-01 a/link; touch -d 2001-01-01 .");
        assert_eq!(stage.digest(&stage.id), digest, "{:?}: times count", stage.house.mode);
        let mark = format!("{PYTHON} -I -S -c \"import os; os.setxattr('a/f', 'user.mark', b'x')\"");
        let mut changes = vec![
            mark.as_str(),
            "echo two > a/f",
            "printf x | dd of=a/b/zeros bs=1 seek=65000 conv=notrunc 2>/dev/null",
            "truncate -s 70001 a/b/zeros",
            "chmod 600 a/b/zeros",
            "chmod 700 a/b",
            "ln -sf g a/link",
            "mv a/f a/g",
            "mv moved other",
            "rm a/pipe",
            "rm -r moved",
            "mkdir new",
            ": > empty",
        ];
        if stage.house.mode == Mode::Root {
            // The same file, but for its owner.
            changes.push("umask 022; echo x > /workspace/open/f");
            changes.push("@root umask 022; echo x > /workspace/open/f");
            changes.push("@root chmod 700 /");
        }
        let mut seen = vec![digest.clone()];
        for change in changes {
            stage.ok(&["restore", &stage.id, &snapshot]);
            match change.strip_prefix("@root ") {
                Some(change) => {
                    stage.ok(&["exec", &stage.id, "--user", "root", "--shell", "--", change]);
                }
                None => {
                    stage.sh(change);
                }
            }
            let other = stage.digest(&stage.id);
            assert!(!seen.contains(&other), "{:?}: {change:?} is not seen", stage.house.mode);
            seen.push(other);
        }
        stage.ok(&["restore", &stage.id, &snapshot]);
        assert_eq!(stage.digest(&stage.id), digest);
    }
}

#[test]
fn the_root_directory_itself_stays_what_it_was_through_rotations() {
    for stage in Stage::each(&[]) {
        let root = if stage.house.mode == Mode::Root { &["--user", "root"][..] } else { &[] };
        let sh = |line: &str| stage.ok(&[&["exec", &stage.id], root, &["--shell", "--", line]].concat());
        let look = "stat -c '%a %u:%g' /";
        sh("chmod 751 /");
        let (seen, digest) = (sh(look), stage.digest(&stage.id));
        assert!(seen.starts_with("751 "), "{seen}");
        for round in 0..5 {
            let taken = stage.json(&["snapshot", &stage.id]);
            assert_eq!(sh(look), seen, "{:?} round {round}", stage.house.mode);
            assert_eq!(stage.digest(&stage.id), digest, "{:?} round {round}", stage.house.mode);
            let again = stage.json(&["snapshot", &stage.id]);
            assert_eq!(again["method"], "unchanged", "{:?} round {round}: {taken}", stage.house.mode);
            stage.sh("echo x > x");
            stage.snapshot();
            stage.sh("rm x");
        }
    }
}

#[test]
fn a_directory_of_the_host_is_looked_at_again() {
    for stage in Stage::each(&[]) {
        let image = stage.house.path().join("image");
        std::fs::create_dir(&image).expect("the scratch directory can be written");
        std::fs::write(image.join("f"), "one").expect("it can be written");
        let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        std::fs::set_permissions(&image, open).expect("it is ours");
        let name = format!("dir:{}", image.display());
        let (code, id, err) = stage.house.run(&["create", "--image", &name]);
        assert_eq!(code, 0, "{err}");
        let before = stage.digest(id.trim());
        assert_eq!(stage.digest(id.trim()), before);
        std::fs::write(image.join("f"), "two").expect("it can be written");
        assert_ne!(stage.digest(id.trim()), before, "{:?}", stage.house.mode);
    }
}

#[test]
fn a_box_in_which_something_runs_has_one_too() {
    for stage in Stage::each(&[]) {
        stage.sh("echo one > a");
        let digest = stage.digest(&stage.id);
        stage.ok(&["exec", &stage.id, "--background", "--", "sleep", "1000"]);
        let info = stage.json(&["digest", &stage.id]);
        assert_eq!((&info["digest"], &info["racy"]), (&digest.into(), &false.into()));
        // And it goes on.
        assert_eq!(stage.json(&["ps", &stage.id]).as_array().map(Vec::len), Some(1));
        assert!(stage.refused(&["digest", "nosuch"]).contains("no box and no snapshot"));
    }
}
