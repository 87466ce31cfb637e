//! What an exFAT volume that is broken says, as values.

/// How an exFAT volume contradicts itself or its format. A value that names a structure alone comes with the field that is wrong
/// ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// A field of the boot sector.
    #[error("exFAT boot sector")]
    BootSector,
    /// The checksum of the main boot region, or of its backup.
    #[error("exFAT boot region at sector {sector}")]
    BootRegion {
        /// Its first sector: 0 or 12.
        sector: u64,
    },
    /// The backup of the boot sector has other parameters.
    #[error("exFAT boot sector and its backup differ")]
    BackupDiffers,
    /// An entry of the FAT.
    #[error("exFAT FAT entry of cluster {cluster}")]
    Entry {
        /// The number of the cluster.
        cluster: u32,
    },
    /// The root directory does not name exactly one of these, whole and in one piece.
    #[error("exFAT {0}")]
    Table(&'static str),
    /// A cluster that two own.
    #[error("exFAT cluster {cluster} is owned twice: by {} and by another", owner(*entry))]
    OwnedTwice {
        /// The number of the cluster.
        cluster: u32,
        /// Where the stream entry lies on the volume; 0 for the root directory and the tables.
        entry: u64,
    },
    /// A cluster that is free in the bitmap and has an owner.
    #[error("exFAT cluster {cluster} is free in the bitmap, but owned by {}", owner(*entry))]
    OwnedAndFree {
        /// The number of the cluster.
        cluster: u32,
        /// Where the stream entry lies on the volume; 0 for the root directory and the tables.
        entry: u64,
    },
    /// A field of an entry of a directory, or the length of its chain.
    #[error("exFAT {}", directory_entry(*entry))]
    DirectoryEntry {
        /// Where it lies on the volume; 0 for the root directory and the tables.
        entry: u64,
    },
    /// Entries behind the one that ends their directory.
    #[error("exFAT {} has entries behind its end", directory(*entry))]
    BehindEnd {
        /// Where its own stream entry lies on the volume; 0 for the root directory.
        entry: u64,
    },
}

/// Who owns a cluster.
fn owner(entry: u64) -> String {
    match entry {
        0 => "the root directory or a table of the volume".into(),
        entry => format!("the stream entry at {entry:#x}"),
    }
}

/// What is wrong: the root directory has no entry, and the entries of tables are not told apart.
fn directory_entry(entry: u64) -> String {
    match entry {
        0 => "root directory, or a table of the volume".into(),
        entry => format!("directory entry at {entry:#x}"),
    }
}

fn directory(entry: u64) -> String {
    match entry {
        0 => "root directory".into(),
        entry => format!("directory of the stream entry at {entry:#x}"),
    }
}
