//! Two texts side by side, for people: a unified diff of bounded size.

use std::fmt::Write as _;

use similar::{ChangeTag, TextDiff};

use super::limits::{DIFF_BYTES_MAX, DIFF_LINE_BYTES_MAX, DIFF_LINES_MAX};
use super::text::Text;

/// How many lines that are the same are shown around a difference.
const CONTEXT: usize = 3;
/// How many bytes are shown around the first one that differs.
const BYTES_SHOWN: usize = 16;

/// The difference between two texts, lines of the first behind `-`, of the second behind `+`.
pub(crate) fn unified(expected: &str, actual: &str) -> String {
    let before: Vec<&str> = expected.split_inclusive('\n').collect();
    let after: Vec<&str> = actual.split_inclusive('\n').collect();
    // Most texts are the same but for a few lines; setting the rest aside keeps the search small.
    let head = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
    let most = before.len().min(after.len()) - head;
    let tail = before.iter().rev().zip(after.iter().rev()).take(most).take_while(|(a, b)| a == b).count();
    let start = head.saturating_sub(CONTEXT);
    let part = |lines: &[&str]| {
        let end = (lines.len() - tail + CONTEXT).min(lines.len());
        let shown = end.min(start + DIFF_LINES_MAX);
        (lines[start..shown].concat(), end - shown)
    };
    let ((before, before_cut), (after, after_cut)) = (part(&before), part(&after));
    let mut out = Shown::default();
    hunks(&before, &after, start, &mut out);
    for (mark, cut) in [('-', before_cut), ('+', after_cut)] {
        if cut > 0 {
            out.line(mark, &format!("… {cut} more lines are not compared"));
        }
    }
    out.finish()
}

fn hunks(before: &str, after: &str, start: usize, out: &mut Shown) {
    // A carriage return alone ends no line, as where the lines are counted.
    let before: Vec<&str> = before.split_inclusive('\n').collect();
    let after: Vec<&str> = after.split_inclusive('\n').collect();
    let diff = TextDiff::from_slices(&before, &after);
    for group in diff.grouped_ops(CONTEXT) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let range = |first: usize, last: usize| match last - first {
            0 => format!("{},0", start + first),
            1 => format!("{}", start + first + 1),
            lines => format!("{},{lines}", start + first + 1),
        };
        let old = range(first.old_range().start, last.old_range().end);
        let new = range(first.new_range().start, last.new_range().end);
        out.whole(&format!("@@ -{old} +{new} @@"));
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let mark = match change.tag() {
                ChangeTag::Equal => ' ',
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
            };
            out.line(mark, change.value());
        }
    }
}

/// What differs between bytes of which some are no text.
pub(crate) fn bytes(expected: &Text, actual: &Text) -> String {
    let (a, b) = (expected.bytes(), actual.bytes());
    let at = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let shown = |bytes: &[u8]| {
        let part = &bytes[at.min(bytes.len())..(at + BYTES_SHOWN).min(bytes.len())];
        let hex: Vec<String> = part.iter().map(|byte| format!("{byte:02x}")).collect();
        if hex.is_empty() { "(end)".to_owned() } else { hex.join(" ") }
    };
    format!("@@ byte {at} of {} and {} @@\n-{}\n+{}\n", a.len(), b.len(), shown(a), shown(b))
}

/// Text as it grows to what is shown at the most.
#[derive(Default)]
struct Shown {
    out: String,
    left_out: u64,
}

impl Shown {
    fn whole(&mut self, line: &str) {
        match self.out.len() + line.len() < DIFF_BYTES_MAX {
            true => {
                let _ = writeln!(self.out, "{line}");
            }
            false => self.left_out += 1,
        }
    }

    fn line(&mut self, mark: char, line: &str) {
        let (text, ends) = match line.strip_suffix('\n') {
            Some(text) => (text, true),
            None => (line, false),
        };
        let cut = clipped(text, DIFF_LINE_BYTES_MAX);
        let more = text.len() - cut.len();
        let more = if more == 0 { String::new() } else { format!("… {more} more bytes") };
        self.whole(&format!("{mark}{cut}{more}"));
        if !ends && !line.starts_with('…') {
            self.whole("\\ No newline at end of file");
        }
    }

    fn finish(mut self) -> String {
        if self.left_out > 0 {
            let _ = writeln!(self.out, "… {} more lines", self.left_out);
        }
        self.out
    }
}

/// As much of a text as fits, cut at a character.
pub(crate) fn clipped(text: &str, bytes_max: usize) -> &str {
    if text.len() <= bytes_max {
        return text;
    }
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_differ_are_shown_with_those_around_them() {
        let before: String = (1..=20).map(|n| format!("{n}\n")).collect();
        let after = before.replace("\n10\n", "\nten\n");
        let expected = "@@ -7,7 +7,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n";
        assert_eq!(unified(&before, &after), expected);
    }

    #[test]
    fn ends_matter() {
        assert_eq!(unified("a\n", "a"), "@@ -1 +1 @@\n-a\n+a\n\\ No newline at end of file\n");
        assert_eq!(unified("", "a\n"), "@@ -0,0 +1 @@\n+a\n");
        assert_eq!(unified("a\n", ""), "@@ -1 +0,0 @@\n-a\n");
        assert_eq!(unified("a\na\n", "a\n"), "@@ -1,2 +1 @@\n a\n-a\n");
        assert_eq!(unified("x\ry\nz\n", "x\rw\nz\n"), "@@ -1,2 +1,2 @@\n-x\ry\n+x\rw\n z\n");
    }

    #[test]
    fn what_is_shown_is_bounded() {
        let before: String = (0..200_000).map(|n| format!("{n}\n")).collect();
        let after: String = (0..200_000).map(|n| format!("{}\n", n * 7 + 1)).collect();
        assert!(unified(&before, &after).len() < DIFF_BYTES_MAX + 200);
        let long = "x".repeat(10_000_000);
        assert!(unified(&long, &format!("{long}y")).len() < 3 * DIFF_LINE_BYTES_MAX);
        assert_eq!(clipped("aä", 2), "a");
    }

    #[test]
    fn bytes_are_shown_where_they_begin_to_differ() {
        let text = bytes(&Text::of(b"\xff\x00\x01".to_vec()), &Text::of(b"\xff\x00".to_vec()));
        assert_eq!(text, "@@ byte 2 of 3 and 2 @@\n-01\n+(end)\n");
    }
}
