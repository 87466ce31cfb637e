//! Volumes of ext with one bit flipped, somewhere in their metadata: what `e2fsck -fn` says of the copy is what it says of the
//! source, line for line. A copy may leave out only what nobody looks at, however broken a volume is.
//!
//! In the gate each kind of volume has a sample flipped, by a seed (`FLIPS_SEED`); `FLIPS=1000` is a larger one. With `FLIPS=all`, as
//! `make flips` sets it, a bit of every field of every structure is flipped once. Volumes are made anew each time: what the kernel puts in by the clock or by chance
//! differs, where the fields lie does not.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use block::{HostFile, Memory};
use extent::VirtualSpan;
use filesystem::Check;
use image::{Chain, Format, OpenOptions};
use plan::{CopyOptions, CopyPlan, CopyPlanner};
use stack::Stack;
use testkit::{TestResolver, as_root, ext_volume, mke2fs, run, scratch};

/// A kind of volume.
struct Kind {
    mke2fs: &'static str,
    size_mib: u64,
    /// Whether the kernel fills it: not every kernel has quotas.
    is_mounted: bool,
}

const fn kind(mke2fs: &'static str, size_mib: u64) -> Kind {
    Kind { mke2fs, size_mib, is_mounted: true }
}

/// Flips of each kind in the gate.
const SAMPLE: usize = 60;
/// Fields, but for inodes' and descriptors', are looked for in lines of so many bytes that are not all zeros.
const LINE_BYTES: usize = 32;
/// The unit in which fields are told apart.
const FIELD_BYTES: usize = 2;
/// Seconds that e2fsck gets for a volume: some damage makes it run in circles.
const FSCK_SECONDS: &str = "20";

/// A tree with files of every sort, some of them deleted again. `$1` is where.
const FILL: &str = r#"
set -e; cd "$1"
noise() { head -c "$1" /dev/zero | tr '\0' n; }
noise 20000 >plain; noise 20000 >other; ln plain 'another name'
for i in $(seq 0 2 60); do noise 4096 | dd of=pieces bs=4096 seek=$i conv=notrunc status=none; done
noise 100 | dd of=far bs=1 seek=60000000 status=none
fallocate -l 300K unwritten || noise 300000 >unwritten
mkdir -p a/b gone; ln -s plain short; ln -s "$(head -c 200 /dev/zero | tr '\0' x)" long; mkfifo fifo; mknod null c 1 3
mkdir large; for i in $(seq 60); do echo x >"large/a name that is rather long, so that blocks fill up with few $i"; done
for i in $(seq 1 3 60); do rm "large/a name that is rather long, so that blocks fill up with few $i"; done
value=$(head -c 600 /dev/zero | tr '\0' s)
setfattr -n user.shared -v "$value" plain; setfattr -n user.shared -v "$value" other; setfattr -n user.small -v it a
for i in $(seq 20); do noise 9000 >gone/$i; ln -s "$(head -c 150 /dev/zero | tr '\0' y)" gone/link$i; done
sync -f .; rm -r gone; sync -f .
"#;

/// A volume of this kind. What is free in it is not zeros: copies of its own metadata lie there, as deleted files leave them.
fn make(kind: &Kind, dir: &Path) -> Vec<u8> {
    let path = dir.join("made");
    fs::File::create(&path).unwrap().set_len(kind.size_mib << 20).unwrap();
    let list = dir.join("bad");
    fs::write(&list, "3000\n3001\n3500\n").unwrap();
    let options = kind.mke2fs.replace("BAD", &format!("-l {}", list.display()));
    let mut args = vec!["-q", "-F", "-N", "256", "-U", "1eaf0000-0000-4000-8000-000000000002"];
    args.extend(options.split_whitespace());
    args.push(path.to_str().unwrap());
    mke2fs(&args);
    if kind.is_mounted {
        let mounted = ext_volume::Mounted::new(&path, "nodelalloc");
        let output = as_root("sh", &["-c", FILL, "sh", mounted.dir().to_str().unwrap()]);
        assert!(output.status.success(), "{}: {}", kind.mke2fs, String::from_utf8_lossy(&output.stderr));
    }
    let said = e2fsck(&path);
    assert!(said.status.success(), "{}: {}", kind.mke2fs, String::from_utf8_lossy(&said.stdout));
    fs::read(&path).unwrap()
}

/// A volume with what is known of its structures.
struct Volume {
    bytes: Vec<u8>,
    block_bytes: usize,
    /// Blocks that hold metadata, ascending.
    metadata: Vec<usize>,
    /// Those of inode tables.
    tables: Vec<usize>,
    /// Those of block bitmaps.
    bitmaps: Vec<usize>,
}

impl Volume {
    fn new(kind: &Kind, dir: &Path) -> Self {
        let bytes = make(kind, dir);
        let path = dir.join("made");
        let dump = run("dumpe2fs", &[path.to_str().unwrap()]);
        let number = |text: &str| -> usize { text.trim().parse().unwrap() };
        let field = |name: &str| {
            number(dump.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}")))
        };
        let block_bytes = field("Block size:");
        let tables = dump.lines().filter_map(|line| line.strip_prefix("  Inode table at "));
        let tables = tables.flat_map(|rest| {
            let range = rest.split_whitespace().next().unwrap();
            let (first, last) = range.split_once('-').unwrap();
            number(first)..=number(last)
        });
        let tables = tables.collect();
        let bitmaps = dump.lines().filter_map(|line| line.trim_start().strip_prefix("Block bitmap at "));
        let bitmaps = bitmaps.map(|rest| number(rest.split([' ', ',']).next().unwrap())).collect();
        // The journal's own log says nothing while it is empty.
        let log: Vec<usize> = match dump.contains("has_journal") {
            true => run("debugfs", &["-R", "blocks <8>", path.to_str().unwrap()])
                .split_whitespace()
                .map(number)
                .collect(),
            false => Vec::new(),
        };
        let is_log = |block: usize| {
            let bytes = &bytes[block * block_bytes..][..8];
            log.contains(&block) && !(bytes[..4] == [0xc0, 0x3b, 0x39, 0x98] && [3, 4].contains(&bytes[7]))
        };
        // What e2fsprogs itself calls metadata.
        let image = dir.join("metadata");
        run("e2image", &["-r", path.to_str().unwrap(), image.to_str().unwrap()]);
        let image = fs::read(&image).unwrap();
        let is_metadata =
            |block: &usize| image[block * block_bytes..].iter().take(block_bytes).any(|byte| *byte != 0);
        let metadata = (0..bytes.len() / block_bytes).filter(|block| is_metadata(block) && !is_log(*block));
        let mut volume = Self { block_bytes, metadata: metadata.collect(), tables, bitmaps, bytes };
        volume.litter();
        volume
    }

    /// Fills what is free with copies of metadata.
    fn litter(&mut self) {
        let pristine = self.bytes.clone();
        let plan = plan(pristine.clone()).expect("a sound volume is not taken whole");
        let mut next = self.metadata.iter().cycle();
        let mut at = 0;
        let mut litter = |bytes: &mut [u8], from: usize, to: usize| {
            for block in from.div_ceil(self.block_bytes)..to / self.block_bytes {
                let source = next.next().unwrap() * self.block_bytes;
                let copied = &pristine[source..source + self.block_bytes];
                bytes[block * self.block_bytes..][..self.block_bytes].copy_from_slice(copied);
            }
        };
        for span in plan.reads.iter() {
            litter(&mut self.bytes, at, index(span).0);
            at = index(span).1;
        }
        let end = self.bytes.len();
        litter(&mut self.bytes, at, end);
    }

    /// Where a block bitmap has something marked as used: bits that say most, and that are few in all.
    fn marks(&self) -> Vec<usize> {
        let units = self.bitmaps.iter().flat_map(|block| {
            let start = block * self.block_bytes;
            (start..start + self.block_bytes).step_by(FIELD_BYTES)
        });
        units.filter(|at| self.bytes[*at..at + FIELD_BYTES] != [0; FIELD_BYTES]).collect()
    }

    /// Where a bit is to be flipped: once in every field of what is used of the metadata. Runs of the same value, as bitmaps and room
    /// for entries have them, count once; but not in superblocks, descriptors and inodes, where each zero is another field.
    fn fields(&self) -> Vec<usize> {
        let mut fields = Vec::new();
        for block in &self.metadata {
            let start = block * self.block_bytes;
            let bytes = &self.bytes[start..start + self.block_bytes];
            let keeps_runs = self.tables.contains(block) || start < 4096;
            let mut last = None;
            for (at, unit) in bytes.chunks(FIELD_BYTES).enumerate() {
                let at = at * FIELD_BYTES;
                let line = at / LINE_BYTES * LINE_BYTES;
                let is_live = bytes[line..].iter().take(LINE_BYTES).any(|byte| *byte != 0);
                if is_live && (keeps_runs || last != Some(unit)) {
                    fields.push(start + at);
                }
                last = Some(unit);
            }
        }
        fields
    }
}

fn index(span: VirtualSpan) -> (usize, usize) {
    let index = |at: u64| usize::try_from(at).unwrap();
    (index(span.start().get()), index(span.end().get()))
}

/// What a copy reads of a disk; `None` if that is all of it.
fn plan(bytes: Vec<u8>) -> Option<CopyPlan> {
    let file: Arc<dyn HostFile> = Arc::new(Memory::new(bytes));
    let chain =
        Chain::open(file, OpenOptions { format: Some(Format::Raw) }, &TestResolver::default()).unwrap();
    let stack = Stack::open(chain).unwrap();
    let maps = stack.used_maps(Check::Full).unwrap();
    if maps.modes().iter().all(|mode| mode.reason().is_some()) {
        return None;
    }
    let mut planner = CopyPlanner::new(CopyOptions::default(), stack.volumes().len());
    stack.each_facts(&maps, |facts| planner.add(facts)).unwrap();
    Some(planner.finish())
}

/// The disk's copy, if it is another.
fn copy(bytes: &[u8]) -> Option<Vec<u8>> {
    let plan = plan(bytes.to_vec())?;
    let mut copy = vec![0; bytes.len()];
    for span in plan.reads.iter() {
        let (start, end) = index(span);
        copy[start..end].copy_from_slice(&bytes[start..end]);
    }
    for (span, byte) in plan.fills {
        let (start, end) = index(span);
        copy[start..end].fill(byte);
    }
    (copy != bytes).then_some(copy)
}

fn e2fsck(volume: &Path) -> Output {
    Command::new("timeout")
        .args([FSCK_SECONDS, "e2fsck", "-fn"])
        .arg(volume.file_name().unwrap())
        .current_dir(volume.parent().unwrap())
        .output()
        .unwrap()
}

/// What e2fsck says; `None` if it crashes or does not end, which says nothing.
fn said(volume: &Path) -> Option<String> {
    let output = e2fsck(volume);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = output.status.code().is_some_and(|code| code < 124) && !text.contains("Signal (");
    said.then(|| format!("{text}{}", output.status))
}

/// How it went.
#[derive(Default)]
struct Tally {
    whole: AtomicUsize,
    same: AtomicUsize,
    undecided: AtomicUsize,
    differing: Mutex<Vec<String>>,
}

/// Flips a bit and compares.
fn check(volume: &Volume, at: usize, bit: u8, dir: &Path, tally: &Tally) {
    let mut bytes = volume.bytes.clone();
    bytes[at + usize::from(bit / 8)] ^= 1 << (bit % 8);
    let Some(copy) = copy(&bytes) else {
        tally.whole.fetch_add(1, Ordering::Relaxed);
        return;
    };
    let paths = ["source", "copy"].map(|name| {
        let folder = dir.join(name);
        fs::create_dir_all(&folder).unwrap();
        folder.join("volume")
    });
    fs::write(&paths[0], &bytes).unwrap();
    fs::write(&paths[1], &copy).unwrap();
    let (source, target) = (said(&paths[0]), said(&paths[1]));
    let counter = match (&source, &target) {
        (Some(source), Some(target)) if source == target => &tally.same,
        // e2fsck prints what it never set, now and then: it has to say the same twice.
        (None, _) => &tally.undecided,
        (source, target) if *source != said(&paths[0]) || *target != said(&paths[1]) => &tally.undecided,
        _ => {
            let lines = |said: &Option<String>| said.as_deref().unwrap_or("nothing").replace('\n', "\n    ");
            let what = format!(
                "bit {bit} at {at:#x}, block {}+{:#x}:\n  of the source:\n    {}\n  of the copy:\n    {}",
                at / volume.block_bytes,
                at % volume.block_bytes,
                lines(&source),
                lines(&target)
            );
            tally.differing.lock().unwrap().push(what);
            return;
        }
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Flips fields of a kind of volume: some of them, or all.
fn flip(kind: &Kind) {
    let dir = scratch();
    let volume = Volume::new(kind, dir.path());
    let fields = volume.fields();
    let asked = std::env::var("FLIPS").unwrap_or_default();
    let (all, sample) = (asked == "all", asked.parse().unwrap_or(SAMPLE));
    let seed = std::env::var("FLIPS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    let mut state = seed;
    let mut cases: Vec<(usize, u8)> = Vec::new();
    let bit = |state: &mut u64| u8::try_from(random(state) % 16).unwrap();
    if all {
        cases.extend(fields.iter().map(|at| (*at, bit(&mut state))));
    } else {
        // Superblock and bitmaps are a small part of all, and say most.
        let (head, marks) = (
            fields.iter().copied().filter(|at| (1024..2048).contains(at)).collect::<Vec<_>>(),
            volume.marks(),
        );
        for number in 0..sample {
            let from = [&head, &marks, &fields][number % 3];
            let pick = usize::try_from(random(&mut state)).unwrap() % from.len();
            cases.push((from[pick], bit(&mut state)));
        }
    }
    let tally = Tally::default();
    let next = AtomicUsize::new(0);
    let thread_count =
        if all || sample > SAMPLE { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 };
    std::thread::scope(|scope| {
        for thread in 0..thread_count {
            let (dir, volume, tally, next, cases) = (dir.path(), &volume, &tally, &next, &cases);
            scope.spawn(move || {
                let dir = dir.join(thread.to_string());
                while let Some((at, bit)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check(volume, *at, *bit, &dir, tally);
                }
            });
        }
    });
    let [whole, same, undecided] =
        [&tally.whole, &tally.same, &tally.undecided].map(|count| count.load(Ordering::Relaxed));
    let differing = tally.differing.into_inner().unwrap();
    println!(
        "{}: {} of {} fields flipped, seed {seed}: {whole} copied whole, {same} the same to e2fsck, {undecided} undecided, {} differ",
        kind.mke2fs,
        cases.len(),
        fields.len(),
        differing.len()
    );
    assert!(
        differing.is_empty(),
        "{}, seed {seed}:\n{}",
        kind.mke2fs,
        differing[..differing.len().min(5)].join("\n")
    );
    assert!(whole > 0 && same > 0 && whole + same > 9 * undecided, "{}: nothing is shown", kind.mke2fs);
}

macro_rules! kinds {
    ($($name:ident: $kind:expr;)*) => {
        $(#[test]
        fn $name() {
            flip(&$kind);
        })*
    };
}

kinds! {
    ext4_of_today: kind("-t ext4 -b 4096 -J size=4", 24);
    ext4_without_checksums: kind("-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg,^resize_inode -J size=1", 8);
    ext4_with_checksums_of_descriptors: kind("-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^64bit -J size=1", 8);
    ext4_in_small_blocks_with_bad_ones: kind("-t ext4 -b 1024 -O ^has_journal -g 2048 BAD", 8);
    ext4_without_checksums_with_bad_blocks: kind("-t ext4 -b 1024 -O ^metadata_csum,^has_journal,^flex_bg -g 2048 BAD", 8);
    ext4_with_data_in_inodes: kind("-t ext4 -b 1024 -I 512 -O inline_data,ea_inode,^metadata_csum,^has_journal", 8);
    ext4_with_an_orphan_file: kind("-t ext4 -b 1024 -O orphan_file,sparse_super2,meta_bg,^resize_inode -J size=1", 8);
    ext4_of_clusters: kind("-t ext4 -b 1024 -O bigalloc,^metadata_csum,^has_journal -C 8192", 16);
    ext4_with_quotas: Kind {
        is_mounted: false,
        ..kind("-t ext4 -b 1024 -O quota,project,mmp,^metadata_csum -J size=1", 8)
    };
    ext3: kind("-t ext3 -b 1024 -I 128 -J size=1", 8);
    ext2: kind("-t ext2 -b 1024", 8);
    ext2_of_old: kind("-t ext2 -b 1024 -E revision=0", 8);
}
