//! Where the parts of a FAT volume lie, and its chains: fatgen103, pages 9 to 18.

use block::{Error, ReadAt, Result, read_vec};
use extent::VolumeOffset;

use super::corrupt::CorruptFat;
use crate::volume::Source;

/// The table is read in pieces of so many bytes, which entries of 12 bits do not straddle.
const PIECE_BYTES: u64 = 3 << 18;

/// Clusters in a row: the first one, and how many.
pub(super) type Piece = (u32, u32);

pub(super) struct Geometry<'a> {
    pub(super) source: &'a Source,
    /// Bits of an entry: 12, 16 or 32.
    bits: u32,
    pub(super) cluster_bytes: u64,
    pub(super) table_at: u64,
    pub(super) table_bytes: u64,
    pub(super) table_count: u64,
    /// Of FAT12 and FAT16; empty on FAT32.
    pub(super) root: (u64, u64),
    /// Of FAT32.
    pub(super) root_cluster: u32,
    data_at: u64,
    /// One past the last cluster's number.
    pub(super) cluster_end: u32,
    piece: (u64, Vec<u8>),
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl<'a> Geometry<'a> {
    /// `None` if the first sector is none of FAT's.
    pub(super) fn open(source: &'a Source) -> Result<Option<Self>> {
        if source.len_bytes() < 512 {
            return Ok(None);
        }
        let boot = read_vec(source, VolumeOffset::ZERO, 512, "boot sector")?;
        let (sector, sectors_a_cluster) = (number(&boot, 11, 2), number(&boot, 13, 1));
        let (reserved, table_count, root_entries) =
            (number(&boot, 14, 2), number(&boot, 16, 1), number(&boot, 17, 2));
        let is_fat = boot[510..] == [0x55, 0xaa]
            && [512, 1024, 2048, 4096].contains(&sector)
            && sectors_a_cluster.is_power_of_two()
            && reserved > 0
            && (1..=2).contains(&table_count)
            && boot[21] >= 0xf0
            && matches!(boot[0], 0xeb | 0xe9);
        if !is_fat {
            return Ok(None);
        }
        let either = |short: u64, long: u64| if short == 0 { long } else { short };
        let table_sectors = either(number(&boot, 22, 2), number(&boot, 36, 4));
        let sectors = either(number(&boot, 19, 2), number(&boot, 32, 4));
        let root_sectors = (root_entries * 32).div_ceil(sector);
        let data_sector = reserved + table_count * table_sectors + root_sectors;
        let count = sectors.saturating_sub(data_sector) / sectors_a_cluster;
        let is_32 = number(&boot, 22, 2) == 0;
        // As Linux, Windows and fsck.fat tell FAT32, however few clusters it has.
        let bits = match count {
            _ if is_32 => 32,
            0..4085 => 12,
            _ => 16,
        };
        let table_bytes = table_sectors * sector;
        let root_cluster = if is_32 { number(&boot, 44, 4) } else { 0 };
        // Numbers from 0x0ffffff7 on mean something else (page 16).
        let is_possible =
            (1..0x0fff_fff5).contains(&count) && (!is_32 || (2..count + 2).contains(&root_cluster));
        let end = u32::try_from(count + 2).ok().filter(|_| is_possible);
        let fits = (count + 2) * u64::from(bits) <= table_bytes * 8 && sectors * sector <= source.len_bytes();
        let Some(cluster_end) = end.filter(|_| fits && (is_32 || count < 65525)) else {
            return Err(Error::corrupt(CorruptFat::Boot).field("clusters", count, "what its FAT can hold"));
        };
        Ok(Some(Self {
            source,
            bits,
            cluster_bytes: sectors_a_cluster * sector,
            table_at: reserved * sector,
            table_bytes,
            table_count,
            root: ((data_sector - root_sectors) * sector, root_sectors * sector),
            root_cluster: u32::try_from(root_cluster).unwrap_or(0),
            data_at: data_sector * sector,
            cluster_end,
            piece: (0, Vec::new()),
        }))
    }

    pub(super) fn place_of(&self, cluster: u32) -> VolumeOffset {
        VolumeOffset::new(self.data_at + u64::from(cluster - 2) * self.cluster_bytes)
    }

    /// The 16 bits from byte `at` of the table on.
    fn pair(&mut self, at: u64) -> Result<u32> {
        let mut pair = 0;
        for (byte_at, shift) in [(at, 0), (at + 1, 8)] {
            let start = byte_at / PIECE_BYTES * PIECE_BYTES;
            if self.piece.1.is_empty() || self.piece.0 != start {
                let len = PIECE_BYTES.min(self.table_bytes.saturating_sub(start));
                self.piece =
                    (start, read_vec(self.source, VolumeOffset::new(self.table_at + start), len, "FAT")?);
            }
            let byte = usize::try_from(byte_at - start).ok().and_then(|index| self.piece.1.get(index));
            pair |= u32::from(*byte.ok_or_else(|| Error::corrupt(CorruptFat::Boot))?) << shift;
        }
        Ok(pair)
    }

    pub(super) fn entry(&mut self, cluster: u32) -> Result<u32> {
        let number = u64::from(cluster);
        match self.bits {
            12 => Ok((self.pair(number + number / 2)? >> (number % 2 * 4)) & 0xfff),
            16 => self.pair(number * 2),
            _ => Ok(self.pair(number * 4)? | (self.pair(number * 4 + 2)? & 0xfff) << 16),
        }
    }

    /// The chain that begins at `first`; `own` is called with each cluster, and ends it with an error.
    pub(super) fn chain(&mut self, first: u32, mut own: impl FnMut(u32) -> Result<()>) -> Result<Vec<Piece>> {
        let last = (1_u32 << self.bits.min(28)) - 8;
        let (mut pieces, mut cluster): (Vec<Piece>, _) = (Vec::new(), first);
        loop {
            if !(2..self.cluster_end).contains(&cluster) {
                return Err(Error::corrupt(CorruptFat::Chain(cluster)));
            }
            own(cluster)?;
            match pieces.last_mut() {
                Some((start, count)) if *start + *count == cluster => *count += 1,
                _ => pieces.push((cluster, 1)),
            }
            let next = self.entry(cluster)?;
            if next >= last {
                return Ok(pieces);
            }
            cluster = next;
        }
    }
}
