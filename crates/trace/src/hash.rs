//! The hash that links lines and names blobs: BLAKE3, 32 bytes, written as 64 lower-case hex digits.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A BLAKE3 hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash([u8; 32]);

impl Hash {
    /// What the first line says of the line before it.
    pub const ZERO: Hash = Hash([0; 32]);

    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Hash(*blake3::hash(bytes).as_bytes())
    }

    /// Reads exactly what `Display` writes: one spelling for one hash, or the chain would have several.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 64 || text.bytes().any(|b| b.is_ascii_uppercase()) {
            return None;
        }
        blake3::Hash::from_hex(text).ok().map(Hash::from)
    }
}

impl From<blake3::Hash> for Hash {
    fn from(hash: blake3::Hash) -> Self {
        Hash(*hash.as_bytes())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Hash::parse(&text).ok_or_else(|| serde::de::Error::custom("not 64 lower-case hex digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_has_one_spelling() {
        let text = Hash::of(b"glass").to_string();
        assert_eq!(Hash::parse(&text), Some(Hash::of(b"glass")));
        assert_eq!(Hash::parse(&text.to_uppercase()), None);
        assert_eq!(Hash::parse(&text[1..]), None);
        assert_eq!(Hash::ZERO.to_string(), "0".repeat(64));
    }
}
