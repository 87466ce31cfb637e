//! The superblock, and what follows from it: where groups, their headers, blocks and inodes lie.

use block::{Error, Result, read_vec};
use extent::{Span, VolumeOffset, VolumeSpan};
use zerocopy::FromBytes;

use super::corrupt::Corrupt;
use super::layout::{NONE, RawSuperblock, SUPERBLOCK_MAGIC, features2, incompat, ro_compat, version};
use super::seal::crc_holds;
use crate::Source;

/// Of a group, counted from zero.
pub(super) type GroupNumber = u32;
/// Of a block within its group.
pub(super) type GroupBlock = u32;
/// Of a block, counted over all groups without gaps.
pub(super) type BlockNumber = u64;

/// The least blocks of a group (`XFS_MIN_AG_BLOCKS`, of a group that is not the last).
const GROUP_BLOCKS_MIN: u32 = 64;

/// The longest stripe of a log, in bytes (`XLOG_MAX_RECORD_BSIZE`).
const LOG_STRIPE_MAX: u32 = 256 << 10;
/// What stands for none.
const NO_LSN: u64 = u64::MAX;

/// What of the superblock counts, checked.
#[derive(Clone, Debug)]
pub(super) struct Superblock {
    /// Whether all metadata have checksums and say whose they are: in version 5, not in version 4.
    pub(super) has_checksums: bool,
    /// Whether the blocks of trees of free space are counted by their groups.
    pub(super) counts_tree_blocks: bool,
    pub(super) block_bytes: u32,
    pub(super) sector_bytes: u32,
    pub(super) blocks: BlockNumber,
    pub(super) group_blocks: u32,
    pub(super) group_count: u32,
    /// Bits of a block's number within its group, in what names it for the whole volume.
    group_log: u32,
    pub(super) inode_bytes: u32,
    /// Bits of an inode's number within its block.
    pub(super) inode_log: u32,
    pub(super) directory_block_bytes: u32,
    pub(super) root_inode: u64,
    /// Inodes of the volume itself: bitmaps of a realtime device, and quotas.
    own_files: [u64; 5],
    /// Where the log lies and how long it is; `None` if it is on another device.
    pub(super) log: Option<(BlockNumber, u32)>,
    pub(super) uuid: [u8; 16],
    /// What metadata bear.
    pub(super) meta_uuid: [u8; 16],
    pub(super) ro_compat: u32,
    pub(super) incompat: u32,
    pub(super) has_realtime: bool,
    /// Blocks of an extent of a realtime device, if there were one.
    rt_extent_blocks: u32,
    /// Of the log's sectors: the logarithm of their size, and their size; and its stripe.
    log_shape: (u8, u16, u32),
    /// Bits that say what the volume was made with.
    version_bits: u16,
    /// What chunks of inodes are aligned to, and those of which a part is missing, in blocks.
    inode_alignments: [u32; 2],
    pub(super) in_progress: bool,
    pub(super) inode_count: u64,
    pub(super) free_inode_count: u64,
    pub(super) free_blocks: u64,
    /// Where the log ends: nothing of version 5 was written later.
    pub(super) lsn_max: u64,
}

/// Whether a superblock is there, of whatever version. `None` if not.
pub(super) fn read_raw(source: &Source) -> Result<Option<RawSuperblock>> {
    if source.len_bytes() < size_of::<RawSuperblock>() as u64 {
        return Ok(None);
    }
    let raw: RawSuperblock = block::read_struct(&**source, VolumeOffset::ZERO, "XFS superblock")?;
    Ok(Some(raw).filter(|raw| raw.magicnum == SUPERBLOCK_MAGIC))
}

fn wrong(name: &str, found: impl ToString, expected: &str) -> Error {
    Error::corrupt(Corrupt::Superblock).field(name, found.to_string(), expected.to_owned())
}

/// The version of the format: 4 and 5 are in use.
pub(super) fn version_of(raw: &RawSuperblock) -> u16 {
    raw.versionnum.get() & version::NUMBER
}

/// The label. Untrusted text.
pub(super) fn label_of(raw: &RawSuperblock) -> String {
    String::from_utf8_lossy(&raw.fname).trim_end_matches('\0').to_owned()
}

/// Reads the superblock of a volume of version 4 or 5.
pub(super) fn read(source: &Source, raw: &RawSuperblock) -> Result<Superblock> {
    let superblock = parse(raw)?;
    let sector = read_vec(&**source, VolumeOffset::ZERO, superblock.sector_bytes.into(), "XFS superblock")?;
    if superblock.has_checksums {
        check_sector(&sector, &superblock).map_err(|error| error.at(VolumeOffset::ZERO))?;
    }
    let len_bytes = superblock.blocks.saturating_mul(superblock.block_bytes.into());
    if len_bytes > source.len_bytes() {
        let expected = format!("an end within the volume of {} bytes", source.len_bytes());
        return Err(wrong("dblocks", superblock.blocks, &expected));
    }
    Ok(superblock)
}

/// Checks the sector of a superblock of version 5: nothing is behind what its features have there, as far as they are known.
fn check_sector(sector: &[u8], superblock: &Superblock) -> Result<()> {
    use std::mem::offset_of;
    if !crc_holds(sector, offset_of!(RawSuperblock, crc)) {
        return Err(wrong("crc", "another", "that of the sector"));
    }
    if superblock.unknown_features() != (0, 0) {
        return Ok(());
    }
    let end = match superblock.has(incompat::META_UUID) {
        true => size_of::<RawSuperblock>(),
        false => offset_of!(RawSuperblock, meta_uuid),
    };
    match sector[end..].iter().find(|byte| **byte != 0) {
        Some(found) => Err(wrong("what follows the superblock", found, "zeros")),
        None => Ok(()),
    }
}

/// The features of a volume, as version 5 has them.
#[derive(Clone, Copy, Debug)]
struct Features {
    ro_compat: u32,
    incompat: u32,
    counts_tree_blocks: bool,
}

impl Features {
    fn of(raw: &RawSuperblock) -> Result<Self> {
        if version_of(raw) == 5 {
            let (ro_compat, incompat) = (raw.features_ro_compat.get(), raw.features_incompat.get());
            let old = raw.features2.get();
            let needed = features2::LAZYSBCOUNT | features2::CRC;
            let is_known = old & !(features2::KNOWN | features2::CRC | features2::PARENT) == 0;
            if !is_known || old & needed != needed || raw.bad_features2.get() != old {
                return Err(wrong("features2", old, "known ones, twice the same"));
            }
            let bits = raw.versionnum.get();
            if bits & version::OF_5 != version::OF_5 || bits & version::SHARED != 0 {
                return Err(wrong("versionnum", bits, "what version 5 has"));
            }
            if raw.features_compat.get() != 0 {
                let compat = raw.features_compat.get();
                return Err(Error::unsupported(format!("XFS with unknown features (compat {compat:#x})")));
            }
            return Ok(Self { ro_compat, incompat, counts_tree_blocks: true });
        }
        let bits = raw.versionnum.get();
        let needed = version::EXTFLG | version::DIRV2;
        if bits & needed != needed || bits & version::SHARED != 0 {
            return Err(Error::unsupported(format!("XFS with the features {bits:#x}, as before 2002")));
        }
        // On some machines they were written where `bad_features2` is; Linux takes both.
        let more = match bits & version::MOREBITS {
            0 => 0,
            _ => raw.features2.get() | raw.bad_features2.get(),
        };
        if more & !features2::KNOWN != 0 {
            return Err(Error::unsupported(format!("XFS with unknown features (features2 {more:#x})")));
        }
        let incompat = if more & features2::FTYPE == 0 { 0 } else { incompat::FTYPE };
        Ok(Self { ro_compat: 0, incompat, counts_tree_blocks: more & features2::LAZYSBCOUNT != 0 })
    }
}

/// Checks what does not need the volume.
fn parse(raw: &RawSuperblock) -> Result<Superblock> {
    let (has_checksums, features) = (version_of(raw) == 5, Features::of(raw)?);
    let power = |name: &str, value: u32, log: u8, range: std::ops::RangeInclusive<u8>| {
        let is_right = range.contains(&log) && value == 1 << log;
        if is_right {
            Ok(value)
        } else {
            Err(wrong(name, value, "a power of two that is allowed, and its logarithm"))
        }
    };
    let inode_logs = if has_checksums { 9..=11 } else { 8..=11 };
    let block_bytes = power("blocksize", raw.blocksize.get(), raw.blocklog, 9..=16)?;
    let sector_bytes = power("sectsize", raw.sectsize.get().into(), raw.sectlog, 9..=15)?;
    let inode_bytes = power("inodesize", raw.inodesize.get().into(), raw.inodelog, inode_logs)?;
    if sector_bytes > block_bytes || inode_bytes > block_bytes {
        return Err(wrong("blocksize", block_bytes, "at least that of a sector and of an inode"));
    }
    if u32::from(raw.inopblock.get()) != block_bytes / inode_bytes
        || raw.inopblog != raw.blocklog - raw.inodelog
    {
        return Err(wrong("inopblock", raw.inopblock.get(), "as many inodes as a block holds"));
    }
    let (group_blocks, group_count) = (raw.agblocks.get(), raw.agcount.get());
    let log = u32::from(raw.agblklog);
    let is_fit = group_blocks >= GROUP_BLOCKS_MIN
        && log < 32
        && u64::from(group_blocks).next_power_of_two() == 1 << log;
    if !is_fit {
        return Err(wrong("agblocks", group_blocks, "at least 64, and agblklog its logarithm rounded up"));
    }
    let blocks = raw.dblocks.get();
    let is_last_short = blocks > u64::from(group_count.saturating_sub(1)) * u64::from(group_blocks)
        && blocks <= u64::from(group_count) * u64::from(group_blocks);
    if group_count == 0 || !is_last_short || blocks.checked_mul(block_bytes.into()).is_none() {
        return Err(wrong("dblocks", blocks, "that of agcount groups"));
    }
    if u32::from(raw.dirblklog) + u32::from(raw.blocklog) > 16 {
        return Err(wrong("dirblklog", raw.dirblklog, "at most 64 KiB"));
    }
    check_unused(raw)?;
    let meta_uuid = if features.incompat & incompat::META_UUID != 0 { raw.meta_uuid } else { raw.uuid };
    // In version 4 one inode is for groups or for projects.
    let of_projects = if has_checksums { raw.pquotino.get() } else { 0 };
    let mut superblock = Superblock {
        has_checksums,
        counts_tree_blocks: features.counts_tree_blocks,
        block_bytes,
        sector_bytes,
        blocks,
        group_blocks,
        group_count,
        group_log: log,
        inode_bytes,
        inode_log: raw.inopblog.into(),
        directory_block_bytes: block_bytes << raw.dirblklog,
        root_inode: raw.rootino.get(),
        own_files: [raw.rbmino.get(), raw.rsumino.get(), raw.uquotino.get(), raw.gquotino.get(), of_projects],
        log: None,
        uuid: raw.uuid,
        meta_uuid,
        ro_compat: features.ro_compat,
        incompat: features.incompat,
        has_realtime: raw.rblocks.get() != 0 || raw.rextents.get() != 0,
        rt_extent_blocks: raw.rextsize.get(),
        log_shape: (raw.logsectlog, raw.logsectsize.get(), raw.logsunit.get()),
        version_bits: raw.versionnum.get() & !(version::ATTR | version::QUOTA),
        inode_alignments: [raw.inoalignmt.get(), if has_checksums { raw.spino_align.get() } else { 0 }],
        in_progress: raw.inprogress != 0,
        inode_count: raw.icount.get(),
        free_inode_count: raw.ifree.get(),
        free_blocks: raw.fdblocks.get(),
        lsn_max: NO_LSN,
    };
    if raw.logstart.get() != 0 {
        let (start, count) = (raw.logstart.get(), raw.logblocks.get());
        let place =
            superblock.block_of(start).filter(|first| superblock.holds(*first, count.into()) && count > 0);
        let first = place.ok_or_else(|| wrong("logstart", start, "a place within one group"))?;
        superblock.log = Some((first, count));
    }
    Ok(superblock)
}

/// Fields that mean nothing without their feature are zero.
fn check_unused(raw: &RawSuperblock) -> Result<()> {
    let has = |bit: u16| raw.versionnum.get() & bit != 0;
    let has_realtime = raw.rblocks.get() != 0;
    let fields = [
        ("flags", raw.flags.into(), false),
        ("qflags", raw.qflags.get().into(), has(version::QUOTA)),
        ("logsectlog", raw.logsectlog.into(), has(version::SECTOR)),
        ("logsectsize", raw.logsectsize.get().into(), has(version::SECTOR)),
        ("logsunit", raw.logsunit.get().into(), has(version::LOGV2)),
        ("shared_vn", raw.shared_vn.into(), false),
        ("inoalignmt", raw.inoalignmt.get().into(), has(version::ALIGN)),
        ("unit", raw.unit.get().into(), has(version::DALIGN)),
        ("width", raw.width.get().into(), has(version::DALIGN)),
        ("rbmblocks", raw.rbmblocks.get().into(), has_realtime),
        ("rextslog", raw.rextslog.into(), has_realtime),
        ("frextents", raw.frextents.get(), has_realtime),
    ];
    if let Some((name, value, _)) = fields.iter().find(|(_, value, is_used)| *value != 0 && !is_used) {
        return Err(wrong(name, value, "0"));
    }
    if raw.imax_pct > 100 {
        return Err(wrong("imax_pct", raw.imax_pct, "at most 100"));
    }
    let (log, size, stripe) = (raw.logsectlog, raw.logsectsize.get(), raw.logsunit.get());
    let is_sector = !has(version::SECTOR) || ((9..=15).contains(&log) && size == 1 << log);
    let is_stripe = stripe <= 1 || (stripe <= LOG_STRIPE_MAX && stripe.is_multiple_of(raw.blocksize.get()));
    if !is_sector || !is_stripe || (version_of(raw) == 5 && stripe == 0) {
        return Err(wrong("logsectsize, logsunit", stripe, "a sector's size, and a stripe of blocks or 1"));
    }
    let of_projects = if version_of(raw) == 5 { raw.pquotino.get() } else { 0 };
    let quotas = [raw.uquotino.get(), raw.gquotino.get(), of_projects];
    match quotas.iter().find(|inode| !has(version::QUOTA) && ![0, NONE].contains(inode)) {
        Some(inode) => Err(wrong("uquotino, gquotino, pquotino", inode, "none, without quotas")),
        None => Ok(()),
    }
}

impl Superblock {
    pub(super) fn has_ro(&self, bit: u32) -> bool {
        self.ro_compat & bit != 0
    }

    pub(super) fn has(&self, bit: u32) -> bool {
        self.incompat & bit != 0
    }

    /// Bits of features that are not known: of those that change nothing for who only reads, and of others.
    fn unknown_features(&self) -> (u32, u32) {
        (self.ro_compat & !ro_compat::KNOWN, self.incompat & !incompat::KNOWN)
    }

    /// Why it is not to be read at all, if so.
    pub(super) fn unsupported(&self) -> Option<String> {
        if self.has(incompat::METADIR) {
            return Some("XFS with a directory of its own metadata (metadir)".into());
        }
        let unknown = self.unknown_features();
        if unknown != (0, 0) {
            return Some(format!(
                "XFS with unknown features (ro_compat {:#x}, incompat {:#x})",
                unknown.0, unknown.1
            ));
        }
        if self.has_realtime {
            return Some("XFS with a realtime device".into());
        }
        if self.log.is_none() {
            return Some("XFS with its log on another device".into());
        }
        if self.inode_log > 6 {
            return Some("XFS with more than 64 inodes in a block".into());
        }
        None
    }

    /// How many blocks a group has.
    pub(super) fn blocks_of(&self, group: GroupNumber) -> u32 {
        let start = u64::from(group) * u64::from(self.group_blocks);
        u32::try_from((self.blocks - start).min(self.group_blocks.into())).expect("at most those of a group")
    }

    /// A block of a group, if the group has it.
    pub(super) fn in_group(&self, group: GroupNumber, block: GroupBlock) -> Option<BlockNumber> {
        (group < self.group_count && block < self.blocks_of(group))
            .then(|| u64::from(group) * u64::from(self.group_blocks) + u64::from(block))
    }

    /// What names a block for the whole volume (`xfs_fsblock_t`), as its number; `None` if there is no such block.
    pub(super) fn block_of(&self, name: u64) -> Option<BlockNumber> {
        let group = u32::try_from(name >> self.group_log).ok()?;
        let block = u32::try_from(name & ((1 << self.group_log) - 1)).ok()?;
        self.in_group(group, block)
    }

    /// Whether `count` blocks from `first` are within its group.
    pub(super) fn holds(&self, first: BlockNumber, count: u64) -> bool {
        let group = u32::try_from(first / u64::from(self.group_blocks)).unwrap_or(u32::MAX);
        let end = u64::from(group) * u64::from(self.group_blocks);
        group < self.group_count
            && first.checked_add(count).is_some_and(|last| last <= end + u64::from(self.blocks_of(group)))
    }

    /// Where a block lies.
    pub(super) fn offset_of(&self, block: BlockNumber) -> VolumeOffset {
        VolumeOffset::new(block * u64::from(self.block_bytes))
    }

    /// Where blocks lie.
    pub(super) fn span_of(&self, first: BlockNumber, count: u64) -> VolumeSpan {
        Span::new(self.offset_of(first), count * u64::from(self.block_bytes))
    }

    /// Where the `sector`th sector of a group lies.
    pub(super) fn header_at(&self, group: GroupNumber, sector: u32) -> VolumeOffset {
        let start = self.offset_of(u64::from(group) * u64::from(self.group_blocks));
        start.plus(u64::from(sector) * u64::from(self.sector_bytes))
    }

    /// What names an inode for the whole volume, by its number in its group.
    pub(super) fn inode_name(&self, group: GroupNumber, inode: u32) -> u64 {
        u64::from(group) << (self.group_log + self.inode_log) | u64::from(inode)
    }

    /// Where an inode would lie, by what names it for the whole volume; `None` if there is no such place.
    pub(super) fn inode_at(&self, name: u64) -> Option<VolumeOffset> {
        let block = self.block_of(name >> self.inode_log)?;
        let within = name & ((1 << self.inode_log) - 1);
        Some(self.offset_of(block).plus(within * u64::from(self.inode_bytes)))
    }

    /// Fails unless the files of a realtime device follow the root directory, as `mkfs.xfs` makes them whether there is such a device or not.
    pub(super) fn check_own_files(&self) -> Result<()> {
        let [bitmap, summary, ..] = self.own_files;
        let follow = |inode: u64, by| self.root_inode.checked_add(by) == Some(inode);
        if follow(bitmap, 1) && follow(summary, 2) {
            return Ok(());
        }
        Err(wrong("rootino, rbmino, rsumino", self.root_inode, "three inodes in a row"))
    }

    /// Whether an inode is a file that the volume keeps for itself.
    pub(super) fn is_own_file(&self, inode: u64) -> bool {
        inode != 0 && self.own_files.contains(&inode)
    }

    /// Whether something may have been written as of this place of the log.
    pub(super) fn is_past(&self, lsn: u64) -> bool {
        lsn == NO_LSN || lsn <= self.lsn_max
    }

    /// Whether directories tell what each entry is.
    pub(super) fn has_types(&self) -> bool {
        self.has(incompat::FTYPE)
    }

    /// The units of 512 bytes in which metadata say where they lie.
    pub(super) fn daddr_of(&self, block: BlockNumber) -> u64 {
        block * u64::from(self.block_bytes) / 512
    }
}

/// Fails unless the copy of the superblock in a group says the same of what does not change. Not every copy knows the root directory.
pub(super) fn check_copy(source: &Source, superblock: &Superblock, group: GroupNumber) -> Result<()> {
    let at = superblock.header_at(group, 0);
    let sector = read_vec(&**source, at, superblock.sector_bytes.into(), "XFS superblock")?;
    let wrong = |name: &str| {
        Error::corrupt(Corrupt::Copy { group })
            .field(name, "another".to_owned(), "that of the primary".to_owned())
            .at(at)
    };
    let (raw, _) = RawSuperblock::read_from_prefix(&sector).expect("a sector is longer");
    if raw.magicnum != SUPERBLOCK_MAGIC {
        return Err(wrong("magicnum"));
    }
    if superblock.has_checksums {
        check_sector(&sector, superblock).map_err(|error| wrong("sector").because(error))?;
    }
    let copy = parse(&raw).map_err(|error| wrong("geometry").because(error))?;
    let shape = |it: &Superblock| {
        let Superblock {
            block_bytes, sector_bytes, blocks, group_blocks, group_count, inode_bytes, log, ..
        } = it;
        let whole = (*block_bytes, *sector_bytes, *blocks, *group_blocks, *group_count, *inode_bytes, *log);
        let more = (it.rt_extent_blocks, it.inode_alignments, it.has_realtime, it.ro_compat, it.incompat);
        let more = (more, it.log_shape, it.version_bits);
        (whole, it.has_checksums, it.directory_block_bytes, it.meta_uuid, more)
    };
    if shape(&copy) == shape(superblock) { Ok(()) } else { Err(wrong("geometry")) }
}
