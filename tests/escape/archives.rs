//! Archives that somebody hostile made, unpacked below a directory of the host: what a box says when a tree is copied
//! out of it is such an archive. Nothing outside of the directory may be touched. (6.2: 74 to 76.)

use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use glasshouse_linux::archive::ENTRIES_MAX;

use crate::tarball::{Entry, HARD, SYMBOLIC, Site, archive, dir, file, fix_sum, link, pax};

#[test]
fn extended_records_say_their_own_length() {
    assert_eq!(pax("path", "a"), "9 path=a\n");
    assert_eq!(pax("path", "ab"), "11 path=ab\n");
    assert_eq!(pax("size", "12345678"), "17 size=12345678\n");
}

#[test]
fn an_honest_archive_is_unpacked() {
    let site = Site::new();
    let bytes = archive(&[
        dir("./"),
        dir("d"),
        file("d/f", "content"),
        link(SYMBOLIC, "l", "d/f"),
        link(HARD, "h", "d/f"),
    ]);
    assert_eq!(site.unpack(&bytes[..]).expect("it is honest").entries, 5);
    for name in ["d/f", "l", "h"] {
        assert_eq!(std::fs::read(site.target().join(name)).expect("it was unpacked"), b"content");
    }
}

#[test]
fn names_that_lead_outside_are_refused() {
    let site = Site::new();
    let absolute = format!("{}/new", site.outside());
    for name in [
        "../outside/new",
        "../x",
        "a/../../x",
        "./../x",
        "a/b/../../../x",
        "..",
        &absolute,
        "/etc/glass-evil",
        "//x",
        "a//../../x",
    ] {
        for kind in [b'0', b'5', SYMBOLIC, HARD, b'7'] {
            let entry = Entry { name: name.as_bytes(), kind, link: b"f", content: b"", ..Entry::default() };
            site.unpack(&archive(&[file("f", "x"), entry])[..]).expect_err(name);
        }
        // The same by the names that have no length limit: extended headers, and those of GNU.
        let record = pax("path", name);
        let long = Entry { name: b"x", kind: b'x', content: record.as_bytes(), ..Entry::default() };
        site.unpack(&archive(&[long, file("harmless", "x")])[..]).expect_err(name);
        let gnu = format!("{name}\0");
        let long = Entry { name: b"././@LongLink", kind: b'L', content: gnu.as_bytes(), ..Entry::default() };
        site.unpack(&archive(&[long, file("harmless", "x")])[..]).expect_err(name);
        let prefix = Entry { name: b"harmless", ..Entry::default() };
        let mut bytes = archive(&[prefix]);
        bytes[345..345 + name.len()].copy_from_slice(name.as_bytes());
        fix_sum(&mut bytes);
        site.unpack(&bytes[..]).expect_err(name);
    }
    assert!(!Path::new("/etc/glass-evil").exists());
}

#[test]
fn a_link_unpacked_a_moment_before_does_not_lead_outside() {
    let outside = |site: &Site| site.outside();
    for to in ["../outside", "ABSOLUTE", "/", "..", "./../outside", "d/../../outside", "/proc/self/cwd"] {
        let site = Site::new();
        let absolute = outside(&site);
        let to = if to == "ABSOLUTE" { absolute.as_str() } else { to };
        for entries in [
            vec![link(SYMBOLIC, "l", to), file("l/file", "evil")],
            vec![link(SYMBOLIC, "l", to), file("l/new", "evil")],
            vec![link(SYMBOLIC, "l", to), dir("l/new")],
            vec![link(SYMBOLIC, "l", to), Entry { mode: b"0000777", ..dir("l") }],
            vec![link(SYMBOLIC, "l", to), link(SYMBOLIC, "l/new", "x")],
            vec![link(SYMBOLIC, "l", to), link(HARD, "h", "l/file"), file("h", "evil")],
            vec![link(SYMBOLIC, "l", to), file("x", "x"), link(HARD, "l/new", "x")],
            vec![dir("d"), link(SYMBOLIC, "d/l", &format!("../{to}")), file("d/l/new", "evil")],
            vec![link(SYMBOLIC, "a", "b"), link(SYMBOLIC, "b", to), file("a/new", "evil")],
        ] {
            // Refused, or unpacked in place of the link: `unpack` of the site looks that nothing is outside.
            let _ = site.unpack(&archive(&entries)[..]);
            std::fs::remove_dir_all(site.target()).expect("it is ours");
            std::fs::create_dir(site.target()).expect("it is ours");
        }
    }
}

#[test]
fn a_link_to_a_file_outside_is_replaced_and_not_written_through() {
    let site = Site::new();
    let to = format!("{}/file", site.outside());
    let bytes = archive(&[link(SYMBOLIC, "l", &to), file("l", "evil")]);
    site.unpack(&bytes[..]).expect("the link is replaced");
    assert!(std::fs::symlink_metadata(site.target().join("l")).expect("it was unpacked").is_file());
    // A hard link to a link is a link again, and as harmless.
    let bytes = archive(&[link(SYMBOLIC, "m", &to), link(HARD, "h", "m"), file("h", "evil")]);
    site.unpack(&bytes[..]).expect("the link is replaced");
}

#[test]
fn links_that_were_there_before_do_not_lead_outside() {
    let site = Site::new();
    symlink(site.outside(), site.target().join("there")).expect("it is ours");
    symlink(format!("{}/file", site.outside()), site.target().join("file")).expect("it is ours");
    for entry in [
        file("there/new", "evil"),
        dir("there/new"),
        link(SYMBOLIC, "there/l", "x"),
        file("there/file", "evil"),
    ] {
        site.unpack(&archive(&[entry])[..]).expect_err("it leads outside");
    }
    let _ = site.unpack(&archive(&[Entry { mode: b"0000777", ..dir("there") }])[..]);
    site.unpack(&archive(&[file("file", "evil")])[..]).expect("the link is replaced");
}

#[test]
fn hard_links_to_the_outside_are_refused() {
    let site = Site::new();
    let absolute = format!("{}/file", site.outside());
    for to in ["../outside/file", &absolute, "/etc/passwd", "d/../../outside/file", "/proc/self/exe"] {
        site.unpack(&archive(&[dir("d"), link(HARD, "h", to)])[..]).expect_err(to);
        let record = pax("linkpath", to);
        let long = Entry { kind: b'x', content: record.as_bytes(), ..Entry::default() };
        site.unpack(&archive(&[dir("d"), long, link(HARD, "h", "harmless")])[..]).expect_err(to);
    }
}

#[test]
fn devices_pipes_and_unknown_kinds_are_refused() {
    let site = Site::new();
    for kind in [b'3', b'4', b'6', b'D', b'M', b'N', b'V', b'A', b'Z', 0xff] {
        site.unpack(&archive(&[Entry { name: b"node", kind, ..Entry::default() }])[..])
            .expect_err("it is no file, directory or link");
        assert!(std::fs::symlink_metadata(site.target().join("node")).is_err(), "kind {kind}");
    }
}

#[test]
fn set_id_bits_are_dropped() {
    let site = Site::new();
    let entries = [
        Entry { mode: b"0006755", ..file("suid", "x") },
        Entry { mode: b"7777777", ..file("all", "x") },
        Entry { name: b"dir", mode: b"0007777", ..dir("dir") },
    ];
    site.unpack(&archive(&entries)[..]).expect("the rest of it is harmless");
    for name in ["suid", "all", "dir"] {
        let mode = std::fs::metadata(site.target().join(name)).expect("it was unpacked").permissions().mode();
        assert_eq!(mode & 0o7000, 0, "{name}");
    }
}

#[test]
fn attributes_are_not_taken() {
    let site = Site::new();
    for name in ["user.evil", "trusted.overlay.opaque", "security.capability", "user.overlay.whiteout"] {
        let record =
            pax(&format!("SCHILY.xattr.{name}"), "y") + &pax(&format!("LIBARCHIVE.xattr.{name}"), "eQ==");
        let long = || Entry { kind: b'x', content: record.as_bytes(), ..Entry::default() };
        site.unpack(&archive(&[long(), file("f", "x"), long(), dir("d")])[..]).expect("the rest is honest");
        for path in ["f", "d"] {
            let mut list = [0; 1024];
            let length = glasshouse_linux::rustix::fs::listxattr(site.target().join(path), &mut list[..]);
            assert!(matches!(length, Ok(0) | Err(_)), "{path}: {}", list.escape_ascii());
        }
    }
}

#[test]
fn times_beyond_all_measure_do_no_harm() {
    let site = Site::new();
    let largest = [0xff; 12];
    let high: [u8; 12] = [0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    for mtime in [&b"77777777777"[..], &largest, &high, b"garbage....", b"-0000000001", b"           ", b""] {
        // Refused or unpacked, as long as the rest works as before.
        let _ = site.unpack(&archive(&[Entry { mtime, ..file("f", "x") }, Entry { mtime, ..dir("d") }])[..]);
        for value in ["-9223372036854775808", "99999999999999999999", "1e308", "nan"] {
            let record = pax("mtime", value);
            let long = Entry { kind: b'x', content: record.as_bytes(), ..Entry::default() };
            let _ = site.unpack(&archive(&[long, file("g", "x")])[..]);
        }
    }
    site.unpack(&archive(&[file("after", "x")])[..]).expect("an honest one");
}

#[test]
fn sizes_that_lie_end_in_an_error() {
    let largest = [0xff; 12];
    let tebibyte: [u8; 12] = [0x80, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0];
    for size in [&b"77777777777"[..], &largest, &tebibyte, b"garbage....", b"-0000000001"] {
        let site = Site::new();
        let entry = Entry { size: Some(size), ..file("f", "little") };
        site.unpack(&entry.bytes()[..]).expect_err("there is less than was said");
        assert!(std::fs::metadata(site.target().join("f")).map_or(0, |meta| meta.blocks() * 512) < 1 << 20);
    }
    // An extended header that says another size than the entry it belongs to.
    for (said, content) in
        [("1099511627776", "little"), ("0", "much"), ("3", "much more than three"), ("-1", "x"), ("", "x")]
    {
        let site = Site::new();
        let record = pax("size", said);
        let long = Entry { kind: b'x', content: record.as_bytes(), ..Entry::default() };
        let bytes = archive(&[long, file("f", content), file("../outside/file", "evil")]);
        site.unpack(&bytes[..]).expect_err("what follows is refused, wherever it is taken to begin");
        assert!(std::fs::metadata(site.target().join("f")).map_or(0, |meta| meta.len()) < 4096, "{said}");
    }
    for record in ["", "5", "99999999999999999999 path=x\n", "-5 path=x\n", "9 path=x", "0 =\n", "\0\0\0\0"] {
        let site = Site::new();
        let long = Entry { kind: b'x', content: record.as_bytes(), ..Entry::default() };
        let _ = site.unpack(&archive(&[long, file("f", "x")])[..]);
    }
}

#[test]
fn sparse_maps_cannot_write_beyond_what_is_there() {
    // The old sparse format of GNU: a file of 1 TiB in a few bytes.
    let site = Site::new();
    let mut bytes = archive(&[Entry { kind: b'S', ..file("sparse", "x") }]);
    bytes[257..265].copy_from_slice(b"ustar  \0");
    bytes[386..397].copy_from_slice(b"77777777000");
    bytes[398..409].copy_from_slice(b"00000000001");
    bytes[483..495].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    fix_sum(&mut bytes);
    site.unpack(&bytes[..]).expect_err("only files, directories and links are taken");
}

#[test]
fn names_beyond_all_measure_end_in_an_error() {
    let site = Site::new();
    let deep = "d/".repeat(2000);
    let long = "n".repeat(300);
    let huge = "n".repeat(1 << 20);
    let unpack_as = |name: &str| {
        let gnu = format!("{name}\0");
        let entry = Entry { name: b"././@LongLink", kind: b'L', content: gnu.as_bytes(), ..Entry::default() };
        site.unpack(&archive(&[entry, file("x", "x")])[..])
    };
    // Deeper than a tree of ours ever is, and than many tools can remove.
    for name in [&deep, &long, &huge, "", ".", "./"] {
        unpack_as(name).expect_err("it is no name for a file");
    }
    let _ = unpack_as("a\0b");
    site.unpack(&archive(&[Entry { name: b"\xff\xfe\x1b]0;t\x07", ..Entry::default() }])[..])
        .expect("any bytes are a name");
    let error = site
        .unpack(&archive(&[Entry { name: b"../\x1b]0;t\x07", ..Entry::default() }])[..])
        .expect_err("outside");
    assert!(!error.to_string().contains('\x1b'), "{error:?}");
}

#[test]
fn garbage_ends_in_an_error_or_nothing() {
    let site = Site::new();
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    let honest = archive(&[dir("d"), file("d/f", "content"), link(SYMBOLIC, "l", "d"), file("l/g", "x")]);
    for _ in 0..500 {
        let mut bytes = honest.clone();
        for _ in 0..1 + next() % 8 {
            let at = (usize::from(next()) << 8 | usize::from(next())) % bytes.len();
            bytes[at] = next();
        }
        // Half of them with a sum that is right again.
        if next() % 2 == 0 {
            for at in (0..bytes.len()).step_by(512) {
                if bytes[at..at + 512].windows(5).any(|five| five == b"ustar") {
                    fix_sum(&mut bytes[at..at + 512]);
                }
            }
        }
        let _ = site.unpack(&bytes[..]);
    }
    for cut in (0..honest.len()).step_by(29) {
        let _ = site.unpack(&honest[..cut]);
    }
}

/// The same bytes, again and again.
struct Repeated<'a> {
    bytes: &'a [u8],
    at: usize,
    left: u64,
}

impl Read for Repeated<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        let n = buffer.len().min(self.bytes.len() - self.at);
        buffer[..n].copy_from_slice(&self.bytes[self.at..self.at + n]);
        self.at += n;
        if self.at == self.bytes.len() {
            self.at = 0;
            self.left -= 1;
        }
        Ok(n)
    }
}

#[test]
fn entries_without_number_are_refused_at_the_bound() {
    let site = Site::new();
    // The cheapest there is: a header for all that follows, with nothing in it.
    let one = Entry { kind: b'g', ..Entry::default() }.bytes();
    let error =
        site.unpack(Repeated { bytes: &one, at: 0, left: ENTRIES_MAX + 1 }).expect_err("it is one too many");
    assert!(error.to_string().contains("entries"), "{error}");
}
