//! What is written: bytes that no storage can make smaller, other ones in every page.

use block::AlignedBuffer;

/// A page, which gets a number of its own, so that nothing below finds two alike.
const PAGE_BYTES: usize = 4096;

/// Numbers that look random (splitmix64; Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Bytes to be written, aligned as direct I/O wants them.
pub(crate) struct Content {
    bytes: AlignedBuffer,
    count: u64,
}

impl Content {
    /// Of writes of at most `len` bytes.
    pub(crate) fn new(len: usize, seed: u64) -> Self {
        let mut bytes = AlignedBuffer::new(len);
        let mut random = Random::new(seed);
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&random.next().to_le_bytes()[..piece.len()]);
        }
        Self { bytes, count: seed }
    }

    /// The next write's bytes, at most as many as there are.
    pub(crate) fn next(&mut self, len: usize) -> &[u8] {
        let len = len.min(self.bytes.len());
        for page in self.bytes[..len].chunks_mut(PAGE_BYTES) {
            self.count = self.count.wrapping_add(1);
            let stamp = self.count.to_le_bytes();
            let stamped = stamp.len().min(page.len());
            page[..stamped].copy_from_slice(&stamp[..stamped]);
        }
        &self.bytes[..len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_pages_are_alike() {
        let mut content = Content::new(16384, 1);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..4 {
            for page in content.next(1 << 20).chunks(PAGE_BYTES) {
                assert!(page.iter().filter(|byte| **byte == 0).count() < 200);
                assert!(seen.insert(page.to_vec()));
            }
        }
        assert_eq!(seen.len(), 16);
        assert_eq!(content.next(512).len(), 512);
    }
}
