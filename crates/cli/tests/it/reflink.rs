//! Raw copies of raw disks share storage with them where the host's file system does that: what they read as is what a copy that reads and
//! writes makes, byte for byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common;
use crate::common::{arg, assert_only, assert_same_bytes, document, fail, number};
use serde_json::Value;
use testkit::{HostMount, run, scratch};

/// Large enough for XFS.
const HOST_BYTES: u64 = 400 << 20;

/// File systems that share storage between files.
const SHARING: [&str; 2] = ["xfs", "btrfs"];

const MIB: u64 = 1 << 20;

/// Random bytes, of which the last are no whole block.
fn random(path: &Path, mib: u64, more_bytes: u64) {
    run(
        "dd",
        &[
            "if=/dev/urandom",
            &format!("of={}", arg(path)),
            "bs=1M",
            &format!("count={}", mib + 1),
            "status=none",
        ],
    );
    fs::File::options().write(true).open(path).unwrap().set_len(mib * MIB + more_bytes).unwrap();
}

/// An ext4 volume whose free space holds old data, and which has files with zeros in them.
fn guest(dir: &Path) -> PathBuf {
    let (disk, files, scratch) = (dir.join("source.raw"), scratch(), scratch());
    random(&disk, 48, 0);
    random(&files.path().join("data"), 5, 77);
    fs::write(files.path().join("zeros"), vec![0; 3 << 20]).unwrap();
    let made = scratch.path().join("volume");
    run("truncate", &["-s", "48M", arg(&made)]);
    run("mkfs.ext4", &["-q", "-d", arg(files.path()), arg(&made)]);
    // Blocks that were never written keep what was there before.
    run(
        "dd",
        &[
            &format!("if={}", arg(&made)),
            &format!("of={}", arg(&disk)),
            "bs=4k",
            "conv=notrunc,sparse",
            "status=none",
        ],
    );
    run("e2fsck", &["-fn", arg(&disk)]);
    disk
}

fn copy(source: &Path, target: &Path, more: &[&str]) -> Value {
    let args = [&["copy", arg(source), arg(target), "--confine", "always"], more].concat();
    document("leandisk.copy/1", &args)
}

/// Whether storage of the file is shared with another, as the file system says.
fn shares(path: &Path) -> bool {
    run("sync", &["-f", arg(path)]);
    run("filefrag", &["-v", arg(path)]).contains("shared")
}

#[test]
fn a_clone_is_what_a_copy_would_be() {
    for filesystem in SHARING {
        let host = HostMount::new(filesystem, HOST_BYTES);
        let source = guest(host.path());
        let [never, auto, verified] =
            ["never.raw", "auto.raw", "verified.raw"].map(|name| host.path().join(name));
        let copied = copy(&source, &never, &["--reflink", "never"]);
        assert_eq!(number(&copied, "/cloned_bytes"), 0);
        assert!(!shares(&never), "{filesystem}");
        let before = fs::metadata(&source).unwrap();
        let planned = copy(&source, &auto, &["--dry-run"]);
        assert!(!auto.exists());
        let cloned = copy(&source, &auto, &[]);
        assert!(shares(&auto), "{filesystem}");
        for field in [
            "/cloned_bytes",
            "/read_bytes",
            "/avoided/free_bytes",
            "/avoided/unallocated_bytes",
            "/used_bytes",
        ] {
            assert_eq!(number(&planned, field), number(&cloned, field), "{filesystem} {field}");
        }
        let (read, shared) = (number(&cloned, "/read_bytes"), number(&cloned, "/cloned_bytes"));
        assert_eq!(read + shared, number(&copied, "/read_bytes"), "{filesystem}: the same plan");
        assert!(number(&cloned, "/avoided/free_bytes") > 20 * MIB, "{filesystem}: {cloned:#}");
        assert!(shared > 5 * MIB && read < 64 << 10, "{filesystem}: {cloned:#}");
        assert_same_bytes(&never, &auto);
        let checked = copy(&source, &verified, &["--reflink", "always", "--verify"]);
        assert_eq!((checked["verified"].as_bool(), number(&checked, "/cloned_bytes")), (Some(true), shared));
        assert_same_bytes(&never, &verified);
        let after = fs::metadata(&source).unwrap();
        assert_eq!(before.modified().unwrap(), after.modified().unwrap(), "{filesystem}");
        // What one of the two is told does not reach the other.
        run(
            "dd",
            &[
                "if=/dev/zero",
                &format!("of={}", arg(&auto)),
                "bs=1M",
                "count=48",
                "conv=notrunc",
                "status=none",
            ],
        );
        run("e2fsck", &["-fn", arg(&source)]);
        assert_same_bytes(&never, &verified);
    }
}

#[test]
fn a_disk_that_is_not_understood_is_cloned_whole_but_for_its_edge() {
    for filesystem in SHARING {
        let host = HostMount::new(filesystem, HOST_BYTES);
        let [source, target, old] =
            ["source.raw", "target.raw", "old.raw"].map(|name| host.path().join(name));
        random(&source, 12, 1000);
        run("sync", &["-f", arg(&source)]);
        let available_bytes = host.available_bytes();
        let cloned = copy(&source, &target, &["--reflink", "always"]);
        assert_eq!(
            (number(&cloned, "/cloned_bytes"), number(&cloned, "/read_bytes")),
            (12 * MIB, 1000),
            "{filesystem}"
        );
        assert_eq!(number(&cloned, "/written_bytes"), 1000);
        assert_same_bytes(&source, &target);
        run("sync", &["-f", arg(&target)]);
        assert!(available_bytes - host.available_bytes() < 4 * MIB, "{filesystem}: no storage of its own");
        // In the place of an older one, and in part a hole.
        random(&old, 14, 0);
        run("fallocate", &["-p", "-o", "3M", "-l", "5M", arg(&source)]);
        let cloned = copy(&source, &old, &["--force"]);
        assert_eq!(number(&cloned, "/cloned_bytes"), 7 * MIB, "{filesystem}: {cloned:#}");
        assert_same_bytes(&source, &old);
    }
}

#[test]
fn blocks_of_the_host_may_be_small() {
    let host = HostMount::made_with("xfs", HOST_BYTES, &["-b", "size=1024", "-m", "reflink=1"]);
    let [source, target] = ["source.raw", "target.raw"].map(|name| host.path().join(name));
    random(&source, 3, 5 * 1024);
    let cloned = copy(&source, &target, &["--reflink", "always"]);
    assert_eq!((number(&cloned, "/cloned_bytes"), number(&cloned, "/read_bytes")), (3 * MIB + 4096, 1024));
    assert_same_bytes(&source, &target);
}

#[test]
fn what_cannot_be_cloned_is_refused_or_copied() {
    let elsewhere = scratch();
    let refuse = |source: &Path, target: &Path, more: &[&str], word: &str| {
        let args = [&["copy", arg(source), arg(target), "--reflink", "always"], more].concat();
        let message = fail(3, &args);
        assert!(message.contains("cannot clone") && message.contains(word), "{more:?}: {message}");
        assert!(!target.exists());
    };
    {
        let host = HostMount::new("ext4", HOST_BYTES);
        let [source, target] = ["source.raw", "target.raw"].map(|name| host.path().join(name));
        random(&source, 4, 0);
        refuse(&source, &target, &[], "ext4 does not share storage");
        let made = copy(&source, &target, &[]);
        assert_eq!((number(&made, "/cloned_bytes"), number(&made, "/read_bytes")), (0, 4 * MIB));
        assert_same_bytes(&source, &target);
    }
    {
        let host = HostMount::made_with("xfs", HOST_BYTES, &["-m", "reflink=0"]);
        let [source, target] = ["source.raw", "target.raw"].map(|name| host.path().join(name));
        random(&source, 4, 0);
        refuse(&source, &target, &[], "xfs does not share storage");
    }
    let host = HostMount::new("btrfs", HOST_BYTES);
    let [source, target] = ["source.raw", "target.raw"].map(|name| host.path().join(name));
    random(&source, 4, 0);
    refuse(&source, &elsewhere.path().join("target.raw"), &[], "another file system");
    refuse(&source, &host.path().join("target.qcow2"), &[], "only a raw target");
    refuse(&source, &target, &["--provision", "lazy"], "--provision lazy");
    refuse(&source, &target, &["--layout", "packed"], "--layout packed");
    let image = host.path().join("source.qcow2");
    run("qemu-img", &["convert", "-O", "qcow2", arg(&source), arg(&image)]);
    refuse(&image, &target, &[], "only a raw image");
    // Btrfs shares nothing between files with checksums and files without.
    let unlike = host.path().join("without-checksums");
    fs::create_dir(&unlike).unwrap();
    run("chattr", &["+C", arg(&unlike)]);
    refuse(&source, &unlike.join("target.raw"), &[], "chattr +C");
    let made = copy(&source, &unlike.join("target.raw"), &[]);
    assert_eq!(number(&made, "/cloned_bytes"), 0);
    assert_same_bytes(&source, &unlike.join("target.raw"));
    let (within, again) = (unlike.join("target.raw"), unlike.join("again.raw"));
    assert_eq!(number(&copy(&within, &again, &["--reflink", "always"]), "/cloned_bytes"), 4 * MIB);
    assert_same_bytes(&source, &again);
}

#[test]
fn an_interrupted_clone_is_gone_on_with() {
    for filesystem in SHARING {
        let host = HostMount::new(filesystem, HOST_BYTES);
        let folder = host.path().join("targets");
        fs::create_dir(&folder).unwrap();
        let (source, target) = (host.path().join("source.raw"), folder.join("target.raw"));
        random(&source, 12, 1000);
        let args = [
            "copy",
            arg(&source),
            arg(&target),
            "--reflink",
            "always",
            "--threads",
            "1",
            "--confine",
            "never",
        ];
        // What is asked of the partial target is to clone, chunk by chunk.
        let inject = "inject=ioctl:signal=SIGTERM:when=3";
        let partial = folder.join(".target.raw.leandisk-partial");
        let stopped = Command::new("strace")
            .args([
                "-f",
                "-qq",
                "-o",
                "/dev/null",
                "-e",
                "trace=ioctl",
                "-e",
                inject,
                "-P",
                arg(&partial),
                &common::program(),
            ])
            .args(args)
            .output()
            .unwrap();
        let message = String::from_utf8(stopped.stderr).unwrap();
        assert_eq!(stopped.status.code(), Some(130), "{message}");
        assert!(message.contains("--resume goes on with it after"), "{message}");
        assert_only(&folder, &[".target.raw.leandisk-partial", ".target.raw.leandisk-progress"]);
        let made = document("leandisk.copy/1", &[&args[..], &["--resume"]].concat());
        assert_eq!(number(&made, "/cloned_bytes"), 12 * MIB, "{filesystem}: {made:#}");
        assert_same_bytes(&source, &target);
        assert_only(&folder, &["target.raw"]);
    }
}
