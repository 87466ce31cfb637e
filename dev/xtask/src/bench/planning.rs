//! What the planner of changes in place promises: how much moves, in how many batches, and that the dry run said so.

use std::path::Path;

use super::Measured;
use super::cases::{Case, Verdict, text, words};
use super::inputs::{Input, Inputs};
use super::measure::{Around, Contender};
use super::moving::{as_predicted, e4defrag, nothing_left, on_a_copy, planned, volume};

/// Every case.
pub(super) fn all(program: &Path, inputs: &Inputs) -> Vec<Case> {
    let mut cases =
        vec![fragmented_files(program, inputs), in_turns(program, inputs), grown_files(program, inputs)];
    for kind in ["ntfs", "ext4"] {
        cases.push(small_files_sorted(program, inputs, kind));
        cases.push(in_qcow2(program, inputs, kind));
    }
    cases
}

/// Few files in very many pieces, on a disk that has no more storage than it holds, and on one that has all of it.
fn fragmented_files(program: &Path, inputs: &Inputs) -> Case {
    let input = inputs.fragmented_ntfs();
    let contender = |sparse: &str, name: &str| {
        let mut around = on_a_copy(&text(program), &input);
        around.before = around.before.replace("--sparse=always", &format!("--sparse={sparse}"));
        raw(program, inputs, "files", name, around)
    };
    Case {
        name: "fragmented NTFS, thin and allocated, in place".into(),
        contenders: vec![contender("always", "thin"), contender("never", "allocated")],
        judge: Box::new(|results| {
            let of = |result: &Measured| {
                let moved = to_fragmented_bytes(result, "bytes moved to those of fragmented files", 1.3);
                [nothing_left(result), moved].into_iter().chain(as_predicted(result)).collect::<Vec<_>>()
            };
            results.iter().flat_map(of).collect()
        }),
        input,
    }
}

/// Files that lie among each other in images that have no more storage than they hold, and on a disk that has all of it.
fn in_turns(program: &Path, inputs: &Inputs) -> Case {
    let input = inputs.in_turns();
    let mut around = on_a_copy(&text(program), &input);
    around.before = around.before.replace("--sparse=always", "--sparse=never");
    let allocated = raw(program, inputs, "files", "raw in turns allocated", around);
    let thin = ["raw", "qcow2", "vhdx"].map(|format| thin(program, inputs, &input, format));
    Case {
        name: "64 files in turns, thin and allocated, in place".into(),
        contenders: thin.into_iter().chain([allocated]).collect(),
        judge: Box::new(|results| {
            let of = |result: &Measured| {
                let left = done(result, "/volumes/0/left");
                let found = |pointer: &str| {
                    let found = result.last().found.pointer(pointer);
                    found.and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN)
                };
                let growth = result.last().target_bytes / found("/held_before_bytes");
                let mut verdicts = vec![Verdict { what: "fragmented files left", value: left, bar: 0.0 }];
                if growth.is_finite() {
                    verdicts.push(Verdict { what: "storage to that before", value: growth, bar: 1.001 });
                }
                verdicts.extend(as_predicted(result));
                verdicts
            };
            results.iter().flat_map(of).collect()
        }),
        input,
    }
}

/// A thin image of `input`; what it holds before is found as `held_before_bytes`.
fn thin(program: &Path, inputs: &Inputs, input: &Input, format: &str) -> Contender {
    let target = inputs.target(&format!("in-turns.{format}"));
    let (program, disk, source) = (text(program), text(&target), text(&input.path));
    let command = words(&[&[&program, "defrag", &disk, "-f", format, "--json"]]);
    let add = "import json, sys; found = json.load(sys.stdin); \
        print(json.dumps({**found, \"held_before_bytes\": int(open(sys.argv[1]).read())}))";
    let around = Around {
        before: format!(
            "qemu-img convert -f raw -O {format} '{source}' \"$1\"; sync; echo $(($(stat -c %b \"$1\") * 512)) > \"$1.held\""
        ),
        after: format!(
            "{{ if [ {format} != raw ]; then qemu-img check -q -f {format} \"$1\"; fi; '{program}' analyze -f {format} --json \"$1\"; }} \
             | python3 -c '{add}' \"$1.held\""
        ),
        // It is not mounted.
        reading_by: None,
    };
    let around = Some(planned(around, &program, format, "files"));
    Contender { name: format!("leandisk, thin {format}"), command, target, as_root: true, around }
}

/// Files that grew in turns, beside e4defrag, which leaves some of them on a volume so full.
fn grown_files(program: &Path, inputs: &Inputs) -> Case {
    let input = inputs.grown_ext4();
    let ours = raw(program, inputs, "files", "--goal files", on_a_copy(&text(program), &input));
    Case {
        name: "352 MiB of ext4 in pieces, in place".into(),
        contenders: vec![ours, e4defrag(program, inputs, &input)],
        judge: Box::new(|results| {
            let written = |result: &Measured| result.median(|sample| sample.device_written_bytes);
            let value = written(&results[0]) / written(&results[1]);
            let written = Verdict { what: "bytes written to those of e4defrag", value, bar: 1.15 };
            [nothing_left(&results[0]), written].into_iter().chain(as_predicted(&results[0])).collect()
        }),
        input,
    }
}

/// Thousands of small files, sorted by folder.
fn small_files_sorted(program: &Path, inputs: &Inputs, kind: &str) -> Case {
    let input = inputs.unsorted(kind);
    Case {
        name: format!("11,000 unsorted files of {kind}, packed in place"),
        contenders: vec![raw(program, inputs, "pack", "--goal pack", on_a_copy(&text(program), &input))],
        judge: Box::new(|results| {
            let ours = &results[0];
            let mut verdicts = vec![
                Verdict { what: "batches", value: done(ours, "/volumes/0/batches"), bar: 40.0 },
                Verdict { what: "seconds", value: ours.seconds(), bar: 1.0 },
            ];
            verdicts.extend(as_predicted(ours));
            verdicts
        }),
        input,
    }
}

/// Free space brought together in an image whose clusters are allocated as they are written.
fn in_qcow2(program: &Path, inputs: &Inputs, kind: &str) -> Case {
    let input = inputs.aged_volume(kind, 80);
    Case {
        name: format!("aged {kind}, 80 % full, in QCOW2"),
        contenders: ["free", "pack"].map(|goal| qcow2(program, inputs, &input, goal)).into(),
        judge: Box::new(|results| {
            let fewer = |result: &Measured| {
                let (what, value) = ("free extents, at most those before", volume(result, "free_extents"));
                let bar = done(result, "/volumes/0/before/free_extents");
                std::iter::once(Verdict { what, value, bar }).chain(as_predicted(result))
            };
            results.iter().flat_map(fewer).collect()
        }),
        input,
    }
}

fn raw(program: &Path, inputs: &Inputs, goal: &str, name: &str, around: Around) -> Contender {
    let target = inputs.target(&format!("planned-{}.raw", name.replace(' ', "-")));
    let (program, disk) = (text(program), text(&target));
    let command = words(&[&[&program, "defrag", &disk, "-f", "raw", "--goal", goal, "--json"]]);
    let around = Some(planned(around, &program, "raw", goal));
    Contender { name: format!("leandisk, {name}"), command, target, as_root: true, around }
}

fn qcow2(program: &Path, inputs: &Inputs, input: &Input, goal: &str) -> Contender {
    let target = inputs.target("planned.qcow2");
    let (program, disk, source) = (text(program), text(&target), text(&input.path));
    let command = words(&[&[&program, "defrag", &disk, "-f", "qcow2", "--goal", goal, "--json"]]);
    let around = Around {
        before: format!("qemu-img convert -f raw -O qcow2 '{source}' \"$1\"; sync"),
        after: format!("qemu-img check -q \"$1\"; '{program}' analyze -f qcow2 --json \"$1\""),
        // It is not mounted.
        reading_by: None,
    };
    let around = Some(planned(around, &program, "qcow2", goal));
    Contender { name: format!("leandisk --goal {goal}"), command, target, as_root: true, around }
}

/// A number of what the last run printed.
fn done(result: &Measured, pointer: &str) -> f64 {
    result.last().printed.pointer(pointer).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN)
}

fn to_fragmented_bytes(result: &Measured, what: &'static str, bar: f64) -> Verdict {
    let fragmented = done(result, "/volumes/0/before/fragmented_bytes");
    Verdict { what, value: done(result, "/volumes/0/moved_bytes") / fragmented, bar }
}
