//! What is to be done with a journal that was found.

use block::{Error, ErrorKind, ReadAt, Result};
use extent::{Host, HostSpan, Offset, Span, Virtual, VirtualSpan};
use xxhash_rust::xxh3::Xxh3;

use mutants::broken;

use crate::corrupt::Corrupt;
use crate::header::{DiskName, FileId, HEADER_BYTES, Header, witness_digest};
use crate::record::{Move, Patch, Record};

/// What is read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Enough of a record to know its length.
const RECORD_START_LEN: usize = 64;

/// Why there is nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// No record was ever whole: the volume is as it was before the first batch.
    NothingCommitted,
    /// All that the last whole record says was done: the volume is as it was after that batch.
    AllApplied {
        /// The record's number.
        sequence: u64,
    },
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Nothing; the journal can go.
    Nothing(Why),
    /// Write all patches as they are after, flush.
    Redo(Record),
    /// Write all patches as they are before, flush: the moved data did not arrive, though the storage said so, and
    /// are still where they were.
    Undo(Record),
}

/// Which disk, and which journal, they are that were found together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    /// The disk.
    pub disk: DiskName,
    /// The file that the journal is.
    pub journal: FileId,
}

/// How far the patches were applied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Applied {
    None,
    Partly,
    All,
}

/// Decides what is to be done. `Refused`, with the reason, if the file is no journal of this disk, if the disk is not as the
/// change left it, or if the journal is damaged and may have been needed; `Io` if something could not be read.
pub fn decide(journal: &dyn ReadAt<Host>, disk: &dyn ReadAt<Virtual>, claim: &Claim) -> Result<Decision> {
    let (header, digest) = match read_header(journal) {
        Err(_) if broken!(StrangerTakenForJournal) => {
            return Ok(Decision::Nothing(Why::NothingCommitted));
        }
        found => found?,
    };
    if disk.len_bytes() != header.virtual_bytes {
        let why = Error::refused("the journal belongs to another disk");
        return Err(why.field("size of the disk", disk.len_bytes(), header.virtual_bytes));
    }
    let names = header.names(&claim.disk, claim.journal);
    if names == Some(false) {
        return Err(of_another(&header));
    }
    let record = newest(journal, &header, digest)?;
    let applied = record.as_ref().map(|record| how_far(disk, record)).transpose();
    if names.is_none() && !is_shown_by_contents(&header, disk, record.as_ref(), applied.as_ref().ok())? {
        return Err(of_another(&header));
    }
    let (Some(record), Some(applied)) = (record, applied?) else {
        return Ok(Decision::Nothing(Why::NothingCommitted));
    };
    if let Applied::All = applied {
        return Ok(Decision::Nothing(Why::AllApplied { sequence: record.sequence }));
    }
    if witness_digest(disk, &header.witnesses)? != header.witness_digest {
        return Err(changed_since("the volume was used since the change in place was interrupted"));
    }
    if hold(disk, &record, Move::to_span)? {
        return Ok(Decision::Redo(record));
    }
    if !hold(disk, &record, |each| each.from)? {
        return Err(changed_since("neither the old nor the new places hold the data that was moved"));
    }
    match applied {
        // Such as a disk restored from an older copy, with a journal that was left.
        Applied::None => Ok(Decision::Nothing(Why::NothingCommitted)),
        _ => Ok(Decision::Undo(record)),
    }
}

/// The journal's header with its digest. `Refused` if it has none: a journal gets its name when its header is there, so that a
/// file without one is something else, or was damaged since.
pub fn read_header(journal: &dyn ReadAt<Host>) -> Result<(Header, [u8; 16])> {
    let len = journal.len_bytes().min(HEADER_BYTES);
    let mut bytes = vec![0; usize::try_from(len).expect("small")];
    journal.read_at(Offset::ZERO, &mut bytes)?;
    let header = match len {
        HEADER_BYTES => Header::from_bytes(&bytes),
        _ => Err(Error::corrupt(Corrupt::Length { len_bytes: len })),
    };
    header.map_err(|error| match error.kind() {
        ErrorKind::Unsupported => error.hint("finish it with the version of Leandisk that began it"),
        _ => Error::refused(format!("is no journal of Leandisk ({error})"))
            .hint("look at what it is, then remove it or give it another name")
            .because(error),
    })
}

/// What tells whose a journal is that does not name its disk: what a guest changes whenever it uses the volume is as it was, or
/// every byte that the record changes is one that it could have left.
fn is_shown_by_contents(
    header: &Header,
    disk: &dyn ReadAt<Virtual>,
    record: Option<&Record>,
    applied: Option<&Option<Applied>>,
) -> Result<bool> {
    if record.is_some_and(|record| !record.patches.is_empty()) && applied.is_some() {
        return Ok(true);
    }
    Ok(!header.witnesses.is_empty() && witness_digest(disk, &header.witnesses)? == header.witness_digest)
}

fn of_another(header: &Header) -> Error {
    match header.disk_path() {
        Some(path) => Error::refused(format!("the journal belongs to another disk: '{}'", path.display()))
            .hint("run 'leandisk recover' on that one; if it is gone, remove the journal"),
        None => Error::refused("the journal belongs to another disk, or this one was used since")
            .hint("remove the journal if the disk it belongs to is gone"),
    }
}

/// The whole record with the highest number.
fn newest(journal: &dyn ReadAt<Host>, header: &Header, digest: [u8; 16]) -> Result<Option<Record>> {
    let mut newest: Option<Record> = None;
    for slot in [0, 1] {
        let Some(bytes) = whole_record(journal, header.slot(slot), digest)? else { continue };
        let record = Record::from_bytes(&bytes, header.volume)
            .map_err(|error| Error::refused(format!("a record cannot be understood: {error}")))?;
        if newest.as_ref().is_none_or(|newest| newest.sequence < record.sequence) {
            newest = Some(record);
        }
    }
    Ok(newest)
}

/// The bytes of the slot's record, if all of it is there.
fn whole_record(journal: &dyn ReadAt<Host>, slot: HostSpan, digest: [u8; 16]) -> Result<Option<Vec<u8>>> {
    let there = Span::between(slot.start(), slot.end().min(Offset::new(journal.len_bytes())));
    if there.len_bytes() < RECORD_START_LEN as u64 {
        return Ok(None);
    }
    let mut start = [0; RECORD_START_LEN];
    journal.read_at(slot.start(), &mut start)?;
    let announced = Record::announced_len(&start, digest).filter(|len| *len <= there.len_bytes());
    let Some(len) = announced else { return Ok(None) };
    let mut bytes = vec![0; usize::try_from(len).expect("at most a slot")];
    journal.read_at(slot.start(), &mut bytes)?;
    Ok(Record::is_whole(&bytes).then_some(bytes))
}

/// How far the record was applied. `Refused` if a byte is neither what it was nor what it becomes: writes of the record
/// itself can leave no such byte, even in a torn sector.
fn how_far(disk: &dyn ReadAt<Virtual>, record: &Record) -> Result<Applied> {
    let (mut is_before, mut is_after) = (true, true);
    let mut found = Vec::new();
    for Patch { at, before, after } in &record.patches {
        found.resize(after.len(), 0);
        disk.read_at(*at, &mut found)?;
        is_before &= found == *before;
        is_after &= found == *after;
        let is_either = |index: &usize| found[*index] == before[*index] || found[*index] == after[*index];
        if let Some(other) = (0..found.len()).find(|index| !is_either(index)) {
            let why = changed_since("the volume was changed since the change in place was interrupted");
            return Err(why.at(at.plus(other as u64)));
        }
    }
    Ok(match (is_before, is_after) {
        (_, true) => Applied::All,
        (true, false) => Applied::None,
        (false, false) => Applied::Partly,
    })
}

fn changed_since(what: &str) -> Error {
    Error::refused(what)
        .hint("check the volume with its own tools, and restore it from a backup if they complain")
}

/// Whether the places that `place` picks hold the moved data.
fn hold(disk: &dyn ReadAt<Virtual>, record: &Record, place: impl Fn(&Move) -> VirtualSpan) -> Result<bool> {
    let mut buffer = Vec::new();
    for each in &record.moves {
        let mut hasher = Xxh3::new();
        for piece in place(each).split(PIECE_BYTES) {
            buffer.resize(usize::try_from(piece.len_bytes()).expect("at most 1 MiB"), 0);
            disk.read_at(piece.start(), &mut buffer)?;
            hasher.update(&buffer);
        }
        if hasher.digest128() != each.digest {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::tests::header;
    use crate::record::tests::patch;
    use block::{Memory, TargetFile};
    use xxhash_rust::xxh3::xxh3_128;

    const AT: usize = 20 << 10;
    const FROM: usize = 40 << 10;
    const TO: usize = 48 << 10;
    const DATA: [u8; 512] = [5; 512];

    /// A disk on which a record was committed, and its journal: header, record.
    fn interrupted() -> (Vec<u8>, Header, Record) {
        let mut disk = vec![0; 1 << 20];
        disk[FROM..FROM + 512].copy_from_slice(&DATA);
        disk[TO..TO + 512].copy_from_slice(&DATA);
        let memory = Memory::new(disk.clone());
        let header =
            Header { witness_digest: witness_digest(&memory, &header().witnesses).unwrap(), ..header() };
        let from = Span::new(Offset::new(FROM as u64), 512);
        let moves = vec![Move { from, to: Offset::new(TO as u64), digest: xxh3_128(&DATA) }];
        let patches = vec![patch(AT as u64, &[0; 1024], &[9; 1024])];
        (disk, header, Record { sequence: 3, moves, patches })
    }

    fn journal_of(header: &Header, records: &[&Record]) -> Vec<u8> {
        let bytes = header.to_bytes().unwrap();
        let (_, digest) = Header::from_bytes(&bytes).unwrap();
        let journal = Memory::new(bytes);
        for record in records {
            let bytes = record.to_bytes(digest).unwrap();
            TargetFile::write_at(&journal, header.slot(record.sequence).start(), &bytes).unwrap();
        }
        journal.to_vec()
    }

    fn decided(journal: &[u8], disk: &[u8]) -> Result<Decision, ErrorKind> {
        let owner = header().owner.unwrap();
        decided_by(journal, disk, &Claim { disk: owner.disk, journal: owner.journal })
    }

    fn decided_by(journal: &[u8], disk: &[u8], claim: &Claim) -> Result<Decision, ErrorKind> {
        decide(&Memory::new(journal.to_vec()), &Memory::new(disk.to_vec()), claim)
            .map_err(|error| error.kind())
    }

    #[test]
    fn each_row_of_the_table() {
        let (disk, header, record) = interrupted();
        let journal = journal_of(&header, &[&record]);
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut changed = disk.clone();
            change(&mut changed);
            decided(&journal, &changed)
        };
        let nothing = Ok(Decision::Nothing(Why::NothingCommitted));
        let redo = Ok(Decision::Redo(record.clone()));
        let half = |disk: &mut Vec<u8>| disk[AT + 100..AT + 700].fill(9);
        assert_eq!(with(&|_| {}), redo, "not applied");
        assert_eq!(with(&half), redo, "applied in part, sectors torn");
        let all = Ok(Decision::Nothing(Why::AllApplied { sequence: 3 }));
        assert_eq!(with(&|disk| disk[AT..AT + 1024].fill(9)), all);
        assert_eq!(with(&|disk| disk[AT + 5] = 1), Err(ErrorKind::Refused), "neither before nor after");
        assert_eq!(with(&|disk| disk[4100] = 1), Err(ErrorKind::Refused), "a witness");
        assert_eq!(with(&|disk| disk[TO] = 1), nothing, "no data there, but nothing applied");
        let undo = with(&|disk| {
            half(disk);
            disk[TO] = 1;
        });
        assert_eq!(undo, Ok(Decision::Undo(record.clone())));
        let lost = with(&|disk| {
            half(disk);
            disk[TO] = 1;
            disk[FROM] = 1;
        });
        assert_eq!(lost, Err(ErrorKind::Refused));
        assert_eq!(with(&|disk| disk.truncate(1 << 19)), Err(ErrorKind::Refused), "another disk");
        assert_eq!(decided(&journal_of(&header, &[]), &disk), nothing);
    }

    #[test]
    fn what_is_no_journal_is_refused_whatever_its_length() {
        let (disk, header, record) = interrupted();
        for (at, kind) in [(0, ErrorKind::Refused), (8, ErrorKind::Unsupported), (100, ErrorKind::Refused)] {
            for records in [&[][..], &[&record]] {
                let mut damaged = journal_of(&header, records);
                damaged[at] ^= 0x80;
                assert_eq!(decided(&damaged, &disk), Err(kind), "byte {at}");
            }
        }
        for len in [0, 1, 95, 96, 4096, 16_383, 16_384, 20_000, 1 << 20] {
            assert_eq!(decided(&vec![0; len], &disk), Err(ErrorKind::Refused), "{len} zeros");
            assert_eq!(decided(&vec![b'k'; len], &disk), Err(ErrorKind::Refused), "{len} letters");
        }
        let whole = journal_of(&header, &[]);
        assert_eq!(decided(&whole[..200], &disk), Err(ErrorKind::Refused), "cut off");
    }

    /// A disk that the journal does not name, for each kind of journal: with a record, with a header alone.
    #[test]
    fn a_journal_of_another_disk_is_refused() {
        let (disk, header, record) = interrupted();
        let owner = header.owner.clone().unwrap();
        let other = DiskName { file: FileId { device: 9, inode: 9 }, path: "/other".into(), ..owner.disk };
        let original = Claim { disk: other.clone(), journal: owner.journal };
        // A copy of both, made together, is recovered by itself.
        let copy = Claim { disk: other, journal: FileId { device: 9, inode: 10 } };
        let old = Header { owner: None, ..header.clone() };
        let mut used = disk.clone();
        used[4100] = 1;
        for records in [&[][..], &[&record]] {
            let journal = journal_of(&header, records);
            assert_eq!(decided_by(&journal, &disk, &original), Err(ErrorKind::Refused));
            assert!(decided_by(&journal, &disk, &copy).is_ok(), "a copy");
            assert!(decided_by(&journal_of(&old, records), &disk, &copy).is_ok(), "version 1");
            for journal in [&journal, &journal_of(&old, records)] {
                let found = decided_by(journal, &used, &copy);
                assert_eq!(found, Err(ErrorKind::Refused), "neither a name nor contents");
            }
        }
        let bare = Header { witnesses: Vec::new(), ..header };
        assert!(decided(&journal_of(&bare, &[]), &disk).is_ok());
        let found = decided_by(&journal_of(&bare, &[]), &disk, &copy);
        assert_eq!(found, Err(ErrorKind::Refused), "nothing in it shows whose it is");
    }

    #[test]
    fn the_newest_whole_record_of_this_journal_counts() {
        let (disk, header, third) = interrupted();
        let fourth =
            Record { sequence: 4, patches: vec![patch(AT as u64, &[0; 512], &[8; 512])], ..third.clone() };
        let journal = journal_of(&header, &[&third, &fourth]);
        assert_eq!(decided(&journal, &disk), Ok(Decision::Redo(fourth)));
        let mut torn = journal.clone();
        torn[usize::try_from(HEADER_BYTES).unwrap() + 200] ^= 1;
        assert_eq!(decided(&torn, &disk), Ok(Decision::Redo(third.clone())));
        let mut cut_off = journal_of(&header, &[&third]);
        cut_off.pop();
        assert_eq!(decided(&cut_off, &disk), Ok(Decision::Nothing(Why::NothingCommitted)));
        // A record of another journal in the same place.
        let mut other = journal_of(&Header { virtual_bytes: 2 << 20, ..header.clone() }, &[&third]);
        let len = usize::try_from(HEADER_BYTES).unwrap();
        other[..len].copy_from_slice(&header.to_bytes().unwrap());
        assert_eq!(decided(&other, &disk), Ok(Decision::Nothing(Why::NothingCommitted)));
    }
}
