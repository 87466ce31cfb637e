//! A part of a virtual disk, or of several, as a volume of its own.

use std::sync::Arc;

use block::{ReadAt, Result, check_bounds};
use extent::{Span, Volume, VolumeOffset};
use image::Chain;

use crate::placement::{Column, DiskIndex, Placement};

pub(crate) struct VolumeView {
    disks: Disks,
    place: Placement,
}

impl VolumeView {
    /// `place` lies on the disks.
    pub(crate) fn new(disks: Disks, place: Placement) -> Self {
        Self { disks, place }
    }
}

/// The disk that was opened, and behind it those that were named with it: a volume may lie on several.
#[derive(Clone)]
pub(crate) struct Disks(Arc<[Arc<Chain>]>);

impl Disks {
    pub(crate) fn new(own: Arc<Chain>, others: impl Iterator<Item = Arc<Chain>>) -> Self {
        Self(std::iter::once(own).chain(others).collect())
    }

    fn of(&self, disk: DiskIndex) -> &Chain {
        &self.0[disk.0]
    }
}

impl ReadAt<Volume> for VolumeView {
    fn len_bytes(&self) -> u64 {
        self.place.len_bytes()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.place.len_bytes())?;
        let mut parts = Vec::new();
        self.place.each_part(Span::new(at, buf.len() as u64), |_, part| parts.push(part));
        let mut rest = buf;
        for Column { disk, span } in parts {
            let len = usize::try_from(span.len_bytes()).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            self.disks.of(disk).read_at(span.start(), now)?;
            rest = later;
        }
        Ok(())
    }
}
