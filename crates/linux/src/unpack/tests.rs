use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

use tar::{Builder, Header};

use super::*;

/// A layer as a stream, and the words for what is in it.
struct Stream(Builder<Vec<u8>>);

impl Stream {
    fn new() -> Stream {
        Stream(Builder::new(Vec::new()))
    }

    /// Byte by byte: the writer of the crate would not write such names.
    fn put(mut self, kind: EntryType, name: &str, target: &str, content: &[u8]) -> Stream {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
        let id = rustix::process::geteuid().as_raw().into();
        header.set_uid(id);
        header.set_gid(rustix::process::getegid().as_raw().into());
        header.set_mtime(1000);
        header.set_size(content.len() as u64);
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    fn file(self, name: &str, content: &str) -> Stream {
        self.put(EntryType::Regular, name, "", content.as_bytes())
    }

    fn dir(self, name: &str) -> Stream {
        self.put(EntryType::Directory, name, "", b"")
    }

    fn link(self, name: &str, target: &str) -> Stream {
        self.put(EntryType::Symlink, name, target, b"")
    }

    fn hard(self, name: &str, target: &str) -> Stream {
        self.put(EntryType::Link, name, target, b"")
    }

    fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// Layers on top of each other, and something outside that nobody may touch.
struct Stack {
    dir: tempfile::TempDir,
    count: usize,
    chain: Chain,
    shape: Shape,
    entries: u64,
    deletions: bool,
}

impl Stack {
    fn new() -> Stack {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("outside"), "before").unwrap();
        let chain = Chain::new(Vec::new(), c"user.overlay.opaque");
        Stack { dir, count: 0, chain, shape: Shape::IMAGE, entries: 100, deletions: true }
    }

    fn path(&self, layer: usize, name: &str) -> PathBuf {
        self.dir.path().join(layer.to_string()).join(name)
    }

    fn try_add(&mut self, bytes: &[u8], bytes_max: u64) -> io::Result<Unpacked> {
        let root = self.path(self.count, "");
        std::fs::create_dir(&root).unwrap();
        let into: OwnedFd = File::open(&root).unwrap().into();
        let (entries, shape, deletions) = (self.entries, self.shape, self.deletions);
        let bounds = Bounds { bytes: bytes_max, entries, except: &["dev", ".door"], shape, deletions };
        let unpacked = unpack(bytes, into.as_fd(), &self.chain, Owners::Ours, bounds);
        self.count += 1;
        self.chain.push(into);
        assert_eq!(std::fs::read(self.dir.path().join("outside")).unwrap(), b"before");
        assert_eq!(std::fs::read_dir(self.dir.path()).unwrap().count(), self.count + 1);
        unpacked
    }

    fn add(&mut self, stream: Stream) -> Unpacked {
        self.try_add(&stream.bytes(), 1 << 20).unwrap()
    }

    fn read(&self, path: &str) -> Option<String> {
        let content = self.chain.read(Path::new(path), 1000).unwrap();
        content.map(|content| String::from_utf8(content).unwrap())
    }
}

#[test]
fn deletions_become_whiteouts_and_opaque_directories() {
    let mut stack = Stack::new();
    stack.add(Stream::new().file("a/x", "1").file("a/y", "2").file("b/x", "3").file("c/x", "4"));
    let top = Stream::new().file("a/.wh.x", "").file("b/.wh..wh..opq", "").file("b/new", "5");
    let unpacked = stack.add(top.file(".wh.c", "").dir("c").file("a/.wh..wh.plnk", ""));
    assert!(stack.path(1, "a/x").symlink_metadata().unwrap().file_type().is_char_device());
    assert!(unpacked.leaned && !unpacked.hides_all);
    let seen = ["a/x", "a/y", "b/x", "b/new", "c/x"].map(|path| stack.read(path));
    assert_eq!(seen, [None, Some("2".into()), None, Some("5".into()), None]);
    assert!(stack.add(Stream::new().file(".wh..wh..opq", "")).hides_all);
    assert_eq!(stack.read("a/y"), None);
}

#[test]
fn what_is_excepted_is_passed_over_with_all_below_it() {
    let mut stack = Stack::new();
    let stream = Stream::new().dir("dev").dir("dev/.door").file("dev/.door/x", "1").file("dev/.doors", "2");
    stack.add(stream.file("other/dev/.door", "3"));
    let seen = ["dev/.door/x", "dev/.doors", "other/dev/.door"].map(|path| stack.read(path));
    assert_eq!(seen, [None, Some("2".into()), Some("3".into())]);
    assert!(!stack.path(0, "dev/.door").exists());
}

#[test]
fn names_begin_at_the_root_and_do_not_go_up() {
    let mut stack = Stack::new();
    stack.add(Stream::new().file("/etc/x", "1").file("./y", "2"));
    assert_eq!((stack.read("etc/x"), stack.read("y")), (Some("1".into()), Some("2".into())));
    for name in ["../outside", "a/../../outside", "..", "/../outside"] {
        let error = stack.try_add(&Stream::new().file(name, "x").bytes(), 1 << 20).unwrap_err();
        assert!(error.to_string().contains("leads outside"), "{name}: {error}");
    }
    let error = stack.try_add(&Stream::new().hard("a", "../outside").bytes(), 1 << 20).unwrap_err();
    assert!(error.to_string().contains("leads outside"), "{error}");
}

#[test]
fn links_on_the_way_are_followed_inside_only() {
    let mut stack = Stack::new();
    let outside = stack.dir.path().to_str().unwrap().to_owned();
    stack.add(Stream::new().dir("usr/lib").link("lib", "usr/lib").link("out", &outside).link("up", "../.."));
    let top = Stream::new().file("lib/new", "1").file("out/outside", "2").file("up/outside", "3");
    assert!(stack.add(top).leaned);
    assert_eq!(stack.read("usr/lib/new").as_deref(), Some("1"));
    // The link below still shows: nothing was put in its place.
    assert!(stack.path(1, "lib").symlink_metadata().is_err());
    assert_eq!(stack.read("outside").as_deref(), Some("3"));
    assert_eq!(stack.read(&format!("{outside}/outside")).as_deref(), Some("2"));
}

#[test]
fn loops_of_links_end() {
    let mut stack = Stack::new();
    let stream = Stream::new().link("a", "b").link("b", "a").file("a/x", "");
    assert!(stack.try_add(&stream.bytes(), 1 << 20).is_err());
}

#[test]
fn a_hard_link_to_a_layer_below_brings_the_file_up() {
    let mut stack = Stack::new();
    stack.add(Stream::new().file("d/a", "text"));
    let unpacked = stack.add(Stream::new().hard("b", "d/a"));
    assert!(unpacked.leaned && unpacked.bytes == 4);
    assert_eq!(stack.read("b").as_deref(), Some("text"));
    assert_eq!(stack.path(1, "b").metadata().unwrap().nlink(), 2);
    let error = stack.try_add(&Stream::new().hard("c", "nowhere").bytes(), 1 << 20).unwrap_err();
    assert!(error.to_string().contains("not there"), "{error}");
}

#[test]
fn a_hard_link_to_a_link_takes_the_link_and_not_what_it_points_at() {
    let mut stack = Stack::new();
    let outside = stack.dir.path().join("outside").to_str().unwrap().to_owned();
    stack.add(Stream::new().link("a", &outside).hard("b", "a").file("b", "over it"));
    assert_eq!(stack.read("b").as_deref(), Some("over it"));
    assert_eq!(std::fs::metadata(stack.dir.path().join("outside")).unwrap().nlink(), 1);
}

#[test]
fn devices_are_left_out_and_set_id_bits_are_dropped_without_privilege() {
    let mut stack = Stack::new();
    let stream = Stream::new().put(EntryType::Char, "null", "", b"").put(EntryType::Block, "sda", "", b"");
    let unpacked = stack.add(stream.put(EntryType::Fifo, "pipe", "", b""));
    assert_eq!(unpacked.left_out, 2);
    assert!(stack.path(0, "null").symlink_metadata().is_err());
    assert!(stack.path(0, "pipe").symlink_metadata().unwrap().file_type().is_fifo());
    let mut header = Header::new_gnu();
    header.set_path("su").unwrap();
    header.set_mode(0o6755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    header.set_cksum();
    let mut builder = Builder::new(Vec::new());
    builder.append(&header, io::empty()).unwrap();
    stack.try_add(&builder.into_inner().unwrap(), 1 << 20).unwrap();
    assert_eq!(stack.path(1, "su").metadata().unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn claims_are_bounded() {
    let mut stack = Stack::new();
    let big = "x".repeat(600);
    let error = stack.try_add(&Stream::new().file("a", &big).bytes(), 500).unwrap_err();
    assert!(error.to_string().contains("larger than 500 bytes"), "{error}");
    let many = (0..101).fold(Stream::new(), |stream, n| stream.file(&n.to_string(), ""));
    let error = stack.try_add(&many.bytes(), 1 << 20).unwrap_err();
    assert!(error.to_string().contains("more than 100 entries"), "{error}");
    let dirs = (0..90).fold(Stream::new(), |stream, n| stream.dir(&n.to_string()));
    let error = stack.try_add(&dirs.bytes(), 1 << 17).unwrap_err();
    assert!(error.to_string().contains("larger than"), "{error}");
    // A file that claims more than there is.
    let mut bytes = Stream::new().file("a", &big).bytes();
    bytes.truncate(512 + 300);
    let error = stack.try_add(&bytes, 1 << 20).unwrap_err();
    assert!(error.to_string().contains("ends in the middle"), "{error}");
    // A name that would fill the memory.
    let long = vec![b'a'; 3 << 20];
    let stream = Stream::new().put(EntryType::GNULongName, "././@LongLink", "", &long).file("a", "");
    let error = stack.try_add(&stream.bytes(), 1 << 30).unwrap_err();
    assert!(error.to_string().contains("headers"), "{error}");
}

#[test]
fn a_layer_without_its_last_zeros_is_read_and_one_without_its_last_content_is_not() {
    let mut stack = Stack::new();
    let whole = Stream::new().file("a", "text").bytes();
    stack.try_add(&whole[..512 + 4], 1 << 20).unwrap();
    assert_eq!(stack.read("a").as_deref(), Some("text"));
    assert!(stack.try_add(&whole[..512 + 3], 1 << 20).is_err());
    assert!(stack.try_add(&whole[..100], 1 << 20).is_err());
}

#[test]
fn the_last_word_on_a_name_counts() {
    let mut stack = Stack::new();
    stack.add(Stream::new().file("a/b/c", "1").file("a", "2").dir("x").link("x", "a").dir("x"));
    assert_eq!(stack.read("a").as_deref(), Some("2"));
    assert!(stack.path(0, "x").symlink_metadata().unwrap().is_dir());
}

#[test]
fn no_change_of_a_layer_breaks_more_than_the_layer() {
    let mut whole = Stream::new().dir("d").file("d/x", "text").link("l", "../../outside").hard("h", "d/x");
    whole = whole.file("l/y", "z").file("d/.wh.gone", "").put(EntryType::Char, "c", "", b"");
    let whole = whole.bytes();
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    let mut unpacked = 0;
    for _ in 0..500 {
        let mut bytes = whole.clone();
        for _ in 0..=random(4) {
            let at = random(bytes.len());
            bytes[at] = [b'.', b'/', 0, b'7', 0xff, b'L', b'x', b'S', random(256) as u8][random(9)];
        }
        // With sums that are right, or nothing but the sum would be tried.
        for block in bytes.chunks_mut(512).filter(|block| block[0] != 0 && block[257] == b'u') {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        }
        let mut stack = Stack::new();
        unpacked += u32::from(stack.try_add(&bytes, 1 << 20).is_ok());
    }
    assert!((30..500).contains(&unpacked), "{unpacked}: some are refused, some are not");
}

#[test]
fn attributes_of_overlayfs_are_not_taken_from_a_layer() {
    assert!(is_kept(b"user.mime") && is_kept(b"security.capability"));
    for name in ["user.overlay.opaque", "trusted.overlay.opaque", "trusted.x", "security.selinux", "system.x"]
    {
        assert!(!is_kept(name.as_bytes()), "{name}");
    }
}

#[test]
fn times_and_modes_of_directories_survive_their_contents() {
    let mut stack = Stack::new();
    stack.add(Stream::new().dir("d").file("d/x", "1"));
    let meta = stack.path(0, "d").metadata().unwrap();
    assert_eq!((meta.mtime(), meta.permissions().mode() & 0o7777), (1000, 0o755));
}

#[test]
fn deep_trees_and_many_attributes_are_taken_where_they_are_allowed() {
    // 700 deep, and 7000 bytes long: far beyond what one path may have for the kernel.
    let names: Vec<String> = (0..700).map(|n| format!("dir-{n:05}")).collect();
    let mut archive = Builder::new(Vec::new());
    let attributes: Vec<(String, Vec<u8>)> =
        (0..70).map(|n| (format!("SCHILY.xattr.user.{n:02}"), vec![b'x'])).collect();
    for depth in 1..=names.len() {
        let path = names[..depth].join("/") + "/";
        let mut long = Header::new_gnu();
        long.as_old_mut().name[..13].copy_from_slice(b"././@LongLink");
        long.set_entry_type(EntryType::GNULongName);
        long.set_size(path.len() as u64 + 1);
        long.set_cksum();
        archive.append(&long, [path.as_bytes(), b"\0"].concat().as_slice()).unwrap();
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Directory);
        header.set_mode(0o750);
        header.set_size(0);
        header.set_mtime(7);
        header.set_uid(rustix::process::geteuid().as_raw().into());
        header.set_gid(rustix::process::getegid().as_raw().into());
        header.set_cksum();
        if depth == 1 {
            archive
                .append_pax_extensions(attributes.iter().map(|(k, v)| (k.as_str(), v.as_slice())))
                .unwrap();
        }
        archive.append(&header, io::empty()).unwrap();
    }
    let bytes = archive.into_inner().unwrap();
    let mut stack = Stack { entries: 1000, ..Stack::new() };
    let refused = stack.try_add(&bytes, 1 << 30).unwrap_err().to_string();
    assert!(refused.contains("longer than 4096 bytes"), "{refused}");
    stack.shape = Shape::STATE;
    assert_eq!(stack.try_add(&bytes, 1 << 30).unwrap().entries, 700);
    // The modes come last, and reach the deepest, too.
    let mut dir: OwnedFd = File::open(stack.path(1, "")).unwrap().into();
    for name in &names {
        dir = open_dir(dir.as_fd(), OsStr::new(name)).unwrap();
        let stat = rustix::fs::fstat(&dir).unwrap();
        assert_eq!((stat.st_mode & 0o7777, stat.st_mtime), (0o750, 7), "{name}");
    }
    let mut listed = vec![0; 65_536];
    let first = File::open(stack.path(1, "dir-00000")).unwrap();
    let listed = rustix::fs::flistxattr(&first, &mut listed[..]).unwrap();
    assert_eq!(listed, 70 * "user.00\0".len());
}

#[test]
fn deletions_are_refused_where_nothing_can_be_deleted() {
    let mut stack = Stack::new();
    stack.deletions = false;
    let error = stack.try_add(&Stream::new().dir("a").file("a/.wh.x", "").bytes(), 1 << 20).unwrap_err();
    assert!(error.to_string().contains("a/.wh.x") && error.to_string().contains("deletion"), "{error}");
}
