//! Where the parts of an exFAT volume lie, and its chains: sections 3 and 4 of Microsoft's specification.

use block::{Error, ReadAt, Result, read_vec};
use extent::VolumeOffset;

use super::corrupt::CorruptExFat;
use crate::volume::Source;
use crate::volume::bits::Bits;

/// Clusters in a row: the first one, and how many.
pub(super) type Piece = (u32, u32);

/// The FAT is read in pieces of so many bytes.
const PIECE_BYTES: u64 = 1 << 18;
/// The most clusters that are checked.
const CLUSTERS_MAX: u64 = 1 << 28;

pub(super) struct Geometry<'a> {
    pub(super) source: &'a Source,
    pub(super) cluster_bytes: u64,
    pub(super) root: u32,
    /// One past the last cluster's number.
    pub(super) cluster_end: u32,
    fat_at: u64,
    heap_at: u64,
    piece: (u64, Vec<u8>),
    pub(super) owned: Bits,
}

pub(super) fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

pub(in crate::volume) fn is_exfat(source: &Source) -> Result<bool> {
    let boot = source.len_bytes() >= 512;
    Ok(boot && read_vec(source, VolumeOffset::new(3), 8, "boot sector")? == b"EXFAT   ")
}

/// The checksum of both boot regions.
fn check_regions(source: &Source, sector: u64) -> Result<()> {
    for region in [0, 12 * sector] {
        let bytes = read_vec(source, VolumeOffset::new(region), 12 * sector, "boot region")?;
        let mut sum = 0_u32;
        let body = bytes.len() / 12 * 11;
        for (at, byte) in bytes[..body].iter().enumerate() {
            if !(at == 106 || at == 107 || at == 112) {
                sum = sum.rotate_right(1).wrapping_add(u32::from(*byte));
            }
        }
        if bytes[body..].chunks(4).any(|stored| number(stored, 0, 4) != u64::from(sum)) {
            return Err(Error::corrupt(CorruptExFat::Boot).at(VolumeOffset::new(region)));
        }
    }
    Ok(())
}

impl<'a> Geometry<'a> {
    pub(super) fn open(source: &'a Source) -> Result<Self> {
        let boot = read_vec(source, VolumeOffset::ZERO, 512, "boot sector")?;
        let wrong = |name: &str, found: u64| Error::corrupt(CorruptExFat::Boot).field(name, found, "another");
        let (sector_log, cluster_log) = (number(&boot, 108, 1), number(&boot, 109, 1));
        if !(9..=12).contains(&sector_log) || sector_log + cluster_log > 25 {
            return Err(wrong("BytesPerSectorShift", sector_log));
        }
        let sector = 1_u64 << sector_log;
        check_regions(source, sector)?;
        let (length, flags) = (number(&boot, 72, 8), number(&boot, 106, 2));
        if number(&boot, 104, 2) != 0x100 || number(&boot, 110, 1) != 1 || flags & 7 != 0 {
            return Err(wrong("VolumeFlags", flags));
        }
        let (fat, fat_sectors) = (number(&boot, 80, 4), number(&boot, 84, 4));
        let (heap, count, root) = (number(&boot, 88, 4), number(&boot, 92, 4), number(&boot, 96, 4));
        let is_possible = length <= source.len_bytes() / sector
            && (1..=CLUSTERS_MAX).contains(&count)
            && heap + (count << cluster_log) <= length
            && fat >= 24
            && fat + fat_sectors <= heap
            && fat_sectors * sector >= (count + 2) * 4
            && (2..count + 2).contains(&root);
        let end = u32::try_from(count + 2).ok().zip(u32::try_from(root).ok()).filter(|_| is_possible);
        let Some((cluster_end, root)) = end else { return Err(wrong("ClusterCount", count)) };
        Ok(Self {
            source,
            cluster_bytes: sector << cluster_log,
            root,
            cluster_end,
            fat_at: fat * sector,
            heap_at: heap * sector,
            piece: (0, Vec::new()),
            owned: Bits::none(0..cluster_end.into()),
        })
    }

    pub(super) fn place_of(&self, cluster: u32) -> VolumeOffset {
        VolumeOffset::new(self.heap_at + u64::from(cluster.saturating_sub(2)) * self.cluster_bytes)
    }

    fn next(&mut self, cluster: u32) -> Result<u32> {
        let at = u64::from(cluster) * 4;
        let start = at - at % PIECE_BYTES;
        if self.piece.1.is_empty() || self.piece.0 != start {
            let len = PIECE_BYTES.min(u64::from(self.cluster_end) * 4 - start);
            self.piece = (start, read_vec(self.source, VolumeOffset::new(self.fat_at + start), len, "FAT")?);
        }
        let index = usize::try_from(at - start).unwrap_or(usize::MAX);
        let entry = self.piece.1.get(index..).and_then(|rest| rest.first_chunk());
        entry
            .map(|bytes| u32::from_le_bytes(*bytes))
            .ok_or_else(|| Error::corrupt(CorruptExFat::Chain(cluster)))
    }

    /// Makes `count` clusters from `first` on owned.
    fn own(&mut self, first: u32, count: u64) -> Result<()> {
        let range = u64::from(first)..u64::from(first).saturating_add(count);
        if first < 2 || range.end > u64::from(self.cluster_end) {
            return Err(Error::corrupt(CorruptExFat::Chain(first)));
        }
        match self.owned.add(range) {
            None => Ok(()),
            Some(twice) => Err(Error::corrupt(CorruptExFat::Shared(u32::try_from(twice).unwrap_or(first)))),
        }
    }

    /// The clusters from `first` on, made owned: so many, or, of the root directory, up to the end of the chain.
    pub(super) fn take(&mut self, first: u32, count: Option<u64>, is_contiguous: bool) -> Result<Vec<Piece>> {
        if count == Some(0) && first == 0 {
            return Ok(Vec::new());
        }
        if let Some(count) = count.filter(|_| is_contiguous) {
            self.own(first, count)?;
            return Ok(vec![(first, u32::try_from(count).unwrap_or(u32::MAX))]);
        }
        let (mut pieces, mut cluster, mut found): (Vec<Piece>, _, _) = (Vec::new(), first, 0);
        while cluster != u32::MAX {
            self.own(cluster, 1)?;
            found += 1;
            match pieces.last_mut() {
                Some((start, len)) if *start + *len == cluster => *len += 1,
                _ => pieces.push((cluster, 1)),
            }
            cluster = self.next(cluster)?;
        }
        match count {
            Some(count) if count != found => Err(Error::corrupt(CorruptExFat::Chain(first))),
            _ => Ok(pieces),
        }
    }
}
