//! Decimal numbers with a unit, exactly.

/// `text` times `unit`, rounded down: `None` if it is no decimal number, `Some(None)` if it does not fit.
pub(crate) fn scaled(text: &str, unit: u64) -> Option<Option<u64>> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return None,
        None => (text, ""),
    };
    if whole.is_empty() || ![whole, fraction].iter().all(|part| part.bytes().all(|b| b.is_ascii_digit())) {
        return None;
    }
    // More digits than these change nothing that a unit of ours could show.
    let fraction = &fraction[..fraction.len().min(18)];
    let parts = fraction.parse::<u128>().unwrap_or(0) * u128::from(unit) / 10u128.pow(fraction.len() as u32);
    let whole = match whole.parse::<u64>() {
        Ok(whole) => whole,
        Err(_) => return Some(None),
    };
    let sum = u128::from(whole) * u128::from(unit) + parts;
    Some(u64::try_from(sum).ok())
}

/// Where the number ends and its unit begins.
pub(crate) fn split_unit(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|b| !(b.is_ascii_digit() || b == b'.')).unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact() {
        assert_eq!(scaled("1.5", 1 << 30), Some(Some(3 << 29)));
        assert_eq!(scaled("0.1", 1000), Some(Some(100)));
        assert_eq!(scaled("18446744073709551615", 1), Some(Some(u64::MAX)));
        assert_eq!(scaled("0.99999999999999999999999", 1000), Some(Some(999)));
    }

    #[test]
    fn what_is_no_number_is_told_from_what_does_not_fit() {
        for text in ["", ".", "1.", ".5", "1.2.3", "+1", "-1", "1e3", "0x10", "١"] {
            assert_eq!(scaled(text, 1), None, "{text:?}");
        }
        for text in ["18446744073709551616", "99999999999999999999999999"] {
            assert_eq!(scaled(text, 1), Some(None), "{text:?}");
        }
        assert_eq!(scaled("18446744073709551615", 2), Some(None));
    }
}
