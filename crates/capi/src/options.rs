//! What C tells: structs with their size first, texts, lists.
//!
//! Invariant: a struct is taken as long as its caller knew it to be, with zeros for what came later; zero always means what was
//! meant before there was the field. One that is longer than here may ask for what is not understood, and is refused.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::slice;

use block::{Error, Result};
use image::Format;
use leandisk::{OpenOptions, Provision};

/// More than this is a count that was never set.
const LIST_COUNT_MAX: usize = 1 << 16;

/// A struct that may grow at its end.
///
/// # Safety
/// It is `repr(C)`, begins with its size as a `size_t`, and every pattern of bits is a value of it: it consists of integers, raw
/// pointers, and optional functions.
pub(crate) unsafe trait Versioned: Copy {
    /// As C calls it.
    const NAME: &'static str;
    /// The size of its first version.
    const FIRST_BYTES: usize;
    /// What it tells.
    type Told;

    /// Takes it in.
    ///
    /// # Safety
    /// Its pointers are null, or lead to what the header says.
    unsafe fn told(&self) -> Result<Self::Told>;
}

/// Reads a struct and takes it in.
///
/// # Safety
/// `options` is null, or leads to as many readable bytes as its first field says, and its pointers are null or lead to what the header
/// says.
pub(crate) unsafe fn read<O: Versioned>(options: *const O) -> Result<O::Told> {
    if options.is_null() {
        return Err(is_null(O::NAME));
    }
    // SAFETY: it begins with its size, as the caller promises.
    let size = unsafe { options.cast::<usize>().read_unaligned() };
    if !(O::FIRST_BYTES..=size_of::<O>()).contains(&size) {
        let known = format!("{} to {}", O::FIRST_BYTES, size_of::<O>());
        return Err(Error::invalid(O::NAME).field("struct_size", size, known).hint(
            "set it with the struct's _init function; if it is larger, the program needs a newer libleandisk",
        ));
    }
    let mut copy = MaybeUninit::<O>::zeroed();
    // SAFETY: so many bytes are readable, as the caller promises, and not more than the copy has; the copy is ours alone. Any bytes
    // are a value, as the trait promises.
    let copy = unsafe {
        std::ptr::copy_nonoverlapping(options.cast::<u8>(), copy.as_mut_ptr().cast(), size);
        copy.assume_init()
    };
    // SAFETY: its pointers are the caller's.
    unsafe { copy.told() }
}

/// The error of a null pointer where there must be something.
pub(crate) fn is_null(what: &str) -> Error {
    Error::invalid(format!("{what} is null"))
}

/// A path that must be there: bytes, whatever they are.
///
/// # Safety
/// `pointer` is null or leads to a string that ends with a NUL.
pub(crate) unsafe fn path(pointer: *const c_char, what: &str) -> Result<PathBuf> {
    // SAFETY: as the caller promises.
    unsafe { optional_path(pointer) }.ok_or_else(|| is_null(what))
}

/// A path that may be left out.
///
/// # Safety
/// As for [`path`].
pub(crate) unsafe fn optional_path(pointer: *const c_char) -> Option<PathBuf> {
    // SAFETY: it is not null, and so leads to a string, as the caller promises.
    let bytes = (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_bytes());
    bytes.map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)))
}

/// A word that may be left out.
///
/// # Safety
/// As for [`path`].
pub(crate) unsafe fn optional_text(pointer: *const c_char, what: &str) -> Result<Option<String>> {
    // SAFETY: as the caller promises.
    let Some(text) = (unsafe { optional_path(pointer) }) else { return Ok(None) };
    let text = text.into_os_string().into_string();
    text.map(Some).map_err(|_| Error::invalid(format!("{what} is not UTF-8")))
}

/// A format by its name, unless that is left out.
///
/// # Safety
/// As for [`path`].
pub(crate) unsafe fn format(pointer: *const c_char, what: &str) -> Result<Option<Format>> {
    // SAFETY: as the caller promises.
    unsafe { optional_text(pointer, what) }?.map(|name| name.parse()).transpose()
}

/// A list of strings.
///
/// # Safety
/// If `count` is not zero, `pointer` is null or leads to as many pointers, each null or to a string that ends with a NUL.
unsafe fn strings(pointer: *const *const c_char, count: usize, what: &str) -> Result<Vec<PathBuf>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if pointer.is_null() {
        return Err(is_null(what));
    }
    if count > LIST_COUNT_MAX {
        return Err(Error::invalid(what).field("count", count, format!("at most {LIST_COUNT_MAX}")));
    }
    // SAFETY: there are so many pointers, as the caller promises, and nobody changes them during the call.
    let pointers = unsafe { slice::from_raw_parts(pointer, count) };
    // SAFETY: each leads to a string, as the caller promises.
    pointers.iter().map(|&pointer| unsafe { path(pointer, what) }).collect()
}

/// A list of words.
///
/// # Safety
/// As for [`strings`].
pub(crate) unsafe fn words(pointer: *const *const c_char, count: usize, what: &str) -> Result<Vec<String>> {
    // SAFETY: as the caller promises.
    let words = unsafe { strings(pointer, count, what) }?;
    let word = |word: PathBuf| word.into_os_string().into_string();
    words
        .into_iter()
        .map(word)
        .collect::<Result<_, _>>()
        .map_err(|_| Error::invalid(format!("{what} is not UTF-8")))
}

/// How a disk is opened.
///
/// # Safety
/// As for [`path`] and [`strings`].
pub(crate) unsafe fn opening(
    image_format: *const c_char,
    allow_paths: *const *const c_char,
    allow_path_count: usize,
) -> Result<OpenOptions> {
    // SAFETY: as the caller promises.
    unsafe {
        Ok(OpenOptions {
            format: format(image_format, "format")?,
            allow_path: strings(allow_paths, allow_path_count, "allow_paths")?,
            ..OpenOptions::default()
        })
    }
}

/// The same with other disks, and with what is done with open logs.
///
/// # Safety
/// As for [`strings`].
pub(crate) unsafe fn also(
    open: OpenOptions,
    disks: *const *const c_char,
    disk_count: usize,
    ntfs_log: u32,
) -> Result<OpenOptions> {
    let ntfs_log = choice(ntfs_log, &[leandisk::NtfsLog::Refuse, leandisk::NtfsLog::Join], "ntfs_log")?;
    // SAFETY: as the caller promises.
    Ok(OpenOptions { with: unsafe { strings(disks, disk_count, "with_disks") }?, ntfs_log, ..open })
}

/// What is done with an NTFS volume whose log is open.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub enum NtfsLog {
    /// It is whole.
    Refuse = 0,
    /// What its log names counts as used, beside what its bitmap says. A log that is not understood leaves it whole.
    Join = 1,
}

/// C has no truth but that of integers.
pub(crate) fn is_set(flag: c_int) -> bool {
    flag != 0
}

/// A choice by its number, from zero.
pub(crate) fn choice<T: Copy>(number: u32, choices: &[T], what: &str) -> Result<T> {
    let found = usize::try_from(number).ok().and_then(|number| choices.get(number));
    let known = || Error::invalid("options").field(what, number, format!("below {}", choices.len()));
    found.copied().ok_or_else(known)
}

/// The numbers of LEANDISK_PROVISION.
pub(crate) fn provision(number: u32) -> Result<Provision> {
    choice(number, &[Provision::Thin, Provision::Lazy, Provision::Eager], "provision")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A struct that has grown once.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Grown {
        struct_size: usize,
        old: u64,
        new: u64,
    }

    // SAFETY: integers; its size comes first.
    unsafe impl Versioned for Grown {
        const NAME: &'static str = "grown";
        const FIRST_BYTES: usize = 16;
        type Told = (u64, u64);

        unsafe fn told(&self) -> Result<(u64, u64)> {
            Ok((self.old, self.new))
        }
    }

    #[test]
    fn a_struct_is_read_as_long_as_its_caller_knew_it() {
        let told = |struct_size| {
            let grown = Grown { struct_size, old: 1, new: 2 };
            // SAFETY: it is one, whole, whatever its size says.
            unsafe { read(&raw const grown) }.ok()
        };
        assert_eq!(told(16), Some((1, 0)));
        assert_eq!(told(24), Some((1, 2)));
        for wrong in [0, 8, 15, 25, 32, usize::MAX] {
            assert_eq!(told(wrong), None, "{wrong}");
        }
    }
}
