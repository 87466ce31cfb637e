//! The text of LVM2's metadata: sections of values, as in its configuration files.
//!
//! Source: lvm.conf(5), "FILE FORMAT"; LVM2, `libdm/libdm-config.c`.
//!
//! Invariants: what is parsed takes memory in proportion to the text; sections lie in each other to a bounded depth.

use block::{Error, Result};

use super::corrupt::Corrupt;

/// Deeper than any section that LVM2 writes: group, logical volumes, volume, segment.
const DEPTH_MAX: usize = 8;

/// A section: values and further sections, in the order in which they are written.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Section {
    pub(super) values: Vec<(String, Value)>,
    pub(super) sections: Vec<(String, Self)>,
}

/// A value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Value {
    Number(i64),
    Text(String),
    List(Vec<Self>),
}

impl Value {
    pub(super) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn number(&self) -> Option<i64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// Its items; a value that is no list is a list of itself.
    pub(super) fn items(&self) -> &[Self] {
        if let Self::List(items) = self { items } else { std::slice::from_ref(self) }
    }
}

impl Section {
    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        self.values.iter().find(|(found, _)| found == name).map(|(_, value)| value)
    }

    pub(super) fn section(&self, name: &str) -> Option<&Self> {
        self.sections.iter().find(|(found, _)| found == name).map(|(_, section)| section)
    }
}

/// Parses a text. `Corrupt` with the line that is wrong. A name that stands twice in one section is wrong, too: nothing says
/// which of the two counts.
pub(super) fn parse(text: &[u8]) -> Result<Section> {
    let mut parser = Parser { text, at: 0 };
    let section = parser.section(0)?;
    if parser.at < text.len() {
        return Err(parser.wrong("a name or the end is expected"));
    }
    Ok(section)
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    fn wrong(&self, what: &'static str) -> Error {
        let before = &self.text[..self.at.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Error::corrupt(Corrupt::Syntax { line, what })
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_blank(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b'#' => self.at += self.text[self.at..].iter().take_while(|byte| **byte != b'\n').count(),
                byte if byte.is_ascii_whitespace() => self.at += 1,
                _ => break,
            }
        }
    }

    fn take(&mut self, wanted: u8) -> bool {
        self.skip_blank();
        let is_there = self.peek() == Some(wanted);
        self.at += usize::from(is_there);
        is_there
    }

    fn word(&mut self) -> &'a [u8] {
        let is_of_word = |byte: &&u8| byte.is_ascii_alphanumeric() || b"_.+-/".contains(byte);
        let start = self.at;
        self.at += self.text[start..].iter().take_while(is_of_word).count();
        &self.text[start..self.at]
    }

    /// Up to the closing brace, which is left, or the end.
    fn section(&mut self, depth: usize) -> Result<Section> {
        let mut section = Section::default();
        loop {
            self.skip_blank();
            let name = self.word();
            if name.is_empty() {
                break;
            }
            let name = String::from_utf8_lossy(name).into_owned();
            if self.take(b'=') {
                let value = self.value(0)?;
                section.values.push((name, value));
            } else if depth < DEPTH_MAX && self.take(b'{') {
                let inner = self.section(depth + 1)?;
                if !self.take(b'}') {
                    return Err(self.wrong("'}' is expected"));
                }
                section.sections.push((name, inner));
            } else {
                return Err(self.wrong("'=' or '{' is expected"));
            }
        }
        let names = section.values.iter().map(|(name, _)| name);
        let mut names: Vec<_> = names.chain(section.sections.iter().map(|(name, _)| name)).collect();
        names.sort_unstable();
        match names.windows(2).any(|pair| pair[0] == pair[1]) {
            true => Err(self.wrong("a name stands twice in the section that ends here")),
            false => Ok(section),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value> {
        self.skip_blank();
        match self.peek() {
            Some(b'"') => self.quoted(),
            Some(b'[') if depth == 0 => self.list(),
            Some(byte) if byte.is_ascii_digit() || byte == b'-' => self.number(),
            _ => Err(self.wrong("a value is expected")),
        }
    }

    fn quoted(&mut self) -> Result<Value> {
        let mut bytes = Vec::new();
        self.at += 1;
        loop {
            match self.peek() {
                None => return Err(self.wrong("'\"' is expected")),
                Some(b'"') => break,
                Some(b'\\') => {
                    self.at += 1;
                    bytes.extend(self.peek());
                }
                Some(byte) => bytes.push(byte),
            }
            self.at += 1;
        }
        self.at += 1;
        Ok(Value::Text(String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn list(&mut self) -> Result<Value> {
        let mut items = Vec::new();
        self.at += 1;
        while !self.take(b']') {
            items.push(self.value(1)?);
            if !self.take(b',') && !matches!(self.peek(), Some(b']')) {
                return Err(self.wrong("',' or ']' is expected"));
            }
        }
        Ok(Value::List(items))
    }

    /// Fractions, which no number of the metadata is, are refused.
    fn number(&mut self) -> Result<Value> {
        let digits = String::from_utf8_lossy(self.word());
        digits.parse().map(Value::Number).map_err(|_| self.wrong("a whole number is expected before this"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_and_values_are_read() {
        let text = br#"# made by hand
            group {
                id = "a\"b\\c"   # a name
                seqno = 7
                status = ["READ", "WRITE"]
                flags = []
                stripes = [
                    "pv0", 0
                ]
                segment1 { start_extent = 0 }
            }
            contents = "Text""#;
        let parsed = parse(text).unwrap();
        let group = parsed.section("group").unwrap();
        assert_eq!(group.value("id").unwrap().text(), Some("a\"b\\c"));
        assert_eq!(group.value("seqno").unwrap().number(), Some(7));
        assert_eq!(group.value("status").unwrap().items().len(), 2);
        assert!(group.value("flags").unwrap().items().is_empty());
        assert_eq!(group.value("stripes").unwrap().items()[1].number(), Some(0));
        assert_eq!(group.section("segment1").unwrap().value("start_extent").unwrap().number(), Some(0));
        assert_eq!(parsed.value("contents").unwrap().text(), Some("Text"));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, line) in [
            ("a {\n b = 1\n", 3),
            ("a = ", 1),
            ("a\n= [1 2]", 2),
            ("a = \"x", 1),
            ("a = 1.5", 1),
            ("}", 1),
            ("a = 1\na = 2", 2),
            ("a = [[1]]", 1),
            ("a {b {c {d {e {f {g {h {i {j { } } } } } } } } } }", 1),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            let Some(Corrupt::Syntax { line: found, .. }) = error.cause() else { panic!("{text}: {error}") };
            assert_eq!(*found, line, "{text}: {error}");
        }
    }
}
