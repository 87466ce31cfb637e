//! Replaying the log in memory, as the kernel does when it mounts: what transactions say of buffers and inodes is laid over the volume,
//! unless what is there is newer.

use std::collections::{BTreeMap, HashMap, HashSet};

use block::{Error, Overlay, ReadAt, Result, read_vec};
use extent::{Volume, VolumeOffset};

use super::record::{Item, Transaction, wrong};
use super::{Log, SECTOR_BYTES};
use crate::Source;
use crate::xfs::layout::format;
use crate::xfs::superblock::{BlockNumber, Superblock};

/// Types of items.
mod kind {
    pub(super) const FREE_INTENT: u16 = 0x1236;
    pub(super) const FREE_DONE: u16 = 0x1237;
    pub(super) const UNLINKED: u16 = 0x1238;
    pub(super) const INODE: u16 = 0x123b;
    pub(super) const BUFFER: u16 = 0x123c;
    pub(super) const QUOTA: u16 = 0x123d;
    pub(super) const QUOTA_OFF: u16 = 0x123e;
    pub(super) const NEW_INODES: u16 = 0x123f;
    pub(super) const REVERSE_MAP_INTENT: u16 = 0x1240;
    pub(super) const REVERSE_MAP_DONE: u16 = 0x1241;
    /// Intents and what is done of them take turns from here on: references, maps, attributes, exchanges.
    pub(super) const INTENTS: std::ops::RangeInclusive<u16> = 0x1242..=0x1249;
}

/// Bits of a buffer's flags.
const BUFFER_OF_INODES: u16 = 1;
const BUFFER_CANCELLED: u16 = 2;
/// What one bit of a buffer's map stands for.
const CHUNK_BYTES: usize = 128;

/// Bits of an inode's fields.
mod field {
    pub(super) const DATA_ROOT: u32 = 0x008;
    pub(super) const DEVICE: u32 = 0x010;
    pub(super) const DATA: u32 = 0x002 | 0x004 | DATA_ROOT;
    pub(super) const ATTRIBUTES_ROOT: u32 = 0x100;
    pub(super) const ATTRIBUTES: u32 = 0x040 | 0x080 | ATTRIBUTES_ROOT;
}

/// The most inodes that are made at once: those of a block of 64 KiB, and many of a smaller one.
const NEW_INODES_BYTES_MAX: u64 = 1 << 20;
/// The most that inodes are read in at once.
const CLUSTER_SECTORS_MAX: u64 = 1 << 10;

const INODE_CORE_BYTES: usize = 176;
const INODE_CRC_AT: usize = 100;
const INODE_LSN_AT: usize = 112;

/// A volume whose log was replayed.
pub(in crate::xfs) struct Replayed {
    pub(in crate::xfs) source: Source,
    /// What is to be freed, and is in no tree of free space yet, nor anyone's.
    pub(in crate::xfs) freed: Vec<(BlockNumber, u64)>,
    pub(in crate::xfs) transactions: usize,
}

/// Replays the log of a volume that was not unmounted.
pub(in crate::xfs) fn replay(source: &Source, superblock: &Superblock) -> Result<Replayed> {
    let uncertain = || Error::refused("where its log ends is not certain: mount it, and unmount it");
    let log = Log::open(source, superblock).ok_or_else(uncertain)?;
    let head = log.head()?.ok_or_else(uncertain)?;
    let transactions = log.transactions(superblock, head)?;
    let mut replay = Replay {
        superblock,
        overlay: Overlay::new(std::sync::Arc::clone(source)),
        cancelled: cancelled(&transactions)?,
        touched: BTreeMap::new(),
        intents: HashMap::new(),
        done: HashSet::new(),
    };
    for transaction in &transactions {
        replay.transaction(transaction)?;
    }
    let freed = replay.freed()?;
    replay.seal()?;
    Ok(Replayed { source: std::sync::Arc::new(replay.overlay), freed, transactions: transactions.len() })
}

fn short(what: &str) -> Error {
    wrong(0, what, 0_u64, "as long as what it is of")
}

/// A number of `N` bytes as the machine had it that wrote the log.
fn word<const N: usize>(bytes: &[u8], at: usize) -> Result<u64> {
    let bytes: &[u8; N] = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or_else(|| short("item"))?;
    Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// A number of `N` bytes as it is on the disk.
fn disk_word<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes: &[u8; N] = bytes.get(at..)?.first_chunk()?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn kind_of(item: &Item) -> Result<u16> {
    let kind = word::<2>(item.regions.first().ok_or_else(|| short("item"))?, 0)?;
    Ok(u16::try_from(kind).expect("2 bytes"))
}

/// A buffer by its place and length, in sectors of 512 bytes.
type Place = (u64, u64);

/// What an item says of its buffer: flags, and where it lies.
fn buffer_of(item: &Item) -> Result<(u16, Place)> {
    let head = &item.regions[0];
    let flags = u16::try_from(word::<2>(head, 4)?).expect("2 bytes");
    Ok((flags, (word::<8>(head, 8)?, word::<2>(head, 6)?)))
}

/// Buffers that were freed, and how often: what transactions say of them before is not to be replayed.
fn cancelled(transactions: &[Transaction]) -> Result<HashMap<Place, u64>> {
    let mut cancelled = HashMap::new();
    for item in transactions.iter().flat_map(|transaction| &transaction.items) {
        if kind_of(item)? == kind::BUFFER
            && let (flags, place) = buffer_of(item)?
            && flags & BUFFER_CANCELLED != 0
        {
            *cancelled.entry(place).or_default() += 1;
        }
    }
    Ok(cancelled)
}

struct Replay<'a> {
    superblock: &'a Superblock,
    overlay: Overlay<Volume, Source>,
    cancelled: HashMap<Place, u64>,
    /// Buffers that were changed, by place: their lengths in sectors.
    touched: BTreeMap<u64, u64>,
    /// Extents that are to be freed, and other intents (without any), by number.
    intents: HashMap<(u16, u64), Vec<(u64, u64)>>,
    done: HashSet<(u16, u64)>,
}

impl Replay<'_> {
    /// Items of a transaction in the kernel's order: buffers, then all else, then what is cancelled.
    fn transaction(&mut self, transaction: &Transaction) -> Result<()> {
        let (mut others, mut cancels) = (Vec::new(), Vec::new());
        for item in &transaction.items {
            match kind_of(item)? {
                kind::BUFFER => {
                    let (flags, place) = buffer_of(item)?;
                    match flags {
                        _ if flags & BUFFER_CANCELLED != 0 => cancels.push(place),
                        // Of inodes in use only lists of those without names are replayed, in which nothing lies.
                        _ if flags & BUFFER_OF_INODES != 0 => {}
                        _ => self.buffer(item, place, transaction.lsn)?,
                    }
                }
                kind::NEW_INODES => self.new_inodes(item)?,
                _ => others.push(item),
            }
        }
        for item in others {
            self.other(item, transaction.lsn)?;
        }
        for place in cancels {
            if let Some(count) = self.cancelled.get_mut(&place) {
                *count -= 1;
                if *count == 0 {
                    self.cancelled.remove(&place);
                }
            }
        }
        Ok(())
    }

    fn other(&mut self, item: &Item, lsn: u64) -> Result<()> {
        let head = &item.regions[0];
        match kind_of(item)? {
            kind::INODE => self.inode(item, lsn),
            kind::QUOTA | kind::QUOTA_OFF | kind::UNLINKED => Ok(()),
            // Reverse maps are not read.
            kind::REVERSE_MAP_INTENT | kind::REVERSE_MAP_DONE => Ok(()),
            kind @ kind::FREE_INTENT => {
                let count = word::<4>(head, 4)?;
                let extent = |index: u64| {
                    let at = usize::try_from(16 + index * 16).map_err(|_| short("extents"))?;
                    Ok((word::<8>(head, at)?, word::<4>(head, at + 8)?))
                };
                if head.len() as u64 != 16 + count * 16 {
                    return Err(Error::unsupported("XFS with a log of a machine of 32 bits"));
                }
                let extents = (0..count).map(extent).collect::<Result<_>>()?;
                self.intents.insert((kind, word::<8>(head, 8)?), extents);
                Ok(())
            }
            kind @ kind::FREE_DONE => {
                self.done.insert((kind - 1, word::<8>(head, 8)?));
                Ok(())
            }
            kind if kind::INTENTS.contains(&kind) => {
                let id = word::<8>(head, 8)?;
                if kind % 2 == 0 {
                    self.intents.insert((kind, id), Vec::new());
                } else {
                    self.done.insert((kind - 1, id));
                }
                Ok(())
            }
            kind => Err(Error::unsupported(format!("XFS with items of type {kind:#x} in its log"))),
        }
    }

    /// What intents are left with. Others than to free are not understood.
    fn freed(&self) -> Result<Vec<(BlockNumber, u64)>> {
        let mut freed = Vec::new();
        for ((kind, id), extents) in &self.intents {
            if self.done.contains(&(*kind, *id)) {
                continue;
            }
            if *kind != kind::FREE_INTENT {
                return Err(Error::unsupported("XFS with work in its log that was not finished"));
            }
            for (name, count) in extents {
                let first = self.superblock.block_of(*name);
                let first = first.filter(|first| self.superblock.holds(*first, *count));
                freed.push((first.ok_or_else(|| short("extents"))?, *count));
            }
        }
        Ok(freed)
    }

    fn read(&self, (at, count): Place) -> Result<Vec<u8>> {
        let end = at.checked_add(count).and_then(|end| end.checked_mul(SECTOR_BYTES));
        if end.is_none_or(|end| end > self.overlay.len_bytes()) {
            return Err(wrong(0, "blkno", at, "a place of the volume"));
        }
        read_vec(&self.overlay, VolumeOffset::new(at * SECTOR_BYTES), count * SECTOR_BYTES, "XFS buffer")
    }

    fn patch(&mut self, (at, _): Place, bytes: Vec<u8>) {
        self.overlay.patch(VolumeOffset::new(at * SECTOR_BYTES), bytes);
    }

    fn buffer(&mut self, item: &Item, place: Place, lsn: u64) -> Result<()> {
        if self.cancelled.contains_key(&place) {
            return Ok(());
        }
        let mut bytes = self.read(place)?;
        let stored = lsn_of(&bytes, self.superblock);
        if stored.is_some_and(|stored| stored != 0 && stored != u64::MAX && stored >= lsn) {
            return Ok(());
        }
        let head = &item.regions[0];
        let words = usize::try_from(word::<4>(head, 16)?).map_err(|_| short("map"))?;
        let bit =
            |index: usize| Ok::<_, Error>(word::<4>(head, 20 + index / 32 * 4)? >> (index % 32) & 1 == 1);
        let mut regions = item.regions[1..].iter();
        let mut index = 0;
        while index < words * 32 {
            let start = index;
            while index < words * 32 && bit(index)? {
                index += 1;
            }
            if index > start {
                let region = regions.next().ok_or_else(|| short("regions"))?;
                let len = region.len().min((index - start) * CHUNK_BYTES);
                let target = bytes.get_mut(start * CHUNK_BYTES..).and_then(|rest| rest.get_mut(..len));
                target.ok_or_else(|| short("buffer"))?.copy_from_slice(&region[..len]);
            } else {
                index += 1;
            }
        }
        self.touched.insert(place.0, place.1);
        self.patch(place, bytes);
        Ok(())
    }

    /// Inodes that were made, none of them in use.
    fn new_inodes(&mut self, item: &Item) -> Result<()> {
        let head = &item.regions[0];
        let generation = head.get(24..28).ok_or_else(|| short("item"))?;
        let disk = |at: usize| disk_word::<4>(head, at).ok_or_else(|| short("item"));
        let (group, block, count, size, len) = (disk(4)?, disk(8)?, disk(12)?, disk(16)?, disk(20)?);
        let superblock = self.superblock;
        let first = u32::try_from(group).ok().zip(u32::try_from(block).ok());
        let first = first.and_then(|(group, block)| superblock.in_group(group, block));
        let first = first.filter(|first| superblock.holds(*first, len));
        let is_right = len.saturating_mul(superblock.block_bytes.into()) <= NEW_INODES_BYTES_MAX
            && size == u64::from(superblock.inode_bytes)
            && count.saturating_mul(size) == len.saturating_mul(superblock.block_bytes.into());
        let first = first.filter(|_| is_right).ok_or_else(|| short("inodes"))?;
        let at = superblock.offset_of(first).get() / SECTOR_BYTES;
        let sectors = u64::from(superblock.block_bytes) / SECTOR_BYTES * len;
        let is_cancelled = self
            .cancelled
            .keys()
            .any(|(start, count)| *start < at + sectors && at < start.saturating_add(*count));
        if is_cancelled {
            return Ok(());
        }
        let number = block << superblock.inode_log;
        let number = u32::try_from(number).map_err(|_| short("inodes"))?;
        let group = u32::try_from(group).expect("looked at");
        let mut bytes = vec![0; usize::try_from(count * size).map_err(|_| short("inodes"))?];
        for (index, inode) in (0..).zip(bytes.chunks_exact_mut(superblock.inode_bytes as usize)) {
            inode[..2].copy_from_slice(b"IN");
            inode[4] = 3;
            inode[92..96].copy_from_slice(generation);
            inode[96..100].fill(0xff);
            let name = superblock.inode_name(group, number + index);
            inode[152..160].copy_from_slice(&name.to_be_bytes());
            inode[160..176].copy_from_slice(&superblock.meta_uuid);
            seal(inode, INODE_CRC_AT);
        }
        self.patch((at, sectors), bytes);
        Ok(())
    }

    fn inode(&mut self, item: &Item, lsn: u64) -> Result<()> {
        let head = &item.regions[0];
        if head.len() != 56 {
            return Err(Error::unsupported("XFS with a log of a machine of 32 bits"));
        }
        let fields = u32::try_from(word::<4>(head, 4)?).expect("4 bytes");
        let (at, len, within) = (word::<8>(head, 40)?, word::<4>(head, 48)?, word::<4>(head, 52)?);
        if len > CLUSTER_SECTORS_MAX {
            return Err(wrong(0, "ilf_len", len, "those of a few blocks of inodes"));
        }
        if self.cancelled.contains_key(&(at, len)) {
            return Ok(());
        }
        let size = self.superblock.inode_bytes as usize;
        let mut cluster = self.read((at, len))?;
        let within = usize::try_from(within).map_err(|_| short("inode"))?;
        let inode = cluster.get_mut(within..).and_then(|rest| rest.get_mut(..size));
        let inode = inode.ok_or_else(|| short("inode"))?;
        if !inode.starts_with(b"IN") {
            return Err(wrong(0, "di_magic", word::<8>(head, 16)?, "an inode where the log has one"));
        }
        let stored = disk_word::<8>(inode, INODE_LSN_AT).unwrap_or_default();
        if stored != 0 && stored != u64::MAX && stored > lsn {
            return Ok(());
        }
        let core = item.regions.get(1).filter(|core| core.len() == INODE_CORE_BYTES);
        let core = core.ok_or_else(|| short("core"))?;
        put_core(inode, core);
        inode[INODE_LSN_AT..INODE_LSN_AT + 8].copy_from_slice(&lsn.to_be_bytes());
        put_forks(inode, item, fields)?;
        seal(inode, INODE_CRC_AT);
        self.patch((at, len), cluster);
        Ok(())
    }

    /// Puts checksums right of all that was changed.
    fn seal(&mut self) -> Result<()> {
        for (at, count) in std::mem::take(&mut self.touched) {
            let mut bytes = self.read((at, count))?;
            if let Some(crc_at) = layout_of(&bytes).map(|layout| layout.crc_at) {
                seal(&mut bytes, crc_at);
                self.patch((at, count), bytes);
            }
        }
        Ok(())
    }
}

/// Where a buffer has its checksum, when it was written, and whose it is; the place of time and of the UUID may be missing.
struct BufferLayout {
    crc_at: usize,
    lsn_at: Option<(usize, usize)>,
}

fn layout_of(bytes: &[u8]) -> Option<BufferLayout> {
    let layout = |crc_at, lsn_at, uuid_at| Some(BufferLayout { crc_at, lsn_at: Some((lsn_at, uuid_at)) });
    match bytes.get(..4)? {
        b"AB3B" | b"AB3C" | b"RMB3" | b"R3FC" | b"IAB3" | b"FIB3" => layout(52, 24, 32),
        b"BMA3" => layout(64, 32, 40),
        b"XAGF" => layout(216, 208, 64),
        b"XAFL" => layout(32, 24, 8),
        b"XAGI" => layout(312, 320, 296),
        b"XSLM" => layout(12, 48, 16),
        b"XDB3" | b"XDD3" | b"XDF3" => layout(4, 16, 24),
        b"XFSB" => Some(BufferLayout { crc_at: 224, lsn_at: None }),
        b"XARM" => Some(BufferLayout { crc_at: 12, lsn_at: None }),
        _ => match bytes.get(8..10)? {
            [0x3e, 0xbe] | [0x3d, 0xf1] | [0x3d, 0xff] | [0x3b, 0xee] => layout(12, 24, 32),
            _ => None,
        },
    }
}

/// When a buffer was written, if it says so and is of this volume.
fn lsn_of(bytes: &[u8], superblock: &Superblock) -> Option<u64> {
    let (lsn_at, uuid_at) = layout_of(bytes)?.lsn_at?;
    let is_own = bytes.get(uuid_at..)?.starts_with(&superblock.meta_uuid);
    disk_word::<8>(bytes, lsn_at).filter(|_| is_own)
}

fn seal(bytes: &mut [u8], crc_at: usize) {
    let Some(place) = bytes.get_mut(crc_at..crc_at + 4) else { return };
    place.fill(0);
    let sum = crc32c::crc32c(bytes).to_le_bytes();
    bytes[crc_at..crc_at + 4].copy_from_slice(&sum);
}

/// The core of an inode, from the machine's order to the disk's. What is not of the core stays.
fn put_core(inode: &mut [u8], core: &[u8]) {
    let mut at = 0;
    // Magic, mode; version, format; three of 2 bytes for links of old, and users; counters, times, lengths; and so on.
    let widths: &[usize] =
        &[2, 2, 1, 1, 2, 4, 4, 4, 2, 2, 8, 8, 8, 8, 8, 8, 4, 4, 2, 1, 1, 4, 2, 2, 4, 0, 0, 8, 0, 8, 4];
    /// Where the list of inodes without names goes on, and the checksum.
    const SKIPPED: [usize; 3] = [4, 4, 8];
    let mut skipped = SKIPPED.into_iter();
    for width in widths {
        if *width == 0 {
            at += skipped.next().expect("three of them");
            continue;
        }
        let (target, source) = (&mut inode[at..at + width], &core[at..at + width]);
        target.iter_mut().zip(source.iter().rev()).for_each(|(target, source)| *target = *source);
        at += width;
    }
}

fn put_forks(inode: &mut [u8], item: &Item, fields: u32) -> Result<()> {
    const FORK_AT: usize = 82;
    let literal = inode.len() - INODE_CORE_BYTES;
    let split = match usize::from(inode[FORK_AT]) * 8 {
        0 => literal,
        at if at < literal => at,
        at => return Err(wrong(0, "forkoff", at as u64, "within the inode")),
    };
    let (data, attributes) = inode[INODE_CORE_BYTES..].split_at_mut(split);
    let mut regions = item.regions[2..].iter();
    let mut put = |fork: &mut [u8], wanted: u32, root: u32| -> Result<()> {
        if fields & wanted == 0 {
            return Ok(());
        }
        let region = regions.next().ok_or_else(|| short("fork"))?;
        if fields & root != 0 {
            return put_root(fork, region);
        }
        let target = fork.get_mut(..region.len()).ok_or_else(|| short("fork"))?;
        target.copy_from_slice(region);
        Ok(())
    };
    if fields & field::DEVICE != 0 && inode_format(item) == Some(format::DEVICE) {
        let device = u32::try_from(word::<4>(&item.regions[0], 24)?).expect("4 bytes");
        data[..4].copy_from_slice(&device.to_be_bytes());
    }
    put(data, field::DATA, field::DATA_ROOT)?;
    put(attributes, field::ATTRIBUTES, field::ATTRIBUTES_ROOT)
}

fn inode_format(item: &Item) -> Option<u8> {
    item.regions.get(1)?.get(5).copied()
}

/// The root of a tree of extents, from the form in memory to that in an inode.
fn put_root(fork: &mut [u8], root: &[u8]) -> Result<()> {
    const HEADER_BYTES: usize = 72;
    let wrong = || short("root of extents");
    let (level, count) = (disk_word::<2>(root, 4), disk_word::<2>(root, 6));
    let (level, count) = level.zip(count).ok_or_else(wrong)?;
    let count = usize::try_from(count).map_err(|_| wrong())?;
    let most = |len: usize, header: usize| len.saturating_sub(header) / 16;
    let (from_most, to_most) = (most(root.len(), HEADER_BYTES), most(fork.len(), 4));
    let is_short = root.len() < HEADER_BYTES || fork.len() < 4;
    if is_short || count > from_most || count > to_most {
        return Err(wrong());
    }
    fork[..2].copy_from_slice(&u16::try_from(level).expect("2 bytes").to_be_bytes());
    fork[2..4].copy_from_slice(&u16::try_from(count).expect("2 bytes").to_be_bytes());
    let keys = &root[HEADER_BYTES..HEADER_BYTES + count * 8];
    fork[4..4 + count * 8].copy_from_slice(keys);
    let pointers = HEADER_BYTES + from_most * 8;
    fork[4 + to_most * 8..4 + (to_most + count) * 8].copy_from_slice(&root[pointers..pointers + count * 8]);
    Ok(())
}
