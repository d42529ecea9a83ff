//! One number for the merged view of a chain.
//!
//! ```text
//!  line    = name, kind, mode, owner, group, size, content, attributes
//!  content = of a directory: H(the lines of what is in it, sorted by name)
//!  digest  = H(the line of the root)
//! ```
//!
//! Times and the numbers of inodes do not count: they differ between runs that did the same. How the view is
//! cut into layers does not count either. A directory to which one layer alone contributes is not opened, for
//! the hash of its listing is in the index: the price is that of the directories that were touched, not of
//! the tree.

pub(super) mod merged;
#[cfg(test)]
pub(super) mod overlay;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use super::index::{Entry, Hash, Index, Kind, Skimmed};
use crate::error::{Error, ErrorKind, Result};
use merged::{Children, Merged, Node};

const DIRECTORY: &[u8] = b"glasshouse directory 1\n";
const TREE: &[u8] = b"glasshouse tree 1\n";

/// The state of a tree. Written as `b3:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Digest([u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b3:{}", blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;

    /// Reads exactly what `Display` writes: one spelling for one state.
    fn from_str(text: &str) -> Result<Digest> {
        text.strip_prefix("b3:")
            .filter(|hex| hex.len() == 64 && !hex.bytes().any(|b| b.is_ascii_uppercase()))
            .and_then(|hex| blake3::Hash::from_hex(hex).ok())
            .map(|hash| Digest(*hash.as_bytes()))
            .ok_or_else(|| {
                let text = format!("{text:?} is not a digest: `b3:` and 64 lower-case hex digits are");
                Error::new(ErrorKind::Invalid, text)
            })
    }
}

/// The digest of what a chain of layers shows, uppermost first.
pub(crate) fn digest(chain: &[&Index]) -> Result<Digest> {
    let merged = Merged::new(chain)?;
    let mut frames = Vec::new();
    let mut root = merged.root();
    if root.sealed().is_none() {
        frames.push(Frame::new(&merged, root.clone())?);
    }
    while let Some(frame) = frames.last_mut() {
        let listing = &mut frame.listing;
        let Some(node) = frame.children.next_directory(|other| listing.put(other))? else {
            let Some(frame) = frames.pop() else { break };
            let entry = Entry { content: frame.listing.finish(), ..frame.node.entry };
            match frames.last_mut() {
                Some(parent) => parent.listing.add(&entry),
                None => root.entry = entry,
            }
            continue;
        };
        if node.sealed().is_some() {
            listing.add(&node.entry);
        } else {
            merged.check_depth(frames.len())?;
            frames.push(Frame::new(&merged, node)?);
        }
    }
    let mut line = TREE.to_vec();
    put_line(&mut line, &root.entry);
    Ok(Digest(*blake3::hash(&line).as_bytes()))
}

/// A directory that is being hashed.
struct Frame<'a> {
    node: Node,
    children: Children<'a>,
    listing: Listing,
}

impl<'a> Frame<'a> {
    fn new(merged: &'a Merged<'_>, node: Node) -> Result<Frame<'a>> {
        let children = merged.children(&node)?;
        Ok(Frame { node, children, listing: Listing::new() })
    }
}

/// The hash of a directory's listing in one layer alone, where a whiteout is nothing.
pub(super) fn listing(entries: &[Entry]) -> Hash {
    let mut listing = Listing::new();
    for entry in entries.iter().filter(|entry| entry.kind != Kind::Whiteout) {
        listing.add(entry);
    }
    listing.finish()
}

/// The hash of a directory's listing in the making.
struct Listing {
    hasher: blake3::Hasher,
    /// Lines that wait until there are enough of them: the hash is faster on many bytes at once.
    lines: Vec<u8>,
}

impl Listing {
    const LINES_MAX: usize = 64 * 1024;

    fn new() -> Listing {
        Listing { hasher: blake3::Hasher::new(), lines: DIRECTORY.to_vec() }
    }

    fn add(&mut self, entry: &Entry) {
        put_line(&mut self.lines, entry);
        self.hash_many();
    }

    /// The same of one that lies in an index.
    fn put(&mut self, entry: &Skimmed<'_>) {
        let Skimmed { name, kind, attributes, content, xattrs, .. } = entry;
        self.lines.push(name.len() as u8);
        self.lines.extend(*name);
        self.lines.push(kind.byte());
        self.lines.extend(*attributes);
        put_hashes(&mut self.lines, content, *xattrs);
        self.hash_many();
    }

    fn hash_many(&mut self) {
        if self.lines.len() > Self::LINES_MAX {
            self.hasher.update(&self.lines);
            self.lines.clear();
        }
    }

    fn finish(mut self) -> Hash {
        self.hasher.update(&self.lines);
        *self.hasher.finalize().as_bytes()
    }
}

fn put_line(out: &mut Vec<u8>, entry: &Entry) {
    out.push(entry.name.len() as u8);
    out.extend(&entry.name);
    out.push(entry.kind.byte());
    out.extend(entry.mode.to_le_bytes());
    out.extend(entry.uid.to_le_bytes());
    out.extend(entry.gid.to_le_bytes());
    out.extend(entry.size.to_le_bytes());
    put_hashes(out, &entry.content, entry.xattrs.as_ref());
}

fn put_hashes(out: &mut Vec<u8>, content: &Hash, xattrs: Option<&Hash>) {
    out.extend(content);
    match xattrs {
        Some(xattrs) => {
            out.push(1);
            out.extend(xattrs);
        }
        None => out.push(0),
    }
}
