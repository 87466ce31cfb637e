//! Address spaces, spans, and the algebra of extents.
//!
//! A byte of a guest's file has a different address in each layer of the stack. Each layer's addresses are
//! a type here ([`File`], [`Volume`], [`Virtual`], [`Host`], [`Device`]), so that an offset of one cannot be used in another.
//!
//! Invariants:
//! - the end of a [`Span`] never overflows `u64`; a span that could is not made;
//! - an [`ExtentSet`] is sorted, disjoint and coalesced, always.
//!
//! Absent on purpose: I/O, errors, state of any kind.

mod packed;
mod set;
mod space;

pub use packed::PackedExtents;
pub use set::ExtentSet;
pub use space::{
    Device, DeviceOffset, Extent, File, FileOffset, Host, HostOffset, Offset, Space, Span, Virtual,
    VirtualOffset, Volume, VolumeOffset,
};

/// A span of the host file's bytes.
pub type HostSpan = Span<Host>;
/// A span of the virtual disk's bytes.
pub type VirtualSpan = Span<Virtual>;
/// A span of a volume's bytes.
pub type VolumeSpan = Span<Volume>;
