//! Random numbers of the kernel's.

use std::fs::File;
use std::io::{self, Read};
use std::sync::OnceLock;

/// Thirty-two hexadecimal digits.
pub(crate) fn hex() -> io::Result<String> {
    /// Kept open: every request has a number of its own.
    static KERNEL: OnceLock<File> = OnceLock::new();
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut kernel = match KERNEL.get() {
        Some(file) => file,
        None => {
            let opened = File::open("/dev/urandom")?;
            KERNEL.get_or_init(|| opened)
        }
    };
    let mut bytes = [0; 16];
    kernel.read_exact(&mut bytes)?;
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    Ok(digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect())
}
