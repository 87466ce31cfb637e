//! A part of a virtual disk as a volume of its own.

use std::sync::Arc;

use block::{ReadAt, Result, check_bounds};
use extent::{Span, Volume, VolumeOffset};
use image::Chain;

use crate::placement::Placement;

pub(crate) struct VolumeView {
    chain: Arc<Chain>,
    place: Placement,
}

impl VolumeView {
    /// `place` lies on the disk.
    pub(crate) fn new(chain: Arc<Chain>, place: Placement) -> Self {
        Self { chain, place }
    }
}

impl ReadAt<Volume> for VolumeView {
    fn len_bytes(&self) -> u64 {
        self.place.len_bytes()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.place.len_bytes())?;
        let mut parts = Vec::new();
        self.place.each_on_disk(Span::new(at, buf.len() as u64), |_, part| parts.push(part));
        let mut rest = buf;
        for part in parts {
            let len = usize::try_from(part.len_bytes()).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            self.chain.read_at(part.start(), now)?;
            rest = later;
        }
        Ok(())
    }
}
