//! Volumes of ext that contradict themselves, wait for their journal, or list bad blocks: what reads the source reads the copy, to
//! the byte, and what `e2fsck -fn` says of one it says of the other, line for line.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{arg, document, number, succeed};
use crate::defrag_common::{QCOW2, ext4, filefrag, volume};
use testkit::{as_root, ext_volume, run, scratch};

/// What `e2fsck -fn` says, and its status.
fn e2fsck(volume: &Path) -> String {
    let output = Command::new("e2fsck").args(["-fn", arg(volume)]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).replace(arg(volume), "it");
    format!("{said}{}", output.status)
}

fn copy(from: &Path, to: &Path, more: &[&str]) {
    let _ = fs::remove_file(to);
    succeed(&[&["copy", arg(from), arg(to)], more].concat());
}

/// A volume with a byte changed, in a folder of its own.
fn damaged(dir: &Path, at: u64) -> PathBuf {
    let disk = dir.join("disk.raw");
    run("cp", &["--sparse=always", arg(&ext4().raw), arg(&disk)]);
    let file = OpenOptions::new().read(true).write(true).open(&disk).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    disk
}

/// Where the structures of the first groups are, as dumpe2fs says.
fn places() -> Vec<(&'static str, u64)> {
    let dump = run("dumpe2fs", &[arg(&ext4().raw)]);
    let block = |words: &str, group: &str| -> u64 {
        let group = &dump[dump.find(group).unwrap()..];
        let rest = &group[group.find(words).unwrap() + words.len()..];
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    vec![
        ("superblock's count of blocks", 1024 + 4),
        ("superblock's size of descriptors", 1024 + 0xfe),
        ("superblock's seed", 1024 + 0x270),
        ("descriptor's bitmap", block("Group descriptors at ", "\nGroup 0: ") * 1024),
        ("second descriptor's checksum", block("Group descriptors at ", "\nGroup 0: ") * 1024 + 64 + 0x1e),
        ("block bitmap", block("Block bitmap at ", "\nGroup 0: ") * 1024 + 100),
        ("second block bitmap", block("Block bitmap at ", "\nGroup 1: ") * 1024),
        ("inode bitmap", block("Inode bitmap at ", "\nGroup 0: ") * 1024),
        ("root's inode", block("Inode table at ", "\nGroup 0: ") * 1024 + 256 + 0x28),
        ("journal's inode", block("Inode table at ", "\nGroup 0: ") * 1024 + 7 * 256 + 0x30),
    ]
}

#[test]
fn however_broken_a_volume_is_it_is_copied() {
    for (what, at) in places() {
        let dir = scratch();
        let disk = damaged(dir.path(), at);
        let expected = e2fsck(&disk);
        assert_ne!(expected, e2fsck(&ext4().raw), "{what}");
        let target = dir.path().join("copy.raw");
        copy(&disk, &target, &[]);
        assert_eq!(e2fsck(&target), expected, "{what}");
        for more in [&[][..], &["--layout", "packed"]] {
            copy(&disk, &target, &[&["--keep-free", "--keep-swap"], more].concat());
            assert!(fs::read(&disk).unwrap() == fs::read(&target).unwrap(), "{what} {more:?}: every byte");
        }
        succeed(&["info", arg(&disk)]);
        succeed(&["analyze", arg(&disk)]);
    }
}

/// All names and contents of the volume from `start` of a disk, mounted without a replay of its journal.
fn read_without_replay(disk: &Path, start: u64, dir: &Path) -> String {
    let sums = format!(
        "set -e; mkdir -p '{at}'; mount -t ext4 -o ro,noload,loop,offset={start} '{disk}' '{at}'; cd '{at}'
        {{ find . | sort; find . -type f -exec md5sum {{}} + | sort; }} 2>&1 || true
        cd /; umount '{at}'",
        at = dir.join("mounted").display(),
        disk = disk.display()
    );
    let output = as_root("sh", &["-c", &sums]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A disk with one volume, as a snapshot of a running guest has it: what the guest deleted at last is deleted in the journal alone.
fn snapshot(dir: &Path) -> PathBuf {
    let (volume, disk) = (dir.join("in use"), dir.join("disk.raw"));
    run("cp", &["--sparse=always", arg(&ext4().raw), arg(&volume)]);
    let mounted = ext_volume::Mounted::new(&volume, "rw");
    let delete = format!(
        "cd '{}' && find . -type f | sort | awk 'NR % 3 == 0' | tr '\\n' '\\0' | (xargs -0 rm -f || true) && sync . && cp --sparse=always '{}' '{}'",
        mounted.dir().display(),
        volume.display(),
        disk.display()
    );
    let output = as_root("sh", &["-c", &delete]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    drop(mounted);
    run("truncate", &["-s", "+1M", arg(&disk)]);
    disk
}

/// What a boot loader reads of a snapshot, which does not replay the journal, it reads of the copy.
#[test]
fn without_a_replay_a_running_guest_reads_the_same() {
    let dir = scratch();
    let disk = snapshot(dir.path());
    let expected = read_without_replay(&disk, 0, dir.path());
    let target = dir.path().join("copy.raw");
    copy(&disk, &target, &[]);
    // More than what is there after the replay.
    let files = |listed: &str| listed.lines().filter(|line| line.starts_with("./")).count();
    let replayed = dir.path().join("replayed.raw");
    run("cp", &[arg(&target), arg(&replayed)]);
    let _ = Command::new("e2fsck").args(["-y", "-E", "journal_only", arg(&replayed)]).output().unwrap();
    let fewer = read_without_replay(&replayed, 0, dir.path());
    assert!(files(&fewer) + 10 < files(&expected), "{} and {}", files(&fewer), files(&expected));

    let found = read_without_replay(&target, 0, dir.path());
    for (ours, theirs) in found.lines().zip(expected.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(found, expected);
    assert_eq!(e2fsck(&target), e2fsck(&disk));
    for (disk, into) in [(&disk, "ours"), (&target, "theirs")] {
        fs::create_dir(dir.path().join(into)).unwrap();
        run("debugfs", &["-R", &format!("rdump / {}", arg(&dir.path().join(into))), arg(disk)]);
    }
    run("diff", &["-r", "--no-dereference", arg(&dir.path().join("ours")), arg(&dir.path().join("theirs"))]);

    // What analyze promises is what a copy leaves out.
    let copied =
        document("leandisk.copy/1", &["copy", "--dry-run", arg(&disk), arg(&dir.path().join("no.raw"))]);
    let analyzed = document("leandisk.analyze/1", &["analyze", arg(&disk)]);
    let left_out = number(&copied, "/avoided/free_bytes");
    assert!(number(&analyzed, "/reclaimable_bytes") <= left_out);
}

/// Blocks that are listed as bad keep their bytes and their place, and are in nobody's way.
#[test]
fn bad_blocks_stay_where_they_are() {
    let dir = scratch();
    let (disk, list) = (dir.path().join("disk.raw"), dir.path().join("list"));
    let bad: Vec<u64> = (30_000..30_020).chain([12_345, 44_000]).collect();
    fs::write(&list, bad.iter().map(|block| format!("{block}\n")).collect::<String>()).unwrap();
    ext_volume::make(&disk, &format!("-t ext4 -b 1024 -l {}", arg(&list)), 7);
    let file = OpenOptions::new().write(true).open(&disk).unwrap();
    bad.iter().for_each(|block| file.write_all_at(&[0xbd; 1024], block * 1024).unwrap());
    drop(file);
    let listed = |disk: &Path| run("dumpe2fs", &["-b", arg(disk)]);
    let expected = listed(&disk);
    assert_eq!(expected.lines().count(), bad.len());
    assert!(e2fsck(&disk).contains("exit status: 0"), "{}", e2fsck(&disk));
    let check = |disk: &Path, what: &str| {
        assert_eq!(listed(disk), expected, "{what}");
        let bytes = fs::read(disk).unwrap();
        for block in &bad {
            let at = usize::try_from(block * 1024).unwrap();
            assert!(bytes[at..at + 1024].iter().all(|byte| *byte == 0xbd), "{what}: block {block}");
        }
        assert!(e2fsck(disk).contains("exit status: 0"), "{what}: {}", e2fsck(disk));
    };

    let image = QCOW2.make(&disk, dir.path());
    let planned = document("leandisk.defrag/1", &["defrag", "--dry-run", arg(&disk)]);
    let done = document("leandisk.defrag/1", &["defrag", "--verify", arg(&disk)]);
    assert_eq!(volume(&planned, 1)["after"], volume(&done, 1)["after"]);
    assert!(number(volume(&done, 1), "/moved_bytes") > 0, "{done:#}");
    assert!(number(volume(&done, 1), "/after/fragments") < number(volume(&done, 1), "/before/fragments"));
    check(&disk, "defrag");
    assert!(!filefrag(&disk).is_empty());
    document("leandisk.compact/1", &["compact", "--dry-run", arg(&disk)]);
    document("leandisk.compact/1", &["compact", "--verify", arg(&disk)]);
    check(&disk, "compact");

    let moved = document("leandisk.compact/1", &["compact", "--defrag", "--verify", arg(&image)]);
    println!("{moved:#}");
    let after = dir.path().join("after.raw");
    run("qemu-img", &["convert", "-O", "raw", arg(&image), arg(&after)]);
    check(&after, "compact --defrag");

    let packed = dir.path().join("packed.raw");
    copy(&disk, &packed, &["--layout", "packed"]);
    check(&packed, "copy --layout packed");
}
