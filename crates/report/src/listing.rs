//! `leandisk ls`: what is in a folder of a guest.

use std::fmt::Write as _;

use serde::Serialize;

use crate::escape::printable_name;
use crate::text::{Palette, human_bytes};

/// What an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum ListedKind {
    /// A file with contents.
    #[serde(rename = "file")]
    File,
    /// A folder.
    #[serde(rename = "dir")]
    Directory,
    /// A symbolic link, or what is as good as one.
    #[serde(rename = "link")]
    Link,
    /// A device, a pipe, a socket.
    #[serde(rename = "special")]
    Special,
}

/// A file or folder. Names are untrusted bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListEntry {
    /// From the volume's root on.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: ListedKind,
    /// How long its contents are.
    pub size_bytes: u64,
    /// Where a link leads.
    pub target: Option<Vec<u8>>,
    /// The names of its other streams.
    pub streams: Vec<Vec<u8>>,
    /// Permissions, 12 bits.
    pub mode: Option<u16>,
    /// Its owner.
    pub uid: Option<u32>,
    /// Its group.
    pub gid: Option<u32>,
    /// When its contents changed, in seconds since 1970.
    pub modified: Option<i64>,
    /// How many names it has.
    pub link_count: u64,
    /// Why its contents cannot be read, if so.
    pub sealed: Option<&'static str>,
}

/// The document `leandisk.ls/1`.
#[derive(Clone, Debug, Serialize)]
pub struct ListDocument {
    schema: &'static str,
    volume: usize,
    filesystem: String,
    path: String,
    recursive: bool,
    entries: Vec<EntryDocument>,
    /// For text: names as they are.
    #[serde(skip)]
    raw: Vec<ListEntry>,
}

#[derive(Clone, Debug, Serialize)]
struct EntryDocument {
    path: String,
    #[serde(rename = "type")]
    kind: ListedKind,
    size_bytes: u64,
    target: Option<String>,
    streams: Vec<String>,
    mode: Option<u16>,
    uid: Option<u32>,
    gid: Option<u32>,
    /// In seconds since 1970.
    mtime: Option<i64>,
    links: u64,
    unreadable: Option<&'static str>,
}

impl From<&ListEntry> for EntryDocument {
    fn from(entry: &ListEntry) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            path: text(&entry.path),
            kind: entry.kind,
            size_bytes: entry.size_bytes,
            target: entry.target.as_deref().map(text),
            streams: entry.streams.iter().map(|name| text(name)).collect(),
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            mtime: entry.modified,
            links: entry.link_count,
            unreadable: entry.sealed,
        }
    }
}

impl ListDocument {
    /// Of the volume of this index, which has this file system. `path` is the folder that was listed.
    pub fn new(volume: usize, filesystem: &str, path: Vec<u8>, recursive: bool, raw: Vec<ListEntry>) -> Self {
        Self {
            schema: "leandisk.ls/1",
            volume,
            filesystem: filesystem.to_owned(),
            path: String::from_utf8_lossy(&path).into_owned(),
            recursive,
            entries: raw.iter().map(EntryDocument::from).collect(),
            raw,
        }
    }
}

/// A line an entry, as `ls -l` has them.
pub fn list_text(document: &ListDocument, palette: Palette) -> String {
    let prefix = if document.path == "/" { 1 } else { document.path.len() + 1 };
    let lines: Vec<[String; 5]> = document.raw.iter().map(columns).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    let mut out = String::new();
    for (entry, [mode, links, owner, size, time]) in document.raw.iter().zip(&lines) {
        let [_, links_width, owner_width, size_width, time_width] = widths;
        let _ = write!(
            out,
            "{mode} {links:>links_width$} {owner:<owner_width$} {size:>size_width$} {time:<time_width$} "
        );
        // One folder's entries are shown by their names, those of several by where they are.
        let is_within = entry.path.len() > prefix && entry.path.starts_with(document.path.as_bytes());
        let name = if is_within { &entry.path[prefix..] } else { &entry.path[..] };
        let name = printable_name(name);
        out.push_str(&if entry.kind == ListedKind::Directory { palette.strong(&name) } else { name });
        if let Some(target) = &entry.target {
            let _ = write!(out, " -> {}", printable_name(target));
        }
        if let Some(sealed) = entry.sealed {
            let _ = write!(out, "  {}", palette.faint(&format!("({sealed})")));
        }
        out.push('\n');
        for stream in &entry.streams {
            let _ = writeln!(out, "{}", palette.faint(&format!("    :{}", printable_name(stream))));
        }
    }
    if document.raw.is_empty() {
        out.push_str("nothing\n");
    }
    out
}

fn columns(entry: &ListEntry) -> [String; 5] {
    let owner = match (entry.uid, entry.gid) {
        (Some(uid), Some(gid)) => format!("{uid} {gid}"),
        _ => String::new(),
    };
    let size = match entry.kind {
        ListedKind::File | ListedKind::Link => human_bytes(entry.size_bytes),
        ListedKind::Directory | ListedKind::Special => "-".into(),
    };
    let time = entry.modified.map(moment).unwrap_or_default();
    [mode_text(entry), entry.link_count.to_string(), owner, size, time]
}

/// `drwxr-xr-x`; without permissions, what it is alone.
fn mode_text(entry: &ListEntry) -> String {
    let kind = match entry.kind {
        ListedKind::File => '-',
        ListedKind::Directory => 'd',
        ListedKind::Link => 'l',
        ListedKind::Special => 's',
    };
    let Some(mode) = entry.mode else { return kind.to_string() };
    let mut text = kind.to_string();
    // Of the owner, the group and others: three bits each, the last of which shares its place with one of the upper three.
    for (shift, upper, both, alone) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & upper != 0) {
            (true, true) => both,
            (false, true) => alone,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// `2024-11-02 17:45` in UTC, whatever the year.
pub(crate) fn moment(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86400), seconds.rem_euclid(86400));
    // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": days in eras of 400 years that begin in March.
    let shifted = days.saturating_add(719_468);
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", rest / 3600, rest / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: ListedKind, mode: u16) -> ListEntry {
        ListEntry {
            path: b"/dir/a\x1b[2J".to_vec(),
            kind,
            size_bytes: 4096,
            target: None,
            streams: Vec::new(),
            mode: Some(mode),
            uid: Some(0),
            gid: Some(100),
            modified: Some(951_868_798),
            link_count: 1,
            sealed: None,
        }
    }

    #[test]
    fn lines_are_as_ls_has_them() {
        let text = |entry: ListEntry| {
            let document = ListDocument::new(1, "ext4", b"/dir".to_vec(), false, vec![entry]);
            list_text(&document, Palette { colors: false })
        };
        let line = text(entry(ListedKind::File, 0o4755));
        assert_eq!(line, "-rwsr-xr-x 1 0 100 4 KiB 2000-02-29 23:59 a\\u{1b}[2J\n");
        assert!(text(entry(ListedKind::Directory, 0o1770)).starts_with("drwxrwx--T 1 0 100 - "));
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        // As `date -u -d @N` says.
        assert_eq!(moment(0), "1970-01-01 00:00");
        assert_eq!(moment(-1), "1969-12-31 23:59");
        assert_eq!(moment(4_107_542_400), "2100-03-01 00:00");
        moment(i64::MIN);
        moment(i64::MAX);
    }
}
