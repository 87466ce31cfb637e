//! The on-disk structs of FAT12, FAT16 and FAT32, all little-endian.
//!
//! Source: Microsoft, "FAT: General Overview of On-Disk Format", version 1.03 (fatgen103), whose field names these are without their
//! prefixes. "Sector" is the volume's own sector.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// `0xaa55` in the last two of the first 512 bytes, whatever the sector size.
pub(super) const BOOT_SIGNATURE: u16 = 0xaa55;

/// The boot sector: "Boot Sector and BPB", pages 9 to 12.
#[derive(Clone, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BootSector {
    /// A jump: `eb ?? 90` or `e9 ?? ??`.
    pub(super) jump: [u8; 3],
    pub(super) oem_name: [u8; 8],
    /// Bytes per sector: 512, 1024, 2048 or 4096.
    pub(super) bytes_per_sec: U16,
    /// Sectors per cluster: a power of two from 1 to 128.
    pub(super) sec_per_clus: u8,
    /// Sectors before the first FAT; not 0.
    pub(super) rsvd_sec_cnt: U16,
    pub(super) num_fats: u8,
    /// Entries of the root directory; 0 on FAT32.
    pub(super) root_ent_cnt: U16,
    /// Sectors in all, if they are fewer than 65536; else 0.
    pub(super) tot_sec_16: U16,
    /// `0xf0`, or `0xf8` to `0xff`.
    pub(super) media: u8,
    /// Sectors of one FAT; 0 on FAT32.
    pub(super) fat_sz_16: U16,
    pub(super) sec_per_trk: U16,
    pub(super) num_heads: U16,
    /// Sectors before the volume, as the BIOS counts them.
    pub(super) hidd_sec: U32,
    /// Sectors in all, if `tot_sec_16` is 0.
    pub(super) tot_sec_32: U32,
    /// What differs between FAT12 and FAT16 on the one hand and FAT32 on the other.
    pub(super) rest: [u8; 474],
    pub(super) signature: U16,
}

/// `rest` on FAT32 (page 11).
#[derive(Clone, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Extended32 {
    /// Sectors of one FAT.
    pub(super) fat_sz_32: U32,
    /// Bits 0 to 3: the active FAT, if bit 7 is set; else all FATs are mirrored.
    pub(super) ext_flags: U16,
    /// 0.
    pub(super) fs_ver: U16,
    /// First cluster of the root directory.
    pub(super) root_clus: U32,
    /// Sector of the FSInfo structure, usually 1.
    pub(super) fs_info: U16,
    /// Sector of the copy of the boot sector, usually 6; 0 if there is none.
    pub(super) bk_boot_sec: U16,
    pub(super) reserved: [u8; 12],
    pub(super) tail: Tail,
}

/// The fields that end the parameters of either kind (pages 11 and 12).
#[derive(Clone, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Tail {
    pub(super) drv_num: u8,
    /// Windows NT and Linux keep the volume's state here: bits of [`state`].
    pub(super) reserved1: u8,
    /// `0x29`: the three fields that follow are there; `0x28`: only the first.
    pub(super) boot_sig: u8,
    /// The serial number.
    pub(super) vol_id: U32,
    /// The label, padded with spaces.
    pub(super) vol_lab: [u8; 11],
    /// `FAT12   ` and so on: text that decides nothing.
    pub(super) fil_sys_type: [u8; 8],
}

/// Bits of `reserved1` (`FAT_STATE_DIRTY` of Linux' `msdos_fs.h`; the second one is Windows NT's).
pub(super) mod state {
    /// It was not unmounted.
    pub(in super::super) const DIRTY: u8 = 0x01;
    /// A surface scan is due.
    pub(in super::super) const ERROR: u8 = 0x02;
}

/// `ext_flags`: the FATs are not mirrored.
pub(super) const NOT_MIRRORED: u16 = 0x80;

/// The FSInfo structure (page 21).
#[derive(Clone, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct FsInfo {
    /// [`FSINFO_LEAD`].
    pub(super) lead_sig: U32,
    pub(super) reserved1: [u8; 480],
    /// [`FSINFO_STRUCT`].
    pub(super) struc_sig: U32,
    /// Free clusters as last counted; all ones if not known.
    pub(super) free_count: U32,
    pub(super) nxt_free: U32,
    pub(super) reserved2: [u8; 12],
    pub(super) trail_sig: U32,
}

/// `lead_sig`.
pub(super) const FSINFO_LEAD: u32 = 0x4161_5252;
/// `struc_sig`.
pub(super) const FSINFO_STRUCT: u32 = 0x6141_7272;

/// Bytes of an entry of a directory.
pub(super) const ENTRY_BYTES: usize = 32;

/// An entry of a directory (page 23).
#[derive(Clone, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct DirEntry {
    /// Eight bytes and three, padded with spaces. The first byte is [`DELETED`] of no entry, 0 of the last.
    pub(super) name: [u8; 11],
    /// Bits of [`attr`].
    pub(super) attr: u8,
    /// Windows NT: bit 3 the name, bit 4 the extension is in lower case.
    pub(super) nt_res: u8,
    pub(super) times: [u8; 7],
    /// The upper half of the first cluster; means nothing on FAT12 and FAT16.
    pub(super) fst_clus_hi: U16,
    pub(super) wrt_time: U16,
    pub(super) wrt_date: U16,
    /// The lower half of the first cluster; 0 of an empty file.
    pub(super) fst_clus_lo: U16,
    /// Bytes; 0 of a directory.
    pub(super) file_size: U32,
}

/// A part of a long name (page 28).
#[derive(Clone, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct LongEntry {
    /// Its number from 1 on; [`LAST_LONG`] marks the last part, which is stored first.
    pub(super) ord: u8,
    pub(super) name1: [u8; 10],
    pub(super) attr: u8,
    pub(super) kind: u8,
    /// Of the short name that follows (page 28, `ChkSum`).
    pub(super) chksum: u8,
    pub(super) name2: [u8; 12],
    pub(super) fst_clus_lo: U16,
    pub(super) name3: [u8; 4],
}

/// First byte of an entry that was deleted.
pub(super) const DELETED: u8 = 0xe5;
/// First byte of a name that begins with [`DELETED`].
pub(super) const KANJI_E5: u8 = 0x05;
/// Bit of `ord`.
pub(super) const LAST_LONG: u8 = 0x40;

/// Bits of `attr`.
pub(super) mod attr {
    pub(in super::super) const VOLUME_ID: u8 = 0x08;
    pub(in super::super) const DIRECTORY: u8 = 0x10;
    /// All of the lower four: a part of a long name.
    pub(in super::super) const LONG_NAME: u8 = 0x0f;
    /// What is looked at to tell a part of a long name.
    pub(in super::super) const LONG_NAME_MASK: u8 = 0x3f;
}

const _: () = {
    assert!(size_of::<BootSector>() == 512);
    assert!(offset_of!(BootSector, bytes_per_sec) == 11);
    assert!(offset_of!(BootSector, fat_sz_16) == 22);
    assert!(offset_of!(BootSector, rest) == 36);
    assert!(offset_of!(Extended32, root_clus) == 44 - 36);
    assert!(offset_of!(Extended32, tail) == 64 - 36);
    assert!(size_of::<Tail>() == 26);
    assert!(size_of::<FsInfo>() == 512);
    assert!(offset_of!(FsInfo, free_count) == 488);
    assert!(size_of::<DirEntry>() == ENTRY_BYTES && size_of::<LongEntry>() == ENTRY_BYTES);
    assert!(offset_of!(DirEntry, fst_clus_hi) == 20 && offset_of!(DirEntry, fst_clus_lo) == 26);
};
