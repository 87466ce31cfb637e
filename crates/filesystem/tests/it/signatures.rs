//! What a volume is called must be what `blkid` calls it, with the same label and UUID, on volumes that each file
//! system's own tools made.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use block::{Memory, ReadAt, Result};
use extent::{Offset, Volume, VolumeOffset};
use filesystem::{Check, Facts, FileSystem, Source, State};

struct VolumeFile(File);

impl ReadAt<Volume> for VolumeFile {
    fn len_bytes(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        self.0.read_exact_at(buf, at.get()).map_err(|error| block::Error::io("read", error))
    }
}

struct Made {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

/// A volume of so many MiB on which `command` ran; `{}` in it is the volume.
fn make(mebibytes: u64, command: &str) -> Made {
    let dir = testkit::scratch();
    let path = dir.path().join("volume");
    File::create(&path).unwrap().set_len(mebibytes << 20).unwrap();
    testkit::run("sh", &["-ec", &command.replace("{}", path.to_str().unwrap())]);
    Made { path, _dir: dir }
}

impl Made {
    fn blkid(&self) -> HashMap<String, String> {
        testkit::run("blkid", &["-p", "-o", "export", self.path.to_str().unwrap()])
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.replace('\\', "")))
            .collect()
    }

    fn open(&self) -> Box<dyn FileSystem> {
        let source: Source = Arc::new(VolumeFile(File::open(&self.path).unwrap()));
        filesystem::open(&source).unwrap().expect("recognised")
    }

    #[track_caller]
    fn agrees(&self, name: &str) -> Facts {
        let theirs = self.blkid();
        let filesystem = self.open();
        let facts = filesystem.facts().clone();
        assert_eq!(facts.filesystem, name, "blkid: {theirs:?}");
        assert_eq!(facts.uuid.as_ref(), theirs.get("UUID"), "UUID of {name}; blkid: {theirs:?}");
        assert_eq!(facts.label.as_ref(), theirs.get("LABEL"), "label of {name}; blkid: {theirs:?}");
        assert!(facts.size_bytes <= std::fs::metadata(&self.path).unwrap().len(), "{name}: {facts:?}");
        let is_btrfs_alone = name == "btrfs" && facts.details[0] == ("devices", "1".to_owned());
        let is_read = name.starts_with("fat") || name == "exfat" || name == "xfs" || is_btrfs_alone;
        assert_eq!(facts.state.doubt().is_none(), is_read, "{name}: {facts:?}");
        assert_eq!(filesystem.used_map(Check::Full).is_ok(), is_read, "whether {name} has a used map");
        facts
    }
}

#[test]
fn xfs() {
    let facts = make(320, "mkfs.xfs -q -L 'a label' {}").agrees("xfs");
    assert_eq!((facts.cluster_bytes, facts.size_bytes), (Some(4096), 320 << 20));
    assert!(facts.free_bytes.is_some_and(|free| free > 200 << 20 && free < 320 << 20));
    assert_eq!(facts.details, [("version", "5".to_owned())]);
    let old = make(320, "mkfs.xfs -q -m crc=0 -b size=1024 {}").agrees("xfs");
    assert_eq!(old.details, [("version", "4".to_owned())]);
}

#[test]
fn btrfs() {
    let facts = make(128, "mkfs.btrfs -q -L 'some label' {}").agrees("btrfs");
    assert_eq!(facts.size_bytes, 128 << 20);
    let two = make(128, "truncate -s 128M {}.2; mkfs.btrfs -q -d single -m raid1 {} {}.2");
    let facts = two.agrees("btrfs");
    assert!(facts.state.doubt().unwrap().contains("one of the 2 devices"));
}

#[test]
fn fat() {
    let facts = make(4, "mkfs.fat -F 12 -n LABEL12 {}").agrees("fat12");
    assert_eq!(facts.size_bytes, 4 << 20);
    make(64, "mkfs.fat -F 16 {}").agrees("fat16");
    make(64, "mkfs.fat -F 16 -S 4096 -n 'TWO WORDS' {}").agrees("fat16");
    let facts = make(300, "mkfs.fat -F 32 -s 8 -n ESP {}").agrees("fat32");
    assert_eq!(facts.cluster_bytes, Some(4096));
    make(64, "mkfs.fat -F 32 {}").agrees("fat32");
    // The label of the root directory is the one that systems show.
    let renamed = make(64, "mkfs.fat -F 32 -n BEFORE {}; mlabel -i {} ::AFTER || fatlabel {} AFTER");
    assert_eq!(renamed.agrees("fat32").label.as_deref(), Some("AFTER"));
}

#[test]
fn exfat() {
    let facts = make(64, "mkfs.exfat -L etiquette {}").agrees("exfat");
    assert_eq!(facts.size_bytes, 64 << 20);
    make(64, "mkfs.exfat -c 64K {}").agrees("exfat");
}

#[test]
fn other_file_systems_of_linux() {
    make(128, "mkfs.f2fs -q -l etiquette {}").agrees("f2fs");
    make(64, "mkfs.jfs -q -L jlabel {}").agrees("jfs");
    make(64, "mkfs.reiserfs -q -f -f -l rlabel {}").agrees("reiserfs");
    make(160, "mkfs.nilfs2 -q -L nlabel {}").agrees("nilfs2");
}

#[test]
fn read_only_file_systems() {
    make(1, "mkdir {}.d; echo x > {}.d/f; rm {}; mksquashfs {}.d {} -quiet -no-progress").agrees("squashfs");
    let iso = make(1, "mkdir {}.d; echo x > {}.d/f; genisoimage -quiet -V 'A DISC' -o {} {}.d");
    // What blkid calls the UUID of a disc is the time it was made.
    let filesystem = iso.open();
    let facts = filesystem.facts();
    assert_eq!((facts.filesystem.as_str(), facts.label.as_deref()), ("iso9660", Some("A DISC")));
    assert_eq!(make(64, "mkudffs {}").open().facts().filesystem, "udf");
}

#[test]
fn luks() {
    let format = "echo secret | cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000";
    let facts = make(32, &format!("{format} --type luks2 --label hidden {{}} -")).agrees("luks2");
    assert!(matches!(facts.state, State::Encrypted(_)));
    let facts = make(32, &format!("{format} --type luks1 {{}} -")).agrees("luks1");
    assert!(matches!(facts.state, State::Encrypted(_)));
    assert_eq!(facts.details, [("cipher", "aes-xts-plain64".to_owned())]);
}

#[test]
fn lvm2() {
    let script = "device=$(losetup --show -f {}); trap 'losetup -d $device' EXIT; pvcreate -q -ff -y $device";
    let facts = make(32, script).agrees("lvm2");
    assert!(facts.state.doubt().unwrap().contains("LVM2"));
}

/// Those that no tool here makes: their magic numbers where `blkid` looks for them, or their documents say.
#[test]
fn magic_numbers_alone() {
    type Patch = (usize, &'static [u8]);
    let cases: Vec<(&str, Vec<Patch>)> = vec![
        ("bitlocker", vec![(0, b"\xeb\x58\x90-FVE-FS-"), (510, b"\x55\xaa")]),
        ("bitlocker", vec![(0, b"\xeb\x52\x90-FVE-FS-"), (510, b"\x55\xaa")]),
        (
            "bitlocker",
            vec![
                (3, b"MSWIN4.1"),
                (424, b"\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01"),
            ],
        ),
        ("refs", vec![(3, b"ReFS\0\0\0\0"), (16, b"FSRS")]),
        ("apfs", vec![(32, b"NXSB")]),
        ("hfsplus", vec![(1024, b"H+\0\x04")]),
        ("hfsx", vec![(1024, b"HX\0\x05")]),
        ("hfs", vec![(1024, b"BD")]),
        ("ufs2", vec![(65_536 + 1372, &[0x19, 0x01, 0x54, 0x19])]),
        ("ufs1", vec![(8192 + 1372, &[0x00, 0x01, 0x19, 0x54])]),
        ("zfs", vec![(131_072, b"\x0c\xb1\xba\0\0\0\0\0"), (132_096, b"\x0c\xb1\xba\0\0\0\0\0")]),
        ("vmfs", vec![(1 << 20, b"\x0d\xd0\x01\xc0")]),
        ("vmfs", vec![(2 << 20, b"\x5e\xf1\xab\x2f")]),
        ("bcachefs", vec![(4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef")]),
        ("bcache", vec![(4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81")]),
        ("gfs2", vec![(65_536, b"\x01\x16\x19\x70\0\0\0\x01")]),
        ("ocfs2", vec![(8192, b"OCFSV2")]),
        ("erofs", vec![(1024, b"\xe2\xe1\xf5\xe0")]),
        ("dm-integrity", vec![(0, b"integrt\0")]),
    ];
    for (name, patches) in cases {
        let mut bytes = vec![0; 4 << 20];
        for (at, magic) in patches {
            bytes[at..at + magic.len()].copy_from_slice(magic);
        }
        assert_eq!(open(bytes).expect(name).facts().filesystem, name);
    }
}

fn open(bytes: Vec<u8>) -> Option<Box<dyn FileSystem>> {
    let source: Source = Arc::new(Memory::new(bytes));
    filesystem::open(&source).unwrap()
}

#[test]
fn nothing_is_nothing() {
    for len in [0, 1, 511, 512, 4096, 65_536, 4 << 20] {
        assert!(open(vec![0; len]).is_none(), "{len} zeros");
        assert!(open(vec![0xff; len]).is_none(), "{len} ones");
    }
}

#[test]
fn hostile_superblocks_never_panic() {
    for (made, len, header_bytes) in [
        (make(320, "mkfs.xfs -q {}"), 8 << 10, 256),
        (make(4, "mkfs.fat -F 12 {}"), 64 << 10, 512),
        (make(64, "mkfs.fat -F 32 {}"), 64 << 10, 512),
        (make(64, "mkfs.exfat {}"), 64 << 10, 512),
    ] {
        let mut good = vec![0; len];
        File::open(&made.path).unwrap().read_exact_at(&mut good, 0).unwrap();
        testkit::check_hostile(&good, header_bytes, |file| {
            let mut bytes = vec![0; usize::try_from(file.len_bytes()).unwrap()];
            file.read_at(Offset::ZERO, &mut bytes)?;
            open(bytes);
            Ok(())
        });
    }
}
