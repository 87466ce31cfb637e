//! `leandisk create`: what a new disk takes.

use std::fmt::Write as _;

use engine::CreateTotals;
use serde::Serialize;

use crate::text::{Palette, counted, human_bytes, painted, printable};

/// The document `leandisk.create/1`.
#[derive(Clone, Debug, Serialize)]
pub struct CreateDocument {
    schema: &'static str,
    path: String,
    format: String,
    virtual_bytes: u64,
    /// `thin`, `lazy` or `eager`.
    provision: &'static str,
    /// Storage that was found for the guest's bytes.
    reserved_bytes: u64,
    /// As much of it as was zeroed.
    zeroed_bytes: u64,
    /// Bytes of tables and headers that were written.
    written_bytes: u64,
    /// What the file takes on the host.
    allocated_bytes: u64,
    host: Option<Host>,
    elapsed_seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Host {
    filesystem: Option<String>,
    extents: u64,
}

/// A disk that was made.
pub struct CreateSubject<'a> {
    /// Its path.
    pub path: &'a str,
    /// Its format.
    pub format: &'a str,
    /// Its size.
    pub virtual_bytes: u64,
    /// When its storage is found.
    pub provision: &'static str,
    /// What making it took.
    pub totals: CreateTotals,
    /// What it takes on the host.
    pub allocated_bytes: u64,
    /// The host's file system, if that is known.
    pub host_filesystem: Option<String>,
    /// The extents that it has there, if that is known.
    pub host_extents: Option<u64>,
    /// How long it took.
    pub elapsed_seconds: f64,
}

/// The document of a new disk.
pub fn create_document(subject: &CreateSubject<'_>) -> CreateDocument {
    let CreateTotals { reserved_bytes, zeroed_bytes, written_bytes } = subject.totals;
    let filesystem = subject.host_filesystem.clone();
    CreateDocument {
        schema: "leandisk.create/1",
        path: subject.path.to_owned(),
        format: subject.format.to_owned(),
        virtual_bytes: subject.virtual_bytes,
        provision: subject.provision,
        reserved_bytes,
        zeroed_bytes,
        written_bytes,
        allocated_bytes: subject.allocated_bytes,
        host: subject.host_extents.map(|extents| Host { filesystem, extents }),
        elapsed_seconds: subject.elapsed_seconds,
    }
}

/// The document in words and numbers.
pub fn create_text(document: &CreateDocument, palette: Palette) -> String {
    let mut out = String::new();
    let heading = format!(
        "created {} ({}), {}, {}",
        printable(&document.path),
        document.format,
        human_bytes(document.virtual_bytes),
        document.provision
    );
    out.push_str(&painted("", Some("  "), &heading, |line| palette.strong(line)));
    let extents = match &document.host {
        Some(Host { filesystem, extents }) => {
            let filesystem =
                filesystem.as_deref().map_or(String::new(), |name| format!(" of {}", printable(name)));
            format!(" in {}{filesystem}", counted(*extents, "extent", "extents"))
        }
        None => String::new(),
    };
    let _ = writeln!(out, "  on the host  {}{extents}", human_bytes(document.allocated_bytes));
    let reserved = human_bytes(document.reserved_bytes);
    let _ =
        writeln!(out, "  reserved     {reserved}, of which {} zeroed", human_bytes(document.zeroed_bytes));
    let _ = writeln!(out, "  time         {:.1} s", document.elapsed_seconds);
    out
}
