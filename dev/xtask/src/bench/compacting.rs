//! Disks half of whose storage is stale, given back in place: against those that mount them.

use std::path::Path;

use super::Measured;
use super::cases::{Case, Verdict, best, text};
use super::inputs::Inputs;
use super::measure::{Around, Contender, Sample};

/// Every case.
pub(super) fn all(program: &Path, inputs: &Inputs) -> Vec<Case> {
    ["raw", "qcow2"].into_iter().map(|format| compacted(program, inputs, format)).collect()
}

/// `virt-sparsify` with the time of its appliance's boot, which is not counted; `$1` is what it does, `$2` the disk. Without KVM if that is
/// there and does not work.
const SPARSIFY: &str = r#"
set -eu
export LIBGUESTFS_BACKEND=direct
begun=$(date +%s%N)
guestfish -a /dev/null run 2> /dev/null || {
    export LIBGUESTFS_BACKEND_SETTINGS=force_tcg
    begun=$(date +%s%N)
    guestfish -a /dev/null run
}
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

/// qemu-io, told to discard all that is free on the ext4 `$1` in the disk `$2` of format `$3`. Finding out what that is is not counted.
const DISCARD: &str = r#"
set -eu
PATH=$PATH:/usr/sbin:/sbin
block=$(dumpe2fs -h "$1" 2> /dev/null | awk '/^Block size:/ { print $3 }')
dumpe2fs "$1" 2> /dev/null | grep '^  Free blocks: ' | grep -oE '[0-9]+(-[0-9]+)?' |
    awk -F- -v block="$block" '
        function discard(from, to, len) {
            for (; from < to; from += len) {
                len = to - from > 2 ^ 30 ? 2 ^ 30 : to - from
                printf "discard %.0f %.0f\n", from, len
            }
        }
        end != $1 { discard(start * block, end * block); start = $1 }
        { end = (NF > 1 ? $2 : $1) + 1 }
        END { discard(start * block, end * block); print "flush" }' > "$2.discards"
begun=$(date +%s%N)
qemu-io -d unmap -f "$3" "$2" < "$2.discards" > /dev/null
sync "$2"
echo "{\"seconds\": $(awk "BEGIN { print ($(date +%s%N) - $begun) / 1e9 }")}"
rm "$2.discards"
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
        contender(
            "qemu-io, discard of what is free",
            &["bash", "-c", DISCARD, "bench", &source, "DISK", format],
        ),
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
            let (copying, in_place) = (&results[2..4], &results[4]);
            let left = |it: &Measured| it.median(|sample| sample.target_bytes);
            vec![
                Verdict {
                    what: "time to that of the host's own discards",
                    value: ours / results[1].median(seconds),
                    bar: 1.1,
                },
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
