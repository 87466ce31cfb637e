//! What leaves the program, where something is in the way: files that exist, full and closed outputs, limits of the shell.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common;
use crate::common::{Untouched, arg, assert_only, fail, leandisk, output};
use serde_json::Value;
use testkit::{Guest, Inside, run, scratch};

/// A recording of `stats --json` without a disk in it.
const RECORDING: &str = r#"{"schema": "leandisk.stats/1", "exports": []}"#;

/// Runs the program in a shell, which sees to limits and redirections: `$LD` is the program, `$1` and so on are `args`.
fn in_shell(script: &str, args: &[&str]) -> Output {
    let mut command = Command::new("bash");
    command.args(["-c", script, "shell"]).args(args).env("LD", common::program());
    command.env_remove("NO_COLOR").output().unwrap()
}

#[test]
fn a_file_is_replaced_only_with_force_and_is_named() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let recording = dir.path().join("recording.json");
    std::fs::write(&recording, RECORDING).unwrap();
    let disk = arg(&guest.disk);
    let folder = arg(dir.path()).to_owned();
    let commands: [(&str, Vec<&str>); 7] = [
        ("report.html", vec!["analyze", disk, "--html"]),
        ("files.jsonl", vec!["analyze", disk, "--files"]),
        ("map.svg", vec!["map", disk, "-o"]),
        ("map.html", vec!["map", disk, "-o"]),
        ("stats.html", vec!["stats", arg(&recording), "--html"]),
        ("first.html", vec!["bench", "first-write", "--dir", &folder, "--size", "1M", "--html"]),
        ("fragments.html", vec!["bench", "fragmentation", "--dir", &folder, "--size", "1M", "--html"]),
    ];
    for (name, args) in commands {
        let file = dir.path().join(name);
        std::fs::write(&file, "old").unwrap();
        let before = Untouched::all_in(dir.path());
        let args = [&args[..], &[arg(&file)]].concat();
        let message = fail(3, &args);
        assert!(message.contains(name) && message.contains("--force"), "{message}");
        before.check(dir.path());
        // What it takes to run the other benchmark is not here to be tested.
        if name == "fragments.html" {
            continue;
        }
        let done = output(&[&args[..], &["--force"]].concat());
        let message = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success(), "{args:?}: {message}");
        assert_eq!(message, format!("leandisk: wrote {}\n", file.display()), "{args:?}");
        assert!(std::fs::read_to_string(&file).unwrap().len() > 300, "{name}");
    }
}

#[test]
fn no_file_that_is_read_is_written() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let (trace, recording, later) = (path("trace"), path("a.json"), path("b.json"));
    std::fs::write(&trace, "0 4096\n").unwrap();
    std::fs::write(&recording, RECORDING).unwrap();
    std::fs::write(&later, RECORDING).unwrap();
    let (link, copy) = (path("link.svg"), path("disk.raw"));
    run("cp", &["--sparse=always", arg(&guest.disk), arg(&copy)]);
    std::os::unix::fs::symlink(&copy, &link).unwrap();
    let before = Untouched::all_in(dir.path());
    for args in [
        ["analyze", arg(&copy), "--html", arg(&copy), "--force"],
        ["map", arg(&copy), "-o", arg(&link), "--force"],
        ["analyze", arg(&copy), "--files", "/dev/null", "--force"],
        ["analyze", arg(&copy), "--files", arg(dir.path()), "--force"],
        ["stats", arg(&recording), "--html", arg(&recording), "--force"],
    ] {
        fail(3, &args);
    }
    let traced = ["analyze", arg(&copy), "--trace", arg(&trace), "--files", arg(&trace), "--force"];
    assert!(fail(3, &traced).contains("which this command reads"));
    let twice = ["stats", arg(&recording), arg(&later), "--html", arg(&later), "--force"];
    assert!(fail(3, &twice).contains("which this command reads"));
    let same = path("same");
    fail(2, &["analyze", arg(&copy), "--files", arg(&same), "--html", arg(&same)]);
    fail(5, &["analyze", arg(&copy), "--files", arg(&path("no folder/files"))]);
    before.check(dir.path());
}

#[test]
fn a_file_is_whole_or_as_it_was() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let file = dir.path().join("files.jsonl");
    std::fs::write(&file, "old").unwrap();
    let before = Untouched::all_in(dir.path());
    // The limit is in units of 1024 bytes.
    let script = r#"ulimit -f 16; exec "$LD" analyze "$1" --files "$2" --force"#;
    let done = in_shell(script, &[arg(&guest.disk), arg(&file)]);
    assert_eq!(done.status.code(), Some(5), "{done:?}");
    assert!(String::from_utf8_lossy(&done.stderr).contains("File too large"), "{done:?}");
    before.check(dir.path());
}

#[test]
fn a_limit_of_the_shell_leaves_nothing_behind() {
    let guest = Guest::get(Inside::Ntfs);
    // What would be too long whatever is in it is not begun; how long the others get is seen when they are written.
    let targets = [("target.raw", 3), ("target.qcow2", 5), ("target.vhdx", 5), ("target.vmdk", 5)];
    for (target, status) in targets {
        let dir = scratch();
        let script = r#"ulimit -f 8192; exec "$LD" copy "$1" "$2""#;
        let done = in_shell(script, &[arg(&guest.disk), arg(&dir.path().join(target))]);
        assert_eq!(done.status.code(), Some(status), "{target}: {done:?}");
        let message = String::from_utf8_lossy(&done.stderr).into_owned();
        let why = if status == 3 { "ulimit -f" } else { "File too large" };
        assert!(message.contains(why), "{target}: {message}");
        assert_only(dir.path(), &[]);
    }
}

#[test]
fn messages_that_nobody_reads_stop_nothing() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let target = dir.path().join("target.raw");
    std::fs::write(&target, "old").unwrap();
    for redirection in ["2>/dev/full", "2>&-", "2> >(exec true)"] {
        let script = format!(r#""$LD" copy "$1" "$2" {redirection}"#);
        let refused = in_shell(&script, &[arg(&guest.disk), arg(&target)]);
        assert_eq!(refused.status.code(), Some(3), "{redirection}: {refused:?}");
        let script = format!(r#""$LD" copy "$1" "$2" --force --progress json {redirection}"#);
        let done = in_shell(&script, &[arg(&guest.disk), arg(&target)]);
        assert_eq!(done.status.code(), Some(0), "{redirection}: {done:?}");
        let script = format!(r#""$LD" analyze "$1" --files "$2" --force {redirection}"#);
        let done = in_shell(&script, &[arg(&guest.disk), arg(&target)]);
        assert_eq!(done.status.code(), Some(0), "{redirection}: {done:?}");
        std::fs::write(&target, "old").unwrap();
    }
}

#[test]
fn a_document_that_cannot_be_written_is_a_failure() {
    let guest = Guest::get(Inside::Ntfs);
    let disk = arg(&guest.disk);
    for command in ["info", "info --json", "analyze", "analyze --json", "compact --dry-run", "copy --dry-run"]
    {
        let (name, options) = command.split_once(' ').unwrap_or((command, ""));
        let target = if name == "copy" { "/nowhere.raw" } else { "" };
        let script = format!(r#""$LD" {name} "$1" {target} {options} >/dev/full"#);
        let full = in_shell(&script, &[disk]);
        assert_eq!(full.status.code(), Some(5), "{command}: {full:?}");
        assert!(String::from_utf8_lossy(&full.stderr).contains("standard output"), "{command}: {full:?}");
        // A reader that had enough is no failure.
        let script = format!(r#"set -o pipefail; "$LD" {name} "$1" {target} {options} | true"#);
        let closed = in_shell(&script, &[disk]);
        assert_eq!(closed.status.code(), Some(0), "{command}: {closed:?}");
    }
    for help in ["--help", "copy --help", "--version"] {
        let full = in_shell(&format!(r#""$LD" {help} >/dev/full"#), &[]);
        assert_eq!(full.status.code(), Some(5), "{help}: {full:?}");
        let closed = in_shell(&format!(r#"set -o pipefail; "$LD" {help} | head -n 1"#), &[]);
        assert_eq!(closed.status.code(), Some(0), "{help}: {closed:?}");
        assert!(closed.stderr.is_empty(), "{help}: {closed:?}");
    }
}

/// Runs a command that fails with this status, and answers the one document that it printed.
fn failed_document(status: i32, args: &[&str]) -> Value {
    let done = leandisk().args(args).arg("--json").stderr(Stdio::null()).output().unwrap();
    assert_eq!(done.status.code(), Some(status), "{args:?}");
    let text = String::from_utf8(done.stdout).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?}: {error} in {text:?}"))
}

fn broken_image(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("broken.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", arg(&path), "4M"]);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // The offset of the first table, beyond the file.
    std::os::unix::fs::FileExt::write_all_at(&file, &(1_u64 << 40).to_be_bytes(), 40).unwrap();
    path
}

/// A table that is broken is found while the disk is read, deep below what knows the file's name.
#[test]
fn what_is_corrupt_is_named_however_late_it_is_found() {
    let guest = Guest::get(Inside::Ext4);
    let dir = scratch();
    let image = dir.path().join("late.qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", arg(&guest.disk), arg(&image)]);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&image).unwrap();
    let number = |at: u64| {
        let mut bytes = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, at).unwrap();
        u64::from_be_bytes(bytes)
    };
    // The first entry of the first table of clusters: it is in use, and its cluster lies beyond the file.
    let second_table = number(number(40)) & 0x00ff_ffff_ffff_fe00;
    std::os::unix::fs::FileExt::write_all_at(&file, &((1 << 63) | (1_u64 << 45)).to_be_bytes(), second_table)
        .unwrap();
    for args in [
        vec!["info", arg(&image)],
        vec!["analyze", arg(&image)],
        vec!["copy", arg(&image), "/nowhere.raw", "--dry-run"],
    ] {
        let document = failed_document(4, &args);
        assert_eq!(document["path"], arg(&image), "{args:?}: {document:#}");
        assert!(document["message"].as_str().unwrap().contains("late.qcow2"), "{document:#}");
    }
}

#[test]
fn a_failure_is_a_document_too() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let (there, missing, no_disk) = (path("there.raw"), path("missing.raw"), path("unknown.raw"));
    std::fs::write(&there, "old").unwrap();
    std::fs::write(&no_disk, vec![1; 1 << 20]).unwrap();
    let broken = broken_image(dir.path());
    let cases: [(i32, &str, Vec<&str>); 9] = [
        (2, "usage", vec!["info"]),
        (2, "usage", vec!["copy", arg(&guest.disk), arg(&missing), "--no-such-option"]),
        (2, "usage", vec!["create", arg(&missing), "4X"]),
        (3, "refused", vec!["copy", arg(&guest.disk), arg(&there)]),
        (3, "unsupported", vec!["info", "nbd+vsock://2/disk"]),
        (4, "corrupt", vec!["info", arg(&broken)]),
        (4, "corrupt", vec!["analyze", arg(&broken)]),
        (5, "io", vec!["info", arg(&missing)]),
        (5, "io", vec!["recover", arg(&missing)]),
    ];
    for (status, kind, args) in cases {
        let document = failed_document(status, &args);
        assert_eq!(document["schema"], "leandisk.error/1", "{args:?}: {document:#}");
        assert_eq!(document["kind"], kind, "{args:?}: {document:#}");
        assert!(document["message"].as_str().unwrap().len() > 10, "{args:?}: {document:#}");
        assert!(document.as_object().unwrap().contains_key("hint"), "{document:#}");
        if status > 2 && kind != "unsupported" {
            let named = document["path"].as_str().unwrap_or_else(|| panic!("{args:?}: {document:#}"));
            assert!(args.contains(&named), "{args:?}: {document:#}");
        }
    }
    // Where there is a document anyhow, it says it.
    for command in ["defrag", "compact"] {
        let document = failed_document(3, &[command, arg(&no_disk)]);
        assert_eq!(document["schema"], format!("leandisk.{command}/1"));
        assert!(document["error"]["message"].as_str().unwrap().contains("unknown.raw"), "{document:#}");
        let copy = path("copy.raw");
        run("cp", &[arg(&guest.disk), arg(&copy)]);
        let document =
            common::document(&format!("leandisk.{command}/1"), &[command, arg(&copy), "--dry-run"]);
        assert_eq!(document["error"], Value::Null);
    }
}
