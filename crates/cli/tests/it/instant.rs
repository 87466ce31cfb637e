//! A disk of a snapshot in use at once: what a guest writes lies in an overlay, or in the target that is filled meanwhile.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use testkit::{run, scratch};

use crate::backup::{Repo, noise};
use crate::common::{arg, assert_only, fail, is_listening, leandisk, signal, succeed, wait_until};

/// A server of a disk of a snapshot. Killed if a test ends without it.
pub(crate) struct Instant {
    child: Child,
    export: String,
}

impl Instant {
    fn start(repo: &Repo, disk: &str, more: &[&str]) -> Self {
        let socket = repo.dir.path().join("nbd.sock");
        let _ = fs::remove_file(&socket);
        let args = repo.args();
        let serve = ["serve", disk, "--name", "disk", "--socket", arg(&socket)];
        let mut command = leandisk();
        command.args(repo.with(&args, &serve)).args(more).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        assert!(wait_until(&mut child, || is_listening(&socket)));
        Self { child, export: format!("nbd+unix:///disk?socket={}", socket.display()) }
    }

    /// Has QEMU do this with the export.
    fn io(&self, commands: &[&str]) {
        qemu_io(&self.export, "raw", commands);
    }

    fn assert_reads_as(&self, model: &Path) {
        run("qemu-img", &["compare", "-q", "-f", "raw", "-F", "raw", &self.export, arg(model)]);
    }

    fn kill(mut self) {
        signal(&self.child, "KILL");
        self.child.wait().unwrap();
    }

    fn stop(mut self) {
        signal(&self.child, "TERM");
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Instant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn qemu_io(image: &str, format: &str, commands: &[&str]) {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    run("qemu-io", &["-f", format].into_iter().chain(commands).chain([image]).collect::<Vec<_>>());
}

/// A disk with 6 MiB of noise, 1 MiB of nothing, and a last piece that is no whole cluster; backed up.
fn backed_up() -> (Repo, PathBuf) {
    let repo = Repo::new();
    let disk = repo.dir.path().join("vm.raw");
    noise(&disk, 6, 1);
    let file = File::options().write(true).open(&disk).unwrap();
    file.set_len((7 << 20) + 5 * 512).unwrap();
    file.write_all_at(&[9; 512], (7 << 20) + 4 * 512).unwrap();
    drop(file);
    repo.succeed(&["backup", "--init", arg(&disk)]);
    (repo, disk)
}

/// What a guest does, and then flushes: parts of clusters and whole ones, zeros over data of the snapshot, discards, the last piece.
const WRITES: [&str; 7] = [
    "write -P 1 100k 4k",
    "write -P 2 1000k 200k",
    "write -z 2M 192k",
    "write -z 3000k 10k",
    "write -P 3 6500k 70k",
    "write -P 4 7M 1k",
    "flush",
];

#[test]
fn an_overlay_holds_what_a_guest_writes_over_a_snapshot() {
    let (repo, disk) = backed_up();
    let (overlay, model) = (repo.dir.path().join("overlay.qcow2"), repo.dir.path().join("model.raw"));
    fs::copy(&disk, &model).unwrap();
    let with_overlay = ["--overlay", arg(&overlay)];

    let server = Instant::start(&repo, "latest:vm.raw", &with_overlay);
    server.assert_reads_as(&model);
    server.io(&WRITES);
    server.io(&["discard 4M 128k", "flush"]);
    qemu_io(arg(&model), "raw", &WRITES);
    qemu_io(arg(&model), "raw", &["write -z 4M 128k"]);
    server.assert_reads_as(&model);
    server.kill();

    // What was flushed is there, and the image is one to QEMU. The repository holds what it held.
    run("qemu-img", &["check", "-q", "-r", "leaks", arg(&overlay)]);
    repo.restic(&["unlock"]);
    repo.restic(&["check", "--read-data"]);
    let server = Instant::start(&repo, "latest", &with_overlay);
    server.assert_reads_as(&model);
    server.stop();
    run("qemu-img", &["check", "-q", arg(&overlay)]);

    // QEMU writes into it, and the snapshot gets a tag: it is still that disk's.
    qemu_io(arg(&overlay), "qcow2", &["write -P 5 5M 64k"]);
    for lazy in ["lazy_refcounts=on", "lazy_refcounts=off"] {
        // It writes the whole header anew.
        run("qemu-img", &["amend", "-f", "qcow2", "-o", lazy, arg(&overlay)]);
    }
    qemu_io(arg(&model), "raw", &["write -P 5 5M 64k"]);
    repo.restic(&["tag", "--add", "kept"]);
    let server = Instant::start(&repo, "latest", &with_overlay);
    server.assert_reads_as(&model);
    server.stop();

    // Without its snapshot it is no disk.
    let copy = repo.dir.path().join("copy.raw");
    for alone in [&["copy", arg(&overlay), arg(&copy)][..], &["serve", arg(&overlay), "--socket", arg(&copy)]]
    {
        assert!(fail(3, alone).contains("is an overlay of 'vm.raw' of snapshot"));
    }
}

#[test]
fn an_overlay_is_of_one_disk_alone() {
    let (repo, disk) = backed_up();
    let [overlay, plain] = ["overlay.qcow2", "plain.qcow2"].map(|name| repo.dir.path().join(name));
    Instant::start(&repo, "latest", &["--overlay", arg(&overlay)]).stop();
    succeed(&["create", arg(&plain), "7M"]);
    qemu_io(arg(&disk), "raw", &["write -P 1 0 64k"]);
    repo.succeed(&["backup", arg(&disk), &format!("other.raw={}", arg(&disk))]);
    let before = [&overlay, &plain].map(|path| fs::read(path).unwrap());
    let serve = |disk: &str, more: &[&str], status| {
        let socket = repo.dir.path().join("none.sock");
        repo.fail(status, &[&["serve", disk, "--socket", arg(&socket)], more].concat())
    };
    assert!(serve("latest:vm.raw", &["--overlay", arg(&overlay)], 3).contains("not of 'vm.raw' of snapshot"));
    assert!(serve("latest:vm.raw", &["--overlay", arg(&plain)], 3).contains("is no overlay of a snapshot"));
    assert_eq!(before, [&overlay, &plain].map(|path| fs::read(path).unwrap()));

    // How it is asked for.
    assert!(serve("latest:vm.raw", &[], 3).contains("--overlay"));
    serve("latest:vm.raw", &["--overlay", arg(&overlay), "--read-only"], 2);
    assert!(serve(arg(&plain), &["--overlay", arg(&overlay)], 2).contains("disk of a snapshot"));
    let new = repo.dir.path().join("new.qcow2");
    let twice = ["latest:vm.raw", "--overlay", arg(&new), "--overlay", arg(&new)];
    serve("latest:other.raw", &twice, 2);
    // A disk that is refused leaves no overlay of another one behind.
    let of_plain = ["latest:vm.raw", "--overlay", arg(&new), "--overlay", arg(&plain)];
    serve("latest:other.raw", &of_plain, 3);
    assert!(!new.exists());
}

#[test]
fn a_served_snapshot_is_opened_without_its_packs() {
    let (repo, disk) = backed_up();
    // Trees lie in a pack of their own, which is small.
    let data: Vec<_> =
        repo.packs().into_iter().filter(|pack| pack.metadata().unwrap().len() > 4096).collect();
    assert!(!data.is_empty());
    let away = |pack: &PathBuf| pack.with_extension("away");
    data.iter().for_each(|pack| fs::rename(pack, away(pack)).unwrap());
    let overlay = repo.dir.path().join("overlay.qcow2");
    for how in [&["--read-only"][..], &["--overlay", arg(&overlay)]] {
        let server = Instant::start(&repo, "latest", how);
        // What is known to be zeros is answered as well.
        run("qemu-io", &["-r", "-f", "raw", "-c", "read -P 0 6500k 100k", &server.export]);
        data.iter().for_each(|pack| fs::rename(away(pack), pack).unwrap());
        server.assert_reads_as(&disk);
        data.iter().for_each(|pack| fs::rename(pack, away(pack)).unwrap());
        server.stop();
    }
}

/// Targets by extension, and QEMU's name of their format.
const TARGETS: [(&str, &str); 4] = [("raw", "raw"), ("qcow2", "qcow2"), ("vhdx", "vhdx"), ("vmdk", "vmdk")];

fn assert_target_is(target: &Path, format: &str, model: &Path) {
    run("qemu-img", &["compare", "-q", "-f", format, "-F", "raw", arg(target), arg(model)]);
}

#[test]
fn a_target_is_filled_while_a_guest_writes() {
    let (repo, disk) = backed_up();
    for (extension, format) in TARGETS {
        let dir = scratch();
        let (target, model) = (dir.path().join(format!("vm.{extension}")), repo.dir.path().join("model.raw"));
        fs::copy(&disk, &model).unwrap();
        let mut server = Instant::start(&repo, "latest:vm.raw", &["--into", arg(&target)]);
        server.io(&WRITES);
        server.io(&["discard 4M 128k", "flush"]);
        qemu_io(arg(&model), "raw", &WRITES);
        qemu_io(arg(&model), "raw", &["write -z 4M 128k"]);
        // It gets its name while it is served, and goes on being used.
        assert!(wait_until(&mut server.child, || target.exists()), "{extension}");
        server.assert_reads_as(&model);
        for image in [&server.export, arg(&model)] {
            qemu_io(image, "raw", &["write -P 6 5M 100k", "flush"]);
        }
        server.stop();
        assert_target_is(&target, format, &model);
        assert_only(dir.path(), &[&format!("vm.{extension}")]);
        let socket = repo.dir.path().join("none.sock");
        let again = ["serve", "latest:vm.raw", "--socket", arg(&socket), "--into", arg(&target)];
        assert!(repo.fail(3, &again).contains("is there already"));
    }
}

#[test]
fn a_fill_goes_on_after_kills_and_keeps_what_a_guest_flushed() {
    let repo = Repo::new();
    let [disk, model] = ["vm.raw", "model.raw"].map(|name| repo.dir.path().join(name));
    noise(&disk, 40, 7);
    repo.succeed(&["backup", "--init", arg(&disk)]);
    for (extension, format) in &TARGETS[..2] {
        fs::copy(&disk, &model).unwrap();
        let dir = scratch();
        let target = dir.path().join(format!("vm.{extension}"));
        for round in 1..=6u64 {
            let server = Instant::start(&repo, "latest", &["--into", arg(&target)]);
            server.assert_reads_as(&model);
            let at = |number: u64| (round * 7919 + number * 104_729) * 512 % (39 << 20);
            let mut commands: Vec<_> = (0..round)
                .map(|number| {
                    format!("write -P {} {} {}", round + number, at(number), 512 * (number + 1) * 37)
                })
                .collect();
            commands.push("flush".into());
            let commands: Vec<_> = commands.iter().map(String::as_str).collect();
            server.io(&commands);
            qemu_io(arg(&model), "raw", &commands);
            server.kill();
            if target.exists() {
                break;
            }
        }
        if !target.exists() {
            let mut server = Instant::start(&repo, "latest", &["--into", arg(&target)]);
            server.assert_reads_as(&model);
            assert!(wait_until(&mut server.child, || target.exists()));
            server.stop();
        }
        assert_target_is(&target, format, &model);
        let _ = fs::remove_file(dir.path().join(format!(".vm.{extension}.leandisk-filled")));
        assert_only(dir.path(), &[&format!("vm.{extension}")]);
    }
}

#[test]
fn what_cannot_be_filled_is_never_called_the_target() {
    let (repo, disk) = backed_up();
    let dir = scratch();
    let target = dir.path().join("vm.raw");
    let into = ["--into", arg(&target)];
    let socket = repo.dir.path().join("none.sock");
    let serve = |disk: &str, more: &[&str], status| {
        repo.fail(status, &[&["serve", disk, "--socket", arg(&socket)], more].concat())
    };
    serve("latest", &["--into", "disk"], 2);
    serve("latest", &["--into", arg(&target), "--read-only"], 2);
    serve("latest", &["--into", arg(&target), "--overlay", arg(&target)], 2);
    serve(arg(&disk), &into, 2);
    assert_only(dir.path(), &[]);

    // A pack is broken: what can be read is served, and the target stays what it is.
    let pack = repo.packs().into_iter().max_by_key(|pack| pack.metadata().unwrap().len()).unwrap();
    let good = fs::read(&pack).unwrap();
    let mut broken = good.clone();
    broken[good.len() / 2] ^= 1;
    fs::write(&pack, &broken).unwrap();
    // Stopped before it came to that pack, it has nothing to complain of, and goes on the next time.
    let is_found = (0..20).any(|attempt| {
        let mut server = Instant::start(&repo, "latest", &into);
        server.io(&["write -P 7 64k 64k", "flush"]);
        std::thread::sleep(Duration::from_millis(200) * attempt);
        signal(&server.child, "TERM");
        let status = server.child.wait().unwrap().code();
        assert!(status == Some(0) || status == Some(4), "{status:?}");
        assert!(!target.exists());
        status == Some(4)
    });
    assert!(is_found, "it fills a target from a broken pack");
    fs::write(&pack, &good).unwrap();

    // What the guest wrote is kept, from any other snapshot too.
    let model = repo.dir.path().join("model.raw");
    fs::copy(&disk, &model).unwrap();
    qemu_io(arg(&model), "raw", &["write -P 7 64k 64k"]);
    qemu_io(arg(&disk), "raw", &["write -P 1 0 64k"]);
    let first = repo.document("leandisk.snapshots/1", &["snapshots"])["snapshots"][0]["id"].clone();
    repo.succeed(&["backup", arg(&disk)]);
    assert!(serve("latest", &into, 3).contains("of another snapshot"));
    let mut server = Instant::start(&repo, first.as_str().unwrap(), &into);
    server.assert_reads_as(&model);
    assert!(wait_until(&mut server.child, || target.exists()));
    server.stop();
    assert_target_is(&target, "raw", &model);
}
