//! Ports of a box, through the server.

use std::io::{Read as _, Write as _};

use serde_json::json;

use crate::stage::{Server, execd};

/// Starts a program of Python in a box, and waits until it listens on port 8000.
fn listening(server: &Server, id: &str, program: &str) {
    let command = json!({ "argv": ["python3", "-c", program], "background": true });
    server.run(id, command);
    while server.get(&format!("/v1/sandboxes/{id}/ports")).json()["ports"][0]["port"] != 8000 {}
}

fn port(id: &str, path: &str) -> String {
    format!("/v1/sandboxes/{id}/proxy/8000{path}")
}

/// Answers every request with its own head and body, sets a cookie, and leads elsewhere where it is asked to.
const MIRROR: &str = r#"
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Mirror(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        told = (self.requestline + "\n" + str(self.headers)).encode() + body
        self.send_response(302 if "away" in self.path else 200)
        self.send_header("location", ("http://" + self.headers["host"] if "whole" in self.path else "") + "/elsewhere?x=1")
        self.send_header("nel", "{}")
        self.send_header("set-cookie", "a=b")
        self.send_header("x-own", "yes")
        self.send_header("content-length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)
    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do
    def log_message(self, *args): pass
ThreadingHTTPServer(("127.0.0.1", 8000), Mirror).serve_forever()
"#;

#[test]
fn requests_reach_what_listens_and_their_keys_do_not() {
    let key = "a-key-that-nobody-guesses";
    let server = Server::with_key(key);
    let mine = ("open-sandbox-api-key", key);
    let send = |method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]| {
        server.request(method, path, &[&[mine], headers].concat(), body)
    };
    let made = json!({ "image": { "uri": "host" } }).to_string();
    let id = send("POST", "/v1/sandboxes", &[("content-type", "application/json")], made.as_bytes()).json();
    let id = id["id"].as_str().unwrap();
    let nobody = send("GET", &port(id, "/"), &[], b"");
    nobody.assert_error(502, "BACKEND_CONNECTION_FAILED");
    let command = json!({ "argv": ["python3", "-c", MIRROR], "background": true }).to_string();
    send("POST", &execd(id, "/command"), &[], command.as_bytes());
    while send("GET", &format!("/v1/sandboxes/{id}/ports"), &[], b"").json()["ports"] == json!([]) {}

    let secrets = [
        ("cookie", "secret"),
        ("authorization", "secret"),
        ("x-real-ip", "secret"),
        ("x-forwarded-port", "secret"),
        ("connection", "close, X-Hop"),
        ("x-hop", "secret"),
    ];
    for method in ["GET", "POST", "PUT", "DELETE", "PATCH"] {
        let answer = send(method, &port(id, "/a%2Fb/?q=%20x&y"), &secrets, b"a body");
        assert_eq!((answer.status, answer.header("x-own")), (200, Some("yes")), "{answer:?}");
        assert!(answer.header("set-cookie").is_none() && answer.header("content-security-policy").is_some());
        let told = answer.text();
        assert!(told.starts_with(&format!("{method} /a%2Fb/?q=%20x&y HTTP/1.1\n")), "{told}");
        assert!(
            told.ends_with("a body") && told.contains(&format!("x-forwarded-prefix: {}", port(id, ""))),
            "{told}"
        );
        assert!(!told.contains(key) && !told.contains("secret"), "{told}");
    }
    let away = send("GET", &port(id, "/away"), &[], b"");
    assert_eq!((away.status, away.header("location")), (302, Some(port(id, "/elsewhere?x=1").as_str())));
    let whole = send("GET", &port(id, "/whole/away"), &[], b"");
    assert_eq!(
        (whole.header("location"), whole.header("nel")),
        (Some(port(id, "/elsewhere?x=1").as_str()), None)
    );
    let nested = execd(id, "/proxy/8000/x");
    assert!(send("GET", &nested, &[], b"").text().starts_with("GET /x HTTP/1.1\n"));
    // Without the key, with the token of the endpoint.
    let told = send("GET", &format!("/v1/sandboxes/{id}/endpoints/8000"), &[], b"").json();
    assert!(told["endpoint"].as_str().unwrap().ends_with(&port(id, "")));
    let token = told["headers"]["OpenSandbox-Secure-Access"].as_str().unwrap();
    let shown = server.request("GET", &port(id, "/"), &[("opensandbox-secure-access", token)], b"");
    assert!(shown.status == 200 && !shown.text().contains(token));
    server.get(&port(id, "/")).assert_error(401, "MISSING_API_KEY");
    send("GET", &format!("/v1/sandboxes/{id}/proxy/0/"), &[], b"").assert_error(400, "DOCKER::INVALID_PORT");
}

/// Sends a piece, and the next one when somebody has written to a pipe.
const STREAM: &str = r#"
import os, socket
os.mkfifo("/tmp/go")
listener = socket.create_server(("127.0.0.1", 8000))
while True:
    stream, _ = listener.accept()
    stream.recv(65536)
    stream.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\ndata: one\n\n")
    open("/tmp/go").read()
    stream.sendall(b"data: two\n\n")
    stream.close()
"#;

#[test]
fn streams_come_piece_by_piece() {
    let server = Server::new();
    let id = server.create(json!({}));
    listening(&server, &id, STREAM);
    let mut stream = server.open("GET", &port(&id, "/events"), &[], b"");
    let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
    let mut until = |wanted: &[u8]| {
        while !seen.windows(wanted.len()).any(|part| part == wanted) {
            let length = stream.read(&mut piece).unwrap();
            assert!(length > 0, "{}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&piece[..length]);
        }
    };
    until(b"data: one\n\n");
    server.lines(&id, "echo > /tmp/go");
    until(b"data: two\n\n");
}

/// Switches to a protocol of its own: every byte comes back, plus one.
const SWITCH: &str = r#"
import socket, threading
def serve(stream):
    head = b""
    while b"\r\n\r\n" not in head:
        head += stream.recv(1)
    upgrade = b"websocket" if b"upgrade: websocket" in head.lower() else b"nothing"
    stream.sendall(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: " + upgrade + b"\r\n\r\n")
    while piece := stream.recv(65536):
        stream.sendall(bytes((byte + 1) % 256 for byte in piece))
    stream.close()
listener = socket.create_server(("127.0.0.1", 8000))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"#;

#[test]
fn other_protocols_go_through_once_both_have_agreed() {
    let server = Server::new();
    let id = server.create(json!({}));
    listening(&server, &id, SWITCH);
    for path in [port(&id, "/socket"), execd(&id, "/proxy/8000/socket")] {
        let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
            server.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 101 ") && answer.contains("upgrade: websocket"), "{answer}");
        for _ in 0..3 {
            stream.write_all(b"abc").unwrap();
            let mut back = [0; 3];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(&back, b"bcd");
        }
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
    }
}

#[test]
fn a_paused_box_keeps_what_runs_and_answers_nothing() {
    let server = Server::new();
    let id = server.create(json!({}));
    listening(&server, &id, MIRROR);
    let of = |path: &str| format!("/v1/sandboxes/{id}{path}");
    let act = |path: &str| server.send("POST", &of(path), &json!({}));
    assert_eq!(act("/pause").status, 202);
    let state = || server.get(&of("")).json()["status"]["state"].clone();
    assert_eq!(state(), "Paused");
    act("/pause").assert_error(409, "DOCKER::SANDBOX_NOT_RUNNING");
    for path in [port(&id, "/"), execd(&id, "/ping"), execd(&id, "/files/info?path=/")] {
        server.get(&path).assert_error(409, "DOCKER::SANDBOX_NOT_RUNNING");
    }
    // Another server finds it as it is.
    let server = server.killed_and_started();
    assert_eq!(server.get(&of("")).json()["status"]["state"], "Paused");
    let act = |path: &str| server.send("POST", &of(path), &json!({}));
    assert_eq!(act("/resume").status, 202);
    act("/resume").assert_error(409, "DOCKER::SANDBOX_NOT_PAUSED");
    // What listened still does: nothing was started anew.
    assert_eq!(server.get(&port(&id, "/")).status, 200);
}
