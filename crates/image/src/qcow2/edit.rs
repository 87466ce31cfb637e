//! Whether a QCOW2 image may be changed in place.
//!
//! A cluster is the virtual disk's alone if the refcount that the tables tell of it (`COPIED`) is one. That they tell the
//! truth is not taken for granted: everything that the header and the active tables claim must lie apart, and each cluster must
//! be counted at least as often as something refers to it, snapshots included. One that is counted less would be taken for free,
//! and written over. What is counted more is lost to the image, and does no harm. `qemu-img check` is the one to repair either.

use block::{Error, HostFile, Result};
use extent::{HostOffset, HostSpan, Span};

use super::bitmaps::Directory;
use super::map::{Claim, Map};
use super::parse::Header;
use super::refcounts::{self, References};
use super::snapshots::{REPAIR, Reference, Snapshots};
use crate::owners::Owners;

/// Fails with the reason if the image must not be changed in place.
pub(super) fn check(map: &Map, file: &dyn HostFile) -> Result<()> {
    check_features(map.header())?;
    Directory::read(map.header(), file)?.check_notable()?;
    check_owners(map, file)
}

fn check_features(header: &Header) -> Result<()> {
    if header.is_dirty {
        return Err(Error::refused("was not closed properly: its refcounts are out of date")
            .hint("run 'qemu-img check -r all' on it first"));
    }
    if header.has_unknown_autoclear() {
        return Err(Error::unsupported("QCOW2 with data beside the disk's that would no longer fit it")
            .field("autoclear_features", "with unknown bits", "bits 0 and 1 alone")
            .hint("open the disk once with the program that uses it, or copy it to a new one"));
    }
    Ok(())
}

/// `Refused` if two things of the image lie in one place, or something lies where the refcounts say that nothing does.
fn check_owners(map: &Map, file: &dyn HostFile) -> Result<()> {
    let header = map.header();
    let cluster_bytes = header.cluster_bytes();
    let mut metadata = Claims::new(file.len_bytes(), cluster_bytes)?;
    metadata.take(Span::new(HostOffset::ZERO, cluster_bytes))?;
    let l1_bytes = header.virtual_bytes.div_ceil(header.l2_covers_bytes()) * 8;
    metadata.take(Span::new(header.l1_at, l1_bytes))?;
    take_refcounts(header, file, &mut metadata)?;
    let snapshots = Snapshots::read(header, file)?;
    snapshots.places().try_for_each(|span| metadata.take(span))?;
    Directory::read(header, file)?.each_place(file, cluster_bytes, |span| metadata.take(span))?;
    // What no other part may lie on, if several of these may lie on one another.
    let fixed = metadata.owners.clone();
    let mut references = References::new(file.len_bytes(), cluster_bytes)?;
    let mut tables = Owners::new(metadata.file_bytes, cluster_bytes)?;
    let mut data = match header.data_file {
        Some(_) => Some(Claims::new(map.data_bytes(), cluster_bytes)?),
        None => None,
    };
    map.each_claim(|claim| match claim {
        Claim::Table { at, is_copied } => {
            metadata.take(Span::new(at, cluster_bytes))?;
            tables.share(Span::new(at, cluster_bytes));
            references.note(at, is_copied);
            Ok(())
        }
        Claim::Cluster { at, .. } if data.is_some() => {
            data.as_mut().map_or(Ok(()), |data| data.take(Span::new(at, cluster_bytes)))
        }
        Claim::Cluster { at, is_copied } => {
            references.note(at, is_copied);
            metadata.take(Span::new(at, cluster_bytes))
        }
        Claim::Compressed(span) => references.share(span, 1),
    })?;
    check_apart(&metadata.owners, references.shared())?;
    snapshots.each_reference(header, file, |reference, count| match reference {
        Reference::Table(span) => {
            tables.share(span);
            references.share_apart(span, count)
        }
        Reference::Data(span) => references.share(span, count),
    })?;
    check_apart(&fixed, references.shared())?;
    check_apart(&tables, references.shared())?;
    references.check(header, file, &metadata.owners)
}

fn check_apart(one: &Owners, other: &Owners) -> Result<()> {
    one.common(other).map_or(Ok(()), |at| Err(two_owners(at)))
}

fn take_refcounts(header: &Header, file: &dyn HostFile, claims: &mut Claims) -> Result<()> {
    let at = header.refcount_table_at;
    let bad = || Error::refused("its table of refcounts lies past the end of the file").at(at).hint(REPAIR);
    claims.take(Span::checked(at, header.refcount_table_bytes()).ok_or_else(bad)?)?;
    refcounts::each_block(header, file, |_, block| {
        claims.take(Span::checked(block, header.cluster_bytes()).ok_or_else(bad)?)
    })
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

fn two_owners(at: HostOffset) -> Error {
    Error::refused("two parts of the image lie in one place").at(at).hint(REPAIR)
}
