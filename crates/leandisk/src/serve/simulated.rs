//! A disk that answers when a kind of storage would, so that its clients can be measured on storage that is not at hand.
//!
//! What is asked is done by the disk beneath, and answered no earlier than the model says (`predict::device`), as if the virtual disk lay in
//! one piece on an idle device. Where the disk beneath is slower than the model, it is as slow as that.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use block::{Disk, EditDisk, LiveDisk, ReadAt, Result, forward};
use extent::{Virtual, VirtualOffset, VirtualSpan};
use predict::device::Device;
use predict::profile::Profile;

/// A slowed disk.
pub(super) struct Simulated {
    disk: Arc<dyn LiveDisk>,
    began: Instant,
    device: Mutex<Device<'static>>,
}

impl Simulated {
    pub(super) fn new(disk: Arc<dyn LiveDisk>, profile: &'static Profile) -> Self {
        Self { disk, began: Instant::now(), device: Mutex::new(Device::new(profile)) }
    }

    /// Does it, and waits until the device has.
    fn answered<T>(
        &self,
        at: VirtualOffset,
        len_bytes: usize,
        writes: bool,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let now = self.began.elapsed().as_secs_f64();
        let ends = {
            let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
            device.submit(now, at.get(), len_bytes as u64, writes)
        };
        let done = act();
        let left = ends - self.began.elapsed().as_secs_f64();
        if left > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(left));
        }
        done
    }
}

impl ReadAt<Virtual> for Simulated {
    forward!(self, self.disk => len_bytes);

    fn read_at(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.answered(at, buf.len(), false, || self.disk.read_at(at, buf))
    }
}

impl EditDisk for Simulated {
    fn write_at(&self, at: VirtualOffset, buf: &[u8]) -> Result<()> {
        self.answered(at, buf.len(), true, || self.disk.write_at(at, buf))
    }

    forward!(self, self.disk => flush);

    fn read_stored(&self, at: VirtualOffset, buf: &mut [u8]) -> Result<()> {
        self.answered(at, buf.len(), false, || self.disk.read_stored(at, buf))
    }

    fn release(&self, span: VirtualSpan) -> Result<()> {
        self.disk.release(span)
    }
}

impl Disk for Simulated {
    forward!(self, self.disk => map, sector_bytes);
}

/// Nothing is lent: what is read without this would not wait.
impl LiveDisk for Simulated {
    fn zero(&self, span: VirtualSpan, may_free: bool) -> Result<()> {
        self.disk.zero(span, may_free)
    }

    fn discard(&self, span: VirtualSpan) -> Result<()> {
        self.disk.discard(span)
    }

    forward!(self, self.disk => occupancy, relocate, is_changed, reclaim, restart_bitmap, has_failed, close);
}
