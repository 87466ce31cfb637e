//! The full check: the FATs against each other, and against every chain that a directory names.

use block::{Error, Result};

use super::Volume;
use super::boot;
use super::table::{self, Chains, Table};
use super::walk::{self, Node, Visitor};
use crate::clusters::{self, Run};

/// Fails with the first contradiction. Chains that no directory names are none: their clusters are used.
pub(super) fn check(volume: &Volume) -> Result<()> {
    let Volume { source, boot, geometry } = volume;
    boot::check_backup(&**source, boot, geometry)?;
    table::check_mirrors(source, geometry)?;
    Table::new(source, geometry).check_entries()?;
    walk::walk(source, geometry, &mut Check { cluster_bytes: geometry.clusters.bytes })
}

struct Check {
    cluster_bytes: u64,
}

impl Visitor for Check {
    fn directory(&mut self, _node: &Node, _runs: &[Run]) {}

    fn entry(&mut self, chains: &mut Chains<'_>, node: &Node, _parent: u64, _name: &[u8]) -> Result<()> {
        if node.is_directory {
            return Ok(());
        }
        let (_, followed) = follow_file(chains, node, self.cluster_bytes);
        followed
    }

    fn wrong(&mut self, _entry: u64, error: Error) -> Result<()> {
        Err(error)
    }
}

/// The chain of a file, which must be as long as its size says.
pub(super) fn follow_file(
    chains: &mut Chains<'_>,
    node: &Node,
    cluster_bytes: u64,
) -> (Vec<Run>, Result<()>) {
    if node.first == 0 {
        let is_empty = node.size_bytes == 0;
        let wrong = || node.wrong().field("size", node.size_bytes, "0 of a file without clusters");
        return (Vec::new(), if is_empty { Ok(()) } else { Err(wrong()) });
    }
    let (runs, followed) = chains.follow(node.first, node.entry);
    let count = clusters::count_of(&runs);
    let expected = node.size_bytes.div_ceil(cluster_bytes);
    let checked = followed.and_then(|()| {
        let wrong =
            || node.wrong().field("clusters in its chain", count, format!("{expected}, as its size says"));
        if count == expected { Ok(()) } else { Err(wrong()) }
    });
    (runs, checked)
}
