//! Names in directories, counted.

use block::{Result, read_vec};

use super::geometry::{Geometry, is_sealed, number};
use super::inode::{Inode, wrong};

/// How many names a directory has, but for its own and its parent's.
pub(super) fn count_names(geometry: &Geometry<'_>, inode: &Inode) -> Result<u64> {
    match inode.inline() {
        Some(inline) => count_inline(geometry, inode.number, inline),
        None => {
            let mut sum = 0;
            for (first, bytes) in blocks(geometry, inode)? {
                sum += count_in_block(geometry, inode.number, first, &bytes)
                    .ok_or_else(|| wrong(inode.number))?;
            }
            Ok(sum)
        }
    }
}

/// Of the type of an entry.
fn type_bytes(geometry: &Geometry<'_>) -> usize {
    usize::from(geometry.incompat & 1 != 0)
}

fn count_inline(geometry: &Geometry<'_>, inode: u64, bytes: &[u8]) -> Result<u64> {
    let width = if bytes[1] == 0 { 4 } else { 8 };
    let mut at = 2 + width;
    for _ in 0..bytes[0] {
        let len = usize::from(*bytes.get(at).ok_or_else(|| wrong(inode))?);
        at += 3 + len + type_bytes(geometry) + width;
        if len == 0 || at > bytes.len() {
            return Err(wrong(inode));
        }
    }
    Ok(bytes[0].into())
}

/// The blocks with names, and where each begins: those of the directory's first 32 GiB.
fn blocks(geometry: &Geometry<'_>, inode: &Inode) -> Result<Vec<(u64, Vec<u8>)>> {
    let per_block = geometry.directory_bytes / geometry.block_bytes;
    let mut all: Vec<(u64, u64, Vec<u8>)> = Vec::new();
    for stretch in &inode.data {
        for index in 0..stretch.count {
            let (logical, block) = (stretch.logical + index, stretch.block + index);
            if logical >= (32 << 30) / geometry.block_bytes {
                break;
            }
            let bytes =
                read_vec(geometry.source, geometry.place_of(block), geometry.block_bytes, "XFS directory")?;
            match all.last_mut().filter(|(number, ..)| *number == logical / per_block) {
                Some((.., whole)) => whole.extend(bytes),
                None => all.push((logical / per_block, block, bytes)),
            }
        }
    }
    Ok(all.into_iter().map(|(_, first, bytes)| (first, bytes)).collect())
}

fn count_in_block(geometry: &Geometry<'_>, inode: u64, first: u64, bytes: &[u8]) -> Option<u64> {
    let is_its = !geometry.is_sealed
        || (is_sealed(bytes, 4)
            && number(bytes, 8, 8) * 512 == geometry.place_of(first).get()
            && bytes[24..40] == *geometry.uuid
            && number(bytes, 40, 8) == inode);
    let end = match (&bytes[..4], geometry.is_sealed) {
        (b"XDD3", true) | (b"XD2D", false) => bytes.len(),
        (b"XDB3", true) | (b"XD2B", false) => {
            let index = usize::try_from(number(bytes, bytes.len() - 8, 4)).ok()?;
            bytes.len().checked_sub(8)?.checked_sub(index.checked_mul(8)?)?
        }
        _ => return None,
    };
    let (mut at, mut count) = (if geometry.is_sealed { 64 } else { 16 }, 0);
    while at < end {
        let rest = bytes.get(at..end).filter(|rest| rest.len() >= 8)?;
        let is_unused = number(rest, 0, 2) == 0xffff;
        let len = match is_unused {
            true => usize::try_from(number(rest, 2, 2)).ok()?,
            false => {
                let name = usize::from(*rest.get(8)?);
                let is_own = matches!(rest.get(9..9 + name)?, b"." | b"..");
                count += u64::from(!is_own);
                (11 + name + type_bytes(geometry)).next_multiple_of(8)
            }
        };
        // Each ends with where it begins.
        let tag = rest.get(len.checked_sub(2)?..len)?;
        if len == 0 || number(tag, 0, 2) != at as u64 {
            return None;
        }
        at += len;
    }
    (is_its && at == end).then_some(count)
}
