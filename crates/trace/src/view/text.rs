//! Recorded text made fit for a terminal.
//!
//! What a box wrote is hostile: it may move the cursor, change the title, or forge lines of the view. Nothing
//! here ever lets through a control character, an invisible one, or one that changes the direction of the
//! text.

use std::fmt::Write;

/// The width of a tab stop.
const TAB: usize = 8;

/// One line of text, whatever it contains. Tabs become spaces, everything else that is not plain is spelled
/// out.
pub(super) fn plain(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    let mut column = 0;
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            let before = out.len();
            match char {
                '\t' => out.extend(std::iter::repeat_n(' ', TAB - column % TAB)),
                char => push(&mut out, char),
            }
            column += out[before..].chars().count();
        }
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\x{byte:02x}");
            column += 4;
        }
    }
    out
}

/// A word as it would be typed into a shell.
pub(super) fn quoted(word: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(bare) {
        return word.to_owned();
    }
    if !word.chars().any(is_unsafe) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut out = String::from("$'");
    for char in word.chars() {
        match char {
            '\'' | '\\' => out.extend(['\\', char]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // A shell would take further hex digits into `\x1b`, so everything else is written by its bytes.
            char if is_unsafe(char) => char.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| {
                let _ = write!(out, "\\{byte:03o}");
            }),
            char => out.push(char),
        }
    }
    out.push('\'');
    out
}

/// JSON that says the same and holds no unsafe character. These can only be inside of strings.
pub(super) fn safe_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for char in json.chars() {
        if is_unsafe(char) {
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(char);
        }
    }
    out
}

/// At most `width` characters, the last of them a sign if there were more.
pub(super) fn clipped(text: String, width: Option<usize>) -> String {
    let Some(width) = width else { return text };
    match text.char_indices().nth(width.max(1)) {
        None => text,
        Some(_) => text.chars().take(width.max(1) - 1).chain(['…']).collect(),
    }
}

fn push(out: &mut String, char: char) {
    let _ = match char {
        '\n' => write!(out, "\\n"),
        '\r' => write!(out, "\\r"),
        '\t' => write!(out, "\\t"),
        char if !is_unsafe(char) => write!(out, "{char}"),
        char if char.is_ascii() => write!(out, "\\x{:02x}", char as u32),
        char => write!(out, "\\u{{{:x}}}", char as u32),
    };
}

/// Whether a terminal may do anything but show it: controls, ends of lines, marks of direction, invisible
/// ones.
fn is_unsafe(char: char) -> bool {
    char.is_control()
        || matches!(char,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_plain_characters_comes_through() {
        let all: String = (0..=0x10ffff).filter_map(char::from_u32).collect();
        for text in [plain(all.as_bytes()), quoted(&all), safe_json(&all)] {
            assert!(!text.chars().any(is_unsafe));
        }
    }

    #[test]
    fn controls_and_lone_bytes_are_spelled_out() {
        assert_eq!(plain(b"\x1b[31mred\x07\xff\x9b"), "\\x1b[31mred\\x07\\xff\\x9b");
        assert_eq!(plain("a\nb\r\u{2028}c\u{9b}\u{202e}".as_bytes()), "a\\nb\\r\\u{2028}c\\u{9b}\\u{202e}");
        assert_eq!(plain("grüße 😀".as_bytes()), "grüße 😀");
    }

    #[test]
    fn tabs_reach_the_next_stop() {
        assert_eq!(plain(b"ab\tc"), "ab      c");
        assert_eq!(plain(b"12345678\tc"), "12345678        c");
    }

    #[test]
    fn words_are_quoted_as_a_shell_needs_it() {
        assert_eq!(quoted("--flag=a/b"), "--flag=a/b");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted("a\nb'\u{1b}0"), r"$'a\nb\'\0330'");
        assert_eq!(quoted("\u{202e}"), r"$'\342\200\256'");
    }

    #[test]
    fn safe_json_says_the_same() {
        let text = "\u{7f}\u{9b}\u{2028}\u{e0041}\n";
        let json = safe_json(&serde_json::to_string(text).unwrap());
        assert!(json.is_ascii());
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn long_text_is_clipped_by_characters() {
        assert_eq!(clipped("äöüß".to_owned(), Some(4)), "äöüß");
        assert_eq!(clipped("äöüß".to_owned(), Some(3)), "äö…");
        assert_eq!(clipped("äöüß".to_owned(), None), "äöüß");
    }
}
