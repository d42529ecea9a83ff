//! Callers who go away before they are answered.

use std::collections::BTreeSet;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::stage::Server;

/// All that is on record is there in this time.
const WRITTEN: Duration = Duration::from_secs(60);

/// The calls of this kind that are on record, as soon as there are so many.
fn audited(server: &Server, method: &str, path: &str, count: usize) -> Vec<Value> {
    let file = server.house.home().join("server/audit.jsonl");
    let begun = Instant::now();
    loop {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        // The last line may be half written.
        let whole = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let found: Vec<Value> =
            whole.filter(|call| call["method"] == method && call["path"] == path).collect();
        if found.len() >= count {
            return found;
        }
        assert!(begun.elapsed() < WRITTEN, "{} of {count} calls are on record", found.len());
    }
}

#[test]
fn a_box_that_nobody_waits_for_is_made_to_the_end_or_not_at_all() {
    let server = Server::new();
    let wanted = json!({ "image": { "uri": "host" }, "timeout": 600, "entrypoint": ["sh", "-c", "exec sleep 1000000"] });
    const CALLS: usize = 12;
    let in_flight = |count: usize| {
        server.get("/metrics").text().contains(&format!("glasshouse_requests_in_flight {count}\n"))
    };
    for n in 0..CALLS {
        // None but the one that asks for this: what comes next is not taken for one before it.
        while !in_flight(1) {}
        let name = format!("call-{n}");
        let headers = [("content-type", "application/json"), ("x-request-id", name.as_str())];
        let stream = server.open("POST", "/v1/sandboxes", &headers, wanted.to_string().as_bytes());
        let is_on_record =
            || audited(&server, "POST", "/v1/sandboxes", 0).iter().any(|call| call["request_id"] == name);
        // What was never begun is nobody's affair: it is made, or was already.
        while !in_flight(2) && !is_on_record() {}
        stream.shutdown(Shutdown::Both).unwrap();
    }
    let calls = audited(&server, "POST", "/v1/sandboxes", CALLS);
    let made = calls.iter().filter(|call| call["status"] == 202).count();
    let listed = server.get("/v1/sandboxes?pageSize=200").json();
    let boxes = listed["items"].as_array().unwrap();
    assert_eq!(boxes.len(), made, "{calls:?}");
    let remembered: BTreeSet<String> = std::fs::read_dir(server.house.home().join("server/sandboxes"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
        .collect();
    for item in boxes {
        let id = item["id"].as_str().unwrap();
        assert!(remembered.contains(&format!("{id}.json")), "{id} is not remembered: {remembered:?}");
        assert_eq!(item["entrypoint"], wanted["entrypoint"], "{item}");
        let runs = server.lines(id, "pgrep -xc sleep || true");
        assert_eq!(runs, ["1"], "what it is to run runs");
    }
}

#[test]
fn a_question_that_nobody_waits_for_is_on_record() {
    let server = Server::new();
    let id = server.create(json!({}));
    let path = format!("/v1/sandboxes/{id}/exec");
    let body = json!({ "command": "sleep 1000" }).to_string();
    let stream = server.open("POST", &path, &[("content-type", "application/json")], body.as_bytes());
    while server.lines(&id, "pgrep -xc sleep || true") != ["1"] {}
    stream.shutdown(Shutdown::Both).unwrap();
    drop(stream);
    let calls = audited(&server, "POST", &path, 1);
    assert_eq!((calls.len(), &calls[0]["status"]), (1, &json!(499)), "{calls:?}");
    // The command goes on.
    assert_eq!(server.lines(&id, "pgrep -xc sleep"), ["1"]);
}
