//! Small pieces of text.

use std::fmt::Write as _;

/// Untrusted text made harmless: control characters, escapes, and characters that reorder or hide a line become
/// `\u{..}`.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let hides = matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        if c.is_control() || hides {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

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

/// A count for people: digits in threes.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Whether and how to colour.
#[derive(Clone, Copy, Debug)]
pub struct Palette {
    /// Colours are used; without, the same text stands bare.
    pub colors: bool,
}

impl Palette {
    fn paint(self, code: &str, text: &str) -> String {
        if self.colors { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A heading.
    pub fn strong(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// What matters less.
    pub fn faint(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// Used, good.
    pub fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// Worth a look.
    pub fn warning(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// A cell of a bar.
    pub(crate) fn cell(self, code: &str, text: &str) -> String {
        self.paint(code, text)
    }
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
    fn counts_come_in_threes() {
        let cases = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        for (count, text) in cases {
            assert_eq!(grouped(count), text);
        }
    }

    #[test]
    fn names_cannot_steer_a_terminal() {
        assert_eq!(printable("a\x1b[2Jb\u{202e}c\né"), "a\\u{1b}[2Jb\\u{202e}c\\u{a}é");
    }
}
