//! Code in contexts, by the program: create, run, list, one-shot, the loop that is talked to.

use std::io::Write as _;
use std::process::Stdio;

use glasshouse_tests::{House, Mode};

use crate::{create, each_mode, json};

#[test]
fn contexts_are_made_run_in_and_deleted() {
    each_mode(|house| {
        let id = create(house, &[]);
        let made = house.run(&["context", "create", &id, "--name", "notebook"]);
        assert_eq!((made.0, made.1.as_str()), (0, "notebook\n"), "{}", made.2);
        let run = |args: &[&str]| house.run(&[&["context", "run", &id, "notebook"], args].concat());
        assert_eq!(run(&["-c", "x = 6\nprint('set')"]).1, "set\n");
        assert_eq!(run(&["-c", "x * 7"]), (0, "42\n".to_owned(), String::new()));
        let (code, stdout, stderr) = run(&["-c", "x / 0"]);
        assert!(code == 1 && stdout.is_empty() && stderr.contains("ZeroDivisionError"), "{code} {stderr}");
        assert!(stderr.contains("x / 0") && !stderr.contains("drive"), "{stderr}");
        let told = json(&run(&["--json", "-c", "display({'text/html': '<b>'}, raw=True)\n'v'"]).1);
        assert_eq!(told["results"][0]["data"]["text/html"], "<b>", "{told}");
        assert_eq!(told["results"][1]["type"], "value", "{told}");
        assert_eq!(told["context_lost"], serde_json::Value::Null, "{told}");
        let (code, _, stderr) = run(&["--timeout", "100ms", "-c", "while True: pass"]);
        assert!(code == 124 && stderr.contains("timed out") && !stderr.contains("lost"), "{code} {stderr}");
        let (code, _, stderr) = run(&["-c", "import os; os._exit(5)"]);
        assert!(code == 5 && stderr.contains("the context was lost"), "{code} {stderr}");
        let listed = json(&house.run(&["context", "list", &id, "--json"]).1);
        assert_eq!(listed[0]["state"]["kind"], "lost", "{listed}");
        assert_eq!(house.run(&["context", "restart", &id, "notebook"]).0, 0);
        assert_eq!(run(&["-c", "1"]).1, "1\n");
        assert_eq!(house.run(&["context", "delete", &id, "notebook"]).0, 0);
        let (code, _, stderr) = run(&["-c", "1"]);
        assert!(code == 125 && stderr.contains("no context notebook"), "{code} {stderr}");
        let log = house.run(&["log", &id]).1;
        for part in
            ["context notebook: create (python)", "python in notebook> x * 7", r#""text/plain": "42""#]
        {
            assert!(log.contains(part), "{part}: {log}");
        }
    });
}

#[test]
fn a_kernel_of_jupyters_is_a_context_like_any_other() {
    let dir = match glasshouse_tests::kernels::kernels() {
        Ok(dir) => dir.to_str().unwrap().to_owned(),
        Err(why) => return glasshouse_tests::skip("kernels", &why),
    };
    let house = House::new(Mode::all()[0]);
    let glass = |args: &[&str]| {
        let output = house.glass(args).env("GLASSHOUSE_VOLUMES", &dir).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
    };
    let volume = format!("{dir}:/kernels:ro");
    let (code, id, stderr) = glass(&["create", "--volume", &volume]);
    assert_eq!(code, 0, "{stderr}");
    let path = ["--env", "PATH=/kernels/bin:/usr/bin:/bin"];
    let create = |lang: &str| {
        glass(&[&["context", "create", id.trim_end(), "--name", "nb", "--lang", lang], &path[..]].concat())
    };
    let made = create("jupyter:python3");
    assert_eq!((made.0, made.1.as_str()), (0, "nb\n"), "{}", made.2);
    let run = |code: &str| glass(&["context", "run", id.trim_end(), "nb", "-c", code]);
    assert_eq!(run("x = 6\nprint('set')").1, "set\n");
    assert_eq!(run("x * 7"), (0, "42\n".to_owned(), String::new()));
    let listed = json(&glass(&["context", "list", id.trim_end(), "--json"]).1);
    assert_eq!((&listed[0]["language"], &listed[0]["interpreter"]), (&"jupyter".into(), &"python3".into()));
    let log = glass(&["log", id.trim_end()]).1;
    assert!(log.contains("context nb: create (jupyter)") && log.contains("jupyter in nb> x * 7"), "{log}");
    assert_eq!(glass(&["context", "delete", id.trim_end(), "nb"]).0, 0);
    let refused = create("jupyter:nobody");
    assert!(
        refused.0 != 0 && refused.2.contains(r#"no kernel of the box is called "nobody"; it has "#),
        "{refused:?}"
    );
    assert!(create("jupyter:../x").2.contains("is no name of a kernel"));
    let file = house.path().join("once.py");
    std::fs::write(&file, "%who\nprint('once')\n").unwrap();
    let once = ["run", "--lang", "jupyter", "--volume", &volume, "--env", path[1], file.to_str().unwrap()];
    let (code, stdout, stderr) = glass(&once);
    assert!(code == 0 && stdout.ends_with("once\n"), "{code} {stdout} {stderr}");
}

#[test]
fn code_runs_once_in_a_box_of_its_own() {
    each_mode(|house| {
        let file = house.path().join("once.py");
        std::fs::write(&file, "import sys\nprint('out')\nsys.exit(4)\n").unwrap();
        let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o644);
        std::fs::set_permissions(&file, open).unwrap();
        let (code, stdout, stderr) = house.run(&["run", "--lang", "python", file.to_str().unwrap()]);
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (4, "out\n", ""));
        for (lang, text) in
            [("python", "print(21 * 2)"), ("js", "console.log(21 * 2)"), ("bash", "echo $((21 * 2))")]
        {
            let (_, stdout, stderr) = once(house, &[lang], text);
            assert_eq!(stdout, "42\n", "{lang}: {stderr}");
        }
        assert_eq!(json(&house.run(&["list", "--json"]).1), serde_json::json!([]));
    });
}

/// Runs code that comes on stdin, once. Its exit code, stdout and stderr.
fn once(house: &House, args: &[&str], text: &str) -> (i32, String, String) {
    let mut glass = house.glass(&[&["run", "--lang"], args, &["-"]].concat());
    let piped = glass.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("the program is there");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(text.as_bytes()).expect("it is read");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_program_that_runs_once_goes_on_until_nothing_is_left_that_it_waits_for() {
    const LATE: &str = "const late = () => new Promise((done) => setTimeout(done, 50));\n";
    let mains: [(&str, String, i32, &str, &str); 10] = [
        ("js", "setTimeout(() => setTimeout(() => console.log('late'), 20), 20); 7".into(), 0, "late\n", ""),
        (
            "js",
            "const server = require('net').createServer((socket) => { socket.end('bye'); server.close() });\n\
             server.listen(require('os').tmpdir() + '/late.sock', () => require('net').connect(server.address()).pipe(process.stdout))"
                .into(),
            0,
            "bye",
            "",
        ),
        (
            "js",
            "require('child_process').exec('sleep 0.05; echo child', (failed, out) => console.log(failed, out)); 7".into(),
            0,
            "null child\n\n",
            "",
        ),
        (
            "js",
            "require('child_process').spawn('sh', ['-c', 'sleep 0.05; echo child'], { stdio: 'inherit' }); 7".into(),
            0,
            "child\n",
            "",
        ),
        ("js", format!("{LATE}async function main() {{ await late(); console.log('late') }}\nmain()"), 0, "late\n", ""),
        ("js", format!("{LATE}late().then(() => process.exit(4)); void 0"), 4, "", ""),
        ("js", format!("{LATE}late().then(() => {{ throw new Error('late') }}); void 0"), 1, "", "Error: late"),
        ("js", format!("{LATE}late().then(() => {{ process.exitCode = 5 }}); void 0"), 5, "", ""),
        (
            "python",
            "import atexit, threading, time\natexit.register(print, 'bye')\n\
             threading.Thread(target=lambda: (time.sleep(.05), print('late'))).start()"
                .into(),
            0,
            "late\nbye\n",
            "",
        ),
        (
            "python",
            "import threading\nthreading.Thread(target=print, args=['thread']).start()\nraise ValueError('no')".into(),
            1,
            "thread\n",
            "ValueError: no",
        ),
    ];
    each_mode(|house| {
        for (lang, text, code, stdout, stderr) in &mains {
            let ran = once(house, &[lang], text);
            assert!((ran.0, ran.1.as_str()) == (*code, *stdout) && ran.2.contains(stderr), "{text}: {ran:?}");
        }
        for (lang, text) in [
            ("js", "setInterval(() => {}, 1000); void 0"),
            ("python", "import threading\nthreading.Thread(target=threading.Event().wait).start()"),
        ] {
            let (code, _, stderr) = once(house, &[lang, "--timeout", "500ms"], text);
            assert!(code == 124 && stderr.contains("timed out"), "{lang}: {code} {stderr}");
        }
        assert_eq!(json(&house.run(&["list", "--json"]).1), serde_json::json!([]));
    });
}

/// What programs of each language do at their end, or to what they find: code, stdout, and what is in stderr.
const PROGRAMS: [(&str, &str, i32, &str, &str); 42] = [
    (
        "js",
        "process.on('exit', (code) => console.log('bye', code)); console.log('x'); void 0",
        0,
        "x\nbye 0\n",
        "",
    ),
    ("js", "process.on('exit', () => { process.exitCode = 7 }); void 0", 7, "", ""),
    (
        "js",
        "process.on('exit', (code) => console.log('bye', code)); throw new Error('no')",
        1,
        "bye 1\n",
        "Error: no",
    ),
    ("js", "process.exitCode = '3'; void 0", 3, "", ""),
    (
        "js",
        "process.on('uncaughtException', (e) => console.log('mine', e.message)); setTimeout(() => { throw new Error('t') }, 5);\
         setTimeout(() => console.log('end'), 20); void 0",
        0,
        "mine t\nend\n",
        "",
    ),
    (
        "js",
        "process.on('uncaughtException', (e) => console.log('mine', e.message)); Promise.reject(new Error('r')); void 0",
        0,
        "mine r\n",
        "",
    ),
    (
        "js",
        "function main() { console.log('main') } if (require.main === module) main(); void 0",
        0,
        "main\n",
        "",
    ),
    ("js", "module.exports = 1; console.log(typeof module, typeof exports)", 0, "object object\n", ""),
    (
        "js",
        "const { pipeline, Readable } = require('stream'); pipeline(Readable.from(['a\\n']), process.stdout, () => console.log('after')); void 0",
        0,
        "a\nafter\n",
        "",
    ),
    ("js", "throw new Error('\\ud800 x')", 1, "", "Error: \\ud800 x"),
    ("js", "Object.prototype.toJSON = () => 'x'; console.log([7])", 0, "[ 7 ]\n", ""),
    (
        "python",
        "f = open('o', 'w')\nf.write('kept')\nimport atexit\natexit.register(lambda: print('bye'))\nNone",
        0,
        "bye\n",
        "",
    ),
    ("python", "class A:\n  def __del__(self): print('gone')\na = A()\na.a = a", 0, "gone\n", ""),
    (
        "python",
        "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint('hi')",
        0,
        "hi\n",
        "",
    ),
    ("python", "import sys\nwith sys.stdout as out: out.write('hi\\n')\nNone", 0, "hi\n", ""),
    ("python", "import sys\nprint('hi')\nsys.stdout = None", 0, "hi\n", ""),
    ("python", "import sys\nprint('hi')\ndel sys.stdout", 0, "hi\n", ""),
    ("bash", "main() { echo main; }; if [ \"${BASH_SOURCE[0]}\" = \"$0\" ]; then main; fi", 0, "main\n", ""),
    ("js", "const b = 6, a = 7, fs = 8; console.log(b)", 0, "6\n", ""),
    ("js", "globalThis.Buffer = globalThis.JSON = globalThis.Object = null; display(3)", 0, "3\n", ""),
    ("js", "try { process.exit(4) } catch { console.log('caught') }", 4, "", ""),
    ("js", "process.on('exit', (code) => console.log('bye', code)); process.exit(5)", 5, "bye 5\n", ""),
    ("js", "foo(\n 1,\n %\n)", 1, "", "SyntaxError: Unexpected token '%'\n    at cell-1.js:3:2\n"),
    (
        "js",
        "let a = 1;\nlet b = {\n  c: 1,\n",
        1,
        "",
        "SyntaxError: Unexpected end of input\n    at cell-1.js:3:8\n",
    ),
    ("js", "throw new Error('x', { cause: new Error('why') })", 1, "", "[cause]: Error: why"),
    // What `node FILE` does, too.
    ("js", "import('node:path').then((path) => console.log(path.sep))", 0, "/\n", ""),
    (
        "js",
        "process.on('uncaughtException', (e) => console.log('caught', e.message)); throw new Error('z')",
        0,
        "caught z\n",
        "",
    ),
    ("js", "#!/usr/bin/env node\nconsole.log('a'); if (true) return; console.log('b')", 0, "a\n", ""),
    ("js", "if (false) return\nnull.x", 1, "", "(reading 'x')\n    at cell-1.js:2:6\n"),
    (
        "js",
        "async function main() { throw new Error('boom') }\nmain();\nconsole.log('ok')",
        1,
        "ok\n",
        "Error: boom\n    at main (cell-1.js:1:31)\n",
    ),
    // Nothing is left that could bring what they wait for, or is there.
    (
        "js",
        "process.on('exit', (code) => console.log('bye', code)); await new Promise(() => {}); console.log('after')",
        13,
        "bye 13\n",
        "Warning: Detected unsettled top-level await",
    ),
    (
        "js",
        "setTimeout(() => console.log('late'), 50); await new Promise(() => {})",
        13,
        "late\n",
        "Warning: Detected unsettled top-level await",
    ),
    ("js", "process.exitCode = 5; await new Promise(() => {})", 5, "", ""),
    (
        "js",
        "await new Promise((done) => process.on('beforeExit', done)); console.log('after')",
        0,
        "after\n",
        "",
    ),
    ("python", "import sys\nprint(1)\nsys.exit(0)", 0, "1\n", ""),
    ("python", "import sys\nsys.exit('text')", 1, "", "text\n"),
    ("python", "\u{feff}print(1)", 0, "1\n", ""),
    ("python", "raise ValueError('\\ud800 x')", 1, "", "ValueError: \\ud800 x"),
    // What has every attribute has no shapes, and what fails to say so has none.
    (
        "python",
        "import unittest.mock as m\nx = m.MagicMock(); x.__repr__ = lambda self: 'mock'; display(x)",
        0,
        "mock\n",
        "",
    ),
    (
        "python",
        "class A:\n  def __getattr__(self, name): raise RuntimeError(name)\n  def __repr__(self): return 'a'\ndisplay(A())",
        0,
        "a\n",
        "",
    ),
    ("bash", "trap 'echo bye' EXIT; echo hi; exit 4", 4, "hi\nbye\n", ""),
    ("bash", "set -e; echo a; false; echo b", 1, "a\n", ""),
];

#[test]
fn a_program_that_runs_once_ends_as_that_of_its_language_does() {
    each_mode(|house| {
        for (lang, text, code, stdout, stderr) in PROGRAMS {
            let ran = once(house, &[lang], text);
            assert!((ran.0, ran.1.as_str()) == (code, stdout) && ran.2.contains(stderr), "{text}: {ran:?}");
            assert!(!stderr.is_empty() || ran.2.is_empty(), "{text}: nothing more is said: {ran:?}");
            assert!(!ran.2.contains("node:"), "{text}: frames of ours: {ran:?}");
        }
        let (code, _, stderr) = house.run(&["run", "--lang", "python", "f.py", "--json"]);
        assert!(code == 125 && stderr.contains("options come before it"), "{code} {stderr}");
    });
}

/// What the last line comes to is no output of a program's; what it shows is.
#[test]
fn a_program_that_runs_once_writes_what_it_writes_and_nothing_else() {
    const PNG: &str = "display({'image/png': b'1234', 'text/plain': 'a picture'}, raw=True)";
    each_mode(|house| {
        for (lang, text, stdout) in [
            ("python", "f = open('o', 'w')\nprint('out')\nf.write('x')", "out\n"),
            ("python", "x = 6\n(x\n * 7)", ""),
            ("python", "class A:\n  def __repr__(self): raise ValueError('no')\nA()", ""),
            ("python", "import sys\nsys.displayhook = print\n7", ""),
            ("python", "display('shown')\n7", "'shown'\n"),
            ("js", "const a = []; console.log('out'); a.push(7)", "out\n"),
            ("js", "({ [require('util').inspect.custom]() { throw new Error('no') } })", ""),
            ("js", "display('shown'); 7", "'shown'\n"),
        ] {
            assert_eq!(once(house, &[lang], text), (0, stdout.to_owned(), String::new()), "{text}");
        }
        let (code, stdout, stderr) = once(house, &["python"], PNG);
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "", "a picture\n[image/png, 6 B]\n"));
        // All of it is told where it can be told apart.
        for (lang, text, value) in
            [("python", "print('out')\n6 * 7", "42"), ("js", "console.log('out'); [7]", "[ 7 ]")]
        {
            let told = json(&once(house, &[lang, "--json"], text).1);
            assert_eq!(
                (&told["stdout"], &told["results"][0]["data"]["text/plain"]),
                (&"out\n".into(), &value.into()),
                "{told}"
            );
        }
        let told = json(&once(house, &["python", "--json"], PNG).1);
        assert_eq!(told["results"][0]["data"]["image/png"], "MTIzNA==", "{told}");
        // A context is talked to, and answers.
        let id = create(house, &[]);
        assert_eq!(house.run(&["context", "create", &id, "--name", "c"]).0, 0);
        let run = |args: &[&str]| house.run(&[&["context", "run", &id, "c"], args].concat()).1;
        assert_eq!(run(&["-c", "print('out')\n7"]), "out\n7\n");
        let told = json(&run(&["--json", "-c", "print('out')\n7"]));
        assert_eq!(
            (&told["stdout"], &told["results"][0]["data"]["text/plain"]),
            (&"out\n".into(), &"7".into()),
            "{told}"
        );
        assert_eq!(house.run(&["kill", &id]).0, 0);
    });
}

#[test]
fn a_shell_whose_input_ends_at_once_ends() {
    each_mode(|house| {
        let id = create(house, &[]);
        for _ in 0..6 {
            let mut shell = house.glass(&["shell", &id]);
            let output = shell.stdin(Stdio::null()).output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{output:?}");
        }
        assert_eq!(house.run(&["kill", &id]).0, 0);
    });
}

#[test]
fn a_context_outlives_whoever_stops_to_listen_and_says_when_it_does_not_outlive_its_code() {
    each_mode(|house| {
        let id = create(house, &[]);
        let glass = |args: &[&str]| {
            let (code, stdout, stderr) = house.run(args);
            assert_eq!(code, 0, "{args:?}: {stderr}");
            stdout
        };
        glass(&["context", "create", &id, "--name", "nb"]);
        let endless = "import itertools\nfor i in itertools.count(): print(i)";
        let mut listener = house.glass(&["context", "run", &id, "nb", "-c", endless]);
        let mut listener = listener.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut first = [0; 2];
        std::io::Read::read_exact(listener.stdout.as_mut().unwrap(), &mut first).unwrap();
        drop(listener.stdout.take());
        assert_eq!((listener.wait().unwrap().code(), &first), (Some(141), b"0\n"));
        // It is interrupted, and remembers; until then it is busy.
        let state = || json(&glass(&["context", "list", &id, "--json"]))[0]["state"]["kind"].clone();
        while state() == "busy" {}
        assert_eq!(glass(&["context", "run", &id, "nb", "-c", "i > 0"]), "True\n");
        let told = json(&glass(&["context", "run", &id, "nb", "--json", "-c", "import os; os._exit(0)"]));
        assert!(told["context_lost"].is_string(), "{told}");
        glass(&["kill", &id]);
    });
}

#[test]
fn code_that_ran_once_tells_what_it_left() {
    each_mode(|house| {
        let dir = house.path().join("once");
        std::fs::create_dir(&dir).unwrap();
        let file = dir.join("once.py");
        std::fs::write(
            &file,
            "import os\nos.makedirs('out')\nf = open('out/f', 'w')\nf.write('left')\n6 * 7",
        )
        .unwrap();
        for (path, mode) in [(&dir, 0o777), (&file, 0o644)] {
            let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(mode);
            std::fs::set_permissions(path, mode).unwrap();
        }
        let (into, file) = (dir.join("left"), file.to_str().unwrap());
        let run = |args: &[&str]| house.run(&[&["run", "--lang", "python"], args].concat());
        let told = json(&run(&["--json", file]).1);
        assert_eq!(told["results"][0]["data"]["text/plain"], "42", "{told}");
        assert_eq!((&told["left_count"], &told["left"][0]["bytes"]), (&1.into(), &4.into()), "{told}");
        let path = told["left"][0]["path"].as_str().unwrap();
        assert!(path.ends_with("/out/f"), "{told}");
        let files = ["--files", into.to_str().unwrap(), file];
        let (code, stdout, stderr) = run(&files);
        assert!(
            code == 0 && stdout.is_empty() && stderr.contains("1 file, 4 B left behind"),
            "{stdout}{stderr}"
        );
        assert_eq!(std::fs::read_to_string(into.join(path.trim_start_matches('/'))).unwrap(), "left");
        let (code, stdout, stderr) = run(&files);
        assert!(code != 0 && stdout.is_empty() && stderr.contains("is there already"), "{code} {stderr}");
        // Code that fails has left its files all the same.
        std::fs::write(file, "open('half', 'w').write('h')\nraise ValueError('no')").unwrap();
        let (code, stdout, _) = run(&["--json", file]);
        assert_eq!((code, &json(&stdout)["left_count"]), (1, &1.into()), "{stdout}");
        let (code, _, stderr) = house.run(&["run", "--files", "x", "--", "true"]);
        assert!(code != 0 && stderr.contains("--lang"), "{code} {stderr}");
        assert_eq!(json(&house.run(&["list", "--json"]).1), serde_json::json!([]));
    });
}

/// Talks with a context through a pipe. What it says, on stdout and on stderr.
#[expect(clippy::unwrap_used, reason = "a test's own pipes")]
fn talk(house: &House, args: &[&str], lines: &str) -> (String, String) {
    let mut glass = house.glass(&[&["repl"], args].concat());
    let mut child =
        glass.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout} {stderr}");
    (stdout, stderr)
}

#[test]
fn a_context_is_talked_to_line_by_line() {
    each_mode(|house| {
        let id = create(house, &[]);
        let (stdout, stderr) = talk(house, &[&id], "x = 5\nx + 1\n1 / 0\nimport os; os._exit(3)\nx\n7\n");
        assert!(stdout.contains("6\n") && stdout.contains("7\n"), "{stdout} {stderr}");
        for part in ["ZeroDivisionError", "the context was lost", "NameError"] {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
        assert_eq!(json(&house.run(&["context", "list", &id, "--json"]).1), serde_json::json!([]));
    });
}

/// All lines of a pipe are code: none is the input of the one before.
#[test]
fn a_line_that_is_refused_ends_no_talk() {
    each_mode(|house| {
        let id = create(house, &[]);
        let long = format!("'{}'", "x".repeat(140_000));
        let (stdout, stderr) = talk(house, &[&id], &format!("x = 3\n{long}\ninput()\nx\n"));
        assert_eq!(stdout, "3\n", "{stderr}");
        assert!(stderr.contains("the code is 140002 bytes") && stderr.contains("EOFError"), "{stderr}");
        // Somebody else runs something there, and is not disturbed.
        assert_eq!(house.run(&["context", "create", &id, "--name", "nb"]).0, 0);
        let wait = ["context", "run", &id, "nb", "--background", "-c", "import time; time.sleep(1000)"];
        assert_eq!(house.run(&wait).0, 0);
        let (stdout, stderr) = talk(house, &[&id, "--context", "nb"], "1\n2\n");
        assert!(stdout.is_empty() && stderr.matches("busy").count() == 2, "{stdout} {stderr}");
        assert_eq!(house.run(&["kill", &id]).0, 0);
    });
}

#[test]
fn a_batch_runs_each_piece_in_a_box_of_its_own_and_tells_what_it_left() {
    each_mode(|house| {
        let dir = house.path().join("pieces");
        std::fs::create_dir(&dir).unwrap();
        let open = |path: &std::path::Path, mode| {
            let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(mode);
            std::fs::set_permissions(path, mode).unwrap();
        };
        open(&dir, 0o777);
        let mut files = Vec::new();
        for (name, code) in [
            ("a.py", "import os\nos.makedirs('out/deep')\nopen('out/deep/f', 'w').write('left')\n6 * 7"),
            ("b.py", "import os\nprint(os.path.exists('out'))"),
            ("c.py", "open('half', 'w').write('h')\nraise ValueError('no')"),
        ] {
            let path = dir.join(name);
            std::fs::write(&path, code).unwrap();
            open(&path, 0o644);
            files.push(path.to_str().unwrap().to_owned());
        }
        let into = dir.join("left");
        let batch = ["batch", "--lang", "python", "--json", "-j", "2", "--files", into.to_str().unwrap()];
        let all: Vec<&str> = batch.into_iter().chain(files.iter().map(String::as_str)).collect();
        let (code, stdout, stderr) = house.run(&all);
        assert_eq!(code, 1, "{stderr}");
        let told: Vec<_> = stdout.lines().map(json).collect();
        let of = |name: &str| {
            told.iter()
                .find(|told| told["file"].as_str().unwrap().ends_with(name))
                .unwrap_or_else(|| panic!("{stdout}"))
        };
        assert_eq!(told.len(), 3);
        assert_eq!(of("a.py")["results"][0]["data"]["text/plain"], "42");
        let left = &of("a.py")["left"];
        assert!(left[0]["path"].as_str().unwrap().ends_with("/out/deep/f"), "{left}");
        assert_eq!(
            (&left[0]["bytes"], &left[0]["change"], left.as_array().unwrap().len()),
            (&4.into(), &"added".into(), 1)
        );
        assert_eq!(
            (&of("b.py")["stdout"], &of("b.py")["left_count"]),
            (&"False\n".into(), &0.into()),
            "boxes are apart"
        );
        assert_eq!(of("c.py")["exit"]["code"], 1);
        let copied = std::fs::read_dir(into.join("a.py")).unwrap().count();
        assert_eq!((copied, into.join("b.py").exists(), into.join("c.py").exists()), (1, false, true));
        // For people: a table; and a place that is taken is not written to.
        let (code, stdout, _) = house.run(&["batch", "--lang", "python", &files[1]]);
        assert!(code == 0 && stdout.contains("b.py") && stdout.contains("LEFT BEHIND"), "{stdout}");
        let (code, _, stderr) = house.run(&all);
        assert!(code == 1 && stderr.contains("is there already"), "{stderr}");
        // What is kept warm has to be there, and Python.
        let (code, _, stderr) = house.run(&["batch", "--lang", "python", "--import", "wave,json", &files[1]]);
        assert_eq!(code, 0, "{stderr}");
        let (code, _, stderr) = house.run(&["batch", "--lang", "bash", "--import", "json", &files[1]]);
        assert!(code == 1 && stderr.contains("--import is for Python"), "{code}: {stderr}");
        assert_eq!(json(&house.run(&["list", "--json"]).1), serde_json::json!([]));
    });
}

/// Pieces of code that leave behind what cannot be copied, or cannot be run at all, and one that is fine.
fn odd_pieces() -> [(&'static str, String); 6] {
    let deep = "import os\nfor _ in range(1500):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\nopen('f', 'w').close()";
    [
        ("closed.py", "import os\nopen('m', 'w')\nos.chmod('m', 0)\nprint('ran')".to_owned()),
        (
            "dir.py",
            "import os\nos.mkdir('d')\nopen('d/f', 'w')\nos.chmod('d', 0)\nopen('k', 'w').write('kept')"
                .to_owned(),
        ),
        ("deep.py", deep.to_owned()),
        ("link.py", "import os\nos.symlink('k', 'l')\nopen('k', 'w').write('kept')".to_owned()),
        ("large.py", "#".repeat(200_000)),
        ("fine.py", "print(1)".to_owned()),
    ]
}

#[test]
fn one_piece_of_a_batch_spoils_no_other() {
    each_mode(|house| {
        let dir = house.path().join("odd");
        std::fs::create_dir(&dir).unwrap();
        let open = |path: &std::path::Path, mode| {
            let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(mode);
            std::fs::set_permissions(path, mode).unwrap();
        };
        open(&dir, 0o777);
        let mut files = vec![dir.join("missing.py").to_str().unwrap().to_owned()];
        for (name, code) in odd_pieces() {
            let path = dir.join(name);
            std::fs::write(&path, code).unwrap();
            open(&path, 0o644);
            files.push(path.to_str().unwrap().to_owned());
        }
        let into = dir.join("left");
        let batch = ["batch", "--lang", "python", "--files", into.to_str().unwrap(), "--json"];
        let all = |args: usize| -> Vec<&str> {
            batch[..args].iter().copied().chain(files.iter().map(String::as_str)).collect()
        };
        let (code, stdout, stderr) = house.run(&all(6));
        assert!(code == 1 && stderr.is_empty(), "{code} {stderr}");
        let told: Vec<_> = stdout.lines().map(json).collect();
        assert_eq!(told.len(), 7, "{stdout}");
        let of = |name: &str| {
            let is_of = |told: &&serde_json::Value| told["file"].as_str().unwrap().ends_with(name);
            told.iter().find(is_of).unwrap_or_else(|| panic!("{name}"))
        };
        assert_eq!(
            (&of("fine.py")["stdout"], &of("fine.py")["not_copied_count"]),
            (&"1\n".into(), &0.into())
        );
        assert_eq!(of("closed.py")["stdout"], "ran\n");
        for (name, path, why, left) in [
            ("closed.py", "/m", "Permission denied", 1),
            ("dir.py", "/d/f", "Permission denied", 2),
            ("deep.py", "/f", "too long", 1),
            ("link.py", "/l", "it is no file but a symlink", 1),
        ] {
            let told = of(name);
            let missed = &told["not_copied"][0];
            assert_eq!((&told["not_copied_count"], &told["left_count"]), (&1.into(), &left.into()), "{name}");
            assert!(missed["path"].as_str().unwrap().ends_with(path), "{missed}");
            assert!(missed["why"].as_str().unwrap().contains(why), "{missed}");
            assert_eq!(told["exit"]["code"], 0, "{name}");
        }
        for (name, why) in [("large.py", "longer than 128.0 KiB"), ("missing.py", "No such file")] {
            let told = of(name);
            assert!(told["error"].as_str().unwrap().contains(why) && told["exit"].is_null(), "{told}");
        }
        for (name, count) in [("dir.py", 1), ("link.py", 1), ("fine.py", 0)] {
            let found = std::process::Command::new("find").arg(into.join(name)).args(["-type", "f"]).output();
            assert_eq!(String::from_utf8_lossy(&found.unwrap().stdout).lines().count(), count, "{name}");
        }
        // For people: every one has its row, and what the row has no room for is said in few words.
        std::fs::remove_dir_all(&into).unwrap();
        let (code, stdout, stderr) = house.run(&all(5));
        assert!(code == 1 && stdout.matches("code 0").count() == 5, "{code} {stdout}");
        assert_eq!(stdout.matches("not run").count(), 2, "{stdout}");
        for part in ["large.py: the code", "closed.py: /", "/l is not copied", "5 of 7 pieces of code"] {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
        assert!(stderr.len() < 10_000, "{}", stderr.len());
        assert_eq!(json(&house.run(&["list", "--json"]).1), serde_json::json!([]));
    });
}

#[test]
fn what_cannot_be_copied_takes_nothing_from_what_is_told_of_a_run() {
    each_mode(|house| {
        let dir = house.path().join("single");
        std::fs::create_dir(&dir).unwrap();
        let file = dir.join("odd.py");
        std::fs::write(
            &file,
            "import os, sys\nopen('m', 'w')\nos.chmod('m', 0)\nos.symlink('m', 'l')\n\
             open('k', 'w').write('kept')\nprint('ran')\nsys.exit(4)",
        )
        .unwrap();
        for (path, mode) in [(&dir, 0o777), (&file, 0o644)] {
            let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(mode);
            std::fs::set_permissions(path, mode).unwrap();
        }
        let run = |into: &str, args: &[&str]| {
            let into = dir.join(into);
            let given = ["run", "--lang", "python", "--files", into.to_str().unwrap()];
            house.run(&[&given, args, &[file.to_str().unwrap()]].concat())
        };
        let (code, stdout, stderr) = run("first", &["--json"]);
        let told = json(&stdout);
        assert_eq!((code, &told["stdout"], &told["left_count"]), (4, &"ran\n".into(), &2.into()), "{stderr}");
        assert_eq!(told["not_copied_count"], 2, "{told}");
        let (code, stdout, stderr) = run("second", &[]);
        assert_eq!((code, stdout.as_str()), (4, "ran\n"), "{stderr}");
        for part in [
            "2 files, 4 B left behind, 1 of them now in",
            "/m is not copied: ",
            "/l is not copied: it is no file",
        ] {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
        // Where nothing can be copied to is our own fault, and the run is told before that.
        let (code, stdout, stderr) = run("odd.py/below", &["--json"]);
        let told = json(&stdout);
        assert_eq!((code, &told["stdout"]), (125, &"ran\n".into()), "{stderr}");
        assert!(
            told["error"].as_str().unwrap().contains("cannot make") && stderr.contains("cannot make"),
            "{told}"
        );
        // Too much code is refused before there is a box.
        std::fs::write(&file, "#".repeat(200_000)).unwrap();
        let (code, stdout, stderr) = run("third", &[]);
        assert!(
            code == 125 && stdout.is_empty() && stderr.contains("longer than 128.0 KiB"),
            "{code} {stderr}"
        );
        assert_eq!(json(&house.run(&["list", "--json"]).1), serde_json::json!([]));
    });
}
