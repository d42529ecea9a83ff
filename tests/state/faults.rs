//! Every step of giving a box another root fails in turn: the box is as it was, and nothing is left.

use std::path::PathBuf;

use glasshouse_sandbox::{
    ExecSpec, Limits, Program, Sandbox, SandboxSpec, Sandboxes, Settings, SnapshotOptions, faults,
};
use glasshouse_tests::scratch;

use crate::rerun;

/// No plan has so many steps.
const STEPS_MAX: usize = 20;

async fn sh(sandbox: &Sandbox, line: &str) -> String {
    let program = Program::Shell(line.into());
    let exec = sandbox.exec(ExecSpec { program, ..ExecSpec::default() }).await.expect("the box lives");
    let output = exec.collect().await;
    assert!(output.report.exit.success(), "{line}: {:?}", output.report.exit);
    String::from_utf8_lossy(&output.stdout.bytes).into_owned()
}

#[test]
fn a_step_that_fails_leaves_the_box_as_it_was() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("threads can be started").block_on(async {
        let dir = scratch();
        let home = dir.path().join("home");
        let house = Sandboxes::open(Settings { home: home.clone() }).expect("a home can be made");
        let sandbox = house.create(SandboxSpec::default()).await.expect("a box can be made");
        sh(&sandbox, "echo one > a").await;
        let snapshot = sandbox.snapshot(SnapshotOptions::default()).await.expect("it can be kept");
        let mut failed = 0;
        for errno in [1, 12, 0] {
            for step in 0..STEPS_MAX {
                sh(&sandbox, &format!("echo {step} > b")).await;
                faults::set(step, errno);
                let kept = sandbox.snapshot(SnapshotOptions::default()).await;
                let restored = match kept.is_err() {
                    true => sandbox.restore(&snapshot.id).await,
                    false => Ok(()),
                };
                faults::clear();
                if kept.is_ok() {
                    // Beyond the last step.
                    break;
                }
                failed += 1;
                assert!(restored.is_err(), "step {step}");
                assert_eq!(
                    sh(&sandbox, "cat a b").await,
                    format!("one\n{step}\n"),
                    "step {step}, errno {errno}"
                );
                let tops = std::fs::read_dir(home.join("boxes").join(sandbox.id()))
                    .expect("the box has a directory");
                let tops = tops
                    .filter(|e| e.as_ref().is_ok_and(|e| e.file_name().to_string_lossy().starts_with("top")));
                assert_eq!(tops.count(), 1, "step {step}: a top is left");
            }
        }
        assert!(failed >= 9, "only {failed} steps failed");
        sandbox.restore(&snapshot.id).await.expect("it works again");
        assert_eq!(sh(&sandbox, "cat a; ls").await, "one\na\n");
        sandbox.destroy().await.expect("it can be removed");
    });
}

/// What a box keeps in memory can be looked at by one descriptor only, and its guest has the right one whatever fails.
async fn in_memory(home: PathBuf) {
    let house = Sandboxes::open(Settings { home: home.clone() }).expect("a home can be made");
    let limits = Limits { disk_bytes: Some(8 << 20), ..Limits::default() };
    let sandbox = house.create(SandboxSpec { limits, ..rerun::spec() }).await.expect("a box can be made");
    let kept = async |expected: &str| {
        let fork = sandbox.fork(1).await.expect("it can be forked").remove(0);
        assert_eq!(sh(&fork, "cat *").await, expected);
        fork.destroy().await.expect("it can be removed");
    };
    sh(&sandbox, "echo one > a").await;
    let first = sandbox.snapshot(SnapshotOptions::default()).await.expect("it can be kept");
    let mut failed = 0;
    for errno in [1, 0] {
        for step in 0..STEPS_MAX {
            sh(&sandbox, &format!("echo {step} > b")).await;
            faults::set(step, errno);
            let restored = sandbox.restore(&first.id).await;
            faults::clear();
            if restored.is_ok() {
                // Beyond the last step.
                break;
            }
            failed += 1;
            kept(&format!("one\n{step}\n")).await;
        }
        kept("one\n").await;
    }
    sh(&sandbox, "echo two > b").await;
    kept("one\ntwo\n").await;
    assert!(failed >= 10, "only {failed} steps failed");
    rerun::clear(&house, &home).await;
}

#[test]
fn a_step_that_fails_leaves_what_lies_in_memory_in_reach() {
    rerun::each("faults::a_step_that_fails_leaves_what_lies_in_memory_in_reach", in_memory);
}
