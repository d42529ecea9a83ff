//! What happens, as it is told; and several things at once.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::time::Duration;

use glasshouse_tests::{House, Mode};
use serde_json::{Value, json};

use crate::stage::Server;

/// A stream of events that is listened to.
struct Ear {
    lines: BufReader<TcpStream>,
    status: u16,
}

#[derive(Debug)]
struct Heard {
    id: String,
    kind: String,
    data: Value,
}

impl Ear {
    fn open(server: &Server, path: &str, headers: &[(&str, &str)]) -> Ear {
        let stream = server.open("GET", path, headers, b"");
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut lines = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(lines.read_line(&mut head).unwrap() > 0);
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Ear { lines, status }
    }

    /// The next event. None: there are no more.
    fn next(&mut self) -> Option<Heard> {
        let (mut id, mut kind, mut quiet) = (String::new(), String::new(), 0);
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            quiet += u32::from(line.starts_with(':'));
            assert!(quiet < 4, "for a minute nothing but that the server is there");
            // Sizes of chunks stand between.
            match line.trim_end().split_once(": ") {
                Some(("id", text)) => id = text.to_owned(),
                Some(("event", text)) => kind = text.to_owned(),
                Some(("data", text)) => {
                    return Some(Heard { id, kind, data: serde_json::from_str(text).unwrap() });
                }
                _ => {}
            }
        }
    }

    /// The next event of a kind.
    fn until(&mut self, kind: &str) -> Heard {
        let mut before = Vec::new();
        loop {
            let heard = self.next().unwrap_or_else(|| panic!("no {kind} after {before:?}"));
            if heard.kind == kind {
                return heard;
            }
            before.push(heard);
        }
    }
}

#[test]
fn the_record_of_a_box_is_told_as_it_is_written_and_from_any_line_on() {
    let server = Server::new();
    let id = server.create(json!({ "extensions": { "glasshouse.recording": "steps" } }));
    let path = format!("/v1/sandboxes/{id}/events");
    let mut ear = Ear::open(&server, &path, &[]);
    assert_eq!((ear.status, ear.until("box_created").id.as_str()), (200, "1"));
    server.lines(&id, "echo hello > /tmp/x");
    let started = ear.until("exec_started");
    assert_eq!(started.data["seq"].to_string(), started.id);
    let step = ear.until("step");
    assert_eq!(step.data["event"]["step"], 1);
    // Who comes back gets what he missed, and nothing twice.
    let mut again = Ear::open(&server, &path, &[("last-event-id", &started.id)]);
    let next = again.next().unwrap();
    assert_eq!(next.id.parse::<u64>().unwrap(), started.id.parse::<u64>().unwrap() + 1);
    let mut later = Ear::open(&server, &format!("{path}?after={}", step.id), &[]);
    assert_eq!(server.request("DELETE", &format!("/v1/sandboxes/{id}"), &[], b"").status, 204);
    let end = ear.until("box_ended");
    assert!(ear.next().is_none(), "nothing comes after the end");
    assert_eq!(later.until("box_ended").id, end.id);
    let over = server.get(&format!("{path}?after={}", end.id));
    assert_eq!((over.status, over.body.len()), (204, 0));
    // All of it can still be heard.
    assert_eq!(Ear::open(&server, &path, &[]).until("step").data, step.data);
    server.get(&format!("{path}?after=x")).assert_error(400, "SANDBOX::INVALID_PARAMETER");
    server.get("/v1/sandboxes/nobody/events").assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");
}

#[test]
fn all_boxes_are_told_whoever_changes_them() {
    let server = Server::new();
    let first = server.create(json!({}));
    let mut ear = Ear::open(&server, "/v1/events", &[]);
    let boxes = ear.next().unwrap();
    assert_eq!((boxes.kind.as_str(), &boxes.data["items"][0]["id"]), ("boxes", &json!(first)));
    assert!(boxes.data["items"][0]["level"].is_string());
    let wrong = json!({ "image": { "uri": "host" }, "extensions": { "glasshouse.recording": "all" } });
    server.send("POST", "/v1/sandboxes", &wrong).assert_error(400, "SANDBOX::INVALID_PARAMETER");
    let steps = json!({ "glasshouse.recording": "steps" });
    let second = server.create(json!({ "metadata": { "a": "b" }, "extensions": steps }));
    let created = ear.until("created");
    assert_eq!((&created.data["id"], &created.data["metadata"]["a"]), (&json!(second), &json!("b")));
    server.lines(&second, "touch /tmp/x");
    assert_eq!(ear.until("exec").data["exitCode"], 0);
    let step = ear.until("step");
    assert_eq!((&step.data["id"], &step.data["step"]), (&json!(second), &json!(1)));
    assert_eq!(server.send("POST", &format!("/v1/sandboxes/{first}/pause"), &json!({})).status, 202);
    let changed = ear.until("changed");
    assert_eq!((&changed.data["id"], &changed.data["status"]["state"]), (&json!(first), &json!("Paused")));
    // Others use the same boxes.
    let (code, _, error) = server.house.run(&["kill", &first]);
    assert_eq!(code, 0, "{error}");
    let ended = ear.until("ended");
    assert_eq!(ended.data["id"], first);
    // Who comes back gets what he missed.
    let mut again = Ear::open(&server, "/v1/events", &[("last-event-id", &changed.id)]);
    let number = |heard: &Heard| heard.id.split_once('-').unwrap().1.parse::<u64>().unwrap();
    let next = again.next().unwrap();
    assert_eq!(number(&next), number(&changed) + 1);
    assert!(next.id == ended.id || again.until("ended").id == ended.id);
    // Who names something else gets all.
    let mut other = Ear::open(&server, "/v1/events?after=nonsense-3", &[]);
    let boxes = other.next().unwrap();
    assert_eq!((boxes.kind.as_str(), boxes.data["items"].as_array().unwrap().len()), ("boxes", 1));
}

#[test]
fn a_tenant_hears_of_his_own_boxes_alone() {
    let key = "a-key-that-nobody-guesses";
    let server = Server::with_key(key);
    let (code, red, _) = server.house.run(&["key", "add", "r", "--tenant", "red"]);
    assert_eq!(code, 0);
    let (red, operator) = ([("open-sandbox-api-key", red.trim())], [("open-sandbox-api-key", key)]);
    let make = |shown: &[(&str, &str)]| {
        let body = json!({ "image": { "uri": "host" } }).to_string();
        let made = server.request("POST", "/v1/sandboxes", shown, body.as_bytes()).json();
        made["id"].as_str().unwrap().to_owned()
    };
    let foreign = make(&operator);
    let mut ear = Ear::open(&server, "/v1/events", &red);
    assert_eq!(ear.next().unwrap().data, json!({ "items": [] }));
    let (foreign_too, own) = (make(&operator), make(&red));
    assert_eq!(ear.until("created").data["id"], own);
    for id in [&foreign, &foreign_too, &own] {
        server.request("DELETE", &format!("/v1/sandboxes/{id}"), &operator, b"");
    }
    assert_eq!(ear.until("ended").data["id"], own);
    let batch = json!({ "calls": [{ "sandbox": foreign, "exec": { "command": "true" } }] }).to_string();
    let refused = server.request("POST", "/v1/batch", &red, batch.as_bytes()).json();
    assert_eq!(refused["results"][0]["status"], 404);
}

#[test]
fn a_batch_is_done_in_order_in_each_box() {
    let server = Server::new();
    let (one, two) = (server.create(json!({})), server.create(json!({})));
    let exec = |id: &str, line: &str| json!({ "sandbox": id, "exec": { "command": line } });
    let calls = json!([
        exec(&one, "echo 1 >> /tmp/x"),
        exec(&two, "cat /tmp/x"),
        exec(&one, "echo 2 >> /tmp/x; false"),
        { "sandbox": one, "tool": "file_read", "params": { "path": "/tmp/x" } },
        { "sandbox": "nobody", "exec": { "command": "true" } },
        { "sandbox": two },
    ]);
    let answer = server.send("POST", "/v1/batch", &json!({ "calls": calls })).json();
    let results = answer["results"].as_array().unwrap();
    let statuses: Vec<u64> = results.iter().map(|result| result["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 404, 400], "{answer}");
    assert_eq!((&results[1]["body"]["exitCode"], &results[2]["body"]["exitCode"]), (&json!(1), &json!(1)));
    let read = results[3]["body"]["output"].as_str().unwrap();
    assert!(read.find('1') < read.find('2') && read.contains('2'), "{read}");
    // What comes after a failure is not done, if so wished.
    let calls = json!([exec(&one, "false"), exec(&one, "touch /tmp/y"), exec(&two, "true")]);
    let answer = server.send("POST", "/v1/batch", &json!({ "calls": calls, "stopOnFailure": true })).json();
    let statuses: Vec<&Value> = answer["results"].as_array().unwrap().iter().map(|r| &r["status"]).collect();
    assert_eq!(statuses, [200, 424, 200]);
    assert_eq!(server.run(&one, json!({ "command": "test -e /tmp/y" })).last().unwrap()["type"], "error");
    let many: Vec<Value> = (0..65).map(|_| exec(&one, "true")).collect();
    server
        .send("POST", "/v1/batch", &json!({ "calls": many }))
        .assert_error(400, "SANDBOX::INVALID_PARAMETER");
}

#[test]
fn a_key_that_is_revoked_ends_what_it_has_opened() {
    let house = House::new(Mode::all()[0]);
    let key = |name: &str| house.run(&["key", "add", name, "--operator"]).1.trim().to_owned();
    let (gone, stays) = (key("gone"), key("stays"));
    let server = Server::of(house, &[]);
    let open = |key: &str| {
        let mut ear = Ear::open(&server, "/v1/events", &[("open-sandbox-api-key", key)]);
        assert_eq!((ear.status, ear.next().unwrap().kind.as_str()), (200, "boxes"));
        ear
    };
    let (mut first, mut second) = (open(&gone), open(&stays));
    server.house.run(&["key", "revoke", "gone"]);
    assert!(first.next().is_none(), "it ends, and says nothing more");
    let made = server.request(
        "POST",
        "/v1/sandboxes",
        &[("open-sandbox-api-key", &stays), ("content-type", "application/json")],
        br#"{"image": {"uri": "host"}, "entrypoint": ["sleep", "60"]}"#,
    );
    assert_eq!(made.status, 202, "{}", String::from_utf8_lossy(&made.body));
    second.until("created");
}
