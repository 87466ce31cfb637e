//! A disk, what moves on it, and what it must be after each batch.

use std::sync::Arc;

use block::{Memory, Result};
use engine::{JobMonitor, RearrangeFailure, RearrangeJob, RearrangeOutcome, journal_header};
use extent::{ExtentSet, VirtualSpan, Volume, VolumeSpan};
use filesystem::{Edits, Rearrange, Relocations, Source};
use journal::{Claim, DiskName, FileId, Header, Identity, Owner};
use sim::{EditFile, Pages, Random, SimDisk};

use crate::choose;

/// A file system to move files of.
pub trait Guest: Send + Sync {
    /// What may move on the volume.
    fn rearrange(&self, volume: Source) -> Result<Box<dyn Rearrange>>;

    /// What holds nothing.
    fn free(&self, volume: &Source) -> Result<ExtentSet<Volume>>;

    /// Checks everything; answers a digest of all names and contents, wherever they lie.
    fn check(&self, volume: &Source) -> Result<u128>;
}

/// A disk with one volume.
pub struct Subject {
    /// What it is called.
    pub name: String,
    /// The raw disk.
    pub disk: Pages,
    /// Where the volume lies.
    pub volume: VirtualSpan,
    /// What is on it.
    pub guest: Box<dyn Guest>,
    /// The journal's slots: small, so that batches are split now and then.
    pub slot_bytes: u64,
}

/// A disk as it must be after a number of batches.
struct Expected {
    disk: Pages,
    /// What of it counts.
    used: Vec<std::ops::Range<usize>>,
}

/// What moves on a subject.
pub struct Scenario<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) seed: u64,
    rearrange: Box<dyn Rearrange>,
    batches: Vec<Relocations>,
    /// What of their destinations comes from zeros, and is not stored.
    holes: Vec<Vec<VolumeSpan>>,
    /// Before the first batch, then after each.
    expected: Vec<Expected>,
}

/// Nobody watches.
pub(crate) struct Silent;

impl JobMonitor for Silent {
    fn advanced(&self, _read_bytes: u64, _written_bytes: u64) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

impl Subject {
    pub(crate) fn source(&self, disk: &Pages) -> Source {
        Arc::new(Memory::new(self.volume_of(disk)))
    }

    /// Checks a disk in full; answers the digest of its contents.
    pub fn check(&self, disk: &Pages) -> Result<u128> {
        self.guest.check(&self.source(disk))
    }

    /// The volume's part of a disk.
    pub fn volume_of(&self, disk: &Pages) -> Vec<u8> {
        disk.get(self.range())
    }

    fn range(&self) -> std::ops::Range<usize> {
        index(self.volume.start().get())..index(self.volume.end().get())
    }
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("small")
}

impl<'a> Scenario<'a> {
    /// `batch_count` batches that `seed` chooses. Panics if the file system's own edits leave a volume that fails its check.
    pub fn new(subject: &'a Subject, seed: u64, batch_count: u64) -> Self {
        Self::build(subject, seed, batch_count, false)
    }

    /// As [`Self::new`], but batches reuse what they leave themselves, which an engine must refuse.
    pub fn that_reuses(subject: &'a Subject, seed: u64) -> Self {
        Self::build(subject, seed, 1, true)
    }

    fn build(subject: &'a Subject, seed: u64, batch_count: u64, reuses: bool) -> Self {
        let mut random = Random::new(seed);
        let rearrange = subject.guest.rearrange(subject.source(&subject.disk)).unwrap();
        let contents = subject.check(&subject.disk).unwrap();
        let mut scenario = Self {
            subject,
            seed,
            rearrange,
            batches: Vec::new(),
            holes: Vec::new(),
            expected: vec![Expected::new(subject, subject.disk.clone())],
        };
        // A planner does not know what becomes free besides the places that are left.
        let mut freed = ExtentSet::new();
        for _ in 0..batch_count {
            let disk = &scenario.expected.last().unwrap().disk;
            let now = subject.guest.rearrange(subject.source(disk)).unwrap();
            let stream_count = 1 + random.below(5) + u64::from(reuses);
            let batch = choose::batch(&*now, &mut random, stream_count, &freed, reuses).unwrap();
            if batch.is_empty() {
                continue;
            }
            let edits = scenario.rearrange.edits(&subject.source(disk), &batch).unwrap();
            freed = freed.union(&edits.freed.iter().copied().collect());
            let after = moved(subject, &edits, disk, &batch);
            let found = subject.check(&after);
            assert!(
                found.as_ref().is_ok_and(|found| *found == contents),
                "{}: seed {seed:#x}: the volume after batch {} of the model: {found:?}",
                subject.name,
                scenario.batches.len() + 1
            );
            scenario.holes.push(holes(subject, disk, &batch, now.cluster_bytes()));
            scenario.batches.push(batch);
            scenario.expected.push(Expected::new(subject, after));
        }
        scenario
    }

    /// Bytes that move in all.
    pub fn moved_bytes(&self) -> u64 {
        self.batches.iter().map(Relocations::total_bytes).sum()
    }

    /// How many bytes of that are zeros that are not stored where they go.
    pub fn hole_bytes(&self) -> u64 {
        self.holes.iter().flatten().map(VolumeSpan::len_bytes).sum()
    }

    /// How many batches there are.
    pub fn batch_count(&self) -> usize {
        self.batches.len()
    }

    /// The disk after so many batches.
    pub fn disk_after(&self, batch_count: usize) -> &Pages {
        &self.expected[batch_count].disk
    }

    /// Whose the journal is.
    pub fn claim(&self) -> Claim {
        let file = FileId { device: 1, inode: 1 };
        let disk = DiskName { file, path: "/disks/disk".into(), lasting_name: String::new() };
        Claim { disk, journal: FileId { device: 1, inode: 2 } }
    }

    /// The header of the journal, of which nobody has made a file yet.
    pub fn header(&self, slot_bytes: u64) -> Header {
        let disk = Memory::new(self.disk_after(0).to_vec());
        let identity = Identity { filesystem: self.subject.name.clone(), ..Identity::default() };
        let Self { subject, rearrange, batches, .. } = self;
        journal_header(&disk, subject.volume, &**rearrange, batches, slot_bytes, identity).unwrap()
    }

    /// A journal as it is before the first batch.
    pub fn new_journal(&self, slot_bytes: u64) -> Vec<u8> {
        let Claim { disk, journal } = self.claim();
        let owner = Some(Owner { disk, journal });
        Header { owner, ..self.header(slot_bytes) }.to_bytes().unwrap()
    }

    /// Runs the batches.
    pub fn run(&self, disk: &SimDisk, journal: &SimDisk) -> Result<RearrangeOutcome, RearrangeFailure> {
        self.run_on(&EditFile(disk), journal)
    }

    /// Runs the batches on any disk.
    pub fn run_on(
        &self,
        disk: &dyn block::EditDisk,
        journal: &dyn block::TargetFile,
    ) -> Result<RearrangeOutcome, RearrangeFailure> {
        self.run_watched(disk, journal, self.subject.slot_bytes, 1, &Silent)
    }

    /// Runs the batches on any disk, with slots of another size, with several threads, under another's eyes.
    pub fn run_watched(
        &self,
        disk: &dyn block::EditDisk,
        journal: &dyn block::TargetFile,
        slot_bytes: u64,
        thread_count: usize,
        monitor: &dyn JobMonitor,
    ) -> Result<RearrangeOutcome, RearrangeFailure> {
        let job = RearrangeJob {
            disk,
            volume: self.subject.volume,
            rearrange: &*self.rearrange,
            batches: &self.batches,
            releases: &[],
            holes: &self.holes,
            journal,
            thread_count,
            slot_bytes,
        };
        job.run(monitor)
    }

    /// After how many batches a volume looks like this, in every byte that counts; `None` if it is between two, or broken.
    pub fn batches_in(&self, disk: &Pages) -> Option<usize> {
        self.expected.iter().position(|expected| expected.is_met_by(disk))
    }

    /// What differs from the state after so many batches, for a message.
    pub(crate) fn difference(&self, disk: &Pages, batch_count: usize) -> String {
        let expected = &self.expected[batch_count.min(self.expected.len() - 1)];
        match expected.used.iter().find_map(|range| expected.disk.first_difference(disk, range.clone())) {
            Some(at) => {
                format!("the first difference from the disk after {batch_count} batches is at {at:#x}")
            }
            None => format!("it is the disk after {batch_count} batches"),
        }
    }
}

/// Where a batch moves clusters of zeros.
fn holes(subject: &Subject, disk: &Pages, batch: &Relocations, cluster_bytes: u64) -> Vec<VolumeSpan> {
    let start = subject.range().start;
    let of_relocation = move |relocation: filesystem::Relocation| {
        let blocks = relocation.from.split(cluster_bytes).filter(move |block| {
            let at = start + index(block.start().get());
            disk.get(at..at + index(block.len_bytes())).iter().all(|byte| *byte == 0)
        });
        blocks.map(move |block| {
            let skipped = block.start().get() - relocation.from.start().get();
            VolumeSpan::new(relocation.to.plus(skipped), block.len_bytes())
        })
    };
    batch.by_source().flat_map(of_relocation).collect()
}

/// The disk after a batch, by the letter of the contract: all that moves is copied from what was, then metadata change.
fn moved(subject: &Subject, edits: &Edits, disk: &Pages, batch: &Relocations) -> Pages {
    let mut after = disk.clone();
    let start = subject.range().start;
    for relocation in batch.by_source() {
        let from = start + index(relocation.from.start().get());
        let (to, len) = (start + index(relocation.to.get()), index(relocation.from.len_bytes()));
        after.write(to, &disk.get(from..from + len));
    }
    for patch in &edits.patches {
        let at = start + index(patch.at.get());
        assert!(after.get(at..at + patch.after.len()) == patch.before, "a patch says what is there before");
        after.write(at, &patch.after);
    }
    after
}

impl Expected {
    fn new(subject: &Subject, disk: Pages) -> Self {
        let free = subject.guest.free(&subject.source(&disk)).unwrap();
        let start = subject.range().start;
        let mut used = Vec::new();
        let mut at = 0;
        for span in free.iter() {
            used.push(at..start + index(span.start().get()));
            at = start + index(span.end().get());
        }
        used.push(at..disk.len());
        Self { disk, used }
    }

    fn is_met_by(&self, disk: &Pages) -> bool {
        let differs =
            |range: &std::ops::Range<usize>| self.disk.first_difference(disk, range.clone()).is_some();
        self.disk.len() == disk.len() && !self.used.iter().any(differs)
    }
}
