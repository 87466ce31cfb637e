//! Files that are compressed in units of one length, each by itself.

use std::sync::{Arc, Mutex, PoisonError};

use block::{ReadAt, Result, check_bounds};
use extent::{File, FileOffset, Span};

use crate::browse::Contents;

/// What knows the units of a file.
pub(crate) trait Unpack: Send + Sync {
    /// How long each is, but for the last: some kilobytes.
    fn unit_bytes(&self) -> u64;

    /// The first unit from this one on that is no hole.
    fn next_unit(&self, index: u64) -> Result<Option<u64>>;

    /// What is in the unit of this index. What it is short of its length is zeros.
    fn unit(&self, index: u64) -> Result<Vec<u8>>;
}

/// The most units that are told at once to hold something.
const UNITS_TOLD_MAX: u64 = 256;

/// A file made of units.
pub(crate) struct Units<U> {
    units: U,
    size_bytes: u64,
    /// The one that was read last, since readers go on where they stopped.
    last: Mutex<Option<(u64, Arc<Vec<u8>>)>>,
}

impl<U: Unpack> Units<U> {
    pub(crate) fn new(units: U, size_bytes: u64) -> Self {
        Self { units, size_bytes, last: Mutex::default() }
    }

    fn unit(&self, index: u64) -> Result<Arc<Vec<u8>>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, unit)) = last.as_ref().filter(|(kept, _)| *kept == index) {
            return Ok(Arc::clone(unit));
        }
        let unit = Arc::new(self.units.unit(index)?);
        *last = Some((index, Arc::clone(&unit)));
        Ok(unit)
    }
}

impl<U: Unpack> ReadAt<File> for Units<U> {
    fn len_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, at: FileOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.size_bytes)?;
        let unit_bytes = self.units.unit_bytes();
        let (mut at, mut rest) = (at.get(), buf);
        while !rest.is_empty() {
            let (index, skip) = (at / unit_bytes, at % unit_bytes);
            let len = usize::try_from(unit_bytes - skip).unwrap_or(usize::MAX).min(rest.len());
            let (part, behind) = rest.split_at_mut(len);
            if self.units.next_unit(index)? != Some(index) {
                part.fill(0);
            } else {
                let unit = self.unit(index)?;
                let from = usize::try_from(skip).unwrap_or(usize::MAX).min(unit.len());
                let there = &unit[from..];
                let count = there.len().min(len);
                part[..count].copy_from_slice(&there[..count]);
                part[count..].fill(0);
            }
            rest = behind;
            at += len as u64;
        }
        Ok(())
    }
}

impl<U: Unpack> Contents for Units<U> {
    fn next_data(&self, at: FileOffset) -> Result<Option<Span<File>>> {
        let unit_bytes = self.units.unit_bytes();
        let Some(first) = self.units.next_unit(at.get() / unit_bytes)? else { return Ok(None) };
        let mut end = first.saturating_add(1);
        while end - first < UNITS_TOLD_MAX && self.units.next_unit(end)? == Some(end) {
            end += 1;
        }
        let size = FileOffset::new(self.size_bytes);
        let start = at.max(FileOffset::new(first.saturating_mul(unit_bytes)));
        let end = FileOffset::new(end.saturating_mul(unit_bytes)).min(size);
        Ok((start < end).then(|| Span::between(start, end)))
    }
}
