//! The search: ripgrep's engine, which runs inside the box, finds what is there, and is held up by nothing.

use glasshouse_sandbox::{Exit, Limits, RuntimeKind, Sandbox, SandboxSpec};
use serde_json::{Value, json};

use crate::stage::{Stage, on_every_runtime, stdout_of, within};
use crate::tools::{call, done, fails};

on_every_runtime![
    lines_are_found_in_order_of_their_names,
    what_git_ignores_is_left_out_unless_told_otherwise,
    nothing_holds_it_up,
    a_pattern_costs_no_more_than_its_text,
    results_have_a_bound_and_it_is_told,
    a_search_is_a_command_of_the_box,
    many_at_once_need_it_once,
    a_box_without_memory_is_told_so,
];

/// What is found with these parameters beside the pattern.
async fn found(sandbox: &Sandbox, pattern: &str, more: Value) -> String {
    let mut params = more;
    params["pattern"] = pattern.into();
    within(pattern, done(sandbox, "search", params)).await
}

async fn lines_are_found_in_order_of_their_names(sandbox: &Sandbox) {
    stdout_of(
        sandbox,
        "mkdir -p src/in; printf 'one\\nTwo two\\n' > src/b.py; printf 'two\\r\\n' > src/in/a.rs; \
         echo two > z; echo two > .hidden; ln -s src link; printf 'a.b\\naxb\\n' > dots",
    )
    .await;
    assert_eq!(
        found(sandbox, "two", json!({})).await,
        "./.hidden:1:two\n./src/b.py:2:Two two\n./src/in/a.rs:1:two\n./z:1:two\n"
    );
    assert_eq!(found(sandbox, "no such text", json!({})).await, "", "nothing found is no failure");
    assert_eq!(
        found(sandbox, "^two", json!({"ignore_case": true, "path": "src"})).await,
        "src/b.py:2:Two two\nsrc/in/a.rs:1:two\n"
    );
    assert_eq!(found(sandbox, "two", json!({"path": "z"})).await, "z:1:two\n");
    assert_eq!(
        found(sandbox, "two", json!({"path": "link"})).await,
        "link/b.py:2:Two two\nlink/in/a.rs:1:two\n"
    );
    for (glob, expected) in [
        ("*.py", "./src/b.py:2:Two two\n"),
        ("*.{py,rs}", "./src/b.py:2:Two two\n./src/in/a.rs:1:two\n"),
        ("src/*.py", "./src/b.py:2:Two two\n"),
        ("src/*", "./src/b.py:2:Two two\n"),
        ("**/in/*", "./src/in/a.rs:1:two\n"),
        ("nothing", ""),
    ] {
        assert_eq!(found(sandbox, "two", json!({"file_pattern": glob})).await, expected, "{glob}");
    }
    assert_eq!(found(sandbox, "a.b", json!({"literal": true})).await, "./dots:1:a.b\n");
    assert_eq!(found(sandbox, "a.b", json!({"files_only": true})).await, "./dots\n");
    assert_eq!(
        found(sandbox, "Two", json!({"context": 1})).await,
        "./src/b.py-1-one\n./src/b.py:2:Two two\n"
    );
    let all = found(sandbox, "", json!({"files_only": true, "path": "src"})).await;
    assert_eq!(all, "src/b.py\nsrc/in/a.rs\n");
    let quotes = found(sandbox, "'\"; echo $(x)", json!({})).await;
    assert_eq!(quotes, "", "no shell sees the pattern");
    fails(sandbox, "search", json!({"pattern": "x", "path": "no"}), 2, "No such file").await;
    fails(sandbox, "search", json!({"pattern": "("}), 2, "`pattern` cannot be used: unclosed group").await;
    fails(sandbox, "search", json!({"pattern": "x", "file_pattern": "[z"}), 2, "`file_pattern`").await;
}

async fn what_git_ignores_is_left_out_unless_told_otherwise(sandbox: &Sandbox) {
    stdout_of(
        sandbox,
        "mkdir -p .git/objects sub/keep out; echo x > .git/config; \
         printf '*.log\\n/out/\\n!keep.log\\n' > .gitignore; \
         echo x > a.log; echo x > keep.log; echo x > out/f; echo x > sub/b.log; echo x > sub/ok; \
         echo 'ok' > sub/.gitignore; echo x > sub/keep/out; rmdir .git/objects",
    )
    .await;
    let kept = "./keep.log:1:x\n./sub/keep/out:1:x\n";
    assert_eq!(found(sandbox, "x", json!({})).await, kept);
    let below = found(sandbox, "x", json!({"path": "sub"})).await;
    assert_eq!(below, "sub/keep/out:1:x\n", "what is said above holds below");
    assert_eq!(
        found(sandbox, "x", json!({"path": "a.log"})).await,
        "a.log:1:x\n",
        "a file that is named is meant"
    );
    let globbed = found(sandbox, "x", json!({"file_pattern": "*.log"})).await;
    assert_eq!(globbed, "./keep.log:1:x\n", "a pattern for names does not undo it");
    let all = found(sandbox, "^x", json!({"no_ignore": true, "files_only": true})).await;
    assert_eq!(all, "./.git/config\n./a.log\n./keep.log\n./out/f\n./sub/b.log\n./sub/keep/out\n./sub/ok\n");
    stdout_of(sandbox, "rm -r .git").await;
    assert_eq!(found(sandbox, "x", json!({})).await, kept, "with its history or without");
}

async fn nothing_holds_it_up(sandbox: &Sandbox) {
    stdout_of(
        sandbox,
        "truncate -s 1G sparse; printf 'needle\\0x' > binary; mkfifo pipe; ln -s . loop; ln -s self self; \
         mkdir d; ln -s .. d/up; head -c 20000000 /dev/zero | tr '\\0' a > line; echo needle >> line; \
         echo needle > d/f; (yes text | head -c 50000000; echo; echo needle) > big; \
         touch \"$(printf 'new\\nline')\"; echo needle > 'd/a b'",
    )
    .await;
    let result = within("a search", call(sandbox, "search", json!({"pattern": "^needle$"}))).await;
    assert_eq!(result.stdout, "./big:10000002:needle\n./d/a b:1:needle\n./d/f:1:needle\n", "{result:?}");
    assert!(result.stderr.contains("cannot read all of ./line"), "{}", result.stderr);
    for path in ["pipe", "/dev/null", "/dev/zero"] {
        let fails = fails(sandbox, "search", json!({"pattern": "x", "path": path}), 2, "neither a file");
        within(path, fails).await;
    }
    within(
        "/proc",
        fails(sandbox, "search", json!({"pattern": "x", "path": "/proc"}), 2, "no files on a disk"),
    )
    .await;
    within("a link", fails(sandbox, "search", json!({"pattern": "x", "path": "self"}), 2, "symbolic links"))
        .await;
    assert_eq!(found(sandbox, "Pid:", json!({"path": "/proc/self/status"})).await.lines().count(), 3);
    let result =
        call(sandbox, "search", json!({"pattern": "nowhere [0-9]{9}x", "path": "/usr", "timeout": 0.001}))
            .await;
    assert_eq!(result.exit_code, 124, "the time was up: {result:?}");
}

async fn a_pattern_costs_no_more_than_its_text(sandbox: &Sandbox) {
    stdout_of(sandbox, "head -c 200000 /dev/zero | tr '\\0' a > as; echo b >> as").await;
    for pattern in ["(a+)+$", "(a|aa)+c", "(.*)*.*(x+x+)+y", "^(([a-z])+.)+[A-Z]([a-z])+$"] {
        within(pattern, call(sandbox, "search", json!({"pattern": pattern}))).await;
    }
    for (pattern, words) in [
        ("(", "unclosed group"),
        ("[z-a]", "`pattern` cannot be used"),
        ("((a{1000}){1000}){1000}", "`pattern` cannot be used"),
        ("a\nb", "`pattern` cannot be used"),
        ("(?<=x)y", "`pattern` cannot be used"),
    ] {
        within(pattern, fails(sandbox, "search", json!({"pattern": pattern}), 2, words)).await;
    }
    fails(sandbox, "search", json!({"pattern": "x".repeat(400_000)}), 1, "more than").await;
}

async fn results_have_a_bound_and_it_is_told(sandbox: &Sandbox) {
    stdout_of(sandbox, "seq 5000 > n; head -c 5000 /dev/zero | tr '\\0' x > wide").await;
    let result = call(sandbox, "search", json!({"pattern": "[0-9]"})).await;
    assert_eq!(result.stdout.lines().count(), 1000);
    assert!(result.success && result.stderr.contains("only the first 1000 results"), "{}", result.stderr);
    let result = call(sandbox, "search", json!({"pattern": "^[1-5]$", "max_results": 5})).await;
    assert_eq!((result.stdout.lines().count(), result.stderr.as_str()), (5, ""), "there are no more");
    let result = call(sandbox, "search", json!({"pattern": "^[1-5]$", "max_results": 4})).await;
    assert_eq!(result.stdout.lines().count(), 4);
    assert!(result.stderr.contains("only the first 4 results"), "{}", result.stderr);
    let params = json!({"pattern": "^(10|20)$", "path": "n", "context": 2, "max_results": 1});
    let result = call(sandbox, "search", params).await;
    assert_eq!(result.stdout, "n-8-8\nn-9-9\nn:10:10\nn-11-11\nn-12-12\n", "nothing of the next one");
    assert!(result.stderr.contains("only the first 1 results"), "{}", result.stderr);
    let wide = found(sandbox, "xxx", json!({})).await;
    assert!(wide.ends_with("x [… 5000 bytes]\n") && wide.len() < 1100, "{wide}");
}

async fn a_search_is_a_command_of_the_box(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    stdout_of(&sandbox, "echo text > f").await;
    let result = call(&sandbox, "search", json!({"pattern": "text"})).await;
    let end = result.end.expect("a program ran");
    assert_eq!((end.exit, end.stdout_bytes, result.exec.is_some()), (Exit::Code { code: 0 }, 11, true));
    assert_eq!(stdout_of(&sandbox, "ls -A").await, "f\n", "nothing of it is among the box's files");
    if stage.runtime != RuntimeKind::Process {
        std::fs::write(stage.dir().join("secret"), "text").unwrap();
        let path = stage.dir().join("secret").display().to_string();
        fails(&sandbox, "search", json!({"pattern": "text", "path": path}), 2, "No such file").await;
        sandbox.reset().await.unwrap();
        assert_eq!(found(&sandbox, "text", json!({})).await, "", "the box has another root, and it is seen");
        stdout_of(&sandbox, "echo text > g").await;
        assert_eq!(found(&sandbox, "text", json!({})).await, "./g:1:text\n");
    }
    // What its user may not read is not found, and named.
    stdout_of(&sandbox, "echo text > closed; chmod 000 closed").await;
    let result = call(&sandbox, "search", json!({"pattern": "text", "path": "."})).await;
    let readable = stdout_of(&sandbox, "cat closed 2> /dev/null || true").await == "text\n";
    assert_eq!(result.stderr.contains("cannot read ./closed: Permission denied"), !readable, "{result:?}");
}

async fn many_at_once_need_it_once(sandbox: &Sandbox) {
    stdout_of(sandbox, "echo text > f").await;
    let one = || found(sandbox, "text", json!({}));
    let (a, b, c, d, e) = tokio::join!(one(), one(), one(), one(), one());
    for text in [a, b, c, d, e] {
        assert_eq!(text, "./f:1:text\n");
    }
}

async fn a_box_without_memory_is_told_so(stage: &Stage) {
    let limits = Limits { memory_bytes: Some(8 << 20), ..Limits::default() };
    // Where memory cannot be limited, there is no such box.
    let Ok(sandbox) = stage.create(SandboxSpec { limits, ..SandboxSpec::default() }).await else { return };
    fails(&sandbox, "search", json!({"pattern": "x"}), 1, "bytes of memory").await;
}
