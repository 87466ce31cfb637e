//! What an image says of the files that it needs besides itself.

use crate::{Format, ParentReference};

/// What an image says of the files that it needs besides itself.
#[derive(Clone, Default, Debug)]
pub(crate) struct References {
    /// The layer below.
    pub(crate) parent: Option<ParentReference>,
    /// Data file and extents, as the image names them.
    pub(crate) data: Vec<String>,
}

impl From<Option<ParentReference>> for References {
    fn from(parent: Option<ParentReference>) -> Self {
        Self { parent, data: Vec::new() }
    }
}

/// Names of a format's parser: all that can be said of a file that is only asked what it needs.
pub(crate) fn parent_named(name: String, format: Option<Format>) -> ParentReference {
    ParentReference { names: vec![name], format, ..ParentReference::default() }
}
