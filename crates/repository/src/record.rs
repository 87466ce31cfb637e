//! What a snapshot says of a disk besides its contents: `.leandisk/NAME.json`, so that the next backup can tell what changed since.
//!
//! Absent on purpose: judging it. A record is compared with the disk by who makes the next backup.

use block::{Error, Result};
use extent::{ExtentSet, Span, Virtual, VirtualOffset};
use serde::{Deserialize, Serialize};

use crate::index::Index;
use crate::pack::BlobKind;
use crate::repository::Repository;
use crate::snapshot::{Node, Snapshot};
use crate::unlocked::missing;

/// The folder in a snapshot's root that holds the records.
pub(crate) const FOLDER: &str = ".leandisk";
/// The version of records that are written, and the only one that is read.
const VERSION: u32 = 1;
/// The longest record: a blob of restic's.
const BYTES_MAX: u64 = 8 << 20;
/// So many spans of zeros are kept; what comes behind is read again.
const ZEROS_MAX: usize = 64 << 10;

/// Where a dirty bitmap begins: with a snapshot.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Start {
    /// Its name.
    pub name: String,
    /// Bytes of the disk that a bit stands for.
    pub granularity_bytes: u64,
    /// The bits that were left set when it was made to begin anew, in order: by them it is known again.
    pub kept: Vec<u64>,
}

/// A file of a layer, as the host tells it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct LayerFile {
    /// Its number in its file system.
    pub inode: u64,
    /// Its length.
    pub len_bytes: u64,
    /// When its contents were last changed, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// When anything of it was last changed, in nanoseconds since 1970.
    pub changed_ns: i64,
}

/// A layer of an image.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct LayerState {
    /// Its format.
    pub format: String,
    /// What its children know it by, if the format has that.
    pub id: Option<String>,
    /// Its size as a disk.
    pub virtual_bytes: u64,
    /// Its files.
    pub files: Vec<LayerFile>,
}

/// The layers that the disk consisted of.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Layers {
    /// The top one first.
    pub layers: Vec<LayerState>,
    top: Option<Vec<(u64, u64)>>,
}

impl Layers {
    /// `top` is what lay in the top one, if it stood on another.
    pub fn new(layers: Vec<LayerState>, top: Option<&ExtentSet<Virtual>>) -> Self {
        Self { layers, top: top.map(|top| pairs(top, usize::MAX)) }
    }

    /// What lay in the top layer, if that was told.
    pub fn top(&self) -> Option<ExtentSet<Virtual>> {
        self.top.as_deref().map(spans)
    }
}

/// What was stored of a disk, and how its image was left.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct Record {
    version: u32,
    virtual_bytes: u64,
    /// The bitmap that begins with the snapshot.
    pub bitmap: Option<Start>,
    /// The layers, if they were all as they were before when all had been read.
    #[serde(default)]
    pub layers: Option<Layers>,
    zeros: Vec<(u64, u64)>,
    filled: Vec<(u64, u64)>,
}

impl Record {
    /// Of a disk of `virtual_bytes`: `zeros` is what was read and was zeros, `filled` what was stored without being read.
    pub fn new(
        virtual_bytes: u64,
        bitmap: Option<Start>,
        zeros: &ExtentSet<Virtual>,
        filled: &ExtentSet<Virtual>,
    ) -> Self {
        let (zeros, filled) = (pairs(zeros, ZEROS_MAX), pairs(filled, usize::MAX));
        Self { version: VERSION, virtual_bytes, bitmap, layers: None, zeros, filled }
    }

    /// The disk's size.
    pub fn virtual_bytes(&self) -> u64 {
        self.virtual_bytes
    }

    /// What was read and was zeros, as far as it was kept.
    pub fn zeros(&self) -> ExtentSet<Virtual> {
        spans(&self.zeros)
    }

    /// What was stored without being read.
    pub fn filled(&self) -> ExtentSet<Virtual> {
        spans(&self.filled)
    }

    /// `None` if it would be too long.
    pub(crate) fn to_bytes(&self) -> Result<Option<Vec<u8>>> {
        let mut bytes =
            serde_json::to_vec(self).map_err(|error| Error::invalid(format!("a record as JSON: {error}")))?;
        bytes.push(b'\n');
        Ok((bytes.len() as u64 <= BYTES_MAX).then_some(bytes))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(bytes).ok()?;
        (record.version == VERSION && record.is_sound()).then_some(record)
    }

    fn is_sound(&self) -> bool {
        let within = |&(start, len_bytes): &(u64, u64)| {
            start.checked_add(len_bytes).is_some_and(|end| end <= self.virtual_bytes)
        };
        let is_start = |start: &Start| {
            let bits = self.virtual_bytes.checked_div(start.granularity_bytes).unwrap_or(0);
            start.granularity_bytes.is_power_of_two() && start.kept.iter().all(|bit| *bit <= bits)
        };
        let top = self.layers.iter().flat_map(|layers| &layers.top).flatten();
        self.zeros.iter().chain(&self.filled).chain(top).all(within)
            && self.bitmap.as_ref().is_none_or(is_start)
    }
}

fn pairs(set: &ExtentSet<Virtual>, max: usize) -> Vec<(u64, u64)> {
    set.iter().take(max).map(|span| (span.start().get(), span.len_bytes())).collect()
}

fn spans(pairs: &[(u64, u64)]) -> ExtentSet<Virtual> {
    pairs.iter().map(|&(start, len_bytes)| Span::new(VirtualOffset::new(start), len_bytes)).collect()
}

/// The file name of the record of the disk whose file in the snapshot is `name`.
pub(crate) fn file_name(name: &str) -> String {
    format!("{name}.json")
}

impl Repository {
    /// What `snapshot` says of the disk whose file in it is `name`; `None` if that is nothing, or nothing that is known.
    pub fn record(&self, index: &Index, snapshot: &Snapshot, name: &str) -> Result<Option<Record>> {
        let root = self.tree(index, snapshot.tree)?;
        let folder = root.nodes.into_iter().find(|node| node.name == FOLDER && node.kind == "dir");
        let Some(folder) = folder.and_then(|node| node.subtree) else { return Ok(None) };
        let file = self.tree(index, folder)?.nodes.into_iter().find(|node| node.name == file_name(name));
        let Some(file) = file.filter(|file| file.is_file() && file.size <= BYTES_MAX) else {
            return Ok(None);
        };
        Ok(Record::parse(&self.contents(index, &file)?))
    }

    /// All bytes of a small file.
    fn contents(&self, index: &Index, file: &Node) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for &id in file.content.iter().flatten() {
            let place = index.find(BlobKind::Data, id).ok_or_else(|| missing(id).path(self.place()))?;
            bytes.extend(self.blob(&place)?);
            if bytes.len() as u64 > file.size {
                break;
            }
        }
        match bytes.len() as u64 == file.size {
            true => Ok(bytes),
            false => {
                Err(Error::corrupt("a file of a snapshot is not as long as its blobs").path(self.place()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_or_is_none() {
        let zeros: ExtentSet<Virtual> = [Span::new(VirtualOffset::new(512), 1024)].into_iter().collect();
        let start = Start { name: "daily".into(), granularity_bytes: 65536, kept: vec![0, 7] };
        let record = Record::new(1 << 20, Some(start), &zeros, &ExtentSet::new());
        let bytes = record.to_bytes().unwrap().unwrap();
        let again = Record::parse(&bytes).unwrap();
        assert_eq!(again, record);
        assert_eq!(again.zeros(), zeros);
        let text = String::from_utf8(bytes).unwrap();
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("65536", "65535"),
            ("[512,1024]", "[512,1048576]"),
            ("7]", "70]"),
        ] {
            assert_eq!(Record::parse(text.replace(from, to).as_bytes()), None, "{from}");
        }
    }
}
