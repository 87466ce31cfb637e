//! How far a copy is: a bar for people, lines for programs.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use block::{Error, Result};
use engine::Monitor;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle as BarStyle};
use serde::Serialize;

use crate::arguments::ProgressStyle;

/// The least time between two lines.
const LINE_INTERVAL: Duration = Duration::from_millis(250);

/// The document `leandisk.progress/1`.
#[derive(Serialize)]
struct Line {
    schema: &'static str,
    phase: &'static str,
    done_bytes: u64,
    total_bytes: u64,
    written_bytes: u64,
}

/// Watches a copy for the user.
pub(crate) struct Progress {
    bar: ProgressBar,
    json: Option<Mutex<Instant>>,
    phase: &'static str,
    total_bytes: u64,
    done_bytes: AtomicU64,
    written_bytes: AtomicU64,
    cancelled: Arc<AtomicBool>,
}

impl Progress {
    /// Progress of `phase` (`copy`, `verify`) over so many bytes.
    pub(crate) fn new(
        style: ProgressStyle,
        phase: &'static str,
        total_bytes: u64,
        cancelled: Arc<AtomicBool>,
    ) -> Self {
        let shown = style == ProgressStyle::Auto && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total_bytes), target);
        let template =
            "{msg:7} {bar:36} {binary_bytes:>10} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left";
        bar.set_style(BarStyle::with_template(template).expect("a valid template"));
        bar.set_message(phase);
        let json = (style == ProgressStyle::Json).then(|| Mutex::new(Instant::now()));
        let progress = Self {
            bar,
            json,
            phase,
            total_bytes,
            done_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            cancelled,
        };
        progress.line();
        progress
    }

    /// Takes the bar away; the last line of JSON says where it ended.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
        self.line();
    }

    fn line_if_due(&self) {
        if let Some(last) = &self.json {
            let mut last = last.lock().expect("no line panicked");
            if last.elapsed() < LINE_INTERVAL {
                return;
            }
            *last = Instant::now();
            drop(last);
            self.line();
        }
    }

    fn line(&self) {
        if self.json.is_none() {
            return;
        }
        let line = Line {
            schema: "leandisk.progress/1",
            phase: self.phase,
            done_bytes: self.done_bytes.load(Ordering::Relaxed),
            total_bytes: self.total_bytes,
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        };
        let line = serde_json::to_string(&line).expect("plain data becomes JSON");
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

impl Monitor for Progress {
    /// The rate and the time left are of this run alone.
    fn resumed(&self, read_bytes: u64, written_bytes: u64) {
        self.done_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        self.written_bytes.fetch_add(written_bytes, Ordering::Relaxed);
        // The estimate counts from here: first the position, so that it is no step, then the time.
        self.bar.update(|state| state.set_pos(state.pos() + read_bytes));
        self.bar.reset_eta();
        self.bar.reset_elapsed();
        self.line();
    }

    fn advanced(&self, read_bytes: u64, written_bytes: u64) {
        self.done_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        self.written_bytes.fetch_add(written_bytes, Ordering::Relaxed);
        self.bar.inc(read_bytes);
        self.line_if_due();
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// A flag that SIGINT and SIGTERM set. A second signal ends the program at once.
pub(crate) fn cancel_on_signal() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())
            .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
            .map_err(|error| Error::io("signal handler", error))?;
    }
    Ok(flag)
}
