//! Hundreds of generations of a disk against what each snapshot of it has to hold: whatever became of the bitmap, no change is skipped.
//!
//! Some backups are of the image, others of a moment of it that a guest goes on from: what that writes meanwhile is in the bitmap that it begins
//! anew.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Disk, LiveDisk, ReadAt, Result as BlockResult, RunState};
use claims::Seen;
use engine::{BackupJob, JobMonitor};
use extent::{ExtentSet, HostOffset, Span, Virtual, VirtualOffset, VirtualSpan};
use image::live::LiveOptions;
use image::{Chain, Edit, EditTarget};
use plan::{CopyOptions, CopyPlan, CopyPlanner, Fact, Role, VolumeIndex};
use repository::{Id, KeyCost, Memory, Node, Record, Repository, Session, Snapshot, SnapshotDisk, Tree};
use tempfile::TempDir;
use testkit::run;

use super::Guests;
use super::bitmap::{Bitmap, Hold, next};
use super::earlier::Earlier;
use crate::machine::{Caching, Machine, ThisHost};
use crate::open::{Location, OpenOptions};

const NAME: &str = "model";
const DISK: &str = "disk";
const SIZE: u64 = 6 << 20;
/// Bytes that a bit stands for.
const BIT: u64 = 4096;

/// What is left out, to see that the model notices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// A bitmap is taken for the one that begins with the last snapshot.
    AnyStart,
    /// What was filled counts as read.
    FilledCountsAsRead,
    /// What was not read counts as zeros.
    UnreadCountsAsZeros,
    /// A guest's bitmap begins anew without what was written since the moment.
    WrittenMeanwhileDropped,
}

/// A guest that wrote `new` since the moment that is read.
struct Meanwhile {
    image: PathBuf,
    new: ExtentSet<Virtual>,
}

impl Guests for Meanwhile {
    fn restart(&mut self, _read_at: &Path, kept: &[HostOffset]) -> BlockResult<()> {
        let kept = kept.iter().map(|at| Span::new(VirtualOffset::new(at.get()), BIT)).collect();
        let disk = in_use(&self.image);
        disk.restart_bitmap(NAME, &self.new.union(&kept))?;
        disk.close()
    }
}

/// How often something happened.
#[derive(Clone, Copy, Default, Debug)]
struct Told {
    tracked: u64,
    tracked_live: u64,
    read_bytes: u64,
    used_bytes: u64,
}

struct Quiet;

impl JobMonitor for Quiet {
    fn advanced(&self, _read_bytes: u64, _written_bytes: u64) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

struct Model {
    dir: TempDir,
    state: u64,
    repository: Arc<Repository>,
    /// Newest first.
    snapshots: Vec<(Id, Snapshot)>,
    /// What the guest does with each part of 16 KiB.
    roles: Vec<Role>,
    fault: Option<Fault>,
    told: Told,
}

const ROLE_BYTES: u64 = 16 << 10;

impl Model {
    fn new(seed: u64, fault: Option<Fault>) -> Self {
        // In memory: each generation flushes some ten times.
        // The image is flushed all the time: in memory, where there is a folder for that.
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
        let image = dir.path().join("disk.qcow2");
        let path = image.to_str().unwrap();
        run("qemu-img", &["create", "-q", "-f", "qcow2", path, &SIZE.to_string()]);
        run("qemu-img", &["bitmap", "--add", "-g", &BIT.to_string(), path, NAME]);
        let repository = Arc::new(
            Repository::init_with_cost(Arc::new(Memory::default()), b"password", KeyCost::LEAST).unwrap(),
        );
        let count = usize::try_from(SIZE / ROLE_BYTES).unwrap();
        let roles = vec![Role::Used(VolumeIndex(0)); count];
        Self { dir, state: seed, repository, snapshots: Vec::new(), roles, fault, told: Told::default() }
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("disk.qcow2")
    }

    fn below(&mut self, limit: u64) -> u64 {
        next(&mut self.state) % limit
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// What a guest does until the next backup, or while it is made. Which bits of a bitmap that notes.
    fn use_disk(&mut self) -> ExtentSet<Virtual> {
        let mut noted = ExtentSet::new();
        let disk = in_use(&self.image());
        for _ in 0..self.below(5) {
            let start = self.below(SIZE / 512) * 512;
            let len_bytes = (512 << self.below(9)).min(SIZE - start);
            let span = Span::new(VirtualOffset::new(start), len_bytes);
            let end = span.end().get().next_multiple_of(BIT);
            let whole = Span::between(VirtualOffset::new(start / BIT * BIT), VirtualOffset::new(end));
            noted = noted.union(&[whole].into_iter().collect());
            match self.below(6) {
                0 => disk.discard(span).unwrap(),
                1 => disk.zero(span, true).unwrap(),
                _ => {
                    let mut seed = self.below(u64::MAX);
                    let bytes: Vec<u8> =
                        (0..len_bytes / 8).flat_map(|_| next(&mut seed).to_le_bytes()).collect();
                    disk.write_at(span.start(), &bytes).unwrap();
                }
            }
        }
        disk.close().unwrap();
        // What it uses changes, and nothing needs to be written for that.
        for _ in 0..self.below(4) {
            let at = usize::try_from(self.below(self.roles.len() as u64)).unwrap();
            let count = usize::try_from(1 + self.below(16)).unwrap();
            let volume = VolumeIndex(0);
            let role = [Role::Used(volume), Role::Free(volume), Role::EmptyLog(volume, 0xff)]
                [usize::try_from(self.below(3)).unwrap()];
            self.roles.iter_mut().skip(at).take(count).for_each(|part| *part = role);
        }
        noted
    }

    /// What somebody else does to the image or the repository.
    fn meddle(&mut self) {
        let (image, kept) = (self.image(), self.dir.path().join("kept"));
        match self.below(12) {
            0 => {
                let disk = in_use(&image);
                disk.restart_bitmap(NAME, &ExtentSet::new()).unwrap();
                disk.close().unwrap();
            }
            1 | 2 => {
                std::fs::copy(&image, &kept).unwrap();
            }
            3 if kept.exists() => {
                std::fs::copy(&kept, &image).unwrap();
            }
            4 if !self.snapshots.is_empty() => {
                let at = usize::try_from(self.below(self.snapshots.len().min(3) as u64)).unwrap();
                self.snapshots.remove(at);
            }
            _ => {}
        }
    }

    fn plan(&self, chain: &Chain) -> CopyPlan {
        let mut planner = CopyPlanner::new(CopyOptions::default(), 1);
        for (part, role) in Span::from_zero(SIZE).split(ROLE_BYTES).zip(&self.roles) {
            for run in chain.map(part).unwrap() {
                planner.add(&[Fact { span: run.span, state: run.state, role: *role }]);
            }
        }
        planner.finish()
    }

    /// What the snapshot has to hold.
    fn expected(&self, chain: &Chain) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(SIZE).unwrap()];
        chain.read_at(VirtualOffset::ZERO, &mut bytes).unwrap();
        for (part, role) in Span::from_zero(SIZE).split(ROLE_BYTES).zip(&self.roles) {
            for run in chain.map(part).unwrap() {
                let bytes = &mut bytes[range(run.span)];
                match role {
                    Role::Free(_) => bytes.fill(0),
                    Role::EmptyLog(_, byte) if matches!(run.state, RunState::Data { .. }) => {
                        bytes.fill(*byte);
                    }
                    _ => {}
                }
            }
        }
        bytes
    }

    /// The bitmap as the fault has it.
    fn mistaken(&self, bitmap: &mut Bitmap, record: Option<&Record>) {
        if let (Some(Fault::AnyStart), Some(start)) =
            (self.fault, record.and_then(|record| record.bitmap.as_ref()))
        {
            bitmap.believe(start);
        }
    }

    fn record(&self, bitmap: &Bitmap, plan: &CopyPlan, done: &engine::BackedUp) -> Record {
        let mut record = super::record_of(plan, done);
        match self.fault {
            Some(Fault::FilledCountsAsRead) => {
                record = Record::new(SIZE, None, &record.zeros(), &ExtentSet::new());
            }
            Some(Fault::UnreadCountsAsZeros) => {
                let unread = done.data.invert(Span::from_zero(SIZE));
                record = Record::new(SIZE, None, &unread, &record.filled());
            }
            Some(Fault::AnyStart | Fault::WrittenMeanwhileDropped) | None => {}
        }
        record.bitmap = bitmap.start(&record, done);
        record
    }

    /// A backup, of which the end is cut off now and then; whether it holds what it has to.
    fn back_up(&mut self) -> Result<(), String> {
        let is_live = self.one_in(2);
        let path = if is_live { self.dir.path().join("moment.qcow2") } else { self.image() };
        if is_live {
            std::fs::copy(self.image(), &path).unwrap();
        }
        let repository = self.repository.clone();
        let options = OpenOptions::default();
        let location = Location { machine: &ThisHost, path: &path, options: &options };
        let chain = location.open_chain_at_rest(Caching::PageCache).unwrap();
        let (seen, resolver) = (Seen::of(&chain), location.resolver().unwrap());
        let find = || match Bitmap::find(&chain, &seen, &*resolver, NAME, Hold::Yes).unwrap() {
            Err(why) if why.contains("is in use") => None,
            found => Some(found),
        };
        let (plan, expected) = (self.plan(&chain), self.expected(&chain));
        let mut guest = Meanwhile { image: self.image(), new: ExtentSet::new() };
        let mut bitmap = if is_live {
            let mut dirty = chain.links()[0].layer.dirty(NAME).unwrap();
            let new = self.use_disk();
            if self.one_in(2) {
                // It was asked a little after the moment.
                dirty = dirty.union(&new);
            }
            if self.fault != Some(Fault::WrittenMeanwhileDropped) {
                guest.new = new;
            }
            Bitmap::of_model(NAME, BIT, dirty, SIZE)
        } else {
            patiently(find)?
        };
        let index = repository.index().unwrap();
        let newest = self.snapshots.first();
        let newest = newest.and_then(|(_, snapshot)| repository.record(&index, snapshot, DISK).unwrap());
        self.mistaken(&mut bitmap, newest.as_ref());
        let earlier = Earlier { repository: &repository, index: &index, snapshots: self.snapshots.clone() };
        let base = earlier.base(DISK, SIZE, |disk| Ok(bitmap.changed(disk))).unwrap().ok();

        let session = Session::begin(&repository, &index).unwrap();
        let mut packers = vec![session.packer().unwrap()];
        let base = base.as_ref().map(|(_, base)| base);
        let job = BackupJob { source: &chain, plan: &plan, cuts: plan::backup::Cuts::default(), base };
        let bound = job.bound();
        let done = job.run(&mut packers, &Quiet).map_err(|error| error.to_string())?;
        assert_eq!(bound.read_bytes, done.read_bytes);
        self.told.tracked += u64::from(base.is_some());
        self.told.tracked_live += u64::from(base.is_some() && is_live);
        self.told.read_bytes += done.read_bytes;
        self.told.used_bytes += plan.reads.total_bytes();

        let record = self.record(&bitmap, &plan, &done);
        let node = Node::file(DISK.into(), SIZE, done.content);
        let tree = Tree { nodes: vec![node.clone()] };
        let records = [(DISK.to_owned(), record)];
        let id = session.finish(packers, tree, &records, Snapshot::now).unwrap();
        let (_, snapshot) = self.repository.find_snapshot(&id.to_string()).unwrap();
        self.snapshots.insert(0, (id, snapshot));
        if !self.one_in(10) {
            bitmap.rotate(&records[0].1, &mut guest).unwrap();
        }
        let index = self.repository.index().unwrap();
        let disk = SnapshotDisk::open(self.repository.clone(), &index, &node, Path::new(DISK)).unwrap();
        let mut found = vec![0; expected.len()];
        disk.read_at(HostOffset::ZERO, &mut found).unwrap();
        if found == expected {
            return Ok(());
        }
        let at = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        Err(format!("byte {at:?} of the snapshot is not what the disk held"))
    }

    fn run(mut self, generations: u64) -> Result<Told, String> {
        for generation in 0..generations {
            self.use_disk();
            self.meddle();
            self.back_up().map_err(|why| format!("generation {generation}: {why}"))?;
        }
        Ok(self.told)
    }
}

fn range(span: VirtualSpan) -> std::ops::Range<usize> {
    usize::try_from(span.start().get()).unwrap()..usize::try_from(span.end().get()).unwrap()
}

/// What opens the disk to change it: `None` while somebody else has it. A program that another thread starts has this process' files, and their
/// locks, until it is the other program.
fn patiently<T>(mut open: impl FnMut() -> Option<T>) -> T {
    let opened = (0..1000).find_map(|_| {
        let opened = open();
        if opened.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        opened
    });
    opened.expect("nobody else has it for long")
}

fn in_use(path: &Path) -> Box<dyn LiveDisk> {
    let options = OpenOptions::default();
    let location = Location { machine: &ThisHost, path, options: &options };
    let chain = location.open_chain_at_rest(Caching::PageCache).unwrap();
    let mut hold = |file: &dyn block::HostFile| Ok(ThisHost.hold(file.path())? as Arc<dyn EditTarget>);
    let resolver = location.resolver().unwrap();
    let edit = patiently(|| Edit::open(&chain, &*resolver, &mut hold).ok());
    let (chain, files) = edit.into_parts();
    let files = files.into_iter().map(|file| file as Arc<dyn block::TargetFile>).collect();
    image::live::open(chain, files, LiveOptions { reserves_nothing: true, ..LiveOptions::default() }).unwrap()
}

#[test]
fn no_change_is_skipped_whatever_becomes_of_the_bitmap() {
    for seed in 1..=5 {
        let told = Model::new(seed, None).run(50).unwrap();
        println!("{told:?}");
        assert!(
            told.tracked > 25 && told.tracked_live > 10 && told.read_bytes < told.used_bytes / 2,
            "{told:?}"
        );
    }
}

#[test]
fn the_model_notices_what_is_left_out() {
    for fault in [
        Fault::AnyStart,
        Fault::FilledCountsAsRead,
        Fault::UnreadCountsAsZeros,
        Fault::WrittenMeanwhileDropped,
    ] {
        let found = (2..5).find_map(|seed| Model::new(seed, Some(fault)).run(40).err());
        assert!(found.is_some(), "{fault:?}");
        println!("{fault:?}: {}", found.unwrap());
    }
}

#[test]
fn samples_find_a_disk_that_is_another_one() {
    let mut model = Model::new(9, None);
    let image = model.image();
    let write = |byte: u8| {
        let disk = in_use(&image);
        (0..SIZE / 4096)
            .for_each(|part| disk.write_at(VirtualOffset::new(part * 4096), &[byte; 4096]).unwrap());
        disk.close().unwrap();
    };
    write(1);
    model.back_up().unwrap();
    model.back_up().unwrap();
    let chain = |path: &Path| {
        let options = OpenOptions::default();
        let location = Location { machine: &ThisHost, path, options: &options };
        location.open_chain_at_rest(Caching::PageCache).unwrap()
    };
    let before = chain(&image);
    let index = model.repository.index().unwrap();
    let disks = crate::stored::disks_of(&model.repository, &index, &model.snapshots[0].1).unwrap();
    let disk = SnapshotDisk::open(model.repository.clone(), &index, &disks[0].node, Path::new(DISK)).unwrap();
    let unchanged: ExtentSet<Virtual> = [Span::from_zero(SIZE)].into_iter().collect();
    let base = engine::Base { disk, unchanged };
    let plan = model.plan(&before);
    let cuts = plan::backup::Cuts::default();
    let job = BackupJob { source: &before, plan: &plan, cuts, base: Some(&base) };
    let samples = job.samples("seed");
    assert!(samples.read_bytes() > 0 && samples.read_bytes() <= 128 << 10);
    assert!(samples.are_on(&before).unwrap());
    write(2);
    assert!(!samples.are_on(&chain(&image)).unwrap());
}
