//! Times as DOS keeps them: two seconds, minutes and hours in 16 bits, days, months and years from 1980 on in 16 more.

use crate::browse::Time;

/// The moment; `None` of a date that there is not.
pub(crate) fn time(date: u16, time: u16) -> Option<Time> {
    let (year, month, day) = (i64::from(date >> 9) + 1980, i64::from(date >> 5 & 15), i64::from(date & 31));
    let (hour, minute, second) = (i64::from(time >> 11), i64::from(time >> 5 & 63), i64::from(time & 31) * 2);
    if !(1..=12).contains(&month) || day == 0 || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days = days_before(year, month) + day - 1;
    Some(Time { seconds: days * 86400 + hour * 3600 + minute * 60 + second, nanoseconds: 0 })
}

/// Days from 1970 to the first of a month, of the years that 7 bits reach.
fn days_before(year: i64, month: i64) -> i64 {
    let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let years: i64 = (1970..year).map(|year| 365 + i64::from(is_leap(year))).sum();
    let february = 28 + i64::from(is_leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = usize::try_from(month - 1).unwrap_or_default();
    years + lengths.iter().take(before).sum::<i64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        // As `date -u -d '2000-02-29 23:59:58' +%s` says.
        let date = (20 << 9) | (2 << 5) | 29;
        assert_eq!(time(date, (23 << 11) | (59 << 5) | 29).map(|time| time.seconds), Some(951_868_798));
        assert_eq!(time(0x21, 0).map(|time| time.seconds), Some(315_532_800));
        assert_eq!(time(0, 0), None);
    }
}
