//! What came out, as the file systems' own tools tell it.

use std::fs;
use std::path::{Path, PathBuf};

use block::{Error, Result};

use super::{AgedKind, AgedLayout};
use crate::children::{find_program, run};

/// Files that filefrag is asked about at once.
const FILES_AT_ONCE: usize = 500;

/// A layout, and who told of its files and of its free space.
pub(super) struct Told {
    pub(super) layout: AgedLayout,
    pub(super) by: [Option<&'static str>; 2],
}

/// Of an image that nobody uses: files as filefrag counted them, free space as the file system's tool does, the rest as Leandisk reads it.
pub(super) fn told(
    kind: AgedKind,
    image: &Path,
    ours: AgedLayout,
    by_filefrag: Option<AgedLayout>,
) -> Result<Told> {
    let mut layout = ours;
    let mut by = [Some("leandisk"), Some("leandisk")];
    if let Some(found) = by_filefrag {
        layout = AgedLayout {
            files: found.files,
            fragmented_files: found.fragmented_files,
            fragments: found.fragments,
            ..layout
        };
        by[0] = Some("filefrag");
    }
    let free = match kind {
        AgedKind::Ext4 => Some(("e2freefrag", &[][..], parse_e2freefrag as fn(&str) -> Option<u64>)),
        AgedKind::Xfs => {
            Some(("xfs_db", &["-r", "-c", "freesp -s"][..], parse_freesp as fn(&str) -> Option<u64>))
        }
        AgedKind::Btrfs | AgedKind::Ntfs => None,
    };
    if let Some((name, arguments, parse)) = free
        && let Some(program) = find_program(name)
    {
        let arguments: Vec<_> = arguments.iter().map(Path::new).chain([image]).collect();
        let said = run(&program, &arguments)?;
        if let Some(count) = parse(&said) {
            layout.free_extents = Some(count);
            by[1] = Some(name);
        }
    }
    Ok(Told { layout, by })
}

/// e2freefrag(8): a histogram whose lines end with extents, blocks and percent, after "Extent Size Range".
fn parse_e2freefrag(said: &str) -> Option<u64> {
    let (_, table) = said.split_once("Extent Size Range")?;
    let lines = table.lines().skip(1).filter(|line| line.contains("...") && line.contains(':'));
    lines.map(|line| line.split(':').nth(1)?.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

/// xfs_db(8), `freesp -s`: "total free extents N".
fn parse_freesp(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.strip_prefix("total free extents"))?.trim().parse().ok()
}

/// As filefrag counts. `None` if it is not installed.
pub(super) fn layout_by_filefrag(folder: &Path) -> Result<Option<AgedLayout>> {
    let Some(program) = find_program("filefrag") else { return Ok(None) };
    let mut layout = AgedLayout::default();
    for files in files_below(folder)?.chunks(FILES_AT_ONCE) {
        let arguments: Vec<_> = files.iter().map(PathBuf::as_path).collect();
        let said = run(&program, &arguments)?;
        let counts = said.lines().filter_map(|line| {
            let (_, count) = line.rsplit_once(": ")?;
            count.strip_suffix(" found")?.split_whitespace().next()?.parse::<u64>().ok()
        });
        counts.for_each(|count| layout.push(count));
    }
    Ok(Some(layout))
}

/// As the host tells of each file.
pub(super) fn layout_of_folder(folder: &Path) -> Result<AgedLayout> {
    let mut layout = AgedLayout::default();
    for file in files_below(folder)? {
        layout.push(crate::images::on_host(&file)?.extents.unwrap_or(0));
    }
    Ok(layout)
}

/// Of its first file, if there is one.
pub(super) fn filesystem_of_folder(folder: &Path) -> Result<Option<String>> {
    let first = files_below(folder)?.into_iter().next();
    Ok(first.map(|file| crate::images::on_host(&file)).transpose()?.and_then(|on_host| on_host.filesystem))
}

impl AgedLayout {
    fn push(&mut self, fragments: u64) {
        self.files += 1;
        self.fragmented_files += u64::from(fragments > 1);
        self.fragments += fragments;
    }
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |error: std::io::Error| Error::io("list", error).path(folder.display());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            match entry.file_type().map_err(failed)?.is_dir() {
                true => folders.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tools_print_is_understood() {
        let e2freefrag = "Device: v\nBlocksize: 1024 bytes\n\nHISTOGRAM OF FREE EXTENT SIZES:\nExtent Size Range :  Free extents   Free Blocks  Percent\n    1K...    2K-  :            12            12    0.10%\n    2M...    4M-  :             3          9000   80.00%\n";
        assert_eq!(parse_e2freefrag(e2freefrag), Some(15));
        let freesp = "   from      to extents  blocks    pct\n      1       1       2       2   0.00\ntotal free extents 7\ntotal free blocks 70000\naverage free extent size 10000\n";
        assert_eq!(parse_freesp(freesp), Some(7));
        assert_eq!((parse_e2freefrag("x"), parse_freesp("x")), (None, None));
    }
}
