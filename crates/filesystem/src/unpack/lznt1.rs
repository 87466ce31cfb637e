//! LZNT1 (Microsoft, \[MS-XCA\] 2.5), in which NTFS compresses files: chunks of 4096 bytes by themselves.

use super::{Broken, copy_match};

const CHUNK_BYTES: usize = 4096;

/// Unpacks up to `len_max` bytes. What is missing of a chunk that is not the last is zeros.
pub(crate) fn unpack(input: &[u8], len_max: usize) -> Result<Vec<u8>, Broken> {
    let mut out = Vec::with_capacity(len_max);
    let mut rest = input;
    while let Some((head, behind)) = rest.split_first_chunk::<2>() {
        let head = u16::from_le_bytes(*head);
        if head == 0 || out.len() >= len_max {
            break;
        }
        out.resize(out.len().next_multiple_of(CHUNK_BYTES).min(len_max), 0);
        let (chunk, behind) = behind.split_at_checked(usize::from(head & 0xfff) + 1).ok_or(Broken)?;
        rest = behind;
        match head & 0x8000 {
            0 => out.extend_from_slice(&chunk[..chunk.len().min(len_max - out.len())]),
            _ => unpack_chunk(chunk, &mut out, len_max)?,
        }
    }
    Ok(out)
}

fn unpack_chunk(mut chunk: &[u8], out: &mut Vec<u8>, len_max: usize) -> Result<(), Broken> {
    let start = out.len();
    let max = len_max.min(start + CHUNK_BYTES);
    while let Some((flags, behind)) = chunk.split_first() {
        chunk = behind;
        for bit in 0..8 {
            if chunk.is_empty() {
                return Ok(());
            }
            if flags >> bit & 1 == 0 {
                if out.len() >= max {
                    return Err(Broken);
                }
                out.push(chunk[0]);
                chunk = &chunk[1..];
                continue;
            }
            let (token, behind) = chunk.split_first_chunk::<2>().ok_or(Broken)?;
            chunk = behind;
            let token = u16::from_le_bytes(*token);
            // The further into the chunk, the more bits say how far back.
            let position = (out.len() - start).checked_sub(1).ok_or(Broken)?;
            let spare = (usize::BITS - (position >> 4).leading_zeros()).min(8);
            let len = usize::from(token & (0xfff >> spare)) + 3;
            copy_match(out, start, usize::from(token >> (12 - spare)) + 1, len, max)?;
        }
    }
    Ok(())
}
