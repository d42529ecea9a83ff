//! Bytes of a box in JSON: text where they are UTF-8, else base64. Nothing is replaced or dropped.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{self, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes, of which most are text. In JSON a string, or `{"base64": "…"}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
    /// What is UTF-8.
    Text(String),
    /// What is not. Made with [`Text::of`], so that the same bytes are always the same variant.
    Base64(Vec<u8>),
}

impl Text {
    /// These bytes.
    pub fn of(bytes: impl Into<Vec<u8>>) -> Self {
        match String::from_utf8(bytes.into()) {
            Ok(text) => Text::Text(text),
            Err(e) => Text::Base64(e.into_bytes()),
        }
    }

    /// The bytes themselves.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Text::Text(text) => text.as_bytes(),
            Text::Base64(bytes) => bytes,
        }
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Text::Text(text) => Some(text),
            Text::Base64(_) => None,
        }
    }

    /// The text with whatever is no text replaced, for formats that have only strings.
    pub fn lossy(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Text::Text(text.to_owned())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Text::Text(text)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Text::Text(text) => serializer.serialize_str(text),
            Text::Base64(bytes) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("base64", &STANDARD.encode(bytes))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a string, or an object with \"base64\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
        Ok(text.into())
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Text, E> {
        Ok(text.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "base64" {
                return Err(de::Error::unknown_field(&key, &["base64"]));
            }
            let text: String = map.next_value()?;
            let bytes = STANDARD.decode(&text).map_err(|e| de::Error::custom(format!("no base64: {e}")))?;
            found = Some(Text::of(bytes));
        }
        found.ok_or_else(|| de::Error::missing_field("base64"))
    }
}

/// A path of a box as text: what is no UTF-8 becomes `\xNN`, and a backslash two of them, so that it can be undone.
pub fn path_text(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        out.push_str(&chunk.valid().replace('\\', "\\\\"));
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// The bytes of a path that [`path_text`] wrote; none if it did not.
pub fn path_bytes(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match rest {
            [b'\\', after @ ..] => {
                out.push(b'\\');
                rest = after;
            }
            [b'x', high, low, after @ ..] => {
                let digits = [*high, *low];
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                let digits = std::str::from_utf8(&digits).ok()?;
                out.push(u8::from_str_radix(digits, 16).ok()?);
                rest = after;
            }
            _ => return None,
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_same_bytes_are_the_same_text_however_they_were_written() {
        let text: Text = serde_json::from_str(r#"{"base64":"aGk="}"#).unwrap();
        assert_eq!(text, Text::Text("hi".to_owned()));
        for json in [r#"{"base64":"a"}"#, r#"{"base32":"a"}"#, "{}", "7", r#"{"base64":7}"#] {
            assert!(serde_json::from_str::<Text>(json).is_err(), "{json}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_survive_as_text_and_as_a_path(bytes: Vec<u8>) {
            let json = serde_json::to_string(&Text::of(bytes.clone())).unwrap();
            let text: Text = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(text.bytes(), &bytes[..]);
            prop_assert_eq!(path_bytes(&path_text(&bytes)), Some(bytes));
        }
    }

    #[test]
    fn what_no_writer_of_ours_wrote_is_no_path() {
        for text in ["\\", "\\x", "\\x1", "\\xzz", "\\n", "\\x+1"] {
            assert_eq!(path_bytes(text), None, "{text}");
        }
    }
}
