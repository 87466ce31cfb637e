//! The snapshots that a volume keeps of itself, in documents and in words.

use std::fmt::Write as _;

use filesystem::{FileSystem, ShadowCopy};
use serde::Serialize;

use crate::text::{Palette, human_bytes, painted, printable, wrapped};

/// How many copies are named in words: a server can have hundreds.
const NAMED_COUNT_MAX: usize = 8;

/// One of `shadow_copies[]`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ShadowCopyEntry {
    id: Option<String>,
    set_id: Option<String>,
    store_id: String,
    created: Option<String>,
    size_bytes: u64,
    store_bytes: Option<u64>,
    machine: Option<String>,
    doubt: Option<String>,
}

impl From<&ShadowCopy> for ShadowCopyEntry {
    fn from(copy: &ShadowCopy) -> Self {
        let ShadowCopy { id, set_id, store_id, created, size_bytes, store_bytes, machine, doubt } =
            copy.clone();
        Self { id, set_id, store_id, created, size_bytes, store_bytes, machine, doubt }
    }
}

/// Those of a volume, oldest first.
pub(crate) fn entries(filesystem: Option<&dyn FileSystem>) -> Vec<ShadowCopyEntry> {
    filesystem
        .map(|filesystem| filesystem.shadow_copies().iter().map(Into::into).collect())
        .unwrap_or_default()
}

/// How many there are, in words.
pub(crate) fn counted(count: usize) -> String {
    match count {
        1 => "1 shadow copy".to_owned(),
        count => format!("{count} shadow copies"),
    }
}

/// Appends a line that says how many there are, and one for each of the newest; nothing if there are none.
pub(crate) fn list_text(out: &mut String, indent: &str, copies: &[ShadowCopyEntry], palette: Palette) {
    if copies.is_empty() {
        return;
    }
    let _ = writeln!(out, "{indent}{}", counted(copies.len()));
    let hidden = copies.len().saturating_sub(NAMED_COUNT_MAX);
    if hidden > 0 {
        let _ = writeln!(out, "{indent}  {}", palette.faint(&format!("{hidden} older ones")));
    }
    for copy in &copies[hidden..] {
        let created = copy.created.as_deref().unwrap_or("at an unknown time");
        let id = copy.id.as_ref().unwrap_or(&copy.store_id);
        let mut line = format!("{created}  {id}");
        if let Some(bytes) = copy.store_bytes {
            let _ = write!(line, "  in {}", human_bytes(bytes));
        }
        let indent = format!("{indent}  ");
        out.push_str(&wrapped(&indent, Some(&indent), &line));
        if let Some(doubt) = &copy.doubt {
            let paint = |line: &str| palette.warning(line);
            out.push_str(&painted(&indent, Some(&indent), &printable(doubt), paint));
        }
    }
}

/// What a command does for a volume's copies.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct ShadowCopyCare {
    /// How many there are.
    #[serde(rename = "shadow_copy_count")]
    pub count: usize,
    /// Bytes that are free or swap to the volume, and kept for them.
    #[serde(rename = "kept_for_shadow_copies_bytes")]
    pub kept_bytes: u64,
    /// Nothing is kept for them: the user said so.
    #[serde(rename = "drops_shadow_copies")]
    pub is_dropping: bool,
}

impl ShadowCopyCare {
    /// The care for the copies of a volume.
    pub fn new(filesystem: Option<&dyn FileSystem>, kept_bytes: u64, is_dropping: bool) -> Self {
        let count = filesystem.map_or(0, |filesystem| filesystem.shadow_copies().len());
        Self { count, kept_bytes, is_dropping: is_dropping && count > 0 }
    }

    /// Appends what there is to say.
    pub(crate) fn text(self, out: &mut String, indent: &str, palette: Palette) {
        let copies = counted(self.count);
        if self.is_dropping {
            let text = format!("{copies} not kept: delete them in Windows (vssadmin delete shadows)");
            out.push_str(&painted(indent, None, &text, |line| palette.warning(line)));
        } else if self.count > 0 {
            let _ = writeln!(out, "{indent}{copies}, for which {} are kept", human_bytes(self.kept_bytes));
        }
    }
}
