//! The headers of a VHDX whose contents are about to change (2.2.2).
//!
//! The header that does not count is written anew with the next sequence number, and from then on counts; then the other
//! one is, so that both tell the same. At every moment one valid header is on stable storage, since the one that counts is
//! never written. A header that was torn has a wrong checksum, and then the other one counts as before.

use block::{Error, HostFile, Result};
use extent::HostOffset;
use uuid::Builder;
use zerocopy::IntoBytes;

use super::layout::{Guid, HEADERS_AT, Header};
use super::parse::{checksum, current_header};
use crate::Renewal;

/// Both headers with a new FileWriteGuid, because the file is written, and a new DataWriteGuid, because what the guest
/// sees is; that which does not count now first.
pub(super) fn renewals(file: &dyn HostFile, identity_seed: u128) -> Result<Vec<Renewal>> {
    let (mut header, index) = current_header(file)?;
    if !header.log_guid.uuid().is_nil() {
        return Err(Error::refused("has a pending log").at(HostOffset::new(HEADERS_AT[index])));
    }
    let id = |which| Builder::from_random_bytes(identity_seed.wrapping_add(which).to_be_bytes()).into_uuid();
    header.file_write_guid = Guid::from_uuid(id(0));
    header.data_write_guid = Guid::from_uuid(id(1));
    let mut renewals = Vec::new();
    for slot in [1 - index, index] {
        let sequence = header.sequence_number.get().checked_add(1).ok_or_else(|| {
            Error::unsupported("VHDX header").field("sequence number", u64::MAX, "one below it")
        })?;
        header.sequence_number.set(sequence);
        header.checksum.set(checksum(header.as_bytes()));
        let at = HostOffset::new(HEADERS_AT[slot]);
        renewals.push(Renewal { at, bytes: Header::as_bytes(&header).to_vec() });
    }
    Ok(renewals)
}
