//! Untrusted text on its way into XML and HTML.

use std::fmt::Write as _;

use crate::text::printable;

/// A name that a guest chose, as text that is harmless wherever text is shown: what is no UTF-8 becomes `\xff`, what
/// controls, hides or reorders becomes `\u{202e}`.
pub fn printable_name(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        out.push_str(&printable(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Text for XML's and HTML's contents and quoted attributes. What XML cannot hold is written as [`printable`] does.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// The start of `text` that is about `width` columns wide, with an ellipsis if that is not all of it. What is not
/// ASCII counts two columns.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    let columns = |c: char| if c.is_ascii() { 1 } else { 2 };
    if text.chars().map(columns).sum::<usize>() <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |c: &char| match left.checked_sub(columns(*c)) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    let mut out: String = text.chars().take_while(fits).collect();
    out.push('…');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_what_is_text_and_show_the_rest() {
        assert_eq!(printable_name("/Prüfung/日本.txt".as_bytes()), "/Prüfung/日本.txt");
        assert_eq!(printable_name(b"/a\xff\xed\xa0\x80b\x1b[2J"), "/a\\xff\\xed\\xa0\\x80b\\u{1b}[2J");
        assert_eq!(printable_name("\u{202e}gpj.exe\u{2028}".as_bytes()), "\\u{202e}gpj.exe\\u{2028}");
    }

    #[test]
    fn markup_becomes_text() {
        assert_eq!(escaped("</script><b a='\"'>&"), "&lt;/script&gt;&lt;b a=&#39;&quot;&#39;&gt;&amp;");
        assert_eq!(escaped("a\u{ffff}\0"), "a\\u{ffff}\\u{0}");
    }

    #[test]
    fn long_text_ends_in_an_ellipsis() {
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("abcd", 3), "ab…");
        assert_eq!(shortened("日本語", 4), "日…");
        assert_eq!(shortened("abcd", 0), "…");
    }
}
