//! Volumes as real mounts show them: everything about every file, to be compared before and after.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use crate::guest::digest;
use crate::loops::{Loops, mount, unmount, wait_until_detached};
use crate::tools::scratch;

/// What ntfs-3g tells of a file when asked for it by name (its manual, *Extended Attributes*).
const NTFS_ATTRIBUTES: [&str; 7] = [
    "system.ntfs_acl",
    "system.ntfs_attrib_be",
    "system.ntfs_dos_name",
    "system.ntfs_ea",
    "system.ntfs_object_id",
    "system.ntfs_reparse_data",
    "system.ntfs_times_be",
];

/// The names of a file's streams, with NULs between, under `streams_interface=windows`.
const NTFS_STREAMS: &str = "ntfs.streams.list";

/// How many lines of a difference are shown.
const SHOWN_MAX: usize = 40;

/// A volume mounted at a folder of its own, as long as the value lives. One at a time in a program.
pub struct Mounted {
    dir: tempfile::TempDir,
    server: Option<Child>,
    /// The file that the kernel has a loop device for.
    looped: Option<PathBuf>,
    _alone: MutexGuard<'static, ()>,
}

static MOUNTING: Mutex<()> = Mutex::new(());

impl Mounted {
    /// Mounts the ext volume in a file through the kernel, which needs root.
    pub fn ext(volume: &Path, options: &str) -> Self {
        Self::kernel("ext4", volume, options)
    }

    /// Mounts the volume in a file through the kernel, as the file system of this name, which needs root.
    pub fn kernel(filesystem: &str, volume: &Path, options: &str) -> Self {
        let alone = MOUNTING.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = scratch();
        let options = format!("loop,{options}");
        let (looped, at) = (Some(volume.to_path_buf()), dir.path().to_str().unwrap());
        mount(&["-t", filesystem, "-o", &options, volume.to_str().unwrap(), at]);
        Self { dir, server: None, looped, _alone: alone }
    }

    /// Mounts the Btrfs that has these devices through the kernel.
    pub fn btrfs_of(devices: &Loops, options: &str) -> Self {
        let alone = MOUNTING.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = scratch();
        let names = devices.names();
        let others: String = names.iter().map(|name| format!(",device={name}")).collect();
        let at = dir.path().to_str().unwrap();
        mount(&["-t", "btrfs", "-o", &format!("{options}{others}"), names[0], at]);
        Self { dir, server: None, looped: None, _alone: alone }
    }

    /// Mounts the NTFS volume in a file through ntfs-3g, with streams as `file:stream`.
    pub fn ntfs(volume: &Path, options: &str) -> Self {
        let alone = MOUNTING.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = scratch();
        let before = fs::metadata(dir.path()).unwrap().dev();
        let options = format!("no_detach,streams_interface=windows,{options}");
        let mut server = Command::new("ntfs-3g")
            .args([OsStr::new("-o"), OsStr::new(&options), volume.as_os_str(), dir.path().as_os_str()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("ntfs-3g: {error}; `make test` installs what the tests need"));
        let started = Instant::now();
        while fs::metadata(dir.path()).unwrap().dev() == before {
            assert!(server.try_wait().unwrap().is_none(), "ntfs-3g gave up on {}", volume.display());
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "ntfs-3g does not mount {}",
                volume.display()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { dir, server: Some(server), looped: None, _alone: alone }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// All about it.
    pub fn tree(&self) -> Tree {
        Tree::read(self.path())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(self.dir.path());
        if let Some(server) = &mut self.server {
            let _ = server.wait();
        }
        if let Some(file) = &self.looped {
            wait_until_detached(file);
        }
    }
}

/// What a mount shows of files whose metadata may not agree with each other: their lengths and contents, or why they cannot be read.
pub fn shown(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut found, mut waiting) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(path) = waiting.pop() {
        let about = fs::symlink_metadata(&path);
        let told = match &about {
            Err(error) => format!("{error}"),
            Ok(about) if about.is_dir() => match fs::read_dir(&path) {
                Err(error) => format!("directory: {error}"),
                Ok(entries) => {
                    waiting.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
                    "directory".into()
                }
            },
            Ok(about) => match fs::read(&path) {
                Err(error) => format!("{} bytes: {error}", about.len()),
                Ok(bytes) => format!("{} bytes: {:x}", about.len(), xxh3_64(&bytes)),
            },
        };
        found.insert(path.strip_prefix(root).unwrap().to_path_buf(), told);
    }
    found
}

/// Everything that a mount shows of each file, by path: number, type, mode, owner, links, size, times to the nanosecond,
/// contents (as XXH3), where links lead, all extended attributes, and NTFS's attributes, ACL, DOS name, reparse data and
/// streams. Blocks allocated are left out: maps may get smaller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    facts: BTreeMap<Vec<u8>, BTreeMap<String, String>>,
}

impl Tree {
    /// Reads all below `root`. Symbolic links are not followed.
    pub fn read(root: &Path) -> Self {
        let mut tree = Self { facts: BTreeMap::new() };
        let mut waiting = vec![root.to_path_buf()];
        while let Some(path) = waiting.pop() {
            let about =
                fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            let mut facts = facts_of(&about);
            attributes_of(&path, about.is_file() || about.is_dir(), &mut facts);
            if about.is_file() {
                facts.insert("contents".into(), format!("{:032x}", digest(&path)));
            } else if about.is_symlink() {
                facts.insert("leads to".into(), fs::read_link(&path).unwrap().display().to_string());
            } else if about.is_dir() {
                let entries =
                    fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                waiting.extend(entries.map(|entry| entry.unwrap().path()));
            }
            tree.facts.insert(name, facts);
        }
        tree
    }

    /// How many paths there are.
    pub fn len(&self) -> usize {
        self.facts.len()
    }

    /// Whether there is none, which cannot be: the root is one.
    pub fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    /// What differs, a line for each path and fact; nothing if both are the same.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        let none = BTreeMap::new();
        for path in union(&self.facts, &other.facts) {
            let shown = format!("/{}", path.escape_ascii());
            let (ours, theirs) = (self.facts.get(path), other.facts.get(path));
            match (ours.is_some(), theirs.is_some()) {
                (true, false) => lines.push(format!("{shown}: lost")),
                (false, true) => lines.push(format!("{shown}: was not there before")),
                _ => {}
            }
            let (Some(ours), Some(theirs)) = (ours.or(Some(&none)), theirs) else { continue };
            if self.facts.contains_key(path) {
                for fact in union(ours, theirs) {
                    let (before, after) = (ours.get(fact), theirs.get(fact));
                    if before != after {
                        let text = |value: Option<&String>| value.map_or("absent", String::as_str).to_owned();
                        lines.push(format!("{shown}: {fact}: {} -> {}", text(before), text(after)));
                    }
                }
            }
        }
        lines
    }

    /// Panics with what differs unless both are the same.
    pub fn assert_same(&self, other: &Self, what: &str) {
        let lines = self.differences(other);
        if lines.is_empty() {
            return;
        }
        let more = lines.len().saturating_sub(SHOWN_MAX);
        let mut text = lines[..lines.len().min(SHOWN_MAX)].join("\n");
        if more > 0 {
            write!(text, "\nand {more} more").unwrap();
        }
        panic!("{what}: the trees differ:\n{text}");
    }
}

fn union<'a, K: Ord, V>(one: &'a BTreeMap<K, V>, other: &'a BTreeMap<K, V>) -> impl Iterator<Item = &'a K> {
    let mut keys: Vec<_> = one.keys().chain(other.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter()
}

fn facts_of(about: &fs::Metadata) -> BTreeMap<String, String> {
    let time = |seconds: i64, nanoseconds: i64| format!("{seconds}.{nanoseconds:09}");
    let device = if about.rdev() == 0 { String::new() } else { format!("{:#x}", about.rdev()) };
    // Of a directory only its file system knows what its size means.
    [
        ("number", about.ino().to_string()),
        ("mode", format!("{:o}", about.mode())),
        ("owner", format!("{}:{}", about.uid(), about.gid())),
        ("links", about.nlink().to_string()),
        ("size", about.size().to_string()),
        ("device", device),
        ("read at", time(about.atime(), about.atime_nsec())),
        ("written at", time(about.mtime(), about.mtime_nsec())),
        ("changed at", time(about.ctime(), about.ctime_nsec())),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn attributes_of(path: &Path, has_streams: bool, facts: &mut BTreeMap<String, String>) {
    let mut list = vec![0; 1 << 16];
    let len = match rustix::fs::llistxattr(path, &mut list) {
        Ok(len) => len,
        // ntfs-3g lists none where streams are not attributes; what is asked for by name it tells.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => 0,
        Err(error) => panic!("{}: {error}", path.display()),
    };
    let listed = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<OsString> = listed.map(|name| OsString::from_vec(name.to_vec())).collect();
    names.extend(NTFS_ATTRIBUTES.map(OsString::from));
    for name in names {
        if let Some(value) = attribute(path, &name) {
            facts.insert(format!("attribute {}", name.display()), hex(&value));
        }
    }
    let Some(streams) = attribute(path, OsStr::new(NTFS_STREAMS)).filter(|_| has_streams) else { return };
    for stream in streams.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut full = path.as_os_str().as_bytes().to_vec();
        full.push(b':');
        full.extend(stream);
        let full = PathBuf::from(OsString::from_vec(full));
        let size = fs::metadata(&full).unwrap_or_else(|error| panic!("{}: {error}", full.display())).len();
        facts.insert(
            format!("stream {}", stream.escape_ascii()),
            format!("{size} bytes, {}", format_args!("{:032x}", digest(&full))),
        );
    }
}

/// The value of an extended attribute; `None` if there is no such attribute.
fn attribute(path: &Path, name: &OsStr) -> Option<Vec<u8>> {
    let mut value = vec![0; 1 << 16];
    match rustix::fs::lgetxattr(path, name, &mut value) {
        Ok(len) => Some(value[..len].to_vec()),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => None,
        // Of the root, which has none.
        Err(rustix::io::Errno::PERM) if name == "system.ntfs_dos_name" => None,
        // ntfs-3g's way to say that a file is no reparse point.
        Err(error) if std::io::Error::from(error).kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("{}: {}: {error}", path.display(), name.display()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}
