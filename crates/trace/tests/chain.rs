//! The chain: whoever changes what is on record is found out, at the right line.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod home;

use std::fs;

use glasshouse_trace::{Bad, Event, Hash, Why};
use home::{Home, ended, one_of_each, signal};

fn written() -> Home {
    let home = Home::new();
    let mut writer = home.writer();
    for event in one_of_each("some text") {
        writer.append(event).unwrap();
    }
    writer.append(ended(2, &[0xff; 100], b"")).unwrap();
    home
}

/// Changes the file of the trace and expects the first bad line.
fn check(home: &Home, bytes: &[u8], line: u64) -> Why {
    let original = home.bytes();
    fs::write(home.file(), bytes).unwrap();
    let report = home.verify();
    fs::write(home.file(), original).unwrap();
    let bad = report.first_bad.expect("nothing was found");
    assert_eq!(bad.line, line, "{}", bad.why);
    assert!(!report.ok);
    bad.why
}

fn lines(home: &Home) -> Vec<Vec<u8>> {
    home.bytes().split_inclusive(|&b| b == b'\n').map(<[u8]>::to_vec).collect()
}

#[test]
fn what_was_written_verifies() {
    let home = written();
    let report = home.verify();
    assert!(report.ok && !report.torn_tail);
    assert_eq!(report.lines, 13);
    assert_eq!(report.first_bad, None);
    assert_eq!(report.missing_blobs, 0);
    let last = lines(&home).pop().unwrap();
    assert_eq!(report.head, Some(Hash::of(last.strip_suffix(b"\n").unwrap())));
}

#[test]
fn numbers_and_hashes_follow_each_other() {
    let home = written();
    let mut prev = Hash::ZERO;
    for ((number, line), raw) in (1..).zip(home.lines()).zip(lines(&home)) {
        assert_eq!((line.v, line.seq, line.prev), (1, number, prev));
        prev = Hash::of(raw.strip_suffix(b"\n").unwrap());
    }
}

#[test]
fn a_changed_byte_anywhere_is_found_at_its_line() {
    let home = Home::new();
    let mut writer = home.writer();
    let events = [signal(1), ended(1, b"out", b""), Event::BoxEnded { why: "removed".to_owned() }];
    events.into_iter().for_each(|event| assert!(writer.append(event).is_ok()));
    let bytes = home.bytes();
    let mut line = 1;
    for at in 0..bytes.len() {
        for other in [bytes[at] ^ 1, b'\n', b'0', 0xff] {
            if other != bytes[at] {
                let mut changed = bytes.clone();
                changed[at] = other;
                check(&home, &changed, line);
            }
        }
        line += u64::from(bytes[at] == b'\n');
    }
}

#[test]
fn a_changed_byte_is_found_without_a_head_unless_it_is_in_the_last_line() {
    let home = written();
    fs::remove_file(home.dir().join("head")).unwrap();
    let bytes = home.bytes();
    let last = bytes.len() - lines(&home).pop().unwrap().len();
    let mut line = 1;
    for at in 0..last {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        check(&home, &changed, line);
        line += u64::from(bytes[at] == b'\n');
    }
}

#[test]
fn a_removed_line_is_found() {
    let home = written();
    let mut lines = lines(&home);
    lines.remove(4);
    assert_eq!(check(&home, &lines.concat(), 5), Why::Number { found: 6 });
}

#[test]
fn swapped_lines_are_found() {
    let home = written();
    let mut lines = lines(&home);
    lines.swap(3, 4);
    assert_eq!(check(&home, &lines.concat(), 4), Why::Number { found: 5 });
}

#[test]
fn lines_cut_off_at_the_end_are_found() {
    let home = written();
    let mut lines = lines(&home);
    lines.truncate(7);
    assert_eq!(check(&home, &lines.concat(), 8), Why::CutOff);
}

#[test]
fn a_writer_that_meets_a_cut_off_trace_says_so() {
    let home = written();
    let mut lines = lines(&home);
    lines.truncate(7);
    fs::write(home.file(), lines.concat()).unwrap();
    home.writer().append(signal(1)).unwrap();
    let lost = &home.events()[7];
    assert!(matches!(lost, Event::Lost { events: 6, .. }), "{lost:?}");
    assert!(home.verify().ok);
}

#[test]
fn a_line_from_elsewhere_is_found() {
    let home = written();
    let bytes = [home.bytes(), lines(&home)[3].clone()].concat();
    assert_eq!(check(&home, &bytes, 14), Why::Number { found: 4 });
}

#[test]
fn a_line_longer_than_any_may_be_is_found() {
    let home = written();
    let mut lines = lines(&home);
    lines[2] = [vec![b' '; 2 << 20], lines[2].clone()].concat();
    assert_eq!(check(&home, &lines.concat(), 3), Why::NotALine);
}

#[test]
fn a_changed_blob_is_found_at_the_line_that_names_it() {
    let home = written();
    let blob = home.files().into_iter().find(|path| path.starts_with(home.blobs())).unwrap();
    fs::write(blob, [0xfe; 100]).unwrap();
    assert!(matches!(home.verify().first_bad, Some(Bad { line: 13, why: Why::Blob { .. } })));
}

#[test]
fn a_missing_blob_is_missing_but_its_line_is_not_bad() {
    let home = written();
    fs::remove_dir_all(home.blobs()).unwrap();
    let report = home.verify();
    assert_eq!((report.first_bad, report.missing_blobs, report.ok), (None, 1, false));
    assert_eq!(report.missing_named, [(13, Hash::of(&[0xff; 100]))]);
}

#[test]
fn a_torn_tail_is_told_and_is_no_fault() {
    let home = written();
    fs::write(home.file(), [home.bytes(), b"{\"v\":1,\"se".to_vec()].concat()).unwrap();
    let report = home.verify();
    assert!(report.ok && report.torn_tail);
    assert_eq!(report.lines, 13);
}
