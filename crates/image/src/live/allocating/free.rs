//! Zeroes and discards parts of a disk in use: whole units leave the tables where the format has a way, of the rest the host's
//! storage goes.
//!
//! Invariant: that a unit is freed is only noted here; its place is punched and used again after the commit ([`super::commit`]).
//!
//! Absent on purpose: looking for zeros in what is written.

use block::{Result, TargetFile};
use extent::{HostOffset, HostSpan, Span, VirtualOffset, VirtualSpan};

use super::{AllocatingDisk, Container, To, Unit};
use crate::live::broken;
use crate::live::tables::index;

/// Holes of the host smaller than this are not worth a request.
const PUNCH_BYTES_MIN: u64 = 4096;

impl<C: Container> AllocatingDisk<C> {
    /// Makes whole or partial units read as zeros. Within one region.
    pub(super) fn zero_region(&self, span: VirtualSpan, may_free: bool) -> Result<()> {
        let _alone = self.region(span).write().expect("no writer panicked");
        self.check_not_closed()?;
        let units = self.units(span)?;
        for ((part, unit), old) in span.split(self.shape.unit_bytes).zip(self.unit_range(span)).zip(units) {
            let is_whole = part == self.unit_span(unit);
            let zeros = if is_whole && may_free { self.zeros_of(old) } else { None };
            match (old, zeros) {
                (Unit::Zero(None), _) if may_free => {}
                (Unit::Absent, _) if may_free && !self.has_parent => {}
                (_, Some(to)) => self.free(unit, to)?,
                (Unit::Zero(_), _) if may_free => {}
                (Unit::Data(at), _) => {
                    let place = Span::new(at.plus(self.skip_bytes(part.start())), part.len_bytes());
                    if may_free { self.file.punch_or_zero(place)? } else { self.file.zero(place)? }
                }
                _ if is_whole => self.place_zeros(part)?,
                _ => self.write_anywhere(part, &vec![0; index(part.len_bytes())])?,
            }
        }
        Ok(())
    }

    fn zeros_of(&self, old: Unit) -> Option<To> {
        self.look().container.zeros(old, self.has_parent)
    }

    fn free(&self, unit: u64, to: To) -> Result<()> {
        self.bound_tables()?;
        let mut state = self.change();
        state.refer(unit, to)?;
        drop(state);
        if broken!(ReusedTooSoon) {
            self.release_now()?;
        }
        Ok(())
    }

    pub(super) fn discard_region(&self, span: VirtualSpan) -> Result<()> {
        let whole = self.whole_units(span);
        if !whole.is_empty() {
            self.zero_region(whole, true)?;
        }
        for part in span.split(self.shape.unit_bytes).filter(|part| !whole.covers(part)) {
            let _shared = self.region(part).read().expect("no writer panicked");
            self.check_not_closed()?;
            if let [Unit::Data(at)] = self.units(part)?[..] {
                self.punch_within(Span::new(at.plus(self.skip_bytes(part.start())), part.len_bytes()))?;
            }
        }
        Ok(())
    }

    /// The whole units within `span`, which lie together. The last one may end with the disk.
    fn whole_units(&self, span: VirtualSpan) -> VirtualSpan {
        let unit_bytes = self.shape.unit_bytes;
        let start = span.start().get().next_multiple_of(unit_bytes);
        let end = match span.end().get() {
            end if end == self.virtual_bytes => end,
            end => end / unit_bytes * unit_bytes,
        };
        Span::between(VirtualOffset::new(start), VirtualOffset::new(end))
    }

    /// Punches the whole blocks of the host within `span`.
    fn punch_within(&self, span: HostSpan) -> Result<()> {
        let start = span.start().get().next_multiple_of(PUNCH_BYTES_MIN);
        let end = span.end().get() / PUNCH_BYTES_MIN * PUNCH_BYTES_MIN;
        let inner = Span::between(HostOffset::new(start), HostOffset::new(end));
        if inner.is_empty() { Ok(()) } else { self.file.punch_if_possible(inner) }
    }
}
