//! A program on its way into the box's memory.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use glasshouse_linux::descriptor;
use glasshouse_protocol::limits::STDIN_CREDIT;

/// A program that is being carried in. Dropped before its end, it leaves nothing.
#[derive(Debug)]
pub(crate) struct Carry {
    name: String,
    file: File,
    /// Bytes that are still to come.
    left: u64,
    /// What the client may still send; every piece is taken at once and granted again.
    pub(crate) credit: u64,
}

impl Carry {
    /// Begins to take a program of this size.
    pub(crate) fn begin(name: String, bytes: u64) -> io::Result<Carry> {
        let file = descriptor::program_file(&name)?;
        Ok(Carry { name, file, left: bytes, credit: STDIN_CREDIT })
    }

    /// Takes a piece.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(left) = self.left.checked_sub(bytes.len() as u64) else {
            return Err(io::Error::other("more came than was announced"));
        };
        self.left = left;
        self.file.write_all(bytes)
    }

    /// The program, which nobody can change any more, and its name.
    pub(crate) fn finish(self) -> io::Result<(String, OwnedFd)> {
        if self.left > 0 {
            return Err(io::Error::other(format!("{} bytes of it did not come", self.left)));
        }
        Ok((self.name, descriptor::seal_program(self.file)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_what_was_announced_or_nothing() {
        let mut carry = Carry::begin("x".into(), 4).unwrap();
        carry.write(b"ab").unwrap();
        assert!(carry.write(b"cde").is_err(), "more than announced");
        let mut carry = Carry::begin("x".into(), 4).unwrap();
        carry.write(b"ab").unwrap();
        assert!(carry.finish().unwrap_err().to_string().contains("2 bytes"), "less than announced");
        let mut carry = Carry::begin("x".into(), 4).unwrap();
        carry.write(b"abcd").unwrap();
        let (name, program) = carry.finish().unwrap();
        assert_eq!(name, "x");
        assert!(File::from(program).write_all(b"e").is_err(), "nobody changes it any more");
    }
}
