//! Many boxes, one after the other: nothing adds up.

use std::path::Path;
use std::time::Instant;

use glasshouse_sandbox::{ExecSpec, Program, SandboxSpec, Sandboxes};
use glasshouse_tests::leaks::Leaks;
use glasshouse_tests::{Mode, scratch};

use crate::rerun::as_ordinary;
use crate::{alone, event_loop, nothing_left, open, tell};

/// What a process's memory may have grown by between the first boxes and the last: less than the guest's program
/// once. A leak of a few kilobytes a box would be more.
const GROWTH_BYTES_MAX: u64 = 1 << 20;
/// Boxes until everything that is kept for reuse (threads, buffers of the allocator) is there.
const WARM_UP: usize = 100;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc is there").count()
}

async fn one_box(house: &Sandboxes, with_command: bool) {
    let sandbox = house.create(SandboxSpec::default()).await.expect("a box can be made");
    if with_command {
        let program = Program::Argv(vec!["true".into()]);
        let exec = sandbox.exec(ExecSpec { program, ..ExecSpec::default() }).await.expect("it lives");
        let output = exec.collect().await;
        assert!(output.report.exit.success(), "{:?}", output.report);
    }
    sandbox.destroy().await.expect("a box can be removed");
}

fn many(home: &Path, count: usize, mode: &str) {
    let (threads, house) = (event_loop(), open(home));
    let run = |count: usize| {
        threads.block_on(async {
            for index in 0..count {
                one_box(&house, index % 10 == 0).await;
            }
        });
    };
    run(WARM_UP);
    let (before, bytes, fds) = (Leaks::now(home), resident_bytes(), descriptors());
    let start = Instant::now();
    run(count - WARM_UP);
    let time = start.elapsed();
    nothing_left(&before, home, &format!("{count} boxes"));
    let (bytes_after, fds_after) = (resident_bytes(), descriptors());
    let rate = (count - WARM_UP) as f64 / time.as_secs_f64();
    tell(&format!(
        "{mode}: {count} boxes made and destroyed, {rate:.0} a second; memory {} -> {} KiB, descriptors {fds} -> {fds_after}",
        bytes / 1024,
        bytes_after / 1024
    ));
    assert_eq!(fds, fds_after);
    assert!(bytes_after < bytes + GROWTH_BYTES_MAX, "memory grew from {bytes} to {bytes_after}");
}

#[test]
fn a_thousand_boxes_leave_nothing_as_root() {
    if Mode::all().contains(&Mode::Root) {
        let _turn = alone();
        many(scratch().path(), 1000, "root");
    }
}

#[test]
fn two_hundred_boxes_leave_nothing_without_root() {
    let Some(home) = as_ordinary("many::two_hundred_boxes_leave_nothing_without_root") else { return };
    let _turn = alone();
    many(&home.path, 200, "without root");
}
