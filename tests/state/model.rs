//! A tree of files as it should be, beside the one in a box.
//!
//! It is a plain map, with one rule of overlayfs in it: **hard links of a lower layer break on copy-up**. Who changes,
//! moves or links a file that lies in a lower layer gets a copy of his own under that name; the other names keep what was
//! there. Names that were linked since the last change of the root are one file, as everywhere.
//! And one of mounts without privilege: a directory of a lower layer cannot be renamed (EXDEV), so whoever moves it
//! copies it, as `mv` does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use sha2::{Digest, Sha256};

use crate::rerun::Dice;

/// Names: few, so that they come again after they were removed; and odd ones among them.
const NAMES: [&[u8]; 9] =
    [b"a", b"b", b"c", b"dir", b"with space", b"new\nline", b"caf\xe9", b".hidden", b"\xff\xfe"];
/// Deepest path.
const DEPTH_MAX: usize = 4;
/// Beyond this a tree is made smaller.
const NODES_MAX: usize = 60;
/// Bytes that one line writes.
const PIECE_BYTES: usize = 20_000;
/// The longest file.
const FILE_BYTES_MAX: usize = 200_000;

type Path = Vec<Vec<u8>>;

#[derive(Debug, Clone)]
enum Node {
    Dir {
        mode: u32,
    },
    Link {
        target: Vec<u8>,
    },
    /// The number of a file.
    File(u64),
}

#[derive(Debug, Clone)]
struct File {
    mode: u32,
    content: Vec<u8>,
    /// It lies in a lower layer.
    lower: bool,
}

impl File {
    /// Writes it: the zeros that it begins with as a hole, and then piece by piece.
    fn steps(&self, path: &Path) -> Vec<Step> {
        let zeros = self.content.iter().take_while(|&&byte| byte == 0).count();
        let mut pieces = self.content[zeros..].chunks(PIECE_BYTES).map(<[u8]>::to_vec);
        let mut steps = vec![Step::Write(path.clone(), Vec::new())];
        match pieces.next() {
            Some(piece) => steps.push(Step::Sparse(path.clone(), zeros, piece)),
            None => steps.push(Step::Truncate(path.clone(), zeros)),
        }
        steps.extend(pieces.map(|piece| Step::Append(path.clone(), piece)));
        steps.push(Step::Chmod(path.clone(), self.mode));
        steps
    }
}

/// What a tree should be.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    nodes: BTreeMap<Path, Node>,
    files: BTreeMap<u64, File>,
    next: u64,
}

/// Something that is done to both trees.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Write(Path, Vec<u8>),
    Append(Path, Vec<u8>),
    Truncate(Path, usize),
    /// A hole up to the place, and then a few bytes.
    Sparse(Path, usize, Vec<u8>),
    Mkdir(Path),
    Remove(Path),
    Move(Path, Path),
    Symlink(Path, Vec<u8>),
    Link(Path, Path),
    Chmod(Path, u32),
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("."), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn joined(path: &[Vec<u8>]) -> Vec<u8> {
    path.join(&b'/')
}

impl Step {
    /// A line for [`SCRIPT`].
    pub(crate) fn line(&self) -> String {
        let path = |path: &Path| hex(&joined(path));
        match self {
            Step::Write(at, bytes) => format!("write {} {}", path(at), hex(bytes)),
            Step::Append(at, bytes) => format!("append {} {}", path(at), hex(bytes)),
            Step::Truncate(at, size) => format!("truncate {} {size}", path(at)),
            Step::Sparse(at, size, bytes) => format!("sparse {} {size} {}", path(at), hex(bytes)),
            Step::Mkdir(at) => format!("mkdir {}", path(at)),
            Step::Remove(at) => format!("remove {}", path(at)),
            Step::Move(from, to) => format!("move {} {}", path(from), path(to)),
            Step::Symlink(at, target) => format!("symlink {} {}", path(at), hex(target)),
            Step::Link(from, to) => format!("link {} {}", path(from), path(to)),
            Step::Chmod(at, mode) => format!("chmod {} {mode}", path(at)),
        }
    }
}

/// Does the steps of its arguments below /workspace/t, says of each move whether it was a copy, and lists the tree.
pub(crate) const SCRIPT: &str = r#"
import os, sys, stat, hashlib
os.umask(0o022)
os.makedirs(b'/workspace/t', exist_ok=True)
os.chdir(b'/workspace/t')
raw = lambda word: bytes.fromhex(word[1:])
def rm(path):
    if stat.S_ISDIR(os.lstat(path).st_mode):
        for name in os.listdir(path): rm(path + b'/' + name)
        os.rmdir(path)
    else: os.unlink(path)
def copy(old, new):
    s = os.lstat(old)
    if stat.S_ISLNK(s.st_mode): return os.symlink(os.readlink(old), new)
    if stat.S_ISDIR(s.st_mode):
        os.mkdir(new)
        for name in os.listdir(old): copy(old + b'/' + name, new + b'/' + name)
    else:
        with open(old, 'rb') as f, open(new, 'xb') as g: g.write(f.read())
    os.chmod(new, stat.S_IMODE(s.st_mode))
def step(what, path, *rest):
    path = raw(path)
    if what == 'write':
        with open(path, 'wb') as f: f.write(raw(rest[0]))
    elif what == 'append':
        with open(path, 'ab') as f: f.write(raw(rest[0]))
    elif what == 'truncate': os.truncate(path, int(rest[0]))
    elif what == 'sparse':
        with open(path, 'r+b') as f:
            f.truncate(0); f.seek(int(rest[0])); f.write(raw(rest[1]))
    elif what == 'mkdir': os.mkdir(path)
    elif what == 'remove': rm(path)
    elif what == 'move':
        try: os.rename(path, raw(rest[0])); print('renamed')
        except OSError as e:
            if e.errno != 18: raise
            copy(path, raw(rest[0])); rm(path); print('copied')
    elif what == 'symlink': os.symlink(raw(rest[0]), path)
    elif what == 'link': os.link(path, raw(rest[0]))
    elif what == 'chmod': os.chmod(path, int(rest[0]))
for line in sys.argv[1].splitlines():
    try: step(*line.split())
    except OSError as e: sys.exit(f'{line}: {e!r}')
print('--')
found, first = [], {}
def walk(dir):
    for name in os.listdir(dir or b'.'):
        path = dir + b'/' + name if dir else name
        found.append(path)
        if stat.S_ISDIR(os.lstat(path).st_mode): walk(path)
walk(b'')
for path in sorted(found, key=lambda path: path.split(b'/')):
    s = os.lstat(path)
    mode = oct(stat.S_IMODE(s.st_mode))[2:]
    if stat.S_ISDIR(s.st_mode): print('.' + path.hex(), 'dir', mode)
    elif stat.S_ISLNK(s.st_mode): print('.' + path.hex(), 'link', '.' + os.readlink(path).hex())
    else:
        with open(path, 'rb') as f: content = f.read()
        one = first.setdefault((s.st_dev, s.st_ino), path)
        print('.' + path.hex(), 'file', mode, s.st_size, hashlib.sha256(content).hexdigest(), '.' + one.hex())
"#;

impl Model {
    /// The tree as [`SCRIPT`] lists it.
    pub(crate) fn listing(&self) -> String {
        let (mut text, mut first) = (String::new(), BTreeMap::new());
        for (path, node) in &self.nodes {
            let name = hex(&joined(path));
            let _ = match node {
                Node::Dir { mode } => writeln!(text, "{name} dir {mode:o}"),
                Node::Link { target } => writeln!(text, "{name} link {}", hex(target)),
                Node::File(number) => {
                    let file = &self.files[number];
                    let one = first.entry(number).or_insert(name.clone()).clone();
                    let hash = hex(&Sha256::digest(&file.content));
                    writeln!(text, "{name} file {:o} {} {} {one}", file.mode, file.content.len(), &hash[1..])
                }
            };
        }
        text
    }

    /// Lines for [`SCRIPT`] that write this tree anew, where nothing is.
    pub(crate) fn lines(&self) -> Vec<String> {
        let (mut steps, mut first) = (Vec::new(), BTreeMap::new());
        for (path, node) in &self.nodes {
            match node {
                Node::Dir { mode } => {
                    steps.extend([Step::Mkdir(path.clone()), Step::Chmod(path.clone(), *mode)]);
                }
                Node::Link { target } => steps.push(Step::Symlink(path.clone(), target.clone())),
                Node::File(number) => match first.get(number) {
                    Some(one) => steps.push(Step::Link(Path::clone(one), path.clone())),
                    None => {
                        first.insert(*number, path.clone());
                        steps.extend(self.files[number].steps(path));
                    }
                },
            }
        }
        steps.iter().map(Step::line).collect()
    }

    /// The box has another root: all that is there lies in lower layers now.
    pub(crate) fn sealed(mut self) -> Model {
        self.files.values_mut().for_each(|file| file.lower = true);
        self
    }

    /// Some step that is possible now.
    pub(crate) fn some_step(&self, dice: &mut Dice) -> Step {
        let all: Vec<&Path> = self.nodes.keys().collect();
        let files: Vec<&Path> = self
            .nodes
            .iter()
            .filter(|(_, node)| matches!(node, Node::File(_)))
            .map(|(path, _)| path)
            .collect();
        let bytes = |dice: &mut Dice| vec![b'a' + dice.below(26) as u8; dice.below(3000)];
        let new = self.new_path(dice);
        let kind = if self.nodes.len() > NODES_MAX { 5 } else { dice.below(16) };
        match (kind, dice.of(&files), dice.of(&all), new) {
            (0, Some(&file), ..) => Step::Write(file.clone(), bytes(dice)),
            (1 | 2, Some(&file), ..) => Step::Append(file.clone(), bytes(dice)),
            (3, Some(&file), ..) => Step::Truncate(file.clone(), dice.below(5000)),
            (4, Some(&file), ..) => Step::Sparse(file.clone(), dice.below(FILE_BYTES_MAX), bytes(dice)),
            (5 | 6, _, Some(&path), _) => Step::Remove(path.clone()),
            (7 | 8, _, Some(&from), Some(to)) if !to.starts_with(from) => Step::Move(from.clone(), to),
            (9, Some(&from), ..) => self.replacement(from, &files, dice),
            (10, _, _, Some(to)) => Step::Symlink(to, NAMES[dice.below(NAMES.len())].to_vec()),
            (11, Some(&from), _, Some(to)) => Step::Link(from.clone(), to),
            (12, _, Some(&path), _) => match &self.nodes[path] {
                Node::Dir { .. } => Step::Chmod(path.clone(), [0o700, 0o755, 0o1777][dice.below(3)]),
                Node::File(_) => Step::Chmod(path.clone(), [0o600, 0o644, 0o755][dice.below(3)]),
                Node::Link { .. } => Step::Remove(path.clone()),
            },
            (13 | 14, _, _, Some(to)) => Step::Mkdir(to),
            (_, _, _, Some(to)) => Step::Write(to, bytes(dice)),
            (.., Some(&path), None) => Step::Remove(path.clone()),
            (.., None, None) => unreachable!("an empty tree has room"),
        }
    }

    /// A file over another, or else written anew. Names of one file are left alone: to rename one to the other does
    /// nothing, unless overlayfs had to make two of them.
    fn replacement(&self, from: &Path, files: &[&Path], dice: &mut Dice) -> Step {
        let to = files[dice.below(files.len())];
        match (self.names_of(from), self.names_of(to)) {
            (1, 1) if from != to => Step::Move(from.clone(), to.clone()),
            _ => Step::Write(from.clone(), b"anew".to_vec()),
        }
    }

    fn names_of(&self, path: &Path) -> usize {
        let Some(Node::File(number)) = self.nodes.get(path) else { return 0 };
        self.nodes.values().filter(|node| matches!(node, Node::File(other) if other == number)).count()
    }

    /// A name that is free, in a directory that is there.
    fn new_path(&self, dice: &mut Dice) -> Option<Path> {
        let mut dirs: Vec<Path> = vec![Path::new()];
        let is_dir = |node: &Node| matches!(node, Node::Dir { .. });
        dirs.extend(self.nodes.iter().filter(|(_, node)| is_dir(node)).map(|(path, _)| path.clone()));
        dirs.retain(|dir| dir.len() < DEPTH_MAX);
        let mut free = Vec::new();
        let dir = dice.of(&dirs)?;
        for name in NAMES {
            let path = [dir.as_slice(), &[name.to_vec()]].concat();
            if !self.nodes.contains_key(&path) {
                free.push(path);
            }
        }
        dice.of(&free).cloned()
    }

    fn add(&mut self, mode: u32, content: Vec<u8>) -> Node {
        self.next += 1;
        self.files.insert(self.next, File { mode, content, lower: false });
        Node::File(self.next)
    }

    /// The file of a name, to be changed: in a lower layer it becomes this name's own first.
    fn own(&mut self, path: &Path) -> &mut File {
        let Node::File(mut number) = self.nodes[path] else { panic!("{path:?} is no file") };
        let file = self.files[&number].clone();
        if file.lower && self.names_of(path) > 1 {
            let node = self.add(file.mode, file.content);
            number = self.next;
            self.nodes.insert(path.clone(), node);
        }
        let file = self.files.get_mut(&number).expect("every name has a file");
        file.lower = false;
        file
    }

    /// Does what the script has done.
    pub(crate) fn apply(&mut self, step: &Step, copied: bool) {
        match step {
            Step::Write(path, bytes) => match self.nodes.contains_key(path) {
                true => self.own(path).content = bytes.clone(),
                false => {
                    let node = self.add(0o644, bytes.clone());
                    self.nodes.insert(path.clone(), node);
                }
            },
            Step::Append(path, bytes) => self.own(path).content.extend(bytes),
            Step::Truncate(path, size) => self.own(path).content.resize(*size, 0),
            Step::Sparse(path, size, bytes) => {
                // Nothing written is nothing changed: a hole is as long as what ends it.
                let holds = if bytes.is_empty() { 0 } else { *size };
                self.own(path).content = [vec![0; holds].as_slice(), bytes].concat();
            }
            Step::Mkdir(path) => drop(self.nodes.insert(path.clone(), Node::Dir { mode: 0o755 })),
            Step::Remove(path) => self.nodes.retain(|other, _| !other.starts_with(path)),
            Step::Move(from, to) => self.moved(from, to, copied),
            Step::Symlink(path, target) => {
                self.nodes.insert(path.clone(), Node::Link { target: target.clone() });
            }
            Step::Link(from, to) => {
                self.own(from);
                self.nodes.insert(to.clone(), self.nodes[from].clone());
            }
            Step::Chmod(path, mode) => match self.nodes.get_mut(path) {
                Some(Node::Dir { mode: old }) => *old = *mode,
                _ => self.own(path).mode = *mode,
            },
        }
        let used: BTreeSet<u64> = self
            .nodes
            .values()
            .filter_map(|node| if let Node::File(n) = node { Some(*n) } else { None })
            .collect();
        self.files.retain(|number, _| used.contains(number));
    }

    fn moved(&mut self, from: &Path, to: &Path, copied: bool) {
        if matches!(self.nodes[from], Node::File(_)) {
            self.own(from);
        }
        let those: Vec<Path> = self.nodes.keys().filter(|path| path.starts_with(from)).cloned().collect();
        for path in those {
            let mut node = self.nodes.remove(&path).expect("it was just seen");
            if let (true, Node::File(number)) = (copied, &node) {
                let file = self.files[number].clone();
                node = self.add(file.mode, file.content);
            }
            self.nodes.insert([to.as_slice(), &path[from.len()..]].concat(), node);
        }
    }
}
