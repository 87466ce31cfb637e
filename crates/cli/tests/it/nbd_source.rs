//! Disks behind NBD servers, read: QEMU's two, nbdkit with its filters, our own; in the clear and through TLS.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testkit::{run, scratch};

use crate::common::{arg, assert_only, document, fail, leandisk, names_in, number, output, succeed};
use crate::nbd_servers::{Server, disk, nbdkit, our_own, qemu_nbd, storage_daemon};

/// The copy has what the disk holds where the guest uses it, and nothing of what it does not.
fn assert_lean_copy(address: &str, raw: &Path, dir: &Path) {
    let whole = dir.join("whole.qcow2");
    succeed(&["copy", "--confine", "always", "--keep-free", "--verify", address, arg(&whole)]);
    run("qemu-img", &["compare", "-q", "-f", "raw", "-F", "qcow2", arg(raw), arg(&whole)]);
    let (lean, local) = (dir.join("lean.qcow2"), dir.join("local.qcow2"));
    let remote = document("leandisk.copy/1", &["copy", "--confine", "always", address, arg(&lean)]);
    let from_file = document("leandisk.copy/1", &["copy", arg(raw), arg(&local)]);
    for field in ["/read_bytes", "/used_bytes", "/avoided/free_bytes"] {
        assert_eq!(number(&remote, field), number(&from_file, field), "{field}");
    }
    assert_eq!(remote["volumes"][0]["mode"], "used-only");
    run("qemu-img", &["compare", "-q", arg(&lean), arg(&local)]);
    for made in [whole, lean, local] {
        std::fs::remove_file(made).unwrap();
    }
}

#[test]
fn a_copy_from_each_server_is_that_from_the_file() {
    let dir = scratch();
    let raw = disk(dir.path());
    let socket = dir.path().join("socket");
    let one_client_at_a_time = ["--read-only", arg(&raw)];
    assert_lean_copy(&qemu_nbd(&socket, &one_client_at_a_time).address(""), &raw, dir.path());
    let several_clients = ["--read-only", "--shared=8", arg(&raw)];
    assert_lean_copy(&qemu_nbd(&socket, &several_clients).address(""), &raw, dir.path());
    assert_lean_copy(&storage_daemon(&socket, &raw, false).address("disk"), &raw, dir.path());
    assert_lean_copy(&nbdkit(&socket, &["-r", "file", arg(&raw)]).address(""), &raw, dir.path());
    let picky = ["-r", "--filter=blocksize-policy", "file", arg(&raw), "blocksize-minimum=4096"];
    let picky =
        [&picky[..], &["blocksize-preferred=65536", "blocksize-maximum=1M", "blocksize-error-policy=error"]];
    assert_lean_copy(&nbdkit(&socket, &picky.concat()).address(""), &raw, dir.path());
    let slow = ["-r", "--filter=delay", "file", arg(&raw), "rdelay=1ms"];
    assert_lean_copy(&nbdkit(&socket, &slow).address(""), &raw, dir.path());
    let plain = ["-r", "--no-sr", "file", arg(&raw)];
    assert_lean_copy(&nbdkit(&socket, &plain).address(""), &raw, dir.path());
    assert_lean_copy(&our_own(&socket, &["--read-only", arg(&raw)]).address("disk.raw"), &raw, dir.path());
}

#[test]
fn holes_are_what_the_server_calls_zeros_and_any_length_is_read() {
    let dir = scratch();
    let raw = dir.path().join("disk.raw");
    let file = std::fs::File::create(&raw).unwrap();
    // Not a whole sector at the end.
    file.set_len((64 << 20) + 300).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 300], 64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[8; 1 << 20], 8 << 20).unwrap();
    let server = nbdkit(&dir.path().join("socket"), &["-r", "file", arg(&raw)]);
    let copy = dir.path().join("copy.raw");
    let done = document("leandisk.copy/1", &["copy", &server.address(""), arg(&copy)]);
    assert!(number(&done, "/read_bytes") <= (1 << 20) + (128 << 10), "{done:#}");
    assert_eq!(std::fs::read(&copy).unwrap(), std::fs::read(&raw).unwrap());
    let info = document("leandisk.info/1", &["info", &server.address("")]);
    assert_eq!(info["format"], "raw", "{info:#}");
    assert_eq!(number(&info, "/virtual_bytes"), (64 << 20) + 300);
}

#[test]
fn an_image_in_an_export_is_read_if_it_is_said_to_be_one_and_stands_alone() {
    let dir = scratch();
    let raw = disk(dir.path());
    let image = dir.path().join("image.qcow2");
    run("qemu-img", &["convert", "-q", "-f", "raw", "-O", "qcow2", arg(&raw), arg(&image)]);
    let server = nbdkit(&dir.path().join("socket"), &["-r", "file", arg(&image)]);
    let copy = dir.path().join("copy.raw");
    succeed(&["copy", "-f", "qcow2", "--keep-free", &server.address(""), arg(&copy)]);
    run("qemu-img", &["compare", "-q", "-f", "raw", "-F", "raw", arg(&raw), arg(&copy)]);
    assert_eq!(document("leandisk.info/1", &["info", &server.address("")])["format"], "raw", "never probed");

    let child = dir.path().join("child.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", arg(&image), arg(&child)]);
    let server = nbdkit(&dir.path().join("other"), &["-r", "file", arg(&child)]);
    let said = fail(3, &["info", "-f", "qcow2", &server.address("")]);
    assert!(said.contains("not looked for"), "{said}");
}

#[test]
fn what_cannot_be_read_is_refused_with_what_to_do() {
    let dir = scratch();
    let raw = disk(dir.path());
    let server = our_own(&dir.path().join("socket"), &["--read-only", arg(&raw)]);
    let said = fail(3, &["info", &server.address("other")]);
    assert!(said.contains("it has 'disk.raw'"), "{said}");
    let nobody = format!("nbd+unix:///?socket={}", dir.path().join("nobody").display());
    fail(5, &["info", &nobody]);
    fail(5, &["copy", &nobody, arg(&dir.path().join("copy.raw"))]);
    fail(2, &["info", "nbd+unix:///x"]);
    let said = fail(3, &["info", "nbds+unix://me@/x?socket=s&tls-psk-file=keys"]);
    assert!(said.contains("tls-certificates"), "{said}");
    let before = std::fs::read(&raw).unwrap();
    let address = server.address("disk.raw");
    for command in ["compact", "defrag", "recover"] {
        fail(3, &[command, &address]);
    }
    fail(3, &["serve", &address, "--socket", arg(&dir.path().join("again"))]);
    assert_eq!(std::fs::read(&raw).unwrap(), before);
    assert_only(dir.path(), &["disk.raw", "file", "socket", "socket.stats"]);
}

#[test]
fn an_error_of_the_server_leaves_nothing_under_the_final_name() {
    let dir = scratch();
    let raw = disk(dir.path());
    let trigger = dir.path().join("trigger");
    let when = format!("error-pread-file={}", trigger.display());
    let args = ["-r", "--filter=error", "file", arg(&raw), "error-pread=EIO", "error-pread-rate=100%", &when];
    let server = nbdkit(&dir.path().join("socket"), &args);
    let target = dir.path().join("copy.raw");
    succeed(&["copy", "--dry-run", &server.address(""), arg(&target)]);
    std::fs::write(&trigger, "").unwrap();
    let said = fail(5, &["copy", "--keep-free", "--keep-swap", &server.address(""), arg(&target)]);
    assert!(said.contains("Input/output error"), "{said}");
    assert!(!target.exists());
}

#[test]
fn a_server_that_comes_back_is_gone_on_with_and_one_that_does_not_is_an_error() {
    let dir = scratch();
    let raw = disk(dir.path());
    let (socket, target) = (dir.path().join("socket"), dir.path().join("copy.raw"));
    let slow = ["-r", "--filter=delay", "--filter=cow", "file", arg(&raw), "rdelay=100ms"];
    for comes_back in [true, false] {
        let server = nbdkit(&socket, &slow);
        let args = ["copy", "--threads", "1", "--keep-free", &server.address(""), arg(&target)];
        let mut copy = leandisk().args(args).stderr(Stdio::piped()).spawn().unwrap();
        let started = Instant::now();
        let has_begun = || names_in(dir.path()).iter().any(|name| name.contains("partial"));
        while !has_begun() {
            assert!(started.elapsed() < Duration::from_secs(60) && copy.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(5));
        }
        server.kill();
        let again = comes_back.then(|| nbdkit(&socket, &slow));
        let done = copy.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        drop(again);
        if comes_back {
            assert!(done.status.success(), "{said}");
            assert_eq!(std::fs::read(&target).unwrap(), std::fs::read(&raw).unwrap());
            std::fs::remove_file(&target).unwrap();
        } else {
            assert_eq!(done.status.code(), Some(5), "{said}");
            assert!(said.contains("cannot be taken up again") && !target.exists(), "{said}");
        }
    }
}

/// An authority, and a server's certificate for localhost that it signed.
fn make_certificates(dir: &Path) {
    let path = |name: &str| dir.join(name).display().to_string();
    let new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
    let req = |args: &[&str]| run("openssl", &[&["req", "-x509"][..], &new_key, args].concat());
    req(&["-subj", "/CN=authority", "-keyout", &path("ca-key.pem"), "-out", &path("ca-cert.pem")]);
    let signed_by = ["-CA", &path("ca-cert.pem"), "-CAkey", &path("ca-key.pem")];
    let named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"];
    let no_authority = ["-addext", "basicConstraints=critical,CA:FALSE"];
    let files = ["-keyout", &path("server-key.pem"), "-out", &path("server-cert.pem")];
    req(&[&signed_by[..], &named, &no_authority, &files].concat());
}

#[test]
fn tls_proves_the_server_and_may_be_told_not_to() {
    let dir = scratch();
    let raw = disk(dir.path());
    let (pki, other) = (dir.path().join("pki"), dir.path().join("other"));
    for folder in [&pki, &other] {
        std::fs::create_dir(folder).unwrap();
        make_certificates(folder);
    }
    let socket = dir.path().join("socket");
    let certificates = format!("--tls-certificates={}", pki.display());
    let server = nbdkit(&socket, &["-r", "--tls=require", &certificates, "file", arg(&raw)]);
    let address = |query: &str| format!("nbds+unix:///?socket={}&{query}", socket.display());
    let with = |folder: &Path| address(&format!("tls-certificates={}", folder.display()));
    assert_lean_copy(&with(&pki), &raw, dir.path());
    let said = fail(5, &["info", &with(&other)]);
    assert!(said.contains("TLS"), "{said}");
    fail(5, &["info", &format!("{}&tls-hostname=elsewhere", with(&pki))]);
    succeed(&["info", &address("tls-verify-peer=false")]);
    let said = fail(3, &["info", &server.address("")]);
    assert!(said.contains("nbds"), "{said}");
    drop(server);
    let in_the_clear = qemu_nbd(&socket, &["--read-only", arg(&raw)]);
    fail(3, &["info", &with(&pki)]);
    drop(in_the_clear);
}

#[test]
fn tcp_is_read_by_host_and_port() {
    let dir = scratch();
    let raw = disk(dir.path());
    // A port that nobody has: the kernel's choice, given back at once.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("--port={port}");
    let pid_file = dir.path().join("pid");
    let args = ["-f", "-P", arg(&pid_file), "--ipaddr=127.0.0.1", &listen, "-r", "file", arg(&raw)];
    let _server = Server::start(Command::new("nbdkit").args(args), &pid_file);
    assert_lean_copy(&format!("nbd://127.0.0.1:{port}/"), &raw, dir.path());
    assert!(output(&["analyze", &format!("nbd://localhost:{port}")]).status.success());
}
