//! `leandisk info` of an appliance: its disks.

use std::fmt::Write as _;

use serde::Serialize;

use crate::text::{Palette, human_bytes, painted, printable, wrapped};

/// The document `leandisk.appliance/1`.
#[derive(Clone, Debug, Serialize)]
pub struct ApplianceDocument {
    schema: &'static str,
    path: String,
    kind: &'static str,
    disks: Vec<ApplianceDisk>,
    notes: Vec<String>,
}

/// A disk of an appliance.
#[derive(Clone, Debug, Serialize)]
pub struct ApplianceDisk {
    /// What the appliance calls it.
    pub id: String,
    /// The file that it names.
    pub file: String,
    /// Where that lies: within an OVA, `OVA/MEMBER`.
    pub path: String,
    /// The format of the file.
    pub format: String,
    /// Size of the disk.
    pub virtual_bytes: u64,
    /// Bytes of its files on the host.
    pub allocated_bytes: u64,
}

impl ApplianceDocument {
    /// Of an appliance of this kind: `ova`, `ovf`, `vmx` or `libvirt`.
    pub fn new(path: String, kind: &'static str, disks: Vec<ApplianceDisk>, notes: Vec<String>) -> Self {
        Self { schema: "leandisk.appliance/1", path, kind, disks, notes }
    }
}

/// The document in words and numbers.
pub fn appliance_text(document: &ApplianceDocument, palette: Palette) -> String {
    let mut out = String::new();
    let heading = format!("{} (appliance, {})", printable(&document.path), document.kind);
    out.push_str(&painted("", Some("  "), &heading, |line| palette.strong(line)));
    for disk in &document.disks {
        let sizes = format!(
            "{}, {}, {} on the host",
            disk.format,
            human_bytes(disk.virtual_bytes),
            human_bytes(disk.allocated_bytes)
        );
        let _ = writeln!(out, "  disk {}", printable(&disk.id));
        out.push_str(&wrapped("    ", None, &format!("{}: {sizes}", printable(&disk.file))));
    }
    if document.disks.is_empty() {
        out.push_str("  no disks\n");
    }
    for note in &document.notes {
        out.push_str(&painted("  ", None, &printable(note), |line| palette.warning(line)));
    }
    out
}
