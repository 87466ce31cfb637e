//! Snapshots that are booted: by QEMU, from boot sectors that are written here.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::{run, scratch};

use crate::backup::{Repo, noise};
use crate::common::{arg, assert_same_bytes, leandisk, number, signal, wait_until};

const SECTOR_BYTES: usize = 512;
/// Where a BIOS puts a boot sector.
const LOADED_AT: u16 = 0x7c00;
/// Stops for good.
const STOP: [u8; 3] = [0xf4, 0xeb, 0xfd];

/// Writes the disk's second sector by the BIOS, and then says what follows the code on the first serial port.
const SPEAK: [u8; 51] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, // xor ax, ax; mov ds, ax; mov es, ax
    0xb8, 0x01, 0x03, 0xbb, 0x00, 0x7c, // mov ax, 0x0301; mov bx, 0x7c00
    0xb9, 0x02, 0x00, 0xb6, 0x00, // mov cx, 2; mov dh, 0
    0xcd, 0x13, 0x72, 0x1b, // int 0x13; jc done
    0xbe, 0x33, 0x7c, 0xfc, // mov si, LOADED_AT + 51; cld
    0xac, 0x84, 0xc0, 0x74, 0x12, // next: lodsb; test al, al; jz done
    0x88, 0xc4, 0xba, 0xfd, 0x03, // mov ah, al; mov dx, 0x3fd
    0xec, 0xa8, 0x20, 0x74, 0xfb, // wait: in al, dx; test al, 0x20; jz wait
    0xba, 0xf8, 0x03, 0x88, 0xe0, // mov dx, 0x3f8; mov al, ah
    0xee, 0xeb, 0xe9, // out dx, al; jmp next
    0xf4, 0xeb, 0xfd, // done: hlt; jmp done
];

/// Writes 32 KiB after 32 KiB by the BIOS, for ever.
const WRITE_ON: [u8; 39] = [
    0x31, 0xc0, 0x8e, 0xd8, // xor ax, ax; mov ds, ax
    0xbe, 0x17, 0x7c, // mov si, packet
    0xb4, 0x43, 0xb0, 0x00, 0xb2, 0x80, // next: mov ah, 0x43; mov al, 0; mov dl, 0x80
    0xcd, 0x13, // int 0x13
    0x66, 0x83, 0x06, 0x1f, 0x7c, 0x40, // add dword [packet + 8], 64
    0xeb, 0xf0, // jmp next
    0x10, 0x00, 0x40, 0x00, 0x00, 0x7c, 0x00, 0x00, // packet: 64 sectors from 0:0x7c00
    0x40, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // to this one
];

/// A disk of 1 MiB with this code in its boot sector.
fn bootable(path: &Path, code: &[u8]) {
    let mut disk = vec![0; 1 << 20];
    disk[..code.len()].copy_from_slice(code);
    disk[SECTOR_BYTES - 2..SECTOR_BYTES].copy_from_slice(&[0x55, 0xaa]);
    fs::write(path, disk).unwrap();
}

/// A disk that says `text`.
fn speaking(path: &Path, text: &str) {
    assert_eq!(usize::from(LOADED_AT) + SPEAK.len(), 0x7c33);
    bootable(path, &[&SPEAK, text.as_bytes(), &[0]].concat());
}

fn backed_up(repo: &Repo, disks: &[PathBuf]) {
    let disks: Vec<_> = disks.iter().map(|disk| arg(disk)).collect();
    repo.succeed(&[&["backup", "--init"], &disks[..]].concat());
}

#[test]
fn a_snapshot_that_boots_says_so_and_stays_as_it_is() {
    let (dir, repo) = (scratch(), Repo::new());
    let (disk, screen, restored) =
        (dir.path().join("disk.raw"), dir.path().join("screen.png"), dir.path().join("restored.raw"));
    speaking(&disk, "Leandisk boots");
    backed_up(&repo, std::slice::from_ref(&disk));
    let args = ["check", "latest", "--boot", "--boot-seconds", "100", "--boot-expect", "disk boots"];
    let checked =
        repo.document("leandisk.check/1", &[&args[..], &["--boot-screenshot", arg(&screen)]].concat());
    let boot = &checked["boot"];
    assert_eq!(
        (&boot["ended"], &boot["expected"]),
        (&"expected".into(), &"disk boots".into()),
        "{checked:#}"
    );
    assert!(boot["seconds"].as_f64().unwrap() < 100.0, "{boot:#}");
    assert!(boot["serial_tail"].as_str().unwrap().contains("Leandisk boots"), "{boot:#}");
    assert_eq!(boot["screenshot"], arg(&screen));
    let png = fs::read(&screen).unwrap();
    let sides: Vec<_> = [16, 20].map(|at| u32::from_be_bytes(png[at..at + 4].try_into().unwrap())).into();
    assert!(png.starts_with(b"\x89PNG") && sides.iter().all(|side| (200..4096).contains(side)), "{sides:?}");
    // What the guest wrote is gone, and nothing else came.
    repo.dump("latest", "/disk.raw", &restored);
    assert_same_bytes(&disk, &restored);
    repo.restic(&["check", "--read-data"]);
    assert_eq!(repo.document("leandisk.check/1", &["check", "latest"])["boot"], Value::Null);
    // A picture is replaced where that is asked for.
    let again = [&args[..], &["--boot-screenshot", arg(&screen)]].concat();
    repo.fail(3, &again);
    let portable = dir.path().join("screen.ppm");
    let text =
        repo.succeed(&[&args[..], &["--boot-screenshot", arg(&portable), "--boot-bus", "virtio"]].concat());
    assert!(text.contains("booted: disk boots came after"), "{text}");
    assert!(fs::read(portable).unwrap().starts_with(b"P6\n"));
}

#[test]
fn a_login_prompt_is_waited_for_on_whichever_disk_boots() {
    let (dir, repo) = (scratch(), Repo::new());
    let [first, second] = ["a.raw", "b.raw"].map(|name| dir.path().join(name));
    noise(&first, 1, 7);
    speaking(&second, "Debian GNU/Linux\r\nvm login: ");
    backed_up(&repo, &[first, second]);
    for bus in ["ide", "sata"] {
        let checked = repo.document("leandisk.check/1", &["check", "latest", "--boot", "--boot-bus", bus]);
        assert_eq!(checked["boot"]["expected"], "login:", "{checked:#}");
        assert_eq!(checked["disks"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn what_a_guest_writes_leaves_half_of_the_room_to_others() {
    let (dir, repo) = (scratch(), Repo::new());
    let (disk, small) = (dir.path().join("disk.raw"), dir.path().join("small"));
    bootable(&disk, &WRITE_ON);
    OpenOptions::new().write(true).open(&disk).unwrap().set_len(64 << 20).unwrap();
    backed_up(&repo, &[disk]);
    fs::create_dir(&small).unwrap();
    run("mount", &["-t", "tmpfs", "-o", "size=8M", "leandisk-test", arg(&small)]);
    let (of, mut command) = (repo.args(), leandisk());
    command.args(repo.with(&of, &["check", "latest", "--boot", "--boot-seconds", "100"]));
    let output = command.env("TMPDIR", &small).output().unwrap();
    testkit::loops::unmount(&small);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("keep what the guest writes") && said.contains("half of what was free"), "{said}");
}

#[test]
fn a_snapshot_that_never_says_anything_is_stopped_in_time() {
    let (dir, repo) = (scratch(), Repo::new());
    let disk = dir.path().join("disk.raw");
    bootable(&disk, &STOP);
    backed_up(&repo, &[disk]);
    let args = ["check", "latest:disk.raw", "--boot", "--boot-seconds", "3"];
    let began = Instant::now();
    let boot = repo.document("leandisk.check/1", &args)["boot"].clone();
    assert_eq!((&boot["ended"], &boot["expected"]), (&"time".into(), &Value::Null), "{boot:#}");
    assert!((3.0..60.0).contains(&boot["seconds"].as_f64().unwrap()), "{boot:#}");
    assert!(began.elapsed() < Duration::from_secs(100));
    assert!(repo.succeed(&args).contains("not seen to boot: nothing that was waited for came after"));
    // What the user expects decides.
    let expecting = [&args[..], &["--boot-expect", "ready"]].concat();
    let complaint = repo.fail(6, &expecting);
    assert!(complaint.contains("did not say 'ready' within"), "{complaint}");
    let (of, mut command) = (repo.args(), leandisk());
    let output = command.args(repo.with(&of, &expecting)).arg("--json").output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&document["schema"], &document["boot"]["ended"]),
        (&"leandisk.check/1".into(), &"time".into())
    );
    assert_eq!(number(&document, "/disks/0/virtual_bytes"), 1 << 20);
}

/// The processes that this one has started.
fn children(of: &Child) -> Vec<u32> {
    let path = format!("/proc/{0}/task/{0}/children", of.id());
    let list = fs::read_to_string(path).unwrap_or_default();
    list.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// Whether the process is there, and has not ended.
fn lives(id: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

#[test]
fn nothing_is_left_when_it_is_interrupted_or_killed() {
    let (dir, repo) = (scratch(), Repo::new());
    let (disk, temporary) = (dir.path().join("disk.raw"), dir.path().join("temporary"));
    bootable(&disk, &STOP);
    backed_up(&repo, &[disk]);
    fs::create_dir(&temporary).unwrap();
    let screen = dir.path().join("screen.png");
    for (name, status) in [("INT", Some(130)), ("TERM", Some(130)), ("KILL", None)] {
        let args = ["check", "latest", "--boot", "--boot-seconds", "500", "--boot-screenshot", arg(&screen)];
        let (of, mut command) = (repo.args(), leandisk());
        command.args(repo.with(&of, &args)).env("TMPDIR", &temporary);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let child_of = child.id();
        let started = || {
            fs::read_to_string(format!("/proc/{child_of}/task/{child_of}/children"))
                .is_ok_and(|list| !list.is_empty())
        };
        wait_until(&mut child, started);
        std::thread::sleep(Duration::from_millis(500));
        let qemu = children(&child);
        assert!(qemu.iter().any(|id| lives(*id)), "{name}");
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), status, "{name}");
        let deadline = Instant::now() + Duration::from_secs(20);
        while qemu.iter().any(|id| lives(*id)) {
            assert!(Instant::now() < deadline, "{name}: QEMU is left");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut left = fs::read_dir(&temporary).unwrap();
        assert!(left.next().is_none() && !screen.exists(), "{name}");
        let mut names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["disk.raw", "temporary"], "{name}");
    }
    repo.succeed(&["backup", arg(&dir.path().join("disk.raw"))]);
    repo.restic(&["check"]);
}

#[test]
fn what_is_missing_for_it_is_said_before_anything_is_read() {
    let (dir, repo) = (scratch(), Repo::new());
    let disk = dir.path().join("disk.raw");
    bootable(&disk, &STOP);
    backed_up(&repo, &[disk]);
    // Everything of the repository but its keys could be gone, and nobody would notice yet.
    let (of, mut command) = (repo.args(), leandisk());
    let output =
        command.args(repo.with(&of, &["check", "latest", "--boot"])).env("PATH", dir.path()).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("qemu-system-x86_64 is not installed"), "{said}");
    let wrong: [&[&str]; 5] = [
        &["--boot-seconds", "5"],
        &["--boot-screenshot", "screen.png"],
        &["--boot", "--boot-screenshot", "screen.jpg"],
        &["--boot", "--boot-expect", ""],
        &["--boot", "--boot-seconds", "0"],
    ];
    for wrong in wrong {
        repo.fail(2, &[&["check", "latest"], wrong].concat());
    }
    // QEMU's own complaint is told.
    let complaint = repo.fail(5, &["check", "latest", "--boot", "--boot-firmware", "/nowhere/firmware"]);
    assert!(complaint.contains("/nowhere/firmware"), "{complaint}");
}
