//! The life of a box: who finds it, what ends it, and how its commands learn that.

use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::time::Duration;

use glasshouse_linux::process::{open as open_process, signal_pid, start_ticks, wait_end};
use glasshouse_sandbox::{ErrorKind, ExecSpec, Exit, Killer, Limits, Sandbox, SandboxSpec, SandboxState};

use crate::follow::Follow;
use crate::stage::{Stage, WAIT_LIMIT, argv, on_every_runtime, open, settle, shell, stdout_of};

on_every_runtime![
    a_box_outlives_whoever_made_it,
    a_box_is_found_by_id_beginning_and_name,
    a_name_is_taken_once,
    a_box_that_nobody_knows_is_not_found,
    a_box_ends_when_its_time_is_over,
    commands_of_a_box_that_is_removed_say_so,
    commands_of_a_box_that_is_removed_by_another_say_so,
    commands_of_a_box_that_dies_say_so,
    a_dead_box_takes_no_commands_and_is_cleaned_up,
    removing_a_box_twice_is_no_error,
    a_box_dies_with_its_owner,
    an_owner_that_is_not_there_is_refused,
    nothing_of_a_box_is_left_when_it_is_removed,
    a_crowd_goes_with_its_box,
    a_crowd_dies_with_its_box,
    boxes_do_not_see_each_others_files,
];

async fn a_box_outlives_whoever_made_it(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    sandbox.write_file("note", b"from before", None).await.unwrap();
    let id = sandbox.id().to_owned();
    drop(sandbox);
    let later = open(&stage.home()).get(&id).await.unwrap();
    assert_eq!(later.read_file("note", 0, None).await.unwrap(), b"from before");
    assert_eq!(later.info().id, id);
}

async fn a_box_is_found_by_id_beginning_and_name(stage: &Stage) {
    let labels = [("task".to_owned(), "seven".to_owned())].into();
    let spec = SandboxSpec { name: Some("my-box".into()), labels, ..SandboxSpec::default() };
    let sandbox = stage.create(spec).await.unwrap();
    let other = stage.sandbox().await;
    for name in [sandbox.id(), &sandbox.id()[..5], "my-box"] {
        assert_eq!(stage.house.get(name).await.unwrap().id(), sandbox.id(), "{name}");
    }
    let listed = stage.house.list().await.unwrap();
    let ids: Vec<_> = listed.iter().map(|info| info.id.as_str()).collect();
    assert_eq!(ids, [sandbox.id(), other.id()], "in the order in which they were made");
    assert_eq!((listed[0].name.as_deref(), listed[0].labels["task"].as_str()), (Some("my-box"), "seven"));
    assert_eq!((&listed[0], listed[0].state), (sandbox.info(), SandboxState::Running));
}

async fn a_name_is_taken_once(stage: &Stage) {
    let spec = || SandboxSpec { name: Some("only-one".into()), ..SandboxSpec::default() };
    let first = stage.create(spec()).await.unwrap();
    assert_eq!(stage.refusal(spec()).await.kind(), ErrorKind::Exists);
    assert_eq!(stage.house.list().await.unwrap().len(), 1, "nothing is left of the second");
    first.destroy().await.unwrap();
    stage.create(spec()).await.expect("a name is free again when its box is gone");
}

async fn a_box_that_nobody_knows_is_not_found(stage: &Stage) {
    for name in ["nothing-here", "", "..", "/", "aaaaaaaaaa"] {
        let error = stage.house.get(name).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid), "{name:?}: {error}");
        stage.house.destroy(name).await.unwrap_err();
    }
}

async fn a_box_ends_when_its_time_is_over(stage: &Stage) {
    let limits = Limits { ttl: Some(Duration::from_secs(1)), ..Limits::default() };
    let sandbox = stage.create(SandboxSpec { limits, ..SandboxSpec::default() }).await.unwrap();
    let mut sleeper = Follow::start(&sandbox, argv(&["sleep", "1000"])).await;
    let report = sleeper.end().await;
    assert_eq!(report.exit, Exit::Killed { by: Killer::Ttl });
    assert!(report.wall_us > 0, "it ran for a while: {report:?}");
    check_gone(stage, &sandbox).await;
}

/// Waits until the first process is gone, and looks whether the house knows.
async fn check_gone(stage: &Stage, sandbox: &Sandbox) {
    wait_for_death(sandbox).await;
    assert_eq!(stage.house.list().await.unwrap(), [], "the house knows that it is gone");
}

async fn wait_for_death(sandbox: &Sandbox) {
    let (pid, ticks) = (sandbox.info().pid, sandbox.info().start_ticks);
    settle("the box's first process is gone", async || {
        // Whoever made the box buries it later; a dead process with its number does not live.
        start_ticks(pid).map_or(true, |found| found != ticks) || is_zombie(pid)
    })
    .await;
}

fn is_zombie(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

async fn commands_of_a_box_that_is_removed_say_so(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let mut sleeper = Follow::start(&sandbox, shell("echo begun; exec sleep 1000")).await;
    assert_eq!(sleeper.line().await, "begun");
    sandbox.destroy().await.unwrap();
    assert_eq!(sleeper.end().await.exit, Exit::Killed { by: Killer::Destroy });
    check_gone(stage, &sandbox).await;
}

async fn commands_of_a_box_that_is_removed_by_another_say_so(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let mut sleeper = Follow::start(&sandbox, argv(&["sleep", "1000"])).await;
    let removed = open(&stage.home()).destroy(sandbox.id()).await.unwrap();
    assert_eq!(removed, sandbox.id());
    assert_eq!(sleeper.end().await.exit, Exit::Killed { by: Killer::Destroy });
    check_gone(stage, &sandbox).await;
}

async fn commands_of_a_box_that_dies_say_so(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let mut sleeper = Follow::start(&sandbox, shell("echo begun; exec sleep 1000")).await;
    assert_eq!(sleeper.line().await, "begun");
    signal_pid(sandbox.info().pid, 9).unwrap();
    let report = sleeper.end().await;
    let Exit::BoxGone { why } = &report.exit else { panic!("{report:?}") };
    assert!(why.len() > 10, "{why:?} says nothing");
    assert_eq!((report.exit.shell_code(), report.stdout_bytes), (125, 6), "what came before is told");
}

async fn a_dead_box_takes_no_commands_and_is_cleaned_up(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let info = sandbox.info().clone();
    signal_pid(info.pid, 9).unwrap();
    wait_for_death(&sandbox).await;
    settle("the handle knows it", async || sandbox.exec(argv(&["true"])).await.is_err()).await;
    let error = sandbox.exec(argv(&["true"])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    assert_eq!(sandbox.read_file("/etc/passwd", 0, None).await.unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(sandbox.execs().await.unwrap_err().kind(), ErrorKind::Gone);
    settle("the house knows it", async || match stage.house.info(&info.id).await {
        Ok(found) => found.state == SandboxState::Dead,
        Err(_) => true,
    })
    .await;
    assert_eq!(stage.house.get(&info.id).await.unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(stage.house.gc().await.unwrap().boxes, [info.id.as_str()]);
    assert_eq!(stage.house.get(&info.id).await.unwrap_err().kind(), ErrorKind::NotFound);
}

async fn removing_a_box_twice_is_no_error(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    sandbox.destroy().await.unwrap();
    sandbox.destroy().await.unwrap();
    assert_eq!(stage.house.get(sandbox.id()).await.unwrap_err().kind(), ErrorKind::NotFound);
    let dead = stage.sandbox().await;
    signal_pid(dead.info().pid, 9).unwrap();
    wait_for_death(&dead).await;
    dead.destroy().await.unwrap();
    assert_eq!(stage.house.list().await.unwrap(), []);
}

/// A process that can own a box, and is collected by us.
struct Owner(Child);

impl Owner {
    fn start() -> Owner {
        Owner(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // One that is dead already is dead.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn a_box_dies_with_its_owner(stage: &Stage) {
    let mut owner = Owner::start();
    let spec = SandboxSpec { owner: Some(owner.0.id()), ..SandboxSpec::default() };
    let sandbox = stage.create(spec).await.unwrap();
    assert_eq!(sandbox.info().owner, Some(owner.0.id()));
    let mut sleeper = Follow::start(&sandbox, shell("echo begun; exec sleep 1000")).await;
    assert_eq!(sleeper.line().await, "begun");
    let pidfd = open_process(sandbox.info().pid).unwrap();
    owner.kill();
    let exit = sleeper.end().await.exit;
    assert!(matches!(exit, Exit::Killed { by: Killer::Destroy } | Exit::BoxGone { .. }), "{exit:?}");
    let gone = tokio::task::spawn_blocking(move || wait_end(pidfd.as_fd(), WAIT_LIMIT));
    assert!(gone.await.unwrap().unwrap(), "the box lives on");
    check_gone(stage, &sandbox).await;
}

async fn an_owner_that_is_not_there_is_refused(stage: &Stage) {
    let mut owner = Owner::start();
    let pid = owner.0.id();
    owner.kill();
    let error = stage.refusal(SandboxSpec { owner: Some(pid), ..SandboxSpec::default() }).await;
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(stage.house.list().await.unwrap(), []);
}

async fn nothing_of_a_box_is_left_when_it_is_removed(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let marker = stage.marker();
    stdout_of(&sandbox, &format!("setsid sleep {marker} > /dev/null 2>&1 & echo x > file")).await;
    let box_dir = stage.home().join("boxes").join(sandbox.id());
    assert!(box_dir.is_dir(), "{}", box_dir.display());
    sandbox.destroy().await.unwrap();
    assert!(!box_dir.exists(), "its directory");
    settle("its last process is gone", async || processes_with(&marker) == 0).await;
}

/// Processes of the host with this among their arguments.
fn processes_with(marker: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let cmdlines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    cmdlines.filter(|line| line.windows(marker.len()).any(|window| window == marker.as_bytes())).count()
}

async fn a_crowd_goes_with_its_box(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let marker = stage.marker();
    let mut crowd = Vec::new();
    for _ in 0..200 {
        crowd.push(sandbox.exec(argv(&["sleep", &marker])).await.unwrap());
    }
    settle("all of them run", async || processes_with(&marker) == 200).await;
    sandbox.destroy().await.unwrap();
    for exec in crowd {
        assert_eq!(exec.collect().await.report.exit, Exit::Killed { by: Killer::Destroy });
    }
    settle("none of them is left", async || processes_with(&marker) == 0).await;
}

async fn a_crowd_dies_with_its_box(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let marker = stage.marker();
    let mut crowd = Vec::new();
    for n in 0..20 {
        let spec = argv(&["sleep", &marker]);
        crowd.push(sandbox.exec(ExecSpec { background: n % 2 == 0, ..spec }).await.unwrap());
    }
    settle("all of them run", async || processes_with(&marker) == 20).await;
    signal_pid(sandbox.info().pid, 9).unwrap();
    // Nobody is left to end them, and nobody needs to come and clean up first.
    settle("none of them is left", async || processes_with(&marker) == 0).await;
    for exec in crowd {
        let exit = exec.collect().await.report.exit;
        assert!(matches!(exit, Exit::BoxGone { .. }), "{exit:?}");
    }
}

async fn boxes_do_not_see_each_others_files(stage: &Stage) {
    let (one, two) = (stage.sandbox().await, stage.sandbox().await);
    one.write_file("mine", b"1", None).await.unwrap();
    assert_eq!(two.read_file("mine", 0, None).await.unwrap_err().kind(), ErrorKind::NotFound);
    two.write_file("mine", b"2", None).await.unwrap();
    assert_eq!(stdout_of(&one, "cat mine").await, "1");
}
