//! Files with holes in a tar stream: a map, and then what lies between the holes, as GNU tar writes it with pax records (its
//! format 1.0). `crates/linux/src/unpack/sparse.rs` draws it and reads it.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use glasshouse_linux::rustix::fs::fstat;

use super::Unchanged;
use crate::snapshot::index::next_data;

/// A smaller file is written with its zeros.
const BYTES_MIN: u64 = 64 << 10;
/// Pieces between holes. The last one takes all that is left, with its holes.
const PIECES_MAX: usize = 20_000;
const BLOCK: usize = 512;

/// A file without its holes: the map, and the pieces.
pub(super) struct Pieces {
    file: Unchanged,
    /// Where each begins, and its length.
    pieces: VecDeque<(u64, u64)>,
    map: io::Cursor<Vec<u8>>,
    bytes: u64,
}

impl Pieces {
    /// The file as pieces; as it was, if it has no holes worth a map.
    pub(super) fn of(file: Unchanged) -> io::Result<Result<Pieces, Unchanged>> {
        let (size, stat) = (file.entry.size, fstat(&file.file)?);
        if size < BYTES_MIN || (stat.st_blocks as u64).saturating_mul(512) >= size {
            return Ok(Err(file));
        }
        let (mut pieces, mut at) = (VecDeque::new(), 0);
        while at < size {
            let Some((from, to)) = next_data(file.file.as_fd(), at, size)? else { break };
            let to = if pieces.len() + 1 == PIECES_MAX { size } else { to };
            pieces.push_back((from, to - from));
            at = to;
        }
        if pieces == [(0, size)] {
            return Ok(Err(file));
        }
        let mut map = format!("{}\n", pieces.len());
        for (offset, length) in &pieces {
            map.push_str(&format!("{offset}\n{length}\n"));
        }
        let mut map = map.into_bytes();
        map.resize(map.len().next_multiple_of(BLOCK), 0);
        let bytes = map.len() as u64 + pieces.iter().map(|(_, length)| length).sum::<u64>();
        Ok(Ok(Pieces { file, pieces, map: io::Cursor::new(map), bytes }))
    }

    /// Bytes that are written.
    pub(super) fn length(&self) -> u64 {
        self.bytes
    }

    pub(super) fn file(&self) -> &Unchanged {
        &self.file
    }

    /// What a reader has to be told before.
    pub(super) fn records(&self) -> Vec<(String, Vec<u8>)> {
        let size = self.file.entry.size.to_string();
        let records = [("major", "1"), ("minor", "0"), ("realsize", size.as_str())];
        records.map(|(key, value)| (format!("GNU.sparse.{key}"), value.as_bytes().to_vec())).to_vec()
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mapped = self.map.read(buffer)?;
        if mapped > 0 || buffer.is_empty() {
            return Ok(mapped);
        }
        let Some((offset, length)) = self.pieces.front_mut() else {
            self.file.check()?;
            return Ok(0);
        };
        let room = usize::try_from(*length).unwrap_or(usize::MAX).min(buffer.len());
        let n = self.file.file.read_at(&mut buffer[..room], *offset)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        (*offset, *length) = (*offset + n as u64, *length - n as u64);
        if *length == 0 {
            self.pieces.pop_front();
        }
        Ok(n)
    }
}
