//! How much planning may look at, counted in steps and not by a clock, so that plans are the same on any machine.

/// Looking an extent up takes as long as looking at this many cells.
pub(crate) const EXTENT_EFFORT: u64 = 4;

/// What looking so many extents up takes.
pub(crate) fn lookup_effort(extent_count: usize) -> u64 {
    extent_count as u64 * EXTENT_EFFORT
}

/// How much planning may still look at, so that no volume, however it looks, makes it take forever.
#[derive(Debug)]
pub(crate) struct Effort(u64);

impl Effort {
    pub(crate) fn new(steps_max: u64) -> Self {
        Self(steps_max)
    }

    /// Whether `steps` more may be spent; they are then.
    pub(crate) fn spend(&mut self, steps: u64) -> bool {
        let rest = self.0.checked_sub(steps);
        self.0 = rest.unwrap_or(0);
        rest.is_some()
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.0 == 0
    }
}
