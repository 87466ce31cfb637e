//! Files that are laid out contiguously: while a disk is copied, and in place.

use std::path::Path;

use super::Measured;
use super::cases::{Case, Verdict, text, time, words};
use super::inputs::{Input, Inputs};
use super::measure::{Around, Contender, Sample};

/// Every case.
pub(super) fn all(program: &Path, inputs: &Inputs) -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in ["ntfs", "ext4"] {
        cases.push(packed_copy(program, inputs, kind));
    }
    cases.push(ext4_in_place(program, inputs));
    cases.push(ntfs_in_place(program, inputs));
    for percent in [80, 95] {
        for kind in ["ntfs", "ext4"] {
            cases.push(aged_in_place(program, inputs, kind, percent));
        }
    }
    cases
}

fn packed_copy(program: &Path, inputs: &Inputs, kind: &str) -> Case {
    let input = inputs.aged_volume(kind, 90);
    let copy = |layout: &str| {
        let target = inputs.target(&format!("{layout}.raw"));
        let (program, source, to) = (text(program), text(&input.path), text(&target));
        let command = words(&[&[
            &program, "copy", &source, &to, "-f", "raw", "-O", "raw", "--layout", layout, "--json",
        ]]);
        Contender {
            name: format!("leandisk --layout {layout}"),
            command,
            target,
            as_root: false,
            around: None,
        }
    };
    let is_ntfs = kind == "ntfs";
    Case {
        name: format!("copy of aged {kind} that packs"),
        contenders: vec![copy("packed"), copy("keep")],
        input,
        judge: Box::new(move |results| {
            let mut verdicts = vec![time("time to that of --layout keep", results, &results[1..2], 1.15)];
            // Groups of ext4 keep their bitmaps and inodes where they are.
            if is_ntfs {
                verdicts.push(packed_free_space_is_whole(&results[0]));
            }
            verdicts
        }),
    }
}

fn packed_free_space_is_whole(ours: &Measured) -> Verdict {
    let volume = &ours.last().printed["volumes"][0];
    let largest = volume["layout"]["after"]["largest_free_extent_bytes"].as_f64().unwrap_or(f64::NAN);
    let free = volume["free_bytes"].as_f64().unwrap_or(f64::NAN);
    Verdict { what: "share of free space not in one piece", value: 1.0 - largest / free, bar: 0.05 }
}

fn ext4_in_place(program: &Path, inputs: &Inputs) -> Case {
    let input = inputs.aged_volume("ext4", 90);
    Case {
        name: "aged ext4 in place".into(),
        contenders: vec![defrag(program, inputs, &input, "files"), e4defrag(program, inputs, &input)],
        input,
        judge: Box::new(|results| {
            let [ours, theirs] = [&results[0], &results[1]];
            let ratio = |of: &dyn Fn(&Measured) -> f64| of(ours) / of(theirs).max(1.0);
            let written = |result: &Measured| result.median(|sample| sample.device_written_bytes);
            vec![
                time("time to that of e4defrag", results, &results[1..2], 0.5),
                Verdict { what: "bytes written to those of e4defrag", value: ratio(&written), bar: 1.15 },
                Verdict {
                    what: "fragments to those of e4defrag",
                    value: ratio(&|it| volume(it, "fragments")),
                    bar: 1.0,
                },
                Verdict {
                    what: "free extents to those of e4defrag",
                    value: ratio(&|it| volume(it, "free_extents")),
                    bar: 1.0,
                },
                nothing_left(ours),
                no_more_moved_than_fragmented(ours),
            ]
            .into_iter()
            .chain(as_predicted(ours))
            .collect()
        }),
    }
}

fn ntfs_in_place(program: &Path, inputs: &Inputs) -> Case {
    let input = inputs.fragmented_ntfs();
    Case {
        name: "fragmented NTFS in place".into(),
        contenders: std::iter::once(defrag(program, inputs, &input, "files"))
            .chain(linux_defragger(program, inputs, &input))
            .collect(),
        input,
        judge: Box::new(|results| {
            let mut verdicts = vec![
                nothing_left(&results[0]),
                little_written(&results[0]),
                no_more_moved_than_fragmented(&results[0]),
            ];
            verdicts.extend(as_predicted(&results[0]));
            if results.len() > 1 {
                verdicts.push(time("time to that of Linux Defragger", results, &results[1..], 0.2));
            }
            verdicts
        }),
    }
}

fn aged_in_place(program: &Path, inputs: &Inputs, kind: &str, percent: u32) -> Case {
    let input = inputs.aged_volume(kind, percent);
    Case {
        name: format!("aged {kind}, {percent} % full, in place"),
        contenders: vec![defrag(program, inputs, &input, "files"), defrag(program, inputs, &input, "free")],
        input,
        judge: Box::new(|results| {
            vec![
                nothing_left(&results[0]),
                no_more_moved_than_fragmented(&results[0]),
                free_space_is_whole(&results[1]),
            ]
            .into_iter()
            .chain(results.iter().flat_map(as_predicted))
            .collect()
        }),
    }
}

/// Leandisk on a copy of the disk.
fn defrag(program: &Path, inputs: &Inputs, input: &Input, goal: &str) -> Contender {
    let target = inputs.target("leandisk.raw");
    let (program, to) = (text(program), text(&target));
    let command = words(&[&[&program, "defrag", &to, "-f", "raw", "--goal", goal, "--json"]]);
    let around = Some(planned(on_a_copy(&program, input), &program, "raw", goal));
    Contender { name: format!("leandisk --goal {goal}"), command, target, as_root: true, around }
}

/// Asks what a change would do before it is made, and puts the answer beside what is found afterwards, as `planned`.
pub(super) fn planned(around: Around, program: &str, format: &str, goal: &str) -> Around {
    let join = "import json, sys; found, planned = (json.load(open(path)) for path in sys.argv[1:]); \
        print(json.dumps({**found, \"planned\": planned}))";
    let Around { before, after, reading_by } = around;
    Around {
        before: format!(
            "{before}; '{program}' defrag \"$1\" -f {format} --goal {goal} --dry-run --json > \"$1.planned\""
        ),
        after: format!("{{ {after}; }} > \"$1.found\"; python3 -c '{join}' \"$1.found\" \"$1.planned\""),
        reading_by,
    }
}

/// How far the dry run was from what came of it: in fragments, and in bytes moved.
pub(super) fn as_predicted(result: &Measured) -> [Verdict; 2] {
    let of = |document: &serde_json::Value, pointer: &str| {
        document.pointer(pointer).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN)
    };
    let apart = |sample: &Sample, pointer: &str| {
        let (planned, done) = (of(&sample.found["planned"], pointer), of(&sample.printed, pointer));
        (planned - done).abs() / done.max(1.0)
    };
    let most = |pointer: &'static str| result.least_and_most(|sample| apart(sample, pointer)).1;
    [
        Verdict { what: "fragments, off the dry run's", value: most("/volumes/0/after/fragments"), bar: 0.0 },
        Verdict { what: "bytes moved, off the dry run's", value: most("/volumes/0/moved_bytes"), bar: 0.05 },
    ]
}

pub(super) fn e4defrag(program: &Path, inputs: &Inputs, input: &Input) -> Contender {
    let target = inputs.target("e4defrag.raw");
    let mount = "mnt=$1.mnt; mkdir -p \"$mnt\"; mount -o loop \"$1\" \"$mnt\"";
    let mut around = on_a_copy(&text(program), input);
    around.before = format!("{}; {mount}", around.before);
    // It works on what is mounted.
    around.reading_by = None;
    around.after = format!("umount \"$1.mnt\"; rmdir \"$1.mnt\"; {}", around.after);
    let script = "set -eu; PATH=$PATH:/usr/sbin:/sbin; e4defrag \"$1.mnt\" > /dev/null; sync -f \"$1.mnt\"";
    let command = words(&[&["bash", "-c", script, "e4defrag", &text(&target)]]);
    Contender { name: "e4defrag".into(), command, target, as_root: true, around: Some(around) }
}

/// Linux Defragger, which no distribution has, if `LINUX_DEFRAGGER` says where its sources are.
fn linux_defragger(program: &Path, inputs: &Inputs, input: &Input) -> Option<Contender> {
    let sources = std::env::var_os("LINUX_DEFRAGGER")?;
    let engine = text(&Path::new(&sources).join("gui/ntfs_engine.py"));
    let target = inputs.target("linux-defragger.raw");
    let to = text(&target);
    let script = "set -eu; rm -f \"$2.journal\"; \
        python3 \"$1\" defrag \"$2\" --write --confirm \"$2\" --journal \"$2.journal\" > /dev/null; rm -f \"$2.journal\"";
    let command = words(&[&["bash", "-c", script, "linux-defragger", &engine, &to]]);
    // It models nothing that could stand beside what is measured.
    let around = Around { reading_by: None, ..on_a_copy(&text(program), input) };
    Some(Contender { name: "Linux Defragger".into(), command, target, as_root: true, around: Some(around) })
}

/// Copies the disk before; afterwards has it checked, and says what it looks like.
pub(super) fn on_a_copy(program: &str, input: &Input) -> Around {
    let source = text(&input.path);
    Around {
        reading_by: Some(program.to_owned()),
        before: format!("cp --sparse=always '{source}' \"$1\"; chmod u+w \"$1\"; sync"),
        after: format!(
            "if ntfsinfo -m \"$1\" > /dev/null 2>&1; then ntfsfix -n \"$1\" > /dev/null; \
             ntfsresize --info --force --no-progress-bar \"$1\" > /dev/null; \
             else e2fsck -fn \"$1\" > /dev/null 2>&1; fi; '{program}' analyze -f raw --json \"$1\""
        ),
    }
}

/// A field of the first volume as `analyze` finds it after the last run.
pub(super) fn volume(result: &Measured, field: &str) -> f64 {
    result.last().found["volumes"][0][field].as_f64().unwrap_or(f64::NAN)
}

/// Fragmented files that could have moved.
pub(super) fn nothing_left(ours: &Measured) -> Verdict {
    let left = ours.last().printed["volumes"][0]["left"].as_f64().unwrap_or(f64::NAN);
    let fragmented = volume(ours, "fragmented_files");
    Verdict { what: "fragmented files left", value: left.max(fragmented), bar: 0.0 }
}

/// What the device writes, but for 16 MiB, to what moved.
fn little_written(ours: &Measured) -> Verdict {
    let moved = ours.last().printed["volumes"][0]["moved_bytes"].as_f64().unwrap_or(f64::NAN);
    let written = ours.median(|sample| sample.device_written_bytes);
    let spared = f64::from(16 << 20);
    Verdict {
        what: "device writes but for 16 MiB to bytes moved",
        value: (written - spared).max(0.0) / moved,
        bar: 1.3,
    }
}

/// What of the movable free space is not in the largest free extent.
fn free_space_is_whole(ours: &Measured) -> Verdict {
    let movable = ours.last().printed["volumes"][0]["movable_free_bytes"].as_f64().unwrap_or(f64::NAN);
    let largest = volume(ours, "largest_free_extent_bytes");
    Verdict {
        what: "share of movable free space not in one piece",
        value: 1.0 - largest / movable,
        bar: 0.05,
    }
}

fn no_more_moved_than_fragmented(ours: &Measured) -> Verdict {
    let work = &ours.last().printed["volumes"][0];
    let moved = work["moved_bytes"].as_f64().unwrap_or(f64::NAN);
    let fragmented = work["before"]["fragmented_bytes"].as_f64().unwrap_or(f64::NAN);
    Verdict { what: "bytes moved to those of fragmented files", value: moved / fragmented, bar: 1.0 }
}
