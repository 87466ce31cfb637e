//! `leandisk backup`, `snapshots`, `restore` and `check`: what was stored in a repository, what is there, and what came back.

use std::fmt::Write as _;

use serde::Serialize;

use crate::copy::CopyDocument;
use crate::text::{Palette, counted, human_bytes, metric_label, printable, wrapped};

/// How a backup knows what changed since the last one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tracking {
    /// It does not: all used data are read.
    None {
        /// Why.
        reason: String,
    },
    /// By a persistent dirty bitmap of the image.
    Bitmap,
    /// By the layers of the image that are as they were.
    Chain,
}

/// A disk of a backup.
#[derive(Clone, Debug)]
pub struct DiskBackup {
    /// What it is called.
    pub name: String,
    /// Its file in the snapshot.
    pub snapshot_path: String,
    /// Where it was read.
    pub path: String,
    /// Its size.
    pub virtual_bytes: u64,
    /// What the guest uses.
    pub used_bytes: u64,
    /// What was read.
    pub read_bytes: u64,
    /// What of it the repository did not have, before it was compressed.
    pub new_bytes: u64,
    /// How much had to be read, and why.
    pub tracking: Tracking,
}

/// What a backup was, or would be.
pub struct BackupSubject<'a> {
    /// Where the repository is.
    pub repository: &'a str,
    /// Whether nothing was done.
    pub dry_run: bool,
    /// What was made.
    pub snapshot: Option<String>,
    /// The last one of these disks.
    pub parent: Option<String>,
    /// Earlier ones that were forgotten, or would be.
    pub forgotten: Vec<String>,
    /// The disks.
    pub disks: Vec<DiskBackup>,
    /// Bytes of the files that were made in the repository. In a dry run the most that can be.
    pub stored_bytes: u64,
    /// How long it took.
    pub elapsed_seconds: f64,
    /// Whether it was read back.
    pub verified: bool,
}

/// The document `leandisk.backup/1`.
#[derive(Clone, Debug, Serialize)]
pub struct BackupDocument {
    schema: &'static str,
    dry_run: bool,
    repository: String,
    snapshot: Option<String>,
    parent: Option<String>,
    forgotten: Vec<String>,
    disks: Vec<DiskEntry>,
    read_bytes: u64,
    stored_bytes: u64,
    verified: bool,
    elapsed_seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
struct DiskEntry {
    name: String,
    snapshot_path: String,
    path: String,
    virtual_bytes: u64,
    used_bytes: u64,
    read_bytes: u64,
    new_bytes: u64,
    tracking: &'static str,
    reason: Option<String>,
}

/// The document of one backup.
pub fn backup_document(subject: BackupSubject<'_>) -> BackupDocument {
    let entry = |disk: DiskBackup| {
        let (tracking, reason) = match disk.tracking {
            Tracking::None { reason } => ("none", Some(reason)),
            Tracking::Bitmap => ("bitmap", None),
            Tracking::Chain => ("chain", None),
        };
        let DiskBackup {
            name, snapshot_path, path, virtual_bytes, used_bytes, read_bytes, new_bytes, ..
        } = disk;
        DiskEntry {
            name,
            snapshot_path,
            path,
            virtual_bytes,
            used_bytes,
            read_bytes,
            new_bytes,
            tracking,
            reason,
        }
    };
    BackupDocument {
        schema: "leandisk.backup/1",
        dry_run: subject.dry_run,
        repository: subject.repository.to_owned(),
        snapshot: subject.snapshot,
        parent: subject.parent,
        forgotten: subject.forgotten,
        read_bytes: subject.disks.iter().map(|disk| disk.read_bytes).sum(),
        disks: subject.disks.into_iter().map(entry).collect(),
        stored_bytes: subject.stored_bytes,
        verified: subject.verified,
        elapsed_seconds: subject.elapsed_seconds,
    }
}

/// What each file of [`backup_metrics`] begins with.
pub const BACKUP_METRICS_START: &str = "# HELP leandisk_backup_";

/// The figures of a backup as Prometheus reads them (its text format, version 0.0.4), with the time at which it ended, in seconds since 1970.
pub fn backup_metrics(document: &BackupDocument, unix_seconds: u64) -> String {
    type Metric = (&'static str, &'static str, fn(&DiskEntry) -> u64);
    const METRICS: [Metric; 4] = [
        ("virtual_bytes", "Size of the disk.", |disk| disk.virtual_bytes),
        ("used_bytes", "What the guest uses of the disk.", |disk| disk.used_bytes),
        ("read_bytes", "What the last backup read of the disk.", |disk| disk.read_bytes),
        ("new_bytes", "What of it the repository did not have, before compression.", |disk| disk.new_bytes),
    ];
    let repository = metric_label(&document.repository);
    let mut text = String::new();
    for (name, help, value) in METRICS {
        push_metric(&mut text, name, help);
        for disk in &document.disks {
            let label = metric_label(&disk.name);
            let value = value(disk);
            let _ = writeln!(
                text,
                "leandisk_backup_{name}{{repository=\"{repository}\",disk=\"{label}\"}} {value}"
            );
        }
    }
    let names: Vec<_> = document.disks.iter().map(|disk| disk.name.as_str()).collect();
    let disks = metric_label(&names.join(","));
    let of_all = [
        (
            "last_success_timestamp_seconds",
            "When the last backup that succeeded ended.",
            unix_seconds.to_string(),
        ),
        ("duration_seconds", "How long it took.", format!("{:.3}", document.elapsed_seconds)),
        (
            "stored_bytes",
            "Bytes of the files that it made in the repository.",
            document.stored_bytes.to_string(),
        ),
        ("verified", "Whether it was read back and compared.", u8::from(document.verified).to_string()),
    ];
    for (name, help, value) in of_all {
        push_metric(&mut text, name, help);
        let _ =
            writeln!(text, "leandisk_backup_{name}{{repository=\"{repository}\",disks=\"{disks}\"}} {value}");
    }
    text
}

fn push_metric(text: &mut String, name: &str, help: &str) {
    let _ = writeln!(text, "# HELP leandisk_backup_{name} {help}\n# TYPE leandisk_backup_{name} gauge");
}

/// The first eight digits of an ID.
fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

/// The document in words and numbers.
pub fn backup_text(document: &BackupDocument, palette: Palette) -> String {
    let mut out = String::new();
    let heading = match &document.snapshot {
        Some(snapshot) => format!("snapshot {} in {}", short(snapshot), printable(&document.repository)),
        None => format!("would back up to {}", printable(&document.repository)),
    };
    let _ = writeln!(out, "{}", palette.strong(&heading));
    for disk in &document.disks {
        let _ = writeln!(out, "  {}", printable(&disk.name));
        let used = format!("{} of {} virtual", human_bytes(disk.used_bytes), human_bytes(disk.virtual_bytes));
        let _ = writeln!(out, "    used   {used}");
        let _ = writeln!(out, "    read   {}", human_bytes(disk.read_bytes));
        if !document.dry_run {
            let _ = writeln!(out, "    new    {}", human_bytes(disk.new_bytes));
        }
        if disk.tracking != "none" {
            let _ = writeln!(out, "    by     {}", disk.tracking);
        }
        if let Some(reason) = &disk.reason {
            out.push_str(&wrapped("    ", None, &printable(reason)));
        }
    }
    let most = if document.dry_run { "at most " } else { "" };
    let _ = writeln!(out, "  stored {most}{}", human_bytes(document.stored_bytes));
    if let Some(parent) = &document.parent {
        let _ = writeln!(out, "  after  snapshot {}", short(parent));
    }
    if !document.forgotten.is_empty() {
        let forgotten: Vec<_> = document.forgotten.iter().map(|id| short(id)).collect();
        let verb = if document.dry_run { "would forget" } else { "forgot" };
        let count = counted(forgotten.len() as u64, "snapshot", "snapshots");
        out.push_str(&wrapped("  ", None, &format!("{verb} {count}: {}", forgotten.join(", "))));
    }
    if !document.dry_run {
        let _ = writeln!(out, "  time   {:.1} s", document.elapsed_seconds);
    }
    if document.verified {
        let _ = writeln!(out, "  {}", palette.good("verified: what was stored, read back, is what was read"));
    }
    out
}

/// A disk of a snapshot.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotDiskEntry {
    /// What it is called.
    pub name: String,
    /// Its file, as `restic dump` takes it.
    pub snapshot_path: String,
    /// Its size.
    pub virtual_bytes: u64,
}

/// A snapshot of a repository.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotEntry {
    /// Its ID.
    pub id: String,
    /// When it was begun: RFC 3339.
    pub time: String,
    /// Of which host.
    pub hostname: String,
    /// What the user calls it.
    pub tags: Vec<String>,
    /// What was backed up.
    pub paths: Vec<String>,
    /// The files in its root: the disks.
    pub disks: Vec<SnapshotDiskEntry>,
}

/// The document `leandisk.snapshots/1`.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotsDocument {
    schema: &'static str,
    repository: String,
    snapshots: Vec<SnapshotEntry>,
}

impl SnapshotsDocument {
    /// Of these, oldest first.
    pub fn new(repository: String, snapshots: Vec<SnapshotEntry>) -> Self {
        Self { schema: "leandisk.snapshots/1", repository, snapshots }
    }
}

/// A line a snapshot.
pub fn snapshots_text(document: &SnapshotsDocument, palette: Palette) -> String {
    let mut out = String::new();
    let count = counted(document.snapshots.len() as u64, "snapshot", "snapshots");
    let _ = writeln!(out, "{}", palette.strong(&format!("{count} in {}", printable(&document.repository))));
    for snapshot in &document.snapshots {
        // To the second is enough for people.
        let time = snapshot.time.get(..19).unwrap_or(&snapshot.time).replace('T', " ");
        let mut line =
            format!("  {}  {}  {}", short(&snapshot.id), printable(&time), printable(&snapshot.hostname));
        for tag in &snapshot.tags {
            let _ = write!(line, "  [{}]", printable(tag));
        }
        let _ = writeln!(out, "{line}");
        for disk in &snapshot.disks {
            let _ =
                writeln!(out, "            {}  {}", printable(&disk.name), human_bytes(disk.virtual_bytes));
        }
        if snapshot.disks.is_empty() {
            let _ = writeln!(out, "            no disks: {}", printable(&snapshot.paths.join(", ")));
        }
    }
    out
}

/// The document `leandisk.restore/1`.
#[derive(Clone, Debug, Serialize)]
pub struct RestoreDocument {
    schema: &'static str,
    snapshot: String,
    disk: Option<String>,
    in_place: bool,
    #[serde(flatten)]
    done: Restored,
}

#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Restored {
    /// The copy whose source the snapshot was; its own name of a schema is not printed.
    New(Box<CopyDocument>),
    InPlace(RestoredInPlace),
}

#[derive(Clone, Debug, Serialize)]
struct RestoredInPlace {
    dry_run: bool,
    target: InPlaceTarget,
    read_bytes: u64,
    written_bytes: u64,
    verified: bool,
    elapsed_seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
struct InPlaceTarget {
    path: String,
    format: String,
    virtual_bytes: u64,
}

/// What a restore in place was, or would be.
#[derive(Clone, Debug)]
pub struct InPlace {
    /// The snapshot's ID.
    pub snapshot: String,
    /// What was said of the disk in it.
    pub disk: Option<String>,
    /// The disk that was there.
    pub target_path: String,
    /// Its format.
    pub target_format: String,
    /// Its size, which is that of the snapshot's disk.
    pub virtual_bytes: u64,
    /// Whether nothing was written.
    pub dry_run: bool,
    /// Bytes of the snapshot's disk that were compared.
    pub read_bytes: u64,
    /// Bytes that differed.
    pub written_bytes: u64,
    /// Whether all was compared once more.
    pub verified: bool,
    /// How long it took.
    pub elapsed_seconds: f64,
}

/// The document of one restore, which was a copy from a snapshot.
pub fn restore_document(copy: CopyDocument, snapshot: &str, disk: Option<&str>) -> RestoreDocument {
    RestoreDocument {
        schema: "leandisk.restore/1",
        snapshot: snapshot.to_owned(),
        disk: disk.map(str::to_owned),
        in_place: false,
        done: Restored::New(Box::new(copy.without_schema())),
    }
}

/// The document of one restore onto a disk that was there.
pub fn restored_in_place(done: InPlace) -> RestoreDocument {
    let InPlace { target_path: path, target_format: format, virtual_bytes, .. } = done;
    let InPlace { dry_run, read_bytes, written_bytes, verified, elapsed_seconds, .. } = done;
    let target = InPlaceTarget { path, format, virtual_bytes };
    RestoreDocument {
        schema: "leandisk.restore/1",
        snapshot: done.snapshot,
        disk: done.disk,
        in_place: true,
        done: Restored::InPlace(RestoredInPlace {
            dry_run,
            target,
            read_bytes,
            written_bytes,
            verified,
            elapsed_seconds,
        }),
    }
}

/// The document in words and numbers.
pub fn restore_text(document: &RestoreDocument, palette: Palette) -> String {
    let done = match &document.done {
        Restored::New(copy) => {
            let text = crate::copy::copy_text(copy, palette);
            return text.replacen("copied ", "restored ", 1).replacen("would copy ", "would restore ", 1);
        }
        Restored::InPlace(done) => done,
    };
    let mut out = String::new();
    let verb = if done.dry_run { "would restore" } else { "restored" };
    let target = format!("{} ({})", printable(&done.target.path), done.target.format);
    let heading = format!("{verb} {target} from {}", short(&document.snapshot));
    let _ = writeln!(out, "{}", palette.strong(&heading));
    let _ = writeln!(out, "  compared {}", human_bytes(done.read_bytes));
    let _ = writeln!(
        out,
        "  differed {} of {}",
        human_bytes(done.written_bytes),
        human_bytes(done.target.virtual_bytes)
    );
    if done.verified {
        let _ =
            writeln!(out, "  {}", palette.good("verified: the target, read back, is the snapshot's disk"));
    }
    out
}

/// A disk whose blobs were all read.
#[derive(Clone, Debug, Serialize)]
pub struct CheckedDisk {
    /// What it is called.
    pub name: String,
    /// Its file in the snapshot.
    pub snapshot_path: String,
    /// Its size.
    pub virtual_bytes: u64,
    /// Its bytes that are no zeros by the list of blobs.
    pub data_bytes: u64,
}

/// How a snapshot's disks behaved when a machine was started from them.
#[derive(Clone, Debug, Serialize)]
pub struct BootReport {
    /// Why the machine was looked at no longer.
    pub ended: BootEnd,
    /// How long it ran.
    pub seconds: f64,
    /// What was waited for and came: a text of the user's, or `login:`.
    pub expected: Option<String>,
    /// The end of what its serial console said.
    pub serial_tail: String,
    /// Where a picture of its screen was stored.
    pub screenshot: Option<String>,
}

/// Why a machine was looked at no longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BootEnd {
    /// What was waited for came.
    Expected,
    /// The time was over.
    Time,
    /// The machine was off.
    Off,
}

/// The document `leandisk.check/1`.
#[derive(Clone, Debug, Serialize)]
pub struct CheckDocument {
    schema: &'static str,
    snapshot: String,
    disks: Vec<CheckedDisk>,
    boot: Option<BootReport>,
}

impl CheckDocument {
    /// Of a snapshot in which nothing is wrong.
    pub fn new(snapshot: String, disks: Vec<CheckedDisk>, boot: Option<BootReport>) -> Self {
        Self { schema: "leandisk.check/1", snapshot, disks, boot }
    }
}

/// Lines of the serial console that the text shows.
const SERIAL_LINES: usize = 8;

/// The document in words and numbers.
pub fn check_text(document: &CheckDocument, palette: Palette) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}", palette.strong(&format!("snapshot {}", short(&document.snapshot))));
    for disk in &document.disks {
        let size = format!("{} of {} virtual", human_bytes(disk.data_bytes), human_bytes(disk.virtual_bytes));
        let _ = writeln!(out, "  {}  {size}", printable(&disk.name));
    }
    let _ = writeln!(out, "  {}", palette.good("every blob is there, and is what it was"));
    if let Some(boot) = &document.boot {
        out += &boot_text(boot, palette);
    }
    out
}

fn boot_text(boot: &BootReport, palette: Palette) -> String {
    let mut out = String::new();
    let after = format!("after {:.1} s", boot.seconds);
    let line = match (&boot.expected, boot.ended) {
        (Some(text), _) => palette.good(&format!("booted: {} came {after}", printable(text))),
        (None, BootEnd::Off) => palette.warning(&format!("not booted: the machine was off {after}")),
        (None, _) => palette.warning(&format!("not seen to boot: nothing that was waited for came {after}")),
    };
    let _ = writeln!(out, "  {line}");
    let lines: Vec<_> = boot.serial_tail.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    for line in &lines[lines.len().saturating_sub(SERIAL_LINES)..] {
        let _ = writeln!(out, "    {}", palette.faint(&printable(line)));
    }
    if let Some(path) = &boot.screenshot {
        let _ = writeln!(out, "  its screen: {}", printable(path));
    }
    out
}
