//! Functions of C that are shown one thing after the other.

use std::ffi::{c_int, c_void};

use block::{Error, Result};

use crate::options::is_null;

/// A function of the caller's, with what it asked to be handed to it.
pub(crate) struct Each<T> {
    show: unsafe extern "C" fn(*mut c_void, *const T) -> c_int,
    context: *mut c_void,
}

impl<T> Each<T> {
    /// Checks the pointer.
    ///
    /// # Safety
    /// The function may be called with this context, and with a `T` that is good for the call, until the caller's call returns.
    pub(crate) unsafe fn new(
        show: Option<unsafe extern "C" fn(*mut c_void, *const T) -> c_int>,
        context: *mut c_void,
    ) -> Result<Self> {
        Ok(Self { show: show.ok_or_else(|| is_null("each"))?, context })
    }

    /// `Interrupted` if it wants no more.
    pub(crate) fn show(&self, item: &T) -> Result<()> {
        // SAFETY: as the caller of `new` promised; the item outlives the call.
        match unsafe { (self.show)(self.context, item) } {
            0 => Ok(()),
            _ => Err(Error::interrupted()),
        }
    }
}
