//! Figures in sentences.

use crate::profile::float;

/// Such as `1.5 GiB`, or `512 bytes`.
pub(super) fn bytes(count: u64) -> String {
    let mut value = float(count);
    let mut unit = "bytes";
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "bytes" { format!("{count} bytes") } else { format!("{value:.1} {unit}") }
}

/// Such as `3.2 s`, `15 ms` or `2 h 5 min`.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.0005 => "0 s".into(),
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 119.5 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// Such as `12 %`, or `0.3 %` where that is little.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent == 0.0 || percent >= 9.95 { format!("{percent:.0} %") } else { format!("{percent:.1} %") }
}

/// Such as `1 file`, `12,000 files`.
pub(super) fn count(number: u64, one: &str, more: &str) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{grouped} {}", if number == 1 { one } else { more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(bytes(0), "0 bytes");
        assert_eq!(bytes(1023), "1023 bytes");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes(1536 << 20), "1.5 GiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!(seconds(0.0), "0 s");
        assert_eq!(seconds(0.0154), "15 ms");
        assert_eq!(seconds(3.21), "3.2 s");
        assert_eq!(seconds(600.0), "10 min");
        assert_eq!(seconds(9000.0), "2.5 h");
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(0.003), "0.3 %");
        assert_eq!(percent(0.5), "50 %");
        assert_eq!(count(1, "file", "files"), "1 file");
        assert_eq!(count(1_234_567, "file", "files"), "1,234,567 files");
        assert_eq!(count(123, "file", "files"), "123 files");
    }
}
