//! Small pieces of text.

use std::fmt::Write as _;

pub use plan::figures::human_bytes;
pub(crate) use plan::figures::{grouped, percent, seconds};

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
    fn names_cannot_steer_a_terminal() {
        assert_eq!(printable("a\x1b[2Jb\u{202e}c\né"), "a\\u{1b}[2Jb\\u{202e}c\\u{a}é");
    }
}
