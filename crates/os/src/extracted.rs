//! The folder that files are extracted into, on Linux: by this process, or by its broker if it is confined. Contents alone are written
//! here then. What is decided is decided in [`extraction`].

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use block::Result;
use extraction::{
    Below, FileId, Folders, Found, IntoFolder, Kept, Kind, Links, Names, NewFile, Of, SpecialFile,
    check_names, check_target,
};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::requests::{Client, OfExtracted, Request, client};

/// A folder that files are extracted into.
pub struct ExtractFolder(Inner);

enum Inner {
    Here(Box<Below<HostFolders>>),
    Broker(&'static Client),
}

impl ExtractFolder {
    /// The folder at `path`, which is made if only its last name is missing. What is in it is replaced only if `replaces` allows that.
    pub fn begin(path: &Path, replaces: bool) -> Result<Self> {
        match client() {
            None => Ok(Self(Inner::Here(Box::new(Below::begin(HostFolders, path, replaces)?)))),
            Some(broker) => {
                let () = broker.ask(&of(OfExtracted::Begin { path: path.into(), replaces }))?;
                Ok(Self(Inner::Broker(broker)))
            }
        }
    }
}

impl IntoFolder for ExtractFolder {
    type File = File;

    fn make_folder(&mut self, names: &Names) -> Result<bool> {
        match &mut self.0 {
            Inner::Here(below) => below.make_folder(names),
            Inner::Broker(broker) => broker.ask(&of(OfExtracted::Folder(sent(names)?))),
        }
    }

    fn create(&mut self, names: &Names) -> Result<NewFile<File>> {
        let (number, file) = match &mut self.0 {
            Inner::Here(below) => below.create(names).map(|new| (new.number, new.file))?,
            Inner::Broker(broker) => broker.open(&of(OfExtracted::Create(sent(names)?)))?,
        };
        Ok(NewFile { number, file: file.into() })
    }

    fn set_attribute(&mut self, of_what: &Of, name: &[u8], value: &[u8]) -> Result<Option<String>> {
        match &mut self.0 {
            Inner::Here(below) => below.set_attribute(of_what, name, value),
            Inner::Broker(broker) => {
                let value = value.iter().map(|byte| format!("{byte:02x}")).collect();
                broker.ask(&of(OfExtracted::Attribute { of: of_what.clone(), name: name.to_vec(), value }))
            }
        }
    }

    fn finish(&mut self, file: NewFile<File>, kept: &Kept) -> Result<Vec<String>> {
        match &mut self.0 {
            Inner::Here(below) => below.finish_number(file.number, kept),
            Inner::Broker(broker) => broker.ask(&of(OfExtracted::Finish(file.number, kept.clone()))),
        }
    }

    fn discard(&mut self, file: NewFile<File>) -> Result<()> {
        match &mut self.0 {
            Inner::Here(below) => below.discard_number(file.number),
            Inner::Broker(broker) => broker.ask(&of(OfExtracted::Discard(file.number))),
        }
    }

    fn symlink(&mut self, names: &Names, target: &[u8], kept: &Kept) -> Result<Vec<String>> {
        match &mut self.0 {
            Inner::Here(below) => below.symlink(names, target, kept),
            Inner::Broker(broker) => {
                check_target(target)?;
                let (target, kept) = (target.to_vec(), kept.clone());
                broker.ask(&of(OfExtracted::Symlink { names: sent(names)?, target, kept }))
            }
        }
    }

    fn link(&mut self, first: &Names, names: &Names) -> Result<()> {
        match &mut self.0 {
            Inner::Here(below) => below.link(first, names),
            Inner::Broker(broker) => {
                broker.ask(&of(OfExtracted::Link { first: sent(first)?, names: sent(names)? }))
            }
        }
    }

    fn special(&mut self, names: &Names, special: SpecialFile, kept: &Kept) -> Result<Vec<String>> {
        match &mut self.0 {
            Inner::Here(below) => below.special(names, special, kept),
            Inner::Broker(broker) => {
                broker.ask(&of(OfExtracted::Special { names: sent(names)?, special, kept: kept.clone() }))
            }
        }
    }

    fn settle(&mut self, names: &Names, kept: &Kept) -> Result<Vec<String>> {
        match &mut self.0 {
            Inner::Here(below) => below.settle(names, kept),
            Inner::Broker(broker) => broker.ask(&of(OfExtracted::Settle(sent(names)?, kept.clone()))),
        }
    }

    fn complete(&mut self) -> Result<()> {
        match &mut self.0 {
            Inner::Here(below) => below.complete(),
            Inner::Broker(broker) => broker.ask(&of(OfExtracted::Complete)),
        }
    }
}

fn of(request: OfExtracted) -> Request {
    Request::OfExtracted(request)
}

/// Names that fit into a request.
fn sent(names: &Names) -> Result<Names> {
    check_names(names)?;
    Ok(names.clone())
}

/// This host's folders.
pub(crate) struct HostFolders;

/// The file system is served by a program (`FUSE_SUPER_MAGIC`): what `syncfs` has written there need not be stored by it.
const FUSE: u64 = 0x6573_5546;
/// `syncfs` tells of what could not be written from this version on.
const SYNCFS_TELLS: (u32, u32) = (5, 8);

const TO_FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const AS_NEW: OFlags =
    OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const AS_NAME: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// As the host calls a name.
fn os(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

fn within(folder: Option<&OwnedFd>) -> BorrowedFd<'_> {
    folder.map_or(CWD, AsFd::as_fd)
}

fn found(stat: &Stat) -> Found {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Folder,
        FileType::Symlink => Kind::Link,
        _ => Kind::Special,
    };
    // Some architectures have it in 32 bits.
    #[allow(clippy::useless_conversion)]
    Found { id: FileId { device: stat.st_dev, inode: stat.st_ino }, kind, link_count: stat.st_nlink.into() }
}

/// By its descriptor, the name of what is only pointed at, for calls that take no such descriptor.
fn name_of(open: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", open.as_raw_fd())
}

/// Asks the first way, and the second of what is only pointed at.
fn either(first: rustix::io::Result<()>, second: impl FnOnce() -> rustix::io::Result<()>) -> io::Result<()> {
    Ok(if first == Err(Errno::BADF) { second() } else { first }?)
}

impl Folders for HostFolders {
    type Open = OwnedFd;

    fn process_number(&self) -> u32 {
        std::process::id()
    }

    fn sets_owners(&self) -> bool {
        rustix::process::geteuid().is_root()
    }

    fn again(&self, open: &OwnedFd) -> io::Result<OwnedFd> {
        open.try_clone()
    }

    fn make_folder(&self, folder: Option<&OwnedFd>, name: &[u8]) -> io::Result<()> {
        let mode = if folder.is_some() { 0o700 } else { 0o777 };
        Ok(rustix::fs::mkdirat(within(folder), os(name), Mode::from_raw_mode(mode))?)
    }

    fn open_folder(&self, folder: Option<&OwnedFd>, name: &[u8], links: Links) -> io::Result<OwnedFd> {
        let flags = match links {
            Links::Followed => TO_FOLDER,
            Links::Refused => TO_FOLDER | OFlags::NOFOLLOW,
        };
        rustix::fs::openat(within(folder), os(name), flags, Mode::empty()).map_err(|error| match error {
            Errno::LOOP if links == Links::Refused => Errno::NOTDIR.into(),
            error => error.into(),
        })
    }

    fn create(&self, folder: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(folder, os(name), AS_NEW, Mode::from_raw_mode(0o600))?)
    }

    fn symlink(&self, folder: &OwnedFd, name: &[u8], target: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(os(target), folder, os(name))?)
    }

    fn special(&self, folder: &OwnedFd, name: &[u8], special: SpecialFile) -> io::Result<()> {
        let (kind, device) = match special {
            SpecialFile::Pipe => (FileType::Fifo, 0),
            SpecialFile::Socket => (FileType::Socket, 0),
            SpecialFile::Character(major, minor) => {
                (FileType::CharacterDevice, rustix::fs::makedev(major, minor))
            }
            SpecialFile::Block(major, minor) => (FileType::BlockDevice, rustix::fs::makedev(major, minor)),
        };
        Ok(rustix::fs::mknodat(folder, os(name), kind, Mode::from_raw_mode(0o600), device)?)
    }

    fn link(&self, from: &OwnedFd, first: &[u8], folder: &OwnedFd, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::linkat(from, os(first), folder, os(name), AtFlags::empty())?)
    }

    fn rename(&self, folder: &OwnedFd, from: &[u8], to: &[u8], replaces: bool) -> io::Result<()> {
        if replaces {
            return Ok(rustix::fs::renameat(folder, os(from), folder, os(to))?);
        }
        let renamed = rustix::fs::renameat_with(folder, os(from), folder, os(to), RenameFlags::NOREPLACE);
        renamed.map_err(|error| match error {
            Errno::INVAL | Errno::NOSYS => Errno::NOSYS.into(),
            error => error.into(),
        })
    }

    fn remove(&self, folder: &OwnedFd, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(folder, os(name), AtFlags::empty())?)
    }

    fn look(&self, folder: &OwnedFd, name: &[u8]) -> io::Result<Option<Found>> {
        match rustix::fs::statat(folder, os(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(found(&stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn point_at(&self, folder: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(folder, os(name), AS_NAME, Mode::empty())?)
    }

    fn found(&self, open: &OwnedFd) -> io::Result<Found> {
        Ok(found(&rustix::fs::fstat(open)?))
    }

    fn set_owner(&self, open: &OwnedFd, uid: u32, gid: u32) -> io::Result<()> {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        Ok(rustix::fs::chownat(open, "", uid, gid, AtFlags::EMPTY_PATH)?)
    }

    fn set_mode(&self, open: &OwnedFd, mode: u16) -> io::Result<()> {
        let mode = Mode::from_raw_mode(mode.into());
        either(rustix::fs::fchmod(open, mode), || rustix::fs::chmod(name_of(open), mode))
    }

    fn set_times(&self, open: &OwnedFd, kept: &Kept) -> io::Result<()> {
        let times = times(kept);
        either(rustix::fs::futimens(open, &times), || {
            rustix::fs::utimensat(CWD, name_of(open), &times, AtFlags::empty())
        })
    }

    fn set_attribute(&self, open: &OwnedFd, name: &[u8], value: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::fsetxattr(open, os(name), value, XattrFlags::empty())?)
    }

    fn flushes_each(&self, folder: &OwnedFd) -> bool {
        let is_served =
            rustix::fs::fstatfs(folder).is_ok_and(|system| u64::try_from(system.f_type) == Ok(FUSE));
        is_served || !syncfs_tells(&rustix::system::uname().release().to_string_lossy())
    }

    fn flush(&self, file: &OwnedFd) -> io::Result<()> {
        Ok(rustix::fs::fsync(file)?)
    }

    fn flush_all(&self, folder: &OwnedFd) -> io::Result<()> {
        Ok(rustix::fs::syncfs(folder)?)
    }
}

/// Whether the kernel of this release tells by `syncfs` what could not be written.
fn syncfs_tells(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= SYNCFS_TELLS
}

fn times(kept: &Kept) -> Timestamps {
    let time = |time: Option<(i64, u32)>| match time {
        Some((seconds, nanoseconds)) => Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
    };
    Timestamps { last_access: time(kept.accessed), last_modification: time(kept.modified) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn names(path: &str) -> Names {
        path.split('/').map(|name| name.as_bytes().to_vec()).collect()
    }

    fn begin(path: &Path, replaces: bool) -> Below<HostFolders> {
        Below::begin(HostFolders, path, replaces).unwrap()
    }

    fn make(below: &mut Below<HostFolders>, path: &str) -> Result<()> {
        let new = below.create(&names(path))?;
        below.finish(new, &Kept::default()).map(drop)
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        let dir = testkit::scratch();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        std::fs::create_dir(&outside).unwrap();
        let mut below = begin(&inside, true);
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        std::os::unix::fs::symlink(outside.join("made"), inside.join("file")).unwrap();
        for path in ["..", "../out/x", "", ".", "a//b", "link/x", "link"] {
            let kind = |error: block::Error| error.kind();
            let refused = Err(block::ErrorKind::Refused);
            if path != "link" {
                assert_eq!(make(&mut below, path).map_err(kind), refused, "{path}");
            }
            assert!(below.make_folder(&names(path)).is_err(), "{path}");
        }
        for name in [b"a/b".to_vec(), b"a\0b".to_vec(), vec![b'x'; 300]] {
            assert!(below.create(&vec![name]).is_err());
        }
        // A link that is in the way is replaced, and not followed.
        make(&mut below, "file").unwrap();
        assert!(inside.join("file").symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn what_somebody_puts_in_the_place_of_a_device_keeps_its_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let dir = testkit::scratch();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(&outside, "theirs").unwrap();
        std::fs::set_permissions(&outside, PermissionsExt::from_mode(0o600)).unwrap();
        let folder = OwnedFd::from(File::open(&inside).unwrap());
        let mode_of = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        HostFolders.special(&folder, b"pipe", SpecialFile::Pipe).unwrap();
        let made = HostFolders.point_at(&folder, b"pipe").unwrap();
        HostFolders.set_mode(&made, 0o666).unwrap();
        assert_eq!(mode_of(&inside.join("pipe")), 0o666);
        let is_alone = |found: Found| (found.kind, found.link_count) == (Kind::Special, 1);
        assert!(is_alone(HostFolders.found(&made).unwrap()));
        for is_link in [true, false] {
            std::fs::remove_file(inside.join("pipe")).unwrap();
            let put = |path: PathBuf| {
                if is_link {
                    std::os::unix::fs::symlink(&outside, path)
                } else {
                    std::fs::hard_link(&outside, path)
                }
            };
            put(inside.join("pipe")).unwrap();
            let found = HostFolders.found(&HostFolders.point_at(&folder, b"pipe").unwrap()).unwrap();
            assert!(!is_alone(found));
            // What was pointed at before stays what it was.
            HostFolders.set_mode(&made, 0o640).unwrap();
            HostFolders.set_times(&made, &Kept::default()).unwrap();
            assert_eq!(mode_of(&outside), 0o600, "{is_link}");
        }
    }

    #[test]
    fn times_of_a_link_are_its_own() {
        use std::os::unix::fs::MetadataExt;
        let dir = testkit::scratch();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let before = std::fs::metadata(dir.path().join("file")).unwrap().mtime();
        let mut below = begin(dir.path(), false);
        let kept = Kept { modified: Some((1_000_000, 5)), owner: Some((3, 4)), ..Kept::default() };
        assert_eq!(below.symlink(&names("link"), b"file", &kept).unwrap(), [""; 0]);
        let link = dir.path().join("link").symlink_metadata().unwrap();
        assert_eq!((link.mtime(), link.mtime_nsec()), (1_000_000, 5));
        let owner =
            if rustix::process::geteuid().is_root() { 3 } else { rustix::process::geteuid().as_raw() };
        assert_eq!(link.uid(), owner);
        assert_eq!(std::fs::metadata(dir.path().join("file")).unwrap().mtime(), before);
        below.complete().unwrap();
    }

    #[test]
    fn nothing_is_set_of_what_was_there_before() {
        let dir = testkit::scratch();
        std::fs::create_dir(dir.path().join("old")).unwrap();
        let mut below = begin(dir.path(), true);
        let kept = Kept { mode: Some(0o777), ..Kept::default() };
        assert!(!below.make_folder(&names("old")).unwrap() && below.make_folder(&names("new")).unwrap());
        let refused = Some(block::ErrorKind::Refused);
        assert_eq!(below.settle(&names("old"), &kept).err().map(|error| error.kind()), refused);
        let of_old = below.set_attribute(&Of::Folder(names("old")), b"user.a", b"");
        assert_eq!(of_old.err().map(|error| error.kind()), refused);
        assert_eq!(below.settle(&names("new"), &kept).unwrap(), [""; 0]);
        make(&mut below, "old/file").unwrap();
    }

    #[test]
    fn releases_are_told_apart() {
        let told = |release| syncfs_tells(release);
        assert!(told("5.8.0") && told("6.1.0-13-amd64") && told("10.0"));
        assert!(!told("5.7.19") && !told("4.18.0-305.el8.x86_64") && !told(""));
    }

    #[test]
    fn nothing_is_replaced_unasked_and_nothing_half_made_stays() {
        let dir = testkit::scratch();
        std::fs::write(dir.path().join("old"), "old").unwrap();
        let mut below = begin(dir.path(), false);
        assert_eq!(make(&mut below, "old").unwrap_err().kind(), block::ErrorKind::Refused);
        let new = below.create(&names("half")).unwrap();
        rustix::io::write(&new.file, b"half").unwrap();
        drop(below);
        let mut below = begin(dir.path(), true);
        make(&mut below, "old").unwrap();
        // What was made here is not replaced by another of the same name.
        assert_eq!(make(&mut below, "old").unwrap_err().kind(), block::ErrorKind::Refused);
        let left: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["old"]);
        assert_eq!(std::fs::read(dir.path().join("old")).unwrap(), b"");
    }
}
