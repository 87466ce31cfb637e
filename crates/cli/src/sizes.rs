//! Sizes as people write them on the command line: `4096`, `64K`, `1.5G`, `40GiB`.
//!
//! Units are powers of 1024, as qemu-img has them; `KB` means `KiB`. A fraction is rounded up to whole sectors.

use leandisk::defrag::Growth;

/// Sizes of virtual disks are whole sectors.
const SECTOR_BYTES: u64 = 512;
/// The guest's page, in which benchmarks write.
const PAGE_BYTES: u64 = 4096;
/// What is written at a time is no longer than what clients may send.
const WRITE_BYTES_MAX: u64 = 32 << 20;
/// A request of a guest is no longer.
const REQUEST_BYTES_MAX: u64 = 1 << 30;
/// A file's offset is no larger.
const BYTES_MAX: u64 = 1 << 63;
/// More digits behind the point than make a difference.
const FRACTION_DIGITS_MAX: usize = 12;

/// The size of a disk.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    whole(parse(text)?, SECTOR_BYTES, "the size of a disk")
}

/// The size of a disk that is written in whole pages.
pub(crate) fn parse_page_size(text: &str) -> Result<u64, String> {
    whole(parse(text)?, PAGE_BYTES, "the size of a disk here")
}

/// The size of the disk of `bench workloads`: a size, or whole percent of that of the published measurements.
pub(crate) fn parse_workload_size(text: &str) -> Result<u64, String> {
    let bytes = match text.strip_suffix('%') {
        None => parse_page_size(text)?,
        Some(percent) => {
            let percent = percent.parse::<u64>().ok().filter(|percent| (1..=1000).contains(percent));
            let percent =
                percent.ok_or_else(|| format!("'{text}' is no whole percentage from 1% to 1000%"))?;
            bench::WORKLOAD_DISK_BYTES_FULL / 100 / PAGE_BYTES * PAGE_BYTES * percent
        }
    };
    match bytes >= bench::WORKLOAD_DISK_BYTES_MIN {
        true => Ok(bytes),
        false => {
            Err(format!("a disk for all of it has at least {} MiB", bench::WORKLOAD_DISK_BYTES_MIN >> 20))
        }
    }
}

/// By how much a disk may grow: a size, or a part of it in percent with up to two digits behind the point.
pub(crate) fn parse_growth(text: &str) -> Result<Growth, String> {
    let Some(percent) = text.strip_suffix('%') else { return parse(text).map(Growth::Bytes) };
    let wrong = || format!("'{text}' is no part of a disk: write 2%, 0.5% or the like, up to 100%");
    let (whole, hundredths) = percent.split_once('.').unwrap_or((percent, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(hundredths) || hundredths.len() > 2 {
        return Err(wrong());
    }
    let points = format!("{whole}{hundredths:0<2}").parse().ok().filter(|points: &u32| *points <= 10_000);
    points.map(Growth::BasisPoints).ok_or_else(wrong)
}

/// How much is written at a time.
pub(crate) fn parse_write_size(text: &str) -> Result<u64, String> {
    within(whole(parse(text)?, PAGE_BYTES, "the size of a write")?, WRITE_BYTES_MAX, "a write")
}

/// How much is written between two flushes.
pub(crate) fn parse_interval(text: &str) -> Result<u64, String> {
    whole(parse(text)?, SECTOR_BYTES, "what is written between two flushes")
}

/// How much a guest asks for at a time.
pub(crate) fn parse_request_size(text: &str) -> Result<u64, String> {
    let bytes = within(parse(text)?, REQUEST_BYTES_MAX, "a request")?;
    if bytes < SECTOR_BYTES {
        return Err(format!("a request has at least {SECTOR_BYTES} bytes"));
    }
    Ok(bytes)
}

fn whole(bytes: u64, of: u64, what: &str) -> Result<u64, String> {
    match bytes {
        0 => Err(format!("{what} is at least {of} bytes")),
        _ if bytes.is_multiple_of(of) => Ok(bytes),
        _ if bytes < of => Err(format!("{what} is a multiple of {of} bytes, such as {of}")),
        _ => {
            let below = bytes / of * of;
            Err(format!(
                "{what} is a multiple of {of} bytes, such as {below} or {}",
                below.saturating_add(of)
            ))
        }
    }
}

fn within(bytes: u64, max: u64, what: &str) -> Result<u64, String> {
    if bytes <= max { Ok(bytes) } else { Err(format!("{what} has at most {} MiB", max >> 20)) }
}

/// A number of bytes. What has a fraction is rounded up to whole sectors.
fn parse(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = unit_shift(&text[number.len()..])?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || (number.contains('.') && !is_number(fraction)) {
        return Err(format!("'{text}' is no size: write a number with K, M, G, T or P, such as 40G or 1.5T"));
    }
    if shift == 0 && !fraction.is_empty() {
        return Err("there are no fractions of a byte: write a unit, K, M, G, T or P".to_owned());
    }
    let too_large = || format!("'{text}' is too large: a disk has less than 8 EiB");
    let whole: u128 = whole.parse().map_err(|_| too_large())?;
    let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS_MAX)];
    let scale = fraction.bytes().fold(1_u128, |scale, _| scale * 10);
    let parts: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| too_large())? };
    let bytes = whole.checked_mul(1 << shift).ok_or_else(too_large)?;
    let sector = u128::from(SECTOR_BYTES);
    let bytes = match (parts << shift).div_ceil(scale) {
        0 => Some(bytes),
        rest => bytes.checked_add(rest).and_then(|bytes| bytes.checked_next_multiple_of(sector)),
    };
    bytes.and_then(|bytes| u64::try_from(bytes).ok()).filter(|bytes| *bytes < BYTES_MAX).ok_or_else(too_large)
}

fn unit_shift(unit: &str) -> Result<u32, String> {
    let upper = unit.to_ascii_uppercase();
    if matches!(&*upper, "" | "B") {
        return Ok(0);
    }
    let letter = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
    match letter {
        "K" => Ok(10),
        "M" => Ok(20),
        "G" => Ok(30),
        "T" => Ok(40),
        "P" => Ok(50),
        _ => Err(format!(
            "'{unit}' is no unit: use K, M, G, T or P (powers of 1024; KB and KiB mean the same)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_qemu_img_reads_them() {
        let cases = [
            ("512", 512),
            ("512B", 512),
            ("1K", 1024),
            ("1.5G", 3 << 29),
            ("0.5k", 512),
            ("40GB", 40 << 30),
            ("40GiB", 40 << 30),
            ("40gib", 40 << 30),
            ("1.5T", 3 << 39),
            ("2P", 2 << 50),
            ("7.999P", 9_006_073_354_834_432),
            // 1,181,116,006.4 bytes, in whole sectors.
            ("1.1G", 1_181_116_416),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_says_what_one_looks_like() {
        let cases = [
            ("", "is no size"),
            ("G", "is no size"),
            ("1.G", "is no size"),
            (".5G", "is no size"),
            ("1,5G", "is no size"),
            ("-1G", "is no size"),
            ("1.5", "no fractions of a byte"),
            ("4X", "'X' is no unit"),
            ("4KiKi", "'KiKi' is no unit"),
            ("0", "at least 512 bytes"),
            ("100", "multiple of 512 bytes, such as 512"),
            ("1000", "multiple of 512 bytes, such as 512 or 1024"),
            ("9000000P", "too large"),
            ("99999999999999999999999999999999999999999999", "too large"),
            ("340282366920938463463374607431768211455P", "too large"),
        ];
        for (text, why) in cases {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(parse_interval("100").unwrap_err().contains("between two flushes"));
        assert!(parse_write_size("64M").unwrap_err().contains("at most 32 MiB"));
        assert!(parse_page_size("512").unwrap_err().contains("4096"));
        assert!(parse_request_size("100").unwrap_err().contains("at least 512"));
    }

    #[test]
    fn growth_is_a_size_or_a_part() {
        let cases = [
            ("64M", Growth::Bytes(64 << 20)),
            ("0", Growth::Bytes(0)),
            ("2%", Growth::BasisPoints(200)),
            ("0.5%", Growth::BasisPoints(50)),
            ("12.25%", Growth::BasisPoints(1225)),
            ("100%", Growth::BasisPoints(10_000)),
        ];
        for (text, growth) in cases {
            assert_eq!(parse_growth(text), Ok(growth), "{text}");
        }
        for text in ["%", "101%", "1.%", ".5%", "1.234%", "-1%", "2 %"] {
            assert!(parse_growth(text).unwrap_err().contains("is no part of a disk"), "{text}");
        }
    }
}
