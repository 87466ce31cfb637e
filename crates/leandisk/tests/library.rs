//! What other programs do with the library: look at a disk layer by layer, watch a copy, stop it, and tell errors apart.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use leandisk::block::{Disk, ReadAt, RunState};
use leandisk::engine::JobMonitor;
use leandisk::extent::{Span, VolumeOffset};
use leandisk::filesystem::{Catalog, Check};
use leandisk::{
    Caching, Cancel, ErrorKind, Observer, OpenDisk, OpenOptions, Progress, Result, Unwatched, Waiting,
    compact, copy, create, info, to_json,
};
use testkit::{Guest, Inside, run, scratch};

/// Keeps what it is told, and stops once it was told `stop_after` steps of progress.
#[derive(Clone, Default)]
struct Watcher {
    told: Arc<Mutex<Vec<String>>>,
    cancel: Cancel,
    stops: bool,
}

struct Phase(Watcher);

impl Waiting for Watcher {}

impl JobMonitor for Phase {
    fn advanced(&self, _read_bytes: u64, _written_bytes: u64) {
        self.0.cancel.fetch_or(self.0.stops, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.0.cancel.load(Ordering::Relaxed)
    }
}

impl Progress for Phase {
    fn finish(&self) {
        self.0.told.lock().unwrap().push("finished".into());
    }
}

impl Observer for Watcher {
    fn waiting(&self, what: &'static str) -> Box<dyn Waiting> {
        self.told.lock().unwrap().push(what.into());
        Box::new(self.clone())
    }

    fn progress(&self, phase: &'static str, total_bytes: u64, _cancel: Cancel) -> Box<dyn Progress> {
        assert!(total_bytes > 0);
        self.told.lock().unwrap().push(phase.into());
        Box::new(Phase(self.clone()))
    }

    fn note(&self, text: &str) {
        self.told.lock().unwrap().push(text.into());
    }

    fn cancel(&self) -> Result<Cancel> {
        Ok(self.cancel.clone())
    }
}

fn of(source: &Path, target: PathBuf) -> copy::Options {
    copy::Options { source: source.to_owned(), target, verify: true, ..copy::Options::default() }
}

#[test]
fn a_disk_is_read_layer_by_layer() {
    let guest = Guest::get(Inside::Ntfs);
    let disk = OpenDisk::open(&guest.disk, &OpenOptions::default(), Caching::PageCache).unwrap();
    let stack = disk.stack();
    let chain = stack.chain();
    let runs = chain.map(Span::from_zero(chain.len_bytes())).unwrap();
    assert!(runs.iter().any(|run| matches!(run.state, RunState::Data { .. })));
    assert_eq!(stack.volumes().len(), 1);
    let volume = &stack.volumes()[0];
    assert_eq!(volume.span().unwrap().start().get(), guest.volume_start);
    assert_eq!(stack.used_maps(Check::Full).unwrap().modes()[0].reason(), None);

    // The boot sector's file lies where every NTFS has it, and says what it is.
    let catalog = Catalog::read(&**volume.filesystem.as_ref().unwrap()).unwrap();
    let boot = catalog.streams().find(|stream| stream.path() == b"/$Boot").unwrap();
    let first = boot.extents().next().unwrap();
    assert_eq!(first.span.start(), VolumeOffset::new(0));
    let mut sector = [0; 512];
    volume.source.read_at(first.span.start(), &mut sector).unwrap();
    assert_eq!(&sector[3..7], b"NTFS");
}

#[test]
fn a_copy_is_watched() {
    let guest = Guest::get(Inside::Ext4);
    let dir = scratch();
    let watcher = Watcher::default();
    let options = of(&guest.disk, dir.path().join("copy.qcow2"));
    let planned = copy::run(&copy::Options { dry_run: true, ..options.clone() }, &Unwatched).unwrap();
    assert!(!options.target.exists());
    let done = copy::run(&options, &watcher).unwrap();
    assert!(
        to_json(&planned).contains("\"leandisk.copy/1\"") && to_json(&done).contains("\"leandisk.copy/1\"")
    );
    let told = watcher.told.lock().unwrap().join(", ");
    assert_eq!(told, "checking what the guest uses, copy, finished, verify, finished");
    run("qemu-img", &["check", "-q", options.target.to_str().unwrap()]);
    let raw = dir.path().join("raw");
    run("qemu-img", &["convert", "-O", "raw", options.target.to_str().unwrap(), raw.to_str().unwrap()]);
    guest.check(&raw);
}

#[test]
fn a_copy_that_is_stopped_leaves_nothing_under_its_name_and_is_gone_on_with() {
    let guest = Guest::get(Inside::Ntfs);
    let dir = scratch();
    let options = of(&guest.disk, dir.path().join("copy.raw"));
    let watcher = Watcher { stops: true, ..Watcher::default() };
    let error = copy::run(&options, &watcher).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert!(!options.target.exists());
    copy::run(&copy::Options { resume: true, ..options.clone() }, &Unwatched).unwrap();
    guest.check(&options.target);
}

#[test]
fn errors_are_told_apart_without_their_text() {
    let dir = scratch();
    let disk = dir.path().join("new.qcow2");
    let new = create::Options { disk: disk.clone(), size: 1 << 30, ..create::Options::default() };
    create::run(&new, &Unwatched).unwrap();
    let there = create::run(&new, &Unwatched).unwrap_err();
    assert_eq!(there.kind(), ErrorKind::Refused);
    let missing = info::Options { disk: dir.path().join("none"), ..info::Options::default() };
    assert_eq!(info::run(&missing).unwrap_err().kind(), ErrorKind::Io);

    std::fs::write(dir.path().join("torn.qcow2"), &std::fs::read(&disk).unwrap()[..100]).unwrap();
    let torn = info::Options { disk: dir.path().join("torn.qcow2"), ..info::Options::default() };
    assert_eq!(info::run(&torn).unwrap_err().kind(), ErrorKind::Corrupt);

    // What is refused as a whole has its document all the same.
    let empty = compact::Options { disk, dry_run: true, ..compact::Options::default() };
    let reported = compact::run(&empty, &Unwatched).unwrap();
    assert_eq!(reported.ended.unwrap_err().kind(), ErrorKind::Refused);
    assert!(to_json(&reported.document).contains("\"leandisk.compact/1\""));
}

/// Threads may share all of it.
#[test]
fn an_observer_and_a_disk_are_for_any_thread() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<OpenDisk>();
    is_shared::<Arc<dyn Observer>>();
    is_shared::<Arc<AtomicBool>>();
}
