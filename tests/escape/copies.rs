//! Copies of files and trees out of a box: bounded, whole or an error, and without what could bite; and who else may
//! look where they lie. (6.2: 69, 70, 77, 83.)

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use glasshouse_sandbox::ErrorKind;
use glasshouse_tests::{Mode, ORDINARY, is_root};

use crate::attacker::{Attacker, PROBE};
use crate::library::with_box;

#[test]
fn a_file_that_claims_to_be_endless_is_read_in_bounds() {
    with_box(async |inside| {
        if !inside.sh("truncate -s 1T sparse").await.report.exit.success() {
            assert!(inside.sh("truncate -s 1G sparse").await.report.exit.success());
            eprintln!("cannot be shown here: a file of 1 TiB (the disk knows none; 1 GiB is taken instead)");
        }
        let part =
            inside.sandbox.read_file("/tmp/sparse", 1 << 29, Some(4096)).await.expect("a part can be read");
        assert_eq!(part, vec![0; 4096]);
        let whole = inside.sandbox.read_file("/tmp/sparse", 0, None).await.expect_err("it is too large");
        assert_eq!(whole.kind(), ErrorKind::Limit, "{whole}");
        // Nor is the host's disk filled with what is not there.
        let to = inside.host().join("sparse");
        if let Err(error) = inside.sandbox.copy_out("/tmp/sparse", &to).await {
            eprintln!("a file of 1 TiB is not copied out: {error}");
        }
        assert!(
            disk_bytes(inside.host()) < 1 << 20,
            "{} bytes of the host's disk",
            disk_bytes(inside.host())
        );
    });
}

/// What a tree takes of the disk.
fn disk_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::symlink_metadata(path).expect("it is there");
    let below = |entries: std::fs::ReadDir| {
        entries.filter_map(Result::ok).map(|entry| disk_bytes(&entry.path())).sum()
    };
    let below: u64 = if meta.is_dir() { std::fs::read_dir(path).map_or(0, below) } else { 0 };
    meta.blocks() * 512 + below
}

#[test]
fn holes_stay_holes() {
    with_box(async |inside| {
        let line = "mkdir t; truncate -s 100M t/s; printf end >> t/s; cp --sparse=always t/s s";
        assert!(inside.sh(line).await.report.exit.success());
        for from in ["/tmp/s", "/tmp/t"] {
            let to = inside.host().join("out");
            inside.sandbox.copy_out(from, &to).await.expect("100 MiB can be copied");
            let file = if to.is_dir() { to.join("s") } else { to.clone() };
            let bytes = std::fs::read(&file).expect("it was copied");
            assert!(
                bytes.len() == (100 << 20) + 3 && bytes.ends_with(b"\0end"),
                "{from}: {} bytes",
                bytes.len()
            );
            let taken = disk_bytes(&to);
            assert!(
                taken < 10 << 20,
                "{from}: a box that wrote nothing took {taken} bytes of the host's disk"
            );
            let _ = std::fs::remove_file(&to);
        }
    });
}

#[test]
fn a_file_that_grows_is_read_to_where_it_was() {
    with_box(async |inside| {
        // Not as fast as can be: on a busy machine there would be gigabytes to copy, and no disk left.
        let grow = "while :; do echo a line that is of some length and is written one at a time; done";
        let grower = inside.in_background(&format!("{grow} > grow")).await;
        inside.sh("until [ $(stat -c %s grow) -gt 100000 ]; do :; done").await;
        let to = inside.host().join("grown");
        inside.sandbox.copy_out("/tmp/grow", &to).await.expect("it can be copied");
        let copied = std::fs::metadata(&to).expect("it was copied").len();
        assert!(copied >= 100_000, "{copied}");
        // It was not the end of it.
        inside.sh(&format!("until [ $(stat -c %s grow) -gt {copied} ]; do :; done")).await;
        inside.sandbox.kill_exec(grower).await.expect("it runs");
        // In a tree, too, where its size is said before its content.
        let tree = inside.in_background(&format!("mkdir t; {grow} > t/grow")).await;
        inside.sh("until [ -s t/grow ]; do :; done").await;
        inside.sandbox.copy_out("/tmp/t", &inside.host().join("t")).await.expect("it can be copied");
        inside.sandbox.kill_exec(tree).await.expect("it runs");
        inside.sh("rm -rf grow t").await;
    });
}

#[test]
fn a_tree_comes_out_without_what_could_bite() {
    for attacker in Attacker::everywhere() {
        let line = format!(
            "mkdir -p t/sub && cd t && cp {PROBE} suid && chmod 6755 suid && ln -s /etc/shadow link && ln -s .. up && \
             {PROBE} act node fifo fifo && {PROBE} act node socket socket && echo x > ./-rf && \
             printf x > \"$(printf 'esc\\033]0;t\\007\\nline')\" && printf x > \"$(printf '\\377\\376')\" && \
             echo x > sub/file && ln sub/file sub/hard && mkdir closed && echo x > closed/f && chmod 500 closed && \
             touch -d @99999999999 old; chmod 000 old; true"
        );
        attacker.sh(&line).text();
        let dir = tempfile::tempdir_in(attacker.house.home().parent().expect("below the house"))
            .expect("it is ours");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).expect("it is ours");
        let to = dir.path().join("out");
        let ran = attacker.glass(&["cp", &format!("{}:/tmp/t", attacker.id), &to.to_string_lossy()]);
        // A file that the box's user may not read himself may make it fail; what came is harmless in any case.
        assert!(ran.code == 0 || ran.err.contains("Permission denied"), "{}: {ran:?}", attacker.name());
        assert!(!ran.err.contains('\x1b'), "{}: {ran:?}", attacker.name());
        let mut seen = 0;
        check_harmless(&to, &mut seen);
        assert!(seen >= 5, "{}: {seen} came out: {ran:?}", attacker.name());
        let left: Vec<_> =
            std::fs::read_dir(dir.path()).expect("it is ours").filter_map(Result::ok).collect();
        assert_eq!(left.len(), 1, "{}: {left:?}", attacker.name());
        // Directories that were closed inside must not keep their owner from removing them.
        std::fs::remove_dir_all(&to).expect("root or the owner can remove it");
    }
}

fn check_harmless(dir: &Path, seen: &mut usize) {
    for entry in std::fs::read_dir(dir).expect("it was copied").filter_map(Result::ok) {
        *seen += 1;
        let path = entry.path();
        let meta = std::fs::symlink_metadata(&path).expect("it is there");
        let kind = meta.file_type();
        assert!(
            !kind.is_fifo() && !kind.is_socket() && !kind.is_char_device() && !kind.is_block_device(),
            "{path:?}"
        );
        assert!(kind.is_symlink() || meta.permissions().mode() & 0o7000 == 0, "{path:?}");
        if kind.is_symlink() {
            assert_eq!(
                path.file_name() == Some("link".as_ref()),
                std::fs::read_link(&path).ok() == Some("/etc/shadow".into())
            );
        } else if kind.is_dir() {
            check_harmless(&path, seen);
        }
    }
}

#[test]
fn a_copy_whose_worker_was_killed_is_no_success() {
    for attacker in Attacker::each_mode(&[]) {
        attacker.sh("mkdir t; for i in $(seq 200); do head -c 50000 /dev/zero > t/$i; done").text();
        let all = |dir: &Path| std::fs::read_dir(dir).map_or(0, |entries| entries.count());
        let killer = "while :; do kill -9 -1; done";
        // The killer kills everything of its user, the workers of a copy among it.
        let mut child =
            attacker.glass_piped(&["exec", &attacker.id, "--timeout", "20s", "--shell", "--", killer]);
        let mut cut = 0;
        for round in 0..10 {
            let to = attacker.house.path().join(format!("copy-{}-{round}", attacker.id));
            std::fs::create_dir(&to).expect("the house is ours");
            std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
            let ran = attacker.glass(&["cp", &format!("{}:/tmp/t", attacker.id), &to.to_string_lossy()]);
            match ran.code {
                0 => assert_eq!(all(&to.join("t")), 200, "{}: {ran:?}", attacker.name()),
                _ => {
                    assert!(!ran.err.is_empty(), "{}: {ran:?}", attacker.name());
                    cut += 1;
                }
            }
            std::fs::remove_dir_all(&to).expect("root or the owner can remove it");
        }
        child.kill().expect("it was started");
        child.wait().expect("it was started");
        eprintln!("{}: {cut} of 10 copies were cut short, and said so", attacker.name());
        attacker.assert_alive();
    }
}

#[test]
fn another_user_of_the_host_cannot_read_the_state_directory() {
    if !is_root() {
        eprintln!("cannot be shown here: only root can become another user");
        return;
    }
    for attacker in Attacker::everywhere() {
        attacker.sh("cp /tmp/probe /tmp/s; chmod 6755 /tmp/s").text();
        let home = attacker.house.home();
        let dir = home.join("boxes").join(&attacker.id);
        let suid = dir.join("top0/u/tmp/s");
        assert!(std::fs::symlink_metadata(&suid).is_ok(), "{} is where the box's files are", suid.display());
        let strangers = if attacker.house.mode == Mode::Root {
            vec![ORDINARY, 65_534]
        } else {
            vec![ORDINARY + 1, 65_534]
        };
        for uid in strangers {
            use std::os::unix::process::CommandExt;
            let stranger = |program: &str, path: &Path| {
                Command::new(program)
                    .arg(path)
                    .uid(uid)
                    .gid(uid)
                    .output()
                    .map(|output| output.status.success())
            };
            for path in [&home, &dir, &dir.join("sock"), &dir.join("box.json"), &home.join("traces"), &suid] {
                assert_eq!(
                    stranger("ls", path).ok(),
                    Some(false),
                    "{}: {} as {uid}",
                    attacker.name(),
                    path.display()
                );
                assert_eq!(
                    stranger("cat", path).ok(),
                    Some(false),
                    "{}: {} as {uid}",
                    attacker.name(),
                    path.display()
                );
            }
            let run = Command::new(&suid).args(["act", "whoami"]).uid(uid).gid(uid).output();
            let denied = run.err().map(|e| e.kind());
            assert_eq!(denied, Some(std::io::ErrorKind::PermissionDenied), "{}", attacker.name());
        }
    }
}
