//! JSON from strangers: bounded in size and depth, each key once, and every place can be found again as a line.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::limits::VALUES_MAX;

/// One part of the way to a value within a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// Into an object.
    Key(String),
    /// Into a list.
    Index(usize),
}

impl From<&str> for Part {
    fn from(key: &str) -> Self {
        Part::Key(key.to_owned())
    }
}

impl From<usize> for Part {
    fn from(index: usize) -> Self {
        Part::Index(index)
    }
}

/// Why a text is no JSON of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The line of the text, from 1.
    pub(crate) line: u64,
    /// What is wrong there.
    pub(crate) what: String,
    /// The text ends too early. If there is more of it, it may be whole.
    pub(crate) cut_off: bool,
}

/// Reads one value and nothing behind it.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, Fault> {
    parse_within(bytes, &Cell::new(VALUES_MAX))
}

/// The same for one of several that together may not hold more than this many values.
pub(crate) fn parse_within(bytes: &[u8], left: &Cell<u64>) -> Result<Value, Fault> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => {
            let line = line_at(bytes, e.valid_up_to());
            return Err(Fault { line, what: "bytes that are not UTF-8".to_owned(), cut_off: false });
        }
    };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Bounded { left }.deserialize(&mut deserializer);
    value.and_then(|value| deserializer.end().map(|()| value)).map_err(fault)
}

fn fault(error: serde_json::Error) -> Fault {
    let line = error.line().max(1) as u64;
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
    let what = match text {
        _ if error.is_eof() => "it ends in the middle of a value; the file is cut off".to_owned(),
        "recursion limit exceeded" => "values nested more than 127 deep".to_owned(),
        "trailing characters" => format!("something stands behind the value, at column {}", error.column()),
        text => format!("no JSON: {text}, at column {}", error.column()),
    };
    Fault { line, what, cut_off: error.is_eof() }
}

/// The number of the line in which this byte stands.
fn line_at(bytes: &[u8], at: usize) -> u64 {
    1 + bytes[..at.min(bytes.len())].iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// Reads a value, and counts it.
struct Bounded<'a> {
    left: &'a Cell<u64>,
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self.left.get();
        if left == 0 {
            return Err(de::Error::custom(format!("more than {VALUES_MAX} values in one document")));
        }
        self.left.set(left - 1);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| de::Error::custom("a number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(Bounded { left: self.left })? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if object.contains_key(&key) {
                // Which of them is meant, every reader would tell differently.
                let key: String = key.chars().take(60).collect();
                return Err(de::Error::custom(format!("the key {key:?} stands twice in one object")));
            }
            let value = map.next_value_seed(Bounded { left: self.left })?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// The line of the value at this place of a text that [`parse`] took; of the last part of the way that is there.
pub(crate) fn line_of(text: &[u8], at: &[Part]) -> u64 {
    let mut cursor = Cursor { text, at: 0 };
    cursor.space();
    for part in at {
        let before = cursor.at;
        let found = match part {
            Part::Key(key) => cursor.enter_object(key),
            Part::Index(index) => cursor.enter_list(*index),
        };
        if !found {
            cursor.at = before;
            break;
        }
    }
    line_at(text, cursor.at)
}

/// Walks over a text that is known to be JSON. On any other it stops somewhere, and is of no use.
struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Whether this byte comes next; then it is passed, and the space behind it.
    fn pass(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        if there {
            self.at += 1;
            self.space();
        }
        there
    }

    fn enter_list(&mut self, index: usize) -> bool {
        if !self.pass(b'[') {
            return false;
        }
        for _ in 0..index {
            self.value();
            if !self.pass(b',') {
                return false;
            }
        }
        self.peek() != Some(b']')
    }

    fn enter_object(&mut self, wanted: &str) -> bool {
        if !self.pass(b'{') {
            return false;
        }
        while self.peek() == Some(b'"') {
            let start = self.at;
            self.string();
            let key = serde_json::from_slice::<String>(&self.text[start..self.at]).ok();
            self.space();
            self.pass(b':');
            if key.as_deref() == Some(wanted) {
                return true;
            }
            self.value();
            self.pass(b',');
        }
        false
    }

    /// Over a string, from its first quote to behind its last.
    fn string(&mut self) {
        self.at += 1;
        while let Some(byte) = self.peek() {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                break;
            }
        }
        self.at = self.at.min(self.text.len());
    }

    /// Over a value and the space behind it.
    fn value(&mut self) {
        let mut depth = 0usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => self.string(),
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth == 0 => return,
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' if depth == 0 => return,
                _ => self.at += 1,
            }
            if depth == 0 && matches!(self.peek(), None | Some(b',' | b'}' | b']')) {
                break;
            }
        }
        self.space();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> (u64, String) {
        let fault = parse(text.as_bytes()).unwrap_err();
        (fault.line, fault.what)
    }

    #[test]
    fn what_is_no_json_is_refused_with_its_line() {
        assert_eq!(refused("{\n\"a\": 1,\n\"a\": 2}").0, 3);
        assert!(refused("{\n\"a\": 1,\n\"a\": 2}").1.contains("\"a\" stands twice"));
        assert!(refused("[1,\n2").1.contains("cut off"));
        assert!(refused("[1]\n[2]").1.contains("behind the value"));
        assert!(refused("1e999").1.contains("out of range"));
        assert!(refused(&"[".repeat(100_000)).1.contains("nested"));
        assert!(refused("[NaN]").1.contains("no JSON"));
        assert_eq!(parse(b"[1,\n\"\xff\"]").unwrap_err().line, 2);
    }

    #[test]
    fn a_small_text_with_very_many_values_is_refused() {
        let text = format!("[{}0]", "0,".repeat(VALUES_MAX as usize));
        assert!(refused(&text).1.contains("values in one document"));
    }

    #[test]
    fn every_place_has_its_line() {
        let text = "{\n \"a]\\\"\": [1, {\"x\": \"]\"},\n  [2,\n   3]],\n \"b\": {\"c\":\n  null}\n}";
        let check = |at: &[Part], line: u64| assert_eq!(line_of(text.as_bytes(), at), line, "{at:?}");
        check(&[], 1);
        check(&["a]\"".into()], 2);
        check(&["a]\"".into(), 1.into(), "x".into()], 2);
        check(&["a]\"".into(), 2.into()], 3);
        check(&["a]\"".into(), 2.into(), 1.into()], 4);
        check(&["b".into(), "c".into()], 6);
        check(&["b".into(), "gone".into()], 5);
        check(&["a]\"".into(), 9.into()], 2);
    }

    #[test]
    fn the_cursor_survives_what_is_no_json() {
        for text in ["", "{", "[", "{\"", "{\"a\"", "{\"a\":", "[[[", "\"\\", "{\"a\":\"\\"] {
            line_of(text.as_bytes(), &["a".into(), 0.into()]);
            line_of(text.as_bytes(), &[0.into(), "a".into()]);
        }
    }
}
