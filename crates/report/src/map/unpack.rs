//! Reads what `pack.rs` writes, as the page's script does: for tests alone.

use extent::{Offset, VirtualSpan};

use super::model::{
    DiskMap, MapLayer, MapOwner, MapOwners, MapPiece, MapRun, MapVolume, OwnerId, PieceClass,
};

/// Numbers and texts, one after the other.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (byte, rest) = self.0.split_first().unwrap();
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }

    fn column(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.number()).collect()
    }

    fn count(&mut self) -> usize {
        self.number().try_into().unwrap()
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let (bytes, rest) = self.0.split_at(len.try_into().unwrap());
        self.0 = rest;
        bytes.to_vec()
    }

    fn text(&mut self) -> String {
        let len = self.number();
        String::from_utf8(self.bytes(len)).unwrap()
    }
}

fn unzigzag(value: u64) -> u64 {
    value >> 1 ^ 0u64.wrapping_sub(value & 1)
}

/// The disk that the bytes tell, without how many files lack a name.
pub(super) fn decoded(bytes: &[u8]) -> DiskMap {
    let mut reader = Reader(bytes);
    let title = reader.text();
    let virtual_bytes = reader.number();
    let shift = reader.number();
    let _cells_and_unnamed = reader.column(2);
    let span = |start: u64, len: u64| VirtualSpan::new(Offset::new(start << shift), len << shift);
    let volume_count = reader.count();
    let mut volumes = Vec::new();
    for _ in 0..volume_count {
        let index = reader.count();
        let span = span(reader.number(), reader.number());
        let (filesystem, label) = (Some(reader.text()), Some(reader.text()));
        volumes.push(MapVolume { index, span, filesystem, label });
    }
    let count = reader.count();
    let columns: Vec<_> = (0..6).map(|_| reader.column(count)).collect();
    let mut owners = MapOwners::default();
    let mut name = Vec::new();
    let rows =
        |columns: &[Vec<u64>], row: usize| columns.iter().map(|column| column[row]).collect::<Vec<_>>();
    for row in (0..count).map(|row| rows(&columns, row)) {
        name.truncate(row[4].try_into().unwrap());
        name.extend(reader.bytes(row[5]));
        let owner = MapOwner {
            volume: row[0].try_into().unwrap(),
            size_bytes: row[1],
            fragments: row[2].try_into().unwrap(),
            whole_stack_fragments: row[3].try_into().unwrap(),
        };
        owners.push(&name, owner);
    }
    let count = reader.count();
    let (lens, classes, codes) = (reader.column(count), reader.column(count), reader.column(count));
    let (mut at, mut last) = (0, 0u64);
    let mut pieces = Vec::new();
    for row in 0..count {
        let owner = codes[row].checked_sub(1).map(|code| {
            last = last.wrapping_add(unzigzag(code));
            OwnerId::of(u32::try_from(last).unwrap())
        });
        let class = PieceClass::ALL[usize::try_from(classes[row]).unwrap()];
        pieces.push(MapPiece { span: span(at, lens[row]), class, owner: owner.unwrap_or(OwnerId::NONE) });
        at += lens[row];
    }
    let layer_count = reader.count();
    let mut layers = Vec::new();
    for _ in 0..layer_count {
        let (name, about, place_shift) = (reader.text(), reader.text(), reader.number());
        let _cell_and_runs = reader.column(2);
        let count = reader.count();
        let columns: Vec<_> = (0..4).map(|_| reader.column(count)).collect();
        let (mut at, mut end) = (0, 0u64);
        let mut runs = Vec::new();
        for row in (0..count).map(|row| rows(&columns, row)) {
            at += row[0];
            let span = span(at, row[1]);
            at += row[1];
            let place = end.wrapping_add(unzigzag(row[2]));
            let stored_bytes = row[3].checked_sub(1).map_or(span.len_bytes(), |stored| stored << place_shift);
            end = place.wrapping_add(stored_bytes >> place_shift);
            runs.push(MapRun { span, place: place << place_shift, stored_bytes });
        }
        layers.push(MapLayer { name, about, runs });
    }
    assert!(reader.0.is_empty(), "{} bytes are left", reader.0.len());
    DiskMap { title, virtual_bytes, volumes, pieces, owners, layers }
}
