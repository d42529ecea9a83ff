//! Boxes that are paused: nothing in them moves, everybody is told so, and all goes on where it stood.

use std::process::Command;
use std::time::Duration;

use glasshouse_sandbox::{
    DiffOptions, ErrorKind, ExecSpec, Exit, Killer, Limits, RuntimeKind, Sandbox, SandboxSpec, SandboxState,
    SnapshotOptions,
};

use crate::follow::Follow;
use crate::stage::{
    Stage, argv, on_every_runtime, open, put_away, run, runs, settle, shell, stdout_of, text,
};

on_every_runtime![
    a_paused_box_uses_no_cpu,
    a_box_that_forks_all_the_time_can_be_paused,
    everybody_sees_that_a_box_is_paused,
    a_paused_box_refuses_work_at_once,
    a_command_can_be_killed_while_it_is_paused,
    what_was_paused_goes_on_where_it_stood,
    deadlines_wait_while_a_box_is_paused,
    a_paused_box_ends_when_its_time_is_over,
    a_paused_box_is_kept_and_copied_and_stays_paused,
    a_reset_resumes_a_box,
    a_paused_box_can_be_stopped_and_started,
    a_paused_box_can_be_removed,
];

/// A program that counts as fast as it can, and can be told by this word.
fn counting(marker: &str) -> ExecSpec {
    ExecSpec { background: true, ..argv(&["perl", "-e", "$n++ while 1", marker]) }
}

/// The numbers of the host's processes with this among their arguments.
fn with_marker(marker: &str) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(marker.len()).any(|window| window == marker.as_bytes())
    };
    pids.filter(has).collect()
}

/// How much CPU a process has used, and how often it was given one.
fn used(pid: u32) -> Option<(u64, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let turns = status.lines().filter(|line| line.contains("ctxt_switches"));
    let turns = turns.filter_map(|line| line.rsplit_once('\t')?.1.parse::<u64>().ok()).sum();
    Some((ticks, turns))
}

/// Comes back when another process has had a tenth of a second of CPU: whoever may run has run meanwhile.
fn let_others_run() {
    let burnt = Command::new("perl").args(["-e", "while ((times)[0] < 0.1) {}"]).status().unwrap();
    assert!(burnt.success());
}

async fn state_of(stage: &Stage, sandbox: &Sandbox) -> SandboxState {
    stage.house.info(sandbox.id()).await.unwrap().state
}

async fn a_paused_box_uses_no_cpu(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let marker = stage.marker();
    let exec = sandbox.exec(counting(&marker)).await.unwrap();
    settle("it counts", async || !with_marker(&marker).is_empty()).await;
    sandbox.pause().await.unwrap();
    let pids = with_marker(&marker);
    let before: Vec<_> = pids.iter().map(|&pid| used(pid)).collect();
    assert!(!before.is_empty() && before.iter().all(Option::is_some), "{before:?}");
    let_others_run();
    let after: Vec<_> = pids.iter().map(|&pid| used(pid)).collect();
    assert_eq!(after, before, "it ran while it was paused");
    sandbox.resume().await.unwrap();
    settle("it goes on", async || pids.iter().map(|&pid| used(pid)).collect::<Vec<_>>() != before).await;
    put_away(&sandbox, &exec).await;
}

async fn a_box_that_forks_all_the_time_can_be_paused(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let line = "n=0; while :; do /bin/true; n=$((n+1)); echo $n; done";
    let mut forks = Follow::start(&sandbox, shell(line)).await;
    for _ in 0..5 {
        forks.line().await;
        sandbox.pause().await.unwrap();
        assert_eq!(state_of(stage, &sandbox).await, SandboxState::Paused);
        sandbox.resume().await.unwrap();
        // It counts on: what was stopped between fork and exec has come through.
        let before = forks.stdout.len();
        while forks.stdout.len() == before {
            assert!(forks.step().await && forks.report.is_none(), "it has ended: {forks:?}");
        }
    }
    forks.exec.input().kill().await.unwrap();
    assert_eq!(forks.end().await.exit, Exit::Killed { by: Killer::Caller });
}

async fn everybody_sees_that_a_box_is_paused(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let other = open(&stage.home());
    let states = async || {
        let listed = other.list().await.unwrap();
        (other.info(sandbox.id()).await.unwrap().state, listed[0].state)
    };
    assert_eq!(states().await, (SandboxState::Running, SandboxState::Running));
    for _ in 0..2 {
        sandbox.pause().await.expect("also one that is paused");
        assert_eq!(states().await, (SandboxState::Paused, SandboxState::Paused));
    }
    // Whoever paused it may be gone, and anybody may resume it.
    let id = sandbox.id().to_owned();
    other.get(&id).await.expect("a paused box is found").resume().await.unwrap();
    assert_eq!(states().await, (SandboxState::Running, SandboxState::Running));
    sandbox.resume().await.expect("also one that runs");
    assert_eq!(stdout_of(&sandbox, "echo on").await, "on\n");
}

async fn a_paused_box_refuses_work_at_once(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    sandbox.write_file("note", b"x", None).await.unwrap();
    let exec = sandbox.exec(ExecSpec { background: true, ..argv(&["sleep", "1000"]) }).await.unwrap();
    sandbox.pause().await.unwrap();
    let refusals = [
        sandbox.exec(argv(&["true"])).await.map(drop),
        sandbox.read_file("note", 0, None).await.map(drop),
        sandbox.write_file("note", b"y", None).await.map(drop),
        sandbox.stat("note", false).await.map(drop),
        sandbox.signal(exec.id(), 15, false).await,
    ];
    for refused in refusals {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Paused, "{error}");
        assert!(error.to_string().contains("glass resume"), "{error}");
    }
    assert!(runs(&sandbox, exec.id()).await, "commands can be listed");
    sandbox.resume().await.unwrap();
    assert_eq!(sandbox.read_file("note", 0, None).await.unwrap(), b"x");
    put_away(&sandbox, &exec).await;
}

async fn a_command_can_be_killed_while_it_is_paused(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let marker = stage.marker();
    let mut sleeper = Follow::start(&sandbox, argv(&["sleep", &marker])).await;
    sandbox.pause().await.unwrap();
    sandbox.kill_exec(sleeper.exec.id()).await.unwrap();
    assert_eq!(sleeper.end().await.exit, Exit::Killed { by: Killer::Caller });
    assert!(with_marker(&marker).is_empty());
    assert_eq!(state_of(stage, &sandbox).await, SandboxState::Paused);
    sandbox.resume().await.unwrap();
    assert_eq!(stdout_of(&sandbox, "echo on").await, "on\n");
}

async fn what_was_paused_goes_on_where_it_stood(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let spec = ExecSpec { stdin: true, ..shell("while read x; do echo got $x; done; echo over") };
    let mut reader = Follow::start(&sandbox, spec).await;
    let input = reader.exec.input();
    input.write(b"one\n").await.unwrap();
    assert_eq!(reader.line().await, "got one");
    for word in ["two", "three"] {
        sandbox.pause().await.unwrap();
        input.write(format!("{word}\n").as_bytes()).await.unwrap();
        sandbox.resume().await.unwrap();
        assert_eq!(reader.line().await, format!("got {word}"));
    }
    input.close().await.unwrap();
    assert_eq!(reader.end().await.exit, Exit::Code { code: 0 });
    assert!(String::from_utf8_lossy(&reader.stdout).ends_with("over\n"));
}

async fn deadlines_wait_while_a_box_is_paused(stage: &Stage) {
    // Long enough to be paused in, on any machine.
    let timeout_ms = Some(4000);
    let (paused, other) = (stage.sandbox().await, stage.sandbox().await);
    let sleeper = ExecSpec { background: true, timeout_ms, ..argv(&["sleep", "1000"]) };
    let exec = paused.exec(sleeper).await.unwrap();
    paused.pause().await.unwrap();
    let later = run(&other, ExecSpec { timeout_ms, ..argv(&["sleep", "1000"]) }).await;
    assert_eq!(later.report.exit, Exit::TimedOut);
    assert!(runs(&paused, exec.id()).await, "its time went on");
    paused.resume().await.unwrap();
    assert!(runs(&paused, exec.id()).await, "its time had gone on");
    put_away(&paused, &exec).await;
}

async fn a_paused_box_ends_when_its_time_is_over(stage: &Stage) {
    let limits = Limits { ttl: Some(Duration::from_secs(4)), ..Limits::default() };
    let sandbox = stage.create(SandboxSpec { limits, ..SandboxSpec::default() }).await.unwrap();
    let marker = stage.marker();
    let mut sleeper = Follow::start(&sandbox, argv(&["sleep", &marker])).await;
    sandbox.pause().await.unwrap();
    assert_eq!(sleeper.end().await.exit, Exit::Killed { by: Killer::Ttl });
    settle("nothing of it is left", async || with_marker(&marker).is_empty()).await;
}

/// What has no walls has no state to be kept.
fn has_state(stage: &Stage) -> bool {
    stage.runtime != RuntimeKind::Process
}

async fn a_paused_box_is_kept_and_copied_and_stays_paused(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    sandbox.write_file("note", b"kept", None).await.unwrap();
    let marker = stage.marker();
    let exec = sandbox.exec(counting(&marker)).await.unwrap();
    settle("it counts", async || !with_marker(&marker).is_empty()).await;
    sandbox.pause().await.unwrap();
    if !has_state(stage) {
        let error = sandbox.snapshot(SnapshotOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        return put_away(&sandbox, &exec).await;
    }
    let pids = with_marker(&marker);
    let before: Vec<_> = pids.iter().map(|&pid| used(pid)).collect();
    let taken = sandbox.snapshot(SnapshotOptions::default()).await.unwrap();
    assert_eq!(taken.processes, 1);
    let [fork] = &sandbox.fork(1).await.unwrap()[..] else { panic!("one was wanted") };
    assert_eq!(state_of(stage, fork).await, SandboxState::Running, "a fork has nothing that is paused");
    assert_eq!(text(&run(fork, shell("cat note")).await.stdout), "kept");
    if stage.has_root() || stage.runtime == RuntimeKind::Native {
        stage.house.digest(sandbox.id()).await.unwrap();
        stage.house.diff(sandbox.id(), None, DiffOptions::default()).await.unwrap();
    }
    assert_eq!(state_of(stage, &sandbox).await, SandboxState::Paused);
    let_others_run();
    let after: Vec<_> = pids.iter().map(|&pid| used(pid).map(|(ticks, _)| ticks)).collect();
    let before: Vec<_> = before.iter().map(|used| used.map(|(ticks, _)| ticks)).collect();
    assert_eq!(after, before, "it ran while it was looked at");
    sandbox.resume().await.unwrap();
    assert!(runs(&sandbox, exec.id()).await);
    put_away(&sandbox, &exec).await;
    stage.house.remove_snapshot(&taken.id).await.unwrap();
}

async fn a_reset_resumes_a_box(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let marker = stage.marker();
    sandbox.exec(counting(&marker)).await.unwrap();
    settle("it counts", async || !with_marker(&marker).is_empty()).await;
    sandbox.pause().await.unwrap();
    if !has_state(stage) {
        assert_eq!(sandbox.reset().await.unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(state_of(stage, &sandbox).await, SandboxState::Paused);
        return;
    }
    sandbox.reset().await.unwrap();
    settle("nothing of what was paused is left", async || with_marker(&marker).is_empty()).await;
    assert_eq!(state_of(stage, &sandbox).await, SandboxState::Running);
    assert_eq!(stdout_of(&sandbox, "echo on").await, "on\n");
}

async fn a_paused_box_can_be_stopped_and_started(stage: &Stage) {
    if !has_state(stage) {
        return;
    }
    let sandbox = stage.sandbox().await;
    sandbox.write_file("note", b"kept", None).await.unwrap();
    let marker = stage.marker();
    sandbox.exec(counting(&marker)).await.unwrap();
    sandbox.pause().await.unwrap();
    let error = stage.house.start(sandbox.id()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    stage.house.stop(sandbox.id()).await.unwrap();
    assert!(with_marker(&marker).is_empty());
    assert_eq!(state_of(stage, &sandbox).await, SandboxState::Stopped);
    let error = stage.house.pause(sandbox.id()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let again = stage.house.start(sandbox.id()).await.unwrap();
    assert_eq!(state_of(stage, &again).await, SandboxState::Running);
    assert_eq!(again.read_file("note", 0, None).await.unwrap(), b"kept");
}

async fn a_paused_box_can_be_removed(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let marker = stage.marker();
    let mut sleeper = Follow::start(&sandbox, argv(&["sleep", &marker])).await;
    sandbox.pause().await.unwrap();
    sandbox.destroy().await.unwrap();
    assert_eq!(sleeper.end().await.exit, Exit::Killed { by: Killer::Destroy });
    settle("nothing of it is left", async || with_marker(&marker).is_empty()).await;
}
