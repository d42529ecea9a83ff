//! Archives whose headers are bounded: `tar` reads names, targets and attributes of an entry into memory as a whole, however
//! long their maker says that they are.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// An archive, and what decides how much of it may be read. Before one entry, that many bytes may be headers: long names, long
/// targets, attributes.
pub(crate) fn metered<R: Read>(stream: R, header_bytes: u64) -> (tar::Archive<Metered<R>>, Allowance) {
    let left = Rc::new(Cell::new(u64::MAX));
    let archive = tar::Archive::new(Metered { stream, left: Rc::clone(&left), header_bytes });
    (archive, Allowance { left, header_bytes })
}

/// To be said before each entry, and before its content, which has to be read to its end.
pub(crate) struct Allowance {
    left: Rc<Cell<u64>>,
    header_bytes: u64,
}

impl Allowance {
    /// Between contents there are headers only, and those are read into memory.
    pub(crate) fn for_headers(&self) {
        self.left.set(self.header_bytes);
    }

    pub(crate) fn for_content(&self) {
        self.left.set(u64::MAX);
    }
}

/// A stream that yields no more than it is allowed to.
pub(crate) struct Metered<R> {
    stream: R,
    left: Rc<Cell<u64>>,
    /// What is allowed for headers, to be told.
    header_bytes: u64,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            let most = self.header_bytes;
            let why =
                format!("cannot unpack the archive: the headers of an entry are larger than {most} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let mut n = self.stream.read(&mut buffer[..room])?;
        if left != u64::MAX {
            if n == 0 {
                // Some tools leave out the zeros behind the last entry, and everybody reads their archives all the same.
                buffer[..room].fill(0);
                n = room;
            }
            self.left.set(left - n as u64);
        }
        Ok(n)
    }
}
