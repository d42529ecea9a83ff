//! The check of a trace: numbering, chain, head, and the blobs that its lines name.
//!
//! A line whose hash is not what the next one says shows only that one of the two was changed. The line after
//! decides: if it vouches for the second, the first is the bad one.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

use crate::blobs::{BlobState, Blobs};
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::head::{self, Head};
use crate::limits::MISSING_BLOBS_NAMED_MAX;
use crate::line::{Line, Link, blobs_named};
use crate::reader::{RawLine, RawLines};

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// How many whole lines there are.
    pub lines: u64,
    /// Whether the lines are what was written, up to the last one, and every blob is there.
    pub ok: bool,
    /// The first line that is not what was written.
    pub first_bad: Option<Bad>,
    /// Whether a part of a line follows: its writer died, or is at it right now.
    pub torn_tail: bool,
    /// Whether there is no head of ours that would tell if lines were cut off at the end. A trace of one line may have
    /// none yet.
    pub unguarded: bool,
    /// How many of the blobs that lines name are not there.
    pub missing_blobs: u64,
    /// The first of them, with the number of the line.
    pub missing_named: Vec<(u64, Hash)>,
    /// The hash of the last line. Kept elsewhere, it proves later that nothing was changed or cut off.
    pub head: Option<Hash>,
}

impl Report {
    /// Whether all that is there is what was written. If it is not ok all the same, lines may be missing at its end.
    pub fn is_whole(&self) -> bool {
        self.first_bad.is_none() && self.missing_blobs == 0
    }
}

/// A line that is not what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    /// Its number in the file, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub why: Why,
}

/// What is wrong with a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It cannot be read at all.
    NotALine,
    /// It has another number than its place in the file.
    Number {
        /// The number it has.
        found: u64,
    },
    /// Its bytes do not have the hash that the next line, or the head, says.
    Changed,
    /// It names another line before it than the one that is there.
    Prev,
    /// The head says that it was written, and it is not there.
    CutOff,
    /// A blob that it names is not what its name says.
    Blob {
        /// Which one.
        hash: Hash,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NotALine => write!(f, "it is not a line of a trace"),
            Why::Number { found } => write!(f, "it has the number {found}"),
            Why::Changed => write!(f, "it was changed after it was written"),
            Why::Prev => write!(f, "it does not follow the line before it"),
            Why::CutOff => write!(f, "it was written and is not there"),
            Why::Blob { hash } => write!(f, "its blob {hash} was changed"),
        }
    }
}

/// Checks the trace in `dir`. An error means that it could not be checked, not that it is bad.
pub fn verify(dir: &Path, blobs: &Path) -> Result<Report> {
    // The head is read first: lines written while we read are ahead of it, never behind.
    let head = read_head(dir)?;
    let mut lines = RawLines::open(dir)?;
    let mut check = Check { head, blobs: Blobs::new(blobs), seen: HashMap::new(), report: Report::default() };
    let mut before = Hash::ZERO;
    let mut window = VecDeque::new();
    loop {
        // The line to check and the one after it.
        while window.len() < 2 {
            match lines.next().map_err(|e| Error::io("read", &lines.path, e))? {
                RawLine::Whole(bytes) => window.push_back(Some(bytes)),
                RawLine::TooLong => window.push_back(None),
                RawLine::Torn => {
                    check.report.torn_tail = true;
                    break;
                }
                RawLine::End => break,
            }
        }
        let Some(line) = window.pop_front() else { break };
        check.report.lines += 1;
        before = check.line(line.as_deref(), before, window.front().and_then(Option::as_deref))?;
        check.report.head = Some(before);
    }
    // Looked at again: the first one may have been written meanwhile.
    check.report.unguarded = check.report.lines > 1 && check.head.is_none() && read_head(dir)?.is_none();
    Ok(check.finish())
}

struct Check {
    head: Option<Head>,
    blobs: Blobs,
    /// Blobs already looked at.
    seen: HashMap<Hash, BlobState>,
    report: Report,
}

impl Check {
    /// Checks a line against the hash of the one before it, and returns its own.
    fn line(&mut self, line: Option<&[u8]>, before: Hash, next: Option<&[u8]>) -> Result<Hash> {
        let number = self.report.lines;
        let Some(line) = line else {
            self.bad(number, Why::NotALine);
            return Ok(Hash::ZERO);
        };
        let hash = Hash::of(line);
        match serde_json::from_slice::<Line>(line) {
            Err(_) => self.bad(number, Why::NotALine),
            Ok(read) if read.seq != number => self.bad(number, Why::Number { found: read.seq }),
            Ok(read) if read.prev != before => {
                if number > 1 && self.vouched_for(number, hash, next) {
                    self.bad(number - 1, Why::Changed);
                } else {
                    self.bad(number, Why::Prev);
                }
            }
            Ok(_) => {}
        }
        if let Some(head) = self.head.filter(|head| head.seq == number)
            && head.hash != hash
        {
            self.bad(number, Why::Changed);
        }
        for blob in blobs_named(line) {
            let state = match self.seen.get(&blob.hash) {
                Some(state) => *state,
                None => self.blobs.check(&blob)?,
            };
            self.seen.insert(blob.hash, state);
            match state {
                BlobState::Good => {}
                BlobState::Changed => self.bad(number, Why::Blob { hash: blob.hash }),
                BlobState::Missing => self.missing(number, blob.hash),
            }
        }
        Ok(hash)
    }

    /// Whether somebody behind the line says that it has this hash.
    fn vouched_for(&self, number: u64, hash: Hash, next: Option<&[u8]>) -> bool {
        match (next, self.head) {
            (Some(next), _) => serde_json::from_slice::<Link>(next).is_ok_and(|link| link.prev == hash),
            (None, Some(head)) if head.seq == number => head.hash == hash,
            // Nobody is left to ask; there is more of a line to change than its `prev`.
            (None, _) => true,
        }
    }

    fn bad(&mut self, line: u64, why: Why) {
        self.report.first_bad.get_or_insert(Bad { line, why });
    }

    fn missing(&mut self, line: u64, hash: Hash) {
        self.report.missing_blobs += 1;
        if self.report.missing_named.len() < MISSING_BLOBS_NAMED_MAX {
            self.report.missing_named.push((line, hash));
        }
    }

    fn finish(mut self) -> Report {
        let lines = self.report.lines;
        if self.head.is_some_and(|head| head.seq > lines) {
            self.bad(lines + 1, Why::CutOff);
        }
        self.report.ok = self.report.is_whole() && !self.report.unguarded;
        self.report
    }
}

fn read_head(dir: &Path) -> Result<Option<Head>> {
    let path = dir.join(head::FILE);
    match File::open(&path).and_then(|file| head::read(&file)) {
        Ok(head) => Ok(head),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("read", &path, e)),
    }
}
