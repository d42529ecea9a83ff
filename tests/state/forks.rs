//! Forks share all that was there, and nothing that they write.

use crate::stage::Stage;

#[test]
fn a_hundred_forks_and_none_sees_another() {
    for stage in Stage::each(&[]) {
        stage.sh("echo base > shared; mkdir d");
        let snapshot = stage.snapshot();
        let forks: Vec<String> =
            stage.ok(&["fork", &snapshot, "-n", "100"]).lines().map(str::to_owned).collect();
        assert_eq!(forks.len(), 100);
        for fork in &forks {
            stage.sh_in(fork, &format!("echo {fork} > shared; echo {fork} > d/{fork}"));
        }
        for fork in &forks {
            assert_eq!(stage.sh_in(fork, "cat shared; ls d"), format!("{fork}\n{fork}"));
        }
        assert_eq!(stage.sh("cat shared; ls d"), "base");
        assert_eq!(stage.layers().len(), 1, "nothing was copied");
        stage.ok(&["kill", "--all"]);
    }
}

#[test]
fn a_fork_of_a_box_is_what_the_box_is() {
    for stage in Stage::each(&["--env", "KEY=value", "--label", "team=red", "--pids", "50", "--name", "web"])
    {
        stage.sh("echo now > a");
        let fork = stage.ok(&["fork", "web"]);
        assert_eq!(stage.sh_in(&fork, "cat a; echo $KEY"), "now\nvalue");
        let info = stage.json(&["info", &fork]);
        assert_eq!(info["labels"]["team"], "red");
        assert!(info["name"].is_null(), "a name is one box's");
        stage.sh_in(&fork, "echo later > a");
        assert_eq!(stage.sh("cat a"), "now");
        // And a fork of a fork.
        let second = stage.ok(&["fork", &fork]);
        assert_eq!(stage.sh_in(&second, "cat a"), "later");
    }
}

#[test]
fn a_name_that_a_box_and_a_snapshot_have_is_taken_for_neither() {
    for stage in Stage::each(&[]) {
        stage.sh("echo good > f");
        let snapshot = stage.json(&["snapshot", &stage.id, "--name", "both"])["id"].clone();
        let other = stage.ok(&["create", "--name", "both"]);
        for args in [&["fork", "both"][..], &["digest", "both"], &["diff", "both", &stage.id]] {
            let sentence = stage.refused(args);
            assert!(sentence.contains("by its id") && sentence.contains(&other), "{args:?}: {sentence}");
        }
        let fork = stage.ok(&["fork", snapshot.as_str().expect("it has an id")]);
        assert_eq!(stage.sh_in(&fork, "cat f"), "good", "{:?}", stage.house.mode);
        assert_eq!(stage.sh_in(&stage.ok(&["fork", &other]), "ls"), "");
    }
}
