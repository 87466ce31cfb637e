//! A field of an on-disk struct that contradicts its format: for people a text, for callers values.

use std::fmt;

use zerocopy::byteorder::{ByteOrder, U16, U32, U64};

/// A field, what it holds and what it may hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    name: String,
    found: FieldValue,
    expected: String,
}

impl Field {
    /// The field `name`, which holds `found`.
    pub fn new(name: impl fmt::Display, found: impl Into<FieldValue>, expected: impl fmt::Display) -> Self {
        Self { name: name.to_string(), found: found.into(), expected: expected.to_string() }
    }

    /// What its format's specification calls it, or Leandisk where that has no name for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it holds.
    pub fn found(&self) -> &FieldValue {
        &self.found
    }

    /// What it may hold, for people.
    pub fn expected(&self) -> &str {
        &self.expected
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, found, expected } = self;
        write!(f, "{name} is {}, expected {expected}", found.text)
    }
}

/// What a field holds: its text as people read it, and its number if it is one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldValue {
    text: String,
    number: Option<u64>,
}

impl FieldValue {
    /// A number that people read in hexadecimal digits.
    pub fn hex(number: impl Into<Self>) -> Self {
        let found = number.into();
        let text = found.number.map_or(found.text, |number| format!("{number:#x}"));
        Self { text, ..found }
    }

    /// A number of 32 bits that people read in all its hexadecimal digits.
    pub fn hex32(number: u32) -> Self {
        Self { text: format!("{number:#010x}"), number: Some(number.into()) }
    }

    /// A number of 64 bits that people read in all its hexadecimal digits.
    pub fn hex64(number: u64) -> Self {
        Self { text: format!("{number:#018x}"), number: Some(number) }
    }

    /// The number, if it is one.
    pub fn number(&self) -> Option<u64> {
        self.number
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// What is a number, and what is none.
macro_rules! values {
    (numbers: $($number:ty),*; texts: $($text:ty),* $(,)?) => {
        $(impl From<$number> for FieldValue {
            fn from(number: $number) -> Self {
                Self { text: number.to_string(), number: u64::try_from(number).ok() }
            }
        })*
        $(impl From<$text> for FieldValue {
            fn from(text: $text) -> Self {
                Self { text: text.to_string(), number: None }
            }
        })*
    };
}

values! {
    numbers: u8, u16, u32, u64, usize, i8, i32, i64;
    texts: &str, &dyn fmt::Display, char, fmt::Arguments<'_>, std::slice::EscapeAscii<'_>, std::str::EscapeDefault<'_>
}

impl From<String> for FieldValue {
    fn from(text: String) -> Self {
        Self { text, number: None }
    }
}

impl<O: ByteOrder> From<U16<O>> for FieldValue {
    fn from(number: U16<O>) -> Self {
        number.get().into()
    }
}

impl<O: ByteOrder> From<U32<O>> for FieldValue {
    fn from(number: U32<O>) -> Self {
        number.get().into()
    }
}

impl<O: ByteOrder> From<U64<O>> for FieldValue {
    fn from(number: U64<O>) -> Self {
        number.get().into()
    }
}
