//! Tools, as a user calls them with the program.

use std::io::Write;
use std::process::Stdio;

use serde_json::json;

use crate::{create, each_mode, json};

#[test]
fn a_tool_is_called_and_its_code_is_ours() {
    each_mode(|house| {
        let id = create(house, &[]);
        let call = |tool: &str, params: &str| house.run(&["exec", &id, "--tool", tool, "--params", params]);
        let (code, stdout, stderr) = call("shell", r#"{"command": "echo out; echo beside >&2; exit 3"}"#);
        assert_eq!((code, stdout.as_str()), (3, "out\n"));
        assert!(stderr.starts_with("beside\n") && stderr.contains("exit code 3"), "{stderr}");
        assert_eq!(call("file_write", r#"{"path": "d/f", "content": "needle\n"}"#).0, 0);
        assert_eq!(call("search", r#"{"pattern": "need"}"#).1, "./d/f:1:needle\n");
        let (code, stdout, stderr) = call("serch", "{}");
        assert!(code == 2 && stdout.is_empty() && stderr.contains("did you mean `search`?"), "{stderr}");
        let (code, _, stderr) = call("shell", r#"{"command": "sleep 1000", "timeout": 0.2}"#);
        assert!(code == 124 && stderr.contains("timed out after 0.2 s"), "{code} {stderr}");
        let (code, _, stderr) = call("shell", "{");
        assert!(code == 125 && stderr.contains("--params"), "{code} {stderr}");
    });
}

#[test]
fn parameters_come_from_a_file_or_from_stdin_and_answers_are_json() {
    each_mode(|house| {
        let id = create(house, &[]);
        let file = house.home().join("call.json");
        std::fs::write(&file, r#"{"path": "f", "content": "text"}"#).unwrap();
        let params = format!("@{}", file.display());
        assert_eq!(house.run(&["exec", &id, "--tool", "file_write", "--params", &params]).0, 0);
        let (code, _, stderr) = house.run(&["exec", &id, "--tool", "submit", "--params", "@/no/such"]);
        assert!(code == 125 && stderr.contains("/no/such"), "{code} {stderr}");
        let args = ["exec", &id, "--tool", "file_read", "--params", "-", "--json"];
        let mut child =
            house.glass(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("glass starts");
        child.stdin.take().expect("it is piped").write_all(br#"{"path": "f"}"#).unwrap();
        let answer = child.wait_with_output().expect("it ends").stdout;
        let expected = json!({
            "output": "text", "stdout": "text", "stderr": "", "exit_code": 0, "error": null, "success": true,
            "end": null, "exec": null,
        });
        assert_eq!(json(&String::from_utf8(answer).unwrap()), expected);
        let (code, stdout, _) =
            house.run(&["exec", &id, "--tool", "shell", "--params", r#"{"command": "exit 4"}"#, "--json"]);
        let answer = json(&stdout);
        assert_eq!((code, &answer["exit_code"], &answer["success"]), (4, &json!(4), &json!(false)));
        assert_eq!(answer["end"]["exit"], json!({"kind": "code", "code": 4}));
    });
}

#[test]
fn a_box_is_made_without_tools_and_with_own_ones() {
    each_mode(|house| {
        let file = house.home().join("tools.json");
        let tool = r#"{"name": "greet", "description": "Greets.", "argv": ["echo", "hello {who}"],
            "parameters": {"properties": {"who": {"type": "string"}}, "required": ["who"]}}"#;
        std::fs::write(&file, tool).unwrap();
        let path = file.display().to_string();
        let id = create(house, &["--without-tool", "shell", "--tool-file", &path]);
        let listed = json(&house.run(&["tools", &id, "--json"]).1);
        let names: Vec<&str> =
            listed.as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
        assert!(names.contains(&"greet") && names.contains(&"git") && !names.contains(&"shell"), "{names:?}");
        let call = |tool: &str, params: &str| house.run(&["exec", &id, "--tool", tool, "--params", params]);
        assert_eq!(call("greet", r#"{"who": "a; b"}"#).1, "hello a; b\n");
        assert!(call("bash", r#"{"command": "ls"}"#).2.contains("switched off"));
        let info = json(&house.run(&["info", &id, "--json"]).1);
        assert_eq!(info["tools"], json!({"off": ["shell"], "own": ["greet"]}));
        let (_, fork, _) = house.run(&["fork", &id]);
        let (_, stdout, _) = house.run(&["tools", fork.trim_end()]);
        assert!(stdout.contains("greet") && !stdout.contains("\nshell"), "a fork has the same: {stdout}");
        for bad in
            [&["--without-tool", "shel"][..], &["--tool-file", "/no/such"], &["--tool-file", "/etc/hostname"]]
        {
            let (code, stdout, stderr) = house.run(&[&["create"], bad].concat());
            assert!(code != 0 && stdout.is_empty() && !stderr.is_empty(), "{bad:?}: {stderr}");
        }
    });
}

#[test]
fn tools_are_listed_for_people_and_for_models() {
    each_mode(|house| {
        let (code, table, _) = house.run(&["tools"]);
        assert!(code == 0 && table.starts_with("TOOL") && table.contains("\nfile_edit "), "{table}");
        let openai = json(&house.run(&["tools", "--openai"]).1);
        assert_eq!(
            (&openai[0]["type"], &openai[0]["function"]["name"]),
            (&json!("function"), &json!("shell"))
        );
        assert_eq!(openai[0]["function"]["parameters"]["required"], json!(["command"]));
        let mcp = json(&house.run(&["tools", "--mcp"]).1);
        assert_eq!(mcp[0]["inputSchema"], openai[0]["function"]["parameters"]);
    });
}
