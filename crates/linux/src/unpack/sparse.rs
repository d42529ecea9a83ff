//! Files with holes, as GNU tar writes them with pax records (its format 1.0): the content begins with a map, and then comes
//! what lies between the holes.
//!
//! ```text
//!  records   GNU.sparse.major=1, .minor=0, .realsize=SIZE, .name=NAME
//!  content   COUNT \n  OFFSET \n LENGTH \n  …   zeros up to a whole block   the pieces, one after the other
//! ```
//! A hole costs nobody anything, neither whoever sends it nor us.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::{OsStringExt, refuse};
use crate::archive::write_or_skip;

const BLOCK: usize = 512;
/// Digits of a number in a map.
const DIGITS_MAX: usize = 20;
/// Bytes of a map.
const MAP_BYTES_MAX: u64 = 1 << 20;

/// What the records of a file with holes say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sparse {
    major: Option<u64>,
    minor: Option<u64>,
    size: Option<u64>,
    name: Option<PathBuf>,
}

impl Sparse {
    /// Takes a record, if it is one of these.
    pub(super) fn take(&mut self, key: &[u8], value: &[u8]) {
        let number = || std::str::from_utf8(value).ok()?.parse().ok();
        match key.strip_prefix(b"GNU.sparse.") {
            Some(b"major") => self.major = number(),
            Some(b"minor") => self.minor = number(),
            Some(b"realsize") => self.size = number(),
            Some(b"name") => self.name = Some(PathBuf::from(std::ffi::OsString::from_vec(value.to_vec()))),
            _ => {}
        }
    }

    /// The size of the file with its holes, and its name if that is not the entry's. `None`: it has none.
    pub(super) fn told(self) -> Option<(u64, Option<PathBuf>)> {
        (self.major == Some(1) && self.minor == Some(0)).then_some((self.size?, self.name))
    }
}

/// Writes the file, and leaves out its holes. Bytes that are not holes.
pub(super) fn fill(stream: &mut impl Read, file: &mut File, size: u64, name: &Path) -> io::Result<u64> {
    let mut map = Map { stream, name, read: 0 };
    let count = map.number()?;
    let mut pieces = Vec::new();
    let mut end = 0;
    for _ in 0..count {
        let (offset, length) = (map.number()?, map.number()?);
        let next = offset.checked_add(length).filter(|next| offset >= end && *next <= size);
        end = next.ok_or_else(|| refuse(name, "its map of holes makes no sense"))?;
        pieces.push((offset, length));
    }
    map.rest_of_block()?;
    let (mut buffer, mut written) = (vec![0; 64 * 1024], 0);
    for (offset, length) in pieces {
        file.seek(SeekFrom::Start(offset))?;
        let mut left = length;
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let n = stream.read(&mut buffer[..room])?;
            if n == 0 {
                return Err(refuse(name, "the layer ends in the middle of it"));
            }
            write_or_skip(file, &buffer[..n])?;
            left -= n as u64;
        }
        written += length;
    }
    file.set_len(size)?;
    Ok(written)
}

/// A map that is read number by number.
struct Map<'a, R> {
    stream: &'a mut R,
    name: &'a Path,
    read: usize,
}

impl<R: Read> Map<'_, R> {
    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.stream.read_exact(&mut byte)?;
        self.read += 1;
        if self.read as u64 > MAP_BYTES_MAX {
            return Err(refuse(self.name, &format!("its map of holes is larger than {MAP_BYTES_MAX} bytes")));
        }
        Ok(byte[0])
    }

    fn number(&mut self) -> io::Result<u64> {
        let mut digits = String::new();
        while digits.len() <= DIGITS_MAX {
            match self.byte()? {
                b'\n' => break,
                byte => digits.push(byte as char),
            }
        }
        digits.parse().map_err(|_| refuse(self.name, "its map of holes is none"))
    }

    fn rest_of_block(&mut self) -> io::Result<()> {
        while !self.read.is_multiple_of(BLOCK) {
            self.byte()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn file(map: &str, content: &[u8], size: u64) -> io::Result<(u64, File)> {
        let mut bytes = map.as_bytes().to_vec();
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        bytes.extend(content);
        let mut file = tempfile::tempfile().unwrap();
        let written = fill(&mut bytes.as_slice(), &mut file, size, Path::new("f"))?;
        Ok((written, file))
    }

    #[test]
    fn pieces_lie_where_the_map_says() {
        let size = 1 << 40;
        let (written, mut file) =
            file(&format!("3\n5\n2\n{}\n3\n{size}\n0\n", size / 2), b"abcde", size).unwrap();
        assert_eq!((written, file.metadata().unwrap().len()), (5, size));
        assert!(file.metadata().unwrap().blocks() < 100);
        for (offset, wanted) in [(5, b"ab\0"), (size / 2, b"cde")] {
            let mut found = [0; 3];
            file.seek(SeekFrom::Start(offset)).unwrap();
            file.read_exact(&mut found).unwrap();
            assert_eq!(&found, wanted);
        }
    }

    #[test]
    fn maps_that_make_no_sense_are_refused() {
        for (map, content) in [
            ("x\n", &b"abcdef"[..]),
            ("1\n5\n", b""),
            ("2\n5\n3\n6\n1\n", b"abcd"),
            ("1\n9\n2\n", b"ab"),
            ("1\n18446744073709551615\n5\n", b"abcde"),
            ("1\n0\n5\n", b"abc"),
            ("99999999999999999999999\n", b""),
        ] {
            assert!(file(map, content, 10).is_err(), "{map:?}");
        }
    }
}
