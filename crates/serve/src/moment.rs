//! A disk as it was at one moment, while its guest goes on: what is about to change is kept aside first (copy before write).
//!
//! Invariants:
//! - a moment begins between two changes: each is in it whole, or not at all;
//! - what a moment cannot keep fails the moment and never the guest: its reads fail from then on, so that nobody takes a mixture of times
//!   for a disk;
//! - a unit is kept once, before the first change that touches it begins.
//!
//! A reader takes no lock. It reads the disk first and asks then which of the units were kept meanwhile; of these it reads what was kept. A
//! unit that was not kept by then had not begun to change, so that what was read of it is old.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use block::{Disk, EditDisk, Error, LiveDisk, ReadAt, Result, Run, RunState, Take, push_run};
use block::{FileIndex, check_bounds, forward};
use extent::{HostOffset, Virtual, VirtualOffset, VirtualSpan};
use mutants::broken;

/// What is kept at once: QEMU's own unit of copying before writing is the cluster of its target, 64 KiB by default.
const UNIT_BYTES: u64 = 64 << 10;
/// Units share these locks, each the one of its number.
const LOCK_COUNT: usize = 64;
/// Longer changes look at the map first, so that those of free space cost little.
const UNITS_MAPPED_FROM: u64 = 16;
/// More would have each write of the guest wait for so many copies.
const MOMENT_COUNT_MAX: usize = 4;

/// Where a moment keeps what changes: a file without a name, most of the time. What was never written there reads as zeros.
pub trait Keep: Send + Sync {
    /// Keeps `buf` as what lay at `at`, a number of bytes from the disk's beginning.
    fn write(&self, at: u64, buf: &[u8]) -> Result<()>;

    /// Reads what was kept from `at` on.
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<()>;
}

/// A disk in use, of which moments may be kept.
pub(crate) struct Moments {
    disk: Arc<dyn LiveDisk>,
    /// Held for reading by each change while it goes on, and for writing by what begins or ends a moment.
    kept: RwLock<Vec<Arc<Moment>>>,
}

impl Moments {
    pub(crate) fn new(disk: Arc<dyn LiveDisk>) -> Self {
        Self { disk, kept: RwLock::default() }
    }

    /// The disk as it is now, for as long as [`Self::end`] is not called.
    pub(crate) fn begin(&self, keep: Box<dyn Keep>) -> Result<Arc<Moment>> {
        let mut all = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOMENT_COUNT_MAX {
            let why = format!("{MOMENT_COUNT_MAX} moments of this disk are being read already");
            return Err(Error::refused(why).hint("wait until one of them was copied"));
        }
        let moment = Arc::new(Moment::new(self.disk.clone(), keep)?);
        all.push(moment.clone());
        Ok(moment)
    }

    /// Keeps nothing more for the moment, which nobody can read any more.
    pub(crate) fn end(&self, moment: &Arc<Moment>) {
        moment.fail("the moment has ended");
        self.kept.write().unwrap_or_else(PoisonError::into_inner).retain(|other| !Arc::ptr_eq(other, moment));
    }

    fn changing<T>(&self, span: VirtualSpan, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let moments = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        if broken!(KeptAfterChange) {
            let changed = change();
            moments.iter().for_each(|moment| moment.keep(span));
            return changed;
        }
        moments.iter().for_each(|moment| moment.keep(span));
        change()
    }
}

impl ReadAt<Virtual> for Moments {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.disk.read_at(at, buf)
    }
}

impl EditDisk for Moments {
    fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()> {
        self.changing(VirtualSpan::new(at, buf.len() as u64), || self.disk.write_at(at, buf))
    }

    fn flush(&self) -> Result<()> {
        self.disk.flush()
    }

    fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.disk.read_stored(at, buf)
    }

    fn release(&self, span: VirtualSpan) -> Result<()> {
        self.changing(span, || self.disk.release(span))
    }
}

impl Disk for Moments {
    forward!(self, self.disk => map, sector_bytes);
}

impl LiveDisk for Moments {
    fn zero(&self, span: VirtualSpan, may_free: bool) -> Result<()> {
        self.changing(span, || self.disk.zero(span, may_free))
    }

    fn discard(&self, span: VirtualSpan) -> Result<()> {
        self.changing(span, || self.disk.discard(span))
    }

    fn lend(&self, span: VirtualSpan, take: Take<'_>) -> Result<bool> {
        self.disk.lend(span, take)
    }

    forward!(self, self.disk => occupancy, relocate, is_changed, reclaim, restart_bitmap, has_failed, close);
}

/// A disk as it was at one moment. It is only read.
pub(crate) struct Moment {
    disk: Arc<dyn LiveDisk>,
    keep: Box<dyn Keep>,
    /// A bit of each unit: that it was kept.
    kept: Vec<AtomicU64>,
    locks: [Mutex<()>; LOCK_COUNT],
    failure: OnceLock<String>,
}

impl Moment {
    fn new(disk: Arc<dyn LiveDisk>, keep: Box<dyn Keep>) -> Result<Self> {
        let words = disk.len_bytes().div_ceil(UNIT_BYTES).div_ceil(64);
        let words = usize::try_from(words).map_err(|_| Error::unsupported("a moment of so large a disk"))?;
        let mut kept = Vec::new();
        kept.try_reserve_exact(words).map_err(|_| Error::unsupported("a moment of so large a disk"))?;
        kept.resize_with(words, AtomicU64::default);
        Ok(Self { disk, keep, kept, locks: [const { Mutex::new(()) }; LOCK_COUNT], failure: OnceLock::new() })
    }

    /// Why it cannot be read any more, if so.
    fn check(&self) -> Result<()> {
        match self.failure.get().filter(|_| !broken!(FailureForgotten)) {
            Some(why) => Err(Error::io("read the disk as it was", std::io::Error::other(why.clone()))),
            None => Ok(()),
        }
    }

    fn fail(&self, why: &str) {
        if self.failure.set(why.to_owned()).is_ok() {
            tracing::debug!(why, "moment over");
        }
    }

    fn word(&self, unit: u64) -> Option<(&AtomicU64, u64)> {
        let word = usize::try_from(unit / 64).ok().and_then(|word| self.kept.get(word))?;
        Some((word, 1 << (unit % 64)))
    }

    fn is_kept(&self, unit: u64) -> bool {
        self.word(unit).is_some_and(|(word, bit)| word.load(SeqCst) & bit != 0)
    }

    /// Keeps what is about to change.
    fn keep(&self, span: VirtualSpan) {
        if span.len_bytes() > UNITS_MAPPED_FROM * UNIT_BYTES {
            self.note_zeros(span);
        }
        for unit in units(span) {
            if self.failure.get().is_some() {
                return;
            }
            if let Err(error) = self.keep_unit(unit) {
                self.fail(&format!("what the guest overwrote could not be kept: {error}"));
            }
        }
    }

    /// Counts units that are mapped as zeros as kept, of which nothing need be read. What has begun to change by now is kept already.
    fn note_zeros(&self, span: VirtualSpan) {
        let Ok(runs) = self.disk.map(span) else { return };
        for run in runs.iter().filter(|run| matches!(run.state, RunState::Hole | RunState::Zero)) {
            for unit in units(run.span)
                .filter(|unit| run.span.intersect(&self.span_of(*unit)) == Some(self.span_of(*unit)))
            {
                if let Some((word, bit)) = self.word(unit) {
                    word.fetch_or(bit, SeqCst);
                }
            }
        }
    }

    fn keep_unit(&self, unit: u64) -> Result<()> {
        if self.is_kept(unit) {
            return Ok(());
        }
        let lock = &self.locks[usize::try_from(unit % LOCK_COUNT as u64).unwrap_or_default()];
        let _alone = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((word, bit)) = self.word(unit).filter(|(word, bit)| word.load(SeqCst) & bit == 0) else {
            return Ok(());
        };
        let span = self.span_of(unit);
        let mut bytes = vec![0; usize::try_from(span.len_bytes()).unwrap_or_default()];
        self.disk.read_at(span.start(), &mut bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            self.keep.write(span.start().get(), &bytes)?;
        }
        word.fetch_or(bit, SeqCst);
        Ok(())
    }

    fn span_of(&self, unit: u64) -> VirtualSpan {
        let start = unit * UNIT_BYTES;
        let end = (start + UNIT_BYTES).min(self.disk.len_bytes());
        VirtualSpan::between(VirtualOffset::new(start), VirtualOffset::new(end))
    }

    /// Consecutive units of `span` that were all kept, or all not, and which of both.
    fn stretches(&self, span: VirtualSpan) -> Vec<(VirtualSpan, bool)> {
        let mut found: Vec<(VirtualSpan, bool)> = Vec::new();
        for unit in units(span) {
            let Some(part) = self.span_of(unit).intersect(&span) else { continue };
            let is_kept = self.is_kept(unit);
            match found.last_mut() {
                Some((last, was_kept)) if *was_kept == is_kept => {
                    *last = VirtualSpan::between(last.start(), part.end());
                }
                _ => found.push((part, is_kept)),
            }
        }
        found
    }

    fn refuse<T>() -> Result<T> {
        Err(Error::refused("a disk as it was is only read"))
    }
}

/// The numbers of the units that `span` touches.
fn units(span: VirtualSpan) -> std::ops::Range<u64> {
    match span.is_empty() {
        true => 0..0,
        false => span.start().get() / UNIT_BYTES..span.end().get().div_ceil(UNIT_BYTES),
    }
}

impl ReadAt<Virtual> for Moment {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        let before = if broken!(AskedBeforeReading) {
            self.stretches(VirtualSpan::new(at, buf.len() as u64))
        } else {
            Vec::new()
        };
        self.disk.read_at(at, buf)?;
        fence(SeqCst);
        let span = VirtualSpan::new(at, buf.len() as u64);
        let kept = if broken!(AskedBeforeReading) { before } else { self.stretches(span) };
        for (part, _) in kept.into_iter().filter(|(_, is_kept)| *is_kept) {
            let place = |offset: VirtualOffset| usize::try_from(offset.get() - at.get()).unwrap_or_default();
            self.keep.read(part.start().get(), &mut buf[place(part.start())..place(part.end())])?;
        }
        // A unit that could not be kept may have changed under the reader.
        self.check()
    }
}

impl EditDisk for Moment {
    fn write_at(&self, _at: VirtualOffset, _buf: &[u8]) -> Result<()> {
        Self::refuse()
    }

    /// Nothing was written.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.read_at(at, buf)
    }
}

impl Disk for Moment {
    /// What was kept counts as data, wherever it lies.
    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let below = self.disk.map(span)?;
        fence(SeqCst);
        let mut runs = Vec::new();
        for (part, is_kept) in self.stretches(span) {
            if is_kept {
                let offset = HostOffset::new(part.start().get());
                push_run(&mut runs, Run::new(part, RunState::Data { file: FileIndex(0), offset }));
            } else {
                below.iter().filter_map(|run| run.clipped(&part)).for_each(|run| push_run(&mut runs, run));
            }
        }
        self.check()?;
        Ok(runs)
    }

    fn sector_bytes(&self) -> u32 {
        self.disk.sector_bytes()
    }
}

impl LiveDisk for Moment {
    fn zero(&self, _span: VirtualSpan, _may_free: bool) -> Result<()> {
        Self::refuse()
    }

    fn discard(&self, _span: VirtualSpan) -> Result<()> {
        Self::refuse()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    use crate::mutant::{MUTANTS, Mutant};

    const LEN: usize = 5 * UNIT_BYTES as usize + 4096;

    type Hook = Box<dyn FnOnce() + Send>;

    /// A disk in memory. What is between is done while it is read: before or after the bytes are there.
    #[derive(Default)]
    struct Bytes {
        bytes: Mutex<Vec<u8>>,
        between: Mutex<Option<(bool, Hook)>>,
    }

    impl Bytes {
        fn run_hook(&self, is_after: bool) {
            let hook = self.between.lock().unwrap().take_if(|(after, _)| *after == is_after);
            if let Some((_, hook)) = hook {
                hook();
            }
        }

        fn fill(&self, span: VirtualSpan, byte: u8) {
            let (start, end) = (span.start().get() as usize, span.end().get() as usize);
            self.bytes.lock().unwrap()[start..end].fill(byte);
        }
    }

    impl ReadAt<Virtual> for Bytes {
        fn len_bytes(&self) -> u64 {
            LEN as u64
        }

        fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
            self.run_hook(false);
            let start = at.get() as usize;
            buf.copy_from_slice(&self.bytes.lock().unwrap()[start..start + buf.len()]);
            self.run_hook(true);
            Ok(())
        }
    }

    impl EditDisk for Bytes {
        fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()> {
            self.fill(VirtualSpan::new(at, buf.len() as u64), buf[0]);
            Ok(())
        }

        fn flush(&self) -> Result<()> {
            Ok(())
        }

        fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
            self.read_at(at, buf)
        }
    }

    impl Disk for Bytes {
        fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
            let bytes = self.bytes.lock().unwrap();
            let mut runs = Vec::new();
            for at in span.start().get()..span.end().get() {
                let offset = HostOffset::new(at);
                let state = match bytes[at as usize] {
                    0 => RunState::Hole,
                    _ => RunState::Data { file: FileIndex(0), offset },
                };
                push_run(&mut runs, Run::new(VirtualSpan::new(VirtualOffset::new(at), 1), state));
            }
            Ok(runs)
        }
    }

    impl LiveDisk for Bytes {
        fn zero(&self, span: VirtualSpan, _may_free: bool) -> Result<()> {
            self.fill(span, 0);
            Ok(())
        }

        fn discard(&self, span: VirtualSpan) -> Result<()> {
            self.zero(span, true)
        }
    }

    #[derive(Default)]
    struct KeptBytes {
        bytes: Mutex<Vec<u8>>,
        is_full: AtomicBool,
    }

    impl Keep for Arc<KeptBytes> {
        fn write(&self, at: u64, buf: &[u8]) -> Result<()> {
            if self.is_full.load(SeqCst) {
                return Err(Error::io("keep", std::io::ErrorKind::StorageFull.into()));
            }
            let mut bytes = self.bytes.lock().unwrap();
            let end = at as usize + buf.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[at as usize..end].copy_from_slice(buf);
            Ok(())
        }

        fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
            let bytes = self.bytes.lock().unwrap();
            for (index, byte) in buf.iter_mut().enumerate() {
                *byte = bytes.get(at as usize + index).copied().unwrap_or(0);
            }
            Ok(())
        }
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % limit
        }

        fn span(&mut self) -> VirtualSpan {
            let start = self.below(LEN as u64 / 512) * 512;
            let len = if self.below(8) == 0 { LEN as u64 } else { 512 << self.below(8) };
            VirtualSpan::between(VirtualOffset::new(start), VirtualOffset::new((start + len).min(LEN as u64)))
        }
    }

    fn change(disk: &Moments, random: &mut Random) {
        let span = random.span();
        match random.below(4) {
            0 => disk.zero(span, true).unwrap(),
            1 => disk.discard(span).unwrap(),
            _ => {
                let byte = 1 + random.below(250) as u8;
                disk.write_at(span.start(), &vec![byte; span.len_bytes() as usize]).unwrap();
            }
        }
    }

    /// Whether all that is read of a moment is what was there then, or an error once something could not be kept.
    fn holds(seed: u64) -> bool {
        let mut random = Random(seed);
        let below = Arc::new(Bytes { bytes: Mutex::new(vec![0; LEN]), ..Bytes::default() });
        let disk = Arc::new(Moments::new(below.clone()));
        (0..6).for_each(|_| change(&disk, &mut random));
        let then = below.bytes.lock().unwrap().clone();
        let keep = Arc::new(KeptBytes::default());
        let moment = disk.begin(Box::new(keep.clone())).unwrap();
        let mut is_right = true;
        for _ in 0..12 {
            if random.below(2) == 0 {
                change(&disk, &mut random);
            }
            if random.below(24) == 0 {
                keep.is_full.store(true, SeqCst);
            }
            let (meanwhile, seed) = (disk.clone(), random.below(1 << 30));
            let hook: Hook = Box::new(move || change(&meanwhile, &mut Random(seed)));
            *below.between.lock().unwrap() = Some((random.below(2) == 0, hook));
            let span = random.span();
            let mut read = vec![0; span.len_bytes() as usize];
            let expected = &then[span.start().get() as usize..span.end().get() as usize];
            match moment.read_at(span.start(), &mut read) {
                Ok(()) => is_right &= read == expected,
                Err(_) => is_right &= keep.is_full.load(SeqCst),
            }
            *below.between.lock().unwrap() = None;
            let Ok(runs) = moment.map(span) else { continue };
            for run in runs.iter().filter(|run| run.state == RunState::Hole) {
                is_right &= then[run.span.start().get() as usize..run.span.end().get() as usize]
                    .iter()
                    .all(|byte| *byte == 0);
            }
        }
        disk.end(&moment);
        is_right && (broken!(FailureForgotten) || moment.read_at(VirtualOffset::new(0), &mut [0]).is_err())
    }

    #[test]
    fn a_moment_is_what_was_there_whatever_comes_between() {
        for seed in 0..200 {
            assert!(holds(seed), "seed {seed}");
        }
    }

    #[test]
    fn every_way_to_break_it_is_noticed() {
        for mutant in MUTANTS {
            let noticed = mutants::with(Some(mutant), || (0..200).any(|seed| !holds(seed)));
            assert!(noticed, "{mutant:?}");
        }
        assert_eq!(MUTANTS[0], Mutant::KeptAfterChange);
    }

    #[test]
    fn so_many_moments_and_no_more() {
        let disk = Moments::new(Arc::new(Bytes { bytes: Mutex::new(vec![0; LEN]), ..Bytes::default() }));
        let keep = || Box::new(Arc::new(KeptBytes::default()));
        let all: Vec<_> = (0..MOMENT_COUNT_MAX).map(|_| disk.begin(keep()).unwrap()).collect();
        assert!(disk.begin(keep()).is_err());
        disk.end(&all[0]);
        disk.begin(keep()).unwrap();
    }
}
