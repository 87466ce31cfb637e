//! A disk that boots by EFI: a FAT partition beside ext4, each taken by what it uses.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::common::{arg, document, number, succeed};
use tempfile::TempDir;
use testkit::{run, scratch};

const MIB: u64 = 1 << 20;
const ESP_BYTES: u64 = 64 * MIB;
const STALE: u8 = 0xa5;

/// A disk whose free space is full of what was there before.
fn disk() -> (TempDir, PathBuf) {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let (disk, esp, root) = (path("disk.raw"), path("esp"), path("root"));
    File::create(&disk).unwrap().set_len(200 * MIB).unwrap();
    let script = path("table");
    let parts = "start=2048,size=131072,type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B\nstart=133120,type=L\n";
    fs::write(&script, format!("label: gpt\n{parts}")).unwrap();
    run("sh", &["-c", &format!("sfdisk -q {} < {}", arg(&disk), arg(&script))]);
    fs::write(&esp, vec![STALE; usize::try_from(ESP_BYTES).unwrap()]).unwrap();
    run("mkfs.fat", &["-F", "32", arg(&esp)]);
    let files = path("files");
    fs::create_dir(&files).unwrap();
    for index in 1..=12_u8 {
        let file = files.join(format!("file {index}"));
        fs::write(&file, vec![index; usize::from(index) * 50_001]).unwrap();
        run("mcopy", &["-i", arg(&esp), arg(&file), "::/"]);
    }
    for index in [3, 8] {
        run("mdel", &["-i", arg(&esp), &format!("::/file {index}")]);
        fs::remove_file(files.join(format!("file {index}"))).unwrap();
    }
    File::create(&root).unwrap().set_len(100 * MIB).unwrap();
    run("mkfs.ext4", &["-q", "-F", "-d", arg(&files), arg(&root)]);
    let target = File::options().write(true).open(&disk).unwrap();
    target.write_all_at(&fs::read(&esp).unwrap(), MIB).unwrap();
    target.write_all_at(&fs::read(&root).unwrap(), MIB + ESP_BYTES).unwrap();
    (dir, disk)
}

/// Fails unless the partition of a raw disk is sound and has the files.
fn check(dir: &Path, raw: &Path) {
    let esp = dir.join("esp.found");
    let mut bytes = vec![0; usize::try_from(ESP_BYTES).unwrap()];
    File::open(raw).unwrap().read_exact_at(&mut bytes, MIB).unwrap();
    fs::write(&esp, bytes).unwrap();
    run("fsck.fat", &["-n", arg(&esp)]);
    let out = dir.join("out");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir(&out).unwrap();
    run("mcopy", &["-s", "-i", arg(&esp), "::/", arg(&out)]);
    run("diff", &["-r", arg(&dir.join("files")), arg(&out)]);
}

/// Fails unless nothing of what was there before is in a raw disk's clusters. Sectors that are reserved for boot code are kept,
/// whatever they hold.
fn check_nothing_stale(raw: &Path) {
    let mut bytes = vec![0; usize::try_from(ESP_BYTES - 4 * MIB).unwrap()];
    File::open(raw).unwrap().read_exact_at(&mut bytes, 5 * MIB).unwrap();
    let stale = bytes.chunks(4096).filter(|block| block.iter().all(|byte| *byte == STALE));
    assert_eq!(stale.count(), 0);
}

#[test]
fn a_disk_that_boots_by_efi_is_copied_and_compacted() {
    let (dir, disk) = disk();
    let info = document("leandisk.info/1", &["info", arg(&disk)]);
    assert_eq!(info["volumes"][0]["filesystem"], "fat32");
    assert_eq!(info["volumes"][0]["mode"], "used-only");
    let said = run("fsck.fat", &["-nv", arg(&dir.path().join("esp"))]);
    let clusters = said.rsplit(' ').find_map(|word| word.split_once('/'));
    let (used, all) = clusters.map(|(used, all)| (used, all.trim())).unwrap();
    let free = all.parse::<u64>().unwrap() - used.parse::<u64>().unwrap();
    assert_eq!(number(&info, "/volumes/0/free_bytes"), free * 512, "{said}");
    for format in ["raw", "qcow2", "vhdx"] {
        let target = dir.path().join(format!("copy.{format}"));
        let copied = document("leandisk.copy/1", &["copy", arg(&disk), arg(&target), "--verify"]);
        assert!(number(&copied, "/read_bytes") < 40 * MIB, "{copied}");
        let raw = dir.path().join("copied");
        run("qemu-img", &["convert", "-O", "raw", arg(&target), arg(&raw)]);
        check(dir.path(), &raw);
        check_nothing_stale(&raw);
        // What shares a unit with something that is used stays.
        let image = dir.path().join(format!("compact.{format}"));
        run("qemu-img", &["convert", "-O", format, "-S", "0", arg(&disk), arg(&image)]);
        let done = document("leandisk.compact/1", &["compact", arg(&image), "-f", format, "--verify"]);
        assert!(done["volumes"][0]["refused"].is_null(), "{done}");
        assert!(number(&done, "/freed_bytes") > 50 * MIB, "{done}");
        run("qemu-img", &["convert", "-f", format, "-O", "raw", arg(&image), arg(&raw)]);
        check(dir.path(), &raw);
    }
    let analyzed = document("leandisk.analyze/1", &["analyze", arg(&disk)]);
    assert_eq!(analyzed["volumes"][0]["files"], 10);
    succeed(&["map", arg(&disk), "-o", arg(&dir.path().join("map.svg"))]);
}
