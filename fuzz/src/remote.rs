//! What a server says to the client that reads disks behind it, and writes them: the negotiation, then replies.

use std::io::{Write, copy, sink};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use block::{Error, ErrorKind, HostFile, ReadAt, Result, TargetFile};
use extent::{Offset, Span};
use nbd::transport::Socket;
use nbd::{Dial, Facts, Patience, RemoteDisk, RemoteTarget, Wanted};

use crate::windows;

/// The most connections that the server takes.
const CONNECTION_COUNT_MAX: usize = 4;
/// The context of a bitmap that is asked for.
const BITMAP: &str = "qemu:dirty-bitmap:b";

/// A server that says this on each connection and then nothing more, whatever it is told.
struct Says {
    bytes: Arc<[u8]>,
    count: AtomicUsize,
}

impl Says {
    fn new(bytes: &[u8]) -> Box<dyn Dial> {
        Box::new(Self { bytes: bytes.into(), count: AtomicUsize::new(0) })
    }
}

impl Dial for Says {
    fn dial(&self) -> Result<Socket> {
        let lost = |error| Error::io("connect", error);
        if self.count.fetch_add(1, Ordering::Relaxed) >= CONNECTION_COUNT_MAX {
            return Err(lost(std::io::ErrorKind::ConnectionRefused.into()));
        }
        let (ours, mut theirs) = UnixStream::pair().map_err(lost)?;
        let bytes = self.bytes.clone();
        // What is said and what is asked must not wait for each other.
        std::thread::spawn(move || {
            let _ = theirs.write_all(&bytes).and_then(|()| theirs.shutdown(Shutdown::Write));
            let _ = copy(&mut theirs, &mut sink());
        });
        Ok(Socket::Unix(ours))
    }
}

/// Takes `data` as all that a server sends; its first byte says what is done with the export, and over how many connections.
pub fn remote(data: &[u8]) {
    let Some((mode, said)) = data.split_first() else { return };
    let patience = Patience {
        lane_count_max: 1 + usize::from(mode / 4 % 3),
        negotiation_max: Duration::from_secs(1),
        silence_max: Duration::from_secs(1),
        pauses: vec![Duration::ZERO],
        retry_count_max: 1,
    };
    match mode % 4 {
        0 | 3 => {
            // What was not sent is in no buffer: it would show whatever lay there before.
            let read = |before| accept(read(said, patience.clone(), before));
            assert_eq!(read(0), read(0xff), "the same bytes are said");
        }
        1 => drop(accept(write(said, patience))),
        _ => {
            let wanted = Wanted { context: Some(BITMAP.into()), ..Wanted::default() };
            accept(nbd::dirty("server", Says::new(said), wanted, patience));
        }
    }
}

/// All that can be read, over buffers full of `before`.
fn read(said: &[u8], patience: Patience, before: u8) -> Result<Vec<Option<Vec<u8>>>> {
    let disk = RemoteDisk::connect("server", Says::new(said), Wanted::default(), patience)?;
    check(disk.facts());
    let len_bytes = disk.len_bytes();
    let mut found = Vec::new();
    for (start, len) in windows(len_bytes) {
        let span = Span::new(Offset::new(start), len);
        if let Some(extents) = accept(disk.host_map(span)) {
            let mut at = span.start();
            for extent in extents {
                assert_eq!(extent.span.start(), at, "extents follow each other");
                at = extent.span.end();
            }
            assert_eq!(at, span.end(), "extents cover what was asked");
        }
        let mut buf = vec![before; usize::try_from(len).expect("a small window")];
        found.push(accept(disk.read_at(span.start(), &mut buf)).map(|()| buf));
    }
    if let Some(allocated_bytes) = accept(disk.allocated_bytes()) {
        assert!(allocated_bytes <= len_bytes, "no more than there is");
    }
    Ok(found)
}

/// What a copy does with its target.
fn write(said: &[u8], patience: Patience) -> Result<()> {
    let target = RemoteTarget::connect("server", Says::new(said), Wanted::default(), patience)?;
    let len_bytes = target.len_bytes();
    let written = usize::try_from(len_bytes.min(8192)).expect("small");
    target.zero(Span::new(Offset::new(written as u64), (len_bytes - written as u64).min(64 << 10)))?;
    target.write_at(Offset::ZERO, &vec![1; written])?;
    target.flush()?;
    let past_end = target.write_at(Offset::new(len_bytes), &[1]);
    assert!(past_end.is_err_and(|error| error.kind() == ErrorKind::Invalid), "nothing is asked past the end");
    target.read_at(Offset::ZERO, &mut vec![0; written])
}

/// What the client goes by must make sense, whatever the server says.
fn check(facts: &Facts) {
    assert!(facts.minimum_bytes.is_power_of_two() && facts.preferred_bytes >= facts.minimum_bytes);
    assert!(facts.maximum_bytes >= facts.minimum_bytes && facts.maximum_bytes <= nbd::PAYLOAD_BYTES_MAX);
    assert!(i64::try_from(facts.len_bytes).is_ok());
}

/// The value, or nothing for an error that is the server's fault.
fn accept<T>(result: Result<T>) -> Option<T> {
    use ErrorKind::{Corrupt, Io, Refused, Unsupported};
    result
        .inspect_err(|error| {
            assert!(
                matches!(error.kind(), Corrupt | Unsupported | Refused | Io),
                "not the server's fault: {error:?}"
            );
        })
        .ok()
}
