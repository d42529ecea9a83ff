//! Times as other formats write them: ISO 8601. One without a zone is taken as UTC.

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Milliseconds since 1970 as text, with as few digits as say it.
pub(crate) fn format(time_ms: u64) -> Option<String> {
    let time_ms = i64::try_from(time_ms).ok()?;
    let (days, rest) = (time_ms.div_euclid(DAY_MS), time_ms.rem_euclid(DAY_MS));
    let (year, month, day) = date(days);
    if year > 9999 {
        return None;
    }
    let (seconds, millis) = (rest / 1000, rest % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let fraction = if millis == 0 { String::new() } else { format!(".{millis:03}") };
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z"))
}

/// The milliseconds since 1970 of a text; none before 1970, and none if it is no time.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let mut scan = Scan(text.as_bytes());
    let year = scan.number(4)?;
    scan.pass(b"-")?;
    let month = scan.number(2)?;
    scan.pass(b"-")?;
    let day = scan.number(2)?;
    if !(1..=12).contains(&month) || day < 1 || day > days_of(year, month) {
        return None;
    }
    let mut millis = days(year, month, day) * DAY_MS;
    if scan.0.is_empty() {
        return u64::try_from(millis).ok();
    }
    scan.pass(b"Tt ")?;
    let hour = scan.number(2)?;
    scan.pass(b":")?;
    let minute = scan.number(2)?;
    let second = match scan.pass(b":") {
        Some(()) => scan.number(2)?,
        None => 0,
    };
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    millis += ((hour * 60 + minute) * 60 + second) * 1000;
    if scan.pass(b".,").is_some() {
        millis += scan.fraction()?;
    }
    millis -= scan.zone()? * 60 * 1000;
    scan.0.is_empty().then(|| u64::try_from(millis).ok()).flatten()
}

/// The text that is left.
struct Scan<'a>(&'a [u8]);

impl Scan<'_> {
    fn number(&mut self, digits: usize) -> Option<i64> {
        let (head, rest) = self.0.split_at_checked(digits)?;
        if !head.iter().all(u8::is_ascii_digit) {
            return None;
        }
        self.0 = rest;
        std::str::from_utf8(head).ok()?.parse().ok()
    }

    /// Over one of these bytes.
    fn pass(&mut self, any: &[u8]) -> Option<()> {
        let (first, rest) = self.0.split_first()?;
        any.contains(first).then(|| self.0 = rest)
    }

    /// What stands behind the point, in whole milliseconds.
    fn fraction(&mut self) -> Option<i64> {
        let digits = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (head, rest) = self.0.split_at(digits);
        self.0 = rest;
        let digit = |at: usize| i64::from(head.get(at).map_or(0, |byte| byte - b'0'));
        (digits > 0).then(|| digit(0) * 100 + digit(1) * 10 + digit(2))
    }

    /// Minutes east of Greenwich.
    fn zone(&mut self) -> Option<i64> {
        if self.0.is_empty() || self.pass(b"Zz").is_some() {
            return Some(0);
        }
        let sign = if self.pass(b"-").is_some() { -1 } else { 1 };
        if sign == 1 {
            self.pass(b"+")?;
        }
        let hours = self.number(2)?;
        if self.0.is_empty() {
            return Some(sign * hours * 60);
        }
        let _colon = self.pass(b":");
        Some(sign * (hours * 60 + self.number(2)?))
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The days from 1970 to this date.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let before = year - 1;
    let to_year = before * 365 + before / 4 - before / 100 + before / 400;
    let to_month: i64 = (1..month).map(|month| days_of(year, month)).sum();
    // The days before 1970, by the same count.
    to_year + to_month + day - 1 - 719_162
}

/// The date of a day after 1970.
fn date(mut left: i64) -> (i64, i64, i64) {
    // An estimate that is never too late, and then at most a year or two by hand.
    let mut year = 1970 + left / 366;
    left -= days(year, 1, 1);
    while left >= 365 + i64::from(is_leap(year)) {
        left -= 365 + i64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    while left >= days_of(year, month) {
        left -= days_of(year, month);
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_mean_what_they_say() {
        let check = |text: &str, millis: u64| assert_eq!(parse(text), Some(millis), "{text}");
        check("1970-01-01T00:00:00Z", 0);
        check("2026-01-01T10:01:00Z", 1_767_261_660_000);
        check("2026-01-01T10:01:00", 1_767_261_660_000);
        check("2026-01-01 10:01:00.123456", 1_767_261_660_123);
        check("2026-01-01T12:01:00.5+02:00", 1_767_261_660_500);
        check("2026-01-01T05:01-0500", 1_767_261_660_000);
        check("2024-02-29", 1_709_164_800_000);
        assert_eq!(format(1_767_261_660_123).unwrap(), "2026-01-01T10:01:00.123Z");
        assert_eq!(format(u64::MAX), None);
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "now",
            "2026",
            "2026-13-01",
            "2023-02-29",
            "2026-01-01T25:00:00",
            "2026-01-01T10:01:00X",
            "2026-01-01T10:01:00+",
            "1969-12-31T23:59:59Z",
            "２０２６-01-01",
            "2026-01-01T10:01:00.",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(millis in 0u64..253_402_300_800_000) {
            prop_assert_eq!(parse(&format(millis).unwrap()), Some(millis));
        }

        #[test]
        fn no_text_is_too_odd(text: String) {
            parse(&text);
        }
    }
}
