//! What a run needs besides QEMU.

use std::path::Path;

use block::Result;

use crate::agent::Agent;
use crate::owner::{Life, RunId};

/// What is done outside of QEMU, and known outside of it.
pub trait Surroundings {
    /// Whether that run goes on.
    fn life(&self, run: RunId) -> Life;

    /// The guest's agent, if it answers.
    fn agent(&self, path: &Path) -> Result<Box<dyn Agent>>;

    /// Removes the socket of an export, if it is there.
    fn remove_socket(&self, path: &Path) -> Result<()>;

    /// Waits for a moment, until something may have become other than it was.
    fn wait(&self);
}
