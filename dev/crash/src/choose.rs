//! Random batches that keep the contract of batches, or, for a mutant, break it.

use block::Result;
use extent::{ExtentSet, Offset, Span, Volume, VolumeOffset, VolumeSpan};
use filesystem::{
    FileExtent, FileId, FileStream, Mobility, Rearrange, Relocation, Relocations, StreamVisitor,
};
use sim::Random;

/// What may move.
#[derive(Default)]
struct Movable(Vec<(FileId, Vec<VolumeSpan>, Mobility)>);

impl StreamVisitor for Movable {
    fn stream(&mut self, stream: FileStream<'_>, extents: &[FileExtent], mobility: Mobility) {
        if mobility.stays().is_some() || extents.is_empty() {
            return;
        }
        let mut spans: Vec<VolumeSpan> = extents.iter().map(|extent| extent.span).collect();
        // Parts of one compressed unit lie in the same place.
        spans.dedup();
        self.0.push((stream.file, spans, mobility));
    }
}

/// A batch that moves something of up to `stream_count` streams, and nothing to `taboo`. With `reuses`, one of them goes to where another was.
pub(crate) fn batch(
    rearrange: &dyn Rearrange,
    random: &mut Random,
    stream_count: u64,
    taboo: &ExtentSet<Volume>,
    reuses: bool,
) -> Result<Relocations> {
    let mut movable = Movable::default();
    rearrange.each_stream(&mut movable)?;
    let mut free = Vec::new();
    rearrange.each_room(&mut |span| free.push(span))?;
    let mut room = free.into_iter().collect::<ExtentSet<Volume>>().subtract(taboo);
    let mut streams = movable.0;
    let mut all: Vec<Relocation> = Vec::new();
    for _ in 0..stream_count {
        if streams.is_empty() {
            break;
        }
        let (file, spans, mobility) = streams.swap_remove(pick(random, streams.len()));
        let chosen = if mobility == Mobility::Movable && random.below(3) == 0 {
            vec![spans[pick(random, spans.len())]]
        } else {
            spans
        };
        let len_bytes = chosen.iter().map(VolumeSpan::len_bytes).sum();
        let Some(mut to) = place(rearrange, random, &room, len_bytes) else { continue };
        room = room.subtract(&[Span::new(to, len_bytes)].into_iter().collect());
        let is_first = all.is_empty();
        for from in chosen {
            all.push(Relocation { from, to, file });
            to = to.plus(from.len_bytes());
        }
        if reuses && is_first {
            room = all.iter().map(|each| each.from).collect();
        }
    }
    Relocations::new(all)
}

fn pick(random: &mut Random, count: usize) -> usize {
    usize::try_from(random.below(count as u64)).expect("an index")
}

/// A random place with room for so much.
fn place(
    rearrange: &dyn Rearrange,
    random: &mut Random,
    room: &ExtentSet<Volume>,
    len_bytes: u64,
) -> Option<VolumeOffset> {
    let large: Vec<VolumeSpan> = room.iter().filter(|span| span.len_bytes() >= len_bytes).collect();
    let span = large.get(usize::try_from(random.below(large.len().max(1) as u64)).ok()?)?;
    let unit = rearrange.cluster_bytes();
    let spare = (span.len_bytes() - len_bytes) / unit;
    // Often as tight as can be, so that moves join neighbours.
    let skipped = if random.coin() { 0 } else { random.below(spare + 1) };
    Some(Offset::new(span.start().get() + skipped * unit))
}
