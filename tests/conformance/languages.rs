//! What holds for contexts of every language, and what is particular to JavaScript, TypeScript and Bash.

use glasshouse_sandbox::{
    CodeResult, CodeSpec, ContextInfo, ContextSpec, ContextState, ErrorKind, Exit, Killer, Language,
    RuntimeKind, Sandbox, SandboxSpec, Volume,
};
use glasshouse_tests::{node, skip};

use crate::code::{error, run, run_spec, start, state, value};
use crate::stage::{Stage, on_every_runtime, settle, stdout_of, text, within};

on_every_runtime!(
    state_stays_in_every_language,
    output_and_stdin_work_in_every_language,
    a_deadline_interrupts_every_language,
    an_interrupt_hits_its_own_run_and_no_other,
    what_does_not_listen_is_killed_in_every_language,
    an_interpreter_that_ends_is_told_in_every_language,
    pipes_with_names_are_gone_when_a_run_has_begun,
    names_that_are_taken_and_memory_that_is_full_stop_no_run,
    a_program_that_clears_up_is_interrupted_once,
    javascript_awaits_at_the_top_and_redeclares,
    javascript_tells_values_and_errors,
    javascript_lives_on_after_exit_and_stray_errors,
    javascript_tells_what_nobody_catches_in_its_last_turn,
    javascript_imports_where_it_says_so_in_code,
    typescript_is_stripped_or_refused,
    typescript_runs_where_node_strips_types,
    typescript_errors_have_the_users_lines,
    bash_keeps_all_that_a_shell_has,
    bash_leaves_the_code_and_not_the_shell,
    bash_opens_no_file_behind_an_exit,
    bash_tells_of_the_codes_own_lines,
    bash_keeps_traps_and_options_between_runs,
    bash_begins_where_the_run_before_has_ended,
    a_shell_that_does_nothing_any_more_ends,
);

async fn context(sandbox: &Sandbox, language: Language) -> ContextInfo {
    let made = sandbox.create_context(ContextSpec { language, ..ContextSpec::default() }).await;
    made.unwrap_or_else(|e| panic!("{}: {e}", language.name()))
}

/// A word of each language that the tests need.
struct Words {
    language: Language,
    set: &'static str,
    get: &'static str,
    both: &'static str,
    echo: &'static str,
    forever: &'static str,
    deaf: &'static str,
    quit: &'static str,
}

const LANGUAGES: [Words; 3] = [
    Words {
        language: Language::Python,
        set: "x = 'kept'",
        get: "print(x)",
        both: "import sys\nprint('out')\nprint('err', file=sys.stderr)",
        echo: "import sys\nprint(sys.stdin.read(), end='')",
        forever: "print('on')\nwhile True: pass",
        deaf: "import signal\nsignal.signal(2, signal.SIG_IGN)\nwhile True: pass",
        quit: "import os\nos._exit(9)",
    },
    Words {
        language: Language::Javascript,
        set: "const x = 'kept';",
        get: "console.log(x)",
        both: "console.log('out'); console.error('err')",
        echo: "process.stdout.write(require('fs').readFileSync(0)); undefined",
        forever: "console.log('on'); while (true) {}",
        deaf: "require('child_process').spawnSync('sh', ['-c', \"trap '' INT; sleep 1000\"])",
        quit: "process.reallyExit(9)",
    },
    Words {
        language: Language::Bash,
        set: "x=kept",
        get: "echo $x",
        both: "echo out; echo err >&2",
        echo: "cat",
        forever: "echo on; while :; do :; done",
        deaf: "trap '' INT; while :; do :; done",
        quit: "builtin exit 9",
    },
];

async fn state_stays_in_every_language(sandbox: &Sandbox) {
    for words in LANGUAGES {
        let (a, b) = (context(sandbox, words.language).await, context(sandbox, words.language).await);
        assert!(run(sandbox, &a, words.set).await.report.exit.success(), "{}", words.set);
        assert_eq!(text(&run(sandbox, &a, words.get).await.stdout), "kept\n", "{}", words.get);
        assert_ne!(text(&run(sandbox, &b, words.get).await.stdout), "kept\n", "{}", words.get);
    }
}

async fn output_and_stdin_work_in_every_language(sandbox: &Sandbox) {
    for words in LANGUAGES {
        let context = context(sandbox, words.language).await;
        let output = run(sandbox, &context, words.both).await;
        assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("out\n", "err\n"));
        for fed in ["once", &"long\n".repeat(100_000)] {
            let spec = CodeSpec { stdin: true, ..CodeSpec::new(words.echo) };
            let exec = sandbox.run_code(&context, spec).await.unwrap();
            let input = exec.input();
            let fed = fed.to_owned();
            let feeding = {
                let fed = fed.clone();
                tokio::spawn(async move {
                    input.write(fed.as_bytes()).await.unwrap();
                    input.close().await.unwrap();
                })
            };
            let output = within(words.echo, exec.collect()).await;
            feeding.await.unwrap();
            assert_eq!(text(&output.stdout).len(), fed.len(), "{}: {:?}", words.echo, output.results);
        }
        assert_eq!(text(&run(sandbox, &context, words.echo).await.stdout), "", "nothing is fed");
    }
}

async fn a_deadline_interrupts_every_language(sandbox: &Sandbox) {
    for words in LANGUAGES {
        let context = context(sandbox, words.language).await;
        run(sandbox, &context, words.set).await;
        let spec = CodeSpec { timeout_ms: Some(200), ..CodeSpec::new(words.forever) };
        let output = run_spec(sandbox, &context, spec).await;
        assert_eq!(output.report.exit, Exit::TimedOut, "{}", words.forever);
        let exec = start(sandbox, &context, CodeSpec::new(words.forever)).await;
        sandbox.interrupt_context(&context.id).await.unwrap();
        let output = within(words.forever, exec.collect()).await;
        assert!(matches!(output.report.exit, Exit::Code { code: 1.. }), "{:?}", output.report);
        let output = run(sandbox, &context, words.get).await;
        assert_eq!(text(&output.stdout), "kept\n", "{output:?}");
    }
}

/// Whenever it comes: before the code has begun, while it computes or waits, as it ends, and after.
async fn an_interrupt_hits_its_own_run_and_no_other(sandbox: &Sandbox) {
    for (language, endless, short) in [
        (Language::Python, "while True: pass", "for i in range(2000): pass"),
        (Language::Python, "import time\ntime.sleep(1000)", "print(1)"),
        (Language::Javascript, "while (true) {}", "for (let i = 0; i < 1e5; i++) {}"),
        (Language::Javascript, "await new Promise(() => {})", "await new Promise((r) => setTimeout(r, 1))"),
        (Language::Bash, "while :; do :; done", "for i in 1 2 3; do :; done"),
        (Language::Bash, "sleep 1000", "true"),
    ] {
        let context = context(sandbox, language).await;
        let next = if language == Language::Bash { "echo next" } else { "print('next')" };
        let next = if language == Language::Javascript { "console.log('next')" } else { next };
        for round in 0..8 {
            let exec = sandbox.run_code(&context, CodeSpec::new(endless)).await.unwrap();
            sandbox.interrupt_context(&context.id).await.unwrap();
            let output = within(endless, exec.collect()).await;
            assert!(matches!(output.report.exit, Exit::Code { code: 1.. }), "{round}: {endless}: {output:?}");
            // One that ends by itself just then has ended, one way or the other.
            let exec = sandbox.run_code(&context, CodeSpec::new(short)).await.unwrap();
            for _ in 0..round {
                sandbox.interrupt_context(&context.id).await.unwrap();
            }
            let output = within(short, exec.collect()).await;
            assert!(matches!(output.report.exit, Exit::Code { .. }), "{round}: {short}: {output:?}");
            let output = run(sandbox, &context, next).await;
            assert_eq!(text(&output.stdout), "next\n", "{round}: after {short}: {output:?}");
        }
    }
}

async fn what_does_not_listen_is_killed_in_every_language(sandbox: &Sandbox) {
    for words in LANGUAGES {
        let context = context(sandbox, words.language).await;
        let spec = CodeSpec { timeout_ms: Some(200), grace_ms: Some(100), ..CodeSpec::new(words.deaf) };
        assert_eq!(run_spec(sandbox, &context, spec).await.report.exit, Exit::TimedOut, "{}", words.deaf);
        assert!(matches!(state(sandbox, &context).await, ContextState::Lost { .. }), "{}", words.deaf);
        sandbox.restart_context(&context.id).await.unwrap();
        assert_eq!(text(&run(sandbox, &context, words.both).await.stdout), "out\n");
    }
}

async fn an_interpreter_that_ends_is_told_in_every_language(sandbox: &Sandbox) {
    for words in LANGUAGES {
        let context = context(sandbox, words.language).await;
        let output = run(sandbox, &context, words.quit).await;
        assert_eq!(output.report.exit, Exit::Code { code: 9 }, "{}", words.quit);
        let ContextState::Lost { why } = state(sandbox, &context).await else { panic!("{}", words.quit) };
        assert_eq!(why, "its interpreter ended with code 9");
    }
    // One that closes the line is killed.
    let context = context(sandbox, Language::Bash).await;
    let output = run(sandbox, &context, "exec 63>&-; sleep 1000").await;
    assert_eq!(output.report.exit, Exit::Killed { by: Killer::Broken });
}

async fn pipes_with_names_are_gone_when_a_run_has_begun(sandbox: &Sandbox) {
    for language in [Language::Javascript, Language::Bash] {
        let context = context(sandbox, language).await;
        let code = if language == Language::Bash {
            "echo on; read x"
        } else {
            "console.log('on'); require('fs').readSync(0, Buffer.alloc(1))"
        };
        let exec = start(sandbox, &context, CodeSpec { stdin: true, ..CodeSpec::new(code) }).await;
        let mine = format!("ls -d /dev/shm/.glasshouse-*-{} 2>/dev/null || true", exec.id());
        settle("the names are gone", async || stdout_of(sandbox, &mine).await.is_empty()).await;
        exec.input().write(b"\n").await.unwrap();
        assert!(within(code, exec.collect()).await.report.exit.success());
    }
}

/// What a run needs there must not depend on what the box has put there.
async fn names_that_are_taken_and_memory_that_is_full_stop_no_run(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let python = context(&sandbox, Language::Python).await;
    let name = "'/dev/shm/.glasshouse-%d-%d' % (os.getppid(), n)";
    let taken = format!("import os\nfor n in range(1, 200): os.mkdir({name})\nprint('on')");
    let output = run(&sandbox, &python, &taken).await;
    assert_eq!(text(&output.stdout), "on\n", "{output:?}");
    // Without walls it is the machine's, and of the tests that run beside this one.
    if stage.runtime != RuntimeKind::Process {
        let full = "with open('/dev/shm/full', 'wb', 0) as full:\n  try:\n    for _ in range(1100): full.write(b'x' * 65536)\n  except OSError as e: print(e.errno)";
        assert_eq!(text(&run(&sandbox, &python, full).await.stdout), "28\n");
    }
    for words in LANGUAGES {
        let context = context(&sandbox, words.language).await;
        for code in [words.both.to_owned(), format!("{}\n{}", words.both, "\n".repeat(100_000))] {
            let output = run(&sandbox, &context, &code).await;
            assert_eq!(text(&output.stdout), "out\n", "{}: {output:?}", words.both);
        }
    }
    let free = format!("for n in range(1, 200): os.rmdir({name})");
    assert!(run(&sandbox, &python, &free).await.report.exit.success());
}

async fn a_program_that_clears_up_is_interrupted_once(sandbox: &Sandbox) {
    let program = "import time\ntry:\n  print(\"on\", flush=True)\n  time.sleep(1000)\nexcept KeyboardInterrupt:\n  time.sleep(1.5)\n  print(\"cleared up\")";
    let spawn = format!(
        "require('child_process').spawnSync('python3', ['-c', {program:?}], {{ stdio: 'inherit' }}); void 0"
    );
    for (language, code) in [
        (Language::Bash, format!("python3 -c '{program}'")),
        (Language::Bash, format!("( python3 -c '{program}'; true )")),
        (Language::Javascript, spawn),
    ] {
        let context = context(sandbox, language).await;
        let exec = start(sandbox, &context, CodeSpec::new(code.clone())).await;
        sandbox.interrupt_context(&context.id).await.unwrap();
        let output = within(&code, exec.collect()).await;
        assert_eq!(output.stdout.bytes, b"cleared up\n", "{code}: {output:?}");
        assert_eq!(state(sandbox, &context).await, ContextState::Idle, "{code}");
    }
}

async fn javascript_awaits_at_the_top_and_redeclares(sandbox: &Sandbox) {
    let context = context(sandbox, Language::Javascript).await;
    let code =
        "const later = (x) => new Promise((r) => setTimeout(() => r(x), 5));\nlet y = await later(5);\ny + 1";
    assert_eq!(value(sandbox, &context, code).await, "6");
    assert_eq!(value(sandbox, &context, "let y = 2; y").await, "2");
    assert_eq!(value(sandbox, &context, "_ + 1").await, "3");
    let output = run(
        sandbox,
        &context,
        "await new Promise((_, no) => setTimeout(() => no(new RangeError('late')), 5))",
    )
    .await;
    assert_eq!((error(&output).name.as_str(), error(&output).value.as_str()), ("RangeError", "late"));
    let exec =
        start(sandbox, &context, CodeSpec::new("console.log('on'); await new Promise(() => {})")).await;
    sandbox.interrupt_context(&context.id).await.unwrap();
    assert_eq!(error(&within("it ends", exec.collect()).await).value, "interrupted");
    assert_eq!(value(sandbox, &context, "y").await, "2");
}

async fn javascript_tells_values_and_errors(sandbox: &Sandbox) {
    let context = context(sandbox, Language::Javascript).await;
    for (code, told) in [
        ("({a: [1, {b: 2}]})", "{ a: [ 1, { b: 2 } ] }"),
        ("'text'", "'text'"),
        ("-0", "-0"),
        ("10n ** 20n", "100000000000000000000n"),
        ("new Map([[1, 2]])", "Map(1) { 1 => 2 }"),
        ("null", "null"),
    ] {
        assert_eq!(value(sandbox, &context, code).await, told, "{code}");
    }
    let output = run(sandbox, &context, "undefined").await;
    assert_eq!(output.results, []);
    let rich = "({[Symbol.for('Jupyter.display')]() { return {'text/html': '<b>', 'image/png': Buffer.from([1, 2])} }})";
    let output = run(sandbox, &context, rich).await;
    let [CodeResult::Value(bundle)] = output.results.as_slice() else { panic!("{output:?}") };
    assert_eq!((bundle.data["text/html"].as_str(), bundle.data["image/png"].as_str()), ("<b>", "AQI="));
    let output = run(sandbox, &context, "function f() { throw new TypeError('no') }\nf()").await;
    let traceback = error(&output).traceback.join("\n");
    assert!(traceback.starts_with("TypeError: no\n    at f (cell-"), "{traceback}");
    assert!(!traceback.contains("node:"), "{traceback}");
    assert_eq!(error(&run(sandbox, &context, "a b").await).name, "SyntaxError");
    assert_eq!(error(&run(sandbox, &context, "throw 5").await).value, "5");
}

async fn javascript_lives_on_after_exit_and_stray_errors(sandbox: &Sandbox) {
    let ended = context(sandbox, Language::Javascript).await;
    for end in ["process.stdout.end(); void 0", "process.stdout.destroy(); void 0"] {
        assert!(run(sandbox, &ended, end).await.report.exit.success(), "{end}");
        assert_eq!(text(&run(sandbox, &ended, "console.log('whole')").await.stdout), "whole\n", "{end}");
    }
    let context = context(sandbox, Language::Javascript).await;
    let output = run(sandbox, &context, "let z = 1; process.exit(4)").await;
    assert_eq!(
        (output.report.exit.clone(), error(&output).name.as_str()),
        (Exit::Code { code: 4 }, "ProcessExit")
    );
    let stray =
        "setTimeout(() => { throw new Error('stray') }, 1); await new Promise((r) => setTimeout(r, 50)); z";
    let output = run(sandbox, &context, stray).await;
    assert!(text(&output.stderr).contains("stray"), "{output:?}");
    assert_eq!(value(sandbox, &context, "z").await, "1");
    let child = "require('child_process').execSync('echo child', {stdio: 'inherit'}); undefined";
    assert_eq!(text(&run(sandbox, &context, child).await.stdout), "child\n");
}

async fn javascript_tells_what_nobody_catches_in_its_last_turn(sandbox: &Sandbox) {
    let context = context(sandbox, Language::Javascript).await;
    for code in [
        "async function main() { throw new Error('boom') }\nmain();\nconsole.log('ok')",
        "await null; main(); console.log('ok')",
        "main(); console.log('ok'); throw new Error('own')",
    ] {
        let output = run(sandbox, &context, code).await;
        assert_eq!(text(&output.stdout), "ok\n", "{code}: {output:?}");
        let told = text(&output.stderr);
        assert!(told.starts_with("Error: boom\n    at main (cell-1.js:1:"), "{code}: {told}");
        assert!(!told.contains("node:") && !told.contains("[eval]"), "{code}: {told}");
    }
    // A promise that was rejected is a value, and has no frames of ours.
    let output = run(sandbox, &context, "Promise.reject(new RangeError('no'))").await;
    let [CodeResult::Value(bundle)] = output.results.as_slice() else { panic!("{output:?}") };
    let told = bundle.text().unwrap();
    assert!(told.contains("<rejected> RangeError: no\n") && !told.contains("node:"), "{told}");
    // Nor has Node.js anything to say when it is ended.
    let output =
        run(sandbox, &context, "process.kill(process.pid, 'SIGTERM'); await new Promise(() => {})").await;
    assert_eq!(
        (output.report.exit.clone(), text(&output.stderr).as_str()),
        (Exit::Signal { signal: 15 }, ""),
        "{output:?}"
    );
}

async fn javascript_imports_where_it_says_so_in_code(sandbox: &Sandbox) {
    let context = context(sandbox, Language::Javascript).await;
    for (code, told) in [
        ("const { sep } = await import('node:path'); sep", "'/'"),
        ("(await import('fs')).existsSync('/')", "true"),
        // The same letters are nothing but text where they are no code.
        ("`${(await import('path')).sep} import('x')` // import('y')", "\"/ import('x')\""),
        ("/import('z')/.source + \"import('w')\"", "\"import('z')import('w')\""),
    ] {
        assert_eq!(value(sandbox, &context, code).await, told, "{code}");
    }
    let output = run(sandbox, &context, "await import('no-such-package')").await;
    assert!(error(&output).value.contains("no-such-package"), "{output:?}");
}

async fn typescript_is_stripped_or_refused(sandbox: &Sandbox) {
    let spec = ContextSpec { language: Language::Typescript, ..ContextSpec::default() };
    match sandbox.create_context(spec).await {
        Ok(context) => {
            let code = "interface A { a: number }\nenum E { X = 4 }\nconst a: A = { a: E.X };\na.a";
            assert_eq!(value(sandbox, &context, code).await, "4");
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Unsupported);
            assert!(e.to_string().contains("cannot strip types"), "{e}");
        }
    }
}

/// TypeScript contexts of the releases of Node.js that strip types, in one box. They are no part of it: a volume has them.
async fn typescripts(stage: &Stage) -> Option<(Sandbox, Vec<ContextInfo>)> {
    let dir = match node::nodes() {
        Ok(dir) => dir,
        Err(why) => {
            skip("node", &why);
            return None;
        }
    };
    let (spec, at) = match stage.runtime {
        RuntimeKind::Process => (SandboxSpec::default(), dir.to_str()?),
        _ => {
            stage.house.allow_volumes(vec![dir.clone()]).unwrap();
            let volumes = vec![Volume::new(&dir, "/nodes", true)];
            (SandboxSpec { volumes, ..SandboxSpec::default() }, "/nodes")
        }
    };
    let sandbox = stage.create(spec).await.unwrap();
    let mut contexts = Vec::new();
    for (name, version) in node::RELEASES {
        let interpreter = Some(format!("{at}/{name}/bin/node"));
        let spec = ContextSpec { language: Language::Typescript, interpreter, ..ContextSpec::default() };
        let made = within("it starts", sandbox.create_context(spec)).await;
        let made = made.unwrap_or_else(|e| panic!("{version}: {e}"));
        assert_eq!(made.version.as_deref(), Some(version));
        contexts.push(made);
    }
    Some((sandbox, contexts))
}

async fn typescript_runs_where_node_strips_types(stage: &Stage) {
    let Some((sandbox, contexts)) = typescripts(stage).await else { return };
    for context in &contexts {
        let code = "interface Point { x: number; y?: number }\ntype Name = string | null\n\
                    function sum<T extends Point>(p: T): number { return p.x + (p.y ?? 0) }\n\
                    const name: Name = 'n' as Name; let p: Point = { x: 40, y: 2 } satisfies Point\nsum<Point>(p)";
        assert_eq!(value(&sandbox, context, code).await, "42");
        assert_eq!(value(&sandbox, context, "let p: Point = { x: 1 }; p!.x").await, "1", "state stays");
        let code = "const later = async (x: number): Promise<number> => x * 2;\nconst y: number = await later(4);\ny";
        assert_eq!(value(&sandbox, context, code).await, "8");
        let output = run(&sandbox, context, "console.log(name as string); undefined").await;
        // That this is an experiment of Node.js is no word of the code's.
        assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("n\n", ""));
    }
    // What is more than types is written anew where Node.js does that, and refused where it does not.
    let code = "enum E { X = 4 }\nclass C { constructor(public n: number) {} }\nnew C(E.X).n";
    assert_eq!(value(&sandbox, &contexts[0], code).await, "4");
    assert_eq!(value(&sandbox, &contexts[0], "E.X + 1").await, "5");
    let output = run(&sandbox, &contexts[1], code).await;
    assert_eq!(error(&output).name, "SyntaxError");
    assert!(error(&output).value.contains("enum is not supported"), "{output:?}");
}

async fn typescript_errors_have_the_users_lines(stage: &Stage) {
    let Some((sandbox, contexts)) = typescripts(stage).await else { return };
    let types = "interface A {\n  a: number\n}\n\n";
    let fails = "function f(a: A): never {\n  throw new TypeError('no')\n}\nf({ a: 1 })";
    let check = async |context: &ContextInfo, code: String, places: [&str; 2]| {
        let output = run(&sandbox, context, &code).await;
        let told = error(&output);
        assert_eq!((told.name.as_str(), told.value.as_str()), ("TypeError", "no"), "{told:?}");
        let frames = told.traceback[1..].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(frames.len(), 2, "{frames:?}");
        assert!(frames[0].starts_with("    at f (cell-") && frames[0].contains(places[0]), "{frames:?}");
        assert!(frames[1].contains(places[1]), "{frames:?}");
    };
    for context in &contexts {
        check(context, format!("{types}{fails}"), [".js:6:9)", ".js:8:1"]).await;
        let output = run(&sandbox, context, "let z: number = 1\nlet w: number = ;").await;
        assert_eq!(error(&output).name, "SyntaxError");
        let traceback = error(&output).traceback.join("\n");
        assert!(traceback.starts_with("cell-2.js:2\n") && !traceback.contains("node:"), "{traceback}");
    }
    // Also where the code had to be written anew.
    check(&contexts[0], format!("{types}enum E {{ X }}\n{fails}"), [".js:7:9)", ".js:9:1"]).await;
}

async fn bash_keeps_all_that_a_shell_has(sandbox: &Sandbox) {
    let context = context(sandbox, Language::Bash).await;
    let code =
        "cd /tmp; export A=1; declare -A map=([k]=v); f() { echo f $1; }; alias l=echo; set -- one two";
    assert_eq!(run(sandbox, &context, code).await.report.exit, Exit::Code { code: 0 });
    let output = run(sandbox, &context, "pwd; sh -c 'echo $A'; echo ${map[k]}; f x; echo $#; (exit 3)").await;
    assert_eq!(text(&output.stdout), "/tmp\n1\nv\nf x\n2\n");
    assert_eq!(output.report.exit, Exit::Code { code: 3 }, "that of the last command");
    let output = run(sandbox, &context, "exec 3>&1; echo to three >&3; no-such-program").await;
    assert_eq!((text(&output.stdout).as_str(), output.report.exit), ("to three\n", Exit::Code { code: 127 }));
    let output = run(sandbox, &context, "if").await;
    assert!(text(&output.stderr).contains("syntax error"), "{output:?}");
    assert_eq!(text(&run(sandbox, &context, "echo $A").await.stdout), "1\n");
}

async fn bash_leaves_the_code_and_not_the_shell(sandbox: &Sandbox) {
    let context = context(sandbox, Language::Bash).await;
    for (code, end, told) in [
        ("x=1; echo a; exit 7; echo b", 7, "a\n"),
        ("f() { exit 5; echo b; }; for i in 1 2; do f; echo c; done; echo d", 5, ""),
        ("(exit 4); echo $?; false; exit", 1, "4\n"),
        ("echo a | while read y; do exit 9; done; echo $?", 0, "9\n"),
        ("exit 0", 0, ""),
        ("return 6", 6, ""),
        ("exit 010", 10, ""),
        ("exit -1", 255, ""),
        ("exit abc; echo b", 2, ""),
        // Words that the driver needs, too.
        ("printf() { echo mine; }; read() { :; }; trap() { :; }; echo a", 0, "a\n"),
        ("printf x; unset -f printf read trap", 0, "mine\n"),
    ] {
        let output = run(sandbox, &context, code).await;
        assert_eq!(
            (output.report.exit.clone(), text(&output.stdout).as_str()),
            (Exit::Code { code: end }, told),
            "{code}"
        );
    }
    assert_eq!(
        text(&run(sandbox, &context, "echo $x; trap -p DEBUG; shopt -q extdebug || echo off").await.stdout),
        "1\noff\n"
    );
    let output = run(sandbox, &context, "set -e; false; echo not reached").await;
    assert_eq!((output.report.exit, text(&output.stdout).as_str()), (Exit::Code { code: 1 }, ""));
    assert!(matches!(state(sandbox, &context).await, ContextState::Lost { .. }));
}

/// What the next run finds, if `exit` has let something happen behind it.
async fn bash_opens_no_file_behind_an_exit(sandbox: &Sandbox) {
    let context = context(sandbox, Language::Bash).await;
    let version =
        text(&run(sandbox, &context, "echo $(( BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] ))").await.stdout);
    if version.trim().parse::<u32>().unwrap() < 502 {
        // What this shell can do is to leave out all that is inside.
        return skip("bash", "a Bash before 5.2 opens the file");
    }
    run(sandbox, &context, "cd \"$(mktemp -d)\"; f() { exit 5; }; g() { f; { :; } > out; }").await;
    for code in [
        "exit 5; { echo b; } > out",
        "exit 5\nfor i in 1; do :; done > out",
        "f; (:) > out",
        "{ f; } > /dev/null; [[ a ]] > out",
        "while :; do g; done > /dev/null; if :; then :; fi > out",
        "eval 'f; { :; } > out'; { :; } > out",
        "echo 'f; { :; } > out' > sourced; . ./sourced; { :; } > out",
        "until exit 5; do { :; } > out; done; { :; } > out",
        "trap 'exit 5' USR1; kill -USR1 $$; { :; } > out",
        "trap 'exit 5' ERR; false; { :; } > out",
        "trap - ERR; trap : DEBUG; f || { :; } > out; sleep 0 > out &",
        "set -x; g; trap - DEBUG; { :; } > out",
    ] {
        let output = run(sandbox, &context, code).await;
        assert_eq!(output.report.exit, Exit::Code { code: 5 }, "{code}: {output:?}");
        let output = run(sandbox, &context, "if [ -e out ]; then echo out; fi; echo end").await;
        assert_eq!(text(&output.stdout), "end\n", "{code}");
    }
}

async fn bash_tells_of_the_codes_own_lines(sandbox: &Sandbox) {
    let context = context(sandbox, Language::Bash).await;
    let check = async |code: &str, stdout: &str, stderr: &str| {
        let output = run(sandbox, &context, code).await;
        // How many files and texts the line was read from is before it.
        let told: String =
            text(&output.stderr).lines().map(|l| format!("{}\n", l.trim_start_matches('+'))).collect();
        assert_eq!((text(&output.stdout).as_str(), told.as_str()), (stdout, stderr), "{code}");
    };
    check("set -x; echo a", "a\n", " echo a\n").await;
    check("f() { exit 3; }; f", "", " f\n exit 3\n").await;
    check("set +x", "", " set +x\n").await;
    check("set -v\necho a", "a\n", "echo a\n").await;
    check("exit 3", "", "exit 3\n").await;
    check("set +v", "", "set +v\n").await;
    check("trap 'echo \"D $BASH_COMMAND\"' DEBUG\necho a", "D echo a\na\n", "").await;
    check("g() { echo b; }; g", "D g\nb\n", "").await;
    check("exit 3", "D exit 3\n", "").await;
    check("trap - DEBUG", "D trap - DEBUG\n", "").await;
    check("trap 'echo E' ERR; false", "E\n", "").await;
    check("false", "E\n", "").await;
    check("exit 3", "", "").await;
    check("trap - ERR; set -a; x=1; set +a; env | grep -c ^x=", "1\n", "").await;
    check("set -a; y=1", "", "").await;
    check("env | grep -c __glass; set +a", "0\n", "").await;
}

async fn bash_keeps_traps_and_options_between_runs(sandbox: &Sandbox) {
    let context = context(sandbox, Language::Bash).await;
    let code = "set -uxT; shopt -s extdebug; trap ': d' DEBUG; trap ': e' ERR; trap ': u' USR1; PS4='> '";
    run(sandbox, &context, code).await;
    for code in [":", "exit 3", "break; :", "continue 3", "if", "f() { return 4; }; f", "return 6"] {
        run(sandbox, &context, code).await;
        let output = run(sandbox, &context, "echo \"$-\"; trap -p DEBUG ERR USR1; shopt extdebug").await;
        let told = text(&output.stdout);
        assert!(
            ["u", "x", "T"].iter().all(|flag| told.lines().next().unwrap().contains(flag)),
            "{code}: {told}"
        );
        for kept in ["': d' DEBUG", "': e' ERR", "': u' SIGUSR1", "on"] {
            assert!(told.contains(kept), "{code}: {kept}: {told}");
        }
    }
}

async fn bash_begins_where_the_run_before_has_ended(sandbox: &Sandbox) {
    let context = context(sandbox, Language::Bash).await;
    for (code, told) in [
        ("echo $? $LINENO \"${s-none}\"; (exit 9)", "0 1 none\n"),
        ("echo $?; exit 7", "9\n"),
        ("echo $?; case $_ in *glass*) echo ours ;; esac; false", "7\n"),
        // In no loop of the code's own, they end it.
        ("echo $?; break; echo b", "1\n"),
        ("echo a; continue 9; echo b", "a\n"),
        ("echo a; break 9; echo b", "a\n"),
        ("echo lives", "lives\n"),
        // Also where more than its lines has to be put back before it begins.
        ("trap 'echo E' ERR; (exit 5)", "E\n"),
        ("echo $?; trap - ERR; trap : DEBUG; (exit 6)", "5\n"),
        ("if [ $? = 6 ]; then echo six; fi; exit 7", "six\n"),
        ("echo $?; trap - DEBUG; set -x; (exit 8)", "7\n"),
        ("echo $?; set -e; exit 9", "8\n"),
        ("echo $?", "9\n"),
    ] {
        assert_eq!(text(&run(sandbox, &context, code).await.stdout), told, "{code}");
    }
}

/// Or it would turn in circles until somebody kills it.
async fn a_shell_that_does_nothing_any_more_ends(sandbox: &Sandbox) {
    for code in ["set -n", "shopt -s extdebug; trap false DEBUG"] {
        let context = context(sandbox, Language::Bash).await;
        assert_eq!(run(sandbox, &context, code).await.report.exit, Exit::Code { code: 0 }, "{code}");
        assert!(matches!(state(sandbox, &context).await, ContextState::Lost { .. }), "{code}");
    }
}
