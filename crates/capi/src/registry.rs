//! What C holds of ours: handles, and strings.
//!
//! A handle is a number that never comes again, in the type of a pointer. It is looked up here and never followed: one that was
//! closed before, or was never given out, is not found, whatever its value.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Error, Result};

/// Handles of every kind are told apart, too. None is null, and each is as even as a pointer would be.
static NEXT: AtomicUsize = AtomicUsize::new(HANDLE_STEP);
const HANDLE_STEP: usize = 16;

/// Everything of one kind that C holds a handle to.
pub(crate) struct Registry<T> {
    live: Mutex<BTreeMap<usize, Arc<T>>>,
}

impl<T> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self { live: Mutex::new(BTreeMap::new()) }
    }

    /// Keeps `value` until its handle is removed.
    pub(crate) fn insert<H>(&self, value: T) -> *mut H {
        let handle = NEXT.fetch_add(HANDLE_STEP, Ordering::Relaxed);
        lock(&self.live).insert(handle, Arc::new(value));
        without_provenance_mut(handle)
    }

    /// What the handle stands for. It stays as long as it is used, also if another thread closes it meanwhile.
    pub(crate) fn get<H>(&self, handle: *const H) -> Option<Arc<T>> {
        lock(&self.live).get(&handle.addr()).cloned()
    }

    pub(crate) fn remove<H>(&self, handle: *const H) -> Option<Arc<T>> {
        take(&self.live, handle.addr())
    }
}

/// A panic leaves the map as it was: nothing in here can fail halfway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes something out. Of the last one not even the empty map is kept: so who looks for leaks finds those alone.
fn take<T>(live: &Mutex<BTreeMap<usize, T>>, key: usize) -> Option<T> {
    let mut live = lock(live);
    let taken = live.remove(&key);
    if live.is_empty() {
        *live = BTreeMap::new();
    }
    taken
}

/// Strings that C is to free, by where they lie.
static STRINGS: Mutex<BTreeMap<usize, CString>> = Mutex::new(BTreeMap::new());

/// Gives a text to C, which frees it with [`leandisk_string_free`].
pub(crate) fn give_text(text: String) -> Result<*mut c_char> {
    let text = CString::new(text).map_err(|_| Error::invalid("a text with a NUL in it"))?;
    let pointer = text.as_ptr().cast_mut();
    lock(&STRINGS).insert(pointer.addr(), text);
    Ok(pointer)
}

/// Frees a string that a function of this library gave out. Null is fine. Answers whether there was nothing wrong with that: false if
/// the string is not, or no longer, one of this library's.
#[unsafe(no_mangle)]
pub extern "C" fn leandisk_string_free(string: *mut c_char) -> bool {
    string.is_null() || take(&STRINGS, string.addr()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    #[test]
    fn a_handle_is_found_until_it_is_removed() {
        let registry = Registry::new();
        let handle: *mut u8 = registry.insert(7);
        let other: *mut u8 = registry.insert(8);
        assert_eq!(registry.get(handle).as_deref(), Some(&7));
        let kept = registry.get(handle);
        assert_eq!(registry.remove(handle).as_deref(), Some(&7));
        assert!(registry.get(handle).is_none() && registry.remove(handle).is_none());
        assert_eq!((kept.as_deref(), registry.get(other).as_deref()), (Some(&7), Some(&8)));
        assert!(registry.get(null_mut::<u8>()).is_none());
    }

    #[test]
    fn a_string_is_freed_once() {
        let string = give_text("text".into()).unwrap();
        assert!(leandisk_string_free(string));
        assert!(!leandisk_string_free(string));
        assert!(leandisk_string_free(null_mut()));
        assert!(give_text("\0".into()).is_err());
    }
}
