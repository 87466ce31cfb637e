//! Names as NTFS keeps them, turned into bytes that any program can show: UTF-16 into UTF-8.
//!
//! Invariants: names that differ stay different, since a surrogate that stands alone becomes the three bytes that
//! UTF-8's scheme has for it (WTF-8), not a replacement. What the characters are is not judged: a name may hold
//! control characters, slashes and zeros.

use super::layout::{ATTR_DATA, ATTR_NAMES};
pub(super) use crate::utf16::push_utf8;

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
}
