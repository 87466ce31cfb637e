//! The name of everything in a repository: the SHA-256 of what it is.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};

/// SHA-256 of a blob's contents, or of a file's bytes as they are stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub(crate) [u8; 32]);

impl Id {
    /// What is made of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// What is made of these IDs, one behind the other.
    pub(crate) fn of_all<'a>(ids: impl Iterator<Item = &'a Self>) -> Self {
        let mut digest = Sha256::new();
        ids.for_each(|id| digest.update(id.0));
        Self(digest.finalize().into())
    }

    /// The hash itself.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// From 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut id = [0; 32];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
        }
        Some(Self(id))
    }

    /// The first eight digits, as people name it.
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        f.write_str(std::str::from_utf8(&text).expect("ASCII"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Self::from_hex(&text).ok_or_else(|| de::Error::custom("an ID of 64 hexadecimal digits is expected"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_there_and_back() {
        let id = Id::of(b"abc");
        assert_eq!(id.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Id::from_hex(&id.to_string()), Some(id));
        assert_eq!(id.short(), "ba7816bf");
        assert_eq!(Id::from_hex("ba"), None);
        assert_eq!(Id::from_hex(&"g".repeat(64)), None);
        assert_eq!(Id::from_hex(&id.to_string().to_uppercase()), None);
    }
}
