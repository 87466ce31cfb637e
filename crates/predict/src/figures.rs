//! Figures as people read them: the same on a terminal, on a page and in sentences.

/// A byte count for people: three digits, binary units.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    let mut whole = bytes;
    let mut rest = 0;
    while whole >= 1024 && unit + 1 < UNITS.len() {
        rest = whole % 1024;
        whole /= 1024;
        unit += 1;
    }
    let tenths = rest * 10 / 1024;
    if unit == 0 || whole >= 100 || tenths == 0 {
        format!("{whole} {}", UNITS[unit])
    } else {
        format!("{whole}.{tenths} {}", UNITS[unit])
    }
}

/// Such as `3.2 s`, `15 ms` or `2.5 h`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.5e-6 => "0 s".into(),
        s if s < 0.9995e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 119.5 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// A share of one, such as `12 %`, or `0.3 %` where that is little.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent == 0.0 || percent >= 9.95 { format!("{percent:.0} %") } else { format!("{percent:.1} %") }
}

/// A number with its thousands apart.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Such as `1 file`, `12,000 files`.
pub fn counted(number: u64, one: &str, more: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_three_digits() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (200 << 20, "200 MiB"),
            ((4 << 30) + (512 << 20), "4.5 GiB"),
            (u64::MAX, "15.9 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human_bytes(bytes), text);
        }
    }

    #[test]
    fn figures_are_short() {
        let times = [0.0, 0.000_25, 0.0154, 3.21, 600.0, 9000.0].map(seconds);
        assert_eq!(times, ["0 s", "250 µs", "15 ms", "3.2 s", "10 min", "2.5 h"]);
        assert_eq!([0.0, 0.003, 0.5].map(percent), ["0 %", "0.3 %", "50 %"]);
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(counted(1, "file", "files"), "1 file");
        assert_eq!(counted(12_000, "file", "files"), "12,000 files");
    }
}
