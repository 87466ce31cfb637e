//! Ways to break what changes a volume.

/// One way in which a change of a volume's metadata is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// NTFS: `$ATTRIBUTE_LIST` says of pieces of a run list that they begin where they did before it was spread over the records anew.
    PiecesListedWhereTheyWere,
    /// NTFS: such pieces say that they end where they did.
    PiecesEndWhereTheyDid,
    /// NTFS: a record that a file gets is not marked in `$MFT`'s bitmap.
    AddedRecordNotMarked,
}
