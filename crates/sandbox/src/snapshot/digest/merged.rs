//! What a chain of layers shows, by the rules of overlayfs.
//!
//! A merged directory has *parts*: the directories of that name in several layers, uppermost first. Its
//! attributes are those of the first part. A name in it is what the first part says that has the name:
//! nothing if that is a whiteout, the thing itself if it is no directory. Directories are joined from there
//! on downwards, until a layer says otherwise: by a whiteout, by something that is no directory, or by being
//! opaque.
//!
//! A *redirect* changes the name under which the layers further down are asked, either in the same parent or,
//! if it is a path, from the root. On the way along such a path, every layer may redirect or end it in its
//! turn.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::super::index::{DEPTH_MAX, Entries, Entry, Hash, Index, Kind, Record, Skimmed};
use crate::error::{Error, ErrorKind, Result};

/// Directories that one walk opens. Redirects that no kernel made could lead to one place by many ways.
const DIRECTORIES_MAX: u64 = 16_000_000;
/// Listings that are kept at hand while redirects are followed.
const CACHED_MAX: usize = 8;

/// A chain of layers, and what it shows.
pub(crate) struct Merged<'a> {
    chain: &'a [&'a Index],
    root: Vec<Part>,
    /// Parts know where in their layer they are. It costs memory, so only who asks gets it.
    with_paths: bool,
    opened: Cell<u64>,
    cached: RefCell<Vec<Cached>>,
}

type Cached = ((usize, (u64, u64)), Rc<Vec<Entry>>);

/// What one layer contributes to a merged directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    layer: usize,
    record: Record,
    redirects_below: bool,
    path: Vec<u8>,
}

/// Something that a chain shows.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// As the uppermost layer that has it says. The content of a directory is only that layer's.
    pub(crate) entry: Entry,
    /// Which layer that is, counted from the uppermost, 0.
    pub(crate) layer: usize,
    /// Where in that layer it is. `.` is its root.
    pub(crate) path: Vec<u8>,
    parts: Vec<Part>,
}

impl Node {
    /// Something in a layer that is looked at alone.
    pub(crate) fn alone(entry: Entry, path: Vec<u8>) -> Node {
        Node { entry, layer: 0, path, parts: Vec::new() }
    }

    /// The hash of a directory's listing, if one layer alone decides about all that is in it.
    pub(crate) fn sealed(&self) -> Option<Hash> {
        match self.parts.as_slice() {
            [part] if !part.redirects_below => Some(self.entry.content),
            _ => None,
        }
    }
}

/// How the layers below are asked for a directory.
enum Name {
    /// By a name in the parent.
    Here(Box<[u8]>),
    /// By a path from the root.
    Path(Vec<Box<[u8]>>),
}

impl Name {
    fn of_redirect(redirect: &[u8]) -> Name {
        match redirect.strip_prefix(b"/") {
            Some(path) => Name::Path(path.split(|b| *b == b'/').map(Box::from).collect()),
            None => Name::Here(redirect.into()),
        }
    }
}

/// What one layer answers.
struct Answer {
    part: Option<Part>,
    /// Nobody further down is asked.
    stop: bool,
    /// How those further down are asked.
    name: Name,
}

impl<'a> Merged<'a> {
    /// The chain, uppermost layer first.
    pub(crate) fn new(chain: &'a [&'a Index]) -> Result<Merged<'a>> {
        Merged::make(chain, false)
    }

    /// The same. Its nodes know where they are.
    pub(crate) fn with_paths(chain: &'a [&'a Index]) -> Result<Merged<'a>> {
        Merged::make(chain, true)
    }

    fn make(chain: &'a [&'a Index], with_paths: bool) -> Result<Merged<'a>> {
        if chain.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "a chain needs at least one layer"));
        }
        let part = |(layer, index): (usize, &&Index)| {
            let dir = index.root().dir.as_ref()?;
            let redirects_below = dir.redirects_below;
            Some(Part { layer, record: dir.record, redirects_below, path: Vec::new() })
        };
        let root = chain.iter().enumerate().filter_map(part).collect();
        Ok(Merged { chain, root, with_paths, opened: Cell::new(0), cached: RefCell::default() })
    }

    pub(crate) fn root(&self) -> Node {
        Node { entry: self.chain[0].root().clone(), layer: 0, path: b".".to_vec(), parts: self.root.clone() }
    }

    /// Whether a walk may go further down.
    pub(crate) fn check_depth(&self, depth: usize) -> Result<()> {
        if depth < DEPTH_MAX {
            return Ok(());
        }
        let text = format!("cannot walk the layers: the tree is deeper than {DEPTH_MAX} directories");
        Err(Error::new(ErrorKind::Limit, text))
    }

    /// What a directory holds, sorted by name.
    pub(crate) fn children(&self, node: &Node) -> Result<Children<'_>> {
        let lists = node.parts.iter().map(|part| self.read(part)).collect::<Result<_>>()?;
        Ok(Children { merged: self, parts: node.parts.clone(), lists, below: Vec::new() })
    }

    /// What a directory holds under this name.
    pub(crate) fn child(&self, node: &Node, name: &[u8]) -> Result<Option<Node>> {
        let mut same = Vec::new();
        for (n, part) in node.parts.iter().enumerate() {
            same.extend(self.find(part, name)?.map(|entry| (entry, n)));
        }
        let mut same = same.into_iter();
        match same.next() {
            Some(first) => self.join(&node.parts, first, &mut same),
            None => Ok(None),
        }
    }

    /// What is at this path. Empty names in it are passed over.
    pub(crate) fn node(&self, path: &[u8]) -> Result<Option<Node>> {
        let mut node = self.root();
        for name in path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b".")) {
            if name == b".." {
                let text = format!("the path {} goes upwards", path.escape_ascii());
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            match self.child(&node, name)? {
                Some(child) => node = child,
                None => return Ok(None),
            }
        }
        Ok(Some(node))
    }

    /// One name, with the numbers of the parts that have it: the uppermost, and those below it.
    fn join(
        &self,
        parts: &[Part],
        (entry, mut n): (Entry, usize),
        same: &mut dyn Iterator<Item = (Entry, usize)>,
    ) -> Result<Option<Node>> {
        if entry.kind == Kind::Whiteout {
            return Ok(None);
        }
        let layer = parts[n].layer;
        let path = self.path(&parts[n].path, &entry.name);
        let mut joined = Vec::new();
        let mut next = entry.dir.as_ref();
        let mut below;
        while let Some(dir) = next {
            let path = self.path(&parts[n].path, &entry.name);
            let (layer, record, redirects_below) = (parts[n].layer, dir.record, dir.redirects_below);
            joined.push(Part { layer, record, redirects_below, path });
            if let Some(redirect) = &dir.redirect {
                self.follow(parts, n, Name::of_redirect(redirect), &mut joined)?;
                break;
            }
            if dir.opaque {
                break;
            }
            below = same.next();
            n = below.as_ref().map_or(n, |(_, n)| *n);
            next = below.as_ref().and_then(|(entry, _)| entry.dir.as_ref());
        }
        Ok(Some(Node { entry, layer, path, parts: joined }))
    }

    /// Asks the layers below part `n` for a directory that has another name there.
    fn follow(&self, parts: &[Part], n: usize, mut name: Name, joined: &mut Vec<Part>) -> Result<()> {
        let mut layer = parts[n].layer;
        let (mut parts, mut next) = (parts, n + 1);
        loop {
            if matches!(name, Name::Path(_)) {
                parts = &self.root;
                next = parts.partition_point(|part| part.layer <= layer);
            }
            let Some(part) = parts.get(next) else { return Ok(()) };
            let answer = match name {
                Name::Here(name) => self.ask(part, name)?,
                Name::Path(names) => self.ask_along(part, names)?,
            };
            joined.extend(answer.part);
            if answer.stop {
                return Ok(());
            }
            name = answer.name;
            layer = part.layer;
            next += 1;
        }
    }

    /// Asks one layer for a name in a directory.
    fn ask(&self, part: &Part, name: Box<[u8]>) -> Result<Answer> {
        let Some(entry) = self.find(part, &name)? else {
            return Ok(Answer { part: None, stop: false, name: Name::Here(name) });
        };
        let Some(dir) = &entry.dir else {
            return Ok(Answer { part: None, stop: true, name: Name::Here(name) });
        };
        let path = self.path(&part.path, &name);
        let (layer, record, redirects_below) = (part.layer, dir.record, dir.redirects_below);
        let found = Part { layer, record, redirects_below, path };
        let name = match &dir.redirect {
            Some(redirect) => Name::of_redirect(redirect),
            None => Name::Here(name),
        };
        Ok(Answer { part: Some(found), stop: dir.opaque, name })
    }

    /// Asks one layer for a path. `part` is the layer's root.
    fn ask_along(&self, part: &Part, names: Vec<Box<[u8]>>) -> Result<Answer> {
        let mut at = part.clone();
        let mut stop = false;
        // The path for the layers below: redirects on the way change what was walked, never what is ahead.
        let mut below: Vec<Box<[u8]>> = Vec::new();
        for (n, name) in names.iter().enumerate() {
            let found = self.find(&at, name)?;
            let Some(dir) = found.as_ref().and_then(|entry| entry.dir.as_ref()) else {
                below.extend(names[n..].iter().cloned());
                return Ok(Answer { part: None, stop: stop || found.is_some(), name: Name::Path(below) });
            };
            match dir.redirect.as_deref().map(Name::of_redirect) {
                // A path from the root leads past what was closed on the way.
                Some(Name::Path(path)) => {
                    below = path;
                    stop = false;
                }
                Some(Name::Here(other)) => below.push(other),
                None => below.push(name.clone()),
            }
            stop |= dir.opaque;
            let path = self.path(&at.path, name);
            at = Part { record: dir.record, redirects_below: dir.redirects_below, path, ..at };
        }
        Ok(Answer { part: Some(at), stop, name: Name::Path(below) })
    }

    fn path(&self, dir: &[u8], name: &[u8]) -> Vec<u8> {
        match (self.with_paths, dir) {
            (false, _) => Vec::new(),
            (true, b"") => name.to_vec(),
            (true, dir) => [dir, b"/", name].concat(),
        }
    }

    fn read(&self, part: &Part) -> Result<Entries<'_>> {
        self.opened.set(self.opened.get() + 1);
        if self.opened.get() > DIRECTORIES_MAX {
            let text = format!("cannot walk the layers: they have more than {DIRECTORIES_MAX} directories");
            return Err(Error::new(ErrorKind::Limit, text));
        }
        self.chain[part.layer].read(&part.record)
    }

    /// One name in one layer. Listings are kept: redirects often lead to the same directories.
    fn find(&self, part: &Part, name: &[u8]) -> Result<Option<Entry>> {
        let key = (part.layer, part.record.place());
        let known = self.cached.borrow().iter().find(|(k, _)| *k == key).map(|(_, entries)| entries.clone());
        let entries = match known {
            Some(entries) => entries,
            None => {
                let entries = Rc::new(self.read(part)?.collect::<Result<Vec<_>>>()?);
                let mut cached = self.cached.borrow_mut();
                if cached.len() >= CACHED_MAX {
                    cached.remove(0);
                }
                cached.push((key, entries.clone()));
                entries
            }
        };
        let found = entries.binary_search_by(|entry| (*entry.name).cmp(name));
        Ok(found.ok().map(|n| entries[n].clone()))
    }
}

/// What a merged directory holds, one after the other: a large one is never in memory as a whole.
pub(crate) struct Children<'a> {
    merged: &'a Merged<'a>,
    parts: Vec<Part>,
    /// What is left of each part.
    lists: Vec<Entries<'a>>,
    /// Of one name, those below the uppermost.
    below: Vec<(Entry, usize)>,
}

impl Children<'_> {
    /// The part that decides about the next name, and what it says that this is. Of those that share a name, it is the uppermost.
    fn uppermost(&self) -> Option<(usize, Kind)> {
        let next = self.lists.iter().enumerate().filter_map(|(n, list)| Some((n, list.peek()?)));
        next.min_by_key(|(n, (name, _))| (*name, *n)).map(|(n, (_, kind))| (n, kind))
    }

    /// Goes on to the next name. Entries of directories below the uppermost are kept.
    fn pass(&mut self, uppermost: usize, kind: Kind) -> Result<()> {
        self.below.clear();
        let (above, below) = self.lists.split_at_mut(uppermost + 1);
        let Some(first) = above.last_mut() else { return Ok(()) };
        for (n, list) in below.iter_mut().enumerate() {
            if list.peek().map(|(name, _)| name) != first.peek().map(|(name, _)| name) {
                continue;
            }
            if kind == Kind::Directory {
                self.below.push((list.skim()?.into_entry()?, uppermost + 1 + n));
            }
            list.pass()?;
        }
        first.pass()
    }

    fn take(&mut self, uppermost: usize, kind: Kind) -> Result<Option<Node>> {
        let entry = self.lists[uppermost].skim()?.into_entry()?;
        self.pass(uppermost, kind)?;
        self.merged.join(&self.parts, (entry, uppermost), &mut self.below.drain(..))
    }

    /// The next directory. What is none comes before it, as it lies there: most of what a directory holds is looked at no
    /// further.
    pub(crate) fn next_directory(&mut self, mut others: impl FnMut(&Skimmed<'_>)) -> Result<Option<Node>> {
        while let Some((uppermost, kind)) = self.uppermost() {
            match kind {
                Kind::Directory => return self.take(uppermost, kind),
                Kind::Whiteout => {}
                _ => others(&self.lists[uppermost].skim()?),
            }
            self.pass(uppermost, kind)?;
        }
        Ok(None)
    }

    fn next_node(&mut self) -> Result<Option<Node>> {
        while let Some((uppermost, kind)) = self.uppermost() {
            if let Some(node) = self.take(uppermost, kind)? {
                return Ok(Some(node));
            }
        }
        Ok(None)
    }
}

impl Iterator for Children<'_> {
    type Item = Result<Node>;

    fn next(&mut self) -> Option<Result<Node>> {
        self.next_node().transpose()
    }
}

/// Whether two directories of two chains hold the same. `None`: only looking tells.
pub(crate) fn same((a, x): (&Merged<'_>, &Node), (b, y): (&Merged<'_>, &Node)) -> Option<bool> {
    if let (Some(x), Some(y)) = (x.sealed(), y.sealed()) {
        return Some(x == y);
    }
    let one = |(p, q): (&Part, &Part)| {
        std::ptr::eq(a.chain[p.layer], b.chain[q.layer]) && p.record == q.record && !p.redirects_below
    };
    let all = x.parts.len() == y.parts.len() && x.parts.iter().zip(&y.parts).all(one);
    all.then_some(true)
}
