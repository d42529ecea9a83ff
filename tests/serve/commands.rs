//! Commands, and the stream that tells of them.

use std::io::{BufRead as _, BufReader, Read as _};

use serde_json::{Value, json};

use crate::stage::{Server, execd, texts};

#[test]
fn a_command_is_told_from_its_id_to_its_end() {
    let server = Server::new();
    let id = server.create(json!({}));
    let answer =
        server.send("POST", &execd(&id, "/command"), &json!({ "command": "echo out; echo err >&2" }));
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/event-stream")));
    let events = answer.events();
    let command = events[0]["text"].as_str().unwrap();
    assert!(events[0]["type"] == "init" && command.len() == 32, "{events:?}");
    assert_eq!(
        (texts(&events, "stdout"), texts(&events, "stderr")),
        (vec!["out".to_owned()], vec!["err".to_owned()])
    );
    assert!(events.iter().all(|event| event["timestamp"].is_u64()), "{events:?}");
    let ends: Vec<usize> = (0..events.len()).filter(|at| is_end(&events[*at])).collect();
    assert_eq!(ends, [events.len() - 1], "one end, and it is the last: {events:?}");
    assert!(events.last().unwrap()["execution_time"].is_u64());

    let status = server.get(&execd(&id, &format!("/command/status/{command}"))).json();
    assert_eq!((&status["running"], &status["exit_code"]), (&json!(false), &json!(0)));
    assert_eq!(status["content"], "echo out; echo err >&2");
    server.get(&execd(&id, "/command/status/none")).assert_error(404, "CONTEXT_NOT_FOUND");
    let logs = server.get(&execd(&id, &format!("/command/{command}/logs")));
    logs.assert_error(400, "INVALID_REQUEST_BODY");
}

fn is_end(event: &Value) -> bool {
    event["type"] == "error" || event["type"] == "execution_complete"
}

#[test]
fn lines_are_told_as_execd_does() {
    let server = Server::new();
    let id = server.create(json!({}));
    assert_eq!(server.lines(&id, r"printf 'a\n\nb\n\n\nc\n'"), ["a", "\n", "b", "\n", "\n", "c"]);
    assert_eq!(server.lines(&id, r"printf '1%%\r2%%\r\nend'"), ["1%", "2%", "end"]);
    assert_eq!(server.lines(&id, "printf ''"), Vec::<String>::new());
    let many = server.lines(&id, "seq 100000");
    assert_eq!(many.len(), 100_000);
    assert!(many.iter().zip(1..).all(|(line, number)| *line == number.to_string()), "in order, and whole");
}

#[test]
fn ends_that_are_no_success_are_errors_with_a_code() {
    let server = Server::new();
    let id = server.create(json!({}));
    let end = |command: Value| {
        let events = server.run(&id, command);
        let end = events.last().unwrap().clone();
        assert_eq!(end["type"], "error", "{events:?}");
        assert!(!events.iter().any(|event| event["type"] == "execution_complete"));
        end["error"].clone()
    };
    let seven = end(json!({ "command": "exit 7" }));
    let expected = json!({ "ename": "CommandExecError", "evalue": "7", "traceback": ["exit status 7"] });
    assert_eq!(seven, expected);
    let killed = end(json!({ "command": "kill -9 $$" }));
    assert_eq!((&killed["evalue"], &killed["traceback"][0]), (&json!("-1"), &json!("signal: killed")));
    // A grandchild that holds the output does not hold the end.
    let late = end(json!({ "command": "sleep 1000 & sleep 1000", "timeout": 50 }));
    assert_eq!((&late["evalue"], &late["traceback"][0]), (&json!("-1"), &json!("signal: killed")));
    assert!(late["traceback"][1].as_str().unwrap().contains("timed out"));
    let nowhere = end(json!({ "command": "true", "cwd": "/nonesuch" }));
    assert!(nowhere["evalue"].as_str().unwrap().contains("/nonesuch"), "{nowhere}");
    let none = end(json!({ "argv": ["/nonesuch"] }));
    assert!(none["evalue"].as_str().unwrap().parse::<i32>().is_err(), "no code, for it never ran: {none}");
}

#[test]
fn commands_have_their_place_their_user_and_their_variables() {
    let server = Server::new();
    let id = server.create(json!({ "env": { "A": "box", "B": "box" } }));
    let out = |command: Value| texts(&server.run(&id, command), "stdout");
    assert_eq!(out(json!({ "argv": ["echo", "$A", "b c"] })), ["$A b c"]);
    assert_eq!(out(json!({ "command": "pwd", "cwd": "~/../tmp" })), ["/tmp"]);
    assert_eq!(out(json!({ "command": "pwd", "cwd": "$HOME" })), ["/root"]);
    assert_eq!(out(json!({ "command": "id -u; id -g", "uid": 1000, "gid": 7 })), ["1000", "7"]);
    // Where people work, both root and the ordinary user may.
    let work = "touch /workspace/$(id -u) && ls /workspace";
    assert_eq!(out(json!({ "command": work })), ["0"]);
    assert_eq!(out(json!({ "command": work, "uid": 1000 })), ["0", "1000"]);
    assert_eq!(out(json!({ "command": "echo $BASH_VERSION | cut -c1" })).len(), 1);
    // A line in the file that EXECD_ENVS names is a variable of later commands; what a request says is stronger.
    server.lines(&id, r#"mkdir -p "$(dirname "$EXECD_ENVS")" && echo "B='of the file'" >> "$EXECD_ENVS""#);
    assert_eq!(out(json!({ "command": "echo $A $B" })), ["box of the file"]);
    assert_eq!(out(json!({ "command": "echo $A $B", "envs": { "B": "request" } })), ["box request"]);
}

#[test]
fn variables_come_from_the_file_that_the_box_names() {
    let server = Server::new();
    let file = "/tmp/of-mine/vars";
    let id = server.create(json!({ "env": { "EXECD_ENVS": file, "A": "box" } }));
    assert_eq!(server.lines(&id, "echo $EXECD_ENVS"), [file]);
    // Quotes hold whatever is between them, ends of lines as well.
    server.lines(&id, "mkdir /tmp/of-mine; printf '%s\n' \"B='two\" \"lines \\$A'\" \"D=/tmp/of-mine\" 'E=\"it'\"'\"'s\"' > $EXECD_ENVS");
    assert_eq!(server.lines(&id, r#"echo "$B"; echo "$E""#), ["two", "lines $A", "it's"]);
    // Sessions have them, too, and begin where they say.
    let session = server.send("POST", &execd(&id, "/session"), &json!({ "cwd": "$D" })).json();
    let run = execd(&id, &format!("/session/{}/run", session["session_id"].as_str().unwrap()));
    let events = server.send("POST", &run, &json!({ "command": "pwd; echo $E" })).events();
    assert_eq!(texts(&events, "stdout"), ["/tmp/of-mine", "it's"]);
    let refused = server.send(
        "POST",
        "/v1/sandboxes",
        &json!({ "image": { "uri": "host" }, "env": { "OPENSANDBOX_LIFECYCLE": "" } }),
    );
    refused.assert_error(400, "SANDBOX::INVALID_PARAMETER");
}

#[test]
fn what_is_no_command_is_refused_before_anything_is_streamed() {
    let server = Server::new();
    let id = server.create(json!({}));
    for command in [
        json!({}),
        json!({ "command": "" }),
        json!({ "command": "true", "argv": ["true"] }),
        json!({ "argv": [] }),
        json!({ "command": "true", "timeout": 0 }),
        json!({ "command": "true", "gid": 5 }),
    ] {
        server.send("POST", &execd(&id, "/command"), &command).assert_error(400, "INVALID_REQUEST_BODY");
    }
}

#[test]
fn a_caller_who_goes_does_not_take_the_command_along() {
    let server = Server::new();
    let id = server.create(json!({}));
    server.lines(&id, "mkfifo /tmp/go /tmp/done");
    let line = "echo begun; cat /tmp/go; echo still here > /tmp/done";
    let body = json!({ "command": line }).to_string();
    let mut stream = server.open(
        "POST",
        &execd(&id, "/command"),
        &[("content-type", "application/json")],
        body.as_bytes(),
    );
    let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&seen).contains("begun") {
        let n = stream.read(&mut piece).unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..n]);
    }
    drop(stream);
    // Each end of a pipe waits for the other: that it comes to this at all shows that the command goes on.
    server.lines(&id, "echo > /tmp/go");
    assert_eq!(server.lines(&id, "cat /tmp/done"), ["still here"]);
}

#[test]
fn a_command_in_the_background_is_read_from_place_to_place() {
    let server = Server::new();
    let id = server.create(json!({}));
    server.lines(&id, "mkfifo /tmp/go");
    let line = "echo one; echo two >&2; cat /tmp/go; exit 4";
    let events = server.run(&id, json!({ "command": line, "background": true }));
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["init", "execution_complete"]);
    let command = events[0]["text"].as_str().unwrap();
    let status = || server.get(&execd(&id, &format!("/command/status/{command}"))).json();
    assert_eq!((&status()["running"], status().get("exit_code")), (&json!(true), None));
    let logs = |cursor: &str| server.get(&execd(&id, &format!("/command/{command}/logs?cursor={cursor}")));
    let (first, cursor) = loop {
        let logs = logs("0");
        if logs.text().len() == 8 {
            break (logs.text(), logs.header("execd-commands-tail-cursor").unwrap().to_owned());
        }
    };
    let mut lines: Vec<&str> = first.lines().collect();
    lines.sort_unstable();
    assert_eq!((lines, cursor.as_str()), (vec!["one", "two"], "8"));
    assert_eq!(
        (logs(&cursor).text(), logs(&cursor).header("execd-commands-tail-cursor")),
        (String::new(), Some("8"))
    );
    server.lines(&id, "echo three > /tmp/go");
    let end = loop {
        let status = status();
        if status["running"] == false {
            break status;
        }
    };
    assert_eq!((&end["exit_code"], end["finished_at"].is_string()), (&json!(4), true));
    let rest = logs(&cursor);
    assert_eq!((rest.text().as_str(), rest.header("execd-commands-tail-cursor")), ("three\n", Some("14")));
}

#[test]
fn a_command_in_the_background_that_cannot_start_says_so() {
    let server = Server::new();
    let id = server.create(json!({}));
    for request in [
        json!({ "command": "pwd", "cwd": "/nope", "background": true }),
        json!({ "argv": ["no-such-program"], "background": true }),
    ] {
        let events = server.run(&id, request);
        let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["init", "error"], "{events:?}");
        assert_eq!(events[1]["error"]["ename"], "CommandExecError");
        let command = events[0]["text"].as_str().unwrap();
        let status = server.get(&execd(&id, &format!("/command/status/{command}"))).json();
        assert_eq!((&status["running"], &status["exit_code"]), (&json!(false), &json!(255)), "{status}");
        let logs = server.get(&execd(&id, &format!("/command/{command}/logs")));
        assert_eq!((logs.status, logs.text().as_str()), (200, ""), "{logs:?}");
    }
}

#[test]
fn a_context_begins_where_it_is_told_to_and_lines_of_a_shell_are_remembered() {
    let server = Server::new();
    let id = server.create(json!({}));
    let wanted = json!({ "language": "python", "cwd": "/var" });
    let context = server.send("POST", &execd(&id, "/code/context"), &wanted).json();
    let run = |code: &str, context: &Value| {
        let events =
            server.send("POST", &execd(&id, "/code"), &json!({ "code": code, "context": context })).events();
        texts(&events, "stdout").join("\n")
    };
    assert_eq!(run("import os; print(os.getcwd())", &context), "/var");
    let lines = json!({ "language": "command" });
    assert_eq!(run("x=6", &lines), "");
    assert_eq!(run("echo $((x * 7))", &lines), "42");
}

#[test]
fn what_makes_no_sense_is_told_in_the_words_of_execd() {
    let server = Server::new();
    let id = server.create(json!({}));
    for path in ["/command", "/code", "/files/mv", "/files/permissions", "/files/replace", "/directories"] {
        let headers = [("content-type", "application/json")];
        let answer = server.request("POST", &execd(&id, path), &headers, b"{");
        answer.assert_error(400, "INVALID_REQUEST_BODY");
    }
}

#[test]
fn a_command_is_interrupted_politely_or_not() {
    let server = Server::new();
    let id = server.create(json!({}));
    let interrupt =
        |query: &str| server.request("DELETE", &execd(&id, &format!("/command{query}")), &[], b"");
    for (trap, code) in [("exit 5", json!(5)), ("", json!(-1))] {
        let line = format!("trap '{trap}' TERM; touch /tmp/ready; while :; do sleep 0.05; done");
        let events = server.run(&id, json!({ "command": line, "background": true }));
        let command = events[0]["text"].as_str().unwrap();
        server.lines(&id, "until rm /tmp/ready 2>/dev/null; do sleep 0.05; done");
        let answer = interrupt(&format!("?id={command}"));
        assert_eq!((answer.status, answer.header("content-length")), (200, Some("0")), "{answer:?}");
        let status = server.get(&execd(&id, &format!("/command/status/{command}"))).json();
        assert_eq!((&status["running"], &status["exit_code"]), (&json!(false), &code));
        interrupt(&format!("?id={command}")).assert_error(500, "RUNTIME_ERROR");
    }
    interrupt("").assert_error(400, "MISSING_QUERY");
    interrupt("?id=none").assert_error(500, "RUNTIME_ERROR");
}

#[test]
fn the_box_answers_pings_also_through_its_own_proxy() {
    let server = Server::new();
    let id = server.create(json!({}));
    for path in ["/ping", "/proxy/44772/ping"] {
        let answer = server.get(&execd(&id, path));
        assert_eq!(
            (answer.status, answer.header("content-length"), answer.body.len()),
            (200, Some("0"), 0),
            "{path}"
        );
    }
    let isolated = server.get(&execd(&id, "/v1/isolated/capabilities"));
    assert_eq!((isolated.status, &isolated.json()["available"]), (200, &json!(false)));
    server.get(&execd(&id, "/code/contexts/nobodys")).assert_error(404, "CONTEXT_NOT_FOUND");
    server.get(&execd(&id, "/nonsense")).assert_error(404, "NOT_FOUND");
}

#[test]
fn a_box_tells_what_it_uses() {
    let server = Server::new();
    let id = server.create(json!({}));
    let metrics = server.get(&execd(&id, "/metrics")).json();
    let number = |name: &str| metrics[name].as_f64().unwrap_or_else(|| panic!("{name}: {metrics}"));
    assert!(number("cpu_count") > 0.0 && (0.0..=100.0).contains(&number("cpu_used_pct")), "{metrics}");
    assert!(number("mem_used_mib") > 0.0 && number("mem_used_mib") <= number("mem_total_mib"), "{metrics}");
    assert!(metrics["timestamp"].is_u64());
}

#[test]
fn what_a_box_uses_is_told_every_second_and_leaves_no_trace() {
    let server = Server::new();
    let id = server.create(json!({}));
    server.lines(&id, "true");
    let events = || server.get(&format!("/v1/sandboxes/{id}/trace")).text().lines().count();
    let before = events();
    let busy = server.run(&id, json!({ "command": "while :; do :; done", "background": true }));
    server.get(&execd(&id, "/metrics"));
    let stream = server.open("GET", &execd(&id, "/metrics/watch"), &[], b"");
    let mut lines = BufReader::new(stream).lines().map(|line| line.unwrap());
    let mut told = || loop {
        // Between them are the heads of chunks.
        let line = lines.next().unwrap();
        if line.starts_with('{') {
            break serde_json::from_str::<Value>(&line).unwrap();
        }
    };
    let (first, second) = (told(), told());
    let at = |told: &Value| told["timestamp"].as_u64().unwrap();
    assert!((900..60_000).contains(&(at(&second) - at(&first))), "{first} {second}");
    assert!(second["cpu_used_pct"].as_f64().unwrap() > 0.0, "{second}");
    assert_eq!(events(), before + 1, "only the start of what keeps it busy is on record");
    let busy = busy[0]["text"].as_str().unwrap();
    assert_eq!(server.request("DELETE", &execd(&id, &format!("/command?id={busy}")), &[], b"").status, 200);
}

#[test]
fn a_long_line_is_told_as_one() {
    let server = Server::new();
    let id = server.create(json!({}));
    let line = "head -c 9000000 /dev/zero | tr '\\0' x; echo; echo next";
    let told = server.lines(&id, line);
    assert_eq!(told.iter().map(String::len).collect::<Vec<_>>(), [9_000_000, 4]);
}

#[test]
fn a_session_is_kept_in_the_box_and_outlives_the_server() {
    let server = Server::new();
    let id = server.create(json!({}));
    // No body at all, as the SDK sends it.
    let made = server.request("POST", &execd(&id, "/session"), &[("content-type", "application/json")], b"");
    assert_eq!(made.status, 200, "{made:?}");
    let session = made.json()["session_id"].as_str().unwrap().to_owned();
    let run = |server: &Server, line: &str| {
        let answer =
            server.send("POST", &execd(&id, &format!("/session/{session}/run")), &json!({ "command": line }));
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.events()
    };
    let events = run(&server, "cd /usr; export A='x y'");
    assert_eq!((&events[0]["type"], &events[0]["text"]), (&json!("init"), &json!(session)));
    let server = server.killed_and_started();
    assert_eq!(texts(&run(&server, "pwd; echo $A"), "stdout"), ["/usr", "x y"]);
    for odd in ["nonesuch", "..%2f..%2fetc", "0123456789abcdef0123456789abcdef"] {
        let path = execd(&id, &format!("/session/{odd}/run"));
        server.send("POST", &path, &json!({ "command": "true" })).assert_error(404, "CONTEXT_NOT_FOUND");
    }
    let nowhere = json!({ "cwd": "/nowhere" });
    server.send("POST", &execd(&id, "/session"), &nowhere).assert_error(500, "RUNTIME_ERROR");
}

#[test]
fn a_session_whose_directory_is_gone_goes_on_elsewhere() {
    let server = Server::new();
    let id = server.create(json!({}));
    server.lines(&id, "mkdir -p /tmp/first");
    let made = server.send("POST", &execd(&id, "/session"), &json!({ "cwd": "/tmp/first" })).json();
    let path = execd(&id, &format!("/session/{}/run", made["session_id"].as_str().unwrap()));
    let run = |wanted: Value| server.send("POST", &path, &wanted).events();
    let events = run(json!({ "command": "export A=b; rmdir /tmp/first" }));
    assert_eq!(events.last().unwrap()["type"], "execution_complete", "{events:?}");
    for wanted in
        [json!({ "command": "touch /tmp/ran" }), json!({ "command": "touch /tmp/ran", "cwd": "sub" })]
    {
        let lost = run(wanted);
        assert_eq!(lost.last().unwrap()["error"]["evalue"], "1", "{lost:?}");
        assert!(texts(&lost, "stdout").iter().any(|line| line.contains("name another one")), "{lost:?}");
    }
    let found =
        run(json!({ "command": "pwd; echo $A [$#] [$*]; test -e /tmp/ran || echo not run", "cwd": "/usr" }));
    assert_eq!(texts(&found, "stdout"), ["/usr", "b [0] []", "not run"], "{found:?}");
    assert_eq!(
        texts(&run(json!({ "command": "pwd; env | grep -c OPENSANDBOX_RUN" })), "stdout"),
        ["/usr", "0"]
    );
}

#[test]
fn a_session_keeps_what_a_command_leaves_that_has_a_trap_of_its_own() {
    let server = Server::new();
    let id = server.create(json!({}));
    let made = server.send("POST", &execd(&id, "/session"), &json!({})).json();
    let path = execd(&id, &format!("/session/{}/run", made["session_id"].as_str().unwrap()));
    let run = |line: &str| texts(&server.send("POST", &path, &json!({ "command": line })).events(), "stdout");
    assert_eq!(run("trap 'echo bye $Q' EXIT; export Q=1; cd /usr"), ["bye 1"]);
    assert_eq!(run("echo $Q; pwd; (exit 3)"), ["1", "/usr"]);
    let events = server.send("POST", &path, &json!({ "command": "trap : EXIT; false" })).events();
    assert!(events.iter().any(|event| event["type"] == "error"), "how it ends stays: {events:?}");
}

#[test]
fn what_a_shell_says_of_a_line_of_a_session_is_about_the_callers_line() {
    let server = Server::new();
    let id = server.create(json!({}));
    let made = server.send("POST", &execd(&id, "/session"), &json!({})).json();
    let path = execd(&id, &format!("/session/{}/run", made["session_id"].as_str().unwrap()));
    let run = |line: &str| texts(&server.send("POST", &path, &json!({ "command": line })).events(), "stdout");
    // The second time there are variables to be read first.
    for _ in 0..2 {
        assert_eq!(run("nonesuch"), ["session: line 1: nonesuch: command not found"]);
        let said = run("echo 'it'\"'s\" \\\\; f() {\n  echo $LINENO\n}\nf\n\nnonesuch");
        assert_eq!(said, ["it's \\", "2", "session: line 6: nonesuch: command not found"]);
        let said = run("true (");
        assert!(said.iter().all(|line| line.starts_with("session: eval: line 1: ")), "{said:?}");
        assert!(said.iter().any(|line| line.ends_with("`true ('")), "{said:?}");
        assert_eq!(run("echo [$#] [${OPENSANDBOX_RUN-}${OPENSANDBOX_CWD-}]"), ["[0] []"]);
    }
}
