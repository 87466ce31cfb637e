//! A disk with an exFAT partition full of stale blocks, taken by what it uses.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::common::{arg, document, fail, number, succeed};
use tempfile::TempDir;
use testkit::loops::{unmount, wait_until_detached};
use testkit::{digest, run, scratch};

const MIB: u64 = 1 << 20;
const VOLUME_BYTES: u64 = 128 * MIB;
const STALE: u8 = 0xa5;

/// What `inside` does with the volume in a mount of exfat-fuse.
fn mounted(volume: &Path, options: &str, inside: impl FnOnce(&Path)) {
    let at = volume.with_extension("mounted");
    fs::create_dir_all(&at).unwrap();
    let device = run("losetup", &["-f", "--show", arg(volume)]).trim().to_owned();
    run("mount.exfat-fuse", &["-o", options, &device, arg(&at)]);
    inside(&at);
    unmount(&at);
    run("losetup", &["-d", &device]);
    wait_until_detached(volume);
}

/// A disk whose free space is full of what was there before.
fn disk() -> (TempDir, PathBuf) {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let (disk, volume, files, script) = (path("disk.raw"), path("volume"), path("files"), path("table"));
    File::create(&disk).unwrap().set_len(130 * MIB).unwrap();
    let part = format!("start=2048,size={},type=EBD0A0A2-B9E5-4433-87C0-68B6B72699C7\n", VOLUME_BYTES / 512);
    fs::write(&script, format!("label: gpt\n{part}")).unwrap();
    run("sh", &["-c", &format!("sfdisk -q {} < {}", arg(&disk), arg(&script))]);
    fs::write(&volume, vec![STALE; usize::try_from(VOLUME_BYTES).unwrap()]).unwrap();
    run("mkfs.exfat", &["-c", "4K", arg(&volume)]);
    fs::create_dir(&files).unwrap();
    for index in 1..=12_u8 {
        fs::write(files.join(format!("file {index}")), vec![index; usize::from(index) * 50_001]).unwrap();
    }
    mounted(&volume, "noatime", |at| {
        run("sh", &["-c", &format!("cp {}/* {}", arg(&files), arg(at))]);
        for index in [3, 8] {
            fs::remove_file(at.join(format!("file {index}"))).unwrap();
            fs::remove_file(files.join(format!("file {index}"))).unwrap();
        }
    });
    let target = File::options().write(true).open(&disk).unwrap();
    target.write_all_at(&fs::read(&volume).unwrap(), MIB).unwrap();
    (dir, disk)
}

/// Fails unless the partition of a raw disk is sound, has the files, and nothing of what was there before is in its clusters.
fn check(dir: &Path, raw: &Path, unit_bytes: usize) {
    let volume = dir.join("volume.found");
    let mut bytes = vec![0; usize::try_from(VOLUME_BYTES).unwrap()];
    File::open(raw).unwrap().read_exact_at(&mut bytes, MIB).unwrap();
    // What shares a unit of the image with something that is used stays when an image is compacted.
    let heap = usize::try_from(u32::from_le_bytes(bytes[88..92].try_into().unwrap())).unwrap() * 512;
    let stale = bytes[heap..].chunks(unit_bytes).filter(|unit| unit.iter().all(|byte| *byte == STALE));
    assert_eq!(stale.count(), 0);
    fs::write(&volume, bytes).unwrap();
    run("fsck.exfat", &["-n", arg(&volume)]);
    mounted(&volume, "ro", |at| {
        run("diff", &["-r", arg(&dir.join("files")), arg(at)]);
    });
}

#[test]
fn a_disk_with_exfat_is_copied_and_compacted() {
    let (dir, disk) = disk();
    let before = digest(&disk);
    let info = document("leandisk.info/1", &["info", arg(&disk)]);
    assert_eq!(info["volumes"][0]["filesystem"], "exfat");
    assert_eq!(info["volumes"][0]["mode"], "used-only");
    let said = run("dump.exfat", &[arg(&dir.path().join("volume"))]);
    let free = said.lines().find_map(|line| line.strip_prefix("Free Clusters:")).unwrap();
    assert_eq!(number(&info, "/volumes/0/free_bytes"), free.trim().parse::<u64>().unwrap() * 4096, "{said}");
    for format in ["raw", "qcow2", "vhdx"] {
        let target = dir.path().join(format!("copy.{format}"));
        let copied = document("leandisk.copy/1", &["copy", arg(&disk), arg(&target), "--verify"]);
        assert!(number(&copied, "/read_bytes") < 16 * MIB, "{copied}");
        let raw = dir.path().join("copied");
        run("qemu-img", &["convert", "-O", "raw", arg(&target), arg(&raw)]);
        check(dir.path(), &raw, 4096);
        let image = dir.path().join(format!("compact.{format}"));
        run("qemu-img", &["convert", "-O", format, "-S", "0", arg(&disk), arg(&image)]);
        let done = document("leandisk.compact/1", &["compact", arg(&image), "-f", format, "--verify"]);
        assert!(done["volumes"][0]["refused"].is_null(), "{done}");
        assert!(number(&done, "/freed_bytes") > 60 * MIB, "{done}");
        run("qemu-img", &["convert", "-f", format, "-O", "raw", arg(&image), arg(&raw)]);
        check(dir.path(), &raw, 64 << 20);
    }
    let analyzed = document("leandisk.analyze/1", &["analyze", arg(&disk)]);
    assert_eq!(analyzed["volumes"][0]["files"], 10);
    succeed(&["map", arg(&disk), "-o", arg(&dir.path().join("map.svg"))]);
    assert!(digest(&disk) == before, "the source was written");
}

#[test]
fn defrag_refuses_exfat_by_name() {
    let (_dir, disk) = disk();
    let before = digest(&disk);
    let said = fail(3, &["defrag", arg(&disk), "-f", "raw"]);
    assert!(said.contains("exfat"), "{said}");
    assert!(digest(&disk) == before, "refused, and written");
}
