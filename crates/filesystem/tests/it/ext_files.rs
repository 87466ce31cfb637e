//! The files and free spans of ext2/3/4 against what the kernel, filefrag, dumpe2fs and e2freefrag say: all of them.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{
    Listing, Mount, assert_same, debugfs, field, list_mounted, list_scanned, make, open, oracle_free, source,
    text,
};
use extent::{ExtentSet, Volume};
use filesystem::ext::Corrupt;
use filesystem::{Catalog, CatalogStream, FileId, FileKind, FileSystem, StreamName};
use testkit::{run, scratch};

/// Arguments of mke2fs, the size in MiB, how many entries the widest folder has.
const KINDS: &[(&str, u64, u32)] = &[
    ("-t ext4 -b 4096", 96, 10_000),
    ("-t ext4 -b 1024 -N 16384", 96, 10_000),
    ("-t ext4 -b 1024 -N 16384 -O ^metadata_csum,^64bit,uninit_bg,^flex_bg", 96, 2000),
    ("-t ext4 -b 2048 -O ^metadata_csum,^uninit_bg", 96, 1000),
    ("-t ext4 -b 4096 -O bigalloc -C 16384 -N 16384", 128, 1000),
    ("-t ext4 -b 1024 -O bigalloc -C 8192 -N 16384", 128, 1000),
    ("-t ext4 -b 4096 -O inline_data", 96, 1000),
    ("-t ext4 -b 4096 -I 512 -O inline_data,ea_inode,large_dir", 96, 1000),
    ("-t ext4 -b 4096 -O ^extent,^64bit", 96, 1000),
    ("-t ext4 -b 4096 -O ^flex_bg -g 8192 -N 8192", 96, 1000),
    ("-t ext4 -b 4096 -O ^dir_index,^filetype,meta_bg,^resize_inode", 96, 1000),
    ("-t ext4 -b 4096 -O orphan_file,fast_commit,metadata_csum_seed,sparse_super2", 96, 500),
    ("-t ext3 -b 1024", 96, 1500),
    ("-t ext3 -b 4096 -I 128", 96, 500),
    ("-t ext2 -b 1024", 96, 1500),
    ("-t ext2 -b 4096 -E revision=0", 96, 500),
];

/// A volume that the kernel filled.
fn fill(volume: &Path, mib: u64, args: &str, width: u32, options: &str) {
    make(volume, mib, args, None);
    let mount = Mount::new(volume, &volume.with_extension("mounted"), options);
    run("python3", &["-c", include_str!("../scripts/fill.py"), text(&mount.at), &width.to_string()]);
}

fn read(filesystem: &dyn FileSystem, what: &str) -> Catalog {
    let catalog = Catalog::read(filesystem).unwrap();
    assert_eq!(catalog.doubts(), [], "{what}");
    catalog
}

#[test]
fn every_file_is_as_filefrag_has_it() {
    let dir = scratch();
    for (args, mib, width) in KINDS {
        let volume = dir.path().join("volume");
        fill(&volume, *mib, args, *width, "rw,nodelalloc");
        let filesystem = open(&volume);
        let catalog = read(&*filesystem, args);
        let theirs = list_mounted(&volume);
        assert!(theirs.len() > 600 + *width as usize / 2, "{args}: {} files", theirs.len());
        assert_same(&list_scanned(&*filesystem, &catalog), &theirs, args);
        check_fixture(&theirs, args);
        check_free(&volume, &*filesystem, args);
        check_records(&volume, &*filesystem, &catalog, args);
    }
}

/// What is read for an inode ends with its block, as debugfs says, and the rest is beside it and read once.
fn check_records(volume: &Path, filesystem: &dyn FileSystem, catalog: &Catalog, what: &str) {
    let block_bytes = field(&run("dumpe2fs", &["-h", text(volume)]), "Block size");
    let files: Vec<FileId> = catalog.streams().step_by(97).map(|stream| stream.stream.file).collect();
    let asked: Vec<String> = files.iter().map(|file| format!("imap <{}>", file.0)).collect();
    let script = volume.with_extension("imap");
    fs::write(&script, asked.join("\n")).unwrap();
    let said = run("debugfs", &["-f", text(&script), text(volume)]);
    let blocks = said.lines().filter_map(|line| line.trim().strip_prefix("located at block "));
    let blocks: Vec<u64> = blocks.map(|line| line.split(',').next().unwrap().parse().unwrap()).collect();
    assert!(files.len() > 5 && blocks.len() == files.len(), "{what}: {said}");
    for (file, block) in files.iter().zip(blocks) {
        let reads = filesystem.record_reads(*file).unwrap();
        let own = reads.last().unwrap();
        assert_eq!(
            (own.start().get(), own.len_bytes()),
            (block * block_bytes, block_bytes),
            "{what}: {file:?}"
        );
        let all: ExtentSet<Volume> = reads.iter().copied().collect();
        let sum: u64 = reads.iter().map(extent::Span::len_bytes).sum();
        let whole: Vec<_> = all.iter().collect();
        assert!(whole.len() == 1 && whole[0].len_bytes() == sum, "{what}: {reads:?}");
        assert!(sum <= 33 * block_bytes, "{what}: {reads:?}");
    }
}

/// The volume has what the test is about.
fn check_fixture(listing: &Listing, args: &str) {
    let count = |holds: &dyn Fn(&str) -> bool| listing.values().filter(|line| holds(line)).count();
    let fragments = |line: &str| line.split(' ').nth(3).map_or(0, |count| count.parse().unwrap());
    assert!(count(&|line| line.matches(',').count() > 1000) > 0, "{args}: a file in very many pieces");
    assert!(count(&|line| line.starts_with("file") && fragments(line) > 1) > 5, "{args}: fragmented files");
    let has_extents = args.contains("ext4") && !args.contains("^extent");
    assert_eq!(count(&|line| line.contains('u')) > 0, has_extents, "{args}: unwritten extents");
    let has_inline = args.contains("inline_data");
    assert_eq!(count(&|line| line.ends_with("inline")) > 5, has_inline, "{args}: inline data");
}

/// Free spans against dumpe2fs to the byte, and the totals of e2freefrag.
fn check_free(volume: &Path, filesystem: &dyn FileSystem, what: &str) {
    let mut spans = Vec::new();
    filesystem.each_free_span(&mut |span| spans.push(span)).unwrap();
    assert!(spans.windows(2).all(|pair| pair[0].end() < pair[1].start()), "{what}: ascending, coalesced");
    let set: ExtentSet<Volume> = spans.iter().copied().collect();
    assert_eq!(set, oracle_free(volume), "{what}");
    if what.contains("bigalloc") {
        // There the extents of e2freefrag 1.47 do not add up to the free blocks that it states itself.
        return;
    }
    let totals = run("e2freefrag", &[text(volume)]);
    assert_eq!(spans.len() as u64, field(&totals, "Num. free extent"), "{what}: {totals}");
    let largest = spans.iter().map(extent::Span::len_bytes).max().unwrap_or(0);
    assert_eq!(largest / 1024, field(&totals, "Max. free extent"), "{what}: {totals}");
}

/// What the file system keeps for itself is listed with its blocks, and is no file of anyone's.
#[test]
fn metadata_files_have_their_blocks() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    let bad = dir.path().join("bad");
    fs::write(&bad, "9000\n9001\n20000\n").unwrap();
    let contents = dir.path().join("contents");
    fs::create_dir(&contents).unwrap();
    fs::write(contents.join("file"), "x").unwrap();
    let args = format!("-t ext4 -b 1024 -O quota,orphan_file -l {}", text(&bad));
    make(&volume, 64, &args, Some(&contents));
    debugfs(&volume, &format!("ea_set file user.a {}", "v".repeat(700)));
    let filesystem = open(&volume);
    let catalog = read(&*filesystem, "metadata");
    let blocks = |inode: u64, name: StreamName<'_>| -> Vec<u64> {
        let found = catalog
            .streams()
            .find(|stream| stream.stream.file == FileId(inode) && stream.stream.name == name);
        let stream = found.unwrap_or_else(|| panic!("no inode {inode}"));
        assert_eq!(stream.stream.kind, FileKind::Metadata, "{inode}");
        let spans = stream.extents().map(|extent| extent.span);
        spans.flat_map(|span| span.start().get() / 1024..span.end().get() / 1024).collect()
    };
    let dump = run("dumpe2fs", &["-h", text(&volume)]);
    let orphan_file = field(&dump, "Orphan file inode");
    assert!(orphan_file > 11);
    for inode in [1, 3, 4, 7, 8, orphan_file] {
        let mut ours = blocks(inode, StreamName::Main);
        let mut theirs = data_blocks(&volume, inode);
        // That of the resize inode is in the order of the map, which debugfs shows by groups.
        ours.sort_unstable();
        theirs.sort_unstable();
        assert!(!theirs.is_empty(), "inode {inode}");
        assert_eq!(ours, theirs, "inode {inode}");
    }
    let stat = run("debugfs", &["-R", "stat file", text(&volume)]);
    let number = |name: &str| -> u64 {
        let rest = stat.split(name).nth(1).unwrap_or_else(|| panic!("{stat}"));
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    assert_eq!(blocks(number("Inode: "), StreamName::Named(b"xattr")), [number("File ACL: ")]);
    assert_eq!(catalog.path(FileId(8)), b"/<8>");
}

/// The blocks of an inode that are not of its map, as debugfs says.
fn data_blocks(volume: &Path, inode: u64) -> Vec<u64> {
    let stat = run("debugfs", &["-R", &format!("stat <{inode}>"), text(volume)]);
    let lists =
        stat.split("BLOCKS:\n").nth(1).or_else(|| stat.split("EXTENTS:\n").nth(1)).unwrap_or_default();
    let parts = lists
        .split(['\n', ','])
        .map(str::trim)
        .filter(|part| part.starts_with("(") && !part.contains("IND)"));
    let mut blocks = Vec::new();
    for part in parts.filter(|part| !part.starts_with("(ETB")) {
        let range = part.rsplit(':').next().unwrap();
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        blocks.extend(first.parse::<u64>().unwrap()..=last.parse().unwrap());
    }
    blocks
}

#[test]
fn attributes_in_inodes_of_their_own_are_metadata() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    make(&volume, 64, "-t ext4 -b 4096 -O ea_inode,^orphan_file", None);
    {
        let mount = Mount::new(&volume, &dir.path().join("mounted"), "rw");
        let code = "import os, sys\n\
            for name in 'ab':\n\
            \x20   open(f'{sys.argv[1]}/{name}', 'w').write('x')\n\
            \x20   os.setxattr(f'{sys.argv[1]}/{name}', 'user.large', name.encode() * 9000)";
        run("python3", &["-c", code, text(&mount.at)]);
    }
    let filesystem = open(&volume);
    let catalog = read(&*filesystem, "ea_inode");
    let own = catalog
        .streams()
        .filter(|stream| stream.stream.kind == FileKind::Metadata && stream.stream.file.0 > 11);
    let sizes: Vec<_> = own.filter(|stream| stream.stream.name == StreamName::Main).collect();
    assert_eq!(sizes.iter().map(|stream| stream.stream.size_bytes).collect::<Vec<_>>(), [9000, 9000]);
    assert_same(&list_scanned(&*filesystem, &catalog), &list_mounted(&volume), "ea_inode");
}

/// Blocks larger than a page, which the kernel may not mount: as debugfs has it.
#[test]
fn blocks_of_all_sizes() {
    let dir = scratch();
    let (volume, contents) = (dir.path().join("volume"), dir.path().join("contents"));
    fs::write(&contents, vec![1; 300_000]).unwrap();
    for args in
        ["-b 8192", "-b 16384 -O ^metadata_csum", "-b 65536", "-b 65536 -O ^metadata_csum,^extent,^64bit"]
    {
        make(&volume, 128, &format!("-t ext4 {args}"), None);
        let names: Vec<_> = (0..60).map(|index| format!("d/{}{index}", "n".repeat(index * 4))).collect();
        let commands: Vec<_> = names.iter().map(|name| format!("write {} {name}", text(&contents))).collect();
        debugfs(&volume, &format!("mkdir d\n{}\nmkdir d/e", commands.join("\n")));
        let filesystem = open(&volume);
        let catalog = read(&*filesystem, args);
        let block = filesystem.facts().cluster_bytes.unwrap();
        let wanted = names.iter().map(String::as_str).chain(["d", "d/e", "lost+found"]);
        let mut seen = 0;
        for path in wanted {
            let found = catalog.streams().find(|stream| stream.path() == format!("/{path}").into_bytes());
            let stream = found.unwrap_or_else(|| panic!("{args}: {path}"));
            let spans = stream.extents().map(|extent| extent.span);
            let ours: Vec<_> =
                spans.flat_map(|at| at.start().get() / block..at.end().get() / block).collect();
            assert_eq!(ours, data_blocks(&volume, stream.stream.file.0), "{args}: {path}");
            assert!(stream.stream.size_bytes == 300_000 || stream.stream.kind == FileKind::Directory);
            seen += 1;
        }
        let own = |stream: &CatalogStream<'_>| stream.stream.kind == FileKind::Metadata;
        assert_eq!(catalog.streams().filter(|stream| !own(stream)).count(), seen + 1, "{args}: and the root");
    }
}

/// Names that the kernel would show in plain or not at all, as they are on the disk.
#[test]
fn folded_and_encrypted_names_are_bytes() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    make(&volume, 32, "-t ext4 -b 4096 -O casefold -E encoding=utf8", None);
    debugfs(
        &volume,
        "mkdir folded\nset_inode_field folded flags 0x40080000\nmkdir folded/Gr\u{fc}n\nmkdir plain",
    );
    let catalog = read(&*open(&volume), "casefold");
    let paths: Vec<_> = catalog.streams().map(|stream| String::from_utf8(stream.path()).unwrap()).collect();
    assert!(paths.contains(&"/folded/Gr\u{fc}n".to_owned()), "{paths:?}");

    make(&volume, 32, "-t ext4 -b 4096 -O encrypt,^metadata_csum", None);
    debugfs(&volume, "mkdir secret\nmkdir secret/abc\nset_inode_field secret flags 0x80800");
    let mut bytes = fs::read(&volume).unwrap();
    let at = bytes.windows(4).rposition(|window| window == b"\x03\x02ab").unwrap() + 2;
    bytes[at..at + 3].copy_from_slice(b"\0/\xff");
    fs::write(&volume, &bytes).unwrap();
    let catalog = read(&*open(&volume), "encrypted");
    assert!(catalog.streams().any(|stream| stream.path() == b"/secret/\0/\xff"));

    debugfs(&volume, "set_inode_field secret flags 0x80000");
    let catalog = Catalog::read(&*open(&volume)).unwrap();
    assert!(catalog.doubts()[0].why.contains("a slash or a NUL"), "{:?}", catalog.doubts());
}

/// `e2fsck` says by its exit status that it changed something, which is no failure here.
fn replay(volume: &Path) -> String {
    let output = Command::new("e2fsck").args(["-y", "-E", "journal_only"]).arg(volume).output().unwrap();
    assert!(output.status.code().is_some_and(|code| code <= 1), "{output:?}");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// A volume as it is while its guest runs: the same as once its journal is replayed on disk.
#[test]
fn a_pending_journal_is_seen_through() {
    let dir = scratch();
    for (args, flags) in
        [("-t ext4 -b 4096", 1), ("-t ext4 -b 1024 -O ^metadata_csum", 2), ("-t ext3 -b 1024", 1)]
    {
        let (volume, replayed) = (dir.path().join("volume"), dir.path().join("replayed"));
        let prepare = || {
            make(&volume, 96, args, None);
            // A commit by the clock, between a folder's last name and its blocks, would leave it an orphan, which e2fsck clears.
            let mount = Mount::new(&volume, &dir.path().join("mounted"), "rw,commit=300");
            run("python3", &["-c", include_str!("../scripts/fill.py"), text(&mount.at), "300"]);
            run("sync", &["-f", text(&mount.at)]);
            fs::remove_dir_all(mount.at.join("wide")).unwrap();
            fs::rename(mount.at.join("turns"), mount.at.join("renamed")).unwrap();
            fs::write(mount.at.join("new"), vec![1; 200_000]).unwrap();
            fs::File::open(mount.at.join("new")).unwrap().sync_all().unwrap();
            mount.shut_down(flags);
            drop(mount);
            fs::copy(&volume, &replayed).unwrap();
            replay(&replayed)
        };
        // So would one because somebody else has all file systems of the machine written.
        let mut attempts = (0..5).map(|_| prepare());
        let said = attempts.find(|said| !said.contains("orphan"));
        assert!(said.is_some(), "{args}: files are half deleted each time");
        let pending = open(&volume);
        assert_eq!(pending.facts().state.word(), "needs-recovery", "{args}");
        let after = open(&replayed);
        assert_eq!(after.facts().state.word(), "clean", "{args}");
        let (ours, theirs) = (list_scanned(&*pending, &read(&*pending, args)), list_mounted(&replayed));
        assert!(theirs.contains_key(&b"/renamed/3"[..]) && !theirs.contains_key(&b"/turns/3"[..]), "{args}");
        assert_same(&ours, &theirs, args);
        check_free(&replayed, &*pending, args);
    }
}

/// Deleted, but open when the power went: no name, and no doubt.
#[test]
fn orphans_are_files_without_a_name() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    make(&volume, 32, "-t ext4 -b 4096", None);
    let inode = {
        let mount = Mount::new(&volume, &dir.path().join("mounted"), "rw");
        let path = mount.at.join("gone");
        fs::write(&path, vec![1; 50_000]).unwrap();
        let file = fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        fs::remove_file(&path).unwrap();
        fs::File::open(&mount.at).unwrap().sync_all().unwrap();
        mount.shut_down(1);
        std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap())
    };
    let catalog = read(&*open(&volume), "orphan");
    let stream = catalog.streams().find(|stream| stream.stream.file == FileId(inode)).expect("the orphan");
    assert_eq!((stream.stream.kind, stream.stream.size_bytes), (FileKind::Other, 50_000));
    assert_eq!(stream.extents().map(|extent| extent.span.len_bytes()).sum::<u64>(), 53_248);
    assert_eq!(stream.path(), format!("/<{inode}>").into_bytes());
}

/// The first block of a folder at or after block `least` that has an entry in use, as debugfs dumps its tree. By the hashes, which differ
/// with each file system that is made, all entries of a block may be ones that were removed.
fn leaf_with_entries(dump: &str, least: u64) -> u64 {
    let blocks = dump.split("Reading directory block ").skip(1).filter_map(|section| {
        let (block, rest) = section.split_once(',')?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        // An entry is an inode, 0 where it was removed, the two parts of a hash, and more.
        let is_used = |pair: &[&str]| {
            pair[0].parse::<u32>().is_ok_and(|inode| inode != 0)
                && pair[1].starts_with("0x")
                && pair[1].contains('-')
        };
        let block: u64 = block.parse().ok()?;
        (block >= least && words.windows(2).any(is_used)).then_some(block)
    });
    blocks.min().unwrap_or_else(|| panic!("a block of the folder with entries in {dump}"))
}

/// What is broken is doubted; all else is listed.
#[test]
fn a_broken_part_is_a_doubt_and_no_more() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    fill(&volume, 96, "-t ext4 -b 1024 -N 16384", 3000, "rw");
    let good = fs::read(&volume).unwrap();
    let whole = list_scanned(&*open(&volume), &read(&*open(&volume), "good"));
    let dump = run("dumpe2fs", &[text(&volume)]);
    let number = |text: &str, prefix: &str| -> usize {
        let at = text.find(prefix).unwrap_or_else(|| panic!("{prefix} in {text}")) + prefix.len();
        text[at..].split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let asked = |what: &str| run("debugfs", &["-R", what, text(&volume)]);
    let block_of = |path: &str, index: u64| number(&asked(&format!("bmap \"{path}\" {index}")), "");
    let inode_at = |path: &str| {
        let place = asked(&format!("imap \"{path}\""));
        let block = number(&place, "located at block ");
        let within = usize::from_str_radix(place.split("offset 0x").nth(1).unwrap().trim(), 16).unwrap();
        block * 1024 + within
    };
    let leaf = number(&asked("stat \"every other block\""), "(ETB0):");
    let wide = number(&asked("stat wide"), "Inode: ") as u64;
    let leaf_block = leaf_with_entries(&asked("htree_dump wide"), 20);
    let of_leaf = format!("checksum of block {leaf_block}");
    // Where a bit is changed, what the doubt says, of which file, and the fewest and most paths that may differ.
    let cases = [
        (block_of("wide", 0) * 1024 + 30, "checksum of block 0", true, 0, 0),
        (block_of("wide", 1) * 1024 + 30, "checksum of block 1", true, 0, 40),
        (block_of("wide", leaf_block) * 1024 + 30, &of_leaf, true, 1, 40),
        (inode_at("small/100") + 0x10, "checksum", true, 1, 1),
        (leaf * 1024 + 13, "checksum of extent block", true, 1, 1),
        (number(&dump, "Inode bitmap at ") * 1024 + 1, "inode bitmap of group 0", false, 0, 0),
    ];
    for (at, why, of_file, least, most) in cases {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        fs::write(&volume, bytes).unwrap();
        let filesystem = open(&volume);
        let catalog = Catalog::read(&*filesystem).unwrap();
        let doubts = catalog.doubts();
        assert_eq!(doubts.len(), 1, "{why}: {doubts:?}");
        assert!(doubts[0].why.contains(why) && doubts[0].file.is_some() == of_file, "{why}: {doubts:?}");
        if why.starts_with("checksum of block") {
            assert_eq!(doubts[0].file, Some(FileId(wide)));
        }
        let left = list_scanned(&*filesystem, &catalog);
        let differing = whole.iter().filter(|(path, line)| left.get(*path) != Some(line)).count();
        assert!((least..=most).contains(&differing), "{why}: {differing} differ");
        assert!(left.keys().all(|path| whole.contains_key(path)), "{why}");
    }
    let mut bytes = good;
    bytes[number(&dump, "Block bitmap at ") * 1024 + 900] ^= 1;
    fs::write(&volume, bytes).unwrap();
    let mut spans = ExtentSet::<Volume>::new();
    let error = open(&volume).each_free_span(&mut |span| spans.push(span)).unwrap_err();
    assert_eq!(error.cause(), Some(&Corrupt::BlockBitmapChecksum { group: 0 }));
    let first_group_end = (1 + field(&dump, "Blocks per group")) * 1024;
    assert!(spans.iter().all(|span| span.start().get() >= first_group_end), "none is free in a broken group");
    assert!(spans.total_bytes() > 20 << 20, "the others are told");
}

/// A volume that is not to be copied by its used map can still be looked at; one that was not understood says so.
#[test]
fn volumes_in_doubt_are_listed() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    fill(&volume, 96, "-t ext2 -b 1024", 100, "rw");
    let whole = list_scanned(&*open(&volume), &read(&*open(&volume), "clean"));
    debugfs(&volume, "ssv state 0");
    let filesystem = open(&volume);
    assert_eq!(filesystem.facts().state.word(), "dirty");
    assert_same(&list_scanned(&*filesystem, &read(&*filesystem, "dirty")), &whole, "dirty");

    debugfs(&volume, "ssv feature_incompat 0x40002");
    let filesystem = filesystem::ext::open(&source(&volume)).unwrap().unwrap();
    let catalog = Catalog::read(&*filesystem).unwrap();
    assert!(catalog.doubts()[0].why.contains("incompat feature 0x40000"), "{:?}", catalog.doubts());
    assert!(filesystem.each_free_span(&mut |_| {}).is_err());
}
