//! Damaged volumes: an answer of the right kind, soon, and never a panic.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::support;
use crate::support::{debugfs, make, populate, text};
use block::{Error, ErrorKind, Memory, ReadAt};
use extent::{Offset, Span, Volume};
use filesystem::{Catalog, Check, FileSystem, Source, ext};
use testkit::{TimeLimit, check_hostile, run, scratch};

/// Opens, lists, checks and maps a volume.
fn try_all(bytes: Vec<u8>) -> Result<(), Error> {
    let source: Source = Arc::new(Memory::new(bytes));
    let Some(filesystem) = ext::open(&source)? else {
        return Ok(());
    };
    let whole = Span::from_zero(ReadAt::<Volume>::len_bytes(&*source));
    list(&*filesystem, whole);
    let map = filesystem.used_map(Check::Quick)?;
    let quick = map.uses(whole);
    filesystem.used_map(Check::Full)?.uses(whole)?;
    quick.map(|_| ())
}

#[test]
fn damaged_superblocks_and_truncated_volumes() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    fs::create_dir(dir.path().join("contents")).unwrap();
    fs::write(dir.path().join("contents/file"), vec![1; 40_000]).unwrap();
    // Without checksums, so that what is behind them is met.
    fs::File::create(&volume).unwrap();
    make(&volume, 1, "-t ext2 -b 1024 -N 32", Some(&dir.path().join("contents")));
    let mut good = fs::read(&volume).unwrap();
    // The boot block is of no interest, and the test is quicker without it.
    good.truncate(1 << 20);
    check_hostile(&good[..], 0x58 + 1024, |file| {
        let mut bytes = vec![0; usize::try_from(file.len_bytes()).unwrap()];
        file.read_at(Offset::new(0), &mut bytes)?;
        try_all(bytes)
    });
}

/// Whatever is broken is a doubt: no error, and nothing past the end.
fn list(filesystem: &dyn FileSystem, whole: Span<Volume>) -> Catalog {
    let catalog = Catalog::read(filesystem).unwrap();
    for stream in catalog.streams() {
        assert!(stream.path().starts_with(b"/"));
        assert!(stream.extents().all(|extent| whole.covers(&extent.span) && !extent.span.is_empty()));
    }
    let mut end = 0;
    let told = filesystem.each_free_span(&mut |span| {
        assert!(whole.covers(&span) && !span.is_empty() && (end == 0 || span.start().get() > end));
        end = span.end().get();
    });
    if let Err(error) = told {
        let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::Refused];
        assert!(kinds.contains(&error.kind()), "{error:?}");
    }
    catalog
}

/// A generator of numbers: small, and the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn damaged_metadata() {
    let dir = scratch();
    let contents = dir.path().join("contents");
    populate(&contents);
    let volume = dir.path().join("volume");
    for args in [
        "-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg",
        "-t ext3 -b 1024",
        "-t ext4 -b 1024 -O bigalloc,^metadata_csum -C 4096",
    ] {
        make(&volume, 20, args, Some(&contents));
        let blocks = dir.path().join("blocks");
        fs::write(&blocks, vec![0xff; 3072]).unwrap();
        debugfs(&volume, &format!("jo\njw -b 19000,19001,19002 {}\njw -r 19000\njc", text(&blocks)));
        let good = fs::read(&volume).unwrap();
        let places = metadata(&volume, &good);
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
        for round in 0..400 {
            let mut bytes = good.clone();
            for _ in 0..=numbers.below(3) {
                let at = places[numbers.below(places.len())] + numbers.below(256) * 4;
                let value = match numbers.below(4) {
                    0 => u32::MAX,
                    1 => numbers.below(64) as u32,
                    2 => numbers.below(20 << 10) as u32,
                    _ => 1 << numbers.below(32),
                };
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            let limit = TimeLimit::of(Duration::from_secs(3));
            match catch_unwind(AssertUnwindSafe(|| try_all(bytes))) {
                Err(_) => panic!("{args}, round {round}: panicked"),
                Ok(Err(error)) => assert!(
                    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Refused),
                    "{args}, round {round}: {error:?}"
                ),
                Ok(Ok(())) => {}
            }
            limit.check(&format!("{args}, round {round}"));
        }
    }
}

/// Where blocks of metadata start: superblock, descriptors, tables, block maps and the used part of the journal.
fn metadata(volume: &std::path::Path, bytes: &[u8]) -> Vec<usize> {
    let dump = run("dumpe2fs", &[text(volume)]);
    let numbers_after = |prefix: &str| -> Vec<usize> {
        let parts = dump.split(prefix).skip(1);
        parts.map(|part| part.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()).collect()
    };
    let mut places = vec![1024, 1024, 2048, 2048];
    for table in numbers_after("Inode table at ") {
        places.extend((0..4).map(|block| (table + block) * 1024));
    }
    for prefix in ["Block bitmap at ", "Inode bitmap at "] {
        places.extend(numbers_after(prefix).iter().map(|block| block * 1024));
    }
    // Extent blocks, all that the journal put its magic on, and first blocks of directories.
    let starts = |block: &[u8]| {
        block.starts_with(&[0x0a, 0xf3])
            || block.starts_with(&[0xc0, 0x3b, 0x39, 0x98])
            || block[4..].starts_with(b"\x0c\0\x01\x02.")
    };
    let chunks = bytes.chunks(1024).enumerate();
    places.extend(chunks.filter(|(_, block)| starts(block)).map(|(index, _)| index * 1024));
    places
}

/// A file of blocks of pointers that lead to themselves ends at the first that is met twice.
#[test]
fn pointers_in_circles_end() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    let contents = dir.path().join("contents");
    fs::create_dir(&contents).unwrap();
    fs::write(contents.join("file"), vec![1; 400_000]).unwrap();
    make(&volume, 20, "-t ext2 -b 1024", Some(&contents));
    let good = fs::read(&volume).unwrap();
    let stat = run("debugfs", &["-R", "stat file", text(&volume)]);
    let number = |name: &str| -> usize {
        let rest = stat.split(name).nth(1).unwrap_or_else(|| panic!("{stat}"));
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let indirect = number("(IND):");
    let mut bytes = good;
    for pointer in bytes[indirect * 1024..][..1024].chunks_mut(4) {
        pointer.copy_from_slice(&(indirect as u32).to_le_bytes());
    }
    fs::write(&volume, bytes).unwrap();
    debugfs(&volume, &format!("sif file block[TIND] {indirect}\nsif file block[IND] 0"));
    let limit = TimeLimit::of(Duration::from_secs(1));
    let why = support::doubt(&volume).expect("a doubt");
    assert!(why.contains("twice"), "{why}");
    let catalog = Catalog::read(&*support::open(&volume)).unwrap();
    let [doubt] = catalog.doubts() else { panic!("{:?}", catalog.doubts()) };
    assert!(doubt.why.contains("twice") && doubt.file.is_some(), "{doubt:?}");
    limit.check("a file of blocks in circles");
}

/// The journal's inode is walked before any ownership is known.
#[test]
fn a_journal_of_blocks_in_circles_ends() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    make(&volume, 32, "-t ext3 -b 4096", None);
    let stat = run("debugfs", &["-R", "stat <8>", text(&volume)]);
    let indirect: usize = {
        let rest = stat.split("(IND):").nth(1).unwrap_or_else(|| panic!("{stat}"));
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    let mut bytes = fs::read(&volume).unwrap();
    for pointer in bytes[indirect * 4096..][..4096].chunks_mut(4) {
        pointer.copy_from_slice(&(indirect as u32).to_le_bytes());
    }
    fs::write(&volume, bytes).unwrap();
    debugfs(&volume, &format!("sif <8> block[TIND] {indirect}\nsif <8> size 0x400000000000"));
    let limit = TimeLimit::of(Duration::from_secs(1));
    let why = support::doubt(&volume).expect("a doubt");
    assert!(why.contains("pieces") || why.contains("too many"), "{why}");
    limit.check("a journal of blocks in circles");
}

/// Directories whose sizes, blocks and parents make no sense cost no more than the volume, and end.
#[test]
fn directories_without_end_end() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    let contents = dir.path().join("contents");
    fs::create_dir_all(contents.join("a/b")).unwrap();
    for args in ["-t ext2 -b 1024", "-t ext4 -b 1024 -O ^metadata_csum"] {
        make(&volume, 20, args, Some(&contents));
        // An extent, or pointers, of the root's one block again and again; a size of 2 GiB.
        let first = match args.contains("ext4") {
            true => "sif a block[2] 0x1\nsif a block[4] 0x80000000\nsif a block[5] 0x1",
            false => "sif a block[1] 1\nsif a block[2] 1\nsif a block[3] 2",
        };
        debugfs(&volume, &format!("{first}\nsif a size 0x7ffffc00\nsif a/b links_count 1"));
        // `b` becomes another name of its parent.
        debugfs(&volume, "cd a\nunlink b\nln <2> b");
        let limit = TimeLimit::of(Duration::from_secs(1));
        let filesystem = support::open(&volume);
        let catalog = list(&*filesystem, Span::from_zero(20 << 20));
        assert!(catalog.doubt_count() > 0, "{args}");
        assert!(
            catalog.streams().any(|stream| stream.path() == b"/lost+found"),
            "{args}: others have their names"
        );
        limit.check(args);
    }
}

/// Every directory claims the same large part of the volume.
#[test]
fn many_directories_of_the_same_blocks_end() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    let contents = dir.path().join("contents");
    for index in 0..500 {
        fs::create_dir_all(contents.join(format!("directory {index}"))).unwrap();
    }
    make(&volume, 40, "-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg,^has_journal", Some(&contents));
    let mut bytes = fs::read(&volume).unwrap();
    // The one extent of each: 32768 blocks from block 2000, and a size to match.
    let one_block =
        [[0x0a, 0xf3, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]].concat();
    let roots: Vec<_> = (0..bytes.len() - 256)
        .step_by(256)
        .filter(|at| bytes[at + 40..].starts_with(&one_block[..18]) && bytes[at + 1] >> 4 == 4)
        .collect();
    assert!(roots.len() >= 500, "{}", roots.len());
    for at in roots {
        bytes[at + 4..at + 8].copy_from_slice(&(32_768u32 << 10).to_le_bytes());
        bytes[at + 56..at + 58].copy_from_slice(&32_768u16.to_le_bytes());
        bytes[at + 60..at + 64].copy_from_slice(&2000u32.to_le_bytes());
    }
    fs::write(&volume, &bytes).unwrap();
    let limit = TimeLimit::of(Duration::from_secs(2));
    let catalog = list(&*support::open(&volume), Span::from_zero(40 << 20));
    let doubts = catalog.doubts();
    assert!(
        catalog.doubt_count() > 400 && doubts.iter().any(|doubt| doubt.why.contains("rec_len")),
        "{doubts:?}"
    );
    limit.check("directories of the same blocks");
}
