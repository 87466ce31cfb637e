//! A client that keeps a server busy: requests of 4 KiB, as many under way as fio has, the next one sent as soon as one is answered.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

/// Requests under way.
const DEPTH: usize = 32;
const DATA_BYTES: usize = 4096;
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The NBD protocol's numbers (doc/proto.md).
const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const FIXED_NEWSTYLE_AND_NO_ZEROES: u32 = 3;
const OPT_EXPORT_NAME: u32 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const REPLY_BYTES: usize = 16;
const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;
const CMD_FLUSH: u16 = 3;

/// A request.
#[derive(Clone, Copy)]
pub(super) enum Ask {
    Read { offset: u64 },
    Write { offset: u64 },
    Flush,
}

/// A connection.
pub(super) struct Load {
    stream: UnixStream,
    len_bytes: u64,
    /// What was received and not looked at is from `start` to `end`.
    received: Vec<u8>,
    start: usize,
    end: usize,
    message: Vec<u8>,
}

impl Load {
    /// Connects to the export `name`.
    pub(super) fn connect(socket: &Path, name: &str) -> Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        ensure!(greeting[..8] == NBDMAGIC.to_be_bytes(), "no NBD server");
        let option = [
            &FIXED_NEWSTYLE_AND_NO_ZEROES.to_be_bytes()[..],
            &IHAVEOPT.to_be_bytes(),
            &OPT_EXPORT_NAME.to_be_bytes(),
            &u32::try_from(name.len())?.to_be_bytes(),
            name.as_bytes(),
        ];
        stream.write_all(&option.concat())?;
        let mut export = [0; 10];
        stream.read_exact(&mut export)?;
        let [len_bytes @ .., _, _] = export;
        Ok(Self {
            stream,
            len_bytes: u64::from_be_bytes(len_bytes),
            received: vec![0; 256 << 10],
            start: 0,
            end: 0,
            message: Vec::new(),
        })
    }

    /// The disk's.
    pub(super) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Asks all, and waits for the replies.
    pub(super) fn run(&mut self, asks: impl IntoIterator<Item = Ask>) -> Result<()> {
        let mut asks = asks.into_iter();
        let mut under_way = 0;
        for ask in asks.by_ref().take(DEPTH) {
            self.send(ask)?;
            under_way += 1;
        }
        while under_way > 0 {
            self.receive_reply()?;
            match asks.next() {
                Some(ask) => self.send(ask)?,
                None => under_way -= 1,
            }
        }
        Ok(())
    }

    /// The cookie tells what the reply brings.
    fn send(&mut self, ask: Ask) -> Result<()> {
        let (command, offset, len, sent, cookie) = match ask {
            Ask::Read { offset } => (CMD_READ, offset, DATA_BYTES, 0, DATA_BYTES),
            Ask::Write { offset } => (CMD_WRITE, offset, DATA_BYTES, DATA_BYTES, 0),
            Ask::Flush => (CMD_FLUSH, 0, 0, 0, 0),
        };
        self.put(command, cookie as u64, offset, u32::try_from(len)?);
        self.message.resize(self.message.len() + sent, 0xa5);
        Ok(self.stream.write_all(&self.message)?)
    }

    fn put(&mut self, command: u16, cookie: u64, offset: u64, len_bytes: u32) {
        self.message.clear();
        self.message.extend(REQUEST_MAGIC.to_be_bytes());
        self.message.extend(0u16.to_be_bytes());
        self.message.extend(command.to_be_bytes());
        self.message.extend(cookie.to_be_bytes());
        self.message.extend(offset.to_be_bytes());
        self.message.extend(len_bytes.to_be_bytes());
    }

    fn receive_reply(&mut self) -> Result<()> {
        self.receive(REPLY_BYTES)?;
        let (head, rest) = self.received[self.start..].split_at(REPLY_BYTES);
        let word = |at: usize| -> [u8; 4] { [head[at], head[at + 1], head[at + 2], head[at + 3]] };
        ensure!(word(0) == REPLY_MAGIC.to_be_bytes(), "no reply where one must be");
        ensure!(word(4) == [0; 4], "the server failed: {}", u32::from_be_bytes(word(4)));
        let _ = rest;
        let data_len = u32::from_be_bytes(word(12)) as usize;
        self.start += REPLY_BYTES;
        self.receive(data_len)?;
        self.start += data_len;
        Ok(())
    }

    /// Has `len` bytes from `start` on.
    fn receive(&mut self, len: usize) -> Result<()> {
        while self.end - self.start < len {
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            } else if self.received.len() - self.start < len {
                self.received.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            match self.stream.read(&mut self.received[self.end..])? {
                0 => bail!("the server is gone"),
                more => self.end += more,
            }
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.put(CMD_DISC, 0, 0, 0);
        // Whoever is gone needs no goodbye.
        let _ = self.stream.write_all(&self.message);
    }
}

/// Numbers that look random (Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled": xorshift64*).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }
}
