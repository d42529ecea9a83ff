//! What a guest tells of its own root, where nobody outside can look at it.
//!
//! ```text
//!  host                                  guest
//!   walk ──────────────────────────────▶
//!        ◀────────────────────────────── begin · entry, entry, …, leave, mount · end     (many in a frame)
//!   wanted: paths of files ────────────▶
//!        ◀────────────────────────────── one answer for each, in their order             (again and again)
//!   wanted: none ──────────────────────▶
//!        ◀────────────────────────────── end, and the connection is for requests again
//! ```
//! All of it is in `Data` frames on the stream of the request, each of which holds whole items. Sides take turns, so neither
//! waits for room while the other one does. Directories are told before what is in them, and that sorted by its bytes;
//! the first entry is the root, without a name. Where something is mounted, its name alone is told.
//!
//! Numbers are little-endian. What cannot be read ends the conversation: whoever listens has no use for the rest.

use crate::limits::FRAME_BODY_MAX;

/// The longest name of an entry.
pub const NAME_MAX: usize = 255;
/// The longest content that comes along with an answer.
pub const KEPT_BYTES_MAX: u64 = 64 * 1024;
/// Paths that are asked for at once.
pub const WANTED_MAX: usize = 256;
/// A frame with so many bytes is sent.
pub const FRAME_FULL: usize = 48 * 1024;

/// A moment: seconds and nanoseconds.
pub type Moment = (i64, u32);

/// What the kernel says of an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Facts {
    /// `f`, `d`, `l`, `p`, `s`, `c` or `b`.
    pub kind: u8,
    /// The lower twelve bits.
    pub mode: u16,
    /// The owner, as the box sees it.
    pub uid: u32,
    /// The group, as the box sees it.
    pub gid: u32,
    /// Bytes of a file, or of a link's target.
    pub size: u64,
    /// Its number.
    pub ino: u64,
    /// When it last changed in any way.
    pub ctime: Moment,
    /// When its content last changed.
    pub mtime: Moment,
}

/// One entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// Its name; the root has none.
    pub name: Vec<u8>,
    /// What the kernel says of it.
    pub facts: Facts,
    /// The hash of a link's target or of a device's number.
    pub content: Option<[u8; 32]>,
    /// The hash of a directory's attributes.
    pub attributes: Option<[u8; 32]>,
}

/// What is told of a root, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// The walk begins at this moment, by the guest's clock.
    Begin(Moment),
    /// An entry. If it is a directory, all until its `Leave` is in it.
    Entry(Told),
    /// That was all of the directory.
    Leave,
    /// Something is mounted under this name.
    Mount(Vec<u8>),
    /// That was all.
    End,
}

/// Files whose content is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Content of files up to this size comes along.
    pub kept_bytes: u64,
    /// From the root, without a slash in front.
    pub paths: Vec<Vec<u8>>,
}

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// There is no such file any more.
    Gone,
    /// It is there.
    File {
        /// What the kernel said of it when it had been read.
        facts: Facts,
        /// The hash of its content.
        content: [u8; 32],
        /// The hash of its attributes.
        attributes: Option<[u8; 32]>,
        /// Its content, if it is small.
        bytes: Option<Vec<u8>>,
    },
}

/// Bytes that are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Misheard;

impl std::fmt::Display for Misheard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("what is told of a root is not understood")
    }
}

impl std::error::Error for Misheard {}

const BEGIN: u8 = 1;
const ENTRY: u8 = 2;
const LEAVE: u8 = 3;
const MOUNT: u8 = 4;
const END: u8 = 5;

impl Item {
    /// Appends it.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Item::Begin(at) => {
                out.push(BEGIN);
                put_moment(out, *at);
            }
            Item::Entry(told) => {
                out.push(ENTRY);
                put_bytes(out, &told.name);
                put_facts(out, &told.facts);
                put_hash(out, told.content.as_ref());
                put_hash(out, told.attributes.as_ref());
            }
            Item::Leave => out.push(LEAVE),
            Item::Mount(name) => {
                out.push(MOUNT);
                put_bytes(out, name);
            }
            Item::End => out.push(END),
        }
    }

    /// Takes the next one; `None` at the end of the bytes.
    pub fn take(bytes: &mut &[u8]) -> Result<Option<Item>, Misheard> {
        let Some((tag, rest)) = bytes.split_first() else { return Ok(None) };
        *bytes = rest;
        Ok(Some(match *tag {
            BEGIN => Item::Begin(take_moment(bytes)?),
            ENTRY => Item::Entry(Told {
                name: take_bytes(bytes, NAME_MAX)?,
                facts: take_facts(bytes)?,
                content: take_hash(bytes)?,
                attributes: take_hash(bytes)?,
            }),
            LEAVE => Item::Leave,
            MOUNT => Item::Mount(take_bytes(bytes, NAME_MAX)?),
            END => Item::End,
            _ => return Err(Misheard),
        }))
    }
}

impl Wanted {
    /// As the body of a frame.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.kept_bytes.to_le_bytes().to_vec();
        self.paths.iter().for_each(|path| put_bytes(&mut out, path));
        out
    }

    /// Reads the body of a frame.
    pub fn from_bytes(mut bytes: &[u8]) -> Result<Wanted, Misheard> {
        let kept_bytes = u64::from_le_bytes(take_array(&mut bytes)?).min(KEPT_BYTES_MAX);
        let mut paths = Vec::new();
        while !bytes.is_empty() {
            paths.push(take_bytes(&mut bytes, FRAME_BODY_MAX)?);
            if paths.len() > WANTED_MAX {
                return Err(Misheard);
            }
        }
        Ok(Wanted { kept_bytes, paths })
    }
}

impl Answer {
    /// Appends it.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Answer::Gone => out.push(0),
            Answer::File { facts, content, attributes, bytes } => {
                out.push(if bytes.is_some() { 2 } else { 1 });
                put_facts(out, facts);
                out.extend(content);
                put_hash(out, attributes.as_ref());
                bytes.iter().for_each(|bytes| put_bytes(out, bytes));
            }
        }
    }

    /// Takes the next one; `None` at the end of the bytes.
    pub fn take(bytes: &mut &[u8]) -> Result<Option<Answer>, Misheard> {
        let Some((tag, rest)) = bytes.split_first() else { return Ok(None) };
        *bytes = rest;
        if *tag == 0 {
            return Ok(Some(Answer::Gone));
        }
        let (facts, content, attributes) = (take_facts(bytes)?, take_array(bytes)?, take_hash(bytes)?);
        let bytes = match *tag {
            1 => None,
            2 => Some(take_bytes(bytes, KEPT_BYTES_MAX as usize)?),
            _ => return Err(Misheard),
        };
        Ok(Some(Answer::File { facts, content, attributes, bytes }))
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

fn put_moment(out: &mut Vec<u8>, (seconds, nanoseconds): Moment) {
    out.extend(seconds.to_le_bytes());
    out.extend(nanoseconds.to_le_bytes());
}

fn put_facts(out: &mut Vec<u8>, facts: &Facts) {
    out.push(facts.kind);
    out.extend(facts.mode.to_le_bytes());
    out.extend(facts.uid.to_le_bytes());
    out.extend(facts.gid.to_le_bytes());
    out.extend(facts.size.to_le_bytes());
    out.extend(facts.ino.to_le_bytes());
    put_moment(out, facts.ctime);
    put_moment(out, facts.mtime);
}

fn put_hash(out: &mut Vec<u8>, hash: Option<&[u8; 32]>) {
    out.push(u8::from(hash.is_some()));
    out.extend(hash.into_iter().flatten());
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Misheard> {
    let (head, rest) = bytes.split_first_chunk::<N>().ok_or(Misheard)?;
    *bytes = rest;
    Ok(*head)
}

fn take_bytes(bytes: &mut &[u8], most: usize) -> Result<Vec<u8>, Misheard> {
    let length = u32::from_le_bytes(take_array(bytes)?) as usize;
    if length > most || length > bytes.len() {
        return Err(Misheard);
    }
    let (head, rest) = bytes.split_at(length);
    *bytes = rest;
    Ok(head.to_vec())
}

fn take_moment(bytes: &mut &[u8]) -> Result<Moment, Misheard> {
    Ok((i64::from_le_bytes(take_array(bytes)?), u32::from_le_bytes(take_array(bytes)?)))
}

fn take_facts(bytes: &mut &[u8]) -> Result<Facts, Misheard> {
    let [kind] = take_array(bytes)?;
    Ok(Facts {
        kind,
        mode: u16::from_le_bytes(take_array(bytes)?),
        uid: u32::from_le_bytes(take_array(bytes)?),
        gid: u32::from_le_bytes(take_array(bytes)?),
        size: u64::from_le_bytes(take_array(bytes)?),
        ino: u64::from_le_bytes(take_array(bytes)?),
        ctime: take_moment(bytes)?,
        mtime: take_moment(bytes)?,
    })
}

fn take_hash(bytes: &mut &[u8]) -> Result<Option<[u8; 32]>, Misheard> {
    match take_array::<1>(bytes)? {
        [0] => Ok(None),
        [1] => take_array(bytes).map(Some),
        _ => Err(Misheard),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let (ctime, mtime) = ((-3, 999), (1 << 40, 0));
        Facts { kind: b'f', mode: 0o4755, uid: 1, gid: u32::MAX, size: 1 << 50, ino: 7, ctime, mtime }
    }

    fn items() -> Vec<Item> {
        let told = Told { name: b"a\xff".to_vec(), facts: facts(), content: Some([7; 32]), attributes: None };
        let root = Told { attributes: Some([9; 32]), ..Told::default() };
        let mount = Item::Mount(b"proc".to_vec());
        vec![Item::Begin((5, 6)), Item::Entry(root), Item::Entry(told), mount, Item::Leave, Item::End]
    }

    #[test]
    fn what_is_put_is_taken() {
        let mut bytes = Vec::new();
        items().iter().for_each(|item| item.put(&mut bytes));
        let mut rest = bytes.as_slice();
        let taken: Vec<Item> = std::iter::from_fn(|| Item::take(&mut rest).unwrap()).collect();
        assert_eq!(taken, items());

        let file = |bytes| Answer::File { facts: facts(), content: [1; 32], attributes: None, bytes };
        let answers = [Answer::Gone, file(None), file(Some(b"text".to_vec()))];
        let mut bytes = Vec::new();
        answers.iter().for_each(|answer| answer.put(&mut bytes));
        let mut rest = bytes.as_slice();
        let taken: Vec<Answer> = std::iter::from_fn(|| Answer::take(&mut rest).unwrap()).collect();
        assert_eq!(taken, answers);

        let wanted = Wanted { kept_bytes: 10, paths: vec![b"a/b".to_vec(), b"c".to_vec()] };
        assert_eq!(Wanted::from_bytes(&wanted.to_bytes()), Ok(wanted));
    }

    #[test]
    fn what_is_cut_off_or_too_long_is_refused() {
        let mut bytes = Vec::new();
        items()[2].put(&mut bytes);
        for cut in 1..bytes.len() {
            assert_eq!(Item::take(&mut &bytes[..cut]), Err(Misheard), "{cut}");
        }
        let mut long = Vec::new();
        Item::Mount(vec![b'x'; NAME_MAX + 1]).put(&mut long);
        assert_eq!(Item::take(&mut long.as_slice()), Err(Misheard));
        assert_eq!(Item::take(&mut [77].as_slice()), Err(Misheard));
        assert_eq!(Wanted::from_bytes(&[0; 3]), Err(Misheard));
        let many = Wanted { kept_bytes: 0, paths: vec![b"a".to_vec(); WANTED_MAX + 1] };
        assert_eq!(Wanted::from_bytes(&many.to_bytes()), Err(Misheard));
        let greedy = Wanted { kept_bytes: u64::MAX, paths: Vec::new() };
        assert_eq!(Wanted::from_bytes(&greedy.to_bytes()).unwrap().kept_bytes, KEPT_BYTES_MAX);
    }
}
