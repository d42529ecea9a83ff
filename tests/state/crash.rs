//! kill -9 at any moment: the box and the store are as before or as after, and nothing in between stays.

use crate::stage::Stage;

/// Rounds for each mode.
const ROUNDS: u64 = 60;

#[test]
fn whoever_is_killed_in_the_middle_leaves_a_whole_store() {
    for stage in Stage::each(&[]) {
        let mut kept = vec![];
        stage.sh("echo 0 > n");
        kept.push((stage.snapshot(), "0".to_owned()));
        // A walk through all moments: what one call takes, divided by the rounds.
        let start = std::time::Instant::now();
        stage.ok(&["restore", &stage.id, &kept[0].0]);
        let whole = start.elapsed() * 3 / 2;
        let mut before = "0".to_owned();
        for round in 0..ROUNDS {
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
            std::thread::sleep(whole * (round as u32) / (ROUNDS as u32));
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
