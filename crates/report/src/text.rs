//! Small pieces of text.

use std::fmt::Write as _;

pub use predict::figures::human_bytes;
pub(crate) use predict::figures::{counted, grouped, percent, seconds};

/// Columns of a text: what every terminal has.
pub(crate) const WIDTH: usize = 80;

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

/// A label's value as Prometheus reads it (its text format, version 0.0.4).
pub(crate) fn metric_label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// `text` in lines of at most [`WIDTH`] columns where its words allow it. The first line begins with `first`, the others with as
/// many blanks, or with `rest` if there is one. Blanks are taken as one; words are not parted.
pub(crate) fn wrapped(first: &str, rest: Option<&str>, text: &str) -> String {
    painted(first, rest, text, str::to_owned)
}

/// As [`wrapped`], with what `paint` makes of each line's words.
pub(crate) fn painted(first: &str, rest: Option<&str>, text: &str, paint: impl Fn(&str) -> String) -> String {
    let blanks = " ".repeat(first.chars().count());
    let mut out = String::new();
    let mut start = first;
    for line in lines_of(text, WIDTH.saturating_sub(blanks.len())) {
        let _ = writeln!(out, "{start}{}", paint(&line));
        start = rest.unwrap_or(&blanks);
    }
    out
}

/// Words in lines of at most `width` columns. What is quoted is one word: a command to be copied.
pub(crate) fn lines_of(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words(text) {
        let last = lines.last_mut().expect("there is always a line");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > width {
            lines.push(word);
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(&word);
        }
    }
    lines
}

/// The most words that are kept together by quotes: more are no command, or a quote without an end.
const QUOTED_WORDS_MAX: usize = 6;

fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = text.split_whitespace();
    while let Some(word) = rest.next() {
        let ends = |word: &&str| word.len() > 1 && word[1..].contains('\'');
        let length = match word.starts_with('\'') && !ends(&word) {
            true => rest
                .clone()
                .take(QUOTED_WORDS_MAX)
                .position(|word| word.contains('\''))
                .map_or(0, |at| at + 1),
            false => 0,
        };
        let quoted = std::iter::once(word).chain(rest.by_ref().take(length));
        words.push(quoted.collect::<Vec<_>>().join(" "));
    }
    words
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
    fn text_is_wrapped_between_words() {
        assert_eq!(lines_of("one two  three", 7), ["one two", "three"]);
        assert_eq!(lines_of("extraordinary", 5), ["extraordinary"]);
        assert_eq!(lines_of("", 5), [""]);
        assert_eq!(lines_of("use 'leandisk compact', now", 8), ["use", "'leandisk compact',", "now"]);
        assert_eq!(lines_of("the guest's 'a' 'b c", 8), ["the", "guest's", "'a' 'b c"]);
        let words = "word ".repeat(30);
        let text = wrapped("  label  ", None, &words);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("         word")), "{text}");
        assert!(wrapped("* ", Some("| "), &words).lines().skip(1).all(|line| line.starts_with("| word")));
    }

    #[test]
    fn names_cannot_steer_a_terminal() {
        assert_eq!(printable("a\x1b[2Jb\u{202e}c\né"), "a\\u{1b}[2Jb\\u{202e}c\\u{a}é");
    }
}
