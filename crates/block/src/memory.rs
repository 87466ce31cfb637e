//! Files and disks in memory, for tests and for small results.

use std::sync::RwLock;

use extent::{Host, HostOffset, HostSpan, Offset, Space};

use crate::{Error, HostFile, ReadAt, Result, TargetFile, check_bounds};

/// The most a memory file may grow to.
const LEN_BYTES_MAX: u64 = 4 << 30;

/// Bytes in memory, readable in any space and writable as a host file.
pub struct Memory {
    name: String,
    bytes: RwLock<Vec<u8>>,
}

impl Memory {
    /// A file that holds `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self::named("memory", bytes)
    }

    /// A file that holds `bytes` and is called `name` in messages.
    pub fn named(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { name: name.into(), bytes: RwLock::new(bytes) }
    }

    /// What it holds now.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes.read().expect("no writer panicked").clone()
    }

    fn grow(bytes: &mut Vec<u8>, len_bytes: u64) -> Result<()> {
        if len_bytes > LEN_BYTES_MAX {
            return Err(Error::io("memory file", std::io::ErrorKind::StorageFull.into()));
        }
        let len = usize::try_from(len_bytes).expect("bounded above");
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        Ok(())
    }
}

fn index<S: Space>(at: Offset<S>) -> usize {
    usize::try_from(at.get()).expect("within memory")
}

impl<S: Space> ReadAt<S> for Memory {
    fn len_bytes(&self) -> u64 {
        self.bytes.read().expect("no writer panicked").len() as u64
    }

    fn read_at(&self, at: Offset<S>, buf: &mut [u8]) -> Result<()> {
        let bytes = self.bytes.read().expect("no writer panicked");
        check_bounds(at, buf.len(), bytes.len() as u64)?;
        buf.copy_from_slice(&bytes[index(at)..][..buf.len()]);
        Ok(())
    }
}

impl HostFile for Memory {
    fn name(&self) -> &str {
        &self.name
    }

    fn allocated_bytes(&self) -> Result<u64> {
        Ok(ReadAt::<Host>::len_bytes(self))
    }
}

impl TargetFile for Memory {
    fn write_at(&self, at: HostOffset, buf: &[u8]) -> Result<()> {
        let mut bytes = self.bytes.write().expect("no writer panicked");
        if !buf.is_empty() {
            Self::grow(&mut bytes, at.get().saturating_add(buf.len() as u64))?;
            bytes[index(at)..][..buf.len()].copy_from_slice(buf);
        }
        Ok(())
    }

    fn set_len(&self, len_bytes: u64) -> Result<()> {
        let mut bytes = self.bytes.write().expect("no writer panicked");
        Self::grow(&mut bytes, len_bytes)?;
        bytes.truncate(usize::try_from(len_bytes).expect("grown to it"));
        Ok(())
    }

    fn reserve(&self, span: HostSpan) -> Result<()> {
        if span.is_empty() {
            return Ok(());
        }
        Self::grow(&mut self.bytes.write().expect("no writer panicked"), span.end().get())
    }

    fn zero(&self, span: HostSpan) -> Result<()> {
        let mut bytes = self.bytes.write().expect("no writer panicked");
        if !span.is_empty() {
            Self::grow(&mut bytes, span.end().get())?;
            bytes[index(span.start())..index(span.end())].fill(0);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}
