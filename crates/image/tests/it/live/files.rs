//! Files to be used, real and simulated, and the images in them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Error, HostFile, LiveDisk, ReadAt, Result, TargetFile, check_bounds};
use extent::{Host, HostOffset, HostSpan};
use image::live::LiveOptions;
use image::{Chain, Format, OpenOptions as ChainOptions};
use testkit::{TestFile, TestResolver, run};

/// A real file opened for writing.
pub(crate) struct RealFile(pub(crate) File);

impl RealFile {
    pub(crate) fn open(path: &Path) -> Arc<Self> {
        Arc::new(Self(OpenOptions::new().read(true).write(true).open(path).unwrap()))
    }
}

impl ReadAt<Host> for RealFile {
    fn len_bytes(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        self.0.read_exact_at(buf, at.get()).map_err(|error| Error::io("read", error).at(at))
    }
}

impl TargetFile for RealFile {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        self.0.write_all_at(buf, at.get()).map_err(|error| Error::io("write", error).at(at))
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        self.0.set_len(len_bytes).map_err(|error| Error::io("set length", error))
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        if self.len_bytes() < span.end().get() { self.set_len(span.end().get()) } else { Ok(()) }
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        for piece in span.split(1 << 20) {
            let zeros = vec![0; usize::try_from(piece.len_bytes()).unwrap()];
            self.write_at(piece.start(), &zeros)?;
        }
        Ok(())
    }

    fn punch(&self, span: HostSpan) -> Result<()> {
        assert!(span.end().get() <= self.len_bytes(), "{span:?} is punched within the file");
        let len = i64::try_from(span.len_bytes()).unwrap();
        let start = i64::try_from(span.start().get()).unwrap();
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let (start, len) = (u64::try_from(start).unwrap(), u64::try_from(len).unwrap());
        rustix::fs::fallocate(&self.0, flags, start, len).map_err(|error| Error::io("punch", error.into()))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A kind of image, and how QEMU makes an empty one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) format: Format,
    /// QEMU's name of the format.
    pub(crate) driver: &'static str,
    pub(crate) options: &'static str,
    pub(crate) size: u64,
    /// Whether `qemu-img check` knows the format.
    pub(crate) is_checked: bool,
}

const MIB: u64 = 1 << 20;

const fn kind(name: &'static str, format: Format, driver: &'static str, options: &'static str) -> Kind {
    Kind { name, format, driver, options, size: 6 * MIB + 3 * 512, is_checked: true }
}

pub(crate) const KINDS: &[Kind] = &[
    Kind { is_checked: false, ..kind("raw", Format::Raw, "raw", "") },
    kind("qcow2", Format::Qcow2, "qcow2", ""),
    kind("qcow2-4k", Format::Qcow2, "qcow2", "cluster_size=4096"),
    kind("qcow2-512", Format::Qcow2, "qcow2", "cluster_size=512,refcount_bits=1"),
    kind("qcow2-2m", Format::Qcow2, "qcow2", "cluster_size=2M,refcount_bits=64"),
    kind("vhdx", Format::Vhdx, "vhdx", "subformat=dynamic,block_size=1M"),
    kind("vhdx-fixed", Format::Vhdx, "vhdx", "subformat=fixed,block_size=1M"),
    Kind { is_checked: false, ..kind("vhd", Format::Vhd, "vpc", "subformat=dynamic,force_size=on") },
    Kind { is_checked: false, ..kind("vhd-fixed", Format::Vhd, "vpc", "subformat=fixed,force_size=on") },
    kind("vdi", Format::Vdi, "vdi", ""),
    kind("vmdk", Format::Vmdk, "vmdk", "subformat=monolithicSparse"),
    kind("vmdk-zeroed", Format::Vmdk, "vmdk", "subformat=monolithicSparse,zeroed_grain=on"),
    kind("vmdk-flat", Format::Vmdk, "vmdk", "subformat=monolithicFlat"),
    kind("qcow2-v2", Format::Qcow2, "qcow2", "compat=0.10"),
];

pub(crate) fn kind_named(name: &str) -> Kind {
    *KINDS.iter().find(|kind| kind.name == name).unwrap()
}

/// An empty image in `dir`.
pub(crate) fn create(kind: Kind, dir: &Path) -> PathBuf {
    let path = dir.join(format!("disk-{}.{}", kind.name, kind.format));
    let mut args = vec!["create", "-q", "-f", kind.driver];
    if !kind.options.is_empty() {
        args.extend(["-o", kind.options]);
    }
    let size = kind.size.to_string();
    args.extend([text(&path), &size]);
    run("qemu-img", &args);
    path
}

/// The files of the top layer of the image at `path`: itself, and the data of a flat VMDK.
pub(crate) fn layer_files(chain: &Chain) -> Vec<PathBuf> {
    chain.links()[0].layer.files().iter().map(|file| PathBuf::from(file.name())).collect()
}

pub(crate) fn chain_of(path: &Path) -> Chain {
    Chain::open(TestFile::open(path), ChainOptions::default(), &TestResolver::default()).unwrap()
}

pub(crate) fn try_open(path: &Path) -> Result<Box<dyn LiveDisk>> {
    let chain = chain_of(path);
    let files = layer_files(&chain).iter().map(|path| RealFile::open(path) as Arc<dyn TargetFile>).collect();
    image::live::open(chain, files, LiveOptions::default())
}

pub(crate) fn open(path: &Path) -> Box<dyn LiveDisk> {
    try_open(path).unwrap_or_else(|error| panic!("{}: {error:?}", path.display()))
}

/// The disk in `file`, read as any disk is.
pub(crate) fn contents_of(file: Arc<dyn HostFile>, format: Format) -> Result<Vec<u8>> {
    let options = ChainOptions { format: Some(format) };
    let chain = Chain::open(file, options, &TestResolver::default())?;
    let mut bytes = vec![0; usize::try_from(chain.len_bytes()).unwrap()];
    chain.read_at(extent::Offset::ZERO, &mut bytes)?;
    Ok(bytes)
}

/// What QEMU reads.
pub(crate) fn contents_by_qemu(kind: Kind, path: &Path) -> Vec<u8> {
    let raw = path.with_extension("by-qemu");
    run("qemu-img", &["convert", "-f", kind.driver, "-O", "raw", text(path), text(&raw)]);
    let bytes = std::fs::read(&raw).unwrap();
    std::fs::remove_file(raw).unwrap();
    bytes
}

/// QEMU finds no fault; leaks count as one where `is_clean`.
pub(crate) fn check_by_qemu(kind: Kind, path: &Path, is_clean: bool) {
    if !kind.is_checked {
        return;
    }
    let output = std::process::Command::new("qemu-img")
        .args(["check", "-q", "-f", kind.driver])
        // A log that is pending is applied only then.
        .args((kind.format == Format::Vhdx && !is_clean).then_some(["-r", "all"]).iter().flatten())
        .arg(path)
        .output()
        .unwrap();
    let code = output.status.code();
    let fine = code == Some(0) || (!is_clean && code == Some(3));
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(fine, "{}: {code:?}: {said}", kind.name);
}

pub(crate) fn allocated_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}
