//! The same on other file systems: in memory, on one that clones files and on one that does not; and what is left of states
//! when the power goes.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use glasshouse_linux::process;
use glasshouse_tests::{House, Mode, is_root, scratch, skip};

use crate::stage::Stage;

/// Sparse, and large enough for the reserve that commands leave the host.
const DISK_BYTES: u64 = 8 << 30;

/// How long what was killed may take to be gone.
const DEATH: Duration = Duration::from_secs(20);

/// All that can be done with a state, once. How a busy box was snapshotted.
fn walk(stage: &Stage) -> String {
    stage.sh("echo one > a; mkdir d; head -c 3000000 /dev/urandom > d/f; truncate -s 1G sparse; ln a b");
    let first = stage.json(&["snapshot", &stage.id]);
    assert_eq!(first["method"], "rotate", "{first}");
    let first = first["id"].as_str().expect("an id").to_owned();
    let digest = stage.ok(&["digest", &first]);
    let forks = stage.ok(&["fork", &first, "-n", "3"]);
    for fork in forks.lines() {
        assert_eq!(stage.ok(&["digest", fork]), digest);
        stage.sh_in(fork, &format!("echo {fork} > a; rm -r d"));
    }
    stage.sh("rm -r d; echo two > a; mv sparse other");
    stage.ok(&["restore", &stage.id, &first]);
    assert_eq!(stage.ok(&["digest", &stage.id]), digest);
    stage.ok(&["exec", &stage.id, "--background", "--shell", "--", "exec 9> open; touch ready; sleep 1000"]);
    stage.sh("until [ -e ready ]; do :; done; echo three > c");
    let busy = stage.json(&["snapshot", &stage.id]);
    let fork = stage.ok(&["fork", busy["id"].as_str().expect("an id")]);
    assert_eq!(
        stage.sh_in(&fork, "cat a b c; cmp d/f d/f; ls"),
        "one\none\nthree\na\nb\nc\nd\nopen\nready\nsparse"
    );
    stage.ok(&["stop", &stage.id]);
    stage.ok(&["start", &stage.id]);
    assert_eq!(stage.sh("cat c"), "three");
    stage.ok(&["reset", &stage.id, "--verify"]);
    stage.ok(&["kill", "--all"]);
    busy["method"].as_str().expect("a method").to_owned()
}

/// A file system for the time of a test.
struct Disk {
    kind: &'static str,
    file: PathBuf,
    place: PathBuf,
}

fn run(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|o| o.status.success())
}

impl Disk {
    fn mount(&self) -> bool {
        let (file, place) = (self.file.to_string_lossy(), self.place.to_string_lossy());
        run("mount", &["-t", self.kind, "-o", "loop", &file, &place])
    }

    /// Whether a loop device stands on the file.
    fn is_in_use(&self) -> bool {
        let found = Command::new("losetup").arg("-j").arg(&self.file).output().expect("losetup is there");
        !found.stdout.is_empty()
    }

    fn unmount(&self) -> bool {
        run("umount", &[&self.place.to_string_lossy()])
    }

    /// What was not on the disk is lost, as when the power goes: the file system is shut down without its journal. The box
    /// that used it is killed, and it is mounted again.
    fn cut_power(&self, first_process: i32) {
        let program = "import fcntl, os, struct, sys\n\
            fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
        let place = self.place.to_string_lossy();
        assert!(run("/usr/bin/python3", &["-c", program, &place]), "the kernel can shut {} down", self.kind);
        let pidfd = process::open(first_process).expect("it lives");
        process::signal(pidfd.as_fd(), 9).expect("it is ours");
        process::wait_end(pidfd.as_fd(), DEATH).expect("it ends");
        let over = Instant::now() + DEATH;
        while !self.unmount() {
            assert!(Instant::now() < over, "something is left on {}", self.kind);
        }
        // The kernel takes a moment longer for what was mounted in the box, and gives the same file system as long.
        while self.is_in_use() {
            assert!(Instant::now() < over, "somebody has {} mounted", self.kind);
        }
        assert!(self.mount(), "{} can be mounted again", self.kind);
    }
}

/// The first process of a box. Asked after all else: the file system knows nothing any more once it is shut down.
fn pid(stage: &Stage, id: &str) -> i32 {
    let pid = stage.json(&["info", id])["pid"].as_i64().expect("it lives");
    i32::try_from(pid).expect("it is one of the kernel's numbers")
}

/// A file system of this kind for the time of `work`. Whether there is one.
fn with_disk(make: &[&str], kind: &'static str, work: impl FnOnce(&Disk)) -> bool {
    let dir = scratch();
    let disk = Disk { kind, file: dir.path().join("disk"), place: dir.path().join("place") };
    std::fs::create_dir(&disk.place).expect("the scratch directory can be written");
    let mounted = match make {
        [] => run("mount", &["-t", kind, "-o", "mode=755", kind, &disk.place.to_string_lossy()]),
        [program, options @ ..] => {
            std::fs::File::create(&disk.file)
                .and_then(|file| file.set_len(DISK_BYTES))
                .expect("the disk has room");
            run(program, &[options, &[&*disk.file.to_string_lossy()]].concat()) && disk.mount()
        }
    };
    if mounted {
        work(&disk);
        assert!(disk.unmount(), "something is left on {kind}");
    }
    mounted
}

#[test]
fn in_memory() {
    if !is_root() {
        skip("disks", "only root can mount a tmpfs");
        return;
    }
    let mounted = with_disk(&[], "tmpfs", |disk| {
        for mode in Mode::all() {
            let stage = Stage::in_house(House::on(mode, Some(&disk.place)), &[]).expect("a box can be made");
            assert_eq!(walk(&stage), "copy");
        }
    });
    assert!(mounted, "a tmpfs can be mounted");
}

/// A walk on a disk that is made for it: a busy box is snapshotted there in this way.
fn check(make: &'static str, kind: &'static str, method: &str) {
    if !is_root() {
        skip("disks", "only root can mount a file system");
        return;
    }
    let mounted = with_disk(&[make, "-q"], kind, |disk| {
        for mode in Mode::all() {
            let stage = Stage::in_house(House::on(mode, Some(&disk.place)), &[]).expect("a box can be made");
            assert_eq!(walk(&stage), method, "{mode:?}");
        }
    });
    if !mounted {
        skip("disks", &format!("no {kind}: {make}, loop devices or the kernel's part of it are missing"));
    }
}

#[test]
fn where_files_are_cloned() {
    check("mkfs.btrfs", "btrfs", "reflink");
}

#[test]
fn where_files_are_copied() {
    check("mkfs.ext4", "ext4", "copy");
}

#[test]
fn what_is_durable_outlives_a_power_cut() {
    if !is_root() {
        skip("disks", "only root can mount a file system");
        return;
    }
    let mounted = with_disk(&["mkfs.ext4", "-q"], "ext4", |disk| {
        for mode in Mode::all() {
            let stage = Stage::in_house(House::on(mode, Some(&disk.place)), &[]).expect("a box can be made");
            // So that the next one does not take the directories along.
            stage.ok(&["snapshot", &stage.id, "--durable"]);
            stage.sh("echo one > a");
            let taken = stage.json(&["snapshot", &stage.id, "--durable", "--name", "taken"]);
            assert_eq!(taken["durable"], true, "{mode:?}: {taken}");
            disk.cut_power(pid(&stage, &stage.id));
            let fork = stage.ok(&["fork", "taken"]);
            assert_eq!(stage.sh_in(&fork, "cat a"), "one", "{mode:?}");
            stage.sh_in(&fork, "echo two > a");
            let file = stage.house.home().join("state").display().to_string();
            stage.ok(&["snapshot", &fork, "--durable", "--name", "sent"]);
            stage.ok(&["export", "sent", "-o", &file]);
            let came = stage.json(&["import", &file, "--name", "came"]);
            assert_eq!(came["durable"], true, "{mode:?}: {came}");
            disk.cut_power(pid(&stage, &fork));
            let fork = stage.ok(&["fork", "came"]);
            assert_eq!(stage.sh_in(&fork, "cat a"), "two", "{mode:?}");
            stage.sh_in(&fork, "echo three > a");
            stage.ok(&["snapshot", &fork, "--name", "cleaned"]);
            stage.ok(&["gc"]);
            disk.cut_power(pid(&stage, &fork));
            let shown = stage.json(&["snapshots"]);
            let cleaned = shown.as_array().into_iter().flatten().find(|one| one["name"] == "cleaned");
            assert_eq!(cleaned.expect("it is there")["durable"], true, "{mode:?}: {shown}");
            let fork = stage.ok(&["fork", "cleaned"]);
            assert_eq!(stage.sh_in(&fork, "cat a"), "three", "{mode:?}");
            stage.ok(&["gc"]);
            stage.ok(&["kill", "--all"]);
        }
    });
    if !mounted {
        skip("disks", "no ext4: mkfs.ext4, loop devices or the kernel's part of it are missing");
    }
}
