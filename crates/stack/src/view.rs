//! A part of a virtual disk, or of several, as a volume of its own; the legs of a mirror as one.

use std::sync::Arc;

use block::{Error, ReadAt, Result, check_bounds};
use extent::{Span, Volume, VolumeOffset};
use filesystem::Source;
use image::Chain;

use crate::placement::{Column, DiskIndex, Placement};

pub(crate) struct VolumeView {
    disks: Disks,
    place: Placement,
}

impl VolumeView {
    /// `place` lies on the disks, and is not mirrored.
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

/// The legs of a mirror, read as one. What is read must be the same on all, whatever they are said to be: so what is concluded from it
/// holds of each leg by itself.
pub(crate) struct Mirrored {
    first: Source,
    others: Vec<Source>,
}

impl Mirrored {
    /// All legs are equally long.
    pub(crate) fn new(first: Source, others: Vec<Source>) -> Self {
        Self { first, others }
    }
}

impl ReadAt<Volume> for Mirrored {
    fn len_bytes(&self) -> u64 {
        self.first.len_bytes()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        self.first.read_at(at, buf)?;
        let mut same = vec![0; buf.len()];
        for other in &self.others {
            other.read_at(at, &mut same)?;
            if same != buf {
                return Err(Error::unsupported("the legs of the mirror differ").at(at));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{ErrorKind, Memory};

    #[test]
    fn legs_are_read_only_where_they_are_the_same() {
        let leg = |bytes: &[u8]| -> Source { Arc::new(Memory::new(bytes.to_vec())) };
        let mirrored = Mirrored::new(leg(b"abcdef"), vec![leg(b"abcdef"), leg(b"abcdEf")]);
        let read = |at, len| {
            let mut buf = vec![0; len];
            mirrored.read_at(VolumeOffset::new(at), &mut buf).map(|()| buf)
        };
        assert_eq!(read(1, 3).unwrap(), b"bcd");
        assert_eq!(read(5, 1).unwrap(), b"f");
        for (at, len) in [(4, 1), (0, 6), (3, 2)] {
            assert_eq!(read(at, len).unwrap_err().kind(), ErrorKind::Unsupported);
        }
        assert_eq!(mirrored.len_bytes(), 6);
    }
}
