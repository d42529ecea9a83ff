//! What differs between two texts, line by line.

use std::fmt::Write as _;
use std::time::Duration;

use crate::limits::COMPARE_TIME_MAX;

/// The differences as `diff -u` tells them, without a header. The same texts: nothing.
pub fn unified(before: &str, now: &str) -> String {
    unified_within(before, now, COMPARE_TIME_MAX)
}

/// The same, with so much time to look for few differences.
///
/// A line ends where `patch` and `git` end it, at its line feed. To the crate that compares, a carriage return alone ends one,
/// too; a patch of such lines fits no file, so it is given lines, and what it finds is written here.
pub fn unified_within(before: &str, now: &str, time: Duration) -> String {
    let before: Vec<&str> = before.split_inclusive('\n').collect();
    let now: Vec<&str> = now.split_inclusive('\n').collect();
    let mut config = similar::TextDiff::configure();
    config.timeout(time);
    let diff = config.diff_slices(&before, &now);
    let mut out = String::new();
    for hunk in diff.unified_diff().iter_hunks() {
        let _ = writeln!(out, "{}", hunk.header());
        for change in hunk.iter_changes() {
            let _ = write!(out, "{}{}", change.tag(), change.value());
            if !change.value().ends_with('\n') {
                out.push_str("\n\\ No newline at end of file\n");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: &str, now: &str, expected: &str) {
        assert_eq!(unified(before, now), expected, "{before:?} {now:?}");
    }

    #[test]
    fn lines_end_at_line_feeds() {
        check("a\nb\n", "a\nc\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n");
        check("a\r\n", "b\r\n", "@@ -1 +1 @@\n-a\r\n+b\r\n");
        check("x\ry\nend\n", "x\rz\nend\n", "@@ -1,2 +1,2 @@\n-x\ry\n+x\rz\n end\n");
        check("same\r", "same\r", "");
    }

    #[test]
    fn a_last_line_without_an_end_says_so() {
        check("a\n", "a", "@@ -1 +1 @@\n-a\n+a\n\\ No newline at end of file\n");
        check("a\n", "a\r", "@@ -1 +1 @@\n-a\n+a\r\n\\ No newline at end of file\n");
        check("", "a\n", "@@ -0,0 +1 @@\n+a\n");
    }
}
