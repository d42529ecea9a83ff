//! Regular expressions of the caller's, for secrets that nobody can name beforehand.

use std::ops::Range;

use regex::bytes::{Regex, RegexBuilder};

use crate::limits::{SECRET_PATTERN_BYTES_MAX, SECRET_PATTERN_COMPILED_BYTES_MAX};
use crate::{Error, ErrorKind, Result};

/// The group of a pattern that is the secret, if not all of it is.
const GROUP: &str = "secret";

/// What a secret looks like: a regular expression without look-around, so that none can take long.
#[derive(Debug, Clone)]
pub struct SecretPattern(Regex);

impl SecretPattern {
    /// Reads one; an error says what is wrong with it. If it has the group `secret`, only that part is replaced.
    pub fn parse(text: &str) -> Result<SecretPattern> {
        let invalid = |why: String| Error::new(ErrorKind::Invalid, format!("{text:?} is no pattern: {why}"));
        if text.is_empty() || text.len() > SECRET_PATTERN_BYTES_MAX {
            return Err(invalid(format!("it has to have 1 to {SECRET_PATTERN_BYTES_MAX} bytes")));
        }
        let regex = RegexBuilder::new(text).size_limit(SECRET_PATTERN_COMPILED_BYTES_MAX).build();
        let regex = regex.map_err(|e| {
            let text = e.to_string();
            invalid(text.lines().last().unwrap_or_default().trim().to_owned())
        })?;
        if regex.is_match(b"") {
            return Err(invalid("it matches nothing, and so everywhere".to_owned()));
        }
        Ok(SecretPattern(regex))
    }

    /// Where it is found.
    pub(super) fn find(&self, text: &[u8]) -> Vec<Range<usize>> {
        if self.0.capture_names().flatten().all(|name| name != GROUP) {
            return self.0.find_iter(text).map(|found| found.range()).collect();
        }
        let parts = self.0.captures_iter(text).filter_map(|found| found.name(GROUP).map(|part| part.range()));
        parts.filter(|range| !range.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found, in words.
    fn check(pattern: &str, text: &str, expected: &[&str]) {
        let found = SecretPattern::parse(pattern).unwrap().find(text.as_bytes());
        let found: Vec<&str> = found.into_iter().map(|range| &text[range]).collect();
        assert_eq!(found, expected, "{pattern} in {text}");
    }

    #[test]
    fn all_of_a_match_or_its_group_is_the_secret() {
        check("corp-[0-9]{4}", "a corp-1234 corp-99 corp-5678", &["corp-1234", "corp-5678"]);
        check("password: (?P<secret>\\S+)", "password: hunter2\n", &["hunter2"]);
        check("x(?P<secret>y*)", "x xyy", &["yy"]);
        assert!(SecretPattern::parse("k-\\d+").unwrap().find(b"\xff\xfe k-").is_empty());
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_the_reason() {
        for (text, why) in [("(", "unclosed"), ("", "bytes"), ("a*", "everywhere"), ("(?=x)", "look-around")]
        {
            let message = SecretPattern::parse(text).unwrap_err().message;
            assert!(message.contains(why), "{text:?}: {message}");
        }
        assert!(SecretPattern::parse(&"a".repeat(10_000)).is_err());
        assert!(SecretPattern::parse("((a{100}){100}){100}").is_err());
    }
}
