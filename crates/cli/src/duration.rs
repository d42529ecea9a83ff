//! Spans of time as people type them: `30s`, `1.5h`, `1h30m`, `250ms`, `90` (seconds).

use std::time::Duration;

use crate::number::{scaled, split_unit};

/// Nobody waits longer; what is above it is a slip of the finger.
const DURATION_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// More than nothing.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    match parse_or_zero(text)? {
        Duration::ZERO => Err("a time must be more than zero".to_owned()),
        time => Ok(time),
    }
}

/// Nothing too. Whole milliseconds.
pub(crate) fn parse_or_zero(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Err("a time cannot be negative".to_owned());
    }
    let mut rest = text;
    let mut sum_ms: Option<u64> = Some(0);
    loop {
        let (number, after) = split_unit(rest);
        let end = after.bytes().position(|b| b.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        // Only a single number may go without its unit: `1h30` could mean two things.
        let unit_ms = if unit.is_empty() && rest.len() != text.len() { None } else { unit_ms(unit) };
        let ms = unit_ms
            .and_then(|unit| scaled(number, unit))
            .ok_or("a time is written like 30s, 1.5h, 250ms or 90")?;
        sum_ms = sum_ms.zip(ms).and_then(|(sum, ms)| sum.checked_add(ms));
        rest = next;
        if rest.is_empty() {
            break;
        }
    }
    match sum_ms.map(Duration::from_millis) {
        Some(time) if time <= DURATION_MAX => Ok(time),
        _ => Err("that is longer than ten years; the units are ms, s, m, h and d".to_owned()),
    }
}

/// Whole seconds, one at least.
pub(crate) fn parse_seconds(text: &str) -> Result<u64, String> {
    let time = parse(text)?;
    match time.subsec_nanos() {
        0 => Ok(time.as_secs()),
        _ => Err("CPU time is counted in whole seconds".to_owned()),
    }
}

fn unit_ms(unit: &str) -> Option<u64> {
    match unit {
        "ms" => Some(1),
        "" | "s" | "sec" => Some(1000),
        "m" | "min" => Some(60 * 1000),
        "h" => Some(60 * 60 * 1000),
        "d" => Some(24 * 60 * 60 * 1000),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, ms: u64) {
        assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text:?}");
    }

    fn refused(text: &str, why: &str) {
        assert!(parse(text).unwrap_err().contains(why), "{text:?}: {:?}", parse(text));
    }

    #[test]
    fn units_and_sums() {
        check("30", 30_000);
        check("0.5", 500);
        check("250ms", 250);
        check("30s", 30_000);
        check("1.5m", 90_000);
        check("2h", 7_200_000);
        check("1h30m", 5_400_000);
        check("1m30s500ms", 90_500);
        check("7d", 604_800_000);
    }

    #[test]
    fn nonsense_is_refused_in_a_sentence() {
        for text in ["", "s", "ms", "1x", "1h30", "1.s", "1 s", "1h 30m", "ten", "1e3", "NaN", "inf", "+3"] {
            refused(text, "a time is written like");
        }
        for text in ["0", "0s", "0.0001s"] {
            refused(text, "more than zero");
        }
        for text in ["-1", "-1s"] {
            refused(text, "negative");
        }
        for text in ["99999999999999999999", "18446744073709551615d", "3651d", "18446744073709551615ms1ms"] {
            refused(text, "ten years");
        }
    }

    #[test]
    fn grace_may_be_nothing() {
        assert_eq!(parse_or_zero("0"), Ok(Duration::ZERO));
        assert!(parse_or_zero("-1").is_err());
    }

    #[test]
    fn cpu_time_is_whole_seconds() {
        assert_eq!(parse_seconds("2"), Ok(2));
        assert_eq!(parse_seconds("2m"), Ok(120));
        assert!(parse_seconds("1.5").unwrap_err().contains("whole seconds"));
        assert!(parse_seconds("0").unwrap_err().contains("more than zero"));
    }
}
