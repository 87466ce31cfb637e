//! Whether a QCOW2 image may be changed in place.
//!
//! A cluster is the virtual disk's alone if the refcount that the tables tell of it (`COPIED`) is one. That they tell the
//! truth is not taken for granted: everything that the header and the active tables claim must lie apart. Refcounts
//! themselves are not read; `qemu-img check` is the one to repair them.

use block::{Error, HostFile, Result, read_vec};
use extent::{HostOffset, HostSpan, Span};

use super::layout::REFCOUNT_BLOCK_OFFSET;
use super::map::{Claim, Map};
use super::parse::Header;
use crate::owners::Owners;

/// The refcount table is read in pieces of this size.
const PIECE_BYTES: u64 = 64 << 10;

/// Fails with the reason if the image must not be changed in place.
pub(super) fn check(map: &Map, file: &dyn HostFile) -> Result<()> {
    check_features(map.header())?;
    check_owners(map, file)
}

fn check_features(header: &Header) -> Result<()> {
    if header.is_dirty {
        return Err(Error::refused("was not closed properly: its refcounts are out of date")
            .hint("run 'qemu-img check -r all' on it first"));
    }
    if let Some(bitmaps) = header.bitmaps.filter(|bitmaps| bitmaps.is_consistent) {
        return Err(Error::refused(format!(
            "has {} persistent bitmaps, in which changes for incremental backups are noted; they would miss this one",
            bitmaps.count
        ))
        .hint("remove them with 'qemu-img bitmap --remove', and make the next backup a full one"));
    }
    if header.has_unknown_autoclear() {
        return Err(Error::unsupported("QCOW2 with data beside the disk's that would no longer fit it")
            .field("autoclear_features", "with unknown bits", "bits 0 and 1 alone")
            .hint("open the disk once with the program that uses it, or copy it to a new one"));
    }
    Ok(())
}

/// `Refused` if two things of the image lie in one place.
fn check_owners(map: &Map, file: &dyn HostFile) -> Result<()> {
    let header = map.header();
    let cluster_bytes = header.cluster_bytes();
    let mut metadata = Claims::new(file.len_bytes(), cluster_bytes)?;
    metadata.take(Span::new(HostOffset::ZERO, cluster_bytes))?;
    let l1_bytes = header.virtual_bytes.div_ceil(header.l2_covers_bytes()) * 8;
    metadata.take(Span::new(header.l1_at, l1_bytes))?;
    take_refcounts(header, file, &mut metadata)?;
    let mut data = match header.data_file {
        Some(_) => Some(Claims::new(map.data_bytes(), cluster_bytes)?),
        None => None,
    };
    let mut compressed = Owners::new(file.len_bytes(), cluster_bytes)?;
    map.each_claim(|claim| match claim {
        Claim::Table(span) => metadata.take(span),
        Claim::Cluster(at) => data.as_mut().unwrap_or(&mut metadata).take(Span::new(at, cluster_bytes)),
        Claim::Compressed(span) => {
            compressed.share(span);
            Ok(())
        }
    })?;
    metadata.owners.common(&compressed).map_or(Ok(()), |at| Err(two_owners(at)))
}

fn take_refcounts(header: &Header, file: &dyn HostFile, claims: &mut Claims) -> Result<()> {
    let at = header.refcount_table_at;
    let bad = || Error::refused("its table of refcounts lies past the end of the file").at(at);
    let table = Span::checked(at, header.refcount_table_bytes()).ok_or_else(bad)?;
    claims.take(table)?;
    for piece in table.split(PIECE_BYTES) {
        let bytes = read_vec(file, piece.start(), piece.len_bytes(), "QCOW2 refcount table")?;
        for entry in bytes.as_chunks().0 {
            let block = u64::from_be_bytes(*entry) & REFCOUNT_BLOCK_OFFSET;
            if block != 0 {
                claims
                    .take(Span::checked(HostOffset::new(block), header.cluster_bytes()).ok_or_else(bad)?)?;
            }
        }
    }
    Ok(())
}

/// Clusters of one file, each claimed by one.
struct Claims {
    owners: Owners,
    file_bytes: u64,
}

impl Claims {
    fn new(file_bytes: u64, cluster_bytes: u64) -> Result<Self> {
        // A file may end within its last cluster.
        let file_bytes = file_bytes.next_multiple_of(cluster_bytes);
        Ok(Self { owners: Owners::new(file_bytes, cluster_bytes)?, file_bytes })
    }

    fn take(&mut self, span: HostSpan) -> Result<()> {
        if span.end().get() > self.file_bytes {
            return Err(Error::refused("a part of the image lies past the end of its file")
                .at(span.start())
                .hint(REPAIR));
        }
        self.owners.take(span).map_err(two_owners)
    }
}

const REPAIR: &str = "'qemu-img check' tells what is wrong; copy the disk to a new one";

fn two_owners(at: HostOffset) -> Error {
    Error::refused("two parts of the image lie in one place").at(at).hint(REPAIR)
}
