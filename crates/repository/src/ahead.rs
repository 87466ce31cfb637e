//! Reading ahead of who reads a disk from one place on: which parts are worth it, and threads that read them.
//!
//! Invariants: what is asked for ahead is bounded; an error is left to who needs the blob.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// So many readers are told apart.
const STREAM_COUNT: usize = 8;
/// What is read ahead at first, and at most.
const WINDOW_BYTES: std::ops::RangeInclusive<u64> = (256 << 10)..=(8 << 20);
/// Blobs that wait to be read ahead.
const WAITING_MAX: usize = 64;
/// Threads that read ahead, at least.
const THREAD_COUNT: usize = 2;

/// One who reads from one place on.
#[derive(Clone, Copy, Default, Debug)]
struct Stream {
    /// Where the last read ended.
    end: u64,
    window_bytes: u64,
    /// To here was asked for already.
    asked_to: u64,
    /// The read that was its last, by number.
    last_read: u64,
}

/// Finds those who read from one place on among all reads.
#[derive(Default, Debug)]
pub(crate) struct Streams {
    streams: [Stream; STREAM_COUNT],
    read_count: u64,
}

impl Streams {
    /// What is worth reading after a read of these bytes: from where to where.
    pub(crate) fn after(&mut self, start: u64, end: u64) -> Option<(u64, u64)> {
        self.read_count += 1;
        let last_read = self.read_count;
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.end == start && start > 0) else {
            let oldest = self.streams.iter_mut().min_by_key(|stream| stream.last_read)?;
            *oldest = Stream { end, last_read, ..Stream::default() };
            return None;
        };
        (stream.end, stream.last_read) = (end, last_read);
        let window_bytes = (stream.window_bytes * 2).clamp(*WINDOW_BYTES.start(), *WINDOW_BYTES.end());
        // Half a window is read meanwhile.
        if stream.asked_to >= end + stream.window_bytes / 2 && stream.window_bytes > 0 {
            return None;
        }
        stream.window_bytes = window_bytes;
        let from = stream.asked_to.max(end);
        stream.asked_to = end + window_bytes;
        Some((from, stream.asked_to))
    }
}

/// Threads that read what they are asked for, by number.
pub(crate) struct Ahead {
    streams: Mutex<Streams>,
    /// Until this goes.
    asked: Option<SyncSender<u32>>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Ahead {
    /// `read` reads one, by as many threads as the storage answers at a time. Without threads, where there are none, nothing is read ahead.
    pub(crate) fn start(connection_count: usize, read: impl Fn(u32) + Send + Sync + 'static) -> Self {
        let (asked, waiting) = sync_channel(WAITING_MAX);
        let (waiting, read) = (Arc::new(Mutex::new(waiting)), Arc::new(read));
        let is_over = Arc::new(AtomicBool::new(false));
        let start = |_| {
            let (waiting, read, is_over) = (waiting.clone(), read.clone(), is_over.clone());
            let work = move || work(&waiting, &*read, &is_over);
            std::thread::Builder::new().name("read-ahead".into()).spawn(work).ok()
        };
        let threads = (0..connection_count.max(THREAD_COUNT)).filter_map(start).collect();
        Self { streams: Mutex::default(), asked: Some(asked), is_over, threads }
    }

    /// What is worth reading after a read of these bytes.
    pub(crate) fn after(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).after(start, end)
    }

    /// `false` if too many are waiting already.
    pub(crate) fn ask(&self, number: u32) -> bool {
        let asked = self.asked.as_ref().map(|asked| asked.try_send(number));
        !matches!(asked, Some(Err(TrySendError::Full(_))))
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.asked = None;
        // What they read from is let go of before this returns: its lock is removed by who lets go last.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Ends when nobody can ask any more.
fn work(waiting: &Mutex<Receiver<u32>>, read: &(dyn Fn(u32) + Send + Sync), is_over: &AtomicBool) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(number) if !is_over.load(Ordering::Relaxed) => read(number),
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_on_is_read_ahead_of_and_who_jumps_is_not() {
        let mut streams = Streams::default();
        let step = 128 << 10;
        let mut asked_to = 0;
        assert_eq!(streams.after(0, step), None, "one read is no stream");
        for number in 1..400 {
            let (start, end) = (number * step, (number + 1) * step);
            if let Some((from, to)) = streams.after(start, end) {
                assert_eq!(from, asked_to.max(end), "nothing twice");
                assert!(to > from && to - end <= *WINDOW_BYTES.end());
                asked_to = to;
            }
            assert!(asked_to > end, "it stays ahead");
            // Others jump about meanwhile.
            assert_eq!(streams.after(number << 30, (number << 30) + 512), None);
        }
        assert!(asked_to - 400 * step >= 2 << 20, "by much in the end");
    }
}
