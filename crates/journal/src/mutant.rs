//! Ways to break a journal's life, one at a time. Compiled for tests alone.

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// A file that is no journal counts as one with nothing to finish, and is removed.
    StrangerTakenForJournal,
    /// The journal has its name before its header.
    NamedBeforeHeader,
    /// The header is not flushed before the journal gets its name.
    HeaderNotFlushed,
    /// The change begins before the journal's name is on stable storage.
    NameNotSynced,
    /// The change begins before the name of the link is.
    LinkNotSynced,
    /// The journal goes before the link that leads to it.
    LinkRemovedLast,
}

/// All of them.
pub const MUTANTS: [Mutant; 6] = [
    Mutant::StrangerTakenForJournal,
    Mutant::NamedBeforeHeader,
    Mutant::HeaderNotFlushed,
    Mutant::NameNotSynced,
    Mutant::LinkNotSynced,
    Mutant::LinkRemovedLast,
];
