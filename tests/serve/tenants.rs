//! Keys, tenants, and what each may do.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use glasshouse_tests::{House, Mode};
use serde_json::{Value, json};

use crate::stage::{Answer, Server, execd};

/// Makes a key. What its callers show.
fn key(house: &House, args: &[&str]) -> String {
    let (code, key, stderr) = house.run(&[&["key", "add"], args].concat());
    assert_eq!(code, 0, "{stderr}");
    key.trim().to_owned()
}

/// A server with these settings, and a house whose keys are made.
fn server(house: House, settings: &str) -> Server {
    let file = house.path().join("serve.toml");
    std::fs::write(&file, settings).unwrap();
    let file = file.to_str().unwrap().to_owned();
    Server::of(house, &["--config", &file])
}

/// Somebody with a key.
struct Somebody<'a> {
    server: &'a Server,
    key: &'a str,
}

impl Somebody<'_> {
    fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/json"), ("open-sandbox-api-key", self.key)];
        self.server.request(method, path, &headers, body.to_string().as_bytes())
    }

    fn get(&self, path: &str) -> Answer {
        self.server.request("GET", path, &[("open-sandbox-api-key", self.key)], b"")
    }

    fn try_create(&self, more: Value) -> Answer {
        let mut wanted = json!({ "image": { "uri": "host" } });
        wanted.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.send("POST", "/v1/sandboxes", &wanted)
    }

    fn create(&self) -> String {
        let answer = self.try_create(json!({}));
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    fn ids(&self, path: &str) -> Vec<String> {
        let listed = self.get(path).json();
        let items = listed["items"].as_array().unwrap_or_else(|| panic!("{listed}"));
        items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn keys_are_made_listed_and_revoked_while_a_server_runs() {
    let house = House::new(Mode::all()[0]);
    let first = key(&house, &["first", "--tenant", "red"]);
    let server = Server::of(house, &[]);
    let asked = |key: &str| server.request("GET", "/v1/sandboxes", &[("open-sandbox-api-key", key)], b"");
    assert_eq!(asked(&first).status, 200);
    server.get("/v1/sandboxes").assert_error(401, "MISSING_API_KEY");
    asked("glass_").assert_error(401, "INVALID_API_KEY");
    let second = key(&server.house, &["second", "--operator"]);
    assert_eq!(asked(&second).status, 200);
    let bearer = format!("Bearer {second}");
    assert_eq!(server.request("GET", "/v1/sandboxes", &[("authorization", &bearer)], b"").status, 200);
    let (_, listed, _) = server.house.run(&["key", "list", "--json"]);
    assert!(!listed.contains(&first) && !listed.contains(&second), "{listed}");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((&listed[0]["name"], &listed[0]["tenant"]), (&json!("first"), &json!("red")));
    assert_eq!(listed[1]["tenant"], Value::Null);
    for name in ["first", "second"] {
        assert_eq!(server.house.run(&["key", "revoke", name]).0, 0);
    }
    assert_eq!(server.house.run(&["key", "revoke", "first"]).0, 1);
    asked(&first).assert_error(401, "INVALID_API_KEY");
    // Without any key left, the door stays shut.
    server.get("/v1/sandboxes").assert_error(401, "MISSING_API_KEY");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_door_that_a_key_has_shut_stays_shut() {
    let server = Server::new();
    assert_eq!(server.get("/v1/sandboxes").status, 200);
    key(&server.house, &["only", "--operator"]);
    server.get("/v1/sandboxes").assert_error(401, "MISSING_API_KEY");
    assert_eq!(server.house.run(&["key", "revoke", "only"]).0, 0);
    server.get("/v1/sandboxes").assert_error(401, "MISSING_API_KEY");
}

/// All that can be done to a box.
const OF_A_BOX: [(&str, &str); 23] = [
    ("GET", ""),
    ("DELETE", ""),
    ("PATCH", "/metadata"),
    ("POST", "/pause"),
    ("POST", "/renew-expiration"),
    ("POST", "/snapshots"),
    ("GET", "/endpoints/44772"),
    ("GET", "/proxy/44772/ping"),
    ("POST", "/proxy/44772/command"),
    ("GET", "/proxy/44772/proxy/44772/ping"),
    ("GET", "/proxy/8000/"),
    ("POST", "/exec"),
    ("GET", "/tools"),
    ("POST", "/tools/shell"),
    ("POST", "/fork"),
    ("POST", "/reset"),
    ("POST", "/restore"),
    ("GET", "/diff"),
    ("GET", "/digest"),
    ("GET", "/trace"),
    ("GET", "/trace/verify"),
    ("POST", "/replay"),
    ("GET", "/networkpolicy"),
];

#[test]
fn a_tenant_sees_what_is_his_and_nothing_else() {
    let house = House::new(Mode::all()[0]);
    let keys = [["red", "--tenant", "red"], ["blue", "--tenant", "blue"]].map(|args| key(&house, &args));
    let all = key(&house, &["all", "--operator"]);
    let server = Server::of(house, &[]);
    let [red, blue] = [&keys[0], &keys[1]].map(|key| Somebody { server: &server, key });
    let operator = Somebody { server: &server, key: &all };
    let (mine, others, nobodys) = (red.create(), blue.create(), operator.create());

    assert_eq!(red.ids("/v1/sandboxes"), [mine.as_str()]);
    assert_eq!(blue.ids("/v1/sandboxes"), [others.as_str()]);
    assert_eq!(operator.ids("/v1/sandboxes").len(), 3);
    let of = |id: &str, path: &str| format!("/v1/sandboxes/{id}{path}");
    let exec =
        |who: &Somebody<'_>, id: &str| who.send("POST", &of(id, "/exec"), &json!({ "command": "true" }));
    assert_eq!((exec(&red, &mine).status, exec(&operator, &mine).status), (200, 200));
    let taken = red.send("POST", &of(&mine, "/snapshots"), &json!({})).json()["id"].clone();
    let snapshot = taken.as_str().unwrap();
    let fork = red.send("POST", &of(&mine, "/fork"), &json!({})).json();
    let fork = fork["items"][0]["id"].as_str().unwrap();
    assert!(red.ids("/v1/sandboxes").contains(&fork.to_owned()));

    for id in [&mine, &nobodys, fork] {
        for (method, path) in OF_A_BOX {
            blue.send(method, &of(id, path), &json!({})).assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");
            let bare = format!("/sandboxes/{id}{path}");
            blue.send(method, &bare, &json!({})).assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");
        }
    }
    // The same in other letters.
    let odd = format!("/v1/sandboxes/%{:02x}{}", mine.as_bytes()[0], &mine[1..]);
    blue.get(&odd).assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");
    assert_eq!(red.get(&odd).status, 200);

    // What a query or a body names.
    let path = format!("/v1/snapshots/{snapshot}");
    assert_eq!((red.get(&path).status, operator.get(&path).status), (200, 200));
    blue.get(&path).assert_error(404, "SNAPSHOT::NOT_FOUND");
    blue.send("DELETE", &path, &json!({})).assert_error(404, "SNAPSHOT::NOT_FOUND");
    assert_eq!((red.ids("/v1/snapshots").len(), blue.ids("/v1/snapshots").len()), (1, 0));
    let from = json!({ "snapshotId": snapshot });
    blue.send("POST", "/v1/sandboxes", &from).assert_error(404, "SNAPSHOT::NOT_FOUND");
    blue.send("POST", &of(&others, "/restore"), &from).assert_error(404, "SNAPSHOT::NOT_FOUND");
    for against in [snapshot, mine.as_str()] {
        blue.get(&of(&others, &format!("/diff?against={against}"))).assert_error(404, "SNAPSHOT::NOT_FOUND");
    }
    let record = json!({ "of": mine });
    blue.send("POST", &of(&others, "/replay"), &record).assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");

    // A record outlives its box, and stays whose it was.
    assert_eq!(red.send("DELETE", &of(&mine, ""), &json!({})).status, 204);
    assert_eq!((red.get(&of(&mine, "/trace")).status, operator.get(&of(&mine, "/trace")).status), (200, 200));
    blue.get(&of(&mine, "/trace")).assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");

    // A token of one box opens no other.
    let told = blue.get(&of(&others, "/endpoints/44772")).json();
    let token = told["headers"]["OpenSandbox-Secure-Access"].as_str().unwrap();
    let with =
        |id: &str| server.request("GET", &execd(id, "/ping"), &[("opensandbox-secure-access", token)], b"");
    assert_eq!((with(&others).status, with(fork).status), (200, 401));
}

#[test]
fn tenants_are_held_to_their_quotas() {
    let house = House::new(Mode::all()[0]);
    let keys = [["red", "--tenant", "red"], ["blue", "--tenant", "blue"]].map(|args| key(&house, &args));
    let settings = "[allowance]\nboxes = 2\n[tenants.blue]\nboxes = 0\nmemory_bytes = 300000000";
    let server = server(house, settings);
    let [red, blue] = [&keys[0], &keys[1]].map(|key| Somebody { server: &server, key });
    let (first, _) = (red.create(), red.create());
    red.try_create(json!({})).assert_error(403, "QUOTA_EXCEEDED");
    red.send("POST", &format!("/v1/sandboxes/{first}/fork"), &json!({})).assert_error(403, "QUOTA_EXCEEDED");
    let code = json!({ "language": "sh", "code": "true" });
    red.send("POST", "/v1/execute", &code).assert_error(403, "QUOTA_EXCEEDED");
    assert_eq!(red.send("DELETE", &format!("/v1/sandboxes/{first}"), &json!({})).status, 204);
    red.create();
    let memory = |bytes: u64| json!({ "resourceLimits": { "memory": bytes.to_string() } });
    blue.try_create(json!({})).assert_error(403, "QUOTA_EXCEEDED");
    blue.try_create(memory(300_000_001)).assert_error(403, "QUOTA_EXCEEDED");
    let made = blue.try_create(memory(200_000_000));
    // Where nothing enforces a limit of memory, a box with one is refused before it counts.
    if made.status == 202 {
        blue.try_create(memory(200_000_000)).assert_error(403, "QUOTA_EXCEEDED");
    }
}

#[test]
fn whoever_calls_too_often_is_told_when_to_try_again() {
    let house = House::new(Mode::all()[0]);
    let (red, all) = (key(&house, &["red", "--tenant", "red"]), key(&house, &["all", "--operator"]));
    let server = server(house, "[allowance]\nrequests_per_s = 0.001\nburst = 3");
    let (red, operator) = (Somebody { server: &server, key: &red }, Somebody { server: &server, key: &all });
    for _ in 0..3 {
        assert_eq!(red.get("/v1/sandboxes").status, 200);
    }
    let late = red.get("/v1/sandboxes");
    late.assert_error(429, "RATE_LIMITED");
    let seconds: u64 = late.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=1001).contains(&seconds), "{seconds}");
    for _ in 0..10 {
        assert_eq!(operator.get("/v1/sandboxes").status, 200);
    }
    assert!(operator.get("/metrics").text().contains("\nglasshouse_rate_limited_total 1\n"));
}

#[test]
fn calls_are_counted_and_on_record_with_the_names_of_their_keys() {
    let house = House::new(Mode::all()[0]);
    let (red, all) = (key(&house, &["red-key", "--tenant", "red"]), key(&house, &["all", "--operator"]));
    let mut server = Server::of(house, &[]);
    {
        let (red, operator) =
            (Somebody { server: &server, key: &red }, Somebody { server: &server, key: &all });
        red.create();
        red.get("/v1/sandboxes?secret=hidden");
        server.get("/v1/sandboxes").assert_error(401, "MISSING_API_KEY");
        red.get("/metrics").assert_error(403, "OPERATORS_ONLY");
        let told = operator.get("/metrics").text();
        for line in ["glasshouse_boxes{state=\"running\"} 1", "glasshouse_requests_total{status=\"2xx\"} 2"] {
            assert!(told.lines().any(|found| found == line), "{line}: {told}");
        }
    }
    assert_eq!(server.stop(), Some(0));
    let text = std::fs::read_to_string(server.house.home().join("server/audit.jsonl")).unwrap();
    assert!(!text.contains("hidden") && !text.contains(&red) && !text.contains(&all));
    let calls: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seen: Vec<_> = calls.iter().map(|call| (&call["key"], &call["tenant"], &call["status"])).collect();
    let (red, name, none) = (json!("red-key"), json!("red"), Value::Null);
    let status = [202, 200, 401, 403].map(|status| json!(status));
    assert_eq!(
        seen[..4],
        [
            (&red, &name, &status[0]),
            (&red, &name, &status[1]),
            (&none, &none, &status[2]),
            (&red, &name, &status[3])
        ]
    );
    assert_eq!((&calls[0]["method"], &calls[0]["path"]), (&json!("POST"), &json!("/v1/sandboxes")));
}

#[test]
fn clients_that_send_too_much_are_told() {
    let server = server(House::new(Mode::all()[0]), "[bounds]\njson_bytes = 1000");
    let large = json!({ "image": { "uri": "x".repeat(2000) } });
    assert_eq!(server.send("POST", "/v1/sandboxes", &large).status, 413);
}

#[test]
fn clients_that_do_not_finish_a_head_are_let_go_of() {
    // Nothing else is asked of this server: who is slow because the machine is would be let go of, too.
    let server = server(House::new(Mode::all()[0]), "[bounds]\nheader_timeout_ms = 200");
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: ").unwrap();
    // It ends, whatever is said: the other side has given up.
    stream.read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn clients_that_do_not_finish_a_body_are_let_go_of() {
    let server = server(House::new(Mode::all()[0]), "[bounds]\nbody_timeout_ms = 200");
    let headers = [("content-type", "application/json"), ("transfer-encoding", "chunked")];
    let mut stream = server.open("POST", "/v1/sandboxes", &headers, b"1\r\n{\r\n");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn clients_that_do_not_take_their_answer_are_let_go_of_and_their_commands_go_on() {
    let server = server(House::new(Mode::all()[0]), "[bounds]\nanswer_timeout_ms = 200");
    let id = server.create(json!({}));
    server.lines(&id, "mkfifo /tmp/over");
    // More than all that is between the command and its client can hold.
    let line = json!({ "command": "head -c 50000000 /dev/zero | tr '\\0' '\\n'; echo over > /tmp/over" });
    let json = [("content-type", "application/json")];
    let mut slow = server.open("POST", &execd(&id, "/command"), &json, line.to_string().as_bytes());
    assert_eq!(server.lines(&id, "cat /tmp/over"), ["over"]);
    // What comes is what was on its way, and no end.
    let mut got = Vec::new();
    let _ = slow.read_to_end(&mut got);
    assert!(!String::from_utf8_lossy(&got).contains("execution_complete"));
}

#[test]
fn what_happens_is_told_in_lines_with_the_ids_of_requests() {
    let house = House::new(Mode::all()[0]);
    let (file, log) = (house.path().join("serve.toml"), house.path().join("log"));
    std::fs::write(&file, "listen = \"127.0.0.1:0\"\nlog = \"calls\"").unwrap();
    let mut command = house.glass(&["serve", "--config", file.to_str().unwrap()]);
    command.stderr(std::fs::File::create(&log).unwrap()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let mut server = Server::at(child, url.trim(), house);
    let named = |id: &'static str| [("x-request-id", id), ("content-type", "application/json")];
    let missing = json!({ "image": { "uri": "127.0.0.1:1/none" } }).to_string();
    server.request("GET", "/v1/sandboxes?secret=hidden", &named("first"), b"");
    let failed = server.request("POST", "/v1/sandboxes", &named("second"), missing.as_bytes());
    failed.assert_error(500, "DOCKER::SANDBOX_IMAGE_PULL_FAILED");
    assert_eq!(server.stop(), Some(0));
    let text = std::fs::read_to_string(log).unwrap();
    assert!(!text.contains("hidden"), "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |what: &str| {
        lines.iter().find(|line| line["what"] == what).unwrap_or_else(|| panic!("{what}: {text}"))
    };
    assert_eq!((&told("call")["request_id"], &told("call")["status"]), (&json!("first"), &json!(200)));
    let failed = told("failed");
    assert_eq!((&failed["request_id"], &failed["level"]), (&json!("second"), &json!("error")));
    assert!(failed["message"].as_str().unwrap().contains("127.0.0.1:1/none"), "{failed}");
    told("serving");
    told("stopped");
}

#[test]
fn settings_that_nobody_knows_are_refused_and_all_are_told() {
    let house = House::new(Mode::all()[0]);
    let file = house.path().join("serve.toml");
    std::fs::write(&file, "lisen = \"127.0.0.1:1\"").unwrap();
    let (code, _, stderr) = house.run(&["serve", "--config", file.to_str().unwrap()]);
    assert!(code == 1 && stderr.contains("lisen"), "{code} {stderr}");
    let (code, _, stderr) = house.run(&["serve", "--listen", "0.0.0.0:0"]);
    assert!(code == 1 && stderr.contains("without a key"), "{code} {stderr}");
    let (code, told, _) = house.run(&["serve", "--show-config"]);
    assert!(code == 0 && told.contains("[bounds]\n"));
    // What is told is itself a file of settings.
    std::fs::write(&file, told.replace("127.0.0.1:8080", "127.0.0.1:0")).unwrap();
    let server = Server::of(house, &["--config", file.to_str().unwrap()]);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn agents_over_http_reach_the_boxes_of_their_tenant() {
    let house = House::new(Mode::all()[0]);
    let keys = [["red", "--tenant", "red"], ["blue", "--tenant", "blue"]].map(|args| key(&house, &args));
    let server = server(house, "[allowance]\nboxes = 1");
    let call = |key: &str, name: &str, arguments: Value| {
        let params = json!({ "name": name, "arguments": arguments });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
        let bearer = format!("Bearer {key}");
        let accepts = ("accept", "application/json, text/event-stream");
        let headers = [("content-type", "application/json"), accepts, ("authorization", bearer.as_str())];
        let answer = server.request("POST", "/mcp", &headers, body.as_bytes());
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["result"].clone()
    };
    let made = call(&keys[0], "create_sandbox", json!({}));
    let id = made["structuredContent"]["sandbox_id"].as_str().unwrap_or_else(|| panic!("{made}"));
    let shell = json!({ "sandbox_id": id, "command": "echo here" });
    assert_eq!(call(&keys[0], "shell", shell.clone())["structuredContent"]["output"], "here\n");
    assert_eq!(call(&keys[1], "shell", shell)["isError"], true);
    assert_eq!(call(&keys[1], "list_sandboxes", json!({}))["structuredContent"], json!({ "sandboxes": [] }));
    assert_eq!(
        call(&keys[0], "fork_sandbox", json!({ "sandbox_id": id }))["isError"],
        true,
        "one is allowed"
    );
    let [red, blue] = [&keys[0], &keys[1]].map(|key| Somebody { server: &server, key });
    assert_eq!((red.ids("/v1/sandboxes"), blue.ids("/v1/sandboxes").len()), (vec![id.to_owned()], 0));
    let without = server.request("POST", "/mcp", &[("content-type", "application/json")], b"{}");
    without.assert_error(401, "MISSING_API_KEY");
}

#[test]
fn agents_whose_tenant_is_counted_get_boxes_with_limits() {
    let house = House::new(Mode::all()[0]);
    let red = key(&house, &["red", "--tenant", "red"]);
    let server = server(house, "[allowance]\nmemory_bytes = 3000000000\ndisk_bytes = 300000000");
    let call = |name: &str, arguments: Value| {
        let params = json!({ "name": name, "arguments": arguments });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
        let accepts = ("accept", "application/json, text/event-stream");
        let headers = [("content-type", "application/json"), accepts, ("open-sandbox-api-key", red.as_str())];
        server.request("POST", "/mcp", &headers, body.as_bytes()).json()["result"].clone()
    };
    let made = call("create_sandbox", json!({}));
    let id = made["structuredContent"]["sandbox_id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    let (_, told, _) = server.house.run(&["info", "--json", &id]);
    assert!(told.contains("2147483648") && told.contains("300000000"), "{told}");
    let second = call("create_sandbox", json!({}));
    assert_eq!(second["isError"], true, "there is no room for two: {second}");
    let named = call("sandbox_snapshot", json!({ "sandbox_id": id, "label": "before" }));
    assert_eq!(named["structuredContent"]["name"], "before", "{named}");
    let found =
        server.request("GET", "/v1/snapshots?name=before", &[("open-sandbox-api-key", &red)], b"").json();
    assert_eq!(found["items"][0]["id"], named["structuredContent"]["snapshot_id"], "{found}");
    for label in ["before", "before the fix"] {
        let again =
            call("sandbox_snapshot", json!({ "sandbox_id": id, "label": label }))["structuredContent"]
                .clone();
        assert_eq!((&again["label"], &again["name"]), (&json!(label), &Value::Null), "{again}");
    }
}

#[test]
fn the_token_of_an_endpoint_ends_with_the_key_that_it_was_given_to() {
    let house = House::new(Mode::all()[0]);
    let (one, other) = (key(&house, &["one", "--tenant", "red"]), key(&house, &["other", "--tenant", "red"]));
    let server = server(house, "");
    let (one, other) = (Somebody { server: &server, key: &one }, Somebody { server: &server, key: &other });
    let id = one.create();
    let token = |who: &Somebody| {
        let told = who.get(&format!("/v1/sandboxes/{id}/endpoints/44772")).json();
        told["headers"]["OpenSandbox-Secure-Access"].as_str().unwrap().to_owned()
    };
    let (ones, others) = (token(&one), token(&other));
    assert_ne!(ones, others);
    let ping = |token: &str| {
        server.request("GET", &execd(&id, "/ping"), &[("opensandbox-secure-access", token)], b"").status
    };
    assert_eq!((ping(&ones), ping(&others), ping("one.00"), ping("")), (200, 200, 401, 401));
    let (code, _, stderr) = server.house.run(&["key", "revoke", "one"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!((ping(&ones), ping(&others)), (401, 200));
    // One that is called the same is another one.
    key(&server.house, &["one", "--tenant", "red"]);
    assert_eq!(ping(&ones), 401);
    let (code, _, stderr) = server.house.run(&["key", "add", "key-file", "--operator"]);
    assert!(code != 0 && stderr.contains("--key-file"), "{stderr}");
}

#[test]
fn volumes_are_given_from_allowed_directories_and_to_each_tenant_his_own() {
    let house = House::new(Mode::all()[0]);
    let red = key(&house, &["r", "--tenant", "red"]);
    let root = key(&house, &["root", "--operator"]);
    let base = house.path().join("volumes");
    for dir in ["all/deep", "of/red", "of/blue"] {
        std::fs::create_dir_all(base.join(dir)).unwrap();
    }
    std::fs::write(base.join("all/deep/marker"), "found").unwrap();
    let at = |dir: &str| base.join(dir).to_str().unwrap().to_owned();
    let server = server(house, &format!("volumes = [{:?}, {:?}]", at("all"), at("of/{tenant}")));
    let (red, root) = (Somebody { server: &server, key: &red }, Somebody { server: &server, key: &root });
    let volume = |path: &str, more: Value| {
        let mut volume = json!({ "name": "v", "mountPath": "/data", "host": { "path": path } });
        volume.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "volumes": [volume] })
    };
    let run = |who: &Somebody, made: &Answer, line: &str| {
        assert_eq!(made.status, 202, "{made:?}");
        let path = format!("/v1/sandboxes/{}/exec", made.json()["id"].as_str().unwrap());
        let done = who.send("POST", &path, &json!({ "command": line })).json();
        (done["exitCode"].as_i64().unwrap(), done["stdout"].as_str().unwrap().to_owned())
    };
    let made = root.try_create(volume(&at("all"), json!({ "subPath": "deep", "readOnly": true })));
    assert_eq!(run(&root, &made, "cat /data/marker; touch /data/x"), (1, "found".to_owned()));
    for (who, path) in [(&root, "of/red"), (&red, "all"), (&red, "of/blue"), (&red, "of"), (&root, "")] {
        let refused = who.try_create(volume(&at(path), json!({})));
        refused.assert_error(400, "VOLUME::HOST_PATH_NOT_ALLOWED");
    }
    let escaping = red.try_create(volume(&at("of/red/../blue"), json!({})));
    escaping.assert_error(400, "VOLUME::INVALID_HOST_PATH");
    let made = red.try_create(volume(&at("of/red"), json!({})));
    // Whether the box's user may write there is a matter of the directory's owner.
    assert_eq!(run(&red, &made, "test -d /data && echo yes").1, "yes\n");
}

#[test]
fn volumes_that_are_missing_are_made_and_those_with_a_name_are_found_again() {
    let house = House::new(Mode::all()[0]);
    let [red, blue] = ["red", "blue"].map(|tenant| key(&house, &[tenant, "--tenant", tenant]));
    let root = key(&house, &["root", "--operator"]);
    let base = house.path().join("volumes");
    for dir in ["all", "of", "outside"] {
        std::fs::create_dir_all(base.join(dir)).unwrap();
    }
    std::os::unix::fs::symlink(base.join("outside"), base.join("all/link")).unwrap();
    let at = |dir: &str| base.join(dir).to_str().unwrap().to_owned();
    let server = server(house, &format!("volumes = [{:?}, {:?}]", at("all"), at("of/{tenant}")));
    let [red, blue, root] = [&red, &blue, &root].map(|key| Somebody { server: &server, key });
    let volume = |source: Value| {
        let mut volume = json!({ "name": "v", "mountPath": "/data" });
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        json!({ "volumes": [volume] })
    };
    let run = |who: &Somebody, source: Value, line: &str| {
        let made = who.try_create(volume(source));
        assert_eq!(made.status, 202, "{made:?}");
        let path = format!("/v1/sandboxes/{}/exec", made.json()["id"].as_str().unwrap());
        who.send("POST", &path, &json!({ "command": line })).json()["stdout"].as_str().unwrap().to_owned()
    };
    let missing = json!({ "host": { "path": at("all/new/er") }, "subPath": "sub" });
    assert_eq!(run(&root, missing, "echo x > /data/f; cat /data/f"), "x\n");
    assert!(base.join("all/new/er/sub/f").is_file());
    let through = root.try_create(volume(json!({ "host": { "path": at("all/link/x") } })));
    assert!(through.status >= 400 && !base.join("outside/x").exists(), "{through:?}");

    let claim = json!({ "pvc": { "claimName": "cache" } });
    assert_eq!(run(&red, claim.clone(), "echo of red > /data/f; cat /data/f"), "of red\n");
    assert_eq!(run(&red, claim.clone(), "cat /data/f"), "of red\n", "it outlives its box");
    assert_eq!(run(&blue, claim.clone(), "ls /data"), "", "tenants are apart");
    assert!(base.join("of/red/cache/f").is_file() && base.join("of/blue/cache").is_dir());
    let mut strict = claim;
    strict["pvc"]["createIfNotExists"] = json!(false);
    assert_eq!(red.try_create(volume(strict.clone())).status, 202);
    strict["pvc"]["claimName"] = json!("none");
    red.try_create(volume(strict)).assert_error(404, "VOLUME::PVC_NOT_FOUND");
    red.try_create(volume(json!({ "pvc": { "claimName": "../blue" } })))
        .assert_error(400, "VOLUME::INVALID_PVC_NAME");
}

#[test]
fn disk_is_counted_where_it_is_bounded() {
    let house = House::new(Mode::all()[0]);
    let red = key(&house, &["r", "--tenant", "red"]);
    let server = server(house, "[allowance]\ndisk_bytes = 100000000");
    let red = Somebody { server: &server, key: &red };
    red.try_create(json!({})).assert_error(403, "QUOTA_EXCEEDED");
    let of =
        |amount: &str| red.try_create(json!({ "resourceLimits": { "disk": amount, "memory": "512Mi" } }));
    assert_eq!(of("60M").status, 202);
    of("60M").assert_error(403, "QUOTA_EXCEEDED");
    of("x").assert_error(400, "SANDBOX::INVALID_PARAMETER");
    let small = of("15M");
    let fork = format!("/v1/sandboxes/{}/fork", small.json()["id"].as_str().unwrap());
    assert_eq!(red.send("POST", &fork, &json!({})).status, 201);
    red.send("POST", &fork, &json!({})).assert_error(403, "QUOTA_EXCEEDED");
}

#[test]
fn what_is_counted_is_sent_to_a_collector() {
    let collector = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let settings = format!("[telemetry]\nendpoint = {endpoint:?}\ninterval_ms = 100");
    let server = server(House::new(Mode::all()[0]), &settings);
    // The first time it says nothing, and is tried again.
    drop(collector.accept().unwrap());
    let (mut stream, _) = collector.accept().unwrap();
    let (mut request, mut piece) = (Vec::new(), [0; 4096]);
    let body = loop {
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "{}", String::from_utf8_lossy(&request));
        request.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
            if let Ok(body) = serde_json::from_str::<Value>(body) {
                break body;
            }
        }
    };
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
    let metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap();
    let of = |name: &str| metrics.iter().find(|metric| metric["name"] == name).unwrap();
    let failed = &of("glasshouse_telemetry_failed_total")["sum"]["dataPoints"][0]["asDouble"];
    assert_eq!(*failed, 1.0, "{body}");
    assert!(of("glasshouse_request_duration_seconds")["histogram"].is_object());
    assert_eq!(server.get("/health").status, 200);
}
