//! LZO1X, in which Btrfs compresses files sector by sector.

use super::{Broken, copy_match};

/// What was copied last decides what small instructions mean.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// So many bytes behind a match: 0 to 3.
    Few(usize),
    /// A run of bytes.
    Run,
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Result<usize, Broken> {
        let (byte, rest) = self.0.split_first().ok_or(Broken)?;
        self.0 = rest;
        Ok(usize::from(*byte))
    }

    fn word(&mut self) -> Result<usize, Broken> {
        Ok(self.byte()? | self.byte()? << 8)
    }

    /// A length of which the instruction held `bits`; none stand for more than fit: a byte, and 255 for each zero before it.
    fn len(&mut self, bits: usize, mask: usize) -> Result<usize, Broken> {
        if bits != 0 {
            return Ok(bits);
        }
        let mut len = mask;
        loop {
            match self.byte()? {
                0 => len += 255,
                byte => return Ok(len + byte),
            }
        }
    }

    fn copy(&mut self, out: &mut Vec<u8>, len: usize, max: usize) -> Result<(), Broken> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Broken)?;
        if len > max - out.len() {
            return Err(Broken);
        }
        out.extend_from_slice(bytes);
        self.0 = rest;
        Ok(())
    }
}

/// Unpacks up to `max` bytes behind what `out` holds.
pub(crate) fn unpack(input: &[u8], out: &mut Vec<u8>, max: usize) -> Result<(), Broken> {
    let start = out.len();
    let max = start.checked_add(max).ok_or(Broken)?;
    let mut input = Input(input);
    let mut before = Before::Few(0);
    if let Some(first) = input.0.first().filter(|first| **first > 17) {
        let len = usize::from(*first) - 17;
        input.byte()?;
        input.copy(out, len, max)?;
        before = if len < 4 { Before::Few(len) } else { Before::Run };
    }
    loop {
        let code = input.byte()?;
        let (distance, len, few) = match (code, before) {
            (0..16, Before::Few(0)) => {
                let len = input.len(code, 15)? + 3;
                input.copy(out, len, max)?;
                before = Before::Run;
                continue;
            }
            (0..16, Before::Few(_)) => (1 + (code >> 2) + (input.byte()? << 2), 2, code & 3),
            (0..16, Before::Run) => (0x801 + (code >> 2) + (input.byte()? << 2), 3, code & 3),
            (64.., _) => (1 + (code >> 2 & 7) + (input.byte()? << 3), (code >> 5) + 1, code & 3),
            (32..64, _) => {
                let len = input.len(code & 31, 31)? + 2;
                let word = input.word()?;
                (1 + (word >> 2), len, word & 3)
            }
            _ => {
                let len = input.len(code & 7, 7)? + 2;
                let word = input.word()?;
                match ((code & 8) << 11) + (word >> 2) {
                    0 => return Ok(()),
                    near => (near + 0x4000, len, word & 3),
                }
            }
        };
        copy_match(out, start, distance, len, max)?;
        input.copy(out, few, max)?;
        before = Before::Few(few);
    }
}
