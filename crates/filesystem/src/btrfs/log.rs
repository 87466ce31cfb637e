//! The trees of logs: what was synchronised since the last commit. Mounting puts it in its place; until then its blocks, and the data
//! that its files refer to, may be in no other tree.

use block::{Error, Result};

use super::file_extent::{self, FileExtentItem};
use super::key::Root;
use super::layout::item;
use super::roots;
use super::tree::{Expected, Reader};

/// The most stretches that logs may refer to: 64 MiB.
const STRETCHES_MAX: usize = 1 << 22;

/// Addresses that are in use for logs alone, or for something else as well: in order, apart.
pub(super) type Stretches = Vec<(u64, u64)>;

/// Reads all logs.
pub(super) fn read(reader: &Reader) -> Result<Stretches> {
    let Some(root) = reader.superblock.log_tree else { return Ok(Vec::new()) };
    let mut log = Log { reader, found: Vec::new() };
    for tree in log.tree(root)? {
        log.tree(tree)?;
    }
    Ok(join(log.found))
}

struct Log<'a> {
    reader: &'a Reader,
    found: Stretches,
}

impl Log<'_> {
    /// Enters what a tree takes up; answers the roots that are in it.
    fn tree(&mut self, root: Root) -> Result<Vec<Root>> {
        let (mut level, mut roots) = (vec![Expected::from(root)], Vec::new());
        while !level.is_empty() {
            let mut children = Vec::new();
            let Self { reader, found } = self;
            let node_bytes = u64::from(reader.superblock.node_bytes);
            reader.each_node(&mut level, node_bytes, &mut |_, node| {
                found.push((node.logical, node.logical + node_bytes));
                children.extend(node.children(0));
                for (key, bytes) in node.items() {
                    match key.kind {
                        item::ROOT => {
                            let log = roots::parse(key, bytes)?.root;
                            roots.push(Root { tree: root.tree, ..log });
                        }
                        item::EXTENT_DATA => {
                            let extent = file_extent::parse(&reader.superblock, key, bytes)?;
                            if let FileExtentItem::Data(data) = extent {
                                reader.chunks.holding(data.logical, data.len_bytes)?;
                                found.push((data.logical, data.logical + data.len_bytes));
                            }
                        }
                        _ => {}
                    }
                }
                if found.len() > STRETCHES_MAX {
                    return Err(Error::unsupported("Btrfs with very many extents in its logs"));
                }
                Ok(())
            })?;
            level = children;
        }
        Ok(roots)
    }
}

/// In order, and joined where they touch.
fn join(mut stretches: Stretches) -> Stretches {
    stretches.sort_unstable();
    let mut joined: Stretches = Vec::new();
    for (start, end) in stretches {
        match joined.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_joined_where_they_touch() {
        assert_eq!(join(vec![(8, 9), (0, 3), (3, 5), (1, 2), (7, 9)]), [(0, 5), (7, 9)]);
    }
}
