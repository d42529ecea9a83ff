//! The shape of a record: what happened in it, one thing after the other, and where each stands in the file.
//!
//! A command is three lines of a record: that it began, that it ended, and what the box was like after it; other lines may
//! stand between. Here they are one item. An index holds no output, so that a record of any length can be looked at page by
//! page, and it grows with the record: what was read once is not read again.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use glasshouse_sandbox::Program;
use glasshouse_trace::{Event, Line, Position, Reader, Result, Step};

use super::text;
use crate::limits::{INDEXES, ITEMS, TITLE_BYTES};

/// The indexes of the records that were looked at last.
#[derive(Debug, Default)]
pub(super) struct Indexes {
    by_id: HashMap<String, (Instant, Arc<Mutex<Index>>)>,
}

/// One record.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) items: Vec<Item>,
    /// When it begins.
    pub(super) start_ms: Option<u64>,
    /// The line that says what the box was.
    pub(super) created: Option<Position>,
    /// The box is no more.
    pub(super) ended: bool,
    /// Lines that were read.
    pub(super) lines: u64,
    /// The snapshot that the box was put back to or that was taken of it, whichever came last. None after a reset.
    pub(super) stands_on: Option<String>,
    /// Commands of which more may still come, their step or their end, by their numbers.
    open: HashMap<u64, usize>,
    position: Position,
}

/// One thing that happened.
#[derive(Debug)]
pub(super) struct Item {
    /// Its first line.
    pub(super) seq: u64,
    /// All of them so far. Those of others may stand between.
    pub(super) lines: Vec<u64>,
    pub(super) time_ms: u64,
    /// What is looked for when somebody searches.
    pub(super) title: String,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// A command, or a call of a tool.
    Work(Work),
    /// Anything else. `resets`: files are what they were at another time from here on.
    Note { at: Position, resets: bool, bad: bool },
}

/// Where the lines of a command or of a call stand.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) exec: Option<u64>,
    /// It is a step as soon as it runs, and ends when it likes.
    pub(super) background: bool,
    /// It goes on, as far as is known.
    pub(super) running: bool,
    pub(super) started: Option<Position>,
    pub(super) ended: Option<Position>,
    /// What code told beside its output.
    pub(super) results: Option<Position>,
    pub(super) step: Option<Position>,
    /// How it went, once that is known.
    pub(super) ok: Option<bool>,
    pub(super) changed: u64,
}

impl Indexes {
    /// The index of a record; a new one if it is not known.
    pub(super) fn of(&mut self, id: &str) -> Arc<Mutex<Index>> {
        if !self.by_id.contains_key(id) && self.by_id.len() >= INDEXES {
            let oldest = self.by_id.iter().min_by_key(|(_, (used, _))| *used).map(|(id, _)| id.clone());
            oldest.map(|id| self.by_id.remove(&id));
        }
        let (used, index) =
            self.by_id.entry(id.to_owned()).or_insert_with(|| (Instant::now(), Arc::default()));
        *used = Instant::now();
        index.clone()
    }
}

impl Index {
    /// Takes in what was written since.
    pub(super) fn grow(&mut self, dir: &Path, blobs: &Path) -> Result<()> {
        let mut reader = Reader::open_at(dir, blobs, self.position)?;
        loop {
            let at = reader.position();
            match reader.next() {
                None => break,
                Some(Ok(line)) => self.add(at, &line),
                Some(Err(e)) => self.note(at, 0, &format!("cannot {e}"), false, true),
            }
            self.lines += 1;
        }
        self.position = reader.position();
        Ok(())
    }

    fn add(&mut self, at: Position, line: &Line) {
        self.start_ms.get_or_insert(line.time_ms);
        if self.items.len() >= ITEMS {
            return;
        }
        match &line.event {
            Event::BoxCreated(_) => self.created = Some(at),
            Event::Base(_) => {}
            Event::ExecStarted(started) => {
                let title = command(&started.program);
                let (exec, background) = (Some(started.exec), started.background);
                let work = Work { exec, background, running: true, started: Some(at), ..Work::default() };
                self.open.insert(started.exec, self.items.len());
                self.push(line, &title, What::Work(work));
            }
            Event::ExecEnded { exec, report, .. } => {
                let ok = Some(report.exit.success());
                match self.work(*exec, line.seq) {
                    Some(work) => {
                        (work.ended, work.ok, work.running) = (Some(at), ok, false);
                    }
                    None => {
                        let work = Work { exec: Some(*exec), ended: Some(at), ok, ..Work::default() };
                        self.push(line, "", What::Work(work));
                    }
                }
            }
            Event::Results { exec, .. } => {
                if let Some(work) = self.work(*exec, line.seq) {
                    work.results = Some(at);
                }
            }
            Event::Step(step) => self.step(at, line, step),
            event => self.other(at, line, event),
        }
    }

    fn step(&mut self, at: Position, line: &Line, step: &Step) {
        let fine = step.error.is_none() && step.exit_code.is_none_or(|code| code == 0);
        let changed = step.state.as_ref().map_or(0, |state| state.changed);
        let title = step.tool.clone().unwrap_or_default();
        let known = step.exec.and_then(|exec| {
            let index = *self.open.get(&exec)?;
            let work = self.work(exec, line.seq)?;
            (work.step, work.changed) = (Some(at), changed);
            if work.background && work.ended.is_none() {
                // What runs on is a step when it was started. How it ends is still to come.
                work.ok = (!fine).then_some(false);
            } else {
                work.ok = Some(work.ok.unwrap_or(true) && fine);
                work.running = false;
            }
            // One of the background may be told of again: whoever put the box back and whoever listened both saw its end.
            if !work.background {
                self.open.remove(&exec);
            }
            Some(index)
        });
        match known.and_then(|index| self.items.get_mut(index)) {
            Some(item) if !title.is_empty() => item.title = format!("{title} {}", item.title),
            Some(_) => {}
            None => {
                let work = Work { step: Some(at), ok: Some(fine), changed, ..Work::default() };
                self.push(line, &title, What::Work(work));
            }
        }
    }

    fn other(&mut self, at: Position, line: &Line, event: &Event) {
        let (words, resets, bad) = match event {
            Event::State { what, snapshot, .. } => {
                if matches!(what.as_str(), "reset" | "restore" | "snapshot") {
                    self.stands_on.clone_from(snapshot);
                }
                if matches!(what.as_str(), "reset" | "restore" | "stop") {
                    self.nothing_runs();
                }
                let about = snapshot.clone().unwrap_or_default();
                (format!("{what} {about}"), matches!(what.as_str(), "reset" | "restore"), false)
            }
            Event::File(file) => (format!("file {} {}", file.op, file.path), false, file.error.is_some()),
            Event::BoxEnded { why } => {
                self.ended = true;
                self.nothing_runs();
                (format!("box ended: {why}"), false, false)
            }
            Event::Lost { why, .. } => (format!("lost: {why}"), false, true),
            Event::Repaired { .. } => ("repaired".to_owned(), false, true),
            _ => (String::new(), false, false),
        };
        self.push(line, &words, What::Note { at, resets, bad });
    }

    fn note(&mut self, at: Position, time_ms: u64, words: &str, resets: bool, bad: bool) {
        let seq = self.lines + 1;
        let title = text(words.as_bytes(), TITLE_BYTES);
        let what = What::Note { at, resets, bad };
        if self.items.len() < ITEMS {
            self.items.push(Item { seq, lines: vec![seq], time_ms, title, what });
        }
    }

    fn push(&mut self, line: &Line, title: &str, what: What) {
        let title = text(title.as_bytes(), TITLE_BYTES);
        let Line { seq, time_ms, .. } = *line;
        self.items.push(Item { seq, lines: vec![seq], time_ms, title, what });
    }

    /// All that ran was killed. Who has no end on record yet may still get one.
    fn nothing_runs(&mut self) {
        for index in self.open.values() {
            if let Some(Item { what: What::Work(work), .. }) = self.items.get_mut(*index) {
                work.running = false;
            }
        }
    }

    /// A command that was begun, to which a further line belongs.
    fn work(&mut self, exec: u64, seq: u64) -> Option<&mut Work> {
        let item = self.items.get_mut(*self.open.get(&exec)?)?;
        item.lines.push(seq);
        match &mut item.what {
            What::Work(work) => Some(work),
            What::Note { .. } => None,
        }
    }
}

/// A command as it was asked for: callers of the API have their lines run by a shell of the box.
pub(super) fn command(program: &Program) -> String {
    match program {
        Program::Argv(argv) => match argv.as_slice() {
            [shell, option, script] if option == "-c" && shell.ends_with("sh") => script.clone(),
            _ => argv.join(" "),
        },
        Program::Shell(script) => script.clone(),
        Program::Code(code) => code.code.clone(),
    }
}

impl Item {
    /// Whether it went wrong.
    pub(super) fn failed(&self) -> bool {
        match &self.what {
            What::Work(work) => work.ok == Some(false),
            What::Note { bad, .. } => *bad,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture() -> (std::path::PathBuf, std::path::PathBuf) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/fixtures/v2");
        (root.join("traces/demo"), root.join("blobs"))
    }

    #[test]
    fn a_command_and_its_step_are_one_item() {
        let (dir, blobs) = fixture();
        let mut index = Index::default();
        index.grow(&dir, &blobs).unwrap();
        let told: Vec<(u64, u64, &str, bool)> = index
            .items
            .iter()
            .map(|item| {
                let last = *item.lines.last().unwrap();
                (item.seq, last, item.title.split(' ').next().unwrap(), item.failed())
            })
            .collect();
        assert_eq!(
            told,
            [
                (2, 5, "mkdir", false),
                (6, 6, "file", false),
                (7, 7, "file_edit", false),
                (8, 8, "file_read", false),
                (9, 11, "python3", true),
                (12, 12, "reset", false),
                (13, 15, "echo", false),
                (16, 16, "box", false),
            ]
        );
        assert!(index.ended && index.created.is_some());
        assert_eq!(index.lines, 16);
        index.grow(&dir, &blobs).unwrap();
        assert_eq!((index.items.len(), index.lines), (8, 16), "what was read is not read again");
    }

    /// The work of a record with these events, and which lines it stands in.
    fn check(events: &[serde_json::Value], expected: &[(&str, Option<bool>, bool, &[u64])]) {
        let dir = tempfile::tempdir().unwrap();
        let prev = "0".repeat(64);
        let line = |(at, event): (usize, &serde_json::Value)| {
            let seq = at + 1;
            format!("{{\"v\":2,\"seq\":{seq},\"time_ms\":1,\"prev\":\"{prev}\",\"event\":{event}}}\n")
        };
        let text: String = events.iter().enumerate().map(line).collect();
        std::fs::write(dir.path().join("trace.jsonl"), text).unwrap();
        let mut index = Index::default();
        index.grow(dir.path(), dir.path()).unwrap();
        let told: Vec<(&str, Option<bool>, bool, &[u64])> = index
            .items
            .iter()
            .filter_map(|item| match &item.what {
                What::Work(work) => Some((item.title.as_str(), work.ok, work.running, item.lines.as_slice())),
                What::Note { .. } => None,
            })
            .collect();
        assert_eq!(told, expected);
    }

    fn started(exec: u64, background: bool) -> serde_json::Value {
        let program = serde_json::json!({ "shell": format!("command {exec}") });
        serde_json::json!({ "type": "exec_started", "exec": exec, "program": program, "background": background })
    }

    fn step(step: u64, exec: u64) -> serde_json::Value {
        serde_json::json!({ "type": "step", "step": step, "exec": exec, "wall_us": 0 })
    }

    fn ended(exec: u64, code: i32) -> serde_json::Value {
        let report = serde_json::json!({
            "exit": { "kind": "code", "code": code }, "wall_us": 900, "cpu_us": 800, "peak_memory_bytes": 1,
            "stdout_bytes": 0, "stderr_bytes": 0, "oom_kills": 0,
        });
        let none = serde_json::json!({ "bytes_total": 0 });
        serde_json::json!({ "type": "exec_ended", "exec": exec, "report": report, "stdout": none, "stderr": none })
    }

    #[test]
    fn a_command_in_the_background_runs_until_its_end() {
        let mut events = vec![started(1, true), step(1, 1), started(2, false)];
        check(&events, &[("command 1", None, true, &[1, 2]), ("command 2", None, true, &[3])]);
        events.extend([ended(2, 0), step(2, 2), ended(1, 3)]);
        let whole = [
            ("command 1", Some(false), false, &[1, 2, 6][..]),
            ("command 2", Some(true), false, &[3, 4, 5][..]),
        ];
        check(&events, &whole);
    }

    #[test]
    fn what_was_killed_with_its_box_does_not_run() {
        let reset = serde_json::json!({ "type": "state", "what": "reset", "step": 0 });
        check(&[started(1, true), step(1, 1), reset], &[("command 1", None, false, &[1, 2])]);
        let gone = serde_json::json!({ "type": "box_ended", "why": "destroyed" });
        check(&[started(1, true), gone], &[("command 1", None, false, &[1])]);
    }

    #[test]
    fn the_indexes_used_last_are_kept() {
        let mut indexes = Indexes::default();
        let first = indexes.of("first");
        for n in 0..INDEXES - 1 {
            indexes.of(&n.to_string());
        }
        assert!(Arc::ptr_eq(&first, &indexes.of("first")));
        indexes.of("one more");
        assert_eq!(indexes.by_id.len(), INDEXES);
        assert!(Arc::ptr_eq(&first, &indexes.of("first")) && !indexes.by_id.contains_key("0"));
    }
}
