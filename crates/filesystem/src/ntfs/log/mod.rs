//! What the log of a volume in use says: the clusters that its records set, clear or map.
//!
//! Invariants:
//! - nothing is replayed, and nothing is believed but that what a record names may be in use;
//! - every page that was ever written checks out, every record that begins in one is understood, and from the oldest record that NTFS
//!   needs they follow each other without a gap up to the newest one; else there is an error;
//! - memory grows with the log, never with the volume.

mod client;
mod layout;
mod named;
mod operation;
mod pages;
mod restart;

use block::{Error, Result};

use super::mft::Mft;
use super::volume;
use crate::ntfs::corrupt::Corrupt;
use client::Client;
use layout::{CLIENT_RECORD, CLIENT_RESTART, Lsn};
pub(super) use named::Named;
use pages::Pages;
use restart::Restart;

fn record_error(lsn: Lsn) -> Error {
    Error::corrupt(Corrupt::LogRecord { lsn })
}

/// Reads the whole log of a volume on which it is open.
pub(super) fn read(mft: &Mft) -> Result<Named> {
    let log = volume::log(mft)?;
    log.require_plain(0)?;
    let restart = Restart::read(&log)?;
    let mut pages = Pages::read(&log, &restart)?;
    for lsn in [restart.oldest_lsn, restart.client_lsn, restart.current_lsn] {
        if !pages.places.contains_key(&lsn) {
            return Err(Error::corrupt(Corrupt::LogRecordMissing { lsn }));
        }
    }
    let bitmap = volume::clusters(mft)?;
    let mut client = Client::new(mft, &bitmap);
    let lsns: Vec<Lsn> = pages.places.keys().copied().collect();
    let mut expected = None;
    for (index, lsn) in lsns.iter().copied().enumerate() {
        let is_needed = lsn >= restart.oldest_lsn;
        if expected.is_some_and(|next: [Option<Lsn>; 2]| !next.contains(&Some(lsn))) {
            return Err(Error::corrupt(Corrupt::LogGap { lsn }));
        }
        let Some(whole) = pages.whole(lsn)? else {
            // Written over where it goes on, or cut off where the log ends.
            if is_needed && (index + 1 < lsns.len() || lsn <= restart.current_lsn) {
                return Err(Error::corrupt(Corrupt::LogGap { lsn }));
            }
            continue;
        };
        if is_needed {
            expected = Some(whole.next);
        }
        match whole.kind {
            CLIENT_RECORD => client.record(lsn, whole.flags, &whole.data)?,
            CLIENT_RESTART => client.restart(lsn, &whole.data)?,
            kind => return Err(record_error(lsn).field("type", kind, "1 or 2")),
        }
        client.named.record_count += 1;
    }
    Ok(client.named)
}
