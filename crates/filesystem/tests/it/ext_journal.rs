//! Journals replayed in memory, against what e2fsck makes of a copy of the volume; and what the volume uses as long as
//! nobody replays them.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{
    Mount, check_against_dumpe2fs, debugfs, doubt, field, make, mark, open, oracle_free, populate, spans,
    text,
};
use extent::{ExtentSet, Volume};
use filesystem::{Check, State, Use};
use testkit::{run, scratch};

/// `e2fsck` says by its exit status that it changed something, which is no failure here.
fn e2fsck(volume: &Path, args: &[&str]) -> String {
    let output = Command::new("e2fsck").args(args).arg(volume).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.code().is_some_and(|code| code <= 1), "{args:?}: {said}");
    said
}

/// A copy of the volume whose journal was replayed by `e2fsck`.
fn replayed(volume: &Path) -> PathBuf {
    let copy = volume.with_extension("replayed");
    fs::copy(volume, &copy).unwrap();
    e2fsck(&copy, &["-y", "-E", "journal_only"]);
    copy
}

/// Fails unless the volume, replayed in memory, is what `e2fsck` makes of it.
fn check_replay(volume: &Path, what: &str) {
    let before = fs::read(volume).unwrap();
    let filesystem = open(volume);
    assert!(
        matches!(&filesystem.facts().state, State::JournalPending(_)),
        "{what}: {:?}",
        filesystem.facts()
    );
    // Free by the bitmaps as they are, and as they will be.
    let expected = oracle_free(&replayed(volume)).intersect(&oracle_free(volume));
    for check in [Check::Quick, Check::Full] {
        let free = spans(&*filesystem, check, before.len() as u64, Use::Free);
        assert!(free.subtract(&expected).is_empty(), "{what}, {check:?}: {:?}", free.subtract(&expected));
        check_owned(volume, &expected.subtract(&free), what);
    }
    assert!(fs::read(volume).unwrap() == before, "{what}: nothing was written");
}

/// What is kept although no bitmap has it marked has an owner, as debugfs says, which does not replay either.
fn check_owned(volume: &Path, kept: &ExtentSet<Volume>, what: &str) {
    let block_bytes = field(&run("dumpe2fs", &["-h", text(volume)]), "Block size");
    let blocks: Vec<_> = kept
        .iter()
        .flat_map(|span| span.start().get() / block_bytes..span.end().get() / block_bytes)
        .map(|block| block.to_string())
        .collect();
    let without_owner = without_owner(volume, &blocks);
    if !without_owner.is_empty() {
        let still = self::without_owner(&with_names_for_the_deleted(volume), &without_owner);
        assert!(still.is_empty(), "{what}: kept, and without an owner: {still:?}");
    }
}

/// Those of these blocks that no inode with a name has, as debugfs says.
fn without_owner(volume: &Path, blocks: &[String]) -> Vec<String> {
    let said = blocks.chunks(500).map(|some| debugfs(volume, &format!("icheck {}", some.join(" "))));
    let said: String = said.collect();
    let lines = said.lines().filter_map(|line| line.strip_suffix("<block not found>"));
    lines.map(|block| block.trim().to_owned()).collect()
}

/// A copy of the volume in which inodes that have blocks and no name are counted to have one: debugfs takes no others for owners. A transaction
/// may end between a file's last name and its blocks, and be written in its place, while what follows is in the journal alone.
fn with_names_for_the_deleted(volume: &Path) -> PathBuf {
    let copy = volume.with_extension("named");
    fs::copy(volume, &copy).unwrap();
    let inodes = field(&run("dumpe2fs", &["-h", text(volume)]), "Inode count");
    let all: Vec<_> = (1..=inodes).map(|inode| format!("stat <{inode}>")).collect();
    let said = debugfs(volume, &all.join("\n"));
    let mut inode = "";
    let mut named = Vec::new();
    for line in said.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Inode:") => inode = words.next().unwrap(),
            Some("Links:") if line.starts_with("Links: 0 ") && !line.ends_with("Blockcount: 0") => {
                named.push(format!("set_inode_field <{inode}> links_count 1"));
            }
            _ => (),
        }
    }
    debugfs(&copy, &named.join("\n"));
    copy
}

/// Fails unless all that is read of the volume without a replay is the same when its free space is overwritten.
fn check_reads_without_replay(volume: &Path, what: &str) {
    let copy = volume.with_extension("marked");
    fs::copy(volume, &copy).unwrap();
    let len_bytes = fs::metadata(volume).unwrap().len();
    mark(&copy, &spans(&*open(volume), Check::Full, len_bytes, Use::Free));
    let sums = "find . -xdev | sort; find . -type f -exec md5sum {} + 2>&1 | sort";
    let read = |volume: &Path| {
        let mount = Mount::new(volume, &volume.with_file_name("mounted"), "ro,noload");
        run("sh", &["-c", &format!("cd {} && {{ {sums}; }} 2>&1", text(&mount.at))])
    };
    let expected = read(volume);
    assert!(expected.lines().count() > 3, "{what}: {expected}");
    assert_eq!(read(&copy), expected, "{what}");
    let checked = |volume: &Path| {
        let output = Command::new("e2fsck").args(["-fn", text(volume)]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).replace(text(volume), "it")
    };
    assert_eq!(checked(&copy), checked(volume), "{what}");
}

/// A volume with a history, cut off from its power.
fn cut_off(dir: &Path, args: &str, options: &str, flags: u32) -> PathBuf {
    let contents = dir.join("contents");
    if !contents.exists() {
        populate(&contents);
    }
    let volume = dir.join("volume");
    make(&volume, 96, args, None);
    let mount = Mount::new(&volume, &dir.join("mounted"), options);
    let to = mount.at.clone();
    run("cp", &["-a", text(&contents), text(&to.join("a"))]);
    run("sync", &["-f", text(&to)]);
    fs::remove_dir_all(to.join("a/many")).unwrap();
    fs::remove_file(to.join("a/every other block")).unwrap();
    run("cp", &["-a", text(&contents), text(&to.join("b"))]);
    for name in ["b/large", "b/every other block", "b"] {
        File::open(to.join(name)).unwrap().sync_all().unwrap();
    }
    mount.shut_down(flags);
    drop(mount);
    volume
}

#[test]
fn volumes_cut_off_from_power() {
    let dir = scratch();
    for (args, options) in [
        ("-t ext4 -b 4096", "rw"),
        ("-t ext4 -b 1024", "rw"),
        ("-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^64bit", "rw,journal_checksum"),
        ("-t ext4 -b 4096", "rw,journal_async_commit,data=writeback"),
        ("-t ext4 -b 4096 -O ^metadata_csum", "rw,journal_async_commit,data=writeback"),
        ("-t ext4 -b 4096", "rw,data=journal"),
        ("-t ext3 -b 1024", "rw"),
        ("-t ext3 -b 4096", "rw,data=journal"),
        ("-t ext4 -b 4096 -O bigalloc -C 16384", "rw"),
        ("-t ext4 -b 4096 -O orphan_file", "rw"),
    ] {
        for flags in [1, 2] {
            let volume = cut_off(dir.path(), args, options, flags);
            let what = format!("{args}, mounted {options}, shutdown {flags}");
            check_replay(&volume, &what);
            if (options, flags) == ("rw", 1) {
                check_reads_without_replay(&volume, &what);
            }
        }
    }
}

/// What is free after the replay is overwritten before it: the guest, which replays too, must not miss it.
#[test]
fn nothing_free_is_missed_after_the_replay() {
    let dir = scratch();
    let volume = cut_off(dir.path(), "-t ext4 -b 4096", "rw", 1);
    let copy = volume.with_extension("marked");
    fs::copy(&volume, &copy).unwrap();
    mark(&copy, &spans(&*open(&volume), Check::Full, 96 << 20, Use::Free));
    let expected = {
        let mount = Mount::new(&volume, &dir.path().join("mounted"), "rw");
        run("sh", &["-c", &format!("cd {} && find . -type f -exec md5sum {{}} + | sort", text(&mount.at))])
    };
    let found = {
        let mount = Mount::new(&copy, &dir.path().join("mounted"), "rw");
        run("sh", &["-c", &format!("cd {} && find . -type f -exec md5sum {{}} + | sort", text(&mount.at))])
    };
    assert!(expected.lines().count() > 100);
    assert_eq!(found, expected);
    run("e2fsck", &["-fn", text(&copy)]);
}

#[test]
fn a_volume_that_is_mounted_elsewhere_is_pending() {
    let dir = scratch();
    let (volume, copy) = (dir.path().join("volume"), dir.path().join("copy"));
    make(&volume, 32, "-t ext4", None);
    {
        let mount = Mount::new(&volume, &dir.path().join("mounted"), "rw");
        fs::write(mount.at.join("file"), vec![1; 100_000]).unwrap();
        run("sync", &["-f", text(&mount.at)]);
        fs::copy(&volume, &copy).unwrap();
    }
    check_replay(&copy, "mounted");
}

/// Files deleted while open: their blocks are still theirs.
#[test]
fn orphans_keep_their_blocks() {
    let dir = scratch();
    for args in ["-t ext4 -b 4096", "-t ext4 -b 4096 -O orphan_file"] {
        let volume = dir.path().join("volume");
        make(&volume, 32, args, None);
        {
            let mount = Mount::new(&volume, &dir.path().join("mounted"), "rw");
            let name = mount.at.join("deleted");
            let file = File::create(&name).unwrap();
            file.write_all_at(&[7; 500_000], 0).unwrap();
            file.sync_all().unwrap();
            fs::remove_file(&name).unwrap();
            File::open(&mount.at).unwrap().sync_all().unwrap();
            mount.shut_down(1);
        }
        // e2fsck gives their blocks back with the replay; until then they are used.
        let filesystem = open(&volume);
        assert!(matches!(&filesystem.facts().state, State::JournalPending(_)), "{:?}", filesystem.facts());
        let free = spans(&*filesystem, Check::Full, 32 << 20, Use::Free);
        let given_back = oracle_free(&replayed(&volume)).subtract(&free).total_bytes();
        assert_eq!(given_back, 500_000u64.next_multiple_of(4096), "{args}");
        check_owned(&volume, &oracle_free(&replayed(&volume)).subtract(&free), args);
        let details = &filesystem.facts().details;
        assert!(details.iter().any(|(name, _)| *name == "orphans"), "{args}: {details:?}");
    }
}

/// The volume as a snapshot of a running guest has it: the last transactions are in the journal, and nowhere else.
fn snapshot(mount: &Mount, volume: &Path, to: &Path) {
    // Waits for the journal, which also has what was written before.
    File::open(&mount.at).unwrap().sync_all().unwrap();
    for entry in fs::read_dir(&mount.at).unwrap() {
        File::open(entry.unwrap().path()).unwrap().sync_all().unwrap();
    }
    fs::copy(volume, to).unwrap();
}

/// Makes a volume of whose files the last transactions deleted one.
fn deleted_in_the_journal(dir: &Path, args: &str, volume: &Path) {
    let mounted = dir.join("in use");
    let _ = fs::remove_file(&mounted);
    make(&mounted, 64, args, None);
    {
        let mount = Mount::new(&mounted, &dir.join("mounted"), "rw");
        for name in ["kept", "lost", "also kept", "reached"] {
            fs::write(mount.at.join(name), vec![b'x'; 3_000_000]).unwrap();
        }
    }
    let mount = Mount::new(&mounted, &dir.join("mounted"), "rw");
    fs::remove_file(mount.at.join("lost")).unwrap();
    fs::write(mount.at.join("new"), vec![b'n'; 1_000_000]).unwrap();
    snapshot(&mount, &mounted, volume);
}

/// A file that the last transactions deleted and whose blocks they gave to others is whole to whoever does not replay them, and
/// so is swap that was a file before.
#[test]
fn what_the_journal_deletes_is_kept() {
    let dir = scratch();
    for args in ["-t ext4 -b 4096", "-t ext3 -b 1024", "-t ext4 -b 1024 -O bigalloc -C 16384"] {
        let volume = dir.path().join("volume");
        // Whoever has the machine write out what it has, writes out this, too.
        let is_there = (0..20).any(|_| {
            deleted_in_the_journal(dir.path(), args, &volume);
            debugfs(&volume, "stat lost").contains("Size: 3000000")
        });
        assert!(is_there, "{args}: the deletion is in the journal alone");
        let kept = oracle_free(&replayed(&volume)).subtract(&spans(
            &*open(&volume),
            Check::Full,
            64 << 20,
            Use::Free,
        ));
        // A part of it may be overwritten by the new file.
        assert!(kept.total_bytes() >= 1_900_000, "{args}: {kept:?}");
        check_replay(&volume, args);
        check_reads_without_replay(&volume, args);
    }
}

#[test]
fn swap_in_the_place_of_a_deleted_file_is_kept() {
    let dir = scratch();
    let (mounted, volume) = (dir.path().join("in use"), dir.path().join("volume"));
    make(&mounted, 64, "-t ext4 -b 4096 -m 0", None);
    // No room but that of the file: the swap file takes its blocks.
    {
        let mount = Mount::new(&mounted, &dir.path().join("mounted"), "rw");
        fs::write(mount.at.join("old swap"), vec![0; 4 << 20]).unwrap();
        run("mkswap", &[text(&mount.at.join("old swap"))]);
        fs::write(mount.at.join("lost"), vec![b'x'; 8 << 20]).unwrap();
        let _ = fs::write(mount.at.join("filler"), vec![b'f'; 64 << 20]);
    }
    {
        let mount = Mount::new(&mounted, &dir.path().join("mounted"), "rw");
        fs::remove_file(mount.at.join("lost")).unwrap();
        File::open(&mount.at).unwrap().sync_all().unwrap();
        let swap = mount.at.join("swap");
        run("fallocate", &["-l", "6M", text(&swap)]);
        run("mkswap", &["-f", text(&swap)]);
        snapshot(&mount, &mounted, &volume);
    }
    let filesystem = open(&volume);
    assert!(matches!(&filesystem.facts().state, State::JournalPending(_)), "{:?}", filesystem.facts());
    let swap = spans(&*filesystem, Check::Full, 64 << 20, Use::Swap).total_bytes();
    assert_eq!(swap, (4 << 20) - 4096, "that which was swap before as well");
    check_reads_without_replay(&volume, "swap");
}

/// Whatever syncs all of the machine's volumes meanwhile turns fast commits into whole ones: then there are none.
fn fast_commits_are_pending(volume: &Path) -> bool {
    run("debugfs", &["-R", "logdump -a", text(volume)]).contains("tag TAIL")
}

#[test]
fn pending_fast_commits_are_doubted() {
    let volumes = (0..20).map(|_| {
        let dir = scratch();
        let volume = dir.path().join("volume");
        make(&volume, 64, "-t ext4 -b 4096 -O fast_commit", None);
        let mount = Mount::new(&volume, &dir.path().join("mounted"), "rw");
        fs::write(mount.at.join("first"), "first").unwrap();
        run("sync", &["-f", text(&mount.at)]);
        for index in 0..4 {
            let file = File::create(mount.at.join(format!("file {index}"))).unwrap();
            file.write_all_at(&[3; 20_000], 0).unwrap();
            file.sync_all().unwrap();
        }
        mount.shut_down(2);
        drop(mount);
        (dir, volume)
    });
    let (_dir, volume) = volumes
        .into_iter()
        .find(|(_, volume)| fast_commits_are_pending(volume))
        .expect("one of twenty volumes has fast commits");
    let filesystem = open(&volume);
    let state = &filesystem.facts().state;
    assert!(state.doubt().is_some_and(|why| why.contains("fast commits")), "{state:?}");
}

/// The blocks in which two volumes differ, but for the superblock and the journal.
fn differing(volume: &Path, other: &Path, block_bytes: usize) -> Vec<u64> {
    let (one, two) = (fs::read(volume).unwrap(), fs::read(other).unwrap());
    let blocks = one.chunks(block_bytes).zip(two.chunks(block_bytes)).enumerate();
    blocks
        .filter(|(index, (one, two))| index * block_bytes > 1024 && one != two)
        .map(|pair| pair.0 as u64)
        .collect()
}

/// Two volumes, of which the second is the first with some more files; and the blocks that tell them apart,
/// with their contents in a file.
struct Pair {
    one: PathBuf,
    two: PathBuf,
    blocks: Vec<u64>,
    file: PathBuf,
}

const BLOCK_BYTES: usize = 1024;

impl Pair {
    fn new(dir: &Path, args: &str) -> Self {
        let (one, two, file) = (dir.join("one"), dir.join("two"), dir.join("blocks"));
        make(&one, 32, &format!("-b 1024 {args}"), None);
        fs::copy(&one, &two).unwrap();
        let more = dir.join("more");
        fs::write(&more, (0..300_000u32).map(|at| (at / 5) as u8 | 1).collect::<Vec<_>>()).unwrap();
        debugfs(&two, &format!("mkdir d\nwrite {} file\nwrite {} d/again", text(&more), text(&more)));
        let blocks = differing(&one, &two, BLOCK_BYTES);
        let contents = fs::read(&two).unwrap();
        let journaled: Vec<u8> = blocks
            .iter()
            .flat_map(|block| contents[*block as usize * BLOCK_BYTES..][..BLOCK_BYTES].to_vec())
            .collect();
        fs::write(&file, journaled).unwrap();
        Self { one, two, blocks, file }
    }

    fn list(&self) -> String {
        self.blocks.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
    }
}

const JOURNALS: &[&str] = &["", "-c -v 2", "-c -v 3"];

/// Transactions written by debugfs: the first volume, replayed, is the second.
#[test]
fn journals_of_every_kind_of_checksum() {
    let dir = scratch();
    for args in
        ["-t ext4 -O ^resize_inode", "-t ext4 -O ^64bit", "-t ext3", "-t ext4 -O ^metadata_csum,uninit_bg"]
    {
        let pair = Pair::new(dir.path(), args);
        let expected = oracle_free(&pair.two);
        let unchanged = oracle_free(&pair.one);
        assert_ne!(expected, unchanged);
        for journal in JOURNALS {
            let what = format!("{args}, journal {journal}");
            let volume = dir.path().join("volume");
            let (list, file) = (pair.list(), text(&pair.file));
            fs::copy(&pair.one, &volume).unwrap();
            debugfs(&volume, &format!("jo {journal}\njw -b {list} {file}\njc"));
            check_replay(&volume, &what);
            let free = spans(&*open(&volume), Check::Full, 32 << 20, Use::Free);
            assert_eq!(free, expected.intersect(&unchanged), "{what}");

            fs::copy(&pair.one, &volume).unwrap();
            debugfs(&volume, &format!("jo {journal}\njw -b {list} {file}\njw -r {list}\njc"));
            let dump = run("dumpe2fs", &["-h", text(&volume)]);
            if dump.split_whitespace().any(|word| word == "journal_checksum") {
                // debugfs sums a transaction of revocations alone in another way than the kernel does, and
                // than e2fsck, which takes it for corrupt.
                let copy = volume.with_extension("checked");
                fs::copy(&volume, &copy).unwrap();
                assert!(e2fsck(&copy, &["-y", "-E", "journal_only"]).contains("was corrupt"), "{what}");
                assert!(doubt(&volume).is_some_and(|why| why.contains("checksum")), "{what}");
                continue;
            }
            check_replay(&volume, &format!("{what}, revoked"));
            let free = spans(&*open(&volume), Check::Full, 32 << 20, Use::Free);
            assert_eq!(free, unchanged, "{what}, revoked");

            fs::copy(&pair.one, &volume).unwrap();
            debugfs(&volume, &format!("jo {journal}\njw -r {list}\njw -b {list} {file}\njc"));
            check_replay(&volume, &format!("{what}, revoked before"));
            let free = spans(&*open(&volume), Check::Full, 32 << 20, Use::Free);
            assert_eq!(free, expected.intersect(&unchanged), "{what}, revoked before");
        }
    }
}

/// Where the journal's blocks lie.
fn journal_offsets(volume: &Path) -> Vec<u64> {
    let blocks = run("debugfs", &["-R", "blocks <8>", text(volume)]);
    // A leading block of the extent tree or of pointers is listed, too: the journal starts with its magic.
    let bytes = fs::read(volume).unwrap();
    let all = blocks.split_whitespace().map(|block| block.parse::<u64>().unwrap() * BLOCK_BYTES as u64);
    all.skip_while(|at| bytes[*at as usize..][..4] != [0xc0, 0x3b, 0x39, 0x98]).collect()
}

fn flip(volume: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(volume).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
}

#[test]
fn a_damaged_journal_is_doubted() {
    let dir = scratch();
    let pair = Pair::new(dir.path(), "-t ext4 -O ^64bit");
    for version in [2, 3] {
        let volume = dir.path().join("volume");
        let good = dir.path().join("good");
        fs::copy(&pair.one, &good).unwrap();
        let (list, file) = (pair.list(), text(&pair.file));
        debugfs(&good, &format!("jo -c -v {version}\njw -b {list} {file}\njw -r 9000\njc"));
        assert_eq!(doubt(&good), None);
        // The superblock, a descriptor block, a copy.
        let journal = journal_offsets(&good);
        for (block, byte, what) in [(0, 0x30, "checksum"), (1, 200, "checksum"), (2, 100, "checksum")] {
            fs::copy(&good, &volume).unwrap();
            flip(&volume, journal[block] + byte);
            let why =
                doubt(&volume).unwrap_or_else(|| panic!("block {block} of version {version} changed unseen"));
            assert!(why.contains(what), "version {version}, block {block}: {why}");
        }
        // Without its commit block nothing is pending.
        let bytes = fs::read(&good).unwrap();
        let is_commit = |at: &u64| bytes[*at as usize..][..8] == [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2];
        let commit = journal.iter().copied().find(is_commit);
        fs::copy(&good, &volume).unwrap();
        flip(&volume, commit.unwrap() + 100);
        assert!(doubt(&volume).is_some_and(|why| why.contains("checksum")), "version {version}: commit");
        fs::copy(&good, &volume).unwrap();
        flip(&volume, commit.unwrap());
        let free = spans(&*open(&volume), Check::Full, 32 << 20, Use::Free);
        assert_eq!(free, oracle_free(&pair.one), "version {version}: no commit block");
    }
}

/// However broken the state before the replay is: an answer of the right kind, soon.
#[test]
fn damaged_volumes_that_are_pending_end() {
    let dir = scratch();
    for args in ["-t ext4 -O ^metadata_csum,uninit_bg", "-t ext3", "-t ext4 -O ^64bit"] {
        let pair = Pair::new(dir.path(), args);
        debugfs(&pair.one, &format!("jo\njw -b {} {}\njc", pair.list(), text(&pair.file)));
        let good = fs::read(&pair.one).unwrap();
        // Where the two volumes differ, what the journal replaces is found; the superblock lies before.
        let places: Vec<usize> = pair
            .blocks
            .iter()
            .flat_map(|block| (0..64).map(|at| *block as usize * BLOCK_BYTES + at * 16))
            .chain((0..1024).step_by(4).map(|at| 1024 + at))
            .collect();
        let (mut state, mut understood) = (7u64, 0);
        let mut bytes = good.clone();
        for _ in 0..100 {
            for _ in 0..8 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = places[(state >> 33) as usize % places.len()] + (state >> 20) as usize % 4;
                bytes[at] ^= 1 << ((state >> 60) & 7);
            }
            let source: filesystem::Source = std::sync::Arc::new(block::Memory::new(bytes.clone()));
            let Some(filesystem) = filesystem::ext::open(&source).unwrap() else { continue };
            let whole = extent::Span::from_zero(good.len() as u64);
            let answer = filesystem.used_map(Check::Full).and_then(|map| map.uses(whole));
            assert!(!answer.as_ref().is_err_and(|error| error.kind() == block::ErrorKind::Io), "{answer:?}");
            if answer.is_err() {
                bytes.clone_from(&good);
            }
            understood += u32::from(answer.is_ok());
        }
        // What the journal replaces is right after the replay, whatever it was before.
        assert!(understood > 20, "{args}: {understood}");
    }
}

#[test]
fn odd_journals_are_doubted() {
    let dir = scratch();
    let pair = Pair::new(dir.path(), "-t ext4 -O ^metadata_csum,uninit_bg,^64bit");
    let (list, file) = (pair.list(), text(&pair.file));
    let good = dir.path().join("good");
    fs::copy(&pair.one, &good).unwrap();
    debugfs(&good, &format!("jo\njw -b {list} {file}\njc"));
    let volume = dir.path().join("volume");
    for (at, bytes, reason) in [
        (0x0c, 4096u32.to_be_bytes(), "blocksize"),
        (0x10, u32::MAX.to_be_bytes(), "maxlen"),
        (0x14, 0u32.to_be_bytes(), "first"),
        (0x1c, u32::MAX.to_be_bytes(), "start"),
        (0x20, (-5i32).to_be_bytes(), "errno is -5"),
        (0x28, 0x8000u32.to_be_bytes(), "incompat feature 0x8000"),
        (0x2c, 1u32.to_be_bytes(), "ro_compat feature 0x1"),
    ] {
        fs::copy(&good, &volume).unwrap();
        let file = OpenOptions::new().write(true).open(&volume).unwrap();
        file.write_all_at(&bytes, journal_offsets(&volume)[0] + at).unwrap();
        let why = doubt(&volume).unwrap_or_default();
        assert!(why.contains(reason), "{at:#x}: {why}");
    }
    fs::copy(&good, &volume).unwrap();
    debugfs(&volume, "feature -needs_recovery");
    let why = doubt(&volume).unwrap_or_default();
    assert!(why.contains("not marked as pending"), "{why}");
    fs::copy(&pair.one, &volume).unwrap();
    debugfs(&volume, "feature needs_recovery");
    assert_eq!(doubt(&volume), None, "an empty journal");
    check_against_dumpe2fs(&volume, "an empty journal");
}

/// A journal with a hole is one in which the kernel stops, and which e2fsck removes if it is mapped by pointers; of extents it does not
/// look for holes.
#[test]
fn a_journal_with_a_hole_is_doubted() {
    let dir = scratch();
    for args in ["-t ext4", "-t ext3"] {
        let pair = Pair::new(dir.path(), args);
        let volume = dir.path().join("volume");
        fs::copy(&pair.one, &volume).unwrap();
        assert_eq!(doubt(&volume), None, "{args}");
        debugfs(&volume, "punch <8> 20 20");
        if args == "-t ext3" {
            let output = Command::new("e2fsck").arg("-fn").arg(&volume).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("has an invalid journal"), "{said}");
        }
        let why = doubt(&volume).unwrap_or_default();
        assert!(why.starts_with("ext journal inode: block is 20, expected allocated"), "{args}: {why}");
    }
}

/// A copy that starts with the journal's magic is kept with zeros in its place.
#[test]
fn escaped_blocks_are_restored() {
    let dir = scratch();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    make(&one, 32, "-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg,^flex_bg -g 4096", None);
    fs::copy(&one, &two).unwrap();
    // Group 2 has no superblock: its bitmap starts with its own metadata; give it the bits of the magic.
    let dump = run("dumpe2fs", &[text(&one)]);
    let group = &dump[dump.find("\nGroup 2: ").unwrap()..];
    let start = group.find("Block bitmap at ").unwrap() + 16;
    let bitmap: u64 = group[start..].split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    let mut block = fs::read(&one).unwrap()[bitmap as usize * 1024..][..1024].to_vec();
    block[..4].copy_from_slice(&[0xc0, 0x3b, 0x39, 0x98]);
    OpenOptions::new().write(true).open(&two).unwrap().write_all_at(&block, bitmap * 1024).unwrap();
    let file = dir.path().join("block");
    fs::write(&file, &block).unwrap();
    debugfs(&one, &format!("jo\njw -b {bitmap} {}\njc", text(&file)));
    let free = |volume: &Path| spans(&*open(volume), Check::Quick, 32 << 20, Use::Free);
    assert_eq!(free(&one), oracle_free(&replayed(&one)).intersect(&oracle_free(&one)));
    assert_eq!(oracle_free(&replayed(&one)), free(&two));
}
