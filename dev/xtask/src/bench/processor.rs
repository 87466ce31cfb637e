//! What serving disks takes of the processors: against qemu-nbd and nbdkit for the same requests, and against itself without its parts.

use std::path::Path;

use super::cases::{Case, Verdict, best, text, words};
use super::inputs::Inputs;
use super::measure::{Around, Contender, Sample};
use super::serving::SERVE;
use super::{Measured, median_ratio};

/// What is asked of disks: name, fio's pattern, bytes of a request, share of the disk's size in percent, whether nothing was written
/// before.
const WORKS: [(&str, &str, &str, u64, bool); 4] = [
    ("writes of 1 MiB", "write", "1M", 100, false),
    ("reads of 1 MiB", "read", "1M", 100, false),
    ("random first writes of 4 KiB", "randwrite", "4k", 25, true),
    ("random reads of 4 KiB", "randread", "4k", 25, false),
];

/// What may be taken more than by others, or than without a part.
const SHARE_MAX: f64 = 1.05;
/// The same for statistics.
const STATISTICS_MAX: f64 = 1.01;

/// After [`SERVE`], fio asks for each byte once, as `$1` says, `$2` bytes and 32 requests at a time, of `$3` in all. `times` tells the
/// processor time of children that ended, so that the server's is what it adds.
const ASKED: &str = r#"
fio --name=bench --ioengine=nbd --uri="nbd+unix:///?socket=$socket" --rw="$1" --bs="$2" --iodepth=32 --size="$3" --end_fsync=1 > /dev/null
times > "$socket.before"
trap - EXIT
kill $server
wait $server || :
times > "$socket.after"
rm -f "$socket"
awk 'FNR == 2 { gsub("[ms]", " "); sum[FILENAME] = $1 * 60 + $2 + $3 * 60 + $4 }
    END { printf "{\"processor_seconds\": %.3f}\n", sum[ARGV[2]] - sum[ARGV[1]] }' "$socket.before" "$socket.after"
rm -f "$socket.before" "$socket.after"
"#;

/// A new XFS of `$2` bytes in the file `$1`, with a new disk of the format `$3` and `$4` bytes on it, which the rest of the arguments are
/// asked to write; they are given the disk's path.
const ON_XFS: &str = r#"
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
file=$1 format=$3 bytes=$4
truncate -s "$2" "$file"
mkfs.xfs -q -f "$file"
mnt=$(mktemp -d)
trap 'umount "$mnt"; rmdir "$mnt"' EXIT
mount -o loop "$file" "$mnt"
qemu-img create -q -f "$format" "$mnt/disk" "$bytes"
shift 4
"$@" "$mnt/disk"
"#;

/// Every case.
pub(super) fn all(program: &Path, inputs: &Inputs) -> Vec<Case> {
    let mut cases = Vec::new();
    for format in ["raw", "qcow2"] {
        for work in WORKS {
            cases.push(served(program, inputs, format, work));
        }
    }
    cases.push(statistics(inputs));
    for format in ["raw", "qcow2", "vhdx"] {
        cases.push(prevention(inputs, format));
    }
    cases
}

fn processor(sample: &Sample) -> f64 {
    sample.printed["processor_seconds"].as_f64().unwrap_or(f64::NAN)
}

fn served(
    program: &Path,
    inputs: &Inputs,
    format: &'static str,
    (name, pattern, bytes, percent, is_first): (&'static str, &str, &str, u64, bool),
) -> Case {
    let input = inputs.served();
    let source = text(&input.path);
    let disk_bytes = inputs.served_bytes();
    let make = match (is_first, format) {
        (true, _) => format!("qemu-img create -q -f {format} \"$1\" {disk_bytes}"),
        (false, "raw") => format!("cp '{source}' \"$1\""),
        (false, _) => format!("qemu-img convert -f raw -O {format} -S 0 '{source}' \"$1\""),
    };
    let asked = (disk_bytes * percent / 100).to_string();
    let servers: &[&str] =
        if format == "raw" { &["leandisk", "qemu-nbd", "nbdkit"] } else { &["leandisk", "qemu-nbd"] };
    let program = text(program);
    let contender = |server: &&str| {
        let target = inputs.target(&format!("served.{format}"));
        let arguments = [*server, &text(&target), format, &program, pattern, bytes, &asked];
        let command = words(&[&["bash", "-c", &[SERVE, ASKED].concat(), "bench"], &arguments]);
        let before = format!("{make}; chmod a+rw \"$1\"; sync");
        let around = Around { before, after: "echo null".into(), reading_by: None };
        Contender { name: (*server).into(), command, target, as_root: true, around: Some(around) }
    };
    Case {
        name: format!("processor time of serving {format}: {name}"),
        contenders: servers.iter().map(contender).collect(),
        input,
        judge: Box::new(|results| {
            vec![Verdict {
                what: "processor time to the least of the others",
                value: results[0].median(processor) / best(&results[1..], processor, f64::min),
                bar: SHARE_MAX,
            }]
        }),
    }
}

/// The program itself, to be asked what a part of serving takes.
fn part(inputs: &Inputs, name: &str, target: &str, command: &[&str]) -> Contender {
    let around = Around { before: "true".into(), after: "echo null".into(), reading_by: None };
    let target = inputs.target(target);
    let command: Vec<String> = command
        .iter()
        .map(|word| match *word {
            "XTASK" => std::env::current_exe().map(|path| text(&path)).unwrap_or_default(),
            "TARGET" => text(&target),
            word => word.to_owned(),
        })
        .collect();
    Contender { name: name.into(), command, target, as_root: true, around: Some(around) }
}

fn statistics(inputs: &Inputs) -> Case {
    let seconds = (inputs.served_ms() * 5 / 1000).to_string();
    let command = ["XTASK", "overhead", "statistics", "TARGET", "--seconds", &seconds];
    let told = |results: &[Measured], what: &str| results[0].median(|sample| number(sample, what));
    Case {
        name: "statistics of a served disk".into(),
        contenders: vec![part(inputs, "with and without", "statistics.raw", &command)],
        input: inputs.served(),
        judge: Box::new(move |results| {
            let verdict = |what, field| Verdict { what, value: told(results, field), bar: STATISTICS_MAX };
            vec![
                verdict("processor time to that without", "processor"),
                verdict("time to that without", "wall"),
                // How well the two above are known.
                verdict("processor time of the same to itself", "processor_of_the_same"),
                verdict("time of the same to itself", "wall_of_the_same"),
            ]
        }),
    }
}

fn number(sample: &Sample, what: &str) -> f64 {
    sample.printed[what].as_f64().unwrap_or(f64::NAN)
}

fn prevention(inputs: &Inputs, format: &'static str) -> Case {
    let disk_bytes = inputs.served_bytes() / 4;
    // XFS wants 300 MiB; logs and tables, and what is reserved and given back.
    let host_bytes = (disk_bytes * 4 + (512 << 20)).to_string();
    let bytes = disk_bytes.to_string();
    let contender = |name, more: &[&str]| {
        let head: &[&str] = &["bash", "-c", ON_XFS, "bench", "TARGET", &host_bytes, format, &bytes];
        let tail: &[&str] = &["XTASK", "overhead", "first-writes", "--format", format];
        part(inputs, name, "prevention.xfs", &[head, tail, more].concat())
    };
    Case {
        name: format!("prevention of fragments: random first writes to {format} on XFS"),
        contenders: vec![
            contender("leandisk", &[]),
            contender("leandisk, nothing reserved", &["--without-reserving"]),
        ],
        input: inputs.served(),
        judge: Box::new(|results| {
            vec![Verdict {
                what: "processor time to that with nothing reserved",
                value: median_ratio(&results[0], &results[1], processor),
                bar: SHARE_MAX,
            }]
        }),
    }
}
