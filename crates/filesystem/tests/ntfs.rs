//! NTFS against ntfs-3g and ntfsprogs: volumes that they make are understood, and what Leandisk calls free
//! can be overwritten without their noticing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{Error, ErrorKind, Memory, ReadAt, Result};
use extent::{Volume, VolumeOffset, VolumeSpan};
use filesystem::{Check, FileSystem, Source, State, Use};
use tempfile::TempDir;
use testkit::{check_hostile, run, scratch};

/// A volume in a file.
struct InFile(File);

impl ReadAt<Volume> for InFile {
    fn len_bytes(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        block::check_bounds(at, buf.len(), self.len_bytes())?;
        self.0.read_exact_at(buf, at.get()).map_err(|error| Error::io("test volume", error))
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn open(path: &Path) -> Box<dyn FileSystem> {
    open_source(Arc::new(InFile(File::open(path).unwrap())))
}

fn open_source(source: Source) -> Box<dyn FileSystem> {
    filesystem::ntfs::open(&source).unwrap().expect("recognised")
}

fn open_bytes(bytes: Vec<u8>) -> Box<dyn FileSystem> {
    open_source(Arc::new(Memory::new(bytes)))
}

/// A mounted volume; unmounted, and all of it written, when dropped.
struct Mounted {
    dir: PathBuf,
    program: Child,
}

impl Mounted {
    fn new(volume: &Path, dir: &Path, options: &str) -> Self {
        fs::create_dir_all(dir).unwrap();
        let before = fs::metadata(dir).unwrap().dev();
        let options = format!("no_detach,{options}");
        let mut program = Command::new("ntfs-3g")
            .args(["-o", &options, text(volume), text(dir)])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ntfs-3g");
        let started = Instant::now();
        while fs::metadata(dir).unwrap().dev() == before {
            assert!(program.try_wait().unwrap().is_none(), "ntfs-3g gave up on {}", volume.display());
            assert!(started.elapsed() < Duration::from_secs(30), "ntfs-3g does not mount");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { dir: dir.into(), program }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily, so that it is gone even if the test failed with a file open.
        let _ = Command::new("umount").args(["-l", text(&self.dir)]).status();
        let _ = self.program.wait();
    }
}

struct Made {
    dir: TempDir,
    volume: PathBuf,
}

fn make(mib: u64, options: &[&str]) -> Made {
    let dir = scratch();
    let volume = dir.path().join("volume");
    File::create(&volume).unwrap().set_len(mib << 20).unwrap();
    let mut args = vec!["-F", "-Q", "-q", "-L", "Größe", "-p", "0", "-H", "0", "-S", "0"];
    args.extend(options);
    args.push(text(&volume));
    run("mkntfs", &args);
    Made { dir, volume }
}

impl Made {
    fn mount(&self, options: &str) -> Mounted {
        Mounted::new(&self.volume, &self.dir.path().join("mnt"), options)
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.volume).unwrap()
    }
}

/// Bytes that do not compress and differ from file to file.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    step.flatten().take(len).collect()
}

/// Fills a mounted volume with every kind of file that ntfs-3g can make.
fn populate(root: &Path, unit: usize) {
    for index in 0..40 {
        fs::write(
            root.join(format!("small{index}")),
            noise(index, 100 + 20 * usize::try_from(index).unwrap()),
        )
        .unwrap();
        fs::write(root.join(format!("medium{index}")), noise(index, unit * 3 + 7)).unwrap();
    }
    // Every other one goes, so that what comes next is in pieces.
    for index in (0..40).step_by(2) {
        fs::remove_file(root.join(format!("medium{index}"))).unwrap();
    }
    fs::write(root.join("fragmented"), noise(99, unit * 90)).unwrap();
    fs::create_dir_all(root.join("dir/größe/子")).unwrap();
    for index in 0..150 {
        fs::write(root.join(format!("dir/a file with a rather long name {index}")), b"x").unwrap();
    }
    fs::hard_link(root.join("fragmented"), root.join("dir/linked")).unwrap();
    std::os::unix::fs::symlink("fragmented", root.join("symlink")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(&noise(5, 5000), 3 << 20).unwrap();
    sparse.set_len(9 << 20).unwrap();
    fs::write(root.join("small1:stream"), noise(6, unit * 2 + 1)).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
    fs::create_dir(root.join("packed")).unwrap();
    let mut compressible = noise(7, 30_000);
    compressible.extend(vec![b'a'; 300_000]);
    compressible.extend(noise(8, 30_000));
    if unit <= 4096 {
        // FILE_ATTRIBUTE_COMPRESSED on the folder; new files in it are compressed.
        run(
            "setfattr",
            &["-h", "-n", "system.ntfs_attrib_be", "-v", "0x00000810", text(&root.join("packed"))],
        );
    }
    fs::write(root.join("packed/file"), compressible).unwrap();
    fs::write(root.join("PageFile.sys"), noise(10, unit * 10)).unwrap();
    fs::write(root.join("swapfile.sys"), noise(11, unit * 2)).unwrap();
    let mut hibernation = noise(12, unit.max(4096) * 4);
    hibernation[..4].copy_from_slice(b"wake");
    fs::write(root.join("hiberfil.sys"), hibernation).unwrap();
}

/// The contents of every file and stream but the page files.
fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().to_lowercase();
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            } else if entry.file_type().unwrap().is_file() && !name.ends_with(".sys") {
                let mut bytes = Vec::new();
                File::open(entry.path()).unwrap().read_to_end(&mut bytes).unwrap();
                found.insert(entry.path(), bytes);
            }
        }
    }
    let stream = root.join("small1:stream");
    if let Ok(bytes) = fs::read(&stream) {
        found.insert(stream, bytes);
    }
    found
}

/// The spans of one use, and that they cover the volume whatever the window.
fn spans(filesystem: &dyn FileSystem, check: Check, len_bytes: u64, wanted: Use) -> Vec<VolumeSpan> {
    let map = filesystem.used_map(check).unwrap();
    let all = map.uses(VolumeSpan::from_zero(len_bytes)).unwrap();
    let mut at = VolumeOffset::ZERO;
    for extent in &all {
        assert_eq!(extent.span.start(), at, "consecutive");
        at = extent.span.end();
    }
    assert_eq!(at.get(), len_bytes, "covered");
    for step in [1000, 65_536, 1 << 20] {
        let mut joined: Vec<extent::Extent<Volume, Use>> = Vec::new();
        for window in VolumeSpan::from_zero(len_bytes.min(step * 300)).split(step) {
            for extent in map.uses(window).unwrap() {
                match joined.last_mut() {
                    Some(last) if last.state == extent.state => {
                        last.span = VolumeSpan::between(last.span.start(), extent.span.end());
                    }
                    _ => joined.push(extent),
                }
            }
        }
        let last = joined.pop().unwrap();
        assert_eq!(joined[..], all[..joined.len()]);
        assert!(all[joined.len()].span.covers(&last.span));
    }
    all.into_iter().filter(|extent| extent.state == wanted).map(|extent| extent.span).collect()
}

fn clean_free_bytes(volume: &Path) -> u64 {
    let info = run("ntfsinfo", &["-m", text(volume)]);
    let number = |name: &str| -> u64 {
        let line =
            info.lines().find(|line| line.trim().starts_with(name)).unwrap_or_else(|| panic!("{info}"));
        line.rsplit(':').next().unwrap().split_whitespace().next().unwrap().parse().unwrap()
    };
    number("Free Clusters") * number("Cluster Size")
}

/// The strong one: what is called free or swap is overwritten, and neither ntfsprogs nor any file notices.
fn check_end_to_end(made: &Made) {
    let filesystem = open(&made.volume);
    let facts = filesystem.facts();
    assert_eq!(facts.state, State::Clean);
    assert_eq!(facts.label.as_deref(), Some("Größe"));
    assert_eq!(facts.free_bytes, Some(clean_free_bytes(&made.volume)));
    let len_bytes = fs::metadata(&made.volume).unwrap().len();
    let free = spans(&*filesystem, Check::Full, len_bytes, Use::Free);
    let swap = spans(&*filesystem, Check::Full, len_bytes, Use::Swap);
    assert_eq!(swap, spans(&*filesystem, Check::Quick, len_bytes, Use::Swap));
    assert_eq!(free.iter().map(VolumeSpan::len_bytes).sum::<u64>(), facts.free_bytes.unwrap());
    assert!(!swap.is_empty());
    let before = contents(&made.mount("ro,streams_interface=windows").dir);
    let file = File::options().write(true).open(&made.volume).unwrap();
    for span in free.iter().chain(&swap) {
        for piece in span.split(1 << 20) {
            let len = usize::try_from(piece.len_bytes()).unwrap();
            file.write_all_at(&vec![0xdb; len], piece.start().get()).unwrap();
        }
    }
    run("ntfsfix", &["-n", text(&made.volume)]);
    run("ntfsresize", &["--info", "-f", text(&made.volume)]);
    let mounted = made.mount("ro,streams_interface=windows");
    let after = contents(&mounted.dir);
    assert!(before.len() > 200);
    assert!(before == after, "a file changed");
    let page_file = fs::read(mounted.dir.join("PageFile.sys")).unwrap();
    assert!(page_file.iter().all(|byte| *byte == 0xdb), "the page file is swap");
    let hibernation = fs::read(mounted.dir.join("hiberfil.sys")).unwrap();
    assert!(hibernation.starts_with(b"wake") && hibernation[4..4096].iter().any(|byte| *byte != 0xdb));
    assert!(hibernation.ends_with(&[0xdb; 100]));
}

fn populated(mib: u64, options: &[&str], unit: usize) -> Made {
    let made = make(mib, options);
    populate(&made.mount("streams_interface=windows,compression").dir, unit);
    made
}

#[test]
fn free_and_swap_mean_nothing_with_4_kib_clusters() {
    check_end_to_end(&populated(40, &[], 4096));
}

#[test]
fn free_and_swap_mean_nothing_with_512_byte_clusters() {
    check_end_to_end(&populated(30, &["-c", "512"], 512));
}

#[test]
fn free_and_swap_mean_nothing_with_64_kib_clusters() {
    check_end_to_end(&populated(60, &["-c", "65536"], 65_536));
}

#[test]
fn free_and_swap_mean_nothing_with_4_kib_sectors_and_records() {
    let made = populated(40, &["-s", "4096"], 4096);
    let filesystem = open(&made.volume);
    assert!(filesystem.facts().details.contains(&("file record", "4096 bytes".into())));
    check_end_to_end(&made);
}

#[test]
fn the_largest_clusters_are_understood() {
    let made = make(96, &["-c", "2097152"]);
    fs::write(made.mount("").dir.join("file"), noise(1, 3 << 20)).unwrap();
    let filesystem = open(&made.volume);
    assert_eq!(filesystem.facts().state, State::Clean);
    assert_eq!(filesystem.facts().cluster_bytes, Some(2 << 20));
    assert_eq!(filesystem.facts().free_bytes, Some(clean_free_bytes(&made.volume)));
    filesystem.used_map(Check::Full).unwrap();
}
