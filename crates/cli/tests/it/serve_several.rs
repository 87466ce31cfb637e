//! Several disks behind one server, with real clients: each is an export of its own, all of them are opened or none, and each is closed
//! whatever becomes of the others.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use crate::common::{
    Untouched, arg, assert_only, document, fail, leandisk, number, signal, succeed, wait_until,
};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{HostMount, run, scratch};

/// File names and QEMU's names of the formats.
const DISKS: [(&str, &str); 3] = [("one.raw", "raw"), ("two.qcow2", "qcow2"), ("three.vhdx", "vhdx")];

/// Disks of different lengths, so that they are told apart: 16, 24 and 32 MiB.
fn disks_in(dir: &Path) -> Vec<PathBuf> {
    let make = |(index, (file, format)): (usize, &(&str, &str))| {
        let path = dir.join(file);
        run("qemu-img", &["create", "-q", "-f", format, arg(&path), &format!("{}M", len_mib(index))]);
        path
    };
    DISKS.iter().enumerate().map(make).collect()
}

fn len_mib(index: usize) -> usize {
    16 + 8 * index
}

/// A server of several disks, with its socket and its messages elsewhere. Killed if a test ends without it.
struct Serving {
    child: Child,
    dir: TempDir,
}

impl Serving {
    fn start(disks: &[PathBuf], more: &[&str]) -> Self {
        let dir = scratch();
        let mut command = leandisk();
        command.arg("serve").args(disks).arg("--socket").arg(dir.path().join("s")).args(more);
        command.stdin(Stdio::null()).stderr(File::create(dir.path().join("said")).unwrap());
        let (mut child, count) = (command.spawn().unwrap(), disks.len());
        let said = dir.path().join("said");
        let serves = || fs::read_to_string(&said).unwrap().matches("leandisk: serving").count() == count;
        let is_serving = wait_until(&mut child, serves);
        assert!(is_serving, "{}", fs::read_to_string(&said).unwrap());
        Self { child, dir }
    }

    fn said(&self) -> String {
        fs::read_to_string(self.dir.path().join("said")).unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn address(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", arg(&self.socket()))
    }

    fn ended(&mut self, how: &str) -> ExitStatus {
        signal(&self.child, how);
        self.child.wait().unwrap()
    }

    /// Ends it, which shall succeed in silence.
    fn stop(mut self) {
        let before = self.said();
        let status = self.ended("TERM");
        assert!(status.success(), "{status}: {}", self.said());
        assert_eq!(self.said(), before);
        assert_only(self.dir.path(), &["said"]);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn qemu_io(format: &str, target: &str, commands: &[&str]) -> Command {
    let mut command = Command::new("qemu-io");
    command.args(["-f", format, "-t", "none", "-d", "unmap"]);
    command.args(commands.iter().flat_map(|command| ["-c", *command])).arg(target);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Runs the commands, of which none may fail.
fn io(format: &str, target: &str, commands: &[&str]) {
    let output = qemu_io(format, target, commands).output().unwrap();
    let said = said(&output);
    let is_well = output.status.success() && !said.contains("failed") && !said.contains("rror");
    assert!(is_well, "{target} {commands:?}: {said}");
}

/// Each disk full of a pattern of its own, but for its last MiB.
fn pattern(index: usize, verb: &str) -> String {
    format!("{verb} -P {} 0 {}M", 17 + index, len_mib(index) - 1)
}

/// Writes to all disks at the same time.
fn write_to_all(server: &Serving) {
    let writers = DISKS.iter().enumerate().map(|(index, (name, _))| {
        let (address, write) = (server.address(name), pattern(index, "write"));
        std::thread::spawn(move || io("raw", &address, &[&write, "flush"]))
    });
    writers.collect::<Vec<_>>().into_iter().for_each(|writer| writer.join().unwrap());
}

fn assert_written(disks: &[PathBuf]) {
    for (index, (disk, (_, format))) in disks.iter().zip(DISKS).enumerate() {
        let rest = format!("read -P 0 {}M 1M", len_mib(index) - 1);
        io(format, arg(disk), &[&pattern(index, "read"), &rest]);
    }
}

#[test]
fn each_disk_is_an_export_that_clients_find_by_its_name() {
    let dir = scratch();
    let disks = disks_in(dir.path());
    let server = Serving::start(&disks, &[]);
    let listed = run("nbdinfo", &["--list", "--json", &server.address("")]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let exports = listed["exports"].as_array().unwrap();
    let told: Vec<_> = exports
        .iter()
        .map(|export| (export["export-name"].as_str().unwrap(), number(export, "/export-size")))
        .collect();
    let wanted: Vec<_> =
        DISKS.iter().enumerate().map(|(index, (name, _))| (*name, (len_mib(index) << 20) as u64)).collect();
    assert_eq!(told, wanted);
    for (index, (name, _)) in DISKS.iter().enumerate() {
        let info = run("qemu-img", &["info", "--output=json", "-f", "raw", &server.address(name)]);
        let info: Value = serde_json::from_str(&info).unwrap();
        assert_eq!(number(&info, "/virtual-size"), (len_mib(index) << 20) as u64, "{name}");
        assert!(server.said().contains(&format!("{name} at {}", server.address(name))), "{}", server.said());
    }
    // Which is meant is not guessed.
    for name in ["", "four"] {
        let output = Command::new("nbdinfo").arg(server.address(name)).output().unwrap();
        assert!(!output.status.success(), "'{name}': {}", said(&output));
    }
    write_to_all(&server);
    for (index, (name, _)) in DISKS.iter().enumerate() {
        io("raw", &server.address(name), &[&pattern(index, "read")]);
    }
    server.stop();
    assert_written(&disks);
    run("qemu-img", &["check", "-q", "-f", "qcow2", arg(&disks[1])]);
    run("qemu-img", &["check", "-q", "-f", "vhdx", arg(&disks[2])]);
    assert_only(dir.path(), &DISKS.map(|(name, _)| name));
}

#[test]
fn what_was_flushed_to_each_survives_a_kill() {
    let dir = scratch();
    let disks = disks_in(dir.path());
    let mut server = Serving::start(&disks, &[]);
    write_to_all(&server);
    server.ended("KILL");
    // A log that is pending in one of them stays so if another cannot be served.
    let before = Untouched::all_in(dir.path());
    let missing = dir.path().join("missing.raw");
    fail(5, &["serve", arg(&disks[2]), arg(&missing), "--socket", arg(&dir.path().join("s"))]);
    before.check(dir.path());
    // It serves them again, in another order.
    let mut turned = disks.clone();
    turned.reverse();
    let server = Serving::start(&turned, &[]);
    for (index, (name, _)) in DISKS.iter().enumerate() {
        io("raw", &server.address(name), &[&pattern(index, "read")]);
    }
    server.stop();
    assert_written(&disks);
}

#[test]
fn names_statistics_and_recordings_are_each_disk_s_own() {
    let dir = scratch();
    let elsewhere = scratch();
    let disks = disks_in(dir.path());
    let [first, second] = ["first", "second"].map(|name| elsewhere.path().join(name));
    let names = ["--name", "system", "--name", "data"];
    let traces = ["--trace", arg(&first), "--trace", arg(&second)];
    let more = [&names[..], &traces, &["--metrics", "127.0.0.1:0"]].concat();
    let server = Serving::start(&disks[..2], &more);
    io("raw", &server.address("system"), &["write 0 4096", "flush"]);
    io("raw", &server.address("data"), &["write 0 4096", "write 8192 4096", "read 0 4096", "flush"]);

    let socket = server.socket();
    let message = fail(2, &["stats", arg(&socket)]);
    assert!(
        message.contains("there are 2 exports: 'system', 'data'") && message.contains("--export"),
        "{message}"
    );
    fail(2, &["stats", arg(&socket), "--csv"]);
    let message = fail(2, &["stats", arg(&socket), "--export", "one.raw"]);
    assert!(
        message.contains("no export is called 'one.raw'") && message.contains("'system', 'data'"),
        "{message}"
    );
    for (name, writes) in [("system", 1), ("data", 2)] {
        let stats = document("leandisk.stats/1", &["stats", arg(&socket), "--export", name]);
        assert_eq!(
            (stats["exports"].as_array().unwrap().len(), &stats["exports"][0]["name"]),
            (1, &name.into())
        );
        assert_eq!(number(&stats, "/exports/0/snapshot/logical/writes"), writes, "{name}");
    }
    let csv = succeed(&["stats", arg(&socket), "--csv", "--export", "data"]);
    assert!(csv.contains("display name,data") && !csv.contains("display name,system"), "{csv}");

    let told = server.said();
    let page = told.split_whitespace().find_map(|word| word.strip_prefix("http://")).unwrap();
    let mut stream = TcpStream::connect(page.trim_end_matches("/metrics")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    for line in ["leandisk_writes_total{export=\"system\"} 1\n", "leandisk_writes_total{export=\"data\"} 2\n"]
    {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    server.stop();
    for (trace, writes) in [(&first, 1), (&second, 2)] {
        let recorded = document("leandisk.stats/1", &["stats", arg(trace)]);
        assert_eq!(number(&recorded, "/exports/0/snapshot/logical/writes"), writes, "{}", trace.display());
    }
}

/// What is refused of one disk is refused of all, and no byte of any changes.
#[test]
fn all_disks_are_served_or_none() {
    let dir = scratch();
    let disks = disks_in(dir.path());
    let [one, two, three] = [0, 1, 2].map(|index| arg(&disks[index]));
    let broken = dir.path().join("broken.qcow2");
    let mut header = fs::read(two).unwrap();
    header[4..8].fill(0xff);
    fs::write(&broken, header).unwrap();
    let before = Untouched::all_in(dir.path());
    let outside = scratch();
    let socket = outside.path().join("s");
    let refused = |status: i32, args: &[&str]| {
        let message = fail(status, &[&["serve", "--socket", arg(&socket)], args].concat());
        before.check(dir.path());
        message
    };
    let message = refused(4, &[one, two, arg(&broken)]);
    assert!(message.contains("broken.qcow2"), "{message}");
    let message = refused(5, &[one, two, arg(&dir.path().join("missing.raw"))]);
    assert!(message.contains("missing.raw"), "{message}");
    // One image under two names.
    let again = dir.path().join("..").join(dir.path().file_name().unwrap()).join("two.qcow2");
    let message = refused(2, &[two, one, arg(&again), "--name", "a", "--name", "b", "--name", "c"]);
    assert!(message.contains("are the same disk") && message.contains(arg(&again)), "{message}");
    // Names are looked at before the disks are.
    let message = refused(2, &["nowhere/one.raw", "elsewhere/one.raw"]);
    assert!(message.contains("'nowhere/one.raw' and 'elsewhere/one.raw'"), "{message}");
    assert!(message.contains("--name"), "{message}");
    let message = refused(2, &[one, two, "--name", "a", "--name", "a"]);
    assert!(message.contains("one.raw") && message.contains("two.qcow2"), "{message}");
    let message = refused(2, &[one, two, three, "--name", "a", "--name", "b"]);
    assert!(message.contains("--name is given 2 times for 3 disks"), "{message}");
    refused(2, &[one, "--name", "a", "--name", "b"]);
    refused(2, &[one, two, "--trace", arg(&outside.path().join("trace"))]);
    // A recording that cannot begin takes those back that could.
    let [trace, taken] = ["trace", "taken"].map(|name| outside.path().join(name));
    fs::write(&taken, "somebody's").unwrap();
    let traces = ["--trace", arg(&trace), "--trace", arg(&taken)];
    refused(5, &[&[one, three][..], &traces].concat());
    assert_only(outside.path(), &["taken"]);
    assert_eq!(fs::read(&taken).unwrap(), b"somebody's");
    // Of two names of a file as well.
    let link = outside.path().join("link.qcow2");
    fs::hard_link(two, &link).unwrap();
    let before = Untouched::all_in(dir.path());
    let message = fail(3, &["serve", "--socket", arg(&socket), two, one, arg(&link)]);
    assert!(message.contains("link.qcow2") || message.contains("two.qcow2"), "{message}");
    before.check(dir.path());
    fs::remove_file(&link).unwrap();
    // Nothing holds them any more.
    fs::remove_file(broken).unwrap();
    Serving::start(&disks, &[]).stop();
}

#[test]
fn a_full_host_of_one_disk_leaves_the_other_alone() {
    const MIB: u64 = 1 << 20;
    let mount = HostMount::new("ext4", 400 * MIB);
    let dir = scratch();
    let (full, other) = (mount.path().join("full.qcow2"), dir.path().join("other.qcow2"));
    for disk in [&full, &other] {
        run("qemu-img", &["create", "-q", "-f", "qcow2", arg(disk), "64M"]);
    }
    io("qcow2", arg(&full), &["write -P 1 0 1M", "flush"]);
    let filled = mount.path().join("filled");
    let taken_bytes = mount.available_bytes() - 10 * MIB;
    run("fallocate", &["-l", &taken_bytes.to_string(), arg(&filled)]);
    let mut server = Serving::start(&[full.clone(), other.clone()], &[]);
    let (narrow, wide) = (server.address("full.qcow2"), server.address("other.qcow2"));
    for round in 0..3 {
        let output = qemu_io("raw", &narrow, &["write -P 3 16M 40M"]).output().unwrap();
        assert!(said(&output).contains("No space left"), "{}", said(&output));
        let at = round * 16;
        io("raw", &wide, &[&format!("write -P 9 {at}M 16M"), "flush", &format!("read -P 9 {at}M 16M")]);
    }
    let status = server.ended("TERM");
    let told = server.said();
    assert!(
        status.success() || (status.code() == Some(5) && told.contains("No space left")),
        "{status}: {told}"
    );
    io("qcow2", arg(&other), &["read -P 9 0 48M", "read -P 0 48M 16M"]);
    io("qcow2", arg(&full), &["read -P 1 0 1M"]);
    for disk in [&full, &other] {
        run("qemu-img", &["check", "-q", "-f", "qcow2", arg(disk)]);
    }
}
