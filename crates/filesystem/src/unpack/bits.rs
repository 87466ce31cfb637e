//! Bits as XPRESS and LZX have them: from the highest one of each 16-bit word on; the words have their lower byte first.

/// Takes bits from its input. Behind the end there are zeros.
pub(crate) struct Bits<'a> {
    input: &'a [u8],
    at: usize,
    /// The next ones, from the highest on.
    held: u32,
    count: u32,
}

impl<'a> Bits<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Self { input, at: 0, held: 0, count: 0 }
    }

    /// Has at least `count` bits at hand, which is 17 at most.
    pub(crate) fn ensure(&mut self, count: u32) {
        while self.count < count {
            let word = u32::from(self.byte()) | u32::from(self.byte()) << 8;
            self.held |= word << (16 - self.count);
            self.count += 16;
        }
    }

    /// The next `count` bits, which are at hand: 1 to 17.
    pub(crate) fn peek(&self, count: u32) -> u32 {
        self.held >> (32 - count)
    }

    /// Drops bits that are at hand.
    pub(crate) fn drop(&mut self, count: u32) {
        self.held <<= count;
        self.count -= count;
    }

    /// Takes `count` bits: 17 at most.
    pub(crate) fn take(&mut self, count: u32) -> u32 {
        if count == 0 {
            return 0;
        }
        self.ensure(count);
        let bits = self.peek(count);
        self.drop(count);
        bits
    }

    /// Drops the rest of the word, or a whole one if there is none.
    pub(crate) fn align(&mut self) {
        self.ensure(1);
        (self.held, self.count) = (0, 0);
    }

    /// Takes a byte behind the words that were read.
    pub(crate) fn byte(&mut self) -> u8 {
        let byte = self.input.get(self.at).copied().unwrap_or(0);
        self.at = self.at.saturating_add(1);
        byte
    }

    /// Takes bytes behind the words that were read; `None` if they are not there.
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let bytes = self.input.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(bytes)
    }
}
