//! Writes `$LogFile` as NTFS does on a volume that is in use: pages, records, restart areas. Layouts as in M. Suhanov's "dfir_ntfs" and in logs that Windows wrote.

// Lengths and offsets of small things that a test makes.
#![allow(clippy::cast_possible_truncation)]

use std::collections::BTreeMap;

const PAGE: usize = 4096;
const DATA_AT: usize = 64;
const HEAD: usize = 48;

/// A log that is being written.
#[derive(Clone)]
pub struct Log {
    version: (u16, u16),
    size: usize,
    offset_bits: u32,
    turn: u64,
    /// Where the next record begins.
    at: usize,
    /// Pages by where they belong.
    pub pages: BTreeMap<usize, Vec<u8>>,
    /// The sequence numbers of all records so far.
    pub lsns: Vec<u64>,
}

/// What a record says.
#[derive(Clone, Default)]
pub struct Entry {
    /// The operation and its argument.
    pub redo: (u16, Vec<u8>),
    /// What takes it back.
    pub undo: (u16, Vec<u8>),
    /// The entry of the table of open attributes.
    pub target: u16,
    /// The cluster in the attribute that is changed.
    pub vcn: u64,
    /// Where that lies.
    pub lcns: Vec<u64>,
    /// In the file record or block.
    pub record_offset: u16,
    /// In the attribute.
    pub attribute_offset: u16,
    /// In the cluster, in units of 512 bytes.
    pub block_offset: u16,
}

impl Entry {
    /// Of these operations, with their arguments.
    pub fn new(redo: u16, argument: &[u8], undo: u16, undo_argument: &[u8]) -> Self {
        Self { redo: (redo, argument.to_vec()), undo: (undo, undo_argument.to_vec()), ..Self::default() }
    }

    /// As it is in the log, behind a record's head.
    pub fn bytes(&self) -> Vec<u8> {
        let redo_at = 32 + 8 * self.lcns.len().max(1);
        let undo_at = (redo_at + self.redo.1.len()).next_multiple_of(8);
        let mut bytes = Vec::new();
        for field in [
            self.redo.0,
            self.undo.0,
            redo_at as u16,
            self.redo.1.len() as u16,
            undo_at as u16,
            self.undo.1.len() as u16,
            self.target,
            self.lcns.len() as u16,
            self.record_offset,
            self.attribute_offset,
            self.block_offset,
            0,
        ] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(self.vcn.to_le_bytes());
        self.lcns.iter().for_each(|lcn| bytes.extend(lcn.to_le_bytes()));
        bytes.resize(redo_at, 0);
        bytes.extend(&self.redo.1);
        bytes.resize(undo_at, 0);
        bytes.extend(&self.undo.1);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

/// Where a run list by mkntfs, of one run, leads: the first cluster of the unnamed data of a file record, and the bytes of that.
pub fn place_of(volume: &[u8], record: usize) -> (usize, usize) {
    let cluster_bytes = number(&volume[11..13]) * usize::from(volume[13]);
    let at = number(&volume[0x30..0x38]) * cluster_bytes + record * 1024;
    let mut at = at + number(&volume[at + 20..at + 22]);
    while number(&volume[at..at + 4]) != 0x80 {
        at += number(&volume[at + 4..at + 8]);
    }
    let list = &volume[at + number(&volume[at + 0x20..at + 0x22])..];
    let (len_len, lcn_len) = (usize::from(list[0] & 15), usize::from(list[0] >> 4));
    let lcn = number(&list[1 + len_len..1 + len_len + lcn_len]);
    (lcn * cluster_bytes, number(&volume[at + 0x30..at + 0x38]))
}

/// Where the log of a volume by mkntfs lies, and how long it is.
pub fn place(volume: &[u8]) -> (usize, usize) {
    place_of(volume, 2)
}

impl Log {
    /// A log of so many bytes, that was begun anew before.
    pub fn new(version: (u16, u16), size: usize) -> Self {
        let size = size / PAGE * PAGE;
        let offset_bits = 64 - (67 - (usize::BITS - size.leading_zeros()));
        let mut log =
            Self { version, size, offset_bits, turn: 3, at: 0, pages: BTreeMap::new(), lsns: Vec::new() };
        log.at = log.first_page() + DATA_AT;
        log
    }

    fn first_page(&self) -> usize {
        PAGE * if self.version.0 == 2 { 34 } else { 4 }
    }

    /// The next record begins in the last page before the log is begun anew.
    pub fn at_the_end(mut self) -> Self {
        self.at = self.size - PAGE + DATA_AT;
        self
    }

    /// Leaves the page as it is, as after a checkpoint.
    pub fn leave_page(&mut self) {
        if self.at % PAGE != DATA_AT {
            self.next_page();
        }
    }

    fn next_page(&mut self) {
        self.at = self.at / PAGE * PAGE + PAGE;
        if self.at >= self.size {
            self.at = self.first_page();
            self.turn += 1;
        }
        self.at += DATA_AT;
    }

    fn page(&mut self) -> &mut Vec<u8> {
        self.pages.entry(self.at / PAGE * PAGE).or_insert_with(|| {
            let mut page = vec![0; PAGE];
            page[..8].copy_from_slice(b"RCRD\x28\0\x09\0");
            page
        })
    }

    /// Appends a record.
    pub fn entry(&mut self, entry: &Entry) -> u64 {
        self.record(1, &entry.bytes())
    }

    /// Appends records.
    pub fn entries<'a>(&mut self, entries: impl IntoIterator<Item = &'a Entry>) {
        for entry in entries {
            self.entry(entry);
        }
    }

    /// NTFS's restart record of version 1.0.
    pub fn restart_record(&mut self) -> u64 {
        let mut data = vec![0; 112];
        data[0] = 1;
        self.record(2, &data)
    }

    /// Appends a record of a type, whatever it says.
    pub fn record(&mut self, kind: u32, data: &[u8]) -> u64 {
        self.record_with(kind, 0, data)
    }

    /// The same with flags of its head.
    pub fn record_with(&mut self, kind: u32, flags: u8, data: &[u8]) -> u64 {
        if PAGE - self.at % PAGE < HEAD {
            self.next_page();
        }
        let lsn = self.turn << self.offset_bits | self.at as u64 >> 3;
        let is_long = PAGE - self.at % PAGE < HEAD + data.len();
        let mut head = vec![0; HEAD];
        head[..8].copy_from_slice(&lsn.to_le_bytes());
        head[24..28].copy_from_slice(&(data.len() as u32).to_le_bytes());
        head[32..36].copy_from_slice(&kind.to_le_bytes());
        head[36..40].copy_from_slice(&24u32.to_le_bytes());
        head[40] = u8::from(is_long) | flags;
        self.page()[8..16].copy_from_slice(&lsn.to_le_bytes());
        self.put(&head);
        let mut rest = data;
        while !rest.is_empty() {
            if self.at.is_multiple_of(PAGE) {
                // The last write filled the page.
                self.at -= 1;
                self.next_page();
                self.page()[8..16].copy_from_slice(&lsn.to_le_bytes());
            }
            let (now, later) = rest.split_at(rest.len().min(PAGE - self.at % PAGE));
            self.put(now);
            rest = later;
        }
        // A record may end where its page does.
        let end = (self.at - 1) % PAGE + 1;
        self.at -= usize::from(end == PAGE);
        let page = self.page();
        page[16] = 1;
        page[24..26].copy_from_slice(&(end as u16).to_le_bytes());
        page[32..40].copy_from_slice(&lsn.to_le_bytes());
        if end == PAGE {
            self.next_page();
        }
        self.lsns.push(lsn);
        lsn
    }

    fn put(&mut self, bytes: &[u8]) {
        let from = self.at % PAGE;
        self.page()[from..from + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    /// Page 0 or 1, as of a volume in use.
    pub fn restart_page(&self, oldest: u64, restart: u64, current: u64) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        page[..8].copy_from_slice(b"RSTR\x1e\0\x09\0");
        page[16..20].copy_from_slice(&(PAGE as u32).to_le_bytes());
        page[20..24].copy_from_slice(&(PAGE as u32).to_le_bytes());
        page[24..26].copy_from_slice(&48u16.to_le_bytes());
        page[26..28].copy_from_slice(&self.version.1.to_le_bytes());
        page[28..30].copy_from_slice(&self.version.0.to_le_bytes());
        let area = &mut page[48..];
        area[..8].copy_from_slice(&current.to_le_bytes());
        area[8..14].copy_from_slice(&[1, 0, 0xff, 0xff, 0, 0]);
        area[16..20].copy_from_slice(&(64 - self.offset_bits).to_le_bytes());
        area[20..24].copy_from_slice(&[224, 0, 64, 0]);
        area[24..32].copy_from_slice(&(self.size as u64).to_le_bytes());
        area[36..40].copy_from_slice(&[HEAD as u8, 0, DATA_AT as u8, 0]);
        let client = &mut area[64..];
        client[..8].copy_from_slice(&oldest.to_le_bytes());
        client[8..16].copy_from_slice(&restart.to_le_bytes());
        client[16..20].fill(0xff);
        client[28] = 8;
        client[32..40].copy_from_slice(b"N\0T\0F\0S\0");
        page
    }

    /// Writes all pages to the volume: the oldest record that is needed is the first one, the newest restart record the last one.
    pub fn write(&self, volume: &mut [u8]) {
        let (first, last) = (self.lsns[0], *self.lsns.last().unwrap());
        let (at, size) = place(volume);
        volume[at..at + size].fill(0xff);
        for number in 0..2 {
            put_page(volume, number * PAGE, &self.restart_page(first, last, last));
        }
        for (home, page) in &self.pages {
            put_page(volume, *home, page);
        }
    }
}

/// Writes a page of the log, protected against torn writes.
pub fn put_page(volume: &mut [u8], at: usize, page: &[u8]) {
    let (log_at, _) = place(volume);
    let mut page = page.to_vec();
    let array = number(&page[4..6]);
    page[array..array + 2].copy_from_slice(&[7, 0]);
    for sector in 1..=PAGE / 512 {
        page.copy_within(sector * 512 - 2..sector * 512, array + sector * 2);
        page[sector * 512 - 2..sector * 512].copy_from_slice(&[7, 0]);
    }
    volume[log_at + at..log_at + at + PAGE].copy_from_slice(&page);
}
