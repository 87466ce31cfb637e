//! What is served.

use std::sync::Arc;

use super::negotiate::ExportFacts;
use crate::export::Export;

/// Exports, and what the negotiation tells of them.
#[derive(Clone)]
pub(crate) struct Exports {
    pub(crate) list: Vec<Arc<Export>>,
    pub(crate) facts: Vec<ExportFacts>,
}

impl Exports {
    /// Those that anybody finds.
    pub(crate) fn public(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.list.iter().zip(&self.facts).filter(|(_, facts)| !facts.is_private).map(|(export, _)| export)
    }
}
