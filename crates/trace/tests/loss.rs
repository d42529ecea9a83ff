//! A trace that cannot be written: counted, told, and never an error of the caller.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod home;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use glasshouse_trace::limits::Limits;
use glasshouse_trace::{ErrorKind, Event, Payload, Recorder, UnknownEvent, Writer};
use home::{Home, ended, signal};

fn lost(event: &Event) -> (u64, u64) {
    let Event::Lost { events, bytes, .. } = event else { panic!("{event:?}") };
    (*events, *bytes)
}

#[test]
fn a_full_disk_is_counted_and_told_when_there_is_room_again() {
    let home = Home::new();
    fs::create_dir_all(home.dir()).unwrap();
    symlink("/dev/full", home.file()).unwrap();
    let mut recorder = home.recorder();
    assert_eq!(recorder.record(signal(1)), None);
    assert_eq!(recorder.record(ended(1, b"12345", b"678")), None);
    assert_eq!(recorder.lost(), 2);
    assert!(recorder.why_lost().unwrap().contains("No space left"), "{:?}", recorder.why_lost());
    fs::remove_file(home.file()).unwrap();
    assert_eq!(recorder.record(signal(2)), Some(2));
    assert_eq!(lost(&home.events()[0]), (2, 8));
    assert_eq!(home.events()[1], signal(2));
    assert_eq!(recorder.lost(), 2);
}

#[test]
fn a_removed_directory_is_counted_and_not_made_again() {
    let home = Home::new();
    let mut recorder = home.recorder();
    recorder.record(signal(1));
    fs::remove_dir_all(home.dir()).unwrap();
    assert_eq!(recorder.record(signal(2)), None);
    assert_eq!(recorder.record(signal(3)), None);
    assert_eq!(recorder.lost(), 2);
    assert!(!home.dir().exists());
    fs::create_dir(home.dir()).unwrap();
    assert_eq!(recorder.record(signal(4)), Some(2));
    assert_eq!(lost(&home.events()[0]), (2, 0));
}

#[test]
fn a_trace_that_cannot_be_opened_at_first_is_tried_again() {
    let home = Home::new();
    fs::write(home.root().join("traces"), b"in the way").unwrap();
    let mut recorder = home.recorder();
    assert!(recorder.why_lost().is_some());
    assert_eq!(recorder.record(signal(1)), None);
    fs::remove_file(home.root().join("traces")).unwrap();
    assert_eq!(recorder.record(signal(2)), Some(2));
    assert_eq!(lost(&home.events()[0]), (1, 0));
}

#[test]
fn a_blob_store_that_cannot_be_written_loses_only_what_needs_it() {
    let home = Home::new();
    fs::write(home.blobs(), b"in the way").unwrap();
    let mut recorder = home.recorder();
    assert_eq!(recorder.record(ended(1, &[0xff; 10], b"")), None);
    assert_eq!(recorder.record(signal(2)), Some(2));
    assert_eq!(lost(&home.events()[0]), (1, 10));
}

#[test]
fn what_was_lost_is_told_when_the_recorder_goes() {
    let home = Home::new();
    let mut recorder =
        Recorder::new(home.settings_with(Limits { line_bytes_max: 1000, ..Limits::default() }));
    assert_eq!(recorder.record(Event::BoxEnded { why: "x".repeat(1000) }), None);
    drop(recorder);
    assert_eq!(lost(&home.events()[0]), (1, 0));
}

#[test]
fn a_lock_that_somebody_sits_on_is_waited_for_once() {
    let home = Home::new();
    let wait = Duration::from_millis(200);
    let mut recorder = Recorder::new(home.settings_with(Limits { lock_wait_max: wait, ..Limits::default() }));
    recorder.record(signal(1));
    let file = File::open(home.file()).unwrap();
    file.lock().unwrap();
    let started = Instant::now();
    (0..1000).for_each(|exec| assert_eq!(recorder.record(signal(exec)), None));
    assert!((wait..wait * 10).contains(&started.elapsed()), "{:?}", started.elapsed());
    assert_eq!(recorder.lost(), 1000);
    file.unlock().unwrap();
    assert_eq!(recorder.record(signal(2)), Some(3));
    assert_eq!(lost(&home.events()[1]), (1000, 0));
}

#[test]
fn a_full_trace_says_so_once_and_takes_the_end_of_the_box() {
    let home = Home::new();
    let settings = home.settings_with(Limits { trace_bytes_max: 1000, ..Limits::default() });
    let mut recorder = Recorder::new(settings);
    let kept = (0..100).filter_map(|exec| recorder.record(signal(exec))).count() as u64;
    assert_eq!(recorder.lost(), 100 - kept);
    assert!((1..10).contains(&kept), "{kept}");
    assert!(recorder.record(Event::BoxEnded { why: "removed".to_owned() }).is_some());
    let events = home.events();
    assert_eq!(events.len() as u64, kept + 2);
    assert_eq!(lost(&events[kept as usize]), (100 - kept, 0));
    assert_eq!(events.last(), Some(&Event::BoxEnded { why: "removed".to_owned() }));
}

#[test]
fn errors_of_a_writer_have_their_kind() {
    let home = Home::new();
    let limits = Limits { line_bytes_max: 500, trace_bytes_max: 700, ..Limits::default() };
    let mut writer = Writer::open(home.settings_with(limits)).unwrap();
    let mut kind = |event| writer.append(event).map_err(|e| e.kind);
    assert_eq!(kind(Event::File(Default::default())), Ok(1));
    let long = Event::BoxEnded { why: "x".repeat(500) };
    assert_eq!(kind(long), Err(ErrorKind::TooLarge));
    assert_eq!(kind(ended(1, b"", b"")), Ok(2));
    assert_eq!(kind(ended(2, b"", b"")), Err(ErrorKind::Full));
    assert_eq!(kind(Event::Unknown(UnknownEvent::default())), Err(ErrorKind::Unwritable));
}

#[test]
fn a_payload_beyond_its_bound_keeps_head_and_tail() {
    let home = Home::new();
    let limits = Limits { payload_bytes_max: 10, ..Limits::default() };
    let mut writer = Writer::open(home.settings_with(limits)).unwrap();
    let payload = Payload::whole("0123456789abcdefghij");
    writer.append(Event::Stdin { exec: 1, payload }).unwrap();
    let Event::Stdin { payload, .. } = &home.events()[0] else { panic!() };
    let text = |text: &str| Some(glasshouse_trace::Content::Text(text.to_owned()));
    let expected = Payload {
        bytes_total: 20,
        bytes_cut: 10,
        head: text("01234"),
        tail: text("fghij"),
        ..Payload::default()
    };
    assert_eq!(*payload, expected);
    assert!(payload.truncated());
}
