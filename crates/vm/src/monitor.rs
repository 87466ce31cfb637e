//! Asking a QEMU, whoever answers: a socket ([`Socket`](crate::Socket)), or what tests put in its place.

use std::io;
use std::os::fd::BorrowedFd;

use block::{Error, Result};
use serde_json::{Value, json};

/// A command, with a descriptor that goes with it.
pub struct Command<'a> {
    /// Its name.
    pub name: &'static str,
    /// What it is told: an object.
    pub arguments: Value,
    /// A descriptor that the answerer gets.
    pub file: Option<BorrowedFd<'a>>,
}

/// Something that takes commands and answers them: QEMU by QMP, or a guest's agent.
pub trait Monitor {
    /// Has it do something, and answers what it returned. What it refused is a [`Said`]; `Io` if it does not answer.
    fn execute(&mut self, command: Command<'_>) -> Result<Value>;
}

/// What QEMU said to a command that it did not do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("QEMU refused {command}: {text}")]
pub struct Said {
    /// The command.
    pub command: String,
    /// QEMU's own words.
    pub text: String,
}

impl dyn Monitor + '_ {
    /// A command without a descriptor.
    pub(crate) fn ask(&mut self, name: &'static str, arguments: Value) -> Result<Value> {
        self.execute(Command { name, arguments, file: None })
    }

    /// A question that needs no arguments; the answer is a list.
    pub(crate) fn list(&mut self, name: &'static str) -> Result<Vec<Value>> {
        match self.ask(name, json!({}))? {
            Value::Array(list) => Ok(list),
            _ => Err(strange(name)),
        }
    }

    /// A command with a descriptor.
    pub(crate) fn hand(
        &mut self,
        name: &'static str,
        arguments: Value,
        file: BorrowedFd<'_>,
    ) -> Result<Value> {
        self.execute(Command { name, arguments, file: Some(file) })
    }
}

/// An answer that is not of the form that it must have.
pub(crate) fn strange(command: &str) -> Error {
    Error::corrupt(format!("QEMU's answer to {command} cannot be understood"))
}

/// Whether nobody is there any more to answer.
pub(crate) fn is_gone(error: &Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, UnexpectedEof};
    let source = error.io_source().map(io::Error::kind);
    source.is_some_and(|kind| matches!(kind, BrokenPipe | ConnectionReset | NotConnected | UnexpectedEof))
}

/// Whether QEMU refused the command, rather than not answering.
pub(crate) fn is_refusal(error: &Error) -> bool {
    error.cause::<Said>().is_some()
}
