//! A file that is compressed with gzip (RFC 1952), read at any place of what it unpacks to.
//!
//! Deflate (RFC 1951) is read from its beginning alone. So a [`GzipIndex`] is made first, in one pass that checks every checksum: states of the
//! decompressor at places that are about equally far from each other. A [`Gunzipped`] file goes on from the nearest one before what is
//! read, and keeps what it unpacked last, as those who read much ask for neighbouring pieces in no strict order.
//!
//! Invariants: memory is bounded whatever the file holds, and so is what it unpacks to; nothing is read as contents that the checksums do not cover.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use block::{Error, HostFile, ReadAt, Result, check_bounds, read_vec};
use extent::{Host, HostOffset, Offset};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress, inflate_flags::TINFL_FLAG_HAS_MORE_INPUT};

use crate::corrupt::Corrupt;

/// As far back as deflate refers: a power of two.
const WINDOW_BYTES: usize = 32 << 10;
// What a kept state takes: POINT_COUNT_MAX of them are 44 MiB.
const _: () = assert!(size_of::<DecompressorOxide>() + WINDOW_BYTES <= 44 << 10);
/// What is read of the compressed file at a time.
const INPUT_BYTES: usize = 64 << 10;
/// From one state that is kept to the next at the least.
const SPACING_BYTES_MIN: u64 = 4 << 20;
/// Of so many states every other one goes, which makes the rest twice as far from each other.
const POINT_COUNT_MAX: usize = 1024;
/// What was unpacked last is kept in blocks of this length, and so many of them.
const BLOCK_BYTES: u64 = 1 << 20;
const BLOCK_COUNT_MAX: usize = 48;

const MAGIC: [u8; 3] = [0x1f, 0x8b, 8];
const HEADER_BYTES: u64 = 10;
/// The checksum of the contents, and the length's lower half.
const TRAILER_BYTES: u64 = 8;
/// The longest name, comment or extra field.
const FIELD_BYTES_MAX: u64 = 64 << 10;
const HAS_CHECKSUM: u8 = 2;
const HAS_EXTRA: u8 = 4;
const HAS_NAME: u8 = 8;
const HAS_COMMENT: u8 = 16;
const RESERVED: u8 = 0xe0;

/// The decompressor in the midst of a file.
#[derive(Clone)]
struct State {
    inflate: Box<DecompressorOxide>,
    /// What was unpacked last, as a ring.
    window: Box<[u8; WINDOW_BYTES]>,
    /// The next byte of the file that the decompressor has not taken.
    input_at: u64,
    /// How much was unpacked.
    output_at: u64,
    /// Whether a member of the file begins here.
    is_between: bool,
}

/// Where a file can be unpacked from.
pub struct GzipIndex {
    points: Vec<State>,
    len_bytes: u64,
}

impl fmt::Debug for GzipIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GzipIndex")
            .field("points", &self.points.len())
            .field("len_bytes", &self.len_bytes)
            .finish()
    }
}

impl GzipIndex {
    /// Unpacks all of `file` once, and checks it. `Corrupt` if it is none, or if it unpacks to more than `max_bytes`. `advanced` is told how much of
    /// the file was read, and ends it with an error.
    pub fn make(
        file: &dyn HostFile,
        max_bytes: u64,
        advanced: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        Self::spaced(file, max_bytes, SPACING_BYTES_MIN, POINT_COUNT_MAX, advanced)
    }

    fn spaced(
        file: &dyn HostFile,
        max_bytes: u64,
        mut spacing_bytes: u64,
        point_count_max: usize,
        advanced: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        let mut reader = Reader::new(State::new());
        let mut points: Vec<State> = vec![reader.state.clone()];
        let (mut checksum, mut member_start, mut told) = (crc32fast::Hasher::new(), 0, 0);
        loop {
            match reader.step(file)? {
                Step::Unpacked(bytes) => checksum.update(bytes),
                Step::MemberEnds { stated_checksum, stated_len } => {
                    let found = std::mem::take(&mut checksum).finalize();
                    if found != stated_checksum {
                        return Err(broken(format!(
                            "its checksum is {found:#010x}, expected {stated_checksum:#010x}"
                        )));
                    }
                    let len_bytes = reader.state.output_at - member_start;
                    #[allow(clippy::cast_possible_truncation)]
                    if len_bytes as u32 != stated_len {
                        return Err(broken(format!(
                            "it unpacks to {len_bytes} bytes, which is not the length that it states"
                        )));
                    }
                    member_start = reader.state.output_at;
                }
                Step::End => break,
            }
            let State { input_at, output_at, .. } = reader.state;
            if output_at > max_bytes {
                return Err(broken(format!(
                    "it unpacks to more than {max_bytes} bytes, which is more than such a disk has"
                )));
            }
            // A step ends at the end of the window at the latest, so none leaves out the end of a block.
            let last = points.last().map_or(0, |point| point.output_at);
            if output_at - last >= spacing_bytes && output_at.is_multiple_of(BLOCK_BYTES) {
                if points.len() >= point_count_max {
                    spacing_bytes *= 2;
                    let mut index = 0;
                    points.retain(|_| {
                        index += 1;
                        index % 2 == 1
                    });
                }
                points.push(reader.state.clone());
            }
            if input_at - told >= BLOCK_BYTES {
                advanced(input_at - told)?;
                told = input_at;
            }
        }
        advanced(file.len_bytes().saturating_sub(told))?;
        Ok(Self { points, len_bytes: reader.state.output_at })
    }

    /// The last state before a place.
    fn before(&self, at: u64) -> &State {
        &self.points[self.points.partition_point(|point| point.output_at <= at).max(1) - 1]
    }
}

fn broken(why: String) -> Error {
    Error::corrupt(Corrupt::Gzip { why })
}

fn ends_early() -> Error {
    broken("it ends in the midst of its contents".into())
}

impl State {
    fn new() -> Self {
        Self {
            inflate: Box::default(),
            window: Box::new([0; WINDOW_BYTES]),
            input_at: 0,
            output_at: 0,
            is_between: true,
        }
    }
}

/// What came next.
enum Step<'a> {
    Unpacked(&'a [u8]),
    MemberEnds { stated_checksum: u32, stated_len: u32 },
    End,
}

/// A state with what was read of the file and not taken yet.
struct Reader {
    state: State,
    input: Vec<u8>,
    /// Where `input` begins in the file.
    input_start: u64,
}

impl Reader {
    fn new(state: State) -> Self {
        let input_start = state.input_at;
        Self { state, input: Vec::new(), input_start }
    }

    /// Each step takes bytes of the file or unpacks some, or is the last.
    fn step(&mut self, file: &dyn HostFile) -> Result<Step<'_>> {
        if self.state.is_between {
            if !self.begins_member(file)? {
                return Ok(Step::End);
            }
            self.state.is_between = false;
            *self.state.inflate = DecompressorOxide::default();
        }
        loop {
            let end = self.input_start + self.input.len() as u64;
            if self.state.input_at >= end || self.state.input_at < self.input_start {
                self.input_start = self.state.input_at;
                // A header may lead past the end, and a file may be shorter than when its index was made.
                let left = file.len_bytes().checked_sub(self.input_start).ok_or_else(ends_early)?;
                self.input.resize(usize::try_from(left.min(INPUT_BYTES as u64)).expect("small"), 0);
                file.read_at(Offset::new(self.input_start), &mut self.input)?;
            }
            let from = usize::try_from(self.state.input_at - self.input_start).expect("within the buffer");
            let input = &self.input[from..];
            let is_last = self.input_start + self.input.len() as u64 == file.len_bytes();
            let flags = if is_last { 0 } else { TINFL_FLAG_HAS_MORE_INPUT };
            let place = usize::try_from(self.state.output_at % WINDOW_BYTES as u64).expect("small");
            let (status, taken, made) =
                decompress(&mut self.state.inflate, input, &mut self.state.window[..], place, flags);
            self.state.input_at += taken as u64;
            self.state.output_at += made as u64;
            use TINFLStatus::{Done, FailedCannotMakeProgress, HasMoreOutput, NeedsMoreInput};
            match status {
                // The end is told once more when what came with it was taken.
                HasMoreOutput | NeedsMoreInput | Done if made > 0 => {
                    return Ok(Step::Unpacked(&self.state.window[place..place + made]));
                }
                HasMoreOutput | NeedsMoreInput if taken > 0 && !is_last => {}
                Done => return self.ends_member(file),
                HasMoreOutput | NeedsMoreInput | FailedCannotMakeProgress => return Err(ends_early()),
                other => return Err(broken(format!("it is no deflate stream ({other:?})"))),
            }
        }
    }

    /// Takes a header; `false` at the end of the file, or of what gzip reads of it: zeros may fill a tape's last block.
    fn begins_member(&mut self, file: &dyn HostFile) -> Result<bool> {
        let at = self.state.input_at;
        let take = |at: u64, len: u64| read_vec::<Host>(file, Offset::new(at), len, "gzip header");
        let header = take(at, file.len_bytes().saturating_sub(at).min(HEADER_BYTES))?;
        if !header.starts_with(&MAGIC) {
            return match at {
                0 => Err(broken("it is none".into())),
                _ if rest_is_zero(file, at)? => Ok(false),
                _ => Err(broken("something else follows its end".into())),
            };
        }
        let flags = *header.get(3).filter(|_| header.len() as u64 == HEADER_BYTES).ok_or_else(ends_early)?;
        if flags & RESERVED != 0 {
            return Err(broken(format!("its header has the flags {flags:#04x}, which nobody knows")));
        }
        let mut end = at + HEADER_BYTES;
        if flags & HAS_EXTRA != 0 {
            let len = take(end, 2)?;
            end += 2 + u64::from(u16::from_le_bytes([len[0], len[1]]));
        }
        for field in [HAS_NAME, HAS_COMMENT] {
            if flags & field != 0 {
                end = behind_zero(file, end)?;
            }
        }
        if flags & HAS_CHECKSUM != 0 {
            let len = usize::try_from(end - at).expect("bounded above");
            let stated = take(end, 2)?;
            let found = crc32fast::hash(&take(at, len as u64)?).to_le_bytes();
            if found[..2] != stated[..] {
                return Err(broken("the checksum of its header is wrong".into()));
            }
            end += 2;
        }
        self.state.input_at = end;
        Ok(true)
    }

    fn ends_member(&mut self, file: &dyn HostFile) -> Result<Step<'_>> {
        let trailer =
            read_vec::<Host>(file, Offset::new(self.state.input_at), TRAILER_BYTES, "gzip trailer")?;
        let number = |at: usize| u32::from_le_bytes(trailer[at..at + 4].try_into().expect("four bytes"));
        self.state.input_at += TRAILER_BYTES;
        self.state.is_between = true;
        Ok(Step::MemberEnds { stated_checksum: number(0), stated_len: number(4) })
    }
}

fn rest_is_zero(file: &dyn HostFile, from: u64) -> Result<bool> {
    let mut at = from;
    let mut buffer = vec![0; INPUT_BYTES];
    while at < file.len_bytes() {
        let len = usize::try_from((file.len_bytes() - at).min(INPUT_BYTES as u64)).expect("small");
        file.read_at(Offset::new(at), &mut buffer[..len])?;
        if buffer[..len].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}

fn behind_zero(file: &dyn HostFile, from: u64) -> Result<u64> {
    let len = file.len_bytes().saturating_sub(from).min(FIELD_BYTES_MAX);
    let bytes = read_vec::<Host>(file, Offset::new(from), len, "gzip header")?;
    let zero = bytes.iter().position(|byte| *byte == 0);
    zero.map(|zero| from + zero as u64 + 1)
        .ok_or_else(|| broken("its header has a text without an end".into()))
}

/// A compressed file as what it unpacks to.
pub struct Gunzipped {
    file: Arc<dyn HostFile>,
    index: Arc<GzipIndex>,
    unpacking: Mutex<Unpacking>,
}

/// Where it is at, and what it unpacked last: whole blocks.
#[derive(Default)]
struct Unpacking {
    reader: Option<Reader>,
    blocks: VecDeque<(u64, Arc<[u8]>)>,
}

impl Gunzipped {
    /// What `file` unpacks to, which has this index.
    pub fn new(file: Arc<dyn HostFile>, index: Arc<GzipIndex>) -> Self {
        Self { file, index, unpacking: Mutex::default() }
    }

    /// The block of that number. Those on the way there are kept, too.
    fn block(&self, number: u64) -> Result<Arc<[u8]>> {
        let mut unpacking = self.unpacking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, block)) = unpacking.blocks.iter().find(|(known, _)| *known == number) {
            return Ok(block.clone());
        }
        let nearest = self.index.before(number * BLOCK_BYTES);
        let goes_on =
            |reader: &Reader| (nearest.output_at..=number * BLOCK_BYTES).contains(&reader.state.output_at);
        let reader = unpacking.reader.take().filter(goes_on);
        let mut reader = reader.unwrap_or_else(|| Reader::new(nearest.clone()));
        loop {
            let found = reader.state.output_at / BLOCK_BYTES;
            let block = self.next_block(&mut reader)?;
            unpacking.keep(found, block.clone());
            if found == number {
                unpacking.reader = Some(reader);
                return Ok(block);
            }
        }
    }

    /// What `reader`, which is at the beginning of a block, unpacks of it.
    fn next_block(&self, reader: &mut Reader) -> Result<Arc<[u8]>> {
        let len_bytes = (self.index.len_bytes - reader.state.output_at).min(BLOCK_BYTES);
        let len = usize::try_from(len_bytes).expect("small");
        let mut block = Vec::with_capacity(len);
        while block.len() < len {
            match reader.step(&*self.file)? {
                Step::Unpacked(bytes) => block.extend_from_slice(bytes),
                Step::MemberEnds { .. } => {}
                Step::End => return Err(self.changed()),
            }
        }
        if block.len() > len { Err(self.changed()) } else { Ok(block.into()) }
    }

    fn changed(&self) -> Error {
        let what = "the compressed file changed while it was read";
        Error::io(what, std::io::ErrorKind::InvalidData.into()).path(self.file.name())
    }
}

impl Unpacking {
    fn keep(&mut self, number: u64, block: Arc<[u8]>) {
        if self.blocks.len() >= BLOCK_COUNT_MAX {
            self.blocks.pop_front();
        }
        self.blocks.push_back((number, block));
    }
}

impl ReadAt<Host> for Gunzipped {
    fn len_bytes(&self) -> u64 {
        self.index.len_bytes
    }

    fn read_at(&self, at: HostOffset, buf: &mut [u8]) -> Result<()> {
        check_bounds(at, buf.len(), self.len_bytes())?;
        let (mut at, mut rest) = (at.get(), buf);
        while !rest.is_empty() {
            let block = self.block(at / BLOCK_BYTES)?;
            let from = usize::try_from(at % BLOCK_BYTES).expect("small");
            let len = rest.len().min(block.len() - from);
            let (now, later) = rest.split_at_mut(len);
            now.copy_from_slice(&block[from..from + len]);
            rest = later;
            at += len as u64;
        }
        Ok(())
    }
}

impl HostFile for Gunzipped {
    block::forward!(self, self.file => name, path, fingerprint, fingerprint_when_opened, users, holders, allocated_bytes, host_filesystem);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use block::Memory;
    use testkit::noise;

    use super::*;

    /// By gzip(1).
    fn gzip(bytes: &[u8], level: &str) -> Vec<u8> {
        let mut child = Command::new("gzip")
            .args(["-c", level])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let bytes = bytes.to_vec();
        let writer = std::thread::spawn(move || input.write_all(&bytes));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        assert!(output.status.success());
        output.stdout
    }

    fn file(bytes: Vec<u8>) -> Arc<dyn HostFile> {
        Arc::new(Memory::named("disk.vmdk.gz", bytes))
    }

    fn index(file: &dyn HostFile) -> Result<GzipIndex> {
        GzipIndex::make(file, 1 << 40, &mut |_| Ok(()))
    }

    /// Noise, text and zeros in turns.
    fn contents(len: usize) -> Vec<u8> {
        let mut bytes = noise(7, len);
        for (number, piece) in bytes.chunks_mut(70_001).enumerate() {
            match number % 3 {
                0 => {}
                1 => piece.iter_mut().for_each(|byte| *byte = b'a' + *byte % 4),
                _ => piece.fill(0),
            }
        }
        bytes
    }

    #[test]
    fn every_place_reads_as_what_was_compressed() {
        for (len, level) in [(0, "-6"), (1, "-6"), (32 << 10, "-1"), (1 << 20, "-9"), (9_654_321, "-6")] {
            let expected = contents(len);
            let packed = file(gzip(&expected, level));
            let made = index(&*packed).unwrap();
            assert_eq!(made.points.len(), 1 + len.saturating_sub(1) / (4 << 20), "{len}");
            let unpacked = Gunzipped::new(packed, Arc::new(made));
            assert_eq!(unpacked.len_bytes(), len as u64);
            let mut random = 1_u64;
            for round in 0..200 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (random >> 20) as usize % (len + 1);
                let end = (at + (random >> 50) as usize * (round % 40)).min(len);
                let mut found = vec![0; end - at];
                unpacked.read_at(Offset::new(at as u64), &mut found).unwrap();
                assert!(found == expected[at..end], "{len}: {at}..{end}");
            }
            assert!(unpacked.read_at(Offset::new(len as u64), &mut [0]).is_err());
        }
    }

    #[test]
    fn members_follow_each_other_and_zeros_may_follow_them() {
        let parts = [contents(3_000_000), Vec::new(), contents(100), contents(6 << 20)];
        let mut packed: Vec<u8> = parts.iter().flat_map(|part| gzip(part, "-6")).collect();
        packed.extend([0; 700]);
        let packed = file(packed);
        let unpacked = Gunzipped::new(packed.clone(), Arc::new(index(&*packed).unwrap()));
        let expected = parts.concat();
        let mut found = vec![0; expected.len()];
        unpacked.read_at(Offset::ZERO, &mut found).unwrap();
        assert!(found == expected);
    }

    #[test]
    fn headers_may_have_every_field() {
        let plain = gzip(b"contents", "-6");
        let mut packed = plain[..3].to_vec();
        packed.push(HAS_CHECKSUM | HAS_EXTRA | HAS_NAME | HAS_COMMENT);
        packed.extend(&plain[4..10]);
        packed.extend(b"\x03\0abcname\0comment\0");
        let checksum = crc32fast::hash(&packed).to_le_bytes();
        packed.extend(&checksum[..2]);
        packed.extend(&plain[10..]);
        let unpacked = |packed: &[u8]| {
            let packed = file(packed.to_vec());
            let unpacked = Gunzipped::new(packed.clone(), Arc::new(index(&*packed)?));
            read_vec::<Host>(&unpacked, Offset::ZERO, unpacked.len_bytes(), "it")
        };
        assert_eq!(unpacked(&packed).unwrap(), b"contents");
        packed[14] ^= 1;
        assert!(unpacked(&packed).unwrap_err().to_string().contains("of its header"));
    }

    #[test]
    fn what_is_broken_is_told() {
        let expected = contents(2_500_000);
        let packed = gzip(&expected, "-6");
        let fails = |bytes: Vec<u8>, why: &str| {
            let error = index(&*file(bytes)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}, not {why}");
        };
        fails(Vec::new(), "it is none");
        fails(b"no gzip at all".to_vec(), "it is none");
        for len in 3..10 {
            fails(packed[..len].to_vec(), "in the midst");
        }
        let with_flags = |flags: u8, behind: &[u8]| [&packed[..3], &[flags], &packed[4..10], behind].concat();
        // An extra field that leads past the end.
        fails(with_flags(HAS_EXTRA, b"\xff\xff"), "in the midst");
        fails(with_flags(HAS_EXTRA, b"\xff"), "gzip header");
        fails(with_flags(HAS_NAME, b"endless"), "without an end");
        fails(with_flags(HAS_EXTRA | HAS_COMMENT, b"\xff\xff"), "gzip header");
        fails(with_flags(0x20, b""), "which nobody knows");
        for len in [11, 5000, packed.len() - 9] {
            fails(packed[..len].to_vec(), "in the midst");
        }
        fails(packed[..packed.len() - 3].to_vec(), "gzip trailer");
        fails([&packed[..], b"more than that"].concat(), "something else follows");
        let changed = |at: usize| {
            let mut packed = packed.clone();
            packed[at] ^= 1;
            packed
        };
        fails(changed(packed.len() - 8), "its checksum is");
        fails(changed(packed.len() - 4), "the length that it states");
        // Within the contents: some break the stream, and what does not breaks the checksum.
        for at in (20..packed.len() - 8).step_by(packed.len() / 40) {
            index(&*file(changed(at))).unwrap_err();
        }
        // It became shorter after its index was made.
        let index = Arc::new(index(&*file(packed.clone())).unwrap());
        let shorter = Gunzipped::new(file(packed[..1000].to_vec()), index);
        for at in [0, 2_400_000] {
            shorter.read_at(Offset::new(at), &mut [0; 100]).unwrap_err();
        }
        let error = GzipIndex::make(&*file(packed.clone()), 2_000_000, &mut |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("more than 2000000 bytes"), "{error}");
        let stopped = GzipIndex::make(&*file(packed), 1 << 40, &mut |_| Err(Error::interrupted()));
        assert_eq!(stopped.unwrap_err().kind(), block::ErrorKind::Interrupted);
    }

    #[test]
    fn states_are_thinned_out() {
        let expected = contents((20 << 20) + 5);
        let packed = file(gzip(&expected, "-1"));
        let made = GzipIndex::spaced(&*packed, 1 << 40, BLOCK_BYTES, 8, &mut |_| Ok(())).unwrap();
        let places: Vec<_> = made.points.iter().map(|point| point.output_at / BLOCK_BYTES).collect();
        assert_eq!(places, [0, 4, 8, 12, 16, 20]);
        let unpacked = Gunzipped::new(packed, Arc::new(made));
        for at in [19 << 20, 3 << 20, 11 << 20] {
            let mut found = vec![0; 1 << 20];
            unpacked.read_at(Offset::new(at as u64), &mut found).unwrap();
            assert!(found == expected[at..at + (1 << 20)], "{at}");
        }
    }
}
