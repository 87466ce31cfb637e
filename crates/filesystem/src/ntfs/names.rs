//! Names as NTFS keeps them, turned into bytes that any program can show: UTF-16 into UTF-8.
//!
//! Invariants: names that differ stay different, since a surrogate that stands alone becomes the three bytes that
//! UTF-8's scheme has for it (WTF-8), not a replacement. What the characters are is not judged: a name may hold
//! control characters, slashes and zeros.

use super::layout::{ATTR_DATA, ATTR_NAMES};

/// Appends UTF-16 bytes in UTF-8.
pub(super) fn push_utf8(text: &mut Vec<u8>, utf16: &[u8]) {
    let (units, _) = utf16.as_chunks::<2>();
    for unit in char::decode_utf16(units.iter().map(|unit| u16::from_le_bytes(*unit))) {
        match unit {
            Ok(char) => text.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            Err(alone) => {
                let [high, low] = alone.unpaired_surrogate().to_be_bytes();
                let middle = (high & 0x0f) << 2 | low >> 6;
                text.extend_from_slice(&[0xe0 | high >> 4, 0x80 | middle, 0x80 | low & 0x3f]);
            }
        }
    }
}

/// Writes what a stream that is not the main one is called: its name, and its type unless that is `$DATA` and
/// the name tells enough.
pub(super) fn set_stream_name(text: &mut Vec<u8>, kind: u32, utf16: &[u8]) {
    text.clear();
    push_utf8(text, utf16);
    if kind == ATTR_DATA && !utf16.is_empty() {
        return;
    }
    text.push(b':');
    match ATTR_NAMES.iter().find(|(known, _)| *known == kind) {
        Some((_, name)) => text.extend_from_slice(name.as_bytes()),
        None => text.extend_from_slice(format!("${kind:#x}").as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn utf8(units: &[u16]) -> Vec<u8> {
        let mut text = Vec::new();
        push_utf8(&mut text, &units.iter().flat_map(|unit| unit.to_le_bytes()).collect::<Vec<_>>());
        text
    }

    #[test]
    fn lone_surrogates_are_three_bytes() {
        assert_eq!(utf8(&[0x61, 0xd83d, 0xde00, 0x62]), "a\u{1f600}b".as_bytes());
        assert_eq!(utf8(&[0x61, 0xd83d, 0x62]), b"a\xed\xa0\xbdb");
        assert_eq!(utf8(&[0xdc00]), b"\xed\xb0\x80");
        assert_eq!(utf8(&[0xdfff, 0xd800]), b"\xed\xbf\xbf\xed\xa0\x80");
        assert_eq!(utf8(&[0, 0x2f, 0x1b]), b"\0/\x1b");
    }

    #[test]
    fn streams_are_called_as_ntfs_writes_them() {
        let name = |kind, name: &str| {
            let mut text = b"before".to_vec();
            let utf16: Vec<_> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
            set_stream_name(&mut text, kind, &utf16);
            String::from_utf8(text).unwrap()
        };
        assert_eq!(name(0x80, "Zone.Identifier"), "Zone.Identifier");
        assert_eq!(name(0x80, ""), ":$DATA");
        assert_eq!(name(0xb0, "$I30"), "$I30:$BITMAP");
        assert_eq!(name(0x20, ""), ":$ATTRIBUTE_LIST");
        assert_eq!(name(0x1230, "größe"), "größe:$0x1230");
    }

    proptest! {
        #[test]
        fn text_is_as_the_standard_library_has_it(text in "\\PC{0,40}") {
            prop_assert_eq!(utf8(&text.encode_utf16().collect::<Vec<_>>()), text.as_bytes());
        }

        #[test]
        fn different_names_stay_different(
            one in prop::collection::vec(0xd700u16..0xe100, 0..4),
            other in prop::collection::vec(0xd700u16..0xe100, 0..4),
        ) {
            prop_assert_eq!(one == other, utf8(&one) == utf8(&other));
        }
    }
}
