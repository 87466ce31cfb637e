//! What the fuzz targets do with their bytes: open, map, and read windows, as the program would.
//!
//! A failure is a panic, a timeout, too much memory, an answer that breaks the contract, or an error that is not the
//! input's fault.
//!
//! An input is a sparse file, so that what lies gigabytes into an image can be mutated, and seeds made from real
//! images stay small: see [`sparse`].

mod appliance;
mod client;
mod coordinate;
mod devices;
mod files;
mod lvm;
mod remote;
mod repository;
pub mod sparse;

use std::sync::Arc;

pub use self::appliance::appliance;
pub use self::coordinate::coordinate;
use block::{Disk, Error, ErrorKind, HostFile, Memory, ReadAt, Result};
pub use client::nbd;
pub use devices::btrfs;
use extent::{Offset, Span, Volume};
use filesystem::{Check, FileSystem, Source};
use image::{Chain, Format, OpenOptions, Purpose, Resolver};
pub use lvm::lvm;
pub use remote::remote;
pub use repository::repository;
use sparse::unpack;

/// The most windows that are mapped and read.
const WINDOW_COUNT_MAX: usize = 24;
const WINDOW_BYTES: u64 = 64 << 10;

/// Opens no other file.
struct NoFiles;

impl Resolver for NoFiles {
    fn open(&self, _from: &dyn HostFile, _name: &str, _purpose: Purpose) -> Result<Arc<dyn HostFile>> {
        Err(Error::refused("no other file is granted"))
    }
}

/// Opens `data` as an image of `format`; maps and reads it.
pub fn image(format: Format, data: &[u8]) {
    let file = Arc::new(Memory::new(unpack(data)));
    accept(
        Chain::open(file, OpenOptions { format: Some(format) }, &NoFiles).and_then(|chain| use_disk(&chain)),
    );
}

fn use_disk(chain: &Chain) -> Result<()> {
    let len_bytes = chain.len_bytes();
    for window in windows(len_bytes) {
        let span = Span::new(Offset::new(window.0), window.1);
        let mut at = span.start();
        for run in chain.map(span)? {
            assert_eq!(run.span.start(), at, "runs follow each other");
            at = run.span.end();
        }
        assert_eq!(at, span.end(), "runs cover what was asked");
        if chain.check_readable().is_ok() {
            let mut buf = vec![0; usize::try_from(window.1).expect("a small window")];
            chain.read_at(span.start(), &mut buf)?;
        }
    }
    Ok(())
}

/// Reads `data` as a disk with a partition table of either sector size.
pub fn partition_table(data: &[u8]) {
    let disk = Memory::new(unpack(data));
    let len_bytes = ReadAt::<extent::Virtual>::len_bytes(&disk);
    for sector_bytes in [512, 4096] {
        accept(volume::read(&disk, sector_bytes).map(|table| {
            let mut end = 0;
            for partition in &table.partitions {
                assert!(
                    !partition.span.is_empty() && partition.span.start().get() >= end,
                    "in order, disjoint"
                );
                end = partition.span.end().get();
            }
            assert!(end <= len_bytes, "on the disk");
            assert!(table.doubt.is_none() || table.partitions.is_empty(), "a doubted table lists nothing");
        }));
    }
}

/// Opens `data` as a volume, lists its files, and asks for its used map.
pub fn filesystem(open: fn(&Source) -> Result<Option<Box<dyn FileSystem>>>, data: &[u8]) {
    let memory = Memory::new(unpack(data));
    let len_bytes = ReadAt::<Volume>::len_bytes(&memory);
    let source: Source = Arc::new(memory);
    if let Some(filesystem) = accept(open(&source)).flatten() {
        use_filesystem(&*filesystem, len_bytes);
        if let Some(joined) = accept(filesystem.log_joined()).flatten() {
            use_filesystem(&*joined, len_bytes);
        }
    }
}

/// Lists the files of a volume of so many bytes, and asks for its used map.
pub(crate) fn use_filesystem(filesystem: &dyn FileSystem, len_bytes: u64) {
    accept(files::list(filesystem, len_bytes));
    for check in [Check::Quick, Check::Full] {
        let Some(map) = accept(filesystem.used_map(check)) else { continue };
        assert!(filesystem.facts().state.doubt().is_none(), "a map in spite of a doubt");
        for (start, len) in windows(len_bytes) {
            let span = Span::new(Offset::new(start), len);
            let Some(uses) = accept(map.uses(span)) else { break };
            let mut at = span.start();
            for extent in uses {
                assert_eq!(extent.span.start(), at, "uses follow each other");
                at = extent.span.end();
            }
            assert_eq!(at, span.end(), "uses cover what was asked");
        }
    }
}

/// Starts and lengths of windows all over `len_bytes`, the last byte's included.
fn windows(len_bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let step = (len_bytes / WINDOW_COUNT_MAX as u64).max(WINDOW_BYTES);
    let spread = (0..WINDOW_COUNT_MAX as u64).map_while(move |index| {
        let start = index.checked_mul(step).filter(|start| *start < len_bytes)?;
        Some((start, WINDOW_BYTES.min(len_bytes - start)))
    });
    let tail = len_bytes.min(4097);
    spread.chain([(len_bytes - tail, tail)])
}

/// The value, or nothing for an error that is the input's fault.
fn accept<T>(result: Result<T>) -> Option<T> {
    result
        .inspect_err(|error| {
            assert!(
                matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Refused),
                "not the input's fault: {error:?}"
            );
        })
        .ok()
}
