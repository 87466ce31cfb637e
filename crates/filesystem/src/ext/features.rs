//! The feature bits: which there are, and which of them Leandisk understands in full.
//!
//! Source: `fs/ext4/ext4.h` of Linux 6.18 and `lib/ext2fs/ext2_fs.h` of e2fsprogs 1.47.
//!
//! A bit that is not understood stands for a volume that is copied whole, whichever of the three sets it is
//! in: that a driver may ignore it does not say that the block bitmap still means what it did.

use block::{Error, Result};

/// One of the three sets of feature bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FeatureSet(u32);

impl FeatureSet {
    pub(super) fn new(bits: u32) -> Self {
        Self(bits)
    }

    pub(super) fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    pub(super) fn is_within(self, bits: u32) -> bool {
        self.0 & !bits == 0
    }

    /// Its bits, lowest first.
    fn bits(self) -> impl Iterator<Item = u32> {
        (0..32).map(|shift| 1 << shift).filter(move |bit| self.has(*bit))
    }
}

/// The features of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Features {
    pub(super) compat: FeatureSet,
    pub(super) incompat: FeatureSet,
    pub(super) ro_compat: FeatureSet,
}

/// Bits that any driver may ignore.
pub(super) mod compat {
    pub(in super::super) const DIR_PREALLOC: u32 = 0x1;
    pub(in super::super) const IMAGIC_INODES: u32 = 0x2;
    pub(in super::super) const HAS_JOURNAL: u32 = 0x4;
    pub(in super::super) const EXT_ATTR: u32 = 0x8;
    pub(in super::super) const RESIZE_INODE: u32 = 0x10;
    pub(in super::super) const DIR_INDEX: u32 = 0x20;
    pub(in super::super) const SPARSE_SUPER2: u32 = 0x200;
    pub(in super::super) const FAST_COMMIT: u32 = 0x400;
    pub(in super::super) const STABLE_INODES: u32 = 0x800;
    pub(in super::super) const ORPHAN_FILE: u32 = 0x1000;
}

/// Bits that a driver must know before it reads.
pub(super) mod incompat {
    pub(in super::super) const FILETYPE: u32 = 0x2;
    pub(in super::super) const RECOVER: u32 = 0x4;
    pub(in super::super) const JOURNAL_DEV: u32 = 0x8;
    pub(in super::super) const META_BG: u32 = 0x10;
    pub(in super::super) const EXTENTS: u32 = 0x40;
    pub(in super::super) const BIT64: u32 = 0x80;
    pub(in super::super) const MMP: u32 = 0x100;
    pub(in super::super) const FLEX_BG: u32 = 0x200;
    pub(in super::super) const EA_INODE: u32 = 0x400;
    pub(in super::super) const CSUM_SEED: u32 = 0x2000;
    pub(in super::super) const LARGEDIR: u32 = 0x4000;
    pub(in super::super) const INLINE_DATA: u32 = 0x8000;
    pub(in super::super) const ENCRYPT: u32 = 0x10000;
    pub(in super::super) const CASEFOLD: u32 = 0x20000;
}

/// Bits that a driver must know before it writes.
pub(super) mod ro_compat {
    pub(in super::super) const SPARSE_SUPER: u32 = 0x1;
    pub(in super::super) const LARGE_FILE: u32 = 0x2;
    pub(in super::super) const BTREE_DIR: u32 = 0x4;
    pub(in super::super) const HUGE_FILE: u32 = 0x8;
    pub(in super::super) const GDT_CSUM: u32 = 0x10;
    pub(in super::super) const DIR_NLINK: u32 = 0x20;
    pub(in super::super) const EXTRA_ISIZE: u32 = 0x40;
    pub(in super::super) const QUOTA: u32 = 0x100;
    pub(in super::super) const BIGALLOC: u32 = 0x200;
    pub(in super::super) const METADATA_CSUM: u32 = 0x400;
    pub(in super::super) const READONLY: u32 = 0x1000;
    pub(in super::super) const PROJECT: u32 = 0x2000;
    pub(in super::super) const VERITY: u32 = 0x8000;
    pub(in super::super) const ORPHAN_PRESENT: u32 = 0x10000;
}

type Names = &'static [(u32, &'static str)];

const COMPAT_KNOWN: Names = &[
    (compat::DIR_PREALLOC, "dir_prealloc"),
    (compat::IMAGIC_INODES, "imagic_inodes"),
    (compat::HAS_JOURNAL, "has_journal"),
    (compat::EXT_ATTR, "ext_attr"),
    (compat::RESIZE_INODE, "resize_inode"),
    (compat::DIR_INDEX, "dir_index"),
    (compat::SPARSE_SUPER2, "sparse_super2"),
    (compat::FAST_COMMIT, "fast_commit"),
    (compat::STABLE_INODES, "stable_inodes"),
    (compat::ORPHAN_FILE, "orphan_file"),
];

const INCOMPAT_KNOWN: Names = &[
    (incompat::FILETYPE, "filetype"),
    (incompat::RECOVER, "needs_recovery"),
    (incompat::JOURNAL_DEV, "journal_dev"),
    (incompat::META_BG, "meta_bg"),
    (incompat::EXTENTS, "extent"),
    (incompat::BIT64, "64bit"),
    (incompat::MMP, "mmp"),
    (incompat::FLEX_BG, "flex_bg"),
    (incompat::EA_INODE, "ea_inode"),
    (incompat::CSUM_SEED, "metadata_csum_seed"),
    (incompat::LARGEDIR, "large_dir"),
    (incompat::INLINE_DATA, "inline_data"),
    (incompat::ENCRYPT, "encrypt"),
    (incompat::CASEFOLD, "casefold"),
];

const RO_COMPAT_KNOWN: Names = &[
    (ro_compat::SPARSE_SUPER, "sparse_super"),
    (ro_compat::LARGE_FILE, "large_file"),
    (ro_compat::BTREE_DIR, "btree_dir"),
    (ro_compat::HUGE_FILE, "huge_file"),
    (ro_compat::GDT_CSUM, "uninit_bg"),
    (ro_compat::DIR_NLINK, "dir_nlink"),
    (ro_compat::EXTRA_ISIZE, "extra_isize"),
    (ro_compat::QUOTA, "quota"),
    (ro_compat::BIGALLOC, "bigalloc"),
    (ro_compat::METADATA_CSUM, "metadata_csum"),
    (ro_compat::READONLY, "read-only"),
    (ro_compat::PROJECT, "project"),
    (ro_compat::VERITY, "verity"),
    (ro_compat::ORPHAN_PRESENT, "orphan_present"),
];

/// Bits that have a name, but a meaning that is not followed here: snapshots, shared blocks and groups
/// whose bitmaps were never written.
const REFUSED: [Names; 3] = [
    &[(0x40, "lazy_bg"), (0x80, "exclude_inode"), (0x100, "exclude_bitmap")],
    &[(0x1, "compression"), (0x1000, "dirdata")],
    &[(0x80, "has_snapshot"), (0x800, "replica"), (0x4000, "shared_blocks")],
];

impl Features {
    fn sets(&self) -> [(&'static str, FeatureSet, Names, Names); 3] {
        [
            ("compat", self.compat, COMPAT_KNOWN, REFUSED[0]),
            ("incompat", self.incompat, INCOMPAT_KNOWN, REFUSED[1]),
            ("ro_compat", self.ro_compat, RO_COMPAT_KNOWN, REFUSED[2]),
        ]
    }

    /// Fails, naming the bit, unless all of them are understood.
    pub(super) fn check(&self) -> Result<()> {
        for (set_name, set, known, refused) in self.sets() {
            if let Some(bit) = set.bits().find(|bit| name_of(*bit, known).is_none()) {
                let name = name_of(bit, refused).unwrap_or("unknown");
                return Err(Error::unsupported(format!("ext {set_name} feature {bit:#x} ({name})")));
            }
        }
        Ok(())
    }

    /// The names of all features.
    pub(super) fn names(&self) -> String {
        let mut names = Vec::new();
        for (set_name, set, known, refused) in self.sets() {
            for bit in set.bits() {
                let name = name_of(bit, known).or_else(|| name_of(bit, refused));
                names.push(name.map_or_else(|| format!("{set_name}:{bit:#x}"), str::to_owned));
            }
        }
        names.join(" ")
    }

    /// Which of the three file systems can mount it: the oldest of them.
    pub(super) fn kind(&self) -> &'static str {
        use {incompat as i, ro_compat as r};
        let old = self.ro_compat.is_within(r::SPARSE_SUPER | r::LARGE_FILE | r::BTREE_DIR)
            && self.incompat.is_within(i::FILETYPE | i::RECOVER | i::META_BG);
        match (old, self.has_journal()) {
            (false, _) => "ext4",
            (true, true) => "ext3",
            (true, false) => "ext2",
        }
    }

    pub(super) fn has_journal(&self) -> bool {
        self.compat.has(compat::HAS_JOURNAL)
    }

    pub(super) fn metadata_csum(&self) -> bool {
        self.ro_compat.has(ro_compat::METADATA_CSUM)
    }

    /// Whether group descriptors bear a checksum, and with it flags and counts of what is uninitialised.
    pub(super) fn group_checksums(&self) -> bool {
        self.ro_compat.has(ro_compat::METADATA_CSUM | ro_compat::GDT_CSUM)
    }
}

fn name_of(bit: u32, names: Names) -> Option<&'static str> {
    names.iter().find(|(known, _)| *known == bit).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn features(compat: u32, incompat: u32, ro_compat: u32) -> Features {
        Features {
            compat: FeatureSet::new(compat),
            incompat: FeatureSet::new(incompat),
            ro_compat: FeatureSet::new(ro_compat),
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (set, text) in [
            (features(0x40, 0, 0), "ext compat feature 0x40 (lazy_bg)"),
            (features(0x8000_0000, 0, 0), "ext compat feature 0x80000000 (unknown)"),
            (features(0, 1, 0), "ext incompat feature 0x1 (compression)"),
            (features(0, 0x4_0000, 0), "ext incompat feature 0x40000 (unknown)"),
            (features(0, 0, 0x4000), "ext ro_compat feature 0x4000 (shared_blocks)"),
        ] {
            let error = set.check().unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Unsupported, text));
        }
    }

    #[test]
    fn kinds() {
        assert_eq!(features(0, 2, 3).kind(), "ext2");
        assert_eq!(features(4, 6, 3).kind(), "ext3");
        assert_eq!(features(4, 0x42, 3).kind(), "ext4");
        assert_eq!(features(0, 2, 0x10).kind(), "ext4");
    }
}
