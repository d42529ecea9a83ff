//! Redaction: what must not be on record is replaced by `[redacted]` before anything is written or hashed.
//!
//! Three things are looked for: the exact secrets that the caller names, in the spellings in which they show up
//! by accident ([`secrets`]), what matches his patterns ([`patterns`]), and well-known shapes of tokens that nobody
//! named ([`shapes`]). All matches are collected first and merged where they overlap, so that two secrets with a common part leave nothing
//! behind.
//!
//! It is a net for accidents. A program that wants to get a secret on record can always spell it otherwise.

mod document;
mod patterns;
mod secrets;
mod shapes;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

pub(crate) use self::document::Document;
pub use self::document::PARAMETERS;
pub use self::patterns::SecretPattern;
use self::secrets::{Needle, Scratch};
use crate::limits::SECRET_BYTES_MIN;

/// What stands where something was replaced.
pub(crate) const MARK: &str = "[redacted]";

/// What must not be on record.
#[derive(Clone)]
pub struct Redaction {
    /// Exact values, of at least `SECRET_BYTES_MIN` bytes; shorter ones are not looked for.
    pub secrets: Vec<Vec<u8>>,
    /// What other secrets look like.
    pub patterns: Vec<SecretPattern>,
    /// Whether well-known shapes of tokens are looked for as well.
    pub shapes: bool,
}

/// A [`Redaction`] made ready for use.
#[derive(Clone)]
pub struct Redactor {
    needles: Vec<Needle>,
    patterns: Vec<SecretPattern>,
    shapes: bool,
    starts: Starts,
    /// There are more secrets than can be looked for: any text may hold one.
    withholds: bool,
}

/// Which ends of a piece were cut somewhere in a longer text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Edges {
    pub(crate) start_cut: bool,
    pub(crate) end_cut: bool,
}

/// Which needles can begin with which pair of bytes. Most places of a text begin none, and the set tells so in one look: whole
/// steps of what a box has written come through here.
#[derive(Clone)]
struct Starts {
    /// A bit for each pair.
    set: Vec<u64>,
    needles: HashMap<(u8, u8), Vec<usize>>,
    /// Whether none begins with a blank, nor with anything else that is no letter.
    skips_blanks: bool,
}

/// Places that are looked at together, before it is asked whether there is something at one of them.
const MANY: usize = 16;

/// Whether there are nothing but blanks, line ends and the like.
fn is_blank(bytes: &[u8; MANY]) -> bool {
    bytes.iter().fold(true, |all, &byte| all & (byte <= b' '))
}

impl Default for Redaction {
    /// No secrets, but the shapes.
    fn default() -> Self {
        Redaction { secrets: Vec::new(), patterns: Vec::new(), shapes: true }
    }
}

impl fmt::Debug for Redaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redaction {{ {} secrets, shapes: {} }}", self.secrets.len(), self.shapes)
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor {{ {} needles, shapes: {} }}", self.needles.len(), self.shapes)
    }
}

impl Redaction {
    /// Makes it ready for use.
    pub fn compile(&self) -> Redactor {
        let starts = Starts { set: vec![0; 1 << 16 >> 6], needles: HashMap::new(), skips_blanks: true };
        let (patterns, shapes) = (self.patterns.clone(), self.shapes);
        let mut redactor = Redactor { needles: Vec::new(), patterns, shapes, starts, withholds: false };
        self.secrets.iter().for_each(|secret| redactor.hide(secret));
        redactor
    }
}

impl Redactor {
    /// From now on this secret is replaced, too.
    pub(crate) fn hide(&mut self, secret: &[u8]) {
        if secret.len() < SECRET_BYTES_MIN {
            return;
        }
        for needle in secrets::spellings(secret) {
            let index = self.needles.len();
            needle.starts(&mut |first, second| self.starts.insert_needle(first, second, index));
            self.needles.push(needle);
        }
    }

    /// From now on everything is replaced, whatever it is.
    pub(crate) fn withhold(&mut self) {
        self.withholds = true;
    }

    /// A text of our own making without what must not be on record: nothing of a box is in it, but for names.
    pub(crate) fn own_text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.replace_found(text.as_bytes(), Edges::default()) {
            None => Cow::Borrowed(text),
            Some((bytes, _)) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    /// A text without what must not be on record.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.replace(text.as_bytes(), Edges::default()) {
            None => Cow::Borrowed(text),
            Some((bytes, _)) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    /// Bytes without what must not be on record.
    pub fn bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        match self.replace(bytes, Edges::default()) {
            None => Cow::Borrowed(bytes),
            Some((bytes, _)) => Cow::Owned(bytes),
        }
    }

    /// A piece of a longer text with the matches replaced, and how many there were; nothing if there were
    /// none.
    pub(crate) fn replace(&self, text: &[u8], edges: Edges) -> Option<(Vec<u8>, u64)> {
        match self.withholds {
            true => (!text.is_empty()).then(|| (MARK.as_bytes().to_vec(), 1)),
            false => self.replace_found(text, edges),
        }
    }

    fn replace_found(&self, text: &[u8], edges: Edges) -> Option<(Vec<u8>, u64)> {
        let found = merged(self.find(text, edges));
        if found.is_empty() {
            return None;
        }
        let mut out = Vec::with_capacity(text.len());
        let mut done = 0;
        for range in &found {
            out.extend_from_slice(&text[done..range.start]);
            out.extend_from_slice(MARK.as_bytes());
            done = range.end;
        }
        out.extend_from_slice(&text[done..]);
        Some((out, found.len() as u64))
    }

    fn find(&self, text: &[u8], edges: Edges) -> Vec<Range<usize>> {
        let mut found = self.find_named(text, edges);
        found.extend(self.patterns.iter().flat_map(|pattern| pattern.find(text)));
        if self.shapes {
            if edges.start_cut {
                found.extend(shapes::rest_at_start(text).map(|end| 0..end));
            }
            shapes::find_all(text, edges.end_cut, &mut found);
        }
        found
    }

    /// The secrets that were named.
    fn find_named(&self, text: &[u8], edges: Edges) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        if edges.start_cut {
            let rests = self.needles.iter().filter_map(|needle| needle.rest_at_start(text));
            found.extend(rests.map(|end| 0..end));
        }
        if self.needles.is_empty() {
            return found;
        }
        // Within one needle's match the same needle is not tried again: a text made of one secret over and
        // over would cost its square.
        let mut resume = vec![0; self.needles.len()];
        let mut scratch = Scratch::default();
        let mut next = 0;
        while let Some(at) = self.starts.next(text, next) {
            next = at + 1;
            for &index in self.starts.needles.get(&(text[at], text[next])).into_iter().flatten() {
                if at < resume[index] {
                    continue;
                }
                if let Some(end) = self.needles[index].end_at(text, at, edges.end_cut, &mut scratch) {
                    resume[index] = end;
                    found.push(at..end);
                }
            }
        }
        found
    }
}

impl Starts {
    fn insert_needle(&mut self, first: u8, second: u8, index: usize) {
        let bit = usize::from(first) << 8 | usize::from(second);
        self.set[bit / 64] |= 1 << (bit % 64);
        self.skips_blanks &= first > b' ';
        let needles = self.needles.entry((first, second)).or_default();
        if needles.last() != Some(&index) {
            needles.push(index);
        }
    }

    /// The next place from `at` on where a needle can begin. There is a byte behind it.
    fn next(&self, text: &[u8], mut at: usize) -> Option<usize> {
        let is_start = |pair: &[u8]| self.bit(pair[0], pair[1]) != 0;
        while let Some(part) = text.get(at..)?.first_chunk::<{ MANY + 1 }>() {
            let passes = self.skips_blanks && part.first_chunk().is_some_and(is_blank);
            if !passes && (0..MANY).fold(0, |any, n| any | self.bit(part[n], part[n + 1])) != 0 {
                return part.windows(2).position(is_start).map(|n| at + n);
            }
            at += MANY;
        }
        text[at..].windows(2).position(is_start).map(|n| at + n)
    }

    fn bit(&self, first: u8, second: u8) -> u64 {
        let bit = usize::from(first) << 8 | usize::from(second);
        self.set[bit / 64] >> (bit % 64) & 1
    }
}

/// Ranges in order, overlapping ones made one.
fn merged(mut found: Vec<Range<usize>>) -> Vec<Range<usize>> {
    found.sort_by_key(|range| (range.start, range.end));
    let mut out: Vec<Range<usize>> = Vec::new();
    for range in found {
        match out.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor(secrets: &[&str]) -> Redactor {
        let secrets = secrets.iter().map(|s| s.as_bytes().to_vec()).collect();
        Redaction { secrets, ..Redaction::default() }.compile()
    }

    fn check(secrets: &[&str], text: &str, expected: &str) {
        assert_eq!(redactor(secrets).text(text), expected, "in {text:?}");
    }

    fn check_piece(secrets: &[&str], text: &str, edges: Edges, expected: &str) {
        let out = redactor(secrets).replace(text.as_bytes(), edges).map(|(bytes, _)| bytes);
        let out = out.unwrap_or_else(|| text.as_bytes().to_vec());
        assert_eq!(String::from_utf8_lossy(&out), expected, "in {text:?}");
    }

    #[test]
    fn every_occurrence_of_a_secret_is_replaced() {
        check(&["hunter2"], "a hunter2, hunter2hunter2.", "a [redacted], [redacted][redacted].");
        check(&["hunter2"], "hunter", "hunter");
    }

    #[test]
    fn it_does_not_matter_where_in_a_text_something_stands() {
        let redactor = redactor(&["hunter2"]);
        let token = format!("ghp_{}", "a1".repeat(18));
        for (found, filling) in [("hunter2", "h"), (&*token, "g"), ("hunter2", " "), (&*token, " ")] {
            for (before, after) in (0..40).flat_map(|before| (0..20).map(move |after| (before, after))) {
                let [before, after] = [before, after].map(|length| filling.repeat(length));
                let text = format!("{before} {found} {after}");
                assert_eq!(redactor.text(&text), format!("{before} [redacted] {after}"), "in {text:?}");
            }
        }
    }

    #[test]
    fn what_matches_a_pattern_is_replaced_whatever_else_is_found_there() {
        let patterns = vec![SecretPattern::parse("corp-[0-9a-f]+").unwrap()];
        let redaction = Redaction { secrets: vec![b"1234xy".to_vec()], patterns, shapes: true };
        assert_eq!(redaction.compile().text("a corp-ab1234xy z corp-7"), "a [redacted] z [redacted]");
    }

    #[test]
    fn overlapping_secrets_leave_nothing_behind() {
        check(&["abcdef", "cdefgh"], "xabcdefghy", "x[redacted]y");
    }

    #[test]
    fn short_secrets_are_not_looked_for() {
        check(&["abc"], "abc", "abc");
        check(&["abcd"], "abcd", "[redacted]");
    }

    #[test]
    fn bytes_that_are_not_text_are_replaced_too() {
        let secrets = vec![b"\xff\xfe\x00\x01".to_vec()];
        let redactor = Redaction { secrets, shapes: false, ..Redaction::default() }.compile();
        assert_eq!(&*redactor.bytes(b"a\xff\xfe\x00\x01b"), b"a[redacted]b");
    }

    #[test]
    fn a_secret_cut_at_the_end_of_a_head_is_replaced() {
        let end_cut = Edges { end_cut: true, ..Edges::default() };
        check_piece(&["correct horse"], "it is correct h", end_cut, "it is [redacted]");
        check_piece(&["correct horse"], "it is correct%2", end_cut, "it is [redacted]");
        check_piece(&["correct horse"], "it is correct h", Edges::default(), "it is correct h");
        check_piece(&[], "token ghp_012345", end_cut, "token [redacted]");
        check_piece(&[], "token ghp_012345", Edges::default(), "token ghp_012345");
    }

    #[test]
    fn a_secret_cut_at_the_start_of_a_tail_is_replaced() {
        let start_cut = Edges { start_cut: true, ..Edges::default() };
        check_piece(&["correct horse"], "ect horse it is", start_cut, "[redacted] it is");
        check_piece(&["correct horse"], "0horse it is", start_cut, "[redacted] it is");
        check_piece(&["correct horse"], "ect horse it is", Edges::default(), "ect horse it is");
        check_piece(&[], "4h5Gq9aZ0b1c2d3e4f5 rest", start_cut, "[redacted] rest");
        check_piece(&[], "an ordinary end of a line", start_cut, "an ordinary end of a line");
    }

    #[test]
    fn debug_output_holds_no_secret() {
        let redaction = Redaction { secrets: vec![b"hunter2".to_vec()], ..Redaction::default() };
        assert!(!format!("{redaction:?}{:?}", redaction.compile()).contains("hunter2"));
    }

    #[test]
    fn a_text_of_nothing_but_a_secret_costs_little() {
        let secret = "a".repeat(4096);
        let text = "a".repeat(1 << 20);
        check(&[&secret], &text, &"[redacted]".repeat(256));
    }
}
