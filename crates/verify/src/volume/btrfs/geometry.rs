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
const FEATURES: u64 = 0b1_0000_1111_1111_1111;
/// What goes to one stripe before the next one's turn comes.
const STRIPE_BYTES: u64 = 65_536;
/// Profiles: their bit, how many stripes they have (0 for any number), and how many copies these make.
const PROFILES: [(u64, usize, usize); 7] =
    [(0, 1, 1), (8, 0, 1), (16, 2, 2), (32, 2, 2), (64, 0, 2), (512, 3, 3), (1024, 4, 4)];
/// More devices than this are in no guest.
const DEVICES_MAX: u64 = 1024;

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
    /// Number, beginning and length of each device: they lie one behind the other.
    devices: Vec<[u64; 3]>,
    chunks: Vec<Chunk>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Chunk {
    start: u64,
    len: u64,
    /// Of each copy, where what its stripes go to in turns begins.
    copies: Vec<Vec<u64>>,
}

/// A part of the volume: where it begins, and how long it is.
pub(super) type Part = (VolumeOffset, u64);

impl Chunk {
    /// Where a copy of what begins `at` bytes into the chunk lies.
    fn parts(&self, copy: &[u64], mut at: u64, mut len: u64) -> Vec<Part> {
        let columns = copy.len() as u64;
        let unit = if columns == 1 { self.len } else { STRIPE_BYTES };
        let mut parts = Vec::new();
        while len > 0 {
            let (row, within) = (at / unit / columns, at % unit);
            let step = len.min(unit - within);
            let column = usize::try_from(at / unit % columns).ok().and_then(|column| copy.get(column));
            parts.extend(column.map(|column| (Offset::new(column + row * unit + within), step)));
            (at, len) = (at + step, len - step);
        }
        parts
    }
}

pub(super) fn superblock() -> Error {
    Error::corrupt(CorruptBtrfs::Superblock)
}

impl<'a> Geometry<'a> {
    pub(super) fn open(source: &'a Source) -> Result<Self> {
        let bytes = read_vec(&**source, Offset::new(SUPERBLOCK_AT), SUPERBLOCK_BYTES, "Btrfs superblock")?;
        let word = |at| number(&bytes, at, 8);
        let (features, read_only, log) = (word(188), word(180), word(96));
        if features & !FEATURES != 0 || features & 1 == 0 || read_only & !0xf != 0 {
            return Err(Error::unsupported("Btrfs with features that cannot be checked"));
        }
        if log != 0 || word(56) & !3 != 0 {
            return Err(Error::unsupported("Btrfs that was not unmounted, or that others stand on"));
        }
        let node_bytes = number(&bytes, 148, 4);
        let is_sound = word(48) == SUPERBLOCK_AT
            && (4096..=65_536).contains(&node_bytes)
            && node_bytes.is_power_of_two()
            && word(112) <= source.len_bytes();
        let used_bytes = word(120);
        let (devices, chunks) = (Vec::new(), Vec::new());
        let mut geometry = Self { source, superblock: bytes, node_bytes, used_bytes, devices, chunks };
        if !is_sound || !geometry.sum_holds(&geometry.superblock) {
            return Err(superblock());
        }
        geometry.read_devices()?;
        geometry.read_array()?;
        Ok(geometry)
    }

    /// Whether it has several devices.
    pub(super) fn is_spread(&self) -> bool {
        self.devices.len() > 1
    }

    /// Where devices begin and end, as the superblock of each says, which is that of the first but for what is said of the device.
    fn read_devices(&mut self) -> Result<()> {
        let count = number(&self.superblock, 136, 8);
        let mut base = 0_u64;
        for _ in 0..count.min(DEVICES_MAX + 1) {
            let at = base.checked_add(SUPERBLOCK_AT).ok_or_else(superblock)?;
            if at.checked_add(SUPERBLOCK_BYTES).is_none_or(|end| end > self.source.len_bytes()) {
                return Err(superblock());
            }
            let bytes = read_vec(&**self.source, Offset::new(at), SUPERBLOCK_BYTES, "Btrfs superblock")?;
            let is_same =
                [32..201, 299..4096].into_iter().all(|range| bytes[range.clone()] == self.superblock[range]);
            let (name, len) = (number(&bytes, 201, 8), number(&bytes, 209, 8));
            let is_new = self.devices.iter().all(|device| device[0] != name);
            if !is_same || !is_new || !self.sum_holds(&bytes) || &bytes[283..299] != self.uuid() {
                return Err(superblock());
            }
            self.devices.push([name, base, len]);
            base = base.checked_add(len).ok_or_else(superblock)?;
        }
        if base == number(&self.superblock, 112, 8) && self.devices.len() as u64 == count {
            Ok(())
        } else {
            Err(superblock())
        }
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
        let (len, bits) = (number(item, 0, 8), number(item, 24, 8) & !7);
        let count = usize::try_from(number(item, 44, 2)).map_err(|_| superblock())?;
        let profile = PROFILES.iter().find(|(known, stripes, turns)| {
            *known == bits && count > 0 && count % turns == 0 && [0, count].contains(stripes)
        });
        let wrong = || Error::corrupt(CorruptBtrfs::Item(start));
        let Some(&(_, _, turns)) = profile else {
            return Err(Error::unsupported("Btrfs with chunks that cannot be checked"));
        };
        let columns = (count / turns) as u64;
        let is_striped =
            columns > 1 && (number(item, 16, 8) != STRIPE_BYTES || len % (STRIPE_BYTES * columns) != 0);
        if is_striped || start.checked_add(len).is_none() {
            return Err(wrong());
        }
        let mut chunk = Chunk { start, len, copies: vec![Vec::new(); turns] };
        for (index, stripe) in item.get(48..).unwrap_or_default().chunks_exact(32).take(count).enumerate() {
            let place = self.place_on(number(stripe, 0, 8), number(stripe, 8, 8), len / columns);
            chunk.copies[index % turns].push(place.ok_or_else(wrong)?);
        }
        if chunk.copies.iter().any(|copy| copy.len() * turns != count) {
            return Err(wrong());
        }
        if !self.chunks.contains(&chunk) {
            self.chunks.push(chunk);
            self.chunks.sort_unstable();
        }
        Ok(())
    }

    /// Where a part of a device lies, if that has it.
    fn place_on(&self, device: u64, at: u64, len: u64) -> Option<u64> {
        let [_, base, device_len] = self.devices.iter().find(|[number, ..]| *number == device)?;
        at.checked_add(len).filter(|end| end <= device_len)?;
        Some(base + at)
    }

    /// Where each copy of an extent lies.
    pub(super) fn places_of(&self, address: u64, len: u64) -> Result<Vec<Vec<Part>>> {
        let index = self.chunks.partition_point(|chunk| chunk.start <= address);
        let chunk = index.checked_sub(1).map(|index| &self.chunks[index]);
        let chunk =
            chunk.filter(|chunk| address.checked_add(len).is_some_and(|end| end <= chunk.start + chunk.len));
        let chunk = chunk.ok_or_else(|| Error::corrupt(CorruptBtrfs::Address(address)))?;
        Ok(chunk.copies.iter().map(|copy| chunk.parts(copy, address - chunk.start, len)).collect())
    }

    /// The bytes of a block. Of a file system on several devices each copy is read: only some may be on the disk that was changed.
    pub(super) fn read_block(&self, address: u64) -> Result<Vec<u8>> {
        let mut copies = Vec::new();
        for parts in self.places_of(address, self.node_bytes)? {
            let mut bytes = Vec::new();
            for (at, len) in parts {
                bytes.extend(read_vec(&**self.source, at, len, "Btrfs tree block")?);
            }
            copies.push(bytes);
            if !self.is_spread() {
                break;
            }
        }
        if copies.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(Error::corrupt(CorruptBtrfs::Tree(address)));
        }
        copies.pop().ok_or_else(|| Error::corrupt(CorruptBtrfs::Address(address)))
    }
}
