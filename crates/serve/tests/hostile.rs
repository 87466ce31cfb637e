//! Clients that mean harm: memory stays bounded, a good client goes on, nothing panics. A program by itself: other tests take memory, too.

// A test by itself: what fails ends the test.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

#[path = "it/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::Served;
use common::client::*;
use proptest::prelude::*;
use serve::nbd::protocol::{
    ExportFacts, Headers, Negotiation, Next, Request, Session, TlsState, parse_option,
};
use serve::nbd::{Event, Options};

const MIB: u64 = 1 << 20;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// The slowest of some requests of a good client.
fn slowest(client: &mut Client, count: u64) -> Duration {
    (0..count)
        .map(|index| {
            let began = Instant::now();
            client.write(index * 4096, &[index as u8; 4096]);
            assert_eq!(client.read(index * 4096, 4096), [index as u8; 4096]);
            began.elapsed()
        })
        .max()
        .unwrap()
}

fn session(headers: Headers) -> Session {
    Session {
        export_index: 0,
        len_bytes: 1 << 20,
        is_read_only: false,
        is_structured: true,
        headers,
        has_allocation: true,
    }
}

fn short() -> Options {
    Options { handshake: Duration::from_millis(500), stall: Duration::from_secs(2), ..Options::default() }
}

#[test]
fn garbage_at_every_step_ends_that_connection_alone() {
    let served = Served::with(MIB, short(), |export| export);
    let mut good = Client::ready(&served.socket, "disk");
    let mut random = sim::Random::new(11);
    for round in 0..60u64 {
        let mut bad = match round % 5 {
            4 => Client::extended(&served.socket, "disk"),
            0 => Client::connect(&served.socket),
            1 => Client::greeted(&served.socket, 3),
            2 => Client::ready(&served.socket, "disk"),
            _ => Client::simple(&served.socket, "disk"),
        };
        let bytes: Vec<u8> = (0..random.below(5000)).map(|_| random.next_u64() as u8).collect();
        // The server may have hung up already.
        let _ = bad.stream.write_all(&bytes);
        if round % 2 == 0 {
            let _ = bad.stream.shutdown(std::net::Shutdown::Write);
            let mut rest = Vec::new();
            let _ = bad.stream.read_to_end(&mut rest);
        }
        assert!(slowest(&mut good, 3) < Duration::from_secs(5));
    }
}

#[test]
fn whoever_says_nothing_is_hung_up_on_and_whoever_drips_too() {
    let served = Served::with(MIB, short(), |export| export);
    let mut silent = Client::greeted(&served.socket, 3);
    let mut dripping = Client::greeted(&served.socket, 3);
    let began = Instant::now();
    for byte in b"IHAVEOPT\0\0\0\x03\0\0" {
        if dripping.stream.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(60));
    }
    assert!(dripping.is_closed() && silent.is_closed());
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn there_are_no_more_connections_than_may_be() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let options =
        Options { tell: Arc::new(move |event| tell.lock().unwrap().push(event)), ..Options::default() };
    let served = Served::with(MIB, options, |export| export);
    let mut good = Client::ready(&served.socket, "disk");
    let mut idle: Vec<UnixStream> = (0..200).map(|_| UnixStream::connect(&served.socket).unwrap()).collect();
    let mut greeted = 0;
    for stream in &mut idle {
        let mut greeting = [0; 18];
        greeted += usize::from(stream.read_exact(&mut greeting).is_ok());
    }
    assert_eq!(greeted, 99, "and the good one");
    assert_eq!(
        told.lock().unwrap().iter().filter(|event| matches!(event, Event::TooManyConnections)).count(),
        101
    );
    assert!(slowest(&mut good, 20) < Duration::from_secs(5));
    drop(idle);
    // Their places are free again.
    let deadline = Instant::now() + Duration::from_secs(30);
    while served.server.as_ref().unwrap().connection_count() > 1 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    Client::ready(&served.socket, "disk").read(0, 1);
}

#[test]
fn payloads_that_never_come_and_replies_that_nobody_takes_cost_bounded_memory() {
    let served =
        Served::with(64 * MIB, Options { stall: Duration::from_secs(60), ..Options::default() }, |export| {
            export
        });
    let mut good = Client::ready(&served.socket, "disk");
    slowest(&mut good, 5);
    let before = resident_bytes();
    let mut bad = Vec::new();
    for index in 0..80u64 {
        let mut client = Client::ready(&served.socket, "disk");
        client.stream.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
        if index % 2 == 0 {
            // All but the last byte of the longest payload, and that only as far as the server takes it.
            let _ = client.stream.write_all(&request(WRITE, 0, 1, 0, 32 << 20, &vec![1; 31 << 20]));
        } else {
            let requests: Vec<u8> =
                (0..400).flat_map(|cookie| request(READ, 0, cookie, 0, 2 << 20, &[])).collect();
            let _ = client.stream.write_all(&requests);
        }
        bad.push(client);
    }
    let grown = resident_bytes().saturating_sub(before);
    // What all share, and what each has of its own.
    assert!(grown < (256 << 20) + 80 * (5 << 20) + (64 << 20), "{} MiB", grown >> 20);
    assert!(slowest(&mut good, 50) < Duration::from_secs(5));
    let mut later = Client::ready(&served.socket, "disk");
    let data = vec![5; 8 << 20];
    assert_eq!(later.ask(WRITE, 0, 32 * MIB, 8 << 20, &data).error, 0, "long requests go on too");
    assert!(later.read(32 * MIB, 8 << 20) == data);
}

#[test]
fn who_stalls_within_a_request_is_hung_up_on_and_who_is_idle_is_not() {
    let options = Options { stall: Duration::from_millis(300), ..Options::default() };
    let served = Served::with(MIB, options, |export| export);
    let mut idle = Client::ready(&served.socket, "disk");
    let mut stalled = Client::ready(&served.socket, "disk");
    stalled.request(WRITE, 0, 1, 0, 100_000, &[1; 500]);
    assert!(stalled.is_closed());
    std::thread::sleep(Duration::from_millis(700));
    idle.write(5, b"still here");
    assert_eq!(idle.read(5, 10), b"still here");
    assert_eq!(idle.read(0, 5), [0; 5], "half a payload was not written");
}

#[test]
fn an_abrupt_end_leaves_nothing_behind() {
    let served = Served::new(MIB);
    served.disk.delay_us.store(20_000, SeqCst);
    for len in [0, 5, 28, 100, 4000] {
        let mut client = Client::ready(&served.socket, "disk");
        let all: Vec<u8> =
            (0..10).flat_map(|cookie| request(WRITE, 0, cookie, 0, 1000, &[9; 1000])).collect();
        client.send(&all[..all.len() - len]);
        drop(client);
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while served.server.as_ref().unwrap().connection_count() > 0 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    // Nothing counts as under way.
    served.disk.delay_us.store(0, SeqCst);
    let before = served.monitor.snapshot();
    Client::ready(&served.socket, "disk").read(0, 1);
    assert_eq!(served.monitor.snapshot().since(&before).outstanding.all.counts[0], 1);
}

#[test]
fn a_slow_client_does_not_slow_a_good_one() {
    let served = Served::new(16 * MIB);
    let mut slow: Vec<Client> = (0..8).map(|_| Client::ready(&served.socket, "disk")).collect();
    for client in &mut slow {
        client.stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        let requests: Vec<u8> =
            (0..200).flat_map(|cookie| request(READ, 0, cookie, 0, 1 << 20, &[])).collect();
        let _ = client.stream.write_all(&requests);
    }
    let mut good = Client::ready(&served.socket, "disk");
    assert!(slowest(&mut good, 200) < Duration::from_secs(2));
}

fn facts() -> Vec<ExportFacts> {
    vec![ExportFacts {
        name: "disk".into(),
        description: String::new(),
        len_bytes: 1 << 20,
        preferred_bytes: 4096,
        is_read_only: false,
        is_private: false,
    }]
}

proptest! {
    #[test]
    fn any_option_is_answered_with_whole_replies(
        options in proptest::collection::vec((0u32..12, proptest::collection::vec(any::<u8>(), 0..60)), 0..20),
        tls in 0usize..3,
    ) {
        let facts = facts();
        let tls = [TlsState::None, TlsState::Required, TlsState::Active][tls];
        let mut negotiation = Negotiation::new(&facts, tls, [0, 0, 0, 3]).unwrap();
        for (code, data) in options {
            let (reply, next) = negotiation.answer(code, &data);
            if next == Next::Close {
                break;
            }
            if code == 1 {
                continue;
            }
            let mut rest = reply.as_slice();
            let mut finals = 0;
            while !rest.is_empty() {
                let len = u32::from_be_bytes(rest[16..20].try_into().unwrap()) as usize;
                let kind = u32::from_be_bytes(rest[12..16].try_into().unwrap());
                prop_assert_eq!(&rest[8..12], &code.to_be_bytes()[..]);
                finals += usize::from(kind == ACK || kind > 0x8000_0000);
                rest = &rest[20 + len..];
            }
            prop_assert_eq!(finals, 1);
            if tls == TlsState::Required && code != 5 {
                prop_assert_eq!(u32::from_be_bytes(reply[12..16].try_into().unwrap()), ERR_TLS_REQD);
            }
        }
    }

    #[test]
    fn a_request_that_is_accepted_lies_within_the_export(header in any::<[u8; 28]>(), offset in 0u64..(1 << 21), len in any::<u32>(), kind in 0u16..9) {
        let mut header = header;
        header[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
        header[4] = 0;
        header[5] &= 0x1f;
        header[6..8].copy_from_slice(&kind.to_be_bytes());
        header[16..24].copy_from_slice(&offset.to_be_bytes());
        header[24..].copy_from_slice(&len.to_be_bytes());
        let session = session(Headers::Compact);
        prop_assert_eq!(Request::parse(&header[..27], Headers::Compact), Ok(None));
        let Ok(Some(request)) = Request::parse(&header, Headers::Compact) else { return Ok(()) };
        prop_assert!(request.payload_bytes() <= 32 << 20);
        if let Ok((_, span)) = request.check(&session) {
            prop_assert!(span.end().get() <= 1 << 20);
        }
    }

    #[test]
    fn an_extended_request_that_is_accepted_lies_within_the_export(
        flags in 0u16..64, kind in 0u16..9, offset in prop_oneof![0u64..(1 << 21), any::<u64>()],
        len in prop_oneof![0u64..(1 << 21), any::<u64>()], asked in prop_oneof![0u64..(1 << 21), any::<u64>()]
    ) {
        let header = extended_request(kind, flags, 7, offset, len);
        let session = session(Headers::Extended);
        prop_assert_eq!(Request::parse(&header[..31], Headers::Extended), Ok(None));
        let Ok(Some(request)) = Request::parse(&header, Headers::Extended) else {
            prop_assert!((flags & PAYLOAD_LEN != 0 || kind == WRITE) && len > 32 << 20);
            return Ok(());
        };
        prop_assert_eq!(u64::from(request.payload_bytes()), if flags & PAYLOAD_LEN != 0 || kind == WRITE { len } else { 0 });
        if let Ok((_, span)) = request.check(&session) {
            prop_assert!(span.end().get() <= 1 << 20);
            prop_assert!(kind == WRITE || flags & PAYLOAD_LEN == 0);
        }
        let payload = [&asked.to_be_bytes()[..], &1u32.to_be_bytes()].concat();
        if let Ok(Ok((_, span))) = request.with_payload(&payload).map(|request| request.check(&session))
            && kind == BLOCK_STATUS
        {
            prop_assert_eq!(span.len_bytes(), asked);
        }
    }

    #[test]
    fn any_header_of_an_option_is_parsed(header in any::<[u8; 16]>()) {
        prop_assert!(parse_option(&header).is_err() || header.starts_with(b"IHAVEOPT"));
    }
}
