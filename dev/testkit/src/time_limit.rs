//! How long something may take, on a machine that others use as well.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// How many times as long it may take by the clock as of the processor's time.
const PATIENCE: u32 = 20;

/// A limit of the processor's time of the thread that sets it. What other threads do for it counts by the clock, of which there is more, as
/// others use the machine as well.
#[derive(Debug)]
pub struct TimeLimit {
    max: Duration,
    cpu_began: Duration,
    began: Instant,
}

impl TimeLimit {
    /// The time begins.
    pub fn of(max: Duration) -> Self {
        Self { max, cpu_began: thread_cpu_time(), began: Instant::now() }
    }

    /// Panics if it is over.
    pub fn check(&self, what: &str) {
        let (cpu, clock) = (thread_cpu_time().saturating_sub(self.cpu_began), self.began.elapsed());
        assert!(cpu < self.max, "{what} took {cpu:?} of the processor, and may take {:?}", self.max);
        let most = self.max * PATIENCE;
        assert!(clock < most, "{what} took {clock:?}, and may take {most:?}");
    }
}

fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("it is not negative")
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn waiting_is_allowed_for_a_while_and_computing_is_not() {
        let max = Duration::from_millis(50);
        let limit = TimeLimit::of(max);
        std::thread::sleep(max * 2);
        limit.check("a short wait");
        std::thread::sleep(max * PATIENCE);
        assert!(catch_unwind(|| limit.check("a long wait")).is_err());
        let limit = TimeLimit { began: Instant::now() + max * PATIENCE, ..TimeLimit::of(max) };
        while thread_cpu_time() < limit.cpu_began + max {
            std::hint::spin_loop();
        }
        assert!(catch_unwind(|| limit.check("computing")).is_err());
    }
}
