//! One line of a trace: its number, its time, the hash of the line before, and the event.

use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::hash::Hash;
use crate::payload::BlobName;

/// The newest version of the format that this crate writes. A line has the version that first had its event.
pub const VERSION: u32 = 3;

/// One line of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The version of the format in which it was written.
    pub v: u32,
    /// Its number in the trace, from 1; also the number of the line in the file.
    pub seq: u64,
    /// When it was written, milliseconds since 1970 by the host's clock. Only `seq` gives the order.
    pub time_ms: u64,
    /// The hash of the line before it, newline not included; all zero for the first.
    pub prev: Hash,
    /// What happened.
    pub event: Event,
}

/// What links a line into the chain, readable in any version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Link {
    pub(crate) seq: u64,
    pub(crate) prev: Hash,
}

/// What a line says before its event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prefix {
    pub(crate) version: u32,
    pub(crate) seq: u64,
    pub(crate) time_ms: u64,
    pub(crate) prev: Hash,
}

/// The bytes of a line, without the newline. The event is encoded before the lock is taken, the rest under
/// it.
pub(crate) fn encode(prefix: Prefix, event: &[u8]) -> Vec<u8> {
    let Prefix { version, seq, time_ms, prev } = prefix;
    let start = format!(r#"{{"v":{version},"seq":{seq},"time_ms":{time_ms},"prev":"{prev}","event":"#);
    let mut line = Vec::with_capacity(start.len() + event.len() + 2);
    line.extend_from_slice(start.as_bytes());
    line.extend_from_slice(event);
    line.push(b'}');
    line
}

/// The blobs that a line names, found by their spelling and not by their meaning.
///
/// Every version spells them `"blob":{"hash":"…","bytes":N}`, so that no program prunes a blob only because
/// it does not know the event that names it, or because the line was damaged elsewhere. Text in a line cannot
/// look like this: its quotes are escaped.
pub(crate) fn blobs_named(line: &[u8]) -> Vec<BlobName> {
    const START: &str = r#""blob":{"hash":""#;
    const MIDDLE: &str = r#"","bytes":"#;
    let line = String::from_utf8_lossy(line);
    let mut rest = &*line;
    let mut found = Vec::new();
    while let Some(at) = rest.find(START) {
        rest = &rest[at + START.len()..];
        let Some(hash) = rest.get(..64).and_then(Hash::parse) else { continue };
        let Some(number) = rest[64..].strip_prefix(MIDDLE) else { continue };
        let digits = number.bytes().take_while(u8::is_ascii_digit).count();
        let Ok(bytes) = number[..digits].parse() else { continue };
        found.push(BlobName { hash, bytes });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::{Content, Payload};

    #[test]
    fn an_encoded_line_reads_back() {
        let event = Event::Signal { exec: 3, signal: 15 };
        let prefix = Prefix { version: 1, seq: 7, time_ms: 1_700_000_000_000, prev: Hash::of(b"x") };
        let bytes = encode(prefix, &serde_json::to_vec(&event).unwrap());
        let line: Line = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(line, Line { v: 1, seq: 7, time_ms: 1_700_000_000_000, prev: Hash::of(b"x"), event });
        assert_eq!(serde_json::to_vec(&line).unwrap(), bytes);
    }

    #[test]
    fn an_event_of_a_newer_version_is_unknown_and_keeps_what_it_says() {
        let json = r#"{"type":"teleported","to":"mars","count":3}"#;
        let Event::Unknown(event) = serde_json::from_str(json).unwrap() else { panic!("it was understood") };
        assert_eq!(event.kind, "teleported");
        assert_eq!(event.fields["to"], "mars");
        assert_eq!(event.fields["count"], 3);
    }

    #[test]
    fn a_known_event_with_a_new_field_is_known() {
        let event: Event =
            serde_json::from_str(r#"{"type":"signal","exec":1,"signal":9,"by":"ann"}"#).unwrap();
        assert_eq!(event, Event::Signal { exec: 1, signal: 9 });
    }

    #[test]
    fn blobs_are_found_in_events_of_any_version_but_not_in_text() {
        let blob = BlobName { hash: Hash::of(b"b"), bytes: 1 };
        let payload = Payload { head: Some(Content::Blob(blob)), ..Payload::default() };
        let event = serde_json::to_string(&Event::Stdin { exec: 1, payload }).unwrap();
        assert_eq!(blobs_named(event.replace("stdin", "newer").as_bytes()), [blob]);
        let text = serde_json::to_string(&Event::BoxEnded { why: event }).unwrap();
        assert_eq!(blobs_named(text.as_bytes()), []);
    }
}
