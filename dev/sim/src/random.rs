//! Random numbers that a seed repeats on every machine.

/// SplitMix64 (Steele, Lea, Flood 2014): one multiplication chain a number, any seed will do.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "there is no number below zero");
        self.next_u64() % limit
    }

    /// One of two.
    pub fn coin(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }
}
