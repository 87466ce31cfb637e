//! Memory of large pages, for what goes past the page cache: a request of a device is made of pieces of memory, of which it takes a
//! few hundred. Of small pages that is a megabyte; and each of them is looked up and pinned by itself.

use block::AlignedBuffer;
use rustix::mm::{Advice, madvise};

/// Has the kernel use large pages for what of `memory` fills such, as far as it has them. Advice: without it the bytes are the same.
pub(crate) fn prefer_large_pages(memory: &mut [u8]) {
    let (large, start) =
        (AlignedBuffer::LARGE_PAGE_BYTES, memory.as_ptr().align_offset(AlignedBuffer::LARGE_PAGE_BYTES));
    let Some(len) = memory.len().checked_sub(start).map(|len| len / large * large).filter(|len| *len > 0)
    else {
        return;
    };
    let pages = &mut memory[start..start + len];
    // SAFETY: whole pages of memory that is borrowed for writing. The advice changes the size of its pages, not what it holds.
    #[allow(unsafe_code)]
    let result = unsafe { madvise(pages.as_mut_ptr().cast(), len, Advice::LinuxHugepage) };
    // A kernel without large pages.
    let _ = result;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_stay_whatever_the_place_and_length() {
        let mut buffer = AlignedBuffer::new((4 << 20) + 4096);
        buffer.fill(7);
        for (start, end) in [(0, 0), (0, 4096), (1, 3 << 20), (0, (4 << 20) + 4096), (4097, 4 << 20)] {
            prefer_large_pages(&mut buffer[start..end]);
        }
        assert!(buffer.iter().all(|byte| *byte == 7));
    }
}
