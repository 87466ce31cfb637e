//! The gate for files that an image names: parents, extents, data files.
//!
//! A reference is text that a stranger may have written. It is resolved without opening anything, must then lie
//! below a granted folder, and is opened by its canonical path in a way that no symbolic link swapped in
//! meanwhile can redirect.
//!
//! Granted are the folder of the disk that the user named, and what the user granted besides. A disk that is
//! itself a block device grants no folder: its neighbours in `/dev` are other people's disks. The root folder
//! grants only what lies directly in it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use block::{Error, Result};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::SourceFile;
use crate::raw_file::{Kind, OPEN_FLAGS, RawFile, io_error};
use crate::requests::{Client, Request, client};

/// One thing granted, by canonical path.
#[derive(Debug)]
enum Grant {
    /// All below the folder.
    Below(PathBuf),
    /// What lies directly in the folder.
    In(PathBuf),
    /// One file.
    File(PathBuf),
}

impl Grant {
    fn folder(canonical: PathBuf) -> Self {
        if canonical.parent().is_none() { Self::In(canonical) } else { Self::Below(canonical) }
    }

    fn covers(&self, canonical: &Path) -> bool {
        match self {
            Self::Below(folder) => canonical.starts_with(folder),
            Self::In(folder) => canonical.parent() == Some(folder),
            Self::File(file) => canonical == file,
        }
    }
}

/// Opens files that images name, where they are granted.
#[derive(Debug)]
pub struct Granted(By);

/// Who decides.
#[derive(Debug)]
enum By {
    /// This process.
    This(Grants),
    /// The broker, which knows them by a number.
    Broker(&'static Client, usize),
}

/// What is granted to a disk.
#[derive(Debug)]
pub(crate) struct Grants {
    grants: Vec<Grant>,
    /// The folder that a refusal names.
    folder: PathBuf,
}

impl Granted {
    /// Grants the folder of `disk_path`, each folder of `allow_paths` with all below it, and each file of
    /// `allow_paths`. Fails if one of them does not exist.
    pub fn new(disk_path: &Path, allow_paths: &[PathBuf]) -> Result<Self> {
        Ok(Self(match client() {
            Some(broker) => By::Broker(broker, broker.ask(&Request::Grant(disk_path.into()))?),
            None => By::This(Grants::new(disk_path, allow_paths)?),
        }))
    }

    /// Opens what the image opened by the path `from` calls `reference`. A relative one counts from the image's
    /// own folder.
    ///
    /// `Refused` if it is not granted, does not exist, or is no file name; `Io` if the machine failed.
    pub fn open(&self, from: &Path, reference: &str) -> Result<Arc<SourceFile>> {
        check_reference(reference).map_err(|error| error.path(from.display()))?;
        self.open_named(from, OsStr::new(reference)).map(Arc::new)
    }

    /// Opens the file `name` in the folder of `from` as [`Granted::open`] does: a name that the file system gave, which is no
    /// reference of an image's. The host reads no more of it than is asked for: most of these files are none of the disk's.
    pub fn open_beside(&self, from: &Path, name: &OsStr) -> Result<Arc<SourceFile>> {
        let file = self.open_named(from, name)?;
        file.read_nothing_ahead();
        Ok(Arc::new(file))
    }

    /// By a path from the folder of `from`, or by a whole one.
    fn open_named(&self, from: &Path, name: &OsStr) -> Result<SourceFile> {
        let path = path_of(from, name);
        SourceFile::from_raw(match &self.0 {
            By::This(grants) => RawFile::adopt(grants.open(from, name)?, &path)?.with_direct(OFlags::RDONLY),
            By::Broker(broker, granted) => {
                let (granted, from, name) = (*granted, from.into(), name.into());
                RawFile::ask(broker, &Request::Referred { granted, from, name }, &path)?
            }
        })
    }
}

/// A path from the folder of `from`, or a whole one.
fn path_of(from: &Path, name: &OsStr) -> PathBuf {
    from.parent().unwrap_or(Path::new("")).join(name)
}

impl Grants {
    /// As [`Granted::new`], by this process.
    pub(crate) fn new(disk_path: &Path, allow_paths: &[PathBuf]) -> Result<Self> {
        let folder = canonical_folder_of(disk_path)?;
        let metadata = std::fs::metadata(disk_path).map_err(|error| io_error("open", disk_path, error))?;
        let mut grants = Vec::new();
        if !metadata.file_type().is_block_device() {
            grants.push(Grant::folder(folder.clone()));
        }
        for path in allow_paths {
            let canonical =
                std::fs::canonicalize(path).map_err(|error| io_error("allow path", path, error))?;
            // A folder that the user spells out is granted as it is, even the root.
            grants.push(if canonical.is_dir() { Grant::Below(canonical) } else { Grant::File(canonical) });
        }
        Ok(Self { grants, folder })
    }

    /// Opens what is granted of the name that `from` has for it.
    pub(crate) fn open(&self, from: &Path, name: &OsStr) -> Result<OwnedFd> {
        let path = path_of(from, name);
        let (reference, from_name) = (name.to_string_lossy(), from.display());
        let canonical = canonicalize(&path, &reference).map_err(|error| error.path(&from_name))?;
        if !self.covers(&canonical) {
            let folder = canonical.parent().unwrap_or(&canonical).display().to_string();
            return Err(Error::refused(format!(
                "refers to '{reference}', which lies outside {}",
                self.folder.display()
            ))
            .path(&from_name)
            .hint(format!("--allow-path {folder}")));
        }
        self.open_canonical(&canonical, &path)
    }

    /// Whether this canonical path is granted.
    pub(crate) fn covers(&self, canonical: &Path) -> bool {
        self.grants.iter().any(|grant| grant.covers(canonical))
    }

    /// Whether something directly in this canonical folder is granted.
    pub(crate) fn covers_names_in(&self, folder: &Path) -> bool {
        self.grants.iter().any(|grant| match grant {
            Grant::Below(granted) => folder.starts_with(granted),
            Grant::In(granted) => folder == granted,
            Grant::File(file) => file.parent() == Some(folder),
        })
    }

    /// Opens a granted path, with `path` as its name.
    fn open_canonical(&self, canonical: &Path, path: &Path) -> Result<OwnedFd> {
        // Looked at before it is opened: opening alone can have effects on a device.
        let stat = rustix::fs::lstat(canonical).map_err(|error| io_error("open", path, error))?;
        Kind::of(&stat, path)?;
        let flags = OFlags::RDONLY | OPEN_FLAGS;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(CWD, canonical, flags, Mode::empty(), resolve) {
            Err(Errno::NOSYS | Errno::PERM) => self.open_and_compare(canonical),
            Err(Errno::LOOP) => Err(changed_meanwhile(path)),
            result => result.map_err(|error| io_error("open", path, error)),
        }
    }

    /// For kernels without `openat2`: what was opened must be what the path still means, without a link.
    fn open_and_compare(&self, canonical: &Path) -> Result<OwnedFd> {
        let fd = rustix::fs::open(canonical, OFlags::RDONLY | OFlags::NOFOLLOW | OPEN_FLAGS, Mode::empty())
            .map_err(|error| io_error("open", canonical, error))?;
        let opened = rustix::fs::fstat(&fd).map_err(|error| io_error("stat", canonical, error))?;
        let again = std::fs::canonicalize(canonical).map_err(|error| io_error("open", canonical, error))?;
        let meant = std::fs::metadata(&again).map_err(|error| io_error("stat", canonical, error))?;
        if again != canonical || (opened.st_dev, opened.st_ino) != (meant.dev(), meant.ino()) {
            return Err(changed_meanwhile(canonical));
        }
        Ok(fd)
    }
}

fn changed_meanwhile(path: &Path) -> Error {
    Error::refused("was replaced while it was opened").path(path.display())
}

/// The folder that holds the name `path`, whatever a link of that name points to.
fn canonical_folder_of(path: &Path) -> Result<PathBuf> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    std::fs::canonicalize(folder).map_err(|error| io_error("open", folder, error))
}

/// `Refused` unless `reference` can be a file's name.
fn check_reference(reference: &str) -> Result<()> {
    let refuse = |why: &str| Err(Error::refused(format!("refers to '{reference}', which {why}")));
    if let Some(protocol) = protocol_of(reference) {
        return refuse(&format!("is not a file's path but asks for the protocol '{protocol}'"));
    }
    if reference.contains('\0') {
        return refuse("is not a file's path: it holds a zero byte");
    }
    match Path::new(reference).components().next_back() {
        Some(Component::Normal(_)) => Ok(()),
        _ => refuse("names no file"),
    }
}

/// The `json` of `json:{...}`. One letter before the colon is a Windows drive.
fn protocol_of(reference: &str) -> Option<&str> {
    let (name, _) = reference.split_once(':')?;
    let is_scheme = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c));
    (is_scheme && name.len() > 1).then_some(name)
}

/// Resolves every link and `..` without opening what the path names.
fn canonicalize(path: &Path, reference: &str) -> Result<PathBuf> {
    std::fs::canonicalize(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
            Error::refused(format!("refers to '{reference}', which does not exist"))
        }
        _ if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            Error::refused(format!("refers to '{reference}', whose symbolic links run in a circle"))
        }
        _ => Error::io(format!("resolve '{reference}'"), error),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use block::{ErrorKind, HostFile, ReadAt};
    use extent::Offset;

    use super::*;

    struct Place {
        _dir: tempfile::TempDir,
        root: PathBuf,
        disk: PathBuf,
    }

    /// `in/disk` beside `in/base` and `in/deep/base`, and `out/secret` outside.
    fn place() -> Place {
        let dir = testkit::scratch();
        let root = dir.path().canonicalize().unwrap();
        for folder in ["in/deep", "out", "in-but-longer"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        for file in ["in/disk", "in/base", "in/deep/base", "out/secret", "in-but-longer/secret"] {
            std::fs::write(root.join(file), file).unwrap();
        }
        Place { disk: root.join("in/disk"), root, _dir: dir }
    }

    impl Place {
        fn granted(&self, allow: &[&str]) -> Granted {
            let allow: Vec<_> = allow.iter().map(|path| self.root.join(path)).collect();
            Granted::new(&self.disk, &allow).unwrap()
        }

        fn open(&self, reference: &str) -> Result<Arc<SourceFile>> {
            self.granted(&[]).open(&self.disk, reference)
        }

        #[track_caller]
        fn refuses(&self, reference: &str, with: &str) {
            let error = self.open(reference).err().unwrap_or_else(|| panic!("opened '{reference}'"));
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            assert!(error.to_string().contains(with), "{error}");
        }
    }

    fn contents(file: &SourceFile) -> String {
        let mut bytes = vec![0; usize::try_from(file.len_bytes()).unwrap()];
        file.read_at(Offset::ZERO, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn what_lies_below_the_folder_opens() {
        let place = place();
        let absolute = place.root.join("in/base");
        for (reference, expected) in [
            ("base", "in/base"),
            ("./base", "in/base"),
            ("deep/base", "in/deep/base"),
            ("deep/../base", "in/base"),
            ("../in/base", "in/base"),
            (absolute.to_str().unwrap(), "in/base"),
        ] {
            assert_eq!(contents(&place.open(reference).unwrap()), expected, "{reference}");
        }
        symlink("deep/base", place.root.join("in/link")).unwrap();
        assert_eq!(contents(&place.open("link").unwrap()), "in/deep/base");
    }

    #[test]
    fn a_parent_s_own_reference_counts_from_its_folder() {
        let place = place();
        let granted = place.granted(&[]);
        let deep = granted.open(&place.disk, "deep/base").unwrap();
        assert_eq!(contents(&granted.open(deep.path(), "base").unwrap()), "in/deep/base");
        assert_eq!(contents(&granted.open(deep.path(), "../base").unwrap()), "in/base");
        assert!(granted.open(deep.path(), "../../out/secret").is_err());
    }

    #[test]
    fn what_lies_outside_is_refused_with_the_way_to_grant_it() {
        let place = place();
        let secret = place.root.join("out/secret");
        symlink(&secret, place.root.join("in/link")).unwrap();
        symlink("../out", place.root.join("in/folder")).unwrap();
        for reference in [
            "../out/secret",
            secret.to_str().unwrap(),
            "link",
            "folder/secret",
            "deep/../../out/secret",
            "../in-but-longer/secret",
            "/etc/passwd",
            "/dev/null",
        ] {
            place.refuses(reference, "which lies outside");
        }
        let error = place.open("link").err().unwrap();
        assert_eq!(
            error.hint_text(),
            Some(format!("--allow-path {}", place.root.join("out").display()).as_str())
        );
        assert!(error.to_string().contains(&format!("outside {}", place.root.join("in").display())));
    }

    #[test]
    fn what_is_granted_besides_opens_and_nothing_more() {
        let place = place();
        std::fs::write(place.root.join("out/other"), "other").unwrap();
        let from = &place.disk;
        let folder = place.granted(&["out"]);
        assert_eq!(contents(&folder.open(from, "../out/secret").unwrap()), "out/secret");
        assert!(folder.open(from, "../in-but-longer/secret").is_err());
        let file = place.granted(&["out/secret"]);
        assert_eq!(contents(&file.open(from, "../out/secret").unwrap()), "out/secret");
        assert!(file.open(from, "../out/other").is_err());
        assert!(Granted::new(&place.disk, &[place.root.join("missing")]).is_err());
    }

    #[test]
    fn protocols_and_what_is_no_name_are_refused() {
        let place = place();
        // Even where a file of that very name exists.
        std::fs::write(place.root.join("in/nbd:x"), "").unwrap();
        for reference in [
            "json:{\"driver\":\"file\",\"filename\":\"base\"}",
            "nbd:x",
            "nbd://localhost/x",
            "nbd+unix:///x",
            "http://localhost/base",
            "file:base",
            "FILE:base",
            "file:///etc/passwd",
            "host_device:/dev/sda",
            "fat:rw:/",
        ] {
            if reference.starts_with("host_device") {
                // An underscore is in no protocol's name, so this is a name of a file that is not there.
                place.refuses(reference, "does not exist");
            } else {
                place.refuses(reference, "asks for the protocol");
            }
        }
        place.refuses("", "names no file");
        place.refuses("..", "names no file");
        place.refuses("deep/..", "names no file");
        place.refuses("/", "names no file");
        place.refuses("ba\0se", "zero byte");
        place.refuses("deep", "a directory");
        place.refuses("C:/vm/base.vhd", "does not exist");
        place.refuses("missing", "which does not exist");
        place.refuses("base/below", "which does not exist");
        place.refuses(&"x".repeat(5000), "which does not exist");
    }

    #[test]
    fn links_in_a_circle_are_refused() {
        let place = place();
        symlink("b", place.root.join("in/a")).unwrap();
        symlink("a", place.root.join("in/b")).unwrap();
        place.refuses("a", "run in a circle");
    }

    #[test]
    fn pipes_and_descriptors_are_refused_without_being_opened() {
        let place = place();
        testkit::run("mkfifo", &[place.root.join("in/pipe").to_str().unwrap()]);
        // Opening a pipe for reading would wait for a writer for ever.
        place.refuses("pipe", "a pipe");
        let secret = std::fs::File::open(place.root.join("out/secret")).unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&secret);
        place.refuses(&format!("/proc/self/fd/{descriptor}"), "which lies outside");
        symlink(format!("/proc/self/fd/{descriptor}"), place.root.join("in/fd")).unwrap();
        place.refuses("fd", "which lies outside");
        symlink("/proc/self/root", place.root.join("in/root")).unwrap();
        place.refuses("root/etc/passwd", "which lies outside");
    }

    #[test]
    fn a_link_swapped_in_after_the_decision_is_not_followed() {
        let place = place();
        let granted = Grants::new(&place.disk, &[]).unwrap();
        let canonical = place.root.join("in/deep/base");
        std::fs::remove_file(&canonical).unwrap();
        symlink(place.root.join("out/secret"), &canonical).unwrap();
        assert!(granted.open_canonical(&canonical, &canonical).is_err());
        assert!(granted.open_and_compare(&canonical).is_err());
        std::fs::rename(place.root.join("in/deep"), place.root.join("in/moved")).unwrap();
        symlink(place.root.join("out"), place.root.join("in/deep")).unwrap();
        let swapped = place.root.join("in/deep/secret");
        assert!(granted.open_canonical(&swapped, &swapped).is_err());
        assert!(granted.open_and_compare(&swapped).is_err());
        assert!(granted.open_and_compare(&place.root.join("in/base")).is_ok());
    }

    #[test]
    fn a_linked_disk_grants_the_folder_of_the_name_given() {
        let place = place();
        symlink(&place.disk, place.root.join("out/disk")).unwrap();
        let disk = place.root.join("out/disk");
        let granted = Granted::new(&disk, &[]).unwrap();
        assert_eq!(contents(&granted.open(&disk, "secret").unwrap()), "out/secret");
        assert!(granted.open(&disk, "../in/base").is_err());
    }

    #[test]
    fn a_name_that_is_not_text_still_has_a_folder() {
        use std::os::unix::ffi::OsStrExt;
        let place = place();
        let folder = place.root.join(OsStr::from_bytes(b"n\xffme"));
        std::fs::create_dir(&folder).unwrap();
        for file in ["disk", "base"] {
            std::fs::write(folder.join(file), file).unwrap();
        }
        let granted = Granted::new(&folder.join("disk"), &[]).unwrap();
        let disk = SourceFile::open(folder.join("disk")).unwrap();
        assert_eq!(contents(&granted.open(disk.path(), "base").unwrap()), "base");
    }

    #[test]
    fn the_root_folder_does_not_grant_the_machine() {
        let grant = Grant::folder(PathBuf::from("/"));
        assert!(grant.covers(Path::new("/base.qcow2")));
        assert!(!grant.covers(Path::new("/etc/passwd")));
    }
}
