//! What is in a regular file or in a symbolic link, to be read as its guest reads it.

use std::sync::Arc;

use block::{Error, Result, read_vec};
use zerocopy::FromBytes;

use super::files::shown;
use super::fork::{self, Met};
use super::inode::{self, Inode, mode, wrong};
use super::layout::{RawSymlink, format};
use super::superblock::Superblock;
use crate::Source;
use crate::browse::{Contents, TARGET_BYTES_MAX};
use crate::files::{FileExtent, FileId, StreamName};
use crate::pieces::Pieces;

/// Reads an inode in use, and its bytes.
pub(super) fn read_inode(source: &Source, superblock: &Superblock, file: FileId) -> Result<(Inode, Vec<u8>)> {
    let none = || Error::unsupported(format!("XFS inode {} is not read: there is none", file.0));
    let at = superblock.inode_at(file.0).ok_or_else(none)?;
    let bytes = read_vec(&**source, at, superblock.inode_bytes.into(), "XFS inode")?;
    let inode = inode::parse(&bytes, superblock, file.0)?.ok_or_else(none)?;
    Ok((inode, bytes))
}

/// Opens the main stream of a regular file.
pub(super) fn open(
    source: &Source,
    superblock: &Superblock,
    file: FileId,
    name: StreamName<'_>,
) -> Result<Box<dyn Contents>> {
    let (inode, _) = read_inode(source, superblock, file)?;
    if name != StreamName::Main || inode.kind != mode::REGULAR {
        return Err(Error::unsupported(format!("XFS inode {} is not read: it is no regular file", file.0)));
    }
    let extents = extents(source, superblock, &inode)?;
    Ok(Box::new(Pieces { source: Arc::clone(source), size_bytes: inode.size_bytes, extents }))
}

/// Where the data fork of an inode lies.
pub(super) fn extents(source: &Source, superblock: &Superblock, inode: &Inode) -> Result<Vec<FileExtent>> {
    let mut extents = Vec::new();
    fork::walk(source, superblock, inode, &inode.data, &mut |met| {
        if let Met::Extent(extent) = met {
            extents.push(shown(superblock, &extent));
        }
        Ok(())
    })?;
    Ok(extents)
}

/// The target of a symbolic link: in the inode, or in extents. In version 5 each extent begins with a header.
pub(super) fn target(source: &Source, superblock: &Superblock, inode: &Inode) -> Result<Vec<u8>> {
    let expected = "what the link holds";
    let wrong_size = || wrong(inode.number, "size of a symbolic link", inode.size_bytes, expected);
    if inode.kind != mode::SYMLINK || inode.size_bytes > TARGET_BYTES_MAX {
        return Err(wrong_size());
    }
    let size = usize::try_from(inode.size_bytes).expect("some kilobytes");
    if inode.data.format == format::LOCAL {
        return inode.data.bytes.get(..size).map(<[u8]>::to_vec).ok_or_else(wrong_size);
    }
    let mut target = Vec::new();
    for extent in extents(source, superblock, inode)? {
        let len = extent.span.len_bytes().min(2 * TARGET_BYTES_MAX);
        let bytes = read_vec(&**source, extent.span.start(), len, "XFS symbolic link")?;
        let part = match superblock.has_checksums {
            false => &bytes[..],
            true => {
                let (header, behind) = RawSymlink::read_from_prefix(&bytes).map_err(|_| wrong_size())?;
                if header.owner.get() != inode.number || header.uuid != superblock.meta_uuid {
                    return Err(wrong(inode.number, "owner of a block", header.owner.get(), "the link"));
                }
                behind.get(..header.bytes.get() as usize).ok_or_else(wrong_size)?
            }
        };
        target.extend_from_slice(part);
        if target.len() >= size {
            break;
        }
    }
    target.truncate(size);
    if target.len() == size { Ok(target) } else { Err(wrong_size()) }
}
