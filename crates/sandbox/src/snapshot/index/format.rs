//! The bytes of an index. Numbers are little endian.

use super::super::Marks;
use super::{Dir, Entry, Facts, Hash, Kind, Owners, Record, Stamp, Time, damaged, is_name, is_redirect};
use crate::error::Result;

const MAGIC: &[u8; 8] = b"glassidx";
const VERSION: u32 = 1;
/// The head with the root's entry, which has no name and no redirect, is never longer.
pub(super) const HEAD_MAX: u64 = 512;

/// About what one entry takes, to make room for so many at once.
const ENTRY_BYTES: usize = 80;

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

/// Reads the record of a directory. The entries are sorted, and the records of what is below lie before this
/// one, one after the other.
pub(super) fn decode_record(bytes: &[u8], record: &Record) -> Result<Vec<Entry>> {
    let mut reader = Reader { bytes };
    let mut entries: Vec<Entry> = Vec::with_capacity(bytes.len() / ENTRY_BYTES);
    let mut end = record.start;
    while !reader.bytes.is_empty() {
        let entry = decode(&mut reader)?;
        let in_order = entries.last().is_none_or(|last| last.name < entry.name);
        if !is_name(&entry.name) || !in_order {
            return Err(damaged("a record is out of order"));
        }
        if let Some(dir) = &entry.dir {
            let below = dir.record;
            let next = below.end().filter(|next| *next <= record.offset);
            if below.start < end || below.offset < below.start {
                return Err(damaged("two records are mixed up"));
            }
            end = next.ok_or_else(|| damaged("a record comes before its own parts"))?;
        }
        entries.push(entry);
    }
    Ok(entries)
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
    let length = reader.byte()?;
    let name = reader.take(usize::from(length))?.into();
    let kind = Kind::of_byte(reader.byte()?).ok_or_else(|| damaged("an entry is of no known kind"))?;
    let flags = reader.byte()?;
    let known = if kind == Kind::Directory { XATTRS | OPAQUE | REDIRECT | REDIRECTS_BELOW } else { XATTRS };
    if flags & !known != 0 {
        return Err(damaged("an entry has an unknown flag"));
    }
    let mode = u16::from_le_bytes(reader.array()?);
    if mode > 0o7777 {
        return Err(damaged("an entry has an impossible mode"));
    }
    let uid = u32::from_le_bytes(reader.array()?);
    let gid = u32::from_le_bytes(reader.array()?);
    let size = u64::from_le_bytes(reader.array()?);
    let ino = u64::from_le_bytes(reader.array()?);
    let stamp = Stamp { ino, ctime: reader.time()?, mtime: reader.time()? };
    let content = if kind.has_content() { reader.array()? } else { Hash::default() };
    let xattrs = if flags & XATTRS != 0 { Some(reader.array()?) } else { None };
    let dir = if kind == Kind::Directory { Some(decode_dir(reader, flags)?) } else { None };
    Ok(Entry { name, kind, mode, uid, gid, size, content, xattrs, stamp, dir })
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

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>().ok_or_else(|| damaged("it breaks off"))?;
        self.bytes = rest;
        Ok(*taken)
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
