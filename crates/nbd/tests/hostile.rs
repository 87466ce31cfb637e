//! Servers that lie, break off, or never end: each is an error that says so, and costs bounded memory.

// Tests by themselves: what fails ends the test.
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation)]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use block::{Error, ErrorKind, HostFile, HostState, ReadAt, Result, TargetFile};
use extent::{Offset, Span};
use nbd::transport::Socket;
use nbd::{Corrupt, Patience, RemoteDisk, RemoteTarget, Wanted};

const LEN_BYTES: u64 = 64 << 10;
const REP: u64 = 0x0003_e889_0455_65a9;

/// The server's end.
struct Peer(UnixStream);

/// A request as it came.
struct Asked {
    kind: u16,
    cookie: u64,
    offset: u64,
    len_bytes: u32,
}

/// What a server tells of itself.
#[derive(Clone, Copy)]
struct Told {
    len_bytes: u64,
    flags: u16,
    blocks: Option<[u32; 3]>,
    is_structured: bool,
    is_extended: bool,
}

const PLAIN: Told =
    Told { len_bytes: LEN_BYTES, flags: 0b11, blocks: None, is_structured: true, is_extended: false };
const EXTENDED: Told = Told { is_extended: true, ..PLAIN };

impl Peer {
    fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.0.write_all(&parts.concat())
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn greet(&mut self) -> io::Result<()> {
        self.send(&[b"NBDMAGICIHAVEOPT", &[0, 3]])?;
        self.take::<4>().map(drop)
    }

    /// The next option's code.
    fn option(&mut self) -> io::Result<u32> {
        let header: [u8; 16] = self.take()?;
        let len = u32::from_be_bytes(header[12..].try_into().unwrap());
        io::copy(&mut (&mut self.0).take(len.into()), &mut io::sink())?;
        Ok(u32::from_be_bytes(header[8..12].try_into().unwrap()))
    }

    fn reply(&mut self, code: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let len = (data.len() as u32).to_be_bytes();
        self.send(&[&REP.to_be_bytes(), &code.to_be_bytes(), &kind.to_be_bytes(), &len, data])
    }

    /// A negotiation as it should be.
    fn negotiate(&mut self, told: Told) -> io::Result<()> {
        self.greet()?;
        loop {
            let code = self.option()?;
            match code {
                8 if told.is_structured => self.reply(code, 1, &[])?,
                11 if told.is_extended => self.reply(code, 1, &[])?,
                10 => {
                    self.reply(code, 4, &[&[0, 0, 0, 7], &b"base:allocation"[..]].concat())?;
                    self.reply(code, 1, &[])?;
                }
                7 => {
                    let export =
                        [&[0, 0][..], &told.len_bytes.to_be_bytes(), &told.flags.to_be_bytes()].concat();
                    self.reply(code, 3, &export)?;
                    if let Some(blocks) = told.blocks {
                        let blocks = blocks.map(u32::to_be_bytes).concat();
                        self.reply(code, 3, &[&[0, 3][..], &blocks].concat())?;
                    }
                    return self.reply(code, 1, &[]);
                }
                _ => self.reply(code, (1 << 31) + 1, &[])?,
            }
        }
    }

    fn request(&mut self) -> io::Result<Asked> {
        let header: [u8; 28] = self.take()?;
        Ok(Asked {
            kind: u16::from_be_bytes(header[6..8].try_into().unwrap()),
            cookie: u64::from_be_bytes(header[8..16].try_into().unwrap()),
            offset: u64::from_be_bytes(header[16..24].try_into().unwrap()),
            len_bytes: u32::from_be_bytes(header[24..].try_into().unwrap()),
        })
    }

    fn extended_request(&mut self) -> io::Result<Asked> {
        let header: [u8; 32] = self.take()?;
        assert_eq!(header[..4], [0x21, 0xe4, 0x1c, 0x71]);
        Ok(Asked {
            kind: u16::from_be_bytes(header[6..8].try_into().unwrap()),
            cookie: u64::from_be_bytes(header[8..16].try_into().unwrap()),
            offset: u64::from_be_bytes(header[16..24].try_into().unwrap()),
            len_bytes: u64::from_be_bytes(header[24..].try_into().unwrap()) as u32,
        })
    }

    /// A last chunk with an extended header.
    fn extended_chunk(&mut self, kind: u16, asked: &Asked, len: u64, data: &[u8]) -> io::Result<()> {
        let magic = 0x6e8a_278c_u32.to_be_bytes();
        let start = [&magic[..], &1_u16.to_be_bytes(), &kind.to_be_bytes()].concat();
        let numbers = [asked.cookie, asked.offset, len].map(u64::to_be_bytes).concat();
        self.send(&[&start, &numbers, data])
    }

    fn chunk(&mut self, flags: u16, kind: u16, cookie: u64, len: u32, data: &[u8]) -> io::Result<()> {
        let magic = 0x668e_33ef_u32.to_be_bytes();
        let (flags, kind) = (flags.to_be_bytes(), kind.to_be_bytes());
        self.send(&[&magic, &flags, &kind, &cookie.to_be_bytes(), &len.to_be_bytes(), data])
    }

    /// Answers as a server does whose disk holds the low byte of each sector's number.
    fn serve(&mut self, count: usize) -> io::Result<()> {
        for _ in 0..count {
            let asked = self.request()?;
            match asked.kind {
                0 => {
                    let data = contents(asked.offset, asked.len_bytes as usize);
                    let payload = [&asked.offset.to_be_bytes()[..], &data].concat();
                    self.chunk(1, 1, asked.cookie, payload.len() as u32, &payload)?;
                }
                7 => {
                    let extent = [&[0, 0, 0, 7][..], &asked.len_bytes.to_be_bytes(), &[0; 4]].concat();
                    self.chunk(1, 5, asked.cookie, 12, &extent)?;
                }
                _ => return Ok(()),
            }
        }
        Ok(())
    }
}

fn contents(offset: u64, len: usize) -> Vec<u8> {
    (offset..).take(len).map(|at| (at / 512) as u8).collect()
}

fn patience() -> Patience {
    Patience {
        lane_count_max: 4,
        negotiation_max: Duration::from_secs(60),
        silence_max: Duration::from_secs(60),
        pauses: vec![Duration::ZERO; 2],
        retry_count_max: 3,
    }
}

/// A disk behind a server that does this on each connection, whose number it is told.
fn connect_patiently(
    patience: Patience,
    server: impl Fn(usize, &mut Peer) -> io::Result<()> + Send + Sync + 'static,
) -> Result<RemoteDisk> {
    let (server, count) = (Arc::new(server), AtomicUsize::new(0));
    let dial = move || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (server, index) = (server.clone(), count.fetch_add(1, Ordering::Relaxed));
        std::thread::spawn(move || server(index, &mut Peer(theirs)));
        Ok(Socket::Unix(ours))
    };
    RemoteDisk::connect("server", Box::new(dial), Wanted::default(), patience)
}

fn connect(
    server: impl Fn(usize, &mut Peer) -> io::Result<()> + Send + Sync + 'static,
) -> Result<RemoteDisk> {
    connect_patiently(patience(), server)
}

fn error_of(
    told: Told,
    answer: impl Fn(&mut Peer, &Asked) -> io::Result<()> + Send + Sync + 'static,
    ask: impl Fn(&RemoteDisk) -> Result<()>,
) -> Error {
    let disk = connect(move |_, peer| {
        peer.negotiate(told)?;
        loop {
            let asked = peer.request()?;
            answer(peer, &asked)?;
        }
    });
    ask(&disk.unwrap()).unwrap_err()
}

fn read(disk: &RemoteDisk) -> Result<()> {
    disk.read_at(Offset::new(4096), &mut [0; 8192])
}

fn map(disk: &RemoteDisk) -> Result<()> {
    disk.host_map(Span::from_zero(LEN_BYTES)).map(drop)
}

#[track_caller]
fn assert_corrupt(error: &Error, cause: Corrupt) {
    assert_eq!((error.kind(), error.cause()), (ErrorKind::Corrupt, Some(&cause)), "{error}");
    assert!(error.to_string().starts_with("server: "), "{error}");
}

#[test]
fn a_negotiation_that_makes_no_sense_is_an_error() {
    let fails = |server: fn(usize, &mut Peer) -> io::Result<()>| connect(server).err().unwrap();
    assert_corrupt(&fails(|_, peer| peer.send(&[b"HTTP/1.1 400 Bad Request"])), Corrupt::Greeting);
    assert_corrupt(
        &fails(|_, peer| peer.send(&[b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0"])),
        Corrupt::Style,
    );
    let endless = fails(|_, peer| {
        peer.greet()?;
        let code = peer.option()?;
        loop {
            peer.reply(code, 3, &[0; 64])?;
        }
    });
    assert_corrupt(&endless, Corrupt::Endless);
    let long = fails(|_, peer| {
        peer.greet()?;
        let code = peer.option()?.to_be_bytes();
        peer.send(&[&REP.to_be_bytes(), &code, &[0, 0, 0, 1], &[0xff; 4]])
    });
    assert_corrupt(&long, Corrupt::OptionReply);
    let other = fails(|_, peer| {
        peer.greet()?;
        peer.option()?;
        peer.reply(99, 1, &[])
    });
    assert_corrupt(&other, Corrupt::OptionReply);
    for told in [
        Told { len_bytes: u64::MAX, ..PLAIN },
        Told { blocks: Some([3, 4096, 1 << 20]), ..PLAIN },
        Told { blocks: Some([1 << 20, 1 << 20, 1 << 20]), ..PLAIN },
        Told { blocks: Some([512, 256, 1 << 20]), ..PLAIN },
        Told { blocks: Some([1, 4096, 100]), ..PLAIN },
    ] {
        let error = connect(move |_, peer| peer.negotiate(told)).err().unwrap();
        assert_corrupt(&error, Corrupt::Export);
    }
    let kind = connect(|_, _| Ok(())).err().unwrap().kind();
    assert_eq!(kind, ErrorKind::Io, "nothing is said at all");
}

#[test]
fn a_server_that_lacks_the_export_tells_which_it_has() {
    let error = connect(|_, peer| {
        peer.greet()?;
        loop {
            match peer.option()? {
                7 => peer.reply(7, (1 << 31) + 6, b"no\x1b[31m such")?,
                3 => {
                    for name in [&b"one"[..], b"two\x07"] {
                        peer.reply(3, 2, &[&(name.len() as u32).to_be_bytes(), name].concat())?;
                    }
                    // A name that is longer than what holds it.
                    peer.reply(3, 2, &[0xff; 6])?;
                    peer.reply(3, 1, &[])?;
                }
                code => peer.reply(code, (1 << 31) + 1, &[])?,
            }
        }
    })
    .err()
    .unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(!error.to_string().contains('\x1b'), "{error}");
    assert_eq!(error.hint_text(), Some("it has 'one', 'two\\x07'"));
}

#[test]
fn replies_that_do_not_fit_their_request_are_errors() {
    type Answer = fn(&mut Peer, &Asked) -> io::Result<()>;
    let data = |at: u64, len: usize| [&at.to_be_bytes()[..], &vec![1; len]].concat();
    let cases: [(&str, Corrupt, Answer); 9] = [
        ("magic", Corrupt::Reply, |peer, _| peer.send(&[&[0x11; 20]])),
        ("cookie", Corrupt::Cookie, |peer, asked| peer.chunk(1, 0, asked.cookie + 5, 0, &[])),
        ("kind", Corrupt::Chunk, |peer, asked| peer.chunk(1, 77, asked.cookie, 0, &[])),
        ("nothing", Corrupt::Incomplete, |peer, asked| peer.chunk(1, 0, asked.cookie, 0, &[])),
        ("long", Corrupt::Chunk, |peer, asked| peer.chunk(1, 1, asked.cookie, u32::MAX, &[0; 8])),
        ("empty", Corrupt::Chunk, |peer, asked| peer.chunk(1, 1, asked.cookie, 8, &[0; 8])),
        ("unasked", Corrupt::Chunk, |peer, asked| {
            peer.chunk(1, 5, asked.cookie, 12, &[0, 0, 0, 7, 0, 0, 16, 0, 0, 0, 0, 0])
        }),
        ("huge hole", Corrupt::Chunk, |peer, asked| {
            peer.chunk(1, 2, asked.cookie, 12, &[&asked.offset.to_be_bytes()[..], &[0xff; 4]].concat())
        }),
        ("endless", Corrupt::Endless, |peer, asked| {
            loop {
                peer.chunk(0, 0, asked.cookie, 0, &[])?;
            }
        }),
    ];
    for (name, cause, answer) in cases {
        let error = error_of(PLAIN, answer, read);
        assert_eq!((error.kind(), error.cause()), (ErrorKind::Corrupt, Some(&cause)), "{name}: {error}");
    }
    for (at, len) in [(0, 4096), (4096 + 8192, 1), (4096, 8193), (u64::MAX, 100), (8192, 8192)] {
        let payload = data(at, len);
        let answer = move |peer: &mut Peer, asked: &Asked| {
            peer.chunk(1, 1, asked.cookie, payload.len() as u32, &payload)
        };
        assert_corrupt(&error_of(PLAIN, answer, read), Corrupt::Chunk);
    }
    // The same bytes twice, and a gap that is left.
    for (pieces, cause) in [
        ([(4096, 4096), (6144, 4096)], Corrupt::Chunk),
        ([(8192, 4096), (8192, 1)], Corrupt::Chunk),
        ([(8192, 4096), (4096, 4095)], Corrupt::Incomplete),
    ] {
        let payloads = pieces.map(|(at, len)| data(at, len));
        let answer = move |peer: &mut Peer, asked: &Asked| {
            peer.chunk(0, 1, asked.cookie, payloads[0].len() as u32, &payloads[0])?;
            peer.chunk(1, 1, asked.cookie, payloads[1].len() as u32, &payloads[1])
        };
        assert_corrupt(&error_of(PLAIN, answer, read), cause);
    }
}

#[test]
fn pieces_in_any_order_are_a_whole_read() {
    let disk = connect(|_, peer| {
        peer.negotiate(PLAIN)?;
        let asked = peer.request()?;
        for (index, start) in [(0, 3), (1, 0), (2, 1), (3, 2)] {
            let at = asked.offset + start * 2048;
            let flags = u16::from(index == 3);
            if start == 1 {
                peer.chunk(
                    flags,
                    2,
                    asked.cookie,
                    12,
                    &[&at.to_be_bytes()[..], &2048_u32.to_be_bytes()].concat(),
                )?;
                continue;
            }
            let payload = [&at.to_be_bytes()[..], &contents(at, 2048)].concat();
            peer.chunk(flags, 1, asked.cookie, payload.len() as u32, &payload)?;
        }
        Ok(())
    })
    .unwrap();
    let mut buf = vec![9; 8192];
    disk.read_at(Offset::new(4096), &mut buf).unwrap();
    let mut expected = contents(4096, 8192);
    expected[2048..4096].fill(0);
    assert_eq!(buf, expected);
}

#[test]
fn lies_about_allocation_are_errors_or_cut_at_the_end() {
    let status = |entries: &[(u32, u32)]| {
        let entries = entries.iter().map(|(len, state)| [len.to_be_bytes(), state.to_be_bytes()].concat());
        [&[0, 0, 0, 7][..], &entries.collect::<Vec<_>>().concat()].concat()
    };
    let answers = |payload: Vec<u8>| {
        move |peer: &mut Peer, asked: &Asked| peer.chunk(1, 5, asked.cookie, payload.len() as u32, &payload)
    };
    let all = LEN_BYTES as u32;
    for wrong in [status(&[(0, 0)]), status(&[(4096, 0), (0, 3)]), status(&[(all, 0), (1, 3)])] {
        assert_corrupt(&error_of(PLAIN, answers(wrong), map), Corrupt::Allocation);
    }
    let mut other_context = status(&[(all, 0)]);
    other_context[3] = 8;
    assert_corrupt(&error_of(PLAIN, answers(other_context), map), Corrupt::Allocation);
    assert_corrupt(&error_of(PLAIN, answers(status(&[(all, 0)])[..11].to_vec()), map), Corrupt::Chunk);
    let huge = |peer: &mut Peer, asked: &Asked| peer.chunk(1, 5, asked.cookie, u32::MAX, &[]);
    assert_corrupt(&error_of(PLAIN, huge, map), Corrupt::Chunk);
    let none = |peer: &mut Peer, asked: &Asked| peer.chunk(1, 0, asked.cookie, 0, &[]);
    assert_corrupt(&error_of(PLAIN, none, map), Corrupt::Incomplete);

    let disk = connect(move |_, peer| {
        peer.negotiate(PLAIN)?;
        let asked = peer.request()?;
        let payload = status(&[(4096, 3), (4096, 1), (u32::MAX, 3)]);
        peer.chunk(1, 5, asked.cookie, payload.len() as u32, &payload)
    })
    .unwrap();
    let found = disk.host_map(Span::from_zero(LEN_BYTES)).unwrap();
    let found: Vec<_> = found.iter().map(|extent| (extent.span.len_bytes(), extent.state)).collect();
    let rest = LEN_BYTES - 8192;
    assert_eq!(
        found,
        [(4096, HostState::Hole), (4096, HostState::Data), (rest, HostState::Hole)],
        "a hole that is not said to be zeros is data"
    );
    assert_eq!(disk.allocated_bytes().unwrap(), 4096);
}

/// What comes of an answer with extended headers.
fn extended_error(
    answer: impl Fn(&mut Peer, &Asked) -> io::Result<()> + Send + Sync + 'static,
    ask: impl Fn(&RemoteDisk) -> Result<()>,
) -> Error {
    let disk = connect(move |_, peer| {
        peer.negotiate(EXTENDED)?;
        loop {
            let asked = peer.extended_request()?;
            answer(peer, &asked)?;
        }
    });
    ask(&disk.unwrap()).unwrap_err()
}

/// The payload of a chunk about allocation with 64 bits: this many extents are said to be there.
fn long_status(count: u32, entries: &[(u64, u64)]) -> Vec<u8> {
    let entries = entries.iter().map(|(len, state)| [len.to_be_bytes(), state.to_be_bytes()].concat());
    [&[0, 0, 0, 7][..], &count.to_be_bytes(), &entries.collect::<Vec<_>>().concat()].concat()
}

#[test]
fn extended_headers_are_read_and_what_does_not_fit_them_is_an_error() {
    let simple = |peer: &mut Peer, asked: &Asked| {
        peer.send(&[&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], &asked.cookie.to_be_bytes(), &[0; 64]])
    };
    assert_corrupt(&extended_error(simple, read), Corrupt::Reply);
    let compact = |peer: &mut Peer, asked: &Asked| peer.chunk(1, 1, asked.cookie, 12, &[0; 64]);
    assert_corrupt(&extended_error(compact, read), Corrupt::Reply);
    let elsewhere = |peer: &mut Peer, asked: &Asked| {
        let other = Asked { offset: asked.offset + 1, ..*asked };
        peer.extended_chunk(1, &other, 8192 + 8, &[&asked.offset.to_be_bytes()[..], &[1; 8192]].concat())
    };
    assert_corrupt(&extended_error(elsewhere, read), Corrupt::Chunk);
    for len in [u64::MAX, 1 << 32, 8192 + 9] {
        let long = move |peer: &mut Peer, asked: &Asked| {
            peer.extended_chunk(1, asked, len, &[&asked.offset.to_be_bytes()[..], &[1; 8193]].concat())
        };
        assert_corrupt(&extended_error(long, read), Corrupt::Chunk);
    }
    let answers = |kind: u16, payload: Vec<u8>| {
        move |peer: &mut Peer, asked: &Asked| peer.extended_chunk(kind, asked, payload.len() as u64, &payload)
    };
    let whole = [(LEN_BYTES, 0)];
    assert_corrupt(&extended_error(answers(5, vec![0; 12]), map), Corrupt::Chunk);
    for (count, kept) in [(0, 24), (2, 24), (u32::MAX, 24), (1, 23), (1, 8)] {
        let payload = long_status(count, &whole)[..kept].to_vec();
        assert_corrupt(&extended_error(answers(6, payload), map), Corrupt::Chunk);
    }
    let after_all = long_status(2, &[(u64::MAX, 0), (1, 3)]);
    for wrong in [long_status(1, &[(0, 0)]), long_status(2, &[(4096, 0), (0, 3)]), after_all] {
        assert_corrupt(&extended_error(answers(6, wrong), map), Corrupt::Allocation);
    }
    let huge = |peer: &mut Peer, asked: &Asked| peer.extended_chunk(6, asked, 1 << 31, &[]);
    assert_corrupt(&extended_error(huge, map), Corrupt::Chunk);
    // What belongs to extended headers, without them.
    let unagreed = |peer: &mut Peer, asked: &Asked| peer.chunk(1, 6, asked.cookie, 24, &[0; 24]);
    assert_corrupt(&error_of(PLAIN, unagreed, map), Corrupt::Chunk);

    let disk = connect(move |_, peer| {
        peer.negotiate(EXTENDED)?;
        let asked = peer.extended_request()?;
        peer.extended_chunk(6, &asked, 40, &long_status(2, &[(4096, 3), (u64::MAX, 0)]))?;
        let asked = peer.extended_request()?;
        let payload = [&asked.offset.to_be_bytes()[..], &[5; 8192]].concat();
        peer.extended_chunk(1, &asked, payload.len() as u64, &payload)
    })
    .unwrap();
    let found = disk.host_map(Span::from_zero(LEN_BYTES)).unwrap();
    assert_eq!(
        found.iter().map(|extent| extent.span.len_bytes()).collect::<Vec<_>>(),
        [4096, LEN_BYTES - 4096]
    );
    let mut buf = vec![0; 8192];
    disk.read_at(Offset::new(4096), &mut buf).unwrap();
    assert_eq!(buf, [5; 8192]);
}

#[test]
fn a_server_that_comes_back_without_extended_headers_is_another() {
    let disk = connect(|index, peer| {
        peer.negotiate(Told { is_extended: index == 0, ..PLAIN })?;
        peer.extended_request().map(drop)
    })
    .unwrap();
    assert_eq!(read(&disk).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn an_error_that_is_answered_ends_a_request_and_not_the_connection() {
    let disk = connect(|_, peer| {
        peer.negotiate(PLAIN)?;
        let asked = peer.request()?;
        peer.chunk(1, (1 << 15) + 1, asked.cookie, 9, &[0, 0, 0, 5, 0, 3, b'b', b'a', b'd'])?;
        peer.serve(1)
    })
    .unwrap();
    let error = read(&disk).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(
        error.to_string().contains("(bad)") && error.to_string().contains("Input/output error"),
        "{error}"
    );
    read(&disk).unwrap();
}

#[test]
fn a_lost_connection_is_taken_up_again() {
    // Each connection does for two requests, and is cut within the reply to the third.
    let disk = connect(|_, peer| {
        peer.negotiate(PLAIN)?;
        peer.serve(2)?;
        let asked = peer.request()?;
        peer.chunk(1, 1, asked.cookie, asked.len_bytes + 8, &asked.offset.to_be_bytes())
    })
    .unwrap();
    for index in 0..20 {
        let at = index * 512 + 13;
        let mut buf = vec![0; 5000];
        disk.read_at(Offset::new(at), &mut buf).unwrap();
        assert_eq!(buf, contents(at, 5000));
    }
}

#[test]
fn a_connection_that_cannot_be_taken_up_again_is_an_error() {
    let again_and_again = connect(|_, peer| peer.negotiate(PLAIN)).unwrap();
    assert_eq!(read(&again_and_again).unwrap_err().kind(), ErrorKind::Io);

    let gone = connect(|index, peer| if index == 0 { peer.negotiate(PLAIN) } else { Ok(()) }).unwrap();
    let error = read(&gone).unwrap_err();
    assert!(error.kind() == ErrorKind::Io && error.hint_text().is_some(), "{error}");

    let another =
        connect(|index, peer| peer.negotiate(Told { len_bytes: LEN_BYTES + 512 * index as u64, ..PLAIN }))
            .unwrap();
    let error = read(&another).unwrap_err();
    assert!(error.kind() == ErrorKind::Io && error.to_string().contains("another disk"), "{error}");

    let silent = Patience { silence_max: Duration::from_millis(50), retry_count_max: 0, ..patience() };
    let silent = connect_patiently(silent, |_, peer| {
        peer.negotiate(PLAIN)?;
        peer.request()?;
        // Until the client has left.
        peer.take::<1>().map(drop)
    })
    .unwrap();
    let error = read(&silent).unwrap_err();
    assert_eq!(error.io_source().map(io::Error::kind), Some(io::ErrorKind::TimedOut), "{error}");
}

#[test]
fn many_threads_ask_on_few_connections_and_replies_come_in_any_order() {
    // Three requests are collected before they are answered, the last one first.
    let disk = connect(|_, peer| {
        peer.negotiate(Told { flags: 0b11 | 1 << 8, blocks: Some([512, 4096, 1 << 20]), ..PLAIN })?;
        loop {
            let mut asked = vec![peer.request()?];
            peer.0.set_read_timeout(Some(Duration::from_millis(1)))?;
            while asked.len() < 3
                && let Ok(more) = peer.request()
            {
                asked.push(more);
            }
            peer.0.set_read_timeout(None)?;
            for Asked { cookie, offset, len_bytes, .. } in asked.into_iter().rev() {
                assert!(offset % 512 == 0 && len_bytes % 512 == 0);
                let payload = [&offset.to_be_bytes()[..], &contents(offset, len_bytes as usize)].concat();
                peer.chunk(1, 1, cookie, payload.len() as u32, &payload)?;
            }
        }
    })
    .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..16_u64 {
            let disk = &disk;
            scope.spawn(move || {
                for index in 0..40 {
                    let at = (thread * 3331 + index * 1777) % (LEN_BYTES - 6000);
                    let mut buf = vec![0; 5000 + thread as usize];
                    disk.read_at(Offset::new(at), &mut buf).unwrap();
                    assert_eq!(buf, contents(at, buf.len()), "{at}");
                }
            });
        }
    });
}

#[test]
fn a_long_read_is_several_requests_at_once_whose_replies_come_in_any_order() {
    const LONG: usize = 1 << 20;
    const DISK: Told = Told { len_bytes: 4 << 20, ..PLAIN };
    type Answers = fn(&mut Peer, &[Asked]) -> io::Result<()>;
    fn data(peer: &mut Peer, Asked { cookie, offset, len_bytes, .. }: &Asked) -> io::Result<()> {
        let payload = [&offset.to_be_bytes()[..], &contents(*offset, *len_bytes as usize)].concat();
        peer.chunk(1, 1, *cookie, payload.len() as u32, &payload)
    }
    // What the first connection answers. Every other one is that of a good server.
    let read_from = |answers: Answers| {
        let disk = connect(move |index, peer| {
            peer.negotiate(DISK)?;
            if index == 0 {
                let mut asked = Vec::new();
                while asked.iter().map(|asked: &Asked| asked.len_bytes as usize).sum::<usize>() < LONG {
                    asked.push(peer.request()?);
                }
                assert!(asked.len() > 2, "{} requests", asked.len());
                answers(peer, &asked)?;
            }
            peer.serve(usize::MAX)
        })
        .unwrap();
        let read_all = || -> Result<()> {
            let mut buf = vec![0; LONG];
            disk.read_at(Offset::new(4096), &mut buf)?;
            assert_eq!(buf, contents(4096, LONG));
            Ok(())
        };
        (read_all(), read_all())
    };
    let (reversed, again) =
        read_from(|peer, asked| asked.iter().rev().try_for_each(|asked| data(peer, asked)));
    reversed.and(again).unwrap();

    // The others' replies are received all the same.
    let (refused, again) = read_from(|peer, asked| {
        let error = &[0, 0, 0, 5, 0, 3, b'b', b'a', b'd'];
        peer.chunk(1, (1 << 15) + 1, asked[1].cookie, error.len() as u32, error)?;
        data(peer, &asked[0])?;
        asked[2..].iter().try_for_each(|asked| data(peer, asked))
    });
    assert!(refused.unwrap_err().to_string().contains("(bad)"));
    again.unwrap();

    let (twice, again) = read_from(|peer, asked| {
        data(peer, &asked[1])?;
        data(peer, &asked[1])?;
        peer.take::<1>().map(drop)
    });
    assert_corrupt(&twice.unwrap_err(), Corrupt::Cookie);
    assert!(again.is_err());

    let (cut, again) = read_from(|peer, asked| {
        data(peer, &asked[2])?;
        Err(io::ErrorKind::BrokenPipe.into())
    });
    cut.and(again).unwrap();
}

#[test]
fn reads_and_long_writes_on_one_connection_never_wait_for_each_other() {
    const PART: usize = 2 << 20;
    // A server that reads late, and takes no request until its reply is received.
    let serve = |mut peer: Peer| -> io::Result<()> {
        peer.negotiate(Told { len_bytes: 64 << 20, flags: 0b1, ..PLAIN })?;
        let mut reads = Vec::new();
        loop {
            peer.0.set_read_timeout(Some(Duration::from_millis(if reads.is_empty() { 5000 } else { 1 })))?;
            let asked = match peer.request() {
                Ok(asked) => Some(asked),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !reads.is_empty() => None,
                Err(error) => return Err(error),
            };
            peer.0.set_read_timeout(None)?;
            match asked {
                Some(asked) if asked.kind == 1 => {
                    peer.0.read_exact(&mut vec![0; asked.len_bytes as usize])?;
                    peer.chunk(1, 0, asked.cookie, 0, &[])?;
                }
                Some(asked) if asked.kind == 0 => {
                    reads.push(asked);
                    continue;
                }
                Some(_) => return Ok(()),
                None => {}
            }
            if let Some(Asked { cookie, offset, len_bytes, .. }) = reads.pop() {
                let payload = [&offset.to_be_bytes()[..], &contents(offset, len_bytes as usize)].concat();
                peer.chunk(1, 1, cookie, payload.len() as u32, &payload)?;
            }
        }
    };
    let dial = move || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || serve(Peer(theirs)));
        Ok(Socket::Unix(ours))
    };
    let patience = Patience { silence_max: Duration::from_secs(20), ..patience() };
    let target = RemoteTarget::connect("server", Box::new(dial), Wanted::default(), patience).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let target = &target;
            scope.spawn(move || {
                for index in 0..8 {
                    let at = (thread * 8 + index) << 20;
                    let mut buf = vec![1; PART];
                    if thread % 2 == 0 {
                        target.write_at(Offset::new(at), &buf).unwrap();
                    } else {
                        target.read_at(Offset::new(at), &mut buf).unwrap();
                        assert_eq!(buf, contents(at, PART));
                    }
                }
            });
        }
    });
}
