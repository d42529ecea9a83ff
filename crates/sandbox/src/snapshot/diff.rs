//! What differs between two chains, and where in a chain a thing is.
//!
//! The walk goes down both trees at once and leaves out every directory of which the indexes tell that it is
//! the same on both sides.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use super::digest::merged::{Children, Merged, same};
use super::index::{Entry, Index, Kind};
use crate::error::Result;

pub(crate) use super::digest::merged::Node;

/// One difference.
#[derive(Debug, Clone)]
pub(crate) struct Change<'a> {
    /// From the root, without a slash in front. `.` is the root itself.
    pub(crate) path: &'a [u8],
    /// What was there. `None`: it was added.
    pub(crate) from: Option<&'a Node>,
    /// What is there. `None`: it was removed.
    pub(crate) to: Option<&'a Node>,
    /// If there is something on both sides: what about it differs.
    pub(crate) what: What,
}

/// What about a thing differs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct What {
    /// A file is a directory now, or the like. Then content and target are not compared.
    pub(crate) kind: bool,
    /// What a file holds, or which device it is.
    pub(crate) content: bool,
    /// Where a link leads.
    pub(crate) target: bool,
    pub(crate) mode: bool,
    pub(crate) owner: bool,
    pub(crate) xattrs: bool,
}

impl What {
    fn between(a: &Entry, b: &Entry) -> What {
        let kind = a.kind != b.kind;
        let content = !kind && a.kind != Kind::Directory && (a.size, a.content) != (b.size, b.content);
        let link = a.kind == Kind::Symlink;
        What {
            kind,
            content: content && !link,
            target: content && link,
            mode: a.mode != b.mode,
            owner: (a.uid, a.gid) != (b.uid, b.gid),
            xattrs: a.xattrs != b.xattrs,
        }
    }

    /// Whether nothing differs.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == What::default()
    }
}

/// Tells what has to be done to `from` to get `to`, sorted by path: a directory comes before what is in it.
///
/// Everything in a directory that was added or removed is told, too.
pub(crate) fn diff(
    from: &[&Index],
    to: &[&Index],
    mut visit: impl FnMut(&Change<'_>) -> Result<()>,
) -> Result<()> {
    let (a, b) = (Merged::with_paths(from)?, Merged::with_paths(to)?);
    let (x, y) = (a.root(), b.root());
    let what = What::between(&x.entry, &y.entry);
    if !what.is_nothing() {
        visit(&Change { path: b".", from: Some(&x), to: Some(&y), what })?;
    }
    let mut frames = Vec::new();
    frames.extend(Pair::enter(&a, &b, Some(&x), Some(&y), 0)?);
    let mut path = Vec::new();
    while let Some(frame) = frames.last_mut() {
        path.truncate(frame.path_length);
        let Some((x, y)) = frame.next()? else {
            frames.pop();
            continue;
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(x.as_ref().or(y.as_ref()).map_or(&[][..], |node| &node.entry.name));
        let what = match (&x, &y) {
            (Some(x), Some(y)) => What::between(&x.entry, &y.entry),
            _ => What::default(),
        };
        if x.is_none() || y.is_none() || !what.is_nothing() {
            visit(&Change { path: &path, from: x.as_ref(), to: y.as_ref(), what })?;
        }
        if let Some(below) = Pair::enter(&a, &b, x.as_ref(), y.as_ref(), path.len())? {
            a.check_depth(frames.len())?;
            frames.push(below);
        }
    }
    Ok(())
}

/// Which layer holds what is at this path, and under which path there. The attributes are those that count.
pub(crate) fn locate(chain: &[&Index], path: &[u8]) -> Result<Option<Node>> {
    Merged::with_paths(chain)?.node(path)
}

/// What the directory at this path holds, sorted by name. `None`: there is no such directory.
#[cfg(test)]
pub(crate) fn entries(chain: &[&Index], path: &[u8]) -> Result<Option<Vec<Node>>> {
    let merged = Merged::with_paths(chain)?;
    match merged.node(path)? {
        Some(node) if node.entry.kind == Kind::Directory => {
            merged.children(&node)?.collect::<Result<_>>().map(Some)
        }
        _ => Ok(None),
    }
}

/// Two directories that are walked at once.
struct Pair<'a> {
    from: Walk<'a>,
    to: Walk<'a>,
    /// How much of the path is theirs.
    path_length: usize,
}

impl<'a> Pair<'a> {
    /// `None`: there is nothing to walk, or both are the same.
    fn enter(
        a: &'a Merged<'_>,
        b: &'a Merged<'_>,
        x: Option<&Node>,
        y: Option<&Node>,
        path_length: usize,
    ) -> Result<Option<Pair<'a>>> {
        let x = x.filter(|node| node.entry.kind == Kind::Directory);
        let y = y.filter(|node| node.entry.kind == Kind::Directory);
        match (x, y) {
            (None, None) => return Ok(None),
            (Some(x), Some(y)) if same((a, x), (b, y)) == Some(true) => return Ok(None),
            _ => {}
        }
        Ok(Some(Pair { from: Walk::along(a, x)?, to: Walk::along(b, y)?, path_length }))
    }

    /// The next name, on one side or on both.
    fn next(&mut self) -> Result<Option<(Option<Node>, Option<Node>)>> {
        let order = match (&self.from.next, &self.to.next) {
            (None, None) => return Ok(None),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(x), Some(y)) => x.entry.name.cmp(&y.entry.name),
        };
        let from = if order.is_le() { self.from.take()? } else { None };
        let to = if order.is_ge() { self.to.take()? } else { None };
        Ok(Some((from, to)))
    }
}

/// One of them. Without a directory there is nothing to walk.
struct Walk<'a> {
    next: Option<Node>,
    rest: Option<Children<'a>>,
}

impl<'a> Walk<'a> {
    fn along(merged: &'a Merged<'_>, directory: Option<&Node>) -> Result<Walk<'a>> {
        let rest = directory.map(|directory| merged.children(directory)).transpose()?;
        let mut walk = Walk { next: None, rest };
        walk.take()?;
        Ok(walk)
    }

    /// What is next. The one after it is looked for.
    fn take(&mut self) -> Result<Option<Node>> {
        let after = self.rest.as_mut().and_then(Iterator::next).transpose()?;
        Ok(std::mem::replace(&mut self.next, after))
    }
}
