//! Records before an entry that hold an end of line, told so that they are understood.
//!
//! What an entry says of itself beyond its header is a list of records, each with its own length: `21 key=two\nlines\n`.
//! The crate that reads our tar streams does not count but looks for the end of the line, and gives up where a value holds
//! one. So the records are looked at on their way to it, and one that it would stumble over is told in another way that it
//! understands: an attribute in base64, a name as GNU tar writes long ones. What else there may be means nothing to us and
//! goes. Everything but such records passes as it is, also what is no tar stream: to refuse that is the reader's part.

use std::io::{self, Read};

use tar::{EntryType, Header};

const BLOCK: usize = 512;
/// The name of an entry that holds the name of the next.
const LONG_NAME: &[u8] = b"././@LongLink";
/// How attributes are written whose values may be anything.
const ENCODED: &[u8] = b"LIBARCHIVE.xattr.";
pub(super) const PLAIN: &[u8] = b"SCHILY.xattr.";

/// A tar stream whose records hold no ends of lines.
pub(super) struct Retold<R> {
    stream: R,
    /// What is to be handed out before anything else is read.
    ready: Vec<u8>,
    at: usize,
    /// Bytes until the next header.
    left: u64,
    /// The true size of the next entry, if its records tell one.
    size: Option<u64>,
    /// It is no tar stream any more.
    lost: bool,
    /// Bytes of headers that are read into memory.
    header_bytes: u64,
}

impl<R: Read> Retold<R> {
    pub(super) fn new(stream: R, header_bytes: u64) -> Retold<R> {
        Retold { stream, ready: Vec::new(), at: 0, left: 0, size: None, lost: false, header_bytes }
    }

    /// Reads that many bytes behind what is ready; fewer, if there are no more, and then it is lost.
    fn fetch(&mut self, bytes: usize) -> io::Result<()> {
        let want = self.ready.len() + bytes;
        let read = (&mut self.stream).take(bytes as u64).read_to_end(&mut self.ready)?;
        self.lost |= read < bytes;
        debug_assert!(self.ready.len() <= want);
        Ok(())
    }

    /// Reads the next header, and what belongs to it if it is more than a name.
    fn next_header(&mut self) -> io::Result<()> {
        (self.ready, self.at) = (Vec::with_capacity(BLOCK), 0);
        self.fetch(BLOCK)?;
        // Zeros stand at the end, and between archives that were put together.
        if self.lost || self.ready.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let header = Header::from_byte_slice(&self.ready);
        let (kind, size) = (header.entry_type(), header.entry_size().ok().filter(|_| is_header(header)));
        let Some(size) = size else {
            self.lost = true;
            return Ok(());
        };
        let size = match kind {
            EntryType::XHeader if size <= self.header_bytes => return self.records(size as usize),
            EntryType::XHeader
            | EntryType::XGlobalHeader
            | EntryType::GNULongName
            | EntryType::GNULongLink => size,
            _ => self.size.take().unwrap_or(size),
        };
        if kind == EntryType::GNUSparse {
            self.sparse_headers()?;
        }
        match size.checked_next_multiple_of(BLOCK as u64) {
            Some(padded) => self.left = padded,
            None => self.lost = true,
        }
        Ok(())
    }

    /// More headers follow that of a file with holes, as long as the last one says so.
    fn sparse_headers(&mut self) -> io::Result<()> {
        let header = Header::from_byte_slice(&self.ready);
        let mut more = header.as_gnu().is_some_and(|gnu| gnu.is_extended());
        while more && !self.lost && self.ready.len() as u64 <= self.header_bytes {
            self.fetch(BLOCK)?;
            // The byte behind the 21 pairs.
            more = self.ready.len().is_multiple_of(BLOCK) && self.ready[self.ready.len() - 8] == 1;
        }
        Ok(())
    }

    fn records(&mut self, size: usize) -> io::Result<()> {
        self.fetch(size.next_multiple_of(BLOCK))?;
        if self.lost {
            return Ok(());
        }
        let Some(records) = parse(&self.ready[BLOCK..BLOCK + size]) else { return Ok(()) };
        let told = records.iter().find(|(key, _)| *key == b"size");
        self.size = told.and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse().ok());
        let breaks = |bytes: &[u8]| bytes.contains(&b'\n');
        if !records.iter().any(|(key, value)| breaks(key) || breaks(value)) {
            return Ok(());
        }
        let (mut before, mut kept) = (Vec::new(), Vec::new());
        for (key, value) in records {
            match (key.strip_prefix(PLAIN), key) {
                _ if breaks(key) => {}
                _ if !breaks(value) => put_record(&mut kept, key, value),
                (Some(name), _) => put_record(&mut kept, &[ENCODED, name].concat(), &to_base64(value)),
                (_, b"path") => put_long(&mut before, EntryType::GNULongName, value),
                (_, b"linkpath") => put_long(&mut before, EntryType::GNULongLink, value),
                _ => {}
            }
        }
        if !kept.is_empty() {
            let mut header = Header::from_byte_slice(&self.ready[..BLOCK]).clone();
            header.set_size(kept.len() as u64);
            header.set_cksum();
            put_entry(&mut before, &header, &kept);
        }
        self.ready = before;
        Ok(())
    }
}

impl<R: Read> Read for Retold<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let ready = &self.ready[self.at..];
            if !ready.is_empty() || buffer.is_empty() {
                let n = ready.len().min(buffer.len());
                buffer[..n].copy_from_slice(&ready[..n]);
                self.at += n;
                return Ok(n);
            }
            if self.lost {
                return self.stream.read(buffer);
            }
            if self.left > 0 {
                let room = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
                let n = self.stream.read(&mut buffer[..room])?;
                self.left -= n as u64;
                return Ok(n);
            }
            self.next_header()?;
        }
    }
}

/// Whether its sum is right.
fn is_header(header: &Header) -> bool {
    let bytes = header.as_bytes();
    let sum: u32 = bytes[..148].iter().chain(&bytes[156..]).map(|byte| u32::from(*byte)).sum();
    header.cksum().is_ok_and(|told| told == sum + 8 * u32::from(b' '))
}

/// Keys and values. `None`: they are not what they say.
fn parse(mut bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut records = Vec::new();
    // Some tools fill the rest with zeros.
    while bytes.first().is_some_and(|byte| *byte != 0) {
        let digits = bytes.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&bytes[..digits]).ok()?.parse().ok()?;
        let record = bytes.get(digits + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        records.push((&record[..equals], &record[equals + 1..]));
        bytes = &bytes[length..];
    }
    Some(records)
}

fn put_record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    // A space, the equals sign and the end of the line.
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    out.extend(length.to_string().as_bytes());
    for part in [b" ", key, b"=", value, b"\n"] {
        out.extend(part);
    }
}

/// A name for the next entry.
fn put_long(out: &mut Vec<u8>, kind: EntryType, name: &[u8]) {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..LONG_NAME.len()].copy_from_slice(LONG_NAME);
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(name.len() as u64 + 1);
    header.set_cksum();
    put_entry(out, &header, &[name, b"\0"].concat());
}

fn put_entry(out: &mut Vec<u8>, header: &Header, content: &[u8]) {
    out.extend(header.as_bytes());
    out.extend(content);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
}

fn to_base64(bytes: &[u8]) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let held =
            three.iter().fold(0u32, |held, byte| held << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        let letters = [18, 12, 6, 0].map(|shift| LETTERS[(held >> shift & 63) as usize]);
        text.extend(&letters[..three.len() + 1]);
    }
    text
}

/// What base64 stands for, with or without its padding. `None`: it is none.
pub(super) fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut held, mut bits) = (0u32, 0);
    for byte in text.iter().copied().filter(|byte| *byte != b'=') {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = (held & 0xff) << 6 | u32::from(six);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    Some(bytes)
}

/// The value of an attribute that was written encoded, and its name.
pub(super) fn encoded<'a>(key: &'a [u8], value: &[u8]) -> Option<(&'a [u8], Vec<u8>)> {
    key.strip_prefix(ENCODED).zip(from_base64(value))
}

#[cfg(test)]
mod tests {
    use super::super::Shape;
    use super::*;

    fn entry(kind: EntryType, name: &str, content: &[u8]) -> Vec<u8> {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        header.set_cksum();
        let mut out = Vec::new();
        put_entry(&mut out, &header, content);
        out
    }

    fn records(records: &[(&str, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        records.iter().for_each(|(key, value)| put_record(&mut body, key.as_bytes(), value));
        entry(EntryType::XHeader, "x", &body)
    }

    /// Byte by byte, too: whoever reads asks for any number.
    fn retold(bytes: &[u8]) -> Vec<u8> {
        let mut all = Vec::new();
        Retold::new(bytes, Shape::IMAGE.header_bytes).read_to_end(&mut all).unwrap();
        let mut one_by_one = Vec::new();
        let mut stream = Retold::new(bytes, Shape::IMAGE.header_bytes);
        let mut byte = [0];
        while stream.read(&mut byte).unwrap() == 1 {
            one_by_one.push(byte[0]);
        }
        assert_eq!(all, one_by_one);
        all
    }

    #[test]
    fn what_holds_no_end_of_line_passes_as_it_is() {
        let file = entry(EntryType::Regular, "f", &[b'\n'; 700]);
        let large = records(&[("size", b"600"), ("path", b"other"), ("SCHILY.xattr.user.k", b"v")]);
        let longer = [entry(EntryType::Regular, "g", &[1; 600]), vec![0; 1024]].concat();
        let junk: Vec<u8> = (0..3000u32).map(|n| (n * 7 % 256) as u8).collect();
        for stream in [&file[..], &[large, longer].concat(), &junk, &[0; 2048], b"", b"short", &file[..600]] {
            assert_eq!(retold(stream), stream);
        }
    }

    #[test]
    fn what_an_entry_holds_is_not_taken_for_records() {
        let inner = records(&[("SCHILY.xattr.user.k", b"a\nb")]);
        let outer = [entry(EntryType::Regular, "f", &inner), entry(EntryType::Regular, "g", b"")].concat();
        assert_eq!(retold(&outer), outer);
        // Nor where the records tell another size than the header.
        let sized = [records(&[("size", b"1024")]), entry(EntryType::Regular, "f", b""), inner].concat();
        assert_eq!(retold(&sized), sized);
    }

    #[test]
    fn values_of_several_lines_are_told_in_another_way() {
        let all = records(&[
            ("mtime", b"1"),
            ("SCHILY.xattr.user.k", b"\n\0two\n\nlines\n"),
            ("path", b"a\nb"),
            ("comment", b"x\ny"),
        ]);
        let stream = [all, entry(EntryType::Regular, "f", b"text")].concat();
        let bytes = retold(&stream);
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut entries = archive.entries().unwrap();
        let mut entry = entries.next().unwrap().unwrap();
        assert_eq!(&*entry.path_bytes(), b"a\nb");
        let found: Vec<_> = entry.pax_extensions().unwrap().unwrap().map(|record| record.unwrap()).collect();
        assert_eq!((found.len(), found[0].key_bytes()), (2, &b"mtime"[..]));
        let value = encoded(found[1].key_bytes(), found[1].value_bytes()).unwrap();
        assert_eq!(value, (&b"user.k"[..], b"\n\0two\n\nlines\n".to_vec()));
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        assert!(entries.next().is_none());
    }

    #[test]
    fn lengths_count_themselves() {
        for n in [1, 5, 6, 7, 90, 91, 92, 93, 94, 990] {
            let mut out = Vec::new();
            put_record(&mut out, b"k", &vec![b'v'; n]);
            assert_eq!(parse(&out).unwrap(), [(&b"k"[..], &vec![b'v'; n][..])], "{n}");
        }
        for bad in ["5 k=v\n", "6 k=v", "99 k=v\n", "k=v\n", "5 kv\n", "-1 k=v\n", "0 k=v\n"] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn base64_is_understood_with_and_without_padding() {
        for (text, bytes) in
            [("", &b""[..]), ("Cg", b"\n"), ("Cg==", b"\n"), ("AP8Q", b"\0\xff\x10"), ("+/8=", b"\xfb\xff")]
        {
            assert_eq!(from_base64(text.as_bytes()).as_deref(), Some(bytes), "{text}");
            assert_eq!(to_base64(bytes), text.trim_end_matches('=').as_bytes());
        }
        assert_eq!(from_base64(b"a b"), None);
    }
}
