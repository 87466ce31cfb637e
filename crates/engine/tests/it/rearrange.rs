//! Changes in place without crashes: what they do, what they refuse, and storage that lies.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{EditDisk, ErrorKind, Memory, ReadAt, Result, TargetFile};
use crash::{Scenario, Toy};
use engine::Mutant;
use engine::{JobMonitor, Recovery, recover};
use extent::{Offset, Virtual, VirtualOffset};
use journal::Why;
use sim::{EditFile, Pages};

const SLOT_BYTES: u64 = 32 << 10;

/// Asks to stop once it was asked so often.
struct Patience(AtomicU64);

impl JobMonitor for Patience {
    fn advanced(&self, _read_bytes: u64, _written_bytes: u64) {}

    fn is_cancelled(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err()
    }
}

fn patient() -> Patience {
    Patience(AtomicU64::new(u64::MAX))
}

/// Loses the writes of these numbers, and says nothing.
struct Liar<'a> {
    below: EditFile<'a>,
    writes: AtomicU64,
    lost: Vec<u64>,
    /// What would have been written.
    kept: Mutex<Vec<(VirtualOffset, Vec<u8>)>>,
}

impl<'a> Liar<'a> {
    fn new(disk: &'a Memory, lost: Vec<u64>) -> Self {
        Self { below: EditFile(disk), writes: AtomicU64::new(0), lost, kept: Mutex::default() }
    }
}

impl ReadAt<Virtual> for Liar<'_> {
    fn len_bytes(&self) -> u64 {
        self.below.len_bytes()
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.below.read_at(at, buf)
    }
}

impl EditDisk for Liar<'_> {
    fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()> {
        if self.lost.contains(&self.writes.fetch_add(1, Ordering::Relaxed)) {
            self.kept.lock().unwrap().push((at, buf.to_vec()));
            return Ok(());
        }
        self.below.write_at(at, buf)
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()
    }

    fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.read_at(at, buf)
    }
}

/// The disk before a change, and a journal for it.
fn pair(scenario: &Scenario<'_>, slot_bytes: u64) -> (Memory, Memory) {
    (Memory::new(scenario.disk_after(0).to_vec()), Memory::new(scenario.new_journal(slot_bytes)))
}

#[test]
fn the_same_comes_of_any_number_of_threads_and_size_of_slots() {
    let subject = Toy::subject(3);
    for seed in 0..10 {
        let scenario = Scenario::new(&subject, seed, 4);
        for (slot_bytes, thread_count) in [(SLOT_BYTES, 1), (4096, 1), (8192, 4)] {
            let (disk, journal) = pair(&scenario, slot_bytes);
            let outcome = scenario
                .run_watched(&EditFile(&disk), &journal, slot_bytes, thread_count, &patient())
                .unwrap();
            assert_eq!(
                scenario.batches_in(&Pages::new(&disk.to_vec())),
                Some(scenario.batch_count()),
                "seed {seed}"
            );
            assert_eq!(outcome.moved_bytes, scenario.moved_bytes());
            let batch_count = scenario.batch_count() as u64;
            assert!(
                outcome.batches_done >= batch_count
                    && (slot_bytes < SLOT_BYTES || outcome.batches_done == batch_count)
            );
            let recovery = recover(&EditFile(&disk), &journal, &scenario.claim()).unwrap();
            let why = Why::AllApplied { sequence: outcome.batches_done };
            assert_eq!(recovery, Recovery::NothingToDo(why));
        }
    }
}

#[test]
fn a_cancelled_run_leaves_a_whole_disk() {
    let subject = Toy::subject(3);
    let scenario = Scenario::new(&subject, 2, 4);
    let mut seen = [false; 2];
    for patience in 0.. {
        let (disk, journal) = pair(&scenario, SLOT_BYTES);
        let monitor = Patience(AtomicU64::new(patience));
        let outcome = scenario.run_watched(&EditFile(&disk), &journal, SLOT_BYTES, 1, &monitor).unwrap();
        let done = usize::try_from(outcome.batches_done).unwrap();
        assert_eq!(scenario.batches_in(&Pages::new(&disk.to_vec())), Some(done));
        if !outcome.is_cancelled {
            assert_eq!(done, scenario.batch_count());
            break;
        }
        seen[usize::from(done > 0)] = true;
    }
    assert_eq!(seen, [true; 2], "cancelled before and after the first batch");
}

#[test]
fn a_journal_that_may_be_needed_is_not_written_over() {
    let subject = Toy::subject(3);
    let scenario = Scenario::new(&subject, 2, 1);
    let (disk, journal) = (Memory::new(subject.disk.to_vec()), Memory::new(vec![7]));
    let failure = scenario.run_on(&EditFile(&disk), &journal).err().unwrap();
    assert!(failure.error.kind() == ErrorKind::Invalid && !failure.needs_recovery, "{failure:?}");
    assert!(disk.to_vec() == subject.disk.to_vec() && journal.to_vec() == [7]);
    // One for other slots, one with records, and one for another disk.
    let mut records = scenario.new_journal(subject.slot_bytes);
    records.push(0);
    let other = Scenario::new(&subject, 2, 0).header(subject.slot_bytes);
    let other = journal::Header { virtual_bytes: other.virtual_bytes + 512, ..other };
    for bytes in [scenario.new_journal(4096), records, other.to_bytes().unwrap()] {
        let (disk, _) = pair(&scenario, subject.slot_bytes);
        let journal = Memory::new(bytes.clone());
        let failure = scenario.run_on(&EditFile(&disk), &journal).err().unwrap();
        assert!(failure.error.kind() == ErrorKind::Invalid && !failure.needs_recovery, "{failure:?}");
        assert!(disk.to_vec() == subject.disk.to_vec() && journal.to_vec() == bytes);
    }
}

#[test]
fn data_that_did_not_arrive_are_found_before_the_commit() {
    let subject = Toy::subject(4);
    let scenario = Scenario::new(&subject, 1, 1);
    let (disk, journal) = pair(&scenario, subject.slot_bytes);
    let failure = scenario.run_on(&Liar::new(&disk, vec![0]), &journal).err().unwrap();
    assert!(failure.error.kind() == ErrorKind::Mismatch && !failure.needs_recovery, "{failure:?}");
    assert_eq!(scenario.batches_in(&Pages::new(&disk.to_vec())), Some(0));
}

#[test]
fn data_lost_after_a_flush_are_taken_back_by_the_recovery() {
    let subject = Toy::subject(4);
    let scenario = Scenario::new(&subject, 1, 1);
    // The first copy and the last patch are lost, which the run does not notice.
    let (disk, journal) = pair(&scenario, subject.slot_bytes);
    let counted = Liar::new(&disk, Vec::new());
    scenario.run_on(&counted, &journal).unwrap();
    let last = counted.writes.into_inner() - 1;
    let (disk, journal) = pair(&scenario, subject.slot_bytes);
    let liar = Liar::new(&disk, vec![0, last]);
    mutants::with(Some(Mutant::NotReadBack), || scenario.run_on(&liar, &journal)).unwrap();
    assert_eq!(scenario.batches_in(&Pages::new(&disk.to_vec())), None);
    let recovery = recover(&EditFile(&disk), &journal, &scenario.claim()).unwrap();
    assert!(matches!(recovery, Recovery::Undone { sequence: 1, .. }), "{recovery:?}");
    assert_eq!(scenario.batches_in(&Pages::new(&disk.to_vec())), Some(0));

    // The patch alone: redone.
    let (disk, journal) = pair(&scenario, subject.slot_bytes);
    let liar = Liar::new(&disk, vec![last]);
    scenario.run_on(&liar, &journal).unwrap();
    let recovery = recover(&EditFile(&disk), &journal, &scenario.claim()).unwrap();
    assert!(matches!(recovery, Recovery::Redone { sequence: 1, .. }), "{recovery:?}");
    assert_eq!(scenario.batches_in(&Pages::new(&disk.to_vec())), Some(1));

    // The same again, but a guest used the disk before the recovery, and changed what the patch changes.
    let (disk, journal) = pair(&scenario, subject.slot_bytes);
    let liar = Liar::new(&disk, vec![last]);
    scenario.run_on(&liar, &journal).unwrap();
    let (at, lost) = liar.kept.lock().unwrap().pop().unwrap();
    let other = !(lost[lost.len() - 1]);
    let foreign = Offset::new(at.get() + lost.len() as u64 - 1);
    let before = disk.to_vec()[usize::try_from(foreign.get()).unwrap()];
    TargetFile::write_at(&disk, foreign, &[if other == before { other ^ 1 } else { other }]).unwrap();
    let left = disk.to_vec();
    assert_eq!(
        recover(&EditFile(&disk), &journal, &scenario.claim()).err().unwrap().kind(),
        ErrorKind::Refused
    );
    assert!(disk.to_vec() == left, "a refusal changes nothing");
}
