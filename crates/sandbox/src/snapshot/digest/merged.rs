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

use super::super::index::{DEPTH_MAX, Entry, Hash, Index, Kind, Record};
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
    pub(crate) fn children(&self, node: &Node) -> Result<Vec<Node>> {
        if let [part] = node.parts.as_slice() {
            let entries = self.list(part)?.into_iter();
            return entries
                .filter_map(|entry| self.join(&node.parts, (entry, 0), &mut None.into_iter()).transpose())
                .collect();
        }
        let mut entries = Vec::new();
        for (n, part) in node.parts.iter().enumerate() {
            entries.extend(self.list(part)?.into_iter().map(|entry| (entry, n)));
        }
        // The parts are sorted already, so this is no more than merging them. What comes first stays first.
        entries.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        let mut children = Vec::with_capacity(entries.len());
        let mut entries = entries.into_iter().peekable();
        let mut below = Vec::new();
        while let Some(first) = entries.next() {
            while let Some(next) = entries.next_if(|(next, _)| next.name == first.0.name) {
                below.push(next);
            }
            children.extend(self.join(&node.parts, first, &mut below.drain(..))?);
        }
        Ok(children)
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

    fn list(&self, part: &Part) -> Result<Vec<Entry>> {
        self.opened.set(self.opened.get() + 1);
        if self.opened.get() > DIRECTORIES_MAX {
            let text = format!("cannot walk the layers: they have more than {DIRECTORIES_MAX} directories");
            return Err(Error::new(ErrorKind::Limit, text));
        }
        self.chain[part.layer].list(&part.record)
    }

    /// One name in one layer. Listings are kept: redirects often lead to the same directories.
    fn find(&self, part: &Part, name: &[u8]) -> Result<Option<Entry>> {
        let key = (part.layer, part.record.place());
        let known = self.cached.borrow().iter().find(|(k, _)| *k == key).map(|(_, entries)| entries.clone());
        let entries = match known {
            Some(entries) => entries,
            None => {
                let entries = Rc::new(self.list(part)?);
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
