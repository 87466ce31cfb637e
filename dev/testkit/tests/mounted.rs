//! Trees of real mounts show every change of a file, and nothing else.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use testkit::mounted::{Mounted, Tree};
use testkit::{loops, run, scratch};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A part of a line that is wanted, and the change.
type Change = (&'static str, fn(&Path));

/// Makes each change in a copy of the volume, which must be told by the fact that it is about.
fn check_changes(volume: &Path, mount: fn(&Path, &str) -> Mounted, changes: &[Change]) {
    let before = mount(volume, "ro,noatime").tree();
    mount(volume, "ro,noatime").tree().assert_same(&before, "the same volume again");
    let copy = volume.with_extension("copy");
    for (wanted, change) in changes {
        fs::copy(volume, &copy).unwrap();
        change(mount(&copy, "noatime").path());
        let lines = before.differences(&mount(&copy, "ro,noatime").tree());
        assert!(lines.iter().any(|line| line.contains(wanted)), "{wanted}: {lines:?}");
    }
}

#[test]
fn every_change_of_ntfs_is_told() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    File::create(&volume).unwrap().set_len(8 << 20).unwrap();
    run("mkntfs", &["-qQF", text(&volume)]);
    {
        let mounted = Mounted::ntfs(&volume, "");
        let root = mounted.path();
        fs::write(root.join("file"), "contents").unwrap();
        fs::write(root.join("file:stream"), vec![7; 100_000]).unwrap();
        fs::hard_link(root.join("file"), root.join("link")).unwrap();
        fs::create_dir(root.join("dir")).unwrap();
        fs::write(root.join("a long name.text"), "x").unwrap();
    }
    check_changes(
        &volume,
        Mounted::ntfs,
        &[
            ("/file: contents: ", |root| fs::write(root.join("file"), "Contents").unwrap()),
            ("/file: size: 8 -> 9", |root| fs::write(root.join("file"), "contents!").unwrap()),
            ("/file: stream stream: 100000 bytes", |root| {
                fs::write(root.join("file:stream"), "other").unwrap();
            }),
            ("/file: stream other: absent", |root| fs::write(root.join("file:other"), "").unwrap()),
            ("/link: lost", |root| fs::remove_file(root.join("link")).unwrap()),
            ("/renamed: was not there before", |root| {
                fs::rename(root.join("file"), root.join("renamed")).unwrap();
            }),
            ("/file: attribute system.ntfs_attrib_be", |root| {
                run(
                    "setfattr",
                    &["-h", "-n", "system.ntfs_attrib_be", "-v", "0x00000022", text(&root.join("file"))],
                );
            }),
            ("/a long name.text: attribute system.ntfs_dos_name", |root| {
                let path = root.join("a long name.text");
                run("setfattr", &["-h", "-n", "system.ntfs_dos_name", "-v", "ALONGN~1.TEX", text(&path)]);
            }),
            ("/file: attribute system.ntfs_times_be", |root| {
                run("touch", &["-d", "2001-02-03 04:05:06.789", text(&root.join("file"))]);
            }),
        ],
    );
}

#[test]
fn every_change_of_ext_is_told() {
    let dir = scratch();
    let volume = dir.path().join("volume");
    File::create(&volume).unwrap().set_len(8 << 20).unwrap();
    run("mke2fs", &["-q", "-F", "-t", "ext4", text(&volume)]);
    {
        let mounted = Mounted::ext(&volume, "");
        fs::write(mounted.path().join("file"), "contents").unwrap();
        std::os::unix::fs::symlink("file", mounted.path().join("symlink")).unwrap();
    }
    check_changes(
        &volume,
        Mounted::ext,
        &[
            ("/file: contents: ", |root| fs::write(root.join("file"), "Contents").unwrap()),
            ("/file: mode: 100644 -> 100755", |root| drop(run("chmod", &["755", text(&root.join("file"))]))),
            ("/file: owner: 0:0 -> 7:9", |root| drop(run("chown", &["7:9", text(&root.join("file"))]))),
            ("/file: attribute user.note: absent -> 78", |root| {
                run("setfattr", &["-n", "user.note", "-v", "x", text(&root.join("file"))]);
            }),
            ("/file: links: 1 -> 2", |root| fs::hard_link(root.join("file"), root.join("link")).unwrap()),
            ("/symlink: leads to: file -> other", |root| {
                fs::remove_file(root.join("symlink")).unwrap();
                std::os::unix::fs::symlink("other", root.join("symlink")).unwrap();
            }),
        ],
    );
}

#[test]
fn what_is_unmounted_is_unmounted_for_everyone() {
    let dir = scratch();
    let (volume, point) = (dir.path().join("volume"), dir.path().join("a mount"));
    File::create(&volume).unwrap().set_len(4 << 20).unwrap();
    fs::create_dir(&point).unwrap();
    run("mke2fs", &["-qF", text(&volume)]);
    loops::mount(&["-t", "ext4", "-o", "loop", text(&volume), text(&point)]);
    // Has this mount, too, and keeps it for a moment.
    let mut other = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo; sleep 0.5"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    other.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    loops::unmount(&point);
    let attached = run("losetup", &["-j", text(&volume)]);
    assert!(other.wait().unwrap().success());
    assert_eq!(attached, "", "the file system is gone");
    assert!(run("dumpe2fs", &["-h", text(&volume)]).contains("Filesystem state:         clean"));
}

#[test]
#[should_panic(expected = "/file: was not there before")]
fn a_difference_panics_with_what_it_is() {
    let dir = scratch();
    let before = Tree::read(dir.path());
    fs::write(dir.path().join("file"), "x").unwrap();
    before.assert_same(&Tree::read(dir.path()), "a folder");
}
