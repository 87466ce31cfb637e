//! Which bytes of a virtual disk a copy reads.

use block::RunState;
use extent::{PackedExtents, Span, Virtual, VirtualOffset, VirtualSpan};

use crate::facts::{Fact, Role, VolumeIndex};

/// What the user asked to be kept although it means nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct CopyOptions {
    /// Copy what the guest's file systems have free, too.
    pub keep_free: bool,
    /// Copy the contents of page files and swap, too.
    pub keep_swap: bool,
}

/// Bytes of the virtual disk that are not read, by the first reason that applies, in this order.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Avoided {
    /// Not allocated in the chain of images.
    pub unallocated_bytes: u64,
    /// Known to be zeros from the container's map or the host's.
    pub zero_bytes: u64,
    /// Free in a guest's file system.
    pub free_bytes: u64,
    /// Contents of page files and swap.
    pub swap_bytes: u64,
    /// Logs that are empty, and are written as such without being read.
    pub log_bytes: u64,
}

/// One volume's share of the plan, without regard to the container.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct VolumeShare {
    /// Used by the guest (all of it if the volume is taken whole).
    pub used_bytes: u64,
    /// Free in its file system.
    pub free_bytes: u64,
    /// Contents of swap in it.
    pub swap_bytes: u64,
}

/// Which bytes to read, and what is gained by not reading the rest:
/// `virtual_bytes = reads.total_bytes() + ` the sum of `avoided`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyPlan {
    /// Size of the virtual disk.
    pub virtual_bytes: u64,
    /// What to read, in order. Everything else but `fills` is zeros in the target.
    pub reads: PackedExtents<Virtual>,
    /// What to fill with a byte instead, in order, between the reads. A handful.
    pub fills: Vec<(VirtualSpan, u8)>,
    /// What of the reads is cloned instead: the blocks of so many bytes that lie within them as a whole. A power of two.
    pub clone_block_bytes: Option<u64>,
    /// Why the rest is not read.
    pub avoided: Avoided,
    /// Bytes that the guest uses and of which the container holds more than that they are zeros.
    pub used_bytes: u64,
    /// Shares by volume.
    pub volumes: Vec<VolumeShare>,
}

/// What to put at one place: read it, or fill it with a byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where.
    pub span: VirtualSpan,
    /// The byte to fill it with; `None` if it is to be read.
    pub fill: Option<u8>,
}

impl CopyPlan {
    /// The reads and fills, in order.
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        let mut reads = self.reads.iter().map(|span| Part { span, fill: None }).peekable();
        let fills = self.fills.iter().map(|(span, byte)| Part { span: *span, fill: Some(*byte) });
        let mut fills = fills.peekable();
        std::iter::from_fn(move || match (reads.peek(), fills.peek()) {
            (Some(read), Some(fill)) if fill.span.start() < read.span.start() => fills.next(),
            (Some(_), _) => reads.next(),
            (None, _) => fills.next(),
        })
    }

    /// What of `part` is cloned: whole blocks. A part that ends elsewhere is read at its edges.
    pub fn cloned(&self, part: &Part) -> Option<VirtualSpan> {
        let block_bytes = self.clone_block_bytes.filter(|_| part.fill.is_none())?;
        let start = part.span.start().get().checked_next_multiple_of(block_bytes)?;
        let end = part.span.end().get() / block_bytes * block_bytes;
        (start < end).then(|| Span::between(VirtualOffset::new(start), VirtualOffset::new(end)))
    }

    /// Bytes of the reads that are cloned, and neither read nor written.
    pub fn cloned_bytes(&self) -> u64 {
        let parts = self.parts();
        parts.filter_map(|part| self.cloned(&part)).map(|span| span.len_bytes()).sum()
    }
}

/// Makes a plan from facts handed in from the disk's start to its end.
#[derive(Debug)]
pub struct CopyPlanner {
    options: CopyOptions,
    plan: CopyPlan,
}

impl CopyPlanner {
    /// A planner for a disk with so many volumes.
    pub fn new(options: CopyOptions, volume_count: usize) -> Self {
        let plan = CopyPlan {
            virtual_bytes: 0,
            reads: PackedExtents::new(),
            fills: Vec::new(),
            clone_block_bytes: None,
            avoided: Avoided::default(),
            used_bytes: 0,
            volumes: vec![VolumeShare::default(); volume_count],
        };
        Self { options, plan }
    }

    /// Takes the next facts. Panics unless they begin where the last ones ended.
    pub fn add(&mut self, facts: &[Fact]) {
        for fact in facts {
            assert_eq!(fact.span.start().get(), self.plan.virtual_bytes, "facts follow each other");
            self.plan.virtual_bytes = fact.span.end().get();
            self.share(fact);
            self.decide(fact);
        }
    }

    /// The plan for all that was added.
    pub fn finish(self) -> CopyPlan {
        let CopyPlan { virtual_bytes, avoided, ref reads, .. } = self.plan;
        let Avoided { unallocated_bytes, zero_bytes, free_bytes, swap_bytes, log_bytes } = avoided;
        let sum = reads.total_bytes() + unallocated_bytes + zero_bytes + free_bytes + swap_bytes + log_bytes;
        assert_eq!(sum, virtual_bytes, "every byte is read or avoided for one reason");
        self.plan
    }

    fn share(&mut self, fact: &Fact) {
        let len_bytes = fact.span.len_bytes();
        match fact.role {
            Role::Outside => {}
            Role::Whole(VolumeIndex(index))
            | Role::Used(VolumeIndex(index))
            | Role::EmptyLog(VolumeIndex(index), _) => {
                self.plan.volumes[index].used_bytes += len_bytes;
            }
            Role::Free(VolumeIndex(index)) => self.plan.volumes[index].free_bytes += len_bytes,
            Role::Swap(VolumeIndex(index)) => self.plan.volumes[index].swap_bytes += len_bytes,
        }
    }

    fn decide(&mut self, fact: &Fact) {
        let len_bytes = fact.span.len_bytes();
        let CopyPlan { avoided, reads, fills, used_bytes, .. } = &mut self.plan;
        let is_used = !matches!(fact.role, Role::Free(_) | Role::Swap(_));
        match (fact.state, fact.role) {
            (RunState::Hole, _) => avoided.unallocated_bytes += len_bytes,
            (RunState::Zero, _) => avoided.zero_bytes += len_bytes,
            (_, Role::Free(_)) if !self.options.keep_free => avoided.free_bytes += len_bytes,
            (_, Role::Swap(_)) if !self.options.keep_swap => avoided.swap_bytes += len_bytes,
            (_, Role::EmptyLog(_, byte)) if !self.options.keep_free => {
                avoided.log_bytes += len_bytes;
                fills.push((fact.span, byte));
            }
            (RunState::Data { .. } | RunState::Compressed { .. }, _) => reads.push(fact.span),
        }
        if is_used && !matches!(fact.state, RunState::Hole | RunState::Zero) {
            *used_bytes += len_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::FileIndex;
    use extent::{HostOffset, Span, VirtualOffset};

    fn plan(options: CopyOptions) -> CopyPlan {
        let volume = VolumeIndex(0);
        let data = RunState::Data { file: FileIndex(0), offset: HostOffset::ZERO };
        let states = [
            (data, Role::Outside),
            (data, Role::Used(volume)),
            (data, Role::Free(volume)),
            (data, Role::Swap(volume)),
            (RunState::Hole, Role::Used(volume)),
            (RunState::Zero, Role::Free(volume)),
            (data, Role::EmptyLog(volume, 0xff)),
            (data, Role::Used(volume)),
        ];
        let mut planner = CopyPlanner::new(options, 1);
        for (index, (state, role)) in (0..).zip(states) {
            planner.add(&[Fact { span: Span::new(VirtualOffset::new(index * 512), 512), state, role }]);
        }
        planner.finish()
    }

    #[test]
    fn what_means_nothing_is_avoided_for_the_first_reason_that_applies() {
        let plan = plan(CopyOptions::default());
        let avoided = Avoided {
            unallocated_bytes: 512,
            zero_bytes: 512,
            free_bytes: 512,
            swap_bytes: 512,
            log_bytes: 512,
        };
        assert_eq!(plan.avoided, avoided);
        let reads: Vec<_> = plan.reads.iter().map(|span| (span.start().get(), span.len_bytes())).collect();
        assert_eq!(reads, [(0, 1024), (3584, 512)]);
        let parts: Vec<_> = plan.parts().map(|part| (part.span.start().get(), part.fill)).collect();
        assert_eq!(parts, [(0, None), (3072, Some(0xff)), (3584, None)]);
        assert_eq!(plan.used_bytes, 2048);
        assert_eq!(plan.volumes, [VolumeShare { used_bytes: 2048, free_bytes: 1024, swap_bytes: 512 }]);
    }

    #[test]
    fn whole_blocks_within_the_reads_are_cloned() {
        let mut plan = plan(CopyOptions::default());
        assert_eq!(plan.cloned_bytes(), 0);
        plan.clone_block_bytes = Some(1024);
        let cloned = |plan: &CopyPlan| -> Vec<_> {
            let spans = plan.parts().filter_map(|part| plan.cloned(&part));
            spans.map(|span| (span.start().get(), span.end().get())).collect()
        };
        // Reads are of 0 to 1024, and of 3584 to 4096, which is no whole block.
        assert_eq!((cloned(&plan), plan.cloned_bytes()), (vec![(0, 1024)], 1024));
        plan.clone_block_bytes = Some(512);
        assert_eq!(cloned(&plan), [(0, 1024), (3584, 4096)]);
        let fill = Part { span: Span::from_zero(4096), fill: Some(0) };
        assert_eq!(plan.cloned(&fill), None);
        let within = Part { span: Span::new(VirtualOffset::new(100), 1000), fill: None };
        assert_eq!(plan.cloned(&within), Some(Span::new(VirtualOffset::new(512), 512)));
        let last = Part {
            span: Span::between(VirtualOffset::new(u64::MAX - 9), VirtualOffset::new(u64::MAX)),
            fill: None,
        };
        assert_eq!(plan.cloned(&last), None);
    }

    #[test]
    fn each_skip_can_be_turned_off() {
        let all = plan(CopyOptions { keep_free: true, keep_swap: true });
        assert_eq!(all.avoided.free_bytes + all.avoided.swap_bytes, 0);
        assert_eq!(all.reads.total_bytes(), 6 * 512);
        assert!(all.fills.is_empty());
    }
}
