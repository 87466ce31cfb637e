//! What lies in a repository, once it is decrypted, by somebody who knows the password.

use std::path::Path;
use std::sync::Arc;

use block::{ReadAt, Result};
use extent::{Host, HostOffset};
use repository::{
    BlobKind, Id, Index, Kind, Memory, Node, Repository, Session, Snapshot, SnapshotDisk, Tree,
};

use crate::{WINDOW_BYTES, accept, windows};

/// Takes `data` as an index, a snapshot, a tree, or the contents of a pack; its first byte says which.
pub fn repository(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    let repository = Repository::forged(Arc::new(Memory::default())).expect("memory has room");
    let repository = Arc::new(repository);
    accept(match kind % 4 {
        0 => index(&repository, data),
        1 => snapshots(&repository, data),
        2 => tree(&repository, data),
        _ => blob(&repository, data),
    });
}

fn index(repository: &Arc<Repository>, data: &[u8]) -> Result<()> {
    repository.forge(Kind::Index, data)?;
    let index = repository.index()?;
    // Whatever it says of blobs, there is no pack.
    for blob in 0..8u8 {
        let Some(place) = index.find(BlobKind::Data, Id::of(&[blob])) else { continue };
        assert!(repository.blob(&place).is_err());
    }
    Ok(())
}

fn snapshots(repository: &Arc<Repository>, data: &[u8]) -> Result<()> {
    repository.forge(Kind::Snapshot, data)?;
    let (_, snapshot) = repository.find_snapshot("latest")?;
    repository.tree(&Index::default(), snapshot.tree).map(drop)
}

/// In a repository that has a few blobs, which the tree may name.
fn tree(repository: &Arc<Repository>, data: &[u8]) -> Result<()> {
    let known = Index::default();
    let session = Session::begin(repository, &known)?;
    let mut packer = session.packer()?;
    for blob in [&b"a"[..], b"b", &[0; 4096]] {
        packer.add(BlobKind::Data, blob)?;
    }
    let tree = packer.add(BlobKind::Tree, data)?.id;
    session.finish(vec![packer], Tree::default(), &[], Snapshot::now)?;
    let index = repository.index()?;
    let tree = repository.tree(&index, tree)?;
    for node in tree.nodes.iter().filter(|node| node.is_file()) {
        disk(repository, &index, node)?;
    }
    Ok(())
}

fn disk(repository: &Arc<Repository>, index: &Index, node: &Node) -> Result<()> {
    let disk = SnapshotDisk::open(repository.clone(), index, node, Path::new("disk"))?;
    let len_bytes = ReadAt::<Host>::len_bytes(&disk);
    assert_eq!(len_bytes, node.size);
    for (at, len) in windows(len_bytes) {
        let mut buf = vec![0; usize::try_from(len.min(WINDOW_BYTES)).expect("a small window")];
        disk.read_at(HostOffset::new(at), &mut buf)?;
    }
    disk.check(1, &|_| true)
}

/// As a compressed blob; four bytes say how long it is to be.
fn blob(repository: &Arc<Repository>, data: &[u8]) -> Result<()> {
    let Some((promised, data)) = data.split_first_chunk() else { return Ok(()) };
    let promised = u32::from_le_bytes(*promised) % (1 << 24);
    let pack = repository.forge(Kind::Pack, data)?;
    let (blob, sealed) = (Id::of(b"blob"), data.len() + 32);
    let index = format!(
        r#"{{"packs":[{{"id":"{pack}","blobs":[{{"id":"{blob}","type":"data","offset":0,"length":{sealed},"uncompressed_length":{promised}}}]}}]}}"#
    );
    repository.forge(Kind::Index, index.as_bytes())?;
    let index = repository.index()?;
    let place = index.find(BlobKind::Data, blob).expect("it is named");
    repository.blob(&place).map(drop)
}
