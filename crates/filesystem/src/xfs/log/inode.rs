//! Inodes of the log: what they are made to, and what was changed of one.

use block::Result;
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::{LOG_INODE_2_BYTES, RawInodeItem, RawLogInode, inode_field};
use super::record::{Item, short, wrong};
use crate::xfs::layout::{
    INODE_2_BYTES, INODE_MAGIC, LONG_NODE_4_BYTES, RawForkRoot, RawInode, RawLongNode, format,
};
use crate::xfs::seal::seal;
use crate::xfs::superblock::Superblock;

/// Bytes of a key of a tree of extents, and of a pointer.
const WORD_BYTES: usize = 8;
/// The most that the counter of an inode's writes says before it begins again (`DI_MAX_FLUSH`).
const FLUSHES_MAX: u16 = u16::MAX;

/// An inode of this number that is not in use.
pub(super) fn unused(superblock: &Superblock, number: u64, generation: u32) -> RawInode {
    RawInode {
        magic: INODE_MAGIC,
        version: 3,
        gen_: generation.into(),
        next_unlinked: U32::MAX_VALUE,
        ino: number.into(),
        uuid: superblock.meta_uuid,
        ..RawInode::new_zeroed()
    }
}

/// The core of the inode that an item has. Of versions 1 and 2 it is shorter, and the rest is zeros.
pub(super) fn core_of(item: &Item, superblock: &Superblock) -> Result<RawLogInode> {
    let logged = item.regions.get(1).map_or(&[][..], Vec::as_slice);
    let len = if superblock.has_checksums { size_of::<RawLogInode>() } else { LOG_INODE_2_BYTES };
    let mut core = RawLogInode::new_zeroed();
    let is_whole = logged.len() == len;
    core.as_mut_bytes()[..len]
        .copy_from_slice(Some(logged).filter(|_| is_whole).ok_or_else(|| short("core"))?);
    let is_version =
        if superblock.has_checksums { core.version == 3 } else { [1, 2].contains(&core.version) };
    if is_version {
        Ok(core)
    } else {
        Err(wrong(0, "di_version", core.version, "that of the volume's inodes"))
    }
}

/// Whether an inode of version 1 or 2 was written to its place after the log had it: both count how often it was (`di_flushiter`). A
/// replay takes the count back to 0.
pub(super) fn was_flushed_since(stored: &RawInode, core: &RawLogInode) -> bool {
    // The last two bytes of eight, on the disk and in the machine's order.
    let last = |bytes: [u8; 8]| [bytes[6], bytes[7]];
    let on_disk = u16::from_be_bytes(last(stored.big_nextents.to_bytes()));
    let logged = u16::from_le_bytes(last(core.big_nextents.to_bytes()));
    let has_begun_again = on_disk == FLUSHES_MAX && logged < FLUSHES_MAX >> 1;
    logged < on_disk && !has_begun_again
}

/// Puts what `item`, of which these are the head and the core, says into the inode that lies in `bytes`, as of `lsn`.
pub(super) fn put(
    bytes: &mut [u8],
    item: &Item,
    (raw, core): (&RawInodeItem, &RawLogInode),
    superblock: &Superblock,
    lsn: u64,
) -> Result<()> {
    let (mut inode, _) = RawInode::read_from_prefix(bytes).map_err(|_| short("inode"))?;
    put_core(&mut inode, core);
    let core_bytes = if superblock.has_checksums {
        inode.lsn = lsn.into();
        size_of::<RawInode>()
    } else {
        inode.big_nextents = 0.into();
        INODE_2_BYTES
    };
    let (head, forks) = bytes.split_at_mut(core_bytes);
    head.copy_from_slice(&inode.as_bytes()[..core_bytes]);
    put_forks(forks, core, item, raw, superblock)?;
    if superblock.has_checksums {
        seal(bytes, std::mem::offset_of!(RawInode, crc));
    }
    Ok(())
}

/// The core of an inode, from the machine's order to the disk's. What the log does not keep stays.
fn put_core(inode: &mut RawInode, core: &RawLogInode) {
    *inode = RawInode {
        magic: core.magic.get().to_be_bytes(),
        mode: core.mode.get().into(),
        version: core.version,
        format: core.format,
        onlink: core.onlink.get().into(),
        uid: core.uid.get().into(),
        gid: core.gid.get().into(),
        nlink: core.nlink.get().into(),
        projid: [&core.projid[0], &core.projid[1]].map(|it| it.get().into()),
        big_nextents: core.big_nextents.get().into(),
        times: [&core.times[0], &core.times[1], &core.times[2]].map(|it| it.get().into()),
        size: core.size.get().into(),
        nblocks: core.nblocks.get().into(),
        extsize: core.extsize.get().into(),
        nextents: core.nextents.get().into(),
        anextents: core.anextents.get().into(),
        forkoff: core.forkoff,
        aformat: core.aformat,
        dmevmask: core.dmevmask.get().into(),
        dmstate: core.dmstate.get().into(),
        flags: core.flags.get().into(),
        gen_: core.gen_.get().into(),
        changecount: core.changecount.get().into(),
        flags2: core.flags2.get().into(),
        cowextsize: core.cowextsize.get().into(),
        ..inode.clone()
    };
}

/// Puts the regions behind the core into the forks that they are of.
fn put_forks(
    forks: &mut [u8],
    core: &RawLogInode,
    item: &Item,
    raw: &RawInodeItem,
    superblock: &Superblock,
) -> Result<()> {
    let split = match usize::from(core.forkoff) * 8 {
        0 => forks.len(),
        at if at < forks.len() => at,
        at => return Err(wrong(0, "forkoff", at as u64, "within the inode")),
    };
    let (data, attributes) = forks.split_at_mut(split);
    let fields = raw.fields.get();
    if fields & inode_field::DEV != 0 && core.format == format::DEVICE {
        let device = U32::new(raw.rdev.get());
        device.write_to_prefix(data).map_err(|_| short("fork"))?;
    }
    let mut regions = item.regions[2..].iter();
    for (fork, wanted, root) in [
        (data, inode_field::DATA, inode_field::DBROOT),
        (attributes, inode_field::ATTRIBUTES, inode_field::ABROOT),
    ] {
        if fields & wanted == 0 {
            continue;
        }
        let region = regions.next().ok_or_else(|| short("fork"))?;
        if fields & root != 0 {
            put_root(fork, region, superblock)?;
        } else {
            fork.get_mut(..region.len()).ok_or_else(|| short("fork"))?.copy_from_slice(region);
        }
    }
    Ok(())
}

/// The root of a tree of extents, from the form in memory to that in an inode: keys, and pointers behind room for all keys.
fn put_root(fork: &mut [u8], root: &[u8], superblock: &Superblock) -> Result<()> {
    let wrong = || short("root of extents");
    let header = if superblock.has_checksums { size_of::<RawLongNode>() } else { LONG_NODE_4_BYTES };
    let (_, from) = root.split_at_checked(header).ok_or_else(wrong)?;
    // Both begin alike: the magic number, then what a root in an inode has.
    let (raw, _) = RawForkRoot::read_from_prefix(&root[size_of::<[u8; 4]>()..]).map_err(|_| wrong())?;
    let (header, to) = RawForkRoot::mut_from_prefix(fork).map_err(|_| wrong())?;
    let len = usize::from(raw.numrecs.get()) * WORD_BYTES;
    let pointers = |len: usize| len / (2 * WORD_BYTES) * WORD_BYTES;
    let (from_pointers, to_pointers) = (pointers(from.len()), pointers(to.len()));
    if len > from_pointers || len > to_pointers {
        return Err(wrong());
    }
    *header = RawForkRoot { level: raw.level, numrecs: raw.numrecs };
    to[..len].copy_from_slice(&from[..len]);
    to[to_pointers..][..len].copy_from_slice(&from[from_pointers..][..len]);
    Ok(())
}
