//! `$Volume`: label, version and flags; and what `$LogFile` adds to them.

use block::{Error, Result};
use extent::{ExtentSet, Volume};
use zerocopy::FromBytes;

use super::layout::{ATTR_DATA, ATTR_VOLUME_INFORMATION, ATTR_VOLUME_NAME, VolumeInformation};
use super::logfile;
use super::mft::Mft;
use super::record::{RecordNumber, utf16_text};
use super::roots::stream_spans;
use super::stream::Stream;

/// Flags of `$VOLUME_INFORMATION` under which the volume is as its bitmap says: used by NT 4, no short names,
/// no transactions, no scrubbing, no corruption log, no heat gathering, once modified by chkdsk.
/// Names as in M. Suhanov, "NTFS today" (2019).
const FLAGS_HARMLESS: u16 = 0x0008 | 0x0080 | 0x0400 | 0x0800 | 0x1000 | 0x2000 | 0x8000;

/// Every other flag says that something is wrong or under way; these have names.
const FLAGS_DOUBTED: [(u16, &str); 9] = [
    (0x0001, "it is marked dirty"),
    (0x0002, "its log is to be resized"),
    (0x0004, "it is to be upgraded"),
    (0x0010, "its change journal is being deleted"),
    (0x0020, "its object identifiers are to be repaired"),
    (0x0040, "it was found corrupt"),
    (0x0100, "it is to be checked in full"),
    (0x0200, "it is to be scanned for errors"),
    (0x4000, "a check of it was under way"),
];

/// What `$Volume` says.
pub(super) struct VolumeFacts {
    pub(super) label: Option<String>,
    major: u8,
    minor: u8,
    flags: u16,
}

/// Reads record 3.
pub(super) fn read(mft: &Mft) -> Result<VolumeFacts> {
    let owned = mft.system_record(RecordNumber::VOLUME)?;
    let record = owned.view();
    let label = record.find(ATTR_VOLUME_NAME, "")?.map(|attribute| attribute.resident()).transpose()?;
    let attribute = record
        .find(ATTR_VOLUME_INFORMATION, "")?
        .ok_or_else(|| record.error().field("volume information", "missing", "in $Volume"))?;
    let value = attribute.resident()?;
    let (raw, _) = VolumeInformation::ref_from_prefix(value)
        .map_err(|_| attribute.error("size", value.len(), "at least 12"))?;
    Ok(VolumeFacts {
        label: label.map(utf16_text).filter(|label| !label.is_empty()),
        major: raw.major_version,
        minor: raw.minor_version,
        flags: raw.flags.get(),
    })
}

impl VolumeFacts {
    pub(super) fn version(&self) -> String {
        format!("{}.{}", self.major, self.minor)
    }

    /// NT 4 wrote 1.2, Windows 2000 3.0, and everything since 3.1.
    pub(super) fn require_known_version(&self) -> Result<()> {
        match (self.major, self.minor) {
            (1, 2) | (3, 0 | 1) => Ok(()),
            _ => Err(Error::unsupported("NTFS $Volume").field("version", self.version(), "1.2, 3.0 or 3.1")),
        }
    }

    /// Why its flags say that it is not as its bitmap says.
    pub(super) fn doubt(&self) -> Option<String> {
        let flags = self.flags & !FLAGS_HARMLESS;
        if flags == 0 {
            return None;
        }
        let known = FLAGS_DOUBTED.iter().find(|(flag, _)| flags & flag != 0);
        let why = known.map_or("a flag that is not known", |(_, why)| why);
        Some(format!("{why} (volume flags {:#06x})", self.flags))
    }
}

/// Why `$LogFile` says that the volume was not dismounted cleanly.
pub(super) fn log_doubt(mft: &Mft) -> Result<Option<String>> {
    logfile::unclean_reason(&log(mft)?)
}

/// Where an empty log lies; nothing if there is anything in it.
pub(super) fn empty_log(mft: &Mft) -> Result<ExtentSet<Volume>> {
    let log = log(mft)?;
    if log.is_resident() || log.flags() != 0 || !logfile::is_empty(&log)? {
        return Ok(ExtentSet::new());
    }
    Ok(stream_spans(mft, &log, 0).into_iter().collect())
}

/// `$Bitmap`'s data.
pub(super) fn clusters(mft: &Mft) -> Result<Stream> {
    let owned = mft.system_record(RecordNumber::BITMAP)?;
    let record = owned.view();
    let missing = || record.error().field("attribute 0x80", "missing", "the cluster bitmap");
    mft.stream(&record, ATTR_DATA, "")?.ok_or_else(missing)
}

/// `$LogFile`'s data.
pub(super) fn log(mft: &Mft) -> Result<Stream> {
    let owned = mft.system_record(RecordNumber::LOG_FILE)?;
    let record = owned.view();
    let missing = || record.error().field("attribute 0x80", "missing", "the log");
    mft.stream(&record, ATTR_DATA, "")?.ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_flags_leave_no_doubt() {
        let facts = |flags| VolumeFacts { label: None, major: 3, minor: 1, flags };
        assert_eq!(facts(0x8088).doubt(), None);
        assert_eq!(facts(0x0001).doubt().unwrap(), "it is marked dirty (volume flags 0x0001)");
        for bit in 0..16 {
            let flag = 1 << bit;
            let named = FLAGS_DOUBTED.iter().any(|(known, _)| *known == flag);
            assert_ne!(named, flag & FLAGS_HARMLESS != 0, "{flag:#x}");
            assert_eq!(facts(flag).doubt().is_some(), named);
        }
    }
}
