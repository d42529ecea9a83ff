//! Trajectories once more.

use std::io::{BufRead as _, Write as _};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::stage::Stage;

/// A file in the house.
pub(crate) fn file(stage: &Stage, name: &str, content: &str) -> String {
    let path = stage.house.path().join(name);
    std::fs::write(&path, content).expect("the house is ours");
    let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o644);
    std::fs::set_permissions(&path, open).expect("it is ours");
    path.to_str().expect("it is UTF-8").to_owned()
}

/// The trajectory of the box, as JSON.
pub(crate) fn exported(stage: &Stage) -> Value {
    serde_json::from_str(&stage.ok(&["trajectory", "export", &stage.id])).expect("it is JSON")
}

fn living(stage: &Stage) -> usize {
    stage.json(&["list"]).as_array().expect("a list").len()
}

fn recorded(stage: &Stage) -> Value {
    stage.sh("echo one > a; mkdir d; echo made");
    let call = r#"{"path":"d/b.txt","content":"two\nthree\n"}"#;
    stage.ok(&["exec", &stage.id, "--tool", "file_write", "--params", call]);
    stage.house.run(&["exec", &stage.id, "--shell", "--", "cat a d/b.txt; echo odd >&2; exit 3"]);
    exported(stage)
}

#[test]
fn what_was_recorded_goes_the_same_way_again() {
    for stage in Stage::each(&["--deterministic"]) {
        let trajectory = recorded(&stage);
        let run = file(&stage, "run.json", &trajectory.to_string());
        assert_eq!(stage.ok(&["replay", &run]), "the same, 3 steps", "{:?}", stage.house.mode);
        assert_eq!(stage.ok(&["replay", "--of", &stage.id, "--strict"]), "the same, 3 steps");
        assert_eq!(living(&stage), 1, "{:?}: the box of a replay goes with it", stage.house.mode);
        // Two runs of the same are the same without executing anything.
        assert!(stage.ok(&["trajectory", "diff", &run, &run]).starts_with("same"), "{:?}", stage.house.mode);
    }
}

#[test]
fn the_first_step_that_goes_another_way_is_named_with_its_file() {
    for stage in Stage::each(&["--deterministic"]) {
        let mut trajectory = recorded(&stage);
        trajectory["steps"][1]["params"]["content"] = json!("two\nfour\n");
        let run = file(&stage, "run.json", &trajectory.to_string());
        let (code, out, err) = stage.house.run(&["replay", &run]);
        assert_eq!(code, 3, "{:?}: {out}{err}", stage.house.mode);
        for part in ["step 2 differs: files, /workspace/d/b.txt", "-three", "+four"] {
            assert!(out.contains(part), "{:?}: {part}: {out}", stage.house.mode);
        }
        let (code, out, _) = stage.house.run(&["replay", &run, "--json", "--keep-going"]);
        let report: Value = serde_json::from_str(&out).expect("it is JSON");
        assert_eq!((code, &report["first_divergence"], &report["done"]), (3, &json!(2), &json!(3)));
        assert_eq!(living(&stage), 1, "{:?}", stage.house.mode);
    }
}

#[test]
fn a_base_that_is_another_one_is_told_before_anything_is_done() {
    for stage in Stage::each(&["--deterministic"]) {
        let trajectory = recorded(&stage);
        let run = file(&stage, "run.json", &trajectory.to_string());
        let other = stage.ok(&["create", "--record", "steps"]);
        stage.sh_in(&other, "echo here > first");
        let sentence = stage.refused(&["replay", &run, "--on", &other]);
        assert!(sentence.contains("does not begin as the trajectory does"), "{sentence}");
        assert_eq!(stage.sh_in(&other, "ls"), "first", "{:?}", stage.house.mode);
    }
}

#[test]
fn a_branch_is_a_live_box_in_the_middle() {
    for stage in Stage::each(&["--deterministic"]) {
        let trajectory = recorded(&stage);
        let run = file(&stage, "run.json", &trajectory.to_string());
        let branch = stage.ok(&["replay", &run, "--mode", "branch", "--until", "1"]);
        assert_eq!(stage.sh_in(&branch, "ls; cat a"), "a\nd\none", "{:?}", stage.house.mode);
        stage.ok(&["kill", &branch]);
    }
}

#[test]
fn a_branch_at_a_step_with_a_snapshot_is_a_fork_of_it() {
    for stage in Stage::each(&["--record", "snapshots"]) {
        let line = "date +%s%N >> a";
        for _ in 0..3 {
            stage.sh(line);
        }
        let two = |id: &str| stage.sh_in(id, "cat a");
        let (code, branch, told) =
            stage.house.run(&["replay", "--of", &stage.id, "--mode", "branch", "--until", "2"]);
        assert_eq!(code, 0, "{:?}: {told}", stage.house.mode);
        assert!(told.contains("no step was done again"), "{:?}: {told}", stage.house.mode);
        // Done again, the times would be others.
        let kept = stage.sh("head -n 2 a");
        assert_eq!(two(branch.trim_end()), kept, "{:?}", stage.house.mode);
        // Without the snapshot, the steps are done again, as far as they go.
        let trajectory = exported(&stage);
        let snapshot = trajectory["steps"][1]["observed"]["state"]["snapshot"].as_str().expect("it has one");
        stage.ok(&["kill", branch.trim_end()]);
        stage.ok(&["snapshots", "remove", snapshot]);
        let (_, _, told) =
            stage.house.run(&["replay", "--of", &stage.id, "--mode", "branch", "--until", "2"]);
        assert!(!told.contains("no step was done again"), "{:?}: {told}", stage.house.mode);
    }
}

#[test]
fn the_record_answers_by_itself_until_somebody_asks_for_something_else() {
    for stage in Stage::each(&["--deterministic"]) {
        let trajectory = recorded(&stage);
        let run = file(&stage, "run.json", &trajectory.to_string());
        let mut serve = stage.house.glass(&["replay", &run, "--mode", "serve"]);
        let mut serve = serve.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut input = serve.stdin.take().expect("it is a pipe");
        for step in trajectory["steps"].as_array().expect("steps").iter().take(2) {
            writeln!(input, "{}", json!({ "tool": step["tool"], "params": step["params"] }))
                .expect("it reads");
        }
        writeln!(input, "{}", json!({ "tool": "exec", "params": { "shell": "rm -rf /" } }))
            .expect("it reads");
        drop(input);
        let output = serve.wait_with_output().expect("it ends");
        let answers: Vec<Value> = String::from_utf8(output.stdout)
            .expect("it is text")
            .lines()
            .map(|line| serde_json::from_str(line).expect("it is JSON"))
            .collect();
        assert_eq!(output.status.code(), Some(3), "{:?}: {answers:?}", stage.house.mode);
        assert_eq!((&answers[0]["output"], &answers[0]["success"]), (&json!("made\n"), &json!(true)));
        assert_eq!(answers[2]["diverged"], 3);
        let first =
            json!({ "tool": trajectory["steps"][0]["tool"], "params": trajectory["steps"][0]["params"] });
        let asked = format!("{first}\n{first}\n");
        let mut serve = stage.house.glass(&["replay", &run, "--mode", "serve", "--until", "1"]);
        let mut serve = serve.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut input = serve.stdin.take().expect("it is a pipe");
        input.write_all(asked.as_bytes()).expect("it reads");
        drop(input);
        let output = serve.wait_with_output().expect("it ends");
        let answers = String::from_utf8(output.stdout).expect("it is text");
        let last: Value = serde_json::from_str(answers.lines().last().expect("two")).expect("it is JSON");
        assert_eq!(last["diverged"], 2, "{:?}: {answers}", stage.house.mode);
        assert_eq!(living(&stage), 1, "{:?}", stage.house.mode);
    }
}

#[test]
fn the_record_answers_as_the_tool_did_whatever_is_said_of_what_is_meant() {
    for stage in Stage::each(&["--record", "steps"]) {
        let call = json!({ "command": "echo out; echo odd >&2; exit 3" });
        let live = stage
            .house
            .run(&["exec", &stage.id, "--tool", "shell", "--params", &call.to_string(), "--json"])
            .1;
        let mut live: Value = serde_json::from_str(&live).expect("it is JSON");
        let run = file(&stage, "run.json", &exported(&stage).to_string());
        let mut serve = stage.house.glass(&["replay", &run, "--mode", "serve"]);
        let mut serve = serve.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut input = serve.stdin.take().expect("it is a pipe");
        let said = json!({ "command": call["command"], "timeout": 300 });
        writeln!(input, "{}", json!({ "tool": "bash", "params": said })).expect("it reads");
        drop(input);
        let output = serve.wait_with_output().expect("it ends");
        let mut answer: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        assert_eq!(output.status.code(), Some(0), "{:?}: {answer}", stage.house.mode);
        assert_eq!(answer["end"]["exit"], live["end"]["exit"], "{:?}: {answer}", stage.house.mode);
        // What was measured, and the number of the command in the box, are on no record.
        for name in ["end", "exec"] {
            (answer[name], live[name]) = (Value::Null, Value::Null);
        }
        assert_eq!(answer, live, "{:?}", stage.house.mode);
    }
}

#[test]
fn a_box_jumps_to_any_of_its_steps() {
    for recording in ["steps", "snapshots"] {
        for stage in Stage::each(&["--record", recording]) {
            for word in ["one", "two", "three"] {
                stage.sh(&format!("echo {word} >> a"));
            }
            stage.ok(&["jump", &stage.id, "2"]);
            // Looking is a step as well, so the box is looked at from outside.
            let copy = stage.ok(&["fork", &stage.id]);
            assert_eq!(stage.sh_in(&copy, "cat a"), "one\ntwo", "{:?}, {recording}", stage.house.mode);
            stage.ok(&["jump", &stage.id, "0"]);
            let copy = stage.ok(&["fork", &stage.id]);
            assert_eq!(stage.sh_in(&copy, "ls"), "", "{:?}, {recording}", stage.house.mode);
            let sentence = stage.refused(&["jump", &stage.id, "77"]);
            assert!(sentence.contains("no step 77"), "{sentence}");
        }
    }
}

#[test]
fn trajectories_of_others_replay_unchanged() {
    for stage in Stage::each(&[]) {
        let knowlyr = json!({ "steps": [
            { "tool_name": "shell", "params": { "command": "echo hi > x.txt; cat x.txt" }, "expected_output": "hi" },
            { "tool_name": "file_read", "params": { "path": "x.txt" }, "expected_output": null },
            { "tool_name": "search", "params": { "pattern": "hi", "path": "." }, "expected_output": "./x.txt:1:hi\n" },
        ], "metadata": { "agent": "x" } });
        let run = file(&stage, "trajectory.json", &knowlyr.to_string());
        let said = stage.ok(&["replay", &run, "--quiet"]);
        assert!(said.ends_with("the same, 3 steps"), "{:?}: {said}", stage.house.mode);
        // What their recorder strips is set aside, and told.
        assert!(said.contains("ignored: edges in 1 place"), "{:?}: {said}", stage.house.mode);
        let id = stage.ok(&["trajectory", "import", &run]);
        assert!(stage.ok(&["log", &id]).contains("echo hi > x.txt"), "{:?}", stage.house.mode);
        stage.ok(&["audit", "verify", &id]);
    }
}

#[test]
fn what_cannot_be_replayed_is_refused_and_leaves_nothing() {
    for stage in Stage::each(&[]) {
        let steps = |steps: Value| json!({ "format": "glasshouse-trajectory", "version": 1, "steps": steps });
        let unknown =
            steps(json!([{ "tool": "shell", "params": { "command": "true" } }, { "tool": "teleport" }]));
        let newer = json!({ "format": "glasshouse-trajectory", "version": 99, "steps": [] });
        let whole = unknown.to_string();
        let cases = [
            (whole.clone(), "step 2 wants the tool \"teleport\""),
            (whole[..whole.len() - 4].to_owned(), "line 1"),
            (newer.to_string(), "99"),
            ("[".repeat(100_000), "cannot read"),
            ("{\"steps\": [], \"x\": \"\u{1}".to_owned(), "cannot read"),
            (String::new(), "nothing in this file"),
            (
                steps(json!([{ "tool": "exec", "params": {} }])).to_string(),
                "one of `argv`, `shell` and `code`",
            ),
            (
                steps(json!([{ "tool": "exec", "params": { "shell": "cat", "stdin": 7 } }])).to_string(),
                "nothing was replayed",
            ),
            (
                steps(json!([{ "tool": "file", "params": { "op": "copy in", "path": "/x" } }])).to_string(),
                "cannot be done again",
            ),
        ];
        for (content, part) in cases {
            let run = file(&stage, "bad.json", &content);
            let sentence = stage.refused(&["replay", &run, "--quiet"]);
            assert!(sentence.contains(part), "{:?}: {part}: {sentence}", stage.house.mode);
            assert_eq!(living(&stage), 1, "{:?}: {sentence}", stage.house.mode);
        }
        stage.refused(&["replay", "/nowhere.json"]);
    }
}

#[test]
fn a_fresh_box_is_like_the_one_that_was_recorded() {
    let like = ["--record", "steps", "--user", "root", "--cwd", "/tmp", "--read-only", "--timeout", "77s"];
    for stage in Stage::each(&like) {
        stage.sh("id -un; pwd; touch /workspace/x 2>/dev/null || echo no; touch here && ls");
        // Without the limit it would not end.
        let line = "head -c 2000 /dev/zero; sleep 1000";
        let flood = stage.house.run(&["exec", &stage.id, "--output-max", "1k", "--shell", "--", line]);
        assert_eq!(flood.0, 137, "{:?}: {}", stage.house.mode, flood.2);
        let run = file(&stage, "run.json", &exported(&stage).to_string());
        let branch = stage.ok(&["replay", &run, "--mode", "branch"]);
        let limits = stage.json(&["info", &branch])["limits"].clone();
        let limits = limits.as_array().expect("a list");
        let timeout = limits.iter().find(|limit| limit["name"] == "timeout").expect("it is told");
        assert_eq!(timeout["amount"], 77_000, "{:?}: {timeout}", stage.house.mode);
        // A file that came by way of another machine says the same.
        let taken = stage.ok(&["trajectory", "import", &run]);
        assert_eq!(stage.ok(&["replay", "--of", &taken, "--quiet"]), "the same, 2 steps");
    }
}

#[test]
fn what_ends_at_once_is_no_difference_and_what_stays_is() {
    for stage in Stage::each(&["--record", "steps"]) {
        for line in ["true", "echo a > a", "(true &)", "exec sleep 1000", "while :; do :; done"] {
            stage.ok(&["exec", &stage.id, "--background", "--shell", "--", line]);
        }
        let mut trajectory = exported(&stage);
        let run = file(&stage, "run.json", &trajectory.to_string());
        let said = stage.ok(&["replay", &run, "--quiet"]);
        assert!(said.ends_with("the same, 5 steps"), "{:?}: {said}", stage.house.mode);
        trajectory["steps"].as_array_mut().expect("steps").truncate(4);
        trajectory["steps"][2]["params"]["shell"] = json!("setsid sleep 1000");
        let run = file(&stage, "more.json", &trajectory.to_string());
        let (code, out, err) = stage.house.run(&["replay", &run]);
        assert_eq!(code, 3, "{:?}: {out}{err}", stage.house.mode);
        assert!(out.contains("step 3 differs: processes"), "{:?}: {out}", stage.house.mode);
    }
}

#[test]
fn a_fork_is_replayed_on_what_it_began_with() {
    for stage in Stage::each(&["--record", "steps"]) {
        stage.sh("echo one > a");
        let fork = stage.ok(&["fork", &stage.id]);
        stage.sh_in(&fork, "cat a; echo two >> a");
        let run = file(&stage, "fork.json", &stage.ok(&["trajectory", "export", &fork]));
        assert_eq!(
            stage.ok(&["replay", "--of", &fork, "--quiet"]),
            "the same, 1 step",
            "{:?}",
            stage.house.mode
        );
        // The box that it was forked of still stands on those files, whatever it writes.
        stage.ok(&["kill", &fork]);
        stage.sh("echo more > b");
        assert_eq!(stage.ok(&["replay", &run, "--quiet"]), "the same, 1 step", "{:?}", stage.house.mode);
        stage.ok(&["reset", &stage.id]);
        let sentence = stage.refused(&["replay", &run, "--quiet"]);
        assert!(sentence.contains("began as a fork of") && sentence.contains("--on"), "{sentence}");
        assert_eq!(living(&stage), 1, "{:?}", stage.house.mode);
        // The same files are the same state, whoever made them.
        stage.sh("echo one > a");
        let snapshot = stage.ok(&["snapshot", &stage.id]);
        stage.ok(&["reset", &stage.id]);
        assert_eq!(stage.ok(&["replay", &run, "--quiet"]), "the same, 1 step", "{snapshot}");
    }
}

#[test]
fn what_was_not_to_be_on_record_is_not_on_the_record_of_a_replay() {
    for stage in Stage::each(&["--record", "steps", "--redact", "corp-[0-9]+"]) {
        // A command that spells it out is on no record either, and cannot be done again.
        stage.sh("echo corp-$((100+23)) > f; echo it is corp-$((100+23))");
        let trajectory = exported(&stage);
        assert_eq!(trajectory["steps"][0]["observed"]["output"], "it is [redacted]\n");
        let run = file(&stage, "run.json", &trajectory.to_string());
        assert_eq!(stage.ok(&["replay", &run, "--quiet"]), "the same, 1 step", "{:?}", stage.house.mode);
        let taken = stage.ok(&["trajectory", "import", &run]);
        assert_eq!(stage.ok(&["replay", "--of", &taken, "--quiet"]), "the same, 1 step");
    }
}

/// Feeds a command of the box, which has to succeed.
fn feed(stage: &Stage, input: &str, argv: &[&str]) {
    let mut glass = stage.house.glass(&[&["exec", &stage.id, "-i", "--"], argv].concat());
    let mut glass = glass.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
    glass.stdin.take().expect("it is a pipe").write_all(input.as_bytes()).expect("it reads");
    assert!(glass.wait().expect("it ends").success(), "{:?}", stage.house.mode);
}

#[test]
fn a_step_that_held_a_secret_is_refused_by_name_and_not_done_otherwise() {
    let write = r#"{"path": "b", "content": "it is corp-123"}"#;
    let ways: [&dyn Fn(&Stage); 3] = [
        &|stage| drop(stage.sh("echo corp-123 > a")),
        &|stage| drop(stage.ok(&["exec", &stage.id, "--tool", "file_write", "--params", write])),
        &|stage| feed(stage, "corp-123", &["tee", "c"]),
    ];
    for way in ways {
        for stage in Stage::each(&["--record", "steps", "--redact", "corp-[0-9]+"]) {
            // Steps that were undone have numbers, too, and the one that is named is the one on record.
            stage.sh("true");
            stage.ok(&["reset", &stage.id]);
            way(&stage);
            stage.sh("echo more > d");
            let sentence = stage.refused(&["jump", &stage.id, "3"]);
            let words = ["step 3 of box", "step 2 ", "cannot be done again", "secret", "as it was"];
            assert!(words.iter().all(|word| sentence.contains(word)), "{:?}: {sentence}", stage.house.mode);
            let copy = stage.ok(&["fork", &stage.id]);
            assert_eq!(stage.sh_in(&copy, "cat [abc] d"), stage.sh_in(&copy, "cat [abc]; echo more"));
            assert!(stage.sh_in(&copy, "cat [abc]").contains("corp-123"), "{:?}", stage.house.mode);
            stage.ok(&["kill", &copy]);
            let run = file(&stage, "run.json", &exported(&stage).to_string());
            for replay in [["replay", run.as_str()].as_slice(), &["replay", "--of", &stage.id]] {
                let sentence = stage.refused(replay);
                let words = ["step 1 ", "cannot be done again", "secret", "nothing was replayed"];
                assert!(
                    words.iter().all(|word| sentence.contains(word)),
                    "{:?}: {sentence}",
                    stage.house.mode
                );
            }
            assert_eq!(living(&stage), 1, "{:?}", stage.house.mode);
        }
    }
}

#[test]
fn a_step_that_held_a_secret_is_reached_by_its_snapshot() {
    for stage in Stage::each(&["--record", "snapshots", "--redact", "corp-[0-9]+"]) {
        stage.sh("echo corp-123 > a");
        stage.sh("rm a");
        stage.ok(&["jump", &stage.id, "1"]);
        let copy = stage.ok(&["fork", &stage.id]);
        assert_eq!(stage.sh_in(&copy, "cat a"), "corp-123", "{:?}", stage.house.mode);
    }
}

#[test]
fn a_secret_in_what_does_nothing_holds_nothing_up() {
    for stage in Stage::each(&["--record", "steps", "--redact", "corp-[0-9]+"]) {
        stage.sh("true");
        stage.ok(&["exec", &stage.id, "--tool", "submit", "--params", r#"{"answer": "it is corp-123"}"#]);
        assert_eq!(stage.ok(&["replay", "--of", &stage.id]), "the same, 2 steps", "{:?}", stage.house.mode);
    }
}

#[test]
fn who_spells_out_what_stands_for_a_secret_is_replayed() {
    for stage in Stage::each(&["--record", "steps"]) {
        stage.sh("echo '[redacted]' > a");
        let write = r#"{"path": "b", "content": "[redacted]\n"}"#;
        stage.ok(&["exec", &stage.id, "--tool", "file_write", "--params", write]);
        feed(&stage, "[redacted]", &["tee", "c"]);
        assert_eq!(stage.ok(&["replay", "--of", &stage.id]), "the same, 3 steps", "{:?}", stage.house.mode);
        stage.ok(&["jump", &stage.id, "2"]);
    }
}

#[test]
fn a_variable_with_a_word_of_every_language_is_no_secret() {
    for stage in Stage::each(&["--record", "steps", "--env", "CI=true"]) {
        stage.ok(&[
            "exec",
            &stage.id,
            "--env",
            "DEBUG=False",
            "--shell",
            "--",
            "if true; then echo False > a; fi",
        ]);
        assert!(stage.ok(&["log", &stage.id]).contains("if true; then"), "{:?}", stage.house.mode);
        let replayed = stage.ok(&["replay", "--of", &stage.id, "--env", "CI=true"]);
        assert!(replayed.starts_with("the same, 1 step"), "{:?}: {replayed}", stage.house.mode);
    }
}

#[test]
fn a_call_with_something_else_than_parameters_is_answered_the_same_again() {
    for stage in Stage::each(&["--record", "steps"]) {
        for params in ["[]", "\"ls\"", "[1, {\"a\": 2}]", "7", "null"] {
            let (code, _, told) =
                stage.house.run(&["exec", &stage.id, "--tool", "shell", "--params", params]);
            let expected = if params == "null" { "`command` is missing" } else { "a JSON object, not" };
            assert!(code == 2 && told.contains(expected), "{:?}: {params}: {code} {told}", stage.house.mode);
        }
        stage.sh("echo on > a");
        let run = file(&stage, "run.json", &exported(&stage).to_string());
        for replay in [["replay", run.as_str(), "--strict"].as_slice(), &["replay", "--of", &stage.id]] {
            assert_eq!(stage.ok(replay), "the same, 6 steps", "{:?}", stage.house.mode);
        }
        let taken = stage.ok(&["trajectory", "import", &run]);
        assert_eq!(stage.ok(&["replay", "--of", &taken]), "the same, 6 steps", "{:?}", stage.house.mode);
        stage.ok(&["jump", &stage.id, "6"]);
        // Whoever asks the record for the same is answered.
        let mut serve = stage.house.glass(&["replay", &run, "--mode", "serve"]);
        let mut serve = serve.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut input = serve.stdin.take().expect("it is a pipe");
        for params in [json!([]), json!("ls"), json!([1, { "a": 2 }]), json!(7), Value::Null] {
            writeln!(input, "{}", json!({ "tool": "shell", "params": params })).expect("it reads");
        }
        drop(input);
        let output = serve.wait_with_output().expect("it ends");
        let answers = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{:?}: {answers}", stage.house.mode);
    }
}

#[test]
fn what_is_said_is_done_and_not_overlooked() {
    for stage in Stage::each(&["--record", "steps"]) {
        stage.sh("true");
        let run = file(&stage, "run.json", &exported(&stage).to_string());
        let sentence = stage.refused(&["replay", &run, "--image", "dir:/no/such/root"]);
        assert!(sentence.contains("/no/such/root"), "{:?}: {sentence}", stage.house.mode);
        let (code, _, told) = stage.house.run(&["replay", &run, "--record", "commands"]);
        assert!(code == 0 && told.contains("are not compared"), "{:?}: {told}", stage.house.mode);
        let volume = format!("{}:/mnt", stage.house.path().display());
        let (code, _, told) = stage.house.run(&["replay", &run, "--on", &stage.id, "--volume", &volume]);
        assert!(code == 2 && told.contains("--volume"), "{:?}: {told}", stage.house.mode);
        for option in [&["--strict"][..], &["--on", &stage.id], &["--memory", "64m"], &["--env", "A=b"]] {
            let sentence = stage.refused(&[&["replay", &run, "--mode", "serve"], option].concat());
            assert!(sentence.contains("--mode serve"), "{:?}: {option:?}: {sentence}", stage.house.mode);
        }
        assert_eq!(living(&stage), 1, "{:?}", stage.house.mode);
    }
}

/// A tree in the house, and where.
fn tree(stage: &Stage, large: usize) -> String {
    let path = stage.house.path().join(format!("tree-{large}"));
    std::fs::create_dir_all(path.join("src")).expect("the house is ours");
    std::fs::write(path.join("src/a.txt"), "hello\n").expect("it is ours");
    std::fs::write(path.join("raw"), vec![0xff; large]).expect("it is ours");
    std::os::unix::fs::symlink("src/a.txt", path.join("link")).expect("it is ours");
    path.to_str().expect("it is UTF-8").to_owned()
}

#[test]
fn what_was_copied_in_is_copied_in_again() {
    for stage in Stage::each(&["--record", "steps"]) {
        let tree = tree(&stage, 1000);
        let to = |path: &str| format!("{}:{path}", stage.id);
        stage.ok(&["cp", &tree, &to("/workspace/t")]);
        // What failed fails again, and in the same way.
        stage.refused(&["cp", &format!("{tree}/raw"), &to("/workspace/no/such/place")]);
        stage.sh("ls -R t; cat t/link; wc -c < t/raw");
        let run = file(&stage, "run.json", &exported(&stage).to_string());
        assert_eq!(stage.ok(&["replay", &run, "--quiet"]), "the same, 3 steps", "{:?}", stage.house.mode);
    }
}

#[test]
fn who_is_told_to_end_does_not_wait_for_a_step() {
    for stage in Stage::each(&[]) {
        let steps = json!([{ "tool": "exec", "params": { "shell": "sleep 1000" } }]);
        let endless = json!({ "format": "glasshouse-trajectory", "version": 1, "steps": steps });
        let run = file(&stage, "endless.json", &endless.to_string());
        let mut glass = stage.house.glass(&["replay", &run, "--quiet"]);
        let mut glass = glass.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        let sleeps = || {
            let boxes = stage.json(&["list"]);
            let ids = boxes.as_array().into_iter().flatten().filter_map(|one| one["id"].as_str());
            ids.filter(|id| *id != stage.id).any(|id| stage.house.run(&["ps", id]).1.contains("sleep 1000"))
        };
        while !sleeps() {
            assert!(glass.try_wait().expect("it is ours").is_none(), "{:?}", stage.house.mode);
        }
        let told = Command::new("kill").args(["-INT", &glass.id().to_string()]).status();
        assert!(told.expect("it is there").success());
        assert_eq!(glass.wait().expect("it ends").code(), Some(130), "{:?}", stage.house.mode);
        assert_eq!(living(&stage), 1, "{:?}", stage.house.mode);
    }
}

#[test]
fn a_jump_that_cannot_be_done_costs_the_box_nothing() {
    // Of a record that says something else of the beginning than is true.
    for stage in Stage::each(&["--record", "steps"]) {
        stage.sh("echo precious > a");
        let trace = stage.house.home().join("traces").join(&stage.id).join("trace.jsonl");
        let text = std::fs::read_to_string(&trace).expect("it is there");
        let base = text.lines().find(|line| line.contains("\"type\":\"base\"")).expect("it is on record");
        let at = base.find("b3:").expect("it has a digest");
        let digest = &base[at..at + 67];
        std::fs::write(&trace, text.replace(digest, &format!("b3:{}", "0".repeat(64)))).expect("it is ours");
        let sentence = stage.refused(&["jump", &stage.id, "1"]);
        assert!(sentence.contains("as it was"), "{sentence}");
        let copy = stage.ok(&["fork", &stage.id]);
        assert_eq!(stage.sh_in(&copy, "cat a"), "precious", "{:?}", stage.house.mode);
    }
    for stage in Stage::each(&["--record", "steps"]) {
        stage.ok(&["cp", &tree(&stage, 2 << 20), &format!("{}:/workspace/t", stage.id)]);
        stage.sh("echo more > a");
        let sentence = stage.refused(&["jump", &stage.id, "2"]);
        assert!(sentence.contains("step 1") && sentence.contains("cannot be done again"), "{sentence}");
        let copy = stage.ok(&["fork", &stage.id]);
        assert_eq!(stage.sh_in(&copy, "ls"), "a\nt", "{:?}", stage.house.mode);
    }
}

#[test]
fn input_that_is_not_all_on_record_is_not_made_up() {
    for stage in Stage::each(&["--record", "steps"]) {
        let mut glass = stage.house.glass(&["exec", &stage.id, "-i", "--", "wc", "-c"]);
        let mut glass = glass.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut input = glass.stdin.take().expect("it is a pipe");
        input.write_all(&vec![b'x'; 1 << 20]).expect("it reads");
        drop(input);
        assert!(glass.wait_with_output().expect("it ends").status.success(), "{:?}", stage.house.mode);
        let sentence = stage.refused(&["replay", "--of", &stage.id, "--quiet"]);
        assert!(sentence.contains("step 1") && sentence.contains("not on record"), "{sentence}");
        assert_eq!(living(&stage), 1, "{:?}", stage.house.mode);
    }
}

#[test]
fn tools_of_a_boxs_own_are_called_again() {
    let tool = json!({
        "name": "count", "description": "Count words.", "argv": ["wc", "-w", "--", "{path}"],
        "parameters": { "type": "object", "properties": { "path": { "type": "string" } } },
    });
    for house in glasshouse_tests::Mode::all().into_iter().map(glasshouse_tests::House::new) {
        let tools = house.path().join("tools.json");
        std::fs::write(&tools, tool.to_string()).expect("the house is ours");
        let tools = ["--tool-file", tools.to_str().expect("it is UTF-8"), "--without-tool", "git"];
        let Some(stage) = Stage::in_house(house, &[&["--record", "steps"], &tools[..]].concat()) else {
            continue;
        };
        let call = r#"{"path": "/etc/passwd"}"#;
        stage.ok(&["exec", &stage.id, "--tool", "count", "--params", call]);
        let git = r#"{"subcommand": "status"}"#;
        assert_eq!(stage.house.run(&["exec", &stage.id, "--tool", "git", "--params", git]).0, 2);
        let sentence = stage.refused(&["replay", "--of", &stage.id]);
        assert!(sentence.contains("step 1 wants the tool \"count\""), "{sentence}");
        let again = [&["replay", "--of", &stage.id][..], &tools].concat();
        assert_eq!(stage.ok(&again), "the same, 2 steps", "{:?}", stage.house.mode);
    }
}

#[test]
fn a_tool_of_a_boxs_own_is_called_again_whatever_others_mean_by_its_name() {
    let tool = json!({ "name": "finish", "description": "Write it down.", "argv": ["touch", "done"] });
    for house in glasshouse_tests::Mode::all().into_iter().map(glasshouse_tests::House::new) {
        let tools = house.path().join("tools.json");
        std::fs::write(&tools, tool.to_string()).expect("the house is ours");
        let tools = ["--tool-file", tools.to_str().expect("it is UTF-8")];
        let Some(stage) = Stage::in_house(house, &[&["--record", "steps"], &tools[..]].concat()) else {
            continue;
        };
        stage.ok(&["exec", &stage.id, "--tool", "finish", "--params", "{}"]);
        stage.sh("ls");
        let again = [&["replay", "--of", &stage.id][..], &tools].concat();
        assert_eq!(stage.ok(&again), "the same, 2 steps", "{:?}", stage.house.mode);
    }
}

#[test]
fn limits_on_record_that_cannot_be_had_here_are_left_out_and_told() {
    for stage in Stage::each(&["--record", "steps"]) {
        stage.sh("true");
        let mut trajectory = exported(&stage);
        trajectory["base"]["limits"] = json!({ "memory_bytes": 128 << 20, "timeout_ms": 77_000 });
        let run = file(&stage, "run.json", &trajectory.to_string());
        let (code, id, told) = stage.house.run(&["replay", &run, "--mode", "branch"]);
        assert_eq!(code, 0, "{:?}: {told}", stage.house.mode);
        let limits = stage.json(&["info", id.trim_end()])["limits"].clone();
        let amount = |name: &str| {
            let limit = limits.as_array().expect("a list").iter().find(|limit| limit["name"] == name);
            limit.expect("it is told")["amount"].clone()
        };
        assert_eq!(amount("timeout"), 77_000, "{:?}", stage.house.mode);
        // Whether a limit of the whole box can be had is up to the machine; that it is one or the other is not.
        let had = amount("memory") == 128 << 20;
        assert_ne!(had, told.contains("without the limits on record"), "{:?}: {told}", stage.house.mode);
        // Who asks for a limit gets it or is refused.
        let asked = stage.house.run(&["replay", &run, "--memory", "129m", "--quiet"]);
        assert_eq!(asked.0 == 0, had, "{:?}: {}", stage.house.mode, asked.2);
    }
}

#[test]
fn code_in_contexts_goes_the_same_way_again() {
    for stage in Stage::each(&["--record", "steps"]) {
        let run = |context: &str, code: &str| {
            stage.house.run(&["context", "run", &stage.id, context, "-c", code]);
        };
        stage.ok(&["context", "create", &stage.id, "--name", "n"]);
        run("n", "x = 1\nopen('f', 'w').write('a')\nprint('hi')\nx");
        stage.ok(&["context", "create", &stage.id, "--name", "b", "--lang", "bash", "--cwd", "/tmp"]);
        run("n", "1 / 0");
        run("b", "y=2; pwd; echo $y > /workspace/g");
        stage.ok(&["context", "restart", &stage.id, "n"]);
        run("n", "'x' in globals()");
        stage.ok(&["context", "delete", &stage.id, "n"]);
        stage.sh("cat f g");
        run("b", "echo $y");
        let mut trajectory = exported(&stage);
        let whole = file(&stage, "run.json", &trajectory.to_string());
        assert_eq!(stage.ok(&["replay", &whole, "--quiet"]), "the same, 6 steps", "{:?}", stage.house.mode);
        trajectory["steps"][0]["params"]["code"]["code"] =
            json!("x = 2\nopen('f', 'w').write('a')\nprint('hi')\nx");
        let other = file(&stage, "other.json", &trajectory.to_string());
        let (code, out, err) = stage.house.run(&["replay", &other]);
        assert!(code == 3 && out.contains("step 1 differs: output"), "{:?}: {out}{err}", stage.house.mode);
    }
}

#[test]
fn values_of_variables_that_look_like_anything_else_leave_a_record_that_can_be_read() {
    for stage in Stage::each(&["--record", "steps", "--env", "HISTSIZE=1000", "--env", "DEBUG=verbose"]) {
        stage.sh("echo 1000 verbose > f; chown 1000:1000 f 2>/dev/null || true; truncate -s 1000 g");
        let call = r#"{"pattern":"verbose","path":".","files_only":true}"#;
        stage.ok(&["exec", &stage.id, "--tool", "search", "--params", call]);
        let (code, out, err) = stage.house.run(&["trajectory", "export", &stage.id]);
        assert_eq!(code, 0, "{:?}: {err}", stage.house.mode);
        assert!(!err.contains("cannot be read"), "{:?}: {err}", stage.house.mode);
        let trajectory: Value = serde_json::from_str(&out).expect("it is JSON");
        let changes = trajectory["steps"][0]["observed"]["state"]["changes"].as_array().expect("a list");
        let change = |path: &str| changes.iter().find(|change| change["path"] == path).expect("it is listed");
        assert_eq!(change("/workspace/g")["bytes"], 1000, "{:?}", stage.house.mode);
        assert_eq!(change("/workspace/f")["text"], "[redacted] [redacted]\n", "{:?}", stage.house.mode);
        let asked = &trajectory["steps"][1]["params"];
        assert_eq!((&asked["pattern"], &asked["files_only"]), (&json!("[redacted]"), &json!(true)));
        // What the command said is on no record, so only its first part can be done again in the same way.
        assert_eq!(stage.house.run(&["jump", &stage.id, "0"]).0, 0, "{:?}", stage.house.mode);
    }
}

/// What a box holds in `a`, looked at from outside: looking is a step as well.
fn seen(stage: &Stage) -> String {
    let copy = stage.ok(&["fork", &stage.id]);
    let text = stage.sh_in(&copy, "cat a");
    stage.ok(&["kill", &copy]);
    text.replace('\n', " ")
}

#[test]
fn a_box_jumps_back_and_forth_and_what_is_exported_is_what_led_to_its_state() {
    for recording in ["steps", "snapshots"] {
        for stage in Stage::each(&["--record", recording]) {
            for word in ["one", "two", "three"] {
                stage.sh(&format!("echo {word} >> a"));
            }
            let what = format!("{:?}, {recording}", stage.house.mode);
            for (step, expected) in
                [("1", "one"), ("3", "one two three"), ("2", "one two"), ("3", "one two three")]
            {
                stage.ok(&["jump", &stage.id, step]);
                assert_eq!(seen(&stage), expected, "{what}: step {step}");
            }
            stage.sh("echo four >> a");
            let trajectory = exported(&stage);
            let shell = |step: &Value| step["params"]["shell"].as_str().expect("a line").to_owned();
            let lines: Vec<String> =
                trajectory["steps"].as_array().expect("steps").iter().map(shell).collect();
            let expected = ["one", "two", "three", "four"].map(|word| format!("echo {word} >> a"));
            assert_eq!(lines, expected, "{what}");
            assert_eq!(stage.ok(&["replay", "--of", &stage.id, "--quiet"]), "the same, 4 steps", "{what}");
        }
    }
}

#[test]
fn steps_after_a_restore_stand_on_its_snapshot() {
    for stage in Stage::each(&["--record", "steps"]) {
        stage.sh("echo one >> a");
        let snapshot = stage.snapshot();
        stage.sh("echo two >> a");
        stage.ok(&["restore", &stage.id, &snapshot]);
        for word in ["three", "four"] {
            stage.sh(&format!("echo {word} >> a"));
        }
        stage.ok(&["jump", &stage.id, "3"]);
        assert_eq!(seen(&stage), "one three", "{:?}", stage.house.mode);
        assert_eq!(stage.ok(&["replay", "--of", &stage.id, "--quiet"]), "the same, 1 step");
        stage.ok(&["jump", &stage.id, "2"]);
        assert_eq!(seen(&stage), "one two", "{:?}", stage.house.mode);
        stage.ok(&["snapshots", "remove", &snapshot]);
        let sentence = stage.refused(&["jump", &stage.id, "4"]);
        assert!(sentence.contains("step 4") && sentence.contains(&snapshot), "{sentence}");
        assert_eq!(seen(&stage), "one two", "{:?}: it cost the box nothing", stage.house.mode);
    }
}

/// Runs code that writes a line and does not end, and interrupts its context as soon as it has begun.
fn interrupted(stage: &Stage, context: &str, code: &str) {
    let mut glass = stage.house.glass(&["context", "run", &stage.id, context, "-c", code]);
    let mut glass = glass.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut output = std::io::BufReader::new(glass.stdout.take().expect("it is a pipe"));
    let mut first = String::new();
    output.read_line(&mut first).expect("it writes a line");
    assert_eq!(first, "here\n", "{:?}", stage.house.mode);
    stage.ok(&["context", "interrupt", &stage.id, context]);
    glass.wait().expect("it ends");
}

#[test]
fn code_that_was_interrupted_is_interrupted_again() {
    for stage in Stage::each(&["--record", "steps"]) {
        stage.ok(&["context", "create", &stage.id, "--name", "b", "--lang", "bash"]);
        stage.ok(&["context", "create", &stage.id, "--name", "p"]);
        interrupted(&stage, "b", "echo here; while :; do :; done");
        interrupted(&stage, "p", "print('here', flush=True)\nwhile True: pass");
        stage.ok(&["context", "interrupt", &stage.id, "p"]);
        let mut trajectory = exported(&stage);
        let mode = stage.house.mode;
        for at in [0, 1] {
            assert_eq!(trajectory["steps"][at]["signals"][0]["signal"], 2, "{mode:?}: {trajectory}");
        }
        let (code, out, told) = stage.house.run(&["replay", "--of", &stage.id]);
        assert_eq!((code, out.trim_end()), (0, "the same, 2 steps"), "{mode:?}: {told}");
        assert!(told.contains("step 1 was ended as on record, signal 2 after"), "{mode:?}: {told}");
        assert!(told.contains("step 2 was ended as on record, signal 2 after"), "{mode:?}: {told}");
        stage.ok(&["jump", &stage.id, "2"]);
        // What was exported by those who did not say when it came.
        trajectory["steps"][0].as_object_mut().expect("a step").remove("signals");
        trajectory["steps"][1]["contexts"] = json!([{ "what": "interrupt", "context": "b" }]);
        let old = file(&stage, "old.json", &trajectory.to_string());
        assert_eq!(stage.ok(&["replay", &old, "--quiet"]), "the same, 2 steps", "{mode:?}");
        // Code that takes no notice is not waited for for ever.
        trajectory["steps"][0]["params"]["code"]["code"] =
            json!("trap '' INT; echo here; while :; do :; done");
        let deaf = file(&stage, "deaf.json", &trajectory.to_string());
        let (code, out, told) = stage.house.run(&["replay", &deaf]);
        assert!(code == 3 && out.contains("step 1 differs: end"), "{mode:?}: {out}{told}");
        assert!(told.contains("as it went on, killed after"), "{mode:?}: {told}");
    }
}

/// Runs a line that does not end, and sends the program a signal as soon as it has begun.
fn broken_off(stage: &Stage, line: &str, signal: &str) {
    let mut glass = stage.house.glass(&["exec", &stage.id, "--shell", "--", line]);
    let mut glass = glass.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut output = std::io::BufReader::new(glass.stdout.take().expect("it is a pipe"));
    let mut first = String::new();
    output.read_line(&mut first).expect("it writes a line");
    assert_eq!(first, "here\n", "{:?}", stage.house.mode);
    let sent = Command::new("kill").args([signal, &glass.id().to_string()]).status();
    assert!(sent.expect("it can be sent").success(), "{:?}", stage.house.mode);
    glass.wait().expect("it ends");
}

#[test]
fn commands_that_somebody_ended_are_ended_again() {
    for stage in Stage::each(&["--record", "steps"]) {
        broken_off(&stage, "echo here; exec sleep 1000", "-INT");
        broken_off(&stage, "echo here; trap '' INT TERM; exec sleep 1000", "-KILL");
        stage.sh("echo after");
        let begun = std::time::Instant::now();
        let (code, out, told) = stage.house.run(&["replay", "--of", &stage.id]);
        assert_eq!((code, out.trim_end()), (0, "the same, 3 steps"), "{:?}: {told}", stage.house.mode);
        assert!(told.contains("step 1 was ended as on record"), "{:?}: {told}", stage.house.mode);
        assert!(told.contains("step 2 was ended as on record"), "{:?}: {told}", stage.house.mode);
        assert!(begun.elapsed().as_secs() < 500, "{:?}: it waited for the command", stage.house.mode);
    }
}

#[test]
fn a_box_that_was_stopped_and_started_is_so_again() {
    for stage in Stage::each(&["--deterministic"]) {
        // Numbers of processes tell how many there were before.
        let line = "echo x >> a; sh -c 'echo $$'";
        let first = stage.sh(line);
        stage.sh("true");
        stage.ok(&["stop", &stage.id]);
        stage.ok(&["start", &stage.id]);
        let second = stage.sh(line);
        let trajectory = exported(&stage);
        assert_eq!(trajectory["steps"][2]["restarts"], 1, "{:?}: {first}, {second}", stage.house.mode);
        let run = file(&stage, "run.json", &trajectory.to_string());
        assert_eq!(stage.ok(&["replay", &run, "--quiet"]), "the same, 3 steps", "{:?}", stage.house.mode);
        assert_eq!(living(&stage), 1, "{:?}: the box of a replay goes with it", stage.house.mode);
    }
}

#[test]
fn what_knowlyr_wrote_to_files_replays_unchanged() {
    for stage in Stage::each(&[]) {
        let call = json!({ "path": "d/a.txt", "content": "hi\n" });
        let steps = |answer: &str| {
            json!({ "steps": [
                { "tool_name": "file_write", "params": call, "expected_output": answer },
                { "tool_name": "file_read", "params": { "path": "d/a.txt" }, "expected_output": "hi" },
            ], "metadata": {} })
        };
        let run = file(&stage, "a.json", &steps("已写入 3 字节到 d/a.txt").to_string());
        let said = stage.ok(&["replay", &run, "--quiet"]);
        assert!(said.ends_with("the same, 2 steps"), "{:?}: {said}", stage.house.mode);
        assert!(said.contains("ignored: knowlyr-answers in 1 place"), "{:?}: {said}", stage.house.mode);
        // The number and the path still count.
        for other in ["已写入 4 字节到 d/a.txt", "已写入 3 字节到 d/b.txt"] {
            let run = file(&stage, "other.json", &steps(other).to_string());
            assert_eq!(stage.house.run(&["replay", &run, "--quiet"]).0, 3, "{:?}: {other}", stage.house.mode);
        }
        let history = json!([
            { "step": 1, "tool": "file_write", "params": call, "output": "已写入 3 字节到 d/a.txt", "exit_code": 0 },
            { "step": 2, "tool": "shell", "params": { "command": "cat d/a.txt; exit 3" }, "output": "hi\n", "exit_code": 3 },
        ]);
        let run = file(&stage, "d.json", &history.to_string());
        let said = stage.ok(&["replay", &run, "--quiet"]);
        assert!(said.ends_with("the same, 2 steps"), "{:?}: {said}", stage.house.mode);
    }
}

#[test]
fn a_trajectory_that_was_taken_in_is_replayed_as_its_file_is() {
    for stage in Stage::each(&[]) {
        let knowlyr = json!({ "steps": [
            { "tool_name": "shell", "params": { "command": "echo hi > x.txt; cat x.txt" }, "expected_output": "hi" },
            { "tool_name": "shell", "params": { "command": "echo not compared" }, "expected_output": null },
            { "tool_name": "think", "params": {}, "expected_output": null },
        ], "metadata": { "agent": "x", "model": "m", "more": 1 } });
        let run = file(&stage, "trajectory.json", &knowlyr.to_string());
        let (code, id, told) = stage.house.run(&["trajectory", "import", &run]);
        assert_eq!((code, told.as_str()), (0, ""), "{:?}", stage.house.mode);
        let id = id.trim_end();
        let said = stage.ok(&["replay", "--of", id, "--quiet"]);
        assert_eq!(said, stage.ok(&["replay", &run, "--quiet"]), "{:?}", stage.house.mode);
        assert!(said.ends_with("the same, 3 steps"), "{:?}: {said}", stage.house.mode);
        let back = stage.ok(&["trajectory", "export", id, "--format", "knowlyr-a"]);
        assert_eq!(
            serde_json::from_str::<Value>(&back).expect("it is JSON"),
            knowlyr,
            "{:?}",
            stage.house.mode
        );
        // What looks like a secret is on no record, and that is told.
        let token = json!({ "steps": [
            { "tool_name": "shell", "params": { "command": format!("echo ghp_{}", "0123456789".repeat(4)) } },
        ] });
        let run = file(&stage, "token.json", &token.to_string());
        let (code, _, told) = stage.house.run(&["trajectory", "import", &run]);
        assert!(code == 0 && told.contains("lost: params"), "{:?}: {told}", stage.house.mode);
    }
}

#[test]
fn only_what_was_written_counts_if_that_is_asked_for() {
    for stage in Stage::each(&["--record", "steps"]) {
        stage.sh("echo one; date +%s%N > a");
        let (code, out, err) = stage.house.run(&["replay", "--of", &stage.id, "--quiet"]);
        assert_eq!(code, 3, "{:?}: {out}{err}", stage.house.mode);
        assert!(out.contains("files, /workspace/a"), "{:?}: {out}", stage.house.mode);
        let said = stage.ok(&["replay", "--of", &stage.id, "--quiet", "--output-only"]);
        assert_eq!(said, "the same, 1 step", "{:?}", stage.house.mode);
        let mut trajectory = exported(&stage);
        trajectory["steps"][0]["observed"]["output"] = json!("two\n");
        // What the box began with counts for nothing then.
        trajectory["base"]["digest"] = json!("glasshouse-tree-v1:0");
        let run = file(&stage, "run.json", &trajectory.to_string());
        let (code, out, _) = stage.house.run(&["replay", &run, "--quiet", "--output-only"]);
        assert!(code == 3 && out.contains("step 1 differs: output"), "{:?}: {out}", stage.house.mode);
    }
}
