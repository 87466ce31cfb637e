//! Who watches a use case: is shown how far it is, is told what needs saying, and can stop it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use block::Result;
use engine::JobMonitor;

/// Work of which it is not known how long it takes. It ends with this value.
pub trait Waiting {}

/// Work through a known number of bytes.
pub trait Progress: JobMonitor + Send {
    /// All of it was done.
    fn finish(&self);

    /// It is of so many bytes, as it turns out.
    fn set_total(&self, _total_bytes: u64) {}
}

/// A flag that stops the work once somebody sets it. What was done until then is left as documented by each use case.
pub type Cancel = Arc<AtomicBool>;

/// What a use case calls while it works. Every method has an answer for those who do not look: see [`Unwatched`].
pub trait Observer: Send + Sync {
    /// Something begins of which it is not known how long it takes, such as `checking volumes`.
    fn waiting(&self, what: &'static str) -> Box<dyn Waiting>;

    /// Work of `phase` (`copy`, `backup`, `verify`, `move`, `free`, `zero`, `write`, `measure`) through so many bytes begins. It stops soon
    /// after `cancel` is set.
    fn progress(&self, phase: &'static str, total_bytes: u64, cancel: Cancel) -> Box<dyn Progress>;

    /// A sentence for people: a warning, or what was decided.
    fn note(&self, text: &str);

    /// The flag that is to stop the work. It is asked for just before each part of the work that writes (a change in place has one for
    /// each volume). Before the first of them a use case may be left at any moment, and nothing has to be cleaned up.
    fn cancel(&self) -> Result<Cancel>;
}

/// Watches nothing and stops nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Unwatched;

impl Waiting for Unwatched {}

impl JobMonitor for Unwatched {
    fn advanced(&self, _read_bytes: u64, _written_bytes: u64) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

impl Progress for Unwatched {
    fn finish(&self) {}
}

impl Observer for Unwatched {
    fn waiting(&self, _what: &'static str) -> Box<dyn Waiting> {
        Box::new(Self)
    }

    fn progress(&self, _phase: &'static str, _total_bytes: u64, _cancel: Cancel) -> Box<dyn Progress> {
        Box::new(Self)
    }

    fn note(&self, _text: &str) {}

    fn cancel(&self) -> Result<Cancel> {
        Ok(Cancel::default())
    }
}
