//! `--background`: the same results with what nobody else wants of the machine, and pauses while others read the same device.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{arg, document, leandisk, succeed};
use serde_json::Value;
use testkit::{ext_volume, noise, run, scratch};

#[test]
fn background_work_does_the_same() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let (volume, plain, background) = (path("volume.raw"), path("plain.qcow2"), path("background.qcow2"));
    ext_volume::make(&volume, "", 1);
    succeed(&["copy", arg(&volume), arg(&plain)]);
    succeed(&["copy", arg(&volume), arg(&background), "--background", "--verify"]);
    run("qemu-img", &["compare", "-q", arg(&plain), arg(&background)]);
    let defrag = |disk: &Path, more: &[&str]| {
        let document = document("leandisk.defrag/1", &[&["defrag", arg(disk)], more].concat());
        assert_eq!(document["volumes"][0]["refused"], Value::Null);
        document["volumes"][0]["after"].clone()
    };
    assert_eq!(defrag(&plain, &[]), defrag(&background, &["--background"]));
    succeed(&["compact", arg(&background), "--background"]);
    let (repository, password, restored) = (path("repository"), path("password"), path("restored.raw"));
    fs::write(&password, "secret").unwrap();
    let stored = ["--repo", arg(&repository), "--password-file", arg(&password), "--background"];
    succeed(&[&["backup", arg(&background), "--init"], &stored[..]].concat());
    succeed(&[&["restore", "latest", arg(&restored), "-O", "raw"], &stored[..]].concat());
    succeed(&["copy", arg(&plain), arg(&path("expected.raw"))]);
    run("cmp", &[arg(&path("expected.raw")), arg(&restored)]);
}

/// All threads of a copy that waits for its input.
#[test]
fn it_has_the_lowest_priority() {
    let dir = scratch();
    let target = dir.path().join("target.raw");
    let mut command = leandisk();
    command.args(["copy", "-f", "raw", "-", arg(&target), "--background"]);
    let mut copy = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let is_idle = || {
        let id = copy.id().to_string();
        let policy = run("chrt", &["--all-tasks", "--pid", &id]);
        let policies: Vec<_> = policy.lines().filter(|line| line.contains("policy")).collect();
        let all_idle = policies.iter().all(|line| line.ends_with("SCHED_IDLE"));
        all_idle && !policies.is_empty() && run("ionice", &["-p", &id]).trim() == "idle"
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_idle() {
        assert!(Instant::now() < deadline, "it never gets idle");
        std::thread::sleep(Duration::from_millis(20));
    }
    copy.stdin.take().unwrap().write_all(&noise(1, 1 << 20)).unwrap();
    assert!(copy.wait().unwrap().success());
    assert_eq!(fs::read(&target).unwrap(), noise(1, 1 << 20));
}

/// A reader of the same device, until this is dropped.
fn read_on(path: &Path, is_over: &AtomicBool) {
    let file = File::open(path).unwrap();
    let mut bytes = vec![0; 1 << 20];
    while !is_over.load(Ordering::Relaxed) {
        for at in 0..8 {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            file.read_exact_at(&mut bytes, at << 20).unwrap();
        }
    }
}

#[test]
fn it_pauses_while_others_read_the_device() {
    // On a device, not in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (source, others) = (dir.path().join("source.raw"), dir.path().join("others"));
    fs::write(&source, noise(1, 192 << 20)).unwrap();
    fs::write(&others, noise(2, 8 << 20)).unwrap();
    run("sync", &[arg(&source), arg(&others)]);
    let target = dir.path().join("target.raw");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| read_on(&others, &is_over));
        let mut command = leandisk();
        command.args(["copy", arg(&source), arg(&target), "--background", "--keep-free", "-vv"]);
        let mut copy = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(copy.stderr.take().unwrap()).lines().map_while(Result::ok);
        let said = lines
            .by_ref()
            .find(|line| line.contains("others use the devices") || line.contains("nobody counts"));
        is_over.store(true, Ordering::Relaxed);
        let said = said.expect("a pause");
        let has_told = lines.any(|line| line.contains("paused for "));
        assert!(copy.wait().unwrap().success());
        assert!(has_told || said.contains("nobody counts"));
        if said.contains("nobody counts") {
            println!(
                "SKIPPED: pauses for others: the kernel does not count what the device below {} does",
                dir.path().display()
            );
        }
    });
    run("cmp", &[arg(&source), arg(&target)]);
}
