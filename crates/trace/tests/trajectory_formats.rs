//! Every format: what its files say, what comes back, and what is lost on the way.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::PathBuf;

use glasshouse_protocol::Exit;
use glasshouse_trace::trajectory::{
    Format, Found, Shape, Text, Trajectories, Trajectory, read_one, validate, write,
};
use serde_json::{Value, json};

/// Every fixture, with its format and the steps of each trajectory in it.
const FIXTURES: [(&str, Format, &[usize]); 14] = [
    ("glasshouse.json", Format::Glasshouse, &[3]),
    ("knowlyr-a.json", Format::KnowlyrA, &[3]),
    ("knowlyr-b.jsonl", Format::KnowlyrB, &[2, 1]),
    ("knowlyr-c.json", Format::KnowlyrC, &[2]),
    ("knowlyr-d.json", Format::KnowlyrD, &[2]),
    ("knowlyr-e.jsonl", Format::KnowlyrE, &[2, 0]),
    ("swe-agent.traj", Format::SweAgent, &[3]),
    ("swe-agent-history.traj", Format::SweAgent, &[2]),
    ("swe-agent-pairs.json", Format::SweAgent, &[3]),
    ("openhands.json", Format::OpenHands, &[5]),
    ("openhands.jsonl", Format::OpenHands, &[3]),
    ("openhands-sdk.jsonl", Format::OpenHands, &[5]),
    ("atif-v1.4.json", Format::Atif, &[2]),
    ("atif-v1.7.json", Format::Atif, &[2]),
];

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/trajectories").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn trajectories(bytes: &[u8]) -> Vec<Found> {
    Trajectories::open(bytes, None).unwrap().collect::<Result<_, _>>().unwrap()
}

fn one(name: &str) -> Trajectory {
    trajectories(&fixture(name)).remove(0).trajectory
}

/// A value without what says nothing: many writers put empty texts where they know nothing.
fn meaning(value: Value) -> Value {
    let says =
        |value: &Value| !matches!(value, Value::Null) && ![json!(""), json!([]), json!({})].contains(value);
    match value {
        Value::Object(object) => object
            .into_iter()
            .map(|(key, value)| (key, meaning(value)))
            .filter(|(_, value)| says(value))
            .collect(),
        Value::Array(list) => Value::Array(list.into_iter().map(meaning).collect()),
        other => other,
    }
}

#[test]
fn every_fixture_is_told_by_its_content_and_has_nothing_wrong_with_it() {
    for (name, format, steps) in FIXTURES {
        let bytes = fixture(name);
        let file = Trajectories::open(&bytes[..], None).unwrap();
        assert_eq!(file.format(), format, "{name}");
        let found: Vec<usize> = file.map(|found| found.unwrap().trajectory.steps.len()).collect();
        assert_eq!(found, steps, "{name}");
        let validation = validate(&bytes[..], None).unwrap();
        assert_eq!(validation.problems, [], "{name}");
        assert_eq!(
            (validation.trajectories, validation.format),
            (steps.len() as u64, Some(format)),
            "{name}"
        );
    }
}

#[test]
fn a_file_comes_back_as_it_was_by_way_of_our_own_format() {
    // Those that are read only: what is written is the other shape of the same format.
    let read_only = [
        "swe-agent-history.traj",
        "swe-agent-pairs.json",
        "openhands.jsonl",
        "openhands-sdk.jsonl",
        "atif-v1.4.json",
    ];
    for (name, format, _) in FIXTURES.into_iter().filter(|(name, ..)| !read_only.contains(name)) {
        let bytes = fixture(name);
        let lines = name.ends_with(".jsonl");
        let mut again = Vec::new();
        for found in trajectories(&bytes) {
            let (ours, losses) = write(&found.trajectory, Format::Glasshouse, Shape::Document);
            assert_eq!(losses, [], "{name}");
            let (_, back) = read_one(&ours[..], None).unwrap();
            assert_eq!(back.trajectory, found.trajectory, "{name}");
            let shape = if lines { Shape::Line } else { Shape::Document };
            let (bytes, losses) = write(&back.trajectory, format, shape);
            assert_eq!(losses, [], "{name}");
            again.extend(bytes);
        }
        let values = |bytes: &[u8]| -> Vec<Value> {
            let values = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
            values.map(|value| meaning(value.unwrap())).collect()
        };
        assert_eq!(values(&again), values(&bytes), "{name}");
    }
}

#[test]
fn every_fixture_in_every_format_is_valid_and_comes_back_but_for_what_is_told() {
    for (name, from, _) in FIXTURES {
        for to in Format::ALL {
            for found in trajectories(&fixture(name)) {
                let (bytes, losses) = write(&found.trajectory, to, Shape::of(to));
                let context = format!("{name} as {to}: {}", String::from_utf8_lossy(&bytes));
                let validation = validate(&bytes[..], Some(to)).unwrap();
                assert!(validation.is_valid(), "{context}: {:?}", validation.problems);
                assert_eq!(validation.steps as usize, found.trajectory.steps.len(), "{context}");
                // Tools of the older shapes of SWE-agent are no command lines, and only those are written.
                let older = name.starts_with("swe-agent-");
                if to == from && !older || to == Format::Glasshouse {
                    assert_eq!(losses, [], "{context}");
                }
                // Read and written once more, nothing further is lost.
                let (_, back) = read_one(&bytes[..], Some(to)).unwrap();
                let (_, further) = write(&back.trajectory, to, Shape::of(to));
                assert_eq!(further, [], "{context}");
            }
        }
    }
}

#[test]
fn our_own_format_says_everything() {
    let trajectory = one("glasshouse.json");
    let step = &trajectory.steps[1];
    assert_eq!(step.observed.output, Some(Text::Base64(vec![0xff, 0, 1])));
    assert_eq!(step.extra["added_later"], json!({"by": "a newer version"}));
    let state = step.observed.state.as_ref().unwrap();
    assert_eq!(
        (state.changes[0].mode, state.changes[1].mode, state.changes_cut),
        (Some(0o644), Some(0o1777), 2)
    );
    assert_eq!(trajectory.steps[2].observed.end, Some(Exit::TimedOut));
}

#[test]
fn a_replay_file_of_knowlyr_reads_as_documented() {
    let trajectory = one("knowlyr-a.json");
    assert_eq!((trajectory.agent.as_deref(), trajectory.model.as_deref()), (Some("x"), Some("y")));
    assert_eq!(trajectory.steps[0].tool, "shell");
    assert_eq!(trajectory.steps[0].observed.output, Some("a.py\n".into()));
    assert_eq!(trajectory.steps[1].observed.output, None, "null is not checked");
    let bare: Value = json!({"steps": [{}, {"tool_name": "git"}]});
    let (_, found) = read_one(bare.to_string().as_bytes(), None).unwrap();
    assert_eq!(found.trajectory.steps[0].tool, "");
    assert!(found.trajectory.steps[0].params.is_empty());
}

#[test]
fn recorded_steps_of_knowlyr_have_their_tools_times_and_results() {
    let trajectory = one("knowlyr-b.jsonl");
    let step = &trajectory.steps[1];
    assert_eq!(
        (step.tool.as_str(), step.time_ms, step.tokens),
        ("submit", Some(1_767_261_665_250), Some(42))
    );
    assert_eq!(trajectory.task.unwrap().commit.as_deref(), Some("abc123"));
    let second = trajectories(&fixture("knowlyr-b.jsonl")).remove(1);
    assert_eq!(second.line, 2);
    assert_eq!(second.trajectory.steps[0].observed.error.as_deref(), Some("no such file"));
}

#[test]
fn actions_of_swe_agent_are_commands_in_all_three_shapes() {
    let trajectory = one("swe-agent.traj");
    assert_eq!(trajectory.steps[0].params["command"], "ls -F\n");
    assert_eq!((trajectory.steps[0].duration_us, trajectory.steps[0].observed.mixed), (Some(250_000), true));
    assert_eq!(trajectory.steps[2].tool, "submit");
    assert_eq!(trajectory.model.as_deref(), Some("gpt-x"));
    assert_eq!(trajectory.task.unwrap().id.as_deref(), Some("org__repo-1"));
    assert_eq!(trajectory.outcome.unwrap().tokens, Some(1200));

    let steps = one("swe-agent-history.traj").steps;
    assert_eq!((steps[0].tool.as_str(), &steps[0].params["command"]), ("bash", &json!("ls")));
    assert_eq!(steps[0].observed.output, Some("a.py\nb.py".into()));
    assert_eq!((steps[1].tool.as_str(), &steps[1].params["path"]), ("str_replace_editor", &json!("/x")));

    let steps = one("swe-agent-pairs.json").steps;
    assert_eq!((steps[0].tool.as_str(), steps[0].thought.as_deref()), ("open", Some("read it")));
    assert_eq!((steps[1].tool.as_str(), steps[2].tool.as_str()), ("bash", "submit"));
    assert_eq!(steps[2].observed.output, None);
}

#[test]
fn events_of_openhands_are_paired_by_their_causes() {
    let trajectory = one("openhands.json");
    let steps = &trajectory.steps;
    let tools: Vec<&str> = steps.iter().map(|step| step.tool.as_str()).collect();
    assert_eq!(tools, ["run", "fetch", "edit", "run", "finish"]);
    assert_eq!((steps[0].thought.as_deref(), steps[0].observed.exit_code), (Some("look first"), Some(0)));
    assert_eq!(steps[0].observed.output, Some("a.py".into()));
    assert_eq!(steps[1].params, json!({"url": "http://x"}).as_object().unwrap().clone());
    assert_eq!(
        (steps[2].observed.error.as_deref(), &steps[2].observed.output),
        (Some("no such file"), &None)
    );
    assert_eq!(steps[3].observed.exit_code, None, "-1 is no exit code");
    assert_eq!(trajectory.task.unwrap().description.as_deref(), Some("fix it"));
    assert_eq!(trajectory.model.as_deref(), Some("gpt-x"));

    let steps = one("openhands.jsonl").steps;
    assert_eq!((steps[0].thought.as_deref(), steps[0].observed.exit_code), (Some("run the tests"), Some(1)));
    assert_eq!(steps[1].observed.output, Some("".into()));
    assert_eq!(steps[2].observed, Default::default());
}

#[test]
fn events_of_the_openhands_sdk_are_paired_by_their_actions_and_calls() {
    let trajectory = one("openhands-sdk.jsonl");
    let steps = &trajectory.steps;
    let tools: Vec<&str> = steps.iter().map(|step| step.tool.as_str()).collect();
    assert_eq!(tools, ["terminal", "file_editor", "fetch", "terminal", "finish"]);
    assert_eq!(steps[0].thought.as_deref(), Some("look first"));
    assert_eq!(steps[0].params["command"], "ls");
    let observed = &steps[0].observed;
    assert_eq!(
        (&observed.output, observed.exit_code, observed.mixed),
        (&Some("a.py\n".into()), Some(0), true)
    );
    assert_eq!(steps[0].time_ms, Some(1_767_261_605_123));
    assert_eq!(
        (steps[1].observed.error.as_deref(), &steps[1].observed.output),
        (Some("no such file"), &None)
    );
    assert_eq!(steps[2].params, json!({"url": "http://x"}).as_object().unwrap().clone());
    assert_eq!(steps[2].observed.output, Some("<html>".into()));
    // It was never executed: only the call is known, and why not.
    assert_eq!(steps[3].params, json!({"cmd": "ls"}).as_object().unwrap().clone());
    assert_eq!(steps[3].observed.error.as_deref(), Some("there is no parameter cmd"));
    assert_eq!(steps[4].observed, Default::default());
    assert_eq!(trajectory.task.as_ref().unwrap().description.as_deref(), Some("fix it"));
    // It is the same in a list, and what has no place is kept.
    let text = String::from_utf8(fixture("openhands-sdk.jsonl")).unwrap();
    let list = format!("[{}]", text.lines().collect::<Vec<_>>().join(","));
    assert_eq!(trajectories(list.as_bytes()).remove(0).trajectory, trajectory);
    let (bytes, _) = write(&trajectory, Format::OpenHands, Shape::Document);
    let written = String::from_utf8(bytes).unwrap();
    for word in ["toolu_1", "resp-1", "LOW", "You are OpenHands.", "e-4", "TerminalAction"] {
        assert!(written.contains(word), "{word}: {written}");
    }
}

#[test]
fn each_call_of_an_atif_turn_is_a_step() {
    let trajectory = one("atif-v1.4.json");
    assert!(trajectory.steps[0].observed.mixed, "who else writes it does not say which stream it was");
    let steps = &trajectory.steps;
    assert_eq!((&steps[0].params["metric"], &steps[1].params["metric"]), (&json!("price"), &json!("volume")));
    assert_eq!(
        (&steps[0].observed.output, &steps[1].observed.output),
        (&Some("185.35".into()), &Some("1.5M".into()))
    );
    assert_eq!((steps[0].thought.as_deref(), steps[0].tokens), (Some("Two calls."), Some(600)));
    assert_eq!(trajectory.outcome.as_ref().unwrap().tokens, Some(1244));
    // It is written in a newer version, and is the same otherwise.
    let (bytes, losses) = write(&trajectory, Format::Atif, Shape::Document);
    assert_eq!(losses, []);
    let mut value: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(value["schema_version"], "ATIF-v1.7");
    value["schema_version"] = "ATIF-v1.4".into();
    let original: Value = serde_json::from_slice(&fixture("atif-v1.4.json")).unwrap();
    assert_eq!(meaning(value), meaning(original));
    assert_eq!(one("atif-v1.7.json").steps[0].observed.output, Some("a\nb".into()));
}

#[test]
fn atif_carries_all_that_we_know() {
    let trajectory = one("glasshouse.json");
    let (bytes, losses) = write(&trajectory, Format::Atif, Shape::Document);
    assert_eq!(losses, []);
    let (_, back) = read_one(&bytes[..], None).unwrap();
    assert_eq!(back.trajectory.steps[1].observed, trajectory.steps[1].observed);
    assert_eq!(back.trajectory.rules, trajectory.rules);
}

#[test]
fn what_is_lost_is_told_with_step_and_field() {
    let check = |name: &str, to: Format, expected: &[(Option<u64>, &str)]| {
        let (_, losses) = write(&one(name), to, Shape::of(to));
        let found: Vec<(Option<u64>, &str)> =
            losses.iter().map(|loss| (loss.step, loss.field.as_str())).collect();
        assert_eq!(found, expected, "{name} as {to}");
        assert!(losses.iter().all(|loss| !loss.why.is_empty()));
    };
    check(
        "knowlyr-a.json",
        Format::KnowlyrD,
        &[(None, "agent"), (None, "model"), (None, "extra.knowlyr-a"), (Some(3), "extra.knowlyr-a")],
    );
    check(
        "knowlyr-d.json",
        Format::KnowlyrA,
        &[(Some(1), "observed.exit_code"), (Some(2), "observed.exit_code")],
    );
    check("knowlyr-d.json", Format::KnowlyrB, &[]);
    check("knowlyr-d.json", Format::Atif, &[]);
    check(
        "knowlyr-d.json",
        Format::SweAgent,
        &[
            (Some(1), "tool"),
            (Some(1), "params"),
            (Some(1), "observed.exit_code"),
            (Some(2), "tool"),
            (Some(2), "observed.exit_code"),
        ],
    );
    check("knowlyr-d.json", Format::OpenHands, &[(Some(2), "tool")]);
}
