//! Kernels of Jupyter's: the real ipykernel and bash_kernel of PyPI, and some that lie. They are no part of the box: a volume has them.

use base64::Engine as _;
use glasshouse_sandbox::{
    CodeResult, CodeSpec, ContextInfo, ContextSpec, ContextState, Error, ErrorKind, ExecEvent, Exit, Killer,
    Language, RuntimeKind, Sandbox, SandboxSpec, Volume, Warm,
};
use glasshouse_tests::{kernels, skip};

use crate::code::{error, run, run_spec, start, state, value};
use crate::stage::{Stage, on_every_runtime, settle, stdout_of, text, within};

on_every_runtime!(
    a_kernel_remembers_and_says_what_it_is,
    output_results_and_errors_are_those_of_any_context,
    shapes_cross_as_they_are,
    what_a_kernel_shows_in_a_pager_is_shown,
    what_programs_write_comes_once,
    code_in_a_kernel_reads_its_stdin_to_the_end,
    an_interrupt_ends_the_run_and_not_the_kernel,
    an_interrupt_may_be_a_message,
    a_deadline_interrupts_a_kernel_first,
    what_a_kernel_ignores_kills_it,
    a_kernel_that_ends_is_the_cause,
    a_kernel_is_restarted,
    an_unknown_kernel_is_refused_with_those_that_there_are,
    a_kernel_that_cannot_start_says_why,
    a_language_is_spoken_by_a_kernel_of_it,
    a_thousand_runs_lose_nothing,
    a_slow_reader_loses_nothing_and_can_interrupt,
    a_kernel_of_another_language_is_the_same,
    a_kernel_changes_no_file_that_it_need_not,
    a_run_in_a_kernel_reports_its_time_and_memory,
    a_kernel_is_cold,
    kernels_that_lie_are_lost_with_the_reason,
);

/// A box that has the kernels, and where in it they are.
async fn with_kernels(stage: &Stage) -> Option<(Sandbox, String)> {
    let dir = match kernels::kernels() {
        Ok(dir) => dir,
        Err(why) => {
            skip("kernels", &why);
            return None;
        }
    };
    let (spec, at) = match stage.runtime {
        RuntimeKind::Process => (SandboxSpec::default(), dir.to_str()?),
        _ => {
            stage.house.allow_volumes(vec![dir.clone()]).unwrap();
            let volumes = vec![Volume::new(&dir, "/kernels", true)];
            (SandboxSpec { volumes, ..SandboxSpec::default() }, "/kernels")
        }
    };
    Some((stage.create(spec).await.unwrap(), at.to_owned()))
}

fn spec(at: &str, kernel: Option<&str>) -> ContextSpec {
    ContextSpec {
        language: Language::Jupyter,
        interpreter: kernel.map(str::to_owned),
        env: vec![("PATH".into(), format!("{at}/bin:/usr/bin:/bin"))],
        ..ContextSpec::default()
    }
}

/// A context of a kernel, in a box of its own.
async fn kernel(stage: &Stage, name: Option<&str>) -> Option<(Sandbox, ContextInfo)> {
    let (sandbox, at) = with_kernels(stage).await?;
    let made = within("a kernel starts", sandbox.create_context(spec(&at, name))).await.unwrap();
    Some((sandbox, made))
}

async fn a_kernel_remembers_and_says_what_it_is(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, None).await else { return };
    assert_eq!(context.language, Language::Jupyter);
    let version = context.version.clone().unwrap();
    assert!(version.starts_with("python3 ipython 9."), "{version}");
    assert!(run(&sandbox, &context, "x = 41\ndef f(): return x + 1").await.report.exit.success());
    assert_eq!(value(&sandbox, &context, "f()").await, "42");
    assert_eq!(value(&sandbox, &context, "_ + 1").await, "43");
    assert_eq!(value(&sandbox, &context, "import asyncio; await asyncio.sleep(0, 'later')").await, "'later'");
    let listed = sandbox.contexts().await.unwrap();
    assert_eq!((listed[0].runs, &listed[0].state), (4, &ContextState::Idle));
}

async fn output_results_and_errors_are_those_of_any_context(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, None).await else { return };
    let code =
        "import sys\nprint('a')\nprint('b', file=sys.stderr)\ndisplay('shown')\nprint('c', end='')\n1 + 1";
    let output = run(&sandbox, &context, code).await;
    assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("a\nc", "b\n"));
    let [CodeResult::Display(shown), CodeResult::Value(two)] = output.results.as_slice() else {
        panic!("{output:?}")
    };
    assert_eq!((shown.text(), two.text()), (Some("'shown'"), Some("2")));
    // A magic of IPython's is no Python.
    let output = run(&sandbox, &context, "%time 5").await;
    assert!(text(&output.stdout).contains("Wall time"), "{output:?}");
    let output = run(&sandbox, &context, "def f(n):\n    return 1 / n\nf(0)").await;
    assert_eq!(output.report.exit, Exit::Code { code: 1 });
    let told = error(&output);
    assert_eq!((told.name.as_str(), told.value.as_str()), ("ZeroDivisionError", "division by zero"));
    assert!(told.traceback.iter().any(|line| line.contains("return 1 / n")), "{told:?}");
    assert!(!told.traceback.iter().any(|line| line.contains('\u{1b}') || line.contains('\n')), "{told:?}");
    assert_eq!(error(&run(&sandbox, &context, "a b").await).name, "SyntaxError");
    // What is between a kernel and the guest is no business of the code's.
    assert_eq!(
        value(&sandbox, &context, "import os; os.getppid() != 1, os.getpgrp() == os.getpid()").await,
        "(True, True)"
    );
    let fds =
        "import os; [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n == '3']";
    assert!(!value(&sandbox, &context, fds).await.contains("memfd"));
}

async fn shapes_cross_as_they_are(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, None).await else { return };
    let code = "
import base64
png = base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==')
class Rich:
    def __repr__(self): return 'rich'
    def _repr_html_(self): return '<b>x</b>'
    def _repr_json_(self): return {'a': [1, None]}
    def _repr_png_(self): return png, {'width': 1}
shown = display(Rich(), display_id=True)
shown.update('other')
Rich()";
    let output = run(&sandbox, &context, code).await;
    let [CodeResult::Display(shown), CodeResult::Display(updated), CodeResult::Value(last)] =
        output.results.as_slice()
    else {
        panic!("{output:?}")
    };
    assert_eq!(
        (shown.data.get("text/html").map(String::as_str), updated.text()),
        (Some("<b>x</b>"), Some("'other'"))
    );
    assert_eq!(last.data["application/json"], r#"{"a":[1,null]}"#);
    let picture = base64::engine::general_purpose::STANDARD.decode(&last.data["image/png"]).unwrap();
    assert_eq!(picture[..8], *b"\x89PNG\r\n\x1a\n");
    assert_eq!(last.metadata.as_deref(), Some(r#"{"image/png":{"width":1}}"#));
}

async fn what_a_kernel_shows_in_a_pager_is_shown(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, None).await else { return };
    let output = run(&sandbox, &context, "len?").await;
    let [CodeResult::Display(page)] = output.results.as_slice() else { panic!("{output:?}") };
    let page = page.text().unwrap();
    assert!(page.contains("number of items") && !page.contains('\u{1b}'), "{page}");
}

async fn what_programs_write_comes_once(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, None).await else { return };
    // ipykernel reads what its programs write in a thread of its own, and does not wait for that at the end of a run.
    let code = "import os, subprocess, time\nos.write(1, b'raw\\n')\nsubprocess.run(['sh', '-c', 'echo out; echo err >&2'])\n\
                !echo magic\ntime.sleep(0.5)\nprint('end')";
    let output = run(&sandbox, &context, code).await;
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!((lines.join(" ").as_str(), text(&output.stderr).as_str()), ("end magic out raw", "err\n"));
}

async fn code_in_a_kernel_reads_its_stdin_to_the_end(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, None).await else { return };
    for _ in 0..2 {
        let spec = CodeSpec { stdin: true, ..CodeSpec::new("[input('? '), input(), input()]") };
        let exec = sandbox.run_code(&context, spec).await.unwrap();
        exec.input().write("one\n\nthr\u{e9}e".as_bytes()).await.unwrap();
        exec.input().close().await.unwrap();
        let output = within("it ends", exec.collect()).await;
        let [CodeResult::Value(bundle)] = output.results.as_slice() else { panic!("{output:?}") };
        assert_eq!(bundle.text(), Some("['one', '', 'thr\u{e9}e']"));
        assert_eq!(text(&output.stdout), "? ");
    }
    assert_eq!(error(&run(&sandbox, &context, "input()").await).name, "EOFError");
}

async fn check_interrupts(sandbox: &Sandbox, context: &ContextInfo) {
    for wait in [
        "while True: pass",
        "import time; time.sleep(1000)",
        "input()",
        "import asyncio; await asyncio.sleep(1000)",
    ] {
        let code = format!("x = {wait:?}\nprint('on', flush=True)\n{wait}\nprint('not reached')");
        let exec = start(sandbox, context, CodeSpec { stdin: true, ..CodeSpec::new(code) }).await;
        sandbox.interrupt_context(&context.id).await.unwrap();
        let output = within(wait, exec.collect()).await;
        let name = error(&output).name.clone();
        assert!(["KeyboardInterrupt", "CancelledError"].contains(&name.as_str()), "{wait}: {output:?}");
        assert_eq!(output.report.exit, Exit::Code { code: 1 });
        assert_eq!(value(sandbox, context, "x[0]").await, format!("'{}'", &wait[..1]));
    }
    // Nothing runs, so there is nothing that it could end.
    sandbox.interrupt_context(&context.id).await.unwrap();
    assert_eq!(value(sandbox, context, "1").await, "1");
    // One that comes at once is kept until there is something that it can hit.
    for _ in 0..10 {
        let exec = sandbox.run_code(context, CodeSpec::new("while True: pass")).await.unwrap();
        sandbox.interrupt_context(&context.id).await.unwrap();
        let output = within("it ends", exec.collect()).await;
        assert_eq!(output.report.exit, Exit::Code { code: 1 }, "{output:?}");
        assert_eq!(value(sandbox, context, "2").await, "2");
    }
}

async fn an_interrupt_ends_the_run_and_not_the_kernel(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, None).await else { return };
    check_interrupts(&sandbox, &context).await;
    // What it waits for is interrupted, too.
    let code = "import subprocess\nsubprocess.run(['sh', '-c', 'echo on; exec sleep 1000'])";
    let exec = start(&sandbox, &context, CodeSpec::new(code)).await;
    sandbox.interrupt_context(&context.id).await.unwrap();
    assert_eq!(error(&within("it ends", exec.collect()).await).name, "KeyboardInterrupt");
}

async fn an_interrupt_may_be_a_message(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, Some("asked")).await else { return };
    check_interrupts(&sandbox, &context).await;
}

async fn a_deadline_interrupts_a_kernel_first(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, None).await else { return };
    let code = CodeSpec::new("x = 1\nwhile True: pass");
    let spec = CodeSpec { timeout_ms: Some(300), grace_ms: Some(5000), ..code };
    let output = run_spec(&sandbox, &context, spec).await;
    assert_eq!(output.report.exit, Exit::TimedOut);
    assert_eq!(error(&output).name, "KeyboardInterrupt");
    assert_eq!(state(&sandbox, &context).await, ContextState::Idle);
    assert_eq!(value(&sandbox, &context, "x").await, "1");
}

async fn what_a_kernel_ignores_kills_it(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, None).await else { return };
    let code = "import signal, subprocess\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
                child = subprocess.Popen(['sleep', '876543'])\nwhile True: pass";
    let spec = CodeSpec { timeout_ms: Some(300), grace_ms: Some(100), ..CodeSpec::new(code) };
    assert_eq!(run_spec(&sandbox, &context, spec).await.report.exit, Exit::TimedOut);
    let ContextState::Lost { why } = state(&sandbox, &context).await else { panic!("it lives") };
    assert!(why.contains("time was up"), "{why}");
    settle("its children are gone", async || {
        let all = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' || true";
        !stdout_of(&sandbox, all).await.contains("sleep 876543")
    })
    .await;
}

async fn a_kernel_that_ends_is_the_cause(stage: &Stage) {
    let Some((sandbox, at)) = with_kernels(stage).await else { return };
    for (code, exit, why) in [
        ("os._exit(3)", Exit::Code { code: 3 }, "its interpreter ended with code 3"),
        ("os.kill(os.getpid(), 9)", Exit::Signal { signal: 9 }, "its interpreter was ended by signal 9"),
        ("os.kill(os.getpid(), 11)", Exit::Signal { signal: 11 }, "its interpreter was ended by signal 11"),
        ("os.abort()", Exit::Signal { signal: 6 }, "its interpreter was ended by signal 6"),
    ] {
        let context = sandbox.create_context(spec(&at, None)).await.unwrap();
        let code =
            format!("import os, sys, time\nprint('told')\nsys.stdout.flush()\ntime.sleep(0.3)\n{code}");
        let output = run(&sandbox, &context, &code).await;
        assert_eq!(text(&output.stdout), "told\n", "{code}");
        assert_eq!(output.report.exit, exit, "{code}");
        assert_eq!(state(&sandbox, &context).await, ContextState::Lost { why: why.into() });
    }
}

async fn a_kernel_is_restarted(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, None).await else { return };
    assert!(run(&sandbox, &context, "x = 1").await.report.exit.success());
    let again = sandbox.restart_context(&context.id).await.unwrap();
    assert_eq!((again.runs, again.version.as_deref()), (0, context.version.as_deref()));
    assert_eq!(error(&run(&sandbox, &again, "x").await).name, "NameError");
    run(&sandbox, &again, "import os; os._exit(0)").await;
    let again = sandbox.restart_context(&context.id).await.unwrap();
    assert_eq!(value(&sandbox, &again, "1").await, "1");
    sandbox.delete_context(&again.id).await.unwrap();
    assert_eq!(sandbox.contexts().await.unwrap(), []);
}

async fn refusal(sandbox: &Sandbox, spec: ContextSpec) -> Error {
    within("it is refused", sandbox.create_context(spec)).await.unwrap_err()
}

async fn an_unknown_kernel_is_refused_with_those_that_there_are(stage: &Stage) {
    let Some((sandbox, at)) = with_kernels(stage).await else { return };
    let told = refusal(&sandbox, spec(&at, Some("Julia"))).await;
    assert_eq!(told.kind(), ErrorKind::Unsupported, "{told}");
    assert!(told.to_string().contains(r#"no kernel of the box is called "Julia"; it has "#), "{told}");
    assert!(told.to_string().contains("bash, ") && told.to_string().contains("python3"), "{told}");
    let told = refusal(&sandbox, spec(&at, Some("../kernels/python3"))).await;
    assert!(told.to_string().contains("is no name of a kernel"), "{told}");
    let told = refusal(&sandbox, spec(&at, Some("language:cobol"))).await;
    assert!(told.to_string().contains(r#"no kernel of the box speaks "cobol"; it has "#), "{told}");
    assert_eq!(sandbox.contexts().await.unwrap(), []);
}

async fn a_kernel_that_cannot_start_says_why(stage: &Stage) {
    let Some((sandbox, at)) = with_kernels(stage).await else { return };
    for (name, why) in [
        ("missing", "the kernel missing cannot be started: /no/such/program: No such file"),
        ("failing", "its interpreter ended with code 1: it has no legs"),
        ("garbage", "the kernel takes no connection"),
    ] {
        let told = refusal(&sandbox, spec(&at, Some(name))).await;
        assert_eq!(told.kind(), ErrorKind::Unsupported, "{told}");
        assert!(told.to_string().contains(why), "{told}");
    }
    assert_eq!(sandbox.contexts().await.unwrap(), []);
    // Nothing is left of those that came to nothing. Without walls, others are there, too.
    if stage.runtime == RuntimeKind::Process {
        return;
    }
    assert_eq!(stdout_of(&sandbox, "ls -A /dev/shm | grep glasshouse-kernel || true").await, "");
}

async fn a_language_is_spoken_by_a_kernel_of_it(stage: &Stage) {
    let Some((sandbox, at)) = with_kernels(stage).await else { return };
    let context = sandbox.create_context(spec(&at, Some("language:bash"))).await.unwrap();
    assert!(
        context.version.as_deref().is_some_and(|version| version.starts_with("bash bash_kernel")),
        "{context:?}"
    );
    // Names are the same in any case, and what the kernelspec adds to the environment is there.
    let context = sandbox.create_context(spec(&at, Some("BASH"))).await.unwrap();
    let output = run(&sandbox, &context, "echo $SAID").await;
    assert_eq!(text(&output.stdout).trim_end(), format!("{at}/bin:/usr/bin:/bin!"));
}

async fn a_thousand_runs_lose_nothing(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, None).await else { return };
    for n in 0..1000 {
        let output = run(&sandbox, &context, &format!("print({n})\n{n}")).await;
        let [CodeResult::Value(bundle)] = output.results.as_slice() else { panic!("{n}: {output:?}") };
        assert_eq!((text(&output.stdout), bundle.text()), (format!("{n}\n"), Some(n.to_string().as_str())));
    }
}

async fn a_slow_reader_loses_nothing_and_can_interrupt(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, None).await else { return };
    let code =
        "for n in range(4000): display({'text/plain': str(n) + 'x' * 10_000}, raw=True)\nprint('on')\n'end'";
    let spec = CodeSpec { kept_output_bytes: Some(64 << 20), ..CodeSpec::new(code) };
    let mut exec = sandbox.run_code(&context, spec).await.unwrap();
    // Nothing is read until the kernel has had to stop.
    let stopped = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') [Tt] ' || true";
    settle("the kernel stands still", async || stdout_of(&sandbox, stopped).await.trim() != "0").await;
    let (mut shown, mut ended) = (0, None);
    while let Some(event) = within("it goes on", exec.next()).await {
        match event {
            ExecEvent::Result(CodeResult::Display(bundle)) => {
                assert!(bundle.text().unwrap().starts_with(&format!("{shown}x")), "{shown} comes next");
                shown += 1;
            }
            ExecEvent::Gap { .. } => panic!("something was lost"),
            ExecEvent::Ended(report) => ended = Some(report.exit),
            _ => {}
        }
    }
    assert_eq!((shown, ended), (4000, Some(Exit::Code { code: 0 })));
    // One that nobody reads can be ended all the same.
    let code = "while True: display({'text/plain': 'x' * 100_000}, raw=True)";
    let spec = CodeSpec { timeout_ms: Some(1500), grace_ms: Some(20_000), ..CodeSpec::new(code) };
    let output = run_spec(&sandbox, &context, spec).await;
    assert_eq!(output.report.exit, Exit::TimedOut);
    assert_eq!(value(&sandbox, &context, "1").await, "1");
}

async fn a_kernel_of_another_language_is_the_same(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, Some("bash")).await else { return };
    let output = run(&sandbox, &context, "x=5; echo $x; echo err >&2").await;
    // It has a terminal, where the two are one.
    let lines: Vec<String> = text(&output.stdout).lines().map(|line| line.trim_end().to_owned()).collect();
    assert_eq!((lines.join(" ").as_str(), &output.report.exit), ("5 err", &Exit::Code { code: 0 }));
    assert_eq!(text(&run(&sandbox, &context, "echo $((x + 1))").await.stdout).trim_end(), "6");
    let output = run(&sandbox, &context, "false").await;
    assert_eq!(output.report.exit, Exit::Code { code: 1 }, "{output:?}");
    let exec = start(&sandbox, &context, CodeSpec::new("echo on; sleep 765432")).await;
    // Interrupted while it passes output on, bash_kernel forgets what it has started.
    settle("it sleeps", async || {
        is_asleep(&sandbox, "sleep 765432").await && is_asleep(&sandbox, "bash_kernel").await
    })
    .await;
    sandbox.interrupt_context(&context.id).await.unwrap();
    within("it ends", exec.collect()).await;
    assert_eq!(text(&run(&sandbox, &context, "echo $x").await.stdout).trim_end(), "5");
}

/// Whether the process with these words waits for something.
async fn is_asleep(sandbox: &Sandbox, words: &str) -> bool {
    let line = format!(
        "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -q '^[^ ]*{words}\\|^[^ ]*python[^ ]* -m {words}' && \
         grep -q ') S ' $p/stat && echo asleep; done; true"
    );
    stdout_of(sandbox, &line).await.contains("asleep")
}

async fn a_kernel_changes_no_file_that_it_need_not(stage: &Stage) {
    let Some((sandbox, at)) = with_kernels(stage).await else { return };
    let Ok(before) = stage.house.digest(sandbox.id()).await else { return };
    // IPython has a directory of its own in its home, which is its business.
    let mut spec = spec(&at, None);
    spec.env.push(("IPYTHONDIR".into(), "/dev/shm/ipython".into()));
    spec.env.push(("JUPYTER_RUNTIME_DIR".into(), "/dev/shm/runtime".into()));
    spec.env.push(("HOME".into(), "/dev/shm".into()));
    let context = sandbox.create_context(spec).await.unwrap();
    assert_eq!(value(&sandbox, &context, "1").await, "1");
    assert_eq!(stdout_of(&sandbox, "ls -A /dev/shm | grep glasshouse-kernel || true").await, "");
    assert_eq!(stage.house.digest(sandbox.id()).await.unwrap().digest, before.digest);
}

async fn a_run_in_a_kernel_reports_its_time_and_memory(stage: &Stage) {
    let Some((sandbox, context)) = kernel(stage, None).await else { return };
    let busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass";
    let output = run(&sandbox, &context, busy).await;
    // A busy machine counts a little less than the process does; without the kernel's own it would be next to nothing.
    assert!((200_000..3_000_000).contains(&output.report.cpu_us), "{:?}", output.report);
    let large = run(&sandbox, &context, "x = bytearray(100 << 20)\ndel x").await;
    assert!(large.report.peak_memory_bytes > 100 << 20, "{:?}", large.report);
    let small = run(&sandbox, &context, "1").await;
    assert!(small.report.peak_memory_bytes < 150 << 20, "{:?}", small.report);
}

async fn a_kernel_is_cold(stage: &Stage) {
    let Some((sandbox, at)) = with_kernels(stage).await else { return };
    let made =
        sandbox.create_context(ContextSpec { warm: Some(Warm::default()), ..spec(&at, None) }).await.unwrap();
    assert_eq!((made.warm, made.cold.as_deref()), (false, Some("only Python is kept warm")));
}

async fn kernels_that_lie_are_lost_with_the_reason(stage: &Stage) {
    let Some((sandbox, at)) = with_kernels(stage).await else { return };
    for (name, why) in [
        ("unsigned", "the kernel sent a message that is not signed with its key"),
        ("huge", "its interpreter was ended by signal 6: "),
    ] {
        let context = sandbox.create_context(spec(&at, Some(name))).await.unwrap();
        let version = context.version.clone().unwrap_or_default();
        assert!(version.len() <= 100 && !version.contains('\u{1b}'), "{version}");
        let output = run(&sandbox, &context, "1").await;
        assert!(!text(&output.stdout).contains("forged"), "{output:?}");
        let ContextState::Lost { why: told } = state(&sandbox, &context).await else {
            panic!("{name} lives")
        };
        assert!(told.starts_with(why), "{name}: {told}");
        if name == "unsigned" {
            assert_eq!(text(&output.stdout), "before\n");
            assert_eq!(output.report.exit, Exit::Killed { by: Killer::Broken });
        }
    }
    // What has no sense is left out, and what is missing is not waited for.
    let context = sandbox.create_context(spec(&at, Some("shapeless"))).await.unwrap();
    let output = run(&sandbox, &context, "1").await;
    assert_eq!((text(&output.stdout).as_str(), &output.report.exit), ("before\n", &Exit::Code { code: 0 }));
    let context = sandbox.create_context(spec(&at, Some("mute"))).await.unwrap();
    let output = run(&sandbox, &context, "1").await;
    assert!(text(&output.stderr).contains("did not say when it was done"), "{output:?}");
    assert_eq!(output.report.exit, Exit::Code { code: 0 });
    // The box lives on.
    assert_eq!(stdout_of(&sandbox, "echo lives").await, "lives\n");
}
