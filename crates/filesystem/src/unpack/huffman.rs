//! Canonical Huffman codes of 16 bits at most.

use super::Broken;
use super::bits::Bits;

/// The longest code.
const LEN_MAX: usize = 16;
/// Codes of so many bits are found in a table.
const FAST_BITS: u32 = 10;

/// A code.
pub(crate) struct Code {
    /// By the next bits: a symbol, and behind it in four bits the length of its code; 0 if that is longer, or there is none.
    fast: Vec<u16>,
    /// Symbols by the length of their codes.
    symbols: Vec<u16>,
    /// How many there are of each length.
    counts: [u32; LEN_MAX + 1],
    len_max: u32,
}

impl Code {
    /// The code whose symbols have codes of these lengths, 0 of those that do not occur. One without symbols is none until it is used.
    pub(crate) fn new(lengths: &[u8]) -> Result<Self, Broken> {
        let mut counts = [0_u32; LEN_MAX + 1];
        for len in lengths {
            *counts.get_mut(usize::from(*len)).ok_or(Broken)? += 1;
        }
        counts[0] = 0;
        let mut starts = [0; LEN_MAX + 2];
        let mut room = 1_u32;
        for len in 1..=LEN_MAX {
            room = (room * 2).checked_sub(counts[len]).ok_or(Broken)?;
            starts[len + 1] = starts[len] + counts[len] as usize;
        }
        let mut symbols = vec![0; starts[LEN_MAX + 1]];
        let mut next = starts;
        for (symbol, len) in lengths.iter().enumerate().filter(|(_, len)| **len > 0) {
            let place = &mut next[usize::from(*len)];
            symbols[*place] = u16::try_from(symbol).map_err(|_| Broken)?;
            *place += 1;
        }
        let len_max = counts.iter().rposition(|count| *count > 0).unwrap_or(0);
        let mut code = Self {
            fast: vec![0; 1 << FAST_BITS],
            symbols,
            counts,
            len_max: u32::try_from(len_max).map_err(|_| Broken)?,
        };
        code.fill();
        Ok(code)
    }

    fn fill(&mut self) {
        let (mut index, mut at) = (0, 0);
        for len in 1..=FAST_BITS {
            let step = 1 << (FAST_BITS - len);
            for _ in 0..self.counts[len as usize] {
                let entry = self.symbols[index] << 4 | u16::try_from(len).unwrap_or_default();
                self.fast[at..at + step].fill(entry);
                (index, at) = (index + 1, at + step);
            }
        }
    }

    /// Takes a symbol.
    pub(crate) fn take(&self, bits: &mut Bits<'_>) -> Result<u16, Broken> {
        bits.ensure(16);
        let entry = self.fast[bits.peek(FAST_BITS) as usize];
        if entry != 0 {
            bits.drop(u32::from(entry & 15));
            return Ok(entry >> 4);
        }
        let (mut first, mut index) = (0, 0);
        for len in 1..=self.len_max {
            let count = self.counts[len as usize];
            let code = bits.peek(len);
            if let Some(behind) = code.checked_sub(first).filter(|behind| *behind < count) {
                bits.drop(len);
                return Ok(self.symbols[(index + behind) as usize]);
            }
            index += count;
            first = (first + count) << 1;
        }
        Err(Broken)
    }
}
