//! Btrfs of several devices against mkfs.btrfs and `btrfs check`: what makes it whole.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{source, text};
use block::{Error, ErrorKind};
use filesystem::btrfs::{Device, Joined, join};
use filesystem::{Catalog, Check, State};
use tempfile::TempDir;
use testkit::loops::{Loops, Part};
use testkit::mounted::Mounted;
use testkit::{run, scratch};

const SUPERBLOCK_AT: u64 = 64 << 10;
const NODE_BYTES: usize = 4096;

/// Devices of 128 MiB and more each, with files.
struct Scene {
    dir: TempDir,
    count: u64,
}

impl Scene {
    fn new(count: u64, options: &str) -> Self {
        let scene = Self { dir: scratch(), count };
        for (path, number) in scene.paths().iter().zip(0..) {
            File::create(path).unwrap().set_len((128 + 24 * number) << 20).unwrap();
        }
        let options: Vec<_> = options.split_whitespace().collect();
        run("mkfs.btrfs", &[&["-q", "-f"], &*options, &*scene.attach().names()].concat());
        let loops = scene.attach();
        let mounted = Mounted::btrfs_of(&loops, "noatime");
        for index in 0..40_usize {
            fs::write(mounted.path().join(format!("file {index}")), vec![7; index * 20_000]).unwrap();
        }
        drop(mounted);
        scene
    }

    fn paths(&self) -> Vec<PathBuf> {
        (0..self.count).map(|number| self.dir.path().join(format!("device {number}"))).collect()
    }

    fn attach(&self) -> Loops {
        let paths = self.paths();
        let parts = paths.iter().map(|file| Part { file, start_bytes: 0, len_bytes: 0 });
        Loops::attach(&parts.collect::<Vec<_>>())
    }

    fn join(&self) -> Result<Joined, Error> {
        join_of(&self.paths())
    }

    /// Whether all devices together are taken by what is used.
    fn is_used_only(&self) -> bool {
        self.join().and_then(|joined| joined.filesystem.used_map(Check::Full)).is_ok()
    }

    /// What `btrfs check` says of it, and whether it is content.
    fn check(&self) -> (String, bool) {
        let loops = self.attach();
        let output = loops.seen_alone(&["btrfs", "check", "--readonly", loops.names()[0]]);
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (said, output.status.success())
    }

    fn dump(&self, args: &[&str]) -> String {
        let loops = self.attach();
        loops.btrfs(&[&["inspect-internal"], args, &[loops.names()[0]]].concat())
    }

    /// Where the blocks of the trees of chunks and of devices lie: on which device, and where there. Metadata are `single`.
    fn blocks(&self) -> Vec<(usize, u64)> {
        let chunks = self.dump(&["dump-tree", "-t", "chunk"]);
        let mut mapped: Vec<(u64, u64, usize, u64)> = Vec::new();
        for line in chunks.lines() {
            let words: Vec<_> = line.split_whitespace().map(|word| word.trim_end_matches(')')).collect();
            let behind = |name: &str| -> Option<u64> {
                words.iter().position(|word| *word == name).and_then(|at| words[at + 1].parse().ok())
            };
            if let Some(logical) = behind("CHUNK_ITEM") {
                mapped.push((logical, 0, 0, 0));
            } else if let (Some(len), Some(_)) = (behind("length"), behind("owner")) {
                mapped.last_mut().unwrap().1 = len;
            } else if line.contains("stripe 0 devid") {
                let last = mapped.last_mut().unwrap();
                (last.2, last.3) = (behind("devid").unwrap() as usize - 1, behind("offset").unwrap());
            }
        }
        let mut blocks = Vec::new();
        for tree in ["chunk", "dev"] {
            for line in self.dump(&["dump-tree", "-t", tree]).lines() {
                let mut words = line.split(' ');
                if !matches!(words.next(), Some("leaf" | "node")) {
                    continue;
                }
                let Some(logical) = words.next().and_then(|word| word.parse::<u64>().ok()) else { continue };
                let chunk = mapped.iter().find(|chunk| (chunk.0..chunk.0 + chunk.1).contains(&logical));
                let (start, _, device, at) = chunk.unwrap();
                blocks.push((*device, logical - start + at));
            }
        }
        blocks.sort_unstable();
        blocks.dedup();
        assert!(blocks.len() >= 2, "{chunks}");
        blocks
    }
}

fn join_of(paths: &[PathBuf]) -> Result<Joined, Error> {
    let devices = paths.iter().map(|path| Device::read(&source(path)).unwrap().expect("a superblock"));
    join(&devices.collect::<Vec<_>>())
}

fn reason(paths: &[PathBuf], kind: ErrorKind) -> String {
    let error = join_of(paths).err().expect("a doubt");
    assert_eq!(error.kind(), kind, "{error}");
    error.to_string()
}

/// Changes a part of a file, whose first four bytes of 32 become the checksum of the rest.
fn change(path: &Path, at: u64, len: usize, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).unwrap();
    let before = bytes.clone();
    change(&mut bytes);
    let sum = crc32c::crc32c(&bytes[32..]);
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
    file.write_all_at(&bytes, at).unwrap();
    before
}

fn restore(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[test]
fn devices_that_do_not_belong_together_are_refused() {
    let scene = Scene::new(3, "-d raid0 -m raid1");
    let paths = scene.paths();
    let joined = scene.join().unwrap();
    assert_eq!(joined.filesystem.facts().state, State::Clean);
    assert_eq!(Catalog::read(&*joined.filesystem).unwrap().doubts(), []);
    assert!(scene.is_used_only());
    // Some are missing, or not in the order of their numbers, or one of them twice.
    assert!(reason(&paths[..2], ErrorKind::Corrupt).contains("num_devices"));
    let (one, two, three) = (paths[0].clone(), paths[1].clone(), paths[2].clone());
    for wrong in
        [vec![two.clone(), one.clone(), three.clone()], vec![one.clone(), one.clone(), three.clone()]]
    {
        assert!(reason(&wrong, ErrorKind::Corrupt).contains("numbers and UUIDs"));
    }
    // One of them as it was before the last commit.
    let old = scene.dir.path().join("old");
    fs::copy(&two, &old).unwrap();
    let loops = scene.attach();
    let mounted = Mounted::btrfs_of(&loops, "noatime");
    fs::write(mounted.path().join("later"), "later").unwrap();
    drop(mounted);
    drop(loops);
    assert!(scene.is_used_only());
    let why = reason(&[one.clone(), old, three.clone()], ErrorKind::Refused);
    assert!(why.contains("of different age"), "{why}");
    // A device of another file system that says that it is this one's.
    let other = Scene::new(3, "-d raid0 -m raid1");
    let mut fsid = [0; 16];
    File::open(&one).unwrap().read_exact_at(&mut fsid, SUPERBLOCK_AT + 32).unwrap();
    change(&other.paths()[1], SUPERBLOCK_AT, 4096, |bytes| {
        bytes[32..48].copy_from_slice(&fsid);
        // That of its device item.
        bytes[201 + 82..201 + 98].copy_from_slice(&fsid);
    });
    assert!(join_of(&[one, other.paths()[1].clone(), three]).is_err());
}

/// Devices come and go: numbers have gaps then, and that one was replaced is said by an item.
#[test]
fn devices_that_were_added_removed_and_replaced_are_read() {
    let scene = Scene::new(2, "-d single -m single -n 4096");
    let added = ["third", "fourth"].map(|name| scene.dir.path().join(name));
    added.iter().for_each(|path| File::create(path).unwrap().set_len(200 << 20).unwrap());
    let part = |file| Part { file, start_bytes: 0, len_bytes: 0 };
    let new = Loops::attach(&[part(&added[0]), part(&added[1])]);
    let old = scene.attach();
    let mounted = Mounted::btrfs_of(&old, "noatime");
    let at = text(mounted.path());
    run("btrfs", &["device", "add", "-f", new.names()[0], at]);
    run("btrfs", &["device", "remove", old.names()[0], at]);
    run("btrfs", &["replace", "start", "-B", "-f", "2", new.names()[1], at]);
    run("btrfs", &["balance", "start", "-f", "-dconvert=raid1", "-mconvert=single", at]);
    drop(mounted);
    drop((new, old));
    let devices = [added[1].clone(), added[0].clone()];
    let joined = join_of(&devices).unwrap();
    assert!(joined.filesystem.used_map(Check::Full).is_ok());
    let numbers = devices.clone().map(|path| Device::read(&source(&path)).unwrap().unwrap().number());
    assert_eq!(numbers, [2, 3]);
    // As if the replacement had not ended: its state, behind four words.
    let loops = Loops::attach(&[part(&devices[0]), part(&devices[1])]);
    let dump = |tree| run("btrfs", &["inspect-internal", "dump-tree", "-t", tree, loops.names()[0]]);
    assert!(dump("dev").contains("DEV_REPLACE"), "{}", dump("dev"));
    drop(loops);
    let mut changed = 0;
    for (path, (at, offset)) in
        devices.iter().flat_map(|path| replace_items(path).into_iter().map(move |at| (path, at)))
    {
        let before = change(path, at, NODE_BYTES, |bytes| bytes[offset + 32] = 1);
        changed +=
            usize::from(join_of(&devices).is_err_and(|error| error.to_string().contains("being replaced")));
        restore(path, at, &before);
    }
    assert!(changed > 0);
    assert!(join_of(&devices).is_ok());
}

#[test]
fn a_balance_that_is_paused_is_whole() {
    let scene = Scene::new(2, "-d single -m single");
    let loops = scene.attach();
    let mounted = Mounted::btrfs_of(&loops, "noatime");
    let at = text(mounted.path());
    for index in 0..100 {
        fs::write(mounted.path().join(format!("large {index}")), vec![9; 1 << 20]).unwrap();
    }
    run("sync", &["-f", at]);
    // It stops at the end of a chunk, and may have ended before.
    let is_paused = (0..20).any(|_| {
        run("btrfs", &["balance", "start", "--bg", "--full-balance", at]);
        Command::new("btrfs").args(["balance", "pause", at]).output().unwrap().status.success()
    });
    assert!(is_paused, "none of 20 balances was paused");
    drop((mounted, loops));
    let why = reason(&scene.paths(), ErrorKind::Refused);
    assert!(why.contains("a balance of it was not finished"), "{why}");
    let loops = scene.attach();
    let mounted = Mounted::btrfs_of(&loops, "noatime,skip_balance");
    run("btrfs", &["balance", "cancel", text(mounted.path())]);
    drop((mounted, loops));
    assert!(scene.is_used_only());
}

/// Leaves of device trees that have an item of a replacement: where they lie, and where in each that item's data are.
fn replace_items(path: &Path) -> Vec<(u64, usize)> {
    let bytes = fs::read(path).unwrap();
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let mut found = Vec::new();
    for (index, block) in bytes.chunks_exact(NODE_BYTES).enumerate() {
        // Of the tree 4, at level 0, with a sound checksum.
        if number(&block[88..96]) != 4
            || block[100] != 0
            || number(&block[..4]) != crc32c::crc32c(&block[32..]).into()
        {
            continue;
        }
        let count = usize::try_from(number(&block[96..100])).unwrap();
        for item in block[101..].chunks_exact(25).take(count).filter(|item| item[8] == 250) {
            let offset = usize::try_from(number(&item[17..21])).unwrap();
            found.push(((index * NODE_BYTES) as u64, 101 + offset));
        }
    }
    found
}

#[test]
fn what_is_not_read_is_whole_with_the_reason() {
    for (profile, what) in [("raid5", "RAID5"), ("raid6", "RAID6")] {
        let scene = Scene::new(3, &format!("-d {profile} -m raid1"));
        let why = reason(&scene.paths(), ErrorKind::Unsupported);
        assert!(why.contains(&format!("profile {what}")), "{why}");
    }
}

/// Every bit of what a superblock says of its device, and of all devices, under a right checksum.
#[test]
fn a_flipped_bit_of_a_device_in_its_superblock_is_found() {
    let scene = Scene::new(2, "-d raid1 -m raid1");
    let paths = scene.paths();
    // The device item without what nothing is decided by: alignment, type, generation, group, speed.
    let fields = [(201, 24), (201 + 66, 32), (112, 24), (72, 24)];
    for (at, len) in fields {
        for bit in at * 8..(at + len) * 8 {
            let before = change(&paths[1], SUPERBLOCK_AT, 4096, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
            assert!(!scene.is_used_only(), "bit {bit}");
            restore(&paths[1], SUPERBLOCK_AT, &before);
        }
    }
    assert!(scene.is_used_only());
}

/// Bits of the items of devices, chunks, stripes and extents of devices, under checksums that are right: what `btrfs check` calls wrong is
/// whole.
#[test]
fn a_flipped_bit_of_devices_and_chunks_is_found_if_the_checker_finds_it() {
    let scene = Scene::new(3, "-d raid0 -m single -n 4096");
    let (paths, blocks) = (scene.paths(), scene.blocks());
    assert!(scene.is_used_only());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut theirs, mut ours, tried) = (0, 0, 400);
    for _ in 0..tried {
        let (device, at) = blocks[usize::try_from(random.below(blocks.len() as u64)).unwrap()];
        let mut bit = 0;
        let before = change(&paths[device], at, NODE_BYTES, |bytes| {
            let count = u64::from(u32::from_le_bytes(bytes[96..100].try_into().unwrap()));
            // In the items, or in what they are of, which fills the block from its end.
            let last = 101 + (count - 1) as usize * 25 + 17;
            let data = u64::from(u32::from_le_bytes(bytes[last..last + 4].try_into().unwrap())) + 101;
            bit = match random.below(4) {
                0 => 101 * 8 + random.below(count * 25 * 8),
                _ => data * 8 + random.below((NODE_BYTES as u64 - data) * 8),
            };
            bytes[usize::try_from(bit / 8).unwrap()] ^= 1 << (bit % 8);
        });
        let (said, is_clean) = scene.check();
        let is_found = !scene.is_used_only();
        assert!(is_found || is_clean, "bit {bit} of the block at {at:#x} of device {device}: {said}");
        (theirs, ours) = (theirs + u32::from(!is_clean), ours + u32::from(is_found));
        restore(&paths[device], at, &before);
    }
    println!("of {tried} bits the checker finds {theirs}; {ours} make the volume whole");
    assert!(theirs > 100);
    assert!(scene.is_used_only());
}
