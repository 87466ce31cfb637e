//! Disks of running guests. The guests are QEMUs whose processors never start: what a guest would write, QEMU's own `qemu-io` writes to the
//! same device.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{run, scratch};
use vm::Monitor;

use crate::common::{arg, assert_same_bytes, document, fail, leandisk, names_in, output, signal, succeed};

pub(crate) const DISK_BYTES: u64 = 32 << 20;

/// Ids of the disks' devices, where they have some.
pub(crate) const DEVICES: [&str; 2] = ["vda", "vdb"];

/// How the guest has its disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attached {
    /// A node with a name, and a device with an id.
    ByNode,
    /// `-drive`: a block device with a name.
    ByDrive,
    /// A block device that no device uses.
    Unused,
    /// A node, as `vda`, that a thread of its own handles.
    InThread,
}

/// A QEMU with one disk or several, and a monitor of the test's own beside the one that is named.
pub(crate) struct Guest {
    dir: tempfile::TempDir,
    pub(crate) qemu: Child,
    own: vm::Socket,
    attached: Attached,
}

impl Guest {
    pub(crate) fn start(attached: Attached) -> Self {
        let dir = scratch();
        make_disk(&dir.path().join("guest.qcow2"), &dir.path().join("before.raw"), 0);
        Self::of(dir, attached)
    }

    /// With the disk `guest.qcow2` that is in `dir`.
    pub(crate) fn of(dir: tempfile::TempDir, attached: Attached) -> Self {
        Self::with(dir, attached, &["guest"])
    }

    /// With the disks of these names that are in `dir`: by their nodes `vda`, `vdb` and so on.
    pub(crate) fn with(dir: tempfile::TempDir, attached: Attached, names: &[&str]) -> Self {
        fs::create_dir(dir.path().join("tmp")).unwrap();
        let disk = |(number, name): (usize, &&str)| {
            let disk = dir.path().join(format!("{name}.qcow2"));
            let disk = disk.display();
            let by_node = format!(
                "-blockdev driver=qcow2,node-name=disk{number},file.driver=file,file.filename={disk} -device virtio-blk-pci,drive=disk{number},id={}",
                DEVICES[number]
            );
            match attached {
                Attached::ByNode => by_node,
                Attached::InThread => format!("-object iothread,id=thread {by_node},iothread=thread"),
                Attached::ByDrive => format!("-drive file={disk},if=virtio"),
                Attached::Unused => format!("-drive file={disk},if=none,id=virtio{number}"),
            }
        };
        let drives: Vec<String> = names.iter().enumerate().map(disk).collect();
        Self::boot(dir, attached, &drives.join(" "))
    }

    /// The same guest, started again.
    pub(crate) fn restarted(mut self, kills: bool) -> Self {
        let dir = std::mem::replace(&mut self.dir, scratch());
        match kills {
            true => self.qemu.kill().unwrap(),
            false => drop(self.ask("quit", json!({}))),
        }
        self.qemu.wait().unwrap();
        fs::remove_dir_all(dir.path().join("tmp")).unwrap();
        let attached = self.attached;
        drop(self);
        Self::of(dir, attached)
    }

    fn boot(dir: tempfile::TempDir, attached: Attached, drive: &str) -> Self {
        let machine = if attached == Attached::Unused { "none" } else { "pc" };
        let sockets = ["qmp", "own", "third"]
            .map(|name| format!("unix:{},server=on,wait=off", dir.path().join(name).display()));
        let qemu = Command::new("qemu-system-x86_64")
            .args(["-machine", machine, "-accel", "tcg", "-m", "32", "-display", "none", "-nodefaults", "-S"])
            .args(sockets.iter().flat_map(|socket| ["-qmp", socket]))
            .args(drive.split(' '))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let own = loop {
            if let Ok(own) = vm::Socket::connect(&dir.path().join("own")) {
                break own;
            }
            assert!(Instant::now() < until, "QEMU does not answer");
            sleep(Duration::from_millis(10));
        };
        Self { dir, qemu, own, attached }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn address(&self) -> String {
        format!("qmp:{}", self.path("qmp").display())
    }

    pub(crate) fn ask(&mut self, name: &'static str, arguments: Value) -> Value {
        self.own.execute(vm::Command { name, arguments, file: None }).unwrap()
    }

    /// Writes as the guest would.
    pub(crate) fn write(&mut self, byte: u8, at: &str, len: &str) {
        self.write_to(0, byte, at, len);
    }

    /// The same to the disk of that number.
    pub(crate) fn write_to(&mut self, disk: usize, byte: u8, at: &str, len: &str) {
        let device = match self.attached {
            Attached::ByNode | Attached::InThread => {
                format!("-d /machine/peripheral/{}/virtio-backend", DEVICES[disk])
            }
            Attached::ByDrive | Attached::Unused => format!("virtio{disk}"),
        };
        let line = format!("qemu-io {device} \"write -P {byte} {at} {len}\"");
        let said = self.ask("human-monitor-command", json!({ "command-line": line }));
        assert_eq!(said, "", "qemu-io");
    }

    /// What of Leandisk's is in QEMU, and beside it.
    fn left(&mut self) -> Vec<String> {
        let mut names = names_in(&self.path("tmp"));
        for (command, arguments, key) in [
            ("query-named-block-nodes", json!({}), "node-name"),
            ("query-block-exports", json!({}), "id"),
            ("query-jobs", json!({}), "id"),
            ("qom-list", json!({ "path": "/objects" }), "name"),
        ] {
            // Without an object there is no folder of them.
            let Ok(all) = self.own.execute(vm::Command { name: command, arguments, file: None }) else {
                continue;
            };
            let all = all.as_array().unwrap().iter().map(|one| one[key].as_str().unwrap().to_owned());
            names.extend(all.filter(|name| name.starts_with("leandisk-")));
        }
        let nodes = self.ask("query-named-block-nodes", json!({}));
        let bitmaps = nodes
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|node| node["dirty-bitmaps"].as_array().cloned().unwrap_or_default());
        names.extend(
            bitmaps
                // QEMU has some of its own, without names.
                .map(|bitmap| bitmap["name"].as_str().unwrap_or_default().to_owned())
                .filter(|name| name.starts_with("leandisk-")),
        );
        let blocks = self.ask("query-block", json!({}));
        for block in blocks.as_array().unwrap() {
            let node = block["inserted"]["node-name"].as_str().unwrap().to_owned();
            if node.starts_with("leandisk-") {
                names.push(format!("{node} above the disk"));
            }
        }
        names
    }

    pub(crate) fn assert_clean(&mut self) {
        assert_eq!(self.left(), Vec::<String>::new());
        // A server that was left would be refused here.
        let address = json!({ "addr": { "type": "unix", "data": { "path": self.path("probe") } } });
        self.ask("nbd-server-start", address);
        self.ask("nbd-server-stop", json!({}));
    }

    /// The program with these arguments. What it makes for a while is in a folder of its own.
    pub(crate) fn leandisk(&self, args: &[&str]) -> Command {
        let mut command = leandisk();
        command.args(args).env("TMPDIR", self.path("tmp")).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Begins a copy, and stops it when its export is there. One that came to its end before it was seen is begun again.
    pub(crate) fn stop_at_export(&mut self, args: &[&str]) -> Child {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let mut child = self.leandisk(args).spawn().unwrap();
            while child.try_wait().unwrap().is_none() {
                let exports = self.ask("query-block-exports", json!({}));
                if !exports.as_array().unwrap().is_empty() {
                    signal(&child, "STOP");
                    return child;
                }
            }
            let (status, said) = ended(child);
            assert!(status == Some(0) && Instant::now() < until, "{status:?} {said}");
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// A disk of four parts of four megabytes, every one with a byte of its own, and what it holds as a raw file.
pub(crate) fn make_disk(disk: &Path, raw: &Path, first: u8) {
    run("qemu-img", &["create", "-q", "-f", "qcow2", arg(disk), &DISK_BYTES.to_string()]);
    let writes: Vec<_> = (0..4).map(|at| format!("write -q -P {} {}M 4M", first + at + 1, at * 8)).collect();
    let commands = writes.iter().flat_map(|write| ["-c", write]);
    run("qemu-io", &["-f", "qcow2"].into_iter().chain(commands).chain([arg(disk)]).collect::<Vec<_>>());
    run("qemu-img", &["convert", "-O", "raw", arg(disk), arg(raw)]);
}

pub(crate) fn ended(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn disks_are_listed_and_found_by_every_name() {
    for (attached, name, names) in [
        (Attached::ByNode, "vda", &["vda", "disk0", "/machine/peripheral/vda/virtio-backend"][..]),
        (Attached::ByDrive, "virtio0", &["virtio0", "/machine/peripheral-anon/device[0]/virtio-backend"]),
        (Attached::Unused, "virtio0", &["virtio0"]),
    ] {
        let mut guest = Guest::start(attached);
        let told = document("leandisk.vm/1", &["info", &guest.address()]);
        let [disk] = told["disks"].as_array().unwrap().as_slice() else { panic!("{told}") };
        assert_eq!((&disk["name"], &disk["format"]), (&json!(name), &json!("qcow2")));
        assert_eq!((&disk["virtual_bytes"], &disk["read_only"]), (&json!(DISK_BYTES), &json!(false)));
        assert_eq!(disk["path"].as_str().unwrap(), arg(&guest.path("guest.qcow2")));
        assert_eq!(disk["bitmaps"], json!([]));
        assert!(succeed(&["info", &guest.address()]).contains("32 MiB"));
        let node = disk["node"].as_str().unwrap().to_owned();
        for (number, name) in names.iter().copied().chain([node.as_str()]).enumerate() {
            let target = guest.path(&format!("{number}.raw"));
            let output = guest
                .leandisk(&["copy", &format!("{}?disk={name}", guest.address()), arg(&target)])
                .output()
                .unwrap();
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            assert_same_bytes(&target, &guest.path("before.raw"));
        }
        guest.assert_clean();
    }
}

#[test]
fn a_copy_is_the_disk_at_one_moment_while_the_guest_writes() {
    for attached in [Attached::ByNode, Attached::ByDrive, Attached::Unused] {
        let mut guest = Guest::start(attached);
        let target = guest.path("copy.qcow2");
        let child = guest.stop_at_export(&["copy", &guest.address(), arg(&target), "--force"]);
        // Over data, over what was never written, and across both.
        for (byte, at, len) in
            [(0xaa, "0", "2M"), (0xbb, "5M", "1M"), (0xcc, "11M", "64k"), (0xdd, "31M", "1M")]
        {
            guest.write(byte, at, len);
        }
        signal(&child, "CONT");
        assert_eq!(ended(child).0, Some(0));
        run("qemu-img", &["compare", arg(&target), arg(&guest.path("before.raw"))]);
        guest.assert_clean();
        let now = guest.path("now.raw");
        succeed(&["copy", &guest.address(), arg(&now)]);
        let bytes = fs::read(now).unwrap();
        assert_eq!(
            (bytes[0], bytes[5 << 20], bytes[31 << 20]),
            (0xaa, 0xbb, 0xdd),
            "the guest's writes are there"
        );
    }
}

#[test]
fn a_guests_disk_is_looked_at_as_any_other() {
    let mut guest = Guest::start(Attached::ByNode);
    let address = format!("{}?disk=vda", guest.address());
    let info = document("leandisk.info/1", &["info", &address]);
    assert_eq!((&info["path"], &info["virtual_bytes"]), (&json!(address), &json!(DISK_BYTES)));
    document("leandisk.analyze/1", &["analyze", &address]);
    succeed(&["map", &address, "-o", arg(&guest.path("map.svg"))]);
    let copied = document("leandisk.copy/1", &["copy", &address, arg(&guest.path("c.raw")), "--dry-run"]);
    assert_eq!(copied["source"]["path"], json!(address));
    guest.assert_clean();
}

#[test]
fn files_are_read_from_a_guests_disk() {
    let dir = scratch();
    let (files, raw) = (dir.path().join("files"), dir.path().join("made.raw"));
    fs::create_dir(&files).unwrap();
    fs::write(files.join("a file"), "what is in it").unwrap();
    run("mkfs.ext4", &["-q", "-d", arg(&files), arg(&raw), "16M"]);
    run("qemu-img", &["convert", "-O", "qcow2", arg(&raw), arg(&dir.path().join("guest.qcow2"))]);
    let mut guest = Guest::of(dir, Attached::ByNode);
    let address = format!("{}?disk=vda", guest.address());
    let listed = document("leandisk.ls/1", &["ls", &address, "/"]);
    let entries = listed["entries"].as_array().unwrap();
    assert!(entries.iter().any(|entry| entry["path"] == "/a file"), "{listed}");
    assert_eq!(succeed(&["cat", &address, "/a file"]), "what is in it");
    succeed(&["extract", &address, "/a file", "--into", arg(&guest.path("into"))]);
    assert_eq!(fs::read(guest.path("into").join("a file")).unwrap(), b"what is in it");
    guest.assert_clean();
}

#[test]
fn a_guests_disk_is_served_as_it_was_at_one_moment() {
    let mut guest = Guest::start(Attached::ByNode);
    let (address, socket) = (format!("{}?disk=vda", guest.address()), guest.path("served"));
    let mut serving =
        guest.leandisk(&["serve", &address, "--read-only", "--socket", arg(&socket)]).spawn().unwrap();
    let mut said = BufReader::new(serving.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = said.find(|line| line.contains("serving ")).unwrap();
    assert!(line.contains(&address) && line.contains("nbd+unix:///vda?"), "{line}");
    guest.write(0x77, "20M", "64k");
    let (served, before) = (guest.path("served.raw"), guest.path("before.raw"));
    let export = format!("nbd+unix:///vda?socket={}", socket.display());
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &export, arg(&served)]);
    assert_same_bytes(&served, &before);
    signal(&serving, "TERM");
    assert!(serving.wait().unwrap().success());
    guest.assert_clean();
    fail(3, &["serve", &address, "--socket", arg(&socket)]);
}

#[test]
fn a_guests_disk_is_backed_up_while_it_runs() {
    let mut guest = Guest::start(Attached::ByNode);
    let (address, password) = (format!("{}?disk=vda", guest.address()), guest.path("password"));
    fs::write(&password, "secret").unwrap();
    let repository = guest.path("repository");
    let place = ["--repo", arg(&repository), "--password-file", arg(&password)];
    let stored = document("leandisk.backup/1", &[&["backup", &address, "--init"], &place[..]].concat());
    assert_eq!((&stored["disks"][0]["name"], &stored["disks"][0]["path"]), (&json!("vda"), &json!(address)));
    guest.assert_clean();
    guest.write(0x77, "20M", "64k");
    let restored = guest.path("restored.raw");
    succeed(&[&["restore", "latest:vda", arg(&restored)], &place[..]].concat());
    assert_same_bytes(&restored, &guest.path("before.raw"));
}

#[test]
fn what_goes_wrong_has_its_status_and_leaves_nothing() {
    let mut guest = Guest::start(Attached::ByNode);
    let address = guest.address();
    let target = guest.path("copy.raw");
    let copy = |disk: &str, status| fail(status, &["copy", disk, arg(&target)]);
    assert!(copy(&format!("{address}?disk=vdb"), 3).contains("'vda'"));
    copy("qmp:/nowhere/socket", 5);
    copy("qmp:", 2);
    fail(3, &["copy", arg(&guest.path("before.raw")), &address]);
    fail(3, &["compact", &address]);
    fail(3, &["defrag", &address]);
    fail(2, &["copy", "a.raw", "b.raw", "--since", "daily"]);
    fail(3, &["copy", &address, arg(&target), "--freeze", "always"]);
    fail(5, &["info", "qmp:/nowhere/socket"]);
    let stranger = guest.path("stranger");
    let listener = UnixListener::bind(&stranger).unwrap();
    let thread =
        std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"SSH-2.0-OpenSSH\r\n").unwrap());
    fail(4, &["info", &format!("qmp:{}", stranger.display())]);
    thread.join().unwrap();
    guest.assert_clean();

    // The one server that a QEMU has is another's.
    let taken = json!({ "addr": { "type": "unix", "data": { "path": guest.path("taken") } } });
    guest.ask("nbd-server-start", taken);
    assert!(copy(&address, 3).contains("NBD server is in use"));
    guest.ask("nbd-server-stop", json!({}));
    guest.assert_clean();

    // QEMU ends in the middle. What has the target's name stays what it was.
    let child = guest.stop_at_export(&["copy", &address, arg(&target), "--force"]);
    fs::write(&target, "precious").unwrap();
    guest.qemu.kill().unwrap();
    guest.qemu.wait().unwrap();
    signal(&child, "CONT");
    let (status, said) = ended(child);
    assert_eq!(status, Some(5), "{said}");
    assert_ne!(fs::metadata(&target).unwrap().len(), DISK_BYTES, "{said}");
    assert_eq!(names_in(&guest.path("tmp")), Vec::<String>::new());
}

#[test]
fn a_disk_with_an_iothread_is_read_only_by_a_qemu_that_survives_it() {
    let mut guest = Guest::start(Attached::InThread);
    let (address, target) = (guest.address(), guest.path("copy.raw"));
    let version = guest.ask("query-version", json!({}))["qemu"]["major"].as_u64().unwrap();
    if version < 9 {
        let said = fail(3, &["copy", &address, arg(&target)]);
        assert!(said.contains("iothread") && said.contains("9.0"), "{said}");
        assert!(!target.exists());
    } else {
        succeed(&["copy", &address, arg(&target)]);
        run("qemu-img", &["compare", arg(&target), arg(&guest.path("before.raw"))]);
    }
    guest.assert_clean();
}

#[test]
fn a_signal_leaves_nothing() {
    let mut guest = Guest::start(Attached::ByNode);
    let target = guest.path("copy.raw");
    for name in ["INT", "TERM"] {
        let child = guest.stop_at_export(&["copy", &guest.address(), arg(&target), "--force"]);
        fs::write(&target, "precious").unwrap();
        signal(&child, name);
        signal(&child, "CONT");
        let (status, said) = ended(child);
        assert_eq!(status, Some(130), "{said}");
        assert_eq!(fs::read(&target).unwrap(), b"precious");
        guest.assert_clean();
    }
}

/// `LEANDISK_KILLS` says how often; `make live-kills` has more.
#[test]
fn what_a_killed_copy_left_is_removed_by_the_next_run_or_by_recover() {
    let kills = std::env::var("LEANDISK_KILLS").map_or(8, |text| text.parse().unwrap());
    for attached in [Attached::ByNode, Attached::Unused] {
        let mut guest = Guest::start(attached);
        let address = guest.address();
        let target = guest.path("copy.raw");
        assert_eq!(document("leandisk.recover/1", &["recover", &address])["outcome"], "none");
        let started = Instant::now();
        assert!(guest.leandisk(&["copy", &address, arg(&target)]).output().unwrap().status.success());
        let whole = started.elapsed();
        fs::remove_file(&target).unwrap();
        let mut removed = 0;
        for number in 0..kills / 2 {
            let mut child = guest.leandisk(&["copy", &address, arg(&target)]).spawn().unwrap();
            sleep(whole * (2 * number + 1) / kills);
            child.kill().unwrap();
            child.wait().unwrap();
            guest.write(u8::try_from(number % 250).unwrap(), "20M", "64k");
            if number % 2 == 0 {
                let output = guest.leandisk(&["recover", &address, "--json"]).output().unwrap();
                let told: Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!(output.status.code(), Some(0), "{told}");
                removed += u32::from(told["outcome"] == "removed");
            } else {
                let other = guest.path("other.raw");
                let output = guest.leandisk(&["copy", &address, arg(&other), "--force"]).output().unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            }
            guest.assert_clean();
            if target.exists() {
                // It was done before it was killed.
                fs::remove_file(&target).unwrap();
            }
        }
        println!("{attached:?}: of {} killed copies {removed} were recovered from", kills / 2);
        // The guest's disk is what it was, but for what the guest wrote.
        let end = guest.path("end.raw");
        assert!(guest.leandisk(&["copy", &address, arg(&end)]).output().unwrap().status.success());
        let (before, after) = (fs::read(guest.path("before.raw")).unwrap(), fs::read(end).unwrap());
        let (written, len) = (20 << 20, 64 << 10);
        assert!(before[..written] == after[..written] && before[written + len..] == after[written + len..]);
    }
}

#[test]
fn a_live_copy_is_left_alone() {
    let mut guest = Guest::start(Attached::ByNode);
    let target = guest.path("copy.raw");
    let child = guest.stop_at_export(&["copy", &guest.address(), arg(&target), "--force"]);
    let before = guest.left();
    assert!(before.iter().any(|name| name.ends_with("above the disk")), "{before:?}");
    // Through another socket of the same QEMU: the one that the copy is connected to serves nobody else.
    let third = format!("qmp:{}", guest.path("third").display());
    let told = guest.leandisk(&["recover", &third]).output().unwrap();
    assert_eq!(told.status.code(), Some(0), "{}", String::from_utf8_lossy(&told.stderr));
    let other = guest.path("other.raw");
    let refused = guest.leandisk(&["copy", &third, arg(&other)]).output().unwrap();
    assert_eq!(refused.status.code(), Some(3), "{}", String::from_utf8_lossy(&refused.stderr));
    assert_eq!(guest.left(), before);
    let listed = document("leandisk.vm/1", &["info", &third]);
    assert_eq!(listed["disks"][0]["node"], "disk0", "not what is above it for a while");
    signal(&child, "CONT");
    assert_eq!(ended(child).0, Some(0));
    assert_same_bytes(&target, &guest.path("before.raw"));
    guest.assert_clean();
}

/// An agent that answers as told, and what it was asked. Like that of QEMU it complains about the byte with which its parser begins anew, and an
/// answer that an earlier client did not wait for comes before.
pub(crate) fn fake_agent(path: &Path, freezes: bool) -> Arc<Mutex<Vec<String>>> {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let listener = UnixListener::bind(path).unwrap();
    let heard = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
                let text = line.strip_prefix(&[0xff]).unwrap_or(&line);
                if text.len() < line.len() {
                    let complaint = json!({ "error": { "class": "GenericError", "desc": "JSON parse error, stray '\u{fffd}'" } });
                    write!(stream, "{}\n{complaint}\n", json!({ "return": 7, "id": 1 })).unwrap();
                }
                let command: Value = serde_json::from_slice(text).unwrap();
                line.clear();
                let name = command["execute"].as_str().unwrap().to_owned();
                heard.lock().unwrap().push(name.clone());
                let answer = match name.as_str() {
                    "guest-sync-delimited" => {
                        stream.write_all(&[0xff]).unwrap();
                        json!({ "return": command["arguments"]["id"] })
                    }
                    "guest-fsfreeze-freeze" if !freezes => {
                        json!({ "error": { "class": "GenericError", "desc": "a file system is busy" }, "id": command["id"] })
                    }
                    _ => json!({ "return": 1, "id": command["id"] }),
                };
                writeln!(stream, "{answer}").unwrap();
            }
        }
    });
    asked
}

#[test]
fn a_guest_that_is_told_to_freeze_is_told_to_thaw() {
    let mut guest = Guest::start(Attached::ByNode);
    let address = guest.address();
    let taken = json!({ "addr": { "type": "unix", "data": { "path": guest.path("taken") } } });
    for (number, (freezes, how, is_taken, status)) in [
        (true, "auto", false, 0),
        (true, "always", false, 0),
        (false, "auto", false, 0),
        (false, "always", false, 3),
        // What comes after the moment fails.
        (true, "always", true, 3),
    ]
    .into_iter()
    .enumerate()
    {
        let agent = guest.path(&format!("agent{number}"));
        let asked = fake_agent(&agent, freezes);
        let target = guest.path(&format!("copy{number}.raw"));
        if is_taken {
            guest.ask("nbd-server-start", taken.clone());
        }
        let output = guest
            .leandisk(&["copy", &address, arg(&target), "--freeze", how, "--agent", arg(&agent)])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert_eq!(said.contains("was not frozen"), !freezes && status == 0, "{said}");
        let asked = asked.lock().unwrap().clone();
        assert_eq!(asked, ["guest-sync-delimited", "guest-fsfreeze-freeze", "guest-fsfreeze-thaw"]);
        if is_taken {
            guest.ask("nbd-server-stop", json!({}));
        }
        guest.assert_clean();
    }
}

/// Two bitmaps of the guest's disk: the one that is named, and what the other says was written since.
#[test]
fn an_incremental_copy_brings_a_full_one_up_to_date() {
    for attached in [Attached::ByNode, Attached::Unused] {
        let mut guest = Guest::start(attached);
        let address = guest.address();
        let node = guest.ask("query-block", json!({}))[0]["inserted"]["node-name"].clone();
        guest.ask("block-dirty-bitmap-add", json!({ "node": node, "name": "daily" }));
        let told = document("leandisk.vm/1", &["info", &address]);
        assert_eq!(told["disks"][0]["bitmaps"], json!(["daily"]));
        let target = guest.path("full.raw");
        succeed(&["copy", &address, arg(&target)]);
        let since = |guest: &Guest| {
            guest.leandisk(&["copy", &address, arg(&target), "--since", "daily", "--json"]).output().unwrap()
        };
        for round in 0..3_u8 {
            guest.write(0x10 + round, "1M", "128k");
            guest.write(0x20 + round, "29M", "64k");
            let zeros = format!("{}M", 8 + u64::from(round));
            guest.write(0, &zeros, "1M");
            let output = since(&guest);
            let told: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(output.status.success(), "{told}");
            assert_eq!(told["schema"], "leandisk.copy/1");
            assert_eq!(told["read_bytes"], (1 << 20) + (192 << 10), "{told}");
            let full = guest.path("now.raw");
            succeed(&["copy", &address, arg(&full), "--force"]);
            assert_same_bytes(&target, &full);
            guest.assert_clean();
        }
        // Killed in the middle: the target has another name until the next run is done.
        guest.write(0x77, "3M", "1M");
        let mut child = guest.stop_at_export(&["copy", &address, arg(&target), "--since", "daily"]);
        guest.write(0x78, "25M", "64k");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(since(&guest).status.success());
        let full = guest.path("now.raw");
        succeed(&["copy", &address, arg(&full), "--force"]);
        assert_same_bytes(&target, &full);
        guest.assert_clean();

        let unchanged = fs::read(&target).unwrap();
        let copy = |target: &Path, bitmap: &str| {
            guest
                .leandisk(&["copy", &address, arg(target), "--since", bitmap])
                .output()
                .unwrap()
                .status
                .code()
        };
        assert_eq!(copy(&target, "weekly"), Some(3), "no such bitmap");
        let short = guest.path("short.raw");
        fs::write(&short, [0; 4096]).unwrap();
        assert_eq!(copy(&short, "daily"), Some(3), "another size");
        assert_eq!(copy(&guest.path("none.raw"), "daily"), Some(3), "no full copy");
        let image = guest.path("image.qcow2");
        succeed(&["copy", &address, arg(&image)]);
        assert_eq!(copy(&image, "daily"), Some(3), "no raw target");
        assert!(fs::read(&target).unwrap() == unchanged);
        guest.assert_clean();
    }
}

/// The program must not remove what another one uses, nor wait for ever for a QEMU that serves another.
#[test]
fn a_socket_that_serves_another_is_said_to() {
    let guest = Guest::start(Attached::ByNode);
    let _held = vm::Socket::connect(&guest.path("qmp")).unwrap();
    let refused = output(&["info", &guest.address()]);
    assert_eq!(refused.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("one program at a time"));
}
