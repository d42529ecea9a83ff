//! A WebSocket, byte by byte.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::stage::Server;

/// A test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// An open one.
pub(crate) struct Socket(TcpStream);

/// What comes.
#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    Text(Value),
    Binary(Vec<u8>),
    Close(u16),
}

impl Socket {
    /// Asks for one. The status of the answer, and the socket if it is 101.
    pub(crate) fn ask(server: &Server, path: &str, headers: &[(&str, &str)]) -> (u16, Option<Socket>) {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head = format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
            server.address
        );
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        let answer = String::from_utf8(answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        if status == 101 {
            let lower = answer.to_lowercase();
            assert!(lower.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{answer}");
        }
        (status, (status == 101).then_some(Socket(stream)))
    }

    pub(crate) fn open(server: &Server, path: &str) -> Socket {
        let (status, socket) = Socket::ask(server, path, &[]);
        socket.unwrap_or_else(|| panic!("{path}: {status}"))
    }

    pub(crate) fn say(&mut self, words: &Value) {
        self.frame(1, words.to_string().as_bytes());
    }

    /// Sends input.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.frame(2, &[&[0], bytes].concat());
    }

    pub(crate) fn frame(&mut self, kind: u8, bytes: &[u8]) {
        self.0.write_all(&framed(kind, bytes)).unwrap();
    }

    pub(crate) fn next(&mut self) -> Message {
        loop {
            let mut head = [0; 2];
            self.0.read_exact(&mut head).unwrap();
            assert_eq!(head[1] & 0x80, 0, "a server masks nothing");
            let length = match head[1] {
                126 => {
                    let mut length = [0; 2];
                    self.0.read_exact(&mut length).unwrap();
                    u64::from(u16::from_be_bytes(length))
                }
                127 => {
                    let mut length = [0; 8];
                    self.0.read_exact(&mut length).unwrap();
                    u64::from_be_bytes(length)
                }
                short => u64::from(short),
            };
            let mut body = vec![0; usize::try_from(length).unwrap()];
            self.0.read_exact(&mut body).unwrap();
            match head[0] {
                0x81 => return Message::Text(serde_json::from_slice(&body).unwrap()),
                0x82 => return Message::Binary(body),
                0x88 => return Message::Close(u16::from_be_bytes([body[0], body[1]])),
                0x89 | 0x8a => {}
                other => panic!("what is {other:x}?"),
            }
        }
    }

    /// The next message of JSON. Of output that comes before it, the bytes.
    pub(crate) fn text(&mut self) -> (Value, Vec<u8>) {
        let mut output = Vec::new();
        loop {
            match self.next() {
                Message::Text(words) => return (words, output),
                Message::Binary(bytes) => output.extend_from_slice(payload(&bytes)),
                Message::Close(code) => {
                    panic!("closed with {code} after {}", String::from_utf8_lossy(&output))
                }
            }
        }
    }

    /// Reads output until it holds this text. All of it.
    pub(crate) fn until(&mut self, wanted: &str) -> String {
        let mut output = Vec::new();
        while !String::from_utf8_lossy(&output).contains(wanted) {
            match self.next() {
                Message::Binary(bytes) => output.extend_from_slice(payload(&bytes)),
                other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&output)),
            }
        }
        String::from_utf8_lossy(&output).into_owned()
    }
}

/// What comes after the channel and, of what was kept, its place.
fn payload(bytes: &[u8]) -> &[u8] {
    if bytes[0] == 3 { &bytes[9..] } else { &bytes[1..] }
}

/// A frame of a client's.
fn framed(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | kind];
    match bytes.len() {
        short @ 0..126 => frame.push(0x80 | short as u8),
        middle @ 126..=0xffff => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(middle as u16).to_be_bytes());
        }
        long => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    let mask = [1, 2, 3, 4];
    frame.extend_from_slice(&mask);
    frame.extend(bytes.iter().enumerate().map(|(n, byte)| byte ^ mask[n % 4]));
    frame
}
