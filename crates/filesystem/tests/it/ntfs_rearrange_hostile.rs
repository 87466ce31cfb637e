//! Moving files of damaged NTFS volumes: an error, or a volume that is as consistent as before, and nothing worse.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use crate::ntfs_volumes::{AsVolume, Made, attribute_at, make, open_source, record_at, u16_at};
use block::{Error, ErrorKind, HostFile, Memory, ReadAt, Result, TargetFile};
use extent::{HostOffset, Offset, Span, Volume, VolumeOffset, VolumeSpan};
use filesystem::ntfs::Corrupt;
use filesystem::{
    FileExtent, FileId, FileStream, Mobility, Rearrange, Relocation, Relocations, Source, StreamVisitor,
};
use testkit::{TimeLimit, check_hostile, noise};

/// Takes the first extents that may move to the first room there is.
#[derive(Default)]
struct Chooser {
    moves: Vec<Relocation>,
    room: Vec<VolumeSpan>,
    files: Vec<FileId>,
}

impl StreamVisitor for Chooser {
    fn stream(&mut self, stream: FileStream<'_>, extents: &[FileExtent], mobility: Mobility) {
        assert!(!extents.is_empty(), "a stream with extents");
        if mobility.stays().is_some() || self.moves.len() > 400 {
            return;
        }
        let len_bytes = extents.iter().map(|extent| extent.span.len_bytes()).sum();
        let Some(room) = self.room.iter_mut().find(|room| room.len_bytes() >= len_bytes) else { return };
        let mut to = room.start();
        *room = Span::between(to.plus(len_bytes), room.end());
        for extent in extents {
            self.moves.push(Relocation { from: extent.span, to, file: stream.file });
            to = to.plus(extent.span.len_bytes());
        }
        self.files.push(stream.file);
    }
}

fn choose(rearrange: &dyn Rearrange) -> Result<Relocations> {
    let mut chooser = Chooser::default();
    rearrange.each_room(&mut |span| chooser.room.push(span))?;
    rearrange.each_stream(&mut chooser)?;
    Relocations::new(chooser.moves)
}

/// All that can be asked of a volume.
fn use_all(source: &Source) -> Result<()> {
    let Some(filesystem) = filesystem::ntfs::open(source)? else { return Ok(()) };
    let rearrange = filesystem.rearrange()?;
    let relocations = Arc::new(choose(&*rearrange)?);
    for span in rearrange.witnesses(&[]).unwrap() {
        assert!(span.end().get() <= source.len_bytes());
    }
    rearrange.edits(source, &relocations)?;
    let rewritten = rearrange.rewritten(relocations)?;
    for place in rewritten.places().iter() {
        let mut buf = vec![0; usize::try_from(place.len_bytes()).unwrap()];
        rewritten.read_at(place.start(), &mut buf)?;
    }
    Ok(())
}

fn check_kind(what: &str, error: &Error) {
    let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported, ErrorKind::Refused, ErrorKind::Invalid];
    assert!(kinds.contains(&error.kind()), "{what}: {error:?}");
}

/// A small volume, one file of which has an attribute list that is in clusters.
fn small() -> (Made, u64) {
    let made = make(4, &["-c", "512"]);
    let mounted = made.mount("");
    for index in 0..40 {
        fs::write(mounted.dir.join(format!("a rather long file name {index}")), noise(index, 1500)).unwrap();
    }
    let path = mounted.dir.join("pieces");
    let file = File::create(&path).unwrap();
    for index in 0..2000 {
        file.write_all_at(&noise(index, 512), index * 1024).unwrap();
    }
    let number = std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    drop((file, mounted));
    (made, number)
}

#[test]
fn a_good_volume_moves() {
    let (made, number) = small();
    let bytes = made.bytes();
    let list = attribute_at(&bytes, number, 0x20);
    assert_eq!(bytes[list + 8], 1, "a list in clusters");
    use_all(&(Arc::new(Memory::new(bytes)) as Source)).unwrap();
}

#[test]
fn damaged_boot_sectors_are_errors_and_nothing_worse() {
    let bytes = make(2, &[]).bytes();
    check_hostile(&bytes, 0x60, |file: Arc<dyn HostFile>| {
        use_all(&(Arc::new(AsVolume(file)) as Source)).map_err(|error| {
            check_kind("damaged", &error);
            Error::corrupt(error.to_string())
        })
    });
}

/// Damages the records one field at a time, and calls `try_one` for each.
fn damage(good: &[u8], numbers: &[u64], mut try_one: impl FnMut(&Arc<Memory>, &str)) {
    let memory = Arc::new(Memory::new(good.to_vec()));
    for number in numbers {
        let record = record_at(good, *number);
        // Fields of the head and of the attributes; values and lists take what comes.
        for at in (record..record + 504).step_by(4) {
            for value in [0u32, 1, 0xffff, 0x7fff_ffff] {
                let host = HostOffset::new(at as u64);
                memory.write_at(host, &value.to_le_bytes()).unwrap();
                let limit = TimeLimit::of(Duration::from_secs(5));
                let what = format!("{value:#x} at {:#x} of record {number}", at - record);
                try_one(&memory, &what);
                limit.check(&what);
                memory.write_at(host, &good[at..at + 4]).unwrap();
            }
        }
    }
}

#[test]
fn damaged_records_are_errors_and_nothing_worse() {
    let (made, number) = small();
    let good = made.bytes();
    damage(&good, &[0, 1, 5, 6, number], |memory, what| {
        if let Err(error) = use_all(&(memory.clone() as Source)) {
            check_kind(what, &error);
        }
    });
}

/// The volume was good when it was opened, and is damaged when the edits are asked for: they are an error, or begin from what
/// is there now.
#[test]
fn records_that_changed_since_are_errors_or_read_anew() {
    let (made, number) = small();
    let good = made.bytes();
    let rearrange = open_source(Arc::new(Memory::new(good.clone()))).rearrange().unwrap();
    let relocations = choose(&*rearrange).unwrap();
    assert!(relocations.files().contains(&FileId(number)), "{:?}", relocations.files());
    let bitmap = {
        let data = attribute_at(&good, 6, 0x80);
        let list = data + u16_at(&good, data + 32);
        // One run: a length of one byte, and a cluster of one or two.
        let lcn = (0..usize::from(good[list] >> 4)).map(|at| usize::from(good[list + 2 + at]) << (8 * at));
        lcn.sum::<usize>() * 512
    };
    let mut refused = 0;
    damage(&good, &[number, number + 1, number + 2], |memory, what| {
        match rearrange.edits(&**memory, &relocations) {
            Ok(edits) => {
                for patch in edits.patches {
                    let mut before = vec![0; patch.before.len()];
                    memory.read_at(patch.at, &mut before).unwrap();
                    assert_eq!(before, patch.before, "{what}");
                }
            }
            Err(error) => {
                refused += 1;
                check_kind(what, &error);
            }
        }
    });
    assert!(refused > 400, "{refused}");
    // A bit of $Bitmap the other way: where something goes, and where something comes from.
    for relocation in relocations.by_source().step_by(7) {
        for place in [relocation.from.start(), relocation.to] {
            let cluster = usize::try_from(place.get() / 512).unwrap();
            let mut bytes = good.clone();
            bytes[bitmap + cluster / 8] ^= 1 << (cluster % 8);
            let error = rearrange.edits(&Memory::new(bytes), &relocations).unwrap_err();
            assert!(matches!(error.cause(), Some(Corrupt::ClusterMarked { .. })), "{error}");
        }
    }
}

/// A disk that fails.
struct Failing(Arc<Memory>, VolumeSpan);

impl ReadAt<Volume> for Failing {
    fn len_bytes(&self) -> u64 {
        ReadAt::<Volume>::len_bytes(&*self.0)
    }

    fn read_at(&self, at: VolumeOffset, buf: &mut [u8]) -> Result<()> {
        if Span::new(at, buf.len() as u64).intersect(&self.1).is_some() {
            return Err(Error::io("test volume", std::io::Error::other("bad sector")));
        }
        self.0.read_at(at, buf)
    }
}

#[test]
fn reads_that_fail_are_errors_of_the_machine() {
    let (made, number) = small();
    let good = Arc::new(Memory::new(made.bytes()));
    let rearrange = open_source(good.clone()).rearrange().unwrap();
    let relocations = choose(&*rearrange).unwrap();
    let bad = Span::new(Offset::new(record_at(&made.bytes(), number) as u64), 512);
    let error = rearrange.edits(&Failing(good.clone(), bad), &relocations).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    let opened = open_source(Arc::new(Failing(good, bad)));
    assert_eq!(opened.rearrange().map(drop).unwrap_err().kind(), ErrorKind::Io);
}
