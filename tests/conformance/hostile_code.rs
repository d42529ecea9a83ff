//! Code that means no good: its context ends with a true cause, the box and its other contexts live on.

use glasshouse_sandbox::{
    CodeResult, CodeSpec, ContextInfo, ContextSpec, ContextState, ExecEvent, ExecOutput, Exit, Killer,
    Language, Limits, RuntimeKind, Sandbox, SandboxSpec, Warm,
};

use crate::code::{context, error, run, run_spec, state, value};
use crate::stage::{Stage, on_every_runtime, settle, stdout_of, text, within};

on_every_runtime!(
    a_process_that_ends_itself_is_the_end_of_its_context,
    a_killed_interpreter_is_told_by_its_signal,
    killing_its_parent_ends_nobody_else,
    killing_everybody_is_told_by_everybody,
    killing_its_group_ends_its_own_context,
    closed_descriptors_end_the_context,
    streams_that_were_taken_apart_are_whole_in_the_next_run,
    threads_that_show_at_once_lose_nothing,
    an_interrupt_does_not_tear_a_result_apart,
    words_of_the_protocol_in_the_output_mean_nothing,
    words_of_the_protocol_on_the_line_end_the_context,
    nonsense_among_the_results_is_told_as_such,
    a_deep_recursion_is_an_error_or_a_crash,
    a_flood_of_output_ends_at_its_limit,
    a_gigabyte_of_output_passes_through,
    a_fork_bomb_stays_in_the_box,
    a_child_that_came_back_does_not_speak_for_its_parent,
    a_child_that_fails_says_so_on_stderr,
    replaced_builtins_do_not_lead_the_driver_astray,
    what_python_code_replaces_is_its_own_affair,
    what_javascript_code_replaces_is_its_own_affair,
    a_context_without_a_descriptor_left_says_so,
    a_thread_that_never_ends_does_not_hold_the_run,
    memory_that_runs_out_is_told_as_such,
    ten_thousand_runs_leave_nothing_behind,
);

async fn lost_by(sandbox: &Sandbox, code: &str) -> (ExecOutput, String) {
    let (bad, good) = (context(sandbox).await, context(sandbox).await);
    let output = run(sandbox, &bad, code).await;
    let ContextState::Lost { why } = state(sandbox, &bad).await else {
        panic!("{code}: it lives: {output:?}")
    };
    lives_on(sandbox, &good).await;
    sandbox.restart_context(&bad.id).await.expect("it can be started anew");
    assert_eq!(value(sandbox, &bad, "1 + 1").await, "2");
    (output, why)
}

async fn lives_on(sandbox: &Sandbox, context: &ContextInfo) {
    assert_eq!(value(sandbox, context, "1 + 1").await, "2");
    assert_eq!(stdout_of(sandbox, "echo lives").await, "lives\n");
}

async fn streams_that_were_taken_apart_are_whole_in_the_next_run(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    for apart in ["del sys.stdout", "sys.stdout.detach()", "sys.stdout.close()", "sys.stdout = None"] {
        let output = run(sandbox, &context, &format!("import sys\n{apart}\nNone")).await;
        assert!(output.report.exit.success(), "{apart}: {output:?}");
        assert_eq!(text(&run(sandbox, &context, "print('whole')").await.stdout), "whole\n", "{apart}");
    }
}

async fn threads_that_show_at_once_lose_nothing(sandbox: &Sandbox) {
    let code = "import threading\n\
        def show():\n  for _ in range(10): display({'text/plain': 'x' * 100000}, raw=True)\n\
        threads = [threading.Thread(target=show) for _ in range(4)]\n\
        for thread in threads: thread.start()\n\
        for thread in threads: thread.join()";
    let output = run(sandbox, &context(sandbox).await, code).await;
    let whole = output.results.iter().filter(
        |result| matches!(result, CodeResult::Display(shown) if shown.data["text/plain"].len() == 100_000),
    );
    assert_eq!((whole.count(), output.results.len()), (40, 40), "{:?}", output.report);
}

/// Whenever it comes, for what is shown fills the pipe.
async fn an_interrupt_does_not_tear_a_result_apart(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code = "import os, threading\nlong = 'x' * 1000000\n\
                threading.Timer(0.02, os.kill, (os.getpid(), 2)).start()\nwhile True: display(long)";
    for _ in 0..5 {
        let output = run(sandbox, &context, code).await;
        assert_eq!(error(&output).name, "KeyboardInterrupt");
        let shown = |result: &CodeResult| matches!(result, CodeResult::Display(_));
        let (_, before) = output.results.split_last().expect("it has an error");
        assert!(before.iter().all(shown), "{:?}", before.iter().find(|result| !shown(result)));
    }
}

async fn a_process_that_ends_itself_is_the_end_of_its_context(sandbox: &Sandbox) {
    let (output, why) = lost_by(sandbox, "import os\nos.write(1, b'last')\nos._exit(3)").await;
    assert_eq!(
        (output.report.exit, why.as_str()),
        (Exit::Code { code: 3 }, "its interpreter ended with code 3")
    );
    assert_eq!(text(&output.stdout), "last");
}

async fn a_killed_interpreter_is_told_by_its_signal(sandbox: &Sandbox) {
    let (output, why) = lost_by(sandbox, "import os\nos.kill(os.getpid(), 9)").await;
    assert_eq!(output.report.exit, Exit::Signal { signal: 9 });
    assert_eq!(why, "its interpreter was ended by signal 9");
    let (output, _) = lost_by(sandbox, "import ctypes\nctypes.string_at(8)").await;
    assert_eq!(output.report.exit, Exit::Signal { signal: 11 });
}

async fn killing_its_parent_ends_nobody_else(stage: &Stage) {
    if stage.runtime == RuntimeKind::Process {
        // There are no walls: the parent is a process of the same user, like any other of the machine.
        return;
    }
    let sandbox = stage.sandbox().await;
    let good = context(&sandbox).await;
    let warm = ContextSpec { warm: Some(Warm::default()), ..ContextSpec::default() };
    for bad in [context(&sandbox).await, sandbox.create_context(warm).await.unwrap()] {
        for signal in [9, 15, 19, 2, 1] {
            let code = format!(
                "import os\ntry: os.kill(os.getppid(), {signal})\nexcept PermissionError: pass\nos.getppid()"
            );
            let parent = value(&sandbox, &bad, &code).await;
            assert_eq!(value(&sandbox, &bad, "os.getppid()").await, parent, "{signal}: it is still there");
        }
        lives_on(&sandbox, &good).await;
    }
}

/// Processes of one user can signal each other, and contexts are processes: the box lives on, and each tells what ended it.
async fn killing_everybody_is_told_by_everybody(stage: &Stage) {
    if stage.runtime == RuntimeKind::Process {
        // Everybody would be everybody of the machine.
        return;
    }
    let sandbox = stage.sandbox().await;
    let (bad, other) = (context(&sandbox).await, context(&sandbox).await);
    // All but the first process and oneself.
    let output = run(&sandbox, &bad, "import os\nos.kill(-1, 9)\n'still here'").await;
    assert_eq!(output.report.exit, Exit::Code { code: 0 });
    settle("the other one is lost", async || {
        matches!(state(&sandbox, &other).await, ContextState::Lost { why } if why.contains("signal 9"))
    })
    .await;
    sandbox.restart_context(&other.id).await.expect("it can be started anew");
    lives_on(&sandbox, &other).await;
    lives_on(&sandbox, &bad).await;
}

async fn killing_its_group_ends_its_own_context(sandbox: &Sandbox) {
    let code = "import os, subprocess\nsubprocess.Popen(['sleep', '1000'])\nos.killpg(0, 9)";
    let (output, why) = lost_by(sandbox, code).await;
    assert_eq!(output.report.exit, Exit::Signal { signal: 9 });
    assert_eq!(why, "its interpreter was ended by signal 9");
}

async fn closed_descriptors_end_the_context(sandbox: &Sandbox) {
    let (output, why) = lost_by(sandbox, "import os, time\nos.closerange(0, 1024)\ntime.sleep(1000)").await;
    assert_eq!(output.report.exit, Exit::Killed { by: Killer::Broken });
    assert_eq!(why, "its interpreter has closed the line to the guest");
    // Also if it ends at once.
    let (output, why) = lost_by(sandbox, "import os\nos.closerange(3, 1024)").await;
    assert_eq!(output.report.exit, Exit::Killed { by: Killer::Broken });
    assert_eq!(why, "its interpreter has closed the line to the guest");
    // Those of the output alone are its own affair.
    let good = context(sandbox).await;
    run(sandbox, &good, "import os, sys\nos.close(0); os.close(1); os.close(2)").await;
    lives_on(sandbox, &good).await;
    run(sandbox, &good, "import sys\nsys.stdout.close(); sys.stderr.close(); sys.stdin.close()").await;
    assert_eq!(text(&run(sandbox, &good, "print('here')").await.stdout), "here\n");
}

async fn words_of_the_protocol_in_the_output_mean_nothing(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let line = r#"done 1 0\ndone 2 0\nhello 1\n{"error": {"name": "x", "value": "", "traceback": []}}\n"#;
    let output = run(
        sandbox,
        &context,
        &format!("import sys\nsys.stdout.write('{line}')\nsys.stderr.write('{line}')\n7"),
    )
    .await;
    assert!(output.report.exit.success());
    assert_eq!(text(&output.stdout).lines().count(), 4);
    assert!(matches!(output.results.as_slice(), [CodeResult::Value(bundle)] if bundle.text() == Some("7")));
    lives_on(sandbox, &context).await;
}

async fn words_of_the_protocol_on_the_line_end_the_context(sandbox: &Sandbox) {
    for words in ["b'nonsense\\n'", "b'hello 9\\n'", "b'done 999999 0\\n'", "b'x' * 100000"] {
        let code = format!(
            "import os, time\ntry:\n    os.write(3, {words})\nexcept OSError: pass\ntime.sleep(1000)"
        );
        let (output, why) = lost_by(sandbox, &code).await;
        assert_eq!(output.report.exit, Exit::Killed { by: Killer::Broken }, "{words}: {why}");
    }
}

async fn nonsense_among_the_results_is_told_as_such(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code = "
import os
for fd in range(4, 64):
    try:
        if 'pipe' in os.readlink('/proc/self/fd/%d' % fd): os.write(fd, b'{\"value\": 5}\\n\\xff\\n')
    except OSError: pass
8";
    let output = run(sandbox, &context, code).await;
    let lost =
        |result: &&CodeResult| matches!(result, CodeResult::Error(error) if error.name == "ResultLost");
    assert_eq!(output.results.iter().filter(lost).count(), 2, "{output:?}");
    lives_on(sandbox, &context).await;
}

async fn a_deep_recursion_is_an_error_or_a_crash(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let output = run(sandbox, &context, "def f(): f()\nf()").await;
    assert_eq!(error(&output).name, "RecursionError");
    assert!(error(&output).traceback.len() < 500);
    lives_on(sandbox, &context).await;
    let code = "import sys\nsys.setrecursionlimit(10**8)\nclass C:\n    def __repr__(self): return repr([self])\nrepr(C())";
    let (output, _) = lost_by(sandbox, code).await;
    assert_eq!(output.report.exit, Exit::Signal { signal: 11 });
}

async fn a_flood_of_output_ends_at_its_limit(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let flood = "import os\nx = b'x' * 65536\nwhile True: os.write(1, x)";
    let spec = CodeSpec { output_bytes_max: Some(1_000_000), ..CodeSpec::new(flood) };
    let output = run_spec(sandbox, &context, spec).await;
    assert_eq!(output.report.exit, Exit::OutputLimit);
    assert_eq!(output.report.stdout_bytes, 1_000_000);
    lives_on(sandbox, &context).await;
    let results = "while True: display('x' * 65536)";
    let spec = CodeSpec { output_bytes_max: Some(1_000_000), ..CodeSpec::new(results) };
    assert_eq!(run_spec(sandbox, &context, spec).await.report.exit, Exit::OutputLimit);
    lives_on(sandbox, &context).await;
    // All of it comes, however slowly it is taken.
    let output = run(sandbox, &context, "import os\nfor _ in range(1024): os.write(1, b'x' * 65536)").await;
    assert!(output.report.exit.success());
    assert_eq!(output.report.stdout_bytes, 64 << 20);
}

/// Bytes that the guest, a box's first process, has used at most.
async fn guest_peak(sandbox: &Sandbox) -> u64 {
    let peak = stdout_of(sandbox, "grep VmHWM /proc/1/status").await;
    peak.split_whitespace().nth(1).and_then(|kilobytes| kilobytes.parse::<u64>().ok()).unwrap() * 1024
}

async fn a_gigabyte_of_output_passes_through(stage: &Stage) {
    /// What the guest may keep of it: what is kept for later readers, and what is on its way.
    const KEPT_MAX: u64 = 32 << 20;
    if !stage.is_native_root() {
        // Elsewhere the guest is not the first process, or somebody else's.
        return;
    }
    let sandbox = stage.sandbox().await;
    let (bad, good) = (context(&sandbox).await, context(&sandbox).await);
    let before = guest_peak(&sandbox).await;
    let flood = "import os\nx = b'x' * (1 << 20)\nfor _ in range(1024):\n    done = 0\n    while done < len(x): done += os.write(1, x)";
    let mut exec = sandbox.run_code(&bad, CodeSpec::new(flood)).await.unwrap();
    let mut seen = 0;
    let report = loop {
        match within("more of it", exec.next()).await {
            Some(ExecEvent::Output(chunk)) => seen += chunk.bytes.len() as u64,
            Some(ExecEvent::Ended(report)) => break report,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((&report.exit, report.stdout_bytes), (&Exit::Code { code: 0 }, seen));
    assert!(seen >= 1 << 30, "{seen}");
    let grown = guest_peak(&sandbox).await - before;
    assert!(grown < KEPT_MAX, "the guest has grown by {grown} bytes");
    lives_on(&sandbox, &good).await;
}

async fn a_fork_bomb_stays_in_the_box(stage: &Stage) {
    if !stage.has_root() {
        // Without a limit on processes it would not stay anywhere.
        return;
    }
    let limits = Limits { pids: Some(64), ..Limits::default() };
    let sandbox = stage.create(SandboxSpec { limits, ..SandboxSpec::default() }).await.unwrap();
    let (bad, good) = (context(&sandbox).await, context(&sandbox).await);
    let code =
        "import os, time\nfor _ in range(100000):\n    try: os.fork()\n    except OSError: time.sleep(0.01)";
    let spec = CodeSpec { timeout_ms: Some(1000), grace_ms: Some(200), ..CodeSpec::new(code) };
    let output = run_spec(&sandbox, &bad, spec).await;
    assert_eq!(output.report.exit, Exit::TimedOut);
    within("the bomb is gone", sandbox.delete_context(&bad.id)).await.unwrap();
    settle("there is room again", async || sandbox.create_context(Default::default()).await.is_ok()).await;
    lives_on(&sandbox, &good).await;
}

async fn a_child_that_came_back_does_not_speak_for_its_parent(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let output = run(
        sandbox,
        &context,
        "import os\npid = os.fork()\nprint('who', pid == 0)\nif pid: os.wait()\npid and 5",
    )
    .await;
    assert!(output.report.exit.success(), "{output:?}");
    assert_eq!(text(&output.stdout).lines().count(), 2);
    assert!(
        matches!(output.results.as_slice(), [CodeResult::Value(bundle)] if bundle.text() == Some("5")),
        "{output:?}"
    );
    lives_on(sandbox, &context).await;
}

async fn a_child_that_fails_says_so_on_stderr(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    for (end, code, told) in [("raise ValueError('x')", 1, true), ("raise SystemExit(3)", 3, false)] {
        let code =
            format!("import os\npid = os.fork()\nif pid == 0: {end}\nos.waitpid(pid, 0)[1] >> 8 == {code}");
        let output = run(sandbox, &context, &code).await;
        assert!(
            matches!(output.results.as_slice(), [CodeResult::Value(value)] if value.text() == Some("True")),
            "{output:?}"
        );
        let stderr = text(&output.stderr);
        assert_eq!(
            stderr.contains("line 3, in <module>") && stderr.ends_with("ValueError: x\n"),
            told,
            "{stderr}"
        );
        assert!(!stderr.contains("glasshouse"), "{stderr}");
    }
}

async fn replaced_builtins_do_not_lead_the_driver_astray(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code = "
import builtins, os, sys
for name in ('repr', 'len', 'isinstance', 'compile', 'eval', 'str', 'int', 'getattr'):
    setattr(builtins, name, lambda *a, **k: 'replaced')
os.dup2 = os.close = os.write = sys.exit = None
1 + 1";
    let output = run(sandbox, &context, code).await;
    assert!(
        matches!(output.results.as_slice(), [CodeResult::Value(bundle)] if bundle.text() == Some("2")),
        "{output:?}"
    );
    let output = run(sandbox, &context, "1 / 0").await;
    assert_eq!(error(&output).name, "ZeroDivisionError");
}

/// Each in a context of its own: it lives on, and tells the value and the error that its code comes to.
async fn what_python_code_replaces_is_its_own_affair(sandbox: &Sandbox) {
    for code in [
        "import builtins; builtins.print = builtins.len = builtins.OSError = builtins.BaseException = None",
        "import builtins; builtins.__build_class__ = builtins.__import__ = None",
        "import builtins; builtins.__dict__.clear()",
        "import json, traceback; json.dumps = traceback.format_exception = None",
        "import io; io.TextIOWrapper = io.FileIO = io.BufferedReader = io.BufferedWriter = io.IOBase = None",
        "import _signal, _socket; _signal.SIGINT = _signal.signal = _socket.SCM_RIGHTS = _socket.MSG_CMSG_CLOEXEC = None",
        "import _ast, linecache; _ast.Expr = _ast.Expression = _ast.PyCF_ONLY_AST = linecache.cache = None",
        "import sys; sys.byteorder = sys.meta_path = sys.path = sys.excepthook = None; sys.stdout = object()",
        "import sys; del sys.stdout, sys.stderr, sys.stdin, sys.displayhook",
        "import sys; sys.modules.clear()",
        "import sys; sys.setrecursionlimit(40)",
        "import sys; sys.settrace(lambda *a: None); sys.setprofile(lambda *a: None)",
        "import gc, threading; gc.set_threshold(1); threading.settrace(lambda *a: 1 / 0)",
        // All but the line to us.
        "import os; os.closerange(4, 100)",
        "import sys; sys.exit(type('X', (int,), {'__and__': lambda *a: 'x'})(0))",
    ] {
        let context = context(sandbox).await;
        run(sandbox, &context, code).await;
        assert_eq!(value(sandbox, &context, "x = 1\n1 + 1").await, "2", "{code}");
        assert_eq!(error(&run(sandbox, &context, "1 / 0").await).name, "ZeroDivisionError", "{code}");
    }
    // Who follows the steps of code sees those, in later runs, too, and none of ours.
    let context = context(sandbox).await;
    let trace = "def step(frame, event, arg):\n  print(frame.f_code.co_filename, event)\n  return step\nimport sys\nsys.settrace(step)";
    assert_eq!(text(&run(sandbox, &context, trace).await.stdout), "");
    let output = run(sandbox, &context, "def f(): pass\nf()").await;
    let told = text(&output.stdout);
    assert!(told.contains("<cell 2> call") && !told.contains("glasshouse"), "{told}");
}

async fn what_javascript_code_replaces_is_its_own_affair(sandbox: &Sandbox) {
    let spec = ContextSpec { language: Language::Javascript, ..ContextSpec::default() };
    for code in [
        "Object.prototype.toJSON = Array.prototype.toJSON = () => 'x'",
        "String.prototype.toJSON = Number.prototype.toJSON = () => 'x'; JSON.stringify = () => 'x'; JSON.parse = null",
        "Buffer.from = Uint8Array.prototype.subarray = null",
        "Object.assign(require('fs'), { openSync: null, closeSync: null, readFileSync: null, writeFileSync: null, writeSync: null })",
        "for (const name of ['push', 'map', 'join', 'forEach', 'reduce']) Array.prototype[name] = () => 'x'",
        "Promise.prototype.then = () => { throw 1 }",
        "Array.prototype[Symbol.iterator] = () => { throw 1 }",
        "for (const name of ['id', 'serial', 'end', 'result', 'type', 'data', 'dir', 'ended'])\
           Object.defineProperty(Object.prototype, name, { set() { throw 1 } })",
        "Object.assign(Object.prototype, { exceptionDetails: { text: 'forged' }, ended: 1, hello: 1, exit: 9, whole: true })",
        "for (const name of ['slice', 'includes', 'replace']) String.prototype[name] = null",
        "Atomics.load = Atomics.store = Object.entries = Object.defineProperty = null",
        "require('events').prototype.emit = require('inspector').Session.prototype.post = () => {}",
        "require('worker_threads').Worker.prototype.ref = require('worker_threads').Worker.prototype.unref = null",
        "require('util').inspect = require('util').types = null",
        "globalThis.process = globalThis.Error = globalThis.Array = globalThis.Object = null",
        "Object.freeze(Object.prototype); Object.freeze(Array.prototype); Object.freeze(globalThis)",
        "Object.defineProperty(globalThis, '_', { set() { throw 1 } })",
    ] {
        let context = sandbox.create_context(spec.clone()).await.unwrap();
        let output = run(sandbox, &context, &format!("{code}; void 0")).await;
        assert_eq!((output.report.exit, output.results), (Exit::Code { code: 0 }, vec![]), "{code}");
        assert_eq!(value(sandbox, &context, "1 + 1").await, "2", "{code}");
        assert_eq!(error(&run(sandbox, &context, "null.x").await).name, "TypeError", "{code}");
    }
    // What it has put there is there while it runs.
    let context = sandbox.create_context(spec.clone()).await.unwrap();
    let code = "Object.prototype.toJSON = () => 'own'; await 1; JSON.stringify({})";
    assert_eq!(value(sandbox, &context, code).await, "'\"own\"'");
    assert_eq!(value(sandbox, &context, "JSON.stringify({})").await, "'\"own\"'");
    // Where nothing can be asked any more, that is said.
    let context = sandbox.create_context(spec).await.unwrap();
    let output =
        run(sandbox, &context, "Object.defineProperty(Object.prototype, 'toJSON', { value: () => 'x' }); 7")
            .await;
    assert!(error(&output).value.contains("toJSON"), "{output:?}");
}

async fn a_context_without_a_descriptor_left_says_so(sandbox: &Sandbox) {
    let python = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))";
    let bad = context(sandbox).await;
    assert!(run(sandbox, &bad, python).await.report.exit.success());
    let output = run(sandbox, &bad, "1").await;
    assert_eq!(output.report.exit, Exit::Killed { by: Killer::Broken }, "{output:?}");
    let ContextState::Lost { why } = state(sandbox, &bad).await else { panic!("it lives") };
    assert!(why.contains("no descriptor left"), "{why}");
    let spec = ContextSpec { language: Language::Bash, ..ContextSpec::default() };
    let bad = sandbox.create_context(spec).await.unwrap();
    assert_eq!(text(&run(sandbox, &bad, "ulimit -n 10; echo a").await.stdout), "a\n");
    let output = run(sandbox, &bad, "echo b").await;
    assert_eq!(output.report.exit, Exit::Killed { by: Killer::Broken }, "{output:?}");
    let ContextState::Lost { why } = state(sandbox, &bad).await else { panic!("it lives") };
    assert!(why.contains("cannot open what a run needs"), "{why}");
}

async fn a_thread_that_never_ends_does_not_hold_the_run(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code = "import threading, time\ndef f():\n    while True: time.sleep(0.01)\nthreading.Thread(target=f).start()\n5";
    assert_eq!(value(sandbox, &context, code).await, "5");
    assert_eq!(value(sandbox, &context, "threading.active_count()").await, "2");
}

async fn memory_that_runs_out_is_told_as_such(stage: &Stage) {
    if !stage.has_root() {
        return;
    }
    let limits = Limits { memory_bytes: Some(128 << 20), ..Limits::default() };
    let sandbox = stage.create(SandboxSpec { limits, ..SandboxSpec::default() }).await.unwrap();
    let bad = context(&sandbox).await;
    let output = run(&sandbox, &bad, "x = []\nwhile True: x.append(bytearray(1 << 20))").await;
    assert!(matches!(output.report.exit, Exit::OutOfMemory { .. }), "{:?}", output.report);
    let ContextState::Lost { why } = state(&sandbox, &bad).await else { panic!("it lives") };
    assert!(why.contains("memory"), "{why}");
    lives_on(&sandbox, &context(&sandbox).await).await;
    // Also if it is another one that wants it: the kernel takes whoever has the most.
    let (idle, other) = (context(&sandbox).await, context(&sandbox).await);
    assert!(run(&sandbox, &idle, "x = bytearray(80 << 20)").await.report.exit.success());
    let output = run(&sandbox, &other, "y = bytearray(60 << 20)").await;
    assert!(output.report.exit.success(), "{:?}", output.report);
    settle("it is lost", async || matches!(state(&sandbox, &idle).await, ContextState::Lost { .. })).await;
    let ContextState::Lost { why } = state(&sandbox, &idle).await else { panic!("it lives") };
    assert!(why.contains("memory"), "{why}");
    // And not one that is killed later.
    let third = context(&sandbox).await;
    stdout_of(&sandbox, &format!("kill -9 {}", third.pid.unwrap())).await;
    settle("it is lost", async || matches!(state(&sandbox, &third).await, ContextState::Lost { .. })).await;
    let ContextState::Lost { why } = state(&sandbox, &third).await else { panic!("it lives") };
    assert_eq!(why, "its interpreter was ended by signal 9");
}

async fn ten_thousand_runs_leave_nothing_behind(stage: &Stage) {
    // The number is for the one runtime that is meant to be fast; the others are to show the same.
    let runs = if stage.is_native_root() { 10_000 } else { 300 };
    let sandbox = stage.sandbox().await;
    let context = context(&sandbox).await;
    let size = "open('/proc/self/statm').read().split()[1]";
    let mut before = 0;
    for n in 0..runs {
        let output = run(&sandbox, &context, &format!("print({n})\n{n} * 2")).await;
        assert_eq!(text(&output.stdout), format!("{n}\n"));
        let [CodeResult::Value(bundle)] = output.results.as_slice() else { panic!("{output:?}") };
        assert_eq!(bundle.text(), Some((n * 2).to_string().as_str()));
        if n == runs / 2 {
            before = value(&sandbox, &context, size).await.trim_matches('\'').parse::<u64>().unwrap();
        }
    }
    let after = value(&sandbox, &context, size).await.trim_matches('\'').parse::<u64>().unwrap();
    assert!(after < before + 512, "{before} pages became {after}");
    assert_eq!(sandbox.context(&context.id).await.unwrap().runs, runs + 2);
}
