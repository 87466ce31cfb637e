//! `leandisk info qmp:SOCKET`: which disks a running guest has.

use std::fmt::Write as _;

use serde::Serialize;
use vm::VmDisk;

use crate::text::{Palette, human_bytes, printable};

/// The document `leandisk.vm/1`.
#[derive(Clone, Debug, Serialize)]
pub struct VmDocument {
    schema: &'static str,
    path: String,
    disks: Vec<VmDisk>,
}

impl VmDocument {
    /// The disks of the guest at `path`.
    pub fn new(path: &str, disks: Vec<VmDisk>) -> Self {
        Self { schema: "leandisk.vm/1", path: path.to_owned(), disks }
    }
}

const HEADINGS: [&str; 6] = ["disk", "size", "format", "access", "bitmaps", "file"];

/// The document as a table.
pub fn vm_text(document: &VmDocument, palette: Palette) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}", palette.strong(&printable(&document.path)));
    if document.disks.is_empty() {
        let _ = writeln!(out, "  no disks");
        return out;
    }
    let rows: Vec<_> = document.disks.iter().map(cells).collect();
    let headings = HEADINGS.map(str::to_owned);
    let width = |column: usize| {
        let all = rows.iter().chain([&headings]);
        all.map(|cells| cells[column].chars().count()).max().unwrap_or_default()
    };
    let widths = [0, 1, 2, 3, 4].map(width);
    let line = |cells: &[String; 6]| {
        let padded = widths.iter().zip(cells).map(|(width, cell)| format!("{cell:width$}"));
        format!("  {}  {}", padded.collect::<Vec<_>>().join("  "), cells[5])
    };
    let _ = writeln!(out, "{}", palette.strong(line(&headings).trim_end()));
    rows.iter().for_each(|cells| out.push_str(&format!("{}\n", line(cells).trim_end())));
    out
}

fn cells(disk: &VmDisk) -> [String; 6] {
    let bitmaps = match disk.bitmaps.as_slice() {
        [] => "-".to_owned(),
        names => names.join(" "),
    };
    let access = if disk.read_only { "read only" } else { "written" };
    [
        printable(&disk.name),
        human_bytes(disk.virtual_bytes),
        printable(&disk.format),
        access.to_owned(),
        printable(&bitmaps),
        printable(&disk.path),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_a_table_whose_names_are_escaped() {
        let disk = |name: &str, bitmaps: &[&str]| VmDisk {
            name: name.to_owned(),
            node: "#block1".to_owned(),
            path: "/vm/a\u{1b}[2J.qcow2".to_owned(),
            format: "qcow2".to_owned(),
            virtual_bytes: 8 << 30,
            read_only: bitmaps.is_empty(),
            bitmaps: bitmaps.iter().map(|name| (*name).to_owned()).collect(),
            device: None,
            backend: None,
        };
        let document =
            VmDocument::new("qmp:vm.sock", vec![disk("virtio0", &["daily", "weekly"]), disk("cd", &[])]);
        let text = vm_text(&document, Palette { colors: false });
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "  disk     size   format  access     bitmaps       file");
        assert!(
            lines[2].starts_with("  virtio0  8 GiB  qcow2   written    daily weekly  /vm/a"),
            "{}",
            lines[2]
        );
        assert!(
            lines[3].starts_with("  cd       8 GiB  qcow2   read only  -             /vm/a"),
            "{}",
            lines[3]
        );
        assert!(!text.contains('\u{1b}'));
    }
}
