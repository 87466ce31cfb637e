//! Work that others do not notice: it pauses while somebody else uses the devices. When it pauses is `throttle`'s to say.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use block::Result;
use engine::{Checkpoint, JobMonitor};
use os::{Activity, MovedBytes};
use throttle::{Counts, Millis, Regulator};
use tracing::debug;

use crate::observer::{Cancel, Observer, Progress, Waiting};

/// A pause ends within so much time once the work is to stop.
const PAUSE_STEP: Duration = Duration::from_millis(50);

/// An observer whose use cases work in the background. When it goes it tells for how long they paused.
pub struct Background<O: Observer> {
    inner: O,
    shared: Arc<Shared>,
}

/// Time, which tests have of their own.
trait Clock: Send + Sync {
    fn now(&self) -> Millis;

    fn wait(&self, time: Duration);
}

struct SinceBegin(Instant);

impl Clock for SinceBegin {
    fn now(&self) -> Millis {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn wait(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

struct Shared {
    clock: Box<dyn Clock>,
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
        Self::with(inner, Box::new(SinceBegin(Instant::now())), activity)
    }

    fn with(inner: O, clock: Box<dyn Clock>, activity: Option<Activity>) -> Self {
        let regulator = Mutex::new(Regulator::new(clock.now()));
        Self { inner, shared: Arc::new(Shared { clock, activity, regulator }) }
    }

    /// For how long they have paused.
    fn paused(&self) -> Duration {
        let regulator = self.shared.regulator.lock().unwrap_or_else(PoisonError::into_inner);
        Duration::from_millis(regulator.paused_ms())
    }
}

impl Shared {
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
        if !regulator.advance(self.clock.now(), bytes) {
            return;
        }
        // Where something lies in between, what devices do for us is not what we do: only what they do in pauses tells of others.
        let exact = self.activity.as_ref().is_some_and(Activity::is_exact);
        let counts = if exact { self.counts() } else { None };
        let mut pause = regulator.look(self.clock.now(), counts);
        while let Some((ms, reason)) = pause {
            debug!("pause of {ms} ms: {reason}");
            if let Some(counts) = self.counts() {
                regulator.rests(counts);
            }
            let until = self.clock.now().saturating_add(ms);
            while self.clock.now() < until && !is_over() {
                let rest = Duration::from_millis(until.saturating_sub(self.clock.now()));
                self.clock.wait(PAUSE_STEP.min(rest));
            }
            pause = regulator.rested(self.clock.now(), self.counts()).filter(|_| !is_over());
        }
    }
}

impl<O: Observer> Drop for Background<O> {
    fn drop(&mut self) {
        let paused = self.paused();
        if paused > Duration::ZERO {
            self.inner
                .note(&format!("paused for {:.1} s while others used the storage", paused.as_secs_f64()));
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
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::Unwatched;

    /// Time that passes when somebody waits.
    #[derive(Default)]
    struct Waited(AtomicU64);

    impl Clock for Arc<Waited> {
        fn now(&self) -> Millis {
            self.0.load(Ordering::Relaxed)
        }

        fn wait(&self, time: Duration) {
            self.0.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::Relaxed);
        }
    }

    /// Work of which nobody counts what others do meanwhile, as on files of a network.
    struct Work {
        clock: Arc<Waited>,
        background: Background<Unwatched>,
        cancel: Cancel,
        progress: Box<dyn Progress>,
    }

    impl Work {
        fn begin() -> Self {
            let (clock, cancel) = (Arc::<Waited>::default(), Cancel::default());
            let background = Background::with(Unwatched, Box::new(clock.clone()), None);
            let progress = background.progress("copy", 1 << 30, cancel.clone());
            Self { clock, background, cancel, progress }
        }

        fn look(&self, count: u32, bytes: u64) {
            for _ in 0..count {
                self.clock.wait(Duration::from_millis(throttle::LOOK_MS));
                self.progress.advanced(bytes, 0);
            }
        }
    }

    #[test]
    fn work_that_got_slow_pauses() {
        let work = Work::begin();
        work.look(20, 64 << 20);
        assert_eq!(work.background.paused(), Duration::ZERO);
        work.look(5, 64 << 10);
        assert_eq!(work.background.paused(), Duration::from_millis(throttle::PAUSE_MIN_MS));
    }

    #[test]
    fn a_pause_ends_when_the_work_is_to_stop() {
        let work = Work::begin();
        work.look(20, 64 << 20);
        work.cancel.store(true, Ordering::Relaxed);
        work.look(20, 64 << 10);
        assert_eq!(work.background.paused(), Duration::ZERO);
    }
}
