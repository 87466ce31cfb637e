//! The histograms of a recording, in memory that does not grow with it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::Read;

use block::Result;

use super::{Op, TraceReader};
use crate::monitor::{Completion, Direction, Io, Recorder, Snapshot};

/// How many requests may complete before one that came earlier, for the histograms of a recording.
pub(super) const REORDER_COUNT: usize = 1 << 16;

/// A request that arrives or ends: whether it writes, offset, length, latency in microseconds, whether it failed.
type Request = (bool, u64, u64, u64, bool);

/// Arrivals and ends of requests, put in order of time as far as they are held.
#[derive(Default)]
pub(super) struct Steps {
    /// When, in microseconds; an end before arrivals of the same moment, unless it is its own; the request.
    pub(super) waiting: BinaryHeap<Reverse<(u64, u8, Request)>>,
}

impl Steps {
    pub(super) fn push(&mut self, at_us: u64, request: Request) {
        let latency_us = request.3;
        // Of what happens in one microsecond, completions come first.
        self.waiting.push(Reverse((at_us, 1u8, request)));
        let ended_us = at_us.saturating_add(latency_us);
        self.waiting.push(Reverse((ended_us, u8::from(latency_us == 0) * 2, request)));
    }

    /// The earliest, if more wait than may.
    pub(super) fn pop_early(&mut self) -> Option<(u64, u8, Request)> {
        // Each request is two steps; one more is about to come.
        if self.waiting.len() > 2 * (REORDER_COUNT - 1) { self.pop() } else { None }
    }

    fn pop(&mut self) -> Option<(u64, u8, Request)> {
        self.waiting.pop().map(|Reverse(step)| step)
    }
}

/// The histograms of a recording, in memory that does not grow with it.
pub fn measure<R: Read>(reader: &mut TraceReader<R>) -> Result<Snapshot> {
    let mut recorder = Recorder::default();
    let mut steps = Steps::default();
    let mut end_us = 0;
    while let Some(event) = reader.next_event()? {
        end_us = end_us.max(event.at_us.saturating_add(event.latency_us));
        let is_write = match event.op {
            Op::Read => false,
            Op::Write => true,
            Op::Flush => {
                recorder.flush();
                continue;
            }
            Op::Trim | Op::Zero => {
                recorder.zero();
                continue;
            }
            Op::Cache | Op::Status => continue,
        };
        steps.push(event.at_us, (is_write, event.offset, event.len_bytes, event.latency_us, event.is_failed));
        while let Some(step) = steps.pop_early() {
            replay(&mut recorder, step);
        }
    }
    while let Some(step) = steps.pop() {
        replay(&mut recorder, step);
    }
    let mut snapshot = recorder.snapshot();
    snapshot.elapsed_ns = end_us.saturating_mul(1000);
    Ok(snapshot)
}

fn replay(recorder: &mut Recorder, step: (u64, u8, Request)) {
    let (at_us, phase, (is_write, offset, len_bytes, latency_us, is_failed)) = step;
    let direction = if is_write { Direction::Write } else { Direction::Read };
    if phase == 1 {
        recorder.arrive(&Io { direction, offset, len_bytes }, at_us.saturating_mul(1000));
    } else {
        let latency_ns = latency_us.saturating_mul(1000);
        recorder.complete(&Completion { direction, latency_ns, is_ok: !is_failed });
    }
}
