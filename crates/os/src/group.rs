//! Groups of users by name.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use block::{Error, Result};

/// Room for a group's entry to begin with; one with many members is asked for again.
const ENTRY_BYTES: usize = 4096;
const ENTRY_BYTES_MAX: usize = 16 << 20;

/// The number of the group with this name, or with this number in digits.
pub fn group_id(name: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let none = || Error::invalid(format!("there is no group '{}'", name.escape_debug()));
    let wanted = CString::new(name).map_err(|_| none())?;
    let mut len_bytes = ENTRY_BYTES;
    loop {
        match entry(&wanted, len_bytes) {
            Ok(found) => return found.ok_or_else(none),
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) && len_bytes < ENTRY_BYTES_MAX => {
                len_bytes *= 2;
            }
            Err(error) => {
                return Err(Error::io(format!("look for the group '{}'", name.escape_debug()), error));
            }
        }
    }
}

/// `getgrnam_r(3)` with so much room.
fn entry(name: &CString, len_bytes: usize) -> io::Result<Option<u32>> {
    let mut group = MaybeUninit::<libc::group>::uninit();
    let mut room = vec![0; len_bytes];
    let mut found = null_mut();
    // SAFETY: the name ends with NUL; the other pointers are to live, exclusive memory for the whole call, with the room's length.
    #[allow(unsafe_code)]
    let status = unsafe {
        libc::getgrnam_r(name.as_ptr(), group.as_mut_ptr(), room.as_mut_ptr(), room.len(), &raw mut found)
    };
    if status != 0 {
        return Err(io::Error::from_raw_os_error(status));
    }
    if found.is_null() {
        return Ok(None);
    }
    // SAFETY: a pointer that is not null is one to `group`, which has been filled then.
    #[allow(unsafe_code)]
    let group = unsafe { group.assume_init() };
    Ok(Some(group.gr_gid))
}

#[cfg(test)]
mod tests {
    use super::group_id;

    #[test]
    fn groups_are_found_by_name_and_by_number() {
        assert_eq!(group_id("root").unwrap(), 0);
        assert_eq!(group_id("4711").unwrap(), 4711);
        assert!(group_id("no such group").unwrap_err().to_string().contains("'no such group'"));
    }
}
