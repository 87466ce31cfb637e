//! Fields of a superblock by offset.

/// The bytes of one struct. Offsets are constants of the caller's, within what it asked to be read.
pub(crate) struct Fields(pub(crate) Vec<u8>);

macro_rules! integers {
    ($($name:ident, $int:ty, $from:ident;)*) => {$(
        pub(crate) fn $name(&self, at: usize) -> $int {
            <$int>::$from(self.array(at))
        }
    )*};
}

impl Fields {
    integers! {
        u16_le, u16, from_le_bytes;
        u32_le, u32, from_le_bytes;
        u64_le, u64, from_le_bytes;
        u16_be, u16, from_be_bytes;
        u32_be, u32, from_be_bytes;
        u64_be, u64, from_be_bytes;
    }

    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(crate) fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0[at..at + N].try_into().expect("a slice of N bytes")
    }

    pub(crate) fn holds(&self, at: usize, magic: &[u8]) -> bool {
        self.0[at..].starts_with(magic)
    }

    /// Text up to the first zero byte, without spaces at its end; `None` if nothing is left.
    pub(crate) fn text(&self, at: usize, len: usize) -> Option<String> {
        text(&self.0[at..at + len])
    }

    /// UTF-16 up to the first zero unit.
    pub(crate) fn text_utf16_le(&self, at: usize, unit_count: usize) -> Option<String> {
        let units: Vec<_> =
            (0..unit_count).map(|index| self.u16_le(at + 2 * index)).take_while(|unit| *unit != 0).collect();
        (!units.is_empty()).then(|| String::from_utf16_lossy(&units))
    }

    /// A UUID in the order of its bytes; `None` if it is all zeros.
    pub(crate) fn uuid(&self, at: usize) -> Option<String> {
        uuid_text(&self.array(at))
    }
}

/// Text up to the first zero byte, without spaces at its end; `None` if nothing is left.
pub(crate) fn text(bytes: &[u8]) -> Option<String> {
    let text = label(bytes)?.trim_end().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Text up to the first zero byte, with all of its spaces; `None` if it is empty.
pub(crate) fn label(bytes: &[u8]) -> Option<String> {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(bytes).into_owned())
}

/// A UUID in the order of its bytes; `None` for the zeros that stand for none.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> Option<String> {
    let parts = || [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]];
    (*uuid != [0; 16]).then(|| parts().map(hex).join("-"))
}

/// Two lower-case digits a byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A serial number of 32 bits as DOS prints it.
pub(crate) fn dos_serial(serial: u32) -> Option<String> {
    (serial != 0).then(|| format!("{:04X}-{:04X}", serial >> 16, serial & 0xffff))
}
