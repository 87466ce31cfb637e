//! The proof of what `compact` did: all that is kept lies where it did, or where it was moved to, and the host has it all.
//!
//! Two questions, asked before and after. Where the image says that it lies: that is compared byte for byte. And whether the
//! host gave back storage of it: of that, what was written counts ([`HostFile::stored`]), and not what the host calls data, since
//! storage that was only reserved is data there for as long as a page of it is in the cache.
//!
//! [`HostFile::stored`]: block::HostFile::stored

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use block::{Disk, Error, HostFile, Result, Run, RunState};
use extent::{ExtentSet, Host, HostOffset, HostSpan, PackedExtents, Span, Virtual};
use image::Chain;
use plan::shorten::Moved;

/// Where all that is kept lay, and what the host had of it.
pub(crate) struct Places {
    digest: u64,
    /// By file; `None` where the host's file system does not tell.
    stored: Vec<Option<ExtentSet<Host>>>,
}

impl Places {
    /// As of now.
    pub(crate) fn of(chain: &Chain, kept: &PackedExtents<Virtual>) -> Result<Self> {
        let moved = Moved::new(Vec::new(), 1);
        let digest = digest(chain, kept, &moved)?;
        Ok(Self { digest, stored: stored(chain)? })
    }

    /// `Mismatch` unless `chain`, the same disk after some of it was `moved`, has everything still. `zeroed` is what of each file was
    /// made zeros and not written since.
    pub(crate) fn check(
        &self,
        chain: &Chain,
        kept: &PackedExtents<Virtual>,
        moved: &Moved,
        zeroed: &[ExtentSet<Host>],
    ) -> Result<()> {
        let name = chain.files()[0].name();
        if digest(chain, kept, moved)? != self.digest {
            return Err(Error::mismatch("what the guest uses does not lie where it should").path(name));
        }
        let now = stored(chain)?;
        for span in kept.iter() {
            for run in chain.map(span)? {
                let mut before = Vec::new();
                moved.push_back(&run, &mut before);
                for part in before {
                    let Some((file, place)) = place(&part) else { continue };
                    let skipped = part.span.start().get() - run.span.start().get();
                    let Some((_, start)) = self::place(&run) else { continue };
                    let to = start.start().plus(skipped);
                    let lost = match (&self.stored[file], &now[file]) {
                        (Some(before), Some(after)) => lost(before, place, after, to),
                        // What was moved was compared in its new place by who moved it.
                        _ if place.start() == to => {
                            zeroed[file].within(place).next().map(|span| span.start())
                        }
                        _ => None,
                    };
                    if let Some(at) = lost {
                        let error = Error::mismatch("storage of what the guest uses was given back");
                        return Err(error.path(chain.files()[file].name()).at(at));
                    }
                }
            }
        }
        Ok(())
    }
}

fn stored(chain: &Chain) -> Result<Vec<Option<ExtentSet<Host>>>> {
    chain.files().iter().map(HostFile::stored).collect()
}

/// The file, and the place in it.
fn place(run: &Run) -> Option<(usize, HostSpan)> {
    match run.state {
        RunState::Hole | RunState::Zero => None,
        RunState::Data { file, offset } => Some((file.0 as usize, Span::new(offset, run.span.len_bytes()))),
        RunState::Compressed { file, offset, len_bytes } => {
            Some((file.0 as usize, Span::new(offset, len_bytes)))
        }
    }
}

/// Where something that was stored in `place` before is not stored now that it lies at `to`.
fn lost(
    before: &ExtentSet<Host>,
    place: HostSpan,
    after: &ExtentSet<Host>,
    to: HostOffset,
) -> Option<HostOffset> {
    before.within(place).find_map(|part| {
        let part = Span::new(to.plus(part.start().get() - place.start().get()), part.len_bytes());
        after.invert(part).iter().next().map(|hole| hole.start())
    })
}

/// Where the image says that everything lies that is kept, or lay before it was moved.
fn digest(chain: &Chain, kept: &PackedExtents<Virtual>, moved: &Moved) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for span in kept.iter() {
        let mut runs = Vec::new();
        for run in chain.map(span)? {
            moved.push_back(&run, &mut runs);
        }
        for run in runs {
            (run.span.start().get(), run.span.len_bytes()).hash(&mut hasher);
            match run.state {
                RunState::Hole | RunState::Zero => 0u8.hash(&mut hasher),
                RunState::Data { file, offset } => (1u8, file.0, offset.get()).hash(&mut hasher),
                RunState::Compressed { file, offset, len_bytes } => {
                    (2u8, file.0, offset.get(), len_bytes).hash(&mut hasher);
                }
            }
        }
    }
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(spans: &[(u64, u64)]) -> ExtentSet<Host> {
        spans
            .iter()
            .map(|(start, end)| Span::between(HostOffset::new(*start), HostOffset::new(*end)))
            .collect()
    }

    struct NoOthers;

    impl image::Resolver for NoOthers {
        fn open(
            &self,
            _from: &dyn HostFile,
            name: &str,
            _purpose: image::Purpose,
        ) -> Result<std::sync::Arc<dyn HostFile>> {
            Err(Error::refused(name))
        }
    }

    /// Of a file of 4 MiB the first is data, the second reserved, the third data, the fourth a hole.
    #[test]
    #[allow(clippy::unwrap_used)]
    fn only_what_was_written_can_be_lost() {
        use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
        use std::os::unix::fs::FileExt;
        const MIB: u64 = 1 << 20;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for filesystem in ["ext4", "xfs", "btrfs"] {
            let host = testkit::HostMount::new(filesystem, 400 * MIB);
            let path = host.path().join("disk.raw");
            let file = std::fs::File::create_new(&path).unwrap();
            file.set_len(4 * MIB).unwrap();
            fallocate(&file, FallocateFlags::empty(), 0, 3 * MIB).unwrap();
            for at in [0, 2 * MIB] {
                file.write_all_at(&[7; 1 << 20], at).unwrap();
            }
            let open = || {
                let source = os::SourceFile::open(&path).unwrap();
                Chain::open(source, image::OpenOptions::default(), &NoOthers).unwrap()
            };
            // What is reserved is read into the cache: until it leaves, it counts as data.
            std::fs::read(&path).unwrap();
            let mut kept = PackedExtents::new();
            for run in open().map_with_host(Span::from_zero(4 * MIB)).unwrap() {
                if matches!(run.state, RunState::Data { .. }) {
                    kept.push(run.span);
                }
            }
            let before = Places::of(&open(), &kept).unwrap();
            let check = || before.check(&open(), &kept, &Moved::new(Vec::new(), 1), &[ExtentSet::new()]);
            file.sync_all().unwrap();
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            check().unwrap();
            // The reserved part given back is no loss, a page of the data is.
            fallocate(&file, punch, MIB, MIB).unwrap();
            check().unwrap();
            fallocate(&file, punch, 2 * MIB + 65_536, 65_536).unwrap();
            let error = check().unwrap_err();
            assert_eq!(error.kind(), block::ErrorKind::Mismatch, "{filesystem}: {error}");
        }
    }

    #[test]
    fn what_was_stored_and_is_not_is_lost() {
        let before = set(&[(0, 100), (200, 300)]);
        let place = Span::new(HostOffset::new(50), 200);
        let found = |after: &[(u64, u64)], to: u64| {
            lost(&before, place, &set(after), HostOffset::new(to)).map(HostOffset::get)
        };
        // 50 to 100 and 200 to 250 were stored.
        assert_eq!(found(&[(0, 1000)], 50), None);
        assert_eq!(found(&[(50, 100), (200, 250)], 50), None, "the hole between them is none of ours");
        assert_eq!(found(&[(50, 99), (200, 250)], 50), Some(99));
        assert_eq!(found(&[(50, 100)], 50), Some(200));
        // Moved by 1000.
        assert_eq!(found(&[(1050, 1100), (1200, 1250)], 1050), None);
        assert_eq!(found(&[(50, 100), (200, 250)], 1050), Some(1050));
        assert_eq!(found(&[], 50), Some(50));
    }
}
