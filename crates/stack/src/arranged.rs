//! A disk as it would read if files of its volumes lay elsewhere: for copies that pack.
//!
//! Invariants:
//! - what moves is read from where it lies, what describes it is rewritten as it is read, all else is as it was;
//! - the facts of a window cover it exactly, in order, as [`Stack::facts`] does;
//! - what a guest left behind where it no longer owns anything is free, so that it does not travel.

use std::sync::Arc;

use block::{FileIndex, ReadAt, Result, Run, RunState, check_bounds, push_run};
use extent::{
    Extent, ExtentSet, HostOffset, Span, Virtual, VirtualOffset, VirtualSpan, Volume, VolumeOffset,
    VolumeSpan,
};
use filesystem::{Relocations, Rewritten, Use, UsedMap};
use plan::{Fact, Role, VolumeIndex};

use crate::facts::{WINDOW_BYTES, overlay};
use crate::regions::{push_role, role_of};
use crate::{Mode, Stack, UsedMaps};

/// Pieces that lie no further apart are read at once: less than a request costs on any storage.
const GAP_BYTES_MAX: u64 = 16 << 10;
/// And no more than this at once.
const GROUP_BYTES_MAX: u64 = 1 << 20;

/// How one volume's files are to lie.
pub struct Arrangement {
    /// What moves, all of it at once.
    pub relocations: Arc<Relocations>,
    /// The metadata that say so.
    pub rewritten: Box<dyn Rewritten>,
}

/// A disk, rearranged.
pub struct Arranged<'a> {
    stack: &'a Stack,
    volumes: Vec<Option<Arrangement>>,
}

impl<'a> Arranged<'a> {
    /// `volumes` has one a volume, in the order of [`Stack::volumes`]; `None` for one that stays as it is, as logical volumes and
    /// what they lie on all do.
    pub fn new(stack: &'a Stack, volumes: Vec<Option<Arrangement>>) -> Self {
        assert_eq!(stack.volumes().len(), volumes.len(), "one a volume");
        let both = stack.volumes().iter().zip(&volumes);
        let is_one_region =
            |index: usize| stack.regions().iter().filter(|it| it.volume == index).count() == 1;
        for (index, (volume, arrangement)) in both.enumerate() {
            let is_possible = volume.span().is_some() && is_one_region(index);
            assert!(arrangement.is_none() || is_possible, "an arranged volume lies in one piece");
        }
        Self { stack, volumes }
    }

    /// Calls `each` with the facts of the whole disk, window by window, in order.
    pub fn each_facts(&self, maps: &UsedMaps, mut each: impl FnMut(&[Fact])) -> Result<()> {
        for window in Span::from_zero(self.len_bytes()).split(WINDOW_BYTES) {
            each(&self.facts(maps, window)?);
        }
        Ok(())
    }

    fn facts(&self, maps: &UsedMaps, window: VirtualSpan) -> Result<Vec<Fact>> {
        let mut runs = Vec::new();
        let mut roles = Vec::new();
        let mut at = window.start();
        for region in self.stack.regions_within(window) {
            let Some(inside) = region.span.intersect(&window) else { break };
            let index = region.volume;
            let before = Span::between(at, inside.start());
            self.plain_runs(before, &mut runs)?;
            push_role(&mut roles, before, Role::Outside);
            let mode = &maps.modes()[index];
            match (&self.volumes[index], mode) {
                (Some(arrangement), Mode::UsedOnly(map)) => {
                    let part = Part { stack: self.stack, volume: region.span, arrangement };
                    part.runs(inside, &mut runs)?;
                    part.roles(&**map, VolumeIndex(index), inside, &mut roles)?;
                }
                _ => {
                    self.plain_runs(inside, &mut runs)?;
                    region.roles(mode, inside, &mut roles)?;
                }
            }
            at = inside.end();
        }
        let after = Span::between(at, window.end());
        self.plain_runs(after, &mut runs)?;
        push_role(&mut roles, after, Role::Outside);
        Ok(overlay(&runs, &roles))
    }

    fn plain_runs(&self, span: VirtualSpan, runs: &mut Vec<Run>) -> Result<()> {
        if !span.is_empty() {
            self.stack.chain().map_with_host(span)?.into_iter().for_each(|run| push_run(runs, run));
        }
        Ok(())
    }
}

impl ReadAt<Virtual> for Arranged<'_> {
    fn len_bytes(&self) -> u64 {
        self.stack.chain().len_bytes()
    }

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        let asked = Span::new(at, buf.len() as u64);
        let mut pieces = Pieces::new(at);
        let mut done = at;
        for (volume, arrangement) in self.stack.volumes().iter().zip(&self.volumes) {
            let span = volume.span();
            let inside = span.and_then(|span| span.intersect(&asked));
            let (Some(span), Some(inside), Some(arrangement)) = (span, inside, arrangement) else { continue };
            pieces.push(Span::between(done, inside.start()), done);
            Part { stack: self.stack, volume: span, arrangement }.read(inside, &mut pieces, buf)?;
            done = inside.end();
        }
        pieces.push(Span::between(done, asked.end()), done);
        pieces.read(self.stack, buf)
    }
}

/// What is still to be read: spans of the buffer, and where their bytes lie on the disk as it is.
struct Pieces {
    base: VirtualOffset,
    pieces: Vec<(VirtualSpan, VirtualOffset)>,
}

impl Pieces {
    fn new(base: VirtualOffset) -> Self {
        Self { base, pieces: Vec::new() }
    }

    fn push(&mut self, target: VirtualSpan, origin: VirtualOffset) {
        if !target.is_empty() {
            self.pieces.push((target, origin));
        }
    }

    fn range(&self, target: VirtualSpan) -> std::ops::Range<usize> {
        let index =
            |at: VirtualOffset| usize::try_from(at.get() - self.base.get()).expect("within the buffer");
        index(target.start())..index(target.end())
    }

    /// Reads all of them, those that lie near each other at once.
    fn read(mut self, stack: &Stack, buf: &mut [u8]) -> Result<()> {
        self.pieces.sort_unstable_by_key(|(_, origin)| *origin);
        let origin_end = |(target, origin): &(VirtualSpan, VirtualOffset)| origin.plus(target.len_bytes());
        let mut rest = &self.pieces[..];
        let mut scratch = Vec::new();
        while let Some((first, others)) = rest.split_first() {
            let start = first.1;
            let mut end = origin_end(first);
            let mut count = 1;
            for piece in others {
                let grown = end.max(origin_end(piece));
                let is_near = piece.1.get() <= end.get().saturating_add(GAP_BYTES_MAX);
                if !is_near || grown.get() - start.get() > GROUP_BYTES_MAX {
                    break;
                }
                end = grown;
                count += 1;
            }
            let (group, after) = rest.split_at(count);
            rest = after;
            if let [(target, origin)] = group {
                stack.chain().read_at(*origin, &mut buf[self.range(*target)])?;
                continue;
            }
            scratch.resize(usize::try_from(end.get() - start.get()).expect("at most a group"), 0);
            stack.chain().read_at(start, &mut scratch)?;
            for (target, origin) in group {
                let from = usize::try_from(origin.get() - start.get()).expect("within the group");
                let range = self.range(*target);
                buf[range.clone()].copy_from_slice(&scratch[from..from + range.len()]);
            }
        }
        Ok(())
    }
}

/// An arranged volume.
struct Part<'a> {
    stack: &'a Stack,
    volume: VirtualSpan,
    arrangement: &'a Arrangement,
}

impl Part<'_> {
    fn on_disk(&self, at: VolumeOffset) -> VirtualOffset {
        self.volume.start().plus(at.get())
    }

    fn span_on_disk(&self, span: VolumeSpan) -> VirtualSpan {
        Span::new(self.on_disk(span.start()), span.len_bytes())
    }

    fn on_volume(&self, span: VirtualSpan) -> VolumeSpan {
        Span::new(VolumeOffset::new(span.start().get() - self.volume.start().get()), span.len_bytes())
    }

    /// The pieces of a span of the disk, in order: what is rewritten, and what is as it lies somewhere now.
    fn pieces(&self, inside: VirtualSpan) -> Vec<(VolumeSpan, Origin)> {
        let Arrangement { relocations, rewritten } = self.arrangement;
        let mut pieces = Vec::new();
        relocations.each_origin(self.on_volume(inside), |span, origin| {
            if origin != span.start() {
                pieces.push((span, Origin::At(origin)));
                return;
            }
            let mut at = span.start();
            for place in rewritten.places().within(span) {
                let stays = Span::between(at, place.start());
                if !stays.is_empty() {
                    pieces.push((stays, Origin::At(at)));
                }
                pieces.push((place, Origin::Rewritten));
                at = place.end();
            }
            let stays = Span::between(at, span.end());
            if !stays.is_empty() {
                pieces.push((stays, Origin::At(at)));
            }
        });
        pieces
    }

    fn runs(&self, inside: VirtualSpan, runs: &mut Vec<Run>) -> Result<()> {
        for (span, origin) in self.pieces(inside) {
            let target = self.span_on_disk(span);
            let Origin::At(origin) = origin else {
                // Whatever is there now, it is to be read: the place does not matter.
                let state = RunState::Data { file: FileIndex(0), offset: HostOffset::ZERO };
                push_run(runs, Run::new(target, state));
                continue;
            };
            let asked = Span::new(self.on_disk(origin), span.len_bytes());
            for run in self.stack.chain().map_with_host(asked)? {
                let skipped = run.span.start().get() - asked.start().get();
                let moved = Span::new(target.start().plus(skipped), run.span.len_bytes());
                push_run(runs, Run::new(moved, run.state));
            }
        }
        Ok(())
    }

    fn roles(
        &self,
        map: &dyn UsedMap,
        index: VolumeIndex,
        inside: VirtualSpan,
        roles: &mut Vec<(VirtualSpan, Role)>,
    ) -> Result<()> {
        let mut push = |span: VolumeSpan, usage: Use| {
            push_role(roles, self.span_on_disk(span), role_of(usage, index));
        };
        for (span, origin) in self.pieces(inside) {
            let origin = match origin {
                Origin::Rewritten => {
                    push(span, Use::Used);
                    continue;
                }
                Origin::At(origin) => origin,
            };
            let uses = map.uses(Span::new(origin, span.len_bytes()))?;
            if origin == span.start() {
                self.stays(&uses, &mut push);
            } else {
                for Extent { span: used, state } in uses {
                    let skipped = used.start().get() - origin.get();
                    // A file's bytes travel, whatever a map says of where they lay.
                    let state = if state == Use::Free { Use::Used } else { state };
                    push(Span::new(span.start().plus(skipped), used.len_bytes()), state);
                }
            }
        }
        Ok(())
    }

    /// What nothing goes to: used as before, unless something left it.
    fn stays(&self, uses: &[Extent<Volume, Use>], push: &mut impl FnMut(VolumeSpan, Use)) {
        let Arrangement { relocations, rewritten } = self.arrangement;
        for Extent { span, state } in uses {
            let left: ExtentSet<Volume> = relocations
                .departures(*span)
                .map(|departure| departure.from)
                .chain(rewritten.freed().within(*span))
                .collect();
            let mut at = span.start();
            for vacated in left.iter() {
                push(Span::between(at, vacated.start()), *state);
                push(vacated, Use::Free);
                at = vacated.end();
            }
            push(Span::between(at, span.end()), *state);
        }
    }

    /// Reads what is rewritten; notes the rest.
    fn read(&self, inside: VirtualSpan, pieces: &mut Pieces, buf: &mut [u8]) -> Result<()> {
        for (span, origin) in self.pieces(inside) {
            let target = self.span_on_disk(span);
            match origin {
                Origin::At(origin) => pieces.push(target, self.on_disk(origin)),
                Origin::Rewritten => {
                    let range = pieces.range(target);
                    self.arrangement.rewritten.read_at(span.start(), &mut buf[range])?;
                }
            }
        }
        Ok(())
    }
}

/// Where bytes come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// They lie here on the volume now.
    At(VolumeOffset),
    /// They are computed.
    Rewritten,
}
