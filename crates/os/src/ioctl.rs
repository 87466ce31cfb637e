//! ioctl(2), in the one place where it is called: C libraries differ in the type of the request's number.

use std::io;
use std::os::fd::AsRawFd;

/// One ioctl on what `argument` holds. Every `request` that is passed here has the size of its argument in it, and `T` is at least as large
/// and laid out as the kernel's; pointers within it are to memory that its maker keeps for the call.
pub(crate) fn ioctl<T>(file: &impl AsRawFd, request: u32, argument: &mut T) -> io::Result<i32> {
    // How wide it is and whether it has a sign is the C library's; the kernel sees 32 bits.
    #[allow(clippy::cast_lossless, clippy::cast_possible_wrap)]
    let request = request as libc::Ioctl;
    // SAFETY: the argument is what the request takes, as is said above, and exclusively borrowed for the call. The descriptor is open as long as
    // `file` is borrowed.
    #[allow(unsafe_code)]
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
