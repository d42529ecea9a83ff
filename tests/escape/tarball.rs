//! Archives made byte by byte, as no honest program makes them, and a place to unpack them in that notices what is
//! touched beside it.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use glasshouse_linux::archive::{Unpacked, unpack};

/// A directory to unpack into, between others that must stay as they are.
pub(crate) struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    pub(crate) fn new() -> Site {
        let dir = tempfile::tempdir().expect("/tmp can be written");
        std::fs::create_dir(dir.path().join("into")).expect("it is ours");
        std::fs::create_dir(dir.path().join("outside")).expect("it is ours");
        std::fs::write(dir.path().join("outside/file"), "before").expect("it is ours");
        Site { dir }
    }

    pub(crate) fn target(&self) -> PathBuf {
        self.dir.path().join("into")
    }

    pub(crate) fn outside(&self) -> String {
        self.dir.path().join("outside").to_string_lossy().into_owned()
    }

    pub(crate) fn unpack(&self, archive: impl Read) -> io::Result<Unpacked> {
        let into = std::fs::File::open(self.target()).expect("it is ours");
        let result = unpack(archive, into.as_fd());
        self.check_outside();
        check_tame(&self.target());
        result
    }

    /// All that is not below `into` is as it was.
    fn check_outside(&self) {
        let mut names: Vec<_> = std::fs::read_dir(self.dir.path())
            .expect("it is ours")
            .map(|e| e.expect("entry").file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["into", "outside"]);
        let outside = self.dir.path().join("outside");
        let names: Vec<_> =
            std::fs::read_dir(&outside).expect("it is ours").map(|e| e.expect("entry").file_name()).collect();
        assert_eq!(names, ["file"]);
        let meta = std::fs::symlink_metadata(outside.join("file")).expect("it is there");
        assert_eq!(std::fs::read(outside.join("file")).expect("it is there"), b"before");
        assert_eq!((meta.nlink(), meta.permissions().mode() & 0o7777 & !0o022), (1, 0o644));
        let meta = std::fs::metadata(&outside).expect("it is there");
        assert_eq!(meta.permissions().mode() & 0o7002, 0);
    }
}

/// No device, pipe or socket, no set-id bit.
fn check_tame(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok) {
        // Too deep for a path: there can be nothing that anybody reaches.
        let Ok(meta) = std::fs::symlink_metadata(entry.path()) else { continue };
        let kind = meta.file_type();
        assert!(
            !kind.is_char_device() && !kind.is_block_device() && !kind.is_fifo() && !kind.is_socket(),
            "{entry:?}"
        );
        assert!(kind.is_symlink() || meta.permissions().mode() & 0o7000 == 0, "{entry:?}");
        if kind.is_dir() {
            check_tame(&entry.path());
        }
    }
}

/// One entry, with every field as the attacker likes it.
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) kind: u8,
    pub(crate) link: &'a [u8],
    pub(crate) mode: &'a [u8],
    pub(crate) size: Option<&'a [u8]>,
    pub(crate) mtime: &'a [u8],
    pub(crate) content: &'a [u8],
}

impl Default for Entry<'_> {
    fn default() -> Self {
        Entry {
            name: b"x",
            kind: b'0',
            link: b"",
            mode: b"0000644",
            size: None,
            mtime: b"00000000000",
            content: b"",
        }
    }
}

impl Entry<'_> {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut head = [0u8; 512];
        let mut put = |at: usize, length: usize, value: &[u8]| {
            let n = value.len().min(length);
            head[at..at + n].copy_from_slice(&value[..n]);
        };
        put(0, 100, self.name);
        put(100, 8, self.mode);
        put(108, 8, b"0000000");
        put(116, 8, b"0000000");
        put(124, 12, self.size.unwrap_or(format!("{:011o}", self.content.len()).as_bytes()));
        put(136, 12, self.mtime);
        put(156, 1, &[self.kind]);
        put(157, 100, self.link);
        put(257, 8, b"ustar\x0000");
        // Device numbers, for those kinds that have one: a disk.
        put(329, 8, b"0000376");
        put(337, 8, b"0000000");
        put(148, 8, b"        ");
        let sum: u32 = head.iter().map(|&byte| u32::from(byte)).sum();
        head[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        let mut bytes = head.to_vec();
        bytes.extend_from_slice(self.content);
        bytes.resize(bytes.len().div_ceil(512) * 512, 0);
        bytes
    }
}

/// A file.
pub(crate) fn file<'a>(name: &'a str, content: &'a str) -> Entry<'a> {
    Entry { name: name.as_bytes(), content: content.as_bytes(), ..Entry::default() }
}

/// A directory.
pub(crate) fn dir(name: &str) -> Entry<'_> {
    Entry { name: name.as_bytes(), kind: b'5', mode: b"0000755", ..Entry::default() }
}

/// A link of either kind.
pub(crate) fn link<'a>(kind: u8, name: &'a str, to: &'a str) -> Entry<'a> {
    Entry { name: name.as_bytes(), kind, link: to.as_bytes(), ..Entry::default() }
}

pub(crate) const SYMBOLIC: u8 = b'2';
pub(crate) const HARD: u8 = b'1';

/// The entries, and the end.
pub(crate) fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut bytes: Vec<u8> = entries.iter().flat_map(Entry::bytes).collect();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// A record of the extended headers: its own length, a space, and `key=value`.
pub(crate) fn pax(key: &str, value: &str) -> String {
    let rest = format!(" {key}={value}\n");
    let whole = (rest.len()..).find(|n| n.to_string().len() + rest.len() == *n).expect("a length fits");
    format!("{whole}{rest}")
}

/// Makes the sum of a header right again.
pub(crate) fn fix_sum(head: &mut [u8]) {
    head[148..156].copy_from_slice(b"        ");
    let sum: u32 = head[..512].iter().map(|&byte| u32::from(byte)).sum();
    head[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}
