//! What a command writes: every byte, in order, numbered, and no longer than the command itself.

use std::time::Duration;

use glasshouse_sandbox::{ExecEvent, ExecSpec, Exit, OutputStream, Sandbox};

use crate::follow::Follow;
use crate::stage::{
    Stage, argv, exit_of, lives, on_every_runtime, perl, run, settle, shell, start_with_pid, stdout_of, text,
    wait_gone, within,
};

on_every_runtime![
    every_byte_value_arrives,
    what_is_no_text_arrives_as_it_is,
    stdout_and_stderr_stay_apart_and_in_order,
    many_small_writes_arrive_in_order,
    the_last_words_before_an_end_arrive,
    what_waits_in_the_pipe_at_the_end_arrives_however_late_it_is_read,
    what_is_too_long_to_collect_keeps_head_and_tail,
    a_reader_that_stops_holds_up_only_its_own_command,
    tiny_pieces_that_nobody_reads_hold_up_only_their_own_command,
    a_wait_that_is_given_up_loses_nothing,
    every_exit_code_is_told,
    the_end_is_the_end_of_the_main_process,
    what_a_daemon_writes_later_does_not_kill_it,
    a_command_may_close_its_output_and_go_on,
];

async fn every_byte_value_arrives(sandbox: &Sandbox) {
    let script = "for (1..300) { print STDOUT map chr, 0..255; print STDERR map chr, reverse 0..255 }";
    let mut all = Follow::start(sandbox, perl(script)).await;
    let report = all.end().await;
    let up: Vec<u8> = (0..300).flat_map(|_| 0..=255).collect();
    let down: Vec<u8> = (0..300).flat_map(|_| (0..=255).rev()).collect();
    assert!(all.stdout == up && all.stderr == down, "{} and {} bytes", all.stdout.len(), all.stderr.len());
    assert_eq!((report.stdout_bytes, report.stderr_bytes), (76_800, 76_800));
    assert_eq!(all.place, 153_600, "one numbering for both streams");
}

async fn what_is_no_text_arrives_as_it_is(sandbox: &Sandbox) {
    let output = run(sandbox, argv(&["printf", r"a\000b\377\376\303(\355\240\200"])).await;
    assert_eq!(output.stdout.bytes, b"a\0b\xff\xfe\xc3(\xed\xa0\x80");
}

async fn stdout_and_stderr_stay_apart_and_in_order(sandbox: &Sandbox) {
    let script = r#"for (1..3000) { syswrite STDOUT, "out $_\n"; syswrite STDERR, "err $_\n" }"#;
    let output = run(sandbox, perl(script)).await;
    let lines = |word: &str| (1..=3000).map(|n| format!("{word} {n}\n")).collect::<String>();
    assert_eq!(text(&output.stdout), lines("out"));
    assert_eq!(text(&output.stderr), lines("err"));
}

async fn many_small_writes_arrive_in_order(sandbox: &Sandbox) {
    let mut small = Follow::start(sandbox, perl("syswrite STDOUT, pack 'n', $_ for 0..49999")).await;
    let report = small.end().await;
    assert_eq!((report.exit, report.stdout_bytes), (Exit::Code { code: 0 }, 100_000));
    let expected: Vec<u8> = (0..50_000u16).flat_map(u16::to_be_bytes).collect();
    assert!(small.stdout == expected, "{} bytes, or others", small.stdout.len());
}

async fn the_last_words_before_an_end_arrive(sandbox: &Sandbox) {
    // As much as a pipe holds and more, and then at once the end.
    for round in 0..100 {
        let bytes = 60_000 + round * 100;
        let script = format!("print 'x' x {bytes}; print STDERR 'last'; kill 9, $$ if {round} % 2");
        let output = run(sandbox, perl(&format!("$|=1; {script}"))).await;
        assert_eq!(output.stdout.total, bytes, "{}", output.report.exit);
        assert_eq!(output.stdout.bytes.len() as u64, bytes);
        assert_eq!(text(&output.stderr), "last");
    }
}

async fn what_waits_in_the_pipe_at_the_end_arrives_however_late_it_is_read(sandbox: &Sandbox) {
    // Somewhere among these sizes are those with which a command can end while its last bytes are still in the pipe,
    // because every buffer after that is full. Larger ones wait for their reader.
    for kibibytes in (512..2816).step_by(64) {
        let script =
            format!("$| = 1; print \"$$\\n\"; syswrite STDOUT, 'x' x 65536 for 1..{}", kibibytes / 64);
        let (mut slow, pid) = start_with_pid(sandbox, perl(&script)).await;
        let line = slow.stdout.iter().position(|&byte| byte == b'\n').unwrap() as u64 + 1;
        let wait =
            format!("for i in 1 2 3 4 5 6 7 8 9; do [ -d /proc/{pid} ] && sleep 0.02; done; sleep 0.07");
        stdout_of(sandbox, &wait).await;
        let report = slow.end().await;
        assert_eq!(report.exit, Exit::Code { code: 0 });
        assert_eq!(
            (slow.place, report.stdout_bytes),
            (kibibytes * 1024 + line, slow.place),
            "of {kibibytes} KiB"
        );
    }
}

async fn what_is_too_long_to_collect_keeps_head_and_tail(sandbox: &Sandbox) {
    let spec = perl(r#"printf "%07d\n", $_ for 0..99999"#);
    let output = run(sandbox, ExecSpec { kept_output_bytes: Some(4000), ..spec }).await;
    let kept = output.stdout;
    assert_eq!((kept.total, output.report.stdout_bytes), (800_000, 800_000));
    let at = kept.gap_at.expect("most of it was not kept");
    let line = |n: usize| format!("{n:07}\n");
    let head: String = (0..100_000).map(line).take(at.div_ceil(8)).collect();
    let tail_lines = (kept.bytes.len() - at).div_ceil(8);
    let tail: String = (100_000 - tail_lines..100_000).map(line).collect();
    assert!(head.as_bytes().starts_with(&kept.bytes[..at]));
    assert!(tail.as_bytes().ends_with(&kept.bytes[at..]));
    assert!(
        at >= 1000 && kept.bytes.len() - at >= 1000 && kept.bytes.len() <= 4000,
        "{at} of {}",
        kept.bytes.len()
    );
}

/// Uses the box through the handle of a command that nobody reads, and then reads that to its end.
async fn check_others_go_on(sandbox: &Sandbox, slow: &mut Follow) {
    for round in 0..30 {
        let line = format!("echo {round}");
        let seen = within("another command of the box", stdout_of(sandbox, &line)).await;
        assert_eq!(seen.trim(), round.to_string());
    }
    assert_eq!(slow.end().await.exit, Exit::Code { code: 0 });
}

async fn a_reader_that_stops_holds_up_only_its_own_command(sandbox: &Sandbox) {
    let mut slow = Follow::start(sandbox, perl("print 'x' x 65536 for 1..200")).await;
    slow.step().await;
    check_others_go_on(sandbox, &mut slow).await;
    assert_eq!(slow.stdout.len(), 200 << 16);
}

async fn tiny_pieces_that_nobody_reads_hold_up_only_their_own_command(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    // Slowly enough that each byte is a piece of its own: few bytes, and more pieces than any queue holds.
    let script = "sub nap { select undef, undef, undef, 0.00002 }
        for (1..20000) { syswrite STDOUT, 'o'; nap; syswrite STDERR, 'e'; nap }";
    let mut slow = Follow::start(&sandbox, perl(script)).await;
    let watcher = stage.house.get(sandbox.id()).await.unwrap();
    settle("more is written than any queue holds", async || {
        // Then the command waits for its reader. One that is not listed any more has ended and been told of.
        watcher.execs().await.unwrap().first().is_none_or(|info| info.output_bytes >= 15_000)
    })
    .await;
    check_others_go_on(&sandbox, &mut slow).await;
    assert_eq!((&slow.gaps[..], slow.stdout.len(), slow.stderr.len()), (&[][..], 20_000, 20_000));
    assert!(slow.stdout == [b'o'; 20_000] && slow.stderr == [b'e'; 20_000]);
}

async fn a_wait_that_is_given_up_loses_nothing(sandbox: &Sandbox) {
    let mut exec = sandbox.exec(perl("syswrite STDOUT, pack 'n', $_ for 0..29999")).await.unwrap();
    let mut bytes = Vec::new();
    let (mut given_up, mut over) = (0, false);
    while !over {
        // Nothing is ready at once but what has come already; each other wait is broken off in the middle.
        match tokio::time::timeout(Duration::from_micros(20), exec.next()).await {
            Err(_) => given_up += 1,
            Ok(Some(ExecEvent::Output(chunk))) => {
                assert_eq!(chunk.offset, bytes.len() as u64);
                bytes.extend(chunk.bytes);
            }
            Ok(event) => over = matches!(event, Some(ExecEvent::Ended(_)) | None),
        }
    }
    let expected: Vec<u8> = (0..30_000u16).flat_map(u16::to_be_bytes).collect();
    assert!(bytes == expected, "{} bytes, or others, after {given_up} waits", bytes.len());
}

async fn every_exit_code_is_told(sandbox: &Sandbox) {
    for code in 0..=255 {
        assert_eq!(exit_of(sandbox, shell(&format!("exit {code}"))).await, Exit::Code { code });
    }
}

async fn the_end_is_the_end_of_the_main_process(sandbox: &Sandbox) {
    let output = within("the end", run(sandbox, shell("sleep 1000 & echo $!"))).await;
    assert_eq!(output.report.exit, Exit::Code { code: 0 });
    let sleeper: u32 = text(&output.stdout).trim().parse().unwrap();
    assert!(lives(sandbox, sleeper).await, "what it left behind lives on");
    stdout_of(sandbox, &format!("kill {sleeper}")).await;
    wait_gone(sandbox, sleeper).await;
}

async fn what_a_daemon_writes_later_does_not_kill_it(sandbox: &Sandbox) {
    stdout_of(sandbox, "mkfifo go done").await;
    // More than a pipe holds: it would wait for ever if nobody read, and die if the pipe were closed.
    let daemon = "(read line < go; head -c 1000000 /dev/zero; echo $? > done) &";
    let output = within("the end of its parent", run(sandbox, shell(daemon))).await;
    assert_eq!(output.report.exit, Exit::Code { code: 0 });
    let status = within("the daemon's work", stdout_of(sandbox, "echo > go; cat done")).await;
    assert_eq!(status, "0\n");
}

async fn a_command_may_close_its_output_and_go_on(sandbox: &Sandbox) {
    let mut exec = sandbox.exec(shell("echo a; exec >&- 2>&-; read x < /dev/null; exit 5")).await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = within("its next event", exec.next()).await {
        events.push(event);
    }
    let [ExecEvent::Output(chunk), ExecEvent::Ended(report)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((chunk.stream, chunk.offset, chunk.bytes.as_slice()), (OutputStream::Stdout, 0, &b"a\n"[..]));
    assert_eq!(report.exit, Exit::Code { code: 5 });
}
