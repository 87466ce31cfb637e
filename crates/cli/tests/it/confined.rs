//! Commands that only read a disk, and copies, do so in a process that can open nothing, and a server lets clients into such a one: by
//! default, with what they print and do unchanged.
//!
//! What such a process can still do is tried from inside in `crates/os/tests/confined.rs`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{arg, broker_of, fail, leandisk, output, signal, succeed, wait_for_end};
use testkit::{Guest, Inside, run, scratch};

/// A line of what the kernel says of a process.
fn status(process: &Child, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
}

/// The two ends of a socket that takes nothing more: who writes to the first waits until the second is read.
fn full_socket() -> (UnixStream, UnixStream) {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    while ours.write(&[0; 4096]).is_ok() {}
    while ours.write(&[0]).is_ok() {}
    ours.set_nonblocking(false).unwrap();
    (ours, theirs)
}

/// Waits until the program sleeps in what it prints.
fn wait_for_print(child: &Child) {
    let until = Instant::now() + Duration::from_secs(60);
    let path = format!("/proc/{}/syscall", child.id());
    let number = |text: &str| text.split(' ').next().and_then(|number| number.parse().ok());
    while number(&std::fs::read_to_string(&path).unwrap()) != Some(WRITE) {
        assert!(Instant::now() < until, "the program prints nothing");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The number of write(2).
#[cfg(target_arch = "x86_64")]
const WRITE: i64 = 1;
#[cfg(target_arch = "aarch64")]
const WRITE: i64 = 64;

/// Starts the program with its output or its messages held up, and looks at it once it has read the disk.
fn look_inside(args: &[&str], messages: bool, look: impl Fn(&Child)) -> String {
    let (stopped, mut reader) = full_socket();
    let stopped = Stdio::from(std::os::fd::OwnedFd::from(stopped));
    let mut command = leandisk();
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = match messages {
        true => command.stderr(stopped).spawn().unwrap(),
        false => command.stdout(stopped).spawn().unwrap(),
    };
    // It has the other end of the socket, too, for as long as it is there.
    drop(command);
    wait_for_print(&child);
    look(&child);
    let mut printed = Vec::new();
    reader.read_to_end(&mut printed).unwrap();
    assert!(child.wait().unwrap().success(), "{args:?}");
    String::from_utf8(printed).unwrap().trim_start_matches('\0').to_owned()
}

#[test]
fn reading_commands_are_confined_by_default() {
    let guest = Guest::get(Inside::Ext4);
    let dir = scratch();
    let map = dir.path().join("map.svg");
    let disk = arg(&guest.disk);
    let target = dir.path().join("target.qcow2");
    let commands = [
        (vec!["info", disk, "--json"], false),
        (vec!["analyze", disk, "--json"], false),
        (vec!["map", disk, "-o", arg(&map), "--force"], true),
        // It says that it begins once the partial target is there, and before the first byte is copied.
        (vec!["copy", disk, arg(&target), "--force", "--progress", "json"], true),
    ];
    for (args, messages) in commands {
        look_inside(&args, messages, |child| {
            assert_eq!(status(child, "Seccomp:"), "2", "{args:?}");
            assert_eq!(status(child, "NoNewPrivs:"), "1", "{args:?}");
        });
        look_inside(&[&args[..], &["--confine", "always"]].concat(), messages, |child| {
            assert_eq!(status(child, "Seccomp:"), "2", "{args:?}");
        });
        look_inside(&[&args[..], &["--confine", "never"]].concat(), messages, |child| {
            assert_eq!(status(child, "Seccomp:"), "0", "{args:?}");
        });
    }
}

/// What is printed of a disk on a parent, confined and not.
#[test]
fn what_is_printed_does_not_depend_on_it() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    std::fs::create_dir(dir.path().join("parents")).unwrap();
    let parent = dir.path().join("parents/parent.raw");
    std::fs::copy(&guest.disk, &parent).unwrap();
    let child = dir.path().join("child.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "parents/parent.raw", "-F", "raw", arg(&child)]);
    // What the host has allocated changes until it is stored.
    run("sync", &[arg(&parent), arg(&child)]);
    let (child, nothing) = (arg(&child), dir.path().join("nothing"));
    for args in [
        vec!["info", child],
        vec!["info", child, "--json"],
        vec!["analyze", child, "--json"],
        vec!["info", arg(&nothing), "--json"],
        vec!["info", arg(dir.path())],
        vec!["info", child, "--allow-path", arg(&nothing)],
        vec!["info", "/dev/null"],
        vec!["analyze", child, "--trace", arg(&nothing)],
    ] {
        let ended = |when| output(&[&args[..], &["--confine", when]].concat());
        let (inside, outside) = (ended("always"), ended("never"));
        let told = |output: &std::process::Output| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (output.status.code(), text(&output.stdout), text(&output.stderr))
        };
        assert_eq!(told(&inside), told(&outside), "{args:?}");
    }
}

/// A reference beyond the disk's folder is refused as ever, and granted as ever.
#[test]
fn references_are_granted_inside_as_outside() {
    let dir = scratch();
    let folder = |name: &str| dir.path().join(name);
    std::fs::create_dir(folder("in")).unwrap();
    std::fs::create_dir(folder("out")).unwrap();
    File::create(folder("out/parent.raw")).unwrap().set_len(1 << 20).unwrap();
    let disk = folder("in/disk.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "../out/parent.raw", "-F", "raw", arg(&disk)]);
    let refused = fail(3, &["info", arg(&disk), "--confine", "always"]);
    assert!(refused.contains("lies outside") && refused.contains("--allow-path"), "{refused}");
    let granted = folder("out");
    let allowed = output(&["info", arg(&disk), "--allow-path", arg(&granted), "--confine", "always"]);
    assert!(allowed.status.success(), "{}", String::from_utf8_lossy(&allowed.stderr));
}

/// What a copy printed and left, but for how long it took.
#[derive(PartialEq, Eq, Debug)]
struct Ended {
    status: Option<i32>,
    stdout: String,
    stderr: String,
    /// Names, permissions and contents.
    files: Vec<(String, u32, Vec<u8>)>,
}

/// Copies in a folder that `prepare` fills.
fn copied(dir: &Path, when: &str, args: &[&str], prepare: impl Fn(&Path)) -> Ended {
    let _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir(dir).unwrap();
    prepare(dir);
    let output = leandisk().current_dir(dir).args(args).args(["--confine", when]).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let is_timeless = |line: &&str| !line.contains("time  ") && !line.contains("\"elapsed_seconds\"");
    let stdout = text(output.stdout).lines().filter(is_timeless).collect();
    let file = |name: String| {
        let path = dir.join(&name);
        let mode = path.metadata().unwrap().permissions().mode();
        // A journal is another one each time.
        let has_contents = path.is_file() && !name.ends_with("-journal");
        (name, mode, if has_contents { std::fs::read(&path).unwrap() } else { Vec::new() })
    };
    let files = common::names_in(dir).into_iter().map(file).collect();
    Ended { status: output.status.code(), stdout, stderr: text(output.stderr), files }
}

/// A status, what `copy` is told after its source, and what is in the folder before.
type CopyCase<'a> = (i32, &'a [&'a str], &'a dyn Fn(&Path));

/// Copies that succeed and copies that are refused: they print and leave the same.
#[test]
fn a_copy_does_not_depend_on_it() {
    let guest = Guest::get(Inside::Ext4);
    let root = scratch();
    let source = root.path().join("source.raw");
    std::fs::copy(&guest.disk, &source).unwrap();
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o640)).unwrap();
    let source = arg(&source);
    let long_name = format!("{}.raw", "n".repeat(240));
    let image = |dir: &Path, name: &str| {
        run("qemu-img", &["create", "-q", "-f", "qcow2", arg(&dir.join(name)), "64M"]);
        std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(0o604)).unwrap();
    };
    let with_target = |dir: &Path| image(dir, "old.qcow2");
    let with_link = |dir: &Path| {
        image(dir, "old.qcow2");
        std::os::unix::fs::symlink("old.qcow2", dir.join("link.qcow2")).unwrap();
    };
    let with_child = |dir: &Path| {
        image(dir, "old.qcow2");
        let child = dir.join("child.qcow2");
        run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "old.qcow2", "-F", "qcow2", arg(&child)]);
    };
    let with_journal = |dir: &Path| {
        image(dir, "old.qcow2");
        common::leave_journal(&dir.join("old.qcow2"));
    };
    let with_rest = |dir: &Path| std::fs::write(dir.join(".new.raw.leandisk-partial"), "rest").unwrap();
    let cases: &[CopyCase<'_>] = &[
        (0, &["new.qcow2", "--verify", "--json"], &|_| {}),
        (0, &["new.qcow2", "--compress", "--page-cache"], &|_| {}),
        (0, &["new.raw", "--provision", "eager", "--resume"], &with_rest),
        (0, &["new.raw", "--dry-run"], &with_rest),
        (0, &["old.qcow2", "--force"], &with_target),
        (0, &["link.qcow2", "--force", "--verify"], &with_link),
        (3, &["old.qcow2", "--json"], &with_target),
        (3, &["old.qcow2", "--force"], &with_child),
        (3, &["old.qcow2", "--force"], &with_journal),
        (3, &[".", "-O", "raw"], &|_| {}),
        (3, &[source, "--force"], &|_| {}),
        (3, &[&long_name], &|_| {}),
        (5, &["nowhere/new.raw"], &|_| {}),
        (2, &["new.iso"], &|_| {}),
        (3, &["/dev/null", "-O", "raw", "--force"], &|_| {}),
    ];
    for (status, args, prepare) in cases {
        let args = [&["copy", source], *args].concat();
        let ended = |when| copied(&root.path().join("to"), when, &args, prepare);
        // What a file takes of the host changes with when the host writes it out. What confinement changes, it changes each time.
        let mut last = (ended("always"), ended("never"));
        for _ in 0..4 {
            if last.0 == last.1 {
                break;
            }
            last = (ended("always"), ended("never"));
        }
        let (inside, outside) = last;
        assert_eq!(inside.status, Some(*status), "{args:?}: {}", inside.stderr);
        let told = [&inside, &outside].map(|ended| format!("{}\n{}\n", ended.stdout, ended.stderr));
        assert!(inside == outside, "{args:?}: {}{}", told[0], told[1]);
    }
}

/// What the program was given open has a name that means something else in another process.
#[test]
fn a_disk_that_was_opened_before_is_read() {
    let guest = Guest::get(Inside::Ext4);
    let dir = scratch();
    let target = dir.path().join("target.qcow2");
    let script = "exec 3< \"$1\"; shift; exec \"$@\"";
    let copy = ["copy", "/dev/fd/3", arg(&target), "--keep-free", "--keep-swap", "--confine", "always"];
    run("sh", &[&["-c", script, "sh", arg(&guest.disk), &common::program()][..], &copy].concat());
    run("qemu-img", &["compare", "-q", "-f", "raw", "-F", "qcow2", arg(&guest.disk), arg(&target)]);
}

/// Killed when its partial target is there: that stays, and the next copy removes it.
#[test]
fn a_killed_copy_leaves_its_partial_target_and_no_process() {
    let guest = Guest::get(Inside::Ext4);
    let dir = scratch();
    let target = dir.path().join("target.qcow2");
    let args = ["copy", arg(&guest.disk), arg(&target), "--confine", "always"];
    let (stopped, reader) = full_socket();
    let mut command = leandisk();
    command.args(args).args(["--progress", "json"]).stdout(Stdio::null());
    let mut child = command.stderr(std::os::fd::OwnedFd::from(stopped)).spawn().unwrap();
    wait_for_print(&child);
    let broker = broker_of(&child).unwrap();
    signal(&child, "KILL");
    child.wait().unwrap();
    wait_for_end(&broker);
    drop(reader);
    common::assert_only(dir.path(), &[".target.qcow2.leandisk-partial"]);
    succeed(&args);
    common::assert_only(dir.path(), &["target.qcow2"]);
    run("qemu-img", &["check", "-q", arg(&target)]);
}

/// The program that was started is the one that signals end, and nothing of it is left.
#[test]
fn a_signal_ends_all_of_it() {
    let guest = Guest::get(Inside::Ext4);
    for name in ["TERM", "KILL"] {
        let (stopped, reader) = full_socket();
        let mut command = leandisk();
        command.args(["info", arg(&guest.disk), "--json"]).stderr(Stdio::null());
        let mut child = command.stdout(std::os::fd::OwnedFd::from(stopped)).spawn().unwrap();
        wait_for_print(&child);
        let broker = broker_of(&child).unwrap();
        signal(&child, name);
        assert!(!child.wait().unwrap().success());
        wait_for_end(&broker);
        drop(reader);
    }
}

/// A server of a new disk, with every way in. Killed if a test ends without it.
struct Serving {
    child: Child,
    dir: tempfile::TempDir,
    /// What it said, word by word.
    words: Vec<String>,
}

impl Serving {
    /// With a certificate that signs itself, and what it is told besides.
    fn start(more: &[&str]) -> Self {
        let dir = scratch();
        let place = |name: &str| dir.path().join(name).display().to_string();
        run("qemu-img", &["create", "-q", "-f", "qcow2", &place("disk.qcow2"), "64M"]);
        make_certificate(dir.path());
        let mut child = leandisk()
            .args(["serve", &place("disk.qcow2"), "--socket", &place("socket"), "--trace", &place("trace")])
            .args([
                "--listen",
                "127.0.0.1:0",
                "--tls-cert",
                &place("ca-cert.pem"),
                "--tls-key",
                &place("key"),
            ])
            .args(["--metrics", "127.0.0.1:0"])
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        assert!(words.contains(&"serving".to_owned()), "{line}");
        Self { child, dir, words }
    }

    fn place(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// The address of this scheme.
    fn address(&self, scheme: &str) -> &str {
        self.words.iter().find(|word| word.starts_with(&format!("{scheme}://"))).unwrap()
    }

    /// What the kernel says of every thread of it.
    fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap()).collect()
    }

    fn assert_all_threads(&self, confined: bool) {
        let (filters, privileges) = if confined { (2, 1) } else { (0, 0) };
        for status in self.threads() {
            assert!(status.contains(&format!("\nSeccomp:\t{filters}\n")), "{status}");
            assert!(status.contains(&format!("\nNoNewPrivs:\t{privileges}\n")), "{status}");
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Under the name that libnbd looks for an authority's.
fn make_certificate(dir: &Path) {
    let place = |name: &str| dir.join(name).display().to_string();
    let (key, certificate) = (place("key"), place("ca-cert.pem"));
    let new =
        ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
    let named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"];
    run("openssl", &[&new[..], &named, &["-keyout", &key, "-out", &certificate]].concat());
}

/// A client that does this and stays. Killed in the end.
struct Client(Child);

impl Client {
    fn connect(address: &str, commands: &[&str]) -> Self {
        let mut command = std::process::Command::new("qemu-io");
        command.args(["-f", "raw", "-d", "unmap", address]).stdout(Stdio::null());
        for command_line in commands.iter().chain(&["sleep 600000"]) {
            command.args(["-c", command_line]);
        }
        Self(command.spawn().unwrap())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_is_closed_in_while_it_does_all_that_it_is_asked() {
    let mut server = Serving::start(&["--confine", "always"]);
    let broker = broker_of(&server.child).unwrap();
    let empty_bytes = server.place("disk.qcow2").metadata().unwrap().len();
    let asked = ["write -P 7 1M 8M", "flush", "discard 2M 1M", "write -z 5M 1M", "read -P 7 3M 2M"];
    let client = Client::connect(server.address("nbd+unix"), &asked);
    let socket = server.place("socket");
    let has_read = || succeed(&["stats", arg(&socket)]).contains("reads         1, 2 MiB");
    assert!(common::wait_until(&mut server.child, has_read));
    assert!(server.place("disk.qcow2").metadata().unwrap().len() >= empty_bytes + (8 << 20), "it grew");
    // Listeners, the connection, the recording, and what gives storage back.
    assert!(server.threads().len() > 5, "{}", server.threads().len());
    server.assert_all_threads(true);
    assert!(std::fs::read_to_string(broker.join("status")).unwrap().contains("\nSeccomp:\t0\n"));

    let page = server.address("http").trim_start_matches("http://").trim_end_matches("/metrics");
    let mut metrics = std::net::TcpStream::connect(page).unwrap();
    metrics.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut told = String::new();
    metrics.read_to_string(&mut told).unwrap();
    assert!(told.contains("leandisk_written_bytes_total{export=\"disk.qcow2\"}"), "{told}");
    let secret = format!("{}?tls-certificates={}", server.address("nbds"), arg(server.dir.path()));
    assert_eq!(run("nbdinfo", &["--size", &secret]).trim(), (64 << 20).to_string());

    drop(client);
    signal(&server.child, "TERM");
    assert!(server.child.wait().unwrap().success());
    wait_for_end(&broker);
    common::assert_only(server.dir.path(), &["ca-cert.pem", "disk.qcow2", "key", "trace"]);
    let disk = server.place("disk.qcow2");
    run("qemu-img", &["check", "-q", "-f", "qcow2", arg(&disk)]);
    for contents in
        ["read -P 7 1M 1M", "read -P 0 2M 1M", "read -P 7 3M 2M", "read -P 0 5M 1M", "read -P 7 6M 3M"]
    {
        let said = run("qemu-io", &["-f", "qcow2", "-r", "-c", contents, arg(&disk)]);
        assert!(!said.contains("failed"), "{contents}: {said}");
    }
    let trace = server.place("trace");
    assert!(succeed(&["stats", arg(&trace)]).contains("writes        1, 8 MiB"));
}

#[test]
fn a_server_is_closed_in_by_default_and_left_open_if_asked() {
    let server = Serving::start(&[]);
    server.assert_all_threads(true);
    let server = Serving::start(&["--confine", "never"]);
    server.assert_all_threads(false);
    assert!(broker_of(&server.child).is_none());
}

#[test]
fn the_broker_of_a_server_ends_with_it() {
    let mut server = Serving::start(&["--confine", "always"]);
    let broker = broker_of(&server.child).unwrap();
    signal(&server.child, "KILL");
    assert!(!server.child.wait().unwrap().success());
    wait_for_end(&broker);
}

/// What is found only when clients are to be let in: what was made for them goes again.
#[test]
fn a_refusal_from_inside_leaves_nothing_behind() {
    for when in ["always", "never"] {
        let dir = scratch();
        let disk = dir.path().join("disk.raw");
        File::create(&disk).unwrap().set_len(1 << 20).unwrap();
        let (socket, trace) = (dir.path().join("socket"), dir.path().join("trace"));
        let (socket, trace) = (arg(&socket), arg(&trace));
        let args = ["serve", arg(&disk), "--socket", socket, "--trace", trace, "--confine", when];
        let said = fail(3, &[&args[..], &["--listen", "0.0.0.0:0"]].concat());
        assert!(said.contains("could read and write the disks"), "{said}");
        common::assert_only(dir.path(), &["disk.raw"]);
    }
}
