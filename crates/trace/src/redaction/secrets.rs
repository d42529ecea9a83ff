//! Exact secrets, in the spellings in which they show up by accident.
//!
//! A secret becomes several needles: itself, its hex digits, and its base64 at each of the three places that
//! it can have in a longer encoded text (which is how a password ends up in an `Authorization: Basic`
//! header). Any byte of a needle may besides be percent-encoded, or escaped as in JSON or in a shell's
//! quotes, whatever the encoder thought worth escaping; that is a property of the comparison and needs no
//! needles of its own.

use crate::limits::SECRET_BYTES_MIN;

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL_SAFE: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// The longest spelling of one byte: `\u0041`.
const SPELLING_BYTES_MAX: usize = 6;

/// One spelling of a secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Needle {
    bytes: Vec<u8>,
    /// Hex digits come in either case.
    fold_case: bool,
    /// Bytes that an encoder may have put between two others: line breaks, or what separates hex digits.
    skip: &'static [u8],
}

/// A text to look in.
#[derive(Clone, Copy)]
struct Text<'a> {
    bytes: &'a [u8],
    end_cut: bool,
}

/// Places in a text from which a comparison can go on, kept from one comparison to the next to save
/// allocations.
#[derive(Default)]
pub(super) struct Scratch {
    places: Vec<usize>,
    next: Vec<usize>,
}

/// The spellings of a secret.
pub(super) fn spellings(secret: &[u8]) -> Vec<Needle> {
    let mut needles = Vec::new();
    let mut add = |needle: Needle| {
        if !needles.contains(&needle) {
            needles.push(needle);
        }
    };
    add(Needle { bytes: secret.to_vec(), fold_case: false, skip: b"" });
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    add(Needle { bytes: hex.into_bytes(), fold_case: true, skip: b"\r\n :" });
    for alphabet in [STANDARD, URL_SAFE] {
        for offset in 0..3 {
            add(Needle { bytes: base64_within(secret, offset, alphabet), fold_case: false, skip: b"\r\n" });
        }
    }
    needles
}

/// The characters that a secret `offset` bytes behind a multiple of three surely has in base64. Those at its
/// ends that depend on its neighbours as well are left out.
fn base64_within(secret: &[u8], offset: usize, alphabet: &[u8; 64]) -> Vec<u8> {
    let bit = |index: usize| {
        let byte = (index / 8).checked_sub(offset).and_then(|at| secret.get(at));
        usize::from(byte.is_some_and(|byte| byte & (0x80 >> (index % 8)) != 0))
    };
    let first = (offset * 8).div_ceil(6);
    let end = (offset + secret.len()) * 8 / 6;
    (first..end)
        .map(|char| alphabet[(char * 6..char * 6 + 6).fold(0, |sum, index| sum << 1 | bit(index))])
        .collect()
}

impl Needle {
    /// Tells all pairs of bytes with which it can begin.
    pub(super) fn starts(&self, insert: &mut dyn FnMut(u8, u8)) {
        let [first, second, ..] = self.bytes[..] else { return };
        let mut seconds = self.cases(second).to_vec();
        seconds.extend_from_slice(b"%\\\r+");
        seconds.extend_from_slice(self.skip);
        for spelled in self.cases(first).into_iter().chain((first == b' ').then_some(b'+')) {
            seconds.iter().for_each(|&second| insert(spelled, second));
        }
        for digit in self.cases(first).map(|byte| format!("{byte:02x}").as_bytes()[0]) {
            insert(b'%', digit);
            insert(b'%', digit.to_ascii_uppercase());
        }
        b"xu".iter().copied().chain(short_escape(first)).for_each(|escape| insert(b'\\', escape));
    }

    /// Where it ends if it begins at `at`. A text that was cut may end within it, but not within its first
    /// bytes.
    pub(super) fn end_at(
        &self,
        text: &[u8],
        at: usize,
        end_cut: bool,
        scratch: &mut Scratch,
    ) -> Option<usize> {
        self.match_from(0, Text { bytes: text, end_cut }, at, scratch)
    }

    /// Where its rest ends if the text begins within it.
    pub(super) fn rest_at_start(&self, text: &[u8]) -> Option<usize> {
        let mut scratch = Scratch::default();
        let text = Text { bytes: text, end_cut: false };
        let starts = 0..SPELLING_BYTES_MAX.min(text.bytes.len());
        (1..=self.bytes.len().saturating_sub(SECRET_BYTES_MIN))
            .find_map(|from| starts.clone().find_map(|at| self.match_from(from, text, at, &mut scratch)))
    }

    /// Where it ends if its byte number `from` stands at `at`.
    fn match_from(&self, from: usize, text: Text<'_>, at: usize, scratch: &mut Scratch) -> Option<usize> {
        // A `%` or a backslash can stand for itself or begin an escape, so there can be several places to go
        // on from.
        let Scratch { places, next } = scratch;
        places.clear();
        places.push(at);
        for (count, &byte) in self.bytes[from..].iter().enumerate() {
            next.clear();
            for &place in &*places {
                let place = if count == 0 { place } else { self.skipped(text.bytes, place, byte) };
                if text.end_cut && count >= SECRET_BYTES_MIN && cut_within(text.bytes, place) {
                    return Some(text.bytes.len());
                }
                self.after(text.bytes, place, byte, next);
            }
            if next.is_empty() {
                return None;
            }
            if next.len() > 1 {
                next.sort_unstable();
                next.dedup();
            }
            std::mem::swap(places, next);
        }
        places.last().copied()
    }

    /// The place behind what may stand between two bytes. A terminal writes `\r\n` for a newline.
    fn skipped(&self, text: &[u8], mut place: usize, byte: u8) -> usize {
        let terminal: &[u8] = if byte == b'\n' { b"\r" } else { b"" };
        while text.get(place).is_some_and(|&b| b != byte && (self.skip.contains(&b) || terminal.contains(&b)))
        {
            place += 1;
        }
        place
    }

    /// Adds the places behind each spelling of `byte` that stands at `place`.
    fn after(&self, text: &[u8], place: usize, byte: u8, next: &mut Vec<usize>) {
        let rest = &text[place.min(text.len())..];
        let same = |other: u8| other == byte || self.fold_case && other.eq_ignore_ascii_case(&byte);
        match rest {
            [b, ..] if same(*b) => next.push(place + 1),
            [b'+', ..] if byte == b' ' => next.push(place + 1),
            _ => {}
        }
        match rest {
            [b'%', digits @ ..] if hex(digits, 2).is_some_and(same) => next.push(place + 3),
            [b'\\', b'x', digits @ ..] if hex(digits, 2).is_some_and(same) => next.push(place + 4),
            [b'\\', b'u', b'0', b'0', digits @ ..] if hex(digits, 2).is_some_and(same) => {
                next.push(place + 6)
            }
            [b'\\', escape, ..] if short_escape(byte) == Some(*escape) => next.push(place + 2),
            _ => {}
        }
    }

    fn cases(&self, byte: u8) -> [u8; 2] {
        if self.fold_case { [byte.to_ascii_lowercase(), byte.to_ascii_uppercase()] } else { [byte; 2] }
    }
}

/// Whether the text ends at `place`, or within an escape that begins there.
fn cut_within(text: &[u8], place: usize) -> bool {
    match text.get(place) {
        None => true,
        Some(b'%' | b'\\') => text.len() - place < SPELLING_BYTES_MAX,
        Some(_) => false,
    }
}

fn hex(digits: &[u8], count: usize) -> Option<u8> {
    let digits = std::str::from_utf8(digits.get(..count)?).ok()?;
    u8::from_str_radix(digits, 16).ok()
}

/// The letter with which JSON and shells escape a byte behind a backslash.
fn short_escape(byte: u8) -> Option<u8> {
    match byte {
        b'\n' => Some(b'n'),
        b'\r' => Some(b'r'),
        b'\t' => Some(b't'),
        b'"' | b'\'' | b'\\' | b'/' | b'$' | b'`' | b'!' | b' ' => Some(byte),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redaction::Redaction;

    const SECRET: &str = "p/ss w\"rd+\n%41é";

    /// The whole text is one spelling of the secret.
    fn check(text: &str) {
        let redaction =
            Redaction { secrets: vec![SECRET.as_bytes().to_vec()], shapes: false, ..Redaction::default() };
        let out = redaction.compile().text(text).into_owned();
        assert_eq!(out, "[redacted]", "for {text:?}");
    }

    fn base64(bytes: &[u8]) -> String {
        let mut out = String::new();
        for chunk in bytes.chunks(3) {
            let word =
                chunk.iter().fold(0usize, |sum, &b| sum << 8 | usize::from(b)) << (8 * (3 - chunk.len()));
            for index in 0..4 {
                let char = STANDARD[word >> (18 - 6 * index) & 63] as char;
                out.push(if index <= chunk.len() { char } else { '=' });
            }
        }
        out
    }

    #[test]
    fn spellings_of_other_encoders_are_found() {
        check(SECRET);
        check("p/ss w\"rd+\r\n%41é");
        check("p%2Fss%20w%22rd%2B%0A%2541%C3%A9");
        check("p/ss+w%22rd%2b%0a%2541%c3%a9");
        check("p/ss w\\\"rd+\\n%41é");
        check("p\\/ss w\\u0022rd+\\u000a%41é");
        check("p/ss w\"rd+\\n%41\\xc3\\xa9");
    }

    #[test]
    fn hex_is_found_in_either_case_and_grouped() {
        let pairs: Vec<String> = SECRET.bytes().map(|b| format!("{b:02x}")).collect();
        check(&pairs.concat());
        check(&pairs.concat().to_uppercase());
        check(&pairs.join(":"));
        check(&pairs.join(" "));
    }

    #[test]
    fn base64_is_found_at_every_place_and_across_lines() {
        let redactor =
            Redaction { secrets: vec![SECRET.as_bytes().to_vec()], shapes: false, ..Redaction::default() }
                .compile();
        for before in ["", "u", "us", "use", "user"] {
            let text = base64(format!("{before}{SECRET}:x").as_bytes());
            let wrapped: Vec<&str> =
                text.as_bytes().chunks(8).map(|c| std::str::from_utf8(c).unwrap()).collect();
            for text in [text.clone(), wrapped.join("\n"), text.replace('+', "-").replace('/', "_")] {
                let out = redactor.text(&text).into_owned();
                assert!(out.contains("[redacted]"), "{text:?} stays {out:?}");
                assert!(out.len() < "[redacted]".len() + 16, "{text:?} leaves {out:?}");
            }
        }
    }
}
