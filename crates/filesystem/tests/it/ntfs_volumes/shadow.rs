//! A volume with two shadow copies, made of what it was at three times: mkntfs and ntfs-3g make the volume, and the stores are
//! written as J. Metz, "Volume Shadow Snapshot (VSS) format", describes them. libvshadow's tools are the judge of that.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use super::*;

pub(crate) const BLOCK: usize = 0x4000;
const BITS_PER_BLOCK: usize = (BLOCK - 128) * 8;
/// `{3808876b-c176-4e48-b7ae-04046e6cc752}`.
pub(crate) const VSS: [u8; 16] = *b"\x6b\x87\x08\x38\x76\xc1\x48\x4e\xb7\xae\x04\x04\x6e\x6c\xc7\x52";
const VSS_NAME: &str = "{3808876b-c176-4e48-b7ae-04046e6cc752}";
/// In the order of their bytes, and as in a file's name.
const STORE_IDS: [([u8; 16], &str); 2] = [
    (
        *b"\x01\x00\x00\x60\xdf\x5b\xe3\x11\x9d\x6c\x00\x50\x56\xc0\x00\x08",
        "{60000001-5bdf-11e3-9d6c-005056c00008}",
    ),
    (
        *b"\x02\x00\x00\x60\xdf\x5b\xe3\x11\x9d\x6c\x00\x50\x56\xc0\x00\x08",
        "{60000002-5bdf-11e3-9d6c-005056c00008}",
    ),
];
/// 3 and 4 December 2013.
pub(crate) const CREATED: [u64; 2] = [0x01ce_eff1_d012_a94b, 0x01ce_f0bb_0000_0000];

/// Where the parts of a store lie on the volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreAt {
    pub(crate) header: usize,
    pub(crate) list: usize,
    pub(crate) ranges: usize,
    pub(crate) bitmap: usize,
    pub(crate) previous: usize,
    pub(crate) record: u64,
}

/// A volume with shadow copies.
pub(crate) struct Shadowed {
    pub(crate) made: Made,
    /// As it is now.
    pub(crate) bytes: Vec<u8>,
    pub(crate) catalog: usize,
    pub(crate) stores: [StoreAt; 2],
    /// What was the contents of `doomed`, deleted before the second copy, and `late`, deleted after it.
    pub(crate) doomed: Vec<u8>,
    pub(crate) late: Vec<u8>,
    /// A block that is free in every copy and on the volume, and to which a block of `late` was moved.
    pub(crate) moved_to: usize,
    /// Bytes that each copy's own bitmap calls used, apart from where stores lie.
    pub(crate) claimed: Vec<std::ops::Range<usize>>,
}

/// The volume when the copies were made, and afterwards.
struct Times {
    states: [Vec<u8>; 3],
    catalog: usize,
    stores: [(usize, u64); 2],
    doomed: Vec<u8>,
    late: Vec<u8>,
    made: Made,
}

const CATALOG_BLOCKS: usize = 2;
const STORE_BLOCKS: usize = 40;

fn times() -> Times {
    let made = make(24, &[]);
    let catalog = noise(90, (CATALOG_BLOCKS + 1) * BLOCK);
    let stores = [91, 92].map(|seed| noise(seed, (STORE_BLOCKS + 1) * BLOCK));
    let (doomed, late) = (noise(93, 9 * BLOCK + 100), noise(94, 11 * BLOCK));
    let mounted = made.mount("");
    let dir = mounted.dir.clone();
    let folder = dir.join("System Volume Information");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join(VSS_NAME), &catalog).unwrap();
    let mut records = Vec::new();
    for ((_, name), contents) in STORE_IDS.iter().zip(&stores) {
        let path = folder.join(format!("{name}{VSS_NAME}"));
        fs::write(&path, contents).unwrap();
        records.push(fs::metadata(path).unwrap().ino());
    }
    fs::write(dir.join("kept"), noise(95, 100_000)).unwrap();
    fs::write(dir.join("doomed"), &doomed).unwrap();
    fs::write(dir.join("late"), &late).unwrap();
    drop(mounted);
    let first = made.bytes();
    let mounted = made.mount("");
    fs::remove_file(mounted.dir.join("doomed")).unwrap();
    drop(mounted);
    let second = made.bytes();
    let mounted = made.mount("");
    fs::remove_file(mounted.dir.join("late")).unwrap();
    fs::write(mounted.dir.join("new"), b"so small that it is in its record").unwrap();
    drop(mounted);
    let now = made.bytes();
    let aligned = |contents: &[u8]| find(&now, contents).next_multiple_of(BLOCK);
    let stores = [0, 1].map(|index| (aligned(&stores[index]), records[index]));
    Times { catalog: aligned(&catalog), stores, doomed, late, made, states: [first, second, now] }
}

/// Where contents lie in one piece.
fn find(bytes: &[u8], contents: &[u8]) -> usize {
    let starts = (0..bytes.len() - contents.len()).step_by(512);
    starts.into_iter().find(|at| bytes[*at..].starts_with(contents)).expect("a file in one piece")
}

impl Times {
    /// Blocks in which nothing but stores or the catalog lies.
    fn own_blocks(&self) -> BTreeSet<usize> {
        let span = |at: usize, count| at / BLOCK..at / BLOCK + count;
        let stores = self.stores.iter().flat_map(|(at, _)| span(*at, STORE_BLOCKS));
        stores.chain(span(self.catalog, CATALOG_BLOCKS)).collect()
    }

    /// Blocks that are free at a time.
    fn free_blocks(&self, time: usize) -> BTreeSet<usize> {
        let mut free = Vec::new();
        let at = |offset: VolumeOffset| usize::try_from(offset.get()).unwrap();
        let each = &mut |span: extent::VolumeSpan| free.push(at(span.start())..at(span.end()));
        open_bytes(self.states[time].clone()).each_free_span(each).unwrap();
        let whole = |span: std::ops::Range<usize>| span.start.div_ceil(BLOCK)..span.end / BLOCK;
        free.into_iter().flat_map(whole).collect()
    }

    /// Blocks that are not the same at two times.
    fn changed(&self, before: usize, after: usize) -> Vec<usize> {
        let own = self.own_blocks();
        let [before, after] = [before, after].map(|time| self.states[time].chunks(BLOCK));
        let changed = before.zip(after).enumerate().filter(|(_, (before, after))| before != after);
        changed.map(|(block, _)| block).filter(|block| !own.contains(block)).collect()
    }
}

/// A store that is being written.
struct Writing {
    at: StoreAt,
    start: usize,
    next: usize,
    descriptors: Vec<u8>,
}

impl Writing {
    fn new(start: usize, record: u64) -> Self {
        let block = |index| start + index * BLOCK;
        let at = StoreAt {
            header: block(0),
            list: block(1),
            ranges: block(2),
            bitmap: block(3),
            previous: block(4),
            record,
        };
        Self { at, start, next: block(5), descriptors: Vec::new() }
    }

    fn describe(&mut self, original: usize, relative: usize, stored: usize, flags: u32, bits: u32) {
        for value in [original, relative, stored] {
            self.descriptors.extend((value as u64).to_le_bytes());
        }
        self.descriptors.extend(flags.to_le_bytes());
        self.descriptors.extend(bits.to_le_bytes());
    }

    /// Puts contents into the store, as those of the block at `original`.
    fn copy(&mut self, bytes: &mut [u8], original: usize, contents: &[u8], flags: u32, bits: u32) {
        let at = self.next;
        self.next += BLOCK;
        assert!(self.next <= self.start + STORE_BLOCKS * BLOCK, "a store that is large enough");
        bytes[at..at + BLOCK].copy_from_slice(contents);
        self.describe(original, at - self.start, at, flags, bits);
    }

    /// Writes what leads to the blocks.
    fn finish(
        &self,
        bytes: &mut [u8],
        index: usize,
        unused: &BTreeSet<usize>,
        older: Option<&BTreeSet<usize>>,
    ) {
        let StoreAt { header, list, ranges, bitmap, previous, .. } = self.at;
        let mut information = vec![0; 64];
        information[16..32].copy_from_slice(&[0xc0 + u8::try_from(index).unwrap(); 16]);
        information[32..48].copy_from_slice(&[0xd0 + u8::try_from(index).unwrap(); 16]);
        information[48] = 0x0d;
        information[58] = 0x42;
        let machine: Vec<u8> = "winter".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for _ in 0..2 {
            information.extend(u16::try_from(machine.len()).unwrap().to_le_bytes());
            information.extend(&machine);
        }
        let mut range = Vec::new();
        for value in [self.start, 0, STORE_BLOCKS * BLOCK] {
            range.extend((value as u64).to_le_bytes());
        }
        put_block(bytes, header, self.start, 4, &information);
        put_block(bytes, list, self.start, 3, &self.descriptors);
        put_block(bytes, ranges, self.start, 5, &range);
        put_block(bytes, bitmap, self.start, 6, &bits(unused));
        if let Some(older) = older {
            put_block(bytes, previous, self.start, 6, &bits(older));
        }
    }
}

fn bits(set: &BTreeSet<usize>) -> Vec<u8> {
    let mut bits = vec![0; BITS_PER_BLOCK / 8];
    for block in set {
        bits[block / 8] |= 1 << (block % 8);
    }
    bits
}

fn put_block(bytes: &mut [u8], at: usize, start: usize, kind: u32, contents: &[u8]) {
    bytes[at..at + BLOCK].fill(0);
    bytes[at..at + 16].copy_from_slice(&VSS);
    bytes[at + 16] = 1;
    bytes[at + 20..at + 24].copy_from_slice(&kind.to_le_bytes());
    bytes[at + 24..at + 32].copy_from_slice(&((at - start) as u64).to_le_bytes());
    bytes[at + 32..at + 40].copy_from_slice(&(at as u64).to_le_bytes());
    bytes[at + 128..at + 128 + contents.len()].copy_from_slice(contents);
}

/// Sectors of a block that differ.
fn differing(one: &[u8], other: &[u8]) -> u32 {
    let sectors = one.chunks(512).zip(other.chunks(512)).enumerate();
    sectors.filter(|(_, (one, other))| one != other).map(|(sector, _)| 1 << sector).sum()
}

/// Makes the volume.
pub(crate) fn shadowed() -> Shadowed {
    let times = times();
    let block = |time: usize, block: usize| &times.states[time][block * BLOCK..(block + 1) * BLOCK];
    let mut bytes = times.states[2].clone();
    let [mut first, mut second] = times.stores.map(|(at, record)| Writing::new(at, record));
    // Of the first block that has changed only the sectors that did; nothing reads through the oldest store.
    for (nth, changed) in times.changed(0, 1).into_iter().enumerate() {
        let contents = block(0, changed);
        match nth {
            0 => {
                let bits = differing(contents, block(1, changed));
                first.copy(&mut bytes, changed * BLOCK, contents, 2, bits);
            }
            _ => first.copy(&mut bytes, changed * BLOCK, contents, 0x88, 0),
        }
    }
    first.describe(7 * BLOCK, 0, 0, 4, 0);
    for changed in times.changed(1, 2) {
        second.copy(&mut bytes, changed * BLOCK, block(1, changed), 0, 0);
    }
    let unused = [0, 1].map(|time| &times.free_blocks(time) | &times.own_blocks());
    let nowhere: Vec<usize> = times.free_blocks(2).intersection(&unused[0]).copied().collect();
    let nowhere: Vec<usize> = nowhere.into_iter().filter(|block| unused[1].contains(block)).collect();
    let (moved_to, moved_again) = (nowhere[nowhere.len() / 2], nowhere[nowhere.len() / 2 + 2]);
    // Two blocks of `late` went elsewhere, one of them for good; then their old places were written, and the other one's new one.
    let inside = find(&times.states[1], &times.late).div_ceil(BLOCK);
    for (from, to) in [(inside + 1, moved_to), (inside + 4, moved_again)] {
        let contents = bytes[from * BLOCK..(from + 1) * BLOCK].to_vec();
        bytes[to * BLOCK..(to + 1) * BLOCK].copy_from_slice(&contents);
        bytes[from * BLOCK..(from + 1) * BLOCK].fill(0xee);
        second.describe(from * BLOCK, to * BLOCK, 0, 1, 0);
    }
    let again = moved_again * BLOCK;
    let contents = bytes[again..again + BLOCK].to_vec();
    second.copy(&mut bytes, again, &contents, 0, 0);
    bytes[again..again + BLOCK].fill(0xdd);
    first.finish(&mut bytes, 0, &unused[0], None);
    second.finish(&mut bytes, 1, &unused[1], Some(&unused[0]));
    put_catalog(&mut bytes, times.catalog, [&first, &second]);
    fs::write(&times.made.volume, &bytes).unwrap();
    let claimed = [0, 1].iter().flat_map(|time| used_of(&times, *time)).collect();
    Shadowed {
        bytes,
        catalog: times.catalog,
        stores: [first.at, second.at],
        moved_to: moved_to * BLOCK,
        claimed,
        doomed: times.doomed,
        late: times.late,
        made: times.made,
    }
}

/// What is used at a time, by the volume's bitmap.
fn used_of(times: &Times, time: usize) -> Vec<std::ops::Range<usize>> {
    let at = |offset: VolumeOffset| usize::try_from(offset.get()).unwrap();
    let (mut used, mut end) = (Vec::new(), 0);
    let each = &mut |span: extent::VolumeSpan| {
        used.push(end..at(span.start()));
        end = at(span.end());
    };
    open_bytes(times.states[time].clone()).each_free_span(each).unwrap();
    used.push(end..times.states[time].len());
    used
}

fn put_catalog(bytes: &mut [u8], at: usize, stores: [&Writing; 2]) {
    let mut entries = Vec::new();
    for (index, store) in stores.iter().enumerate() {
        let (id, _) = STORE_IDS[index];
        let number = index as u64 + 1;
        let halves = [&id[..8], &id[8..]].map(|half| u64::from_le_bytes(half.try_into().unwrap()));
        let sequence = u64::try_from(u16_at(bytes, record_at(bytes, store.at.record) + 16)).unwrap();
        let copy = [2, bytes.len() as u64, halves[0], halves[1], number, 0x40, CREATED[index]];
        let previous = if index == 0 { 0 } else { store.at.previous as u64 };
        let on_disk = [
            3,
            store.at.list as u64,
            halves[0],
            halves[1],
            store.at.header as u64,
            store.at.ranges as u64,
            store.at.bitmap as u64,
            sequence << 48 | store.at.record,
            0,
            previous,
        ];
        for values in [&copy[..], &on_disk[..]] {
            let entry: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            entries.extend(entry.iter().copied().chain(std::iter::repeat_n(0, 128 - entry.len())));
        }
    }
    // Of the second block nothing is in use; one entry was.
    put_block(bytes, at, at, 2, &entries);
    put_block(bytes, at + BLOCK, at, 2, &[1]);
    bytes[at + 40..at + 48].copy_from_slice(&((at + BLOCK) as u64).to_le_bytes());
    let header = &mut bytes[0x1e00..0x2000];
    header.fill(0);
    header[..16].copy_from_slice(&VSS);
    header[16] = 1;
    header[20] = 1;
    for (field, value) in [(24, 0x1e00), (32, 0x1e00), (48, at)] {
        header[field..field + 8].copy_from_slice(&(value as u64).to_le_bytes());
    }
    for field in [64, 80] {
        header[field..field + 16].copy_from_slice(&[0xab; 16]);
    }
}

/// What every shadow copy of a raw volume shows, as libvshadow and The Sleuth Kit read it.
pub(crate) struct Shown {
    program: Child,
    pub(crate) dir: PathBuf,
}

impl Shown {
    pub(crate) fn new(volume: &Path, dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        let before = fs::metadata(dir).unwrap().dev();
        // In the foreground with -v, which is told where nobody reads.
        let mut program = Command::new("vshadowmount")
            .args(["-v", text(volume), text(dir)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("vshadowmount");
        let started = Instant::now();
        while fs::metadata(dir).unwrap().dev() == before {
            let gone = program.try_wait().unwrap();
            assert!(gone.is_none_or(|status| status.success()), "vshadowmount gave up: {gone:?}");
            assert!(started.elapsed() < Duration::from_secs(30), "vshadowmount does not mount");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { program, dir: dir.into() }
    }

    /// The disks of all copies, oldest first.
    pub(crate) fn copies(&self) -> Vec<PathBuf> {
        (1..).map(|number| self.dir.join(format!("vss{number}"))).take_while(|path| path.exists()).collect()
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", text(&self.dir)]).status();
        let _ = self.program.wait();
    }
}

/// Every file of a volume that is not deleted, with what is in it: `address name` and bytes. The stores' own files are left out:
/// they are large, and read as zeros where Windows made them.
pub(crate) fn files_of(volume: &Path) -> Vec<(String, Vec<u8>)> {
    let listed = Command::new("fls").args(["-r", "-p", "-u", text(volume)]).output().expect("fls");
    assert!(listed.status.success(), "fls reads {}", volume.display());
    let lines = String::from_utf8_lossy(&listed.stdout).into_owned();
    let is_file = |line: &&str| !["V/V", "d/d"].iter().any(|kind| line.starts_with(kind));
    let files = lines.lines().filter(is_file).filter(|line| !line.to_lowercase().ends_with(VSS_NAME));
    let addresses = files.map(|line| {
        let (address, name) = line.split_once(":\t").expect("an address and a name");
        (address.rsplit(' ').next().unwrap().to_owned(), name.to_owned())
    });
    let read = |(address, name): (String, String)| {
        let read = Command::new("icat").args([text(volume), &address]).output().expect("icat");
        (format!("{address} {name}"), read.stdout)
    };
    addresses.map(read).collect()
}

/// Every file of every shadow copy of a raw volume, with what is in it.
pub(crate) fn files_of_copies(volume: &Path, scratch: &Path) -> Vec<(String, Vec<u8>)> {
    let shown = Shown::new(volume, &scratch.join("shown"));
    shown.copies().iter().flat_map(|copy| files_of(copy)).collect()
}

/// Fails unless these are the same files with the same contents, and there are some.
pub(crate) fn assert_same(before: &[(String, Vec<u8>)], after: &[(String, Vec<u8>)]) {
    assert!(!before.is_empty() && before.len() == after.len(), "{} files, {}", before.len(), after.len());
    for ((name, contents), (_, now)) in before.iter().zip(after) {
        assert!(contents == now, "{name} is not what it was");
    }
}
