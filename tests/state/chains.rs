//! However often a state is kept, and by whom: the kernel stacks so many layers and no more, and nobody comes near that.

use std::path::PathBuf;

use glasshouse_sandbox::{Recording, Sandbox, SandboxSpec};

use crate::rerun;

/// More than the kernel stacks.
const MANY: usize = 520;
/// Forks of one box, and forks of forks; each stands on one more layer than the one before, until somebody merges them.
const FORKS: usize = 120;
/// No chain is longer, and a few for those that are merged meanwhile.
const LONG: usize = 110;
const FILE: &str = "/workspace/n";

async fn write(sandbox: &Sandbox, n: usize) {
    sandbox.write_file(FILE, n.to_string().as_bytes(), None).await.expect("it can be written");
}

async fn read(sandbox: &Sandbox) -> String {
    let bytes = sandbox.read_file(FILE, 0, None).await.expect("it can be read");
    String::from_utf8(bytes).expect("it is a number")
}

async fn keep_steps(home: PathBuf) {
    let (house, first) = rerun::house(&home).await;
    first.destroy().await.expect("it can be removed");
    let spec = SandboxSpec { recording: Some(Recording::Snapshots), ..rerun::spec() };
    let sandbox = house.create(spec).await.expect("a box can be made");
    for n in 1..=MANY {
        write(&sandbox, n).await;
    }
    house.settle().await;
    let snapshots = house.snapshots().await.expect("snapshots can be listed");
    let steps: Vec<u64> = snapshots.iter().filter_map(|snapshot| snapshot.step).collect();
    assert_eq!(steps, (1..=MANY as u64).collect::<Vec<_>>(), "each step has its snapshot");
    let longest = snapshots.iter().map(|snapshot| snapshot.chain.len()).max();
    assert!(longest < Some(LONG), "{longest:?}");
    for step in [3, MANY - 1, 40, 1, MANY] {
        let jumped = house.jump(sandbox.id(), step as u64).await.expect("it can be gone back to");
        assert!(jumped.snapshot.is_some(), "{step}: {jumped:?}");
        assert_eq!(read(&sandbox).await, step.to_string());
    }
    rerun::clear(&house, &home).await;
}

#[test]
fn every_step_of_a_long_life_has_its_snapshot() {
    rerun::each("chains::every_step_of_a_long_life_has_its_snapshot", keep_steps);
}

async fn fork_again(home: PathBuf) {
    let (house, sandbox) = rerun::house(&home).await;
    for n in 0..FORKS {
        write(&sandbox, n).await;
        let fork = sandbox.fork(1).await.unwrap_or_else(|e| panic!("fork {n}: {e}")).remove(0);
        if n % 20 == 0 {
            assert_eq!(read(&fork).await, n.to_string());
        }
        fork.destroy().await.expect("it can be removed");
    }
    house.settle().await;
    // Those who wait for nobody have it merged beside.
    let chain = house.info(sandbox.id()).await.expect("it lives").chain;
    assert!(chain.len() < LONG / 2, "{}", chain.len());
    let mut last = sandbox;
    for n in 0..FORKS {
        write(&last, n).await;
        let fork = last.fork(1).await.unwrap_or_else(|e| panic!("generation {n}: {e}")).remove(0);
        last.destroy().await.expect("it can be removed");
        last = fork;
    }
    assert_eq!(read(&last).await, (FORKS - 1).to_string());
    let chain = house.info(last.id()).await.expect("it lives").chain;
    assert!(chain.len() < LONG, "{}", chain.len());
    rerun::clear(&house, &home).await;
}

#[test]
fn a_box_and_its_descendants_are_forked_again_and_again() {
    rerun::each("chains::a_box_and_its_descendants_are_forked_again_and_again", fork_again);
}

/// Who holds a box since before it was stopped and started removes all of it, also where no cgroup does.
async fn remove_by_an_old_handle(home: PathBuf) {
    let (house, sandbox) = rerun::house(&home).await;
    house.stop(sandbox.id()).await.expect("it can be stopped");
    let again = house.start(sandbox.id()).await.expect("it can be started");
    let first = format!("/proc/{}", again.info().pid);
    assert!(std::path::Path::new(&first).exists(), "it lives");
    sandbox.destroy().await.expect("it can be removed");
    assert!(!std::path::Path::new(&first).exists(), "{first} lives on");
    rerun::clear(&house, &home).await;
}

#[test]
fn a_box_that_was_started_again_is_removed_by_whoever_held_it_before() {
    rerun::each(
        "chains::a_box_that_was_started_again_is_removed_by_whoever_held_it_before",
        remove_by_an_old_handle,
    );
}
