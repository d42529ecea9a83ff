//! What differs between two chains, as a layer in a tar stream.
//!
//! It is an OCI layer: `.wh.NAME` says that NAME is not there any more, and a directory comes before what is in it, with
//! all directories on the way to what changed. Moved directories are told as what is gone and what is new. Owners, modes,
//! times of the second, attributes that count and holes' zeros are in it; files with several names are several files.
//! Devices and sockets are left out and counted.

#[cfg(test)]
mod tests;

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use glasshouse_linux::layer::{self, Way};
use glasshouse_linux::reach::Reach;
use glasshouse_linux::rustix::fs::fstat;
use glasshouse_linux::rustix::io::Errno;
use tar::{Builder, EntryType, Header};

use super::Tree;
use super::diff::{self, Node};
use super::index::{Entry, Index, Kind, counts, stamp};
use crate::error::{Context, Error, ErrorKind, Result};

/// What a name begins with that deletes another.
const WHITEOUT: &[u8] = b".wh.";
/// Bytes of a name, and of a link's target, that a header has room for.
const NAME_BYTES_MAX: usize = 100;
/// The name of an entry that holds a longer name.
const LONG_NAME: &[u8] = b"././@LongLink";
/// The kernel's own bound, for all names of attributes together and for one value.
const ATTRIBUTE_BYTES_MAX: usize = 65_536;

/// What was packed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Packed {
    /// Files, directories, links and deletions.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Devices and sockets, which are not in it.
    pub left_out: u64,
}

/// A chain of layers with what they hold, uppermost first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stack<'a> {
    pub(crate) indexes: &'a [&'a Index],
    pub(crate) trees: &'a [Tree],
    pub(crate) reach: &'a Reach,
}

impl Stack<'_> {
    /// The directory that something is in, and its name there.
    fn place(&self, node: &Node) -> Result<(OwnedFd, CString)> {
        let tree = &self.trees[node.layer];
        let open = || format!("open {} in {tree}", node.path.escape_ascii());
        let root = tree.open(self.reach)?;
        if node.path == b"." {
            return Ok((root, c".".to_owned()));
        }
        let mut names = Vec::new();
        for name in node.path.split(|byte| *byte == b'/') {
            names.push(CString::new(name).map_err(io::Error::other).context(open())?);
        }
        let last = names.pop().unwrap_or_default();
        let way = names.iter().fold(Way::default(), |way, name| way.join(name));
        Ok((layer::open_dir(self.reach, root.as_fd(), &way).context(open())?, last))
    }

    /// What a file holds. It is what its index says, or an error.
    pub(crate) fn open(&self, node: &Node) -> Result<Unchanged> {
        let (dir, name) = self.place(node)?;
        let shown = node.path.escape_ascii().to_string();
        let file = layer::open_file(self.reach, dir.as_fd(), &name).context(format_args!("open {shown}"))?;
        Unchanged::new(file, &node.entry).context(format_args!("read {shown}"))
    }
}

/// A file that is read as its index knows it: no more, no less, and nothing else.
pub(crate) struct Unchanged {
    file: File,
    entry: Entry,
    left: u64,
}

impl Unchanged {
    fn new(file: OwnedFd, entry: &Entry) -> io::Result<Unchanged> {
        let file = Unchanged { file: file.into(), entry: entry.clone(), left: entry.size };
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> io::Result<()> {
        match stamp(&fstat(&self.file)?) == self.entry.stamp {
            true => Ok(()),
            false => Err(io::Error::other("it is being changed; take a snapshot, and look at that")),
        }
    }
}

impl Read for Unchanged {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let got = self.file.read(&mut buffer[..wanted])?;
        self.left -= got as u64;
        if self.left == 0 || got == 0 {
            self.check()?;
        }
        if got == 0 && self.left > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(got)
    }
}

/// Writes a layer that makes `to` out of `from`.
pub(crate) fn pack(from: &[&Index], to: Stack<'_>, out: impl Write) -> Result<Packed> {
    let mut packer = Packer {
        to,
        out: Builder::new(out),
        open: Vec::new(),
        gone: None,
        packed: Packed::default(),
        buffer: vec![0; ATTRIBUTE_BYTES_MAX],
    };
    // The root is always told: a layer without it would get one of the unpacker's making.
    if let Some(root) = diff::locate(to.indexes, b".")? {
        packer.write(b".", &root)?;
    }
    diff::diff(from, to.indexes, |change| packer.take(change.path, change.from, change.to))?;
    packer.out.into_inner().and_then(|mut out| out.flush()).context("write the layer")?;
    Ok(packer.packed)
}

struct Packer<'a, W: Write> {
    to: Stack<'a>,
    out: Builder<W>,
    /// Directories that are written and that we are in, by their paths.
    open: Vec<Vec<u8>>,
    /// What is below this went with it.
    gone: Option<Vec<u8>>,
    packed: Packed,
    buffer: Vec<u8>,
}

impl<W: Write> Packer<'_, W> {
    fn take(&mut self, path: &[u8], from: Option<&Node>, to: Option<&Node>) -> Result<()> {
        if path == b"." || self.gone.as_ref().is_some_and(|gone| is_below(path, gone)) {
            return Ok(());
        }
        if from.is_some_and(|from| from.entry.kind == Kind::Directory)
            && to.is_none_or(|to| to.entry.kind != Kind::Directory)
        {
            self.gone = Some(path.to_vec());
        }
        match to {
            Some(node) => self.add(path, node),
            None => self.delete(path),
        }
    }

    fn delete(&mut self, path: &[u8]) -> Result<()> {
        self.way_to(path)?;
        let (dir, name) = split(path);
        let name = [WHITEOUT, name].concat();
        let path = if dir.is_empty() { name } else { [dir, b"/", &name].concat() };
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o600);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        self.packed.entries += 1;
        self.append(header, &path, io::empty())
    }

    /// Writes the directories on the way to something, as far as they are not written yet.
    fn way_to(&mut self, path: &[u8]) -> Result<()> {
        while self.open.last().is_some_and(|open| !is_below(path, open)) {
            self.open.pop();
        }
        let known = self.open.last().map_or(0, |open| open.len() + 1);
        let ends = path.iter().enumerate().skip(known).filter(|(_, byte)| **byte == b'/');
        for (end, _) in ends {
            let dir = &path[..end];
            let Some(node) = diff::locate(self.to.indexes, dir)? else { continue };
            self.write(dir, &node)?;
            self.open.push(dir.to_vec());
        }
        Ok(())
    }

    fn add(&mut self, path: &[u8], node: &Node) -> Result<()> {
        if split(path).1.starts_with(WHITEOUT) {
            let message = format!(
                "cannot put {} into a layer: a name that begins with `.wh.` means a deletion there",
                path.escape_ascii()
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        self.way_to(path)?;
        self.write(path, node)?;
        if node.entry.kind == Kind::Directory {
            self.open.push(path.to_vec());
        }
        Ok(())
    }

    fn write(&mut self, path: &[u8], node: &Node) -> Result<()> {
        let entry = &node.entry;
        let mut header = Header::new_gnu();
        header.set_mode(u32::from(entry.mode));
        header.set_uid(entry.uid.into());
        header.set_gid(entry.gid.into());
        header.set_mtime(u64::try_from(entry.stamp.mtime.seconds).unwrap_or_default());
        header.set_size(0);
        self.packed.entries += 1;
        match entry.kind {
            Kind::File => {
                let file = self.to.open(node)?;
                self.attributes(file.file.as_fd(), path)?;
                header.set_entry_type(EntryType::Regular);
                header.set_size(entry.size);
                self.packed.bytes += entry.size;
                self.append(header, path, file)
            }
            Kind::Directory => {
                let (dir, name) = self.to.place(node)?;
                let way = if node.path == b"." { Way::default() } else { Way::default().join(&name) };
                let opened = layer::open_dir(self.to.reach, dir.as_fd(), &way).context(writing(path))?;
                self.attributes(opened.as_fd(), path)?;
                header.set_entry_type(EntryType::Directory);
                let path = [path, b"/"].concat();
                self.append(header, &path, io::empty())
            }
            Kind::Symlink => {
                let (dir, name) = self.to.place(node)?;
                let target = self.to.reach.read_link(dir.as_fd(), &name).context(writing(path))?;
                header.set_entry_type(EntryType::Symlink);
                let target = target.to_bytes();
                let room = target.len().min(NAME_BYTES_MAX);
                // To the letter: a call for paths would tidy it up.
                header.set_link_name_literal(&target[..room]).context(writing(path))?;
                if target.len() > NAME_BYTES_MAX {
                    self.long(EntryType::GNULongLink, target, path)?;
                }
                self.append(header, path, io::empty())
            }
            Kind::Fifo => {
                header.set_entry_type(EntryType::Fifo);
                self.append(header, path, io::empty())
            }
            Kind::Socket | Kind::CharDevice | Kind::BlockDevice | Kind::Whiteout => {
                self.packed.entries -= 1;
                self.packed.left_out += 1;
                Ok(())
            }
        }
    }

    /// Writes one entry. The name goes in as it is: a call for paths takes none that are long and no text.
    fn append(&mut self, mut header: Header, path: &[u8], data: impl Read) -> Result<()> {
        if path.len() > NAME_BYTES_MAX {
            self.long(EntryType::GNULongName, path, path)?;
        }
        put_name(&mut header, path);
        self.out.append(&header, data).context(writing(path))
    }

    /// Writes a name or a target that is too long for a header, ahead of what it belongs to.
    fn long(&mut self, kind: EntryType, text: &[u8], path: &[u8]) -> Result<()> {
        let mut long = Header::new_gnu();
        long.set_entry_type(kind);
        long.set_size(text.len() as u64 + 1);
        long.set_uid(0);
        long.set_gid(0);
        long.set_mtime(0);
        long.set_mode(0o644);
        put_name(&mut long, LONG_NAME);
        self.out.append(&long, text.chain(&[0][..])).context(writing(path))
    }

    /// Writes the attributes that count ahead of what they belong to.
    fn attributes(&mut self, file: BorrowedFd<'_>, path: &[u8]) -> Result<()> {
        let listed = match self.to.reach.list(file, None, &mut self.buffer) {
            Err(Errno::OPNOTSUPP | Errno::NODATA) => 0,
            listed => listed.context(writing(path))?,
        };
        let mut found = Vec::new();
        for name in self.buffer[..listed].split_inclusive(|byte| *byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
            let Ok(text) = name.to_str() else { continue };
            if counts(name.to_bytes()) {
                let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
                let got = self.to.reach.attribute(file, None, name, &mut value).context(writing(path))?;
                value.truncate(got);
                if text.contains(['=', '\n']) {
                    let message = format!(
                        "cannot put {} into a layer: the name of its attribute {text:?} cannot be written there",
                        path.escape_ascii()
                    );
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
                // Many readers take an end of line for the end of the value.
                match value.contains(&b'\n') {
                    true => found.push((
                        format!("LIBARCHIVE.xattr.{text}"),
                        STANDARD_NO_PAD.encode(&value).into_bytes(),
                    )),
                    false => found.push((format!("SCHILY.xattr.{text}"), value)),
                }
            }
        }
        let pairs = found.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        self.out.append_pax_extensions(pairs).context(writing(path))
    }
}

/// Puts as much of a name into a header as that has room for, and seals it.
fn put_name(header: &mut Header, name: &[u8]) {
    let room = &mut header.as_old_mut().name;
    let length = name.len().min(room.len());
    room[..length].copy_from_slice(&name[..length]);
    header.set_cksum();
}

fn writing(path: &[u8]) -> String {
    format!("write {} into a layer", path.escape_ascii())
}

/// The directory of a path, empty at the root, and the name in it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Whether a path lies in a directory, however deep.
fn is_below(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.first() == Some(&b'/'))
}
