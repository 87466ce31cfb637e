//! Work that others do not notice: it pauses while somebody else uses the devices. When it pauses is `throttle`'s to say.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use block::Result;
use engine::{Checkpoint, JobMonitor};
use os::{Activity, MovedBytes};
use throttle::{Counts, Millis, Regulator};
use tracing::debug;

use crate::observer::{Cancel, Observer, Progress, Waiting};

/// A pause ends within so much time once the work is to stop.
const PAUSE_STEP: Duration = Duration::from_millis(50);

/// An observer whose use cases work in the background.
pub struct Background<O> {
    inner: O,
    shared: Arc<Shared>,
}

struct Shared {
    began: Instant,
    activity: Option<Activity>,
    regulator: Mutex<Regulator>,
}

impl<O: Observer> Background<O> {
    /// What `inner` observes works in the background from now on, on the devices below these files; those that are not there yet count as
    /// their folders. This thread and those that it starts get what nobody else wants of processors and devices: it is called before others
    /// are started.
    pub fn begin(inner: O, paths: &[PathBuf]) -> Self {
        os::be_background();
        let activity = Activity::below(paths);
        if activity.is_none() {
            debug!("nobody counts what others do on this storage: pauses follow from slow progress alone");
        }
        let shared = Shared { began: Instant::now(), activity, regulator: Mutex::new(Regulator::new(0)) };
        Self { inner, shared: Arc::new(shared) }
    }

    /// For how long it has paused.
    pub fn paused(&self) -> Duration {
        let regulator = self.shared.regulator.lock().unwrap_or_else(PoisonError::into_inner);
        Duration::from_millis(regulator.paused_ms())
    }
}

impl Shared {
    fn now(&self) -> Millis {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn counts(&self) -> Option<Counts> {
        let MovedBytes { device_read, device_written, own_read, own_written } =
            self.activity.as_ref()?.moved()?;
        Some(Counts {
            device_read_bytes: device_read,
            device_written_bytes: device_written,
            own_read_bytes: own_read,
            own_written_bytes: own_written,
        })
    }

    /// So many bytes were done. Pauses if others are there. Other threads that get here meanwhile wait as long.
    fn advanced(&self, bytes: u64, is_over: &dyn Fn() -> bool) {
        let mut regulator = self.regulator.lock().unwrap_or_else(PoisonError::into_inner);
        if !regulator.advance(self.now(), bytes) {
            return;
        }
        // Where something lies in between, what devices do for us is not what we do: only what they do in pauses tells of others.
        let exact = self.activity.as_ref().is_some_and(Activity::is_exact);
        let counts = if exact { self.counts() } else { None };
        let mut pause = regulator.look(self.now(), counts);
        while let Some((ms, reason)) = pause {
            debug!("pause of {ms} ms: {reason}");
            if let Some(counts) = self.counts() {
                regulator.rests(counts);
            }
            let until = Instant::now() + Duration::from_millis(ms);
            while Instant::now() < until && !is_over() {
                sleep(PAUSE_STEP.min(until.saturating_duration_since(Instant::now())));
            }
            pause = regulator.rested(self.now(), self.counts()).filter(|_| !is_over());
        }
    }
}

impl<O: Observer> Observer for Background<O> {
    fn waiting(&self, what: &'static str) -> Box<dyn Waiting> {
        self.inner.waiting(what)
    }

    fn progress(&self, phase: &'static str, total_bytes: u64, cancel: Cancel) -> Box<dyn Progress> {
        let inner = self.inner.progress(phase, total_bytes, cancel.clone());
        Box::new(Regulated { inner, shared: self.shared.clone(), cancel })
    }

    fn note(&self, text: &str) {
        self.inner.note(text);
    }

    fn cancel(&self) -> Result<Cancel> {
        self.inner.cancel()
    }
}

/// Progress that pauses.
struct Regulated {
    inner: Box<dyn Progress>,
    shared: Arc<Shared>,
    cancel: Cancel,
}

impl Regulated {
    fn is_over(&self) -> bool {
        self.cancel.load(Ordering::Relaxed) || self.inner.is_cancelled()
    }
}

impl JobMonitor for Regulated {
    fn resumed(&self, read_bytes: u64, written_bytes: u64) {
        self.inner.resumed(read_bytes, written_bytes);
    }

    fn advanced(&self, read_bytes: u64, written_bytes: u64) {
        self.inner.advanced(read_bytes, written_bytes);
        self.shared.advanced(read_bytes.saturating_add(written_bytes), &|| self.is_over());
    }

    /// Work asks this more often than it says how far it is.
    fn is_cancelled(&self) -> bool {
        self.shared.advanced(0, &|| self.is_over());
        self.inner.is_cancelled()
    }

    fn checkpoint(&self, checkpoint: &Checkpoint) -> Result<()> {
        self.inner.checkpoint(checkpoint)
    }
}

impl Progress for Regulated {
    fn finish(&self) {
        self.inner.finish();
    }

    fn set_total(&self, total_bytes: u64) {
        self.inner.set_total(total_bytes);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Unwatched;

    fn worked(progress: &dyn Progress, looks: u32, bytes: u64) {
        for _ in 0..looks {
            sleep(Duration::from_millis(throttle::LOOK_MS + 5));
            progress.advanced(bytes, 0);
        }
    }

    /// As of files on a network: nobody counts what others do there.
    fn shared() -> Background<Unwatched> {
        let shared =
            Shared { began: Instant::now(), activity: None, regulator: Mutex::new(Regulator::new(0)) };
        Background { inner: Unwatched, shared: Arc::new(shared) }
    }

    #[test]
    fn work_that_got_slow_pauses() {
        let background = shared();
        let progress = background.progress("copy", 1 << 30, Cancel::default());
        worked(&*progress, 9, 64 << 20);
        assert_eq!(background.paused(), Duration::ZERO);
        worked(&*progress, 5, 64 << 10);
        assert!(
            background.paused() >= Duration::from_millis(throttle::PAUSE_MIN_MS),
            "{:?}",
            background.paused()
        );
    }

    #[test]
    fn a_pause_ends_when_the_work_is_to_stop() {
        let background = shared();
        let cancel = Cancel::default();
        let progress = background.progress("copy", 1 << 30, cancel.clone());
        worked(&*progress, 9, 64 << 20);
        cancel.store(true, Ordering::Relaxed);
        worked(&*progress, 20, 64 << 10);
        let longest = u128::from(throttle::PAUSE_MIN_MS) * 20;
        assert!(background.paused().as_millis() < longest, "{:?}", background.paused());
    }
}
