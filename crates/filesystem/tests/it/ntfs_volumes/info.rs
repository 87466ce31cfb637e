//! What ntfsinfo shows of every record, and that it is what is listed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use filesystem::{Catalog, FileExtent, StreamName};
use testkit::run;

use super::{open, text};

/// A non-resident attribute's runs: first cluster in the file and on the volume, clusters.
pub(crate) type Runs = Vec<(u64, u64, u64)>;

/// What is known of a stream: its length, and its runs unless it is in the record.
pub(crate) type Known = (u64, Option<Runs>);

/// The streams of a file by the names that they are listed with; the main one has none.
pub(crate) type Streams = BTreeMap<Option<String>, Known>;

fn number_in(text: &str) -> u64 {
    let text = text.trim().split(' ').next().unwrap();
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None => text.parse().unwrap_or_else(|_| panic!("a number: {text}")),
    }
}

/// What one attribute of ntfsinfo's says, as far as it is asked for here.
#[derive(Default)]
struct Section {
    kind: String,
    name: String,
    is_resident: bool,
    size_bytes: u64,
    runs: Runs,
}

fn sections(info: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut lines = info.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("Dumping attribute ") {
            let kind = rest.split(' ').next().unwrap().to_string();
            sections.push(Section { kind, ..Section::default() });
        }
        let Some((key, value)) = line.split_once(':') else { continue };
        let Some(section) = sections.last_mut() else { continue };
        // What follows the head of an attribute is told with the same words.
        match key.trim() {
            "Resident" => section.is_resident = value.trim() == "Yes",
            "Attribute name" => section.name = value.trim().trim_matches('\'').to_string(),
            "Data size" if section.size_bytes == 0 => section.size_bytes = number_in(value),
            "Runlist" => {
                while let Some(line) = lines.next_if(|line| line.starts_with("\t\t\t")) {
                    let mut fields = line.split_whitespace();
                    let (vcn, lcn) = (number_in(fields.next().unwrap()), fields.next().unwrap());
                    if !lcn.starts_with('<') {
                        section.runs.push((vcn, number_in(lcn), number_in(fields.next().unwrap())));
                    }
                }
            }
            _ => {}
        }
    }
    sections
}

/// A run list as it is with continuing runs joined.
pub(crate) fn joined(runs: impl IntoIterator<Item = (u64, u64, u64)>) -> Runs {
    let mut joined = Runs::new();
    for (vcn, lcn, count) in runs {
        match joined.last_mut() {
            Some(last) if last.0 + last.2 == vcn && last.1 + last.2 == lcn => last.2 += count,
            _ => joined.push((vcn, lcn, count)),
        }
    }
    joined
}

/// The streams of record `number` as ntfsinfo shows them; `None` if it is no file's base record.
fn by_ntfsinfo(volume: &Path, number: u64) -> Option<Streams> {
    let output = Command::new("ntfsinfo")
        .args(["-f", "-v", "-i", &number.to_string(), text(volume)])
        .env("LC_ALL", "C.UTF-8")
        .output()
        .expect("ntfsinfo");
    let info = String::from_utf8_lossy(&output.stdout);
    let Some(flags) = info.lines().find(|line| line.starts_with("MFT Record Flags:")) else {
        let why = String::from_utf8_lossy(&output.stderr);
        // Windows leaves records that were never used as they are.
        let is_none = why.contains("Error loading node: No such file or directory")
            || why.contains("has no FILE magic (0x0)");
        assert!(is_none, "{number}: {info}{why}");
        return None;
    };
    assert!(output.status.success() && info.contains("End of inode reached"), "{info}");
    if !flags.contains("IN_USE") {
        return None;
    }
    let mut streams = Streams::new();
    let main = match flags.contains("DIRECTORY") {
        true => ("$INDEX_ALLOCATION", "$I30"),
        false => ("$DATA", ""),
    };
    let mut inline_bytes = 0;
    for section in sections(&info) {
        let Section { kind, name, .. } = &section;
        if kind == "$INDEX_ROOT" && main.1 == name {
            inline_bytes = section.size_bytes;
        }
        if section.is_resident && kind != "$DATA" {
            continue;
        }
        let listed = match (kind.as_str(), name.as_str()) {
            both if both == main => None,
            ("$DATA", name) if !name.is_empty() => Some(name.to_string()),
            (kind, name) => Some(format!("{name}:{kind}")),
        };
        let known = streams.entry(listed).or_insert((section.size_bytes, None));
        if !section.is_resident {
            known.1.get_or_insert_default().extend(section.runs);
        }
    }
    for (_, runs) in streams.values_mut() {
        *runs = runs.take().map(joined);
    }
    streams.entry(None).or_insert((inline_bytes, None));
    Some(streams)
}

pub(crate) fn runs_of(extents: impl IntoIterator<Item = FileExtent>, cluster_bytes: u64) -> Runs {
    let clusters = |bytes: u64| {
        assert_eq!(bytes % cluster_bytes, 0, "whole clusters");
        bytes / cluster_bytes
    };
    joined(extents.into_iter().map(|extent| {
        let (logical, span) = (extent.logical.get(), extent.span);
        (clusters(logical), clusters(span.start().get()), clusters(span.len_bytes()))
    }))
}

/// The streams of all files as they were listed.
fn listed(catalog: &Catalog, cluster_bytes: u64) -> BTreeMap<u64, Streams> {
    let mut files: BTreeMap<u64, Streams> = BTreeMap::new();
    for stream in catalog.streams() {
        let name = match stream.stream.name {
            StreamName::Main => None,
            StreamName::Named(name) => Some(String::from_utf8_lossy(name).into_owned()),
        };
        let runs = (!stream.stream.is_inline).then(|| runs_of(stream.extents(), cluster_bytes));
        assert!(runs.is_some() || stream.extent_count() == 0, "what is inline has no extents");
        let streams = files.entry(stream.stream.file.0).or_default();
        let other = streams.insert(name, (stream.stream.size_bytes, runs));
        assert!(other.is_none(), "{:?} twice", stream.stream);
    }
    files
}

/// Every record of the volume, or every `step`th, must be listed as ntfsinfo shows it. Answers how many files there are.
pub(crate) fn check_runs(volume: &Path, step: u64) -> usize {
    let filesystem = open(volume);
    let catalog = Catalog::read(&*filesystem).unwrap();
    assert_eq!(catalog.doubts(), []);
    let files = listed(&catalog, filesystem.facts().cluster_bytes.unwrap());
    let info = run("ntfsinfo", &["-f", "-m", text(volume)]);
    let size = |name: &str| {
        let line =
            info.lines().find(|line| line.trim().starts_with(name)).unwrap_or_else(|| panic!("{info}"));
        number_in(line.rsplit(':').next().unwrap())
    };
    let mft_bytes = by_ntfsinfo(volume, 0).unwrap()[&None].0;
    let count = mft_bytes / size("MFT Record Size");
    assert!(files.keys().all(|number| *number < count));
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(step, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let shown = by_ntfsinfo(volume, number);
                    assert_eq!(files.get(&number), shown.as_ref(), "record {number}");
                }
            });
        }
    });
    files.len()
}
