//! A server that dies loses nothing.

use serde_json::json;

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
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
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
