//! What a command wrote: in order, numbered, bounded.
//!
//! The first bytes are kept for good (the head), the last ones in a ring (the tail); what lies between is counted.
//! Every reader is a place in this log, so a client that comes late, comes again or dies loses nothing that is kept.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use glasshouse_linux::rustix::fs::{MemfdFlags, memfd_create};
use glasshouse_linux::{process, rustix};
use glasshouse_protocol::OutputStream;
use glasshouse_protocol::limits::DATA_CHUNK_MAX;

/// Pieces smaller than this are joined with the one before if they are of the same stream.
const JOIN_BYTES: usize = 4096;
/// What a piece costs beyond its bytes.
const PIECE_BYTES: usize = 48;

/// Less than this is not worth a file.
const STOW_BYTES: usize = 16 * 1024;
/// What one read can add at the most.
const READ_COST: usize = 64 * 1024 + PIECE_BYTES;

#[derive(Debug)]
struct Piece {
    offset: u64,
    stream: OutputStream,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Here(Vec<u8>),
    /// At this place of the log's file.
    Stowed {
        place: u64,
        len: usize,
    },
}

impl Piece {
    fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Here(bytes) => bytes.len(),
            Bytes::Stowed { len, .. } => *len,
        }
    }

    fn end(&self) -> u64 {
        self.offset + self.len() as u64
    }

    fn cost(&self) -> usize {
        self.len() + PIECE_BYTES
    }
}

/// The output of one command.
#[derive(Debug)]
pub(crate) struct Log {
    head: Vec<Piece>,
    head_room: usize,
    tail: VecDeque<Piece>,
    tail_cost: usize,
    tail_max: usize,
    end: u64,
    stdout: u64,
    stderr: u64,
    /// Where the bytes of stowed pieces are.
    file: Option<OwnedFd>,
}

/// What a reader at some place finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    /// Bytes at that place.
    Bytes(OutputStream, Cow<'a, [u8]>),
    /// Nothing is kept before this place.
    Gap(u64),
    /// Nothing more yet.
    End,
}

impl Log {
    /// Keeps about `kept` bytes, half of them at the head, and at least `window` bytes of the tail.
    pub(crate) fn new(kept: u64, window: usize) -> Log {
        let half = (kept / 2) as usize;
        Log {
            head: Vec::new(),
            head_room: half,
            tail: VecDeque::new(),
            tail_cost: 0,
            tail_max: half.max(window),
            end: 0,
            stdout: 0,
            stderr: 0,
            file: None,
        }
    }

    pub(crate) fn push(&mut self, stream: OutputStream, mut bytes: &[u8]) {
        match stream {
            OutputStream::Stdout => self.stdout += bytes.len() as u64,
            OutputStream::Stderr => self.stderr += bytes.len() as u64,
            // What a run told is no output: it is counted among all bytes only.
            OutputStream::Results => {}
        }
        if self.head_room > 0 {
            let (fits, rest) = bytes.split_at(bytes.len().min(self.head_room));
            let cost = join_or_push(&mut VecOrDeque::Vec(&mut self.head), self.end, stream, fits);
            self.head_room = self.head_room.saturating_sub(cost);
            self.end += fits.len() as u64;
            bytes = rest;
        }
        if bytes.is_empty() {
            return;
        }
        self.tail_cost += join_or_push(&mut VecOrDeque::Deque(&mut self.tail), self.end, stream, bytes);
        self.end += bytes.len() as u64;
        while self.tail_cost > self.tail_max + self.tail.front().map_or(0, Piece::cost) {
            match self.tail.pop_front() {
                Some(piece) => self.tail_cost -= piece.cost(),
                None => break,
            }
        }
    }

    pub(crate) fn at(&self, place: u64) -> Found<'_> {
        if let Some(piece) = find(&self.head, place) {
            return self.found(piece, place);
        }
        let at = self.tail.partition_point(|piece| piece.end() <= place);
        match self.tail.get(at) {
            Some(piece) if piece.offset <= place => self.found(piece, place),
            Some(piece) => Found::Gap(piece.offset),
            None if place < self.end => Found::Gap(self.end),
            None => Found::End,
        }
    }

    fn found<'a>(&'a self, piece: &'a Piece, place: u64) -> Found<'a> {
        let from = (place - piece.offset) as usize;
        match (&piece.bytes, &self.file) {
            (Bytes::Here(bytes), _) => Found::Bytes(piece.stream, bytes[from..].into()),
            (Bytes::Stowed { place, len }, Some(file)) => {
                let mut bytes = vec![0; (len - from).min(DATA_CHUNK_MAX)];
                match rustix::io::pread(file, &mut bytes[..], place + from as u64) {
                    Ok(n) if n > 0 => {
                        bytes.truncate(n);
                        Found::Bytes(piece.stream, bytes.into())
                    }
                    // What cannot be read is not kept.
                    _ => Found::Gap(piece.end()),
                }
            }
            (Bytes::Stowed { .. }, None) => Found::Gap(piece.end()),
        }
    }

    /// Moves what is kept of an ended command out of our own memory, into a file that is in memory too. The kernel
    /// counts what we hold at the start of a command as held by the command.
    pub(crate) fn stow(&mut self) -> io::Result<()> {
        if self.file.is_some() || self.cost() < STOW_BYTES {
            return Ok(());
        }
        let file = std::fs::File::from(memfd_create("output", MemfdFlags::CLOEXEC)?);
        let mut next = 0;
        for piece in self.head.iter_mut().chain(&mut self.tail) {
            if let Bytes::Here(bytes) = &piece.bytes {
                std::os::unix::fs::FileExt::write_all_at(&file, bytes, next)?;
            }
            next += piece.len() as u64;
        }
        let mut place = 0;
        for piece in self.head.iter_mut().chain(&mut self.tail) {
            let len = piece.len();
            piece.bytes = Bytes::Stowed { place, len };
            place += len as u64;
        }
        self.file = Some(file.into());
        process::give_back_memory();
        Ok(())
    }

    /// Whether one more read could push out what a reader at this place has not seen yet.
    pub(crate) fn would_lose(&self, place: u64) -> bool {
        self.tail_cost + READ_COST > self.tail_max
            && self.tail.front().is_some_and(|piece| piece.end() > place)
    }

    /// The place of the next byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn stdout_bytes(&self) -> u64 {
        self.stdout
    }

    pub(crate) fn stderr_bytes(&self) -> u64 {
        self.stderr
    }

    /// Memory held.
    pub(crate) fn cost(&self) -> usize {
        self.head.iter().map(Piece::cost).sum::<usize>() + self.tail_cost
    }
}

fn find(pieces: &[Piece], place: u64) -> Option<&Piece> {
    let at = pieces.partition_point(|piece| piece.end() <= place);
    pieces.get(at).filter(|piece| piece.offset <= place)
}

enum VecOrDeque<'a> {
    Vec(&'a mut Vec<Piece>),
    Deque(&'a mut VecDeque<Piece>),
}

/// Adds bytes at the end; what that costs.
fn join_or_push(pieces: &mut VecOrDeque<'_>, offset: u64, stream: OutputStream, bytes: &[u8]) -> usize {
    let last = match pieces {
        VecOrDeque::Vec(pieces) => pieces.last_mut(),
        VecOrDeque::Deque(pieces) => pieces.back_mut(),
    };
    if let Some(last) = last
        && last.stream == stream
        && last.end() == offset
        && last.len() + bytes.len() <= JOIN_BYTES
        && let Bytes::Here(there) = &mut last.bytes
    {
        there.extend_from_slice(bytes);
        return bytes.len();
    }
    let piece = Piece { offset, stream, bytes: Bytes::Here(bytes.to_vec()) };
    let cost = piece.cost();
    match pieces {
        VecOrDeque::Vec(pieces) => pieces.push(piece),
        VecOrDeque::Deque(pieces) => pieces.push_back(piece),
    }
    cost
}

#[cfg(test)]
mod tests {
    use super::*;
    use OutputStream::{Stderr, Stdout};

    fn read_all(log: &Log, mut place: u64) -> (Vec<u8>, Vec<(u64, u64)>) {
        let (mut bytes, mut gaps) = (Vec::new(), Vec::new());
        loop {
            match log.at(place) {
                Found::Bytes(_, piece) => {
                    bytes.extend_from_slice(&piece);
                    place += piece.len() as u64;
                }
                Found::Gap(to) => {
                    gaps.push((place, to));
                    place = to;
                }
                Found::End => return (bytes, gaps),
            }
        }
    }

    #[test]
    fn what_fits_is_kept_whole_and_in_order() {
        let mut log = Log::new(1 << 20, 0);
        for n in 0..1000u32 {
            log.push(if n % 3 == 0 { Stderr } else { Stdout }, &n.to_le_bytes());
        }
        let expected: Vec<u8> = (0..1000u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(read_all(&log, 0), (expected.clone(), vec![]));
        assert_eq!(read_all(&log, 1001).0, expected[1001..]);
    }

    #[test]
    fn beyond_the_bound_head_and_tail_stay_and_the_rest_is_a_gap() {
        let mut log = Log::new(20_000, 0);
        let all: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
        for piece in all.chunks(777) {
            log.push(Stdout, piece);
        }
        let (bytes, gaps) = read_all(&log, 0);
        let [(from, to)] = gaps[..] else { panic!("{gaps:?}") };
        assert_eq!(bytes[..from as usize], all[..from as usize]);
        assert_eq!(bytes[from as usize..], all[to as usize..]);
        assert_eq!((log.end(), log.stdout_bytes()), (1_000_000, 1_000_000));
        assert!(log.cost() < 40_000, "{}", log.cost());
        let cost = log.cost();
        log.stow().unwrap();
        assert_eq!(read_all(&log, 0), (bytes, vec![(from, to)]), "stowed, it is the same");
        assert_eq!(read_all(&log, 999_990).0, all[999_990..]);
        assert_eq!(log.cost(), cost);
    }

    #[test]
    fn many_tiny_pieces_of_changing_streams_stay_bounded() {
        let mut log = Log::new(10_000, 0);
        for n in 0..100_000 {
            log.push(if n % 2 == 0 { Stderr } else { Stdout }, b"x");
        }
        assert!(log.cost() < 30_000, "{}", log.cost());
    }
}
