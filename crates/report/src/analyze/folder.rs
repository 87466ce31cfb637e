//! `leandisk analyze --recursive`: the disks of a folder side by side.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::AnalyzeDocument;
use crate::html::{Column, ReportPage, Table, report_html};
use crate::text::{Palette, counted, grouped, human_bytes, printable};

/// What names a file on its host: device and inode.
pub type FileIdentity = (u64, u64);

/// What is found in one file, as the process that reads it tells the one that makes the table.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DiskReport {
    /// Whether it is a disk at all: without a header of any format, it is one if there is something in it, or if it is named like one.
    pub is_disk: bool,
    /// What is told of it.
    pub entry: DiskEntry,
    /// The files of the image and of its parents, the image's own first; of each, the file that is named first comes first.
    pub layers: Vec<Vec<FileIdentity>>,
}

/// A disk in the table. What is not known of one that could not be read is `None`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DiskEntry {
    /// As it was named.
    pub path: String,
    /// The image's format.
    pub format: Option<String>,
    /// The length of the virtual disk.
    pub virtual_bytes: Option<u64>,
    /// What the image's own files take on the host, without its parents.
    pub allocated_bytes: Option<u64>,
    /// What a copy would read: the guest's data, without what is free, swap, or not there, as far as a quick check tells.
    pub used_bytes: Option<u64>,
    /// What can be given back to the host in whole units of the image.
    pub reclaimable_bytes: Option<u64>,
    /// Of all regular files of the volumes whose files can be listed.
    pub fragments: Option<u64>,
    /// Another program has it open.
    pub in_use: bool,
    /// The image that it stands on, if it does.
    pub parent: Option<String>,
    /// What is most worth doing: an action of `leandisk.analyze/1`.
    pub action: Option<String>,
    /// Why it could not be analysed.
    pub error: Option<String>,
}

/// The document `leandisk.analyze-all/1`.
#[derive(Clone, Debug, Serialize)]
pub struct FolderDocument {
    schema: &'static str,
    path: String,
    /// The most reclaimable first.
    disks: Vec<DiskEntry>,
    totals: FolderTotals,
    /// Folders and files that could not be looked at, with the reason.
    unread: Vec<String>,
}

#[derive(Clone, Copy, Default, Debug, Serialize)]
struct FolderTotals {
    disks: u64,
    allocated_bytes: u64,
    used_bytes: u64,
    reclaimable_bytes: u64,
}

impl DiskEntry {
    /// What an analysis says of the disk.
    pub fn of(document: &AnalyzeDocument) -> Self {
        let known: Vec<u64> = document.volumes.iter().filter_map(|volume| volume.fragments).collect();
        Self {
            path: document.path.clone(),
            format: Some(document.format.clone()),
            virtual_bytes: Some(document.virtual_bytes),
            reclaimable_bytes: Some(document.reclaimable_bytes),
            fragments: (!known.is_empty()).then(|| known.iter().sum()),
            action: document.advice.first().map(|advice| advice.action.to_owned()),
            ..Self::default()
        }
    }
}

/// The disks among what was found in a folder, each once: what is an extent of another image is none by itself.
pub fn folder_document(path: &str, found: Vec<DiskReport>, unread: Vec<String>) -> FolderDocument {
    let parts: BTreeSet<FileIdentity> = found
        .iter()
        .flat_map(|report| report.layers.iter().flat_map(|files| files.iter().skip(1)))
        .copied()
        .collect();
    let own = |report: &DiskReport| report.layers.first().and_then(|files| files.first()).copied();
    let names: BTreeMap<FileIdentity, String> =
        found.iter().filter_map(|report| Some((own(report)?, report.entry.path.clone()))).collect();
    let listed = found
        .into_iter()
        .filter(|report| report.is_disk && own(report).is_none_or(|own| !parts.contains(&own)));
    let mut disks: Vec<_> = listed
        .map(|report| {
            let parent = report.layers.get(1).and_then(|files| names.get(files.first()?)).cloned();
            DiskEntry { parent: parent.or(report.entry.parent), ..report.entry }
        })
        .collect();
    disks.sort_by(|one, other| {
        let key = |disk: &DiskEntry| (disk.error.is_some(), Reverse(disk.reclaimable_bytes));
        key(one).cmp(&key(other)).then_with(|| one.path.cmp(&other.path))
    });
    let sum = |of: fn(&DiskEntry) -> Option<u64>| disks.iter().filter_map(of).sum();
    let totals = FolderTotals {
        disks: disks.len() as u64,
        allocated_bytes: sum(|disk| disk.allocated_bytes),
        used_bytes: sum(|disk| disk.used_bytes),
        reclaimable_bytes: sum(|disk| disk.reclaimable_bytes),
    };
    FolderDocument { schema: "leandisk.analyze-all/1", path: path.to_owned(), disks, totals, unread }
}

impl FolderDocument {
    /// All disks, each behind the one that it stands on, with how many of those there are.
    fn trees(&self) -> Vec<(usize, &DiskEntry)> {
        let listed: BTreeSet<&str> = self.disks.iter().map(|disk| disk.path.as_str()).collect();
        let parent = |disk: &DiskEntry| disk.parent.clone().filter(|parent| listed.contains(parent.as_str()));
        let mut children: BTreeMap<Option<String>, Vec<&DiskEntry>> = BTreeMap::new();
        self.disks.iter().for_each(|disk| children.entry(parent(disk)).or_default().push(disk));
        let mut waiting: Vec<(usize, &DiskEntry)> =
            children.remove(&None).unwrap_or_default().into_iter().rev().map(|disk| (0, disk)).collect();
        let mut all = Vec::with_capacity(self.disks.len());
        while let Some((depth, disk)) = waiting.pop() {
            all.push((depth, disk));
            let below = children.remove(&Some(disk.path.clone())).unwrap_or_default();
            waiting.extend(below.into_iter().rev().map(|disk| (depth + 1, disk)));
        }
        // Images that name each other as parents stand on nothing.
        all.extend(children.into_values().flatten().map(|disk| (0, disk)));
        all
    }
}

fn bytes_or_dash(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".into(), human_bytes)
}

fn name_of(depth: usize, disk: &DiskEntry) -> String {
    let indent = if depth == 0 { String::new() } else { format!("{}└ ", "  ".repeat(depth - 1)) };
    format!("{indent}{}{}", printable(&disk.path), if disk.in_use { " (in use)" } else { "" })
}

/// The cells of a disk: held, used, reclaimable, fragments, what is worth doing, its name.
fn cells(depth: usize, disk: &DiskEntry) -> [String; 6] {
    [
        bytes_or_dash(disk.allocated_bytes),
        bytes_or_dash(disk.used_bytes),
        bytes_or_dash(disk.reclaimable_bytes),
        disk.fragments.map_or_else(|| "-".into(), grouped),
        disk.action.clone().unwrap_or_else(|| "-".into()),
        name_of(depth, disk),
    ]
}

const HEADINGS: [&str; 6] = ["HELD", "USED", "RECLAIMABLE", "FRAGMENTS", "WORTH DOING", "DISK"];

fn line(cells: &[String; 6], widths: &[usize; 5]) -> String {
    let [held, used, reclaimable, fragments, action, name] = cells;
    let [one, two, three, four, five] = *widths;
    format!("{held:>one$}  {used:>two$}  {reclaimable:>three$}  {fragments:>four$}  {action:five$}  {name}")
}

/// The document as text: a line a disk, and the sums.
pub fn folder_text(document: &FolderDocument, palette: Palette) -> String {
    let read: Vec<_> = document.trees().into_iter().filter(|(_, disk)| disk.error.is_none()).collect();
    let rows: Vec<_> = read.iter().map(|(depth, disk)| cells(*depth, disk)).collect();
    let headings = HEADINGS.map(str::to_owned);
    let width = |column: usize| {
        let all = rows.iter().chain([&headings]);
        all.map(|cells| cells[column].chars().count()).max().unwrap_or_default()
    };
    let widths = [0, 1, 2, 3, 4].map(width);
    let mut out = String::new();
    if !rows.is_empty() {
        let _ = writeln!(out, "{}", palette.strong(&line(&headings, &widths)));
        rows.iter().for_each(|cells| out.push_str(&format!("{}\n", line(cells, &widths))));
        out.push('\n');
    }
    let _ = writeln!(out, "{}", sums(document));
    for disk in document.disks.iter() {
        if let Some(error) = &disk.error {
            let _ = writeln!(out, "not analysed: {}", printable(error));
        }
    }
    document.unread.iter().for_each(|what| out.push_str(&format!("not looked at: {}\n", printable(what))));
    out
}

fn sums(document: &FolderDocument) -> String {
    let FolderTotals { disks, allocated_bytes, used_bytes, reclaimable_bytes } = document.totals;
    format!(
        "{}: {} on the host, {} used by the guests, {} reclaimable",
        counted(disks, "disk", "disks"),
        human_bytes(allocated_bytes),
        human_bytes(used_bytes),
        human_bytes(reclaimable_bytes)
    )
}

/// The document as a page that stands alone.
pub fn folder_page(document: &FolderDocument) -> String {
    let trees = document.trees();
    let rows = trees.iter().map(|(depth, disk)| {
        let [held, used, reclaimable, fragments, action, name] = cells(*depth, disk);
        let format = disk.format.clone().unwrap_or_else(|| "-".into());
        vec![name, format, bytes_or_dash(disk.virtual_bytes), held, used, reclaimable, fragments, action]
    });
    let mut columns = vec![Column::text("disk"), Column::text("format")];
    columns.extend(["virtual", "on the host", "used", "reclaimable", "fragments"].map(Column::number));
    columns.push(Column::text("worth doing"));
    let table = Table {
        title: "Disks".into(),
        columns,
        rows: rows.collect(),
        remark: Some("What stands on another disk stands below it.".into()),
        empty: Some("There is no disk in this folder.".into()),
    };
    let FolderTotals { disks, allocated_bytes, used_bytes, reclaimable_bytes } = document.totals;
    let errors = document.disks.iter().filter_map(|disk| disk.error.clone());
    report_html(
        &ReportPage {
            title: document.path.clone(),
            about: counted(disks, "disk", "disks"),
            verdict: sums(document),
            summary: vec![
                ("on the host".into(), human_bytes(allocated_bytes)),
                ("used".into(), human_bytes(used_bytes)),
                ("reclaimable".into(), human_bytes(reclaimable_bytes)),
            ],
            layers: vec![table],
            notes: errors.chain(document.unread.iter().cloned()).collect(),
            colophon: format!(
                "leandisk {} analyze --recursive: metadata alone were read, and nothing was written.",
                env!("CARGO_PKG_VERSION")
            ),
            ..ReportPage::default()
        },
        None,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(path: &str, inode: u64, reclaimable: u64, layers: &[&[u64]]) -> DiskReport {
        let entry = DiskEntry {
            path: path.into(),
            allocated_bytes: Some(10),
            reclaimable_bytes: Some(reclaimable),
            ..DiskEntry::default()
        };
        let own = vec![(1, inode)];
        let further = layers.iter().map(|files| files.iter().map(|inode| (1, *inode)).collect());
        DiskReport { is_disk: true, entry, layers: std::iter::once(own).chain(further).collect() }
    }

    #[test]
    fn each_disk_is_there_once_and_behind_what_it_stands_on() {
        let mut extents = disk("flat.vmdk", 9, 70, &[]);
        extents.layers = vec![vec![(1, 9)]];
        let mut descriptor = disk("d.vmdk", 5, 1, &[]);
        descriptor.layers = vec![vec![(1, 5), (1, 9)]];
        let text = DiskReport { is_disk: false, ..disk("notes.img", 6, 99, &[]) };
        let found = vec![
            disk("leaf", 3, 50, &[&[2], &[1]]),
            disk("middle", 2, 3, &[&[1]]),
            extents,
            disk("base", 1, 4, &[]),
            descriptor,
            text,
        ];
        let document = folder_document("f", found, Vec::new());
        let paths: Vec<_> = document.disks.iter().map(|disk| disk.path.as_str()).collect();
        assert_eq!(paths, ["leaf", "base", "middle", "d.vmdk"]);
        assert_eq!(document.disks[0].parent.as_deref(), Some("middle"));
        let trees: Vec<_> =
            document.trees().iter().map(|(depth, disk)| (*depth, disk.path.as_str())).collect();
        assert_eq!(trees, [(0, "base"), (1, "middle"), (2, "leaf"), (0, "d.vmdk")]);
        let FolderTotals { disks, allocated_bytes, reclaimable_bytes, .. } = document.totals;
        assert_eq!((disks, allocated_bytes, reclaimable_bytes), (4, 40, 58));
    }

    #[test]
    fn images_that_stand_on_each_other_are_told_all_the_same() {
        let found = vec![disk("a", 1, 1, &[&[2]]), disk("b", 2, 2, &[&[1]])];
        assert_eq!(folder_document("f", found, Vec::new()).trees().len(), 2);
    }

    #[test]
    fn names_are_harmless_in_a_terminal() {
        let found = vec![disk("a\u{1b}[2J", 1, 1, &[])];
        let document = folder_document("f", found, Vec::new());
        assert!(!folder_text(&document, Palette { colors: false }).contains('\u{1b}'));
        assert!(folder_page(&document).contains("1 disk"));
    }
}
