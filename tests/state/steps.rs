//! What is on record of each step.

use std::os::unix::fs::MetadataExt as _;
use std::process::Stdio;

use serde_json::Value;

use crate::stage::Stage;

/// The events of a kind in a box's record.
fn events(stage: &Stage, kind: &str) -> Vec<Value> {
    let lines = stage.ok(&["log", &stage.id, "--json"]);
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line is JSON"));
    lines.map(|line| line["event"].clone()).filter(|event| event["type"] == kind).collect()
}

/// What a step changed: a letter and a path each.
fn changes(stage: &Stage, step: &Value) -> Vec<String> {
    let list = &step["state"]["changes"];
    let text = match list["head"]["text"].as_str() {
        Some(text) => text.to_owned(),
        None if list.is_null() => return Vec::new(),
        None => {
            let hash = list["head"]["blob"]["hash"].as_str().expect("a payload is text or a blob");
            let blob = stage.house.home().join("blobs").join(&hash[..2]).join(&hash[2..]);
            std::fs::read_to_string(blob).expect("a blob can be read")
        }
    };
    let list: Vec<Value> = serde_json::from_str(&text).expect("changes are a list");
    let told = |change: &Value| {
        let facts = &change["now"];
        let letter = &change["change"].as_str().expect("a word")[..1];
        let path = change["path"].as_str().expect("a path");
        format!("{letter} {path} {}", facts["text"].as_str().or(facts["kind"].as_str()).unwrap_or("-"))
    };
    list.iter().map(told).collect()
}

#[test]
fn a_step_tells_what_it_changed() {
    for stage in Stage::each(&["--record", "steps"]) {
        stage.sh("echo one > a; mkdir d; ln -s a l; printf '\\377' > raw");
        stage.sh("echo two > a; rm -r d; chmod 600 raw");
        stage.sh("true");
        let steps = events(&stage, "step");
        let told: Vec<Vec<String>> = steps.iter().map(|step| changes(&stage, step)).collect();
        let first = [
            "a /workspace/a one\n",
            "a /workspace/d directory",
            "a /workspace/l symlink",
            "a /workspace/raw file",
        ];
        assert_eq!(told[0], first, "{:?}", stage.house.mode);
        let second = ["c /workspace/a two\n", "r /workspace/d -", "c /workspace/raw file"];
        assert_eq!(told[1], second, "{:?}", stage.house.mode);
        assert!(told[2].is_empty(), "{:?}: {told:?}", stage.house.mode);
        // The digest on record is the one that anybody can take.
        let digest = stage.ok(&["digest", &stage.id]);
        for step in &steps[1..] {
            assert_eq!(step["state"]["digest"], digest.as_str(), "{:?}", stage.house.mode);
        }
        assert_ne!(steps[0]["state"]["digest"], digest.as_str());
        stage.ok(&["log", &stage.id, "--verify"]);
    }
}

#[test]
fn a_box_that_was_put_back_is_compared_with_where_it_was_put() {
    for stage in Stage::each(&["--record", "steps"]) {
        stage.sh("echo one > a");
        let snapshot = stage.snapshot();
        stage.sh("echo two > b");
        stage.ok(&["restore", &stage.id, &snapshot]);
        stage.sh("echo three > c");
        stage.ok(&["reset", &stage.id]);
        stage.sh("true");
        let steps = events(&stage, "step");
        let told: Vec<Vec<String>> = steps.iter().map(|step| changes(&stage, step)).collect();
        assert_eq!(told[1], ["a /workspace/b two\n"], "{:?}", stage.house.mode);
        assert_eq!(told[2], ["a /workspace/c three\n"], "{:?}", stage.house.mode);
        assert!(told[3].is_empty(), "{:?}: {told:?}", stage.house.mode);
        // It is as it began.
        let base = &events(&stage, "base")[0];
        assert_eq!(steps[3]["state"]["digest"], base["digest"], "{:?}", stage.house.mode);
    }
}

#[test]
fn processes_that_are_left_are_counted() {
    for stage in Stage::each(&["--record", "steps"]) {
        stage.sh("true");
        stage.sh("(setsid sleep 1000 &) >/dev/null 2>&1 </dev/null");
        stage.ok(&["exec", &stage.id, "--background", "--", "sleep", "1000"]);
        let left: Vec<usize> = events(&stage, "step")
            .iter()
            .map(|step| step["state"]["processes"].as_array().map_or(0, Vec::len))
            .collect();
        assert_eq!(left, [0, 1, 2], "{:?}", stage.house.mode);
    }
}

#[test]
fn who_is_left_waits_for_something_or_is_told_to_be_at_work() {
    let work = "echo a > a; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo b > b";
    for stage in Stage::each(&["--record", "steps"]) {
        let background = |line: &str| {
            stage.ok(&["exec", &stage.id, "--background", "--shell", "--", line]);
            events(&stage, "step").pop().expect("it is a step")
        };
        // Whether it ends before anybody looks is a matter of chance; here it never does unless it is waited for.
        let step = background(work);
        if step["state"]["at_work"].is_null() {
            assert_eq!(step["state"]["processes"], Value::Null, "{:?}", stage.house.mode);
            assert_eq!(changes(&stage, &step), ["a /workspace/a a\n", "a /workspace/b b\n"]);
        }
        let step = background("echo c > c; exec sleep 1000");
        let processes = &step["state"]["processes"];
        if step["state"]["at_work"].is_null() {
            assert_eq!(processes[0], "sleep 1000", "{:?}: {processes}", stage.house.mode);
            assert_eq!(changes(&stage, &step), ["a /workspace/c c\n"], "{:?}", stage.house.mode);
        }
        // One that never comes to rest is not waited for without end, and not again and again.
        for _ in 0..2 {
            let step = background("while :; do :; done");
            assert_eq!(step["state"]["at_work"], true, "{:?}: {step}", stage.house.mode);
        }
    }
}

#[test]
fn programs_that_work_in_one_box_at_once_get_numbers_of_their_own() {
    for stage in Stage::each(&["--record", "steps"]) {
        let start = |n: usize| {
            let line = format!("echo {n} > f{n}");
            let mut glass = stage.house.glass(&["exec", &stage.id, "--shell", "--", &line]);
            glass.stdout(Stdio::null()).spawn().expect("glass starts")
        };
        let running: Vec<_> = (0..8).map(start).collect();
        for mut glass in running {
            assert!(glass.wait().expect("it ends").success(), "{:?}", stage.house.mode);
        }
        let mut steps = events(&stage, "step");
        steps.sort_by_key(|step| step["step"].as_u64());
        let numbers: Vec<u64> = steps.iter().map(|step| step["step"].as_u64().unwrap()).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8], "{:?}", stage.house.mode);
        // Each file was added once, in one of the steps: of its own program, or of another that was looked at while it was
        // there and still empty. Then it changed once more.
        let told: Vec<String> = steps.iter().flat_map(|step| changes(&stage, step)).collect();
        for n in 0..8 {
            let of: Vec<&String> =
                told.iter().filter(|told| told.contains(&format!("/workspace/f{n} "))).collect();
            let whole = |letter: &str| format!("{letter} /workspace/f{n} {n}\n");
            let at_once = of == [&whole("a")];
            let begun = of == [&format!("a /workspace/f{n} "), &whole("c")];
            assert!(at_once || begun, "{:?}: {of:?}", stage.house.mode);
        }
    }
}

#[test]
fn a_snapshot_of_each_step_is_kept_as_long_as_the_box() {
    for stage in Stage::each(&["--record", "snapshots"]) {
        stage.sh("echo one > a");
        stage.sh("echo two > a");
        // They are many, and nobody asked for them by name.
        assert_eq!(stage.json(&["snapshots"]), serde_json::json!([]), "{:?}", stage.house.mode);
        let kept = stage.json(&["snapshots", "--all"]);
        assert_eq!(kept.as_array().map(Vec::len), Some(2));
        assert_eq!((&kept[0]["step"], &kept[1]["step"]), (&1.into(), &2.into()), "{kept}");
        let steps = events(&stage, "step");
        stage.ok(&["restore", &stage.id, steps[0]["snapshot"].as_str().expect("a snapshot")]);
        assert_eq!(stage.sh("cat a"), "one");
        let states = events(&stage, "state");
        assert_eq!(states.last().expect("it was restored")["step"], 1);
        stage.ok(&["kill", &stage.id]);
        assert_eq!(stage.json(&["snapshots", "--all"]), serde_json::json!([]), "{:?}", stage.house.mode);
        assert!(stage.layers().is_empty(), "{:?}: {:?}", stage.house.mode, stage.layers());
    }
}

#[test]
fn snapshots_of_steps_that_outlived_their_box_are_found() {
    for stage in Stage::each(&["--record", "snapshots"]) {
        stage.sh("echo one > a");
        // As if whoever removed the box had been killed before he came to them.
        let kept = stage.json(&["snapshots", "--all"])[0]["id"].as_str().expect("an id").to_owned();
        let record = stage.house.home().join("snapshots").join(format!("{kept}.json"));
        let (bytes, meta) =
            (std::fs::read(&record).expect("it is there"), record.metadata().expect("it is there"));
        stage.ok(&["kill", &stage.id]);
        std::fs::write(&record, bytes).expect("the house is ours");
        std::os::unix::fs::chown(&record, Some(meta.uid()), Some(meta.gid())).expect("it is ours");
        stage.ok(&["gc"]);
        assert!(!record.exists(), "{:?}", stage.house.mode);
    }
}

#[test]
fn a_box_that_records_commands_has_no_steps() {
    for stage in Stage::each(&[]) {
        stage.sh("echo one > a");
        assert!(events(&stage, "step").is_empty(), "{:?}", stage.house.mode);
    }
}

#[test]
fn secrets_that_a_step_writes_to_files_are_on_no_record() {
    const SECRET: &str = "swordfish-7766-and-more";
    for stage in Stage::each(&["--record", "steps", "--env", &format!("KEY={SECRET}")]) {
        stage.sh("echo key is $KEY > a; echo $KEY | base64 > b; ln -s $KEY c; mkdir x$KEY");
        let home = stage.house.home();
        for dir in ["traces", "blobs"] {
            let found = grep(&home.join(dir), SECRET.as_bytes());
            assert!(found.is_empty(), "{:?}: {found:?}", stage.house.mode);
        }
    }
}

#[test]
fn parts_of_a_secret_where_a_tool_cuts_are_on_no_record() {
    const SECRET: &str = "Qv7xT2mK9pLr4Wz8Yb3Nc6Hd1Jf5Gs0Ea-Uo_iXq7Rt2Vw9B";
    let token = format!("TOK={SECRET}");
    for stage in Stage::each(&["--record", "steps", "--env", &token]) {
        let call = |tool: &str, params: Value| {
            stage.ok(&["exec", &stage.id, "--tool", tool, "--params", &params.to_string()]);
        };
        let fill = |count: usize| format!("head -c {count} /dev/zero | tr '\\0' x");
        let line = format!(
            "{}; printf %s $TOK; {}; printf %s $TOK; {}",
            fill(131_050),
            fill(400_000),
            fill(131_045)
        );
        call("shell", serde_json::json!({ "command": line }));
        stage.sh(&format!("({}; echo; {}; echo $TOK) > a", fill(100), fill(262_009)));
        call("file_read", serde_json::json!({ "path": "a" }));
        stage.sh(&format!("({}; printf %s $TOK; {}) > b", fill(980), fill(500)));
        call("search", serde_json::json!({ "pattern": "x", "path": "b" }));
        let home = stage.house.home();
        for (dir, part) in ["traces", "blobs"]
            .iter()
            .flat_map(|dir| SECRET.as_bytes().windows(8).step_by(4).map(move |part| (dir, part)))
        {
            let found = grep(&home.join(dir), part);
            assert!(found.is_empty(), "{:?}: {}: {found:?}", stage.house.mode, String::from_utf8_lossy(part));
        }
    }
}

#[test]
fn what_matches_a_pattern_is_on_no_record() {
    const SECRET: &str = "corp-4711-0815";
    let options = [
        "--record",
        "steps",
        "--redact",
        "corp-[0-9-]+",
        "--redact",
        "password: (?P<secret>\\S+)",
        "--label",
        "k=v",
    ];
    for stage in Stage::each(&options) {
        // The pattern goes on with the box, whoever uses it.
        stage.sh(&format!("echo {SECRET} | tee a; ln -s {SECRET} b; echo password: hunter2x >&2"));
        let call = format!(r#"{{"path": "c", "content": "it is {SECRET}\n"}}"#);
        stage.ok(&["exec", &stage.id, "--tool", "file_write", "--params", &call]);
        let fork = stage.ok(&["fork", &stage.id]);
        stage.sh_in(&fork, &format!("echo {SECRET}"));
        stage.ok(&["stop", &stage.id]);
        stage.ok(&["start", &stage.id]);
        stage.sh(&format!("cat a; test -n {SECRET}"));
        let home = stage.house.home();
        for dir in ["traces", "blobs"] {
            for secret in [SECRET, "hunter2x"] {
                let found = grep(&home.join(dir), secret.as_bytes());
                assert!(found.is_empty(), "{:?}: {secret} in {found:?}", stage.house.mode);
            }
        }
        let log = stage.ok(&["log", &stage.id]);
        assert!(log.contains("password: [redacted]"), "{:?}: {log}", stage.house.mode);
    }
}

/// Files below a directory that hold these bytes.
fn grep(dir: &std::path::Path, wanted: &[u8]) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("it is a directory") {
        let path = entry.expect("it can be read").path();
        match path.is_dir() {
            true => found.extend(grep(&path, wanted)),
            false => {
                let bytes = std::fs::read(&path).expect("it can be read");
                if bytes.windows(wanted.len()).any(|part| part == wanted) {
                    found.push(path);
                }
            }
        }
    }
    found
}

#[test]
fn the_page_of_a_record_runs_nothing() {
    for stage in Stage::each(&["--record", "steps"]) {
        stage.sh("echo '<script>alert(1)</script><img src=x onerror=alert(2)>' | tee '<b>&.txt'");
        let page = stage.ok(&["log", &stage.id, "--html", "-"]);
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{:?}", stage.house.mode);
        assert!(page.contains("/workspace/&lt;b&gt;&amp;.txt"), "{:?}", stage.house.mode);
        assert!(!page.contains("<script") && !page.contains("<img"), "{:?}", stage.house.mode);
        assert!(page.contains("default-src 'none'"), "{:?}", stage.house.mode);
    }
}

#[test]
fn what_a_caller_does_to_files_is_a_step_too() {
    for stage in Stage::each(&["--record", "steps"]) {
        let file = stage.house.home().join("in.txt");
        std::fs::write(&file, "from outside\n").expect("it can be written");
        stage.ok(&["cp", file.to_str().expect("it is UTF-8"), &format!("{}:/workspace/in.txt", stage.id)]);
        stage.sh("cat in.txt");
        let steps = events(&stage, "step");
        assert_eq!(steps[0]["tool"], "file", "{:?}", stage.house.mode);
        assert_eq!(
            changes(&stage, &steps[0]),
            ["a /workspace/in.txt from outside\n"],
            "{:?}",
            stage.house.mode
        );
        assert!(changes(&stage, &steps[1]).is_empty(), "{:?}", stage.house.mode);
    }
}
