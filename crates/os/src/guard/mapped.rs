//! Whether a process can store to a file through memory, which the kernel announces to nobody.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

/// Whether this process may have a file with this inode mapped for writing, as `/proc/PID/maps` tells (proc(5)). Also if that cannot be told; one that has ended
/// maps nothing any more. The device is not compared: of subvolumes it is another there.
pub fn may_store(process: u32, inode: u64) -> bool {
    let look = || -> io::Result<bool> {
        for line in BufReader::new(File::open(format!("/proc/{process}/maps"))?).split(b'\n') {
            if is_writable_of(&line?, inode) {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let has_ended = |error: io::Error| {
        process != 0 && (error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH))
    };
    look().unwrap_or_else(|error| !has_ended(error))
}

/// A line: addresses, permissions, offset, device, inode, name.
fn is_writable_of(line: &[u8], inode: u64) -> bool {
    let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let is_writable =
        words.nth(1).is_some_and(|bits| bits.get(1) == Some(&b'w') && bits.get(3) == Some(&b's'));
    let found =
        words.nth(2).and_then(|word| std::str::from_utf8(word).ok()).and_then(|word| word.parse().ok());
    is_writable && found == Some(inode)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// Whether this process may store to a file of which it has made a mapping of this kind.
    fn may_store_with(protection: libc::c_int, flags: libc::c_int) -> bool {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        // SAFETY: a new mapping at an address that the kernel chooses, of a descriptor that is open for the call.
        #[allow(unsafe_code)]
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let inode = file.metadata().unwrap().ino();
        drop(file);
        let found = may_store(std::process::id(), inode);
        // SAFETY: what was mapped above, and nothing refers to it.
        #[allow(unsafe_code)]
        let unmapped = unsafe { libc::munmap(at, 4096) };
        assert_eq!((unmapped, may_store(std::process::id(), inode)), (0, false));
        found
    }

    #[test]
    fn who_maps_a_file_for_writing_may_store_to_it() {
        let (read, both) = (libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE);
        assert!(may_store_with(both, libc::MAP_SHARED));
        assert!(!may_store_with(both, libc::MAP_PRIVATE));
        assert!(!may_store_with(read, libc::MAP_SHARED));
    }

    #[test]
    fn what_cannot_be_told_may_be_and_what_has_ended_may_not() {
        // Of another namespace.
        assert!(may_store(0, 1));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = child.id();
        child.wait().unwrap();
        assert!(!may_store(process, 1));
    }
}
