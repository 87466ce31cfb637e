//! What the tests of rearranging share: volumes with files in very many pieces, made once, and the judges of what
//! became of them: real mounts, the file systems' own checkers, and what they say of fragments.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;
use testkit::{ext_volume, ntfs_volume, run, scratch};

use crate::common::{arg, number};

const MIB: u64 = 1 << 20;

/// The file system of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inside {
    Ntfs,
    Ext4,
}

/// A volume of a fixture.
#[derive(Clone, Debug)]
pub struct Part {
    pub inside: Inside,
    pub start_bytes: u64,
    pub len_bytes: u64,
}

/// A raw disk with its volumes. Not to be changed.
#[derive(Clone, Debug)]
pub struct Fixture {
    pub name: &'static str,
    pub raw: PathBuf,
    pub parts: Vec<Part>,
}

/// A volume alone.
pub fn ntfs() -> Fixture {
    bare("ntfs", Inside::Ntfs)
}

/// A volume alone.
pub fn ext4() -> Fixture {
    bare("ext4", Inside::Ext4)
}

fn bare(name: &'static str, inside: Inside) -> Fixture {
    let raw = made().join(name);
    let len_bytes = fs::metadata(&raw).unwrap().len();
    Fixture { name, raw, parts: vec![Part { inside, start_bytes: 0, len_bytes }] }
}

/// Both volumes on a disk with an MBR.
pub fn mbr() -> Fixture {
    both("mbr")
}

/// Both volumes on a disk with a GPT.
pub fn gpt() -> Fixture {
    both("gpt")
}

fn both(name: &'static str) -> Fixture {
    let mut parts = Vec::new();
    let mut start_bytes = MIB;
    for bare in [ntfs(), ext4()] {
        parts.push(Part { start_bytes, ..bare.parts[0].clone() });
        start_bytes += bare.parts[0].len_bytes;
    }
    Fixture { name, raw: made().join(name), parts }
}

/// Where the fixtures are: kept with the build, under a name that changes with what fills them.
fn made() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        [
            include_str!("../../../../../dev/testkit/src/ntfs_volume/fill.py"),
            include_str!("../../../../../dev/testkit/scripts/fill-ext.py"),
            include_str!("../../../../../dev/testkit/src/ntfs_volume/digest.py"),
            include_str!("../../../../../dev/testkit/scripts/digest-tree.py"),
            include_str!("../../../../../dev/testkit/src/ntfs_volume.rs"),
            include_str!("../../../../../dev/testkit/src/ext_volume.rs"),
            include_str!("mod.rs"),
        ]
        .hash(&mut hasher);
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let dir = kept.join(format!("rearranged-{:016x}", hasher.finish()));
        if !dir.exists() {
            fs::create_dir_all(kept).unwrap();
            let fresh = tempfile::tempdir_in(kept).unwrap();
            make(fresh.path());
            if let Err(error) = fs::rename(fresh.path(), &dir) {
                assert!(dir.exists(), "{}: {error}", dir.display());
            }
        }
        dir
    })
}

fn make(dir: &Path) {
    let (ntfs, ext4) = (dir.join("ntfs"), dir.join("ext4"));
    ntfs_volume::make(&ntfs, 4096, 7);
    ext_volume::make(&ext4, "-t ext4 -b 1024", 7);
    for (inside, volume) in [(Inside::Ntfs, &ntfs), (Inside::Ext4, &ext4)] {
        fs::write(volume.with_extension("digest"), digest(inside, volume)).unwrap();
    }
    let mib = |path: &Path| fs::metadata(path).unwrap().len() / MIB;
    let (ntfs_mib, ext4_mib) = (mib(&ntfs), mib(&ext4));
    for (label, types) in [("dos", ["7", "83"]), ("gpt", [NTFS_TYPE, LINUX_TYPE])] {
        let disk = dir.join(if label == "dos" { "mbr" } else { "gpt" });
        File::create(&disk).unwrap().set_len((2 + ntfs_mib + ext4_mib) * MIB).unwrap();
        let script = format!(
            "label: {label}\nstart=1MiB, size={ntfs_mib}MiB, type={}\nstart={}MiB, size={ext4_mib}MiB, type={}\n",
            types[0],
            1 + ntfs_mib,
            types[1]
        );
        let text = dir.join("table");
        fs::write(&text, script).unwrap();
        run("sh", &["-c", &format!("sfdisk -q '{}' < '{}'", disk.display(), text.display())]);
        for (volume, start_mib) in [(&ntfs, 1), (&ext4, 1 + ntfs_mib)] {
            write_into(volume, &disk, start_mib * MIB);
        }
    }
}

const NTFS_TYPE: &str = "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7";
const LINUX_TYPE: &str = "0FC63DAF-8483-4772-8E79-3D69D8477DE4";

/// The file `from` becomes a part of `to`.
pub fn write_into(from: &Path, to: &Path, start_bytes: u64) {
    let of = format!("of={}", to.display());
    let seek = format!("seek={}", start_bytes / MIB);
    let conv = "conv=notrunc,sparse";
    run("dd", &[&format!("if={}", from.display()), &of, &seek, "bs=1M", conv, "status=none"]);
}

impl Fixture {
    /// Its volume alone, out of the raw disk at `raw`.
    pub fn extract(&self, part: &Part, raw: &Path, to: &Path) {
        testkit::extract(raw, part.start_bytes, part.len_bytes, to);
    }

    /// Panics unless the raw disk at `raw` holds the same files in volumes that their checkers find without fault, and
    /// lies as this one does outside of them.
    pub fn assert_same_files(&self, raw: &Path) {
        let dir = scratch();
        assert_eq!(fs::metadata(raw).unwrap().len(), fs::metadata(&self.raw).unwrap().len());
        for part in &self.parts {
            let volume = dir.path().join("volume");
            self.extract(part, raw, &volume);
            fsck(part.inside, &volume);
            let kept = made().join(if part.inside == Inside::Ntfs { "ntfs.digest" } else { "ext4.digest" });
            assert_same_lines(&fs::read_to_string(kept).unwrap(), &digest(part.inside, &volume), self.name);
        }
        self.assert_same_outside(raw);
    }

    /// The table, the gaps and what is behind the volumes.
    fn assert_same_outside(&self, raw: &Path) {
        let mut at = 0;
        let mut ends: Vec<(u64, u64)> = Vec::new();
        for part in &self.parts {
            ends.push((at, part.start_bytes));
            at = part.start_bytes + part.len_bytes;
        }
        ends.push((at, fs::metadata(raw).unwrap().len()));
        for (start, end) in ends.into_iter().filter(|(start, end)| start < end) {
            let skip = format!("--ignore-initial={start}");
            let count = format!("--bytes={}", end - start);
            run("cmp", &[&skip, &count, arg(raw), arg(&self.raw)]);
        }
    }
}

fn assert_same_lines(before: &str, after: &str, what: &str) {
    if before == after {
        return;
    }
    let lost: Vec<_> = before.lines().filter(|line| !after.lines().any(|other| other == *line)).collect();
    let new: Vec<_> = after.lines().filter(|line| !before.lines().any(|other| other == *line)).collect();
    let first = |lines: &[&str]| lines.iter().take(5).map(ToString::to_string).collect::<Vec<_>>().join("\n");
    panic!("{what}: {} lines differ\n-{}\n+{}", lost.len().max(new.len()), first(&lost), first(&new));
}

/// What a real mount shows of a volume: every path with its contents' digest, sizes, times, rights, streams, attributes.
pub fn digest(inside: Inside, volume: &Path) -> String {
    let dir = scratch();
    match inside {
        Inside::Ntfs => {
            let mounted = ntfs_volume::Mounted::new(volume, &dir.path().join("mnt"), "ro");
            let lines = ntfs_volume::tree_digest(&mounted.dir);
            lines.iter().map(|(path, rest)| format!("{path}\t{rest}\n")).collect()
        }
        Inside::Ext4 => ext_volume::tree_digest(&ext_volume::Mounted::new(volume, "ro,noload").dir()),
    }
}

/// Panics unless the file system's own tools find nothing to complain of.
pub fn fsck(inside: Inside, volume: &Path) {
    match inside {
        Inside::Ntfs => {
            run("ntfsfix", &["-n", arg(volume)]);
            run("ntfsresize", &["--info", "--force", "--no-progress-bar", arg(volume)]);
        }
        Inside::Ext4 => {
            run("e2fsck", &["-fn", arg(volume)]);
        }
    }
}

/// How many runs filefrag counts of each regular file of an ext4 volume.
pub fn filefrag(volume: &Path) -> Vec<(String, u64)> {
    let mounted = ext_volume::Mounted::new(volume, "ro,noload");
    let dir = mounted.dir();
    let find = format!("find '{}' -xdev -type f -print0 | xargs -0 filefrag", dir.display());
    let said = run("sh", &["-c", &find]);
    let lines = said.lines().map(|line| {
        let (path, rest) = line.rsplit_once(": ").unwrap();
        (
            path.trim_start_matches(arg(&dir)).to_owned(),
            rest.split_whitespace().next().unwrap().parse().unwrap(),
        )
    });
    lines.collect()
}

/// The runs, contiguous on the volume, that ntfscluster lists of the main stream of the file at `path`.
pub fn ntfs_runs(volume: &Path, path: &str) -> u64 {
    let (mut runs, mut end) = (0, None);
    for (place, len) in ntfs_extents(volume, path) {
        runs += u64::from(end != Some(place));
        end = Some(place + len);
    }
    runs
}

/// First cluster and count of clusters of each extent of the main stream of an NTFS file.
pub fn ntfs_extents(volume: &Path, path: &str) -> Vec<(u64, u64)> {
    let said = run("ntfscluster", &["-q", "-f", "-F", path, arg(volume)]);
    let data =
        said.split("\n    0x").find(|part| part.starts_with("80 - non-resident")).unwrap_or_else(|| {
            panic!("{path} has data in clusters: {said}");
        });
    let rows = data.lines().filter_map(|line| {
        let numbers: Vec<i64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [_, place, len] = numbers[..] else { return None };
        Some((u64::try_from(place).ok()?, u64::try_from(len).ok()?))
    });
    rows.collect()
}

/// A kind of image that is changed in place.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub qemu_format: &'static str,
    pub options: &'static str,
    pub is_checkable: bool,
}

const fn kind(
    name: &'static str,
    qemu_format: &'static str,
    options: &'static str,
    is_checkable: bool,
) -> Kind {
    Kind { name, qemu_format, options, is_checkable }
}

pub const RAW: Kind = kind("disk.raw", "raw", "", false);
pub const QCOW2: Kind = kind("disk.qcow2", "qcow2", "", true);
pub const QCOW2_SMALL: Kind = kind("small.qcow2", "qcow2", "cluster_size=4096", true);
pub const QCOW2_V2: Kind = kind("v2.qcow2", "qcow2", "compat=0.10", true);
pub const QCOW2_EXTENDED: Kind = kind("extended.qcow2", "qcow2", "extended_l2=on,cluster_size=128k", true);
pub const VHDX: Kind = kind("dynamic.vhdx", "vhdx", "subformat=dynamic,block_size=1M", true);
pub const VHDX_FIXED: Kind = kind("fixed.vhdx", "vhdx", "subformat=fixed", true);
pub const VHD: Kind = kind("dynamic.vhd", "vpc", "subformat=dynamic,force_size=on", false);
pub const VHD_FIXED: Kind = kind("fixed.vhd", "vpc", "subformat=fixed,force_size=on", false);
pub const VMDK: Kind = kind("sparse.vmdk", "vmdk", "subformat=monolithicSparse", true);
pub const VMDK_FLAT: Kind = kind("flat.vmdk", "vmdk", "subformat=monolithicFlat", false);
pub const VDI: Kind = kind("dynamic.vdi", "vdi", "", true);
pub const VDI_STATIC: Kind = kind("static.vdi", "vdi", "static=on", true);

impl Kind {
    /// The raw disk as an image of this kind in `dir`.
    pub fn make(&self, raw: &Path, dir: &Path) -> PathBuf {
        let path = dir.join(self.name);
        let mut args = vec!["convert", "-f", "raw", "-O", self.qemu_format];
        if !self.options.is_empty() {
            args.extend(["-o", self.options]);
        }
        args.extend([arg(raw), arg(&path)]);
        run("qemu-img", &args);
        path
    }

    /// What QEMU reads in `image`, as a raw file at `to`; `qemu-img check` finds nothing.
    pub fn extract_guest(&self, image: &Path, to: &Path) {
        if self.is_checkable {
            run("qemu-img", &["check", "-q", "-f", self.qemu_format, arg(image)]);
        }
        let options = match self.qemu_format {
            // QEMU trusts the geometry unless told that the size in the footer is meant.
            "vpc" => format!("driver=vpc,force_size_calc=current_size,file.filename={}", image.display()),
            format => format!("driver={format},file.filename={}", image.display()),
        };
        run("qemu-img", &["convert", "--image-opts", "-O", "raw", &options, arg(to)]);
    }
}

/// Bytes that all files in `dir` take on the host.
pub fn allocated_bytes(dir: &Path) -> u64 {
    run("sync", &["-f", arg(dir)]);
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    entries.filter(fs::Metadata::is_file).map(|metadata| metadata.blocks() * 512).sum()
}

/// The volume of a document with this index.
pub fn volume(document: &Value, index: u64) -> &Value {
    let volumes = document["volumes"].as_array().unwrap();
    volumes.iter().find(|volume| number(volume, "/index") == index).unwrap()
}

/// A disk of a kind in a folder of its own.
pub struct Scene {
    pub dir: tempfile::TempDir,
    pub disk: PathBuf,
    pub kind: Kind,
    pub fixture: Fixture,
}

impl Scene {
    pub fn new(fixture: Fixture, kind: Kind) -> Self {
        let dir = scratch();
        let disk = kind.make(&fixture.raw, dir.path());
        Self { dir, disk, kind, fixture }
    }
}
