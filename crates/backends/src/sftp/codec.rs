//! Packets of SFTP version 3 (draft-ietf-secsh-filexfer-02): what is sent, and what comes back, read with bounds.

use crate::fault::{Attempt, Fault};

/// The version that OpenSSH speaks.
pub(crate) const VERSION: u32 = 3;
/// The longest packet that is taken: OpenSSH's are of 256 KiB at most.
pub(crate) const PACKET_BYTES_MAX: u32 = 1 << 20;

/// Requests, by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Ask {
    Init = 1,
    Open = 3,
    Close = 4,
    Read = 5,
    Write = 6,
    Lstat = 7,
    Fstat = 8,
    Opendir = 11,
    Readdir = 12,
    Remove = 13,
    Mkdir = 14,
    Rename = 18,
    Extended = 200,
}

/// For what a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opened {
    /// `SSH_FXF_READ`
    Read,
    /// `SSH_FXF_WRITE`, `SSH_FXF_CREAT` and `SSH_FXF_EXCL`
    New,
}

impl Opened {
    pub(crate) fn flags(self) -> u32 {
        match self {
            Self::Read => 0x01,
            Self::New => 0x02 | 0x08 | 0x20,
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Ok,
    Eof,
    NoSuchFile,
    PermissionDenied,
    NoConnection,
    Unsupported,
    /// `SSH_FX_FAILURE` and whatever else there may be.
    Failure,
}

impl Status {
    fn of(code: u32) -> Self {
        match code {
            0 => Self::Ok,
            1 => Self::Eof,
            2 => Self::NoSuchFile,
            3 => Self::PermissionDenied,
            6 | 7 => Self::NoConnection,
            8 => Self::Unsupported,
            _ => Self::Failure,
        }
    }
}

/// What came back.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Status(Status, String),
    Handle(Vec<u8>),
    Data(Vec<u8>),
    Names(Vec<String>),
    Attributes(Attributes),
}

/// What is looked at of a file's attributes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Attributes {
    pub(crate) len_bytes: Option<u64>,
    pub(crate) mode: Option<u32>,
}

/// The body of a packet that is being put together.
#[derive(Default)]
pub(crate) struct Body(Vec<u8>);

impl Body {
    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// A string, with its length before it. What is sent here is shorter than a packet.
    pub(crate) fn string(self, bytes: &[u8]) -> Self {
        let len = u32::try_from(bytes.len()).expect("shorter than a packet");
        let mut body = self.u32(len);
        body.0.extend_from_slice(bytes);
        body
    }

    /// The whole packet. `id` is not there in the first one.
    pub(crate) fn packet(self, ask: Ask, id: Option<u32>) -> Vec<u8> {
        let id = id.map(u32::to_be_bytes);
        let id = id.as_ref().map_or(&[][..], |id| id);
        let len = u32::try_from(1 + id.len() + self.0.len()).expect("shorter than a packet");
        [&len.to_be_bytes()[..], &[ask as u8], id, &self.0].concat()
    }
}

/// What is left of a packet.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Attempt<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(garbage)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Attempt<u8> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn u32(&mut self) -> Attempt<u32> {
        Ok(u32::from_be_bytes(self.take(4)?.try_into().expect("4 bytes")))
    }

    fn u64(&mut self) -> Attempt<u64> {
        Ok(u64::from_be_bytes(self.take(8)?.try_into().expect("8 bytes")))
    }

    pub(crate) fn string(&mut self) -> Attempt<&'a [u8]> {
        let len = usize::try_from(self.u32()?).map_err(|_| garbage())?;
        self.take(len)
    }

    fn text(&mut self) -> Attempt<String> {
        Ok(String::from_utf8_lossy(self.string()?).into_owned())
    }

    fn attributes(&mut self) -> Attempt<Attributes> {
        let flags = self.u32()?;
        let has = |bit: u32| flags & bit != 0;
        let len_bytes = if has(1) { Some(self.u64()?) } else { None };
        if has(2) {
            self.take(8)?;
        }
        let mode = if has(4) { Some(self.u32()?) } else { None };
        if has(8) {
            self.take(8)?;
        }
        if has(0x8000_0000) {
            // Each pair takes some of the packet: it ends.
            for _ in 0..self.u32()? {
                self.string()?;
                self.string()?;
            }
        }
        Ok(Attributes { len_bytes, mode })
    }

    fn names(&mut self) -> Attempt<Vec<String>> {
        let count = self.u32()?;
        let mut names = Vec::new();
        for _ in 0..count {
            names.push(self.text()?);
            self.string()?;
            self.attributes()?;
        }
        Ok(names)
    }

    /// A reply, and to which request.
    pub(crate) fn reply(mut self) -> Attempt<(u32, Reply)> {
        let kind = self.u8()?;
        let id = self.u32()?;
        let reply = match kind {
            101 => {
                let status = Status::of(self.u32()?);
                // Old servers say nothing more.
                Reply::Status(status, self.text().unwrap_or_default())
            }
            102 => Reply::Handle(self.string()?.to_vec()),
            103 => Reply::Data(self.string()?.to_vec()),
            104 => Reply::Names(self.names()?),
            105 => Reply::Attributes(self.attributes()?),
            _ => return Err(garbage()),
        };
        Ok((id, reply))
    }
}

/// What is no such packet.
pub(crate) fn garbage() -> Fault {
    Fault::corrupt("what the server answers is no SFTP")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_and_cut_ones_are_garbage() {
        let names =
            Body::default().u32(7).u32(2).string(b"a").string(b"-rw a").u32(0xd).u64(5).u32(0o100_600).u64(0);
        let names = names.string(b"b").string(b"").u32(0x8000_0000).u32(1).string(b"x").string(b"y");
        let bytes = [&[104][..], &names.0].concat();
        assert_eq!(Fields(&bytes).reply().unwrap(), (7, Reply::Names(vec!["a".into(), "b".into()])));
        for len in 0..bytes.len() {
            assert!(Fields(&bytes[..len]).reply().is_err(), "{len} bytes");
        }
        let status = [&[101][..], &Body::default().u32(1).u32(2).0].concat();
        assert_eq!(Fields(&status).reply().unwrap(), (1, Reply::Status(Status::NoSuchFile, String::new())));
        // A count that the packet cannot hold.
        let many = [&[104][..], &Body::default().u32(1).u32(u32::MAX).0].concat();
        assert!(Fields(&many).reply().is_err());
        assert_eq!(Body::default().u32(3).packet(Ask::Init, None), [0, 0, 0, 5, 1, 0, 0, 0, 3]);
    }
}
