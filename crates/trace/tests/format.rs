//! The format: everything reads back, and version 1 is readable for ever.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod home;

use std::fs;
use std::path::PathBuf;

use glasshouse_protocol::{Code, Exit, ExitReport, Killer, Language, Program, Rlimit, RlimitKind, TtySize};
use glasshouse_trace::limits::Limits;
use glasshouse_trace::trajectory::{FromTrace, Rule, Step, Task, Trajectory};
use glasshouse_trace::{
    Blobs, BoxCreated, Content, ContextChange, Event, ExecStarted, FileOperation, Hash, LimitInForce, Line,
    Payload, Reader, Redaction, Settings, Writer, limits, verify,
};
use home::{Home, signal};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1")
}

fn check_content(bytes: &[u8], inline: bool) {
    let home = Home::new();
    home.writer().append(Event::Stdin { exec: 1, payload: Payload::whole(bytes) }).unwrap();
    let Event::Stdin { payload, .. } = &home.events()[0] else { panic!() };
    let head = payload.head.as_ref().unwrap();
    assert_eq!(matches!(head, Content::Text(_)), inline);
    assert_eq!(matches!(head, Content::Blob(_)), !inline);
    let blobs = Reader::open(&home.dir(), &home.blobs()).unwrap().blobs();
    assert_eq!(blobs.read(head).unwrap(), bytes);
    assert_eq!(home.blobs().exists(), !inline);
}

#[test]
fn short_text_stands_in_the_line_and_the_rest_in_blobs() {
    check_content(b"hello\n", true);
    check_content(&[b'x'; limits::INLINE_BYTES_MAX], true);
    check_content(&[0; limits::INLINE_BYTES_MAX], true);
    check_content(&[b'x'; limits::INLINE_BYTES_MAX + 1], false);
    check_content(b"\xff", false);
}

#[test]
fn nothing_is_the_shortest_payload() {
    let home = Home::new();
    home.writer().append(Event::Stdin { exec: 1, payload: Payload::whole("") }).unwrap();
    let line = String::from_utf8(home.bytes()).unwrap();
    assert!(
        line.ends_with("\"event\":{\"type\":\"stdin\",\"exec\":1,\"payload\":{\"bytes_total\":0}}}\n"),
        "{line}"
    );
}

#[test]
fn version_1_reads_as_what_was_written() {
    let reader = Reader::open(&fixture().join("traces/bx-7f3a"), &fixture().join("blobs")).unwrap();
    let blobs = reader.blobs();
    let events: Vec<Event> = reader.map(|line| line.unwrap().event).collect();
    assert!(events.iter().all(|event| !matches!(event, Event::Unknown(_))));
    let Event::BoxCreated(created) = &events[0] else { panic!("{:?}", events[0]) };
    assert_eq!((created.id.as_str(), created.level.as_str()), ("bx-7f3a", "full"));
    assert_eq!(created.limits["memory_bytes"].value, 512 << 20);
    let Event::ExecStarted(started) = &events[1] else { panic!("{:?}", events[1]) };
    assert_eq!(
        started.program,
        Program::Argv(vec!["python3".into(), "-c".into(), "print('it works')".into()])
    );
    let Event::ExecEnded { stdout, report, .. } = &events[2] else { panic!("{:?}", events[2]) };
    assert!(report.exit.success());
    assert_eq!(stdout.head, Some(Content::Text("it works\n".to_owned())));
    let cut = events.iter().flat_map(Event::payloads).find(|payload| payload.truncated()).unwrap();
    assert_eq!(cut.bytes_total, 1_000_000);
    assert_eq!(blobs.read(cut.head.as_ref().unwrap()).unwrap().len(), 8192);
}

#[test]
fn version_1_verifies() {
    let report = verify(&fixture().join("traces/bx-7f3a"), &fixture().join("blobs")).unwrap();
    assert!(report.ok, "{report:?}");
    assert_eq!(report.first_bad, None);
}

#[test]
fn the_documented_example_is_the_fixture() {
    let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/trace-format.md");
    let docs = fs::read_to_string(docs).unwrap();
    let trace = fs::read_to_string(fixture().join("traces/bx-7f3a/trace.jsonl")).unwrap();
    for line in trace.lines().take(3) {
        assert!(docs.contains(line), "the docs lack {line}");
    }
}

#[test]
fn lines_of_a_newer_version_are_read_checked_and_followed() {
    let home = Home::new();
    fs::create_dir_all(home.dir()).unwrap();
    let zero = "0".repeat(64);
    let event = r#"{"type":"teleported","to":"mars"}"#;
    let line = format!(r#"{{"v":2,"seq":1,"time_ms":5,"prev":"{zero}","mood":"good","event":{event}}}"#);
    fs::write(home.file(), line + "\n").unwrap();
    assert_eq!(home.writer().append(signal(1)).unwrap(), 2);
    assert!(home.verify().ok);
    assert!(matches!(&home.events()[0], Event::Unknown(event) if event.kind == "teleported"));
    assert_eq!(home.lines()[0].v, 2);
}

#[test]
fn a_damaged_line_is_an_error_and_the_next_one_is_read() {
    let home = Home::new();
    let mut writer = home.writer();
    writer.append(signal(1)).unwrap();
    writer.append(signal(2)).unwrap();
    fs::write(home.file(), [b"what?\n".to_vec(), home.bytes(), b"{\"v\"".to_vec()].concat()).unwrap();
    let mut reader = Reader::open(&home.dir(), &home.blobs()).unwrap();
    let results: Vec<bool> = reader.by_ref().map(|line| line.is_ok()).collect();
    assert_eq!(results, [false, true, true]);
    assert!(reader.torn_tail());
}

fn exits() -> impl Strategy<Value = Exit> {
    prop_oneof![
        any::<i32>().prop_map(|code| Exit::Code { code }),
        any::<i32>().prop_map(|signal| Exit::Signal { signal }),
        any::<u64>().prop_map(|peak_bytes| Exit::OutOfMemory { peak_bytes }),
        option::of(any::<i32>()).prop_map(|code| Exit::DiskFull { code }),
        any::<String>().prop_map(|why| Exit::BoxGone { why }),
        Just(Exit::TimedOut),
        Just(Exit::Killed { by: Killer::Ttl }),
    ]
}

fn reports() -> impl Strategy<Value = ExitReport> {
    (exits(), any::<[u64; 6]>()).prop_map(|(exit, numbers)| {
        let [wall_us, cpu_us, peak_memory_bytes, stdout_bytes, stderr_bytes, oom_kills] = numbers;
        ExitReport { exit, wall_us, cpu_us, peak_memory_bytes, stdout_bytes, stderr_bytes, oom_kills }
    })
}

fn payloads() -> impl Strategy<Value = Payload> {
    let bytes = || prop_oneof![any::<String>().prop_map(String::into_bytes), vec(any::<u8>(), 0..6000)];
    (bytes(), bytes(), 1..1000_u64).prop_flat_map(|(head, tail, more)| {
        let total = (head.len() + tail.len()) as u64 + more;
        prop_oneof![Just(Payload::whole(head.clone())), Just(Payload::cut(total, head, tail))]
    })
}

fn programs() -> impl Strategy<Value = Program> {
    let code = any::<[String; 2]>().prop_map(|[context, code]| {
        Program::Code(Code { context, language: Language::Bash, code, whole: true })
    });
    prop_oneof![
        vec(any::<String>(), 0..5).prop_map(Program::Argv),
        any::<String>().prop_map(Program::Shell),
        code
    ]
}

fn created() -> impl Strategy<Value = Event> {
    let limit =
        (any::<u64>(), any::<String>()).prop_map(|(value, mechanism)| LimitInForce { value, mechanism });
    let limits = btree_map(any::<String>(), limit, 0..3);
    let labels = btree_map(any::<String>(), any::<String>(), 0..3);
    let more = (vec(any::<String>(), 0..3), option::of(any::<String>()), vec(any::<String>(), 0..3));
    let names = (vec("[^=]*", 0..3), more);
    let place = any::<(Option<String>, Option<String>, bool)>();
    (any::<[String; 4]>(), option::of(any::<String>()), limits, labels, names, place).prop_map(
        |([id, runtime, level, image], name, limits, labels, (env_names, more), place)| {
            let (user, cwd, read_only) = place;
            let (uncontrolled, forked_from, redact) = more;
            let who = BoxCreated { id, name, runtime, level, image, ..BoxCreated::default() };
            let who = BoxCreated { forked_from, redact, ..who };
            let how = BoxCreated { limits, labels, env_names, user, cwd, read_only, uncontrolled, ..who };
            Event::BoxCreated(how)
        },
    )
}

fn started() -> impl Strategy<Value = Event> {
    let tty = option::of(any::<(u16, u16)>().prop_map(|(rows, cols)| TtySize { rows, cols }));
    let texts = any::<(Option<String>, Option<String>, Option<String>)>();
    let rest = (any::<bool>(), any::<bool>(), vec("[^=]*", 0..3), any::<[Option<u64>; 3]>());
    let rlimit = any::<u64>().prop_map(|value| Rlimit { kind: RlimitKind::CpuSeconds, value });
    let all = (any::<u64>(), programs(), texts, tty, rest, vec(rlimit, 0..2));
    all.prop_map(|(exec, program, (cwd, user, label), tty, rest, rlimits)| {
        let (background, stdin, env_names, [timeout_ms, grace_ms, output_bytes_max]) = rest;
        let who = ExecStarted { exec, program, cwd, user, tty, background, stdin, ..ExecStarted::default() };
        let how = ExecStarted { env_names, timeout_ms, grace_ms, output_bytes_max, rlimits, label, ..who };
        Event::ExecStarted(how)
    })
}

fn events() -> impl Strategy<Value = Event> {
    let file = (any::<(String, String)>(), any::<(Option<u64>, Option<String>)>(), option::of(payloads()))
        .prop_map(|((op, path), (bytes, error), payload)| {
            Event::File(FileOperation { op, path, bytes, payload, error })
        });
    prop_oneof![
        created(),
        started(),
        (any::<u64>(), reports(), payloads(), payloads())
            .prop_map(|(exec, report, stdout, stderr)| Event::ExecEnded { exec, report, stdout, stderr }),
        (any::<u64>(), payloads()).prop_map(|(exec, payload)| Event::Stdin { exec, payload }),
        (any::<u64>(), payloads()).prop_map(|(exec, payload)| Event::Results { exec, payload }),
        (any::<[String; 2]>(), any::<[Option<String>; 3]>(), vec("[^=]*", 0..3)).prop_map(
            |([what, context], [interpreter, cwd, user], env_names)| {
                let language = Some(Language::Python);
                Event::Context(ContextChange { what, context, language, interpreter, cwd, user, env_names })
            }
        ),
        any::<(u64, i32)>().prop_map(|(exec, signal)| Event::Signal { exec, signal }),
        file,
        any::<String>().prop_map(|why| Event::BoxEnded { why }),
        any::<(u64, u64, String)>().prop_map(|(events, bytes, why)| Event::Lost { events, bytes, why }),
        any::<u64>().prop_map(|dropped_bytes| Event::Repaired { dropped_bytes }),
    ]
}

/// The event with its payloads back in memory, as it was before it was written.
fn loaded(mut event: Event, home: &Home) -> Event {
    let blobs = Blobs::new(home.blobs());
    let load = |payload: &mut Payload| {
        for part in [&mut payload.head, &mut payload.tail].into_iter().flatten() {
            *part = Content::Bytes(blobs.read(part).unwrap());
        }
    };
    match &mut event {
        Event::ExecEnded { stdout, stderr, .. } => [stdout, stderr].into_iter().for_each(load),
        Event::Stdin { payload, .. } | Event::Results { payload, .. } => load(payload),
        Event::File(file) => file.payload.iter_mut().for_each(load),
        _ => {}
    }
    event
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_event_reads_back_as_it_was_written(events in vec(events(), 1..6)) {
        let home = Home::new();
        let redaction = Redaction { secrets: Vec::new(), shapes: false, ..Redaction::default() };
        let mut writer = Writer::open(Settings { redaction, ..home.settings() }).unwrap();
        for event in &events {
            writer.append(event.clone()).unwrap();
        }
        let read: Vec<Event> = home.events().into_iter().map(|event| loaded(event, &home)).collect();
        prop_assert_eq!(read, events);
        prop_assert!(home.verify().ok);
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in vec(any::<u8>(), 0..400), lines in vec(".*", 0..5)) {
        let home = Home::new();
        home.writer().append(signal(1)).unwrap();
        let noise = [home.bytes(), lines.join("\n").into_bytes(), bytes].concat();
        fs::write(home.file(), noise).unwrap();
        Reader::open(&home.dir(), &home.blobs()).unwrap().for_each(drop);
        home.verify();
        // Whatever it meets, a writer either refuses or goes on; it does not panic.
        home.recorder().record(signal(2));
    }
}

#[test]
fn version_2_has_steps_and_is_a_trajectory() {
    let fixture = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v2");
    let (trace, blobs) = (fixture.join("traces/demo"), fixture.join("blobs"));
    assert!(verify(&trace, &blobs).unwrap().ok);
    let reader = Reader::open(&trace, &blobs).unwrap();
    let mut steps = FromTrace::new(reader.blobs());
    let (mut tools, mut versions) = (Vec::new(), Vec::new());
    for line in reader {
        let line = line.unwrap();
        steps.feed(&line).unwrap();
        assert!(!matches!(line.event, Event::Unknown(_)), "{line:?}");
        if let Event::Step(step) = &line.event {
            tools.push(step.tool.clone());
            versions.push(line.v);
        }
    }
    let tool = |name: &str| Some(name.to_owned());
    assert_eq!(tools, [None, tool("file_edit"), tool("file_read"), None, None]);
    assert_eq!(versions, [2; 5]);
    // A reset undid the first four.
    assert_eq!(steps.lines(), [13], "where it began, and not its place");
    let (trajectory, notes) = steps.finish();
    assert_eq!((trajectory.steps.len(), notes.len()), (1, 1));
    let state = trajectory.steps[0].observed.state.as_ref().unwrap();
    assert_eq!(state.changes[0].path, "/workspace/b");
    assert_eq!(state.changes[0].text, Some("again\n".into()));
}

#[test]
fn version_3_has_code_and_what_it_told() {
    let fixture = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v3");
    let (trace, blobs) = (fixture.join("traces/demo"), fixture.join("blobs"));
    assert!(verify(&trace, &blobs).unwrap().ok);
    let reader = Reader::open(&trace, &blobs).unwrap();
    let mut steps = FromTrace::new(reader.blobs());
    let (mut contexts, mut results) = (Vec::new(), 0);
    for line in reader {
        let line = line.unwrap();
        steps.feed(&line).unwrap();
        assert!(!matches!(line.event, Event::Unknown(_)), "{line:?}");
        match line.event {
            Event::Context(change) => contexts.push(change.what),
            Event::Results { .. } => results += 1,
            _ => {}
        }
    }
    assert_eq!((contexts, results), (vec!["create".into(), "restart".into(), "delete".to_owned()], 3));
    let (trajectory, _) = steps.finish();
    assert_eq!(trajectory.steps.len(), 3);
}

#[test]
fn a_reader_goes_on_where_another_one_stopped() {
    let home = Home::new();
    let mut writer = home.writer();
    writer.append(signal(1)).unwrap();
    let mut reader = Reader::open(&home.dir(), &home.blobs()).unwrap();
    assert_eq!(reader.by_ref().count(), 1);
    writer.append(signal(2)).unwrap();
    writer.append(signal(3)).unwrap();
    let rest = Reader::open_at(&home.dir(), &home.blobs(), reader.position()).unwrap();
    let numbers: Vec<u64> = rest.map(|line| line.unwrap().seq).collect();
    assert_eq!(numbers, [2, 3]);
}

#[test]
fn the_end_of_a_trace_is_where_a_reader_of_all_of_it_stops() {
    use std::io::Write as _;
    let home = Home::new();
    let mut writer = home.writer();
    writer.append(signal(1)).unwrap();
    writer.append(signal(2)).unwrap();
    // Somebody is writing the next one.
    let mut file = fs::OpenOptions::new().append(true).open(home.dir().join("trace.jsonl")).unwrap();
    file.write_all(b"{\"v\":1,\"seq\":3").unwrap();
    let mut reader = Reader::open(&home.dir(), &home.blobs()).unwrap();
    assert_eq!(reader.by_ref().count(), 2);
    assert_eq!(Reader::end_of(&home.dir()).unwrap(), reader.position());
}

/// Code in a context that begins at 1000 and ends at 4000, and an interrupt at `time_ms`: what is told of the two.
fn with_interrupt(time_ms: u64) -> Trajectory {
    let home = Home::new();
    let code = Code { context: "b".to_owned(), language: Language::Bash, ..Code::default() };
    let started = ExecStarted { exec: 1, program: Program::Code(code), ..ExecStarted::default() };
    let report = ExitReport::never_ran(Exit::Code { code: 130 });
    let nothing = || Payload::whole("");
    let change = |what: &str| ContextChange {
        what: what.to_owned(),
        context: "b".to_owned(),
        ..ContextChange::default()
    };
    let next = ExecStarted { exec: 2, program: Program::Shell("true".to_owned()), ..ExecStarted::default() };
    let mut events = vec![
        (500, Event::Context(change("create"))),
        (1000, Event::ExecStarted(started)),
        (4000, Event::ExecEnded { exec: 1, report: report.clone(), stdout: nothing(), stderr: nothing() }),
        (9000, Event::ExecStarted(next)),
        (9100, Event::ExecEnded { exec: 2, report, stdout: nothing(), stderr: nothing() }),
    ];
    events.push((time_ms, Event::Context(change("interrupt"))));
    events.sort_by_key(|(time_ms, _)| *time_ms);
    let mut steps = FromTrace::new(Blobs::new(home.blobs()));
    for (seq, (time_ms, event)) in (1..).zip(events) {
        steps.feed(&Line { v: 3, seq, time_ms, prev: Hash::ZERO, event }).unwrap();
    }
    steps.finish().0
}

#[test]
fn an_interrupt_belongs_to_the_code_that_it_hit() {
    let signals = |trajectory: &Trajectory| trajectory.steps[0].extra.get("signals").cloned();
    let hit = |after_ms: u64| Some(serde_json::json!([{ "signal": 2, "after_ms": after_ms }]));
    // It is on record when it was done, and what it hit may have ended by then.
    for (time_ms, expected) in [(700, None), (2500, hit(1500)), (4001, hit(3001)), (8000, None)] {
        let trajectory = with_interrupt(time_ms);
        assert_eq!(signals(&trajectory), expected, "{time_ms}");
        assert_eq!(trajectory.steps[1].extra.get("contexts"), None, "{time_ms}");
    }
}

/// A trajectory as a record, and back.
fn taken_in(trajectory: &Trajectory, payload_bytes_max: usize) -> Trajectory {
    let home = Home::new();
    let limits = Limits { payload_bytes_max, ..Limits::default() };
    let mut writer = Writer::open(Settings { limits, ..home.settings() }).unwrap();
    for event in trajectory.to_events("abcd") {
        writer.append(event).unwrap();
    }
    let reader = Reader::open(&home.dir(), &home.blobs()).unwrap();
    let mut steps = FromTrace::new(reader.blobs());
    reader.for_each(|line| steps.feed(&line.unwrap()).unwrap());
    steps.finish().0
}

#[test]
fn a_trajectory_that_was_taken_in_comes_back() {
    let rule = Rule { name: "edges".to_owned(), ..Rule::default() };
    let task = Task { repo: Some("r".into()), commit: Some("c".into()), ..Task::default() };
    let step = Step { tool: "shell".into(), thought: Some("why not".into()), ..Step::default() };
    let trajectory =
        Trajectory { task: Some(task), rules: vec![rule], steps: vec![step], ..Trajectory::default() };
    assert_eq!(taken_in(&trajectory, Limits::default().payload_bytes_max), trajectory);
    // Too long to be kept whole: what is read from the steps says less, and nothing that was not there.
    let parts = taken_in(&trajectory, 50);
    assert_eq!(parts.steps[0].observed.output, None);
    assert_eq!(parts.base.and_then(|base| base.digest), None);
    assert_eq!(parts.task.and_then(|task| task.repo), Some("r".to_owned()));
}
