//! Sizes as people type them: `512m`, `1.5g`, `65536`.

use crate::number::{scaled, split_unit};

/// More than any machine has; what is above it is a slip of the finger.
const SIZE_BYTES_MAX: u64 = 1 << 60;

/// Bytes. Units are powers of 1024, in either case, with or without `b` or `ib` behind.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    if text.starts_with('-') {
        return Err("a size cannot be negative".to_owned());
    }
    let (number, unit) = split_unit(text);
    let bytes = unit_bytes(unit)
        .and_then(|unit| scaled(number, unit))
        .ok_or("a size is written like 512m, 1.5g or 65536")?;
    match bytes {
        Some(0) => Err("a size must be more than zero".to_owned()),
        Some(bytes) if bytes <= SIZE_BYTES_MAX => Ok(bytes),
        _ => Err("no machine is that large; the units are k, m, g and t".to_owned()),
    }
}

fn unit_bytes(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let letter = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit);
    match letter {
        "" if unit == "ib" => None,
        "" => Some(1),
        "k" => Some(1 << 10),
        "m" => Some(1 << 20),
        "g" => Some(1 << 30),
        "t" => Some(1 << 40),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, bytes: u64) {
        assert_eq!(parse(text), Ok(bytes), "{text:?}");
    }

    fn refused(text: &str, why: &str) {
        assert!(parse(text).unwrap_err().contains(why), "{text:?}: {:?}", parse(text));
    }

    #[test]
    fn units_are_powers_of_1024() {
        check("1", 1);
        check("65536", 65536);
        check("10b", 10);
        check("64k", 64 << 10);
        check("512m", 512 << 20);
        check("512M", 512 << 20);
        check("512mb", 512 << 20);
        check("512MiB", 512 << 20);
        check("1.5g", 3 << 29);
        check("2t", 2 << 40);
        check("1048576t", 1 << 60);
    }

    #[test]
    fn nonsense_is_refused_in_a_sentence() {
        for text in
            ["", "m", "12q", "1.g", "1,5g", "0x10", "1 g", " 1g", "1e3", "ten", "512mm", "12ib", "½g", "+1g"]
        {
            refused(text, "a size is written like");
        }
        for text in ["0", "0m", "0.0g", "0.0000001"] {
            refused(text, "more than zero");
        }
        for text in ["-1", "-512m", "-"] {
            refused(text, "negative");
        }
        for text in ["1048577t", "99999999999999999999", "18446744073709551616g", "2000000t"] {
            refused(text, "no machine");
        }
    }
}
