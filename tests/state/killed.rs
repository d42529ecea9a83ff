//! kill -9 of those who give a box another root, and of the box itself, at random moments.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use glasshouse_linux::process;
use glasshouse_sandbox::{ErrorKind, Limits, Sandbox, SandboxSpec, Sandboxes, SnapshotOptions};
use glasshouse_tests::begun::begun;
use glasshouse_tests::crash_rounds;

use crate::rerun::{self, Dice};

/// Rounds of each kind. `CRASH_ROUNDS` says otherwise.
const ROUNDS: usize = 60;
/// A builder is at work for less, most of the time.
const WORK_US: usize = 1500;
/// So many builders at least have to have been hit, or the hunter has found something else.
const HITS_MIN: usize = 10;

/// Reads the value, in a box that has all of its mounts.
const LOOK: &str = "import os\n\
    for path in '/proc', '/dev', '/dev/shm', '/dev/pts', '/usr': assert os.path.ismount(path), path\n\
    if os.path.exists('/workspace/n'): print(open('/workspace/n').read(), end='')";
const WRITE: &str = "import sys; open('/workspace/n', 'w').write(sys.argv[1])";

/// Children of this process that are called so and live. Quick, and may miss one: a child whose thread ends goes over to
/// another thread, which may have been looked at already.
fn glimpse(name: &str) -> Vec<OwnedFd> {
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        found.extend(pids.filter_map(|pid| living_as(pid, name)));
    }
    found
}

/// All of them.
fn children(name: &str) -> Vec<OwnedFd> {
    let ours = format!("PPid:\t{}", std::process::id());
    let is_ours = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line == ours)
    };
    let entries = std::fs::read_dir("/proc").expect("there is /proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_ours).filter_map(|pid| living_as(pid, name)).collect()
}

fn living_as(pid: i32, name: &str) -> Option<OwnedFd> {
    let pidfd = process::open(pid).ok()?;
    // Asked after it was opened: a number that was given anew is not taken for a builder.
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let is_it = comm.trim_end() == name || line == format!("glass-guest\0{name}\0").as_bytes();
    (is_it && !has_ended(&pidfd)).then_some(pidfd)
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    process::wait_end(pidfd.as_fd(), Duration::ZERO).expect("a process can be waited for")
}

/// Kills every builder it sees, each a little later after its start than could be told beforehand.
struct Hunter {
    over: Arc<AtomicBool>,
    hits: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Hunter {
    fn start(dice: Arc<Mutex<Dice>>) -> Hunter {
        let (over, hits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (ends, counts) = (over.clone(), hits.clone());
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let Some(pidfd) = glimpse("glass-restack").pop() else { continue };
                let wait = dice.lock().expect("nobody panics with it").below(WORK_US);
                // To wait for a moment is the point here, not a stand-in for an event.
                let until = Instant::now() + Duration::from_micros(wait as u64);
                while Instant::now() < until {}
                if !has_ended(&pidfd) && process::signal(pidfd.as_fd(), 9).is_ok() {
                    counts.fetch_add(1, Ordering::Relaxed);
                }
                let _ = process::wait_end(pidfd.as_fd(), Duration::from_secs(10));
            }
        });
        Hunter { over, hits, thread: Some(thread) }
    }

    fn stop(mut self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it does not panic");
        }
        self.hits.load(Ordering::Relaxed)
    }
}

/// A box that lives: the one that was there, or a new one if that was killed and is gone.
async fn living(house: &Sandboxes, old: &Sandbox) -> (Sandbox, bool) {
    house.gc().await.expect("what is left can be removed");
    match house.get(old.id()).await {
        Ok(sandbox) => (sandbox, false),
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::NotFound, "neither alive nor gone: {e}");
            (house.create(rerun::spec()).await.expect("a box can be made"), true)
        }
    }
}

/// What can be done to a box with its root.
#[derive(Debug)]
enum Verb {
    Snapshot,
    Restore(String),
    Reset,
}

async fn builders(home: PathBuf) {
    let dice = Arc::new(Mutex::new(Dice::new("killed builders")));
    let (house, mut sandbox) = rerun::house(&home).await;
    let mut value = String::new();
    let mut kept: Vec<(String, String)> = Vec::new();
    let (mut hits, mut done, mut died) = (0, 0, 0);
    for round in 0..crash_rounds(ROUNDS) {
        if round % 3 != 1 {
            value = format!("r{round}");
            rerun::python(&sandbox, WRITE, &[&value]).await;
        }
        let to = dice.lock().expect("nobody panics with it").of(&kept).cloned();
        let (verb, after) = match (round % 3, to) {
            (0, _) | (1, None) => (Verb::Snapshot, value.clone()),
            (1, Some((id, then))) => (Verb::Restore(id), then),
            _ => (Verb::Reset, String::new()),
        };
        let hunter = Hunter::start(dice.clone());
        let worked = match &verb {
            Verb::Snapshot => {
                let taken = sandbox.snapshot(SnapshotOptions::default()).await;
                taken.map(|taken| kept.push((taken.id, value.clone())))
            }
            Verb::Restore(id) => sandbox.restore(id).await,
            Verb::Reset => sandbox.reset().await,
        };
        hits += hunter.stop();
        done += usize::from(worked.is_ok());
        // Ended, if it was hit while its mounts were being moved; else whole.
        let (alive, new) = living(&house, &sandbox).await;
        sandbox = alive;
        let now = rerun::python(&sandbox, LOOK, &[]).await;
        match &worked {
            _ if new => {
                assert!(worked.is_err(), "round {round}: {verb:?} was said to be done, and it is gone")
            }
            Ok(()) => assert_eq!(now, after, "round {round}: {verb:?} was said to be done"),
            Err(e) => assert!(now == value || now == after, "round {round}: {verb:?}: {now:?}: {e}"),
        }
        died += usize::from(new);
        value = now;
    }
    rerun::tell(&format!("{hits} builders killed, {done} verbs went through, {died} boxes ended"));
    assert!(hits >= HITS_MIN, "only {hits} builders were seen");
    all_kept(&house, &sandbox, &kept).await;
    rerun::clear(&house, &home).await;
}

/// Everything that has a record can be gone back to.
async fn all_kept(house: &Sandboxes, sandbox: &Sandbox, kept: &[(String, String)]) {
    for snapshot in house.snapshots().await.expect("snapshots can be listed") {
        sandbox.restore(&snapshot.id).await.expect("it can be gone back to");
        let now = rerun::python(sandbox, LOOK, &[]).await;
        if let Some((_, then)) = kept.iter().find(|(id, _)| *id == snapshot.id) {
            assert_eq!(&now, then);
        }
    }
}

async fn guests(home: PathBuf) {
    let mut dice = Dice::new("killed guests");
    let (house, mut sandbox) = rerun::house(&home).await;
    let mut kept: Vec<(String, String)> = Vec::new();
    for round in 0..crash_rounds(ROUNDS) {
        let value = format!("r{round}");
        rerun::python(&sandbox, WRITE, &[&value]).await;
        let guest = process::open(sandbox.info().pid).expect("the box lives");
        let wait = Duration::from_micros(dice.below(12_000) as u64);
        let killer = std::thread::spawn(move || {
            let until = Instant::now() + wait;
            while Instant::now() < until {}
            process::signal(guest.as_fd(), 9).expect("a guest is its maker's to kill");
            assert!(process::wait_end(guest.as_fd(), Duration::from_secs(10)).expect("it can be waited for"));
        });
        match (round % 2, dice.of(&kept).cloned()) {
            (1, Some((id, _))) => drop(sandbox.restore(&id).await),
            _ => {
                if let Ok(taken) = sandbox.snapshot(SnapshotOptions::default()).await {
                    kept.push((taken.id, value));
                }
            }
        }
        killer.join().expect("it could be killed");
        let (alive, new) = living(&house, &sandbox).await;
        assert!(new, "round {round}: its first process was killed, and the box lives");
        sandbox = alive;
        house.settle().await;
        let boxes = std::fs::read_dir(home.join("boxes")).expect("a home has boxes").count();
        assert_eq!(boxes, 1 + begun(&home).len(), "round {round}: the dead one is still there");
    }
    rerun::tell(&format!("{} were kept before the kill", kept.len()));
    all_kept(&house, &sandbox, &kept).await;
    rerun::clear(&house, &home).await;
}

/// Spares are there when a box was given another root more than once.
async fn spares(home: PathBuf) {
    let (house, sandbox) = rerun::house(&home).await;
    for round in 0..crash_rounds(ROUNDS) / 4 {
        let value = format!("r{round}");
        rerun::python(&sandbox, WRITE, &[&value]).await;
        let kept = sandbox.snapshot(SnapshotOptions::default()).await.expect("it can be kept");
        rerun::python(&sandbox, WRITE, &["other"]).await;
        house.settle().await;
        let waiting = children("spare");
        assert!(round == 0 || !waiting.is_empty(), "round {round}: nobody waits");
        for spare in &waiting {
            process::signal(spare.as_fd(), 9).expect("it is ours to kill");
        }
        // One in two is found dead, the others may be just dying.
        if round % 2 == 0 {
            for spare in &waiting {
                assert!(process::wait_end(spare.as_fd(), Duration::from_secs(10)).expect("it ends"));
            }
        }
        sandbox.restore(&kept.id).await.expect("another one does it");
        assert_eq!(rerun::python(&sandbox, LOOK, &[]).await, value);
        let forked = sandbox.fork(1).await.expect("another one does it");
        assert_eq!(rerun::python(&forked[0], LOOK, &[]).await, value);
        forked[0].destroy().await.expect("it can be removed");
    }
    rerun::clear(&house, &home).await;
    let waiting = children("spare");
    assert!(!waiting.is_empty(), "nobody waits");
    drop((sandbox, house));
    // The box's driver holds the house too, and ends with the box.
    for spare in &waiting {
        assert!(process::wait_end(spare.as_fd(), Duration::from_secs(10)).expect("it can be waited for"));
    }
}

/// Boxes of other kinds are built and changed by spares like all others.
async fn kinds(home: PathBuf) {
    let (house, first) = rerun::house(&home).await;
    let limits = Limits { disk_bytes: Some(8 << 20), ..Limits::default() };
    for spec in [
        SandboxSpec { limits: limits.clone(), ..rerun::spec() },
        SandboxSpec { deterministic: Some(true), ..rerun::spec() },
        SandboxSpec { limits, deterministic: Some(true), ..rerun::spec() },
    ] {
        // From the second on, there are spares.
        for _ in 0..2 {
            first.reset().await.expect("it can be put back");
        }
        house.settle().await;
        assert!(!children("spare").is_empty(), "nobody waits");
        let sandbox = house.create(spec).await.expect("a spare builds it");
        for value in ["one", "two", "three"] {
            rerun::python(&sandbox, WRITE, &[value]).await;
            let kept = sandbox.snapshot(SnapshotOptions::default()).await.expect("it can be kept");
            sandbox.reset().await.expect("it can be put back");
            assert_eq!(rerun::python(&sandbox, LOOK, &[]).await, "");
            sandbox.restore(&kept.id).await.expect("it can be put back");
            rerun::python(&sandbox, WRITE, &["other"]).await;
            sandbox.restore(&kept.id).await.expect("it can be put back");
            assert_eq!(rerun::python(&sandbox, LOOK, &[]).await, value);
            house.settle().await;
            let forked = sandbox.fork(1).await.expect("it can be forked");
            assert_eq!(rerun::python(&forked[0], LOOK, &[]).await, value);
            assert_eq!(forked[0].info().deterministic, sandbox.info().deterministic);
            assert_eq!(forked[0].info().uncontrolled, sandbox.info().uncontrolled);
            forked[0].destroy().await.expect("it can be removed");
        }
    }
    rerun::clear(&house, &home).await;
}

#[test]
fn spares_serve_boxes_of_every_kind() {
    rerun::each("killed::spares_serve_boxes_of_every_kind", kinds);
}

#[test]
fn a_killed_spare_is_replaced_and_none_outlives_its_house() {
    rerun::each("killed::a_killed_spare_is_replaced_and_none_outlives_its_house", spares);
}

#[test]
fn a_killed_builder_leaves_the_box_as_before_or_as_after() {
    rerun::each("killed::a_killed_builder_leaves_the_box_as_before_or_as_after", builders);
}

#[test]
fn a_killed_guest_leaves_whole_snapshots_and_nothing_else() {
    rerun::each("killed::a_killed_guest_leaves_whole_snapshots_and_nothing_else", guests);
}
