//! Names of files: short ones (page 24), and long ones that entries before them hold (page 28).

use zerocopy::FromBytes;

use super::layout::{DELETED, DirEntry, KANJI_E5, LAST_LONG, LongEntry};
use crate::utf16::push_utf8;

/// UTF-16 units in a part of a long name.
const PART_UNITS: usize = 13;
/// The most units of a long name.
const NAME_UNITS_MAX: usize = 255;
/// The upper half of code page 437, in which mkfs.fat, mtools and Linux take short names unless told otherwise.
const CP437: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀\
                     αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";

/// Puts the parts of a long name together, which come last part first.
#[derive(Default)]
pub(super) struct LongName {
    units: Vec<u8>,
    /// The number of the part that is expected next; 0 if the name is whole.
    next: u8,
    checksum: u8,
    is_valid: bool,
}

impl LongName {
    /// Takes a part. What does not follow the one before begins a new name, or makes none.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let Ok(part) = LongEntry::read_from_bytes(bytes) else { return };
        let number = part.ord & !LAST_LONG;
        if part.ord & LAST_LONG != 0 && (1..=20).contains(&number) {
            *self = Self { units: Vec::new(), next: number, checksum: part.chksum, is_valid: true };
        }
        self.is_valid &= self.next == number && number > 0 && part.chksum == self.checksum;
        if !self.is_valid {
            return;
        }
        self.next = number - 1;
        let own: Vec<u8> = [&part.name1[..], &part.name2, &part.name3].concat();
        self.units.splice(0..0, own);
    }

    /// Forgets what came.
    pub(super) fn clear(&mut self) {
        self.is_valid = false;
    }

    /// The name of the entry that follows: the long one if there is one that is whole and its checksum agrees, else the short one.
    pub(super) fn take(&mut self, entry: &DirEntry) -> Vec<u8> {
        let is_its_own = self.is_valid && self.next == 0 && self.checksum == checksum(&entry.name);
        self.is_valid = false;
        let (units, _) = self.units.as_chunks::<2>();
        let len = units.iter().position(|unit| *unit == [0, 0]).unwrap_or(units.len());
        if !is_its_own || !(1..=NAME_UNITS_MAX).contains(&len) || self.units.len() > 20 * PART_UNITS * 2 {
            return short(entry);
        }
        let mut name = Vec::new();
        push_utf8(&mut name, units[..len].as_flattened());
        name
    }
}

/// `ChkSum` (page 28).
fn checksum(name: &[u8; 11]) -> u8 {
    name.iter().fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte))
}

fn short(entry: &DirEntry) -> Vec<u8> {
    let mut bytes = entry.name;
    if bytes[0] == KANJI_E5 {
        bytes[0] = DELETED;
    }
    let (base, extension) = bytes.split_at(8);
    let mut name = String::new();
    push_short(&mut name, base, entry.nt_res & 0x08 != 0);
    if extension.iter().any(|byte| *byte != b' ') {
        name.push('.');
        push_short(&mut name, extension, entry.nt_res & 0x10 != 0);
    }
    name.into_bytes()
}

fn push_short(name: &mut String, bytes: &[u8], is_lower: bool) {
    let len = bytes.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
    for byte in &bytes[..len] {
        let char = match byte.checked_sub(0x80) {
            None => char::from(*byte),
            Some(index) => CP437.chars().nth(index.into()).unwrap_or('?'),
        };
        name.push(if is_lower { char.to_ascii_lowercase() } else { char });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_as_dos_shows_them() {
        let mut bytes = [0; 32];
        let mut shown = |name: &[u8; 11], case: u8| {
            bytes[..11].copy_from_slice(name);
            bytes[12] = case;
            String::from_utf8(short(&DirEntry::read_from_bytes(&bytes).unwrap())).unwrap()
        };
        assert_eq!(shown(b"README  TXT", 0), "README.TXT");
        assert_eq!(shown(b"README  TXT", 0x18), "readme.txt");
        assert_eq!(shown(b"A B        ", 0x08), "a b");
        assert_eq!(shown(b"\x05\x81\xff     X  ", 0), "σü\u{a0}.X");
        assert_eq!(CP437.chars().count(), 128);
    }
}
