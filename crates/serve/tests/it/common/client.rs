//! An NBD client by hand, which can also say what no client would. The numbers are written out here once more, from
//! doc/proto.md and its branch extension-ext-header, so that a wrong one in the server is found.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub const EXPORT_NAME: u32 = 1;
pub const ABORT: u32 = 2;
pub const LIST: u32 = 3;
pub const STARTTLS: u32 = 5;
pub const INFO: u32 = 6;
pub const GO: u32 = 7;
pub const STRUCTURED_REPLY: u32 = 8;
pub const LIST_META_CONTEXT: u32 = 9;
pub const SET_META_CONTEXT: u32 = 10;
pub const EXTENDED_HEADERS: u32 = 11;

pub const ACK: u32 = 1;
pub const SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
pub const META_CONTEXT: u32 = 4;
pub const ERR_UNSUP: u32 = 0x8000_0001;
pub const ERR_POLICY: u32 = 0x8000_0002;
pub const ERR_INVALID: u32 = 0x8000_0003;
pub const ERR_TLS_REQD: u32 = 0x8000_0005;
pub const ERR_UNKNOWN: u32 = 0x8000_0006;
pub const ERR_EXT_HEADER_REQD: u32 = 0x8000_000a;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;
pub const PAYLOAD_LEN: u16 = 32;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const ENOTSUP: u32 = 95;

pub struct Client {
    pub stream: UnixStream,
}

/// A reply, put together from its chunks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub message: String,
    /// Offsets and lengths of chunks of data.
    pub chunks: Vec<(u64, usize)>,
    pub data: Vec<u8>,
    /// Lengths and states.
    pub extents: Vec<(u32, u32)>,
    /// The same of extended replies.
    pub long_extents: Vec<(u64, u64)>,
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream }
    }

    /// Connects and reads the greeting.
    pub fn greeted(path: &Path, flags: u32) -> Self {
        let mut client = Self::connect(path);
        let greeting = client.take(18);
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(&greeting[16..], [0, 3]);
        client.send(&flags.to_be_bytes());
        client
    }

    /// Negotiates structured replies and base:allocation, and goes.
    pub fn ready(path: &Path, name: &str) -> Self {
        let mut client = Self::greeted(path, 3);
        assert_eq!(client.option(STRUCTURED_REPLY, &[]), [(ACK, vec![])]);
        let context = [named(name).as_slice(), &1u32.to_be_bytes(), &named("base:allocation")].concat();
        let replies = client.option(SET_META_CONTEXT, &context);
        assert_eq!(replies.len(), 2, "{replies:?}");
        client.go(name);
        client
    }

    /// Negotiates extended headers and base:allocation, and goes.
    pub fn extended(path: &Path, name: &str) -> Self {
        let mut client = Self::greeted(path, 3);
        assert_eq!(client.option(EXTENDED_HEADERS, &[]), [(ACK, vec![])]);
        let context = [named(name).as_slice(), &1u32.to_be_bytes(), &named("base:allocation")].concat();
        assert_eq!(client.option(SET_META_CONTEXT, &context).len(), 2);
        client.go(name);
        client
    }

    /// The next reply with extended headers to a request at `offset`.
    pub fn extended_reply(&mut self, offset: u64) -> Reply {
        let mut reply = Reply::default();
        loop {
            assert_eq!(self.u32(), 0x6e8a_278c);
            let (flags, kind) = (self.u16(), self.u16());
            reply.cookie = self.u64();
            assert_eq!(self.u64(), offset, "the request's offset comes back");
            let len = self.u64() as usize;
            match kind {
                0 => assert_eq!(len, 0),
                1 => {
                    let offset = self.u64();
                    reply.chunks.push((offset, len - 8));
                    reply.data.extend(self.take(len - 8));
                }
                6 => {
                    assert_eq!(self.u32(), 1, "the context's number");
                    let count = self.u32() as usize;
                    assert_eq!(len, 8 + 16 * count);
                    for _ in 0..count {
                        reply.long_extents.push((self.u64(), self.u64()));
                    }
                }
                0x8001 => {
                    reply.error = self.u32();
                    let message_len = self.u16() as usize;
                    assert_eq!(len, 6 + message_len);
                    reply.message = String::from_utf8(self.take(message_len)).unwrap();
                }
                other => panic!("chunk of type {other}"),
            }
            if flags & 1 != 0 {
                return reply;
            }
        }
    }

    /// One request with an extended header, and its reply.
    pub fn ask_extended(&mut self, kind: u16, flags: u16, offset: u64, len: u64, payload: &[u8]) -> Reply {
        let cookie = 0x1234_5678_9abc_def0 ^ offset;
        self.send(&[&extended_request(kind, flags, cookie, offset, len)[..], payload].concat());
        let reply = self.extended_reply(offset);
        assert_eq!(reply.cookie, cookie);
        reply
    }

    /// Goes with simple replies.
    pub fn simple(path: &Path, name: &str) -> Self {
        let mut client = Self::greeted(path, 3);
        client.go(name);
        client
    }

    pub fn go(&mut self, name: &str) -> Vec<(u32, Vec<u8>)> {
        let replies = self.option(GO, &[named(name).as_slice(), &[0, 0]].concat());
        assert_eq!(replies.last().unwrap().0, ACK, "{replies:?}");
        replies
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Whether the server hung up.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(len) => len == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().unwrap())
    }

    pub fn send_option(&mut self, code: u32, data: &[u8]) {
        let len = (data.len() as u32).to_be_bytes();
        self.send(&[b"IHAVEOPT".as_slice(), &code.to_be_bytes(), &len, data].concat());
    }

    /// All replies to an option, up to the final one.
    pub fn option(&mut self, code: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(code, data);
        let mut replies = Vec::new();
        loop {
            assert_eq!(self.u64(), 0x3e889045565a9);
            assert_eq!(self.u32(), code);
            let kind = self.u32();
            let len = self.u32() as usize;
            replies.push((kind, self.take(len)));
            if kind == ACK || kind >= 0x8000_0000 {
                return replies;
            }
        }
    }

    pub fn request(&mut self, kind: u16, flags: u16, cookie: u64, offset: u64, len: u32, payload: &[u8]) {
        self.send(&request(kind, flags, cookie, offset, len, payload));
    }

    /// The next reply, of either kind.
    pub fn reply(&mut self, read_len: usize) -> Reply {
        let mut reply = Reply::default();
        loop {
            match self.u32() {
                0x6744_6698 => {
                    reply.error = self.u32();
                    reply.cookie = self.u64();
                    if reply.error == 0 {
                        reply.data = self.take(read_len);
                    }
                    return reply;
                }
                0x668e_33ef => {
                    let (flags, kind) = (self.u16(), self.u16());
                    reply.cookie = self.u64();
                    let len = self.u32() as usize;
                    match kind {
                        0 => assert_eq!(len, 0),
                        1 => {
                            let offset = self.u64();
                            reply.chunks.push((offset, len - 8));
                            reply.data.extend(self.take(len - 8));
                        }
                        5 => {
                            assert_eq!(self.u32(), 1, "the context's number");
                            for _ in 0..(len - 4) / 8 {
                                reply.extents.push((self.u32(), self.u32()));
                            }
                        }
                        0x8001 => {
                            reply.error = self.u32();
                            let message_len = self.u16() as usize;
                            assert_eq!(len, 6 + message_len);
                            reply.message = String::from_utf8(self.take(message_len)).unwrap();
                        }
                        other => panic!("chunk of type {other}"),
                    }
                    if flags & 1 != 0 {
                        return reply;
                    }
                }
                other => panic!("reply begins with {other:#x}"),
            }
        }
    }

    /// One request and its reply.
    pub fn ask(&mut self, kind: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) -> Reply {
        let cookie = 0x1234_5678_9abc_def0 ^ offset;
        self.request(kind, flags, cookie, offset, len, payload);
        let reply = self.reply(if kind == READ { len as usize } else { 0 });
        assert_eq!(reply.cookie, cookie);
        reply
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        let reply = self.ask(READ, 0, offset, len, &[]);
        assert_eq!((reply.error, reply.data.len()), (0, len as usize), "{}", reply.message);
        reply.data
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let reply = self.ask(WRITE, 0, offset, data.len() as u32, data);
        assert_eq!(reply.error, 0, "{}", reply.message);
    }
}

pub fn request(kind: u16, flags: u16, cookie: u64, offset: u64, len: u32, payload: &[u8]) -> Vec<u8> {
    let head = [
        &0x2560_9513u32.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ];
    [head.concat().as_slice(), payload].concat()
}

/// Without what follows it.
pub fn extended_request(kind: u16, flags: u16, cookie: u64, offset: u64, len: u64) -> Vec<u8> {
    [
        &0x21e4_1c71u32.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ]
    .concat()
}

/// A name with its length before it.
pub fn named(name: &str) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes()].concat()
}
