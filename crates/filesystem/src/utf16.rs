//! UTF-16 as file systems keep names in it, turned into bytes that any program can show.
//!
//! Names that differ stay different: a surrogate that stands alone becomes the three bytes that UTF-8's scheme has for it (WTF-8).

/// Appends UTF-16 bytes in UTF-8.
pub(crate) fn push_utf8(text: &mut Vec<u8>, utf16: &[u8]) {
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
