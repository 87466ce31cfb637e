//! The facts of a disk as they will be once files of its volumes moved in place.
//!
//! Invariant: only roles change, of what was left and of what was taken. What the container holds is as it was: nothing is
//! taken but what it holds.

use extent::{ExtentSet, Span, VirtualSpan, Volume, VolumeOffset, VolumeSpan};
use filesystem::Relocations;

use crate::facts::{Fact, Role, VolumeIndex};

/// What changed hands on a volume.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Free now.
    left: ExtentSet<Volume>,
    /// Used now.
    taken: ExtentSet<Volume>,
}

impl Moved {
    /// All of `batches`, one after the other; `freed` is what maps that get smaller leave.
    pub fn new(batches: &[Relocations], freed: &ExtentSet<Volume>) -> Self {
        let mut moved = Self::default();
        for batch in batches {
            let left: ExtentSet<Volume> = batch.by_source().map(|each| each.from).collect();
            let taken: ExtentSet<Volume> = batch.by_destination().map(|each| each.to_span()).collect();
            moved.left = moved.left.union(&left).subtract(&taken);
            moved.taken = moved.taken.union(&taken).subtract(&left);
        }
        moved.left = moved.left.union(freed);
        moved
    }
}

/// `facts` after the moves on their volumes, whose spans on the disk are `volumes`: `None` where nothing can have moved.
pub fn facts_after(facts: Vec<Fact>, volumes: &[(Option<VirtualSpan>, Moved)]) -> Vec<Fact> {
    let mut after = Vec::with_capacity(facts.len());
    for fact in facts {
        let (index, is_used) = match fact.role {
            Role::Used(VolumeIndex(index)) => (index, true),
            Role::Free(VolumeIndex(index)) => (index, false),
            Role::Outside | Role::Whole(_) | Role::Swap(_) | Role::EmptyLog(..) => {
                after.push(fact);
                continue;
            }
        };
        let (Some(volume), moved) = &volumes[index] else {
            after.push(fact);
            continue;
        };
        let (changed, role) = match is_used {
            true => (&moved.left, Role::Free(VolumeIndex(index))),
            false => (&moved.taken, Role::Used(VolumeIndex(index))),
        };
        let start = VolumeOffset::new(fact.span.start().get() - volume.start().get());
        let inside: VolumeSpan = Span::new(start, fact.span.len_bytes());
        let mut at = inside.start();
        let mut push = |part: VolumeSpan, role| {
            if !part.is_empty() {
                let skipped = part.start().get() - start.get();
                let span = Span::new(fact.span.start().plus(skipped), part.len_bytes());
                after.push(Fact { span, state: fact.state.advanced(skipped), role });
            }
        };
        for part in changed.within(inside) {
            push(Span::between(at, part.start()), fact.role);
            push(part, role);
            at = part.end();
        }
        push(Span::between(at, inside.end()), fact.role);
    }
    after
}

#[cfg(test)]
mod tests {
    use block::{FileIndex, RunState};
    use extent::{HostOffset, VirtualOffset};
    use filesystem::{FileId, Relocation};

    use super::*;

    #[test]
    fn roles_follow_what_moves_and_places_do_not() {
        let on_volume = |start: u64, len: u64| VolumeSpan::new(VolumeOffset::new(start), len);
        let on_disk = |start: u64, len: u64| VirtualSpan::new(VirtualOffset::new(start), len);
        let batch = |from: u64, len: u64, to: u64| {
            let each = Relocation { from: on_volume(from, len), to: VolumeOffset::new(to), file: FileId(1) };
            Relocations::new(vec![each]).unwrap()
        };
        // To what was free, and on from there; then something else to what the first left.
        let batches = [batch(10, 4, 30), batch(30, 4, 36), batch(20, 2, 11)];
        let moved = Moved::new(&batches, &[on_volume(18, 1)].into_iter().collect());
        let data = |offset| RunState::Data { file: FileIndex(0), offset: HostOffset::new(offset) };
        let fact = |start, len, state, role| Fact { span: on_disk(start, len), state, role };
        let (used, free) = (Role::Used(VolumeIndex(0)), Role::Free(VolumeIndex(0)));
        let facts = vec![
            fact(0, 100, data(5), Role::Outside),
            fact(100, 30, data(1000), used),
            fact(130, 20, data(2000), free),
        ];
        let after = facts_after(facts, &[(on_disk(100, 50), moved)]);
        let expected = [
            fact(0, 100, data(5), Role::Outside),
            fact(100, 10, data(1000), used),
            fact(110, 1, data(1010), free),
            fact(111, 2, data(1011), used),
            fact(113, 1, data(1013), free),
            fact(114, 4, data(1014), used),
            fact(118, 1, data(1018), free),
            fact(119, 1, data(1019), used),
            fact(120, 2, data(1020), free),
            fact(122, 8, data(1022), used),
            fact(130, 6, data(2000), free),
            fact(136, 4, data(2006), used),
            fact(140, 10, data(2010), free),
        ];
        assert_eq!(after, expected);
    }
}
