//! What the tests of ext share: volumes made by real tools, and what those tools say of them.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use block::{Cached, Error, ReadAt, Result, check_bounds};
use extent::{ExtentSet, Offset, Span, Volume, VolumeOffset};
use filesystem::{Catalog, CatalogStream, Check, FileKind, FileSystem, PieceState, Source, StreamName, Use};
use testkit::loops::mount;
use testkit::{mke2fs, run};

/// A file that holds a volume.
pub struct VolumeFile(pub File);

impl ReadAt<Volume> for VolumeFile {
    fn len_bytes(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        self.0.read_exact_at(buf, at.get()).map_err(|error| Error::io("read", error).at(at))
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub fn source(path: &Path) -> Source {
    Arc::new(Cached::new(VolumeFile(File::open(path).unwrap()), 8 << 20))
}

pub fn open(path: &Path) -> Box<dyn FileSystem> {
    filesystem::ext::open(&source(path)).unwrap().expect("an ext superblock")
}

/// What the full check says of a volume: nothing, or the reason to doubt it.
pub fn doubt(path: &Path) -> Option<String> {
    open(path).used_map(Check::Full).err().map(|error| error.to_string())
}

/// Makes a volume of `mib` MiB, with what `contents` holds in it.
pub fn make(path: &Path, mib: u64, args: &str, contents: Option<&Path>) {
    File::create(path).unwrap().set_len(mib << 20).unwrap();
    let mut all: Vec<&str> = vec!["-q", "-F"];
    all.extend(args.split_whitespace());
    if let Some(contents) = contents {
        all.extend(["-d", text(contents)]);
    }
    all.push(text(path));
    mke2fs(&all);
}

/// A tree of files of every sort.
pub fn populate(dir: &Path) {
    fs::create_dir_all(dir.join("many")).unwrap();
    for index in 0..120 {
        fs::write(dir.join(format!("many/file number {index}")), vec![index as u8; index * 37]).unwrap();
    }
    let large: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8 ^ (at >> 12) as u8).collect();
    fs::write(dir.join("large"), large).unwrap();
    fs::write(dir.join("empty"), "").unwrap();
    let holes = File::create(dir.join("every other block")).unwrap();
    for index in 0..400u64 {
        holes.write_all_at(&[index as u8 | 1; 4096], index * 8192).unwrap();
    }
    let far = File::create(dir.join("far")).unwrap();
    far.write_all_at(b"far away", 300 << 20).unwrap();
    symlink("large", dir.join("short link")).unwrap();
    symlink("x".repeat(200), dir.join("long link")).unwrap();
    fs::hard_link(dir.join("large"), dir.join("another name")).unwrap();
    run("mkfifo", &[text(&dir.join("fifo"))]);
}

/// The used map, asked for in windows of several sizes, which must agree.
pub fn spans(filesystem: &dyn FileSystem, check: Check, len_bytes: u64, wanted: Use) -> ExtentSet<Volume> {
    let map = filesystem.used_map(check).unwrap_or_else(|error| panic!("{error}"));
    let mut answers = Vec::new();
    for step in [len_bytes, 5_000_003, 1 << 20] {
        let mut set = ExtentSet::new();
        for window in Span::from_zero(len_bytes).split(step) {
            let mut at = window.start();
            for part in map.uses(window).unwrap() {
                assert_eq!(part.span.start(), at, "parts of {window:?} follow each other");
                assert!(!part.span.is_empty());
                at = part.span.end();
                if part.state == wanted {
                    set.push(part.span);
                }
            }
            assert_eq!(at, window.end(), "parts cover {window:?}");
        }
        answers.push(set);
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "windows agree");
    answers.swap_remove(0)
}

/// The value of a field of `dumpe2fs`.
pub fn field(dump: &str, name: &str) -> u64 {
    let line = dump.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
    line.split(':').nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

/// What `dumpe2fs` lists as free.
pub fn oracle_free(path: &Path) -> ExtentSet<Volume> {
    let dump = run("dumpe2fs", &[text(path)]);
    let block = field(&dump, "Block size");
    let count = field(&dump, "Block count");
    // Of a span of free clusters it gives the first block of the first, and of the last the first block, or the last one since 1.47.2.
    let ratio = if dump.contains("Cluster size:") { field(&dump, "Cluster size") / block } else { 1 };
    let mut set = Vec::new();
    for line in dump.lines().filter_map(|line| line.strip_prefix("  Free blocks: ")) {
        for range in line.split(", ").filter(|range| !range.trim().is_empty()) {
            let (first, last) = range.trim().split_once('-').unwrap_or((range.trim(), range.trim()));
            let first: u64 = first.parse().unwrap();
            let end = ((last.parse::<u64>().unwrap() / ratio + 1) * ratio).min(count);
            set.push(Span::new(Offset::new(first * block), (end - first) * block));
        }
    }
    set.into_iter().collect()
}

/// Our free spans must be those of `dumpe2fs`, to the byte.
pub fn check_against_dumpe2fs(path: &Path, what: &str) {
    let filesystem = open(path);
    let len_bytes = fs::metadata(path).unwrap().len();
    let expected = oracle_free(path);
    for check in [Check::Quick, Check::Full] {
        let free = spans(&*filesystem, check, len_bytes, Use::Free);
        assert_eq!(free, expected, "{what}, {check:?}");
    }
}

/// Overwrites all of `spans` with a mark.
pub fn mark(path: &Path, spans: &ExtentSet<Volume>) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    for span in spans.iter().flat_map(|span| span.split(1 << 20)) {
        let len = usize::try_from(span.len_bytes()).unwrap();
        file.write_all_at(&vec![0xa7; len], span.start().get()).unwrap();
    }
}

/// A copy of what is not `free` of a volume; what is reads as `filler`.
pub fn copy_but(free: &ExtentSet<Volume>, volume: &Path, copy: &Path, filler: u8) {
    let len_bytes = fs::metadata(volume).unwrap().len();
    let (source, target) = (File::open(volume).unwrap(), File::create(copy).unwrap());
    target.set_len(len_bytes).unwrap();
    let (mut buffer, zeros) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for span in free.invert(Span::from_zero(len_bytes)).iter().flat_map(|span| span.split(1 << 20)) {
        let part = &mut buffer[..usize::try_from(span.len_bytes()).unwrap()];
        source.read_exact_at(part, span.start().get()).unwrap();
        // Holes stay holes.
        if *part != zeros[..part.len()] {
            target.write_all_at(part, span.start().get()).unwrap();
        }
    }
    if filler != 0 {
        buffer.fill(filler);
        for span in free.iter().flat_map(|span| span.split(1 << 20)) {
            let part = &buffer[..usize::try_from(span.len_bytes()).unwrap()];
            target.write_all_at(part, span.start().get()).unwrap();
        }
    }
}

/// What changes when a file is written.
#[derive(PartialEq, Eq, Debug)]
pub struct Written(u64, (i64, i64), (i64, i64));

impl Written {
    /// As it is now.
    pub fn of(path: &Path) -> Self {
        let facts = fs::metadata(path).unwrap();
        Self(facts.len(), (facts.mtime(), facts.mtime_nsec()), (facts.ctime(), facts.ctime_nsec()))
    }
}

/// A volume mounted through the kernel, unmounted when it goes out of scope. One at a time.
pub struct Mount {
    pub at: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

static MOUNTING: Mutex<()> = Mutex::new(());

impl Mount {
    pub fn new(volume: &Path, at: &Path, options: &str) -> Self {
        let alone = MOUNTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        fs::create_dir_all(at).unwrap();
        mount(&["-t", "ext4", "-o", &format!("loop,{options}"), text(volume), text(at)]);
        Self { at: at.to_owned(), _alone: alone }
    }

    /// Stops the file system as a loss of power would: `flags` as of `EXT4_IOC_SHUTDOWN`.
    pub fn shut_down(&self, flags: u32) {
        let code = "import fcntl, os, struct, sys\n\
            fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', int(sys.argv[2])))";
        run("python3", &["-c", code, text(&self.at), &flags.to_string()]);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        testkit::loops::unmount(&self.at);
    }
}

/// Runs commands of `debugfs` on a volume.
pub fn debugfs(volume: &Path, commands: &str) -> String {
    let script = volume.with_extension("debugfs");
    fs::write(&script, commands).unwrap();
    run("debugfs", &["-w", "-f", text(&script), text(volume)])
}

/// All that is told of a path: as `scripts/list.py` writes it.
pub type Listing = BTreeMap<Vec<u8>, String>;

/// What the kernel and filefrag say of the volume.
pub fn list_mounted(volume: &Path) -> Listing {
    let mount = Mount::new(volume, &volume.with_extension("mounted"), "ro,noload");
    list_tree(&mount.at, "file,directory")
}

/// What the kernel says of what is mounted there, and filefrag of those of some kinds.
pub fn list_tree(at: &Path, kinds_with_extents: &str) -> Listing {
    let lines = run("python3", &["-c", include_str!("../scripts/list.py"), text(at), kinds_with_extents]);
    let listing: Listing = lines
        .lines()
        .map(|line| {
            let (path, rest) = line.split_once(' ').unwrap();
            (unhex(path), rest.trim_end().to_owned())
        })
        .collect();
    assert_eq!(listing.len(), lines.lines().count(), "every path once");
    listing
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// The same as the scan has it, and nothing of what is the file system's own.
pub fn list_scanned(filesystem: &dyn FileSystem, catalog: &Catalog) -> Listing {
    let mut listing = Listing::new();
    for stream in catalog.streams().filter(|stream| stream.stream.name == StreamName::Main) {
        if stream.stream.kind == FileKind::Metadata {
            continue;
        }
        for path in catalog.paths(stream.stream.file) {
            let before = listing.insert(path, describe(filesystem, &stream));
            assert_eq!(before, None, "every path once");
        }
    }
    listing
}

pub fn describe(filesystem: &dyn FileSystem, stream: &CatalogStream<'_>) -> String {
    let what = stream.stream;
    let head = format!("{} {} {}", what.kind.word(), what.file.0, what.size_bytes);
    if ![FileKind::Regular, FileKind::Directory].contains(&what.kind) {
        return head;
    }
    let mut fragments = filesystem.fragments();
    let mut extents = Vec::new();
    for extent in stream.extents() {
        let (logical, physical, len) =
            (extent.logical.get(), extent.span.start().get(), extent.span.len_bytes());
        fragments.push(logical, physical, len);
        let state = if extent.state == PieceState::Unwritten { "u" } else { "" };
        extents.push(format!("{logical}:{physical}:{len}{state}"));
    }
    assert!(!what.is_inline || extents.is_empty());
    let extents = if what.is_inline { "inline".to_owned() } else { extents.join(",") };
    format!("{head} {} {extents}", fragments.count()).trim_end().to_owned()
}

pub fn assert_same(ours: &Listing, theirs: &Listing, what: &str) {
    for path in ours.keys().chain(theirs.keys()) {
        assert_eq!(ours.get(path), theirs.get(path), "{what}: {}", path.escape_ascii());
    }
}
