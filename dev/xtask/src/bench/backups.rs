//! Backups beside those of restic and borg of the same disk: the first one, one after a part was changed, by a bitmap and without, and one after
//! nothing but a defragmentation. What each stores is on stable storage within the time.

use std::path::Path;

use serde_json::Value;

use super::Measured;
use super::cases::{Case, Judge, Verdict, text, time, words};
use super::inputs::{Input, Inputs};
use super::measure::{Around, Contender};
use super::restoring::memory;

/// Runs what follows `$4` in a folder below the target `$3`, in which `before` put a repository.
const RUN: &str = r#"
set -euo pipefail
program=$1 input=$(realpath "$2") folder=$(realpath "$3.folder")
export RESTIC_PASSWORD_FILE=$input/password
export BORG_BASE_DIR=$folder/borg.base BORG_PASSCOMMAND="cat $input/password" BORG_RELOCATED_REPO_ACCESS_IS_OK=yes
case $4 in
    restic) cd "$input/$5" && restic -q --no-cache -r "$folder/repo" backup disk.raw > /dev/null; echo '{}' ;;
    borg) cd "$input/$5" && borg create --sparse --chunker-params fixed,4194304 "$folder/repo::disk" disk.raw; echo '{}' ;;
    leandisk) "$program" backup "disk=$input/$5/disk.raw" -f raw --repo "$folder/repo" --json ;;
    bitmap) "$program" backup "disk=$folder/disk.qcow2" --bitmap daily --repo "$folder/repo" --json ;;
esac
sync -f "$folder"
"#;

/// What a run added to the repository, and what is known of its input.
const FOUND: &str = r#"
stored=$(($(du -sb "$1.folder/repo" | cut -f1) - $(cat "$1.folder/before")))
printf '{"stored_bytes": %s, "input": %s}' "$stored" "$(cat "$1.folder/facts")"
rm -rf "$1.folder"
"#;

/// What may be read more than what changed, and for what is known of the repository and the file system.
const READ_MORE_MAX: f64 = 1.2;

/// Every case.
pub(super) fn all(program: &Path, inputs: &Inputs) -> Vec<Case> {
    let read_all = |results: &[Measured]| {
        vec![time("time to that of restic", results, &results[1..2], 0.35), memory(results)]
    };
    let first = move |results: &[Measured]| {
        let mut verdicts = read_all(results);
        verdicts.push(time("time to that of borg", results, &results[2..], 0.6));
        verdicts
    };
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let tracked = move |results: &[Measured]| {
        let read = results[0].median(|sample| number(&sample.printed["read_bytes"]));
        let changed = results[0].median(|sample| number(&sample.found["input"]["changed_bytes"]));
        vec![
            time("time to that of restic", results, &results[1..], 0.03),
            Verdict { what: "bytes read to bytes changed", value: read / changed, bar: READ_MORE_MAX },
        ]
    };
    let put_together = move |results: &[Measured]| {
        let stored = |of: &Measured| of.median(|sample| number(&sample.found["stored_bytes"]));
        let in_pieces = results[0].median(|sample| number(&sample.found["input"]["fragmented_bytes"]));
        let ours = stored(&results[0]);
        vec![
            Verdict { what: "bytes stored to those of files in pieces", value: ours / in_pieces, bar: 1.1 },
            Verdict { what: "bytes stored to those of restic", value: ours / stored(&results[1]), bar: 0.5 },
        ]
    };
    let (aged, defragmented) = (|| inputs.generations(program), || inputs.put_together(program));
    let case =
        |name, input, generation, ways, judge| case(program, inputs, name, input, generation, ways, judge);
    vec![
        case(
            "first backup of aged NTFS",
            aged(),
            "first",
            &[("leandisk", "empty"), ("restic", "empty"), ("borg", "borg")],
            Box::new(first),
        ),
        case(
            "second backup of aged NTFS, without a bitmap",
            aged(),
            "second",
            &[("leandisk", "leandisk"), ("restic", "restic")],
            Box::new(read_all),
        ),
        case(
            "second backup of aged NTFS, with a bitmap",
            aged(),
            "second",
            &[("bitmap", "bitmap"), ("restic", "restic")],
            Box::new(tracked),
        ),
        case(
            "backup of aged NTFS after a defragmentation",
            defragmented(),
            "second",
            &[("leandisk", "leandisk"), ("restic", "restic")],
            Box::new(put_together),
        ),
    ]
}

/// The disk in the folder `generation` of the input is backed up in several `ways`, each with the repository that it goes to a copy of.
fn case(
    program: &Path,
    inputs: &Inputs,
    name: &str,
    input: Input,
    generation: &str,
    ways: &[(&str, &str)],
    judge: Judge,
) -> Case {
    let contenders = ways.iter().map(|&(way, repository)| {
        let (program, input) = (text(program), text(&input.path));
        let target = inputs.target(way);
        let disk = match way {
            "bitmap" => format!("cp --sparse=always '{input}/{generation}/disk.qcow2' \"$1.folder/disk.qcow2\""),
            _ => "true".into(),
        };
        let around = Around {
            before: format!(
                "rm -rf \"$1.folder\"; mkdir \"$1.folder\"; cp -r '{input}/{repository}' \"$1.folder/repo\"; {disk}
                du -sb \"$1.folder/repo\" | cut -f1 > \"$1.folder/before\"; cp '{input}/facts' \"$1.folder\"
                chmod -R a+rwX \"$1.folder\"; touch \"$1\"; chmod a+rw \"$1\""
            ),
            after: FOUND.into(),
            reading_by: None,
        };
        let command = words(&[&["bash", "-c", RUN, way, &program, &input, &text(&target), way, generation]]);
        let name = if way == "bitmap" { "leandisk" } else { way };
        Contender { name: name.into(), command, target, as_root: true, around: Some(around) }
    });
    Case { name: name.into(), contenders: contenders.collect(), input, judge }
}
