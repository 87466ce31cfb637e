//! QCOW2 against QEMU: what Leandisk reads is what QEMU reads, and what it writes QEMU finds no fault with.

use std::fs;
use std::path::{Path, PathBuf};

use image::{Chain, OpenOptions};
use testkit::{TestFile, TestResolver, check_disk, run};

mod bitmaps;
mod hostile;
mod read;
mod write;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn open(path: &Path) -> Chain {
    Chain::open(TestFile::open(path), OpenOptions::default(), &TestResolver::default()).unwrap()
}

/// The virtual disk as QEMU reads it.
fn contents_by_qemu(path: &Path) -> Vec<u8> {
    let raw = path.with_extension("by-qemu");
    run("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", text(path), text(&raw)]);
    let contents = fs::read(&raw).unwrap();
    fs::remove_file(raw).unwrap();
    contents
}

fn check_against_qemu(path: &Path) {
    let chain = open(path);
    check_disk(&chain, chain.files(), &contents_by_qemu(path));
}

/// Creates an image by QEMU and carries out `commands` of qemu-io.
fn make(dir: &Path, name: &str, options: &str, size: &str, commands: &[&str]) -> PathBuf {
    let path = dir.join(name);
    let mut args = vec!["create", "-q", "-f", "qcow2"];
    if !options.is_empty() {
        args.extend(["-o", options]);
    }
    args.extend([text(&path), size]);
    run("qemu-img", &args);
    qemu_io(&path, commands);
    path
}

fn qemu_io(path: &Path, commands: &[&str]) {
    if commands.is_empty() {
        return;
    }
    let mut args = vec!["-f", "qcow2", "-d", "unmap"];
    args.extend(commands.iter().flat_map(|command| ["-c", *command]));
    args.push(text(path));
    let said = run("qemu-io", &args);
    assert!(!said.contains("failed"), "{said}");
}

fn compress_by_qemu(raw: &Path, options: &str, path: &Path) {
    run("qemu-img", &["convert", "-c", "-f", "raw", "-O", "qcow2", "-o", options, text(raw), text(path)]);
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Numbers without meaning, the same each time.
fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut next = numbers(seed);
    std::iter::repeat_with(|| next().to_le_bytes()[0]).take(len).collect()
}

/// Text, noise, zeros and runs of single bytes, in stretches of many lengths.
fn mixed_contents(len: usize) -> Vec<u8> {
    let mut next = numbers(7);
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let stretch = usize::try_from(next() % 200_000).unwrap().min(len - bytes.len());
        match next() % 4 {
            0 => bytes.extend(std::iter::repeat_n(0, stretch)),
            1 => bytes.extend(noise(next(), stretch)),
            2 => {
                let letter = || b"words and words "[usize::try_from(next() % 16).unwrap()];
                bytes.extend(std::iter::repeat_with(letter).take(stretch));
            }
            _ => bytes.extend((0..stretch).map(|at| (at / 64).to_le_bytes()[0])),
        }
    }
    bytes
}
