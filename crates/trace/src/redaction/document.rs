//! Payloads that are JSON: what must not be on record is replaced within their texts, so that they stay JSON.
//!
//! A mark put anywhere among the bytes would leave a document that nobody can read any more: `1000` is a fine value of a
//! variable, and an owner too. So the document is walked token by token, and copied but for the texts with something in
//! them. A number becomes a text if its digits are a secret, unless it has to be a number there.

use std::ops::Range;

use serde::de::IgnoredAny;

use super::{Edges, MARK, Redactor};

/// Whose document it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Document {
    /// The caller's: names and numbers can be a secret as well.
    Theirs,
    /// Of our own making: names are words of the format, numbers are owners and sizes.
    Ours,
}

/// Names of parameters of our own tools: they say nothing, and what replays a call has to find them.
pub const PARAMETERS: [&str; 27] = [
    "all",
    "answer",
    "args",
    "code",
    "command",
    "content",
    "context",
    "create_dirs",
    "depth",
    "end_line",
    "file_pattern",
    "files_only",
    "hidden",
    "ignore_case",
    "literal",
    "max_results",
    "new",
    "no_ignore",
    "old",
    "patch",
    "path",
    "pattern",
    "recursive",
    "start_line",
    "subcommand",
    "timeout",
    "work_dir",
];

impl Redactor {
    /// A document with the matches replaced, and how many there were; nothing if there were none. What is no JSON is
    /// taken for plain bytes.
    pub(crate) fn replace_in_json(&self, text: &[u8], of: Document) -> Option<(Vec<u8>, u64)> {
        if self.withholds {
            return (!text.is_empty()).then(|| (emptied(text).to_vec(), 1));
        }
        let plain = self.replace(text, Edges::default());
        // Escapes are looked through in plain bytes too, but a pattern can be about the beginning of a text.
        if plain.is_none() && self.patterns.is_empty() {
            return None;
        }
        if serde_json::from_slice::<IgnoredAny>(text).is_err() {
            return plain;
        }
        let (out, count) = self.rewrite(text, of)?;
        match self.spans(&out) {
            // A secret that is itself a document lies across tokens, and none of them holds it.
            true => Some((emptied(text).to_vec(), count + 1)),
            false => (count > 0).then_some((out, count)),
        }
    }

    /// Copies a document, with the texts that hold something replaced.
    fn rewrite(&self, text: &[u8], of: Document) -> Option<(Vec<u8>, u64)> {
        let mut out = Vec::with_capacity(text.len());
        let (mut at, mut count) = (0, 0);
        let mut name: &[u8] = b"";
        while at < text.len() {
            let token = token_at(text, at);
            let bytes = &text[token.clone()];
            at = token.end;
            let redacted = match (bytes[0], of) {
                (b'"', Document::Ours) if is_name(&text[at..]) => {
                    name = bytes;
                    None
                }
                (b'"', Document::Ours) if is_word(name, bytes) => None,
                (b'"', Document::Theirs) if is_name(&text[at..]) && is_parameter(bytes) => None,
                (b'"', _) => self.within(bytes)?,
                (b'-' | b'0'..=b'9', Document::Theirs) => self.number(bytes),
                _ => None,
            };
            match redacted {
                Some((bytes, found)) => {
                    out.extend_from_slice(&bytes);
                    count += found;
                }
                None => out.extend_from_slice(bytes),
            }
        }
        Some((out, count))
    }

    /// A text without what must not be on record, with its quotes.
    #[allow(clippy::option_option, reason = "no text at all, and nothing to replace in one")]
    fn within(&self, quoted: &[u8]) -> Option<Option<(Vec<u8>, u64)>> {
        let text: String = serde_json::from_slice(quoted).ok()?;
        let Some((bytes, found)) = self.replace(text.as_bytes(), Edges::default()) else { return Some(None) };
        let quoted = serde_json::to_vec(&String::from_utf8_lossy(&bytes)).ok()?;
        Some(Some((quoted, found)))
    }

    fn number(&self, digits: &[u8]) -> Option<(Vec<u8>, u64)> {
        let (_, found) = self.replace(digits, Edges::default())?;
        Some((format!("\"{MARK}\"").into_bytes(), found))
    }

    /// Whether something lies across the borders of texts.
    fn spans(&self, text: &[u8]) -> bool {
        // Only of a secret that was named are the borders known; all else was looked for in every text.
        self.find_named(text, Edges::default()).into_iter().any(|range| text[range].contains(&b'"'))
    }
}

/// The token that begins here: a text, a number, or a byte of what holds them together.
fn token_at(text: &[u8], at: usize) -> Range<usize> {
    let rest = &text[at..];
    let length = match rest[0] {
        b'"' => {
            let mut escaped = false;
            let end = rest.iter().skip(1).position(|&byte| {
                let closes = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                closes
            });
            end.map_or(rest.len(), |end| end + 2)
        }
        b'-' | b'0'..=b'9' => {
            let part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
            rest.iter().take_while(|&byte| part(byte)).count()
        }
        _ => 1,
    };
    at..at + length
}

/// What a text is without its quotes.
fn bare(quoted: &[u8]) -> &[u8] {
    quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default()
}

/// Whether the value of this name, in a document of ours, is a word of the format: what was done, what it was done to, its mode
/// in octal digits, or a hash.
fn is_word(name: &[u8], value: &[u8]) -> bool {
    const KINDS: [&[u8]; 7] =
        [b"file", b"directory", b"symlink", b"fifo", b"socket", b"char-device", b"block-device"];
    let value = bare(value);
    match bare(name) {
        b"change" => true,
        b"kind" => KINDS.contains(&value),
        b"mode" => value.len() <= 4 && value.iter().all(|digit| (b'0'..=b'7').contains(digit)),
        b"content" | b"xattrs" => {
            let digits = value.strip_prefix(b"b3:").unwrap_or(value);
            digits.len() == 64 && digits.iter().all(u8::is_ascii_hexdigit)
        }
        _ => false,
    }
}

/// Whether a text, in its quotes, is the name of a parameter of ours.
fn is_parameter(quoted: &[u8]) -> bool {
    let bare = bare(quoted);
    PARAMETERS.iter().any(|name| name.as_bytes() == bare)
}

/// Whether a text is the name of what comes behind it.
fn is_name(behind: &[u8]) -> bool {
    behind.trim_ascii_start().first() == Some(&b':')
}

/// A document of the same kind that says only that something was in it.
fn emptied(text: &[u8]) -> &'static [u8] {
    match text.trim_ascii_start().first() {
        Some(b'[') => b"[]",
        _ => b"{\"redacted\":\"[redacted]\"}",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redaction::{Redaction, SecretPattern};

    fn check(secrets: &[&str], of: Document, text: &str, expected: &str) {
        let secrets = secrets.iter().map(|secret| secret.as_bytes().to_vec()).collect();
        let redactor = Redaction { secrets, ..Redaction::default() }.compile();
        let out = redactor.replace_in_json(text.as_bytes(), of).map(|(bytes, _)| bytes);
        let out = String::from_utf8(out.unwrap_or_else(|| text.as_bytes().to_vec())).unwrap();
        assert_eq!(out, expected, "in {text}");
    }

    #[test]
    fn a_document_stays_one() {
        let change = r#"[{"path":"/a1000","now":{"uid":1000,"text":"x 1000\n"}}]"#;
        let kept = r#"[{"path":"/a[redacted]","now":{"uid":1000,"text":"x [redacted]\n"}}]"#;
        check(&["1000"], Document::Ours, change, kept);
        check(
            &["true"],
            Document::Theirs,
            r#"{"all":true,"true":"un\"true"}"#,
            r#"{"all":true,"[redacted]":"un\"[redacted]"}"#,
        );
        let change = r#"[{"path":"/x","change":"added","now":{"text":"added"}}]"#;
        let kept = r#"[{"path":"/x","change":"added","now":{"text":"[redacted]"}}]"#;
        check(&["added", "path", "text"], Document::Ours, change, kept);
        check(&["1000"], Document::Theirs, r#"{"a":-1000.5,"b":999}"#, r#"{"a":"[redacted]","b":999}"#);
    }

    #[test]
    fn escapes_hide_nothing() {
        let secret = "p\"ss\\ w\n";
        let text = serde_json::json!({ "a": secret, "b": format!("{{\"in\":{:?}}}", secret) }).to_string();
        check(&[secret], Document::Theirs, &text, r#"{"a":"[redacted]","b":"{\"in\":\"[redacted]\"}"}"#);
    }

    #[test]
    fn a_secret_across_texts_leaves_nothing() {
        let secret = r#"{"key":"abcdef"}"#;
        let text = format!(r#"{{"login":{secret}}}"#);
        check(&[secret], Document::Theirs, &text, r#"{"redacted":"[redacted]"}"#);
        check(&[secret], Document::Ours, &format!("[{secret}]"), "[]");
    }

    #[test]
    fn patterns_are_about_the_texts_themselves() {
        let patterns = vec![SecretPattern::parse("^corp-.*$").unwrap()];
        let redactor = Redaction { patterns, ..Redaction::default() }.compile();
        let (out, found) =
            redactor.replace_in_json(br#"{"a":"corp-1","b":"x corp-"}"#, Document::Theirs).unwrap();
        assert_eq!((&out[..], found), (&br#"{"a":"[redacted]","b":"x corp-"}"#[..], 1));
    }

    #[test]
    fn what_is_no_document_is_plain_text() {
        check(&["1000"], Document::Theirs, "{\"a\": 1000", "{\"a\": [redacted]");
    }
}
