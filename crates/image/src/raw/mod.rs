//! Raw: the virtual disk's bytes as they are, in a file or on a block device.

use std::sync::Arc;

use block::{FileIndex, HostFile, Result, Run, RunState};
use extent::{HostOffset, Span, VirtualOffset, VirtualSpan};
use serde::{Deserialize, Serialize};

use crate::{
    CreateOptions, Facts, Finish, Format, Growth, Layer, Piece, PieceBytes, TargetWrite, WriteBytes, Writer,
};

struct Raw {
    facts: Facts,
    files: [Arc<dyn HostFile>; 1],
}

/// Presents `file` as a raw disk. Nothing about it can be wrong.
pub fn open(file: Arc<dyn HostFile>) -> Result<Box<dyn Layer>> {
    let facts = Facts {
        format: Format::Raw,
        variant: if file.is_block_device() { "block device" } else { "file" }.into(),
        virtual_bytes: file.len_bytes(),
        sector_bytes: 512,
        cluster_bytes: None,
        id: None,
        unreadable: None,
        snapshot_count: 0,
        details: Vec::new(),
    };
    Ok(Box::new(Raw { facts, files: [file] }))
}

impl Layer for Raw {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn files(&self) -> &[Arc<dyn HostFile>] {
        &self.files
    }

    fn map(&self, span: VirtualSpan) -> Result<Vec<Run>> {
        let offset = HostOffset::new(span.start().get());
        Ok(vec![Run::new(span, RunState::Data { file: FileIndex(0), offset })])
    }

    /// Nothing but contents, all of them in their place.
    fn check_editable(&self) -> Result<()> {
        Ok(())
    }
}

/// Four KiB: the least that any host file system allocates.
const GRANULARITY_BYTES: u64 = 4096;

/// Writes a sparse file, or a block device whose old contents it zeroes between the pieces.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RawWriter {
    virtual_bytes: u64,
    target_is_dirty: bool,
    /// Everything before this is written or zeroed.
    done: u64,
}

impl RawWriter {
    /// A writer for `options`.
    pub fn new(options: CreateOptions) -> Result<Self> {
        options.finish(Format::Raw)?;
        let CreateOptions { virtual_bytes, target_is_dirty, .. } = options;
        Ok(Self { virtual_bytes, target_is_dirty, done: 0 })
    }

    fn zero_up_to(&mut self, end: u64, puts: &mut Vec<TargetWrite>) {
        if self.target_is_dirty && end > self.done {
            puts.push(TargetWrite {
                at: HostOffset::new(self.done),
                bytes: WriteBytes::Zero(end - self.done),
            });
        }
        self.done = end;
    }
}

impl Writer for RawWriter {
    fn granularity_bytes(&self) -> u64 {
        GRANULARITY_BYTES
    }

    /// Every byte has its place from the start, and most may stay holes.
    fn growth(&self) -> Growth {
        Growth::Mirrored
    }

    fn target_is_dirty(&self) -> bool {
        self.target_is_dirty
    }

    fn place(&mut self, _chunk_at: VirtualOffset, pieces: Vec<Piece>) -> Result<Vec<TargetWrite>> {
        let mut puts = Vec::new();
        for piece in pieces {
            let start = piece.at.get();
            self.zero_up_to(start, &mut puts);
            // The last granule may reach past the disk's end; nothing but its filling does.
            let end = Span::new(piece.at, piece.len_bytes).end().get().min(self.virtual_bytes);
            let bytes = match piece.bytes {
                PieceBytes::Plain(range) => {
                    let len = usize::try_from(end - start).expect("within a chunk");
                    WriteBytes::Chunk(range.start..range.start + len)
                }
                PieceBytes::Encoded(bytes) => WriteBytes::Owned(bytes),
            };
            puts.push(TargetWrite { at: HostOffset::new(start), bytes });
            self.done = end;
        }
        Ok(puts)
    }

    fn finish(&mut self) -> Result<Finish> {
        let mut tables = Vec::new();
        self.zero_up_to(self.virtual_bytes, &mut tables);
        Ok(Finish { tables, headers: Vec::new(), len_bytes: self.virtual_bytes })
    }
}
