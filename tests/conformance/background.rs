//! Commands of the background: their output is kept, numbered and bounded, and anybody may come for it later.

use glasshouse_sandbox::{ErrorKind, ExecSpec, ExecState, Exit, Sandbox};

use crate::follow::Follow;
use crate::stage::{Stage, argv, on_every_runtime, open, perl, put_away, run, settle, shell, stdout_of};

on_every_runtime![
    another_handle_reads_what_was_written_before_it_came,
    a_reader_may_begin_anywhere,
    after_the_end_output_and_report_are_still_there,
    whoever_does_not_follow_is_told_where_it_stands,
    whoever_follows_hears_the_rest,
    two_readers_read_the_same,
    what_is_not_kept_is_a_gap_with_exact_places,
    output_goes_on_while_nobody_reads,
    a_command_outlives_the_client_that_started_it,
    a_command_that_nobody_knows_cannot_be_read,
    commands_are_listed_with_what_is_known_of_them,
    what_has_ended_holds_one_descriptor_at_the_most,
    what_a_command_leaves_behind_may_write_for_ever,
];

/// Leaves writers behind that never let a large pipe be empty, and ends.
const LEAVES_WRITERS: &str = "fcntl(STDOUT, 1031, 1 << 20); my $x = 'x' x 65536; print \"own\\n\"; $| = 1; \
    for (1 .. 4) { if (!fork) { syswrite(STDOUT, $x) while 1 } }";

async fn what_a_command_leaves_behind_may_write_for_ever(sandbox: &Sandbox) {
    let exec = start(sandbox, perl(LEAVES_WRITERS)).await;
    wait_end(sandbox, exec).await;
    let output = run(sandbox, perl(LEAVES_WRITERS)).await;
    assert!(output.report.exit.success(), "{:?}", output.report);
    assert!(output.stdout.bytes.starts_with(b"own\n"));
    assert_eq!(stdout_of(sandbox, "echo the box goes on").await, "the box goes on\n");
    sandbox.reset().await.map_or_else(|error| assert_eq!(error.kind(), ErrorKind::Unsupported), |_| ());
}

fn background(spec: ExecSpec) -> ExecSpec {
    ExecSpec { background: true, ..spec }
}

/// Starts a command of the background and lets go of it.
async fn start(sandbox: &Sandbox, spec: ExecSpec) -> u64 {
    sandbox.exec(background(spec)).await.unwrap().id()
}

async fn wait_end(sandbox: &Sandbox, exec: u64) {
    Follow::attach(sandbox, exec, 0, true).await.end().await;
}

async fn another_handle_reads_what_was_written_before_it_came(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let exec = start(&sandbox, shell("echo one; echo two >&2; echo three; exec sleep 1000")).await;
    // As another process would: its own view of the house, its own connection.
    let second = open(&stage.home()).get(sandbox.id()).await.unwrap();
    let mut reader = Follow::attach(&second, exec, 0, true).await;
    while reader.place < 14 {
        reader.step().await;
    }
    assert_eq!((reader.exec.id(), reader.stdout.as_slice()), (exec, &b"one\nthree\n"[..]));
    assert_eq!(reader.stderr, b"two\n");
    second.kill_exec(exec).await.unwrap();
    reader.end().await;
}

async fn a_reader_may_begin_anywhere(sandbox: &Sandbox) {
    let exec = start(sandbox, perl("print 'x' x 10, 'y' x 10; exit 6")).await;
    wait_end(sandbox, exec).await;
    for (from, expected) in [(0, "xxxxxxxxxxyyyyyyyyyy"), (5, "xxxxxyyyyyyyyyy"), (19, "y"), (20, "")] {
        let mut reader = Follow::attach(sandbox, exec, from, true).await;
        assert_eq!(reader.end().await.exit, Exit::Code { code: 6 });
        assert_eq!(String::from_utf8(reader.stdout).unwrap(), expected, "from {from}");
    }
    // There is nothing beyond the end, and it is no place to wait at either.
    let mut beyond = Follow::attach(sandbox, exec, 1000, true).await;
    assert_eq!(beyond.end().await.exit, Exit::Code { code: 6 });
    assert_eq!(beyond.stdout, b"");
}

async fn after_the_end_output_and_report_are_still_there(sandbox: &Sandbox) {
    let exec = start(sandbox, shell("echo words; exit 9")).await;
    wait_end(sandbox, exec).await;
    let mut reports = Vec::new();
    for follow in [true, false] {
        let mut reader = Follow::attach(sandbox, exec, 0, follow).await;
        reports.push(reader.end().await);
        assert_eq!((reader.stdout.as_slice(), reader.up_to_date), (&b"words\n"[..], None));
    }
    assert_eq!(reports[0], reports[1]);
    assert_eq!((reports[0].exit.clone(), reports[0].stdout_bytes), (Exit::Code { code: 9 }, 6));
}

async fn whoever_does_not_follow_is_told_where_it_stands(sandbox: &Sandbox) {
    let exec = start(sandbox, shell("echo now; exec sleep 1000")).await;
    let mut first = Follow::attach(sandbox, exec, 0, true).await;
    first.until("now\n").await;
    let mut glance = Follow::attach(sandbox, exec, 0, false).await;
    while glance.step().await {}
    assert_eq!((glance.stdout.as_slice(), glance.up_to_date, glance.report), (&b"now\n"[..], Some(4), None));
    put_away(sandbox, &first.exec).await;
}

async fn whoever_follows_hears_the_rest(sandbox: &Sandbox) {
    stdout_of(sandbox, "mkfifo go").await;
    let exec = start(sandbox, shell("echo before; read word < go; echo after $word")).await;
    let mut reader = Follow::attach(sandbox, exec, 0, true).await;
    assert_eq!(reader.line().await, "before");
    stdout_of(sandbox, "echo all > go").await;
    assert_eq!(reader.line().await, "after all");
    assert_eq!(reader.end().await.exit, Exit::Code { code: 0 });
}

async fn two_readers_read_the_same(sandbox: &Sandbox) {
    let script = r#"for (1..2000) { syswrite STDOUT, "out $_\n"; syswrite STDERR, "err $_\n" }"#;
    let exec = start(sandbox, perl(script)).await;
    let mut readers =
        [Follow::attach(sandbox, exec, 0, true).await, Follow::attach(sandbox, exec, 0, true).await];
    let [first, second] = &mut readers;
    let (one, two) = tokio::join!(first.end(), second.end());
    assert_eq!(one, two);
    assert_eq!((&first.stdout, &first.stderr), (&second.stdout, &second.stderr));
    assert_eq!((first.stdout.len(), first.stderr.len()), (16_893, 16_893));
}

/// Ten bytes a line, so that every place tells what has to be there.
const NUMBERS: &str = r#"printf "%09d\n", $_ for 0..399999"#;

fn numbers(from: u64, to: u64) -> Vec<u8> {
    let lines: String = (from / 10..to.div_ceil(10)).map(|n| format!("{n:09}\n")).collect();
    lines.as_bytes()[(from % 10) as usize..][..(to - from) as usize].to_vec()
}

async fn what_is_not_kept_is_a_gap_with_exact_places(sandbox: &Sandbox) {
    let spec = ExecSpec { kept_output_bytes: Some(100_000), ..perl(NUMBERS) };
    let exec = start(sandbox, spec).await;
    wait_end(sandbox, exec).await;
    let mut reader = Follow::attach(sandbox, exec, 0, true).await;
    let report = reader.end().await;
    assert_eq!((report.stdout_bytes, reader.place), (4_000_000, 4_000_000), "every byte is counted");
    let [(from, to)] = reader.gaps[..] else { panic!("one gap, not {:?}", reader.gaps) };
    let (head, tail) = reader.stdout.split_at(from as usize);
    assert!(head == numbers(0, from), "the head is what was written first");
    assert!(tail == numbers(to, 4_000_000), "the tail is what was written last");
    assert!(head.len() >= 40_000 && tail.len() >= 40_000, "{} and {} bytes", head.len(), tail.len());
    // Somewhat more may be kept for those who read along, and no more than that.
    assert!(reader.stdout.len() <= 1_200_000, "{} bytes are kept", reader.stdout.len());

    let mut inside = Follow::attach(sandbox, exec, from + 5, true).await;
    inside.end().await;
    assert_eq!(inside.gaps, [(from + 5, to)], "whoever begins in the gap is told of the rest of it");
}

async fn output_goes_on_while_nobody_reads(sandbox: &Sandbox) {
    // The holder does not read, and the command does not wait for it: it is of the background.
    let holder = sandbox.exec(background(perl(NUMBERS))).await.unwrap();
    settle("the command ends by itself", async || {
        let execs = sandbox.execs().await.unwrap();
        execs.iter().any(|info| info.exec == holder.id() && info.state != ExecState::Running)
    })
    .await;
    let mut reader = Follow::attach(sandbox, holder.id(), 0, true).await;
    assert_eq!(reader.end().await.exit, Exit::Code { code: 0 });
    assert_eq!(reader.place, 4_000_000);
}

async fn a_command_outlives_the_client_that_started_it(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    stdout_of(&sandbox, "mkfifo go").await;
    let (id, home) = (sandbox.id().to_owned(), stage.home());
    let client = std::thread::spawn(move || {
        let executor = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let exec = executor.block_on(async {
            let sandbox = open(&home).get(&id).await.unwrap();
            let spec = shell("echo begun; read word < go; echo $word; exit 4");
            let mut follow = Follow::start(&sandbox, background(spec)).await;
            assert_eq!(follow.line().await, "begun");
            follow.exec.id()
        });
        executor.shutdown_timeout(crate::stage::WAIT_LIMIT);
        exec
    });
    let exec = client.join().unwrap();
    stdout_of(&sandbox, "echo went on > go").await;
    let mut later = Follow::attach(&sandbox, exec, 0, true).await;
    assert_eq!(later.end().await.exit, Exit::Code { code: 4 });
    assert_eq!(later.stdout, b"begun\nwent on\n", "nothing is lost");
}

async fn a_command_that_nobody_knows_cannot_be_read(sandbox: &Sandbox) {
    for exec in [0, 4711, u64::MAX] {
        assert_eq!(sandbox.attach(exec, 0, true).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
}

async fn commands_are_listed_with_what_is_known_of_them(sandbox: &Sandbox) {
    let label = Some("what the caller calls it".to_owned());
    let spec = ExecSpec { label: label.clone(), ..argv(&["sh", "-c", "echo $$; exec sleep 1000"]) };
    let exec = start(sandbox, spec).await;
    let mut reader = Follow::attach(sandbox, exec, 0, true).await;
    let pid = reader.line().await;
    let ended = start(sandbox, shell("exit 3")).await;
    wait_end(sandbox, ended).await;
    let execs = sandbox.execs().await.unwrap();
    let [running, over] = &execs[..] else { panic!("{execs:?}") };
    assert_eq!((running.exec, over.exec), (exec, ended));
    assert_eq!((running.state.clone(), running.background), (ExecState::Running, true));
    assert_eq!((&running.label, running.pid.map(|pid| pid.to_string())), (&label, Some(pid.clone())));
    assert_eq!(
        (running.command.last().unwrap().as_str(), running.output_bytes),
        ("echo $$; exec sleep 1000", pid.len() as u64 + 1)
    );
    let created_ms = sandbox.info().created_ms;
    assert!(running.started_ms + 1000 >= created_ms && over.started_ms >= running.started_ms, "{execs:?}");
    let ExecState::Ended(report) = &over.state else { panic!("{over:?}") };
    assert_eq!((report.exit.clone(), over.pid), (Exit::Code { code: 3 }, None));
    assert_eq!(over.command, ["/bin/sh", "-c", "exit 3"]);
    sandbox.kill_exec(exec).await.unwrap();
}

async fn what_has_ended_holds_one_descriptor_at_the_most(sandbox: &Sandbox) {
    // Of a guest in a box, only root can see that.
    let fds = format!("/proc/{}/fd", sandbox.info().pid);
    let count = || std::fs::read_dir(&fds).map(Iterator::count);
    for (script, each) in [("print 'x'", 0), ("print 'x' x (64 << 10)", 1)] {
        run(sandbox, background(perl(script))).await;
        let Ok(before) = count() else { return };
        for _ in 0..50 {
            run(sandbox, background(perl(script))).await;
        }
        let more = count().unwrap().saturating_sub(before);
        assert!(more <= 50 * each, "{script}: 50 ended commands hold {more} descriptors");
    }
}
