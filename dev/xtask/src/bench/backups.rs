//! Backups beside restic's of the same disk: the first one, and one after a part was changed, by a bitmap and without. What each stores is on stable
//! storage within the time.

use std::path::Path;

use serde_json::Value;

use super::Measured;
use super::cases::{Case, Verdict, text, time, words};
use super::inputs::Inputs;
use super::measure::{Around, Contender};
use super::restoring::memory;

/// Runs what follows `$4` in a folder below the target `$3`, in which `before` put a repository.
const RUN: &str = r#"
set -euo pipefail
program=$1 input=$(realpath "$2") folder=$(realpath "$3.folder")
export RESTIC_PASSWORD_FILE=$input/password
case $4 in
    restic) cd "$input/$5" && restic -q --no-cache -r "$folder/repo" backup disk.raw > /dev/null; echo '{}' ;;
    leandisk) "$program" backup "disk=$input/$5/disk.raw" -f raw --repo "$folder/repo" --json ;;
    bitmap) "$program" backup "disk=$folder/disk.qcow2" --bitmap daily --repo "$folder/repo" --json ;;
esac
sync -f "$folder"
"#;

/// What may be read more than what changed, and for what is known of the repository and the file system.
const READ_MORE_MAX: f64 = 1.2;

/// Every case.
pub(super) fn all(program: &Path, inputs: &Inputs) -> Vec<Case> {
    let read_all = |results: &[Measured]| {
        vec![time("time to that of restic", results, &results[1..], 0.35), memory(results)]
    };
    let tracked = |results: &[Measured]| {
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let read = results[0].median(|sample| number(&sample.printed["read_bytes"]));
        let changed = results[0].median(|sample| number(&sample.found["changed_bytes"]));
        vec![
            time("time to that of restic", results, &results[1..], 0.03),
            Verdict { what: "bytes read to bytes changed", value: read / changed, bar: READ_MORE_MAX },
        ]
    };
    vec![
        case(
            program,
            inputs,
            "first backup of aged NTFS",
            [("leandisk", "empty"), ("restic", "empty")],
            "first",
            read_all,
        ),
        case(
            program,
            inputs,
            "second backup of aged NTFS, without a bitmap",
            [("leandisk", "leandisk"), ("restic", "restic")],
            "second",
            read_all,
        ),
        case(
            program,
            inputs,
            "second backup of aged NTFS, with a bitmap",
            [("bitmap", "bitmap"), ("restic", "restic")],
            "second",
            tracked,
        ),
    ]
}

/// `ways` are how it is backed up, each with the repository that it goes to a copy of.
fn case(
    program: &Path,
    inputs: &Inputs,
    name: &str,
    ways: [(&str, &str); 2],
    generation: &str,
    judge: fn(&[Measured]) -> Vec<Verdict>,
) -> Case {
    let input = inputs.generations(program);
    let contenders = ways.map(|(way, repository)| {
        let (program, input) = (text(program), text(&input.path));
        let target = inputs.target(way);
        let disk = match way {
            "bitmap" => format!("cp --sparse=always '{input}/{generation}/disk.qcow2' \"$1.folder/disk.qcow2\""),
            _ => "true".into(),
        };
        let around = Around {
            before: format!(
                "rm -rf \"$1.folder\"; mkdir \"$1.folder\"; cp -r '{input}/{repository}' \"$1.folder/repo\"; {disk}
                chmod -R a+rwX \"$1.folder\"; touch \"$1\"; chmod a+rw \"$1\""
            ),
            after: format!("rm -rf \"$1.folder\"; echo \"{{\\\"changed_bytes\\\": $(cat '{input}/changed')}}\""),
            reading_by: None,
        };
        let command = words(&[&["bash", "-c", RUN, way, &program, &input, &text(&target), way, generation]]);
        let name = if way == "restic" { way } else { "leandisk" };
        Contender { name: name.into(), command, target, as_root: true, around: Some(around) }
    });
    Case { name: name.into(), input, contenders: contenders.into(), judge: Box::new(judge) }
}
