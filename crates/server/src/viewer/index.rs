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
use glasshouse_trace::{Event, Line, Position, Reader, Result};

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
    /// Commands whose step may still come, by their numbers.
    open: HashMap<u64, usize>,
    position: Position,
}

/// One thing that happened.
#[derive(Debug)]
pub(super) struct Item {
    /// Its first line, and its last one so far.
    pub(super) seq: u64,
    pub(super) last_seq: u64,
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
    pub(super) started: Option<Position>,
    pub(super) ended: Option<Position>,
    /// What code told beside its output.
    pub(super) results: Option<Position>,
    pub(super) step: Option<Position>,
    /// Its number among the steps.
    pub(super) number: Option<u64>,
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
                let work = Work { exec: Some(started.exec), started: Some(at), ..Work::default() };
                self.open.insert(started.exec, self.items.len());
                self.push(line, &title, What::Work(work));
            }
            Event::ExecEnded { exec, report, .. } => match self.work(*exec, line.seq) {
                Some(work) => (work.ended, work.ok) = (Some(at), Some(report.exit.success())),
                None => {
                    let ok = Some(report.exit.success());
                    let work = Work { exec: Some(*exec), ended: Some(at), ok, ..Work::default() };
                    self.push(line, "", What::Work(work));
                }
            },
            Event::Results { exec, .. } => {
                if let Some(work) = self.work(*exec, line.seq) {
                    work.results = Some(at);
                }
            }
            Event::Step(step) => {
                let fine = step.error.is_none() && step.exit_code.is_none_or(|code| code == 0);
                let changed = step.state.as_ref().map_or(0, |state| state.changed);
                let title = step.tool.clone().unwrap_or_default();
                let exec = step.exec.filter(|exec| self.open.contains_key(exec));
                let known = exec.and_then(|exec| {
                    let work = self.work(exec, line.seq)?;
                    (work.step, work.number, work.changed) = (Some(at), Some(step.step), changed);
                    work.ok = Some(work.ok.unwrap_or(true) && fine);
                    self.open.remove(&exec)
                });
                match known.and_then(|index| self.items.get_mut(index)) {
                    Some(item) if !title.is_empty() => item.title = format!("{title} {}", item.title),
                    Some(_) => {}
                    None => {
                        let (number, ok) = (Some(step.step), Some(fine));
                        let work = Work { step: Some(at), number, ok, changed, ..Work::default() };
                        self.push(line, &title, What::Work(work));
                    }
                }
            }
            event => self.other(at, line, event),
        }
    }

    fn other(&mut self, at: Position, line: &Line, event: &Event) {
        let (words, resets, bad) = match event {
            Event::State { what, snapshot, .. } => {
                let about = snapshot.clone().unwrap_or_default();
                (format!("{what} {about}"), matches!(what.as_str(), "reset" | "restore"), false)
            }
            Event::File(file) => (format!("file {} {}", file.op, file.path), false, file.error.is_some()),
            Event::BoxEnded { why } => {
                self.ended = true;
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
            self.items.push(Item { seq, last_seq: seq, time_ms, title, what });
        }
    }

    fn push(&mut self, line: &Line, title: &str, what: What) {
        let title = text(title.as_bytes(), TITLE_BYTES);
        self.items.push(Item { seq: line.seq, last_seq: line.seq, time_ms: line.time_ms, title, what });
    }

    /// A command that was begun, to which a further line belongs.
    fn work(&mut self, exec: u64, seq: u64) -> Option<&mut Work> {
        let item = self.items.get_mut(*self.open.get(&exec)?)?;
        item.last_seq = seq;
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
            .map(|item| (item.seq, item.last_seq, item.title.split(' ').next().unwrap(), item.failed()))
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
