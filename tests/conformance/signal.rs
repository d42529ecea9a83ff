//! Signals, and commands that are ended on purpose.

use glasshouse_sandbox::{ErrorKind, ExecSpec, ExecState, Exit, Killer, Sandbox};

use crate::alone::{is_alone, run_alone};
use crate::follow::Follow;
use crate::stage::{
    Stage, argv, exit_of, on_every_runtime, open, perl, run, runs, settle, shell, start_with_pid, stdout_of,
    text, wait_gone,
};

on_every_runtime![
    signal_death_is_not_an_exit_code,
    a_crash_is_its_signal,
    what_the_host_ignores_commands_do_not,
    a_signal_reaches_the_main_process_alone,
    a_signal_may_go_to_the_whole_group,
    a_signal_to_nobody_or_of_no_kind_is_refused,
    a_killed_command_says_who_did_it,
    a_kill_takes_the_whole_tree_with_it,
    a_foreground_command_ends_with_its_holder,
    a_background_command_outlives_its_holder,
    a_foreground_command_ends_with_its_connection,
];

async fn signal_death_is_not_an_exit_code(sandbox: &Sandbox) {
    for (name, signal) in [("SEGV", 11), ("KILL", 9), ("TERM", 15), ("HUP", 1), ("ABRT", 6), ("PIPE", 13)] {
        let exit = exit_of(sandbox, shell(&format!("kill -{name} $$; sleep 1000"))).await;
        assert_eq!((exit.clone(), exit.shell_code()), (Exit::Signal { signal }, 128 + signal));
        let code = 128 + signal;
        assert_eq!(exit_of(sandbox, shell(&format!("exit {code}"))).await, Exit::Code { code });
    }
}

async fn a_crash_is_its_signal(sandbox: &Sandbox) {
    // Perl reads a string at an address where there is nothing.
    assert_eq!(exit_of(sandbox, perl("print unpack 'p', pack 'Q', 1")).await, Exit::Signal { signal: 11 });
}

/// A process passes on to others what it ignores, so this one has to ignore something first: it is run once more by a
/// shell that does.
async fn what_the_host_ignores_commands_do_not(sandbox: &Sandbox) {
    let name = format!("signal::{}::what_the_host_ignores_commands_do_not", sandbox.info().runtime.name());
    if !is_alone() {
        let shell = ["sh", "-c", "trap '' HUP INT QUIT PIPE TERM USR1; exec \"$0\" \"$@\""];
        return run_alone(&name, &shell).await;
    }
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    assert!(!own.contains("SigIgn:\t0000000000000000"), "this process ignores something itself");
    let output = run(sandbox, argv(&["sed", "-n", "s/^Sig[IB][gl][nk]:\t//p", "/proc/self/status"])).await;
    let sets = text(&output.stdout);
    // The two signals that a libc uses itself are its own affair: it sets what it does with them when it needs them.
    let others = |set: &str| u64::from_str_radix(set, 16).expect("a set of signals") & !(0b11 << 31);
    assert_eq!(sets.lines().map(others).collect::<Vec<_>>(), [0, 0], "blocked and ignored: {sets}");
}

/// Two processes of one group that say who has heard a signal; first of all, the number of the child.
const PAIR: &str = r#"
    $| = 1; pipe my $up, my $down; my $child = fork; my $who = $child ? 'main' : 'child';
    $SIG{USR1} = sub { syswrite STDOUT, "$who\n" };
    if ($child) { sysread $up, $_, 1 } else { syswrite $down, 'x' }
    print "$child\n" if $child; select undef, undef, undef, 0.05 while 1
"#;

async fn a_signal_reaches_the_main_process_alone(sandbox: &Sandbox) {
    let (mut pair, child) = start_with_pid(sandbox, perl(PAIR)).await;
    pair.exec.input().signal(10).await.unwrap();
    assert_eq!(pair.line().await, "main");
    sandbox.signal(pair.exec.id(), 10, false).await.unwrap();
    assert_eq!(pair.line().await, "main");
    sandbox.signal(pair.exec.id(), 15, false).await.unwrap();
    // Nobody here sent that for a limit: it is the signal, as it would be from anybody.
    assert_eq!(pair.end().await.exit, Exit::Signal { signal: 15 });
    let heard = format!("{child}\nmain\nmain\n");
    assert_eq!(String::from_utf8(pair.stdout).unwrap(), heard, "the child has heard nothing");
    stdout_of(sandbox, &format!("kill -KILL {child}")).await;
}

async fn a_signal_may_go_to_the_whole_group(sandbox: &Sandbox) {
    let (mut pair, _) = start_with_pid(sandbox, perl(PAIR)).await;
    sandbox.signal(pair.exec.id(), 10, true).await.unwrap();
    let mut heard = [pair.line().await, pair.line().await];
    heard.sort();
    assert_eq!(heard, ["child", "main"]);
    sandbox.signal(pair.exec.id(), 9, true).await.unwrap();
    assert_eq!(pair.end().await.exit, Exit::Signal { signal: 9 });
}

async fn a_signal_to_nobody_or_of_no_kind_is_refused(sandbox: &Sandbox) {
    assert_eq!(sandbox.signal(4711, 15, false).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(sandbox.kill_exec(4711).await.unwrap_err().kind(), ErrorKind::NotFound);
    let sleeper = sandbox.exec(argv(&["sleep", "1000"])).await.unwrap();
    for signal in [-1, 999] {
        assert_eq!(sandbox.signal(sleeper.id(), signal, false).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert!(runs(sandbox, sleeper.id()).await);
}

async fn a_killed_command_says_who_did_it(sandbox: &Sandbox) {
    let expected = Exit::Killed { by: Killer::Caller };
    let mut first = Follow::start(sandbox, argv(&["sleep", "1000"])).await;
    sandbox.kill_exec(first.exec.id()).await.unwrap();
    assert_eq!(first.end().await.exit, expected);
    let mut second = Follow::start(sandbox, argv(&["sleep", "1000"])).await;
    second.exec.input().kill().await.unwrap();
    let report = second.end().await;
    assert_eq!((report.exit.clone(), report.exit.shell_code()), (expected, 137));
    assert!(report.wall_us > 0);
}

async fn a_kill_takes_the_whole_tree_with_it(sandbox: &Sandbox) {
    let (mut parent, child) = start_with_pid(sandbox, shell("sleep 1000 & echo $!; wait")).await;
    sandbox.kill_exec(parent.exec.id()).await.unwrap();
    assert_eq!(parent.end().await.exit, Exit::Killed { by: Killer::Caller });
    wait_gone(sandbox, child).await;
}

async fn a_foreground_command_ends_with_its_holder(sandbox: &Sandbox) {
    // Whether it is silent, or has more to say than anybody takes.
    for line in ["echo $$; exec sleep 1000", "echo $$; exec yes"] {
        let (holder, pid) = start_with_pid(sandbox, shell(line)).await;
        drop(holder);
        wait_gone(sandbox, pid).await;
    }
}

async fn a_background_command_outlives_its_holder(sandbox: &Sandbox) {
    let spec = ExecSpec { background: true, ..shell("echo $$; exec sleep 1000") };
    let (holder, pid) = start_with_pid(sandbox, spec).await;
    let exec = holder.exec.id();
    drop(holder);
    // What a holder's end does to a command of the foreground, it has done by the time that another one is gone.
    a_foreground_command_ends_with_its_holder(sandbox).await;
    assert!(runs(sandbox, exec).await);
    sandbox.kill_exec(exec).await.unwrap();
    wait_gone(sandbox, pid).await;
}

async fn a_foreground_command_ends_with_its_connection(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let (id, home) = (sandbox.id().to_owned(), stage.home());
    // A client of its own, with all that it has; then it is gone without a word, as after kill -9.
    let client = std::thread::spawn(move || {
        let executor = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let held = executor.block_on(async {
            let sandbox = open(&home).get(&id).await.unwrap();
            let (follow, pid) = start_with_pid(&sandbox, shell("echo $$; exec sleep 1000")).await;
            (sandbox, follow, pid)
        });
        executor.shutdown_timeout(crate::stage::WAIT_LIMIT);
        let (_, follow, pid) = held;
        (follow.exec.id(), pid)
    });
    let (exec, pid) = client.join().unwrap();
    wait_gone(&sandbox, pid).await;
    settle("the end is told to whoever comes next", async || {
        let next = stage.house.get(sandbox.id()).await.unwrap();
        let execs = next.execs().await.unwrap();
        let state = execs.into_iter().find(|info| info.exec == exec).expect("the box knows it").state;
        match state {
            ExecState::Running => false,
            ExecState::Ended(report) => {
                assert_eq!(report.exit, Exit::Killed { by: Killer::Disconnect });
                true
            }
        }
    })
    .await;
}
