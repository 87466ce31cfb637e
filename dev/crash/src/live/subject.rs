//! Small images of every kind that is written, most of them made by QEMU.
//!
//! Small, so that what is freed is soon used again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{LiveDisk, ReadAt, TargetFile};
use extent::Offset;
use image::live::{Arrangement, LiveOptions};
use image::{Chain, CreateOptions, Format, OpenOptions};
use sim::{Pages, SimDisk, SimMachine};
use tempfile::TempDir;
use testkit::{TestResolver, run, scratch};

use super::known::{SECTOR_LEN, sector_of, word, word_of};

/// A kind of image.
#[derive(Clone, Copy, Debug)]
pub struct LiveKind {
    /// What it is called here.
    pub name: &'static str,
    /// Its format.
    pub format: Format,
    /// QEMU's name of the format.
    pub driver: &'static str,
    options: &'static str,
    /// The least that it allocates.
    pub unit_bytes: u64,
    /// The disk's size.
    pub len_bytes: u64,
    /// Whether `qemu-img check` knows the format.
    is_checked: bool,
    has_parent: bool,
    /// Whether every sector may be torn, not only those of the guest's data.
    tears_tables: bool,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Disks end within a unit.
const TAIL: u64 = 3 * 512;

const fn kind(
    name: &'static str,
    format: Format,
    driver: &'static str,
    options: &'static str,
    unit_bytes: u64,
    len_bytes: u64,
) -> LiveKind {
    LiveKind {
        name,
        format,
        driver,
        options,
        unit_bytes,
        len_bytes: len_bytes + TAIL,
        is_checked: true,
        has_parent: false,
        tears_tables: false,
    }
}

const VHDX: &str = "subformat=dynamic,block_size=1M";
const VHDX_FIXED: &str = "subformat=fixed,block_size=1M";
const VHD_FIXED: &str = "subformat=fixed,force_size=on";
const ZEROED: &str = "subformat=monolithicSparse,zeroed_grain=on";

/// All of them. A flat VMDK is two files, whose data is as raw.
pub const LIVE_KINDS: &[LiveKind] = &[
    LiveKind {
        is_checked: false,
        tears_tables: true,
        ..kind("raw", Format::Raw, "raw", "", 4 * KIB, 64 * KIB)
    },
    kind("qcow2", Format::Qcow2, "qcow2", "", 64 * KIB, 256 * KIB),
    kind("qcow2-4k", Format::Qcow2, "qcow2", "cluster_size=4096", 4 * KIB, 96 * KIB),
    kind("qcow2-512", Format::Qcow2, "qcow2", "cluster_size=512,refcount_bits=1", 512, 48 * KIB),
    kind("qcow2-v2", Format::Qcow2, "qcow2", "compat=0.10,cluster_size=4096", 4 * KIB, 64 * KIB),
    LiveKind {
        has_parent: true,
        ..kind("qcow2-child", Format::Qcow2, "qcow2", "cluster_size=4096", 4 * KIB, 96 * KIB)
    },
    kind("qcow2-2m", Format::Qcow2, "qcow2", "cluster_size=2M,refcount_bits=64", 2 * MIB, 4 * MIB),
    LiveKind { tears_tables: true, ..kind("vhdx", Format::Vhdx, "vhdx", VHDX, MIB, 2 * MIB) },
    LiveKind { tears_tables: true, ..kind("vhdx-fixed", Format::Vhdx, "vhdx", VHDX_FIXED, MIB, 2 * MIB) },
    LiveKind { is_checked: false, ..kind("vhd", Format::Vhd, "vpc", "", 512 * KIB, 1536 * KIB) },
    LiveKind { is_checked: false, ..kind("vhd-fixed", Format::Vhd, "vpc", VHD_FIXED, 4 * KIB, 64 * KIB) },
    kind("vdi", Format::Vdi, "vdi", "", MIB, 2 * MIB),
    kind("vmdk", Format::Vmdk, "vmdk", "subformat=monolithicSparse", 64 * KIB, 256 * KIB),
    kind("vmdk-zeroed", Format::Vmdk, "vmdk", ZEROED, 64 * KIB, 256 * KIB),
];

/// An image with a persistent bitmap.
pub const BITMAP_KIND: LiveKind =
    kind("qcow2-bitmap", Format::Qcow2, "qcow2", "cluster_size=4096", 4 * KIB, 96 * KIB);
/// The bitmap's name.
pub(super) const BITMAP: &str = "since";

/// The kind of that name.
pub fn live_kind(name: &str) -> Option<LiveKind> {
    LIVE_KINDS.iter().copied().find(|kind| kind.name == name)
}

/// Which of the flushes that a disk in use asks for its host carries out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flushes {
    /// All of them.
    All,
    /// One when the disk is closed.
    AtTheEnd,
    /// One before a client's flush is answered, and when the disk is closed: none of those that keep an order before.
    ForClients,
}

/// A fresh image of a kind.
pub struct LiveSubject {
    /// Its kind.
    pub kind: LiveKind,
    flushes: Flushes,
    dir: TempDir,
    /// An empty one, and one whose units lie in disorder; with what the disk reads as.
    images: Vec<(Pages, Vec<u8>)>,
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

impl LiveSubject {
    /// Has QEMU make one.
    pub fn new(kind: LiveKind) -> Self {
        let dir = scratch();
        let path = dir.path().join("disk");
        let size = kind.len_bytes.to_string();
        let mut args = vec!["create", "-q", "-f", kind.driver];
        if kind.has_parent {
            make_parent(dir.path(), kind.len_bytes);
            args.extend(["-b", "parent.qcow2", "-F", "qcow2"]);
        }
        if !kind.options.is_empty() {
            args.extend(["-o", kind.options]);
        }
        args.extend([text(&path), &size]);
        if kind.format == Format::Vhd && kind.options.is_empty() {
            make_vhd(&path, kind);
        } else {
            run("qemu-img", &args);
        }
        let mut subject = Self { kind, flushes: Flushes::All, dir, images: Vec::new() };
        subject.add_image(&path);
        age(&path, kind);
        subject.add_image(&path);
        if kind.name == BITMAP_KIND.name {
            // QEMU noted what it wrote last: one image has an empty bitmap, one has a bitmap with bits.
            subject.images.clear();
            run("qemu-img", &["bitmap", "--add", "-g", "4096", text(&path), BITMAP]);
            subject.add_image(&path);
            age(&path, kind);
            subject.add_image(&path);
        }
        subject
    }

    /// On a host that leaves out some of the flushes: what an exploration must notice.
    #[must_use]
    pub fn with(self, flushes: Flushes) -> Self {
        Self { flushes, ..self }
    }

    fn add_image(&mut self, path: &Path) {
        let image = Pages::new(&std::fs::read(path).unwrap());
        let disk = self.disk(&SimMachine::new(), 1, image.clone());
        let contents = self.read_only(disk).unwrap();
        self.images.push((image, contents));
    }

    /// One of its images, and what the disk reads as.
    pub(super) fn start(&self, seed: u64) -> (&Pages, &[u8]) {
        let number = usize::try_from(seed % self.images.len() as u64).expect("an index");
        let (image, contents) = &self.images[number];
        (image, contents)
    }

    /// A disk of `machine` that holds an image of this kind.
    pub(super) fn disk(&self, machine: &SimMachine, seed: u64, image: Pages) -> Arc<SimDisk> {
        let disk = machine.disk(text(&self.dir.path().join("disk")), seed, image);
        if self.kind.tears_tables {
            disk.tear_sectors(true);
        } else {
            disk.tear_sectors_if(|a, b| word_of(a).is_some() && word_of(b).is_some());
        }
        disk.leave_out_flushes(self.flushes != Flushes::All);
        Arc::new(disk)
    }

    /// A flush that a client asked for was carried out.
    pub(super) fn flushed(&self, disk: &SimDisk) -> block::Result<()> {
        if self.flushes == Flushes::ForClients { self.closed(disk) } else { Ok(()) }
    }

    /// The disk was closed.
    pub(super) fn closed(&self, disk: &SimDisk) -> block::Result<()> {
        if self.flushes == Flushes::All {
            return Ok(());
        }
        disk.leave_out_flushes(false);
        let flushed = disk.flush();
        disk.leave_out_flushes(true);
        flushed
    }

    pub(super) fn chain(&self, disk: Arc<SimDisk>) -> block::Result<Chain> {
        Chain::open(disk, OpenOptions { format: Some(self.kind.format) }, &TestResolver::default())
    }

    /// Takes the image into use for the `number`th time.
    pub(super) fn open(&self, disk: &Arc<SimDisk>, number: u64) -> block::Result<Arc<dyn LiveDisk>> {
        let chain = self.chain(disk.clone())?;
        let options = LiveOptions { arrangement: self.arrangement(number), ..LiveOptions::default() };
        Ok(Arc::from(image::live::open(chain, vec![disk.clone()], options)?))
    }

    /// Many small tracts, few large ones with gaps to be filled, or none.
    fn arrangement(&self, number: u64) -> Arrangement {
        let unit_bytes = self.kind.unit_bytes;
        match number % 3 {
            0 => Arrangement::Dense { tract_bytes: 2 * unit_bytes },
            1 => Arrangement::Dense { tract_bytes: 128 * unit_bytes },
            _ => Arrangement::Mirror,
        }
    }

    /// What the disk reads as for one who does not write.
    pub(super) fn read_only(&self, disk: Arc<SimDisk>) -> block::Result<Vec<u8>> {
        let chain = self.chain(disk)?;
        let mut bytes = vec![0; usize::try_from(chain.len_bytes()).unwrap()];
        chain.read_at(Offset::ZERO, &mut bytes)?;
        Ok(bytes)
    }

    /// Has QEMU say whether `image` is whole, leaks apart, and reads as `contents`.
    pub(super) fn judge(&self, image: &Pages, contents: &[u8]) -> Result<(), String> {
        self.judge_as(image, contents, false)
    }

    /// Has QEMU say the same of an image that was closed: it needs no repair, and nothing leaks.
    pub(super) fn judge_closed(&self, image: &Pages, contents: &[u8]) -> Result<(), String> {
        self.judge_as(image, contents, true)
    }

    fn judge_as(&self, image: &Pages, contents: &[u8], is_closed: bool) -> Result<(), String> {
        let [path, raw] = ["judged", "judged.raw"].map(|name| self.dir.path().join(name));
        std::fs::write(&path, image.to_vec()).unwrap();
        let kind = self.kind;
        if kind.is_checked {
            // A log that is pending is applied only then.
            let is_pending = kind.format == Format::Vhdx && !is_closed;
            let repair: &[&str] = if is_pending { &["-r", "all"] } else { &[] };
            let args = [&["check", "-q", "-f", kind.driver], repair, &[text(&path)]].concat();
            let output = std::process::Command::new("qemu-img").args(args).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let said = said + &String::from_utf8_lossy(&output.stderr);
            let may_leak = || {
                matches!(output.status.code(), Some(3))
                    || kind.format == Format::Vdi && counts_too_many(&said)
            };
            let is_fine = output.status.success() || (!is_closed && may_leak());
            if !is_fine {
                return Err(format!("qemu-img check: {}: {said}", output.status));
            }
        }
        let args = ["convert", "-f", kind.driver, "-O", "raw", text(&path), text(&raw)];
        let output = std::process::Command::new("qemu-img").args(args).output().unwrap();
        if !output.status.success() {
            return Err(format!("qemu-img convert: {}", String::from_utf8_lossy(&output.stderr)));
        }
        match std::fs::read(&raw).unwrap() == contents {
            true => Ok(()),
            false => Err("QEMU reads something else".into()),
        }
    }

    /// Keeps an image that failed; says where.
    pub(super) fn keep(&self, image: &Pages) -> String {
        let folder = std::env::var_os("LEANDISK_KEEP_DIR").map(PathBuf::from);
        let Some(folder) = folder else { return String::new() };
        let path = folder.join(format!("live-{}.img", self.kind.name));
        std::fs::write(&path, image.to_vec()).unwrap();
        format!(" (kept as {})", path.display())
    }
}

/// Whether all that `qemu-img check` has to say is that a VDI counts more blocks than it has: the count grows before a block is
/// referred to, since the next block goes where the count says.
fn counts_too_many(said: &str) -> bool {
    let counts = |line: &str| {
        let rest = line.strip_prefix("ERROR: allocated blocks mismatch, is ")?;
        let (is, should_be) = rest.split_once(", should be ")?;
        Some((is.parse::<u64>().ok()?, should_be.parse::<u64>().ok()?))
    };
    let mut lines = said.lines().filter(|line| !line.is_empty()).peekable();
    lines.peek().is_some() && lines.all(|line| counts(line).is_some_and(|(is, should_be)| is < should_be))
}

/// QEMU would make blocks of 2 MiB, which take their time.
fn make_vhd(path: &Path, kind: LiveKind) {
    let options = CreateOptions {
        virtual_bytes: kind.len_bytes,
        sector_bytes: 512,
        compress: false,
        keys: BTreeMap::from([("block_size".into(), kind.unit_bytes.to_string())]),
        identity_seed: 1,
        created_unix_seconds: 1 << 30,
        file_name: "disk".into(),
        target_is_dirty: false,
    };
    testkit::write_image(&mut *image::create(kind.format, options).unwrap(), &[], path);
}

/// Data in most of its sectors, and holes; a little shorter than its child.
fn make_parent(dir: &Path, len_bytes: u64) {
    let raw = dir.join("parent.raw");
    let len = usize::try_from(len_bytes).unwrap() - 9 * SECTOR_LEN;
    let mut bytes = vec![0; len];
    for (number, sector) in bytes.chunks_mut(SECTOR_LEN).enumerate().filter(|(number, _)| number % 96 < 64) {
        sector.copy_from_slice(&sector_of(word(1, number)));
    }
    std::fs::write(&raw, bytes).unwrap();
    let path = dir.join("parent.qcow2");
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", text(&raw), text(&path)]);
}

/// Has QEMU write some of the units, in an order that is not theirs: so others find their places taken, and free later.
fn age(path: &Path, kind: LiveKind) {
    let count = kind.len_bytes.div_ceil(kind.unit_bytes);
    let pattern = path.with_file_name("pattern");
    let bytes: Vec<u8> = (0..128).flat_map(|number| sector_of(word(0, number))).collect();
    std::fs::write(&pattern, bytes).unwrap();
    // From both ends inwards: where a neighbour would go, lies one from the other end.
    let taken = (count * 3 / 4).max(3);
    let units =
        (0..count).flat_map(|number| [number, count - 1 - number]).take(usize::try_from(taken).unwrap());
    let commands = units.map(|unit| {
        let start = unit * kind.unit_bytes;
        let len_bytes = kind.unit_bytes.min(kind.len_bytes - start).min(64 * KIB);
        format!("write -s {} {start} {len_bytes}", text(&pattern))
    });
    let commands: Vec<String> = commands.collect();
    let mut args = vec!["-f", kind.driver];
    args.extend(commands.iter().flat_map(|command| ["-c", command.as_str()]));
    args.push(text(path));
    run("qemu-io", &args);
}
