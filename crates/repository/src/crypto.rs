//! How everything in a repository is sealed: AES-256 in counter mode, with Poly1305-AES over the ciphertext.
//!
//! The format is restic's ("Keys, Encryption and MAC" of its design): sixteen random bytes, the ciphertext, sixteen bytes of MAC. The random
//! bytes are the counter's start and the MAC's nonce.

use std::fmt;

use aes::cipher::{BlockCipherEncrypt, KeyInit, KeyIvInit, StreamCipher};
use aes::{Aes128, Aes256};
use block::{Error, Result};
use poly1305::Poly1305;

type Counter = ctr::Ctr128BE<Aes256>;

/// What stands in front of the ciphertext.
pub(crate) const NONCE_BYTES: usize = 16;
const MAC_BYTES: usize = 16;

/// What sealing adds.
pub(crate) const OVERHEAD_BYTES: usize = NONCE_BYTES + MAC_BYTES;

/// The keys that seal a repository, or its master key.
#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) encrypt: [u8; 32],
    pub(crate) mac_k: [u8; 16],
    pub(crate) mac_r: [u8; 16],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Fresh ones.
    pub(crate) fn random() -> Result<Self> {
        let mut key = Self { encrypt: [0; 32], mac_k: [0; 16], mac_r: [0; 16] };
        random(&mut key.encrypt)?;
        random(&mut key.mac_k)?;
        random(&mut key.mac_r)?;
        // As Poly1305 takes them in any case; restic stores them so.
        for at in [3, 7, 11, 15] {
            key.mac_r[at] &= 15;
        }
        for at in [4, 8, 12] {
            key.mac_r[at] &= 252;
        }
        Ok(key)
    }

    /// From 64 bytes that scrypt made of a password.
    pub(crate) fn from_bytes(bytes: &[u8; 64]) -> Self {
        let part = |from: usize| std::array::from_fn(|at| bytes[from + at]);
        Self { encrypt: std::array::from_fn(|at| bytes[at]), mac_k: part(32), mac_r: part(48) }
    }

    /// Appends `plain`, sealed.
    pub(crate) fn seal_into(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let mut nonce = [0; NONCE_BYTES];
        random(&mut nonce)?;
        out.reserve(plain.len() + OVERHEAD_BYTES);
        out.extend_from_slice(&nonce);
        let start = out.len();
        out.extend_from_slice(plain);
        self.counter(&nonce).apply_keystream(&mut out[start..]);
        let mac = self.mac(&nonce, &out[start..]);
        out.extend_from_slice(&mac);
        Ok(())
    }

    /// `plain`, sealed.
    pub(crate) fn seal(&self, plain: &[u8]) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.seal_into(plain, &mut out)?;
        Ok(out)
    }

    /// What was sealed; `None` if it was sealed by other keys, or is not what was sealed.
    pub(crate) fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        self.open_in_place(&mut sealed.to_vec()).map(|plain| plain.to_vec())
    }

    /// The same without memory of its own: what was sealed is a part of `sealed` then.
    pub(crate) fn open_in_place<'s>(&self, sealed: &'s mut [u8]) -> Option<&'s mut [u8]> {
        let (nonce, rest) = sealed.split_first_chunk_mut::<NONCE_BYTES>()?;
        let (text, mac) = rest.split_last_chunk_mut::<MAC_BYTES>()?;
        let differs = self.mac(nonce, text).iter().zip(mac).fold(0, |all, (a, b)| all | (a ^ *b));
        if differs != 0 {
            return None;
        }
        self.counter(nonce).apply_keystream(text);
        Some(text)
    }

    fn counter(&self, nonce: &[u8; NONCE_BYTES]) -> Counter {
        Counter::new(&self.encrypt.into(), nonce.into())
    }

    fn mac(&self, nonce: &[u8; NONCE_BYTES], message: &[u8]) -> [u8; MAC_BYTES] {
        let mut secret = (*nonce).into();
        Aes128::new(&self.mac_k.into()).encrypt_block(&mut secret);
        let mut key = [0; 32];
        key[..16].copy_from_slice(&self.mac_r);
        key[16..].copy_from_slice(&secret);
        Poly1305::new(&key.into()).compute_unpadded(message).into()
    }
}

/// Fills `bytes` with random ones.
pub(crate) fn random(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes)
        .map_err(|error| Error::io("get random bytes", std::io::Error::other(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_and_nothing_else_does() {
        let key = Key::random().unwrap();
        for len in [0, 1, 16, 1000] {
            let plain: Vec<u8> = (0..=255).cycle().take(len).collect();
            let sealed = key.seal(&plain).unwrap();
            assert_eq!(sealed.len(), len + OVERHEAD_BYTES);
            assert_eq!(key.open(&sealed).unwrap(), plain);
            for at in 0..sealed.len() {
                let mut broken = sealed.clone();
                broken[at] ^= 1;
                assert!(key.open(&broken).is_none(), "{at} of {len}");
            }
            assert!(Key::random().unwrap().open(&sealed).is_none());
            assert!(key.open(&sealed[..sealed.len().min(31)]).is_none());
        }
    }
}
