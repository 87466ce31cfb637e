//! How much work something is, whatever else the machine does meanwhile.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Counts from when it is made, on the thread that makes it.
#[derive(Debug)]
pub struct Work {
    began: Duration,
}

impl Work {
    /// Begins to count.
    pub fn begin() -> Self {
        Self { began: thread_time() }
    }

    /// For how long this thread kept a processor busy since then.
    pub fn took(&self) -> Duration {
        thread_time() - self.began
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("it does not go backwards")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_no_work_and_counting_is() {
        let work = Work::begin();
        std::thread::sleep(Duration::from_millis(50));
        assert!(work.took() < Duration::from_millis(50), "{:?}", work.took());
        let before = work.took();
        let mut number = 0_u64;
        while work.took() == before {
            number = std::hint::black_box(number + 1);
        }
        assert!(work.took() > before);
    }
}
