//! What an NTFS volume that is broken says, as values.

/// How an NTFS volume contradicts itself or its format. A value that names a structure alone comes with the field that is wrong
/// ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// A field of the boot sector.
    #[error("NTFS boot sector")]
    BootSector,
    /// The number of a file record that cannot be.
    #[error("NTFS file record's number")]
    RecordNumber,
    /// A field of a file record, or of its attributes.
    #[error("NTFS file record {record}")]
    Record {
        /// The number of the file record.
        record: u64,
    },
    /// A field of a stream of a file.
    #[error("NTFS file {record}")]
    File {
        /// The number of the file record.
        record: u64,
    },
    /// The shape of the index of a directory.
    #[error("NTFS directory index")]
    Index,
    /// A field of a block of an index.
    #[error("NTFS index block {block}")]
    IndexBlock {
        /// The number of the block.
        block: u64,
    },
    /// A field of an entry of an index.
    #[error("NTFS index node")]
    IndexNode,
    /// The size of the log.
    #[error("$LogFile")]
    LogFile,
    /// A log that is neither in order nor empty.
    #[error("$LogFile has no restart page, nor is it empty")]
    NoRestartPage,
    /// A field of a page of the log.
    #[error("$LogFile's restart page")]
    RestartPage,
    /// A field of a page of the log with records.
    #[error("$LogFile's page {page}")]
    LogPage {
        /// The number of the page.
        page: u64,
    },
    /// A field of a record of the log.
    #[error("$LogFile's record {lsn:#x}")]
    LogRecord {
        /// Its sequence number.
        lsn: u64,
    },
    /// A record of the log that is not where it must be.
    #[error("$LogFile has no record {lsn:#x}, to which its restart page leads")]
    LogRecordMissing {
        /// Its sequence number.
        lsn: u64,
    },
    /// Records of the log that do not follow each other.
    #[error("$LogFile has a gap at record {lsn:#x}")]
    LogGap {
        /// The sequence number of the record before which, or in which, something is missing.
        lsn: u64,
    },
    /// A record that is not the same in both copies.
    #[error("$MFTMirr's record {record} is not the same as $MFT's")]
    MirrorDiffers {
        /// The number of the file record.
        record: u64,
    },
    /// A copy of the record of `$MFT` that says something else.
    #[error("NTFS $MFTMirr has another record of $MFT")]
    MirrorMoved,
    /// A cluster that is marked as it is to be marked.
    #[error("NTFS $Bitmap contradicts: cluster {cluster} is marked {state} already")]
    ClusterMarked {
        /// The number of the cluster.
        cluster: u64,
        /// The state that it is in.
        state: &'static str,
    },
    /// A record that is marked as it is to be marked.
    #[error("NTFS $MFT's bitmap contradicts: record {record} is marked in use already")]
    RecordMarked {
        /// The number of the file record.
        record: u64,
    },
    /// A cluster that is marked used without an owner.
    #[error("NTFS $Bitmap contradicts: cluster {cluster} is marked used, but belongs to no file")]
    ClusterUnowned {
        /// The number of the cluster.
        cluster: u64,
    },
    /// A cluster of a file that is marked free.
    #[error("NTFS $Bitmap contradicts: cluster {cluster} of file record {record} is marked free")]
    ClusterMarkedFree {
        /// The number of the cluster.
        cluster: u64,
        /// The number of the file record.
        record: u64,
    },
    /// A cluster of two files.
    #[error(
        "NTFS $Bitmap contradicts: cluster {cluster} of file record {record} belongs to another file too"
    )]
    ClusterShared {
        /// The number of the cluster.
        cluster: u64,
        /// The number of the file record.
        record: u64,
    },
    /// A record that is in use and marked free.
    #[error("NTFS file record {record} is in use, but free in $MFT's bitmap")]
    RecordMarkedFree {
        /// The number of the file record.
        record: u64,
    },
    /// A record that is marked in use and was never written.
    #[error("NTFS file record {record} is in use, but was never written")]
    RecordNotWritten {
        /// The number of the file record.
        record: u64,
    },
}
