//! What a record of the log can say.

use super::layout::{OpenAttribute, OpenAttribute32};

/// The operations of NTFS's log records. `HotFix` is not among them: nobody has seen one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Noop,
    Compensation,
    InitializeFileRecord,
    DeallocateFileRecord,
    WriteEndOfFileRecord,
    CreateAttribute,
    DeleteAttribute,
    UpdateResidentValue,
    UpdateNonresidentValue,
    UpdateMappingPairs,
    DeleteDirtyClusters,
    SetNewAttributeSizes,
    AddIndexEntryRoot,
    DeleteIndexEntryRoot,
    AddIndexEntryAllocation,
    DeleteIndexEntryAllocation,
    WriteEndOfIndexBuffer,
    SetIndexEntryVcnRoot,
    SetIndexEntryVcnAllocation,
    UpdateFileNameRoot,
    UpdateFileNameAllocation,
    SetBits,
    ClearBits,
    EndTopLevelAction,
    PrepareTransaction,
    CommitTransaction,
    ForgetTransaction,
    OpenNonresidentAttribute,
    OpenAttributeTableDump,
    AttributeNamesDump,
    DirtyPageTableDump,
    TransactionTableDump,
    UpdateRecordDataRoot,
    UpdateRecordDataAllocation,
    UpdateRelativeDataRoot,
    UpdateRelativeDataAllocation,
    ZeroEndOfFileRecord,
}

use Operation::*;

/// By number.
const OPERATIONS: [Option<Operation>; 0x26] = [
    Some(Noop),
    Some(Compensation),
    Some(InitializeFileRecord),
    Some(DeallocateFileRecord),
    Some(WriteEndOfFileRecord),
    Some(CreateAttribute),
    Some(DeleteAttribute),
    Some(UpdateResidentValue),
    Some(UpdateNonresidentValue),
    Some(UpdateMappingPairs),
    Some(DeleteDirtyClusters),
    Some(SetNewAttributeSizes),
    Some(AddIndexEntryRoot),
    Some(DeleteIndexEntryRoot),
    Some(AddIndexEntryAllocation),
    Some(DeleteIndexEntryAllocation),
    Some(WriteEndOfIndexBuffer),
    Some(SetIndexEntryVcnRoot),
    Some(SetIndexEntryVcnAllocation),
    Some(UpdateFileNameRoot),
    Some(UpdateFileNameAllocation),
    Some(SetBits),
    Some(ClearBits),
    None,
    Some(EndTopLevelAction),
    Some(PrepareTransaction),
    Some(CommitTransaction),
    Some(ForgetTransaction),
    Some(OpenNonresidentAttribute),
    Some(OpenAttributeTableDump),
    Some(AttributeNamesDump),
    Some(DirtyPageTableDump),
    Some(TransactionTableDump),
    Some(UpdateRecordDataRoot),
    Some(UpdateRecordDataAllocation),
    Some(UpdateRelativeDataRoot),
    Some(UpdateRelativeDataAllocation),
    Some(ZeroEndOfFileRecord),
];

impl Operation {
    /// The operation of a number; `None` if it is not known.
    pub(super) fn of(raw: u16) -> Option<Self> {
        OPERATIONS.get(usize::from(raw)).copied().flatten()
    }

    /// Whether it changes a file record.
    pub(super) fn is_of_file_records(self) -> bool {
        matches!(
            self,
            InitializeFileRecord
                | DeallocateFileRecord
                | WriteEndOfFileRecord
                | CreateAttribute
                | DeleteAttribute
                | UpdateResidentValue
                | UpdateMappingPairs
                | SetNewAttributeSizes
                | AddIndexEntryRoot
                | DeleteIndexEntryRoot
                | SetIndexEntryVcnRoot
                | UpdateFileNameRoot
                | UpdateRecordDataRoot
                | UpdateRelativeDataRoot
                | ZeroEndOfFileRecord
        )
    }

    /// Whether its argument is in the record. Of zeros only the length is told, and what is not undone has none.
    pub(super) fn has_argument(self) -> bool {
        !matches!(
            self,
            Noop | Compensation
                | DeallocateFileRecord
                | DeleteAttribute
                | DeleteIndexEntryRoot
                | DeleteIndexEntryAllocation
                | ZeroEndOfFileRecord
                | EndTopLevelAction
                | PrepareTransaction
                | CommitTransaction
                | ForgetTransaction
        )
    }

    /// How long its argument may be; any length if there is none.
    pub(super) fn argument_sizes(self) -> &'static [usize] {
        match self {
            // Without and with the total size of a compressed attribute.
            SetNewAttributeSizes => &[24, 32],
            SetIndexEntryVcnRoot | SetIndexEntryVcnAllocation | SetBits | ClearBits => &[8],
            UpdateFileNameRoot | UpdateFileNameAllocation => &[56],
            OpenNonresidentAttribute => &[size_of::<OpenAttribute>(), size_of::<OpenAttribute32>()],
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_log() {
        for (raw, operation) in [
            (0x00, Noop),
            (0x05, CreateAttribute),
            (0x09, UpdateMappingPairs),
            (0x15, SetBits),
            (0x16, ClearBits),
            (0x18, EndTopLevelAction),
            (0x1c, OpenNonresidentAttribute),
            (0x20, TransactionTableDump),
            (0x25, ZeroEndOfFileRecord),
        ] {
            assert_eq!(Operation::of(raw), Some(operation));
        }
        assert_eq!([0x17, 0x26, 0xffff].map(Operation::of), [None; 3]);
    }
}
