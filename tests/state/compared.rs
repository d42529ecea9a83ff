//! What counts as a difference between a step and the same step once more, and what is told as not compared.

use std::process::Stdio;

use serde_json::json;

use crate::replay::{exported, file};
use crate::stage::Stage;

#[test]
fn what_a_tool_says_beside_its_answer_counts_though_it_said_nothing_before() {
    for stage in Stage::each(&["--record", "steps"]) {
        let lines = ["echo one", "echo one; echo odd >&2"];
        for line in lines {
            let call = json!({ "command": line }).to_string();
            stage.ok(&["exec", &stage.id, "--tool", "shell", "--params", &call]);
        }
        let mut trajectory = exported(&stage);
        for (step, line) in lines.iter().rev().enumerate() {
            trajectory["steps"][step]["params"]["command"] = json!(line);
        }
        let run = file(&stage, "run.json", &trajectory.to_string());
        let told = stage.house.run(&["replay", &run, "--keep-going"]).1;
        for step in ["step 1 differs: stderr", "step 2 differs: stderr"] {
            assert!(told.contains(step), "{:?}: {told}", stage.house.mode);
        }
    }
}

#[test]
fn what_git_keeps_of_inodes_and_times_is_no_difference() {
    if !crate::forge::has_git() {
        return;
    }
    for stage in Stage::each(&["--deterministic"]) {
        let git = "git -c user.name=a -c user.email=a@b.c";
        stage.sh(&format!("git init -q . && echo one > a && git add a && {git} commit -qm one"));
        stage.sh("touch a; git status --porcelain");
        stage.sh("echo two > b; git add b");
        stage.sh("cat a b");
        let mode = stage.house.mode;
        let mut trajectory = exported(&stage);
        let run = file(&stage, "run.json", &trajectory.to_string());
        let (code, out, told) = stage.house.run(&["replay", &run]);
        assert_eq!((code, out.lines().last()), (0, Some("the same, 4 steps")), "{mode:?}: {out}{told}");
        assert!(format!("{out}{told}").contains("git-index"), "{mode:?}: {out}{told}");
        let (code, out, told) = stage.house.run(&["replay", &run, "--strict"]);
        let expected = "step 1 differs: files, /workspace/.git/index";
        assert!(code == 3 && out.contains(expected), "{mode:?}: {out}{told}");
        trajectory["steps"][2]["params"]["shell"] = json!("echo three > b; git add b");
        let other = file(&stage, "other.json", &trajectory.to_string());
        let (code, out, told) = stage.house.run(&["replay", &other]);
        assert!(code == 3 && out.contains("step 3 differs: files"), "{mode:?}: {out}{told}");
        assert!(out.contains("/workspace/b"), "{mode:?}: {out}{told}");
    }
}

#[test]
fn more_changes_than_are_listed_are_compared_beside_what_is_noise() {
    if !crate::forge::has_git() {
        return;
    }
    for stage in Stage::each(&["--deterministic"]) {
        let git = "git -c user.name=a -c user.email=a@b.c";
        stage.sh(&format!("git init -q . && echo one > a && git add a && {git} commit -qm one"));
        stage.sh("mkdir m; for i in $(seq 1200); do echo $i > m/$i; done");
        stage.sh("cat m/1200");
        let mode = stage.house.mode;
        let mut trajectory = exported(&stage);
        assert!(trajectory["steps"][1]["observed"]["state"]["unlisted"].is_string(), "{mode:?}");
        let run = file(&stage, "run.json", &trajectory.to_string());
        let (code, out, told) = stage.house.run(&["replay", &run]);
        assert_eq!((code, out.lines().last()), (0, Some("the same, 3 steps")), "{mode:?}: {out}{told}");
        // The last one in the order of their names is not listed.
        let other = "mkdir m; for i in $(seq 1200); do echo $i > m/$i; done; echo x > m/999";
        trajectory["steps"][1]["params"]["shell"] = json!(other);
        let other = file(&stage, "other.json", &trajectory.to_string());
        let (code, out, told) = stage.house.run(&["replay", &other]);
        assert!(code == 3 && out.contains("step 2 differs: files"), "{mode:?}: {out}{told}");
        assert!(out.contains("not listed"), "{mode:?}: {out}{told}");
    }
}

#[test]
fn steps_that_were_done_at_once_are_compared_by_what_they_led_to() {
    for stage in Stage::each(&["--deterministic"]) {
        // None ends before all have begun.
        let start = |n: usize| {
            let line = format!(
                "touch b{n}; until [ -e b1 -a -e b2 -a -e b3 ]; do sleep 0.02; done; echo {n} > f{n}"
            );
            let call = json!({ "command": line }).to_string();
            let mut glass = stage.house.glass(&["exec", &stage.id, "--tool", "shell", "--params", &call]);
            glass.stdout(Stdio::null()).spawn().expect("glass starts")
        };
        let running: Vec<_> = (1..=3).map(start).collect();
        for mut glass in running {
            assert!(glass.wait().expect("it ends").success(), "{:?}", stage.house.mode);
        }
        stage.sh("rm b1 b2 b3; ls");
        let mode = stage.house.mode;
        let mut trajectory = exported(&stage);
        let overlapped = |step: usize| trajectory["steps"][step]["observed"]["state"]["overlapped"] == true;
        assert_eq!([0, 1, 2, 3].map(overlapped), [true, true, true, false], "{mode:?}: {trajectory}");
        // One after the other, none of them would end.
        for step in trajectory["steps"].as_array_mut().expect("steps").iter_mut().take(3) {
            let line = step["params"]["command"].as_str().expect("a line").to_owned();
            let n = line.chars().last().expect("a number");
            step["params"]["command"] = json!(format!("touch b1 b2 b3; echo {n} > f{n}"));
        }
        let run = file(&stage, "run.json", &trajectory.to_string());
        let (code, out, told) = stage.house.run(&["replay", &run]);
        assert_eq!((code, out.lines().last()), (0, Some("the same, 4 steps")), "{mode:?}: {out}{told}");
        assert!(out.contains("overlapping-steps"), "{mode:?}: {out}{told}");
        trajectory["steps"][1]["params"]["command"] = json!("touch b1 b2 b3; echo x > x");
        let other = file(&stage, "other.json", &trajectory.to_string());
        let (code, out, told) = stage.house.run(&["replay", &other]);
        assert!(code == 3 && out.contains("step 4 differs"), "{mode:?}: {out}{told}");
    }
}

#[test]
fn what_is_too_long_to_be_on_record_is_told_as_not_compared() {
    for stage in Stage::each(&["--record", "steps"]) {
        stage.sh("seq 200000");
        let call = r#"{"command": "seq 200000"}"#;
        stage.ok(&["exec", &stage.id, "--tool", "shell", "--params", call]);
        stage.sh("for i in $(seq 40); do sleep 1000 > /dev/null 2>&1 & done");
        let told = stage.json(&["replay", "--of", &stage.id, "--strict"]);
        assert_eq!(told["same"], true, "{told}");
        let ignored: Vec<_> = told["ignored"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|rule| (rule["rule"].as_str().expect("a name"), rule["count"].as_u64()))
            .collect();
        let expected = [("output-not-on-record", Some(2)), ("processes-not-on-record", Some(1))];
        assert_eq!(ignored, expected, "{told}");
    }
}

#[test]
fn what_is_written_in_formats_of_others_replays_with_both_streams() {
    for stage in Stage::each(&["--record", "steps"]) {
        stage.sh("echo out; echo odd >&2");
        let call = r#"{"command": "echo out; echo odd >&2; exit 3"}"#;
        stage.house.run(&["exec", &stage.id, "--tool", "shell", "--params", call]);
        let run = file(&stage, "run.json", &exported(&stage).to_string());
        for format in ["swe-agent", "openhands", "atif"] {
            let text = stage.ok(&["trajectory", "convert", &run, "--to", format, "--quiet"]);
            let other = file(&stage, format, &text);
            let (code, out, told) = stage.house.run(&["replay", &other]);
            assert_eq!(
                (code, out.lines().last()),
                (0, Some("the same, 2 steps")),
                "{:?}, {format}: {out}{told}",
                stage.house.mode
            );
        }
    }
}
