//! Terminals and streams: WebSockets that a command is talked to over.

use serde_json::{Value, json};

use crate::socket::{Message, Socket};
use crate::stage::{Server, execd};

fn made(server: &Server, id: &str, what: Value) -> String {
    let answer = server.send("POST", &execd(id, "/pty"), &what);
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["session_id"].as_str().unwrap().to_owned()
}

fn terminal(id: &str, session: &str, query: &str) -> String {
    execd(id, &format!("/pty/{session}/ws{query}"))
}

#[test]
fn a_terminal_is_typed_into_resized_and_interrupted() {
    let server = Server::new();
    let id = server.create(json!({}));
    let session = made(&server, &id, json!({ "cwd": "/tmp" }));
    let status = || server.get(&execd(&id, &format!("/pty/{session}"))).json();
    assert_eq!(status(), json!({ "session_id": session, "running": false, "output_offset": 0 }));
    let mut socket = Socket::open(&server, &terminal(&id, &session, ""));
    let (hello, _) = socket.text();
    assert_eq!((&hello["type"], &hello["mode"]), (&json!("connected"), &json!("pty")), "{hello}");
    assert_eq!((&hello["session_id"], &hello["offset"]), (&json!(session), &json!(0)));
    socket.say(&json!({ "type": "resize", "cols": 123, "rows": 45 }));
    socket.feed(b"echo $PWD-$(stty size)-$TERM-$((6*7))\n");
    socket.until("/tmp-45 123-xterm-256color-42");
    // A signal reaches what runs in the foreground, and not the shell.
    socket.feed(b"sh -c \"echo beg''un; exec sleep 1000\"; echo interr''upted\n");
    socket.until("begun");
    socket.say(&json!({ "type": "signal", "signal": "SIGINT" }));
    socket.feed(b"echo aft''er\n");
    let rest = socket.until("after");
    assert!(!rest.contains("interrupted"), "{rest}");
    socket.say(&json!({ "type": "ping" }));
    assert_eq!(socket.text().0["type"], "pong");
    socket.say(&json!({ "type": "nonsense" }));
    let (complaint, _) = socket.text();
    assert_eq!((&complaint["type"], &complaint["code"]), (&json!("error"), &json!("INVALID_MESSAGE")));
    assert_eq!(status()["running"], true);
    socket.feed(b"exit 7\n");
    let (exit, _) = socket.text();
    assert_eq!((&exit["type"], &exit["exit_code"]), (&json!("exit"), &json!(7)), "{exit}");
    assert_eq!(socket.next(), Message::Close(1000));
    assert_eq!(status()["running"], false);
}

#[test]
fn without_a_terminal_stderr_is_apart() {
    let server = Server::new();
    let id = server.create(json!({}));
    let session = made(&server, &id, json!({ "command": "cat; echo problem >&2; exit 3" }));
    let mut socket = Socket::open(&server, &terminal(&id, &session, "?pty=0"));
    assert_eq!(socket.text().0["mode"], "pipe");
    socket.say(&json!({ "type": "stdin", "data": "hello" }));
    socket.say(&json!({ "type": "end" }));
    assert_eq!(socket.next(), Message::Binary(b"\x01hello".to_vec()));
    assert_eq!(socket.next(), Message::Binary(b"\x02problem\n".to_vec()));
    assert_eq!(socket.text().0["exit_code"], 3);
}

#[test]
fn whoever_comes_back_reads_what_he_missed_and_may_take_over() {
    let server = Server::new();
    let id = server.create(json!({}));
    let session = made(&server, &id, json!({ "command": "echo one; read x; echo two $x; read y; exit $y" }));
    let path = terminal(&id, &session, "?pty=0");
    let mut first = Socket::open(&server, &path);
    assert_eq!(first.text().0["offset"], 0);
    first.until("one\n");
    let (refused, _) = Socket::ask(&server, &path, &[]);
    assert_eq!(refused, 409);
    let mut second = Socket::open(&server, &terminal(&id, &session, "?since=1&takeover=1"));
    assert_eq!(first.next(), Message::Close(4001));
    assert_eq!(second.text().0["offset"], 1);
    let place = [&[3], 1_u64.to_be_bytes().as_slice(), b"ne\n"].concat();
    assert_eq!(second.next(), Message::Binary(place));
    second.feed(b"more\n");
    assert_eq!(second.until("\n"), "two more\n");
    drop(second);
    // Nobody is connected, as soon as the server has noticed; the shell is still there.
    let mut third = loop {
        match Socket::ask(&server, &terminal(&id, &session, "?since=4"), &[]) {
            (101, Some(socket)) => break socket,
            (409, None) => {}
            other => panic!("{:?}", other.0),
        }
    };
    assert_eq!(third.text().0["offset"], 4);
    assert!(matches!(third.next(), Message::Binary(bytes) if bytes.ends_with(b"two more\n")));
    third.feed(b"5\n");
    assert_eq!(third.text().0["exit_code"], 5);
    drop(third);
    // What has ended is still told.
    let mut last = loop {
        if let (101, Some(socket)) = Socket::ask(&server, &terminal(&id, &session, "?since=0"), &[]) {
            break socket;
        }
    };
    assert_eq!(last.text().0["offset"], 0);
    let (exit, replayed) = last.text();
    assert_eq!(exit["exit_code"], 5);
    assert!(replayed.ends_with(b"one\ntwo more\n"), "{replayed:?}");
    let gone = server.request("DELETE", &execd(&id, &format!("/pty/{session}")), &[], b"");
    assert_eq!(gone.status, 200);
    server.get(&execd(&id, &format!("/pty/{session}"))).assert_error(404, "SESSION_NOT_FOUND");
}

#[test]
fn a_terminal_that_is_deleted_ends() {
    let server = Server::new();
    let id = server.create(json!({}));
    let session = made(&server, &id, json!({}));
    let mut socket = Socket::open(&server, &terminal(&id, &session, ""));
    socket.feed(b"echo rea''dy\n");
    assert_eq!(socket.text().0["type"], "connected");
    socket.until("ready");
    assert_eq!(server.request("DELETE", &execd(&id, &format!("/pty/{session}")), &[], b"").status, 200);
    assert_eq!(socket.text().0["type"], "exit");
}

#[test]
fn a_client_that_does_not_read_is_waited_for() {
    let server = Server::new();
    let id = server.create(json!({}));
    let line = "head -c 30000000 /dev/zero | tr '\\0' x; touch /tmp/done";
    let session = made(&server, &id, json!({ "command": line }));
    let path = terminal(&id, &session, "?pty=0");
    let mut socket = Socket::open(&server, &path);
    assert_eq!(socket.text().0["type"], "connected");
    // It cannot be done: thirty megabytes fit into no buffer on the way.
    let offset =
        || server.get(&execd(&id, &format!("/pty/{session}"))).json()["output_offset"].as_u64().unwrap();
    let (mut before, mut same) = (offset(), 0);
    while same < 50 {
        let now = offset();
        same = if now == before && now > 0 { same + 1 } else { 0 };
        before = now;
    }
    assert!(before < 30_000_000);
    let (exit, output) = socket.text();
    assert_eq!((&exit["exit_code"], output.len()), (&json!(0), 30_000_000));
    assert!(output.iter().all(|byte| *byte == b'x'));
}

fn stream(id: &str) -> String {
    format!("/v1/sandboxes/{id}/stream")
}

#[test]
fn a_stream_runs_a_command_that_is_fed_and_tells_its_end() {
    let server = Server::new();
    let id = server.create(json!({}));
    let mut socket = Socket::open(&server, &stream(&id));
    socket.say(&json!({ "type": "start", "command": "cat; echo $A >&2; exit 4", "envs": { "A": "b" } }));
    let (started, _) = socket.text();
    assert_eq!(started["type"], "started");
    // More than any buffer on the way holds: in and out have to go on beside each other.
    let piece = vec![b'y'; 500_000];
    let mut socket = std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let (mut out, mut fed) = (Vec::new(), 0);
            for _ in 0..8 {
                socket.feed(&piece);
                fed += piece.len();
                while out.len() + 2_000_000 < fed {
                    match socket.next() {
                        Message::Binary(bytes) => out.extend_from_slice(&bytes[1..]),
                        other => panic!("{other:?}"),
                    }
                }
            }
            socket.say(&json!({ "type": "end" }));
            let (exit, rest) = socket.text();
            out.extend(rest);
            assert_eq!(out.len(), fed + 2);
            assert!(out.ends_with(b"b\n"));
            assert_eq!((&exit["type"], &exit["exitCode"]), (&json!("exit"), &json!(4)), "{exit}");
            assert_eq!(exit["exit"]["kind"], "code");
            socket
        });
        reading.join().unwrap()
    });
    assert_eq!(socket.next(), Message::Close(1000));
}

#[test]
fn a_stream_has_a_terminal_if_asked_and_takes_signals() {
    let server = Server::new();
    let id = server.create(json!({}));
    let mut socket = Socket::open(&server, &stream(&id));
    let tty = json!({ "cols": 100, "rows": 30 });
    socket.say(
        &json!({ "type": "start", "command": "stty size; read x; echo got $x; sleep 1000", "tty": tty }),
    );
    assert_eq!(socket.text().0["type"], "started");
    socket.until("30 100");
    socket.feed(b"this\n");
    socket.until("got this");
    socket.say(&json!({ "type": "signal", "signal": "SIGTERM" }));
    let (exit, _) = socket.text();
    assert_eq!(exit["exit"], json!({ "kind": "signal", "signal": 15 }), "{exit}");
}

#[test]
fn a_command_of_the_foreground_ends_with_its_stream_and_one_of_the_background_does_not() {
    let server = Server::new();
    let id = server.create(json!({}));
    let begin = |words: Value| {
        let mut socket = Socket::open(&server, &stream(&id));
        socket.say(&words);
        let exec = socket.text().0["exec"].as_u64().unwrap();
        (socket, exec)
    };
    let line = "echo here; mkfifo /tmp/go; echo ready; read x < /tmp/go; echo $x";
    let (mut socket, exec) = begin(json!({ "type": "start", "command": line, "background": true }));
    socket.until("ready");
    drop(socket);
    let (mut short, _) = begin(json!({ "type": "start", "command": "trap '' HUP; echo on; sleep 1000" }));
    short.until("on");
    drop(short);
    while !server.lines(&id, "grep -lx sleep /proc/[0-9]*/comm || true").is_empty() {}
    server.lines(&id, "echo later > /tmp/go");
    let mut again = Socket::open(&server, &stream(&id));
    again.say(&json!({ "type": "attach", "exec": exec, "from": 5 }));
    assert_eq!(again.text().0["exec"], exec);
    let (exit, output) = again.text();
    assert_eq!(
        (String::from_utf8(output).unwrap().as_str(), &exit["exitCode"]),
        ("ready\nlater\n", &json!(0))
    );
}

#[test]
fn what_cannot_be_started_is_said_and_closed() {
    let server = Server::new();
    let id = server.create(json!({}));
    for wrong in [
        json!({ "type": "start" }),
        json!({ "type": "attach", "exec": 99 }),
        json!({ "type": "resize" }),
        json!(1),
    ] {
        let mut socket = Socket::open(&server, &stream(&id));
        socket.say(&wrong);
        let (error, _) = socket.text();
        assert_eq!(error["type"], "error", "{wrong} {error}");
        assert_eq!(socket.next(), Message::Close(1008));
    }
    assert_eq!(Socket::ask(&server, &stream("nobody"), &[]).0, 404);
    server.get(&stream(&id)).assert_error(400, "WEBSOCKET_EXPECTED");
}

#[test]
fn sockets_of_other_sites_are_refused() {
    let key = "a-key-that-nobody-guesses";
    for (server, shown) in
        [(Server::new(), None), (Server::with_key(key), Some(("open-sandbox-api-key", key)))]
    {
        let made = json!({ "image": { "uri": "host" } }).to_string();
        let headers: Vec<(&str, &str)> = shown.into_iter().collect();
        let id = server.request("POST", "/v1/sandboxes", &headers, made.as_bytes()).json();
        let path = stream(id["id"].as_str().unwrap());
        let own = format!("http://{}", server.address);
        for (origin, status) in [(own.as_str(), 101), ("http://evil.example", 403), ("null", 403)] {
            let headers = [headers.as_slice(), &[("origin", origin)]].concat();
            assert_eq!(Socket::ask(&server, &path, &headers).0, status, "{origin}");
        }
    }
}

#[test]
fn open_sockets_do_not_keep_a_server_from_stopping() {
    let mut server = Server::new();
    let id = server.create(json!({}));
    let mut socket = Socket::open(&server, &stream(&id));
    socket.say(&json!({ "type": "start", "command": "echo on; sleep 1000" }));
    assert_eq!(socket.text().0["type"], "started");
    socket.until("on");
    assert_eq!(server.stop(), Some(0));
    assert_eq!(socket.next(), Message::Close(1001));
}
