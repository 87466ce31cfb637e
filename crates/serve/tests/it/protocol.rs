//! Every option, command and error of the protocol, by a client that is written by hand.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::common::client::*;
use crate::common::{RawDisk, Served};
use serve::Export;
use serve::nbd::{Listener, Options, Server};

const MIB: u64 = 1 << 20;

fn info_data(name: &str, kinds: &[u16]) -> Vec<u8> {
    let kinds: Vec<u8> = kinds.iter().flat_map(|kind| kind.to_be_bytes()).collect();
    [named(name).as_slice(), &((kinds.len() / 2) as u16).to_be_bytes(), &kinds].concat()
}

#[test]
fn every_option_is_answered() {
    let served = Served::new(MIB);
    let mut client = Client::greeted(&served.socket, 3);
    let entry = [named("disk").as_slice(), b"a raw disk"].concat();
    assert_eq!(client.option(LIST, &[]), [(SERVER, entry), (ACK, vec![])]);
    assert_eq!(client.option(LIST, &[1])[0].0, ERR_INVALID);
    assert_eq!(client.option(99, &[1, 2, 3])[0].0, ERR_UNSUP);
    assert_eq!(client.option(STARTTLS, &[])[0].0, ERR_POLICY);
    assert_eq!(client.option(STARTTLS, &[0])[0].0, ERR_INVALID);

    // INFO: all that was asked for, then the same again by GO.
    let replies = client.option(INFO, &info_data("disk", &[1, 2, 3, 77]));
    // HAS_FLAGS, FLUSH, FUA, TRIM, WRITE_ZEROES, MULTI_CONN, CACHE, FAST_ZERO; no DF yet.
    let flags = 1u16 | 4 | 8 | 32 | 64 | 256 | 1024 | 2048;
    let export = [&[0, 0][..], &MIB.to_be_bytes(), &flags.to_be_bytes()].concat();
    let sizes =
        [&[0, 3][..], &1u32.to_be_bytes(), &4096u32.to_be_bytes(), &(32u32 << 20).to_be_bytes()].concat();
    let name = [&[0, 1][..], b"disk"].concat();
    let description = [&[0, 2][..], b"a raw disk"].concat();
    let expected =
        [(REP_INFO, export), (REP_INFO, name), (REP_INFO, description), (REP_INFO, sizes), (ACK, vec![])];
    assert_eq!(replies, expected);
    assert_eq!(client.option(INFO, &info_data("other", &[]))[0].0, ERR_UNKNOWN);
    assert_eq!(
        client.option(INFO, &info_data("", &[1]))[1].1,
        b"\0\x01disk",
        "the empty name means the first"
    );
    for malformed in [&[][..], &[0, 0, 0, 9, b'x'], &[0, 0, 0, 0, 0, 1], &[0, 0, 0, 0, 0, 0, 7], &[0xff; 6]] {
        assert_eq!(client.option(INFO, malformed)[0].0, ERR_INVALID, "{malformed:?}");
        assert_eq!(client.option(GO, malformed)[0].0, ERR_INVALID, "{malformed:?}");
    }

    // Contexts only after structured replies.
    let queries = |queries: &[&str]| {
        let names: Vec<u8> = queries.iter().flat_map(|query| named(query)).collect();
        [named("disk").as_slice(), &(queries.len() as u32).to_be_bytes(), &names].concat()
    };
    assert_eq!(client.option(SET_META_CONTEXT, &queries(&["base:allocation"]))[0].0, ERR_INVALID);
    assert_eq!(client.option(STRUCTURED_REPLY, &[0])[0].0, ERR_INVALID);
    assert_eq!(client.option(STRUCTURED_REPLY, &[]), [(ACK, vec![])]);
    let allocation = |id: u32| (META_CONTEXT, [&id.to_be_bytes()[..], b"base:allocation"].concat());
    let done = (ACK, vec![]);
    for wanted in [&[][..], &["base:"], &["other:x", "base:allocation"]] {
        assert_eq!(client.option(LIST_META_CONTEXT, &queries(wanted)), [allocation(0), done.clone()]);
    }
    assert_eq!(client.option(LIST_META_CONTEXT, &queries(&["qemu:"])), std::slice::from_ref(&done));
    for unwanted in [&[][..], &["base:"], &["other:x"]] {
        assert_eq!(client.option(SET_META_CONTEXT, &queries(unwanted)), std::slice::from_ref(&done));
    }
    assert_eq!(
        client.option(SET_META_CONTEXT, &queries(&["base:allocation"])),
        [allocation(1), done.clone()]
    );
    assert_eq!(client.option(SET_META_CONTEXT, &[0, 0, 0, 200, 1])[0].0, ERR_INVALID);
    let mut other = queries(&["base:allocation"]);
    other[4] = b'x';
    assert_eq!(client.option(SET_META_CONTEXT, &other)[0].0, ERR_UNKNOWN);

    // A failed SET forgets the one before.
    client.go("disk");
    assert_eq!(client.ask(BLOCK_STATUS, 0, 0, 4096, &[]).error, EINVAL);

    // DF is offered with structured replies.
    let mut client = Client::greeted(&served.socket, 3);
    client.option(STRUCTURED_REPLY, &[]);
    let replies = client.go("disk");
    assert_eq!(replies[0].1[10..], (flags | 128).to_be_bytes());

    let mut client = Client::greeted(&served.socket, 3);
    assert_eq!(client.option(ABORT, &[]), [(ACK, vec![])]);
    assert!(client.is_closed());
}

#[test]
fn export_name_of_old_clients() {
    let served = Served::new(MIB);
    for (flags, zeros) in [(1, 124), (3, 0)] {
        let mut client = Client::greeted(&served.socket, flags);
        client.send_option(EXPORT_NAME, b"disk");
        let reply = client.take(10 + zeros);
        assert_eq!(reply[..8], MIB.to_be_bytes());
        assert!(reply[10..].iter().all(|byte| *byte == 0));
        client.write(100, b"hello");
        assert_eq!(client.read(99, 7), b"\0hello\0");
    }
    let mut client = Client::greeted(&served.socket, 3);
    client.send_option(EXPORT_NAME, b"other");
    assert!(client.is_closed());
}

#[test]
fn what_is_not_the_protocol_is_hung_up_on() {
    let served = Served::new(MIB);
    // Not fixed newstyle, and flags of the future.
    for flags in [0, 2, 7] {
        assert!(Client::greeted(&served.socket, flags).is_closed(), "{flags}");
    }
    let mut client = Client::greeted(&served.socket, 3);
    client.send(b"GET / HTTP/1.1\r\n\r\n");
    assert!(client.is_closed());
    let mut client = Client::greeted(&served.socket, 3);
    client.send(&[b"IHAVEOPT".as_slice(), &3u32.to_be_bytes(), &u32::MAX.to_be_bytes()].concat());
    assert!(client.is_closed());
    // A request whose magic is wrong, one whose payload is too long.
    let mut client = Client::ready(&served.socket, "disk");
    client.send(&[7; 28]);
    assert!(client.is_closed());
    let mut client = Client::ready(&served.socket, "disk");
    client.request(WRITE, 0, 1, 0, (32 << 20) + 1, &[]);
    assert!(client.is_closed());
}

#[test]
fn every_command_does_what_it_says() {
    let served = Served::new(8 * MIB);
    for is_structured in [true, false] {
        let mut client = if is_structured {
            Client::ready(&served.socket, "disk")
        } else {
            Client::simple(&served.socket, "disk")
        };
        client.write(0, &[1; 10_000]);
        client.write(10_000, &[2; 10_000]);
        let read = client.ask(READ, 0, 9_999, 2, &[]);
        assert_eq!(read.data, [1, 2]);
        assert_eq!(read.chunks.len(), usize::from(is_structured));
        assert_eq!(client.ask(READ, 0, 0, 0, &[]).error, 0);
        assert_eq!(client.ask(WRITE, 0, 8 * MIB, 0, &[]).error, 0, "nothing at the end");

        let flushes = served.disk.flushes.load(SeqCst);
        assert_eq!(client.ask(FLUSH, 0, 0, 0, &[]).error, 0);
        assert_eq!(served.disk.flushes.load(SeqCst), flushes + 1);
        assert_eq!(client.ask(WRITE, FUA, 4096, 3, b"abc").error, 0);
        assert_eq!(served.disk.flushes.load(SeqCst), flushes + 2);
        assert_eq!(client.read(4095, 5), b"\x01abc\x01");

        assert_eq!(client.ask(WRITE_ZEROES, 0, 0, 4096, &[]).error, 0);
        assert_eq!(client.read(0, 4097), [&[0; 4096][..], b"a"].concat());
        assert_eq!(client.ask(WRITE_ZEROES, FUA | NO_HOLE, 4096, 1, &[]).error, 0);
        assert_eq!(client.read(4096, 2), b"\0b");
        assert_eq!(client.ask(WRITE_ZEROES, FAST_ZERO, 4096, 4096, &[]).error, 0);
        assert_eq!(client.ask(WRITE_ZEROES, FAST_ZERO | NO_HOLE, 8192, 4096, &[]).error, ENOTSUP);
        assert_eq!(client.read(8192, 1), [1], "refused, so unchanged");
        assert_eq!(client.ask(TRIM, FUA, 8192, 4096, &[]).error, 0);
        assert_eq!(served.disk.flushes.load(SeqCst), flushes + 4);
        assert_eq!(client.read(8192, 1), [0]);
        assert_eq!(client.ask(CACHE, 0, 0, 8 << 20, &[]).error, 0);
        client.request(DISC, 0, 0, 0, 0, &[]);
        assert!(client.is_closed());
    }
}

#[test]
fn long_requests_are_done_in_pieces() {
    let served = Served::new(32 * MIB + 12345);
    let len = 32u32 << 20;
    let data: Vec<u8> = (0..len).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut client = Client::ready(&served.socket, "disk");
    assert_eq!(client.ask(WRITE, FUA, 12345, len, &data).error, 0);
    let read = client.ask(READ, 0, 12345, len, &[]);
    assert!(read.data == data && read.chunks.len() > 1);
    let mut at = 12345;
    for (offset, len) in read.chunks {
        assert_eq!(offset, at);
        at += len as u64;
    }
    let whole = client.ask(READ, DF, 12345, len, &[]);
    assert!(whole.data == data);
    assert_eq!(whole.chunks, [(12345, len as usize)]);
    assert!(Client::simple(&served.socket, "disk").read(12345, len) == data);
    assert_eq!(client.ask(READ, 0, 0, len + 1, &[]).error, EINVAL);

    // The storage fails within: told where chunks allow it, else the connection ends, and never wrong bytes.
    served.disk.fails_above.store(20 * MIB, SeqCst);
    assert_eq!(client.ask(READ, 0, 0, len, &[]).error, EIO);
    assert_eq!(client.ask(WRITE, 0, 0, len, &data).error, EIO);
    client.request(READ, DF, 1, 0, len, &[]);
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut client.stream, &mut rest).unwrap();
    assert!(rest.len() <= (20 << 20) + 28, "{}", rest.len());
    let mut client = Client::ready(&served.socket, "disk");
    assert_eq!(client.ask(READ, DF, 20 * MIB, 4 << 20, &[]).error, EIO, "nothing was promised yet");
}

/// What was promised whole and breaks off is followed by nothing: to the client another reply would be the rest of it.
#[test]
fn nothing_follows_a_reply_that_breaks_off() {
    const ONE: u32 = 1 << 20;
    let served = Served::new(32 * MIB);
    let mut client = Client::simple(&served.socket, "disk");
    served.disk.delay_us.store(30_000, SeqCst);
    // The backend is known to be slow then: workers do what comes next.
    (0..4).for_each(|at| drop(client.read(at * MIB, ONE)));
    served.disk.fails_above.store(20 * MIB, SeqCst);
    (0..8).for_each(|at: u64| client.request(READ, 0, 100 + at, at * MIB, ONE, &[]));
    client.request(READ, 0, 1, 0, 32 << 20, &[]);
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut client.stream, &mut bytes).unwrap();
    let mut rest = &bytes[..];
    let mut cookie = 0;
    while cookie != 1 {
        let (head, others) = rest.split_at(16);
        assert_eq!(head[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        cookie = u64::from_be_bytes(head[8..].try_into().unwrap());
        rest = if cookie == 1 { others } else { &others[ONE as usize..] };
    }
    assert!(rest.len() <= 20 << 20, "{} bytes after its head, of {}", rest.len(), bytes.len());
    assert!(rest.iter().all(|byte| *byte == 0), "another reply was sent as its contents");
}

/// Pages that were taken for a read which then failed are not sent with the next one.
#[test]
fn pages_of_a_read_that_failed_go_nowhere() {
    const ONE: u32 = 512 << 10;
    for delay_us in [0, 30_000] {
        let served = Served::new(32 * MIB);
        let mut client = Client::simple(&served.socket, "disk");
        (0..32).for_each(|at: u8| client.write(u64::from(at) * u64::from(ONE), &[at + 1; ONE as usize]));
        served.disk.delay_us.store(delay_us, SeqCst);
        for round in 0..4_u64 {
            served.disk.fails_lent.store(round == 1, SeqCst);
            let cookies = 100 * round..100 * round + 16;
            for cookie in cookies.clone() {
                client.request(READ, 0, cookie, (cookie % 32) * u64::from(ONE), ONE, &[]);
            }
            for _ in cookies {
                let reply = client.reply(ONE as usize);
                let expected = u8::try_from(reply.cookie % 32 + 1).unwrap();
                assert!(reply.data.iter().all(|byte| *byte == expected), "{}", reply.cookie);
            }
        }
        assert!(served.disk.lent.load(SeqCst) > 0);
    }
}

#[test]
fn errors_are_those_of_the_protocol() {
    let served = Served::new(MIB);
    for mut client in [Client::ready(&served.socket, "disk"), Client::simple(&served.socket, "disk")] {
        for offset in [MIB, MIB - 1, u64::MAX, u64::MAX - 1] {
            assert_eq!(client.ask(READ, 0, offset, 2, &[]).error, EINVAL);
            assert_eq!(client.ask(WRITE, 0, offset, 2, b"xy").error, ENOSPC);
            assert_eq!(client.ask(WRITE_ZEROES, 0, offset, 2, &[]).error, ENOSPC);
            assert_eq!(client.ask(TRIM, 0, offset, 2, &[]).error, EINVAL);
            assert_eq!(client.ask(CACHE, 0, offset, 2, &[]).error, EINVAL);
        }
        // Commands and flags that there are not.
        assert_eq!(client.ask(8, 0, 0, 1, &[]).error, EINVAL);
        assert_eq!(client.ask(u16::MAX, 0, 0, 0, &[]).error, EINVAL);
        assert_eq!(client.ask(READ, NO_HOLE, 0, 0, &[]).error, EINVAL);
        assert_eq!(client.ask(WRITE, DF, 0, 3, b"abc").error, EINVAL);
        assert_eq!(client.ask(WRITE, 0x8000, 0, 3, b"abc").error, EINVAL);
        assert_eq!(client.ask(TRIM, NO_HOLE, 0, 3, &[]).error, EINVAL);
        assert_eq!(client.read(0, 3), [0; 3], "nothing of it was done");
        // The cause is told where there is a place for it.
        let reply = client.ask(WRITE, 0, MIB, 1, b"x");
        assert!(reply.message.is_empty() || reply.message.contains("past the end"), "{}", reply.message);
    }
    let mut client = Client::simple(&served.socket, "disk");
    assert_eq!(client.ask(READ, DF, 0, 10, &[]).error, EINVAL, "DF needs structured replies");
    assert_eq!(client.ask(BLOCK_STATUS, 0, 0, 10, &[]).error, EINVAL);
    let mut client = Client::ready(&served.socket, "disk");
    assert_eq!(client.ask(BLOCK_STATUS, 0, 0, 0, &[]).error, EINVAL);
    served.disk.fails_above.store(1000, SeqCst);
    let reply = client.ask(READ, 0, 990, 20, &[]);
    assert_eq!(reply.error, EIO);
    assert!(reply.message.contains("injected"), "{}", reply.message);
    assert_eq!(client.ask(WRITE, 0, 990, 20, &[1; 20]).error, EIO);
    assert_eq!(client.read(0, 1000), [0; 1000], "and it goes on");
}

#[test]
fn block_status_tells_holes() {
    let served = Served::new(4 * MIB);
    let mut client = Client::ready(&served.socket, "disk");
    client.write(MIB, &vec![1; 65536]);
    let status = client.ask(BLOCK_STATUS, 0, 0, 4 << 20, &[]);
    assert_eq!(status.extents, [(1 << 20, 3), (65536, 0), ((3 << 20) - 65536, 3)]);
    let status = client.ask(BLOCK_STATUS, REQ_ONE, MIB + 100, 1 << 20, &[]);
    assert_eq!(status.extents, [(65436, 0)]);
    let status = client.ask(BLOCK_STATUS, 0, 4 * MIB - 1, 1, &[]);
    assert_eq!(status.extents, [(1, 3)]);
}

#[test]
fn several_exports_and_one_that_is_read_only() {
    let dir = testkit::scratch();
    let disk = |name: &str, len| RawDisk::create(&dir.path().join(name), len);
    let one = disk("one", MIB);
    let exports = vec![
        Arc::new(Export::new("one", one.clone())),
        Arc::new(Export::new("", disk("two", 2 * MIB))),
        Arc::new(Export::new("fixed", one.clone()).read_only()),
    ];
    let socket = dir.path().join("s");
    let server =
        Server::start(vec![Listener::unix(&socket).unwrap()], exports.clone(), Options::default()).unwrap();
    let mut client = Client::greeted(&socket, 3);
    assert_eq!(client.option(LIST, &[]).len(), 4);
    assert_eq!(
        client.option(INFO, &info_data("", &[]))[0].1[2..10],
        (2 * MIB).to_be_bytes(),
        "its own name first"
    );
    client.option(STRUCTURED_REPLY, &[]);
    // A context of one export is none of another.
    let context = [named("one").as_slice(), &1u32.to_be_bytes(), &named("base:allocation")].concat();
    assert_eq!(client.option(SET_META_CONTEXT, &context).len(), 2);
    let replies = client.go("fixed");
    // HAS_FLAGS, READ_ONLY, FLUSH, DF, MULTI_CONN, CACHE.
    assert_eq!(replies[0].1[10..], (1u16 | 2 | 4 | 128 | 256 | 1024).to_be_bytes());
    assert_eq!(client.ask(BLOCK_STATUS, 0, 0, 1, &[]).error, EINVAL);

    Client::simple(&socket, "one").write(5, b"seen");
    assert_eq!(client.read(5, 4), b"seen", "by all connections at once");
    for kind in [TRIM, WRITE_ZEROES] {
        assert_eq!(client.ask(kind, 0, 0, 1, &[]).error, EPERM);
    }
    assert_eq!(client.ask(WRITE, 0, 0, 1, b"x").error, EPERM);
    assert_eq!(client.ask(FLUSH, 0, 0, 0, &[]).error, 0);
    server.stop().unwrap();
    assert!(!socket.exists());

    // No export is without a name: which of several is meant is not guessed.
    let named_ones = vec![exports[0].clone(), exports[2].clone()];
    let server =
        Server::start(vec![Listener::unix(&socket).unwrap()], named_ones, Options::default()).unwrap();
    let mut client = Client::greeted(&socket, 3);
    client.option(STRUCTURED_REPLY, &[]);
    for code in [INFO, GO] {
        assert_eq!(client.option(code, &info_data("", &[]))[0].0, ERR_UNKNOWN);
    }
    let context = [named("").as_slice(), &1u32.to_be_bytes(), &named("base:allocation")].concat();
    assert_eq!(client.option(SET_META_CONTEXT, &context)[0].0, ERR_UNKNOWN);
    assert_eq!(client.option(LIST, &[]).len(), 3);
    let ended: Vec<bool> = server.stop_each().iter().map(Result::is_ok).collect();
    assert_eq!(ended, [true, true], "each was flushed");

    let twice = vec![exports[0].clone(), exports[0].clone()];
    let error = Server::start(vec![], twice, Options::default()).err().unwrap();
    assert!(error.to_string().contains("two exports are called 'one'"), "{error}");
    assert!(Server::start(vec![], vec![], Options::default()).is_err());
}

#[test]
fn after_a_failed_flush_nothing_else_succeeds() {
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let options = Options {
        tell: Arc::new(move |event| tell.lock().unwrap().send(event).unwrap()),
        ..Options::default()
    };
    let mut served = Served::with(MIB, options, |export| export);
    let mut one = Client::ready(&served.socket, "disk");
    let mut other = Client::simple(&served.socket, "disk");
    one.write(0, b"perhaps lost");
    served.disk.fails_flush.store(true, SeqCst);
    assert_eq!(one.ask(WRITE, FUA, 20, 3, b"fua").error, EIO);
    let told = told.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(format!("{told:?}").contains("ExportFailed(\"disk\", \"the export failed"), "{told:?}");
    // Even though flushing would work again: the kernel has forgotten what it could not write.
    served.disk.fails_flush.store(false, SeqCst);
    for (kind, len, payload) in [
        (READ, 4, &[][..]),
        (WRITE, 1, b"x"),
        (FLUSH, 0, b""),
        (TRIM, 1, b""),
        (WRITE_ZEROES, 1, b""),
        (CACHE, 1, b""),
    ] {
        let reply = one.ask(kind, 0, 0, len, payload);
        assert_eq!(reply.error, EIO, "{kind}");
        assert!(
            reply.message.contains("the export failed: what was written may be lost"),
            "{}",
            reply.message
        );
        assert_eq!(other.ask(kind, 0, 0, len, payload).error, EIO, "{kind}");
    }
    assert_eq!(one.ask(BLOCK_STATUS, 0, 0, 10, &[]).error, EIO);
    assert_eq!(
        Client::ready(&served.socket, "disk").ask(READ, 0, 0, 1, &[]).error,
        EIO,
        "also to who comes later"
    );
    assert!(served.export.failure().is_some());
    assert!(served.stop().unwrap_err().to_string().contains("may be lost"));
}

#[test]
fn a_backend_that_panics_fails_its_export_alone() {
    let served = Served::new(MIB);
    let mut client = Client::ready(&served.socket, "disk");
    served.disk.panics.store(true, SeqCst);
    assert_eq!(client.ask(READ, 0, 0, 1, &[]).error, EIO);
    served.disk.panics.store(false, SeqCst);
    assert_eq!(client.ask(READ, 0, 0, 1, &[]).error, EIO);
    assert!(served.export.failure().unwrap().contains("panicked"));
}

#[test]
fn a_flush_covers_what_another_connection_wrote() {
    let served = Served::new(MIB);
    let mut one = Client::ready(&served.socket, "disk");
    let mut other = Client::ready(&served.socket, "disk");
    one.write(0, b"x");
    let before = served.disk.flushes.load(SeqCst);
    assert_eq!(other.ask(FLUSH, 0, 0, 0, &[]).error, 0);
    // The one disk below both is flushed, after the write was answered.
    assert_eq!(served.disk.flushes.load(SeqCst), before + 1);
}

#[test]
fn stopping_answers_what_came_and_flushes() {
    let mut served = Served::new(MIB);
    served.disk.delay_us.store(300_000, SeqCst);
    let mut client = Client::ready(&served.socket, "disk");
    for index in 0..8u64 {
        client.request(WRITE, 0, index, index * 100, 100, &[index as u8 + 1; 100]);
    }
    while served.monitor.snapshot().outstanding.writes.count() < 8 {
        std::thread::yield_now();
    }
    let flushes = served.disk.flushes.load(SeqCst);
    served.stop().unwrap();
    assert!(served.disk.flushes.load(SeqCst) > flushes);
    let mut cookies: Vec<u64> = (0..8)
        .map(|_| client.reply(0))
        .inspect(|reply| assert_eq!(reply.error, 0))
        .map(|reply| reply.cookie)
        .collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..8).collect::<Vec<_>>());
    assert!(client.is_closed());
}

#[test]
fn in_the_clear_only_on_loopback() {
    let dir = testkit::scratch();
    let export = Arc::new(Export::new("disk", RawDisk::create(&dir.path().join("disk"), MIB)));
    let start = |listener| Server::start(vec![listener], vec![export.clone()], Options::default());
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let error = start(Listener::tcp(everywhere).unwrap()).err().unwrap();
    assert_eq!(error.kind(), block::ErrorKind::Refused);
    start(Listener::tcp(everywhere).unwrap().insecure()).unwrap().stop().unwrap();
    start(Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap()).unwrap().stop().unwrap();
}

#[test]
fn a_socket_that_is_in_use_is_not_taken_and_one_left_behind_is() {
    let served = Served::new(MIB);
    assert!(Listener::unix(&served.socket).is_err());
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&served.socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let stale = served.dir.path().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert!(Listener::unix(&stale).is_ok());
    let file = served.dir.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    assert!(Listener::unix(&file).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
}
