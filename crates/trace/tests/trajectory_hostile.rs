//! Files of strangers: broken, cut off, huge, nested, of other versions. Each is refused with its line, or read;
//! nothing panics and nothing takes more than it may.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufReader, Read};
use std::path::PathBuf;

use glasshouse_trace::ErrorKind;
use glasshouse_trace::trajectory::{Format, Shape, Step, Trajectories, limits, read_one, validate, write};
use serde_json::{Value, json};

/// Mutated files that are tried of each fixture.
const MUTATIONS: u64 = 30;

fn fixtures() -> Vec<(String, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/trajectories");
    let mut found: Vec<(String, Vec<u8>)> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect();
    found.sort();
    assert!(found.len() >= 13);
    found
}

/// Why a file is refused.
fn refusal(bytes: &[u8]) -> (ErrorKind, String) {
    let error = match Trajectories::open(bytes, None) {
        Err(e) => e,
        Ok(file) => match file.collect::<Result<Vec<_>, _>>() {
            Err(e) => e,
            Ok(_) => panic!("it was read: {}", String::from_utf8_lossy(bytes)),
        },
    };
    (error.kind, error.message)
}

/// Reads it in every way, and writes what was read in every format.
fn try_all(bytes: &[u8]) {
    for format in [None].into_iter().chain(Format::ALL.map(Some)) {
        let _ = validate(bytes, format);
        let Ok(file) = Trajectories::open(bytes, format) else { continue };
        for found in file.map_while(Result::ok) {
            for to in Format::ALL {
                let (written, _) = write(&found.trajectory, to, Shape::of(to));
                assert!(
                    validate(&written[..], Some(to)).unwrap().is_valid(),
                    "{}",
                    String::from_utf8_lossy(&written)
                );
            }
        }
    }
}

/// A small generator, so that a failure comes back every time.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_refused_with_its_line() {
    for (name, bytes) in fixtures().into_iter().filter(|(name, _)| !name.ends_with(".jsonl")) {
        let whole = bytes.trim_ascii_end().len();
        for end in (0..whole).step_by(7) {
            let (kind, message) = refusal(&bytes[..end]);
            assert_eq!(kind, ErrorKind::Invalid, "{name} at {end}: {message}");
            assert!(message.contains("line "), "{name} at {end}: {message}");
        }
    }
}

#[test]
fn a_torn_line_is_refused_and_the_lines_before_it_are_read() {
    let (_, bytes) = fixtures().into_iter().find(|(name, _)| name == "knowlyr-b.jsonl").unwrap();
    let mut file = Trajectories::open(&bytes[..bytes.len() - 20], None).unwrap();
    assert!(file.next().unwrap().is_ok());
    let message = file.next().unwrap().unwrap_err().message;
    assert!(message.contains("line 2") && message.contains("cut off"), "{message}");
    assert!(file.next().is_none());
    let validation = validate(&bytes[..bytes.len() - 20], None).unwrap();
    assert!(!validation.is_valid() && validation.trajectories == 1);
}

#[test]
fn mutated_files_are_read_or_refused_and_never_more() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for (_, bytes) in fixtures() {
        for _ in 0..MUTATIONS {
            let mut bytes = bytes.clone();
            for _ in 0..=random.next(3) {
                let at = random.next(bytes.len());
                let end = (at + random.next(40)).min(bytes.len());
                match random.next(5) {
                    0 => bytes[at] = random.next(256) as u8,
                    1 => drop(bytes.drain(at..end)),
                    2 => {
                        let part = bytes[at..end].to_vec();
                        let to = random.next(bytes.len());
                        bytes.splice(to..to, part);
                    }
                    3 => drop(bytes.splice(at..at, *b"\"},{\"")),
                    _ => bytes[at] ^= 1 << random.next(8),
                }
                if bytes.is_empty() {
                    break;
                }
            }
            try_all(&bytes);
        }
    }
}

/// Puts an odd value somewhere, at this depth at the most.
fn spoil(value: &mut Value, depth: usize, odd: &[Value], random: &mut Random) {
    let next = match value {
        _ if depth == 0 => None,
        Value::Object(object) => {
            let at = random.next(object.len());
            object.values_mut().nth(at)
        }
        Value::Array(list) => {
            let at = random.next(list.len());
            list.get_mut(at)
        }
        _ => None,
    };
    match next {
        Some(next) => spoil(next, depth - 1, odd, random),
        None => *value = odd[random.next(odd.len())].clone(),
    }
}

#[test]
fn values_of_the_wrong_type_anywhere_are_read_or_refused_and_never_more() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let odd = [
        json!(null),
        json!(true),
        json!(-1),
        json!(1e300),
        json!(u64::MAX),
        json!(""),
        json!("before"),
        json!([]),
        json!({}),
        json!([[1]]),
        json!({"text": 7}),
        json!("\u{0}\u{feff}"),
        json!([{"at": 0, "event": 7, "turn": 7}]),
    ];
    for (_, bytes) in fixtures() {
        let first =
            serde_json::Deserializer::from_slice(&bytes).into_iter::<Value>().next().unwrap().unwrap();
        for _ in 0..MUTATIONS {
            let mut value = first.clone();
            let depth = random.next(9);
            spoil(&mut value, depth, &odd, &mut random);
            try_all(value.to_string().as_bytes());
        }
    }
}

#[test]
fn what_was_kept_of_other_formats_may_be_anything() {
    for format in Format::ALL {
        for odd in [
            json!(7),
            json!({"result": 7, "call": [], "args": 1, "events": [7, {"at": -1}], "turns": [3, {}]}),
        ] {
            let file = json!({
                "format": "glasshouse-trajectory", "version": 1, format.name(): odd,
                "task": {format.name(): odd}, "outcome": {format.name(): odd},
                "steps": [{"tool": "t", format.name(): odd}, {"tool": "run", format.name(): odd}],
            });
            try_all(file.to_string().as_bytes());
        }
    }
}

/// Bytes without end, and how many of them were asked for.
struct Endless<'a> {
    start: &'a [u8],
    then: u8,
    given: u64,
}

impl Read for Endless<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        for byte in out.iter_mut() {
            *byte = match self.start.split_first() {
                Some((first, rest)) => {
                    self.start = rest;
                    *first
                }
                None => self.then,
            };
        }
        self.given += out.len() as u64;
        Ok(out.len())
    }
}

#[test]
fn a_document_without_end_is_refused_at_the_limit() {
    let most = limits::DOCUMENT_BYTES_MAX as u64;
    for (start, then) in [("{\"steps\": \"", b'x'), ("{\n\"steps\": [", b'\n'), ("{\"a\":", b' ')] {
        let mut input = Endless { start: start.as_bytes(), then, given: 0 };
        let error = Trajectories::open(BufReader::new(&mut input), None).map(drop).unwrap_err();
        assert_eq!(error.kind, ErrorKind::TooLarge);
        assert!(error.message.contains("64 MiB"), "{}", error.message);
        assert!(input.given < most + 1024 * 1024, "{} bytes were read", input.given);
    }
}

#[test]
fn lines_are_read_one_by_one() {
    let line = br#"{"steps": [{"tool_name": "shell"}]}"#;
    let mut input = Endless { start: &[line.as_slice(), b"\n", line, b"\n"].concat(), then: b'x', given: 0 };
    let mut file = Trajectories::open(BufReader::new(&mut input), None).unwrap();
    assert!(file.next().unwrap().is_ok());
    assert!(file.next().unwrap().is_ok());
    drop(file);
    assert!(input.given < 64 * 1024, "{} bytes were read for two lines", input.given);
}

#[test]
fn nesting_bytes_and_numbers_are_refused_with_their_line() {
    let check = |bytes: &[u8], kind: ErrorKind, words: &[&str]| {
        let (found, message) = refusal(bytes);
        assert_eq!(found, kind, "{message}");
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    let invalid = ErrorKind::Invalid;
    check(b"", invalid, &["nothing"]);
    check(b"\n \n", invalid, &["nothing"]);
    check("[".repeat(1_000_000).as_bytes(), invalid, &["nested", "line 1"]);
    check(&[b"{\"a\":".repeat(1_000_000), b"1".to_vec()].concat(), invalid, &["nested"]);
    check(b"{\n\"steps\": [\n\"\xff\"]}", invalid, &["UTF-8", "line 3"]);
    check(b"{\"a\": 1e999}", invalid, &["out of range"]);
    check(b"{\n\"a\": 1,\n\n\"a\": 2}", invalid, &["twice", "line 4"]);
    check(b"hello", invalid, &["no JSON"]);
    check(b"\x7fELF\x02\x01", invalid, &["line 1"]);
    check(b"{}", ErrorKind::Unknown, &["knowlyr-a", "swe-agent"]);
    let version = |version: Value| {
        json!({"format": "glasshouse-trajectory", "version": version, "steps": []}).to_string()
    };
    check(version(json!(2)).as_bytes(), invalid, &["version", "2"]);
    check(version(json!("1")).as_bytes(), invalid, &["version", "whole number"]);
    check(
        br#"{"schema_version": "ATIF-v2.0", "agent": {"name": "a", "version": "1"}, "steps": []}"#,
        invalid,
        &["ATIF-v2.0"],
    );
    check(br#"{"steps": [{"tool_name": 7}]}"#, invalid, &["step 1", "steps[0].tool_name", "a string"]);
    // A mark at the start, as some editors leave it, is no fault.
    assert!(read_one(&b"\xef\xbb\xbf{\"steps\": []}"[..], None).is_ok());
}

#[test]
fn every_problem_of_a_file_is_told_with_line_and_step() {
    let file = "{\n\"format\": \"glasshouse-trajectory\", \"version\": 1,\n\"steps\": [\n {\"tool\": 1},\n \
        {\"tool\": \"t\",\n  \"observed\": {\"exit_code\": 99999999999}},\n {\"tool\": \"t\", \"observed\": {\"output\": {\"base64\": \"?\"}}}\n]}";
    let validation = validate(file.as_bytes(), None).unwrap();
    let found: Vec<(Option<u64>, Option<u64>, &str)> = validation
        .problems
        .iter()
        .map(|problem| (problem.line, problem.step, problem.path.as_str()))
        .collect();
    assert_eq!(
        found,
        [(Some(4), Some(1), "steps[0].tool"), (Some(6), Some(2), "steps[1].observed.exit_code"),]
    );
    // What the types say is told when the shape is right.
    let fixed = file.replace("{\"tool\": 1}", "{\"tool\": \"t\"}").replace("99999999999", "9");
    let validation = validate(fixed.as_bytes(), None).unwrap();
    assert_eq!(
        (validation.problems.len(), validation.problems[0].step, validation.problems[0].line),
        (1, Some(3), Some(7))
    );
}

#[test]
fn problems_are_counted_when_there_are_too_many() {
    let steps: Vec<Value> = (0..5000).map(|_| json!({"tool_name": 7})).collect();
    let validation = validate(json!({"steps": steps}).to_string().as_bytes(), None).unwrap();
    assert_eq!(validation.problems.len(), limits::PROBLEMS_MAX);
    assert_eq!(validation.untold, 5000 - limits::PROBLEMS_MAX as u64);
    let lines = r#"{"steps": [{"tool_name": 7}]}"#.to_owned() + "\n";
    let validation = validate(lines.repeat(500).as_bytes(), None).unwrap();
    assert_eq!((validation.problems.len(), validation.untold, validation.trajectories), (100, 400, 500));
}

#[test]
fn more_steps_than_there_may_be_are_refused() {
    let many = |step: &'static str| vec![step; limits::STEPS_MAX + 1];
    let a = format!("{{\"steps\": [{}]}}", many("{\"tool_name\":\"t\"}").join(","));
    let d = format!("[{}]", many("{\"tool\":\"t\"}").join(","));
    let events = many("{\"action\":\"run\"}").join("\n");
    for (name, file) in [("a", a), ("d", d), ("events", events)] {
        let (kind, message) = refusal(file.as_bytes());
        assert_eq!(kind, ErrorKind::Invalid, "{name}: {message}");
        assert!(message.contains("100000"), "{name}: {message}");
    }
}

#[test]
fn a_turn_with_very_many_calls_takes_no_longer_for_that() {
    let calls: Vec<Value> = (0..20_000)
        .map(|n| json!({"tool_call_id": format!("c{n}"), "function_name": "f", "arguments": {}}))
        .collect();
    let results: Vec<Value> =
        (0..20_000).rev().map(|n| json!({"source_call_id": format!("c{n}"), "content": "x"})).collect();
    let file = json!({
        "schema_version": "ATIF-v1.7", "agent": {"name": "a", "version": "1"},
        "steps": [{"step_id": 1, "source": "agent", "message": "", "tool_calls": calls, "observation": {"results": results}}],
    });
    let (_, found) = read_one(file.to_string().as_bytes(), None).unwrap();
    assert_eq!(found.trajectory.steps.len(), 20_000);
    assert!(found.trajectory.steps.iter().all(|step| step.observed.output.is_some()));
}

#[test]
fn only_one_trajectory_means_one() {
    let line = "{\"steps\": [{\"tool_name\": \"shell\"}]}\n";
    let error = read_one(line.repeat(2).as_bytes(), None).unwrap_err();
    assert!(error.message.contains("line 2"), "{}", error.message);
    assert!(read_one(line.as_bytes(), None).is_ok());
}

#[test]
fn causes_in_a_circle_are_read_as_what_they_are_not() {
    let run = |id: u64, cause: u64| json!({"id": id, "cause": cause, "source": "agent", "action": "run", "args": {"command": "ls"}});
    let seen = |id: u64, cause: u64| json!({"id": id, "cause": cause, "source": "agent", "observation": "run", "content": "x", "extras": {}});
    for (events, outputs) in [
        // Itself, each other, and an answer before what it answers.
        (json!([run(1, 1), seen(2, 2)]), vec![None]),
        (json!([run(1, 2), seen(2, 1)]), vec![Some("x")]),
        (json!([seen(1, 2), run(2, 1)]), vec![None]),
        (json!([run(1, 2), run(2, 3), run(3, 1), seen(4, 3), seen(5, 3)]), vec![None, None, Some("x")]),
    ] {
        let bytes = events.to_string().into_bytes();
        let (format, found) = read_one(&bytes[..], None).unwrap();
        assert_eq!(format, Format::OpenHands, "{events}");
        let output =
            |step: &Step| step.observed.output.as_ref().and_then(|text| text.as_str().map(str::to_owned));
        let read: Vec<Option<String>> = found.trajectory.steps.iter().map(output).collect();
        assert_eq!(read, outputs.iter().map(|text| text.map(str::to_owned)).collect::<Vec<_>>(), "{events}");
        try_all(&bytes);
    }
}
