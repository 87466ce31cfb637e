//! Several disks of a running guest, taken at one moment: copied, backed up, and what a kill leaves.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::scratch;

use crate::backup::Repo;
use crate::common::{arg, assert_same_bytes, fail, names_in, signal};
use crate::running::{Attached, DEVICES, Guest, ended, fake_agent, make_disk};

/// With two disks.
fn guest(attached: Attached) -> Guest {
    let dir = scratch();
    for (number, name) in ["first", "second"].iter().enumerate() {
        let path = |extension: &str| dir.path().join(format!("{name}.{extension}"));
        make_disk(&path("qcow2"), &path("raw"), u8::try_from(number * 16).unwrap());
    }
    Guest::with(dir, attached, &["first", "second"])
}

fn succeeds(guest: &Guest, args: &[&str]) -> (Value, String) {
    let output = guest.leandisk(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
    (serde_json::from_slice(&output.stdout).unwrap_or_default(), said)
}

#[test]
fn all_disks_of_a_guest_are_copied_as_of_one_moment() {
    for attached in [Attached::ByNode, Attached::ByDrive, Attached::Unused] {
        let mut guest = guest(attached);
        let names = if attached == Attached::ByNode { DEVICES } else { ["virtio0", "virtio1"] };
        let into = guest.path("into");
        let child =
            guest.stop_at_export(&["copy", &guest.address(), "--into", arg(&into), "-O", "qcow2", "--force"]);
        for (disk, byte, at) in [(0, 0xaa, "0"), (1, 0xbb, "1M"), (1, 0xcc, "6M"), (0, 0xdd, "31M")] {
            guest.write_to(disk, byte, at, "1M");
        }
        let third = format!("qmp:{}", guest.path("third").display());
        let (listed, _) = succeeds(&guest, &["info", &third, "--json"]);
        for (number, name) in names.iter().enumerate() {
            let disk = &listed["disks"][number];
            let is_own = !disk["node"].as_str().unwrap().starts_with("leandisk-");
            assert!(disk["name"] == *name && is_own, "not what is above it for a while: {listed}");
        }
        signal(&child, "CONT");
        let (status, said) = ended(child);
        assert_eq!(status, Some(0), "{said}");
        for (name, raw) in names.iter().zip(["first.raw", "second.raw"]) {
            let copied = into.join(format!("{name}.qcow2"));
            testkit::run("qemu-img", &["compare", arg(&copied), arg(&guest.path(raw))]);
        }
        guest.assert_clean();
        let address = guest.address();
        let ova = guest.path("vm.ova");
        succeeds(&guest, &["copy", &address, "--into", arg(&ova)]);
        let members = testkit::run("tar", &["-tf", arg(&ova)]);
        assert_eq!(members.lines().filter(|name| name.ends_with(".vmdk")).count(), 2, "{members}");
        guest.assert_clean();
        let disk = |name: &str| format!("{address}?disk={name}");
        let only = guest.path("only");
        let (told, _) = succeeds(
            &guest,
            &[
                "copy",
                &disk(names[1]),
                arg(&guest.path("first.raw")),
                "--into",
                arg(&only),
                "-O",
                "raw",
                "--json",
            ],
        );
        assert_eq!(told["disks"][0]["source"]["path"], json!(disk(names[1])));
        let bytes = fs::read(only.join(format!("{}.raw", names[1]))).unwrap();
        assert_eq!((bytes[1 << 20], bytes[6 << 20]), (0xbb, 0xcc));
        assert_same_bytes(&only.join("first.raw"), &guest.path("first.raw"));
        guest.assert_clean();
        if attached == Attached::ByNode {
            let refused = |status, args: &[&str]| {
                fail(status, &[&["copy"], args, &["--into", arg(&only), "-O", "raw"]].concat())
            };
            assert!(refused(2, &[&disk("vda"), &disk("disk0"), "--force"]).contains("named twice"));
            refused(2, &[&disk("vda"), &disk("vdb"), "--since", "daily"]);
            refused(2, &[arg(&guest.path("first.raw")), "--freeze", "never"]);
            refused(3, &[&disk("vdb"), &disk("vdc"), "--force"]);
            fail(2, &["copy", &guest.address(), arg(&guest.path("one.raw"))]);
            guest.assert_clean();
        }
    }
}

/// A guest writes a number to its first disk, and then to its second, and so on: of neither more than one write is in a copy that the other
/// has not. That the order of commands matters for that shows in `vm` alone (`Mutant::DisksOneByOne`): a QEMU is seldom caught between two.
#[test]
fn disks_that_are_written_in_turns_are_copied_as_of_one_turn() {
    let mut guest = guest(Attached::ByNode);
    (0..2).for_each(|disk| guest.write_to(disk, 250, "2M", "512"));
    let mut writer = UnixStream::connect(guest.path("third")).unwrap();
    let answers = writer.try_clone().unwrap();
    let is_over = AtomicBool::new(false);
    let into = guest.path("into");
    std::thread::scope(|scope| {
        // The next write waits in QEMU already when one is done, so that some come between any two commands.
        scope.spawn(move || BufReader::new(answers).lines().map_while(Result::ok).for_each(drop));
        scope.spawn(|| {
            writeln!(writer, "{}", json!({ "execute": "qmp_capabilities" })).unwrap();
            for number in (1..=250_u8).cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
                for device in DEVICES {
                    let line = format!(
                        "qemu-io -d /machine/peripheral/{device}/virtio-backend \"write -q -P {number} 2M 512\""
                    );
                    let arguments = json!({ "command-line": line });
                    writeln!(writer, "{}", json!({ "execute": "human-monitor-command", "arguments": arguments })).unwrap();
                }
            }
            writer.shutdown(Shutdown::Both).unwrap();
        });
        for _ in 0..5 {
            succeeds(&guest, &["copy", &guest.address(), "--into", arg(&into), "-O", "raw", "--force"]);
            let [first, second] =
                DEVICES.map(|name| fs::read(into.join(format!("{name}.raw"))).unwrap()[2 << 20]);
            assert!(first == second || first == second % 250 + 1, "{first} {second}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    guest.assert_clean();
}

#[test]
fn disks_of_a_guest_make_one_snapshot_of_one_moment() {
    let mut guest = guest(Attached::ByNode);
    let repo = Repo::new();
    let place = repo.args();
    let disks = DEVICES.map(|name| format!("{}?disk={name}", guest.address()));
    let renamed = format!("data={}", disks[1]);
    let child = guest.stop_at_export(&repo.with(&place, &["backup", &disks[0], &renamed, "--init"]));
    guest.write_to(0, 0x77, "2M", "1M");
    guest.write_to(1, 0x78, "9M", "1M");
    signal(&child, "CONT");
    let (status, said) = ended(child);
    assert_eq!(status, Some(0), "{said}");
    guest.assert_clean();
    for (name, raw) in [("/vda", "first.raw"), ("/data", "second.raw")] {
        let restored = guest.path("restored.raw");
        repo.dump("latest", name, &restored);
        assert_same_bytes(&restored, &guest.path(raw));
    }
    // A guest stands for all of its disks, and has no name for them.
    let (told, _) = succeeds(&guest, &repo.with(&place, &["backup", &guest.address(), "--json"]));
    assert_eq!(told["disks"].as_array().unwrap().len(), 2, "{told:#}");
    let named = format!("vm={}", guest.address());
    repo.fail(2, &["backup", &named]);
    guest.assert_clean();

    // It is frozen once, for all of them.
    let agent = guest.path("agent");
    let asked = fake_agent(&agent, true);
    let frozen = ["backup", &guest.address(), "--freeze", "always", "--agent", arg(&agent)];
    succeeds(&guest, &repo.with(&place, &frozen));
    assert_eq!(
        *asked.lock().unwrap(),
        ["guest-sync-delimited", "guest-fsfreeze-freeze", "guest-fsfreeze-thaw"]
    );
    guest.assert_clean();

    // Another socket of the same QEMU is not another guest.
    let third = format!("qmp:{}?disk=vdb", guest.path("third").display());
    let said = guest.leandisk(&repo.with(&place, &["backup", &disks[0], &third])).output().unwrap();
    assert_eq!(said.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&said.stderr).contains("the same QEMU"));
    guest.assert_clean();

    // Another guest has a moment of its own, which is said.
    let mut other = Guest::start(Attached::ByNode);
    let of_other = format!("other={}", other.address());
    let (told, said) =
        succeeds(&guest, &repo.with(&place, &["backup", &disks[0], &of_other, &disks[1], "--json"]));
    assert!(said.contains("disks of 2 guests"), "{said}");
    assert_eq!(told["disks"][1]["name"], "other");
    repo.dump("latest", "/other", &other.path("restored.raw"));
    assert_same_bytes(&other.path("restored.raw"), &other.path("before.raw"));
    guest.assert_clean();
    other.assert_clean();
    repo.restic(&["check", "--read-data"]);
}

/// `LEANDISK_KILLS` says how often; `make live-kills` has more.
#[test]
fn what_a_killed_copy_of_several_disks_left_is_removed() {
    let kills = std::env::var("LEANDISK_KILLS").map_or(6, |text| text.parse().unwrap());
    for attached in [Attached::ByNode, Attached::Unused] {
        let mut guest = guest(attached);
        let (address, into) = (guest.address(), guest.path("into"));
        let args = ["copy", &address, "--into", arg(&into), "-O", "raw", "--force"];
        let started = Instant::now();
        succeeds(&guest, &args);
        let whole = started.elapsed();
        let mut removed = 0;
        for number in 0..kills / 2 {
            fs::remove_dir_all(&into).unwrap();
            let mut child = guest.leandisk(&args).stderr(Stdio::null()).spawn().unwrap();
            sleep(whole * (2 * number + 1) / kills);
            child.kill().unwrap();
            child.wait().unwrap();
            assert_whole(&into, &guest);
            guest.write_to(1, 17, "0", "64k");
            if number % 2 == 0 {
                let (told, _) = succeeds(&guest, &["recover", &address, "--json"]);
                removed += u32::from(told["outcome"] == "removed");
            }
            succeeds(&guest, &args);
            guest.assert_clean();
            assert_whole(&into, &guest);
        }
        println!("{attached:?}: of {} killed copies {removed} were recovered from", kills / 2);
    }
}

/// What has its name is a whole copy of what the disk holds.
fn assert_whole(into: &Path, guest: &Guest) {
    let names = if into.exists() { names_in(into) } else { Vec::new() };
    for name in names.iter().filter(|name| !name.starts_with('.') && name.ends_with(".raw")) {
        let is_first = name.contains("vda") || name.contains("virtio0");
        let held = guest.path(if is_first { "first.raw" } else { "second.raw" });
        assert_same_bytes(&into.join(name), &held);
    }
}

#[test]
fn disks_of_a_guest_are_served_as_of_one_moment() {
    let mut guest = guest(Attached::ByNode);
    let disks = DEVICES.map(|name| format!("{}?disk={name}", guest.address()));
    let socket = guest.path("served");
    let args = ["serve", &disks[0], &disks[1], "--read-only", "--socket", arg(&socket)];
    let mut serving = guest.leandisk(&args).spawn().unwrap();
    let mut said = BufReader::new(serving.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(said.by_ref().filter(|line| line.contains("serving ")).take(2).count(), 2);
    (0..2).for_each(|disk| guest.write_to(disk, 0x77, "20M", "64k"));
    for (name, raw) in DEVICES.iter().zip(["first.raw", "second.raw"]) {
        let export = format!("nbd+unix:///{name}?socket={}", socket.display());
        testkit::run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &export, arg(&guest.path(raw))]);
    }
    signal(&serving, "TERM");
    assert!(serving.wait().unwrap().success());
    guest.assert_clean();
    fail(2, &["serve", &guest.address(), "--read-only", "--socket", arg(&socket)]);
    guest.assert_clean();
}

#[test]
fn a_signal_leaves_nothing_of_several_disks() {
    let mut guest = guest(Attached::ByNode);
    let into = guest.path("into");
    let child =
        guest.stop_at_export(&["copy", &guest.address(), "--into", arg(&into), "-O", "raw", "--force"]);
    signal(&child, "INT");
    sleep(Duration::from_millis(10));
    signal(&child, "CONT");
    let (status, said) = ended(child);
    assert_eq!(status, Some(130), "{said}");
    guest.assert_clean();
}
