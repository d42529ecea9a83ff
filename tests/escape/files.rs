//! The files of a box as its owner reads and writes them: whatever the box has put there, the host's are not among
//! them. (6.2: 62 to 64, 67, 68, 73.)

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use glasshouse_sandbox::ErrorKind;

use crate::attacker::PROBE;
use crate::library::with_box;

const OUTSIDE: &str = "this is the host's\n";

#[test]
fn a_link_leads_to_the_boxs_file_or_nowhere() {
    with_box(async |inside| {
        let marker = inside.host().join("marker");
        std::fs::write(&marker, OUTSIDE).expect("the scratch directory can be written");
        let marker = marker.to_string_lossy();
        let up = "../".repeat(30);
        let line = format!(
            "ln -s /etc/shadow shadow; ln -s {marker} absolute; ln -s {up}{marker} relative; \
             ln -s /proc/1/root{marker} first; ln -s /proc/self/root{marker} own; ln -s /proc/self/cwd{marker} cwd; \
             ln -s /etc/passwd passwd; ln -s {host} dir; ln -s / top",
            host = inside.host().display()
        );
        assert!(inside.sh(&line).await.report.exit.success());
        for name in ["shadow", "absolute", "relative", "first", "own", "cwd", "dir/marker"] {
            for path in [format!("/tmp/{name}"), format!("/tmp/../../../tmp/{name}")] {
                let read = inside.sandbox.read_file(&path, 0, None).await;
                let kind = read.map_err(|e| e.kind());
                assert!(
                    matches!(kind, Err(ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Invalid)),
                    "{path}: {kind:?}"
                );
            }
            let to = inside.host().join("copied");
            inside.sandbox.copy_out(&format!("/tmp/{name}"), &to).await.expect_err("there is no such file");
            assert!(!to.exists(), "{name}");
        }
        assert!(inside.sandbox.read_file(&format!("/tmp/top{marker}"), 0, None).await.is_err());
        let passwd = inside.sandbox.read_file("/tmp/passwd", 0, None).await.expect("the box has one");
        assert_eq!(passwd.iter().filter(|&&byte| byte == b'\n').count(), 3, "the host's users are told");
        assert!(inside.sandbox.list_dir("/tmp/dir", None, None).await.is_err());
    });
}

#[test]
fn a_link_cannot_have_the_host_written() {
    with_box(async |inside| {
        let host = inside.host();
        let line = format!(
            "ln -s {0}/new new; ln -s {0} dir; mkdir tree; ln -s {0} tree/sub; ln -s {0}/new tree/file",
            host.display()
        );
        assert!(inside.sh(&line).await.report.exit.success());
        let from = tempfile::tempdir().expect("/tmp can be written");
        std::fs::create_dir(from.path().join("sub")).expect("it is ours");
        std::fs::write(from.path().join("sub/x"), "x").expect("it is ours");
        std::fs::write(from.path().join("file"), "x").expect("it is ours");
        // Whether each is refused or lands inside is all the same, as long as the host has nothing of it.
        let sandbox = &inside.sandbox;
        let _ = sandbox.write_file("/tmp/new", b"x", None).await;
        let _ = sandbox.append_file("/tmp/new", b"x").await;
        let _ = sandbox.write_file("/tmp/dir/x", b"x", None).await;
        let _ = sandbox.make_dir("/tmp/dir/y", true).await;
        let _ = sandbox.move_file("/tmp/probe", "/tmp/dir/probe", true).await;
        let _ = sandbox.copy_in(&from.path().join("file"), "/tmp/new").await;
        let _ = sandbox.copy_in(&from.path().join("file"), "/tmp/dir/z").await;
        let _ = sandbox.copy_in(from.path(), "/tmp/tree").await;
        let _ = sandbox.copy_in(from.path(), "/tmp/dir/").await;
        let _ = sandbox.chmod("/tmp/dir", 0o777).await;
        let _ = sandbox.remove_file("/tmp/dir/x", true).await;
        let left: Vec<_> = std::fs::read_dir(host).expect("it is ours").filter_map(Result::ok).collect();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(std::fs::metadata(host).expect("it is ours").permissions().mode() & 0o777, 0o755);
        sandbox.remove_file("/tmp/tree", true).await.expect("the box's own tree");
        assert!(host.exists());
    });
}

#[test]
fn cannot_lead_the_guest_to_its_own_descriptors() {
    with_box(async |inside| {
        let line = "for i in $(seq 0 63); do ln -s /proc/self/fd/$i fd$i; ln -s /proc/self/fd/$i/../.. up$i; done; \
                    ln -s /proc/1/fd all; ln -s /proc/thread-self/fd/7 thread; ln -s /proc/self/exe exe";
        assert!(inside.sh(line).await.report.exit.success());
        let sandbox = &inside.sandbox;
        let mut reached = Vec::new();
        let names =
            (0..64).flat_map(|n| [format!("fd{n}"), format!("up{n}")]).chain(["thread".into(), "exe".into()]);
        for name in names {
            let path = format!("/tmp/{name}");
            if let Ok(stat) = sandbox.stat(&path, true).await {
                reached.push(format!("stat {name}: {stat:?}"));
            }
            if let Ok(page) = sandbox.list_dir(&path, None, Some(3)).await {
                let names: Vec<_> = page.entries.iter().map(|entry| &entry.name).collect();
                reached.push(format!("list {name}: {names:?}"));
            }
            if let Ok(bytes) = sandbox.read_file(&path, 0, Some(64)).await {
                reached.push(format!("read {name}: {:?}", String::from_utf8_lossy(&bytes)));
            }
            if sandbox.append_file(&path, b"0").await.is_ok() {
                reached.push(format!("append {name}"));
            }
            for file in ["cgroup.procs", "cgroup.controllers", "tasks"] {
                if let Ok(bytes) = sandbox.read_file(&format!("{path}/{file}"), 0, Some(64)).await {
                    reached.push(format!("read {name}/{file}: {:?}", String::from_utf8_lossy(&bytes)));
                }
            }
        }
        assert!(reached.is_empty(), "{}", reached.join("\n"));
    });
}

#[test]
fn a_directory_that_becomes_a_link_in_between_leads_nowhere() {
    const ROUNDS: usize = 2000;
    with_box(async |inside| {
        let host = inside.host();
        std::fs::write(host.join("f"), OUTSIDE).expect("the scratch directory can be written");
        let line = format!("mkdir -p race/dir; echo inside > race/dir/f; ln -s {} race/link", host.display());
        assert!(inside.sh(&line).await.report.exit.success());
        let swapper = inside.in_background(&format!("{PROBE} act swap race/dir race/link")).await;
        let (mut inside_seen, mut nowhere) = (0, 0);
        for round in 0..ROUNDS {
            match inside.sandbox.read_file("/tmp/race/dir/f", 0, None).await {
                Ok(bytes) => {
                    assert_eq!(bytes, b"inside\n", "round {round}");
                    inside_seen += 1;
                }
                Err(_) => nowhere += 1,
            }
            let _ = inside.sandbox.write_file("/tmp/race/dir/w", b"x", None).await;
            assert!(!host.join("w").exists(), "round {round}");
            if round % 100 == 0 {
                let to = tempfile::tempdir().expect("/tmp can be written");
                let _ = inside.sandbox.copy_out("/tmp/race", &to.path().join("out")).await;
                assert!(!holds(to.path(), OUTSIDE), "round {round}");
                let _ = inside.sandbox.copy_in(to.path(), "/tmp/race/dir/").await;
                let left: Vec<_> = std::fs::read_dir(host).expect("it is ours").collect();
                assert_eq!(left.len(), 1, "round {round}: {left:?}");
            }
        }
        inside.sandbox.kill_exec(swapper).await.expect("it runs");
        // Both sides of the race were met.
        assert!(inside_seen > 0 && nowhere > 0, "{inside_seen} times inside, {nowhere} times nowhere");
        eprintln!(
            "{ROUNDS} rounds: {inside_seen} times the box's file, {nowhere} times nowhere, never the host's"
        );
    });
}

/// Whether a regular file of the tree holds the text. Links are not followed.
fn holds(dir: &Path, text: &str) -> bool {
    std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).any(|entry| {
        let kind = entry.file_type().expect("it is there");
        match () {
            () if kind.is_dir() => holds(&entry.path(), text),
            () if kind.is_file() => std::fs::read(entry.path()).is_ok_and(|bytes| bytes == text.as_bytes()),
            () => false,
        }
    })
}

#[test]
fn what_is_no_file_is_refused_and_holds_up_nothing() {
    with_box(async |inside| {
        let line = format!(
            "{PROBE} act node fifo fifo && {PROBE} act node socket socket && mkdir dir && ln -s b a && ln -s a b"
        );
        assert!(inside.sh(&line).await.report.exit.success());
        let to = inside.host().join("copy");
        for path in [
            "/tmp/fifo",
            "/tmp/socket",
            "/tmp/a",
            "/dev/zero",
            "/dev/tty",
            "/dev/pts/ptmx",
            "/dev/ptmx",
            "/dev/random",
        ] {
            inside.sandbox.read_file(path, 0, None).await.expect_err(path);
            inside.sandbox.copy_out(path, &to).await.expect_err(path);
            inside.sandbox.append_file(path, b"x").await.expect_err(path);
            assert!(!to.exists(), "{path}");
        }
        inside.sandbox.read_file("/tmp/dir", 0, None).await.expect_err("it is a directory");
        inside.sandbox.write_file("/tmp/dir", b"x", None).await.expect_err("it is a directory");
        inside.sandbox.list_dir("/tmp/fifo", None, None).await.expect_err("it is no directory");
        inside.sandbox.list_dir("/tmp/a", None, None).await.expect_err("it is a loop");
        // Writing puts a file in its place, or refuses; it does not wait for a reader.
        let _ = inside.sandbox.write_file("/tmp/fifo", b"x", None).await;
        assert!(inside.sh("true").await.report.exit.success());
    });
}

#[test]
fn files_of_the_guests_own_process_are_refused_or_bounded() {
    with_box(async |inside| {
        for path in [
            "/proc/self/mem",
            "/proc/self/environ",
            "/proc/1/environ",
            "/proc/kmsg",
            "/proc/kcore",
            "/proc/self/pagemap",
        ] {
            // Memory that holds what callers sent is no file of the box.
            if let Ok(bytes) = inside.sandbox.read_file(path, 0, Some(1 << 20)).await {
                assert!(bytes.is_empty(), "{path}: {} bytes", bytes.len());
            }
        }
        let endless = inside.sandbox.read_file("/dev/zero", 0, Some(64)).await;
        assert!(endless.is_err(), "{endless:?}");
    });
}
