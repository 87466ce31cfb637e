//! A small cache in front of metadata, bounded whatever the disk's size.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use extent::{Offset, Space};

use crate::{ReadAt, Result, check_bounds};

/// Bytes read at once: large enough to amortise a request, small enough not to read much in vain.
const PAGE_BYTES: u64 = 64 << 10;

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
    by_index: HashMap<u64, (u64, Arc<Vec<u8>>)>,
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

    fn page(&self, index: u64) -> Result<Arc<Vec<u8>>> {
        if let Some(page) = self.pages.lock().expect("no reader panicked").touch(index) {
            return Ok(page);
        }
        let start = index * PAGE_BYTES;
        let len = (self.below.len_bytes() - start).min(PAGE_BYTES);
        let mut bytes = vec![0; usize::try_from(len).expect("at most a page")];
        self.below.read_at(Offset::new(start), &mut bytes)?;
        let page = Arc::new(bytes);
        self.pages.lock().expect("no reader panicked").insert(index, page.clone(), self.page_count_max);
        Ok(page)
    }
}

impl Pages {
    fn touch(&mut self, index: u64) -> Option<Arc<Vec<u8>>> {
        self.clock += 1;
        let (used, page) = self.by_index.get_mut(&index)?;
        *used = self.clock;
        Some(page.clone())
    }

    fn insert(&mut self, index: u64, page: Arc<Vec<u8>>, count_max: usize) {
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
            let page = self.page(position / PAGE_BYTES)?;
            let from = usize::try_from(position % PAGE_BYTES).expect("within a page");
            let len = (page.len() - from).min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&page[from..from + len]);
            done += len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
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
}
