//! The view: readable, bounded, and out of reach of what a box wrote.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod home;

use std::fs;
use std::path::PathBuf;

use glasshouse_protocol::Program;
use glasshouse_trace::{Blobs, Event, ExecStarted, Reader, Result, Style, UnknownEvent, Writer, render};
use home::{Home, ended, one_of_each_version, signal};

fn shown(reader: Reader, style: Style) -> String {
    let (blobs, mut out) = (reader.blobs(), Vec::new());
    render(&mut { reader }, &blobs, &mut out, &style).unwrap();
    String::from_utf8(out).unwrap()
}

fn show(home: &Home, style: Style) -> String {
    shown(Reader::open(&home.dir(), &home.blobs()).unwrap(), style)
}

/// Shows events that were recorded with everything allowed, as an attacker would like it.
fn show_events(events: Vec<Event>, style: Style) -> String {
    let home = Home::new();
    let mut writer: Writer = home.writer();
    for event in events {
        writer.append(event).unwrap();
    }
    show(&home, style)
}

fn shell(exec: u64, line: &str) -> Event {
    let program = Program::Shell(line.to_owned());
    Event::ExecStarted(ExecStarted { exec, program, ..ExecStarted::default() })
}

#[test]
fn version_1_looks_as_it_should() {
    let fixture = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1");
    let reader = Reader::open(&fixture.join("traces/bx-7f3a"), &fixture.join("blobs")).unwrap();
    let expected = fs::read_to_string(fixture.join("view.txt")).unwrap();
    let text = shown(reader, Style::default());
    assert_eq!(text, expected, "it looks like this now:\n{text}");
}

#[test]
fn no_text_of_a_box_steers_the_terminal() {
    let attack = "\u{1b}]0;title\u{7}\u{1b}[2J\r\u{9b}31m\u{7f}\u{2028}\u{202e}\u{200b}\u{e0041}\nforged";
    for raw in [false, true] {
        let text = show_events(one_of_each_version(attack), Style { raw, ..Style::default() });
        let unsafe_chars =
            |c: char| c != '\n' && (c.is_control() || "\u{2028}\u{202e}\u{200b}\u{e0041}".contains(c));
        assert!(!text.contains(unsafe_chars), "{text}");
    }
}

#[test]
fn no_text_of_a_box_forges_a_record() {
    let attack = "x\n+0.000s  forged\r+0.000s  forged\u{2028}+0.000s  forged\u{85}+0.000s  forged";
    let text = show_events(one_of_each_version(attack), Style::default());
    let forged = |line: &&str| line.starts_with("+0.000s  forged");
    assert_eq!(text.lines().find(forged), None);
    let raw = show_events(one_of_each_version(attack), Style { raw: true, ..Style::default() });
    assert_eq!(raw.lines().count(), one_of_each_version("").len());
    assert!(raw.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
}

#[test]
fn only_the_first_lines_are_shown_and_the_rest_is_counted() {
    let text = show_events(vec![ended(1, &b"line\n".repeat(2427), b"")], Style::default());
    assert_eq!(text.matches("| line").count(), 10);
    assert!(text.contains("    … 12 085 bytes more\n"), "{text}");
    let text = show_events(vec![ended(1, &b"x".repeat(100_000), b"")], Style::default());
    assert!(text.contains("    … 95 904 bytes more\n") && text.len() < 6000);
    let script = "true\n".repeat(1000);
    let text = show_events(vec![shell(1, &script)], Style::default());
    assert!(text.contains("    … 4 945 bytes more\n"), "{text}");
}

#[test]
fn lines_are_clipped_to_the_width() {
    let events = one_of_each_version(&"ä".repeat(200));
    let text = show_events(events, Style { width: Some(60), ..Style::default() });
    assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
}

#[test]
fn colours_are_ours_and_end_with_their_line() {
    let events = vec![shell(1, "true"), ended(1, b"\x1b[31m", b"")];
    let text = show_events(events, Style { color: true, ..Style::default() });
    assert!(text.contains("\u{1b}[32mexit code 0"));
    let codes = |line: &str| line.matches('\u{1b}').count();
    assert!(
        text.lines().all(|line| codes(line) == 0 || codes(line) == 2 && line.ends_with("\u{1b}[0m")),
        "{text:?}"
    );
}

#[test]
fn an_end_that_comes_later_names_its_command() {
    let text = show_events(
        vec![shell(1, "sleep 9"), shell(2, "true"), ended(2, b"", b""), ended(1, b"", b"")],
        Style::default(),
    );
    let last = text.lines().last().unwrap();
    assert!(last.contains("#1  exit code 0"), "{text}");
    assert!(text.contains("$ true\n    exit code 0"), "{text}");
}

#[test]
fn what_cannot_be_read_is_shown_as_that() {
    let home = Home::new();
    home.writer().append(ended(1, &[0xff; 10], b"")).unwrap();
    fs::remove_dir_all(home.blobs()).unwrap();
    fs::write(home.file(), [home.bytes(), b"\x1b[2Jwhat?\n".to_vec()].concat()).unwrap();
    let text = show(&home, Style::default());
    assert!(text.contains("| cannot read blob "), "{text}");
    assert!(text.contains("cannot read line 2 of "), "{text}");
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn an_event_of_a_newer_version_is_named() {
    let home = Home::new();
    home.writer().append(signal(1)).unwrap();
    let mut line = home.lines().remove(0);
    line.event = Event::Unknown(UnknownEvent { kind: "teleported".to_owned(), ..UnknownEvent::default() });
    let (mut out, lines): (_, Vec<Result<_>>) = (Vec::new(), vec![Ok(line)]);
    render(&mut lines.into_iter(), &Blobs::new(home.blobs()), &mut out, &Style::default()).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "+0.000s  not known to this version: teleported\n");
}
