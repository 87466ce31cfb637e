//! The container's map and the guest's used maps, laid over each other.

use block::{ReadAt, Result, Run};
use extent::{Span, VirtualSpan};
use plan::{Fact, Role};

use crate::regions::{Region, push_role};
use crate::{Stack, UsedMaps};

/// Facts are asked for in windows of this size, so that those of a badly fragmented disk fit in memory.
pub(crate) const WINDOW_BYTES: u64 = 256 << 20;

impl Stack {
    /// Calls `each` with the facts of the whole disk, window by window, in order.
    pub fn each_facts(&self, maps: &UsedMaps, mut each: impl FnMut(&[Fact])) -> Result<()> {
        for window in Span::from_zero(self.chain.len_bytes()).split(WINDOW_BYTES) {
            each(&self.facts(maps, window)?);
        }
        Ok(())
    }

    /// The facts of `window`, covering it exactly, in order. No data is read.
    pub fn facts(&self, maps: &UsedMaps, window: VirtualSpan) -> Result<Vec<Fact>> {
        let runs = self.chain.map_with_host(window)?;
        let roles = self.roles(maps, window)?;
        Ok(overlay(&runs, &roles))
    }

    fn roles(&self, maps: &UsedMaps, window: VirtualSpan) -> Result<Vec<(VirtualSpan, Role)>> {
        let mut roles = Vec::new();
        let mut at = window.start();
        for region in self.regions_within(window) {
            let Some(inside) = region.span.intersect(&window) else { break };
            push_role(&mut roles, Span::between(at, inside.start()), Role::Outside);
            region.roles(&maps.modes()[region.volume], inside, &mut roles)?;
            at = inside.end();
        }
        push_role(&mut roles, Span::between(at, window.end()), Role::Outside);
        Ok(roles)
    }

    /// The regions that end behind the window's start.
    pub(crate) fn regions_within(&self, window: VirtualSpan) -> &[Region] {
        let first = self.regions.partition_point(|region| region.span.end() <= window.start());
        &self.regions[first..]
    }
}

/// Cuts two covers of one window at each other's borders.
pub(crate) fn overlay(runs: &[Run], roles: &[(VirtualSpan, Role)]) -> Vec<Fact> {
    let mut facts = Vec::with_capacity(runs.len() + roles.len());
    let mut runs = runs.iter().peekable();
    for (span, role) in roles {
        while let Some(run) = runs.peek() {
            if let Some(part) = run.clipped(span) {
                facts.push(Fact { span: part.span, state: part.state, role: *role });
            }
            if run.span.end() > span.end() {
                break;
            }
            runs.next();
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{FileIndex, RunState};
    use extent::{HostOffset, VirtualOffset};
    use plan::VolumeIndex;

    fn span(start: u64, len: u64) -> VirtualSpan {
        Span::new(VirtualOffset::new(start), len)
    }

    #[test]
    fn two_covers_are_cut_at_each_others_borders() {
        let data = |offset| RunState::Data { file: FileIndex(0), offset: HostOffset::new(offset) };
        let runs = [Run::new(span(0, 10), data(100)), Run::new(span(10, 10), RunState::Hole)];
        let roles = [
            (span(0, 4), Role::Outside),
            (span(4, 12), Role::Free(VolumeIndex(0))),
            (span(16, 4), Role::Outside),
        ];
        let expected = [
            Fact { span: span(0, 4), state: data(100), role: Role::Outside },
            Fact { span: span(4, 6), state: data(104), role: Role::Free(VolumeIndex(0)) },
            Fact { span: span(10, 6), state: RunState::Hole, role: Role::Free(VolumeIndex(0)) },
            Fact { span: span(16, 4), state: RunState::Hole, role: Role::Outside },
        ];
        assert_eq!(overlay(&runs, &roles), expected);
    }
}
