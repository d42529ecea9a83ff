//! `glass trajectory`: no box, no state directory, only files.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::json;

/// A file of the record's own tests.
fn fixture(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository");
    root.join("crates/trace/tests/fixtures/trajectories").join(name).to_str().expect("UTF-8").to_owned()
}

/// Where files of a test lie.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        Desk(glasshouse_tests::scratch())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).expect("the desk can be written");
        path.to_str().expect("UTF-8").to_owned()
    }

    /// Runs `glass trajectory` with these words: exit code, stdout, stderr.
    fn run(&self, args: &[&str]) -> (i32, String, String) {
        self.fed(args, b"")
    }

    fn fed(&self, args: &[&str], stdin: &[u8]) -> (i32, String, String) {
        let mut child = Command::new(glasshouse_tests::glass())
            .arg("trajectory")
            .args(args)
            .env_clear()
            // Nothing of it may be asked for.
            .env("GLASSHOUSE_HOME", "/no/such/home")
            .current_dir(self.0.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        // Whoever does not read its stdin closes it.
        let _ = child.stdin.take().expect("it is piped").write_all(stdin);
        let output = child.wait_with_output().expect("the program ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
    }

    /// A trajectory of our own with these outputs.
    fn outputs(&self, name: &str, outputs: &[&str]) -> String {
        let step =
            |output: &&str| json!({"tool": "exec", "params": {"shell": "x"}, "observed": {"output": output}});
        let steps: Vec<Value> = outputs.iter().map(step).collect();
        self.write(name, json!({"format": "glasshouse-trajectory", "version": 1, "steps": steps}).to_string())
    }
}

#[test]
fn convert_writes_the_other_format_and_tells_what_is_lost() {
    let desk = Desk::new();
    let (code, stdout, stderr) = desk.run(&["convert", &fixture("glasshouse.json"), "--to", "knowlyr-a"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(json(&stdout)["steps"][0]["tool_name"], "exec");
    assert!(stderr.contains("lost: observed.state of 2 steps, the first is 1"), "{stderr}");
    assert!(stderr.contains("lost: base: knowlyr-a has no place for it"), "{stderr}");
    let out = desk.path("out.json");
    let args = [
        "convert",
        &fixture("glasshouse.json"),
        "--to",
        "knowlyr-a",
        "--json",
        "-o",
        out.to_str().unwrap_or(""),
    ];
    let (code, report, stderr) = desk.run(&args);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let report = json(&report);
    assert_eq!(
        (&report["from"], &report["to"], &report["steps"]),
        (&json!("glasshouse"), &json!("knowlyr-a"), &json!(3))
    );
    let lost = report["lost"].as_array().expect("a list");
    let wanted =
        json!({"trajectory": 1, "step": 3, "field": "observed.end", "why": "knowlyr-a has no place for it"});
    assert!(lost.contains(&wanted), "{report}");
    assert_eq!(std::fs::read_to_string(&out).expect("it was written"), stdout);
}

#[test]
fn convert_goes_there_and_back_and_keeps_lines() {
    let desk = Desk::new();
    let (_, ours, stderr) = desk.run(&["convert", &fixture("knowlyr-b.jsonl"), "--to", "glasshouse"]);
    assert_eq!((ours.lines().count(), stderr.as_str()), (2, ""));
    let (code, theirs, stderr) = desk.fed(&["convert", "-", "--to", "knowlyr-b"], ours.as_bytes());
    assert_eq!((code, theirs.lines().count(), stderr.as_str()), (0, 2, ""));
    let (code, _, stderr) = desk.fed(&["convert", "-", "--to", "openhands"], ours.as_bytes());
    assert_eq!(code, 1);
    assert!(stderr.contains("several trajectories"), "{stderr}");
}

#[test]
fn a_conversion_that_fails_leaves_nothing() {
    let desk = Desk::new();
    let text = std::fs::read(fixture("knowlyr-b.jsonl")).expect("the fixture is there");
    let torn = desk.write("torn.jsonl", &text[..text.len() - 9]);
    let out = desk.write("out.jsonl", "what was there");
    let (code, stdout, stderr) = desk.run(&["convert", &torn, "--to", "glasshouse", "-o", &out]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("torn.jsonl") && stderr.contains("line 2"), "{stderr}");
    assert_eq!(std::fs::read_to_string(&out).expect("it is there"), "what was there");
    let left = std::fs::read_dir(desk.0.path()).expect("the desk can be listed").count();
    assert_eq!(left, 2);
}

#[test]
fn validate_tells_every_problem_and_its_verdict() {
    let desk = Desk::new();
    let (code, stdout, _) = desk.run(&["validate", &fixture("openhands.jsonl")]);
    assert_eq!(code, 0);
    assert!(stdout.ends_with("openhands.jsonl is valid: openhands, 1 trajectory, 3 steps\n"), "{stdout}");
    let bad =
        desk.write("bad.json", "{\"steps\": [\n{\"tool_name\": 1},\n{\"tool_name\": \"x\", \"params\": 2}]}");
    let (code, stdout, _) = desk.run(&["validate", &bad]);
    assert_eq!(code, 1);
    assert!(
        stdout.contains("line 2, step 1, steps[0].tool_name: expected a string, found a number\n"),
        "{stdout}"
    );
    assert!(stdout.contains("line 3, step 2, steps[1].params: expected an object"), "{stdout}");
    let (code, stdout, _) = desk.run(&["validate", &bad, "--json"]);
    let problems = &json(&stdout)["problems"];
    assert_eq!((code, &problems[1]["line"], &problems[1]["step"]), (1, &json!(3), &json!(2)));
    for (content, word) in [
        ("", "nothing"),
        ("{}", "looked for"),
        ("[1,", "cut off"),
        ("[[]", "cut off"),
        ("\u{1b}[2J", "no JSON"),
    ] {
        let (code, stdout, _) = desk.fed(&["validate", "-"], content.as_bytes());
        assert!(code == 1 && stdout.contains(word) && stdout.contains("NOT valid"), "{content:?}: {stdout}");
        let (code, stdout, _) = desk.fed(&["validate", "-", "--json"], content.as_bytes());
        assert_eq!((code, &json(&stdout)["valid"]), (1, &json!(false)));
    }
    let (code, _, stderr) = desk.run(&["validate", "no-such-file"]);
    assert!(code == 1 && stderr.contains("no-such-file"), "{stderr}");
}

#[test]
fn schema_prints_a_schema_for_each_format() {
    let desk = Desk::new();
    let (code, stdout, _) = desk.run(&["schema"]);
    assert_eq!((code, &json(&stdout)["properties"]["format"]["const"]), (0, &json!("glasshouse-trajectory")));
    for format in ["knowlyr-a", "knowlyr-e", "swe-agent", "openhands", "atif"] {
        let (code, stdout, _) = desk.run(&["schema", format]);
        assert!(code == 0 && json(&stdout)["title"].is_string(), "{format}");
    }
    let (code, _, stderr) = desk.run(&["schema", "nonsense"]);
    assert!(code == 2 && stderr.contains("swe-agent"), "{stderr}");
}

#[test]
fn diff_names_the_first_step_that_differs() {
    let desk = Desk::new();
    let a = desk.outputs("a.json", &["one\n", "two\nthree\n", "four\n"]);
    let b = desk.outputs("b.json", &["one\n", "two\nTHREE\n", "five\n"]);
    let (code, stdout, stderr) = desk.run(&["diff", &a, &b]);
    assert_eq!((code, stderr.as_str()), (3, ""));
    let expected =
        format!("step 2 differs: output\n--- {a}\n+++ {b}\n@@ -1,2 +1,2 @@\n two\n-three\n+THREE\n");
    assert_eq!(stdout, expected);
    let (code, stdout, _) = desk.run(&["diff", &a, &b, "--json"]);
    let report = json(&stdout);
    assert_eq!((code, &report["same"], &report["divergence"]["step"]), (3, &json!(false), &json!(2)));
    assert_eq!(report["divergence"]["differences"][0]["what"], "output");
}

#[test]
fn diff_says_same_and_what_it_ignored() {
    let desk = Desk::new();
    let a = desk.outputs("a.json", &["at 05:26:23\n", "in 0.03s\n"]);
    let b = desk.outputs("b.json", &["at 05:26:24\n", "in 0.04s\n"]);
    let (code, stdout, _) = desk.run(&["diff", &a, &b]);
    assert_eq!(code, 0);
    assert!(stdout.starts_with("same: 2 steps, with 2 places ignored\n"), "{stdout}");
    assert!(
        stdout.contains(
            "ignored: times in 1 place, first at step 1, output, line 1: \"05:26:23\" and \"05:26:24\"\n"
        ),
        "{stdout}"
    );
    assert_eq!(desk.run(&["diff", &a, &b, "--strict"]).0, 3);
    assert_eq!(desk.run(&["diff", &a, &b, "--no-rule", "times"]).0, 3);
    let spaced = desk.outputs("c.json", &["at 05:26:23\n\n", "in 0.03s\n"]);
    assert_eq!(desk.run(&["diff", &a, &spaced]).0, 3);
    assert_eq!(desk.run(&["diff", &a, &spaced, "--rule", "edges"]).0, 0);
    assert_eq!(desk.run(&["diff", &a, &a, "--strict"]), (0, "same: 2 steps\n".to_owned(), String::new()));
    let (code, stdout, _) = desk.run(&["diff", &a, &b, "--json"]);
    assert_eq!((code, &json(&stdout)["ignored"][1]["rule"]), (0, &json!("durations")));
}

#[test]
fn files_of_strangers_do_nothing_to_the_terminal() {
    let desk = Desk::new();
    let a = desk.outputs("a.json", &["\u{1b}]0;evil\u{7}\n"]);
    let b = desk.outputs("b.json", &["\u{1b}[2J\u{202e}x\n"]);
    for args in [["diff", &a, &b], ["diff", &b, &a]] {
        let (code, stdout, stderr) = desk.run(&args);
        assert_eq!(code, 3);
        assert!(
            !stdout.contains(['\u{1b}', '\u{7}', '\u{202e}']) && !stderr.contains('\u{1b}'),
            "{stdout:?}"
        );
    }
    let (_, stdout, _) = desk.run(&["diff", &a, &b, "--json"]);
    assert!(!stdout.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{stdout:?}");
}
