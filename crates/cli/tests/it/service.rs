//! `serve` as a service: sockets that systemd passes, what systemd is told, and who may use a socket.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{
    arg, document, fail, is_listening, leandisk, number, output, program, signal, wait_until,
};
use testkit::{run, scratch};

/// A disk of 8 MiB.
fn disk_in(dir: &Path) -> String {
    let disk = dir.join("disk.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", arg(&disk), "8M"]);
    arg(&disk).to_owned()
}

/// systemd's own program that listens, and starts another with the socket once a client comes.
fn activated(place: &str, notify: &Path, args: &[&str]) -> Child {
    let notify = format!("NOTIFY_SOCKET={}", notify.display());
    let program = program();
    let mut command = Command::new("systemd-socket-activate");
    command.args(["-l", place, "-E", &notify, &program, "serve"]).args(args).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("systemd-socket-activate: {error}; see install-test-tools"))
}

/// Who listens for what services say.
fn manager(path: &Path) -> UnixDatagram {
    let socket = UnixDatagram::bind(path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}

fn told(manager: &UnixDatagram) -> String {
    let mut room = [0; 256];
    let len = manager.recv(&mut room).unwrap();
    String::from_utf8(room[..len].to_vec()).unwrap()
}

fn end_well(mut child: Child) {
    signal(&child, "TERM");
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    panic!("it does not end");
}

fn write(address: &str) {
    run("qemu-io", &["-f", "raw", "-c", "write -P 85 1M 64k", "-c", "flush", address]);
}

fn assert_written(disk: &str) {
    run("qemu-io", &["-f", "qcow2", "-c", "read -P 85 1M 64k", disk]);
    run("qemu-img", &["check", "-q", disk]);
}

#[test]
fn a_unix_socket_that_systemd_passes_is_served_and_systemd_knows() {
    let dir = scratch();
    let disk = disk_in(dir.path());
    let (socket, notify) = (dir.path().join("nbd.sock"), dir.path().join("notify"));
    let manager = manager(&notify);
    let mut child = activated(arg(&socket), &notify, &[&disk, "--name", "disk"]);
    assert!(wait_until(&mut child, || is_listening(&socket)));
    write(&format!("nbd+unix:///disk?socket={}", socket.display()));
    assert_eq!(told(&manager), "READY=1");
    let stats = document("leandisk.stats/1", &["stats", arg(&socket)]);
    assert_eq!(number(&stats, "/exports/0/len_bytes"), 8 << 20);
    end_well(child);
    assert_eq!(told(&manager), "STOPPING=1");
    assert!(socket.exists(), "the socket is systemd's");
    assert!(!dir.path().join("nbd.sock.stats").exists(), "the one of the statistics is not");
    assert_written(&disk);
}

#[test]
fn a_tcp_socket_that_systemd_passes_is_served() {
    let dir = scratch();
    let disk = disk_in(dir.path());
    let notify = dir.path().join("notify");
    let manager = manager(&notify);
    let place = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let child = activated(&place, &notify, &[&disk, "--name", "disk"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    let address = format!("nbd://{place}/disk");
    while !Command::new("nbdinfo").arg(&address).output().unwrap().status.success() {
        assert!(Instant::now() < deadline, "nobody listens");
        std::thread::sleep(Duration::from_millis(50));
    }
    write(&address);
    assert_eq!(told(&manager), "READY=1");
    end_well(child);
    assert_written(&disk);
}

/// Runs `serve` with descriptors that `redirections` open, in the name of systemd.
fn passed(disk: &str, count: &str, redirections: &str) -> Output {
    let script = format!("LISTEN_PID=$$ LISTEN_FDS={count} exec {} serve {disk} {redirections}", program());
    Command::new("bash").args(["-c", &script]).output().unwrap()
}

#[test]
fn what_is_passed_must_be_a_socket_and_ours() {
    let dir = scratch();
    let disk = disk_in(dir.path());
    let before = common::Untouched::all_in(dir.path());
    for (count, redirections, why) in [
        ("1", "3</dev/null", "descriptor 3, which was passed, is no socket that listens"),
        ("2", "3>&- 4>&-", "descriptor 3, which was passed, is no socket that listens"),
        ("many", "", "LISTEN_FDS is not a number"),
        ("-1", "", "LISTEN_FDS is not a number"),
        ("0", "", "there is no socket to listen on"),
    ] {
        let output = passed(&disk, count, redirections);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{count} {redirections}: {said}");
        assert!(said.contains(why), "{said}");
    }
    let of_another = leandisk().args(["serve", &disk]).env("LISTEN_PID", "1").env("LISTEN_FDS", "1").output();
    let said = String::from_utf8(of_another.unwrap().stderr).unwrap();
    assert!(said.contains("there is no socket to listen on") && said.contains("--socket PATH"), "{said}");
    before.check(dir.path());
}

#[test]
fn a_socket_has_the_group_and_the_permissions_that_were_asked_for() {
    let dir = scratch();
    let disk = disk_in(dir.path());
    let (socket, notify) = (dir.path().join("nbd.sock"), dir.path().join("notify"));
    let manager = manager(&notify);
    // A group that everybody may give files to is one's own.
    let group = run("id", &["-gn"]);
    let mut child = leandisk()
        .args([
            "serve",
            &disk,
            "--socket",
            arg(&socket),
            "--socket-mode",
            "0660",
            "--socket-group",
            group.trim(),
        ])
        .env("NOTIFY_SOCKET", &notify)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(told(&manager), "READY=1");
    for path in [socket.clone(), dir.path().join("nbd.sock.stats")] {
        let found = fs::metadata(&path).unwrap();
        assert_eq!(found.permissions().mode() & 0o7777, 0o660, "{}", path.display());
        assert_eq!(found.gid().to_string(), run("id", &["-g"]).trim());
    }
    assert!(wait_until(&mut child, || UnixStream::connect(&socket).is_ok()));
    end_well(child);
    assert!(!socket.exists());
}

#[test]
fn groups_and_permissions_that_make_no_sense_are_refused() {
    let dir = scratch();
    let disk = disk_in(dir.path());
    let socket = dir.path().join("nbd.sock");
    let before = common::Untouched::all_in(dir.path());
    let serve = ["serve", &disk, "--socket", arg(&socket)];
    let message = fail(2, &[&serve[..], &["--socket-group", "no-such-group"]].concat());
    assert!(message.contains("there is no group 'no-such-group'"), "{message}");
    for mode in ["9", "1777", "rw", ""] {
        let message = fail(2, &[&serve[..], &["--socket-mode", mode]].concat());
        assert!(message.contains("octal"), "{message}");
    }
    assert_eq!(
        output(&["serve", &disk, "--listen", "127.0.0.1:0", "--socket-mode", "600"]).status.code(),
        Some(2)
    );
    before.check(dir.path());
}
