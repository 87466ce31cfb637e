//! What clients ask of a disk.

use extent::{Offset, Span, VirtualSpan};
use serve::{Export, Fault, FaultKind};
use sim::Random;

use super::known::{Change, Known, SECTOR_LEN, sector_of, sectors, word};
use super::subject::LiveKind;

/// Units that [`Step::any_reuse`] frees and writes.
const REUSED_UNITS: u64 = 6;

/// How requests are made up. The number of the last write goes up with each.
pub(super) type AnyStep = fn(&mut Random, &LiveKind, write: &mut u64) -> Step;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Change { span: VirtualSpan, change: Change, may_free: bool, fua: bool },
    Flush,
    Read(VirtualSpan),
}

impl Step {
    /// A random one. `write` becomes the number of the next write.
    pub(super) fn any(random: &mut Random, kind: &LiveKind, write: &mut u64) -> Self {
        let fua = random.below(16) == 0;
        match random.below(32) {
            0..=3 => Self::Flush,
            4..=9 => Self::Read(any_span(random, kind, 64)),
            10..=13 => {
                Self::Change { span: any_span(random, kind, 8), change: Change::Discard, may_free: true, fua }
            }
            14..=16 => Self::Change {
                span: any_span(random, kind, 8),
                change: Change::Zero,
                may_free: random.coin(),
                fua,
            },
            _ => {
                *write += 1;
                let span = any_span(random, kind, 64);
                Self::Change { span, change: Change::Write(*write), may_free: false, fua }
            }
        }
    }

    /// A random one that frees some of a few units, or writes a little into one: what is freed is soon used again.
    pub(super) fn any_reuse(random: &mut Random, kind: &LiveKind, write: &mut u64) -> Self {
        let units = kind.len_bytes.div_ceil(kind.unit_bytes).min(REUSED_UNITS);
        let start = Offset::new(random.below(units) * kind.unit_bytes);
        let left_bytes = kind.len_bytes - start.get();
        match random.below(8) {
            0 => Self::Flush,
            1..=3 => {
                let len_bytes = (1 + random.below(REUSED_UNITS / 2)) * kind.unit_bytes;
                let span = Span::new(start, len_bytes.min(left_bytes));
                Self::Change { span, change: Change::Zero, may_free: true, fua: false }
            }
            _ => {
                *write += 1;
                let sector = SECTOR_LEN as u64;
                let skipped = random.below(kind.unit_bytes.min(left_bytes) / sector) * sector;
                let span = Span::new(start.plus(skipped), sector);
                Self::Change { span, change: Change::Write(*write), may_free: false, fua: false }
            }
        }
    }

    pub(super) fn flushes(&self) -> bool {
        matches!(self, Self::Flush | Self::Change { fua: true, .. })
    }

    /// Asks; `known` is told before and after. `flushed` comes after each flush that is asked for.
    pub(super) fn carry_out(
        &self,
        export: &Export,
        known: &mut Known,
        flushed: impl FnOnce() -> block::Result<()>,
    ) -> Result<(), Trouble> {
        match *self {
            Self::Flush => {
                export.flush()?;
                flushed()?;
                known.flushed();
            }
            Self::Read(span) => {
                let mut bytes = vec![0xa5; usize::try_from(span.len_bytes()).unwrap()];
                export.read(span.start(), &mut bytes)?;
                known.check_read(sectors(span).start, &bytes).map_err(Trouble::Wrong)?;
            }
            Self::Change { span, change, may_free, fua } => {
                known.begin(span, change);
                ask(export, span, change, may_free, fua).inspect_err(|_| known.failed(span, change))?;
                known.end(span, change);
                if fua {
                    flushed()?;
                    // No more than this was promised.
                    known.flushed_by_fua(span);
                }
            }
        }
        Ok(())
    }
}

/// Sends one change.
pub(super) fn ask(
    export: &Export,
    span: VirtualSpan,
    change: Change,
    may_free: bool,
    fua: bool,
) -> Result<(), Fault> {
    match change {
        Change::Write(write) => {
            let bytes: Vec<u8> = sectors(span).flat_map(|number| sector_of(word(write, number))).collect();
            export.write(span.start(), &bytes, fua)
        }
        Change::Zero => export.write_zeroes(span, fua, may_free, false),
        Change::Discard => export.trim(span, fua),
    }
}

/// Why a step did not end well.
pub(super) enum Trouble {
    /// The disk said so.
    Failed(String),
    /// The disk said that the host has no room.
    Full(String),
    /// It did, but wrongly.
    Wrong(String),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        match fault.kind {
            FaultKind::NoSpace => Self::Full(fault.message),
            _ => Self::Failed(fault.message),
        }
    }
}

impl From<block::Error> for Trouble {
    fn from(error: block::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A span of sectors: a few, or a whole unit, or several; one in `whole` is of whole units.
fn any_span(random: &mut Random, kind: &LiveKind, whole: u64) -> VirtualSpan {
    let sector = SECTOR_LEN as u64;
    let len_bytes = kind.len_bytes;
    let (start, len) = if random.below(64) < 64 / whole * 4 {
        let units = len_bytes.div_ceil(kind.unit_bytes);
        let count = if kind.unit_bytes <= 4096 { 1 + random.below(8) } else { 1 };
        (random.below(units) * kind.unit_bytes, count * kind.unit_bytes)
    } else {
        let start = random.below(len_bytes / sector) * sector;
        let start = if random.coin() { start / 4096 * 4096 } else { start };
        let count = if random.below(8) == 0 { random.below(96) } else { random.below(12) };
        (start, (1 + count) * sector)
    };
    Span::new(Offset::new(start), len.min(len_bytes - start))
}
