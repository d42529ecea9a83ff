//! The word that clone3 has to come with, once a filter asks for it ([`super::Filter::load_with_word`]).
//!
//! It belongs to the process, as its filter does: whoever calls clone3 here says it, and where no filter asks it is zeroes, which
//! the kernel does not look at.

use std::io;
use std::sync::OnceLock;

use rustix::rand::{GetRandomFlags, getrandom};

/// A word, as the filter and the registers have it.
pub(super) const WORD_WORDS: usize = 4;
/// The first argument that clone3 does not have.
pub(super) const WORD_ARGUMENT: u32 = 2;

static OURS: OnceLock<[u64; WORD_WORDS]> = OnceLock::new();

/// What to say behind the two arguments of clone3.
pub(crate) fn ours() -> [u64; WORD_WORDS] {
    OURS.get().copied().unwrap_or_default()
}

/// From now on this is said.
pub(super) fn keep(word: [u64; WORD_WORDS]) {
    // A second filter would ask for another word and the first still for this one: then nothing passes, as it should.
    let _ = OURS.set(word);
}

/// A word that nobody knows.
pub(super) fn make_up() -> io::Result<[u64; WORD_WORDS]> {
    let mut bytes = [[0; 8]; WORD_WORDS];
    let whole = bytes.as_flattened_mut();
    // The kernel gives so few at once or not at all.
    if getrandom(&mut *whole, GetRandomFlags::empty())? != whole.len() {
        return Err(io::Error::other("the kernel has too few random bytes"));
    }
    Ok(bytes.map(u64::from_ne_bytes))
}
