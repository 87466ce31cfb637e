//! From the raw header to a validated one.
//!
//! Everything that the header promises about where tables lie is checked here; what the tables hold is checked
//! when it is read, in `map.rs`.

use block::{Error, FieldValue, ReadAt, Result};
use extent::{Host, HostOffset};
use zerocopy::FromBytes;

use super::compress::Compression;
use super::layout::{
    self, BACKING_NAME_BYTES_MAX, CLUSTER_BITS, EXTENDED_CLUSTER_BITS_MIN, ExtensionHead, FeatureName,
    HEADER_V2_BYTES, HEADER_V3_BYTES_MIN, L1_BYTES_MAX, MAGIC, OverlayHead, REFCOUNT_ORDER_16_BITS,
    REFCOUNT_ORDER_MAX, REFCOUNT_TABLE_BYTES_MAX, SNAPSHOT_BYTES_MIN, SNAPSHOT_COUNT_MAX,
    SNAPSHOT_DISK_BYTES_MAX, autoclear, extension, incompatible,
};
use crate::qcow2::corrupt::Corrupt;
use crate::{Format, SnapshotReference};

/// A header whose fields agree with each other and with the file's length.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) cluster_bits: u32,
    pub(super) virtual_bytes: u64,
    pub(super) encryption: Option<Encryption>,
    pub(super) l1_at: HostOffset,
    /// Entries of the L1 table: as many as the disk needs, or more.
    pub(super) l1_entry_count: u64,
    /// Where it lies is not checked here: refcounts are not needed to read.
    pub(super) refcount_table_at: HostOffset,
    pub(super) refcount_table_clusters: u32,
    pub(super) autoclear_features: u64,
    pub(super) extended_l2: bool,
    pub(super) compression: Compression,
    pub(super) is_dirty: bool,
    pub(super) is_corrupt: bool,
    pub(super) has_lazy_refcounts: bool,
    pub(super) refcount_bits: u32,
    pub(super) backing: Option<Backing>,
    /// What the image stands on if that is no file.
    pub(super) snapshot: Option<SnapshotReference>,
    pub(super) data_file: Option<DataFile>,
    pub(super) snapshot_count: u32,
    /// Where the snapshot table lies, if there are snapshots.
    pub(super) snapshots_at: HostOffset,
    pub(super) bitmaps: Option<Bitmaps>,
}

impl Header {
    /// Bytes of the refcount table.
    pub(super) fn refcount_table_bytes(&self) -> u64 {
        u64::from(self.refcount_table_clusters) << self.cluster_bits
    }

    /// Whether a feature is marked that this program would have to keep up to date, and does not know.
    pub(super) fn has_unknown_autoclear(&self) -> bool {
        self.autoclear_features & !autoclear::KNOWN != 0
    }
}

/// How the guest's data is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Encryption {
    Aes,
    Luks,
}

/// The layer below, by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Backing {
    pub(super) name: String,
    pub(super) format: Option<Format>,
}

/// The names of the other files that an image needs: text, as far as they are.
pub(super) struct Names {
    pub(super) backing: Option<String>,
    pub(super) data: Option<String>,
}

/// The file that holds the guest's data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DataFile {
    pub(super) name: String,
    /// Every cluster lies in it where it lies on the virtual disk.
    pub(super) is_raw: bool,
}

/// What is said of dirty bitmaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bitmaps {
    /// One at least.
    pub(super) count: u32,
    pub(super) is_consistent: bool,
    /// Where the directory lies is not checked here: bitmaps are not needed to read.
    pub(super) directory_at: HostOffset,
    pub(super) directory_bytes: u64,
}

impl Header {
    /// Bytes of a cluster.
    pub(super) fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes of an L2 entry.
    pub(super) fn l2_entry_bytes(&self) -> u64 {
        if self.extended_l2 { 16 } else { 8 }
    }

    /// Bytes of the virtual disk that one L2 table maps.
    pub(super) fn l2_covers_bytes(&self) -> u64 {
        l2_covers_bytes(self.cluster_bits, self.extended_l2)
    }
}

fn l2_covers_bytes(cluster_bits: u32, extended_l2: bool) -> u64 {
    let entry_bits = if extended_l2 { 4 } else { 3 };
    1 << (2 * cluster_bits - entry_bits)
}

/// Whether `file` begins with the signature.
pub(super) fn has_magic(file: &(impl ReadAt<Host> + ?Sized)) -> Result<bool> {
    let mut magic = [0; MAGIC.len()];
    if file.len_bytes() < magic.len() as u64 {
        return Ok(false);
    }
    file.read_at(HostOffset::ZERO, &mut magic)?;
    Ok(magic == MAGIC)
}

/// Whether `file`, which has the signature, says that it is of version 1.
pub(super) fn is_version_1(file: &(impl ReadAt<Host> + ?Sized)) -> Result<bool> {
    let mut version = [0; 4];
    let at = HostOffset::new(MAGIC.len() as u64);
    if file.len_bytes() < at.get() + version.len() as u64 {
        return Ok(false);
    }
    file.read_at(at, &mut version)?;
    Ok(u32::from_be_bytes(version) == 1)
}

/// The layer below as the header names it, whatever else the image holds and however new it is: a program that knows
/// its features can open it.
pub(super) fn read_names(file: &(impl ReadAt<Host> + ?Sized)) -> Result<Names> {
    let head = read_start(file, size_of::<layout::Header>() as u64)?;
    let raw = raw_header(&head)?;
    let cluster = read_start(file, 1 << raw.cluster_bits.get())?;
    let shown = |bytes: &[u8]| String::from_utf8_lossy(up_to_zero(bytes)).into_owned();
    let has_data_file = raw.incompatible_features.get() & incompatible::EXTERNAL_DATA != 0;
    let data = Extensions::parse(&raw, &cluster).ok().and_then(|extensions| extensions.data_file_name);
    Ok(Names {
        backing: backing_name(&raw, &cluster)?.map(shown).filter(|name| !name.is_empty()),
        data: data.filter(|_| has_data_file).map(|name| shown(&name)),
    })
}

/// Reads and validates the header.
pub(super) fn read_header(file: &(impl ReadAt<Host> + ?Sized)) -> Result<Header> {
    let head = read_start(file, size_of::<layout::Header>() as u64)?;
    let raw = raw_header(&head)?;
    let cluster_bits = raw.cluster_bits.get();
    let cluster = read_start(file, 1 << cluster_bits)?;
    let extensions = Extensions::parse(&raw, &cluster);
    check_features(&raw, extensions.as_ref().ok())?;
    let extensions = extensions?;
    check_refcounts(&raw)?;
    let extended_l2 = raw.incompatible_features.get() & incompatible::EXTENDED_L2 != 0;
    if extended_l2 && cluster_bits < EXTENDED_CLUSTER_BITS_MIN {
        let expected = format!("{EXTENDED_CLUSTER_BITS_MIN} or more with extended L2 entries");
        return Err(corrupt().field("cluster_bits", cluster_bits, expected));
    }
    Ok(Header {
        version: raw.version.get(),
        cluster_bits,
        virtual_bytes: raw.size.get(),
        encryption: encryption(&raw)?,
        refcount_table_at: HostOffset::new(raw.refcount_table_offset.get()),
        refcount_table_clusters: raw.refcount_table_clusters.get(),
        autoclear_features: raw.autoclear_features.get(),
        l1_entry_count: raw.l1_size.get().into(),
        l1_at: check_l1(&raw, extended_l2, file.len_bytes())?,
        extended_l2,
        compression: compression(&raw)?,
        is_dirty: raw.incompatible_features.get() & incompatible::DIRTY != 0,
        is_corrupt: raw.incompatible_features.get() & incompatible::CORRUPT != 0,
        has_lazy_refcounts: raw.compatible_features.get() & layout::COMPATIBLE_LAZY_REFCOUNTS != 0,
        refcount_bits: 1 << raw.refcount_order.get(),
        backing: backing(&raw, &cluster, extensions.backing_format)?,
        snapshot: extensions.snapshot.map(|told| snapshot(&told)).transpose()?,
        data_file: data_file(&raw, extensions.data_file_name)?,
        snapshot_count: check_snapshots(&raw, file.len_bytes())?,
        snapshots_at: HostOffset::new(raw.snapshots_offset.get()),
        bitmaps: extensions.bitmaps.map(|told| Bitmaps {
            count: told.nb_bitmaps.get(),
            directory_at: HostOffset::new(told.bitmap_directory_offset.get()),
            directory_bytes: told.bitmap_directory_size.get(),
            is_consistent: raw.autoclear_features.get() & autoclear::BITMAPS != 0,
        }),
    })
}

fn corrupt() -> Error {
    Error::corrupt(Corrupt::Header).at(HostOffset::ZERO)
}

/// The first `len_bytes` of the file, fewer where it is shorter. A cluster at most.
fn read_start(file: &(impl ReadAt<Host> + ?Sized), len_bytes: u64) -> Result<Vec<u8>> {
    block::read_vec(file, HostOffset::ZERO, len_bytes.min(file.len_bytes()), "QCOW2 header")
}

/// The header with the fields that its version and length do not have as zeros, or as version 2 implies them.
fn raw_header(head: &[u8]) -> Result<layout::Header> {
    let mut bytes = [0; size_of::<layout::Header>()];
    let copy = |bytes: &mut [u8], len: usize| match head.get(..len) {
        Some(head) => {
            bytes[..len].copy_from_slice(head);
            Ok(())
        }
        None => Err(corrupt().field("file's length", head.len(), format!("{len} or more"))),
    };
    let view = |bytes: &[u8]| layout::Header::read_from_bytes(bytes).expect("the struct's own size");
    copy(&mut bytes, HEADER_V2_BYTES)?;
    let raw = view(&bytes);
    if raw.magic != MAGIC {
        return Err(corrupt().field("magic", format!("{:02x?}", raw.magic), format!("{MAGIC:02x?}")));
    }
    check_version(&raw)?;
    if raw.version.get() == 2 {
        let mut raw = raw;
        raw.refcount_order.set(REFCOUNT_ORDER_16_BITS);
        raw.header_length.set(u32::try_from(HEADER_V2_BYTES).expect("small"));
        return Ok(raw);
    }
    copy(&mut bytes, HEADER_V3_BYTES_MIN)?;
    let header_length = view(&bytes).header_length.get();
    let len = usize::try_from(header_length).unwrap_or(usize::MAX);
    if len < HEADER_V3_BYTES_MIN || u64::from(header_length) > 1 << raw.cluster_bits.get() {
        let expected = format!("{HEADER_V3_BYTES_MIN} to a cluster");
        return Err(corrupt().field("header_length", header_length, expected));
    }
    let known = len.min(bytes.len());
    copy(&mut bytes, known)?;
    Ok(view(&bytes))
}

fn check_version(raw: &layout::Header) -> Result<()> {
    match raw.version.get() {
        2 | 3 => {}
        version @ (1 | 4..=9) => return Err(Error::unsupported(format!("QCOW version {version}"))),
        version => return Err(corrupt().field("version", version, "2 or 3")),
    }
    let bits = raw.cluster_bits.get();
    if !CLUSTER_BITS.contains(&bits) {
        let expected = format!("{} to {}", CLUSTER_BITS.start(), CLUSTER_BITS.end());
        return Err(corrupt().field("cluster_bits", bits, expected));
    }
    Ok(())
}

/// Refuses incompatible bits that are not known, by the names that the image gives them.
fn check_features(raw: &layout::Header, extensions: Option<&Extensions>) -> Result<()> {
    let unknown = raw.incompatible_features.get() & !incompatible::KNOWN;
    if unknown == 0 {
        return Ok(());
    }
    let names: Vec<_> = (0..64u8)
        .filter(|bit| unknown >> bit & 1 == 1)
        .map(|bit| {
            let name = extensions.and_then(|extensions| extensions.incompatible_name(bit));
            name.map_or_else(|| format!("bit {bit}"), |name| format!("bit {bit} ('{name}')"))
        })
        .collect();
    Err(Error::unsupported(format!("QCOW2 incompatible feature {}", names.join(", "))))
}

fn check_refcounts(raw: &layout::Header) -> Result<()> {
    let order = raw.refcount_order.get();
    if order > REFCOUNT_ORDER_MAX {
        return Err(corrupt().field("refcount_order", order, format!("0 to {REFCOUNT_ORDER_MAX}")));
    }
    check_aligned(raw, "refcount_table_offset", raw.refcount_table_offset.get())?;
    let clusters = raw.refcount_table_clusters.get();
    let clusters_max = REFCOUNT_TABLE_BYTES_MAX >> raw.cluster_bits.get();
    if clusters == 0 || u64::from(clusters) > clusters_max {
        return Err(corrupt().field("refcount_table_clusters", clusters, format!("1 to {clusters_max}")));
    }
    Ok(())
}

fn check_aligned(raw: &layout::Header, name: &str, offset: u64) -> Result<()> {
    if offset & ((1 << raw.cluster_bits.get()) - 1) != 0 {
        return Err(corrupt().field(name, FieldValue::hex(offset), "whole clusters"));
    }
    Ok(())
}

/// Where the L1 table lies, once it is long enough for the disk and lies within the file.
fn check_l1(raw: &layout::Header, extended_l2: bool, file_bytes: u64) -> Result<HostOffset> {
    let entries = u64::from(raw.l1_size.get());
    let needed = raw.size.get().div_ceil(l2_covers_bytes(raw.cluster_bits.get(), extended_l2));
    if entries > L1_BYTES_MAX / 8 || entries < needed {
        let expected = format!("{needed} to {}", L1_BYTES_MAX / 8);
        return Err(corrupt().field("l1_size", entries, expected));
    }
    let at = raw.l1_table_offset.get();
    check_aligned(raw, "l1_table_offset", at)?;
    if needed > 0 && (at == 0 || at.checked_add(needed * 8).is_none_or(|end| end > file_bytes)) {
        let expected = format!("a table of {} bytes within the file's {file_bytes:#x}", needed * 8);
        return Err(corrupt().field("l1_table_offset", FieldValue::hex(at), expected));
    }
    Ok(HostOffset::new(at))
}

fn check_snapshots(raw: &layout::Header, file_bytes: u64) -> Result<u32> {
    let count = raw.nb_snapshots.get();
    if count == 0 {
        return Ok(0);
    }
    if count > SNAPSHOT_COUNT_MAX {
        return Err(corrupt().field("nb_snapshots", count, format!("{SNAPSHOT_COUNT_MAX} or fewer")));
    }
    let at = raw.snapshots_offset.get();
    check_aligned(raw, "snapshots_offset", at)?;
    let least_bytes = u64::from(count) * SNAPSHOT_BYTES_MIN;
    if at == 0 || at.checked_add(least_bytes).is_none_or(|end| end > file_bytes) {
        let expected = format!("a table of {least_bytes} bytes or more within the file's {file_bytes:#x}");
        return Err(corrupt().field("snapshots_offset", FieldValue::hex(at), expected));
    }
    Ok(count)
}

fn encryption(raw: &layout::Header) -> Result<Option<Encryption>> {
    match raw.crypt_method.get() {
        0 => Ok(None),
        1 => Ok(Some(Encryption::Aes)),
        2 => Ok(Some(Encryption::Luks)),
        other => Err(Error::unsupported(format!("QCOW2 encryption method {other}"))),
    }
}

/// The compression type, which must agree with its incompatible bit.
fn compression(raw: &layout::Header) -> Result<Compression> {
    let announced = raw.incompatible_features.get() & incompatible::COMPRESSION_TYPE != 0;
    match (raw.compression_type, announced) {
        (0, false) => Ok(Compression::Zlib),
        (1, true) => Ok(Compression::Zstd),
        (other @ (0 | 1), _) => Err(corrupt().field(
            "compression_type",
            other,
            if announced { "another than 0, as bit 3 says" } else { "0, as bit 3 says" },
        )),
        (other, _) => Err(Error::unsupported(format!("QCOW2 compression type {other}"))),
    }
}

fn backing(raw: &layout::Header, cluster: &[u8], format: Option<Vec<u8>>) -> Result<Option<Backing>> {
    let Some(bytes) = backing_name(raw, cluster)? else { return Ok(None) };
    let name = text(bytes, "backing file's name")?;
    if name.is_empty() {
        return Ok(None);
    }
    let format = format.map(|format| backing_format(&text(&format, "backing file's format")?)).transpose()?;
    Ok(Some(Backing { name, format: format.flatten() }))
}

/// The disk of a snapshot as the extension tells it.
fn snapshot(told: &[u8]) -> Result<SnapshotReference> {
    let corrupt = |field, value: usize, expected: String| {
        Error::corrupt(Corrupt::HeaderExtension).field(field, value, expected)
    };
    let head_bytes = size_of::<OverlayHead>();
    let (head, name) = OverlayHead::read_from_prefix(told)
        .map_err(|_| corrupt("length", told.len(), format!("{head_bytes} or more")))?;
    if name.is_empty() || name.len() > SNAPSHOT_DISK_BYTES_MAX {
        let expected = format!("1 to {SNAPSHOT_DISK_BYTES_MAX}");
        return Err(corrupt("length of the disk's name", name.len(), expected));
    }
    let disk = String::from_utf8(name.to_vec())
        .map_err(|_| Error::unsupported("QCOW2 name of a snapshot's disk that is not UTF-8"))?;
    let OverlayHead { repository, snapshot, tree } = head;
    Ok(SnapshotReference { repository, snapshot, tree, disk })
}

/// The bytes of the backing file's name.
fn backing_name<'a>(raw: &layout::Header, cluster: &'a [u8]) -> Result<Option<&'a [u8]>> {
    let (offset, len) = (raw.backing_file_offset.get(), raw.backing_file_size.get());
    if offset == 0 || len == 0 {
        return Ok(None);
    }
    if len > BACKING_NAME_BYTES_MAX {
        let expected = format!("{BACKING_NAME_BYTES_MAX} or less");
        return Err(corrupt().field("backing_file_size", len, expected));
    }
    let bytes = usize::try_from(offset)
        .ok()
        .and_then(|from| Some(from..from.checked_add(usize::try_from(len).ok()?)?))
        .and_then(|range| cluster.get(range))
        .ok_or_else(|| {
            let expected = format!("a name of {len} bytes within the first cluster");
            corrupt().field("backing_file_offset", FieldValue::hex(offset), expected)
        })?;
    Ok(Some(bytes))
}

/// The format by QEMU's name of it. One that is not known must not be probed: an encrypted disk would pass for
/// a raw one.
fn backing_format(name: &str) -> Result<Option<Format>> {
    match name {
        "" => Ok(None),
        "vpc" => Ok(Some(Format::Vhd)),
        "file" | "host_device" => Ok(Some(Format::Raw)),
        other => other
            .parse()
            .map(Some)
            .map_err(|_| Error::unsupported(format!("QCOW2 backing file of the format '{other}'"))),
    }
}

fn data_file(raw: &layout::Header, name: Option<Vec<u8>>) -> Result<Option<DataFile>> {
    if raw.incompatible_features.get() & incompatible::EXTERNAL_DATA == 0 {
        return Ok(None);
    }
    let name = name.map(|name| text(&name, "data file's name")).transpose()?.unwrap_or_default();
    if name.is_empty() {
        return Err(Error::unsupported("QCOW2 image that does not name its external data file"));
    }
    let is_raw = raw.autoclear_features.get() & autoclear::RAW_EXTERNAL_DATA != 0;
    Ok(Some(DataFile { name, is_raw }))
}

fn up_to_zero(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

/// Text up to the first zero byte, which ends it for QEMU.
fn text(bytes: &[u8], what: &str) -> Result<String> {
    String::from_utf8(up_to_zero(bytes).to_vec())
        .map_err(|_| Error::unsupported(format!("QCOW2 {what} that is not UTF-8")))
}

/// What the header extensions say.
#[derive(Default)]
struct Extensions {
    backing_format: Option<Vec<u8>>,
    data_file_name: Option<Vec<u8>>,
    feature_names: Vec<FeatureName>,
    bitmaps: Option<layout::BitmapsExtension>,
    snapshot: Option<Vec<u8>>,
}

impl Extensions {
    /// Reads the extensions between the header and the backing file's name, all within the first cluster.
    fn parse(raw: &layout::Header, cluster: &[u8]) -> Result<Self> {
        let mut found = Self::default();
        let mut at = usize::try_from(raw.header_length.get()).expect("bounded by a cluster");
        let end = match raw.backing_file_offset.get() {
            0 => cluster.len(),
            offset => usize::try_from(offset).unwrap_or(usize::MAX).min(cluster.len()),
        };
        while at < end {
            let Ok((head, rest)) = ExtensionHead::read_from_prefix(&cluster[at..end]) else { break };
            if head.kind.get() == extension::END {
                break;
            }
            let len = usize::try_from(head.len_bytes.get()).unwrap_or(usize::MAX);
            let Some(data) = rest.get(..len) else {
                return Err(Error::corrupt(Corrupt::HeaderExtension).at(HostOffset::new(at as u64)).field(
                    "length",
                    len,
                    format!("{} or less", rest.len()),
                ));
            };
            found.take(head.kind.get(), data);
            at += size_of::<ExtensionHead>() + len.next_multiple_of(8);
        }
        Ok(found)
    }

    fn take(&mut self, kind: u32, data: &[u8]) {
        match kind {
            extension::BACKING_FORMAT => self.backing_format = Some(data.to_vec()),
            extension::OVERLAY => self.snapshot = Some(data.to_vec()),
            extension::DATA_FILE_NAME => self.data_file_name = Some(data.to_vec()),
            extension::FEATURE_NAMES => {
                let entries = data.chunks_exact(size_of::<FeatureName>());
                self.feature_names =
                    entries.filter_map(|entry| FeatureName::read_from_bytes(entry).ok()).collect();
            }
            extension::BITMAPS => {
                // What an older program wrote shorter has no directory that can be found.
                let mut whole = [0; size_of::<layout::BitmapsExtension>()];
                let len = data.len().min(whole.len());
                whole[..len].copy_from_slice(&data[..len]);
                let told = layout::BitmapsExtension::read_from_bytes(&whole).ok();
                // None are as good as no extension.
                self.bitmaps = told.filter(|told| len >= 4 && told.nb_bitmaps.get() > 0);
            }
            _ => {}
        }
    }

    fn incompatible_name(&self, bit: u8) -> Option<String> {
        let entry = self.feature_names.iter().find(|entry| entry.kind == 0 && entry.bit == bit)?;
        let end = entry.name.iter().position(|byte| *byte == 0).unwrap_or(entry.name.len());
        Some(String::from_utf8_lossy(&entry.name[..end]).into_owned())
    }
}
