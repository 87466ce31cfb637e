//! What the check of an NTFS volume rejects, as values.

/// How an NTFS volume, by the check that shares nothing with what reads volumes elsewhere, contradicts itself or its format. A value that names a structure alone comes with the field that is wrong
/// ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptNtfs {
    /// A field of the boot sector.
    #[error("NTFS boot sector")]
    BootSector,
    /// A field of a file record.
    #[error("NTFS file record {record}")]
    Record {
        /// The number of the file record.
        record: u64,
    },
    /// A field of a stream, or of an index.
    #[error("{label}")]
    Stream {
        /// What it is, in words.
        label: String,
    },
    /// A field of a block of an index.
    #[error("{label}, block {block}")]
    IndexBlock {
        /// What it is, in words.
        label: String,
        /// The number of the block.
        block: u64,
    },
    /// An entry of the index of a directory.
    #[error("NTFS index \"$I30\" of file record {record}")]
    IndexOf {
        /// The number of the file record.
        record: u64,
    },
    /// The table of capital letters.
    #[error("NTFS $UpCase")]
    UpCase,
    /// What `$Volume` says of the volume.
    #[error("NTFS $Volume")]
    Volume,
    /// The log.
    #[error("NTFS $LogFile")]
    LogFile,
    /// A field of a page of the log.
    #[error("NTFS $LogFile's restart page at {offset:#x}")]
    RestartPage {
        /// Where it lies.
        offset: u64,
    },
    /// The bitmap of file records.
    #[error("NTFS $MFT's bitmap")]
    MftBitmap,
    /// A record that is not the same in both copies.
    #[error("NTFS $MFTMirr's record {record} is not that of $MFT")]
    MirrorDiffers {
        /// The number of the file record.
        record: u64,
    },
    /// The bitmap of clusters.
    #[error("NTFS $Bitmap")]
    Bitmap,
    /// Names that lead to other files than there are.
    #[error("NTFS directories and names of files do not agree")]
    NamesAndIndexes,
}
