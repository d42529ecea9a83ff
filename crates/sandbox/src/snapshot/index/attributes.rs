//! Extended attributes: overlay's own marks, and those that count as part of a file.

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;

use glasshouse_linux::content::{attributes_hash, counts};
use glasshouse_linux::reach::Reach;
use glasshouse_linux::rustix::io::Errno;

use super::super::Marks;
use super::Hash;

/// The kernel's own bound, for all names together and for one value.
const XATTR_MAX: usize = 65536;
/// What is asked for first. The kernel makes room for all that is asked for, however little there is, and most files
/// have nothing.
const XATTR_USUAL: usize = 256;

/// What the attributes of one file or directory say.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// `y`: nothing below shows through. `x`: files in it may be whiteouts.
    pub(super) opaque: Option<u8>,
    pub(super) redirect: Option<Box<[u8]>>,
    pub(super) whiteout: bool,
    /// The content is in another layer: we never mount in a way that makes these.
    pub(super) metacopy: bool,
    /// The hash of those that count.
    pub(super) xattrs: Option<Hash>,
}

/// Reads attributes. Holds the buffers, so that they are made once for many files.
pub(super) struct Attributes {
    prefix: &'static str,
    names: Vec<u8>,
    value: Vec<u8>,
}

impl Attributes {
    pub(super) fn new(marks: Marks) -> Attributes {
        Attributes { prefix: marks.prefix(), names: vec![0; XATTR_USUAL], value: vec![0; XATTR_USUAL] }
    }

    pub(super) fn read(&mut self, reach: &Reach, file: BorrowedFd<'_>) -> io::Result<Found> {
        let mut found = Found::default();
        let length = match sized(&mut self.names, |names| reach.list(file, None, names)) {
            // The file system has none.
            Err(Errno::OPNOTSUPP | Errno::NODATA) => return Ok(found),
            length => length?,
        };
        let mut counted = Vec::new();
        for name in self.names[..length].split_inclusive(|b| *b == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
            let mark = name.to_bytes().strip_prefix(self.prefix.as_bytes());
            if mark.is_none() && !counts(name.to_bytes()) {
                continue;
            }
            let value = match sized(&mut self.value, |value| reach.attribute(file, None, name, value)) {
                // Gone since.
                Err(Errno::NODATA) => continue,
                length => &self.value[..length?],
            };
            match mark {
                Some(b"opaque") => found.opaque = value.first().copied(),
                Some(b"redirect") => found.redirect = Some(value.into()),
                Some(b"whiteout") => found.whiteout = true,
                Some(b"metacopy") => found.metacopy = true,
                Some(_) => {}
                None => counted.push((name.to_bytes().to_vec(), value.to_vec())),
            }
        }
        found.xattrs = attributes_hash(counted);
        Ok(found)
    }
}

/// Asks once more, with all the room that there can be, if there was too little.
fn sized(
    buffer: &mut Vec<u8>,
    mut ask: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    match ask(&mut buffer[..XATTR_USUAL]) {
        Err(Errno::RANGE) => {
            buffer.resize(XATTR_MAX, 0);
            ask(buffer)
        }
        asked => asked,
    }
}
