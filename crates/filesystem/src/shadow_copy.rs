//! Snapshots that a file system keeps on its own volume.

use std::fmt::Write as _;

/// A snapshot of a volume that is kept on the volume itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShadowCopy {
    /// Under which identifier the guest lists it; `None` if that could not be read.
    pub id: Option<String>,
    /// What it shares with copies of other volumes that were made at the same time.
    pub set_id: Option<String>,
    /// The identifier of the store that holds it.
    pub store_id: String,
    /// When it was made, as RFC 3339 in UTC; `None` if that is no time.
    pub created: Option<String>,
    /// Bytes of the volume when it was made.
    pub size_bytes: u64,
    /// Bytes of the file that holds what has changed since; `None` if that was not found.
    pub store_bytes: Option<u64>,
    /// The computer on which it was made. Untrusted text.
    pub machine: Option<String>,
    /// Why it may not be readable.
    pub doubt: Option<String>,
}

/// Units of 100 ns in a second.
const FILETIME_PER_SECOND: u64 = 10_000_000;

/// A time in units of 100 ns since 1601 (UTC) as RFC 3339, whole seconds. `None` from the year 10000 on, which RFC 3339 does not know.
pub(crate) fn filetime_text(filetime: u64) -> Option<String> {
    let seconds = filetime / FILETIME_PER_SECOND;
    let (year, month, day) = civil_date(seconds / 86_400)?;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"))
}

/// Year, month and day of the day that comes so many days after 1 January 1601. That day begins a cycle of 400 years,
/// after which the calendar repeats.
fn civil_date(days: u64) -> Option<(u64, u64, u64)> {
    const DAYS_400_YEARS: u64 = 146_097;
    const DAYS_100_YEARS: u64 = 36_524;
    const DAYS_4_YEARS: u64 = 1461;
    let (cycles, days) = (days / DAYS_400_YEARS, days % DAYS_400_YEARS);
    // The last century, and the last year of four, is a day longer.
    let centuries = (days / DAYS_100_YEARS).min(3);
    let days = days - centuries * DAYS_100_YEARS;
    let (fours, days) = (days / DAYS_4_YEARS, days % DAYS_4_YEARS);
    let years = (days / 365).min(3);
    let mut day = days - years * 365;
    let year = 1601 + 400 * cycles + 100 * centuries + 4 * fours + years;
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let february = if is_leap { 29 } else { 28 };
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    for (month, len) in (1..).zip(months) {
        if day < len {
            return (year <= 9999).then_some((year, month, day + 1));
        }
        day -= len;
    }
    unreachable!("a year has no more days than its months")
}

/// A GUID as Windows writes it: its first three numbers are little-endian.
pub(crate) fn guid_text(guid: &[u8; 16]) -> String {
    let mut text = String::new();
    for (at, index) in [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15].into_iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{:02x}", guid[index]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let text = |seconds: u64| filetime_text(seconds * FILETIME_PER_SECOND).unwrap();
        // As `date -u -d @N` says, 11644473600 seconds later.
        for (unix, expected) in [
            (1_386_052_509, "2013-12-03T06:35:09Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (0, "1970-01-01T00:00:00Z"),
        ] {
            assert_eq!(text(unix + 11_644_473_600), expected);
        }
        assert_eq!(filetime_text(0).unwrap(), "1601-01-01T00:00:00Z");
        assert_eq!(filetime_text(u64::MAX), None);
    }

    #[test]
    fn guids_are_written_as_windows_does() {
        let guid =
            [0x6b, 0x87, 0x08, 0x38, 0x76, 0xc1, 0x48, 0x4e, 0xb7, 0xae, 0x04, 0x04, 0x6e, 0x6c, 0xc7, 0x52];
        assert_eq!(guid_text(&guid), "3808876b-c176-4e48-b7ae-04046e6cc752");
    }
}
