//! The hash of what a file holds, at the price of what it occupies.
//!
//! A file is seen as blocks of 4 KiB. Those that hold only zeros are left out, whether they are holes or were
//! written:
//!
//! ```text
//!  data    = H(the other blocks, one after the other)
//!  runs    = H(first block, number of blocks; for every run of such blocks)
//!  content = H(size, data, runs)
//! ```
//!
//! So a file of 1 TiB without data costs one seek, and equals one whose zeros are all written out. Host and guest know it by
//! the same rule: what is the same file is the same to both.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::{Errno, pread};

const TAG: &[u8] = b"glasshouse file 1\n";
const ATTRIBUTES: &[u8] = b"glasshouse xattrs 1\n";
const BLOCK: usize = 4096;
const ZEROS: [u8; BLOCK] = [0; BLOCK];
/// Bytes that are read at once. Up to this size, nobody looks for holes.
const PIECE: usize = 1 << 20;

/// A hash of content or of attributes.
pub type Hash = [u8; 32];

/// What small files hold, by its hash.
pub type Kept = HashMap<Hash, Vec<u8>>;

/// How much of it is kept.
#[derive(Debug, Clone, Copy, Default)]
pub struct Room {
    /// A file with more is not kept. At most what is read at once.
    pub file_bytes: u64,
    /// All together.
    pub bytes: u64,
}

/// Hashes content. Holds the buffer, so that it is made once for many files.
#[derive(Debug)]
pub struct Contents {
    buffer: Vec<u8>,
    room: Room,
    kept: Kept,
    has_read: bool,
}

impl Default for Contents {
    fn default() -> Contents {
        Contents::new()
    }
}

impl Contents {
    /// One that keeps nothing.
    pub fn new() -> Contents {
        Contents::keeping(Room::default())
    }

    /// One that keeps what small files hold.
    pub fn keeping(room: Room) -> Contents {
        let file_bytes = room.file_bytes.min(PIECE as u64);
        let room = Room { file_bytes, ..room };
        Contents { buffer: Vec::new(), room, kept: Kept::new(), has_read: false }
    }

    /// Whether anything was read.
    pub fn has_read(&self) -> bool {
        self.has_read
    }

    /// What it has kept.
    pub fn kept(self) -> Kept {
        self.kept
    }

    /// How much may still be kept.
    pub fn room(&self) -> Room {
        self.room
    }

    /// Takes all that another one kept. There may be no room for it left: what comes first is wanted first, and each
    /// has the first of what it read.
    pub fn keep_too(&mut self, others: Kept) {
        self.has_read = true;
        for (hash, bytes) in others {
            self.keep(hash, bytes);
        }
    }

    fn keep(&mut self, hash: Hash, bytes: Vec<u8>) {
        let length = bytes.len() as u64;
        // Files that hold the same are kept once.
        if self.kept.insert(hash, bytes).is_none() {
            self.room.bytes = self.room.bytes.saturating_sub(length);
        }
    }

    /// The hash of the first `size` bytes of a file. What is missing of them counts as zeros: the caller sees
    /// by the file's times that it shrank.
    pub fn hash(&mut self, file: BorrowedFd<'_>, size: u64) -> io::Result<Hash> {
        self.has_read = true;
        let mut blocks = Blocks::default();
        if size <= PIECE as u64 {
            self.read(file, 0, size, &mut blocks)?;
            let hash = blocks.finish(size);
            if size <= self.room.file_bytes && size <= self.room.bytes {
                self.keep(hash, self.buffer[..size as usize].to_vec());
            }
            return Ok(hash);
        }
        let mut at = 0;
        while at < size {
            let Some((from, to)) = next_data(file, at, size)? else { break };
            at = from;
            while at < to {
                let length = (to - at).min(PIECE as u64);
                self.read(file, at, length, &mut blocks)?;
                at += length;
            }
        }
        Ok(blocks.finish(size))
    }

    /// Reads at most a piece, from the beginning of a block.
    fn read(&mut self, file: BorrowedFd<'_>, at: u64, length: u64, blocks: &mut Blocks) -> io::Result<()> {
        // Most files are small: no larger than it has to be.
        if self.buffer.len() < length as usize {
            self.buffer.resize(length as usize, 0);
        }
        let piece = &mut self.buffer[..length as usize];
        let mut filled = 0;
        while filled < piece.len() {
            match pread(file, &mut piece[filled..], at + filled as u64) {
                Ok(0) => {
                    piece[filled..].fill(0);
                    break;
                }
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        blocks.add(at / BLOCK as u64, piece);
        Ok(())
    }
}

/// The hash of one file.
pub fn content_hash(file: BorrowedFd<'_>, size: u64) -> io::Result<Hash> {
    Contents::new().hash(file, size)
}

/// The next stretch with data at or after `at`, in whole blocks, but never beyond the size.
pub fn next_data(file: BorrowedFd<'_>, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    let block = BLOCK as u64;
    let from = match seek(file, SeekFrom::Data(at)) {
        Ok(from) => (from / block * block).max(at),
        Err(Errno::NXIO) => return Ok(None),
        // This file system does not tell.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(e) => return Err(e.into()),
    };
    if from >= size {
        return Ok(None);
    }
    let to = match seek(file, SeekFrom::Hole(from)) {
        Ok(to) => to.div_ceil(block).saturating_mul(block),
        // It shrank.
        Err(Errno::NXIO) => size,
        Err(e) => return Err(e.into()),
    };
    // At least one block, even if the file changes between the two answers.
    Ok(Some((from, to.max(from + block).min(size))))
}

/// The hash of a few bytes: a link's target, a device's number.
pub fn hash(bytes: &[u8]) -> Hash {
    *blake3::hash(bytes).as_bytes()
}

/// Whether an attribute is part of what a box sees of the file.
pub fn counts(name: &[u8]) -> bool {
    name.starts_with(b"user.") && !name.starts_with(b"user.overlay.") || name == b"security.capability"
}

/// The hash of attributes, each with its value, in any order. `None`: there are none.
pub fn attributes_hash(mut counted: Vec<(Vec<u8>, Vec<u8>)>) -> Option<Hash> {
    if counted.is_empty() {
        return None;
    }
    counted.sort();
    let mut hasher = blake3::Hasher::new();
    hasher.update(ATTRIBUTES);
    for part in counted.iter().flat_map(|(name, value)| [name, value]) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    Some(*hasher.finalize().as_bytes())
}

/// The blocks that are not all zeros.
#[derive(Default)]
struct Blocks {
    data: blake3::Hasher,
    runs: blake3::Hasher,
    /// First block, number of blocks.
    run: Option<(u64, u64)>,
}

impl Blocks {
    /// Adds bytes that begin with this block.
    fn add(&mut self, first: u64, bytes: &[u8]) {
        let mut from = 0;
        for (n, block) in bytes.chunks(BLOCK).enumerate() {
            if *block != ZEROS[..block.len()] {
                let at = first + n as u64;
                match &mut self.run {
                    Some((start, count)) if *start + *count == at => *count += 1,
                    _ => {
                        self.close();
                        self.run = Some((at, 1));
                    }
                }
                continue;
            }
            self.data.update(&bytes[from..n * BLOCK]);
            from = n * BLOCK + block.len();
        }
        self.data.update(&bytes[from..]);
    }

    fn close(&mut self) {
        if let Some((start, count)) = self.run.take() {
            self.runs.update(&start.to_le_bytes());
            self.runs.update(&count.to_le_bytes());
        }
    }

    fn finish(mut self, size: u64) -> Hash {
        self.close();
        let mut all = blake3::Hasher::new();
        all.update(TAG);
        all.update(&size.to_le_bytes());
        all.update(self.data.finalize().as_bytes());
        all.update(self.runs.finalize().as_bytes());
        *all.finalize().as_bytes()
    }
}
