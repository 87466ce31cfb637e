//! Whether the machine has something better to do. Pure: what the kernel says comes in as text.
//!
//! Sources: pressure stall information (`Documentation/accounting/psi.rst`), `some` being the time in which at least one task waited.

use crate::facts::Millis;

/// Of the time between two looks, in hundredths: more than this somebody waited for a device.
const IO_PERCENT_MAX: u64 = 20;
/// The same for processors, of which a guard takes next to nothing.
const CPU_PERCENT_MAX: u64 = 60;

/// The microseconds in which somebody waited so far, of a file of `/proc/pressure`.
pub fn waited_us(text: &str) -> Option<u64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.split(' ').find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

/// What the kernel counted up to a moment, in microseconds; `None` where it does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waits {
    /// Waited for devices.
    pub io_us: Option<u64>,
    /// Waited for a processor.
    pub cpu_us: Option<u64>,
}

/// What others waited for, and how much of the time, in hundredths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Busy {
    /// Devices.
    Devices(u64),
    /// Processors.
    Processors(u64),
}

impl Busy {
    /// In words.
    pub fn text(self) -> String {
        let (what, percent) = match self {
            Self::Devices(percent) => ("devices", percent),
            Self::Processors(percent) => ("processors", percent),
        };
        format!("others waited for {what} {percent} % of the time")
    }
}

/// Looks from time to time, and says why work has to wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pressure {
    last: Option<(Millis, Waits)>,
}

impl Pressure {
    /// What was counted up to now. `Some` if others waited too much since the last look.
    pub fn look(&mut self, now: Millis, waits: Waits) -> Option<Busy> {
        let (then, before) = self.last.replace((now, waits))?;
        let passed_us = now.saturating_sub(then).saturating_mul(1000).max(1);
        let percent = |now: Option<u64>, then: Option<u64>| {
            Some(now?.saturating_sub(then?).saturating_mul(100) / passed_us)
        };
        let io = percent(waits.io_us, before.io_us).filter(|percent| *percent > IO_PERCENT_MAX);
        let cpu = percent(waits.cpu_us, before.cpu_us).filter(|percent| *percent > CPU_PERCENT_MAX);
        io.map(|percent| Busy::Devices(percent.min(100)))
            .or_else(|| cpu.map(|percent| Busy::Processors(percent.min(100))))
    }

    /// What was waited for since does not count: it was for our own work.
    pub fn skip(&mut self, now: Millis, waits: Waits) {
        self.last = Some((now, waits));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_text_is_read() {
        let text = "some avg10=4.61 avg60=21.51 avg300=17.15 total=85551247\nfull avg10=0.00 total=3\n";
        assert_eq!(waited_us(text), Some(85_551_247));
        for bad in ["", "full total=1", "some total=x", "some avg10=1"] {
            assert_eq!(waited_us(bad), None);
        }
    }

    #[test]
    fn work_waits_while_others_do() {
        let waits = |io, cpu| Waits { io_us: Some(io), cpu_us: Some(cpu) };
        let mut pressure = Pressure::default();
        assert_eq!(pressure.look(0, waits(0, 0)), None);
        assert_eq!(pressure.look(100, waits(10_000, 10_000)), None);
        assert_eq!(
            pressure.look(200, waits(60_000, 10_000)).unwrap().text(),
            "others waited for devices 50 % of the time"
        );
        assert_eq!(pressure.look(300, waits(60_000, 90_000)), Some(Busy::Processors(80)));
        pressure.skip(400, waits(160_000, 190_000));
        assert_eq!(pressure.look(500, waits(160_000, 190_000)), None);
        assert_eq!(pressure.look(500, Waits::default()), None, "where nothing is counted");
    }
}
