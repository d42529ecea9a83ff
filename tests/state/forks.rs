//! Forks share all that was there, and nothing that they write.

use std::fs::File;
use std::process::Stdio;

use glasshouse_linux::rustix::process::{Pid, Signal, kill_process};

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

#[test]
fn forks_whose_ids_nobody_was_told_are_removed() {
    for stage in Stage::each(&[]) {
        let full = File::options().write(true).open("/dev/full").expect("Linux has it");
        let mut command = stage.house.glass(&["fork", &stage.id, "-n", "3"]);
        let output = command.stdout(full).stderr(Stdio::piped()).output().expect("it can be started");
        assert_eq!(output.status.code(), Some(1), "{:?}", stage.house.mode);
        let list = stage.json(&["list"]);
        assert_eq!(list.as_array().map(Vec::len), Some(1), "{:?}: {list}", stage.house.mode);
    }
}

#[test]
fn forks_that_are_interrupted_are_removed() {
    for stage in Stage::each(&[]) {
        let mut command = stage.house.glass(&["fork", &stage.id, "-n", "300"]);
        let fork = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started");
        let boxes = || std::fs::read_dir(stage.house.home().join("boxes")).map_or(0, Iterator::count);
        let start = std::time::Instant::now();
        while boxes() < 4 {
            assert!(start.elapsed().as_secs() < 60, "no forks come");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        kill_process(Pid::from_child(&fork), Signal::INT).expect("it is ours");
        let output = fork.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130), "{:?}: {output:?}", stage.house.mode);
        assert!(output.stdout.is_empty(), "{:?}: {output:?}", stage.house.mode);
        let list = stage.json(&["list"]);
        assert_eq!(list.as_array().map(Vec::len), Some(1), "{:?}: {list}", stage.house.mode);
    }
}

#[test]
fn a_beginning_of_several_ids_is_said_to_be_one() {
    for stage in Stage::each(&[]) {
        let ids = ["abcdefgh1", "abcdefgh2"];
        for id in ids {
            std::fs::create_dir(stage.house.home().join("boxes").join(id)).expect("we may write there");
        }
        let sentence = stage.refused(&["fork", "abcdefgh"]);
        assert!(sentence.contains("more than one box"), "{:?}: {sentence}", stage.house.mode);
        for id in ids {
            std::fs::remove_dir(stage.house.home().join("boxes").join(id)).expect("nobody else took it");
        }
    }
}
