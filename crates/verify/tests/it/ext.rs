//! The check of ext2/3/4 against volumes of the real tools, and against each kind of damage to one.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::support;
use crate::support::{source, text};
use block::ErrorKind;
use testkit::mounted::Mounted;
use testkit::{mke2fs, noise, run, scratch};

const KINDS: &[&str] = &[
    "-t ext4 -b 4096",
    "-t ext4 -b 1024 -O ^metadata_csum,^64bit,uninit_bg,^flex_bg",
    "-t ext4 -b 2048 -O ^metadata_csum,^uninit_bg",
    "-t ext4 -b 4096 -O bigalloc -C 16384",
    "-t ext4 -b 1024 -O bigalloc -C 8192",
    "-t ext4 -b 4096 -I 512 -O inline_data,ea_inode,large_dir",
    "-t ext4 -b 1024 -O ^extent,^64bit",
    "-t ext4 -b 4096 -O ^flex_bg -g 2048",
    "-t ext4 -b 4096 -O ^dir_index,^filetype,meta_bg,^resize_inode",
    "-t ext4 -b 4096 -O orphan_file,fast_commit,metadata_csum_seed,sparse_super2",
    "-t ext4 -b 1024 -O quota,project,mmp",
    "-t ext3 -b 1024 -I 128",
    "-t ext2 -b 1024",
    "-t ext2 -b 4096 -E revision=0",
];

fn make(volume: &Path, args: &str) {
    File::create(volume).unwrap().set_len(32 << 20).unwrap();
    mke2fs(
        &[&["-q", "-F", "-N", "4096"], &args.split(' ').collect::<Vec<_>>()[..], &[text(volume)]].concat(),
    );
    // Quotas are not built into every kernel: that one stays as mke2fs made it.
    if args.contains("quota") {
        return;
    }
    let mounted = Mounted::ext(volume, "nodelalloc");
    let root = mounted.path();
    fs::write(root.join("plain"), noise(1, 20_000)).unwrap();
    fs::write(root.join("other"), noise(2, 20_000)).unwrap();
    fs::hard_link(root.join("plain"), root.join("another name")).unwrap();
    let pieces = File::create(root.join("pieces")).unwrap();
    for index in 0..900 {
        pieces.write_all_at(&noise(index, 4096), index * 8192).unwrap();
    }
    drop(pieces);
    fs::create_dir_all(root.join("a/b")).unwrap();
    std::os::unix::fs::symlink("plain", root.join("short")).unwrap();
    std::os::unix::fs::symlink("x".repeat(200), root.join("long")).unwrap();
    run("mkfifo", &[text(&root.join("fifo"))]);
    fs::create_dir(root.join("large")).unwrap();
    for index in 0..300 {
        fs::write(root.join(format!("large/a name that is rather long, so that blocks fill {index}")), "x")
            .unwrap();
    }
    for index in (0..300).step_by(3) {
        fs::remove_file(root.join(format!("large/a name that is rather long, so that blocks fill {index}")))
            .unwrap();
    }
    for name in ["plain", "other"] {
        run("setfattr", &["-n", "user.shared", "-v", &"same".repeat(150), text(&root.join(name))]);
    }
    if args.contains("ea_inode") {
        run("setfattr", &["-n", "user.huge", "-v", &"y".repeat(9000), text(&root.join("a"))]);
    }
}

/// What e2fsck says: whether it is clean, and whether it finds trees of extents with room to spare.
fn e2fsck(volume: &Path) -> (bool, u64) {
    let output = Command::new("e2fsck").args(["-fn", text(volume)]).output().expect("e2fsck");
    let said = String::from_utf8_lossy(&output.stdout);
    let wide =
        said.lines().filter(|line| line.contains("could be narrower") || line.contains("could be shorter"));
    (output.status.success(), wide.count() as u64)
}

#[test]
fn volumes_of_the_real_tools_pass_as_they_say() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    for args in KINDS {
        make(&volume, args);
        let (is_clean, wide) = e2fsck(&volume);
        assert!(is_clean, "{args}");
        let report =
            verify::volume::check(&source(&volume)).unwrap_or_else(|error| panic!("{args}: {error}"));
        assert_eq!(report.wide_trees, wide, "{args}");
        let dump = run("dumpe2fs", &["-h", text(&volume)]);
        let field = |name: &str| -> u64 {
            let line = dump.lines().find(|line| line.starts_with(name)).unwrap();
            line.split(':').nth(1).unwrap().trim().parse().unwrap()
        };
        let unit = field("Block size");
        let first = field("First block");
        let used = (field("Block count") - first - field("Free blocks")) * unit;
        // The last cluster may be cut by the end.
        assert!(
            report.used_bytes >= used && report.used_bytes - used < 64 << 10,
            "{args}: {report:?}, {used} used"
        );
    }
}

/// What is damaged (by debugfs, with its `ssv`, `sif` and so on), what the check says of it, and whether e2fsck sees it.
/// `{block}` is a block of the file `pieces`, `{free}` a free one, `{dir}` the first of the large directory, `{tree}` one of
/// the extent tree of `pieces`, `{xattr}` one of extended attributes.
const DAMAGES: &[(&str, &str, &str, bool)] = &[
    ("a used block marked free", "freeb {block}", "is clear, expected set: it has an owner", true),
    ("a free block marked used", "setb {free}", "is set, expected clear: it has no owner", true),
    ("an inode in use marked free", "freei plain", "free_inodes_count is", true),
    ("an inode marked used that is not", "seti <2000>", "itable_unused is", true),
    ("two owners", "sif other block[5] {block}", "which has an owner, expected blocks of its own", true),
    ("a block past the end", "sif other block[5] 0x7fffffff", "within the volume", true),
    ("an extent of no blocks", "sif other block[4] 0", "extent is 0 blocks", true),
    ("a wrong magic of a tree", "sif other block[0] 0x1234", "magic of the extent tree's root", true),
    (
        "more entries than room",
        "sif other block[0] 0x0009f30a",
        "entries of the extent tree's root is 9",
        true,
    ),
    ("a tree of another depth", "sif pieces block[1] 0x00020004", "depth of the extent tree's", true),
    ("an index that begins too late", "sif pieces block[6] 0x0000ffff", "of its extent tree", true),
    ("a count of blocks", "sif plain blocks 64", "blocks is 64 sectors, expected 48", true),
    ("a count of links", "sif plain links_count 5", "names in directories is 3 fewer", true),
    ("a directory's count of links", "sif a links_count 7", "links_count is 7, expected 3", true),
    ("a type in a directory", "sif fifo mode 0100644", "type in its directory is 5, expected 1", true),
    ("a name of a free inode", "cd a\nln <3000> ghost", "names in directories is 1 more", true),
    ("a lost name", "unlink other", "names in directories is 1 fewer", true),
    ("a parent that is not", "cd a/b\nunlink ..\nln <2> x\n", "ext directory", true),
    (
        "free blocks of the superblock",
        "ssv free_blocks_count 77",
        "ext superblock: free_blocks_count is 77",
        false,
    ),
    (
        "free inodes of the superblock",
        "ssv free_inodes_count 77",
        "ext superblock: free_inodes_count is 77",
        false,
    ),
    (
        "free blocks of a group",
        "set_bg 0 free_blocks_count 77\nset_bg 0 checksum calc",
        "free_blocks_count is 77",
        true,
    ),
    (
        "free inodes of a group",
        "set_bg 0 free_inodes_count 77\nset_bg 0 checksum calc",
        "free_inodes_count is 77",
        true,
    ),
    (
        "directories of a group",
        "set_bg 0 used_dirs_count 9\nset_bg 0 checksum calc",
        "used_dirs_count is 9",
        true,
    ),
    (
        "inodes never used of a group",
        "set_bg 0 itable_unused 4090\nset_bg 0 checksum calc",
        "itable_unused is 4090",
        true,
    ),
    ("a descriptor's checksum", "set_bg 0 checksum 0x1234", "ext group descriptor 0: checksum", false),
    (
        "a bitmap's checksum",
        "set_bg 0 block_bitmap_csum 0x1234\nset_bg 0 checksum calc",
        "ext block bitmap of group 0: checksum",
        true,
    ),
    ("an unclean state", "ssv state 0", "state is 0x0", false),
    ("an error noted", "ssv state 3", "state is 0x3", false),
    ("a journal to be replayed", "feature needs_recovery", "journal is to be replayed", false),
    ("an orphan", "ssv last_orphan 20", "last_orphan is 20", false),
];

/// Damages of what does not tell who owns what.
const NOT_OF_OWNERS: [&str; 10] = [
    "a count of blocks",
    "a count of links",
    "a directory's count of links",
    "a type in a directory",
    "a name of a free inode",
    "a lost name",
    "a parent that is not",
    "a byte of a directory",
    "a byte of a hash tree",
    "a byte of extended attributes",
];

#[test]
fn each_kind_of_damage_is_named() {
    let dir = scratch();
    let (good, volume) = (dir.path().join("good"), dir.path().join("volume"));
    make(&good, "-t ext4 -b 4096");
    verify::volume::check(&source(&good)).unwrap();
    let ask = |command: &str| run("debugfs", &["-R", command, text(&good)]);
    let first_number = |text: &str| -> u64 {
        text.split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty()).unwrap().parse().unwrap()
    };
    let block = first_number(&ask("bmap pieces 0"));
    let free = first_number(ask("ffb").rsplit(':').next().unwrap());
    let directory = first_number(&ask("bmap large 1"));
    let stat = ask("stat pieces");
    let tree = first_number(stat.split("(ETB0):").nth(1).expect("a tree"));
    let xattr = first_number(ask("stat plain").split("File ACL:").nth(1).unwrap());
    let place = ask("imap plain");
    let offset = place.trim().rsplit("0x").next().unwrap();
    let inode = first_number(place.split("at block").nth(1).unwrap()) * 4096
        + u64::from_str_radix(offset, 16).unwrap()
        + 8;
    let mut failures = Vec::new();
    let mut judge = |what: &str, wanted: &str, is_seen: bool| {
        match verify::volume::check(&source(&volume)) {
            Ok(_) => failures.push(format!("{what}: not found")),
            Err(error) if error.kind() != ErrorKind::Corrupt => failures.push(format!("{what}: {error:?}")),
            Err(error) if !error.to_string().contains(wanted) => failures.push(format!("{what}: {error}")),
            Err(_) => {}
        }
        failures.extend(support::judge_owners(&source(&volume), what, wanted, &NOT_OF_OWNERS));
        if e2fsck(&volume).0 == is_seen {
            failures.push(format!("{what}: seen by e2fsck: {}", !is_seen));
        }
    };
    for (what, commands, wanted, is_seen) in DAMAGES {
        fs::copy(&good, &volume).unwrap();
        let script = dir.path().join("script");
        let commands = commands.replace("{block}", &block.to_string()).replace("{free}", &free.to_string());
        fs::write(&script, commands).unwrap();
        run("debugfs", &["-w", "-f", text(&script), text(&volume)]);
        judge(what, wanted, *is_seen);
    }
    // One byte each.
    for (what, at, wanted) in [
        ("a byte of a directory", directory * 4096 + 9, "ext directory"),
        ("a byte of a hash tree", first_number(&ask("bmap large 0")) * 4096 + 40, "checksum of block 0"),
        ("a byte of an extent tree", tree * 4096 + 30, "checksum of extent block"),
        ("a byte of extended attributes", xattr * 4096 + 100, "ext attribute block"),
        ("a byte of an inode", inode, "checksum"),
        ("a byte of the superblock", 1024 + 0x78, "ext superblock: checksum"),
        (
            "a byte of an inode bitmap",
            first_number(ask("stats").split("inode bitmap at ").nth(1).unwrap()) * 4096 + 300,
            "ext inode bitmap of group 0: checksum",
        ),
    ] {
        let mut bytes = fs::read(&good).unwrap();
        bytes[at as usize] ^= 1;
        fs::write(&volume, bytes).unwrap();
        judge(what, wanted, true);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
