//! How a request becomes a record, and back: numbers as differences from the record before, so that they are short.

use super::{Event, Op};

/// The most bytes of a record: one of its own, and four numbers.
pub(super) const RECORD_BYTES_MAX: usize = 1 + 4 * 10;

const OP_MASK: u8 = 0x07;
const FUA: u8 = 0x08;
const FAILED: u8 = 0x10;
const KNOWN_BITS: u8 = OP_MASK | FUA | FAILED;

/// Records of one block so far.
#[derive(Default)]
pub(super) struct Encoder {
    pub(super) bytes: Vec<u8>,
    pub(super) count: u32,
    pub(super) base_us: u64,
    last_us: u64,
    last_end: u64,
}

impl Encoder {
    pub(super) fn push(&mut self, event: &Event) {
        if self.count == 0 {
            (self.base_us, self.last_us, self.last_end) = (event.at_us, event.at_us, 0);
        }
        let flags = if event.fua { FUA } else { 0 } | if event.is_failed { FAILED } else { 0 };
        self.bytes.push(event.op as u8 | flags);
        push_number(&mut self.bytes, difference(event.at_us, self.last_us));
        push_number(&mut self.bytes, event.latency_us);
        self.last_us = event.at_us;
        if event.op != Op::Flush {
            push_number(&mut self.bytes, difference(event.offset, self.last_end));
            push_number(&mut self.bytes, event.len_bytes);
            self.last_end = event.offset.wrapping_add(event.len_bytes);
        }
        self.count += 1;
    }
}

/// Records of one block that are left.
#[derive(Default)]
pub(super) struct Decoder {
    bytes: Vec<u8>,
    used: usize,
    last_us: u64,
    last_end: u64,
}

impl Decoder {
    /// The records `bytes` of a block whose times count from `base_us`.
    pub(super) fn new(bytes: Vec<u8>, base_us: u64) -> Self {
        Self { bytes, used: 0, last_us: base_us, last_end: 0 }
    }

    /// Whether there is nothing left.
    pub(super) fn is_at_end(&self) -> bool {
        self.used == self.bytes.len()
    }

    /// The next record. `None` if it is malformed.
    pub(super) fn decode(&mut self) -> Option<Event> {
        let mut bytes = &self.bytes[self.used..];
        let (first, rest) = bytes.split_first()?;
        bytes = rest;
        if first & !KNOWN_BITS != 0 {
            return None;
        }
        let op = *Op::ALL.get(usize::from(first & OP_MASK))?;
        let at_us = apply_difference(self.last_us, take_number(&mut bytes)?);
        let latency_us = take_number(&mut bytes)?;
        let (mut offset, mut len_bytes) = (0, 0);
        if op != Op::Flush {
            offset = apply_difference(self.last_end, take_number(&mut bytes)?);
            len_bytes = take_number(&mut bytes)?;
            self.last_end = offset.wrapping_add(len_bytes);
        }
        self.last_us = at_us;
        self.used = self.bytes.len() - bytes.len();
        let (fua, is_failed) = (first & FUA != 0, first & FAILED != 0);
        Some(Event { op, fua, is_failed, offset, len_bytes, at_us, latency_us })
    }
}

/// A difference of either sign as a number that is small if the difference is: zigzag, modulo 2^64.
fn difference(to: u64, from: u64) -> u64 {
    let difference = to.wrapping_sub(from).cast_signed();
    ((difference << 1) ^ (difference >> 63)).cast_unsigned()
}

fn apply_difference(from: u64, zigzag: u64) -> u64 {
    let difference = (zigzag >> 1) ^ (zigzag & 1).wrapping_neg();
    from.wrapping_add(difference)
}

/// LEB128.
fn push_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push((number & 0x7f) as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..70).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
