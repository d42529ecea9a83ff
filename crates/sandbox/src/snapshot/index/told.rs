//! An index of a root that only its guest can look at.
//!
//! ```text
//!  the guest tells every entry ─▶ what did not change since the earlier index is taken from there
//!                                  the rest is asked for by its path: hashes, and small content ─▶ the index
//! ```
//! It is of all that the box shows, so nothing stands below it: what came with the image and was not touched is in it as well.
//! The earlier one saves reading that, and the first of an image's boxes leaves one for all others: a file of the image has
//! the same number and times in each of them, where the engine's storage shares it.
//!
//! A container shows more than a box has: what the engine mounts, and a few empty files that it puts over the image's. That is
//! not told of, or known by its place and its looks; what the image has there ([`Rules::base`]) takes its place. So the same tree
//! is the same here and in a box whose layers can be read.
//!
//! All of it is a guest's word on its own box, and bounded: entries, depth, names, their order.

use std::iter::Peekable;
use std::vec::IntoIter;

use glasshouse_protocol::walk::{Answer, FRAME_FULL, Facts as ToldFacts, Item, Told, WANTED_MAX, Wanted};

use super::super::digest::merged::{Children, Merged, Node};
use super::super::{Elsewhere, Marks, digest};
use super::stat::is_same;
use super::{
    DEPTH_MAX, Dir, Entry, Facts, Hash, Index, Kept, Kind, Owners, Record, Records, Room, Stamp, Time,
    format, is_name,
};
use crate::error::{Error, ErrorKind, Result};

/// Entries of one root. All of them are in memory at once.
const ENTRIES_MAX: usize = 1_000_000;

/// What engines put over what an image has, to mount on it or not: the path, the kind, and the bytes of a link.
const OF_ENGINES: [(&[u8], u8, u64); 5] = [
    (b".dockerenv", b'f', 0),
    (b"etc/hostname", b'f', 0),
    (b"etc/hosts", b'f', 0),
    (b"etc/mtab", b'l', 12),
    (b"etc/resolv.conf", b'f', 0),
];
/// The directory that most of it is in.
const DIR_OF_ENGINES: &[u8] = b"etc";
/// The mode of it, and of the root itself.
const MODE_OF_ENGINES: u16 = 0o755;
/// Podman's roots have another one.
const ROOT_OF_PODMAN: u16 = 0o555;

/// How a root is heard of.
pub(crate) struct Rules<'a> {
    /// What came with the image.
    pub(crate) base: &'a Merged<'a>,
    /// What was known before.
    pub(crate) before: Option<&'a Index>,
    pub(crate) marks: Marks,
    pub(crate) owners: Owners,
    /// How much content is kept.
    pub(crate) room: Room,
}

/// What was heard of a root.
pub(crate) struct Heard {
    pub(crate) index: Index,
    pub(crate) kept: Kept,
    /// Files were read.
    pub(crate) has_read: bool,
}

/// Has a root told, and makes its index.
pub(crate) fn hear(tree: &dyn Elsewhere, rules: &Rules<'_>) -> Result<Heard> {
    let mut ear =
        Ear { rules, nodes: Vec::new(), frames: Vec::new(), path: Vec::new(), at: None, wanted: Vec::new() };
    let mut ended = false;
    tree.walk(&mut |item| {
        if ended {
            return Err(misheard("it goes on after its end"));
        }
        ended = item == Item::End;
        ear.take(item)
    })?;
    let Ear { mut nodes, frames, at: Some(scanned_at), wanted, .. } = ear else {
        return Err(misheard("it has no beginning"));
    };
    if !ended || !frames.is_empty() || nodes.is_empty() {
        return Err(misheard("it has no end"));
    }
    let has_read = !wanted.is_empty();
    let mut asking = Asking { room: rules.room, kept: Kept::new(), racy: false, owners: rules.owners };
    asking.ask(tree, &mut nodes, wanted)?;
    tree.done()?;
    let (entries, racy) = (nodes.len() as u64 - 1, asking.racy);
    let (marks, owners) = (rules.marks, rules.owners);
    let (root, records) = encode(nodes)?;
    let facts = Facts { scanned_at, entries, racy, marks, owners };
    let index = Index { facts, root, records: Records::Memory(records) };
    Ok(Heard { index, kept: asking.kept, has_read })
}

fn misheard(why: &str) -> Error {
    Error::new(ErrorKind::Failed, format!("what the guest tells of its root is not understood: {why}"))
}

/// An entry, before what comes after it.
struct Seen {
    entry: Entry,
    /// Of a directory: the first one that is not in it.
    end: usize,
}

/// A directory that is being told.
struct Frame {
    node: usize,
    /// Of the path before its name.
    path_length: usize,
    /// The name that was told last in it.
    last: Vec<u8>,
    /// What the earlier index has in it.
    old: Peekable<IntoIter<Entry>>,
    /// Something in it was the engine's.
    has_engines: bool,
}

struct Ear<'a> {
    rules: &'a Rules<'a>,
    nodes: Vec<Seen>,
    frames: Vec<Frame>,
    path: Vec<u8>,
    at: Option<Time>,
    wanted: Vec<(usize, Vec<u8>)>,
}

impl Ear<'_> {
    fn take(&mut self, item: Item) -> Result<()> {
        match item {
            Item::Begin(at) if self.at.is_none() => {
                self.at = Some(time(at));
                Ok(())
            }
            Item::End if self.frames.is_empty() => Ok(()),
            Item::Leave => self.leave(),
            Item::Entry(told) if self.at.is_some() => self.entry(told),
            Item::Mount(name) => self.mount(&name),
            _ => Err(misheard("its parts are in another order")),
        }
    }

    /// The name of something in the directory at hand: names come sorted.
    fn step(&mut self, name: &[u8]) -> Result<()> {
        let frame = self.frames.last_mut().ok_or_else(|| misheard("an entry is in no directory"))?;
        if !is_name(name) || (!frame.last.is_empty() && *frame.last >= *name) {
            return Err(misheard("a name is none, or not where it belongs"));
        }
        frame.last = name.to_vec();
        if self.nodes.len() >= ENTRIES_MAX {
            let text = format!("cannot look at a box there: it has more than {ENTRIES_MAX} entries");
            return Err(Error::new(ErrorKind::Limit, text));
        }
        Ok(())
    }

    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        if self.path.is_empty() { name.to_vec() } else { [&self.path, name].join(&b'/') }
    }

    fn entry(&mut self, told: Told) -> Result<()> {
        let is_root = self.nodes.is_empty();
        if is_root != told.name.is_empty() || (is_root && told.facts.kind != b'd') {
            return Err(misheard("its root is none"));
        }
        if is_root {
            let mut entry = entry_of(b"", &told.facts, self.rules.owners)?;
            if (entry.uid, entry.gid) == (0, 0) && [MODE_OF_ENGINES, ROOT_OF_PODMAN].contains(&entry.mode) {
                let base = self.rules.base.root().entry;
                (entry.mode, entry.uid, entry.gid) = (base.mode, base.uid, base.gid);
            }
            let old = self.rules.before.map(|index| index.root().clone());
            return self.enter(Entry { xattrs: told.attributes, ..entry }, old);
        }
        self.step(&told.name)?;
        let path = self.path_of(&told.name);
        let ToldFacts { kind, size, mode, uid, gid, .. } = told.facts;
        // Some remap users and forget that of the link.
        let is_roots = kind == b'l' || (mode, uid, gid) == (MODE_OF_ENGINES, 0, 0);
        if is_roots && OF_ENGINES.contains(&(path.as_slice(), kind, size)) {
            return self.take_image_s(&path);
        }
        let mut entry = entry_of(&told.name, &told.facts, self.rules.owners)?;
        let frame = self.frames.last_mut().ok_or_else(|| misheard("an entry is in no directory"))?;
        while frame.old.next_if(|old| *old.name < *told.name).is_some() {}
        let old = frame.old.next_if(|old| *old.name == *told.name);
        if entry.kind == Kind::Directory {
            entry.xattrs = told.attributes;
            let base = if is_roots && path == DIR_OF_ENGINES { self.rules.base.node(&path)? } else { None };
            if let Some(base) = base.filter(|base| base.entry.kind == Kind::Directory) {
                (entry.mode, entry.uid, entry.gid) = (base.entry.mode, base.entry.uid, base.entry.gid);
                entry.xattrs = base.entry.xattrs;
            }
            return self.enter(entry, old);
        }
        let before = self.rules.before.map(|index| index.facts.scanned_at);
        match (entry.kind, old.filter(|old| before.is_some_and(|at| is_same(at, old, &entry)))) {
            (Kind::File, Some(old)) => (entry.content, entry.xattrs) = (old.content, old.xattrs),
            (Kind::File, None) => self.wanted.push((self.nodes.len(), path)),
            _ => entry.content = told.content.unwrap_or_default(),
        }
        self.nodes.push(Seen { entry, end: 0 });
        Ok(())
    }

    fn enter(&mut self, entry: Entry, old: Option<Entry>) -> Result<()> {
        if self.frames.len() >= DEPTH_MAX {
            let text = format!("cannot look at a box there: it is deeper than {DEPTH_MAX} directories");
            return Err(Error::new(ErrorKind::Limit, text));
        }
        // An earlier index that turns out to be damaged is as good as none.
        let listed = self.rules.before.zip(old.and_then(|old| old.dir));
        let listed = listed.and_then(|(index, dir)| index.list(&dir.record).ok()).unwrap_or_default();
        let (node, path_length) = (self.nodes.len(), self.path.len());
        if !entry.name.is_empty() {
            self.path = self.path_of(&entry.name);
        }
        let (last, old) = (Vec::new(), listed.into_iter().peekable());
        self.frames.push(Frame { node, path_length, last, old, has_engines: false });
        self.nodes.push(Seen { entry, end: 0 });
        Ok(())
    }

    fn leave(&mut self) -> Result<()> {
        let frame = self.frames.pop().ok_or_else(|| misheard("a directory ends that never began"))?;
        let end = self.nodes.len();
        let is_engines = frame.has_engines && end == frame.node + 1 && !self.frames.is_empty();
        if is_engines && self.rules.base.node(&self.path)?.is_none() {
            // It is there for nothing but what the engine has put there.
            self.nodes.pop();
            self.is_engines();
        } else {
            self.nodes[frame.node].end = end;
        }
        self.path.truncate(frame.path_length);
        Ok(())
    }

    fn is_engines(&mut self) {
        if let Some(frame) = self.frames.last_mut() {
            frame.has_engines = true;
        }
    }

    /// Something is mounted there: what the image has below it is what counts.
    fn mount(&mut self, name: &[u8]) -> Result<()> {
        self.step(name)?;
        self.take_image_s(&self.path_of(name))
    }

    /// What the engine has put somewhere is not the box's: what the image has there is.
    fn take_image_s(&mut self, path: &[u8]) -> Result<()> {
        match self.rules.base.node(path)? {
            Some(node) => self.splice(node),
            None => {
                self.is_engines();
                Ok(())
            }
        }
    }

    /// Takes a tree as the image has it.
    fn splice(&mut self, node: Node) -> Result<()> {
        let base = self.rules.base;
        let mut open: Vec<(usize, Children<'_>)> = Vec::new();
        let mut next = Some(node);
        loop {
            let Some(node) = next else {
                let Some((at, children)) = open.last_mut() else { return Ok(()) };
                next = children.next().transpose()?;
                if next.is_none() {
                    self.nodes[*at].end = self.nodes.len();
                    open.pop();
                    if open.is_empty() {
                        return Ok(());
                    }
                    continue;
                }
                continue;
            };
            next = None;
            if self.nodes.len() >= ENTRIES_MAX {
                return Err(misheard("what the image has there is more than can be told"));
            }
            let is_dir = node.entry.kind == Kind::Directory;
            if is_dir {
                base.check_depth(open.len())?;
                open.push((self.nodes.len(), base.children(&node)?));
            }
            let dir = is_dir.then(plain_dir);
            self.nodes.push(Seen { entry: Entry { dir, ..node.entry }, end: 0 });
            if open.is_empty() {
                return Ok(());
            }
        }
    }
}

fn time((seconds, nanoseconds): (i64, u32)) -> Time {
    Time { seconds, nanoseconds }
}

fn plain_dir() -> Dir {
    Dir { opaque: false, redirect: None, redirects_below: false, record: Record::default() }
}

fn entry_of(name: &[u8], facts: &ToldFacts, owners: Owners) -> Result<Entry> {
    let kind = Kind::of_byte(facts.kind).filter(|kind| *kind != Kind::Whiteout);
    let kind = kind.ok_or_else(|| misheard("an entry is of no kind"))?;
    let (uid, gid) = match owners {
        Owners::Kept => (facts.uid, facts.gid),
        Owners::One => (0, 0),
    };
    Ok(Entry {
        name: name.into(),
        kind,
        mode: facts.mode & 0o7777,
        uid,
        gid,
        size: if matches!(kind, Kind::File | Kind::Symlink) { facts.size } else { 0 },
        content: Hash::default(),
        xattrs: None,
        stamp: Stamp { ino: facts.ino, ctime: time(facts.ctime), mtime: time(facts.mtime) },
        dir: (kind == Kind::Directory).then(plain_dir),
    })
}

/// Asks for what files hold.
struct Asking {
    room: Room,
    kept: Kept,
    racy: bool,
    owners: Owners,
}

impl Asking {
    fn ask(&mut self, tree: &dyn Elsewhere, nodes: &mut [Seen], wanted: Vec<(usize, Vec<u8>)>) -> Result<()> {
        let mut wanted = wanted.into_iter().peekable();
        while wanted.peek().is_some() {
            let kept_bytes = self.room.file_bytes.min(self.room.bytes);
            let (mut asked, mut paths, mut bytes) = (Vec::new(), Vec::new(), 0);
            while let Some((node, path)) = wanted.next_if(|_| paths.len() < WANTED_MAX && bytes < FRAME_FULL)
            {
                bytes += path.len();
                asked.push(node);
                paths.push(path);
            }
            let answers = tree.read(&Wanted { kept_bytes, paths })?;
            if answers.len() != asked.len() {
                return Err(misheard("it answers something else than what was asked"));
            }
            for (node, answer) in asked.into_iter().zip(answers) {
                self.hear(&mut nodes[node].entry, answer)?;
            }
        }
        Ok(())
    }

    fn hear(&mut self, entry: &mut Entry, answer: Answer) -> Result<()> {
        let Answer::File { facts, content, attributes, bytes } = answer else {
            (self.racy, entry.stamp.ino) = (true, 0);
            return Ok(());
        };
        let mut now = entry_of(&entry.name, &facts, self.owners)?;
        if now.kind != Kind::File {
            return Err(misheard("it answers of a file with something else"));
        }
        if now.stamp != entry.stamp || now.size != entry.size {
            (self.racy, now.stamp.ino) = (true, 0);
        }
        (now.content, now.xattrs) = (content, attributes);
        *entry = now;
        if let Some(bytes) = bytes.filter(|bytes| bytes.len() as u64 == entry.size)
            && let Some(left) = self.room.bytes.checked_sub(entry.size)
        {
            self.room.bytes = left;
            self.kept.insert(content, bytes);
        }
        Ok(())
    }
}

/// A directory whose record is being put together.
struct Open {
    entry: Entry,
    end: usize,
    entries: Vec<Entry>,
    start: u64,
}

/// The root, and the records of all directories, children before parents.
fn encode(nodes: Vec<Seen>) -> Result<(Entry, Vec<u8>)> {
    let (mut out, mut open) = (Vec::new(), Vec::<Open>::new());
    let close = |out: &mut Vec<u8>, mut dir: Open| -> Entry {
        let offset = out.len() as u64;
        dir.entries.iter().for_each(|entry| format::encode(out, entry));
        let written = &out[offset as usize..];
        let (bytes, check) = (written.len() as u64, format::check(written));
        dir.entry.content = digest::listing(&dir.entries);
        let record = Record { start: dir.start, offset, bytes, check };
        dir.entry.dir = Some(Dir { record, ..plain_dir() });
        dir.entry
    };
    let last = nodes.len();
    for (at, node) in nodes.into_iter().enumerate() {
        while let Some(dir) = open.pop_if(|dir| dir.end == at) {
            let entry = close(&mut out, dir);
            open.last_mut().ok_or_else(|| misheard("it has two roots"))?.entries.push(entry);
        }
        if node.entry.kind == Kind::Directory {
            let (entries, start) = (Vec::new(), out.len() as u64);
            open.push(Open { entry: node.entry, end: node.end, entries, start });
        } else {
            open.last_mut().ok_or_else(|| misheard("it has no root"))?.entries.push(node.entry);
        }
    }
    while let Some(dir) = open.pop() {
        if dir.end != last {
            return Err(misheard("a directory has no end"));
        }
        let entry = close(&mut out, dir);
        match open.last_mut() {
            Some(parent) => parent.entries.push(entry),
            None => return Ok((entry, out)),
        }
    }
    Err(misheard("it has no root"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;

    use super::super::tests::index_of;
    use super::*;

    /// A guest that says this, and knows files by their content.
    #[derive(Debug)]
    struct Said {
        items: Vec<Item>,
        files: Vec<(&'static str, Answer)>,
        asked: Cell<usize>,
    }

    impl Elsewhere for Said {
        fn walk(&self, take: &mut dyn FnMut(Item) -> Result<()>) -> Result<()> {
            self.items.iter().cloned().try_for_each(take)
        }

        fn read(&self, wanted: &Wanted) -> Result<Vec<Answer>> {
            self.asked.set(self.asked.get() + wanted.paths.len());
            let find = |path: &Vec<u8>| self.files.iter().find(|(name, _)| name.as_bytes() == path);
            Ok(wanted.paths.iter().filter_map(find).map(|(_, answer)| answer.clone()).collect())
        }

        fn done(&self) -> Result<()> {
            Ok(())
        }

        fn content(&self, _: &[u8], _: u64) -> Result<Vec<u8>> {
            Ok(Vec::new())
        }

        fn below(&self) -> &[String] {
            &[]
        }
    }

    fn facts(path: &Path, kind: u8) -> ToldFacts {
        let meta = path.symlink_metadata().unwrap();
        ToldFacts {
            kind,
            mode: (meta.mode() & 0o7777) as u16,
            uid: meta.uid(),
            gid: meta.gid(),
            size: meta.size(),
            ino: meta.ino(),
            ctime: (1, 0),
            mtime: (1, 0),
        }
    }

    fn told(name: &str, facts: ToldFacts) -> Told {
        Told { name: name.into(), facts, ..Told::default() }
    }

    fn root(items: Vec<Item>) -> Vec<Item> {
        let dir = ToldFacts { kind: b'd', mode: 0o755, ..ToldFacts::default() };
        let begin = [Item::Begin((1000, 0)), Item::Entry(told("", dir))];
        begin.into_iter().chain(items).chain([Item::Leave, Item::End]).collect()
    }

    fn heard(said: &Said, base: &Index, before: Option<&Index>) -> Result<Index> {
        let base = [base];
        let base = Merged::new(&base).unwrap();
        let room = Room { file_bytes: 10, bytes: 10 };
        let rules = Rules { base: &base, before, marks: Marks::here(), owners: Owners::Kept, room };
        hear(said, &rules).map(|heard| heard.index)
    }

    fn of(items: Vec<Item>) -> Said {
        Said { items, files: Vec::new(), asked: Cell::new(0) }
    }

    fn empty() -> Index {
        Index::empty(Marks::here(), Owners::Kept)
    }

    #[test]
    fn what_is_told_has_the_digest_of_what_is_there_and_is_asked_for_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o750)).unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("d/f"), "text").unwrap();
        symlink("d/f", dir.path().join("link")).unwrap();
        let at = |name: &str| dir.path().join(name);
        let file = facts(&at("d/f"), b'f');
        let link = Some(glasshouse_linux::content::hash(b"d/f"));
        let opened = fs::File::open(at("d/f")).unwrap();
        let content = super::super::content_hash(std::os::fd::AsFd::as_fd(&opened), 4).unwrap();
        let answer = Answer::File { facts: file, content, attributes: None, bytes: Some(b"text".to_vec()) };
        let items = vec![
            Item::Begin((1000, 0)),
            Item::Entry(told("", facts(dir.path(), b'd'))),
            Item::Entry(told("d", facts(&at("d"), b'd'))),
            Item::Entry(told("f", file)),
            Item::Leave,
            Item::Entry(Told { content: link, ..told("link", facts(&at("link"), b'l')) }),
            Item::Leave,
            Item::End,
        ];
        let said = Said { items, files: vec![("d/f", answer)], asked: Cell::new(0) };
        let index = heard(&said, &empty(), None).unwrap();
        let scanned = index_of(dir.path());
        assert_eq!(digest::digest(&[&index]).unwrap(), digest::digest(&[&scanned]).unwrap());
        assert_eq!(said.asked.get(), 1);
        let again = heard(&said, &empty(), Some(&index)).unwrap();
        assert_eq!(digest::digest(&[&again]).unwrap(), digest::digest(&[&index]).unwrap());
        assert_eq!(said.asked.get(), 1, "what did not change is known");
    }

    #[test]
    fn what_the_engine_has_put_there_is_as_the_image_has_it() {
        let image = tempfile::tempdir().unwrap();
        fs::set_permissions(image.path(), Permissions::from_mode(0o755)).unwrap();
        for (path, text) in [("etc/hosts", "here"), ("dev/null", "")] {
            fs::create_dir_all(image.path().join(path).parent().unwrap()).unwrap();
            fs::write(image.path().join(path), text).unwrap();
        }
        let base = index_of(image.path());
        let dir = |mode| ToldFacts { kind: b'd', mode, ..ToldFacts::default() };
        let file = ToldFacts { kind: b'f', mode: 0o755, ..ToldFacts::default() };
        let items = root(vec![
            Item::Entry(told(".dockerenv", file)),
            Item::Mount(b"dev".to_vec()),
            Item::Entry(told("etc", dir(0o755))),
            Item::Mount(b"hostname".to_vec()),
            Item::Entry(told("hosts", file)),
            Item::Leave,
            Item::Mount(b"proc".to_vec()),
            Item::Entry(told("run", dir(0o755))),
            Item::Mount(b"lock".to_vec()),
            Item::Leave,
        ]);
        let index = heard(&of(items), &base, None).unwrap();
        let list = |index: &Index, entry: &Entry| index.list(&entry.dir.as_ref().unwrap().record).unwrap();
        let names = |entries: &[Entry]| -> Vec<String> {
            entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect()
        };
        let top = list(&index, index.root());
        assert_eq!(names(&top), ["dev", "etc"]);
        assert_eq!(names(&list(&index, &top[0])), ["null"]);
        let hosts = list(&index, &top[1]);
        assert_eq!((names(&hosts), hosts[0].size), (vec!["hosts".to_owned()], 4));
    }

    #[test]
    fn words_that_make_no_tree_are_refused() {
        let fifo = ToldFacts { kind: b'p', ..ToldFacts::default() };
        let entry = |name: &str| Item::Entry(told(name, fifo));
        let dir = |name: &str| Item::Entry(told(name, ToldFacts { kind: b'd', ..fifo }));
        let strange = Item::Entry(told("x", ToldFacts { kind: b'w', ..fifo }));
        let file = Item::Entry(told("x", ToldFacts { kind: b'f', ..fifo }));
        for items in [
            vec![entry("b"), entry("a")],
            vec![entry("a"), entry("a")],
            vec![entry("a"), Item::Mount(b"a".to_vec())],
            vec![entry("a/b")],
            vec![entry("..")],
            vec![entry("")],
            vec![dir("d")],
            vec![Item::Leave],
            vec![Item::End],
            vec![Item::Begin((1, 1))],
            vec![strange],
            // Nobody answers.
            vec![file],
        ] {
            let told = format!("{items:?}");
            assert!(heard(&of(root(items)), &empty(), None).is_err(), "{told}");
        }
        for items in [vec![], vec![Item::End], vec![Item::Begin((1, 1)), Item::End], vec![entry("a")]] {
            assert!(heard(&of(items), &empty(), None).is_err());
        }
        assert!(heard(&of(root(vec![entry("a"), dir("d"), Item::Leave])), &empty(), None).is_ok());
    }
}
