//! A disk that is served is read as it is at one moment, whatever its guest does meanwhile.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use testkit::loops::unmount;
use testkit::{run, scratch};

use crate::common::{arg, document, leandisk, names_in, succeed};
use crate::serving::Serving;

const MIB: usize = 1 << 20;
/// Much more than what is on its way in a pipe and in the memory of a copy.
const DISK_MIB: usize = 128;
/// What the guest does to all of it: overwrites, zeroes, discards.
const CHANGES: [&str; 5] =
    ["write -P 2 0 50M", "write -z 50M 25M", "discard 75M 25M", "write -P 3 100M 28M", "flush"];

/// Every block tells where it is; and there are holes.
fn contents() -> Vec<u8> {
    let block = |number: usize| [(number % 251) as u8 + 4; 4096];
    let blocks = (0..DISK_MIB * 256).map(|number| if number % 512 < 64 { [0; 4096] } else { block(number) });
    blocks.flatten().collect()
}

fn image(dir: &Path, format: &str, contents: &[u8]) -> PathBuf {
    let (raw, image) = (dir.join("made.raw"), dir.join(format!("disk.{format}")));
    fs::File::create(&raw).unwrap().write_all(contents).unwrap();
    run("qemu-img", &["convert", "-f", "raw", "-O", format, arg(&raw), arg(&image)]);
    fs::remove_file(raw).unwrap();
    image
}

fn change(address: &str) {
    let commands = CHANGES.iter().flat_map(|command| ["-c", command]);
    let args: Vec<_> = ["-f", "raw", "-d", "unmap"].into_iter().chain(commands).chain([address]).collect();
    run("qemu-io", &args);
}

/// A copy to a pipe that has read a little.
struct Copying {
    child: Child,
    read: Vec<u8>,
}

impl Copying {
    fn begin(source: &str, temporary: &Path) -> Self {
        let mut command = leandisk();
        command.args(["copy", source, "-", "-O", "raw"]).env("TMPDIR", temporary);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut read = vec![0; MIB];
        child.stdout.as_mut().unwrap().read_exact(&mut read).unwrap();
        Self { child, read }
    }

    /// All that it wrote, its status, and what it said.
    fn end(mut self) -> (Vec<u8>, Option<i32>, String) {
        self.child.stdout.take().unwrap().read_to_end(&mut self.read).unwrap();
        let output = self.child.wait_with_output().unwrap();
        (self.read, output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[test]
fn what_the_guest_does_meanwhile_is_not_in_it() {
    for format in ["raw", "qcow2"] {
        let dir = scratch();
        let before = contents();
        let disk = image(dir.path(), format, &before);
        let serving = Serving::start(&disk);
        // Of its own, and by its socket alone.
        for source in [&*serving.address, arg(&serving.socket)] {
            let temporary = scratch();
            let copying = Copying::begin(source, temporary.path());
            change(&serving.address);
            let (read, status, said) = copying.end();
            assert_eq!(status, Some(0), "{said}");
            assert!(read == before, "{format}: it is not the disk as it was");
            assert!(names_in(temporary.path()).is_empty());
            // The next one begins with the same disk.
            let raw = dir.path().join("before.raw");
            fs::write(&raw, &before).unwrap();
            run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", arg(&raw), &serving.address]);
        }
        change(&serving.address);
        let after = dir.path().join("after.raw");
        succeed(&["copy", &serving.address, arg(&after)]);
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", arg(&after), &serving.address]);
        serving.stop();
    }
}

/// By the socket, while it is served.
#[test]
fn a_served_disk_is_backed_up_and_its_files_are_read() {
    let dir = scratch();
    let (files, raw) = (dir.path().join("files"), dir.path().join("disk.raw"));
    fs::create_dir(&files).unwrap();
    fs::write(files.join("a file"), "what is in it").unwrap();
    run("mkfs.ext4", &["-q", "-d", arg(&files), arg(&raw), "16M"]);
    let serving = Serving::start(&raw);
    assert_eq!(succeed(&["cat", arg(&serving.socket), "/a file"]), "what is in it");
    let (password, repository) = (dir.path().join("password"), dir.path().join("repository"));
    fs::write(&password, "secret").unwrap();
    let place = ["--repo", arg(&repository), "--password-file", arg(&password)];
    let stored =
        document("leandisk.backup/1", &[&["backup", &serving.address, "--init"], &place[..]].concat());
    assert_eq!(stored["disks"][0]["name"], "disk", "the export's name");
    serving.stop();
    assert_eq!(succeed(&[&["cat", "latest:disk", "/a file"], &place[..]].concat()), "what is in it");
}

#[test]
fn a_copy_that_is_killed_leaves_nothing_and_the_guest_goes_on() {
    let dir = scratch();
    let disk = image(dir.path(), "raw", &contents());
    let serving = Serving::start(&disk);
    for _ in 0..6 {
        let mut copying = Copying::begin(&serving.address, dir.path());
        copying.child.kill().unwrap();
        copying.child.wait().unwrap();
    }
    change(&serving.address);
    let exports = run("qemu-nbd", &["--list", "-k", arg(&serving.socket)]);
    assert!(exports.contains("exports available: 1"), "{exports}");
    let info = document("leandisk.info/1", &["info", arg(&serving.socket)]);
    assert_eq!(info["path"], arg(&serving.socket));
    serving.stop();
}

/// What cannot be kept is the copy's loss, and not the guest's.
#[test]
fn without_room_for_what_changes_the_copy_fails_and_the_guest_goes_on() {
    let dir = scratch();
    let disk = image(dir.path(), "raw", &contents());
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    run("mount", &["-t", "tmpfs", "-o", "size=1M", "none", arg(&small)]);
    let serving = Serving::start(&disk);
    let copying = Copying::begin(&serving.address, &small);
    change(&serving.address);
    let (read, status, said) = copying.end();
    unmount(&small);
    assert_eq!(status, Some(5), "{said}");
    assert!(read.len() < DISK_MIB * MIB);
    run("qemu-io", &["-f", "raw", "-c", "read -P 2 0 50M", "-c", "read -P 0 50M 50M", &serving.address]);
    serving.stop();
}
