//! Real overlays, over chains and over what was made of them, must look the same.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use glasshouse_linux::rustix;
use glasshouse_linux::rustix::fs::{CWD, FileType, Mode, XattrFlags};
use glasshouse_linux::rustix::mount::{MountFlags, UnmountFlags};
use glasshouse_linux::rustix::process::geteuid;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::super::copy::copy;
use super::*;

/// Says to a copy of this program that it is inside, and where.
const INSIDE: &str = "GLASSHOUSE_TEST_INSIDE";

/// Runs the test's body where overlays may be mounted: in a copy of this program that runs this test only, and that
/// can write nowhere but into a scratch directory. Its boxes' links point at names of the host.
pub(crate) fn where_overlays_are(marks: Marks, test: &str, body: impl FnOnce()) {
    let (inside, options) = match marks {
        Marks::Trusted => ("trusted", "-m"),
        Marks::User => ("user", "-Urm"),
    };
    if std::env::var_os(INSIDE).is_some_and(|value| value == inside) {
        let scratch = std::env::temp_dir();
        rustix::mount::mount_bind(&scratch, &scratch).unwrap();
        rustix::mount::mount_remount("/", MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
        assert!(fs::write("/glasshouse-test", "").is_err() && fs::write("/etc/glasshouse-test", "").is_err());
        return body();
    }
    if marks == Marks::Trusted && !geteuid().is_root() {
        eprintln!("SKIPPED {test}: only root mounts overlays with trusted attributes");
        return;
    }
    let scratch = tempfile::Builder::new().prefix("s").rand_bytes(3).tempdir().unwrap();
    let output = Command::new("unshare")
        .args([options, "--propagation", "private"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, inside)
        .env("TMPDIR", scratch.path())
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && shown.contains("1 passed"), "{shown}\n{errors}");
    eprint!("{errors}");
}

/// A chain of layers in a scratch directory, uppermost first.
pub(crate) struct Stage {
    dir: tempfile::TempDir,
    pub(crate) marks: Marks,
    pub(crate) chain: Vec<PathBuf>,
    next: usize,
}

/// A mounted overlay.
pub(crate) struct Mounted(pub(crate) PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, UnmountFlags::empty()).unwrap();
    }
}

impl Stage {
    pub(crate) fn new(marks: Marks) -> Stage {
        let dir = tempfile::Builder::new().prefix("m").rand_bytes(3).tempdir().unwrap();
        for name in ["m", "none"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Stage { dir, marks, chain: Vec::new(), next: 0 }
    }

    /// A new empty directory.
    pub(crate) fn fresh(&mut self) -> PathBuf {
        self.next += 1;
        let path = self.dir.path().join(self.next.to_string());
        fs::create_dir(&path).unwrap();
        path
    }

    /// Mounts the layers with a top, or only to be read.
    pub(crate) fn mount(&mut self, layers: &[PathBuf], top: Option<&Path>) -> Mounted {
        let none = self.dir.path().join("none");
        let lowers: Vec<_> = layers.iter().chain([&none]).map(|l| l.to_str().unwrap()).collect();
        let mut options = format!("lowerdir={}", lowers.join(":"));
        if let Some(top) = top {
            let work = self.fresh();
            options += &format!(",upperdir={},workdir={},volatile", top.display(), work.display());
        } else if layers.is_empty() {
            options += &format!(":{}", self.dir.path().join("m").display());
        }
        options += match self.marks {
            Marks::Trusted => ",redirect_dir=on,index=off,metacopy=off",
            Marks::User => ",userxattr",
        };
        let at = self.dir.path().join("m");
        let options = CString::new(options).unwrap();
        rustix::mount::mount("overlay", &at, "overlay", MountFlags::empty(), options.as_c_str()).unwrap();
        Mounted(at)
    }

    /// Changes the chain through a new top, which becomes its uppermost layer.
    pub(crate) fn change(&mut self, change: impl FnOnce(&Path)) {
        let top = self.fresh();
        let chain = self.chain.clone();
        let mounted = self.mount(&chain, Some(&top));
        change(&mounted.0);
        drop(mounted);
        self.chain.insert(0, top);
    }

    pub(crate) fn view(&mut self, chain: &[PathBuf]) -> View {
        let mounted = self.mount(chain, None);
        View::of(&mounted.0, self.marks)
    }

    /// Replaces the run by its merge.
    fn merge(&mut self, run: Range<usize>) -> Result<Merged> {
        let into = self.fresh();
        let layers: Vec<_> = self.chain[run.clone()].iter().map(|l| File::open(l).unwrap()).collect();
        let layers: Vec<_> = layers.iter().map(AsFd::as_fd).collect();
        let base = run.end == self.chain.len();
        let merged = merge(&layers, File::open(&into).unwrap().as_fd(), self.marks, base)?;
        self.chain.splice(run, [into]);
        Ok(merged)
    }
}

/// All that a walk through a tree shows.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct View {
    files: BTreeMap<PathBuf, Shown>,
    /// Files with several names.
    groups: BTreeSet<Vec<PathBuf>>,
}

#[derive(Debug, PartialEq)]
struct Shown {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    size: u64,
    content: Vec<u8>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl View {
    /// Walks the tree. The marks' own attributes are no part of a view.
    pub(crate) fn of(root: &Path, marks: Marks) -> View {
        let mut view = View::default();
        let mut groups: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
        let mut todo = vec![PathBuf::new()];
        while let Some(at) = todo.pop() {
            let path = root.join(&at);
            let meta = fs::symlink_metadata(&path).unwrap();
            let (mut size, mut content) = (meta.size(), Vec::new());
            if meta.is_dir() {
                size = 0;
                todo.extend(fs::read_dir(&path).unwrap().map(|e| at.join(e.unwrap().file_name())));
            } else if meta.is_symlink() {
                content = fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec();
            } else if meta.is_file() {
                content = data_of(&path, size);
            } else {
                assert!(!meta.file_type().is_char_device(), "a whiteout shows: {}", at.display());
            }
            if meta.nlink() > 1 && !meta.is_dir() {
                groups.entry(meta.ino()).or_default().push(at.clone());
            }
            let shown = Shown {
                mode: meta.mode(),
                owner: (meta.uid(), meta.gid()),
                mtime: (meta.mtime(), meta.mtime_nsec()),
                size,
                content,
                attributes: attributes_of(&path, marks),
            };
            view.files.insert(at, shown);
        }
        view.groups = groups.into_values().filter(|group| group.len() > 1).collect();
        for group in view.groups.clone() {
            let mut sorted = group.clone();
            sorted.sort();
            view.groups.remove(&group);
            view.groups.insert(sorted);
        }
        view
    }

    fn without_times(mut self) -> View {
        self.files.values_mut().for_each(|file| file.mtime = (0, 0));
        self
    }

    /// Like `assert_eq`, with only what differs shown.
    pub(crate) fn check_same(&self, other: &View, what: &str) {
        let differs = |a: &View, b: &View| -> Vec<String> {
            let odd = a.files.iter().filter(|(path, file)| b.files.get(*path) != Some(file));
            odd.map(|(path, file)| format!("{path:?} {file:?}")).collect()
        };
        let (left, right) = (differs(self, other), differs(other, self));
        assert!(left.is_empty() && right.is_empty(), "{what}:\n{left:#?}\nis now\n{right:#?}");
        assert_eq!(self.groups, other.groups, "{what}");
    }
}

/// The beginning and the end of a file: with sparse ones, all that tests write.
fn data_of(path: &Path, size: u64) -> Vec<u8> {
    let file = File::open(path).unwrap();
    let mut data = vec![0; size.min(20_000) as usize];
    file.read_exact_at(&mut data, 0).unwrap();
    let mut end = vec![0; size.min(100) as usize];
    file.read_exact_at(&mut end, size - size.min(100)).unwrap();
    data.extend(end);
    data
}

fn attributes_of(path: &Path, marks: Marks) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65_536];
    let got = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..got].split(|&b| b == 0);
    let names = names.filter(|n| !n.is_empty() && !n.starts_with(marks.prefix().as_bytes()));
    let value = |name: &[u8]| {
        let mut value = vec![0; 65_536];
        let got = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(got);
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

/// What a box may do. What cannot be done is left.
#[derive(Debug, Clone)]
enum Op {
    Write(Place, u16),
    Sparse(Place),
    Mkdir(Place),
    Remove(Place),
    Recreate(Place),
    Rename(Place, Place),
    Link(Place, Place),
    Symlink(Place),
    Fifo(Place),
    Socket(Place),
    Mode(Place, u32),
    Owner(Place, u32),
    Touch(Place, i64),
    Attribute(Place, u8),
    Rotate,
}

/// Indices into `NAMES`.
type Place = Vec<usize>;

const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"new\nline", b"\xff\xfe", &[b'n'; 255]];

fn path_of(root: &Path, place: &Place) -> PathBuf {
    place.iter().fold(root.to_owned(), |path, &name| path.join(OsStr::from_bytes(NAMES[name])))
}

fn remove(path: &Path) -> std::io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Opens a file to write it, if it is none or a regular one. No link is followed and no pipe waited for.
fn open_to_write(path: &Path) -> std::io::Result<File> {
    if fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = flags.bits() as i32;
    File::options().create(true).truncate(false).write(true).custom_flags(flags).open(path)
}

fn apply(op: &Op, root: &Path) -> std::io::Result<()> {
    let at = |place: &Place| path_of(root, place);
    let new = |place: &Place| {
        let path = path_of(root, place);
        let _ = fs::create_dir_all(path.parent().unwrap());
        path
    };
    let node =
        |place: &Place, kind| rustix::fs::mknodat(CWD, new(place), kind, Mode::from_raw_mode(0o640), 0);
    match op {
        Op::Write(p, size) => {
            let file = open_to_write(&new(p))?;
            file.set_len(0)?;
            file.write_all_at(&vec![*size as u8; *size as usize], 0)?;
        }
        Op::Sparse(p) => {
            let file = open_to_write(&new(p))?;
            file.set_len(100 << 20)?;
            file.write_all_at(b"end", (100 << 20) - 3)?;
        }
        Op::Mkdir(p) => fs::create_dir(new(p))?,
        Op::Remove(p) => remove(&at(p))?,
        Op::Recreate(p) => {
            remove(&at(p))?;
            fs::create_dir(at(p))?;
        }
        Op::Rename(p, q) => fs::rename(at(p), new(q))?,
        Op::Link(p, q) => fs::hard_link(at(p), new(q))?,
        Op::Symlink(p) => std::os::unix::fs::symlink("/glasshouse-nowhere", new(p))?,
        Op::Fifo(p) => node(p, FileType::Fifo)?,
        Op::Socket(p) => node(p, FileType::Socket)?,
        // A link is never followed: its target would be the host's.
        Op::Mode(p, _) | Op::Touch(p, _) | Op::Attribute(p, _) if at(p).is_symlink() => {}
        Op::Mode(p, mode) => fs::set_permissions(at(p), fs::Permissions::from_mode(*mode))?,
        Op::Owner(p, id) => std::os::unix::fs::lchown(at(p), Some(*id), Some(id + 1))?,
        Op::Touch(p, time) => {
            let time = rustix::fs::Timespec { tv_sec: *time, tv_nsec: 123_456_789 };
            let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(CWD, at(p), &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Op::Attribute(p, value) => {
            rustix::fs::lsetxattr(at(p), "user.test", &[*value], XattrFlags::empty())?;
        }
        Op::Rotate => {}
    }
    Ok(())
}

fn place() -> impl Strategy<Value = Place> {
    let name = prop_oneof![12 => 0..3usize, 1 => 3..NAMES.len()];
    prop::collection::vec(name, 1..=3)
}

fn op() -> impl Strategy<Value = Op> {
    let mode = prop_oneof![Just(0o700), Just(0o4755), Just(0o1777), Just(0o2770), Just(0o500)];
    prop_oneof![
        6 => (place(), 0..10_000u16).prop_map(|(p, size)| Op::Write(p, size)),
        1 => place().prop_map(Op::Sparse),
        4 => place().prop_map(Op::Mkdir),
        3 => place().prop_map(Op::Remove),
        3 => place().prop_map(Op::Recreate),
        9 => (place(), place()).prop_map(|(p, q)| Op::Rename(p, q)),
        2 => (place(), place()).prop_map(|(p, q)| Op::Link(p, q)),
        1 => place().prop_map(Op::Symlink),
        1 => place().prop_map(Op::Fifo),
        1 => place().prop_map(Op::Socket),
        1 => (place(), mode).prop_map(|(p, mode)| Op::Mode(p, mode)),
        1 => (place(), 0..1000u32).prop_map(|(p, id)| Op::Owner(p, id)),
        1 => (place(), -1_000_000_000..4_000_000_000i64).prop_map(|(p, time)| Op::Touch(p, time)),
        1 => (place(), any::<u8>()).prop_map(|(p, value)| Op::Attribute(p, value)),
        6 => Just(Op::Rotate),
    ]
}

/// A story, where to merge, and how it goes on.
type Story = (Vec<Op>, Vec<(prop::sample::Index, prop::sample::Index)>, Vec<Op>);

fn story() -> impl Strategy<Value = Story> {
    let cut = any::<(prop::sample::Index, prop::sample::Index)>();
    (prop::collection::vec(op(), 10..120), prop::collection::vec(cut, 4), prop::collection::vec(op(), 0..20))
}

fn tell(marks: Marks, (ops, cuts, later): Story) {
    let mut stage = Stage::new(marks);
    for chapter in ops.split(|op| matches!(op, Op::Rotate)) {
        stage.change(|root| chapter.iter().for_each(|op| drop(apply(op, root))));
    }
    let chain = stage.chain.clone();
    let told = stage.view(&chain);
    let top = stage.fresh();
    let from = File::open(&chain[0]).unwrap();
    copy(from.as_fd(), File::open(&top).unwrap().as_fd(), None).unwrap();
    let copied: Vec<_> = [&[top][..], &chain[1..]].concat();
    told.check_same(&stage.view(&copied), "the top's copy");
    for (start, length) in cuts {
        let start = start.index(stage.chain.len());
        let run = start..start + 1 + length.index(stage.chain.len() - start);
        let merged = stage.merge(run.clone());
        let merged = merged.unwrap_or_else(|e| panic!("{run:?} of {}: {e}", stage.chain.len()));
        assert_eq!(merged.copied, 0);
        let short = stage.chain.clone();
        told.check_same(&stage.view(&short), &format!("the merge of {run:?}"));
    }
    // What a box does next comes out the same on both.
    let go_on = |stage: &mut Stage, chain: &[PathBuf]| {
        stage.chain = chain.to_vec();
        stage.change(|root| later.iter().for_each(|op| drop(apply(op, root))));
        let chain = stage.chain.clone();
        stage.view(&chain).without_times()
    };
    let short = stage.chain.clone();
    let (long, short) = (go_on(&mut stage, &chain), go_on(&mut stage, &short));
    long.check_same(&short, "what came later");
}

fn tell_many(marks: Marks) {
    let cases = std::env::var("PROPTEST_CASES").map_or(24, |n| n.parse().unwrap());
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    runner.run(&story(), |story| Ok(tell(marks, story))).unwrap();
}

#[test]
fn merged_runs_and_copied_tops_show_the_same_with_privilege() {
    let test = "snapshot::merge::tests::merged_runs_and_copied_tops_show_the_same_with_privilege";
    where_overlays_are(Marks::Trusted, test, || tell_many(Marks::Trusted));
}

#[test]
fn merged_runs_and_copied_tops_show_the_same_without_privilege() {
    let test = "snapshot::merge::tests::merged_runs_and_copied_tops_show_the_same_without_privilege";
    where_overlays_are(Marks::User, test, || tell_many(Marks::User));
}
