//! Times as milliseconds since 1970, and as RFC 3339 writes them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// `2026-01-02T03:04:05.678Z`
pub(crate) fn text(ms: i64) -> String {
    let (days, of_day) = (ms.div_euclid(DAY_MS), ms.rem_euclid(DAY_MS));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", of_day % 1000)
}

/// Reads what RFC 3339 allows; what is finer than a millisecond is dropped. A time without a zone is in UTC.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let part = bytes.get(from..to)?;
        let digits = part.iter().all(u8::is_ascii_digit);
        digits.then(|| part.iter().fold(0, |n, digit| n * 10 + i64::from(digit - b'0')))
    };
    let sign = |at: usize, wanted: &[u8]| bytes.get(at).is_some_and(|byte| wanted.contains(byte));
    if !(sign(4, b"-") && sign(7, b"-") && sign(10, b"Tt ") && sign(13, b":") && sign(16, b":")) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // A day that its month does not have would be one of the next month.
    if date(days(year, month, day)) != (year, month, day) {
        return None;
    }
    let (mut at, mut millis) = (19, 0);
    if sign(at, b".") {
        let digits = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let three = bytes.get(at + 1..at + 1 + digits)?.iter().chain(b"000").take(3);
        millis = three.fold(0, |n, digit| n * 10 + i64::from(digit - b'0'));
        if digits == 0 {
            return None;
        }
        at += 1 + digits;
    }
    let zone_minutes = match bytes.get(at..)? {
        b"" | b"Z" | b"z" => 0,
        [plus @ (b'+' | b'-'), _, _, b':', _, _] => {
            let (hours, minutes) = (number(at + 1, at + 3)?, number(at + 4, at + 6)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let minutes = hours * 60 + minutes;
            if *plus == b'+' { minutes } else { -minutes }
        }
        _ => return None,
    };
    let seconds = (hour * 60 + minute - zone_minutes) * 60 + second;
    Some(days(year, month, day) * DAY_MS + seconds * 1000 + millis)
}

const DAY_MS: i64 = 86_400_000;
/// Days of four hundred years, after which the calendar repeats itself.
const ERA_DAYS: i64 = 146_097;
/// Days from the first of March of the year 0 to the first of January of 1970.
const EPOCH: i64 = 719_468;

/// Year, month and day; years begin in March, so that the odd day is the last of one.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH;
    let (era, of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * ERA_DAYS + of_era * 365 + of_era / 4 - of_era / 100 + of_year - EPOCH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        for (ms, written) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_794_830_400_001, "2026-11-16T12:00:00.001Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(text(ms), written);
            assert_eq!(parse(written), Some(ms));
        }
    }

    #[test]
    fn zones_and_fractions_are_understood() {
        for written in [
            "2026-11-16T12:00:00Z",
            "2026-11-16T12:00:00",
            "2026-11-16T12:00:00.000000+00:00",
            "2026-11-16t13:30:00+01:30",
            "2026-11-16 07:00:00.0-05:00",
        ] {
            assert_eq!(parse(written), Some(1_794_830_400_000), "{written}");
        }
        assert_eq!(parse("1970-01-01T00:00:00.123456Z"), Some(123));
        assert_eq!(parse("1970-01-01T00:00:00.5Z"), Some(500));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "now",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-01-01T00:00:00+99:00",
            "2026-01-01",
            "2026-01-01T25:00:00Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00X",
            "2026-01-01T00:00:00+1:00",
            "20é6-01-01T00:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
