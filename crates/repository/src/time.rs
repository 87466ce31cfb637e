//! Moments as repositories write them: RFC 3339, with nanoseconds and an offset.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY_SECONDS: i64 = 86400;

/// Now, in UTC.
pub(crate) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format(i64::try_from(since.as_secs()).unwrap_or(0), since.subsec_nanos())
}

/// Now, in UTC and to the second, as ISO 8601's basic format has it: `20060102T150405Z`.
pub fn basic_now() -> String {
    let text = now();
    let digits: String = text.split('.').next().unwrap_or_default().replace(['-', ':'], "");
    digits + "Z"
}

/// A moment in seconds since 1970, in UTC.
pub(crate) fn format(seconds: i64, nanoseconds: u32) -> String {
    let (days, of_day) = (seconds.div_euclid(DAY_SECONDS), seconds.rem_euclid(DAY_SECONDS));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanoseconds:09}Z")
}

/// Nanoseconds since 1970; `None` if it is no such text.
pub(crate) fn parse(text: &str) -> Option<i128> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let bytes = text.as_bytes();
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if separators.iter().any(|&(at, byte)| bytes.get(at) != Some(&byte)) {
        return None;
    }
    let days = days_of(number(0..4)?, number(5..7)?, number(8..10)?);
    let seconds = days * DAY_SECONDS + number(11..13)? * 3600 + number(14..16)? * 60 + number(17..19)?;
    let rest = text.get(19..)?;
    let (fraction, zone) = match rest.strip_prefix('.') {
        Some(digits) => digits.split_at(digits.find(|byte: char| !byte.is_ascii_digit())?),
        None => ("", rest),
    };
    let nanoseconds: i64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    let offset = match zone {
        "Z" => 0,
        _ => {
            let sign = match zone.get(..1)? {
                "+" => 1,
                "-" => -1,
                _ => return None,
            };
            sign * (zone.get(1..3)?.parse::<i64>().ok()? * 3600 + zone.get(4..6)?.parse::<i64>().ok()? * 60)
        }
    };
    Some(i128::from(seconds - offset) * 1_000_000_000 + i128::from(nanoseconds))
}

/// A day, as who wrote the moment has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment {
    pub(crate) year: i64,
    pub(crate) month: i64,
    pub(crate) day: i64,
}

/// The day of a moment; `None` if it is no such text.
pub(crate) fn moment(text: &str) -> Option<Moment> {
    parse(text)?;
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse().ok();
    Some(Moment { year: number(0..4)?, month: number(5..7)?, day: number(8..10)? })
}

impl Moment {
    /// The week that its Thursday is in, and the year of that.
    pub(crate) fn iso_week(self) -> (i64, i64) {
        let days = days_of(self.year, self.month, self.day);
        // The first of 1970 was a Thursday.
        let thursday = days - (days + 3).rem_euclid(7) + 3;
        let (year, ..) = civil(thursday);
        (year, (thursday - days_of(year, 1, 1)) / 7 + 1)
    }
}

/// How many nanoseconds ago that was; 0 if it is to come or is no time.
pub(crate) fn age_ns(text: &str) -> i128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let now = i128::try_from(now).unwrap_or(i128::MAX);
    parse(text).map_or(0, |then| (now - then).max(0))
}

/// Year, month and day of a day since 1970 (Howard Hinnant's `civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let (day, month) =
        (of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The other way round.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weeks_are_those_of_their_thursdays() {
        let week = |text: &str| moment(&format!("{text}T00:00:00Z")).unwrap().iso_week();
        assert_eq!(week("2024-12-30"), (2025, 1));
        assert_eq!(week("2021-01-03"), (2020, 53));
        assert_eq!(week("2021-01-04"), (2021, 1));
        assert_eq!(week("2026-11-25"), (2026, 48));
    }

    #[test]
    fn there_and_back() {
        for seconds in [0, 951_782_399, 951_782_400, 1_709_164_800, 4_102_444_799] {
            let text = format(seconds, 5);
            assert_eq!(parse(&text), Some(i128::from(seconds) * 1_000_000_000 + 5), "{text}");
        }
        assert_eq!(format(951_782_400, 0), "2000-02-29T00:00:00.000000000Z");
        assert_eq!(parse("1970-01-01T02:30:00.5+02:00"), Some(1_800_500_000_000));
        assert_eq!(parse("1970-01-01T00:00:00-01:00"), Some(3_600_000_000_000));
        for wrong in ["", "yesterday", "1970-01-01 00:00:00Z", "1970-01-01T00:00:00", "1970-01-01T00:00:00.5"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
