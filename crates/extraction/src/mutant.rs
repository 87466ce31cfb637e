//! Ways to break extraction, one at a time. Compiled for tests alone.

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// A folder is opened through a link.
    LinkFollowed,
    /// A file replaces another before its contents are on stable storage.
    ReplacedBeforeFlush,
    /// A further name of a file replaces another file before its contents are on stable storage.
    LinkedBeforeFlush,
    /// What this extraction made is replaced by another file of the guest.
    OwnReplaced,
    /// What exists is replaced though nobody allowed that.
    ReplacedUnasked,
    /// Success is told before everything is on stable storage.
    SuccessBeforeFlush,
    /// A file has its own name before it is finished.
    NamedBeforeWhole,
    /// A partial file stays where it cannot be finished.
    PartialStays,
    /// A file that was not made here gets a further name.
    StrangerLinked,
    /// What has a partial name is taken for what was made under it.
    StrangerKept,
    /// Permissions are set of folders that were there before.
    OldFolderSettled,
}

/// All of them.
pub const MUTANTS: [Mutant; 11] = [
    Mutant::LinkFollowed,
    Mutant::ReplacedBeforeFlush,
    Mutant::LinkedBeforeFlush,
    Mutant::OwnReplaced,
    Mutant::ReplacedUnasked,
    Mutant::SuccessBeforeFlush,
    Mutant::NamedBeforeWhole,
    Mutant::PartialStays,
    Mutant::StrangerLinked,
    Mutant::StrangerKept,
    Mutant::OldFolderSettled,
];
