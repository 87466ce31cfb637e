//! Power cuts at every change of a `compact`, and in the recovery after them: images of every kind that allocates in units, made by
//! QEMU, in which random units are given back and what lies at the end moves into the gaps.
//!
//! What must hold of any cut: what is kept reads as before, each sector of what is released as before or as zeros, and once
//! recovered the image is as it should be: nothing counted that nothing refers to, no gap where there may be none.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use block::{Error, LiveDisk, Occupancy, ReadAt, Result, RunState};
use engine::{CompactJob, Unwritten, tidy_up};
use extent::{ExtentSet, PackedExtents, Span, Virtual, VirtualOffset};
use image::live::LiveOptions;
use image::{Chain, Format, OpenOptions};
use plan::shorten::{MoveWhen, ShortenPlan, shorten};
use sim::{Pages, Random, SimDisk, SimMachine};
use testkit::{TestResolver, run, scratch};

use crate::explore::{Explored, Violation};
use crate::scenario::Silent;

/// A sector is old or new as a whole.
const SECTOR_BYTES: usize = 512;

/// A kind of image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageKind {
    /// What it is called.
    pub name: &'static str,
    format: Format,
    /// QEMU's name and options.
    driver: &'static str,
    options: &'static str,
    unit_bytes: u64,
    unit_count: u64,
    is_checked: bool,
}

const fn kind(
    name: &'static str,
    format: Format,
    driver: &'static str,
    options: &'static str,
    unit_bytes: u64,
    unit_count: u64,
) -> ImageKind {
    let is_checked = !matches!(format, Format::Vhd);
    ImageKind { name, format, driver, options, unit_bytes, unit_count, is_checked }
}

const MIB: u64 = 1 << 20;

/// All kinds.
pub const IMAGE_KINDS: [ImageKind; 6] = [
    kind("qcow2", Format::Qcow2, "qcow2", "cluster_size=4k", 4096, 160),
    kind("qcow2-512", Format::Qcow2, "qcow2", "cluster_size=512,refcount_bits=8", 512, 400),
    kind("vhdx", Format::Vhdx, "vhdx", "subformat=dynamic,block_size=1M,log_size=1M", MIB, 10),
    kind("vhd", Format::Vhd, "vpc", "subformat=dynamic,force_size=on", 2 * MIB, 6),
    kind("vmdk", Format::Vmdk, "vmdk", "subformat=monolithicSparse", 64 << 10, 24),
    kind("vdi", Format::Vdi, "vdi", "", MIB, 10),
];

/// An image to be compacted.
pub struct Image {
    kind: ImageKind,
    pages: Pages,
    contents: Vec<u8>,
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("small")
}

fn file_of(machine: &SimMachine, pages: Pages, is_flushed: bool) -> Arc<SimDisk> {
    let disk = machine.disk("image", 1, pages);
    disk.tear_sectors(false);
    disk.leave_out_flushes(!is_flushed);
    Arc::new(disk)
}

impl ImageKind {
    fn chain(self, file: &Arc<SimDisk>) -> Result<Chain> {
        Chain::open(file.clone(), OpenOptions { format: Some(self.format) }, &TestResolver::default())
    }

    fn open(self, file: &Arc<SimDisk>, leaves_gaps: bool) -> Result<Box<dyn LiveDisk>> {
        let options = LiveOptions { leaves_gaps, ..LiveOptions::default() };
        image::live::open(self.chain(file)?, vec![file.clone()], options)
    }

    /// Whether its units are small, so that much can be explored in little time.
    pub fn is_small(self) -> bool {
        self.unit_bytes < MIB
    }

    fn unit(self, number: u64) -> Span<Virtual> {
        Span::new(VirtualOffset::new(number * self.unit_bytes), self.unit_bytes)
    }

    fn read_all(self, file: &Arc<SimDisk>) -> Result<Vec<u8>> {
        let chain = self.chain(file)?;
        let mut contents = vec![0; index(chain.len_bytes())];
        chain.read_at(VirtualOffset::ZERO, &mut contents)?;
        Ok(contents)
    }
}

impl Image {
    /// The image's file.
    pub fn bytes(&self) -> Vec<u8> {
        self.pages.to_vec()
    }

    /// An image whose units are filled and given back at random.
    pub fn new(kind: ImageKind, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let dir = scratch();
        let (raw, path) = (dir.path().join("raw"), dir.path().join("image"));
        let mut bytes = vec![0; index(kind.unit_bytes * kind.unit_count)];
        for unit in bytes.chunks_mut(index(kind.unit_bytes)) {
            if random.below(5) > 0 {
                for sector in unit.chunks_mut(SECTOR_BYTES) {
                    sector.fill(random.next_u64().to_le_bytes()[0] | 1);
                }
            }
        }
        std::fs::write(&raw, &bytes).unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let mut args = vec!["convert", "-f", "raw", "-O", kind.driver];
        if !kind.options.is_empty() {
            args.extend(["-o", kind.options]);
        }
        let (raw, path) = (text(&raw), text(&path));
        args.extend([&*raw, &*path]);
        run("qemu-img", &args);
        let file = file_of(&SimMachine::new(), Pages::new(&std::fs::read(&path).unwrap()), true);
        let disk = kind.open(&file, false).unwrap();
        for number in 0..kind.unit_count {
            if random.below(6) == 0 {
                disk.discard(kind.unit(number)).unwrap();
            }
        }
        disk.close().unwrap();
        drop(disk);
        let contents = kind.read_all(&file).unwrap();
        Self { kind, pages: file.to_pages(), contents }
    }
}

/// What is given back of an image, and what moves.
pub struct Compaction<'a> {
    image: &'a Image,
    seed: u64,
    is_flushed: bool,
    releases: PackedExtents<Virtual>,
    released: BTreeSet<u64>,
    shortening: ShortenPlan,
    slot_bytes: u64,
    is_dense: bool,
}

impl<'a> Compaction<'a> {
    /// A random one.
    pub fn new(image: &'a Image, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let kind = image.kind;
        let file = file_of(&SimMachine::new(), image.pages.clone(), true);
        let chain = kind.chain(&file).unwrap();
        let unwritten = Arc::new(Unwritten::new(file.clone()));
        let disk = image::live::open(chain, vec![unwritten], LiveOptions::default()).unwrap();
        let occupancy: Occupancy = disk.occupancy().unwrap().unwrap();
        let share = 1 + random.below(4);
        let (mut releases, mut released, mut kept) = (PackedExtents::new(), BTreeSet::new(), Vec::new());
        for number in 0..kind.unit_count {
            let unit = kind.unit(number);
            let is_data =
                disk.map(unit).unwrap().iter().any(|run| matches!(run.state, RunState::Data { .. }));
            match is_data {
                true if random.below(5) < share => {
                    releases.push(unit);
                    released.insert(number);
                }
                true => kept.push(unit),
                false => {}
            }
        }
        let all: ExtentSet<Virtual> = releases.iter().collect();
        let shortening = shorten(&occupancy, &all, &kept.into_iter().collect(), u64::MAX, MoveWhen::Possible);
        let slot_bytes = occupancy.slot_bytes();
        let is_dense = occupancy.is_dense;
        Self { image, seed, is_flushed: true, releases, released, shortening, slot_bytes, is_dense }
    }

    /// The same, but that nothing is flushed: what must be found.
    #[must_use]
    pub fn without_flushes(self) -> Self {
        Self { is_flushed: false, ..self }
    }

    /// How many bytes move.
    pub fn moved_bytes(&self) -> u64 {
        self.shortening.moved_bytes
    }

    fn run(&self, file: &Arc<SimDisk>) -> Result<()> {
        let disk = self.image.kind.open(file, self.is_dense)?;
        let job = CompactJob {
            disk: &*disk,
            releases: &self.releases,
            moves: &self.shortening.moves,
            slot_bytes: self.slot_bytes,
            is_all_or_nothing: self.is_dense,
        };
        job.run(&Silent).map(drop)
    }

    fn recover(&self, file: &Arc<SimDisk>) -> Result<bool> {
        let disk = self.image.kind.open(file, false)?;
        disk.discard(Span::from_zero(0))?;
        let is_any = tidy_up(&*disk)?;
        disk.close()?;
        Ok(is_any)
    }

    /// What is kept is there, and what was released old or zeros.
    fn check(&self, found: &[u8], is_over: bool) -> Result<(), String> {
        let sectors = found.chunks(SECTOR_BYTES).zip(self.image.contents.chunks(SECTOR_BYTES));
        for (number, (found, before)) in sectors.enumerate() {
            let unit = number as u64 * SECTOR_BYTES as u64 / self.image.kind.unit_bytes;
            let is_zero = found.iter().all(|byte| *byte == 0);
            let fits = match self.released.contains(&unit) {
                true => is_zero || (found == before && !is_over),
                false => found == before,
            };
            if !fits {
                return Err(format!(
                    "sector {number} of unit {unit} holds {:#x}, before {:#x}",
                    found[0], before[0]
                ));
            }
        }
        Ok(())
    }

    /// The image is as one that was never interrupted.
    fn check_order(&self, file: &Arc<SimDisk>) -> Result<(), String> {
        let failed = |error: Error| format!("{error:?}");
        let disk = self.image.kind.open(file, false).map_err(failed)?;
        match tidy_up(&*disk).map_err(failed)? {
            true => Err("something is left to put in order after the recovery".into()),
            false => Ok(()),
        }
    }
}

/// How to explore.
#[derive(Clone, Copy, Debug)]
pub struct CompactOptions {
    /// How many ways of losing writes are tried at each change.
    pub cuts_per_change: u64,
    /// The power is cut at every so manieth change.
    pub stride: u64,
    /// QEMU checks every so manieth state.
    pub judged_every: Option<u64>,
}

/// Cuts the power at changes of a run of `compaction`.
pub fn explore_compact(compaction: &Compaction<'_>, options: CompactOptions) -> Result<Explored, Violation> {
    let mut explorer = Explorer { compaction, options, explored: Explored::default() };
    let stride = options.stride.max(1);
    let mut change = 1 + compaction.seed % stride;
    while explorer.cut_at(change).map_err(|text| Violation { seed: compaction.seed, text })? {
        change += stride;
        explorer.explored.changes += 1;
    }
    Ok(explorer.explored)
}

struct Explorer<'a> {
    compaction: &'a Compaction<'a>,
    options: CompactOptions,
    explored: Explored,
}

impl Explorer<'_> {
    /// Cuts at one change; `false` if the run was over before.
    fn cut_at(&mut self, change: u64) -> Result<bool, String> {
        let machine = SimMachine::new();
        let file = file_of(&machine, self.compaction.image.pages.clone(), self.compaction.is_flushed);
        machine.die_at_change(change);
        let result = self.compaction.run(&file);
        if let Err(error) = &result
            && machine.changes() < change
        {
            return Err(format!("the run fails by itself: {error:?}"));
        }
        if result.is_ok() {
            let length = file.len_bytes();
            let planned = self.compaction.shortening.length_bytes;
            if length != planned {
                return Err(format!("the file is {length} bytes long, planned {planned}"));
            }
        }
        let mut random = Random::new(self.compaction.seed ^ change.rotate_left(32));
        for _ in 0..self.options.cuts_per_change {
            let seed = random.next_u64();
            // Killed, what was written is still in the cache.
            let left = match random.below(4) {
                0 => file.to_pages(),
                _ => file.cut_pages(seed),
            };
            self.recovered(&left, result.is_ok(), seed)
                .map_err(|text| format!("power cut at change {change}, cut {seed:#x}: {text}"))?;
            self.explored.states += 1;
        }
        Ok(result.is_err())
    }

    fn recovered(&mut self, left: &Pages, is_over: bool, seed: u64) -> Result<(), String> {
        let kind = self.compaction.image.kind;
        let failed = |error: Error| format!("{error:?}");
        let mut random = Random::new(seed);
        let machine = SimMachine::new();
        let file = file_of(&machine, left.clone(), true);
        let found = kind.read_all(&file).map_err(failed)?;
        self.compaction.check(&found, is_over)?;
        if self.compaction.recover(&file).map_err(failed)? {
            self.explored.redone += 1;
        }
        let changes = machine.changes();
        self.expect(&file, &found)?;
        if random.coin() && changes > 0 {
            self.explored.second_cuts += 1;
            let machine = SimMachine::new();
            let second = file_of(&machine, left.clone(), true);
            machine.die_at_change(1 + random.below(changes));
            _ = self.compaction.recover(&second);
            let file = file_of(&SimMachine::new(), second.cut_pages(random.next_u64()), true);
            self.compaction.recover(&file).map_err(|error| format!("second recovery: {error:?}"))?;
            self.expect(&file, &found).map_err(|text| format!("after a second cut: {text}"))?;
        }
        Ok(())
    }

    /// The image that was recovered reads as what was found before, and is in order.
    fn expect(&self, file: &Arc<SimDisk>, found: &[u8]) -> Result<(), String> {
        let kind = self.compaction.image.kind;
        let now = kind.read_all(file).map_err(|error| format!("after the recovery: {error:?}"))?;
        if now != found {
            return Err("the recovery changes what the disk reads as".into());
        }
        self.compaction.check_order(file)?;
        match self.options.judged_every {
            Some(every) if kind.is_checked && self.explored.states.is_multiple_of(every) => judge(kind, file),
            _ => Ok(()),
        }
    }
}

/// What QEMU says of it: no error, no leak.
fn judge(kind: ImageKind, file: &SimDisk) -> Result<(), String> {
    let dir = scratch();
    let path = dir.path().join("image");
    std::fs::write(&path, file.to_vec()).map_err(|error| format!("{}: {error}", path.display()))?;
    let output = std::process::Command::new("qemu-img")
        .args(["check", "-f", kind.driver])
        .arg(&path)
        .output()
        .map_err(|error| format!("qemu-img: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "qemu-img check: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}
