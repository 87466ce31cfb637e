//! Repositories in memory and in folders: what cuts, locks and broken files leave of them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod broken;
mod cuts;
mod shaky;

use std::sync::Arc;

use repository::{BlobKind, Id, Memory, Node, Packer, Repository, Session, Snapshot, Tree};
use testkit::noise;

const PASSWORD: &[u8] = b"correct horse";

/// The blobs of the file in a generation's snapshot: some are as in the generation before.
fn blobs(generation: u64) -> Vec<Vec<u8>> {
    // More than a pack, so that one is closed on the way.
    (0..20)
        .map(|index| noise(if index % 4 == 0 { generation * 100 + index } else { index }, 1 << 20))
        .collect()
}

/// Backs a file of this generation up.
fn back_up(repository: &Repository, generation: u64) -> block::Result<Id> {
    let index = repository.index()?;
    let session = Session::begin(repository, &index)?;
    let mut packers: Vec<Packer<'_, '_>> = vec![session.packer()?, session.packer()?];
    let mut content = Vec::new();
    for (at, blob) in blobs(generation).iter().enumerate() {
        content.push(packers[at % 2].add(BlobKind::Data, blob)?.id);
    }
    let tree = Tree { nodes: vec![Node::file("disk".into(), 20 << 20, content)] };
    session.finish(packers, tree, &[], Snapshot::now)
}

/// Panics with a message unless every snapshot has every blob that it names; answers how many there are.
fn check(memory: Arc<Memory>) -> Result<usize, String> {
    let repository = Repository::open(memory, PASSWORD).map_err(|error| error.to_string())?;
    let index = repository.index().map_err(|error| error.to_string())?;
    let snapshots = repository.snapshots().map_err(|error| error.to_string())?;
    for (id, snapshot) in &snapshots {
        let tree = repository.tree(&index, snapshot.tree).map_err(|error| format!("{id}: {error}"))?;
        for blob in tree.nodes.iter().flat_map(|node| node.content.iter().flatten()) {
            let place =
                index.find(BlobKind::Data, *blob).ok_or_else(|| format!("{id}: {blob} is in no index"))?;
            repository.blob(&place).map_err(|error| format!("{id}: {error}"))?;
        }
    }
    Ok(snapshots.len())
}
