//! Deadlines: the whole tree of one command, and nothing else.

use std::time::Duration;

use glasshouse_sandbox::{ExecSpec, Exit, Limits, Sandbox, SandboxSpec};

use crate::follow::Follow;
use crate::stage::{
    Stage, argv, lives, on_every_runtime, perl, put_away, run, runs, shell, start_with_pid, stdout_of, text,
    wait_gone, within,
};

on_every_runtime![
    a_deadline_kills_the_whole_tree_and_nothing_else,
    last_words_within_the_grace_are_heard,
    whoever_ignores_the_request_is_killed,
    a_stopped_command_is_killed_too,
    a_command_that_waits_for_its_reader_is_killed_too,
    what_was_written_before_the_deadline_is_there,
    a_command_that_ends_in_time_has_not_timed_out,
    the_boxs_deadline_holds_for_every_command,
    a_grandchild_that_holds_the_pipe_does_not_hold_up_the_end,
];

/// Long enough for a command to get to where the deadline shall find it, on a machine that has other things to do.
const SOON_MS: u64 = 2_000;
/// So long that a test that waits for it fails as hanging.
const NEVER_MS: u64 = 3_600_000;

fn ends(spec: ExecSpec, grace_ms: u64) -> ExecSpec {
    ExecSpec { timeout_ms: Some(SOON_MS), grace_ms: Some(grace_ms), ..spec }
}

/// Says its number and those of a child, of a child in a session of its own, and of a daemon whose parent is gone.
const FAMILY: &str = r#"
    use POSIX; $| = 1;
    sub start { my ($sessions) = @_; my $pid = fork; return $pid if $pid;
        for (1..$sessions) { POSIX::setsid(); exit 0 if $_ < $sessions && fork }
        syswrite STDOUT, "$$\n"; sleep 1000 while 1 }
    start(0); start(1); waitpid(start(2), 0);
    syswrite STDOUT, "$$\n"; sleep 1000 while 1
"#;

async fn a_deadline_kills_the_whole_tree_and_nothing_else(sandbox: &Sandbox) {
    let other = ExecSpec { background: true, ..argv(&["sleep", "1000"]) };
    let other = sandbox.exec(other).await.unwrap();
    let mut family = Follow::start(sandbox, ends(perl(FAMILY), 0)).await;
    let mut pids = Vec::new();
    for _ in 0..4 {
        pids.push(family.line().await.parse::<u32>().unwrap());
    }
    assert_eq!(family.end().await.exit, Exit::TimedOut);
    if sandbox.info().tracking == "process group, best effort" {
        // Without walls and without cgroups, whoever leaves the family is not found again; its box says so.
        let daemon = stdout_of(sandbox, "ps -eo pid= -o args= | grep '[s]leep 1000 while 1' || true").await;
        let strays =
            daemon.lines().filter_map(|line| line.split_ascii_whitespace().next()?.parse::<u32>().ok());
        let strays: Vec<u32> = strays.filter(|pid| pids.contains(pid)).collect();
        pids.retain(|pid| !strays.contains(pid));
        for pid in strays {
            stdout_of(sandbox, &format!("kill -9 {pid} || true")).await;
        }
        assert!(pids.len() >= 2, "at least its own group is found");
    }
    for pid in pids {
        wait_gone(sandbox, pid).await;
    }
    assert!(runs(sandbox, other.id()).await, "the other command lives");
    put_away(sandbox, &other).await;
}

async fn last_words_within_the_grace_are_heard(sandbox: &Sandbox) {
    let line = "trap 'echo last words; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    let mut polite = Follow::start(sandbox, ends(shell(line), NEVER_MS)).await;
    assert_eq!(polite.line().await, "ready");
    assert_eq!(polite.line().await, "last words");
    assert_eq!(polite.end().await.exit, Exit::TimedOut);
}

async fn whoever_ignores_the_request_is_killed(sandbox: &Sandbox) {
    let line = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let mut deaf = Follow::start(sandbox, ends(shell(line), 100)).await;
    assert_eq!(deaf.line().await, "ready");
    assert_eq!(deaf.end().await.exit, Exit::TimedOut);
}

async fn a_stopped_command_is_killed_too(sandbox: &Sandbox) {
    let mut stopped = Follow::start(sandbox, ends(shell("echo $$; kill -STOP $$"), 100)).await;
    let pid = stopped.line().await.parse().unwrap();
    assert_eq!(stopped.end().await.exit, Exit::TimedOut);
    wait_gone(sandbox, pid).await;
}

async fn a_command_that_waits_for_its_reader_is_killed_too(sandbox: &Sandbox) {
    let (mut full, pid) = start_with_pid(sandbox, ends(shell("echo $$; exec yes"), 0)).await;
    wait_gone(sandbox, pid).await;
    let report = full.end().await;
    assert_eq!(
        (report.exit, report.stdout_bytes),
        (Exit::TimedOut, full.place),
        "and all that it wrote arrives"
    );
}

async fn what_was_written_before_the_deadline_is_there(sandbox: &Sandbox) {
    let spec = ends(shell("printf out; printf err >&2; exec sleep 1000"), 0);
    let output = run(sandbox, spec).await;
    assert_eq!(output.report.exit, Exit::TimedOut);
    assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("out", "err"));
    assert!(output.report.wall_us >= SOON_MS * 1000, "it had {} µs", output.report.wall_us);
}

async fn a_command_that_ends_in_time_has_not_timed_out(sandbox: &Sandbox) {
    let output = run(sandbox, ExecSpec { timeout_ms: Some(NEVER_MS), ..shell("exit 7") }).await;
    assert_eq!(output.report.exit, Exit::Code { code: 7 });
}

async fn the_boxs_deadline_holds_for_every_command(stage: &Stage) {
    let limits = Limits { timeout: Some(Duration::from_millis(SOON_MS)), ..Limits::default() };
    let sandbox = stage.create(SandboxSpec { limits, ..SandboxSpec::default() }).await.unwrap();
    let check = async |timeout_ms| {
        let spec = ExecSpec { timeout_ms, grace_ms: Some(0), ..argv(&["sleep", "1000"]) };
        assert_eq!(within("the box's deadline", run(&sandbox, spec)).await.report.exit, Exit::TimedOut);
    };
    // A command may ask for less, and not for more.
    tokio::join!(check(None), check(Some(NEVER_MS)), check(Some(50)));
    assert_eq!(stdout_of(&sandbox, "echo on").await, "on\n");
}

async fn a_grandchild_that_holds_the_pipe_does_not_hold_up_the_end(sandbox: &Sandbox) {
    let spec = ends(shell("sleep 1000 & echo $!; sleep 1000"), 0);
    let mut parent = Follow::start(sandbox, spec).await;
    let grandchild = parent.line().await.parse().unwrap();
    assert_eq!(parent.end().await.exit, Exit::TimedOut);
    wait_gone(sandbox, grandchild).await;
    assert!(!lives(sandbox, grandchild).await);
}
