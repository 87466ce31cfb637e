//! The pipeline as a whole, over memory: same result whatever the threads, resumable anywhere, no hang on failure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use block::{Error, ErrorKind, FileIndex, HostFile, Memory, ReadAt, Result, RunState, TargetFile};
use engine::{Checkpoint, CloneSource, CopyJob, CopyOutcome, CopyTotals, JobMonitor, Provision};
use extent::{ExtentSet, Host, HostOffset, HostSpan, Span, VirtualOffset};
use image::{AnyWriter, Chain, CreateOptions, Format, OpenOptions};
use plan::{CopyOptions, CopyPlan, CopyPlanner, Fact, Role};
use testkit::TestResolver;

const LEN: usize = (23 << 20) + 1536;

/// Twenty-three chunks' worth of data, zeros and half-filled granules.
fn contents() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = vec![0; LEN];
    for (index, piece) in bytes.chunks_mut(3000).enumerate() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(index as u64);
        if state >> 62 != 0 {
            let len = 1000.min(piece.len() / 2);
            piece[..len].fill(state.to_be_bytes()[2] | 1);
        }
    }
    bytes[5 << 20..8 << 20].fill(0);
    bytes
}

fn chain(bytes: &[u8]) -> Chain {
    let file: Arc<dyn HostFile> = Arc::new(Memory::new(bytes.to_vec()));
    Chain::open(file, OpenOptions { format: Some(Format::Raw) }, &TestResolver::default()).unwrap()
}

/// Reads everything but the span from 10 MiB to 11 MiB + 100 bytes.
fn plan() -> CopyPlan {
    let data = |at| RunState::Data { file: FileIndex(0), offset: HostOffset::new(at) };
    let mut planner = CopyPlanner::new(CopyOptions::default(), 0);
    let (skip, resume) = (10 << 20, (11 << 20) + 100);
    for (start, end, state) in
        [(0, skip, data(0)), (skip, resume, RunState::Hole), (resume, LEN as u64, data(resume))]
    {
        let span = Span::between(VirtualOffset::new(start), VirtualOffset::new(end));
        planner.add(&[Fact { span, state, role: Role::Outside }]);
    }
    planner.finish()
}

fn expected() -> Vec<u8> {
    let mut bytes = contents();
    bytes[10 << 20..(11 << 20) + 100].fill(0);
    bytes
}

fn writer() -> AnyWriter {
    writer_of(Format::Raw)
}

fn writer_of(format: Format) -> AnyWriter {
    let options = CreateOptions {
        virtual_bytes: LEN as u64,
        sector_bytes: 512,
        compress: false,
        keys: BTreeMap::new(),
        identity_seed: 1,
        created_unix_seconds: 0,
        file_name: "target".into(),
        target_is_dirty: false,
    };
    image::create(format, options).unwrap()
}

fn run(
    target: &dyn TargetFile,
    thread_count: usize,
    resume: Option<Checkpoint>,
    monitor: &dyn JobMonitor,
) -> Result<CopyOutcome> {
    run_as(Provision::Thin, target, thread_count, resume, monitor)
}

fn run_to(
    format: Format,
    target: &dyn TargetFile,
    resume: Option<Checkpoint>,
    watch: &Watch,
) -> Result<CopyOutcome> {
    let writer = writer_of(format);
    job(&chain(&contents()), &plan(), writer, Provision::Thin, target, 3, resume).run(watch)
}

fn run_as(
    provision: Provision,
    target: &dyn TargetFile,
    thread_count: usize,
    resume: Option<Checkpoint>,
    monitor: &dyn JobMonitor,
) -> Result<CopyOutcome> {
    job(&chain(&contents()), &plan(), writer(), provision, target, thread_count, resume).run(monitor)
}

fn job<'a>(
    source: &'a Chain,
    plan: &'a CopyPlan,
    writer: AnyWriter,
    provision: Provision,
    target: &'a dyn TargetFile,
    thread_count: usize,
    resume: Option<Checkpoint>,
) -> CopyJob<'a> {
    CopyJob {
        clones: None,
        source,
        plan,
        writer,
        target,
        provision,
        thread_count,
        digests: true,
        checkpoint_interval: Some(Duration::ZERO),
        resume,
    }
}

/// A target that shares storage, or does not; counts what is written, and how often that is flushed.
struct Sharing {
    memory: Memory,
    shares: bool,
    written_bytes: AtomicU64,
    flush_count: AtomicU64,
}

impl Sharing {
    fn new(shares: bool) -> Self {
        let (written_bytes, flush_count) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { memory: Memory::new(Vec::new()), shares, written_bytes, flush_count }
    }
}

impl ReadAt<Host> for Sharing {
    fn len_bytes(&self) -> u64 {
        ReadAt::<Host>::len_bytes(&self.memory)
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.memory.read_at(at, buf)
    }
}

impl TargetFile for Sharing {
    block::forward!(self, self.memory => set_len, reserve, zero);

    fn flush(&self) -> Result<()> {
        self.flush_count.fetch_add(1, Ordering::Relaxed);
        self.memory.flush()
    }

    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.written_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.memory.write_at(at, buf)
    }

    fn clone_range(&self, source: &dyn HostFile, span: HostSpan) -> Result<bool> {
        let mut bytes = vec![0; usize::try_from(span.len_bytes()).unwrap()];
        source.read_at(span.start(), &mut bytes)?;
        if self.shares { self.memory.write_at(span.start(), &bytes).map(|()| true) } else { Ok(false) }
    }
}

#[test]
fn what_is_planned_is_cloned_and_no_more_or_copied() {
    let (source, mut plan) = (chain(&contents()), plan());
    plan.clone_block_bytes = Some(65536);
    let file: &dyn HostFile = &*source.files()[0];
    for (shares, is_required) in [(true, true), (true, false), (false, false), (false, true)] {
        let target = Sharing::new(shares);
        let watch = Watch::until(u64::MAX);
        let clones = Some(CloneSource { file, is_required });
        let job = job(&source, &plan, writer(), Provision::Thin, &target, 3, None);
        let result = CopyJob { clones, ..job }.run(&watch);
        if !shares && is_required {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Unsupported);
            continue;
        }
        let outcome = result.unwrap();
        assert_eq!(target.memory.to_vec(), expected(), "{shares} {is_required}");
        let CopyTotals { read_bytes, cloned_bytes, .. } = outcome.totals;
        assert_eq!(read_bytes + cloned_bytes, plan.reads.total_bytes());
        assert_eq!(cloned_bytes, if shares { plan.cloned_bytes() } else { 0 });
        // From the middle of a block to its end; and the disk's last bytes.
        assert!(!shares || target.written_bytes.into_inner() <= 2 * 65536);
        assert!(
            verify::check(&chain(&target.memory.to_vec()), &outcome.digests.unwrap(), 2, &|_| true).is_ok()
        );
    }
}

/// Keeps the last checkpoint and stops after so many bytes.
struct Watch {
    stop_after_bytes: u64,
    read_bytes: AtomicU64,
    checkpoint: Mutex<Option<Checkpoint>>,
}

impl Watch {
    fn until(stop_after_bytes: u64) -> Self {
        Self { stop_after_bytes, read_bytes: AtomicU64::new(0), checkpoint: Mutex::default() }
    }
}

impl JobMonitor for Watch {
    fn advanced(&self, read_bytes: u64, _written_bytes: u64) {
        self.read_bytes.fetch_add(read_bytes, Ordering::SeqCst);
    }

    fn is_cancelled(&self) -> bool {
        self.read_bytes.load(Ordering::SeqCst) >= self.stop_after_bytes
    }

    fn checkpoint(&self, checkpoint: &Checkpoint) -> Result<()> {
        *self.checkpoint.lock().unwrap() = Some(checkpoint.clone());
        Ok(())
    }
}

#[test]
fn the_result_does_not_depend_on_threads() {
    let mut outcomes = Vec::new();
    for thread_count in [1, 2, 7, 32] {
        let target = Memory::new(Vec::new());
        let outcome = run(&target, thread_count, None, &Watch::until(u64::MAX)).unwrap();
        assert!(target.to_vec() == expected(), "{thread_count} threads");
        assert_eq!(outcome.totals.read_bytes, plan().reads.total_bytes());
        outcomes.push((outcome.totals, outcome.digests));
    }
    assert!(outcomes.windows(2).all(|pair| pair[0] == pair[1]));
    verify::check(&chain(&expected()), outcomes[0].1.as_ref().unwrap(), 3, &|_| true).unwrap();
    let error =
        verify::check(&chain(&contents()), outcomes[0].1.as_ref().unwrap(), 3, &|_| true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "the skipped part is not zeros in the source");
}

#[test]
fn a_stopped_copy_goes_on_where_it_was() {
    for stop_after_bytes in [1, 4 << 20, 9 << 20, 20 << 20] {
        let target = Memory::new(Vec::new());
        let watch = Watch::until(stop_after_bytes);
        assert_eq!(run(&target, 3, None, &watch).unwrap_err().kind(), ErrorKind::Interrupted);
        // What was begun when it was told to stop is kept.
        let checkpoint = watch.checkpoint.into_inner().unwrap().unwrap();
        assert!(checkpoint.read_bytes() >= stop_after_bytes);
        let outcome = run(&target, 2, Some(checkpoint), &Watch::until(u64::MAX)).unwrap();
        assert!(target.to_vec() == expected(), "stopped after {stop_after_bytes}");
        assert_eq!(outcome.totals.read_bytes, plan().reads.total_bytes());
        verify::check(&chain(&expected()), &outcome.digests.unwrap(), 1, &|_| true).unwrap();
    }
}

/// Fails from the n-th write on.
struct Failing {
    memory: Memory,
    writes_left: AtomicU64,
}

impl ReadAt<Host> for Failing {
    fn len_bytes(&self) -> u64 {
        ReadAt::<Host>::len_bytes(&self.memory)
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        self.memory.read_at(at, buf)
    }
}

impl TargetFile for Failing {
    block::forward!(self, self.memory => set_len, reserve, zero);

    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        let left =
            self.writes_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.map_err(|_| Error::io("write", std::io::ErrorKind::StorageFull.into()))?;
        self.memory.write_at(at, buf)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_copy_that_begins_anew_stores_no_checkpoint_and_flushes_once() {
    let (source, plan) = (chain(&contents()), plan());
    for (checkpoint_interval, stop_after_bytes) in
        [(Some(Duration::ZERO), u64::MAX), (None, u64::MAX), (None, 0)]
    {
        let (target, watch) = (Sharing::new(false), Watch::until(stop_after_bytes));
        let job = job(&source, &plan, writer(), Provision::Thin, &target, 3, None);
        let result = CopyJob { checkpoint_interval, ..job }.run(&watch);
        let (flushes, is_kept) =
            (target.flush_count.into_inner(), watch.checkpoint.into_inner().unwrap().is_some());
        match (checkpoint_interval, result) {
            (Some(_), Ok(_)) => assert!(is_kept && flushes > 2, "{flushes} flushes"),
            (None, Ok(_)) => assert_eq!((is_kept, flushes), (false, 1)),
            (_, Err(error)) => {
                assert_eq!((error.kind(), stop_after_bytes), (ErrorKind::Interrupted, 0));
                assert_eq!((is_kept, flushes), (false, 0));
            }
        }
    }
}

#[test]
fn a_failing_target_stops_every_worker() {
    for writes in [0, 1, 5, 50] {
        let target = Failing { memory: Memory::new(Vec::new()), writes_left: AtomicU64::new(writes) };
        let error = run(&target, 8, None, &Watch::until(u64::MAX)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.io_source().is_some());
    }
}

/// What has all its storage from the start reads the same, wherever the copy was interrupted.
#[test]
fn a_target_with_a_place_for_everything_reads_the_same() {
    for provision in [Provision::Lazy, Provision::Eager] {
        for stop_after_bytes in [0, LEN as u64 / 3, LEN as u64 / 2, u64::MAX] {
            let target = Memory::new(Vec::new());
            let watch = Watch::until(stop_after_bytes);
            let outcome = run_as(provision, &target, 3, None, &watch);
            if outcome.is_err() {
                let resume = watch.checkpoint.lock().unwrap().take();
                run_as(provision, &target, 3, resume, &Watch::until(u64::MAX)).unwrap();
            }
            assert!(target.to_vec() == expected(), "{provision:?} {stop_after_bytes}");
        }
    }
}

/// Finds room ahead, and keeps what became of it.
struct Roomy {
    memory: Memory,
    /// What has storage.
    stored: Mutex<ExtentSet<Host>>,
    written_bytes: AtomicU64,
}

impl Roomy {
    fn new() -> Self {
        Self { memory: Memory::new(Vec::new()), stored: Mutex::default(), written_bytes: AtomicU64::new(0) }
    }

    fn store(&self, span: HostSpan) {
        let mut stored = self.stored.lock().unwrap();
        *stored = stored.union(&[span].into_iter().collect());
    }

    fn read(&self, format: Format) -> Vec<u8> {
        let file: Arc<dyn HostFile> = Arc::new(Memory::new(self.memory.to_vec()));
        let options = OpenOptions { format: Some(format) };
        let chain = Chain::open(file, options, &TestResolver::default()).unwrap();
        let mut bytes = vec![0; LEN];
        chain.read_at(VirtualOffset::ZERO, &mut bytes).unwrap();
        bytes
    }
}

impl ReadAt<Host> for Roomy {
    block::forward!(self, self.memory => read_at);

    fn len_bytes(&self) -> u64 {
        ReadAt::<Host>::len_bytes(&self.memory)
    }
}

impl TargetFile for Roomy {
    block::forward!(self, self.memory => flush);

    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.store(Span::new(at, buf.len() as u64));
        self.written_bytes.fetch_add(buf.len() as u64, Ordering::SeqCst);
        self.memory.write_at(at, buf)
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        let mut stored = self.stored.lock().unwrap();
        *stored = stored.within(Span::from_zero(len_bytes)).collect();
        self.memory.set_len(len_bytes)
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        self.store(span);
        self.memory.reserve(span)
    }

    fn reserve_ahead(&self, span: HostSpan, _spare_bytes: u64) -> bool {
        self.reserve(span).is_ok()
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        let mut stored = self.stored.lock().unwrap();
        *stored = stored.subtract(&[span].into_iter().collect());
        self.memory.zero(span)
    }
}

/// Bytes of the disk in blocks of the host that hold anything but zeros.
fn used_bytes() -> u64 {
    let is_used = |block: &&[u8]| block.iter().any(|byte| *byte != 0);
    expected().chunks(4096).filter(is_used).count() as u64 * 4096
}

/// The most that tables of so small a disk take, with what aligns them.
const TABLE_BYTES_MAX: u64 = 5 << 20;

#[test]
fn what_was_not_used_is_neither_written_nor_kept() {
    for format in Format::ALL {
        for stop_after_bytes in [u64::MAX, 9 << 20] {
            let target = Roomy::new();
            let watch = Watch::until(stop_after_bytes);
            if run_to(format, &target, None, &watch).is_err() {
                let resume = watch.checkpoint.lock().unwrap().take();
                run_to(format, &target, resume, &Watch::until(u64::MAX)).unwrap();
            }
            assert!(target.read(format) == expected(), "{format} {stop_after_bytes}");
            let written_bytes = target.written_bytes.into_inner();
            assert!(written_bytes <= used_bytes() + TABLE_BYTES_MAX, "{format} writes {written_bytes}");
            // Windows refuses these if they have holes.
            let is_thick = matches!(format, Format::Vhd | Format::Vhdx);
            let stored_bytes = target.stored.into_inner().unwrap().total_bytes();
            let most_bytes = if is_thick { LEN as u64 } else { used_bytes() };
            assert!(stored_bytes <= most_bytes + TABLE_BYTES_MAX, "{format} keeps {stored_bytes}");
        }
    }
}
