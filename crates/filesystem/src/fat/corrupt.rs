//! What a FAT volume that is broken says, as values.

/// How a FAT volume contradicts itself or its format. A value that names a structure alone comes with the field that is wrong
/// ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// A field of the boot sector.
    #[error("FAT boot sector")]
    BootSector,
    /// The copy of the boot sector has other parameters.
    #[error("FAT boot sector and its copy differ")]
    BackupDiffers,
    /// The FATs are not the same.
    #[error(
        "the FATs differ: entries near cluster {cluster} are not the same in FAT {fat} and in the first one"
    )]
    FatsDiffer {
        /// The number of the FAT that differs, from 1 on.
        fat: u8,
        /// About where.
        cluster: u32,
    },
    /// An entry of the FAT.
    #[error("FAT entry of cluster {cluster}")]
    Entry {
        /// The number of the cluster.
        cluster: u32,
    },
    /// A cluster that two own.
    #[error("FAT cluster {cluster} is owned twice: by {} and by another", owner(*entry))]
    OwnedTwice {
        /// The number of the cluster.
        cluster: u32,
        /// Where the directory entry lies on the volume; 0 for the root directory.
        entry: u64,
    },
    /// A field of an entry of a directory, or the length of its chain.
    #[error("FAT {}", directory_entry(*entry))]
    DirectoryEntry {
        /// Where it lies on the volume; 0 for the root directory.
        entry: u64,
    },
    /// Entries behind the one that ends their directory, which some systems read and others do not.
    #[error("FAT {} has entries behind its end", directory(*entry))]
    BehindEnd {
        /// Where its own entry lies on the volume; 0 for the root directory.
        entry: u64,
    },
}

/// Who owns a cluster.
fn owner(entry: u64) -> String {
    match entry {
        0 => "the root directory".into(),
        entry => format!("the entry at {entry:#x}"),
    }
}

/// What is wrong: the root directory has no entry.
fn directory_entry(entry: u64) -> String {
    match entry {
        0 => "root directory".into(),
        entry => format!("directory entry at {entry:#x}"),
    }
}

fn directory(entry: u64) -> String {
    match entry {
        0 => "root directory".into(),
        entry => format!("directory of the entry at {entry:#x}"),
    }
}
