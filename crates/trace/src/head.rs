//! The head: a small file beside the trace that names its last line.
//!
//! A chain of hashes vouches for every line but the last, and for nothing that was cut off behind it. The
//! head does, against accidents and careless edits; whoever can write to the directory can of course forge
//! it, which is why `verify` reports the hash for keeping elsewhere. It is written after the line, so that a
//! writer that dies between the two leaves a head that is one line behind, never one ahead.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::hash::Hash;

/// The file's name in the directory of a trace.
pub(crate) const FILE: &str = "head";
/// Its length: 20 digits, a space, 64 hex digits, a newline. It never changes, so it is overwritten in place.
const BYTES: usize = 20 + 1 + 64 + 1;

/// The last line, as far as the head knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) seq: u64,
    pub(crate) hash: Hash,
}

/// What the head says; nothing if it is empty or not one of ours.
pub(crate) fn read(file: &File) -> io::Result<Option<Head>> {
    let mut bytes = [0; BYTES];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => Ok(parse(&bytes)),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}

/// Notes the last line.
pub(crate) fn write(file: &File, head: Head) -> io::Result<()> {
    file.write_all_at(format!("{:020} {}\n", head.seq, head.hash).as_bytes(), 0)
}

fn parse(bytes: &[u8]) -> Option<Head> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let (seq, hash) = text.split_once(' ')?;
    Some(Head { seq: seq.parse().ok()?, hash: Hash::parse(hash)? })
}
