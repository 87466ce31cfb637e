//! What people and programs see: one document a command, as JSON or as text.
//!
//! Invariants:
//! - names that come from a disk are escaped before they reach a terminal ([`printable`]);
//! - byte counts end in `_bytes`, times in `_seconds`; a document's first field is its `schema`.

mod analyze;
mod appliance;
mod backup;
mod bar;
mod bench;
mod compact;
mod copy;
mod copy_all;
mod create;
mod defrag;
mod escape;
mod failure;
mod guard;
mod guard_report;
mod html;
mod info;
mod listing;
mod map;
mod recover;
mod shadow_copies;
mod stats;
mod stats_page;
mod text;
mod vm;
mod volume_groups;
mod worth;

pub use self::bench::{
    AgeDocument, AgeSubject, Figure, FirstWriteDocument, FirstWriteSubject, FragmentationDocument,
    FragmentationSubject, WorkloadsDocument, WorkloadsSubject, age_document, age_text, first_write_document,
    first_write_page, first_write_text, fragmentation_document, fragmentation_page, fragmentation_text,
    workloads_document, workloads_page, workloads_text,
};
pub use analyze::{
    AnalyzeDocument, AnalyzeSubject, DiskEntry, DiskReport, FileIdentity, FolderDocument, analyze_document,
    analyze_full_text, analyze_page, analyze_text, folder_document, folder_page, folder_text,
    write_file_lines,
};
pub use appliance::{ApplianceDisk, ApplianceDocument, appliance_text};
pub use backup::{
    BACKUP_METRICS_START, BackupDocument, BackupSubject, BootEnd, BootReport, CheckDocument, CheckedDisk,
    DiskBackup, InPlace, RestoreDocument, SnapshotDiskEntry, SnapshotEntry, SnapshotsDocument, Tracking,
    backup_document, backup_metrics, backup_text, check_text, restore_document, restore_text,
    restored_in_place, snapshots_text,
};
pub use compact::{
    CompactDocument, CompactMoves, CompactSubject, CompactVolume, compact_document, compact_text,
};
pub use copy::{
    CopyDocument, CopySubject, IncrementSubject, LayoutKept, LayoutOfCopy, LayoutPacked, copy_document,
    copy_text,
};
pub use copy_all::{CopyAllDocument, CopyAllEntry, FailedCopy, copy_all_text};
pub use create::{CreateDocument, CreateSubject, create_document, create_text};
pub use defrag::{
    DefragDocument, DefragSubject, DefragVolume, DefragWork, Figures, defrag_document, defrag_text,
};
pub use escape::printable_name;
pub use failure::{ErrorDocument, Failure};
pub use guard::{GuardDocument, GuardState, GuardedPath, ReserveLimit, guard_metrics, guard_text};
pub use guard_report::{
    Asleep, GuardDay, GuardReport, GuardTotal, GuardedSpace, GuardedTotal, guard_day, guard_report_page,
    guard_report_text,
};
pub use html::{
    Advice, Bar, BarChart, Column, DayBar, DayChart, Histogram, HistogramBin, MAP_HTML_BYTES_MAX, ReportPage,
    Table, map_html, report_html, with_origin,
};
pub use info::{InfoDocument, info_document, info_text};
pub use listing::{ListDocument, ListEntry, ListedKind, list_text};
pub use map::{
    DiskMap, MAP_SVG_BYTES_MAX, MapLayer, MapOwner, MapOwners, MapPiece, MapRun, MapVolume, OwnerId,
    PieceClass, disk_map, map_svg, map_text,
};
pub use recover::{RecoverDocument, recover_text};
pub use shadow_copies::ShadowCopyCare;
pub use stats::{StatsDocument, stats_text, watch_heading, watch_lines};
pub use stats_page::stats_page;
pub use text::{Palette, human_bytes, printable};
pub use vm::{VmDocument, vm_text};
pub use worth::{
    ASSUMPTIONS_TOML, Assumptions, Basis, Corrupt as CorruptInput, Input as WorthInput, Line as SavingLine,
    LineInput, ListedFile, Published, Savings, Wanted, When, WorstFile, WorthDocument, WorthSubject,
    is_listing, worth_document, worth_page, worth_text,
};

/// A document as one line of JSON, ready to be printed.
pub fn to_json(document: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(document).expect("plain data becomes JSON")
}

/// A document as one line of JSON.
pub fn to_json_line(document: &impl serde::Serialize) -> String {
    serde_json::to_string(document).expect("plain data becomes JSON") + "\n"
}
