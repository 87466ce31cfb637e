//! The on-disk header of a Linux swap area, in the byte order of the machine that made it.
//!
//! Source: `union swap_header` of `include/linux/swap.h`, Linux 6.18; `mkswap(8)`.

use std::mem::offset_of;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// The fixed part of the header. The list of bad pages follows, up to the signature at the page's end.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawHeader {
    /// Room for a boot loader or disk label; zeros as a rule.
    pub(super) bootbits: [u8; 1024],
    /// 1.
    pub(super) version: [u8; 4],
    /// The last usable page, counted from the header's, which is 0.
    pub(super) last_page: [u8; 4],
    pub(super) nr_badpages: [u8; 4],
    pub(super) uuid: [u8; 16],
    /// Padded with NUL.
    pub(super) volume_name: [u8; 16],
    /// Zeros.
    pub(super) padding: [u8; 4 * 117],
}

const _: () = {
    assert!(size_of::<RawHeader>() == 1536);
    assert!(offset_of!(RawHeader, uuid) == 1036);
};

/// Bytes of the signature at the end of the first page.
pub(super) const SIGNATURE_BYTES: usize = 10;
/// The signature of this header.
pub(super) const SIGNATURE: &[u8; SIGNATURE_BYTES] = b"SWAPSPACE2";
/// The signature of the header before Linux 2.2, which was a bitmap.
pub(super) const SIGNATURE_OLD: &[u8; SIGNATURE_BYTES] = b"SWAP-SPACE";

/// What stands in the signature's place while an image of a hibernated system is in the area: the kernel's
/// (`kernel/power/swap.c`), `uswsusp`'s, and TuxOnIce's, as `libblkid` knows them.
pub(super) const HIBERNATED: &[(&[u8], &str)] = &[
    (b"S1SUSPEND", "S1SUSPEND"),
    (b"S2SUSPEND", "S2SUSPEND"),
    (b"ULSUSPEND", "ULSUSPEND"),
    (b"LINHIB0001", "LINHIB0001"),
    (b"\xed\xc3\x02\xe9\x98\x56\xe5\x0c", "TuxOnIce"),
];
