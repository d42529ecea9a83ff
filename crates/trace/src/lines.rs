//! What differs between two texts, line by line.

use crate::limits::COMPARE_TIME_MAX;

/// The differences as `diff -u` tells them, without a header. The same texts: nothing.
pub fn unified(before: &str, now: &str) -> String {
    let mut config = similar::TextDiff::configure();
    config.timeout(COMPARE_TIME_MAX);
    config.diff_lines(before, now).unified_diff().to_string()
}
