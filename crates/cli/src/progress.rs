//! How far a command is: a bar for people, lines for programs.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use block::{Error, Result};
use engine::JobMonitor;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle as BarStyle};
use serde::Serialize;

use leandisk::Observer;
use leandisk::background::Background;

use crate::arguments::ProgressStyle;
use crate::output::{BAR_WAS_DRAWN, is_quiet, tell};

/// The least time between two lines.
const LINE_INTERVAL: Duration = Duration::from_millis(250);

/// Time between two pictures of what has no end in sight.
const TICK_INTERVAL: Duration = Duration::from_millis(200);

/// The document `leandisk.progress/1`.
#[derive(Serialize)]
struct Line {
    schema: &'static str,
    phase: &'static str,
    done_bytes: u64,
    total_bytes: u64,
    written_bytes: u64,
}

/// What a phase is called where people read it.
fn words(phase: &'static str) -> &'static str {
    match phase {
        "check" => "checking the appliance",
        "copy" => "copying",
        "digest" => "computing digests",
        "backup" => "backing up",
        "verify" => "comparing",
        "move" => "moving files",
        "free" => "giving back",
        "zero" => "zeroing",
        "write" => "writing",
        "measure" => "measuring",
        other => other,
    }
}

/// A line that fits a terminal of so many columns: the rate goes first, then the total.
fn template(columns: usize) -> &'static str {
    match columns {
        100.. => {
            "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left"
        }
        60.. => "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}  {eta} left",
        _ => "{msg} {wide_bar} {binary_bytes}  {eta} left",
    }
}

/// The columns of a terminal; 80 of what is none.
pub(crate) fn columns_of(terminal: &impl AsFd) -> usize {
    terminal_size::terminal_size_of(terminal).map_or(80, |(width, _)| usize::from(width.0))
}

/// Shows the user what a use case does, and stops it on SIGINT and SIGTERM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    pub(crate) style: ProgressStyle,
}

/// Shows work on these files, which is done in the background if that is asked for.
pub(crate) fn watching(style: ProgressStyle, background: bool, paths: &[PathBuf]) -> Box<dyn Observer> {
    let terminal = Terminal { style };
    if background { Box::new(Background::begin(terminal, paths)) } else { Box::new(terminal) }
}

/// Shows what is done when disks cease to be served: the signal that ended that does not stop it, and a second one ends the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending(pub(crate) Terminal);

impl Observer for Ending {
    fn waiting(&self, what: &'static str) -> Box<dyn leandisk::Waiting> {
        self.0.waiting(what)
    }

    fn progress(
        &self,
        phase: &'static str,
        total_bytes: u64,
        cancel: leandisk::Cancel,
    ) -> Box<dyn leandisk::Progress> {
        self.0.progress(phase, total_bytes, cancel)
    }

    fn note(&self, text: &str) {
        self.0.note(text);
    }

    fn cancel(&self) -> Result<leandisk::Cancel> {
        Ok(Arc::default())
    }
}

impl Observer for Terminal {
    fn waiting(&self, what: &'static str) -> Box<dyn leandisk::Waiting> {
        Box::new(waiting(self.style, what))
    }

    fn progress(
        &self,
        phase: &'static str,
        total_bytes: u64,
        cancel: leandisk::Cancel,
    ) -> Box<dyn leandisk::Progress> {
        Box::new(Progress::new(self.style, phase, total_bytes, cancel))
    }

    fn note(&self, text: &str) {
        tell(text);
    }

    fn cancel(&self) -> Result<leandisk::Cancel> {
        cancel_on_signal()
    }
}

/// A name and the time for work of which nobody knows how much it is. It goes with this value.
struct Waiting(ProgressBar);

impl leandisk::Waiting for Waiting {}

/// Whether bars are drawn: people look. Notes that they are.
fn is_shown(style: ProgressStyle) -> bool {
    let shown = style == ProgressStyle::Auto && !is_quiet() && std::io::stderr().is_terminal();
    BAR_WAS_DRAWN.fetch_or(shown, Ordering::Relaxed);
    shown
}

/// Says on a terminal what is being done.
fn waiting(style: ProgressStyle, what: &'static str) -> Waiting {
    if !is_shown(style) {
        return Waiting(ProgressBar::hidden());
    }
    let bar = ProgressBar::new_spinner().with_message(what);
    bar.set_style(BarStyle::with_template("{spinner} {msg}  {elapsed}").expect("a valid template"));
    // At once, and not only when its thread runs: the work may be over by then.
    bar.tick();
    bar.enable_steady_tick(TICK_INTERVAL);
    Waiting(bar)
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Watches a copy for the user.
struct Progress {
    bar: ProgressBar,
    json: Option<Mutex<Instant>>,
    phase: &'static str,
    total_bytes: AtomicU64,
    done_bytes: AtomicU64,
    written_bytes: AtomicU64,
    cancelled: Arc<AtomicBool>,
}

impl Progress {
    /// Progress of `phase` (`copy`, `verify`) over so many bytes.
    fn new(style: ProgressStyle, phase: &'static str, total_bytes: u64, cancelled: Arc<AtomicBool>) -> Self {
        let shown = is_shown(style);
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total_bytes), target);
        let template = template(columns_of(&std::io::stderr()));
        bar.set_style(BarStyle::with_template(template).expect("a valid template"));
        bar.set_message(words(phase));
        let json = (style == ProgressStyle::Json && !is_quiet()).then(|| Mutex::new(Instant::now()));
        let progress = Self {
            bar,
            json,
            phase,
            total_bytes: AtomicU64::new(total_bytes),
            done_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            cancelled,
        };
        progress.line();
        progress
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
            total_bytes: self.total_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
        };
        let line = serde_json::to_string(&line).expect("plain data becomes JSON");
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

impl leandisk::Progress for Progress {
    /// Takes the bar away; the last line of JSON says where it ended.
    fn finish(&self) {
        self.bar.finish_and_clear();
        self.line();
    }

    fn set_total(&self, total_bytes: u64) {
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
        self.bar.set_length(total_bytes);
    }
}

impl JobMonitor for Progress {
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

/// The flag that SIGINT and SIGTERM set, the same for all who ask: what was sent before somebody asks counts as well. A second signal ends
/// the program at once.
pub(crate) fn cancel_on_signal() -> Result<Arc<AtomicBool>> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(flag) = FLAG.get() {
        return Ok(flag.clone());
    }
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone())
            .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
            .map_err(|error| Error::io("signal handler", error))?;
    }
    Ok(FLAG.get_or_init(|| flag).clone())
}
