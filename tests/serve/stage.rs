//! A server, and requests to it, byte by byte: what is tested is what is on the wire.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use glasshouse_tests::{House, Mode};
use serde_json::{Value, json};

/// A server of its own, with a state directory of its own. Both go with it.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    pub(crate) house: House,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Server {
    /// One of the mode that can be had here: root's, if the tests are.
    pub(crate) fn new() -> Server {
        Server::of(House::new(Mode::all()[0]), &[])
    }

    /// One that wants a key.
    pub(crate) fn with_key(key: &str) -> Server {
        let house = House::new(Mode::all()[0]);
        let file = house.path().join("key");
        std::fs::write(&file, format!("{key}\n")).unwrap();
        let file = file.to_str().unwrap().to_owned();
        Server::of(house, &["--key-file", &file])
    }

    /// Serves a house. It answers when this comes back.
    pub(crate) fn of(house: House, args: &[&str]) -> Server {
        let (child, address) = start(&house, args);
        Server { child, address, house }
    }

    /// One that somebody else started: what is told of it, and where it is.
    pub(crate) fn at(child: Child, url: &str, house: House) -> Server {
        let address = url.strip_prefix("http://").unwrap_or_else(|| panic!("no address: {url:?}")).to_owned();
        Server { child, address, house }
    }

    /// Kills the server, without a word, and starts another one for the same house.
    pub(crate) fn killed_and_started(mut self) -> Server {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let (child, address) = start(&self.house, &[]);
        (self.child, self.address) = (child, address);
        self
    }

    /// Tells the server to end. Its exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }

    /// Sends the beginning of a request. What comes back is left to the caller.
    pub(crate) fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += &format!("host: {}\r\n", self.address);
        }
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("transfer-encoding")) {
            head += &format!("content-length: {}\r\n", body.len());
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        // At once: a server that answers before it has seen the body would break the connection off under us.
        stream.write_all(&[format!("{head}\r\n").as_bytes(), body].concat()).unwrap();
        stream
    }

    pub(crate) fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut bytes = Vec::new();
        self.open(method, path, headers, body).read_to_end(&mut bytes).unwrap();
        Answer::parse(&bytes)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], b"")
    }

    pub(crate) fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        let json = [("content-type", "application/json")];
        self.request(method, path, &json, body.to_string().as_bytes())
    }

    /// Makes a box, with more said of it. Its id.
    pub(crate) fn create(&self, more: Value) -> String {
        let mut wanted = json!({ "image": { "uri": "host" }, "entrypoint": ["tail", "-f", "/dev/null"] });
        wanted.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = self.send("POST", "/v1/sandboxes", &wanted);
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    /// Runs a command in a box. Its events.
    pub(crate) fn run(&self, id: &str, command: Value) -> Vec<Value> {
        let answer = self.send("POST", &execd(id, "/command"), &command);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.events()
    }

    /// Runs a line in a box that has to succeed. What it wrote, line by line.
    pub(crate) fn lines(&self, id: &str, line: &str) -> Vec<String> {
        let events = self.run(id, json!({ "command": line }));
        assert_eq!(events.last().unwrap()["type"], "execution_complete", "{events:?}");
        texts(&events, "stdout")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(house: &House, args: &[&str]) -> (Child, String) {
    let (child, line) = started(house, &[&["--listen", "127.0.0.1:0"], args].concat());
    let address = line.trim().strip_prefix("http://").unwrap_or_else(|| panic!("no address: {line:?}"));
    (child, address.to_owned())
}

/// Starts a server. The first line that it prints.
pub(crate) fn started(house: &House, args: &[&str]) -> (Child, String) {
    let mut child = house.glass(&[&["serve"], args].concat()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line)
}

/// The path of something that a box does.
pub(crate) fn execd(id: &str, path: &str) -> String {
    format!("/v1/sandboxes/{id}/proxy/44772{path}")
}

/// The texts of one kind of events.
pub(crate) fn texts(events: &[Value], kind: &str) -> Vec<String> {
    let wanted = events.iter().filter(|event| event["type"] == kind);
    wanted.map(|event| event["text"].as_str().unwrap().to_owned()).collect()
}

impl Answer {
    fn parse(bytes: &[u8]) -> Answer {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("an answer has a head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = bytes[end + 4..].to_vec();
        let mut answer = Answer { status, head, body };
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = unchunked(&answer.body);
        }
        answer
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// A stream of events: JSON, a blank line after each.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = self.text();
        assert!(text.ends_with("\n\n"), "{text:?}");
        let event = |part: &str| serde_json::from_str(part).unwrap_or_else(|e| panic!("{e}: {part:?}"));
        text.trim_end_matches("\n\n").split("\n\n").map(event).collect()
    }

    /// That it is an error of this status, with a word to branch on.
    pub(crate) fn assert_error(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{self:?}");
        let body = self.json();
        assert_eq!(body["code"], code, "{body}");
        assert!(!body["message"].as_str().unwrap().is_empty());
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = bytes.windows(2).position(|two| two == b"\r\n").expect("a chunk has a length");
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        if length == 0 {
            return body;
        }
        body.extend_from_slice(&bytes[end + 2..end + 2 + length]);
        bytes = &bytes[end + 4 + length..];
    }
}
