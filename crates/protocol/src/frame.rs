//! The frame: a fixed header that can be checked before anything is believed.
//!
//! ```text
//!  0        4        8    9        12
//!  | length | stream | kind | zeros | body … |
//! ```
//! All numbers are little-endian. `length` counts the body alone and is at most [`FRAME_BODY_MAX`]; the three bytes
//! after the kind are zero. Anything else ends the connection: there is no way back into step.
//!
//! | kind | body |
//! |---|---|
//! | `Request`, `Reply` | JSON |
//! | `Data` | stdin, or bytes of a file, either way |
//! | `End` | empty: no more `Data` on this stream from this side |
//! | `Stdout`, `Stderr`, `Results` | 8 bytes place among all output of the command, then the bytes |
//! | `Credit` | 8 bytes: so many more bytes may be sent on this stream |
//! | `Cancel` | empty: the host has given this stream up |

use crate::limits::FRAME_BODY_MAX;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 12;
/// Bytes before the output in a `Stdout`, `Stderr` or `Results` body.
pub const OFFSET_BYTES: usize = 8;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// JSON from the host.
    Request = 1,
    /// JSON from the guest.
    Reply = 2,
    /// Bytes of stdin or of a file.
    Data = 3,
    /// No more `Data` from this side.
    End = 4,
    /// Bytes of standard output.
    Stdout = 5,
    /// Bytes of standard error.
    Stderr = 6,
    /// More may be sent.
    Credit = 7,
    /// The host is not interested in this stream any more.
    Cancel = 8,
    /// Bytes of the results of code.
    Results = 9,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Data,
            4 => Kind::End,
            5 => Kind::Stdout,
            6 => Kind::Stderr,
            7 => Kind::Credit,
            8 => Kind::Cancel,
            9 => Kind::Results,
            _ => return None,
        })
    }
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The stream it belongs to.
    pub stream: u32,
    /// What it is.
    pub kind: Kind,
    /// Its body.
    pub body: Vec<u8>,
}

/// Why a byte stream is not made of frames. The connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// A body longer than [`FRAME_BODY_MAX`] was announced.
    TooLong(u32),
    /// A kind that does not exist.
    UnknownKind(u8),
    /// The reserved bytes were not zero.
    Reserved,
    /// A body that does not fit its kind.
    BadBody,
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::TooLong(n) => write!(f, "a frame of {n} bytes, more than {FRAME_BODY_MAX}"),
            FrameError::UnknownKind(k) => write!(f, "a frame of unknown kind {k}"),
            FrameError::Reserved => write!(f, "a frame whose reserved bytes are not zero"),
            FrameError::BadBody => write!(f, "a frame whose body does not fit its kind"),
        }
    }
}

impl std::error::Error for FrameError {}

/// The header of a frame with a body of this length.
pub fn header(stream: u32, kind: Kind, length: usize) -> [u8; HEADER_BYTES] {
    debug_assert!(length <= FRAME_BODY_MAX);
    let mut out = [0; HEADER_BYTES];
    out[..4].copy_from_slice(&(length as u32).to_le_bytes());
    out[4..8].copy_from_slice(&stream.to_le_bytes());
    out[8] = kind as u8;
    out
}

/// Appends a whole frame.
pub fn put(out: &mut Vec<u8>, stream: u32, kind: Kind, body: &[u8]) {
    out.extend_from_slice(&header(stream, kind, body.len()));
    out.extend_from_slice(body);
}

/// Appends a frame of output.
pub fn put_output(out: &mut Vec<u8>, stream: u32, kind: Kind, offset: u64, bytes: &[u8]) {
    out.extend_from_slice(&header(stream, kind, bytes.len() + OFFSET_BYTES));
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a grant.
pub fn put_credit(out: &mut Vec<u8>, stream: u32, bytes: u64) {
    put(out, stream, Kind::Credit, &bytes.to_le_bytes());
}

impl Frame {
    /// The grant in a `Credit` frame.
    pub fn credit(&self) -> Result<u64, FrameError> {
        let bytes: [u8; 8] = self.body.as_slice().try_into().map_err(|_| FrameError::BadBody)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Place and bytes of a `Stdout`, `Stderr` or `Results` frame.
    pub fn output(&self) -> Result<(u64, &[u8]), FrameError> {
        let (offset, bytes) = self.body.split_first_chunk::<OFFSET_BYTES>().ok_or(FrameError::BadBody)?;
        Ok((u64::from_le_bytes(*offset), bytes))
    }
}

/// Turns bytes as they come into frames. Holds at most one header and one body.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// Takes bytes from the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let rest = &self.buffer[self.start..];
        let Some(head) = rest.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        if length as usize > FRAME_BODY_MAX {
            return Err(FrameError::TooLong(length));
        }
        let kind = Kind::from_byte(head[8]).ok_or(FrameError::UnknownKind(head[8]))?;
        if head[9..] != [0, 0, 0] {
            return Err(FrameError::Reserved);
        }
        let stream = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let end = HEADER_BYTES + length as usize;
        if rest.len() < end {
            return Ok(None);
        }
        let body = rest[HEADER_BYTES..end].to_vec();
        self.start += end;
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
        Ok(Some(Frame { stream, kind, body }))
    }

    /// Bytes that wait for the rest of their frame.
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> impl Strategy<Value = Kind> {
        (1u8..=8).prop_map(|b| Kind::from_byte(b).expect("in range"))
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut_of_the_stream(
            frames in prop::collection::vec((any::<u32>(), kinds(), prop::collection::vec(any::<u8>(), 0..300)), 0..20),
            cut in 1usize..50,
        ) {
            let mut wire = Vec::new();
            for (stream, kind, body) in &frames {
                put(&mut wire, *stream, *kind, body);
            }
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for piece in wire.chunks(cut) {
                decoder.feed(piece);
                while let Some(f) = decoder.next_frame().expect("well formed") {
                    seen.push((f.stream, f.kind, f.body));
                }
            }
            prop_assert_eq!(seen, frames);
            prop_assert_eq!(decoder.pending(), 0);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic_or_hoard(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
            let mut decoder = Decoder::default();
            decoder.feed(&bytes);
            while let Ok(Some(_)) = decoder.next_frame() {}
            prop_assert!(decoder.pending() <= bytes.len());
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_its_body_comes() {
        let mut head = header(1, Kind::Data, 0);
        head[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut decoder = Decoder::default();
        decoder.feed(&head);
        assert_eq!(decoder.next_frame(), Err(FrameError::TooLong(u32::MAX)));
    }

    #[test]
    fn reserved_bytes_must_be_zero() {
        let mut head = header(1, Kind::Data, 0);
        head[11] = 1;
        let mut decoder = Decoder::default();
        decoder.feed(&head);
        assert_eq!(decoder.next_frame(), Err(FrameError::Reserved));
    }

    #[test]
    fn output_without_its_place_is_refused() {
        let frame = Frame { stream: 1, kind: Kind::Stdout, body: vec![0; 7] };
        assert_eq!(frame.output(), Err(FrameError::BadBody));
    }
}
