//! The reader: the lines of a trace in order, each at most `LINE_BYTES_MAX` long.
//!
//! It takes no lock, so that looking at a trace never slows its writers. A last line without a newline is
//! being written right now, or its writer died; either way it is not a line yet.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::blobs::Blobs;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::LINE_BYTES_MAX;
use crate::line::Line;
use crate::tail::{self, TailError};
use crate::writer::FILE;

/// Reads a trace.
#[derive(Debug)]
pub struct Reader {
    lines: RawLines,
    blobs: Blobs,
    number: u64,
    torn_tail: bool,
    done: bool,
}

/// The lines of a trace as bytes.
#[derive(Debug)]
pub(crate) struct RawLines {
    pub(crate) path: PathBuf,
    input: BufReader<File>,
    /// How many bytes of whole lines were read.
    bytes: u64,
}

/// A place between two lines of a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    bytes: u64,
    lines: u64,
}

/// What came next in the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RawLine {
    /// A line, without its newline.
    Whole(Vec<u8>),
    /// A line longer than any may be; the reader is behind it now.
    TooLong,
    /// Bytes without a newline at the end of the file.
    Torn,
    /// Nothing.
    End,
}

impl Reader {
    /// Opens the trace in `dir`.
    pub fn open(dir: &Path, blobs: &Path) -> Result<Reader> {
        let (lines, blobs) = (RawLines::open(dir)?, Blobs::new(blobs));
        Ok(Reader { lines, blobs, number: 0, torn_tail: false, done: false })
    }

    /// Opens the trace in `dir` behind the lines that another reader has read.
    pub fn open_at(dir: &Path, blobs: &Path, position: Position) -> Result<Reader> {
        let mut reader = Reader::open(dir, blobs)?;
        let moved = reader.lines.input.seek(SeekFrom::Start(position.bytes));
        moved.map_err(|e| Error::io("read", &reader.lines.path, e))?;
        (reader.lines.bytes, reader.number) = (position.bytes, position.lines);
        Ok(reader)
    }

    /// Behind the last whole line of the trace in `dir`, without reading those before it.
    pub fn end_of(dir: &Path) -> Result<Position> {
        let path = dir.join(FILE);
        let failed = |e| Error::io("read", &path, e);
        let file = File::open(&path).map_err(|e| Error::io("open", &path, e))?;
        let length = file.metadata().map_err(failed)?.len();
        let tail = tail::learn(&file, length).map_err(|e| match e {
            TailError::Io(e) => failed(e),
            TailError::Corrupt(why) => {
                Error::new(ErrorKind::Corrupt, format!("read {}: {why}", path.display()))
            }
        })?;
        Ok(Position { bytes: tail.end, lines: tail.seq })
    }

    /// Behind the last whole line that was read.
    pub fn position(&self) -> Position {
        Position { bytes: self.lines.bytes, lines: self.number - u64::from(self.done) }
    }

    /// The store with the payloads of this trace.
    pub fn blobs(&self) -> Blobs {
        self.blobs.clone()
    }

    /// Whether the lines were followed by a part of one.
    pub fn torn_tail(&self) -> bool {
        self.torn_tail
    }

    fn bad(&self, what: &str) -> Error {
        let message = format!("read line {} of {}: {what}", self.number, self.lines.path.display());
        Error::new(ErrorKind::Corrupt, message)
    }
}

impl Iterator for Reader {
    type Item = Result<Line>;

    fn next(&mut self) -> Option<Result<Line>> {
        if self.done {
            return None;
        }
        self.number += 1;
        let next = self.lines.next();
        // A damaged line is followed by others; a file that cannot be read would be an error for ever.
        self.done = matches!(next, Ok(RawLine::Torn | RawLine::End) | Err(_));
        self.torn_tail = matches!(next, Ok(RawLine::Torn));
        match next {
            Ok(RawLine::Whole(bytes)) => {
                Some(serde_json::from_slice(&bytes).map_err(|_| self.bad("it is not a line of a trace")))
            }
            Ok(RawLine::TooLong) => Some(Err(self.bad("it is longer than any line may be"))),
            Ok(RawLine::Torn | RawLine::End) => None,
            Err(e) => Some(Err(Error::io("read", &self.lines.path, e))),
        }
    }
}

impl RawLines {
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let file = File::open(&path).map_err(|e| Error::io("open", &path, e))?;
        Ok(RawLines { path, input: BufReader::with_capacity(64 * 1024, file), bytes: 0 })
    }

    pub(crate) fn next(&mut self) -> io::Result<RawLine> {
        let mut bytes = Vec::new();
        let read = (&mut self.input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut bytes)?;
        if bytes.pop_if(|last| *last == b'\n').is_some() {
            self.bytes += read as u64;
            return Ok(RawLine::Whole(bytes));
        }
        if bytes.len() > LINE_BYTES_MAX {
            self.bytes += (read + self.input.skip_until(b'\n')?) as u64;
            return Ok(RawLine::TooLong);
        }
        Ok(if bytes.is_empty() { RawLine::End } else { RawLine::Torn })
    }
}
