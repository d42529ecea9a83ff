//! Who is let in.

use glasshouse_tests::{House, Mode};
use serde_json::{Value, json};

use crate::stage::{Answer, Server, execd, started};

const KEY: &str = "a-key-that-nobody-guesses";

#[test]
fn strangers_are_not_served_without_a_key() {
    let house = House::new(Mode::all()[0]);
    let (code, stdout, stderr) = house.run(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("without a key"), "{stderr}");
}

#[test]
fn a_key_is_asked_for_and_never_said() {
    let server = Server::with_key(KEY);
    let with = |key: &str| server.request("GET", "/v1/sandboxes", &[("OPEN-SANDBOX-API-KEY", key)], b"");
    server.get("/v1/sandboxes").assert_error(401, "MISSING_API_KEY");
    with("wrong").assert_error(401, "INVALID_API_KEY");
    with("").assert_error(401, "INVALID_API_KEY");
    assert_eq!(with(KEY).status, 200);
    for open in ["/health", "/ready", "/version", "/openapi.json"] {
        let answer = server.get(open);
        assert_eq!(answer.status, 200, "{open}");
        assert!(!answer.text().contains(KEY));
    }
    // What looks like an open path is none.
    for path in ["/health/../v1/sandboxes", "//health", "/v1/health", "/healthx"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
}

#[test]
fn an_endpoint_is_used_with_the_token_that_came_with_it() {
    let server = Server::with_key(KEY);
    let key = [("OPEN-SANDBOX-API-KEY", KEY), ("content-type", "application/json")];
    let create = || {
        let wanted = json!({ "image": { "uri": "host" }, "entrypoint": ["tail", "-f", "/dev/null"] });
        let made = server.request("POST", "/v1/sandboxes", &key, wanted.to_string().as_bytes());
        made.json()["id"].as_str().unwrap().to_owned()
    };
    let (id, other) = (create(), create());
    let endpoint = server.request("GET", &format!("/v1/sandboxes/{id}/endpoints/44772"), &key, b"").json();
    let token = endpoint["headers"]["OpenSandbox-Secure-Access"].as_str().unwrap();
    let token = [("OpenSandbox-Secure-Access", token)];
    assert_eq!(server.request("GET", &execd(&id, "/ping"), &token, b"").status, 200);
    // So do those who know nothing but execd, and those whose own affairs need an Authorization.
    let execds = [("X-EXECD-ACCESS-TOKEN", endpoint["headers"]["X-EXECD-ACCESS-TOKEN"].as_str().unwrap())];
    assert_eq!(server.request("GET", &execd(&id, "/ping"), &execds, b"").status, 200);
    let own = [token[0], ("Authorization", "Bearer of-their-own")];
    assert_eq!(server.request("GET", &execd(&id, "/ping"), &own, b"").status, 200);
    let ports = server.request("GET", &format!("/v1/sandboxes/{id}/endpoints/8000"), &key, b"").json();
    assert_eq!(ports["headers"].as_object().unwrap().len(), 1);
    assert_eq!(server.request("GET", &execd(&id, "/ping"), &key, b"").status, 200);
    server.get(&execd(&id, "/ping")).assert_error(401, "MISSING_API_KEY");
    // It opens this box's endpoints, and nothing else.
    server.request("GET", &execd(&other, "/ping"), &token, b"").assert_error(401, "MISSING_API_KEY");
    server
        .request("DELETE", &format!("/v1/sandboxes/{id}"), &token, b"")
        .assert_error(401, "MISSING_API_KEY");
    server.request("GET", "/v1/sandboxes", &token, b"").assert_error(401, "MISSING_API_KEY");
}

#[test]
fn pages_of_other_sites_are_not_answered() {
    let server = Server::new();
    let check = |headers: &[(&str, &str)], status: u16| {
        let event = br#"{"eventType":"sandbox.create","createDurationMs":1,"success":true}"#;
        let answer = server.request("POST", "/v1/metrics/events", headers, event);
        assert_eq!(answer.status, status, "{headers:?}: {answer:?}");
    };
    let ours = format!("http://{}", server.address);
    check(&[("origin", &ours)], 204);
    check(&[("host", "localhost:1")], 204);
    check(&[("origin", "https://evil.example")], 403);
    check(&[("host", "evil.example")], 403);
    check(&[("sec-fetch-site", "cross-site")], 403);
}

#[test]
fn pages_of_other_sites_reach_nothing_by_reading_and_links_lead_to_the_viewer() {
    let server = Server::new();
    let id = server.create(json!({}));
    let port = format!("/v1/sandboxes/{id}/proxy/8000/");
    let mode = |mode, dest| [("sec-fetch-mode", mode), ("sec-fetch-dest", dest)];
    let (link, frame, image) =
        (mode("navigate", "document"), mode("navigate", "iframe"), mode("no-cors", "image"));
    let check = |path: &str, site: &str, more: &[(&str, &str)], status: u16| {
        let headers = [&[("sec-fetch-site", site)], more].concat();
        let answer = server.request("GET", path, &headers, b"");
        assert_eq!(answer.status, status, "{path} {headers:?}: {answer:?}");
        if status == 403 {
            answer.assert_error(403, "FOREIGN_REQUEST");
        }
    };
    for site in ["cross-site", "same-site"] {
        for path in
            ["/v1/sandboxes", port.as_str(), &execd(&id, "/files/info?path=/etc"), "/viewer/boxes", "/health"]
        {
            for how in [link, frame, image] {
                check(path, site, &how, 403);
            }
        }
        for page in ["/", "/docs"] {
            check(page, site, &link, 200);
            check(page, site, &frame, 403);
            check(page, site, &image, 403);
        }
    }
    // Nobody listens there, which only who comes through hears.
    for site in ["same-origin", "none"] {
        check("/v1/sandboxes", site, &image, 200);
        check(&port, site, &link, 502);
    }
}

#[test]
fn pages_of_other_sites_that_have_a_key_are_answered() {
    let server = Server::with_key(KEY);
    let page = ("origin", "https://elsewhere.example");
    let ask = [
        page,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "open-sandbox-api-key"),
    ];
    let asked = server.request("OPTIONS", "/v1/sandboxes", &ask, b"");
    let says = |answer: &Answer, name: &str| answer.header(name).map(str::to_owned);
    assert_eq!((asked.status, says(&asked, "access-control-allow-origin").as_deref()), (204, Some("*")));
    assert_eq!(says(&asked, "access-control-allow-headers").as_deref(), Some("open-sandbox-api-key"));
    assert!(says(&asked, "access-control-allow-methods").unwrap().contains("POST"));
    assert_eq!(says(&asked, "access-control-allow-credentials"), None);
    let listed = server.request("GET", "/v1/sandboxes", &[page, ("open-sandbox-api-key", KEY)], b"");
    assert_eq!((listed.status, says(&listed, "access-control-allow-origin").as_deref()), (200, Some("*")));
    let refused = server.request("GET", "/v1/sandboxes", &[page], b"");
    refused.assert_error(401, "MISSING_API_KEY");
    assert_eq!(says(&refused, "access-control-allow-origin").as_deref(), Some("*"), "why, may be read");
    // Without a key of its own a server answers no pages but its own.
    let open = Server::new();
    open.request("OPTIONS", "/v1/sandboxes", &ask, b"").assert_error(403, "FOREIGN_REQUEST");
    assert_eq!(says(&open.get("/v1/sandboxes"), "access-control-allow-origin"), None);
}

#[test]
fn every_answer_has_the_id_of_its_request() {
    let open = Server::new();
    let closed = Server::with_key(KEY);
    let id = [("X-Request-ID", "of-mine-1")];
    for (server, path, status) in [
        (&open, "/health", 200),
        (&open, "/v1/sandboxes/nonesuch", 404),
        (&open, "/nonsense", 404),
        (&closed, "/v1/sandboxes", 401),
    ] {
        let answer = server.request("GET", path, &id, b"");
        assert_eq!((answer.status, answer.header("x-request-id")), (status, Some("of-mine-1")), "{path}");
        let own = server.get(path).header("x-request-id").unwrap().to_owned();
        assert!(own.len() == 32 && own.bytes().all(|byte| byte.is_ascii_hexdigit()), "{own}");
    }
}

#[test]
fn it_ends_when_it_is_told_to_and_leaves_its_boxes() {
    let mut server = Server::new();
    let id = server.create(json!({}));
    assert_eq!(server.stop(), Some(0));
    let (code, listed, _) = server.house.run(&["list"]);
    assert!(code == 0 && listed.contains(&id), "{listed}");
}

#[test]
fn a_program_is_told_as_json_where_connections_are_taken() {
    let house = House::new(Mode::all()[0]);
    let (mut child, line) = started(&house, &["--listen", "127.0.0.1:0", "--json"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let told: Value = serde_json::from_str(&line).unwrap();
    assert!(told["listen"].as_str().unwrap().starts_with("127.0.0.1:"), "{told}");
}

#[test]
fn errors_have_one_shape_whoever_finds_them() {
    let server = Server::new();
    let id = server.create(json!({}));
    let upload = format!("/v1/sandboxes/{id}/proxy/44772/files/upload");
    for (method, path) in [("GET", "/v1/sandboxes/%ff"), ("POST", upload.as_str())] {
        let answer = server.request(method, path, &[], b"x");
        answer.assert_error(400, "SANDBOX::INVALID_PARAMETER");
        assert_eq!(answer.header("content-type"), Some("application/json"), "{path}");
    }
}

#[test]
fn the_document_tells_of_every_box_that_a_path_names_and_of_errors() {
    let document = Server::new().get("/openapi.json").json();
    let (mut operations, mut names) = (0, std::collections::BTreeSet::new());
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            operations += 1;
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name.to_owned()), "{method} {path}: {name} is another's name, too");
            for name in path.split('{').skip(1).map(|rest| rest.split('}').next().unwrap()) {
                let known = operation["parameters"].as_array().unwrap();
                let told = known.iter().filter(|one| one["name"] == name && one["in"] == "path").count();
                assert_eq!(told, 1, "{method} {path}: {name}");
            }
            // What a box's own server says, or another protocol, has other errors.
            if path.contains("/proxy/{port}") || path == "/mcp" {
                continue;
            }
            for (status, answer) in operation["responses"].as_object().unwrap() {
                let schema = &answer["content"]["application/json"]["schema"];
                let told = schema.is_null() || !schema["$ref"].is_null() || !schema["type"].is_null();
                assert!(told, "{method} {path} {status}: {schema} tells no fields");
            }
            let error = &operation["responses"]["default"]["content"]["application/json"]["schema"]["$ref"];
            assert_eq!(*error, "#/components/schemas/ErrorResponse", "{method} {path}");
        }
    }
    assert!(operations > 70 && document["components"]["schemas"]["ErrorResponse"].is_object());
    assert_eq!(document["components"]["securitySchemes"]["key"]["name"], "OPEN-SANDBOX-API-KEY");
    assert_eq!(
        document["components"]["schemas"]["DiffChange"]["properties"]["pathBase64"]["type"][0],
        "string"
    );
    for path in [
        "/v1/events",
        "/v1/batch",
        "/v1/sandboxes/{id}/stream",
        "/v1/sandboxes/{id}/proxy/44772/pty",
        "/v1/sandboxes/{id}/proxy/44772/v1/filesystem/{uid}/{gid}/files/info",
    ] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
}
