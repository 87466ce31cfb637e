//! The up-case table (section 7.2), and the hashes of names that it gives.

use block::{Error, Result, read_vec};
use extent::VolumeOffset;

use super::corrupt::Corrupt;
use crate::Source;

/// The upper case of every unit of UTF-16.
pub(super) struct Upcase(Vec<u16>);

impl Upcase {
    /// Reads the table, whose checksum must agree. `0xffff` stands before a count of units that are their own upper case.
    pub(super) fn read(source: &Source, at: VolumeOffset, len_bytes: u64, expected: u32) -> Result<Self> {
        let bytes = read_vec(source, at, len_bytes, "exFAT up-case table")?;
        let sum = bytes.iter().fold(0_u32, |sum, byte| sum.rotate_right(1).wrapping_add(u32::from(*byte)));
        if sum != expected {
            let table = Error::corrupt(Corrupt::Table("up-case table"));
            return Err(table.field("checksum", sum, format!("{expected:#010x}")));
        }
        let mut upper: Vec<u16> = (0..=u16::MAX).collect();
        let (units, _) = bytes.as_chunks::<2>();
        let mut units = units.iter().map(|unit| u16::from_le_bytes(*unit));
        let mut at = 0;
        while let Some(unit) = units.next() {
            match (unit, upper.get_mut(at)) {
                (0xffff, _) => at += usize::from(units.next().unwrap_or(0)),
                (unit, Some(place)) => {
                    *place = unit;
                    at += 1;
                }
                (_, None) => break,
            }
        }
        Ok(Self(upper))
    }

    /// `NameHash` (section 7.6.4) of a name in UTF-16.
    pub(super) fn hash(&self, name: &[u8]) -> u16 {
        let (units, _) = name.as_chunks::<2>();
        let upper = units.iter().map(|unit| self.0[usize::from(u16::from_le_bytes(*unit))]);
        upper
            .flat_map(u16::to_le_bytes)
            .fold(0, |hash: u16, byte| hash.rotate_right(1).wrapping_add(u16::from(byte)))
    }
}
