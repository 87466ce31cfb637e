//! `serve` and `stats` with real clients: what they wrote is in the image, whatever ends the server; nothing else is.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::{
    Untouched, arg, assert_only, document, fail, leandisk, number, output, succeed, unwritten_bytes,
};
use crate::serving::Serving;
use serde_json::Value;
use testkit::{run, scratch};

/// How QEMU makes a disk and what it calls its format.
struct Kind {
    file: &'static str,
    qemu_format: &'static str,
    options: &'static str,
    is_checkable: bool,
}

const RAW: Kind = Kind { file: "disk.raw", qemu_format: "raw", options: "size=24M", is_checkable: false };
const QCOW2: Kind =
    Kind { file: "disk.qcow2", qemu_format: "qcow2", options: "size=24M", is_checkable: true };
const VHDX: Kind =
    Kind { file: "disk.vhdx", qemu_format: "vhdx", options: "size=24M,block_size=1M", is_checkable: true };
const KINDS: [Kind; 3] = [RAW, QCOW2, VHDX];

impl Kind {
    fn create(&self, dir: &Path) -> PathBuf {
        let path = dir.join(self.file);
        run("qemu-img", &["create", "-q", "-f", self.qemu_format, "-o", self.options, arg(&path)]);
        path
    }

    /// Panics if the image has errors; leaks are none.
    fn check(&self, disk: &Path) {
        if !self.is_checkable {
            return;
        }
        let args = ["check", "-q", "-f", self.qemu_format, arg(disk)];
        let output = Command::new("qemu-img").args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 3)), "{}: {} {said}", self.file, output.status);
    }

    /// The same, and nothing is leaked either.
    fn check_strictly(&self, disk: &Path) {
        if self.is_checkable {
            run("qemu-img", &["check", "-q", "-f", self.qemu_format, arg(disk)]);
        }
    }

    fn assert_contents(&self, disk: &Path, raw: &Path) {
        run("qemu-img", &["compare", "-q", "-f", self.qemu_format, "-F", "raw", arg(disk), arg(raw)]);
    }
}

/// A server at work. Killed if a test ends without it.
struct Server {
    child: Child,
    address: String,
    socket: PathBuf,
    rest: Option<JoinHandle<String>>,
}

impl Server {
    fn start(disk: &Path, more: &[&str]) -> Self {
        let socket = disk.with_file_name("nbd.sock");
        let args = [&["serve", arg(disk), "--socket", arg(&socket)], more].concat();
        let mut child = leandisk().args(args).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let address = line.split_whitespace().find(|word| word.starts_with("nbd"));
        let address = address.unwrap_or_else(|| panic!("no address in: {line}")).to_owned();
        let rest = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        Self { child, address, socket, rest: Some(rest) }
    }

    fn io(&self, commands: &[&str]) -> String {
        io("raw", &self.address, commands)
    }

    fn stats(&self) -> Value {
        document("leandisk.stats/1", &["stats", arg(&self.socket)])
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asks it to end, which it shall do well and silently.
    fn stop(mut self, signal: &str) {
        run("kill", &[signal, &self.child.id().to_string()]);
        let status = self.wait();
        let said = self.rest.take().unwrap().join().unwrap();
        assert!(status.success() && said.is_empty(), "{status}: {said}");
        assert!(!self.socket.exists(), "its socket is gone");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn io(format: &str, target: &str, commands: &[&str]) -> String {
    let mut args = vec!["-f", format, "-t", "none", "-d", "unmap"];
    args.extend(commands.iter().flat_map(|command| ["-c", *command]));
    args.push(target);
    let said = run("qemu-io", &args);
    assert!(!said.contains("failed") && !said.contains("rror"), "{commands:?}: {said}");
    said
}

const CHANGES: [&str; 7] = [
    "write -P 17 0 3M",
    "write -P 34 5000k 100k",
    "write -P 51 7683072 4096",
    "write -z 1M 64k",
    "discard 2M 1M",
    "write -P 68 20M 4M",
    "flush",
];

/// A raw file with the changes made to it.
fn model(dir: &Path) -> PathBuf {
    let path = dir.join("model");
    run("truncate", &["-s", "24M", arg(&path)]);
    io("raw", arg(&path), &CHANGES);
    path
}

#[test]
fn clients_find_what_they_wrote_and_so_does_qemu_afterwards() {
    for kind in KINDS {
        let dir = scratch();
        let elsewhere = scratch();
        let model = model(elsewhere.path());
        let disk = kind.create(dir.path());
        let server = Server::start(&disk, &[]);
        server.io(&CHANGES);
        server.io(&["read -P 17 0 1M", "read -P 0 1M 64k", "read -P 68 20M 4M"]);
        let copied = elsewhere.path().join("copied");
        run("nbdcopy", &[&server.address, arg(&copied)]);
        run("cmp", &[arg(&copied), arg(&model)]);
        let compare = ["compare", "-q", "-f", "raw", "-F", "raw", arg(&model), &server.address];
        run("qemu-img", &compare);
        server.stop("-TERM");
        assert_only(dir.path(), &[kind.file]);
        kind.check_strictly(&disk);
        kind.assert_contents(&disk, &model);

        // Again, over what is there; this time the whole disk at once.
        run("dd", &["if=/dev/urandom", &format!("of={}", arg(&copied)), "bs=1M", "count=24", "status=none"]);
        let server = Server::start(&disk, &["--name", "a disk"]);
        assert!(server.address.contains("nbd+unix:///a%20disk?socket="), "{}", server.address);
        run("nbdcopy", &["--flush", arg(&copied), &server.address]);
        server.stop("-INT");
        kind.check_strictly(&disk);
        kind.assert_contents(&disk, &copied);
    }
}

#[test]
fn what_was_flushed_survives_a_kill() {
    for kind in KINDS {
        let dir = scratch();
        let elsewhere = scratch();
        let elsewhere = elsewhere.path();
        let model = model(elsewhere);
        let disk = kind.create(dir.path());
        let server = Server::start(&disk, &[]);
        server.io(&CHANGES);
        server.kill();
        // QEMU replays a VHDX log only when it may write: into a copy, so that here it is left for us.
        let copy = elsewhere.join(kind.file);
        fs::copy(&disk, &copy).unwrap();
        if kind.file == VHDX.file {
            run("qemu-img", &["check", "-q", "-r", "all", "-f", "vhdx", arg(&copy)]);
        }
        kind.check(&copy);
        kind.assert_contents(&copy, &model);

        // It is served again, at the socket that was left behind.
        let server = Server::start(&disk, &[]);
        server.io(&["read -P 68 20M 4M", "write -P 85 9M 1M", "flush"]);
        server.stop("-TERM");
        kind.check(&disk);
        io("raw", arg(&model), &["write -P 85 9M 1M"]);
        kind.assert_contents(&disk, &model);
    }
}

#[test]
fn an_overlay_takes_the_writes_and_its_base_none() {
    let dir = scratch();
    let base = dir.path().join("base.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", arg(&base), "24M"]);
    io("qcow2", arg(&base), &["write -P 119 0 24M"]);
    let overlay = dir.path().join("overlay.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", arg(&overlay)]);
    let before = run("sha256sum", &[arg(&base)]);
    // A disk that others stand on is not written.
    let message = fail(3, &["serve", arg(&base), "--socket", arg(&dir.path().join("nbd.sock"))]);
    assert!(message.contains("is the parent of"), "{message}");

    let server = Server::start(&overlay, &[]);
    server.io(&[
        "write -P 17 5M 4096",
        "flush",
        "read -P 119 0 5M",
        "read -P 17 5M 4096",
        "read -P 119 6M 1M",
    ]);
    // QEMU may read the base meanwhile, and nobody may write it.
    run("qemu-img", &["info", arg(&base)]);
    let write =
        Command::new("qemu-io").args(["-f", "qcow2", "-c", "write 0 512", arg(&base)]).output().unwrap();
    assert!(!write.status.success() && String::from_utf8_lossy(&write.stderr).contains("lock"));
    server.stop("-TERM");
    run("qemu-img", &["check", "-q", arg(&overlay)]);
    io("qcow2", arg(&overlay), &["read -P 119 0 5M", "read -P 17 5M 4096", "read -P 119 6M 18M"]);
    assert_eq!(run("sha256sum", &[arg(&base)]), before);
}

#[test]
fn a_disk_in_use_or_in_doubt_is_refused_and_left_alone() {
    let dir = scratch();
    let disk = QCOW2.create(dir.path());
    let server = Server::start(&disk, &[]);
    let other = dir.path().join("other.sock");
    for more in [&[][..], &["--read-only"]] {
        let message = fail(3, &[&["serve", arg(&disk), "--socket", arg(&other)], more].concat());
        assert!(message.contains("in use"), "{message}");
    }
    let qemu =
        Command::new("qemu-io").args(["-f", "qcow2", "-c", "read 0 512", arg(&disk)]).output().unwrap();
    assert!(!qemu.status.success(), "QEMU honours the locks");
    server.stop("-TERM");

    let before = Untouched::all_in(dir.path());
    // Everyone on the network would read and write.
    let message = fail(3, &["serve", arg(&disk), "--listen", "0.0.0.0:0"]);
    assert!(message.contains("--insecure"), "{message}");
    let trace = dir.path().join("trace");
    let more = ["--socket", arg(&other), "--trace", arg(&trace)];
    fail(3, &[&["serve", arg(&disk), "--listen", "0.0.0.0:0"], &more[..]].concat());
    before.check(dir.path());
    // A header alone is not believed.
    let misnamed = dir.path().join("misnamed.img");
    fs::copy(&disk, &misnamed).unwrap();
    let message = fail(3, &["serve", arg(&misnamed), "--socket", arg(&other)]);
    assert!(message.contains("guest could have written"), "{message}");
    fs::remove_file(misnamed).unwrap();
    // A change in place may be pending: whatever bears the journal's name.
    let journal = os::journal_path(&disk);
    fs::write(&journal, "anything").unwrap();
    let message = fail(3, &["serve", arg(&disk), "--socket", arg(&other)]);
    assert!(message.contains("is no journal of Leandisk"), "{message}");
    fs::remove_file(journal).unwrap();
    // A kind that is not written.
    let options = ["-o", "extended_l2=on,cluster_size=128k"];
    let extended = dir.path().join("extended.qcow2");
    run("qemu-img", &[&["create", "-q", "-f", "qcow2"], &options[..], &[arg(&extended), "8M"]].concat());
    fail(3, &["serve", arg(&extended), "--socket", arg(&other)]);
    Server::start(&extended, &["--read-only"]).stop("-TERM");
    fs::remove_file(extended).unwrap();
    before.check(dir.path());
    assert_eq!(output(&["serve", arg(&disk)]).status.code(), Some(2), "where?");
    assert_eq!(output(&["stats", arg(&other)]).status.code(), Some(5), "nobody is there");
}

#[test]
fn a_read_only_disk_is_read_and_not_written() {
    for kind in KINDS {
        let dir = scratch();
        let disk = kind.create(dir.path());
        io(kind.qemu_format, arg(&disk), &CHANGES[..2]);
        let before = Untouched::all_in(dir.path());
        let server = Server::start(&disk, &["--read-only"]);
        // Others may read it as well.
        run("qemu-img", &["info", "-f", kind.qemu_format, arg(&disk)]);
        let reads = ["-c", "read -P 17 0 3M", "-c", "read -P 0 3M 1M", "-c", "read -P 34 5000k 100k"];
        let said = run("qemu-io", &[&["-r", "-f", "raw"], &reads[..], &[&server.address]].concat());
        assert!(!said.contains("failed"), "{said}");
        let write = ["-f", "raw", "-c", "write 0 512", &server.address];
        assert!(!Command::new("qemu-io").args(write).output().unwrap().status.success());
        let can_write = Command::new("nbdinfo").args(["--can", "write", &server.address]).status().unwrap();
        assert_eq!(can_write.code(), Some(2), "nbdinfo says no");
        server.stop("-TERM");
        before.check(dir.path());
    }
}

/// A line for each interval, with what was asked in it, until the server ends.
#[test]
fn statistics_are_watched() {
    let dir = scratch();
    let server = Server::start(&QCOW2.create(dir.path()), &["--name", "measured"]);
    let watch = |more: &[&str]| {
        let args = [&["stats", arg(&server.socket), "--watch", "0.1"], more].concat();
        let mut child = leandisk().args(args).stdout(Stdio::piped()).spawn().unwrap();
        (BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap), child)
    };
    let (mut lines, mut child) = watch(&["--json"]);
    let mut interval = || -> u64 {
        let document: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
        assert_eq!(document["schema"], "leandisk.stats/1");
        number(&document, "/exports/0/snapshot/logical/writes")
    };
    assert_eq!(interval(), 0);
    server.io(&["write 0 4096", "write 4096 4096", "write 1M 64k"]);
    let mut seen = 0;
    while seen < 3 {
        seen += interval();
    }
    assert_eq!((seen, interval()), (3, 0), "each is told once");
    let (mut text, mut other) = watch(&[]);
    let (heading, line) = (text.next().unwrap(), text.next().unwrap());
    assert!(heading.ends_with("export") && line.ends_with("measured"), "{heading}\n{line}");
    server.stop("-TERM");
    assert!(child.wait().unwrap().success() && other.wait().unwrap().success());
    fail(2, &["stats", "any", "--watch", "0"]);
}

#[test]
fn stats_tell_what_was_asked() {
    let dir = scratch();
    let disk = QCOW2.create(dir.path());
    let trace = dir.path().join("trace");
    let server =
        Server::start(&disk, &["--name", "measured", "--trace", arg(&trace), "--metrics", "127.0.0.1:0"]);
    let idle = server.stats();
    assert_eq!(number(&idle, "/exports/0/snapshot/logical/writes"), 0, "{idle:#}");
    server.io(&["write 0 4096", "write 4096 4096", "write 1M 64k", "read 0 4096", "discard 2M 1M", "flush"]);
    let stats = server.stats();
    let export = &stats["exports"][0];
    assert_eq!(export["name"], "measured");
    assert_eq!(number(export, "/len_bytes"), 24 << 20);
    let logical = &export["snapshot"]["logical"];
    assert_eq!(
        (number(logical, "/writes"), number(logical, "/written_bytes")),
        (3, 8192 + 65536),
        "{logical}"
    );
    assert_eq!((number(logical, "/reads"), number(logical, "/read_bytes")), (1, 4096), "{logical}");
    assert_eq!((number(export, "/snapshot/zeroed"), number(export, "/snapshot/failed")), (1, 0));
    assert!(number(export, "/snapshot/flushes") >= 1);
    // Bins end at 512, 1024, 2048, 4095, 4096 ... 65536.
    assert_eq!(number(export, "/snapshot/io_length/writes/counts/4"), 2);
    assert_eq!(number(export, "/snapshot/io_length/writes/counts/12"), 1);

    let text = succeed(&["stats", arg(&server.socket)]);
    assert!(text.contains("measured") && text.contains('█') && text.contains("<= 65536"), "{text}");
    // Two recordings beside each other.
    let elsewhere = scratch();
    let [before, after, page] =
        ["before.json", "after.json", "page.html"].map(|name| elsewhere.path().join(name));
    fs::write(&before, idle.to_string()).unwrap();
    fs::write(&after, stats.to_string()).unwrap();
    assert_eq!(succeed(&["stats", arg(&before), arg(&after), "--html", arg(&page)]), "");
    let html = fs::read_to_string(&page).unwrap();
    assert!(
        html.contains("before.json") && html.contains("<td>writes</td>") && html.contains("<rect"),
        "{html}"
    );
    assert_eq!(document("leandisk.stats/1", &["stats", arg(&after)]), stats, "a recording is read back");
    let live = succeed(&["stats", arg(&server.socket), "--html", arg(&page), "--force"]);
    assert!(live.contains("measured") && fs::read_to_string(&page).unwrap().contains("<rect"));
    fail(3, &["stats", arg(&after), "--html", arg(&after)]);
    fail(4, &["stats", arg(&page)]);
    fail(2, &["stats", arg(&before), arg(&after)]);
    let csv = succeed(&["stats", arg(&server.socket), "--csv"]);
    assert_eq!(csv.lines().filter(|line| line.starts_with("Histogram: ")).count(), 16, "{csv}");
    server.stop("-TERM");
    assert_only(dir.path(), &[QCOW2.file, "trace"]);
    assert!(fs::read(&trace).unwrap().starts_with(b"LDTRACE\0"));
    // What was recorded says what the server said.
    let recorded = document("leandisk.stats/1", &["stats", arg(&trace)]);
    let export = &recorded["exports"][0];
    assert_eq!((export["name"].as_str(), number(export, "/len_bytes")), (Some("trace"), 24 << 20));
    for part in ["reads", "read_bytes", "writes", "written_bytes"] {
        assert_eq!(export["snapshot"]["logical"][part], logical[part], "{part}");
    }
    for part in ["io_length", "seek_distance"] {
        assert_eq!(export["snapshot"][part], stats["exports"][0]["snapshot"][part], "{part}");
    }
    assert!(succeed(&["stats", arg(&trace)]).contains("<= 65536"));
    let analyzed = document("leandisk.analyze/1", &["analyze", arg(&disk), "--trace", arg(&trace)]);
    assert_eq!(number(&analyzed, "/trace/read_bytes"), 3 * 4096 + 65536, "requests of both directions");
}

/// A recording that nobody ended is read up to its last second.
#[test]
fn what_was_recorded_until_a_kill_is_read() {
    let dir = scratch();
    let disk = QCOW2.create(dir.path());
    let trace = dir.path().join("trace");
    fs::write(&trace, "somebody's").unwrap();
    let refused =
        output(&["serve", arg(&disk), "--socket", arg(&dir.path().join("s")), "--trace", arg(&trace)]);
    assert!(!refused.status.success());
    assert_eq!(fs::read(&trace).unwrap(), b"somebody's");
    fs::remove_file(&trace).unwrap();
    let server = Server::start(&disk, &["--trace", arg(&trace)]);
    server.io(&["write 0 4096", "write 1M 4096", "read 0 4096"]);
    let deadline = Instant::now() + Duration::from_secs(30);
    let header_bytes = 64;
    while trace.metadata().unwrap().len() <= header_bytes {
        assert!(Instant::now() < deadline, "nothing is written");
        std::thread::sleep(Duration::from_millis(20));
    }
    server.kill();
    let recorded = document("leandisk.stats/1", &["stats", arg(&trace)]);
    assert_eq!(number(&recorded, "/exports/0/snapshot/logical/writes"), 2);
    let whole = fs::read(&trace).unwrap();
    fs::write(&trace, &whole[..whole.len() - 1]).unwrap();
    let cut = document("leandisk.stats/1", &["stats", arg(&trace)]);
    assert_eq!(number(&cut, "/exports/0/snapshot/logical/writes"), 0, "the only block is not whole");
    fs::write(&trace, [&whole[..70], &[0xff; 100]].concat()).unwrap();
    fail(4, &["stats", arg(&trace)]);
}

#[test]
fn a_server_on_loopback_is_reached() {
    let dir = scratch();
    let disk = RAW.create(dir.path());
    let server = Server::start(&disk, &["--listen", "127.0.0.1:0"]);
    assert!(server.address.starts_with("nbd://127.0.0.1:"), "{}", server.address);
    server.io(&["write -P 17 0 1M", "flush", "read -P 17 0 1M"]);
    server.stop("-TERM");
    io("raw", arg(&disk), &["read -P 17 0 1M"]);
}

fn allocated_bytes(disk: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    disk.metadata().unwrap().blocks() * 512
}

#[test]
fn a_disk_keeps_the_storage_that_it_was_promised() {
    for kind in KINDS {
        for provision in ["thin", "lazy", "eager"] {
            let dir = scratch();
            let disk = dir.path().join(kind.file);
            succeed(&["create", arg(&disk), "24M", "--provision", provision]);
            let made = allocated_bytes(&disk);
            let server = Server::start(&disk, &[]);
            server.io(&["write -P 17 0 8M", "flush", "discard 0 4M", "write -z -u 4M 4M", "flush"]);
            server.io(&["read -P 0 4M 4M", "read -P 0 8M 16M"]);
            server.stop("-TERM");
            let (allocated, unwritten) = (allocated_bytes(&disk), unwritten_bytes(&disk));
            let what = format!("{} {provision}: {made} then {allocated}, {unwritten} unwritten", kind.file);
            match provision {
                "thin" => assert!(allocated < 8 << 20, "{what}"),
                "lazy" => assert!(allocated >= 24 << 20 && unwritten >= 16 << 20, "{what}"),
                _ => assert!(allocated >= 24 << 20 && unwritten <= 5 << 20, "{what}"),
            }
            kind.check_strictly(&disk);
            io(kind.qemu_format, arg(&disk), &["read -P 0 4M 20M"]);
        }
    }
    // Whoever serves it may say otherwise.
    let dir = scratch();
    let disk = dir.path().join("disk.raw");
    succeed(&["create", arg(&disk), "24M", "--provision", "eager"]);
    let server = Server::start(&disk, &["--provision", "thin"]);
    server.io(&["discard 0 24M", "flush"]);
    server.stop("-TERM");
    assert!(allocated_bytes(&disk) < 1 << 20);
}

/// `serve --simulate`: nothing is answered before the modelled storage would, and what is answered is right.
#[test]
fn a_simulated_disk_answers_no_earlier_than_the_model() {
    let dir = scratch();
    let disk = dir.path().join("disk.raw");
    let bytes: Vec<u8> = (0..4_u32 << 20).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    fs::write(&disk, &bytes).unwrap();
    let serving = Serving::start_with(&disk, &["--read-only", "--simulate", "hdd"]);
    // Each request is elsewhere, and waits for half a revolution of 8.33 ms at least, one after the other.
    let started = Instant::now();
    let raw = dir.path().join("read.raw");
    run(
        "qemu-img",
        &["bench", "-c", "40", "-d", "4", "-s", "4096", "-S", "1048576", "-f", "raw", &serving.address],
    );
    assert!(started.elapsed().as_secs_f64() > 40.0 * 0.004, "{:?}", started.elapsed());
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &serving.address, arg(&raw)]);
    assert!(fs::read(&raw).unwrap() == bytes);
    serving.stop();
}
