//! Looking for signatures: reading at known places, and telling what a superblock says.

pub(crate) mod fields;

use block::Result;
use extent::Offset;

use crate::{Facts, Source, State};
use fields::Fields;

/// The unit in which most metadata counts, whatever the disk's own sectors are.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// What a volume is a part of: there is metadata that only lies on a whole disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// A partition, or a disk that has none.
    Partition,
    /// A whole disk, whether it has partitions or not.
    Disk,
}

/// What a recogniser looks through.
pub(crate) struct Probe<'a> {
    source: &'a Source,
    scope: Scope,
}

impl<'a> Probe<'a> {
    pub(crate) fn new(source: &'a Source, scope: Scope) -> Self {
        Self { source, scope }
    }

    pub(crate) fn of_partition(source: &'a Source) -> Self {
        Self::new(source, Scope::Partition)
    }

    pub(crate) fn source(&self) -> &'a Source {
        self.source
    }

    pub(crate) fn scope(&self) -> Scope {
        self.scope
    }

    /// The `len` bytes from `at`; `None` if the volume is shorter.
    pub(crate) fn at(&self, at: u64, len: usize) -> Result<Option<Fields>> {
        if at.checked_add(len as u64).is_none_or(|end| end > self.len_bytes()) {
            return Ok(None);
        }
        let mut bytes = vec![0; len];
        self.source.read_at(Offset::new(at), &mut bytes)?;
        Ok(Some(Fields(bytes)))
    }

    /// Like [`Probe::at`], if `magic` lies `magic_at` bytes further.
    pub(crate) fn with_magic(
        &self,
        at: u64,
        len: usize,
        magic_at: usize,
        magic: &[u8],
    ) -> Result<Option<Fields>> {
        Ok(self.at(at, len)?.filter(|fields| fields.holds(magic_at, magic)))
    }

    /// Where the `count`th sector of 512 bytes from the end begins; `None` if the volume has fewer.
    pub(crate) fn sector_from_end(&self, count: u64) -> Option<u64> {
        (self.len_bytes() / SECTOR_BYTES).checked_sub(count).map(|sector| sector * SECTOR_BYTES)
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.source.len_bytes()
    }

    /// Facts of a file system that is copied whole because Leandisk does not read it.
    pub(crate) fn unread(&self, filesystem: &str) -> Facts {
        self.facts(filesystem, State::Unsupported(format!("{filesystem} is not read")))
    }

    pub(crate) fn facts(&self, filesystem: &str, state: State) -> Facts {
        Facts {
            filesystem: filesystem.into(),
            label: None,
            uuid: None,
            cluster_bytes: None,
            size_bytes: self.len_bytes(),
            free_bytes: None,
            state,
            details: Vec::new(),
        }
    }
}

/// Filling in what a superblock says. Nothing is checked: it is only shown.
pub(crate) trait Told: Sized {
    /// The size as a count of clusters.
    fn sized(self, cluster_bytes: u64, count: u64) -> Self;
    fn free(self, cluster_count: u64) -> Self;
    fn label(self, label: Option<String>) -> Self;
    fn uuid(self, uuid: Option<String>) -> Self;
    fn detail(self, name: &'static str, value: impl ToString) -> Self;
}

impl Told for Facts {
    fn sized(mut self, cluster_bytes: u64, count: u64) -> Self {
        self.cluster_bytes = Some(cluster_bytes);
        self.size_bytes = cluster_bytes.saturating_mul(count);
        self
    }

    fn free(mut self, cluster_count: u64) -> Self {
        self.free_bytes = self.cluster_bytes.map(|cluster_bytes| cluster_bytes.saturating_mul(cluster_count));
        self
    }

    fn label(mut self, label: Option<String>) -> Self {
        self.label = label;
        self
    }

    fn uuid(mut self, uuid: Option<String>) -> Self {
        self.uuid = uuid;
        self
    }

    fn detail(mut self, name: &'static str, value: impl ToString) -> Self {
        self.details.push((name, value.to_string()));
        self
    }
}
