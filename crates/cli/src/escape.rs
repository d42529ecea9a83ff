//! What a box wrote, made fit for the user's terminal.
//!
//! A box is hostile: escape sequences in its output could fill the clipboard, retitle the window, make the
//! terminal type answers, or hide what happened. [`Filter`] lets text and colours (`CSI … m`) through and
//! spells out the rest; it holds back at most one unfinished sequence, so that no half of one ever reaches
//! the terminal, whatever the borders between chunks and whatever the other stream writes. [`plain`] is for
//! names in tables and sentences.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The longest colour sequence that is let through.
const SEQUENCE_BYTES_MAX: usize = 128;

const ESC: u8 = 0x1b;

/// Text and colours pass, everything else that a terminal would act on is spelled out.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    /// The beginning of an escape sequence or of a character, to be judged when its rest has come.
    held: Vec<u8>,
    /// A colour was let through and not taken back.
    coloured: bool,
}

impl Filter {
    /// Adds to `out` what may be shown of `bytes` and of what was held back before.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut rest = bytes;
        while let Some(&byte) = rest.first() {
            if self.held.is_empty() {
                let text = rest.iter().position(|&b| !is_text(b)).unwrap_or(rest.len());
                if text > 0 {
                    out.extend_from_slice(&rest[..text]);
                    rest = &rest[text..];
                    continue;
                }
                self.ground(byte, out);
            } else if self.held[0] == ESC {
                self.sequence(byte, out);
            } else {
                self.character(byte, out);
            }
            rest = &rest[1..];
        }
    }

    /// The end: nothing stays held back, and no colour stays on.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        self.spell_held(out);
        if std::mem::take(&mut self.coloured) {
            out.extend_from_slice(b"\x1b[0m");
        }
    }

    /// A byte that begins something.
    fn ground(&mut self, byte: u8, out: &mut Vec<u8>) {
        match byte {
            ESC | 0xc2..=0xf4 => self.held.push(byte),
            byte if is_text(byte) => out.push(byte),
            byte => spell(byte, out),
        }
    }

    /// A byte after an escape. Only digits and their separators may stand before the `m`: `CSI > … m` and
    /// `CSI ? … m` are no colours.
    fn sequence(&mut self, byte: u8, out: &mut Vec<u8>) {
        let begun = self.held.len() > 1;
        match byte {
            b'[' if !begun => self.held.push(byte),
            b'0'..=b';' if begun && self.held.len() < SEQUENCE_BYTES_MAX => self.held.push(byte),
            b'm' if begun => {
                self.coloured = !matches!(&self.held[2..], b"" | b"0");
                out.append(&mut self.held);
                out.push(byte);
            }
            byte => {
                self.spell_held(out);
                self.ground(byte, out);
            }
        }
    }

    /// A byte after the first of a character beyond ASCII.
    fn character(&mut self, byte: u8, out: &mut Vec<u8>) {
        self.held.push(byte);
        match std::str::from_utf8(&self.held) {
            Ok(text) => {
                // A terminal takes U+0080 to U+009F for the short forms of escape sequences.
                match text.chars().next().filter(|c| c.is_control()) {
                    Some(control) => out.extend_from_slice(format!("\\u{{{:x}}}", control as u32).as_bytes()),
                    None => out.extend_from_slice(text.as_bytes()),
                }
                self.held.clear();
            }
            Err(e) if e.error_len().is_none() => {}
            Err(_) => {
                self.held.pop();
                self.spell_held(out);
                self.ground(byte, out);
            }
        }
    }

    fn spell_held(&mut self, out: &mut Vec<u8>) {
        for byte in self.held.drain(..) {
            if is_text(byte) { out.push(byte) } else { spell(byte, out) }
        }
    }
}

/// Bytes that may always pass. A carriage return can overwrite its own line, which progress bars need.
fn is_text(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\n' | b'\t' | b'\r' | 0x08)
}

fn spell(byte: u8, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(&[b'\\', b'x', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
}

/// Whether a terminal may do more than show it: controls, ends of lines, marks of direction, invisible ones.
pub(crate) fn is_unsafe(char: char) -> bool {
    char.is_control()
        || matches!(char,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A name of somebody else's on one line, with nothing in it that a terminal could act on.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        // Writing to a string cannot fail.
        let _ = match char {
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            char if !is_unsafe(char) => write!(out, "{char}"),
            char if char.is_ascii() => write!(out, "\\x{:02x}", char as u32),
            char => write!(out, "\\u{{{:x}}}", char as u32),
        };
    }
    Cow::Owned(out)
}

/// The words of a command on one line, set in quotes where a shell would want them.
pub(crate) fn command_line(words: &[String]) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    let word = |word: &String| match word {
        word if !word.is_empty() && word.chars().all(bare) => word.clone(),
        word => format!("'{}'", plain(word).replace('\'', r"'\''")),
    };
    words.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(chunks: &[&[u8]]) -> Vec<u8> {
        let (mut filter, mut out) = (Filter::default(), Vec::new());
        for chunk in chunks {
            filter.push(chunk, &mut out);
        }
        filter.finish(&mut out);
        out
    }

    /// The same comes out whole, in two pieces cut anywhere, and byte by byte.
    fn check(input: &[u8], expected: &[u8]) {
        assert_eq!(filtered(&[input]).escape_ascii().to_string(), expected.escape_ascii().to_string());
        for cut in 0..=input.len() {
            let (a, b) = input.split_at(cut);
            assert_eq!(filtered(&[a, b]), expected, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        assert_eq!(filtered(&bytes), expected);
    }

    #[test]
    fn text_and_colours_pass() {
        check(b"plain\ttext\r\n50%\x08\n", b"plain\ttext\r\n50%\x08\n");
        check("grüße 😀 \u{200d} 日本".as_bytes(), "grüße 😀 \u{200d} 日本".as_bytes());
        check(b"\x1b[31mred\x1b[0m", b"\x1b[31mred\x1b[0m");
        check(b"\x1b[1;38;2;255;0;10mx\x1b[m", b"\x1b[1;38;2;255;0;10mx\x1b[m");
        check(b"\x1b[4:3mcurly\x1b[0m", b"\x1b[4:3mcurly\x1b[0m");
    }

    #[test]
    fn a_colour_left_on_is_taken_back_at_the_end() {
        check(b"\x1b[31mred", b"\x1b[31mred\x1b[0m");
    }

    #[test]
    fn everything_else_is_spelled_out() {
        check(b"\x1b]52;c;ZXZpbA==\x07", b"\\x1b]52;c;ZXZpbA==\\x07");
        check(b"\x1b]0;title\x1b\\", b"\\x1b]0;title\\x1b\\");
        check(b"\x1b[6n\x1b[2J\x1b[H", b"\\x1b[6n\\x1b[2J\\x1b[H");
        check(
            b"\x1b]8;;file:///etc/passwd\x1b\\here\x1b]8;;\x1b\\",
            b"\\x1b]8;;file:///etc/passwd\\x1b\\here\\x1b]8;;\\x1b\\",
        );
        check(b"\x1bPq#0\x1b\\ \x1b_x\x1b\\ \x1b^x\x1bX", b"\\x1bPq#0\\x1b\\ \\x1b_x\\x1b\\ \\x1b^x\\x1bX");
        check(b"\x1bc\x1b7\x1b(0\x1b#8\x1b%G", b"\\x1bc\\x1b7\\x1b(0\\x1b#8\\x1b%G");
        check(
            b"bell\x07 so\x0e si\x0f vt\x0b ff\x0c nul\0 del\x7f",
            b"bell\\x07 so\\x0e si\\x0f vt\\x0b ff\\x0c nul\\x00 del\\x7f",
        );
    }

    #[test]
    fn what_only_looks_like_a_colour_is_spelled_out() {
        check(b"\x1b[>4;2m", b"\\x1b[>4;2m");
        check(b"\x1b[?4m", b"\\x1b[?4m");
        check(b"\x1b[1 m", b"\\x1b[1 m");
        check(b"\x1b[3\n1m", b"\\x1b[3\n1m");
        check(b"\x1b[3\x1b[1m", b"\\x1b[3\x1b[1m\x1b[0m");
        check(b"\x1b\x1b[6n", b"\\x1b\\x1b[6n");
        check(b"\x1b[31", b"\\x1b[31");
        check(b"\x1b", b"\\x1b");
    }

    #[test]
    fn c1_controls_are_spelled_out_however_they_are_written() {
        check("\u{9b}6n \u{9d}0;t\u{9c} \u{85}".as_bytes(), b"\\u{9b}6n \\u{9d}0;t\\u{9c} \\u{85}");
        check(b"\x9b6n \x9d0;t\x9c", b"\\x9b6n \\x9d0;t\\x9c");
        check(b"\xc2\x1b[6n", b"\\xc2\\x1b[6n");
    }

    #[test]
    fn bytes_that_are_no_characters_are_spelled_out() {
        check(b"\xff\xfe\xc0\xaf\xf5", b"\\xff\\xfe\\xc0\\xaf\\xf5");
        check(b"\xe2\x82A\xe2\x82", b"\\xe2\\x82A\\xe2\\x82");
        check(b"\xed\xa0\x80", b"\\xed\\xa0\\x80");
        check(b"\xe0\x9b\x9b", b"\\xe0\\x9b\\x9b");
        check(b"\xf0\x9f\x98", b"\\xf0\\x9f\\x98");
    }

    #[test]
    fn an_endless_sequence_is_not_held_for_ever() {
        let (mut filter, mut out) = (Filter::default(), Vec::new());
        filter.push(b"\x1b[", &mut out);
        for _ in 0..10_000 {
            filter.push(b"1;", &mut out);
            assert!(filter.held.len() <= SEQUENCE_BYTES_MAX);
        }
        filter.push(b"m", &mut out);
        filter.finish(&mut out);
        assert_eq!(out.len(), "\\x1b[".len() + 20_000 + 1);
    }

    #[test]
    fn no_escape_but_a_colour_comes_through_whatever_is_put_in() {
        // A fixed, small generator: every byte value, escapes often.
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u8
        };
        let input: Vec<u8> =
            (0..200_000)
                .map(|_| {
                    if next() < 40 {
                        [ESC, b'[', b'm', b'0', 0xc2, 0x9b][next() as usize % 6]
                    } else {
                        next()
                    }
                })
                .collect();
        let out = filtered(&input.chunks(7).collect::<Vec<_>>());
        let text = String::from_utf8(out).unwrap();
        let mut rest = text.as_str();
        while let Some(at) = rest.find(|c: char| c.is_control() && !"\n\t\r\u{8}".contains(c)) {
            let after = rest[at..].strip_prefix("\u{1b}[").expect("only a sequence has a control character");
            let end = after.find(|c: char| !c.is_ascii_digit() && c != ';' && c != ':').unwrap();
            assert_eq!(&after[end..=end], "m");
            rest = &after[end..];
        }
    }

    #[test]
    fn names_hold_nothing_to_act_on() {
        assert_eq!(plain("web-1"), "web-1");
        assert_eq!(plain("a\x1b[31m\nb\u{9b}\u{202e}"), "a\\x1b[31m\\nb\\u{9b}\\u{202e}");
        let all: String = (0..=0x10ffff).filter_map(char::from_u32).collect();
        assert!(!plain(&all).chars().any(is_unsafe));
    }

    #[test]
    fn commands_are_quoted() {
        let words = ["sh", "-c", "it's $HOME", "", "a\x1bb"].map(str::to_owned);
        assert_eq!(command_line(&words), r"sh -c 'it'\''s $HOME' '' 'a\x1bb'");
    }
}
