//! Gives back what an image holds for nothing.
//!
//! Invariants:
//! - nothing is written but the image's own tables, and units on their way from the file's end into gaps; other than these
//!   nothing that is kept is touched;
//! - storage is given back only after the tables that no longer refer to it are on stable storage, which is what a disk in use
//!   ([`image::live`]) sees to: whenever the machine stops, the image is whole, and at worst holds on to something that
//!   nothing refers to.
//!
//! So no journal is needed: what was given back stays given back, and the rest is found by the next run.

use std::sync::atomic::{AtomicU64, Ordering};

use block::{LiveDisk, ReadAt, Result, TargetFile, UnitMove};
use extent::{Host, HostOffset, HostSpan, PackedExtents, Span, Virtual};

use crate::monitor::JobMonitor;

/// What is released between two looks at whether to go on.
const STEP_BYTES: u64 = 256 << 20;
/// What is released before it is brought to stable storage, so that its storage is really given back.
const FLUSH_BYTES: u64 = 4 << 30;
/// What moves between two looks: so much more than the disk the host needs, unless a unit is larger.
const MOVE_BYTES: u64 = 32 << 20;

/// What to give back.
pub struct CompactJob<'a> {
    /// The disk, held alone.
    pub disk: &'a dyn LiveDisk,
    /// What means nothing any more, in order.
    pub releases: &'a PackedExtents<Virtual>,
    /// What goes elsewhere in the image's file after that: each move into places that are free before the first.
    pub moves: &'a [UnitMove],
    /// Bytes of the file that each unit takes.
    pub slot_bytes: u64,
    /// Nobody may stop in the middle: the image's kind allows no gaps.
    pub is_all_or_nothing: bool,
}

/// What was done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CompactOutcome {
    /// Bytes of the virtual disk that were released.
    pub released_bytes: u64,
    /// Bytes of the file that moved.
    pub moved_bytes: u64,
    /// The user asked to stop; the disk is whole.
    pub is_cancelled: bool,
}

impl CompactJob<'_> {
    /// Releases and moves all, and closes the disk: on return everything is on stable storage, and the image one that nobody
    /// has open.
    pub fn run(&self, monitor: &dyn JobMonitor) -> Result<CompactOutcome> {
        let mut outcome =
            CompactOutcome { is_cancelled: monitor.is_cancelled(), ..CompactOutcome::default() };
        if !outcome.is_cancelled {
            self.release(monitor, &mut outcome)?;
        }
        if !outcome.is_cancelled && !self.moves.is_empty() {
            // What was released is free only then.
            self.disk.flush()?;
            self.relocate(monitor, &mut outcome)?;
        }
        self.disk.close()?;
        Ok(outcome)
    }

    fn is_stopped(&self, monitor: &dyn JobMonitor, outcome: &mut CompactOutcome) -> bool {
        outcome.is_cancelled = !self.is_all_or_nothing && monitor.is_cancelled();
        outcome.is_cancelled
    }

    fn release(&self, monitor: &dyn JobMonitor, outcome: &mut CompactOutcome) -> Result<()> {
        let mut unflushed = 0;
        for step in self.releases.iter().flat_map(|release| release.split(STEP_BYTES)) {
            if self.is_stopped(monitor, outcome) {
                return Ok(());
            }
            self.disk.discard(step)?;
            outcome.released_bytes += step.len_bytes();
            monitor.advanced(step.len_bytes(), 0);
            unflushed += step.len_bytes();
            if unflushed >= FLUSH_BYTES {
                self.disk.flush()?;
                unflushed = 0;
            }
        }
        Ok(())
    }

    fn relocate(&self, monitor: &dyn JobMonitor, outcome: &mut CompactOutcome) -> Result<()> {
        for batch in batches(self.moves, self.slot_bytes) {
            if self.is_stopped(monitor, outcome) {
                return Ok(());
            }
            self.disk.relocate(&batch)?;
            let moved_bytes = batch.iter().map(|moved| moved.count * self.slot_bytes).sum();
            outcome.moved_bytes += moved_bytes;
            monitor.advanced(moved_bytes, moved_bytes);
        }
        Ok(())
    }
}

/// `moves` in their order, in batches of which the host has room for what lies in two places.
pub(crate) fn batches(moves: &[UnitMove], slot_bytes: u64) -> impl Iterator<Item = Vec<UnitMove>> {
    let count_max = (MOVE_BYTES / slot_bytes.max(1)).max(1);
    let (mut rest, mut done) = (moves, 0);
    std::iter::from_fn(move || {
        let (mut batch, mut room) = (Vec::new(), count_max);
        while let Some((first, after)) = rest.split_first().filter(|_| room > 0) {
            let count = (first.count - done).min(room);
            batch.push(UnitMove {
                first: first.first.plus(done),
                count,
                from: first.from.plus(done * slot_bytes),
                to: first.to.plus(done * slot_bytes),
            });
            room -= count;
            done += count;
            if done == first.count {
                (rest, done) = (after, 0);
            }
        }
        (!batch.is_empty()).then_some(batch)
    })
}

/// A file that is only read, as if it were open for writing: to see whether a disk could be taken into use, without changing
/// a byte of it. Whatever would be written is lost.
pub struct Unwritten<T> {
    file: T,
    len_bytes: AtomicU64,
}

impl<T: ReadAt<Host>> Unwritten<T> {
    /// Stands before `file`.
    pub fn new(file: T) -> Self {
        let len_bytes = AtomicU64::new(file.len_bytes());
        Self { file, len_bytes }
    }
}

impl<T: ReadAt<Host>> ReadAt<Host> for Unwritten<T> {
    fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire)
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        block::check_bounds(at, buf.len(), self.len_bytes())?;
        let asked: HostSpan = Span::new(at, buf.len() as u64);
        let there =
            asked.intersect(&Span::from_zero(self.file.len_bytes())).map_or(0, |span| span.len_bytes());
        let (inside, outside) = buf.split_at_mut(usize::try_from(there).expect("within the buffer"));
        outside.fill(0);
        if inside.is_empty() { Ok(()) } else { self.file.read_at(at, inside) }
    }
}

impl<T: ReadAt<Host>> TargetFile for Unwritten<T> {
    fn write_at(&self, _at: HostOffset, _buf: &[u8]) -> Result<()> {
        Ok(())
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.len_bytes.store(len_bytes, Ordering::Release);
        Ok(())
    }

    fn reserve(&self, _span: HostSpan) -> Result<()> {
        Ok(())
    }

    fn zero(&self, _span: HostSpan) -> Result<()> {
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    use block::{Disk, EditDisk, Memory, Run};
    use extent::{VirtualOffset, VirtualSpan};

    #[test]
    fn what_only_seems_written_leaves_the_file_alone() {
        let memory = Memory::new(vec![7; 1024]);
        let file = Unwritten::new(&memory);
        file.write_at(HostOffset::ZERO, &[1; 10]).unwrap();
        file.set_len(2048).unwrap();
        let mut buf = [1; 1024];
        file.read_at(HostOffset::new(512), &mut buf).unwrap();
        assert_eq!((buf[0], buf[511], buf[512], buf[1023]), (7, 7, 0, 0));
        assert!(file.read_at(HostOffset::new(1025), &mut buf).is_err());
    }

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl ReadAt<Virtual> for Log {
        fn len_bytes(&self) -> u64 {
            1 << 50
        }

        fn read_at(&self, _at: VirtualOffset, _buf: &mut [u8]) -> Result<()> {
            Ok(())
        }
    }

    impl Disk for Log {
        fn map(&self, _span: VirtualSpan) -> Result<Vec<Run>> {
            Ok(Vec::new())
        }
    }

    impl EditDisk for Log {
        fn write_at(&self, _at: VirtualOffset, _buf: &[u8]) -> Result<()> {
            self.0.lock().unwrap().push("write".into());
            Ok(())
        }

        fn flush(&self) -> Result<()> {
            self.0.lock().unwrap().push("flush".into());
            Ok(())
        }

        fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
            self.read_at(at, buf)
        }
    }

    impl LiveDisk for Log {
        fn zero(&self, _span: VirtualSpan, _may_free: bool) -> Result<()> {
            self.0.lock().unwrap().push("zero".into());
            Ok(())
        }

        fn discard(&self, span: VirtualSpan) -> Result<()> {
            self.0.lock().unwrap().push(format!("{:#x}+{:#x}", span.start().get(), span.len_bytes()));
            Ok(())
        }

        fn relocate(&self, moves: &[UnitMove]) -> Result<()> {
            let text = |moved: &UnitMove| {
                format!("{:?}*{} {:#x}>{:#x}", moved.first, moved.count, moved.from.get(), moved.to.get())
            };
            self.0.lock().unwrap().push(moves.iter().map(text).collect::<Vec<_>>().join(" "));
            Ok(())
        }

        fn close(&self) -> Result<()> {
            self.0.lock().unwrap().push("close".into());
            Ok(())
        }
    }

    fn job<'a>(disk: &'a Log, releases: &'a PackedExtents<Virtual>, moves: &'a [UnitMove]) -> CompactJob<'a> {
        CompactJob { disk, releases, moves, slot_bytes: 16 << 20, is_all_or_nothing: false }
    }

    #[test]
    fn what_was_released_is_flushed_before_anything_moves_in_batches() {
        let mut releases = PackedExtents::new();
        releases.push(Span::new(VirtualOffset::ZERO, 4096));
        let unit = |first, count, from, to| UnitMove {
            first: block::Occupant::Unit(first),
            count,
            from: HostOffset::new(from),
            to: HostOffset::new(to),
        };
        let moves = [unit(7, 3, 0x1000_0000, 0x100_0000), unit(20, 1, 0x2000_0000, 0x700_0000)];
        let disk = Log::default();
        let outcome = job(&disk, &releases, &moves).run(&Stops(u64::MAX, AtomicU64::new(0))).unwrap();
        assert_eq!(outcome.moved_bytes, 64 << 20);
        assert_eq!(
            disk.0.into_inner().unwrap(),
            [
                "0x0+0x1000",
                "flush",
                "Unit(7)*2 0x10000000>0x1000000",
                "Unit(9)*1 0x12000000>0x3000000 Unit(20)*1 0x20000000>0x7000000",
                "close"
            ]
        );
    }

    #[test]
    fn what_may_have_no_gaps_is_not_stopped() {
        let mut releases = PackedExtents::new();
        releases.push(Span::new(VirtualOffset::ZERO, 9 << 30));
        let disk = Log::default();
        let job = CompactJob { is_all_or_nothing: true, ..job(&disk, &releases, &[]) };
        let outcome = job.run(&Stops(1 << 30, AtomicU64::new(0))).unwrap();
        assert_eq!((outcome.released_bytes, outcome.is_cancelled), (9 << 30, false));
    }

    struct Stops(u64, AtomicU64);

    impl JobMonitor for Stops {
        fn advanced(&self, read_bytes: u64, _written_bytes: u64) {
            self.1.fetch_add(read_bytes, Ordering::Relaxed);
        }

        fn is_cancelled(&self) -> bool {
            self.1.load(Ordering::Relaxed) >= self.0
        }
    }

    #[test]
    fn all_is_released_and_nothing_else_is_done() {
        let mut releases = PackedExtents::new();
        releases.push(Span::new(VirtualOffset::new(1 << 20), 4096));
        releases.push(Span::new(VirtualOffset::new(1 << 30), 9 << 30));
        let disk = Log::default();
        let job = job(&disk, &releases, &[]);
        let outcome = job.run(&Stops(u64::MAX, AtomicU64::new(0))).unwrap();
        assert_eq!(outcome, CompactOutcome { released_bytes: (9 << 30) + 4096, ..CompactOutcome::default() });
        let log = disk.0.into_inner().unwrap();
        assert_eq!(log[0], "0x100000+0x1000");
        assert_eq!(log.last().unwrap(), "close");
        assert_eq!(log.iter().filter(|line| *line == "flush").count(), 2);
        assert_eq!(log.len(), 1 + 36 + 2 + 1);
    }

    #[test]
    fn who_stops_finds_a_closed_disk() {
        let mut releases = PackedExtents::new();
        releases.push(Span::new(VirtualOffset::ZERO, 9 << 30));
        let disk = Log::default();
        let job = job(&disk, &releases, &[]);
        let outcome = job.run(&Stops(1 << 30, AtomicU64::new(0))).unwrap();
        assert_eq!(outcome, CompactOutcome { released_bytes: 1 << 30, moved_bytes: 0, is_cancelled: true });
        assert_eq!(
            disk.0.into_inner().unwrap(),
            [
                "0x0+0x10000000",
                "0x10000000+0x10000000",
                "0x20000000+0x10000000",
                "0x30000000+0x10000000",
                "close"
            ]
        );
    }
}
