//! What of ext2/3/4 stays when files move: every inode but for its map, its count of blocks and its checksum; attributes,
//! names, and the layout of what the map maps.

use block::Result;

use super::attributes;
use super::check::REFERRING;
use super::directory::Directory;
use super::geometry::Geometry;
use super::inode::{Inode, Kind, Map};
use super::layout::{flags, inode_at};
use super::map::{self, Met, Piece};
use super::table;
use crate::volume::Source;
use crate::volume::snapshot::{Aspect, Collector, Contents, Layout};

pub(in crate::volume) fn collect(source: &Source, collector: &mut Collector<'_>) -> Result<()> {
    let geometry = Geometry::open(source)?;
    for number in 0..geometry.groups {
        let group = geometry.group(number)?;
        let used = table::used(&geometry, number, &group)?;
        table::each(&geometry, &group, Some(&used), |index, bytes, place| {
            if !used.has(index) {
                return Ok(());
            }
            let number = number * geometry.inodes_per_group + index + 1;
            collect_inode(&geometry, number, bytes, collector).map_err(|error| error.at(place))
        })?;
    }
    Ok(())
}

/// The inode without what says where things lie. Its checksum covers that.
fn kept(inode: &Inode<'_>) -> Vec<u8> {
    let mut bytes = inode.bytes.to_vec();
    let map_bytes = if inode.map == Map::None { 0 } else { 60 };
    for (at, len) in [
        (inode_at::BLOCKS_LO, 4),
        (inode_at::BLOCK, map_bytes),
        (inode_at::FILE_ACL_LO, 4),
        (inode_at::BLOCKS_HI, 2),
        (inode_at::FILE_ACL_HI, 2),
        (inode_at::CHECKSUM_LO, 2),
        (inode_at::CHECKSUM_HI, 2),
    ] {
        // Inodes of the first revision end before the upper half of the checksum.
        if let Some(field) = bytes.get_mut(at..at + len) {
            field.fill(0);
        }
    }
    bytes
}

fn collect_inode(
    geometry: &Geometry,
    number: u64,
    bytes: &[u8],
    collector: &mut Collector<'_>,
) -> Result<()> {
    let inode = Inode::parse(geometry, number, bytes)?;
    collector.tell(number, Aspect::Head, &[&kept(&inode), &[u8::from(inode.attributes.is_some())]]);
    if let Some(block) = inode.attributes.filter(|_| collector.contents != Contents::Owners) {
        let found = attributes::read(geometry, block, number)?;
        collector.tell(number, Aspect::Attributes, &attributes::content(&found.bytes));
    }
    let mut layout = Layout::default();
    let mut pieces: Vec<Piece> = Vec::new();
    let has_names = inode.kind == Kind::Directory && collector.contents != Contents::Owners;
    // What refers to what others own, and the journal.
    let is_map = [1, 7, u64::from(geometry.raw.journal_inum.get())].contains(&number);
    let has_contents = collector.contents.includes(number) && !is_map;
    let end = inode.size_bytes();
    map::walk(geometry, &inode, &mut |met| {
        let Met::Piece(piece) = met else { return Ok(()) };
        if REFERRING.contains(&number) {
            // What these list stays where it is: bad blocks above all.
            let place = [piece.logical, piece.start, piece.count].map(u64::to_le_bytes);
            collector.tell(number, Aspect::Layout, &[&place.concat()]);
        }
        layout.push(piece.logical, piece.count, u8::from(piece.is_unwritten));
        if has_names {
            pieces.push(piece);
        }
        if !has_contents || piece.is_unwritten {
            return Ok(());
        }
        let logical = piece.logical * geometry.block_bytes;
        let len = (piece.count * geometry.block_bytes).min(end.saturating_sub(logical));
        collector.piece(number, 0, logical, geometry.at(piece.start), len)
    })?;
    collector.tell(number, Aspect::Layout, &[&layout.finish()]);
    if has_names { collect_names(geometry, &inode, &pieces, collector) } else { Ok(()) }
}

fn collect_names(
    geometry: &Geometry,
    inode: &Inode<'_>,
    pieces: &[Piece],
    collector: &mut Collector<'_>,
) -> Result<()> {
    let mut each = |entry: &super::directory::Entry<'_>| {
        if entry.name != b"." {
            let parent = inode.number.to_le_bytes();
            collector.tell(entry.inode.into(), Aspect::Names, &[&parent, &[entry.file_type], entry.name]);
        }
        Ok(())
    };
    let is_inline = inode.has(flags::INLINE_DATA);
    let block_count = if is_inline { 0 } else { inode.size_bytes().div_ceil(geometry.block_bytes) };
    let mut directory = Directory::new(geometry, inode, block_count)?;
    if is_inline {
        return directory.inline(&mut each);
    }
    let read = |logical: u64| map::read_block(geometry, inode, pieces, logical);
    directory.tree(&read)?;
    (0..block_count).try_for_each(|logical| directory.block(logical, &read(logical)?, &mut each))
}
