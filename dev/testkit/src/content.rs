//! What tests fill files with. It is here, and not beside each test, so that the optimizer sees it.

/// Bytes that do not compress, and differ by seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Bytes without a zero that compress, and differ by index.
pub fn pattern(index: u64, len: usize) -> Vec<u8> {
    const PERIOD: usize = 7 * 151;
    let shift = usize::try_from(31 * index % 151).unwrap();
    let period: Vec<u8> = (0..PERIOD).map(|at| u8::try_from((at / 7 + shift) % 151 + 1).unwrap()).collect();
    let mut bytes = period.repeat(len.div_ceil(PERIOD));
    bytes.truncate(len);
    bytes
}
