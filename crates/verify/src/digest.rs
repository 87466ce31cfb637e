//! Digests of a virtual disk's contents, in segments, so that memory stays small and a difference is placed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{Disk, Error, Result, Run, RunState};
use extent::{Span, Virtual, VirtualOffset, VirtualSpan};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Contents are hashed by aligned windows of this size.
pub const WINDOW_BYTES: u64 = 2 << 20;

/// Windows are summed up by segments of this size: a disk of 64 TiB has a million of them.
const SEGMENT_BYTES: u64 = 64 << 20;

/// The digest of each segment that does not read as zeros altogether.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Digests {
    by_segment: BTreeMap<u64, u128>,
}

/// Digests in the making, storable in the middle.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub struct DigestsBuilder {
    done: Digests,
    segment: u64,
    /// Index and hash of each window of the current segment.
    windows: Vec<(u64, u128)>,
}

/// The hash of a window's contents; `None` if they are all zeros, which count as nothing.
pub fn window_hash(bytes: &[u8]) -> Option<u128> {
    let is_zero = bytes.first().is_none_or(|first| *first == 0 && bytes[1..] == bytes[..bytes.len() - 1]);
    (!is_zero).then(|| xxh3_128(bytes))
}

impl DigestsBuilder {
    /// Adds the hash of the window at `at`. Windows come in ascending order; those of zeros may be left out.
    pub fn add(&mut self, at: VirtualOffset, hash: Option<u128>) {
        let Some(hash) = hash else { return };
        let segment = at.get() / SEGMENT_BYTES;
        if segment != self.segment {
            assert!(self.segment < segment, "windows come in order");
            self.close_segment();
            self.segment = segment;
        }
        self.windows.push((at.get() / WINDOW_BYTES, hash));
    }

    /// The digests of all that was added.
    pub fn finish(mut self) -> Digests {
        self.close_segment();
        self.done
    }

    fn close_segment(&mut self) {
        if self.windows.is_empty() {
            return;
        }
        let mut sum = Xxh3::new();
        for (index, hash) in self.windows.drain(..) {
            sum.update(&index.to_le_bytes());
            sum.update(&hash.to_le_bytes());
        }
        self.done.by_segment.insert(self.segment, sum.digest128());
    }
}

/// Reads `disk` and compares it with `expected`. `Mismatch` names the first segment that differs.
///
/// `advanced` is told the bytes of the disk looked at since it was last called, from any of `thread_count`
/// threads; if it answers `false` the check stops with `Interrupted`.
pub fn check(
    disk: &dyn Disk,
    expected: &Digests,
    thread_count: usize,
    advanced: &(dyn Fn(u64) -> bool + Sync),
) -> Result<()> {
    let segment_count = disk.len_bytes().div_ceil(SEGMENT_BYTES);
    if let Some((segment, _)) = expected.by_segment.range(segment_count..).next() {
        return Err(
            Error::mismatch("the target is too short").at(VirtualOffset::new(segment * SEGMENT_BYTES))
        );
    }
    let next = AtomicU64::new(0);
    let worker = || -> Result<()> {
        loop {
            let segment = next.fetch_add(1, Ordering::Relaxed);
            if segment >= segment_count {
                return Ok(());
            }
            check_segment(disk, expected, segment)?;
            if !advanced(SEGMENT_BYTES) {
                return Err(Error::interrupted());
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..thread_count.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
}

fn check_segment(disk: &dyn Disk, expected: &Digests, segment: u64) -> Result<()> {
    let start = VirtualOffset::new(segment * SEGMENT_BYTES);
    let len_bytes = (disk.len_bytes() - start.get()).min(SEGMENT_BYTES);
    let found = segment_digest(disk, Span::new(start, len_bytes))?;
    if found != expected.by_segment.get(&segment).copied() {
        return Err(Error::mismatch(format!(
            "the target differs from what was read, between {start:?} and {len_bytes} bytes further"
        )));
    }
    Ok(())
}

fn segment_digest(disk: &dyn Disk, segment: VirtualSpan) -> Result<Option<u128>> {
    let mut builder =
        DigestsBuilder { segment: segment.start().get() / SEGMENT_BYTES, ..DigestsBuilder::default() };
    let is_zero = |run: &Run| matches!(run.state, RunState::Hole | RunState::Zero);
    let mut bytes = Vec::new();
    for window in Span::<Virtual>::split(segment, WINDOW_BYTES) {
        if disk.map(window)?.iter().all(is_zero) {
            continue;
        }
        bytes.resize(usize::try_from(window.len_bytes()).expect("a window"), 0);
        disk.read_at(window.start(), &mut bytes)?;
        builder.add(window.start(), window_hash(&bytes));
    }
    let index = segment.start().get() / SEGMENT_BYTES;
    Ok(builder.finish().by_segment.get(&index).copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{FileIndex, Memory, ReadAt, check_bounds};
    use extent::HostOffset;

    struct Plain(Memory);

    impl ReadAt<Virtual> for Plain {
        fn len_bytes(&self) -> u64 {
            ReadAt::<Virtual>::len_bytes(&self.0)
        }

        fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
            check_bounds(at, buf.len(), self.len_bytes())?;
            self.0.read_at(at, buf)
        }
    }

    impl Disk for Plain {
        fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
            let offset = HostOffset::new(span.start().get());
            Ok(vec![Run::new(span, RunState::Data { file: FileIndex(0), offset })])
        }
    }

    fn disk_with(changes: &[(usize, u8)]) -> Plain {
        let mut bytes = vec![0; 130 << 20];
        for (at, value) in changes {
            bytes[*at] = *value;
        }
        Plain(Memory::new(bytes))
    }

    #[test]
    fn one_changed_byte_is_found() {
        let mut builder = DigestsBuilder::default();
        let mut window = vec![0; 2 << 20];
        window[5] = 7;
        builder.add(VirtualOffset::ZERO, window_hash(&window));
        builder.add(VirtualOffset::new(2 << 20), window_hash(&vec![0; 2 << 20]));
        builder.add(VirtualOffset::new(128 << 20), window_hash(&window));
        let expected = builder.finish();
        let right = [(5, 7), ((128 << 20) + 5, 7)];
        let check = |changes: &[(usize, u8)]| check(&disk_with(changes), &expected, 2, &|_| true);
        check(&right).unwrap();
        for wrong in [(70 << 20, 1), (5, 8), ((130 << 20) - 1, 1)] {
            let error = check(&[right[0], right[1], wrong]).unwrap_err();
            assert_eq!(error.kind(), block::ErrorKind::Mismatch, "{wrong:?}");
        }
    }
}
