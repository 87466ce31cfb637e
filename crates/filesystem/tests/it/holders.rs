//! What holds a volume is found before what is on it, at all of its places, and is what `blkid` finds.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use block::{Memory, ReadAt, Result};
use extent::{Volume, VolumeOffset};
use filesystem::{Check, FileSystem, Scope, Source, State, holder};
use testkit::holders::{self, Planted, planted};

const LEN_BYTES: u64 = 16 << 20;

fn source(bytes: Vec<u8>) -> Source {
    Arc::new(Memory::new(bytes))
}

/// What `blkid` calls the volume; `None` if it finds nothing, or more than one thing.
fn blkid(path: &Path, tag: &str) -> Option<String> {
    let output = Command::new("blkid").args(["-p", "-o", "value", "-s", tag]).arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn opened(bytes: &[u8]) -> Box<dyn FileSystem> {
    filesystem::open(&source(bytes.to_vec())).unwrap().expect("recognised")
}

/// As of a disk without partitions.
fn first_holder(bytes: &[u8]) -> Option<holder::Holder> {
    holder::find(&source(bytes.to_vec()), Scope::Disk).unwrap().into_iter().next()
}

#[test]
fn every_holder_is_found_and_is_what_blkid_finds() {
    let dir = testkit::scratch();
    let path = dir.path().join("volume");
    for case in planted(LEN_BYTES) {
        let mut bytes = vec![0; LEN_BYTES.try_into().unwrap()];
        case.plant(&mut bytes);
        let holder = first_holder(&bytes).expect(case.case);
        assert_eq!(holder.name(), case.name, "{}", case.case);
        assert!(!holder.reason().contains("is wrong"), "{}: {}", case.case, holder.reason());
        if let Some(theirs) = case.blkid {
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(blkid(&path, "TYPE").as_deref(), Some(theirs), "{}", case.case);
        }
    }
}

/// A file system of ext with nothing wrong about it.
fn ext() -> Vec<u8> {
    let dir = testkit::scratch();
    let path = dir.path().join("volume");
    File::create(&path).unwrap().set_len(LEN_BYTES).unwrap();
    testkit::run("mkfs.ext4", &["-q", "-F", path.to_str().unwrap()]);
    std::fs::read(path).unwrap()
}

#[test]
fn a_holder_comes_before_the_file_system_that_shines_through() {
    let plain = ext();
    assert_eq!(opened(&plain).facts().state, State::Clean);
    for case in planted(LEN_BYTES).iter().filter(|case| case.spares_ext) {
        let mut bytes = plain.clone();
        case.plant(&mut bytes);
        assert!(first_holder(&bytes).is_some(), "{} on a disk", case.case);
        let filesystem = opened(&bytes);
        if case.is_of_disks {
            assert_eq!(filesystem.facts().filesystem, "ext4", "{} is not of partitions", case.case);
        } else {
            assert_held(case, &*filesystem);
        }
    }
}

fn assert_held(case: &Planted, filesystem: &dyn FileSystem) {
    let facts = filesystem.facts();
    assert_eq!(facts.filesystem, case.name, "{}", case.case);
    let reason = facts.state.doubt().expect(case.case).to_owned();
    let map = filesystem.used_map(Check::Full).err().expect("no used map");
    let moved = filesystem.rearrange().err().expect("nothing is moved");
    assert_eq!(map.to_string(), reason);
    assert_eq!(moved.to_string(), format!("the files of {} are not moved: {reason}", case.name));
}

#[test]
fn swap_signatures_do_not_hide_a_member() {
    let dir = testkit::scratch();
    let path = dir.path().join("volume");
    File::create(&path).unwrap().set_len(LEN_BYTES).unwrap();
    testkit::run("mkswap", &[path.to_str().unwrap()]);
    let plain = std::fs::read(path).unwrap();
    assert_eq!(opened(&plain).facts().state, State::Clean);
    // All but those that lie over the signature itself, or the header before it.
    for case in planted(LEN_BYTES)
        .iter()
        .filter(|case| !case.is_of_disks && !case.case.starts_with("ZFS at the start"))
    {
        let mut bytes = plain.clone();
        case.plant(&mut bytes);
        assert_held(case, &*opened(&bytes));
    }
}

/// A hibernated guest concerns the other volumes of the disk, whoever holds this one.
#[test]
fn a_hibernated_guest_shows_through() {
    let mut bytes = vec![0; LEN_BYTES.try_into().unwrap()];
    bytes[4086..4096].copy_from_slice(b"S1SUSPEND\0");
    bytes[1024] = 1;
    holders_at_end(&mut bytes);
    let filesystem = opened(&bytes);
    assert_eq!(filesystem.facts().filesystem, "md-raid");
    assert!(matches!(filesystem.facts().state, State::Hibernated(_)), "{:?}", filesystem.facts().state);
}

fn holders_at_end(bytes: &mut [u8]) {
    planted(LEN_BYTES).iter().find(|case| case.case == "md 1.0").unwrap().plant(bytes);
}

#[test]
fn uuid_label_and_level_are_told() {
    let dir = testkit::scratch();
    let path = dir.path().join("volume");
    for name in ["md 1.0", "md 1.1", "md 1.2", "md 0.90", "md 0.90, big-endian", "LVM2", "LUKS1", "LUKS2"] {
        let case = planted(LEN_BYTES).into_iter().find(|case| case.case == name).unwrap();
        let mut bytes = vec![0; LEN_BYTES.try_into().unwrap()];
        case.plant(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        let filesystem = opened(&bytes);
        let facts = filesystem.facts();
        assert_eq!(
            (facts.uuid.clone(), facts.label.clone()),
            (blkid(&path, "UUID"), blkid(&path, "LABEL")),
            "{name}"
        );
        if let Some(version) =
            name.strip_prefix("md ").map(|version| version.trim_end_matches(", big-endian"))
        {
            let details = [("version", version), ("level", "1"), ("disks", "2")];
            assert_eq!(facts.details, details.map(|(name, value)| (name, value.to_owned())));
        }
    }
    let mut bytes = vec![0; LEN_BYTES.try_into().unwrap()];
    planted(LEN_BYTES).iter().find(|case| case.case == "ZFS at the end").unwrap().plant(&mut bytes);
    let filesystem = opened(&bytes);
    assert_eq!(filesystem.facts().uuid.as_deref(), Some("4711"));
    assert_eq!(filesystem.facts().label.as_deref(), Some("tank"));
}

/// One that a checksum speaks against may be a leftover, or a member all the same.
#[test]
fn a_wrong_checksum_is_told_and_holds_all_the_same() {
    for (name, at) in
        [("md 1.0", 64), ("md 0.90", 100), ("LVM2", 100), ("DDF", 200), ("Intel", 50), ("NVIDIA", 30)]
    {
        let case = planted(LEN_BYTES).into_iter().find(|case| case.case == name).unwrap();
        let mut bytes = vec![0; LEN_BYTES.try_into().unwrap()];
        case.plant(&mut bytes);
        bytes[usize::try_from(case.patches[0].0).unwrap() + at] ^= 0x5a;
        let holder = first_holder(&bytes).expect(name);
        assert!(holder.reason().contains("checksum of its metadata is wrong"), "{name}: {}", holder.reason());
        assert!(holder.reason().contains("remove the signature"), "{name}: {}", holder.reason());
    }
}

/// At the end of a disk and of its last partition is one place: who says where it lies is believed, else its size tells.
#[test]
fn metadata_of_another_device_are_not_of_this_one() {
    let in_last_area = usize::try_from(LEN_BYTES - 65_536).unwrap();
    let with = |at: usize, superblock: &[u8]| {
        let mut bytes = vec![0; LEN_BYTES.try_into().unwrap()];
        bytes[at..at + superblock.len()].copy_from_slice(superblock);
        source(bytes)
    };
    let too_large = with(in_last_area, &holders::md_0_90(20 << 10, false));
    assert!(holder::find(&too_large, Scope::Partition).unwrap().is_empty());
    assert!(!holder::find(&too_large, Scope::Disk).unwrap()[0].is_certain());
    let fits = with(in_last_area, &holders::md_0_90(10 << 10, false));
    assert!(holder::find(&fits, Scope::Partition).unwrap()[0].is_certain());
    let elsewhere =
        with(usize::try_from(LEN_BYTES - 8192).unwrap(), &holders::md_1(LEN_BYTES - 8192 + (1 << 20)));
    assert!(holder::find(&elsewhere, Scope::Disk).unwrap().is_empty());
    let no_primary = with(usize::try_from(LEN_BYTES - 512).unwrap(), &holders::ddf(5));
    assert!(!holder::find(&no_primary, Scope::Partition).unwrap()[0].is_certain());
}

struct VolumeFile(File);

impl ReadAt<Volume> for VolumeFile {
    fn len_bytes(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        self.0.read_exact_at(buf, at.get()).map_err(|error| block::Error::io("read", error))
    }
}

/// What is made over what, with the tools that make it: where `blkid` sees one file system it is used only, where it sees more it
/// is in doubt.
#[test]
fn made_over_one_another() {
    let make = |what: &str| match what {
        "ntfs" => "mkntfs -q -F -f {} 2>&1",
        "swap" => "mkswap {} 2>&1",
        "ext4" => "mkfs.ext4 -q -F {}",
        "ext2" => "mkfs.ext2 -q -F {}",
        "xfs" => "mkfs.xfs -q -f {}",
        "btrfs" => "mkfs.btrfs -q -f {}",
        "fat" => "mkfs.fat -F 32 {}",
        other => unreachable!("{other}"),
    };
    let dir = testkit::scratch();
    let path = dir.path().join("volume");
    let mut in_doubt = Vec::new();
    for new in ["ntfs", "ext4", "ext2", "swap"] {
        for old in ["ntfs", "ext4", "swap", "xfs", "btrfs", "fat"] {
            File::create(&path).unwrap().set_len(320 << 20).unwrap();
            let script = format!("{}; {}", make(old), make(new)).replace("{}", path.to_str().unwrap());
            testkit::run("sh", &["-ec", &script]);
            let source: Source = Arc::new(VolumeFile(File::open(&path).unwrap()));
            let filesystem = filesystem::open(&source).unwrap().unwrap();
            let facts = filesystem.facts();
            assert_eq!(facts.filesystem, new, "over {old}");
            let is_one = blkid(&path, "TYPE").is_some();
            assert_eq!(facts.state == State::Clean, is_one, "{new} over {old}: {:?}", facts.state);
            if !is_one {
                assert!(facts.state.doubt().unwrap().contains("superblocks of both"), "{:?}", facts.state);
                in_doubt.push((new, old));
            }
        }
    }
    // mkntfs leaves what lies 64 KiB from the start.
    assert!(in_doubt.contains(&("ntfs", "btrfs")), "{in_doubt:?}");
}

#[test]
fn nothing_holds_what_has_no_metadata() {
    for len in [0, 1, 511, 512, 4096, 65_536, 1 << 20, 4 << 20] {
        for byte in [0, 0xff, 0x55] {
            for scope in [Scope::Partition, Scope::Disk] {
                assert!(holder::find(&source(vec![byte; len]), scope).unwrap().is_empty(), "{len} of {byte}");
            }
        }
    }
}

/// A volume with one byte changed.
struct Flipped {
    bytes: Arc<Vec<u8>>,
    at: usize,
    value: u8,
}

impl ReadAt<Volume> for Flipped {
    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        let start = usize::try_from(at.get()).unwrap();
        buf.copy_from_slice(&self.bytes[start..start + buf.len()]);
        if let Some(byte) = self.at.checked_sub(start).and_then(|index| buf.get_mut(index)) {
            *byte = self.value;
        }
        Ok(())
    }
}

#[test]
fn broken_metadata_never_panic() {
    const LEN: u64 = 8 << 20;
    for case in planted(LEN) {
        let mut bytes = vec![0; LEN.try_into().unwrap()];
        case.plant(&mut bytes);
        let bytes = Arc::new(bytes);
        let (at, metadata) = &case.patches[0];
        let (at, len) = (usize::try_from(*at).unwrap(), metadata.len());
        for index in (0..len.min(300)).step_by(3).chain((16_384..len.min(16_500)).step_by(3)) {
            let was = bytes[at + index];
            for value in [0xff, was ^ 0x80] {
                let source: Source = Arc::new(Flipped { bytes: bytes.clone(), at: at + index, value });
                let found = holder::find(&source, Scope::Disk).unwrap();
                found.iter().for_each(|holder| assert!(!holder.reason().is_empty()));
            }
        }
    }
}
