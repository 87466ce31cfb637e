//! Vmdk: to be filled.

use std::sync::Arc;

use block::{Error, HostFile, Result};
use extent::VirtualOffset;
use serde::{Deserialize, Serialize};

use crate::{CreateOptions, Finish, Layer, Piece, Probe, Put, Resolver, Writer};

/// Whether `file` is one, by its whole header.
pub fn probe(_file: &dyn HostFile) -> Result<Probe> {
    Ok(Probe::No)
}

/// Opens one layer. `resolver` opens the further files it consists of; its parent is not opened here.
pub fn open(_file: Arc<dyn HostFile>, _resolver: &dyn Resolver) -> Result<Box<dyn Layer>> {
    Err(Error::unsupported("Vmdk"))
}

/// Lays out a new image.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmdkWriter {}

impl VmdkWriter {
    /// A writer for `options`.
    pub fn new(_options: CreateOptions) -> Result<Self> {
        Err(Error::unsupported("writing Vmdk"))
    }
}

impl Writer for VmdkWriter {
    fn granularity_bytes(&self) -> u64 {
        4096
    }

    fn place(&mut self, _chunk_at: VirtualOffset, _pieces: Vec<Piece>) -> Result<Vec<Put>> {
        Err(Error::unsupported("writing Vmdk"))
    }

    fn finish(&mut self) -> Result<Finish> {
        Err(Error::unsupported("writing Vmdk"))
    }
}
