//! How much of what is read holds zeros only: the one look at data that analysis takes, and only if it is asked to.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{AlignedBuffer, ReadAt, Result, is_zero};
use extent::{Virtual, VirtualSpan};

/// What a worker reads at once.
const WINDOW_BYTES: u64 = 2 << 20;

/// What was read, and what of it was zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZeroCount {
    /// All that was read.
    pub read_bytes: u64,
    /// In units that hold zeros only.
    pub zero_bytes: u64,
}

/// Reads `spans`, and counts the units of `unit_bytes` within them (by their place on the virtual disk; a span may begin
/// or end within one, which is then looked at as far as it goes) that hold zeros only.
pub fn count_zeros(
    source: &dyn ReadAt<Virtual>,
    spans: impl Iterator<Item = VirtualSpan> + Send,
    unit_bytes: u64,
    thread_count: usize,
) -> Result<ZeroCount> {
    let unit_bytes = unit_bytes.clamp(512, WINDOW_BYTES);
    let windows = Mutex::new(spans.flat_map(|span| span.split(WINDOW_BYTES)));
    let sum = Mutex::new(Ok(ZeroCount::default()));
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..thread_count.max(1) {
            scope.spawn(|| {
                let mut buffer = AlignedBuffer::new(usize::try_from(WINDOW_BYTES).expect("small"));
                while !failed.load(Ordering::Relaxed) {
                    let next = windows.lock().expect("no worker panicked").next();
                    let Some(window) = next else { return };
                    let counted = count_window(source, window, unit_bytes, &mut buffer);
                    let mut sum = sum.lock().expect("no worker panicked");
                    match (&mut *sum, counted) {
                        (Ok(sum), Ok(zero_bytes)) => {
                            sum.read_bytes += window.len_bytes();
                            sum.zero_bytes += zero_bytes;
                        }
                        (Ok(_), Err(error)) => {
                            *sum = Err(error);
                            failed.store(true, Ordering::Relaxed);
                        }
                        (Err(_), _) => return,
                    }
                }
            });
        }
    });
    sum.into_inner().expect("no worker panicked")
}

fn count_window(
    source: &dyn ReadAt<Virtual>,
    window: VirtualSpan,
    unit_bytes: u64,
    buffer: &mut [u8],
) -> Result<u64> {
    let len = usize::try_from(window.len_bytes()).expect("at most a window");
    let bytes = &mut buffer[..len];
    source.read_at(window.start(), bytes)?;
    let start = window.start().get();
    let zero = |unit: &VirtualSpan| {
        let from = usize::try_from(unit.start().get() - start).expect("within the window");
        let to = usize::try_from(unit.end().get() - start).expect("within the window");
        is_zero(&bytes[from..to])
    };
    Ok(window.split(unit_bytes).filter(zero).map(|unit| unit.len_bytes()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Memory;
    use extent::{Offset, Span};

    #[test]
    fn units_of_zeros_are_counted_within_the_spans() {
        let mut bytes = vec![1; 8 << 20];
        bytes[4096..3 * 4096].fill(0);
        bytes[5 << 20..7 << 20].fill(0);
        let disk = Memory::new(bytes);
        let spans =
            [(0, 2 * 4096), (4 << 20, 4 << 20)].map(|(start, len)| Span::new(Offset::new(start), len));
        let count = count_zeros(&disk, spans.into_iter(), 4096, 3).unwrap();
        assert_eq!(count, ZeroCount { read_bytes: 8192 + (4 << 20), zero_bytes: 4096 + (2 << 20) });
        let past = [Span::new(Offset::new(8 << 20), 1)];
        assert!(count_zeros(&disk, past.into_iter(), 4096, 3).is_err());
    }
}
