//! A disk of a snapshot, restored onto the disk that is there: what is the same already is not written.
//!
//! Both are read and compared; only what differs is written, where it lies. A disk that is killed meanwhile is neither the old nor the new one, but
//! whole as an image: `recover` closes it if it has tables, and restoring it again finishes it.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use block::{
    AlignedBuffer, Error, HostFile, HostState, LiveDisk, ReadAt, Result, RunState, TargetFile, is_zero,
};
use claims::{Act, Seen};
use engine::HINT_RECOVER;
use extent::{HostOffset, HostSpan, Span, VirtualOffset, VirtualSpan};
use image::live::{LiveOptions, gives_back};
use image::{Chain, Edit, EditTarget};
use journal::{Header, Identity};
use report::{InPlace, RestoreDocument, restored_in_place};

use crate::machine::{Caching, HeldJournal, Machine, ThisHost};
use crate::open::{Location, OpenOptions, check_claims};
use crate::stored::{SnapshotName, open_file};
use crate::{Cancel, Observer, copy};

/// What a worker compares at once.
const WINDOW_BYTES: u64 = 2 << 20;
/// What is written if a byte of it differs.
const UNIT_BYTES: usize = 64 << 10;
const SECTOR_BYTES: usize = 512;

/// Restores onto the target, which has to be a disk of the same size that nothing uses and nothing stands on.
pub(super) fn run(
    copy: &copy::Options,
    name: &SnapshotName,
    observer: &dyn Observer,
) -> Result<RestoreDocument> {
    let started = Instant::now();
    let machine = &ThisHost;
    let path = &copy.target;
    let place = copy.open.repository.as_ref().ok_or_else(|| Error::invalid("no repository is named"))?;
    let source = open_file(place, name, &copy.source)?;
    let open = OpenOptions { format: copy.target_format, ..OpenOptions::default() };
    let location = Location { machine, path, options: &open };
    location.check_on_host()?;
    let chain = location.open_chain_at_rest(Caching::PageCache)?;
    let resolver = location.resolver()?;
    if chain.links().len() > 1 {
        return Err(Error::refused(
            "the target has a parent: what it has from there cannot be restored in place",
        )
        .path(path.display()));
    }
    if chain.len_bytes() != source.len_bytes() {
        return Err(Error::refused(format!(
            "the target is a disk of {} bytes, the snapshot's has {}",
            chain.len_bytes(),
            source.len_bytes()
        ))
        .hint("restore it to a new file")
        .path(path.display()));
    }
    check_claims(&chain, &*resolver, Act::Change)?;
    Edit::check(&chain)?;
    location.check_usable()?;
    let cancelled = observer.cancel()?;
    let restorer =
        |disk: Option<&dyn LiveDisk>| compare(&*source, &chain, disk, copy, observer, cancelled.clone());
    let done = if copy.dry_run {
        restorer(None)?
    } else {
        let seen = Seen::of(&chain);
        let mut hold = |file: &dyn HostFile| Ok(machine.hold(file.path())? as Arc<dyn EditTarget>);
        let edit = Edit::open(&chain, &*resolver, &mut hold)?;
        seen.check_before_change(&chain)?;
        // From before the first write on: what is killed may leave marks in the image's tables that `recover` knows for its own.
        let journal = match gives_back(&chain).unit_bytes {
            Some(_) => {
                let identity =
                    Identity { format: chain.facts().format.name().to_owned(), ..Identity::default() };
                Some(machine.create_journal(
                    path,
                    None,
                    Header::without_volume(identity, chain.len_bytes()),
                )?)
            }
            None => None,
        };
        let (held, files) = edit.into_parts();
        let files = files.into_iter().map(|file| file as Arc<dyn TargetFile>).collect();
        let disk = match image::live::open(held, files, LiveOptions::default()) {
            Ok(disk) => disk,
            Err(error) => {
                journal.into_iter().try_for_each(HeldJournal::remove)?;
                return Err(error);
            }
        };
        let done = restorer(Some(&*disk));
        let closed = disk.close();
        if closed.is_ok() {
            journal.into_iter().try_for_each(HeldJournal::remove)?;
        }
        closed.map_err(|error| error.hint(HINT_RECOVER))?;
        done.map_err(|error| match error.hint_text() {
            None => error.hint("the target is restored in part: the same command finishes it"),
            Some(_) => error,
        })?
    };
    if copy.verify && !copy.dry_run {
        let after = location.open_chain_at_rest(Caching::PageCache)?;
        let found = compare(&*source, &after, None, copy, observer, cancelled)?;
        if found.written_bytes > 0 {
            return Err(Error::mismatch(format!("{} bytes of the target differ", found.written_bytes))
                .path(path.display()));
        }
    }
    let id = name.snapshot.clone();
    Ok(restored_in_place(InPlace {
        snapshot: id,
        disk: name.disk.clone(),
        target_path: path.display().to_string(),
        target_format: chain.facts().format.name().to_owned(),
        virtual_bytes: chain.len_bytes(),
        dry_run: copy.dry_run,
        read_bytes: done.read_bytes,
        written_bytes: done.written_bytes,
        verified: copy.verify && !copy.dry_run,
        elapsed_seconds: started.elapsed().as_secs_f64(),
    }))
}

/// What was compared, and what of it differed.
struct Compared {
    /// Of the snapshot's disk.
    read_bytes: u64,
    written_bytes: u64,
}

/// Compares window by window, by several threads, and writes what differs if there is a disk to write to.
fn compare(
    source: &dyn HostFile,
    target: &Chain,
    disk: Option<&dyn LiveDisk>,
    copy: &copy::Options,
    observer: &dyn Observer,
    cancelled: Cancel,
) -> Result<Compared> {
    let len_bytes = source.len_bytes();
    let phase = if disk.is_some() { "copy" } else { "verify" };
    let progress = observer.progress(phase, len_bytes, cancelled);
    let windows = Mutex::new(HostSpan::from_zero(len_bytes).split(WINDOW_BYTES));
    let failure = Mutex::new(None);
    let has_failed = AtomicBool::new(false);
    let (read_bytes, written_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let worker = || {
        let mut window = Window { source, target, disk, wanted: buffer(), found: buffer() };
        loop {
            let next = windows.lock().expect("no worker panicked").next();
            let Some(span) = next.filter(|_| !has_failed.load(Ordering::Relaxed) && !progress.is_cancelled())
            else {
                return;
            };
            match window.restore(span) {
                Ok(done) => {
                    read_bytes.fetch_add(done.read_bytes, Ordering::Relaxed);
                    written_bytes.fetch_add(done.written_bytes, Ordering::Relaxed);
                    progress.advanced(span.len_bytes(), done.written_bytes);
                }
                Err(error) => {
                    has_failed.store(true, Ordering::Relaxed);
                    failure.lock().expect("no worker panicked").get_or_insert(error);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let count = copy.threads.map_or(2 * os::processor_count(), usize::from);
        for _ in 0..count.max(1) {
            scope.spawn(worker);
        }
    });
    if let Some(error) = failure.into_inner().expect("no worker panicked") {
        return Err(error);
    }
    if progress.is_cancelled() {
        return Err(Error::interrupted());
    }
    if let Some(disk) = disk {
        disk.flush()?;
    }
    progress.finish();
    Ok(Compared { read_bytes: read_bytes.into_inner(), written_bytes: written_bytes.into_inner() })
}

fn buffer() -> AlignedBuffer {
    AlignedBuffer::new(usize::try_from(WINDOW_BYTES).expect("small"))
}

/// A worker's own.
struct Window<'a> {
    source: &'a dyn HostFile,
    target: &'a Chain,
    disk: Option<&'a dyn LiveDisk>,
    wanted: AlignedBuffer,
    found: AlignedBuffer,
}

impl Window<'_> {
    fn restore(&mut self, window: HostSpan) -> Result<Compared> {
        let mut done = Compared { read_bytes: 0, written_bytes: 0 };
        for extent in self.source.host_map(window)? {
            let at = VirtualOffset::new(extent.span.start().get());
            let span = Span::new(at, extent.span.len_bytes());
            match extent.state {
                HostState::Hole => self.clear(span, &mut done)?,
                HostState::Data => self.write(span, &mut done)?,
            }
        }
        Ok(done)
    }

    /// What is no zeros in the target becomes some. What differs is counted in sectors: what the host stores of what is zeros changes by itself, as it
    /// writes out what was written before.
    fn clear(&mut self, span: VirtualSpan, done: &mut Compared) -> Result<()> {
        for run in self.target.map_with_host(span)? {
            if matches!(run.state, RunState::Hole | RunState::Zero) {
                continue;
            }
            self.read(run.span)?;
            let found = &self.found[..found_len(run.span)];
            for stale in units_to_clear(run.span, found) {
                let from = found_len(Span::between(run.span.start(), stale.start()));
                done.written_bytes += differing_bytes(&found[from..][..found_len(stale)]);
                if let Some(disk) = self.disk {
                    disk.zero(stale, true)?;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, span: VirtualSpan, done: &mut Compared) -> Result<()> {
        let len = found_len(span);
        self.source.read_at(HostOffset::new(span.start().get()), &mut self.wanted[..len])?;
        self.read(span)?;
        done.read_bytes += span.len_bytes();
        let mut at = span.start();
        for (wanted, found) in self.wanted[..len].chunks(UNIT_BYTES).zip(self.found[..len].chunks(UNIT_BYTES))
        {
            if wanted != found {
                done.written_bytes += wanted.len() as u64;
                if let Some(disk) = self.disk {
                    disk.write_at(at, wanted)?;
                }
            }
            at = at.plus(wanted.len() as u64);
        }
        Ok(())
    }

    /// Of the disk that is written, if one is: no other worker writes here.
    fn read(&mut self, span: VirtualSpan) -> Result<()> {
        let found = &mut self.found[..found_len(span)];
        match self.disk {
            Some(disk) => disk.read_at(span.start(), found),
            None => self.target.read_at(span.start(), found),
        }
    }
}

fn found_len(span: VirtualSpan) -> usize {
    usize::try_from(span.len_bytes()).expect("within a window")
}

/// Sectors that are no zeros.
fn differing_bytes(found: &[u8]) -> u64 {
    let differing = found.chunks(SECTOR_BYTES).filter(|sector| !is_zero(sector));
    differing.map(|sector| sector.len() as u64).sum()
}

/// The units of `span` in which a byte is none, those that follow each other in one piece.
fn units_to_clear(span: VirtualSpan, found: &[u8]) -> Vec<VirtualSpan> {
    let mut all: Vec<VirtualSpan> = Vec::new();
    let mut at = span.start();
    while at < span.end() {
        let end = span.end().min(VirtualOffset::new((at.get() / UNIT_BYTES as u64 + 1) * UNIT_BYTES as u64));
        let unit = Span::between(at, end);
        let skipped = found_len(Span::between(span.start(), at));
        if !is_zero(&found[skipped..][..found_len(unit)]) {
            match all.last_mut().filter(|last| last.end() == at) {
                Some(last) => *last = Span::between(last.start(), end),
                None => all.push(unit),
            }
        }
        at = end;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> VirtualSpan {
        Span::between(VirtualOffset::new(start), VirtualOffset::new(end))
    }

    #[test]
    fn whole_units_are_cleared_and_sectors_are_counted() {
        let unit = UNIT_BYTES as u64;
        // Begins and ends within a unit.
        let run = span(unit / 2, 4 * unit + 1024);
        let mut found = vec![0; found_len(run)];
        assert!(units_to_clear(run, &found).is_empty());
        assert_eq!(differing_bytes(&found), 0);
        for at in [unit / 2 + 10, unit + 3, 4 * unit, 4 * unit + 1023] {
            found[found_len(span(unit / 2, at))] = 7;
        }
        assert_eq!(units_to_clear(run, &found), [span(unit / 2, 2 * unit), span(4 * unit, 4 * unit + 1024)]);
        assert_eq!(differing_bytes(&found), 4 * 512);
        // However it is cut, the same is counted.
        let cut = found_len(span(unit / 2, 3 * unit));
        assert_eq!(differing_bytes(&found[..cut]) + differing_bytes(&found[cut..]), 4 * 512);
    }
}
