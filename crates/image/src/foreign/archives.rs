//! Archives, and files that are compressed as a whole.

use super::{Foreign, Sample};

/// What `sample` is, if it is one of these. Their magic numbers are short, so that a partition table speaks against all of them.
pub(super) fn recognise(sample: &Sample) -> Option<Foreign> {
    if sample.has_partition_table() {
        return None;
    }
    let by_magic = MAGICS.iter().find(|(magic, _)| sample.begins_with(magic)).map(|(_, foreign)| *foreign);
    let by_fields = [gzip, bzip2, zstd, tar, zip];
    by_magic.or_else(|| by_fields.iter().find_map(|recognise| recognise(sample)))
}

const fn is(name: &'static str, advice: &'static str) -> Foreign {
    Foreign { name, advice }
}

/// Those whose magic number is long enough. Sources: the xz file format 1.2, LZ4 frame format 1.6, lzip's and lzop's manuals, 7-Zip's `7zFormat.txt`, RAR 5.0
/// technical note, Microsoft's Cabinet format, cpio(5).
const MAGICS: &[(&[u8], Foreign)] = &[
    (b"\xfd7zXZ\0", is("a file compressed by xz", "unpack it first: xz -d")),
    (b"\x04\x22\x4d\x18", is("a file compressed by lz4", "unpack it first: lz4 -d")),
    (b"LZIP\x01", is("a file compressed by lzip", "unpack it first: lzip -d")),
    (b"\x89LZO\0\x0d\x0a\x1a\x0a", is("a file compressed by lzop", "unpack it first: lzop -d")),
    (b"7z\xbc\xaf\x27\x1c", is("a 7-Zip archive", "unpack it first: 7z x")),
    (b"Rar!\x1a\x07", is("a RAR archive", "unpack it first: unrar x")),
    (b"MSCF\0\0\0\0", is("a Cabinet archive", "unpack it first: cabextract")),
    (b"070701", is("a cpio archive", "unpack it first: cpio -i")),
    (b"070702", is("a cpio archive", "unpack it first: cpio -i")),
];

/// gzip (RFC 1952, 2.3): deflate, no reserved flags, known hints of compressor and system.
fn gzip(sample: &Sample) -> Option<Foreign> {
    let [id_1, id_2, method, flags, _, _, _, _, extra, system] = sample.bytes(0)?;
    let is_sound = (id_1, id_2, method) == (0x1f, 0x8b, 8)
        && flags & 0xe0 == 0
        && matches!(extra, 0 | 2 | 4)
        && (system <= 13 || system == 255);
    is_sound.then_some(is("a file compressed by gzip", "unpack it first: gunzip"))
}

/// bzip2: the level, then the magic number of a block or of the end.
fn bzip2(sample: &Sample) -> Option<Foreign> {
    let is_level = matches!(sample.byte(3), Some(b'1'..=b'9'));
    let is_block = sample.has(4, b"\x31\x41\x59\x26\x53\x59") || sample.has(4, b"\x17\x72\x45\x38\x50\x90");
    let is_sound = sample.begins_with(b"BZh") && is_level && is_block;
    is_sound.then_some(is("a file compressed by bzip2", "unpack it first: bunzip2"))
}

/// Zstandard (RFC 8878, 3.1.1): the reserved bit is zero. Or a frame to be skipped, as pzstd begins.
fn zstd(sample: &Sample) -> Option<Foreign> {
    let is_frame = sample.begins_with(b"\x28\xb5\x2f\xfd") && sample.byte(4)? & 0x08 == 0;
    let is_skipped =
        matches!(sample.bytes(0)?, [0x50..=0x5f, 0x2a, 0x4d, 0x18]) && sample.u32_le(4)? <= 1 << 20;
    (is_frame || is_skipped).then_some(is("a file compressed by zstd", "unpack it first: zstd -d"))
}

/// tar (POSIX.1, pax, "ustar Interchange Format"; before that the same without its magic number): the checksum of the first header. An OVA is one.
fn tar(sample: &Sample) -> Option<Foreign> {
    const CHECKSUM: std::ops::Range<usize> = 148..156;
    let header = sample.head.get(..512)?;
    let expected = octal(&header[CHECKSUM])?;
    let bytes = header.iter().enumerate();
    let bytes = bytes.map(|(at, byte)| if CHECKSUM.contains(&at) { b' ' } else { *byte });
    let found: u32 = bytes.map(u32::from).sum();
    if header[0] == 0 || found != expected {
        return None;
    }
    let name = header.split(|byte| *byte == 0).next().unwrap_or_default();
    Some(if sample.extension == "ova" || name.ends_with(b".ovf") {
        is("an appliance (OVA), which is a tar archive", "unpack it first: tar xf, then take the disk inside")
    } else {
        is("a tar archive", "unpack it first: tar xf")
    })
}

/// A number of tar's: octal digits, with spaces or zero bytes around them.
fn octal(field: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    u32::from_str_radix(text, 8).ok()
}

/// ZIP (PKWARE's APPNOTE, 4.3.7): a local header with a version that exists. AFF4 images are such archives.
fn zip(sample: &Sample) -> Option<Foreign> {
    let is_sound = sample.begins_with(b"PK\x03\x04") && matches!(sample.byte(4), Some(10..=63));
    let is_aff4 = sample.extension == "aff4";
    let foreign = if is_aff4 {
        is("an AFF4 image", "export it as a raw disk first")
    } else {
        is("a ZIP archive", "unpack it first: unzip")
    };
    is_sound.then_some(foreign)
}
