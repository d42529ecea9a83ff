//! What a command is started with: words, environment, directory, user; and how it is not started.

use std::collections::BTreeMap;

use glasshouse_sandbox::{ErrorKind, ExecSpec, Exit, NotStarted, RuntimeKind, Sandbox, SandboxSpec};
use glasshouse_tests::is_root;

use crate::stage::{
    Stage, argv, exit_of, on_every_runtime, run, settle, shell, start_with_pid, stdout_of, text,
};

on_every_runtime![
    argv_arrives_word_by_word,
    a_shell_line_is_read_by_a_shell,
    the_commands_environment_is_stronger_than_the_boxs,
    values_of_the_environment_arrive_as_they_are,
    nothing_of_our_own_environment_gets_in,
    without_a_word_the_directory_is_the_boxs,
    the_directory_may_be_absolute_or_relative,
    a_directory_that_cannot_be_entered_is_not_started,
    the_box_has_a_user_and_the_command_is_that_user,
    a_user_is_taken_by_name_and_by_number,
    a_user_that_is_not_there_is_not_started,
    the_host_knows_the_boxs_users_by_other_numbers,
    programs_are_looked_for_in_the_path,
    a_program_with_a_slash_is_looked_for_from_the_directory,
    a_missing_program_is_not_found,
    a_file_that_cannot_be_executed_is_there_and_not_started,
    no_program_at_all_is_not_started,
    words_that_no_kernel_takes_are_not_started,
    a_failed_start_leaves_no_trace,
    what_is_to_run_only_without_a_file_is_not_started_beside_it,
];

/// Checks that a command is not started, for this reason and with this code of a shell.
async fn check_not_started(sandbox: &Sandbox, spec: ExecSpec, expected: NotStarted, code: i32) {
    let shown = format!("{:?}", spec.program);
    let output = run(sandbox, spec).await;
    let exit = &output.report.exit;
    let Exit::NotStarted { why, message } = exit else { panic!("{shown} was started: {exit:?}") };
    assert_eq!((*why, exit.shell_code()), (expected, code), "{shown}: {message}");
    assert!(message.len() > 10, "{message:?} says nothing");
    assert_eq!((output.stdout.total, output.stderr.total), (0, 0));
}

async fn argv_arrives_word_by_word(sandbox: &Sandbox) {
    let words = ["a b", "", "c\nd", "é字", "-x", "*", "$HOME", "`id`", "\\", "\"'"];
    let output = run(sandbox, argv(&[&["printf", "%s|"], &words[..]].concat())).await;
    assert_eq!(text(&output.stdout), words.map(|word| format!("{word}|")).concat());
}

async fn a_shell_line_is_read_by_a_shell(sandbox: &Sandbox) {
    assert_eq!(stdout_of(sandbox, "a=20; echo $((a + 3)) | tr 2 x && (exit 4) || echo $?").await, "x3\n4\n");
}

/// The environment of a command, as the command sees it.
async fn environment(sandbox: &Sandbox, env: &[(&str, &str)]) -> BTreeMap<String, String> {
    let env = env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let output = run(sandbox, ExecSpec { env, ..argv(&["env", "-0"]) }).await;
    let pairs = text(&output.stdout);
    let pairs = pairs.split_terminator('\0').map(|pair| pair.split_once('=').expect("a pair has two sides"));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

async fn the_commands_environment_is_stronger_than_the_boxs(stage: &Stage) {
    let env = vec![("ONE".into(), "box".into()), ("TWO".into(), "box".into()), ("HOME".into(), "/x".into())];
    let sandbox = stage.create(SandboxSpec { env, ..SandboxSpec::default() }).await.unwrap();
    let seen = environment(&sandbox, &[("TWO", "command"), ("THREE", "command"), ("THREE", "again")]).await;
    let expected = [("ONE", "box"), ("TWO", "command"), ("THREE", "again"), ("HOME", "/x")];
    for (key, value) in expected {
        assert_eq!(seen.get(key).map(String::as_str), Some(value), "{key}");
    }
    let next = environment(&sandbox, &[]).await;
    assert_eq!((next["TWO"].as_str(), next.get("THREE")), ("box", None), "one command's words are its own");
}

async fn values_of_the_environment_arrive_as_they_are(sandbox: &Sandbox) {
    let odd =
        [("LINES_", "a\nb\n"), ("UNICODE", "é字🏠"), ("EMPTY", ""), ("SIGNS", "a=b'\"$x \t"), ("ü", "key")];
    let seen = environment(sandbox, &odd).await;
    for (key, value) in odd {
        assert_eq!(seen.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert!(seen["PATH"].contains("/usr/bin"), "there is a PATH: {seen:?}");
}

async fn nothing_of_our_own_environment_gets_in(sandbox: &Sandbox) {
    let seen = environment(sandbox, &[]).await;
    let common = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "PWD"];
    let leaked = |key: &String| std::env::var_os(key).is_some() && !common.contains(&key.as_str());
    let leaked: Vec<&String> = seen.keys().filter(|key| leaked(key)).collect();
    assert!(leaked.is_empty(), "{leaked:?}");
}

async fn without_a_word_the_directory_is_the_boxs(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    assert_eq!(stdout_of(&sandbox, "pwd").await.trim_end(), sandbox.info().cwd);
    let cwd = Some("/usr".to_owned());
    let other = stage.create(SandboxSpec { cwd, ..SandboxSpec::default() }).await.unwrap();
    assert_eq!(stdout_of(&other, "pwd").await, "/usr\n");
}

async fn the_directory_may_be_absolute_or_relative(sandbox: &Sandbox) {
    sandbox.make_dir("sub/ünder dir", true).await.unwrap();
    let check = async |cwd: &str, expected: &str| {
        let output = run(sandbox, ExecSpec { cwd: Some(cwd.into()), ..argv(&["pwd"]) }).await;
        assert_eq!(text(&output.stdout).trim_end(), expected);
    };
    check("/usr/bin", "/usr/bin").await;
    check("sub/ünder dir", &format!("{}/sub/ünder dir", sandbox.info().cwd)).await;
    check("sub/..", &sandbox.info().cwd).await;
}

async fn a_directory_that_cannot_be_entered_is_not_started(sandbox: &Sandbox) {
    sandbox.write_file("file", b"", None).await.unwrap();
    for cwd in ["/nowhere/at/all", "missing", "file"] {
        let spec = ExecSpec { cwd: Some(cwd.into()), ..argv(&["true"]) };
        check_not_started(sandbox, spec, NotStarted::BadCwd, 125).await;
    }
}

async fn the_box_has_a_user_and_the_command_is_that_user(sandbox: &Sandbox) {
    let seen = stdout_of(sandbox, "id -u; id -g").await;
    let expected = match sandbox.info().runtime {
        RuntimeKind::Native | RuntimeKind::Docker => "1000\n1000\n".to_owned(),
        RuntimeKind::Process => {
            let (uid, gid) = ids_of_this_process();
            format!("{uid}\n{gid}\n")
        }
    };
    assert_eq!(seen, expected);
}

fn ids_of_this_process() -> (u32, u32) {
    use glasshouse_linux::rustix::process::{getegid, geteuid};
    (geteuid().as_raw(), getegid().as_raw())
}

async fn a_user_is_taken_by_name_and_by_number(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let check = async |user: &str, expected: &str| {
        let spec = ExecSpec { user: Some(user.into()), ..shell("id -u; id -g; id -G") };
        let output = run(&sandbox, spec).await;
        assert_eq!(text(&output.stdout), expected, "{user}: {}", output.report.exit);
    };
    if stage.has_root() {
        check("root", "0\n0\n0\n").await;
        check("nobody", "65534\n65534\n65534\n").await;
        check("user:nogroup", "1000\n65534\n65534\n").await;
        check("1234", "1234\n1234\n1234\n").await;
        check("1234:77", "1234\n77\n77\n").await;
        return;
    }
    // There is one user: whoever the box belongs to. It has a number, and any other is refused.
    let own = stdout_of(&sandbox, "id -u").await.trim().to_owned();
    let output = run(&sandbox, ExecSpec { user: Some(own.clone()), ..shell("id -u") }).await;
    assert_eq!(text(&output.stdout).trim(), own, "{}", output.report.exit);
    let other = if own == "1234" { "1235" } else { "1234" };
    let spec = ExecSpec { user: Some(other.into()), ..argv(&["true"]) };
    check_not_started(&sandbox, spec, NotStarted::BadUser, 125).await;
}

async fn a_user_that_is_not_there_is_not_started(sandbox: &Sandbox) {
    for user in ["nobody-of-this-name", "user:no-such-group", ""] {
        let spec = ExecSpec { user: Some(user.into()), ..argv(&["true"]) };
        check_not_started(sandbox, spec, NotStarted::BadUser, 125).await;
    }
}

async fn the_host_knows_the_boxs_users_by_other_numbers(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let marker = stage.marker();
    let spec = shell(&format!("echo $$; exec sleep {marker}"));
    let user = stage.is_native_root().then(|| "1234".to_owned());
    let (_sleeper, _) = start_with_pid(&sandbox, ExecSpec { user, ..spec }).await;
    let (own, _) = ids_of_this_process();
    let expected = match sandbox.info().uid_base {
        Some(base) => base + 1234,
        None if stage.is_native_root() => {
            panic!("the box has no range of its own: {:?}", sandbox.info().missing)
        }
        None if stage.runtime == RuntimeKind::Docker => {
            // An engine that does not remap users is weaker, and the box says so.
            assert!(sandbox.info().missing.iter().any(|lack| lack.contains("own uid range")));
            1000
        }
        None => own,
    };
    assert!(!stage.is_native_root() || expected > 65_536, "{expected} is a user of the host");
    let mut seen = None;
    settle("the host sees the process", async || {
        seen = uid_of_command(&["sleep", &marker]);
        seen.is_some()
    })
    .await;
    assert_eq!(seen, Some(expected));
    assert!(is_root() || expected == own, "without privilege there is only oneself");
}

/// The user, as the host sees it, of the process with these arguments.
fn uid_of_command(words: &[&str]) -> Option<u32> {
    let cmdline = words.iter().flat_map(|word| [*word, "\0"]).collect::<String>();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let found = processes
        .map(|entry| entry.path())
        .find(|path| std::fs::read(path.join("cmdline")).is_ok_and(|bytes| bytes == cmdline.as_bytes()))?;
    let status = std::fs::read_to_string(found.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

async fn programs_are_looked_for_in_the_path(sandbox: &Sandbox) {
    let cwd = &sandbox.info().cwd;
    sandbox.write_file("first/tool", b"#!/bin/sh\necho first\n", Some(0o644)).await.unwrap();
    sandbox.write_file("second/tool", b"#!/bin/sh\necho second\n", Some(0o755)).await.unwrap();
    sandbox.write_file("third/tool", b"#!/bin/sh\necho third\n", Some(0o755)).await.unwrap();
    let check = async |path: String, expected: &str| {
        let spec = ExecSpec { env: vec![("PATH".into(), path.clone())], ..argv(&["tool"]) };
        let output = run(sandbox, spec).await;
        assert_eq!(text(&output.stdout), expected, "{path}: {}", output.report.exit);
    };
    check(format!("{cwd}/missing:{cwd}/second:{cwd}/third:/bin"), "second\n").await;
    // What may not be executed is passed over, as every shell does.
    check(format!("{cwd}/first:{cwd}/third:/bin"), "third\n").await;
    let path = vec![("PATH".into(), format!("{cwd}/first"))];
    let spec = ExecSpec { env: path, ..argv(&["tool"]) };
    check_not_started(sandbox, spec, NotStarted::NotExecutable, 126).await;
}

async fn a_program_with_a_slash_is_looked_for_from_the_directory(sandbox: &Sandbox) {
    sandbox.write_file("there/tool", b"#!/bin/sh\necho $1\n", Some(0o755)).await.unwrap();
    let spec = ExecSpec { cwd: Some("there".into()), ..argv(&["./tool", "found"]) };
    assert_eq!(text(&run(sandbox, spec).await.stdout), "found\n");
}

async fn a_missing_program_is_not_found(sandbox: &Sandbox) {
    sandbox.write_file("orphan", b"#!/nowhere/interpreter\n", Some(0o755)).await.unwrap();
    for program in ["no-such-program-anywhere", "/nowhere/program", "./missing", "./orphan"] {
        check_not_started(sandbox, argv(&[program]), NotStarted::NotFound, 127).await;
    }
}

async fn a_file_that_cannot_be_executed_is_there_and_not_started(sandbox: &Sandbox) {
    sandbox.write_file("plain", b"#!/bin/sh\n", Some(0o644)).await.unwrap();
    sandbox.write_file("nonsense", b"\x01\x02\x03 no program", Some(0o755)).await.unwrap();
    for program in ["./plain", "./nonsense", "/usr"] {
        check_not_started(sandbox, argv(&[program]), NotStarted::NotExecutable, 126).await;
    }
}

async fn no_program_at_all_is_not_started(sandbox: &Sandbox) {
    check_not_started(sandbox, argv(&[]), NotStarted::NotFound, 127).await;
    check_not_started(sandbox, argv(&[""]), NotStarted::NotFound, 127).await;
}

async fn words_that_no_kernel_takes_are_not_started(sandbox: &Sandbox) {
    let env = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
    check_not_started(sandbox, argv(&["echo", "a\0b"]), NotStarted::Other, 125).await;
    for env in [env("A", "a\0b"), env("A=B", "c"), env("", "c")] {
        check_not_started(sandbox, ExecSpec { env, ..argv(&["true"]) }, NotStarted::Other, 125).await;
    }
    let long = "x".repeat(210 * 1024);
    check_not_started(sandbox, argv(&["echo", &long]), NotStarted::TooLarge, 125).await;
    // One word alone may be too long for the kernel, however few there are.
    let longest_word = "x".repeat(140 * 1024);
    check_not_started(sandbox, argv(&["echo", &longest_word]), NotStarted::TooLarge, 125).await;
}

async fn a_failed_start_leaves_no_trace(sandbox: &Sandbox) {
    for _ in 0..300 {
        let Exit::NotStarted { .. } = exit_of(sandbox, argv(&["no-such-program"])).await else {
            panic!("it was started");
        };
    }
    assert_eq!(sandbox.execs().await.unwrap(), []);
    assert_eq!(stdout_of(sandbox, "echo still here").await, "still here\n");
}

async fn what_is_to_run_only_without_a_file_is_not_started_beside_it(sandbox: &Sandbox) {
    let path = format!("{}/only", stdout_of(sandbox, "pwd").await.trim());
    let spec = ExecSpec { only_without: Some(path.clone()), ..shell("touch only; echo ran") };
    assert_eq!(text(&run(sandbox, spec.clone()).await.stdout), "ran\n");
    let refused = sandbox.exec(spec).await.expect_err("the file is there");
    assert_eq!(refused.kind(), ErrorKind::Exists, "{refused}");
    // A link that leads nowhere is something, too, and what lies below a file is nothing.
    stdout_of(sandbox, "rm only; ln -s nowhere only").await;
    let below = ExecSpec { only_without: Some(format!("{path}/x")), ..shell("echo ran") };
    assert_eq!(text(&run(sandbox, below).await.stdout), "ran\n");
    let at = ExecSpec { only_without: Some(path), ..shell("echo ran") };
    assert_eq!(sandbox.exec(at).await.expect_err("the link is there").kind(), ErrorKind::Exists);
}
