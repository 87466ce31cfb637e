//! How a physical volume contradicts its format, as values.

/// What is wrong with the metadata of LVM2. A field comes with it where one is to blame ([`block::Error::wrong_field`]).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    /// There is no label, or not a whole one.
    #[error("LVM2 label")]
    Label,
    /// The header of a metadata area.
    #[error("LVM2 metadata area")]
    Area,
    /// No metadata area has a text whose checksum is right.
    #[error("LVM2 metadata: no copy is whole")]
    NoText,
    /// Two copies of the same age differ.
    #[error("LVM2 metadata: two copies with the sequence number {0} differ")]
    CopiesDiffer(u64),
    /// The text is not what LVM2 writes.
    #[error("LVM2 metadata, line {line}: {what}")]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// What was expected.
        what: &'static str,
    },
    /// A value is missing, or of the wrong kind.
    #[error("LVM2 metadata: {section} has no {name}")]
    Missing {
        /// Where.
        section: String,
        /// Which.
        name: String,
    },
    /// A number that cannot be.
    #[error("LVM2 metadata: {name} of {section} is {value}")]
    OutOfRange {
        /// Where.
        section: String,
        /// Which.
        name: String,
        /// What it is.
        value: i64,
    },
    /// Segments of a logical volume do not follow each other.
    #[error("LVM2 metadata: the segments of {0} leave a gap or overlap")]
    Segments(String),
    /// Two segments lie in the same place.
    #[error("LVM2 metadata: {0} lies where another logical volume lies")]
    Overlap(String),
}
