//! What of which file was reserved, as it stands on disk: written before anything is reserved, so that the next guard knows what a
//! killed one left.
//!
//! A line each, appended:
//!
//! ```text
//! leandisk-guard 1 UUID MOUNT            which file system, and where it was mounted last
//! claim HANDLE END CHECKSUM              room up to END may have been reserved past the file's end
//! given HANDLE CHECKSUM                  it has none any more
//! space DAY BYTES CHECKSUM               so much may move on this day for free space, besides what other lines say
//! ```
//!
//! Handles are hexadecimal, the checksum is CRC-32C of what is before it. A line that does not fit its checksum was cut off and is
//! skipped: what it announced was not begun.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::facts::FileId;

/// The most lines that are read: what is beyond is not this program's.
const LINES_MAX: usize = 1 << 20;

/// A line of the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Room up to `end_bytes` may be reserved past the end of the file.
    Claim {
        /// Whose.
        file: FileId,
        /// Where the room ends.
        end_bytes: u64,
    },
    /// The file has no reserved room any more.
    Given {
        /// Which.
        file: FileId,
    },
    /// Bytes are about to move for free space: written before, so that a guard that is killed has not moved more than it says.
    Space {
        /// Since 1970.
        day: u64,
        /// How many.
        moved_bytes: u64,
    },
}

impl Record {
    /// As a line, with its end.
    pub fn line(&self) -> String {
        let mut line = String::new();
        match self {
            Self::Claim { file, end_bytes } => line = format!("claim {} {end_bytes}", hex(file.bytes())),
            Self::Given { file } => line.push_str(&format!("given {}", hex(file.bytes()))),
            Self::Space { day, moved_bytes } => line.push_str(&format!("space {day} {moved_bytes}")),
        }
        let _ = writeln!(line, " {:08x}", crc32c::crc32c(line.as_bytes()));
        line
    }

    /// The record of a line; `None` if it is none.
    pub fn parse(line: &str) -> Option<Self> {
        let (text, checksum) = line.rsplit_once(' ')?;
        if checksum.len() != 8 || u32::from_str_radix(checksum, 16).ok()? != crc32c::crc32c(text.as_bytes()) {
            return None;
        }
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["claim", file, end] => {
                Some(Self::Claim { file: FileId::new(&unhex(file)?)?, end_bytes: end.parse().ok()? })
            }
            ["given", file] => Some(Self::Given { file: FileId::new(&unhex(file)?)? }),
            ["space", day, bytes] => {
                Some(Self::Space { day: day.parse().ok()?, moved_bytes: bytes.parse().ok()? })
            }
            _ => None,
        }
    }
}

/// What may still be reserved, by the lines of a ledger.
pub fn claims(text: &str) -> BTreeMap<FileId, u64> {
    let mut claims = BTreeMap::new();
    for record in records(text) {
        match record {
            // Room that an earlier claim says is there whatever the later one says.
            Record::Claim { file, end_bytes } => {
                let end = claims.entry(file).or_insert(0);
                *end = end_bytes.max(*end);
            }
            Record::Given { file } => {
                claims.remove(&file);
            }
            Record::Space { .. } => {}
        }
    }
    claims
}

/// The day of the last line about free space, and what may have moved on it.
pub fn moved_for_space(text: &str) -> Option<(u64, u64)> {
    let moved = records(text).filter_map(|record| match record {
        Record::Space { day, moved_bytes } => Some((day, moved_bytes)),
        _ => None,
    });
    // A day that is over does not come again, unless the clock was wrong; then the later line counts.
    moved.fold(None, |last, (day, bytes)| match last {
        Some((known, sum)) if known == day => Some((day, bytes.saturating_add(sum))),
        _ => Some((day, bytes)),
    })
}

/// The records of a ledger. What follows the last line's end was cut off.
fn records(text: &str) -> impl Iterator<Item = Record> + '_ {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().take(LINES_MAX).filter_map(Record::parse)
}

/// Bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> FileId {
        FileId::new(&[1, number]).unwrap()
    }

    #[test]
    fn what_was_claimed_and_not_given_back_is_told() {
        let records = [
            Record::Claim { file: id(1), end_bytes: 10 },
            Record::Claim { file: id(2), end_bytes: 20 },
            Record::Claim { file: id(2), end_bytes: 30 },
            Record::Given { file: id(1) },
        ];
        let text: String = records.iter().map(Record::line).collect();
        assert_eq!(claims(&text), BTreeMap::from([(id(2), 30)]));
        // Cut off anywhere, a line counts whole or not at all.
        let first = records[0].line().len();
        for end in 0..text.len() {
            let claims = claims(&text[..end]);
            assert_eq!(claims.contains_key(&id(1)), end >= first && end < text.len(), "{end}");
        }
    }

    #[test]
    fn what_moved_for_free_space_adds_up_by_day() {
        let line = |day, moved_bytes| Record::Space { day, moved_bytes }.line();
        let text = [line(7, 10), Record::Given { file: id(1) }.line(), line(8, 5), line(8, 6)].concat();
        assert_eq!(moved_for_space(&text), Some((8, 11)));
        assert_eq!(moved_for_space(&text[..text.len() - 1]), Some((8, 5)), "cut off");
        assert_eq!(moved_for_space(&line(1, u64::MAX).repeat(2)), Some((1, u64::MAX)));
        assert!(moved_for_space("").is_none() && claims(&text).is_empty());
    }

    #[test]
    fn what_is_no_line_is_skipped() {
        let good = Record::Claim { file: id(3), end_bytes: 7 }.line();
        let broken = good.replace("7 ", "8 ");
        for bad in ["", "claim", "claim 0 0 0", "claim zz 1 00000000", &broken, "given é0 12345678"] {
            assert_eq!(claims(&format!("{bad}\n{good}")), BTreeMap::from([(id(3), 7)]), "{bad}");
        }
    }
}
