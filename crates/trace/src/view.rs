//! The view: a trace as a person wants to read it.
//!
//! Lines are shown as they come, so that a trace of any length takes no memory and can be followed while it
//! grows. A command that ends before anything else happens is one block; otherwise its end comes later under
//! its number. Every recorded text goes through [`text`]: nothing that a box wrote can steer the terminal or
//! forge a record.

mod page;
mod text;
mod texts;
mod words;

use std::io::{self, Write};

pub use self::page::page;

use glasshouse_protocol::{Code, ExitReport, Program};

use self::text::{clipped, plain, quoted, safe_json};
use self::texts::Texts;
use crate::blobs::Blobs;
use crate::changes::FileChange;
use crate::error::Result;
use crate::event::{BoxCreated, ContextChange, Event, ExecStarted, FileOperation, Step};
use crate::limits::{VIEW_BYTES_MAX, VIEW_DIFF_LINES_MAX, VIEW_LINES_MAX};
use crate::line::Line;
use crate::payload::Payload;

/// What stands before everything that belongs to the record above it.
const INDENT: &str = "    ";

/// How a trace is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Style {
    /// With colours.
    pub color: bool,
    /// Clipped to this many characters a line.
    pub width: Option<usize>,
    /// With the lines that each step changed in files.
    pub diff: bool,
    /// As JSON, one line for each record, with every character that a terminal could stumble over escaped.
    pub raw: bool,
}

/// Shows lines; `blobs` is where their payloads are. A line that cannot be read is shown as that.
pub fn render(
    lines: &mut dyn Iterator<Item = Result<Line>>,
    blobs: &Blobs,
    out: &mut dyn Write,
    style: &Style,
) -> io::Result<()> {
    let mut view = View { blobs, out, style, start_ms: None, above: None, texts: Texts::default() };
    for line in lines {
        match line {
            Ok(line) if style.raw => view.raw(&line)?,
            Ok(line) => view.line(&line)?,
            Err(e) => view.row(Paint::Bad, "", &format!("cannot {}", plain(e.with_source().as_bytes())))?,
        }
    }
    Ok(())
}

struct View<'a> {
    blobs: &'a Blobs,
    out: &'a mut dyn Write,
    style: &'a Style,
    start_ms: Option<u64>,
    /// The command whose start was shown last, with nothing shown since.
    above: Option<u64>,
    texts: Texts,
}

#[derive(Clone, Copy)]
enum Paint {
    None,
    Strong,
    Faint,
    Good,
    Bad,
}

impl View<'_> {
    fn raw(&mut self, line: &Line) -> io::Result<()> {
        let json = serde_json::to_string(line).map_err(io::Error::other)?;
        writeln!(self.out, "{}", safe_json(&json))
    }

    fn line(&mut self, line: &Line) -> io::Result<()> {
        let start_ms = *self.start_ms.get_or_insert(line.time_ms);
        let time = words::since(line.time_ms.saturating_sub(start_ms));
        let above = self.above.take();
        match &line.event {
            Event::BoxCreated(created) => self.created(created),
            Event::ExecStarted(started) => {
                self.started(&time, started)?;
                self.above = Some(started.exec);
                Ok(())
            }
            Event::ExecEnded { exec, report, stdout, stderr } => {
                let head =
                    if above == Some(*exec) { INDENT.to_owned() } else { format!("{time}  #{exec}  ") };
                self.ended(&head, report)?;
                self.payload("| ", stdout)?;
                self.payload("! ", stderr)?;
                self.above = above.filter(|above| above == exec);
                Ok(())
            }
            Event::Stdin { exec, payload } => {
                let text = format!("#{exec}  stdin, {}", words::bytes(payload.bytes_total));
                self.row(Paint::None, &format!("{time}  "), &text)?;
                self.payload("< ", payload)
            }
            Event::Results { exec, payload } => {
                self.above = above.filter(|above| above == exec);
                self.results(&time, *exec, payload)
            }
            Event::Context(change) => self.context(&time, change),
            Event::Signal { exec, signal } => {
                let text = format!("#{exec}  sent {}", words::signal(*signal));
                self.row(Paint::None, &format!("{time}  "), &text)
            }
            Event::File(file) => self.file(&time, file),
            Event::Base(base) => {
                let kind = if base.deterministic { "deterministic, " } else { "" };
                let text = format!("begins with {kind}{}", plain(base.digest.as_bytes()));
                self.row(Paint::Faint, &format!("{time}  "), &text)
            }
            Event::Step(step) => self.step(&time, step, step.exec.is_some() && above == step.exec),
            Event::State { what, snapshot, method, step } => {
                self.texts.state(what);
                let about = |word: &Option<String>| word.iter().map(|w| format!(" {w}")).collect::<String>();
                let step = step.map(|step| format!(" (step {step})")).unwrap_or_default();
                let text = format!("{what}{}{}{step}", about(snapshot), about(method));
                self.row(Paint::Strong, &format!("{time}  "), &plain(text.as_bytes()))
            }
            Event::BoxEnded { why } => {
                let text = format!("box ended: {}", plain(why.as_bytes()));
                self.row(Paint::Strong, &format!("{time}  "), &text)
            }
            Event::Lost { events: 0, why, .. } => {
                self.row(Paint::Bad, &format!("{time}  "), &format!("WITHHELD {}", plain(why.as_bytes())))
            }
            Event::Lost { events, bytes, why } => {
                let (events, bytes) = (words::grouped(*events), words::bytes(*bytes));
                let text = format!("LOST {events} events with {bytes}: {}", plain(why.as_bytes()));
                self.row(Paint::Bad, &format!("{time}  "), &text)
            }
            Event::Repaired { dropped_bytes } => {
                let text =
                    format!("repaired: {} of an unfinished record dropped", words::bytes(*dropped_bytes));
                self.row(Paint::Bad, &format!("{time}  "), &text)
            }
            Event::Unknown(event) => {
                let text = format!("not known to this version: {}", plain(event.kind.as_bytes()));
                self.row(Paint::Faint, &format!("{time}  "), &text)
            }
        }
    }

    fn created(&mut self, created: &BoxCreated) -> io::Result<()> {
        let BoxCreated { id, name, runtime, level, image, limits, labels, env_names, .. } = created;
        let BoxCreated { user, cwd, read_only, uncontrolled, .. } = created;
        let name = name.as_ref().map(|name| format!(" ({})", plain(name.as_bytes()))).unwrap_or_default();
        self.row(Paint::Strong, "", &format!("box {}{name}", plain(id.as_bytes())))?;
        let [runtime, level, image] = [runtime, level, image].map(|text| plain(text.as_bytes()));
        let root = if *read_only { ", read-only root" } else { "" };
        self.row(Paint::None, INDENT, &format!("{runtime}, isolation {level}, image {image}{root}"))?;
        let place = cwd.as_ref().map(|cwd| format!("in {}", plain(cwd.as_bytes())));
        let by = user.as_ref().map(|user| format!("as {}", plain(user.as_bytes())));
        let told: Vec<String> = place.into_iter().chain(by).collect();
        if !told.is_empty() {
            self.row(Paint::Faint, INDENT, &format!("commands run {}", told.join(", ")))?;
        }
        for (name, limit) in limits {
            let value = match name.strip_suffix("_bytes") {
                Some(_) => words::size(limit.value),
                None => words::grouped(limit.value),
            };
            let [name, mechanism] = [name, &limit.mechanism].map(|text| plain(text.as_bytes()));
            self.row(Paint::Faint, INDENT, &format!("{name} {value} by {mechanism}"))?;
        }
        for (name, value) in labels {
            let [name, value] = [name, value].map(|text| plain(text.as_bytes()));
            self.row(Paint::Faint, INDENT, &format!("label {name}={value}"))?;
        }
        for what in uncontrolled {
            self.row(Paint::Faint, INDENT, &format!("not controlled: {}", plain(what.as_bytes())))?;
        }
        self.env(env_names)
    }

    fn started(&mut self, time: &str, started: &ExecStarted) -> io::Result<()> {
        let ExecStarted { exec, program, cwd, user, tty, background, env_names, timeout_ms, .. } = started;
        writeln!(self.out)?;
        let head = format!("{time}  #{exec}  $ ");
        match program {
            Program::Argv(argv) => {
                let words: Vec<String> = argv.iter().map(|word| quoted(word)).collect();
                self.row(Paint::Strong, &head, &words.join(" "))?;
            }
            Program::Shell(script) => self.script(&head, script)?,
            Program::Code(Code { context, language, code, .. }) => {
                let head = format!("{time}  #{exec}  {} in {}> ", language.name(), plain(context.as_bytes()));
                self.script(&head, code)?;
            }
        }
        let mut notes = Vec::new();
        notes.extend(cwd.as_ref().map(|cwd| format!("in {}", plain(cwd.as_bytes()))));
        notes.extend(user.as_ref().map(|user| format!("as {}", plain(user.as_bytes()))));
        notes.extend(tty.map(|tty| format!("terminal {}×{}", tty.cols, tty.rows)));
        notes.extend(background.then(|| "in the background".to_owned()));
        notes
            .extend(timeout_ms.map(|ms| format!("for at most {}", words::duration(ms.saturating_mul(1000)))));
        if !notes.is_empty() {
            self.row(Paint::Faint, INDENT, &notes.join(", "))?;
        }
        self.env(env_names)
    }

    fn results(&mut self, time: &str, exec: u64, payload: &Payload) -> io::Result<()> {
        let text = format!("#{exec}  results, {}", words::bytes(payload.bytes_total));
        self.row(Paint::None, &format!("{time}  "), &text)?;
        self.payload("= ", payload)
    }

    fn context(&mut self, time: &str, change: &ContextChange) -> io::Result<()> {
        let language = change.language.map(|language| format!(" ({})", language.name())).unwrap_or_default();
        let text = format!("context {}: {}{language}", change.context, change.what);
        self.row(Paint::None, &format!("{time}  "), &plain(text.as_bytes()))
    }

    /// The lines of a script stay below their first one, marked as a shell marks them.
    fn script(&mut self, head: &str, script: &str) -> io::Result<()> {
        let mut lines = script.lines();
        self.row(Paint::Strong, head, &plain(lines.next().unwrap_or_default().as_bytes()))?;
        for line in lines.by_ref().take(VIEW_LINES_MAX) {
            self.row(Paint::Strong, INDENT, &format!("> {}", plain(line.as_bytes())))?;
        }
        self.more(lines.map(|line| line.len() as u64 + 1).sum())
    }

    fn env(&mut self, names: &[String]) -> io::Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = names.iter().map(|name| plain(name.as_bytes())).collect();
        self.row(Paint::Faint, INDENT, &format!("env {}", names.join(" ")))
    }

    fn ended(&mut self, head: &str, report: &ExitReport) -> io::Result<()> {
        let paint = if report.exit.success() { Paint::Good } else { Paint::Bad };
        self.row(paint, head, &plain(words::end(report).as_bytes()))
    }

    /// What a step did; `below`: it is told right below the command that it was.
    fn step(&mut self, time: &str, step: &Step, below: bool) -> io::Result<()> {
        let number = format!("step {}", step.step);
        let head = if below { INDENT.to_owned() } else { format!("{time}  ") };
        let tool = step.tool.as_ref().map(|tool| format!("  {}", plain(tool.as_bytes()))).unwrap_or_default();
        let state = match (&step.state, &step.no_state) {
            (Some(state), _) => words::state(state),
            (None, Some(why)) => format!("files not looked at: {}", plain(why.as_bytes())),
            (None, None) => "files not looked at".to_owned(),
        };
        let paint = match (&step.error, step.exit_code) {
            (Some(_), _) => Paint::Bad,
            (None, Some(code)) if code != 0 => Paint::Bad,
            _ => Paint::Faint,
        };
        self.row(paint, &head, &format!("{number}{tool}  {}", plain(state.as_bytes())))?;
        if let Some(params) = &step.params {
            self.payload("< ", params)?;
        }
        if let Some(error) = &step.error {
            self.row(Paint::Bad, INDENT, &plain(error.as_bytes()))?;
        }
        if !below && let Some(output) = &step.output {
            self.payload("| ", output)?;
        }
        let changes = step.state.as_ref().and_then(|state| state.changes.as_ref());
        let listed = changes.map(|changes| FileChange::read(changes, self.blobs)).transpose();
        match listed {
            Ok(changes) => {
                let changes = changes.unwrap_or_default();
                for change in changes.iter().take(VIEW_LINES_MAX) {
                    let text = format!("{} {}", change.change.letter(), plain(change.path.as_bytes()));
                    self.row(Paint::Faint, INDENT, &text)?;
                    if self.style.diff {
                        self.differences(change)?;
                    }
                }
                let total = step.state.as_ref().map_or(0, |state| state.changed);
                let hidden = total.saturating_sub(changes.len().min(VIEW_LINES_MAX) as u64);
                if hidden > 0 {
                    self.row(Paint::Faint, INDENT, &format!("… {} more paths", words::grouped(hidden)))?;
                }
                Ok(())
            }
            Err(e) => self.row(Paint::Bad, INDENT, &format!("cannot {}", plain(e.with_source().as_bytes()))),
        }
    }

    /// What a step changed in a file, as far as both texts are known.
    fn differences(&mut self, change: &FileChange) -> io::Result<()> {
        let Some((before, now)) = self.texts.turn(change) else { return Ok(()) };
        for line in crate::lines::unified(&before, &now).lines().take(VIEW_DIFF_LINES_MAX) {
            let paint = match line.as_bytes().first() {
                Some(b'+') => Paint::Good,
                Some(b'-') => Paint::Bad,
                _ => Paint::Faint,
            };
            self.row(paint, INDENT, &format!("  {}", plain(line.as_bytes())))?;
        }
        Ok(())
    }

    fn file(&mut self, time: &str, file: &FileOperation) -> io::Result<()> {
        let FileOperation { op, path, bytes, payload: _, error } = file;
        let mut text = format!("file {} {}", plain(op.as_bytes()), quoted(path));
        if let Some(bytes) = bytes {
            text.push_str(&format!(", {}", words::bytes(*bytes)));
        }
        if let Some(error) = error {
            text.push_str(&format!(": {}", plain(error.as_bytes())));
        }
        self.row(if error.is_some() { Paint::Bad } else { Paint::None }, &format!("{time}  "), &text)
    }

    /// The first lines of a payload, each behind a mark, and how much there is besides.
    fn payload(&mut self, mark: &str, payload: &Payload) -> io::Result<()> {
        let lengths =
            [&payload.head, &payload.tail].map(|part| part.as_ref().map_or(0, |part| part.bytes_len()));
        let mut hidden = lengths.into_iter().fold(payload.bytes_cut, u64::saturating_add);
        if let Some(head) = &payload.head {
            match self.blobs.read(head) {
                Ok(bytes) => hidden = hidden.saturating_sub(self.payload_lines(mark, &bytes)?),
                Err(e) => {
                    let why = plain(e.with_source().as_bytes());
                    self.row(Paint::Bad, INDENT, &format!("{mark}cannot {why}"))?;
                }
            }
        }
        self.more(hidden)
    }

    /// Returns how many bytes were shown.
    fn payload_lines(&mut self, mark: &str, bytes: &[u8]) -> io::Result<u64> {
        let mut shown = 0;
        for line in bytes.split_inclusive(|&b| b == b'\n').take(VIEW_LINES_MAX) {
            let part = &line[..line.len().min(VIEW_BYTES_MAX - shown)];
            shown += part.len();
            // A terminal ends its lines with both.
            let part = part.strip_suffix(b"\n").unwrap_or(part);
            let part = part.strip_suffix(b"\r").unwrap_or(part);
            self.row(Paint::None, INDENT, &format!("{mark}{}", plain(part)))?;
            if shown == VIEW_BYTES_MAX {
                break;
            }
        }
        Ok(shown as u64)
    }

    fn more(&mut self, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.row(Paint::Faint, INDENT, &format!("… {} more", words::bytes(bytes)))
    }

    /// One line: what it begins with, and a text that holds nothing but plain characters.
    fn row(&mut self, paint: Paint, head: &str, text: &str) -> io::Result<()> {
        let room = self.style.width.map(|width| width.saturating_sub(head.chars().count()));
        let text = clipped(text.to_owned(), room);
        let code = match paint {
            _ if !self.style.color => "",
            Paint::None => "",
            Paint::Strong => "1",
            Paint::Faint => "2",
            Paint::Good => "32",
            Paint::Bad => "31",
        };
        if code.is_empty() {
            return writeln!(self.out, "{head}{text}");
        }
        writeln!(self.out, "{head}\x1b[{code}m{text}\x1b[0m")
    }
}
