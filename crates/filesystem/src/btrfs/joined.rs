//! The devices of a file system as one volume.
//!
//! The bytes of devices follow each other, device by device. Only what is striped lies elsewhere: each copy of a striped chunk is one
//! stretch, in the order of its addresses, in the place of its first column. So the volume of one device is that device.
//!
//! Invariants: every byte of every device is in one piece, and in no second one; every copy of a chunk is one stretch of the volume.

use std::sync::Arc;

use block::{ReadAt, Result, check_bounds};
use extent::{Offset, Span, Volume, VolumeOffset, VolumeSpan};

use super::chunk::{self, Chunks};
use super::layout::{RESERVED_BYTES, STRIPE_BYTES, SUPERBLOCK_BYTES, SUPERBLOCKS_AT};
use super::piece::{Column, Piece};
use super::superblock::Device;
use crate::Source;

/// Of what the volume consists.
#[derive(Clone, Default, Debug)]
pub(super) struct Layout {
    pieces: Vec<Piece>,
    /// Where each begins.
    starts: Vec<u64>,
    len_bytes: u64,
}

impl Layout {
    /// Lays the devices, and tells the chunks where on the volume their copies are.
    pub(super) fn of(devices: &[Device], chunks: &mut Chunks) -> Result<Self> {
        let held = chunk::by_device(chunks)?;
        let mut layout = Self::default();
        let mut held = held.iter().peekable();
        for (device, about) in devices.iter().enumerate() {
            let mut at = 0;
            while let Some(held) = held.next_if(|held| held.column.device == device) {
                let start = held.column.start_bytes;
                layout.push_straight(Column { device, start_bytes: at, len_bytes: start - at });
                at = held.column.end();
                if held.number == 0 {
                    let columns = chunks.all()[held.chunk].columns(held.copy);
                    chunks.put(held.chunk, held.copy, layout.len_bytes);
                    layout.push(columns);
                }
            }
            layout.push_straight(Column { device, start_bytes: at, len_bytes: about.volume_bytes - at });
        }
        Ok(layout)
    }

    /// A column that lies behind the last one is not told apart from it.
    fn push_straight(&mut self, column: Column) {
        if let Some(Piece { stripe_bytes, columns }) = self.pieces.last_mut()
            && let [last] = columns.as_mut_slice()
            && (last.device, last.end()) == (column.device, column.start_bytes)
        {
            last.len_bytes += column.len_bytes;
            *stripe_bytes = last.len_bytes;
            self.len_bytes += column.len_bytes;
        } else if column.len_bytes > 0 {
            self.push_piece(Piece { stripe_bytes: column.len_bytes, columns: vec![column] });
        }
    }

    fn push(&mut self, columns: Vec<Column>) {
        match columns.as_slice() {
            [only] => self.push_straight(*only),
            _ => self.push_piece(Piece { stripe_bytes: STRIPE_BYTES, columns }),
        }
    }

    fn push_piece(&mut self, piece: Piece) {
        self.starts.push(self.len_bytes);
        self.len_bytes += piece.len_bytes();
        self.pieces.push(piece);
    }

    pub(super) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    pub(super) fn span(&self) -> VolumeSpan {
        Span::from_zero(self.len_bytes)
    }

    /// Where a part of a device is on the volume.
    fn of_device(&self, wanted: &Column) -> Vec<VolumeSpan> {
        let mut spans = Vec::new();
        for (piece, start) in self.pieces.iter().zip(&self.starts) {
            piece.each_of(wanted, &mut |at, len| spans.push(Span::new(Offset::new(start + at), len)));
        }
        spans
    }

    /// What of all devices is kept for boot loaders, superblocks, and what lies behind the end of each.
    pub(super) fn kept(&self, devices: &[Device]) -> Vec<VolumeSpan> {
        let mut spans = Vec::new();
        for (device, about) in devices.iter().enumerate() {
            let superblocks = SUPERBLOCKS_AT.map(|at| (at, SUPERBLOCK_BYTES));
            let behind = (about.len_bytes, about.volume_bytes - about.len_bytes);
            for (start_bytes, len_bytes) in superblocks.into_iter().chain([(0, RESERVED_BYTES), behind]) {
                spans.extend(self.of_device(&Column { device, start_bytes, len_bytes }));
            }
        }
        spans
    }

    /// The volume, of which `sources` are the devices.
    pub(super) fn volume(self: &Arc<Self>, sources: &[Source]) -> Source {
        match (sources, self.pieces()) {
            ([only], [_]) => only.clone(),
            _ => Arc::new(View { sources: sources.to_vec(), layout: self.clone() }),
        }
    }
}

/// Reads from devices what lies there.
struct View {
    sources: Vec<Source>,
    layout: Arc<Layout>,
}

impl ReadAt<Volume> for View {
    fn len_bytes(&self) -> u64 {
        self.layout.len_bytes
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        let Layout { pieces, starts, len_bytes } = &*self.layout;
        check_bounds(at, buf.len(), *len_bytes)?;
        let (mut at, mut rest) = (at.get(), buf);
        while !rest.is_empty() {
            let index = starts.partition_point(|start| *start <= at) - 1;
            let found = pieces[index].find(at - starts[index]);
            let len = usize::try_from(found.len_bytes).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            self.sources[found.device].read_at(Offset::new(found.start_bytes), now)?;
            (at, rest) = (at + len as u64, later);
        }
        Ok(())
    }
}
