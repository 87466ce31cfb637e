//! A small cache in front of metadata, bounded whatever the disk's size.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use extent::{Offset, Space};

use crate::{ReadAt, Result, check_bounds};

/// The most that is read at once: large enough to amortise a request, small enough not to read much in vain.
const PAGE_BYTES: u64 = 64 << 10;
/// What is read of a page of which nothing else was asked for yet: structures lie scattered among files' data, or many of
/// them together, and only the second request tells.
const BLOCK_BYTES: u64 = 4 << 10;

/// Reads of this size gain nothing from a cache and would push everything else out.
const BULK_BYTES_MIN: u64 = 4 * PAGE_BYTES;

/// Pages of `below` kept in memory, the least recently used given up first. For tables and file-system
/// structures, which are read in small pieces; bulk data goes past it.
pub struct Cached<S, T> {
    below: T,
    pages: Mutex<Pages>,
    page_count_max: usize,
    space: std::marker::PhantomData<S>,
}

#[derive(Default)]
struct Pages {
    clock: u64,
    by_index: HashMap<u64, (u64, Arc<Page>)>,
}

/// What is known of a page.
struct Page {
    /// Where in the page it begins.
    from: usize,
    bytes: Vec<u8>,
}

impl Page {
    fn get(&self, range: &Range<usize>) -> Option<&[u8]> {
        self.bytes.get(range.start.checked_sub(self.from)?..range.end.checked_sub(self.from)?)
    }
}

impl<S: Space, T: ReadAt<S>> Cached<S, T> {
    /// A cache of at most `memory_bytes_max` (at least a few pages are kept).
    pub fn new(below: T, memory_bytes_max: u64) -> Self {
        let page_count_max = usize::try_from(memory_bytes_max / PAGE_BYTES).unwrap_or(usize::MAX).max(4);
        Self { below, pages: Mutex::default(), page_count_max, space: std::marker::PhantomData }
    }

    /// What lies below, to be read without the cache.
    pub fn below(&self) -> &T {
        &self.below
    }

    /// A page of which `range` is known.
    fn page(&self, index: u64, range: &Range<usize>) -> Result<Arc<Page>> {
        let (known, follows) = {
            let mut pages = self.pages.lock().expect("no reader panicked");
            let follows = index > 0 && range.start == 0 && pages.by_index.contains_key(&(index - 1));
            (pages.touch(index), follows)
        };
        if let Some(page) = known.as_ref().filter(|page| page.get(range).is_some()) {
            return Ok(page.clone());
        }
        let start = index * PAGE_BYTES;
        let len = usize::try_from((self.below.len_bytes() - start).min(PAGE_BYTES)).expect("at most a page");
        let wanted = if known.is_some() || follows { 0..len } else { whole_blocks(range, len) };
        let mut bytes = vec![0; wanted.len()];
        self.below.read_at(Offset::new(start + wanted.start as u64), &mut bytes)?;
        let page = Arc::new(Page { from: wanted.start, bytes });
        self.pages.lock().expect("no reader panicked").insert(index, page.clone(), self.page_count_max);
        Ok(page)
    }
}

/// `range` out to the ends of its blocks, within `len`.
fn whole_blocks(range: &Range<usize>, len: usize) -> Range<usize> {
    let block = usize::try_from(BLOCK_BYTES).expect("small");
    range.start / block * block..range.end.next_multiple_of(block).min(len)
}

impl Pages {
    fn touch(&mut self, index: u64) -> Option<Arc<Page>> {
        self.clock += 1;
        let (used, page) = self.by_index.get_mut(&index)?;
        *used = self.clock;
        Some(page.clone())
    }

    fn insert(&mut self, index: u64, page: Arc<Page>, count_max: usize) {
        if self.by_index.len() >= count_max {
            self.give_up_the_older_half();
        }
        self.by_index.insert(index, (self.clock, page));
    }

    fn give_up_the_older_half(&mut self) {
        let mut ages: Vec<_> = self.by_index.values().map(|(used, _)| *used).collect();
        let middle = ages.len() / 2;
        let (_, &mut median, _) = ages.select_nth_unstable(middle);
        self.by_index.retain(|_, (used, _)| *used > median);
    }
}

impl<S: Space, T: ReadAt<S>> ReadAt<S> for Cached<S, T> {
    fn len_bytes(&self) -> u64 {
        self.below.len_bytes()
    }

    fn read_at(&self, at: Offset<S>, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        if buf.len() as u64 >= BULK_BYTES_MIN {
            return self.below.read_at(at, buf);
        }
        let mut done = 0;
        while done < buf.len() {
            let position = at.get() + done as u64;
            let from = usize::try_from(position % PAGE_BYTES).expect("within a page");
            let page_bytes = usize::try_from(PAGE_BYTES).expect("small");
            let range = from..(from + buf.len() - done).min(page_bytes);
            let page = self.page(position / PAGE_BYTES, &range)?;
            buf[done..done + range.len()].copy_from_slice(page.get(&range).expect("just read"));
            done += range.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::{Memory, read_vec};
    use extent::Host;

    #[test]
    fn reads_what_is_below_and_stays_bounded() {
        let bytes: Vec<u8> = (0..20 * PAGE_BYTES + 100).map(|at| (at * 7 / 3).to_le_bytes()[0]).collect();
        let cached = Cached::<Host, _>::new(Memory::new(bytes.clone()), 0);
        for start in (0..bytes.len()).step_by(30_011) {
            let len = (bytes.len() - start).min(100_000);
            let read = read_vec(&cached, Offset::new(start as u64), len as u64, "piece").unwrap();
            assert_eq!(read, bytes[start..start + len]);
            assert!(cached.pages.lock().unwrap().by_index.len() <= 4);
        }
        assert!(cached.read_at(Offset::new(bytes.len() as u64), &mut [0]).is_err());
    }

    struct Counting(AtomicU64);

    impl ReadAt<Host> for Counting {
        fn len_bytes(&self) -> u64 {
            100 * PAGE_BYTES
        }

        fn read_at(&self, _at: Offset<Host>, buf: &mut [u8]) -> Result<()> {
            self.0.fetch_add(buf.len() as u64, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn scattered_reads_read_little_and_those_in_a_row_whole_pages() {
        let cached = Cached::<Host, _>::new(Counting(AtomicU64::new(0)), 64 << 20);
        let read = |at: u64| {
            let before = cached.below().0.load(Ordering::Relaxed);
            cached.read_at(Offset::new(at), &mut [0; 512]).unwrap();
            cached.below().0.load(Ordering::Relaxed) - before
        };
        assert_eq!(read(10 * PAGE_BYTES + 5000), BLOCK_BYTES);
        assert_eq!(read(10 * PAGE_BYTES + 6000), 0);
        assert_eq!(read(20 * PAGE_BYTES + 4000), 2 * BLOCK_BYTES, "across blocks");
        assert_eq!(read(10 * PAGE_BYTES), PAGE_BYTES, "more of the same page");
        assert_eq!(read(11 * PAGE_BYTES), PAGE_BYTES, "the page after one that is known");
        assert_eq!(read(11 * PAGE_BYTES + 40_000), 0);
    }
}
