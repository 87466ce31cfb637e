//! The tables of an image in use: pages of its file in bounded memory, changed there and written back in stages.
//!
//! Invariants:
//! - a changed sector stays in memory until it was written; what is not changed is never written, because the
//!   same page may hold the guest's data;
//! - a snapshot is taken while nobody changes tables, so that whatever it refers to was done before.
//!
//! Absent on purpose: what the bytes mean, and when to flush between the stages.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{Error, Result, TargetFile};
use extent::{HostOffset, HostSpan, Span};

use super::broken;
use crate::BrokenTables;

/// The unit of reading and of keeping.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// The unit of writing: what reaches the storage whole or not at all.
const SECTOR_BYTES: u64 = 512;
/// Pages kept at most: 48 MiB, and as much again for what is on its way to the storage in the worst case.
const PAGE_COUNT_MAX: usize = 12 << 10;
/// Changed pages from which they must be written back.
const DIRTY_COUNT_MAX: usize = PAGE_COUNT_MAX / 3;

/// When a changed sector is written: each stage is on stable storage before the next begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Together with the guest's data: reference counts that grow, and tables that nothing refers to yet.
    Unreferenced,
    /// What leads to reference counts.
    Root,
    /// What leads to the guest's data.
    References,
}

/// The stages in order.
pub(crate) const STAGES: [Stage; 3] = [Stage::Unreferenced, Stage::Root, Stage::References];

/// Why tables could not be looked at.
#[derive(Debug)]
pub(crate) enum Missed {
    /// This page is not in memory: [`Tables::load`] it and look again.
    Page(u64),
    /// It cannot be had, or is wrong.
    Failed(Error),
}

impl From<Error> for Missed {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

struct Page {
    bytes: Vec<u8>,
    /// When it was last looked at, by the tables' clock.
    used: AtomicU64,
    /// By stage, a bit for each changed sector.
    dirty: [u8; 3],
    /// It is being written: what lies on the storage may be older.
    is_busy: bool,
    /// The host was asked for storage for it.
    is_secured: bool,
}

/// Spreads page numbers without a key: an image made so that many fall together slows its own disk, and no more than
/// [`PAGE_COUNT_MAX`] are kept.
#[derive(Default)]
struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 divided by the golden ratio: what is close goes far apart, in the upper bits above all.
        let spread = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ spread >> 32;
    }
}

/// See the module's page.
pub(crate) struct Tables {
    file: Arc<dyn TargetFile>,
    len_bytes: u64,
    pages: HashMap<u64, Page, BuildHasherDefault<PageHasher>>,
    dirty: BTreeSet<u64>,
    clock: AtomicU64,
}

/// A page as it is to be written.
pub(crate) struct DirtyPage {
    /// Where in the file.
    pub(crate) at: HostOffset,
    /// The whole page.
    pub(crate) bytes: Vec<u8>,
    dirty: [u8; 3],
}

/// Everything that changed since the last snapshot, by place.
pub(crate) struct Snapshot {
    /// The pages.
    pub(crate) pages: Vec<DirtyPage>,
    /// The file's length.
    pub(crate) len_bytes: u64,
}

impl Snapshot {
    /// This stage is on stable storage.
    pub(crate) fn written(&mut self, stage: Stage) {
        self.pages.iter_mut().for_each(|page| page.dirty[stage as usize] = 0);
    }

    /// All of it is.
    pub(crate) fn all_written(&mut self) {
        STAGES.into_iter().for_each(|stage| self.written(stage));
    }

    /// What a stage writes: neighbouring sectors together.
    pub(crate) fn writes(&self, stage: Stage) -> Vec<(HostOffset, Vec<u8>)> {
        let mut writes: Vec<(HostOffset, Vec<u8>)> = Vec::new();
        for page in &self.pages {
            for (index, sector) in page.bytes.chunks_exact(index(SECTOR_BYTES)).enumerate() {
                if page.dirty[stage as usize] >> index & 1 == 0 {
                    continue;
                }
                let at = page.at.plus(index as u64 * SECTOR_BYTES);
                match writes.last_mut() {
                    Some((start, bytes)) if start.plus(bytes.len() as u64) == at => bytes.extend(sector),
                    _ => writes.push((at, sector.to_vec())),
                }
            }
        }
        writes
    }
}

/// A length bounded by what was checked before, as an index into memory.
pub(crate) fn index(len_bytes: u64) -> usize {
    usize::try_from(len_bytes).expect("bounded by the caller")
}

/// The pieces of `len` bytes from `at`, by page: page, place in it, and place in the whole.
fn pieces(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    Span::<extent::Host>::new(HostOffset::new(at), len as u64).split(PAGE_BYTES).map(move |piece| {
        let start = piece.start().get();
        let from = index(start - at);
        (start / PAGE_BYTES, index(start % PAGE_BYTES), from..from + index(piece.len_bytes()))
    })
}

impl Tables {
    /// The tables of `file` as it is now.
    pub(crate) fn new(file: Arc<dyn TargetFile>) -> Self {
        let len_bytes = file.len_bytes();
        let (pages, dirty) = (HashMap::default(), BTreeSet::new());
        Self { file, len_bytes, pages, dirty, clock: AtomicU64::new(0) }
    }

    /// The file's length.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Makes the file at least `len_bytes` long.
    pub(crate) fn grow(&mut self, len_bytes: u64) -> Result<()> {
        if len_bytes > self.len_bytes {
            self.file.set_len(len_bytes)?;
            self.len_bytes = len_bytes;
        }
        Ok(())
    }

    /// Makes sure that the host has storage for `span`, so that a table there can be written whenever it must be.
    pub(crate) fn reserve(&mut self, span: HostSpan) -> Result<()> {
        self.grow(span.end().get())?;
        self.file.reserve(span)
    }

    /// Cuts the file off at `len_bytes`, behind everything that counts.
    pub(crate) fn truncate(&mut self, len_bytes: u64) -> Result<()> {
        if len_bytes < self.len_bytes {
            self.pages.retain(|page, _| *page < len_bytes / PAGE_BYTES);
            self.file.set_len(len_bytes)?;
            self.len_bytes = len_bytes;
        }
        Ok(())
    }

    /// Makes `span`, within the file and no table's, read as zeros; without storage where the host has room for that.
    pub(crate) fn clear(&self, span: HostSpan) -> Result<()> {
        match self.file.punch(span) {
            Err(error) if error.is_full() => self.file.zero(span),
            cleared => cleared,
        }
    }

    /// The `N` bytes at `at`, which lie within one page.
    pub(crate) fn get<const N: usize>(&self, at: u64) -> Result<[u8; N], Missed> {
        let number = at / PAGE_BYTES;
        let page = self.pages.get(&number).ok_or(Missed::Page(number))?;
        page.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let from = index(at % PAGE_BYTES);
        let bytes = page.bytes.get(from..from + N).and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| Error::corrupt(BrokenTables::EntryAcrossPages).at(HostOffset::new(at)).into())
    }

    /// As [`Tables::get`], loading the page if need be.
    pub(crate) fn read<const N: usize>(&mut self, at: u64) -> Result<[u8; N]> {
        self.load(at / PAGE_BYTES)?;
        match self.get(at) {
            Ok(bytes) => Ok(bytes),
            Err(Missed::Failed(error)) => Err(error),
            Err(Missed::Page(_)) => unreachable!("just loaded"),
        }
    }

    /// The answer of `look`, with every page loaded that it asks for.
    pub(crate) fn looking<T>(&mut self, mut look: impl FnMut(&Self) -> Result<T, Missed>) -> Result<T> {
        loop {
            match look(self) {
                Ok(found) => return Ok(found),
                Err(Missed::Page(page)) => self.load(page)?,
                Err(Missed::Failed(error)) => return Err(error),
            }
        }
    }

    /// Any bytes of tables.
    pub(crate) fn read_vec(&mut self, span: HostSpan) -> Result<Vec<u8>> {
        let mut bytes = vec![0; index(span.len_bytes())];
        for (number, from, range) in pieces(span.start().get(), bytes.len()) {
            self.load(number)?;
            let page = &self.pages[&number].bytes[from..from + range.len()];
            bytes[range].copy_from_slice(page);
        }
        Ok(bytes)
    }

    /// Brings a page into memory. What lies past the file's end reads as zeros.
    pub(crate) fn load(&mut self, number: u64) -> Result<()> {
        if self.pages.contains_key(&number) {
            return Ok(());
        }
        let start = number.saturating_mul(PAGE_BYTES);
        let mut bytes = vec![0; index(PAGE_BYTES)];
        let there = self.len_bytes.saturating_sub(start).min(PAGE_BYTES);
        if there > 0 {
            self.file.read_at(HostOffset::new(start), &mut bytes[..index(there)])?;
        }
        self.insert(number, bytes);
        Ok(())
    }

    fn insert(&mut self, number: u64, bytes: Vec<u8>) {
        if self.pages.len() >= PAGE_COUNT_MAX {
            self.give_up_the_older_half();
        }
        let used = AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed));
        self.pages.insert(number, Page { bytes, used, dirty: [0; 3], is_busy: false, is_secured: false });
    }

    fn give_up_the_older_half(&mut self) {
        let used = |page: &Page| page.used.load(Ordering::Relaxed);
        let mut ages: Vec<_> = self.pages.values().map(used).collect();
        let middle = ages.len() / 2;
        let (_, &mut median, _) = ages.select_nth_unstable(middle);
        self.pages.retain(|_, page| page.dirty != [0; 3] || page.is_busy || used(page) > median);
    }

    /// Brings the pages of `len_bytes` at `at` into memory and sees to it that the host has storage for them: what a client was told is
    /// written must not fail for want of room when it is flushed. On a file system that writes elsewhere what is written again it may
    /// nonetheless.
    pub(crate) fn secure(&mut self, at: u64, len_bytes: u64) -> Result<()> {
        for (number, ..) in pieces(at, index(len_bytes)) {
            self.load(number)?;
            let page = self.pages.get_mut(&number).expect("just loaded");
            let span = Span::new(HostOffset::new(number * PAGE_BYTES), PAGE_BYTES);
            let inside = span.intersect(&Span::from_zero(self.len_bytes));
            if !page.is_secured {
                inside.map_or(Ok(()), |inside| self.file.reserve(inside))?;
                page.is_secured = true;
            }
        }
        Ok(())
    }

    /// Changes `bytes` at `at`; if there is no room for it nothing.
    pub(crate) fn put(&mut self, at: u64, bytes: &[u8], stage: Stage) -> Result<()> {
        self.secure(at, bytes.len() as u64)?;
        for (number, from, range) in pieces(at, bytes.len()) {
            self.load(number)?;
            self.change(number, from, &bytes[range], stage);
        }
        Ok(())
    }

    fn change(&mut self, number: u64, from: usize, bytes: &[u8], stage: Stage) {
        let page = self.pages.get_mut(&number).expect("loaded by the caller");
        page.bytes[from..from + bytes.len()].copy_from_slice(bytes);
        let sector = index(SECTOR_BYTES);
        for index in from / sector..(from + bytes.len()).div_ceil(sector) {
            page.dirty[stage as usize] |= 1 << index;
        }
        self.dirty.insert(number);
    }

    /// Makes `span`, whole sectors that held no table, one that holds `byte` throughout. The caller saw to its storage.
    pub(crate) fn create(&mut self, span: HostSpan, byte: u8, stage: Stage) {
        let page = vec![byte; index(PAGE_BYTES)];
        for (number, from, range) in pieces(span.start().get(), index(span.len_bytes())) {
            if !self.pages.contains_key(&number) {
                // The other sectors are no table's, or will be created too: what they hold here is never written.
                let is_whole = range.len() == page.len();
                if !is_whole && self.load(number).is_err() {
                    self.insert(number, vec![0; page.len()]);
                } else if is_whole {
                    self.insert(number, page.clone());
                }
            }
            self.change(number, from, &page[..range.len()], stage);
            self.pages.get_mut(&number).expect("it was just changed").is_secured = true;
        }
    }

    /// Says that `span` holds no table any more: what was changed there is not written.
    pub(crate) fn forget(&mut self, span: HostSpan) {
        let numbers = span.start().get() / PAGE_BYTES..span.end().get().div_ceil(PAGE_BYTES);
        // Most of what is freed held no table.
        if self.dirty.range(numbers).next().is_none() {
            return;
        }
        for (number, from, range) in pieces(span.start().get(), index(span.len_bytes())) {
            let Some(page) = self.pages.get_mut(&number) else { continue };
            let sector = index(SECTOR_BYTES);
            for index in from / sector..(from + range.len()).div_ceil(sector) {
                page.dirty.iter_mut().for_each(|dirty| *dirty &= !(1 << index));
            }
            if page.dirty == [0; 3] {
                self.dirty.remove(&number);
            }
        }
    }

    /// Whether so much changed that it should be written back.
    pub(crate) fn is_full(&self) -> bool {
        self.dirty.len() > DIRTY_COUNT_MAX
    }

    /// Takes all that changed, to be written; then [`Tables::snapshot_written`].
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        let mut pages = Vec::with_capacity(self.dirty.len());
        for number in std::mem::take(&mut self.dirty) {
            let page = self.pages.get_mut(&number).expect("a changed page stays");
            page.is_busy = true;
            let dirty = std::mem::take(&mut page.dirty);
            let at = HostOffset::new(number * PAGE_BYTES);
            pages.push(DirtyPage { at, bytes: page.bytes.clone(), dirty });
        }
        Snapshot { pages, len_bytes: self.len_bytes }
    }

    /// Says that a snapshot was written, as far as it says so itself: the rest is as changed as before.
    ///
    /// What is written of it later is what the tables say then. A stage is written again only if none that comes after it was
    /// begun, so that nothing on the storage refers to what it brings.
    pub(crate) fn snapshot_written(&mut self, snapshot: &Snapshot) {
        for old in &snapshot.pages {
            let number = old.at.get() / PAGE_BYTES;
            let Some(page) = self.pages.get_mut(&number) else { continue };
            page.is_busy = false;
            if old.dirty == [0; 3] || broken!(FailedCommitForgotten) {
                continue;
            }
            for (dirty, left) in page.dirty.iter_mut().zip(old.dirty) {
                *dirty |= left;
            }
            self.dirty.insert(number);
        }
    }
}
