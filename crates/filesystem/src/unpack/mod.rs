//! Compressed contents: decoders of what file systems keep, and a reader of files that are compressed unit by unit.
//!
//! Invariants:
//! - a decoder is given how many bytes may come out, and takes memory for no more;
//! - whatever the input is, a decoder ends: each step takes input or makes output.

pub(crate) mod bits;
pub(crate) mod huffman;
pub(crate) mod lznt1;
pub(crate) mod lzo;
pub(crate) mod lzx;
pub(crate) mod units;
pub(crate) mod xpress;

/// What is compressed is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken;

/// Appends `len` bytes that stand `distance` before the end of `out`, which may grow into them as they are copied. Nothing before `from`
/// can be meant.
fn copy_match(out: &mut Vec<u8>, from: usize, distance: usize, len: usize, max: usize) -> Result<(), Broken> {
    let start = out.len().checked_sub(distance).filter(|start| distance > 0 && *start >= from);
    let start = start.filter(|_| len <= max.saturating_sub(out.len())).ok_or(Broken)?;
    if distance >= len {
        out.extend_from_within(start..start + len);
    } else {
        (start..start + len).for_each(|at| out.push(out[at]));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_comes_in_ends(
            input in prop::collection::vec(any::<u8>(), 0..600),
            kind in 0..4_u8,
            len in 0..40_000_usize,
        ) {
            // A block of LZX that says so, and codes of XPRESS that are none but for some bytes.
            let mut input = input;
            if let Some(first) = input.get_mut(1) {
                *first = (*first & 0x0f) | [0x20, 0x40, 0x60, 0x30][usize::from(kind)];
            }
            let mut out = Vec::new();
            let _ = super::lzo::unpack(&input, &mut out, len);
            prop_assert!(out.len() <= len);
            for unpacked in [
                super::lznt1::unpack(&input, len),
                super::xpress::unpack(&input, len),
                super::xpress::unpack(&[&[0x99; 256][..], &input].concat(), len),
                super::lzx::unpack(&input, len.min(32 << 10)),
            ].into_iter().flatten() {
                prop_assert!(unpacked.len() <= len);
            }
        }
    }
}
