//! A volume that was recognised: what is known of it, and what was read of it or why it is not read any further.

use std::sync::Arc;

use block::{Error, ErrorKind, Result};

use crate::{Facts, FileVisitor, State};

/// A file system of which `V` is what reading the volume gave.
pub(crate) struct Opened<V> {
    /// What is known of the volume, broken or not.
    pub(crate) facts: Facts,
    /// What was read; the error if the volume is not to be read any further, which its state says, too.
    pub(crate) volume: Result<V, Arc<Error>>,
}

impl<V> Opened<V> {
    /// What `read` means for a volume with these facts: an error becomes its state, but one of the machine stays an error.
    pub(crate) fn new(facts: Facts, read: Result<V>) -> Result<Self> {
        match read {
            Ok(volume) => Ok(Self { facts, volume: Ok(volume) }),
            Err(error) => {
                let Some(state) = state_of(&error) else { return Err(error) };
                Ok(Self { facts: Facts { state, ..facts }, volume: Err(Arc::new(error)) })
            }
        }
    }

    /// What was read, also of a volume in doubt.
    pub(crate) fn volume(&self) -> Result<&V> {
        self.volume.as_ref().map_err(|error| self.facts.state.refusal().because(error.clone()))
    }

    /// What was read, if the volume's state is not in the way.
    pub(crate) fn believed(&self) -> Result<&V> {
        let volume = self.volume()?;
        if self.facts.state.doubt().is_some() { Err(self.facts.state.refusal()) } else { Ok(volume) }
    }

    /// Has `scan` show all files to `visitor`, who is told instead why the volume is not read.
    pub(crate) fn scan(
        &self,
        visitor: &mut dyn FileVisitor,
        scan: impl FnOnce(&V, &mut dyn FileVisitor) -> Result<()>,
    ) -> Result<()> {
        match &self.volume {
            Ok(volume) => scan(volume, visitor),
            Err(_) => {
                visitor.doubt(None, self.facts.state.refusal().to_string());
                Ok(())
            }
        }
    }
}

/// The state of a volume that cannot be read for this error; `None` if the error says nothing of the volume.
pub(crate) fn state_of(error: &Error) -> Option<State> {
    let why = error.to_string();
    match error.kind() {
        ErrorKind::Corrupt => Some(State::Inconsistent(why)),
        ErrorKind::Unsupported => Some(State::Unsupported(why)),
        ErrorKind::Refused => Some(State::Dirty(why)),
        _ => None,
    }
}
