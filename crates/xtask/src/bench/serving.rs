//! Disks that are served over NBD: against qemu-nbd and nbdkit, with fio as the client.

use std::path::Path;

use super::Measured;
use super::cases::{Case, Verdict, text, words};
use super::inputs::Inputs;
use super::measure::{Around, Contender, Sample};

/// How disks that hold data are asked: name, fio's pattern, bytes of a request.
const PATTERNS: [(&str, &str, &str); 4] = [
    ("read of 1 MiB", "read", "1M"),
    ("write of 1 MiB", "write", "1M"),
    ("random read of 4 KiB", "randread", "4k"),
    ("random write of 4 KiB", "randwrite", "4k"),
];

/// `$1` serves the image `$2` of the format `$3`, and fio asks it as `$4` says, `$5` bytes and `$6` requests at a time, with `$7`
/// more arguments; `$8` is Leandisk. What fio prints is printed.
const SERVED: &str = r#"
set -euo pipefail
socket=$(mktemp -u)
case $1 in
    leandisk) "$8" serve "$2" -f "$3" --socket "$socket" > /dev/null 2>&1 & ;;
    qemu-nbd) qemu-nbd -t -e 16 -f "$3" -k "$socket" "$2" & ;;
    nbdkit) nbdkit -f -U "$socket" file "$2" & ;;
esac
server=$!
trap 'kill $server; wait $server || :; rm -f "$socket"' EXIT
until [ -S "$socket" ]; do sleep 0.02; done
fio --name=bench --ioengine=nbd --uri="nbd+unix:///?socket=$socket" --rw="$4" --bs="$5" --iodepth="$6" $7 --output-format=json |
    sed -n '/^{/,$p'
"#;

/// Every case.
pub(super) fn all(program: &Path, inputs: &Inputs) -> Vec<Case> {
    let mut cases = Vec::new();
    for format in ["raw", "qcow2"] {
        for (name, pattern, bytes) in PATTERNS {
            let depths: &[_] = if inputs.is_tiny() { &["32"] } else { &["1", "32"] };
            for depth in depths {
                let name = format!("served {format}: {name}, {depth} at a time");
                cases.push(in_use(program, inputs, name, [format, pattern, bytes, depth]));
            }
        }
    }
    for format in ["raw", "qcow2"] {
        for provision in ["thin", "lazy"] {
            for pattern in ["write", "randwrite"] {
                cases.push(first_write(program, inputs, [format, provision, pattern]));
            }
        }
    }
    cases
}

/// A disk whose every byte was written.
fn in_use(program: &Path, inputs: &Inputs, name: String, how: [&str; 4]) -> Case {
    let input = inputs.served();
    let format = how[0];
    let make = match format {
        "raw" => format!("cp '{}' \"$1\"", text(&input.path)),
        _ => format!("qemu-img convert -f raw -O {format} -S 0 '{}' \"$1\"", text(&input.path)),
    };
    let servers: &[&str] =
        if format == "raw" { &["leandisk", "qemu-nbd", "nbdkit"] } else { &["leandisk", "qemu-nbd"] };
    let more = format!("--size={} --time_based --runtime={}", inputs.served_bytes(), inputs.served_seconds());
    let contenders =
        servers.iter().map(|server| contender(program, inputs, server, how, &more, &make)).collect();
    Case {
        name,
        contenders,
        input,
        judge: Box::new(|results| {
            vec![
                Verdict {
                    what: "bandwidth of the fastest of the others to ours",
                    value: best(&results[1..], bandwidth, f64::max) / results[0].median(bandwidth),
                    bar: 1.0,
                },
                Verdict {
                    what: "99th percentile of latency to the best of the others",
                    value: results[0].median(latency) / best(&results[1..], latency, f64::min),
                    bar: 1.0,
                },
            ]
        }),
    }
}

/// A disk that nothing was written to.
fn first_write(program: &Path, inputs: &Inputs, how: [&str; 3]) -> Case {
    let [format, provision, pattern] = how;
    let leandisk = text(program);
    let make = |provision: &str| {
        format!(
            "'{leandisk}' create \"$1\" {} -O {format} --provision {provision} > /dev/null",
            inputs.served_bytes()
        )
    };
    let more = format!("--size={} --end_fsync=1", inputs.served_bytes());
    let asked = [format, pattern, "64k", "8"];
    let mut contenders: Vec<_> = ["leandisk", "qemu-nbd"]
        .into_iter()
        .map(|server| contender(program, inputs, server, asked, &more, &make(provision)))
        .collect();
    let mut eager = contender(program, inputs, "leandisk", asked, &more, &make("eager"));
    eager.name = "leandisk, eager".into();
    contenders.push(eager);
    let is_thin_qcow2 = (format, provision) == ("qcow2", "thin");
    let is_thin = provision == "thin";
    Case {
        name: format!("first {pattern} to {provision} {format}"),
        contenders,
        input: inputs.served(),
        judge: Box::new(move |results| {
            let [ours, theirs, eager] =
                [&results[0], &results[1], &results[2]].map(|it| it.median(bandwidth));
            let mut verdicts = vec![Verdict {
                what: "bandwidth of qemu-nbd to ours",
                value: theirs / ours,
                bar: if is_thin_qcow2 { 1.0 / 1.5 } else { 1.0 },
            }];
            if is_thin {
                verdicts.push(Verdict {
                    what: "time to that of an eager disk",
                    value: eager / ours,
                    bar: 1.15,
                });
            }
            verdicts
        }),
    }
}

fn contender(
    program: &Path,
    inputs: &Inputs,
    server: &str,
    how: [&str; 4],
    more: &str,
    make: &str,
) -> Contender {
    let [format, pattern, bytes, depth] = how;
    let target = inputs.target(&format!("served.{format}"));
    let (program, image) = (text(program), text(&target));
    let arguments = [server, &image, format, pattern, bytes, depth, more, &program];
    let around = Around {
        before: format!("{make}; chmod a+rw \"$1\"; sync"),
        after: "echo null".into(),
        reading_by: None,
    };
    Contender {
        name: server.into(),
        command: words(&[&["bash", "-c", SERVED, "bench"], &arguments]),
        target,
        as_root: true,
        around: Some(around),
    }
}

/// What fio tells of the direction that moved most.
fn told(sample: &Sample, of: impl Fn(&serde_json::Value) -> f64) -> f64 {
    let job = &sample.printed["jobs"][0];
    let direction =
        if job["read"]["io_bytes"].as_f64() > job["write"]["io_bytes"].as_f64() { "read" } else { "write" };
    of(&job[direction])
}

/// Bytes a second, of the whole of the run.
fn bandwidth(sample: &Sample) -> f64 {
    told(sample, |it| it["bw_bytes"].as_f64().unwrap_or(f64::NAN))
}

/// The 99th percentile of the time of a request, in nanoseconds.
fn latency(sample: &Sample) -> f64 {
    told(sample, |it| it["clat_ns"]["percentile"]["99.000000"].as_f64().unwrap_or(f64::NAN))
}

fn best(others: &[Measured], of: fn(&Sample) -> f64, better: fn(f64, f64) -> f64) -> f64 {
    others.iter().map(|it| it.median(of)).reduce(better).unwrap_or(f64::NAN)
}

/// A disk that is compacted, against those that free space by mounting.
pub(super) fn compacting(program: &Path, inputs: &Inputs) -> Vec<Case> {
    ["raw", "qcow2"].into_iter().map(|format| compacted(program, inputs, format)).collect()
}

/// `virt-sparsify` with the time of its appliance's boot, which is not counted; `$1` is what it does, `$2` the disk.
const SPARSIFY: &str = r#"
set -eu
export LIBGUESTFS_BACKEND=direct
begun=$(date +%s%N)
guestfish -a /dev/null run
booted=$(($(date +%s%N) - begun))
begun=$(date +%s%N)
case $1 in
    in-place) virt-sparsify -q --in-place "$2" ;;
    copy) virt-sparsify -q "$2" "$2.copy" && mv "$2.copy" "$2" ;;
esac
echo "{\"seconds\": $(awk "BEGIN { print ($(date +%s%N) - $begun - $booted) / 1e9 }")}"
"#;

/// zerofree, which wants the volume alone, and qemu-img.
const ZEROFREE: &str = r#"
set -eu
PATH=$PATH:/usr/sbin:/sbin
if [ "$2" = raw ]; then zerofree "$1"; else
    qemu-img convert -f "$2" -O raw "$1" "$1.raw"; zerofree "$1.raw"; mv "$1.raw" "$1"; fi
qemu-img convert -f raw -O "$2" "$1" "$1.copy"
mv "$1.copy" "$1"
sync "$1"
"#;

fn compacted(program: &Path, inputs: &Inputs, format: &'static str) -> Case {
    let input = inputs.stale();
    let source = text(&input.path);
    let make = match format {
        "raw" => format!("cp '{source}' \"$1\""),
        _ => format!("qemu-img convert -f raw -O {format} -S 0 '{source}' \"$1\""),
    };
    let contender = |name: &str, command: &[&str]| {
        let target = inputs.target(&format!("stale.{format}"));
        let image = text(&target);
        let command: Vec<_> =
            command.iter().map(|word| if *word == "DISK" { image.clone() } else { (*word).into() }).collect();
        let after = format!(
            "qemu-img convert -f {format} -O raw \"$1\" \"$1.raw\"; e2fsck -fn \"$1.raw\" > /dev/null 2>&1; rm \"$1.raw\"; echo null"
        );
        let around = Around { before: format!("{make}; chmod a+rw \"$1\"; sync"), after, reading_by: None };
        Contender { name: name.into(), command, target, as_root: true, around: Some(around) }
    };
    let program = text(program);
    let mut contenders = vec![
        contender("leandisk compact", &[&program, "compact", "DISK", "-f", format, "--json"]),
        contender("zerofree, qemu-img convert", &["bash", "-c", ZEROFREE, "bench", "DISK", format]),
    ];
    // It boots a machine each time.
    if !inputs.is_tiny() {
        contenders.push(contender("virt-sparsify", &["bash", "-c", SPARSIFY, "bench", "copy", "DISK"]));
        contenders.push(contender(
            "virt-sparsify --in-place",
            &["bash", "-c", SPARSIFY, "bench", "in-place", "DISK"],
        ));
    }
    Case {
        name: format!("compact of stale {format}"),
        contenders,
        input,
        judge: Box::new(|results| {
            let seconds = |sample: &Sample| sample.printed["seconds"].as_f64().unwrap_or(sample.seconds);
            let ours = results[0].seconds();
            let (copying, in_place) = (&results[1..3], &results[3]);
            let left = |it: &Measured| it.median(|sample| sample.target_bytes);
            vec![
                Verdict {
                    what: "time to that of virt-sparsify --in-place, its boot not counted",
                    value: ours / in_place.median(seconds),
                    bar: 0.1,
                },
                Verdict {
                    what: "time to that of the faster of those that copy",
                    value: ours / best(copying, seconds, f64::min),
                    bar: 0.05,
                },
                Verdict {
                    what: "storage left to that left by virt-sparsify --in-place",
                    value: left(&results[0]) / left(in_place),
                    bar: 1.0,
                },
            ]
        }),
    }
}
