//! What zeros are written from: one table for all.

/// Zeros.
pub(crate) static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
