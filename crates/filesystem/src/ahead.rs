//! What is about to be read, in memory before it is asked for.
//!
//! An unchecked guess: what is not there is read when it is asked for, and what is read in vain does no harm. Nor does what cannot be read:
//! who asks for it gets the error.

use std::collections::BTreeMap;
use std::sync::Arc;

use block::{ReadAt, Result, read_vec};
use extent::{Volume, VolumeOffset, VolumeSpan};

use crate::Source;

/// A volume of which some pieces are in memory.
pub(crate) struct Ahead {
    source: Source,
    pieces: BTreeMap<VolumeOffset, Vec<u8>>,
}

impl Ahead {
    /// `source` with `pieces` of it, each by where it begins, in memory. What overlaps is found only in the one that begins last.
    pub(crate) fn of(source: &Source, pieces: BTreeMap<VolumeOffset, Vec<u8>>) -> Source {
        match pieces.is_empty() {
            true => source.clone(),
            false => Arc::new(Self { source: source.clone(), pieces }),
        }
    }

    /// `source` with `span` in memory.
    pub(crate) fn read(source: &Source, span: VolumeSpan) -> Source {
        let is_within = span.end().get() <= source.len_bytes();
        let read = || read_vec(&**source, span.start(), span.len_bytes(), "what is read ahead").ok();
        let bytes = is_within.then(read).flatten();
        Self::of(source, bytes.map(|bytes| (span.start(), bytes)).into_iter().collect())
    }
}

impl ReadAt<Volume> for Ahead {
    fn len_bytes(&self) -> u64 {
        self.source.len_bytes()
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        let found = self.pieces.range(..=at).next_back().and_then(|(start, bytes)| {
            let from = usize::try_from(at.get() - start.get()).ok()?;
            bytes.get(from..)?.get(..buf.len())
        });
        match found {
            Some(bytes) => {
                buf.copy_from_slice(bytes);
                Ok(())
            }
            None => self.source.read_at(at, buf),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use block::Error;
    use extent::Span;

    use super::*;

    /// Whose bytes are their offsets', and of which one place cannot be read.
    struct Numbered(Arc<AtomicU64>);

    const LEN_BYTES: u64 = 1 << 20;
    const BROKEN_AT: u64 = 40_000;

    impl ReadAt<Volume> for Numbered {
        fn len_bytes(&self) -> u64 {
            LEN_BYTES
        }

        fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            if (at.get()..at.get() + buf.len() as u64).contains(&BROKEN_AT) {
                return Err(Error::refused("a broken sector"));
            }
            (at.get()..).zip(buf).for_each(|(at, byte)| *byte = (at % 251).to_le_bytes()[0]);
            Ok(())
        }
    }

    #[test]
    fn what_was_read_ahead_is_not_read_again_and_the_rest_is_read_when_asked_for() {
        let reads = Arc::new(AtomicU64::new(0));
        let source: Source = Arc::new(Numbered(reads.clone()));
        let span = |start: u64, len: u64| Span::new(VolumeOffset::new(start), len);
        let ahead = Ahead::read(&source, span(30_000, 100));
        assert_eq!(reads.swap(0, Ordering::Relaxed), 1);
        for (at, len, again) in
            [(30_000, 100, 0), (30_010, 50, 0), (30_000, 101, 1), (30_099, 2, 1), (29_999, 1, 1)]
        {
            let read = read_vec(&*ahead, VolumeOffset::new(at), len, "piece").unwrap();
            assert!((at..).zip(&read).all(|(at, byte)| u64::from(*byte) == at % 251), "{len} bytes at {at}");
            assert_eq!(reads.swap(0, Ordering::Relaxed), again, "{len} bytes at {at}");
        }
        let ahead = Ahead::read(&source, span(BROKEN_AT - 100, 200));
        assert!(read_vec(&*ahead, VolumeOffset::new(BROKEN_AT - 100), 100, "piece").is_ok());
        assert!(read_vec(&*ahead, VolumeOffset::new(BROKEN_AT), 100, "piece").is_err());
        reads.swap(0, Ordering::Relaxed);
        drop(Ahead::read(&source, span(LEN_BYTES - 50, 100)));
        assert_eq!(reads.swap(0, Ordering::Relaxed), 0, "what ends behind the volume is not asked for");
    }
}
