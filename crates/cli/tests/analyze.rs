//! What `analyze` says of every layer, held against what other programs say.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{arg, document, fail, number, succeed};
use serde_json::Value;
use testkit::{Guest, Inside, as_root, run, scratch};

const SCRIPT: &str = include_str!("scripts/layers.py");

/// Runs `layers.py` as root.
fn layers(args: &[&str]) -> String {
    let output = as_root("python3", &[&["-c", SCRIPT], args].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// An image in which the guest's disk lies in pieces in a shuffled order, and so does the image on the host.
fn scattered(guest: &Guest, format: &str, dir: &Path) -> PathBuf {
    let made = dir.join(format!("made.{format}"));
    if format == "raw" {
        run("cp", &["--sparse=always", arg(&guest.disk), arg(&made)]);
    } else {
        run("qemu-img", &["create", "-q", "-f", format, arg(&made), "64M"]);
        let piece = dir.join("piece");
        let disk = std::fs::read(&guest.disk).unwrap();
        // 37 has no factor in common with the 256 pieces: each comes once.
        let mut commands = Vec::new();
        for number in (0..256usize).map(|step| step * 37 % 256) {
            let bytes = &disk[number << 18..][..1 << 18];
            if bytes.iter().any(|byte| *byte != 0) {
                let path = piece.with_extension(number.to_string());
                std::fs::write(&path, bytes).unwrap();
                commands.push(format!("write -s {} {} 256k", path.display(), number << 18));
            }
        }
        let mut args = vec!["-f", format];
        args.extend(commands.iter().flat_map(|command| ["-c", command.as_str()]));
        args.push(arg(&made));
        run("qemu-io", &args);
    }
    let image = dir.join(format!("disk.{format}"));
    layers(&["scatter", arg(&made), arg(&image)]);
    image
}

/// The lines of `--files` of a disk, by path.
fn listed(image: &Path, format: &str, dir: &Path) -> (Value, BTreeMap<String, Value>) {
    let lines = dir.join("files.jsonl");
    let format = if format == "vpc" { "vhd" } else { format };
    let document = document(
        "leandisk.analyze/1",
        &["analyze", "-f", format, arg(image), "--files", arg(&lines), "--top", "3"],
    );
    let mut files = BTreeMap::new();
    for line in std::fs::read_to_string(lines).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let key = format!("{}{}", line["volume"], line["path"].as_str().unwrap());
        assert!(files.insert(key.clone(), line).is_none(), "{key} comes once");
    }
    (document, files)
}

#[test]
fn the_whole_stack_is_what_other_programs_compose() {
    let guest = Guest::get(Inside::Ext4);
    for format in ["raw", "qcow2", "vmdk", "vdi", "vpc"] {
        let dir = scratch();
        let image = scattered(guest, format, dir.path());
        let (document, files) = listed(&image, format, dir.path());
        let volume_start = guest.volume_start.to_string();
        let composed = layers(&["compose", arg(&guest.disk), &volume_start, format, arg(&image)]);
        let (mut compared, mut in_pieces) = (0, 0);
        for line in composed.lines() {
            let theirs: Value = serde_json::from_str(line).unwrap();
            let key = format!("2{}", theirs["path"].as_str().unwrap());
            // A further name of a file that is listed under its first one.
            let Some(ours) = files.get(&key) else {
                let path = &theirs["path"];
                let is_link =
                    |file: &Value| file["links"].as_array().is_some_and(|links| links.contains(path));
                assert!(files.values().any(is_link), "{format}: {path} is listed");
                continue;
            };
            assert_eq!(ours["fragments"], theirs["extents"], "{format}: {line}");
            assert_eq!(ours["whole_stack_fragments"], theirs["whole_stack"], "{format}: {line}");
            compared += 1;
            in_pieces += u32::from(ours["whole_stack_fragments"].as_u64() > ours["fragments"].as_u64());
        }
        assert!(
            compared > 150 && in_pieces > 0,
            "{format}: {compared} files, {in_pieces} in more pieces below"
        );
        let extents = layers_of_image(&image);
        assert_eq!(number(&document, "/host/extents"), extents, "{format}");
        if format != "raw" {
            assert!(number(&document, "/image/runs") > 10, "{format}: {document:#}");
        }
    }
}

/// What filefrag says of the image.
fn layers_of_image(image: &Path) -> u64 {
    let text = run("filefrag", &[arg(image)]);
    text.split_whitespace().rev().nth(2).unwrap().parse().unwrap()
}
