//! A copy is the tree it was made of, and shares what did not change.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use glasshouse_linux::rustix;
use glasshouse_linux::rustix::fs::{CWD, XattrFlags, mknodat};
use glasshouse_linux::rustix::mount::{MountFlags, UnmountFlags};
use glasshouse_linux::rustix::process::geteuid;

use super::super::Marks;
use super::super::merge::tests::{Stage, View, as_nobody_special, as_nobody_special_in, where_overlays_are};
use super::*;

/// A time at which all that tests make is long past.
fn later() -> SystemTime {
    SystemTime::now() + Duration::from_secs(3600)
}

fn copy_to(now: SystemTime, from: &Path, into: &Path, share: Option<(&Path, &Record)>) -> Result<Copied> {
    fs::create_dir_all(into).unwrap();
    let tree = share.map(|(tree, _)| File::open(tree).unwrap());
    let share = share.zip(tree.as_ref());
    let share = share.map(|((_, record), tree)| Shared { tree: tree.as_fd(), record });
    let (from, reach) = (File::open(from).unwrap(), Reach::own());
    copy_at(now, original(&from, &reach), File::open(into).unwrap().as_fd(), share)
}

pub(in super::super) fn original<'a>(tree: &'a File, reach: &'a Reach) -> Original<'a> {
    Original { tree: tree.as_fd(), reach, first_id: 0, bytes_max: u64::MAX }
}

fn inode(path: impl AsRef<Path>) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

fn set_mtime(path: &Path, nanos: i64) {
    let time = rustix::fs::Timespec { tv_sec: -5, tv_nsec: nanos as _ };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

#[test]
fn everything_comes_over_as_it_is() {
    check_everything_comes_over(tempfile::tempdir().unwrap().path());
}

#[test]
fn everything_comes_over_for_an_ordinary_user() {
    as_nobody_special(check_everything_comes_over);
}

fn check_everything_comes_over(scratch: &Path) {
    let (from, into) = (scratch.join("from"), scratch.join("into"));
    let dir = from.join("di\nr").join(std::str::from_utf8(&[b'n'; 255]).unwrap());
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("file"), "content").unwrap();
    fs::hard_link(dir.join("file"), from.join("second name")).unwrap();
    fs::write(from.join("large"), vec![7; 1 << 20]).unwrap();
    let sparse = File::create(from.join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    sparse.write_all_at(b"end", (1 << 30) - 3).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", from.join("link")).unwrap();
    let mode = Mode::from_raw_mode(0o604);
    for (name, kind) in
        [("pipe", FileType::Fifo), ("socket", FileType::Socket), ("gone", FileType::CharacterDevice)]
    {
        mknodat(CWD, from.join(name), kind, mode, 0).unwrap();
    }
    fs::hard_link(from.join("gone"), dir.join("gone too")).unwrap();
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
    };
    set(&dir, "user.overlay.opaque", b"y");
    set(&from.join("large"), "user.long", &[3; 3000]);
    if geteuid().is_root() {
        set(&dir, "trusted.overlay.redirect", b"/elsewhere");
        set(&from.join("link"), "trusted.on.a.link", b"1");
        for name in ["large", "link", "pipe", "gone"] {
            std::os::unix::fs::lchown(from.join(name), Some(7), Some(8)).unwrap();
        }
        // Version 2, effective, CAP_NET_RAW.
        let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        set(&from.join("large"), "security.capability", &capability);
    } else {
        eprintln!("SKIPPED owners and attributes that only root sets");
    }
    fs::set_permissions(from.join("sparse"), fs::Permissions::from_mode(0o6755)).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o3555)).unwrap();
    for name in ["large", "link", "pipe", "socket", "gone", "di\nr", "."] {
        set_mtime(&from.join(name), 123_456_789);
    }
    let copied = copy_to(SystemTime::now(), &from, &into, None).unwrap();
    View::of(&from, "-").check_same(&View::of(&into, "-"), "the copy");
    assert_eq!((copied.files, copied.bytes_shared), (4, 0));
    assert!(fs::metadata(into.join("sparse")).unwrap().blocks() < 100);
    for path in [from, into] {
        let locked = path.join("di\nr").join(std::str::from_utf8(&[b'n'; 255]).unwrap());
        fs::set_permissions(locked, fs::Permissions::from_mode(0o700)).unwrap();
    }
}

#[test]
fn a_tree_deeper_than_a_path_comes_over() {
    let scratch = tempfile::tempdir().unwrap();
    let (from, into) = (scratch.path().join("from"), scratch.path().join("into"));
    fs::create_dir(&from).unwrap();
    let name = CString::new([b'n'; 255]).unwrap();
    let mut way = Way::default();
    let root = File::open(&from).unwrap();
    for _ in 0..50 {
        mkdirat(layer::open_dir(&Reach::own(), root.as_fd(), &way).unwrap(), name.as_c_str(), Mode::RWXU)
            .unwrap();
        way = way.join(&name);
    }
    let dir = layer::open_dir(&Reach::own(), root.as_fd(), &way).unwrap();
    drop(layer::create_file(dir.as_fd(), c"deep").unwrap());
    assert_eq!(copy_to(SystemTime::now(), &from, &into, None).unwrap().files, 1);
    let dir = layer::open_dir(&Reach::own(), File::open(&into).unwrap().as_fd(), &way).unwrap();
    assert_eq!(layer::stat(&Reach::own(), dir.as_fd(), c"deep").unwrap().st_size, 0);
    let scratch = File::open(scratch.path()).unwrap();
    for tree in ["from", "into"] {
        glasshouse_linux::tree::remove(scratch.as_fd(), tree).unwrap();
    }
}

#[test]
fn what_did_not_change_is_shared_with_the_copy_before() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir_all(at("top/dir")).unwrap();
    for name in ["same", "rewritten", "mode", "attribute", "moved", "dir/one"] {
        fs::write(at("top").join(name), name).unwrap();
    }
    fs::hard_link(at("top/dir/one"), at("top/two")).unwrap();
    let first = copy_to(later(), &at("top"), &at("first"), None).unwrap();
    let record = Record::from_bytes(&first.record.to_bytes());
    assert_eq!((record.0.len(), &record), (7, &first.record));

    // The same size and the same times as before: only what nobody can set gives it away.
    let old = fs::metadata(at("top/rewritten")).unwrap().modified().unwrap();
    fs::write(at("top/rewritten"), "REWRITTEN").unwrap();
    File::options().write(true).open(at("top/rewritten")).unwrap().set_modified(old).unwrap();
    fs::set_permissions(at("top/mode"), fs::Permissions::from_mode(0o600)).unwrap();
    rustix::fs::lsetxattr(at("top/attribute"), "user.new", b"1", XattrFlags::empty()).unwrap();
    fs::rename(at("top/moved"), at("top/elsewhere")).unwrap();
    let second = copy_to(later(), &at("top"), &at("second"), Some((&at("first"), &record))).unwrap();
    View::of(&at("top"), "-").check_same(&View::of(&at("second"), "-"), "the second copy");
    assert_eq!(fs::read(at("first/rewritten")).unwrap(), b"rewritten");
    let shared = |name: &str| inode(at("first").join(name)) == inode(at("second").join(name));
    assert_eq!(["same", "dir/one", "two"].map(shared), [true; 3]);
    assert_eq!(["rewritten", "mode", "attribute"].map(shared), [false; 3]);
    assert_eq!(second.bytes_shared, "samedir/one".len() as u64);

    // What was shared is known to the next copy too.
    let share = Some((at("second"), &second.record));
    let share = share.as_ref().map(|(tree, record)| (tree.as_path(), *record));
    let third = copy_to(later(), &at("top"), &at("third"), share).unwrap();
    assert_eq!((third.bytes_copied, third.record.0.len()), (0, 7));
}

#[test]
fn what_somebody_may_still_be_writing_unseen_is_not_shared() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    fs::create_dir(at("top")).unwrap();
    fs::write(at("top/closed"), "1").unwrap();
    fs::write(at("top/open"), "1").unwrap();
    let writer = File::options().write(true).open(at("top/open")).unwrap();
    let first = copy_to(later(), &at("top"), &at("first"), None).unwrap();
    drop(writer);
    copy_to(later(), &at("top"), &at("second"), Some((&at("first"), &first.record))).unwrap();
    let shared = |name: &str| inode(at("first").join(name)) == inode(at("second").join(name));
    assert_eq!((shared("closed"), shared("open")), (true, false));
    // Changed in this very tick, for all that the times say.
    let now = fs::metadata(at("top/open")).unwrap().modified().unwrap();
    assert_eq!(copy_to(now, &at("top"), &at("third"), None).unwrap().record, Record::default());
}

#[test]
fn a_damaged_record_records_nothing() {
    let seen = Seen { ino: 1, size: 2, ctime: (3, 4), mtime: (-5, 6) };
    let record = Record([([1; 16], seen), ([2; 16], seen)].into());
    let bytes = record.to_bytes();
    assert_eq!(Record::from_bytes(&bytes), record);
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 0x40;
        assert_eq!(Record::from_bytes(&bad), Record::default(), "{at}");
        assert_eq!(Record::from_bytes(&bytes[..at]), Record::default(), "{at}");
    }
}

#[test]
fn content_that_its_owner_may_not_read_is_denied_by_name() {
    as_nobody_special(|scratch| {
        let from = scratch.join("from");
        fs::create_dir_all(from.join("dir")).unwrap();
        fs::write(from.join("dir/secret"), "1").unwrap();
        fs::set_permissions(from.join("dir/secret"), fs::Permissions::from_mode(0o000)).unwrap();
        let error = copy_to(SystemTime::now(), &from, &scratch.join("into"), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("/dir/secret"), "{error}");
    });
}

#[test]
fn what_locks_its_owner_out_comes_over_with_help_and_looks_as_it_does_to_root() {
    use super::super::digest::digest;
    use super::super::index::tests::walked;
    use super::super::index::{Owners, scan};
    let mark = |path: &Path| match rustix::fs::setxattr(path, "user.mark", b"v", XattrFlags::empty()) {
        Err(Errno::OPNOTSUPP) => {}
        set => set.unwrap(),
    };
    let look = |tree: &Path, reach: &Reach| {
        let tree = super::super::Tree::At(tree.to_owned()).open(reach).unwrap().into();
        digest(&[&scan(walked(&tree, reach, Marks::User, Owners::One), None).unwrap()]).unwrap()
    };
    let scratch = tempfile::tempdir().unwrap();
    let digests = std::sync::Mutex::new(Vec::new());
    as_nobody_special_in(scratch.path(), |scratch| {
        let (from, into) = (scratch.join("from"), scratch.join("into"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("a/b/file"), "content").unwrap();
        fs::hard_link(from.join("a/b/file"), from.join("a/name")).unwrap();
        fs::hard_link(from.join("a/b/file"), from.join("name")).unwrap();
        std::os::unix::fs::symlink("file", from.join("a/b/link")).unwrap();
        mknodat(CWD, from.join("a/b/pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        mknodat(CWD, from.join("a/b/gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        for (path, mode) in [("a/b/file", 0o000), ("a/b", 0o000), ("a", 0o300), ("", 0o100)] {
            mark(&from.join(path));
            fs::set_permissions(from.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(&into).unwrap();
        let reach = Reach::helped(crate::runtime::reader);
        let (tree, to) =
            (super::super::Tree::At(from.clone()).open(&reach).unwrap().into(), File::open(&into).unwrap());
        copy_at(later(), original(&tree, &reach), to.as_fd(), None).unwrap();
        digests.lock().unwrap().extend([look(&from, &reach), look(&into, &reach)]);
    });
    let digests = digests.into_inner().unwrap();
    assert_eq!(digests[0], digests[1]);
    if geteuid().is_root() {
        assert_eq!(look(&scratch.path().join("into"), &Reach::own()), digests[0], "as root sees it");
    }
    // Whoever is not root cannot remove it in the usual way.
    as_nobody_special_in(scratch.path(), |scratch| {
        let root = File::open(scratch).unwrap();
        for name in ["from", "into"] {
            glasshouse_linux::tree::remove(root.as_fd(), name).unwrap();
        }
    });
}

#[test]
fn a_directory_that_its_owner_may_not_read_is_denied_by_name() {
    as_nobody_special(|scratch| {
        let from = scratch.join("from");
        fs::create_dir_all(from.join("dir/locked")).unwrap();
        fs::set_permissions(from.join("dir/locked"), fs::Permissions::from_mode(0o000)).unwrap();
        let error = copy_to(SystemTime::now(), &from, &scratch.join("into"), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("/dir/locked"), "{error}");
    });
}

#[test]
fn a_full_disk_is_an_error_of_its_own() {
    let test = "snapshot::copy::tests::a_full_disk_is_an_error_of_its_own";
    where_overlays_are(Marks::User, test, || {
        let (from, into) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let size = Some(c"size=64k");
        rustix::mount::mount("tmpfs", into.path(), "tmpfs", MountFlags::empty(), size).unwrap();
        fs::write(from.path().join("file"), vec![1; 1 << 20]).unwrap();
        let error = copy_to(SystemTime::now(), from.path(), into.path(), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
        rustix::mount::unmount(into.path(), UnmountFlags::empty()).unwrap();
    });
}

#[test]
fn where_mapped_writes_leave_no_trace_nothing_is_recorded() {
    let test = "snapshot::copy::tests::where_mapped_writes_leave_no_trace_nothing_is_recorded";
    where_overlays_are(Marks::User, test, || {
        let (from, into) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        rustix::mount::mount("tmpfs", from.path(), "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(from.path().join("file"), "1").unwrap();
        let copied = copy_to(later(), from.path(), into.path(), None).unwrap();
        assert_eq!((copied.files, copied.record), (1, Record::default()));
        rustix::mount::unmount(from.path(), UnmountFlags::empty()).unwrap();
    });
}

#[test]
fn who_writes_through_an_overlay_is_seen_in_its_top() {
    let test = "snapshot::copy::tests::who_writes_through_an_overlay_is_seen_in_its_top";
    where_overlays_are(Marks::User, test, || {
        let mut stage = Stage::new(Marks::User);
        let (top, into) = (stage.fresh(), stage.fresh());
        let mounted = stage.mount(&[], Some(&top));
        fs::write(mounted.0.join("closed"), "1").unwrap();
        fs::write(mounted.0.join("open"), "1").unwrap();
        let writer = File::options().write(true).open(mounted.0.join("open")).unwrap();
        let copied = copy_to(later(), &top, &into, None).unwrap();
        drop(writer);
        let recorded = |name| copied.record.0.contains_key(&key_below(&Key::default(), name));
        assert_eq!((recorded(c"closed"), recorded(c"open")), (true, false));
    });
}

#[test]
fn the_method_says_whether_blocks_are_shared() {
    let scratch = tempfile::tempdir().unwrap();
    let (from, into) = (scratch.path().join("from"), scratch.path().join("into"));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("empty"), "").unwrap();
    fs::write(from.join("file"), vec![1; 100_000]).unwrap();
    let probe = File::create(scratch.path().join("probe")).unwrap();
    let clones = rustix::fs::ioctl_ficlone(&probe, File::open(from.join("file")).unwrap()).is_ok();
    let copied = copy_to(SystemTime::now(), &from, &into, None).unwrap();
    let expected = if clones { Method::Reflink } else { Method::Copy };
    assert_eq!((copied.method, copied.bytes_copied), (expected, 100_000));
    View::of(&from, "-").check_same(&View::of(&into, "-"), "the copy");
}
