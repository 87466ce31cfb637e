//! Disks that are served over NBD: against qemu-nbd and nbdkit, with fio as the client.

use std::path::Path;

use super::cases::{Case, Verdict, best, text, words};
use super::inputs::Inputs;
use super::measure::{Around, Contender, Sample};

/// How disks that hold data are asked: name, fio's pattern, bytes of a request.
const PATTERNS: [(&str, &str, &str); 5] = [
    ("read of 1 MiB", "read", "1M"),
    ("read of 128 KiB", "read", "128k"),
    ("write of 1 MiB", "write", "1M"),
    ("random read of 4 KiB", "randread", "4k"),
    ("random write of 4 KiB", "randwrite", "4k"),
];

/// Has `$1` serve the image `$2` of the format `$3`; `$4` is Leandisk. These arguments are gone then, `$socket` and `$server` tell where and who.
pub(super) const SERVE: &str = r#"
set -euo pipefail
socket=$(mktemp -u)
case $1 in
    leandisk) "$4" serve "$2" -f "$3" --socket "$socket" > /dev/null 2>&1 & ;;
    qemu-nbd) qemu-nbd -t -e 16 -f "$3" -k "$socket" "$2" & ;;
    nbdkit) nbdkit -f -U "$socket" file "$2" & ;;
esac
server=$!
trap 'kill $server; wait $server || :; rm -f "$socket"' EXIT
until nbdinfo --size "nbd+unix:///?socket=$socket" > /dev/null 2>&1; do sleep 0.02; done
shift 4
"#;

/// Then fio asks it as `$1` says, `$2` bytes and `$3` requests at a time, with `$4` more arguments. What fio prints is printed.
const ASKED: &str = r#"
fio --name=bench --ioengine=nbd --uri="nbd+unix:///?socket=$socket" --rw="$1" --bs="$2" --iodepth="$3" $4 --output-format=json |
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
    let more = format!("--size={} --time_based --runtime={}ms", inputs.served_bytes(), inputs.served_ms());
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
    let arguments = [server, &image, format, &program, pattern, bytes, depth, more];
    let around = Around {
        before: format!("{make}; chmod a+rw \"$1\"; sync"),
        after: "echo null".into(),
        reading_by: None,
    };
    Contender {
        name: server.into(),
        command: words(&[&["bash", "-c", &[SERVE, ASKED].concat(), "bench"], &arguments]),
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
