//! What is measured, against whom, and the bars.

use std::path::{Path, PathBuf};

use super::Measured;
use super::inputs::{Input, Inputs};
use super::measure::{Contender, Sample};

/// What the results are worth: Leandisk's first, then the others' in the order of the contenders.
pub(super) type Judge = Box<dyn Fn(&[Measured]) -> Vec<Verdict>>;

/// A work.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) input: Input,
    /// Leandisk first.
    pub(super) contenders: Vec<Contender>,
    pub(super) judge: Judge,
}

/// A figure and what it may be at most.
pub(super) struct Verdict {
    pub(super) what: &'static str,
    pub(super) value: f64,
    pub(super) bar: f64,
}

impl Verdict {
    pub(super) fn met(&self) -> bool {
        self.value <= self.bar
    }
}

/// A target format: our arguments, QEMU's arguments.
pub(super) struct Format {
    name: &'static str,
    ours: &'static [&'static str],
    qemu: &'static [&'static str],
}

const fn format(name: &'static str, ours: &'static [&'static str], qemu: &'static [&'static str]) -> Format {
    Format { name, ours, qemu }
}

const FORMATS: [Format; 7] = [
    format("raw", &["-O", "raw"], &["-O", "raw"]),
    format("vhd", &["-O", "vhd"], &["-O", "vpc", "-o", "force_size=on"]),
    format("vhdx", &["-O", "vhdx"], &["-O", "vhdx"]),
    format("vmdk", &["-O", "vmdk"], &["-O", "vmdk"]),
    format(
        "stream.vmdk",
        &["-O", "vmdk", "-o", "subformat=streamOptimized"],
        &["-O", "vmdk", "-o", "subformat=streamOptimized"],
    ),
    format("qcow2", &["-O", "qcow2"], &["-O", "qcow2"]),
    format("vdi", &["-O", "vdi"], &["-O", "vdi"]),
];
const RAW: &Format = &FORMATS[0];
pub(super) const QCOW2: &Format = &FORMATS[5];
const ZSTD: Format = format(
    "qcow2",
    &["-O", "qcow2", "--compress", "-o", "compression=zstd"],
    &["-O", "qcow2", "-c", "-o", "compression_type=zstd"],
);

/// The settings of qemu-img that people recommend; the fastest counts. Past the page cache it knows no compression.
pub(super) const QEMU_SETTINGS: [&[&str]; 4] = [
    &[],
    &["-W", "-m", "16"],
    &["-T", "none", "-t", "none"],
    &["-W", "-m", "16", "-T", "none", "-t", "none"],
];

const MEMORY_BYTES_MAX: f64 = 256.0 * 1024.0 * 1024.0;
const MIB: f64 = 1024.0 * 1024.0;

/// The cases of copying and of reading.
pub(super) fn all(program: &Path, inputs: &Inputs) -> Vec<Case> {
    let mut cases = Vec::new();
    for format in &FORMATS {
        cases.push(full_vhd(program, inputs, format));
    }
    cases.push(aged(program, inputs));
    for format in &FORMATS {
        cases.push(dense(program, inputs, inputs.dense(), "raw", format));
        cases.push(dense(program, inputs, inputs.dense_as("qcow2", "qcow2"), "qcow2", format));
    }
    for (extension, qemu_name) in [("vhd", "vpc"), ("vhdx", "vhdx"), ("vmdk", "vmdk"), ("vdi", "vdi")] {
        let input = inputs.dense_as(extension, qemu_name);
        cases.push(dense(program, inputs, input, qemu_name, RAW));
    }
    cases.push(compressed(program, inputs));
    cases.push(files_of_ntfs(program, inputs));
    cases.extend(CHECKERS.map(|checker| files_of_linux(program, inputs, checker)));
    cases.push(growth(program, inputs));
    cases.push(confined(program, inputs));
    cases.push(confined_copy(program, inputs));
    cases.push(confined_server(program, inputs));
    cases
}

/// The most bytes of memory that a file may take.
const BYTES_PER_FILE_MAX: f64 = 300.0;

fn files_of_ntfs(program: &Path, inputs: &Inputs) -> Case {
    let input = inputs.many_ntfs();
    let disk = text(&input.path);
    Case {
        name: "files and extents of NTFS".into(),
        contenders: vec![
            analyze(program, inputs, &input.path, ""),
            reader(inputs, "ntfsresize --info", "ntfsresize --info --force --no-progress-bar \"$1\"", &disk),
            reader(inputs, "fls -r", "fls -r \"$1\"", &disk),
        ],
        input,
        judge: listing(inputs, |results| {
            vec![
                time("time to that of ntfsresize --info", results, &results[1..2], 2.0),
                time("time to that of fls -r", results, &results[2..3], 0.05),
            ]
        }),
    }
}

/// A file system, its checker, how that is started, and the most time to that of filefrag.
const CHECKERS: [(&str, &str, &str, f64); 3] = [
    ("ext4", "e2fsck -fn", "e2fsck -fn \"$1\"", 1.0),
    ("xfs", "xfs_repair -n", "xfs_repair -n \"$1\"", 0.3),
    ("btrfs", "btrfs check", "btrfs check \"$1\"", 0.3),
];

fn files_of_linux(
    program: &Path,
    inputs: &Inputs,
    (kind, checker, check, filefrag_bar): (&'static str, &'static str, &str, f64),
) -> Case {
    let input = inputs.many_linux(kind);
    let disk = text(&input.path);
    let filefrag = "mnt=$(mktemp -d); trap 'umount \"$mnt\"; rmdir \"$mnt\"' EXIT; mount -o ro,loop \"$1\" \"$mnt\"; \
        find \"$mnt\" -type f -print0 | xargs -0 filefrag";
    Case {
        name: format!("files and extents of {kind}"),
        contenders: vec![
            analyze(program, inputs, &input.path, ""),
            reader(inputs, checker, check, &disk),
            reader(inputs, "filefrag", filefrag, &disk),
        ],
        input,
        judge: listing(inputs, move |results| {
            vec![
                time("time to that of the checker", results, &results[1..2], 1.0),
                time("time to that of filefrag", results, &results[2..3], filefrag_bar),
            ]
        }),
    }
}

fn growth(program: &Path, inputs: &Inputs) -> Case {
    let input = inputs.million_ext4();
    let small = inputs.small_ext4();
    Case {
        name: "files and extents of ext4 that grows".into(),
        contenders: vec![
            analyze(program, inputs, &input.path, " of 1,000,000 files"),
            analyze(program, inputs, &small.path, " of 150,000 files"),
        ],
        input,
        judge: Box::new(|results| vec![time("time to that of 150,000 files", results, &results[1..], 7.0)]),
    }
}

/// How often a program runs whose start is measured.
fn start_count(inputs: &Inputs) -> u32 {
    if inputs.is_tiny() { 5 } else { 200 }
}

/// What confinement may cost.
const CONFINEMENT_MS_MAX: f64 = 5.0;

/// What it costs that the process which reads a disk can open nothing.
fn confined(program: &Path, inputs: &Inputs) -> Case {
    let info = "\"$1\" info \"$2\" --json --confine \"$3\" > \"$5\"";
    let run = |disk: &Path, confine: &str| starts(program, inputs, info, disk, confine);
    confinement("info of ext4, confined", inputs.small_ext4(), start_count(inputs), run)
}

/// What it costs that a copy is made by a process that asks another one for all that goes by names.
fn confined_copy(program: &Path, inputs: &Inputs) -> Case {
    let copy = "\"$1\" copy \"$2\" \"$5\" -O qcow2 --force --verify --confine \"$3\" > /dev/null";
    let run = |disk: &Path, confine: &str| starts(program, inputs, copy, disk, confine);
    confinement("copy of a small disk, confined", inputs.smallest(), start_count(inputs), run)
}

/// What confinement adds to each of `count` runs.
fn confinement(name: &str, input: Input, count: u32, run: impl Fn(&Path, &str) -> Contender) -> Case {
    Case {
        name: name.into(),
        contenders: ["always", "never"].map(|confine| run(&input.path, confine)).into(),
        input,
        judge: Box::new(move |results| {
            let more_seconds = results[0].seconds() - results[1].seconds();
            let value = more_seconds * 1000.0 / f64::from(count);
            vec![Verdict { what: "milliseconds more a run", value, bar: CONFINEMENT_MS_MAX }]
        }),
    }
}

/// Leandisk run again and again, `once` being how: `$1` is the program, `$2` the disk, `$3` when it is confined, `$5` the target.
fn starts(program: &Path, inputs: &Inputs, once: &str, disk: &Path, confine: &str) -> Contender {
    let target = inputs.target("leandisk");
    let script = format!("set -eu; for _ in $(seq \"$4\"); do {once}; done");
    let count = start_count(inputs).to_string();
    let (program, disk, to) = (text(program), text(disk), text(&target));
    let command = words(&[&["bash", "-c", &script, "starts", &program, &disk, confine, &count, &to]]);
    Contender { name: format!("leandisk --confine {confine}"), command, target, as_root: false, around: None }
}

/// How often a server starts, and ends as soon as it serves.
fn server_count(inputs: &Inputs) -> u32 {
    if inputs.is_tiny() { 5 } else { 50 }
}

/// What it costs that a server is closed in before its first client.
fn confined_server(program: &Path, inputs: &Inputs) -> Case {
    let run = |disk: &Path, confine: &str| serves(program, inputs, disk, confine);
    confinement("start of serve, confined", inputs.small_ext4(), server_count(inputs), run)
}

/// Leandisk serving again and again, each time until it says that it does.
fn serves(program: &Path, inputs: &Inputs, disk: &Path, confine: &str) -> Contender {
    let target = inputs.target("leandisk");
    let script = "set -eu; for _ in $(seq \"$4\"); do \
        coproc { exec \"$1\" serve \"$2\" --read-only --listen 127.0.0.1:0 --confine \"$3\" 2>&1; }; \
        server=$COPROC_PID; read -r line <&\"${COPROC[0]}\"; \
        kill \"$server\"; wait \"$server\"; done; echo \"$line\" > \"$5\"";
    let count = server_count(inputs).to_string();
    let (program, disk, to) = (text(program), text(disk), text(&target));
    let command = words(&[&["bash", "-c", script, "serves", &program, &disk, confine, &count, &to]]);
    Contender {
        name: format!("leandisk serve --confine {confine}"),
        command,
        target,
        as_root: false,
        around: None,
    }
}

/// The verdicts of `judge`, and the memory a file.
fn listing(inputs: &Inputs, judge: impl Fn(&[Measured]) -> Vec<Verdict> + 'static) -> Judge {
    let files = f64::from(inputs.file_count());
    Box::new(move |results| {
        let peak = results[0].median(|sample| sample.peak_memory_bytes);
        let mut verdicts = judge(results);
        let what = "peak memory a file in bytes";
        verdicts.push(Verdict { what, value: peak / files, bar: BYTES_PER_FILE_MAX });
        verdicts
    })
}

/// Leandisk listing every file with its extents.
fn analyze(program: &Path, inputs: &Inputs, disk: &Path, what: &str) -> Contender {
    let target = inputs.target("leandisk");
    let (program, disk, to) = (text(program), text(disk), text(&target));
    let command = words(&[&[&program, "analyze", &disk, "-f", "raw", "--files", &to, "--force"]]);
    Contender { name: format!("leandisk{what}"), command, target, as_root: false, around: None }
}

/// A tool that reads `$1` and prints what it finds, kept in the target.
fn reader(inputs: &Inputs, name: &str, tool: &str, disk: &str) -> Contender {
    let target = inputs.target("others");
    let script = format!("set -eu; PATH=$PATH:/usr/sbin:/sbin; exec > \"$2\"; {tool}");
    let command = words(&[&["bash", "-c", &script, name, disk, &text(&target)]]);
    Contender { name: name.to_owned(), command, target, as_root: true, around: None }
}

fn full_vhd(program: &Path, inputs: &Inputs, format: &Format) -> Case {
    let input = inputs.full_vhd();
    let read_bar = f64::from(inputs.files_mb()) * 1e6 + 8.0 * MIB;
    Case {
        name: format!("full VHD with few files to {}", format.name),
        contenders: vec![
            leandisk(program, inputs, &input.path, format),
            qemu(inputs, "vpc", &input.path, format, QEMU_SETTINGS[0]),
        ],
        input,
        judge: Box::new(move |results| {
            vec![
                time("time to that of qemu-img", results, &results[1..], 0.10),
                Verdict {
                    what: "bytes read",
                    value: results[0].median(|sample| sample.reported_read_bytes),
                    bar: read_bar,
                },
                memory(results),
            ]
        }),
    }
}

fn aged(program: &Path, inputs: &Inputs) -> Case {
    let input = inputs.aged();
    let mut contenders = vec![leandisk(program, inputs, &input.path, QCOW2)];
    contenders.extend(QEMU_SETTINGS.iter().map(|settings| qemu(inputs, "raw", &input.path, QCOW2, settings)));
    contenders.push(on_loop_device(
        inputs,
        &input.path,
        "ntfsclone",
        "ntfsclone -q -f -O \"$out\" \"$loop\"",
    ));
    contenders.push(on_loop_device(
        inputs,
        &input.path,
        "partclone",
        "partclone.ntfs -q -L /dev/null -c -s \"$loop\" -o \"$out\"",
    ));
    // Not judged: what docs/decisions/direct-io.md is based on.
    let mut through_the_cache = leandisk(program, inputs, &input.path, QCOW2);
    through_the_cache.name.push_str(" --page-cache");
    through_the_cache.command.push("--page-cache".into());
    contenders.push(through_the_cache);
    Case {
        name: "aged NTFS, raw to qcow2".into(),
        input,
        contenders,
        judge: Box::new(|results| {
            vec![
                time("time to that of the fastest qemu-img", results, &results[1..5], 0.6),
                time("time to that of ntfsclone", results, &results[5..6], 0.4),
                time("time to that of partclone", results, &results[6..7], 0.4),
                memory(results),
            ]
        }),
    }
}

fn dense(program: &Path, inputs: &Inputs, input: Input, source: &str, format: &Format) -> Case {
    let mut contenders = vec![leandisk(program, inputs, &input.path, format)];
    contenders
        .extend(QEMU_SETTINGS.iter().map(|settings| qemu(inputs, source, &input.path, format, settings)));
    Case {
        name: format!("no waste, {source} to {}", format.name),
        input,
        contenders,
        judge: Box::new(|results| {
            vec![time("time to that of the fastest qemu-img", results, &results[1..], 1.0), memory(results)]
        }),
    }
}

fn compressed(program: &Path, inputs: &Inputs) -> Case {
    let input = inputs.dense();
    let size = |result: &Measured| result.median(|sample| sample.target_bytes);
    Case {
        name: "no waste, raw to qcow2 compressed with zstd".into(),
        contenders: vec![
            leandisk(program, inputs, &input.path, &ZSTD),
            qemu(inputs, "raw", &input.path, &ZSTD, QEMU_SETTINGS[0]),
            qemu(inputs, "raw", &input.path, &ZSTD, QEMU_SETTINGS[1]),
        ],
        input,
        judge: Box::new(move |results| {
            vec![
                time("time to that of the fastest qemu-img", results, &results[1..], 0.6),
                Verdict {
                    what: "size to that of qemu-img",
                    value: size(&results[0]) / size(&results[1]),
                    bar: 1.02,
                },
                memory(results),
            ]
        }),
    }
}

/// Our median over the best of the others'.
pub(super) fn time(what: &'static str, results: &[Measured], others: &[Measured], bar: f64) -> Verdict {
    let best = others.iter().map(Measured::seconds).fold(f64::INFINITY, f64::min);
    Verdict { what, value: results[0].seconds() / best, bar }
}

pub(super) fn memory(results: &[Measured]) -> Verdict {
    Verdict {
        what: "peak memory in bytes",
        value: results[0].median(|sample| sample.peak_memory_bytes),
        bar: MEMORY_BYTES_MAX,
    }
}

pub(super) fn words(parts: &[&[&str]]) -> Vec<String> {
    parts.concat().iter().map(ToString::to_string).collect()
}

pub(super) fn text(path: &Path) -> String {
    path.display().to_string()
}

pub(super) fn leandisk(program: &Path, inputs: &Inputs, source: &Path, format: &Format) -> Contender {
    let target: PathBuf = inputs.target("leandisk");
    let (program, source, to) = (text(program), text(source), text(&target));
    let command = words(&[&[&program, "copy", &source, &to, "--json"], format.ours]);
    Contender { name: "leandisk".into(), command, target, as_root: false, around: None }
}

pub(super) fn qemu(
    inputs: &Inputs,
    from: &str,
    source: &Path,
    format: &Format,
    settings: &[&str],
) -> Contender {
    let target = inputs.target("qemu");
    let (source, to) = (text(source), text(&target));
    let command = words(&[&["qemu-img", "convert", "-f", from], settings, format.qemu, &[&source, &to]]);
    Contender {
        name: format!("qemu-img {}", settings.join(" ")).trim().to_owned(),
        command,
        target,
        as_root: false,
        around: None,
    }
}

/// A tool that wants the volume as a device.
fn on_loop_device(inputs: &Inputs, source: &Path, name: &str, tool: &str) -> Contender {
    let target = inputs.target(name);
    let script = format!(
        "set -eu; PATH=$PATH:/usr/sbin:/sbin; out=$2; \
         size=$(($(stat -c %s \"$1\") - (2 << 20))); \
         loop=$(losetup --show -f -r --direct-io=on -o 1M --sizelimit $size \"$1\"); \
         trap 'losetup -d \"$loop\"' EXIT; {tool}"
    );
    let command = words(&[&["bash", "-c", &script, name, &text(source), &text(&target)]]);
    Contender { name: name.to_owned(), command, target, as_root: true, around: None }
}

/// The best of the others' medians.
pub(super) fn best(others: &[Measured], of: fn(&Sample) -> f64, better: fn(f64, f64) -> f64) -> f64 {
    others.iter().map(|it| it.median(of)).reduce(better).unwrap_or(f64::NAN)
}
