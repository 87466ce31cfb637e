//! Volumes of XFS with one bit flipped under a checksum that is right again, in each byte of each structure: what `xfs_repair -n` finds in
//! anything that owns blocks makes the volume whole; what else it finds, it finds in the copy of what is used, line for line.
//!
//! In the gate a sample is flipped; `FLIPS=1000` is a larger one, and with `FLIPS=all`, as `make flips` sets it, each byte is taken once. `FLIPS_SEED` takes other
//! bits.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::support::source;
use crate::xfs::{copy_used, doubt, fill, make, repair};
use filesystem::Check;
use testkit::mounted::Mounted;
use testkit::scratch;

const SECTOR: u64 = 512;
const INODE_BYTES: u64 = 512;
/// Flips of each kind of volume in the gate.
const SAMPLE: usize = 12;

/// A structure.
struct Structure {
    what: String,
    /// Where it lies, and what its checksum is of.
    at: u64,
    len: u64,
    crc_at: usize,
    /// What of it is flipped, in bytes from its beginning.
    fields: Vec<u64>,
    /// What of it is contents.
    inline: Vec<std::ops::Range<u64>>,
}

/// A volume as a tool's bytes show it: this is no parser of the product.
struct Volume {
    bytes: Vec<u8>,
    block: u64,
    group_blocks: u64,
    groups: u64,
}

impl Volume {
    fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let mut volume = Self { bytes, block: 0, group_blocks: 0, groups: 0 };
        (volume.block, volume.group_blocks, volume.groups) =
            (volume.number(4, 4), volume.number(84, 4), volume.number(88, 4));
        volume
    }

    fn number(&self, at: u64, len: u64) -> u64 {
        let at = usize::try_from(at).unwrap();
        let bytes = &self.bytes[at..at + usize::try_from(len).unwrap()];
        bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    fn structures(&self, inodes: &[(String, u64)]) -> Vec<Structure> {
        let mut all = Vec::new();
        for group in 0..self.groups.min(2) {
            let start = group * self.group_blocks * self.block;
            let mut header = |what: &str, index: u64, crc_at: usize, end: u64| {
                let what = format!("{what} {group}");
                all.push(Structure {
                    what,
                    at: start + index * SECTOR,
                    len: SECTOR,
                    crc_at,
                    fields: (0..end).collect(),
                    inline: Vec::new(),
                });
            };
            header("superblock", 0, 224, 272);
            header("AGF", 1, 216, 224);
            header("AGI", 2, 312, 344);
            header("AGFL", 3, 32, 80);
            let (agf, agi) = (start + SECTOR, start + 2 * SECTOR);
            for (what, root, level, record, key) in [
                ("tree by place", agf + 16, agf + 28, 8, 8),
                ("tree by length", agf + 20, agf + 32, 8, 8),
                ("reverse map", agf + 24, agf + 36, 24, 40),
                ("reference counts", agf + 88, agf + 92, 12, 4),
                ("inodes' tree", agi + 20, agi + 24, 16, 4),
                ("free inodes' tree", agi + 328, agi + 332, 16, 4),
            ] {
                let (root, level) = (self.number(root, 4), self.number(level, 4));
                let place = |block: u64| start + block * self.block;
                self.tree(
                    &format!("{what} {group}"),
                    (root, level),
                    [56, 52, 4],
                    [record, key],
                    &place,
                    &mut all,
                );
            }
        }
        for (what, at) in inodes {
            // The core, and what each fork begins with.
            let mut fields: Vec<u64> = (0..176 + 48).collect();
            let fork = self.number(at + 82, 1) * 8;
            if fork > 48 {
                fields.extend(176 + fork..(176 + fork + 40).min(INODE_BYTES));
            }
            // Of what is kept in the inode: formats 0 and 1.
            let data_end = if fork == 0 { INODE_BYTES } else { 176 + fork };
            let is_inline = [5, 83].map(|format| self.number(at + format, 1) < 2);
            let inline = [176..data_end, data_end..INODE_BYTES].into_iter().zip(is_inline);
            let inline = inline.filter(|(_, is_inline)| *is_inline).map(|(range, _)| range).collect();
            let whose = format!("inode of {what}");
            all.push(Structure { what: whose, at: *at, len: INODE_BYTES, crc_at: 100, fields, inline });
            if self.number(at + 5, 1) == 3 {
                let first = at + 176 + 4 + (data_end - 176 - 4) / 16 * 8;
                let (name, level) = (self.number(first, 8), self.number(at + 176, 2));
                let place = |name: u64| self.place(name);
                self.tree(
                    &format!("extents of {what}"),
                    (name, level),
                    [72, 64, 8],
                    [16, 8],
                    &place,
                    &mut all,
                );
            }
        }
        all
    }

    /// Where a block lies that is named for the whole volume.
    fn place(&self, name: u64) -> u64 {
        let log = self.number(124, 1);
        ((name >> log) * self.group_blocks + (name & ((1 << log) - 1))) * self.block
    }

    /// Blocks of a tree: the root, and the first ones below it.
    fn tree(
        &self,
        what: &str,
        (root, levels): (u64, u64),
        [header, crc_at, pointer]: [u64; 3],
        [record, key]: [u64; 2],
        place: &dyn Fn(u64) -> u64,
        all: &mut Vec<Structure>,
    ) {
        let (mut block, mut level) = (root, levels);
        while level > 0 {
            level -= 1;
            let at = place(block);
            let count = self.number(at + 6, 2);
            let mut fields: Vec<u64> = (0..header).collect();
            if level == 0 {
                let last = header + count.saturating_sub(1) * record;
                fields.extend((header..header + 2 * record).chain(last..last + record));
            } else {
                let pointers = header + (self.block - header) / (key + pointer) * key;
                fields.extend((header..header + 2 * key).chain(pointers..pointers + 2 * pointer));
                block = self.number(at + pointers, pointer);
            }
            let crc_at = usize::try_from(crc_at).unwrap();
            let what = format!("{what}, level {level}");
            all.push(Structure { what, at, len: self.block, crc_at, fields, inline: Vec::new() });
        }
    }
}

/// Bytes of an inode that say nothing of its blocks: of kinds, permissions, owners, times, links, hints, versions and lists.
fn owns_no_blocks(structure: &Structure, byte: u64) -> bool {
    let harmless: [std::ops::Range<u64>; 7] = [2..4, 6..24, 32..64, 72..76, 84..100, 104..112, 120..152];
    let mut harmless = harmless.iter().chain(&structure.inline);
    structure.what.starts_with("inode of") && harmless.any(|range| range.contains(&byte))
}

/// The inodes of a volume of which one of a kind is flipped, and where they lie.
fn inodes(path: &Path, volume: &Volume) -> Vec<(String, u64)> {
    let mounted = Mounted::kernel("xfs", path, "ro,norecovery,nouuid");
    let with_attribute = "many/file number 1 with a name that is long";
    let names = ["", "many", "short link", "long link", "pieces", "reserved", "pipe", with_attribute];
    names
        .iter()
        .map(|name| {
            let number = fs::symlink_metadata(mounted.path().join(name)).unwrap().ino();
            let per_block_log = volume.number(123, 1);
            let within = number & ((1 << per_block_log) - 1);
            ((*name).to_owned(), volume.place(number >> per_block_log) + within * INODE_BYTES)
        })
        .collect()
}

fn flip(options: &str, mib: u64) {
    let dir = scratch();
    let (path, copy) = (dir.path().join("volume"), dir.path().join("copy"));
    make(&path, options, mib);
    fill(&path, 30, !options.contains("reflink=0"));
    assert_eq!(doubt(&path), "");
    let volume = Volume::read(&path);
    let structures = volume.structures(&inodes(&path, &volume));
    let mut cases = Vec::new();
    for structure in &structures {
        for byte in structure.fields.iter().copied() {
            if !(structure.crc_at as u64..structure.crc_at as u64 + 4).contains(&byte) {
                cases.push((structure, byte));
            }
        }
    }
    let asked = std::env::var("FLIPS").unwrap_or_default();
    let count = if asked == "all" { cases.len() } else { asked.parse().unwrap_or(SAMPLE) };
    let seed: u64 = std::env::var("FLIPS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut state = seed;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap()
    };
    if asked != "all" {
        cases = (0..count).map(|_| cases[random() % cases.len()]).collect();
    }
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (mut whole, mut noticed, mut wrong) = (0, 0, Vec::new());
    let mut before: Option<(u64, &[u8])> = None;
    for (structure, byte) in &cases {
        let at = usize::try_from(structure.at).unwrap();
        if let Some((at, good)) = before.take() {
            file.write_all_at(good, at).unwrap();
        }
        let good = &volume.bytes[at..at + usize::try_from(structure.len).unwrap()];
        before = Some((structure.at, good));
        let (mut flipped, bit) = (good.to_vec(), random() % 8);
        flipped[usize::try_from(*byte).unwrap()] ^= 1 << bit;
        flipped[structure.crc_at..structure.crc_at + 4].fill(0);
        let sum = crc32c::crc32c(&flipped);
        flipped[structure.crc_at..structure.crc_at + 4].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&flipped, structure.at).unwrap();
        let is_believed = filesystem::open(&source(&path))
            .unwrap()
            .is_some_and(|found| found.facts().filesystem == "xfs" && found.used_map(Check::Full).is_ok());
        if is_believed {
            let (said, is_content) = repair(&path);
            noticed += usize::from(!is_content);
            copy_used(&path, &copy, 0);
            let what = format!("bit {bit} of byte {byte} of {} at {at:#x}", structure.what);
            if !is_content && !owns_no_blocks(structure, *byte) {
                let is_told = |line: &&str| {
                    let told =
                        ["Phase", "No modify", "Cannot get", "Repair may", "log and data", "        - "];
                    !told.iter().any(|it| line.starts_with(it))
                };
                let line = said.lines().find(is_told).unwrap_or_default();
                wrong.push(format!("{what}: believed, and xfs_repair says: {line}"));
            } else {
                // Groups are looked at by several threads, and what they say may be cut anywhere between words.
                let sorted = |said: &str| {
                    let mut words: Vec<_> = said.split_whitespace().map(str::to_owned).collect();
                    words.sort_unstable();
                    words
                };
                let (of_copy, of_source) = (sorted(&repair(&copy).0), sorted(&said));
                if of_copy != of_source {
                    let other = |these: &[String], others: &[String]| {
                        these.iter().find(|word| !others.contains(word)).cloned().unwrap_or_default()
                    };
                    let (copy, source) = (other(&of_copy, &of_source), other(&of_source, &of_copy));
                    wrong.push(format!(
                        "{what}: xfs_repair says of the copy: {copy}; of the source: {source}"
                    ));
                }
            }
        } else {
            whole += 1;
        }
    }
    if let Some((at, good)) = before {
        file.write_all_at(good, at).unwrap();
    }
    println!(
        "{options}: {} of {} structures' bytes flipped, seed {seed}: {whole} whole, xfs_repair finds {noticed} of the others",
        cases.len(),
        structures.len()
    );
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert!(whole > cases.len() / 4, "nothing is shown");
    assert_eq!(doubt(&path), "");
}

#[test]
fn a_flipped_bit_under_a_right_checksum_is_found_or_of_no_matter() {
    flip("-m rmapbt=1,reflink=1 -b size=1024 -d agcount=2", 64);
}

#[test]
#[ignore = "the same of the default layout: make flips"]
fn a_flipped_bit_of_the_default_layout() {
    flip("", 64);
}
