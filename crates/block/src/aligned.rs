//! Memory that direct I/O accepts.

use std::ops::{Deref, DerefMut};

/// Zeroed bytes that begin at a page boundary; those that fill a large page begin at one of a large page. Never reallocated, so that
/// they stay there.
#[derive(Default)]
pub struct AlignedBuffer {
    /// A page longer than needed, so that a page boundary with enough bytes after it lies within.
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    /// The alignment: no device or file system asks for more.
    pub const PAGE_BYTES: usize = 4096;

    /// A large page of most processors. A device takes one in one request, where it takes some hundred small ones at the most.
    pub const LARGE_PAGE_BYTES: usize = 2 << 20;

    /// `len` zeros.
    pub fn new(len: usize) -> Self {
        let page_bytes = if len < Self::LARGE_PAGE_BYTES { Self::PAGE_BYTES } else { Self::LARGE_PAGE_BYTES };
        let bytes = vec![0; len + page_bytes];
        let start = bytes.as_ptr().align_offset(page_bytes);
        assert!(start <= page_bytes, "a page holds a page boundary");
        Self { bytes, start, len }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_at_a_page_wherever_it_is_moved() {
        for len in [0, 1, 4095, 4096, 1 << 20] {
            let mut buffer = Box::new(AlignedBuffer::new(len));
            buffer.fill(7);
            let moved = *buffer;
            assert_eq!(moved.as_ptr().align_offset(AlignedBuffer::PAGE_BYTES), 0);
            assert_eq!(moved.len(), len);
            assert!(moved.iter().all(|byte| *byte == 7));
        }
        let large = AlignedBuffer::new(AlignedBuffer::LARGE_PAGE_BYTES);
        assert_eq!(large.as_ptr().align_offset(AlignedBuffer::LARGE_PAGE_BYTES), 0);
    }
}
