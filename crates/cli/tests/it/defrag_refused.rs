//! What `defrag` refuses, each with its reason, and that a refusal leaves every byte and every name as it was.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::common::{Untouched, arg, document, fail, leave_journal, names_in, number, output, succeed};
use crate::defrag_common::{
    Fixture, Inside, QCOW2, QCOW2_EXTENDED, VHDX, ext4, fsck, gpt, ntfs, ntfs_extents, volume, write_into,
};
use testkit::{as_root, ext_volume, ntfs_volume, run, scratch};

/// A folder with a disk in it.
struct Scene {
    dir: tempfile::TempDir,
    disk: PathBuf,
}

impl Scene {
    fn new(fixture: &Fixture) -> Self {
        let dir = scratch();
        let disk = dir.path().join("disk.raw");
        run("cp", &["--sparse=always", arg(&fixture.raw), arg(&disk)]);
        Self { dir, disk }
    }

    /// All ways to ask are refused, naming `words`, and leave the folder as it is.
    fn refuses(&self, disk: &Path, words: &[&str]) {
        refuses_in(self.dir.path(), disk, words);
    }

    /// Changes the bytes at `at`.
    fn write(&self, at: u64, bytes: &[u8]) {
        OpenOptions::new().write(true).open(&self.disk).unwrap().write_all_at(bytes, at).unwrap();
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fs::File::open(&self.disk).unwrap().read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    fn debugfs(&self, request: &str) -> String {
        run("debugfs", &["-w", "-R", request, arg(&self.disk)])
    }
}

fn refuses_in(dir: &Path, disk: &Path, words: &[&str]) {
    let before = Untouched::all_in(dir);
    for more in [&[][..], &["--dry-run"], &["--goal", "pack", "--verify"], &["--volume", "1"]] {
        let message = fail(3, &[&["defrag", arg(disk)], more].concat());
        println!("{message}");
        for word in words {
            assert!(message.contains(word), "{more:?}: '{word}' in {message}");
        }
        before.check(dir);
    }
}

mod ntfs_volumes {
    use super::*;

    #[test]
    fn dirty() {
        let scene = Scene::new(&ntfs());
        run("ntfsfix", &[arg(&scene.disk)]);
        scene.refuses(&scene.disk, &["dirty"]);
    }

    #[test]
    fn hibernated() {
        let scene = Scene::new(&ntfs());
        let mut image = vec![b'h'; 20 << 10];
        image[..4].copy_from_slice(b"hibr");
        let mount = scratch();
        let mounted = ntfs_volume::Mounted::new(&scene.disk, &mount.path().join("mnt"), "");
        fs::write(mounted.dir.join("hiberfil.sys"), image).unwrap();
        drop(mounted);
        scene.refuses(&scene.disk, &["hiber"]);
    }

    #[test]
    fn with_shadow_copies() {
        let scene = Scene::new(&ntfs());
        // The header of volsnap.sys, with a catalog.
        let mut header = vec![
            0x6b, 0x87, 0x08, 0x38, 0x76, 0xc1, 0x48, 0x4e, 0xb7, 0xae, 0x04, 0x04, 0x6e, 0x6c, 0xc7, 0x52,
            1, 0, 0, 0, 1, 0, 0, 0,
        ];
        header.resize(48, 0);
        header.extend(0x4000u64.to_le_bytes());
        scene.write(0x1e00, &header);
        scene.refuses(&scene.disk, &["shadow copies"]);
    }

    #[test]
    fn encrypted_by_bitlocker() {
        let scene = Scene::new(&ntfs());
        scene.write(3, b"-FVE-FS-");
        scene.refuses(&scene.disk, &["bitlocker"]);
    }

    /// Where a byte of a stream lies.
    fn place(scene: &Scene, path: &str, at: u64) -> u64 {
        let (mut start, cluster) = (0, at / 4096);
        for (place, len) in ntfs_extents(&scene.disk, path) {
            if cluster < start + len {
                return (place + cluster - start) * 4096 + at % 4096;
            }
            start += len;
        }
        panic!("{path} has no byte {at}");
    }

    #[test]
    fn with_a_leaked_cluster() {
        let scene = Scene::new(&ntfs());
        let bitmap = place(&scene, "/$Bitmap", 0);
        let free = scene.read(bitmap, 1200).iter().position(|byte| *byte == 0).expect("free clusters");
        scene.write(bitmap + free as u64, &[0x08]);
        scene.refuses(&scene.disk, &["$Bitmap"]);
    }

    #[test]
    fn with_a_used_cluster_that_is_marked_as_free() {
        let scene = Scene::new(&ntfs());
        let bitmap = place(&scene, "/$Bitmap", 0);
        let used = scene.read(bitmap, 1200).iter().rposition(|byte| *byte == 0xff).expect("used clusters");
        scene.write(bitmap + used as u64, &[0xf7]);
        scene.refuses(&scene.disk, &["$Bitmap"]);
    }

    /// Who owns what is not in doubt, so files could be moved. But the check that follows would not pass the volume.
    #[test]
    fn with_a_wrong_count_of_names() {
        let scene = Scene::new(&ntfs());
        let info = run("ntfsinfo", &["-f", "-F", "/turn0", arg(&scene.disk)]);
        let number = info.lines().find_map(|line| line.strip_prefix("Dumping Inode ")).unwrap();
        let number: u64 = number.split_whitespace().next().unwrap().parse().unwrap();
        let links = place(&scene, "/$MFT", number * 1024 + 0x12);
        assert_eq!(scene.read(links, 2), [1, 0]);
        scene.write(links, &[3, 0]);
        scene.refuses(&scene.disk, &["link"]);
    }

    #[test]
    fn with_a_cluster_of_two_files() {
        let scene = Scene::new(&ntfs());
        let info = run("ntfsinfo", &["-f", "-F", "/read only", arg(&scene.disk)]);
        let number = info.lines().find_map(|line| line.strip_prefix("Dumping Inode ")).unwrap();
        let number: u64 = number.split_whitespace().next().unwrap().parse().unwrap();
        let own = ntfs_extents(&scene.disk, "/read only")[0].0;
        let other = ntfs_extents(&scene.disk, "/turn0")[0].0;
        assert!((128..32_768).contains(&own) && (128..32_768).contains(&other), "two bytes each");
        // One run of one cluster, as mapping pairs have it; and each cluster has an owner still.
        let pairs = |lcn: u64| [&[0x21, 1][..], &lcn.to_le_bytes()[..2], &[0]].concat();
        let record = place(&scene, "/$MFT", number * 1024);
        let bytes = scene.read(record, 1024);
        let at = bytes.windows(5).position(|window| window == pairs(own)).expect("mapping pairs");
        scene.write(record + at as u64, &pairs(other));
        let bitmap = place(&scene, "/$Bitmap", 0) + own / 8;
        let bits = scene.read(bitmap, 1)[0] & !(1 << (own % 8));
        scene.write(bitmap, &[bits]);
        scene.refuses(&scene.disk, &[&format!("{other}")]);
    }
}

mod ext_volumes {
    use super::*;

    #[test]
    fn mounted_when_it_was_copied() {
        let original = Scene::new(&ext4());
        let dir = scratch();
        let disk = dir.path().join("snapshot.raw");
        let mounted = ext_volume::Mounted::new(&original.disk, "rw");
        fs::write(mounted.dir().join("new"), vec![b'n'; 50_000]).unwrap();
        run("sync", &["-f", arg(&mounted.dir())]);
        run("cp", &["--sparse=always", arg(&original.disk), arg(&disk)]);
        drop(mounted);
        refuses_in(dir.path(), &disk, &["journal"]);
    }

    #[test]
    fn mounted_now() {
        let scene = Scene::new(&ext4());
        let _mounted = ext_volume::Mounted::new(&scene.disk, "ro,noload");
        let before = Untouched::all_in(scene.dir.path());
        let message = fail(3, &["defrag", arg(&scene.disk)]);
        assert!(message.contains("loop"), "{message}");
        before.check(scene.dir.path());
    }

    #[test]
    fn with_errors() {
        let scene = Scene::new(&ext4());
        scene.debugfs("ssv state 2");
        scene.refuses(&scene.disk, &["error"]);
    }

    #[test]
    fn that_says_its_inodes_stay() {
        let scene = Scene::new(&ext4());
        run("tune2fs", &["-O", "stable_inodes", arg(&scene.disk)]);
        scene.refuses(&scene.disk, &["stable_inodes"]);
    }

    #[test]
    fn with_a_feature_that_nobody_knows() {
        let scene = Scene::new(&ext4());
        scene.debugfs("feature FEATURE_I29");
        scene.refuses(&scene.disk, &["feature"]);
    }

    #[test]
    fn with_orphans() {
        let scene = Scene::new(&ext4());
        scene.debugfs("ssv last_orphan 12");
        scene.refuses(&scene.disk, &["deleted"]);
    }

    #[test]
    fn with_a_leaked_block() {
        let scene = Scene::new(&ext4());
        let free = scene.debugfs("ffb 1 3000");
        let free = free.rsplit(':').next().unwrap().trim().to_owned();
        scene.debugfs(&format!("setb {free}"));
        scene.refuses(&scene.disk, &["block bitmap"]);
    }

    #[test]
    fn with_a_used_block_that_is_marked_as_free() {
        let scene = Scene::new(&ext4());
        let used = scene.debugfs("bmap /three 0");
        scene.debugfs(&format!("freeb {}", used.trim()));
        scene.refuses(&scene.disk, &["bitmap"]);
    }

    #[test]
    fn with_blocks_of_two_files() {
        let scene = Scene::new(&ext4());
        scene.debugfs("copy_inode /three /twenty");
        scene.refuses(&scene.disk, &["owned twice"]);
    }

    #[test]
    fn with_a_bad_checksum() {
        let scene = Scene::new(&ext4());
        scene.debugfs("sif /three checksum 0x12345678");
        scene.refuses(&scene.disk, &["checksum"]);
    }

    /// Who owns what is not in doubt, so files could be moved. But the check that follows would not pass the volume.
    #[test]
    fn with_what_only_the_independent_check_looks_at() {
        for (damage, words) in [
            ("sif /three links_count 7", &["names in directories", "links_count"][..]),
            ("sif /three blocks 2", &["blocks", "sectors"]),
            ("sif /three mode 0120644", &["type in its directory"]),
            ("unlink /three", &["names in directories"]),
            ("set_super_value error_count 1", &["error"]),
        ] {
            let scene = Scene::new(&ext4());
            scene.debugfs(damage);
            scene.refuses(&scene.disk, words);
        }
    }

    /// Its blocks that hold little are left as they are; what is free is given back all the same, and no more is wrong than before.
    #[test]
    fn with_what_only_the_independent_check_looks_at_when_compacted() {
        let scene = Scene::new(&ext4());
        scene.debugfs("sif /three links_count 7");
        let said = |disk: &Path| {
            let output = Command::new("e2fsck").args(["-fn", arg(disk)]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().replace(arg(disk), "it")
        };
        let expected = said(&scene.disk);
        assert!(expected.contains("ref count"), "{expected}");
        let image = scene.dir.path().join("disk.qcow2");
        let args =
            ["convert", "-O", "qcow2", "-S", "0", "-o", "cluster_size=4k", arg(&scene.disk), arg(&image)];
        run("qemu-img", &args);
        for more in [&["--dry-run"][..], &[], &["--verify"]] {
            let args = [&["compact", "--defrag", arg(&image)], more].concat();
            let document = document("leandisk.compact/1", &args);
            let text = document.to_string();
            assert!(text.contains("names in directories"), "{more:?}: {document:#}");
        }
        let after = scene.dir.path().join("after.raw");
        run("qemu-img", &["convert", "-O", "raw", arg(&image), arg(&after)]);
        assert_eq!(said(&after), expected);
    }
}

/// Another program that has a disk open.
struct QemuIo {
    child: Child,
    stdin: ChildStdin,
}

impl QemuIo {
    /// It has read from the disk by now.
    fn reading(disk: &Path, more: &[&str]) -> Self {
        let mut child = Command::new("qemu-io")
            .args(more)
            .args(["-f", "qcow2", arg(disk)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        writeln!(stdin, "read 0 512").unwrap();
        let mut said = BufReader::new(child.stdout.as_mut().unwrap());
        let mut line = String::new();
        while !line.contains("read 512/512") {
            line.clear();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "qemu-io reads");
        }
        Self { child, stdin }
    }

    fn end(mut self) {
        drop(self.stdin);
        self.child.wait().unwrap();
    }
}

mod disks {
    use super::*;

    #[test]
    fn encrypted_with_luks() {
        let dir = scratch();
        let disk = dir.path().join("disk.raw");
        run("truncate", &["-s", "20M", arg(&disk)]);
        let key = dir.path().join("key");
        fs::write(&key, "secret").unwrap();
        let kind = ["luksFormat", "--type", "luks2", "--batch-mode", "--pbkdf", "pbkdf2"];
        let rest = ["--pbkdf-force-iterations", "1000", arg(&disk), arg(&key)];
        run("cryptsetup", &[&kind[..], &rest].concat());
        refuses_in(dir.path(), &disk, &["luks"]);
    }

    #[test]
    fn without_a_file_system_that_is_known() {
        let dir = scratch();
        let disk = dir.path().join("disk.raw");
        run("truncate", &["-s", "20M", arg(&disk)]);
        refuses_in(dir.path(), &disk, &[]);
        run("mkfs.vfat", &[arg(&disk)]);
        refuses_in(dir.path(), &disk, &["fat"]);
    }

    #[test]
    fn with_a_parent_and_with_a_child() {
        for kind in [QCOW2, VHDX] {
            let dir = scratch();
            let base = kind.make(&ext4().raw, dir.path());
            if kind.qemu_format == "qcow2" {
                let child = dir.path().join("child.qcow2");
                let args = ["create", "-q", "-f", "qcow2", "-b", "disk.qcow2", "-F", "qcow2", arg(&child)];
                run("qemu-img", &args);
                refuses_in(dir.path(), &child, &["differencing", "parent"]);
            } else {
                // QEMU makes no differencing VHDX; a QCOW2 stands on one as well.
                let child = dir.path().join("child.qcow2");
                let args = ["create", "-q", "-f", "qcow2", "-b", "dynamic.vhdx", "-F", "vhdx", arg(&child)];
                run("qemu-img", &args);
            }
            refuses_in(dir.path(), &base, &["is the parent of 'child.qcow2'"]);
        }
    }

    #[test]
    fn with_internal_snapshots() {
        let dir = scratch();
        let disk = QCOW2.make(&ext4().raw, dir.path());
        run("qemu-img", &["snapshot", "-c", "one", arg(&disk)]);
        refuses_in(dir.path(), &disk, &["internal snapshot"]);
    }

    #[test]
    fn of_kinds_that_are_not_written() {
        let (dir, raw) = (scratch(), ext4().raw);
        let subclusters = QCOW2_EXTENDED.make(&raw, dir.path());
        let before = Untouched::all_in(dir.path());
        let message = fail(3, &["defrag", arg(&subclusters)]);
        assert!(message.contains("extended L2"), "{message}");
        before.check(dir.path());
        fs::remove_file(subclusters).unwrap();
        let stream = dir.path().join("stream.vmdk");
        let args = ["convert", "-O", "vmdk", "-o", "subformat=streamOptimized", arg(&raw), arg(&stream)];
        run("qemu-img", &args);
        refuses_in(dir.path(), &stream, &["compressed"]);
    }

    #[test]
    fn with_two_names() {
        let scene = Scene::new(&ext4());
        fs::hard_link(&scene.disk, scene.dir.path().join("also.raw")).unwrap();
        let before = Untouched::all_in(scene.dir.path());
        let message = fail(3, &["defrag", arg(&scene.disk)]);
        assert!(message.contains("hard links"), "{message}");
        before.check(scene.dir.path());
    }

    /// A link to a disk is that disk, and its journal lies beside the disk itself.
    #[test]
    fn a_link_is_no_way_round_a_pending_journal() {
        let scene = Scene::new(&ext4());
        let elsewhere = scratch();
        let link = elsewhere.path().join("link.raw");
        symlink(&scene.disk, &link).unwrap();
        let journal = leave_journal(&scene.disk);
        refuses_in(scene.dir.path(), &link, &["leandisk recover"]);
        fs::remove_file(journal).unwrap();
        succeed(&["defrag", arg(&link)]);
        fsck(Inside::Ext4, &scene.disk);
    }

    #[test]
    fn that_another_program_writes_to() {
        let dir = scratch();
        let disk = QCOW2.make(&ext4().raw, dir.path());
        let qemu = QemuIo::reading(&disk, &[]);
        refuses_in(dir.path(), &disk, &["in use"]);
        qemu.end();
        succeed(&["defrag", arg(&disk)]);
    }

    #[test]
    fn that_another_program_reads() {
        let dir = scratch();
        let disk = QCOW2.make(&ext4().raw, dir.path());
        let qemu = QemuIo::reading(&disk, &["-r"]);
        let before = Untouched::all_in(dir.path());
        let message = fail(3, &["defrag", arg(&disk)]);
        assert!(message.contains("in use"), "{message}");
        before.check(dir.path());
        qemu.end();
    }

    #[test]
    fn with_a_change_that_was_interrupted() {
        let scene = Scene::new(&ext4());
        leave_journal(&scene.disk);
        let before = Untouched::all_in(scene.dir.path());
        let target = scene.dir.path().join("target.qcow2");
        let disk = arg(&scene.disk);
        for args in [
            &["defrag", disk][..],
            &["defrag", disk, "--dry-run"],
            &["analyze", disk],
            &["map", disk, "-o", arg(&target.with_extension("svg"))],
            &["copy", disk, arg(&target)],
            &["copy", disk, arg(&target), "--layout", "packed"],
        ] {
            let message = fail(3, args);
            assert!(message.contains("leandisk recover '") && message.contains(disk), "{args:?}: {message}");
            before.check(scene.dir.path());
        }
    }
}

/// What was left half-way is read neither through a child, nor replaced while its journal would be held against the new disk.
#[test]
fn an_interrupted_change_of_a_parent_or_a_target_is_seen() {
    let dir = scratch();
    let base = QCOW2.make(&ext4().raw, dir.path());
    let child = dir.path().join("child.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "disk.qcow2", "-F", "qcow2", arg(&child)]);
    leave_journal(&base);
    let before = Untouched::all_in(dir.path());
    let (source, target) = (ext4().raw, dir.path().join("target.raw"));
    for args in [
        &["copy", arg(&child), arg(&target)][..],
        &["analyze", arg(&child)],
        &["copy", "-f", "raw", arg(&source), arg(&base), "--force"],
        &["create", arg(&base), "1M", "--force"],
    ] {
        let message = fail(3, args);
        assert!(message.contains("recover") && message.contains(arg(&base)), "{args:?}: {message}");
        before.check(dir.path());
    }
}

/// Of two volumes one is in doubt: the other one is done, and the document says why the first was left.
#[test]
fn one_volume_in_doubt_does_not_stop_the_other() {
    let scene = Scene::new(&gpt());
    let part = &gpt().parts[0];
    let alone = Scene::new(&ntfs());
    run("ntfsfix", &[arg(&alone.disk)]);
    write_into(&alone.disk, &scene.disk, part.start_bytes);
    let dirty = scene.read(part.start_bytes, usize::try_from(part.len_bytes).unwrap());
    let done = document("leandisk.defrag/1", &["defrag", arg(&scene.disk)]);
    let (first, second) = (volume(&done, 1), volume(&done, 2));
    assert!(first["refused"].as_str().unwrap().contains("dirty"), "{done:#}");
    assert_eq!(number(first, "/moved_bytes"), 0);
    assert!(second["refused"].is_null() && number(second, "/moved_bytes") > 0, "{done:#}");
    assert!(scene.read(part.start_bytes, usize::try_from(part.len_bytes).unwrap()) == dirty);
    assert_eq!(names_in(scene.dir.path()), ["disk.raw"]);
    let volume = scene.dir.path().join("volume");
    gpt().extract(&gpt().parts[1], &scene.disk, &volume);
    fsck(Inside::Ext4, &volume);
    fs::remove_file(&volume).unwrap();
    let before = Untouched::all_in(scene.dir.path());
    let message = fail(3, &["defrag", arg(&scene.disk), "--volume", "1"]);
    assert!(message.contains("dirty"), "{message}");
    before.check(scene.dir.path());
}

/// A hibernated guest has parts of every volume in its memory.
#[test]
fn a_hibernated_guest_keeps_all_its_volumes() {
    let scene = Scene::new(&gpt());
    let alone = Scene::new(&ntfs());
    let mount = scratch();
    let mounted = ntfs_volume::Mounted::new(&alone.disk, &mount.path().join("mnt"), "");
    fs::write(mounted.dir.join("hiberfil.sys"), [b"hibr".as_slice(), &[7; 20_000]].concat()).unwrap();
    drop(mounted);
    write_into(&alone.disk, &scene.disk, gpt().parts[0].start_bytes);
    scene.refuses(&scene.disk, &["hiber"]);
    let message = fail(3, &["defrag", arg(&scene.disk), "--volume", "2"]);
    assert!(message.contains("hibernated (see volume 1)"), "{message}");
}

/// An image that takes for free what is in use would have it written over.
#[test]
fn a_qcow2_whose_refcounts_are_too_low_is_left_alone_by_whatever_changes_it() {
    let dir = scratch();
    let disk = QCOW2.make(&ext4().raw, dir.path());
    let mut bytes = fs::read(&disk).unwrap();
    let be64 = |bytes: &[u8], at: usize| {
        usize::try_from(u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())).unwrap()
    };
    let counts = be64(&bytes, be64(&bytes, 48));
    let table = be64(&bytes, be64(&bytes, 40)) & 0x00ff_ffff_ffff_fe00;
    let cluster_bytes = 1 << bytes[23];
    let data = be64(&bytes, table) & 0x00ff_ffff_ffff_fe00;
    assert!(data > 0, "the first cluster is there");
    bytes[counts + data / cluster_bytes * 2..][..2].fill(0);
    fs::write(&disk, bytes).unwrap();
    let socket = dir.path().join("socket");
    let before = Untouched::all_in(dir.path());
    for args in [
        &["defrag", arg(&disk)][..],
        &["defrag", arg(&disk), "--dry-run"],
        &["compact", arg(&disk)],
        &["compact", arg(&disk), "--dry-run"],
        &["compact", arg(&disk), "--defrag"],
        &["serve", arg(&disk), "--socket", arg(&socket)],
    ] {
        let message = fail(3, args);
        assert!(message.contains("refcount") && message.contains("qemu-img check"), "{args:?}: {message}");
        before.check(dir.path());
    }
    // It can be read as ever.
    let target = scratch();
    succeed(&["copy", arg(&disk), arg(&target.path().join("copy.raw"))]);
}

/// A journal replaces nothing, and the dry run says so.
#[test]
fn a_file_under_the_name_of_the_journal_stays() {
    let scene = Scene::new(&ext4());
    let named = scene.dir.path().join("notes.txt");
    for contents in ["", "my notes", &"long ".repeat(10_000)] {
        fs::write(&named, contents).unwrap();
        let before = Untouched::all_in(scene.dir.path());
        for more in [&[][..], &["--dry-run"]] {
            let args = ["defrag", arg(&scene.disk), "--goal", "pack", "--journal", arg(&named)];
            let message = fail(3, &[&args, more].concat());
            assert!(message.contains("exists already") && message.contains("notes.txt"), "{message}");
            before.check(scene.dir.path());
        }
    }
}

/// Who may only read the disk cannot change it, and leaves nothing behind.
#[test]
fn a_folder_without_room_for_the_journal_is_an_error_and_no_change() {
    let dir = scratch();
    let options = "size=64M,mode=0777";
    assert!(
        as_root("mount", &["-t", "tmpfs", "-o", options, "leandisk-test", arg(dir.path())]).status.success()
    );
    let disk = dir.path().join("disk.raw");
    run("cp", &["--sparse=never", arg(&ext4().raw), arg(&disk)]);
    let filler = dir.path().join("filler");
    let _ = Command::new("dd")
        .args(["if=/dev/zero", &format!("of={}", filler.display()), "bs=1M", "status=none"])
        .stderr(Stdio::null())
        .status()
        .unwrap();
    let before = Untouched::all_in(dir.path());
    let output = output(&["defrag", arg(&disk)]);
    let message = String::from_utf8(output.stderr).unwrap();
    let is_same = std::panic::catch_unwind(|| before.check(dir.path())).is_ok();
    testkit::loops::unmount(dir.path());
    assert_eq!(output.status.code(), Some(5), "{message}");
    assert!(message.to_lowercase().contains("space"), "{message}");
    assert!(is_same, "nothing changed");
}
