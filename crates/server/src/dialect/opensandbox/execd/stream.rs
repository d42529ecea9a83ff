//! The stream of a command's events: bare JSON, a blank line after each.
//!
//! Output is told by lines, without their ends; an empty line is told as `"\n"`. `\r` ends a line as well, and `\r\n` is one
//! end. What comes after the last end is told when the command has ended.

use std::borrow::Cow;
use std::collections::BTreeMap;

use glasshouse_sandbox::{Exit, ExitReport};
use serde::Serialize;
use serde_json::Value;

use crate::clock::now_ms;
use crate::limits::LINE_BYTES;

/// One event.
#[derive(Debug, Default, Serialize)]
pub(super) struct Event<'a> {
    #[serde(rename = "type")]
    pub(super) kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) execution_count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) execution_time: Option<u64>,
    /// What code shows, by its shapes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) results: Option<BTreeMap<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<Failure>,
}

/// Why a command failed, or code.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Failure {
    /// What kind of failure: of code, the name of the exception.
    pub(super) ename: Cow<'static, str>,
    /// The exit code of a command, if there is one; what the exception says.
    pub(super) evalue: String,
    pub(super) traceback: Vec<String>,
}

#[derive(Serialize)]
struct Stamped<'a> {
    #[serde(flatten)]
    event: Event<'a>,
    timestamp: u64,
}

/// Adds an event to a piece of the stream.
pub(super) fn put(piece: &mut Vec<u8>, event: Event<'_>) {
    let before = piece.len();
    // A text that is UTF-8 can always be written as JSON; if not, no half of an event goes out.
    match serde_json::to_writer(&mut *piece, &Stamped { event, timestamp: now_ms() }) {
        Ok(()) => piece.extend_from_slice(b"\n\n"),
        Err(_) => piece.truncate(before),
    }
}

/// The last event of a command: that it is done, or how it failed.
pub(super) fn put_end(piece: &mut Vec<u8>, report: &ExitReport) {
    match failure(&report.exit) {
        None => {
            let execution_time = Some(report.wall_us / 1000);
            put(piece, Event { kind: "execution_complete", execution_time, ..Event::default() });
        }
        error => put(piece, Event { kind: "error", error, ..Event::default() }),
    }
}

/// The last event of a command that could not be started.
pub(super) fn put_failure(piece: &mut Vec<u8>, why: String) {
    let error = Failure { ename: "CommandExecError".into(), evalue: why.clone(), traceback: vec![why] };
    put(piece, Event { kind: "error", error: Some(error), ..Event::default() });
}

/// The exit code that the protocol has for an end: -1 for all that was killed.
pub(super) fn exit_code(exit: &Exit) -> Option<i32> {
    match exit {
        Exit::Code { code } => Some(*code),
        Exit::PidsLimit { code } | Exit::DiskFull { code } => {
            Some(code.filter(|code| *code != 0).unwrap_or(1))
        }
        Exit::NotStarted { .. } | Exit::BoxGone { .. } => None,
        _ => Some(-1),
    }
}

fn failure(exit: &Exit) -> Option<Failure> {
    if exit.success() {
        return None;
    }
    let (evalue, traceback) = match (exit_code(exit), exit) {
        (Some(code), Exit::Code { .. }) => (code.to_string(), vec![format!("exit status {code}")]),
        (Some(-1), _) => ("-1".to_owned(), vec![format!("signal: {}", signal(exit)), exit.to_string()]),
        (Some(code), _) => (code.to_string(), vec![format!("exit status {code}"), exit.to_string()]),
        (None, _) => (exit.to_string(), vec![exit.to_string()]),
    };
    Some(Failure { ename: "CommandExecError".into(), evalue, traceback })
}

/// The signal that ended a command, in the words of the language that `execd` is written in.
fn signal(exit: &Exit) -> String {
    let Exit::Signal { signal } = exit else { return "killed".to_owned() };
    let known = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        15 => "terminated",
        other => return format!("signal {other}"),
    };
    known.to_owned()
}

/// One stream of a command, on its way into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    begun: Vec<u8>,
    /// The last line was ended by `\r`: a `\n` that comes next belongs to it.
    after_return: bool,
}

impl Lines {
    /// Takes what was written, and tells the lines that end in it.
    pub(super) fn push(&mut self, bytes: &[u8], mut tell: impl FnMut(&str)) {
        for part in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            let after_return = std::mem::take(&mut self.after_return);
            match part {
                b"\n" if after_return && self.begun.is_empty() => {}
                [line @ .., end @ (b'\n' | b'\r')] => {
                    self.after_return = *end == b'\r';
                    self.begun.extend_from_slice(line);
                    self.end(&mut tell);
                }
                rest => self.begun.extend_from_slice(rest),
            }
            self.cut(&mut tell);
        }
    }

    /// The stream is over: what is left is a line.
    pub(super) fn finish(&mut self, mut tell: impl FnMut(&str)) {
        if !self.begun.is_empty() {
            self.end(&mut tell);
        }
    }

    fn end(&mut self, tell: &mut impl FnMut(&str)) {
        let line = std::mem::take(&mut self.begun);
        if line.is_empty() { tell("\n") } else { tell(&String::from_utf8_lossy(&line)) }
    }

    /// A line that is too long to be held is told in parts, cut between letters.
    fn cut(&mut self, tell: &mut impl FnMut(&str)) {
        while self.begun.len() > LINE_BYTES {
            let continues = |byte: &u8| byte & 0xC0 == 0x80;
            let back =
                self.begun[..=LINE_BYTES].iter().rev().take(4).take_while(|byte| continues(byte)).count();
            let rest = self.begun.split_off(LINE_BYTES - if back < 4 { back } else { 0 });
            let line = std::mem::replace(&mut self.begun, rest);
            tell(&String::from_utf8_lossy(&line));
        }
    }
}

#[cfg(test)]
mod tests {
    use glasshouse_sandbox::{Killer, NotStarted};

    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut told) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.push(piece, |line| told.push(line.to_owned()));
        }
        lines.finish(|line| told.push(line.to_owned()));
        told
    }

    #[test]
    fn output_is_told_by_lines_however_it_comes() {
        let text: &[u8] = b"a\n\nb\n\n\nc\n";
        let expected = ["a", "\n", "b", "\n", "\n", "c"];
        assert_eq!(lines(&[text]), expected);
        assert_eq!(lines(&text.chunks(1).collect::<Vec<_>>()), expected);
    }

    #[test]
    fn carriage_returns_end_lines_and_go_with_the_newline_after_them() {
        let text: &[u8] = b"10%\r20%\r\ndone\r\n\r\nlast";
        let expected = ["10%", "20%", "done", "\n", "last"];
        assert_eq!(lines(&[text]), expected);
        assert_eq!(lines(&text.chunks(1).collect::<Vec<_>>()), expected);
    }

    #[test]
    fn letters_are_not_torn_apart_by_the_pieces_they_come_in() {
        let text = "grün\nü".as_bytes();
        assert_eq!(lines(&text.chunks(1).collect::<Vec<_>>()), ["grün", "ü"]);
        assert_eq!(lines(&[b"\xff\n"]), ["\u{fffd}"]);
    }

    #[test]
    fn endless_lines_are_told_in_parts() {
        let (two, three) = ("ü".repeat(LINE_BYTES / 2 + 7), "語".repeat(LINE_BYTES / 3 + 7));
        for text in ["x".repeat(2 * LINE_BYTES), format!("a{two}"), format!("a{three}")] {
            let told = lines(&text.as_bytes().chunks(65_536).collect::<Vec<_>>());
            assert!(told.len() > 1 && told.iter().all(|part| part.len() <= LINE_BYTES));
            assert_eq!(told.concat(), text);
        }
        let told = lines(&[&vec![0x80; LINE_BYTES + 7]]);
        assert_eq!(told.concat().chars().count(), LINE_BYTES + 7);
    }

    #[test]
    fn events_are_bare_json_with_a_blank_line() {
        let mut piece = Vec::new();
        put(&mut piece, Event { kind: "stdout", text: Some("a\n\"b"), ..Event::default() });
        let text = String::from_utf8(piece).unwrap();
        assert!(text.starts_with(r#"{"type":"stdout","text":"a\n\"b","timestamp":"#), "{text}");
        assert!(text.ends_with("}\n\n") && text.matches('\n').count() == 2);
    }

    fn check(exit: Exit, evalue: &str, first: &str) {
        let failed = failure(&exit).unwrap();
        assert_eq!((failed.evalue.as_str(), failed.traceback[0].as_str()), (evalue, first));
    }

    #[test]
    fn ends_are_told_in_the_words_of_execd() {
        assert_eq!(failure(&Exit::Code { code: 0 }), None);
        check(Exit::Code { code: 7 }, "7", "exit status 7");
        check(Exit::Signal { signal: 15 }, "-1", "signal: terminated");
        check(Exit::TimedOut, "-1", "signal: killed");
        check(Exit::Killed { by: Killer::Caller }, "-1", "signal: killed");
        check(Exit::DiskFull { code: Some(2) }, "2", "exit status 2");
        let message = "no such program".to_owned();
        let exit = Exit::NotStarted { why: NotStarted::NotFound, message };
        assert_eq!(exit_code(&exit), None);
        check(exit, "not started: no such program", "not started: no such program");
    }
}
