//! What documents say of one state of a disk: read as they are, and turned into figures once they were checked.
//!
//! Only fields that are needed are read, and all of them may be missing: documents of later versions have more. Numbers that no program
//! writes are errors.

use std::collections::BTreeMap;

use block::{Error, Result};
use serde::Deserialize;
use serve::monitor::Snapshot;

use super::Corrupt;
use super::savings::Basis;
use crate::stats::StatsDocument;
use crate::text::{counted, human_bytes, printable, seconds};

/// Volumes, exports and files that a document has at most.
const ENTRIES_MAX: usize = 1 << 16;

/// What a number counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unit {
    Count,
    Bytes,
    Seconds,
    Share,
}

impl Unit {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Count => "",
            Self::Bytes => "bytes",
            Self::Seconds => "s",
            Self::Share => "share",
        }
    }
}

/// What a kind of figure is, whichever document has it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct About {
    /// As JSON has it.
    pub(super) key: String,
    /// In words.
    pub(super) name: String,
    pub(super) unit: Unit,
    pub(super) more_is_better: bool,
    pub(super) basis: Basis,
}

/// One number of one document.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Figure {
    pub(super) about: About,
    pub(super) value: f64,
}

/// What a document is, in the order in which its word counts: of two that have a figure on both sides, the first is shown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    Analyze,
    Stats,
    Fragmentation,
    Defrag,
    Compact,
    Copy,
}

impl Kind {
    fn of(schema: &str) -> Option<Self> {
        Some(match schema {
            "leandisk.analyze/1" => Self::Analyze,
            "leandisk.stats/1" => Self::Stats,
            "leandisk.bench-fragmentation/1" => Self::Fragmentation,
            "leandisk.defrag/1" => Self::Defrag,
            "leandisk.compact/1" => Self::Compact,
            "leandisk.copy/1" => Self::Copy,
            _ => return None,
        })
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Analyze => "analyze",
            Self::Stats => "stats",
            Self::Fragmentation => "bench fragmentation",
            Self::Defrag => "defrag",
            Self::Compact => "compact",
            Self::Copy => "copy",
        }
    }
}

/// Which of the two states a document is given for. Documents of a change know both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// The state before.
    Before,
    /// The state after.
    After,
}

/// Bytes of extents from each size to less than twice that.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Bins {
    pub(super) title: String,
    pub(super) bytes_by_size: BTreeMap<u64, f64>,
}

/// A file that lies in pieces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NamedFile {
    pub(super) volume: u64,
    pub(super) path: String,
    pub(super) size_bytes: u64,
    pub(super) fragments: u64,
}

/// A document for one side.
#[derive(Clone, Debug)]
pub struct Input {
    /// As the user named it.
    pub(super) source: String,
    pub(super) kind: Kind,
    /// The disk that it is about, if it names one.
    pub(super) disk: Option<String>,
    pub(super) virtual_bytes: Option<u64>,
    pub(super) volume_bytes: BTreeMap<u64, u64>,
    pub(super) figures: Vec<Figure>,
    pub(super) bins: Vec<Bins>,
    /// The same of a disk that was served.
    pub(super) snapshot: Option<Snapshot>,
    pub(super) worst: Vec<NamedFile>,
    /// What was done, if it is about that.
    pub(super) deed: Option<String>,
    pub(super) notes: Vec<String>,
}

impl Input {
    /// Reads a document that Leandisk printed. `Corrupt` if it is none, `Unsupported` if nothing of before and after is in it.
    pub fn from_json(source: &str, text: &str, when: When) -> Result<Self> {
        let named: Named = serde_json::from_str(text).map_err(|error| broken(&error))?;
        let Some(kind) = Kind::of(&named.schema) else {
            return Err(Error::unsupported("this kind of document").field(
                "schema",
                printable(&named.schema),
                "one of analyze, stats, defrag, compact, copy or bench fragmentation",
            ));
        };
        let mut input = Self::empty(source, kind);
        match kind {
            Kind::Analyze => input.analyze(&parsed(text)?),
            Kind::Stats => input.stats(&StatsDocument::from_json(text)?)?,
            Kind::Fragmentation => input.fragmentation(&parsed(text)?, when),
            Kind::Defrag => input.defrag(&parsed(text)?, when),
            Kind::Compact => input.compact(&parsed(text)?, when),
            Kind::Copy => input.copy(&parsed(text)?, when),
        }
        input.check()?;
        Ok(input)
    }

    fn empty(source: &str, kind: Kind) -> Self {
        Self {
            source: source.to_owned(),
            kind,
            disk: None,
            virtual_bytes: None,
            volume_bytes: BTreeMap::new(),
            figures: Vec::new(),
            bins: Vec::new(),
            snapshot: None,
            worst: Vec::new(),
            deed: None,
            notes: Vec::new(),
        }
    }

    fn check(&self) -> Result<()> {
        let is_sane = |value: f64| (0.0..=1e24).contains(&value);
        let bins = self.bins.iter().flat_map(|bins| bins.bytes_by_size.values().copied());
        let is_small = self.figures.len() <= ENTRIES_MAX && self.bins.len() <= ENTRIES_MAX;
        match is_small && self.figures.iter().map(|figure| figure.value).chain(bins).all(is_sane) {
            true => Ok(()),
            false => Err(Error::corrupt(Corrupt::Number)),
        }
    }

    fn add(&mut self, figure: &Template, basis: Basis, value: f64) {
        let Template(key, name, unit, more_is_better) = *figure;
        let about = About { key: key.to_owned(), name: name.to_owned(), unit, more_is_better, basis };
        self.figures.push(Figure { about, value });
    }

    fn add_named(&mut self, key: String, name: String, unit: Unit, value: f64) {
        let about = About { key, name, unit, more_is_better: false, basis: Basis::Measured };
        self.figures.push(Figure { about, value });
    }

    fn analyze(&mut self, document: &Analyze) {
        self.disk.clone_from(&document.path);
        self.virtual_bytes = document.virtual_bytes;
        let volumes = &document.volumes[..document.volumes.len().min(ENTRIES_MAX)];
        for volume in volumes {
            self.volume_bytes.insert(volume.index, volume.size_bytes);
        }
        let sum = |of: fn(&Volume) -> Option<u64>| sum(volumes.iter().filter_map(of));
        let largest = volumes.iter().filter_map(|volume| volume.largest_free_extent_bytes).max();
        let image = document.image.as_ref().map(|image| number(image.allocated_bytes));
        let measured = [
            (&ALLOCATED, image),
            (&RECLAIMABLE, document.reclaimable_bytes.map(number)),
            (&FRAGMENTED_FILES, sum(|volume| volume.fragmented_files)),
            (&FRAGMENTS, sum(|volume| volume.fragments)),
            (&WHOLE_STACK, document.whole_stack.as_ref().map(|whole| number(whole.extents))),
            (&FREE_EXTENTS, sum(|volume| volume.free_extents)),
            (&LARGEST_FREE, largest.map(number)),
        ];
        for (template, value) in measured {
            value.iter().for_each(|value| self.add(template, Basis::Measured, *value));
        }
        self.reading(document);
        self.free_space(volumes);
        self.worst = document.worst_files.iter().take(ENTRIES_MAX).map(WorstFile::named).collect();
    }

    /// What the cost model says of the storage that the document's advice is for.
    fn reading(&mut self, document: &Analyze) {
        let Some(device) = &document.device else { return };
        let Some(cost) = document.reading.iter().find(|cost| cost.device == *device) else { return };
        let name = |what: &str| format!("{what} to read all files, on {}", printable(device));
        let shown = [
            ("read_requests", name("requests"), Unit::Count, number(cost.requests)),
            ("read_seconds", name("time"), Unit::Seconds, cost.model_seconds),
        ];
        for (key, name, unit, value) in shown {
            // Two storages are two kinds of figures.
            let about = About {
                key: format!("{key}_{}", key_part(device)),
                name,
                unit,
                more_is_better: false,
                basis: Basis::Predicted,
            };
            self.figures.push(Figure { about, value });
        }
        if device == "measured" {
            let note =
                "the storage was timed anew for each analysis: a part of what changed may be the storage's";
            self.notes.push(note.to_owned());
        }
    }

    fn free_space(&mut self, volumes: &[Volume]) {
        let mut bytes = BTreeMap::<u64, f64>::new();
        for bin in volumes.iter().flat_map(|volume| &volume.free_extents_by_size).take(ENTRIES_MAX) {
            *bytes.entry(bin.from_bytes).or_default() += number(bin.bytes);
        }
        if bytes.is_empty() {
            return;
        }
        let title = "Free space, by the size of its extents".to_owned();
        self.bins.push(Bins { title, bytes_by_size: bytes });
    }

    /// `Refused` if several disks were measured: nobody says which.
    fn stats(&mut self, document: &StatsDocument) -> Result<()> {
        let [export] = document.exports() else {
            let what = format!("it is about {} exports", document.exports().len());
            return Err(
                Error::refused(what).hint("record one with 'leandisk stats SOCKET --export NAME --json'")
            );
        };
        self.disk = Some(export.name.clone());
        let Some(snapshot) = &export.snapshot else { return Ok(()) };
        let ios = snapshot.logical.reads.saturating_add(snapshot.logical.writes);
        self.add(&IOS, Basis::Measured, number(ios));
        let latency = &snapshot.latency.all;
        if latency.count() > 0 {
            let mean = number(u64::try_from(latency.sum).unwrap_or(0)) / number(latency.count()) / 1e6;
            self.add(&RESPONSE, Basis::Measured, mean);
        }
        let more = [
            (&SEQUENTIAL, snapshot.sequential_share()),
            (&SPLIT, snapshot.split_ratio()),
            (&TRANSFER, snapshot.bytes_per_transfer()),
        ];
        for (template, value) in more {
            value.iter().for_each(|value| self.add(template, Basis::Measured, *value));
        }
        self.snapshot = Some(snapshot.clone());
        Ok(())
    }

    /// The two servers are the two states.
    fn fragmentation(&mut self, document: &Fragmentation, when: When) {
        let server = match when {
            When::Before => "qemu-nbd",
            When::After => "leandisk",
        };
        for run in document.runs.iter().filter(|run| run.server == server).take(ENTRIES_MAX) {
            let (format, part) = (printable(&run.format), key_part(&run.format));
            for (key, what, traffic) in
                [("image_write", "written side by side", &run.writing), ("image_read", "read", &run.reading)]
            {
                let name = |figure: &str| format!("{format} {what}, {figure}");
                let time = traffic.elapsed_seconds.as_ref().map(|time| time.mean);
                let transfers = traffic.physical_transfers.as_ref().map(|count| count.mean);
                if let Some(time) = time {
                    self.add_named(format!("{key}_seconds_{part}"), name("time"), Unit::Seconds, time);
                }
                if let Some(count) = transfers {
                    let (key, name) = (format!("{key}_transfers_{part}"), name("transfers of the device"));
                    self.add_named(key, name, Unit::Count, count);
                }
            }
            if let Some(extents) = &run.host_extents {
                let name = format!("{format}, extents on the host");
                self.add_named(format!("host_extents_{part}"), name, Unit::Count, extents.mean);
            }
        }
        if when == When::After {
            self.deed =
                Some("wrote the same images through qemu-nbd (before) and through Leandisk (after)".into());
        }
    }

    fn defrag(&mut self, document: &Defrag, when: When) {
        self.disk.clone_from(&document.path);
        let basis = basis(document.dry_run);
        let layouts = document.volumes.iter().map(|volume| (volume.before, volume.after));
        self.layouts(layouts.collect(), when, basis);
        let reading = document.volumes.iter().filter_map(|volume| volume.reading);
        let (mut requests, mut time, mut is_any) = (0.0, 0.0, false);
        for cost in reading {
            is_any = true;
            requests += number(match when {
                When::Before => cost.requests_before,
                When::After => cost.requests_after,
            });
            time += match when {
                When::Before => cost.seconds_before,
                When::After => cost.seconds_after,
            };
        }
        if is_any {
            self.add(&DEFRAG_REQUESTS, Basis::Predicted, requests);
            self.add(&DEFRAG_SECONDS, Basis::Predicted, time);
        }
        if when == When::After {
            let moved = document.volumes.iter().map(|volume| volume.moved_bytes).fold(0, u64::saturating_add);
            let goal = printable(document.goal.as_deref().unwrap_or("files"));
            self.did(
                document.dry_run,
                &format!("defragmented (goal: {goal})"),
                moved,
                "moved",
                document.elapsed_seconds,
            );
            self.ended(document.error.as_ref());
        }
    }

    fn layouts(&mut self, volumes: Vec<(Option<Layout>, Option<Layout>)>, when: When, basis: Basis) {
        let known: Vec<_> = volumes
            .into_iter()
            .filter_map(|(before, after)| before.zip(after))
            .map(|(before, after)| match when {
                When::Before => before,
                When::After => after,
            })
            .collect();
        if known.is_empty() {
            return;
        }
        // What was counted before stands, whatever was carried out.
        let basis = if when == When::Before { Basis::Measured } else { basis };
        let sum = |of: fn(&Layout) -> u64| known.iter().map(of).map(number).sum::<f64>();
        self.add(&FRAGMENTED_FILES, basis, sum(|layout| layout.fragmented_files));
        self.add(&FRAGMENTS, basis, sum(|layout| layout.fragments));
        self.add(&FREE_EXTENTS, basis, sum(|layout| layout.free_extents));
        let largest = known.iter().map(|layout| layout.largest_free_extent_bytes).max().unwrap_or(0);
        self.add(&LARGEST_FREE, basis, number(largest));
    }

    fn compact(&mut self, document: &Compact, when: When) {
        self.disk.clone_from(&document.path);
        self.virtual_bytes = document.virtual_bytes;
        match when {
            When::Before => self.add(&ALLOCATED, Basis::Measured, number(document.allocated_before_bytes)),
            When::After => {
                self.add(&ALLOCATED, basis(document.dry_run), number(document.allocated_after_bytes));
                self.did(
                    document.dry_run,
                    "compacted",
                    document.freed_bytes,
                    "given back",
                    document.elapsed_seconds,
                );
                self.ended(document.error.as_ref());
            }
        }
    }

    fn copy(&mut self, document: &Copy, when: When) {
        let disk = match when {
            When::Before => &document.source,
            When::After => &document.target,
        };
        self.disk.clone_from(&disk.path);
        self.virtual_bytes = disk.virtual_bytes;
        let layouts = document.volumes.iter().filter_map(|volume| volume.layout.as_ref());
        self.layouts(
            layouts.map(|layout| (layout.before, layout.after)).collect(),
            when,
            basis(document.dry_run),
        );
        // A target that was not written takes nothing yet.
        if let Some(bytes) = disk.allocated_bytes.filter(|_| when == When::Before || !document.dry_run) {
            self.add(&ALLOCATED, Basis::Measured, number(bytes));
        }
        if when == When::After {
            self.did(document.dry_run, "copied", document.read_bytes, "read", document.elapsed_seconds);
        }
    }

    /// Says what was done, how much of it, and how long it took.
    fn did(&mut self, dry_run: bool, verb: &str, bytes: u64, how: &str, elapsed: f64) {
        let disk = printable(self.disk.as_deref().unwrap_or("the disk"));
        let bytes = human_bytes(bytes);
        self.deed = Some(match dry_run {
            true => format!("{disk} would be {verb}: {bytes} {how} (a dry run: nothing was changed)"),
            false => format!("{disk} was {verb}: {bytes} {how} in {}", seconds(elapsed.max(0.0))),
        });
    }

    /// Says that it did not come to its end, if it did not.
    fn ended(&mut self, error: Option<&Ended>) {
        if let (Some(Ended { message }), Some(deed)) = (error, &mut self.deed) {
            deed.push_str("; it did not come to its end: ");
            deed.push_str(&printable(message));
        }
    }

    /// What it is, in a few words.
    pub(super) fn about(&self) -> String {
        let disk = self.disk.as_deref().map(printable);
        let disk = disk.map(|disk| format!(" of {disk}")).unwrap_or_default();
        format!("{}{disk}", self.kind.word())
    }
}

impl std::fmt::Display for NamedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} on volume {} ({}, {})",
            printable(&self.path),
            self.volume,
            human_bytes(self.size_bytes),
            counted(self.fragments, "piece", "pieces")
        )
    }
}

/// Key, name, unit, and whether more is better.
struct Template(&'static str, &'static str, Unit, bool);

const ALLOCATED: Template =
    Template("allocated_bytes", "storage that the image takes on the host", Unit::Bytes, false);
const RECLAIMABLE: Template =
    Template("reclaimable_bytes", "held by the image, not used by the guest", Unit::Bytes, false);
const FRAGMENTED_FILES: Template =
    Template("fragmented_files", "files in more than one piece", Unit::Count, false);
const FRAGMENTS: Template = Template("fragments", "pieces of all files", Unit::Count, false);
const WHOLE_STACK: Template =
    Template("whole_stack_extents", "pieces in the lowest layer that is known", Unit::Count, false);
const FREE_EXTENTS: Template = Template("free_extents", "pieces of free space", Unit::Count, false);
const LARGEST_FREE: Template =
    Template("largest_free_extent_bytes", "largest piece of free space", Unit::Bytes, true);
const IOS: Template = Template("ios", "I/Os", Unit::Count, false);
const RESPONSE: Template =
    Template("response_seconds", "response time of an I/O, mean", Unit::Seconds, false);
const SEQUENTIAL: Template =
    Template("sequential_share", "I/Os that go on where the last one ended", Unit::Share, true);
const SPLIT: Template = Template("split_ratio", "physical I/Os for each I/O", Unit::Count, false);
const TRANSFER: Template = Template("transfer_bytes", "length of a physical I/O, mean", Unit::Bytes, true);
const DEFRAG_REQUESTS: Template = Template(
    "read_requests_fragmented",
    "requests to read the fragmented files, on a hard disk",
    Unit::Count,
    false,
);
const DEFRAG_SECONDS: Template = Template(
    "read_seconds_fragmented",
    "time to read the fragmented files, on a hard disk",
    Unit::Seconds,
    false,
);

fn basis(dry_run: bool) -> Basis {
    if dry_run { Basis::Predicted } else { Basis::Measured }
}

/// Text as a part of a key.
fn key_part(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    text.chars().take(60).map(plain).collect()
}

#[allow(clippy::cast_precision_loss)] // Figures for people.
pub(super) fn number(value: u64) -> f64 {
    value as f64
}

fn sum(values: impl Iterator<Item = u64>) -> Option<f64> {
    values.map(number).reduce(|sum, value| sum + value)
}

fn broken(error: &serde_json::Error) -> Error {
    Error::corrupt(Corrupt::Document(error.to_string()))
}

fn parsed<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| broken(&error))
}

#[derive(Deserialize)]
struct Named {
    schema: String,
}

#[derive(Deserialize)]
struct Analyze {
    path: Option<String>,
    virtual_bytes: Option<u64>,
    #[serde(default)]
    volumes: Vec<Volume>,
    image: Option<Image>,
    whole_stack: Option<WholeStack>,
    reclaimable_bytes: Option<u64>,
    #[serde(default)]
    worst_files: Vec<WorstFile>,
    device: Option<String>,
    #[serde(default)]
    reading: Vec<Reading>,
}

#[derive(Deserialize)]
struct Volume {
    index: u64,
    size_bytes: u64,
    fragmented_files: Option<u64>,
    fragments: Option<u64>,
    free_extents: Option<u64>,
    largest_free_extent_bytes: Option<u64>,
    #[serde(default)]
    free_extents_by_size: Vec<FreeBin>,
}

#[derive(Deserialize)]
struct FreeBin {
    from_bytes: u64,
    bytes: u64,
}

#[derive(Deserialize)]
struct Image {
    allocated_bytes: u64,
}

#[derive(Deserialize)]
struct WholeStack {
    extents: u64,
}

#[derive(Deserialize)]
struct WorstFile {
    volume: u64,
    path: String,
    size_bytes: u64,
    fragments: u64,
}

impl WorstFile {
    fn named(&self) -> NamedFile {
        let Self { volume, path, size_bytes, fragments } = self;
        NamedFile { volume: *volume, path: path.clone(), size_bytes: *size_bytes, fragments: *fragments }
    }
}

#[derive(Deserialize)]
struct Reading {
    device: String,
    requests: u64,
    model_seconds: f64,
}

#[derive(Deserialize)]
struct Fragmentation {
    #[serde(default)]
    runs: Vec<FragmentationRun>,
}

#[derive(Deserialize)]
struct FragmentationRun {
    format: String,
    server: String,
    writing: Traffic,
    reading: Traffic,
    host_extents: Option<Mean>,
}

#[derive(Deserialize)]
struct Traffic {
    elapsed_seconds: Option<Mean>,
    physical_transfers: Option<Mean>,
}

#[derive(Deserialize)]
struct Mean {
    mean: f64,
}

/// Why a change did not come to its end.
#[derive(Deserialize)]
struct Ended {
    message: String,
}

#[derive(Deserialize)]
struct Defrag {
    dry_run: bool,
    error: Option<Ended>,
    path: Option<String>,
    goal: Option<String>,
    #[serde(default)]
    elapsed_seconds: f64,
    #[serde(default)]
    volumes: Vec<DefragVolume>,
}

#[derive(Deserialize)]
struct DefragVolume {
    before: Option<Layout>,
    after: Option<Layout>,
    #[serde(default)]
    moved_bytes: u64,
    reading: Option<DefragReading>,
}

#[derive(Clone, Copy, Deserialize)]
struct Layout {
    fragments: u64,
    fragmented_files: u64,
    free_extents: u64,
    largest_free_extent_bytes: u64,
}

#[derive(Clone, Copy, Deserialize)]
struct DefragReading {
    requests_before: u64,
    requests_after: u64,
    seconds_before: f64,
    seconds_after: f64,
}

#[derive(Deserialize)]
struct Compact {
    dry_run: bool,
    error: Option<Ended>,
    path: Option<String>,
    virtual_bytes: Option<u64>,
    allocated_before_bytes: u64,
    allocated_after_bytes: u64,
    #[serde(default)]
    freed_bytes: u64,
    #[serde(default)]
    elapsed_seconds: f64,
}

#[derive(Deserialize)]
struct Copy {
    dry_run: bool,
    source: CopiedDisk,
    target: CopiedDisk,
    #[serde(default)]
    read_bytes: u64,
    #[serde(default)]
    elapsed_seconds: f64,
    #[serde(default)]
    volumes: Vec<CopiedVolume>,
}

#[derive(Deserialize)]
struct CopiedDisk {
    path: Option<String>,
    virtual_bytes: Option<u64>,
    allocated_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct CopiedVolume {
    layout: Option<CopiedLayout>,
}

#[derive(Deserialize)]
struct CopiedLayout {
    before: Option<Layout>,
    after: Option<Layout>,
}
