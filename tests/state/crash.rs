//! kill -9 at any moment: the box and the store are as before or as after, and nothing in between stays.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use glasshouse_linux::{process, rustix};
use glasshouse_tests::crash_rounds;

use crate::stage::Stage;

/// Rounds for each mode. `CRASH_ROUNDS` says otherwise.
const ROUNDS: usize = 60;

#[test]
fn whoever_is_killed_in_the_middle_leaves_a_whole_store() {
    for stage in Stage::each(&[]) {
        let mut kept = vec![];
        stage.sh("echo 0 > n");
        kept.push((stage.snapshot(), "0".to_owned()));
        // A walk through all moments: what one call takes, divided by the rounds.
        let start = Instant::now();
        stage.ok(&["restore", &stage.id, &kept[0].0]);
        let whole = start.elapsed() * 3 / 2;
        let mut before = "0".to_owned();
        let rounds = crash_rounds(ROUNDS) as u64;
        for round in 0..rounds {
            let value = format!("r{round}");
            let (first, second) = (kept[round as usize % kept.len()].clone(), stage.id.clone());
            let args: Vec<&str> = match round % 4 {
                0 | 2 => vec!["snapshot", &second],
                1 => vec!["restore", &second, &first.0],
                _ => vec!["reset", &second],
            };
            if round % 2 == 0 {
                stage.sh(&format!("echo {value} > n"));
                before = value;
            }
            let silent = std::process::Stdio::null;
            let mut command = stage.house.glass(&args);
            let mut child = command.stdout(silent()).stderr(silent()).spawn().expect("it can be started");
            std::thread::sleep(whole * (round as u32) / (rounds as u32));
            let _ = child.kill();
            child.wait().expect("it was started");
            let now = stage.sh("cat n 2>/dev/null; true");
            let allowed = match round % 4 {
                0 | 2 => vec![before.clone()],
                1 => vec![before.clone(), first.1.clone()],
                _ => vec![before.clone(), String::new()],
            };
            assert!(allowed.contains(&now), "round {round} {args:?}: {now:?} is none of {allowed:?}");
            before = now;
            if round % 10 == 0 && !before.is_empty() {
                kept.push((stage.snapshot(), before.clone()));
            }
        }
        // Everything that has a record can be gone back to.
        for snapshot in stage.json(&["snapshots"]).as_array().expect("a list") {
            let id = snapshot["id"].as_str().expect("an id");
            stage.ok(&["restore", &stage.id, id]);
            let now = stage.sh("cat n");
            if let Some((_, value)) = kept.iter().find(|(kept, _)| kept == id) {
                assert_eq!(&now, value);
            }
        }
        // And what has none is gone when the box and its snapshots are.
        stage.ok(&["kill", &stage.id]);
        for snapshot in stage.json(&["snapshots"]).as_array().expect("a list") {
            stage.ok(&["snapshots", "remove", snapshot["id"].as_str().expect("an id")]);
        }
        stage.ok(&["gc"]);
        assert_eq!(stage.layers(), [""; 0], "{:?}", stage.house.mode);
        let left = |dir: &str| std::fs::read_dir(stage.house.home().join(dir)).expect("it is there").count();
        assert_eq!((left("boxes"), left("trash"), left("snapshots")), (0, 0, 0));
    }
}

/// A builder is at work for less, most of the time.
const WORK_US: u64 = 2000;
/// So many builders at least have to have outlived their maker, or they were looked for in the wrong place.
const ORPHANS_MIN: usize = 10;

/// The child of a process that gives a box another root, once it is there; none, if the process ends before.
fn builder_of(maker: &mut std::process::Child) -> Option<OwnedFd> {
    let tasks = format!("/proc/{}/task", maker.id());
    while maker.try_wait().expect("it was started").is_none() {
        for task in std::fs::read_dir(&tasks).into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for pid in children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()) {
                let Ok(pidfd) = process::open(pid) else { continue };
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                if name.trim_end() == "glass-restack" {
                    return Some(pidfd);
                }
            }
        }
    }
    None
}

/// Whoever asked for another root is dead before its builder takes its next step, at any step: nobody hears what it reports.
#[test]
fn a_builder_that_nobody_listens_to_any_more_finishes() {
    for stage in Stage::each(&[]) {
        stage.sh("echo kept > n");
        let kept = stage.snapshot();
        let mut orphans = 0;
        let rounds = crash_rounds(ROUNDS) as u64;
        for round in 0..rounds {
            stage.sh("echo new > n");
            let mut command = stage.house.glass(&["restore", &stage.id, &kept]);
            let silent = std::process::Stdio::null;
            let mut maker = command.stdout(silent()).stderr(silent()).spawn().expect("it can be started");
            let Some(builder) = builder_of(&mut maker) else { continue };
            let until = Instant::now() + Duration::from_micros(WORK_US * round / rounds);
            while Instant::now() < until {}
            let stopped = process::signal(builder.as_fd(), rustix::process::Signal::STOP.as_raw()).is_ok();
            orphans += usize::from(stopped);
            let _ = maker.kill();
            maker.wait().expect("it was started");
            // One that had ended is collected, and cannot be told anything.
            let _ = process::signal(builder.as_fd(), rustix::process::Signal::CONT.as_raw());
            let now = stage.sh("cat n");
            assert!(["kept", "new"].contains(&&*now), "{:?}, round {round}: {now:?}", stage.house.mode);
        }
        assert!(orphans >= ORPHANS_MIN, "{:?}: only {orphans} were seen", stage.house.mode);
    }
}
