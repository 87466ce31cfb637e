//! Copies of file systems and volume managers besides plain NTFS and ext4, half of whose files were deleted.

use std::path::Path;

use super::cases::{Case, QCOW2, QEMU_SETTINGS, leandisk, memory, qemu, text, time, words};
use super::inputs::{Input, Inputs, MIB, Stale};
use super::measure::Contender;

/// Where the file system lies that is to be copied by tools which know it alone.
#[derive(Clone, Copy)]
struct Place {
    start_bytes: u64,
    len_bytes: u64,
}

/// Every case.
pub(super) fn all(program: &Path, inputs: &Inputs) -> Vec<Case> {
    let mut cases: Vec<_> = ["xfs", "btrfs", "exfat"].map(|kind| alone(program, inputs, kind)).into();
    cases.push(logical(program, inputs));
    cases
}

/// A volume without a partition table.
fn alone(program: &Path, inputs: &Inputs, kind: &'static str) -> Case {
    let stale = inputs.half_stale(kind);
    let place = Place { start_bytes: 0, len_bytes: stale.len_bytes };
    let mut tools = vec![on_loop_device(inputs, &stale.input, &partclone(kind), place)];
    if kind == "xfs" {
        tools.push(on_loop_device(inputs, &stale.input, "xfs_copy -d \"$loop\" \"$out\"", place));
    }
    case(program, inputs, format!("half stale {kind}, raw to qcow2"), stale, tools, 0.4)
}

/// ext4 and swap on logical volumes.
fn logical(program: &Path, inputs: &Inputs) -> Case {
    let stale = inputs.half_stale_lvm();
    let place = Place { start_bytes: 2 * MIB, len_bytes: stale.len_bytes };
    let tools = vec![on_loop_device(inputs, &stale.input, &partclone("ext4"), place)];
    case(program, inputs, "half stale ext4 on LVM with swap, raw to qcow2".into(), stale, tools, 0.3)
}

fn case(
    program: &Path,
    inputs: &Inputs,
    name: String,
    stale: Stale,
    tools: Vec<Contender>,
    bar: f64,
) -> Case {
    let input = stale.input;
    let mut contenders = vec![leandisk(program, inputs, &input.path, QCOW2)];
    contenders.extend(QEMU_SETTINGS.iter().map(|settings| qemu(inputs, "raw", &input.path, QCOW2, settings)));
    contenders.extend(tools);
    Case {
        name,
        input,
        contenders,
        judge: Box::new(move |results| {
            vec![
                time("time to that of the fastest qemu-img", results, &results[1..5], 0.6),
                time("time to that of the fastest that knows the file system", results, &results[5..], bar),
                memory(results),
            ]
        }),
    }
}

fn partclone(kind: &str) -> String {
    format!("partclone.{kind} -q -L /dev/null -c -s \"$loop\" -o \"$out\"")
}

/// A tool that wants the volume as a device.
fn on_loop_device(inputs: &Inputs, input: &Input, tool: &str, place: Place) -> Contender {
    let name = tool.split(' ').next().unwrap_or(tool);
    let target = inputs.target(name);
    let script = format!(
        "set -eu; PATH=$PATH:/usr/sbin:/sbin; out=$2; \
         loop=$(losetup --show -f -r --direct-io=on -o \"$3\" --sizelimit \"$4\" \"$1\"); \
         trap 'losetup -d \"$loop\"' EXIT; {tool} > /dev/null"
    );
    let numbers = [place.start_bytes, place.len_bytes].map(|number| number.to_string());
    let (source, to) = (text(&input.path), text(&target));
    let command = words(&[&["bash", "-c", &script, name, &source, &to, &numbers[0], &numbers[1]]]);
    Contender { name: name.to_owned(), command, target, as_root: true, around: None }
}
