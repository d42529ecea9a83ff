//! Random numbers of the kernel's.

use std::io::{self, Read};

/// Thirty-two hexadecimal digits.
pub(crate) fn hex() -> io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
