//! What devices did for others.

use mutants::broken;

/// Bytes that devices moved up to a moment, and how many of them for this process. As the kernel counts them: sectors of the devices
/// (`Documentation/admin-guide/iostats.rst`), and `/proc/self/io`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Read from the devices.
    pub device_read_bytes: u64,
    /// Written to them.
    pub device_written_bytes: u64,
    /// Read by this process, from wherever.
    pub own_read_bytes: u64,
    /// Written by this process, which may reach a device later.
    pub own_written_bytes: u64,
}

/// As much of others' reads in a look goes unnoticed: now and then something is read on every machine.
const READ_BYTES_MIN: u64 = 32 << 10;
/// The same of writes. A file system writes its own for what we write.
const WRITTEN_BYTES_MIN: u64 = 128 << 10;
/// And so much of what this process read or wrote itself, in parts: file systems read and write their metadata along with it.
const OWN_SHARE: u64 = 16;

/// What others had the devices do between two looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Others {
    last: Option<Counts>,
    /// The most that devices had written beyond what this process wrote. What waits in the page cache makes it less, for a time.
    beyond_bytes: i128,
}

impl Others {
    /// Whether others used the devices since the last look.
    pub(crate) fn look(&mut self, now: Counts) -> bool {
        let beyond =
            |counts: Counts| i128::from(counts.device_written_bytes) - i128::from(counts.own_written_bytes);
        let Some(then) = self.last.replace(now) else {
            self.beyond_bytes = beyond(now);
            return false;
        };
        let own_read = now.own_read_bytes.saturating_sub(then.own_read_bytes);
        let own_written = now.own_written_bytes.saturating_sub(then.own_written_bytes);
        let known_read = if broken!(OwnWorkCounted) { 0 } else { own_read };
        let read = now.device_read_bytes.saturating_sub(then.device_read_bytes).saturating_sub(known_read);
        let before = if broken!(LateWritesCounted) { beyond(then) } else { self.beyond_bytes };
        let written = u64::try_from(beyond(now) - before).unwrap_or(0);
        self.beyond_bytes = self.beyond_bytes.max(beyond(now));
        read > READ_BYTES_MIN + own_read / OWN_SHARE || written > WRITTEN_BYTES_MIN + own_written / OWN_SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(device: (u64, u64), own: (u64, u64)) -> Counts {
        Counts {
            device_read_bytes: device.0 << 10,
            device_written_bytes: device.1 << 10,
            own_read_bytes: own.0 << 10,
            own_written_bytes: own.1 << 10,
        }
    }

    #[test]
    fn own_work_is_nobody_elses() {
        let mut others = Others::default();
        assert!(!others.look(counts((1000, 1000), (0, 0))), "the first look");
        assert!(!others.look(counts((9000, 9000), (8000, 8000))));
        assert!(others.look(counts((9100, 9000), (8000, 8000))));
        assert!(others.look(counts((9100, 9200), (8000, 8000))));
        assert!(!others.look(counts((9110, 9210), (8000, 8000))), "next to nothing");
    }

    #[test]
    fn writes_that_reach_the_device_later_are_nobody_elses() {
        let mut others = Others::default();
        others.look(counts((0, 0), (0, 0)));
        assert!(!others.look(counts((0, 0), (0, 50_000))));
        assert!(!others.look(counts((0, 30_000), (0, 50_000))));
        assert!(!others.look(counts((0, 50_000), (0, 50_000))));
        assert!(others.look(counts((0, 51_000), (0, 50_000))));
        assert!(!others.look(counts((0, 51_000), (0, 50_000))), "counted once");
    }

    #[test]
    fn counters_that_begin_anew_tell_nothing() {
        let mut others = Others::default();
        others.look(counts((5000, 5000), (0, 0)));
        assert!(!others.look(counts((0, 0), (0, 0))));
    }
}
