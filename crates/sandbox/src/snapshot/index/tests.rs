use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use glasshouse_linux::reach::Reach;
use glasshouse_linux::rustix::fs::{CWD, FileType, Mode, XattrFlags, mkdirat, mknodat, openat, setxattr};
use glasshouse_linux::rustix::process::geteuid;
use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

use super::super::digest::digest;
use super::attributes::Attributes;
use super::reading::{FileReader, Files, Read, Waiting};
use super::*;
use glasshouse_linux::content::Contents;
use glasshouse_linux::rustix::fs::OFlags;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A tree, by these rules.
pub(in super::super) fn walked<'a>(
    tree: &'a File,
    reach: &'a Reach,
    marks: Marks,
    owners: Owners,
) -> Walked<'a> {
    Walked { tree: tree.as_fd(), reach, marks, owners, first_id: 0 }
}

/// The index of a directory, as root sees it.
pub(in super::super) fn index_of(path: &Path) -> Index {
    let tree = File::open(path).unwrap();
    scan(walked(&tree, &Reach::own(), Marks::Trusted, Owners::Kept), None).unwrap()
}

/// Whether the test can run. Says so if not.
pub(in super::super) fn is_root(what: &str) -> bool {
    let root = geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: {what} needs root");
    }
    root
}

/// Everything below a directory of one layer, by path.
fn all(index: &Index) -> Vec<(Vec<u8>, Entry)> {
    let mut found = Vec::new();
    let mut todo = vec![(Vec::new(), index.root().clone())];
    while let Some((path, entry)) = todo.pop() {
        for child in entry.dir.iter().flat_map(|dir| index.list(&dir.record).unwrap()) {
            todo.push(([&path[..], b"/", &child.name].concat(), child));
        }
        found.push((path, entry));
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found
}

fn entry(index: &Index, path: &str) -> Entry {
    all(index).into_iter().find(|(at, _)| at == path.as_bytes()).unwrap().1
}

/// Opens as ever, and notes what.
#[derive(Default)]
struct Noting(RefCell<Vec<String>>);

impl Opener for Noting {
    fn open(&self, dir: BorrowedFd<'_>, name: &CStr, wanted: Wanted) -> std::io::Result<OwnedFd> {
        if wanted == Wanted::File {
            self.0.borrow_mut().push(name.to_str().unwrap().to_owned());
        }
        Plain(&Reach::own()).open(dir, name, wanted)
    }
}

/// What a walk after an earlier one reads.
fn rescan(dir: &Path, before: &Index) -> (Index, Vec<String>) {
    let noting = Noting::default();
    let tree = File::open(dir).unwrap();
    let index =
        scan_with(&noting, walked(&tree, &Reach::own(), Marks::Trusted, Owners::Kept), Some(before)).unwrap();
    (index, noting.0.into_inner())
}

/// Pretends that an index was made this long after the files.
fn later(mut index: Index, seconds: i64) -> Index {
    index.facts.scanned_at.seconds += seconds;
    index
}

fn small_tree() -> TempDir {
    let dir = tempdir().unwrap();
    fs::create_dir_all(dir.path().join("sub/deep")).unwrap();
    for (name, text) in [("a", "one"), ("sub/b", "two"), ("sub/deep/c", "three"), ("sub/deep/d", "")] {
        fs::write(dir.path().join(name), text).unwrap();
    }
    symlink("nowhere", dir.path().join("sub/link")).unwrap();
    dir
}

#[test]
fn what_has_not_changed_is_not_read_again() {
    let dir = small_tree();
    let first = later(index_of(dir.path()), 5);
    let (second, read) = rescan(dir.path(), &first);
    assert_eq!(read, Vec::<String>::new());
    assert_eq!(all(&first), all(&second));

    fs::write(dir.path().join("sub/b"), "TWO").unwrap();
    // The first name of one directory, the last of another.
    fs::remove_file(dir.path().join("a")).unwrap();
    fs::remove_file(dir.path().join("sub/deep/d")).unwrap();
    let (third, read) = rescan(dir.path(), &later(second, 5));
    assert_eq!(read, ["b"]);
    assert_eq!(all(&third), all(&index_of(dir.path())));
    assert!(!third.racy());
}

#[test]
fn a_walk_with_little_patience_finds_the_same_or_nothing() {
    let dir = small_tree();
    let tree = File::open(dir.path()).unwrap();
    let reach = Reach::own();
    let walked = walked(&tree, &reach, Marks::Trusted, Owners::Kept);
    let whole = index_of(dir.path());
    // Seven names, and the eleven bytes that are in files.
    let brief = |before, bytes, entries| scan_within(walked, before, Patience { bytes, entries }).unwrap();
    let found = brief(None, 11, 7).unwrap();
    assert_eq!((all(&found.index), found.is_news), (all(&whole), true));
    assert!(brief(None, 10, 7).is_none());
    assert!(brief(None, 11, 6).is_none());
    // What is known takes none.
    let found = brief(Some(&later(index_of(dir.path()), 5)), 0, 7).unwrap();
    assert_eq!((all(&found.index), found.is_news), (all(&whole), false));
}

/// Files enough for several threads, of every size up to some blocks, with links, attributes and directories among them.
fn large_tree() -> TempDir {
    let dir = tempdir().unwrap();
    for n in 0..300_u32 {
        let path = dir.path().join(format!("f{n}"));
        fs::write(&path, vec![n as u8; n as usize * 40]).unwrap();
        match n % 50 {
            1 => fs::create_dir(dir.path().join(format!("f{n}-dir"))).unwrap(),
            2 => fs::hard_link(&path, dir.path().join(format!("f{n}-link"))).unwrap(),
            3 => symlink("f1", dir.path().join(format!("f{n}-symlink"))).unwrap(),
            4 => {
                // More names than are asked for at first, and a longer value.
                for m in 0..20 {
                    let (name, bytes) = (format!("user.{m:060}"), if m == 0 { 1000 } else { 10 });
                    setxattr(&path, name.as_str(), &vec![m; bytes], XattrFlags::empty()).unwrap();
                }
            }
            _ => {}
        }
    }
    dir
}

#[test]
fn several_threads_find_what_one_does() {
    let dir = large_tree();
    let tree = File::open(dir.path()).unwrap();
    let reach = Reach::own();
    let walked = walked(&tree, &reach, Marks::Trusted, Owners::Kept);
    let alone = scan_with(&Plain(&reach), walked, None).unwrap();
    for _ in 0..20 {
        let together = scan(walked, None).unwrap();
        assert_eq!(all(&together), all(&alone));
        assert!(!together.racy());
    }
    assert!(entry(&alone, "/f4").xattrs.is_some_and(|hash| entry(&alone, "/f54").xattrs == Some(hash)));
}

#[test]
fn several_threads_keep_what_comes_first() {
    let dir = large_tree();
    let tree = File::open(dir.path()).unwrap();
    let reach = Reach::own();
    let walked = walked(&tree, &reach, Marks::Trusted, Owners::Kept);
    let bytes = 100_000;
    for _ in 0..20 {
        let (index, kept) = scan_keeping(walked, None, Room { file_bytes: 64_000, bytes }).unwrap();
        let files = all(&index).into_iter().map(|(_, entry)| entry).filter(|entry| entry.kind == Kind::File);
        // Those with several names are read at once, before all others.
        let (linked, others): (Vec<_>, Vec<_>) = files.partition(|file| file.name.ends_with(b"-link"));
        let mut left = bytes - linked.iter().map(|file| file.size).sum::<u64>();
        for file in others {
            let Some(rest) = left.checked_sub(file.size) else { break };
            left = rest;
            assert!(kept.contains_key(&file.content), "{}", file.name.escape_ascii());
        }
    }
}

#[test]
fn a_file_that_is_gone_before_it_is_read_is_none() {
    let dir = large_tree();
    let index = index_of(dir.path());
    let gone = ["f7", "f123", "f299"];
    for name in gone {
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    let is_waiting = |entry: &Entry| entry.kind == Kind::File && !entry.name.ends_with(b"-link");
    let listed = all(&index).into_iter().map(|(_, entry)| entry).filter(is_waiting).enumerate();
    let waiting = listed.map(|(place, entry)| Waiting {
        place,
        name: CString::new(entry.name.to_vec()).unwrap(),
        entry,
    });
    let files = Files { dir: Arc::new(File::open(dir.path()).unwrap().into()), waiting: waiting.collect() };
    let reach = Reach::own();
    let attributes = Attributes::new(Marks::Trusted);
    let mut reader = FileReader { opener: &Plain(&reach), reach: &reach, attributes };
    let read = files.read(&mut reader, &mut Contents::new(), Marks::Trusted);
    assert_eq!(read.len(), 300);
    for (n, (place, name, read)) in read.into_iter().enumerate() {
        assert_eq!(n, place);
        match read {
            Ok(Read::Gone) => assert!(gone.contains(&name.to_str().unwrap()), "{name:?}"),
            Ok(Read::Whole(found)) => {
                assert_eq!(found, entry(&index, &format!("/{}", name.to_str().unwrap())))
            }
            _ => panic!("{name:?}"),
        }
    }
}

#[test]
fn what_changed_shortly_before_the_earlier_walk_is_read_again() {
    let dir = small_tree();
    let mut first = index_of(dir.path());
    first.facts.scanned_at = entry(&first, "/a").stamp.ctime;
    let (_, read) = rescan(dir.path(), &first);
    assert!(read.contains(&"a".to_owned()), "{read:?}");
}

#[test]
fn an_index_under_another_rule_is_no_help() {
    let dir = small_tree();
    let first = later(index_of(dir.path()), 5);
    let tree = File::open(dir.path()).unwrap();
    let second = scan(walked(&tree, &Reach::own(), Marks::Trusted, Owners::One), Some(&first)).unwrap();
    assert!(all(&second).iter().all(|(_, entry)| (entry.uid, entry.gid) == (0, 0)));
    assert_eq!(second.facts.owners, Owners::One);
}

/// Changes a file after it was looked at and before it is read.
struct Meddling<'a>(&'a Path);

impl Opener for Meddling<'_> {
    fn open(&self, dir: BorrowedFd<'_>, name: &CStr, wanted: Wanted) -> std::io::Result<OwnedFd> {
        if wanted == Wanted::File {
            File::options().append(true).open(self.0.join(name.to_str().unwrap()))?.write_all(b"more")?;
        }
        Plain(&Reach::own()).open(dir, name, wanted)
    }
}

#[test]
fn a_file_that_changes_while_it_is_read_makes_the_index_racy() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("a"), "one").unwrap();
    let tree = File::open(dir.path()).unwrap();
    let opener = Meddling(dir.path());
    let index = scan_with(&opener, walked(&tree, &Reach::own(), Marks::Trusted, Owners::Kept), None).unwrap();
    assert!(index.racy());
    let (index, read) = rescan(dir.path(), &later(index, 5));
    assert_eq!((index.racy(), read), (false, vec!["a".to_owned()]));
}

#[test]
fn zeros_count_the_same_whether_written_or_not() {
    let dir = tempdir().unwrap();
    let size = (3 << 20) + 5;
    let data: [(u64, &[u8]); 3] = [(5000, b"x"), ((1 << 20) - 1, b"yz"), (size - 1, b"!")];
    let mut hashes = Vec::new();
    for (name, written) in [("written", true), ("holes", false)] {
        let path = dir.path().join(name);
        let mut file = File::create(&path).unwrap();
        if written {
            file.write_all(&vec![0; size as usize]).unwrap();
        }
        file.set_len(size).unwrap();
        for (at, bytes) in data {
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(bytes).unwrap();
        }
        hashes.push(entry(&index_of(dir.path()), &format!("/{name}")).content);
    }
    assert_eq!(hashes[0], hashes[1]);
    // A byte elsewhere, and a zero more, make another file.
    for (name, size, at) in [("moved", size, 5001), ("longer", size + 1, 5000)] {
        let mut file = File::create(dir.path().join(name)).unwrap();
        file.set_len(size).unwrap();
        for (n, (place, bytes)) in data.into_iter().enumerate() {
            file.seek(SeekFrom::Start(if n == 0 { at } else { place })).unwrap();
            file.write_all(bytes).unwrap();
        }
        assert_ne!(entry(&index_of(dir.path()), &format!("/{name}")).content, hashes[0], "{name}");
    }
}

#[test]
fn a_tebibyte_of_nothing_is_not_read() {
    let dir = tempdir().unwrap();
    let size = 1 << 40;
    let mut file = File::create(dir.path().join("huge")).unwrap();
    file.set_len(size).unwrap();
    let empty = entry(&index_of(dir.path()), "/huge");
    assert_eq!(empty.size, size);
    file.seek(SeekFrom::Start(size - 7)).unwrap();
    file.write_all(b"x").unwrap();
    assert_ne!(entry(&index_of(dir.path()), "/huge").content, empty.content);
}

#[test]
fn blocks_at_every_border_are_told_apart() {
    let dir = tempdir().unwrap();
    let mut seen = HashMap::new();
    for size in [0, 1, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 2 << 20] {
        for at in [0, 4095, 4096, size] {
            let mut bytes = vec![0; size];
            if let Some(byte) = bytes.get_mut(at) {
                *byte = 1;
            }
            fs::write(dir.path().join("f"), &bytes).unwrap();
            let hash = entry(&index_of(dir.path()), "/f").content;
            assert_eq!(*seen.entry(bytes).or_insert(hash), hash);
        }
    }
    let hashes: HashSet<_> = seen.values().collect();
    assert_eq!(hashes.len(), seen.len());
}

#[test]
fn a_deep_tree_needs_few_descriptors_and_has_a_bound() {
    let dir = tempdir().unwrap();
    let mut at: OwnedFd = File::open(dir.path()).unwrap().into();
    for depth in 1..DEPTH_MAX + 1 {
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = openat(&at, "d", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        // The root is one, too.
        if depth == DEPTH_MAX - 1 {
            let index = index_of(dir.path());
            assert_eq!((index.entries(), index.racy()), (depth as u64, false));
            digest(&[&index, &index]).unwrap();
        }
    }
    let tree = File::open(dir.path()).unwrap();
    let error = scan(walked(&tree, &Reach::own(), Marks::Trusted, Owners::Kept), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    glasshouse_linux::tree::remove(tree.as_fd(), "d").unwrap();
}

#[test]
fn only_files_and_directories_are_opened() {
    let dir = tempdir().unwrap();
    mknodat(CWD, dir.path().join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    mknodat(CWD, dir.path().join("socket"), FileType::Socket, Mode::RUSR, 0).unwrap();
    symlink("/etc/passwd", dir.path().join("link")).unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"\xff\n\xfe");
    symlink("/etc/passwd", dir.path().join(odd)).unwrap();
    let mut kinds = vec![(&b"/link"[..], Kind::Symlink), (b"/pipe", Kind::Fifo)];
    if is_root("making devices") {
        let devices = [("null", FileType::CharacterDevice, 0x103), ("white", FileType::CharacterDevice, 0)];
        for (name, kind, number) in devices.into_iter().chain([("disk", FileType::BlockDevice, 0x700)]) {
            mknodat(CWD, dir.path().join(name), kind, Mode::RUSR, number).unwrap();
        }
        kinds.insert(0, (b"/disk", Kind::BlockDevice));
        kinds.insert(2, (b"/null", Kind::CharDevice));
        kinds.extend([(&b"/socket"[..], Kind::Socket), (b"/white", Kind::Whiteout)]);
    } else {
        kinds.push((b"/socket", Kind::Socket));
    }
    kinds.push((b"/\xff\n\xfe", Kind::Symlink));
    let noting = Noting::default();
    let tree = File::open(dir.path()).unwrap();
    let index = scan_with(&noting, walked(&tree, &Reach::own(), Marks::Trusted, Owners::Kept), None).unwrap();
    let found = all(&index);
    let found: Vec<_> = found.iter().skip(1).map(|(path, entry)| (&path[..], entry.kind)).collect();
    assert_eq!(found, kinds);
    assert_eq!(noting.0.into_inner(), Vec::<String>::new());
}

#[test]
fn a_file_that_locks_its_owner_out_is_named() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("locked"), "x").unwrap();
    fs::set_permissions(dir.path().join("locked"), fs::Permissions::from_mode(0o000)).unwrap();
    let path = dir.path().to_owned();
    // Who is root becomes somebody else, in a thread that ends afterwards.
    let scanned = std::thread::spawn(move || {
        if geteuid().is_root() {
            std::os::unix::fs::chown(path.join("locked"), Some(61234), Some(61234)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            glasshouse_linux::identity::set_fs_user(61234, 61234).unwrap();
        }
        let tree = File::open(path).unwrap();
        scan(walked(&tree, &Reach::own(), Marks::User, Owners::One), None)
    });
    let error = scanned.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("locked"), "{error}");
}

#[test]
fn what_is_mounted_inside_a_layer_is_not_entered() {
    if !is_root("mounting") {
        return;
    }
    let dir = small_tree();
    let path = dir.path().to_owned();
    let scanned = std::thread::spawn(move || {
        glasshouse_linux::namespace::private_mounts().unwrap();
        let tmpfs = glasshouse_linux::mount::make("tmpfs", &[], Default::default()).unwrap();
        glasshouse_linux::mount::attach_at(tmpfs.as_fd(), path.join("sub/deep").to_str().unwrap()).unwrap();
        scan(walked(&File::open(path).unwrap(), &Reach::own(), Marks::Trusted, Owners::Kept), None)
    });
    let error = scanned.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("sub/deep"), "{error}");
}

#[test]
fn an_empty_file_is_a_whiteout_only_where_its_directory_says_so() {
    if !is_root("marks of overlay") {
        return;
    }
    let dir = small_tree();
    let mark = |path: &str, name: &str, value: &[u8]| {
        setxattr(dir.path().join(path), format!("trusted.overlay.{name}"), value, XattrFlags::empty())
            .unwrap();
    };
    mark("sub/deep/d", "whiteout", b"");
    let plain = index_of(dir.path());
    assert_eq!(entry(&plain, "/sub/deep/d").kind, Kind::File);
    mark("sub/deep", "opaque", b"x");
    mark("sub", "opaque", b"y");
    for before in [None, Some(&later(plain, 5))] {
        let tree = File::open(dir.path()).unwrap();
        let index = scan(walked(&tree, &Reach::own(), Marks::Trusted, Owners::Kept), before).unwrap();
        assert_eq!(entry(&index, "/sub/deep/d").kind, Kind::Whiteout);
        assert!(entry(&index, "/sub").dir.unwrap().opaque);
        assert!(!entry(&index, "/sub/deep").dir.unwrap().opaque);
    }
    mark("sub/deep", "redirect", b"a/../b");
    let tree = File::open(dir.path()).unwrap();
    scan(walked(&tree, &Reach::own(), Marks::Trusted, Owners::Kept), None).unwrap_err();
}

fn written(index: &Index) -> Vec<u8> {
    let mut bytes = Vec::new();
    index.write(&mut bytes).unwrap();
    bytes
}

fn opened(bytes: &[u8]) -> Result<Index> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Index::open(file)
}

#[test]
fn an_index_comes_back_from_its_file_as_it_was() {
    let dir = small_tree();
    let index = index_of(dir.path());
    let bytes = written(&index);
    let again = opened(&bytes).unwrap();
    assert_eq!((all(&index), index.facts), (all(&again), again.facts));
    assert_eq!(digest(&[&index]).unwrap(), digest(&[&again]).unwrap());
    assert_eq!(written(&again), bytes);
    let (_, read) = rescan(dir.path(), &later(again, 5));
    assert_eq!(read, Vec::<String>::new());
}

/// Reads all of it, as far as that goes.
fn read_all(index: &Index) -> Result<Vec<Entry>> {
    let mut todo = vec![index.root().clone()];
    let mut found = Vec::new();
    while let Some(entry) = todo.pop() {
        if let Some(dir) = &entry.dir {
            todo.extend(index.list(&dir.record)?);
        }
        found.push(entry);
    }
    Ok(found)
}

#[test]
fn no_flipped_bit_goes_unseen() {
    let dir = small_tree();
    let bytes = written(&index_of(dir.path()));
    for at in 0..bytes.len() {
        let mut broken = bytes.clone();
        broken[at] ^= 1 << (at % 8);
        assert!(opened(&broken).and_then(|index| read_all(&index)).is_err(), "byte {at}");
    }
    for length in 0..bytes.len() {
        assert!(opened(&bytes[..length]).is_err(), "length {length}");
    }
    assert!(opened(&[&bytes[..], b"x"].concat()).is_err());
}

#[test]
fn a_damaged_index_is_no_help_but_no_harm() {
    let dir = small_tree();
    let index = later(index_of(dir.path()), 5);
    fs::remove_file(dir.path().join("sub/deep/c")).unwrap();
    fs::remove_file(dir.path().join("sub/deep/d")).unwrap();
    let mut bytes = written(&index);
    let mut record = Vec::new();
    record_bytes(&index, &entry(&index, "/sub/deep"), &mut record);
    let at = bytes.windows(record.len()).position(|part| part == record).unwrap();
    bytes[at] ^= 1;
    let (again, _) = rescan(dir.path(), &opened(&bytes).unwrap());
    assert_eq!(all(&again), all(&index_of(dir.path())));
}

proptest! {
    /// Here the checksums fit: only the reader's own rules stand between the file and us.
    #[test]
    fn a_forged_record_is_an_error_or_a_listing(
        at in any::<prop::sample::Index>(),
        change in prop::collection::vec(any::<u8>(), 1..24),
        offset in 0u64..2000,
    ) {
        let entry = |name: &[u8], kind, dir: Option<Dir>| Entry {
            name: name.into(), kind, mode: 0o755, uid: 1, gid: 2, size: 3, content: [4; 32],
            xattrs: Some([5; 32]), stamp: Stamp::default(), dir,
        };
        let record = Record { start: 10, offset: 20, bytes: 30, check: [6; 16] };
        let dir = Dir { opaque: true, redirect: Some(b"/a/b"[..].into()), redirects_below: true, record };
        let mut bytes = Vec::new();
        format::encode(&mut bytes, &entry(b"a", Kind::File, None));
        format::encode(&mut bytes, &entry(b"d", Kind::Directory, Some(dir)));
        let at = at.index(bytes.len());
        for (byte, change) in bytes[at..].iter_mut().zip(&change) {
            *byte = *change;
        }
        let of = Record { start: 0, offset, bytes: bytes.len() as u64, check: [0; 16] };
        let read = Entries::new((&bytes).into(), of).and_then(Iterator::collect::<Result<Vec<Entry>>>);
        if let Ok(entries) = read {
            prop_assert!(entries.is_sorted_by(|a, b| a.name < b.name));
            let ends = entries.iter().filter_map(|e| e.dir.as_ref()).map(|dir| dir.record.end().unwrap());
            prop_assert!(ends.max().unwrap_or(0) <= offset);
        }
        let _ = format::decode_head(&bytes);
    }
}

/// The bytes of a directory's record.
pub(in super::super) fn record_bytes(index: &Index, entry: &Entry, out: &mut Vec<u8>) {
    for entry in index.list(&entry.dir.as_ref().unwrap().record).unwrap() {
        format::encode(out, &entry);
    }
}
