//! What is mounted where, as this thread sees it, and mounts that it alone sees.
//!
//! Source: `proc_pid_mountinfo(5)`, `mount_namespaces(7)`.

use std::env;
use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::ptr::null;

use block::{Error, Result};
use rustix::fs::makedev;

/// The major number of loop devices (`Documentation/admin-guide/devices.txt` of the kernel).
const LOOP_MAJOR: u32 = 7;
/// File systems that programs come in.
const OF_PROGRAMS: [&[u8]; 2] = [b"squashfs", b"erofs"];

/// Something that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// As `st_dev` tells of files in it.
    pub device: u64,
    /// Where.
    pub point: PathBuf,
    /// The file system's type.
    pub kind: Vec<u8>,
    /// What it was mounted from: most often a device.
    pub source: PathBuf,
    /// Nothing can be written through this mount.
    is_read_only: bool,
    /// Nothing is written to the file system itself, wherever it is mounted.
    pub(crate) is_read_only_system: bool,
    /// What is mounted and unmounted elsewhere arrives here.
    follows_others: bool,
}

impl Mount {
    /// A line of `mountinfo`.
    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let &[_, _, device, _, point, options, ..] = &fields[..] else { return None };
        let dash = fields.iter().position(|field| *field == b"-")?;
        let &[_, kind, source, system_options, ..] = &fields[dash..] else { return None };
        let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
        let propagation = fields.get(6..dash)?;
        Some(Self {
            device: makedev(major.parse().ok()?, minor.parse().ok()?),
            point: unescaped(point),
            kind: kind.to_vec(),
            source: unescaped(source),
            is_read_only: is_read_only(options),
            is_read_only_system: is_read_only(system_options),
            follows_others: propagation
                .iter()
                .any(|field| field.starts_with(b"shared:") || field.starts_with(b"master:")),
        })
    }

    /// Whether something can be written through this mount.
    pub fn is_writable(&self) -> bool {
        !self.is_read_only && !self.is_read_only_system
    }

    /// The number of the device that it was mounted from. Some file systems have a number of their own, and tell the device by its name alone.
    pub(crate) fn source_device(&self) -> Option<u64> {
        let metadata = self.source.is_absolute().then(|| fs::metadata(&self.source).ok())??;
        metadata.file_type().is_block_device().then(|| metadata.rdev())
    }
}

fn is_read_only(options: &[u8]) -> bool {
    options.split(|byte| *byte == b',').any(|option| option == b"ro")
}

/// Everything that is mounted, as this thread sees it, in the order in which it was; nothing if the kernel does not tell.
pub fn mounts() -> Vec<Mount> {
    mounts_in(&fs::read("/proc/thread-self/mountinfo").unwrap_or_default())
}

/// What a text as that of `mountinfo` says.
fn mounts_in(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(Mount::parse).collect()
}

/// Of `mounts` that which `path`, an absolute one without symbolic links, lies in. Of several at one place the last hides the others.
pub fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let all = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    all.max_by_key(|mount| mount.point.components().count())
}

/// Space, tab, line feed and backslash stand as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let octal = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsStr::from_bytes(&bytes))
}

/// From now on what this thread, and programs that it starts, mount is seen by them alone, and goes with the last of them. Takes root.
///
/// What others mounted from files and `dir` does not lie in is not seen any more where it would not go when they unmount it: these
/// mounts would keep their disks in use for as long as this thread runs.
pub fn hide_mounts(dir: &Path) -> Result<()> {
    // SAFETY: the call has one argument by value. Other threads keep what they see.
    #[allow(unsafe_code)]
    let unshared = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    let failed = || Error::io("have mounts of its own", io::Error::last_os_error());
    if unshared != 0 {
        return Err(failed());
    }
    // What is mounted elsewhere still arrives here; nothing leaves.
    let flags = libc::MS_REC | libc::MS_SLAVE;
    // SAFETY: the target is a constant string with its NUL; for a change of propagation the other pointers may be null
    // (mount(2)).
    #[allow(unsafe_code)]
    let changed = unsafe { libc::mount(null(), c"/".as_ptr(), null(), flags, null()) };
    if changed != 0 {
        return Err(failed());
    }
    let folders =
        [Some(dir.to_owned()), Some(env::temp_dir()), env::current_dir().ok(), env::current_exe().ok()];
    let needed: Vec<_> =
        folders.into_iter().flatten().filter_map(|path| fs::canonicalize(path).ok()).collect();
    for mount in kept_for_nobody(&mounts(), &needed).into_iter().rev() {
        let Ok(point) = CString::new(mount.point.as_os_str().as_bytes()) else { continue };
        // SAFETY: the path is a string with its NUL. One that cannot be unmounted stays, as it did before.
        #[allow(unsafe_code)]
        unsafe {
            libc::umount2(point.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW);
        }
    }
    Ok(())
}

/// Mounts of files that do not go when others unmount them, that hold nothing that is needed, and on which nothing else stands.
fn kept_for_nobody<'a>(mounts: &'a [Mount], needed: &[PathBuf]) -> Vec<&'a Mount> {
    let stays_in_use = |mount: &&Mount| {
        let device = mount.source_device().unwrap_or(mount.device);
        let is_of_a_file = rustix::fs::major(device) == LOOP_MAJOR && !OF_PROGRAMS.contains(&&mount.kind[..]);
        is_of_a_file && !mount.follows_others
    };
    let (kept, others): (Vec<_>, Vec<_>) = mounts.iter().partition(stays_in_use);
    let is_needed = |mount: &Mount| {
        let below = others.iter().map(|other| &other.point).chain(needed);
        below.into_iter().any(|path| path != &mount.point && path.starts_with(&mount.point))
            || needed.contains(&mount.point)
    };
    kept.into_iter().filter(|mount| !is_needed(mount)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"1 0 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
        2 1 0:40 / /a\\040b rw shared:1 - btrfs /dev/loop0 rw\n\
        3 2 0:41 / /a\\040b/c rw master:2 propagate_from:1 - tmpfs none ro\n\
        4 1 7:3 / /image rw - ext4 /dev/nothing rw\n\
        5 1 7:4 / /tmp/work ro - ext4 /dev/nothing rw\n\
        6 1 7:5 / /snap/x rw - squashfs /dev/nothing ro\n\
        7 1 7:6 / /below rw - xfs /dev/nothing rw\n\
        8 7 254:1 / /below/other rw - xfs /dev/vdb rw\n\
        9 1 7:7 / /goes rw master:3 - xfs /dev/nothing rw\n\
        no line\n";

    #[test]
    fn lines_are_taken_apart() {
        let mounts = mounts_in(TEXT);
        assert_eq!(mounts.len(), 9);
        let second = &mounts[1];
        assert_eq!((second.device, &second.kind[..]), (makedev(0, 40), &b"btrfs"[..]));
        assert_eq!((&*second.point, &*second.source), (Path::new("/a b"), Path::new("/dev/loop0")));
        let writable: Vec<_> = mounts.iter().map(Mount::is_writable).collect();
        assert_eq!(writable, [true, true, false, true, false, false, true, true, true]);
        let follows: Vec<_> = mounts.iter().map(|mount| mount.follows_others).collect();
        assert_eq!(follows, [false, true, true, false, false, false, false, false, true]);
        assert!(mounts_in(b"").is_empty());
    }

    #[test]
    fn a_path_lies_in_the_deepest_mount() {
        let mounts = mounts_in(TEXT);
        let point =
            |path: &str| mount_of(&mounts, Path::new(path)).unwrap().point.to_str().unwrap().to_owned();
        assert_eq!(
            [point("/a b/x"), point("/a b/c/x"), point("/a bc"), point("/")],
            ["/a b", "/a b/c", "/", "/"]
        );
        assert_eq!(mount_of(&[], Path::new("/")), None);
        let twice = [&mounts[0], &mounts[0]].map(Clone::clone);
        assert!(std::ptr::eq(mount_of(&twice, Path::new("/x")).unwrap(), &twice[1]));
    }

    #[test]
    fn only_what_would_stay_in_use_for_nobody_is_hidden() {
        let points = |needed: &[&str]| -> Vec<_> {
            let needed: Vec<_> = needed.iter().map(PathBuf::from).collect();
            kept_for_nobody(&mounts_in(TEXT), &needed).into_iter().map(|mount| mount.point.clone()).collect()
        };
        assert_eq!(points(&[]), [Path::new("/image"), Path::new("/tmp/work")]);
        assert_eq!(points(&["/tmp/work/bench"]), [Path::new("/image")]);
        assert_eq!(points(&["/tmp/work", "/image"]), Vec::<PathBuf>::new());
    }
}
