//! What a step changed, path by path.
//!
//! A list of them is one payload of a step: a JSON array, so that a step costs one line and at most one blob, however
//! much it changed. What a file held is there if it was small, so that a later run can show what is different.

use serde::{Deserialize, Serialize};

use crate::blobs::Blobs;
use crate::error::{Error, ErrorKind, Result};
use crate::payload::Payload;

/// A path that a step changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    /// From the root, with a slash in front, as [`path_text`](crate::trajectory::path_text) spells it.
    pub path: String,
    /// What became of it.
    pub change: ChangeKind,
    /// What is there now. None: it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<FileFacts>,
}

/// What became of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It was not there before.
    Added,
    /// It is not the same.
    Changed,
    /// It is not there any more.
    Removed,
}

impl ChangeKind {
    /// One letter for it.
    pub fn letter(self) -> char {
        match self {
            ChangeKind::Added => 'A',
            ChangeKind::Changed => 'M',
            ChangeKind::Removed => 'D',
        }
    }
}

/// What is at a path: everything that counts for the digest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `char-device` or `block-device`.
    pub kind: String,
    /// The lower twelve bits, in octal digits.
    pub mode: String,
    /// Its owner, as the box sees it.
    pub uid: u32,
    /// Its group, as the box sees it.
    pub gid: u32,
    /// Bytes of a file, or of a link's target.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes: u64,
    /// The hash of what a file holds, a link leads to, or a device is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The hash of the attributes that count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xattrs: Option<String>,
    /// What a file holds, if it is small and a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl FileChange {
    /// The changes that a payload lists.
    pub fn read(payload: &Payload, blobs: &Blobs) -> Result<Vec<FileChange>> {
        let Some(head) = &payload.head else { return Ok(Vec::new()) };
        if payload.truncated() {
            let message = format!("read what a step changed: {} bytes are not on record", payload.bytes_cut);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let bytes = blobs.read(head)?;
        serde_json::from_slice(&bytes)
            .map_err(|e| Error::new(ErrorKind::Corrupt, format!("read what a step changed: {e}")))
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}
