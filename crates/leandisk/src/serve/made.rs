//! What was made in the file system for as long as something lasts.

use std::path::{Path, PathBuf};

/// A file or socket that this process made. It is removed when this goes.
pub(super) struct Made(Option<PathBuf>);

impl Made {
    pub(super) fn new(path: &Path) -> Self {
        Self(Some(path.to_owned()))
    }

    /// It stays.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Nobody is left to tell, and who comes next replaces a socket that is left.
            let _ = os::remove_made(path);
        }
    }
}
