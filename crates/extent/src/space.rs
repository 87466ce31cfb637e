//! Typed offsets and spans.

use std::fmt;
use std::marker::PhantomData;

/// An address space: a numbering of bytes from zero.
pub trait Space: Copy + Eq + Ord + std::hash::Hash + fmt::Debug + Send + Sync + 'static {
    /// What messages call an offset of this space.
    const NAME: &'static str;
}

macro_rules! spaces {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name;
        impl Space for $name {
            const NAME: &'static str = $text;
        }
    )*};
}

spaces! {
    /// Bytes of the virtual disk, as the guest's disk driver sees them.
    Virtual = "virtual offset";
    /// Bytes of one file (or block device) of the host.
    Host = "offset";
    /// Bytes of one volume, from its first sector.
    Volume = "volume offset";
    /// Bytes of one file of the guest.
    File = "file offset";
    /// Bytes of the device under the host's file system.
    Device = "device offset";
}

/// A byte offset in the space `S`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset<S>(u64, PhantomData<S>);

/// An offset on the virtual disk.
pub type VirtualOffset = Offset<Virtual>;
/// An offset in a host file.
pub type HostOffset = Offset<Host>;
/// An offset in a volume.
pub type VolumeOffset = Offset<Volume>;
/// An offset in a file of the guest.
pub type FileOffset = Offset<File>;
/// An offset on the device under the host's file system.
pub type DeviceOffset = Offset<Device>;

impl<S: Space> Offset<S> {
    /// The first byte of the space.
    pub const ZERO: Self = Self::new(0);

    /// The offset `bytes` from the start of the space.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes, PhantomData)
    }

    /// Bytes from the start of the space.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// This offset moved up by `bytes`, or `None` past `u64::MAX`.
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self::new)
    }

    /// This offset moved up by `bytes`. Panics past `u64::MAX`: only for sums already known to fit.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self::new(self.0.checked_add(bytes).expect("offset within the space"))
    }
}

impl<S: Space> fmt::Debug for Offset<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x}", S::NAME, self.0)
    }
}

/// A range of bytes in the space `S`. Its end never overflows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span<S> {
    start: Offset<S>,
    len_bytes: u64,
}

impl<S: Space> Span<S> {
    /// `len_bytes` bytes from `start`, or `None` if the end would overflow.
    pub fn checked(start: Offset<S>, len_bytes: u64) -> Option<Self> {
        start.checked_add(len_bytes)?;
        Some(Self { start, len_bytes })
    }

    /// `len_bytes` bytes from `start`. Panics if the end overflows: only for values already validated.
    pub fn new(start: Offset<S>, len_bytes: u64) -> Self {
        Self::checked(start, len_bytes).expect("span within the space")
    }

    /// The bytes from `start` up to, not including, `end`; empty if `end` is not after `start`.
    pub fn between(start: Offset<S>, end: Offset<S>) -> Self {
        Self { start, len_bytes: end.get().saturating_sub(start.get()) }
    }

    /// The first `len_bytes` bytes of the space.
    pub fn from_zero(len_bytes: u64) -> Self {
        Self { start: Offset::ZERO, len_bytes }
    }

    /// The first byte's offset.
    pub fn start(&self) -> Offset<S> {
        self.start
    }

    /// The offset just after the last byte.
    pub fn end(&self) -> Offset<S> {
        Offset::new(self.start.get() + self.len_bytes)
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Whether `at` lies within.
    pub fn contains(&self, at: Offset<S>) -> bool {
        self.start <= at && at < self.end()
    }

    /// Whether every byte of `other` lies within.
    pub fn covers(&self, other: &Self) -> bool {
        other.is_empty() || (self.start <= other.start && other.end() <= self.end())
    }

    /// The bytes in both; `None` if there is none.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        let both = Self::between(self.start.max(other.start), self.end().min(other.end()));
        (!both.is_empty()).then_some(both)
    }

    /// Cut into consecutive pieces that end at multiples of `step_bytes` (not zero).
    pub fn split(self, step_bytes: u64) -> impl Iterator<Item = Self> {
        assert!(step_bytes > 0, "a step of zero never ends");
        let end = self.end();
        let mut at = self.start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let step_end = (at.get() / step_bytes + 1).saturating_mul(step_bytes).min(end.get());
            let piece = Self::between(at, Offset::new(step_end));
            at = piece.end();
            Some(piece)
        })
    }
}

impl<S: Space> fmt::Debug for Span<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x}+{:#x}", S::NAME, self.start.get(), self.len_bytes)
    }
}

/// A span with what is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent<S: Space, V> {
    /// Where it lies.
    pub span: Span<S>,
    /// What it is.
    pub state: V,
}

impl<S: Space, V> Extent<S, V> {
    /// `state` over `span`.
    pub fn new(span: Span<S>, state: V) -> Self {
        Self { span, state }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, len: u64) -> Span<Host> {
        Span::new(Offset::new(start), len)
    }

    #[test]
    fn a_span_that_would_overflow_is_not_made() {
        assert_eq!(Span::<Host>::checked(Offset::new(u64::MAX), 1), None);
        assert!(Span::<Host>::checked(Offset::new(u64::MAX), 0).is_some());
    }

    #[test]
    fn intersection_of_neighbours_is_none() {
        assert_eq!(span(0, 4).intersect(&span(4, 4)), None);
        assert_eq!(span(0, 5).intersect(&span(4, 4)), Some(span(4, 1)));
    }

    #[test]
    fn split_ends_at_multiples() {
        let pieces: Vec<_> = span(3, 10).split(4).collect();
        assert_eq!(pieces, [span(3, 1), span(4, 4), span(8, 4), span(12, 1)]);
        assert_eq!(span(u64::MAX - 3, 3).split(1 << 63).count(), 1);
    }
}
