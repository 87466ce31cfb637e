//! Disks through pipes: what comes out is what a file would have had, in order and in little memory; and nothing is left of what ends early.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use testkit::{run, scratch};

use crate::common::{SOURCES, arg, assert_only, assert_same_bytes, leandisk, number, program, succeed};
use crate::nbd_servers::disk;

/// Runs `leandisk ARGS | cat > TO`, so that standard output is a pipe.
fn pipe_to(args: &[&str], to: &Path) -> Output {
    let mut copy = leandisk().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let out = copy.stdout.take().unwrap();
    let cat = Command::new("cat").stdin(out).stdout(File::create(to).unwrap()).status().unwrap();
    assert!(cat.success());
    copy.wait_with_output().unwrap()
}

/// Runs the program with this at its standard input.
fn feed(bytes: &[u8], args: &[&str]) -> Output {
    let mut copy = leandisk()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Who refuses at once reads nothing.
    let _ = copy.stdin.take().unwrap().write_all(bytes);
    copy.wait_with_output().unwrap()
}

#[track_caller]
fn assert_status(output: &Output, status: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn disks_of_every_format_come_out_as_they_are_in_files() {
    let dir = scratch();
    let raw = disk(dir.path());
    // Data that turns out to be zeros has its place all the same.
    File::options().write(true).open(&raw).unwrap().write_all_at(&[0; 3 << 20], 20 << 20).unwrap();
    let (expected, out) = (dir.path().join("expected.raw"), dir.path().join("out"));
    let outputs: [(&[&str], &str); 5] = [
        (&["-O", "raw"], "raw"),
        (&["-O", "qcow2"], "qcow2"),
        (&["-O", "qcow2", "-o", "cluster_size=4096"], "qcow2"),
        (&["-O", "qcow2", "-o", "cluster_size=2M"], "qcow2"),
        (&["-O", "vmdk"], "vmdk"),
    ];
    for (index, kind) in SOURCES.iter().enumerate() {
        let folder = dir.path().join(kind.name);
        std::fs::create_dir(&folder).unwrap();
        let image = kind.make(&raw, &folder);
        succeed(&["copy", "-f", kind.format, "-O", "raw", "--force", arg(&image), arg(&expected)]);
        // All of them from the first, each from one of the others at the least.
        let chosen = if index == 0 { &outputs[..] } else { &outputs[index % 5..][..1] };
        for (options, format) in chosen {
            let from = ["copy", "--confine", "always", "-f", kind.format, arg(&image), "-"];
            assert_status(&pipe_to(&[&from, *options].concat(), &out), 0);
            if *format != "raw" {
                run("qemu-img", &["check", "-q", "-f", format, arg(&out)]);
            }
            run("qemu-img", &["compare", "-q", "-f", "raw", "-F", format, arg(&expected), arg(&out)]);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn an_empty_disk_and_an_odd_one_come_out_too() {
    let dir = scratch();
    let (source, out) = (dir.path().join("source.raw"), dir.path().join("out"));
    for (len_bytes, data) in [(0, 0), (64 << 20, 0), ((3 << 20) + 512, 512), ((600 << 20) + 7, 65536 + 7)] {
        let file = File::create(&source).unwrap();
        file.set_len(len_bytes).unwrap();
        file.write_all_at(&vec![9; data], len_bytes - data as u64).unwrap();
        drop(file);
        // A VMDK has one sector at the least.
        for format in ["raw", "qcow2", "vmdk"].into_iter().filter(|format| len_bytes > 0 || *format != "vmdk")
        {
            assert_status(&pipe_to(&["copy", "-f", "raw", arg(&source), "-", "-O", format], &out), 0);
            if format == "raw" {
                assert_same_bytes(&source, &out);
                continue;
            }
            run("qemu-img", &["check", "-q", "-f", format, arg(&out)]);
            // Both count whole sectors.
            run("qemu-img", &["compare", "-q", "-f", "raw", "-F", format, arg(&source), arg(&out)]);
        }
    }
}

#[test]
fn what_comes_in_is_what_a_file_would_be() {
    let dir = scratch();
    let raw = disk(dir.path());
    let (expected, stream) = (dir.path().join("expected.raw"), dir.path().join("stream"));
    succeed(&["copy", arg(&raw), arg(&expected)]);
    succeed(&["copy", "-O", "vmdk", "-o", "subformat=streamOptimized", arg(&raw), arg(&stream)]);
    for (format, source) in [("raw", &raw), ("vmdk", &stream)] {
        for (name, qemu_format) in [("target.raw", "raw"), ("target.qcow2", "qcow2"), ("target.vhdx", "vhdx")]
        {
            let target = dir.path().join(name);
            let bytes = std::fs::read(source).unwrap();
            let args = ["copy", "--confine", "always", "-", arg(&target), "-f", format, "--json"];
            let done = feed(&bytes, &args);
            assert_status(&done, 0);
            let document: Value = serde_json::from_slice(&done.stdout).unwrap();
            assert_eq!(document["source"]["path"], "-");
            assert_eq!(document["volumes"][0]["mode"], "used-only");
            run("qemu-img", &["compare", "-q", "-f", "raw", "-F", qemu_format, arg(&expected), arg(&target)]);
            std::fs::remove_file(&target).unwrap();
        }
    }
    assert_only(dir.path(), &["disk.raw", "expected.raw", "file", "stream"]);
}

#[test]
fn one_program_sends_and_the_other_receives() {
    let dir = scratch();
    let raw = disk(dir.path());
    let (expected, target) = (dir.path().join("expected.raw"), dir.path().join("target.qcow2"));
    succeed(&["copy", arg(&raw), arg(&expected)]);
    for format in ["raw", "vmdk"] {
        let send = ["copy", arg(&raw), "-", "-O", format];
        let mut sender = leandisk().args(send).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let receive = ["copy", "-", arg(&target), "--force", "-f", format];
        let receiver = leandisk().args(receive).stdin(sender.stdout.take().unwrap()).output().unwrap();
        assert_status(&receiver, 0);
        assert!(sender.wait().unwrap().success());
        run("qemu-img", &["compare", "-q", "-f", "raw", "-F", "qcow2", arg(&expected), arg(&target)]);
    }
}

#[test]
fn a_stream_that_ends_early_leaves_nothing() {
    let dir = scratch();
    let raw = disk(dir.path());
    let (stream, target) = (dir.path().join("stream"), dir.path().join("target.qcow2"));
    succeed(&["copy", "-O", "vmdk", "-o", "subformat=streamOptimized", arg(&raw), arg(&stream)]);
    let bytes = std::fs::read(&stream).unwrap();
    // The very last sector is a marker, without which nothing is missing.
    for len in [0, 100, 512, bytes.len() / 2, bytes.len() - 1536, bytes.len() - 1024] {
        let done = feed(&bytes[..len], &["copy", "-", arg(&target), "-f", "vmdk"]);
        assert!(matches!(done.status.code(), Some(4 | 5)), "{len}: {done:?}");
        assert_only(dir.path(), &["disk.raw", "file", "stream"]);
    }
}

#[test]
fn a_pipe_that_is_closed_is_an_error() {
    let dir = scratch();
    let raw = disk(dir.path());
    for format in ["raw", "qcow2", "vmdk"] {
        let args = ["copy", "--keep-free", arg(&raw), "-", "-O", format];
        let mut copy = leandisk().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        copy.stdout.take().unwrap().read_exact(&mut [0; 100]).unwrap();
        let said = assert_status(&copy.wait_with_output().unwrap(), 5);
        assert!(said.contains("standard output"), "{said}");
    }
}

#[test]
fn what_makes_no_sense_is_said_before_anything_is_read() {
    let dir = scratch();
    let raw = disk(dir.path());
    let (target, out) = (dir.path().join("target.qcow2"), dir.path().join("out"));
    let refused = |args: &[&str]| assert_status(&pipe_to(args, &out), 2);
    let said = refused(&["copy", arg(&raw), "-"]);
    assert!(said.contains("-O raw, qcow2 or vmdk"), "{said}");
    for wrong in ["vhd", "vhdx", "vdi"] {
        refused(&["copy", arg(&raw), "-", "-O", wrong]);
    }
    for wrong in [&["--verify"][..], &["--resume"], &["--compress"], &["--provision", "eager"]] {
        refused(&[&["copy", arg(&raw), "-", "-O", "qcow2"], wrong].concat());
    }
    refused(&["copy", arg(&raw), "-", "-O", "vmdk", "-o", "subformat=monolithicSparse"]);
    let error = pipe_to(&["copy", arg(&raw), "-", "--json"], &out);
    let said = assert_status(&error, 2);
    assert!(said.contains("\"schema\"") && std::fs::read(&out).unwrap().is_empty(), "{said}");
    std::fs::remove_file(&out).unwrap();

    let said = assert_status(&feed(b"", &["copy", "-", arg(&target)]), 2);
    assert!(said.contains("-f raw"), "{said}");
    assert_status(&feed(b"", &["copy", "-", arg(&target), "-f", "qcow2"]), 2);
    assert_status(&feed(b"", &["copy", "-", arg(&target), "-f", "raw", "--resume"]), 2);
    assert_status(&feed(&[1; 512], &["copy", "-", arg(&raw), "-f", "raw"]), 3);
    // `script` gives it a terminal.
    let on_terminal = |command: &str| {
        let command = format!("{} {command}", program());
        Command::new("script").args(["-qec", &command, "/dev/null"]).stdin(Stdio::null()).output().unwrap()
    };
    let done = on_terminal(&format!("copy {} - -O raw", raw.display()));
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    let done = on_terminal(&format!("copy - {} -f raw", target.display()));
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert_only(dir.path(), &["disk.raw", "file"]);
}

#[test]
fn documents_go_to_standard_error_and_memory_stays_small() {
    let dir = scratch();
    let (source, out) = (dir.path().join("source.raw"), dir.path().join("out"));
    let file = File::create(&source).unwrap();
    file.set_len(2 << 40).unwrap();
    for part in 0..100_u64 {
        file.write_all_at(&[part as u8 + 1; 70_000], part * (19 << 30)).unwrap();
    }
    drop(file);
    let peak = dir.path().join("peak");
    let time = ["-f", "%M", "-o", arg(&peak), &program(), "copy", arg(&source), "-", "-O", "qcow2", "--json"];
    let done = Command::new("/usr/bin/time").args(time).stdout(File::create(&out).unwrap()).output().unwrap();
    let said = assert_status(&done, 0);
    let document: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&document["schema"], &document["target"]["path"]), (&"leandisk.copy/1".into(), &"-".into()));
    let out_bytes = std::fs::metadata(&out).unwrap().len();
    assert_eq!(number(&document, "/target/allocated_bytes"), out_bytes);
    assert!(out_bytes < 64 << 20, "only what is used: {out_bytes}");
    run("qemu-img", &["check", "-q", "-f", "qcow2", arg(&out)]);
    let peak: u64 = std::fs::read_to_string(&peak).unwrap().trim().parse().unwrap();
    assert!(peak < 256 << 10, "{peak} KiB");
    let dry = pipe_to(&["copy", "--dry-run", arg(&source), "-", "-O", "qcow2"], &out);
    let said = assert_status(&dry, 0);
    assert!(said.contains("used") && std::fs::read(&out).unwrap().is_empty(), "{said}");
}
