//! The tools: what an agent calls by name, and what it is told when something does not fit.

use glasshouse_sandbox::{
    CommandTool, ErrorKind, Exit, RustTool, Sandbox, SandboxSpec, ToolInfo, ToolResult, ToolsSpec,
};
use serde_json::{Value, json};

use crate::stage::{Stage, on_every_runtime, open, stdout_of, wait_gone};

on_every_runtime![
    a_line_is_run_and_its_end_is_told,
    a_time_out_ends_all_that_was_started_and_says_so,
    a_call_that_makes_no_sense_is_answered,
    tools_are_switched_off_and_added_and_others_know_it,
    a_tool_can_be_a_rust_value,
    tools_that_could_not_be_used_are_refused,
    programs_in_python_run,
    git_runs_without_a_shell,
    the_names_of_other_systems_are_understood,
    the_last_word_ends_nothing,
    what_is_too_long_is_told_in_part,
];

/// Calls a tool of a box that works.
pub(crate) async fn call(sandbox: &Sandbox, name: &str, params: Value) -> ToolResult {
    let result = sandbox.tool(name, params).await.expect("the box answers");
    assert_eq!(result.success, result.exit_code == 0, "{result:?}");
    assert_eq!(result.success, result.error.is_none(), "{result:?}");
    result
}

/// Calls a tool that has to work; what it found.
pub(crate) async fn done(sandbox: &Sandbox, name: &str, params: Value) -> String {
    let result = call(sandbox, name, params).await;
    assert!(result.success, "{name}: {result:?}");
    result.stdout
}

/// Calls a tool that has to fail with this code and these words.
pub(crate) async fn fails(sandbox: &Sandbox, name: &str, params: Value, code: i32, words: &str) {
    let shown = params.to_string();
    let result = call(sandbox, name, params).await;
    let error = result.error.clone().unwrap_or_default();
    assert!(result.exit_code == code && error.contains(words), "{name} {shown:.200}: {result:?}");
}

async fn a_line_is_run_and_its_end_is_told(sandbox: &Sandbox) {
    let result = call(sandbox, "shell", json!({"command": "echo out; echo warning >&2"})).await;
    assert!(result.success && result.error.is_none(), "a word on stderr is no failure");
    assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("out\n", "warning\n"));
    assert_eq!(result.output, "out\nwarning\n");
    let end = result.end.expect("a program ran");
    assert_eq!((end.exit, end.stdout_bytes), (Exit::Code { code: 0 }, 4));
    fails(sandbox, "shell", json!({"command": "exit 3"}), 3, "exit code 3").await;
    fails(sandbox, "shell", json!({"command": "kill -9 $$"}), 137, "signal 9").await;
    assert_eq!(
        done(sandbox, "shell", json!({"command": "echo {1..3}; [[ a == a ]]"})).await,
        "1 2 3\n",
        "bash"
    );
    assert_eq!(done(sandbox, "shell", json!({"command": "pwd", "work_dir": "/usr"})).await, "/usr\n");
    assert_eq!(done(sandbox, "shell", json!({"command": "mkdir a; cat < /dev/stdin"})).await, "");
    let inside = done(sandbox, "shell", json!({"command": "pwd", "work_dir": "a"})).await;
    assert_eq!(inside, format!("{}/a\n", sandbox.info().cwd));
    fails(sandbox, "shell", json!({"command": "pwd", "work_dir": "no"}), 125, "directory").await;
}

async fn a_time_out_ends_all_that_was_started_and_says_so(sandbox: &Sandbox) {
    let best_effort = sandbox.info().tracking == "process group, best effort";
    let session = if best_effort { "" } else { "setsid" };
    let command =
        format!("sleep 1000 & echo $!; {session} sleep 1000 & echo $!; (sleep 1000 & echo $!); wait");
    // Where the machine is so busy that a shell does not come that far, it is given more time.
    for timeout in [2, 10, 50] {
        let result = call(sandbox, "shell", json!({"command": command, "timeout": timeout})).await;
        assert_eq!(result.exit_code, 124, "{result:?}");
        assert_eq!(result.end.map(|end| end.exit), Some(Exit::TimedOut));
        let error = result.error.unwrap_or_default();
        assert!(
            error.contains(&format!("timed out after {timeout} s")) && error.contains("killed"),
            "{error}"
        );
        let pids: Vec<u32> = result.stdout.lines().map(|line| line.parse().unwrap()).collect();
        for pid in &pids {
            wait_gone(sandbox, *pid).await;
        }
        if pids.len() == 3 {
            return;
        }
    }
    panic!("the shell never came to start anything");
}

async fn a_call_that_makes_no_sense_is_answered(sandbox: &Sandbox) {
    for (name, params, words) in [
        ("shel", json!({}), "no tool `shel`; did you mean `shell`?"),
        ("", json!({}), "no tool ``"),
        ("shell", json!({}), "`command` is missing"),
        ("shell", json!({"command": 5}), "`command` is a string, not a number"),
        ("shell", json!({"command": ""}), "`command` is empty"),
        ("shell", json!({"command": "ls", "timout": 5}), "no parameter `timout`; did you mean `timeout`?"),
        ("shell", json!({"command": "ls", "timeout": "5"}), "`timeout` is a number, not a string"),
        ("shell", json!({"command": "ls", "timeout": 0}), "more than 0"),
        ("shell", json!({"command": "ls", "timeout": -1}), "more than 0"),
        ("shell", json!("ls"), "a JSON object, not a string"),
        ("shell", json!([1]), "a JSON object, not an array"),
        ("file_read", json!({"pth": "a"}), "did you mean `path`?"),
        ("file_read", json!({"path": "a", "start_line": 0}), "at least 1"),
        ("file_read", json!({"path": "a", "end_line": -1}), "at least 0"),
        ("file_read", json!({"path": "a", "start_line": 3, "end_line": 2}), "comes after"),
        ("file_write", json!({"path": "a"}), "`content` is missing"),
        ("file_edit", json!({"path": "a", "old": "x"}), "`new` is missing"),
        ("file_edit", json!({"path": "a", "old": "x", "new": "y", "patch": "z"}), "stands alone"),
        ("git", json!({"subcommand": "log -1"}), "one word"),
        ("git", json!({"subcommand": "log", "args": "'x"}), "within quotes"),
        ("search", json!({"pattern": "x", "max_results": 0}), "at least 1"),
    ] {
        fails(sandbox, name, params, 2, words).await;
    }
    // What no argument can hold is told by the start that fails.
    fails(sandbox, "shell", json!({"command": "echo \u{0}"}), 125, "zero byte").await;
    fails(sandbox, "shell", json!({"command": "x".repeat(150_000)}), 125, "too large").await;
    fails(sandbox, "shell", json!({"command": "x".repeat(400_000)}), 1, "more than").await;
    fails(sandbox, "file_read", json!({"path": "a\u{0}b"}), 1, "zero byte").await;
    fails(sandbox, "file_read", json!({"path": "x".repeat(5000)}), 1, "longer than").await;
    assert!(call(sandbox, "submit", Value::Null).await.success, "nothing is no parameter");
}

fn own_tools() -> ToolsSpec {
    let own = r#"[
        {"name": "greet", "description": "Greets.", "argv": ["printf", "%s|", "{who}", "-{who}-", "{more}"],
         "parameters": {"type": "object", "required": ["who"], "properties": {
            "who": {"type": "string"}, "more": {"type": "array", "items": {"type": "string"}}}}},
        {"name": "echo_params", "description": "Says what it was given.", "stdin": ["cat"],
         "parameters": {"type": "object", "properties": {"a": {"type": "integer", "default": 7}}}},
        {"name": "slow", "argv": ["sleep", "1000"], "timeout": 0.2}
    ]"#;
    ToolsSpec { off: vec!["python".into(), "shell".into()], own: CommandTool::parse(own).unwrap() }
}

async fn tools_are_switched_off_and_added_and_others_know_it(stage: &Stage) {
    let spec = SandboxSpec { tools: own_tools(), ..SandboxSpec::default() };
    let made = stage.create(spec).await.unwrap();
    // As another process finds it.
    let found = open(&stage.home()).get(made.id()).await.unwrap();
    for sandbox in [made, found] {
        let names: Vec<String> = sandbox.tools().into_iter().map(|tool| tool.name).collect();
        for (name, there) in [("shell", false), ("python", false), ("git", true), ("greet", true)] {
            assert_eq!(names.iter().any(|known| known == name), there, "{name} in {names:?}");
        }
        fails(&sandbox, "shell", json!({"command": "ls"}), 2, "switched off").await;
        fails(&sandbox, "bash", json!({"command": "ls"}), 2, "`shell` is switched off").await;
        let who = "a b; $(touch x) `y` '\"\n";
        let said = done(&sandbox, "greet", json!({"who": who, "more": ["1 2", ""]})).await;
        assert_eq!(said, format!("{who}|-{who}-|1 2||"));
        fails(&sandbox, "greet", json!({"whom": "x"}), 2, "did you mean `who`?").await;
        let said = done(&sandbox, "echo_params", json!({})).await;
        assert_eq!(serde_json::from_str::<Value>(&said).unwrap(), json!({"a": 7}));
        fails(&sandbox, "slow", json!({}), 124, "timed out after 0.2 s").await;
    }
}

async fn a_tool_can_be_a_rust_value(stage: &Stage) {
    let parameters = json!({"type": "object", "properties": {"n": {"type": "integer", "default": 2}}});
    let info = ToolInfo { name: "double".into(), description: "Doubles.".into(), parameters };
    let tool = RustTool::new(info, |sandbox: Sandbox, params: Value| async move {
        let n = params["n"].as_u64().unwrap_or(0) * 2;
        sandbox.write_file("n", n.to_string().as_bytes(), None).await?;
        Ok(ToolResult::done(n.to_string()))
    });
    stage.house.add_tool(tool.clone()).unwrap();
    assert_eq!(stage.house.add_tool(tool).unwrap_err().kind(), ErrorKind::Invalid, "the name is taken");
    let sandbox = stage.sandbox().await;
    assert_eq!(done(&sandbox, "double", json!({"n": 21})).await, "42");
    assert_eq!(done(&sandbox, "double", json!({})).await, "4");
    fails(&sandbox, "double", json!({"n": "x"}), 2, "whole number").await;
    assert_eq!(stdout_of(&sandbox, "cat n").await, "4");
    let tools = ToolsSpec { off: vec!["double".into()], own: Vec::new() };
    let without = stage.create(SandboxSpec { tools, ..SandboxSpec::default() }).await.unwrap();
    fails(&without, "double", json!({}), 2, "switched off").await;
}

async fn tools_that_could_not_be_used_are_refused(stage: &Stage) {
    let refused = async |tools: ToolsSpec, words: &str| {
        let error = stage.refusal(SandboxSpec { tools, ..SandboxSpec::default() }).await;
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(words), "{error}");
    };
    let own = |text: &str| ToolsSpec { off: Vec::new(), own: CommandTool::parse(text).unwrap() };
    refused(ToolsSpec { off: vec!["pyton".into()], own: Vec::new() }, "did you mean `python`?").await;
    refused(own(r#"{"name": "shell", "argv": ["x"]}"#), "already").await;
    refused(own(r#"{"name": "a b", "argv": ["x"]}"#), "cannot be a tool's name").await;
    refused(own(r#"{"name": "a", "argv": ["x", "{b}"]}"#), "none of its parameters").await;
    let many = (0..65).map(|n| format!(r#"{{"name": "t{n}", "argv": ["x"]}}"#)).collect::<Vec<_>>().join(",");
    refused(own(&format!("[{many}]")), "at most 64").await;
    let long = format!(r#"{{"name": "a", "argv": ["x"], "description": "{}"}}"#, "x".repeat(70_000));
    refused(own(&long), "more than 65536 bytes").await;
}

async fn programs_in_python_run(sandbox: &Sandbox) {
    assert_eq!(done(sandbox, "python", json!({"code": "print(6 * 7)"})).await, "42\n");
    fails(sandbox, "python", json!({"code": "import sys; sys.exit(5)"}), 5, "exit code 5").await;
    let result = call(sandbox, "python", json!({"code": "1 / 0"})).await;
    assert!(result.exit_code == 1 && result.output.contains("ZeroDivisionError"), "{result:?}");
    let result = call(sandbox, "python", json!({"code": "input()"})).await;
    assert!(result.output.contains("EOFError"), "nobody types anything: {result:?}");
    let long = format!("x = '{}'\nprint(len(x))", "y".repeat(500_000));
    assert_eq!(done(sandbox, "python", json!({"code": long})).await, "500000\n", "longer than any argument");
    let code = "print('before')\nwhile True: pass";
    for timeout in [2, 10, 50] {
        let result = call(sandbox, "python", json!({"code": code, "timeout": timeout})).await;
        assert_eq!(result.exit_code, 124, "{result:?}");
        if result.stdout == "before\n" {
            return;
        }
    }
    panic!("what was printed before the end is lost");
}

async fn git_runs_without_a_shell(sandbox: &Sandbox) {
    let git = async |subcommand: &str, args: Value| {
        call(sandbox, "git", json!({"subcommand": subcommand, "args": args})).await
    };
    assert!(git("init", json!("-q -b main .")).await.success);
    stdout_of(sandbox, "git config user.name x; git config user.email x@y; echo 1 > 'a b'").await;
    assert!(git("add", json!(["a b"])).await.success);
    let result = git("commit", json!("-q -m 'one; echo injected' ")).await;
    assert!(result.success, "{result:?}");
    let log = git("log", json!("--format=%s")).await;
    assert_eq!(log.stdout, "one; echo injected\n");
    for attack in
        ["; touch pwned", "$(touch pwned)", "`touch pwned`", "| touch pwned", "&& touch pwned", "> pwned"]
    {
        assert!(!git("log", json!(attack)).await.success, "{attack}");
    }
    assert_eq!(stdout_of(sandbox, "ls").await, "a b\n", "nothing was made");
    stdout_of(sandbox, "seq 2000 > 'a b'").await;
    assert!(git("diff", json!("")).await.stdout.lines().count() > 2000, "no pager");
    // Nobody types a message, and nobody waits for one.
    let result = git("commit", json!("-q -a")).await;
    assert!(!result.success && result.output.contains("empty commit message"), "{result:?}");
    let result = git("no-such-word", json!("")).await;
    assert!(result.exit_code == 1 && result.error.is_some(), "{result:?}");
}

async fn the_names_of_other_systems_are_understood(sandbox: &Sandbox) {
    done(sandbox, "write_file", json!({"file_path": "f.txt", "content": "one\ntwo\n"})).await;
    assert_eq!(done(sandbox, "read_file", json!({"file_path": "f.txt"})).await, "one\ntwo\n");
    assert_eq!(done(sandbox, "cat", json!({"path": "f.txt", "start_line": 2})).await, "two\n");
    assert_eq!(done(sandbox, "bash", json!({"cmd": "echo x"})).await, "x\n");
    assert_eq!(done(sandbox, "grep", json!({"pattern": "tw", "include": "*.txt"})).await, "./f.txt:2:two\n");
    assert_eq!(done(sandbox, "find_file", json!({"file_name": "f.*", "dir": "."})).await, "./f.txt\n");
    assert_eq!(done(sandbox, "finish", json!({"message": "bye"})).await, "bye");
}

async fn the_last_word_ends_nothing(sandbox: &Sandbox) {
    assert_eq!(done(sandbox, "submit", json!({"answer": "42"})).await, "42");
    assert_eq!(done(sandbox, "submit", json!({})).await, "");
    assert_eq!(done(sandbox, "shell", json!({"command": "echo on"})).await, "on\n");
}

async fn what_is_too_long_is_told_in_part(sandbox: &Sandbox) {
    let result =
        call(sandbox, "shell", json!({"command": "printf start; yes | head -c 3000000; printf end"})).await;
    let text = &result.stdout;
    assert!(
        text.starts_with("start") && text.ends_with("end") && text.len() < 300_000,
        "{} bytes",
        text.len()
    );
    assert!(text.contains("bytes were left out here]"), "and it says so");
    assert_eq!(result.end.map(|end| end.stdout_bytes), Some(3_000_008));
    let result = call(sandbox, "shell", json!({"command": "printf 'a\\377b'"})).await;
    assert_eq!(result.stdout, "a\u{fffd}b");
}
