//! Inodes of the log: what they are made to, and what was changed of one.

use block::Result;
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::{RawInodeItem, RawLogInode, inode_field};
use super::record::{Item, short, wrong};
use crate::xfs::layout::{INODE_MAGIC, RawForkRoot, RawInode, RawLongNode, format};
use crate::xfs::superblock::Superblock;

/// Bytes of a key of a tree of extents, and of a pointer.
const WORD_BYTES: usize = 8;

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

/// Puts what `item` says into the inode that lies in `bytes`, as of `lsn`.
pub(super) fn put(bytes: &mut [u8], item: &Item, raw: &RawInodeItem, lsn: u64) -> Result<()> {
    let core = item.regions.get(1).and_then(|core| RawLogInode::read_from_bytes(core).ok());
    let core = core.ok_or_else(|| short("core"))?;
    let (inode, forks) = RawInode::mut_from_prefix(bytes).map_err(|_| short("inode"))?;
    put_core(inode, &core);
    inode.lsn = lsn.into();
    put_forks(forks, &core, item, raw)
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
fn put_forks(forks: &mut [u8], core: &RawLogInode, item: &Item, raw: &RawInodeItem) -> Result<()> {
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
            put_root(fork, region)?;
        } else {
            fork.get_mut(..region.len()).ok_or_else(|| short("fork"))?.copy_from_slice(region);
        }
    }
    Ok(())
}

/// The root of a tree of extents, from the form in memory to that in an inode: keys, and pointers behind room for all keys.
fn put_root(fork: &mut [u8], root: &[u8]) -> Result<()> {
    let wrong = || short("root of extents");
    let (raw, from) = RawLongNode::read_from_prefix(root).map_err(|_| wrong())?;
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
