//! Trees, read level by level: the blocks of a level, each of which names the next, must be those that the level above points to.

use block::{Error, Result, read_vec};

use super::corrupt::CorruptXfs;
use super::geometry::{Geometry, is_sealed, number};

/// The most bytes of records of one tree.
const RECORDS_BYTES_MAX: usize = 128 << 20;

/// How the blocks of a kind of tree look.
pub(super) struct Kind {
    magic: &'static [u8; 4],
    /// In version 4.
    magic_4: &'static [u8; 4],
    record: usize,
    key: usize,
    /// Of a number of a block: 4 in trees of a group, 8 in those of inodes.
    pointer: usize,
}

const fn of_group(magic: &'static [u8; 4], magic_4: &'static [u8; 4], record: usize, key: usize) -> Kind {
    Kind { magic, magic_4, record, key, pointer: 4 }
}

pub(super) const BY_PLACE: Kind = of_group(b"AB3B", b"ABTB", 8, 8);
pub(super) const BY_LENGTH: Kind = of_group(b"AB3C", b"ABTC", 8, 8);
pub(super) const REVERSE: Kind = of_group(b"RMB3", b"RMB3", 24, 40);
pub(super) const REFERENCES: Kind = of_group(b"R3FC", b"R3FC", 12, 4);
pub(super) const INODES: Kind = of_group(b"IAB3", b"IABT", 16, 4);
pub(super) const FREE_INODES: Kind = of_group(b"FIB3", b"FIB3", 16, 4);
pub(super) const EXTENTS: Kind = Kind { magic: b"BMA3", magic_4: b"BMAP", record: 16, key: 8, pointer: 8 };

/// Whose tree it is.
#[derive(Clone, Copy)]
pub(super) enum Owner {
    Group(u64),
    Inode(u64),
}

/// Reads a tree from the blocks of its highest level on, of which there are `levels`; all of it becomes owned. Answers the records, and how
/// many blocks there are.
pub(super) fn read(
    geometry: &mut Geometry<'_>,
    kind: &Kind,
    owner: Owner,
    mut names: Vec<u64>,
    levels: u64,
) -> Result<(Vec<u8>, u64)> {
    let mut blocks = 0;
    for level in (0..levels).rev() {
        let (found, entries) = read_level(geometry, kind, owner, names[0], level)?;
        if found != names {
            return Err(Error::corrupt(CorruptXfs::Tree(names[0])));
        }
        blocks += found.len() as u64;
        if level == 0 {
            return Ok((entries, blocks));
        }
        names = entries.chunks_exact(kind.pointer).map(|name| number(name, 0, kind.pointer)).collect();
        if names.is_empty() {
            return Err(Error::corrupt(CorruptXfs::Tree(found[0])));
        }
    }
    Err(Error::corrupt(CorruptXfs::Tree(names[0])))
}

/// The blocks of a level, from the first on, and what they hold: records, or names of blocks.
fn read_level(
    geometry: &mut Geometry<'_>,
    kind: &Kind,
    owner: Owner,
    first: u64,
    level: u64,
) -> Result<(Vec<u64>, Vec<u8>)> {
    let width = kind.pointer;
    let none = u64::MAX >> (64 - 8 * width);
    // Two neighbours, a place, a number of the log, a UUID, the owner, a checksum.
    let (left_at, place_at) = (8, 8 + 2 * width);
    let (uuid_at, owner_at) = (place_at + 16, place_at + 32);
    let (crc_at, header) = match (geometry.is_sealed, width) {
        (true, 4) => (owner_at + width, 56),
        (true, _) => (owner_at + width, 72),
        // It ends with the neighbours.
        (false, _) => (0, place_at),
    };
    let (mut names, mut all, mut next, mut left) = (Vec::new(), Vec::new(), first, none);
    while next != none {
        let wrong = || Error::corrupt(CorruptXfs::Tree(next));
        let block = match owner {
            Owner::Group(group) => Some(next)
                .filter(|next| *next < geometry.len_of(group))
                .map(|next| group * geometry.group_blocks + next),
            Owner::Inode(_) => geometry.block_of(next),
        };
        let block = block.ok_or_else(wrong)?;
        // Which ends where a level leads back into itself.
        geometry.own(block..block + 1)?;
        let bytes = read_vec(geometry.source, geometry.place_of(block), geometry.block_bytes, "XFS tree")?;
        let (Owner::Group(of) | Owner::Inode(of)) = owner;
        let is_signed = match geometry.is_sealed {
            true => {
                bytes.starts_with(kind.magic)
                    && is_sealed(&bytes, crc_at)
                    && bytes[uuid_at..uuid_at + 16] == *geometry.uuid
                    && number(&bytes, owner_at, width) == of
                    && number(&bytes, place_at, 8) * 512 == geometry.place_of(block).get()
            }
            false => bytes.starts_with(kind.magic_4),
        };
        let is_its = is_signed && number(&bytes, 4, 2) == level && number(&bytes, left_at, width) == left;
        let count = usize::try_from(number(&bytes, 6, 2)).map_err(|_| wrong())?;
        let body = &bytes[header..];
        let fits = body.len() / if level == 0 { kind.record } else { kind.key + width };
        if !is_its || count > fits || all.len() > RECORDS_BYTES_MAX {
            return Err(wrong());
        }
        all.extend(match level {
            0 => &body[..count * kind.record],
            _ => &body[fits * kind.key..][..count * width],
        });
        names.push(next);
        left = next;
        next = number(&bytes, left_at + width, width);
    }
    Ok((names, all))
}
