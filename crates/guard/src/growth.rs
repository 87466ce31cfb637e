//! How a file grows, and how much room it will need. Knows no file and no clock.

use crate::facts::Millis;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// How room is reserved on a file system: `docs/decisions/guard.md` has what was measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// For a file of which nothing is known but that it begins large.
    pub first_bytes: u64,
    /// Less than this is not reserved.
    pub least_bytes: u64,
    /// More than this is not reserved at once.
    pub most_bytes: u64,
    /// What a file grows by at a time without the guard, if it is not by what is written at a time: for the count of what was
    /// prevented.
    pub own_bytes: u64,
    /// A block that is written a second time gets another place.
    pub copies_on_write: bool,
}

/// XFS: by itself it reserves as much as the last piece has; past the page cache, nothing.
pub const XFS: Policy = Policy {
    first_bytes: 256 * MIB,
    least_bytes: MIB,
    most_bytes: 1024 * MIB,
    own_bytes: 0,
    copies_on_write: false,
};
/// ext4: finds 8 MiB at a time by itself, so that less than a few times that makes it worse. More at first would take more than the four
/// extents that an inode has room for, and so a block that stays.
pub const EXT4: Policy = Policy { first_bytes: 64 * MIB, least_bytes: 64 * MIB, own_bytes: 8 * MIB, ..XFS };
/// Btrfs: reserves nothing by itself.
pub const BTRFS: Policy = Policy { copies_on_write: true, ..XFS };

/// A file that has this much when it is first seen is large enough to believe in at once.
const BELIEVED_BYTES: u64 = 64 * KIB;
/// For so long a file is thought to go on growing as it did.
const HORIZON_SECONDS: u64 = 30;
/// A file grows this often before its pace is believed.
const PACE_STEPS: u32 = 2;
/// A file that ends elsewhere than at a multiple has its last block written again by the next append. No file system has smaller blocks by default.
const BLOCK_BYTES: u64 = 4096;
/// Files that grew by one part of so many of their length were made lately.
const MADE_SHARE: u64 = 8;
/// The last so many changes are remembered.
const MEMORY_STEPS: u32 = 16;

/// How a file grew so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Growth {
    first_ms: Millis,
    first_bytes: u64,
    last_bytes: u64,
    /// Times that it was seen longer than before.
    steps: u32,
    /// Times that it was changed and no longer than before.
    rewrites: u32,
    /// Times that it was seen to end within a block.
    ragged: u32,
    is_known: bool,
}

impl Growth {
    /// The file was changed and has `size_bytes` now. By how much it grew.
    pub(crate) fn changed(&mut self, now: Millis, size_bytes: u64) -> u64 {
        let is_ragged = !size_bytes.is_multiple_of(BLOCK_BYTES);
        if !self.is_known || size_bytes < self.last_bytes {
            *self = Self {
                first_ms: now,
                first_bytes: size_bytes,
                last_bytes: size_bytes,
                ragged: u32::from(is_ragged),
                is_known: true,
                ..Self::default()
            };
            return 0;
        }
        let grown = size_bytes - self.last_bytes;
        self.last_bytes = size_bytes;
        let count = if grown > 0 { &mut self.steps } else { &mut self.rewrites };
        *count += 1;
        self.ragged += u32::from(is_ragged);
        if self.steps + self.rewrites > MEMORY_STEPS {
            self.steps /= 2;
            self.rewrites /= 2;
            self.ragged /= 2;
        }
        grown
    }

    /// Whether it was changed in more than one look: what was written at one go mostly lies in one piece.
    pub(crate) fn took_its_time(&self) -> bool {
        self.steps + self.rewrites > 0
    }

    /// Whether a good part of it was seen to be written: the file is as long as it is because somebody made it so lately.
    pub(crate) fn was_made_here(&self) -> bool {
        self.steps > 0 && self.last_bytes - self.first_bytes >= self.last_bytes / MADE_SHARE
    }

    /// How much room past its end the file should have; `None` if it is overwritten in place, or not worth it.
    pub(crate) fn wants(&self, now: Millis, policy: &Policy) -> Option<u64> {
        if self.rewrites > self.steps || !self.is_known {
            return None;
        }
        // Each append would put the last block elsewhere and go on in the room: two pieces where there would be one.
        if policy.copies_on_write && 2 * self.ragged > self.steps + self.rewrites {
            return None;
        }
        let by_pace = (self.steps >= PACE_STEPS).then(|| {
            let grown = self.last_bytes - self.first_bytes;
            let passed = now.saturating_sub(self.first_ms).max(1);
            grown.saturating_mul(1000 * HORIZON_SECONDS) / passed
        });
        let wanted = match by_pace {
            // What a file has is a better guess at what it gets than a moment's pace.
            Some(by_pace) => by_pace.max(self.last_bytes),
            None if self.rewrites == 0 && self.last_bytes >= BELIEVED_BYTES => policy.first_bytes,
            None => return None,
        };
        let wanted = wanted.checked_next_power_of_two().unwrap_or(u64::MAX).min(policy.most_bytes);
        let wanted = if self.steps < MEMORY_STEPS / 2 { wanted.min(policy.first_bytes) } else { wanted };
        // The pace of a log is low, and less than the least is still worth it where the least is small.
        let wanted = if policy.least_bytes <= MIB { wanted.max(policy.least_bytes) } else { wanted };
        (wanted >= policy.least_bytes).then_some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_grows_fast_gets_much_and_a_slow_one_little() {
        let mut fast = Growth::default();
        fast.changed(0, 64 * KIB);
        assert_eq!(fast.wants(0, &XFS), Some(256 * MIB));
        let mut slow = Growth::default();
        for step in 0..6 {
            slow.changed(step * 1000, 1 + step * 100);
        }
        assert_eq!(slow.wants(6000, &XFS), Some(MIB));
        assert_eq!(slow.wants(6000, &EXT4), None, "ext4's own is more than that");
    }

    #[test]
    fn what_is_overwritten_in_place_gets_nothing() {
        let mut growth = Growth::default();
        growth.changed(0, 1 << 30);
        growth.changed(1, 1 << 30);
        assert_eq!(growth.wants(1, &XFS), None);
        growth.changed(2, (1 << 30) + 4096);
        growth.changed(3, 1 << 30);
        assert_eq!(growth.wants(3, &XFS), Some(256 * MIB), "cut short, it begins anew");
    }

    #[test]
    fn what_ends_within_a_block_gets_nothing_where_that_block_is_copied() {
        let mut log = Growth::default();
        for step in 1..=20 {
            log.changed(step * 100, step * 8000);
        }
        assert_eq!(log.wants(2000, &BTRFS), None);
        assert_eq!(log.wants(2000, &XFS), Some(4 * MIB));
        let mut download = Growth::default();
        for step in 1..=20 {
            download.changed(step * 100, step * 65536 + u64::from(step == 20));
        }
        assert!(download.wants(2000, &BTRFS).is_some(), "now and then is not each time");
    }

    #[test]
    fn no_number_makes_it_fail() {
        let mut growth = Growth::default();
        for (now, size) in [(0, 0), (u64::MAX, u64::MAX), (0, u64::MAX), (1, 0), (u64::MAX, 1), (2, u64::MAX)]
        {
            growth.changed(now, size);
            let wanted = growth.wants(now, &EXT4);
            assert!(wanted.is_none_or(|wanted| wanted <= EXT4.most_bytes));
        }
    }
}
