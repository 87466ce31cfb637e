//! How an exFAT volume contradicts itself, as values.

/// What the check of an exFAT volume found. A field comes with it where one is to blame ([`block::Error::wrong_field`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptExFat {
    /// The boot sector, or a boot region's checksum.
    #[error("exFAT boot region")]
    Boot,
    /// The bitmap or the up-case table is not there once.
    #[error("exFAT: the root directory has not one bitmap and one up-case table")]
    Tables,
    /// A chain leads to a cluster that is not on the volume, or to none of its own.
    #[error("exFAT: cluster {0} of a chain is not on the volume")]
    Chain(u32),
    /// A cluster has two owners.
    #[error("exFAT: cluster {0} has two owners")]
    Shared(u32),
    /// A cluster has an owner and is free, or the other way round.
    #[error("exFAT: the bitmap and the owners of cluster {0} contradict each other")]
    Bitmap(u64),
    /// An entry set: its checksum, its parts, or its length.
    #[error("exFAT: the entry set at {0:#x} does not hold together")]
    Set(u64),
}
