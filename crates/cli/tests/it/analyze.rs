//! What `analyze` says of every layer, held against what other programs say.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::{SOURCES, arg, document, fail, number, succeed};
use serde_json::Value;
use testkit::{AgedHost, Guest, Inside, as_root, run, scratch};

const SCRIPT: &str = include_str!("../scripts/layers.py");

/// Runs `layers.py` as root.
fn layers(args: &[&str]) -> String {
    let output = as_root("python3", &[&["-c", SCRIPT], args].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// An image on `host` in which the guest's disk lies in pieces in a shuffled order, and so does the image there.
fn scattered(guest: &Guest, format: &str, dir: &Path, host: &Path) -> PathBuf {
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
    let image = host.join(format!("disk.{format}"));
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
    // Where much is free in one piece, ext4 puts what comes in any order in its place.
    let aged = AgedHost::new("ext4", 256 << 20);
    for format in ["raw", "qcow2", "vmdk", "vdi", "vpc"] {
        let (dir, host) = (scratch(), aged.mount());
        let image = scattered(guest, format, dir.path(), host.path());
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

#[test]
fn the_document_adds_up_to_the_lines_and_to_the_mounted_volume() {
    for (guest, volume) in [(Guest::get(Inside::Ntfs), 1), (Guest::get(Inside::Ext4), 2)] {
        let dir = scratch();
        let image = SOURCES[10].make(&guest.disk, dir.path());
        let before = std::fs::read(&image).unwrap();
        let (document, files) = listed(&image, "qcow2", dir.path());
        assert_eq!(std::fs::read(&image).unwrap(), before, "nothing was changed");

        let of_kind = |kind: &str| {
            let wanted = |line: &&Value| {
                line["kind"] == kind && line["volume"] == volume && line["named_stream"] != true
            };
            files.values().filter(wanted).cloned().collect::<Vec<_>>()
        };
        let at = |field: &str| number(&document, &format!("/volumes/{}/{field}", volume - 1));
        let sum = |lines: &[Value], field: &str| lines.iter().map(|line| number(line, field)).sum::<u64>();
        let regular = of_kind("file");
        assert_eq!(at("files"), regular.len() as u64);
        assert_eq!(at("fragments"), sum(&regular, "/fragments"));
        assert_eq!(at("whole_stack_fragments"), sum(&regular, "/whole_stack_fragments"));
        let fragmented = regular.iter().filter(|line| number(line, "/fragments") > 1).count();
        assert_eq!(at("fragmented_files"), fragmented as u64);
        assert!(fragmented > 0, "the guest has fragmented files");
        assert_eq!(at("directories"), of_kind("directory").len() as u64);
        let all: Vec<_> = files.values().cloned().collect();
        let is_named = |line: &&Value| line["named_stream"] == true && line["kind"] != "metadata";
        let named: Vec<_> = all.iter().filter(is_named).cloned().collect();
        assert_eq!(at("stream_fragments"), sum(&named, "/fragments"));
        assert_eq!(number(&document, "/whole_stack/extents"), sum(&all, "/whole_stack_fragments"));
        for line in &all {
            let extents = line["extents"].as_array().unwrap();
            assert!(number(line, "/fragments") <= extents.len() as u64, "{line}");
        }

        // The mounted volume has as many of each, and they are as long.
        let kind = if guest.inside == Inside::Ntfs { "ntfs-3g" } else { "ext4" };
        let script = "set -eu; mnt=$(mktemp -d); trap 'cd /; umount \"$mnt\"; rmdir \"$mnt\"' EXIT; \
                      mount -t \"$1\" -o \"ro,loop,offset=$2\" \"$3\" \"$mnt\"; cd \"$mnt\"; \
                      find . -printf '%y %s %P\\n'";
        let start = guest.volume_start.to_string();
        let output = as_root("bash", &["-c", script, "find", kind, &start, arg(&guest.disk)]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut compared = 0;
        for found in String::from_utf8(output.stdout).unwrap().lines() {
            let mut words = found.splitn(3, ' ');
            let (kind, size, path) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            if kind != "f" {
                continue;
            }
            let path = format!("/{path}");
            let has = |line: &&Value| {
                line["volume"] == volume
                    && (line["path"] == path.as_str()
                        || line["links"].as_array().is_some_and(|links| links.contains(&path.clone().into())))
            };
            let line = all.iter().find(has).unwrap_or_else(|| panic!("{path} is listed"));
            assert_eq!(number(line, "/size_bytes"), size.parse::<u64>().unwrap(), "{line}");
            compared += 1;
        }
        // A hard link is a second name of a file that is counted once.
        assert_eq!(compared, at("files") + 1);

        let free = number(&document, &format!("/volumes/{}/free_bytes", volume - 1));
        let bins = document["volumes"][volume - 1]["free_extents_by_size"].as_array().unwrap();
        assert_eq!(sum(bins, "/bytes"), free);
        assert_eq!(sum(bins, "/extents"), at("free_extents"));
        assert!(at("largest_free_extent_bytes") <= free);
    }
}

#[test]
fn what_compacting_would_free_is_what_a_copy_leaves_out() {
    // A fixed image holds all that is free and swapped, in clusters as the guest's.
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let full = dir.path().join("full.raw");
    run("cp", &["--sparse=never", arg(&guest.disk), arg(&full)]);
    let analysis = document("leandisk.analyze/1", &["analyze", arg(&full), "--zeros"]);
    let target = dir.path().join("copy.raw");
    let copied = document("leandisk.copy/1", &["copy", arg(&full), arg(&target), "--dry-run"]);
    let avoided = number(&copied, "/avoided/free_bytes") + number(&copied, "/avoided/swap_bytes");
    let reclaimable = number(&analysis, "/reclaimable_bytes");
    let partly = number(&analysis, "/image/partly_used_units_bytes");
    assert!(avoided > 16 << 20, "{copied:#}");
    assert_eq!(reclaimable + partly, avoided);
    // Written zeros of 2,000,000 bytes, and what is zero in metadata.
    let zeros = number(&analysis, "/image/zero_bytes");
    assert!((1_990_000..20_000_000).contains(&zeros), "{zeros}");
    let unseen = document("leandisk.analyze/1", &["analyze", arg(&full)]);
    assert_eq!(unseen["image"]["zero_bytes"], Value::Null);
}

#[test]
fn names_that_a_guest_can_hold_are_harmless() {
    let dir = scratch();
    let disk = dir.path().join("names.raw");
    let script = r#"
        set -eu
        truncate -s 16M "$1"
        mkfs.ext4 -qF "$1"
        mnt=$(mktemp -d)
        # It ends when nobody has it among mounts of his own any more.
        trap 'umount "$mnt"; rmdir "$mnt"; for _ in {1..1500}; do [ -n "$(losetup -j "$1")" ] || break; sleep 0.02; done' EXIT
        mount -o loop "$1" "$mnt"
        cd "$mnt"
        n=0
        for name in $'\e[31mred\e]0;title\a' '<script>alert(1)' $'line\nfeed' $'\xff\xfe bad' $'\u202egnp.exe' \
                    '"quotes"' "it's" '&amp;' '--option' '$(id)' '`id`'; do
            n=$((n + 1))
            # In pieces, so that each is among the worst.
            for turn in 1 2 3 4; do
                head -c 5000 /dev/urandom >> "./$name"
                head -c 5000 /dev/urandom >> ./other
                sync
            done
        done
        cd /
    "#;
    let output = as_root("bash", &["-c", script, "names", arg(&disk)]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = dir.path().join("files.jsonl");
    let page = dir.path().join("report.html");
    let text = succeed(&[
        "analyze",
        "--full",
        "-f",
        "raw",
        arg(&disk),
        "--files",
        arg(&lines),
        "--html",
        arg(&page),
        "--top",
        "50",
    ]);
    let hidden = |c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c);
    assert!(!text.contains(hidden), "{text:?}");
    assert!(text.contains("\\u{1b}[31mred") && text.contains("line\\u{a}feed"), "{text}");
    let mut paths = Vec::new();
    let mut bad = None;
    for line in std::fs::read_to_string(&lines).unwrap().lines() {
        assert!(!line.contains(hidden_in_json), "{line:?}");
        let line: Value = serde_json::from_str(line).unwrap();
        if !line["path_hex"].is_null() {
            bad = Some(line["path_hex"].as_str().unwrap().to_owned());
        }
        paths.push(line["path"].as_str().unwrap().to_owned());
    }
    for path in ["/\u{1b}[31mred\u{1b}]0;title\u{7}", "/<script>alert(1)", "/line\nfeed", "/\u{202e}gnp.exe"]
    {
        assert!(paths.iter().any(|it| it == path), "{path:?} in {paths:?}");
    }
    let page = std::fs::read_to_string(&page).unwrap();
    check_page(&page);
    assert!(page.contains("/&lt;script&gt;alert(1)"), "the name is there as text");
    // "/" and the bytes of the name.
    assert_eq!(bad.as_deref(), Some("2ffffe20626164"));
}

/// Panics unless the page stands alone and holds no control character and no markup of a guest's.
fn check_page(page: &str) {
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("default-src 'none'"));
    // A name of XML, which nobody asks the network for.
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for markup in ["<script>alert", "http://", "https://", "javascript:"] {
        assert!(!page.contains(markup), "{markup}");
    }
    assert!(!page.contains(|c: char| c.is_control() && c != '\n'), "control characters");
}

/// Control characters are escaped in JSON.
fn hidden_in_json(c: char) -> bool {
    c.is_control()
}

#[test]
fn a_report_is_never_written_over_the_disk() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let disk = dir.path().join("disk.raw");
    run("cp", &[arg(&guest.disk), arg(&disk)]);
    let link = dir.path().join("link.jsonl");
    std::fs::hard_link(&disk, &link).unwrap();
    let (svg, html) = (dir.path().join("link.svg"), dir.path().join("link.html"));
    std::fs::hard_link(&disk, &svg).unwrap();
    std::fs::hard_link(&disk, &html).unwrap();
    for args in [
        ["analyze", arg(&disk), "--files", arg(&disk)],
        ["analyze", arg(&disk), "--files", arg(&link)],
        ["analyze", arg(&disk), "--html", arg(&html)],
        ["map", arg(&disk), "-o", arg(&svg)],
    ] {
        let message = fail(3, &args);
        assert!(message.contains("part of the disk"), "{message}");
    }
    fail(2, &["map", arg(&disk), "-o", arg(&dir.path().join("map.png"))]);
    run("cmp", &[arg(&guest.disk), arg(&disk)]);
}

#[test]
fn volumes_in_doubt_are_analysed_and_marked() {
    let dir = scratch();
    // A snapshot of a running guest: its journal is replayed in memory.
    let running = Guest::get(Inside::RunningExt4);
    let pending = document("leandisk.analyze/1", &["analyze", arg(&running.disk)]);
    assert_eq!(pending["volumes"][1]["state"], "needs-recovery");
    assert!(number(&pending, "/volumes/1/files") > 100);

    // Marked dirty: still listed, but nothing in it is said to be reclaimable.
    let guest = Guest::get(Inside::Ntfs);
    let disk = dir.path().join("dirty.raw");
    run("cp", &["--sparse=never", arg(&guest.disk), arg(&disk)]);
    let clean = document("leandisk.analyze/1", &["analyze", arg(&disk)]);
    let start = guest.volume_start.to_string();
    run("python3", &["-c", include_str!("../scripts/mark_dirty.py"), arg(&disk), &start]);
    let dirty = document("leandisk.analyze/1", &["analyze", arg(&disk)]);
    assert_eq!(dirty["volumes"][0]["state"], "dirty");
    assert!(dirty["volumes"][0]["reason"].as_str().unwrap().contains("dirty"));
    for field in ["files", "directories", "fragments", "free_extents"] {
        assert_eq!(dirty["volumes"][0][field], clean["volumes"][0][field], "{field}");
    }
    assert!(number(&clean, "/reclaimable_bytes") > 0);
    assert_eq!(number(&dirty, "/reclaimable_bytes"), 0);
}

#[test]
fn advice_knows_clones_snapshots_and_what_is_not_worth_it() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let advice_of = |disk: &Path, more: &[&str]| {
        let document = document("leandisk.analyze/1", &[&["analyze", arg(disk)], more].concat());
        let advice = document["advice"].as_array().unwrap().clone();
        let mut actions: Vec<_> = advice.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
        actions.sort_unstable();
        assert_eq!(actions, ["compact", "copy --layout packed", "defrag", "nothing"]);
        let first = &advice[0];
        assert_eq!(first["worth_it"], true, "{first:#}");
        for entry in &advice {
            assert!(entry["because"].as_str().unwrap().len() > 20, "{entry:#}");
        }
        advice
    };
    let about = |advice: &[Value], action: &str| {
        advice.iter().find(|entry| entry["action"] == action).unwrap().clone()
    };

    // A full image: what is free and swapped can be given back.
    let full = dir.path().join("full.raw");
    run("cp", &["--sparse=never", arg(&guest.disk), arg(&full)]);
    let advice = advice_of(&full, &["--device", "nvme"]);
    let compact = about(&advice, "compact");
    assert!(number(&compact, "/gain/bytes") > 16 << 20, "{compact:#}");
    assert_eq!(compact["gain"]["device"], "nvme");
    // So little is not worth the trouble.
    assert_eq!(advice[0]["action"], "nothing");

    // One of a fixed size, which does not shrink.
    let fixed = SOURCES[1].make(&guest.disk, dir.path());
    let compact = about(&advice_of(&fixed, &[]), "compact");
    assert_eq!(compact["refused"], true);
    assert!(compact["because"].as_str().unwrap().contains("fixed size"), "{compact:#}");

    // A linked clone: nothing is to be moved in it.
    let base = dir.path().join("base.qcow2");
    run("qemu-img", &["convert", "-O", "qcow2", arg(&guest.disk), arg(&base)]);
    let clone = dir.path().join("clone.qcow2");
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-b", arg(&base), "-F", "qcow2", arg(&clone)]);
    let defrag = about(&advice_of(&clone, &[]), "defrag");
    assert_eq!(defrag["refused"], true);
    assert!(defrag["because"].as_str().unwrap().contains("base"), "{defrag:#}");

    // A snapshot in it: neither.
    run("qemu-img", &["snapshot", "-c", "before", arg(&base)]);
    assert_eq!(about(&advice_of(&base, &[]), "defrag")["refused"], true);

    // An empty disk: nothing to do.
    let empty = dir.path().join("empty.raw");
    run("truncate", &["-s", "64M", arg(&empty)]);
    assert_eq!(advice_of(&empty, &["-f", "raw"])[0]["action"], "nothing");
}

#[test]
fn a_trace_costs_what_its_requests_are() {
    let guest = Guest::get(Inside::Ext4);
    let dir = scratch();
    let trace = dir.path().join("trace");
    // The first MiB, in a request that the device takes at once; 4 KiB of it again.
    std::fs::write(&trace, "# offset length\n0 65536\n\n0,4096,read\n").unwrap();
    let full = dir.path().join("full.raw");
    run("cp", &["--sparse=never", arg(&guest.disk), arg(&full)]);
    let document = document("leandisk.analyze/1", &["analyze", arg(&full), "--trace", arg(&trace)]);
    assert_eq!(number(&document, "/trace/read_bytes"), 65536 + 4096);
    assert!(number(&document, "/trace/requests") >= number(&document, "/trace/unfragmented_requests"));
    assert_eq!(number(&document, "/trace/unfragmented_requests"), 2);
    assert!(document["trace"]["model_seconds"].as_f64().unwrap() > 0.0);
    std::fs::write(&trace, "12 twelve\n").unwrap();
    let message = fail(2, &["analyze", arg(&full), "--trace", arg(&trace)]);
    assert!(message.contains("line 1"), "{message}");
}

#[test]
fn maps_are_drawn_of_every_kind_of_disk() {
    let dir = scratch();
    for guest in [Guest::get(Inside::Ntfs), Guest::get(Inside::Ext4)] {
        // Raw, a fixed VHD, two files, compressed clusters.
        for kind in [&SOURCES[0], &SOURCES[1], &SOURCES[7], &SOURCES[13]] {
            let image = kind.make(&guest.disk, dir.path());
            let (svg, html) = (dir.path().join("map.svg"), dir.path().join("map.html"));
            succeed(&["map", arg(&image), "-o", arg(&svg), "--force"]);
            run("xmllint", &["--noout", arg(&svg)]);
            let picture = std::fs::read_to_string(&svg).unwrap();
            for word in ["guest", "container", "host", "metadata", "fragmented files"] {
                assert!(picture.contains(word), "{}: {word}", kind.name);
            }
            assert!(picture.len() < 400_000, "{}", picture.len());
            succeed(&["map", arg(&image), "-o", arg(&html), "--force"]);
            check_page(&std::fs::read_to_string(&html).unwrap());
        }
    }
}
