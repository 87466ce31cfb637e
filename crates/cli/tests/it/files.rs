//! `ls`, `cat` and `extract` against what a mount shows, and against names that lead elsewhere.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use crate::common::{arg, document, fail, leandisk, output, signal, succeed};
use serde_json::Value;
use testkit::loops::mount;
use testkit::{run, scratch};

const TREE: &str = include_str!("../scripts/tree.py");
const FILL: &str = include_str!("../scripts/fill.py");

fn tree(folder: &Path, how: &str) -> String {
    run("python3", &["-c", TREE, arg(folder), how])
}

fn fill(folder: &Path, how: &str) {
    run("python3", &["-c", FILL, arg(folder), how]);
}

/// A volume mounted through the kernel for as long as `work` takes.
fn mounted<T>(volume: &Path, options: &str, work: impl FnOnce(&Path) -> T) -> T {
    let at = volume.with_extension("mnt");
    fs::create_dir_all(&at).unwrap();
    mount(&["-o", &format!("loop{options}"), arg(volume), arg(&at)]);
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&at)));
    testkit::loops::unmount(&at);
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn volume(path: &Path, mib: u64) {
    fs::File::create(path).unwrap().set_len(mib << 20).unwrap();
}

/// Extracts all of a volume into a folder, and as a tar that GNU tar unpacks: both shall be as the mount.
fn compare(disk: &Path, expected: &str, how: &str) {
    let (into, tar, unpacked) =
        (disk.with_extension("into"), disk.with_extension("tar"), disk.with_extension("unpacked"));
    let done = output(&["extract", arg(disk), "/", "--into", arg(&into), "--confine", "always"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(tree(&into, how), expected, "{}", disk.display());
    succeed(&["extract", arg(disk), "/", "--tar", arg(&tar)]);
    fs::create_dir(&unpacked).unwrap();
    let options =
        ["--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf", arg(&tar), "-C", arg(&unpacked)];
    run("tar", &options);
    assert_eq!(tree(&unpacked, how), expected, "tar of {}", disk.display());
    let blocks = |folder: &Path| fs::metadata(folder.join("a/sparse")).map(|facts| facts.blocks() * 512);
    for folder in [&into, &unpacked] {
        if let Ok(bytes) = blocks(folder) {
            assert!(bytes < 1 << 20, "a sparse file stays so: {bytes}");
        }
    }
}

/// Each path with its kind and size, as `ls` and the mount have them.
fn listed(document: &Value) -> Vec<String> {
    let entries = document["entries"].as_array().unwrap();
    entries.iter().map(|entry| format!("{} {}", entry["path"].as_str().unwrap(), entry["type"])).collect()
}

#[test]
fn all_files_of_linux_are_extracted_as_a_mount_shows_them() {
    let dir = scratch();
    let makers: [(&str, &str, u64); 4] = [
        ("ext4", "mkfs.ext4 -q -F -b 4096 -I 256 -O inline_data", 64),
        ("ext2", "mkfs.ext2 -q -F -b 4096", 64),
        ("xfs", "mkfs.xfs -q -f", 300),
        ("btrfs", "mkfs.btrfs -q -f", 128),
    ];
    for (name, maker, mib) in makers {
        let disk = dir.path().join(format!("{name}.raw"));
        volume(&disk, mib);
        let words: Vec<_> = maker.split(' ').chain([arg(&disk)]).collect();
        run(words[0], &words[1..]);
        mounted(&disk, "", |at| {
            fill(at, "unix");
            if name == "btrfs" {
                packed_btrfs(at);
            }
        });
        let expected = mounted(&disk, ",ro", |at| tree(at, "full"));
        compare(&disk, &expected, "full");
        let document = document("leandisk.ls/1", &["ls", arg(&disk), "/", "--recursive"]);
        assert_eq!(listed(&document).len(), expected.lines().count(), "{name}");
        check_links(&disk);
    }
}

/// Files in each of Btrfs' ways to compress, and a subvolume.
fn packed_btrfs(at: &Path) {
    for method in ["zlib", "lzo", "zstd"] {
        let folder = at.join(method);
        fs::create_dir(&folder).unwrap();
        run("btrfs", &["property", "set", arg(&folder), "compression", method]);
        for name in ["text", "random", "small"] {
            let packed = folder.join(name);
            fs::write(&packed, fs::read(at.join("a").join(name)).unwrap()).unwrap();
        }
        run("sync", &["-f", arg(at)]);
        // A part of an extent is replaced.
        let file = fs::File::options().write(true).open(folder.join("text")).unwrap();
        file.write_all_at(&[b'y'; 5000], 40_000).unwrap();
    }
    run("btrfs", &["-q", "subvolume", "snapshot", arg(at), arg(&at.join("snapshot"))]);
    run("btrfs", &["-q", "subvolume", "create", arg(&at.join("sub"))]);
    fs::write(at.join("sub/file"), "in a subvolume").unwrap();
}

/// Links in the middle are followed, on the volume alone and not for ever.
fn check_links(disk: &Path) {
    let disk = arg(disk);
    assert_eq!(succeed(&["cat", disk, "/abs/rel"]), "hello\n");
    assert_eq!(succeed(&["cat", disk, "1:/a/../abs/./hello.txt"]), "hello\n");
    assert!(fail(3, &["cat", disk, "/loop"]).contains("too many links"));
    assert!(fail(3, &["cat", disk, "/outside"]).contains("no such file"));
    assert!(fail(3, &["cat", disk, "/a"]).contains("is a folder"));
    assert!(fail(3, &["ls", disk, "/empty/x"]).contains("no such file"));
    let link = document("leandisk.ls/1", &["ls", disk, "/abs"]);
    assert_eq!(
        (&link["entries"][0]["type"], &link["entries"][0]["target"]),
        (&"link".into(), &"/a/b".into())
    );
    let through = document("leandisk.ls/1", &["ls", disk, "/abs/"]);
    assert_eq!(listed(&through), ["/a/b/hello.txt \"file\"", "/a/b/rel \"link\""]);
    let text = succeed(&["ls", disk, "/a/b"]);
    assert!(text.starts_with("-rwsr-x--x 1 1234 70000 ") && text.contains("rel -> hello.txt"), "{text}");
}

#[test]
fn which_volume_is_meant_is_asked_and_found() {
    let dir = scratch();
    let disk = dir.path().join("two.raw");
    volume(&disk, 64);
    fs::write(dir.path().join("table"), "label: gpt\nsize=20M\nsize=20M\n").unwrap();
    run("bash", &["-c", "sfdisk -q \"$1\" < \"$2\"", "-", arg(&disk), arg(&dir.path().join("table"))]);
    for (number, start) in [(1, 1), (2, 21)] {
        let (tree, part) = (dir.path().join(format!("tree{number}")), dir.path().join("part"));
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("which"), number.to_string()).unwrap();
        volume(&part, 20);
        run("mkfs.ext4", &["-q", "-F", "-d", arg(&tree), arg(&part)]);
        let bytes = fs::read(&part).unwrap();
        fs::File::options().write(true).open(&disk).unwrap().write_all_at(&bytes, start << 20).unwrap();
    }
    let disk = arg(&disk);
    let asked = fail(2, &["cat", disk, "/which"]);
    assert!(asked.contains("1 (ext4), 2 (ext4)"), "{asked}");
    assert!(fail(2, &["cat", disk, "3:/which"]).contains("no volume '3'"));
    fail(2, &["cat", disk, "which"]);
    for number in ["1", "2"] {
        assert_eq!(succeed(&["cat", disk, &format!("{number}:/which")]), number);
    }
    assert!(fail(3, &["ls", disk, "2:/nothing"]).contains("no such file"));
    assert_eq!(document("leandisk.ls/1", &["ls", disk, "2:/"])["volume"], 2);
}

/// Sets what Windows has in a file that it compressed as a whole.
fn compress_as_windows(file: &Path, len: u64, algorithm: u8, packed: &[u8]) {
    fs::File::create(file).unwrap().set_len(len).unwrap();
    fs::write(format!("{}:WofCompressedData", file.display()), packed).unwrap();
    let point = format!("0x1700008010000000010000000200000001000000{algorithm:02x}000000");
    run("setfattr", &["-h", "-n", "system.ntfs_reparse_data", "-v", &point, arg(file)]);
}

/// What an image of files (WIM) has of its only file is what NTFS has in the stream.
fn packed_by_wimlib(dir: &Path, contents: &Path, compression: &str, chunk: u64) -> Vec<u8> {
    let wim = dir.join(format!("{compression}{chunk}.wim"));
    let options = [format!("--compress={compression}"), format!("--chunk-size={chunk}")];
    run("wimlib-imagex", &["capture", arg(contents), arg(&wim), &options[0], &options[1], "--no-acls"]);
    let bytes = fs::read(&wim).unwrap();
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    // The table of what is in it: 50 bytes each, of which the first 24 say where, how long, and how long once unpacked.
    let (table, count) = (number(56), (number(48) & 0xff_ffff_ffff_ffff) / 50);
    let wanted = fs::metadata(contents.join("file")).unwrap().len();
    let entries = (0..count).map(|index| usize::try_from(table + 50 * index).unwrap());
    let entry = entries.into_iter().find(|at| number(at + 16) == wanted).unwrap();
    let (len, at) = (number(entry) & 0xff_ffff_ffff_ffff, number(entry + 8));
    assert!(len < wanted, "{compression} made it shorter");
    bytes[usize::try_from(at).unwrap()..][..usize::try_from(len).unwrap()].to_vec()
}

#[test]
fn files_of_windows_are_unpacked_and_streams_are_files() {
    let dir = scratch();
    let disk = dir.path().join("ntfs.raw");
    volume(&disk, 64);
    run("mkntfs", &["-q", "-F", "-Q", arg(&disk)]);
    let contents = dir.path().join("contents");
    fs::create_dir(&contents).unwrap();
    // Text, what looks like calls of a program, and what cannot be made shorter.
    let mut bytes: Vec<u8> =
        (0..60_000_u32).flat_map(|line| format!("line {} ", line % 611).into_bytes()).collect();
    bytes.extend((0..40_000_u32).flat_map(|at| [0xe8, at.to_le_bytes()[0], 0, 0, 0, 0x90]));
    bytes.extend(fs::read(program_bytes()).unwrap().into_iter().take(300_000));
    fs::write(contents.join("file"), &bytes).unwrap();
    let at = dir.path().join("mnt");
    fs::create_dir(&at).unwrap();
    run("ntfs-3g", &["-o", "compression,streams_interface=windows", arg(&disk), arg(&at)]);
    let filled = std::panic::catch_unwind(|| {
        fill(&at, "plain");
        fs::create_dir(at.join("packed")).unwrap();
        run("setfattr", &["-h", "-v", "0x00080000", "-n", "system.ntfs_attrib_be", arg(&at.join("packed"))]);
        fs::write(at.join("packed/file"), &bytes).unwrap();
        fs::write(at.join("a/b/hello.txt:Zone.Identifier"), "[ZoneTransfer]").unwrap();
        symlink("hello.txt", at.join("a/b/rel")).unwrap();
        let kinds = [("XPRESS", 4096, 0), ("LZX", 32768, 1), ("XPRESS", 8192, 2), ("XPRESS", 16384, 3)];
        for (compression, chunk, algorithm) in kinds {
            let packed = packed_by_wimlib(dir.path(), &contents, compression, chunk);
            let file = at.join(format!("windows {algorithm}"));
            compress_as_windows(&file, bytes.len() as u64, algorithm, &packed);
        }
    });
    testkit::loops::unmount(&at);
    filled.unwrap_or_else(|panic| std::panic::resume_unwind(panic));

    let disk = arg(&disk);
    for file in ["/packed/file", "/windows 0", "/windows 1", "/windows 2", "/windows 3", "/WINDOWS 3"] {
        let found = output(&["cat", disk, file]);
        assert!(
            found.status.success() && found.stdout == bytes,
            "{file}: {:?}",
            String::from_utf8_lossy(&found.stderr)
        );
    }
    assert_eq!(succeed(&["cat", disk, "/a/b/hello.txt:Zone.Identifier"]), "[ZoneTransfer]");
    assert_eq!(succeed(&["cat", disk, "/a/b/rel"]), "hello\n");
    fail(3, &["cat", disk, "/a/b/hello.txt:nothing"]);
    let listed = document("leandisk.ls/1", &["ls", disk, "/a/b/hello.txt"]);
    assert_eq!(listed["entries"][0]["streams"], serde_json::json!(["Zone.Identifier"]));
    assert_eq!(listed["entries"][0]["mode"], Value::Null);
    // What the volume keeps for itself is there, and not listed.
    assert!(!succeed(&["ls", disk, "/"]).contains('$'));
    assert!(!output(&["cat", disk, "/$Boot"]).stdout.is_empty());
    let into = dir.path().join("into");
    succeed(&["extract", disk, "/", "--into", arg(&into), "--confine", "always"]);
    assert_eq!(fs::read_to_string(into.join("a/b/hello.txt:Zone.Identifier")).unwrap(), "[ZoneTransfer]");
    for file in ["windows 1", "windows 2", "packed/file"] {
        assert!(fs::read(into.join(file)).unwrap() == bytes, "{file}");
    }
    assert_eq!(fs::read_link(into.join("a/b/rel")).unwrap(), Path::new("hello.txt"));
}

/// Machine code, for what is done to calls.
fn program_bytes() -> PathBuf {
    PathBuf::from("/bin/bash")
}

#[test]
fn files_of_fat_and_exfat_are_as_they_were_put_there() {
    let dir = scratch();
    let folder = dir.path().join("tree");
    fs::create_dir(&folder).unwrap();
    fill(&folder, "plain");
    let expected = tree(&folder, "plain");
    for (name, maker) in
        [("fat16", "mkfs.fat -F 16"), ("fat32", "mkfs.fat -F 32"), ("exfat", "mkfs.exfat -c 4096")]
    {
        let disk = dir.path().join(format!("{name}.raw"));
        volume(&disk, 64);
        let words: Vec<_> = maker.split(' ').chain([arg(&disk)]).collect();
        run(words[0], &words[1..]);
        let script = match name {
            "exfat" => {
                "set -e; export LC_ALL=C.UTF-8; mkdir \"$1.mnt\"; l=$(losetup -f --show \"$1\")
                 mount.exfat-fuse $l \"$1.mnt\" > \"$1.log\"; cp -r \"$2\"/* \"$1.mnt\"/; for _ in {1..1500}; do umount \"$1.mnt\" && break; sleep 0.02; done; losetup -d $l
                 while [ -n \"$(losetup -j \"$1\")\" ]; do sleep 0.01; done"
            }
            _ => "export LC_ALL=C.UTF-8; mcopy -s -i \"$1\" \"$2\"/* ::/",
        };
        run("bash", &["-c", script, "-", arg(&disk), arg(&folder)]);
        compare(&disk, &expected, "plain");
        assert_eq!(succeed(&["cat", arg(&disk), "/A/B/Hello.TXT"]), "hello\n");
    }
}

/// Names that lead elsewhere stay inside, or go nowhere.
#[test]
fn hostile_names_do_not_leave_the_folder() {
    let dir = scratch();
    let (disk, folder) = (dir.path().join("hostile.raw"), dir.path().join("tree"));
    fs::create_dir_all(folder.join("aa")).unwrap();
    for name in ["XXXcanary", "YYYYcanary", "fine", "aa/inner"] {
        fs::write(folder.join(name), name).unwrap();
    }
    symlink("..", folder.join("up")).unwrap();
    fs::create_dir(folder.join("qq")).unwrap();
    fs::write(folder.join("qq/canary"), "through the link").unwrap();
    volume(&disk, 16);
    run("mkfs.ext4", &["-q", "-F", "-O", "^metadata_csum", "-d", arg(&folder), arg(&disk)]);
    // In the directory's block: a way up, a path, and a folder with the name of a link.
    let mut bytes = fs::read(&disk).unwrap();
    for (name, hostile) in
        [(&b"XXXcanary"[..], &b"../canary"[..]), (b"YYYYcanary", b"aa//canary"), (b"qq", b"up")]
    {
        let found: Vec<_> = bytes
            .windows(name.len() + 1)
            .enumerate()
            .filter(|(_, seen)| {
                // The length of a name stands two bytes before it.
                seen.starts_with(name)
            })
            .map(|(at, _)| at)
            .filter(|at| usize::from(bytes[at - 2]) == name.len())
            .collect();
        assert!(!found.is_empty());
        found.into_iter().for_each(|at| bytes[at..at + name.len()].copy_from_slice(hostile));
    }
    fs::write(&disk, bytes).unwrap();
    let (outer, canary) = (dir.path().join("outer"), dir.path().join("outer/canary"));
    fs::create_dir(&outer).unwrap();
    fs::write(&canary, "alive").unwrap();
    for confine in ["always", "never"] {
        let into = outer.join(confine);
        let message =
            fail(3, &["extract", arg(&disk), "/", "--into", arg(&into), "--force", "--confine", confine]);
        assert!(message.contains("no file of a host can have such a name"), "{message}");
        assert!(message.contains("twice"), "{message}");
        assert_eq!(fs::read_to_string(&canary).unwrap(), "alive");
        assert_eq!(fs::read_to_string(into.join("fine")).unwrap(), "fine");
        assert_eq!(
            fs::read_dir(&outer).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_file()).count(),
            1
        );
    }
    let tar = dir.path().join("hostile.tar");
    fail(3, &["extract", arg(&disk), "/", "--tar", arg(&tar)]);
    let listed = run("tar", &["-tf", arg(&tar)]);
    assert!(listed.lines().all(|line| !line.contains("..") && !line.contains("//")), "{listed}");
    // What is in the folder already leads nowhere either.
    let into = outer.join("with a link");
    fs::create_dir(&into).unwrap();
    symlink(&outer, into.join("aa")).unwrap();
    fail(3, &["extract", arg(&disk), "/aa", "--into", arg(&into), "--force"]);
    assert!(!outer.join("inner").exists());
}

#[test]
fn nothing_is_replaced_unasked_and_a_kill_leaves_no_half_file() {
    let dir = scratch();
    let (disk, folder, into) =
        (dir.path().join("disk.raw"), dir.path().join("tree"), dir.path().join("into"));
    fs::create_dir(&folder).unwrap();
    let large = vec![7; 40 << 20];
    fs::write(folder.join("large"), &large).unwrap();
    fs::write(folder.join("small"), "new").unwrap();
    volume(&disk, 64);
    run("mkfs.ext4", &["-q", "-F", "-d", arg(&folder), arg(&disk)]);
    fs::create_dir(&into).unwrap();
    fs::write(into.join("small"), "old").unwrap();
    let message = fail(3, &["extract", arg(&disk), "/small", "--into", arg(&into)]);
    assert!(message.contains("exists already") && fs::read_to_string(into.join("small")).unwrap() == "old");
    succeed(&["extract", arg(&disk), "/small", "--into", arg(&into), "--force"]);
    assert_eq!(fs::read_to_string(into.join("small")).unwrap(), "new");
    fail(2, &["extract", arg(&disk), "/small"]);
    fail(3, &["extract", arg(&disk), "/small", "/nothing", "--into", arg(&dir.path().join("not made"))]);
    assert!(!dir.path().join("not made").exists());
    let partial = || {
        let names = fs::read_dir(&into).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).find(|name| name.ends_with(".partial"))
    };
    let args = ["extract", arg(&disk), "/large", "--into", arg(&into)];
    for name in ["KILL", "INT"] {
        let mut child = leandisk().args(args).stderr(Stdio::null()).spawn().unwrap();
        // It may be done before it is met.
        while partial().is_none() && !into.join("large").exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        signal(&child, name);
        let ended = child.wait().unwrap();
        if into.join("large").exists() {
            assert!(fs::read(into.join("large")).unwrap() == large, "whole, if it is there");
            fs::remove_file(into.join("large")).unwrap();
        } else {
            assert!(!ended.success());
        }
        if let Some(left) = partial() {
            assert_eq!(name, "KILL", "{left} is removed where it can be");
            fs::remove_file(into.join(left)).unwrap();
        }
    }
    succeed(&args);
    assert!(fs::read(into.join("large")).unwrap() == large);
}
