//! WebSockets: who may open one, what their messages mean, and that nobody waits for a client without end.
//!
//! ```text
//!  client ── messages ──▶ `Heard` ──▶ the command's input        (a task; it waits while the command does not read)
//!         ◀─ messages ── `Outbox` ◀── the command's output       (a task; whoever fills it waits while the client does not read)
//! ```
//! The two directions are apart: a command that waits for its output to be taken is still fed, and one that does not read is
//! still heard. A message that a client does not take in time ends the connection.
//!
//! Both kinds of streams here have the same messages, those of execd's terminals: in binary, the first byte is the channel (0
//! to the command; 1 and 2 its output); in text, JSON with a `type`.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream::SplitStream;
use futures_util::{SinkExt as _, StreamExt as _};
use glasshouse_sandbox::{ExecInput, OutputStream, TtySize};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Service;
use super::fault::{Answer, Fault};
use crate::clock::now_ms;
use crate::connections::{Held, Stopped};
use crate::door;
use crate::limits::{EVENTS_PING, SLOW_SOCKET, SOCKET_MESSAGE_BYTES, SOCKET_MESSAGES};

/// Signals that a terminal makes of a letter, so that they reach what runs in its foreground.
const TYPED: [(i32, u8); 3] = [(2, 0x03), (3, 0x1c), (20, 0x1a)];
/// Signals by their names.
const SIGNALS: [(&str, i32); 13] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("WINCH", 28),
];

/// A request to become a WebSocket: of a page of ours, or of no page at all.
pub(super) struct Upgrade {
    upgrade: WebSocketUpgrade,
    held: Held,
}

impl FromRequestParts<Arc<Service>> for Upgrade {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, service: &Arc<Service>) -> Answer<Upgrade> {
        if door::cross_site(&parts.headers, service.config.public_host.as_deref()) {
            let message = "pages of other sites cannot open WebSockets here";
            return Err(Fault::new(StatusCode::FORBIDDEN, "FOREIGN_REQUEST", message));
        }
        let held = parts.extensions.get::<Held>().cloned();
        let held = held.ok_or_else(|| Fault::internal("this request came over no connection"))?;
        let upgrade = WebSocketUpgrade::from_request_parts(parts, service).await.map_err(|rejection| {
            let message = format!("this is a WebSocket: {}", rejection.body_text());
            Fault::new(StatusCode::BAD_REQUEST, "WEBSOCKET_EXPECTED", message)
        })?;
        let upgrade = upgrade
            .max_message_size(SOCKET_MESSAGE_BYTES)
            .max_frame_size(SOCKET_MESSAGE_BYTES)
            .write_buffer_size(0)
            .max_write_buffer_size(2 * SOCKET_MESSAGE_BYTES);
        Ok(Upgrade { upgrade, held })
    }
}

impl Upgrade {
    /// Answers that it becomes one, and talks over it until one side has enough or the server stops.
    pub(super) fn talk<F>(self, talk: impl FnOnce(Outbox, Inbox) -> F + Send + 'static) -> Response
    where
        F: Future<Output = Closing> + Send,
    {
        let Upgrade { upgrade, mut held } = self;
        upgrade.on_upgrade(move |socket| async move {
            let (outbox, inbox, writer) = Outbox::of(socket);
            let closing = tokio::select! {
                closing = talk(outbox.clone(), inbox) => closing,
                why = held.stopped() => match why {
                    Stopped::Server => Closing { code: 1001, reason: "the server stops" },
                    Stopped::Caller => Closing { code: 1008, reason: "the key that opened this is no longer one" },
                },
            };
            outbox.close(closing).await;
            drop(outbox);
            // It ends when all is sent, or when the client does not take it.
            let _ = writer.await;
        })
    }
}

/// How a connection is closed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Closing {
    pub(super) code: u16,
    pub(super) reason: &'static str,
}

impl Closing {
    /// All is said.
    pub(super) const DONE: Closing = Closing { code: 1000, reason: "" };
}

/// What a client is sent, in order.
#[derive(Debug, Clone)]
pub(super) struct Outbox(mpsc::Sender<Message>);

/// What a client sends.
pub(super) type Inbox = SplitStream<WebSocket>;

/// Nobody takes messages any more.
#[derive(Debug)]
pub(super) struct Deaf;

impl Outbox {
    fn of(socket: WebSocket) -> (Outbox, Inbox, JoinHandle<()>) {
        let (mut sink, inbox) = socket.split();
        let (sender, mut messages) = mpsc::channel::<Message>(SOCKET_MESSAGES);
        let writer = tokio::spawn(async move {
            loop {
                let message = match tokio::time::timeout(EVENTS_PING, messages.recv()).await {
                    Ok(Some(message)) => message,
                    Ok(None) => return,
                    // A connection that is broken is noticed when something is sent.
                    Err(_) => Message::Ping(Bytes::new()),
                };
                let last = matches!(message, Message::Close(_));
                let sent = tokio::time::timeout(SLOW_SOCKET, sink.send(message)).await;
                if last || !matches!(sent, Ok(Ok(()))) {
                    return;
                }
            }
        });
        (Outbox(sender), inbox, writer)
    }

    /// Says something in JSON, with the time.
    pub(super) async fn say(&self, mut words: Value) -> Result<(), Deaf> {
        words["timestamp"] = json!(now_ms());
        self.send(Message::Text(Utf8Bytes::from(words.to_string()))).await
    }

    /// Sends output of a command.
    pub(super) async fn output(&self, stream: OutputStream, bytes: &[u8]) -> Result<(), Deaf> {
        let channel = match stream {
            OutputStream::Stdout => 1,
            OutputStream::Stderr => 2,
            // Told in words of their own.
            OutputStream::Results => return Ok(()),
        };
        self.send(Message::Binary(framed(&[channel], bytes))).await
    }

    /// Sends output from a place on that was kept.
    pub(super) async fn replay(&self, offset: u64, bytes: &[u8]) -> Result<(), Deaf> {
        let mut head = [3; 9];
        head[1..].copy_from_slice(&offset.to_be_bytes());
        self.send(Message::Binary(framed(&head, bytes))).await
    }

    /// Says what went wrong.
    pub(super) async fn complain(&self, code: &str, message: impl Into<String>) -> Result<(), Deaf> {
        let message = message.into();
        self.say(json!({ "type": "error", "code": code, "error": message })).await
    }

    async fn send(&self, message: Message) -> Result<(), Deaf> {
        self.0.send(message).await.map_err(|_| Deaf)
    }

    async fn close(&self, Closing { code, reason }: Closing) {
        let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
        // Whoever is gone need not be told.
        let _ = self.send(Message::Close(Some(frame))).await;
    }
}

fn framed(head: &[u8], bytes: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(head.len() + bytes.len());
    frame.put_slice(head);
    frame.put_slice(bytes);
    frame.freeze()
}

/// What a client may say to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heard {
    Stdin(Bytes),
    /// That was all of it.
    End,
    Resize(TtySize),
    Signal(i32),
    Kill,
    Ping,
    /// Something of the protocol below; there is nothing to do.
    Nothing,
}

#[derive(Deserialize)]
struct Words {
    r#type: String,
    data: Option<String>,
    cols: Option<u16>,
    rows: Option<u16>,
    signal: Option<Value>,
}

/// What a message means. Why it makes no sense.
pub(super) fn heard(message: &Message) -> Result<Heard, String> {
    match message {
        Message::Binary(bytes) => match bytes.first() {
            Some(0) => Ok(Heard::Stdin(bytes.slice(1..))),
            Some(channel) => Err(format!("channel {channel} is not one to send on; 0 is the input")),
            None => Err("a message is empty".to_owned()),
        },
        Message::Text(text) => {
            let words: Words = serde_json::from_str(text).map_err(|e| format!("not understood: {e}"))?;
            match words.r#type.as_str() {
                "stdin" => Ok(Heard::Stdin(words.data.unwrap_or_default().into())),
                "end" => Ok(Heard::End),
                "resize" => match (words.cols, words.rows) {
                    (Some(cols @ 1..), Some(rows @ 1..)) => Ok(Heard::Resize(TtySize { rows, cols })),
                    _ => Err("resize needs cols and rows, from 1 to 65535".to_owned()),
                },
                "signal" => signal(words.signal.as_ref()).map(Heard::Signal),
                "kill" => Ok(Heard::Kill),
                "ping" => Ok(Heard::Ping),
                other => Err(format!("type {other:?} is not known")),
            }
        }
        Message::Ping(_) | Message::Pong(_) | Message::Close(_) => Ok(Heard::Nothing),
    }
}

/// `"SIGINT"`, `"INT"` or `2`.
fn signal(said: Option<&Value>) -> Result<i32, String> {
    let number = match said {
        Some(Value::String(name)) => {
            let name = name.strip_prefix("SIG").unwrap_or(name);
            SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
        }
        Some(Value::Number(number)) => number.as_i64().and_then(|n| i32::try_from(n).ok()),
        _ => None,
    };
    let known = number.filter(|number| (1..=64).contains(number));
    known.ok_or_else(|| "signal has to be a name, such as SIGINT, or a number from 1 to 64".to_owned())
}

/// Does what a client says until it goes. A message that makes no sense is complained of, and no more.
pub(super) async fn obey(mut inbox: Inbox, input: ExecInput, tty: bool, outbox: Outbox) {
    while let Some(Ok(message)) = inbox.next().await {
        let done = match heard(&message) {
            Ok(Heard::Stdin(bytes)) => input.write(&bytes).await,
            Ok(Heard::End) => input.close().await,
            Ok(Heard::Resize(size)) => input.resize(size).await,
            Ok(Heard::Signal(number)) => match TYPED.iter().find(|(typed, _)| tty && *typed == number) {
                Some((_, letter)) => input.write(&[*letter]).await,
                None => input.signal(number).await,
            },
            Ok(Heard::Kill) => input.kill().await,
            Ok(Heard::Ping) => match outbox.say(json!({ "type": "pong" })).await {
                Ok(()) => Ok(()),
                Err(Deaf) => return,
            },
            Ok(Heard::Nothing) => Ok(()),
            Err(why) => match outbox.complain("INVALID_MESSAGE", why).await {
                Ok(()) => Ok(()),
                Err(Deaf) => return,
            },
        };
        // A command that has ended takes nothing any more; its end is told by whoever reads its output.
        let _ = done;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(words: &str) -> Result<Heard, String> {
        heard(&Message::Text(words.into()))
    }

    #[test]
    fn messages_mean_what_execd_says() {
        let binary = |bytes: &'static [u8]| heard(&Message::Binary(Bytes::from_static(bytes)));
        assert_eq!(binary(b"\0ls\n"), Ok(Heard::Stdin(Bytes::from_static(b"ls\n"))));
        assert_eq!(binary(b"\0"), Ok(Heard::Stdin(Bytes::new())));
        assert!(binary(b"").is_err() && binary(b"\x01ls\n").is_err());
        assert_eq!(text(r#"{"type":"stdin","data":"x"}"#), Ok(Heard::Stdin(Bytes::from_static(b"x"))));
        let size = TtySize { rows: 40, cols: 120 };
        assert_eq!(text(r#"{"type":"resize","cols":120,"rows":40}"#), Ok(Heard::Resize(size)));
        for wrong in [
            r#"{"type":"resize","cols":0,"rows":40}"#,
            r#"{"type":"resize","cols":70000,"rows":40}"#,
            r#"{"type":"resize"}"#,
            r#"{"type":"other"}"#,
            r#"{"type":"signal"}"#,
            r#"{"type":"signal","signal":"SIGSEGVX"}"#,
            r#"{"type":"signal","signal":0}"#,
            r#"{"type":"signal","signal":4294967298}"#,
            "[]",
            "",
        ] {
            assert!(text(wrong).is_err(), "{wrong}");
        }
        for (said, number) in [("\"SIGINT\"", 2), ("\"TERM\"", 15), ("9", 9)] {
            assert_eq!(text(&format!(r#"{{"type":"signal","signal":{said}}}"#)), Ok(Heard::Signal(number)));
        }
        assert_eq!(text(r#"{"type":"ping","timestamp":1}"#), Ok(Heard::Ping));
        assert_eq!(heard(&Message::Close(None)), Ok(Heard::Nothing));
    }

    proptest! {
        #[test]
        fn whatever_a_client_says_is_understood_or_complained_of(
            bytes in prop::collection::vec(any::<u8>(), 0..100),
            kind in "[a-z]{0,8}",
            value in "[ -~]{0,20}",
        ) {
            match heard(&Message::Binary(bytes.clone().into())) {
                Ok(heard) => prop_assert_eq!(heard, Heard::Stdin(bytes[1..].to_vec().into())),
                Err(why) => prop_assert!(!why.is_empty()),
            }
            for name in ["signal", "cols", "data"] {
                let words = json!({ "type": kind, name: value, "rows": value });
                let known = matches!(kind.as_str(), "stdin" | "end" | "resize" | "signal" | "kill" | "ping");
                prop_assert!(known || text(&words.to_string()).is_err());
            }
            // Any text at all.
            let _ = text(&String::from_utf8_lossy(&bytes));
        }
    }
}
