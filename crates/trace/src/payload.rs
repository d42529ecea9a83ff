//! Bytes of the box as a line carries them: short text in the line itself, everything else as the name of a
//! blob.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::hash::Hash;

/// Bytes of the box, whole or with the middle cut out.
///
/// Made with [`Payload::whole`] or [`Payload::cut`]; the writer fills in `bytes_cut` and `redacted`, and
/// turns the bytes into text or blobs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload {
    /// How many bytes there were.
    pub bytes_total: u64,
    /// How many of them are in neither head nor tail.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes_cut: u64,
    /// How many places were replaced. Head and tail are no longer as long as what they stand for then.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub redacted: u64,
    /// The beginning, or all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<Content>,
    /// The end, if the middle is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<Content>,
    /// Where the head was cut before it came here, in order. On the way to the writer, which looks there for parts of
    /// secrets; never in a line.
    #[serde(skip)]
    pub gaps: Vec<Gap>,
}

/// A place of a text where somebody left something out before he handed it on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gap {
    /// Where in the text the words are that stand for it; empty if there are none.
    pub place: Range<usize>,
    /// What follows is the rest of what was left out, and not something else.
    pub goes_on: bool,
}

/// Where the bytes of a payload are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Here: short, and UTF-8.
    Text(String),
    /// In the blob store.
    Blob(BlobName),
    /// In memory, on the way to the writer; never in a line.
    #[serde(skip)]
    Bytes(Vec<u8>),
}

/// The name of a blob. The order of these fields is part of the format, see `line::blobs_named`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobName {
    /// The hash of its bytes.
    pub hash: Hash,
    /// How many there are.
    pub bytes: u64,
}

impl Payload {
    /// All of the bytes.
    pub fn whole(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Payload { bytes_total: bytes.len() as u64, head: Content::of(bytes), ..Payload::default() }
    }

    /// What was kept of `bytes_total` bytes.
    pub fn cut(bytes_total: u64, head: impl Into<Vec<u8>>, tail: impl Into<Vec<u8>>) -> Self {
        let (head, tail) = (head.into(), tail.into());
        let kept = (head.len() + tail.len()) as u64;
        Payload {
            bytes_total: bytes_total.max(kept),
            bytes_cut: bytes_total.saturating_sub(kept),
            redacted: 0,
            head: Content::of(head),
            tail: Content::of(tail),
            gaps: Vec::new(),
        }
    }

    /// The same, with the places where it was cut before.
    pub fn with_gaps(self, gaps: Vec<Gap>) -> Self {
        Payload { gaps, ..self }
    }

    /// Whether bytes are missing between head and tail.
    pub fn truncated(&self) -> bool {
        self.bytes_cut > 0
    }
}

impl Content {
    /// These bytes, if there are any.
    fn of(bytes: Vec<u8>) -> Option<Self> {
        (!bytes.is_empty()).then_some(Content::Bytes(bytes))
    }

    /// How many bytes it has.
    pub fn bytes_len(&self) -> u64 {
        match self {
            Content::Text(text) => text.len() as u64,
            Content::Blob(blob) => blob.bytes,
            Content::Bytes(bytes) => bytes.len() as u64,
        }
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}
