//! LZX as Windows compresses files of its own with it: chunks of 32 KiB by themselves, as in its images of file systems (WIM). The format is
//! told in Microsoft's \[MS-PATCH\]; there blocks are 32768 bytes unless they say otherwise, and calls are always translated.

use super::bits::Bits;
use super::huffman::Code;
use super::{Broken, copy_match};

/// The size of chunks, and of the window.
pub(crate) const CHUNK_BYTES: u64 = 32 << 10;

const BYTE_SYMBOLS: usize = 256;
/// Slots of distances in a window of 32 KiB.
const SLOTS: usize = 30;
const MAIN_SYMBOLS: usize = BYTE_SYMBOLS + SLOTS * 8;
const LEN_SYMBOLS: usize = 249;
const PRE_SYMBOLS: usize = 20;
const ALIGNED_SYMBOLS: usize = 8;
/// The length of a file that calls are translated for, whatever it is.
const TRANSLATED_BYTES: i32 = 12_000_000;
/// At the end of a chunk no call is translated.
const TRANSLATED_TAIL_BYTES: usize = 10;
/// How many lengths a code may have, 0 among them.
const LENGTHS: u8 = 17;

/// Unpacks a chunk of `len` bytes: 32 KiB at most.
pub(crate) fn unpack(input: &[u8], len: usize) -> Result<Vec<u8>, Broken> {
    let mut unpacker = Unpacker {
        bits: Bits::new(input),
        out: Vec::with_capacity(len),
        len,
        main: [0; MAIN_SYMBOLS],
        lens: [0; LEN_SYMBOLS],
        recent: [1; 3],
    };
    while unpacker.out.len() < len {
        unpacker.block()?;
    }
    let mut out = unpacker.out;
    translate(&mut out);
    Ok(out)
}

struct Unpacker<'a> {
    bits: Bits<'a>,
    out: Vec<u8>,
    len: usize,
    /// Lengths of the codes of the last block: those of the next one are told by how they differ.
    main: [u8; MAIN_SYMBOLS],
    lens: [u8; LEN_SYMBOLS],
    /// The last distances.
    recent: [usize; 3],
}

impl Unpacker<'_> {
    fn block(&mut self) -> Result<(), Broken> {
        let kind = self.bits.take(3);
        let size = match self.bits.take(1) {
            1 => 32768,
            _ => self.bits.take(16) as usize,
        };
        if size == 0 || size > self.len - self.out.len() {
            return Err(Broken);
        }
        match kind {
            1 => self.codes(size, None),
            2 => {
                let mut lengths = [0; ALIGNED_SYMBOLS];
                for len in &mut lengths {
                    *len = u8::try_from(self.bits.take(3)).map_err(|_| Broken)?;
                }
                self.codes(size, Some(&Code::new(&lengths)?))
            }
            3 => self.plain(size),
            _ => Err(Broken),
        }
    }

    /// A block that is not compressed.
    fn plain(&mut self, size: usize) -> Result<(), Broken> {
        self.bits.align();
        for recent in &mut self.recent {
            let bytes = self.bits.bytes(4).and_then(|bytes| bytes.first_chunk::<4>()).ok_or(Broken)?;
            *recent = usize::try_from(u32::from_le_bytes(*bytes)).map_err(|_| Broken)?;
        }
        self.out.extend_from_slice(self.bits.bytes(size).ok_or(Broken)?);
        if size % 2 == 1 {
            self.bits.byte();
        }
        Ok(())
    }

    fn codes(&mut self, size: usize, aligned: Option<&Code>) -> Result<(), Broken> {
        read_lengths(&mut self.bits, &mut self.main[..BYTE_SYMBOLS])?;
        read_lengths(&mut self.bits, &mut self.main[BYTE_SYMBOLS..])?;
        read_lengths(&mut self.bits, &mut self.lens)?;
        let (main, lens) = (Code::new(&self.main)?, Code::new(&self.lens)?);
        let end = self.out.len() + size;
        while self.out.len() < end {
            let symbol = main.take(&mut self.bits)?;
            if let Ok(byte) = u8::try_from(symbol) {
                self.out.push(byte);
                continue;
            }
            let symbol = usize::from(symbol) - BYTE_SYMBOLS;
            let mut len = symbol % 8 + 2;
            if len == 9 {
                len += usize::from(lens.take(&mut self.bits)?);
            }
            let distance = self.distance(symbol / 8, aligned)?;
            copy_match(&mut self.out, 0, distance, len, end)?;
        }
        Ok(())
    }

    fn distance(&mut self, slot: usize, aligned: Option<&Code>) -> Result<usize, Broken> {
        if slot < 3 {
            self.recent.swap(0, slot);
            return Ok(self.recent[0]);
        }
        let (base, extra) = slot_of(slot);
        let distance = match aligned.filter(|_| extra >= 3) {
            Some(code) => {
                let high = (self.bits.take(extra - 3) as usize) << 3;
                base + high + usize::from(code.take(&mut self.bits)?)
            }
            None => base + self.bits.take(extra) as usize,
        };
        let distance = distance - 2;
        self.recent = [distance, self.recent[0], self.recent[1]];
        Ok(distance)
    }
}

/// The first distance of a slot, two more than it is, and how many bits tell how much more it is. From the fourth on two slots each are
/// twice as wide as those before.
fn slot_of(slot: usize) -> (usize, u32) {
    if slot < 4 {
        return (slot, 0);
    }
    let extra = slot / 2 - 1;
    ((2 + slot % 2) << extra, u32::try_from(extra).unwrap_or_default())
}

/// Reads lengths of codes as they differ from what `lengths` holds, by a code of their own.
fn read_lengths(bits: &mut Bits<'_>, lengths: &mut [u8]) -> Result<(), Broken> {
    let mut own = [0; PRE_SYMBOLS];
    for len in &mut own {
        *len = u8::try_from(bits.take(4)).map_err(|_| Broken)?;
    }
    let code = Code::new(&own)?;
    let shorter = |len: u8, by: u16| -> Result<u8, Broken> {
        let by = u8::try_from(by).ok().filter(|by| *by < LENGTHS).ok_or(Broken)?;
        Ok((len + LENGTHS - by) % LENGTHS)
    };
    let mut at = 0;
    while at < lengths.len() {
        let symbol = code.take(bits)?;
        let run = match symbol {
            17 => 4 + bits.take(4) as usize,
            18 => 20 + bits.take(5) as usize,
            19 => 4 + bits.take(1) as usize,
            _ => 1,
        };
        let len = match symbol {
            17 | 18 => 0,
            19 => {
                let by = code.take(bits)?;
                shorter(lengths[at], by)?
            }
            by => shorter(lengths[at], by)?,
        };
        // A run may reach beyond the end.
        let end = (at + run).min(lengths.len());
        lengths[at..end].fill(len);
        at = end;
    }
    Ok(())
}

/// Puts back where the calls of x86 lead: they count from the next instruction, and were made to count from the beginning.
fn translate(bytes: &mut [u8]) {
    let Some(end) = bytes.len().checked_sub(TRANSLATED_TAIL_BYTES) else { return };
    let mut at = 0;
    while at < end {
        if bytes[at] != 0xe8 {
            at += 1;
            continue;
        }
        let place = &mut bytes[at + 1..at + 5];
        let found = i32::from_le_bytes([place[0], place[1], place[2], place[3]]);
        let here = i32::try_from(at).unwrap_or(i32::MAX);
        let call = match found {
            0..TRANSLATED_BYTES => Some(found - here),
            found if found < 0 && found >= -here => Some(found + TRANSLATED_BYTES),
            _ => None,
        };
        if let Some(call) = call {
            place.copy_from_slice(&call.to_le_bytes());
        }
        at += 5;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_as_the_format_tells_them() {
        let slots: Vec<_> = [3, 4, 5, 6, 7, 8, 29].map(slot_of).into();
        assert_eq!(slots, [(3, 0), (4, 1), (6, 1), (8, 2), (12, 2), (16, 3), (24576, 13)]);
    }
}
