//! What a picture of a disk shows. The caller fills it; the renderers only read.
//!
//! A piece takes 24 bytes, a run 32, an owner about 40 and its name.

use extent::{VirtualOffset, VirtualSpan};

use crate::text::grouped;

/// A disk, from the guest's files down to the host's device.
#[derive(Clone, Debug, Default)]
pub struct DiskMap {
    /// What the picture is of, such as the image's path. Untrusted text.
    pub title: String,
    /// The size of the virtual disk.
    pub virtual_bytes: u64,
    /// Its volumes, ascending.
    pub volumes: Vec<MapVolume>,
    /// What lies where on the virtual disk: ascending, disjoint. Gaps are shown as [`PieceClass::Unknown`].
    pub pieces: Vec<MapPiece>,
    /// The files that pieces belong to.
    pub owners: MapOwners,
    /// Where the virtual disk's bytes lie below the guest: the container first, then the host.
    pub layers: Vec<MapLayer>,
}

/// A volume of the disk.
#[derive(Clone, Debug)]
pub struct MapVolume {
    /// Its number, from 1.
    pub index: usize,
    /// Where it lies.
    pub span: VirtualSpan,
    /// Its file system, if that is known.
    pub filesystem: Option<String>,
    /// Its label. Untrusted text.
    pub label: Option<String>,
}

/// What a piece of the virtual disk is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum PieceClass {
    /// Data of a file that lies in one run.
    Contiguous,
    /// Data of a file that lies in several.
    Fragmented,
    /// What the file system keeps for itself.
    Metadata,
    /// Means nothing to the guest (free, or swap), yet the container holds it.
    Reclaimable,
    /// Means nothing to the guest, and takes no room below.
    Free,
    /// Outside all volumes: partition tables, gaps.
    Outside,
    /// Of a volume taken whole: what is there is not known.
    Unknown,
}

impl PieceClass {
    /// All of them, as a picture stacks them from the bottom.
    pub const ALL: [Self; 7] = [
        Self::Metadata,
        Self::Fragmented,
        Self::Contiguous,
        Self::Unknown,
        Self::Outside,
        Self::Reclaimable,
        Self::Free,
    ];

    /// A word or two for legends.
    pub fn label(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous files",
            Self::Fragmented => "fragmented files",
            Self::Metadata => "metadata",
            Self::Reclaimable => "reclaimable",
            Self::Free => "free",
            Self::Outside => "outside volumes",
            Self::Unknown => "unknown",
        }
    }

    /// Its place among [`Self::ALL`].
    pub(crate) fn position(self) -> usize {
        match self {
            Self::Metadata => 0,
            Self::Fragmented => 1,
            Self::Contiguous => 2,
            Self::Unknown => 3,
            Self::Outside => 4,
            Self::Reclaimable => 5,
            Self::Free => 6,
        }
    }
}

/// A file's number among [`MapOwners`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OwnerId(u32);

impl OwnerId {
    /// No file.
    pub const NONE: Self = Self(u32::MAX);

    /// The owner at an index.
    #[cfg(test)]
    pub(crate) fn of(index: u32) -> Self {
        Self(index)
    }

    /// Its index; `None` of [`Self::NONE`].
    pub(crate) fn index(self) -> Option<usize> {
        (self != Self::NONE).then_some(self.0 as usize)
    }
}

/// A span of the virtual disk with what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapPiece {
    /// Where it lies.
    pub span: VirtualSpan,
    /// What it is.
    pub class: PieceClass,
    /// Whose it is.
    pub owner: OwnerId,
}

/// What is known of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapOwner {
    /// The volume's number, from 1.
    pub volume: u16,
    /// Its length.
    pub size_bytes: u64,
    /// Its contiguous runs on its volume.
    pub fragments: u32,
    /// Its contiguous runs on the host's device.
    pub whole_stack_fragments: u32,
}

/// Files with their names, which lie in one buffer.
#[derive(Clone, Debug, Default)]
pub struct MapOwners {
    owners: Vec<MapOwner>,
    names: Vec<u8>,
    /// Where each name ends in `names`.
    ends: Vec<u64>,
}

impl MapOwners {
    /// Adds a file and answers its number; [`OwnerId::NONE`] past 2^32 files. `name` is untrusted bytes, shown with
    /// what is no UTF-8, no visible character or reorders text written out as escapes.
    pub fn push(&mut self, name: &[u8], owner: MapOwner) -> OwnerId {
        let Some(id) = u32::try_from(self.owners.len()).ok().filter(|id| *id != u32::MAX) else {
            return OwnerId::NONE;
        };
        self.owners.push(owner);
        self.names.extend_from_slice(name);
        self.ends.push(self.names.len() as u64);
        OwnerId(id)
    }

    /// How many files there are.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// The file at `index`, with its name.
    pub(crate) fn get(&self, index: usize) -> (MapOwner, &[u8]) {
        let memory = |at: u64| usize::try_from(at).expect("an index of memory");
        let start = index.checked_sub(1).map_or(0, |before| memory(self.ends[before]));
        (self.owners[index], &self.names[start..memory(self.ends[index])])
    }
}

/// The name of the lowest layer, whose addresses are those of the host's device.
pub(crate) const HOST: &str = "host";

/// One layer below the guest.
#[derive(Clone, Debug)]
pub struct MapLayer {
    /// What it is called: `container`, `host`.
    pub name: String,
    /// What it is: a format, a path, a device. Untrusted text.
    pub about: String,
    /// Where the virtual disk's bytes lie in it, by ascending virtual offset, disjoint there. What is not mentioned
    /// is not in it.
    pub runs: Vec<MapRun>,
}

/// Bytes of the virtual disk that lie in one place of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapRun {
    /// Which bytes.
    pub span: VirtualSpan,
    /// Where they begin in the layer's own address space: an offset in the image file, or on the device.
    pub place: u64,
    /// How many bytes they take there: as many as the span, or fewer if compressed.
    pub stored_bytes: u64,
}

impl MapRun {
    /// A run that is stored as it is.
    pub fn plain(span: VirtualSpan, place: u64) -> Self {
        Self { span, place, stored_bytes: span.len_bytes() }
    }

    /// From where to where it lies.
    pub(crate) fn stored(&self) -> (u64, u64) {
        (self.place, self.place.saturating_add(self.stored_bytes))
    }

    /// Where the byte at `at` lies, which is within the span or at its end.
    pub(crate) fn place_of(&self, at: VirtualOffset) -> u64 {
        let into = u128::from(at.get().saturating_sub(self.span.start().get()));
        let scaled = into * u128::from(self.stored_bytes) / u128::from(self.span.len_bytes().max(1));
        self.place.saturating_add(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

/// The addresses that a row of a picture spans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) len_bytes: u64,
}

impl MapLayer {
    /// From the first to the last byte that it holds of the virtual disk.
    pub(crate) fn range(&self) -> Range {
        let start = self.runs.iter().map(|run| run.place).min().unwrap_or(0);
        let end = self.runs.iter().map(|run| run.place.saturating_add(run.stored_bytes)).max();
        Range { start, len_bytes: end.unwrap_or(0) - start }
    }

    /// How many contiguous runs the layer holds the disk in, read in the disk's order.
    pub(crate) fn fragment_count(&self) -> u64 {
        let breaks = self
            .runs
            .windows(2)
            .filter(|pair| pair[0].place.saturating_add(pair[0].stored_bytes) != pair[1].place);
        breaks.count() as u64 + u64::from(!self.runs.is_empty())
    }

    /// The same in words.
    pub(crate) fn fragments_said(&self) -> String {
        match self.fragment_count() {
            1 => "1 run".to_owned(),
            count => format!("{} runs", grouped(count)),
        }
    }
}
