//! From a chunk's bytes to pieces: granules of zeros are left out, others encoded or joined.

use block::{Result, is_zero};
use extent::{VirtualOffset, VirtualSpan};
use image::{Encoder, Piece, PieceBytes};
use plan::Part;

/// The pieces of one chunk.
#[derive(Default)]
pub(crate) struct Cut {
    pub(crate) pieces: Vec<Piece>,
    /// Bytes that were read and turned out to be zeros.
    pub(crate) zeros_found_bytes: u64,
}

/// Cuts `chunk`, which begins at `chunk_at` and of which `parts` were read or filled (the rest is zeros).
pub(crate) fn cut(
    chunk_at: VirtualOffset,
    chunk: &[u8],
    parts: &[Part],
    granularity: usize,
    mut encoder: Option<&mut (dyn Encoder + 'static)>,
) -> Result<Cut> {
    let mut cut = Cut::default();
    let mut done = 0;
    for Part { span, .. } in parts {
        let start = offset_in(chunk_at, span.start()) / granularity * granularity;
        let end = offset_in(chunk_at, span.end());
        for at in (start.max(done)..end).step_by(granularity) {
            let granule = &chunk[at..at + granularity];
            if is_zero(granule) {
                continue;
            }
            let encoded = encoder.as_mut().map(|encoder| encoder.encode(granule)).transpose()?.flatten();
            cut.push(chunk_at, at..at + granularity, encoded);
        }
        done = done.max(end.next_multiple_of(granularity));
    }
    let reads = parts.iter().filter(|part| part.fill.is_none()).map(|part| &part.span);
    cut.zeros_found_bytes = reads.map(|read| read.len_bytes() - cut.bytes_within(read)).sum();
    Ok(cut)
}

impl Cut {
    fn push(&mut self, chunk_at: VirtualOffset, range: std::ops::Range<usize>, encoded: Option<Vec<u8>>) {
        let len_bytes = range.len() as u64;
        if let (None, Some(Piece { len_bytes: before_bytes, bytes: PieceBytes::Plain(before), .. })) =
            (&encoded, self.pieces.last_mut())
            && before.end == range.start
        {
            before.end = range.end;
            *before_bytes += len_bytes;
            return;
        }
        let at = chunk_at.plus(range.start as u64);
        let bytes = encoded.map_or(PieceBytes::Plain(range), PieceBytes::Encoded);
        self.pieces.push(Piece { at, len_bytes, bytes });
    }

    fn bytes_within(&self, read: &VirtualSpan) -> u64 {
        let first = self.pieces.partition_point(|piece| piece.at.plus(piece.len_bytes) <= read.start());
        self.pieces[first..]
            .iter()
            .map_while(|piece| VirtualSpan::new(piece.at, piece.len_bytes).intersect(read))
            .map(|both| both.len_bytes())
            .sum()
    }
}

pub(crate) fn offset_in(chunk_at: VirtualOffset, at: VirtualOffset) -> usize {
    usize::try_from(at.get() - chunk_at.get()).expect("within the chunk")
}

#[cfg(test)]
mod tests {
    use super::*;
    use extent::Span;

    #[test]
    fn zeros_are_left_out_and_neighbours_joined() {
        let mut chunk = vec![0u8; 64];
        chunk[9] = 1;
        chunk[16..24].fill(2);
        chunk[40] = 3;
        let at = VirtualOffset::new(1024);
        let part = |start, len_bytes, fill| Part { span: Span::new(at.plus(start), len_bytes), fill };
        let parts = [part(4, 16, None), part(21, 3, Some(2)), part(24, 1, None), part(40, 24, None)];
        let cut = cut(at, &chunk, &parts, 8, None).unwrap();
        let found: Vec<_> = cut.pieces.iter().map(|piece| (piece.at.get() - 1024, piece.len_bytes)).collect();
        assert_eq!(found, [(8, 16), (40, 8)]);
        assert_eq!(cut.zeros_found_bytes, 4 + 1 + 16);
    }
}
