//! `leandisk bench`: figures of several iterations, as documents, tables and pages.

mod figure;
mod first_write;

pub use figure::Figure;
pub use first_write::{
    FirstWriteDocument, FirstWriteSubject, first_write_document, first_write_page, first_write_text,
};
