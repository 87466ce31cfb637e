//! Ways to break what makes a write whole, one at a time. Compiled for tests alone.

/// What is done wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutant {
    /// A file that may have been made before is taken for whole by its length.
    LengthIsBelieved,
    /// A server that says that it took a file has it.
    AnswerIsBelieved,
    /// A file is written under its own name at once.
    NamedFirst,
}
