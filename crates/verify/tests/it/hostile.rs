//! Whatever bytes a volume holds, the check and the snapshot end soon, with an error that is the volume's fault or none.

use std::fs::{self, File};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use crate::support::{source_of, text};
use block::{ErrorKind, Result};
use proptest::prelude::*;
use testkit::mounted::Mounted;
use testkit::{TimeLimit, noise, run, scratch};
use verify::volume::{Contents, Snapshot};

/// A small volume, and where its metadata are: blocks that are not zeros and not noise.
struct Good {
    bytes: Vec<u8>,
    places: Vec<usize>,
}

fn fill(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/file"), noise(1, 30_000)).unwrap();
    for index in 0..80 {
        fs::write(root.join(format!("a/b/a long name so that the index is large {index}")), "x").unwrap();
    }
    let sparse = File::create(root.join("sparse")).unwrap();
    for index in 0..60 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &noise(index, 1024), index * 8192).unwrap();
    }
}

fn good(bytes: Vec<u8>) -> Good {
    // Of noise all values of a byte are about as frequent.
    let is_metadata = |chunk: &[u8]| {
        let zeros = chunk.iter().filter(|byte| **byte == 0).count();
        zeros > 16 && zeros < chunk.len() - 4
    };
    let places =
        bytes.chunks(512).enumerate().filter(|(_, chunk)| is_metadata(chunk)).map(|(index, _)| index * 512);
    let places = places.collect();
    Good { bytes, places }
}

fn ntfs() -> &'static Good {
    static GOOD: OnceLock<Good> = OnceLock::new();
    GOOD.get_or_init(|| {
        let dir = scratch();
        let volume = dir.path().join("volume");
        File::create(&volume).unwrap().set_len(5 << 20).unwrap();
        run("mkntfs", &["-qQF", "-c", "1024", text(&volume)]);
        fill(Mounted::ntfs(&volume, "").path());
        good(fs::read(&volume).unwrap())
    })
}

fn ext(args: &'static str) -> Good {
    let dir = scratch();
    let volume = dir.path().join("volume");
    File::create(&volume).unwrap().set_len(4 << 20).unwrap();
    run(
        "mke2fs",
        &[&["-q", "-F", "-b", "1024"], &args.split(' ').collect::<Vec<_>>()[..], &[text(&volume)]].concat(),
    );
    fill(Mounted::ext(&volume, "").path());
    good(fs::read(&volume).unwrap())
}

/// Checksums would find all: without, what is damaged is met.
fn ext4() -> &'static Good {
    static GOOD: OnceLock<Good> = OnceLock::new();
    GOOD.get_or_init(|| ext("-t ext4 -O ^metadata_csum,^uninit_bg,^has_journal"))
}

fn ext2() -> &'static Good {
    static GOOD: OnceLock<Good> = OnceLock::new();
    GOOD.get_or_init(|| ext("-t ext2"))
}

fn judge<T>(what: &str, result: Result<T>) {
    if let Err(error) = result {
        let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::Refused];
        assert!(kinds.contains(&error.kind()), "{what}: {error:?}");
    }
}

fn try_all(bytes: Vec<u8>) {
    let limit = TimeLimit::of(Duration::from_secs(5));
    let source = source_of(bytes);
    judge("check", verify::volume::check(&source));
    if let Ok(Some(filesystem)) = filesystem::open(&source) {
        judge("snapshot", Snapshot::take(&filesystem.facts().identity(), &source, Contents::All, 1));
    }
    limit.check("a broken volume");
}

/// Places, widths and values to write there.
fn damage() -> impl Strategy<Value = Vec<(usize, usize, usize, u64)>> {
    let value = prop_oneof![
        any::<u64>(),
        0..64u64,
        0..5000u64,
        Just(u64::MAX),
        (0..64u32).prop_map(|shift| 1 << shift)
    ];
    prop::collection::vec((any::<usize>(), 0..510usize, 0..4usize, value), 1..4)
}

fn damaged(good: &Good, damage: &[(usize, usize, usize, u64)]) -> Vec<u8> {
    let mut bytes = good.bytes.clone();
    for (place, within, width, value) in damage {
        // The last two bytes of a sector are the update sequence's: they would hide all else.
        let len = (1 << width).min(510 - within);
        let at = good.places[place % good.places.len()] + within;
        bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_ntfs(damage in damage()) {
        try_all(damaged(ntfs(), &damage));
    }

    #[test]
    fn damaged_ext4(damage in damage()) {
        try_all(damaged(ext4(), &damage));
    }

    #[test]
    fn damaged_ext2(damage in damage()) {
        try_all(damaged(ext2(), &damage));
    }
}

#[test]
fn volumes_cut_short() {
    for good in [ntfs(), ext4(), ext2()] {
        verify::volume::check(&source_of(good.bytes.clone())).unwrap();
        for len in (0..good.bytes.len()).step_by(100_003).chain([1, 511, 512, 1024, 2047, 2048]) {
            try_all(good.bytes[..len].to_vec());
        }
    }
    assert!(
        verify::volume::check(&source_of(vec![0; 1 << 20]))
            .is_err_and(|error| error.kind() == ErrorKind::Unsupported)
    );
}
