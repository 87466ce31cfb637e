//! XPRESS with Huffman codes (Microsoft, \[MS-XCA\] 2.2), in which Windows compresses files of its own chunk by chunk.

use super::bits::Bits;
use super::huffman::Code;
use super::{Broken, copy_match};

/// Lengths of the codes of 512 symbols, in four bits each.
const TABLE_BYTES: usize = 256;

/// Unpacks a chunk of `len` bytes.
pub(crate) fn unpack(input: &[u8], len: usize) -> Result<Vec<u8>, Broken> {
    let (table, input) = input.split_at_checked(TABLE_BYTES).ok_or(Broken)?;
    let lengths: Vec<u8> = table.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect();
    let code = Code::new(&lengths)?;
    let mut bits = Bits::new(input);
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        let symbol = code.take(&mut bits)?;
        if let Ok(byte) = u8::try_from(symbol) {
            out.push(byte);
            continue;
        }
        let (mut count, distance_bits) = (usize::from(symbol & 15), u32::from(symbol >> 4 & 15));
        bits.ensure(16);
        let distance = 1 << distance_bits | bits.take(distance_bits) as usize;
        if count == 15 {
            count += usize::from(bits.byte());
            if count == 15 + 255 {
                count = usize::from(u16::from_le_bytes([bits.byte(), bits.byte()]));
            }
        }
        copy_match(&mut out, 0, distance, count + 3, len)?;
    }
    Ok(out)
}
