//! Reading files of any format, one trajectory after the other.
//!
//! A file is one JSON document, or has a value in each line; which of both is told by whether its first line is a
//! whole value. Files of lines are never in memory whole, unless all their lines are one log of events.

use std::cell::Cell;
use std::io::{BufRead, Read as _};

use serde_json::Value;

use super::detect::detect;
use super::formats::{Format, Older};
use super::json::{self, Fault};
use super::limits::{DOCUMENT_BYTES_MAX, PROBLEMS_MAX, STEPS_MAX, VALUES_MAX};
use super::model::Trajectory;
use super::problem::{Problem, Problems};
use super::schema::Checker;
use crate::{Error, ErrorKind, Result};

/// What some editors put before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A file of trajectories, as it is read.
pub struct Trajectories<R> {
    input: R,
    format: Format,
    checker: Checker,
    /// The number of the last line that was read.
    line: u64,
    /// How much more the lines of one log may hold: bytes and values.
    bytes_left: usize,
    values_left: Cell<u64>,
    next: Next,
}

/// What comes next.
enum Next {
    /// A document that is all there is.
    Document(Value, Vec<u8>),
    /// A line that was read to tell the format; others may follow.
    Line(Value),
    /// Whatever the next line holds.
    Lines,
    /// Nothing.
    Over,
}

/// A trajectory of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The trajectory.
    pub trajectory: Trajectory,
    /// The line at which it begins.
    pub line: u64,
    /// What is odd about it and does not matter.
    pub warnings: Vec<Problem>,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Validation {
    /// Its format, if it could be told.
    pub format: Option<Format>,
    /// How many trajectories it holds.
    pub trajectories: u64,
    /// How many steps they have together.
    pub steps: u64,
    /// Everything that was found.
    pub problems: Vec<Problem>,
    /// How many further problems were found and are not told.
    pub untold: u64,
}

impl Validation {
    /// Whether the file can be used.
    pub fn is_valid(&self) -> bool {
        !self.problems.iter().any(|problem| problem.fatal)
    }
}

/// Why nothing more can be read.
struct Refused {
    kind: ErrorKind,
    line: Option<u64>,
    what: String,
    source: Option<std::io::Error>,
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        let Refused { kind, line, what, source } = refused;
        let message = line.map_or_else(|| what.clone(), |line| format!("line {line}: {what}"));
        Error { kind, message, source }
    }
}

type Read<T> = std::result::Result<T, Refused>;

/// One value of the file, checked.
struct Checked {
    line: u64,
    trajectory: Trajectory,
    problems: Vec<Problem>,
    untold: u64,
    fatal: bool,
}

impl<R: BufRead> Trajectories<R> {
    /// Begins to read a file, and tells its format unless it is given.
    pub fn open(input: R, format: Option<Format>) -> Result<Self> {
        Ok(Self::begin(input, format)?)
    }

    fn begin(mut input: R, format: Option<Format>) -> Read<Self> {
        let mut line = 0;
        let first = loop {
            let Some(mut bytes) = next_line(&mut input, line + 1)? else {
                return Err(invalid(1, "there is nothing in this file"));
            };
            line += 1;
            if line == 1 && bytes.starts_with(BYTE_ORDER_MARK) {
                bytes.drain(..BYTE_ORDER_MARK.len());
            }
            if !bytes.trim_ascii().is_empty() {
                break bytes;
            }
        };
        let is_list = first.trim_ascii_start().starts_with(b"[");
        let next = match json::parse(&first) {
            Ok(value) if !is_list => Next::Line(value),
            // A broken first line can still be the beginning of a document of many.
            _ => {
                let blank = line - 1;
                let bytes = whole(&mut input, first)?;
                let value = json::parse(&bytes).map_err(|fault| fault_error(blank, fault))?;
                line = blank;
                Next::Document(value, bytes)
            }
        };
        let format =
            match (format, &next) {
                (Some(format), _) => format,
                (None, Next::Document(value, _) | Next::Line(value)) => detect(value)
                    .map_err(|e| Refused { kind: e.kind, line: None, what: e.message, source: None })?,
                (None, _) => return Err(invalid(1, "there is nothing in this file")),
            };
        let (bytes_left, values_left) = (DOCUMENT_BYTES_MAX, Cell::new(VALUES_MAX));
        Ok(Trajectories { input, format, checker: Checker::new(format), line, bytes_left, values_left, next })
    }

    /// The format that is read.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The next value of the file, with everything that is wrong with it.
    fn checked(&mut self) -> Read<Option<Checked>> {
        match std::mem::replace(&mut self.next, Next::Over) {
            Next::Document(value, text) => {
                let lines_before = self.line;
                // One event alone is a log as well.
                let value = match (self.format, value) {
                    (Format::OpenHands, value @ Value::Object(_)) => {
                        return self.log(value, lines_before + 1);
                    }
                    (_, value) => value,
                };
                let place = |at: &[json::Part]| lines_before + json::line_of(&text, at);
                Ok(Some(self.document(value, lines_before + 1, place)))
            }
            Next::Line(value) => self.in_line(value),
            Next::Lines => {
                let Some(value) = self.next_value()? else { return Ok(None) };
                self.in_line(value)
            }
            Next::Over => Ok(None),
        }
    }

    fn in_line(&mut self, value: Value) -> Read<Option<Checked>> {
        let line = self.line;
        if self.format == Format::OpenHands {
            return self.log(value, line);
        }
        self.next = Next::Lines;
        Ok(Some(self.document(value, line, |_| line)))
    }

    fn document(&self, value: Value, line: u64, place: impl Fn(&[json::Part]) -> u64) -> Checked {
        let value = match value {
            Value::Array(events) if self.format == Format::OpenHands => {
                let mut older = Older::default();
                Value::Array(events.into_iter().map(|event| older.take(event)).collect())
            }
            value => value,
        };
        let mut problems = Problems::default();
        self.checker.check(&value, &mut problems);
        let mut trajectory = Trajectory::default();
        let lists =
            ["steps", "trajectory", "history"].iter().filter_map(|name| value.get(name)).chain([&value]);
        let longest = lists.filter_map(|list| list.as_array().map(Vec::len)).max().unwrap_or(0);
        if longest > STEPS_MAX {
            problems.error(&[], format!("{longest} steps, and no more than {STEPS_MAX} are read"));
        }
        if !problems.fatal {
            trajectory = self.format.decode(value, &mut problems);
        }
        let Problems { found, untold, fatal } = problems;
        let located =
            |(at, problem): (Vec<json::Part>, Problem)| Problem { line: Some(place(&at)), ..problem };
        Checked { line, trajectory, problems: found.into_iter().map(located).collect(), untold, fatal }
    }

    /// All lines of the file as the events of one log.
    fn log(&mut self, first: Value, line: u64) -> Read<Option<Checked>> {
        let mut events = Vec::new();
        let mut lines = Vec::new();
        let mut problems = Problems::default();
        let mut older = Older::default();
        let mut next = Some(first);
        while let Some(event) = next {
            let event = older.take(event);
            if events.len() == STEPS_MAX {
                return Err(invalid(self.line, &format!("more than {STEPS_MAX} events in one log")));
            }
            self.checker.check_item(&event, events.len(), &mut problems);
            events.push(event);
            lines.push(self.line.max(line));
            next = self.next_value()?;
        }
        let mut trajectory = Trajectory::default();
        if !problems.fatal {
            trajectory = self.format.decode(Value::Array(events), &mut problems);
        }
        let Problems { found, untold, fatal } = problems;
        let located = |(at, problem): (Vec<json::Part>, Problem)| {
            let line = match at.first() {
                Some(json::Part::Index(index)) => lines.get(*index).copied(),
                _ => Some(line),
            };
            Problem { line, ..problem }
        };
        let problems = found.into_iter().map(located).collect();
        Ok(Some(Checked { line, trajectory, problems, untold, fatal }))
    }

    /// The value of the next line that is not empty.
    fn next_value(&mut self) -> Read<Option<Value>> {
        loop {
            let Some(bytes) = next_line(&mut self.input, self.line + 1)? else { return Ok(None) };
            self.line += 1;
            if !bytes.trim_ascii().is_empty() {
                if self.format == Format::OpenHands {
                    // All lines become one trajectory.
                    let left = self.bytes_left.checked_sub(bytes.len());
                    self.bytes_left = left.ok_or_else(|| too_large("the log"))?;
                } else {
                    self.values_left.set(VALUES_MAX);
                }
                let parsed = json::parse_within(&bytes, &self.values_left);
                return parsed.map(Some).map_err(|fault| fault_error(self.line - 1, fault));
            }
        }
    }
}

impl<R: BufRead> Iterator for Trajectories<R> {
    type Item = Result<Found>;

    fn next(&mut self) -> Option<Result<Found>> {
        let checked = match self.checked() {
            Ok(checked) => checked?,
            Err(e) => {
                self.next = Next::Over;
                return Some(Err(e.into()));
            }
        };
        if checked.fatal {
            self.next = Next::Over;
            let worst = checked.problems.iter().find(|problem| problem.fatal);
            let message = worst.map_or_else(|| "it is invalid".to_owned(), Problem::to_string);
            let others = checked.problems.len() as u64 - 1 + checked.untold;
            let others = if others == 0 { String::new() } else { format!(" (and {others} other problems)") };
            let message = format!("{message}{others}; it was read as {}", self.format);
            return Some(Err(Error::new(ErrorKind::Invalid, message)));
        }
        let Checked { line, trajectory, problems, .. } = checked;
        Some(Ok(Found { trajectory, line, warnings: problems }))
    }
}

/// Reads the one trajectory of a file.
pub fn read_one(input: impl BufRead, format: Option<Format>) -> Result<(Format, Found)> {
    let mut trajectories = Trajectories::open(input, format)?;
    let format = trajectories.format();
    let Some(found) = trajectories.next() else {
        return Err(invalid(1, "there is no trajectory in this file").into());
    };
    let found = found?;
    match trajectories.next() {
        None => Ok((format, found)),
        Some(Err(e)) => Err(e),
        Some(Ok(second)) => {
            let what = "a second trajectory begins here, and only one was asked for";
            Err(invalid(second.line, what).into())
        }
    }
}

/// Checks a whole file, and tells all that is wrong with it. Only a file that the system does not give us is an
/// error.
pub fn validate(input: impl BufRead, format: Option<Format>) -> Result<Validation> {
    let mut validation = Validation { format, trajectories: 0, steps: 0, problems: Vec::new(), untold: 0 };
    let mut file = match Trajectories::begin(input, format) {
        Ok(file) => file,
        Err(refused) => return validation.refused(refused),
    };
    validation.format = Some(file.format());
    loop {
        match file.checked() {
            Ok(Some(checked)) => validation.add(checked),
            Ok(None) => return Ok(validation),
            // The rest of a file with a line that cannot be read is not looked at.
            Err(refused) => return validation.refused(refused),
        }
    }
}

impl Validation {
    fn refused(mut self, refused: Refused) -> Result<Self> {
        if refused.kind == ErrorKind::Io {
            return Err(refused.into());
        }
        let Refused { line, what, .. } = refused;
        self.problems.push(Problem { line, step: None, path: String::new(), what, fatal: true });
        Ok(self)
    }

    fn add(&mut self, checked: Checked) {
        self.trajectories += 1;
        self.steps += checked.trajectory.steps.len() as u64;
        let room = PROBLEMS_MAX.saturating_sub(self.problems.len());
        // What makes it unusable is told even if there is no room for all.
        let (fatal, others): (Vec<_>, Vec<_>) =
            checked.problems.into_iter().partition(|problem| problem.fatal);
        let least = usize::from(self.is_valid() && !fatal.is_empty());
        let found = fatal.len() + others.len();
        let told = room.max(least).min(found);
        self.untold += checked.untold + (found - told) as u64;
        self.problems.extend(fatal.into_iter().chain(others).take(told));
    }
}

/// The next line with its end; none at the end of the file.
fn next_line(input: &mut impl BufRead, number: u64) -> Read<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let mut bounded = input.take(DOCUMENT_BYTES_MAX as u64 + 1);
    bounded.read_until(b'\n', &mut bytes).map_err(unreadable)?;
    if bytes.len() > DOCUMENT_BYTES_MAX {
        return Err(too_large(&format!("line {number}")));
    }
    Ok((!bytes.is_empty()).then_some(bytes))
}

/// The rest of a document that begins with this line.
fn whole(input: &mut impl BufRead, mut bytes: Vec<u8>) -> Read<Vec<u8>> {
    let room = (DOCUMENT_BYTES_MAX + 1).saturating_sub(bytes.len()) as u64;
    input.take(room).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > DOCUMENT_BYTES_MAX {
        return Err(too_large("the document"));
    }
    Ok(bytes)
}

fn too_large(what: &str) -> Refused {
    let mib = DOCUMENT_BYTES_MAX / (1024 * 1024);
    let what = format!("{what} is longer than {mib} MiB, the most that is read at once; split it");
    Refused { kind: ErrorKind::TooLarge, line: None, what, source: None }
}

fn unreadable(source: std::io::Error) -> Refused {
    Refused { kind: ErrorKind::Io, line: None, what: "it cannot be read".to_owned(), source: Some(source) }
}

fn fault_error(lines_before: u64, fault: Fault) -> Refused {
    invalid(lines_before + fault.line, &fault.what)
}

fn invalid(line: u64, what: &str) -> Refused {
    Refused { kind: ErrorKind::Invalid, line: Some(line), what: what.to_owned(), source: None }
}
