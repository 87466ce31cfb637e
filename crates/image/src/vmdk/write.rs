//! tmp
use block::{Error, Result};
use extent::VirtualOffset;
use serde::{Deserialize, Serialize};

use crate::{CreateOptions, Finish, Piece, Put, Writer};

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
