//! Inodes, and where their contents lie.

use block::{Error, Result};

use super::corrupt::CorruptXfs;
use super::geometry::{Geometry, is_sealed, number};
use super::tree::{self, EXTENTS, Owner};

/// Of inodes of version 3; those before have 100.
const CORE_BYTES: usize = 176;

/// A stretch of a file.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    /// In blocks of the file.
    pub(super) logical: u64,
    pub(super) block: u64,
    pub(super) count: u64,
    pub(super) is_written: bool,
}

/// An inode in use.
pub(super) struct Inode {
    pub(super) number: u64,
    /// All of it, as it lies there.
    pub(super) bytes: Vec<u8>,
    /// Where its forks begin.
    core_bytes: usize,
    pub(super) data: Vec<Stretch>,
    pub(super) attributes: Vec<Stretch>,
}

impl Inode {
    fn kind(&self) -> u64 {
        number(&self.bytes, 2, 2) >> 12
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind() == 4
    }

    pub(super) fn is_regular(&self) -> bool {
        self.kind() == 8
    }

    /// What a directory without blocks holds in the inode.
    pub(super) fn inline(&self) -> Option<&[u8]> {
        let end = match usize::from(self.bytes[82]) * 8 {
            0 => self.bytes.len(),
            fork => self.core_bytes + fork,
        };
        (self.bytes[5] == 1).then(|| &self.bytes[self.core_bytes..end])
    }
}

pub(super) fn wrong(number: u64) -> Error {
    Error::corrupt(CorruptXfs::Inode(number))
}

/// Reads an inode, and makes what it has owned; `None` if it is free.
pub(super) fn read(geometry: &mut Geometry<'_>, inode: u64, bytes: &[u8]) -> Result<Option<Inode>> {
    let is_its = match geometry.is_sealed {
        true => {
            bytes[4] == 3
                && is_sealed(bytes, 100)
                && number(bytes, 152, 8) == inode
                && bytes[160..176] == *geometry.uuid
        }
        false => matches!(bytes[4], 1 | 2),
    };
    if !is_its || !bytes.starts_with(b"IN") {
        return Err(wrong(inode));
    }
    if number(bytes, 2, 2) == 0 {
        return Ok(None);
    }
    let core_bytes = if geometry.is_sealed { CORE_BYTES } else { 100 };
    let fork = core_bytes + usize::from(bytes[82]) * 8;
    if fork >= bytes.len() {
        return Err(wrong(inode));
    }
    let counts = match number(bytes, 120, 8) & 16 {
        _ if !geometry.is_sealed => [number(bytes, 76, 4), number(bytes, 80, 2)],
        0 => [number(bytes, 76, 4), number(bytes, 80, 2)],
        _ => [number(bytes, 24, 8), number(bytes, 76, 4)],
    };
    let mut found =
        Inode { number: inode, bytes: bytes.to_vec(), core_bytes, data: Vec::new(), attributes: Vec::new() };
    let (data_end, is_split) = if fork == core_bytes { (bytes.len(), false) } else { (fork, true) };
    let mut blocks = 0;
    (found.data, blocks) =
        stretches(geometry, inode, bytes[5], counts[0], &bytes[core_bytes..data_end], blocks)?;
    if is_split {
        (found.attributes, blocks) =
            stretches(geometry, inode, bytes[83], counts[1], &bytes[fork..], blocks)?;
    }
    let shares = found.is_regular();
    for (stretch, may_share) in
        found.data.iter().map(|it| (it, shares)).chain(found.attributes.iter().map(|it| (it, false)))
    {
        blocks += stretch.count;
        let range = stretch.block..stretch.block + stretch.count;
        if may_share { geometry.refer(range)? } else { geometry.own(range)? }
    }
    if blocks == number(bytes, 64, 8) { Ok(Some(found)) } else { Err(wrong(inode)) }
}

/// The stretches of a fork, and `blocks` with those of its tree.
fn stretches(
    geometry: &mut Geometry<'_>,
    inode: u64,
    format: u8,
    count: u64,
    fork: &[u8],
    blocks: u64,
) -> Result<(Vec<Stretch>, u64)> {
    let fail = || wrong(inode);
    let count = usize::try_from(count).map_err(|_| fail())?;
    let (records, nodes) = match format {
        0 | 1 => return if count == 0 { Ok((Vec::new(), blocks)) } else { Err(fail()) },
        2 => (fork.get(..count.saturating_mul(16)).ok_or_else(fail)?.to_vec(), 0),
        3 => {
            let (levels, names) =
                (number(fork, 0, 2), usize::try_from(number(fork, 2, 2)).map_err(|_| fail())?);
            let at = 4 + (fork.len() - 4) / 16 * 8;
            let names = fork.get(at..at + names * 8).filter(|names| !names.is_empty()).ok_or_else(fail)?;
            let names = names.chunks_exact(8).map(|name| number(name, 0, 8)).collect();
            tree::read(geometry, &EXTENTS, Owner::Inode(inode), names, levels)?
        }
        _ => return Err(fail()),
    };
    let mut found: Vec<Stretch> = Vec::with_capacity(count.min(records.len() / 16));
    for record in records.chunks_exact(16) {
        let bits = u128::from(number(record, 0, 8)) << 64 | u128::from(number(record, 8, 8));
        let part = |low: u32, len: u32| u64::try_from(bits >> low & ((1 << len) - 1)).map_err(|_| fail());
        let (count, name, logical) = (part(0, 21)?, part(21, 52)?, part(73, 54)?);
        let block = geometry.block_of(name).filter(|_| count > 0).ok_or_else(fail)?;
        let is_behind = found.last().is_none_or(|last| last.logical + last.count <= logical);
        if !is_behind {
            return Err(fail());
        }
        found.push(Stretch { logical, block, count, is_written: bits >> 127 == 0 });
    }
    if found.len() == count { Ok((found, blocks + nodes)) } else { Err(fail()) }
}
