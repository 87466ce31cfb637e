//! The list of files that `analyze --files` writes: the worst file of one, and where the same file lies in the other.

use std::io::BufRead;

use block::{Error, Result};
use serde::{Deserialize, Serialize};

use super::Corrupt;

/// A line is no longer: a file in a million pieces takes half of that.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// A file with all of its pieces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedFile {
    pub(super) volume: u64,
    pub(super) path: String,
    pub(super) size_bytes: u64,
    pub(super) fragments: u64,
    /// Offset on the volume, and length.
    pub(super) extents: Vec<(u64, u64)>,
}

#[derive(Deserialize)]
struct Line {
    volume: u64,
    path: String,
    kind: String,
    size_bytes: u64,
    fragments: u64,
    extents: Vec<[u64; 3]>,
}

/// Which file of a list is looked for.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// The regular file in the most pieces; the first of several.
    Worst,
    /// The one of that name.
    Same(&'a ListedFile),
}

/// Whether a file begins as a list does: with a whole object in its first line, which has no schema.
pub fn is_listing(first_line: &str) -> bool {
    serde_json::from_str::<Line>(first_line).is_ok()
}

impl ListedFile {
    /// Finds a file in a list. `None` if there is no such file; `Corrupt` if a line is none of a list.
    pub fn find(mut list: impl BufRead, wanted: Wanted<'_>) -> Result<Option<Self>> {
        let mut found: Option<Self> = None;
        let mut text = String::new();
        loop {
            text.clear();
            let read = std::io::Read::take(&mut list, LINE_BYTES_MAX).read_line(&mut text);
            if read.map_err(|error| Error::io("read", error))? == 0 {
                return Ok(found);
            }
            let line: Line = serde_json::from_str(&text)
                .map_err(|error| Error::corrupt(Corrupt::Listing(error.to_string())))?;
            let is_better = match wanted {
                Wanted::Worst => {
                    line.kind == "file" && line.fragments > found.as_ref().map_or(1, |found| found.fragments)
                }
                Wanted::Same(file) => (line.volume, &line.path) == (file.volume, &file.path),
            };
            if is_better {
                found = Some(line.into());
            }
        }
    }

    /// Bytes of the volume up to the file's end.
    pub(super) fn end_bytes(&self) -> u64 {
        self.extents.iter().map(|(start, len)| start.saturating_add(*len)).max().unwrap_or(0)
    }

    /// Which of `columns` equal parts of `len_bytes` it lies in, as ranges: a bar that is drawn.
    pub(super) fn columns(&self, len_bytes: u64, columns: u64) -> Vec<(u64, u64)> {
        let len_bytes = u128::from(len_bytes.max(1));
        let column = |at: u64| {
            u64::try_from(u128::from(at) * u128::from(columns) / len_bytes)
                .unwrap_or(columns)
                .min(columns - 1)
        };
        let mut ranges: Vec<_> = self
            .extents
            .iter()
            .filter(|(_, len)| *len > 0)
            .map(|(start, len)| (column(*start), column(start.saturating_add(len - 1))))
            .collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= *end + 1 => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        merged
    }
}

impl From<Line> for ListedFile {
    fn from(line: Line) -> Self {
        let Line { volume, path, size_bytes, fragments, extents, .. } = line;
        let extents = extents.into_iter().map(|[_, start, len]| (start, len)).collect();
        Self { volume, path, size_bytes, fragments, extents }
    }
}

/// The worst file, in both states.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct WorstFile {
    /// The volume's index.
    pub volume: u64,
    /// From the volume's root.
    pub path: String,
    /// Its length.
    pub size_bytes: u64,
    /// Its pieces before.
    pub fragments_before: u64,
    /// Its pieces after; `null` where nothing says so.
    pub fragments_after: Option<u64>,
    /// Where it lies, to be drawn.
    #[serde(skip)]
    pub(super) strips: Option<Strips>,
}

/// A file's place on its volume, in columns of a bar.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Strips {
    pub(super) before: Vec<(u64, u64)>,
    pub(super) after: Option<Vec<(u64, u64)>>,
}

/// Columns of a bar.
pub(super) const STRIP_COLUMNS: u64 = 560;

impl WorstFile {
    /// Of lists, on a volume of so many bytes if that is known.
    pub(super) fn of_lists(
        before: &ListedFile,
        after: Option<&ListedFile>,
        volume_bytes: Option<u64>,
    ) -> Self {
        let ends = [Some(before), after].into_iter().flatten().map(ListedFile::end_bytes);
        let len_bytes = ends.chain(volume_bytes).max().unwrap_or(0);
        let strip = |file: &ListedFile| file.columns(len_bytes, STRIP_COLUMNS);
        Self {
            volume: before.volume,
            path: before.path.clone(),
            size_bytes: before.size_bytes,
            fragments_before: before.fragments,
            fragments_after: after.map(|after| after.fragments),
            strips: Some(Strips { before: strip(before), after: after.map(strip) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    const LIST: &str = concat!(
        r#"{"volume":1,"path":"/a","kind":"file","size_bytes":8192,"fragments":2,"extents":[[0,0,4096],[4096,8192,4096]]}"#,
        "\n",
        r#"{"volume":1,"path":"/d","kind":"directory","size_bytes":8192,"fragments":9,"extents":[]}"#,
        "\n",
        r#"{"volume":1,"path":"/b","kind":"file","size_bytes":1,"fragments":3,"extents":[]}"#,
        "\n"
    );

    #[test]
    fn the_worst_file_is_found_and_found_again() {
        let worst = ListedFile::find(LIST.as_bytes(), Wanted::Worst).unwrap().unwrap();
        assert_eq!((worst.path.as_str(), worst.fragments), ("/b", 3));
        let a = ListedFile { path: "/a".into(), ..worst };
        let a = ListedFile::find(LIST.as_bytes(), Wanted::Same(&a)).unwrap().unwrap();
        assert_eq!(a.extents, [(0, 4096), (8192, 4096)]);
        assert_eq!(a.columns(16384, 4), [(0, 0), (2, 2)]);
        assert_eq!(a.columns(1 << 40, 4), [(0, 0)]);
        assert_eq!(a.columns(0, 4), [(0, 3)], "longer than the volume");
        let none = ListedFile { path: "/c".into(), ..a };
        assert!(ListedFile::find(LIST.as_bytes(), Wanted::Same(&none)).unwrap().is_none());
        assert!(is_listing(LIST.lines().next().unwrap()) && !is_listing("{"));
        let error = ListedFile::find(&b"{}\n"[..], Wanted::Worst).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}
