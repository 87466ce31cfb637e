//! Mail as it is written: messages, and the file that a client keeps them in.

use std::fmt::Write as _;

use crate::content::Random;

/// A message of so many bytes.
pub(super) fn message(bytes: u64, seed: u64) -> Vec<u8> {
    let len = usize::try_from(bytes).unwrap_or(1 << 20);
    let mut text = format!("From: a@example.org\nTo: b@example.org\nSubject: {seed}\n\n");
    let mut random = Random::new(seed);
    while text.len() < len {
        let _ = writeln!(text, "{:016x}{:016x}{:016x}", random.next(), random.next(), random.next());
    }
    text.truncate(len);
    text.into_bytes()
}

/// An mbox of so many bytes, and how many messages are in it.
pub(super) fn mbox_of(bytes: u64, seed: u64) -> (Vec<u8>, u64) {
    let mut random = Random::new(seed ^ 0x6d62_6f78);
    let (mut mbox, mut count) = (Vec::new(), 0);
    while (mbox.len() as u64) < bytes {
        push(&mut mbox, 1024 + random.below(31 << 10), count);
        count += 1;
    }
    (mbox, count)
}

/// A message of so many bytes behind the others of an mbox.
pub(super) fn push(mbox: &mut Vec<u8>, bytes: u64, seed: u64) {
    mbox.extend(b"From a@example.org Thu Jan  1 00:00:00 1970\n");
    mbox.extend(message(bytes, seed));
    mbox.extend(b"\n\n");
}
