//! Secrets never reach the disk, in whatever field and payload, and in none of their spellings.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod home;

use std::fs;

use glasshouse_protocol::Program;
use glasshouse_trace::limits::{Limits, SECRETS_BYTES_MAX, SECRETS_MAX};
use glasshouse_trace::trajectory::{FromTrace, Text, UNREADABLE};
use glasshouse_trace::{
    ChangeKind, Event, ExecStarted, FileChange, FileFacts, Gap, Payload, Reader, Recorder, Settings, Step,
    StepState, Writer,
};
use home::{Home, ended, one_of_each_version};
use proptest::prelude::*;

const SECRET: &str = "hunter2/päss \"w\"+word";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn url(bytes: &[u8]) -> String {
    let kept = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    bytes.iter().map(|&b| if kept(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0, |sum, &b| sum << 8 | usize::from(b)) << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let char = char::from(ALPHABET[word >> (18 - 6 * index) & 63]);
            out.push(if index <= chunk.len() { char } else { '=' });
        }
    }
    out
}

fn spellings(secret: &[u8]) -> Vec<Vec<u8>> {
    let json = serde_json::to_string(&String::from_utf8_lossy(secret)).unwrap();
    let mut all = vec![secret.to_vec(), json.as_bytes()[1..json.len() - 1].to_vec()];
    all.extend(
        [hex(secret), hex(secret).to_uppercase(), url(secret), base64(secret)].map(String::into_bytes),
    );
    all
}

/// No file of the home holds a spelling, not even with the escapes of JSON undone.
fn assert_clean(home: &Home, secrets: &[&[u8]]) {
    for path in home.files() {
        let bytes = fs::read(&path).unwrap();
        let unescaped =
            String::from_utf8_lossy(&bytes).replace("\\\"", "\"").replace("\\\\", "\\").into_bytes();
        for spelling in secrets.iter().flat_map(|secret| spellings(secret)) {
            for bytes in [&bytes, &unescaped] {
                let found = bytes.windows(spelling.len()).any(|window| window == spelling);
                assert!(!found, "{:?} in {}", String::from_utf8_lossy(&spelling), path.display());
            }
        }
    }
}

#[test]
fn no_spelling_of_a_secret_reaches_the_disk_in_any_field() {
    for spelling in spellings(SECRET.as_bytes()) {
        let home = Home::new();
        let mut writer = Writer::open(home.settings_hiding(&[SECRET.as_bytes()])).unwrap();
        let text = format!("before {} after", String::from_utf8(spelling).unwrap());
        for event in one_of_each_version(&text) {
            writer.append(event).unwrap();
        }
        assert_clean(&home, &[SECRET.as_bytes()]);
        assert!(String::from_utf8(home.bytes()).unwrap().contains("before [redacted]"));
        assert!(home.verify().ok);
    }
}

#[test]
fn no_secret_reaches_the_disk_in_a_blob() {
    let home = Home::new();
    let secret = b"\xff\xfe\x00secret";
    let mut writer = Writer::open(home.settings_hiding(&[secret, SECRET.as_bytes()])).unwrap();
    let long = [b"x".repeat(9000), SECRET.as_bytes().to_vec(), b"y".repeat(9000)].concat();
    let bytes = [&b"\xf0"[..], secret, b"\xf1"].concat();
    writer.append(ended(1, &long, &bytes)).unwrap();
    assert_clean(&home, &[secret, SECRET.as_bytes()]);
    assert_eq!(home.files().len(), 4);
    let Event::ExecEnded { stdout, stderr, .. } = &home.events()[0] else { panic!() };
    assert_eq!((stdout.redacted, stdout.bytes_total, stdout.bytes_cut), (1, long.len() as u64, 0));
    assert_eq!(stderr.redacted, 1);
}

#[test]
fn a_secret_across_head_and_tail_is_found_at_every_cut() {
    let secret = SECRET.as_bytes();
    let (before, after) = (b"before ".to_vec(), b" after".to_vec());
    for cut in 0..=secret.len() {
        for gap in 0..=secret.len() - cut {
            let home = Home::new();
            let mut writer = Writer::open(home.settings_hiding(&[secret])).unwrap();
            let head = [before.clone(), secret[..cut].to_vec()].concat();
            let tail = [secret[cut + gap..].to_vec(), after.clone()].concat();
            let total = (head.len() + tail.len() + gap) as u64;
            writer.append(Event::Stdin { exec: 1, payload: Payload::cut(total, head, tail) }).unwrap();
            let text = String::from_utf8_lossy(&home.bytes()).into_owned();
            for part in secret.windows(4) {
                let part = String::from_utf8_lossy(part);
                assert!(
                    !text.replace("\\\"", "\"").contains(&*part),
                    "{part} of cut {cut}, gap {gap}: {text}"
                );
            }
        }
    }
}

#[test]
fn a_command_that_held_a_secret_is_told_from_one_that_spells_out_what_stands_for_it() {
    let home = Home::new();
    let mut writer = Writer::open(home.settings_hiding(&[SECRET.as_bytes()])).unwrap();
    let started = |line: &str, label: Option<String>| {
        let program = Program::Shell(line.to_owned());
        Event::ExecStarted(ExecStarted { program, label, ..ExecStarted::default() })
    };
    let secret = format!("echo {SECRET}");
    for (line, label) in [
        ("true", None),
        (secret.as_str(), None),
        ("echo [redacted]", None),
        // What it is called is no part of what it does.
        ("true", Some(SECRET.to_owned())),
        ("echo [redacted]", Some(SECRET.to_owned())),
    ] {
        writer.append(started(line, label)).unwrap();
    }
    let told: Vec<_> = home
        .events()
        .into_iter()
        .map(|event| match event {
            Event::ExecStarted(started) => (started.redacted, started.is_redacted()),
            other => panic!("{other:?}"),
        })
        .collect();
    let (silent, literal) = ((None, false), (Some(false), false));
    assert_eq!(told, [silent, (Some(true), true), literal, silent, literal]);
    // Records of older versions do not say.
    let program = Program::Argv(vec!["echo".into(), "x [redacted]".into()]);
    assert!(ExecStarted { program, ..ExecStarted::default() }.is_redacted());
}

#[test]
fn a_value_handed_over_with_its_name_is_dropped() {
    let home = Home::new();
    let env_names = vec!["PATH".to_owned(), "PASSWORD=swordfish".to_owned()];
    let started =
        ExecStarted { program: Program::Shell("true".to_owned()), env_names, ..ExecStarted::default() };
    home.writer().append(Event::ExecStarted(started)).unwrap();
    assert!(!String::from_utf8(home.bytes()).unwrap().contains("swordfish"));
    let Event::ExecStarted(started) = &home.events()[0] else { panic!() };
    assert_eq!(started.env_names, ["PATH", "PASSWORD"]);
}

#[test]
fn tokens_that_nobody_named_are_found_by_their_shape() {
    let home = Home::new();
    let token = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
    let mut writer = home.writer();
    for event in one_of_each_version(token) {
        writer.append(event).unwrap();
    }
    assert_clean(&home, &[token.as_bytes()]);
}

#[test]
fn a_secret_that_is_a_word_of_the_format_does_not_break_the_format() {
    let home = Home::new();
    let secrets: [&[u8]; 5] = [b"exec_ended", b"type", b"code", b"kind", b"event"];
    let mut writer = Writer::open(home.settings_hiding(&secrets)).unwrap();
    writer.append(ended(1, b"code", b"")).unwrap();
    let Event::ExecEnded { stdout, .. } = &home.events()[0] else { panic!() };
    assert_eq!(stdout.head, Some(glasshouse_trace::Content::Text("[redacted]".to_owned())));
    assert!(home.verify().ok);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_secret_of_any_bytes_reaches_the_disk(
        secret in prop::collection::vec(any::<u8>(), 8..40),
        before in prop::collection::vec(any::<u8>(), 0..40),
        after in prop::collection::vec(any::<u8>(), 0..40),
        spelling in 0..6_usize,
    ) {
        // What is no text has no spelling in JSON strings, which are text.
        prop_assume!(spelling != 1 || std::str::from_utf8(&secret).is_ok());
        let home = Home::new();
        let mut writer = Writer::open(home.settings_hiding(&[&secret])).unwrap();
        let spelled = spellings(&secret).swap_remove(spelling);
        let stdout = [&before[..], &spelled, &after].concat();
        writer.append(ended(1, &stdout, b"")).unwrap();
        assert_clean(&home, &[&secret]);
    }
}

/// A step with these parameters and one changed file, of owner 1000.
fn step_with(params: serde_json::Value) -> Event {
    let facts = FileFacts {
        kind: "file".into(),
        mode: "644".into(),
        uid: 1000,
        gid: 1000,
        bytes: 1000,
        text: Some("is 1000 true?\n".into()),
        ..FileFacts::default()
    };
    let change = FileChange { path: "/true/1000".into(), change: ChangeKind::Added, now: Some(facts) };
    let changes = Some(Payload::whole(serde_json::to_vec(&[change]).unwrap()));
    let state = StepState { changed: 1, changes, ..StepState::default() };
    Event::Step(Box::new(Step {
        step: 1,
        tool: Some("shell".into()),
        params: Some(Payload::whole(params.to_string())),
        state: Some(state),
        ..Step::default()
    }))
}

#[test]
fn what_is_hidden_in_json_leaves_json() {
    for secret in ["1000", "true", "added", "path", "file", "command"] {
        let home = Home::new();
        let mut writer = Writer::open(home.settings_hiding(&[secret.as_bytes()])).unwrap();
        let params = serde_json::json!({ "command": "echo 1000 true", "timeout": 1000, "all": true });
        writer.append(step_with(params)).unwrap();
        let reader = Reader::open(&home.dir(), &home.blobs()).unwrap();
        let mut steps = FromTrace::new(reader.blobs());
        reader.for_each(|line| steps.feed(&line.unwrap()).unwrap());
        let (trajectory, notes) = steps.finish();
        let step = &trajectory.steps[0];
        assert_eq!((notes.len(), step.params.len()), (0, 3), "{secret}: {notes:?} {step:?}");
        assert_eq!(step.params["all"], true, "{secret}");
        let change = &step.observed.state.as_ref().unwrap().changes[0];
        assert_eq!((change.uid, change.bytes), (Some(1000), Some(1000)), "{secret}");
        // Nothing that anybody has said holds it: words of the format and what was measured are all that does.
        let said = [&change.path, change.text.as_ref().and_then(Text::as_str).unwrap()];
        assert!(said.iter().all(|text| !text.contains(secret)), "{secret}: {said:?}");
        let asked =
            serde_json::to_string(&step.params).unwrap().replace(":true", "").replace("\"command\":", "");
        assert!(!asked.contains(secret), "{secret}: {asked}");
    }
}

#[test]
fn parts_of_a_secret_at_the_cuts_of_others_are_on_no_record() {
    let secret = "k9-Xw3rT7qLm2Zp5Vb8Nd4Hs6Jf1Gc0Ya";
    let home = Home::new();
    let mut writer = Writer::open(home.settings_hiding(&[secret.as_bytes()])).unwrap();
    let (head, tail) = secret.split_at(secret.len() / 2);
    let words = "\n[99 bytes were left out here]\n";
    let text = format!("before {head}{words}{tail} after");
    let at = "before ".len() + head.len();
    let gaps = vec![Gap { place: at..at + words.len(), goes_on: true }];
    let end = vec![Gap { place: at..at, goes_on: false }];
    let step = Step {
        step: 1,
        output: Some(Payload::whole(text).with_gaps(gaps)),
        stderr: Some(Payload::whole(format!("before {head}")).with_gaps(end)),
        ..Step::default()
    };
    writer.append(Event::Step(Box::new(step))).unwrap();
    let lines = format!("a:1:{head} [… 1234 bytes]\nb:2:{head} [… 99 bytes]");
    writer.append(Event::Results { exec: 1, payload: Payload::whole(lines) }).unwrap();
    // A place that is none is none.
    let wrong = vec![Gap { place: 5..500, goes_on: true }];
    writer.append(Event::Results { exec: 2, payload: Payload::whole("a text").with_gaps(wrong) }).unwrap();
    assert_clean(&home, &[head.as_bytes(), tail.as_bytes()]);
    let kept: String = home.files().iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    for text in ["left out here", "a:1:[redacted] [… 1234 bytes]", "a text", " after"] {
        assert!(kept.contains(text), "{text}: {kept}");
    }
}

#[test]
fn a_list_that_cannot_be_read_spoils_only_its_step() {
    let home = Home::new();
    let limits = Limits { payload_bytes_max: 100, ..Limits::default() };
    let mut writer = Writer::open(Settings { limits, ..home.settings_hiding(&[]) }).unwrap();
    writer.append(step_with(serde_json::json!({ "command": "x".repeat(200) }))).unwrap();
    let reader = Reader::open(&home.dir(), &home.blobs()).unwrap();
    let mut steps = FromTrace::new(reader.blobs());
    reader.for_each(|line| steps.feed(&line.unwrap()).unwrap());
    let (trajectory, notes) = steps.finish();
    assert!(notes.iter().all(|note| note.contains("step 1") && note.contains("not on record")), "{notes:?}");
    let step = &trajectory.steps[0];
    assert_eq!((notes.len(), step.params.len()), (2, 0));
    assert!(step.extra.contains_key(UNREADABLE), "{step:?}");
    assert_eq!(step.observed.state.as_ref().unwrap().changes_cut, 1);
}

#[test]
fn a_secret_that_is_told_later_is_hidden_from_there_on() {
    let home = Home::new();
    let mut recorder = home.recorder();
    recorder.hide([SECRET.as_bytes(), b"first-one"].into_iter());
    recorder.record(ended(1, SECRET.as_bytes(), b"first-one")).unwrap();
    recorder.hide([b"another-one".as_slice(), SECRET.as_bytes()].into_iter());
    recorder.record(ended(2, b"first-one another-one", SECRET.as_bytes())).unwrap();
    assert_clean(&home, &[SECRET.as_bytes(), b"first-one", b"another-one"]);
}

/// A recorder that has as many secrets as it can look for.
fn at_its_limit(home: &Home) -> (Recorder, Vec<String>) {
    let mut recorder = home.recorder();
    let secrets: Vec<String> = (0..SECRETS_MAX).map(|n| format!("secret-{n}-x")).collect();
    recorder.hide(secrets.iter().map(String::as_bytes));
    (recorder, secrets)
}

#[test]
fn as_many_secrets_as_there_is_room_for_are_hidden() {
    let home = Home::new();
    let (mut recorder, secrets) = at_its_limit(&home);
    // Those that are known, and those that nobody would look for, take no room.
    recorder.hide(secrets.iter().map(String::as_bytes).chain([b"abc".as_slice()]));
    let ends = [0, SECRETS_MAX / 2, SECRETS_MAX - 1].map(|n| secrets[n].as_bytes());
    recorder.record(ended(1, &ends.join(&b' '), b"plain")).unwrap();
    let [Event::ExecEnded { stdout, stderr, .. }] = &home.events()[..] else { panic!("one event") };
    assert_eq!(stdout.redacted, 3);
    assert_eq!(stderr.redacted, 0);
}

#[test]
fn with_more_secrets_than_can_be_looked_for_the_record_withholds_what_it_cannot_look_through() {
    let home = Home::new();
    let (mut recorder, secrets) = at_its_limit(&home);
    recorder.hide([SECRET.as_bytes()].into_iter());
    let text = format!("plain {} {SECRET}", secrets[7]);
    // What these two say is nothing of a box's.
    let is_ours = |event: &Event| matches!(event, Event::Lost { .. } | Event::BoxEnded { .. });
    for event in one_of_each_version(&text).into_iter().filter(|event| !is_ours(event)) {
        recorder.record(event);
    }
    recorder.record(Event::BoxEnded { why: "destroyed".to_owned() }).unwrap();
    drop(recorder);
    assert_clean(&home, &[b"plain".as_slice(), secrets[7].as_bytes(), SECRET.as_bytes()]);
    let events = home.events();
    let Event::Lost { events: 0, bytes: 0, why } = &events[0] else { panic!("{:?}", events[0]) };
    assert!(why.contains("withheld") && why.contains("4096"), "{why}");
    // Once, and what is ours is still told.
    let told = |event: &&Event| matches!(event, Event::Lost { why, .. } if why.contains("withheld"));
    assert_eq!(events.iter().filter(told).count(), 1);
    assert_eq!(events.last(), Some(&Event::BoxEnded { why: "destroyed".to_owned() }));
    assert!(home.verify().ok);
}

#[test]
fn few_secrets_that_are_large_reach_the_limit_too() {
    let home = Home::new();
    let mut recorder = home.recorder();
    let large = |letter: u8| vec![letter; SECRETS_BYTES_MAX / 2];
    recorder.hide([large(b'a').as_slice(), &large(b'b')].into_iter());
    recorder.record(ended(1, b"plain", b"")).unwrap();
    recorder.hide([b"one more".as_slice()].into_iter());
    recorder.record(ended(2, b"plain", b"")).unwrap();
    let redacted = home.events().into_iter().filter_map(|event| match event {
        Event::ExecEnded { stdout, .. } => Some(stdout.redacted),
        _ => None,
    });
    assert_eq!(redacted.collect::<Vec<u64>>(), [0, 1]);
}
