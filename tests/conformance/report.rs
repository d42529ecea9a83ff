//! What an end says of time and memory.

use std::time::Instant;

use glasshouse_sandbox::{ExecSpec, Exit, ExitReport, Sandbox};

use crate::follow::Follow;
use crate::stage::{argv, on_every_runtime, perl, run, shell};

on_every_runtime![
    wall_time_is_that_of_the_command,
    cpu_time_is_what_was_burnt,
    waiting_costs_no_cpu_time,
    cpu_time_of_children_counts,
    cpu_time_of_children_that_nobody_waited_for_counts,
    peak_memory_is_what_was_held,
    peak_memory_of_children_counts,
    peak_memory_is_the_commands_and_not_the_guests,
    bytes_are_counted_per_stream,
];

/// Uses so much CPU time, however long that takes, and ends.
fn burn(seconds: f64) -> String {
    format!("do {{ $x++ for 1..10000; ($u, $s) = times }} until $u + $s >= {seconds}")
}

async fn report_of(sandbox: &Sandbox, spec: ExecSpec) -> ExitReport {
    let report = run(sandbox, spec).await.report;
    assert_eq!(report.exit, Exit::Code { code: 0 });
    report
}

async fn wall_time_is_that_of_the_command(sandbox: &Sandbox) {
    let since = Instant::now();
    let report = report_of(sandbox, argv(&["sleep", "0.3"])).await;
    let outside = since.elapsed().as_micros() as u64;
    assert!(
        (300_000..=outside).contains(&report.wall_us),
        "{} µs, and {outside} seen from here",
        report.wall_us
    );
}

async fn cpu_time_is_what_was_burnt(sandbox: &Sandbox) {
    let report = report_of(sandbox, perl(&burn(0.4))).await;
    assert!((380_000..=report.wall_us + 50_000).contains(&report.cpu_us), "{report:?}");
}

async fn waiting_costs_no_cpu_time(sandbox: &Sandbox) {
    let report = report_of(sandbox, argv(&["sleep", "0.5"])).await;
    assert!(report.cpu_us < 250_000, "{report:?}");
}

async fn cpu_time_of_children_counts(sandbox: &Sandbox) {
    let line = format!("perl -e '{0}' & perl -e '{0}' & wait", burn(0.3));
    let report = report_of(sandbox, shell(&line)).await;
    assert!(report.cpu_us >= 550_000, "{report:?}");
}

async fn cpu_time_of_children_that_nobody_waited_for_counts(sandbox: &Sandbox) {
    // The burner's parent is gone at once; its end is known from the end of a pipe that it holds.
    let script =
        format!("pipe R, W; if (!fork) {{ exit if fork; close R; {}; exit }} wait; close W; <R>", burn(0.4));
    let report = report_of(sandbox, perl(&script)).await;
    assert!(report.wall_us >= 380_000, "it was waited for: {report:?}");
    if sandbox.info().tracking == "cgroup v2" {
        assert!(report.cpu_us >= 380_000, "{report:?}");
    }
}

/// Holds so many bytes for a moment.
fn hold(bytes: u64) -> String {
    format!("my $x = chr(120) x {bytes}; substr($x, 0, 1) = chr(121)")
}

async fn peak_memory_is_what_was_held(sandbox: &Sandbox) {
    let report = report_of(sandbox, perl(&hold(50_000_000))).await;
    assert!((50_000_000..200_000_000).contains(&report.peak_memory_bytes), "{report:?}");
}

async fn peak_memory_of_children_counts(sandbox: &Sandbox) {
    let report = report_of(sandbox, shell(&format!("perl -e '{}'; true", hold(50_000_000)))).await;
    assert!(report.peak_memory_bytes >= 50_000_000, "{report:?}");
}

async fn peak_memory_is_the_commands_and_not_the_guests(sandbox: &Sandbox) {
    for _ in 0..16 {
        let spec = ExecSpec { background: true, ..perl("print 'x' x (4 << 20)") };
        let written = run(sandbox, spec).await.stdout.total;
        assert_eq!(written, 4 << 20);
    }
    let report = report_of(sandbox, argv(&["/bin/true"])).await;
    assert!(report.peak_memory_bytes < 4 << 20, "{report:?}");
    // And what is kept is still there.
    let mut first = Follow::attach(sandbox, 1, 0, true).await;
    first.end().await;
    assert!(first.stdout.len() > 900_000 && first.stdout.iter().all(|&byte| byte == b'x'));
}

async fn bytes_are_counted_per_stream(sandbox: &Sandbox) {
    let spec = perl("print 'o' x 3000000; print STDERR 'e' x 2000000");
    let output = run(sandbox, ExecSpec { kept_output_bytes: Some(1000), ..spec }).await;
    let counted = (output.report.stdout_bytes, output.report.stderr_bytes);
    assert_eq!(counted, (3_000_000, 2_000_000));
    assert_eq!((output.stdout.total, output.stderr.total), counted);
}
