//! What all use cases have in common: options in, a document out, an error beside it if need be.

use std::ffi::c_char;
use std::path::Path;
use std::ptr::null_mut;

use block::Result;
use leandisk::{Observer, name_disk};

use crate::error::{ErrorHandle, guarded};
use crate::observer::{self, ObserverStruct};
use crate::options::{self, Versioned};
use crate::registry::give_text;

/// A document as JSON, and how the work that it tells of ended.
pub(crate) struct Told {
    pub(crate) json: String,
    pub(crate) ended: Result<()>,
}

impl Told {
    /// Of work that was done.
    pub(crate) fn done(json: String) -> Self {
        Self { json, ended: Ok(()) }
    }
}

/// A place in the caller's memory for what a call answers.
pub(crate) struct Place<T>(*mut T);

impl<T> Place<T> {
    /// Checks the pointer, and puts `empty` there, so that a failure leaves no garbage.
    ///
    /// # Safety
    /// `pointer` is null or leads to a `T` that may be written until the call returns.
    pub(crate) unsafe fn new(pointer: *mut T, empty: T, what: &str) -> Result<Self> {
        if pointer.is_null() {
            return Err(options::is_null(what));
        }
        let mut place = Self(pointer);
        place.put(empty);
        Ok(place)
    }

    pub(crate) fn put(&mut self, value: T) {
        // SAFETY: it is not null, and may be written, as the caller of `new` promised; nothing there is dropped.
        unsafe { self.0.write(value) };
    }
}

/// Carries out a use case: reads options and observer, runs, gives the document out.
///
/// # Safety
/// As for [`options::read`] of both structs and [`Place::new`] of `document`, which may be null here if it is not wanted.
pub(crate) unsafe fn carry_out<O: Versioned>(
    told: *const O,
    observer: *const ObserverStruct,
    document: *mut *mut c_char,
    run: impl FnOnce(&O::Told, &dyn Observer) -> Result<Told>,
) -> *mut ErrorHandle
where
    O::Told: Subject,
{
    guarded(|| {
        let wanted = !document.is_null();
        // SAFETY: as the caller promises.
        let place = wanted.then(|| unsafe { Place::new(document, null_mut(), "document") }).transpose()?;
        // SAFETY: as the caller promises.
        let (told, observer) = unsafe { (options::read(told)?, observer::read(observer)?) };
        let Told { json, ended } = run(&told, &*observer).map_err(|error| name_disk(error, told.disk()))?;
        if let Some(mut place) = place {
            place.put(give_text(json)?);
        }
        ended.map_err(|error| name_disk(error, told.disk()))
    })
}

/// Options of a use case that is about a disk.
pub(crate) trait Subject {
    /// The disk.
    fn disk(&self) -> &Path;
}
