//! The end of a trace: what a writer has to know before it can append.
//!
//! Read backwards in growing steps, and never further than two of the longest lines.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::error::ErrorKind;
use crate::hash::Hash;
use crate::limits::LINE_BYTES_MAX;
use crate::line::Link;

/// The first step backwards; most lines are shorter.
const STEP_BYTES: u64 = 4 * 1024;
/// A torn line, a whole line and the newlines around them.
const REACH_BYTES: u64 = 2 * (LINE_BYTES_MAX as u64 + 1);

/// Where a trace ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The end of the last whole line.
    pub(crate) end: u64,
    /// The number of that line; 0 if there is none.
    pub(crate) seq: u64,
    /// Its hash; zero if there is none.
    pub(crate) prev: Hash,
    /// The bytes behind it, left by a writer that died.
    pub(crate) torn_bytes: u64,
}

/// Why a tail cannot be used.
#[derive(Debug)]
pub(crate) enum TailError {
    Io(io::Error),
    Corrupt(&'static str),
}

impl TailError {
    pub(crate) fn kind(&self) -> ErrorKind {
        match self {
            TailError::Io(_) => ErrorKind::Io,
            TailError::Corrupt(_) => ErrorKind::Corrupt,
        }
    }
}

/// Looks at the end of a trace of `len` bytes. Only a holder of the lock sees a tail that stays true.
pub(crate) fn learn(file: &File, len: u64) -> Result<Tail, TailError> {
    let mut step = STEP_BYTES;
    loop {
        let from = len.saturating_sub(step.min(REACH_BYTES));
        let mut bytes = vec![0; (len - from) as usize];
        file.read_exact_at(&mut bytes, from).map_err(TailError::Io)?;
        if let Some(tail) = find(&bytes, from)? {
            return Ok(tail);
        }
        if step >= REACH_BYTES {
            return Err(TailError::Corrupt("its last line is longer than any line may be"));
        }
        step *= 8;
    }
}

/// The tail, if `bytes`, which begin at `from` in the file, reach back far enough to tell.
fn find(bytes: &[u8], from: u64) -> Result<Option<Tail>, TailError> {
    let Some(newline) = bytes.iter().rposition(|&b| b == b'\n') else {
        if from > 0 {
            return Ok(None);
        }
        return Ok(Some(Tail { end: 0, seq: 0, prev: Hash::ZERO, torn_bytes: bytes.len() as u64 }));
    };
    let start = match bytes[..newline].iter().rposition(|&b| b == b'\n') {
        Some(before) => before + 1,
        None if from == 0 => 0,
        None => return Ok(None),
    };
    let line = &bytes[start..newline];
    let link: Link = serde_json::from_slice(line)
        .map_err(|_| TailError::Corrupt("its last line is not a line of a trace"))?;
    Ok(Some(Tail {
        end: from + newline as u64 + 1,
        seq: link.seq,
        prev: Hash::of(line),
        torn_bytes: (bytes.len() - newline - 1) as u64,
    }))
}
