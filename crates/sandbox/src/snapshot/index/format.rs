//! The bytes of an index. Numbers are little endian.

use std::borrow::Cow;
use std::ops::Range;

use super::super::Marks;
use super::{Dir, Entry, Facts, Hash, Kind, Owners, Record, Stamp, Time, damaged, is_name, is_redirect};
use crate::error::Result;

const MAGIC: &[u8; 8] = b"glassidx";
const VERSION: u32 = 1;
/// The head with the root's entry, which has no name and no redirect, is never longer.
pub(super) const HEAD_MAX: u64 = 512;

/// About what one entry takes, to make room for so many at once.
const ENTRY_BYTES: usize = 80;

/// What an entry has that has none.
const NO_CONTENT: Hash = [0; 32];

const RACY: u8 = 1;
const XATTRS: u8 = 1;
const OPAQUE: u8 = 2;
const REDIRECT: u8 = 4;
const REDIRECTS_BELOW: u8 = 8;

/// What stands before the records.
pub(super) struct Head {
    pub(super) facts: Facts,
    pub(super) root: Entry,
    /// Where the records begin.
    pub(super) start: u64,
    /// Bytes of all records.
    pub(super) bytes: u64,
}

/// The checksum of a record.
pub(super) fn check(bytes: &[u8]) -> [u8; 16] {
    let mut check = [0; 16];
    check.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    check
}

pub(super) fn encode_head(facts: &Facts, root: &Entry, records_bytes: u64) -> Vec<u8> {
    let mut body = Vec::new();
    put_time(&mut body, facts.scanned_at);
    body.extend(facts.entries.to_le_bytes());
    body.extend(records_bytes.to_le_bytes());
    body.push(if facts.racy { RACY } else { 0 });
    body.push(match facts.marks {
        Marks::Trusted => b't',
        Marks::User => b'u',
    });
    body.push(match facts.owners {
        Owners::Kept => b'k',
        Owners::One => b'o',
    });
    encode(&mut body, root);
    let mut head = Vec::new();
    head.extend(MAGIC);
    head.extend(VERSION.to_le_bytes());
    head.extend((body.len() as u32).to_le_bytes());
    head.extend(body);
    let sum = blake3::hash(&head);
    head.extend(sum.as_bytes());
    head
}

pub(super) fn decode_head(bytes: &[u8]) -> Result<Head> {
    let mut reader = Reader { bytes };
    if &reader.array::<8>()? != MAGIC {
        return Err(damaged("it does not begin like one"));
    }
    if u32::from_le_bytes(reader.array()?) != VERSION {
        return Err(damaged("another version of Glasshouse made it"));
    }
    let length = u32::from_le_bytes(reader.array()?) as usize;
    let mut body = Reader { bytes: reader.take(length)? };
    let sum: Hash = reader.array()?;
    let covered = bytes.get(..16 + length).unwrap_or_default();
    if blake3::hash(covered) != sum {
        return Err(damaged("its head is not what it was when it was written"));
    }
    let scanned_at = body.time()?;
    let entries = u64::from_le_bytes(body.array()?);
    let records_bytes = u64::from_le_bytes(body.array()?);
    let racy = match body.byte()? {
        0 => false,
        RACY => true,
        _ => return Err(damaged("its head has an unknown flag")),
    };
    let marks = match body.byte()? {
        b't' => Marks::Trusted,
        b'u' => Marks::User,
        _ => return Err(damaged("its head names an unknown kind of marks")),
    };
    let owners = match body.byte()? {
        b'k' => Owners::Kept,
        b'o' => Owners::One,
        _ => return Err(damaged("its head names an unknown rule for owners")),
    };
    let root = decode(&mut body)?;
    let inside = root.dir.as_ref().and_then(|dir| dir.record.end()).is_some_and(|end| end == records_bytes);
    if !root.name.is_empty() || !inside || !body.bytes.is_empty() {
        return Err(damaged("its root is not one"));
    }
    let facts = Facts { scanned_at, entries, racy, marks, owners };
    Ok(Head { facts, root, start: (16 + length + 32) as u64, bytes: records_bytes })
}

/// What a directory holds in a layer, one entry after the other. They are sorted, and the records of what is below lie before
/// this one, one after the other.
pub(crate) struct Entries<'a> {
    bytes: Cow<'a, [u8]>,
    record: Record,
    /// Where the records of the one before end.
    end: u64,
    next: Option<Next>,
}

/// Where the next entry lies, and what it is.
struct Next {
    start: usize,
    end: usize,
    name: Range<usize>,
    kind: Kind,
}

impl<'a> Entries<'a> {
    /// Those in the bytes of a record.
    pub(super) fn new(bytes: Cow<'a, [u8]>, record: Record) -> Result<Entries<'a>> {
        let mut entries = Entries { bytes, record, end: record.start, next: None };
        entries.next = entries.look(0, None)?;
        Ok(entries)
    }

    /// About how many are left.
    pub(super) fn about(&self) -> usize {
        let at = self.next.as_ref().map_or(self.bytes.len(), |next| next.start);
        (self.bytes.len() - at) / ENTRY_BYTES
    }

    /// The name of the next one, and what it is.
    pub(crate) fn peek(&self) -> Option<(&[u8], Kind)> {
        let next = self.next.as_ref()?;
        Some((&self.bytes[next.name.clone()], next.kind))
    }

    /// The next one, where it lies.
    pub(crate) fn skim(&self) -> Result<Skimmed<'_>> {
        let next = self.next.as_ref().ok_or_else(|| damaged("it breaks off"))?;
        skim(&mut Reader { bytes: &self.bytes[next.start..next.end] })
    }

    /// Goes on to the one after it.
    pub(crate) fn pass(&mut self) -> Result<()> {
        if let Some(before) = self.next.take() {
            self.next = self.look(before.end, Some(before.name))?;
        }
        Ok(())
    }

    /// What begins there, if anything does, after the one of this name.
    fn look(&mut self, start: usize, before: Option<Range<usize>>) -> Result<Option<Next>> {
        let rest = &self.bytes[start..];
        if rest.is_empty() {
            return Ok(None);
        }
        let mut reader = Reader { bytes: rest };
        let entry = skim(&mut reader)?;
        let in_order = before.is_none_or(|before| &self.bytes[before] < entry.name);
        if !is_name(entry.name) || !in_order {
            return Err(damaged("a record is out of order"));
        }
        if let Some(dir) = &entry.dir {
            let below = dir.record;
            let next = below.end().filter(|next| *next <= self.record.offset);
            if below.start < self.end || below.offset < below.start {
                return Err(damaged("two records are mixed up"));
            }
            self.end = next.ok_or_else(|| damaged("a record comes before its own parts"))?;
        }
        // The name follows a byte that tells its length.
        let name = start + 1..start + 1 + entry.name.len();
        Ok(Some(Next { start, end: start + rest.len() - reader.bytes.len(), name, kind: entry.kind }))
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        self.next.as_ref()?;
        let entry = self.skim().and_then(Skimmed::into_entry);
        Some(self.pass().and(entry))
    }
}

/// An entry, where it lies.
pub(crate) struct Skimmed<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) kind: Kind,
    /// Mode, owner, group and size, one after the other.
    pub(crate) attributes: &'a [u8; 18],
    stamp: &'a [u8; 32],
    pub(crate) content: &'a Hash,
    pub(crate) xattrs: Option<&'a Hash>,
    dir: Option<Dir>,
}

impl Skimmed<'_> {
    pub(crate) fn into_entry(self) -> Result<Entry> {
        let mut attributes = Reader { bytes: self.attributes };
        let mut stamp = Reader { bytes: self.stamp };
        Ok(Entry {
            name: self.name.into(),
            kind: self.kind,
            mode: u16::from_le_bytes(attributes.array()?),
            uid: u32::from_le_bytes(attributes.array()?),
            gid: u32::from_le_bytes(attributes.array()?),
            size: u64::from_le_bytes(attributes.array()?),
            content: *self.content,
            xattrs: self.xattrs.copied(),
            stamp: Stamp {
                ino: u64::from_le_bytes(stamp.array()?),
                ctime: stamp.time()?,
                mtime: stamp.time()?,
            },
            dir: self.dir,
        })
    }
}

pub(super) fn encode(out: &mut Vec<u8>, entry: &Entry) {
    out.push(entry.name.len() as u8);
    out.extend(&entry.name);
    out.push(entry.kind.byte());
    let mut flags = 0;
    if entry.xattrs.is_some() {
        flags |= XATTRS;
    }
    if let Some(dir) = &entry.dir {
        for (set, flag) in
            [(dir.opaque, OPAQUE), (dir.redirect.is_some(), REDIRECT), (dir.redirects_below, REDIRECTS_BELOW)]
        {
            if set {
                flags |= flag;
            }
        }
    }
    out.push(flags);
    out.extend(entry.mode.to_le_bytes());
    out.extend(entry.uid.to_le_bytes());
    out.extend(entry.gid.to_le_bytes());
    out.extend(entry.size.to_le_bytes());
    out.extend(entry.stamp.ino.to_le_bytes());
    put_time(out, entry.stamp.ctime);
    put_time(out, entry.stamp.mtime);
    if entry.kind.has_content() {
        out.extend(entry.content);
    }
    if let Some(xattrs) = &entry.xattrs {
        out.extend(xattrs);
    }
    if let Some(dir) = &entry.dir {
        out.extend(dir.record.start.to_le_bytes());
        out.extend(dir.record.offset.to_le_bytes());
        out.extend(dir.record.bytes.to_le_bytes());
        out.extend(dir.record.check);
        if let Some(redirect) = &dir.redirect {
            out.extend((redirect.len() as u16).to_le_bytes());
            out.extend(redirect);
        }
    }
}

fn decode(reader: &mut Reader<'_>) -> Result<Entry> {
    skim(reader)?.into_entry()
}

fn skim<'a>(reader: &mut Reader<'a>) -> Result<Skimmed<'a>> {
    let length = reader.byte()?;
    let name = reader.take(usize::from(length))?;
    let kind = Kind::of_byte(reader.byte()?).ok_or_else(|| damaged("an entry is of no known kind"))?;
    let flags = reader.byte()?;
    let known = if kind == Kind::Directory { XATTRS | OPAQUE | REDIRECT | REDIRECTS_BELOW } else { XATTRS };
    if flags & !known != 0 {
        return Err(damaged("an entry has an unknown flag"));
    }
    let attributes: &[u8; 18] = reader.chunk()?;
    if u16::from_le_bytes([attributes[0], attributes[1]]) > 0o7777 {
        return Err(damaged("an entry has an impossible mode"));
    }
    let stamp = reader.chunk()?;
    let content = if kind.has_content() { reader.chunk()? } else { &NO_CONTENT };
    let xattrs = if flags & XATTRS != 0 { Some(reader.chunk()?) } else { None };
    let dir = if kind == Kind::Directory { Some(decode_dir(reader, flags)?) } else { None };
    Ok(Skimmed { name, kind, attributes, stamp, content, xattrs, dir })
}

fn decode_dir(reader: &mut Reader<'_>, flags: u8) -> Result<Dir> {
    let record = Record {
        start: u64::from_le_bytes(reader.array()?),
        offset: u64::from_le_bytes(reader.array()?),
        bytes: u64::from_le_bytes(reader.array()?),
        check: reader.array()?,
    };
    let redirect = if flags & REDIRECT != 0 {
        let length = u16::from_le_bytes(reader.array()?);
        let path = reader.take(usize::from(length))?;
        if !is_redirect(path) {
            return Err(damaged("a redirect is no path"));
        }
        Some(path.into())
    } else {
        None
    };
    let (opaque, redirects_below) = (flags & OPAQUE != 0, flags & REDIRECTS_BELOW != 0);
    Ok(Dir { opaque, redirect, redirects_below, record })
}

fn put_time(out: &mut Vec<u8>, time: Time) {
    out.extend(time.seconds.to_le_bytes());
    out.extend(time.nanoseconds.to_le_bytes());
}

/// What is left to read.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or_else(|| damaged("it breaks off"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn chunk<const N: usize>(&mut self) -> Result<&'a [u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>().ok_or_else(|| damaged("it breaks off"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.chunk().copied()
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn time(&mut self) -> Result<Time> {
        Ok(Time {
            seconds: i64::from_le_bytes(self.array()?),
            nanoseconds: u32::from_le_bytes(self.array()?),
        })
    }
}
