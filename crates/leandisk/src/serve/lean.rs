//! A disk that is only read, of which clients see what `copy` would keep: what its guest does not use reads as zeros, and is not read.
//!
//! What is kept is what the plan of a copy says, so that the same checks decide: a volume in doubt is served whole.

use std::sync::Arc;

use block::{Disk, EditDisk, LiveDisk, ReadAt, Result, Run, RunState, Take, check_bounds};
use extent::{ExtentSet, Span, Virtual, VirtualOffset, VirtualSpan};
use filesystem::Check;
use plan::{CopyOptions, CopyPlan};
use report::human_bytes;
use stack::{ShadowCopies, Stack, UsedMaps};

use crate::Observer;
use crate::copy::plan;

/// See the module.
pub(super) struct Lean {
    disk: Arc<dyn LiveDisk>,
    kept: ExtentSet<Virtual>,
}

impl Lean {
    /// What of `disk`, which is that of `stack`, its guest uses. Each volume is told of.
    pub(super) fn of(stack: &Stack, disk: Arc<dyn LiveDisk>, observer: &dyn Observer) -> Result<Self> {
        let maps = stack.used_maps_for(Check::Full, ShadowCopies::Kept)?;
        let plan = plan(CopyOptions::default(), stack, &maps)?;
        tell(stack, &maps, &plan, observer);
        // What a copy fills with a byte is so in the source.
        let mut kept = ExtentSet::new();
        plan.parts().for_each(|part| kept.push(part.span));
        Ok(Self { disk, kept })
    }

    /// Calls `each` with the parts of `span`, in order, and whether they are kept.
    fn each_part(
        &self,
        span: VirtualSpan,
        mut each: impl FnMut(VirtualSpan, bool) -> Result<()>,
    ) -> Result<()> {
        let mut at = span.start();
        for kept in self.kept.within(span) {
            if at < kept.start() {
                each(Span::between(at, kept.start()), false)?;
            }
            each(kept, true)?;
            at = kept.end();
        }
        if at < span.end() { each(Span::between(at, span.end()), false) } else { Ok(()) }
    }
}

fn tell(stack: &Stack, maps: &UsedMaps, plan: &CopyPlan, observer: &dyn Observer) {
    let disk = stack.chain().files()[0].name();
    for (index, (volume, mode)) in stack.volumes().iter().zip(maps.modes()).enumerate() {
        let kind = volume.filesystem.as_ref().map_or("unknown", |filesystem| &filesystem.facts().filesystem);
        let share = plan.volumes.get(index).copied().unwrap_or_default();
        let what = match mode.reason() {
            Some(reason) => format!("is served whole: {reason}"),
            None => {
                let [free, swap] = [share.free_bytes, share.swap_bytes].map(human_bytes);
                format!("reads as zeros where it is free ({free}) and in its swap ({swap})")
            }
        };
        observer.note(&format!("volume {} of '{disk}' ({kind}) {what}", index + 1));
    }
}

impl ReadAt<Virtual> for Lean {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        let mut rest = buf;
        self.each_part(Span::new(at, rest.len() as u64), |part, is_kept| {
            let len = usize::try_from(part.len_bytes()).expect("within the buffer");
            let (here, behind) = std::mem::take(&mut rest).split_at_mut(len);
            rest = behind;
            if is_kept {
                return self.disk.read_at(part.start(), here);
            }
            here.fill(0);
            Ok(())
        })
    }
}

impl EditDisk for Lean {
    fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()> {
        self.disk.write_at(at, buf)
    }

    fn flush(&self) -> Result<()> {
        self.disk.flush()
    }

    fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.read_at(at, buf)
    }
}

impl Disk for Lean {
    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        self.each_part(span, |part, is_kept| {
            match is_kept {
                true => runs.extend(self.disk.map(part)?),
                false => runs.push(Run { span: part, state: RunState::Hole }),
            }
            Ok(())
        })?;
        Ok(runs)
    }

    fn sector_bytes(&self) -> u32 {
        self.disk.sector_bytes()
    }
}

/// The disk beneath refuses every change.
impl LiveDisk for Lean {
    fn zero(&self, span: VirtualSpan, may_free: bool) -> Result<()> {
        self.disk.zero(span, may_free)
    }

    fn discard(&self, span: VirtualSpan) -> Result<()> {
        self.disk.discard(span)
    }

    fn lend(&self, span: VirtualSpan, take: Take<'_>) -> Result<bool> {
        if self.kept.within(span).any(|kept| kept == span) { self.disk.lend(span, take) } else { Ok(false) }
    }
}
