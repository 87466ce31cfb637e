//! What is served.

use std::sync::Arc;

use super::negotiate::ExportFacts;
use crate::export::Export;

/// Exports, and what the negotiation tells of them.
pub(crate) struct Exports {
    pub(crate) list: Vec<Arc<Export>>,
    pub(crate) facts: Vec<ExportFacts>,
}
