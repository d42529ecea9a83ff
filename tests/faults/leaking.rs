//! The check for leaks is itself checked: something of each kind is left behind on purpose, seen, and removed.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use glasshouse_linux::descriptor;
use glasshouse_tests::leaks::Leaks;
use glasshouse_tests::{is_root, scratch, skip};

use crate::alone;

/// Leaves something behind, expects a line with all of these words, undoes it, and expects nothing.
fn check<T>(words: &[&str], leave: impl FnOnce(&Path) -> T, undo: impl FnOnce(T)) {
    let _turn = alone();
    let dir = scratch();
    let home = dir.path();
    let before = Leaks::now(home);
    assert_eq!(before.since(home), Vec::<String>::new(), "nothing was left behind yet");
    let left = leave(home);
    let seen = before.since(home);
    undo(left);
    let named = |line: &String| words.iter().all(|word| line.contains(word));
    assert!(seen.iter().any(named), "no line with {words:?} in {seen:#?}");
    before.settle(home).expect("it was removed");
}

/// A program that has said a word, and waits for its stdin to be closed.
fn waiting(command: &str) -> Child {
    let script = format!("{command} sh -c 'echo ready; exec cat'");
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh can be started");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("it was asked for");
    BufReader::new(stdout).read_line(&mut line).expect("a pipe can be read");
    assert_eq!(line, "ready\n", "{command}");
    child
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    child.wait().expect("it is our child");
}

fn needs_root() -> bool {
    if !is_root() {
        skip("native-root", "only root can leave this behind");
    }
    is_root()
}

fn cgroup_tree(kind: &str) -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.contains(&format!(" - {kind} ")))?;
    Some(line.split(' ').nth(4)?.into())
}

#[test]
fn a_process_in_a_namespace_of_its_own_is_seen() {
    check(
        &["process", "process namespace below ours"],
        |_| waiting("exec unshare --user --map-root-user --pid --fork"),
        end,
    );
}

#[test]
fn a_guest_is_seen_by_its_name() {
    let leave = |_: &Path| Command::new("cat").arg0("glass-guest").stdin(Stdio::piped()).spawn().unwrap();
    check(&["process", "is a guest"], leave, end);
}

#[test]
fn a_guest_is_seen_by_what_it_was_executed_from() {
    let leave = |_: &Path| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let program = descriptor::sealed_program("glass-guest", glasshouse_sandbox::guest_program()).unwrap();
        let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
        // It waits for its plan.
        let child = command.arg0("innocent").arg("jail").stdin(OwnedFd::from(theirs)).stderr(Stdio::null());
        (child.spawn().unwrap(), ours)
    };
    let undo = |(mut child, ours): (Child, UnixStream)| {
        drop(ours);
        child.wait().unwrap();
    };
    check(&["process", "is a guest", "innocent"], leave, undo);
}

#[test]
fn a_program_that_runs_on_is_seen() {
    let leave = |_: &Path| {
        let dir = scratch();
        std::os::unix::fs::symlink("/bin/cat", dir.path().join("glass")).unwrap();
        let child = Command::new(dir.path().join("glass")).stdin(Stdio::piped()).spawn().unwrap();
        (child, dir)
    };
    check(&["process", "is the program"], leave, |(child, _dir)| end(child));
}

#[test]
fn a_process_that_nobody_collected_is_seen() {
    use std::os::fd::AsFd;
    let leave = |_: &Path| {
        let child = Command::new("true").spawn().unwrap();
        let pidfd = glasshouse_linux::process::open(child.id() as i32).unwrap();
        assert!(glasshouse_linux::process::wait_end(pidfd.as_fd(), Duration::from_secs(10)).unwrap());
        child
    };
    check(&["process", "nobody has collected it", "state Z"], leave, end);
}

#[test]
fn a_mount_is_seen() {
    if !needs_root() {
        return;
    }
    let mount = |home: &Path| {
        let place = home.to_str().unwrap().to_owned();
        let status = Command::new("mount").args(["-t", "tmpfs", "glass-leak", &place]).status().unwrap();
        assert!(status.success());
        place
    };
    let unmount = |place: String| assert!(Command::new("umount").arg(place).status().unwrap().success());
    check(&["mount", "glass-leak"], mount, unmount);
}

#[test]
fn a_cgroup_is_seen_in_every_tree() {
    if !needs_root() {
        return;
    }
    let trees = ["cgroup", "cgroup2"].into_iter().filter_map(cgroup_tree);
    for tree in trees {
        let make = |_: &Path| {
            let dir = tree.join("glasshouse-leak");
            std::fs::create_dir_all(dir.join("box")).unwrap();
            dir
        };
        let remove = |dir: PathBuf| {
            std::fs::remove_dir(dir.join("box")).unwrap();
            std::fs::remove_dir(dir).unwrap();
        };
        check(&["cgroup", "/glasshouse-leak/box"], make, remove);
    }
}

#[test]
fn a_directory_of_a_box_is_seen() {
    for part in ["boxes", "trash", "uids", "names"] {
        let make = |home: &Path| {
            let path = home.join(part).join("leak");
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        check(&["file", part, "leak"], make, |path| std::fs::remove_dir(path).unwrap());
    }
}

#[test]
fn a_stray_file_in_the_home_is_seen() {
    let make = |home: &Path| {
        let path = home.join("stray");
        std::fs::write(&path, "").unwrap();
        path
    };
    check(&["file", "stray"], make, |path| std::fs::remove_file(path).unwrap());
}

#[test]
fn an_open_descriptor_is_seen() {
    check(&["descriptor", "/dev/null"], |_| File::open("/dev/null").unwrap(), drop);
}

#[test]
fn a_descriptor_of_the_home_in_another_process_is_seen() {
    let leave = |home: &Path| {
        let path = home.join("lock");
        File::create(&path).unwrap();
        waiting(&format!("exec 9<{}; exec", path.display()))
    };
    check(&["descriptor of", "/lock in process"], leave, end);
}

#[test]
fn namespaces_are_seen() {
    for (option, word) in [("--net", "net:["), ("--mount", "mnt:["), ("--ipc", "ipc:["), ("--uts", "uts:[")] {
        let user = if is_root() { "" } else { "--user --map-root-user" };
        check(&["namespace", word], |_| waiting(&format!("exec unshare {user} {option}")), end);
    }
    check(&["namespace", "user:["], |_| waiting("exec unshare --user"), end);
}

#[test]
fn a_namespace_that_only_a_descriptor_holds_is_seen() {
    if !needs_root() {
        return;
    }
    let leave = |_: &Path| {
        let first = waiting("exec unshare --net");
        let holder = waiting(&format!("exec 9</proc/{}/ns/net; exec", first.id()));
        end(first);
        holder
    };
    check(&["namespace", "net:[", "held open by"], leave, end);
}

#[test]
fn what_does_not_go_away_is_told_in_a_list_after_the_limit() {
    let _turn = alone();
    let dir = scratch();
    let before = Leaks::now(dir.path());
    let _left = File::open("/dev/null").unwrap();
    std::fs::create_dir_all(dir.path().join("boxes/leak")).unwrap();
    let told = before.settle_within(dir.path(), Duration::ZERO).unwrap_err();
    assert!(
        told.starts_with("left behind:\n") && told.contains("/dev/null") && told.contains("boxes/leak"),
        "{told}"
    );
}
