//! Where extracted files go: a folder, or a tar.

use block::Result;
use filesystem::{Attribute, Contents, Node, Special};

use crate::Cancel;

/// A file or folder on its way out.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    /// Its names from the volume's root on. Each can be one of a file; there is one at least.
    pub(super) names: &'a [Vec<u8>],
    pub(super) node: &'a Node,
    pub(super) attributes: &'a [Attribute],
}

impl Item<'_> {
    /// Its path without a slash in front.
    pub(super) fn path(&self) -> Vec<u8> {
        self.names.join(&b'/')
    }
}

/// Takes files.
pub(super) trait Sink {
    /// A folder. Those that are in it follow, but not before the one that it is in.
    fn folder(&mut self, item: Item<'_>) -> Result<()>;

    /// A file with its contents.
    fn file(&mut self, item: Item<'_>, contents: &dyn Contents, cancel: &Cancel) -> Result<()>;

    /// A symbolic link.
    fn link(&mut self, item: Item<'_>, target: &[u8]) -> Result<()>;

    /// Another name of a file that was taken by `first`.
    fn hard_link(&mut self, item: Item<'_>, first: &[Vec<u8>]) -> Result<()>;

    /// A device, a pipe or a socket. Answers why it is left out, if so.
    fn special(&mut self, item: Item<'_>, special: Special) -> Result<Option<&'static str>>;

    /// Does what had to wait, and answers what could not be kept, each with how often.
    fn finish(&mut self) -> Result<Vec<(String, u64)>>;
}
