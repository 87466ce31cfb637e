//! What clients ask of a disk.

use extent::{Offset, Span, VirtualSpan};
use serve::{Export, Fault};
use sim::Random;

use super::known::{Change, Known, SECTOR_LEN, sector_of, sectors, word};
use super::subject::LiveKind;

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

    pub(super) fn flushes(&self) -> bool {
        matches!(self, Self::Flush | Self::Change { fua: true, .. })
    }

    /// Asks; `known` is told before and after.
    pub(super) fn carry_out(&self, export: &Export, known: &mut Known) -> Result<(), Trouble> {
        match *self {
            Self::Flush => {
                export.flush()?;
                known.flushed();
            }
            Self::Read(span) => {
                let mut bytes = vec![0xa5; usize::try_from(span.len_bytes()).unwrap()];
                export.read(span.start(), &mut bytes)?;
                known.check_read(sectors(span).start, &bytes).map_err(Trouble::Wrong)?;
            }
            Self::Change { span, change, may_free, fua } => {
                known.begin(span, change);
                ask(export, span, change, may_free, fua)?;
                known.end(span, change);
                if fua {
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
    Failed(Fault),
    /// It did, but wrongly.
    Wrong(String),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault)
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
