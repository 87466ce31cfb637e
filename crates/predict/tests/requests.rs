//! The requests that the model predicts are those that a block device counts while the file is read through a
//! real mount. Needs root.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use predict::cost::{Piece, QueueLimits, RequestSize, SequentialRead};
use predict::profile::HDD;
use testkit::{as_root, run, scratch};

const MIB: u64 = 1 << 20;

/// How far the prediction may be off.
const TOLERANCE: f64 = 0.05;

/// The longest request that the devices are made to take.
const REQUEST_KIB: u64 = 256;

fn root(program: &str, args: &[&str]) -> String {
    let output = as_root(program, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A file system on a loop device, mounted.
struct Mounted {
    device: String,
    folder: PathBuf,
    _dir: tempfile::TempDir,
}

impl Mounted {
    fn new(make: &[&str], size_bytes: u64) -> Self {
        let dir = scratch();
        let image = dir.path().join("image");
        File::create(&image).unwrap().set_len(size_bytes).unwrap();
        run(make[0], &[&make[1..], &[image.to_str().unwrap()]].concat());
        let device = root("losetup", &["--show", "-f", image.to_str().unwrap()]).trim().to_owned();
        let folder = dir.path().join("mounted");
        fs::create_dir(&folder).unwrap();
        let mounted = Self { device, folder, _dir: dir };
        // So that the size of a request decides where it is split, and not which pages its memory happens to have.
        let limit = format!("echo {REQUEST_KIB} > {}/queue/max_sectors_kb", mounted.sys().display());
        root("sh", &["-c", &limit]);
        let folder = mounted.folder.to_str().unwrap();
        root("mount", &["-o", "noatime", &mounted.device, folder]);
        root("chmod", &["777", folder]);
        mounted
    }

    fn queue(&self, name: &str) -> u64 {
        let path = self.sys().join("queue").join(name);
        fs::read_to_string(path).unwrap().trim().parse().unwrap()
    }

    fn limits(&self) -> QueueLimits {
        assert_eq!(self.queue("max_sectors_kb"), REQUEST_KIB);
        QueueLimits {
            request_bytes: self.queue("max_sectors_kb") << 10,
            segments: self.queue("max_segments"),
        }
    }

    /// Reads that the device has finished: the first number of its `stat` (Documentation/block/stat.rst).
    fn finished_reads(&self) -> u64 {
        let stat = fs::read_to_string(self.sys().join("stat")).unwrap();
        stat.split_whitespace().next().unwrap().parse().unwrap()
    }

    fn sys(&self) -> PathBuf {
        Path::new("/sys/block").join(self.device.strip_prefix("/dev/").unwrap())
    }

    /// How many requests the device counts while `file` is read as the model says: past the cache, in order.
    fn counted(&self, file: &Path, asked_bytes: u64) -> u64 {
        let input = format!("if={}", file.display());
        let size = format!("bs={asked_bytes}");
        let read = || run("dd", &[&input, "of=/dev/null", &size, "iflag=direct", "status=none"]);
        // The first time also reads what says where the file lies.
        read();
        let before = self.finished_reads();
        read();
        self.finished_reads() - before
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        as_root("umount", &[self.folder.to_str().unwrap()]);
        as_root("losetup", &["-d", &self.device]);
    }
}

/// Where the kernel says that a file lies, without what reads as zeros.
fn pieces(file: &Path) -> Vec<Piece> {
    let listing = run("filefrag", &["-v", "-b1", file.to_str().unwrap()]);
    let numbers = |line: &str| -> Option<(Piece, bool)> {
        let mut columns = line.split(':');
        columns.next()?.trim().parse::<u64>().ok()?;
        let start = |text: &str| text.split("..").next()?.trim().parse::<u64>().ok();
        let (logical, physical) = (start(columns.next()?)?, start(columns.next()?)?);
        let len_bytes = columns.next()?.trim().parse().ok()?;
        Some((Piece { logical, physical, len_bytes }, line.contains("unwritten")))
    };
    let found: Vec<_> = listing.lines().filter_map(numbers).collect();
    assert!(!found.is_empty(), "no extents in\n{listing}");
    found.into_iter().filter(|(_, is_unwritten)| !is_unwritten).map(|(piece, _)| piece).collect()
}

/// Numbers that look random and are the same every time.
fn numbers(mut state: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// A file in many pieces: free space is made of gaps in another file, of 1 to 8 blocks, and then written to.
fn make_fragmented(folder: &Path, filler_bytes: u64, len_bytes: u64) -> PathBuf {
    let filler = folder.join("filler");
    let filler = filler.to_str().unwrap();
    run("fallocate", &["-l", &filler_bytes.to_string(), filler]);
    let rest = File::create(folder.join("rest")).unwrap();
    while (&rest).write(&vec![1; 1 << 20]).is_ok_and(|written| written > 0) {}
    rest.sync_all().ok();
    let mut below = numbers(7);
    let (mut at, mut free_bytes) = (MIB, 0);
    while free_bytes < len_bytes + 2 * MIB {
        let gap_bytes = (1 + below(8)) * 4096;
        assert!(at + gap_bytes < filler_bytes, "the filler is too small");
        run("fallocate", &["-p", "-o", &at.to_string(), "-l", &gap_bytes.to_string(), filler]);
        free_bytes += gap_bytes;
        at += gap_bytes + (1 + below(4)) * 4096;
    }
    run("sync", &[]);
    let path = folder.join("fragmented");
    let file = File::create(&path).unwrap();
    (&file).write_all(&vec![7; usize::try_from(len_bytes).unwrap()]).unwrap();
    file.sync_all().unwrap();
    path
}

/// A file with holes of 1 to 16 blocks between data of 1 to 32.
fn make_sparse(folder: &Path, len_bytes: u64) -> PathBuf {
    let path = folder.join("sparse");
    let file = File::create(&path).unwrap();
    let mut below = numbers(11);
    let mut at = 0;
    while at < len_bytes {
        let data = vec![9; usize::try_from((1 + below(32)) * 4096).unwrap()];
        file.write_all_at(&data, at).unwrap();
        at += data.len() as u64 + (1 + below(16)) * 4096;
    }
    file.sync_all().unwrap();
    path
}

fn check(mounted: &Mounted, name: &str, file: &Path, least_pieces: usize) {
    let pieces = pieces(file);
    assert!(pieces.len() >= least_pieces, "{name}: only {} pieces", pieces.len());
    for asked_bytes in [4 << 10, 16 << 10, 64 << 10, 128 << 10, 512 << 10, MIB] {
        let size = RequestSize::new(asked_bytes, mounted.limits());
        let cost = SequentialRead::of_file(&HDD, size, pieces.iter().copied());
        let counted = mounted.counted(file, asked_bytes);
        println!(
            "{name}: {} pieces, {asked_bytes} bytes at a time: predicted {}, counted {counted}, in one piece {}",
            pieces.len(),
            cost.requests,
            cost.unfragmented_requests,
        );
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        let share = (cost.requests as f64 - counted as f64).abs() / counted as f64;
        assert!(
            share <= TOLERANCE,
            "{name}, {asked_bytes} bytes: predicted {}, counted {counted}",
            cost.requests
        );
    }
}

#[test]
fn ext4_reads_take_the_requests_that_are_predicted() {
    let mounted = Mounted::new(&["mkfs.ext4", "-q", "-F", "-b", "4096", "-m", "0"], 96 * MIB);
    let whole = mounted.folder.join("whole");
    fs::write(&whole, vec![5; usize::try_from(8 * MIB).unwrap()]).unwrap();
    run("sync", &[]);
    check(&mounted, "ext4, in one piece", &whole, 1);
    let sparse = make_sparse(&mounted.folder, 8 * MIB);
    check(&mounted, "ext4, sparse", &sparse, 50);
    let fragmented = make_fragmented(&mounted.folder, 40 * MIB, 12 * MIB);
    check(&mounted, "ext4, fragmented", &fragmented, 300);
}

#[test]
fn xfs_reads_take_the_requests_that_are_predicted() {
    let mounted = Mounted::new(&["mkfs.xfs", "-q", "-f"], 320 * MIB);
    let sparse = make_sparse(&mounted.folder, 16 * MIB);
    check(&mounted, "XFS, sparse", &sparse, 50);
}
