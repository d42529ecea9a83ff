//! Code contexts: state stays, results are told, runs are commands like any other.

use std::time::Duration;

use glasshouse_sandbox::{
    CodeError, CodeResult, CodeSpec, ContextInfo, ContextSpec, ContextState, ErrorKind, Exec, ExecEvent,
    ExecOutput, ExecState, Exit, Killer, Language, OutputStream, Sandbox, SandboxSpec,
};

use crate::stage::{Stage, WAIT_LIMIT, on_every_runtime, settle, stdout_of, text, within};

on_every_runtime!(
    state_stays_between_runs_and_contexts_are_apart,
    the_last_expression_is_the_value,
    a_last_line_is_what_it_is_in_the_whole,
    indented_code_runs_as_in_ipython,
    shapes_of_a_value_are_told_by_their_mime_types,
    display_shows_before_the_end,
    what_was_shown_can_be_shown_anew,
    what_ipython_publishes_is_shown,
    json_that_code_shows_is_json,
    a_shape_that_fails_is_told_with_the_users_lines,
    an_error_has_name_value_and_the_users_lines,
    output_of_every_kind_is_streamed_as_it_comes,
    text_without_the_end_of_a_line_is_streamed_and_outlives_a_crash,
    code_reads_its_stdin_to_the_end,
    await_works_at_the_top,
    an_interrupted_await_is_cleared_up_by_its_own_run,
    a_context_has_one_loop_that_outlives_runs,
    sys_exit_ends_the_run_and_not_the_context,
    an_interrupt_ends_the_run_and_not_the_context,
    an_interrupt_that_is_lost_is_said_again_and_one_that_is_heard_is_not,
    a_deadline_interrupts_first,
    what_ignores_the_interrupt_is_killed_and_its_context_lost,
    a_killed_run_is_interrupted_first,
    a_busy_context_refuses_a_second_run,
    a_caller_that_goes_away_interrupts_its_run,
    contexts_are_listed_restarted_and_deleted,
    what_makes_no_sense_is_refused,
    a_run_is_listed_and_attached_to_as_a_command_is,
    a_run_reports_its_own_time_and_memory,
    a_reset_takes_contexts_along,
    a_context_changes_no_file,
    code_runs_once_in_a_context_of_its_own,
    a_program_has_a_file_and_its_own_way_to_tell_errors,
);

/// A Python context.
pub(crate) async fn context(sandbox: &Sandbox) -> ContextInfo {
    sandbox.create_context(ContextSpec::default()).await.expect("a context can be made")
}

/// Runs code to its end.
pub(crate) async fn run(sandbox: &Sandbox, context: &ContextInfo, code: &str) -> ExecOutput {
    run_spec(sandbox, context, CodeSpec::new(code)).await
}

pub(crate) async fn run_spec(sandbox: &Sandbox, context: &ContextInfo, spec: CodeSpec) -> ExecOutput {
    let shown = spec.code.clone();
    let run =
        async { sandbox.run_code(context, spec).await.expect("the context takes code").collect().await };
    within(&shown, run).await
}

/// The value that code came to, as text.
pub(crate) async fn value(sandbox: &Sandbox, context: &ContextInfo, code: &str) -> String {
    let output = run(sandbox, context, code).await;
    assert_eq!(output.report.exit, Exit::Code { code: 0 }, "{code}: {:?}", output.results);
    match output.results.as_slice() {
        [CodeResult::Value(bundle)] => bundle.text().expect("a value has a text").to_owned(),
        other => panic!("{code}: {other:?}"),
    }
}

/// The error that code came to.
pub(crate) fn error(output: &ExecOutput) -> &CodeError {
    match output.results.last() {
        Some(CodeResult::Error(error)) => error,
        other => panic!("{other:?} is no error, of {:?}", output.report),
    }
}

/// Where a context stands.
pub(crate) async fn state(sandbox: &Sandbox, context: &ContextInfo) -> ContextState {
    sandbox.context(&context.id).await.expect("the context is known").state
}

/// Starts code that says `on` when it is where it should be, and waits for that.
pub(crate) async fn start(sandbox: &Sandbox, context: &ContextInfo, spec: CodeSpec) -> Exec {
    let mut exec = sandbox.run_code(context, spec).await.expect("the context takes code");
    let mut seen = Vec::new();
    while !seen.ends_with(b"on\n") {
        match within("it is on", exec.next()).await {
            Some(ExecEvent::Output(chunk)) => seen.extend(chunk.bytes),
            other => panic!("{other:?}"),
        }
    }
    exec
}

async fn state_stays_between_runs_and_contexts_are_apart(sandbox: &Sandbox) {
    let (a, b) = (context(sandbox).await, context(sandbox).await);
    assert_ne!(a.id, b.id);
    assert!(run(sandbox, &a, "import math\nx = 41\ndef f(): return x + 1").await.report.exit.success());
    assert_eq!(value(sandbox, &a, "f()").await, "42");
    assert_eq!(value(sandbox, &a, "_ + 1").await, "43");
    let output = run(sandbox, &b, "x").await;
    assert_eq!(error(&output).name, "NameError");
    assert_eq!(output.report.exit, Exit::Code { code: 1 });
    assert_eq!(value(sandbox, &a, "__name__, math.floor(2.5)").await, "('__main__', 2)");
}

async fn the_last_expression_is_the_value(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    assert_eq!(value(sandbox, &context, "x = 1\nx + 1").await, "2");
    assert_eq!(value(sandbox, &context, "'a' 'b'").await, "'ab'");
    for nothing in ["x = 2", "None", "x;", "", "# only words", "def f():\n    1\n"] {
        let output = run(sandbox, &context, nothing).await;
        assert_eq!((output.report.exit, output.results), (Exit::Code { code: 0 }, vec![]), "{nothing:?}");
    }
}

/// As it comes out of a text that somebody has indented with what is around it.
async fn a_last_line_is_what_it_is_in_the_whole(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    for (code, expected) in [
        ("x = 5\n-1", "-1"),
        ("x = 5 \\\n-1\nx", "4"),
        ("(5\n)", "5"),
        ("x = 5\n(x,\n-1)", "(5, -1)"),
        ("'''a\nb'''", "'a\\nb'"),
        ("if x:\n    y = 1\nelse:\n    y = 2\ny  # the value\n\n", "1"),
        ("*[1], 2", "(1, 2)"),
        ("x = 1; x + 1", "2"),
        ("x\n# not the end of it;", "1"),
        ("'a;'", "'a;'"),
        ("import asyncio\nawait asyncio.sleep(0, 7)", "7"),
    ] {
        assert_eq!(value(sandbox, &context, code).await, expected, "{code}");
    }
    for code in [
        "x = 5 \\\n-1",
        "y = '''\n1'''",
        "x = [\n1\n]",
        "x = 1\nx;",
        "x = 1\nx;  # says why",
        "(x,\n'ä');",
        "x = 1\nNone",
        "if x:\n    x",
    ] {
        assert_eq!(run(sandbox, &context, code).await.results, [], "{code}");
    }
    let output = run(sandbox, &context, "x = 1\n\n1 / 0").await;
    let told = error(&output).traceback.join("\n");
    assert!(told.contains("line 3") && told.contains("1 / 0"), "{told}");
}

async fn indented_code_runs_as_in_ipython(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code = "\n        def f(x):\n            return x + 2\n\n        result = f(2)\n        result\n    ";
    assert_eq!(value(sandbox, &context, code).await, "4");
    assert_eq!(value(sandbox, &context, "\t# says why\n\tif True:\n\t\tx = 5\n\tx").await, "5");
    assert_eq!(value(sandbox, &context, "\r\n  x = 6\r\n  x\r\n").await, "6");
    // All lines lose what the first one has, those of a text as well.
    assert_eq!(value(sandbox, &context, "  x = '''a\n    b\n c'''\n  x").await, r"'a\n  b\n c'");
    // What is right as it stands is left as it is, even if it begins with an indented remark.
    assert_eq!(value(sandbox, &context, "  # a remark\nx = '''a\n  b'''\nx").await, r"'a\n  b'");
    // Lines keep their numbers, and are shown.
    let output = run(sandbox, &context, "\n\n    x = 1\n    x / 0\n").await;
    let traceback = error(&output).traceback.join("\n");
    assert!(traceback.contains("line 4, in <module>\n    x / 0"), "{traceback}");
    for wrong in ["  x = 1\n y = 2", "x = 1\n  y = 2", "  if x:\n  y = 2"] {
        assert_eq!(error(&run(sandbox, &context, wrong).await).name, "IndentationError", "{wrong:?}");
    }
    assert_eq!(error(&run(sandbox, &context, "  x = 1\n  a b").await).name, "SyntaxError");
}

async fn shapes_of_a_value_are_told_by_their_mime_types(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code = "
class Rich:
    def __repr__(self): return 'rich'
    def _repr_html_(self): return '<b>x</b>'
    def _repr_markdown_(self): return '**x**'
    def _repr_json_(self): return {'a': [1, None]}
    def _repr_latex_(self): return '$x$'
    def _repr_svg_(self): return '<svg/>'
    def _repr_png_(self): return b'\\x89PNG'
    def _repr_jpeg_(self): return b'\\xff\\xd8'
    def _repr_pdf_(self): return b'%PDF'
    def _repr_javascript_(self): return 'x()'
    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/x-own': 'own'}, {'text/x-own': {'w': 1}}
Rich()";
    let output = run(sandbox, &context, code).await;
    let [CodeResult::Value(bundle)] = output.results.as_slice() else { panic!("{output:?}") };
    let told: Vec<(&str, &str)> =
        bundle.data.iter().map(|(mime, data)| (mime.as_str(), data.as_str())).collect();
    let expected = [
        ("application/javascript", "x()"),
        ("application/json", r#"{"a": [1, null]}"#),
        ("application/pdf", "JVBERg=="),
        ("image/jpeg", "/9g="),
        ("image/png", "iVBORw=="),
        ("image/svg+xml", "<svg/>"),
        ("text/html", "<b>x</b>"),
        ("text/latex", "$x$"),
        ("text/markdown", "**x**"),
        ("text/plain", "rich"),
        ("text/x-own", "own"),
    ];
    assert_eq!(told, expected);
    assert_eq!(bundle.metadata.as_deref(), Some(r#"{"text/x-own": {"w": 1}}"#));
}

async fn display_shows_before_the_end(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code =
        "display(1, 'a')\ndisplay({'text/html': '<i>'}, raw=True)\nprint('on', flush=True)\ninput()\n2";
    let spec = CodeSpec { stdin: true, ..CodeSpec::new(code) };
    let mut exec = sandbox.run_code(&context, spec).await.unwrap();
    let mut shown = 0;
    while shown < 3 {
        match within("it is shown", exec.next()).await {
            Some(ExecEvent::Result(CodeResult::Display(_))) => shown += 1,
            Some(ExecEvent::Output(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    exec.input().write(b"\n").await.unwrap();
    let output = within("it ends", exec.collect()).await;
    assert!(matches!(output.results.as_slice(), [CodeResult::Value(bundle)] if bundle.text() == Some("2")));
}

async fn what_was_shown_can_be_shown_anew(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code = "shown = display('a', display_id=True)\nshown.update('b')\n\
                display({'text/html': '<i>'}, raw=True, metadata={'text/html': {'w': 1}})\n\
                assert display('c', display_id='own').display_id == 'own'\n\
                len(shown.display_id) > 0 and display('d') is None";
    let output = run(sandbox, &context, code).await;
    let [a, b, html, c, d, end] = output.results.as_slice() else { panic!("{output:?}") };
    for (shown, expected) in [(a, "'a'"), (b, "'b'"), (c, "'c'"), (d, "'d'")] {
        assert!(matches!(shown, CodeResult::Display(it) if it.text() == Some(expected)), "{shown:?}");
    }
    assert!(
        matches!(html, CodeResult::Display(it) if it.metadata.as_deref() == Some(r#"{"text/html": {"w": 1}}"#)),
        "{html:?}"
    );
    assert!(matches!(end, CodeResult::Value(it) if it.text() == Some("True")), "{end:?}");
}

/// By a package of that name: its own function would begin a shell, which takes the place of the code's module.
async fn what_ipython_publishes_is_shown(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code = "import os, sys, tempfile
place = tempfile.mkdtemp()
os.makedirs(place + '/IPython/core')
for name in ('__init__', 'core/__init__'):
    open(place + '/IPython/%s.py' % name, 'w').close()
with open(place + '/IPython/core/display_functions.py', 'w') as module:
    print('def publish_display_data(data, metadata=None): 1 / 0', file=module)
sys.path.insert(0, place)
from IPython.core.display_functions import publish_display_data
publish_display_data({'text/plain': 'x'}, {'a': 1})";
    let output = run(sandbox, &context, code).await;
    let [CodeResult::Display(shown)] = output.results.as_slice() else { panic!("{output:?}") };
    assert_eq!((shown.text(), shown.metadata.as_deref()), (Some("x"), Some(r#"{"a": 1}"#)));
}

async fn json_that_code_shows_is_json(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    run(
        sandbox,
        &context,
        "class J:\n    def __init__(self, x): self.x = x\n    def _repr_json_(self): return self.x",
    )
    .await;
    for (code, expected) in [
        ("J({'a': [float('nan'), (float('-inf'), 1.5)]})", r#"{"a": [null, [null, 1.5]]}"#),
        ("J('text')", r#""text""#),
        ("J('NaN')", r#""NaN""#),
        (r#"J('{"a": 1}')"#, r#"{"a": 1}"#),
    ] {
        let output = run(sandbox, &context, code).await;
        let [CodeResult::Value(bundle)] = output.results.as_slice() else { panic!("{output:?}") };
        assert_eq!(bundle.data["application/json"], expected, "{code}");
    }
}

async fn a_shape_that_fails_is_told_with_the_users_lines(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code =
        "class Bad:\n    def __repr__(self): return 'bad'\n    def _repr_html_(self): return 1 / 0\nBad()";
    let output = run(sandbox, &context, code).await;
    assert!(
        matches!(output.results.as_slice(), [CodeResult::Value(it)] if it.text() == Some("bad")),
        "{output:?}"
    );
    let told = text(&output.stderr);
    assert!(told.contains("line 3, in _repr_html_") && !told.contains("glasshouse"), "{told}");
}

async fn an_error_has_name_value_and_the_users_lines(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    assert!(run(sandbox, &context, "def f(n):\n    return 1 / n").await.report.exit.success());
    let output = run(sandbox, &context, "x = 1\nf(x - 1)").await;
    let error = error(&output).clone();
    assert_eq!((error.name.as_str(), error.value.as_str()), ("ZeroDivisionError", "division by zero"));
    let lines: Vec<&str> =
        error.traceback.iter().map(|line| line.trim()).filter(|line| !line.starts_with('^')).collect();
    let lines: Vec<&str> = lines.into_iter().filter(|line| !line.starts_with('~')).collect();
    let expected = [
        "Traceback (most recent call last):",
        r#"File "<cell 2>", line 2, in <module>"#,
        "f(x - 1)",
        r#"File "<cell 1>", line 2, in f"#,
        "return 1 / n",
        "ZeroDivisionError: division by zero",
    ];
    assert_eq!(lines, expected);
    let output = run(sandbox, &context, "a b").await;
    assert_eq!(crate::code::error(&output).name, "SyntaxError");
    assert!(!crate::code::error(&output).traceback.iter().any(|line| line.contains("drive")), "{output:?}");
}

async fn output_of_every_kind_is_streamed_as_it_comes(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code = "
import os, subprocess, sys
print('a')
os.write(1, b'b\\n')
subprocess.run(['sh', '-c', 'echo c; echo d >&2'])
sys.stderr.write('e\\n')
print('on', flush=True)
sys.stdin.read()
print('f', end='')";
    let exec = start(sandbox, &context, CodeSpec { stdin: true, ..CodeSpec::new(code) }).await;
    exec.input().close().await.unwrap();
    let output = within("it ends", exec.collect()).await;
    assert_eq!(output.report.exit, Exit::Code { code: 0 });
    assert_eq!((output.report.stdout_bytes, output.report.stderr_bytes), (10, 4), "{output:?}");
    // Nothing of it is told to the next run.
    let output = run(sandbox, &context, "print('next')").await;
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("next\n".to_owned(), String::new()));
}

async fn text_without_the_end_of_a_line_is_streamed_and_outlives_a_crash(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code =
        "import sys\nprint('half', end=' ')\nprint('other', end='', file=sys.stderr)\nsys.stdin.read()";
    let spec = CodeSpec { stdin: true, ..CodeSpec::new(code) };
    let mut exec = sandbox.run_code(&context, spec).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < "half other".len() {
        match within("it is streamed", exec.next()).await {
            Some(ExecEvent::Output(chunk)) => seen.extend(chunk.bytes),
            other => panic!("{other:?}"),
        }
    }
    exec.input().close().await.unwrap();
    assert!(within("it ends", exec.collect()).await.report.exit.success());
    // What cannot be interrupted is killed, and has said what it said.
    let deaf = "import signal\nsignal.signal(2, signal.SIG_IGN)\nprint('half', end='')\nwhile True: pass";
    let spec = CodeSpec { timeout_ms: Some(1000), grace_ms: Some(100), ..CodeSpec::new(deaf) };
    let output = run_spec(sandbox, &context, spec).await;
    assert_eq!((output.report.exit.clone(), text(&output.stdout).as_str()), (Exit::TimedOut, "half"));
    sandbox.restart_context(&context.id).await.unwrap();
    let output = run(sandbox, &context, "print('x', end='')\nimport ctypes\nctypes.string_at(8)").await;
    assert_eq!(
        (output.report.exit.clone(), text(&output.stdout).as_str()),
        (Exit::Signal { signal: 11 }, "x")
    );
}

async fn code_reads_its_stdin_to_the_end(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    for _ in 0..2 {
        let spec = CodeSpec { stdin: true, ..CodeSpec::new("import sys\n[input('? '), sys.stdin.read()]") };
        let exec = sandbox.run_code(&context, spec).await.unwrap();
        exec.input().write(b"one\ntwo\nthree").await.unwrap();
        exec.input().close().await.unwrap();
        let output = within("it ends", exec.collect()).await;
        let [CodeResult::Value(bundle)] = output.results.as_slice() else { panic!("{output:?}") };
        assert_eq!(bundle.text(), Some(r"['one', 'two\nthree']"));
        assert_eq!(text(&output.stdout), "? ");
    }
    assert_eq!(error(&run(sandbox, &context, "input()").await).name, "EOFError");
}

async fn await_works_at_the_top(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code = "import asyncio\nasync def f():\n    await asyncio.sleep(0.001)\n    return 5\nx = await f()\nx + await f()";
    assert_eq!(value(sandbox, &context, code).await, "10");
    assert_eq!(value(sandbox, &context, "[i async for i in (j for j in [])] if False else x").await, "5");
}

async fn an_interrupted_await_is_cleared_up_by_its_own_run(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code = "import asyncio
async def wait():
    try:
        print('on')
        await asyncio.sleep(1000)
    finally:
        await asyncio.sleep(0)
        print('cleared up')
await wait()";
    let exec = start(sandbox, &context, CodeSpec::new(code)).await;
    sandbox.interrupt_context(&context.id).await.unwrap();
    let output = within("it ends", exec.collect()).await;
    assert_eq!(output.stdout.bytes, b"cleared up\n", "behind what was read before");
    assert_eq!(error(&output).name, "KeyboardInterrupt");
    let told = error(&output).traceback.join("\n");
    assert!(told.contains("<cell 1>\", line 9, in <module>") && told.contains(", in wait"), "{told}");
    assert!(!told.contains("run_until_complete"), "{told}");
    let output = run(sandbox, &context, "await asyncio.sleep(0.001)").await;
    assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("", ""));
    // The frames of an error are the code's own, too.
    let output = run(sandbox, &context, "async def f():\n    1 / 0\nawait f()").await;
    let told = error(&output).traceback.join("\n");
    assert!(told.contains("line 2, in f") && !told.contains("run_until_complete"), "{told}");
}

async fn a_context_has_one_loop_that_outlives_runs(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let work = "import asyncio\nasync def work():\n    await asyncio.sleep(0.001)\n    return 5\n";
    for begun in ["asyncio.ensure_future(work())", "asyncio.create_task(work())"] {
        let output = run(sandbox, &context, &format!("{work}begun = {begun}")).await;
        assert!(output.report.exit.success(), "{begun}: {output:?}");
        assert_eq!(value(sandbox, &context, "await begun").await, "5", "{begun}");
    }
    // What runs a loop of its own can, and the context has its own again after it.
    assert_eq!(value(sandbox, &context, "asyncio.run(work())").await, "5");
    assert_eq!(value(sandbox, &context, "asyncio.get_event_loop().is_closed()").await, "False");
    assert_eq!(value(sandbox, &context, "asyncio.get_event_loop().run_until_complete(work())").await, "5");
}

async fn sys_exit_ends_the_run_and_not_the_context(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    for (code, end) in [("sys.exit(3)", 3), ("sys.exit()", 0), ("sys.exit('bye')", 1), ("exit(7)", 7)] {
        let output = run(sandbox, &context, &format!("import sys\nx = 1\n{code}")).await;
        assert_eq!(output.report.exit, Exit::Code { code: end }, "{code}");
        assert_eq!(error(&output).name, "SystemExit", "{code}");
    }
    assert_eq!(value(sandbox, &context, "x").await, "1");
}

async fn an_interrupt_ends_the_run_and_not_the_context(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    for wait in [
        "while True: pass",
        "import time; time.sleep(1000)",
        // An interrupt that comes before there is a program to be waited for would reach nobody.
        "import os; os.system('echo on; exec sleep 1000')",
        "import asyncio; await asyncio.sleep(1000)",
    ] {
        let on = if wait.contains("echo on") { "" } else { "print('on')" };
        let code = format!("x = {wait:?}\n{on}\n{wait}\nprint('not reached')");
        let exec = start(sandbox, &context, CodeSpec::new(code)).await;
        sandbox.interrupt_context(&context.id).await.unwrap();
        let output = within(wait, exec.collect()).await;
        if !wait.contains("os.system") {
            assert_eq!(error(&output).name, "KeyboardInterrupt", "{wait}");
            assert_eq!(output.report.exit, Exit::Code { code: 1 });
        }
        assert_eq!(value(sandbox, &context, "x[0]").await, format!("'{}'", &wait[..1]));
    }
    // Nothing runs, so there is nothing that it could end.
    sandbox.interrupt_context(&context.id).await.unwrap();
    assert_eq!(value(sandbox, &context, "1").await, "1");
}

/// Python does not look whether it was interrupted before what it waits for is over, if it was just about to wait.
async fn an_interrupt_that_is_lost_is_said_again_and_one_that_is_heard_is_not(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let lost = "import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, [2])
print('on')
signal.sigwait([2])
signal.pthread_sigmask(signal.SIG_UNBLOCK, [2])
time.sleep(1000)";
    // A program that the code has forked hears it as well, and says so to nobody.
    let heard = "import os, time
reads, writes = os.pipe()
child = os.fork()
try:
    if child:
        os.read(reads, 1)
        print('on')
    else:
        os.write(writes, b'.')
    while True: pass
except KeyboardInterrupt:
    time.sleep(1.5)
    if child == 0:
        os._exit(7)
    print('cleared up', os.waitpid(child, 0)[1] >> 8)";
    let mut outputs = Vec::new();
    for code in [lost, heard] {
        let exec = start(sandbox, &context, CodeSpec::new(code)).await;
        sandbox.interrupt_context(&context.id).await.unwrap();
        outputs.push(within(code, exec.collect()).await);
    }
    assert_eq!(error(&outputs[0]).name, "KeyboardInterrupt", "{:?}", outputs[0]);
    assert_eq!(outputs[1].stdout.bytes, b"cleared up 7\n", "{:?}", outputs[1]);
}

async fn a_deadline_interrupts_first(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let spec = CodeSpec { timeout_ms: Some(100), ..CodeSpec::new("x = 1\nwhile True: pass") };
    let output = run_spec(sandbox, &context, spec).await;
    assert_eq!(output.report.exit, Exit::TimedOut);
    assert_eq!(error(&output).name, "KeyboardInterrupt");
    assert_eq!(state(sandbox, &context).await, ContextState::Idle);
    assert_eq!(value(sandbox, &context, "x").await, "1");
}

async fn what_ignores_the_interrupt_is_killed_and_its_context_lost(sandbox: &Sandbox) {
    let (lost, other) = (context(sandbox).await, context(sandbox).await);
    let code = "import signal, subprocess\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
                child = subprocess.Popen(['sleep', '987654'])\nwhile True: pass";
    let spec = CodeSpec { timeout_ms: Some(100), grace_ms: Some(100), ..CodeSpec::new(code) };
    let output = run_spec(sandbox, &lost, spec).await;
    assert_eq!(output.report.exit, Exit::TimedOut);
    let ContextState::Lost { why } = state(sandbox, &lost).await else { panic!("it lives") };
    assert!(why.contains("time was up"), "{why}");
    assert_eq!(sandbox.run_code(&lost, CodeSpec::new("1")).await.unwrap_err().kind(), ErrorKind::NotFound);
    settle("its children are gone", async || {
        !stdout_of(sandbox, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' || true")
            .await
            .contains("sleep 987654")
    })
    .await;
    assert_eq!(value(sandbox, &other, "1").await, "1");
    sandbox.restart_context(&lost.id).await.unwrap();
    assert_eq!(value(sandbox, &lost, "2").await, "2");
}

async fn a_killed_run_is_interrupted_first(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let exec = start(sandbox, &context, CodeSpec::new("x = 1\nprint('on')\nwhile True: pass")).await;
    exec.input().kill().await.unwrap();
    let output = within("it ends", exec.collect()).await;
    assert_eq!(output.report.exit, Exit::Killed { by: Killer::Caller });
    assert_eq!(value(sandbox, &context, "x").await, "1");
}

async fn a_busy_context_refuses_a_second_run(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let exec =
        start(sandbox, &context, CodeSpec { stdin: true, ..CodeSpec::new("print('on')\ninput()") }).await;
    let busy = sandbox.run_code(&context, CodeSpec::new("1")).await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy, "{busy}");
    assert_eq!(state(sandbox, &context).await, ContextState::Busy { exec: exec.id() });
    exec.input().write(b"x\n").await.unwrap();
    let output = within("it ends", exec.collect()).await;
    assert!(output.report.exit.success());
    assert_eq!(value(sandbox, &context, "1").await, "1");
}

async fn a_caller_that_goes_away_interrupts_its_run(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let exec = start(sandbox, &context, CodeSpec::new("x = 1\nprint('on')\nwhile True: pass")).await;
    drop(exec);
    settle("the run is over", async || state(sandbox, &context).await == ContextState::Idle).await;
    assert_eq!(value(sandbox, &context, "x").await, "1");
}

async fn contexts_are_listed_restarted_and_deleted(sandbox: &Sandbox) {
    let spec = ContextSpec {
        id: Some("mine".into()),
        cwd: Some("/tmp".into()),
        env: vec![("A_NAME".into(), "a value".into())],
        ..ContextSpec::default()
    };
    let mine = sandbox.create_context(spec.clone()).await.unwrap();
    assert_eq!((mine.id.as_str(), mine.language, mine.runs), ("mine", Language::Python, 0));
    assert!(mine.version.as_deref().is_some_and(|version| version.starts_with("3.")), "{mine:?}");
    assert_eq!(sandbox.create_context(spec).await.unwrap_err().kind(), ErrorKind::Exists);
    let asked = "import os\nos.getcwd(), os.environ['A_NAME']";
    assert_eq!(value(sandbox, &mine, asked).await, "('/tmp', 'a value')");
    assert_eq!(sandbox.context("mine").await.unwrap().runs, 1);
    let busy = start(sandbox, &mine, CodeSpec::new("print('on')\nwhile True: pass")).await;
    let again = sandbox.restart_context("mine").await.unwrap();
    assert_ne!(again.pid, mine.pid);
    let output = within("it ends", busy.collect()).await;
    assert_eq!(output.report.exit, Exit::Killed { by: Killer::Caller });
    assert_eq!(value(sandbox, &mine, asked).await, "('/tmp', 'a value')");
    sandbox.delete_context("mine").await.unwrap();
    assert_eq!(sandbox.contexts().await.unwrap(), []);
    for error in [
        sandbox.delete_context("mine").await.unwrap_err(),
        sandbox.restart_context("mine").await.unwrap_err(),
        sandbox.interrupt_context("mine").await.unwrap_err(),
        sandbox.run_code(&mine, CodeSpec::new("1")).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
}

async fn what_makes_no_sense_is_refused(sandbox: &Sandbox) {
    let spec = |id: &str| ContextSpec { id: Some(id.into()), ..ContextSpec::default() };
    for name in ["", "a b", "../x", &"x".repeat(65)] {
        assert_eq!(
            sandbox.create_context(spec(name)).await.unwrap_err().kind(),
            ErrorKind::Invalid,
            "{name:?}"
        );
    }
    let missing = ContextSpec { interpreter: Some("no-such-python".into()), ..ContextSpec::default() };
    let error = sandbox.create_context(missing).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("no-such-python"), "{error}");
    let mute = ContextSpec { interpreter: Some("true".into()), ..ContextSpec::default() };
    let error = sandbox.create_context(mute).await.unwrap_err();
    assert!(error.to_string().contains("ended with code 0"), "{error}");
    let nowhere = ContextSpec { cwd: Some("/no/such/place".into()), ..ContextSpec::default() };
    assert_eq!(sandbox.create_context(nowhere).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(sandbox.contexts().await.unwrap(), []);
    let python = context(sandbox).await;
    let other = ContextInfo { language: Language::Bash, ..python.clone() };
    assert_eq!(sandbox.run_code(&other, CodeSpec::new("1")).await.unwrap_err().kind(), ErrorKind::Invalid);
    let long = CodeSpec::new("#".repeat(200_000));
    assert_eq!(sandbox.run_code(&python, long).await.unwrap_err().kind(), ErrorKind::Limit);
    let large = format!("x = '{}'\nlen(x)", "y".repeat(120_000));
    assert_eq!(value(sandbox, &python, &large).await, "120000");
}

async fn a_run_is_listed_and_attached_to_as_a_command_is(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let code = "print('kept')\nprint('on')\nimport time\nwhile True: time.sleep(0.01)";
    let exec = start(sandbox, &context, CodeSpec { background: true, ..CodeSpec::new(code) }).await;
    let id = exec.id();
    drop(exec);
    let info = sandbox.execs().await.unwrap().into_iter().find(|info| info.exec == id).unwrap();
    assert_eq!(
        (info.state, info.command[0].as_str(), &info.command[1]),
        (ExecState::Running, "python", &context.id)
    );
    let mut attached = sandbox.attach(id, 0, true).await.unwrap();
    let Some(ExecEvent::Output(chunk)) = within("it is kept", attached.next()).await else {
        panic!("no output")
    };
    assert_eq!((chunk.stream, chunk.offset), (OutputStream::Stdout, 0));
    sandbox.interrupt_context(&context.id).await.unwrap();
    let output = within("it ends", attached.collect()).await;
    assert_eq!(error(&output).name, "KeyboardInterrupt");
    let again = within("it is kept", sandbox.attach(id, 0, true).await.unwrap().collect()).await;
    assert_eq!((text(&again.stdout), again.results), ("kept\non\n".to_owned(), output.results));
}

async fn a_run_reports_its_own_time_and_memory(sandbox: &Sandbox) {
    let context = context(sandbox).await;
    let busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass";
    let output = run(sandbox, &context, busy).await;
    assert!((290_000..3_000_000).contains(&output.report.cpu_us), "{:?}", output.report);
    assert!(output.report.wall_us >= 290_000, "{:?}", output.report);
    let large = run(sandbox, &context, "x = bytearray(100 << 20)\ndel x").await;
    assert!(large.report.peak_memory_bytes > 100 << 20, "{:?}", large.report);
    let small = run(sandbox, &context, "1").await;
    assert!(small.report.cpu_us < 200_000, "{:?}", small.report);
    assert!(small.report.peak_memory_bytes < 100 << 20, "{:?}", small.report);
}

async fn a_reset_takes_contexts_along(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let context = context(&sandbox).await;
    if stage.house.reset(sandbox.id()).await.is_err() {
        // What has no walls has no state.
        return;
    }
    let sandbox = stage.house.get(sandbox.id()).await.unwrap();
    assert_eq!(sandbox.contexts().await.unwrap(), []);
    let again = crate::code::context(&sandbox).await;
    assert_eq!(again.id, context.id);
    assert_eq!(value(&sandbox, &again, "1").await, "1");
}

async fn a_context_changes_no_file(stage: &Stage) {
    let sandbox = stage.create(SandboxSpec::default()).await.unwrap();
    let Ok(before) = stage.house.digest(sandbox.id()).await else { return };
    let context = context(&sandbox).await;
    assert_eq!(value(&sandbox, &context, "1").await, "1");
    assert_eq!(stage.house.digest(sandbox.id()).await.unwrap().digest, before.digest);
}

async fn code_runs_once_in_a_context_of_its_own(sandbox: &Sandbox) {
    let once = sandbox.run_once(ContextSpec::default(), CodeSpec::new("print(1)\n2"));
    let output = tokio::time::timeout(WAIT_LIMIT + Duration::ZERO, once).await.unwrap().unwrap();
    assert_eq!((text(&output.stdout).as_str(), output.results.len()), ("1\n", 1));
    assert_eq!(sandbox.contexts().await.unwrap(), []);
}

async fn a_program_has_a_file_and_its_own_way_to_tell_errors(sandbox: &Sandbox) {
    let once = async |code: &str| {
        let spec = CodeSpec { whole: true, ..CodeSpec::new(code) };
        within(code, sandbox.run_once(ContextSpec::default(), spec)).await.unwrap()
    };
    let output = once("print(open(__file__).read())").await;
    assert_eq!(text(&output.stdout), "print(open(__file__).read())\n", "{output:?}");
    // Processes that begin anew read it, too.
    let output = once(
        "import multiprocessing as m\ndef twice(x): return 2 * x\nif __name__ == '__main__':\n  \
         with m.get_context('spawn').Pool(1) as pool: print(pool.map(twice, [1, 2]))",
    )
    .await;
    assert_eq!(text(&output.stdout), "[2, 4]\n", "{output:?}");
    let output =
        once("import sys\nsys.excepthook = lambda *told: print('own', told[0].__name__)\n1 / 0").await;
    assert_eq!(
        (output.report.exit, text(&output.stdout).as_str(), output.results),
        (Exit::Code { code: 1 }, "own ZeroDivisionError\n", vec![])
    );
    let output = once("import sys\nsys.excepthook = lambda *told: [][0]\n1 / 0").await;
    assert!(text(&output.stderr).contains("IndexError"), "{output:?}");
    assert_eq!(error(&output).name, "ZeroDivisionError");
}
