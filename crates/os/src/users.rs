//! Who else uses a host file or block device, as far as the kernel tells.
//!
//! - QEMU, and whoever locks as it does, by its locks (`locks`).
//! - Programs that take no locks by a lease, which the kernel does not give on a file that is open for writing, nor on one that is
//!   mapped for writing only (fcntl(2), `F_SETLEASE`); where it gives no answer, by what `/proc` shows of other processes.
//! - The kernel itself: loop devices, mounts, swap, and devices that stand on others, from `/proc` and `/sys`.
//! - VMware by the lock that it leaves beside an image.
//!
//! Invariant: asking changes nothing, and takes nothing that another program would have to wait for.
//!
//! Absent on purpose: other machines. What uses a file over a network file system is seen only if it locks.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use block::{Result, User};

use crate::lock_bytes;
use crate::raw_file::{Kind, RawFile};
use crate::requests::{FoundUser, Request, client, is_own};

/// How often a use that may end in a moment is looked for again, and how long that takes each time.
const PASSING_TRIALS: usize = 10;
const PASSING_TRIAL: Duration = Duration::from_millis(50);

/// The most devices that stand on one another that are followed.
const DEPTH_MAX: usize = 16;

/// Who else uses `raw`, who writes to it first.
pub(crate) fn of(raw: &RawFile) -> Vec<User> {
    let Some(broker) = client() else { return find(raw) };
    let asked = broker.ask_about::<Vec<FoundUser>>(&Request::Users((&raw.path).into()), raw.file.as_fd());
    match asked {
        Ok(users) => users.into_iter().map(User::from).collect(),
        // What cannot be told counts as a use.
        Err(error) => vec![User {
            writes: true,
            text: format!("may be in use, which could not be asked: {}", error.message()),
            hint: "see that nothing uses it, and try again".into(),
        }],
    }
}

/// [`of`], by a process that is not confined.
///
/// Programs open files and devices for a moment to see what they are: `losetup`, which looks for a free loop device, or udev's. So who has it
/// open and nothing more is waited for a little. So is a loop device that goes with its last user (`umount` of what `mount -o loop` mounted):
/// while somebody looks at it so, it stays.
pub(crate) fn find(raw: &RawFile) -> Vec<User> {
    find_pausing(raw, || std::thread::sleep(PASSING_TRIAL))
}

fn find_pausing(raw: &RawFile, mut pause: impl FnMut()) -> Vec<User> {
    let mut found = find_now(raw);
    for _ in 0..PASSING_TRIALS {
        if found.is_empty() || found.iter().any(|found| !found.is_passing) {
            break;
        }
        pause();
        found = find_now(raw);
    }
    found.sort_by_key(|found| !found.user.writes);
    found.into_iter().map(|found| found.user).collect()
}

/// A use that was found.
struct FoundUse {
    user: User,
    /// It may end by itself in a moment: a process has it open, without a lock, a mount or anything else that lasts.
    is_passing: bool,
}

impl FoundUse {
    fn lasting(user: User) -> Self {
        Self { user, is_passing: false }
    }
}

fn find_now(raw: &RawFile) -> Vec<FoundUse> {
    match raw.kind {
        Kind::Regular => of_file(raw),
        Kind::BlockDevice => of_device(raw),
    }
}

fn of_file(raw: &RawFile) -> Vec<FoundUse> {
    let mut found: Vec<FoundUse> = loop_devices_of(&raw.file).map(|device| attached(&device)).collect();
    let lock_folder = raw.path.with_file_name({
        let mut name = raw.path.file_name().unwrap_or_default().to_owned();
        name.push(".lck");
        name
    });
    if fs::read_dir(&lock_folder).is_ok_and(|mut entries| entries.next().is_some()) {
        found.push(FoundUse::lasting(User {
            writes: true,
            text: "is in use by VMware, which made a lock beside it".into(),
            hint: format!("close the machine; if none runs, remove {}", lock_folder.display()),
        }));
    }
    match locker(&raw.file) {
        Some(locker) => found.push(FoundUse::lasting(locker)),
        // The loop device's own writing is told already.
        None => {
            let writer = writer(&raw.file, !found.is_empty());
            found.extend(writer.map(|user| FoundUse { user, is_passing: true }));
        }
    }
    found
}

fn of_device(raw: &RawFile) -> Vec<FoundUse> {
    let Ok(stat) = raw.stat() else { return Vec::new() };
    let device = Device { number: stat.st_rdev };
    let mut found: Vec<_> = device.usage(0).into_iter().map(Usage::found).collect();
    found.extend(locker(&raw.file).map(FoundUse::lasting));
    if found.is_empty() && is_claimed(&raw.path) {
        let what = "mounted or held by another program".into();
        found.push(Usage { writes: true, what, is_passing: true }.found());
    }
    found
}

/// Who locks the file as QEMU does.
fn locker(file: &File) -> Option<User> {
    let writes = lock_bytes::is_written(file);
    let by = |processes: Vec<Process>| match &processes[..] {
        [] if writes => "another program (QEMU or one like it), which has it open for writing".to_owned(),
        [] => "another program (QEMU or one like it), which reads it".to_owned(),
        processes => named(processes),
    };
    (writes || lock_bytes::is_read(file)).then(|| User {
        writes,
        text: format!("is in use by {}", by(processes(file))),
        hint: "shut down what uses it, then try again".into(),
    })
}

/// Who has the file open for writing without a lock. A loop device has, and `is_known` says that there is one.
fn writer(file: &File, is_known: bool) -> Option<User> {
    let is_written = match lock_bytes::is_open_for_writing(file) {
        Some(false) => return None,
        told => told.is_some(),
    };
    let processes: Vec<_> = processes(file).into_iter().filter(|process| process.writes).collect();
    if processes.is_empty() && (is_known || !is_written) {
        return None;
    }
    let by = if processes.is_empty() { "another program".to_owned() } else { named(&processes) };
    Some(User {
        writes: true,
        text: format!("is in use by {by}, which has it open for writing"),
        hint: "shut down what uses it, then try again".into(),
    })
}

/// The programs that have the file open, this one left out, in words: of one that is open for writing here, which nobody else
/// can be asked about.
pub(crate) fn holders(file: &File) -> String {
    named(&processes(file))
}

fn named(processes: &[Process]) -> String {
    match processes {
        [] => "another program".to_owned(),
        [first] => first.text(),
        [first, rest @ ..] => format!("{} and {} more", first.text(), rest.len()),
    }
}

/// A process that has something open.
struct Process {
    id: u32,
    name: String,
    writes: bool,
}

impl Process {
    fn text(&self) -> String {
        format!("'{}' (process {})", self.name, self.id)
    }
}

/// What tells files and devices from each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    File { device: u64, inode: u64 },
    Device(u64),
}

impl Wanted {
    fn is(self, metadata: &fs::Metadata) -> bool {
        match self {
            Self::File { device, inode } => (metadata.dev(), metadata.ino()) == (device, inode),
            Self::Device(number) => metadata.file_type().is_block_device() && metadata.rdev() == number,
        }
    }
}

/// The processes that have the file open or mapped, this one left out, as far as `/proc` shows them.
fn processes(file: &File) -> Vec<Process> {
    let Ok(own) = file.metadata() else { return Vec::new() };
    let wanted = match own.file_type().is_block_device() {
        true => Wanted::Device(own.rdev()),
        false => Wanted::File { device: own.dev(), inode: own.ino() },
    };
    processes_with(wanted)
}

fn processes_with(wanted: Wanted) -> Vec<Process> {
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if is_own(id) {
            continue;
        }
        let folder = entry.path();
        if let Some(writes) = has_open(&folder, wanted) {
            let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
            processes.push(Process { id, name: name.trim_end().to_owned(), writes });
        }
    }
    processes
}

/// Whether the process with this folder in `/proc` has it open or mapped, and if so, whether for writing.
fn has_open(folder: &Path, wanted: Wanted) -> Option<bool> {
    let mut found = None;
    let entries = |name: &str| fs::read_dir(folder.join(name)).into_iter().flatten().flatten();
    for entry in entries("fd") {
        if fs::metadata(entry.path()).is_ok_and(|metadata| wanted.is(&metadata)) {
            let info = folder.join("fdinfo").join(entry.file_name());
            found = Some(found.unwrap_or(false) || opened_for_writing(&info));
        }
    }
    // What is mapped stays in use after it was closed; the links can be followed by root alone.
    for entry in entries("map_files") {
        let is_writable = || fs::symlink_metadata(entry.path()).is_ok_and(|link| link.mode() & 0o200 != 0);
        if fs::metadata(entry.path()).is_ok_and(|metadata| wanted.is(&metadata)) {
            found = Some(found.unwrap_or(false) || is_writable());
        }
    }
    found
}

/// proc(5), `/proc/PID/fdinfo`: a line `flags:` with the octal flags of open(2).
fn opened_for_writing(info: &Path) -> bool {
    let text = fs::read_to_string(info).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// The loop devices that `file` is attached as.
fn loop_devices_of(file: &File) -> impl Iterator<Item = PathBuf> + use<> {
    let own = file.metadata().ok().map(|own| (own.dev(), own.ino()));
    fs::read_dir("/sys/block").into_iter().flatten().flatten().filter_map(move |device| {
        let name = device.file_name().into_string().ok().filter(|name| name.starts_with("loop"))?;
        let backing = fs::read(device.path().join("loop/backing_file")).ok()?;
        let backing = fs::metadata(bytes_as_path(backing.trim_ascii_end())).ok()?;
        (Some((backing.dev(), backing.ino())) == own).then(|| PathBuf::from(format!("/dev/{name}")))
    })
}

fn bytes_as_path(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

/// A file that is attached as `loop_device`. What is written to that reaches the file when somebody asks for it.
fn attached(loop_device: &Path) -> FoundUse {
    let name = loop_device.display();
    let number = fs::metadata(loop_device).map(|metadata| metadata.rdev());
    let goes_with_its_user = number.as_ref().is_ok_and(|number| Device { number: *number }.is_autoclear());
    let is_read_only = number.as_ref().is_ok_and(|number| Device { number: *number }.is_read_only());
    let usages = number.map_or_else(|_| Vec::new(), |number| Device { number }.usage(0));
    let writes = usages.iter().any(|usage| usage.writes);
    let usage = usages.into_iter().find(|usage| usage.writes == writes);
    let is_passing = goes_with_its_user && usage.as_ref().is_none_or(|usage| usage.is_passing);
    let (writes, what) = match usage {
        Some(usage) => (usage.writes && !is_read_only, format!(", which is {}", usage.what)),
        None => (!is_read_only && is_claimed(loop_device), String::new()),
    };
    let user = User {
        writes,
        text: format!("is in use: attached as {name}{what}"),
        hint: format!("unmount what is on it, then 'losetup -d {name}'"),
    };
    FoundUse { user, is_passing }
}

/// Whether somebody has the device for themselves: without O_CREAT, O_EXCL claims a block device (open(2)).
fn is_claimed(path: &Path) -> bool {
    let flags = libc::O_EXCL | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened.is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
}

/// One use of a block device.
struct Usage {
    writes: bool,
    /// Follows "is": `mounted at /mnt`.
    what: String,
    /// Somebody has it open, and nothing more is known.
    is_passing: bool,
}

impl Usage {
    fn user(self) -> User {
        User {
            writes: self.writes,
            text: format!("is in use: {}", self.what),
            hint: "unmount it, or shut down what uses it, then try again".into(),
        }
    }

    fn found(self) -> FoundUse {
        let is_passing = self.is_passing;
        FoundUse { user: self.user(), is_passing }
    }
}

/// A block device by its number.
#[derive(Clone, Copy)]
struct Device {
    number: u64,
}

impl Device {
    fn folder(self) -> PathBuf {
        let (major, minor) = (libc::major(self.number), libc::minor(self.number));
        PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
    }

    fn is_read_only(self) -> bool {
        fs::read_to_string(self.folder().join("ro")).is_ok_and(|text| text.trim() == "1")
    }

    /// A loop device that is detached when nobody has it open any more (`lo_flags` of `loop(4)`).
    fn is_autoclear(self) -> bool {
        fs::read_to_string(self.folder().join("loop/autoclear")).is_ok_and(|text| text.trim() == "1")
    }

    fn below(self, folder: &Path) -> Option<Self> {
        let text = fs::read_to_string(folder.join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        Some(Self { number: libc::makedev(major.parse().ok()?, minor.parse().ok()?) })
    }

    /// The device itself and its partitions.
    fn parts(self) -> Vec<Self> {
        let entries = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        let partitions = entries.filter(|entry| entry.path().join("partition").exists());
        std::iter::once(self).chain(partitions.filter_map(|entry| self.below(&entry.path()))).collect()
    }

    /// How it, its partitions, and what stands on them is used.
    fn usage(self, depth: usize) -> Vec<Usage> {
        let mut all = Vec::new();
        for part in self.parts() {
            all.extend(mounts_of(part.number));
            if swaps_on(part.number) {
                all.push(Usage { writes: true, what: "used as swap".into(), is_passing: false });
            }
            let writers = processes_with(Wanted::Device(part.number));
            let writers: Vec<_> = writers.into_iter().filter(|process| process.writes).collect();
            if !writers.is_empty() {
                let what = format!("open for writing by {}", named(&writers));
                all.push(Usage { writes: true, what, is_passing: true });
            }
            if depth < DEPTH_MAX {
                all.extend(part.held_by(depth));
            }
        }
        all
    }

    /// Devices that stand on this one: LVM, md, dm-crypt, bcache.
    fn held_by(self, depth: usize) -> Vec<Usage> {
        let mut all = Vec::new();
        for holder in fs::read_dir(self.folder().join("holders")).into_iter().flatten().flatten() {
            let name = holder.file_name().to_string_lossy().into_owned();
            let uses = self.below(&holder.path()).map(|device| device.usage(depth + 1)).unwrap_or_default();
            let writes = uses.iter().any(|usage| usage.writes);
            let what = uses.into_iter().find(|usage| usage.writes == writes);
            let what = what.map(|usage| format!(", which is {}", usage.what)).unwrap_or_default();
            all.push(Usage { writes, what: format!("part of {name}{what}"), is_passing: false });
        }
        all
    }
}

/// Where the device is mounted.
fn mounts_of(number: u64) -> Vec<Usage> {
    let mounts = crate::mounts().into_iter();
    let own = mounts.filter(|mount| mount.device == number || mount.source_device() == Some(number));
    let used = own.map(|mount| {
        let is_read_only = mount.is_read_only_system;
        let how = if is_read_only { "mounted read-only" } else { "mounted" };
        let what = format!("{how} at {}", mount.point.display());
        Usage { writes: !is_read_only, what, is_passing: false }
    });
    used.collect()
}

/// proc_swaps(5).
fn swaps_on(number: u64) -> bool {
    let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut names = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    names.any(|name| fs::metadata(name).is_ok_and(|metadata| Wanted::Device(number).is(&metadata)))
}

/// What the file or block device at `path` lies on, itself first: a partition on its disk, a device on those that it stands on, a
/// loop device on its file. Each as [`HostFile::identity`](block::HostFile::identity) answers; nothing if `path` does not exist.
pub fn storage_of(path: &Path) -> Result<Vec<(u64, u64)>> {
    let Ok(metadata) = fs::metadata(path) else { return Ok(Vec::new()) };
    match (metadata.file_type().is_block_device(), client()) {
        (false, _) => Ok(vec![(metadata.dev(), metadata.ino())]),
        (true, None) => Ok(storage_of_device(metadata.rdev())),
        (true, Some(broker)) => broker.ask(&Request::Storage(path.into())),
    }
}

fn storage_of_device(number: u64) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    Device { number }.push_storage(&mut all);
    all
}

impl Device {
    fn push_storage(self, all: &mut Vec<(u64, u64)>) {
        let identity = (u64::MAX, self.number);
        if all.contains(&identity) || all.len() > DEPTH_MAX {
            return;
        }
        all.push(identity);
        let folder = self.folder();
        if folder.join("partition").exists() {
            let disk = fs::canonicalize(&folder).ok().and_then(|folder| self.below(folder.parent()?));
            disk.into_iter().for_each(|disk| disk.push_storage(all));
        }
        for beneath in fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten() {
            self.below(&beneath.path()).into_iter().for_each(|device| device.push_storage(all));
        }
        let backing = fs::read(folder.join("loop/backing_file")).ok();
        let backing = backing.map(|path| fs::metadata(bytes_as_path(path.trim_ascii_end())));
        if let Some(Ok(backing)) = backing {
            match backing.file_type().is_block_device() {
                true => Self { number: backing.rdev() }.push_storage(all),
                false => all.push((backing.dev(), backing.ino())),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A program that has the file open for writing until its standard input ends.
    fn opener(path: &Path) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "exec 3<>\"$0\"; echo; read -r line"]).arg(path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        child
    }

    fn end(mut child: Child) {
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    /// As losetup and udev do, which look at what is new.
    #[test]
    fn who_has_it_open_for_a_moment_is_waited_for() {
        let dir = testkit::scratch();
        let path = dir.path().join("disk.raw");
        fs::write(&path, [1; 8192]).unwrap();
        let raw = RawFile::open(&path, rustix::fs::OFlags::RDONLY).unwrap();
        let mut child = Some(opener(&path));
        let mut pauses = 0;
        assert_eq!(find_pausing(&raw, || pauses += 1).len(), 1, "one who stays is seen");
        assert_eq!(pauses, PASSING_TRIALS);
        let mut pauses = 0;
        let users = find_pausing(&raw, || {
            pauses += 1;
            if pauses == 3 {
                child.take().into_iter().for_each(end);
            }
        });
        assert!(users.is_empty() && pauses == 3, "{users:?} after {pauses} pauses");
        assert!(find_pausing(&raw, || panic!("nobody is there to be waited for")).is_empty());
    }

    /// A loop device that goes with its last user is still there if somebody looks at it while it is unmounted.
    #[test]
    fn a_loop_device_that_is_going_is_waited_for() {
        let dir = testkit::scratch();
        let path = dir.path().join("disk.raw");
        File::create(&path).unwrap().set_len(16 << 20).unwrap();
        testkit::mke2fs(&["-q", "-F", path.to_str().unwrap()]);
        let point = dir.path().join("mount");
        fs::create_dir(&point).unwrap();
        let point = point.to_str().unwrap();
        testkit::as_root("mount", &["-o", "loop", path.to_str().unwrap(), point]);
        let raw = RawFile::open(&path, rustix::fs::OFlags::RDONLY).unwrap();
        let users = find_pausing(&raw, || panic!("what is mounted does not go by itself"));
        assert!(users.len() == 1 && users[0].text.contains(point), "{users:?}");
        let device = loop_devices_of(&raw.file).next().unwrap();
        let mut looks = Some(File::open(&device).unwrap());
        testkit::as_root("umount", &[point]);
        let mut pauses = 0;
        let users = find_pausing(&raw, || {
            pauses += 1;
            if pauses == 3 {
                looks = None;
            }
        });
        assert!(users.is_empty() && pauses == 3, "{users:?} after {pauses} pauses");
    }
}
