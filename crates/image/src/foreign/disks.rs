//! Disk images of other programs.

use super::{Foreign, Sample};

/// What `sample` is, if it is one of these.
pub(super) fn recognise(sample: &Sample) -> Option<Foreign> {
    let by_magic = MAGICS.iter().find(|(magic, _)| sample.begins_with(magic)).map(|(_, foreign)| *foreign);
    let by_fields = [qed, qcow_1, android_sparse, fsarchiver, vma, dmg, vhd_set, iso];
    by_magic.or_else(|| by_fields.iter().find_map(|recognise| recognise(sample)))
}

const fn is(name: &'static str, advice: &'static str) -> Foreign {
    Foreign { name, advice }
}

const EWF: &str = "export it as a raw disk first: ewfexport -f raw";
const PARALLELS: &str = "convert it first: qemu-img convert -f parallels -O qcow2";
const AFF: &str = "export it as a raw disk first: affconvert -r";
const DMG: &str = "convert it first: qemu-img convert -f dmg -O qcow2, or hdiutil convert on macOS";

/// Those whose magic number is long enough.
///
/// Sources: QEMU's `block/parallels.c` and `block/bochs.c`, `block/cloop.c`; libewf's format descriptions (EWF 1 and 2); AFFLIB's `afflib.h`;
/// partclone's `src/partclone.h`; ntfsclone's `struct image_hdr`; Partimage's `CMainHeader`; Apple's `encrcdsa` as QEMU and
/// libluksde's sister libmodi describe it.
const MAGICS: &[(&[u8], Foreign)] = &[
    (b"WithoutFreeSpace", is("a Parallels image", PARALLELS)),
    (b"WithouFreSpacExt", is("a Parallels image", PARALLELS)),
    (b"EVF\x09\x0d\x0a\xff\x00", is("an EnCase image (EWF, E01)", EWF)),
    (b"LVF\x09\x0d\x0a\xff\x00", is("an EnCase image (EWF, L01)", EWF)),
    (b"EVF2\x0d\x0a\x81\x00", is("an EnCase image (EWF, Ex01)", EWF)),
    (b"LEF2\x0d\x0a\x81\x00", is("an EnCase image (EWF, Lx01)", EWF)),
    (b"AFF10\x0d\x0a\x00", is("an AFF image", AFF)),
    (
        b"partclone-image",
        is("a partclone image", "restore it to a raw disk first: partclone.restore -C -s IMAGE -O DISK"),
    ),
    (
        b"\x00ntfsclone-image",
        is("an image of ntfsclone", "restore it to a raw disk first: ntfsclone --restore-image"),
    ),
    (b"PaRtImAgE-VoLuMe", is("a Partimage image", "restore it to a raw disk first: partimage restore")),
    (b"Bochs Virtual HD Image", is("a Bochs image", "convert it first: qemu-img convert -f bochs -O qcow2")),
    (b"#!/bin/sh\n#V2.0 Format\n", is("a cloop image", "convert it first: qemu-img convert -f cloop -O raw")),
    (b"encrcdsa", is("an encrypted disk image of macOS (DMG)", DMG)),
    (b"MSWIM\0\0\0", is("a Windows image (WIM)", "apply it first: wimapply")),
    (b"WLPWM\0\0\0", is("a Windows image (WIM)", "apply it first: wimapply")),
];

/// QED (QEMU's `docs/interop/qed_spec.rst`): the cluster's size is a power of two from 4 KiB to 64 MiB.
fn qed(sample: &Sample) -> Option<Foreign> {
    let cluster_bytes = sample.begins_with(b"QED\0").then(|| sample.u32_le(4)).flatten()?;
    let is_sound = cluster_bytes.is_power_of_two() && (4 << 10..=64 << 20).contains(&cluster_bytes);
    is_sound.then_some(is("a QED image", "convert it first: qemu-img convert -f qed -O qcow2"))
}

/// QCOW of version 1 (QEMU's `block/qcow.c`); later ones are read.
fn qcow_1(sample: &Sample) -> Option<Foreign> {
    let foreign = is("a QCOW image of version 1", "convert it first: qemu-img convert -f qcow -O qcow2");
    sample.begins_with(b"QFI\xfb\0\0\0\x01").then_some(foreign)
}

/// Android's sparse images (libsparse, `sparse_format.h`): version 1, a header of 28 bytes, chunks of 12.
fn android_sparse(sample: &Sample) -> Option<Foreign> {
    let is_sound = sample.begins_with(&[0x3a, 0xff, 0x26, 0xed, 1, 0]) && sample.has(8, &[28, 0, 12, 0]);
    is_sound.then_some(is("an Android sparse image", "unpack it first: simg2img IMAGE DISK"))
}

/// FSArchiver: a volume's header, with the version of the format as text in it.
fn fsarchiver(sample: &Sample) -> Option<Foreign> {
    let header = sample.head.get(..512)?;
    let is_sound = header.starts_with(b"FsA0") && header.windows(6).any(|window| window == b"FsArCh");
    is_sound.then_some(is("an FSArchiver archive", "restore it to a disk first: fsarchiver restfs"))
}

/// A backup of Proxmox VE (pve-qemu, `vma_spec.txt`), version 1.
fn vma(sample: &Sample) -> Option<Foreign> {
    let is_sound = sample.begins_with(b"VMA\0\0\0\0\x01");
    is_sound.then_some(is("a Proxmox backup (VMA)", "unpack it first: vma extract"))
}

/// Apple's disk images have a trailer (libmodi's format description, "UDIF resource file"): version 4, 512 bytes long.
fn dmg(sample: &Sample) -> Option<Foreign> {
    let is_sound = sample.tail.starts_with(b"koly\0\0\0\x04\0\0\x02\0") && !sample.has_partition_table();
    let is_sparse = sample.begins_with(b"sprs\0\0\0\x03");
    (is_sound || is_sparse).then_some(is("a disk image of macOS (DMG)", DMG))
}

/// A set of VHDs, whose format is not published.
fn vhd_set(sample: &Sample) -> Option<Foreign> {
    let advice = "name the .avhdx file that it stands for";
    (sample.extension == "vhds").then_some(is("a VHD set of Hyper-V", advice))
}

/// A disc (ECMA-119 8.4): a primary volume descriptor behind an empty first sector. A disc that also boots from USB sticks has a partition
/// table and is a raw disk, too.
fn iso(sample: &Sample) -> Option<Foreign> {
    let is_empty = sample.head.get(..512)?.iter().all(|byte| *byte == 0);
    let is_disc = sample.has(32 << 10, b"\x01CD001\x01");
    // A file system that was made over a disc.
    let has_ext = sample.has(1080, &[0x53, 0xef]);
    let advice = "attach it to the virtual machine as a disc, or copy it with cp";
    (is_empty && is_disc && !has_ext).then_some(is("a disc image (ISO 9660)", advice))
}
