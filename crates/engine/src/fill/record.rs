//! What is stored of a target that is being filled: of what, into which file, and which units have arrived.
//!
//! The file begins with a page that says the former, with a digest, and never changes. Bits follow, which only ever turn from 0 to 1, and only
//! for what is on stable storage: so any part of a write of them that a cut leaves is true.

use block::{Error, ReadAt, Result, TargetFile};
use extent::{Host, HostOffset};
use serde::{Deserialize, Serialize};

use super::units::Units;

/// The page before the bits.
pub(crate) const HEAD_BYTES: usize = 4096;
/// Bits are written by so many bytes.
pub(crate) const PAGE_BYTES: usize = 4096;
/// The most bits that are believed: 8 MiB of them.
const UNIT_COUNT_MAX: u64 = 64 << 20;
/// What a record begins with.
const MAGIC: &str = "leandisk fill 1";

/// What a fill is known by.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FillIdentity {
    /// What it is filled from, as who fills it knows that.
    pub source: String,
    /// The file that is filled, told from every other.
    pub target: String,
    /// The target's format.
    pub format: String,
    /// Bytes of the disk.
    pub virtual_bytes: u64,
    /// Bytes of a unit.
    pub unit_bytes: u64,
}

impl FillIdentity {
    /// How many units there are.
    pub(crate) fn unit_count(&self) -> u64 {
        self.virtual_bytes.div_ceil(self.unit_bytes.max(1))
    }
}

/// A unit for a disk of so many bytes: as small as the bits of all may be.
pub fn fill_unit_bytes(virtual_bytes: u64) -> u64 {
    let least = virtual_bytes.div_ceil(UNIT_COUNT_MAX).max(1).next_power_of_two();
    least.max(64 << 10)
}

/// The contents of a new record.
pub(crate) fn new_record(identity: &FillIdentity, arrived: &Units) -> Result<Vec<u8>> {
    let told =
        serde_json::to_string(identity).map_err(|error| Error::invalid(format!("as JSON: {error}")))?;
    let head = format!("{MAGIC} {:032x}\n{told}\n", xxhash_rust::xxh3::xxh3_128(told.as_bytes()));
    if head.len() > HEAD_BYTES {
        return Err(Error::unsupported("a name of this length"));
    }
    let mut bytes = head.into_bytes();
    bytes.resize(HEAD_BYTES, 0);
    bytes.extend_from_slice(arrived.as_bytes());
    Ok(bytes)
}

/// What a record says; `None` if it is none, or is not whole.
pub(crate) fn read_record(file: &(impl ReadAt<Host> + ?Sized)) -> Result<Option<(FillIdentity, Units)>> {
    let len_bytes = file.len_bytes();
    if len_bytes < HEAD_BYTES as u64 || len_bytes > HEAD_BYTES as u64 + UNIT_COUNT_MAX / 8 {
        return Ok(None);
    }
    let mut head = vec![0; HEAD_BYTES];
    file.read_at(HostOffset::ZERO, &mut head)?;
    let Some(identity) = parse_head(&head) else { return Ok(None) };
    let mut bits = vec![0; usize::try_from(len_bytes).expect("bounded") - HEAD_BYTES];
    file.read_at(HostOffset::new(HEAD_BYTES as u64), &mut bits)?;
    let units = Units::from_bytes(bits, identity.unit_count());
    Ok(units.map(|units| (identity, units)))
}

fn parse_head(head: &[u8]) -> Option<FillIdentity> {
    let text = std::str::from_utf8(head.split(|byte| *byte == 0).next()?).ok()?;
    let mut lines = text.lines();
    let (first, told) = (lines.next()?, lines.next()?);
    let digest = first.strip_prefix(MAGIC)?.trim();
    let is_whole = digest == format!("{:032x}", xxhash_rust::xxh3::xxh3_128(told.as_bytes()));
    let identity: FillIdentity = serde_json::from_str(told).ok().filter(|_| is_whole)?;
    identity.unit_bytes.is_power_of_two().then_some(identity)
}

/// Writes the bits in which `now` differs from `before`, and waits until they are on stable storage.
pub(crate) fn store_units(file: &dyn TargetFile, now: &Units, before: &Units) -> Result<()> {
    for range in now.changed_pages(before, PAGE_BYTES) {
        let at = HostOffset::new((HEAD_BYTES + range.start) as u64);
        file.write_at(at, &now.as_bytes()[range])?;
    }
    file.flush()
}
