//! Disks that are no files: exports of NBD servers beside nbdcopy, a running guest beside QEMU's own backup, and a folder of disks.

use std::path::Path;

use super::cases::{Case, Verdict, text, words};
use super::inputs::{Input, Inputs};
use super::measure::{Around, Contender, Sample};
use super::{Measured, median_ratio};

/// Copies `$3` to `$4` by `$1`, a program that is `$2` if it is Leandisk; what is in `$6` (`from`, `to`, or both) is behind a server `$5`. The rest is
/// for Leandisk. Only the copy is timed, with all of it on stable storage.
const BETWEEN: &str = r#"
set -euo pipefail
tool=$1 program=$2 from=$3 to=$4 server=$5 behind=$6
shift 6
dir=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}"; wait || :; rm -rf "$dir"' EXIT
serve() {
    case $server in
        nbdkit) nbdkit -f -U "$dir/$1" file "$2" & ;;
        qemu-nbd) qemu-nbd -t -e 16 -f raw -k "$dir/$1" "$2" & ;;
        leandisk) "$program" serve "$2" -f raw --socket "$dir/$1" > /dev/null 2>&1 & ;;
    esac
    pids+=($!)
    until nbdinfo --size "nbd+unix:///?socket=$dir/$1" > /dev/null 2>&1; do sleep 0.02; done
}
if [[ $behind == *from* ]]; then serve from "$from"; from="nbd+unix:///?socket=$dir/from"; fi
if [[ $behind == *to* ]]; then serve to "$to"; to="nbd+unix:///?socket=$dir/to"; fi
begun=$(date +%s%N)
case $tool in
    leandisk) "$program" copy "$from" "$to" -f raw -O raw --force --json "$@" > "$dir/json" ;;
    nbdcopy) nbdcopy --flush "$from" "$to"; echo '{}' > "$dir/json" ;;
esac
[[ $behind == *to* ]] || sync -d "$to"
ended=$(date +%s%N)
python3 - "$dir/json" $((ended - begun)) <<'END'
import json, sys
told = json.load(open(sys.argv[1]))
told["copy_seconds"] = int(sys.argv[2]) / 1e9
print(json.dumps(told))
END
"#;

/// A QEMU whose processors stand still has the disk `3`; `1` (a program that is `2` if it is Leandisk) copies it to `4`.
const LIVE: &str = r#"
import json, os, socket, subprocess, sys, tempfile, time
tool, program, disk, target = sys.argv[1:]
folder = tempfile.mkdtemp()
path = folder + "/qmp"
qemu = subprocess.Popen(["qemu-system-x86_64", "-machine", "pc", "-accel", "tcg", "-m", "32", "-display", "none", "-nodefaults", "-S",
    "-blockdev", f"driver=raw,node-name=disk,file.driver=file,file.filename={disk}",
    "-device", "virtio-blk-pci,drive=disk,id=vda", "-qmp", f"unix:{path},server=on,wait=off"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
def connected():
    while True:
        try:
            monitor = socket.socket(socket.AF_UNIX)
            monitor.connect(path)
            return monitor.makefile("rw")
        except OSError:
            time.sleep(0.02)
def ask(monitor, name, **arguments):
    monitor.write(json.dumps({"execute": name, "arguments": arguments}) + "\n")
    monitor.flush()
    wait(monitor, lambda told: "return" in told)
def wait(monitor, is_it):
    for line in monitor:
        told = json.loads(line)
        if "error" in told or "error" in told.get("data", {}):
            sys.exit(line)
        if is_it(told):
            return
try:
    monitor = connected()
    ask(monitor, "qmp_capabilities")
    told = {}
    if tool == "leandisk":
        monitor.close()
        begun = time.monotonic()
        command = [program, "copy", f"qmp:{path}?disk=vda", target, "-O", "qcow2", "--freeze", "never", "--json"]
        told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    else:
        begun = time.monotonic()
        ask(monitor, "drive-backup", **{"job-id": "backup", "device": "disk", "sync": "full", "target": target, "format": "qcow2"})
        wait(monitor, lambda told: told.get("event") == "BLOCK_JOB_COMPLETED")
    with open(target, "rb") as file:
        os.fsync(file)
    told["copy_seconds"] = time.monotonic() - begun
    print(json.dumps(told))
finally:
    qemu.kill()
    qemu.wait()
    os.remove(path)
    os.rmdir(folder)
"#;

/// The ways between a file and servers: a name, and what is behind one.
const WAYS: [(&str, &str); 3] = [("from", "from"), ("to", "to"), ("from and to", "from to")];

/// What may be read more than the guest uses.
const READ_MORE_MAX: f64 = 1.05;
/// The share of the time that a copy of all takes which one of half of it may take.
const HALF_MAX: f64 = 0.6;

/// Every case.
pub(super) fn all(program: &Path, inputs: &Inputs) -> Vec<Case> {
    let mut cases = Vec::new();
    let servers: &[_] = if inputs.is_tiny() { &["nbdkit"] } else { &["nbdkit", "qemu-nbd", "leandisk"] };
    for server in servers {
        for (name, behind) in WAYS {
            let what = format!("NBD: no waste, {name} {server}");
            cases.push(between(program, inputs, what, inputs.dense(), (server, behind)));
        }
    }
    cases.push(used_only(program, inputs));
    cases.push(live(program, inputs));
    cases.push(folder(program, inputs));
    cases
}

/// A copy whose every byte must be moved.
fn between(program: &Path, inputs: &Inputs, name: String, input: Input, how: (&str, &str)) -> Case {
    let contenders = ["leandisk", "nbdcopy"]
        .map(|tool| contender(program, inputs, tool, &input, how, &["--keep-free", "--keep-swap"]))
        .into();
    Case {
        name,
        contenders,
        input,
        judge: Box::new(|results| vec![ratio("time to that of nbdcopy", results, 1.0)]),
    }
}

/// A disk of which a part is used.
fn used_only(program: &Path, inputs: &Inputs) -> Case {
    let input = inputs.stale();
    let how = ("nbdkit", "from");
    let mut whole = contender(program, inputs, "leandisk", &input, how, &["--keep-free", "--keep-swap"]);
    whole.name = "leandisk --keep-free".into();
    Case {
        name: "NBD: half stale ext4, from nbdkit".into(),
        contenders: vec![
            contender(program, inputs, "leandisk", &input, how, &[]),
            contender(program, inputs, "nbdcopy", &input, how, &[]),
            whole,
        ],
        input,
        judge: Box::new(|results| {
            let told = |field: &str| results[0].median(|sample| number(sample, field));
            vec![
                Verdict {
                    what: "bytes read to bytes used",
                    value: told("read_bytes") / told("used_bytes"),
                    bar: READ_MORE_MAX,
                },
                ratio("time to that of nbdcopy, which copies all", results, HALF_MAX),
            ]
        }),
    }
}

/// A disk of a running guest, half of which is stale.
fn live(program: &Path, inputs: &Inputs) -> Case {
    let input = inputs.stale();
    let contenders = ["leandisk", "drive-backup"].map(|tool| {
        let target = inputs.target(&format!("{tool}.qcow2"));
        let (program, disk, to) = (text(program), text(&input.path), text(&target));
        let command = words(&[&["python3", "-c", LIVE, tool, &program, &disk, &to]]);
        Contender { name: tool.into(), command, target, as_root: true, around: None }
    });
    Case {
        name: "running guest, half stale ext4 to qcow2".into(),
        contenders: contenders.into(),
        input,
        judge: Box::new(|results| vec![ratio("time to that of drive-backup", results, HALF_MAX)]),
    }
}

/// Many disks in a folder, all at once and one after the other.
fn folder(program: &Path, inputs: &Inputs) -> Case {
    let input = inputs.folder();
    let (program, disks) = (text(program), text(&input.path));
    let contender = |name: &str, script: &str| {
        let target = inputs.target("analyze");
        let command = words(&[&["bash", "-c", script, name, &program, &disks, &text(&target)]]);
        Contender { name: name.into(), command, target, as_root: false, around: None }
    };
    let one_by_one =
        "set -eu; for disk in \"$2\"/*; do \"$1\" analyze \"$disk\" -f raw --json; done > \"$3\"";
    Case {
        name: "folder of disks".into(),
        contenders: vec![
            contender("leandisk --recursive", "\"$1\" analyze \"$2\" --recursive --json > \"$3\""),
            contender("leandisk, one by one", one_by_one),
        ],
        input,
        judge: Box::new(|results| {
            let value = median_ratio(&results[0], &results[1], |sample| sample.seconds);
            vec![Verdict { what: "time to the sum of single ones", value, bar: HALF_MAX }]
        }),
    }
}

fn contender(
    program: &Path,
    inputs: &Inputs,
    tool: &str,
    input: &Input,
    (server, behind): (&str, &str),
    more: &[&str],
) -> Contender {
    let target = inputs.target(&format!("nbd-{tool}.raw"));
    let (program, from, to) = (text(program), text(&input.path), text(&target));
    let arguments = [tool, &program, &from, &to, server, behind];
    // The target of a server has its size before.
    let around = Around {
        before: format!("truncate -r '{from}' \"$1\"; chmod a+rw \"$1\""),
        after: "echo null".into(),
        reading_by: None,
    };
    Contender {
        name: tool.into(),
        command: words(&[&["bash", "-c", BETWEEN, "bench"], &arguments, more]),
        target,
        as_root: true,
        around: Some(around),
    }
}

/// Our time to the next contender's, of the copy alone.
fn ratio(what: &'static str, results: &[Measured], bar: f64) -> Verdict {
    let value = median_ratio(&results[0], &results[1], |sample| number(sample, "copy_seconds"));
    Verdict { what, value, bar }
}

fn number(sample: &Sample, field: &str) -> f64 {
    sample.printed[field].as_f64().unwrap_or(f64::NAN)
}
