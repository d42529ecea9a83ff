//! The life of boxes, in the protocol's words.

use serde_json::{Value, json};

use crate::stage::{Answer, Server, execd};

/// Nothing in an answer may be `null`: the Python SDK breaks on it.
fn assert_no_null(value: &Value) {
    match value {
        Value::Null => panic!("there is a null"),
        Value::Array(items) => items.iter().for_each(assert_no_null),
        Value::Object(fields) => fields.values().for_each(assert_no_null),
        _ => {}
    }
}

#[test]
fn a_box_is_made_looked_at_and_ended() {
    let server = Server::new();
    let wanted = json!({ "image": { "uri": "host" }, "timeout": 600, "env": { "A": "1" }, "metadata": { "m": "v" },
        "entrypoint": ["tail", "-f", "/dev/null"], "secureAccess": false, "extensions": { "x": "y" } });
    let made = server.send("POST", "/v1/sandboxes", &wanted);
    assert_eq!(made.status, 202, "{made:?}");
    let made = made.json();
    assert_no_null(&made);
    let id = made["id"].as_str().unwrap();
    assert_eq!(made["status"]["state"], "Running");
    assert_eq!(made["entrypoint"], json!(["tail", "-f", "/dev/null"]));

    for path in [format!("/v1/sandboxes/{id}"), format!("/sandboxes/{id}")] {
        let seen = server.get(&path);
        assert_eq!(seen.status, 200);
        let seen = seen.json();
        assert_no_null(&seen);
        assert_eq!((&seen["id"], &seen["expiresAt"]), (&made["id"], &made["expiresAt"]));
        assert_eq!(seen["image"], json!({ "uri": "host" }));
        assert_eq!((&seen["metadata"], &seen["extensions"]), (&json!({ "m": "v" }), &json!({ "x": "y" })));
    }
    let (code, listed, _) = server.house.run(&["list"]);
    assert!(code == 0 && listed.contains(id), "the program sees the server's boxes: {listed}");
    assert_eq!(server.lines(id, "echo $A $OPENSANDBOX_ID"), [format!("1 {id}")]);

    assert_eq!(server.request("DELETE", &format!("/v1/sandboxes/{id}"), &[], b"").status, 204);
    server.get(&format!("/v1/sandboxes/{id}")).assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");
    server
        .request("DELETE", &format!("/v1/sandboxes/{id}"), &[], b"")
        .assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");
    server.get(&execd(id, "/ping")).assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");
    let left = std::fs::read_dir(server.house.home().join("server/sandboxes")).unwrap().count();
    assert_eq!(left, 0, "nothing is remembered of it");
}

#[test]
fn a_box_is_only_called_by_its_whole_id() {
    let server = Server::new();
    let id = server.create(json!({}));
    for name in [&id[..5], "..", "%2e%2e", "a%2Fb", "%00", "x"] {
        let answer = server.get(&format!("/v1/sandboxes/{name}"));
        assert_eq!(answer.status, 404, "{name}: {answer:?}");
    }
}

#[test]
fn what_cannot_be_made_is_refused_with_the_reason() {
    let server = Server::new();
    let check = |more: Value, status: u16, code: &str| {
        let mut wanted = json!({ "image": { "uri": "host" }, "entrypoint": ["true"] });
        wanted.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.send("POST", "/v1/sandboxes", &wanted).assert_error(status, code);
    };
    check(json!({ "timeout": 59 }), 400, "SANDBOX::INVALID_PARAMETER");
    check(json!({ "metadata": { "opensandbox.io/x": "y" } }), 400, "SANDBOX::INVALID_METADATA_LABEL");
    check(json!({ "entrypoint": [] }), 400, "DOCKER::INVALID_ENTRYPOINT");
    check(json!({ "networkPolicy": { "defaultAction": "allow" } }), 501, "SANDBOX::API_NOT_SUPPORTED");
    check(json!({ "snapshotId": "abc" }), 400, "SANDBOX::INVALID_PARAMETER");
    check(json!({ "image": null, "snapshotId": "nonesuch" }), 404, "SNAPSHOT::NOT_FOUND");
    check(json!({ "timeout": "soon" }), 400, "SANDBOX::INVALID_PARAMETER");
    let broken = server.request("POST", "/v1/sandboxes", &[("content-type", "application/json")], b"{");
    broken.assert_error(400, "SANDBOX::INVALID_PARAMETER");
    assert_eq!(server.get("/v1/sandboxes").json()["pagination"]["totalItems"], 0, "nothing was made");
}

#[test]
fn boxes_are_found_by_state_and_metadata_page_by_page() {
    let server = Server::new();
    let ids: Vec<String> = ["a", "b", "c"]
        .iter()
        .map(|name| server.create(json!({ "metadata": { "name": name, "of": "us" } })))
        .collect();
    let found = |query: &str| -> Vec<String> {
        let answer = server.get(&format!("/v1/sandboxes?{query}"));
        assert_eq!(answer.status, 200, "{answer:?}");
        let items = answer.json()["items"].as_array().unwrap().clone();
        items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
    };
    let newest_first: Vec<String> = ids.iter().rev().cloned().collect();
    assert_eq!(found(""), newest_first);
    // As the Python SDK encodes it, twice, and as the JavaScript one does, once.
    assert_eq!(found("metadata=name%3Db%26of%3Dus"), [ids[1].clone()]);
    assert_eq!(found("metadata=name%3D%2562"), [ids[1].clone()]);
    assert_eq!(found("metadata=name%3Db%26of%3Dthem"), Vec::<String>::new());
    assert_eq!(found("state=PAUSED&state=running").len(), 3);
    assert_eq!(found("state=Paused"), Vec::<String>::new());
    assert_eq!(found("pageSize=2&page=2"), [ids[0].clone()]);
    let page = server.get("/v1/sandboxes?pageSize=2").json()["pagination"].clone();
    let expected = json!({ "page": 1, "pageSize": 2, "totalItems": 3, "totalPages": 2, "hasNextPage": true });
    assert_eq!(page, expected);
    server.get("/v1/sandboxes?metadata=nonsense").assert_error(400, "INVALID_METADATA_FORMAT");
    server.get("/v1/sandboxes?pageSize=201").assert_error(400, "SANDBOX::INVALID_PARAMETER");
}

#[test]
fn metadata_is_patched() {
    let server = Server::new();
    let id = server.create(json!({ "metadata": { "a": "1", "b": "2" } }));
    let path = format!("/v1/sandboxes/{id}/metadata");
    let patched = server.send("PATCH", &path, &json!({ "a": null, "c": "3" }));
    assert_eq!((patched.status, &patched.json()["metadata"]), (200, &json!({ "b": "2", "c": "3" })));
    server
        .send("PATCH", &path, &json!({ "b": "not a label" }))
        .assert_error(400, "SANDBOX::INVALID_METADATA_LABEL");
    let seen = server.get(&format!("/v1/sandboxes/{id}")).json();
    assert_eq!(seen["metadata"], json!({ "b": "2", "c": "3" }));
}

#[test]
fn a_life_is_renewed_unless_it_has_no_end() {
    let server = Server::new();
    let id = server.create(json!({ "timeout": 60 }));
    let path = format!("/v1/sandboxes/{id}/renew-expiration");
    let in_an_hour = |server: &Server| {
        let created =
            server.get(&format!("/v1/sandboxes/{id}")).json()["createdAt"].as_str().unwrap().to_owned();
        // The same time tomorrow is a time to come, and no later than is allowed, but for the moments since.
        created.replace('Z', "-23:00")
    };
    let until = in_an_hour(&server);
    let renewed = server.send("POST", &path, &json!({ "expiresAt": until }));
    assert_eq!(renewed.status, 200, "{renewed:?}");
    let seen = server.get(&format!("/v1/sandboxes/{id}")).json();
    assert_eq!(seen["expiresAt"], renewed.json()["expiresAt"]);
    // What bounds the first time does not bound the next.
    let late = server.send("POST", &path, &json!({ "expiresAt": "2101-01-01T00:00:00+00:00" }));
    assert_eq!(late.status, 200, "{late:?}");
    for wrong in ["2001-01-01T00:00:00Z", "soon"] {
        server
            .send("POST", &path, &json!({ "expiresAt": wrong }))
            .assert_error(400, "DOCKER::INVALID_EXPIRATION");
    }
    let stays = server.create(json!({ "timeout": null }));
    assert_eq!(server.get(&format!("/v1/sandboxes/{stays}")).json().get("expiresAt"), None);
    let path = format!("/v1/sandboxes/{stays}/renew-expiration");
    server
        .send("POST", &path, &json!({ "expiresAt": until }))
        .assert_error(409, "DOCKER::INVALID_EXPIRATION");
}

#[test]
fn a_box_lives_on_with_the_requests_to_its_ports_if_its_maker_wants() {
    let server = Server::new();
    let extensions = json!({ "access.renew.extend.seconds": "300" });
    let id = server.create(json!({ "timeout": 60, "extensions": extensions }));
    let plain = server.create(json!({ "timeout": 60 }));
    let expires = |id: &str| server.get(&format!("/v1/sandboxes/{id}")).json()["expiresAt"].clone();
    let (first, of_plain) = (expires(&id), expires(&plain));
    let skip = [("opensandbox-access-renew", "skip")];
    assert_eq!(server.request("GET", &execd(&id, "/ping"), &skip, b"").status, 200);
    assert_eq!(expires(&id), first, "whoever looks without a wish changes nothing");
    assert_eq!(server.get(&execd(&id, "/ping")).status, 200);
    assert_eq!(server.get(&execd(&plain, "/ping")).status, 200);
    let later = expires(&id);
    assert!(later.as_str() > first.as_str(), "{first} {later}");
    assert_eq!(expires(&plain), of_plain);
    let wrong = json!({ "image": { "uri": "host" }, "extensions": { "access.renew.extend.seconds": "5" } });
    server.send("POST", "/v1/sandboxes", &wrong).assert_error(400, "SANDBOX::INVALID_PARAMETER");
}

#[test]
fn a_box_is_paused_with_its_files_and_goes_on() {
    let server = Server::new();
    let id = server.create(json!({}));
    server.lines(&id, "echo kept > /root/file");
    let post = |act: &str| server.request("POST", &format!("/v1/sandboxes/{id}/{act}"), &[], b"");
    post("resume").assert_error(409, "DOCKER::SANDBOX_NOT_PAUSED");
    let paused = post("pause");
    assert_eq!((paused.status, paused.body.len()), (202, 0));
    assert_eq!(server.get(&format!("/v1/sandboxes/{id}")).json()["status"]["state"], "Paused");
    post("pause").assert_error(409, "DOCKER::SANDBOX_NOT_RUNNING");
    server.get(&execd(&id, "/ping")).assert_error(409, "DOCKER::SANDBOX_NOT_RUNNING");
    assert_eq!(post("resume").status, 202);
    assert_eq!(server.get(&format!("/v1/sandboxes/{id}")).json()["status"]["state"], "Running");
    assert_eq!(server.lines(&id, "cat /root/file"), ["kept"]);
}

#[test]
fn a_box_ends_with_its_entrypoint() {
    let server = Server::new();
    for (line, state, how) in [
        ("exit 0", "Terminated", "the entrypoint exited with code 0"),
        ("exit 3", "Failed", "the entrypoint exited with code 3"),
    ] {
        // It waits for us, so that nothing is over before it is looked at.
        let script = format!("until [ -e /tmp/go ]; do sleep 0.05; done; {line}");
        let id = server.create(json!({ "entrypoint": ["sh", "-c", script] }));
        assert_eq!(server.get(&format!("/v1/sandboxes/{id}")).json()["status"]["state"], "Running");
        server.lines(&id, "touch /tmp/go");
        let status = loop {
            let status = server.get(&format!("/v1/sandboxes/{id}")).json()["status"].clone();
            if status["state"] != "Running" {
                break status;
            }
        };
        assert_eq!((&status["state"], &status["message"]), (&json!(state), &json!(how)));
        let resumed = server.request("POST", &format!("/v1/sandboxes/{id}/resume"), &[], b"");
        resumed.assert_error(409, "DOCKER::SANDBOX_NOT_PAUSED");
    }
}

#[test]
fn variables_of_the_way_to_the_network_are_looked_at_and_go_nowhere() {
    let server = Server::new();
    let env = json!({ "OPENSANDBOX_EGRESS_LOG_LEVEL": "debug", "OPENSANDBOX_EGRESS_MITMPROXY_TRANSPARENT": "true" });
    let id = server.create(json!({ "env": env }));
    let seen = server.lines(&id, "env | grep OPENSANDBOX_EGRESS");
    assert_eq!(seen, ["OPENSANDBOX_EGRESS_MITMPROXY_TRANSPARENT=true"]);
    let refused = |asked: Value| {
        let mut wanted = json!({ "image": { "uri": "host" } });
        wanted.as_object_mut().unwrap().extend(asked.as_object().unwrap().clone());
        server.send("POST", "/v1/sandboxes", &wanted).assert_error(400, "SANDBOX::INVALID_PARAMETER");
    };
    let policy = json!({ "defaultAction": "allow" });
    refused(json!({ "env": { "OPENSANDBOX_EGRESS_RULES": "x" } }));
    refused(json!({ "env": { "OPENSANDBOX_EGRESS_RULES": "x" }, "networkPolicy": policy }));
    let insecure = json!({ "OPENSANDBOX_EGRESS_MITMPROXY_SSL_INSECURE": "true" });
    refused(json!({ "env": insecure, "credentialProxy": { "enabled": true } }));
    let large = json!({ "image": { "uri": "host" }, "env": { "LARGE": "x".repeat(200_000) } });
    server.send("POST", "/v1/sandboxes", &large).assert_error(400, "DOCKER::SANDBOX_START_FAILED");
}

#[test]
fn a_program_of_opensandboxs_images_is_started_where_it_is_and_missed_nowhere_else() {
    let server = Server::new();
    let program = "/opt/code-interpreter/code-interpreter.sh";
    for missing in ["/opt/opensandbox/code-interpreter.sh", program] {
        let id = server.create(json!({ "entrypoint": [missing] }));
        assert_eq!(server.lines(&id, "echo here"), ["here"]);
        let seen = server.get(&format!("/v1/sandboxes/{id}")).json();
        assert_eq!((&seen["status"]["state"], &seen["entrypoint"]), (&json!("Running"), &json!([missing])));
    }
    let id = server.create(json!({}));
    let line = "mkdir -p /opt/code-interpreter; cd /opt/code-interpreter; printf '#!/bin/sh\nexit 3\n' > code-interpreter.sh";
    server.lines(&id, &format!("{line}; chmod +x code-interpreter.sh"));
    let snapshot = server.request("POST", &format!("/v1/sandboxes/{id}/snapshots"), &[], b"").json();
    let id = server.create(json!({ "image": null, "snapshotId": snapshot["id"], "entrypoint": [program] }));
    let state = || server.get(&format!("/v1/sandboxes/{id}")).json()["status"]["state"].clone();
    while state() == "Running" {}
    assert_eq!(state(), "Failed");
}

#[test]
fn an_entrypoint_has_the_variables_that_commands_have() {
    let server = Server::new();
    let script = "echo \"[$OPENSANDBOX_ID] [$EXECD_ENVS] [$A]\"; exec sleep 1000000";
    let id = server.create(json!({ "entrypoint": ["sh", "-c", script], "env": { "A": "b" } }));
    let expected = server.lines(&id, "echo \"[$OPENSANDBOX_ID] [$EXECD_ENVS] [$A]\"");
    assert!(expected[0].contains(&id));
    let logs = format!("/v1/sandboxes/{id}/diagnostics/logs?scope=container");
    let wrote = loop {
        let wrote = server.get(&logs).json()["content"].as_str().unwrap().to_owned();
        if !wrote.is_empty() {
            break wrote;
        }
    };
    assert_eq!(wrote.trim(), expected[0]);
}

#[test]
fn what_is_said_of_a_box_while_it_is_paused_and_resumed_is_not_lost() {
    let server = Server::new();
    let id = server.create(json!({}));
    for n in 0..20 {
        let post =
            |what: &str| server.request("POST", &format!("/v1/sandboxes/{id}/{what}"), &[], b"").status;
        assert_eq!(post("pause"), 202);
        let name = format!("n{n}");
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(post("resume"), 202));
            let path = format!("/v1/sandboxes/{id}/metadata");
            assert_eq!(server.send("PATCH", &path, &json!({ &name: "said" })).status, 200);
        });
        let seen = server.get(&format!("/v1/sandboxes/{id}")).json();
        assert_eq!(seen["metadata"][&name], "said", "{seen}");
    }
}

#[test]
fn a_snapshot_begins_another_box() {
    let server = Server::new();
    let id = server.create(json!({}));
    server.lines(&id, "echo kept > /root/file");
    // With an empty body, as the SDK sends it without a name.
    let taken = server.request("POST", &format!("/v1/sandboxes/{id}/snapshots"), &[], b"");
    assert_eq!(taken.status, 202, "{taken:?}");
    let snapshot = taken.json();
    assert_no_null(&snapshot);
    assert_eq!((&snapshot["status"]["state"], &snapshot["sandboxId"]), (&json!("Ready"), &json!(id)));
    let named =
        server.send("POST", &format!("/v1/sandboxes/{id}/snapshots"), &json!({ "name": "base" })).json();
    let found = server.get("/v1/snapshots?name=base").json();
    assert_eq!((&found["items"][0]["id"], &found["pagination"]["totalItems"]), (&named["id"], &json!(1)));
    // Names are for people: they need not differ, and may be any text.
    for _ in 0..2 {
        let named = server.send(
            "POST",
            &format!("/v1/sandboxes/{other}/snapshots", other = server.create(json!({}))),
            &json!({ "name": "before the upgrade" }),
        );
        assert_eq!((named.status, &named.json()["name"]), (202, &json!("before the upgrade")), "{named:?}");
    }
    let found = server.get("/v1/snapshots?name=before%20the%20upgrade").json();
    assert_eq!(found["pagination"]["totalItems"], 2);
    assert_eq!(
        server.get(&format!("/v1/snapshots?sandboxId={id}&state=ready")).json()["items"]
            .as_array()
            .unwrap()
            .len(),
        2
    );

    let from = snapshot["id"].as_str().unwrap();
    let other = server.create(json!({ "image": null, "snapshotId": from }));
    assert_eq!(server.lines(&other, "cat /root/file; id -un"), ["kept", "root"]);
    let seen = server.get(&format!("/v1/sandboxes/{other}")).json();
    assert_eq!((&seen["snapshotId"], seen.get("image")), (&snapshot["id"], None));
    assert_eq!(server.request("DELETE", &format!("/v1/snapshots/{from}"), &[], b"").status, 204);
    server.get(&format!("/v1/snapshots/{from}")).assert_error(404, "SNAPSHOT::NOT_FOUND");
}

#[test]
fn a_box_of_a_deterministic_snapshot_is_one_and_recorded_as_its_box_was() {
    let server = Server::new();
    let glass = |args: &[&str]| {
        let (code, out, err) = server.house.run(args);
        assert_eq!(code, 0, "{args:?}: {err}");
        out.trim_end().to_owned()
    };
    let snapshot = glass(&["snapshot", &glass(&["create", "--deterministic"])]);
    let kind = |more: Value| {
        let mut asked = json!({ "image": null, "snapshotId": snapshot });
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let info: Value = serde_json::from_str(&glass(&["info", &server.create(asked), "--json"])).unwrap();
        (info["deterministic"].clone(), info["recording"].clone())
    };
    assert_eq!(kind(json!({})), (json!(true), json!("steps")));
    let said = json!({ "extensions": { "glasshouse.recording": "commands" } });
    assert_eq!(kind(said), (json!(true), json!("commands")));
}

#[test]
fn ports_have_endpoints_and_the_policy_is_told() {
    let server = Server::new();
    let id = server.create(json!({}));
    for prefix in ["/v1", ""] {
        for port in [44772, 18080, 8000] {
            let answer =
                server.get(&format!("{prefix}/sandboxes/{id}/endpoints/{port}?use_server_proxy=false"));
            let expected = format!("{}{prefix}/sandboxes/{id}/proxy/{port}", server.address);
            assert_eq!(answer.json(), json!({ "endpoint": expected }));
        }
    }
    for port in ["0", "65536", "x"] {
        server.get(&format!("/v1/sandboxes/{id}/endpoints/{port}")).assert_error(400, "DOCKER::INVALID_PORT");
    }
    let policy = server.get(&format!("/v1/sandboxes/{id}/proxy/18080/policy")).json();
    assert_eq!(policy["policy"], json!({ "defaultAction": "deny", "egress": [] }));
    // A DELETE with a body, and rules that allow nothing.
    for path in
        [format!("/v1/sandboxes/{id}/proxy/18080/policy"), format!("/v1/sandboxes/{id}/networkpolicy")]
    {
        let rules = |answer: &Answer| answer.json()["policy"]["egress"].clone();
        let deny = |target: &str| json!({ "action": "deny", "target": target });
        let put =
            server.send("PUT", &path, &json!({ "defaultAction": "deny", "egress": [deny("pypi.org")] }));
        assert_eq!((put.status, rules(&put)), (200, json!([deny("pypi.org")])));
        let patched = server.send("PATCH", &path, &json!([deny("x"), deny("y")]));
        assert_eq!(rules(&patched), json!([deny("pypi.org"), deny("x"), deny("y")]));
        let again = server.send("PATCH", &path, &json!([deny("x"), deny("x")]));
        assert_eq!(rules(&again), json!([deny("pypi.org"), deny("y"), deny("x")]), "no target comes twice");
        let deleted = server.send("DELETE", &path, &json!(["pypi.org", "y"]));
        assert_eq!((deleted.status, rules(&deleted)), (200, json!([deny("x")])));
        assert_eq!(rules(&server.get(&path)), json!([deny("x")]));
        let allow = server.send("PATCH", &path, &json!([{ "action": "allow", "target": "x" }]));
        allow.assert_error(501, "SANDBOX::API_NOT_SUPPORTED");
    }
    let policy = json!({ "defaultAction": "deny", "egress": [{ "action": "deny", "target": "pypi.org" }] });
    let other = server.create(json!({ "networkPolicy": policy }));
    assert_eq!(server.get(&format!("/v1/sandboxes/{other}/networkpolicy")).json()["policy"], policy);
    let allow = server.send(
        "PUT",
        &format!("/v1/sandboxes/{other}/networkpolicy"),
        &json!({ "defaultAction": "allow" }),
    );
    allow.assert_error(501, "SANDBOX::API_NOT_SUPPORTED");
    for path in ["/credential-vault", "/credential-vault/credentials/x"] {
        let vault = server.get(&format!("/v1/sandboxes/{id}/proxy/18080{path}"));
        vault.assert_error(501, "SANDBOX::API_NOT_SUPPORTED");
    }
    let signed = format!("/v1/sandboxes/{id}/endpoints/8000?expires=4000000000");
    server.get(&signed).assert_error(501, "SANDBOX::API_NOT_SUPPORTED");
    server.get(&format!("{signed}&use_server_proxy=true")).assert_error(400, "SANDBOX::INVALID_PARAMETER");
    server.get(&format!("/v1/sandboxes/{id}/proxy/8000/")).assert_error(502, "BACKEND_CONNECTION_FAILED");
}

#[test]
fn what_is_not_there_says_so_in_the_same_shape() {
    let server = Server::new();
    server.get("/v1/nonsense").assert_error(404, "NOT_FOUND");
    server.request("PUT", "/v1/sandboxes", &[], b"").assert_error(405, "METHOD_NOT_ALLOWED");
    server.get("/v1/pools").assert_error(501, "KUBERNETES::POOL_NOT_SUPPORTED");
    server.get("/v1/templates").assert_error(501, "SANDBOX::API_NOT_SUPPORTED");
    assert_eq!(server.get("/health").json(), json!({ "status": "healthy" }));
    assert_eq!(server.get("/version").json()["version"], "1.1.1");
    assert_eq!(server.get("/ready").json()["status"], "ready");
    let event = json!({ "eventType": "sandbox.create", "createDurationMs": 1, "success": true });
    assert_eq!(server.send("POST", "/v1/metrics/events", &event).status, 204);
    let other = json!({ "eventType": "sandbox.sing", "createDurationMs": 1, "success": true });
    server.send("POST", "/v1/metrics/events", &other).assert_error(400, "SANDBOX::INVALID_PARAMETER");
    let told = server.get("/metrics").text();
    assert!(told.contains("glasshouse_client_creates_total{success=\"true\"} 1\n"), "{told}");
}

#[test]
fn the_api_is_told_as_openapi() {
    let server = Server::new();
    let api = server.get("/openapi.json").json();
    assert!(api["openapi"].as_str().unwrap().starts_with("3.1"), "{}", api["openapi"]);
    for (path, method) in [
        ("/v1/sandboxes", "post"),
        ("/v1/sandboxes/{id}/renew-expiration", "post"),
        ("/v1/sandboxes/{id}/proxy/44772/command", "post"),
        ("/v1/sandboxes/{id}/proxy/44772/files/upload", "post"),
        ("/v1/sandboxes/{id}/proxy/44772/command/{command}/logs", "get"),
        ("/v1/sandboxes/{id}/proxy/{port}/{rest}", "delete"),
        ("/v1/sandboxes/{id}/proxy/44772/proxy/{port}", "get"),
        ("/v1/sandboxes/{id}/proxy/44772/ready", "get"),
        ("/v1/sandboxes/{id}/proxy/44772/v1/isolated/session", "post"),
        ("/v1/sandboxes/{id}/proxy/18080/credential-vault", "patch"),
        ("/v1/pools", "post"),
        ("/v1/pools/{name}", "put"),
        ("/v1/templates/{id}", "delete"),
        ("/mcp", "post"),
        ("/health", "get"),
    ] {
        assert!(api["paths"][path][method].is_object(), "{method} {path} is not told");
    }
    let operations =
        api["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
    let mut names: Vec<&str> =
        operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "each operation has a name of its own");
    // Whatever is named is there.
    let text = api.to_string();
    for part in text.split("\"#/components/schemas/").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(api["components"]["schemas"][name].is_object(), "{name} is named and not told");
    }
}

#[test]
fn diagnostics_tell_what_happened_and_what_was_written() {
    let server = Server::new();
    let line = "echo from the entrypoint; exec sleep 1000";
    let id = server.create(json!({ "entrypoint": ["sh", "-c", line] }));
    server.lines(&id, "echo from a command");
    let of = |path: &str| server.get(&format!("/v1/sandboxes/{id}/diagnostics/{path}"));
    let content = |path: &str| of(path).json()["content"].as_str().unwrap().to_owned();
    while !content("logs?scope=container").contains("from the entrypoint") {}
    assert!(!content("logs?scope=container").contains("from a command"));
    let all = of("logs?scope=all").json();
    assert!(all["content"].as_str().unwrap().contains("from a command"), "{all}");
    let rest =
        json!({ "sandboxId": id, "kind": "logs", "scope": "all", "delivery": "inline", "truncated": false });
    for (name, value) in rest.as_object().unwrap() {
        assert_eq!(all[name], *value, "{all}");
    }
    let (lifecycle, runtime) = (content("events?scope=lifecycle"), content("events?scope=runtime"));
    assert!(
        lifecycle.contains("created from host") && !lifecycle.contains("echo from a command"),
        "{lifecycle}"
    );
    assert!(runtime.contains("echo from a command") && !runtime.contains("created from"), "{runtime}");
    of("logs?scope=kernel").assert_error(400, "DIAGNOSTICS_SCOPE_UNSUPPORTED");
    // As older clients ask.
    let legacy = of("events?limit=1");
    assert_eq!((legacy.header("deprecation"), legacy.text().lines().count()), (Some("true"), 1));
    assert!(of("inspect").text().contains("level: "));
    assert!(of("summary").text().contains("from the entrypoint"));
    for path in ["logs?scope=all", "logs?scope=container", "logs", "events?scope=all", "summary"] {
        let nobody = server.get(&format!("/v1/sandboxes/nobody/diagnostics/{path}"));
        nobody.assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");
    }
    let future = "2999-01-01T00:00:00Z";
    assert_eq!(content(&format!("events?scope=all&since={future}")), "");
    assert_eq!(of(&format!("events?since={future}")).text(), "");
    assert!(!content(&format!("logs?scope=all&since={future}")).contains("from a command"));
    assert!(content("logs?scope=all&since=1h").contains("from a command"));
    of("logs?scope=all&since=soon").assert_error(400, "SANDBOX::INVALID_PARAMETER");
    // The record is there when the box is not.
    assert_eq!(server.request("DELETE", &format!("/v1/sandboxes/{id}"), &[], b"").status, 204);
    assert!(content("events?scope=lifecycle").contains("ended: destroyed"));
    assert_eq!(content("logs?scope=container"), "from the entrypoint\n");
}

#[test]
fn what_an_entrypoint_wrote_is_told_when_it_has_ended() {
    let server = Server::new();
    let script = "until [ -e /tmp/go ]; do sleep 0.05; done; echo last words; echo of it >&2; exit 3";
    let id = server.create(json!({ "entrypoint": ["sh", "-c", script] }));
    server.lines(&id, "touch /tmp/go; echo not of it");
    while server.get(&format!("/v1/sandboxes/{id}")).json()["status"]["state"] == "Running" {}
    let logs = |query: &str| {
        let told = server.get(&format!("/v1/sandboxes/{id}/diagnostics/logs?{query}")).json();
        told["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(logs("scope=container"), "last words\nof it\n");
    assert_eq!(logs("scope=container&since=2999-01-01T00:00:00Z"), "");
    assert_eq!(logs("scope=all").matches("last words").count(), 1);
    let summary = server.get(&format!("/v1/sandboxes/{id}/diagnostics/summary")).text();
    assert!(summary.ends_with("Output of the entrypoint:\nlast words\nof it\n"), "{summary}");
    assert_eq!(server.request("DELETE", &format!("/v1/sandboxes/{id}"), &[], b"").status, 204);
    assert_eq!(logs("scope=container"), "last words\nof it\n");
}

#[test]
fn the_page_that_shows_the_api_uses_nothing_from_elsewhere() {
    let server = Server::new();
    let page = server.get("/docs");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    for path in ["/docs/page.css", "/docs/page.js"] {
        assert!(page.text().contains(path));
        let file = server.get(path);
        assert_eq!((file.status, file.header("x-content-type-options")), (200, Some("nosniff")), "{path}");
        assert!(!file.text().contains("://"), "{path}");
    }
    assert!(!page.text().contains("://"));
}

#[test]
fn labels_follow_metadata_however_they_are_looked_at() {
    let server = Server::new();
    let id = server.create(json!({ "metadata": { "a": "1", "b": "2" } }));
    let path = format!("/v1/sandboxes/{id}");
    let patch = |change: Value| server.send("PATCH", &format!("{path}/metadata"), &change);
    let listed = |id: &str| {
        let (code, told, stderr) = server.house.run(&["list", "--json"]);
        assert_eq!(code, 0, "{stderr}");
        let boxes: Value = serde_json::from_str(&told).unwrap();
        let info = boxes.as_array().unwrap().iter().find(|info| info["id"] == id).unwrap().clone();
        let labels = info["labels"].as_object().unwrap().iter();
        labels
            .filter(|(name, _)| !name.starts_with("opensandbox.io/"))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect::<Value>()
    };
    let changed = patch(json!({ "a": "9", "b": null, "c": "3" }));
    let wanted = json!({ "a": "9", "c": "3" });
    assert_eq!((changed.status, &changed.json()["metadata"]), (200, &wanted), "{changed:?}");
    assert_eq!((listed(&id), &server.get(&path).json()["metadata"]), (wanted.clone(), &wanted));
    patch(json!({ "d": "4", "bad key": "x" })).assert_error(400, "SANDBOX::INVALID_METADATA_LABEL");
    patch(json!({ "opensandbox.io/tenant": "red" })).assert_error(400, "SANDBOX::INVALID_METADATA_LABEL");
    assert_eq!(listed(&id), wanted);
    let forked = server.send("POST", &format!("{path}/fork"), &json!({})).json()["items"][0].clone();
    assert_eq!((&forked["metadata"], listed(forked["id"].as_str().unwrap())), (&wanted, wanted.clone()));
    // A box that lives is written down by others, too: none of them brings the old ones back.
    assert_eq!(server.send("POST", &format!("{path}/snapshots"), &json!({})).status, 202);
    assert_eq!(server.send("POST", &format!("{path}/reset"), &json!({})).json()["metadata"], wanted);
    let none = server.send("PATCH", "/v1/sandboxes/none/metadata", &json!({ "a": "1" }));
    none.assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");
    assert_eq!(listed(&id), wanted);
}

#[test]
fn what_an_older_server_remembered_as_metadata_becomes_labels() {
    let server = Server::new();
    let id = server.create(json!({ "metadata": { "a": "1" } }));
    let file = server.house.home().join("server/sandboxes").join(format!("{id}.json"));
    let mut record: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    record["metadata"] = json!({ "b": "2" });
    std::fs::write(&file, record.to_string()).unwrap();
    let server = server.killed_and_started();
    let told = server.get(&format!("/v1/sandboxes/{id}")).json();
    assert_eq!(
        (&told["metadata"], &told["expiresAt"].is_string()),
        (&json!({ "b": "2" }), &record["expires_ms"].is_u64())
    );
    let record: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(record.get("metadata"), None, "there is one truth: {record}");
    let (_, listed, _) = server.house.run(&["info", "--json", &id]);
    assert!(listed.contains(r#""b":"2""#) && !listed.contains(r#""a":"1""#), "{listed}");
}
