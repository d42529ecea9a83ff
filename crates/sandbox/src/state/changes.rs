//! What differs between two states.

use std::io::{Read, Write};
use std::rc::Rc;
use std::time::Duration;

use super::look::{Found, State, find, shelf_state};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::image;
use crate::sandboxes::Sandboxes;
use crate::snapshot::diff::{self, Change, Node};
use crate::snapshot::index::Kind;
use crate::snapshot::pack::{Form, Stack, pack};
use crate::snapshot::records::SnapshotInfo;
use crate::snapshot::shelf::Shelf;
use crate::snapshot::{Reach, layers, merge};
use crate::spec::Image;
use crate::threads::blocking;

pub use crate::snapshot::pack::Packed;

/// Differences that are told at once.
const DIFFERENCES_MAX: usize = 1_000_000;
/// A larger file is not compared line by line.
const TEXT_BYTES_MAX: u64 = 1 << 20;
/// All comparisons of lines together.
const TEXTS_BYTES_MAX: usize = 64 << 20;
/// How long to look for the shortest comparison of two texts.
const TEXT_TIME_MAX: Duration = Duration::from_secs(1);

/// What is to be told of differences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiffOptions {
    /// Compare what files hold, line by line.
    pub content: bool,
}

/// What differs between two states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diff {
    /// The box or the snapshot of the first state; of a box, what it began with, where that was asked for.
    pub from: String,
    /// The box or the snapshot of the second state.
    pub to: String,
    /// Something changed while it was read.
    pub racy: bool,
    /// Sorted by path: a directory comes before what is in it.
    pub changes: Vec<Difference>,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// From the root, with a slash in front.
    pub path: Vec<u8>,
    /// What was there. `None`: it was added.
    pub from: Option<Thing>,
    /// What is there. `None`: it was removed.
    pub to: Option<Thing>,
    /// What about it differs, if something was there and is: `kind`, `content`, `target`, `mode`, `owner`, `xattrs`.
    pub what: Vec<&'static str>,
    /// What differs in what a file holds, if that was asked for.
    pub content: Option<Content>,
}

/// Something in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thing {
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `char-device` or `block-device`.
    pub kind: &'static str,
    /// The lower twelve bits.
    pub mode: u16,
    /// Its owner, as the box sees it.
    pub uid: u32,
    /// Its group, as the box sees it.
    pub gid: u32,
    /// Bytes of a file, or of a link's target.
    pub bytes: u64,
}

/// What differs in what a file holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Lines, as `diff -u` tells them, without a header.
    Text(String),
    /// It is no text, on one side at least.
    Binary,
    /// It is too large to be compared, or all differences together are.
    TooLarge,
}

impl Thing {
    fn of(node: &Node) -> Thing {
        let entry = &node.entry;
        Thing {
            kind: kind_name(entry.kind),
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            bytes: entry.size,
        }
    }
}

/// What an entry is, in a word.
pub(super) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symlink",
        Kind::Fifo => "fifo",
        Kind::Socket => "socket",
        Kind::CharDevice | Kind::Whiteout => "char-device",
        Kind::BlockDevice => "block-device",
    }
}

impl Sandboxes {
    /// What differs between a state and another, or what it began with: a box with what it was made from, a snapshot
    /// with the image below it.
    pub async fn diff(&self, name: &str, against: Option<&str>, options: DiffOptions) -> Result<Diff> {
        let (house, name, against) = (self.clone(), name.to_owned(), against.map(str::to_owned));
        blocking(move || {
            let _share = house.home().store_shared()?;
            let mut shelf = Shelf::new(house.home());
            let (from, to) = house.two_states(&mut shelf, &name, against.as_deref())?;
            let (reach, changes, texts_bytes) = (shelf.reach(), Vec::new(), 0);
            let mut teller = Teller { from: &from, to: &to, reach, options, changes, texts_bytes };
            diff::diff(&from.chain(), &to.chain(), |change| teller.take(change))?;
            let changes = teller.changes;
            let racy = from.racy() || to.racy();
            Ok(Diff { from: from.id, to: to.id, racy, changes })
        })
        .await
    }

    /// The same as a layer of an image: a tar stream that makes the state out of the other one.
    pub async fn diff_tar(
        &self,
        name: &str,
        against: Option<&str>,
        out: impl Write + Send + 'static,
    ) -> Result<Packed> {
        let (house, name, against) = (self.clone(), name.to_owned(), against.map(str::to_owned));
        blocking(move || {
            let _share = house.home().store_shared()?;
            let mut shelf = Shelf::new(house.home());
            let (from, to) = house.two_states(&mut shelf, &name, against.as_deref())?;
            let stack = Stack { indexes: &to.chain(), trees: &to.trees, reach: shelf.reach() };
            pack(&from.chain(), stack, Form::Everybody, out)
        })
        .await
    }

    /// `from` is what the name is compared with.
    fn two_states(&self, shelf: &mut Shelf<'_>, name: &str, against: Option<&str>) -> Result<(State, State)> {
        let home = self.home();
        let found = find(home, name)?;
        let from = match (against, &found) {
            (Some(against), _) => self.state(shelf, find(home, against)?)?,
            (None, Found::Box(id)) => {
                let origin = self.on_record(id)?.info.origin;
                self.know(&origin)?;
                shelf_state(shelf, id.clone(), &origin)?
            }
            (None, Found::Snapshot(snapshot)) => {
                let below = self.image_below(snapshot)?;
                self.know(&below)?;
                shelf_state(shelf, snapshot.image.to_string(), &below)?
            }
        };
        Ok((from, self.state(shelf, found)?))
    }

    /// The layers of the image that a snapshot's box was made from.
    fn image_below(&self, snapshot: &SnapshotInfo) -> Result<Vec<String>> {
        if let Image::Stored(name) | Image::Remote(name) = &snapshot.image
            && let Ok(info) = image::image(self.home(), name)
            && snapshot.chain.ends_with(&info.layers)
        {
            return Ok(info.layers);
        }
        if snapshot.image == Image::Host {
            let host = |name: &&String| name.starts_with("host-");
            return Ok(snapshot.chain.iter().filter(host).cloned().collect());
        }
        let is_written = |name: &&String| layers::level(name) != merge::LEVEL_FIXED;
        let written = snapshot.chain.iter().take_while(is_written).count();
        // One that was imported stands on layers of its own alone.
        let on_directory = snapshot.chain.iter().any(|name| name.starts_with("dir:"));
        if written == 0 && !on_directory {
            let message = format!(
                "nothing tells what of snapshot {} came with its image {}; name something to compare it with",
                snapshot.id, snapshot.image
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(snapshot.chain[written..].to_vec())
    }
}

/// Tells differences.
struct Teller<'a> {
    from: &'a State,
    to: &'a State,
    reach: &'a Reach,
    options: DiffOptions,
    changes: Vec<Difference>,
    texts_bytes: usize,
}

impl Teller<'_> {
    fn take(&mut self, change: &Change<'_>) -> Result<()> {
        if self.changes.len() >= DIFFERENCES_MAX {
            let message =
                format!("there are more than {DIFFERENCES_MAX} differences; `--tar` writes them all");
            return Err(Error::new(ErrorKind::Limit, message));
        }
        let w = &change.what;
        let named = [
            ("kind", w.kind),
            ("content", w.content),
            ("target", w.target),
            ("mode", w.mode),
            ("owner", w.owner),
            ("xattrs", w.xattrs),
        ];
        let path = if change.path == b"." { b"/".to_vec() } else { [b"/", change.path].concat() };
        let content = if self.options.content { self.content(change)? } else { None };
        self.changes.push(Difference {
            path,
            from: change.from.map(Thing::of),
            to: change.to.map(Thing::of),
            what: named.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect(),
            content,
        });
        Ok(())
    }

    /// `None`: no file is there on either side, or it holds the same.
    fn content(&mut self, change: &Change<'_>) -> Result<Option<Content>> {
        let file = |node: &&Node| node.entry.kind == Kind::File;
        let (x, y) = (change.from.filter(file), change.to.filter(file));
        let same = match (x, y) {
            (None, None) => true,
            (Some(_), Some(_)) => !change.what.content,
            _ => false,
        };
        if same {
            return Ok(None);
        }
        let large = |node: Option<&Node>| node.is_some_and(|node| node.entry.size > TEXT_BYTES_MAX);
        if large(x) || large(y) || self.texts_bytes > TEXTS_BYTES_MAX {
            return Ok(Some(Content::TooLarge));
        }
        let (Some(a), Some(b)) = (text(self.reach, self.from, x)?, text(self.reach, self.to, y)?) else {
            return Ok(Some(Content::Binary));
        };
        let lines = glasshouse_trace::unified_within(&a, &b, TEXT_TIME_MAX);
        self.texts_bytes += lines.len();
        Ok(Some(Content::Text(lines)))
    }
}

/// What a file holds, empty if there is none. `None`: it is no text.
fn text(reach: &Reach, state: &State, node: Option<&Node>) -> Result<Option<String>> {
    let Some(node) = node else { return Ok(Some(String::new())) };
    let indexes: Vec<_> = state.indexes.iter().map(Rc::as_ref).collect();
    let mut bytes = Vec::new();
    let mut file = Stack { indexes: &indexes, trees: &state.trees, reach }.open(node)?;
    file.read_to_end(&mut bytes).context(format_args!("read {}", node.path.escape_ascii()))?;
    Ok(String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')))
}
