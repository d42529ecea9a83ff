//! Contents of files: read in ranges, written whole or not at all.

use std::os::unix::fs::PermissionsExt;
use std::task::Poll;

use glasshouse_linux::process::signal_pid;
use glasshouse_sandbox::{ErrorKind, ExecSpec, Exit, FileKind, Sandbox};

use crate::follow::Follow;
use crate::stage::{Stage, exit_of, on_every_runtime, perl, settle, shell, stdout_of, within};

on_every_runtime![
    what_is_written_is_read,
    ranges_are_read,
    a_far_place_of_a_huge_file_is_read,
    a_reader_never_sees_half_a_file,
    a_write_that_is_given_up_leaves_nothing,
    a_call_that_stands_still_holds_up_nobody,
    a_mode_is_set_or_kept,
    directories_above_are_made,
    a_file_behind_a_link_is_written_and_the_link_stays,
    what_is_added_comes_to_the_end,
    a_big_file_makes_the_round_trip,
    what_is_no_file_is_neither_read_nor_written,
    what_is_not_there_is_not_found,
    paths_that_make_no_sense_are_refused,
    what_the_boxs_user_may_not_read_is_denied,
    what_the_boxs_user_may_not_write_is_denied,
    files_belong_to_the_boxs_user,
    files_are_touched_as_any_user_of_the_box,
    root_gives_files_away_and_nobody_else_does,
    odd_names_are_names,
    files_without_a_size_are_read,
];

/// Bytes that nothing on the way can guess or squeeze.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| next()).collect();
    bytes.truncate(length);
    bytes
}

async fn what_is_written_is_read(sandbox: &Sandbox) {
    for bytes in [Vec::new(), b"\0\xff\xfe text \n".to_vec(), noise(1_000_000, 7)] {
        sandbox.write_file("file", &bytes, None).await.unwrap();
        assert!(sandbox.read_file("file", 0, None).await.unwrap() == bytes, "{} bytes", bytes.len());
        assert_eq!(stdout_of(sandbox, "wc -c < file").await.trim(), bytes.len().to_string());
        let absolute = format!("{}/file", sandbox.info().cwd);
        assert_eq!(sandbox.stat(&absolute, false).await.unwrap().size, bytes.len() as u64);
    }
}

async fn ranges_are_read(sandbox: &Sandbox) {
    let bytes = noise(300_000, 3);
    sandbox.write_file("file", &bytes, None).await.unwrap();
    let check = async |offset: usize, length: Option<usize>| {
        let seen = sandbox.read_file("file", offset as u64, length.map(|n| n as u64)).await.unwrap();
        let from = offset.min(bytes.len());
        let to = length.map_or(bytes.len(), |n| from.saturating_add(n).min(bytes.len()));
        assert!(seen == bytes[from..to], "{} bytes from {offset}, {length:?}", seen.len());
    };
    let places = [0, 1, 65_535, 65_536, 65_537, 299_999, 300_000, 300_001, usize::MAX];
    for offset in places {
        for length in [None, Some(0), Some(1), Some(65_536), Some(200_000), Some(usize::MAX)] {
            check(offset, length).await;
        }
    }
}

async fn a_far_place_of_a_huge_file_is_read(sandbox: &Sandbox) {
    stdout_of(sandbox, "truncate -s 1T huge && printf end >> huge").await;
    assert_eq!(sandbox.read_file("huge", (1 << 40) - 1, Some(100)).await.unwrap(), b"\0end");
    // The whole of it is more than anybody holds in memory, and that is said before it is tried for long.
    assert_eq!(sandbox.read_file("huge", 0, None).await.unwrap_err().kind(), ErrorKind::Limit);
    sandbox.remove_file("huge", false).await.unwrap();
}

async fn a_reader_never_sees_half_a_file(sandbox: &Sandbox) {
    const SIZE: usize = 200_000;
    let content = |round: usize| vec![b'a' + (round % 26) as u8; SIZE];
    sandbox.write_file("file", &content(0), None).await.unwrap();
    // Reads until told to stop; anything but one letter, all over and all along, ends it at once.
    let script = format!(
        r#"$| = 1; print "reading\n"; until (-e 'stop') {{
            open F, '<', 'file' or die 'gone'; local $/; my $x = <F>; my $c = substr $x, 0, 1;
            exit 9 unless length $x == {SIZE} && $x eq $c x {SIZE}; $n++ }} print "$n\n""#
    );
    let mut reader = Follow::start(sandbox, perl(&script)).await;
    assert_eq!(reader.line().await, "reading");
    for round in 1..200 {
        sandbox.write_file("file", &content(round), None).await.unwrap();
    }
    sandbox.write_file("stop", b"", None).await.unwrap();
    assert_eq!(reader.end().await.exit, Exit::Code { code: 0 }, "{reader:?}");
    assert_eq!(stdout_of(sandbox, "ls -A").await, "file\nstop\n", "nothing half is left");
}

async fn a_write_that_is_given_up_leaves_nothing(sandbox: &Sandbox) {
    let bytes = noise(8 << 20, 5);
    let mut broken_off = 0;
    for path in ["file", "new"] {
        // In all the places where it can be: before the first word, between two pieces, within one.
        for waits in 1..12 {
            sandbox.write_file("file", b"old", None).await.unwrap();
            let given_up = give_up_after(waits, sandbox.write_file(path, &bytes, None)).await;
            settle("nothing half is left", async || !stdout_of(sandbox, "ls -A").await.contains('~')).await;
            match sandbox.read_file(path, 0, None).await {
                // It was done before it had to wait so often, or its last word had been said: then it is there, whole.
                Ok(found) if found == bytes => sandbox.remove_file(path, false).await.unwrap(),
                Ok(found) => {
                    assert!(path == "file" && found == b"old" && given_up, "after {waits} waits");
                    broken_off += 1;
                }
                Err(e) => {
                    let nothing = path == "new" && e.kind() == ErrorKind::NotFound;
                    assert!(nothing && given_up, "after {waits} waits: {e}");
                    broken_off += 1;
                }
            }
        }
    }
    assert!(broken_off > 0, "every one of them was faster than its end");
}

async fn a_call_that_stands_still_holds_up_nobody(sandbox: &Sandbox) {
    sandbox.write_file("file", b"here", None).await.unwrap();
    // A guest that stands still leaves the way to it full, with a half of something at its end.
    let guest = sandbox.info().pid;
    signal_pid(guest, 19).unwrap();
    let long = "x".repeat(100_000);
    let mut calls: Vec<_> = (0..8).map(|_| Box::pin(sandbox.stat(&long, false))).collect();
    std::future::poll_fn(|context| {
        for call in &mut calls {
            assert!(call.as_mut().poll(context).is_pending(), "a box that stands still has answered");
        }
        Poll::Ready(())
    })
    .await;
    signal_pid(guest, 18).unwrap();
    // Some are given up, some are kept and not asked again; the rest goes on as if they were not there.
    calls.truncate(4);
    let read = within("the box answers", sandbox.read_file("file", 0, None)).await;
    assert_eq!(read.unwrap(), b"here");
    for call in calls {
        let refused = within("it is answered when it is asked again", call).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    }
}

/// Drops some work when it has had to wait so many times. Whether it came to that.
async fn give_up_after(waits: usize, work: impl Future) -> bool {
    let mut work = std::pin::pin!(work);
    let mut polls = 0;
    std::future::poll_fn(|context| {
        if work.as_mut().poll(context).is_ready() {
            return Poll::Ready(false);
        }
        polls += 1;
        if polls < waits { Poll::Pending } else { Poll::Ready(true) }
    })
    .await
}

async fn a_mode_is_set_or_kept(sandbox: &Sandbox) {
    let mode = async || sandbox.stat("file", false).await.unwrap().mode;
    sandbox.write_file("file", b"1", None).await.unwrap();
    assert_eq!(mode().await, 0o644, "an ordinary file");
    sandbox.write_file("file", b"2", Some(0o750)).await.unwrap();
    assert_eq!(mode().await, 0o750, "the mode that was asked for");
    sandbox.write_file("file", b"3", None).await.unwrap();
    assert_eq!(mode().await, 0o750, "the mode that it had");
    sandbox.chmod("file", 0o604).await.unwrap();
    assert_eq!(stdout_of(sandbox, "stat -c %a file; cat file").await, "604\n3");
    sandbox.append_file("file", b"4").await.unwrap();
    assert_eq!(mode().await, 0o604);
}

async fn directories_above_are_made(sandbox: &Sandbox) {
    sandbox.write_file("a/b/c/file", b"deep", None).await.unwrap();
    assert_eq!(stdout_of(sandbox, "cat a/b/c/file; stat -c %a a/b/c").await, "deep755\n");
    sandbox.write_file("a/plain", b"", None).await.unwrap();
    let error = sandbox.write_file("a/plain/below", b"", None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

async fn a_file_behind_a_link_is_written_and_the_link_stays(sandbox: &Sandbox) {
    stdout_of(
        sandbox,
        "mkdir real; echo old > real/file; ln -s real/file near; ln -s near far; ln -s real/new open",
    )
    .await;
    sandbox.write_file("far", b"new", None).await.unwrap();
    sandbox.write_file("open", b"made", None).await.unwrap();
    assert_eq!(
        stdout_of(sandbox, "cat real/file real/new; readlink far near open").await,
        "newmadenear\nreal/file\nreal/new\n"
    );
    stdout_of(sandbox, "ln -s loop loop").await;
    let error = sandbox.write_file("loop", b"x", None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

async fn what_is_added_comes_to_the_end(sandbox: &Sandbox) {
    sandbox.append_file("log", b"one\n").await.unwrap();
    sandbox.append_file("log", b"two\n").await.unwrap();
    sandbox.append_file("log", b"").await.unwrap();
    sandbox.append_file("log", &noise(300_000, 1)).await.unwrap();
    assert_eq!(sandbox.read_file("log", 0, Some(8)).await.unwrap(), b"one\ntwo\n");
    assert_eq!(sandbox.stat("log", false).await.unwrap().size, 300_008);
    assert_eq!(sandbox.append_file("missing/log", b"x").await.unwrap_err().kind(), ErrorKind::NotFound);
}

async fn a_big_file_makes_the_round_trip(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let bytes = noise(64 << 20, 42);
    sandbox.write_file("big", &bytes, None).await.unwrap();
    assert!(sandbox.read_file("big", 0, None).await.unwrap() == bytes, "through memory");
    let (from, to) = (stage.dir().join("from"), stage.dir().join("to"));
    std::fs::write(&from, &bytes).unwrap();
    std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o751)).unwrap();
    sandbox.copy_in(&from, "copy").await.unwrap();
    assert_eq!(exit_of(&sandbox, shell("cmp big copy")).await, Exit::Code { code: 0 });
    sandbox.copy_out("copy", &to).await.unwrap();
    assert!(std::fs::read(&to).unwrap() == bytes, "through files");
    assert_eq!(to.metadata().unwrap().permissions().mode() & 0o777, 0o751);
}

async fn what_is_no_file_is_neither_read_nor_written(sandbox: &Sandbox) {
    stdout_of(sandbox, "mkdir dir; mkfifo pipe; ln -s pipe link").await;
    for path in ["dir", "pipe", "link", "/dev/null", "/"] {
        let error = sandbox.read_file(path, 0, None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "read {path}: {error}");
        let error = sandbox.write_file(path, b"x", None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "write {path}: {error}");
        let error = sandbox.append_file(path, b"x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "append {path}: {error}");
    }
    assert_eq!(stdout_of(sandbox, "ls -A; stat -c %F pipe").await, "dir\nlink\npipe\nfifo\n");
}

async fn what_is_not_there_is_not_found(sandbox: &Sandbox) {
    stdout_of(sandbox, "ln -s nowhere dangling").await;
    for path in ["missing", "missing/below", "/nowhere/at/all", "dangling"] {
        let error = sandbox.read_file(path, 0, None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{path}: {error}");
        assert!(error.to_string().contains(path), "the message names it: {error}");
        assert_eq!(sandbox.stat(path, true).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(sandbox.list_dir(path, None, None).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
}

async fn paths_that_make_no_sense_are_refused(sandbox: &Sandbox) {
    for path in ["", "a\0b", &"x/".repeat(3000), &"n".repeat(300)] {
        let error = sandbox.write_file(path, b"", None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{:.20}: {error}", path);
        let error = sandbox.stat(path, false).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{:.20}: {error}", path);
    }
}

async fn files_are_touched_as_any_user_of_the_box(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    if !stage.has_root() {
        let error = sandbox.as_user("1234:77").write_file("/tmp/file", b"x", None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "there is only one user: {error}");
        return;
    }
    let other = sandbox.as_user("1234:77");
    other.write_file("/tmp/dir/file", b"of 1234", Some(0o600)).await.unwrap();
    let stat = sandbox.stat("/tmp/dir/file", false).await.unwrap();
    assert_eq!((stat.uid, stat.gid, stat.mode), (1234, 77, 0o600));
    assert_eq!(sandbox.read_file("/tmp/dir/file", 0, None).await.unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(other.read_file("/tmp/dir/file", 0, None).await.unwrap(), b"of 1234");
    assert_eq!(stdout_of(&other, "cd /tmp; id -u; id -g; cat dir/file").await, "1234\n77\nof 1234");
    assert_eq!(sandbox.remove_file("/tmp/dir", true).await.unwrap_err().kind(), ErrorKind::Denied);
    other.remove_file("/tmp/dir", true).await.unwrap();
    // Root in another group is root.
    let root = sandbox.as_user("0:77");
    root.make_dir("/in-the-root", false).await.unwrap();
    let stat = sandbox.stat("/in-the-root", false).await.unwrap();
    assert_eq!((stat.uid, stat.gid), (0, 77));
}

async fn root_gives_files_away_and_nobody_else_does(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    sandbox.write_file("file", b"x", Some(0o640)).await.unwrap();
    if !stage.has_root() {
        return;
    }
    let error = sandbox.chown("file", Some(65534), None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let root = sandbox.as_user("root");
    root.chown("file", Some(65534), None).await.unwrap();
    let owner = async || {
        let stat = sandbox.stat("file", false).await.unwrap();
        (stat.uid, stat.gid, stat.mode)
    };
    assert_eq!(owner().await, (65534, 1000, 0o640));
    root.chown("file", None, Some(77)).await.unwrap();
    assert_eq!(owner().await, (65534, 77, 0o640));
    // Written anew by root, it stays whose it was.
    root.write_file("file", b"y", None).await.unwrap();
    assert_eq!(owner().await, (65534, 77, 0o640));
    assert_eq!(root.chown("file", Some(u32::MAX), None).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(root.chown("none", Some(1), None).await.unwrap_err().kind(), ErrorKind::NotFound);
}

/// Whether whoever commands of this box are may do anything.
async fn is_all_powerful(sandbox: &Sandbox) -> bool {
    let probe = "rm -rf probe && mkdir -m 0 probe && : > probe/file; status=$?; chmod 700 probe; rm -rf probe; exit $status";
    exit_of(sandbox, shell(&format!("({probe}) 2> /dev/null"))).await.success()
}

async fn what_the_boxs_user_may_not_read_is_denied(sandbox: &Sandbox) {
    sandbox.write_file("secret", b"x", Some(0o000)).await.unwrap();
    sandbox.write_file("closed/file", b"x", None).await.unwrap();
    sandbox.chmod("closed", 0o000).await.unwrap();
    let all_powerful = is_all_powerful(sandbox).await;
    for path in ["secret", "closed/file"] {
        match sandbox.read_file(path, 0, None).await {
            Ok(bytes) => assert!(all_powerful && bytes == b"x", "{path} was read"),
            Err(error) => assert_eq!((error.kind(), all_powerful), (ErrorKind::Denied, false), "{error}"),
        }
    }
    sandbox.chmod("closed", 0o755).await.unwrap();
}

async fn what_the_boxs_user_may_not_write_is_denied(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    sandbox.make_dir("closed", false).await.unwrap();
    sandbox.chmod("closed", 0o555).await.unwrap();
    let written = sandbox.write_file("closed/file", b"x", None).await;
    assert_eq!(written.is_ok(), is_all_powerful(&sandbox).await, "{written:?}");
    if let Err(error) = written {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    if stage.has_root() {
        // Files of the box that are another user's: the guest may do more, and does not use it here.
        for path in ["/etc/passwd", "/usr/bin/env", "/new"] {
            let error = sandbox.write_file(path, b"x", None).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{path}: {error}");
        }
        assert_eq!(sandbox.list_dir("/root", None, None).await.unwrap_err().kind(), ErrorKind::Denied);
    }
}

async fn files_belong_to_the_boxs_user(sandbox: &Sandbox) {
    sandbox.write_file("dir/file", b"", None).await.unwrap();
    let ids = stdout_of(sandbox, "echo $(id -u):$(id -g)").await;
    assert_eq!(stdout_of(sandbox, "stat -c %u:%g dir/file dir").await, ids.repeat(2));
    let stat = sandbox.stat("dir/file", false).await.unwrap();
    assert_eq!(format!("{}:{}\n", stat.uid, stat.gid), ids);
}

async fn odd_names_are_names(sandbox: &Sandbox) {
    let long = "long".repeat(50);
    for name in ["with space", "line\nbreak", "ünï字🏠", "-dash", "*", "$HOME", "'\"\\", "~", "...", &long]
    {
        sandbox.write_file(name, name.as_bytes(), None).await.unwrap();
        let spec = ExecSpec {
            env: vec![("NAME".into(), name.into())],
            ..shell("[ \"$(cat < \"$NAME\")\" = \"$NAME\" ]")
        };
        assert_eq!(exit_of(sandbox, spec).await, Exit::Code { code: 0 }, "{name:?}");
        let stat = sandbox.stat(name, false).await.unwrap();
        assert_eq!((stat.name.as_str(), stat.kind), (name, FileKind::File));
    }
}

async fn files_without_a_size_are_read(sandbox: &Sandbox) {
    let version = sandbox.read_file("/proc/version", 0, None).await.unwrap();
    assert!(version.starts_with(b"Linux version"), "{}", String::from_utf8_lossy(&version));
    assert_eq!(sandbox.read_file("/proc/version", 6, Some(7)).await.unwrap(), b"version");
}
