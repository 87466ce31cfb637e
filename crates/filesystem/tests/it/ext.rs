//! The used map of ext2/3/4 against what e2fsprogs and the kernel say, for many kinds of volumes.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::support;
use crate::support::{
    Mount, check_against_dumpe2fs, debugfs, doubt, field, make, mark, open, populate, spans, text,
};
use block::Error;
use filesystem::ext::{Corrupt, Owner};
use filesystem::{Check, State, Use};
use testkit::{run, scratch};

/// Arguments of mke2fs, the size in MiB, and what the volume is called.
const KINDS: &[(&str, u64, &str)] = &[
    ("-t ext2", 32, "ext2"),
    ("-t ext2 -E revision=0", 32, "ext2"),
    ("-t ext2 -b 2048", 48, "ext2"),
    ("-t ext2 -b 4096 -O ^sparse_super,^resize_inode", 48, "ext2"),
    ("-t ext3 -b 1024", 48, "ext3"),
    ("-t ext3 -b 4096 -I 128", 64, "ext3"),
    ("-t ext4", 32, "ext4"),
    ("-t ext4 -b 1024", 64, "ext4"),
    ("-t ext4 -b 2048", 64, "ext4"),
    ("-t ext4 -b 4096", 64, "ext4"),
    ("-t ext4 -b 4096 -g 1024", 64, "ext4"),
    ("-t ext4 -b 4096 -g 2048 -O ^flex_bg", 64, "ext4"),
    ("-t ext4 -b 1024 -O ^flex_bg,^resize_inode,meta_bg", 64, "ext4"),
    ("-t ext4 -b 1024 -O ^64bit,^resize_inode,meta_bg -g 512", 64, "ext4"),
    ("-t ext4 -b 1024 -O ^64bit", 64, "ext4"),
    ("-t ext4 -b 1024 -O ^metadata_csum,uninit_bg", 64, "ext4"),
    ("-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^64bit,^flex_bg", 64, "ext4"),
    ("-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg", 64, "ext4"),
    ("-t ext4 -b 1024 -O metadata_csum,^64bit -I 128", 64, "ext4"),
    ("-t ext4 -b 1024 -O sparse_super2", 64, "ext4"),
    ("-t ext4 -b 1024 -O sparse_super2 -E num_backup_sb=1", 64, "ext4"),
    ("-t ext4 -b 4096 -O inline_data", 64, "ext4"),
    ("-t ext4 -b 4096 -O ea_inode,large_dir,casefold,encrypt", 64, "ext4"),
    ("-t ext4 -b 4096 -O quota,project", 64, "ext4"),
    ("-t ext4 -b 4096 -O orphan_file", 64, "ext4"),
    ("-t ext4 -b 4096 -O fast_commit", 64, "ext4"),
    ("-t ext4 -b 4096 -O metadata_csum_seed,stable_inodes,verity", 64, "ext4"),
    ("-t ext4 -b 4096 -O mmp", 64, "ext4"),
    ("-t ext4 -b 4096 -O ^has_journal", 64, "ext4"),
    ("-t ext4 -b 4096 -O ^extent,^64bit", 64, "ext4"),
    ("-t ext4 -b 4096 -E lazy_itable_init=1,lazy_journal_init=1", 64, "ext4"),
    ("-t ext4 -b 4096 -E lazy_itable_init=0 -E packed_meta_blocks=1", 64, "ext4"),
    ("-t ext4 -b 1024 -O bigalloc -C 16384", 64, "ext4"),
    ("-t ext4 -b 4096 -O bigalloc -C 65536", 128, "ext4"),
    ("-t ext4 -b 4096 -O bigalloc,^flex_bg -C 8192 -g 4096", 64, "ext4"),
    ("-t ext4 -b 8192", 64, "ext4"),
    ("-t ext4 -b 65536", 128, "ext4"),
];

#[test]
fn free_is_what_dumpe2fs_lists_as_free() {
    let dir = scratch();
    let contents = dir.path().join("contents");
    populate(&contents);
    for (args, mib, kind) in KINDS {
        let volume = dir.path().join("volume");
        // mke2fs writes blocks larger than a page only without contents.
        let large_blocks = args.contains("65536") && !args.contains("-C") || args.contains("-b 8192");
        make(&volume, *mib, args, Some(&*contents).filter(|_| !large_blocks));
        let filesystem = open(&volume);
        let facts = filesystem.facts();
        assert_eq!((facts.filesystem.as_str(), &facts.state), (*kind, &State::Clean), "{args}");
        check_against_dumpe2fs(&volume, args);
    }
}

#[test]
fn facts_are_those_of_dumpe2fs() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    make(&volume, 40, "-t ext4 -b 4096 -L data\u{e4} -U 01234567-89ab-cdef-0123-456789abcdef", None);
    let dump = run("dumpe2fs", &["-h", text(&volume)]);
    let filesystem = open(&volume);
    let facts = filesystem.facts();
    assert_eq!(facts.label.as_deref(), Some("data\u{e4}"));
    assert_eq!(facts.uuid.as_deref(), Some("01234567-89ab-cdef-0123-456789abcdef"));
    assert_eq!(facts.cluster_bytes, Some(4096));
    assert_eq!(facts.size_bytes, field(&dump, "Block count") * 4096);
    assert_eq!(facts.free_bytes, Some(field(&dump, "Free blocks") * 4096));
}

#[test]
fn a_volume_larger_than_its_file_system_is_used_beyond_it() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    make(&volume, 32, "-t ext4 -b 1024", None);
    OpenOptions::new().write(true).open(&volume).unwrap().set_len(40 << 20).unwrap();
    check_against_dumpe2fs(&volume, "with a tail");
    let used = spans(&*open(&volume), Check::Full, 40 << 20, Use::Used);
    let last = used.iter().last().unwrap();
    assert_eq!(last.end().get(), 40 << 20);
    assert!(last.len_bytes() >= 8 << 20);
    assert_eq!(used.iter().next().unwrap().start().get(), 0, "the boot block");
}

#[test]
fn a_volume_smaller_than_its_file_system_is_doubted() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    make(&volume, 32, "-t ext4 -b 1024", None);
    OpenOptions::new().write(true).open(&volume).unwrap().set_len(31 << 20).unwrap();
    assert!(doubt(&volume).unwrap().contains("blocks_count is 32768"), "{:?}", doubt(&volume));
}

/// What is free and swap is overwritten in a copy: the kernel must not miss it.
#[test]
fn nothing_free_is_missed_by_the_kernel() {
    let dir = scratch();
    let contents = dir.path().join("contents");
    populate(&contents);
    for (args, mib) in [
        ("-t ext2 -b 1024", 48),
        ("-t ext3 -b 4096", 64),
        ("-t ext4 -b 4096", 64),
        ("-t ext4 -b 1024 -O ^metadata_csum,uninit_bg", 64),
        ("-t ext4 -b 4096 -O bigalloc -C 65536", 128),
        ("-t ext4 -b 4096 -O inline_data,meta_bg,^resize_inode", 64),
    ] {
        let volume = dir.path().join("volume");
        make(&volume, mib, args, Some(&contents));
        let mounted = dir.path().join("mounted");
        let header = {
            // mke2fs makes holes of zeros, which a swap file must not have.
            let mount = Mount::new(&volume, &mounted, "rw");
            let file = mount.at.join("swapfile");
            fs::write(&file, vec![0x55; 4 << 20]).unwrap();
            run("mkswap", &[text(&file)]);
            fs::read(&file).unwrap()
        };
        let filesystem = open(&volume);
        for wanted in [Use::Free, Use::Swap] {
            let found = spans(&*filesystem, Check::Full, mib << 20, wanted);
            assert!(found.total_bytes() > 3 << 20, "{args}: {wanted:?} is {} bytes", found.total_bytes());
            mark(&volume, &found);
        }
        run("e2fsck", &["-fn", text(&volume)]);
        let mount = Mount::new(&volume, &mounted, "ro");
        let (here, there) = (text(&contents), text(&mount.at));
        run(
            "diff",
            &["-r", "--no-dereference", "-x", "lost+found", "-x", "swapfile", "-x", "fifo", here, there],
        );
        let swap = fs::read(mount.at.join("swapfile")).unwrap();
        assert_eq!(swap[..4096], header[..4096], "{args}: swap header");
        assert!(swap[4096..].iter().all(|byte| *byte == 0xa7), "{args}: all of the swap file is swap");
    }
}

fn swap_bytes(volume: &Path) -> u64 {
    let len_bytes = fs::metadata(volume).unwrap().len();
    spans(&*open(volume), Check::Full, len_bytes, Use::Swap).total_bytes()
}

#[test]
fn swap_files_are_told_by_their_header() {
    let dir = scratch();
    let contents = dir.path().join("contents");
    let good = contents.join("not-named-swap");
    let volume = dir.path().join("volume");
    fs::create_dir(&contents).unwrap();
    fs::write(&good, vec![0x55; 1 << 20]).unwrap();
    run("mkswap", &[text(&good)]);
    let header = fs::read(&good).unwrap();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = header.clone();
        change(&mut bytes);
        fs::write(&good, bytes).unwrap();
        make(&volume, 32, "-t ext4 -b 4096", Some(&contents));
    };
    with(&|_| {});
    assert_eq!(swap_bytes(&volume), (1 << 20) - 4096);
    with(&|bytes| bytes[4086..4096].copy_from_slice(b"SWAPSPACE3"));
    assert_eq!(swap_bytes(&volume), 0);
    with(&|bytes| bytes[1024] = 2);
    assert_eq!(swap_bytes(&volume), 0);
    with(&|bytes| bytes.extend([1; 4096]));
    assert_eq!(swap_bytes(&volume), 0, "the header says another size");
    with(&|bytes| bytes[1100] = 1);
    assert_eq!(swap_bytes(&volume), 0, "padding");
    for signature in [&b"S1SUSPEND\0"[..], b"ULSUSPEND\0", b"LINHIB0001", b"\xed\xc3\x02\xe9\x98\x56\xe5\x0c"]
    {
        with(&|bytes| bytes[4086..][..signature.len()].copy_from_slice(signature));
        assert!(doubt(&volume).unwrap().contains("hibernated"), "{signature:?}");
    }
    with(&|_| {});
    debugfs(&volume, "set_inode_field not-named-swap uid 1000");
    assert_eq!(swap_bytes(&volume), 0, "not root's");
}

#[test]
fn a_swap_file_with_a_hole_is_no_swap_file() {
    let dir = scratch();
    let contents = dir.path().join("contents");
    let volume = dir.path().join("volume");
    fs::create_dir(&contents).unwrap();
    fs::write(contents.join("swap"), vec![0x55; 1 << 20]).unwrap();
    run("mkswap", &[text(&contents.join("swap"))]);
    run("fallocate", &["--punch-hole", "-o", "65536", "-l", "4096", text(&contents.join("swap"))]);
    make(&volume, 32, "-t ext4 -b 4096", Some(&contents));
    assert_eq!(swap_bytes(&volume), 0);
}

#[test]
fn states() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    for (args, commands, word, reason) in [
        ("-t ext2", "ssv state 0", "dirty", "not unmounted cleanly"),
        ("-t ext4", "ssv state 3", "inconsistent", "errors"),
        ("-t ext4", "ssv state 0x21", "dirty", "fast commits"),
        ("-t ext4", "ssv feature_incompat 0x402c2", "unsupported", "incompat feature 0x40000"),
        ("-t ext4", "ssv feature_ro_compat 0x406b", "unsupported", "shared_blocks"),
        ("-t ext4", "ssv creator_os 1", "unsupported", "creator_os"),
    ] {
        make(&volume, 16, &format!("{args} -O ^metadata_csum,^uninit_bg"), None);
        debugfs(&volume, commands);
        let filesystem = open(&volume);
        let state = &filesystem.facts().state;
        assert_eq!(state.word(), word, "{commands}: {state:?}");
        assert!(state.doubt().unwrap().contains(reason), "{commands}: {state:?}");
        assert!(filesystem.used_map(Check::Quick).is_err(), "{commands}");
    }
    make(&volume, 16, "-O journal_dev -b 4096", None);
    let filesystem = open(&volume);
    assert_eq!(filesystem.facts().filesystem, "ext-journal");
    assert_eq!(filesystem.facts().state.word(), "unsupported");
    fs::write(&volume, vec![0; 1 << 20]).unwrap();
    assert!(filesystem::ext::open(&support::source(&volume)).unwrap().is_none());
}

fn block_of(volume: &Path, file: &str) -> u64 {
    let blocks = run("debugfs", &["-R", &format!("blocks {file}"), text(volume)]);
    blocks.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn contradictions_are_named() {
    let dir = scratch();
    let contents = dir.path().join("contents");
    populate(&contents);
    let volume = dir.path().join("volume");
    for args in ["-t ext4 -b 1024", "-t ext2 -b 1024", "-t ext4 -b 1024 -O bigalloc -C 4096"] {
        make(&volume, 64, args, Some(&contents));
        assert_eq!(doubt(&volume), None);
        let block = block_of(&volume, "large");
        // The counter is set right, as the bitmap is what a copy would go by.
        let dump = run("dumpe2fs", &[text(&volume)]);
        let group: u64 = (block - 1) / field(&dump, "Blocks per group");
        let free = group_free(&dump, group);
        debugfs(&volume, &format!("freeb {block}\nset_bg {group} free_blocks_count {}", free + 1));
        if !args.contains("ext2") {
            debugfs(&volume, &format!("set_bg {group} checksum calc"));
        }
        let error = rejected(&volume);
        let marked = match error.cause() {
            Some(Corrupt::BlockMarkedFree { block, owner: Owner::Inode(_) }) => Some(*block),
            _ => None,
        };
        assert_eq!(marked, Some(block), "{args}: {error}");
    }
    for (args, commands, reason) in [
        ("-t ext4 -b 1024", "set_bg 0 free_blocks_count 5\nset_bg 0 checksum calc", "free_blocks_count"),
        ("-t ext4 -b 1024", "set_bg 0 free_inodes_count 5\nset_bg 0 checksum calc", "free_inodes_count"),
        ("-t ext2 -b 1024", "sif large block[3] 30", "owned twice"),
        ("-t ext2 -b 1024", "sif large block[3] 99999999", "within the volume"),
        ("-t ext2 -b 1024", "sif large block[TIND] 9", "owned twice"),
        ("-t ext2 -b 1024", "sif large file_acl 99999999", "within the volume"),
        ("-t ext2 -b 1024", "sif large mode 0170644", "known type"),
    ] {
        make(&volume, 64, args, Some(&contents));
        debugfs(&volume, commands);
        let why = doubt(&volume).unwrap_or_default();
        assert!(why.contains(reason), "{commands}: {why}");
    }
}

fn group_free(dump: &str, group: u64) -> u64 {
    let at = dump.find(&format!("\nGroup {group}: ")).unwrap();
    let line = dump[at..].lines().find(|line| line.contains(" free ")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn two_owners_are_found_and_shared_attributes_are_not_two() {
    let dir = scratch();
    let contents = dir.path().join("contents");
    populate(&contents);
    let volume = dir.path().join("volume");
    make(&volume, 64, "-t ext2 -b 1024 -I 128", Some(&contents));
    let block = block_of(&volume, "large");
    debugfs(&volume, &format!("sif \"/every other block\" block[0] {block}"));
    let error = rejected(&volume);
    let is_it =
        matches!(error.cause(), Some(Corrupt::BlockOwnedTwice { block: found, .. }) if *found == block);
    assert!(is_it, "{error}");

    make(&volume, 64, "-t ext2 -b 1024 -I 128", Some(&contents));
    debugfs(&volume, "ea_set large user.a value");
    let stat = run("debugfs", &["-R", "stat large", text(&volume)]);
    let acl: u64 =
        stat.split("File ACL: ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    assert!(acl > 0, "{stat}");
    debugfs(&volume, &format!("sif empty file_acl {acl}"));
    assert_eq!(doubt(&volume), None);
}

/// Why the volume's used map is not believed.
fn rejected(volume: &Path) -> Error {
    open(volume).used_map(Check::Full).map(drop).unwrap_err()
}

/// Whose checksum is wrong, as an error says.
fn of_wrong_checksum(error: &Error) -> &'static str {
    let is_of_extents =
        || error.wrong_field().is_some_and(|field| field.name().starts_with("checksum of extent block"));
    match error.cause() {
        Some(Corrupt::SuperblockChecksum { .. }) => "superblock",
        Some(Corrupt::GroupDescriptorChecksum { group: 0, .. }) => "group descriptor",
        Some(Corrupt::BlockBitmapChecksum { group: 0 }) => "block bitmap",
        Some(Corrupt::InodeBitmapChecksum { group: 0 }) => "inode bitmap",
        Some(Corrupt::InodeChecksum { inode: 12, .. }) => "inode 12",
        Some(Corrupt::Inode { .. }) if is_of_extents() => "extent block",
        _ => panic!("{error}"),
    }
}

/// A byte of each structure that has a checksum.
#[test]
fn each_checksum_is_verified() {
    let dir = scratch();
    let contents = dir.path().join("contents");
    populate(&contents);
    let volume = dir.path().join("volume");
    for args in ["-t ext4 -b 1024", "-t ext4 -b 1024 -O ^64bit -I 128"] {
        make(&volume, 64, args, Some(&contents));
        let good = fs::read(&volume).unwrap();
        let dump = run("dumpe2fs", &[text(&volume)]);
        let number = |prefix: &str| -> u64 {
            let at = dump.find(prefix).unwrap_or_else(|| panic!("{prefix}")) + prefix.len();
            dump[at..].split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
        };
        let table = number("Inode table at ");
        let extents = run("debugfs", &["-R", "stat \"/every other block\"", text(&volume)]);
        assert!(extents.contains("ETB0"), "{extents}");
        let leaf: u64 = extents
            .split("(ETB0):")
            .nth(1)
            .unwrap()
            .split(|c: char| !c.is_ascii_digit())
            .next()
            .unwrap()
            .parse()
            .unwrap();
        for (at, what) in [
            (1024 + 0x78, "superblock"),
            (number("Group descriptors at ") * 1024 + 0x10, "group descriptor"),
            (number("Block bitmap at ") * 1024 + 900, "block bitmap"),
            (number("Inode bitmap at ") * 1024 + 1, "inode bitmap"),
            (table * 1024 + 11 * if args.contains("128") { 128 } else { 256 } + 0x10, "inode 12"),
            (leaf * 1024 + 13, "extent block"),
        ] {
            let mut bytes = good.clone();
            bytes[at as usize] ^= 0x10;
            fs::write(&volume, bytes).unwrap();
            assert_eq!(of_wrong_checksum(&rejected(&volume)), what, "{args}");
        }
    }
}

/// A volume that was used for a while: files written, truncated and deleted by the kernel.
#[test]
fn a_volume_that_lived_is_read_as_e2fsprogs_do() {
    let dir = scratch();
    let contents = dir.path().join("contents");
    populate(&contents);
    for args in
        ["-t ext4 -b 4096", "-t ext4 -b 1024 -O bigalloc -C 8192", "-t ext3 -b 1024", "-t ext2 -b 4096"]
    {
        let volume = dir.path().join("volume");
        make(&volume, 64, args, None);
        {
            let mount = Mount::new(&volume, &dir.path().join("mounted"), "rw");
            let to = mount.at.clone();
            run("cp", &["-a", text(&contents), text(&to.join("a"))]);
            run("cp", &["-a", text(&contents), text(&to.join("b"))]);
            fs::remove_dir_all(to.join("a")).unwrap();
            let file = OpenOptions::new().write(true).open(to.join("b/large")).unwrap();
            file.set_len(1_000_000).unwrap();
            if args.contains("ext4") {
                run("fallocate", &["-l", "3M", text(&to.join("unwritten"))]);
                file.write_all_at(b"x", 60_000_000).unwrap();
            }
        }
        assert_eq!(open(&volume).facts().state, State::Clean, "{args}");
        check_against_dumpe2fs(&volume, args);
    }
}

#[test]
fn volumes_that_were_resized() {
    let dir = scratch();
    let contents = dir.path().join("contents");
    populate(&contents);
    for (args, from, to) in [
        ("-t ext4 -b 1024", 32, 200),
        ("-t ext4 -b 1024 -E resize=40000", 32, 400),
        ("-t ext4 -b 1024 -O ^resize_inode", 32, 200),
        ("-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^64bit", 32, 100),
        ("-t ext2 -b 1024", 32, 100),
        ("-t ext4 -b 4096", 100, 60),
    ] {
        let volume = dir.path().join("volume");
        make(&volume, from, args, Some(&contents));
        OpenOptions::new().write(true).open(&volume).unwrap().set_len(from.max(to) << 20).unwrap();
        run("e2fsck", &["-fp", text(&volume)]);
        run("resize2fs", &[text(&volume), &format!("{to}M")]);
        assert_eq!(open(&volume).facts().size_bytes, to << 20, "{args}");
        check_against_dumpe2fs(&volume, &format!("{args}, {from} to {to} MiB"));
    }
}

#[test]
fn bad_blocks_are_used() {
    let dir = scratch();
    let (volume, list) = (dir.path().join("volume"), dir.path().join("list"));
    fs::write(&list, "9000\n9001\n20000\n").unwrap();
    for kind in ["ext2", "ext4"] {
        make(&volume, 32, &format!("-t {kind} -b 1024 -l {}", text(&list)), None);
        check_against_dumpe2fs(&volume, kind);
        assert!(
            spans(&*open(&volume), Check::Full, 32 << 20, Use::Used)
                .contains(extent::Offset::new(20_000 << 10))
        );
    }
}

/// Large extended attributes lie in blocks or inodes of their own, those of short symbolic links as well.
#[test]
fn extended_attributes_in_inodes_of_their_own() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    let code = "import os, sys\n\
        at = sys.argv[1]\n\
        for i in range(20):\n\
        \x20   open(f'{at}/{i}', 'w').write('x' * i)\n\
        \x20   os.symlink('short', f'{at}/link {i}')\n\
        \x20   os.setxattr(f'{at}/{i}', 'user.small', b'a' * 300)\n\
        \x20   os.setxattr(f'{at}/{i}', 'user.large', bytes([i]) * int(sys.argv[2]))\n\
        \x20   os.setxattr(f'{at}/link {i}', 'trusted.large', bytes([i]) * int(sys.argv[2]), follow_symlinks=False)";
    for (args, len) in [
        ("-t ext4 -b 4096 -O ea_inode", "9000"),
        ("-t ext4 -b 4096 -O ea_inode,inline_data", "9000"),
        ("-t ext4 -b 1024 -O ea_inode,bigalloc -C 4096", "9000"),
        ("-t ext4 -b 4096", "2000"),
        ("-t ext3 -b 4096 -I 128", "2000"),
    ] {
        make(&volume, 64, args, None);
        {
            let mount = Mount::new(&volume, &dir.path().join("mounted"), "rw");
            run("python3", &["-c", code, text(&mount.at), len]);
        }
        check_against_dumpe2fs(&volume, args);
    }
}

/// A file whose inode and blocks are marked free, all counts agreeing: it is read by its name all the same.
#[test]
fn a_file_that_is_marked_free_is_doubted() {
    let dir = scratch();
    let (volume, contents) = (dir.path().join("volume"), dir.path().join("contents"));
    fs::create_dir(&contents).unwrap();
    fs::write(contents.join("file"), [7; 5000]).unwrap();
    for args in ["-t ext2 -b 1024", "-t ext4 -b 1024"] {
        make(&volume, 8, args, Some(&contents));
        assert_eq!(doubt(&volume), None);
        let count = |name: &str| field(&run("dumpe2fs", &["-h", text(&volume)]), name);
        let (inodes, blocks) = (count("Free inodes"), count("Free blocks"));
        let list = debugfs(&volume, "blocks file");
        let freed: Vec<&str> = list.lines().last().unwrap().split_whitespace().collect();
        let mut request: Vec<_> = freed.iter().map(|block| format!("freeb {block}")).collect();
        request.push("freei file".into());
        request.push(format!("set_super_value free_inodes_count {}", inodes + 1));
        request.push(format!("set_super_value free_blocks_count {}", blocks + freed.len() as u64));
        request.push(format!("set_block_group 0 free_inodes_count {}", inodes + 1));
        request.push(format!("set_block_group 0 free_blocks_count {}", blocks + freed.len() as u64));
        request.push("set_block_group 0 checksum calc".into());
        debugfs(&volume, &request.join("\n"));
        assert!(debugfs(&volume, "stat file").contains("Size: 5000"), "{args}: it is there");
        let error = rejected(&volume);
        assert!(matches!(error.cause(), Some(Corrupt::InodeMarkedFree { links: 1, .. })), "{args}: {error}");
    }
}
