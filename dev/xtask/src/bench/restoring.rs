//! What was backed up comes back: a disk beside `restic restore` of the same disk, and a file of it beside `restic dump` of that file. Each
//! reads a repository that it made itself.

use std::path::Path;

use super::Measured;
use super::cases::{Case, Verdict, text, time, words};
use super::inputs::{Input, Inputs};
use super::measure::{Contender, Sample};

/// Leandisk, the program `$1`, restores the disk that is backed up in `$2` to `$3`.
const RESTORE: &str = r#"exec "$1" restore latest "$3" --repo "$2/leandisk" --password-file "$2/password" -O raw --force --json"#;

/// The same by restic, with holes where it can make them. It restores under the name that the snapshot has.
const RESTORE_BY_RESTIC: &str = r#"
set -euo pipefail
sparse=
! restic restore --help | grep -q -e --sparse || sparse=--sparse
trap 'rm -rf "$2.folder"' EXIT
restic -q --no-cache -r "$1/restic" -p "$1/password" restore latest $sparse --target "$2.folder" > /dev/null
mv "$2.folder/disk.raw" "$2"
"#;

/// Leandisk extracts the file of the disk that is backed up in `$2` to `$3`.
const EXTRACT: &str = r#"
set -euo pipefail
trap 'rm -rf "$3.folder"' EXIT
mkdir "$3.folder"
"$1" extract latest /file.bin --into "$3.folder" --repo "$2/leandisk" --password-file "$2/password" > /dev/null
mv "$3.folder/file.bin" "$3"
"#;

/// The file, backed up as one, by restic.
const DUMP: &str =
    r#"exec restic -q --no-cache -r "$1/restic-file" -p "$1/password" dump latest /file.bin > "$2""#;

/// The most memory of a backup or a restore.
const MEMORY_BYTES_MAX: f64 = 512.0 * 1024.0 * 1024.0;

/// Every case.
pub(super) fn all(program: &Path, inputs: &Inputs) -> Vec<Case> {
    vec![
        case(program, inputs, "restore of a disk to raw", (RESTORE, RESTORE_BY_RESTIC), |results| {
            vec![time("time to that of restic restore", results, &results[1..], 0.5), memory(results)]
        }),
        case(program, inputs, "a file out of a snapshot", (EXTRACT, DUMP), |results| {
            vec![time("time to that of restic dump", results, &results[1..], 1.2), memory(results)]
        }),
    ]
}

fn case(
    program: &Path,
    inputs: &Inputs,
    name: &str,
    (ours, theirs): (&str, &str),
    judge: fn(&[Measured]) -> Vec<Verdict>,
) -> Case {
    let input = inputs.backed_up(program);
    let contenders = vec![
        run(inputs, "leandisk", ours, &[&text(program)], &input),
        run(inputs, "restic", theirs, &[], &input),
    ];
    Case { name: name.into(), input, contenders, judge: Box::new(judge) }
}

/// Runs `script` with what it is told first, then the folder of the repositories and the target.
fn run(inputs: &Inputs, name: &str, script: &str, first: &[&str], input: &Input) -> Contender {
    let target = inputs.target(name);
    let command = words(&[&["bash", "-c", script, name], first, &[&text(&input.path), &text(&target)]]);
    Contender { name: name.into(), command, target, as_root: false, around: None }
}

/// How much memory ours took.
pub(super) fn memory(results: &[Measured]) -> Verdict {
    let value = results[0].median(|sample: &Sample| sample.peak_memory_bytes);
    Verdict { what: "peak memory in bytes", value, bar: MEMORY_BYTES_MAX }
}
