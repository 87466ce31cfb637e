//! Files written as a tar: POSIX's (pax) with extended attributes as `SCHILY.xattr.NAME`, which GNU tar (`--xattrs`) and bsdtar take, and
//! with sparse files in GNU tar's form 1.0.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::Ordering;

use block::{Error, Result};
use extent::{File, FileOffset, Span};
use filesystem::{Contents, Special, Time};
use tar::{EntryType, Header};

use super::cat::PIECE_BYTES;
use super::shown;
use super::sink::{Item, Sink};
use crate::Cancel;

const BLOCK_BYTES: u64 = 512;
/// The longest name in the header itself.
const NAME_BYTES_MAX: usize = 100;
/// The most pieces of a sparse file: one of more is written in full.
const PIECES_MAX: usize = 1 << 16;
/// The largest number of a header in the form that every tar reads: 21 bits.
const OWNER_MAX: u32 = 0o7_777_777;

/// See the module.
pub(super) struct TarSink<W: Write> {
    out: W,
    buffer: Vec<u8>,
    lacking: BTreeMap<String, u64>,
}

type Records = Vec<(String, Vec<u8>)>;

impl<W: Write> TarSink<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, buffer: vec![0; PIECE_BYTES], lacking: BTreeMap::new() }
    }

    fn failed(error: io::Error) -> Error {
        Error::io("write the tar", error)
    }

    /// A header, and what does not fit into it.
    fn header(&mut self, item: Item<'_>, kind: EntryType, default_mode: u16) -> (Header, Records) {
        let mut header = Header::new_ustar();
        let mut records = Records::new();
        header.set_entry_type(kind);
        header.set_size(0);
        let unix = item.node.unix;
        header.set_mode(unix.map_or(default_mode, |unix| unix.mode).into());
        let mut owner = |name: &str, id: u32| {
            if id > OWNER_MAX {
                records.push((name.into(), id.to_string().into_bytes()));
            }
            u64::from(id.min(OWNER_MAX))
        };
        header.set_uid(owner("uid", unix.map_or(0, |unix| unix.uid)));
        header.set_gid(owner("gid", unix.map_or(0, |unix| unix.gid)));
        let modified = item.node.modified.unwrap_or(Time { seconds: 0, nanoseconds: 0 });
        let seconds = u64::try_from(modified.seconds).unwrap_or(0).min(0o77_777_777_777);
        header.set_mtime(seconds);
        for (name, time) in [("mtime", item.node.modified), ("atime", item.node.accessed)] {
            let is_in_header = |time: &Time| {
                name == "mtime" && time.nanoseconds == 0 && i64::try_from(seconds) == Ok(time.seconds)
            };
            if let Some(time) = time.filter(|time| !is_in_header(time)) {
                records.push((name.into(), decimal(time).into_bytes()));
            }
        }
        for attribute in item.attributes {
            match std::str::from_utf8(&attribute.name) {
                Ok(name) if !name.contains('=') => {
                    records.push((format!("SCHILY.xattr.{name}"), attribute.value.clone()));
                }
                _ => self.note("an extended attribute whose name a tar cannot hold"),
            }
        }
        (header, records)
    }

    fn note(&mut self, what: &str) {
        *self.lacking.entry(what.to_owned()).or_default() += 1;
    }

    /// Writes a header with its records.
    fn begin(&mut self, mut header: Header, mut records: Records, path: &[u8]) -> Result<()> {
        let old = header.as_old_mut();
        let name = &path[..path.len().min(NAME_BYTES_MAX)];
        old.name[..name.len()].copy_from_slice(name);
        // What is no ASCII is read by the reader's own character set in the header, and as it is here.
        if (path.len() > NAME_BYTES_MAX || !path.is_ascii())
            && !records.iter().any(|(key, _)| key == "GNU.sparse.name")
        {
            records.push(("path".into(), path.to_vec()));
        }
        if !records.is_empty() {
            let text: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value)).collect();
            let mut extended = Header::new_ustar();
            extended.set_entry_type(EntryType::XHeader);
            extended.set_mode(0o644);
            extended.set_size(text.len() as u64);
            extended.as_old_mut().name[..8].copy_from_slice(b"pax/meta");
            extended.set_cksum();
            self.write(extended.as_bytes())?;
            self.write(&text)?;
            self.pad(text.len() as u64)?;
        }
        header.set_cksum();
        self.write(header.as_bytes())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(Self::failed)
    }

    fn pad(&mut self, len_bytes: u64) -> Result<()> {
        let short = len_bytes.next_multiple_of(BLOCK_BYTES) - len_bytes;
        self.write(&[0; 512][..usize::try_from(short).expect("less than a block")])
    }

    fn span(&mut self, contents: &dyn Contents, span: Span<File>, cancel: &Cancel) -> Result<()> {
        let mut at = span.start();
        while at < span.end() {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::interrupted());
            }
            let left = span.end().get() - at.get();
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
            let mut buffer = std::mem::take(&mut self.buffer);
            let done = contents.read_at(at, &mut buffer[..len]).map_err(Stopped::of_reading);
            let done = done.and_then(|()| self.write(&buffer[..len]));
            self.buffer = buffer;
            done?;
            at = at.plus(len as u64);
        }
        Ok(())
    }

    fn link_name(header: &mut Header, records: &mut Records, target: &[u8]) {
        let old = header.as_old_mut();
        let name = &target[..target.len().min(NAME_BYTES_MAX)];
        old.linkname[..name.len()].copy_from_slice(name);
        if target.len() > NAME_BYTES_MAX || !target.is_ascii() {
            records.push(("linkpath".into(), target.to_vec()));
        }
    }
}

/// A record: its whole length in decimal digits, these included, then what it says.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
    let mut len = rest.len() + 1;
    while len.to_string().len() + rest.len() > len {
        len += 1;
    }
    [len.to_string().as_bytes(), &rest].concat()
}

/// In the middle of a file's contents nothing else can follow: what cannot be read there ends the tar.
struct Stopped;

impl Stopped {
    fn of_reading(error: Error) -> Error {
        match error.kind() {
            block::ErrorKind::Io | block::ErrorKind::Interrupted => error,
            _ => Error::io("read a file's contents", io::Error::other(error.to_string())),
        }
    }
}

/// The stretches of a file that are no holes; `None` if it has none that are worth it.
fn pieces(contents: &dyn Contents) -> Result<Option<Vec<Span<File>>>> {
    let mut pieces: Vec<Span<File>> = Vec::new();
    let mut at = FileOffset::ZERO;
    while let Some(span) = contents.next_data(at)? {
        at = span.end();
        match pieces.last_mut().filter(|last| last.end() == span.start()) {
            Some(last) => *last = Span::between(last.start(), span.end()),
            None => pieces.push(span),
        }
        if pieces.len() > PIECES_MAX {
            return Ok(None);
        }
    }
    let data: u64 = pieces.iter().map(Span::len_bytes).sum();
    Ok((contents.len_bytes().saturating_sub(data) >= BLOCK_BYTES).then_some(pieces))
}

/// Seconds with what is behind the point, also before 1970.
fn decimal(time: Time) -> String {
    let Time { seconds, nanoseconds } = time;
    let text = match (seconds < 0, nanoseconds) {
        (_, 0) => return seconds.to_string(),
        (false, _) => format!("{seconds}.{nanoseconds:09}"),
        (true, _) => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds),
    };
    text.trim_end_matches('0').to_owned()
}

impl<W: Write> Sink for TarSink<W> {
    fn folder(&mut self, item: Item<'_>) -> Result<()> {
        let (header, records) = self.header(item, EntryType::Directory, 0o755);
        let path = [&item.path()[..], b"/"].concat();
        self.begin(header, records, &path)
    }

    fn file(&mut self, item: Item<'_>, contents: &dyn Contents, cancel: &Cancel) -> Result<()> {
        let (mut header, mut records) = self.header(item, EntryType::Regular, 0o644);
        let (path, size) = (item.path(), contents.len_bytes());
        let Some(pieces) = pieces(contents).map_err(|error| error.path(shown(&path)))? else {
            if size > 0o77_777_777_777 {
                records.push(("size".into(), size.to_string().into_bytes()));
            }
            header.set_size(size);
            self.begin(header, records, &path)?;
            self.span(contents, Span::from_zero(size), cancel)?;
            return self.pad(size);
        };
        // Where the data lie, as decimal numbers, one a line; an empty one tells the end where a hole is there.
        let mut map = String::new();
        let end = pieces.last().map_or(0, |last| last.end().get());
        let tail = (end < size).then_some((size, 0));
        let told: Vec<_> =
            pieces.iter().map(|span| (span.start().get(), span.len_bytes())).chain(tail).collect();
        map.push_str(&format!("{}\n", told.len()));
        told.iter().for_each(|(at, len)| map.push_str(&format!("{at}\n{len}\n")));
        let data: u64 = pieces.iter().map(Span::len_bytes).sum();
        let map_bytes = (map.len() as u64).next_multiple_of(BLOCK_BYTES);
        records.push(("GNU.sparse.major".into(), b"1".to_vec()));
        records.push(("GNU.sparse.minor".into(), b"0".to_vec()));
        records.push(("GNU.sparse.name".into(), path.clone()));
        records.push(("GNU.sparse.realsize".into(), size.to_string().into_bytes()));
        let stored = map_bytes + data;
        if stored > 0o77_777_777_777 {
            records.push(("size".into(), stored.to_string().into_bytes()));
        }
        header.set_size(stored);
        // Who does not know the form sees another name, and not a file that seems to be right.
        self.begin(header, records, &[b"GNUSparseFile.0/", &path[..]].concat())?;
        self.write(map.as_bytes())?;
        self.pad(map.len() as u64)?;
        for span in pieces {
            self.span(contents, span, cancel)?;
        }
        self.pad(stored)
    }

    fn link(&mut self, item: Item<'_>, target: &[u8]) -> Result<()> {
        let (mut header, mut records) = self.header(item, EntryType::Symlink, 0o777);
        Self::link_name(&mut header, &mut records, target);
        self.begin(header, records, &item.path())
    }

    fn hard_link(&mut self, item: Item<'_>, first: &[Vec<u8>]) -> Result<()> {
        let (mut header, mut records) = self.header(item, EntryType::Link, 0o644);
        // They are those of the file.
        records.retain(|(key, _)| !key.starts_with("SCHILY."));
        Self::link_name(&mut header, &mut records, &first.join(&b'/'));
        self.begin(header, records, &item.path())
    }

    fn special(&mut self, item: Item<'_>, special: Special) -> Result<Option<&'static str>> {
        let (kind, (major, minor)) = match special {
            Special::Pipe => (EntryType::Fifo, (0, 0)),
            Special::Character { major, minor } => (EntryType::Char, (major, minor)),
            Special::Block { major, minor } => (EntryType::Block, (major, minor)),
            Special::Socket => return Ok(Some("a tar holds no sockets")),
            Special::Other => return Ok(Some("it is nothing that a tar holds")),
        };
        let (mut header, records) = self.header(item, kind, 0o600);
        let set = header.set_device_major(major).and_then(|()| header.set_device_minor(minor));
        set.map_err(Self::failed)?;
        self.begin(header, records, &item.path()).map(|()| None)
    }

    fn finish(&mut self) -> Result<Vec<(String, u64)>> {
        // Two empty blocks end a tar.
        self.write(&[0; 1024])?;
        self.out.flush().map_err(Self::failed)?;
        Ok(std::mem::take(&mut self.lacking).into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_their_own_length() {
        assert_eq!(record("path", b"x"), b"9 path=x\n");
        assert_eq!(record("path", &[b'x'; 90]).len(), 99);
        assert!(record("path", &[b'x'; 92]).starts_with(b"102 path="));
    }

    #[test]
    fn times_before_1970_are_below_zero() {
        let text = |seconds, nanoseconds| decimal(Time { seconds, nanoseconds });
        assert_eq!(text(5, 0), "5");
        assert_eq!(text(5, 120_000_000), "5.12");
        assert_eq!(text(-1, 500_000_000), "-0.5");
        assert_eq!(text(-2, 250_000_000), "-1.75");
    }
}
