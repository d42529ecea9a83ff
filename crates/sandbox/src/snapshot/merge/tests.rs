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
use super::super::copy::tests::original;
use super::*;

/// Says to a copy of this program that it is inside, and where.
const INSIDE: &str = "GLASSHOUSE_TEST_INSIDE";

/// Runs the test's body where overlays may be mounted: in a copy of this program that runs this test only,
/// and that can write nowhere but into a scratch directory. Its boxes' links point at names of the host.
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
        let view = View::of(&mounted.0, self.marks.prefix());
        let devices = view.files.values().filter(|file| file.mode & 0o170_000 == 0o020_000);
        assert_eq!(devices.count(), 0, "a whiteout shows");
        view
    }

    /// Replaces the run by its merge.
    fn merge(&mut self, run: Range<usize>) -> Result<Merged> {
        let into = self.fresh();
        let layers: Vec<_> = self.chain[run.clone()].iter().map(|l| File::open(l).unwrap()).collect();
        let layers: Vec<_> = layers.iter().map(AsFd::as_fd).collect();
        let base = run.end == self.chain.len();
        let merged = merge(&Reach::own(), &layers, File::open(&into).unwrap().as_fd(), self.marks, base)?;
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
    /// Walks the tree. Attributes with names that begin like `hidden` are left out.
    pub(crate) fn of(root: &Path, hidden: &str) -> View {
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
            } else if meta.file_type().is_char_device() {
                content = meta.rdev().to_le_bytes().to_vec();
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
                attributes: attributes_of(&path, hidden),
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

fn attributes_of(path: &Path, hidden: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65_536];
    let got = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..got].split(|&b| b == 0);
    let names = names.filter(|n| !n.is_empty() && !n.starts_with(hidden.as_bytes()));
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
    copy(original(&from, &Reach::own()), File::open(&top).unwrap().as_fd(), None).unwrap();
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
    let told = runner.run(&story(), |story| {
        tell(marks, story);
        Ok(())
    });
    told.unwrap();
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

fn names_below(root: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(root).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn mark_of(dir: &Path, name: &str) -> Option<String> {
    let mut value = [0; 2000];
    let got = rustix::fs::lgetxattr(dir, format!("trusted.overlay.{name}"), &mut value[..]).ok()?;
    Some(String::from_utf8(value[..got].to_vec()).unwrap())
}

/// Tells a story in chapters, merges all but the first, and gives the merged layer to look at.
fn merged_of(stage: &mut Stage, chapters: &[&dyn Fn(&Path)]) -> PathBuf {
    for chapter in chapters {
        stage.change(chapter);
    }
    let chain = stage.chain.clone();
    let told = stage.view(&chain);
    stage.merge(0..chapters.len() - 1).unwrap();
    let short = stage.chain.clone();
    told.check_same(&stage.view(&short), "the merge");
    stage.chain[0].clone()
}

#[test]
fn a_directory_that_was_moved_again_and_again_goes_on_where_it_began() {
    let test = "snapshot::merge::tests::a_directory_that_was_moved_again_and_again_goes_on_where_it_began";
    where_overlays_are(Marks::Trusted, test, || {
        let mut stage = Stage::new(Marks::Trusted);
        let layer = merged_of(
            &mut stage,
            &[
                &|root| {
                    fs::create_dir_all(root.join("a/deep/er")).unwrap();
                    fs::create_dir_all(root.join("other")).unwrap();
                    fs::write(root.join("a/deep/er/first"), "1").unwrap();
                },
                &|root| {
                    fs::rename(root.join("a/deep"), root.join("other/moved")).unwrap();
                    fs::write(root.join("other/moved/er/second"), "2").unwrap();
                },
                &|root| {
                    fs::rename(root.join("other"), root.join("b")).unwrap();
                    fs::write(root.join("b/moved/er/third"), "3").unwrap();
                },
                &|root| {
                    fs::create_dir(root.join("new")).unwrap();
                    fs::rename(root.join("b/moved/er"), root.join("new/er")).unwrap();
                    fs::create_dir(root.join("b/moved/er")).unwrap();
                },
            ],
        );
        assert_eq!(mark_of(&layer.join("new/er"), "redirect").as_deref(), Some("/a/deep/er"));
        assert_eq!(mark_of(&layer.join("b"), "redirect").as_deref(), Some("other"));
        assert_eq!(mark_of(&layer.join("b/moved"), "redirect").as_deref(), Some("/a/deep"));
        assert_eq!(mark_of(&layer.join("b/moved/er"), "opaque").as_deref(), Some("y"));
        assert_eq!(names_below(&layer.join("new/er")), ["second", "third"]);
        let chain = stage.chain.clone();
        let mounted = stage.mount(&chain, None);
        assert_eq!(names_below(&mounted.0.join("new/er")), ["first", "second", "third"]);
    });
}

#[test]
fn a_directory_that_was_moved_back_needs_no_mark() {
    let test = "snapshot::merge::tests::a_directory_that_was_moved_back_needs_no_mark";
    where_overlays_are(Marks::Trusted, test, || {
        let mut stage = Stage::new(Marks::Trusted);
        let layer = merged_of(
            &mut stage,
            &[
                &|root| {
                    fs::create_dir(root.join("a")).unwrap();
                    fs::write(root.join("a/kept"), "1").unwrap();
                },
                &|root| fs::rename(root.join("a"), root.join("b")).unwrap(),
                &|root| fs::rename(root.join("b"), root.join("a")).unwrap(),
            ],
        );
        assert_eq!(
            (mark_of(&layer.join("a"), "redirect"), mark_of(&layer.join("a"), "opaque")),
            (None, None)
        );
    });
}

#[test]
fn at_the_bottom_no_whiteout_and_no_mark_is_left() {
    let test = "snapshot::merge::tests::at_the_bottom_no_whiteout_and_no_mark_is_left";
    where_overlays_are(Marks::Trusted, test, || {
        let mut stage = Stage::new(Marks::Trusted);
        stage.change(|root| {
            fs::create_dir_all(root.join("a/x")).unwrap();
            fs::create_dir(root.join("c")).unwrap();
            fs::write(root.join("gone"), "").unwrap();
        });
        stage.change(|root| {
            fs::remove_file(root.join("gone")).unwrap();
            fs::rename(root.join("a"), root.join("b")).unwrap();
            fs::remove_dir(root.join("c")).unwrap();
            fs::create_dir(root.join("c")).unwrap();
        });
        stage.merge(0..2).unwrap();
        let layer = stage.chain[0].clone();
        assert_eq!(names_below(&layer), ["b", "c"]);
        for (dir, mark) in [("b", "redirect"), ("c", "opaque")] {
            assert_eq!(mark_of(&layer.join(dir), mark), None, "{dir}");
        }
    });
}

/// Merges layers that were made by hand, without an overlay.
fn merge_trees(trees: &[&Path], marks: Marks) -> Result<(tempfile::TempDir, Merged)> {
    let into = tempfile::tempdir().unwrap();
    let layers: Vec<_> = trees.iter().map(|tree| File::open(tree).unwrap()).collect();
    let layers: Vec<_> = layers.iter().map(AsFd::as_fd).collect();
    let merged = merge(&Reach::own(), &layers, File::open(into.path()).unwrap().as_fd(), marks, false)?;
    Ok((into, merged))
}

#[test]
fn what_one_layer_cannot_say_is_refused_as_such() {
    let (upper, lower) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = upper.path().join("dir");
    fs::create_dir(&dir).unwrap();
    let set = |name: &str, value: &str| {
        rustix::fs::lsetxattr(&dir, name, value.as_bytes(), XattrFlags::empty()).unwrap();
    };
    let refused = |marks| {
        let error = merge_trees(&[upper.path(), lower.path()], marks).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        error.to_string()
    };
    set("user.overlay.redirect", "/elsewhere");
    assert!(refused(Marks::User).contains("without privilege"));
    rustix::fs::lremovexattr(&dir, "user.overlay.redirect").unwrap();
    set("user.overlay.opaque", "x");
    assert!(refused(Marks::User).contains("opaque in a way"));
    set("user.overlay.opaque", "y");
    set("user.overlay.metacopy", "");
    assert!(refused(Marks::User).contains("user.overlay.metacopy"));
    if !geteuid().is_root() {
        eprintln!("SKIPPED the marks of root's overlays: only root sets them");
        return;
    }
    for odd in ["", "/", "a/b", "..", "/a//b", "/a/../b", "/a/"] {
        set("trusted.overlay.redirect", odd);
        assert!(refused(Marks::Trusted).contains("makes no sense"), "{odd:?}");
    }
    set("trusted.overlay.redirect", &"/long".repeat(300));
    assert!(refused(Marks::Trusted).contains("longer than"));
}

#[test]
fn a_file_of_mode_zero_is_merged_by_its_owner() {
    as_nobody_special(|scratch| {
        let trees = ["upper", "lower"].map(|name| scratch.join(name));
        for tree in &trees {
            fs::create_dir(tree).unwrap();
            let file = tree.join(tree.file_name().unwrap());
            fs::write(&file, "secret").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
        }
        fs::create_dir(scratch.join("into")).unwrap();
        let layers = trees.map(|tree| File::open(tree).unwrap());
        let layers: Vec<_> = layers.iter().map(AsFd::as_fd).collect();
        let into = File::open(scratch.join("into")).unwrap();
        let merged = merge(&Reach::own(), &layers, into.as_fd(), Marks::User, false).unwrap();
        assert_eq!((merged.linked, merged.copied), (2, 0));
        assert_eq!(names_below(&scratch.join("into")), ["lower", "upper"]);
    });
}

/// Runs the body in a thread that has no privilege, with a directory of its own.
pub(crate) fn as_nobody_special(body: impl FnOnce(&Path) + Send) {
    as_nobody_special_in(tempfile::tempdir().unwrap().path(), body);
}

/// The same in a directory that is given to him.
pub(crate) fn as_nobody_special_in(scratch: &Path, body: impl FnOnce(&Path) + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if geteuid().is_root() {
                let (uid, gid) = (rustix::fs::Uid::from_raw(61234), rustix::fs::Gid::from_raw(61234));
                std::os::unix::fs::chown(scratch, Some(61234), Some(61234)).unwrap();
                rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            }
            body(scratch);
        });
    });
}

#[test]
fn the_uppermost_directory_lends_its_attributes_and_hard_links_stay_together() {
    let (upper, lower) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (tree, mode) in [(&upper, 0o710), (&lower, 0o777)] {
        fs::create_dir(tree.path().join("dir")).unwrap();
        fs::set_permissions(tree.path().join("dir"), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::write(lower.path().join("one"), "content").unwrap();
    fs::hard_link(lower.path().join("one"), lower.path().join("dir/two")).unwrap();
    let old = fs::metadata(upper.path().join("dir")).unwrap();
    let (into, merged) = merge_trees(&[upper.path(), lower.path()], Marks::User).unwrap();
    assert_eq!(merged, Merged { directories: 2, linked: 2, copied: 0 });
    let new = fs::metadata(into.path().join("dir")).unwrap();
    assert_eq!((new.mode(), new.mtime_nsec()), (old.mode(), old.mtime_nsec()));
    let inode = |name| fs::metadata(into.path().join(name)).unwrap().ino();
    assert_eq!(inode("one"), inode("dir/two"));
}

#[test]
fn layers_on_another_file_system_are_copied() {
    let test = "snapshot::merge::tests::layers_on_another_file_system_are_copied";
    where_overlays_are(Marks::User, test, || {
        let (lower, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        rustix::mount::mount("tmpfs", other.path(), "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(other.path().join("one"), "content").unwrap();
        fs::hard_link(other.path().join("one"), other.path().join("two")).unwrap();
        std::os::unix::fs::symlink("target", other.path().join("link")).unwrap();
        let (into, merged) = merge_trees(&[other.path(), lower.path()], Marks::User).unwrap();
        assert_eq!(merged, Merged { directories: 1, linked: 0, copied: 2 });
        let inode = |name| fs::metadata(into.path().join(name)).unwrap().ino();
        assert_eq!(
            (inode("one"), fs::read_link(into.path().join("link")).unwrap()),
            (inode("two"), "target".into())
        );
        rustix::mount::unmount(other.path(), UnmountFlags::empty()).unwrap();
    });
}

#[test]
fn a_tree_that_is_too_deep_is_refused_with_the_bound() {
    let tree = tempfile::tempdir().unwrap();
    let mut at = File::open(tree.path()).unwrap();
    for _ in 0..=DEPTH_MAX {
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = layer::open_dir(&Reach::own(), at.as_fd(), &Way::default().join(c"d")).unwrap().into();
    }
    let error = merge_trees(&[tree.path()], Marks::User).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert!(error.to_string().contains(&DEPTH_MAX.to_string()), "{error}");
    let into = tempfile::tempdir().unwrap();
    let from = File::open(tree.path()).unwrap();
    let error =
        copy(original(&from, &Reach::own()), File::open(into.path()).unwrap().as_fd(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
}

#[test]
fn a_long_history_stays_a_short_chain() {
    let mut levels: Vec<u32> = vec![LEVEL_FIXED; 40];
    let mut longest = 0;
    for _ in 0..100_000 {
        levels.insert(0, 0);
        while let Some(run) = plan_merges(&levels) {
            let level = levels[run.start];
            assert!(levels[run.clone()].iter().all(|&l| l == level) && run.len() == FAN);
            levels.splice(run, [level + 1]);
        }
        longest = longest.max(levels.len() - 40);
    }
    // Six levels: 8^5 < 100 000 < 8^6.
    assert!(longest <= 6 * (FAN - 1), "{longest}");
    assert!(levels.ends_with(&[LEVEL_FIXED; 40]));
}

/// Rotates a thousand times around one small change each, in a directory whose name `dir` says, and merges by
/// plan.
fn thousand_changes(marks: Marks, dir: impl Fn(usize) -> String) {
    let mut stage = Stage::new(marks);
    stage.change(|root| fs::create_dir_all(root.join(dir(0))).unwrap());
    let mut levels = vec![LEVEL_FIXED];
    for change in 0..1000 {
        stage.change(|root| {
            let (old, new) = (root.join(dir(change)), root.join(dir(change + 1)));
            fs::write(old.join(format!("file{change}")), format!("{change}")).unwrap();
            fs::rename(&old, &new).unwrap();
        });
        levels.insert(0, 0);
        while let Some(run) = plan_merges(&levels) {
            let level = levels[run.start];
            stage.merge(run.clone()).unwrap();
            levels.splice(run, [level + 1]);
        }
        assert_eq!(levels.len(), stage.chain.len());
        assert!(levels.len() <= 1 + 3 * (FAN - 1));
    }
    let chain = stage.chain.clone();
    let mounted = stage.mount(&chain, None);
    assert_eq!(fs::read_dir(mounted.0.join("dir")).unwrap().count(), 1);
    for change in 0..1000 {
        let file = mounted.0.join(dir(1000)).join(format!("file{change}"));
        assert_eq!(fs::read_to_string(file).unwrap(), format!("{change}"));
    }
}

#[test]
fn after_a_thousand_rotations_all_is_there_with_privilege() {
    let test = "snapshot::merge::tests::after_a_thousand_rotations_all_is_there_with_privilege";
    where_overlays_are(Marks::Trusted, test, || {
        thousand_changes(Marks::Trusted, |change| format!("dir/{change}"));
    });
}

#[test]
fn after_a_thousand_rotations_all_is_there_without_privilege() {
    let test = "snapshot::merge::tests::after_a_thousand_rotations_all_is_there_without_privilege";
    // Without privilege a directory stays where it is.
    where_overlays_are(Marks::User, test, || thousand_changes(Marks::User, |_| "dir/same".to_owned()));
}
