//! Images that somebody hostile made: refused in a sentence, or harmless, and the host is as it was.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use glasshouse_tests::{House, Mode, is_root};
use serde_json::json;
use tar::EntryType;

use crate::forgery::{Layer, Stored, digest, gzip_with_zeros, header, layout};
use crate::workshop::path;
use crate::{assert_nothing_half, each_mode, names, ok, refused};

/// Something of the host that an image is after, open to whoever the program runs as.
struct Outside {
    dir: PathBuf,
    before: Vec<String>,
}

impl Outside {
    fn new(house: &House) -> Outside {
        let dir = house.path().join("outside");
        std::fs::create_dir(&dir).expect("the house is ours");
        std::fs::write(dir.join("file"), "before").expect("it is ours");
        crate::readable(house, &dir);
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
        let before = look(&dir);
        Outside { dir, before }
    }

    fn path(&self) -> String {
        path(&self.dir)
    }

    /// The same as a name that goes up from anywhere.
    fn upwards(&self) -> String {
        format!("{}{}", "../".repeat(12), &self.path()[1..])
    }

    fn assert_untouched(&self, what: &str) {
        assert_eq!(look(&self.dir), self.before, "{what}");
    }
}

/// Everything about a directory that a mount, a file or a mode in it would change.
fn look(dir: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(dir).expect("it is ours") {
        let path = entry.expect("an entry").path();
        let meta = path.symlink_metadata().expect("it is there");
        let content = std::fs::read(&path).unwrap_or_default();
        seen.push(format!("{path:?} {:o} {} {} {content:?}", meta.mode(), meta.nlink(), meta.uid()));
    }
    seen.sort();
    let meta = dir.metadata().expect("it is ours");
    seen.push(format!("{:o} {} {}", meta.mode(), meta.uid(), meta.ino()));
    seen
}

fn forged(house: &House, layer: Layer) -> String {
    path(&layout(house, &[Stored::plain(layer.bytes())], json!({})))
}

#[test]
fn names_and_links_that_lead_outside_do_not() {
    each_mode(|house| {
        let outside = Outside::new(house);
        let (there, up) = (outside.path(), outside.upwards());
        // Refused: no honest layer has such names.
        for name in [&*up, "../x", "a/../../x", "bin/../../../x", ".."] {
            let sentence =
                refused(house, &["image", "import", &forged(house, Layer::new().file(name, "evil"))]);
            assert!(sentence.contains("leads outside"), "{name}: {sentence}");
            outside.assert_untouched(name);
            assert_nothing_half(house);
        }
        for target in [format!("{there}/file"), format!("{up}/file"), "/etc/passwd".into()] {
            let sentence =
                refused(house, &["image", "import", &forged(house, Layer::new().hard("stolen", &target))]);
            let told = sentence.contains("leads outside") || sentence.contains("not there");
            assert!(sentence.contains("stolen") && told, "{target}: {sentence}");
            outside.assert_untouched(&target);
            assert_nothing_half(house);
        }
        // Harmless: they begin at the image's own root.
        let layers = [
            Layer::new().file(&format!("{there}/file"), "evil").file(&format!("{there}/new"), "evil"),
            Layer::new().link("out", &there).file("out/file", "evil").file("out/new", "evil"),
            Layer::new().link("out", &up).file("out/file", "evil").file("out/new", "evil"),
            Layer::new().link("out", &format!("{there}/file")).file("out", "evil"),
            Layer::new().link("a", "/").link("a/b", &there).file("b/file", "evil").file("b/.wh.file", ""),
            Layer::new().link("out", &there).file("out/.wh..wh..opq", "").file("out/.wh.file", ""),
            Layer::new().link("conf", "/etc").file("conf/shadow", "evil"),
            Layer::new().link("out", "/proc/self/root").file(&format!("out{there}/file"), "evil"),
            Layer::new().link("out", "/proc/self/fd/3").file("out/file", "evil"),
        ];
        let shadow = std::fs::read("/etc/shadow").ok();
        for (n, layer) in layers.into_iter().enumerate() {
            ok(house, &["image", "import", &forged(house, layer), "--name", "evil"]);
            outside.assert_untouched(&n.to_string());
            ok(house, &["run", "--image", "evil", "--user", "0", "--", "/bin/busybox", "true"]);
            outside.assert_untouched(&n.to_string());
        }
        assert_eq!(std::fs::read("/etc/shadow").ok(), shadow);
    });
}

#[test]
fn links_where_the_system_is_mounted_are_replaced() {
    each_mode(|house| {
        let outside = Outside::new(house);
        let targets =
            [outside.path(), outside.upwards(), "..".into(), "/proc/self/root".into(), "bin".into()];
        for name in ["dev", "proc", "sys", "tmp", "etc/resolv.conf", "etc", "dev/null"] {
            for target in &targets {
                let mut layer = Layer::new();
                if let Some((above, _)) = name.split_once('/') {
                    layer = layer.entry(EntryType::Directory, &format!("{above}/"), "", 0o755, b"");
                }
                let layer = layer.link(name, target);
                ok(house, &["image", "import", &forged(house, layer), "--name", "evil"]);
                for more in [&[][..], &["--read-only"]] {
                    let script = "[ -c /dev/null ] && [ -d /proc/self ] && [ ! -L /dev ] && echo well";
                    let args = ["run", "--image", "evil", "--user", "0"];
                    let said = ok(house, &[&args[..], more, &["--", "/bin/sh", "-c", script]].concat());
                    assert_eq!(said, "well\n", "{name} -> {target}");
                    outside.assert_untouched(&format!("{name} -> {target}"));
                }
            }
        }
        // A file in that place is no better.
        ok(
            house,
            &[
                "image",
                "import",
                &forged(house, Layer::new().file("proc", "x").file("dev", "x")),
                "--name",
                "evil",
            ],
        );
        ok(
            house,
            &["run", "--image", "evil", "--user", "0", "--", "/bin/busybox", "ls", "/proc/self", "/dev/null"],
        );
    });
}

#[test]
fn devices_do_not_come_along_and_set_id_programs_give_nothing() {
    each_mode(|house| {
        let busybox = std::fs::read("/bin/busybox").expect("everybody may read it");
        let layer = Layer::new()
            .device(EntryType::Char, "null", 1, 3)
            .device(EntryType::Block, "disk", 8, 0)
            .device(EntryType::Char, "bin/hidden", 0, 0)
            .entry(EntryType::Fifo, "pipe", "", 0o644, b"")
            .entry(EntryType::Regular, "suid/id", "", 0o6755, &busybox);
        let (code, _, said) = house.run(&["image", "import", &forged(house, layer), "--name", "evil"]);
        assert!(code == 0 && said.contains("3 devices were left out"), "{said}");
        let script = "[ -e /null ] || [ -e /disk ] || [ -e /bin/hidden ] || echo none; /suid/id -u";
        let said = ok(house, &["run", "--image", "evil", "--user", "1000", "--", "/bin/sh", "-c", script]);
        assert_eq!(said, "none\n1000\n");
        for layer in names(house, "layers") {
            for name in ["null", "disk", "bin/hidden"] {
                assert!(
                    house
                        .home()
                        .join("layers")
                        .join(&layer)
                        .join("tree")
                        .join(name)
                        .symlink_metadata()
                        .is_err()
                );
            }
        }
        // Nobody else of the host comes near what is set-id.
        let home = house.home().metadata().expect("it is ours").permissions().mode();
        assert_eq!(home & 0o077, 0);
    });
}

#[test]
fn attributes_that_mean_something_to_overlayfs_are_not_taken() {
    each_mode(|house| {
        let below = Layer::new().file("secret/file", "shown");
        let forged = [
            ("trusted.overlay.opaque", "y"),
            ("user.overlay.opaque", "y"),
            ("trusted.overlay.redirect", "/bin"),
            ("user.overlay.redirect", "/bin"),
            ("trusted.overlay.metacopy", ""),
            ("user.note", "kept"),
        ];
        let top = Layer(Vec::new())
            .attributes(&forged)
            .entry(EntryType::Directory, "secret/", "", 0o755, b"")
            .attributes(&forged)
            .entry(EntryType::Regular, "file", "", 0o644, b"x");
        let layers = [Stored::plain(below.bytes()), Stored::plain(top.bytes())];
        ok(house, &["image", "import", &path(&layout(house, &layers, json!({}))), "--name", "evil"]);
        let said = ok(
            house,
            &["run", "--image", "evil", "--user", "0", "--", "/bin/busybox", "cat", "/secret/file"],
        );
        assert_eq!(said, "shown");
        let mut kept = 0;
        for layer in names(house, "layers") {
            let tree = house.home().join("layers").join(layer).join("tree");
            for name in ["secret", "file"] {
                let mut list = [0u8; 4096];
                let Ok(n) = glasshouse_linux::rustix::fs::listxattr(tree.join(name), &mut list) else {
                    continue;
                };
                let list = String::from_utf8_lossy(&list[..n]).into_owned();
                assert!(!list.contains("overlay"), "{list}");
                kept += usize::from(list.contains("user.note"));
            }
        }
        assert_eq!(kept, 2, "what is nobody's business stays");
    });
}

#[test]
fn huge_claims_are_refused_before_they_cost_anything() {
    each_mode(|house| {
        let import = |layers: &[Stored]| {
            refused(house, &["image", "import", &path(&layout(house, layers, json!({})))])
        };
        // A file of eight exbibytes, of which nothing follows.
        let huge = header(EntryType::Regular, "huge", "", 0o644, 1 << 62);
        let sentence = import(&[Stored::plain(Layer::new().raw(huge.as_bytes()).bytes())]);
        assert!(sentence.contains("larger than"), "{sentence}");
        assert_nothing_half(house);
        // A name of many megabytes.
        let long = vec![b'a'; 4 << 20];
        let layer =
            Layer::new().entry(EntryType::GNULongName, "././@LongLink", "", 0o644, &long).file("x", "");
        let sentence = import(&[Stored::plain(layer.bytes())]);
        assert!(sentence.contains("headers"), "{sentence}");
        // A path that is too deep, and one that is too long.
        let deep = "d/".repeat(600);
        let layer = Layer::new()
            .entry(EntryType::GNULongName, "././@LongLink", "", 0o644, deep.as_bytes())
            .file("x", "");
        let sentence = import(&[Stored::plain(layer.bytes())]);
        assert!(sentence.contains("deeper than"), "{sentence}");
        // More than two hundred times as much as was sent.
        let zeros = 300 << 20;
        let head = header(EntryType::Regular, "zeros", "", 0o644, zeros);
        let bomb = Stored { bytes: gzip_with_zeros(head.as_bytes(), zeros), diff_id: digest(b"") };
        let sentence = import(&[bomb]);
        assert!(sentence.contains("times as many"), "{sentence}");
        assert_nothing_half(house);
        // More layers than anybody makes, and a document that is none.
        let many: Vec<Stored> =
            (0..200).map(|n| Stored::plain(Layer(Vec::new()).file(&n.to_string(), "").bytes())).collect();
        assert!(import(&many).contains("127 are the most"));
        assert_nothing_half(house);
    });
}

#[test]
fn a_content_that_the_configuration_does_not_promise_is_refused() {
    each_mode(|house| {
        let other = Stored { diff_id: digest(b"other"), ..Stored::plain(Layer::new().bytes()) };
        let sentence = refused(house, &["image", "import", &path(&layout(house, &[other], json!({})))]);
        assert!(sentence.contains("not what it says"), "{sentence}");
        assert_nothing_half(house);
        // A blob under a name that is not its digest.
        let dir = layout(house, &[Stored::plain(Layer::new().bytes())], json!({}));
        for entry in std::fs::read_dir(dir.join("blobs/sha256")).expect("it is ours") {
            let blob = entry.expect("an entry").path();
            let whole = std::fs::read(&blob).expect("it is ours");
            std::fs::write(&blob, [&whole[..], b"\n"].concat()).expect("it is ours");
            refused(house, &["image", "import", &path(&dir)]);
            assert_nothing_half(house);
            std::fs::write(&blob, whole).expect("it is ours");
        }
        ok(house, &["image", "import", &path(&dir), "--name", "good"]);
    });
}

#[test]
fn words_of_an_image_cannot_steer_the_terminal_or_the_host() {
    each_mode(|house| {
        let config = json!({
            "Env": ["PATH=/bin", "LD_PRELOAD=/evil.so", "A=\u{1b}]0;x\u{7}"], "User": "0", "WorkingDir": "../../../x y",
            "Labels": {"\u{1b}[2J": "\u{1b}[2J"}, "Cmd": ["/bin/busybox", "pwd"],
        });
        let dir = layout(house, &[Stored::plain(Layer::new().bytes())], config);
        let (code, _, said) = house.run(&["image", "import", &path(&dir), "--name", "evil"]);
        assert!(!said.contains('\u{1b}'), "{said}");
        if code == 0 {
            assert!(!ok(house, &["image", "inspect", "evil"]).contains('\u{1b}'));
            house.run(&["run", "--image", "evil"]);
        }
        assert!(!house.path().join("x y").exists());
    });
}

#[test]
fn a_whiteout_is_made_of_nothing_but_a_deletion() {
    each_mode(|house| {
        let below = Layer::new().file("a/x", "1").file("a/y", "2");
        let top = Layer(Vec::new()).entry(EntryType::Directory, "a/", "", 0o755, b"").file("a/.wh.x", "");
        let layers = [Stored::plain(below.bytes()), Stored::plain(top.bytes())];
        ok(house, &["image", "import", &path(&layout(house, &layers, json!({}))), "--name", "it"]);
        let said = ok(house, &["run", "--image", "it", "--user", "0", "--", "/bin/busybox", "ls", "/a"]);
        assert_eq!(said, "y\n");
        let whiteouts = names(house, "layers").into_iter().filter(|layer| {
            let place = house.home().join("layers").join(layer).join("tree/a/x");
            place.symlink_metadata().is_ok_and(|meta| meta.file_type().is_char_device())
        });
        assert_eq!(whiteouts.count(), 1);
        // A set-id bit stays a bit for root, and goes for everybody else.
        if house.mode == Mode::Rootless || !is_root() {
            let layer = Layer::new().entry(EntryType::Regular, "suid", "", 0o4755, b"");
            ok(house, &["image", "import", &forged(house, layer), "--name", "it"]);
            let bits = names(house, "layers").into_iter().filter_map(|layer| {
                let place = house.home().join("layers").join(layer).join("tree/suid");
                place.metadata().ok().map(|meta| meta.permissions().mode() & 0o7000)
            });
            assert_eq!(bits.collect::<Vec<_>>(), [0]);
        }
    });
}
