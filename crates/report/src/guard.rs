//! `leandisk guard status`: what a guard of a machine's own files did.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::text::{Palette, grouped, human_bytes, metric_label, printable};

/// The name and version of the document.
const SCHEMA: &str = "leandisk.guard/1";

/// The document `leandisk.guard/1`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GuardDocument {
    schema: String,
    /// Whether a guard runs.
    pub running: bool,
    /// Its process.
    pub pid: Option<u32>,
    /// It only looks, and counts what it would do.
    pub dry_run: bool,
    /// What it guards.
    pub paths: Vec<GuardedPath>,
    /// How long work waited for others.
    pub asleep_seconds: f64,
}

/// One guarded path. Counts are those of its file system.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GuardedPath {
    /// As it was found.
    pub path: String,
    /// Its file system.
    pub filesystem: String,
    /// Fragments that did not form: an estimate.
    pub prevented: u64,
    /// Fragments that are no more.
    pub repaired: u64,
    /// Bytes that moved for that.
    pub moved_bytes: u64,
    /// Reserved ahead and not used yet.
    pub reserved_bytes: u64,
    /// Why the last file that was to have room got less than it grows by, or none; `None` if it got all.
    #[serde(default)]
    pub limited_by: Option<ReserveLimit>,
    /// Extents that stayed because they are shared.
    pub shared_skipped: u64,
    /// Files that wait to be looked at.
    pub waiting_files: u64,
    /// Bytes that moved so that free space is in fewer pieces.
    #[serde(default)]
    pub space_moved_bytes: u64,
    /// Stretches that became one free extent by that.
    #[serde(default)]
    pub space_stretches: u64,
    /// The largest free extent before any of that; `None` if nothing moved for it, nor would have.
    #[serde(default)]
    pub largest_free_before_bytes: Option<u64>,
    /// The largest free extent when it was looked last; in a dry run, as it would be. `None` if nobody looked.
    #[serde(default)]
    pub largest_free_bytes: Option<u64>,
    /// What it does.
    pub state: GuardState,
    /// Why it sleeps or is off.
    pub reason: Option<String>,
}

/// What bounds the room that is reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReserveLimit {
    /// Each snapshot keeps what is reserved at that moment.
    Snapshots,
    /// Enough is to stay free.
    FreeSpace,
}

impl ReserveLimit {
    fn text(self) -> &'static str {
        match self {
            Self::Snapshots => "not more, as snapshots keep what is reserved when they are made",
            Self::FreeSpace => "not more, so that enough stays free",
        }
    }
}

/// What a guard does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuardState {
    /// It watches, and does what is to be done.
    Working,
    /// There is something to be repaired, and others are busy.
    Asleep,
    /// It does nothing.
    Off,
}

impl GuardState {
    fn text(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::Asleep => "asleep",
            Self::Off => "off",
        }
    }
}

impl GuardDocument {
    /// Of a guard that runs as this process.
    pub fn new(pid: u32, dry_run: bool) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            running: true,
            pid: Some(pid),
            dry_run,
            paths: Vec::new(),
            asleep_seconds: 0.0,
        }
    }

    /// Where no guard runs; what the last one did, if it is known.
    pub fn ended(last: Option<Self>) -> Self {
        let mut document = last.unwrap_or_else(|| Self::new(0, false));
        (document.running, document.pid) = (false, None);
        for path in &mut document.paths {
            (path.state, path.reason) = (GuardState::Off, Some("no guard runs".to_owned()));
            path.limited_by = None;
        }
        document
    }

    /// A document that was kept; `None` if it is none.
    pub fn from_json(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().filter(|document: &Self| document.schema == SCHEMA)
    }
}

/// The document for people.
pub fn guard_text(document: &GuardDocument, palette: Palette) -> String {
    let mut text = String::new();
    let _ = match (document.running, document.pid) {
        (true, Some(pid)) => writeln!(
            text,
            "A guard runs (process {pid}).{}",
            if document.dry_run { " It only looks." } else { "" }
        ),
        _ => writeln!(text, "No guard runs."),
    };
    for path in &document.paths {
        let reason =
            path.reason.as_deref().map(|reason| format!(": {}", printable(reason))).unwrap_or_default();
        let _ = writeln!(
            text,
            "\n{} ({}), {}{reason}",
            palette.strong(&printable(&path.path)),
            printable(&path.filesystem),
            path.state.text(),
        );
        let _ = writeln!(text, "  fragments prevented  {}", grouped(path.prevented));
        let _ = writeln!(text, "  fragments repaired   {}", grouped(path.repaired));
        let _ = writeln!(text, "  moved                {}", human_bytes(path.moved_bytes));
        let limit = path.limited_by.map(|limit| format!("; {}", limit.text())).unwrap_or_default();
        let _ = writeln!(text, "  reserved now         {}{limit}", human_bytes(path.reserved_bytes));
        let _ = writeln!(text, "  shared, left alone   {}", grouped(path.shared_skipped));
        let _ = writeln!(text, "  moved for free space {}", human_bytes(path.space_moved_bytes));
        if let Some(now) = path.largest_free_bytes {
            let before = path.largest_free_before_bytes.filter(|before| *before != now);
            let before = before.map(|before| format!(", {} before", human_bytes(before))).unwrap_or_default();
            let _ = writeln!(text, "  largest free extent  {}{before}", human_bytes(now));
        }
    }
    let _ = writeln!(text, "\nasleep for {:.0} s", document.asleep_seconds);
    text
}

/// The counts as Prometheus reads them (its text format, version 0.0.4).
pub fn guard_metrics(document: &GuardDocument) -> String {
    type Metric = (&'static str, &'static str, fn(&GuardedPath) -> u64);
    const METRICS: [Metric; 7] = [
        ("prevented_fragments_total", "counter", |path| path.prevented),
        ("repaired_fragments_total", "counter", |path| path.repaired),
        ("moved_bytes_total", "counter", |path| path.moved_bytes),
        ("reserved_bytes", "gauge", |path| path.reserved_bytes),
        ("shared_skipped_total", "counter", |path| path.shared_skipped),
        ("space_moved_bytes_total", "counter", |path| path.space_moved_bytes),
        ("space_stretches_total", "counter", |path| path.space_stretches),
    ];
    let mut text = String::new();
    for (name, kind, value) in METRICS {
        let _ = writeln!(text, "# TYPE leandisk_guard_{name} {kind}");
        for path in &document.paths {
            let (at, filesystem) = (metric_label(&path.path), metric_label(&path.filesystem));
            let _ = writeln!(
                text,
                "leandisk_guard_{name}{{path=\"{at}\",filesystem=\"{filesystem}\"}} {}",
                value(path)
            );
        }
    }
    let _ = writeln!(text, "# TYPE leandisk_guard_largest_free_extent_bytes gauge");
    for path in &document.paths {
        let Some(bytes) = path.largest_free_bytes else { continue };
        let (at, filesystem) = (metric_label(&path.path), metric_label(&path.filesystem));
        let labels = format!("path=\"{at}\",filesystem=\"{filesystem}\"");
        let _ = writeln!(text, "leandisk_guard_largest_free_extent_bytes{{{labels}}} {bytes}");
    }
    let _ = writeln!(text, "# TYPE leandisk_guard_asleep_seconds_total counter");
    let _ = writeln!(text, "leandisk_guard_asleep_seconds_total {:.1}", document.asleep_seconds);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_survives_being_kept_and_tells_what_ended() {
        let mut document = GuardDocument::new(7, false);
        document.paths.push(GuardedPath {
            path: "/a\"b\n".to_owned(),
            filesystem: "xfs".to_owned(),
            prevented: 1234,
            repaired: 2,
            moved_bytes: 3,
            reserved_bytes: 4,
            limited_by: Some(ReserveLimit::Snapshots),
            shared_skipped: 5,
            waiting_files: 0,
            space_moved_bytes: 6,
            space_stretches: 1,
            largest_free_before_bytes: Some(7),
            largest_free_bytes: Some(4096),
            state: GuardState::Working,
            reason: None,
        });
        let kept = GuardDocument::from_json(&crate::to_json(&document)).unwrap();
        assert_eq!(kept, document);
        assert!(
            guard_metrics(&document)
                .contains(r#"prevented_fragments_total{path="/a\"b\n",filesystem="xfs"} 1234"#)
        );
        let at = r#"{path="/a\"b\n",filesystem="xfs"}"#;
        assert!(guard_metrics(&document).contains(&format!("largest_free_extent_bytes{at} 4096")));
        let text = guard_text(&document, Palette { colors: false });
        let line = format!("largest free extent  {}, {} before", human_bytes(4096), human_bytes(7));
        assert!(text.contains(&line), "{text}");
        let line = format!("reserved now         {}; not more, as snapshots keep", human_bytes(4));
        assert!(text.contains(&line), "{text}");
        let ended = GuardDocument::ended(Some(kept));
        assert!(!ended.running && ended.pid.is_none() && ended.paths[0].state == GuardState::Off);
        assert_eq!(ended.paths[0].limited_by, None, "nothing is reserved any more");
        assert!(GuardDocument::from_json("{}").is_none());
    }
}
