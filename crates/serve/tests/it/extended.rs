//! Extended headers, by a client that is written by hand, and by our own.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use block::{HostFile, HostState, ReadAt, TargetFile};
use extent::{Offset, Span};
use nbd::transport::Socket;
use nbd::{Patience, RemoteDisk, RemoteTarget, Wanted};
use serve::nbd::Options;

use crate::common::Served;
use crate::common::client::*;

const MIB: u64 = 1 << 20;
/// More than 32 bits can say.
const LARGE: u64 = 8 << 40;

#[test]
fn they_are_agreed_on_and_take_the_place_of_structured_replies() {
    let served = Served::new(MIB);
    let mut client = Client::greeted(&served.socket, 3);
    assert_eq!(client.option(EXTENDED_HEADERS, &[0])[0].0, ERR_INVALID);
    assert_eq!(client.option(STRUCTURED_REPLY, &[]), [(ACK, vec![])]);
    assert_eq!(client.option(EXTENDED_HEADERS, &[]), [(ACK, vec![])]);
    assert_eq!(client.option(STRUCTURED_REPLY, &[])[0].0, ERR_EXT_HEADER_REQD);
    let flags = |replies: &[(u32, Vec<u8>)]| u16::from_be_bytes(replies[0].1[10..].try_into().unwrap());
    let info = [named("disk").as_slice(), &[0, 0]].concat();
    assert_eq!(flags(&client.option(INFO, &info)) & (1 << 12 | 1 << 7), 1 << 7, "no context, but DF");
    let context = [named("disk").as_slice(), &1u32.to_be_bytes(), &named("base:allocation")].concat();
    assert_eq!(client.option(SET_META_CONTEXT, &context).len(), 2);
    assert_eq!(flags(&client.go("disk")) & (1 << 12 | 1 << 7), 1 << 12 | 1 << 7);
    // Errors cannot be told in answer to this one, and it must not be asked.
    let mut client = Client::greeted(&served.socket, 3);
    assert_eq!(client.option(EXTENDED_HEADERS, &[]), [(ACK, vec![])]);
    client.send_option(EXPORT_NAME, b"disk");
    assert!(client.is_closed());
}

#[test]
fn every_command_is_answered() {
    let served = Served::new(MIB);
    let mut client = Client::extended(&served.socket, "disk");
    let mut ask =
        |kind, flags, offset, len, payload: &[u8]| client.ask_extended(kind, flags, offset, len, payload);
    assert_eq!(ask(WRITE, PAYLOAD_LEN | FUA, 4096, 8192, &[7; 8192]).error, 0);
    let read = ask(READ, 0, 4000, 200, &[]);
    assert_eq!((read.error, read.data), (0, [vec![0; 96], vec![7; 104]].concat()));
    assert_eq!(ask(READ, DF, 8192, 4096, &[]).data, [7; 4096]);
    assert!(ask(READ, 0, 0, 0, &[]).data.is_empty());
    assert_eq!(ask(FLUSH, 0, 0, 0, &[]).error, 0);
    assert_eq!(ask(CACHE, 0, 0, MIB, &[]).error, 0);
    let whole = ask(BLOCK_STATUS, 0, 0, MIB, &[]);
    assert_eq!(whole.long_extents, [(4096, 3), (8192, 0), (MIB - 12288, 3)]);
    assert_eq!(ask(BLOCK_STATUS, REQ_ONE, 0, MIB, &[]).long_extents, [(4096, 3)]);
    let filter = |len: u64, ids: &[u32]| {
        let ids: Vec<_> = ids.iter().flat_map(|id| id.to_be_bytes()).collect();
        [&len.to_be_bytes()[..], &ids].concat()
    };
    let payload = filter(8192, &[1]);
    assert_eq!(ask(BLOCK_STATUS, PAYLOAD_LEN, 4096, 12, &payload).long_extents, [(8192, 0)]);
    for wrong in [
        filter(8192, &[2]),
        filter(8192, &[1, 1]),
        filter(8192, &[]),
        filter(0, &[1]),
        filter(2 * MIB, &[1]),
        vec![1; 5],
    ] {
        let len = wrong.len() as u64;
        assert_eq!(ask(BLOCK_STATUS, PAYLOAD_LEN, 0, len, &wrong).error, EINVAL, "{wrong:?}");
    }
    // A payload where there should be none is skipped. A write has one, whether that is said, as the protocol has it, or not, as QEMU does it.
    for kind in [READ, FLUSH, TRIM, CACHE, WRITE_ZEROES, 77] {
        assert_eq!(ask(kind, PAYLOAD_LEN, 0, 4096, &[9; 4096]).error, EINVAL, "{kind}");
    }
    assert_eq!(ask(WRITE, 0, 16384, 4096, &[6; 4096]).error, 0);
    assert_eq!(ask(READ, 0, 16384, 4096, &[]).data, [6; 4096]);
    assert_eq!(ask(TRIM, 0, 16384, 4096, &[]).error, 0);
    for (kind, error) in
        [(READ, EINVAL), (TRIM, EINVAL), (WRITE_ZEROES, ENOSPC), (BLOCK_STATUS, EINVAL), (CACHE, EINVAL)]
    {
        for (offset, len) in [(0, MIB + 1), (0, u64::MAX), (MIB, 1), (u64::MAX, u64::MAX), (4096, 1 << 32)] {
            assert_eq!(ask(kind, 0, offset, len, &[]).error, error, "{kind} {offset} {len}");
        }
    }
    assert_eq!(ask(WRITE_ZEROES, NO_HOLE, 4096, 4096, &[]).error, 0);
    assert_eq!(ask(TRIM, 0, 8192, 4096, &[]).error, 0);
    assert_eq!(ask(READ, 0, 0, MIB, &[]).data, vec![0; MIB as usize]);
    // Longer than a buffer: in pieces, of which each says where the request began.
    let served = Served::new(8 * MIB);
    let mut large = Client::extended(&served.socket, "disk");
    assert_eq!(large.ask_extended(WRITE, PAYLOAD_LEN, 512, 5 * MIB, &vec![3; 5 << 20]).error, 0);
    let read = large.ask_extended(READ, 0, 512, 5 * MIB, &[]);
    assert!(read.data == vec![3; 5 << 20] && read.chunks.len() > 1);
}

#[test]
fn what_has_no_extended_header_or_too_long_a_payload_ends_the_connection() {
    let served = Served::new(MIB);
    let mut client = Client::extended(&served.socket, "disk");
    client.request(READ, 0, 1, 0, 4096, &[]);
    client.send(&[0; 4]);
    assert!(client.is_closed());
    for len in [(32 << 20) + 1, 1 << 32, u64::MAX] {
        for kind in [WRITE, BLOCK_STATUS, READ] {
            let mut client = Client::extended(&served.socket, "disk");
            client.send(&extended_request(kind, PAYLOAD_LEN, 1, 0, len));
            assert!(client.is_closed(), "{kind} {len}");
        }
    }
    let mut compact = Client::ready(&served.socket, "disk");
    assert_eq!(compact.ask(BLOCK_STATUS, PAYLOAD_LEN, 0, 4096, &[]).error, EINVAL, "it is not agreed on");
}

#[test]
fn lengths_of_64_bits_are_done() {
    let served = Served::new(LARGE);
    let mut client = Client::extended(&served.socket, "disk");
    let mut ask =
        |kind, flags, offset, len, payload: &[u8]| client.ask_extended(kind, flags, offset, len, payload);
    assert_eq!(ask(WRITE, PAYLOAD_LEN, LARGE - 4096, 4096, &[7; 4096]).error, 0);
    assert_eq!(ask(WRITE, PAYLOAD_LEN, 0, 4096, &[7; 4096]).error, 0);
    let told = ask(BLOCK_STATUS, 0, 4096, LARGE - 4096, &[]).long_extents;
    assert!(told.len() == 1 && told[0].0 > 1 << 32 && told[0].1 == 3, "{told:?}");
    assert_eq!(ask(WRITE_ZEROES, FUA, 0, LARGE, &[]).error, 0);
    assert_eq!(ask(READ, 0, LARGE - 4096, 4096, &[]).data, [0; 4096]);
    assert_eq!(ask(READ, 0, 0, 4096, &[]).data, [0; 4096]);
    assert_eq!(ask(TRIM, 0, 0, LARGE, &[]).error, 0);
}

fn wanted(is_compact: bool) -> Wanted {
    Wanted { is_compact, ..Wanted::default() }
}

#[test]
fn our_client_speaks_both() {
    const LEN: u64 = 3 << 30;
    let served = Arc::new(Served::with(LEN, Options::default(), |export| export));
    for is_compact in [true, false] {
        let socket = served.socket.clone();
        let dial = move || Ok(Socket::Unix(std::os::unix::net::UnixStream::connect(&socket).unwrap()));
        let target =
            RemoteTarget::connect("it", Box::new(dial.clone()), wanted(is_compact), Patience::default())
                .unwrap();
        target.write_at(Offset::new(5000), &[9; 70_000]).unwrap();
        target.write_at(Offset::new(LEN - 4096), &[8; 4096]).unwrap();
        target.flush().unwrap();
        let disk =
            RemoteDisk::connect("it", Box::new(dial), wanted(is_compact), Patience::default()).unwrap();
        assert_eq!(disk.facts().is_extended, !is_compact);
        let mut buf = vec![1; 80_000];
        disk.read_at(Offset::ZERO, &mut buf).unwrap();
        assert!(buf[..5000] == [0; 5000] && buf[5000..75_000] == [9; 70_000] && buf[75_000..] == [0; 5000]);
        let map = disk.host_map(Span::from_zero(LEN)).unwrap();
        let states: Vec<_> = map.iter().map(|extent| (extent.span.start().get(), extent.state)).collect();
        assert_eq!(states[1], (4096, HostState::Data));
        assert_eq!(*states.last().unwrap(), (LEN - 4096, HostState::Data));
        target.zero(Span::new(Offset::ZERO, LEN)).unwrap();
        assert_eq!(disk.read_at(Offset::new(LEN), &mut [0]).unwrap_err().kind(), block::ErrorKind::Invalid);
        disk.read_at(Offset::new(LEN - 4096), &mut buf[..4096]).unwrap();
        assert_eq!(buf[..4096], [0; 4096]);
    }
}

/// What is written over a network is stored while more is written, and a server that cannot store is known then.
#[test]
fn our_client_flushes_while_it_writes() {
    const WRITTEN: u64 = 300 * MIB;
    for fails in [false, true] {
        let served = Served::new(WRITTEN);
        served.disk.fails_flush.store(fails, SeqCst);
        let socket = served.socket.clone();
        let dial = move || Ok(Socket::Unix(std::os::unix::net::UnixStream::connect(&socket).unwrap()));
        let target = RemoteTarget::connect("it", Box::new(dial), wanted(true), Patience::default()).unwrap();
        let write = |at| target.write_at(Offset::new(at * MIB), &[7; MIB as usize]);
        let first_failed = (0..WRITTEN / MIB).find(|at| write(*at).is_err());
        assert_eq!(first_failed, fails.then_some(127), "the write after which there are 128 MiB");
        assert_eq!(served.disk.flushes.load(SeqCst), if fails { 1 } else { 2 });
    }
}
