//! Whole trees, copied into a box and out of it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use glasshouse_sandbox::{ErrorKind, Exit, Sandbox};

use crate::files::noise;
use crate::stage::{Stage, exit_of, on_every_runtime, shell, stdout_of};

on_every_runtime![
    a_tree_comes_back_as_it_went,
    a_tree_in_the_box_is_what_was_copied,
    a_copy_goes_into_a_directory_that_is_there,
    one_file_is_copied_with_its_mode,
    a_source_that_lets_wait_holds_up_nobody,
    a_copy_over_a_tree_replaces_and_adds,
    what_cannot_be_read_is_told,
    what_is_not_there_cannot_be_copied,
    pipes_and_sockets_are_left_out,
    a_tree_of_many_files_is_copied,
];

/// Everything below a directory that a copy has to keep.
fn describe(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let mode = meta.permissions().mode() & 0o7777;
            let words = if meta.is_symlink() {
                format!("link to {:?}", std::fs::read_link(&path).unwrap())
            } else if meta.is_dir() {
                open.push(path.clone());
                format!("directory {mode:o}")
            } else {
                let bytes = std::fs::read(&path).unwrap();
                let sum =
                    bytes.iter().fold(17u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
                format!("file {mode:o} of {} bytes, {sum:x}, from {}", bytes.len(), meta.mtime())
            };
            all.insert(path.strip_prefix(root).unwrap().to_owned(), words);
        }
    }
    all
}

fn make(path: &Path, bytes: &[u8], mode: u32) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A tree with everything in it that is easily lost.
fn odd_tree(root: &Path) -> PathBuf {
    let tree = root.join("tree");
    let long = "long".repeat(50);
    let names =
        ["plain", "with space", "line\nbreak", "ünï字🏠", "-dash", "...", "quote'\"\\", ".hidden", &long];
    for (n, name) in names.iter().enumerate() {
        make(&tree.join(name), &noise(n * 1000, n as u64), 0o644);
        make(&tree.join("dir").join(name).join(name), name.as_bytes(), 0o600);
    }
    make(&tree.join(OsStr::from_bytes(b"no\xff\xfetext")), b"raw", 0o644);
    let deep: PathBuf = std::iter::repeat_n("deep".repeat(40), 10).collect();
    make(&tree.join(deep).join("bottom"), b"deep", 0o644);
    make(&tree.join("big"), &noise(3_000_000, 9), 0o444);
    for mode in [0o400, 0o755, 0o711, 0o666] {
        make(&tree.join(format!("mode {mode:o}")), b"x", mode);
    }
    for (name, mode) in [("empty", 0o755), ("empty 700", 0o700), ("empty 1777", 0o777)] {
        std::fs::create_dir(tree.join(name)).unwrap();
        std::fs::set_permissions(tree.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    symlink("plain", tree.join("link")).unwrap();
    symlink("dir", tree.join("link to dir")).unwrap();
    symlink("/nowhere/at all", tree.join("dangling")).unwrap();
    symlink("../outside", tree.join("dir/up")).unwrap();
    symlink("t".repeat(300), tree.join("far")).unwrap();
    tree
}

fn check_same(copy: &Path, expected: &BTreeMap<PathBuf, String>) {
    let copy = describe(copy);
    for (path, words) in expected {
        assert_eq!(copy.get(path), Some(words), "{}", path.display());
    }
    let more: Vec<_> = copy.keys().filter(|path| !expected.contains_key(*path)).collect();
    assert!(more.is_empty(), "{more:?} came from nowhere");
}

async fn a_tree_comes_back_as_it_went(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let tree = odd_tree(stage.dir());
    sandbox.copy_in(&tree, "copy").await.unwrap();
    let back = stage.dir().join("back");
    sandbox.copy_out("copy", &back).await.unwrap();
    check_same(&back, &describe(&tree));
}

async fn a_tree_in_the_box_is_what_was_copied(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let tree = odd_tree(stage.dir());
    sandbox.copy_in(&tree, "copy").await.unwrap();
    let list = "find . -mindepth 1 -printf '%y %m %s %l %P\\0' | LC_ALL=C sort -z | od -An -v -tx1";
    let inside = stdout_of(&sandbox, &format!("cd copy; {list}")).await;
    // The same question, asked outside. A directory's own size is the file system's affair.
    let list = list.replace("%s ", "");
    let inside_bare = stdout_of(&sandbox, &format!("cd copy; {list}")).await;
    let outside = std::process::Command::new("sh").args(["-c", &list]).current_dir(&tree).output().unwrap();
    assert_eq!(inside_bare, String::from_utf8(outside.stdout).unwrap());
    assert!(inside.len() > 10_000, "all of it was looked at");
    let own = stdout_of(&sandbox, "find copy ! -uid $(id -u) -o ! -gid $(id -g)").await;
    assert_eq!(own, "", "all of it is the box's user's");
}

async fn a_copy_goes_into_a_directory_that_is_there(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    make(&stage.dir().join("some/file"), b"x", 0o644);
    let some = stage.dir().join("some");
    sandbox.copy_in(&some, "new").await.unwrap();
    sandbox.copy_in(&some, "new").await.unwrap();
    sandbox.copy_in(&some.join("file"), "new").await.unwrap();
    sandbox.copy_in(&some.join("file"), "renamed").await.unwrap();
    let expected = ".\n./new\n./new/file\n./new/some\n./new/some/file\n./renamed\n";
    assert_eq!(stdout_of(&sandbox, "find | LC_ALL=C sort").await, expected);
    let out = stage.dir().join("out");
    std::fs::create_dir(&out).unwrap();
    sandbox.copy_out("new", &out).await.unwrap();
    sandbox.copy_out("renamed", &out).await.unwrap();
    sandbox.copy_out("new/some", &stage.dir().join("fresh")).await.unwrap();
    for path in ["out/new/some/file", "out/renamed", "fresh/file"] {
        assert_eq!(std::fs::read(stage.dir().join(path)).unwrap(), b"x", "{path}");
    }
}

async fn one_file_is_copied_with_its_mode(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    make(&stage.dir().join("script"), b"#!/bin/sh\necho ran\n", 0o755);
    sandbox.copy_in(&stage.dir().join("script"), "script").await.unwrap();
    assert_eq!(stdout_of(&sandbox, "./script; stat -c %a script").await, "ran\n755\n");
    let back = stage.dir().join("back");
    sandbox.copy_out("script", &back).await.unwrap();
    assert_eq!(back.metadata().unwrap().permissions().mode() & 0o777, 0o755);
}

async fn a_source_that_lets_wait_holds_up_nobody(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let pipe = stage.dir().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    // In one task, in this order: who waited there for the pipe would wait for ever.
    let to = pipe.clone();
    let write = async { tokio::task::spawn_blocking(move || std::fs::write(to, b"late")).await };
    let (copied, written) = tokio::join!(sandbox.copy_in(&pipe, "copy"), write);
    written.unwrap().unwrap();
    copied.unwrap();
    assert_eq!(stdout_of(&sandbox, "cat copy").await, "late");
}

async fn a_copy_over_a_tree_replaces_and_adds(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    make(&stage.dir().join("tree/both"), b"new", 0o600);
    make(&stage.dir().join("tree/was a link"), b"new", 0o644);
    make(&stage.dir().join("tree/added"), b"new", 0o644);
    let line = "mkdir tree; cd tree; echo old > both; echo kept > kept; echo target > target; ln -s target 'was a link'";
    stdout_of(&sandbox, line).await;
    sandbox.copy_in(&stage.dir().join("tree"), ".").await.unwrap();
    let seen = stdout_of(&sandbox, "cd tree; cat added both kept target 'was a link'; stat -c %a both").await;
    assert_eq!(seen, "newnewkept\ntarget\nnew600\n", "a link in the way is replaced and not followed");
}

async fn what_cannot_be_read_is_told(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    stdout_of(&sandbox, "mkdir tree; echo x > tree/open; echo x > tree/closed; chmod 000 tree/closed").await;
    let readable = exit_of(&sandbox, shell("cat tree/closed 2> /dev/null")).await == Exit::Code { code: 0 };
    let copied = sandbox.copy_out("tree", &stage.dir().join("out")).await;
    assert_eq!(copied.is_ok(), readable, "{copied:?}");
    if let Err(error) = copied {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("closed"), "the message names it: {error}");
    }
}

async fn what_is_not_there_cannot_be_copied(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let missing = stage.dir().join("missing");
    assert_eq!(sandbox.copy_in(&missing, "x").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(sandbox.copy_out("missing", &missing).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!missing.exists(), "nothing is made of nothing");
    make(&stage.dir().join("file"), b"x", 0o644);
    let error = sandbox.copy_in(&stage.dir().join("file"), "no/such/dir/file").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(stdout_of(&sandbox, "ls -A").await, "");
}

async fn pipes_and_sockets_are_left_out(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    stdout_of(&sandbox, "mkdir tree; mkfifo tree/pipe; echo x > tree/file").await;
    let out = stage.dir().join("out");
    sandbox.copy_out("tree", &out).await.unwrap();
    assert_eq!(describe(&out).into_keys().collect::<Vec<_>>(), [PathBuf::from("file")]);
    let error = sandbox.copy_out("tree/pipe", &stage.dir().join("pipe")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(!stage.dir().join("pipe").exists());
}

async fn a_tree_of_many_files_is_copied(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    make_many(&sandbox).await;
    let out = stage.dir().join("out");
    sandbox.copy_out("many", &out).await.unwrap();
    assert_eq!(describe(&out).len(), 20 * 151);
    sandbox.copy_in(&out, "again").await.unwrap();
    assert_eq!(exit_of(&sandbox, shell("diff -r many again")).await, Exit::Code { code: 0 });
}

async fn make_many(sandbox: &Sandbox) {
    let line = "for d in $(seq 20); do mkdir -p many/$d; for f in $(seq 150); do echo $d $f > many/$d/$f; done; done";
    stdout_of(sandbox, line).await;
}
