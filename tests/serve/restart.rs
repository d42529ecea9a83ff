//! A server that dies loses nothing.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use serde_json::{Value, json};

use crate::stage::{Server, execd};

#[test]
fn boxes_outlive_the_server_with_all_that_is_known_of_them() {
    let server = Server::new();
    let wanted = json!({ "timeout": 3600, "metadata": { "a": "b" }, "extensions": { "x": "y" } });
    let id = server.create(wanted);
    server.lines(&id, "echo kept > /root/file");
    let before = server.get(&format!("/v1/sandboxes/{id}")).json();
    let server = server.killed_and_started();
    assert_eq!(server.get(&format!("/v1/sandboxes/{id}")).json(), before);
    assert_eq!(server.lines(&id, "cat /root/file"), ["kept"]);
}

#[test]
fn all_boxes_are_there_when_a_server_is_started_anew() {
    const BOXES: usize = 50;
    let server = Server::new();
    let made: BTreeSet<String> = (0..BOXES)
        .map(|n| {
            // Every other one runs something that has to be watched again.
            let more = if n % 2 == 0 { json!({}) } else { json!({ "entrypoint": ["sleep", "1000000"] }) };
            server.create(more)
        })
        .collect();
    let begun = Instant::now();
    let server = server.killed_and_started();
    let listed = server.get("/v1/sandboxes?pageSize=200&state=Running").json();
    eprintln!("{BOXES} boxes were there again after {:?}", begun.elapsed());
    let found: BTreeSet<String> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(found, made);
    assert!(found.iter().all(|id| server.get(&execd(id, "/ping")).status == 200));
}

#[test]
fn a_command_in_the_background_outlives_the_server_with_its_output() {
    let server = Server::new();
    let id = server.create(json!({}));
    server.lines(&id, "mkfifo /tmp/go");
    let start = |line: &str| {
        let events = server.run(&id, json!({ "command": line, "background": true }));
        events[0]["text"].as_str().unwrap().to_owned()
    };
    let (runs, over) = (start("seq 5000; cat /tmp/go; exit 3"), start("echo done"));
    let server = server.killed_and_started();
    let status = |command: &str| server.get(&execd(&id, &format!("/command/status/{command}"))).json();
    assert_eq!(status(&runs)["running"], true);
    server.lines(&id, "echo last > /tmp/go");
    let end = loop {
        let status = status(&runs);
        if status["running"] == false {
            break status;
        }
    };
    assert_eq!(end["exit_code"], 3);
    let expected: String = (1..=5000).map(|n| format!("{n}\n")).collect::<String>() + "last\n";
    assert!(server.get(&execd(&id, &format!("/command/{runs}/logs"))).text() == expected, "no byte is lost");
    while status(&over)["running"] == true {}
    assert_eq!(server.get(&execd(&id, &format!("/command/{over}/logs"))).text(), "done\n");
}

#[test]
fn a_box_that_others_ended_meanwhile_is_forgotten() {
    let server = Server::new();
    let (id, other) = (server.create(json!({})), server.create(json!({})));
    assert_eq!(server.lines(&id, "echo here"), ["here"]);
    let (code, _, stderr) = server.house.run(&["kill", &id]);
    assert_eq!(code, 0, "{stderr}");
    server.get(&execd(&id, "/ping")).assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");
    let server = server.killed_and_started();
    let remembered = server.house.home().join("server/sandboxes");
    assert!(
        !remembered.join(format!("{id}.json")).exists() && remembered.join(format!("{other}.json")).exists()
    );
}

#[test]
fn a_box_whose_time_was_over_while_nobody_served_goes_at_the_next_start() {
    let server = Server::new();
    let (id, stays) = (server.create(json!({ "timeout": 60 })), server.create(json!({})));
    let path = server.house.home().join(format!("server/sandboxes/{id}.json"));
    let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    record["expires_ms"] = json!(1);
    std::fs::write(&path, record.to_string()).unwrap();
    let server = server.killed_and_started();
    while server.get(&format!("/v1/sandboxes/{id}")).status != 404 {}
    assert_eq!(server.get(&format!("/v1/sandboxes/{stays}")).status, 200);
}

#[test]
fn boxes_of_the_program_are_served_as_well() {
    let server = Server::new();
    let (code, id, stderr) = server.house.run(&["create", "--label", "team=red"]);
    assert_eq!(code, 0, "{stderr}");
    let id = id.trim();
    let seen = server.get(&format!("/v1/sandboxes/{id}")).json();
    assert_eq!((&seen["metadata"], &seen["status"]["state"]), (&json!({ "team": "red" }), &json!("Running")));
    assert_eq!(server.lines(id, "echo here"), ["here"]);
}

/// Runs commands one after the other until the server does not answer any more. How many answers were wrong.
fn hammer(address: &str, id: &str) -> u64 {
    let mut wrong = 0;
    for n in 0_u64.. {
        let body = json!({ "argv": ["echo", n.to_string()] }).to_string();
        let head =
            format!("POST /v1/sandboxes/{id}/exec HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        let Ok(mut stream) = TcpStream::connect(address) else { break };
        let mut answer = String::new();
        if stream.write_all(request.as_bytes()).is_err() || stream.read_to_string(&mut answer).is_err() {
            break;
        }
        // One that was broken off is no answer.
        let Some((_, body)) = answer.split_once("\r\n\r\n") else { break };
        let Ok(told) = serde_json::from_str::<Value>(body) else { break };
        wrong += u64::from(told["stdout"] != format!("{n}\n"));
    }
    wrong
}

#[test]
fn a_restart_under_load_loses_no_box_and_no_byte() {
    const BOXES: usize = 4;
    let server = Server::new();
    let ids: Vec<String> = (0..BOXES).map(|_| server.create(json!({}))).collect();
    // They write all the time, and wait in the middle for somebody who comes when the next server is there.
    let line = "mkfifo /tmp/go; seq 1 20000; cat /tmp/go; seq 20001 40000";
    let start = |id: &String| {
        let events = server.run(id, json!({ "command": line, "background": true }));
        events[0]["text"].as_str().unwrap().to_owned()
    };
    let commands: Vec<String> = ids.iter().map(start).collect();
    let address = server.address.clone();
    let clients: Vec<_> = ids
        .iter()
        .map(|id| (address.clone(), id.clone()))
        .map(|(address, id)| std::thread::spawn(move || hammer(&address, &id)))
        .collect();
    let offset = |server: &Server, n: usize| {
        let logs = server.get(&execd(&ids[n], &format!("/command/{}/logs?cursor=1000000000", commands[n])));
        logs.header("execd-commands-tail-cursor").unwrap().parse::<u64>().unwrap()
    };
    while (0..BOXES).any(|n| offset(&server, n) == 0) {}
    let server = server.killed_and_started();
    let wrong: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
    assert_eq!(wrong, 0);
    let listed = server.get("/v1/sandboxes").json();
    assert_eq!(listed["pagination"]["totalItems"], BOXES);
    let expected: String = (1..=40_000).map(|n| format!("{n}\n")).collect();
    for (id, command) in ids.iter().zip(&commands) {
        while server.run(id, json!({ "command": "test -p /tmp/go" })).last().unwrap()["type"] == "error" {}
        server.lines(id, "echo -n > /tmp/go");
        let status = || server.get(&execd(id, &format!("/command/status/{command}"))).json();
        while status()["running"] == true {}
        assert_eq!(status()["exit_code"], 0);
        let logs = server.get(&execd(id, &format!("/command/{command}/logs"))).text();
        assert!(logs == expected, "{} bytes of {}", logs.len(), expected.len());
    }
}
