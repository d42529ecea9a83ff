//! Stopped, and started again.

use crate::stage::Stage;

#[test]
fn a_stopped_box_keeps_its_files_and_nothing_else() {
    for stage in Stage::each(&["--env", "KEY=value", "--name", "web"]) {
        stage.sh("echo one > a; mkdir d");
        stage.ok(&["exec", "web", "--background", "--", "sleep", "1000"]);
        assert_eq!(stage.ok(&["stop", "web"]), stage.id);
        let list = stage.json(&["list"]);
        assert_eq!(list[0]["state"], "stopped", "{list}");
        assert!(stage.refused(&["exec", "web", "--", "true"]).contains("glass start"));
        assert!(stage.refused(&["stop", "web"]).contains("stopped"));
        // Nobody takes it for dead.
        stage.ok(&["gc"]);
        assert_eq!(stage.ok(&["start", "web"]), stage.id);
        let look = "cat a; ls; echo $KEY; ps ax | grep -c '[s]leep 1000'; true";
        assert_eq!(stage.sh(look), "one\na\nd\nvalue\n0", "{:?}", stage.house.mode);
    }
}

#[test]
fn a_stopped_box_can_be_snapshotted_forked_and_killed() {
    for stage in Stage::each(&[]) {
        stage.sh("echo one > a");
        stage.ok(&["stop", &stage.id]);
        let snapshot = stage.snapshot();
        let fork = stage.ok(&["fork", &stage.id]);
        assert_eq!(stage.sh_in(&fork, "cat a"), "one");
        stage.ok(&["start", &stage.id]);
        assert_eq!(stage.sh("cat a; echo two > a; cat a"), "one\ntwo");
        stage.ok(&["stop", &stage.id]);
        assert_eq!(stage.ok(&["kill", &stage.id]), stage.id);
        stage.ok(&["kill", &fork]);
        stage.ok(&["snapshots", "remove", &snapshot]);
        assert_eq!(stage.layers(), [""; 0]);
    }
}

#[test]
fn a_box_goes_on_after_many_changes_of_its_root() {
    for stage in Stage::each(&[]) {
        let mut snapshots = Vec::new();
        for n in 0..60 {
            stage.sh(&format!("echo {n} > f{n}; echo {n} > last"));
            snapshots.push(stage.snapshot());
        }
        assert_eq!(stage.sh("ls | wc -l; cat last"), "61\n59");
        for n in [0, 17, 41, 59] {
            stage.ok(&["restore", &stage.id, &snapshots[n]]);
            assert_eq!(stage.sh("ls | wc -l; cat last"), format!("{}\n{n}", n + 2));
        }
        stage.ok(&["stop", &stage.id]);
        stage.ok(&["start", &stage.id]);
        assert_eq!(stage.sh("cat last"), "59");
    }
}
