//! Replaying the log in memory, as the kernel does when it mounts: what transactions say of buffers and inodes is laid over the volume,
//! unless what is there is newer.

use std::collections::{BTreeMap, HashMap};
use std::mem::offset_of;
use std::sync::Arc;

use block::{Error, Overlay, ReadAt, Result, read_vec};
use extent::{Volume, VolumeOffset};
use zerocopy::{FromBytes, IntoBytes};

use super::buffer::{self, Buffer, Place};
use super::inode;
use super::intent::{Intents, Unfinished, of_32_bits};
use super::layout::{RawInodeItem, RawNewInodes, item as kind};
use super::record::{Item, Transaction, short, wrong};
use super::{Log, SECTOR_BYTES};
use crate::Source;
use crate::xfs::layout::{INODE_MAGIC, RawInode};
use crate::xfs::seal::seal;
use crate::xfs::superblock::Superblock;

/// The most inodes that are made at once: those of a block of 64 KiB, and many of a smaller one.
const NEW_INODES_BYTES_MAX: u64 = 1 << 20;
/// The most that inodes are read in at once.
const CLUSTER_SECTORS_MAX: u64 = 1 << 10;

/// A volume whose log was replayed.
pub(in crate::xfs) struct Replayed {
    pub(in crate::xfs) source: Source,
    /// What recovery goes on with once that is done.
    pub(in crate::xfs) unfinished: Unfinished,
    pub(in crate::xfs) transactions: usize,
}

/// Replays the log of a volume that was not unmounted.
pub(in crate::xfs) fn replay(source: &Source, superblock: &Superblock) -> Result<Replayed> {
    let uncertain = || Error::refused("where its log ends is not certain: mount it, and unmount it");
    let log = Log::open(source, superblock).ok_or_else(uncertain)?;
    let head = log.head()?.ok_or_else(uncertain)?;
    let transactions = log.transactions(superblock, head.sector)?;
    let mut replay = Replay {
        superblock,
        overlay: Overlay::new(Arc::clone(source)),
        cancelled: cancelled(&transactions)?,
        touched: BTreeMap::new(),
        intents: Intents::default(),
    };
    for transaction in &transactions {
        replay.transaction(transaction)?;
    }
    let unfinished = replay.intents.unfinished(superblock)?;
    replay.seal()?;
    Ok(Replayed { source: Arc::new(replay.overlay), unfinished, transactions: transactions.len() })
}

/// Buffers that were freed, and how often.
fn cancelled(transactions: &[Transaction]) -> Result<HashMap<Place, u64>> {
    let mut cancelled = HashMap::new();
    for item in transactions.iter().flat_map(|transaction| &transaction.items) {
        if item.kind() == Some(kind::BUF)
            && let buffer = Buffer::of(item)?
            && buffer.is_cancelled()
        {
            *cancelled.entry(buffer.place).or_default() += 1;
        }
    }
    Ok(cancelled)
}

/// Whether what was written at `stored` has what the log says as of `lsn`; what was never written has not.
fn is_newer(stored: u64, lsn: u64) -> bool {
    stored != 0 && stored != u64::MAX && stored > lsn
}

/// A volume whose log is being replayed.
struct Replay<'a> {
    superblock: &'a Superblock,
    overlay: Overlay<Volume, Source>,
    cancelled: HashMap<Place, u64>,
    /// Buffers that were changed, by place: their lengths in sectors.
    touched: BTreeMap<u64, u64>,
    intents: Intents,
}

impl Replay<'_> {
    /// Items of a transaction in the kernel's order: buffers, then all else, then what is cancelled.
    fn transaction(&mut self, transaction: &Transaction) -> Result<()> {
        let (mut others, mut cancels) = (Vec::new(), Vec::new());
        for item in &transaction.items {
            match item.kind() {
                Some(kind::BUF) => match Buffer::of(item)? {
                    buffer if buffer.is_cancelled() => cancels.push(buffer.place),
                    // Of inodes in use only lists of those without names are replayed, in which nothing lies.
                    buffer if buffer.is_of_inodes() => {}
                    buffer => self.buffer(item, buffer.place, transaction.lsn)?,
                },
                Some(kind::ICREATE) => self.new_inodes(item)?,
                _ => others.push(item),
            }
        }
        for item in others {
            self.other(item, transaction.lsn)?;
        }
        cancels.into_iter().for_each(|place| self.cancel(place));
        Ok(())
    }

    /// Takes note that one of the times that a buffer was freed is past.
    fn cancel(&mut self, place: Place) {
        if let Some(count) = self.cancelled.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.cancelled.remove(&place);
            }
        }
    }

    /// What is no buffer, and makes no inodes.
    fn other(&mut self, item: &Item, lsn: u64) -> Result<()> {
        match item.kind().ok_or_else(|| short("item"))? {
            kind::INODE => self.inode(item, lsn),
            kind::DQUOT | kind::QUOTAOFF | kind::IUNLINK => Ok(()),
            kind @ (kind::EFI | kind::EFD | kind::RUI..=kind::XMD) => self.intents.take(kind, item),
            kind => Err(Error::unsupported(format!("XFS with items of type {kind:#x} in its log"))),
        }
    }

    /// A buffer as it is so far.
    fn read(&self, (at, count): Place) -> Result<Vec<u8>> {
        let end = at.checked_add(count).and_then(|end| end.checked_mul(SECTOR_BYTES));
        if end.is_none_or(|end| end > self.overlay.len_bytes()) {
            return Err(wrong(0, "blkno", at, "a place of the volume"));
        }
        read_vec(&self.overlay, VolumeOffset::new(at * SECTOR_BYTES), count * SECTOR_BYTES, "XFS buffer")
    }

    /// Lays `bytes` over a buffer.
    fn patch(&mut self, (at, _): Place, bytes: Vec<u8>) {
        self.overlay.patch(VolumeOffset::new(at * SECTOR_BYTES), bytes);
    }

    /// Changes a buffer, unless it will be freed, or what is there is as new.
    fn buffer(&mut self, item: &Item, place: Place, lsn: u64) -> Result<()> {
        if self.cancelled.contains_key(&place) {
            return Ok(());
        }
        let mut bytes = self.read(place)?;
        // In version 4 nothing says when it was written. All is replayed: what is newer comes later in the log.
        let stored = Some(&bytes).filter(|_| self.superblock.has_checksums);
        let stored = stored.and_then(|bytes| buffer::lsn_of(bytes, self.superblock));
        if stored.is_some_and(|stored| stored == lsn || is_newer(stored, lsn)) {
            return Ok(());
        }
        buffer::put(&mut bytes, item)?;
        self.touched.insert(place.0, place.1);
        self.patch(place, bytes);
        Ok(())
    }

    /// Inodes that were made, none of them in use.
    fn new_inodes(&mut self, item: &Item) -> Result<()> {
        let superblock = self.superblock;
        if !superblock.has_checksums {
            return Err(Error::unsupported("XFS of version 4 whose log makes inodes as version 5 does"));
        }
        let (raw, _) = RawNewInodes::read_from_prefix(item.head()).map_err(|_| short("item"))?;
        let (group, block, len) = (raw.ag.get(), raw.agbno.get(), u64::from(raw.length.get()));
        let first = superblock.in_group(group, block).filter(|first| superblock.holds(*first, len));
        let len_bytes = len.saturating_mul(superblock.block_bytes.into());
        let is_right = len_bytes <= NEW_INODES_BYTES_MAX
            && raw.isize.get() == superblock.inode_bytes
            && u64::from(raw.count.get()) * u64::from(raw.isize.get()) == len_bytes;
        let first = first.filter(|_| is_right).ok_or_else(|| short("inodes"))?;
        let place = (superblock.offset_of(first).get() / SECTOR_BYTES, len_bytes / SECTOR_BYTES);
        if self.is_partly_cancelled(place) {
            return Ok(());
        }
        let number = u32::try_from(u64::from(block) << superblock.inode_log).map_err(|_| short("inodes"))?;
        let mut bytes = vec![0; usize::try_from(len_bytes).map_err(|_| short("inodes"))?];
        for (index, bytes) in (0..).zip(bytes.chunks_exact_mut(superblock.inode_bytes as usize)) {
            let name = superblock.inode_name(group, number + index);
            let inode = inode::unused(superblock, name, raw.gen_.get());
            inode.write_to_prefix(bytes).map_err(|_| short("inodes"))?;
            seal(bytes, offset_of!(RawInode, crc));
        }
        self.patch(place, bytes);
        Ok(())
    }

    /// Whether a buffer that will be freed lies there.
    fn is_partly_cancelled(&self, (at, count): Place) -> bool {
        let overlaps = |(start, other): &Place| *start < at + count && at < start.saturating_add(*other);
        self.cancelled.keys().any(overlaps)
    }

    /// Changes an inode, unless it will be freed, or what is there is newer.
    fn inode(&mut self, item: &Item, lsn: u64) -> Result<()> {
        let raw = RawInodeItem::read_from_bytes(item.head()).map_err(|_| of_32_bits())?;
        let place = (raw.blkno.get(), u64::from(raw.len.get()));
        if place.1 > CLUSTER_SECTORS_MAX {
            return Err(wrong(0, "ilf_len", place.1, "those of a few blocks of inodes"));
        }
        if self.cancelled.contains_key(&place) {
            return Ok(());
        }
        let mut cluster = self.read(place)?;
        let within = usize::try_from(raw.boffset.get()).map_err(|_| short("inode"))?;
        let size = self.superblock.inode_bytes as usize;
        let bytes = cluster.get_mut(within..).and_then(|rest| rest.get_mut(..size));
        let bytes = bytes.ok_or_else(|| short("inode"))?;
        let (stored, _) = RawInode::read_from_prefix(bytes).map_err(|_| short("inode"))?;
        if stored.magic != INODE_MAGIC {
            return Err(wrong(0, "di_magic", raw.ino.get(), "an inode where the log has one"));
        }
        let core = inode::core_of(item, self.superblock)?;
        let is_newer = match self.superblock.has_checksums {
            true => is_newer(stored.lsn.get(), lsn),
            false => inode::was_flushed_since(&stored, &core),
        };
        if is_newer {
            return Ok(());
        }
        inode::put(bytes, item, (&raw, &core), self.superblock, lsn)?;
        self.patch(place, cluster);
        Ok(())
    }

    /// Puts checksums right of all buffers that were changed.
    fn seal(&mut self) -> Result<()> {
        if !self.superblock.has_checksums {
            return Ok(());
        }
        for place in std::mem::take(&mut self.touched) {
            let mut bytes = self.read(place)?;
            if let Some(crc_at) = buffer::crc_at(&bytes) {
                seal(&mut bytes, crc_at);
                self.patch(place, bytes);
            }
        }
        Ok(())
    }
}
