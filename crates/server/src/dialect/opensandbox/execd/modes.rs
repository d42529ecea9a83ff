//! Permission bits as the protocol writes them: a decimal number whose digits are octal. `644` is 0o644.

use super::bad;
use crate::dialect::opensandbox::fault::Answer;

/// The bits; 0 and nothing mean that they stay what they are.
pub(super) fn read(number: Option<i64>) -> Answer<Option<u32>> {
    let Some(number) = number.filter(|number| *number != 0) else { return Ok(None) };
    let bits = u32::from_str_radix(&number.to_string(), 8).ok().filter(|bits| *bits <= 0o7777);
    let wrong = || bad("INVALID_FILE_METADATA", format!("{number} is no mode, like 644 or 755"));
    bits.map(Some).ok_or_else(wrong)
}

/// The number.
pub(super) fn write(bits: u32) -> u32 {
    let bits = bits & 0o777;
    (bits >> 6) * 100 + (bits >> 3 & 7) * 10 + (bits & 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_octal() {
        for (number, bits) in [(644, 0o644), (755, 0o755), (7, 0o7), (777, 0o777), (600, 0o600)] {
            assert_eq!(read(Some(number)).unwrap(), Some(bits));
            assert_eq!(i64::from(write(bits)), number);
        }
        assert_eq!((read(None).unwrap(), read(Some(0)).unwrap()), (None, None));
        assert_eq!(write(0o104_755), 755);
        for bad in [8, 888, 649, -644, 77_777] {
            assert!(read(Some(bad)).is_err(), "{bad}");
        }
    }
}
