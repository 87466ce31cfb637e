//! How a FAT volume contradicts itself, as values.

/// What the check of a FAT12, FAT16 or FAT32 volume found. A field comes with it where one is to blame
/// ([`block::Error::wrong_field`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptFat {
    /// The boot sector.
    #[error("FAT boot sector")]
    Boot,
    /// Its FATs are not copies of each other.
    #[error("FAT: the copies of the table differ")]
    TablesDiffer,
    /// A chain leads to a cluster that is free, bad, or not on the volume.
    #[error("FAT: cluster {0} of a chain is free, bad, or not on the volume")]
    Chain(u32),
    /// A cluster is in two chains, or twice in one.
    #[error("FAT: cluster {0} is a part of two chains")]
    Shared(u32),
    /// A chain is longer or shorter than its file.
    #[error("FAT: the chain of the file whose entry lies at {0:#x} does not fit its size")]
    Length(u64),
    /// Clusters that are in use and a part of no chain that begins in a directory.
    #[error("FAT: {0} clusters are in use and belong to no file")]
    Orphans(u64),
}
