//! `leandisk bench`: figures of several iterations, as documents, tables and pages.

mod age;
mod figure;
mod first_write;
mod fragmentation;
mod workloads;

use serde::Serialize;

use crate::text::printable;

pub use age::{AgeDocument, AgeSubject, age_document, age_text};
pub use figure::Figure;
pub use first_write::{
    FirstWriteDocument, FirstWriteSubject, first_write_document, first_write_page, first_write_text,
};
pub use fragmentation::{
    FragmentationDocument, FragmentationSubject, fragmentation_document, fragmentation_page,
    fragmentation_text,
};
pub use workloads::{
    WorkloadsDocument, WorkloadsSubject, workloads_document, workloads_page, workloads_text,
};

/// Where was measured.
#[derive(Clone, Debug, Serialize)]
struct Host {
    filesystem: Option<String>,
    /// The block devices beneath whose counters were read.
    devices: Vec<String>,
}

impl Host {
    /// With the folder.
    fn said(&self, dir: &str) -> String {
        let devices = printable(&self.devices.join(", "));
        let dir = printable(dir);
        match (self.filesystem.as_deref().map(printable), devices.is_empty()) {
            (Some(filesystem), false) => format!("{dir} ({filesystem} on {devices})"),
            (Some(filesystem), true) => format!("{dir} ({filesystem})"),
            (None, _) => dir,
        }
    }
}
