//! The full check: the boot regions, the tables that the root directory names, and every owner of clusters against the bitmap.

use block::{Error, Result};

use super::Volume;
use super::boot;
use super::corrupt::Corrupt;
use super::layout::MEDIA_ENTRY;
use super::table::{Chains, Table};
use super::upcase::Upcase;
use super::walk::{self, Node, Visitor};
use crate::clusters::Run;

/// Fails with the first contradiction. Clusters that the bitmap has in use and nobody owns are none: they are used.
pub(super) fn check(volume: &Volume) -> Result<()> {
    let Volume { source, boot, geometry, tables } = volume;
    boot::check_regions(source, boot, geometry)?;
    let media = Table::new(source, geometry).entry(0)?;
    if media != MEDIA_ENTRY {
        let expected = format!("{MEDIA_ENTRY:#x}");
        return Err(Error::corrupt(Corrupt::Entry { cluster: 0 }).field("value", media, expected));
    }
    let upcase_at = geometry.clusters.span_of(tables.upcase.first, tables.upcase.count).start();
    let upcase = Upcase::read(source, upcase_at, tables.upcase_bytes, tables.upcase_sum)?;
    let mut chains = Chains::within(source, geometry, tables.bitmap_at)?;
    chains.claim(tables.bitmap, 0)?;
    chains.claim(tables.upcase, 0)?;
    let mut check = Check { cluster_bytes: geometry.clusters.bytes };
    walk::walk(source, geometry, &mut chains, Some(&upcase), &mut check)
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
        let (_, taken) = node.runs(chains, self.cluster_bytes);
        taken
    }

    fn wrong(&mut self, _entry: u64, error: Error) -> Result<()> {
        Err(error)
    }
}
