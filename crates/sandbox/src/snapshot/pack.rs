//! Layers in a tar stream: what differs between two chains, or one layer as it is.
//!
//! It is an OCI layer: `.wh.NAME` says that NAME is not there any more, and a directory comes before what is in it. Of two
//! chains, all directories on the way to what changed are told, and moved ones as what is gone and what is new; one layer
//! is told with all that is in it, also what looks the same as below. Owners, modes, times of the second, attributes that
//! count and hard links between what is told are in it. Devices and sockets are left out and counted.
//!
//! Holes are zeros there, for few tools read them otherwise; in what only we read they are left out.

mod holes;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use glasshouse_linux::layer::{self, Way};
use glasshouse_linux::reach::Reach;
use glasshouse_linux::rustix::fs::{MemfdFlags, fstat, memfd_create};
use glasshouse_linux::rustix::io::Errno;
use tar::{Builder, EntryType, Header};

use super::diff::{self, Node};
use super::index::{DEPTH_MAX, Entry, Index, Kind, content_hash, counts, stamp};
use super::{Marks, Tree};
use crate::error::{Context, Error, ErrorKind, Result};
use holes::Pieces;

/// What a name begins with that deletes another.
const WHITEOUT: &[u8] = b".wh.";
/// The name by which a directory says that nothing of the one below shows through it.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Bytes of a name, and of a link's target, that a header has room for.
const NAME_BYTES_MAX: usize = 100;
/// The name of an entry that holds a longer name.
const LONG_NAME: &[u8] = b"././@LongLink";
/// The kernel's own bound, for all names of attributes together and for one value.
const ATTRIBUTE_BYTES_MAX: usize = 65_536;
/// Bytes of all attributes of a file, with their names, as they are written: with them and two long names, less than the
/// headers that are taken in where a state comes to.
const ATTRIBUTES_BYTES_MAX: usize = 12 << 20;
/// Bytes of the names of files that have others, too. Beyond that, each name is a file of its own.
const LINKED_BYTES_MAX: usize = 64 << 20;

/// Who shall read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Whoever reads layers of images.
    Everybody,
    /// Glasshouse itself.
    Own,
}

/// What was packed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Packed {
    /// Files, directories, links and deletions.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Devices and sockets, which are not in it.
    pub left_out: u64,
    /// Files and directories with attributes that are not in it: access control lists, whose users other boxes number in
    /// another way, and marks of overlays that a box has mounted itself.
    pub attributes_left_out: u64,
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
        let shown = node.path.escape_ascii().to_string();
        if let Tree::Elsewhere(tree) = &self.trees[node.layer] {
            let bytes = tree.content(&node.path, node.entry.size)?;
            return Unchanged::copied(&bytes, &node.entry).context(format_args!("read {shown}"));
        }
        let (dir, name) = self.place(node)?;
        let file = layer::open_file(self.reach, dir.as_fd(), &name).context(format_args!("open {shown}"))?;
        Unchanged::new(file, &node.entry).context(format_args!("read {shown}"))
    }
}

/// A file that is read as its index knows it: no more, no less, and nothing else.
pub(crate) struct Unchanged {
    file: File,
    entry: Entry,
    left: u64,
    /// Nobody else has it.
    is_copy: bool,
}

impl Unchanged {
    /// One that was fetched from elsewhere.
    fn copied(bytes: &[u8], entry: &Entry) -> io::Result<Unchanged> {
        let mut file = File::from(memfd_create(c"glass-copy", MemfdFlags::CLOEXEC)?);
        file.write_all(bytes)?;
        file.rewind()?;
        if bytes.len() as u64 != entry.size || content_hash(file.as_fd(), entry.size)? != entry.content {
            return Err(changed());
        }
        Ok(Unchanged { file, entry: entry.clone(), left: entry.size, is_copy: true })
    }

    fn new(file: OwnedFd, entry: &Entry) -> io::Result<Unchanged> {
        let file = Unchanged { file: file.into(), entry: entry.clone(), left: entry.size, is_copy: false };
        file.check()?;
        // Somebody gave it another name, or took one away, as merging does; or it was written and set back.
        if stamp(&fstat(&file.file)?) != entry.stamp
            && content_hash(file.file.as_fd(), entry.size)? != entry.content
        {
            return Err(changed());
        }
        Ok(file)
    }

    /// By the time of the last write alone: the other one is that of its names, too, and layers share files.
    fn check(&self) -> io::Result<()> {
        if self.is_copy {
            return Ok(());
        }
        let now = fstat(&self.file)?;
        let (seen, known) = (stamp(&now), self.entry.stamp);
        match (seen.ino, seen.mtime, now.st_size as u64) == (known.ino, known.mtime, self.entry.size) {
            true => Ok(()),
            false => Err(changed()),
        }
    }
}

fn changed() -> io::Error {
    io::Error::other("it is being changed; take a snapshot, and look at that")
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
pub(crate) fn pack(from: &[&Index], to: Stack<'_>, form: Form, out: impl Write) -> Result<Packed> {
    let mut packer = Packer::new(to, form, out);
    // The root is always told: a layer without it would get one of the unpacker's making.
    if let Some(root) = diff::locate(to.indexes, b".")? {
        packer.write(b".", &root)?;
    }
    diff::diff(from, to.indexes, |change| packer.take(change.path, change.from, change.to))?;
    packer.finish()
}

/// Whether a layer can be told as it is. One in which a directory was moved cannot: only overlayfs has a word for that.
pub(crate) fn stands_alone(index: &Index) -> bool {
    index.root().dir.as_ref().is_some_and(|dir| dir.redirect.is_none() && !dir.redirects_below)
}

/// Writes one layer, the only one of the stack, as it is.
pub(crate) fn pack_layer(stack: Stack<'_>, out: impl Write) -> Result<Packed> {
    let index = stack.indexes[0];
    let mut packer = Packer::new(stack, Form::Own, out);
    let list = |entry: &Entry| match &entry.dir {
        Some(dir) => index.list(&dir.record).map(Vec::into_iter),
        None => Ok(Vec::new().into_iter()),
    };
    packer.write(b".", &Node::alone(index.root().clone(), b".".to_vec()))?;
    let mut open = vec![(Vec::new(), list(index.root())?)];
    while let Some((dir, entries)) = open.last_mut() {
        let Some(entry) = entries.next() else {
            open.pop();
            continue;
        };
        let path = if dir.is_empty() { entry.name.to_vec() } else { [dir, &b"/"[..], &entry.name].concat() };
        if open.len() > DEPTH_MAX {
            let message = format!("cannot pack a layer that is deeper than {DEPTH_MAX} directories");
            return Err(Error::new(ErrorKind::Limit, message));
        }
        if entry.kind == Kind::Whiteout {
            packer.mark(&path_of_whiteout(&path))?;
            continue;
        }
        check_name(&path)?;
        let below = list(&entry)?;
        let opaque = entry.dir.as_ref().is_some_and(|dir| dir.opaque);
        let is_dir = entry.kind == Kind::Directory;
        packer.write(&path, &Node::alone(entry, path.clone()))?;
        if opaque {
            packer.mark(&[&path, &b"/"[..], OPAQUE].concat())?;
        }
        if is_dir {
            open.push((path, below));
        }
    }
    packer.finish()
}

/// The name that says that another one is not there any more.
fn path_of_whiteout(path: &[u8]) -> Vec<u8> {
    let (dir, name) = split(path);
    let name = [WHITEOUT, name].concat();
    if dir.is_empty() { name } else { [dir, b"/", &name].concat() }
}

fn check_name(path: &[u8]) -> Result<()> {
    if !split(path).1.starts_with(WHITEOUT) {
        return Ok(());
    }
    let message = format!(
        "cannot put {} into a layer: a name that begins with `.wh.` means a deletion there",
        path.escape_ascii()
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

struct Packer<'a, W: Write> {
    to: Stack<'a>,
    form: Form,
    out: Builder<W>,
    /// Directories that are written and that we are in, by their paths.
    open: Vec<Vec<u8>>,
    /// What is below this went with it.
    gone: Option<Vec<u8>>,
    /// Files that may come again under other names, by layer and inode: the first name of each.
    linked: HashMap<(usize, u64), Vec<u8>>,
    linked_bytes: usize,
    packed: Packed,
    buffer: Vec<u8>,
}

impl<'a, W: Write> Packer<'a, W> {
    fn new(to: Stack<'a>, form: Form, out: W) -> Packer<'a, W> {
        Packer {
            to,
            form,
            out: Builder::new(out),
            open: Vec::new(),
            gone: None,
            linked: HashMap::new(),
            linked_bytes: 0,
            packed: Packed::default(),
            buffer: vec![0; ATTRIBUTE_BYTES_MAX],
        }
    }

    fn finish(self) -> Result<Packed> {
        self.out.into_inner().and_then(|mut out| out.flush()).context("write the layer")?;
        Ok(self.packed)
    }

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
        self.mark(&path_of_whiteout(path))
    }

    /// Writes a name that means something by itself.
    fn mark(&mut self, path: &[u8]) -> Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o600);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        self.packed.entries += 1;
        self.append(header, path, io::empty())
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
        check_name(path)?;
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
            Kind::File => match self.linked.get(&(node.layer, entry.stamp.ino)).cloned() {
                Some(first) => {
                    header.set_entry_type(EntryType::Link);
                    self.put_target(&mut header, &first, path)?;
                    self.append(header, path, io::empty())
                }
                None => self.write_file(header, path, node),
            },
            Kind::Directory => {
                let (dir, name) = self.to.place(node)?;
                let way = if node.path == b"." { Way::default() } else { Way::default().join(&name) };
                let opened = layer::open_dir(self.to.reach, dir.as_fd(), &way).context(writing(path))?;
                self.attributes(opened.as_fd(), path, Vec::new())?;
                header.set_entry_type(EntryType::Directory);
                let path = [path, b"/"].concat();
                self.append(header, &path, io::empty())
            }
            Kind::Symlink => {
                let (dir, name) = self.to.place(node)?;
                let target = self.to.reach.read_link(dir.as_fd(), &name).context(writing(path))?;
                header.set_entry_type(EntryType::Symlink);
                self.put_target(&mut header, target.to_bytes(), path)?;
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

    fn write_file(&mut self, mut header: Header, path: &[u8], node: &Node) -> Result<()> {
        let file = self.to.open(node)?;
        self.remember(path, node, &file)?;
        header.set_entry_type(EntryType::Regular);
        self.packed.bytes += node.entry.size;
        let whole = match self.form {
            Form::Everybody => Err(file),
            Form::Own => Pieces::of(file).context(writing(path))?,
        };
        match whole {
            Ok(pieces) => {
                self.attributes(pieces.file().file.as_fd(), path, pieces.records())?;
                header.set_size(pieces.length());
                self.append(header, path, pieces)
            }
            Err(file) => {
                self.attributes(file.file.as_fd(), path, Vec::new())?;
                header.set_size(node.entry.size);
                self.append(header, path, file)
            }
        }
    }

    /// Keeps the name of a file that may have others.
    fn remember(&mut self, path: &[u8], node: &Node, file: &Unchanged) -> Result<()> {
        let names = fstat(&file.file).context(writing(path))?.st_nlink;
        // 0: it changed while it was looked at.
        let ino = node.entry.stamp.ino;
        if names > 1 && ino != 0 && self.linked_bytes < LINKED_BYTES_MAX {
            self.linked_bytes += path.len() + size_of::<((usize, u64), Vec<u8>)>();
            self.linked.insert((node.layer, ino), path.to_vec());
        }
        Ok(())
    }

    /// Says where a link leads, to the letter: a call for paths would tidy it up.
    fn put_target(&mut self, header: &mut Header, target: &[u8], path: &[u8]) -> Result<()> {
        let room = target.len().min(NAME_BYTES_MAX);
        header.set_link_name_literal(&target[..room]).context(writing(path))?;
        if target.len() > NAME_BYTES_MAX {
            self.long(EntryType::GNULongLink, target, path)?;
        }
        Ok(())
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

    /// Writes the attributes that count ahead of what they belong to, and what else has to be told of it.
    fn attributes(
        &mut self,
        file: BorrowedFd<'_>,
        path: &[u8],
        mut found: Vec<(String, Vec<u8>)>,
    ) -> Result<()> {
        let listed = match self.to.reach.list(file, None, &mut self.buffer) {
            Err(Errno::OPNOTSUPP | Errno::NODATA) => 0,
            listed => listed.context(writing(path))?,
        };
        let marks = Marks::here().prefix().as_bytes();
        let mut left_out = false;
        for name in self.buffer[..listed].split_inclusive(|byte| *byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
            left_out |= is_left_out(name.to_bytes(), marks);
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
        self.packed.attributes_left_out += u64::from(left_out);
        let bytes: usize = found.iter().map(|(name, value)| name.len() + value.len()).sum();
        if self.form == Form::Own && bytes > ATTRIBUTES_BYTES_MAX {
            // Whoever imports it reads them into memory, and has a bound for that.
            let message = format!(
                "cannot put {} into a layer: its attributes have {bytes} bytes, and {ATTRIBUTES_BYTES_MAX} are the most",
                path.escape_ascii()
            );
            return Err(Error::new(ErrorKind::Limit, message));
        }
        let pairs = found.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        self.out.append_pax_extensions(pairs).context(writing(path))
    }
}

/// Whether an attribute is a box's own and yet does not count. `marks`: what our overlay's own attributes begin with, below
/// which it keeps those of a box's overlays, too.
fn is_left_out(name: &[u8], marks: &[u8]) -> bool {
    match name.strip_prefix(marks) {
        Some(mark) => mark.starts_with(b"overlay."),
        None => name.starts_with(b"system.posix_acl_") || name.starts_with(b"user.") && !counts(name),
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
