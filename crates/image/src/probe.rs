//! Which format a file has.

use block::{Error, HostFile, Result};

use crate::{Format, qcow2, vdi, vhd, vhdx, vmdk};

/// What a format's parser thinks of a file, by its whole header, not a magic number alone.
#[derive(Debug)]
pub enum Probe {
    /// Not this format.
    No,
    /// It bears the format's signature, but the header does not hold together: why.
    Broken(Error),
    /// Signature, checksums and every field of the header agree.
    Yes,
}

/// How the format was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The user said so.
    Stated,
    /// The whole header was checked.
    ByHeader,
    /// The name's extension says raw, and that goes before what the contents look like.
    ByExtension,
    /// Nothing else matched.
    ByElimination,
    /// The image above names it.
    ByParent,
}

impl Found {
    /// In words, for people and JSON.
    pub fn text(self) -> &'static str {
        match self {
            Self::Stated => "stated",
            Self::ByHeader => "by its header",
            Self::ByExtension => "by its extension",
            Self::ByElimination => "no header of any format",
            Self::ByParent => "named by the image above",
        }
    }
}

/// The verdicts of every format but raw.
pub fn probe(file: &dyn HostFile) -> Result<Vec<(Format, Probe)>> {
    Ok(vec![
        (Format::Qcow2, qcow2::probe(file)?),
        (Format::Vhdx, vhdx::probe(file)?),
        (Format::Vmdk, vmdk::probe(file)?),
        (Format::Vdi, vdi::probe(file)?),
        (Format::Vhd, vhd::probe(file)?),
    ])
}
