//! Random operations against bytes in memory.

use std::sync::Arc;

use block::{LiveDisk, ReadAt, RunState};
use extent::{Offset, Span, Virtual, VirtualSpan};
use sim::Random;
use testkit::scratch;

use crate::live::files::{
    KINDS, Kind, allocated_bytes, check_by_qemu, contents_by_qemu, contents_of, create, kind_named, open,
};

pub(crate) fn rounds() -> u64 {
    std::env::var("LEANDISK_LIVE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1)
}

/// What a disk must read as. A byte that a discard left open is not known.
pub(crate) struct Model {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_open: Vec<bool>,
}

fn index(at: u64) -> usize {
    usize::try_from(at).unwrap()
}

impl Model {
    pub(crate) fn new(len_bytes: u64) -> Self {
        Self { bytes: vec![0; index(len_bytes)], is_open: vec![false; index(len_bytes)] }
    }

    fn range(span: VirtualSpan) -> std::ops::Range<usize> {
        index(span.start().get())..index(span.end().get())
    }

    pub(crate) fn check(&self, span: VirtualSpan, found: &[u8], what: &str) {
        let range = Self::range(span);
        for (at, byte) in range.clone().zip(found) {
            // After a discard: zeros, or what was there.
            let fits = *byte == self.bytes[at] || (self.is_open[at] && *byte == 0);
            assert!(fits, "{what}: byte {at:#x} is {byte:#x}, expected {:#x}", self.bytes[at]);
        }
        assert_eq!(range.len(), found.len());
    }

    /// What was read once after a discard stays, so that later differences show.
    pub(crate) fn learn(&mut self, span: VirtualSpan, found: &[u8]) {
        self.bytes[Self::range(span)].copy_from_slice(found);
        self.is_open[Self::range(span)].fill(false);
    }
}

/// One operation on a disk.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write(VirtualSpan, u8),
    Zero(VirtualSpan, bool),
    Discard(VirtualSpan),
    Flush,
}

impl Step {
    /// The same, `base` bytes further on.
    pub(crate) fn moved(self, base: u64) -> Self {
        let moved = |span: VirtualSpan| Span::new(span.start().plus(base), span.len_bytes());
        match self {
            Self::Write(span, seed) => Self::Write(moved(span), seed),
            Self::Zero(span, may_free) => Self::Zero(moved(span), may_free),
            Self::Discard(span) => Self::Discard(moved(span)),
            Self::Flush => Self::Flush,
        }
    }
}

/// A span of sectors: small, of units, or large; often where something was before.
fn any_span(random: &mut Random, len_bytes: u64) -> VirtualSpan {
    let align = [512, 4096, 65_536, 1 << 20][index(random.below(4))];
    let len_max = [4096, 65_536, 300 << 10, 3 << 20][index(random.below(4))];
    let start = random.below(len_bytes) / align * align;
    let len = (1 + random.below(len_max)).next_multiple_of(if random.coin() { align } else { 512 });
    Span::new(Offset::new(start), len.min(len_bytes - start))
}

pub(crate) fn any_step(random: &mut Random, len_bytes: u64) -> Step {
    let span = any_span(random, len_bytes);
    match random.below(16) {
        0..=9 => Step::Write(span, random.next_u64().to_le_bytes()[0] | 1),
        10 | 11 => Step::Zero(span, random.coin()),
        12 | 13 => Step::Discard(span),
        _ => Step::Flush,
    }
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(span: VirtualSpan, seed: u8) -> Vec<u8> {
    let start = span.start().get();
    (start..span.end().get()).map(|at| seed ^ (at >> 9).to_le_bytes()[0] | 1).collect()
}

pub(crate) fn carry_out(disk: &dyn LiveDisk, step: &Step) -> block::Result<()> {
    match step {
        Step::Write(span, seed) => disk.write_at(span.start(), &pattern(*span, *seed)),
        Step::Zero(span, may_free) => disk.zero(*span, *may_free),
        Step::Discard(span) => disk.discard(*span),
        Step::Flush => disk.flush(),
    }
}

impl Model {
    pub(crate) fn carry_out(&mut self, step: &Step) {
        match step {
            Step::Write(span, seed) => {
                self.bytes[Self::range(*span)].copy_from_slice(&pattern(*span, *seed));
                self.is_open[Self::range(*span)].fill(false);
            }
            Step::Zero(span, _) => {
                self.bytes[Self::range(*span)].fill(0);
                self.is_open[Self::range(*span)].fill(false);
            }
            Step::Discard(span) => self.is_open[Self::range(*span)].fill(true),
            Step::Flush => {}
        }
    }
}

fn read_all(disk: &dyn ReadAt<Virtual>) -> Vec<u8> {
    let mut bytes = vec![0; index(disk.len_bytes())];
    disk.read_at(Offset::ZERO, &mut bytes).unwrap();
    bytes
}

/// Runs of `map` cover the disk, and what they call empty is.
fn check_map(disk: &dyn LiveDisk, bytes: &[u8]) {
    let mut at = Offset::ZERO;
    for run in disk.map(Span::from_zero(disk.len_bytes())).unwrap() {
        assert_eq!(run.span.start(), at);
        at = run.span.end();
        if matches!(run.state, RunState::Hole | RunState::Zero) {
            let range = index(run.span.start().get())..index(run.span.end().get());
            assert!(bytes[range].iter().all(|byte| *byte == 0), "{run:?}");
        }
    }
    assert_eq!(at.get(), disk.len_bytes());
}

fn check_model(kind: Kind, seed: u64) {
    let dir = scratch();
    let path = create(kind, dir.path());
    let mut random = Random::new(seed);
    let mut disk = open(&path);
    let mut model = Model::new(disk.len_bytes());
    // What was freed right before a disk is left without closing it leaks.
    let mut is_clean = true;
    for number in 0..150 {
        let what = format!("{} seed {seed} step {number}", kind.name);
        let step = any_step(&mut random, disk.len_bytes());
        carry_out(&*disk, &step).unwrap_or_else(|error| panic!("{what} {step:?}: {error:?}"));
        model.carry_out(&step);
        if random.below(4) == 0 {
            let span = any_span(&mut random, disk.len_bytes());
            let mut found = vec![0xa5; index(span.len_bytes())];
            disk.read_at(span.start(), &mut found).unwrap_or_else(|error| panic!("{what}: {error:?}"));
            model.check(span, &found, &format!("{what} {step:?}"));
            model.learn(span, &found);
        }
        if random.below(40) == 0 {
            if random.coin() {
                disk.close().unwrap();
            } else {
                disk.flush().unwrap();
                is_clean = false;
            }
            drop(disk);
            check_by_qemu(kind, &path, false);
            disk = open(&path);
        }
    }
    let whole = Span::from_zero(disk.len_bytes());
    let found = read_all(&*disk);
    model.check(whole, &found, &format!("{} seed {seed} at the end", kind.name));
    check_map(&*disk, &found);
    disk.close().unwrap();
    assert!(disk.write_at(Offset::ZERO, &[1; 512]).is_err(), "a closed disk is not written");
    drop(disk);
    check_by_qemu(kind, &path, is_clean);
    assert!(contents_by_qemu(kind, &path) == found, "{} seed {seed}: what QEMU reads", kind.name);
    let ours = contents_of(testkit::TestFile::open(&path), kind.format).unwrap();
    assert!(ours == found, "{} seed {seed}: what the parser reads", kind.name);
    // Everything given back: nearly nothing is left on the host.
    let disk = open(&path);
    let before = allocated_bytes(&path);
    disk.discard(whole).unwrap();
    disk.close().unwrap();
    drop(disk);
    check_by_qemu(kind, &path, is_clean);
    let after = allocated_bytes(&path);
    let left_max = if kind.name == "qcow2-2m" { 10 << 20 } else { 5 << 20 };
    assert!(after <= before && after <= left_max, "{}: {before} bytes before, {after} after", kind.name);
    assert!(contents_by_qemu(kind, &path).iter().all(|byte| *byte == 0));
}

#[test]
fn random_operations_are_those_of_the_model() {
    for kind in KINDS {
        for round in 0..rounds() {
            check_model(*kind, 0x11ed + round);
        }
    }
}

/// Neighbours on the disk become neighbours in the file, in whatever order they were first written.
#[test]
fn places_mirror_the_guests_addresses() {
    for name in ["qcow2", "qcow2-4k", "vhdx", "vhd", "vmdk"] {
        let kind = Kind { size: 64 << 20, ..kind_named(name) };
        let dir = scratch();
        let path = create(kind, dir.path());
        let mut order: Vec<u64> = (0..512).collect();
        let mut random = Random::new(7);
        for last in (1..order.len()).rev() {
            order.swap(last, index(random.below(last as u64 + 1)));
        }
        for part in order.chunks(200) {
            let disk = open(&path);
            for number in part {
                disk.write_at(Offset::new(number * 65_536), &vec![1 + (number % 255) as u8; 65_536]).unwrap();
                if number % 50 == 0 {
                    disk.flush().unwrap();
                }
            }
            disk.close().unwrap();
        }
        let disk = open(&path);
        let runs = disk.map(Span::from_zero(512 * 65_536)).unwrap();
        let data = runs.iter().filter(|run| matches!(run.state, RunState::Data { .. })).count();
        // The bitmaps of VHD lie between the blocks.
        let expected = if name == "vhd" { 16 } else { 1 };
        assert_eq!(data, expected, "{name}: {runs:?}");
        check_by_qemu(kind, &path, true);
        assert!(allocated_bytes(&path) < 36 << 20);
    }
}

#[test]
fn new_places_are_told_before_they_are_written() {
    struct Told(std::sync::Mutex<Vec<extent::HostSpan>>);
    impl image::live::Placement for Told {
        fn placed(&self, _file: block::FileIndex, span: extent::HostSpan) {
            self.0.lock().unwrap().push(span);
        }
    }
    let dir = scratch();
    let path = create(kind_named("qcow2"), dir.path());
    let told = Arc::new(Told(std::sync::Mutex::default()));
    let options = image::live::LiveOptions { placement: Some(told.clone()), ..Default::default() };
    let files = vec![crate::live::files::RealFile::open(&path) as Arc<dyn block::TargetFile>];
    let disk = image::live::open(crate::live::files::chain_of(&path), files, options).unwrap();
    disk.write_at(Offset::new(65_000), &[1; 4096]).unwrap();
    disk.write_at(Offset::new(65_000), &[2; 4096]).unwrap();
    let spans = told.0.lock().unwrap().clone();
    assert_eq!(spans.len(), 2);
    assert_eq!(spans[0].end(), spans[1].start());
}

/// A file of which the storage holds other bytes than the page cache: each is inverted.
struct Fallen(Arc<dyn block::TargetFile>);

impl ReadAt<extent::Host> for Fallen {
    block::forward!(self, self.0 => len_bytes, read_at);
}

impl block::TargetFile for Fallen {
    block::forward!(self, self.0 => write_at, set_len, reserve, zero, punch, flush);

    fn read_stored(&self, at: extent::HostOffset, buf: &mut [u8]) -> block::Result<()> {
        self.0.read_at(at, buf)?;
        buf.iter_mut().for_each(|byte| *byte = !*byte);
        Ok(())
    }
}

#[test]
fn what_is_read_back_comes_from_the_storage() {
    let dir = scratch();
    for kind in KINDS {
        let path = create(*kind, dir.path());
        let chain = crate::live::files::chain_of(&path);
        let open = |path: &std::path::PathBuf| {
            Arc::new(Fallen(crate::live::files::RealFile::open(path))) as Arc<dyn block::TargetFile>
        };
        let files = crate::live::files::layer_files(&chain).iter().map(open).collect();
        let disk = image::live::open(chain, files, image::live::LiveOptions::default()).unwrap();
        let at = Offset::new(65_000);
        disk.write_at(at, &[7; 4096]).unwrap();
        disk.flush().unwrap();
        let mut found = [0; 4096];
        disk.read_at(at, &mut found).unwrap();
        assert_eq!(found, [7; 4096], "{}", kind.name);
        disk.read_stored(at, &mut found).unwrap();
        assert_eq!(found, [!7; 4096], "{}", kind.name);
        disk.close().unwrap();
    }
}

/// Programs that go by VHD's sector bitmaps see what is written into blocks whose bitmaps have gaps.
#[test]
fn bitmaps_of_old_vhd_blocks_are_completed() {
    let kind = kind_named("vhd");
    let dir = scratch();
    let path = create(kind, dir.path());
    let bitmap = write_first_sector_alone(&path);
    let disk = open(&path);
    disk.write_at(Offset::new(1 << 20), &[2; 512]).unwrap();
    disk.flush().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes[bitmap].iter().all(|byte| *byte == 0xff));
    let mut found = [0; 512];
    disk.read_at(Offset::new(0), &mut found).unwrap();
    assert_eq!(found, [1; 512]);
}

/// Writes the first sector of a VHD whose bitmap then knows of no other. Where that bitmap lies.
fn write_first_sector_alone(path: &std::path::Path) -> std::ops::Range<usize> {
    let disk = open(path);
    disk.write_at(Offset::new(0), &[1; 512]).unwrap();
    disk.close().unwrap();
    drop(disk);
    let mut bytes = std::fs::read(path).unwrap();
    let bitmap = bitmap_of_vhd_block(&bytes, 0);
    bytes[bitmap.clone()].fill(0);
    bytes[bitmap.start] = 0x80;
    std::fs::write(path, &bytes).unwrap();
    bitmap
}

/// An image of two whole blocks and a short one, made by QEMU.
fn vhd_with_short_block(dir: &std::path::Path) -> (Kind, std::path::PathBuf) {
    let kind = Kind { size: (4 << 20) + 3 * 512, ..kind_named("vhd") };
    (kind, create(kind, dir))
}

/// A block that was freed has its place back, of which its bitmap may know little.
#[test]
fn the_bitmap_of_a_vhd_block_that_was_freed_is_completed() {
    let dir = scratch();
    let (kind, path) = vhd_with_short_block(dir.path());
    write_first_sector_alone(&path);
    let disk = open(&path);
    disk.discard(Span::from_zero(2 << 20)).unwrap();
    disk.write_at(Offset::new(1 << 20), &[2; 512]).unwrap();
    disk.close().unwrap();
    drop(disk);
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes[bitmap_of_vhd_block(&bytes, 0)].iter().all(|byte| *byte == 0xff));
    let contents = contents_by_qemu(kind, &path);
    assert_eq!(contents[1 << 20..][..512], [2; 512]);
    assert!(contents[..1 << 20].iter().all(|byte| *byte == 0));
}

/// Nothing is laid behind a last block that ends with the disk, where it would go on if the disk were made larger; and where
/// something does lie there, zeros do not reach it.
#[test]
fn behind_a_short_vhd_block_lies_nothing_that_it_could_change() {
    const BLOCK: u64 = 2 << 20;
    let dir = scratch();
    let (kind, path) = vhd_with_short_block(dir.path());
    let disk = open(&path);
    disk.write_at(Offset::new(2 * BLOCK), &[3; 3 * 512]).unwrap();
    disk.write_at(Offset::new(0), &[1; 512]).unwrap();
    disk.write_at(Offset::new(BLOCK), &[2; 512]).unwrap();
    disk.close().unwrap();
    drop(disk);
    let place = |bytes: &[u8], block| bitmap_of_vhd_block(bytes, block).start;
    let bytes = std::fs::read(&path).unwrap();
    let mut places = [0, 1, 2].map(|block| place(&bytes, block));
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= index(BLOCK) + 512), "{places:?}");

    // Another program packed them: the short block first, and one right behind it.
    let mut packed = std::fs::read(&path).unwrap();
    let [first, short] = [0, 2].map(|block| place(&packed, block));
    let bat = index(u64::from_be_bytes(packed[512 + 16..512 + 24].try_into().unwrap()));
    let low = packed.len().next_multiple_of(512) - 512;
    let footer = packed[low..].to_vec();
    let short_bytes = packed[short..short + 4 * 512].to_vec();
    let first_bytes = packed[first..first + index(BLOCK) + 512].to_vec();
    packed.truncate(low);
    for (block, bytes) in [(2, short_bytes), (0, first_bytes)] {
        let sector = u32::try_from(packed.len() / 512).unwrap();
        packed[bat + 4 * block..][..4].copy_from_slice(&sector.to_be_bytes());
        packed.extend(bytes);
    }
    packed.extend(footer);
    std::fs::write(&path, &packed).unwrap();
    let disk = open(&path);
    disk.discard(Span::new(Offset::new(2 * BLOCK), 3 * 512)).unwrap();
    disk.write_at(Offset::new(2 * BLOCK), &[4; 512]).unwrap();
    disk.zero(Span::new(Offset::new(2 * BLOCK), 3 * 512), false).unwrap();
    disk.discard(Span::new(Offset::new(2 * BLOCK), 3 * 512)).unwrap();
    disk.zero(Span::new(Offset::new(2 * BLOCK), 3 * 512), false).unwrap();
    disk.write_at(Offset::new(2 * BLOCK + 512), &[5; 512]).unwrap();
    disk.close().unwrap();
    drop(disk);
    let contents = contents_by_qemu(kind, &path);
    assert_eq!(contents[..512], [1; 512]);
    assert_eq!(contents[index(BLOCK)..][..512], [2; 512]);
    assert_eq!(contents[index(2 * BLOCK)..][..3 * 512], [[0; 512], [5; 512], [0; 512]].concat());
}

fn bitmap_of_vhd_block(bytes: &[u8], block: usize) -> std::ops::Range<usize> {
    let bat = index(u64::from_be_bytes(bytes[512 + 16..512 + 24].try_into().unwrap()));
    let sector = u32::from_be_bytes(bytes[bat + 4 * block..][..4].try_into().unwrap());
    let at = index(u64::from(sector) * 512);
    at..at + 512
}
