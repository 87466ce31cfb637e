//! Images as they are laid on the host, brought back to what they were, and forgotten by the page cache.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use block::{Error, Result};
use engine::JobMonitor;
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};

const PART_BYTES: u64 = 1 << 20;
/// More files than that are not made to find one.
const NEIGHBOURS_MAX: u64 = 16;

/// What of a file holds data: starts and lengths.
fn data_of(file: &mut File, len: u64) -> std::io::Result<Vec<(u64, u64)>> {
    let mut data = Vec::new();
    let mut at = 0;
    while at < len {
        let found = match rustix::fs::seek(&*file, rustix::fs::SeekFrom::Data(at)) {
            Err(rustix::io::Errno::NXIO) => break,
            found => found?,
        };
        let end = rustix::fs::seek(&*file, rustix::fs::SeekFrom::Hole(found))?;
        data.push((found, end - found));
        at = end;
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(data)
}

/// Copies a thin image to a new file. In pieces of `piece_bytes`, if that is given: another file grows beside it, and goes.
pub(super) fn lay_out(
    source: &Path,
    target: &Path,
    piece_bytes: Option<u64>,
    monitor: &dyn JobMonitor,
) -> Result<()> {
    let failed = |error: std::io::Error| Error::io("copy", error).path(target.display());
    let mut from = File::open(source).map_err(failed)?;
    let len = from.metadata().map_err(failed)?.len();
    let data = data_of(&mut from, len).map_err(failed)?;
    let to = OpenOptions::new().read(true).write(true).create_new(true).open(target).map_err(failed)?;
    to.set_len(len).map_err(failed)?;
    if let Some(piece_bytes) = piece_bytes {
        scatter(&to, target, &data, piece_bytes)?;
    }
    for (start, len) in data {
        each_part(start, len, monitor, |at, part| {
            from.read_exact_at(part, at)?;
            to.write_all_at(part, at)
        })
        .map_err(|error| error.path(target.display()))?;
    }
    to.sync_all().map_err(failed)
}

/// Takes room for the data piece by piece, with a piece of another file between any two. Which file gets room where this one does is the host's
/// choice (ext4 goes on where it last gave room to any of some files): others are tried until most pieces lie apart.
fn scatter(to: &File, target: &Path, data: &[(u64, u64)], piece_bytes: u64) -> Result<()> {
    let failed = |error: std::io::Error| Error::io("scatter", error).path(target.display());
    let len = to.metadata().map_err(failed)?.len();
    let wanted: u64 = data.iter().map(|(_, len)| len.div_ceil(piece_bytes)).sum();
    let names: Vec<_> =
        (0..NEIGHBOURS_MAX).map(|number| target.with_extension(format!("beside-{number}"))).collect();
    let mut done = Ok(());
    for name in &names {
        done = File::create_new(name).and_then(|beside| {
            to.set_len(0)?;
            to.set_len(len)?;
            take_turns(to, &beside, data, piece_bytes)
        });
        let extents = crate::images::on_host(target)?.extents;
        if done.is_err() || extents.is_none_or(|count| count > wanted / 2) {
            break;
        }
        // It goes last, so that the next one is another file to the host.
        let _ = OpenOptions::new().write(true).open(name).and_then(|file| file.set_len(0));
    }
    for name in names.iter().filter(|name| name.exists()) {
        fs::remove_file(name).map_err(failed)?;
    }
    done.map_err(failed)
}

fn take_turns(to: &File, beside: &File, data: &[(u64, u64)], piece_bytes: u64) -> std::io::Result<()> {
    let mut beside_at = 0;
    for &(start, len) in data {
        let mut at = start;
        while at < start + len {
            let bytes = piece_bytes.min(start + len - at);
            fallocate(to, FallocateFlags::empty(), at, bytes)?;
            fallocate(beside, FallocateFlags::empty(), beside_at, bytes)?;
            at += bytes;
            beside_at += bytes;
        }
    }
    Ok(())
}

/// Makes `work` what `pristine` is. What is the same stays where it is.
pub(super) fn restore(pristine: &Path, work: &Path, monitor: &dyn JobMonitor) -> Result<()> {
    let failed = |error: std::io::Error| Error::io("bring back", error).path(work.display());
    let mut from = File::open(pristine).map_err(failed)?;
    let to = OpenOptions::new().read(true).write(true).open(work).map_err(failed)?;
    let len = from.metadata().map_err(failed)?.len();
    let data = data_of(&mut from, len).map_err(failed)?;
    let mut hole = 0;
    let mut found = vec![0; usize::try_from(PART_BYTES).unwrap_or(1 << 20)];
    for (start, len) in data.into_iter().chain([(len, 0)]) {
        if start > hole {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&to, punch, hole, start - hole).map_err(|error| failed(error.into()))?;
        }
        hole = start + len;
        each_part(start, len, monitor, |at, part| {
            from.read_exact_at(part, at)?;
            let found = &mut found[..part.len()];
            to.read_exact_at(found, at)?;
            if found == part { Ok(()) } else { to.write_all_at(part, at) }
        })
        .map_err(|error| error.path(work.display()))?;
    }
    to.sync_all().map_err(failed)
}

fn each_part(
    start: u64,
    len: u64,
    monitor: &dyn JobMonitor,
    mut with: impl FnMut(u64, &mut [u8]) -> std::io::Result<()>,
) -> Result<()> {
    let mut part = vec![0; usize::try_from(PART_BYTES.min(len)).unwrap_or(1 << 20)];
    let mut at = start;
    while at < start + len {
        if monitor.is_cancelled() {
            return Err(Error::interrupted());
        }
        let bytes = usize::try_from(start + len - at).unwrap_or(usize::MAX).min(part.len());
        with(at, &mut part[..bytes]).map_err(|error| Error::io("copy", error))?;
        at += bytes as u64;
    }
    Ok(())
}

/// Has the page cache forget it.
pub(super) fn forget_cached(path: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::io("empty the cache of", error).path(path.display());
    let file = File::open(path).map_err(failed)?;
    file.sync_data().map_err(failed)?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| failed(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Content;

    struct Nobody;
    impl JobMonitor for Nobody {
        fn advanced(&self, _: u64, _: u64) {}
        fn is_cancelled(&self) -> bool {
            false
        }
    }

    fn image(path: &Path) {
        let file = File::create_new(path).unwrap();
        file.set_len(8 << 20).unwrap();
        let mut content = Content::new(1 << 20, 1);
        file.write_all_at(content.next(1 << 20), 0).unwrap();
        file.write_all_at(content.next(300_000), 5 << 20).unwrap();
        file.sync_all().unwrap();
    }

    #[test]
    fn a_copy_in_pieces_is_in_pieces_and_is_brought_back_to_what_it_was() {
        let dir = testkit::scratch();
        let [pristine, whole, pieces] = ["a", "b", "c"].map(|name| dir.path().join(name));
        image(&pristine);
        lay_out(&pristine, &whole, None, &Nobody).unwrap();
        lay_out(&pristine, &pieces, Some(64 << 10), &Nobody).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        let extents = |path: &Path| crate::images::on_host(path).unwrap().extents.unwrap_or(0);
        assert!(extents(&pieces) > extents(&whole) + 8, "{} and {}", extents(&pieces), extents(&whole));
        let expected = fs::read(&pristine).unwrap();
        assert_eq!(fs::read(&pieces).unwrap(), expected);
        // A guest writes where data were, and where none were.
        let file = OpenOptions::new().write(true).open(&pieces).unwrap();
        file.write_all_at(&[1; 5000], 100_000).unwrap();
        file.write_all_at(&[1; 5000], 3 << 20).unwrap();
        let allocated = crate::images::on_host(&whole).unwrap().allocated_bytes;
        restore(&pristine, &pieces, &Nobody).unwrap();
        forget_cached(&pieces).unwrap();
        assert_eq!(fs::read(&pieces).unwrap(), expected);
        assert!(crate::images::on_host(&pieces).unwrap().allocated_bytes <= allocated + (64 << 10));
    }
}
