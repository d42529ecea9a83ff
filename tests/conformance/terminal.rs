//! Commands in a terminal.

use glasshouse_sandbox::{ExecSpec, Exit, Sandbox, TtySize};

use crate::follow::Follow;
use crate::stage::{argv, exit_of, on_every_runtime, perl, run, shell, text};

on_every_runtime![
    all_three_are_the_terminal,
    a_terminal_has_the_size_that_was_asked_for,
    another_size_is_seen_and_announced,
    control_c_interrupts_the_foreground,
    a_signal_from_the_keyboard_is_a_signal,
    stdout_and_stderr_are_one_in_order,
    closing_is_the_end_of_the_input,
    the_terminal_is_the_sessions_own,
    a_terminal_echoes_and_edits_lines,
    without_a_terminal_there_is_none,
];

const SIZE: TtySize = TtySize { rows: 33, cols: 101 };

fn in_terminal(spec: ExecSpec) -> ExecSpec {
    ExecSpec { tty: Some(SIZE), stdin: true, ..spec }
}

async fn all_three_are_the_terminal(sandbox: &Sandbox) {
    let spec = in_terminal(shell("[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo $TERM"));
    let output = run(sandbox, spec).await;
    assert_eq!(
        (output.report.exit.clone(), text(&output.stdout).trim()),
        (Exit::Code { code: 0 }, "xterm-256color")
    );
}

async fn a_terminal_has_the_size_that_was_asked_for(sandbox: &Sandbox) {
    let output = run(sandbox, in_terminal(argv(&["stty", "size"]))).await;
    assert_eq!(text(&output.stdout), "33 101\r\n");
}

async fn another_size_is_seen_and_announced(sandbox: &Sandbox) {
    // The handler speaks of what it was told; the first line says that it is there to be told. Perl looks for signals
    // between two naps, so those are short.
    let script = r#"
        $| = 1; $SIG{WINCH} = sub { print "told: ", `stty size` };
        print "ready\n"; select undef, undef, undef, 0.05 while 1
    "#;
    let mut watcher = Follow::start(sandbox, in_terminal(perl(script))).await;
    watcher.until("ready").await;
    let input = watcher.exec.input();
    input.resize(TtySize { rows: 50, cols: 132 }).await.unwrap();
    watcher.until("told: 50 132").await;
    input.resize(TtySize { rows: 7, cols: 9 }).await.unwrap();
    watcher.until("told: 7 9").await;
    input.kill().await.unwrap();
    watcher.end().await;
}

async fn control_c_interrupts_the_foreground(sandbox: &Sandbox) {
    // A shell hears of it when what it waits for has ended, so that does not last.
    let line = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done";
    let mut patient = Follow::start(sandbox, in_terminal(shell(line))).await;
    patient.until("ready").await;
    patient.exec.input().write(b"\x03").await.unwrap();
    patient.until("caught").await;
    assert_eq!(patient.end().await.exit, Exit::Code { code: 9 });
}

async fn a_signal_from_the_keyboard_is_a_signal(sandbox: &Sandbox) {
    for (key, signal) in [(b"\x03", 2), (b"\x1c", 3)] {
        let mut patient = Follow::start(sandbox, in_terminal(shell("echo ready; exec sleep 1000"))).await;
        patient.until("ready").await;
        patient.exec.input().write(key).await.unwrap();
        assert_eq!(patient.end().await.exit, Exit::Signal { signal });
    }
}

async fn stdout_and_stderr_are_one_in_order(sandbox: &Sandbox) {
    let script = r#"for (1..500) { syswrite STDOUT, "out $_\n"; syswrite STDERR, "err $_\n" }"#;
    let output = run(sandbox, in_terminal(perl(script))).await;
    let expected: String = (1..=500).map(|n| format!("out {n}\r\nerr {n}\r\n")).collect();
    assert!(text(&output.stdout) == expected, "{:.300}", text(&output.stdout));
    assert_eq!(output.stderr.total, 0);
}

async fn closing_is_the_end_of_the_input(sandbox: &Sandbox) {
    let mut cat = Follow::start(sandbox, in_terminal(shell("stty -echo; echo ready; cat; echo over"))).await;
    cat.until("ready").await;
    let input = cat.exec.input();
    input.write(b"a line\n").await.unwrap();
    cat.until("a line\r\n").await;
    input.close().await.unwrap();
    cat.until("over").await;
    assert_eq!(cat.end().await.exit, Exit::Code { code: 0 });
}

async fn the_terminal_is_the_sessions_own(sandbox: &Sandbox) {
    let output = run(sandbox, in_terminal(shell("echo heard > /dev/tty; tty > /dev/null && echo $?"))).await;
    assert_eq!(text(&output.stdout), "heard\r\n0\r\n");
    // Job control works: the shell may put another group into the foreground.
    let output = run(sandbox, in_terminal(argv(&["bash", "-mc", "sleep 0.01; echo done"]))).await;
    assert_eq!(
        (output.report.exit.clone(), text(&output.stdout).as_str()),
        (Exit::Code { code: 0 }, "done\r\n")
    );
}

async fn a_terminal_echoes_and_edits_lines(sandbox: &Sandbox) {
    let mut reader = Follow::start(sandbox, in_terminal(shell("read line; echo \"<$line>\""))).await;
    reader.exec.input().write(b"wrong\x15right\n").await.unwrap();
    reader.until("<right>").await;
    assert_eq!(reader.end().await.exit, Exit::Code { code: 0 });
}

async fn without_a_terminal_there_is_none(sandbox: &Sandbox) {
    assert_eq!(exit_of(sandbox, shell("[ -t 0 ] || [ -t 1 ] || [ -t 2 ]")).await, Exit::Code { code: 1 });
    // Nor may there be one by another name: a command has a session of its own.
    assert_ne!(exit_of(sandbox, shell(": < /dev/tty")).await, Exit::Code { code: 0 });
}
