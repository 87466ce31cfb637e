//! A part of a virtual disk as a volume of its own.

use std::sync::Arc;

use block::{ReadAt, Result, check_bounds};
use extent::{VirtualSpan, Volume, VolumeOffset};
use image::Chain;

pub(crate) struct VolumeView {
    chain: Arc<Chain>,
    span: VirtualSpan,
}

impl VolumeView {
    /// `span` lies on the disk.
    pub(crate) fn new(chain: Arc<Chain>, span: VirtualSpan) -> Self {
        Self { chain, span }
    }
}

impl ReadAt<Volume> for VolumeView {
    fn len_bytes(&self) -> u64 {
        self.span.len_bytes()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.span.len_bytes())?;
        self.chain.read_at(self.span.start().plus(at.get()), buf)
    }
}
