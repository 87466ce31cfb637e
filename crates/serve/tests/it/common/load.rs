//! A connection with many requests in flight that knows what each byte of its part of the disk must be.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use sim::Random;

use super::client::*;

pub const CONNECTION_COUNT: u64 = 16;
pub const IN_FLIGHT: usize = 16;
/// What each connection has of the disk for its own. Slots are touched by one request at a time.
pub const SLOT_BYTES: u64 = 64 << 10;
pub const SLOTS: u64 = 24;

enum Asked {
    Read,
    Write,
    Flush,
}

/// Keeps requests in flight for `time`; returns how many reads were verified, and what its part of the disk, which was zeros, holds
/// in the end.
pub fn load(socket: &Path, name: &str, index: u64, time: Duration) -> (u64, Vec<u8>) {
    let mut client =
        if index.is_multiple_of(2) { Client::ready(socket, name) } else { Client::simple(socket, name) };
    let mut random = Random::new(0x5eed + index);
    let base = index * SLOTS * SLOT_BYTES;
    let mut model = vec![0u8; (SLOTS * SLOT_BYTES) as usize];
    // By cookie: what was asked, which slot, where in it.
    let mut open: HashMap<u64, (Asked, u64, usize, usize)> = HashMap::new();
    let mut cookie = 0;
    let mut verified = 0;
    let end = Instant::now() + time;
    loop {
        let is_over = Instant::now() >= end;
        while !is_over && open.len() < IN_FLIGHT {
            cookie += 1;
            let slot = random.below(SLOTS);
            if open.values().any(|(_, busy, ..)| *busy == slot) {
                continue;
            }
            let is_whole = random.below(16) == 0;
            let at = if is_whole { 0 } else { random.below(SLOT_BYTES - 1) };
            let len = match random.below(4) {
                _ if is_whole => SLOT_BYTES,
                0 => SLOT_BYTES - at,
                _ => (1 + random.below(8192)).min(SLOT_BYTES - at),
            };
            let offset = base + slot * SLOT_BYTES + at;
            let place = (slot * SLOT_BYTES + at) as usize;
            let (len, size) = (len as u32, len as usize);
            let asked = match random.below(20) {
                0 => {
                    client.request(FLUSH, 0, cookie, 0, 0, &[]);
                    Asked::Flush
                }
                1 => {
                    client.request(
                        WRITE_ZEROES,
                        if random.coin() { NO_HOLE } else { 0 },
                        cookie,
                        offset,
                        len,
                        &[],
                    );
                    model[place..][..size].fill(0);
                    Asked::Write
                }
                2..=10 => {
                    let fill = random.next_u64().to_le_bytes();
                    let data: Vec<u8> = fill.iter().copied().cycle().take(size).collect();
                    client.request(
                        WRITE,
                        if random.below(50) == 0 { FUA } else { 0 },
                        cookie,
                        offset,
                        len,
                        &data,
                    );
                    model[place..][..size].copy_from_slice(&data);
                    Asked::Write
                }
                _ => {
                    client.request(READ, 0, cookie, offset, len, &[]);
                    Asked::Read
                }
            };
            open.insert(cookie, (asked, slot, place, size));
        }
        if open.is_empty() {
            return (verified, model);
        }
        // A simple reply does not say how long it is: its cookie must be known first.
        let (cookie, error, data) = client.next_reply(|cookie| match &open[&cookie] {
            (Asked::Read, _, _, size) => *size,
            _ => 0,
        });
        let (asked, _, place, size) = open.remove(&cookie).expect("asked once, answered once");
        assert_eq!(error, 0);
        if let Asked::Read = asked {
            assert!(data == model[place..][..size], "connection {index}: mismatch at {place}+{size}");
            verified += 1;
        }
    }
}

impl Client {
    /// The cookie, error and data of the next reply; `len` says how much a read of that cookie returns.
    fn next_reply(&mut self, len: impl Fn(u64) -> usize) -> (u64, u32, Vec<u8>) {
        let head: [u8; 16] = self.take(16).try_into().unwrap();
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        if number(0) == 0x6744_6698 {
            let error = number(4);
            let data = if error == 0 { self.take(len(cookie)) } else { Vec::new() };
            return (cookie, error, data);
        }
        assert_eq!(number(0), 0x668e_33ef);
        // All reads here are short enough for one chunk.
        assert_eq!(head[4..6], [0, 1]);
        let payload_len = u32::from_be_bytes(self.take(4).try_into().unwrap()) as usize;
        let payload = self.take(payload_len);
        match head[6..8] {
            [0x80, 1] => (cookie, u32::from_be_bytes(payload[..4].try_into().unwrap()), Vec::new()),
            [0, 1] => (cookie, 0, payload[8..].to_vec()),
            _ => (cookie, 0, Vec::new()),
        }
    }
}
