//! The superblock, checksums, and where addresses lie.

use blake2::digest::consts::U32;
use block::{Error, Result, read_vec};
use extent::{Offset, VolumeOffset};
use sha2::Digest;

use super::corrupt::CorruptBtrfs;
use crate::volume::Source;

const SUPERBLOCK_AT: u64 = 65_536;
const SUPERBLOCK_BYTES: u64 = 4096;
/// Mixed back references, large and compressed metadata, and what else changes no structure that is read here.
const FEATURES: u64 = 0b1_0000_0111_1111_1111;

/// The little-endian number of `len` bytes at `at`; zeros behind the end.
pub(super) fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let part = bytes.get(at..).unwrap_or_default();
    part.iter().take(len).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Whether there is a superblock.
pub(in crate::volume) fn is_btrfs(source: &Source) -> Result<bool> {
    if source.len_bytes() < SUPERBLOCK_AT + SUPERBLOCK_BYTES {
        return Ok(false);
    }
    Ok(read_vec(&**source, Offset::new(SUPERBLOCK_AT + 64), 8, "Btrfs superblock")? == b"_BHRfS_M")
}

/// What the superblock says, and all chunks that are known.
pub(super) struct Geometry<'a> {
    pub(super) source: &'a Source,
    superblock: Vec<u8>,
    pub(super) node_bytes: u64,
    pub(super) used_bytes: u64,
    /// Where chunks begin, how long they are, where they lie, and how many copies they have.
    chunks: Vec<[u64; 4]>,
}

pub(super) fn superblock() -> Error {
    Error::corrupt(CorruptBtrfs::Superblock)
}

impl<'a> Geometry<'a> {
    pub(super) fn open(source: &'a Source) -> Result<Self> {
        let bytes = read_vec(&**source, Offset::new(SUPERBLOCK_AT), SUPERBLOCK_BYTES, "Btrfs superblock")?;
        let word = |at| number(&bytes, at, 8);
        let (features, read_only, devices, log) = (word(188), word(180), word(136), word(96));
        if features & !FEATURES != 0 || features & 1 == 0 || read_only & !0xf != 0 {
            return Err(Error::unsupported("Btrfs with features that cannot be checked"));
        }
        if devices != 1 || log != 0 || word(56) & !3 != 0 {
            return Err(Error::unsupported("Btrfs on several devices, or that was not unmounted"));
        }
        let node_bytes = number(&bytes, 148, 4);
        let is_sound = word(48) == SUPERBLOCK_AT
            && (4096..=65_536).contains(&node_bytes)
            && node_bytes.is_power_of_two()
            && word(112) <= source.len_bytes();
        let used_bytes = word(120);
        let mut geometry = Self { source, superblock: bytes, node_bytes, used_bytes, chunks: Vec::new() };
        if !is_sound || !geometry.sum_holds(&geometry.superblock) {
            return Err(superblock());
        }
        geometry.read_array()?;
        Ok(geometry)
    }

    /// Address, generation and level of the root of the tree of roots, and of the tree of chunks.
    pub(super) fn roots(&self) -> [[u64; 3]; 2] {
        let word = |at, len| number(&self.superblock, at, len);
        [[word(80, 8), word(72, 8), word(198, 1)], [word(88, 8), word(164, 8), word(199, 1)]]
    }

    /// What metadata bear.
    pub(super) fn uuid(&self) -> &[u8] {
        let at = if number(&self.superblock, 188, 8) >> 10 & 1 == 1 { 571 } else { 32 };
        &self.superblock[at..at + 16]
    }

    /// Whether `bytes` begin with their checksum.
    pub(super) fn sum_holds(&self, bytes: &[u8]) -> bool {
        let (stored, rest) = bytes.split_at(32);
        match number(&self.superblock, 196, 2) {
            0 => stored.starts_with(&crc32c::crc32c(rest).to_le_bytes()),
            1 => stored.starts_with(&xxhash_rust::xxh64::xxh64(rest, 0).to_le_bytes()),
            2 => stored == sha2::Sha256::digest(rest).as_slice(),
            3 => stored == blake2::Blake2b::<U32>::digest(rest).as_slice(),
            _ => false,
        }
    }

    /// The chunks in the superblock, behind their keys.
    fn read_array(&mut self) -> Result<()> {
        let len = usize::try_from(number(&self.superblock, 160, 4)).map_err(|_| superblock())?;
        let array = self.superblock.get(811..811 + len.min(2049)).filter(|array| array.len() <= 2048);
        let array = array.ok_or_else(superblock)?.to_vec();
        let mut at = 0;
        while at < array.len() {
            let chunk = array.get(at + 17..).filter(|chunk| chunk.len() >= 48).ok_or_else(superblock)?;
            self.add_chunk(number(&array, at + 9, 8), chunk)?;
            at += 17 + 48 + 32 * usize::try_from(number(chunk, 44, 2)).map_err(|_| superblock())?;
        }
        Ok(())
    }

    /// Takes a chunk: those of the superblock are met twice.
    pub(super) fn add_chunk(&mut self, start: u64, item: &[u8]) -> Result<()> {
        let (len, profile, copies) = (number(item, 0, 8), number(item, 24, 8) & !7, number(item, 44, 2));
        let is_known = matches!((profile, copies), (0 | 8, 1) | (32, 2));
        if !is_known {
            return Err(Error::unsupported("Btrfs with chunks that cannot be checked"));
        }
        let place = number(item, 48 + 8, 8);
        let ends = [start.checked_add(len), place.checked_add(len)];
        if ends[0].is_none() || ends[1].is_none_or(|end| end > self.source.len_bytes()) {
            return Err(Error::corrupt(CorruptBtrfs::Item(start)));
        }
        let chunk = [start, len, place, copies];
        if !self.chunks.contains(&chunk) {
            self.chunks.push(chunk);
            self.chunks.sort_unstable();
        }
        Ok(())
    }

    /// Where an extent lies, and how many copies it has.
    pub(super) fn place_of(&self, address: u64, len: u64) -> Result<(VolumeOffset, u64)> {
        let index = self.chunks.partition_point(|chunk| chunk[0] <= address);
        let chunk = index.checked_sub(1).map(|index| self.chunks[index]);
        let chunk =
            chunk.filter(|chunk| address.checked_add(len).is_some_and(|end| end <= chunk[0] + chunk[1]));
        let [start, _, place, copies] =
            chunk.ok_or_else(|| Error::corrupt(CorruptBtrfs::Address(address)))?;
        Ok((Offset::new(place + (address - start)), copies))
    }
}
