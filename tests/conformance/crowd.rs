//! Many commands at once in one box, and what they leave behind.

use glasshouse_sandbox::{ExecSpec, ExecState, Exit, NotStarted, Sandbox};

use glasshouse_tests::is_root;

use crate::follow::Follow;
use crate::stage::{argv, exit_of, on_every_runtime, perl, run, settle, shell, stdout_of, text};

on_every_runtime![
    sixty_four_commands_at_once_have_their_own_output_each,
    more_commands_than_a_box_takes_are_refused_one_by_one,
    orphans_are_collected,
    commands_that_come_and_go_leave_nothing_in_the_guest,
];

async fn sixty_four_commands_at_once_have_their_own_output_each(sandbox: &Sandbox) {
    let mut commands = Vec::new();
    for n in 0..64 {
        let script = format!(
            "echo ready {n}; read word; i=0; while [ $i -lt 50 ]; do i=$((i+1)); echo {n} $word $i; done"
        );
        commands.push(Follow::start(sandbox, ExecSpec { stdin: true, ..shell(&script) }).await);
    }
    for (n, command) in commands.iter_mut().enumerate() {
        assert_eq!(command.line().await, format!("ready {n}"));
    }
    let running = sandbox.execs().await.unwrap();
    assert_eq!(running.iter().filter(|info| info.state == ExecState::Running).count(), 64, "all at once");
    for (n, command) in commands.iter().enumerate() {
        command.exec.input().write(format!("word{n}\n").as_bytes()).await.unwrap();
    }
    for (n, command) in commands.iter_mut().enumerate() {
        assert_eq!(command.end().await.exit, Exit::Code { code: 0 });
        let expected: String = (1..=50).map(|i| format!("{n} word{n} {i}\n")).collect();
        assert_eq!(String::from_utf8(command.stdout.clone()).unwrap(), format!("ready {n}\n{expected}"));
    }
}

async fn more_commands_than_a_box_takes_are_refused_one_by_one(sandbox: &Sandbox) {
    let mut held = Vec::new();
    let refused = loop {
        assert!(held.len() <= 256, "there is no bound");
        let mut next = Follow::start(sandbox, shell("echo up; exec sleep 1000")).await;
        next.step().await;
        match next.report {
            None => held.push(next),
            Some(report) => break report.exit,
        }
    };
    assert!(matches!(refused, Exit::NotStarted { why: NotStarted::TooMany, .. }), "{refused:?}");
    assert!(held.len() >= 64, "only {} at once", held.len());
    let mut last = held.pop().unwrap();
    last.exec.input().kill().await.unwrap();
    last.end().await;
    assert_eq!(
        exit_of(sandbox, argv(&["true"])).await,
        Exit::Code { code: 0 },
        "there is room for one again"
    );
}

/// Children of a process of the host that have ended and that nobody has collected.
fn zombies_of(parent: i32) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let is_one = |stat: &String| {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        Some(fields.next()? == "Z" && fields.next()?.parse::<i32>().ok()? == parent)
    };
    stats.filter(|stat| is_one(stat) == Some(true)).count()
}

async fn orphans_are_collected(sandbox: &Sandbox) {
    // Each child leaves a grandchild alone; whoever inherits those has to bury them.
    let script = "for (1..300) { if (!fork) { fork or exit 0; exit 0 } } 1 while wait > 0; print 'done'";
    let output = run(sandbox, perl(script)).await;
    assert_eq!((output.report.exit.clone(), text(&output.stdout).as_str()), (Exit::Code { code: 0 }, "done"));
    // And one whose parent ends before it does, with a command that has ended by then.
    let later = stdout_of(sandbox, "(sleep 0.2 &) ; echo left").await;
    assert_eq!(later, "left\n");
    let guest = sandbox.info().pid;
    settle("the dead are buried", async || zombies_of(guest) == 0).await;
}

async fn commands_that_come_and_go_leave_nothing_in_the_guest(sandbox: &Sandbox) {
    let count = |dir: &str| match std::fs::read_dir(format!("/proc/{}/{dir}", sandbox.info().pid)) {
        Ok(entries) => entries.count(),
        // Without privilege nobody looks into a guest, not even its maker; then there is nothing to compare.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied && !is_root() => 0,
        Err(error) => panic!("{error}"),
    };
    let round = async || {
        for _ in 0..20 {
            assert_eq!(stdout_of(sandbox, "echo x").await, "x\n");
            let killed = sandbox.exec(argv(&["sleep", "1000"])).await.unwrap();
            sandbox.kill_exec(killed.id()).await.unwrap();
            killed.collect().await;
        }
    };
    round().await;
    let before = (count("fd"), count("task"));
    for _ in 0..10 {
        round().await;
    }
    // Directories of commands that were killed may wait a moment for their turn.
    settle("descriptors and threads are no more than before", async || {
        stdout_of(sandbox, ":").await;
        count("fd") <= before.0 + 16 && count("task") == before.1
    })
    .await;
    assert_eq!(sandbox.execs().await.unwrap(), [], "nothing is kept of what was read to its end");
}
