//! Whatever the bytes are, they are a trajectory or refused, in every format; and what was read is written so that it
//! is read again.

#![no_main]

use glasshouse_trace::trajectory::{Format, Shape, read_one, validate, write};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for format in Format::ALL.into_iter().map(Some).chain([None]) {
        let _ = validate(bytes, format);
        let Ok((_, found)) = read_one(bytes, format) else { continue };
        let (written, _) = write(&found.trajectory, Format::Glasshouse, Shape::Document);
        read_one(&written[..], Some(Format::Glasshouse)).expect("what we wrote is ours");
    }
});
